//! A window made by hand: a training process that a hog keeps from its CPU.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::analyse::live::{CudaTime, StackTime, Window};
use crate::analyse::report::Report;
use crate::analyse::sched::{
    CpuSum, OffReason, OffSum, Preemptor, Summary, ThreadSum, Waker, WakerContext, Who,
};
use crate::analyse::syscalls::{self, Call, Measure, Open, Thread};
use crate::event::{Cpu, Pid, Tid};
use crate::facts::GpuFacts;
use crate::histogram::Histogram;
use crate::present::sample;
use crate::present::top::model::{Model, Source, Status, Target};
use crate::units::{Bytes, Nanos};

pub(in crate::present::top) const FROM: Nanos = Nanos::from_millis(5_000_300);
pub(in crate::present::top) const TO: Nanos = Nanos::from_millis(5_010_300);

pub(in crate::present::top) fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

pub(in crate::present::top) fn who(pid: u32, tid: u32, comm: &str) -> Who {
    Who {
        pid: Pid(pid),
        tid: Tid(tid),
        comm: comm.to_string(),
    }
}

fn off(reason: OffReason, count: u64, total: u64, max: u64) -> OffSum {
    OffSum {
        reason,
        count,
        total: ms(total),
        max: Some(ms(max)),
    }
}

fn histogram(times: &[(u64, Nanos)]) -> Histogram {
    let mut all = Histogram::default();
    for &(count, time) in times {
        (0..count).for_each(|_| all.add(time));
    }
    all
}

fn hog() -> Who {
    who(9001, 9001, "stress-ng")
}

/// Launches, and was kept from its CPU by the hog.
fn trainer() -> ThreadSum {
    ThreadSum {
        who: who(4711, 4711, "python3"),
        here: Some(Tid(4711)),
        target: true,
        dispatcher: true,
        prio: Some(120),
        run: ms(4_200),
        runs: histogram(&[(3_000, Nanos::from_micros(1_400))]),
        runq: histogram(&[(2_000, Nanos::from_micros(40)), (250, ms(12))]),
        runq_max_at: Some(TO.saturating_sub(ms(2_750))),
        runq_max_behind: Some(hog()),
        behind: vec![(hog(), ms(2_900)), (who(77, 77, "sshd"), ms(60))],
        off: vec![
            off(OffReason::Woken, 1_438, 100, 2),
            off(OffReason::Preempted, 812, 2_980, 12),
            off(OffReason::Throttled, 3, 120, 60),
            off(OffReason::Futex, 900, 1_700, 40),
            off(OffReason::Io, 90, 900, 21),
        ],
        voluntary: 1_438,
        involuntary: 815,
        migrations: 12,
        cpus: vec![(Cpu(3), ms(4_000)), (Cpu(2), ms(200))],
        affinity: Some(vec![Cpu(2), Cpu(3)]),
        wakers: vec![
            (Waker::Thread(who(4711, 4790, "pt_data_worker")), 900),
            (
                Waker::Interrupt(WakerContext::HardIrq(41), "nvme0q3".to_string()),
                90,
            ),
        ],
        ..ThreadSum::default()
    }
}

/// Ran nearly all the time.
fn loader() -> ThreadSum {
    ThreadSum {
        who: who(4711, 4790, "pt_data_worker"),
        target: true,
        run: ms(9_100),
        runs: histogram(&[(120, ms(75))]),
        runq: histogram(&[(30, Nanos::from_micros(9))]),
        off: vec![
            off(OffReason::Woken, 30, 1, 0),
            off(OffReason::Io, 30, 899, 44),
        ],
        voluntary: 30,
        cpus: vec![(Cpu(0), ms(9_100))],
        ..ThreadSum::default()
    }
}

/// Of a pool that has nothing to do.
fn sleeper() -> ThreadSum {
    ThreadSum {
        who: who(4711, 4800, "OMP worker"),
        target: true,
        off: vec![off(OffReason::Futex, 0, 10_000, 10_000)],
        ..ThreadSum::default()
    }
}

/// Only seen where it ran beside others.
fn stranger(who: Who, run: u64) -> ThreadSum {
    ThreadSum {
        who,
        run: ms(run),
        cpus: vec![(Cpu(3), ms(run))],
        ..ThreadSum::default()
    }
}

