//! Activity records as bytes, in the layout of a version.
//!
//! Offsets are those of the structs in `cupti_activity.h`, by name: `CUpti_ActivityKernel10`
//! and so on. Fields of later versions come at the end, so each record is written as a
//! whole and cut to the size of its version.
#![forbid(unsafe_code)]

use crate::kind;
use crate::link::{what, Call, EventRecord, Operation, Overhead, Sync, NONE};
use crate::version::Version;

/// A record in the making. As long as the longest.
#[derive(Clone, Debug)]
pub struct Record {
    bytes: [u8; MAX],
    len: usize,
}

const MAX: usize = 248;

impl Record {
    fn new(version: &Version, kind: u32) -> Record {
        // Every kind that is written has a size.
        let len = version.size(kind).unwrap_or(0) as usize;
        let mut record = Record {
            bytes: [0; MAX],
            len,
        };
        record.u32(0, kind);
        record
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put(&mut self, offset: usize, value: &[u8]) {
        self.bytes[offset..offset + value.len()].copy_from_slice(value);
    }

    fn u8(&mut self, offset: usize, value: u8) {
        self.put(offset, &[value]);
    }

    fn u16(&mut self, offset: usize, value: u16) {
        self.put(offset, &value.to_ne_bytes());
    }

    fn u32(&mut self, offset: usize, value: u32) {
        self.put(offset, &value.to_ne_bytes());
    }

    fn u64(&mut self, offset: usize, value: u64) {
        self.put(offset, &value.to_ne_bytes());
    }
}

/// Kind of the record of an operation.
pub fn operation_kind(op: &Operation) -> u32 {
    match op.what {
        what::MEMCPY => kind::MEMCPY,
        what::MEMSET => kind::MEMSET,
        what::MEMCPY_PEER => kind::MEMCPY2,
        what::KERNEL => kind::CONCURRENT_KERNEL,
        what::MIGRATION => kind::UNIFIED_MEMORY_COUNTER,
        other => unreachable!("libcuda reports no operation {other}"),
    }
}

/// Where an operation's record has its start; the end follows. The same for all of them.
pub const OPERATION_START: usize = 16;

/// An operation whose times are not known yet.
pub fn operation(version: &Version, op: &Operation) -> Record {
    let kind = operation_kind(op);
    let mut r = Record::new(version, kind);
    match kind {
        kind::MEMCPY => memcpy(&mut r, op),
        kind::MEMSET => memset(&mut r, op),
        kind::MEMCPY2 => memcpy_peer(&mut r, op),
        kind::UNIFIED_MEMORY_COUNTER => migration(&mut r, op),
        _ => kernel(&mut r, op),
    }
    r
}

fn kernel(r: &mut Record, op: &Operation) {
    r.u16(6, 32); // registersPerThread
    r.u32(40, op.device);
    r.u32(44, op.context_id);
    r.u32(48, op.stream_id);
    for (i, n) in op.grid.into_iter().chain(op.block).enumerate() {
        r.u32(52 + 4 * i, n);
    }
    r.u32(80, op.shared_bytes); // dynamicSharedMemory
    r.u32(92, op.correlation);
    r.u64(96, op.correlation.into()); // gridId: unique per launch
    r.u64(104, op.name as u64);
    r.u32(168, channel(op.stream_id)); // channelID
    r.u32(172, 1); // channelType: compute
    r.put(216, &op.priority.to_ne_bytes());
}

fn memcpy(r: &mut Record, op: &Operation) {
    r.u8(4, op.copy_kind);
    r.u8(5, op.src_kind);
    r.u8(6, op.dst_kind);
    r.u8(7, op.asynchronous);
    r.u64(8, op.bytes);
    r.u32(32, op.device);
    r.u32(36, op.context_id);
    r.u32(40, op.stream_id);
    r.u32(44, op.correlation);
    r.u32(76, channel(op.stream_id)); // channelID
    r.u32(80, 2); // channelType: asynchronous copy
    r.u64(88, 1); // copyCount
}

fn memcpy_peer(r: &mut Record, op: &Operation) {
    r.u8(4, op.copy_kind);
    r.u8(5, op.src_kind);
    r.u8(6, op.dst_kind);
    r.u8(7, op.asynchronous);
    r.u64(8, op.bytes);
    r.u32(32, op.device);
    r.u32(36, op.context_id);
    r.u32(40, op.stream_id);
    for (i, id) in op.source.into_iter().chain(op.destination).enumerate() {
        r.u32(44 + 4 * i, id);
    }
    r.u32(60, op.correlation);
    r.u32(84, channel(op.stream_id)); // channelID
    r.u32(88, 2); // channelType: asynchronous copy
}

/// `CUpti_ActivityUnifiedMemoryCounterKind` of a migration: 1 and 2 are the directions of copyKind.
pub fn counter_kind(op: &Operation) -> u32 {
    op.copy_kind.into()
}

fn migration(r: &mut Record, op: &Operation) {
    r.u32(4, counter_kind(op));
    r.u64(8, op.bytes); // value
    let (src, dst) = if op.copy_kind == 1 {
        (NONE, op.device)
    } else {
        (op.device, NONE)
    };
    r.u32(40, src); // NONE is the CPU
    r.u32(44, dst);
    r.u32(48, op.stream_id);
    r.u32(52, std::process::id());
    r.u32(56, 3); // flags: cause is a prefetch
}

fn memset(r: &mut Record, op: &Operation) {
    r.u32(4, op.value);
    r.u64(8, op.bytes);
    r.u32(32, op.device);
    r.u32(36, op.context_id);
    r.u32(40, op.stream_id);
    r.u32(44, op.correlation);
    r.u16(48, op.asynchronous.into()); // flags
    r.u16(50, op.dst_kind.into()); // memoryKind
    r.u32(76, channel(op.stream_id)); // channelID
    r.u32(80, 1); // channelType: compute
}

/// A hardware channel per stream, as long as there are enough.
fn channel(stream_id: u32) -> u32 {
    stream_id % 64
}

/// A driver call. Times are CUPTI's.
pub fn api(version: &Version, call: &Call, pid: u32, tid: u32, times: (u64, u64)) -> Record {
    let mut r = Record::new(version, kind::DRIVER);
    r.u32(4, call.cbid);
    r.u64(8, times.0);
    r.u64(16, times.1);
    r.u32(24, pid);
    r.u32(28, tid);
    r.u32(32, call.correlation);
    r.u32(36, call.result);
    r
}

pub fn sync(version: &Version, sync: &Sync, times: (u64, u64)) -> Record {
    let mut r = Record::new(version, kind::SYNCHRONIZATION);
    r.u32(4, sync.what);
    r.u64(8, times.0);
    r.u64(16, times.1);
    r.u32(24, sync.correlation);
    r.u32(28, sync.context_id);
    r.u32(32, sync.stream_id);
    r.u32(36, sync.event_id);
    let known = sync.event_id != NONE;
    r.u64(40, if known { sync.event_id.into() } else { 0 }); // cudaEventSyncId
    r.u32(48, sync.result);
    r
}

pub fn event(version: &Version, event: &EventRecord) -> Record {
    let mut r = Record::new(version, kind::CUDA_EVENT);
    r.u32(4, event.correlation);
    r.u32(8, event.context_id);
    r.u32(12, event.stream_id);
    r.u32(16, event.event_id);
    r.u32(24, event.device);
    r.u64(48, event.event_id.into()); // cudaEventSyncId
    r
}

pub fn overhead(
    version: &Version,
    overhead: &Overhead,
    pid: u32,
    tid: u32,
    times: (u64, u64),
) -> Record {
    let mut r = Record::new(version, kind::OVERHEAD);
    r.u32(4, overhead.what);
    r.u32(8, 2); // objectKind: thread
    r.u32(12, pid);
    r.u32(16, tid);
    r.u64(24, times.0);
    r.u64(32, times.1);
    r.u32(40, overhead.correlation);
    r
}
