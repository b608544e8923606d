//! What the scheduler did, summed up: the same of a recording, and of what was added up in the kernel.
#![forbid(unsafe_code)]

pub mod join;
pub mod live;
pub mod pinning;
pub mod reason;
pub mod recorded;
pub mod steps;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::event::{Context, Cpu, Pid, Tid};
use crate::histogram::Histogram;
use crate::units::Nanos;

/// Who a thread is. The name is as it came from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Who {
    pub pid: Pid,
    pub tid: Tid,
    pub comm: String,
}

impl fmt::Display for Who {
    /// `python3:4711`, with the number of the thread, as perf has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.comm, self.tid))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The machine; empty when unknown.
    pub host: String,
    /// When this was; instants of CLOCK_MONOTONIC.
    pub start: Nanos,
    pub end: Nanos,
    /// Those that ran, waited or slept in it, by tid; also those that ended.
    pub threads: Vec<ThreadSum>,
    /// Of the CPUs that were asked for.
    pub cpus: Vec<CpuSum>,
    /// Who took CPUs from the threads above, or had them while those waited; most time first.
    pub preemptors: Vec<Preemptor>,
    /// What is missing, doubtful, or worth a sentence to a person.
    pub notes: Vec<String>,
    /// Events that were lost; `None`: nothing can be lost.
    pub lost: Option<u64>,
}

