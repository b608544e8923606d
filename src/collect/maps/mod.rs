//! Who has which code mapped where, and since when.
//!
//! A sample says "this process was at this address"; that means something only together with the
//! mappings that held at that moment. [`MmapEvents`] is the kernel's stream of their changes,
//! /proc/PID/maps is how they were when gdiag came, [`AddressSpaces`] puts both together, and
//! [`Files`] numbers the mapped files and keeps them open.
//!
//! ```text
//!   /proc/PID/maps ─► Reader ─┐
//!   MmapEvents ───────────────┴─► AddressSpaces: pid, pc, time ─► file, address in it
//!                                      └─► Files: build id, path, open file
//! ```
//!
//! Nothing that waits for a target happens on the caller's thread: maps are read and files opened
//! by threads of their own, and what they found counts from the next [`AddressSpaces::poll`] on.

mod drivers;
mod events;
mod files;
mod open;
mod proc;
mod reader;
mod ring;
mod space;
mod spaces;

use std::io;
use std::sync::Arc;

use crate::collect::elf::Elf;

pub use drivers::{is_driver, DriverFiles};
pub use events::{Counts, FileHint, MapEvent, Mmap, What};
pub use files::Files;
pub use ring::MmapEvents;
pub use spaces::{AddressSpaces, Mapped, Mapping, Options, Place};

/// A mapped file, as [`Files`] numbers them from 1 on. The BPF programs use the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// What a process has mapped executable. Waits for the lock of its memory.
pub fn executable(proc_pid: u32) -> io::Result<Vec<Mmap>> {
    proc::read(proc_pid)
}

/// Opens the files of some of its mappings, where they are what is mapped, and ELF.
pub fn open(proc_pid: u32, maps: &[Mmap]) -> Vec<Option<Arc<Elf>>> {
    let opened = open::Opener::new().open(proc_pid, maps).into_iter();
    opened
        .map(|file| match file {
            open::Opened::Elf(elf) => Some(elf),
            open::Opened::Other(_) | open::Opened::No => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
