//! The records of one chunk back to events. Mirrors `encode`, field by field.
//!
//! The checksum has been verified before, so what does not parse was written wrong
//! on purpose or by a bug; it is refused all the same, without a panic and without
//! believing any length.
#![forbid(unsafe_code)]

use super::format::{self, record};
use super::state::{Lane, State};
use super::varint::{unzigzag, Cursor};
use crate::event::{
    Api, ApiCall, CallStackId, ClockPair, Context, ContextId, CorrelationId, Cpu, CpuWait, Define,
    Device, DeviceId, Event, Exit, Frame, FrameId, Function, GpuInvalid, GpuOp, Interrupt, Loss,
    LossSource, Migration, NameId, OpKind, Overhead, Pid, Probes, Process, Sample, SampleKind,
    Shim, Signal, StackId, Stall, StreamId, Switch, SwitchFlags, Sync, SysCall, Task, TaskReason,
    TaskState, Tid, Wait, Waking,
};
use crate::units::Nanos;

/// One record.
#[derive(Debug)]
pub(super) enum Record {
    Event(Event),
    /// Of a kind, or with a value, that a newer gdiag introduced.
    Unknown,
}

/// Why a record did not become an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    /// A value that has no meaning here; the rest of the chunk is fine.
    Unknown,
    /// Not what a writer writes: nothing after it can be trusted.
    Malformed,
}

/// The chunk cannot be read from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

type Decoded<T> = Result<T, Problem>;

/// Reads a chunk from front to back.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    bytes: Cursor<'a>,
    state: &'a mut State,
}

impl<'a> Decoder<'a> {
    /// `state` is reused only for its memory.
    pub(super) fn new(bytes: &'a [u8], state: &'a mut State) -> Self {
        state.reset();
        Decoder {
            bytes: Cursor(bytes),
            state,
        }
    }

    /// `None` at the end of the chunk.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Malformed> {
        let Some(head) = self.bytes.u8() else {
            return Ok(None);
        };
        let mut fields = Fields {
            bytes: self.bytes,
            state: self.state,
        };
        let decoded = if head & record::FORM == 0 {
            let len = fields.num().map_err(|_| Malformed)?;
            let body = fields.bytes.take(len).ok_or(Malformed)?;
            self.bytes = fields.bytes;
            fields.bytes = Cursor(body);
            fields.framed(head)
        } else {
            let decoded = fields.packed(head);
            self.bytes = fields.bytes;
            decoded
        };
        match decoded {
            Ok(event) => Ok(Some(Record::Event(event))),
            Err(Problem::Unknown) => Ok(Some(Record::Unknown)),
            Err(Problem::Malformed) => Err(Malformed),
        }
    }
}

/// The fields of one record.
struct Fields<'a, 's> {
    bytes: Cursor<'a>,
    state: &'s mut State,
}

impl Fields<'_, '_> {
    fn packed(&mut self, head: u8) -> Decoded<Event> {
        let ts = self.time(Lane::Host)?;
        if head & record::SAME_CPU == 0 {
            self.state.cpu = self.int()?;
        }
        let cpu = Cpu(self.state.cpu);
        let subject = Tid(if head & record::CURRENT == 0 {
            self.tid()?
        } else {
            self.state.current(cpu.0)
        });
        match head & record::FORM {
            record::SWITCH => self.switch(head, ts, cpu, subject),
            record::WAKING => {
                let wakee = Tid(self.tid()?);
                let context = self.context(head)?;
                Ok(Event::Waking(Waking {
                    ts,
                    cpu,
                    wakee,
                    waker: subject,
                    context,
                }))
            }
            _ => {
                let dur = Nanos(self.num()?);
                let context = self.context(head)?;
                Ok(Event::Interrupt(Interrupt {
                    start: ts,
                    dur,
                    cpu,
                    tid: subject,
                    context,
                }))
            }
        }
    }

    fn switch(&mut self, head: u8, ts: Nanos, cpu: Cpu, prev: Tid) -> Decoded<Event> {
        let next = Tid(self.tid()?);
        self.state.set_current(cpu.0, next.0);
        let mut e = Switch {
            ts,
            cpu,
            prev,
            next,
            state: 0,
            syscall: None,
            flags: SwitchFlags(0),
            minor_faults: 0,
            major_faults: 0,
        };
        if head & record::HAS_STATE != 0 {
            e.state = self.int()?;
        }
        if head & record::HAS_SYSCALL != 0 {
            e.syscall = Some(self.int()?);
        }
        if head & record::HAS_FLAGS != 0 {
            e.flags = SwitchFlags(self.byte()?);
        }
        if head & record::HAS_FAULTS != 0 {
            e.minor_faults = self.byte()?;
            e.major_faults = self.byte()?;
        }
        Ok(Event::Switch(e))
    }

