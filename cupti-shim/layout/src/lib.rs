//! The shared memory between gdiag and its shim, defined once for both sides.
//!
//! The shim owns a memfd named [`MEMFD_NAME`], sealed against shrinking, one for
//! each process. It starts with a [`Control`] page, then comes the [`ring`]. gdiag finds
//! it in `/proc/PID/maps` and maps it through `/proc/PID/map_files`, so it works
//! across mount, PID and network namespaces and outlives the process.
//!
//! Who writes what:
//! - the shim: everything but the fields of the collector; it alone moves `head`;
//! - gdiag: `wanted`, `session`, `beat` and `tail`.
//!
//! To gdiag all of this is untrusted input: a record counts only after its size
//! and kind were checked on a private copy.
//!
//! Times in records are CUPTI's own (CLOCK_REALTIME on Linux), as CUPTI wrote
//! them; gdiag converts. Thread ids are those of the target's PID namespace.
#![no_std]

use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub mod api;
pub mod cupti;
pub mod ring;

/// Name of the memfd; `/proc/PID/maps` shows it as `/memfd:gdiag-shim (deleted)`.
pub const MEMFD_NAME: &str = "gdiag-shim";

/// Name of the shim's own thread. The kernel announces the renaming (`task_rename`), and that
/// is how gdiag learns, with the host's ids, that a process has a shim: no socket, no path.
pub const THREAD_NAME: &str = "gdiag-shim";

pub const MAGIC: u64 = u64::from_le_bytes(*b"gdiagshm");

/// Bumped by every change of this file that the other side could misread.
pub const VERSION: u32 = 1;

/// Offset of the ring: the control block has the first page.
pub const RING_OFFSET: u64 = 4096;

/// Default size of the ring in bytes: at 265,000 launches a second (104 B each, kernel and call) one second of records.
pub const RING_BYTES: u64 = 32 << 20;

/// gdiag increases [`Control::beat`] at least this often while it collects.
pub const BEAT_MS: u64 = 100;

/// A shim that sees no beat for this long stops collecting until the beat is back.
pub const BEAT_TIMEOUT_MS: u64 = 700;

/// How often the shim asks CUPTI for complete buffers, and looks for the beat. Asking takes CUPTI's
/// lock for up to some milliseconds, in which launches wait; full buffers come without being asked for.
pub const FLUSH_MS: u64 = 250;

const _: () = assert!(
    BEAT_TIMEOUT_MS + FLUSH_MS < 1000,
    "a dead collector is noticed within a second"
);

/// Environment of a command that gdiag launches: collect from `cuInit` on, without being asked,
/// as long as gdiag holds an exclusive `flock` on the file that the shim was loaded from.
pub const ENV_START: &str = "GDIAG_SHIM_START";
/// With [`ENV_START`]: `1` also records what happens to managed memory.
pub const ENV_UNIFIED_MEMORY: &str = "GDIAG_SHIM_UNIFIED_MEMORY";
/// Kill switch: `GDIAG_DISABLE=1` makes the shim return from its entry at once.
pub const ENV_DISABLE: &str = "GDIAG_DISABLE";
/// Size of the ring in MiB, a power of two, 1 to 1024.
pub const ENV_RING_MIB: &str = "GDIAG_SHIM_RING_MIB";

/// Values of [`Control::state`].
pub mod state {
    /// The shim has not finished setting up.
    pub const STARTING: u32 = 0;
    /// Loaded, collects nothing.
    pub const DORMANT: u32 = 1;
    pub const ACTIVE: u32 = 2;
    /// Stopped by itself: no beat. Collects again when the beat is back.
    pub const PAUSED: u32 = 3;
    /// Another tool holds CUPTI, or took our buffers over; `reason` says what is known.
    pub const BUSY: u32 = 4;
    /// Cannot collect in this process; `reason` says why.
    pub const FAILED: u32 = 5;
    /// The process is ending: nothing will come any more.
    pub const FINISHED: u32 = 6;
}

