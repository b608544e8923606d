//! What a thread did, nanosecond by nanosecond, and which cause that is.
//!
//! The first that matches decides: lost records, the observer, then by the scheduler's state:
//! stopped, waiting for a CPU (`runqueue`), interrupted, inside a CUDA call, asleep, in its own code.
//! A wait that only passes on somebody else's lateness is replaced by that thread's own time, and so
//! on, up to [`MOST_WAKERS`] times (`walk`).
#![forbid(unsafe_code)]

use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use crate::analyse::calls::{self, Calls, Segment, LAUNCH_SPACING};
use crate::analyse::cause::Cause;
use crate::analyse::futex::For;
use crate::analyse::intervals::{just_after, Intervals};
use crate::analyse::overheads::{Overhead, Overheads};
use crate::analyse::sampled::{self, Doing};
use crate::analyse::waits::{self, Object, Wait};
use crate::analyse::walk;
use crate::analyse::what::{Piece, Stop, What};
use crate::event::{Cpu, MigrationKind, OverheadKind, Pid, StackId, StallKind, Tid};
use crate::model::fxhash::{FxHashMap, FxHasher};
use crate::model::names::Traits;
use crate::model::ops::Call;
use crate::model::search::Hint;
use crate::model::thread::{Sleep, State, Stretch, ThreadIdx, Wake, Who};
use crate::model::{CpuLoss, Timeline};
use crate::units::Nanos;

/// How many wakers are followed from the dispatcher back.
pub(super) const MOST_WAKERS: usize = 8;

/// Whose time is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The thread that owes the launch, or another that launches.
    Dispatcher,
    /// A thread that was waited for.
    Helper { loader: bool },
}

/// A thread's time to be explained, and who waited for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) thread: ThreadIdx,
    pub(super) role: Role,
    /// From the dispatcher on, each waited for the next one.
    waiters: [ThreadIdx; MOST_WAKERS],
    hops: usize,
}

impl Task {
    pub(super) fn dispatcher(thread: ThreadIdx) -> Task {
        Task {
            thread,
            role: Role::Dispatcher,
            waiters: [thread; MOST_WAKERS],
            hops: 0,
        }
    }

    /// `None`: the way back to the dispatcher is too long already.
    pub(super) fn helper(self, thread: ThreadIdx, role: Role) -> Option<Task> {
        let mut helper = Task {
            thread,
            role,
            hops: self.hops + 1,
            ..self
        };
        *helper.waiters.get_mut(self.hops)? = self.thread;
        Some(helper)
    }

    /// Another thread in its place.
    pub(super) fn with_thread(self, thread: ThreadIdx) -> Task {
        Task { thread, ..self }
    }

    pub(super) fn is_loader(self) -> bool {
        matches!(self.role, Role::Helper { loader: true })
    }

    fn waiter(self) -> Option<ThreadIdx> {
        self.waiters[..self.hops].last().copied()
    }

    /// The thread itself waits, or one that waits for it.
    pub(super) fn waits(self, thread: ThreadIdx) -> bool {
        self.thread == thread || self.waiters[..self.hops].contains(&thread)
    }
}

#[derive(Debug)]
pub(super) struct Engine<'a> {
    pub(super) t: &'a Timeline,
    pub(super) launching: HashSet<Pid, BuildHasherDefault<FxHasher>>,
    lost_anywhere: Intervals,
    /// `None`: on a CPU that has no losses of its own.
    lost_on: FxHashMap<Option<Cpu>, Intervals>,
    near_call: Hint,
    /// When pages of managed memory came back from a device, by process.
    pub(super) to_host: FxHashMap<Pid, Intervals>,
    /// Does the second thread answer requests of the first?
    pub(super) asked: RefCell<FxHashMap<(ThreadIdx, ThreadIdx), bool>>,
    /// When a thread made child processes.
    births: FxHashMap<Tid, Vec<Nanos>>,
    /// Processes of which one thread only was ever seen.
    pub(super) single: FxHashMap<Pid, Option<ThreadIdx>>,
    /// By thread: see [`Engine::is_interpreter_lock`].
    pub(super) switch_intervals: Vec<OnceCell<Intervals>>,
    pub(super) usual_futex: Vec<OnceCell<Option<For>>>,
    /// Work for us inside the target.
    observer: Overheads,
    /// Loading and compiling.
    loading: Overheads,
}

