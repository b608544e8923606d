//! What the devices did, and which call asked for it.
//!
//! Operations are kept per device as a process numbers it, until the end, when the records
//! of the devices tell which of them are one card. Calls are joined to operations by process
//! and correlation id.
#![forbid(unsafe_code)]

use crate::event::{
    ApiCall, ApiDomain, ContextId, CopyKind, CorrelationId, Device, DeviceId, GpuInvalid, GpuOp,
    MemoryKind, Migration, NameId, OpKind, Overhead, Pid, StreamId, Sync, SyncKind,
};
use crate::model::api::{self, Class};
use crate::model::fxhash::FxHashMap;
use crate::model::ops::{
    pack_copy, pack_memory, Call, CallIdx, Kind, Op, Stream, StreamIdx, DRIVER, NO_CALL, SMALL_COPY,
};
use crate::model::thread::ThreadIdx;
use crate::units::Nanos;

/// A device, all processes taken together.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    pub name: NameId,
    /// The empty name when no record told it.
    pub uuid: NameId,
    /// The processes that can use it, each with its number of the device, by pid.
    pub users: Vec<(Pid, DeviceId)>,
    /// By start, then end.
    pub ops: Vec<Op>,
}

/// A device as one process numbers it.
#[derive(Clone, Debug)]
struct Slot {
    pid: Pid,
    device: DeviceId,
    name: NameId,
    uuid: NameId,
    ops: Vec<Op>,
}

/// A stream that was told to wait for an event, at the time of the call.
#[derive(Clone, Copy, Debug)]
pub struct EventWait {
    pub at: Nanos,
    pub context: ContextId,
    pub stream: StreamId,
}

#[derive(Clone, Debug, Default)]
pub struct GpuLog {
    slots: Vec<Slot>,
    slot_of: FxHashMap<(Pid, DeviceId), u32>,
    last_slot: Option<(Pid, DeviceId, u32)>,
    streams: Vec<Stream>,
    stream_of: FxHashMap<Stream, StreamIdx>,
    last_stream: Option<(Stream, StreamIdx)>,
    calls: Vec<Call>,
    /// Per process: correlation id and call.
    correlations: FxHashMap<Pid, Vec<(CorrelationId, u32)>>,
    /// Per process: calls that probes measured, which have no correlation id.
    probed: FxHashMap<Pid, Vec<u32>>,
    event_waits: FxHashMap<Pid, Vec<EventWait>>,
    overheads: Vec<Overhead>,
    migrations: Vec<Migration>,
    invalid: Vec<GpuInvalid>,
    host_funcs: FxHashMap<Pid, Vec<u32>>,
    devices: Vec<Gpu>,
    /// Operations whose call was not seen.
    unmatched: u64,
}

impl GpuLog {
    fn slot(&mut self, pid: Pid, device: DeviceId) -> usize {
        if let Some((p, d, slot)) = self.last_slot {
            if (p, d) == (pid, device) {
                return slot as usize;
            }
        }
        let slots = &mut self.slots;
        let slot = *self.slot_of.entry((pid, device)).or_insert_with(|| {
            slots.push(Slot {
                pid,
                device,
                name: NameId(0),
                uuid: NameId(0),
                ops: Vec::new(),
            });
            u32::try_from(slots.len() - 1).unwrap_or(u32::MAX)
        });
        self.last_slot = Some((pid, device, slot));
        slot as usize
    }

    fn stream(&mut self, stream: Stream) -> StreamIdx {
        if let Some((last, idx)) = self.last_stream {
            if last == stream {
                return idx;
            }
        }
        let streams = &mut self.streams;
        let idx = *self.stream_of.entry(stream).or_insert_with(|| {
            streams.push(stream);
            StreamIdx(u32::try_from(streams.len() - 1).unwrap_or(u32::MAX))
        });
        self.last_stream = Some((stream, idx));
        idx
    }

