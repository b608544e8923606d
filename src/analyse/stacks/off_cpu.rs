//! The stack of a thread that is not running: what it waits for, and how it came to.
#![forbid(unsafe_code)]

use crate::analyse::partition::Engine;
use crate::analyse::stacks::folded::{Folded, NodeIdx};
use crate::analyse::stacks::frame::{Frame, WokenBy};
use crate::analyse::stacks::place::Places;
use crate::event::{Context, StackId, Tid};
use crate::model::thread::{Sleep, State, Stretch, Thread, ThreadIdx, Wake, Why};
use crate::model::Timeline;
use crate::units::Nanos;

/// What is said of time in which nothing is known of a thread.
pub(super) const NO_EVENTS: &str = "no scheduling events";

/// When the thread left the CPU: a thread that waits for one may have slept before.
fn off_since(thread: &Thread, s: &Stretch) -> Nanos {
    let slept = match s.state {
        State::Runnable { .. } => thread.sleep_before(s),
        State::Blocked(_) | State::Running { .. } | State::Unknown | State::Exited => None,
    };
    slept.map_or(s.span.0, |sleep| sleep.start)
}

/// What the stack of a stretch is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffCpu<'e, 't> {
    pub(super) engine: &'e Engine<'t>,
    /// Put the stacks of those who ended waits on top.
    pub(super) wakers: bool,
}

impl<'t> OffCpu<'_, 't> {
    /// The stack on `base` for a stretch; `None` when the thread runs in it or does not exist.
    pub(super) fn stack(
        &self,
        places: &mut Places<'t>,
        out: &mut Folded,
        base: NodeIdx,
        thread: ThreadIdx,
        s: &Stretch,
    ) -> Option<NodeIdx> {
        match s.state {
            State::Running { .. } | State::Unknown | State::Exited => None,
            State::Blocked(sleep) => Some(self.blocked(places, out, base, thread, s, &sleep)),
            State::Runnable { why, .. } => Some(self.runnable(places, out, base, thread, s, why)),
        }
    }

    fn blocked(
        &self,
        places: &mut Places<'t>,
        out: &mut Folded,
        base: NodeIdx,
        thread: ThreadIdx,
        s: &Stretch,
        sleep: &Sleep,
    ) -> NodeIdx {
        let asleep = self.engine.describe_wait(thread, s, sleep);
        let node = self.frames(places, out, base, thread, s, asleep.stack);
        let node = out.push(node, Frame::Blocked(asleep.wait.label()));
        if self.wakers {
            self.waker(places, out, node, thread, s, asleep.wake)
        } else {
            node
        }
    }

    fn runnable(
        &self,
        places: &mut Places<'t>,
        out: &mut Folded,
        base: NodeIdx,
        thread: ThreadIdx,
        s: &Stretch,
        why: Why,
    ) -> NodeIdx {
        let node = self.frames(places, out, base, thread, s, StackId(0));
        let why = match why {
            Why::Woken => "woken",
            Why::Preempted => "preempted",
            Why::Yielded => "yielded",
            Why::Throttled => "throttled",
            Why::New => "new",
        };
        out.push(node, Frame::Runnable(why))
    }

    /// `kernel` is the stack that the sleeper's wait was recorded with, if it was.
    fn frames(
        &self,
        places: &mut Places<'t>,
        out: &mut Folded,
        base: NodeIdx,
        thread: ThreadIdx,
        s: &Stretch,
        kernel: StackId,
    ) -> NodeIdx {
        let t = self.engine.t;
        let since = off_since(t.thread(thread), s);
        let sample = t.thread(thread).off_stack(since);
        let kernel = match sample {
            Some(sample) if kernel.0 == 0 => sample.kernel,
            Some(_) | None => kernel,
        };
        match sample {
            Some(sample) if sample.user.0 != 0 || kernel.0 != 0 => {
                let node = places.user(out, base, sample.user);
                places.kernel(out, node, kernel)
            }
            Some(_) => out.push(base, Frame::Note("no stack")),
            None if kernel.0 != 0 => places.kernel(out, base, kernel),
            None => out.push(base, Frame::Note(self.why_no_stack(since, s))),
        }
    }

    fn why_no_stack(&self, since: Nanos, s: &Stretch) -> &'static str {
        let t = self.engine.t;
        let until = s.span.1.min(t.end());
        if until.saturating_sub(since).0 < t.meta().wait_threshold_ns {
            "short waits"
        } else if since <= t.start() {
            "no stack: it began before the recording"
        } else if s.span.1 >= t.end() {
            "no stack: it had not ended"
        } else {
            "no stack: none was taken"
        }
    }

    fn waker(
        &self,
        places: &mut Places<'t>,
        out: &mut Folded,
        base: NodeIdx,
        thread: ThreadIdx,
        s: &Stretch,
        wake: Option<Wake>,
    ) -> NodeIdx {
        let t = self.engine.t;
        let sample = t.waker_stack(t.thread(thread).tid, s.span.0);
        let by = match (wake, sample) {
            (Some(wake), _) => woken_by(t, wake),
            (None, Some((waker, sample))) => WokenBy::Thread(t.who(waker, sample.ts)),
            (None, None) => return base,
        };
        let node = out.push(base, Frame::WokenBy(by));
        // An interrupt has nothing to do with the thread that it interrupted.
        match (by, sample) {
            (WokenBy::Thread(_) | WokenBy::Tid(_), Some((_, sample))) => {
                places.upside_down(out, node, sample.kernel, sample.user)
            }
            (
                WokenBy::Thread(_)
                | WokenBy::Tid(_)
                | WokenBy::HardIrq(_)
                | WokenBy::SoftIrq(_)
                | WokenBy::Timer,
                _,
            ) => node,
        }
    }
}

fn woken_by(t: &Timeline, wake: Wake) -> WokenBy {
    match wake.context {
        Context::Task => thread_or_tid(t, wake.waker, wake.at),
        Context::HardIrq(n) => WokenBy::HardIrq(n),
        Context::SoftIrq(n) => WokenBy::SoftIrq(n),
        Context::Timer => WokenBy::Timer,
    }
}

pub(super) fn thread_or_tid(t: &Timeline, tid: Tid, at: Nanos) -> WokenBy {
    match t.find(tid) {
        Some(thread) => WokenBy::Thread(t.who(thread, at)),
        None => WokenBy::Tid(tid),
    }
}
