//! Why a device waited although its next operation was already queued.
//!
//! Named only on evidence in the records; the host is never the answer here, and without
//! evidence the answer is `unknown`.
#![forbid(unsafe_code)]

use crate::analyse::busy::Gap;
use crate::analyse::cause::Cause;
use crate::analyse::what::What;
use crate::event::{ContextId, CopyKind, OpKind, Pid, StreamId};
use crate::model::gpu::Gpu;
use crate::model::ops::{Call, Op, Stream};
use crate::model::Timeline;
use crate::units::Nanos;

/// A released operation starts within this time, or within twice the usual lead.
const RELEASE: Nanos = Nanos::from_micros(20);

/// The longest time that handing the device to another process takes.
const SWITCH_PROCESS: Nanos = Nanos::from_millis(5);

/// An operation that waited on its device, and its surroundings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) gap: Gap,
    pub(super) op: &'a Op,
    pub(super) launch: &'a Call,
    /// Usual time from launch to start.
    pub(super) usual: Nanos,
}

impl Queued<'_> {
    fn tolerance(&self) -> Nanos {
        RELEASE.max(Nanos(self.usual.0 * 2))
    }

    /// Calls after this one and up to the launch could have put something between the operation and
    /// its predecessor on the stream.
    fn after_predecessor(&self, t: &Timeline) -> Nanos {
        let before = self.gap.before_on_stream.map(|i| &self.gpu.ops[i as usize]);
        before
            .and_then(Op::call)
            .map_or(Nanos::ZERO, |c| t.gpu().call_at(c).start)
    }
}

pub(super) fn cause(t: &Timeline, q: &Queued<'_>) -> Option<(Cause, What)> {
    let stream = t.gpu().stream_of(q.op);
    event_wait(t, q, stream)
        .or_else(|| host_function(t, q, stream.pid))
        .or_else(|| copy_engine(t, q))
        .or_else(|| other_process(t, q, stream.pid))
}

fn waits_for_event(t: &Timeline, q: &Queued<'_>, pid: Pid, at: (ContextId, StreamId)) -> bool {
    let waits = t.gpu().event_waits(pid);
    let from = waits.partition_point(|w| w.at <= q.after_predecessor(t));
    waits[from..]
        .iter()
        .take_while(|w| w.at <= q.launch.start)
        .any(|w| (w.context, w.stream) == at)
}

/// Its stream was told to wait for an event between its predecessor and itself. Which event is not
/// recorded: the operation that ended just as this one started names the other side.
fn event_wait(t: &Timeline, q: &Queued<'_>, stream: Stream) -> Option<(Cause, What)> {
    if !waits_for_event(t, q, stream.pid, (stream.context, stream.stream)) {
        return None;
    }
    let released_by = ended_before_start(t, q, |op| {
        op.stream != q.op.stream && t.gpu().stream_of(op).pid == stream.pid
    });
    match released_by {
        Some(op) => Some((Cause::GpuDependency, What::AfterStream(op.stream))),
        // The event came after a host function instead of an operation.
        None => host_function(t, q, stream.pid).or(Some((
            Cause::GpuDependency,
            What::Say("an event of another stream"),
        ))),
    }
}

/// A host function was put into a stream of the process between the predecessor and the operation.
fn host_function(t: &Timeline, q: &Queued<'_>, pid: Pid) -> Option<(Cause, What)> {
    let from = q.after_predecessor(t);
    let call = t.gpu().last_host_func(pid, from, q.launch.start)?;
    Some((Cause::GpuHostCallback, What::In(call.api())))
}

/// A copy started when another copy of the same direction, on another stream, was done. That a copy
/// waited long is not enough: copies wait for other things, too.
fn copy_engine(t: &Timeline, q: &Queued<'_>) -> Option<(Cause, What)> {
    let direction = direction(q.op)?;
    let ahead = ended_before_start(t, q, |op| {
        op.stream != q.op.stream && self::direction(op) == Some(direction) && op.end > q.launch.end
    })?;
    Some((Cause::GpuCopyEngine, What::AfterStream(ahead.stream)))
}

fn direction(op: &Op) -> Option<CopyKind> {
    match op.kind() {
        OpKind::Memcpy { kind, .. } if kind != CopyKind::Unknown => Some(kind),
        OpKind::Memcpy { .. } | OpKind::Kernel { .. } | OpKind::Memset { .. } | OpKind::Graph => {
            None
        }
    }
}

/// Another process had the device until the gap, which is then the time to hand it over.
fn other_process(t: &Timeline, q: &Queued<'_>, pid: Pid) -> Option<(Cause, What)> {
    let opener = &q.gpu.ops[q.gap.opener? as usize];
    let foreign = t.gpu().stream_of(opener).pid != pid;
    (foreign && q.gap.len() <= SWITCH_PROCESS)
        .then_some((Cause::GpuOtherProcess, What::AfterStream(opener.stream)))
}

/// The last operation of those wanted, on any device, that ended just before this one started.
fn ended_before_start<'a>(
    t: &'a Timeline,
    q: &Queued<'_>,
    wanted: impl Fn(&Op) -> bool,
) -> Option<&'a Op> {
    /// Operations that began earlier than this many others are not looked at.
    const REACH: usize = 512;
    let start = q.op.start;
    let earliest = start.saturating_sub(q.tolerance());
    t.gpu()
        .devices()
        .iter()
        .flat_map(|gpu| {
            let upto = gpu.ops.partition_point(|o| o.start < start);
            gpu.ops[upto.saturating_sub(REACH)..upto].iter()
        })
        .filter(|o| earliest <= o.end && o.end <= start && !o.outlasts_followers() && wanted(o))
        .max_by_key(|o| (o.end, o.start, o.correlation))
}
