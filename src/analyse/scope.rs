//! Which part of a timeline is asked about.
//!
//! A recording is looked at as a whole. The live view looks at slices of what came in last: what is around a
//! slice is there to explain what is in it, and counts in the slices around it.
#![forbid(unsafe_code)]

use crate::model::Timeline;
use crate::units::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// The timeline ends where it does because no more has come yet.
    pub(super) goes_on: bool,
}

impl Scope {
    pub(super) const WHOLE: Scope = Scope {
        from: Nanos::ZERO,
        to: Nanos::MAX,
        goes_on: false,
    };

    pub(super) fn is_whole(self) -> bool {
        self == Scope::WHOLE
    }

    /// What is known when it ends, counts where it ends.
    pub(super) fn has(self, at: Nanos) -> bool {
        self.from <= at && (at < self.to || self.to == Nanos::MAX)
    }

    /// Where it ends, or the recording if that is earlier.
    pub(super) fn end(self, t: &Timeline) -> Nanos {
        if self.goes_on {
            self.to
        } else {
            self.to.min(t.end())
        }
    }

    /// The part of `[from, to)` that is in it, maybe empty.
    pub(super) fn clip(self, (from, to): (Nanos, Nanos)) -> (Nanos, Nanos) {
        let start = from.clamp(self.from, self.to);
        (start, to.clamp(start, self.to))
    }

    pub(super) fn overlaps(self, from: Nanos, to: Nanos) -> bool {
        self.is_whole() || (from < self.to && to > self.from)
    }
}
