//! Clocks: gdiag's is CLOCK_MONOTONIC; CUPTI stamps with CLOCK_REALTIME.
#![forbid(unsafe_code)]

use nix::time::{clock_gettime, ClockId};

use crate::event::ClockPair;
use crate::units::Nanos;

fn read(clock: ClockId) -> Nanos {
    // Both clocks exist on every Linux; the call cannot fail with a valid pointer.
    clock_gettime(clock).map_or(Nanos::ZERO, |t| {
        let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
        let nanos = u64::try_from(t.tv_nsec()).unwrap_or(0);
        Nanos(seconds * 1_000_000_000 + nanos)
    })
}

/// Now, on the clock of BPF and of everything in gdiag.
pub fn monotonic() -> Nanos {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Now, as the wall clock says.
pub fn realtime() -> Nanos {
    read(ClockId::CLOCK_REALTIME)
}

/// Both clocks at the same instant: the tightest of a few brackets, since a bracket that an
/// interrupt falls into is wide.
pub fn pair() -> ClockPair {
    (0..5)
        .map(|_| {
            let before = monotonic();
            let real = realtime();
            let after = monotonic();
            let width = after.saturating_sub(before);
            ClockPair {
                mono: Nanos(before.0 + width.0 / 2),
                real,
                error: Nanos(width.0.div_ceil(2)),
            }
        })
        .min_by_key(|p| p.error)
        .expect("five brackets were measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_lies_between_its_neighbours() {
        let before = monotonic();
        let pair = pair();
        let after = monotonic();
        assert!(before <= pair.mono && pair.mono <= after);
        assert!(
            pair.real.0 > 1_600_000_000_000_000_000,
            "the wall clock is set"
        );
    }
}