    fn context(&mut self, head: u8) -> Decoded<Context> {
        match (head & record::CONTEXT) >> record::CONTEXT_SHIFT {
            0 => Ok(Context::Task),
            1 => Ok(Context::HardIrq(self.int()?)),
            2 => Ok(Context::SoftIrq(self.int()?)),
            3 => Ok(Context::Timer),
            _ => Err(Problem::Malformed),
        }
    }

    fn framed(&mut self, kind: u8) -> Decoded<Event> {
        match kind {
            record::NAME => self.name_definition().map(Event::Define),
            record::STACK => self.stack_definition().map(Event::Define),
            record::IRQ => self.irq_definition().map(Event::Define),
            record::TASK => self.task().map(Event::Task),
            record::EXIT => self.exit().map(Event::Exit),
            record::WAIT => self.wait().map(Event::Wait),
            record::STALL => self.stall().map(Event::Stall),
            record::SYS_CALL => self.sys_call().map(Event::SysCall),
            record::SIGNAL => self.signal().map(Event::Signal),
            record::GPU_OP => self.gpu_op().map(Event::GpuOp),
            record::GPU_INVALID => self.gpu_invalid().map(Event::GpuInvalid),
            record::API_CALL => self.api_call().map(Event::ApiCall),
            record::SYNC => self.sync().map(Event::Sync),
            record::OVERHEAD => self.overhead().map(Event::Overhead),
            record::DEVICE => self.device().map(Event::Device),
            record::SHIM => self.shim().map(Event::Shim),
            record::PROBED_CALL => self.probed_call().map(Event::ApiCall),
            record::PROBES => self.probes().map(Event::Probes),
            record::PROCESS => self.process().map(Event::Process),
            record::CLOCK => self.clock().map(Event::Clock),
            record::LOSS => self.loss().map(Event::Loss),
            record::FRAME => self.frame_definition().map(Event::Define),
            record::CALL_STACK => self.call_stack_definition().map(Event::Define),
            record::FUNCTIONS => self.functions_definition().map(Event::Define),
            record::SAMPLE => self.sample().map(Event::Sample),
            record::CPU_WAIT => self.cpu_wait().map(Event::CpuWait),
            record::MIGRATION => self.migration().map(Event::Migration),
            record::ENDPOINT => self.endpoint_definition().map(Event::Define),
            _ => Err(Problem::Unknown),
        }
    }

    fn name_definition(&mut self) -> Decoded<Define> {
        let id = self.name()?;
        // The text is the rest, so this record can never get another field.
        let text = std::str::from_utf8(self.bytes.0).map_err(|_| Problem::Malformed)?;
        Ok(Define::Name {
            id,
            text: text.to_owned(),
        })
    }

    fn stack_definition(&mut self) -> Decoded<Define> {
        Ok(Define::Stack {
            id: StackId(self.int()?),
            frames: self.list(Self::name)?,
        })
    }

    fn frame_definition(&mut self) -> Decoded<Define> {
        let id = FrameId(self.int()?);
        let frame = match self.num()? {
            record::FRAME_NATIVE => Frame::Native {
                module: self.name()?,
                build_id: self.name()?,
                address: self.num()?,
            },
            record::FRAME_ANONYMOUS => Frame::Anonymous {
                address: self.num()?,
            },
            record::FRAME_PYTHON => Frame::Python {
                function: self.name()?,
                file: self.name()?,
                line: self.int()?,
            },
            _ => return Err(Problem::Unknown),
        };
        Ok(Define::Frame { id, frame })
    }

    fn call_stack_definition(&mut self) -> Decoded<Define> {
        let id = CallStackId(self.int()?);
        let cut = match self.num()? {
            0 => None,
            code => Some(format::cut_from(code).ok_or(Problem::Unknown)?),
        };
        let mut last = 0_u64;
        let frames = self.list(|fields| {
            last = last.wrapping_add(unzigzag(fields.num()?));
            let id = u32::try_from(last).map_err(|_| Problem::Malformed)?;
            Ok(FrameId(id))
        })?;
        Ok(Define::CallStack { id, frames, cut })
    }

    fn functions_definition(&mut self) -> Decoded<Define> {
        Ok(Define::Functions {
            frame: FrameId(self.int()?),
            functions: self.list(|fields| {
                Ok(Function {
                    name: fields.name()?,
                    file: fields.name()?,
                    line: fields.int()?,
                })
            })?,
        })
    }

