//! What the program's environment says, read once.
//!
//! The driver loads the library inside of `cuInit`, where it has just read the environment itself.
//! But a library that was put into a running program is called while any thread may be changing
//! the environment, and getenv(3) reads freed memory then. So that reads what the kernel has of
//! the environment that the program was started with, and later nothing is read at all.

use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use gdiag_cupti_locate as locate;
use gdiag_shim_layout::{ENV_DISABLE, ENV_RING_MIB, ENV_START, ENV_UNIFIED_MEMORY};

use crate::launcher::Launcher;

/// The driver's variable that names the library to load.
const INJECTION: &str = "CUDA_INJECTION64_PATH";

#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) disabled: bool,
    /// gdiag launched the program and collects from the start.
    pub(crate) launcher: Option<Launcher>,
    pub(crate) unified_memory: bool,
    pub(crate) ring_mib: Option<String>,
    /// Where CUDA toolkits are, in order of preference.
    pub(crate) toolkits: Vec<PathBuf>,
}

impl Environment {
    /// For the library that is known to the dynamic linker as `own`.
    pub(crate) fn of_library(own: Option<&Path>) -> Environment {
        match own {
            Some(path) if was_put_into(path) => {
                let at_start = fs::read("/proc/self/environ").unwrap_or_default();
                Environment::read(own, |name| find(&at_start, name))
            }
            Some(_) | None => Environment::read(own, |name| env::var_os(name)),
        }
    }

    fn read(own: Option<&Path>, get: impl Fn(&str) -> Option<OsString>) -> Environment {
        let is_1 = |name| get(name).is_some_and(|value| value == "1");
        let path = |name| {
            get(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let launcher = path(INJECTION).filter(|_| is_1(ENV_START)).zip(own);
        Environment {
            disabled: is_1(ENV_DISABLE),
            launcher: launcher.and_then(|(path, own)| Launcher::of_library(path, own)),
            unified_memory: is_1(ENV_UNIFIED_MEMORY),
            ring_mib: get(ENV_RING_MIB).and_then(|value| value.into_string().ok()),
            toolkits: locate::toolkits(
                locate::TOOLKIT_VARIABLES.into_iter().filter_map(path),
                &locate::list,
            ),
        }
    }
}

/// gdiag has it loaded through a descriptor; the driver, by the name of a file.
fn was_put_into(own: &Path) -> bool {
    own.starts_with("/proc")
}

/// The value of `name` in what `/proc/PID/environ` gives.
fn find(environ: &[u8], name: &str) -> Option<OsString> {
    environ.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsString::from_vec(value.to_vec()))
    })
}

/// The file that this library was loaded from, as the dynamic linker knows it.
pub(crate) fn own_path() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: an address of this library, and a structure of ours.
    let found = unsafe { libc::dladdr(own_path as *const libc::c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as the library is loaded, which is for good.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_the_start_is_found_by_its_whole_name() {
        let environ = b"AB=1\0A=2=3\0EMPTY=\0ODD\0A=4\0";
        assert_eq!(find(environ, "A"), Some("2=3".into()));
        assert_eq!(find(environ, "EMPTY"), Some("".into()));
        assert_eq!((find(environ, "B"), find(environ, "ODD")), (None, None));
        assert_eq!(find(b"", "A"), None);
    }

    #[test]
    fn only_a_library_that_came_through_a_descriptor_was_put_into_the_program() {
        assert!(was_put_into(Path::new("/proc/self/fd//7")));
        assert!(!was_put_into(Path::new("/opt/gdiag/libgdiag_cupti.so")));
        assert!(!was_put_into(Path::new("/procedures/libgdiag_cupti.so")));
    }

    #[test]
    fn variables_that_make_no_sense_count_as_none() {
        let own = Path::new("/proc/self/exe");
        let with = |value: &'static str| {
            Environment::read(Some(own), move |name| match name {
                ENV_RING_MIB | "CUDA_HOME" => Some(value.into()),
                ENV_DISABLE | ENV_UNIFIED_MEMORY => Some(value.into()),
                _ => None,
            })
        };
        let (one, none) = (with("1"), with(""));
        assert!(one.disabled && one.unified_memory);
        assert!(!none.disabled && !none.unified_memory);
        assert_eq!(one.toolkits[0], Path::new("1"));
        assert!(none.toolkits[0].is_absolute(), "the usual places");
        assert!(one.launcher.is_none() && none.launcher.is_none());
    }
}
