//! From CUPTI's records to gdiag's: the fields that matter, in the layout that both sides know.

use std::collections::HashMap;
use std::ffi::{c_char, CStr};

use gdiag_shim_layout::api::{self, Domain};
use gdiag_shim_layout::cupti::{
    activity, unified_memory, Api, GraphTrace, Kernel, Memcpy, MemcpyPeer, Memset, Overhead,
    Synchronization, UnifiedMemory,
};
use gdiag_shim_layout::{
    kind, ApiRecord, GraphRecord, KernelRecord, MemcpyRecord, MemsetRecord, MigrationRecord,
    NameRecord, OverheadRecord, RecordHeader, SyncRecord, MAX_NAME, MAX_NAMES,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// When the things that a record tells about happened, in CUPTI's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Where decoded records go. `false`: it could not be taken, and was counted as lost.
pub(crate) trait Sink {
    fn send(&mut self, record: &[u8], span: Span) -> bool;
}

/// What a record turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Sent, or lost for want of room.
    Sent,
    /// Not one that gdiag wants.
    Unwanted,
    /// The API call that the shim made at this time (CUPTI's clock) to see whether its records
    /// still come back.
    Probe(u64),
    /// Of a kind that this version does not know, or shorter than its kind can be.
    Unknown,
}

#[derive(Debug, Default)]
pub(crate) struct Decoder {
    /// Ids by hash of the text. The address says nothing: after a module is unloaded, another
    /// name may stand there.
    names: HashMap<u64, u32>,
    last_name: u32,
    name_record: Vec<u8>,
    /// Thread and call of the probe.
    pub(crate) probe: Option<(u32, u32)>,
}

impl Decoder {
    /// A new collector knows no names.
    pub(crate) fn forget_names(&mut self) {
        self.names.clear();
        self.last_name = 0;
    }

    /// Gives back the memory of the names. Those that come again are sent again, under new ids.
    pub(crate) fn give_back(&mut self) {
        self.names = HashMap::new();
        self.name_record = Vec::new();
    }

    /// Decodes one record. `bytes` begins with it and may go on with others.
    ///
    /// # Safety
    ///
    /// The name of a kernel record must be null or the address of a C string.
    pub(crate) unsafe fn record(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Seen {
        let Ok((kind, _)) = u32::read_from_prefix(bytes) else {
            return Seen::Unknown;
        };
        let sent = match kind {
            activity::CONCURRENT_KERNEL => read(bytes).map(|r: Kernel| {
                // SAFETY: as promised to us.
                unsafe { self.kernel(&r, sink) };
            }),
            activity::MEMCPY => read(bytes).map(|r: Memcpy| memcpy(&r, sink)),
            activity::MEMCPY2 => read(bytes).map(|r: MemcpyPeer| memcpy_peer(&r, sink)),
            activity::MEMSET => read(bytes).map(|r: Memset| memset(&r, sink)),
            activity::SYNCHRONIZATION => {
                read(bytes).map(|r: Synchronization| synchronization(&r, sink))
            }
            activity::OVERHEAD => read(bytes).map(|r: Overhead| overhead(&r, sink)),
            activity::GRAPH_TRACE => read(bytes).map(|r: GraphTrace| graph(&r, sink)),
            activity::UNIFIED_MEMORY_COUNTER => {
                read(bytes).map(|r: UnifiedMemory| migration(&r, sink))
            }
            activity::DRIVER | activity::RUNTIME => {
                let Some(r) = read::<Api>(bytes) else {
                    return Seen::Unknown;
                };
                let domain = if kind == activity::DRIVER {
                    Domain::Driver
                } else {
                    Domain::Runtime
                };
                if self.probe == Some((r.thread, r.cbid)) && domain == Domain::Driver {
                    return Seen::Probe(r.start);
                }
                if api::lookup(domain, r.cbid).is_none() {
                    return Seen::Unwanted;
                }
                call(&r, sink);
                Some(())
            }
            _ => None,
        };
        sent.map_or(Seen::Unknown, |()| Seen::Sent)
    }

    /// # Safety
    ///
    /// As for [`Decoder::record`].
    unsafe fn kernel(&mut self, r: &Kernel, sink: &mut impl Sink) {
        let span = Span {
            start: r.start,
            end: r.end,
        };
        // SAFETY: as promised to us.
        let name = unsafe { self.name(r.name, span, sink) };
        let record = KernelRecord {
            hdr: header::<KernelRecord>(kind::KERNEL, name),
            start: r.start,
            end: r.end,
            device: r.device,
            context: r.context,
            stream: r.stream,
            correlation: r.correlation,
            node: r.graph_node,
            graph: r.graph,
            pad: 0,
        };
        sink.send(record.as_bytes(), span);
    }

    /// Id of a name, which is sent before its first use. 0, which is no name, when that did not fit.
    ///
    /// # Safety
    ///
    /// `address` must be 0 or that of a C string.
    unsafe fn name(&mut self, address: u64, span: Span, sink: &mut impl Sink) -> u32 {
        if address == 0 {
            return 0;
        }
        // SAFETY: as promised to us.
        let text = unsafe { CStr::from_ptr(address as *const c_char) }.to_bytes();
        let text = &text[..text.len().min(MAX_NAME)];
        let hash = hash(text);
        if let Some(id) = self.names.get(&hash) {
            return *id;
        }
        let id = self.last_name.wrapping_add(1).max(1);
        let size = (size_of::<NameRecord>() + text.len()).next_multiple_of(8);
        let record = NameRecord {
            hdr: RecordHeader {
                size: size as u16,
                kind: kind::NAME,
                aux: id,
            },
            len: text.len() as u32,
            pad: 0,
        };
        self.name_record.clear();
        self.name_record.extend(record.as_bytes());
        self.name_record.extend(text);
        self.name_record.resize(size, 0);
        if !sink.send(&self.name_record, span) {
            return 0;
        }
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(hash, id);
        self.last_name = id;
        id
    }
}

fn read<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(record, _)| record)
}