    fn irq_definition(&mut self) -> Decoded<Define> {
        Ok(Define::Irq {
            irq: self.int()?,
            name: self.name()?,
        })
    }

    fn task(&mut self) -> Decoded<Task> {
        let ts = self.time(Lane::Host)?;
        let tid = Tid(self.tid()?);
        let pid = Pid(self.tid()?);
        let ppid = Pid(self.int()?);
        let comm = self.name()?;
        let start = Nanos(self.num()?);
        let ns_tid = Tid(self.int()?);
        let ns_pid = Pid(self.int()?);
        let cgroup = self.num()?;
        let prio = self.int()?;
        let bits = self.byte()?;
        let syscall = self.option()?;
        let reason = match self.num()? {
            record::REASON_SEEN => TaskReason::Seen,
            record::REASON_NEW => TaskReason::New {
                parent: Tid(self.int()?),
            },
            record::REASON_EXEC => TaskReason::Exec,
            record::REASON_RENAME => TaskReason::Rename,
            record::REASON_FOLLOWED => TaskReason::Followed,
            _ => return Err(Problem::Unknown),
        };
        let state = match self.num()? {
            record::STATE_RUNNING => TaskState::Running,
            record::STATE_RUNNABLE => TaskState::Runnable,
            record::STATE_OFF => TaskState::Off(self.int()?),
            _ => return Err(Problem::Unknown),
        };
        Ok(Task {
            ts,
            tid,
            pid,
            ppid,
            comm,
            start,
            ns_tid,
            ns_pid,
            cgroup,
            prio,
            reason,
            target: bits & record::TASK_TARGET != 0,
            kthread: bits & record::TASK_KTHREAD != 0,
            state,
            syscall,
        })
    }

    fn exit(&mut self) -> Decoded<Exit> {
        Ok(Exit {
            ts: self.time(Lane::Host)?,
            tid: Tid(self.tid()?),
            pid: Pid(self.tid()?),
            code: self.int::<u32>()?.cast_signed(),
        })
    }

    fn wait(&mut self) -> Decoded<Wait> {
        let end = self.time(Lane::Host)?;
        let tid = Tid(self.tid()?);
        let start = Nanos(end.0.wrapping_sub(self.num()?));
        Ok(Wait {
            tid,
            start,
            end,
            state: self.int()?,
            syscall: self.option()?,
            stack: StackId(self.int()?),
            object: self.name()?,
        })
    }

    fn endpoint_definition(&mut self) -> Decoded<Define> {
        Ok(Define::Endpoint {
            object: self.name()?,
            role: self.code(format::role_from)?,
            peer: match self.byte()? {
                0 => None,
                _ => Some(Pid(self.int()?)),
            },
        })
    }

    fn cpu_wait(&mut self) -> Decoded<CpuWait> {
        let end = self.time(Lane::Host)?;
        let tid = Tid(self.tid()?);
        let start = Nanos(end.0.wrapping_sub(self.num()?));
        Ok(CpuWait {
            tid,
            start,
            end,
            allowed: self.int()?,
            online: self.int()?,
            idle: self.int()?,
        })
    }

    fn migration(&mut self) -> Decoded<Migration> {
        let (start, end) = self.interval(Lane::Gpu)?;
        Ok(Migration {
            pid: Pid(self.tid()?),
            device: DeviceId(self.int()?),
            kind: self.code(format::migration_from)?,
            start,
            end,
            bytes: self.num()?,
        })
    }

    fn stall(&mut self) -> Decoded<Stall> {
        let start = self.time(Lane::Host)?;
        Ok(Stall {
            start,
            tid: Tid(self.tid()?),
            dur: Nanos(self.num()?),
            kind: self.code(format::stall_from)?,
        })
    }

    fn sys_call(&mut self) -> Decoded<SysCall> {
        let end = self.time(Lane::Host)?;
        let tid = Tid(self.tid()?);
        let start = Nanos(end.0.wrapping_sub(self.num()?));
        Ok(SysCall {
            tid,
            start,
            end,
            number: self.int()?,
            result: unzigzag(self.num()?).cast_signed(),
        })
    }

    fn signal(&mut self) -> Decoded<Signal> {
        Ok(Signal {
            ts: self.time(Lane::Host)?,
            sender: Tid(self.tid()?),
            receiver: Tid(self.tid()?),
            signal: self.byte()?,
        })
    }

