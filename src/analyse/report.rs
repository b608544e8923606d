//! What the analysis says: plain data, no text layout. `present` turns it into text and JSON.
//!
//! The meanings are those of the schema `gdiag.report/1`. `None` is "cannot be
//! known", never zero. Times are CLOCK_MONOTONIC of the recorded machine.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::event::{CorrelationId, Pid, StreamId, Tid};
use crate::units::Nanos;

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub quality: Quality,
    pub gpus: Vec<Gpu>,
    /// Processes of which only the host's side is known, by launches.
    pub host_sides: Vec<HostSide>,
    /// Threads of the target, dispatchers first, then by time on the run queue and blocked.
    pub threads: Vec<Thread>,
    /// By total time.
    pub kernels: Vec<Kernel>,
    /// CUDA calls by the idle time they overlap, then by total time.
    pub calls: Vec<Call>,
}

/// How far the data can be trusted.
#[derive(Clone, Debug, Default)]
pub struct Quality {
    pub events: u64,
    pub bpf_lost: u64,
    pub shim_lost: u64,
    pub cupti_lost: u64,
    /// GPU records with impossible times.
    pub invalid_gpu_records: u64,
    /// Operations whose launch call was not seen.
    pub unmatched_gpu_records: u64,
    /// Operations that came back for the launches seen on the host, 0 to 1; `None` without launches.
    pub gpu_coverage: Option<f64>,
    /// Largest error of converting GPU times to the host's clock; `None` without clock pairs.
    pub max_clock_error: Option<Nanos>,
    /// Sentences for people, most important first.
    pub warnings: Vec<String>,
}

impl Quality {
    /// Everything that was lost. The counts of a shim are what its process claims, so they may be anything.
    pub fn lost(&self) -> u64 {
        self.bpf_lost
            .saturating_add(self.shim_lost)
            .saturating_add(self.cupti_lost)
    }
}

#[derive(Clone, Debug)]
pub struct Gpu {
    /// Number in this report. Processes may number the same card differently.
    pub index: u32,
    pub name: String,
    pub uuid: String,
    pub window_start: Nanos,
    pub window_end: Nanos,
    /// Union of all operations. `None`, like all idle figures, when coverage is too low to tell, and when no
    /// operation began or ended.
    pub busy: Option<Nanos>,
    pub idle: Option<Nanos>,
    /// Share of idle time with a named cause, 0 to 1.
    pub idle_explained: Option<f64>,
    /// Union of the kernels, of the copies, of the memsets. They overlap.
    pub busy_kernel: Nanos,
    pub busy_memcpy: Nanos,
    pub busy_memset: Nanos,
    pub operations: u64,
    /// Recording start to first operation, and last operation to recording end (outside the window).
    pub startup: Nanos,
    pub drain: Nanos,
    /// Median lead over operations launched to an empty device.
    pub usual_lead: Option<Nanos>,
    /// Most idle time first. Adds up to `idle`.
    pub causes: Vec<CauseRow>,
    /// All gaps, whatever their length.
    pub gap_count: u64,
    /// Of all gaps; in a live view, of those listed. Zero when there is none.
    pub longest_gap: Nanos,
    /// Listed gaps: at least `min_gap` long, longest first, cut to the number asked for.
    pub gaps: Vec<Gap>,
}

