//! What the driver itself says of a GPU at a moment, beside what gdiag measures.
#![forbid(unsafe_code)]

use crate::event::Pid;
use crate::units::{Bytes, Nanos};

/// A card, as NVML describes it. `None` is what this card or driver does not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuFacts {
    /// The number that NVML and `nvidia-smi` give it.
    pub index: u32,
    /// As CUPTI has it: `GPU-…`.
    pub uuid: String,
    pub name: String,
    /// When it was asked; CLOCK_MONOTONIC.
    pub at: Nanos,
    /// Share of the driver's last sample period in which a kernel ran, 0 to 100: the `GPU-Util` of nvidia-smi.
    pub utilization: Option<u32>,
    /// The same of its memory being read or written.
    pub memory_utilization: Option<u32>,
    pub memory_used: Option<Bytes>,
    pub memory_total: Option<Bytes>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    pub temperature_celsius: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub sm_clock_max_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    /// Why the clocks are lower than they could be, in a few words each; empty: they are not. `GPU idle` is no reason.
    pub throttle: Vec<String>,
    /// Processes that compute on it, by the pids that gdiag sees.
    pub processes: Vec<(Pid, Option<Bytes>)>,
}
