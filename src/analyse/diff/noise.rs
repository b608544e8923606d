//! How far a figure of a recording would be off if the same were recorded again.
//!
//! Everything compared is a ratio of two sums over time: idle time of all time, time of a kernel of its launches, time
//! of operations. The recording is cut into blocks of the same length, and how the blocks
//! scatter around the whole tells how sure the whole is (batch means, with the usual estimate for a ratio).
//! That is right where blocks do not depend on each other, so they have to be long against whatever the program
//! repeats. Nobody says how long that is: blocks of three lengths are looked at, and where
//! longer ones scatter more than they should, what is not seen of it is added on top.
#![forbid(unsafe_code)]

use crate::units::Nanos;

/// Blocks that a recording is cut into, at most.
pub const BLOCKS: usize = 32;

/// The least, in which neighbours are joined.
const FEWEST: usize = 8;

/// Blocks that must have something of what a ratio is of, and things in all of them.
const LEAST_FILLED: usize = 8;
const LEAST_COUNT: u64 = 32;

/// A sum for each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series(pub [u64; BLOCKS]);

impl Default for Series {
    fn default() -> Self {
        Series([0; BLOCKS])
    }
}

impl Series {
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub(super) fn add(&mut self, block: usize, n: u64) {
        if let Some(sum) = self.0.get_mut(block) {
            *sum = sum.saturating_add(n);
        }
    }

    pub(super) fn join(&mut self, other: &Series) {
        for (block, n) in other.0.iter().enumerate() {
            self.add(block, *n);
        }
    }

    fn filled(&self) -> usize {
        self.0.iter().filter(|n| **n > 0).count()
    }

    /// Sums of as many neighbours as make `n` blocks.
    fn joined(&self, n: usize) -> Vec<f64> {
        let sum = |part: &[u64]| part.iter().map(|&n| precise(n)).sum();
        self.0.chunks(BLOCKS / n).map(sum).collect()
    }
}

#[allow(clippy::cast_precision_loss)]
pub(super) fn precise(n: u64) -> f64 {
    n as f64
}

/// Where the blocks of a window are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
}

impl Cut {
    fn len(self) -> u64 {
        self.to.saturating_sub(self.from).0
    }

    /// What is outside counts in the block next to it.
    pub(super) fn block(self, at: Nanos) -> usize {
        let past = u128::from(at.saturating_sub(self.from).0);
        let block = past * BLOCKS as u128 / u128::from(self.len().max(1));
        usize::try_from(block).map_or(BLOCKS - 1, |block| block.min(BLOCKS - 1))
    }

    fn start_of(self, block: usize) -> Nanos {
        let past = u128::from(self.len()) * block as u128;
        // The first moment of which `block` says so.
        let past = past.div_ceil(BLOCKS as u128);
        self.from
            .saturating_add(Nanos(u64::try_from(past).unwrap_or(u64::MAX)))
    }

    /// Adds the time of an interval to the blocks that it is in.
    pub(super) fn spread(self, series: &mut Series, from: Nanos, to: Nanos) {
        let (from, to) = (from.max(self.from), to.min(self.to));
        let mut at = from;
        while at < to {
            let block = self.block(at);
            let end = if block + 1 < BLOCKS {
                self.start_of(block + 1).min(to)
            } else {
                to
            };
            if end <= at {
                break;
            }
            series.add(block, end.saturating_sub(at).0);
            at = end;
        }
    }

    pub(super) fn lengths(self) -> Series {
        let mut series = Series::default();
        self.spread(&mut series, self.from, self.to);
        series
    }
}

/// A figure with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// `None`: it is of nothing.
    pub value: Option<f64>,
    /// `None`: there is too little to tell.
    pub error: Option<f64>,
}

/// `x` for each of `y`.
pub fn ratio(x: &Series, y: &Series) -> Estimate {
    let whole = precise(y.total());
    if whole == 0.0 {
        return Estimate::default();
    }
    let value = precise(x.total()) / whole;
    let is_enough = y.filled() >= LEAST_FILLED && y.total() >= LEAST_COUNT;
    let error = is_enough.then(|| variance(x, y, value, whole).sqrt());
    Estimate {
        value: Some(value),
        error,
    }
}

