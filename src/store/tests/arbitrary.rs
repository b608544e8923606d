//! Any event at all, for property tests.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::event::{
    Api, ApiCall, ApiDomain, CallStackId, ClockPair, Context, ContextId, CopyKind, CorrelationId,
    Cpu, CpuWait, Cut, Define, Device, DeviceId, Event, Exit, Frame, FrameId, Function, GpuInvalid,
    GpuOp, Interrupt, Loss, LossSource, MemoryKind, Migration, MigrationKind, NameId, OpKind,
    Overhead, OverheadKind, Pid, Probes, Process, Role, Sample, SampleKind, Shim, ShimState,
    Signal, StackId, Stall, StallKind, StreamId, Switch, SwitchFlags, Sync, SyncKind, SysCall,
    Task, TaskReason, TaskState, Tid, Wait, Waking,
};
use crate::units::Nanos;

pub(crate) fn events(count: usize) -> impl Strategy<Value = Vec<Event>> {
    vec(event(), 0..count)
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    // Scheduling first: it is what most of a recording is.
    prop_oneof![
        4 => switch().prop_map(Event::Switch),
        4 => waking().prop_map(Event::Waking),
        2 => interrupt().prop_map(Event::Interrupt),
        6 => define().prop_map(Event::Define),
        1 => task().prop_map(Event::Task),
        1 => exit().prop_map(Event::Exit),
        1 => wait().prop_map(Event::Wait),
        1 => cpu_wait().prop_map(Event::CpuWait),
        1 => stall().prop_map(Event::Stall),
        2 => sys_call().prop_map(Event::SysCall),
        1 => migration().prop_map(Event::Migration),
        1 => signal().prop_map(Event::Signal),
        2 => sample().prop_map(Event::Sample),
        2 => gpu_op().prop_map(Event::GpuOp),
        1 => gpu_invalid().prop_map(Event::GpuInvalid),
        2 => api_call().prop_map(Event::ApiCall),
        1 => sync().prop_map(Event::Sync),
        1 => overhead().prop_map(Event::Overhead),
        1 => device().prop_map(Event::Device),
        1 => shim().prop_map(Event::Shim),
        1 => probes().prop_map(Event::Probes),
        1 => process().prop_map(Event::Process),
        1 => clock().prop_map(Event::Clock),
        1 => loss().prop_map(Event::Loss),
    ]
}

/// The kinds of event, numbered without a gap; a new kind does not compile until it is here.
pub(super) fn kind(event: &Event) -> usize {
    match event {
        Event::Define(Define::Name { .. }) => 0,
        Event::Define(Define::Stack { .. }) => 1,
        Event::Define(Define::Irq { .. }) => 2,
        Event::Task(_) => 3,
        Event::Exit(_) => 4,
        Event::Switch(_) => 5,
        Event::Waking(_) => 6,
        Event::Interrupt(_) => 7,
        Event::Wait(_) => 8,
        Event::Stall(_) => 9,
        Event::Signal(_) => 10,
        Event::GpuOp(_) => 11,
        Event::GpuInvalid(_) => 12,
        Event::ApiCall(_) => 13,
        Event::Sync(_) => 14,
        Event::Overhead(_) => 15,
        Event::Device(_) => 16,
        Event::Shim(_) => 17,
        Event::Process(_) => 18,
        Event::Clock(_) => 19,
        Event::Loss(_) => 20,
        Event::Define(Define::Frame { .. }) => 21,
        Event::Define(Define::CallStack { .. }) => 22,
        Event::Define(Define::Functions { .. }) => 23,
        Event::Sample(_) => 24,
        Event::CpuWait(_) => 25,
        Event::Migration(_) => 26,
        Event::Define(Define::Endpoint { .. }) => 27,
        Event::Probes(_) => 28,
        Event::SysCall(_) => 29,
    }
}

pub(super) const KINDS: usize = 30;

/// Small numbers, which repeat, and now and then any at all.
fn n64() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0u64..600, 2 => 1_000_000_000u64..1_001_000_000, 1 => any::<u64>()]
}

/// Half of them so small that events join: threads, calls and operations of the same few.
fn n32() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..6, 2 => 0u32..600, 1 => any::<u32>()]
}

fn n16() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0u16..8, 1 => any::<u16>()]
}

fn nanos() -> impl Strategy<Value = Nanos> {
    n64().prop_map(Nanos)
}

fn tid() -> impl Strategy<Value = Tid> {
    n32().prop_map(Tid)
}

fn pid() -> impl Strategy<Value = Pid> {
    n32().prop_map(Pid)
}

