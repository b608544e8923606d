//! Every libcupti that is here, and who uses CUDA with which.
//!
//! Which one a shim would take is told by the shim's own rules ([`gdiag_cupti_locate`]). They are given the
//! paths in /proc/PID/maps, where the shim asks the dynamic linker: for a library that was loaded through a
//! link into another directory the answers may differ.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use gdiag_cupti_locate::{self as locate, Found};
use nix::fcntl::{open, openat2, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;

use super::process::environment;
use crate::collect::shims::{self, Look, Refusal};
use crate::collect::{maps, process};

/// Where the dynamic linker finds libraries.
const LINKER_CACHE: &str = "/etc/ld.so.cache";

/// How a libcupti was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A process that uses CUDA has it mapped.
    Mapped,
    #[default]
    Toolkit,
    /// A Python package.
    Wheel,
    /// In a directory of LD_LIBRARY_PATH.
    Variable,
    /// In the dynamic linker's cache.
    Linker,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Library {
    pub path: PathBuf,
    pub source: Source,
    /// Of CUDA or of the package, as far as names and files beside it tell.
    pub version: Option<String>,
    /// Of CUDA, by the name; `None`: the name does not tell.
    pub major: Option<u32>,
    /// Another tool's own copy, which gdiag leaves alone.
    pub foreign: bool,
}

/// What is known of the shim of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShimFact {
    #[default]
    None,
    There(Look),
    /// It has one that cannot be looked at.
    Hidden(String),
}

/// A process that uses CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaUser {
    pub pid: u32,
    pub comm: String,
    pub shim: ShimFact,
    /// Each libcupti that it has mapped.
    pub mapped: Vec<PathBuf>,
    /// What the shim would use there, or uses.
    pub would_use: Result<PathBuf, String>,
    /// Another tool in it that may hold CUPTI.
    pub other_tool: Option<&'static str>,
    /// Its maps could not be read.
    pub hidden: bool,
}

impl CudaUser {
    /// `None` when it has gone.
    pub(super) fn read(pid: u32, driver_major: Option<u32>) -> Option<CudaUser> {
        let comm = process::comm(pid)?;
        let shim = shim(pid);
        let libraries = mapped_libraries(pid);
        let hidden = libraries.is_none();
        let loaded = libraries.unwrap_or_default();
        let would_use = match &shim {
            ShimFact::There(look) if !look.facts.cupti_path.is_empty() => {
                Ok(PathBuf::from(&look.facts.cupti_path))
            }
            ShimFact::There(look) if look.driver_version > 0 => {
                choose(pid, &loaded, Some(look.driver_version / 1000))
            }
            ShimFact::None | ShimFact::There(_) | ShimFact::Hidden(_) => {
                choose(pid, &loaded, driver_major)
            }
        };
        Some(CudaUser {
            pid,
            comm,
            shim,
            would_use: if hidden {
                Err("its memory map cannot be read".to_string())
            } else {
                would_use
            },
            other_tool: locate::other_tool(&loaded),
            mapped: loaded
                .into_iter()
                .filter(|path| locate::is_cupti(path))
                .collect(),
            hidden,
        })
    }
}

fn shim(pid: u32) -> ShimFact {
    match shims::look(pid) {
        Ok(look) => ShimFact::There(look),
        Err(Refusal::NoShim | Refusal::Gone) => ShimFact::None,
        Err(Refusal::Unusable(why)) => ShimFact::Hidden(why),
        Err(Refusal::Taken(pid)) => ShimFact::Hidden(format!("gdiag {pid} has it")),
    }
}

/// Files that a process has mapped executable, each once; `None` when that is not shown.
fn mapped_libraries(pid: u32) -> Option<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for mmap in maps::executable(pid).ok()? {
        let path = PathBuf::from(OsStr::from_bytes(&mmap.path));
        if path.is_absolute() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    Some(paths)
}

fn choose(pid: u32, loaded: &[PathBuf], driver_major: Option<u32>) -> Result<PathBuf, String> {
    let list = inside(pid);
    let named = locate::TOOLKIT_VARIABLES.into_iter();
    let named = named
        .filter_map(|name| environment(pid, name))
        .map(PathBuf::from);
    let toolkits = locate::toolkits(named.filter(|path| !path.as_os_str().is_empty()), &list);
    locate::cupti(loaded, driver_major, &toolkits, &list).map(|found| match found {
        Found::Loaded(path) | Found::File(path) => path,
    })
}

