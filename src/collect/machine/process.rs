//! A process that is to be recorded: what would become of it, without touching it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::cupti::CudaUser;
use crate::collect::elf::Elf;
use crate::collect::inject::{self, Failure};
use crate::collect::maps::{self, Mmap};
use crate::collect::python::{Interpreter, Minor};
use crate::collect::{process, shim_file, shims};

/// The strings of a C library are not larger.
const MOST_STRINGS: u64 = 16 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub comm: String,
    /// The driver is mapped; `None`: the memory map cannot be read.
    pub has_driver: Option<bool>,
    /// It has the driver's own thread: CUDA was used.
    pub uses_cuda: bool,
    /// `None`: it has gone meanwhile.
    pub cuda: Option<CudaUser>,
    /// Whether the shim could be put into it now.
    pub inject: Result<(), Failure>,
    /// What its environment has the driver load.
    pub injection: Option<PathBuf>,
    pub disabled: bool,
    pub environment_readable: bool,
    /// Mode of its system call filter: 0 none, 1 strict, 2 filter.
    pub seccomp: Option<u32>,
    pub shadow_stack: Option<bool>,
    /// 0: none.
    pub tracer: Option<u32>,
    /// Namespaces that are not those of gdiag.
    pub other_namespaces: Vec<&'static str>,
    pub libc: Option<Libc>,
    /// `None`: the memory map cannot be read.
    pub python: Option<Python>,
}

/// The C library of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Libc {
    Glibc(Option<String>),
    Musl,
    /// No library that is known: perhaps a static program.
    Unknown,
}

impl fmt::Display for Libc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Libc::Glibc(Some(version)) => write!(f, "glibc {version}"),
            Libc::Glibc(None) => f.write_str("glibc"),
            Libc::Musl => f.write_str("musl"),
            Libc::Unknown => f.write_str("none that is known"),
        }
    }
}

/// The interpreter in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Python {
    #[default]
    None,
    /// CPython 3 of this minor version, whose frames can be read.
    Known(Minor),
    /// By its file; one whose frames cannot be read.
    Unknown(String),
}

impl Process {
    pub(super) fn read(pid: u32, driver_major: Option<u32>) -> Process {
        let mapped = maps::executable(pid).ok();
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status).into_owned();
        let field = |name: &str| field(&status, name).map(str::to_string);
        Process {
            pid,
            comm: process::comm(pid).unwrap_or_default(),
            has_driver: mapped.as_deref().map(|mapped| mapped.iter().any(is_driver)),
            uses_cuda: shims::has_driver_thread(pid),
            cuda: CudaUser::read(pid, driver_major),
            inject: inject::inspect(pid),
            injection: environment(pid, shim_file::INJECTION).map(PathBuf::from),
            disabled: inject::is_disabled(pid),
            environment_readable: fs::File::open(format!("/proc/{pid}/environ")).is_ok(),
            seccomp: field("Seccomp").and_then(|mode| mode.parse().ok()),
            shadow_stack: field("x86_Thread_features").map(|text| text.contains("shstk")),
            tracer: field("TracerPid").and_then(|pid| pid.parse().ok()),
            other_namespaces: other_namespaces(pid),
            libc: libc_of(pid),
            python: mapped.as_deref().map(|mapped| python(pid, mapped)),
        }
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// A variable of the environment that a process began with, when it is not empty.
pub(super) fn environment(pid: u32, name: &str) -> Option<OsString> {
    process::environment(pid, name).filter(|value| !value.is_empty())
}

fn is_driver(mmap: &Mmap) -> bool {
    let name = mmap.path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    name.starts_with(b"libcuda.so")
}

fn other_namespaces(pid: u32) -> Vec<&'static str> {
    let names = ["pid", "mnt", "user", "net", "cgroup"];
    let words = ["PID", "mount", "user", "network", "cgroup"];
    let differs = |name: &str| {
        let ns = |of: &str| fs::read_link(format!("/proc/{of}/ns/{name}")).ok();
        ns("self")
            .zip(ns(&pid.to_string()))
            .is_some_and(|(own, other)| own != other)
    };
    names
        .iter()
        .zip(words)
        .filter(|(name, _)| differs(name))
        .map(|(_, word)| word)
        .collect()
}

/// The C library of a process; `None` when its memory map is not shown.
pub(super) fn libc_of(pid: u32) -> Option<Libc> {
    let mapped = maps::executable(pid).ok()?;
    let name = |mmap: &Mmap| {
        let path = String::from_utf8_lossy(&mmap.path).into_owned();
        path.rsplit('/').next().unwrap_or_default().to_string()
    };
    if mapped.iter().any(|mmap| name(mmap).starts_with("ld-musl-")) {
        return Some(Libc::Musl);
    }
    let is_glibc = |name: &str| name == "libc.so.6" || name.starts_with("libc-2.");
    let Some(libc) = mapped.iter().find(|mmap| is_glibc(&name(mmap))) else {
        return Some(Libc::Unknown);
    };
    let named = name(libc);
    let named = named
        .strip_prefix("libc-")
        .and_then(|rest| rest.strip_suffix(".so"));
    let version = named.map(str::to_string).or_else(|| {
        let elf = maps::open(pid, std::slice::from_ref(libc))
            .pop()
            .flatten()?;
        version_in(&elf)
    });
    Some(Libc::Glibc(version))
}

/// It says of itself: `GNU C Library (…) stable release version 2.36.`
fn version_in(elf: &Elf) -> Option<String> {
    const MARK: &[u8] = b"release version ";
    let (_, strings) = elf.section(".rodata", MOST_STRINGS).ok()??;
    let at = strings
        .windows(MARK.len())
        .position(|window| window == MARK)?;
    let version = strings[at + MARK.len()..].iter().take(16);
    let version: String = version
        .take_while(|b| b.is_ascii_digit() || **b == b'.')
        .map(|&b| char::from(b))
        .collect();
    Some(version.trim_end_matches('.').to_string()).filter(|version| !version.is_empty())
}

fn python(pid: u32, mapped: &[Mmap]) -> Python {
    let mut unknown = None;
    for (mmap, elf) in mapped.iter().zip(maps::open(pid, mapped)) {
        let path = String::from_utf8_lossy(&mmap.path).into_owned();
        let name = Path::new(&path)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let interpreter = elf.and_then(|elf| Interpreter::of(&elf, &path).ok().flatten());
        match interpreter {
            Some(interpreter) => return Python::Known(interpreter.version),
            None if name.starts_with("libpython3") || name.starts_with("python3") => {
                unknown.get_or_insert(name);
            }
            None => {}
        }
    }
    unknown.map_or(Python::None, Python::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_c_library_tells_its_version() {
        match libc_of(std::process::id()) {
            Some(Libc::Glibc(Some(version))) => assert!(version.starts_with("2."), "{version}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_program_without_cuda_is_looked_at_all_the_same() {
        let own = Process::read(std::process::id(), None);
        assert_eq!(own.has_driver, Some(false));
        assert!(!own.uses_cuda && !own.disabled);
        assert!(own.other_namespaces.is_empty());
        assert_eq!(own.python, Some(Python::None));
    }
}