fn cpu() -> impl Strategy<Value = Cpu> {
    n16().prop_map(Cpu)
}

fn name() -> impl Strategy<Value = NameId> {
    n32().prop_map(NameId)
}

fn correlation() -> impl Strategy<Value = CorrelationId> {
    n32().prop_map(CorrelationId)
}

fn context() -> impl Strategy<Value = Context> {
    prop_oneof![
        Just(Context::Task),
        any::<u16>().prop_map(Context::HardIrq),
        n16().prop_map(Context::SoftIrq),
        Just(Context::Timer),
    ]
}

fn memory() -> impl Strategy<Value = MemoryKind> {
    use MemoryKind as M;
    prop::sample::select(vec![
        M::Unknown,
        M::Pageable,
        M::Pinned,
        M::Device,
        M::Array,
        M::Managed,
    ])
}

fn define() -> impl Strategy<Value = Define> {
    prop_oneof![
        (n32(), any::<String>()).prop_map(|(id, text)| Define::Name {
            id: NameId(id),
            text
        }),
        (n32(), vec(name(), 0..200)).prop_map(|(id, frames)| Define::Stack {
            id: StackId(id),
            frames
        }),
        (n16(), name()).prop_map(|(irq, name)| Define::Irq { irq, name }),
        (name(), role(), option::of(pid())).prop_map(|(object, role, peer)| Define::Endpoint {
            object,
            role,
            peer
        }),
        (n32(), frame()).prop_map(|(id, frame)| Define::Frame {
            id: FrameId(id),
            frame
        }),
        (
            n32(),
            vec(n32().prop_map(FrameId), 0..200),
            option::of(cut())
        )
            .prop_map(|(id, frames, cut)| Define::CallStack {
                id: CallStackId(id),
                frames,
                cut
            }),
        (n32(), vec(function(), 0..8)).prop_map(|(frame, functions)| Define::Functions {
            frame: FrameId(frame),
            functions
        }),
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (name(), name(), n64()).prop_map(|(module, build_id, address)| Frame::Native {
            module,
            build_id,
            address
        }),
        n64().prop_map(|address| Frame::Anonymous { address }),
        (name(), name(), n32()).prop_map(|(function, file, line)| Frame::Python {
            function,
            file,
            line
        }),
    ]
}

fn cut() -> impl Strategy<Value = Cut> {
    prop::sample::select(vec![
        Cut::NotYet,
        Cut::Unmapped,
        Cut::NoTable,
        Cut::Unsupported,
        Cut::Unreadable,
        Cut::TooDeep,
    ])
}

fn function() -> impl Strategy<Value = Function> {
    (name(), name(), n32()).prop_map(|(name, file, line)| Function { name, file, line })
}

pub(crate) fn sample() -> impl Strategy<Value = Sample> {
    let kind = prop_oneof![
        nanos().prop_map(|period| SampleKind::Cpu { period }),
        nanos().prop_map(|since| SampleKind::OffCpu { since }),
        (tid(), nanos()).prop_map(|(wakee, since)| SampleKind::Waker { wakee, since }),
        n32().prop_map(|one_in| SampleKind::Launch { one_in }),
    ];
    let gil = option::of(tid());
    (nanos(), tid(), kind, n32(), n32(), gil, any::<bool>()).prop_map(
        |(ts, tid, kind, kernel, user, gil, collects)| Sample {
            ts,
            tid,
            kind,
            kernel: StackId(kernel),
            user: CallStackId(user),
            gil,
            collects,
        },
    )
}

fn task() -> impl Strategy<Value = Task> {
    let reason = prop_oneof![
        Just(TaskReason::Seen),
        tid().prop_map(|parent| TaskReason::New { parent }),
        Just(TaskReason::Exec),
        Just(TaskReason::Rename),
        Just(TaskReason::Followed),
    ];
    let state = prop_oneof![
        Just(TaskState::Running),
        Just(TaskState::Runnable),
        any::<u16>().prop_map(TaskState::Off),
    ];
    let ids = (tid(), pid(), pid(), tid(), pid());
    let more = (
        n64(),
        n32(),
        any::<bool>(),
        any::<bool>(),
        option::of(any::<u16>()),
    );
    (nanos(), nanos(), name(), ids, more, reason, state).prop_map(
        |(
            ts,
            start,
            comm,
            (tid, pid, ppid, ns_tid, ns_pid),
            (cgroup, prio, target, kthread, syscall),
            reason,
            state,
        )| {
            Task {
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
                target,
                kthread,
                state,
                syscall,
            }
        },
    )
}