/// Lists directories as a process sees them, whatever its root is.
fn inside(pid: u32) -> impl Fn(&Path) -> Vec<PathBuf> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(format!("/proc/{pid}/root").as_str(), flags, Mode::empty()).ok();
    move |dir| {
        let listed = root.as_ref().and_then(|root| list_in(root, dir));
        listed.unwrap_or_default()
    }
}

fn list_in(root: &OwnedFd, dir: &Path) -> Option<Vec<PathBuf>> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    let opened = openat2(root, dir, how).ok()?;
    let entries = fs::read_dir(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| dir.join(e.file_name())).collect();
    paths.sort();
    Some(paths)
}

/// Those that use CUDA among the processes that /proc shows to this user, where the kernel cannot be asked.
pub(super) fn visible_users() -> Vec<u32> {
    let own = std::process::id();
    let uses = |&pid: &u32| pid != own && shims::has_driver_thread(pid);
    process::all().into_iter().filter(uses).collect()
}

/// All that are found, each file once.
pub(super) fn libraries(users: &[CudaUser]) -> Vec<Library> {
    let list: locate::List<'_> = &locate::list;
    let mut found: BTreeMap<PathBuf, Library> = BTreeMap::new();
    let mut add = |paths: Vec<PathBuf>, source| {
        for path in paths {
            // Links to one file are one; that of the name which tells its release stays.
            let real = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            let library = library(path, &real, source);
            match found.get_mut(&real) {
                Some(known) if known.major.is_none() && library.major.is_some() => {
                    *known = Library {
                        source: known.source,
                        ..library
                    };
                }
                Some(_) => {}
                None => {
                    found.insert(real, library);
                }
            }
        }
    };
    for user in users {
        add(user.mapped.clone(), Source::Mapped);
    }
    let named = locate::TOOLKIT_VARIABLES
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from);
    for root in locate::toolkits(named.filter(|path| path.is_absolute()), list) {
        add(locate::in_toolkit(&root, list), Source::Toolkit);
    }
    for site in site_packages() {
        add(locate::in_wheels(&site, list), Source::Wheel);
        add(all_in(&site.join("torch/lib")), Source::Wheel);
    }
    let search = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    for dir in env::split_paths(&search).filter(|dir| dir.is_absolute()) {
        add(all_in(&dir), Source::Variable);
    }
    let cache = fs::read(LINKER_CACHE).unwrap_or_default();
    add(in_linker_cache(&cache), Source::Linker);
    let mut all: Vec<Library> = found.into_values().collect();
    all.sort_by(|a, b| (a.source, &a.path).cmp(&(b.source, &b.path)));
    all
}

fn all_in(dir: &Path) -> Vec<PathBuf> {
    let mut all = locate::list(dir);
    all.retain(|path| locate::is_cupti(path));
    all
}

fn library(path: PathBuf, real: &Path, source: Source) -> Library {
    let major = locate::major(&path).or_else(|| locate::major(real));
    Library {
        version: version(&path, real),
        major,
        foreign: locate::is_foreign(&path),
        source,
        path,
    }
}

/// Of the package beside it, or of the toolkit, or what the name of the real file says: the year and the release.
fn version(path: &Path, real: &Path) -> Option<String> {
    of_wheel(real).or_else(|| of_toolkit(real)).or_else(|| {
        let names = [real, path].map(|path| path.file_name().unwrap_or_default().to_string_lossy());
        let of_name = |name: &str| Some(name.strip_prefix("libcupti.so.")?.to_string());
        names.iter().find_map(|name| of_name(name))
    })
}

/// `nvidia_cuda_cupti_cu12-12.8.90.dist-info`, beside `nvidia/cuda_cupti/lib`.
fn of_wheel(real: &Path) -> Option<String> {
    let site = real.ancestors().find(|dir| is_site_packages(dir))?;
    let name = real.file_name()?.to_string_lossy().into_owned();
    let major = locate::major(real).or_else(|| locate::major(Path::new(&name)));
    let mut versions = locate::list(site).into_iter().filter_map(|entry| {
        let name = entry.file_name()?.to_str()?.strip_suffix(".dist-info")?;
        let (package, version) = name.split_once('-')?;
        package
            .starts_with("nvidia_cuda_cupti")
            .then(|| version.to_string())
    });
    let of_major = |version: &String| {
        let first = version
            .split('.')
            .next()
            .and_then(|first| first.parse::<u32>().ok());
        major.is_none() || first == major
    };
    versions.rfind(of_major)
}

