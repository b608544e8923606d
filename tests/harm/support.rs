//! Processes whose result is known, a gdiag beside them, and what /proc says about both.

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use gdiag::event::{Define, Event, Exit, GpuOp, LossSource, NameId, Pid, ShimState, Task};
use gdiag::store::{Reader, StoreError};
use gdiag_shim_layout::{state, Control, MEMFD_NAME};

/// Nothing here takes longer, however busy the machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Status of a program of tests/programs/harmed that nothing disturbed.
pub const UNHARMED: i32 = 42;

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A recording of the whole machine takes the shims of other tests for its own: it holds this alone.
static MACHINE: RwLock<()> = RwLock::new(());

pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf,simgpu, as in CI, it must.
pub fn can_run() -> bool {
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

fn simgpu() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from)
}

/// Compiles a C program of this repository, once for each process.
fn compiled(name: &str, sources: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let fresh = program.with_extension(std::process::id().to_string());
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(cc)
        .args(["-O2", "-pthread", "-o"])
        .arg(&fresh)
        .args(sources.iter().map(|source| root.join(source)))
        .arg(format!("-Wl,-rpath,{}", simgpu().display()))
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(status.success(), "{name} does not compile");
    // In one step: another run of the tests may have it open.
    fs::rename(&fresh, &program).unwrap();
    program
}

/// A GPU job that says what it did.
pub fn harmed() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let sources = [
            "tests/programs/harmed/harmed.c",
            "tests/programs/gpuload/gpu.c",
        ];
        compiled("harmed", &sources)
    })
}

/// Context switches at the highest rate.
pub fn hostload() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("hostload", &["tests/bench/hostload.c"]))
}

/// The library that a service carries, as `gdiag shim install` writes it.
pub fn installed_shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("harm-shim");
        let output = gdiag()
            .args(["shim", "install"])
            .arg(&dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let files = fs::read_dir(dir).unwrap().flatten().map(|e| e.path());
        files.into_iter().next().unwrap()
    })
}

pub fn gdiag() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    command.stdin(Stdio::null());
    command
}

/// A process that does not outlive the test.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Process {
            child: command.spawn().unwrap(),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so the pid is its.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, and gives what it printed.
    pub fn end(mut self) -> Output {
        drop(self.child.stdin.take());
        wait_until("the process ends", || !self.is_running());
        let status = self.child.wait().unwrap();
        let read = |pipe: Option<&mut dyn std::io::Read>| {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                pipe.read_to_end(&mut bytes).unwrap();
            }
            bytes
        };
        Output {
            status,
            stdout: read(self.child.stdout.as_mut().map(|p| p as _)),
            stderr: read(self.child.stderr.as_mut().map(|p| p as _)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gdiag that records.
pub fn recorder(file: &Path, arguments: &[&str]) -> Command {
    let mut command = gdiag();
    command.arg("record").arg("-o").arg(file).args(arguments);
    command
}

/// Whether a recording has begun: the file is made when everything is attached.
pub fn has_begun(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|m| m.len() > 0)
}

/// The beginning of a shim's memory, without mapping it: it may be hostile.
#[derive(Debug)]
pub struct Shared(fs::File);

impl Shared {
    pub fn of(pid: u32) -> Option<Shared> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let name = format!("/memfd:{MEMFD_NAME} (deleted)");
        let line = maps.lines().find(|line| line.ends_with(&name))?;
        let range = line.split(' ').next()?;
        let file = fs::File::open(format!("/proc/{pid}/map_files/{range}")).ok()?;
        Some(Shared(file))
    }

    fn u32(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, offset as u64).unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// One of [`state`].
    pub fn state(&self) -> u32 {
        self.u32(std::mem::offset_of!(Control, state))
    }

    pub fn is_dormant(&self) -> bool {
        [state::DORMANT, state::PAUSED].contains(&self.state())
    }
}

/// Whether no thread of the process is stopped, by a signal or a tracer.
pub fn is_unstopped(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('T' | 't'))
    })
}

pub fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Orphans become children of the test, which can wait for them then.
pub fn adopt_orphans() {
    // SAFETY: changes who reaps, nothing else.
    let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    assert_eq!(result, 0);
}

/// Whether an adopted process has ended; `reap` takes its status.
pub fn has_ended(pid: u32) -> bool {
    // SAFETY: the structure is ours, and zero is a valid value of it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let result = libc::waitid(libc::P_PID, pid, &mut info, flags);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        assert_eq!(result, 0, "not adopted: {status:?}");
        info.si_pid() != 0
    }
}

/// Waits for an adopted process.
pub fn reap(pid: u32) -> ExitStatus {
    let mut status = 0;
    wait_until("the orphan ends", || {
        // SAFETY: the status is ours.
        unsafe { libc::waitpid(pid as i32, &mut status, libc::WNOHANG) == pid as i32 }
    });
    ExitStatus::from_raw(status)
}

/// kB of a line of /proc/PID/status, such as `VmRSS`.
pub fn memory_kb(pid: u32, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = status.lines().find_map(|l| l.strip_prefix(line));
    value
        .and_then(|v| {
            v.trim_start_matches(':')
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// What `harmed` wrote down: CLOCK_MONOTONIC and launches so far, after each of its steps.
pub fn steps(log: &Path) -> Vec<(u64, u64)> {
    let bytes = fs::read(log).unwrap_or_default();
    let word = |b: &[u8]| u64::from_ne_bytes(b.try_into().unwrap());
    bytes
        .chunks_exact(16)
        .map(|entry| (word(&entry[..8]), word(&entry[8..])))
        .collect()
}

/// What is in a recording.
#[derive(Debug, Default)]
pub struct Recorded {
    pub ops: Vec<GpuOp>,
    pub states: Vec<(Pid, ShimState, u64)>,
    pub names: HashMap<NameId, String>,
    /// What BPF lost: CPU, how many, from, to.
    pub bpf_losses: Vec<(u16, u64, u64, u64)>,
    pub tasks: Vec<Task>,
    pub exits: Vec<Exit>,
    pub whole: bool,
}

impl Recorded {
    pub fn read(path: &Path) -> Result<Recorded, StoreError> {
        let mut reader = Reader::open(path)?;
        let mut recorded = Recorded::default();
        reader.for_each(|event| {
            match event {
                Event::GpuOp(op) => recorded.ops.push(*op),
                Event::Shim(shim) => recorded.states.push((shim.pid, shim.state, shim.ts.0)),
                Event::Define(Define::Name { id, text }) => {
                    recorded.names.insert(*id, text.clone());
                }
                Event::Loss(loss) => {
                    if let LossSource::Bpf(cpu) = loss.source {
                        let (from, to) = (loss.from.0, loss.to.0);
                        recorded.bpf_losses.push((cpu.0, loss.count, from, to));
                    }
                }
                Event::Task(task) => recorded.tasks.push(task.clone()),
                Event::Exit(exit) => recorded.exits.push(*exit),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        recorded.whole = reader.coverage().is_whole();
        Ok(recorded)
    }

    pub fn bpf_lost(&self) -> u64 {
        self.bpf_losses.iter().map(|loss| loss.1).sum()
    }

    pub fn ops_of(&self, pid: u32) -> impl Iterator<Item = &GpuOp> {
        self.ops.iter().filter(move |op| op.pid.0 == pid)
    }
}

/// What `gdiag report` says in JSON.
pub fn report(file: &Path) -> serde_json::Value {
    let output = gdiag()
        .args(["report", "--json", "--gaps", "all", "-i"])
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Pseudo-random numbers that are the same in every run.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
