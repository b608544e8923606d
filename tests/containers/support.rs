//! Containers as far as they matter here: namespaces, another root and cgroups, and what gdiag recorded of
//! what runs in them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gdiag::collect::process;
use gdiag::event::{
    CallStackId, Define, Event, Frame, FrameId, GpuOp, NameId, Process, Sample, Task,
};
use gdiag::store::Reader;
use nix::sys::signal::Signal;

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf,simgpu, as in CI, it must.
pub fn can_run() -> bool {
    let root = fs::read_dir("/proc/self/map_files").is_ok();
    let namespaces = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "true"])
        .status();
    let bpf = root
        && Path::new("/sys/kernel/btf/vmlinux").exists()
        && namespaces.is_ok_and(|status| status.success());
    assert!(bpf || !required("bpf"), "needs root, BTF and namespaces");
    let sim = simgpu().join("libcuda.so.1").exists();
    assert!(sim || !required("simgpu"), "needs `make simgpu`");
    if !bpf || !sim {
        eprintln!("skipped: needs root, BTF, namespaces and the simulated GPU (make simgpu)");
    }
    bpf && sim
}

pub fn simgpu() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from)
}

pub fn gdiag() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    command.stdin(Stdio::null());
    command
}

/// Compiles C, which comes on stdin.
pub fn compile(out: &Path, code: &str, arguments: &[&str]) {
    use std::io::Write;
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compiler = Command::new(cc)
        .args(["-O1", "-fno-omit-frame-pointer", "-x", "c", "-o"])
        .arg(out)
        .args(["-", "-x", "none"])
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = compiler.stdin.take().unwrap();
    stdin.write_all(code.as_bytes()).unwrap();
    drop(stdin);
    assert!(compiler.wait().unwrap().success());
}

/// How a program that uses CUDA comes by gdiag's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// It is started with CUDA_INJECTION64_PATH.
    Carried,
    /// gdiag puts it into the running program.
    Injected,
}

impl Library {
    /// The name of the thread that says that a program can be recorded.
    pub fn ready(self) -> &'static str {
        match self {
            Library::Carried => "gdiag-shim",
            Library::Injected => "cuda-EvtHandlr",
        }
    }
}

pub const WAYS: [Library; 2] = [Library::Carried, Library::Injected];

