//! Targets that end, become another program, are held by others or cannot be helped.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::support::{
    becomes_true, can_run, gdiag, held, machine, mappings, operations, pass, recorder, rounds,
    simgpu, threads, wait_until, without_libc, Random, Recording, Running, DEADLINE,
};
use crate::time_to_inject;
use crate::victim::{kind, Victim};

fn start(options: &[&str], dir: &Path) -> Victim {
    let mut victim = Victim::start(&kind("victim", options), dir);
    victim.settle();
    victim
}

fn attach(pid: u32, file: &Path, dir: &Path) -> Running {
    Running::start(&mut recorder(file, &["-p", &pid.to_string()]), dir)
}

/// Each of these takes seconds.
fn few_rounds() -> usize {
    rounds().min(20)
}

/// A recording at whose end gdiag says why it could not do all.
fn record_that_says(pid: u32, what: &str, duration: &str, dir: &Path) -> Recording {
    let arguments = ["-p", &pid.to_string(), "-d", duration];
    let recording = Running::start(&mut recorder(&dir.join("data"), &arguments), dir).end();
    assert_eq!(recording.status, Some(0), "{}", recording.said);
    assert!(recording.said.contains(what), "{}", recording.said);
    recording
}

/// Longer than gdiag goes on trying.
const TRIED: &str = "8s";

fn assert_unharmed(victim: Victim) {
    let held = victim.held();
    assert!(held.is_empty(), "{held:?}");
    let verdict = victim.end().unwrap();
    assert!(verdict.failures.is_empty(), "{:?}", verdict.failures);
}

/// gdiag ends by itself when its target has, and its file can be read.
#[test]
fn a_target_may_end_at_any_moment() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("ends");
    let dir = tempfile::tempdir().unwrap();
    let inject = time_to_inject(dir.path()).as_millis() as u64;
    for round in 0..few_rounds() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        let mut victim = start(&["--threads=16", "--churn=1"], dir.path());
        let gdiag = attach(victim.pid, &file, dir.path());
        pass(random.ms(inject.saturating_sub(60), inject + 60));
        match round % 3 {
            0 => victim.signal(libc::SIGKILL),
            1 => victim.tell(b'x'),
            _ => victim.tell(b'q'),
        }
        let recording = gdiag.end();
        // It may have been gone before gdiag looked for it.
        let gone = recording.said.contains("no process has pid");
        assert!(
            recording.status == Some(0) || gone && recording.status == Some(1),
            "round {round}: {recording:?}"
        );
        if !gone {
            operations(&file).unwrap();
        }
        let ended = becomes_true(DEADLINE, || !victim.lives());
        assert!(ended, "round {round}: the target hangs");
    }
}

#[test]
fn a_target_may_become_another_program_at_any_moment() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("execs");
    let dir = tempfile::tempdir().unwrap();
    let inject = time_to_inject(dir.path()).as_millis() as u64;
    for round in 0..few_rounds().div_ceil(2) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        let mut victim = start(&["--threads=16"], dir.path());
        let mut gdiag = attach(victim.pid, &file, dir.path());
        pass(random.ms(inject.saturating_sub(60), inject + 60));
        victim.tell(b'e');
        // Then the new program is the target.
        wait_until("the new program is recorded", || {
            assert!(gdiag.is_running(), "round {round}: {}", gdiag.said());
            victim.has_begun_again() && victim.is_recorded()
        });
        assert!(victim.steps_on(), "round {round}");
        gdiag.signal(libc::SIGINT);
        let recording = gdiag.end();
        assert_eq!(recording.status, Some(0), "round {round}: {recording:?}");
        assert!(
            operations(&file).unwrap().contains_key(&victim.pid),
            "round {round}: {recording:?}"
        );
        assert_unharmed(victim);
    }
}

#[test]
fn a_target_may_be_stopped_and_continued_meanwhile() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("stops");
    for round in 0..few_rounds().div_ceil(2) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        let mut victim = start(&["--threads=64", "--may-be-stopped"], dir.path());
        let mut gdiag = attach(victim.pid, &file, dir.path());
        becomes_true(DEADLINE / 2, || {
            victim.signal(libc::SIGSTOP);
            pass(random.ms(0, 5));
            victim.signal(libc::SIGCONT);
            pass(random.ms(0, 30));
            victim.is_recorded() || !gdiag.is_running()
        });
        assert!(victim.is_recorded(), "round {round}: {}", gdiag.said());
        assert!(victim.steps_on(), "round {round}");
        gdiag.signal(libc::SIGINT);
        let recording = gdiag.end();
        assert_eq!(recording.status, Some(0), "round {round}: {recording:?}");
        assert_unharmed(victim);
    }
}

