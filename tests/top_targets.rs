//! Targets that come while `gdiag top` runs: CUDA processes are found, and added to what runs already. Needs
//! root, BTF and `make simgpu`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{mpsc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gdiag::analyse::sched::Who;
use gdiag::analyse::syscalls::Summary;
use gdiag::collect::bpf::Plan;
use gdiag::collect::cuda_processes::{Changes, CudaProcesses};
use gdiag::collect::shims::DRIVER_THREAD;
use gdiag::collect::{process, stacks};
use gdiag::event::{Event, Pid, TaskReason, Tid};
use gdiag::pipeline::machine::{self, Machine};
use gdiag::pipeline::Session;
use gdiag::units::Nanos;

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf,simgpu, as in CI, it must.
fn can_run() -> bool {
    let root = std::fs::read_dir("/proc/self/map_files").is_ok();
    let bpf = root && Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(bpf || !required("bpf"), "needs root and BTF");
    let sim = gpuload().exists();
    assert!(sim || !required("simgpu"), "needs `make simgpu`");
    if !bpf || !sim {
        eprintln!("skipped: needs root, BTF and the simulated GPU (make simgpu)");
    }
    bpf && sim
}

fn gpuload() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let dir = std::env::var_os("GDIAG_SIMGPU");
    dir.map_or_else(|| target.join("simgpu"), PathBuf::from)
        .join("gpuload")
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that does not outlive the test.
struct Background(Child);

impl Background {
    fn start(command: &mut Command) -> Background {
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        Background(command.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Says each line that it is told, with one write.
struct Echo {
    process: Background,
    input: std::process::ChildStdin,
    output: BufReader<std::process::ChildStdout>,
}

impl Echo {
    fn start() -> Echo {
        Echo::of("while read line; do echo $line; done")
    }

    fn of(script: &str) -> Echo {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Echo {
            process: Background(child),
            input,
            output,
        }
    }

    fn write(&mut self, times: u32) {
        for _ in 0..times {
            self.input.write_all(b"a\n").unwrap();
            self.output.read_line(&mut String::new()).unwrap();
        }
    }
}

/// Programs that this process has attached.
fn links() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter(|file| file.to_string_lossy().contains("bpf_link"))
        .count()
}

/// What a process has is counted: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU job that goes on until it is killed.
fn job() -> Command {
    let mut command = Command::new(gpuload());
    command.args(["--seconds", "120"]).stdin(Stdio::null());
    command
}

fn pids(processes: &[gdiag::collect::cuda_processes::CudaProcess]) -> Vec<u32> {
    processes.iter().map(|p| p.pid).collect()
}

/// Looks until a process came, or went.
fn look_for(finder: &mut CudaProcesses, pid: u32, what: &str, side: impl Fn(&Changes) -> Vec<u32>) {
    wait_until(what, || side(&finder.look().unwrap()).contains(&pid));
}

#[test]
fn a_process_is_found_when_it_begins_to_use_cuda_and_no_more_when_it_ends() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let mut finder = CudaProcesses::start().unwrap();
    finder.look().unwrap();
    // The same process before and after.
    let mut process = Background::start(
        Command::new("sh")
            .args(["-c", r#"read line; exec "$0" --seconds 120"#])
            .arg(gpuload())
            .stdin(Stdio::piped()),
    );
    let pid = process.pid();
    assert!(!pids(&finder.look().unwrap().came).contains(&pid));
    drop(process.0.stdin.take());
    look_for(&mut finder, pid, "it is found", |c| pids(&c.came));
    assert!(!pids(&finder.look().unwrap().came).contains(&pid));
    let found = finder.all().find(|p| p.pid == pid).unwrap();
    assert_eq!(found.comm, "gpuload");
    process.end();
    look_for(&mut finder, pid, "it is gone", |c| pids(&c.gone));
    assert!(finder.all().all(|p| p.pid != pid));
}

#[test]
fn a_process_in_a_namespace_of_its_own_has_the_pid_that_gdiag_sees() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let mut finder = CudaProcesses::start().unwrap();
    let parent = Background::start(
        Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child"])
            .arg(gpuload())
            .args(["--seconds", "120"])
            .stdin(Stdio::null()),
    );
    wait_until("it is found", || {
        finder.look().unwrap();
        let mut all = finder.all();
        all.any(|p| p.comm == "gpuload" && process::parent(p.pid) == Some(parent.pid()))
    });
}

#[test]
fn gdiag_is_no_process_that_uses_cuda() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let mut finder = CudaProcesses::start().unwrap();
    let (end, ended) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let thread = std::thread::Builder::new().name(DRIVER_THREAD.to_string());
    let thread = thread.spawn(move || {
        begin.send(()).unwrap();
        let _ = ended.recv();
    });
    begun.recv().unwrap();
    finder.look().unwrap();
    assert!(finder.all().all(|p| p.pid != std::process::id()));
    drop(end);
    thread.unwrap().join().unwrap();
}

fn plan() -> Plan {
    Plan {
        all: false,
        targets: Vec::new(),
        cgroups: Vec::new(),
        strangers: Vec::new(),
        scheduling: true,
        wait_threshold: Nanos::from_micros(100),
        syscalls: None,
        stacks: Some(stacks::Plan {
            frequency: 99,
            launch_one_in: 0,
        }),
        inject: true,
        libbpf_messages: false,
    }
}

/// What is expected of a target, once each of it was seen.
#[derive(Default)]
struct Seen {
    /// Of the target, as often as they were introduced.
    threads: Vec<Tid>,
    described: bool,
    switches: u64,
    waits: u64,
    samples: u64,
    calls: u64,
    operations: u64,
}

impl Seen {
    fn add(&mut self, pid: Pid, event: &Event) {
        let is_ours = |tid: &Tid, threads: &[Tid]| threads.contains(tid);
        match event {
            Event::Task(t) if t.target => {
                assert_eq!(t.pid, pid, "nothing else is a target");
                if !matches!(t.reason, TaskReason::Rename | TaskReason::Exec) {
                    self.threads.push(t.tid);
                }
            }
            Event::Process(p) => self.described |= p.pid == pid,
            Event::Switch(s) => self.switches += u64::from(is_ours(&s.next, &self.threads)),
            Event::Wait(w) => self.waits += u64::from(is_ours(&w.tid, &self.threads)),
            Event::Sample(s) => self.samples += u64::from(is_ours(&s.tid, &self.threads)),
            Event::ApiCall(c) => self.calls += u64::from(is_ours(&c.tid, &self.threads)),
            Event::GpuOp(_) => self.operations += 1,
            _ => {}
        }
    }

