//! A piece of idle time with its cause, and what there is to say about it.
//!
//! Millions of pieces are made and few are printed: until then names stay numbers.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::report::{ThreadRef, Waker};
use crate::event::{Api, Context, NameId, OverheadKind, StackId, Tid};
use crate::model::ops::StreamIdx;
use crate::model::thread::{ThreadIdx, Wake, Who};
use crate::model::{api, BlindBecause, Timeline};
use crate::units::Nanos;

/// A part of a gap: one cause for every nanosecond of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) cause: Cause,
    /// The thread on whose time it was found.
    pub(super) who: Option<Who>,
    pub(super) what: What,
    pub(super) stack: StackId,
    /// The thread that waited for `who`, when the walk came that way.
    pub(super) waiter: Option<Who>,
}

impl Piece {
    /// On nobody's time.
    pub(super) fn of_nobody(start: Nanos, end: Nanos, cause: Cause, what: What) -> Piece {
        Piece {
            start,
            end,
            cause,
            who: None,
            what,
            stack: StackId::default(),
            waiter: None,
        }
    }

    pub(super) fn len(&self) -> Nanos {
        self.end.saturating_sub(self.start)
    }
}

/// How a thread was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stop {
    Signal,
    Tracer,
    Freezer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    Nothing,
    Say(&'static str),
    /// Running while another waited for it.
    Working,
    /// In this call.
    In(Api),
    /// In its own code, on the way to this call.
    Before(Api),
    /// Runnable while this thread had the CPU.
    Ran(Who),
    /// The same, for a thread of which nothing but the id is known.
    RanTid(Tid),
    Irq(Context),
    /// Asleep in a system call (or outside of one), on an object, in a function of the kernel.
    Wait {
        syscall: Option<u16>,
        object: NameId,
        frame: NameId,
    },
    /// A lock in user space, and who released it.
    Lock {
        holder: Option<Who>,
        object: NameId,
    },
    /// Data that this thread sent, of whose own time nothing is recorded.
    From {
        peer: Who,
        object: NameId,
    },
    Stopped {
        how: Stop,
        by: Option<Who>,
    },
    Overhead(OverheadKind),
    /// An operation of this stream ended first.
    AfterStream(StreamIdx),
    Missing(BlindBecause),
}

impl What {
    pub(super) fn text(self, t: &Timeline) -> String {
        match self {
            What::Nothing => String::new(),
            What::Say(text) => text.to_string(),
            What::Working => "running".to_string(),
            What::In(call) => api::name(call).into_owned(),
            What::Before(call) => format!("own code before {}", api::name(call)),
            What::Ran(who) => describe(t, who),
            What::RanTid(tid) => format!("tid {tid}"),
            What::Irq(context) => context_text(t, context),
            What::Wait {
                syscall,
                object,
                frame,
            } => wait_text(t, syscall, object, frame),
            What::Lock { holder, object } => {
                let object = t.name(object);
                let lock = if object.is_empty() { "a lock" } else { object };
                match holder {
                    Some(who) => format!("{lock}, released by {}", describe(t, who)),
                    None => lock.to_string(),
                }
            }
            What::From { peer, object } => {
                let object = t.name(object);
                let by = describe(t, peer);
                if object.is_empty() {
                    by
                } else {
                    format!("{by} at {object}")
                }
            }
            What::Stopped { how, by } => {
                let how = match how {
                    Stop::Signal => "stopped by a signal",
                    Stop::Tracer => "stopped by a tracer",
                    Stop::Freezer => "frozen by its cgroup's freezer",
                };
                match by {
                    Some(who) => format!("{how}, {}", describe(t, who)),
                    None => how.to_string(),
                }
            }
            What::Overhead(kind) => overhead_text(kind).to_string(),
            What::AfterStream(stream) => match t.gpu().streams().get(stream.0 as usize) {
                Some(s) => format!("stream {} of pid {}", s.stream, s.pid),
                None => String::new(),
            },
            What::Missing(why) => missing_text(why).to_string(),
        }
    }
}

pub(super) fn missing_text(why: BlindBecause) -> &'static str {
    match why {
        BlindBecause::RingFull => "GPU records lost: the shim's ring was full",
        BlindBecause::CuptiDropped => "GPU records lost: CUPTI dropped them",
        BlindBecause::ClockStep => "the wall clock was stepped",
        BlindBecause::NotCollecting => "the shim was not collecting",
        BlindBecause::Silent => "GPU records stopped coming back",
        BlindBecause::Damaged => "the recording is damaged there",
    }
}

