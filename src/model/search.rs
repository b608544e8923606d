//! Binary search that begins where the last one ended.
//!
//! The analysis goes through time, and through sorted lists with it: the next answer is nearly
//! always a few places from the last. A search over millions of entries from scratch misses
//! the cache at every step.
#![forbid(unsafe_code)]

use std::cell::Cell;

/// Where the last search ended. A stale hint costs time, never a wrong answer.
#[derive(Clone, Debug, Default)]
pub struct Hint(Cell<usize>);

impl Hint {
    /// The number of entries at the front of `0..len` for which `before` holds; like
    /// [`slice::partition_point`], of which it is a faster equal.
    pub fn partition_point(&self, len: usize, before: impl Fn(usize) -> bool) -> usize {
        let hint = self.0.get().min(len);
        let (mut lo, mut hi);
        let mut step = 1;
        if hint > 0 && !before(hint - 1) {
            hi = hint - 1;
            lo = 0;
            while hi > 0 {
                let probe = hi.saturating_sub(step);
                if before(probe) {
                    lo = probe + 1;
                    break;
                }
                hi = probe;
                step *= 2;
            }
        } else {
            lo = hint;
            hi = len;
            while lo < len {
                let probe = (lo + step - 1).min(len - 1);
                if !before(probe) {
                    hi = probe;
                    break;
                }
                lo = probe + 1;
                step *= 2;
            }
        }
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            if before(middle) {
                lo = middle + 1;
            } else {
                hi = middle;
            }
        }
        self.0.set(lo);
        lo
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hint_gives_the_answer_of_a_plain_search() {
        for len in 0..20 {
            for answer in 0..=len {
                for hint in 0..25 {
                    let h = Hint(Cell::new(hint));
                    assert_eq!(
                        h.partition_point(len, |i| i < answer),
                        answer,
                        "{len} {hint}"
                    );
                    assert_eq!(h.0.get(), answer);
                }
            }
        }
    }
}
