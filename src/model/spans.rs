//! From the events of one thread to contiguous spans.
//!
//! A span is believed only if both its ends fit together: a thread that is switched in on one
//! CPU and leaves another one has lost events, and its state in between is unknown.
#![forbid(unsafe_code)]

use crate::event::{Context, Cpu, SwitchFlags};
use crate::units::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkKind {
    Off,
    On,
    Wake,
    New,
    SeenRunning,
    SeenRunnable,
    SeenOff,
    Exit,
}

/// An event about one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) ts: Nanos,
    /// Off: who runs next. Wake: the waker.
    pub(super) other: u32,
    /// Off: raw state. Wake: the interrupt number.
    pub(super) state: u16,
    /// [`NO_SYSCALL`] outside of one.
    pub(super) syscall: u16,
    pub(super) cpu: u16,
    pub(super) kind: MarkKind,
    /// Off: [`SwitchFlags`]. Wake: the kind of context.
    pub(super) flags: u8,
    pub(super) major_faults: u8,
}

pub(super) const NO_SYSCALL: u16 = u16::MAX;
pub(super) const NO_CPU: u16 = u16::MAX;

pub(super) fn known_cpu(cpu: u16) -> Option<Cpu> {
    (cpu != NO_CPU).then_some(Cpu(cpu))
}

pub(super) fn pack_context(context: Context) -> (u8, u16) {
    match context {
        Context::Task => (0, 0),
        Context::HardIrq(n) => (1, n),
        Context::SoftIrq(n) => (2, n),
        Context::Timer => (3, 0),
    }
}

pub(super) fn unpack_context(kind: u8, number: u16) -> Context {
    match kind {
        1 => Context::HardIrq(number),
        2 => Context::SoftIrq(number),
        3 => Context::Timer,
        _ => Context::Task,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    Unknown,
    Running,
    Woken,
    Preempted,
    Yielded,
    Throttled,
    New,
    Blocked,
    Exited,
}

/// From `start` to the start of the next span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: Nanos,
    /// Preempted: who ran instead. Woken: the waker.
    pub(super) other: u32,
    /// Blocked: raw state. Woken: the interrupt number.
    pub(super) state: u16,
    pub(super) syscall: u16,
    pub(super) cpu: u16,
    pub(super) kind: SpanKind,
    pub(super) flags: u8,
    pub(super) major_faults: u8,
}

const _: () = assert!(std::mem::size_of::<Mark>() == 24);
const _: () = assert!(std::mem::size_of::<Span>() == 24);

/// Turns sorted marks into spans.
pub(super) struct Builder<'a, F> {
    /// Every event of the thread was recorded, so what lies between two is certain.
    followed: bool,
    begin: Nanos,
    /// When events of any CPU were lost, in order and apart.
    losses: &'a [(Nanos, Nanos)],
    is_yield: F,
    spans: Vec<Span>,
    /// A wake that came while the thread still ran.
    early_wake: Option<Mark>,
}

/// A wake may be stamped just before the switch-out that it ends, on another CPU.
const EARLY_WAKE: u64 = 50_000;

impl<'a, F: Fn(u16) -> bool> Builder<'a, F> {
    pub(super) fn new(
        followed: bool,
        begin: Nanos,
        losses: &'a [(Nanos, Nanos)],
        is_yield: F,
    ) -> Self {
        Builder {
            followed,
            begin,
            losses,
            is_yield,
            spans: Vec::new(),
            early_wake: None,
        }
    }

    fn kind(&self) -> SpanKind {
        self.spans.last().map_or(SpanKind::Unknown, |s| s.kind)
    }

    fn push(&mut self, mark: &Mark, kind: SpanKind) {
        self.spans.push(Span {
            start: mark.ts,
            other: mark.other,
            state: mark.state,
            syscall: mark.syscall,
            cpu: mark.cpu,
            kind,
            flags: mark.flags,
            major_faults: mark.major_faults,
        });
    }

    /// The span before `mark` cannot be what it seemed to its end: an event in it was lost. Where it is
    /// known when events were, it is what it seemed until then.
    fn distrust(&mut self, mark: &Mark) {
        let Some(last) = self.spans.last_mut() else {
            return;
        };
        let first = self.losses.partition_point(|l| l.1 < last.start);
        match self.losses.get(first) {
            Some(loss) if last.start < loss.0 && loss.0 < mark.ts => {
                let from = Mark {
                    ts: loss.0,
                    ..*mark
                };
                self.push(&from, SpanKind::Unknown);
            }
            Some(_) | None => last.kind = SpanKind::Unknown,
        }
    }

    /// The first event of a followed thread also says what it did before.
    fn infer_before(&mut self, mark: &Mark, kind: SpanKind) {
        if self.followed && self.spans.is_empty() && self.begin < mark.ts {
            let before = Mark {
                ts: self.begin,
                state: 0,
                syscall: NO_SYSCALL,
                flags: 0,
                major_faults: 0,
                ..*mark
            };
            self.push(&before, kind);
        }
    }

