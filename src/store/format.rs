//! What is on disk. Nothing outside this directory names any of it.
//!
//! Numbers here are for ever: values are appended, never changed and never used
//! again. The layout as a whole, and what may change in a minor version, is told
//! in the docs of [`store`](super).
#![forbid(unsafe_code)]

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::event::{
    ApiDomain, Context, CopyKind, Cut, MemoryKind, MigrationKind, OverheadKind, Role, ShimState,
    StallKind, SyncKind,
};

/// A high bit and both line ends, so that a transfer as text is noticed at once.
pub(super) const MAGIC: [u8; 8] = *b"\x8bgdiag\r\n";
/// A reader refuses a file whose major version it does not know.
pub(super) const MAJOR: u16 = 1;
/// Chunk kinds, record kinds and trailing fields that were added; a reader skips those it does not know.
pub(super) const MINOR: u16 = 5;

/// Set from the start and cleared by finishing: whoever finds it looks at a recorder that runs, or was killed.
pub(super) const FLAG_UNFINISHED: u32 = 1;

/// At the start of the file. Magic, versions, length and checksum stay where they are in every version.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileHeader {
    pub(super) magic: [u8; 8],
    pub(super) major: U16,
    pub(super) minor: U16,
    /// Where the first chunk is.
    pub(super) len: U32,
    pub(super) flags: U32,
    /// CRC-32 of the bytes before it.
    pub(super) crc: U32,
}

pub(super) const FILE_HEADER_LEN: usize = 24;

impl FileHeader {
    pub(super) fn new(flags: u32) -> Self {
        let mut header = FileHeader {
            magic: MAGIC,
            major: MAJOR.into(),
            minor: MINOR.into(),
            len: U32::new(FILE_HEADER_LEN as u32),
            flags: flags.into(),
            crc: U32::ZERO,
        };
        header.crc = header.checksum().into();
        header
    }

    pub(super) fn checksum(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..FILE_HEADER_LEN - 4])
    }

    pub(super) fn is_sound(&self) -> bool {
        self.crc.get() == self.checksum() && self.len.get() as usize >= FILE_HEADER_LEN
    }
}

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkKind {
    /// [`Meta`](super::meta::Meta) as JSON. The first chunk.
    Meta,
    /// Records, see [`record`].
    Events,
    /// [`Summary`](super::meta::Summary) as JSON. The last chunk before the index.
    Summary,
    /// An [`IndexEntry`] for every chunk before it; several in a row when one is too small.
    Index,
}

impl ChunkKind {
    pub(super) fn code(self) -> u16 {
        match self {
            ChunkKind::Meta => 1,
            ChunkKind::Events => 2,
            ChunkKind::Summary => 3,
            ChunkKind::Index => 4,
        }
    }

    pub(super) fn from_code(code: u16) -> Option<Self> {
        Some(match code {
            1 => ChunkKind::Meta,
            2 => ChunkKind::Events,
            3 => ChunkKind::Summary,
            4 => ChunkKind::Index,
            _ => return None,
        })
    }
}

pub(super) const CODEC_NONE: u8 = 0;
pub(super) const CODEC_ZSTD: u8 = 1;

/// Starts every chunk, so that a reader that lost its way can find the next one.
pub(super) const CHUNK_MAGIC: [u8; 4] = *b"\x8bGDC";

/// The most that a chunk may hold before compression. A reader believes no greater length.
pub(super) const MAX_RAW_LEN: usize = 16 << 20;
/// Events are gathered until they take this much: enough for a good ratio, little to lose.
pub(super) const TARGET_RAW_LEN: usize = 256 << 10;
/// A longer name is cut. The longest template names seen in practice are some ten KiB.
pub(super) const MAX_TEXT_LEN: usize = 1 << 20;
/// A deeper stack, or a frame with more functions inlined into it, loses the outermost ones.
pub(super) const MAX_FRAMES: usize = 1 << 16;

