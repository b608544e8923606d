//! Builds recordings that read as stories: who ran, slept, woke whom and launched what, in
//! microseconds from the start of the recording.

use std::collections::HashMap;

use crate::analyse::cause::Cause;
use crate::analyse::report::{Gap, Report};
use crate::analyse::{report, Options};
use crate::event::*;
use crate::model::Timeline;
use crate::store::meta::{Meta, Summary, TargetMode};
use crate::units::Nanos;

/// The recording starts one second after boot.
const BASE: i64 = 1_000_000_000;

pub fn us(t: i64) -> Nanos {
    Nanos(u64::try_from(BASE + t * 1_000).unwrap())
}

// The cast. Every story knows these threads.
/// Dispatches, on CPU 1; process 100.
pub const MAIN: u32 = 100;
/// Another thread of its process.
pub const THREAD: u32 = 101;
/// A foreign program.
pub const HOG: u32 = 200;
/// A child process that never launches.
pub const CHILD: u32 = 300;
/// A loader worker by name.
pub const WORKER: u32 = 301;
pub const GDIAG: u32 = 400;
pub const IDLE: u32 = 0;

// System calls of x86_64.
pub const READ: u16 = 0;
pub const POLL: u16 = 7;
pub const RECVFROM: u16 = 45;
pub const WAIT4: u16 = 61;
pub const FSYNC: u16 = 74;
pub const FUTEX: u16 = 202;
pub const NANOSLEEP: u16 = 230;
pub const EPOLL_WAIT: u16 = 232;

pub const S: u16 = 1;
pub const D: u16 = 2;

// Calls of the CUDA runtime.
pub const LAUNCH: u32 = 211;
pub const GRAPH_LAUNCH: u32 = 311;
pub const MEMCPY_ASYNC: u32 = 41;
pub const DEVICE_SYNC: u32 = 165;
pub const MALLOC: u32 = 20;
pub const LIBRARY_LOAD: u32 = 470;
pub const HOST_FUNC: u32 = 284;
pub const STREAM_WAIT: u32 = 147;
pub const INSTANTIATE: u32 = 310;
pub const STREAM_CREATE: u32 = 129;

#[derive(Clone, Debug)]
pub struct Story {
    pub meta: Meta,
    pub end: i64,
    pub events: Vec<Event>,
    names: HashMap<String, NameId>,
    stacks: u32,
    correlation: u32,
    pub options: Options,
}

pub fn timeline() -> Story {
    let mut story = Story {
        meta: Meta {
            machine: "x86_64".into(),
            mode: TargetMode::Launch,
            start_mono_ns: us(0).0,
            ..Meta::default()
        },
        end: 100_000,
        events: Vec::new(),
        names: HashMap::new(),
        stacks: 0,
        correlation: 0,
        options: Options::default(),
    };
    for (tid, pid, ppid, name, target) in [
        (MAIN, 100, 1, "python3", true),
        (THREAD, 100, 1, "helper", true),
        (HOG, 200, 1, "hog", false),
        (CHILD, 300, 100, "child", true),
        (WORKER, 301, 100, "pt_data_worker", true),
        (GDIAG, 400, 1, "gdiag", false),
    ] {
        story = story.task(0, tid, pid, ppid, name, target, TaskState::Runnable);
    }
    story.runs(0, 1, MAIN)
}

