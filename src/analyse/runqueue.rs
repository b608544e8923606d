//! Ready to run, and without a CPU: who had it.
//!
//! The first that matches decides: the cgroup's quota, a CPU that the thread gave away itself, then
//! whoever ran on its CPU meanwhile. The short way from the waking to the CPU belongs to the wait.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::partition::{is_gdiag, Engine, Task};
use crate::analyse::walk;
use crate::analyse::what::{Piece, What};
use crate::event::{Cpu, Tid};
use crate::model::cpu::CpuLog;
use crate::model::thread::{State, Stretch, ThreadIdx, Who, Why};
use crate::units::Nanos;

/// A CPU that takes longer than this to get going for a woken thread woke slowly.
const SLOW_WAKE: Nanos = Nanos::from_micros(50);

impl Engine<'_> {
    pub(super) fn runnable(
        &self,
        task: Task,
        s: &Stretch,
        why: Why,
        cpu: Option<Cpu>,
        out: &mut Vec<Piece>,
    ) {
        match why {
            Why::Throttled => {
                let what = What::Say("the CPU quota of its cgroup is used up");
                return self.push(task, s.start, s.end, Cause::Throttled, what, out);
            }
            Why::Yielded => {
                return self.push(
                    task,
                    s.start,
                    s.end,
                    Cause::Spin,
                    What::Say("sched_yield"),
                    out,
                );
            }
            Why::Woken | Why::Preempted | Why::New => {}
        }
        let Some(log) = cpu.and_then(|c| self.t.cpu(c)) else {
            let what = What::Say("runnable; for which CPU was not recorded");
            return self.push(task, s.start, s.end, Cause::Unknown, what, out);
        };
        let thread = self.t.thread(task.thread);
        // A preempted thread that comes back elsewhere was moved when its CPU had no more to run.
        let moved_to = thread.cpu_after(s).filter(|&after| Some(after) != cpu);
        // Its own switch-out is recorded; a waking is not a switch, and what came before it may be missing.
        for ran in log.ran(s.start, s.end, s.span.0) {
            let idle = ran.tid == Some(Tid(0));
            let elsewhere = moved_to.filter(|_| idle && why == Why::Preempted);
            let elsewhere = match ran.tid {
                None => self
                    .only_other_followed(log, ran.start, ran.end)
                    .map(|other| (other, ran.start)),
                Some(_) => elsewhere
                    .and_then(|c| self.t.cpu(c))
                    .map(|other| (other, Nanos::ZERO)),
            };
            match elsewhere {
                Some((other, watched)) => {
                    for ran in other.ran(ran.start, ran.end, watched) {
                        self.waited_for_cpu(task, &s.part(ran.start, ran.end), why, ran.tid, out);
                    }
                }
                None => self.waited_for_cpu(task, &s.part(ran.start, ran.end), why, ran.tid, out),
            }
        }
    }

    /// All switches on a CPU that a target waits for are recorded. Where some of `log`'s are missing, a
    /// thread that came back to it waited for another CPU: for the one that was followed, if there is one.
    fn only_other_followed(&self, log: &CpuLog, from: Nanos, to: Nanos) -> Option<&CpuLog> {
        let mut others = self
            .t
            .cpus()
            .iter()
            .filter(|other| !std::ptr::eq(*other, log) && other.is_followed(from, to));
        others.next().filter(|_| others.next().is_none())
    }

    /// Runnable while `ran` had the CPU.
    fn waited_for_cpu(
        &self,
        task: Task,
        s: &Stretch,
        why: Why,
        ran: Option<Tid>,
        out: &mut Vec<Piece>,
    ) {
        let thread = self.t.thread(task.thread);
        let short = s.len() < SLOW_WAKE;
        match ran {
            Some(tid) if tid.0 != 0 && tid != thread.tid => {
                let other = self.t.find(tid).map(|other| self.t.who(other, s.start));
                let helper = other.and_then(|other| self.gives_way(task, other, s));
                if let Some(helper) = helper {
                    return self.explain(helper, s.start, s.end, out);
                }
                let (cause, what) = self.ran_instead(task.thread, tid, s);
                self.push(task, s.start, s.end, cause, what, out);
            }
            Some(_) | None if short => self.scheduling_tail(task, s, out),
            Some(_) => {
                const AROUND: Nanos = Nanos::from_millis(200);
                let quota = s.len() >= Nanos::from_millis(1)
                    && thread.throttled_near(
                        s.start.saturating_sub(AROUND),
                        Nanos(s.end.0.saturating_add(AROUND.0)),
                    );
                let (cause, what) = match (quota, why) {
                    (true, _) => (Cause::Throttled, "the CPU quota of its cgroup is used up"),
                    (false, Why::Woken | Why::New) => (Cause::CpuWakeup, "the CPU was idle"),
                    (false, Why::Preempted | Why::Yielded | Why::Throttled) => {
                        (Cause::Unknown, "runnable, and its CPU was idle")
                    }
                };
                self.push(task, s.start, s.end, cause, What::Say(what), out);
            }
            None => {
                let what = What::Say("runnable; who had the CPU was not recorded");
                self.push(task, s.start, s.end, Cause::Unknown, what, out);
            }
        }
    }

    /// Who had the CPU decides: ourselves, interrupts, the same job, or a foreign program.
    fn ran_instead(&self, victim: ThreadIdx, tid: Tid, s: &Stretch) -> (Cause, What) {
        let at = s.start;
        let Some(idx) = self.t.find(tid) else {
            return (Cause::Preempted, What::RanTid(tid));
        };
        let who = self.t.who(idx, at);
        let comm = self.t.comm(who);
        let cause = if is_gdiag(comm) {
            Cause::Observer
        } else if comm.starts_with("ksoftirqd/") {
            Cause::Irq
        } else if self.same_job(self.t.who(victim, at), who) {
            if self.is_packed(victim, s) {
                Cause::Affinity
            } else {
                Cause::Oversubscribed
            }
        } else {
            Cause::Preempted
        };
        (cause, What::Ran(who))
    }

    /// There was a CPU for it among those that it may not use: when this wait ended, or, as that is one
    /// moment of one wait, for most of the time that it waited.
    fn is_packed(&self, victim: ThreadIdx, s: &Stretch) -> bool {
        let thread = self.t.thread(victim);
        match thread.cpu_wait_in(s.span.0, s.span.1) {
            Some(wait) if wait.allowed >= wait.online => false,
            Some(wait) if wait.idle > 0 => true,
            Some(_) => thread.is_usually_packed(),
            None => false,
        }
    }

    fn same_job(&self, a: Who, b: Who) -> bool {
        let t = self.t;
        if t.pid(a) == t.pid(b) {
            return true;
        }
        if !t.meta().is_one_job() {
            return walk::descends_from(t, b, t.pid(a)) || walk::descends_from(t, a, t.pid(b));
        }
        // A helper that was found by following wakers works for the job.
        let followed = |who: Who| t.thread(who.thread).is_followed();
        let target = |who| t.identity(who).is_some_and(|i| i.target && !i.kthread);
        (target(a) || followed(a)) && target(b)
    }

    /// The short time from the waking to the CPU belongs to the wait.
    fn scheduling_tail(&self, task: Task, s: &Stretch, out: &mut Vec<Piece>) {
        if let Some(last) = out.last().copied().filter(|p| p.end == s.start) {
            out.push(Piece {
                start: s.start,
                end: s.end,
                ..last
            });
            return;
        }
        let thread = self.t.thread(task.thread);
        let mut before = Vec::new();
        if let Some(sleep) = thread.sleep_before(s) {
            if let State::Blocked(state) = sleep.state {
                let last_ns = sleep.end.saturating_sub(Nanos(1));
                self.blocked(task, &sleep.part(last_ns, sleep.end), &state, &mut before);
            }
        }
        let (cause, what) = match (before.last(), thread.preemptor(s)) {
            (Some(p), _) => (p.cause, p.what),
            (None, Some(tid)) if tid.0 != 0 => self.ran_instead(task.thread, tid, s),
            (None, _) => (Cause::Unknown, What::Say("runnable")),
        };
        self.push(task, s.start, s.end, cause, what, out);
    }
}
