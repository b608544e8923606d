//! Everything that a frame can show: plain data.

use std::path::PathBuf;

use crate::analyse::live::Window;
use crate::event::Pid;
use crate::facts::GpuFacts;
use crate::units::{Bytes, Nanos};

#[derive(Clone, Debug)]
pub struct Model {
    pub host: String,
    pub source: Source,
    /// The seconds that are looked at; empty before the first slice.
    pub window: Window,
    /// As asked for; the window is shorter at the beginning.
    pub window_asked: Nanos,
    /// What can be looked back at: `oldest` to `newest`.
    pub oldest: Nanos,
    pub newest: Nanos,
    /// In the order of NVML's numbers; empty without NVML.
    pub facts: Vec<GpuFacts>,
    /// Who is looked at, in the order in which they were found.
    pub targets: Vec<Target>,
    pub status: Status,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Targets, with their GPUs.
    Targets,
    /// No GPU: the scheduler and the system calls of the machine.
    Machine,
    Recording {
        path: PathBuf,
        speed: f64,
        start: Nanos,
        end: Nanos,
        /// All of it has been played.
        over: bool,
    },
}

/// A process that is looked at, or was until a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub pid: Pid,
    pub comm: String,
    /// It uses CUDA.
    pub cuda: bool,
    /// Since when it is looked at.
    pub since: Nanos,
    /// When it ended.
    pub ended: Option<Nanos>,
    /// Why its GPU records are missing, or where they come from, when that is worth a word.
    pub note: Option<String>,
}

/// How gdiag itself fares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The wall clock at the end of the window, seconds since the epoch, and how far it is from UTC here.
    pub wall_s: i64,
    pub utc_offset_s: i32,
    /// Events a second, of the last slice.
    pub event_rate: f64,
    /// Since the start.
    pub lost: u64,
    /// CPU time of gdiag over the time that has passed, 0 to 1 for one CPU; of the last second or so.
    pub own_cpu: f64,
    pub own_memory: Bytes,
    /// Analysis is so much later than it should be.
    pub behind: Option<Nanos>,
    /// Slices that were not analysed, to catch up.
    pub skipped: u64,
    /// GPU operations that were heard of too late to be in any slice.
    pub late: u64,
    /// System calls of the targets are counted, not only those that wait.
    pub counts_calls: bool,
    /// Warnings, most important first.
    pub warnings: Vec<String>,
    /// What came of the last thing that was asked for, such as a snapshot.
    pub message: Option<String>,
}
