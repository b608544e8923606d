//! Many times, added up: how many, how long, and how they are spread.
//!
//! The buckets are those of `bpf/histogram.h`, so that what was added up in the kernel and what is
//! added up from events give the same answer.
#![forbid(unsafe_code)]

use crate::units::Nanos;

/// See `bpf/histogram.h`; a test reads it.
const SUB_BITS: u32 = 3;
const MIN_BITS: u32 = 7;
const MAX_BITS: u32 = 37;
pub const BUCKETS: usize = 1 + ((MAX_BITS - MIN_BITS) << SUB_BITS) as usize;

/// Count and sum are exact, and so are the extremes where they are known; percentiles are as exact as the buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    pub count: u64,
    pub total: Nanos,
    /// Nothing is shorter or longer; zero when there is nothing. See [`shortest`](Self::shortest) and
    /// [`longest`](Self::longest).
    pub min: Nanos,
    pub max: Nanos,
    /// They are no times that were, but edges of buckets.
    min_is_edge: bool,
    max_is_edge: bool,
    /// By number of the bucket; shorter than [`BUCKETS`] when the last ones are empty.
    buckets: Vec<u64>,
}

impl Histogram {
    /// What the kernel added up. `buckets` may be shorter than [`BUCKETS`].
    pub fn from_parts(
        count: u64,
        total: Nanos,
        (min, max): (Nanos, Nanos),
        buckets: impl IntoIterator<Item = u64>,
    ) -> Histogram {
        let mut buckets: Vec<u64> = buckets.into_iter().take(BUCKETS).collect();
        let used = buckets.iter().rposition(|&n| n > 0).map_or(0, |i| i + 1);
        buckets.truncate(used);
        Histogram {
            count,
            total,
            min,
            max,
            buckets,
            ..Histogram::default()
        }
    }

    /// `None` of nothing, and when it is not known of a part.
    pub fn shortest(&self) -> Option<Nanos> {
        (self.count > 0 && !self.min_is_edge).then_some(self.min)
    }

    /// As [`shortest`](Self::shortest).
    pub fn longest(&self) -> Option<Nanos> {
        (self.count > 0 && !self.max_is_edge).then_some(self.max)
    }

    /// For people: `<=1.20 ms` where only that is known.
    pub fn longest_text(&self) -> String {
        match self.longest() {
            Some(time) => time.to_string(),
            None if self.count == 0 => "-".to_string(),
            None => format!("<={}", self.max),
        }
    }

    pub fn shortest_text(&self) -> String {
        match self.shortest() {
            Some(time) => time.to_string(),
            None if self.count == 0 => "-".to_string(),
            None => format!(">={}", self.min),
        }
    }

    /// Bytes that it takes beside its own.
    pub fn heap(&self) -> usize {
        self.buckets.capacity() * size_of::<u64>()
    }

    pub fn add(&mut self, time: Nanos) {
        self.min = if self.count == 0 {
            time
        } else {
            self.min.min(time)
        };
        self.max = self.max.max(time);
        self.count += 1;
        self.total = Nanos(self.total.0.saturating_add(time.0));
        let bucket = bucket(time);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 || other.min < self.min {
            (self.min, self.min_is_edge) = (other.min, other.min_is_edge);
        }
        if self.count == 0 || other.max > self.max {
            (self.max, self.max_is_edge) = (other.max, other.max_is_edge);
        }
        self.count += other.count;
        self.total = Nanos(self.total.0.saturating_add(other.total.0));
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
    }