fn header<T>(kind: u16, aux: u32) -> RecordHeader {
    const { assert!(size_of::<T>().is_multiple_of(8) && size_of::<T>() < 1 << 16) };
    RecordHeader {
        size: size_of::<T>() as u16,
        kind,
        aux,
    }
}

fn memcpy(r: &Memcpy, sink: &mut impl Sink) {
    let record = MemcpyRecord {
        hdr: header::<MemcpyRecord>(
            kind::MEMCPY,
            u32::from_le_bytes([r.copy_kind, r.src_kind, r.dst_kind, r.flags]),
        ),
        start: r.start,
        end: r.end,
        bytes: r.bytes,
        device: r.device,
        context: r.context,
        stream: r.stream,
        correlation: r.correlation,
        node: r.graph_node,
        graph: r.graph,
        pad: 0,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn memcpy_peer(r: &MemcpyPeer, sink: &mut impl Sink) {
    let record = MemcpyRecord {
        hdr: header::<MemcpyRecord>(
            kind::MEMCPY,
            u32::from_le_bytes([r.copy_kind, r.src_kind, r.dst_kind, r.flags]),
        ),
        start: r.start,
        end: r.end,
        bytes: r.bytes,
        device: r.device,
        context: r.context,
        stream: r.stream,
        correlation: r.correlation,
        node: r.graph_node,
        graph: r.graph,
        pad: 0,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn memset(r: &Memset, sink: &mut impl Sink) {
    let record = MemsetRecord {
        hdr: header::<MemsetRecord>(kind::MEMSET, u32::from(r.memory_kind)),
        start: r.start,
        end: r.end,
        bytes: r.bytes,
        device: r.device,
        context: r.context,
        stream: r.stream,
        correlation: r.correlation,
        node: r.graph_node,
        graph: r.graph,
        pad: 0,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn graph(r: &GraphTrace, sink: &mut impl Sink) {
    let record = GraphRecord {
        hdr: header::<GraphRecord>(kind::GRAPH, r.graph),
        start: r.start,
        end: r.end,
        device: r.device,
        context: r.context,
        stream: r.stream,
        correlation: r.correlation,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn migration(r: &UnifiedMemory, sink: &mut impl Sink) {
    let device = if r.counter_kind == unified_memory::TO_DEVICE {
        r.dst
    } else {
        r.src
    };
    let record = MigrationRecord {
        hdr: header::<MigrationRecord>(kind::MIGRATION, r.counter_kind),
        start: r.start,
        end: r.end,
        value: r.value,
        device,
        pad: 0,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn synchronization(r: &Synchronization, sink: &mut impl Sink) {
    let record = SyncRecord {
        hdr: header::<SyncRecord>(kind::SYNC, r.sync_type),
        start: r.start,
        end: r.end,
        correlation: r.correlation,
        context: r.context,
        stream: r.stream,
        event: r.event,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn overhead(r: &Overhead, sink: &mut impl Sink) {
    // Kind 2, thread: object is process and thread. The others begin with process or device.
    let object = if r.object_kind == 2 {
        r.object[1]
    } else {
        r.object[0]
    };
    let record = OverheadRecord {
        hdr: header::<OverheadRecord>(kind::OVERHEAD, r.overhead_kind),
        start: r.start,
        end: r.end,
        object_kind: r.object_kind,
        object,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

fn call(r: &Api, sink: &mut impl Sink) {
    let record = ApiRecord {
        hdr: header::<ApiRecord>(kind::API, r.cbid),
        start: r.start,
        end: r.end,
        tid: r.thread,
        correlation: r.correlation,
        domain: r.kind,
        result: r.result,
    };
    sink.send(
        record.as_bytes(),
        Span {
            start: r.start,
            end: r.end,
        },
    );
}

/// Mixes eight bytes at a time: names are hashed once for each kernel record.
fn hash(text: &[u8]) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |h: u64, word: u64| {
        let product = u128::from(h ^ word) * u128::from(K);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut h = mix(K, text.len() as u64);
    let mut chunks = text.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        h = mix(h.rotate_left(23), u64::from_le_bytes(word));
    }
    let mut word = [0; 8];
    word[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    mix(h.rotate_left(23), u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests;