impl Summary {
    /// How long a thread ran on the CPUs that are told of.
    pub fn ran(&self, tid: Tid) -> Nanos {
        let ran = self.cpus.iter().flat_map(|cpu| &cpu.ran);
        let times = ran.filter(|(who, _)| who.tid == tid).map(|&(_, time)| time);
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadSum {
    pub who: Who,
    /// Its number for commands that a person types where gdiag ran; `None`: there it has none.
    pub here: Option<Tid>,
    /// It belongs to what was asked for; others are listed because they ran on the same CPUs.
    pub target: bool,
    pub kthread: bool,
    /// Launches GPU work, as far as that is known.
    pub dispatcher: bool,
    /// Kernel priority: below 100 is real time.
    pub prio: Option<u32>,
    pub run: Nanos,
    /// Times on the CPU, each from switch-in to switch-out.
    pub runs: Histogram,
    /// Times from being able to run to running: after a wakeup, after being preempted, after a yield, as new.
    /// Time without quota is no part of it: see [`OffReason::Throttled`].
    pub runq: Histogram,
    /// When the longest of them ended, and who had the CPU until then.
    pub runq_max_at: Option<Nanos>,
    pub runq_max_behind: Option<Who>,
    /// Who had the CPU while it waited for one, most time first; empty where that was not added up.
    pub behind: Vec<(Who, Nanos)>,
    /// Time off the CPU, apart by why.
    pub off: Vec<OffSum>,
    /// Left the CPU to wait for something; like the next one as the kernel counts in /proc/PID/status.
    pub voluntary: u64,
    /// Left the CPU though it could have gone on: preempted, throttled, or by sched_yield.
    pub involuntary: u64,
    /// Began to run on another CPU than it had run on.
    pub migrations: u64,
    /// Where it ran, most time first.
    pub cpus: Vec<(Cpu, Nanos)>,
    /// Where it may run; `None`: unknown.
    pub affinity: Option<Vec<Cpu>>,
    /// On how many CPUs it may run, where only that is known.
    pub allowed: Option<u16>,
    /// For most of the time that it waited long for a CPU, others were idle that it may not use.
    pub packed: bool,
    /// Who woke it, most often first.
    pub wakers: Vec<(Waker, u64)>,
}

impl ThreadSum {
    /// It was only seen where it ran beside others: its waits, and why it left, are not known.
    pub fn is_stranger(&self) -> bool {
        !self.target && self.runq.count == 0 && self.off.is_empty()
    }

    pub fn allowed_cpus(&self) -> Option<usize> {
        match &self.affinity {
            Some(list) => Some(list.len()),
            None => self.allowed.map(usize::from),
        }
    }

    pub fn off_for(&self, reason: OffReason) -> Option<&OffSum> {
        self.off.iter().find(|off| off.reason == reason)
    }

    /// Time asleep, for whatever reason: neither on a CPU, nor able to run, nor without quota.
    pub fn blocked(&self) -> Nanos {
        let sleeps = |off: &&OffSum| off.reason.is_blocked();
        let times = self.off.iter().filter(sleeps).map(|off| off.total);
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    }

    /// Time that it waited for a CPU, also in waits that go on: unlike in `runq`, which has those that are over.
    pub fn waited(&self) -> Nanos {
        if self.off.is_empty() {
            return self.runq.total;
        }
        let waits = self.off.iter().filter(|off| off.reason.is_runnable());
        let times = waits.map(|off| off.total);
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    }

    /// No wait for a CPU is known that was longer. One that goes on, or began before anybody watched, may be.
    pub fn longest_wait(&self) -> Nanos {
        self.unended_wait().unwrap_or(self.runq.max)
    }

    /// For people: `>=1.20 s` of a wait of which not all was seen.
    pub fn longest_wait_text(&self) -> String {
        match self.unended_wait() {
            Some(time) => format!(">={time}"),
            None => self.runq.longest_text(),
        }
    }

    /// The longest of which not all was seen, where none that was seen is longer.
    fn unended_wait(&self) -> Option<Nanos> {
        let waits = self.off.iter().filter(|off| off.reason.is_runnable());
        let longest = waits.filter_map(|off| off.max).max();
        longest.filter(|&time| time > self.runq.max)
    }

    /// All the time it waited for a CPU, and got none.
    pub fn is_starved(&self) -> bool {
        self.run == Nanos::ZERO
            && self.switches() == 0
            && self.waited() > Nanos::ZERO
            && self.off.iter().all(|off| off.reason.is_runnable())
    }

    /// All the time it slept, or was stopped.
    pub fn is_asleep(&self) -> bool {
        let could_run = |off: &OffSum| !off.reason.is_blocked();
        self.run == Nanos::ZERO && self.switches() == 0 && !self.off.iter().any(could_run)
    }

    /// Switches away from it, as far as their reason is known.
    pub fn switches(&self) -> u64 {
        self.voluntary + self.involuntary
    }
}

/// Why a thread was off the CPU. The first four could have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OffReason {
    /// Woken, and waited for a CPU.
    Woken,
    /// Born, and waited for a CPU.
    New,
    /// Another took its CPU.
    Preempted,
    /// It gave its CPU up by sched_yield.
    Yielded,
    /// The CPU quota of its cgroup was used up.
    Throttled,
    /// A lock or condition of the program.
    Futex,
    /// Poll, select, epoll.
    Poll,
    /// It asked for a pause.
    Sleep,
    /// The disk, as far as the kernel says that it waits for I/O.
    Io,
    /// A socket.
    Network,
    /// A file, pipe or device without I/O.
    File,
    /// Memory: reclaim, thrashing, compaction, or the map of the address space.
    Memory,
    /// A page that had to be brought.
    Fault,
    /// An ioctl: mostly a driver.
    Ioctl,
    /// A child.
    Child,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Another system call, or none.
    Other,
}

impl OffReason {
    pub const ALL: [OffReason; 17] = [
        OffReason::Woken,
        OffReason::New,
        OffReason::Preempted,
        OffReason::Yielded,
        OffReason::Throttled,
        OffReason::Futex,
        OffReason::Poll,
        OffReason::Sleep,
        OffReason::Io,
        OffReason::Network,
        OffReason::File,
        OffReason::Memory,
        OffReason::Fault,
        OffReason::Ioctl,
        OffReason::Child,
        OffReason::Stopped,
        OffReason::Other,
    ];

