//! A recording with samples of all kinds: a training loop, the worker that it waits for, and a thread
//! whose functions have the names that broke other tools.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use gdiag::event::*;
use gdiag::store::meta::{GpuSource, Meta, Summary};
use gdiag::store::Writer;
use gdiag::units::Nanos;

pub const HOSTILE: [&str; 10] = [
    "a;b",
    "[x]",
    "[ET_NET 0]",
    "half \u{fffd} utf-8",
    "<&>\"'",
    "]]>",
    "thread 1234",
    "  # 7",
    "a\nb\u{1b}[31m\u{202e}",
    "日本 🦀",
];

const MAIN: u32 = 100;
const ODD: u32 = 101;
const LOADER: u32 = 300;

struct Story {
    writer: Writer,
    names: HashMap<String, NameId>,
    last: u32,
    correlation: u32,
}

/// Microseconds since the start.
fn us(t: u64) -> Nanos {
    Nanos(1_000_000_000 + t * 1_000)
}

impl Story {
    fn push(&mut self, event: &Event) {
        self.writer.push(event).unwrap();
    }

    fn id(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn name(&mut self, text: &str) -> NameId {
        if let Some(&id) = self.names.get(text) {
            return id;
        }
        let id = NameId(self.id());
        self.names.insert(text.to_string(), id);
        let text = text.to_string();
        self.push(&Event::Define(Define::Name { id, text }));
        id
    }

    fn kernel_stack(&mut self, frames: &[&str]) -> StackId {
        let id = StackId(self.id());
        let frames = frames.iter().map(|f| self.name(f)).collect();
        self.push(&Event::Define(Define::Stack { id, frames }));
        id
    }

    /// Root first. Python as `(function, file, line)` has a line, a native function `(name, module, 0)`.
    fn stack(&mut self, frames: &[(&str, &str, u32)], cut: Option<Cut>) -> CallStackId {
        let mut ids = Vec::new();
        for &(function, file, line) in frames.iter().rev() {
            let id = FrameId(self.id());
            let (function_id, file) = (self.name(function), self.name(file));
            let frame = match line {
                0 => Frame::Native {
                    module: file,
                    build_id: NameId(0),
                    address: u64::from(id.0),
                },
                line => Frame::Python {
                    function: function_id,
                    file,
                    line,
                },
            };
            self.push(&Event::Define(Define::Frame { id, frame }));
            if line == 0 && !function.is_empty() {
                let mut functions = vec![Function {
                    name: function_id,
                    file: NameId(0),
                    line: 0,
                }];
                if function == "inlines" {
                    let name = self.name("inlined");
                    functions.insert(
                        0,
                        Function {
                            name,
                            ..functions[0]
                        },
                    );
                }
                self.push(&Event::Define(Define::Functions {
                    frame: id,
                    functions,
                }));
            }
            ids.push(id);
        }
        let id = CallStackId(self.id());
        self.push(&Event::Define(Define::CallStack {
            id,
            frames: ids,
            cut,
        }));
        id
    }

    fn sample(
        &mut self,
        at: Nanos,
        tid: u32,
        kind: SampleKind,
        user: CallStackId,
        kernel: StackId,
    ) {
        self.push(&Event::Sample(Sample {
            ts: at,
            tid: Tid(tid),
            kind,
            kernel,
            user,
            gil: None,
            collects: false,
        }));
    }

    fn cpu_sample(&mut self, at: u64, tid: u32, user: CallStackId) {
        let period = Nanos::from_millis(10);
        self.sample(us(at), tid, SampleKind::Cpu { period }, user, StackId(0));
    }

    fn task(&mut self, tid: u32, pid: u32, name: &str) {
        let comm = self.name(name);
        self.push(&Event::Task(Task {
            ts: us(0),
            tid: Tid(tid),
            pid: Pid(pid),
            ppid: Pid(1),
            comm,
            start: Nanos(u64::from(tid)),
            ns_tid: Tid(tid),
            ns_pid: Pid(pid),
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target: true,
            kthread: false,
            state: TaskState::Running,
            syscall: None,
        }));
    }

    fn switch(
        &mut self,
        at: u64,
        cpu: u16,
        prev: u32,
        next: u32,
        state: u16,
        syscall: Option<u16>,
    ) {
        self.push(&Event::Switch(Switch {
            ts: us(at),
            cpu: Cpu(cpu),
            prev: Tid(prev),
            next: Tid(next),
            state,
            syscall,
            flags: SwitchFlags::default(),
            minor_faults: 0,
            major_faults: 0,
        }));
    }

    /// A call at `at` of 10 µs, and its operation from `start` to `end`.
    fn launch(&mut self, at: u64, kind: OpKind, (start, end): (u64, u64)) {
        self.correlation += 1;
        let correlation = CorrelationId(self.correlation);
        self.push(&Event::ApiCall(ApiCall {
            pid: Pid(MAIN),
            tid: Tid(MAIN),
            api: Api {
                domain: ApiDomain::Runtime,
                cbid: 211,
            },
            start: us(at),
            end: us(at + 10),
            correlation,
            result: 0,
        }));
        self.push(&Event::GpuOp(GpuOp {
            pid: Pid(MAIN),
            device: DeviceId(0),
            context: ContextId(1),
            stream: StreamId(7),
            kind,
            start: us(start),
            end: us(end),
            correlation,
            graph: 0,
            node: 0,
        }));
    }
}

const TORCH: &str = "/venv/torch/lib/libtorch_cuda.so";
const PYTHON: &str = "/usr/bin/python3.12";

/// Steps of 8 ms: 3 ms of computing, launches, and 4 ms of waiting for the loader.
pub fn record(directory: &Path) -> PathBuf {
    let file = directory.join("story.data");
    let meta = Meta {
        machine: "x86_64".to_string(),
        command: ["gdiag", "record", "--", "python3", "train.py"]
            .map(str::to_string)
            .to_vec(),
        start_mono_ns: us(0).as_u64(),
        wait_threshold_ns: 100_000,
        ..Meta::default()
    };
    let mut s = Story {
        writer: Writer::create(&file, &meta).unwrap(),
        names: HashMap::new(),
        last: 0,
        correlation: 0,
    };
    s.task(MAIN, MAIN, "python3");
    s.task(ODD, MAIN, "odd;name 7");
    s.task(LOADER, LOADER, "loader");
    s.switch(0, 0, 0, MAIN, 0, None);
    s.switch(0, 1, 0, LOADER, 0, None);
    s.switch(0, 2, 0, ODD, 0, None);

    let base = [("_start", PYTHON, 0), ("Py_BytesMain", PYTHON, 0)];
    let main = [&base[..], &[("main", "/src/train.py", 12)]].concat();
    let of = |frames: &[(&'static str, &'static str, u32)]| [&main[..], frames].concat();
    let forward = [
        ("forward", "/src/model.py", 31),
        ("_ZN2at6linearEv", TORCH, 0),
    ];
    let cuda = [
        ("cudaLaunchKernel", "/venv/nvidia/libcudart.so.12", 0),
        ("cuLaunchKernel", "/usr/lib/libcuda.so.1", 0),
    ];
    let launching = s.stack(&of(&[&forward[..], &cuda[..]].concat()), None);
    let backward = s.stack(
        &of(&[&[("backward", "/src/model.py", 58)], &cuda[..]].concat()),
        None,
    );
    let computing = s.stack(
        &of(&[("augment", "/src/data.py", 77), ("inlines", TORCH, 0)]),
        None,
    );
    let waiting = s.stack(
        &of(&[
            ("load_batch", "/src/data.py", 15),
            ("pthread_cond_wait", "/lib/libc.so.6", 0),
        ]),
        None,
    );
    let waking = s.stack(
        &[
            ("_start", PYTHON, 0),
            ("put", "/src/data.py", 40),
            ("sem_post", "/lib/libc.so.6", 0),
        ],
        None,
    );
    let decoding = s.stack(
        &[
            ("_start", PYTHON, 0),
            ("decode", "/src/data.py", 33),
            ("", "/lib/libjpeg.so", 0),
        ],
        None,
    );
    let cut = s.stack(&[("", "/opt/libnative.so", 0)], Some(Cut::NoTable));
    let futex = s.kernel_stack(&["__schedule", "futex_do_wait", "do_futex"]);
    let wake = s.kernel_stack(&["try_to_wake_up", "futex_wake", "do_futex"]);
    let gemm = s.name("gemm");
    let long = s.name(&format!("_Z{}{}v", 20_000, "k".repeat(20_000)));
    let odd: Vec<CallStackId> = HOSTILE
        .iter()
        .map(|name| s.stack(&[(name, "/opt/odd name.so", 0)], None))
        .collect();

    for step in 0..3u64 {
        let t = step * 8_000;
        // No sample in the second gap.
        if step != 2 {
            s.cpu_sample(t + 1_000, MAIN, computing);
            s.cpu_sample(t + 2_900, MAIN, cut);
        }
        s.launch(
            t + 3_000,
            OpKind::Kernel { name: gemm },
            (t + 3_015, t + 3_900),
        );
        s.sample(
            us(t + 3_005),
            MAIN,
            SampleKind::Launch { one_in: 2 },
            launching,
            StackId(0),
        );
        s.launch(
            t + 3_100,
            OpKind::Kernel { name: gemm },
            (t + 3_900, t + 4_500),
        );
        s.launch(
            t + 3_200,
            OpKind::Kernel { name: long },
            (t + 4_500, t + 4_600),
        );
        s.sample(
            us(t + 3_205),
            MAIN,
            SampleKind::Launch { one_in: 2 },
            backward,
            StackId(0),
        );
        s.launch(
            t + 3_300,
            OpKind::Memset { bytes: 64 },
            (t + 4_600, t + 4_610),
        );
        // The wait for the loader.
        let (off, woken, on) = (t + 3_500, t + 7_500, t + 7_600);
        s.switch(off, 0, MAIN, 0, 1, Some(202));
        s.cpu_sample(t + 5_000, LOADER, decoding);
        s.push(&Event::Waking(Waking {
            ts: us(woken),
            cpu: Cpu(1),
            wakee: Tid(MAIN),
            waker: Tid(LOADER),
            context: Context::Task,
        }));
        s.push(&Event::Wait(Wait {
            tid: Tid(MAIN),
            start: us(off),
            end: us(woken),
            state: 1,
            syscall: Some(202),
            stack: futex,
            object: NameId(0),
        }));
        let kind = SampleKind::Waker {
            wakee: Tid(MAIN),
            since: us(off),
        };
        s.sample(us(woken), LOADER, kind, waking, wake);
        s.switch(on, 0, 0, MAIN, 0, None);
        s.sample(
            us(on),
            MAIN,
            SampleKind::OffCpu { since: us(off) },
            waiting,
            futex,
        );
    }
    for (at, stack) in (1..).zip(odd) {
        s.cpu_sample(at * 2_000 + 1, ODD, stack);
    }
    s.writer
        .finish(&Summary {
            end_mono_ns: us(24_000).as_u64(),
            gpu_source: GpuSource::Cupti,
            ..Summary::default()
        })
        .unwrap();
    file
}
