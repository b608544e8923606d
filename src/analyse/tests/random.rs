//! Properties that hold for every stream of events, sensible or not: parts are disjoint and cover
//! their gap, causes add up to idle time, busy and idle time to the window, and nothing panics.

use proptest::prelude::*;

use super::story::*;
use crate::event::*;
use crate::store::meta::TargetMode;
use crate::units::Nanos;

/// Mostly times of a short recording, sometimes any number.
fn time() -> impl Strategy<Value = Nanos> {
    prop_oneof![
        30 => (0..3_000i64).prop_map(us),
        10 => (0..3_000_000u64).prop_map(|ns| Nanos(us(0).0 + ns)),
        1 => any::<u64>().prop_map(Nanos),
        1 => Just(Nanos::MAX),
        1 => Just(Nanos::ZERO),
    ]
}

/// Mostly sensible spans.
fn span() -> impl Strategy<Value = (Nanos, Nanos)> {
    prop_oneof![
        9 => (time(), 0..400_000u64).prop_map(|(t, d)| (t, Nanos(t.0.saturating_add(d)))),
        1 => (time(), time()),
    ]
}

fn tid() -> impl Strategy<Value = Tid> {
    prop_oneof![
        20 => prop::sample::select(vec![IDLE, MAIN, THREAD, HOG, CHILD, WORKER, GDIAG]).prop_map(Tid),
        1 => any::<u32>().prop_map(Tid),
    ]
}

fn pid() -> impl Strategy<Value = Pid> {
    prop::sample::select(vec![100, 100, 100, 300, 999]).prop_map(Pid)
}

fn cpu() -> impl Strategy<Value = Cpu> {
    prop_oneof![20 => (0..3u16).prop_map(Cpu), 1 => any::<u16>().prop_map(Cpu)]
}

fn context() -> impl Strategy<Value = Context> {
    prop_oneof![
        4 => Just(Context::Task),
        1 => Just(Context::Timer),
        1 => (0..50u16).prop_map(Context::HardIrq),
        1 => (0..12u16).prop_map(Context::SoftIrq),
    ]
}

fn syscall() -> impl Strategy<Value = Option<u16>> {
    prop::option::of(prop::sample::select(vec![
        READ, POLL, RECVFROM, WAIT4, FSYNC, FUTEX, NANOSLEEP, EPOLL_WAIT, 24, 16, 9_999,
    ]))
}

fn state() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![
        0, 0, S, D, 0x102, 0x104, 0x8, 0x80, 0x402, 0x2001, 0xffff,
    ])
}

fn op_kind() -> impl Strategy<Value = OpKind> {
    let copy = prop::sample::select(vec![
        CopyKind::HostToDevice,
        CopyKind::DeviceToHost,
        CopyKind::Other(200),
    ]);
    let memory = prop::sample::select(vec![MemoryKind::Pageable, MemoryKind::Pinned]);
    prop_oneof![
        6 => (0..4u32).prop_map(|n| OpKind::Kernel { name: NameId(n) }),
        2 => (copy, memory, 0..200_000u64).prop_map(|(kind, src, bytes)| OpKind::Memcpy {
            kind,
            src,
            dst: src,
            bytes,
        }),
        1 => any::<u64>().prop_map(|bytes| OpKind::Memset { bytes }),
        1 => Just(OpKind::Graph),
    ]
}

