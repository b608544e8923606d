//! `gdiag record` without CUPTI: probes on the driver count every call, of the right process and no other,
//! and leave nothing behind. Needs root, BTF and `make simgpu`.
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gdiag::collect::bpf::{Bpf, Plan};
use gdiag::collect::driver::{DriverProbes, Method, Outcome};
use gdiag::collect::elf::Elf;
use gdiag::event::Pid;
use gdiag::units::Nanos;
use serde_json::Value;

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn simgpu() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from)
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf,simgpu, as in CI, it must.
fn can_run() -> bool {
    let required =
        |need| std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need));
    let root = fs::read_dir("/proc/self/map_files").is_ok();
    let bpf = root && Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(bpf || !required("bpf"), "needs root and BTF");
    let sim = simgpu().join("libcuda.so.1").exists();
    assert!(sim || !required("simgpu"), "needs `make simgpu`");
    if !bpf || !sim {
        eprintln!("skipped: needs root, BTF and the simulated GPU (make simgpu)");
    }
    bpf && sim
}

/// Makes the calls that it is told.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls");
        let fresh = program.with_extension(std::process::id().to_string());
        let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-O2", "-pthread", "-o"])
            .arg(&fresh)
            .arg(root.join("calls/calls.c"))
            .arg(root.join("gpuload/gpu.c"))
            .arg(format!("-Wl,-rpath,{}", simgpu().display()))
            .arg("-ldl")
            .status()
            .unwrap();
        assert!(status.success());
        fs::rename(&fresh, &program).unwrap();
        program
    })
}

/// A process that does not outlive the test.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(command: &mut Command) -> Process {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process {
            child,
            input,
            output,
        }
    }

    /// A GPU job without shim that waits for orders.
    fn job() -> Process {
        let mut job = Process::start(
            Command::new(program())
                .env_remove("CUDA_INJECTION64_PATH")
                .env("GDIAG_SIM_SYNC", "block"),
        );
        job.said("ready");
        job
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&mut self, expected: &str) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), expected);
    }

    fn order(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    fn does(&mut self, what: &str) {
        self.order(what);
        self.said("done");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the pid is its.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first byte of a function of the driver, as it is in the memory of a process.
fn first_byte(pid: u32, function: &str) -> u8 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|l| l.contains("libcuda.so")).unwrap();
    let base = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let driver = Elf::read(File::open(simgpu().join("libcuda.so.1")).unwrap());
    let address = driver.unwrap().unwrap().symbol(function).unwrap().unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut byte = [0];
    memory.read_exact_at(&mut byte, base + address).unwrap();
    byte[0]
}

/// Whether a process has probes; `plain` is what is there without.
fn is_probed(pid: u32, plain: u8) -> bool {
    first_byte(pid, "cuLaunchKernel") != plain
}

fn plain_byte() -> u8 {
    static PLAIN: OnceLock<u8> = OnceLock::new();
    *PLAIN.get_or_init(|| first_byte(Process::job().pid(), "cuLaunchKernel"))
}

struct Recording {
    gdiag: Process,
    file: PathBuf,
    _dir: tempfile::TempDir,
}

impl Recording {
    fn of(pid: u32, arguments: &[&str]) -> Recording {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        let gdiag = Process::start(
            Command::new(env!("CARGO_BIN_EXE_gdiag"))
                .args(["record", "-q", "--no-inject", "-p", &pid.to_string(), "-o"])
                .arg(&file)
                .args(arguments),
        );
        Recording {
            gdiag,
            file,
            _dir: dir,
        }
    }

    fn is_recording(&self) -> bool {
        fs::metadata(&self.file).is_ok_and(|m| m.len() > 0)
    }

    fn end(self) -> Value {
        self.end_with(Recording::report)
    }

    fn end_with<T>(mut self, then: impl FnOnce(&Recording) -> T) -> T {
        self.gdiag.signal(libc::SIGINT);
        let status = self.gdiag.child.wait().unwrap();
        assert!(status.success(), "{status:?}");
        then(&self)
    }

