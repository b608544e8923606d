//! What a machine is, and a process on it, for `gdiag check`: facts as they are read, and no judgement.
//!
//! Reading changes nothing. No CUDA is initialised, and no library of NVIDIA's is loaded but NVML; no shim is
//! asked for anything, and no thread is held. The BPF programs are loaded and attached as a recording would
//! do it, without a target, and are gone at once: whether that works is known no other way.
#![forbid(unsafe_code)]

pub mod cupti;
pub mod driver;
pub mod kernel;
pub mod loads;
pub mod place;
pub mod process;
pub mod rights;
pub mod support;

use std::path::Path;

use crate::collect::cuda_processes::CudaProcess;

pub use cupti::{CudaUser, Library, ShimFact, Source};
pub use driver::Driver;
pub use kernel::{Btf, Kernel};
pub use loads::{Load, Loads, Refused};
pub use place::Place;
pub use process::{Process, Python};
pub use rights::Rights;

/// Open files that a recording needs at least. Programs, maps and rings take one each, and so do targets.
pub const FEWEST_OPEN_FILES: u64 = 128;

/// All that is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub kernel: Kernel,
    pub loads: Loads,
    pub rights: Rights,
    pub driver: Driver,
    pub libraries: Vec<Library>,
    pub users: Users,
    pub place: Place,
    /// Flight recorders: the user's id and the name.
    pub recorders: Vec<(u32, String)>,
    /// The one that was asked about.
    pub process: Option<Process>,
}

/// Who uses CUDA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    pub list: Vec<CudaUser>,
    /// The kernel was asked; else only what /proc shows to this user is known.
    pub complete: bool,
}

/// Looks at everything. A recording would be written into `dir`; `pid` is as /proc numbers it.
pub fn look(dir: &Path, pid: Option<u32>) -> Facts {
    let kernel = Kernel::read();
    let (loads, found) = loads::try_all();
    let driver = Driver::read();
    let cuda_major = driver.cuda_major();
    let complete = found.is_some();
    let pids = found.map_or_else(cupti::visible_users, |found: Vec<CudaProcess>| {
        found.into_iter().map(|process| process.pid).collect()
    });
    let users = pids
        .into_iter()
        .filter_map(|pid| CudaUser::read(pid, cuda_major));
    let list: Vec<CudaUser> = users.collect();
    Facts {
        process: pid.map(|pid| Process::read(pid, cuda_major)),
        libraries: cupti::libraries(&list),
        users: Users { list, complete },
        kernel,
        loads,
        rights: Rights::read(),
        driver,
        place: Place::read(dir),
        recorders: Vec::new(),
    }
}

/// The beginning of a small file, without the line's end; `None` when it cannot be read.
pub(super) fn read_line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next().unwrap_or_default().trim().to_string())
}

fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    read_line(path)?.parse().ok()
}
