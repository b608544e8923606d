//! What each thread was and did, at every moment.
//!
//! Events are kept as small marks and turned into contiguous spans at the end, because they
//! come from several buffers and only sorting per thread makes their order certain. A span is
//! believed only if both its ends fit together: a thread that is switched in on one CPU and
//! leaves another one has lost events, and its state in between is unknown.
#![forbid(unsafe_code)]

use crate::event::{
    Context, Cpu, NameId, Pid, StackId, Stall, SwitchFlags, Task, TaskReason, TaskState, Tid, Wait,
};
use crate::units::Nanos;

/// A thread in this timeline. Tids are reused, so one index may be several threads in turn;
/// with the number of the identity it is one thread ([`Who`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIdx(pub u32);

/// One identity of one thread: who it was at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    pub thread: ThreadIdx,
    pub identity: u32,
}

/// What a thread was called and belonged to from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub from: Nanos,
    pub pid: Pid,
    pub ppid: Pid,
    pub comm: NameId,
    pub start: Nanos,
    pub cgroup: u64,
    pub target: bool,
    pub kthread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkKind {
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
struct Mark {
    ts: Nanos,
    /// Off: who runs next. Wake: the waker.
    other: u32,
    /// Off: raw state. Wake: the interrupt number.
    state: u16,
    /// [`NO_SYSCALL`] outside of one.
    syscall: u16,
    cpu: u16,
    kind: MarkKind,
    /// Off: [`SwitchFlags`]. Wake: the kind of context.
    flags: u8,
    major_faults: u8,
}

const NO_SYSCALL: u16 = u16::MAX;
const NO_CPU: u16 = u16::MAX;

fn known_cpu(cpu: u16) -> Option<Cpu> {
    (cpu != NO_CPU).then_some(Cpu(cpu))
}

fn pack_context(context: Context) -> (u8, u16) {
    match context {
        Context::Task => (0, 0),
        Context::HardIrq(n) => (1, n),
        Context::SoftIrq(n) => (2, n),
        Context::Timer => (3, 0),
        Context::Nmi => (4, 0),
    }
}

fn unpack_context(kind: u8, number: u16) -> Context {
    match kind {
        1 => Context::HardIrq(number),
        2 => Context::SoftIrq(number),
        3 => Context::Timer,
        4 => Context::Nmi,
        _ => Context::Task,
    }
}

/// Why a thread that could run did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It was woken and had to wait for a CPU.
    Woken,
    /// Its CPU was given to another.
    Preempted,
    /// It gave its CPU away with sched_yield.
    Yielded,
    /// The CPU quota of its cgroup was used up.
    Throttled,
    /// It was just made, or already runnable when it was first seen.
    New,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpanKind {
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
struct Span {
    start: Nanos,
    /// Preempted: who ran instead. Woken: the waker.
    other: u32,
    /// Blocked: raw state. Woken: the interrupt number.
    state: u16,
    syscall: u16,
    cpu: u16,
    kind: SpanKind,
    flags: u8,
    major_faults: u8,
}

const _: () = assert!(std::mem::size_of::<Mark>() == 24);
const _: () = assert!(std::mem::size_of::<Span>() == 24);

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    pub at: Nanos,
    /// Only to be blamed when `context` is [`Context::Task`].
    pub waker: Tid,
    pub context: Context,
}

/// What a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// Raw `task->__state`; `None` when the sleep began before the recording.
    pub state: Option<u16>,
    pub syscall: Option<u16>,
    pub flags: SwitchFlags,
    pub major_faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Unknown,
    /// The CPU is unknown when the thread was never seen to get or to leave one.
    Running {
        cpu: Option<Cpu>,
    },
    /// `cpu` is the CPU that it left, or for [`Why::Woken`] the one it will run on, if it did.
    Runnable {
        why: Why,
        cpu: Option<Cpu>,
    },
    Blocked(Sleep),
    Exited,
}

/// A state with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub start: Nanos,
    pub end: Nanos,
    /// Where the whole span begins and ends, when the stretch is a part of it.
    pub span: (Nanos, Nanos),
    pub state: State,
    index: usize,
}