pub(super) fn overhead_text(kind: OverheadKind) -> &'static str {
    match kind {
        OverheadKind::DriverCompiler => "the driver's compiler",
        OverheadKind::BufferFlush => "CUPTI's buffer flush",
        OverheadKind::Instrumentation => "CUPTI's instrumentation",
        OverheadKind::Resource => "CUPTI's resources",
        OverheadKind::ModuleLoading => "a module loaded at run time",
        OverheadKind::LazyFunctionLoading => "a function loaded at its first use",
        OverheadKind::CommandBufferFull => "a full command buffer",
        OverheadKind::BufferRequest => "CUPTI's request for a buffer",
        OverheadKind::UvmInit => "unified memory set-up",
        OverheadKind::Other(_) => "overhead of another kind",
    }
}

fn wait_text(t: &Timeline, syscall: Option<u16>, object: NameId, frame: NameId) -> String {
    let object = t.name(object);
    let frame = t.name(frame);
    let call = match syscall {
        Some(nr) => t
            .syscalls()
            .name(nr)
            .map_or_else(|| format!("system call {nr}"), str::to_string),
        None if frame.is_empty() => "no system call".to_string(),
        None => String::new(),
    };
    let mut text = call;
    if !object.is_empty() {
        if !text.is_empty() {
            text.push_str(" on ");
        }
        text.push_str(object);
    }
    if !frame.is_empty() {
        if text.is_empty() {
            text.push_str(frame);
        } else {
            text.push_str(" (");
            text.push_str(frame);
            text.push(')');
        }
    }
    text
}

/// `python3 (pid 12, tid 13)`, with the cgroup where there is a telling one.
pub(super) fn describe(t: &Timeline, who: Who) -> String {
    let pid = t.pid(who);
    let tid = t.thread(who.thread).tid;
    if pid.0 == tid.0 {
        describe_as(t, who, &format!("pid {pid}"))
    } else {
        describe_as(t, who, &format!("pid {pid}, tid {tid}"))
    }
}

/// The same with other numbers.
pub(super) fn describe_as(t: &Timeline, who: Who, ids: &str) -> String {
    // Of the job itself it is no news.
    let own = t.identity(who).is_some_and(|id| id.target);
    let place = match cgroup_of(t, who) {
        cgroup if own || cgroup.is_empty() => String::new(),
        cgroup => format!(", cgroup {cgroup}"),
    };
    format!("{} ({ids}{place})", t.comm(who))
}

/// Empty where it tells nothing.
pub(super) fn cgroup_of(t: &Timeline, who: Who) -> &str {
    match t.process(t.pid(who)).map_or("", |p| t.name(p.cgroup)) {
        "/" => "",
        cgroup => cgroup,
    }
}

pub(super) fn thread_ref(t: &Timeline, who: Who) -> ThreadRef {
    ThreadRef {
        pid: t.pid(who),
        tid: t.thread(who.thread).tid,
        comm: t.comm(who).to_string(),
    }
}

pub(super) fn softirq_name(n: u16) -> String {
    const NAMES: [&str; 10] = [
        "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER",
        "RCU",
    ];
    NAMES
        .get(usize::from(n))
        .map_or_else(|| n.to_string(), |&name| name.to_string())
}

pub(super) fn irq_name(t: &Timeline, n: u16) -> String {
    t.names()
        .irq(n)
        .map_or_else(|| n.to_string(), str::to_string)
}

pub(super) fn context_text(t: &Timeline, context: Context) -> String {
    match context {
        Context::Task => "a task".to_string(),
        Context::HardIrq(n) => format!("irq {}", irq_name(t, n)),
        Context::SoftIrq(n) => format!("softirq {}", softirq_name(n)),
        Context::Timer => "timer interrupt".to_string(),
    }
}

/// A wake as the report tells it; an interrupt is never the task that it interrupted.
pub(super) fn waker(t: &Timeline, wake: Wake) -> Option<Waker> {
    match wake.context {
        Context::Task => {
            let thread: ThreadIdx = t.find(wake.waker)?;
            Some(Waker::Task(thread_ref(t, t.who(thread, wake.at))))
        }
        Context::HardIrq(n) => Some(Waker::Irq(irq_name(t, n))),
        Context::SoftIrq(n) => Some(Waker::SoftIrq(softirq_name(n))),
        Context::Timer => Some(Waker::Timer),
    }
}
