//! What the BPF programs sent → events, in order of time.
#![forbid(unsafe_code)]

use std::mem::offset_of;

use crate::collect::bpf::types;
use crate::collect::wire::{read, read_cut, Wire};
use crate::collect::{driver, stacks};
use crate::decode::stacks::RawSample;
use crate::decode::syscalls::RawCall;
use crate::event::{
    Api, ApiCall, ApiDomain, Context, Cpu, CpuWait, Event, Exit, Interrupt, NameId, Pid, Sample,
    Signal, StackId, Stall, StallKind, Switch, SwitchFlags, Task, TaskReason, TaskState, Tid, Wait,
    Waking,
};
use crate::intern::Names;
use crate::units::Nanos;

/// Length of a chunk before its slots.
const CHUNK_HEADER: usize = offset_of!(types::gdiag_chunk, slots);
const SLOT: usize = size_of::<types::gdiag_slot>();

// The enumerators of `bpf/events.h`, as libbpf-cargo generated them.
use types::{gdiag_ctx as ctx, gdiag_rec_type as rec, gdiag_slot_kind as slot_kind};
use types::{
    gdiag_stall_kind as stall_kind, gdiag_sw_flags as sw, gdiag_task_reason as task_reason,
};

// The flags of an event keep the kernel side's numbers.
const _: () = assert!(
    SwitchFlags::PREEMPT as u32 == sw::GDIAG_SW_PREEMPT.0
        && SwitchFlags::IOWAIT as u32 == sw::GDIAG_SW_IOWAIT.0
        && SwitchFlags::MEMSTALL as u32 == sw::GDIAG_SW_MEMSTALL.0
        && SwitchFlags::THROTTLED as u32 == sw::GDIAG_SW_THROTTLED.0
        && SwitchFlags::EXITING as u32 == sw::GDIAG_SW_EXITING.0
);

/// A record as it came, decoded only when its turn comes.
#[derive(Clone, Debug)]
enum Record {
    Slot(u16, types::gdiag_slot),
    Task(Box<types::gdiag_task>),
    Exit(types::gdiag_exit),
    Wait(Box<types::gdiag_wait>),
    Resumed(types::gdiag_resumed),
    CpuWait(types::gdiag_cpu_wait),
    Stall(types::gdiag_stall),
    Signal(types::gdiag_signal),
    Irq(types::gdiag_irq),
    Sample(Box<RawSample>),
    PyCode(Box<stacks::types::gdiag_pycode>),
    Call(driver::types::gdiag_call),
    SysCall(RawCall),
}

// There are hundreds of thousands of them in a read.
const _: () = assert!(size_of::<Record>() <= 48);

/// A wait whose object is still a number.
#[derive(Clone, Copy, Debug)]
pub struct RawWait {
    pub tid: Tid,
    pub syscall: Option<u16>,
    pub args: [u64; 3],
    /// What the first argument stood for as the number of an open file.
    pub file: Option<FileId>,
}

/// An open file of whatever kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub inode: u64,
    /// As in stat(2).
    pub mode: u16,
}

/// Turns addresses and descriptors into names while the target still has them.
pub trait Lookup {
    /// Names of kernel addresses.
    fn stack(&mut self, ips: &[u64], names: &mut Names, sink: &mut dyn FnMut(Event)) -> StackId;
    /// What the system call worked on; the empty name when unknown.
    fn object(&mut self, wait: &RawWait, names: &mut Names, sink: &mut dyn FnMut(Event)) -> NameId;
    /// Where a thread was: its addresses become frames.
    fn sample(&mut self, raw: &RawSample, names: &mut Names, sink: &mut dyn FnMut(Event))
        -> Sample;
    /// A Python function whose address later samples name.
    fn py_code(&mut self, code: &stacks::types::gdiag_pycode);
    /// A system call that was watched.
    fn sys_call(&mut self, _: &RawCall) {}
    /// A thread's identity is about to be handed out. `proc_tid` and `proc_pid` are its ids in the
    /// PID namespace of gdiag, so in /proc; 0 when it cannot be seen there.
    fn task(&mut self, task: &Task, comm: &str, proc_tid: u32, proc_pid: u32);
    /// A thread has ended, and its id may be another's.
    fn exit(&mut self, exit: &Exit);
}