/// The first page of the memfd.
///
/// All fields are atomics because both processes may look at any time. The shim writes the
/// strings before it stores `state` with release order.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    /// `size_of::<Control>()` of the writer.
    pub size: AtomicU32,
    pub ring_offset: AtomicU64,
    /// Power of two.
    pub ring_bytes: AtomicU64,
    /// Process id as the target sees it.
    pub ns_pid: AtomicU32,
    /// One of [`state`].
    pub state: AtomicU32,
    /// `cuptiGetVersion`, 0 before it is known.
    pub cupti_version: AtomicU32,
    /// `cuDriverGetVersion`, for example 13000; 0 before it is known.
    pub driver_version: AtomicU32,
    /// 1 when libcupti is the simulator's.
    pub simulated: AtomicU32,
    /// Activity kinds that CUPTI refused, as a bit set over kind numbers below 64.
    pub refused_kinds: AtomicU64,
    /// `cuptiGetTimestamp` minus CLOCK_REALTIME in ns (two's complement), measured when collecting began.
    pub clock_offset_ns: AtomicU64,
    /// Records that did not fit into the ring, since the session began.
    pub lost_ring: AtomicU64,
    /// Records that CUPTI dropped, since the session began.
    pub lost_cupti: AtomicU64,
    /// Times that CUPTI asked for a buffer when the pool was empty and got the discard buffer.
    pub pool_empty: AtomicU64,
    /// Bytes that the ring needed at most.
    pub ring_peak: AtomicU64,
    /// Records of kinds that the shim does not know, since the session began. They were skipped.
    pub unknown_records: AtomicU64,
    _pad0: [u8; 16],

    // gdiag writes from here…
    /// 1: collect. Also the futex that the dormant shim sleeps on: after any change here, wake it
    /// (`FUTEX_WAKE` without the private flag). Starts as 1 with [`ENV_START`].
    pub wanted: AtomicU32,
    /// Goes up when a collector takes over: counters start from zero, and names and devices are
    /// sent again after a STATE record. What comes before that record belongs to the last session.
    pub session: AtomicU32,
    /// Sign of life of the collector.
    pub beat: AtomicU64,
    /// Who collects, for a second gdiag that wants the same process: its pid in the high half, the
    /// low half of its start time (field 22 of `/proc/PID/stat`) in the low one. 0: nobody.
    pub collector: AtomicU64,
    _pad1: [u8; 40],
    /// Bytes read, ever.
    pub tail: AtomicU64,
    _pad2: [u8; 56],
    // …to here.
    /// Bytes written, ever.
    pub head: AtomicU64,
    _pad3: [u8; 56],

    /// Why the state is what it is; a sentence, NUL-terminated UTF-8.
    pub reason: Text<256>,
    /// Path of the libcupti in use as the target sees it, NUL-terminated.
    pub cupti_path: Text<512>,
}

/// A NUL-terminated string that one process writes while the other may read. A reader that
/// comes at the wrong moment sees a mixture, never anything worse.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Text<N> {
    /// Cuts the text at its first NUL and to `N - 1` bytes.
    pub fn set(&self, text: &[u8]) {
        let end = text.iter().take_while(|b| **b != 0).take(N - 1).count();
        for (i, byte) in self.0.iter().enumerate() {
            byte.store(if i < end { text[i] } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Copies the text out and gives the part before the first NUL. It need not be UTF-8.
    pub fn get<'a>(&self, buffer: &'a mut [u8; N]) -> &'a [u8] {
        for (to, from) in buffer.iter_mut().zip(&self.0) {
            *to = from.load(Ordering::Relaxed);
        }
        let end = buffer.iter().position(|b| *b == 0).unwrap_or(N);
        &buffer[..end]
    }
}

const _: () = assert!(size_of::<Control>() <= RING_OFFSET as usize);
const _: () = assert!(core::mem::offset_of!(Control, wanted) % 64 == 0);
const _: () = assert!(core::mem::offset_of!(Control, tail) % 64 == 0);
const _: () = assert!(core::mem::offset_of!(Control, head) % 64 == 0);

/// Values of [`RecordHeader::kind`]. Append only, never reuse.
pub mod kind {
    /// Fills the end of the ring before it wraps.
    pub const PAD: u16 = 0;
    pub const NAME: u16 = 1;
    pub const KERNEL: u16 = 2;
    pub const MEMCPY: u16 = 3;
    pub const MEMSET: u16 = 4;
    pub const GRAPH: u16 = 5;
    pub const API: u16 = 6;
    pub const SYNC: u16 = 7;
    pub const OVERHEAD: u16 = 8;
    pub const DEVICE: u16 = 9;
    pub const LOST: u16 = 10;
    pub const STATE: u16 = 11;
    pub const MIGRATION: u16 = 12;
}

/// Every record starts with this and is a multiple of 8 bytes long.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct RecordHeader {
    /// Bytes of the whole record, header included.
    pub size: u16,
    /// One of [`kind`].
    pub kind: u16,
    /// Meaning depends on the kind, 0 where none is given.
    pub aux: u32,
}