fn sched() -> Summary {
    Summary {
        host: "node17".to_string(),
        start: FROM,
        end: TO,
        threads: vec![
            stranger(who(77, 77, "sshd"), 60),
            stranger(who(80, 80, "bystander"), 20),
            sleeper(),
            loader(),
            trainer(),
            stranger(hog(), 5_700),
        ],
        cpus: vec![
            cpu(0, 9_100, 120, &[(who(4711, 4790, "pt_data_worker"), 9_100)]),
            cpu(1, 0, 0, &[]),
            cpu(
                3,
                9_900,
                40,
                &[
                    (hog(), 5_700),
                    (who(4711, 4711, "python3"), 4_000),
                    (who(77, 77, "sshd"), 60),
                    (who(80, 80, "bystander"), 20),
                ],
            ),
            CpuSum {
                idle: Nanos::ZERO,
                unknown: ms(10_000),
                ..cpu(4, 0, 0, &[])
            },
        ],
        preemptors: vec![
            Preemptor {
                who: hog(),
                count: 810,
                waited: ms(2_950),
                had: Some(ms(2_900)),
                victims: vec![(who(4711, 4711, "python3"), 810, ms(2_950))],
            },
            Preemptor {
                who: who(77, 77, "sshd"),
                count: 2,
                waited: ms(30),
                had: Some(ms(60)),
                victims: vec![(who(4711, 4711, "python3"), 2, ms(30))],
            },
        ],
        notes: Vec::new(),
        lost: Some(0),
    }
}

fn cpu(number: u16, busy: u64, irq: u64, ran: &[(Who, u64)]) -> CpuSum {
    CpuSum {
        cpu: Cpu(number),
        busy: ms(busy),
        idle: ms(10_000 - busy),
        unknown: Nanos::ZERO,
        irq: ms(irq),
        switches: busy / 4,
        ran: ran
            .iter()
            .map(|(who, run)| (who.clone(), ms(*run)))
            .collect(),
    }
}

fn call(name: &str, times: &[(u64, Nanos)], idle: Option<(u64, u64)>) -> Call {
    Call {
        times: histogram(times),
        idle_overlap: idle.map(|idle| ms(idle.0)),
        dispatcher_idle: idle.map(|idle| ms(idle.1)),
        ..Call::new(name.to_string())
    }
}

fn calls() -> syscalls::Summary {
    let read = Call {
        errors: 12,
        by_error: BTreeMap::from([(11, 9), (4, 3)]),
        ..call(
            "read",
            &[(90, ms(10)), (410, Nanos::from_micros(14))],
            Some((700, 700)),
        )
    };
    let waits = Call {
        open: vec![Open {
            since: None,
            lasts: ms(10_000),
        }],
        ..call("futex", &[], None)
    };
    syscalls::Summary {
        measure: Measure::Calls,
        start: FROM,
        end: TO,
        threads: vec![
            Thread {
                id: Some((Pid(4711), Tid(4711))),
                comm: "python3".to_string(),
                dispatcher: true,
                calls: vec![
                    call(
                        "futex",
                        &[(900, Nanos::from_micros(1_890))],
                        Some((400, 380)),
                    ),
                    read,
                ],
            },
            Thread {
                id: Some((Pid(4711), Tid(4790))),
                comm: "pt_data_worker".to_string(),
                dispatcher: false,
                calls: vec![call("read", &[(30, ms(30))], Some((500, 0)))],
            },
            Thread {
                id: Some((Pid(4711), Tid(4800))),
                comm: "OMP worker".to_string(),
                dispatcher: false,
                calls: vec![waits],
            },
        ],
        gpu: true,
        notes: Vec::new(),
    }
}

fn stack(running: bool, frames: &[&str], time: u64) -> StackTime {
    StackTime {
        pid: Pid(4711),
        tid: Tid(4711),
        running,
        frames: frames.iter().map(|frame| (*frame).to_string()).collect(),
        time: ms(time),
    }
}

fn target(pid: u32, comm: &str, cuda: bool) -> Target {
    Target {
        pid: Pid(pid),
        comm: comm.to_string(),
        cuda,
        since: FROM.saturating_sub(ms(60_000)),
        ended: None,
        note: None,
    }
}

pub(in crate::present::top) fn window() -> Window {
    Window {
        from: FROM,
        to: TO,
        report: report(),
        sched: sched(),
        calls: calls(),
        launches: Vec::new(),
        cuda: vec![CudaTime {
            pid: Pid(4711),
            tid: Tid(4711),
            time: ms(3_100),
            launches: 182_004,
        }],
        stacks: vec![
            stack(
                true,
                &[
                    "main (train.py:120)",
                    "train_step (train.py:88)",
                    "_PyEval_EvalFrameDefault",
                    "forward (model.py:31)",
                    "at::native::add",
                    "libtorch.so+0x4f2a0",
                    "asm_exc_page_fault_[k]",
                ],
                3_000,
            ),
            stack(
                true,
                &["main (train.py:120)", "train_step (train.py:88)"],
                1_200,
            ),
            stack(
                false,
                &["main (train.py:120)", "[blocked: futex]", "futex_wait_[k]"],
                1_700,
            ),
        ],
        events: 1_234_567,
        lost: 0,
        points: Vec::new(),
    }
}