/// Before the bytes of each chunk.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ChunkHeader {
    pub(super) magic: [u8; 4],
    /// See [`ChunkKind::code`].
    pub(super) kind: U16,
    /// [`CODEC_NONE`] or [`CODEC_ZSTD`].
    pub(super) codec: u8,
    pub(super) pad: u8,
    /// Bytes that follow in the file; never more than `raw_len`.
    pub(super) stored_len: U32,
    pub(super) raw_len: U32,
    pub(super) records: U32,
    /// CRC-32 of the stored bytes.
    pub(super) payload_crc: U32,
    /// Least and greatest time that a record in it mentions as its own; the least is the greater when there is none.
    pub(super) first_ns: U64,
    pub(super) last_ns: U64,
    /// CRC-32 of the bytes before it: with a checksum of its own, the header still tells
    /// what is missing when only the payload is damaged.
    pub(super) crc: U32,
}

pub(super) const CHUNK_HEADER_LEN: usize = 44;

impl ChunkHeader {
    pub(super) fn checksum(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..CHUNK_HEADER_LEN - 4])
    }

    /// Whole, and with lengths that a writer can have meant.
    pub(super) fn is_valid(&self) -> bool {
        self.magic == CHUNK_MAGIC
            && self.crc.get() == self.checksum()
            && self.raw_len.get() as usize <= MAX_RAW_LEN
            && self.stored_len <= self.raw_len
    }
}

/// One chunk, as the index tells it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct IndexEntry {
    pub(super) offset: U64,
    pub(super) first_ns: U64,
    pub(super) last_ns: U64,
    pub(super) records: U32,
    pub(super) kind: U16,
    pub(super) pad: U16,
}

pub(super) const INDEX_ENTRY_LEN: usize = 32;
/// Entries in one index chunk.
pub(super) const MAX_INDEX_ENTRIES: usize = MAX_RAW_LEN / INDEX_ENTRY_LEN;

/// At the very end of a finished file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Trailer {
    pub(super) summary_offset: U64,
    pub(super) index_offset: U64,
    /// CRC-32 of the bytes before it.
    pub(super) crc: U32,
    pub(super) magic: [u8; 4],
}

pub(super) const TRAILER_MAGIC: [u8; 4] = *b"\x8bGDE";
pub(super) const TRAILER_LEN: usize = 24;

impl Trailer {
    pub(super) fn new(summary_offset: u64, index_offset: u64) -> Self {
        let mut trailer = Trailer {
            summary_offset: summary_offset.into(),
            index_offset: index_offset.into(),
            crc: U32::ZERO,
            magic: TRAILER_MAGIC,
        };
        trailer.crc = trailer.checksum().into();
        trailer
    }

    fn checksum(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..TRAILER_LEN - 8])
    }

    pub(super) fn is_valid(&self) -> bool {
        self.magic == TRAILER_MAGIC && self.crc.get() == self.checksum()
    }
}

const _: () = {
    assert!(size_of::<FileHeader>() == FILE_HEADER_LEN);
    assert!(size_of::<ChunkHeader>() == CHUNK_HEADER_LEN);
    assert!(size_of::<IndexEntry>() == INDEX_ENTRY_LEN);
    assert!(size_of::<Trailer>() == TRAILER_LEN);
};

/// The first byte of a record.
///
/// The two high bits choose between the three *packed* kinds (there are millions
/// of them; the low bits say which fields follow) and a *framed* record, whose kind
/// is in the low bits and whose length follows as a varint. A reader skips framed
/// kinds that it does not know and ignores what it does not know at the end of
/// the others. Packed kinds are complete: there will be no fourth.
pub(super) mod record {
    pub(in crate::store) const FORM: u8 = 0xc0;
    pub(in crate::store) const SWITCH: u8 = 0x40;
    pub(in crate::store) const WAKING: u8 = 0x80;
    pub(in crate::store) const INTERRUPT: u8 = 0xc0;

    /// On the CPU of the packed record before.
    pub(in crate::store) const SAME_CPU: u8 = 0x01;
    /// prev, waker or interrupted thread: the one that runs there, as the chunk tells so far.
    pub(in crate::store) const CURRENT: u8 = 0x02;

    /// Of a switch: what follows. Absent fields are 0 or `None`.
    pub(in crate::store) const HAS_STATE: u8 = 0x04;
    pub(in crate::store) const HAS_SYSCALL: u8 = 0x08;
    pub(in crate::store) const HAS_FLAGS: u8 = 0x10;
    pub(in crate::store) const HAS_FAULTS: u8 = 0x20;

