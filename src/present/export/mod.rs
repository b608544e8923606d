//! Timelines in formats of other tools: what is shown comes from `analyse`, here it is laid out.
#![forbid(unsafe_code)]

pub mod chrome;
pub mod perfetto;

use crate::units::Nanos;

/// What a file says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub gdiag_version: String,
    pub host: String,
    /// Release of the kernel, and the machine.
    pub kernel: String,
    pub machine: String,
    pub command: Vec<String>,
    pub gpu_source: &'static str,
    /// Beginning of the recording, on CLOCK_MONOTONIC, and by the wall clock; `None` when not known.
    pub start: Nanos,
    pub start_unix: Option<Nanos>,
}

/// How far it can be trusted, known at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Events and records that were lost.
    pub lost: u64,
    pub warnings: Vec<String>,
}
