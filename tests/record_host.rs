//! `gdiag record` on this kernel: real BPF, real faults, no GPU. Needs root.
//!
//! Each test makes one recording of a program whose behaviour is known and checks many things in it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gdiag::collect::process;
use gdiag::event::{
    Context, Define, Event, NameId, Process, Role, StackId, StallKind, Switch, SwitchFlags, Task,
    TaskReason, Tid, Wait,
};
use gdiag::store::Reader;
use gdiag::units::Nanos;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf, as in CI, it must.
fn can_record() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| {
        use std::os::unix::fs::MetadataExt;
        m.uid() == 0
    });
    let can = root && Path::new("/sys/kernel/btf/vmlinux").exists();
    let required = std::env::var("GDIAG_REQUIRE").is_ok_and(|v| v.split(',').any(|n| n == "bpf"));
    assert!(
        can || !required,
        "GDIAG_REQUIRE=bpf, but this needs root and BTF"
    );
    if !can {
        eprintln!("skipped: needs root and BTF");
    }
    can
}

/// A recording, with its definitions resolved.
struct Recorded {
    events: Vec<Event>,
    names: HashMap<NameId, String>,
    stacks: HashMap<StackId, Vec<String>>,
    _dir: tempfile::TempDir,
}

impl Recorded {
    fn read(dir: tempfile::TempDir, path: &Path) -> Recorded {
        let mut reader = Reader::open(path).unwrap();
        let mut recorded = Recorded {
            events: Vec::new(),
            names: HashMap::new(),
            stacks: HashMap::new(),
            _dir: dir,
        };
        reader
            .for_each(|event| {
                match event {
                    Event::Define(Define::Name { id, text }) => {
                        recorded.names.insert(*id, text.clone());
                    }
                    Event::Define(Define::Stack { id, frames }) => {
                        let frames = frames.iter().map(|f| recorded.names[f].clone()).collect();
                        recorded.stacks.insert(*id, frames);
                    }
                    other => recorded.events.push(other.clone()),
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(reader.coverage().is_whole());
        recorded
    }

    fn name(&self, id: NameId) -> &str {
        self.names.get(&id).map_or("", String::as_str)
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.events.iter().filter_map(|e| match e {
            Event::Task(t) => Some(t),
            _ => None,
        })
    }

    fn task(&self, comm: &str) -> &Task {
        self.tasks()
            .find(|t| t.target && self.name(t.comm) == comm)
            .unwrap_or_else(|| panic!("no thread is named {comm}"))
    }

    fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.events.iter().filter_map(|e| match e {
            Event::Switch(s) => Some(s),
            _ => None,
        })
    }

    /// The longest wait of a thread.
    fn longest_wait(&self, tid: Tid) -> (&Wait, &[String]) {
        let wait = self
            .events
            .iter()
            .filter_map(|e| match e {
                Event::Wait(w) if w.tid == tid => Some(w),
                _ => None,
            })
            .max_by_key(|w| w.end.saturating_sub(w.start))
            .expect("the thread waited");
        (wait, &self.stacks[&wait.stack])
    }

    /// A thread of the target with a switch or a waking that BPF did not see. Some sandboxes hide from it
    /// whatever happens while a thread of their init is current.
    fn hidden(&self) -> Option<String> {
        for tid in self.tasks().filter(|t| t.target).map(|t| t.tid) {
            let mut switches: Vec<(Nanos, bool)> = self
                .switches()
                .filter(|s| s.prev == tid || s.next == tid)
                .map(|s| (s.ts, s.next == tid))
                .collect();
            switches.sort_unstable();
            if let Some(two) = switches.windows(2).find(|two| two[0].1 == two[1].1) {
                return Some(format!("a switch of {tid} before {:?}", two[1].0));
            }
        }
        let woken = |w: &Wait| {
            let wakes =
                |e: &Event| matches!(e, Event::Waking(k) if k.wakee == w.tid && k.ts == w.end);
            self.events.iter().any(wakes)
        };
        self.events.iter().find_map(|e| match e {
            Event::Wait(w) if !woken(w) => Some(format!("the waking of {} at {:?}", w.tid, w.end)),
            _ => None,
        })
    }

    fn process(&self, cmdline: &str) -> &Process {
        self.events
            .iter()
            .find_map(|e| match e {
                Event::Process(p) if self.name(p.cmdline) == cmdline => Some(p),
                _ => None,
            })
            .expect("the process is described")
    }
}

fn record(arguments: &[&str]) -> (Output, tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.data");
    let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .arg("record")
        .arg("-o")
        .arg(&path)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output, dir, path)
}

/// A recording in which nothing was hidden from BPF, or the last of some that were tried.
fn recorded(arguments: &[&str]) -> Recorded {
    const TRIES: usize = 5;
    let mut tries = (1..=TRIES).map(|_| {
        let (output, dir, path) = record(arguments);
        assert!(output.status.success(), "{output:?}");
        Recorded::read(dir, &path)
    });
    let mut recorded = tries.next().unwrap();
    while let Some(hidden) = recorded.hidden() {
        eprintln!("hidden from BPF: {hidden}");
        let Some(next) = tries.next() else { break };
        recorded = next;
    }
    recorded
}

fn send(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
    kill(pid, signal).unwrap();
}

/// A background process that does not outlive the test.
struct Background(Child);

impl Background {
    fn start(program: &str, arguments: &[&str]) -> Background {
        Background(
            Command::new(program)
                .args(arguments)
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Waits until the process sleeps, so that it has got to its long wait.
    fn asleep(self) -> Background {
        let stat = format!("/proc/{}/stat", self.0.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !std::fs::read_to_string(&stat).is_ok_and(|s| s.contains(") S ")) {
            assert!(Instant::now() < deadline, "it never slept");
            std::thread::yield_now();
        }
        self
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_sleeping_command_is_followed_from_fork_to_exit() {
    if !can_record() {
        return;
    }
    let r = recorded(&["--", "sh", "-c", "sleep 0.2; exit 0"]);

    let sleep = r
        .tasks()
        .find(|t| t.target && r.name(t.comm) == "sleep" && t.reason == TaskReason::Exec)
        .expect("the exec of sleep was seen");
    assert_eq!(sleep.tid.0, sleep.pid.0);
    let shell = r.task("sh");
    assert_eq!(sleep.ppid, shell.pid);
    assert!(r
        .tasks()
        .any(|t| t.reason == (TaskReason::New { parent: shell.tid }) && t.tid == sleep.tid));
    assert!(r
        .events
        .iter()
        .any(|e| matches!(e, Event::Exit(x) if x.tid == sleep.tid && x.code == 0)));

    let (wait, stack) = r.longest_wait(sleep.tid);
    let ms = wait.end.saturating_sub(wait.start).0 / 1_000_000;
    assert!((200..2000).contains(&ms), "slept {ms} ms");
    assert!(stack.iter().any(|f| f.contains("nanosleep")), "{stack:?}");
    assert!(!stack.contains(&"__schedule".to_string()), "{stack:?}");
    assert!(
        [Some(35), Some(230)].contains(&wait.syscall),
        "nanosleep or clock_nanosleep, not {:?}",
        wait.syscall
    );
    // It is the timer that ended it, and not whatever ran on that CPU.
    assert!(r.events.iter().any(|e| {
        matches!(e, Event::Waking(w) if w.wakee == sleep.tid && w.ts == wait.end && w.context == Context::Timer)
    }));
    // The shell was woken by the death of its child.
    let (wait, stack) = r.longest_wait(shell.tid);
    assert!(stack.iter().any(|f| f.contains("do_wait")), "{stack:?}");
    assert!(r.events.iter().any(|e| {
        matches!(e, Event::Waking(w) if w.wakee == shell.tid && w.ts == wait.end
            && w.waker == sleep.tid && w.context == Context::Task)
    }));
    assert_eq!(r.process("sleep 0.2").pid, sleep.pid);
}

/// A shell counts on the CPU that a program outside of the recording wants as well.
fn contest_for_cpu_0() -> (Background, Recorded) {
    let hog = Background::start("taskset", &["-c", "0", "sh", "-c", "while :; do :; done"]);
    let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let r = recorded(&["--", "taskset", "-c", "0", "sh", "-c", count]);
    (hog, r)
}

#[test]
fn whoever_took_the_cpu_is_named() {
    if !can_record() {
        return;
    }
    let (hog, r) = contest_for_cpu_0();

    let worker = r
        .tasks()
        .find(|t| t.target && r.name(t.comm) == "sh")
        .expect("the worker was seen");
    let pinned = r
        .tasks()
        .find(|t| t.tid == worker.tid && t.reason == TaskReason::Exec && r.name(t.comm) == "sh")
        .expect("its exec was seen")
        .ts;
    let on_cpu0: Vec<&Switch> = r
        .switches()
        .filter(|s| s.cpu.0 == 0 && s.ts > pinned)
        .collect();
    let preempted: Vec<&Switch> = on_cpu0
        .iter()
        .copied()
        .filter(|s| s.prev == worker.tid && s.state == 0)
        .collect();
    let in_user_space = preempted.iter().filter(|s| s.syscall.is_none()).count();
    assert!(
        in_user_space > 3,
        "it shared its CPU and was preempted {in_user_space} times"
    );
    assert!(preempted
        .iter()
        .all(|s| !s.flags.has(SwitchFlags::THROTTLED)));
    // It may have been seen before it became a shell; and others may want the CPU, too.
    let hog = r
        .tasks()
        .filter(|t| !t.target && t.pid.0 == hog.0.id())
        .last()
        .expect("the hog was introduced");
    assert_eq!(r.name(hog.comm), "sh");
    assert!(
        on_cpu0.iter().any(|s| s.next == hog.tid),
        "the hog took over"
    );
    // All that ran there while the worker waited is recorded: the switches of its CPU are a chain.
    // Some sandboxes hide from BPF what their init does; what follows it cannot be judged.
    let init: Vec<Tid> = r.tasks().filter(|t| t.pid.0 == 1).map(|t| t.tid).collect();
    let mut waiting = false;
    let mut current = None;
    for s in on_cpu0 {
        if waiting && !current.is_some_and(|tid| init.contains(&tid)) {
            assert_eq!(current, Some(s.prev), "at {:?}", s.ts);
        }
        current = Some(s.next);
        waiting = (waiting || (s.prev == worker.tid && s.state == 0)) && s.next != worker.tid;
    }
}

/// What is known of a thread beyond its name: its waits.
fn waits_of(r: &Recorded, pid: u32) -> usize {
    let tids: Vec<Tid> = r
        .tasks()
        .filter(|t| t.pid.0 == pid)
        .map(|t| t.tid)
        .collect();
    let of = |e: &&Event| matches!(e, Event::Wait(w) if tids.contains(&w.tid));
    r.events.iter().filter(of).count()
}

#[test]
fn whoever_wakes_the_target_is_followed() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fifo = fifo.to_str().unwrap();
    // Two processes, of which the second begins when somebody reads, and waits for the first between two
    // lines: that one is no target either.
    let writer = format!(
        "while :; do sleep 0.02; echo line; done | while read line; do echo $line; done >{fifo}"
    );
    let writer = Background::start("sh", &["-c", &writer]);
    let stranger = Background::start("sh", &["-c", "while :; do sleep 0.02; done"]);
    // The first lines are there already, written while nobody read.
    let reader = format!("i=0; while [ $i -lt 80 ]; do read line; i=$((i+1)); done <{fifo}");
    let r = recorded(&["--", "sh", "-c", &reader]);

    let followed = |t: &&Task| t.reason == TaskReason::Followed;
    let first = r
        .tasks()
        .find(|t| followed(t) && t.ppid.0 == writer.0.id())
        .expect("the writer is followed");
    assert!(!first.target);
    let waits = waits_of(&r, first.pid.0);
    assert!(waits >= 4, "{waits} waits of the writer");
    // One hop further back: whoever ends a wait of the writer.
    assert!(
        r.tasks()
            .any(|t| followed(&t) && t.ppid == first.ppid && t.pid != first.pid),
        "whoever wakes the writer is followed"
    );
    assert!(!r
        .tasks()
        .any(|t| t.pid.0 == stranger.0.id() && followed(&t)));
    assert_eq!(waits_of(&r, stranger.0.id()), 0);
}

#[test]
fn yields_that_nobody_makes_use_of_are_seen() {
    if !can_record() {
        return;
    }
    let script = "import os, time\nend = time.monotonic() + 0.2\nwhile time.monotonic() < end: os.sched_yield()\ntime.sleep(0.05)";
    // Where another thread wants the CPU, a yield is a switch: other tests may, all the time.
    let enough = (0..5).any(|_| {
        let r = recorded(&["--", "nice", "-n", "-10", "python3", "-c", script]);
        let python = r
            .tasks()
            .find(|t| t.target && r.name(t.comm).starts_with("python"))
            .expect("it was seen");
        let yields = r.events.iter().filter_map(|e| match e {
            Event::Stall(s) if s.kind == StallKind::Yields => Some(*s),
            _ => None,
        });
        let ms: u64 = yields
            .inspect(|s| assert_eq!(s.tid, python.tid))
            .map(|s| s.dur.0)
            .sum::<u64>()
            / 1_000_000;
        assert!(ms <= 210, "{ms} ms of yields in 200");
        ms >= 50
    });
    assert!(enough, "few yields were seen");
}

#[test]
fn a_long_wait_for_a_cpu_says_where_it_might_have_run() {
    if !can_record() {
        return;
    }
    let (_hog, r) = contest_for_cpu_0();
    let online = std::thread::available_parallelism().unwrap().get();
    let waits: Vec<_> = r
        .events
        .iter()
        .filter_map(|e| match e {
            Event::CpuWait(w) if w.allowed == 1 => Some(*w),
            _ => None,
        })
        .collect();
    assert!(waits.len() > 3, "{} waits for CPU 0", waits.len());
    for w in &waits {
        assert!(w.end.saturating_sub(w.start).0 >= 1_000_000, "{w:?}");
        assert!(usize::from(w.online) >= online);
        assert!(w.idle < w.online, "{w:?}");
        // It was ready at the moment when another took its CPU, or it was woken.
        assert!(r.events.iter().any(|e| match e {
            Event::Switch(s) => s.prev == w.tid && s.ts == w.start,
            Event::Waking(k) => k.wakee == w.tid && k.ts == w.start,
            _ => false,
        }));
    }
}

#[test]
fn a_stop_says_who_sent_it() {
    if !can_record() {
        return;
    }
    let r = recorded(&[
        "--",
        "sh",
        "-c",
        "sleep 5 & p=$!; sleep 0.1; kill -STOP $p; sleep 0.2; kill -CONT $p; sleep 0.05; kill $p; wait",
    ]);
    let shell = r.task("sh").tid;
    let stopped = r
        .switches()
        .find(|s| s.state & 0x4 != 0)
        .expect("something was switched out in T");
    let signals: Vec<(u8, Tid)> = r
        .events
        .iter()
        .filter_map(|e| match e {
            Event::Signal(s) if s.receiver == stopped.prev => Some((s.signal, s.sender)),
            _ => None,
        })
        .collect();
    assert_eq!(signals, [(19, shell), (18, shell)]);
}

#[test]
fn a_running_process_is_recorded_with_the_state_it_was_in() {
    if !can_record() {
        return;
    }
    let sleeper = Background::start("sleep", &["30"]).asleep();
    let r = recorded(&["-p", &sleeper.pid(), "--", "sleep", "0.3"]);
    let task = r.task("sleep");
    assert_eq!(task.pid.0, sleeper.0.id());
    assert!(
        matches!(task.state, gdiag::event::TaskState::Off(state) if state & 1 != 0),
        "{task:?}"
    );
    assert_eq!(task.syscall, Some(230));
    // The command beside -p only gives the time; it is no target.
    assert_eq!(r.tasks().filter(|t| t.target).count(), 1);
}

/// Check that threads which run while gdiag attaches, and so are seen before they are marked, are not
/// taken for strangers.
#[test]
fn every_thread_of_the_machine_is_a_target() {
    if !can_record() {
        return;
    }
    use std::sync::atomic::{AtomicBool, Ordering};
    let done = AtomicBool::new(false);
    let (r, busy) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    Tid(nix::unistd::gettid().as_raw().cast_unsigned())
                })
            })
            .collect();
        let r = recorded(&["-a", "-d", "200ms"]);
        done.store(true, Ordering::Relaxed);
        let busy: Vec<Tid> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        (r, busy)
    });
    for tid in busy {
        let last = r.tasks().filter(|t| t.tid == tid).last();
        assert!(last.is_some_and(|t| t.target), "{last:?}");
    }
}

