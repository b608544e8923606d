//! A simulated libcuda for gdiag's tests: real names, real signatures, real host time;
//! only the device is made up.
//!
//! Threads, waits, costs of calls and preemption are real, because gdiag watches them.
//! What the device does is computed by [`model`], and libcupti, which this library maps
//! from its own directory, writes the records. `GDIAG_SIM_*` variables set it up, see [`config`].

mod api;
mod call;
mod cbid;
mod config;
mod draws;
mod gaps;
mod init;
mod leads;
mod model;
mod runtime;

#[path = "../../clock.rs"]
mod clock;
#[path = "../../link.rs"]
mod link;
