//! Samples of where threads were, kept small: there can be millions.
#![forbid(unsafe_code)]

use crate::event::{CallStackId, Sample, SampleKind, StackId, Tid};
use crate::units::Nanos;

/// Off-CPU times, waits and samples are measured in the same probe or in one right after it; this is
/// what their ends may differ by and still belong together.
pub(super) const SLACK: Nanos = Nanos::from_micros(5);

/// One sample of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleMark {
    pub ts: Nanos,
    /// The kind in the two high bits, whether it collects in the next, and the one number that each kind has.
    packed: u64,
    /// 0 when it ran in user space.
    pub kernel: StackId,
    /// 0 for a thread of the kernel.
    pub user: CallStackId,
    /// [`Tid::UNKNOWN`] for none.
    gil: Tid,
    /// Of a waker only.
    wakee: Tid,
}

const _: () = assert!(std::mem::size_of::<SampleMark>() == 32);

const KIND_SHIFT: u32 = 62;
const COLLECTS_SHIFT: u32 = KIND_SHIFT - 1;
/// No time since boot is greater: it is 73 years.
const NUMBER: u64 = (1 << COLLECTS_SHIFT) - 1;
const CPU: u64 = 0;
const OFF_CPU: u64 = 1;
const WAKER: u64 = 2;
const LAUNCH: u64 = 3;

impl SampleMark {
    pub(super) fn new(sample: &Sample) -> Self {
        let none = Tid::default();
        let (kind, number, wakee) = match sample.kind {
            SampleKind::Cpu { period } => (CPU, period.0, none),
            SampleKind::OffCpu { since } => (OFF_CPU, since.0, none),
            SampleKind::Waker { wakee, since } => (WAKER, since.0, wakee),
            SampleKind::Launch { one_in } => (LAUNCH, u64::from(one_in), none),
        };
        SampleMark {
            ts: sample.ts,
            packed: kind << KIND_SHIFT
                | u64::from(sample.collects) << COLLECTS_SHIFT
                | number.min(NUMBER),
            kernel: sample.kernel,
            user: sample.user,
            gil: sample.gil.unwrap_or(Tid::UNKNOWN),
            wakee,
        }
    }

    pub fn kind(&self) -> SampleKind {
        let number = self.packed & NUMBER;
        match self.packed >> KIND_SHIFT {
            CPU => SampleKind::Cpu {
                period: Nanos(number),
            },
            OFF_CPU => SampleKind::OffCpu {
                since: Nanos(number),
            },
            WAKER => SampleKind::Waker {
                wakee: self.wakee,
                since: Nanos(number),
            },
            _ => SampleKind::Launch {
                one_in: u32::try_from(number).unwrap_or(u32::MAX),
            },
        }
    }

    /// Taken by the timer while the thread ran.
    pub fn is_cpu(&self) -> bool {
        self.packed >> KIND_SHIFT == CPU
    }

    /// Beginning of the off-CPU time that it ended.
    pub fn off_since(&self) -> Option<Nanos> {
        (self.packed >> KIND_SHIFT == OFF_CPU).then_some(Nanos(self.packed & NUMBER))
    }

    /// Whom it woke, and since when that thread had waited.
    pub fn woke(&self) -> Option<(Tid, Nanos)> {
        (self.packed >> KIND_SHIFT == WAKER).then_some((self.wakee, Nanos(self.packed & NUMBER)))
    }

    /// It was collecting garbage, as its interpreter says; see [`collects`](crate::model::Timeline::collects).
    pub(super) fn says_it_collects(&self) -> bool {
        self.packed >> COLLECTS_SHIFT & 1 != 0
    }

    /// The thread that held the interpreter lock then; `None`: nobody, no Python, or unknown.
    pub fn gil(&self) -> Option<Tid> {
        (self.gil != Tid::UNKNOWN).then_some(self.gil)
    }
}

