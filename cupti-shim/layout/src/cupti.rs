//! The parts of CUPTI's activity records that never moved.
//!
//! CUPTI writes the newest version of each record whatever it was asked for, and new
//! versions only add fields at the end. These structs are the common beginning for CUPTI
//! 11.7 to 13.5; none is longer than the shortest record of its kind, so a record can be
//! read through them without knowing the library's version. They live in this crate so
//! that the shim, the simulated libcupti and the check against NVIDIA's headers share one
//! definition.

use core::mem::{offset_of, size_of};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Numbers of `CUpti_ActivityKind`. They were never renumbered.
pub mod activity {
    pub const MEMCPY: u32 = 1;
    pub const MEMSET: u32 = 2;
    pub const DRIVER: u32 = 4;
    pub const RUNTIME: u32 = 5;
    pub const CONCURRENT_KERNEL: u32 = 10;
    pub const OVERHEAD: u32 = 17;
    pub const MEMCPY2: u32 = 22;
    pub const UNIFIED_MEMORY_COUNTER: u32 = 25;
    pub const SYNCHRONIZATION: u32 = 38;
    pub const GRAPH_TRACE: u32 = 51;
}

/// CONCURRENT_KERNEL: `CUpti_ActivityKernel5` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Kernel {
    pub kind: u32,
    pub config: [u8; 12],
    pub start: u64,
    pub end: u64,
    pub completed: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub memory: [u32; 4],
    pub correlation: u32,
    pub grid_id: u64,
    /// Address of the mangled name, NUL-terminated, in the process.
    pub name: u64,
    pub reserved: u64,
    pub queued: u64,
    pub submitted: u64,
    pub launch: [u8; 8],
    pub graph_node: u64,
    pub shared_memory_limit: u32,
    pub graph: u32,
}

/// MEMCPY: `CUpti_ActivityMemcpy5` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Memcpy {
    pub kind: u32,
    pub copy_kind: u8,
    pub src_kind: u8,
    pub dst_kind: u8,
    pub flags: u8,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub runtime_correlation: u32,
    pub pad: u32,
    pub reserved: u64,
    pub graph_node: u64,
    pub graph: u32,
    pub channel: u32,
}

/// MEMCPY2, a copy between devices: `CUpti_ActivityMemcpyPtoP4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct MemcpyPeer {
    pub kind: u32,
    pub copy_kind: u8,
    pub src_kind: u8,
    pub dst_kind: u8,
    pub flags: u8,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub src_device: u32,
    pub src_context: u32,
    pub dst_device: u32,
    pub dst_context: u32,
    pub correlation: u32,
    pub reserved: u64,
    pub graph_node: u64,
    pub graph: u32,
    pub channel: u32,
}

/// MEMSET: `CUpti_ActivityMemset4` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Memset {
    pub kind: u32,
    pub value: u32,
    pub bytes: u64,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub flags: u16,
    pub memory_kind: u16,
    pub pad: u32,
    pub reserved: u64,
    pub graph_node: u64,
    pub graph: u32,
    pub channel: u32,
}

/// SYNCHRONIZATION: `CUpti_ActivitySynchronization` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Synchronization {
    pub kind: u32,
    pub sync_type: u32,
    pub start: u64,
    pub end: u64,
    pub correlation: u32,
    pub context: u32,
    pub stream: u32,
    pub event: u32,
}

/// RUNTIME and DRIVER: `CUpti_ActivityAPI`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Api {
    pub kind: u32,
    pub cbid: u32,
    pub start: u64,
    pub end: u64,
    pub process: u32,
    pub thread: u32,
    pub correlation: u32,
    pub result: u32,
}

/// OVERHEAD: `CUpti_ActivityOverhead` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct Overhead {
    pub kind: u32,
    pub overhead_kind: u32,
    pub object_kind: u32,
    /// Process and thread, or device, context and stream.
    pub object: [u32; 3],
    pub start: u64,
    pub end: u64,
}

/// GRAPH_TRACE: `CUpti_ActivityGraphTrace` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct GraphTrace {
    pub kind: u32,
    pub correlation: u32,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub graph: u32,
    pub context: u32,
    pub stream: u32,
}

/// UNIFIED_MEMORY_COUNTER: `CUpti_ActivityUnifiedMemoryCounter2` and later.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct UnifiedMemory {
    pub kind: u32,
    /// One of [`unified_memory`].
    pub counter_kind: u32,
    /// Bytes that moved, or groups of faults.
    pub value: u64,
    pub start: u64,
    pub end: u64,
    pub address: u64,
    /// A device, or [`unified_memory::HOST`]. Faults are those of the source.
    pub src: u32,
    pub dst: u32,
    pub stream: u32,
    pub process: u32,
    pub flags: u32,
    pub pad: u32,
}

/// Numbers of `CUpti_ActivityUnifiedMemoryCounterKind` and what goes with them.
pub mod unified_memory {
    pub const TO_DEVICE: u32 = 1;
    pub const TO_HOST: u32 = 2;
    pub const DEVICE_FAULTS: u32 = 4;

    /// The host, where a device is named.
    pub const HOST: u32 = u32::MAX;

