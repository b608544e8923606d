//! Bytes from the sources → [`Event`](crate::event::Event)s. Nothing after this module sees a wire struct.

pub mod clock;
pub mod gpu;
pub mod python;
pub mod sched;
pub mod sched_sum;
pub mod stacks;
pub mod syscalls;