fn exit() -> impl Strategy<Value = Exit> {
    (nanos(), tid(), pid(), any::<i32>()).prop_map(|(ts, tid, pid, code)| Exit {
        ts,
        tid,
        pid,
        code,
    })
}

fn switch() -> impl Strategy<Value = Switch> {
    let flags = prop_oneof![Just(0), any::<u8>()].prop_map(SwitchFlags);
    let faults = prop_oneof![Just((0, 0)), any::<(u8, u8)>()];
    (
        nanos(),
        cpu(),
        tid(),
        tid(),
        n16(),
        option::of(any::<u16>()),
        flags,
        faults,
    )
        .prop_map(
            |(ts, cpu, prev, next, state, syscall, flags, (minor_faults, major_faults))| Switch {
                ts,
                cpu,
                prev,
                next,
                state,
                syscall,
                flags,
                minor_faults,
                major_faults,
            },
        )
}

fn waking() -> impl Strategy<Value = Waking> {
    (nanos(), cpu(), tid(), tid(), context()).prop_map(|(ts, cpu, wakee, waker, context)| Waking {
        ts,
        cpu,
        wakee,
        waker,
        context,
    })
}

fn interrupt() -> impl Strategy<Value = Interrupt> {
    (nanos(), nanos(), cpu(), tid(), context()).prop_map(|(start, dur, cpu, tid, context)| {
        Interrupt {
            start,
            dur,
            cpu,
            tid,
            context,
        }
    })
}

fn wait() -> impl Strategy<Value = Wait> {
    (
        tid(),
        nanos(),
        nanos(),
        n16(),
        option::of(any::<u16>()),
        n32(),
        name(),
    )
        .prop_map(|(tid, start, end, state, syscall, stack, object)| Wait {
            tid,
            start,
            end,
            state,
            syscall,
            stack: StackId(stack),
            object,
        })
}

fn role() -> impl Strategy<Value = Role> {
    prop::sample::select(vec![Role::Connected, Role::Accepted, Role::Listening])
}

fn cpu_wait() -> impl Strategy<Value = CpuWait> {
    (tid(), nanos(), nanos(), n16(), n16(), n16()).prop_map(
        |(tid, start, end, allowed, online, idle)| CpuWait {
            tid,
            start,
            end,
            allowed,
            online,
            idle,
        },
    )
}

fn migration() -> impl Strategy<Value = Migration> {
    use MigrationKind as M;
    let kind = prop::sample::select(vec![M::ToDevice, M::ToHost, M::DeviceFaults]);
    (pid(), n32(), kind, nanos(), nanos(), n64()).prop_map(
        |(pid, device, kind, start, end, bytes)| Migration {
            pid,
            device: DeviceId(device),
            kind,
            start,
            end,
            bytes,
        },
    )
}

fn sys_call() -> impl Strategy<Value = SysCall> {
    let result = prop_oneof![-200i64..200, any::<i64>()];
    (tid(), nanos(), nanos(), n16(), result).prop_map(|(tid, start, end, number, result)| SysCall {
        tid,
        start,
        end,
        number,
        result,
    })
}

fn stall() -> impl Strategy<Value = Stall> {
    let kind = prop_oneof![
        Just(StallKind::Reclaim),
        Just(StallKind::Compaction),
        Just(StallKind::Yields),
    ];
    (tid(), nanos(), nanos(), kind).prop_map(|(tid, start, dur, kind)| Stall {
        tid,
        start,
        dur,
        kind,
    })
}

fn signal() -> impl Strategy<Value = Signal> {
    (nanos(), tid(), tid(), any::<u8>()).prop_map(|(ts, sender, receiver, signal)| Signal {
        ts,
        sender,
        receiver,
        signal,
    })
}

fn op_kind() -> impl Strategy<Value = OpKind> {
    use CopyKind as C;
    let copy = prop_oneof![
        prop::sample::select(vec![
            C::Unknown,
            C::HostToDevice,
            C::DeviceToHost,
            C::DeviceToDevice,
            C::HostToHost,
            C::PeerToPeer,
        ]),
        any::<u8>().prop_map(C::Other),
    ];
    prop_oneof![
        name().prop_map(|name| OpKind::Kernel { name }),
        (copy, memory(), memory(), n64()).prop_map(|(kind, src, dst, bytes)| OpKind::Memcpy {
            kind,
            src,
            dst,
            bytes
        }),
        n64().prop_map(|bytes| OpKind::Memset { bytes }),
        Just(OpKind::Graph),
    ]
}