/// Records of all CPUs between two reads of the ring buffers, and what could not be read yet.
///
/// Each CPU's records come in order, those of several CPUs do not. After a flush of all
/// CPUs at time T, everything before T has arrived: [`Batch::take_until`] hands that out sorted.
#[derive(Debug, Default)]
pub struct Batch {
    /// Time and index into `records`.
    keys: Vec<(u64, u32)>,
    records: Vec<Record>,
    /// Records of a type or length that this program does not know.
    pub malformed: u64,
}

impl Batch {
    /// Takes one ring-buffer record.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.add_known(bytes).is_none() {
            self.malformed += 1;
        }
    }

    fn add_known(&mut self, bytes: &[u8]) -> Option<()> {
        let word = |at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
        match rec(u32::from_ne_bytes(word(0)?)) {
            rec::GDIAG_REC_CHUNK => {
                let [c0, c1, n0, n1] = word(4)?;
                let cpu = u16::from_ne_bytes([c0, c1]);
                let count = usize::from(u16::from_ne_bytes([n0, n1]));
                let slots = bytes.get(CHUNK_HEADER..)?;
                if slots.len() < count * SLOT {
                    return None;
                }
                for bytes in slots.chunks_exact(SLOT).take(count) {
                    let slot: types::gdiag_slot = read(bytes)?;
                    self.push(slot.ts_ns, Record::Slot(cpu, slot));
                }
            }
            rec::GDIAG_REC_TASK => self.record(bytes, |r: types::gdiag_task| {
                (r.hdr.ts_ns, Record::Task(Box::new(r)))
            })?,
            rec::GDIAG_REC_EXIT => {
                self.record(bytes, |r: types::gdiag_exit| (r.hdr.ts_ns, Record::Exit(r)))?;
            }
            rec::GDIAG_REC_WAIT => self.record(bytes, |r: types::gdiag_wait| {
                (r.hdr.ts_ns, Record::Wait(Box::new(r)))
            })?,
            rec::GDIAG_REC_RESUMED => self.record(bytes, |r: types::gdiag_resumed| {
                (r.hdr.ts_ns, Record::Resumed(r))
            })?,
            rec::GDIAG_REC_CPU_WAIT => self.record(bytes, |r: types::gdiag_cpu_wait| {
                (r.hdr.ts_ns, Record::CpuWait(r))
            })?,
            rec::GDIAG_REC_STALL => self.record(bytes, |r: types::gdiag_stall| {
                (r.hdr.ts_ns.saturating_add(r.dur_ns), Record::Stall(r))
            })?,
            rec::GDIAG_REC_SIGNAL => self.record(bytes, |r: types::gdiag_signal| {
                (r.hdr.ts_ns, Record::Signal(r))
            })?,
            rec::GDIAG_REC_SAMPLE => {
                let sample = RawSample::of(bytes)?;
                self.push(sample.ts.0, Record::Sample(Box::new(sample)));
            }
            rec::GDIAG_REC_PYCODE => {
                let least = offset_of!(stacks::types::gdiag_pycode, bytes);
                let code = read_cut::<stacks::types::gdiag_pycode>(bytes, least)?;
                self.push(code.hdr.ts_ns, Record::PyCode(code));
            }
            rec::GDIAG_REC_CALL => self.record(bytes, |r: driver::types::gdiag_call| {
                (r.hdr.ts_ns, Record::Call(r))
            })?,
            kind @ (rec::GDIAG_REC_SYSCALL | rec::GDIAG_REC_SYS_OPEN) => {
                let call = RawCall::of(bytes, kind == rec::GDIAG_REC_SYS_OPEN)?;
                self.push(call.end.0, Record::SysCall(call));
            }
            rec::GDIAG_REC_IRQ => self.record(bytes, |r: types::gdiag_irq| {
                let end = r.hdr.ts_ns.saturating_add(u64::from(r.dur_ns));
                (end, Record::Irq(r))
            })?,
            _ => return None,
        }
        Some(())
    }

    fn record<T: Wire>(&mut self, bytes: &[u8], make: impl Fn(T) -> (u64, Record)) -> Option<()> {
        let (ts, record) = make(read(bytes)?);
        self.push(ts, record);
        Some(())
    }

    fn push(&mut self, ts: u64, record: Record) {
        let index = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        self.keys.push((ts, index));
        self.records.push(record);
    }

    /// Hands out everything before `limit`, in order of time, and keeps the rest.
    pub fn take_until(
        &mut self,
        limit: Nanos,
        names: &mut Names,
        lookup: &mut dyn Lookup,
        sink: &mut dyn FnMut(Event),
    ) {
        // Stable, so that records of one CPU with the same time keep their order; and the
        // runs of each CPU are sorted already, which this sort makes use of.
        self.keys.sort_by_key(|&(ts, _)| ts);
        let ready = self.keys.partition_point(|&(ts, _)| ts < limit.0);
        for &(_, index) in &self.keys[..ready] {
            if let Some(event) = event(&self.records[index as usize], names, lookup, sink) {
                sink(event);
            }
        }
        let rest: Vec<Record> = self.keys[ready..]
            .iter()
            .map(|&(_, index)| self.records[index as usize].clone())
            .collect();
        self.keys.drain(..ready);
        for (new, key) in (0u32..).zip(&mut self.keys) {
            key.1 = new;
        }
        self.records = rest;
    }
}