impl Story {
    pub fn event(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    pub fn name(&mut self, text: &str) -> NameId {
        if let Some(&id) = self.names.get(text) {
            return id;
        }
        let id = NameId(u32::try_from(self.names.len()).unwrap() + 1);
        self.names.insert(text.to_string(), id);
        self.events.push(Event::Define(Define::Name {
            id,
            text: text.to_string(),
        }));
        id
    }

    #[allow(clippy::too_many_arguments)]
    pub fn task(
        mut self,
        at: i64,
        tid: u32,
        pid: u32,
        ppid: u32,
        name: &str,
        target: bool,
        state: TaskState,
    ) -> Self {
        let comm = self.name(name);
        self.event(Event::Task(Task {
            ts: us(at),
            tid: Tid(tid),
            pid: Pid(pid),
            ppid: Pid(ppid),
            comm,
            start: Nanos(u64::from(tid)),
            ns_tid: Tid(tid),
            ns_pid: Pid(pid),
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target,
            kthread: false,
            state,
            syscall: None,
        }))
    }

    /// A thread of another program is followed from now on, since it woke a target.
    pub fn followed(mut self, at: i64, tid: u32, pid: u32, name: &str, state: TaskState) -> Self {
        self = self.task(at, tid, pid, 1, name, false, state);
        if let Some(Event::Task(task)) = self.events.last_mut() {
            task.reason = TaskReason::Followed;
        }
        self
    }

    pub fn endpoint(mut self, object: &str, role: Role, peer: Option<u32>) -> Self {
        let object = self.name(object);
        let peer = peer.map(Pid);
        self.event(Event::Define(Define::Endpoint { object, role, peer }))
    }

    /// A thread of the job is made.
    pub fn born(mut self, at: i64, tid: u32, pid: u32, parent: u32, name: &str) -> Self {
        let comm = self.name(name);
        self.event(Event::Task(Task {
            ts: us(at),
            tid: Tid(tid),
            pid: Pid(pid),
            ppid: Pid(MAIN),
            comm,
            start: us(at),
            ns_tid: Tid(tid),
            ns_pid: Pid(pid),
            cgroup: 0,
            prio: 120,
            reason: TaskReason::New {
                parent: Tid(parent),
            },
            target: true,
            kthread: false,
            state: TaskState::Off(0x800),
            syscall: None,
        }))
    }

    pub fn process(mut self, pid: u32, cgroup: &str) -> Self {
        let cgroup = self.name(cgroup);
        let exe = self.name("/usr/bin/python3.12");
        self.event(Event::Process(Process {
            ts: us(0),
            pid: Pid(pid),
            cmdline: exe,
            exe,
            cgroup,
        }))
    }

    fn switch_event(at: i64, cpu: u16, prev: u32, next: u32) -> Switch {
        Switch {
            ts: us(at),
            cpu: Cpu(cpu),
            prev: Tid(prev),
            next: Tid(next),
            state: 0,
            syscall: None,
            flags: SwitchFlags::default(),
            minor_faults: 0,
            major_faults: 0,
        }
    }

    /// `tid` begins to run on an idle CPU.
    pub fn runs(self, at: i64, cpu: u16, tid: u32) -> Self {
        self.switch(at, cpu, IDLE, tid)
    }

    /// `prev` loses the CPU to `next`, still able to run.
    pub fn switch(self, at: i64, cpu: u16, prev: u32, next: u32) -> Self {
        self.event(Event::Switch(Self::switch_event(at, cpu, prev, next)))
    }

    pub fn throttled(self, at: i64, cpu: u16, prev: u32, next: u32) -> Self {
        self.event(Event::Switch(Switch {
            flags: SwitchFlags(SwitchFlags::THROTTLED | SwitchFlags::PREEMPT),
            ..Self::switch_event(at, cpu, prev, next)
        }))
    }

    /// `tid` goes to sleep and leaves the CPU idle.
    pub fn sleeps(self, at: i64, cpu: u16, tid: u32, state: u16, syscall: Option<u16>) -> Self {
        self.leaves(at, cpu, tid, state, syscall, 0)
    }

    pub fn leaves(
        self,
        at: i64,
        cpu: u16,
        tid: u32,
        state: u16,
        syscall: Option<u16>,
        flags: u8,
    ) -> Self {
        self.event(Event::Switch(Switch {
            state,
            syscall,
            flags: SwitchFlags(flags),
            ..Self::switch_event(at, cpu, tid, IDLE)
        }))
    }

    pub fn wakes_by(self, at: i64, wakee: u32, waker: u32, context: Context) -> Self {
        self.event(Event::Waking(Waking {
            ts: us(at),
            cpu: Cpu(0),
            wakee: Tid(wakee),
            waker: Tid(waker),
            context,
        }))
    }

    pub fn wakes(self, at: i64, waker: u32, wakee: u32) -> Self {
        self.wakes_by(at, wakee, waker, Context::Task)
    }

    pub fn timer_wakes(self, at: i64, wakee: u32) -> Self {
        self.wakes_by(at, wakee, IDLE, Context::Timer)
    }

    /// MAIN sleeps from `from` to `to` on CPU 1 and runs again at once.
    pub fn main_sleeps(
        self,
        (from, to): (i64, i64),
        state: u16,
        syscall: Option<u16>,
        waker: Option<u32>,
    ) -> Self {
        let story = self.sleeps(from, 1, MAIN, state, syscall);
        match waker {
            Some(waker) => story.wakes(to, waker, MAIN),
            None => story.timer_wakes(to, MAIN),
        }
        .runs(to, 1, MAIN)
    }

    /// Stack and object of a wait.
    pub fn wait(
        mut self,
        tid: u32,
        (from, to): (i64, i64),
        state: u16,
        syscall: Option<u16>,
        frames: &[&str],
        object: &str,
    ) -> Self {
        let object = if object.is_empty() {
            NameId(0)
        } else {
            self.name(object)
        };
        let frames: Vec<NameId> = frames.iter().map(|f| self.name(f)).collect();
        self.stacks += 1;
        let stack = StackId(self.stacks);
        self.event(Event::Define(Define::Stack { id: stack, frames }))
            .event(Event::Wait(Wait {
                tid: Tid(tid),
                start: us(from),
                end: us(to),
                state,
                syscall,
                stack,
                object,
            }))
    }

    /// A call of the CUDA runtime; returns its correlation id.
    pub fn api(&mut self, tid: u32, cbid: u32, (from, to): (i64, i64)) -> CorrelationId {
        self.correlation += 1;
        let correlation = CorrelationId(self.correlation);
        let pid = if tid < 200 { 100 } else { tid };
        self.events.push(Event::ApiCall(ApiCall {
            pid: Pid(pid),
            tid: Tid(tid),
            api: Api {
                domain: ApiDomain::Runtime,
                cbid,
            },
            start: us(from),
            end: us(to),
            correlation,
            result: 0,
        }));
        correlation
    }

    pub fn call(mut self, tid: u32, cbid: u32, span: (i64, i64)) -> Self {
        self.api(tid, cbid, span);
        self
    }

    pub fn gpu_op(kind: OpKind, (from, to): (i64, i64), correlation: CorrelationId) -> GpuOp {
        GpuOp {
            pid: Pid(100),
            device: DeviceId(0),
            context: ContextId(1),
            stream: StreamId(7),
            kind,
            start: us(from),
            end: us(to),
            correlation,
            graph: 0,
            node: 0,
        }
    }

    pub fn kernel_op(&mut self, span: (i64, i64), correlation: CorrelationId) -> GpuOp {
        let name = self.name("_Z6kernelv");
        Self::gpu_op(OpKind::Kernel { name }, span, correlation)
    }

    /// A kernel launched by `tid`.
    pub fn kernel_by(self, tid: u32, call: (i64, i64), op: (i64, i64)) -> Self {
        self.kernel_with(tid, call, op, |_| {})
    }

    pub fn kernel(self, call: (i64, i64), op: (i64, i64)) -> Self {
        self.kernel_by(MAIN, call, op)
    }

    pub fn kernel_on(self, stream: u32, call: (i64, i64), op: (i64, i64)) -> Self {
        self.kernel_with(MAIN, call, op, |o| o.stream = StreamId(stream))
    }

    pub fn kernel_with(
        mut self,
        tid: u32,
        call: (i64, i64),
        op: (i64, i64),
        change: impl FnOnce(&mut GpuOp),
    ) -> Self {
        let correlation = self.api(tid, LAUNCH, call);
        let mut op = self.kernel_op(op, correlation);
        change(&mut op);
        self.event(Event::GpuOp(op))
    }

    pub fn copy(
        self,
        kind: CopyKind,
        host: MemoryKind,
        bytes: u64,
        call: (i64, i64),
        op: (i64, i64),
    ) -> Self {
        self.copy_on(7, kind, host, bytes, call, op)
    }

    pub fn copy_on(
        mut self,
        stream: u32,
        kind: CopyKind,
        host: MemoryKind,
        bytes: u64,
        call: (i64, i64),
        op: (i64, i64),
    ) -> Self {
        let correlation = self.api(MAIN, MEMCPY_ASYNC, call);
        let (src, dst) = match kind {
            CopyKind::DeviceToHost => (MemoryKind::Device, host),
            _ => (host, MemoryKind::Device),
        };
        let kind = OpKind::Memcpy {
            kind,
            src,
            dst,
            bytes,
        };
        let mut op = Self::gpu_op(kind, op, correlation);
        op.stream = StreamId(stream);
        self.event(Event::GpuOp(op))
    }

    pub fn waits_for_event(self, stream: u32, at: i64) -> Self {
        self.call(MAIN, STREAM_WAIT, (at, at + 1))
            .event(Event::Sync(Sync {
                pid: Pid(100),
                kind: SyncKind::StreamWaitEvent,
                context: ContextId(1),
                stream: Some(StreamId(stream)),
                start: us(at),
                end: us(at + 1),
                correlation: CorrelationId(0),
            }))
    }

    pub fn device(mut self, pid: u32, id: u32, uuid: &str) -> Self {
        let name = self.name("Test GPU");
        let uuid = self.name(uuid);
        self.event(Event::Device(Device {
            ts: us(0),
            pid: Pid(pid),
            id: DeviceId(id),
            name,
            uuid,
        }))
    }

    pub fn lost(self, source: LossSource, count: u64, (from, to): (i64, i64)) -> Self {
        self.event(Event::Loss(Loss {
            source,
            count,
            from: us(from),
            to: us(to),
        }))
    }

    pub fn overhead(self, kind: OverheadKind, tid: Option<u32>, (from, to): (i64, i64)) -> Self {
        self.event(Event::Overhead(Overhead {
            pid: Pid(100),
            tid: tid.map(Tid),
            kind,
            start: us(from),
            end: us(to),
        }))
    }

    pub fn attach(mut self, end: i64) -> Self {
        self.meta.mode = TargetMode::Attach;
        self.end = end;
        self
    }

    pub fn built(&self) -> Timeline {
        let mut t = Timeline::new(&self.meta);
        for event in &self.events {
            t.push(event);
        }
        t.finish(Some(&Summary {
            end_mono_ns: us(self.end).0,
            ..Summary::default()
        }));
        t
    }

    /// The report, after checking what must hold for every report.
    pub fn report(&self) -> Report {
        let report = report(&self.built(), &self.options);
        check(&report);
        report
    }
}

impl Story {
    /// A stack of `function (file.py:line)`s of Python and `file:function`s or `file+`s of native code.
    pub fn user(&mut self, frames: &[&str], cut: Option<Cut>) -> CallStackId {
        let next = |story: &Story| u32::try_from(story.events.len()).unwrap() + 1;
        let mut ids = Vec::new();
        for text in frames {
            let mut functions = Vec::new();
            let frame = if let Some((function, place)) = text.split_once(" (") {
                let (file, line) = place.trim_end_matches(')').split_once(':').unwrap();
                Frame::Python {
                    function: self.name(function),
                    file: self.name(file),
                    line: line.parse().unwrap(),
                }
            } else {
                let (module, function) = text.split_once([':', '+']).unwrap();
                if !function.is_empty() {
                    functions.push(Function {
                        name: self.name(function),
                        file: NameId(0),
                        line: 0,
                    });
                }
                Frame::Native {
                    module: self.name(module),
                    build_id: NameId(0),
                    address: 0x40,
                }
            };
            let id = FrameId(next(self));
            ids.push(id);
            self.events.push(Event::Define(Define::Frame { id, frame }));
            if !functions.is_empty() {
                let frame = id;
                let define = Define::Functions { frame, functions };
                self.events.push(Event::Define(define));
            }
        }
        let id = CallStackId(next(self));
        self.events.push(Event::Define(Define::CallStack {
            id,
            frames: ids,
            cut,
        }));
        id
    }

