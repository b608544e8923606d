//! What each thread was and did, at every moment.
//!
//! Events are kept as small marks and turned into contiguous spans at the end, because they
//! come from several buffers and only sorting per thread makes their order certain.
#![forbid(unsafe_code)]

use crate::event::{
    Context, Cpu, CpuWait, NameId, Pid, Sample, Stall, SwitchFlags, SysCall, Task, TaskReason,
    TaskState, Tid, Wait,
};
use crate::model::samples::{self, SampleMark};
use crate::model::spans::{
    known_cpu, pack_context, unpack_context, Builder, Mark, MarkKind, Span, SpanKind, NO_SYSCALL,
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
    /// The thread that made it, when that was seen.
    pub made_by: Option<Tid>,
    pub cgroup: u64,
    /// Kernel priority: below 100 is real time.
    pub prio: u32,
    pub target: bool,
    pub kthread: bool,
}

impl Identity {
    /// Nothing but the time that it was told at is another.
    fn is_same(&self, other: &Identity) -> bool {
        let other = Identity {
            from: self.from,
            made_by: self.made_by,
            ..*other
        };
        *self == other
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

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    pub at: Nanos,
    /// Where the waker ran.
    pub cpu: Cpu,
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
    samples: Vec<SampleMark>,
    /// Numbers of the samples that ended an off-CPU time, by its beginning.
    off_samples: Vec<u32>,
    stalls: Vec<Stall>,
    longest_stall: Nanos,
    cpu_waits: Vec<CpuWait>,
    sys_calls: Vec<SysCall>,
    usually_packed: bool,
    /// From when it ended a wait of a target and was followed, until its number was another's.
    followed: Vec<(Nanos, Nanos)>,
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
            made_by: match task.reason {
                TaskReason::New { parent } => Some(parent),
                TaskReason::Seen | TaskReason::Followed | TaskReason::Exec | TaskReason::Rename => {
                    None
                }
            },
            cgroup: task.cgroup,
            prio: task.prio,
            target: task.target,
            kthread: task.kthread,
        });
        if task.reason == TaskReason::Followed {
            self.followed.push((task.ts, Nanos::MAX));
        }
        let (kind, state) = match (task.reason, task.state) {
            (TaskReason::New { .. }, _) => (MarkKind::New, 0),
            (TaskReason::Rename, _) => return,
            // It says so itself. When a thread that is not the first of its process does, the first one
            // has ended, and this one goes on under its id.
            (TaskReason::Exec, _) => (MarkKind::SeenRunning, 0),
            (TaskReason::Seen | TaskReason::Followed, TaskState::Running) => {
                (MarkKind::SeenRunning, 0)
            }
            (TaskReason::Seen | TaskReason::Followed, TaskState::Runnable) => {
                (MarkKind::SeenRunnable, 0)
            }
            (TaskReason::Seen | TaskReason::Followed, TaskState::Off(state)) => {
                (MarkKind::SeenOff, state)
            }
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

    pub(super) fn sample(&mut self, sample: &Sample) {
        self.samples.push(SampleMark::new(sample));
    }

    pub(super) fn cpu_wait(&mut self, wait: CpuWait) {
        self.cpu_waits.push(wait);
    }

    pub(super) fn sys_call(&mut self, call: SysCall) {
        self.sys_calls.push(call);
    }

    pub(super) fn stall(&mut self, stall: Stall) {
        self.stalls.push(stall);
    }

    /// Sorts everything and makes the spans. `losses` are times in which events of the scheduler were
    /// lost, in order and apart; `is_yield` knows sched_yield's number.
    pub(super) fn finish(
        &mut self,
        recording_start: Nanos,
        losses: &[(Nanos, Nanos)],
        is_yield: impl Fn(u16) -> bool,
    ) {
        self.identities.sort_by_key(|i| i.from);
        // Being seen and then followed makes nobody else of it.
        self.identities.dedup_by(|next, one| one.is_same(next));
        self.waits.sort_by_key(|w| (w.start, w.end));
        self.stalls.sort_by_key(|s| (s.start, s.dur));
        self.cpu_waits.sort_by_key(|w| (w.end, w.start));
        if !self.sys_calls.is_sorted_by_key(|c| c.start) {
            self.sys_calls.sort_by_key(|c| c.start);
        }
        self.usually_packed = usually_packed(&self.cpu_waits);
        self.longest_stall = self.stalls.iter().map(|s| s.dur).max().unwrap_or_default();
        if !self.samples.is_sorted_by_key(|s| s.ts) {
            self.samples.sort_by_key(|s| s.ts);
        }
        let samples = (0..).zip(&self.samples);
        let off = samples.filter_map(|(i, s)| s.off_since().map(|since| (since, i)));
        let mut off: Vec<(Nanos, u32)> = off.collect();
        off.sort_unstable();
        self.off_samples = off.into_iter().map(|(_, i)| i).collect();
        let mut marks = std::mem::take(&mut self.marks);
        if !marks.is_sorted_by_key(|m| m.ts) {
            marks.sort_by_key(|m| m.ts);
        }
        if !self.followed.is_empty() && !self.is_target() {
            self.end_followed();
            // As a stranger it was seen only on the CPUs that targets waited for.
            marks.retain(|m| self.follower_since(m.ts).is_some());
        }
        let followed = self.is_followed();
        self.spans = Builder::new(followed, recording_start, losses, is_yield).run(&marks);
    }

    /// Its number is another's from when a thread with another start has it; what it does while it ends is its own.
    fn end_followed(&mut self) {
        self.followed.sort_unstable();
        let mut last = None;
        self.followed.retain_mut(|(from, until)| {
            if last.is_some_and(|last| *from < last) {
                return false;
            }
            let (before, after) = self
                .identities
                .split_at(self.identities.partition_point(|i| i.from <= *from));
            let start = before.last().map(|i| i.start);
            let other = after.iter().find(|i| Some(i.start) != start);
            *until = other.map_or(Nanos::MAX, |i| i.from);
            last = Some(*until);
            true
        });
    }

    /// It belongs to what was recorded.
    pub fn is_target(&self) -> bool {
        !self.calls.is_empty() || self.identities.iter().any(|i| i.target)
    }

    /// Every switch of it was seen, of a target from the start, of one that woke targets since it did:
    /// before that, its state is [`State::Unknown`].
    pub fn is_followed(&self) -> bool {
        self.is_target() || !self.followed.is_empty()
    }

    /// Since when every switch was seen of who it was at `t`; `None`: of a stranger.
    pub fn followed_since(&self, t: Nanos) -> Option<Nanos> {
        if self.is_target() {
            Some(Nanos::ZERO)
        } else {
            self.follower_since(t)
        }
    }

    fn follower_since(&self, t: Nanos) -> Option<Nanos> {
        let after = self.followed.partition_point(|f| f.0 <= t);
        let &(from, until) = self.followed.get(after.checked_sub(1)?)?;
        (t < until).then_some(from)
    }

    /// What the machine looked like when a long wait for a CPU ended: the one that overlaps
    /// `[from, to)`, the last if there are several.
    pub fn cpu_wait_in(&self, from: Nanos, to: Nanos) -> Option<&CpuWait> {
        let first = self.cpu_waits.partition_point(|w| w.end <= from);
        let overlapping = self.cpu_waits[first..].iter();
        overlapping.take_while(|w| w.start < to).last()
    }

    /// How many CPUs it might run on when it last had waited long for one.
    pub fn allowed_cpus(&self) -> Option<u16> {
        self.cpu_waits.last().map(|w| w.allowed)
    }

    /// For most of the time that it waited for one of too few CPUs, others that it may not use were idle.
    pub fn is_usually_packed(&self) -> bool {
        self.usually_packed
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

    /// Stalls within `[from, to)`, cut to it, by start.
    pub fn stalls(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = Stall> + '_ {
        let reach = from.saturating_sub(self.longest_stall);
        let first = self.stalls.partition_point(|s| s.start < reach);
        self.stalls[first..]
            .iter()
            .take_while(move |s| s.start < to)
            .map(move |s| {
                let end = Nanos(s.start.0.saturating_add(s.dur.0));
                let start = s.start.max(from);
                Stall {
                    start,
                    dur: end.min(to).saturating_sub(start),
                    ..*s
                }
            })
            .filter(|s| s.dur > Nanos::ZERO)
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

    /// States that began before `t`, the last one first.
    pub fn states_before(&self, t: Nanos) -> impl Iterator<Item = State> + '_ {
        let upto = self.spans.partition_point(|s| s.start < t);
        (0..upto).rev().map(|i| self.state(i))
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
                cpu: Cpu(s.cpu),
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
        let time = |i: usize| self.waits[i].start;
        let found = samples::nearest(self.waits.len(), stretch.span.0, time)?;
        self.waits.get(found)
    }

    /// Its system calls, by start; none unless [`Meta::syscalls`](crate::store::meta::Meta::syscalls).
    pub fn sys_calls(&self) -> &[SysCall] {
        &self.sys_calls
    }

    /// Where it was seen, by time. A sample of a waker is among those of the waker.
    pub fn samples(&self) -> &[SampleMark] {
        &self.samples
    }

    /// Samples in `[from, to)`, by time.
    pub fn samples_in(&self, from: Nanos, to: Nanos) -> &[SampleMark] {
        let rest = &self.samples[self.samples.partition_point(|s| s.ts < from)..];
        &rest[..rest.partition_point(|s| s.ts < to)]
    }

    /// Where it was while off the CPU from `since` on: the off-CPU sample that says this beginning, give
    /// or take 5 µs. Shorter times than the recorder's threshold have none.
    pub fn off_stack(&self, since: Nanos) -> Option<&SampleMark> {
        let sample = |i: usize| &self.samples[self.off_samples[i] as usize];
        let time = |i| sample(i).off_since().unwrap_or_default();
        samples::nearest(self.off_samples.len(), since, time).map(sample)
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

fn usually_packed(waits: &[CpuWait]) -> bool {
    let (mut packed, mut all) = (0_u64, 0_u64);
    for wait in waits.iter().filter(|w| w.allowed < w.online) {
        let ns = wait.end.saturating_sub(wait.start).0;
        all = all.saturating_add(ns);
        if wait.idle > 0 {
            packed = packed.saturating_add(ns);
        }
    }
    packed > all / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Switch;

    fn off(thread: &mut Thread, ts: u64, cpu: u16, state: u16) {
        thread.off(&Switch {
            ts: Nanos(ts),
            cpu: Cpu(cpu),
            prev: thread.tid,
            next: Tid(9),
            state,
            syscall: None,
            flags: SwitchFlags::default(),
            minor_faults: 0,
            major_faults: 0,
        });
    }

    /// The states of a target from 0 to 100 with their starts, by letter: Running, runnable (W), Blocked,
    /// Unknown, Exited.
    fn story(make: impl FnOnce(&mut Thread)) -> String {
        story_with_losses(&[], make)
    }

    fn story_with_losses(losses: &[(Nanos, Nanos)], make: impl FnOnce(&mut Thread)) -> String {
        let mut thread = Thread::new(Tid(1));
        thread.call(0);
        make(&mut thread);
        thread.finish(Nanos(0), losses, |_| false);
        let mut at = Nanos(0);
        let mut text = Vec::new();
        for s in thread.states(Nanos(0), Nanos(100)) {
            assert_eq!(s.start, at, "states follow each other");
            assert!(!s.is_empty());
            at = s.end;
            let letter = match s.state {
                State::Unknown => 'U',
                State::Running { .. } => 'R',
                State::Runnable { .. } => 'W',
                State::Blocked(_) => 'B',
                State::Exited => 'E',
            };
            text.push(format!("{letter}{}", s.start.0));
        }
        assert_eq!(at, Nanos(100));
        text.join(" ")
    }

    #[test]
    fn sleep_wake_and_run_follow_each_other() {
        let text = story(|t| {
            t.on(Nanos(10), Cpu(1));
            off(t, 20, 1, 1);
            t.wake(Nanos(40), Cpu(0), Tid(2), Context::Task);
            t.on(Nanos(50), Cpu(3));
        });
        assert_eq!(text, "U0 R10 B20 W40 R50");
    }

    #[test]
    fn the_first_event_tells_what_came_before() {
        assert_eq!(story(|t| off(t, 30, 1, 0)), "R0 W30");
        assert_eq!(
            story(|t| t.wake(Nanos(30), Cpu(0), Tid(2), Context::Task)),
            "B0 W30"
        );
        assert_eq!(story(|t| t.on(Nanos(30), Cpu(0))), "U0 R30");
        assert_eq!(story(|_| {}), "U0");
    }

    #[test]
    fn events_that_do_not_fit_leave_the_time_between_unknown() {
        // It left a CPU that it was not on; it ran twice without leaving; it left without running.
        let moved = story(|t| {
            t.on(Nanos(10), Cpu(1));
            off(t, 30, 2, 1);
        });
        assert_eq!(moved, "U0 U10 B30");
        let twice = story(|t| {
            t.on(Nanos(10), Cpu(1));
            t.on(Nanos(30), Cpu(2));
        });
        assert_eq!(twice, "U0 U10 R30");
        let asleep = story(|t| {
            off(t, 10, 1, 1);
            off(t, 30, 1, 1);
        });
        assert_eq!(asleep, "R0 U10 B30");
    }

    #[test]
    fn waking_a_thread_that_is_awake_changes_nothing() {
        let text = story(|t| {
            t.on(Nanos(10), Cpu(1));
            t.wake(Nanos(20), Cpu(0), Tid(2), Context::Task);
            off(t, 90, 1, 0);
        });
        assert_eq!(text, "U0 R10 W90");
    }

    #[test]
    fn nothing_follows_an_exit() {
        let text = story(|t| {
            t.on(Nanos(10), Cpu(1));
            t.exit(Nanos(20));
            off(t, 25, 1, 0x80);
            t.wake(Nanos(30), Cpu(0), Tid(2), Context::Task);
        });
        assert_eq!(text, "U0 R10 E20");
    }

    #[test]
    fn an_exec_takes_over_the_id_of_the_first_thread() {
        let text = story(|t| {
            t.on(Nanos(10), Cpu(1));
            t.exit(Nanos(20));
            t.task(&Task {
                ts: Nanos(30),
                tid: t.tid,
                pid: Pid(1),
                ppid: Pid(0),
                comm: NameId(0),
                start: Nanos(5),
                ns_tid: t.tid,
                ns_pid: Pid(1),
                cgroup: 0,
                prio: 120,
                reason: TaskReason::Exec,
                target: true,
                kthread: false,
                state: TaskState::Running,
                syscall: None,
            });
            off(t, 40, 1, 1);
        });
        assert_eq!(text, "U0 R10 E20 R30 B40");
    }

    #[test]
    fn what_was_before_a_loss_stays_known() {
        let losses = [(Nanos(1), Nanos(2)), (Nanos(20), Nanos(30))];
        // It left its CPU in the loss.
        let text = story_with_losses(&losses, |t| {
            t.on(Nanos(10), Cpu(1));
            t.on(Nanos(40), Cpu(2));
        });
        assert_eq!(text, "U0 R10 U20 R40");
        // It was woken before the loss, and got a CPU in it.
        let text = story_with_losses(&losses, |t| {
            off(t, 10, 1, 1);
            t.wake(Nanos(15), Cpu(1), Tid(9), Context::Task);
            off(t, 40, 1, 1);
        });
        assert_eq!(text, "R0 B10 W15 U20 B40");
        // None of the losses was then.
        let text = story_with_losses(&losses, |t| {
            t.on(Nanos(30), Cpu(1));
            t.on(Nanos(40), Cpu(2));
        });
        assert_eq!(text, "U0 U30 R40");
    }

    #[test]
    fn a_foreign_thread_is_known_only_between_coming_and_leaving() {
        let mut thread = Thread::new(Tid(1));
        thread.on(Nanos(10), Cpu(1));
        off(&mut thread, 20, 1, 1);
        thread.on(Nanos(50), Cpu(1));
        thread.finish(Nanos(0), &[], |_| false);
        let states: Vec<_> = thread
            .states(Nanos(0), Nanos(100))
            .map(|s| s.state)
            .collect();
        let running = State::Running { cpu: Some(Cpu(1)) };
        assert_eq!(
            states,
            [State::Unknown, running, State::Unknown, State::Unknown]
        );
    }
}