    pub(super) fn run(mut self, marks: &[Mark]) -> Vec<Span> {
        for (i, mark) in marks.iter().enumerate() {
            if self.kind() == SpanKind::Exited
                && !matches!(
                    mark.kind,
                    MarkKind::New
                        | MarkKind::SeenRunning
                        | MarkKind::SeenRunnable
                        | MarkKind::SeenOff
                )
            {
                continue;
            }
            match mark.kind {
                MarkKind::Off => self.off(mark, marks.get(i + 1)),
                MarkKind::On => self.on(mark),
                MarkKind::Wake => self.woken(mark),
                MarkKind::New => self.push(mark, SpanKind::New),
                MarkKind::SeenRunning | MarkKind::SeenRunnable | MarkKind::SeenOff => {
                    self.seen(mark);
                }
                MarkKind::Exit => self.push(mark, SpanKind::Exited),
            }
        }
        if let Some(last) = self.spans.last_mut() {
            if !self.followed && last.kind == SpanKind::Running {
                last.kind = SpanKind::Unknown;
            }
        }
        self.spans.shrink_to_fit();
        self.spans
    }

    fn off(&mut self, mark: &Mark, next: Option<&Mark>) {
        self.infer_before(mark, SpanKind::Running);
        for span in self.spans.iter_mut().rev() {
            if span.kind != SpanKind::Running || span.cpu != NO_CPU {
                break;
            }
            span.cpu = mark.cpu;
        }
        match self.spans.last() {
            None => {}
            Some(last) => match last.kind {
                SpanKind::Running if last.cpu == mark.cpu => {}
                SpanKind::Unknown => {}
                SpanKind::Running
                | SpanKind::Woken
                | SpanKind::Preempted
                | SpanKind::Yielded
                | SpanKind::Throttled
                | SpanKind::New
                | SpanKind::Blocked
                | SpanKind::Exited => self.distrust(mark),
            },
        }
        let flags = SwitchFlags(mark.flags);
        let early = self.early_wake.take();
        if flags.has(SwitchFlags::EXITING) && mark.state != 0 {
            self.push(mark, SpanKind::Exited);
        } else if !self.followed {
            self.push(mark, SpanKind::Unknown);
        } else if flags.has(SwitchFlags::THROTTLED) && mark.state == 0 {
            self.push(mark, SpanKind::Throttled);
        } else if mark.state == 0 && mark.syscall != NO_SYSCALL && (self.is_yield)(mark.syscall) {
            self.push(mark, SpanKind::Yielded);
        } else if mark.state == 0 {
            self.push(mark, SpanKind::Preempted);
        } else {
            let woken_already = early.filter(|wake| {
                mark.ts.0.saturating_sub(wake.ts.0) <= EARLY_WAKE
                    && next.is_some_and(|n| n.kind == MarkKind::On)
            });
            match woken_already {
                Some(wake) => {
                    let wake = Mark {
                        ts: mark.ts,
                        ..wake
                    };
                    self.push(&wake, SpanKind::Woken);
                }
                None => self.push(mark, SpanKind::Blocked),
            }
        }
    }

    fn on(&mut self, mark: &Mark) {
        if self.kind() == SpanKind::Running {
            self.distrust(mark);
        }
        self.early_wake = None;
        // Nothing before: it waited for a CPU or slept, nobody knows which.
        self.infer_before(mark, SpanKind::Unknown);
        self.push(mark, SpanKind::Running);
    }

    fn woken(&mut self, mark: &Mark) {
        self.infer_before(mark, SpanKind::Blocked);
        match self.kind() {
            SpanKind::Blocked => self.push(mark, SpanKind::Woken),
            SpanKind::Unknown if self.followed => self.push(mark, SpanKind::Woken),
            SpanKind::Running => self.early_wake = Some(*mark),
            // A wake of a thread that is awake does nothing.
            SpanKind::Unknown
            | SpanKind::Woken
            | SpanKind::Preempted
            | SpanKind::Yielded
            | SpanKind::Throttled
            | SpanKind::New
            | SpanKind::Exited => {}
        }
    }

    fn seen(&mut self, mark: &Mark) {
        if !self.followed || !matches!(self.kind(), SpanKind::Unknown | SpanKind::Exited) {
            return;
        }
        let kind = match mark.kind {
            MarkKind::SeenRunning => SpanKind::Running,
            MarkKind::SeenRunnable => SpanKind::New,
            MarkKind::SeenOff if mark.state == 0 => SpanKind::New,
            MarkKind::SeenOff
            | MarkKind::Off
            | MarkKind::On
            | MarkKind::Wake
            | MarkKind::New
            | MarkKind::Exit => SpanKind::Blocked,
        };
        // Where it runs is not said; the first switch-out shows it.
        let mark = Mark {
            cpu: NO_CPU,
            ..*mark
        };
        self.infer_before(&mark, kind);
        self.push(&mark, kind);
    }
}