    pub fn sample(self, at: i64, tid: u32, kind: SampleKind, frames: &[&str]) -> Self {
        self.sample_with(at, tid, kind, frames, |_| {})
    }

    pub fn sample_with(
        mut self,
        at: i64,
        tid: u32,
        kind: SampleKind,
        frames: &[&str],
        change: impl FnOnce(&mut Sample),
    ) -> Self {
        let mut sample = Sample {
            ts: us(at),
            tid: Tid(tid),
            kind,
            kernel: StackId(0),
            user: self.user(frames, None),
            gil: None,
            collects: false,
        };
        change(&mut sample);
        self.event(Event::Sample(sample))
    }
}

pub const CPU: SampleKind = SampleKind::Cpu {
    period: Nanos::from_millis(10),
};

pub fn off(since: i64) -> SampleKind {
    SampleKind::OffCpu { since: us(since) }
}

pub fn woke(wakee: u32, since: i64) -> SampleKind {
    SampleKind::Waker {
        wakee: Tid(wakee),
        since: us(since),
    }
}

/// Check that parts are disjoint, cover their gap, and that everything adds up to the nanosecond.
pub fn check(report: &Report) {
    for gpu in &report.gpus {
        let (Some(busy), Some(idle)) = (gpu.busy, gpu.idle) else {
            assert!(gpu.causes.is_empty() && gpu.gaps.is_empty());
            assert_eq!((gpu.busy, gpu.idle, gpu.idle_explained), (None, None, None));
            continue;
        };
        assert_eq!(busy.0 + idle.0, gpu.window_end.0 - gpu.window_start.0);
        let causes: u64 = gpu.causes.iter().map(|c| c.total.0).sum();
        assert_eq!(causes, idle.0, "causes add up to idle time");
        for cause in &gpu.causes {
            assert_eq!(
                cause.by.iter().map(|b| b.total.0).sum::<u64>(),
                cause.total.0
            );
            assert!(cause.gaps > 0 && cause.gaps <= gpu.gap_count);
            assert!(!cause.evidence.is_empty());
        }
        for gap in &gpu.gaps {
            let mut at = gap.start;
            for part in &gap.parts {
                assert_eq!(part.start, at, "parts follow each other");
                assert!(part.start < part.end);
                at = part.end;
            }
            assert_eq!(at, gap.end, "parts cover the gap");
        }
        assert!(gpu.busy_kernel <= busy && gpu.busy_memcpy <= busy && gpu.busy_memset <= busy);
    }
}

/// The parts of a gap in whole microseconds: `[("host.sleep", 900), …]`.
pub fn parts(gap: &Gap) -> Vec<(&'static str, u64)> {
    gap.parts
        .iter()
        .map(|p| (p.cause.id(), (p.end.0 - p.start.0) / 1_000))
        .collect()
}

/// Total of a cause on the first device, in whole microseconds.
pub fn total(report: &Report, cause: Cause) -> u64 {
    report.gpus[0]
        .causes
        .iter()
        .filter(|c| c.cause == cause)
        .map(|c| c.total.0 / 1_000)
        .sum()
}

/// The longest gap of the first device.
pub fn longest(report: &Report) -> &Gap {
    &report.gpus[0].gaps[0]
}
