//! Device time, by the stack that launched it.
#![forbid(unsafe_code)]

use crate::analyse::stacks::folded::{Folded, NodeIdx, Weights};
use crate::analyse::stacks::frame::{Frame, Work};
use crate::analyse::stacks::place::Places;
use crate::event::{OpKind, SampleKind};
use crate::model::fxhash::FxHashMap;
use crate::model::ops::{Call, Op};
use crate::model::samples::SampleMark;
use crate::model::thread::Who;
use crate::model::Timeline;
use crate::units::Nanos;

fn work(op: &Op) -> Work {
    match op.kind() {
        OpKind::Kernel { name } => Work::Kernel(name),
        OpKind::Memcpy { kind, .. } => Work::Memcpy(kind),
        OpKind::Memset { .. } => Work::Memset,
        OpKind::Graph => Work::Graph,
    }
}

/// A probe at the driver's entry fires before the record of a direct driver call begins, which may have to
/// wait for the stack to be walked.
const PROBE_BEFORE_CALL: Nanos = Nanos::from_millis(1);

/// A call and those made inside it, at most.
const CALLS_WITHIN: usize = 4;

/// The stack taken in this very call, with how many launches it stands for.
fn launch_sample<'t>(t: &'t Timeline, call: &Call) -> Option<(&'t SampleMark, u64)> {
    let thread = t.thread(call.thread);
    let launches = |s: &SampleMark| match s.kind() {
        SampleKind::Launch { one_in } => Some(u64::from(one_in)),
        SampleKind::Cpu { .. } | SampleKind::OffCpu { .. } | SampleKind::Waker { .. } => None,
    };
    let inside = thread.samples_in(call.start, Nanos(call.end.0.saturating_add(1)));
    if let Some(found) = inside.iter().find_map(|s| Some((s, launches(s)?))) {
        return Some(found);
    }
    let calls = |&i: &u32| t.gpu().calls().get(i as usize);
    let earlier = thread
        .calls()
        .partition_point(|i| calls(i).is_some_and(|c| c.start < call.start));
    let mut from = call.start.saturating_sub(PROBE_BEFORE_CALL);
    // What is inside an earlier call is that one's; a call that this one is part of has begun only.
    for c in thread.calls()[..earlier]
        .iter()
        .rev()
        .filter_map(calls)
        .take(CALLS_WITHIN)
    {
        let over = if c.end <= call.start { c.end } else { c.start };
        from = from.max(Nanos(over.0.saturating_add(1)));
    }
    let just_before = thread.samples_in(from, call.start.max(from));
    if let Some(found) = just_before
        .iter()
        .rev()
        .find_map(|s| Some((s, launches(s)?)))
    {
        return Some(found);
    }
    inside.iter().find(|s| s.is_cpu()).map(|s| (s, 1))
}

/// Operations of one kind that one thread launched to one device.
#[derive(Debug, Default)]
struct Launches {
    /// Stacks seen, with how many launches each stands for.
    seen: Weights,
    /// Time of the operations whose own launch was not sampled.
    unseen: Nanos,
}

/// Time of operations by how their launch stack is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchTimes {
    /// A stack was taken in the very call that launched them.
    pub exact: Nanos,
    /// Shared out to the stacks of other launches of the same kernel by the same thread.
    pub estimated: Nanos,
    /// No launch of this kernel by this thread was sampled, or the launch is unknown.
    pub unknown: Nanos,
}

#[derive(Debug)]
pub(super) struct OnGpu<'t, 'p> {
    places: &'p mut Places<'t>,
    launches: FxHashMap<(NodeIdx, Work), Launches>,
    pub(super) times: LaunchTimes,
}

fn add(sum: &mut Nanos, more: Nanos) {
    *sum = Nanos(sum.0.saturating_add(more.0));
}

impl<'t, 'p> OnGpu<'t, 'p> {
    pub(super) fn new(places: &'p mut Places<'t>) -> Self {
        OnGpu {
            places,
            launches: FxHashMap::default(),
            times: LaunchTimes::default(),
        }
    }

    /// Adds `time` of an operation that `launch` started; `who` is the thread then.
    pub(super) fn launched(
        &mut self,
        out: &mut Folded,
        base: NodeIdx,
        op: &Op,
        (launch, who): (&Call, Who),
        time: Nanos,
    ) {
        let t = self.places.t;
        let base = self.places.thread(out, base, who);
        let work = work(op);
        let launches = self.launches.entry((base, work)).or_default();
        let Some((sample, stands_for)) = launch_sample(t, launch) else {
            add(&mut launches.unseen, time);
            return;
        };
        let stack = self.places.user(out, base, sample.user);
        let leaf = out.push(stack, Frame::Gpu(work));
        launches.seen.add(leaf, stands_for);
        out.add(leaf, time);
        add(&mut self.times.exact, time);
    }

    /// Adds `time` of an operation whose launch was not recorded, to its process.
    pub(super) fn orphan(&mut self, out: &mut Folded, base: NodeIdx, op: &Op, time: Nanos) {
        let pid = self.places.t.gpu().stream_of(op).pid;
        let node = out.push(base, Frame::Process(pid));
        let node = out.push(node, Frame::Note("launch not recorded"));
        let leaf = out.push(node, Frame::Gpu(work(op)));
        out.add(leaf, time);
        add(&mut self.times.unknown, time);
    }

    /// Shares out the time of the launches that were not sampled.
    pub(super) fn finish(mut self, out: &mut Folded) -> LaunchTimes {
        for ((base, work), launches) in self.launches {
            if launches.unseen == Nanos::ZERO {
                continue;
            }
            if launches.seen.is_empty() {
                let node = out.push(base, Frame::Note("launch not sampled"));
                let leaf = out.push(node, Frame::Gpu(work));
                out.add(leaf, launches.unseen);
                add(&mut self.times.unknown, launches.unseen);
                continue;
            }
            launches.seen.share(launches.unseen, out);
            add(&mut self.times.estimated, launches.unseen);
        }
        self.times
    }
}
