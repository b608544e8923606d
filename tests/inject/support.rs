//! What the tests need of the machine, and what /proc says about a process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gdiag::event::Event;
use gdiag::store::Reader;

/// Nothing here takes longer, however busy the machine: after that it hangs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Whether it came true in time.
pub fn becomes_true(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(becomes_true(DEADLINE, condition), "never: {what}");
}

/// For a span that the figures are taken over, or that is only long.
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// One test at a time: each is a machine full of processes.
pub fn machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often everything is done: few times, or as the figures need it.
pub fn rounds() -> usize {
    let given = std::env::var("GDIAG_ROUNDS");
    given.map_or(10, |text| text.parse().expect("GDIAG_ROUNDS is a number"))
}

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf,simgpu, as in CI, it must.
pub fn can_run() -> bool {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("skipped: nothing is injected on this machine");
        return false;
    }
    let root = fs::read_dir("/proc/self/map_files").is_ok();
    let bpf = root && Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(bpf || !required("bpf"), "needs root and BTF");
    let sim = simgpu("victim").exists();
    assert!(sim || !required("simgpu"), "needs `make simgpu`");
    if !bpf || !sim {
        eprintln!("skipped: needs root, BTF and the simulated GPU (make simgpu)");
    }
    bpf && sim
}

/// A file that `make simgpu` makes.
pub fn simgpu(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let dir = std::env::var_os("GDIAG_SIMGPU");
    dir.map_or_else(|| target.join("simgpu"), PathBuf::from)
        .join(name)
}

/// Compiles a C program of these tests, once for each process.
fn compiled(name: &str, source: &str, options: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let fresh = program.with_extension(std::process::id().to_string());
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(cc)
        .args(["-O2", "-pthread", "-o"])
        .arg(&fresh)
        .arg(root.join(source))
        .args(options)
        .status()
        .unwrap();
    assert!(status.success(), "{name} does not compile");
    // In one step: another run of the tests may have it open.
    fs::rename(&fresh, &program).unwrap();
    program
}

/// A library that kills gdiag at a certain call of ptrace and the like.
pub fn killer() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        compiled(
            "killer.so",
            "tests/inject/killer.c",
            &["-shared", "-fPIC", "-ldl"],
        )
    })
}

/// A program without a C library that could be asked for anything.
pub fn without_libc() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("static", "tests/inject/static.c", &["-static"]))
}

/// The program under test.
pub fn gdiag() -> Command {
    let gdiag = std::env::var_os("GDIAG");
    let mut command = Command::new(gdiag.unwrap_or_else(|| env!("CARGO_BIN_EXE_gdiag").into()));
    command.stdin(Stdio::null());
    command
}

/// A gdiag that records.
pub fn recorder(file: &Path, arguments: &[&str]) -> Command {
    let mut command = gdiag();
    command
        .args(["record", "-v", "-o"])
        .arg(file)
        .args(arguments);
    command
}

/// A recording that has ended.
#[derive(Debug)]
pub struct Recording {
    /// `None`: killed by a signal, or it did not end.
    pub status: Option<i32>,
    pub said: String,
}

/// gdiag beside the test, with what it says in a file. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    said: PathBuf,
}

impl Running {
    pub fn start(command: &mut Command, dir: &Path) -> Running {
        let said = dir.join("said");
        let child = command
            .stdout(Stdio::null())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        Running { child, said }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the pid is its.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has said so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits for its end; who does not end is killed, and has no status.
    pub fn end(mut self) -> Recording {
        let ended = becomes_true(DEADLINE, || !self.is_running());
        if !ended {
            let _ = self.child.kill();
        }
        let status = self.child.wait().unwrap();
        Recording {
            status: status.code().filter(|_| ended),
            said: fs::read_to_string(&self.said).unwrap_or_default(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// GPU operations of each process in a recording.
pub fn operations(file: &Path) -> Result<HashMap<u32, usize>, String> {
    let mut found = HashMap::new();
    let mut reader = Reader::open(file).map_err(|e| e.to_string())?;
    reader
        .for_each(|event| {
            if let Event::GpuOp(op) = event {
                *found.entry(op.pid.0).or_default() += 1;
            }
            ControlFlow::Continue(())
        })
        .map_err(|e| e.to_string())?;
    Ok(found)
}

/// What `gdiag report` says in JSON.
pub fn report(file: &Path) -> serde_json::Value {
    let output = gdiag()
        .args(["report", "--json", "-i"])
        .arg(file)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Threads of a process, by their names.
pub fn threads(pid: u32) -> BTreeMap<u32, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let tid = task.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            Some((tid, name.trim_end().to_string()))
        })
        .collect()
}

/// Threads that are stopped or traced, with what the kernel says of them.
pub fn held(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_default().trim().to_string()
            };
            let (state, tracer) = (field("State:"), field("TracerPid:"));
            let bad = state.starts_with(['T', 't']) || tracer != "0";
            bad.then(|| format!("{:?} {state} traced by {tracer}", task.file_name()))
        })
        .collect()
}

/// Open files of a process, by descriptor and what it is.
pub fn descriptors(pid: u32) -> BTreeSet<(String, String)> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"));
    let files = files.into_iter().flatten().flatten();
    files
        .filter_map(|file| {
            let link = fs::read_link(file.path()).ok()?;
            let name = file.file_name().to_string_lossy().into_owned();
            Some((name, link.to_string_lossy().into_owned()))
        })
        .collect()
}

/// What a process has mapped: names, and ranges that can be written and executed.
pub fn mappings(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let name = |line: &str| {
        let mut fields = line.split_whitespace();
        let rights = fields.nth(1)?;
        let name = fields.nth(3).unwrap_or("").to_string();
        let exposed = rights.contains('w') && rights.contains('x');
        (exposed || !name.is_empty()).then(|| if exposed { line.to_string() } else { name })
    };
    maps.lines().filter_map(name).collect()
}

/// CLOCK_MONOTONIC in ns.
pub fn now_ns() -> u64 {
    gdiag::collect::clock::monotonic().0
}

/// Pseudo-random numbers; GDIAG_SEED repeats those of a run.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(what: &str) -> Random {
        let given = std::env::var("GDIAG_SEED").ok();
        let seed = given.map_or_else(now_ns, |text| text.parse().expect("a number")) | 1;
        eprintln!("{what}: GDIAG_SEED={seed}");
        Random(seed)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(1000 * from + self.below(1000 * (to - from) + 1))
    }
}
