//! Who a sleeping thread waited for.
//!
//! Locks, children and the kernel's own waits end the walk: their mechanism is the cause, and
//! the holder is evidence. Waits for data pass through to the thread that delivered
//! it, and take what that thread was doing in the same time.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::intervals::Intervals;
use crate::analyse::partition::{Asleep, Engine, Role, Task};
use crate::analyse::waits::Wait;
use crate::analyse::what::{Piece, What};
use crate::event::{Context, Pid, Signal, Tid};
use crate::model::frames::CallTraits;
use crate::model::syscall::Group;
use crate::model::thread::{State, Stretch, ThreadIdx, Wake, Who};
use crate::model::Timeline;
use crate::units::Nanos;

/// Python's default switch interval: a waiter for the interpreter lock wakes up this often to ask for it.
const SWITCH_INTERVAL: (Nanos, Nanos) = (Nanos::from_micros(4_500), Nanos::from_micros(6_500));

/// Between two waits of one series a thread runs no longer than this.
const SERIES_SPACING: Nanos = Nanos::from_micros(200);

/// A helper that was woken so shortly before the wait answers a request.
const REQUEST: Nanos = Nanos::from_micros(200);

impl Engine<'_> {
    /// Asleep outside of the CUDA calls that explain a sleep.
    pub(super) fn asleep(&self, task: Task, s: &Stretch, asleep: &Asleep, out: &mut Vec<Piece>) {
        let plain = |cause, out: &mut Vec<Piece>| {
            self.push_stack(
                task,
                s.start,
                s.end,
                cause,
                asleep.what(),
                asleep.stack,
                out,
            );
        };
        match asleep.wait {
            Wait::Reclaim => plain(Cause::Reclaim, out),
            Wait::KernelLock => plain(Cause::KernelLock, out),
            Wait::Driver => plain(Cause::CudaApi, out),
            Wait::PageFault => plain(Cause::PageFault, out),
            Wait::DiskRead => plain(Cause::DiskRead, out),
            Wait::DiskWrite => plain(Cause::DiskWrite, out),
            Wait::Sleep => plain(Cause::Sleep, out),
            Wait::Child => plain(Cause::Subprocess, out),
            Wait::Accept => plain(Cause::NoDemand, out),
            Wait::Stopped(_) => plain(Cause::Stopped, out),
            Wait::Futex => self.futex(task, s, asleep, out),
            Wait::Network => match asleep.waker {
                Some(peer) => self.through(task, s, asleep, peer, Cause::Network, out),
                None => plain(Cause::Network, out),
            },
            Wait::Pipe => match asleep.waker {
                Some(writer) => self.through(task, s, asleep, writer, Cause::Other, out),
                None => self.unfinished(task, s, asleep, Cause::Other, out),
            },
            Wait::Poll | Wait::Epoll => self.polled(task, s, asleep, out),
            Wait::Other => self.unfinished(task, s, asleep, Cause::Other, out),
        }
    }

    /// A wait that cannot be followed further: of a loader it is still the loader's time.
    fn unfinished(
        &self,
        task: Task,
        s: &Stretch,
        asleep: &Asleep,
        cause: Cause,
        out: &mut Vec<Piece>,
    ) {
        let cause = match task.role {
            Role::Helper { loader: true } => Cause::DataLoading,
            Role::Helper { loader: false } | Role::Dispatcher => cause,
        };
        self.push_stack(
            task,
            s.start,
            s.end,
            cause,
            asleep.what(),
            asleep.stack,
            out,
        );
    }

    /// Replaces the wait by what `waker` did meanwhile. `outside` is the cause when the waker is not
    /// part of the recording.
    fn through(
        &self,
        task: Task,
        s: &Stretch,
        asleep: &Asleep,
        waker: Who,
        outside: Cause,
        out: &mut Vec<Piece>,
    ) {
        let helper = self.t.thread(waker.thread);
        if !helper.is_target() || waker.thread == task.thread {
            let what = What::Lock {
                holder: Some(waker),
                object: asleep.object,
            };
            let what = if outside == Cause::Other {
                asleep.what()
            } else {
                what
            };
            return self.push_stack(task, s.start, s.end, outside, what, asleep.stack, out);
        }
        if task.depth == 0 {
            return self.unfinished(task, s, asleep, Cause::Other, out);
        }
        // A thread that launches work itself is judged like the dispatcher.
        let role = if helper.launches > 0 {
            Role::Dispatcher
        } else {
            Role::Helper {
                loader: self.is_loader(task.thread, waker, s)
                    || self.waits_for_loader(task.thread, waker, s),
            }
        };
        let helper = Task {
            thread: waker.thread,
            role,
            depth: task.depth - 1,
        };
        // A thread that was born meanwhile could not be late before. Its process's main thread
        // could: it had to make it.
        let identity = self.t.identity(waker);
        let born = identity.map_or(s.start, |id| id.start.clamp(s.start, s.end));
        let main = identity
            .and_then(|id| self.t.find(Tid(id.pid.0)))
            .filter(|&main| main != waker.thread && main != task.thread);
        if born > s.start {
            let thread = main.unwrap_or(helper.thread);
            self.explain(Task { thread, ..helper }, s.start, born, out);
        }
        if born < s.end {
            self.explain(helper, born, s.end, out);
        }
    }

    fn futex(&self, task: Task, s: &Stretch, asleep: &Asleep, out: &mut Vec<Piece>) {
        let takes_gil = self.takes_gil(task.thread, s);
        let waker = self.waker_at_last(task.thread, s, asleep, Group::Futex);
        let released = waker.and_then(|w| task_waker(self.t, w));
        if takes_gil == Some(true) && !released.is_some_and(|w| self.is_gdiag(w)) {
            // Who held it when a wait timed out is in the sample; the last of a series is ended by the holder.
            let held = asleep.waker.or_else(|| self.gil_holder(task.thread, s));
            let what = What::Lock {
                holder: held.or(released),
                object: asleep.object,
            };
            return self.push_stack(task, s.start, s.end, Cause::Gil, what, asleep.stack, out);
        }
        let Some(holder) = released else {
            return self.unfinished(task, s, asleep, Cause::Other, out);
        };
        let me = self.t.pid(self.t.who(task.thread, s.start));
        let same_process = self.t.pid(holder) == me;
        let cause = if self.is_gdiag(holder) {
            Cause::Observer
        } else if takes_gil.is_none() && self.is_interpreter_lock(task.thread, s) {
            Cause::Gil
        } else {
            Cause::Lock
        };
        // Threads that launch hand work to each other, as the autograd thread and its caller do: asleep
        // outside of any call, they wait for that and not for a lock. So do those that wait
        // for a loader; and another process cannot hold a lock of this one.
        let in_call = self.calls(task.thread).innermost(s.start).is_some();
        let hands_over = self.t.thread(holder.thread).launches > 0 && !in_call;
        let delivers = self.is_loader(task.thread, holder, s)
            || (same_process && self.waits_for_loader(task.thread, holder, s));
        if cause == Cause::Lock && (hands_over || delivers || !same_process) {
            return self.through(task, s, asleep, holder, Cause::Other, out);
        }
        let what = What::Lock {
            holder: Some(holder),
            object: asleep.object,
        };
        self.push_stack(task, s.start, s.end, cause, what, asleep.stack, out);
    }

    fn polled(&self, task: Task, s: &Stretch, asleep: &Asleep, out: &mut Vec<Piece>) {
        let epoll = asleep.wait == Wait::Epoll;
        let group = if epoll { Group::Epoll } else { Group::Poll };
        let wake = self.waker_at_last(task.thread, s, asleep, group);
        let cause = match wake.map(|w| (w, w.context)) {
            Some((wake, Context::Task)) => match task_waker(self.t, wake) {
                Some(peer) => {
                    return self.through(task, s, asleep, peer, Cause::NoDemand, out);
                }
                None => Cause::Other,
            },
            // Servers wait for requests in epoll; a client that waits for its answer polls one socket.
            Some((_, Context::SoftIrq(_))) if epoll => Cause::NoDemand,
            Some((_, Context::SoftIrq(_))) => Cause::Network,
            Some((_, Context::HardIrq(_) | Context::Timer)) => Cause::Other,
            None if epoll => Cause::NoDemand,
            None => Cause::Other,
        };
        self.unfinished(task, s, asleep, cause, out);
    }

    /// Who ended the wait. A wait that timed out and was taken up again at once ends with the
    /// last of the series.
    fn waker_at_last(
        &self,
        thread: ThreadIdx,
        s: &Stretch,
        asleep: &Asleep,
        group: Group,
    ) -> Option<Wake> {
        const LONGEST_SERIES: usize = 64;
        let ended = |w: &Wake| w.context != Context::Timer;
        if let Some(wake) = asleep.wake.filter(ended) {
            return Some(wake);
        }
        let t = self.t;
        let mut between = Nanos::ZERO;
        for next in t
            .thread(thread)
            .states(s.span.1, Nanos::MAX)
            .take(LONGEST_SERIES)
        {
            match next.state {
                State::Running { .. } | State::Runnable { .. } => {
                    between = Nanos(between.0.saturating_add(next.len().0));
                    if between > SERIES_SPACING {
                        break;
                    }
                }
                State::Blocked(sleep) => {
                    let nr = sleep.syscall?;
                    if t.syscalls().group(nr) != group {
                        break;
                    }
                    match t.thread(thread).wake_of(&next) {
                        Some(wake) if ended(&wake) => return Some(wake),
                        Some(_) => between = Nanos::ZERO,
                        None => break,
                    }
                }
                State::Unknown | State::Exited => break,
            }
        }
        asleep.wake
    }

    /// Was the thread asleep in a futex for the interpreter lock? `None`: there is no stack of the wait, or
    /// one that does not tell.
    fn takes_gil(&self, thread: ThreadIdx, s: &Stretch) -> Option<bool> {
        let sample = self.t.thread(thread).off_stack(s.span.0)?;
        let traits = self.t.names().call_traits(sample.user);
        let told = traits.has(CallTraits::TAKES_GIL | CallTraits::NAMED);
        told.then_some(traits.has(CallTraits::TAKES_GIL))
    }

    /// Who held the interpreter lock when the thread ran again.
    fn gil_holder(&self, thread: ThreadIdx, s: &Stretch) -> Option<Who> {
        let t = self.t;
        let sample = t.thread(thread).off_stack(s.span.0)?;
        let holder = t.find(sample.gil()?).filter(|&h| h != thread)?;
        Some(t.who(holder, sample.ts))
    }

    /// A waiter for Python's interpreter lock asks for it every 5 ms: the wait is a series of such
    /// episodes. An ordinary lock is waited for in one go.
    fn is_interpreter_lock(&self, thread: ThreadIdx, s: &Stretch) -> bool {
        const REACH: Nanos = Nanos::from_millis(12);
        let t = self.t;
        let pid = t.pid(t.who(thread, s.start));
        if !is_python(t, t.who(thread, s.start), pid) {
            return false;
        }
        let from = s.span.0.saturating_sub(REACH);
        let to = Nanos(s.span.1 .0.saturating_add(REACH.0));
        let waits = || {
            t.thread(thread)
                .states(from, to)
                .filter(|s| self.is_futex(s))
        };
        self.switch_intervals(thread).overlaps(from, to) && waits().nth(1).is_some()
    }

    /// When the thread was in a futex for as long as a waiter for the interpreter lock is. Found once
    /// for each thread: one that hands over all the time has thousands of waits in reach of each.
    fn switch_intervals(&self, thread: ThreadIdx) -> &Intervals {
        self.switch_intervals[thread.0 as usize].get_or_init(|| {
            let states = self.t.thread(thread).states(Nanos::ZERO, Nanos::MAX);
            let list = states.filter_map(|s| {
                let (from, to) = s.span;
                let len = to.saturating_sub(from);
                let fits = SWITCH_INTERVAL.0 <= len && len <= SWITCH_INTERVAL.1;
                (fits && self.is_futex(&s)).then_some((from, to))
            });
            Intervals::union_of(list.collect())
        })
    }

    fn is_futex(&self, s: &Stretch) -> bool {
        match &s.state {
            State::Blocked(sleep) => sleep
                .syscall
                .is_some_and(|nr| self.t.syscalls().group(nr) == Group::Futex),
            State::Unknown | State::Running { .. } | State::Runnable { .. } | State::Exited => {
                false
            }
        }
    }

    /// Does `waker` load data for the job of `dispatcher`?
    fn is_loader(&self, dispatcher: ThreadIdx, waker: Who, s: &Stretch) -> bool {
        let t = self.t;
        if t.thread(waker.thread).launches > 0 {
            return false;
        }
        if is_loader_name(t.comm(waker)) {
            return true;
        }
        let job = t.pid(t.who(dispatcher, s.start));
        let process = t.pid(waker);
        process != job
            && !self.launching.contains(&process)
            && descends_from(t, waker, job)
            && !self.answers_request(dispatcher, waker, s)
    }

    /// The helper slept until the waiting process itself woke it, just before the wait: it was asked
    /// something. A loader works ahead.
    fn answers_request(&self, dispatcher: ThreadIdx, helper: Who, s: &Stretch) -> bool {
        let t = self.t;
        let job = t.pid(t.who(dispatcher, s.start));
        let wait = s.span.0;
        let from = wait.saturating_sub(REQUEST);
        let to = Nanos(wait.0.saturating_add(REQUEST.0));
        t.thread(helper.thread).states(from, to).any(|h| {
            let State::Runnable { .. } = h.state else {
                return false;
            };
            let wake = t.thread(helper.thread).wake_of(&h);
            wake.filter(|w| from <= w.at && w.at <= to)
                .and_then(|w| task_waker(t, w))
                .is_some_and(|w| t.pid(w) == job)
        })
    }

    /// A thread that hands on what a loader delivers, such as one that pins memory, spends its time
    /// waiting for the loader.
    fn waits_for_loader(&self, dispatcher: ThreadIdx, waker: Who, s: &Stretch) -> bool {
        let t = self.t;
        if t.thread(waker.thread).launches > 0 {
            return false;
        }
        let mut waited = Nanos::ZERO;
        for h in t.thread(waker.thread).states(s.start, s.end) {
            let State::Blocked(sleep) = &h.state else {
                continue;
            };
            let asleep = self.describe_wait(waker.thread, &h, sleep);
            let for_data = matches!(
                asleep.wait,
                Wait::Pipe | Wait::Poll | Wait::Epoll | Wait::Network
            );
            if for_data
                && asleep
                    .waker
                    .is_some_and(|w| self.is_loader(dispatcher, w, &h))
            {
                waited = Nanos(waited.0.saturating_add(h.len().0));
            }
        }
        waited.0 > s.len().0 / 2
    }
}