fn gpu_event() -> impl Strategy<Value = Event> {
    let api = prop::sample::select(vec![
        LAUNCH,
        GRAPH_LAUNCH,
        MEMCPY_ASYNC,
        DEVICE_SYNC,
        MALLOC,
        LIBRARY_LOAD,
        HOST_FUNC,
        STREAM_WAIT,
        INSTANTIATE,
        STREAM_CREATE,
        31,
        5_000,
    ]);
    let op = (
        pid(),
        0..3u32,
        0..3u32,
        op_kind(),
        span(),
        0..40u32,
        any::<bool>(),
    )
        .prop_map(
            |(pid, device, stream, kind, (start, end), correlation, graph)| {
                Event::GpuOp(GpuOp {
                    pid,
                    device: DeviceId(device),
                    context: ContextId(1),
                    stream: StreamId(stream),
                    kind,
                    start,
                    end,
                    correlation: CorrelationId(correlation),
                    graph: u32::from(graph),
                    node: 0,
                })
            },
        );
    let call = (pid(), tid(), api, span(), 0..40u32, any::<bool>(), 0..9u32).prop_map(
        |(pid, tid, cbid, (start, end), correlation, driver, result)| {
            Event::ApiCall(ApiCall {
                pid,
                tid,
                api: Api {
                    domain: if driver {
                        ApiDomain::Driver
                    } else {
                        ApiDomain::Runtime
                    },
                    cbid,
                },
                start,
                end,
                correlation: CorrelationId(correlation),
                result: result / 8,
            })
        },
    );
    let sync = (pid(), 0..3u32, span()).prop_map(|(pid, stream, (start, end))| {
        Event::Sync(Sync {
            pid,
            kind: SyncKind::StreamWaitEvent,
            context: ContextId(1),
            stream: Some(StreamId(stream)),
            start,
            end,
            correlation: CorrelationId(0),
        })
    });
    let kinds = vec![
        OverheadKind::BufferRequest,
        OverheadKind::LazyFunctionLoading,
        OverheadKind::Resource,
    ];
    let overhead = (
        pid(),
        prop::option::of(tid()),
        prop::sample::select(kinds),
        span(),
    )
        .prop_map(|(pid, tid, kind, (start, end))| {
            Event::Overhead(Overhead {
                pid,
                tid,
                kind,
                start,
                end,
            })
        });
    let invalid = (pid(), 0..3u32, 0..40u32, time()).prop_map(|(pid, device, id, seen)| {
        Event::GpuInvalid(GpuInvalid {
            pid,
            device: DeviceId(device),
            correlation: CorrelationId(id),
            seen,
        })
    });
    let migrations = vec![
        MigrationKind::ToHost,
        MigrationKind::ToDevice,
        MigrationKind::DeviceFaults,
    ];
    let migration = (pid(), 0..3u32, prop::sample::select(migrations), span()).prop_map(
        |(pid, device, kind, (start, end))| {
            Event::Migration(Migration {
                pid,
                device: DeviceId(device),
                kind,
                start,
                end,
                bytes: 1,
            })
        },
    );
    let device = (pid(), 0..3u32, 0..3u32).prop_map(|(pid, id, uuid)| {
        Event::Device(Device {
            ts: us(0),
            pid,
            id: DeviceId(id),
            name: NameId(1),
            uuid: NameId(uuid),
        })
    });
    prop_oneof![
        12 => op, 12 => call, 1 => sync, 1 => overhead, 1 => invalid, 1 => device, 1 => migration,
    ]
}

fn host_event() -> impl Strategy<Value = Event> {
    let switch = (time(), cpu(), tid(), tid(), state(), syscall(), 0..32u8).prop_map(
        |(ts, cpu, prev, next, state, syscall, flags)| {
            Event::Switch(Switch {
                ts,
                cpu,
                prev,
                next,
                state,
                syscall,
                flags: SwitchFlags(flags),
                minor_faults: 0,
                major_faults: 1,
            })
        },
    );
    let waking =
        (time(), cpu(), tid(), tid(), context()).prop_map(|(ts, cpu, wakee, waker, context)| {
            Event::Waking(Waking {
                ts,
                cpu,
                wakee,
                waker,
                context,
            })
        });
    let wait = (tid(), span(), state(), syscall(), 0..3u32).prop_map(
        |(tid, (start, end), state, syscall, id)| {
            Event::Wait(Wait {
                tid,
                start,
                end,
                state,
                syscall,
                stack: StackId(id),
                object: NameId(id),
            })
        },
    );
    let irq = (time(), any::<u32>(), cpu(), tid(), context()).prop_map(
        |(start, dur, cpu, tid, context)| {
            Event::Interrupt(Interrupt {
                start,
                dur: Nanos(u64::from(dur >> 12)),
                cpu,
                tid,
                context,
            })
        },
    );
    let stall = (tid(), time(), any::<u64>()).prop_map(|(tid, start, dur)| {
        Event::Stall(Stall {
            tid,
            start,
            dur: Nanos(dur >> 40),
            kind: StallKind::Compaction,
        })
    });
    let cpu_wait = (tid(), span(), 0..5u16, 0..5u16, 0..3u16).prop_map(
        |(tid, (start, end), allowed, online, idle)| {
            Event::CpuWait(CpuWait {
                tid,
                start,
                end,
                allowed,
                online,
                idle,
            })
        },
    );
    let task = (time(), tid(), pid(), pid(), state(), 0..5u8).prop_map(
        |(ts, tid, pid, ppid, state, reason)| {
            Event::Task(Task {
                ts,
                tid,
                pid,
                ppid,
                comm: NameId(u32::from(reason)),
                start: Nanos(0),
                ns_tid: tid,
                ns_pid: pid,
                cgroup: 0,
                prio: 120,
                reason: match reason {
                    0 => TaskReason::Seen,
                    1 => TaskReason::New { parent: Tid(MAIN) },
                    2 => TaskReason::Exec,
                    3 => TaskReason::Followed,
                    _ => TaskReason::Rename,
                },
                target: state != 0,
                kthread: false,
                state: match state {
                    0 => TaskState::Running,
                    S => TaskState::Runnable,
                    other => TaskState::Off(other),
                },
                syscall: None,
            })
        },
    );
    let exit = (time(), tid()).prop_map(|(ts, tid)| {
        Event::Exit(Exit {
            ts,
            tid,
            pid: Pid(tid.0),
            code: 0,
        })
    });
    let signal = (time(), tid(), tid()).prop_map(|(ts, sender, receiver)| {
        Event::Signal(Signal {
            ts,
            sender,
            receiver,
            signal: 19,
        })
    });
    let loss = (0..4u8, cpu(), span()).prop_map(|(n, cpu, (from, to))| {
        let source = match n {
            0 => LossSource::Bpf(cpu),
            1 => LossSource::ShimRing(Pid(100)),
            2 => LossSource::Cupti(Pid(300)),
            _ => LossSource::ClockStep,
        };
        Event::Loss(Loss {
            source,
            count: u64::MAX,
            from,
            to,
        })
    });
    prop_oneof![
        20 => switch, 10 => waking, 3 => wait, 3 => irq, 1 => stall, 1 => task, 1 => exit, 1 => signal,
        1 => loss, 5 => sample(), 3 => stack(), 2 => cpu_wait, 2 => endpoint(), 2 => kernel_stack(),
    ]
}