    /// What has come since `before`, which is an earlier state of the same. Extremes of a part are known
    /// when they are new ones of the whole, else by the edges of its buckets.
    pub fn since(&self, before: &Histogram) -> Histogram {
        let earlier = before.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets: Vec<u64> = self
            .buckets
            .iter()
            .zip(earlier)
            .map(|(now, then)| now.saturating_sub(then))
            .collect();
        let first = buckets.iter().position(|&n| n > 0);
        let last = buckets.iter().rposition(|&n| n > 0);
        let new_min = before.count == 0 || self.min < before.min;
        let new_max = before.count == 0 || self.max > before.max;
        let edge = |bucket: Option<usize>, edge: fn(usize) -> Nanos| {
            bucket.map_or(Nanos::ZERO, |i| self.within(edge(i)))
        };
        let min = if new_min {
            self.min
        } else {
            edge(first, lower)
        };
        let max = if new_max { self.max } else { edge(last, upper) };
        Histogram {
            min_is_edge: !new_min || self.min_is_edge,
            max_is_edge: !new_max || self.max_is_edge,
            ..Histogram::from_parts(
                self.count.saturating_sub(before.count),
                self.total.saturating_sub(before.total),
                (min, max),
                buckets,
            )
        }
    }

    /// A kernel that is read while it adds up may have the extremes the wrong way round.
    fn within(&self, time: Nanos) -> Nanos {
        time.max(self.min).min(self.max)
    }

    /// `None` of nothing.
    pub fn average(&self) -> Option<Nanos> {
        self.total.0.checked_div(self.count).map(Nanos)
    }

    /// The time that `share` (0 to 1) of all are not longer than: the middle of its bucket, within the
    /// extremes, so at most 6 % from the truth. `None` of nothing.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub fn percentile(&self, share: f64) -> Option<Nanos> {
        let all: u64 = self.buckets.iter().sum();
        if all == 0 {
            return None;
        }
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all);
        if rank == all && !self.max_is_edge {
            return Some(self.max);
        }
        let mut seen = 0;
        let at = self.buckets.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        let at = at.unwrap_or(self.buckets.len() - 1);
        let middle = Nanos(lower(at).0.midpoint(upper(at).0));
        Some(self.within(middle))
    }

    /// Counts by powers of two: each `(from, to, count)`, from the first to the last that is not empty.
    /// The first begins at 0.
    pub fn octaves(&self) -> Vec<(Nanos, Nanos, u64)> {
        let mut rows: Vec<(Nanos, Nanos, u64)> = Vec::new();
        for (i, &n) in self.buckets.iter().enumerate() {
            let (from, to) = octave(i);
            match rows.last_mut() {
                Some(last) if last.0 == from => last.2 += n,
                _ => rows.push((from, to, n)),
            }
        }
        let first = rows.iter().position(|row| row.2 > 0).unwrap_or(rows.len());
        let last = rows.iter().rposition(|row| row.2 > 0).map_or(0, |i| i + 1);
        rows.get(first..last).map_or_else(Vec::new, <[_]>::to_vec)
    }
}

