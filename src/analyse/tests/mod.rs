//! The engine on small recordings, one rule or cause each.

mod device;
mod gaps;
mod host;
mod probed;
pub(super) mod random;
mod sampled;
pub(super) mod story;
mod syscalls;
mod trust;
mod walk;