    /// Of a waking or an interrupt: the code of its context, and where it is.
    pub(in crate::store) const CONTEXT_SHIFT: u32 = 2;
    pub(in crate::store) const CONTEXT: u8 = 0x1c;

    // Framed kinds, 1 to 63.
    pub(in crate::store) const NAME: u8 = 1;
    pub(in crate::store) const STACK: u8 = 2;
    pub(in crate::store) const IRQ: u8 = 3;
    pub(in crate::store) const TASK: u8 = 4;
    pub(in crate::store) const EXIT: u8 = 5;
    pub(in crate::store) const WAIT: u8 = 6;
    pub(in crate::store) const STALL: u8 = 7;
    pub(in crate::store) const SIGNAL: u8 = 8;
    pub(in crate::store) const GPU_OP: u8 = 9;
    pub(in crate::store) const GPU_INVALID: u8 = 10;
    pub(in crate::store) const API_CALL: u8 = 11;
    pub(in crate::store) const SYNC: u8 = 12;
    pub(in crate::store) const OVERHEAD: u8 = 13;
    pub(in crate::store) const DEVICE: u8 = 14;
    pub(in crate::store) const SHIM: u8 = 15;
    pub(in crate::store) const PROCESS: u8 = 16;
    pub(in crate::store) const CLOCK: u8 = 17;
    pub(in crate::store) const LOSS: u8 = 18;
    // Since 1.1.
    pub(in crate::store) const FRAME: u8 = 19;
    pub(in crate::store) const CALL_STACK: u8 = 20;
    pub(in crate::store) const FUNCTIONS: u8 = 21;
    pub(in crate::store) const SAMPLE: u8 = 22;
    // Since 1.2.
    pub(in crate::store) const CPU_WAIT: u8 = 23;
    pub(in crate::store) const MIGRATION: u8 = 24;
    pub(in crate::store) const ENDPOINT: u8 = 25;
    // Since 1.3.
    pub(in crate::store) const PROBES: u8 = 26;
    pub(in crate::store) const PROBED_CALL: u8 = 27;
    // Since 1.4.
    pub(in crate::store) const SYS_CALL: u8 = 28;

    /// A tid is one byte that names a slot of the chunk's table, or this and the tid as a varint.
    pub(in crate::store) const TID_LITERAL: u8 = 255;
    pub(in crate::store) const TID_SLOTS: usize = 255;

    /// Bits of a task record.
    pub(in crate::store) const TASK_TARGET: u8 = 0x01;
    pub(in crate::store) const TASK_KTHREAD: u8 = 0x02;

    /// Values of [`TaskReason`](crate::event::TaskReason).
    pub(in crate::store) const REASON_SEEN: u64 = 0;
    pub(in crate::store) const REASON_NEW: u64 = 1;
    pub(in crate::store) const REASON_EXEC: u64 = 2;
    pub(in crate::store) const REASON_RENAME: u64 = 3;
    pub(in crate::store) const REASON_FOLLOWED: u64 = 4;

    /// Values of [`TaskState`](crate::event::TaskState).
    pub(in crate::store) const STATE_RUNNING: u64 = 0;
    pub(in crate::store) const STATE_RUNNABLE: u64 = 1;
    pub(in crate::store) const STATE_OFF: u64 = 2;

    /// Values of [`OpKind`](crate::event::OpKind).
    pub(in crate::store) const OP_KERNEL: u64 = 1;
    pub(in crate::store) const OP_MEMCPY: u64 = 2;
    pub(in crate::store) const OP_MEMSET: u64 = 3;
    pub(in crate::store) const OP_GRAPH: u64 = 4;

    /// Values of [`Frame`](crate::event::Frame).
    pub(in crate::store) const FRAME_NATIVE: u64 = 1;
    pub(in crate::store) const FRAME_ANONYMOUS: u64 = 2;
    pub(in crate::store) const FRAME_PYTHON: u64 = 3;

