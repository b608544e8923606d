//! What the shims wrote → events on the host's clock, with the host's thread ids.
//!
//! All of it is untrusted: a record that is too short, has impossible times or names a
//! thread that nobody knows is counted or marked, never believed.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use gdiag_shim_layout as layout;
use gdiag_shim_layout::cupti::unified_memory;
use gdiag_shim_layout::{kind, state};
use zerocopy::FromBytes;

use crate::collect::shims::ShimFacts;
use crate::decode::clock::Clock;
use crate::event::{
    Api, ApiCall, ApiDomain, ClockPair, ContextId, CopyKind, CorrelationId, Device, DeviceId,
    Event, GpuInvalid, GpuOp, Loss, LossSource, MemoryKind, Migration, MigrationKind, NameId,
    OpKind, Overhead, OverheadKind, Pid, Shim, ShimState, StreamId, Sync, SyncKind, Task, Tid,
};
use crate::fxhash::FxHashMap;
use crate::intern::Names;
use crate::units::Nanos;

/// An operation that ends later than this after the newest clock pair has an impossible time.
const FUTURE: Nanos = Nanos::from_secs(1);

/// How long ago records may have been lost that do not say when they were made.
const LOSS_AGE: Nanos = Nanos::from_secs(1);

/// Threads that are remembered beyond their end; their last records come within seconds.
const ENDED_THREADS: usize = 8192;

/// CUPTI's number for "no single stream".
const NO_STREAM: u32 = u32::MAX;

/// CUPTI's `objectKind` of a thread.
const OBJECT_THREAD: u32 = 2;

#[derive(Debug, Default)]
struct PerProcess {
    /// The shim's number of a kernel name.
    names: FxHashMap<u32, NameId>,
    /// Thread id inside the process's PID namespace.
    tids: FxHashMap<u32, Tid>,
}

/// Decodes the records of all shims.
#[derive(Debug, Default)]
pub struct GpuDecoder {
    clock: Clock,
    newest: Nanos,
    processes: FxHashMap<Pid, PerProcess>,
    /// Threads that have ended, oldest first: records that name them may still come.
    ended: VecDeque<(Pid, Tid)>,
    /// Records of a kind or length that this program does not know.
    pub malformed: u64,
    /// Why a shim did not record, in its own words: the last one that said so.
    pub refused: Option<(ShimState, String)>,
}