const LOST: &str = "scheduling events were lost";

impl<'a> Engine<'a> {
    pub(super) fn new(t: &'a Timeline) -> Self {
        let mut launching = HashSet::default();
        let mut single: FxHashMap<Pid, Option<ThreadIdx>> = FxHashMap::default();
        let mut births: FxHashMap<Tid, Vec<Nanos>> = FxHashMap::default();
        for (idx, thread) in t.threads() {
            for first in thread
                .identities()
                .iter()
                .filter(|i| i.pid.0 == thread.tid.0)
            {
                if let Some(parent) = first.made_by {
                    births.entry(parent).or_default().push(first.from);
                }
            }
            for pid in thread.identities().iter().map(|i| i.pid) {
                let one = single.entry(pid).or_insert(Some(idx));
                *one = one.filter(|&one| one == idx);
            }
            if thread.launches > 0 {
                launching.extend(thread.identities().iter().map(|i| i.pid));
                launching.insert(t.pid(t.who(idx, t.end())));
            }
        }
        births.values_mut().for_each(|times| times.sort_unstable());
        let spans = |keep: &dyn Fn(&CpuLoss) -> bool| {
            let of = t.cpu_losses().iter().filter(|l| keep(l));
            Intervals::union_of(of.map(|l| (l.from, l.to)).collect())
        };
        let mut lost_on = FxHashMap::default();
        for loss in t.cpu_losses() {
            lost_on
                .entry(loss.cpu)
                .or_insert_with(|| spans(&|l| l.cpu.is_none() || l.cpu == loss.cpu));
        }
        Engine {
            t,
            launching,
            lost_anywhere: spans(&|_| true),
            lost_on,
            near_call: Hint::default(),
            to_host: to_host(t),
            asked: RefCell::default(),
            births,
            single,
            switch_intervals: vec![OnceCell::new(); t.threads().count()],
            usual_futex: vec![OnceCell::new(); t.threads().count()],
            observer: Overheads::collect(t, |kind| {
                matches!(
                    kind,
                    OverheadKind::BufferRequest
                        | OverheadKind::BufferFlush
                        | OverheadKind::Instrumentation
                )
            }),
            loading: Overheads::collect(t, |kind| {
                matches!(
                    kind,
                    OverheadKind::DriverCompiler
                        | OverheadKind::ModuleLoading
                        | OverheadKind::LazyFunctionLoading
                )
            }),
        }
    }