    pub(super) fn op(&mut self, e: &GpuOp) {
        if e.end < e.start || e.end == Nanos::ZERO {
            self.invalid.push(GpuInvalid {
                pid: e.pid,
                device: e.device,
                correlation: e.correlation,
                seen: e.start.max(e.end),
            });
            return;
        }
        let stream = self.stream(Stream {
            pid: e.pid,
            context: e.context,
            stream: e.stream,
        });
        let (kind, payload, copy, memory) = match e.kind {
            OpKind::Kernel { name } => (Kind::Kernel, u64::from(name.0), 0, 0),
            OpKind::Memcpy {
                kind,
                src,
                dst,
                bytes,
            } => {
                let memory = pack_memory(src) | pack_memory(dst) << 4;
                (Kind::Memcpy, bytes, pack_copy(kind), memory)
            }
            OpKind::Memset { bytes } => (Kind::Memset, bytes, 0, 0),
            OpKind::Graph => (Kind::Graph, 0, 0, 0),
        };
        let from_graph = e.graph != 0 || e.node != 0;
        let slot = self.slot(e.pid, e.device);
        self.slots[slot].ops.push(Op {
            start: e.start,
            end: e.end,
            payload,
            correlation: e.correlation,
            call: NO_CALL,
            stream,
            kind,
            copy,
            memory,
            flags: if from_graph { Op::FROM_GRAPH } else { 0 },
        });
    }

    pub(super) fn invalid(&mut self, e: GpuInvalid) {
        self.invalid.push(e);
    }

    /// Returns the index of the call for its thread's list.
    pub(super) fn call(&mut self, e: &ApiCall, thread: ThreadIdx) -> u32 {
        let index = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        let class = api::class(e.api);
        let domain = match e.api.domain {
            ApiDomain::Runtime => 0,
            ApiDomain::Driver => DRIVER,
        };
        self.calls.push(Call {
            start: e.start,
            end: e.end.max(e.start),
            thread,
            api: e.api.cbid & !DRIVER | domain,
            outer: NO_CALL,
            class,
            flags: match (e.result, e.correlation) {
                (0, ApiCall::PROBED) => Call::PROBED,
                (ApiCall::NOT_RETURNED, ApiCall::PROBED) => Call::PROBED | Call::OPEN,
                (_, ApiCall::PROBED) => Call::PROBED | Call::FAILED,
                (0, _) => 0,
                (_, _) => Call::FAILED,
            },
            matched: 0,
        });
        if e.correlation == ApiCall::PROBED {
            self.probed.entry(e.pid).or_default().push(index);
        } else {
            let pairs = self.correlations.entry(e.pid).or_default();
            pairs.push((e.correlation, index));
        }
        if class == Class::HostFunc && e.result == 0 {
            self.host_funcs.entry(e.pid).or_default().push(index);
        }
        index
    }

    pub(super) fn sync(&mut self, e: &Sync) {
        if let (SyncKind::StreamWaitEvent, Some(stream)) = (e.kind, e.stream) {
            self.event_waits.entry(e.pid).or_default().push(EventWait {
                at: e.start,
                context: e.context,
                stream,
            });
        }
    }

    pub(super) fn overhead(&mut self, e: Overhead) {
        self.overheads.push(e);
    }

    pub(super) fn migration(&mut self, e: Migration) {
        self.migrations.push(e);
    }

    pub(super) fn device(&mut self, e: &Device) {
        let slot = self.slot(e.pid, e.id);
        self.slots[slot].name = e.name;
        self.slots[slot].uuid = e.uuid;
    }