fn gpu_op() -> impl Strategy<Value = GpuOp> {
    let place = (n32(), n32(), n32());
    (
        pid(),
        place,
        op_kind(),
        nanos(),
        nanos(),
        correlation(),
        n32(),
        n64(),
    )
        .prop_map(
            |(pid, (device, context, stream), kind, start, end, correlation, graph, node)| GpuOp {
                pid,
                device: DeviceId(device),
                context: ContextId(context),
                stream: StreamId(stream),
                kind,
                start,
                end,
                correlation,
                graph,
                node,
            },
        )
}

fn gpu_invalid() -> impl Strategy<Value = GpuInvalid> {
    (pid(), n32(), correlation(), nanos()).prop_map(|(pid, device, correlation, seen)| GpuInvalid {
        pid,
        device: DeviceId(device),
        correlation,
        seen,
    })
}

fn api_call() -> impl Strategy<Value = ApiCall> {
    let domain = prop_oneof![Just(ApiDomain::Runtime), Just(ApiDomain::Driver)];
    let api = (domain, n32()).prop_map(|(domain, cbid)| Api { domain, cbid });
    (pid(), tid(), api, nanos(), nanos(), correlation(), n32()).prop_map(
        |(pid, tid, api, start, end, correlation, result)| ApiCall {
            pid,
            tid,
            api,
            start,
            end,
            correlation,
            result,
        },
    )
}

fn sync() -> impl Strategy<Value = Sync> {
    use SyncKind as S;
    let kind = prop_oneof![
        prop::sample::select(vec![S::Event, S::StreamWaitEvent, S::Stream, S::Context]),
        any::<u32>().prop_map(S::Other),
    ];
    (
        pid(),
        kind,
        n32(),
        option::of(n32()),
        nanos(),
        nanos(),
        correlation(),
    )
        .prop_map(
            |(pid, kind, context, stream, start, end, correlation)| Sync {
                pid,
                kind,
                context: ContextId(context),
                stream: stream.map(StreamId),
                start,
                end,
                correlation,
            },
        )
}

fn overhead() -> impl Strategy<Value = Overhead> {
    use OverheadKind as O;
    let kind = prop_oneof![
        prop::sample::select(vec![
            O::DriverCompiler,
            O::BufferFlush,
            O::Instrumentation,
            O::Resource,
            O::ModuleLoading,
            O::LazyFunctionLoading,
            O::CommandBufferFull,
            O::BufferRequest,
            O::UvmInit,
        ]),
        any::<u32>().prop_map(O::Other),
    ];
    (pid(), option::of(tid()), kind, nanos(), nanos()).prop_map(|(pid, tid, kind, start, end)| {
        Overhead {
            pid,
            tid,
            kind,
            start,
            end,
        }
    })
}

fn device() -> impl Strategy<Value = Device> {
    (nanos(), pid(), n32(), name(), name()).prop_map(|(ts, pid, id, name, uuid)| Device {
        ts,
        pid,
        id: DeviceId(id),
        name,
        uuid,
    })
}

fn probes() -> impl Strategy<Value = Probes> {
    (nanos(), pid(), n32(), name()).prop_map(|(ts, pid, functions, reason)| Probes {
        ts,
        pid,
        functions,
        reason,
    })
}

fn shim() -> impl Strategy<Value = Shim> {
    use ShimState as S;
    let state = prop::sample::select(vec![S::Dormant, S::Active, S::Paused, S::Busy, S::Failed]);
    (nanos(), pid(), state, name(), name(), n32(), any::<bool>()).prop_map(
        |(ts, pid, state, reason, cupti_path, cupti_version, simulated)| Shim {
            ts,
            pid,
            state,
            reason,
            cupti_path,
            cupti_version,
            simulated,
        },
    )
}

fn process() -> impl Strategy<Value = Process> {
    (nanos(), pid(), name(), name(), name()).prop_map(|(ts, pid, cmdline, exe, cgroup)| Process {
        ts,
        pid,
        cmdline,
        exe,
        cgroup,
    })
}

fn clock() -> impl Strategy<Value = ClockPair> {
    (nanos(), nanos(), nanos()).prop_map(|(mono, real, error)| ClockPair { mono, real, error })
}

fn loss() -> impl Strategy<Value = Loss> {
    let source = prop_oneof![
        cpu().prop_map(LossSource::Bpf),
        pid().prop_map(LossSource::ShimRing),
        pid().prop_map(LossSource::Cupti),
        Just(LossSource::ClockStep),
    ];
    (source, n64(), nanos(), nanos()).prop_map(|(source, count, from, to)| Loss {
        source,
        count,
        from,
        to,
    })
}