fn bucket(time: Nanos) -> usize {
    let ns = time.0;
    if ns < 1 << MIN_BITS {
        return 0;
    }
    let bits = ns.ilog2();
    if bits >= MAX_BITS {
        return BUCKETS - 1;
    }
    let sub = (ns >> (bits - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    // The number of a bucket is small.
    1 + ((bits - MIN_BITS) << SUB_BITS) as usize + usize::try_from(sub).unwrap_or(0)
}

/// The shortest time in a bucket.
fn lower(bucket: usize) -> Nanos {
    let Some(i) = bucket.checked_sub(1) else {
        return Nanos::ZERO;
    };
    let bits = (i >> SUB_BITS) as u32 + MIN_BITS;
    let sub = (i & ((1 << SUB_BITS) - 1)) as u64;
    Nanos((1 << bits) + (sub << (bits - SUB_BITS)))
}

/// The shortest time that is longer than all in a bucket but the last.
fn upper(bucket: usize) -> Nanos {
    lower(bucket + 1)
}

fn octave(bucket: usize) -> (Nanos, Nanos) {
    let Some(i) = bucket.checked_sub(1) else {
        return (Nanos::ZERO, Nanos(1 << MIN_BITS));
    };
    let bits = (i >> SUB_BITS) as u32 + MIN_BITS;
    (Nanos(1 << bits), Nanos(1 << (bits + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[u64]) -> Histogram {
        let mut all = Histogram::default();
        times.iter().for_each(|&t| all.add(Nanos(t)));
        all
    }

    #[test]
    fn the_kernel_has_the_same_buckets() {
        let header = include_str!("../bpf/histogram.h");
        for (name, value) in [
            ("GDIAG_HIST_SUB_BITS", SUB_BITS),
            ("GDIAG_HIST_MIN_BITS", MIN_BITS),
            ("GDIAG_HIST_MAX_BITS", MAX_BITS),
        ] {
            assert!(
                header.contains(&format!("#define {name} {value}\n")),
                "{name}"
            );
        }
        assert_eq!(BUCKETS, 241);
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for b in 1..BUCKETS {
            let from = lower(b);
            assert_eq!(bucket(from), b);
            assert_eq!(bucket(Nanos(from.0 - 1)), b - 1);
        }
        assert_eq!(bucket(Nanos::MAX), BUCKETS - 1);
        assert_eq!(bucket(Nanos::ZERO), 0);
    }

    #[test]
    fn a_percentile_is_within_6_percent() {
        let all = of(&(1..=10_000).map(|i| i * 1_000).collect::<Vec<_>>());
        for (share, truth) in [(0.5, 5_000_000_u64), (0.9, 9_000_000), (0.99, 9_900_000)] {
            let found = all.percentile(share).unwrap().0;
            assert!(
                found.abs_diff(truth) * 100 <= truth * 6,
                "{found} for {truth}"
            );
        }
        assert_eq!(all.percentile(1.0), Some(Nanos(10_000_000)));
        assert_eq!(all.average(), Some(Nanos(5_000_500)));
    }

    #[test]
    fn of_nothing_there_is_nothing_to_say() {
        let none = Histogram::default();
        assert_eq!((none.percentile(0.5), none.average()), (None, None));
        assert!(none.octaves().is_empty());
        let mut merged = of(&[700]);
        merged.merge(&none);
        assert_eq!(merged, of(&[700]));
    }

    #[test]
    fn merging_is_adding_both() {
        let mut a = of(&[200, 9_000, 1 << 40]);
        a.merge(&of(&[5, 70_000]));
        assert_eq!(a, of(&[5, 200, 9_000, 70_000, 1 << 40]));
    }

    #[test]
    fn a_part_is_what_the_whole_has_more() {
        let before = of(&[200, 300]);
        let mut now = before.clone();
        now.add(Nanos(9_000));
        let part = now.since(&before);
        assert_eq!((part.count, part.total), (1, Nanos(9_000)));
        assert_eq!(part.octaves(), [(Nanos(8_192), Nanos(16_384), 1)]);
        // The longest of all is that of the part; the shortest is at least known not to be shorter.
        assert_eq!(part.longest(), Some(Nanos(9_000)));
        assert_eq!((part.shortest(), part.min), (None, Nanos(8_192)));
        assert_eq!(part.shortest_text(), ">=8.19 us");

        let mut later = now.clone();
        later.add(Nanos(5_000));
        let part = later.since(&now);
        assert_eq!((part.shortest(), part.longest()), (None, None));
        assert!(part.min <= Nanos(5_000) && part.max >= Nanos(5_000));
        let median = part.percentile(0.5).unwrap();
        assert_eq!(part.percentile(1.0), Some(median));
        assert!(median.0.abs_diff(5_000) * 100 <= 5_000 * 6);
    }

    #[test]
    fn extremes_that_do_not_fit_are_no_panic() {
        let torn = Histogram::from_parts(1, Nanos(9), (Nanos(9), Nanos(5)), [1, 1]);
        assert!(torn.percentile(0.1).is_some());
        assert_eq!(torn.since(&of(&[])).count, 1);
        assert_eq!(torn.since(&of(&[1])).count, 0);
    }

    #[test]
    fn octaves_show_the_empty_ones_between() {
        let rows = of(&[10, 600, 601]).octaves();
        let counts: Vec<_> = rows.iter().map(|r| (r.0 .0, r.2)).collect();
        assert_eq!(counts, [(0, 1), (128, 0), (256, 0), (512, 2)]);
    }
}