    fn has_all(&self) -> bool {
        self.described
            && [
                self.switches,
                self.waits,
                self.samples,
                self.calls,
                self.operations,
            ]
            .iter()
            .all(|&n| n > 0)
    }
}

#[test]
fn a_process_that_is_added_is_recorded_like_one_of_the_start() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let mut finder = CudaProcesses::start().unwrap();
    let mut session = Session::start(&plan(), &mut |_| {}).unwrap();
    let mut before = 0;
    session
        .step(&mut |event| {
            before += usize::from(matches!(event, Event::Task(t) if t.target));
        })
        .unwrap();
    assert_eq!(before, 0, "it begins with nothing");

    let job = Background::start(&mut job());
    look_for(&mut finder, job.pid(), "it is found", |c| pids(&c.came));
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let nobody = [ended.id(), std::process::id()];
    let left_out = session
        .add_targets(&[&[job.pid()][..], &nobody].concat())
        .unwrap();
    assert_eq!(left_out, nobody);
    let mut seen = Seen::default();
    let pid = Pid(job.pid());
    session.step(&mut |event| seen.add(pid, &event)).unwrap();
    assert!(!seen.threads.is_empty());
    let again = session.add_targets(&[job.pid()]).unwrap();
    assert!(again.is_empty(), "once more does no harm");
    wait_until("all of it is seen", || {
        session.step(&mut |event| seen.add(pid, &event)).unwrap();
        seen.has_all()
    });
    let each: HashSet<Tid> = seen.threads.iter().copied().collect();
    assert_eq!(
        each.len(),
        seen.threads.len(),
        "each thread is introduced once"
    );
    assert!(session.warnings().is_empty(), "{:?}", session.warnings());
    session.finish(&mut |_| {}).unwrap();
    drop(session);

    // It has the shim now, and nobody asks it.
    let mut session = Session::start(&plan(), &mut |_| {}).unwrap();
    session.add_targets(&[job.pid()]).unwrap();
    let mut seen = Seen::default();
    wait_until("all of it is seen again", || {
        session.step(&mut |event| seen.add(pid, &event)).unwrap();
        seen.has_all()
    });
    assert!(session.injected().is_empty());
    session.finish(&mut |_| {}).unwrap();
}

/// How often each process made a call, by parts added up.
#[derive(Default)]
struct Counted(BTreeMap<(Pid, String), u64>);

impl Counted {
    fn add(&mut self, part: &Summary) {
        for thread in &part.threads {
            let (pid, _) = thread.id.expect("there is room for all");
            for call in &thread.calls {
                *self.0.entry((pid, call.name.clone())).or_default() += call.times.count;
            }
        }
    }

    fn writes(&self, echo: &Echo) -> u64 {
        let key = (Pid(echo.process.pid()), "write".to_string());
        self.0.get(&key).copied().unwrap_or(0)
    }
}

