//! The stack of a thread that is not running: what it waits for, and how it came to.
#![forbid(unsafe_code)]

use crate::analyse::partition::{Asleep, Engine};
use crate::analyse::stacks::folded::{Folded, NodeIdx};
use crate::analyse::stacks::frame::{Frame, WokenBy};
use crate::analyse::stacks::place::Places;
use crate::event::{Context, Sample, SampleKind, StackId, Tid};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::{Sleep, State, Stretch, Thread, ThreadIdx, Wake, Why};
use crate::model::Timeline;
use crate::units::Nanos;

/// Times of one switch come from different probes.
const SLACK: u64 = 5_000;

/// What is said of time in which nothing is known of a thread.
pub(super) const NO_EVENTS: &str = "no scheduling events";

/// Stacks of the threads that ended waits, by who waited since when.
#[derive(Debug, Default)]
pub(super) struct Wakers<'t>(FxHashMap<Tid, Vec<(Nanos, &'t Sample)>>);

impl<'t> Wakers<'t> {
    pub(super) fn of(t: &'t Timeline) -> Self {
        let mut wakers: FxHashMap<Tid, Vec<(Nanos, &Sample)>> = FxHashMap::default();
        for sample in t.threads().flat_map(|(_, thread)| thread.samples()) {
            if let SampleKind::Waker { wakee, since } = sample.kind {
                wakers.entry(wakee).or_default().push((since, sample));
            }
        }
        for list in wakers.values_mut() {
            list.sort_by_key(|(since, sample)| (*since, sample.ts));
        }
        Wakers(wakers)
    }

    fn find(&self, wakee: Tid, since: Nanos) -> Option<&'t Sample> {
        let list = self.0.get(&wakee)?;
        let first = list.partition_point(|w| w.0 .0.saturating_add(SLACK) < since.0);
        let near = list.get(first..)?.iter();
        near.take_while(|w| w.0 .0 <= since.0.saturating_add(SLACK))
            .min_by_key(|w| w.0 .0.abs_diff(since.0))
            .map(|w| w.1)
    }
}

/// The sample taken when the thread ran again after this stretch.
fn sample_after<'a>(thread: &'a Thread, s: &Stretch) -> Option<&'a Sample> {
    let samples = thread.samples();
    let first = samples.partition_point(|x| x.ts.0.saturating_add(SLACK) < s.span.1 .0);
    let off = |x: &&Sample| matches!(x.kind, SampleKind::OffCpu { .. });
    let sample = samples.get(first..)?.iter().find(off)?;
    let SampleKind::OffCpu { since } = sample.kind else {
        return None;
    };
    (since.0 <= s.span.0 .0.saturating_add(SLACK)).then_some(sample)
}

/// What the stack of a stretch is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffCpu<'e, 't> {
    pub(super) engine: &'e Engine<'t>,
    /// `None`: they are not wanted.
    pub(super) wakers: Option<&'e Wakers<'t>>,
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
        match self.wakers {
            Some(wakers) => self.waker(places, out, node, thread, s, &asleep, wakers),
            None => node,
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
        let sample = sample_after(t.thread(thread), s);
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
            None => out.push(base, Frame::Note(self.why_no_stack(thread, s))),
        }
    }

    fn why_no_stack(&self, thread: ThreadIdx, s: &Stretch) -> &'static str {
        let t = self.engine.t;
        let sleep = match s.state {
            State::Runnable { .. } => t.thread(thread).sleep_before(s),
            State::Unknown | State::Running { .. } | State::Blocked(_) | State::Exited => None,
        };
        let since = sleep.map_or(s.span.0, |sleep| sleep.start);
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

    #[allow(clippy::too_many_arguments)]
    fn waker(
        &self,
        places: &mut Places<'t>,
        out: &mut Folded,
        base: NodeIdx,
        thread: ThreadIdx,
        s: &Stretch,
        asleep: &Asleep,
        wakers: &Wakers<'t>,
    ) -> NodeIdx {
        let t = self.engine.t;
        let sample = wakers.find(t.thread(thread).tid, s.span.0);
        let by = match (asleep.wake, sample) {
            (Some(wake), _) => woken_by(t, wake),
            (None, Some(sample)) => thread_or_tid(t, sample.tid, sample.ts),
            (None, None) => return base,
        };
        let node = out.push(base, Frame::WokenBy(by));
        // An interrupt has nothing to do with the thread that it interrupted.
        match (by, sample) {
            (WokenBy::Thread(_) | WokenBy::Tid(_), Some(sample)) => {
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