impl Stretch {
    pub fn len(&self) -> Nanos {
        self.end.saturating_sub(self.start)
    }

    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The same state, for a part of the time.
    pub fn part(&self, start: Nanos, end: Nanos) -> Stretch {
        Stretch {
            start,
            end,
            ..*self
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub tid: Tid,
    identities: Vec<Identity>,
    marks: Vec<Mark>,
    spans: Vec<Span>,
    waits: Vec<Wait>,
    stalls: Vec<Stall>,
    longest_stall: Nanos,
    calls: Vec<u32>,
    /// Calls that started kernels, copies or graphs, failed ones not counted.
    pub launches: u64,
}

impl Thread {
    pub(super) fn new(tid: Tid) -> Self {
        Thread {
            tid,
            ..Thread::default()
        }
    }

    pub(super) fn task(&mut self, task: &Task) {
        self.identities.push(Identity {
            from: task.ts,
            pid: task.pid,
            ppid: task.ppid,
            comm: task.comm,
            start: task.start,
            cgroup: task.cgroup,
            target: task.target,
            kthread: task.kthread,
        });
        let (kind, state) = match (task.reason, task.state) {
            (TaskReason::New { .. }, _) => (MarkKind::New, 0),
            (TaskReason::Exec | TaskReason::Rename, _) => return,
            (TaskReason::Seen, TaskState::Running) => (MarkKind::SeenRunning, 0),
            (TaskReason::Seen, TaskState::Runnable) => (MarkKind::SeenRunnable, 0),
            (TaskReason::Seen, TaskState::Off(state)) => (MarkKind::SeenOff, state),
        };
        self.marks.push(Mark {
            ts: task.ts,
            other: 0,
            state,
            syscall: task.syscall.unwrap_or(NO_SYSCALL),
            cpu: 0,
            kind,
            flags: 0,
            major_faults: 0,
        });
    }

    pub(super) fn off(&mut self, e: &crate::event::Switch) {
        self.marks.push(Mark {
            ts: e.ts,
            other: e.next.0,
            state: e.state,
            syscall: e.syscall.unwrap_or(NO_SYSCALL),
            cpu: e.cpu.0,
            kind: MarkKind::Off,
            flags: e.flags.0,
            major_faults: e.major_faults,
        });
    }

    fn plain(&mut self, ts: Nanos, kind: MarkKind, cpu: Cpu) -> &mut Mark {
        self.marks.push(Mark {
            ts,
            other: 0,
            state: 0,
            syscall: NO_SYSCALL,
            cpu: cpu.0,
            kind,
            flags: 0,
            major_faults: 0,
        });
        self.marks.last_mut().expect("just pushed")
    }

    pub(super) fn on(&mut self, ts: Nanos, cpu: Cpu) {
        self.plain(ts, MarkKind::On, cpu);
    }

    pub(super) fn wake(&mut self, ts: Nanos, cpu: Cpu, waker: Tid, context: Context) {
        let (kind, number) = pack_context(context);
        let mark = self.plain(ts, MarkKind::Wake, cpu);
        mark.other = waker.0;
        mark.flags = kind;
        mark.state = number;
    }

    pub(super) fn call(&mut self, index: u32) {
        self.calls.push(index);
    }

    pub(super) fn calls_mut(&mut self) -> &mut Vec<u32> {
        &mut self.calls
    }

    pub(super) fn exit(&mut self, ts: Nanos) {
        self.plain(ts, MarkKind::Exit, Cpu(0));
    }

    pub(super) fn wait(&mut self, wait: Wait) {
        self.waits.push(wait);
    }

    pub(super) fn stall(&mut self, stall: Stall) {
        self.stalls.push(stall);
    }

    /// Sorts everything and makes the spans. `is_yield` knows sched_yield's number.
    pub(super) fn finish(&mut self, recording_start: Nanos, is_yield: impl Fn(u16) -> bool) {
        self.identities.sort_by_key(|i| i.from);
        self.waits.sort_by_key(|w| (w.start, w.end));
        self.stalls.sort_by_key(|s| (s.start, s.dur));
        self.longest_stall = self.stalls.iter().map(|s| s.dur).max().unwrap_or_default();
        let mut marks = std::mem::take(&mut self.marks);
        if !marks.is_sorted_by_key(|m| m.ts) {
            marks.sort_by_key(|m| m.ts);
        }
        let followed = self.is_target();
        self.spans = Builder::new(followed, recording_start, is_yield).run(&marks);
    }

    /// It belongs to what was recorded: every switch of it was seen.
    pub fn is_target(&self) -> bool {
        !self.calls.is_empty() || self.identities.iter().any(|i| i.target)
    }

    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// Number of the identity at `t`: the latest before, or the first one when `t` is earlier.
    pub fn identity_at(&self, t: Nanos) -> u32 {
        let i = self.identities.partition_point(|i| i.from <= t);
        u32::try_from(i.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    pub fn identity(&self, number: u32) -> Option<&Identity> {
        self.identities.get(number as usize)
    }

    /// Indices of its CUDA calls, by start; a call comes before those made inside it.
    pub fn calls(&self) -> &[u32] {
        &self.calls
    }

    /// Time stalled on memory within `[from, to)`, by start.
    pub fn stalls(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = (Nanos, Nanos)> + '_ {
        let reach = from.saturating_sub(self.longest_stall);
        let first = self.stalls.partition_point(|s| s.start < reach);
        self.stalls[first..]
            .iter()
            .take_while(move |s| s.start < to)
            .map(move |s| {
                let end = Nanos(s.start.0.saturating_add(s.dur.0));
                (s.start.max(from), end.min(to))
            })
            .filter(|(start, end)| start < end)
    }

    /// States that cover `[from, to)` exactly, in order.
    pub fn states(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = Stretch> + '_ {
        let first = self.spans.partition_point(|s| s.start <= from);
        let mut index = first.checked_sub(1);
        let mut at = from;
        std::iter::from_fn(move || {
            while at < to {
                let Some(i) = index else {
                    // Before the first span nothing is known.
                    let end = self.spans.first().map_or(to, |s| s.start.min(to));
                    let start = at;
                    index = Some(0);
                    at = end;
                    if start < end {
                        return Some(Stretch {
                            start,
                            end,
                            span: (Nanos::ZERO, end),
                            state: State::Unknown,
                            index: usize::MAX,
                        });
                    }
                    continue;
                };
                let span_end = self.span_end(i);
                let start = at;
                let end = span_end.min(to);
                index = Some(i + 1);
                if start < end {
                    at = end;
                    return Some(Stretch {
                        start,
                        end,
                        span: (self.spans[i].start, span_end),
                        state: self.state(i),
                        index: i,
                    });
                }
            }
            None
        })
    }

    fn span_end(&self, i: usize) -> Nanos {
        self.spans.get(i + 1).map_or(Nanos::MAX, |s| s.start)
    }

    fn state(&self, i: usize) -> State {
        let s = &self.spans[i];
        let runnable = |why, cpu| State::Runnable { why, cpu };
        match s.kind {
            SpanKind::Unknown => State::Unknown,
            SpanKind::Running => State::Running {
                cpu: known_cpu(s.cpu),
            },
            SpanKind::Woken => runnable(Why::Woken, self.cpu_of_next_run(i)),
            SpanKind::New => runnable(Why::New, self.cpu_of_next_run(i)),
            SpanKind::Preempted => runnable(Why::Preempted, known_cpu(s.cpu)),
            SpanKind::Yielded => runnable(Why::Yielded, known_cpu(s.cpu)),
            SpanKind::Throttled => runnable(Why::Throttled, known_cpu(s.cpu)),
            SpanKind::Blocked => State::Blocked(Sleep {
                state: (s.state != 0).then_some(s.state),
                syscall: (s.syscall != NO_SYSCALL).then_some(s.syscall),
                flags: SwitchFlags(s.flags),
                major_faults: s.major_faults,
            }),
            SpanKind::Exited => State::Exited,
        }
    }

    fn cpu_of_next_run(&self, i: usize) -> Option<Cpu> {
        let next = self.spans.get(i + 1)?;
        known_cpu(next.cpu).filter(|_| next.kind == SpanKind::Running)
    }

    /// CPU on which the thread ran right after this stretch's span.
    pub fn cpu_after(&self, stretch: &Stretch) -> Option<Cpu> {
        self.cpu_of_next_run(stretch.index)
    }

    /// Who ran right after a preempted thread lost its CPU.
    pub fn preemptor(&self, stretch: &Stretch) -> Option<Tid> {
        let s = self.spans.get(stretch.index)?;
        (s.kind == SpanKind::Preempted).then_some(Tid(s.other))
    }

    /// The wake that ended a blocked stretch's span, or that began a woken one's.
    pub fn wake_of(&self, stretch: &Stretch) -> Option<Wake> {
        let of = |s: &Span| {
            (s.kind == SpanKind::Woken).then(|| Wake {
                at: s.start,
                waker: Tid(s.other),
                context: unpack_context(s.flags, s.state),
            })
        };
        let this = self.spans.get(stretch.index)?;
        of(this).or_else(|| of(self.spans.get(stretch.index + 1)?))
    }

    /// The blocked stretch just before a runnable one, whole.
    pub fn sleep_before(&self, stretch: &Stretch) -> Option<Stretch> {
        let i = stretch.index.checked_sub(1)?;
        let s = self.spans.get(i)?;
        (s.kind == SpanKind::Blocked).then(|| {
            let end = self.span_end(i);
            Stretch {
                start: s.start,
                end,
                span: (s.start, end),
                state: self.state(i),
                index: i,
            }
        })
    }

    /// Stack and object of a blocked stretch, when the wait was long enough to have them.
    pub fn wait_of(&self, stretch: &Stretch) -> Option<&Wait> {
        /// The wait's start is taken in the same probe as the switch; this is slack for rounding.
        const SLACK: u64 = 5_000;
        let start = stretch.span.0;
        let i = self
            .waits
            .partition_point(|w| w.start.0.saturating_add(SLACK) < start.0);
        self.waits[i..]
            .iter()
            .take_while(|w| w.start.0 <= start.0.saturating_add(SLACK))
            .min_by_key(|w| w.start.0.abs_diff(start.0))
    }

    /// The waits that were long enough to be described, by start.
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }

    /// Was there a throttled span that overlaps `[from, to)`?
    pub fn throttled_near(&self, from: Nanos, to: Nanos) -> bool {
        let first = self
            .spans
            .partition_point(|s| s.start < from)
            .saturating_sub(1);
        self.spans[first.min(self.spans.len())..]
            .iter()
            .take_while(|s| s.start < to)
            .any(|s| s.kind == SpanKind::Throttled)
    }

    pub fn stack_of(&self, stretch: &Stretch) -> StackId {
        self.wait_of(stretch)
            .map_or_else(StackId::default, |w| w.stack)
    }

    /// Total time running in `[from, to)`, but not counted beyond `enough`.
    pub fn running_in(&self, from: Nanos, to: Nanos, enough: Nanos) -> Nanos {
        let mut total = Nanos::ZERO;
        for s in self.states(from, to) {
            if let State::Running { .. } = s.state {
                total += s.len();
                if total > enough {
                    break;
                }
            }
        }
        total
    }
}

/// Turns sorted marks into spans.
struct Builder<F> {
    /// Every event of the thread was recorded, so what lies between two is certain.
    followed: bool,
    begin: Nanos,
    is_yield: F,
    spans: Vec<Span>,
    /// A wake that came while the thread still ran.
    early_wake: Option<Mark>,
}

/// A wake may be stamped just before the switch-out that it ends, on another CPU.
const EARLY_WAKE: u64 = 50_000;

impl<F: Fn(u16) -> bool> Builder<F> {
    fn new(followed: bool, begin: Nanos, is_yield: F) -> Self {
        Builder {
            followed,
            begin,
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

    /// The span before `mark` cannot be what it seemed: an event in it was lost.
    fn distrust(&mut self) {
        if let Some(last) = self.spans.last_mut() {
            last.kind = SpanKind::Unknown;
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

    fn run(mut self, marks: &[Mark]) -> Vec<Span> {
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
        if !self.followed && self.kind() == SpanKind::Running {
            self.distrust();
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
                | SpanKind::Exited => self.distrust(),
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
            self.distrust();
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