impl GpuDecoder {
    /// Names that shims have numbers for: they may come again.
    pub fn names(&self) -> impl Iterator<Item = NameId> + '_ {
        let names = self.processes.values().map(|process| &process.names);
        names.flat_map(|names| names.values().copied())
    }

    /// Tells what the clocks say; at least every 100 ms, and after the records of that time were written.
    pub fn clock(&mut self, pair: ClockPair) -> Option<Loss> {
        self.newest = pair.mono;
        self.clock.push(pair)
    }

    /// Tells who a thread is.
    pub fn task(&mut self, task: &Task) {
        let process = self.processes.entry(task.pid).or_default();
        process.tids.insert(task.ns_tid.0, task.tid);
    }

    /// Tells that a thread has ended. It is remembered until many more have.
    pub fn exit(&mut self, pid: Pid, tid: Tid) {
        self.ended.push_back((pid, tid));
        if self.ended.len() <= ENDED_THREADS {
            return;
        }
        let Some((pid, tid)) = self.ended.pop_front() else {
            return;
        };
        if let Some(process) = self.processes.get_mut(&pid) {
            // Most have the same id inside of their PID namespace, or are in none.
            if process.tids.get(&tid.0) == Some(&tid) {
                process.tids.remove(&tid.0);
            } else {
                process.tids.retain(|_, host| *host != tid);
            }
            if process.tids.is_empty() {
                self.processes.remove(&pid);
            }
        }
    }

    /// Tells that the process became another program, whose shim numbers its names anew.
    pub fn exec(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.names.clear();
        }
    }

    /// Forgets a process that has ended and whose records were all read.
    pub fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Decodes one record, header included. `facts` are told with a change of state.
    pub fn record(
        &mut self,
        pid: Pid,
        kind: u16,
        bytes: &[u8],
        facts: impl FnOnce() -> ShimFacts,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) {
        let known = match kind {
            kind::NAME => self.name(pid, bytes, names, sink),
            kind::KERNEL => self.kernel(pid, bytes, sink),
            kind::MEMCPY => self.memcpy(pid, bytes, sink),
            kind::MEMSET => self.memset(pid, bytes, sink),
            kind::GRAPH => self.graph(pid, bytes, sink),
            kind::API => self.api(pid, bytes, sink),
            kind::SYNC => self.sync(pid, bytes, sink),
            kind::OVERHEAD => self.overhead(pid, bytes, sink),
            kind::DEVICE => self.device(pid, bytes, names, sink),
            kind::LOST => self.lost(pid, bytes, sink),
            kind::STATE => self.state(pid, bytes, facts, names, sink),
            kind::MIGRATION => self.migration(pid, bytes, sink),
            _ => None,
        };
        if known.is_none() {
            self.malformed += 1;
        }
    }

    /// Start and end on the host's clock, or `None` when they cannot be true.
    fn span(&self, start: u64, end: u64) -> Option<(Nanos, Nanos)> {
        if start == 0 || end < start {
            return None;
        }
        let (start, end) = (self.clock.monotonic(start)?, self.clock.monotonic(end)?);
        (start <= end && end <= self.newest + FUTURE).then_some((start, end))
    }

    fn tid(&self, pid: Pid, ns_tid: u32) -> Tid {
        self.processes
            .get(&pid)
            .and_then(|p| p.tids.get(&ns_tid))
            .copied()
            .unwrap_or(Tid::UNKNOWN)
    }

    fn name(
        &mut self,
        pid: Pid,
        bytes: &[u8],
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> Option<()> {
        let (r, rest) = layout::NameRecord::read_from_prefix(bytes).ok()?;
        let text = rest.get(..usize::try_from(r.len).ok()?)?;
        let id = names.name(&String::from_utf8_lossy(text), sink);
        let known = &mut self.processes.entry(pid).or_default().names;
        if known.len() >= 2 * layout::MAX_NAMES {
            // The shim uses none but the last so many, and a broken one is not worth the memory.
            let newest = r.hdr.aux;
            known.retain(|id, _| newest.wrapping_sub(*id) < layout::MAX_NAMES as u32);
            if known.len() >= 2 * layout::MAX_NAMES {
                known.clear();
            }
        }
        known.insert(r.hdr.aux, id);
        Some(())
    }

    #[allow(clippy::too_many_arguments)]
    fn op(
        &self,
        pid: Pid,
        kind: OpKind,
        (start, end): (u64, u64),
        (device, context, stream): (u32, u32, u32),
        correlation: u32,
        (graph, node): (u32, u64),
        sink: &mut dyn FnMut(Event),
    ) {
        let device = DeviceId(device);
        let correlation = CorrelationId(correlation);
        sink(match self.span(start, end) {
            Some((start, end)) => Event::GpuOp(GpuOp {
                pid,
                device,
                context: ContextId(context),
                stream: StreamId(stream),
                kind,
                start,
                end,
                correlation,
                graph,
                node,
            }),
            None => Event::GpuInvalid(GpuInvalid {
                pid,
                device,
                correlation,
                seen: self.newest,
            }),
        });
    }

    fn kernel(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::KernelRecord::read_from_prefix(bytes).ok()?;
        let name = self
            .processes
            .get(&pid)
            .and_then(|p| p.names.get(&r.hdr.aux))
            .copied()
            .unwrap_or_default();
        self.op(
            pid,
            OpKind::Kernel { name },
            (r.start, r.end),
            (r.device, r.context, r.stream),
            r.correlation,
            (r.graph, r.node),
            sink,
        );
        Some(())
    }

    fn memcpy(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::MemcpyRecord::read_from_prefix(bytes).ok()?;
        let [copy, src, dst, _flags] = r.hdr.aux.to_le_bytes();
        let kind = OpKind::Memcpy {
            kind: copy_kind(copy),
            src: memory_kind(u32::from(src)),
            dst: memory_kind(u32::from(dst)),
            bytes: r.bytes,
        };
        self.op(
            pid,
            kind,
            (r.start, r.end),
            (r.device, r.context, r.stream),
            r.correlation,
            (r.graph, r.node),
            sink,
        );
        Some(())
    }

    fn memset(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::MemsetRecord::read_from_prefix(bytes).ok()?;
        self.op(
            pid,
            OpKind::Memset { bytes: r.bytes },
            (r.start, r.end),
            (r.device, r.context, r.stream),
            r.correlation,
            (r.graph, r.node),
            sink,
        );
        Some(())
    }

    fn graph(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::GraphRecord::read_from_prefix(bytes).ok()?;
        self.op(
            pid,
            OpKind::Graph,
            (r.start, r.end),
            (r.device, r.context, r.stream),
            r.correlation,
            (r.hdr.aux, 0),
            sink,
        );
        Some(())
    }

    fn api(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::ApiRecord::read_from_prefix(bytes).ok()?;
        let domain = match layout::api::Domain::from_kind(r.domain)? {
            layout::api::Domain::Driver => ApiDomain::Driver,
            layout::api::Domain::Runtime => ApiDomain::Runtime,
        };
        let (start, end) = self.span(r.start, r.end)?;
        sink(Event::ApiCall(ApiCall {
            pid,
            tid: self.tid(pid, r.tid),
            api: Api {
                domain,
                cbid: r.hdr.aux,
            },
            start,
            end,
            correlation: CorrelationId(r.correlation),
            result: r.result,
        }));
        Some(())
    }

    fn sync(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::SyncRecord::read_from_prefix(bytes).ok()?;
        let kind = match r.hdr.aux {
            1 => SyncKind::Event,
            2 => SyncKind::StreamWaitEvent,
            3 => SyncKind::Stream,
            4 => SyncKind::Context,
            other => SyncKind::Other(other),
        };
        let (start, end) = self.span(r.start, r.end)?;
        sink(Event::Sync(Sync {
            pid,
            kind,
            context: ContextId(r.context),
            stream: (r.stream != NO_STREAM).then_some(StreamId(r.stream)),
            start,
            end,
            correlation: CorrelationId(r.correlation),
        }));
        Some(())
    }

    fn migration(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::MigrationRecord::read_from_prefix(bytes).ok()?;
        let (kind, bytes) = match r.hdr.aux {
            unified_memory::TO_DEVICE => (MigrationKind::ToDevice, r.value),
            unified_memory::TO_HOST => (MigrationKind::ToHost, r.value),
            unified_memory::DEVICE_FAULTS => (MigrationKind::DeviceFaults, 0),
            _ => return None,
        };
        let (start, end) = self.span(r.start, r.end)?;
        sink(Event::Migration(Migration {
            pid,
            device: DeviceId(r.device),
            kind,
            start,
            end,
            bytes,
        }));
        Some(())
    }

    fn overhead(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::OverheadRecord::read_from_prefix(bytes).ok()?;
        let (start, end) = self.span(r.start, r.end)?;
        sink(Event::Overhead(Overhead {
            pid,
            tid: (r.object_kind == OBJECT_THREAD)
                .then(|| self.tid(pid, r.object))
                .filter(|&tid| tid != Tid::UNKNOWN),
            kind: overhead_kind(r.hdr.aux),
            start,
            end,
        }));
        Some(())
    }

    fn device(
        &self,
        pid: Pid,
        bytes: &[u8],
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> Option<()> {
        let (r, _) = layout::DeviceRecord::read_from_prefix(bytes).ok()?;
        let end = r.name.iter().position(|&b| b == 0).unwrap_or(r.name.len());
        let name = names.name(&String::from_utf8_lossy(&r.name[..end]), sink);
        let uuid = names.name(&uuid(r.uuid), sink);
        sink(Event::Device(Device {
            ts: self.newest,
            pid,
            id: DeviceId(r.hdr.aux),
            name,
            uuid,
        }));
        Some(())
    }

    fn lost(&self, pid: Pid, bytes: &[u8], sink: &mut dyn FnMut(Event)) -> Option<()> {
        let (r, _) = layout::LostRecord::read_from_prefix(bytes).ok()?;
        let source = match r.hdr.aux {
            0 => LossSource::ShimRing(pid),
            _ => LossSource::Cupti(pid),
        };
        // Counted even when its time makes no sense: then it was between the last looks.
        let (from, to) = self
            .span(r.from, r.to)
            .unwrap_or_else(|| (self.newest.saturating_sub(LOSS_AGE), self.newest));
        sink(Event::Loss(Loss {
            source,
            count: r.count,
            from,
            to,
        }));
        Some(())
    }

    fn state(
        &mut self,
        pid: Pid,
        bytes: &[u8],
        facts: impl FnOnce() -> ShimFacts,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> Option<()> {
        let (r, _) = layout::StateRecord::read_from_prefix(bytes).ok()?;
        let ts = self.clock.monotonic(r.time).unwrap_or(self.newest);
        if let Some(state) = shim_state(r.hdr.aux) {
            let facts = facts();
            let event = shim_event(ts, pid, state, &facts, names, sink);
            sink(event);
            if matches!(state, ShimState::Busy | ShimState::Failed) {
                self.refused = Some((state, facts.reason));
            }
        }
        Some(())
    }
}

/// The event for a shim's state; `None` in [`shim_state`] while it starts.
pub fn shim_event(
    ts: Nanos,
    pid: Pid,
    state: ShimState,
    facts: &ShimFacts,
    names: &mut Names,
    sink: &mut dyn FnMut(Event),
) -> Event {
    Event::Shim(Shim {
        ts,
        pid,
        state,
        reason: names.name(&facts.reason, sink),
        cupti_path: names.name(&facts.cupti_path, sink),
        cupti_version: facts.cupti_version,
        simulated: facts.simulated,
    })
}

/// A value of [`layout::state`].
pub fn shim_state(value: u32) -> Option<ShimState> {
    Some(match value {
        state::DORMANT | state::FINISHED => ShimState::Dormant,
        state::ACTIVE => ShimState::Active,
        state::PAUSED => ShimState::Paused,
        state::BUSY => ShimState::Busy,
        state::FAILED => ShimState::Failed,
        _ => return None,
    })
}

/// `GPU-8d4f…` as nvidia-smi prints it.
fn uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// CUpti_ActivityMemcpyKind.
fn copy_kind(value: u8) -> CopyKind {
    match value {
        0 => CopyKind::Unknown,
        1 => CopyKind::HostToDevice,
        2 => CopyKind::DeviceToHost,
        8 => CopyKind::DeviceToDevice,
        9 => CopyKind::HostToHost,
        10 => CopyKind::PeerToPeer,
        other => CopyKind::Other(other),
    }
}

/// CUpti_ActivityMemoryKind.
fn memory_kind(value: u32) -> MemoryKind {
    match value {
        1 => MemoryKind::Pageable,
        2 => MemoryKind::Pinned,
        3 | 6 => MemoryKind::Device,
        4 => MemoryKind::Array,
        5 | 7 => MemoryKind::Managed,
        _ => MemoryKind::Unknown,
    }
}

/// CUpti_ActivityOverheadKind.
fn overhead_kind(value: u32) -> OverheadKind {
    const SHIFT: u32 = 16;
    match value {
        1 => OverheadKind::DriverCompiler,
        v if v == 1 << SHIFT => OverheadKind::BufferFlush,
        v if v == 2 << SHIFT => OverheadKind::Instrumentation,
        v if v == 3 << SHIFT => OverheadKind::Resource,
        v if v == 4 << SHIFT => OverheadKind::ModuleLoading,
        v if v == 5 << SHIFT => OverheadKind::LazyFunctionLoading,
        v if v == 6 << SHIFT => OverheadKind::CommandBufferFull,
        v if v == 7 << SHIFT => OverheadKind::BufferRequest,
        v if v == 8 << SHIFT => OverheadKind::UvmInit,
        other => OverheadKind::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::event::{TaskReason, TaskState};

    const WALL: u64 = 1_700_000_000_000_000_000;
    const PID: Pid = Pid(10);

    fn decoder() -> GpuDecoder {
        let mut decoder = GpuDecoder::default();
        for mono in [1_000_000_000, 2_000_000_000] {
            decoder.clock(ClockPair {
                mono: Nanos(mono),
                real: Nanos(WALL + mono),
                error: Nanos(50),
            });
        }
        decoder
    }

    fn decode(decoder: &mut GpuDecoder, kind: u16, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        decoder.record(
            PID,
            kind,
            bytes,
            ShimFacts::default,
            &mut Names::default(),
            &mut |e| events.push(e),
        );
        events
    }

    fn header<T>(kind: u16, aux: u32) -> layout::RecordHeader {
        layout::RecordHeader {
            size: u16::try_from(size_of::<T>()).unwrap(),
            kind,
            aux,
        }
    }

    fn kernel(start: u64, end: u64) -> layout::KernelRecord {
        layout::KernelRecord {
            hdr: header::<layout::KernelRecord>(kind::KERNEL, 1),
            start,
            end,
            device: 0,
            context: 1,
            stream: 7,
            correlation: 99,
            node: 0,
            graph: 0,
            pad: 0,
        }
    }

    #[test]
    fn times_are_on_the_hosts_clock() {
        let mut decoder = decoder();
        let record = kernel(WALL + 1_500_000_000, WALL + 1_500_001_000);
        let events = decode(&mut decoder, kind::KERNEL, record.as_bytes());
        let [Event::GpuOp(op)] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(
            (op.start, op.end),
            (Nanos(1_500_000_000), Nanos(1_500_001_000))
        );
    }

    #[test]
    fn migrations_have_bytes_and_faults_have_none() {
        let mut decoder = decoder();
        let mut event = |counter| {
            let record = layout::MigrationRecord {
                hdr: header::<layout::MigrationRecord>(kind::MIGRATION, counter),
                start: WALL + 1_500_000_000,
                end: WALL + 1_500_001_000,
                value: 4096,
                device: 2,
                pad: 0,
            };
            match decode(&mut decoder, kind::MIGRATION, record.as_bytes()).as_slice() {
                [Event::Migration(event)] => Some((event.kind, event.bytes)),
                _ => None,
            }
        };
        assert_eq!(event(1), Some((MigrationKind::ToDevice, 4096)));
        assert_eq!(event(2), Some((MigrationKind::ToHost, 4096)));
        assert_eq!(event(4), Some((MigrationKind::DeviceFaults, 0)));
        // Thrashing, which nobody asked CUPTI for.
        assert_eq!(event(5), None);
        assert_eq!(decoder.malformed, 1);
    }

    #[test]
    fn impossible_times_are_invalid_and_not_guessed() {
        let mut decoder = decoder();
        for (start, end) in [
            (0, 0),
            (WALL + 1_500_000_000, 0),
            (WALL + 9_000_000_000, WALL + 9_000_001_000),
            (5, 6),
        ] {
            let events = decode(&mut decoder, kind::KERNEL, kernel(start, end).as_bytes());
            assert!(
                matches!(
                    events.as_slice(),
                    [Event::GpuInvalid(GpuInvalid {
                        correlation: CorrelationId(99),
                        ..
                    })]
                ),
                "{start} {end}: {events:?}"
            );
        }
    }

    #[test]
    fn thread_ids_are_translated_or_unknown() {
        let mut decoder = decoder();
        decoder.task(&Task {
            ts: Nanos(1),
            tid: Tid(4711),
            pid: PID,
            ppid: Pid(1),
            comm: NameId(0),
            start: Nanos(1),
            ns_tid: Tid(3),
            ns_pid: Pid(2),
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target: true,
            kthread: false,
            state: TaskState::Running,
            syscall: None,
        });
        for (inside, host) in [(3, Tid(4711)), (4711, Tid::UNKNOWN)] {
            let record = layout::ApiRecord {
                hdr: header::<layout::ApiRecord>(kind::API, 307),
                start: WALL + 1_500_000_000,
                end: WALL + 1_500_003_000,
                tid: inside,
                correlation: 99,
                domain: 4,
                result: 0,
            };
            let events = decode(&mut decoder, kind::API, record.as_bytes());
            assert!(
                matches!(events.as_slice(), [Event::ApiCall(call)] if call.tid == host),
                "{events:?}"
            );
        }
    }

    fn thread(tid: u32) -> Task {
        Task {
            ts: Nanos(1),
            tid: Tid(tid),
            pid: PID,
            ppid: Pid(1),
            comm: NameId(0),
            start: Nanos(1),
            ns_tid: Tid(tid),
            ns_pid: PID,
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target: true,
            kthread: false,
            state: TaskState::Running,
            syscall: None,
        }
    }

    #[test]
    fn threads_that_come_and_go_without_end_take_no_memory_without_end() {
        let mut decoder = decoder();
        decoder.task(&thread(1));
        let last = 3 * u32::try_from(ENDED_THREADS).unwrap();
        for tid in 2..=last {
            decoder.task(&thread(tid));
            decoder.exit(PID, Tid(tid));
        }
        assert_eq!(decoder.processes[&PID].tids.len(), ENDED_THREADS + 1);
        assert_eq!(decoder.tid(PID, 1), Tid(1), "it lives");
        assert_eq!(decoder.tid(PID, last), Tid(last), "records may still come");
        assert_eq!(decoder.tid(PID, 2), Tid::UNKNOWN);
    }

    #[test]
    fn names_without_end_take_no_memory_without_end() {
        let mut decoder = decoder();
        let name = |decoder: &mut GpuDecoder, id| {
            let mut hdr = header::<layout::NameRecord>(kind::NAME, id);
            hdr.size += 8;
            let record = layout::NameRecord {
                hdr,
                len: 8,
                pad: 0,
            };
            let bytes = [record.as_bytes(), b"samename"].concat();
            decode(decoder, kind::NAME, &bytes);
        };
        let most = 2 * layout::MAX_NAMES;
        for id in 1..u32::try_from(2 * most).unwrap() {
            name(&mut decoder, id);
        }
        let names = &decoder.processes[&PID].names;
        assert!(names.len() <= most);
        let newest = u32::try_from(2 * most).unwrap() - 1;
        let oldest_in_use = newest - u32::try_from(layout::MAX_NAMES).unwrap() + 1;
        assert!((oldest_in_use..=newest).all(|id| names.contains_key(&id)));
        // Numbers that no shim would give.
        for id in (0..u32::MAX).step_by(7919).take(2 * most) {
            name(&mut decoder, id);
        }
        assert!(decoder.processes[&PID].names.len() <= most);
    }

    #[test]
    fn a_loss_counts_also_when_its_time_makes_no_sense() {
        let mut decoder = decoder();
        let record = layout::LostRecord {
            hdr: header::<layout::LostRecord>(kind::LOST, 0),
            count: 7,
            from: 0,
            to: 5,
        };
        let events = decode(&mut decoder, kind::LOST, record.as_bytes());
        let [Event::Loss(loss)] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(
            (loss.count, loss.from, loss.to),
            (7, Nanos(1_000_000_000), Nanos(2_000_000_000))
        );
    }

    #[test]
    fn anything_that_is_no_record_is_counted_and_never_panics() {
        let mut decoder = decoder();
        let garbage = [0xffu8; 300];
        for kind in 0..40 {
            for len in [0, 7, 8, 16, 39, 64, 120, 300] {
                decode(&mut decoder, kind, &garbage[..len]);
            }
        }
        assert!(decoder.malformed > 100);
    }

    #[test]
    fn uuids_look_as_nvidia_smi_prints_them() {
        let bytes = core::array::from_fn(|i| u8::try_from(i * 17).unwrap());
        assert_eq!(uuid(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
