//! Operations and calls as they are kept: millions of them, so each in as few bytes as it can be.
#![forbid(unsafe_code)]

use crate::event::{
    Api, ApiDomain, ContextId, CopyKind, CorrelationId, MemoryKind, NameId, OpKind, Pid, StreamId,
};
use crate::model::api::Class;
use crate::model::thread::ThreadIdx;
use crate::units::Nanos;

/// An operation on a device. The device is the one whose list it is in.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub start: Nanos,
    pub end: Nanos,
    /// Kernel: id of the name. Copies and memsets: bytes.
    pub(super) payload: u64,
    pub correlation: CorrelationId,
    /// Index of the call, or [`NO_CALL`].
    pub(super) call: u32,
    pub stream: StreamIdx,
    pub(super) kind: Kind,
    pub(super) copy: u8,
    pub(super) memory: u8,
    pub(super) flags: u8,
}

const _: () = assert!(std::mem::size_of::<Op>() == 40);

pub(super) const NO_CALL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Kernel,
    Memcpy,
    Memset,
    Graph,
}

impl Op {
    pub(super) const FROM_GRAPH: u8 = 1;
    pub(super) const FIRST_OF_CALL: u8 = 2;
    pub(super) const BEFORE_LAUNCH: u8 = 4;
    pub(super) const OUTLASTS: u8 = 8;
    pub(super) const UNMATCHED: u8 = 16;

    /// The call that started it, when that was seen.
    pub fn call(&self) -> Option<CallIdx> {
        (self.call != NO_CALL).then_some(CallIdx(self.call))
    }

    /// Its call should have been seen, and was not.
    pub fn is_unmatched(&self) -> bool {
        self.flags & Op::UNMATCHED != 0
    }

    /// The first to start of the operations of its call on this device: a graph launch starts many.
    pub fn is_first_of_call(&self) -> bool {
        self.flags & Op::FIRST_OF_CALL != 0
    }

    pub fn is_from_graph(&self) -> bool {
        self.flags & Op::FROM_GRAPH != 0
    }

    /// It seems to have started before its own launch call.
    pub fn starts_before_launch(&self) -> bool {
        self.flags & Op::BEFORE_LAUNCH != 0
    }

    /// It seems to have gone on while later operations of its stream came and went.
    pub fn outlasts_followers(&self) -> bool {
        self.flags & Op::OUTLASTS != 0
    }

    pub fn kind(&self) -> OpKind {
        match self.kind {
            Kind::Kernel => OpKind::Kernel {
                name: NameId(u32::try_from(self.payload).unwrap_or(0)),
            },
            Kind::Memcpy => OpKind::Memcpy {
                kind: unpack_copy(self.copy),
                src: unpack_memory(self.memory & 0xf),
                dst: unpack_memory(self.memory >> 4),
                bytes: self.payload,
            },
            Kind::Memset => OpKind::Memset {
                bytes: self.payload,
            },
            Kind::Graph => OpKind::Graph,
        }
    }
}

const MEMORY: [MemoryKind; 6] = [
    MemoryKind::Unknown,
    MemoryKind::Pageable,
    MemoryKind::Pinned,
    MemoryKind::Device,
    MemoryKind::Array,
    MemoryKind::Managed,
];

pub(super) fn pack_memory(kind: MemoryKind) -> u8 {
    match kind {
        MemoryKind::Unknown => 0,
        MemoryKind::Pageable => 1,
        MemoryKind::Pinned => 2,
        MemoryKind::Device => 3,
        MemoryKind::Array => 4,
        MemoryKind::Managed => 5,
    }
}

pub(super) fn unpack_memory(n: u8) -> MemoryKind {
    MEMORY
        .get(usize::from(n))
        .copied()
        .unwrap_or(MemoryKind::Unknown)
}

/// CUPTI's own numbers stay below 100.
const COPY_OTHER: u8 = 100;

pub(super) fn pack_copy(kind: CopyKind) -> u8 {
    match kind {
        CopyKind::Unknown => 0,
        CopyKind::HostToDevice => 1,
        CopyKind::DeviceToHost => 2,
        CopyKind::DeviceToDevice => 3,
        CopyKind::HostToHost => 4,
        CopyKind::PeerToPeer => 5,
        CopyKind::Other(n) => COPY_OTHER.saturating_add(n),
    }
}

pub(super) fn unpack_copy(n: u8) -> CopyKind {
    match n {
        1 => CopyKind::HostToDevice,
        2 => CopyKind::DeviceToHost,
        3 => CopyKind::DeviceToDevice,
        4 => CopyKind::HostToHost,
        5 => CopyKind::PeerToPeer,
        n if n >= COPY_OTHER => CopyKind::Other(n - COPY_OTHER),
        _ => CopyKind::Unknown,
    }
}

/// A stream of a context of a process, in this timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamIdx(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    pub pid: Pid,
    pub context: ContextId,
    pub stream: StreamId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallIdx(pub u32);

/// A call of the CUDA API.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub start: Nanos,
    pub end: Nanos,
    pub thread: ThreadIdx,
    /// The callback id; the highest bit is the domain.
    pub(super) api: u32,
    /// The call that it was made from, or [`NO_CALL`].
    pub(super) outer: u32,
    pub class: Class,
    pub(super) flags: u8,
    /// One more than the number of the device whose operations were matched last.
    pub(super) matched: u16,
}

const _: () = assert!(std::mem::size_of::<Call>() == 32);

pub(super) const DRIVER: u32 = 1 << 31;

impl Call {
    pub(super) const FAILED: u8 = 1;
    /// The other record of the same call, with the same correlation id, stands for it.
    pub(super) const DUPLICATE: u8 = 2;
    pub(super) const HAS_OP: u8 = 4;
    pub(super) const PAGEABLE: u8 = 8;
    pub(super) const SMALL_READ_BACK: u8 = 16;
    /// Its operation ended before it did: it waited.
    pub(super) const BLOCKING: u8 = 32;
    pub(super) const PROBED: u8 = 64;
    pub(super) const OPEN: u8 = 128;

    pub fn api(&self) -> Api {
        Api {
            domain: if self.api & DRIVER == 0 {
                ApiDomain::Runtime
            } else {
                ApiDomain::Driver
            },
            cbid: self.api & !DRIVER,
        }
    }

    pub fn failed(&self) -> bool {
        self.flags & Call::FAILED != 0
    }

    /// Probes on the driver measured it: what it started on the device is not recorded.
    pub fn is_probed(&self) -> bool {
        self.flags & Call::PROBED != 0
    }

    /// It had not returned when its thread or the recording ended.
    pub fn is_open(&self) -> bool {
        self.flags & Call::OPEN != 0
    }

    pub fn is_duplicate(&self) -> bool {
        self.flags & Call::DUPLICATE != 0
    }

    /// An operation of it came back from the device.
    pub fn has_op(&self) -> bool {
        self.flags & Call::HAS_OP != 0
    }

    /// It copies from or to pageable memory.
    pub fn is_pageable_copy(&self) -> bool {
        self.flags & Call::PAGEABLE != 0
    }

    /// It brings less than 64 KiB from the device to pageable memory, as `.item()` does.
    pub fn is_small_read_back(&self) -> bool {
        self.flags & Call::SMALL_READ_BACK != 0
    }

    /// The operation that it started ended before the call returned.
    pub fn waited_for_its_op(&self) -> bool {
        self.flags & Call::BLOCKING != 0
    }

    pub fn outer(&self) -> Option<CallIdx> {
        (self.outer != NO_CALL).then_some(CallIdx(self.outer))
    }
}

pub(super) const SMALL_COPY: u64 = 64 << 10;