fn variance(x: &Series, y: &Series, value: f64, whole: f64) -> f64 {
    let of = |n: usize| {
        let pairs = x.joined(n).into_iter().zip(y.joined(n));
        let squares: f64 = pairs.map(|(x, y)| (x - value * y).powi(2)).sum();
        let n = precise(n as u64);
        squares * n / (n - 1.0) / (whole * whole)
    };
    let (fine, middle, coarse) = (of(BLOCKS), of(BLOCKS / 2), of(FEWEST));
    // Of blocks that do not depend on each other these are the same, but for chance. Where they grow, they
    // would go on to do so.
    let growth = if fine > 0.0 { coarse / fine } else { 1.0 };
    fine.max(middle).max(coarse) * growth.max(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::analyse::diff::SURE;

    /// Numbers without a pattern, the same in every run.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self) -> f64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            precise(self.0 >> 40) / precise(1 << 24)
        }

        /// Near enough to a normal distribution, with mean 0 and deviation 1.
        fn bell(&mut self) -> f64 {
            (0..12).map(|_| self.roll()).sum::<f64>() - 6.0
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn series(mut value: impl FnMut(usize) -> f64) -> Series {
        let mut series = Series::default();
        for (i, n) in series.0.iter_mut().enumerate() {
            *n = value(i).max(0.0) as u64;
        }
        series
    }

    /// Of 4,000 pairs of recordings of the same, those that would be told apart.
    fn false_alarms(dice: &mut Dice, memory: f64) -> usize {
        const PAIRS: usize = 4_000;
        const FINER: usize = 8;
        let time = series(|_| 1e6);
        let mut side = || {
            let mut now = dice.bell();
            let idle = series(|_| {
                let mut sum = 0.0;
                for _ in 0..FINER {
                    now = memory * now + (1.0 - memory * memory).sqrt() * dice.bell();
                    sum += now;
                }
                3e5 + 2e4 * sum / precise(FINER as u64)
            });
            ratio(&idle, &time)
        };
        let is_told = |a: Estimate, b: Estimate| {
            let error = a.error.unwrap().hypot(b.error.unwrap());
            (a.value.unwrap() - b.value.unwrap()).abs() > SURE * error
        };
        (0..PAIRS).filter(|_| is_told(side(), side())).count()
    }

    #[test]
    fn two_of_the_same_are_rarely_told_apart() {
        let mut dice = Dice(7);
        assert!(false_alarms(&mut dice, 0.0) <= 1);
        // What a block does goes on into the next one.
        assert!(false_alarms(&mut dice, 0.9) <= 12);
    }

    #[test]
    fn the_error_is_that_of_the_mean() {
        let mut dice = Dice(3);
        let time = series(|_| 1e6);
        let errors: Vec<f64> = (0..200)
            .map(|_| {
                ratio(&series(|_| 3e5 + 1e4 * dice.bell()), &time)
                    .error
                    .unwrap()
            })
            .collect();
        let mean = errors.iter().sum::<f64>() / precise(errors.len() as u64);
        // 1 % of each block, over the root of 32; somewhat more, for it is the greatest of three.
        let right = 0.01 / 32f64.sqrt();
        assert!((right..2.0 * right).contains(&mean), "{mean} {right}");
    }

    #[test]
    fn what_happened_once_is_not_sure() {
        let once = series(|i| if i == 3 { 5e5 } else { 0.0 });
        let estimate = ratio(&once, &series(|_| 1e6));
        assert!(SURE * estimate.error.unwrap() > estimate.value.unwrap());
    }

    #[test]
    fn of_too_little_no_error_is_known() {
        let few = |filled: usize, each: f64| series(move |i| if i < filled { each } else { 0.0 });
        for counts in [few(7, 1e3), few(32, 0.0), few(16, 1.0)] {
            let estimate = ratio(&counts, &counts);
            assert_eq!(estimate.error, None, "{counts:?}");
        }
        assert_eq!(ratio(&few(32, 5.0), &few(32, 0.0)), Estimate::default());
        assert_eq!(ratio(&few(32, 4.0), &few(32, 2.0)).error, Some(0.0));
    }

    proptest! {
        /// Check that time is neither lost nor made where it is cut.
        #[test]
        fn blocks_hold_what_was_spread(
            from in 0u64..1 << 40,
            len in 0u64..1 << 36,
            a in 0u64..1 << 41,
            b in 0u64..1 << 41,
        ) {
            let cut = Cut { from: Nanos(from), to: Nanos(from + len) };
            let mut series = Series::default();
            let (start, end) = (a.min(b), a.max(b));
            cut.spread(&mut series, Nanos(start), Nanos(end));
            let inside = end.min(from + len).saturating_sub(start.max(from));
            prop_assert_eq!(series.total(), inside);
            let lengths = cut.lengths();
            prop_assert!(series.0.iter().zip(lengths.0).all(|(part, whole)| *part <= whole));
            prop_assert_eq!(lengths.total(), len);
            let (least, most) = (lengths.0.iter().min(), lengths.0.iter().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1);
        }

        #[test]
        fn any_figures_have_a_sound_error(x in any::<[u64; 32]>(), y in any::<[u64; 32]>()) {
            let estimate = ratio(&Series(x), &Series(y));
            prop_assert!(estimate.error.is_none_or(|error| error >= 0.0));
        }
    }
}
