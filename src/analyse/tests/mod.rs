//! The engine on small recordings, one rule or cause each.

mod device;
mod gaps;
mod host;
mod random;
pub(super) mod story;
mod trust;