    fn report(&self) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["report", "--json", "-i"])
            .arg(&self.file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn counts(report: &Value) -> BTreeMap<&str, u64> {
    let calls = report["calls"].as_array().unwrap().iter();
    calls
        .map(|c| (c["name"].as_str().unwrap(), c["count"].as_u64().unwrap()))
        .collect()
}

#[test]
fn every_call_is_counted_of_this_process_alone() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let (mut job, mut other) = (Process::job(), Process::job());
    job.does("launch 50");
    let recording = Recording::of(job.pid(), &[]);
    wait_until("it has probes", || is_probed(job.pid(), plain));
    for work in ["launch 2000", "sync 7", "copy 33", "twin 100", "alloc 5"] {
        job.does(work);
    }
    other.does("launch 500");
    assert!(!is_probed(other.pid(), plain));
    let report = recording.end();
    let expected = [
        ("cuLaunchKernel", 2100),
        ("cuMemAlloc_v2", 5),
        ("cuMemFree_v2", 5),
        ("cuMemcpyHtoDAsync_v2", 33),
        ("cuStreamSynchronize", 7),
    ];
    assert_eq!(counts(&report), BTreeMap::from(expected));
    assert_eq!(report["recording"]["gpu_source"], "uprobe");
    assert_eq!(report["gpus"], Value::Array(Vec::new()));
    assert_eq!(report["quality"]["gpu_coverage"], Value::Null);
    assert_eq!(report["quality"]["bpf_lost"], 0);
    assert_eq!(report["calls"][0]["idle_overlap_ns"], Value::Null);
    let said = format!("pid {}: the host's side only", job.pid());
    let warnings = report["quality"]["warnings"].to_string();
    assert!(warnings.contains(&said), "{warnings}");
    let threads = report["threads"].as_array().unwrap().iter();
    let launches = threads.map(|t| t["launches"].as_u64().unwrap());
    assert_eq!(launches.max(), Some(2000));

    // The kernel takes them out when gdiag is gone.
    wait_until("they are out", || !is_probed(job.pid(), plain));
    job.does("launch 10");
}

#[test]
fn a_program_that_loads_the_driver_later_is_found() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let program = program().to_str().unwrap();
    let mut job = Process::start(
        Command::new("sh")
            .args(["-c", &format!("echo shell; read x; exec {program}")])
            .env_remove("CUDA_INJECTION64_PATH"),
    );
    job.said("shell");
    let recording = Recording::of(job.pid(), &[]);
    wait_until("it records", || recording.is_recording());
    job.order("");
    job.said("ready");
    wait_until("it has probes", || is_probed(job.pid(), plain));
    job.does("launch 300");
    let report = recording.end();
    let count = counts(&report).get("cuLaunchKernel").copied();
    assert_eq!(count, Some(300), "{report:#}");
}

#[test]
fn a_shim_that_may_not_record_gives_way_to_probes() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let dir = tempfile::tempdir().unwrap();
    let install = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["shim", "install"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(install.status.success());
    let shim = fs::read_dir(dir.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut job = Process::start(
        Command::new(program())
            .env("CUDA_INJECTION64_PATH", &shim)
            .env("GDIAG_SIM_CUPTI_BUSY", "1"),
    );
    job.said("ready");
    let recording = Recording::of(job.pid(), &[]);
    wait_until("it has probes", || is_probed(job.pid(), plain));
    job.does("launch 120");
    let report = recording.end();
    assert_eq!(counts(&report)["cuLaunchKernel"], 120);
    assert_eq!(report["recording"]["gpu_source"], "uprobe");
    let warnings = report["quality"]["warnings"].to_string();
    assert!(
        warnings.contains("by probes on the CUDA driver"),
        "{warnings}"
    );
}

#[test]
fn a_shim_that_records_has_no_probes_beside_it() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let dir = tempfile::tempdir().unwrap();
    let install = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["shim", "install"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(install.status.success());
    let shim = fs::read_dir(dir.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let mut job = Process::start(Command::new(program()).env("CUDA_INJECTION64_PATH", &shim));
    job.said("ready");
    let recording = Recording::of(job.pid(), &[]);
    wait_until("it records", || recording.is_recording());
    // Until its records come back the shim may not have begun.
    let deadline = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < deadline {
        job.does("launch 10");
        assert!(!is_probed(job.pid(), plain));
    }
    let report = recording.end();
    assert_eq!(report["recording"]["gpu_source"], "simulated");
}

#[test]
fn a_target_that_is_killed_in_a_call_is_told_in_that_call() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let mut job = Process::job();
    let mut recording = Recording::of(job.pid(), &[]);
    wait_until("it has probes", || is_probed(job.pid(), plain));
    job.does("launch 20");
    job.order("hang 600000");
    let wchan = format!("/proc/{}/stat", job.pid());
    // It launches, and then waits for good: it uses no more time of its own.
    let used = || {
        let stat = fs::read_to_string(&wchan).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        (fields[0].to_string(), fields[11].to_string())
    };
    wait_until("it waits", || {
        let before = used();
        std::thread::sleep(Duration::from_millis(100));
        used() == before
    });
    job.child.kill().unwrap();
    job.child.wait().unwrap();
    // With its target the recording ends.
    assert!(recording.gdiag.child.wait().unwrap().success());
    let report = recording.report();
    let counts = counts(&report);
    assert_eq!(counts["cuLaunchKernel"], 21);
    assert_eq!(counts["cuStreamSynchronize"], 1);
    let calls = report["calls"].as_array().unwrap();
    let wait = calls
        .iter()
        .find(|c| c["name"] == "cuStreamSynchronize")
        .unwrap();
    assert!(wait["total_ns"].as_u64() >= Some(90_000_000), "{wait}");
}

/// While a call is probed, it returns to the kernel instead of its caller.
#[test]
fn stacks_go_on_behind_a_probed_call() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let mut job = Process::job();
    let recording = Recording::of(job.pid(), &[]);
    wait_until("it has probes", || is_probed(job.pid(), plain));
    // The first come before gdiag has read how to walk the stack.
    for _ in 0..10 {
        job.does("hang 300");
    }
    recording.end_with(|recording| {
        let folded = recording.file.with_extension("folded");
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["flame", "--folded", "--mode", "offcpu", "-i"])
            .arg(&recording.file)
            .arg("-o")
            .arg(&folded)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = fs::read_to_string(&folded).unwrap();
        let waits = text
            .lines()
            .filter_map(|l| l.split_once(";cuStreamSynchronize;"));
        let callers: Vec<&str> = waits.map(|(callers, _)| callers).collect();
        let whole = |callers: &&str| callers.contains(";main");
        assert!(callers.iter().any(whole), "{text}");
        let cut = |callers: &&str| callers.contains("code in no file");
        assert!(!callers.iter().any(cut), "{text}");
    });
}

