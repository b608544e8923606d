//! A simulated libcupti for gdiag's tests: the activity API that the shim uses, with the
//! record layouts and the behaviour of a chosen CUPTI version.
//!
//! The simulated libcuda reports calls and operations through [`link`]; [`session`] turns
//! them into records and buffers. The marker symbol `gdiag_simulated` tells the shim that
//! nothing here is real. `GDIAG_SIM_*` variables choose the version and inject faults, see [`config`].

mod api;
mod config;
mod record;
mod session;
mod version;

#[path = "../../clock.rs"]
mod clock;
#[path = "../../link.rs"]
mod link;

/// Activity kinds by CUPTI's numbers.
mod kind {
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    pub const KERNEL: u32 = 3;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const CONCURRENT_KERNEL: u32 = 10;
    pub const OVERHEAD: u32 = 17;
    pub const MEMCPY2: u32 = 22;
    pub const UNIFIED_MEMORY_COUNTER: u32 = 25;
    pub const CUDA_EVENT: u32 = 36;
    pub const SYNCHRONIZATION: u32 = 38;
    /// The highest in any version.
    pub const LAST: u32 = 59;
}

/// Kinds of overhead records.
mod overhead {
    pub const BUFFER_FLUSH: u32 = 1 << 16;
    pub const COMMAND_BUFFER_FULL: u32 = 6 << 16;
    pub const ACTIVITY_BUFFER_REQUEST: u32 = 7 << 16;
}
