//! Running time, shared out to the samples that were taken in it.
#![forbid(unsafe_code)]

use crate::model::samples::SampleMark;
use crate::model::thread::{State, Thread};
use crate::units::Nanos;

/// Divides the time that the thread ran in `[from, to)` among the timer's samples there: each
/// nanosecond goes to the nearest one. The timer ticks at its own pace, so counting its samples would be
/// right on average only; this is right in sum.
pub(in crate::analyse) fn share_running<'a>(
    thread: &'a Thread,
    (from, to): (Nanos, Nanos),
    mut each: impl FnMut(Option<&'a SampleMark>, Nanos),
) {
    let mut samples = thread
        .samples_in(from, to)
        .iter()
        .filter(|s| s.is_cpu())
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