    fn sample(&mut self) -> Decoded<Sample> {
        let ts = self.time(Lane::Host)?;
        let tid = Tid(self.tid()?);
        let gil = match self.byte()? {
            0 => None,
            _ => Some(Tid(self.tid()?)),
        };
        let kernel = StackId(self.int()?);
        let user = CallStackId(self.int()?);
        let kind = match self.num()? {
            record::SAMPLE_CPU => SampleKind::Cpu {
                period: Nanos(self.num()?),
            },
            record::SAMPLE_OFF_CPU => SampleKind::OffCpu {
                since: Nanos(ts.0.wrapping_sub(self.num()?)),
            },
            record::SAMPLE_WAKER => SampleKind::Waker {
                wakee: Tid(self.int()?),
                since: Nanos(ts.0.wrapping_sub(self.num()?)),
            },
            record::SAMPLE_LAUNCH => SampleKind::Launch {
                one_in: self.int()?,
            },
            _ => return Err(Problem::Unknown),
        };
        let flags = if self.bytes.0.is_empty() {
            0
        } else {
            self.num()?
        };
        Ok(Sample {
            ts,
            tid,
            kind,
            kernel,
            user,
            gil,
            collects: flags & record::SAMPLE_COLLECTS != 0,
        })
    }

    fn gpu_op(&mut self) -> Decoded<GpuOp> {
        let (start, end) = self.interval(Lane::Gpu)?;
        let pid = Pid(self.tid()?);
        let correlation = self.correlation(Lane::Gpu)?;
        let node = self.state.node.wrapping_add(unzigzag(self.num()?));
        self.state.node = node;
        let graph = self.int()?;
        let device = DeviceId(self.int()?);
        let context = ContextId(self.int()?);
        let stream = StreamId(self.int()?);
        let kind = match self.num()? {
            record::OP_KERNEL => OpKind::Kernel { name: self.name()? },
            record::OP_MEMCPY => OpKind::Memcpy {
                kind: self.code(format::copy_from)?,
                src: self.code(format::memory_from)?,
                dst: self.code(format::memory_from)?,
                bytes: self.num()?,
            },
            record::OP_MEMSET => OpKind::Memset { bytes: self.num()? },
            record::OP_GRAPH => OpKind::Graph,
            _ => return Err(Problem::Unknown),
        };
        Ok(GpuOp {
            pid,
            device,
            context,
            stream,
            kind,
            start,
            end,
            correlation,
            graph,
            node,
        })
    }

    fn gpu_invalid(&mut self) -> Decoded<GpuInvalid> {
        Ok(GpuInvalid {
            seen: self.time(Lane::Host)?,
            pid: Pid(self.tid()?),
            correlation: self.correlation(Lane::Gpu)?,
            device: DeviceId(self.int()?),
        })
    }

    fn api_call(&mut self) -> Decoded<ApiCall> {
        let (start, end) = self.interval(Lane::Api)?;
        let pid = Pid(self.tid()?);
        let tid = Tid(self.tid()?);
        let correlation = self.correlation(Lane::Api)?;
        let result = self.int()?;
        let cbid = self.int()?;
        let domain = self.code(format::domain_from)?;
        Ok(ApiCall {
            pid,
            tid,
            api: Api { domain, cbid },
            start,
            end,
            correlation,
            result,
        })
    }

    fn sync(&mut self) -> Decoded<Sync> {
        let (start, end) = self.interval(Lane::Api)?;
        Ok(Sync {
            start,
            end,
            pid: Pid(self.tid()?),
            correlation: self.correlation(Lane::Api)?,
            context: ContextId(self.int()?),
            stream: self.option()?.map(StreamId),
            kind: self.code(format::sync_from)?,
        })
    }

    fn overhead(&mut self) -> Decoded<Overhead> {
        let (start, end) = self.interval(Lane::Api)?;
        Ok(Overhead {
            start,
            end,
            pid: Pid(self.tid()?),
            tid: self.option()?.map(Tid),
            kind: self.code(format::overhead_from)?,
        })
    }

    fn device(&mut self) -> Decoded<Device> {
        Ok(Device {
            ts: self.time(Lane::Host)?,
            pid: Pid(self.tid()?),
            id: DeviceId(self.int()?),
            name: self.name()?,
            uuid: self.name()?,
        })
    }

    fn shim(&mut self) -> Decoded<Shim> {
        Ok(Shim {
            ts: self.time(Lane::Host)?,
            pid: Pid(self.tid()?),
            reason: self.name()?,
            cupti_path: self.name()?,
            cupti_version: self.int()?,
            simulated: self.byte()? != 0,
            state: self.code(format::shim_from)?,
        })
    }

