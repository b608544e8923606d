//! Events to the records of one chunk.
//!
//! In each record the fields that change the [`State`] come first: a reader that
//! does not know a later field's value can then skip the record and stay in step.
#![forbid(unsafe_code)]

use super::format::{self, record};
use super::state::{Lane, State};
use super::varint::{self, zigzag};
use crate::event::{
    ApiCall, ClockPair, Cpu, CpuWait, Cut, Define, Device, Event, Exit, Frame, FrameId, GpuInvalid,
    GpuOp, Interrupt, Loss, LossSource, Migration, NameId, OpKind, Overhead, Probes, Process,
    Sample, SampleKind, Shim, Signal, Stall, Switch, Sync, SysCall, Task, TaskReason, TaskState,
    Wait, Waking,
};
use crate::units::Nanos;

/// The open chunk.
#[derive(Debug)]
pub(super) struct Encoder {
    bytes: Vec<u8>,
    state: State,
    records: u32,
    first: u64,
    last: u64,
}

impl Default for Encoder {
    fn default() -> Self {
        Encoder {
            bytes: Vec::new(),
            state: State::default(),
            records: 0,
            first: u64::MAX,
            last: 0,
        }
    }
}

impl Encoder {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn records(&self) -> u32 {
        self.records
    }

    /// Least and greatest time so far; the least is the greater when there is none.
    pub(super) fn span(&self) -> (u64, u64) {
        (self.first, self.last)
    }

