//! The exported driver API: real names, real signatures.
//!
//! Pointers come from the program under test, as with the real driver: a wrong one is the program's fault.

mod device;
mod event;
mod launch;
mod memory;
mod stream;

use std::ffi::c_void;

/// The program's handles: opaque, never followed.
pub type Opaque = *mut c_void;