/// Writes the library into a directory of a container. What to set is the result.
pub fn install(dir: &Path) -> PathBuf {
    let output = gdiag().args(["shim", "install"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim_end().split_once('=').unwrap().1.into()
}

/// Sets what a program needs to find the simulated GPU, at these paths inside the container.
pub fn with_gpu(command: &mut Command, simgpu: &Path, library: Library, path: &Path) {
    command
        .env("LD_LIBRARY_PATH", simgpu)
        .env("GDIAG_SIM_SYNC", "block");
    match library {
        Library::Carried => command.env("CUDA_INJECTION64_PATH", path),
        Library::Injected => command.env_remove("CUDA_INJECTION64_PATH"),
    };
}

/// A process, and what it started: all of it ends with the test.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        Running(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn end(&mut self) {
        // What it starts meanwhile would be left.
        send(self.0.id(), Signal::SIGSTOP);
        for pid in process::with_descendants(&[self.0.id()]) {
            send(pid, Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }

    /// The host's pid of the program in the container, once it runs.
    pub fn find(&self, comm: &str) -> u32 {
        let mut found = None;
        wait_until(comm, || {
            let named = |pid: &u32| name_of(&format!("/proc/{pid}")) == comm;
            found = process::with_descendants(&[self.0.id()])
                .into_iter()
                .find(named);
            found.is_some()
        });
        found.unwrap()
    }

    /// The same, once it has come to use its GPU.
    pub fn find_gpu(&self, comm: &str, library: Library) -> u32 {
        let pid = self.find(comm);
        let last = library.ready();
        wait_until("it uses CUDA", || {
            threads(pid).iter().any(|name| name == last)
        });
        pid
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn send(pid: u32, signal: Signal) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
    let _ = nix::sys::signal::kill(pid, signal);
}

fn name_of(dir: &str) -> String {
    fs::read_to_string(format!("{dir}/comm"))
        .unwrap_or_default()
        .trim_end()
        .to_string()
}

fn threads(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    threads
        .map(|thread| name_of(thread.path().to_str().unwrap()))
        .collect()
}

/// What is in a recording.
#[derive(Debug, Default)]
pub struct Recorded {
    pub ops: Vec<GpuOp>,
    pub tasks: Vec<Task>,
    pub samples: Vec<Sample>,
    pub processes: Vec<Process>,
    names: HashMap<NameId, String>,
    frames: HashMap<FrameId, Frame>,
    functions: HashMap<FrameId, Vec<String>>,
    stacks: HashMap<CallStackId, Vec<FrameId>>,
    pub json: serde_json::Value,
}

impl Recorded {
    pub fn read(path: &Path) -> Recorded {
        let mut r = Recorded::default();
        let mut reader = Reader::open(path).unwrap();
        let each = |event: &Event| {
            match event {
                Event::GpuOp(op) => r.ops.push(*op),
                Event::Task(task) => r.tasks.push(task.clone()),
                Event::Sample(sample) => r.samples.push(*sample),
                Event::Process(process) => r.processes.push(*process),
                Event::Define(Define::Name { id, text }) => {
                    r.names.insert(*id, text.clone());
                }
                Event::Define(Define::Frame { id, frame }) => {
                    r.frames.insert(*id, *frame);
                }
                Event::Define(Define::Functions { frame, functions }) => {
                    let names = functions.iter().map(|f| r.names[&f.name].clone());
                    r.functions.insert(*frame, names.collect());
                }
                Event::Define(Define::CallStack { id, frames, .. }) => {
                    r.stacks.insert(*id, frames.clone());
                }
                _ => {}
            }
            ControlFlow::Continue(())
        };
        reader.for_each(each).unwrap();
        assert!(reader.coverage().is_whole());
        let report = gdiag()
            .args(["report", "--json", "-i"])
            .arg(path)
            .output()
            .unwrap();
        r.json = serde_json::from_slice(&report.stdout).unwrap();
        r
    }

    pub fn name(&self, id: NameId) -> &str {
        self.names.get(&id).map_or("", String::as_str)
    }

    /// Threads of the target, by their names.
    pub fn targets(&self) -> HashSet<(u32, &str)> {
        let targets = self.tasks.iter().filter(|task| task.target);
        targets
            .map(|task| (task.tid.0, self.name(task.comm)))
            .collect()
    }

    /// Frames of all user stacks: the file, and the function where it is known.
    pub fn frames(&self) -> HashSet<(String, String)> {
        let used: HashSet<&FrameId> = self.stacks.values().flatten().collect();
        let frames = used.into_iter().filter_map(|id| {
            let functions = self.functions.get(id).and_then(|all| all.last());
            match self.frames.get(id)? {
                Frame::Native { module, .. } => Some((
                    self.name(*module).to_string(),
                    functions.cloned().unwrap_or_default(),
                )),
                Frame::Python { function, file, .. } => Some((
                    self.name(*file).to_string(),
                    self.name(*function).to_string(),
                )),
                Frame::Anonymous { .. } => None,
            }
        });
        frames.collect()
    }

    pub fn has_function(&self, name: &str) -> bool {
        self.frames().iter().any(|(_, function)| function == name)
    }

    /// Whether a function of this file is known by its name.
    pub fn names_functions_of(&self, file: &str) -> bool {
        self.frames()
            .iter()
            .any(|(of, function)| of.ends_with(file) && !function.is_empty())
    }

    /// Whether gaps were diagnosed, and functions of the workload have names.
    pub fn is_clear(&self) -> bool {
        let gaps = self.json["gpus"][0]["gaps"].as_array();
        self.names_functions_of("/gpuload") && gaps.is_some_and(|gaps| !gaps.is_empty())
    }

    /// Whether nothing is missing but what a busy machine had no time for.
    pub fn has_all_of_the_gpu(&self) -> bool {
        self.warnings()
            .iter()
            .all(|warning| warning.contains("stacks"))
    }

    pub fn warnings(&self) -> Vec<&str> {
        let warnings = self.json["quality"]["warnings"].as_array().unwrap();
        warnings
            .iter()
            .filter_map(|warning| warning.as_str())
            .collect()
    }

    /// Pids and tids of the threads that launch.
    pub fn launching(&self) -> Vec<(u32, u32)> {
        let threads = self.json["threads"].as_array().unwrap().iter();
        let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
        threads
            .filter(|thread| thread["launches"].as_u64() > Some(0))
            .map(|thread| (number(&thread["pid"]), number(&thread["tid"])))
            .collect()
    }

    /// Checks that the GPU's work is that of a thread with this id on the host.
    pub fn assert_dispatched_by(&self, pid: u32) {
        assert!(self.ops.len() > 50, "{} operations", self.ops.len());
        assert!(self.ops.iter().all(|op| op.pid.0 == pid));
        assert_eq!(self.launching(), [(pid, pid)]);
        let pid = Some(u64::from(pid));
        let gaps = self.json["gpus"][0]["gaps"].as_array().unwrap();
        let ended = gaps
            .iter()
            .map(|gap| &gap["dispatcher"])
            .find(|who| !who.is_null());
        let ended = ended.unwrap_or_else(|| panic!("{gaps:?}"));
        assert_eq!((ended["pid"].as_u64(), ended["tid"].as_u64()), (pid, pid));
    }
}

/// What `gdiag record` did, and what it recorded if it was a success.
pub fn record(arguments: &[&str]) -> (Output, Option<Recorded>) {
    record_by(gdiag(), arguments)
}

/// Root's capabilities as a container has them, where it may trace.
pub fn record_confined(arguments: &[&str]) -> Recorded {
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set", "-sys_admin,-checkpoint_restore", "--"])
        .arg(env!("CARGO_BIN_EXE_gdiag"))
        .stdin(Stdio::null());
    let (output, recorded) = record_by(command, arguments);
    recorded.unwrap_or_else(|| panic!("{output:?}"))
}

fn record_by(mut gdiag: Command, arguments: &[&str]) -> (Output, Option<Recorded>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let output = gdiag
        .arg("record")
        .arg("-o")
        .arg(&path)
        .args(arguments)
        .output()
        .unwrap();
    let recorded = output.status.success().then(|| Recorded::read(&path));
    (output, recorded)
}

pub fn recorded(arguments: &[&str]) -> Recorded {
    let (output, recorded) = record(arguments);
    recorded.unwrap_or_else(|| panic!("{arguments:?}: {output:?}"))
}

/// A recording that has what is looked for, or the last of some: on a busy machine, what a stack needs
/// may come late.
pub fn recorded_until(arguments: &[&str], enough: impl Fn(&Recorded) -> bool) -> Recorded {
    until(|| recorded(arguments), enough)
}

pub fn until(record: impl Fn() -> Recorded, enough: impl Fn(&Recorded) -> bool) -> Recorded {
    let mut last = record();
    for _ in 0..4 {
        if enough(&last) {
            break;
        }
        last = record();
    }
    last
}