#[test]
fn a_pid_inside_a_container_is_translated() {
    if !can_record() {
        return;
    }
    // gdiag runs inside a PID namespace, where the sleeper is process 2.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.data");
    let script = format!(
        "sleep 30 & {} record -o {} -p $! -- sleep 0.3",
        env!("CARGO_BIN_EXE_gdiag"),
        path.display()
    );
    let output = Command::new("unshare")
        .args(["-pf", "--mount-proc", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let r = Recorded::read(dir, &path);
    let task = r.tasks().find(|t| t.target).expect("the sleeper was found");
    assert_eq!((r.name(task.comm), task.ns_pid.0), ("sleep", 2));
    assert_ne!(task.pid.0, 2, "the recording has the host's pid");
    assert!(r.name(r.process("sleep 30").cmdline).contains("sleep 30"));

    // Outside, that number is somebody else's or nobody's; the hint names the right one.
    let inside = Background::start(
        "unshare",
        &["-pf", "--mount-proc", "sh", "-c", "sleep 30 & wait"],
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    // Other containers may come and go: it is the one just started that must be found.
    let found = || {
        let ours = process::with_descendants(&[inside.0.id()]);
        let found = process::known_inside_as(2);
        found.iter().any(|pid| ours.contains(pid))
    };
    while !found() {
        assert!(Instant::now() < deadline, "the container did not start");
        std::thread::yield_now();
    }
    drop(inside);
}

#[test]
fn a_command_keeps_its_status_whatever_ended_the_recording() {
    if !can_record() {
        return;
    }
    for (arguments, status) in [
        (&["--", "sh", "-c", "exit 7"] as &[&str], 7),
        (&["--", "sh", "-c", "kill -9 $$"], 137),
        (&["-d", "100ms", "--", "sh", "-c", "sleep 0.4; exit 5"], 5),
        (&["--", "/nonexistent/program"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["-p", "4194305", "-d", "1s"], 1),
    ] {
        let (output, _dir, _) = record(arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {output:?}"
        );
    }
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_command() {
    if !can_record() {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["record", "-o", "/dev/full", "--", "sh", "-c", "echo ran"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
}

#[test]
fn a_signal_ends_a_recording_with_a_whole_file() {
    if !can_record() {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // Under nohup, this test too, it is not to end anything.
        if gdiag::collect::process::ignores(signal as u32) {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.data");
        // Left over, it would record the whole machine, and every shim on it.
        let mut gdiag = Background(
            Command::new(env!("CARGO_BIN_EXE_gdiag"))
                .arg("record")
                .arg("-q")
                .arg("-o")
                .arg(&path)
                .args(["-a"])
                .spawn()
                .unwrap(),
        );
        // The file is made when everything is attached.
        let deadline = Instant::now() + Duration::from_secs(20);
        while !path.exists() {
            assert!(Instant::now() < deadline, "the recording did not start");
            std::thread::yield_now();
        }
        send(&gdiag.0, signal);
        assert_eq!(gdiag.0.wait().unwrap().code(), Some(0), "{signal}");
        let r = Recorded::read(dir, &path);
        assert!(
            r.tasks().count() > 10,
            "{signal}: the whole machine was recorded"
        );
    }
}

#[test]
fn a_signal_after_the_recording_goes_to_the_command() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.data");
    let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .arg("record")
        .arg("-o")
        .arg(&path)
        .args(["-d", "50ms", "--", "sleep", "30"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(gdiag.stderr.take().unwrap()).lines();
    assert!(lines.any(|l| l.unwrap().contains("the command runs on")));
    send(&gdiag, Signal::SIGTERM);
    assert_eq!(gdiag.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn nohup_lets_a_recording_outlive_its_terminal() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.data");
    let script = format!(
        "trap '' HUP; {} record -o {} -- sh -c 'kill -HUP $PPID; sleep 0.2; kill -USR1 $PPID; sleep 0.2; exit 7'",
        env!("CARGO_BIN_EXE_gdiag"),
        path.display()
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("the command runs on"), "{stderr}");
    // It was still there for the second signal.
    assert!(
        stderr.contains("No GPU activity in this recording"),
        "{stderr}"
    );
}

#[test]
fn killing_gdiag_leaves_the_command_running_and_a_readable_file() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("test.data");
    let done = dir.path().join("done");
    let script = format!(
        "i=0; while [ $i -lt 30 ]; do sleep 0.1; i=$((i+1)); done; touch {}",
        done.display()
    );
    let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .arg("record")
        .arg("-o")
        .arg(&path)
        .args(["--", "sh", "-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Two flushes later there is something in the file.
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::fs::metadata(&path).map_or(0, |m| m.len()) < 2000 {
        assert!(Instant::now() < deadline, "nothing was written");
        std::thread::yield_now();
    }
    gdiag.kill().unwrap();
    gdiag.wait().unwrap();

    let mut reader = Reader::open(&path).unwrap();
    let mut events = 0;
    reader
        .for_each(|_| {
            events += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(events > 0);
    assert!(!reader.coverage().is_whole(), "it was not finished");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done.exists() {
        assert!(Instant::now() < deadline, "the command did not go on");
        std::thread::yield_now();
    }
}

/// Check that a wait at a socket says which it was, and which process is at the other end.
#[test]
fn waits_at_sockets_say_who_is_waited_for() {
    if !can_record() {
        return;
    }
    let program = "\
import os, socket, time
listener = socket.create_server(('127.0.0.1', 0))
if os.fork() == 0:
    time.sleep(0.2)
    client = socket.create_connection(listener.getsockname())
    listener.close()
    while client.recv(1): pass
    os._exit(0)
server, _ = listener.accept()
for _ in range(4):
    time.sleep(0.2)
    server.send(b'x')
server.close()
os.wait()
";
    let r = recorded(&["--", "python3", "-c", program]);
    let waits = |role| {
        let of_role = move |e: &Event| match e {
            Event::Define(Define::Endpoint {
                object,
                role: told,
                peer,
            }) if *told == role => Some((*object, *peer)),
            _ => None,
        };
        let known: HashMap<_, _> = r.events.iter().filter_map(of_role).collect();
        let waits = r.events.iter().filter_map(|e| match e {
            Event::Wait(w) => Some((w, *known.get(&w.object)?)),
            _ => None,
        });
        waits.collect::<Vec<_>>()
    };
    let (accept, peer) = waits(Role::Listening)[0];
    assert!(r
        .name(accept.object)
        .starts_with("tcp listening on 127.0.0.1:"));
    assert_eq!(peer, None);
    let (recv, peer) = waits(Role::Connected)[0];
    assert!(r.name(recv.object).starts_with("tcp 127.0.0.1:"));
    let client = r.tasks().find(|t| t.tid == recv.tid).unwrap();
    assert_eq!(peer, Some(client.ppid));
}
