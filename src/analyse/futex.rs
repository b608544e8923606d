//! Asleep in a futex: for a lock, for the interpreter lock, or until another thread has something.
//!
//! The system call is the same for all of them. The program's own stack tells them apart, where there
//! is one; without, what is known of the threads.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::intervals::Intervals;
use crate::analyse::partition::{Asleep, Engine, Task};
use crate::analyse::walk::{task_waker, unfinished, Verdict};
use crate::analyse::what::What;
use crate::event::{Context, Pid};
use crate::model::frames::CallTraits;
use crate::model::syscall::Group;
use crate::model::thread::{State, Stretch, ThreadIdx, Who};
use crate::model::Timeline;
use crate::units::Nanos;

/// Python's default switch interval: a waiter for the interpreter lock wakes up this often to ask for it.
const SWITCH_INTERVAL: (Nanos, Nanos) = (Nanos::from_micros(4_500), Nanos::from_micros(6_500));

/// What a thread waits for in a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    InterpreterLock,
    Lock,
    /// Another thread, which has something for it.
    Thread,
}

impl Engine<'_> {
    pub(super) fn futex(&self, task: Task, s: &Stretch, asleep: &Asleep) -> Verdict {
        let wake = self.waker_at_last(task.thread, s, asleep, Group::Futex);
        let released = wake.and_then(|w| task_waker(self.t, w));
        let lock = |cause, holder| {
            let object = asleep.object;
            Verdict::Is(cause, What::Lock { holder, object })
        };
        if let Some(holder) = released.filter(|&w| self.is_gdiag(w)) {
            return lock(Cause::Observer, Some(holder));
        }
        // What a call into the driver waits for is a lock as seen from outside, however it is made.
        let in_call = self.calls(task.thread).innermost(s.start).is_some();
        match self.waits_in_futex(task.thread, s) {
            Some(For::InterpreterLock) => {
                // Who held it when a wait timed out is in the sample; the last of a series is ended by the holder.
                let held = asleep.waker.or_else(|| self.gil_holder(task.thread, s));
                return lock(Cause::Gil, held.or(released));
            }
            Some(For::Lock) => return lock(Cause::Lock, released),
            Some(For::Thread) | None => {}
        }
        let Some(holder) = released else {
            let timed_out = wake.is_some_and(|w| w.context == Context::Timer);
            // Nothing came until the time that it had set itself.
            let cause = if timed_out {
                Cause::Sleep
            } else {
                Cause::Other
            };
            return unfinished(task, cause, asleep);
        };
        // Threads that launch hand work to each other, as the autograd thread and its caller do: asleep
        // outside of any call, they wait for that and not for a lock. So do those that wait
        // for a loader; and another process cannot hold a lock of this one.
        let me = self.t.pid(self.t.who(task.thread, s.start));
        let same_process = self.t.pid(holder) == me;
        let hands_over = !in_call
            && (self.waits_in_futex(task.thread, s) == Some(For::Thread)
                || self.t.thread(holder.thread).launches > 0);
        let delivers = self.is_loader(task.thread, holder, s)
            || (same_process
                && (task.is_loader() || self.waits_for_loader(task.thread, holder, s)));
        if hands_over || delivers || !same_process {
            return self.waits_for(task, s, asleep, holder);
        }
        lock(Cause::Lock, Some(holder))
    }

    /// Rather than for what another thread has for it.
    pub(super) fn waits_for_lock(&self, thread: ThreadIdx, s: &Stretch) -> bool {
        let lock = |what| matches!(what, For::InterpreterLock | For::Lock);
        self.is_futex(s) && self.waits_in_futex(thread, s).is_some_and(lock)
    }

    /// By the program's stack, by the times of the waits for an interpreter lock, or else by what the
    /// thread's other waits were for.
    fn waits_in_futex(&self, thread: ThreadIdx, s: &Stretch) -> Option<For> {
        let frames = self.frames_of_wait(thread, s).unwrap_or_default();
        says(frames)
            .or_else(|| {
                let may_be = !frames.has(CallTraits::NAMED) && self.is_interpreter_lock(thread, s);
                may_be.then_some(For::InterpreterLock)
            })
            .or_else(|| self.usual_futex(thread))
    }

    /// What the thread nearly always waits for: before gdiag knows a program, stacks are cut.
    fn usual_futex(&self, thread: ThreadIdx) -> Option<For> {
        /// So many more of one kind leave no doubt.
        const CLEARLY: usize = 4;
        *self.usual_futex[thread.0 as usize].get_or_init(|| {
            let samples = self.t.thread(thread).samples().iter();
            let waits = samples.filter(|s| s.off_since().is_some());
            let (mut threads, mut locks) = (0, 0);
            for sample in waits {
                match says(self.t.names().call_traits(sample.user)) {
                    Some(For::Thread) => threads += 1,
                    Some(For::Lock) => locks += 1,
                    Some(For::InterpreterLock) | None => {}
                }
            }
            if threads > locks * CLEARLY {
                Some(For::Thread)
            } else {
                (locks > threads * CLEARLY).then_some(For::Lock)
            }
        })
    }

    /// Where in its program the thread fell asleep.
    fn frames_of_wait(&self, thread: ThreadIdx, s: &Stretch) -> Option<CallTraits> {
        let sample = self.t.thread(thread).off_stack(s.span.0)?;
        Some(self.t.names().call_traits(sample.user))
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
        // It never waits for longer in one go.
        let long = s.span.1.saturating_sub(s.span.0) > SWITCH_INTERVAL.1;
        if long || !is_python(t, t.who(thread, s.start), pid) {
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
                // It asks again when nobody gave it the lock.
                let wake = self.t.thread(thread).wake_of(&s);
                let timed_out = wake.is_some_and(|w| w.context == Context::Timer);
                (fits && timed_out && self.is_futex(&s)).then_some((from, to))
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
}

fn says(frames: CallTraits) -> Option<For> {
    if frames.has(CallTraits::TAKES_GIL) {
        Some(For::InterpreterLock)
    } else if frames.has(CallTraits::HANDED_TO) {
        Some(For::Thread)
    } else if frames.has(CallTraits::LOCKS) {
        Some(For::Lock)
    } else {
        None
    }
}

fn is_python(t: &Timeline, who: Who, pid: Pid) -> bool {
    let said = |id| t.name(id).contains("python");
    t.comm(who).starts_with("python")
        || t.process(pid)
            .is_some_and(|p| said(p.exe) || said(p.cmdline))
}
