//! A recording of programs that call their threads and kernels what breaks tools.

use std::path::Path;

use gdiag::event::{
    Api, ApiCall, ApiDomain, ContextId, CorrelationId, Cpu, Define, DeviceId, Event, GpuOp, NameId,
    OpKind, Pid, StreamId, Switch, SwitchFlags, Task, TaskReason, TaskState, Tid,
};
use gdiag::store::meta::{Meta, Summary};
use gdiag::store::Writer;
use gdiag::units::Nanos;

pub const FIRST_TID: u32 = 1_000;

pub fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a b",
        "tab\there",
        "line\nbreak",
        "\u{1b}[31mred",
        "nul\0inside",
        "quote\"quote",
        "back\\slash",
        "</script>",
        "}],{\"ph\":\"X\"",
        "[brackets] (and) {braces}",
        "semi;colon",
        "half \u{fffd} character",
        "\u{202e}backwards",
        "\u{2028}separator",
        "訓練 🚀",
        "\u{7f}\u{9b}2J",
        "%s%n",
        "-p 1",
        "?",
    ]
    .map(str::to_string)
    .into();
    names.push("long".repeat(1024));
    names
}

/// Each of the names ran once on CPU 0, launched a kernel of that name, and left the CPU to the next one.
pub fn write(path: &Path) {
    let start = 5_000_000_000_u64;
    let at = |us: u64| Nanos(start + us * 1_000);
    let meta = Meta {
        host: "host \"with\" \u{1b}quotes".to_string(),
        kernel: "6.18.0".to_string(),
        machine: "x86_64".to_string(),
        command: names(),
        start_mono_ns: start,
        ..Meta::default()
    };
    let mut writer = Writer::create(path, &meta).unwrap();
    let mut push = |event: Event| writer.push(&event).unwrap();
    let mut last = 0;
    for (n, name) in (0_u32..).zip(names()) {
        let (id, tid) = (NameId(n + 1), FIRST_TID + n);
        let us = 10 + u64::from(n) * 100;
        push(Event::Define(Define::Name { id, text: name }));
        push(Event::Task(Task {
            ts: at(0),
            tid: Tid(tid),
            pid: Pid(tid),
            ppid: Pid(1),
            comm: id,
            start: at(0),
            ns_tid: Tid(tid),
            ns_pid: Pid(tid),
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target: true,
            kthread: false,
            state: TaskState::Off(1),
            syscall: None,
        }));
        push(Event::Switch(Switch {
            ts: at(us),
            cpu: Cpu(0),
            prev: Tid(last),
            next: Tid(tid),
            state: 1,
            syscall: None,
            flags: SwitchFlags(0),
            minor_faults: 0,
            major_faults: 0,
        }));
        last = tid;
        let correlation = CorrelationId(n + 1);
        push(Event::ApiCall(ApiCall {
            pid: Pid(tid),
            tid: Tid(tid),
            api: Api {
                domain: ApiDomain::Runtime,
                cbid: 211,
            },
            start: at(us + 1),
            end: at(us + 5),
            correlation,
            result: 0,
        }));
        push(Event::GpuOp(GpuOp {
            pid: Pid(tid),
            device: DeviceId(0),
            context: ContextId(1),
            stream: StreamId(7),
            kind: OpKind::Kernel { name: id },
            start: at(us + 10),
            end: at(us + 20),
            correlation,
            graph: 0,
            node: 0,
        }));
    }
    writer
        .finish(&Summary {
            end_mono_ns: at(10_000).as_u64(),
            ..Summary::default()
        })
        .unwrap();
}