    /// Joins calls and operations, and merges what processes call the same card.
    /// `uuid` gives the text of a uuid, since one text can have several ids.
    pub(super) fn finish(&mut self, uuid: impl Fn(NameId) -> String) {
        self.drop_duplicates();
        self.match_ops();
        self.merge_devices(uuid);
        for waits in self.event_waits.values_mut() {
            waits.sort_by_key(|w| w.at);
        }
        let calls = &self.calls;
        for funcs in self.host_funcs.values_mut() {
            funcs.retain(|&i| !calls[i as usize].is_duplicate());
            funcs.sort_by_key(|&i| calls[i as usize].start);
        }
        self.overheads.sort_by_key(|o| (o.start, o.end));
        self.migrations.sort_by_key(|m| (m.start, m.end));
    }

    /// Drops calls that probes measured and that began when `also` says that CUPTI recorded them, too:
    /// the probes were taken out a little later.
    pub(super) fn drop_probed(&mut self, also: impl Fn(Pid, Nanos) -> bool) {
        let calls = &mut self.calls;
        for (&pid, list) in &mut self.probed {
            list.retain(|&i| {
                let call = &mut calls[i as usize];
                let twice = also(pid, call.start);
                if twice {
                    call.flags |= Call::DUPLICATE;
                }
                !twice
            });
        }
        self.probed.retain(|_, list| !list.is_empty());
    }

    /// A runtime call and the driver call inside it share their correlation id: the outer one stays.
    /// (Calls with one id at different times are different calls: ids start again with a new session.)
    fn drop_duplicates(&mut self) {
        let calls = &mut self.calls;
        for pairs in self.correlations.values_mut() {
            // The outermost begins first, and ends last.
            pairs.sort_by_key(|&(id, i)| {
                let call = &calls[i as usize];
                (id, call.start, std::cmp::Reverse(call.end), i)
            });
            pairs.dedup_by(|later, first| {
                let (inner, outer) = (calls[later.1 as usize], calls[first.1 as usize]);
                let same = later.0 == first.0
                    && inner.thread == outer.thread
                    && (inner.start < outer.end || inner.start == outer.start);
                if same {
                    calls[later.1 as usize].flags |= Call::DUPLICATE;
                }
                same
            });
            pairs.shrink_to_fit();
        }
    }

    fn match_ops(&mut self) {
        for (number, slot) in (1..).zip(&mut self.slots) {
            // Mostly they come in order of time already.
            slot.ops.sort_by_key(|o| (o.start, o.end));
            let pairs = self
                .correlations
                .get(&slot.pid)
                .map_or(&[][..], Vec::as_slice);
            let mut near = 0;
            for op in &mut slot.ops {
                let found = find_near(pairs, op.correlation, &mut near);
                match found.map(|first| launch_before(pairs, first, op, &self.calls)) {
                    Some(call) => {
                        op.call = call;
                        note_op(&mut self.calls[call as usize], op, number);
                    }
                    // Kernels are recorded a moment before calls are: see the shim.
                    None if pairs.first().is_some_and(|p| op.correlation < p.0) => {}
                    None => {
                        op.flags |= Op::UNMATCHED;
                        self.unmatched += 1;
                    }
                }
            }
            distrust_overlaps(&mut slot.ops);
        }
    }

    fn merge_devices(&mut self, uuid: impl Fn(NameId) -> String) {
        let mut slots = std::mem::take(&mut self.slots);
        slots.sort_by_key(|s| (s.device, s.pid));
        let mut by_uuid: FxHashMap<String, usize> = FxHashMap::default();
        for slot in slots {
            let text = uuid(slot.uuid);
            let known = (!text.is_empty())
                .then(|| by_uuid.get(&text).copied())
                .flatten();
            let index = known.unwrap_or_else(|| {
                self.devices.push(Gpu {
                    name: slot.name,
                    uuid: slot.uuid,
                    ..Gpu::default()
                });
                let index = self.devices.len() - 1;
                if !text.is_empty() {
                    by_uuid.insert(text, index);
                }
                index
            });
            let gpu = &mut self.devices[index];
            gpu.users.push((slot.pid, slot.device));
            if gpu.ops.is_empty() {
                gpu.ops = slot.ops;
            } else {
                gpu.ops.extend(slot.ops);
                gpu.ops.sort_by_key(|o| (o.start, o.end));
            }
        }
        for gpu in &mut self.devices {
            gpu.users.sort_unstable();
            gpu.users.dedup();
        }
    }

