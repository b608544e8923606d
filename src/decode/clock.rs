//! CLOCK_REALTIME, which CUPTI stamps with, → CLOCK_MONOTONIC, by pairs sampled all through a recording.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;

use crate::event::{ClockPair, Loss, LossSource};
use crate::units::Nanos;

/// A change of the offset between two pairs that is a step and not drift: NTP slews by at most
/// 500 ppm, 50 us in the 100 ms between two pairs.
const STEP: i128 = 1_000_000;

/// Pairs kept: CUPTI hands records over within seconds.
const KEPT: usize = 1024;

/// Converts times that lie between pairs, or near them.
#[derive(Debug, Default)]
pub struct Clock {
    pairs: VecDeque<ClockPair>,
    /// The wall clock went backwards in none of them.
    is_sorted: bool,
    /// What was found last.
    last: Cell<usize>,
}

fn offset(pair: &ClockPair) -> i128 {
    i128::from(pair.real.0) - i128::from(pair.mono.0)
}

impl Clock {
    /// Adds the newest pair. A step of the wall clock since the pair before is a loss: times
    /// stamped in between cannot be placed.
    pub fn push(&mut self, pair: ClockPair) -> Option<Loss> {
        let step = self
            .pairs
            .back()
            .filter(|last| (offset(&pair) - offset(last)).abs() > STEP)
            .map(|last| Loss {
                source: LossSource::ClockStep,
                count: 0,
                from: last.mono,
                to: pair.mono,
            });
        if self.pairs.len() == KEPT {
            self.pairs.pop_front();
        }
        let is_first = self.pairs.is_empty();
        let goes_on = (self.pairs.back()).is_some_and(|last| last.real < pair.real);
        self.is_sorted = is_first || (self.is_sorted && goes_on);
        self.pairs.push_back(pair);
        step
    }

    /// The number of the pair that comes after the last one before `real`. Newest first: after a step backwards the
    /// later meaning is the likelier one.
    fn after(&self, real: u64) -> usize {
        let before = |i: usize| self.pairs.get(i).is_some_and(|p| p.real.0 <= real);
        // Records come in order, many between two pairs.
        let last = self.last.get();
        let is_between = last > 0 && before(last - 1) && last < self.pairs.len() && !before(last);
        if is_between && self.is_sorted {
            return last;
        }
        let after = self.pairs.iter().rposition(|p| p.real.0 <= real);
        let after = after.map_or(0, |i| i + 1);
        self.last.set(after);
        after
    }

    /// The instant that the wall clock called `real`. Between two pairs the offset is
    /// interpolated; outside of them the nearest holds. `None` without pairs, or before boot.
    pub fn monotonic(&self, real: u64) -> Option<Nanos> {
        let after = self.after(real);
        let offset = match (
            after.checked_sub(1).and_then(|i| self.pairs.get(i)),
            self.pairs.get(after),
        ) {
            (Some(a), Some(b)) if (offset(b) - offset(a)).abs() <= STEP && b.real > a.real => {
                offset(a) + part_of(offset(b) - offset(a), real - a.real.0, b.real.0 - a.real.0)
            }
            (Some(a), _) => offset(a),
            (None, Some(b)) => offset(b),
            (None, None) => return None,
        };
        u64::try_from(i128::from(real) - offset).ok().map(Nanos)
    }
}

/// `part / whole` of `drift`. Drift over a second or so fits 64 bits, which divide much faster.
fn part_of(drift: i128, part: u64, whole: u64) -> i128 {
    let narrow = || {
        let product = i64::try_from(drift)
            .ok()?
            .checked_mul(i64::try_from(part).ok()?)?;
        Some(i128::from(product / i64::try_from(whole).ok()?))
    };
    narrow().unwrap_or_else(|| drift * i128::from(part) / i128::from(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: u64 = 1_700_000_000_000_000_000;

    fn pair(mono: u64, real: u64) -> ClockPair {
        ClockPair {
            mono: Nanos(mono),
            real: Nanos(real),
            error: Nanos(50),
        }
    }

    #[test]
    fn times_between_pairs_follow_the_drift() {
        let mut clock = Clock::default();
        assert_eq!(clock.monotonic(WALL), None);
        assert_eq!(clock.push(pair(1_000_000, WALL)), None);
        assert_eq!(clock.push(pair(2_000_000, WALL + 1_000_100)), None);
        assert_eq!(clock.monotonic(WALL), Some(Nanos(1_000_000)));
        assert_eq!(clock.monotonic(WALL + 500_050), Some(Nanos(1_500_000)));
        assert_eq!(clock.monotonic(WALL + 1_000_100), Some(Nanos(2_000_000)));
        // Outside of the pairs the nearest one holds.
        assert_eq!(clock.monotonic(WALL + 1_000_200), Some(Nanos(2_000_100)));
        assert_eq!(clock.monotonic(WALL - 10), Some(Nanos(999_990)));
    }

    #[test]
    fn a_step_back_is_a_loss_and_splits_the_conversion() {
        let mut clock = Clock::default();
        clock.push(pair(1_000_000_000, WALL));
        clock.push(pair(1_100_000_000, WALL + 100_000_000));
        // 50 ms back.
        let loss = clock.push(pair(1_200_000_000, WALL + 150_000_000));
        assert_eq!(
            loss,
            Some(Loss {
                source: LossSource::ClockStep,
                count: 0,
                from: Nanos(1_100_000_000),
                to: Nanos(1_200_000_000)
            })
        );
        assert_eq!(
            clock.monotonic(WALL + 160_000_000),
            Some(Nanos(1_210_000_000))
        );
        assert_eq!(
            clock.monotonic(WALL + 50_000_000),
            Some(Nanos(1_050_000_000))
        );
    }

    #[test]
    fn a_time_before_boot_is_no_time() {
        let mut clock = Clock::default();
        clock.push(pair(1_000, WALL));
        assert_eq!(clock.monotonic(5), None);
    }
}
