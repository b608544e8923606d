//! From a timeline to an explanation.
#![forbid(unsafe_code)]

pub mod cause;
pub mod report;