    /// Values of `CUpti_ActivityUnifiedMemoryCounterScope`.
    pub const ONE_DEVICE: u32 = 1;
    pub const ALL_DEVICES: u32 = 2;
}

/// `CUpti_ActivityUnifiedMemoryCounterConfig`: what of it is to be recorded.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct UnifiedMemoryConfig {
    pub scope: u32,
    pub kind: u32,
    pub device: u32,
    pub enable: u32,
}

// Offsets measured over the headers of 17 releases, 11.7 to 13.5.
const _: () = {
    assert!(size_of::<Kernel>() == 160);
    assert!(offset_of!(Kernel, start) == 16);
    assert!(offset_of!(Kernel, end) == 24);
    assert!(offset_of!(Kernel, device) == 40);
    assert!(offset_of!(Kernel, context) == 44);
    assert!(offset_of!(Kernel, stream) == 48);
    assert!(offset_of!(Kernel, correlation) == 92);
    assert!(offset_of!(Kernel, name) == 104);
    assert!(offset_of!(Kernel, graph_node) == 144);
    assert!(offset_of!(Kernel, graph) == 156);

    assert!(size_of::<Memcpy>() == 80);
    assert!(offset_of!(Memcpy, copy_kind) == 4);
    assert!(offset_of!(Memcpy, src_kind) == 5);
    assert!(offset_of!(Memcpy, dst_kind) == 6);
    assert!(offset_of!(Memcpy, flags) == 7);
    assert!(offset_of!(Memcpy, bytes) == 8);
    assert!(offset_of!(Memcpy, start) == 16);
    assert!(offset_of!(Memcpy, end) == 24);
    assert!(offset_of!(Memcpy, device) == 32);
    assert!(offset_of!(Memcpy, context) == 36);
    assert!(offset_of!(Memcpy, stream) == 40);
    assert!(offset_of!(Memcpy, correlation) == 44);
    assert!(offset_of!(Memcpy, graph_node) == 64);
    assert!(offset_of!(Memcpy, graph) == 72);

    assert!(size_of::<MemcpyPeer>() == 88);
    assert!(offset_of!(MemcpyPeer, start) == 16);
    assert!(offset_of!(MemcpyPeer, device) == 32);
    assert!(offset_of!(MemcpyPeer, correlation) == 60);
    assert!(offset_of!(MemcpyPeer, graph_node) == 72);
    assert!(offset_of!(MemcpyPeer, graph) == 80);

    assert!(size_of::<Memset>() == 80);
    assert!(offset_of!(Memset, bytes) == 8);
    assert!(offset_of!(Memset, start) == 16);
    assert!(offset_of!(Memset, end) == 24);
    assert!(offset_of!(Memset, device) == 32);
    assert!(offset_of!(Memset, correlation) == 44);
    assert!(offset_of!(Memset, memory_kind) == 50);
    assert!(offset_of!(Memset, graph_node) == 64);
    assert!(offset_of!(Memset, graph) == 72);

    assert!(size_of::<Synchronization>() == 40);
    assert!(offset_of!(Synchronization, sync_type) == 4);
    assert!(offset_of!(Synchronization, start) == 8);
    assert!(offset_of!(Synchronization, end) == 16);
    assert!(offset_of!(Synchronization, correlation) == 24);
    assert!(offset_of!(Synchronization, context) == 28);
    assert!(offset_of!(Synchronization, stream) == 32);
    assert!(offset_of!(Synchronization, event) == 36);

    assert!(size_of::<Api>() == 40);
    assert!(offset_of!(Api, cbid) == 4);
    assert!(offset_of!(Api, start) == 8);
    assert!(offset_of!(Api, end) == 16);
    assert!(offset_of!(Api, thread) == 28);
    assert!(offset_of!(Api, correlation) == 32);
    assert!(offset_of!(Api, result) == 36);

    assert!(size_of::<Overhead>() == 40);
    assert!(offset_of!(Overhead, overhead_kind) == 4);
    assert!(offset_of!(Overhead, object_kind) == 8);
    assert!(offset_of!(Overhead, object) == 12);
    assert!(offset_of!(Overhead, start) == 24);
    assert!(offset_of!(Overhead, end) == 32);

    assert!(size_of::<UnifiedMemory>() == 64);
    assert!(offset_of!(UnifiedMemory, counter_kind) == 4);
    assert!(offset_of!(UnifiedMemory, value) == 8);
    assert!(offset_of!(UnifiedMemory, start) == 16);
    assert!(offset_of!(UnifiedMemory, end) == 24);
    assert!(offset_of!(UnifiedMemory, src) == 40);
    assert!(offset_of!(UnifiedMemory, dst) == 44);

    assert!(size_of::<UnifiedMemoryConfig>() == 16);

    assert!(size_of::<GraphTrace>() == 40);
    assert!(offset_of!(GraphTrace, correlation) == 4);
    assert!(offset_of!(GraphTrace, start) == 8);
    assert!(offset_of!(GraphTrace, end) == 16);
    assert!(offset_of!(GraphTrace, device) == 24);
    assert!(offset_of!(GraphTrace, graph) == 28);
    assert!(offset_of!(GraphTrace, context) == 32);
    assert!(offset_of!(GraphTrace, stream) == 36);
};
