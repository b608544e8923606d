//! Reports made by hand for the tests of this module: everything that can be shown is in them.
#![forbid(unsafe_code)]

use std::path::Path;

use crate::analyse::cause::Cause;
use crate::analyse::report::{
    Blame, Call, CallTimes, Caller, CauseRow, Gap, Gpu, Hop, HostSide, Kernel, NextOp, OpenedBy,
    Part, Pause, Quality, Report, Stack, Thread, ThreadRef, Waker,
};
use crate::event::{CorrelationId, Pid, StreamId, Tid};
use crate::store::meta::{GpuSource, Meta, Summary, TargetMode};
use crate::units::Nanos;

/// When the sample recording begins, on CLOCK_MONOTONIC.
const START: u64 = 5_000_000_000_000;

/// Compares with `testdata/name`; `GDIAG_BLESS=1` writes it anew.
pub(super) fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/present/testdata")
        .join(name);
    if std::env::var_os("GDIAG_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == text,
        "{} differs; GDIAG_BLESS=1 rewrites it:\n{text}",
        path.display()
    );
}

fn thread(pid: u32, tid: u32, comm: &str) -> ThreadRef {
    ThreadRef {
        pid: Pid(pid),
        tid: Tid(tid),
        comm: comm.to_string(),
    }
}

fn trainer() -> ThreadRef {
    thread(4711, 4711, "python3")
}

fn loader() -> ThreadRef {
    thread(4711, 4790, "pt_data_worker")
}

fn us(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

fn at(us: u64) -> Nanos {
    Nanos(START + us * 1_000)
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_string()).collect()
}

/// A stack of which no frame says more than the others.
fn stack(frames: &[&str]) -> Stack {
    Stack {
        frames: strings(frames),
        telling: Vec::new(),
    }
}

fn part(
    start: u64,
    end: u64,
    cause: Cause,
    who: Option<ThreadRef>,
    what: &str,
    frames: &[&str],
) -> Part {
    Part {
        start: at(start),
        end: at(end),
        cause,
        who,
        what: what.to_string(),
        stack: stack(frames),
    }
}

fn hop(who: ThreadRef, state: &str, start: u64, end: u64, woken_by: Option<Waker>) -> Hop {
    Hop {
        who,
        state: state.to_string(),
        start: at(start),
        end: at(end),
        woken_by,
    }
}

fn row(
    cause: Cause,
    total: u64,
    idle: u64,
    gaps: u64,
    by: Vec<Blame>,
    evidence: &[&str],
) -> CauseRow {
    CauseRow {
        cause,
        total: us(total),
        share: us(total).share_of(us(idle)),
        gaps,
        by,
        evidence: strings(evidence),
    }
}

fn blame(who: Option<ThreadRef>, what: &str, total: u64) -> Blame {
    Blame {
        who,
        what: what.to_string(),
        total: us(total),
    }
}

pub(super) fn meta() -> Meta {
    Meta {
        gdiag_version: "0.1.0".to_string(),
        host: "node17".to_string(),
        kernel: "6.18.5".to_string(),
        machine: "x86_64".to_string(),
        boot_id: "b".to_string(),
        cpus_online: 16,
        command: strings(&[
            "gdiag", "record", "--", "python3", "train.py", "--name", "run 7",
        ]),
        mode: TargetMode::Launch,
        unrelated: false,
        targets: vec![Pid(4711)],
        cgroups: Vec::new(),
        start_mono_ns: START,
        start_unix_ns: 1_772_287_331_000_000_000,
        wait_threshold_ns: 100_000,
        syscalls: false,
        missing_probes: strings(&[
            "page faults: the kernel has no exceptions:page_fault_user tracepoint",
        ]),
    }
}

pub(super) fn summary() -> Summary {
    Summary {
        end_mono_ns: START + 10_400_000_000,
        gpu_source: GpuSource::Simulated,
        events: 1_234_567,
        switches: 412_345,
        switch_bytes: 13_100_000,
        stacks: 12_345,
        stacks_ns: 98_760_000,
        stacks_lost: 0,
        warnings: Vec::new(),
    }
}

