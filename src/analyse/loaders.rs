//! Who loads data for a job.
#![forbid(unsafe_code)]

use crate::analyse::partition::{Engine, Task};
use crate::analyse::waits::Wait;
use crate::analyse::walk::{descends_from, task_waker, NET_RX};
use crate::event::Context;
use crate::model::thread::{State, Stretch, ThreadIdx, Wake, Who};
use crate::model::Timeline;
use crate::units::Nanos;

/// Who asks and waits runs no longer in between, and calls no CUDA.
const REQUEST: Nanos = Nanos::from_millis(2);

/// Nor is it without a CPU for longer.
const PREEMPTED: Nanos = Nanos::from_millis(50);

impl Engine<'_> {
    /// Does `waker` load data for the job of `dispatcher`?
    pub(super) fn is_loader(&self, dispatcher: ThreadIdx, waker: Who, s: &Stretch) -> bool {
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
            && !self.is_asked(dispatcher, waker, s)
    }

    /// A thread of the launching thread's process that nobody asked: it loads, or works ahead otherwise.
    pub(super) fn works_ahead(&self, waiter: ThreadIdx, by: Who, s: &Stretch) -> bool {
        self.t.thread(waiter).launches > 0 && !self.is_asked(waiter, by, s)
    }

    /// It answers a request, this time or often: one that did not sleep yet needs no waking.
    fn is_asked(&self, waiter: ThreadIdx, helper: Who, s: &Stretch) -> bool {
        self.answers_request(waiter, helper, s) || self.often_answers(waiter, helper)
    }

    /// Having woken `helper`, the thread lost its CPU to it: that is no contest, since what it does next is
    /// to wait for the answer, as it does at other times.
    pub(super) fn gives_way(&self, task: Task, helper: Who, s: &Stretch) -> Option<Task> {
        let followed = self.t.thread(helper.thread).is_followed();
        let asked = followed
            && !task.waits(helper.thread)
            && self.often_answers(task.thread, helper)
            && self.answers_request(task.thread, helper, s);
        let role = asked.then(|| self.role_of(task, helper, s))?;
        task.helper(helper.thread, role)
    }

    fn often_answers(&self, waiter: ThreadIdx, helper: Who) -> bool {
        let pair = (waiter, helper.thread);
        let known = self.asked.borrow().get(&pair).copied();
        known.unwrap_or_else(|| {
            let often = self.count_answers(waiter, helper);
            self.asked.borrow_mut().insert(pair, often);
            often
        })
    }

    /// Many waits of the one for the other are for an answer.
    fn count_answers(&self, waiter: ThreadIdx, helper: Who) -> bool {
        /// Waits that are looked at, among so many states; one of so many is enough, since a loader that is late
        /// never sleeps.
        const MOST: usize = 200;
        const STATES: usize = 1 << 16;
        const OFTEN: usize = 4;
        const LONG: Nanos = Nanos::from_micros(100);
        let thread = self.t.thread(waiter);
        let tid = self.t.thread(helper.thread).tid;
        let for_it = |s: &Stretch| {
            let asleep = matches!(s.state, State::Blocked(_)) && s.len() >= LONG;
            asleep
                && thread.wake_of(s).is_some_and(|w| w.waker == tid)
                && !self.waits_for_lock(waiter, s)
        };
        let (mut waits, mut answers) = (0, 0);
        let born = self.t.identity(helper).map_or(Nanos::ZERO, |id| id.start);
        let all = thread.states(born, self.t.end()).take(STATES);
        for s in all.filter(for_it).take(MOST) {
            waits += 1;
            answers += usize::from(self.answers_request(waiter, helper, &s));
        }
        answers * OFTEN > waits
    }

    /// The helper slept until the waiting process itself woke it, just before the wait: it was asked
    /// something. A loader works ahead.
    fn answers_request(&self, waiter: ThreadIdx, helper: Who, s: &Stretch) -> bool {
        /// States of the helper that are looked at.
        const MOST: usize = 256;
        let t = self.t;
        let job = t.pid(t.who(waiter, s.start));
        let wait = s.span.0;
        let (called, _) = self.calls(waiter).around(wait);
        let earliest = wait
            .saturating_sub(PREEMPTED)
            .max(called.unwrap_or_default());
        let latest = Nanos(wait.0.saturating_add(REQUEST.0));
        let asked = |h: Stretch| {
            let wake = match h.state {
                State::Runnable { .. } => t.thread(helper.thread).wake_of(&h),
                State::Unknown | State::Running { .. } | State::Blocked(_) | State::Exited => None,
            };
            let ran_since = |at| t.thread(waiter).running_in(at, wait, REQUEST);
            wake.filter(|w| earliest <= w.at && w.at <= latest && ran_since(w.at) <= REQUEST)
                .and_then(|w| sender(t, w))
                .is_some_and(|w| t.pid(w) == job)
        };
        let states = |from| t.thread(helper.thread).states(from, latest).take(MOST);
        let just = wait.saturating_sub(REQUEST).max(earliest);
        states(just).any(asked) || states(earliest).any(asked)
    }

    /// A thread that hands on what a loader delivers, such as one that pins memory, spends its time
    /// waiting for the loader.
    pub(super) fn waits_for_loader(&self, dispatcher: ThreadIdx, waker: Who, s: &Stretch) -> bool {
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

/// Who woke with a packet, too, when it sent that on this machine.
fn sender(t: &Timeline, wake: Wake) -> Option<Who> {
    match wake.context {
        Context::SoftIrq(NET_RX) => Some(t.who(t.find(wake.waker)?, wake.at)),
        Context::SoftIrq(_) | Context::HardIrq(_) | Context::Timer | Context::Task => {
            task_waker(t, wake)
        }
    }
}

fn is_loader_name(comm: &str) -> bool {
    const PARTS: [&str; 6] = [
        "prefetch",
        "pt_data_",
        "dataload",
        "data_worker",
        "data_loader",
        "tf_data",
    ];
    let comm = comm.to_ascii_lowercase();
    PARTS.iter().any(|p| comm.contains(p)) || comm.starts_with("dali")
}