#[derive(Clone, Debug)]
pub struct CauseRow {
    pub cause: Cause,
    pub total: Nanos,
    /// Of idle time, 0 to 1.
    pub share: f64,
    /// Gaps with at least a part of this cause.
    pub gaps: u64,
    /// Who, most time first.
    pub by: Vec<Blame>,
    /// Sentences that let a person check the claim: numbers, names, states.
    pub evidence: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Blame {
    pub who: Option<ThreadRef>,
    /// What it was: the preemptor, the file, the call, the stack's telling frame. For people.
    pub what: String,
    pub total: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThreadRef {
    pub pid: Pid,
    pub tid: Tid,
    pub comm: String,
}

#[derive(Clone, Debug)]
pub struct Gap {
    pub start: Nanos,
    pub end: Nanos,
    /// The operation that ended it; `None` for a gap still open at the end.
    pub next: Option<NextOp>,
    /// Thread whose launch ended the gap (open gap: the last launcher).
    pub dispatcher: Option<ThreadRef>,
    /// Start of `next` minus end of its launch call, ns; can be negative.
    pub lead_ns: Option<i64>,
    pub opened_by: Option<OpenedBy>,
    /// Disjoint, in order of time, covering the gap exactly.
    pub parts: Vec<Part>,
    /// The wakeup chain, from the dispatcher back to who was really late.
    pub chain: Vec<Hop>,
}

#[derive(Clone, Debug)]
pub struct NextOp {
    /// `kernel`, `memcpy`, `memset` or `graph`.
    pub kind: &'static str,
    /// Kernel name as the compiler made it, or for example `HtoD 4.0 MiB`.
    pub name: String,
    pub stream: StreamId,
    pub correlation: CorrelationId,
    pub pid: Pid,
}

/// The call that let the device run dry.
#[derive(Clone, Debug)]
pub struct OpenedBy {
    pub call: String,
    pub who: ThreadRef,
    /// Where in the program.
    pub stack: Stack,
}

/// Where a thread was, leaf first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Frames of the kernel, then of the program; a reason in brackets where callers are missing.
    pub frames: Vec<String>,
    /// The few that say most about the program; empty when nothing is known of it.
    pub telling: Vec<String>,
}

impl Stack {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

#[derive(Clone, Debug)]
pub struct Part {
    pub start: Nanos,
    pub end: Nanos,
    pub cause: Cause,
    pub who: Option<ThreadRef>,
    pub what: String,
    pub stack: Stack,
}

#[derive(Clone, Debug)]
pub struct Hop {
    pub who: ThreadRef,
    /// `running`, `runnable`, `blocked (futex)`, `stopped`, …
    pub state: String,
    pub start: Nanos,
    pub end: Nanos,
    pub woken_by: Option<Waker>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waker {
    Task(ThreadRef),
    /// Handler name, such as `nvidia`, or the number when it has none.
    Irq(String),
    /// `NET_RX`, `BLOCK`, …
    SoftIrq(String),
    Timer,
}

#[derive(Clone, Debug)]
pub struct Thread {
    pub who: ThreadRef,
    pub dispatcher: bool,
    pub run: Nanos,
    pub runq: Nanos,
    pub blocked: Nanos,
    pub launches: u64,
}

#[derive(Clone, Debug)]
pub struct Kernel {
    /// As the compiler mangled it.
    pub name: String,
    pub count: u64,
    pub total: Nanos,
    pub min: Nanos,
    pub max: Nanos,
}

#[derive(Clone, Debug)]
pub struct Call {
    /// `cudaStreamSynchronize`, `cuLaunchKernel`, …
    pub name: String,
    pub count: u64,
    pub total: Nanos,
    pub max: Nanos,
    /// Part of `total` in which a device of its process was idle; `None` when that is not known of any.
    pub idle_overlap: Option<Nanos>,
}

/// What probes on the CUDA driver tell of a process.
#[derive(Clone, Debug)]
pub struct HostSide {
    pub pid: Pid,
    pub comm: String,
    /// Why CUPTI does not record it.
    pub reason: String,
    /// Since when there were probes, and for how long altogether.
    pub from: Nanos,
    pub watched: Nanos,
    /// Threads that made calls, the one with most launches first.
    pub callers: Vec<Caller>,
    /// Of the first caller, longest first.
    pub pauses: Vec<Pause>,
}

#[derive(Clone, Debug)]
pub struct Caller {
    pub who: ThreadRef,
    pub calls: u64,
    pub launches: u64,
    pub times: CallTimes,
}

/// Time in calls by what they do.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallTimes {
    pub launch: Nanos,
    /// Copies and memsets.
    pub copy: Nanos,
    pub sync: Nanos,
    pub memory: Nanos,
    pub other: Nanos,
}

impl CallTimes {
    pub fn total(&self) -> Nanos {
        self.launch + self.copy + self.sync + self.memory + self.other
    }
}

/// A time without a launch. It says nothing about the device, which may have been busy all along.
#[derive(Clone, Debug)]
pub struct Pause {
    pub start: Nanos,
    pub end: Nanos,
    /// No launch ended it: it lasted until the recording, the probes or the process did.
    pub open: bool,
    /// CUDA calls that the thread was in, and what it did outside of them, most time first. Adds up.
    pub doing: Vec<(String, Nanos)>,
}