#[test]
fn a_killed_gdiag_takes_its_probes_with_it() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    let mut job = Process::job();
    for _ in 0..3 {
        let mut recording = Recording::of(job.pid(), &[]);
        wait_until("it has probes", || is_probed(job.pid(), plain));
        job.order("launch 20000");
        recording.gdiag.signal(libc::SIGKILL);
        recording.gdiag.child.wait().unwrap();
        job.said("done");
        wait_until("the probes are gone", || !is_probed(job.pid(), plain));
    }
    job.does("launch 100");
    job.does("sync 1");
    // It ends at what it does not know, and says so.
    job.order("end 0");
    assert_eq!(job.child.wait().unwrap().code(), Some(1));
}

/// What older kernels can do, this one can too.
#[test]
fn every_way_of_probing_sees_the_same_calls() {
    if !can_run() {
        return;
    }
    let plain = plain_byte();
    for method in [Method::Session, Method::Many, Method::Each] {
        let mut job = Process::job();
        let plan = Plan {
            all: false,
            targets: vec![job.pid()],
            scheduling: true,
            syscalls: None,
            wait_threshold: Nanos::from_micros(100),
            stacks: None,
            cgroups: Vec::new(),
            strangers: Vec::new(),
            inject: false,
            libbpf_messages: false,
        };
        let calls: Rc<RefCell<BTreeMap<u32, u64>>> = Rc::default();
        let seen = Rc::clone(&calls);
        let mut bpf = Bpf::start(&plan, move |bytes| {
            let word =
                |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
            // GDIAG_REC_CALL
            if word(0) == Some(12) {
                *seen.borrow_mut().entry(word(28).unwrap()).or_default() += 1;
            }
        })
        .unwrap();
        let mut probes = DriverProbes::start_with(&bpf, method).unwrap();
        let pid = Pid(job.pid());
        probes.watch(pid, job.pid(), true);
        let mut outcomes = Vec::new();
        wait_until("an answer", || {
            outcomes.extend(probes.answers().into_iter().map(|a| a.outcome));
            !outcomes.is_empty()
        });
        assert!(
            matches!(outcomes[..], [Outcome::Probed(n)] if n > 20),
            "{method:?}: {outcomes:?}"
        );
        for work in ["launch 100", "sync 3", "copy 5", "fork 7", "twin 10"] {
            job.does(work);
        }
        probes.finish();
        bpf.read().unwrap();
        let expected = [(126, 3), (277, 5), (307, 110)];
        assert_eq!(*calls.borrow(), BTreeMap::from(expected), "{method:?}");
        probes.stop(pid);
        wait_until("they are out", || !is_probed(job.pid(), plain));
        job.does("launch 5");
        bpf.read().unwrap();
        assert_eq!(calls.borrow()[&307], 110, "{method:?}");
    }
}

#[test]
fn a_process_without_driver_has_nothing_to_probe() {
    if !can_run() {
        return;
    }
    let mut other = Process::start(Command::new("cat").env_clear());
    other.order("x");
    other.said("x");
    let plan = Plan {
        all: false,
        targets: vec![other.pid()],
        scheduling: true,
        syscalls: None,
        wait_threshold: Nanos::from_micros(100),
        stacks: None,
        cgroups: Vec::new(),
        strangers: Vec::new(),
        inject: false,
        libbpf_messages: false,
    };
    let bpf = Bpf::start(&plan, |_| {}).unwrap();
    let mut probes = DriverProbes::start(&bpf).unwrap();
    let mut outcomes = Vec::new();
    for proc_pid in [other.pid(), u32::MAX] {
        probes.watch(Pid(proc_pid), proc_pid, false);
    }
    wait_until("answers", || {
        outcomes.extend(probes.answers().into_iter().map(|a| a.outcome));
        outcomes.len() == 2
    });
    assert!(matches!(outcomes[0], Outcome::Nothing), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Failed(_)), "{outcomes:?}");
}
