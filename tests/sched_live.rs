//! `gdiag sched` on this kernel, against what the kernel and the programs themselves know. Needs root.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf, as in CI, it must.
fn can_watch() -> bool {
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

/// One of tests/programs, of one file.
fn program(name: &str) -> PathBuf {
    let source = format!("tests/programs/{name}/{name}.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("live-{name}"));
    let fresh = program.with_extension(std::process::id().to_string());
    let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O2", "-pthread", "-o"])
        .arg(&fresh)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::rename(&fresh, &program).unwrap();
    program
}

fn knows() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program("knows"))
}

fn threads() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| program("threads"))
}

fn gdiag(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    command.arg("sched").args(arguments).stdin(Stdio::null());
    command
}

struct Watched {
    summary: Value,
    output: Output,
}

/// A watch until its end.
fn watch(arguments: &[&str], command: &[&str]) -> Watched {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("summary.json");
    let mut watch = gdiag(&["--json", "-o"]);
    watch.arg(&path).args(arguments);
    if !command.is_empty() {
        watch.arg("--").args(command);
    }
    let output = watch.output().unwrap();
    let summary = std::fs::read(&path).unwrap();
    Watched {
        summary: serde_json::from_slice(&summary).unwrap_or_else(|e| panic!("{e}: {output:?}")),
        output,
    }
}

/// A watch in which nothing was missed, or the last of some that were tried: some sandboxes hide from BPF
/// whatever happens while a thread of their init is current.
fn watch_all(arguments: &[&str], command: &[&str]) -> Watched {
    const TRIES: usize = 8;
    let mut tries = (0..TRIES).map(|_| watch(arguments, command));
    let mut watched = tries.next().unwrap();
    while watched.lost() > 0 {
        let Some(next) = tries.next() else { break };
        watched = next;
    }
    watched
}

impl Watched {
    fn lost(&self) -> u64 {
        self.summary["lost"].as_u64().unwrap()
    }

    fn threads(&self) -> &[Value] {
        self.summary["threads"].as_array().unwrap()
    }

    fn thread(&self, tid: u64) -> &Value {
        let mut found = self.threads().iter().filter(|t| t["tid"] == tid);
        let thread = found
            .next()
            .unwrap_or_else(|| panic!("no thread {tid} in {}", self.summary));
        assert!(found.next().is_none(), "two threads {tid}");
        thread
    }

    /// What a program on stdout said of itself.
    fn truth(&self) -> Value {
        serde_json::from_slice(&self.output.stdout).unwrap()
    }

    /// Its threads, each as gdiag saw it and as it knows itself.
    fn both(&self) -> Vec<(Value, Value)> {
        let truth = self.truth();
        let threads = truth["threads"].as_array().unwrap();
        let pair = |t: &Value| (self.thread(t["tid"].as_u64().unwrap()).clone(), t.clone());
        threads.iter().map(pair).collect()
    }
}

fn number(value: &Value, key: &str) -> u64 {
    let number = value[key].as_u64();
    number.unwrap_or_else(|| panic!("no number {key} in {value}"))
}

/// How often, and for how long it was off the CPU for this reason.
fn off(thread: &Value, reason: &str) -> (u64, u64) {
    let off = thread["off"].as_array().unwrap();
    let off = off.iter().find(|off| off["reason"] == reason);
    off.map_or((0, 0), |off| (number(off, "count"), number(off, "ns")))
}

/// A background process that does not outlive the test.
struct Background(Child);

impl Background {
    /// Started when it says something.
    fn start(command: &mut Command) -> Background {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{command:?} said nothing");
        Background(child)
    }