/// A GPU that idles for many reasons, one that is busy, and one that nobody used.
pub(super) fn report() -> Report {
    Report {
        quality: Quality {
            events: 1_234_567,
            bpf_lost: 12,
            shim_lost: 0,
            cupti_lost: 3,
            invalid_gpu_records: 2,
            unmatched_gpu_records: 1,
            gpu_coverage: Some(0.999_96),
            max_clock_error: Some(Nanos(1_240)),
            warnings: strings(&[
                "12 scheduling events were lost on CPU 3 between 2.1 s and 2.2 s: gaps in that time are unknown.measurement",
                "the wall clock was stepped once",
            ]),
        },
        gpus: vec![idle_gpu(), busy_gpu(), unused_gpu()],
        host_sides: Vec::new(),
        threads: vec![
            Thread { who: trainer(), dispatcher: true, run: us(6_100_000), runq: us(2_760_000), blocked: us(1_400_000), launches: 182_004 },
            Thread { who: loader(), dispatcher: false, run: us(9_100_000), runq: us(12_000), blocked: us(900_000), launches: 0 },
        ],
        kernels: vec![
            Kernel {
                name: "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_".to_string(),
                count: 120_000,
                total: us(2_400_000),
                min: Nanos(1_900),
                max: us(450),
            },
            Kernel { name: "ampere_sgemm_128x64_nn".to_string(), count: 62_000, total: us(1_200_000), min: us(11), max: us(91) },
        ],
        calls: vec![
            Call { name: "cudaStreamSynchronize".to_string(), count: 1_000, total: us(900_000), max: us(12_304), idle_overlap: Some(us(410_000)) },
            Call { name: "cudaLaunchKernel".to_string(), count: 182_004, total: us(1_100_000), max: us(88), idle_overlap: Some(us(120_000)) },
        ],
    }
}

/// A process of which CUPTI recorded nothing.
pub(super) fn host_only() -> Report {
    let reason = "another tool holds CUPTI (dcgm)";
    let caller = |who, launches, sync| Caller {
        who,
        calls: launches + 9,
        launches,
        times: CallTimes {
            launch: us(4 * launches),
            copy: us(12_000),
            sync: us(sync),
            memory: us(310),
            other: Nanos::ZERO,
        },
    };
    let pause = |start: u64, us: u64, open, doing: &[(&str, u64)]| Pause {
        start: at(start),
        end: at(start + us),
        open,
        doing: doing
            .iter()
            .map(|&(what, us)| (what.to_string(), Nanos::from_micros(us)))
            .collect(),
    };
    let waits = [
        ("cuStreamSynchronize", 11_900),
        ("running", 300),
        ("runnable (preempted)", 100),
    ];
    let reads = [
        ("blocked (read, /data/train-00017.tar)", 3_000),
        ("running", 400),
    ];
    Report {
        quality: Quality {
            events: 1_234_567,
            max_clock_error: Some(Nanos(1_240)),
            warnings: vec![
                "no GPU operations were recorded: idle time cannot be diagnosed".to_string(),
                format!("pid 4711: the host's side only, by probes on the CUDA driver, because {reason}: what a GPU did for it is not known"),
            ],
            ..Quality::default()
        },
        host_sides: vec![HostSide {
            pid: Pid(4711),
            comm: "python3".to_string(),
            reason: reason.to_string(),
            from: at(104_000),
            watched: us(10_296_000),
            callers: vec![
                caller(trainer(), 182_004, 900_000),
                caller(loader(), 0, 0),
            ],
            pauses: vec![
                pause(10_200_000, 200_000, true, &[("blocked (futex)", 200_000)]),
                pause(3_204_518, 12_300, false, &waits),
                pause(5_100_000, 3_400, false, &reads),
            ],
        }],
        gpus: Vec::new(),
        kernels: Vec::new(),
        calls: vec![
            Call { name: "cuStreamSynchronize".to_string(), count: 1_000, total: us(900_000), max: us(12_304), idle_overlap: None },
            Call { name: "cuLaunchKernel".to_string(), count: 182_004, total: us(728_016), max: us(88), idle_overlap: None },
        ],
        ..report()
    }
}