    /// Sorts the calls of one thread, drops duplicates, and finds which call was made inside which.
    pub(super) fn finish_thread(&mut self, list: &mut Vec<u32>) -> u64 {
        let calls = &mut self.calls;
        list.retain(|&i| !calls[i as usize].is_duplicate());
        list.sort_by_key(|&i| {
            let call = &calls[i as usize];
            (call.start, std::cmp::Reverse(call.end), i)
        });
        let mut open: Vec<u32> = Vec::new();
        let mut launches = 0;
        for &i in list.iter() {
            let (start, end) = (calls[i as usize].start, calls[i as usize].end);
            while open.last().is_some_and(|&o| calls[o as usize].end <= start) {
                open.pop();
            }
            if let Some(&outer) = open.last() {
                if calls[outer as usize].end >= end {
                    calls[i as usize].outer = outer;
                }
            }
            open.push(i);
            let call = &calls[i as usize];
            launches += u64::from(api::starts_kernels(call.class) && !call.failed());
        }
        launches
    }

    pub fn devices(&self) -> &[Gpu] {
        &self.devices
    }

    pub fn stream_of(&self, op: &Op) -> Stream {
        self.streams[op.stream.0 as usize]
    }

    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    pub fn call_at(&self, index: CallIdx) -> &Call {
        &self.calls[index.0 as usize]
    }

    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }

    pub fn invalid_records(&self) -> &[GpuInvalid] {
        &self.invalid
    }

    pub fn call_by_correlation(&self, pid: Pid, id: CorrelationId) -> Option<CallIdx> {
        let pairs = self.correlations.get(&pid)?;
        let i = pairs.binary_search_by_key(&id, |p| p.0).ok()?;
        Some(CallIdx(pairs[i].1))
    }

    /// All calls of a process that CUPTI recorded, once, in order of their correlation ids.
    pub fn recorded_calls_of(&self, pid: Pid) -> impl Iterator<Item = CallIdx> + '_ {
        self.correlations
            .get(&pid)
            .into_iter()
            .flatten()
            .map(|&(_, i)| CallIdx(i))
    }

    /// All calls of a process that probes on the driver measured.
    pub fn probed_calls_of(&self, pid: Pid) -> impl Iterator<Item = CallIdx> + '_ {
        let list = self.probed.get(&pid).into_iter().flatten();
        list.map(|&i| CallIdx(i))
    }

    /// All calls of a process, each once.
    pub fn calls_of(&self, pid: Pid) -> impl Iterator<Item = CallIdx> + '_ {
        self.recorded_calls_of(pid).chain(self.probed_calls_of(pid))
    }

    /// Processes of which CUPTI recorded calls, by pid.
    pub fn recorded_pids(&self) -> Vec<Pid> {
        let mut pids: Vec<Pid> = self.correlations.keys().copied().collect();
        pids.sort_unstable();
        pids
    }

    /// Processes that made calls, by pid.
    pub fn calling_pids(&self) -> Vec<Pid> {
        let both = self.correlations.keys().chain(self.probed.keys());
        let mut pids: Vec<Pid> = both.copied().collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Waits that the process put into its streams, by time of the call.
    pub fn event_waits(&self, pid: Pid) -> &[EventWait] {
        self.event_waits.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The last call of the process that put a host function into a stream and began after `from`,
    /// up to `to`.
    pub fn last_host_func(&self, pid: Pid, from: Nanos, to: Nanos) -> Option<&Call> {
        let list = self.host_funcs.get(&pid)?;
        let upto = list.partition_point(|&i| self.calls[i as usize].start <= to);
        let last = &self.calls[list[upto.checked_sub(1)?] as usize];
        (last.start > from).then_some(last)
    }

    /// By start.
    pub fn overheads(&self) -> &[Overhead] {
        &self.overheads
    }

    /// By start.
    pub fn migrations(&self) -> &[Migration] {
        &self.migrations
    }
}

/// Looks `id` up around the last place found: operations come back in about the order of their calls.
fn find_near(pairs: &[(CorrelationId, u32)], id: CorrelationId, near: &mut usize) -> Option<usize> {
    let at = (*near).min(pairs.len());
    let ahead = &pairs[at..];
    let found = match ahead.first() {
        Some(p) if p.0 < id => {
            let mut step = 1;
            while step < ahead.len() && ahead[step].0 < id {
                step *= 2;
            }
            let window = &ahead[step / 2..ahead.len().min(step + 1)];
            at + step / 2 + window.partition_point(|p| p.0 < id)
        }
        _ => pairs[..at].partition_point(|p| p.0 < id),
    };
    let hit = pairs.get(found)?.0 == id;
    hit.then(|| {
        *near = found;
        found
    })
}

/// Of the calls with the same id as `pairs[first]`, the latest that began before the operation.
fn launch_before(pairs: &[(CorrelationId, u32)], first: usize, op: &Op, calls: &[Call]) -> u32 {
    let id = pairs[first].0;
    pairs[first..]
        .iter()
        .take_while(|p| p.0 == id)
        .take_while(|p| calls[p.1 as usize].start.0 <= op.start.0.saturating_add(EARLY_START))
        .last()
        .unwrap_or(&pairs[first])
        .1
}

/// An operation may seem to start this much before its launch call: CUPTI's device times drift
/// against its host times by several microseconds (measured on an H200, CUPTI 13.0).
const EARLY_START: u64 = 20_000;

fn note_op(call: &mut Call, op: &mut Op, device: u16) {
    if call.matched != device {
        call.matched = device;
        op.flags |= Op::FIRST_OF_CALL;
    }
    call.flags |= Call::HAS_OP;
    if op.start.0.saturating_add(EARLY_START) < call.start.0 {
        op.flags |= Op::BEFORE_LAUNCH;
    }
    if op.end <= call.end {
        call.flags |= Call::BLOCKING;
    }
    if let OpKind::Memcpy {
        kind,
        src,
        dst,
        bytes,
    } = op.kind()
    {
        if src == MemoryKind::Pageable || dst == MemoryKind::Pageable {
            call.flags |= Call::PAGEABLE;
            if kind == CopyKind::DeviceToHost && bytes < SMALL_COPY {
                call.flags |= Call::SMALL_READ_BACK;
            }
        }
    }
}

/// Within a stream operations follow each other. One that seems to last over several later ones
/// of its stream has an impossible end. (Graphs run branches at once; programmatic launches overlap
/// their neighbour, but do not outlast two of them.)
fn distrust_overlaps(ops: &mut [Op]) {
    const OUTLASTED: u32 = 2;
    struct Open {
        op: usize,
        end: Nanos,
        inside: u32,
    }
    let mut open: FxHashMap<StreamIdx, Open> = FxHashMap::default();
    let mut bad = Vec::new();
    for (i, op) in ops.iter().enumerate() {
        if op.is_from_graph() {
            continue;
        }
        let fresh = Open {
            op: i,
            end: op.end,
            inside: 0,
        };
        match open.get_mut(&op.stream) {
            Some(o) if op.end.0.saturating_add(1_000) < o.end.0 => {
                o.inside += 1;
                if o.inside == OUTLASTED {
                    bad.push(o.op);
                }
            }
            Some(o) => *o = fresh,
            None => {
                open.insert(op.stream, fresh);
            }
        }
    }
    for i in bad {
        ops[i].flags |= Op::OUTLASTS;
    }
}
