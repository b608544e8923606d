//! Sets of time, as sorted intervals that do not touch.
#![forbid(unsafe_code)]

use crate::model::search::Hint;
use crate::units::Nanos;

#[derive(Clone, Debug, Default)]
pub(super) struct Intervals {
    /// Sorted and disjoint, none empty.
    list: Vec<(Nanos, Nanos)>,
    /// Total length of the intervals before each one.
    before: Vec<u64>,
    hint: Hint,
}

impl PartialEq for Intervals {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Intervals {
    /// The union. Empty and inverted intervals count for nothing.
    pub(super) fn union_of(mut list: Vec<(Nanos, Nanos)>) -> Self {
        list.retain(|(from, to)| from < to);
        list.sort_unstable();
        list.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
        let mut before = Vec::with_capacity(list.len());
        let mut total = 0;
        for (from, to) in &list {
            before.push(total);
            total += to.0 - from.0;
        }
        Intervals {
            list,
            before,
            hint: Hint::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Nanos, Nanos)> + '_ {
        self.list.iter().copied()
    }

    /// The parts of `[from, to)` that are in the set, in order.
    pub(super) fn within(
        &self,
        from: Nanos,
        to: Nanos,
    ) -> impl Iterator<Item = (Nanos, Nanos)> + '_ {
        let first = self
            .hint
            .partition_point(self.list.len(), |i| self.list[i].1 <= from);
        self.list[first..]
            .iter()
            .take_while(move |i| i.0 < to)
            .map(move |i| (i.0.max(from), i.1.min(to)))
            .filter(|(from, to)| from < to)
    }

    pub(super) fn overlaps(&self, from: Nanos, to: Nanos) -> bool {
        self.within(from, to).next().is_some()
    }

    /// How much of the set lies before `t`.
    fn total_before(&self, t: Nanos) -> u64 {
        let i = self
            .hint
            .partition_point(self.list.len(), |i| self.list[i].0 < t);
        match i.checked_sub(1) {
            Some(last) => self.before[last] + (self.list[last].1.min(t).0 - self.list[last].0 .0),
            None => 0,
        }
    }

    /// How much of `[from, to)` is in the set.
    pub(super) fn total_in(&self, from: Nanos, to: Nanos) -> Nanos {
        Nanos(self.total_before(to.max(from)) - self.total_before(from))
    }

    /// Cuts `[from, to)` into pieces inside and outside of the set, in order.
    pub(super) fn cut(&self, from: Nanos, to: Nanos, mut each: impl FnMut(Nanos, Nanos, bool)) {
        let mut at = from;
        for (start, end) in self.within(from, to) {
            if at < start {
                each(at, start, false);
            }
            each(start, end, true);
            at = end;
        }
        if at < to {
            each(at, to, false);
        }
    }
}

/// For an interval that `t` belongs to.
pub(super) fn just_after(t: Nanos) -> Nanos {
    Nanos(t.0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &[(u64, u64)]) -> Intervals {
        Intervals::union_of(list.iter().map(|&(a, b)| (Nanos(a), Nanos(b))).collect())
    }

    #[test]
    fn a_union_merges_what_touches_and_drops_what_is_empty() {
        let s = set(&[(5, 9), (1, 3), (3, 4), (8, 12), (20, 20), (30, 25)]);
        assert_eq!(s, set(&[(1, 4), (5, 12)]));
    }

    #[test]
    fn totals_and_pieces_agree() {
        let s = set(&[(1, 4), (6, 8)]);
        for from in 0..10 {
            for to in from..10 {
                let sum: u64 = s
                    .within(Nanos(from), Nanos(to))
                    .map(|(a, b)| b.0 - a.0)
                    .sum();
                assert_eq!(s.total_in(Nanos(from), Nanos(to)).0, sum);
                let mut pieces = 0;
                s.cut(Nanos(from), Nanos(to), |a, b, _| pieces += b.0 - a.0);
                assert_eq!(pieces, to - from);
                assert_eq!(s.overlaps(Nanos(from), Nanos(to)), sum > 0);
            }
        }
    }
}