/// Defines a kernel name; `len` bytes of text follow, padded to 8. `aux` is the id, unique in the session.
/// A name longer than [`MAX_NAME`] is cut by the shim.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct NameRecord {
    pub hdr: RecordHeader,
    pub len: u32,
    pub pad: u32,
}

/// Longest kernel name in bytes. Templates make names of 20,000 characters; the record's size is 16 bits.
pub const MAX_NAME: usize = 32 * 1024;

/// Distinct names that a shim remembers. A program that makes more (a tuner that compiles kernels
/// without end) has some sent again under new ids, which go up by one: only the last so many are in use.
pub const MAX_NAMES: usize = 1 << 16;

/// A kernel (CUPTI kind CONCURRENT_KERNEL). `aux` is the id of its name.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct KernelRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub node: u64,
    pub graph: u32,
    pub pad: u32,
}

/// A copy (MEMCPY, MEMCPY2). `aux` holds copyKind, srcKind, dstKind, flags, from the low byte up, with CUPTI's values.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct MemcpyRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub node: u64,
    pub graph: u32,
    pub pad: u32,
}

/// A memset. `aux` is CUPTI's memoryKind.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct MemsetRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
    pub node: u64,
    pub graph: u32,
    pub pad: u32,
}

/// A whole graph (GRAPH_TRACE). `aux` is the graph id.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct GraphRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    pub correlation: u32,
}

/// An API call. `aux` is the cbid; calls that [`api::lookup`] does not know are not sent.
///
/// A runtime call and the driver call that it made have the same correlation id, and both
/// are sent, the driver's first as a rule. Reading backwards to drop it would hold up the
/// ring, so that is the reader's work: of the two, keep the runtime's.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct ApiRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    /// In the target's PID namespace.
    pub tid: u32,
    pub correlation: u32,
    /// CUPTI's kind: 4 driver, 5 runtime.
    pub domain: u32,
    pub result: u32,
}

/// A synchronisation. `aux` is CUPTI's type.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct SyncRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    pub correlation: u32,
    pub context: u32,
    /// 0xFFFF_FFFF: no single stream.
    pub stream: u32,
    pub event: u32,
}

/// Overhead. `aux` is CUPTI's overheadKind.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct OverheadRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    /// CUPTI's objectKind: 2 when `object` is the thread.
    pub object_kind: u32,
    pub object: u32,
}

/// A device of this process. `aux` is its ordinal. Sent once a session, before its first operation where possible.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct DeviceRecord {
    pub hdr: RecordHeader,
    pub uuid: [u8; 16],
    /// NUL-terminated.
    pub name: [u8; 96],
}

/// Records were lost between two instants (CUPTI clock). `aux`: 0 the ring was full, 1 CUPTI dropped them.
/// A `count` of 0: nobody knows how many, because they did not come to the shim.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct LostRecord {
    pub hdr: RecordHeader,
    pub count: u64,
    pub from: u64,
    pub to: u64,
}

/// The state changed at `time` (CUPTI clock). `aux` is one of [`state`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct StateRecord {
    pub hdr: RecordHeader,
    pub time: u64,
}

/// Managed memory moved, or a device waited for it. `aux` is CUPTI's counterKind. Only with [`ENV_UNIFIED_MEMORY`].
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub struct MigrationRecord {
    pub hdr: RecordHeader,
    pub start: u64,
    pub end: u64,
    /// Bytes, or groups of faults.
    pub value: u64,
    /// The device's side of it.
    pub device: u32,
    pub pad: u32,
}

const _: () = {
    assert!(size_of::<RecordHeader>() == 8);
    assert!(size_of::<NameRecord>() == 16);
    assert!(size_of::<KernelRecord>() == 56);
    assert!(size_of::<MemcpyRecord>() == 64);
    assert!(size_of::<MemsetRecord>() == 64);
    assert!(size_of::<GraphRecord>() == 40);
    assert!(size_of::<ApiRecord>() == 40);
    assert!(size_of::<SyncRecord>() == 40);
    assert!(size_of::<OverheadRecord>() == 32);
    assert!(size_of::<DeviceRecord>() == 120);
    assert!(size_of::<LostRecord>() == 32);
    assert!(size_of::<StateRecord>() == 16);
    assert!(size_of::<MigrationRecord>() == 40);
};
