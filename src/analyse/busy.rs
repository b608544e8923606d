//! When a device was busy, and its gaps.
//!
//! Busy is the union of all operations over all streams, contexts and processes of the
//! device: copies and memsets count, synchronisation records do not. The longest end so far
//! is carried along, so a short operation inside a long one opens no gap.
#![forbid(unsafe_code)]

use crate::event::OpKind;
use crate::model::ops::Op;
use crate::units::Nanos;

/// An interval in which the device had no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    /// Index of the operation that ended it; `None` when it is still open at the end of the window.
    pub(super) next: Option<u32>,
    /// The operation whose end opened it; `None` at the start of the window.
    pub(super) opener: Option<u32>,
    /// The operation before `next` on its own stream.
    pub(super) before_on_stream: Option<u32>,
}

impl Gap {
    pub(super) fn len(&self) -> Nanos {
        self.end.saturating_sub(self.start)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) busy: Nanos,
    pub(super) idle: Nanos,
    pub(super) kernel: Nanos,
    pub(super) memcpy: Nanos,
    pub(super) memset: Nanos,
    pub(super) gaps: Vec<Gap>,
}

/// First start and last end of the operations that can be believed.
pub(super) fn extent(ops: &[Op]) -> Option<(Nanos, Nanos)> {
    let sound = || ops.iter().filter(|o| !o.outlasts_followers());
    let start = sound().map(|o| o.start).min()?;
    let end = sound().map(|o| o.end).max()?;
    Some((start, end))
}

/// Length of a union of intervals that come by start.
#[derive(Clone, Copy, Debug, Default)]
struct Union {
    total: u64,
    end: Nanos,
}

impl Union {
    fn add(&mut self, start: Nanos, end: Nanos) {
        let from = start.max(self.end);
        if from < end {
            self.total += end.0 - from.0;
            self.end = end;
        }
    }
}

fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(u32::MAX)
}

/// `ops` are by start. What lies outside of `[from, to)` is cut off, of the sums also what lies outside of `part`.
pub(super) fn usage(ops: &[Op], (from, to): (Nanos, Nanos), part: (Nanos, Nanos)) -> Usage {
    let mut usage = Usage::default();
    let (mut kernel, mut memcpy, mut memset) =
        (Union::default(), Union::default(), Union::default());
    let mut end = from;
    let mut opener = None;
    // By the number of the stream; they count up from 0.
    let mut last_on_stream: Vec<Option<u32>> = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        if op.outlasts_followers() {
            continue;
        }
        let stream = op.stream.0 as usize;
        if last_on_stream.len() <= stream {
            last_on_stream.resize(stream + 1, None);
        }
        let before_on_stream = last_on_stream[stream].replace(index(i));
        if op.start >= to {
            break;
        }
        if op.end < from {
            continue;
        }
        let (start, stop) = (op.start.max(from), op.end.min(to));
        if start > end {
            usage.gaps.push(Gap {
                start: end,
                end: start,
                next: Some(index(i)),
                opener,
                before_on_stream,
            });
        }
        if stop >= end {
            end = stop;
            opener = Some(index(i));
        }
        let (start, stop) = (start.max(part.0), stop.min(part.1));
        match op.kind() {
            OpKind::Kernel { .. } | OpKind::Graph => kernel.add(start, stop),
            OpKind::Memcpy { .. } => memcpy.add(start, stop),
            OpKind::Memset { .. } => memset.add(start, stop),
        }
    }
    if end < to {
        usage.gaps.push(Gap {
            start: end,
            end: to,
            next: None,
            opener,
            before_on_stream: None,
        });
    }
    let (from, to) = (from.max(part.0), to.min(part.1));
    let inside = |g: &Gap| g.end.min(to).saturating_sub(g.start.max(from));
    usage.idle = usage.gaps.iter().map(inside).sum();
    usage.busy = Nanos(to.saturating_sub(from).0 - usage.idle.0);
    usage.kernel = Nanos(kernel.total);
    usage.memcpy = Nanos(memcpy.total);
    usage.memset = Nanos(memset.total);
    usage
}