pub(in crate::present::top) fn model() -> Model {
    Model {
        host: "node17".to_string(),
        source: Source::Targets,
        window: window(),
        window_asked: Nanos::from_secs(10),
        oldest: FROM.saturating_sub(ms(60_000)),
        newest: TO,
        facts: vec![
            GpuFacts {
                index: 0,
                processes: Some(vec![(Pid(4711), Some(Bytes(40 << 30)))]),
                ..GpuFacts::default()
            },
            GpuFacts {
                index: 1,
                processes: Some(vec![(Pid(4711), Some(Bytes(2 << 30)))]),
                ..GpuFacts::default()
            },
        ],
        targets: vec![
            Target {
                ended: Some(TO.saturating_sub(ms(3_000))),
                note: Some("no GPU records: it began before gdiag".to_string()),
                ..target(4600, "nvidia-smi", true)
            },
            target(4711, "python3", true),
            target(4720, "tee", false),
        ],
        status: Status::default(),
    }
}

/// Nothing was measured yet.
pub(in crate::present::top) fn empty() -> Model {
    let window = Window {
        from: Nanos::ZERO,
        to: Nanos::ZERO,
        report: Report::default(),
        sched: Summary::default(),
        calls: syscalls::Summary {
            threads: Vec::new(),
            ..calls()
        },
        cuda: Vec::new(),
        stacks: Vec::new(),
        events: 0,
        ..window()
    };
    Model {
        window,
        facts: Vec::new(),
        targets: Vec::new(),
        ..model()
    }
}

/// All that was measured, in no time at all.
pub(in crate::present::top) fn instant() -> Model {
    let mut model = model();
    model.window.to = FROM;
    model
}

pub(in crate::present::top) fn machine() -> Model {
    let mut model = model();
    model.source = Source::Machine;
    for thread in &mut model.window.sched.threads {
        thread.target = true;
        thread.dispatcher = false;
    }
    model.window.report = Report::default();
    model.window.cuda = Vec::new();
    model.window.calls.measure = Measure::Waits;
    model.window.calls.gpu = false;
    model.targets = Vec::new();
    model.facts = Vec::new();
    model
}

/// Names that broke other tools, in every place that has one.
pub(in crate::present::top) fn hostile(name: &str) -> Model {
    let mut model = model();
    let window = &mut model.window;
    window.report = sample::hostile();
    let renamed = |who: &mut Who| who.comm = name.to_string();
    for thread in &mut window.sched.threads {
        renamed(&mut thread.who);
        thread.behind.iter_mut().for_each(|(who, _)| renamed(who));
        thread
            .runq_max_behind
            .as_mut()
            .into_iter()
            .for_each(renamed);
        for (waker, _) in &mut thread.wakers {
            match waker {
                Waker::Thread(who) => renamed(who),
                Waker::Interrupt(_, irq) => *irq = name.to_string(),
            }
        }
    }
    for preemptor in &mut window.sched.preemptors {
        renamed(&mut preemptor.who);
        preemptor
            .victims
            .iter_mut()
            .for_each(|(who, _, _)| renamed(who));
    }
    for cpu in &mut window.sched.cpus {
        cpu.ran.iter_mut().for_each(|(who, _)| renamed(who));
    }
    for thread in &mut window.calls.threads {
        thread.comm = name.to_string();
        thread
            .calls
            .iter_mut()
            .for_each(|call| call.name = name.to_string());
    }
    for stack in &mut window.stacks {
        stack.frames = vec![name.to_string()];
    }
    for target in &mut model.targets {
        target.comm = name.to_string();
        target.note = Some(name.to_string());
    }
    model
}

/// While it goes on, a GPU without operations is one that was idle until now.
fn report() -> Report {
    let mut report = sample::report();
    for gpu in report.gpus.iter_mut().filter(|gpu| gpu.operations == 0) {
        gpu.window_end = gpu.window_start + Nanos::from_secs(10);
        gpu.busy = Some(Nanos::ZERO);
        gpu.idle = Some(Nanos::from_secs(10));
    }
    report
}