/// Waits have the objects 0 to 2.
fn endpoint() -> impl Strategy<Value = Event> {
    let role = prop::sample::select(vec![Role::Connected, Role::Accepted, Role::Listening]);
    (0..3u32, role, prop::option::of(pid())).prop_map(|(object, role, peer)| {
        let object = NameId(object);
        Event::Define(Define::Endpoint { object, role, peer })
    })
}

fn kernel_stack() -> impl Strategy<Value = Event> {
    (1..3u32).prop_map(|id| {
        let frames = vec![NameId(900)];
        let id = StackId(id);
        Event::Define(Define::Stack { id, frames })
    })
}

fn sample() -> impl Strategy<Value = Event> {
    let kind = (0..4u8, time(), tid()).prop_map(|(n, since, wakee)| match n {
        0 => SampleKind::Cpu { period: since },
        1 => SampleKind::OffCpu { since },
        2 => SampleKind::Waker { wakee, since },
        _ => SampleKind::Launch { one_in: 1 },
    });
    (
        time(),
        tid(),
        kind,
        0..4u32,
        0..3u32,
        prop::option::of(tid()),
        any::<bool>(),
    )
        .prop_map(|(ts, tid, kind, user, kernel, gil, collects)| {
            Event::Sample(Sample {
                ts,
                tid,
                kind,
                kernel: StackId(kernel),
                user: CallStackId(user),
                gil,
                collects,
            })
        })
}

/// Stacks 1 to 3, of frames 1 to 3, which are in Python, in its collector or take its lock, or of
/// frames that nobody defined.
fn stack() -> impl Strategy<Value = Event> {
    let name = prop::sample::select(vec![
        "gc_collect_main",
        "take_gil",
        "work",
        "pthread_cond_wait",
        "__lll_lock_wait",
        "task_numa_work",
    ]);
    let define = prop_oneof![
        (1..4u32, prop::collection::vec(0..5u32, 0..4)).prop_map(|(id, frames)| {
            Define::CallStack {
                id: CallStackId(id),
                frames: frames.into_iter().map(FrameId).collect(),
                cut: None,
            }
        }),
        (1..4u32).prop_map(|id| Define::Frame {
            id: FrameId(id),
            frame: match id {
                1 => Frame::Python {
                    function: NameId(900),
                    file: NameId(0),
                    line: 1,
                },
                _ => Frame::Native {
                    module: NameId(0),
                    build_id: NameId(0),
                    address: 1,
                },
            },
        }),
        (1..4u32).prop_map(|id| Define::Functions {
            frame: FrameId(id),
            functions: vec![Function {
                name: NameId(900),
                file: NameId(0),
                line: 0,
            }],
        }),
        name.prop_map(|text| Define::Name {
            id: NameId(900),
            text: text.into(),
        }),
    ];
    define.prop_map(Event::Define)
}

/// A clean recording with random events on top, or random events alone.
pub fn any_story() -> impl Strategy<Value = Story> {
    let event = prop_oneof![gpu_event(), host_event()];
    let mode = prop::sample::select(vec![
        TargetMode::Launch,
        TargetMode::Attach,
        TargetMode::All,
    ]);
    let kernels = prop::collection::vec((0..300i64, 0..60i64, 1..90i64), 0..12);
    (
        any::<bool>(),
        mode,
        kernels,
        prop::collection::vec(event, 0..120),
        0..40u64,
    )
        .prop_map(|(cast, mode, kernels, events, min_gap)| {
            let mut story = timeline();
            if !cast {
                story.events.clear();
            }
            let mut at = 0;
            for (pause, lead, len) in kernels {
                at += pause;
                story = story.kernel((at, at + 5), (at + 5 + lead, at + 5 + lead + len));
            }
            story.meta.mode = mode;
            story.end = 3_000;
            story.events.extend(events);
            story.options.min_gap = Nanos(min_gap * 1_000);
            story.options.gaps = None;
            story
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_report_adds_up(story in any_story()) {
        story.report();
    }

    /// Check that the order in which sources are drained does not matter.
    #[test]
    fn reports_are_the_same_for_every_order_of_sources(story in any_story()) {
        let mut by_source = story.clone();
        by_source.events.sort_by_key(|e| matches!(e, Event::GpuOp(_) | Event::ApiCall(_)));
        let (a, b) = (story.report(), by_source.report());
        prop_assert_eq!(format!("{:?}", a.gpus), format!("{:?}", b.gpus));
    }
}
