//! Whether the collector is alive.

use gdiag_shim_layout::BEAT_TIMEOUT_MS;

const MS: u64 = 1_000_000;

/// A launched command collects before gdiag has found its shim. Give that more time than a beat,
/// as long as gdiag lives.
const FIRST_BEAT_TIMEOUT_MS: u64 = 5_000;

/// The last beat, and when it was seen to move (CLOCK_MONOTONIC ns).
#[derive(Debug)]
pub(crate) struct Beat {
    value: u64,
    at: u64,
    ever: bool,
}

impl Beat {
    pub(crate) fn none(now: u64) -> Beat {
        Beat {
            value: 0,
            at: now,
            ever: false,
        }
    }

    pub(crate) fn was_seen(&self) -> bool {
        self.ever
    }

    /// The collector has the usual time for its next beat.
    pub(crate) fn expect_the_next(&mut self, now: u64) {
        self.at = now;
        self.ever = true;
    }

    /// Whether the collector lives, by the beat that it has now.
    pub(crate) fn look(&mut self, value: u64, now: u64) -> bool {
        if value != self.value {
            *self = Beat {
                value,
                at: now,
                ever: true,
            };
        }
        let timeout = if self.ever {
            BEAT_TIMEOUT_MS
        } else {
            FIRST_BEAT_TIMEOUT_MS
        };
        now.saturating_sub(self.at) < timeout * MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_counts_when_it_moves() {
        let mut beat = Beat::none(0);
        assert!(
            beat.look(0, (FIRST_BEAT_TIMEOUT_MS - 1) * MS),
            "launched: the first beat may take long"
        );
        assert!(!beat.look(0, FIRST_BEAT_TIMEOUT_MS * MS));
        assert!(beat.look(1, 6_000 * MS));
        assert!(beat.look(1, (6_000 + BEAT_TIMEOUT_MS - 1) * MS));
        assert!(!beat.look(1, (6_000 + BEAT_TIMEOUT_MS) * MS));
        assert!(beat.look(7, 9_000 * MS), "it came back");
    }
}
