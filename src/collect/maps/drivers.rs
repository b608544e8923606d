//! The files of the CUDA driver that a process has mapped.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;

use super::open::{Opened, Opener};
use super::proc;
use crate::collect::elf::Elf;

/// Opens drivers, each once for all processes that have it mapped.
#[derive(Debug)]
pub struct DriverFiles(Opener);

impl Default for DriverFiles {
    fn default() -> Self {
        DriverFiles(Opener::new())
    }
}

impl DriverFiles {
    /// Waits for the lock of the process's memory: not for the thread that records.
    pub fn of(&self, proc_pid: u32) -> io::Result<Vec<Arc<Elf>>> {
        let mut maps = proc::read(proc_pid)?;
        maps.retain(|mmap| is_driver(&mmap.path));
        let mut files: Vec<Arc<Elf>> = Vec::new();
        for opened in self.0.open(proc_pid, &maps) {
            match opened {
                Opened::Elf(elf) if files.iter().all(|f| f.identity != elf.identity) => {
                    files.push(elf);
                }
                Opened::Elf(_) | Opened::Other(_) | Opened::No => {}
            }
        }
        if files.is_empty() && !maps.is_empty() {
            return Err(io::Error::other("its driver cannot be opened"));
        }
        Ok(files)
    }
}

/// Whether this is the library through which all CUDA calls go. A line of the maps may be given for its path.
pub fn is_driver(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    name.starts_with(b"libcuda.so")
}