/// The thread that woke, unless it was an interrupt that did.
pub(super) fn task_waker(t: &Timeline, wake: Wake) -> Option<Who> {
    match wake.context {
        Context::Task if wake.waker != Tid(0) => {
            let thread = t.find(wake.waker)?;
            Some(t.who(thread, wake.at))
        }
        Context::Task | Context::HardIrq(_) | Context::SoftIrq(_) | Context::Timer => None,
    }
}

/// Is `pid` a parent, grandparent, … of the thread's process?
pub(super) fn descends_from(t: &Timeline, who: Who, pid: Pid) -> bool {
    const DEEPEST: usize = 16;
    let mut parent = t.identity(who).map(|i| i.ppid);
    for _ in 0..DEEPEST {
        match parent {
            Some(p) if p == pid => return true,
            Some(p) if p.0 > 1 => {
                let leader = t.find(Tid(p.0));
                parent = leader
                    .and_then(|l| t.thread(l).identities().last())
                    .map(|i| i.ppid);
            }
            Some(_) | None => return false,
        }
    }
    false
}

/// Who sent the signal that stopped the process at about `at`.
pub(super) fn stop_sender(t: &Timeline, stopped: Who, at: Nanos) -> Option<Who> {
    const LATE: u64 = 1_000_000;
    let pid = t.pid(stopped);
    let signals = t.signals();
    let upto = signals.partition_point(|s| s.ts.0 <= at.0.saturating_add(LATE));
    let signal = signals[..upto].iter().rev().find(|s| {
        let receiver = t.find(s.receiver).map(|r| t.pid(t.who(r, s.ts)));
        s.signal != Signal::CONT && receiver.unwrap_or(Pid(s.receiver.0)) == pid
    })?;
    let sender = t.find(signal.sender)?;
    Some(t.who(sender, signal.ts))
}

fn is_loader_name(comm: &str) -> bool {
    const PARTS: [&str; 5] = [
        "pt_data_",
        "dataload",
        "data_worker",
        "data_loader",
        "tf_data",
    ];
    let comm = comm.to_ascii_lowercase();
    PARTS.iter().any(|p| comm.contains(p)) || comm.starts_with("dali")
}

fn is_python(t: &Timeline, who: Who, pid: Pid) -> bool {
    let said = |id| t.name(id).contains("python");
    t.comm(who).starts_with("python")
        || t.process(pid)
            .is_some_and(|p| said(p.exe) || said(p.cmdline))
}
