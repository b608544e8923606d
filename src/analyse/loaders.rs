//! Who loads data for a job.
#![forbid(unsafe_code)]

use crate::analyse::partition::Engine;
use crate::analyse::waits::Wait;
use crate::analyse::walk::{descends_from, task_waker};
use crate::model::thread::{State, Stretch, ThreadIdx, Who};
use crate::units::Nanos;

/// A helper that was woken so shortly before the wait answers a request.
const REQUEST: Nanos = Nanos::from_micros(200);

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