fn is_site_packages(dir: &Path) -> bool {
    let name = dir.file_name().and_then(OsStr::to_str);
    matches!(name, Some("site-packages" | "dist-packages"))
}

/// `version.json` in the toolkit's root.
fn of_toolkit(real: &Path) -> Option<String> {
    let roots = real.ancestors().skip(1).take(5);
    let text = roots
        .filter_map(|root| fs::read_to_string(root.join("version.json")).ok())
        .next()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(json["cuda_cupti"]["version"].as_str()?.to_string())
}

/// Where Python keeps its packages: of this environment, of this user and of the system.
fn site_packages() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(env::var_os)
        .map(PathBuf::from)
        .collect();
    prefixes.extend(env::var_os("HOME").map(|home| Path::new(&home).join(".local")));
    // That of the interpreter that would be started.
    let search = env::var_os("PATH").unwrap_or_default();
    let python = env::split_paths(&search).map(|dir| dir.join("python3"));
    let python = python
        .filter_map(|python| fs::canonicalize(python).ok())
        .next();
    prefixes.extend(
        python
            .as_deref()
            .and_then(Path::parent)
            .and_then(Path::parent)
            .map(Path::to_path_buf),
    );
    prefixes.extend(["/usr", "/usr/local", "/opt/conda", "/opt/venv"].map(PathBuf::from));
    let mut sites: Vec<PathBuf> = env::var_os("PYTHONPATH")
        .map(|path| {
            env::split_paths(&path)
                .filter(|dir| is_site_packages(dir))
                .collect()
        })
        .unwrap_or_default();
    for prefix in prefixes.iter().filter(|prefix| prefix.is_absolute()) {
        let versions = locate::list(&prefix.join("lib")).into_iter().filter(|dir| {
            dir.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("python3"))
        });
        for version in versions {
            sites.extend(["site-packages", "dist-packages"].map(|name| version.join(name)));
        }
    }
    sites.sort();
    sites.dedup();
    sites
}

/// The paths in the cache, which are NUL-terminated; its tables hold none.
fn in_linker_cache(cache: &[u8]) -> Vec<PathBuf> {
    let strings = cache
        .split(|&b| b == 0)
        .filter(|text| text.starts_with(b"/"));
    let paths = strings.map(|text| PathBuf::from(OsStr::from_bytes(text)));
    paths.filter(|path| locate::is_cupti(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_cache_is_searched_for_paths() {
        let cache = b"glibc-ld.so.cache1.1\x02\0\0\0\x01libcupti.so.12\0/usr/local/cuda/lib64/libcupti.so.12\0/lib/libc.so.6\0";
        assert_eq!(
            in_linker_cache(cache),
            [PathBuf::from("/usr/local/cuda/lib64/libcupti.so.12")]
        );
        assert!(in_linker_cache(b"").is_empty());
    }

    #[test]
    fn versions_come_from_the_package_then_the_toolkit_then_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        let wheel = file("lib/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12", "");
        file(
            "lib/site-packages/nvidia_cuda_cupti_cu12-12.8.90.dist-info/METADATA",
            "",
        );
        file(
            "lib/site-packages/nvidia_cuda_cupti-13.0.85.dist-info/METADATA",
            "",
        );
        assert_eq!(version(&wheel, &wheel).as_deref(), Some("12.8.90"));
        let toolkit = file("cuda-12.9/extras/CUPTI/lib64/libcupti.so.2025.2.1", "");
        assert_eq!(version(&toolkit, &toolkit).as_deref(), Some("2025.2.1"));
        file(
            "cuda-12.9/version.json",
            r#"{"cuda_cupti":{"version":"12.9.79"}}"#,
        );
        assert_eq!(version(&toolkit, &toolkit).as_deref(), Some("12.9.79"));
        file("cuda-12.9/version.json", "[");
        assert_eq!(version(&toolkit, &toolkit).as_deref(), Some("2025.2.1"));
    }

    #[test]
    fn the_own_process_sees_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b"), "").unwrap();
        let list = inside(std::process::id());
        assert_eq!(list(dir.path()), [dir.path().join("b")]);
        assert!(list(Path::new("/nonexistent")).is_empty());
    }
}