/// -1 says "in no system call".
fn syscall(nr: i16) -> Option<u16> {
    u16::try_from(nr).ok()
}

fn context(kind: u8, vector: u32) -> Context {
    let vector = u16::try_from(vector).unwrap_or(u16::MAX);
    match ctx(u32::from(kind)) {
        ctx::GDIAG_CTX_HARDIRQ => Context::HardIrq(vector),
        ctx::GDIAG_CTX_SOFTIRQ => Context::SoftIrq(vector),
        ctx::GDIAG_CTX_TIMER => Context::Timer,
        _ => Context::Task,
    }
}

/// The bytes of a kernel `comm`, up to its NUL, as text.
pub(crate) fn comm(bytes: &[i8; 16]) -> String {
    let bytes = bytes.map(i8::cast_unsigned);
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn event(
    record: &Record,
    names: &mut Names,
    lookup: &mut dyn Lookup,
    sink: &mut dyn FnMut(Event),
) -> Option<Event> {
    Some(match record {
        Record::Sample(raw) => Event::Sample(lookup.sample(raw, names, sink)),
        Record::PyCode(code) => {
            lookup.py_code(code);
            return None;
        }
        Record::SysCall(call) => {
            lookup.sys_call(call);
            Event::SysCall(call.event()?)
        }
        Record::Slot(cpu, s) if u32::from(s.kind) == slot_kind::GDIAG_SLOT_WAKING.0 => {
            Event::Waking(Waking {
                ts: Nanos(s.ts_ns),
                cpu: Cpu(*cpu),
                wakee: Tid(s.a),
                waker: Tid(s.b),
                context: context(s.flags, u32::from(s.state)),
            })
        }
        Record::Slot(cpu, s) => {
            debug_assert_eq!(u32::from(s.kind), slot_kind::GDIAG_SLOT_SWITCH.0);
            Event::Switch(Switch {
                ts: Nanos(s.ts_ns),
                cpu: Cpu(*cpu),
                prev: Tid(s.a),
                next: Tid(s.b),
                state: s.state,
                syscall: syscall(s.nr),
                flags: SwitchFlags(s.flags),
                minor_faults: s.min_flt,
                major_faults: s.maj_flt,
            })
        }
        Record::Task(t) => {
            let comm = comm(&t.comm);
            let task = task(t, names.name(&comm, sink));
            lookup.task(&task, &comm, t.proc_tid, t.proc_pid);
            Event::Task(task)
        }
        Record::Exit(e) => {
            let exit = Exit {
                ts: Nanos(e.hdr.ts_ns),
                tid: Tid(e.hdr.tid),
                pid: Pid(e.pid),
                code: e.exit_code,
            };
            lookup.exit(&exit);
            Event::Exit(exit)
        }
        Record::Wait(w) => {
            let frames = usize::from(w.frames).min(w.ips.len());
            let raw = RawWait {
                tid: Tid(w.hdr.tid),
                syscall: syscall(w.nr),
                args: w.args,
                file: (w.inode != 0).then_some(FileId {
                    inode: w.inode,
                    mode: w.mode,
                }),
            };
            let stack = lookup.stack(&w.ips[..frames], names, sink);
            let object = lookup.object(&raw, names, sink);
            Event::Wait(Wait {
                tid: raw.tid,
                start: Nanos(w.start_ns),
                end: Nanos(w.hdr.ts_ns),
                state: w.state,
                syscall: raw.syscall,
                stack,
                object,
            })
        }
        // How the other one left is not known, nor asked: it is recorded for the CPU's sake.
        Record::Resumed(r) => Event::Switch(Switch {
            ts: Nanos(r.hdr.ts_ns),
            cpu: Cpu(u16::try_from(r.cpu).unwrap_or(u16::MAX)),
            prev: Tid(r.prev_tid),
            next: Tid(r.hdr.tid),
            state: 0,
            syscall: None,
            flags: SwitchFlags(0),
            minor_faults: 0,
            major_faults: 0,
        }),
        Record::CpuWait(w) => Event::CpuWait(CpuWait {
            tid: Tid(w.hdr.tid),
            start: Nanos(w.start_ns),
            end: Nanos(w.hdr.ts_ns),
            allowed: w.allowed,
            online: w.online,
            idle: w.idle,
        }),
        Record::Stall(s) => Event::Stall(Stall {
            tid: Tid(s.hdr.tid),
            start: Nanos(s.hdr.ts_ns),
            dur: Nanos(s.dur_ns),
            kind: match stall_kind(s.kind) {
                stall_kind::GDIAG_STALL_COMPACTION => StallKind::Compaction,
                stall_kind::GDIAG_STALL_YIELD => StallKind::Yields,
                _ => StallKind::Reclaim,
            },
        }),
        Record::Signal(s) => Event::Signal(Signal {
            ts: Nanos(s.hdr.ts_ns),
            sender: Tid(s.sender_tid),
            receiver: Tid(s.hdr.tid),
            signal: u8::try_from(s.sig).unwrap_or(0),
        }),
        Record::Call(c) => Event::ApiCall(ApiCall {
            pid: Pid(c.pid),
            tid: Tid(c.hdr.tid),
            api: Api {
                domain: ApiDomain::Driver,
                cbid: c.cbid,
            },
            start: Nanos(c.start_ns),
            end: Nanos(c.hdr.ts_ns),
            correlation: ApiCall::PROBED,
            result: c.result,
        }),
        Record::Irq(i) => Event::Interrupt(Interrupt {
            start: Nanos(i.hdr.ts_ns),
            dur: Nanos(u64::from(i.dur_ns)),
            cpu: Cpu(i.cpu),
            tid: Tid(i.hdr.tid),
            context: context(i.ctx, i.vector),
        }),
    })
}

fn task(t: &types::gdiag_task, comm: NameId) -> Task {
    let reason = match task_reason(u32::from(t.reason)) {
        task_reason::GDIAG_TASK_NEW => TaskReason::New {
            parent: Tid(t.parent_tid),
        },
        task_reason::GDIAG_TASK_EXEC => TaskReason::Exec,
        task_reason::GDIAG_TASK_RENAME => TaskReason::Rename,
        task_reason::GDIAG_TASK_FOLLOWED => TaskReason::Followed,
        _ => TaskReason::Seen,
    };
    let state = match (t.on_cpu, t.state) {
        (0, 0) => TaskState::Runnable,
        (0, state) => TaskState::Off(state),
        _ => TaskState::Running,
    };
    Task {
        ts: Nanos(t.hdr.ts_ns),
        tid: Tid(t.hdr.tid),
        pid: Pid(t.pid),
        ppid: Pid(t.ppid),
        comm,
        start: Nanos(t.start_ns),
        ns_tid: Tid(t.ns_tid),
        ns_pid: Pid(t.ns_pid),
        cgroup: t.cgroup_id,
        prio: t.prio,
        reason,
        target: t.target != 0,
        kthread: t.kthread != 0,
        state,
        syscall: syscall(t.nr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows one object, and no stack but that of its length.
    struct Fake;

    impl Lookup for Fake {
        fn sample(&mut self, _: &RawSample, _: &mut Names, _: &mut dyn FnMut(Event)) -> Sample {
            unreachable!()
        }

        fn py_code(&mut self, _: &stacks::types::gdiag_pycode) {}

        fn stack(&mut self, ips: &[u64], _: &mut Names, _: &mut dyn FnMut(Event)) -> StackId {
            StackId(u32::try_from(ips.len()).unwrap())
        }

        fn object(
            &mut self,
            wait: &RawWait,
            names: &mut Names,
            sink: &mut dyn FnMut(Event),
        ) -> NameId {
            let socket = FileId {
                inode: 77,
                mode: 0o140_777,
            };
            assert_eq!(wait.file, Some(socket));
            names.name(&format!("fd {}", wait.args[0]), sink)
        }

        fn task(&mut self, _: &Task, _: &str, _: u32, _: u32) {}

        fn exit(&mut self, _: &Exit) {}
    }

    fn taken(batch: &mut Batch, limit: u64) -> Vec<Event> {
        let mut events = Vec::new();
        batch.take_until(Nanos(limit), &mut Names::default(), &mut Fake, &mut |e| {
            events.push(e);
        });
        events
    }

    /// A chunk of switches from thread 1 to 2.
    fn chunk(cpu: u16, times: &[u64]) -> Vec<u8> {
        let mut bytes = rec::GDIAG_REC_CHUNK.0.to_ne_bytes().to_vec();
        bytes.extend(cpu.to_ne_bytes());
        bytes.extend(u16::try_from(times.len()).unwrap().to_ne_bytes());
        for ts in times {
            bytes.extend(ts.to_ne_bytes());
            bytes.extend(1u32.to_ne_bytes());
            bytes.extend(2u32.to_ne_bytes());
            bytes.push(u8::try_from(slot_kind::GDIAG_SLOT_SWITCH.0).unwrap());
            bytes.push(0);
            bytes.extend(1u16.to_ne_bytes());
            bytes.extend((-1i16).to_ne_bytes());
            bytes.extend([3, 0]);
        }
        bytes
    }

    fn wait(frames: u16) -> Vec<u8> {
        let mut bytes = rec::GDIAG_REC_WAIT.0.to_ne_bytes().to_vec();
        bytes.extend(7u32.to_ne_bytes());
        for word in [900u64, 100, 5, 0, 0, 77] {
            bytes.extend(word.to_ne_bytes());
        }
        // The mode of the file, the state, the number of the system call.
        for half in [0o140_777u16, 2, 0, frames] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes.resize(size_of::<types::gdiag_wait>(), 0xff);
        bytes
    }

    #[test]
    fn records_of_all_cpus_come_in_order_and_what_is_not_yet_certain_waits() {
        let mut batch = Batch::default();
        batch.add(&chunk(0, &[10, 30, 50]));
        batch.add(&chunk(1, &[20, 40, 60]));
        let times = |events: Vec<Event>| -> Vec<(u64, u16)> {
            let at = events.iter().map(|e| match e {
                Event::Switch(s) => (s.ts.0, s.cpu.0),
                other => panic!("{other:?}"),
            });
            at.collect()
        };
        assert_eq!(
            times(taken(&mut batch, 50)),
            [(10, 0), (20, 1), (30, 0), (40, 1)]
        );
        batch.add(&chunk(1, &[55]));
        assert_eq!(times(taken(&mut batch, 61)), [(50, 0), (55, 1), (60, 1)]);
        assert_eq!(times(taken(&mut batch, u64::MAX)), []);
        assert_eq!(batch.malformed, 0);
    }

    #[test]
    fn a_switch_has_its_fields() {
        let mut batch = Batch::default();
        batch.add(&chunk(5, &[10]));
        assert_eq!(
            taken(&mut batch, 11),
            [Event::Switch(Switch {
                ts: Nanos(10),
                cpu: Cpu(5),
                prev: Tid(1),
                next: Tid(2),
                state: 1,
                syscall: None,
                flags: SwitchFlags(0),
                minor_faults: 3,
                major_faults: 0,
            })]
        );
    }

    #[test]
    fn a_call_of_the_driver_comes_when_it_is_over() {
        let mut batch = Batch::default();
        let call = |end: u64, result: u32| {
            let mut bytes = rec::GDIAG_REC_CALL.0.to_ne_bytes().to_vec();
            bytes.extend(8u32.to_ne_bytes());
            bytes.extend([end, 100].map(u64::to_ne_bytes).concat());
            bytes.extend([7, 307, result, 0].map(u32::to_ne_bytes).concat());
            bytes
        };
        batch.add(&call(900, 0));
        batch.add(&call(400, u32::MAX));
        batch.add(&call(300, 0)[..39]);
        let event = |end, result| {
            Event::ApiCall(ApiCall {
                pid: Pid(7),
                tid: Tid(8),
                api: Api {
                    domain: ApiDomain::Driver,
                    cbid: 307,
                },
                start: Nanos(100),
                end: Nanos(end),
                correlation: ApiCall::PROBED,
                result,
            })
        };
        assert_eq!(taken(&mut batch, 900), [event(400, ApiCall::NOT_RETURNED)]);
        assert_eq!(taken(&mut batch, 901), [event(900, 0)]);
        assert_eq!(batch.malformed, 1);
    }

    #[test]
    fn a_wait_names_its_object_and_believes_no_depth() {
        let mut batch = Batch::default();
        batch.add(&wait(2));
        batch.add(&wait(u16::MAX));
        let events = taken(&mut batch, 901);
        let [Event::Define(object), Event::Wait(two), Event::Wait(deepest)] = events.as_slice()
        else {
            panic!("{events:?}");
        };
        assert!(matches!(object, crate::event::Define::Name { text, .. } if text == "fd 5"));
        assert_eq!(
            (two.start, two.end, two.tid),
            (Nanos(100), Nanos(900), Tid(7))
        );
        assert_eq!((two.state, two.syscall), (2, Some(0)));
        assert_eq!((two.stack, deepest.stack), (StackId(2), StackId(32)));
    }

    #[test]
    fn what_is_no_record_is_counted() {
        let mut batch = Batch::default();
        let mut cut = chunk(0, &[1, 2]);
        cut.pop();
        for bytes in [&[][..], &[1, 0, 0], &[0xff; 64], &cut, &wait(1)[..100]] {
            batch.add(bytes);
        }
        assert_eq!(batch.malformed, 5);
        assert_eq!(taken(&mut batch, u64::MAX), []);
    }
}
