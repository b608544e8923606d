//! The private ABI between the simulated libcuda and the simulated libcupti.
//!
//! Both crates include this file, so there is one definition. The real pair talks
//! through undocumented tables; here libcuda looks [`ENTRY`] up in the libcupti
//! that it mapped, and reports calls and operations through the functions it gets.
//!
//! Times are CLOCK_MONOTONIC in ns; libcupti turns them into its own clock.

use core::ffi::{c_char, c_void, CStr};

/// Changed with every change of this file: the two libraries are built together.
pub const VERSION: u32 = 1;

/// Symbol of a [`Entry`] function in libcupti.
#[allow(dead_code)] // libcupti spells it as a function
pub const ENTRY: &CStr = c"gdiag_sim_link";

#[allow(dead_code)] // likewise
pub type Entry = extern "C" fn() -> *const Link;

/// What libcuda tells libcupti. The functions may be called from any thread.
#[repr(C)]
#[derive(Debug)]
pub struct Link {
    pub version: u32,
    /// A driver call begins. May write `data`.
    pub enter: extern "C" fn(&mut Call),
    /// A driver call is over: `end` and `result` are set.
    pub exit: extern "C" fn(&mut Call),
    /// An operation is about to be submitted, on the calling thread. Returns its slot, 0 when nobody wants a record.
    pub reserve: extern "C" fn(&Operation) -> u64,
    /// When the operation of a slot starts and ends: known now, even if it lies ahead.
    pub settle: extern "C" fn(slot: u64, start: u64, end: u64),
    pub sync: extern "C" fn(&Sync),
    pub event: extern "C" fn(&EventRecord),
    pub overhead: extern "C" fn(&Overhead),
}

/// A driver API call.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    pub cbid: u32,
    pub correlation: u32,
    pub context_id: u32,
    pub result: u32,
    pub context: *mut c_void,
    pub name: *const c_char,
    /// The kernel's name, for launches.
    pub symbol: *const c_char,
    /// The call's arguments as CUPTI shows them, null for most calls.
    pub params: *const c_void,
    /// `correlationData` of the callback: the subscriber's own word.
    pub data: u64,
    pub start: u64,
    pub end: u64,
}

/// Values of [`Operation::what`].
pub mod what {
    pub const KERNEL: u32 = 0;
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    pub const MEMCPY_PEER: u32 = 3;
    /// Managed memory moves: bytes, and the direction as a copyKind.
    pub const MIGRATION: u32 = 4;
}

/// A device operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// One of [`what`].
    pub what: u32,
    pub device: u32,
    pub context_id: u32,
    pub stream_id: u32,
    pub correlation: u32,
    /// Source and destination of a peer copy: device and context.
    pub source: [u32; 2],
    pub destination: [u32; 2],
    pub priority: i32,
    /// The kernel's name, which stays valid for ever.
    pub name: *const c_char,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// CUPTI's copyKind, srcKind and dstKind.
    pub copy_kind: u8,
    pub src_kind: u8,
    pub dst_kind: u8,
    /// 1: the call was an asynchronous one.
    pub asynchronous: u8,
    pub bytes: u64,
    /// What a memset writes.
    pub value: u32,
}

/// CUPTI's value for "no single stream" and "no event".
pub const NONE: u32 = u32::MAX;

/// A synchronisation, with the host's times.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sync {
    /// CUPTI's type.
    pub what: u32,
    pub correlation: u32,
    pub context_id: u32,
    pub stream_id: u32,
    pub event_id: u32,
    pub result: u32,
    pub start: u64,
    pub end: u64,
}

/// An event was recorded in a stream.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventRecord {
    pub correlation: u32,
    pub device: u32,
    pub context_id: u32,
    pub stream_id: u32,
    pub event_id: u32,
}

/// Time that the driver took by itself, on the calling thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// CUPTI's overheadKind.
    pub what: u32,
    pub correlation: u32,
    pub start: u64,
    pub end: u64,
}