fn idle_gpu() -> Gpu {
    const IDLE: u64 = 6_130_000;
    let hog = "stress-ng 9001 (/system.slice/backup.service) ran on CPU 3 instead";
    Gpu {
        index: 0,
        name: "NVIDIA H200".to_string(),
        uuid: "GPU-aaaaaaaa-0000-1111-2222-333333333333".to_string(),
        window_start: at(300_000),
        window_end: at(10_300_000),
        busy: Some(us(3_870_000)),
        idle: Some(us(IDLE)),
        idle_explained: Some(0.978),
        busy_kernel: us(3_610_000),
        busy_memcpy: us(312_000),
        busy_memset: us(1_200),
        operations: 182_101,
        startup: us(300_000),
        drain: us(100_000),
        usual_lead: Some(Nanos(6_900)),
        causes: vec![
            row(
                Cause::Preempted,
                3_300_000,
                IDLE,
                812,
                vec![
                    blame(Some(trainer()), hog, 2_900_000),
                    blame(Some(trainer()), "kworker/3:1 4012 ran on CPU 3 instead", 200_000),
                    blame(Some(loader()), hog, 100_000),
                    blame(Some(loader()), "sshd 77 ran on CPU 4 instead", 50_000),
                    blame(Some(loader()), "cron 78 ran on CPU 4 instead", 30_000),
                    blame(None, "too short to say", 20_000),
                ],
                &[
                    "python3 4711 was runnable but not running for 2.90 s of the gaps, in 2,412 pieces, the longest 12.1 ms.",
                    "In 97 % of that time stress-ng 9001 ran on its CPU.",
                ],
            ),
            row(
                Cause::DiskRead,
                1_900_000,
                IDLE,
                90,
                vec![blame(Some(loader()), "read /data/train-00017.tar", 1_900_000)],
                &["pt_data_worker 4711/4790 slept in io_schedule < folio_wait_bit_common < filemap_read 90 times."],
            ),
            row(Cause::GpuDependency, 700_000, IDLE, 200, vec![blame(None, "stream 14 waited for an event of stream 7", 700_000)], &[]),
            row(Cause::GpuLaunchLatency, 95_140, IDLE, 150_000, vec![], &[]),
            row(Cause::NoDemand, 0, IDLE, 1, vec![], &[]),
            row(Cause::Unknown, 134_860, IDLE, 11, vec![], &[]),
        ],
        gap_count: 151_234,
        longest_gap: us(100_000),
        gaps: vec![first_gap(), open_gap()],
    }
}

fn first_gap() -> Gap {
    let hog = "stress-ng 9001 ran on CPU 3 instead";
    Gap {
        start: at(3_204_518),
        end: at(3_216_822),
        next: Some(NextOp {
            kind: "kernel",
            name: "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_".to_string(),
            stream: StreamId(7),
            correlation: CorrelationId(99_001),
            pid: Pid(4711),
        }),
        dispatcher: Some(trainer()),
        lead_ns: Some(6_900),
        opened_by: Some(OpenedBy {
            call: "cudaStreamSynchronize".to_string(),
            who: trainer(),
            stack: Stack {
                frames: strings(&["libcudart.so.13+0x4f2a0", "c10::cuda::stream_synchronize", "at::native::_local_scalar_dense_cuda", "train_step (train.py:88)", "main (train.py:120)"]),
                telling: strings(&["c10::cuda::stream_synchronize", "train_step (train.py:88)", "main (train.py:120)"]),
            },
        }),
        parts: vec![
            part(3_204_518, 3_204_618, Cause::Sync, Some(trainer()), "cudaStreamSynchronize", &[]),
            part(3_204_618, 3_208_618, Cause::Preempted, Some(trainer()), hog, &[]),
            part(3_208_618, 3_212_000, Cause::DiskRead, Some(loader()), "read /data/train-00017.tar", &["io_schedule", "folio_wait_bit_common", "filemap_read"]),
            part(3_212_000, 3_216_500, Cause::Preempted, Some(trainer()), hog, &[]),
            part(3_216_500, 3_216_815, Cause::Compute, Some(trainer()), "", &[]),
            part(3_216_815, 3_216_822, Cause::GpuLaunchLatency, None, "", &[]),
        ],
        chain: vec![
            hop(trainer(), "blocked (futex)", 3_208_618, 3_212_000, Some(Waker::Task(loader()))),
            hop(loader(), "blocked (disk)", 3_208_700, 3_211_900, Some(Waker::Irq("nvme0q3".to_string()))),
        ],
    }
}

fn open_gap() -> Gap {
    Gap {
        start: at(10_200_000),
        end: at(10_300_000),
        next: None,
        dispatcher: Some(trainer()),
        lead_ns: None,
        opened_by: None,
        parts: vec![part(10_200_000, 10_300_000, Cause::Unknown, None, "", &[])],
        chain: vec![
            hop(
                trainer(),
                "blocked (poll)",
                10_200_000,
                10_300_000,
                Some(Waker::SoftIrq("NET_RX".to_string())),
            ),
            hop(
                loader(),
                "blocked (nanosleep)",
                10_200_000,
                10_300_000,
                Some(Waker::Timer),
            ),
            hop(loader(), "running", 10_200_000, 10_300_000, None),
        ],
    }
}