    pub(super) fn calls(&self, thread: ThreadIdx) -> Calls<'_> {
        Calls::of(self.t.gpu(), self.t.thread(thread), &self.near_call)
    }

    /// Explains `[from, to)` of a thread; the pieces cover it in order.
    pub(super) fn explain(&self, task: Task, from: Nanos, to: Nanos, out: &mut Vec<Piece>) {
        for s in self.t.thread(task.thread).states(from, to) {
            let lost = |a, b, out: &mut Vec<Piece>| {
                let what = What::Say(LOST);
                self.push(task, a, b, Cause::UnknownMeasurement, what, out);
            };
            match self.losses_that_matter(&s) {
                None => self.observed(task, &s, out),
                // It was switched off on that CPU after the loss, so it ran there before.
                Some(losses) if matches!(s.state, State::Running { .. }) => {
                    losses.cut(s.start, s.end, |a, b, is_lost| {
                        if is_lost {
                            lost(a, b, out);
                        } else {
                            self.observed(task, &s.part(a, b), out);
                        }
                    });
                }
                // It may have run and waited for something else since: nothing is known before its next event.
                Some(losses) => {
                    let first = losses.within(s.span.0, just_after(s.span.1)).next();
                    // Who ended the sleep, or where it ran next, can be what was lost.
                    let needs_its_end = match s.state {
                        State::Blocked(sleep) => {
                            let group = sleep.syscall.map(|nr| self.t.syscalls().group(nr));
                            waits::is_ended_by_others(&sleep, group)
                        }
                        State::Runnable { cpu, .. } => cpu.is_none(),
                        State::Running { .. } | State::Unknown | State::Exited => false,
                    };
                    let known = match first {
                        None => s.end,
                        Some(_) if needs_its_end => s.start,
                        Some(loss) => loss.0.clamp(s.start, s.end),
                    };
                    if s.start < known {
                        self.observed(task, &s.part(s.start, known), out);
                    }
                    lost(known, s.end, out);
                }
            }
        }
    }

    /// A thread that runs can have lost events on its own CPU only; one that does not, anywhere.
    fn losses_that_matter(&self, s: &Stretch) -> Option<&Intervals> {
        let lost = match s.state {
            State::Running { cpu: Some(cpu) } => {
                let own = self.lost_on.get(&Some(cpu));
                own.or_else(|| self.lost_on.get(&None))?
            }
            State::Running { cpu: None }
            | State::Unknown
            | State::Runnable { .. }
            | State::Blocked(_)
            | State::Exited => &self.lost_anywhere,
        };
        (!lost.is_empty()).then_some(lost)
    }

    pub(super) fn push(
        &self,
        task: Task,
        start: Nanos,
        end: Nanos,
        cause: Cause,
        what: What,
        out: &mut Vec<Piece>,
    ) {
        if start < end {
            out.push(Piece {
                start,
                end,
                cause,
                who: Some(self.t.who(task.thread, start)),
                what,
                stack: StackId::default(),
                waiter: task.waiter().map(|w| self.t.who(w, start)),
            });
        }
    }

    /// Takes out the time in which CUPTI worked for us on this thread.
    fn observed(&self, task: Task, s: &Stretch, out: &mut Vec<Piece>) {
        let mut at = s.start;
        for o in self.overheads_in(&self.observer, task.thread, s.start, s.end) {
            let (start, end) = (o.start.max(at), o.end.min(s.end));
            if start < end {
                if at < start {
                    self.stretch(task, &s.part(at, start), out);
                }
                self.push(
                    task,
                    start,
                    end,
                    Cause::Observer,
                    What::Overhead(o.kind),
                    out,
                );
                at = end;
            }
        }
        if at < s.end {
            self.stretch(task, &s.part(at, s.end), out);
        }
    }

    fn overheads_in(
        &self,
        these: &Overheads,
        thread: ThreadIdx,
        from: Nanos,
        to: Nanos,
    ) -> Vec<Overhead> {
        if these.is_empty() {
            return Vec::new();
        }
        let pid = self.t.pid(self.t.who(thread, from));
        these.on(thread, pid, self.calls(thread), from, to)
    }

    fn stretch(&self, task: Task, s: &Stretch, out: &mut Vec<Piece>) {
        match s.state {
            State::Unknown => {
                let what = What::Say("no scheduling events of this thread");
                self.push(task, s.start, s.end, Cause::Unknown, what, out);
            }
            State::Exited => {
                let what = What::Say("the thread has ended");
                self.push(task, s.start, s.end, Cause::Other, what, out);
            }
            State::Running { cpu } => self.running(task, s.start, s.end, cpu, out),
            State::Runnable { why, cpu } => self.runnable(task, s, why, cpu, out),
            State::Blocked(sleep) => self.blocked(task, s, &sleep, out),
        }
    }

    fn running(&self, task: Task, from: Nanos, to: Nanos, cpu: Option<Cpu>, out: &mut Vec<Piece>) {
        let tid = self.t.thread(task.thread).tid;
        let mut at = from;
        for irq in cpu
            .and_then(|c| self.t.cpu(c))
            .into_iter()
            .flat_map(|c| c.irqs(tid, from, to))
        {
            let start = irq.start.max(at);
            if start < irq.end {
                self.own_time(task, at, start, out);
                self.push(
                    task,
                    start,
                    irq.end,
                    Cause::Irq,
                    What::Irq(irq.context),
                    out,
                );
                at = irq.end;
            }
        }
        self.own_time(task, at, to, out);
    }

    /// Running, and not interrupted.
    fn own_time(&self, task: Task, from: Nanos, to: Nanos, out: &mut Vec<Piece>) {
        self.by_call(task, from, to, |seg, in_call| {
            if let Some((cause, what)) = in_call {
                return self.push(task, seg.start, seg.end, cause, what, out);
            }
            let mut at = seg.start;
            for stall in self.t.thread(task.thread).stalls(seg.start, seg.end) {
                let end = Nanos(stall.start.0 + stall.dur.0);
                let start = stall.start.max(at);
                if start < end {
                    self.own_code(task, at, start, seg.call, out);
                    let (cause, what) = match stall.kind {
                        StallKind::Reclaim => (Cause::Reclaim, "direct reclaim"),
                        StallKind::Compaction => (Cause::Reclaim, "compaction"),
                        StallKind::Yields => (Cause::Spin, "sched_yield, and nobody else to run"),
                    };
                    self.push(task, start, end, cause, What::Say(what), out);
                    at = end;
                }
            }
            self.own_code(task, at, seg.end, seg.call, out);
        });
    }

    /// Divides a part of the thread's time by what being inside a CUDA call makes of it; `None` leaves
    /// it to what the thread did otherwise.
    fn by_call(
        &self,
        task: Task,
        from: Nanos,
        to: Nanos,
        mut each: impl FnMut(Segment<'_>, Option<(Cause, What)>),
    ) {
        self.calls(task.thread).segments(from, to, |seg| {
            let Some(call) = seg.call else {
                return each(seg, None);
            };
            if let Some(cause) = calls::cause_of(call) {
                return each(seg, Some((cause, What::In(call.api()))));
            }
            // A first launch can load or compile its kernel: CUPTI says so in a record of its own.
            let mut at = seg.start;
            for o in self.overheads_in(&self.loading, task.thread, seg.start, seg.end) {
                let (start, end) = (o.start.max(at), o.end.min(seg.end));
                if start < end {
                    if at < start {
                        each(seg.part(at, start), None);
                    }
                    let found = Some((Cause::ModuleLoad, What::Overhead(o.kind)));
                    each(seg.part(start, end), found);
                    at = end;
                }
            }
            if at < seg.end {
                each(seg.part(at, seg.end), None);
            }
        });
    }

    fn own_code(
        &self,
        task: Task,
        from: Nanos,
        to: Nanos,
        call: Option<&Call>,
        out: &mut Vec<Piece>,
    ) {
        let (cause, what) = match (task.role, call) {
            (Role::Helper { loader: true }, _) => (Cause::DataLoading, What::Working),
            (Role::Helper { loader: false }, _) => (Cause::Compute, What::Working),
            (Role::Dispatcher, Some(call)) => (Cause::LaunchBound, What::In(call.api())),
            (Role::Dispatcher, None) => self.between_calls(task.thread, from),
        };
        let pid = self.t.pid(self.t.who(task.thread, from));
        let Some(moved) = self.to_host.get(&pid).filter(|_| call.is_none()) else {
            return self.by_samples(task, (from, to), call.is_some(), (cause, what), out);
        };
        moved.cut(from, to, |from, to, moves| {
            if moves {
                let what = What::Say("touching managed memory that was on the device");
                self.push(task, from, to, Cause::GpuUnifiedMemory, what, out);
            } else {
                self.by_samples(task, (from, to), false, (cause, what), out);
            }
        });
    }

    /// `own` is what it is if no sample says better.
    fn by_samples(
        &self,
        task: Task,
        (from, to): (Nanos, Nanos),
        in_launch: bool,
        own: (Cause, What),
        out: &mut Vec<Piece>,
    ) {
        let thread = self.t.thread(task.thread);
        let unbroken = |from, to| self.is_unbroken(task.thread, from, to);
        let unseen = if self.forks(task.thread, from, to) {
            Doing::Forking
        } else {
            Doing::Own
        };
        sampled::by_doing(
            self.t,
            thread,
            (from, to),
            unseen,
            unbroken,
            |start, end, doing| {
                let (cause, what) = match doing {
                    Doing::Reclaiming => (Cause::Reclaim, What::Say("reclaiming memory")),
                    Doing::Faulting => (Cause::PageFault, What::Say("reading a mapped file")),
                    Doing::Balancing => (
                        Cause::NumaBalancing,
                        What::Say("looking for memory to move to another NUMA node"),
                    ),
                    Doing::Forking => (
                        Cause::Subprocess,
                        What::Say("making a process, or copying memory that it shares with one"),
                    ),
                    // A loader that collects garbage is still late, and nobody does in a launch.
                    Doing::Collecting | Doing::Spinning if task.is_loader() || in_launch => own,
                    Doing::Collecting => (Cause::Gc, What::Say("collecting garbage")),
                    Doing::Spinning => (Cause::Spin, What::Say("spinning")),
                    Doing::Own => own,
                };
                self.push(task, start, end, cause, what, out);
            },
        );
    }

    /// It made a child process in a run that is not long enough to be sure of a sample.
    fn forks(&self, thread: ThreadIdx, from: Nanos, to: Nanos) -> bool {
        const PERIOD: Nanos = Nanos::from_millis(10);
        let births = self.births.get(&self.t.thread(thread).tid);
        to.saturating_sub(from) <= PERIOD
            && births.is_some_and(|times| {
                let next = times.get(times.partition_point(|&at| at < from));
                next.is_some_and(|&at| at < to)
            })
    }

    /// The thread neither slept nor called CUDA.
    fn is_unbroken(&self, thread: ThreadIdx, from: Nanos, to: Nanos) -> bool {
        const MOST: usize = 64;
        let awake = |s: Stretch| matches!(s.state, State::Running { .. } | State::Runnable { .. });
        let (called, _) = self.calls(thread).around(to);
        let mut states = self.t.thread(thread).states(from, to).take(MOST);
        called.is_none_or(|end| end <= from) && states.all(awake)
    }

    /// A short run between two calls is part of launching; a longer one is work of its own.
    fn between_calls(&self, thread: ThreadIdx, t: Nanos) -> (Cause, What) {
        let (before, next) = self.calls(thread).around(t);
        let what = next.map_or(What::Say("own code"), |c| What::Before(c.api()));
        let Some((end, next)) = before.zip(next) else {
            return (Cause::Compute, what);
        };
        let thread = self.t.thread(thread);
        let is_lost = |s: Stretch| {
            let losses = self.losses_that_matter(&s);
            losses.is_some_and(|l| l.overlaps(s.span.0, just_after(s.span.1)))
        };
        if thread.running_in(end, next.start, LAUNCH_SPACING) > LAUNCH_SPACING {
            (Cause::Compute, what)
        } else if next.start.saturating_sub(end) > LAUNCH_SPACING
            && !self.lost_anywhere.is_empty()
            && thread.states(end, next.start).any(is_lost)
        {
            // It may have run longer than is known.
            (Cause::UnknownMeasurement, What::Say(LOST))
        } else {
            (Cause::LaunchBound, what)
        }
    }

    /// One of our own processes, or the shim's thread.
    pub(super) fn is_gdiag(&self, who: Who) -> bool {
        is_gdiag(self.t.comm(who))
    }

    pub(super) fn is_profiler(&self, who: Who) -> bool {
        is_profiler(self.t.comm(who))
    }

    pub(super) fn blocked(&self, task: Task, s: &Stretch, sleep: &Sleep, out: &mut Vec<Piece>) {
        let asleep = self.describe_wait(task.thread, s, sleep);
        if let Wait::Stopped(how) = asleep.wait {
            let (cause, what) = self.stopped(task.thread, s, how, asleep.wake);
            return self.push_stack(task, s.start, s.end, cause, what, asleep.stack, out);
        }
        // A lock that another process holds is not the fault of the call that needs it.
        let me = self.t.pid(self.t.who(task.thread, s.start));
        let foreign = asleep.waker.is_some_and(|w| self.t.pid(w) != me);
        if asleep.wait == Wait::KernelLock && foreign {
            let (cause, what) = self.kernel_lock(task.thread, s, &asleep);
            return self.push_stack(task, s.start, s.end, cause, what, asleep.stack, out);
        }
        self.by_call(task, s.start, s.end, |seg, in_call| {
            let part = s.part(seg.start, seg.end);
            match in_call {
                Some((cause, what)) => {
                    self.push_stack(task, seg.start, seg.end, cause, what, asleep.stack, out);
                }
                None => self.asleep(task, &part, &asleep, out),
            }
        });
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn push_stack(
        &self,
        task: Task,
        start: Nanos,
        end: Nanos,
        cause: Cause,
        what: What,
        stack: StackId,
        out: &mut Vec<Piece>,
    ) {
        let before = out.len();
        self.push(task, start, end, cause, what, out);
        for piece in &mut out[before..] {
            piece.stack = stack;
        }
    }

    /// Everything known about a wait.
    pub(super) fn describe_wait(&self, thread: ThreadIdx, s: &Stretch, sleep: &Sleep) -> Asleep {
        let t = self.t;
        let record = t.thread(thread).wait_of(s);
        let stack = record.map_or(StackId::default(), |w| w.stack);
        let object = record.map_or_else(Default::default, |w| w.object);
        // A wait that began before the recording has its state in the record only.
        let known = Sleep {
            state: sleep.state.or(record.map(|w| w.state)),
            syscall: sleep.syscall.or(record.and_then(|w| w.syscall)),
            ..*sleep
        };
        let group = known.syscall.map(|nr| t.syscalls().group(nr));
        let traits: Traits = t.names().traits(stack);
        let state = known.state.unwrap_or(0);
        let wait = waits::classify(&known, group, Object::of(t.name(object)), traits);
        let wake = t.thread(thread).wake_of(s);
        let waker = wake.and_then(|w| self.ended_by(w, object));
        Asleep {
            wait,
            interruptible: state & waits::INTERRUPTIBLE != 0,
            syscall: known.syscall,
            object,
            stack,
            frame: t.names().telling_frame(stack),
            wake,
            waker,
        }
    }

    fn stopped(
        &self,
        thread: ThreadIdx,
        s: &Stretch,
        how: Stop,
        wake: Option<Wake>,
    ) -> (Cause, What) {
        let t = self.t;
        let by_wake = wake.and_then(|w| walk::task_waker(t, w));
        let by = match how {
            Stop::Signal => walk::stop_sender(t, t.who(thread, s.start), s.span.0).or(by_wake),
            Stop::Tracer | Stop::Freezer => by_wake,
        };
        let profiler = by.is_some_and(|w| self.is_profiler(w));
        let cause = if profiler {
            Cause::Observer
        } else {
            Cause::Stopped
        };
        (cause, What::Stopped { how, by })
    }
}

/// Who touches page after page is in its faults all the time: a record is of the move alone.
fn to_host(t: &Timeline) -> FxHashMap<Pid, Intervals> {
    const SERIES: Nanos = Nanos::from_micros(200);
    let mut lists: FxHashMap<Pid, Vec<(Nanos, Nanos)>> = FxHashMap::default();
    for m in t.gpu().migrations() {
        if m.kind != MigrationKind::ToHost {
            continue;
        }
        let list = lists.entry(m.pid).or_default();
        match list.last_mut() {
            Some(last) if m.start.saturating_sub(last.1) <= SERIES => last.1 = last.1.max(m.end),
            Some(_) | None => list.push((m.start, m.end)),
        }
    }
    let union = |(pid, list)| (pid, Intervals::union_of(list));
    lists.into_iter().map(union).collect()
}

/// What a thread was asleep in, and who woke it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    pub(super) wait: Wait,
    pub(super) interruptible: bool,
    pub(super) syscall: Option<u16>,
    pub(super) object: crate::event::NameId,
    pub(super) stack: StackId,
    pub(super) frame: crate::event::NameId,
    pub(super) wake: Option<Wake>,
    /// The thread that ended it, when it was not an interrupt that did.
    pub(super) waker: Option<Who>,
}

impl Asleep {
    pub(super) fn what(&self) -> What {
        What::Wait {
            syscall: self.syscall,
            object: self.object,
            frame: self.frame,
        }
    }
}

/// Our own processes and the shim's thread.
pub(super) fn is_gdiag(comm: &str) -> bool {
    comm == "gdiag" || comm.starts_with("gdiag-")
}

/// Programs that stop others, or take their locks, in order to look at them.
fn is_profiler(comm: &str) -> bool {
    const NAMES: [&str; 7] = [
        "py-spy",
        "austin",
        "austinp",
        "perf",
        "nsys",
        "pyroscope",
        "samply",
    ];
    let is = |name: &&str| {
        let rest = comm.strip_prefix(*name);
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    is_gdiag(comm) || NAMES.iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profiler_is_not_all_that_begins_like_one() {
        for comm in ["perf", "perf-exec", "py-spy", "nsys-launcher", "gdiag"] {
            assert!(is_profiler(comm), "{comm}");
        }
        for comm in ["performer", "perfetto", "augustin", "sampler"] {
            assert!(!is_profiler(comm), "{comm}");
        }
    }
}