/// Number of the entry whose time is nearest to `since`, and no further than [`SLACK`]. `time` tells
/// that of each of `0..len`, in order.
pub(super) fn nearest(len: usize, since: Nanos, time: impl Fn(usize) -> Nanos) -> Option<usize> {
    let (mut lo, mut hi) = (0, len);
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        if time(middle) < since {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    let away = |&i: &usize| time(i).0.abs_diff(since.0);
    let beside = lo.saturating_sub(1)..len.min(lo + 1);
    beside.filter(|i| away(i) <= SLACK.0).min_by_key(away)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Event;
    use crate::model::Timeline;
    use crate::store::meta::Meta;
    use crate::store::tests::arbitrary;

    fn sample(ts: u64, tid: u32, kind: SampleKind, user: u32) -> Event {
        Event::Sample(Sample {
            ts: Nanos(ts),
            tid: Tid(tid),
            kind,
            kernel: StackId(0),
            user: CallStackId(user),
            gil: None,
            collects: false,
        })
    }

    fn timeline(events: &[Event]) -> Timeline {
        let mut t = Timeline::new(&Meta::default());
        events.iter().for_each(|e| t.push(e));
        t.finish(None);
        t
    }

    fn off(since: u64) -> SampleKind {
        SampleKind::OffCpu {
            since: Nanos(since),
        }
    }

    fn woke(wakee: u32, since: u64) -> SampleKind {
        SampleKind::Waker {
            wakee: Tid(wakee),
            since: Nanos(since),
        }
    }

    proptest! {
        #[test]
        fn a_mark_says_what_the_sample_said(sample in arbitrary::sample()) {
            let mark = SampleMark::new(&sample);
            let small = |n: Nanos| Nanos(n.0.min(NUMBER));
            let kind = match sample.kind {
                SampleKind::Cpu { period } => SampleKind::Cpu { period: small(period) },
                SampleKind::OffCpu { since } => SampleKind::OffCpu { since: small(since) },
                SampleKind::Waker { wakee, since } => SampleKind::Waker { wakee, since: small(since) },
                SampleKind::Launch { one_in } => SampleKind::Launch { one_in },
            };
            let gil = sample.gil.filter(|&holder| holder != Tid::UNKNOWN);
            prop_assert_eq!(mark.kind(), kind);
            prop_assert_eq!(
                (mark.ts, mark.kernel, mark.user, mark.gil(), mark.says_it_collects()),
                (sample.ts, sample.kernel, sample.user, gil, sample.collects)
            );
        }
    }

    #[test]
    fn samples_are_in_order_of_time() {
        let cpu = SampleKind::Cpu { period: Nanos(10) };
        let t = timeline(&[
            sample(30, 7, cpu, 3),
            sample(10, 7, cpu, 1),
            sample(20, 8, cpu, 9),
            sample(20, 7, cpu, 2),
        ]);
        let thread = t.thread(t.find(Tid(7)).unwrap());
        let stacks = |samples: &[SampleMark]| samples.iter().map(|s| s.user.0).collect::<Vec<_>>();
        assert_eq!(stacks(thread.samples()), [1, 2, 3]);
        assert_eq!(stacks(thread.samples_in(Nanos(10), Nanos(30))), [1, 2]);
        assert!(thread.samples_in(Nanos(11), Nanos(11)).is_empty());
    }

    #[test]
    fn an_off_cpu_time_is_found_by_its_beginning() {
        let t = timeline(&[
            sample(900_000, 7, off(100_000), 1),
            sample(990_000, 7, off(930_000), 2),
            sample(995_000, 7, SampleKind::Cpu { period: Nanos(1) }, 3),
        ]);
        let thread = t.thread(t.find(Tid(7)).unwrap());
        let found = |since| thread.off_stack(Nanos(since)).map(|s| s.user.0);
        assert_eq!(found(100_000), Some(1));
        assert_eq!(found(95_000), Some(1), "as far as the slack goes");
        assert_eq!(found(94_999), None);
        assert_eq!(found(930_020), Some(2));
        assert_eq!(found(995_000), None, "a sample of the timer ends no wait");
    }

    #[test]
    fn a_waker_is_found_by_whose_wait_it_ended() {
        let t = timeline(&[
            sample(500_000, 8, woke(7, 100_000), 1),
            sample(500_100, 9, woke(6, 100_000), 2),
            sample(700_000, 9, woke(7, 600_000), 3),
        ]);
        let found = |wakee, since| {
            let (thread, sample) = t.waker_stack(Tid(wakee), Nanos(since))?;
            Some((t.thread(thread).tid.0, sample.user.0))
        };
        assert_eq!(found(7, 100_000), Some((8, 1)));
        assert_eq!(found(6, 100_000), Some((9, 2)));
        assert_eq!(found(7, 600_300), Some((9, 3)));
        assert_eq!(found(7, 300_000), None);
        assert_eq!(found(5, 100_000), None);
    }
}