    fn probed_call(&mut self) -> Decoded<ApiCall> {
        let (start, end) = self.interval(Lane::Api)?;
        let pid = Pid(self.tid()?);
        let tid = Tid(self.tid()?);
        let result = self.int()?;
        let cbid = self.int()?;
        let domain = self.code(format::domain_from)?;
        Ok(ApiCall {
            pid,
            tid,
            api: Api { domain, cbid },
            start,
            end,
            correlation: ApiCall::PROBED,
            result,
        })
    }

    fn probes(&mut self) -> Decoded<Probes> {
        Ok(Probes {
            ts: self.time(Lane::Host)?,
            pid: Pid(self.tid()?),
            functions: self.int()?,
            reason: self.name()?,
        })
    }

    fn process(&mut self) -> Decoded<Process> {
        Ok(Process {
            ts: self.time(Lane::Host)?,
            pid: Pid(self.tid()?),
            cmdline: self.name()?,
            exe: self.name()?,
            cgroup: self.name()?,
        })
    }

    fn clock(&mut self) -> Decoded<ClockPair> {
        Ok(ClockPair {
            mono: self.time(Lane::Host)?,
            real: Nanos(self.num()?),
            error: Nanos(self.num()?),
        })
    }

    fn loss(&mut self) -> Decoded<Loss> {
        let (from, to) = self.interval(Lane::Host)?;
        let count = self.num()?;
        let source = match self.num()? {
            record::LOSS_BPF => LossSource::Bpf(Cpu(self.int()?)),
            record::LOSS_SHIM_RING => LossSource::ShimRing(Pid(self.int()?)),
            record::LOSS_CUPTI => LossSource::Cupti(Pid(self.int()?)),
            record::LOSS_CLOCK_STEP => LossSource::ClockStep,
            record::LOSS_DAMAGE => LossSource::Damage,
            _ => return Err(Problem::Unknown),
        };
        Ok(Loss {
            source,
            count,
            from,
            to,
        })
    }

    #[inline]
    fn byte(&mut self) -> Decoded<u8> {
        self.bytes.u8().ok_or(Problem::Malformed)
    }

    #[inline]
    fn num(&mut self) -> Decoded<u64> {
        self.bytes.varint().ok_or(Problem::Malformed)
    }

    #[inline]
    fn int<T: TryFrom<u64>>(&mut self) -> Decoded<T> {
        T::try_from(self.num()?).map_err(|_| Problem::Malformed)
    }

    fn option<T: TryFrom<u64>>(&mut self) -> Decoded<Option<T>> {
        match self.num()?.checked_sub(1) {
            None => Ok(None),
            Some(value) => T::try_from(value).map(Some).map_err(|_| Problem::Malformed),
        }
    }

    fn code<T>(&mut self, from: fn(u64) -> Option<T>) -> Decoded<T> {
        from(self.num()?).ok_or(Problem::Unknown)
    }

    fn name(&mut self) -> Decoded<NameId> {
        Ok(NameId(self.int()?))
    }

    /// A count and so many items, of a byte or more each: that bounds what is allocated for them.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Decoded<T>) -> Decoded<Vec<T>> {
        let count = self.num()?;
        if count > self.bytes.0.len() as u64 {
            return Err(Problem::Malformed);
        }
        (0..count).map(|_| item(self)).collect()
    }

    #[inline]
    fn tid(&mut self) -> Decoded<u32> {
        let first = self.byte()?;
        if first != record::TID_LITERAL {
            return Ok(self.state.tids[usize::from(first)]);
        }
        let tid = self.int()?;
        self.state.tids[State::slot(tid)] = tid;
        Ok(tid)
    }

    #[inline]
    fn time(&mut self, lane: Lane) -> Decoded<Nanos> {
        let step = unzigzag(self.num()?);
        let last = &mut self.state.times[lane as usize];
        *last = last.wrapping_add(step);
        Ok(Nanos(*last))
    }

    fn interval(&mut self, lane: Lane) -> Decoded<(Nanos, Nanos)> {
        let start = self.time(lane)?;
        let end = Nanos(start.0.wrapping_add(self.num()?));
        self.state.times[lane as usize] = end.0;
        Ok((start, end))
    }

    fn correlation(&mut self, lane: Lane) -> Decoded<CorrelationId> {
        // Only the low half matters: ids wrap at 32 bits.
        let step = unzigzag(self.num()?) as u32;
        let last = &mut self.state.correlations[lane as usize];
        *last = last.wrapping_add(step);
        Ok(CorrelationId(*last))
    }
}