    /// As tables and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            OffReason::Woken => "woken",
            OffReason::New => "new",
            OffReason::Preempted => "preempted",
            OffReason::Yielded => "yielded",
            OffReason::Throttled => "throttled",
            OffReason::Futex => "futex",
            OffReason::Poll => "poll",
            OffReason::Sleep => "sleep",
            OffReason::Io => "io",
            OffReason::Network => "network",
            OffReason::File => "file",
            OffReason::Memory => "memory",
            OffReason::Fault => "fault",
            OffReason::Ioctl => "ioctl",
            OffReason::Child => "child",
            OffReason::Stopped => "stopped",
            OffReason::Other => "other",
        }
    }

    /// It had to wait for something, and could not have run.
    pub fn is_blocked(self) -> bool {
        !self.is_runnable() && self != OffReason::Throttled
    }

    /// It could have run.
    pub fn is_runnable(self) -> bool {
        match self {
            OffReason::Woken | OffReason::New | OffReason::Preempted | OffReason::Yielded => true,
            OffReason::Throttled
            | OffReason::Futex
            | OffReason::Poll
            | OffReason::Sleep
            | OffReason::Io
            | OffReason::Network
            | OffReason::File
            | OffReason::Memory
            | OffReason::Fault
            | OffReason::Ioctl
            | OffReason::Child
            | OffReason::Stopped
            | OffReason::Other => false,
        }
    }
}

/// Time off the CPU for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffSum {
    pub reason: OffReason,
    pub count: u64,
    pub total: Nanos,
    /// `None`: not known of this part of a watch.
    pub max: Option<Nanos>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Waker {
    Thread(Who),
    /// An interrupt, with the name of its handler when it is known.
    Interrupt(WakerContext, String),
}

/// [`Context`] without [`Context::Task`], in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WakerContext {
    HardIrq(u16),
    SoftIrq(u16),
    Timer,
}

impl WakerContext {
    /// `None`: the thread itself.
    pub fn of(context: Context) -> Option<WakerContext> {
        match context {
            Context::Task => None,
            Context::HardIrq(irq) => Some(WakerContext::HardIrq(irq)),
            Context::SoftIrq(vector) => Some(WakerContext::SoftIrq(vector)),
            Context::Timer => Some(WakerContext::Timer),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct CpuSum {
    pub cpu: Cpu,
    /// Something else than its idle task ran.
    pub busy: Nanos,
    pub idle: Nanos,
    /// Switches were not recorded, so that it is not known who ran.
    pub unknown: Nanos,
    /// Interrupts; a part of busy or idle, whatever they interrupted.
    pub irq: Nanos,
    pub switches: u64,
    /// Who ran, most time first.
    pub ran: Vec<(Who, Nanos)>,
}

impl CpuSum {
    /// `None` where nothing says that it was.
    pub fn known_idle(&self) -> Option<Nanos> {
        (self.idle > Nanos::ZERO || self.unknown == Nanos::ZERO).then_some(self.idle)
    }
}

/// Who took the CPU of threads that could have gone on, or had it when they could have gone on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemptor {
    pub who: Who,
    /// How often it took one.
    pub count: u64,
    /// How long those waited that it preempted, each until it ran again: also behind others that came next.
    pub waited: Nanos,
    /// How long it had a CPU while one of them waited for that, woken ones included; once for each that waited.
    /// `None`: not added up.
    pub had: Option<Nanos>,
    /// Whom most, and how long that one waited.
    pub victims: Vec<(Who, u64, Nanos)>,
}

/// `0,2-3`. In order, each once.
pub fn cpu_list(cpus: &[Cpu]) -> String {
    let mut text = String::new();
    for run in cpus.chunk_by(|a, b| a.0.checked_add(1) == Some(b.0)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        if !text.is_empty() {
            text.push(',');
        }
        match first == last {
            true => text.push_str(&first.to_string()),
            false => text.push_str(&format!("{first}-{last}")),
        }
    }
    if text.is_empty() {
        "-".to_string()
    } else {
        text
    }
}