    /// Begins the next chunk.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.state.reset();
        self.records = 0;
        self.first = u64::MAX;
        self.last = 0;
    }

    pub(super) fn push(&mut self, event: &Event) {
        self.records += 1;
        match event {
            Event::Switch(e) => self.switch(e),
            Event::Waking(e) => self.waking(e),
            Event::Interrupt(e) => self.interrupt(e),
            Event::Define(e) => self.define(e),
            Event::Task(e) => self.framed(record::TASK, |out| out.task(e)),
            Event::Exit(e) => self.framed(record::EXIT, |out| out.exit(e)),
            Event::Wait(e) => self.framed(record::WAIT, |out| out.wait(e)),
            Event::CpuWait(e) => self.framed(record::CPU_WAIT, |out| out.cpu_wait(e)),
            Event::Migration(e) => self.framed(record::MIGRATION, |out| out.migration(e)),
            Event::Stall(e) => self.framed(record::STALL, |out| out.stall(e)),
            Event::SysCall(e) => self.framed(record::SYS_CALL, |out| out.sys_call(e)),
            Event::Signal(e) => self.framed(record::SIGNAL, |out| out.signal(e)),
            Event::Sample(e) => self.framed(record::SAMPLE, |out| out.sample(e)),
            Event::GpuOp(e) => self.framed(record::GPU_OP, |out| out.gpu_op(e)),
            Event::GpuInvalid(e) => self.framed(record::GPU_INVALID, |out| out.gpu_invalid(e)),
            Event::ApiCall(e) if e.correlation == ApiCall::PROBED => {
                self.framed(record::PROBED_CALL, |out| out.probed_call(e));
            }
            Event::ApiCall(e) => self.framed(record::API_CALL, |out| out.api_call(e)),
            Event::Sync(e) => self.framed(record::SYNC, |out| out.sync(e)),
            Event::Overhead(e) => self.framed(record::OVERHEAD, |out| out.overhead(e)),
            Event::Device(e) => self.framed(record::DEVICE, |out| out.device(e)),
            Event::Shim(e) => self.framed(record::SHIM, |out| out.shim(e)),
            Event::Probes(e) => self.framed(record::PROBES, |out| out.probes(e)),
            Event::Process(e) => self.framed(record::PROCESS, |out| out.process(e)),
            Event::Clock(e) => self.framed(record::CLOCK, |out| out.clock(e)),
            Event::Loss(e) => self.framed(record::LOSS, |out| out.loss(e)),
        }
    }

    fn switch(&mut self, e: &Switch) {
        let mut head = record::SWITCH | self.head(e.cpu, e.prev.0);
        let faults = e.minor_faults | e.major_faults;
        for (bit, present) in [
            (record::HAS_STATE, e.state != 0),
            (record::HAS_SYSCALL, e.syscall.is_some()),
            (record::HAS_FLAGS, e.flags.0 != 0),
            (record::HAS_FAULTS, faults != 0),
        ] {
            if present {
                head |= bit;
            }
        }
        self.packed(head, e.ts, e.cpu, e.prev.0);
        self.tid(e.next.0);
        self.state.set_current(e.cpu.0, e.next.0);
        if e.state != 0 {
            self.num(e.state);
        }
        if let Some(nr) = e.syscall {
            self.num(nr);
        }
        if e.flags.0 != 0 {
            self.bytes.push(e.flags.0);
        }
        if faults != 0 {
            self.bytes
                .extend_from_slice(&[e.minor_faults, e.major_faults]);
        }
    }

    fn waking(&mut self, e: &Waking) {
        let (code, number) = format::context_code(e.context);
        let head = record::WAKING | self.head(e.cpu, e.waker.0) | (code << record::CONTEXT_SHIFT);
        self.packed(head, e.ts, e.cpu, e.waker.0);
        self.tid(e.wakee.0);
        if let Some(number) = number {
            self.num(number);
        }
    }

    fn interrupt(&mut self, e: &Interrupt) {
        let (code, number) = format::context_code(e.context);
        let head = record::INTERRUPT | self.head(e.cpu, e.tid.0) | (code << record::CONTEXT_SHIFT);
        self.packed(head, e.start, e.cpu, e.tid.0);
        self.num(e.dur.0);
        self.saw(e.start.0.saturating_add(e.dur.0));
        if let Some(number) = number {
            self.num(number);
        }
    }

    /// Bits that the three packed kinds share.
    fn head(&self, cpu: Cpu, tid: u32) -> u8 {
        let mut head = 0;
        if cpu.0 == self.state.cpu {
            head |= record::SAME_CPU;
        }
        if tid == self.state.current(cpu.0) {
            head |= record::CURRENT;
        }
        head
    }

    /// Fields that the three packed kinds share.
    fn packed(&mut self, head: u8, ts: Nanos, cpu: Cpu, tid: u32) {
        self.bytes.push(head);
        self.time(Lane::Host, ts);
        if head & record::SAME_CPU == 0 {
            self.num(cpu.0);
            self.state.cpu = cpu.0;
        }
        if head & record::CURRENT == 0 {
            self.tid(tid);
        }
    }

    /// A record with its length, so that a reader that does not know `kind` can skip it.
    fn framed(&mut self, kind: u8, body: impl FnOnce(&mut Self)) {
        self.bytes.push(kind);
        let at = self.bytes.len();
        self.bytes.push(0);
        body(self);
        let len = self.bytes.len() - at - 1;
        if len < 0x80 {
            self.bytes[at] = len as u8;
        } else {
            let mut prefix = Vec::with_capacity(varint::MAX_LEN);
            varint::put(&mut prefix, len as u64);
            self.bytes.splice(at..=at, prefix);
        }
    }

    fn define(&mut self, define: &Define) {
        match define {
            Define::Name { id, text } => self.framed(record::NAME, |out| {
                out.num(id.0);
                out.bytes.extend_from_slice(cut(text).as_bytes());
            }),
            Define::Stack { id, frames } => self.framed(record::STACK, |out| {
                out.num(id.0);
                let frames = &frames[..frames.len().min(format::MAX_FRAMES)];
                out.num(frames.len() as u64);
                for frame in frames {
                    out.num(frame.0);
                }
            }),
            Define::Irq { irq, name } => self.framed(record::IRQ, |out| {
                out.num(*irq);
                out.num(name.0);
            }),
            Define::Endpoint { object, role, peer } => self.framed(record::ENDPOINT, |out| {
                out.num(object.0);
                out.num(format::role_code(*role));
                out.bytes.push(u8::from(peer.is_some()));
                if let Some(peer) = peer {
                    out.num(peer.0);
                }
            }),
            Define::Frame { id, frame } => self.framed(record::FRAME, |out| {
                out.num(id.0);
                out.frame(frame);
            }),
            Define::CallStack { id, frames, cut } => self.framed(record::CALL_STACK, |out| {
                out.num(id.0);
                out.call_stack(frames, *cut);
            }),
            Define::Functions { frame, functions } => self.framed(record::FUNCTIONS, |out| {
                out.num(frame.0);
                let functions = &functions[..functions.len().min(format::MAX_FRAMES)];
                out.num(functions.len() as u64);
                for function in functions {
                    out.names([function.name, function.file]);
                    out.num(function.line);
                }
            }),
        }
    }

    fn frame(&mut self, frame: &Frame) {
        match *frame {
            Frame::Native {
                module,
                build_id,
                address,
            } => {
                self.num(record::FRAME_NATIVE);
                self.names([module, build_id]);
                self.num(address);
            }
            Frame::Anonymous { address } => {
                self.num(record::FRAME_ANONYMOUS);
                self.num(address);
            }
            Frame::Python {
                function,
                file,
                line,
            } => {
                self.num(record::FRAME_PYTHON);
                self.names([function, file]);
                self.num(line);
            }
        }
    }

    /// Each frame as the step from its callee: callers that two stacks share are then the same bytes
    /// in both, and the compressor finds them.
    fn call_stack(&mut self, frames: &[FrameId], cut: Option<Cut>) {
        let kept = &frames[..frames.len().min(format::MAX_FRAMES)];
        let cut = if kept.len() < frames.len() {
            Some(Cut::TooDeep)
        } else {
            cut
        };
        self.num(cut.map_or(0, format::cut_code));
        self.num(kept.len() as u64);
        let mut last = 0;
        for frame in kept {
            self.num(zigzag(u64::from(frame.0).wrapping_sub(last)));
            last = u64::from(frame.0);
        }
    }

    fn task(&mut self, e: &Task) {
        self.time(Lane::Host, e.ts);
        self.tid(e.tid.0);
        self.tid(e.pid.0);
        self.num(e.ppid.0);
        self.num(e.comm.0);
        self.num(e.start.0);
        self.num(e.ns_tid.0);
        self.num(e.ns_pid.0);
        self.num(e.cgroup);
        self.num(e.prio);
        let mut bits = 0;
        if e.target {
            bits |= record::TASK_TARGET;
        }
        if e.kthread {
            bits |= record::TASK_KTHREAD;
        }
        self.bytes.push(bits);
        self.syscall(e.syscall);
        match e.reason {
            TaskReason::Seen => self.num(record::REASON_SEEN),
            TaskReason::New { parent } => {
                self.num(record::REASON_NEW);
                self.num(parent.0);
            }
            TaskReason::Exec => self.num(record::REASON_EXEC),
            TaskReason::Rename => self.num(record::REASON_RENAME),
            TaskReason::Followed => self.num(record::REASON_FOLLOWED),
        }
        match e.state {
            TaskState::Running => self.num(record::STATE_RUNNING),
            TaskState::Runnable => self.num(record::STATE_RUNNABLE),
            TaskState::Off(state) => {
                self.num(record::STATE_OFF);
                self.num(state);
            }
        }
    }

    fn exit(&mut self, e: &Exit) {
        self.time(Lane::Host, e.ts);
        self.tid(e.tid.0);
        self.tid(e.pid.0);
        self.num(e.code.cast_unsigned());
    }

    fn wait(&mut self, e: &Wait) {
        // The end is what is close to the records around it.
        self.time(Lane::Host, e.end);
        self.tid(e.tid.0);
        self.num(e.end.0.wrapping_sub(e.start.0));
        self.saw(e.start.0);
        self.num(e.state);
        self.syscall(e.syscall);
        self.num(e.stack.0);
        self.num(e.object.0);
    }

    fn cpu_wait(&mut self, e: &CpuWait) {
        self.time(Lane::Host, e.end);
        self.tid(e.tid.0);
        self.num(e.end.0.wrapping_sub(e.start.0));
        self.saw(e.start.0);
        self.num(e.allowed);
        self.num(e.online);
        self.num(e.idle);
    }

    fn migration(&mut self, e: &Migration) {
        self.interval(Lane::Gpu, e.start, e.end);
        self.tid(e.pid.0);
        self.num(e.device.0);
        self.num(format::migration_code(e.kind));
        self.num(e.bytes);
    }

    fn stall(&mut self, e: &Stall) {
        self.time(Lane::Host, e.start);
        self.tid(e.tid.0);
        self.num(e.dur.0);
        self.saw(e.start.0.saturating_add(e.dur.0));
        self.num(format::stall_code(e.kind));
    }

    /// Its end is when it was recorded, so the times before and after are near to that.
    fn sys_call(&mut self, e: &SysCall) {
        self.time(Lane::Host, e.end);
        self.tid(e.tid.0);
        self.num(e.end.0.wrapping_sub(e.start.0));
        self.saw(e.start.0);
        self.num(e.number);
        self.num(varint::zigzag(e.result.cast_unsigned()));
    }

    fn signal(&mut self, e: &Signal) {
        self.time(Lane::Host, e.ts);
        self.tid(e.sender.0);
        self.tid(e.receiver.0);
        self.bytes.push(e.signal);
    }

    fn sample(&mut self, e: &Sample) {
        self.time(Lane::Host, e.ts);
        self.tid(e.tid.0);
        self.bytes.push(u8::from(e.gil.is_some()));
        if let Some(holder) = e.gil {
            self.tid(holder.0);
        }
        self.num(e.kernel.0);
        self.num(e.user.0);
        match e.kind {
            SampleKind::Cpu { period } => {
                self.num(record::SAMPLE_CPU);
                self.num(period.0);
            }
            SampleKind::OffCpu { since } => {
                self.num(record::SAMPLE_OFF_CPU);
                self.num(e.ts.0.wrapping_sub(since.0));
                self.saw(since.0);
            }
            SampleKind::Waker { wakee, since } => {
                self.num(record::SAMPLE_WAKER);
                self.num(wakee.0);
                self.num(e.ts.0.wrapping_sub(since.0));
                self.saw(since.0);
            }
            SampleKind::Launch { one_in } => {
                self.num(record::SAMPLE_LAUNCH);
                self.num(one_in);
            }
        }
        if e.collects {
            self.num(record::SAMPLE_COLLECTS);
        }
    }

    fn gpu_op(&mut self, e: &GpuOp) {
        self.interval(Lane::Gpu, e.start, e.end);
        self.tid(e.pid.0);
        self.correlation(Lane::Gpu, e.correlation.0);
        self.num(zigzag(e.node.wrapping_sub(self.state.node)));
        self.state.node = e.node;
        self.num(e.graph);
        self.num(e.device.0);
        self.num(e.context.0);
        self.num(e.stream.0);
        match e.kind {
            OpKind::Kernel { name } => {
                self.num(record::OP_KERNEL);
                self.num(name.0);
            }
            OpKind::Memcpy {
                kind,
                src,
                dst,
                bytes,
            } => {
                self.num(record::OP_MEMCPY);
                self.num(format::copy_code(kind));
                self.num(format::memory_code(src));
                self.num(format::memory_code(dst));
                self.num(bytes);
            }
            OpKind::Memset { bytes } => {
                self.num(record::OP_MEMSET);
                self.num(bytes);
            }
            OpKind::Graph => self.num(record::OP_GRAPH),
        }
    }

    fn gpu_invalid(&mut self, e: &GpuInvalid) {
        self.time(Lane::Host, e.seen);
        self.tid(e.pid.0);
        self.correlation(Lane::Gpu, e.correlation.0);
        self.num(e.device.0);
    }

    fn api_call(&mut self, e: &ApiCall) {
        self.interval(Lane::Api, e.start, e.end);
        self.tid(e.pid.0);
        self.tid(e.tid.0);
        self.correlation(Lane::Api, e.correlation.0);
        self.num(e.result);
        self.num(e.api.cbid);
        self.num(format::domain_code(e.api.domain));
    }

    fn sync(&mut self, e: &Sync) {
        self.interval(Lane::Api, e.start, e.end);
        self.tid(e.pid.0);
        self.correlation(Lane::Api, e.correlation.0);
        self.num(e.context.0);
        self.option(e.stream.map(|stream| stream.0));
        self.num(format::sync_code(e.kind));
    }

    fn overhead(&mut self, e: &Overhead) {
        self.interval(Lane::Api, e.start, e.end);
        self.tid(e.pid.0);
        self.option(e.tid.map(|tid| tid.0));
        self.num(format::overhead_code(e.kind));
    }

    fn device(&mut self, e: &Device) {
        self.time(Lane::Host, e.ts);
        self.tid(e.pid.0);
        self.num(e.id.0);
        self.names([e.name, e.uuid]);
    }

    fn shim(&mut self, e: &Shim) {
        self.time(Lane::Host, e.ts);
        self.tid(e.pid.0);
        self.names([e.reason, e.cupti_path]);
        self.num(e.cupti_version);
        self.bytes.push(u8::from(e.simulated));
        self.num(format::shim_code(e.state));
    }

    fn probed_call(&mut self, e: &ApiCall) {
        self.interval(Lane::Api, e.start, e.end);
        self.tid(e.pid.0);
        self.tid(e.tid.0);
        self.num(e.result);
        self.num(e.api.cbid);
        self.num(format::domain_code(e.api.domain));
    }

    fn probes(&mut self, e: &Probes) {
        self.time(Lane::Host, e.ts);
        self.tid(e.pid.0);
        self.num(e.functions);
        self.names([e.reason]);
    }

    fn process(&mut self, e: &Process) {
        self.time(Lane::Host, e.ts);
        self.tid(e.pid.0);
        self.names([e.cmdline, e.exe, e.cgroup]);
    }

    fn clock(&mut self, e: &ClockPair) {
        self.time(Lane::Host, e.mono);
        self.num(e.real.0);
        self.num(e.error.0);
    }

    fn loss(&mut self, e: &Loss) {
        self.interval(Lane::Host, e.from, e.to);
        self.num(e.count);
        match e.source {
            LossSource::Bpf(cpu) => {
                self.num(record::LOSS_BPF);
                self.num(cpu.0);
            }
            LossSource::ShimRing(pid) => {
                self.num(record::LOSS_SHIM_RING);
                self.num(pid.0);
            }
            LossSource::Cupti(pid) => {
                self.num(record::LOSS_CUPTI);
                self.num(pid.0);
            }
            LossSource::ClockStep => self.num(record::LOSS_CLOCK_STEP),
            LossSource::Damage => self.num(record::LOSS_DAMAGE),
        }
    }

    fn num(&mut self, value: impl Into<u64>) {
        varint::put(&mut self.bytes, value.into());
    }

    fn option(&mut self, value: Option<u32>) {
        self.num(value.map_or(0, |value| u64::from(value) + 1));
    }

    fn syscall(&mut self, nr: Option<u16>) {
        self.option(nr.map(u32::from));
    }

    fn names<const N: usize>(&mut self, names: [NameId; N]) {
        for name in names {
            self.num(name.0);
        }
    }

    /// A tid or pid.
    fn tid(&mut self, tid: u32) {
        let slot = State::slot(tid);
        if self.state.tids[slot] == tid {
            self.bytes.push(slot as u8);
        } else {
            self.state.tids[slot] = tid;
            self.bytes.push(record::TID_LITERAL);
            self.num(tid);
        }
    }

    fn time(&mut self, lane: Lane, ts: Nanos) {
        let last = &mut self.state.times[lane as usize];
        let step = zigzag(ts.0.wrapping_sub(*last));
        *last = ts.0;
        self.num(step);
        self.saw(ts.0);
    }

    /// The next start of the lane is guessed from this end: operations of a stream follow each other.
    fn interval(&mut self, lane: Lane, start: Nanos, end: Nanos) {
        self.time(lane, start);
        self.num(end.0.wrapping_sub(start.0));
        self.state.times[lane as usize] = end.0;
        self.saw(end.0);
    }

    fn correlation(&mut self, lane: Lane, id: u32) {
        let last = &mut self.state.correlations[lane as usize];
        // Sign-extended, so that a step back is as cheap as one forward.
        let step = zigzag(i64::from(id.wrapping_sub(*last).cast_signed()).cast_unsigned());
        *last = id;
        self.num(step);
    }

    fn saw(&mut self, ts: u64) {
        self.first = self.first.min(ts);
        self.last = self.last.max(ts);
    }
}

/// As much of a name as a chunk takes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(format::MAX_TEXT_LEN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_name_is_cut_between_characters() {
        let text = "é".repeat(format::MAX_TEXT_LEN);
        assert_eq!(cut(&text).len(), format::MAX_TEXT_LEN);
        let text = format!("a{text}");
        assert_eq!(cut(&text).len(), format::MAX_TEXT_LEN - 1);
        assert_eq!(cut("short"), "short");
    }
}