#[test]
fn a_stopped_target_stays_stopped() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let dir = tempfile::tempdir().unwrap();
    let mut victim = start(&["--threads=16", "--may-be-stopped"], dir.path());
    let stopped = |victim: &Victim| held(victim.pid).len() == threads(victim.pid).len();
    victim.signal(libc::SIGSTOP);
    wait_until("it is stopped", || stopped(&victim));
    let before = threads(victim.pid);
    record_that_says(victim.pid, "it is stopped", TRIED, dir.path());
    assert!(stopped(&victim));
    assert_eq!(threads(victim.pid), before);
    victim.signal(libc::SIGCONT);
    assert!(victim.steps_on());
    assert_unharmed(victim);
}

/// As strace does. The tracer's end sets it free.
#[test]
fn a_traced_target_is_left_to_its_tracer() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let dir = tempfile::tempdir().unwrap();
    let mut victim = start(&["--threads=16"], dir.path());
    let pid = victim.pid.cast_signed();
    let (traced, is_traced) = channel();
    let (done, is_done) = channel();
    let tracer = std::thread::spawn(move || {
        // SAFETY: takes numbers.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
        traced.send(result).unwrap();
        let _: Result<(), _> = is_done.recv();
    });
    assert_eq!(
        is_traced.recv().unwrap(),
        0,
        "{}",
        std::io::Error::last_os_error()
    );
    record_that_says(victim.pid, "is tracing it", TRIED, dir.path());
    drop(done);
    tracer.join().unwrap();
    assert!(victim.steps_on());
    // Now it can be recorded.
    let mut gdiag = attach(victim.pid, &dir.path().join("data"), dir.path());
    wait_until("it is recorded", || {
        assert!(gdiag.is_running(), "{}", gdiag.said());
        victim.is_recorded()
    });
    gdiag.signal(libc::SIGINT);
    assert_eq!(gdiag.end().status, Some(0));
    assert_unharmed(victim);
}

#[test]
fn two_that_attach_at_once_do_no_harm() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("two");
    for round in 0..few_rounds().div_ceil(2) {
        let dir = tempfile::tempdir().unwrap();
        let other_dir = tempfile::tempdir().unwrap();
        let mut victim = start(&["--threads=64"], dir.path());
        let files = [dir.path().join("data"), other_dir.path().join("data")];
        let one = attach(victim.pid, &files[0], dir.path());
        pass(random.ms(0, 20));
        let other = attach(victim.pid, &files[1], other_dir.path());
        let recorded = becomes_true(DEADLINE / 2, || victim.is_recorded());
        assert!(recorded, "round {round}: {} {}", one.said(), other.said());
        pass(Duration::from_millis(300));
        assert!(victim.steps_on(), "round {round}");
        let recordings = [one, other].map(|gdiag| {
            gdiag.signal(libc::SIGINT);
            gdiag.end()
        });
        for recording in &recordings {
            assert_eq!(recording.status, Some(0), "round {round}: {recordings:?}");
        }
        let found = files.map(|file| operations(&file).unwrap().contains_key(&victim.pid));
        assert_ne!(
            found[0], found[1],
            "round {round}: who has them: {found:?} {recordings:?}"
        );
        let left = &recordings[usize::from(found[0])];
        assert!(
            left.said.contains("another gdiag"),
            "round {round}: {recordings:?}"
        );
        assert_unharmed(victim);
    }
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_target_without_a_c_library_is_left_alone() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let child = Command::new(without_libc())
        .arg(simgpu("libcuda.so.1"))
        .stdin(Stdio::piped())
        .stdout(File::create(&out).unwrap())
        .spawn()
        .unwrap();
    let mut child = Other(child);
    wait_until("it is ready", || {
        std::fs::read_to_string(&out).unwrap().contains("ready")
    });
    let before = mappings(child.0.id());
    record_that_says(child.0.id(), "C library", "2s", dir.path());
    assert_eq!(mappings(child.0.id()), before);
    drop(child.0.stdin.take());
    let status = child.0.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn nothing_is_put_into_a_target_where_that_is_not_wanted() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let dir = tempfile::tempdir().unwrap();
    let victim = start(&["--threads=16"], dir.path());
    let output = gdiag()
        .args([
            "record",
            "--no-inject",
            "-d",
            "1s",
            "-p",
            &victim.pid.to_string(),
            "-o",
        ])
        .arg(dir.path().join("data"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!victim.has_library());
    assert_unharmed(victim);
}