fn busy_gpu() -> Gpu {
    Gpu {
        index: 1,
        uuid: "GPU-bbbbbbbb-0000-1111-2222-333333333333".to_string(),
        busy: Some(us(9_960_000)),
        idle: Some(us(40_000)),
        idle_explained: Some(1.0),
        causes: vec![row(
            Cause::GpuLaunchLatency,
            40_000,
            40_000,
            9_000,
            vec![],
            &[],
        )],
        gap_count: 9_000,
        longest_gap: us(9),
        gaps: vec![],
        ..idle_gpu()
    }
}

fn unused_gpu() -> Gpu {
    Gpu {
        index: 2,
        uuid: "GPU-cccccccc-0000-1111-2222-333333333333".to_string(),
        window_start: idle_gpu().window_start,
        window_end: idle_gpu().window_start,
        busy: None,
        idle: None,
        idle_explained: None,
        operations: 0,
        gap_count: 0,
        longest_gap: Nanos::ZERO,
        causes: vec![],
        gaps: vec![],
        ..idle_gpu()
    }
}

/// Too few GPU records came back to tell busy from idle.
pub(super) fn unknowable() -> Report {
    Report {
        gpus: vec![Gpu {
            busy: None,
            idle: None,
            idle_explained: None,
            causes: vec![],
            gaps: vec![],
            ..idle_gpu()
        }],
        ..Report::default()
    }
}

/// Names that broke other tools, in every place that shows one.
pub(super) fn hostile() -> Report {
    let names = [
        "[ET_NET 0]",
        "a;b",
        "x (y)",
        "Hashed wheel timer #1",
        " lead",
        "",
        "\x1b[31mred\x1b[0m",
        "\u{202e}evil\u{2066}",
        "訓練プロセス",
        "🚀🚀🚀🚀👩\u{200d}👩\u{200d}👧",
        "e\u{301}\u{301}\u{301}",
        "bad\u{fffd}\u{fffd}",
        "a\nb\rc\td\0",
        "\u{9b}2J\u{85}",
        "quote\" back\\slash",
    ];
    let mut report = report();
    let mut kernels: Vec<String> = vec!["k".repeat(20_000), format!("_Z20000{}v", "k".repeat(3))];
    kernels.extend(strings(&names));
    report.kernels = kernels
        .iter()
        .map(|name| Kernel {
            name: name.clone(),
            count: 1,
            total: us(1),
            min: us(1),
            max: us(1),
        })
        .collect();
    report.kernels.insert(
        1,
        Kernel {
            name: "訓".repeat(500),
            count: 0,
            total: Nanos::ZERO,
            min: Nanos::ZERO,
            max: Nanos::ZERO,
        },
    );
    report.threads = names
        .iter()
        .map(|name| Thread {
            who: thread(1, 2, name),
            dispatcher: false,
            run: us(1),
            runq: us(1),
            blocked: us(1),
            launches: 0,
        })
        .collect();
    report.calls = names
        .iter()
        .map(|name| Call {
            name: (*name).to_string(),
            count: 1,
            total: us(1),
            max: us(1),
            idle_overlap: Some(us(1)),
        })
        .collect();
    report.quality.warnings = strings(&names);
    let gpu = &mut report.gpus[0];
    gpu.name = names[6].to_string();
    gpu.causes = names
        .iter()
        .map(|name| {
            let by = vec![blame(Some(thread(1, 2, name)), &name.repeat(20), 10)];
            row(
                Cause::Lock,
                1_000_000,
                6_130_000,
                1,
                by,
                &[name, &name.repeat(100)],
            )
        })
        .collect();
    gpu.gaps = kernels
        .iter()
        .map(|name| {
            let mut gap = first_gap();
            gap.next = gap.next.map(|next| NextOp {
                name: name.clone(),
                ..next
            });
            gap.parts = names
                .iter()
                .map(|name| {
                    part(
                        0,
                        1,
                        Cause::Lock,
                        Some(thread(1, 2, name)),
                        &name.repeat(9),
                        &[name, &name.repeat(50)],
                    )
                })
                .collect();
            gap.chain = names
                .iter()
                .map(|name| {
                    hop(
                        thread(1, 2, name),
                        name,
                        0,
                        1,
                        Some(Waker::Irq(name.repeat(9))),
                    )
                })
                .collect();
            gap.opened_by = Some(OpenedBy {
                call: name.chars().take(300).collect(),
                who: thread(1, 2, name),
                stack: stack(&[name]),
            });
            gap
        })
        .collect();
    report
}