    /// Values of [`SampleKind`](crate::event::SampleKind).
    pub(in crate::store) const SAMPLE_CPU: u64 = 1;
    pub(in crate::store) const SAMPLE_OFF_CPU: u64 = 2;
    pub(in crate::store) const SAMPLE_WAKER: u64 = 3;
    pub(in crate::store) const SAMPLE_LAUNCH: u64 = 4;

    /// Bits of the last field of a sample, which is left out when it is 0. Since 1.2.
    pub(in crate::store) const SAMPLE_COLLECTS: u64 = 1;

    /// Values of [`LossSource`](crate::event::LossSource).
    pub(in crate::store) const LOSS_BPF: u64 = 1;
    pub(in crate::store) const LOSS_SHIM_RING: u64 = 2;
    pub(in crate::store) const LOSS_CUPTI: u64 = 3;
    pub(in crate::store) const LOSS_CLOCK_STEP: u64 = 4;
    pub(in crate::store) const LOSS_DAMAGE: u64 = 5;
}

/// A context as its code and, for the kinds that have one, a number.
pub(super) fn context_code(context: Context) -> (u8, Option<u16>) {
    match context {
        Context::Task => (0, None),
        Context::HardIrq(irq) => (1, Some(irq)),
        Context::SoftIrq(vector) => (2, Some(vector)),
        Context::Timer => (3, None),
    }
}

/// Numbers of an enum without data.
macro_rules! codes {
    ($code:ident, $from:ident, $type:ident { $($variant:ident = $value:literal),+ $(,)? }) => {
        pub(super) fn $code(value: $type) -> u64 {
            match value { $($type::$variant => $value),+ }
        }

        pub(super) fn $from(code: u64) -> Option<$type> {
            Some(match code { $($value => $type::$variant,)+ _ => return None })
        }
    };
}

/// Numbers of an enum whose `Other(n)` carries what gdiag has no name for; it is stored as `n + OTHER`.
macro_rules! open_codes {
    ($code:ident, $from:ident, $type:ident($other:ty) { $($variant:ident = $value:literal),+ $(,)? }) => {
        pub(super) fn $code(value: $type) -> u64 {
            match value {
                $($type::$variant => $value,)+
                $type::Other(n) => u64::from(n) + OTHER,
            }
        }

        pub(super) fn $from(code: u64) -> Option<$type> {
            Some(match code {
                $($value => $type::$variant,)+
                _ => $type::Other(<$other>::try_from(code.checked_sub(OTHER)?).ok()?),
            })
        }
    };
}

const OTHER: u64 = 32;

codes!(memory_code, memory_from, MemoryKind {
    Unknown = 0, Pageable = 1, Pinned = 2, Device = 3, Array = 4, Managed = 5,
});
// 0 stands for a stack that is whole.
codes!(cut_code, cut_from, Cut {
    NotYet = 1, Unmapped = 2, NoTable = 3, Unsupported = 4, Unreadable = 5, TooDeep = 6,
});
codes!(migration_code, migration_from, MigrationKind {
    ToDevice = 1, ToHost = 2, DeviceFaults = 3,
});
codes!(role_code, role_from, Role { Connected = 1, Accepted = 2, Listening = 3 });
codes!(stall_code, stall_from, StallKind { Reclaim = 0, Compaction = 1, Yields = 2 });
codes!(domain_code, domain_from, ApiDomain { Runtime = 0, Driver = 1 });
codes!(shim_code, shim_from, ShimState {
    Dormant = 0, Active = 1, Paused = 2, Busy = 3, Failed = 4,
});
open_codes!(copy_code, copy_from, CopyKind(u8) {
    Unknown = 0, HostToDevice = 1, DeviceToHost = 2, DeviceToDevice = 3, HostToHost = 4, PeerToPeer = 5,
});
open_codes!(sync_code, sync_from, SyncKind(u32) {
    Event = 1, StreamWaitEvent = 2, Stream = 3, Context = 4,
});
open_codes!(overhead_code, overhead_from, OverheadKind(u32) {
    DriverCompiler = 1, BufferFlush = 2, Instrumentation = 3, Resource = 4, ModuleLoading = 5,
    LazyFunctionLoading = 6, CommandBufferFull = 7, BufferRequest = 8, UvmInit = 9,
});
