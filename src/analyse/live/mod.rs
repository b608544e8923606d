//! The last seconds, analysed while they pass.
//!
//! Time is cut into slices. Each is analysed once, when all that belongs to it has arrived, by the same rules as a
//! recording: with what was before it at hand, so that a gap, a wait or a chain that began earlier is known
//! whole. What a slice says of sums is about its own time only, so slices add up to any window; a gap is listed
//! in the slice in which it ends, or as one that is still open.
#![forbid(unsafe_code)]

mod window;

use crate::analyse::report::Report;
use crate::analyse::{sched, syscalls};
use crate::event::{Pid, Tid};
use crate::histogram::Histogram;
use crate::units::Nanos;

pub use window::{GpuPoint, Point, Window};

/// What happened in `[from, to)`. Instants are of CLOCK_MONOTONIC, of the recorded machine.
#[derive(Clone, Debug)]
pub struct Slice {
    pub from: Nanos,
    pub to: Nanos,
    /// `window_start` and `window_end` of a GPU are within the slice. Sums (busy, idle, causes, kernels, calls, launches of threads)
    /// are about the slice; gaps are listed whole, where they end. An open gap is listed in each slice
    /// that it reaches into, as far as it has come.
    pub report: Report,
    pub sched: sched::Summary,
    pub calls: syscalls::Summary,
    /// By GPU of `report`.
    pub launches: Vec<Launches>,
    /// Of threads that made CUDA calls.
    pub cuda: Vec<CudaTime>,
    /// Where threads of the target were, most time first; only the first few of each.
    pub stacks: Vec<StackTime>,
    /// Of the sources, in this time.
    pub events: u64,
    pub lost: u64,
}

/// Launches whose operation ran on this GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launches {
    pub gpu: u32,
    /// How long the launching calls took.
    pub call: Histogram,
    /// From the begin of the launching call to the start of its operation: launch latency as nsys has it, with the time that it
    /// queued behind others.
    pub start: Histogram,
}

/// Time in calls of the CUDA API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaTime {
    pub pid: Pid,
    pub tid: Tid,
    pub time: Nanos,
    pub launches: u64,
}

/// How long a thread was at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTime {
    pub pid: Pid,
    pub tid: Tid,
    /// On a CPU, or waiting.
    pub running: bool,
    /// Outermost first, as flame graphs have them.
    pub frames: Vec<String>,
    pub time: Nanos,
}
