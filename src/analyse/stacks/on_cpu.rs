//! Running time, shared out to the samples that were taken in it.
#![forbid(unsafe_code)]

use crate::event::{Sample, SampleKind};
use crate::model::thread::{State, Thread};
use crate::units::Nanos;

/// The samples of `[from, to)`.
pub(super) fn samples_in(thread: &Thread, from: Nanos, to: Nanos) -> &[Sample] {
    let samples = thread.samples();
    let first = samples.partition_point(|s| s.ts < from);
    let end = samples.partition_point(|s| s.ts < to);
    samples.get(first..end).unwrap_or_default()
}

pub(super) fn is_timed(sample: &Sample) -> bool {
    match sample.kind {
        SampleKind::Cpu { .. } => true,
        SampleKind::OffCpu { .. } | SampleKind::Waker { .. } | SampleKind::Launch { .. } => false,
    }
}

/// Divides the time that the thread ran in `[from, to)` among the timer's samples there: each
/// nanosecond goes to the nearest one. The timer ticks at its own pace, so counting its samples would be
/// right on average only; this is right in sum.
pub(super) fn share_running<'a>(
    thread: &'a Thread,
    (from, to): (Nanos, Nanos),
    mut each: impl FnMut(Option<&'a Sample>, Nanos),
) {
    let mut samples = samples_in(thread, from, to)
        .iter()
        .filter(|s| is_timed(s))
        .peekable();
    let mut nearest = samples.next();
    for s in thread.states(from, to) {
        let State::Running { .. } = s.state else {
            continue;
        };
        let mut at = s.start;
        while at < s.end {
            let mut until = s.end;
            if let (Some(this), Some(next)) = (nearest, samples.peek()) {
                let middle = Nanos(this.ts.0 + (next.ts.0 - this.ts.0) / 2);
                if middle <= at {
                    nearest = samples.next();
                    continue;
                }
                until = until.min(middle);
            }
            each(nearest, until.saturating_sub(at));
            at = until;
        }
    }
}
