//! What the driver itself says of a GPU at a moment, beside what gdiag measures.
#![forbid(unsafe_code)]

use crate::event::Pid;
use crate::units::{Bytes, Nanos};

/// Facts are asked for each second. Older ones say that the driver does not answer, not how the card is.
pub const STALE_AFTER: Nanos = Nanos::from_secs(3);

/// A card, as NVML describes it. `None` is what this card or driver does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFacts {
    /// The number that NVML and `nvidia-smi` give it.
    pub index: u32,
    /// As CUPTI has it: `GPU-…`; empty when it is not known.
    pub uuid: String,
    pub name: String,
    /// When it was asked; CLOCK_MONOTONIC.
    pub at: Nanos,
    /// Why much is missing, in a word or two: `lost`, `MIG`.
    pub note: Option<String>,
    /// Share of the driver's last sample period in which a kernel ran, 0 to 100: the `GPU-Util` of nvidia-smi.
    pub utilization: Option<u32>,
    /// The same of its memory being read or written.
    pub memory_utilization: Option<u32>,
    /// Without what the driver keeps for itself, as nvidia-smi has it.
    pub memory_used: Option<Bytes>,
    pub memory_total: Option<Bytes>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    pub temperature_celsius: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub sm_clock_max_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// Why the clocks are lower than they could be, in a few words each; empty: they are not. `GPU idle` is no reason.
    pub throttle: Option<Vec<String>>,
    /// Processes that compute on it, and how much of its memory they have. `None` also where gdiag does not know
    /// their pids on the host.
    pub processes: Option<Vec<(Pid, Option<Bytes>)>>,
}

impl GpuFacts {
    /// Too old at `now` to say how the card is.
    pub fn is_stale(&self, now: Nanos) -> bool {
        now.saturating_sub(self.at) > STALE_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_stale_after_three_seconds_and_not_before_they_were_asked_for() {
        let facts = GpuFacts {
            at: Nanos::from_secs(100),
            ..GpuFacts::default()
        };
        assert!(!facts.is_stale(Nanos::from_secs(103)));
        assert!(facts.is_stale(Nanos(103_000_000_001)));
        assert!(!facts.is_stale(Nanos::from_secs(99)));
    }
}