#[test]
fn calls_of_the_targets_are_counted_in_parts_for_as_long_as_that_is_asked() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let (mut echo, mut other) = (Echo::start(), Echo::start());
    let mut session = Session::start(&plan(), &mut |_| {}).unwrap();
    session.add_targets(&[echo.process.pid()]).unwrap();
    assert!(session.call_sums().is_none());
    let before = links();
    for times in [50, 30] {
        session.count_calls(true).unwrap();
        session.count_calls(true).unwrap();
        assert!(links() > before);
        let mut counted = Counted::default();
        for times in [times, 7] {
            let so_far = counted.writes(&echo);
            echo.write(times);
            other.write(3);
            wait_until("all calls are counted", || {
                let part = session.call_sums().unwrap();
                counted.add(&part);
                assert!(part.threads.iter().all(|t| t.comm == "sh"));
                counted.writes(&echo) >= so_far + u64::from(times)
            });
            assert_eq!(counted.writes(&echo), so_far + u64::from(times));
        }
        assert_eq!(counted.writes(&other), 0, "it is no target");
        session.count_calls(false).unwrap();
        assert_eq!(links(), before, "its programs are gone");
        assert!(session.call_sums().is_none());
        echo.write(5);
    }
    session.count_calls(true).unwrap();
    session.finish(&mut |_| {}).unwrap();
    assert!(session.call_sums().is_none());
}

#[test]
fn a_machine_tells_what_happened_in_each_step_and_counts_calls_when_it_is_asked() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let mut echo = Echo::start();
    let mut machine = Machine::start(machine::Plan {
        all: true,
        ..machine::Plan::default()
    })
    .unwrap();
    let pid = Pid(echo.process.pid());
    let is_echo = |who: &Who| who.pid == pid && who.comm == "sh";
    let before = links();
    let mut last = machine.step().unwrap().sched.end;

    for times in [50, 30] {
        machine.count_calls(true).unwrap();
        echo.write(times);
        let (mut counted, mut ran) = (Counted::default(), Nanos::ZERO);
        wait_until("all calls are counted", || {
            machine.keep_up().unwrap();
            let step = machine.step().unwrap();
            assert_eq!(step.sched.start, last, "steps follow one another");
            last = step.sched.end;
            let threads = step.sched.threads.iter().filter(|t| is_echo(&t.who));
            ran += threads.map(|t| t.run).sum::<Nanos>();
            counted.add(&step.calls.unwrap());
            counted.writes(&echo) >= u64::from(times)
        });
        assert_eq!(counted.writes(&echo), u64::from(times));
        assert!(ran > Nanos::ZERO);
        machine.count_calls(false).unwrap();
        assert_eq!(links(), before, "the programs for calls are gone");
        let step = machine.step().unwrap();
        assert!(step.calls.is_none());
        last = step.sched.end;
    }

    // Its end is in one step, and then it is no more.
    echo.process.end();
    wait_until("it is no more", || {
        let step = machine.step().unwrap();
        step.sched.threads.iter().all(|t| !is_echo(&t.who))
    });
    drop(machine);
    assert!(links() < before);
}

#[test]
fn a_machine_looks_at_nobody_but_those_it_is_asked_for() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let (mut echo, mut other) = (Echo::start(), Echo::start());
    let mut machine = Machine::start(machine::Plan {
        targets: vec![echo.process.pid()],
        ..machine::Plan::default()
    })
    .unwrap();
    machine.count_calls(true).unwrap();
    let mut counted = Counted::default();
    echo.write(20);
    other.write(20);
    wait_until("all calls are counted", || {
        let step = machine.step().unwrap();
        let mut targets = step.sched.threads.iter().filter(|t| t.target);
        assert!(targets.all(|t| t.who.pid.0 == echo.process.pid()));
        counted.add(&step.calls.unwrap());
        counted.writes(&echo) >= 20
    });
    assert_eq!((counted.writes(&echo), counted.writes(&other)), (20, 0));
}

#[test]
fn calls_of_a_target_are_counted_when_its_parent_is_gone() {
    if !can_run() {
        return;
    }
    let _alone = alone();
    let mut echo = Echo::of("exec 3<&0; while read line; do echo $line; done <&3 & wait");
    echo.write(1);
    let mut machine = Machine::start(machine::Plan {
        targets: vec![echo.process.pid()],
        ..machine::Plan::default()
    })
    .unwrap();
    echo.write(1);
    let (mut counted, mut child) = (Counted::default(), None);
    wait_until("its child is seen", || {
        let step = machine.step().unwrap();
        let mut targets = step.sched.threads.iter().filter(|t| t.target);
        let other = targets.find(|t| t.who.pid.0 != echo.process.pid());
        child = child.or(other.map(|t| t.who.pid));
        child.is_some()
    });
    echo.process.end();
    machine.count_calls(true).unwrap();
    echo.write(20);
    let key = (child.unwrap(), "write".to_string());
    wait_until("all calls are counted", || {
        counted.add(&machine.step().unwrap().calls.unwrap());
        counted.0.get(&key).is_some_and(|&n| n >= 20)
    });
    assert_eq!(counted.0[&key], 20);
}
