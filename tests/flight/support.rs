//! A GPU job, a flight recorder beside it, and what /proc says about both.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

/// Nothing here takes longer, however busy the machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf,simgpu, as in CI, it must.
pub fn can_run() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let bpf = root && Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(bpf || !required("bpf"), "needs root and BTF");
    let sim = simgpu().join("gpuload").exists();
    assert!(sim || !required("simgpu"), "needs `make simgpu`");
    if !bpf || !sim {
        eprintln!("skipped: needs root, BTF and the simulated GPU (make simgpu)");
    }
    bpf && sim
}

fn simgpu() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from)
}

pub fn gdiag() -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "90", env!("CARGO_BIN_EXE_gdiag")])
        .stdin(Stdio::null());
    command
}

/// The exit status, what it wrote to stdout, and to stderr.
pub fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A process that does not outlive the test.
pub struct Process(pub Child);

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Process(
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

    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// A job on the simulated GPU that carries gdiag's library, as a service does.
pub fn job(dir: &Path, arguments: &[&str]) -> Process {
    let output = gdiag().args(["shim", "install"]).arg(dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut command = Command::new(simgpu().join("gpuload"));
    command
        .args(arguments)
        .env("CUDA_INJECTION64_PATH", dir.join("libgdiag_cupti.so"));
    let job = Process::start(&mut command);
    wait_until("the job carries the library", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", job.pid())).unwrap();
        tasks.flatten().any(|task| {
            fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|comm| comm.starts_with("gdiag-shim"))
        })
    });
    job
}

/// A flight recorder that does not outlive the test.
pub struct Recorder {
    pub name: String,
    pub pid: u32,
}

pub fn new_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{number}", std::process::id())
}

impl Recorder {
    pub fn start(arguments: &[&str]) -> Recorder {
        let name = new_name();
        let output = gdiag()
            .args(["start", "--name", &name])
            .args(arguments)
            .output()
            .unwrap();
        let (status, line, errors) = said(&output);
        assert_eq!(status, Some(0), "{errors}");
        Recorder::named(name, &line)
    }

    /// The one that said `line` when it was started.
    pub fn named(name: String, line: &str) -> Recorder {
        assert!(
            line.starts_with(&format!("gdiag: flight recorder '{name}' runs (pid ")),
            "{line}"
        );
        let (_, rest) = line.split_once("(pid ").unwrap();
        let pid = rest.split(')').next().unwrap().parse().unwrap();
        Recorder { name, pid }
    }

    pub fn ask(&self, command: &str, arguments: &[impl AsRef<OsStr>]) -> Output {
        let mut gdiag = gdiag();
        gdiag.args([command, "--name", &self.name]).args(arguments);
        gdiag.output().unwrap()
    }

    /// `None` when it does not run.
    pub fn stat(&self) -> Option<Value> {
        loop {
            let output = self.ask("stat", &["--json"]);
            match said(&output) {
                (Some(0), out, _) => return Some(serde_json::from_str(&out).unwrap()),
                (Some(3), _, _) => return None,
                // At that very moment.
                (Some(1), _, errors) if errors.contains("ended before it answered") => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn is_gone(&self) -> bool {
        is_gone(self.pid)
    }

    /// Kinds and ids of the BPF objects that it has open.
    pub fn bpf_objects(&self) -> BTreeSet<(&'static str, u32)> {
        let mut objects = BTreeSet::new();
        for entry in fs::read_dir(format!("/proc/{}/fdinfo", self.pid))
            .unwrap()
            .flatten()
        {
            let Ok(text) = fs::read_to_string(entry.path()) else {
                continue;
            };
            for line in text.lines() {
                for kind in ["prog", "map", "link"] {
                    if let Some(id) = line.strip_prefix(&format!("{kind}_id:")) {
                        objects.insert((kind, id.trim().parse().unwrap()));
                    }
                }
            }
        }
        objects
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.pid).unwrap());
        if !self.is_gone() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

/// Ended; nobody may have asked for its status.
fn is_gone(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])),
    }
}

/// Those that the kernel has, of all programs.
pub fn kernel_objects() -> BTreeSet<(&'static str, u32)> {
    let programs = ProgInfoIter::default().map(|prog| ("prog", prog.id));
    let maps = MapInfoIter::default().map(|map| ("map", map.id));
    let links = LinkInfoIter::default().map(|link| ("link", link.id));
    programs.chain(maps).chain(links).collect()
}

/// The report of a recording.
pub fn report(path: &Path) -> Value {
    let output = gdiag()
        .args(["report", "--json", "--gaps", "all", "-i"])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn length(report: &Value) -> Duration {
    let at = |name: &str| report["recording"][name].as_u64().unwrap();
    Duration::from_nanos(at("end_ns") - at("start_ns"))
}
