//! The last seconds, analysed while they pass.
//!
//! Time is cut into slices. Each is analysed once, when all that belongs to it has arrived, by the same rules as a
//! recording: with what was before it at hand, so that a gap, a wait or a chain that began earlier is known
//! whole. What a slice says of sums is about its own time only, so slices add up to any window; a gap is listed
//! in the slice in which it ends, or as one that is still open.
#![forbid(unsafe_code)]

mod awaited;
mod bounds;
mod feed;
#[cfg(test)]
mod feed_tests;
mod gpus;
mod slice;
mod stacks;
#[cfg(test)]
mod tests;
mod window;

use crate::analyse::cause::Cause;
use crate::analyse::evidence::Sentence;
use crate::analyse::quality::Counts;
use crate::analyse::report::Report;
use crate::analyse::{sched, syscalls};
use crate::event::{Pid, Tid};
use crate::histogram::Histogram;
use crate::units::{Bytes, Nanos};

pub use feed::{Feed, SLICE};
pub use slice::slice;
pub use window::{GpuPoint, Point, Window};

/// How a slice is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceOptions {
    /// Shorter gaps are not listed, and get their cause from the lead rule alone.
    pub min_gap: Nanos,
    /// Gaps listed for each device.
    pub gaps: usize,
    /// Stacks listed for each thread.
    pub stacks: usize,
    /// There are no targets that could use a GPU: only the scheduler and the system calls are looked at.
    pub only_host: bool,
    /// More will come than the timeline holds: its last operation is not the last one, and work that has not come
    /// back can still be going on.
    pub goes_on: bool,
}

impl Default for SliceOptions {
    fn default() -> Self {
        SliceOptions {
            min_gap: Nanos::from_micros(10),
            gaps: 20,
            stacks: 5,
            only_host: false,
            goes_on: true,
        }
    }
}

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
    pub parts: Parts,
}

impl Slice {
    /// Of a time in which only the scheduler was looked at, and system calls where they were counted.
    pub fn of_machine(sched: sched::Summary, calls: Option<syscalls::Summary>) -> Slice {
        let (from, to) = (sched.start, sched.end);
        let lost = sched.lost.unwrap_or(0);
        Slice {
            from,
            to,
            report: Report::default(),
            calls: calls
                .unwrap_or_else(|| syscalls::Summary::empty(syscalls::Measure::Calls, from)),
            sched,
            launches: Vec::new(),
            cuda: Vec::new(),
            stacks: Vec::new(),
            events: 0,
            lost,
            parts: Parts::default(),
        }
    }
}

/// What slices are added up with: the parts of what is text in a report, and what would count twice.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    counts: Counts,
    /// Warnings without a number.
    said: Vec<String>,
    /// By GPU of the report.
    gpus: Vec<GpuParts>,
    /// What it takes; see [`Slice::bytes`].
    bytes: Bytes,
    /// How many CPUs there are, where all that runs on them is seen.
    cpus: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct GpuParts {
    /// In the order of the causes in the report.
    sentences: Vec<Vec<Sentence>>,
    /// A gap reaches into the slice from before, and had these causes there already.
    continued: Option<Vec<Cause>>,
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
    /// Outermost first, as flame graphs have them; those of the kernel end with `_[k]`.
    pub frames: Vec<String>,
    pub time: Nanos,
}
