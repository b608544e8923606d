//! When an operation ran whose record is lost or of no use, as far as its neighbours tell.
#![forbid(unsafe_code)]

use crate::model::fxhash::FxHashMap;
use crate::model::gpu::Gpu;
use crate::model::ops::{CallIdx, Op, StreamIdx};
use crate::model::Timeline;
use crate::units::Nanos;

/// Calls before and after a launch that are looked at for one whose operation came back.
const NEAR: usize = 64;

/// The operations of a device by the calls that asked for them.
#[derive(Debug)]
pub(super) struct Missing<'a> {
    t: &'a Timeline,
    streams: FxHashMap<CallIdx, StreamIdx>,
    /// Of each stream, by the start of the call.
    by_stream: FxHashMap<StreamIdx, Vec<(Nanos, &'a Op)>>,
}

impl<'a> Missing<'a> {
    pub(super) fn of(t: &'a Timeline, gpu: &'a Gpu) -> Self {
        let mut streams = FxHashMap::default();
        let mut by_stream: FxHashMap<_, Vec<_>> = FxHashMap::default();
        for op in &gpu.ops {
            if let Some(call) = op.call() {
                streams.insert(call, op.stream);
                let launched = t.gpu().call_at(call).start;
                by_stream.entry(op.stream).or_default().push((launched, op));
            }
        }
        for ops in by_stream.values_mut() {
            ops.sort_by_key(|&(launched, op)| (launched, op.start));
        }
        Missing {
            t,
            streams,
            by_stream,
        }
    }

    /// Between what times the operation of `launch` ran. Launched by the same thread between two
    /// operations of one stream, it was in that stream, which works in order. `None` without such neighbours.
    pub(super) fn ran(&self, launch: CallIdx) -> Option<(Nanos, Nanos)> {
        let log = self.t.gpu();
        let call = log.call_at(launch);
        let calls = self.t.thread(call.thread).calls();
        let at = calls.partition_point(|&c| log.call_at(CallIdx(c)).start < call.start);
        let stream = |&c: &u32| self.streams.get(&CallIdx(c)).copied();
        let before = calls[..at].iter().rev().take(NEAR).find_map(stream)?;
        let after = calls[at..].iter().take(NEAR).find_map(stream)?;
        if before != after {
            return None;
        }
        let ops = self.by_stream.get(&before)?;
        let at = ops.partition_point(|&(launched, _)| launched < call.start);
        let from = ops.get(at.checked_sub(1)?)?.1.end.max(call.start);
        let to = ops.get(at)?.1.start;
        (from < to).then_some((from, to))
    }
}