    fn spins_on(cpu: &str) -> Background {
        Background::start(
            Command::new("taskset")
                .args(["-c", cpu])
                .arg(threads())
                .arg("spin"),
        )
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kernel's own counts of voluntary and involuntary switches, from a thread's birth until it sleeps for the
/// last time; then it is killed. As it dies it may lose the CPU to others.
fn assert_counts(watched: &Watched) {
    for (seen, truth) in watched.both() {
        let life = &truth["life"];
        let missed = watched.lost();
        for (key, more) in [("voluntary", 0), ("involuntary", 3)] {
            let (seen, known) = (number(&seen, key), number(life, key));
            assert!(
                seen + missed >= known && seen <= known + more + missed,
                "{} {key}: {seen} for {known}, {missed} lost",
                truth["name"]
            );
        }
    }
}

#[test]
fn switches_are_counted_as_the_kernel_counts_them() {
    if !can_watch() {
        return;
    }
    let knows = knows().to_str().unwrap();
    for load in [["sleep", "200"], ["futex", "2000"], ["yield", "1000"]] {
        let watched = watch_all(&[], &[knows, load[0], load[1]]);
        assert!(watched.output.status.success(), "{:?}", watched.output);
        assert_counts(&watched);
        for (seen, _) in watched.both() {
            let count = |reason| off(&seen, reason).0;
            let runnable = count("woken") + count("new") + count("preempted") + count("yielded");
            assert!(
                number(&seen, "runq_count").abs_diff(runnable) <= 1 + watched.lost(),
                "{seen}"
            );
        }
    }
}

#[test]
fn a_sleep_is_a_sleep_and_a_lock_is_a_lock() {
    if !can_watch() {
        return;
    }
    let knows = knows().to_str().unwrap();
    let watched = watch_all(&[], &[knows, "sleep", "100", "300"]);
    let (seen, _) = watched.both().remove(0);
    let (count, ns) = off(&seen, "sleep");
    assert!(count.abs_diff(100) <= watched.lost(), "{seen}");
    assert!(ns >= count * 300_000, "{seen}");
    // It waits for the controller before and after.
    assert_eq!(off(&seen, "futex").0, 2, "{seen}");

    let watched = watch_all(&[], &[knows, "futex", "500"]);
    let threads = watched.both();
    for ((seen, _), (_, peer)) in threads.iter().zip(threads.iter().rev()) {
        let wakers = seen["wakers"].as_array().unwrap();
        assert_eq!(wakers[0]["comm"], peer["name"], "{seen}");
        assert!(off(seen, "futex").0 > 0, "{seen}");
    }
}

#[test]
fn a_yield_is_no_preemption() {
    if !can_watch() {
        return;
    }
    let knows = knows().to_str().unwrap();
    let watched = watch_all(&[], &[knows, "yield", "1000"]);
    for (seen, _) in watched.both() {
        let ((yielded, _), (preempted, _)) = (off(&seen, "yielded"), off(&seen, "preempted"));
        assert!(yielded > 10 * preempted, "{seen}");
    }
}

#[test]
fn every_move_to_another_cpu_is_one() {
    if !can_watch() {
        return;
    }
    let watched = watch_all(&[], &[knows().to_str().unwrap(), "migrate", "100"]);
    if watched.output.stdout.is_empty() {
        eprintln!("skipped: needs two CPUs");
        return;
    }
    let (seen, truth) = watched.both().remove(0);
    let (moves, known) = (number(&seen, "migrations"), number(&truth, "migrations"));
    // It is pinned first, which may move it.
    let missed = watched.lost();
    assert!(
        moves + missed >= known && moves <= known + 1 + missed,
        "{moves} for {known}: {seen}"
    );
    assert_eq!(seen["cpus"].as_array().unwrap().len(), 2);
}

#[test]
fn preemptions_add_up_and_times_are_the_kernels() {
    if !can_watch() {
        return;
    }
    let watched = watch_all(&[], &[knows().to_str().unwrap(), "preempt", "400"]);
    assert_counts(&watched);
    let preemptors = watched.summary["preemptors"].as_array().unwrap();
    for (seen, truth) in watched.both() {
        let mut by_anybody = 0;
        for preemptor in preemptors {
            let victims = preemptor["victims"].as_array().unwrap().iter();
            let count: u64 = victims
                .filter(|victim| victim["tid"] == truth["tid"])
                .map(|victim| number(victim, "count"))
                .sum();
            by_anybody += count;
        }
        assert_eq!(by_anybody, off(&seen, "preempted").0, "{preemptors:?}");
        if watched.lost() > 0 {
            continue;
        }
        // /proc/PID/task/TID/schedstat. The kernel counts from when it is put on a queue, gdiag from its waking.
        for (key, of) in [("run_ns", "run_ns"), ("runq_ns", "runq_ns")] {
            let (seen, known) = (number(&seen, key), number(&truth["life"], of));
            assert!(
                seen.abs_diff(known) <= known / 50 + 2_000_000,
                "{} {key}: {seen} for {known}",
                truth["name"]
            );
        }
    }
}

#[test]
fn who_took_the_cpu_of_a_target_is_named() {
    if !can_watch() {
        return;
    }
    let spins = Background::spins_on("0");
    // With a real-time priority it takes the CPU from whoever has it when it wakes up.
    let command = [
        "chrt",
        "-f",
        "10",
        knows().to_str().unwrap(),
        "sleep",
        "300",
        "1000",
    ];
    let watched = watch(&["-p", &spins.pid()], &command);
    if watched.output.stdout.is_empty() {
        eprintln!("skipped: no real-time priority can be had here");
        return;
    }
    let preemptors = watched.summary["preemptors"].as_array().unwrap();
    let sleeper = preemptors.iter().find(|p| p["comm"] == "sleeper");
    let sleeper = sleeper.unwrap_or_else(|| panic!("{preemptors:?}"));
    assert!(number(sleeper, "count") > 0 && number(sleeper, "ns") > 0);
    assert_eq!(sleeper["victims"][0]["tid"], u64::from(spins.0.id()));
    // It is no target, but a thread that ran on the same CPU.
    let seen = watched.truth()["threads"][0]["tid"].as_u64().unwrap();
    assert_eq!(watched.thread(seen)["target"], false);
}

/// A CPU quota of a fifth, for whoever is in it.
struct Quota(PathBuf);

impl Quota {
    /// `None` where this machine has no controller for it, or does not let us.
    fn make() -> Option<Quota> {
        let name = format!("gdiag-test-{}", std::process::id());
        let old = Path::new("/sys/fs/cgroup/cpu").join(&name);
        let new = Path::new("/sys/fs/cgroup").join(&name);
        let quota = if std::fs::create_dir(&old).is_ok() {
            Quota(old)
        } else {
            std::fs::create_dir(&new).ok()?;
            Quota(new)
        };
        let set = |file: &str, text: &str| std::fs::write(quota.0.join(file), text).is_ok();
        let is_set = (set("cpu.cfs_period_us", "50000") && set("cpu.cfs_quota_us", "10000"))
            || set("cpu.max", "10000 50000");
        is_set.then_some(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_used_up_quota_is_no_preemption() {
    if !can_watch() {
        return;
    }
    let Some(quota) = Quota::make() else {
        eprintln!("skipped: no CPU quota can be set here");
        return;
    };
    let join = "echo $$ > \"$0\"/cgroup.procs; exec \"$1\" spin";
    let spins = Background::start(
        Command::new("sh")
            .args(["-c", join])
            .arg(&quota.0)
            .arg(threads()),
    );
    let watched = watch_all(&["-d", "400ms", "-G", quota.0.to_str().unwrap()], &[]);
    let seen = watched.thread(u64::from(spins.0.id()));
    let (count, ns) = off(seen, "throttled");
    assert!(count >= 2 && ns > 100_000_000, "{seen}");
    // Whatever it waited for others, it is told apart.
    assert!(number(seen, "runq_ns") + ns <= 500_000_000, "{seen}");
    drop(spins);
}

#[test]
fn one_that_does_nothing_but_sleep_or_run_is_known_all_the_same() {
    if !can_watch() {
        return;
    }
    let sleeps = Background::start(Command::new("sh").args(["-c", "echo; exec sleep 60"]));
    let spins = Background::spins_on("0");
    let both = format!("{},{}", sleeps.pid(), spins.pid());
    let watched = watch(&["-p", &both, "-d", "200ms"], &[]);
    let window = number(&watched.summary, "end_ns") - number(&watched.summary, "start_ns");

    let seen = watched.thread(u64::from(spins.0.id()));
    let all: u64 = ["preempted", "woken", "throttled"]
        .iter()
        .map(|reason| off(seen, reason).1)
        .sum();
    let sum = number(seen, "run_ns") + all;
    // A switch that was hidden takes the time around it along.
    assert!(
        sum == window || watched.lost() > 0,
        "{sum} of {window}: {seen}"
    );
    assert_eq!(seen["affinity"], serde_json::json!([0]));

    let seen = watched.thread(u64::from(sleeps.0.id()));
    let asleep = off(seen, "sleep");
    // The shell may have become sleep only now.
    assert!(asleep.1 > 0 && asleep.1 <= window, "{seen}");
    assert!(asleep.0 <= 1, "{seen}");
}

/// Check that one that waits from before the start to after the end is not one that is fine.
#[test]
fn one_that_waits_for_its_cpu_all_the_time_is_known() {
    if !can_watch() {
        return;
    }
    // Both before those that share time, so that these get none of what is the first one's.
    let with = |priority| {
        let mut command = Command::new("chrt");
        command
            .args(["-f", priority, "taskset", "-c", "0"])
            .arg(threads())
            .arg("spin");
        command
    };
    let may = Command::new("chrt").args(["-f", "1", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no real-time priority can be had here");
        return;
    }
    let starved = Background::start(&mut with("1"));
    let hog = Background::start(&mut with("2"));
    let watched = watch_all(&["-p", &starved.pid(), "-d", "300ms"], &[]);
    let window = number(&watched.summary, "end_ns") - number(&watched.summary, "start_ns");

    let seen = watched.thread(u64::from(starved.0.id()));
    assert_eq!((number(seen, "run_ns"), number(seen, "runq_count")), (0, 0));
    assert_eq!(number(seen, "runq_ns"), window, "{seen}");
    assert_eq!(seen["runq_max_ns"], Value::Null);
    let behind = &seen["behind"][0];
    assert_eq!(behind["tid"], u64::from(hog.0.id()), "{seen}");
    let verdict = &watched.summary["verdicts"][0];
    assert_eq!(
        (&verdict["tid"], &verdict["fine"]),
        (&seen["tid"], &false.into())
    );
    let says = verdict["says"].as_str().unwrap();
    assert!(
        says.starts_with("never ran: it waited for a CPU all "),
        "{says}"
    );
}

#[test]
fn threads_that_come_and_go_are_not_lost() {
    if !can_watch() {
        return;
    }
    let watched = watch_all(&[], &[threads().to_str().unwrap(), "brief", "50"]);
    let brief = watched.threads().iter().filter(|t| t["comm"] == "brief");
    let brief: Vec<&Value> = brief.collect();
    assert_eq!(brief.len(), 50);
    for seen in brief {
        assert!(number(seen, "run_ns") > 0 || watched.lost() > 0, "{seen}");
        assert!(off(seen, "sleep").0 == 1 || watched.lost() > 0, "{seen}");
    }
}

#[test]
fn a_thread_that_executes_a_program_is_two() {
    if !can_watch() {
        return;
    }
    let command = [threads().to_str().unwrap(), "exec", "sleep", "0.1"];
    let watched = watch_all(&[], &command);
    assert!(watched.output.status.success(), "{:?}", watched.output);
    let threads = watched.threads();
    let targets: Vec<&Value> = threads.iter().filter(|t| t["target"] == true).collect();
    assert_eq!(targets.len(), 2, "{targets:?}");
    let (first, second) = (targets[0], targets[1]);
    let (first, second) = if first["tid"] == first["pid"] {
        (first, second)
    } else {
        (second, first)
    };
    assert_eq!(first["pid"], second["pid"]);
    // Under its own id it slept ten times, under the first one's once, for long.
    assert_eq!(off(second, "sleep").0, 10, "{second}");
    let (count, ns) = off(first, "sleep");
    assert!(count == 1 && ns >= 100_000_000, "{first}");
}

#[test]
fn what_happens_on_other_cpus_does_not_count() {
    if !can_watch() {
        return;
    }
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if cpus.trim() == "0" {
        eprintln!("skipped: needs two CPUs");
        return;
    }
    let spins = Background::spins_on("1");
    let pid = spins.pid();
    let watched = watch(&["-p", &pid, "-C", "1", "-d", "100ms"], &[]);
    let seen = watched.thread(u64::from(spins.0.id()));
    assert!(number(seen, "run_ns") > 0, "{seen}");
    let cpus = watched.summary["cpus"].as_array().unwrap();
    assert!(cpus.len() == 1 && cpus[0]["cpu"] == 1, "{cpus:?}");

    let other = gdiag(&["-p", &pid, "-C", "0", "-d", "100ms"])
        .output()
        .unwrap();
    assert_eq!(other.status.code(), Some(3), "{other:?}");
}

#[test]
fn intervals_add_up_to_the_whole() {
    if !can_watch() {
        return;
    }
    let spins = Background::spins_on("0");
    let mut child = gdiag(&["--json", "-p", &spins.pid(), "-I", "100ms"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || Some(serde_json::from_str(&lines.next()?.unwrap()).unwrap());
    let mut all: Vec<Value> = (0..3).map(|_| next().unwrap()).collect();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    all.extend(std::iter::from_fn(next));
    assert!(child.wait().unwrap().success());
    let (whole, parts) = all.split_last().unwrap();
    let run = |summary: &Value| {
        let threads = summary["threads"].as_array().unwrap();
        let own = threads.iter().find(|t| t["tid"] == spins.0.id());
        own.map_or(0, |t| number(t, "run_ns"))
    };
    let summed: u64 = parts.iter().map(run).sum();
    assert!(run(whole) > 0 && summed <= run(whole), "{all:?}");
    for two in parts.windows(2) {
        assert_eq!(two[0]["end_ns"], two[1]["start_ns"]);
    }
    assert_eq!(whole["start_ns"], parts[0]["start_ns"]);
}

/// Starts watching `args`, sends `signal` once the command that is watched beside runs, and waits.
fn signalled(signals: &[Signal]) -> Output {
    // The command beside says when the watch has begun.
    let mut child = gdiag(&["-a", "--", "sh", "-c", "echo runs; exec sleep 60"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "runs\n");
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    for &signal in signals {
        kill(pid, signal).unwrap();
    }
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stdout = rest;
    output
}

#[test]
fn a_signal_ends_the_watch_with_its_result() {
    if !can_watch() {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let output = signalled(&[signal]);
        assert_eq!(output.status.code(), Some(0), "{signal}: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("Threads"), "{signal}: {text}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("[ gdiag sched: "), "{signal}: {errors}");
    }
}

#[test]
fn an_interim_summary_is_for_stderr() {
    if !can_watch() {
        return;
    }
    let output = signalled(&[Signal::SIGUSR1, Signal::SIGTERM]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("Threads"), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("Threads"), "{text}");
    assert!(errors.contains("[ gdiag sched: "), "{errors}");
}

#[test]
fn what_goes_wrong_has_its_status() {
    if !can_watch() {
        return;
    }
    let status = |arguments: &[&str]| {
        let output = gdiag(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), errors)
    };
    assert_eq!(status(&["--", "sh", "-c", "exit 7"]).0, 7);
    assert_eq!(status(&["--", "sh", "-c", "kill -KILL $$"]).0, 137);
    assert_eq!(status(&["--", "no-such-program"]).0, 127);
    assert_eq!(status(&["--", "/etc/passwd"]).0, 126);
    let (code, errors) = status(&["-p", "999999999"]);
    assert!(code == 1 && errors.contains("999999999"), "{errors}");
    let (code, errors) = status(&["-C", "0,1000", "-d", "1s"]);
    assert!(
        code == 1 && errors.contains("no CPU 1000 is online") && errors.contains("online: 0"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 2, "{errors}");
}

/// Sends itself packets over the loopback, in which there are softirqs, until it is over.
struct Packets(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl Packets {
    fn start(threads: usize) -> Packets {
        use std::sync::atomic::Ordering::Relaxed;
        let packets = Packets(std::sync::Arc::default());
        for _ in 0..threads {
            let over = packets.0.clone();
            std::thread::spawn(move || {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                let own = socket.local_addr().unwrap();
                while !over.load(Relaxed) {
                    socket.send_to(&[0; 64], own).unwrap();
                    socket.recv(&mut [0; 64]).unwrap();
                }
            });
        }
        packets
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn interrupts_take_no_longer_than_the_watch() {
    if !can_watch() {
        return;
    }
    let packets = Packets::start(2);
    let watched = watch(&["-a", "-d", "3s"], &[]);
    drop(packets);
    let window = number(&watched.summary, "end_ns") - number(&watched.summary, "start_ns");
    let cpus = watched.summary["cpus"].as_array().unwrap();
    let irq: Vec<u64> = cpus.iter().map(|cpu| number(cpu, "irq_ns")).collect();
    assert!(irq.iter().sum::<u64>() > 0, "{irq:?}");
    assert!(irq.iter().all(|&ns| ns < window), "{irq:?} of {window}");
}

#[test]
fn in_a_pid_namespace_a_thread_has_the_number_that_it_has_there() {
    if !can_watch() {
        return;
    }
    let gdiag = env!("CARGO_BIN_EXE_gdiag");
    let inside = "sleep 60 & \"$0\" sched -q --json -p $! -t $! -d 100ms; kill $!";
    let watched = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", inside, gdiag])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&watched.stderr);
    if errors.starts_with("unshare") {
        eprintln!("skipped: no namespaces here");
        return;
    }
    let summary: Value =
        serde_json::from_slice(&watched.stdout).unwrap_or_else(|e| panic!("{e}: {errors}"));
    assert_eq!(summary["threads"].as_array().unwrap().len(), 1);
}
