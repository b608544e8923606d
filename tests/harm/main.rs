//! The target is sacred: whatever is done to gdiag, or by the target to gdiag, the target ends as it
//! would have without. Needs root, BTF and `make simgpu`.
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod hostile;
mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use gdiag::event::{ShimState, TaskReason};
use gdiag_shim_layout::state;
use support::{
    adopt_orphans, alone, beside_others, can_run, children, descriptors, gdiag, harmed, has_begun,
    hostload, installed_shim, is_unstopped, memory_kb, reap, recorder, report, steps, wait_until,
    Process, Random, Recorded, Shared, UNHARMED,
};

/// What `harmed run LOG steps` prints when nothing disturbs it.
fn undisturbed(steps: u32) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(harmed())
        .arg("run")
        .arg(dir.path().join("log"))
        .arg(steps.to_string())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(UNHARMED), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A GPU job that carries the shim dormant, as a service does. It ends when its input does.
fn service(dir: &std::path::Path) -> Process {
    let log = dir.join("log");
    let process = Process::start(
        std::process::Command::new(harmed())
            .arg("run")
            .arg(&log)
            .arg("0")
            .env("CUDA_INJECTION64_PATH", installed_shim())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    wait_until("it computes", || !support::steps(&log).is_empty());
    process
}

/// Until a moment that means nothing.
fn pass(time: Duration) {
    let moment = Instant::now() + time;
    while Instant::now() < moment {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn as_str(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_killed_gdiag_does_not_disturb_the_command_it_launched() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    adopt_orphans();
    const STEPS: u32 = 1_000;
    let expected = undisturbed(STEPS);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut ran, mut slowest) = (0, Duration::ZERO);
    for round in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let (file, log, out) = (
            dir.path().join("data"),
            dir.path().join("log"),
            dir.path().join("out"),
        );
        let arguments = ["--", as_str(harmed()), "run", as_str(&log), "1000"];
        let mut gdiag = Process::start(
            recorder(&file, &arguments)
                // A killed gdiag cannot remove the shim that it wrote there.
                .env("TMPDIR", dir.path())
                .stdout(std::fs::File::create(&out).unwrap())
                .stderr(Stdio::null()),
        );
        wait_until("the command is forked", || {
            !children(gdiag.pid()).is_empty() || !gdiag.is_running()
        });
        let [command] = children(gdiag.pid())[..] else {
            panic!("round {round}: gdiag ended by itself")
        };
        // At first while it starts, then while it records.
        if round >= 4 {
            wait_until("it records", || has_begun(&file));
        }
        pass(Duration::from_millis(random.below(900)));
        gdiag.signal(libc::SIGKILL);
        let killed = Instant::now();
        if let Some(status) = gdiag.end().status.code() {
            // The machine was slow, and all was over before.
            assert_eq!(status, UNHARMED, "round {round}");
            continue;
        }

        // The shim may be loaded only now; whenever that is, it may not go on collecting.
        let mut dormant = None;
        wait_until("it ends", || {
            assert!(is_unstopped(command), "round {round}");
            match Shared::of(command) {
                Some(shim) if !shim.is_dormant() => dormant = None,
                Some(_) => dormant = dormant.or(Some(killed.elapsed())),
                None => {}
            }
            support::has_ended(command)
        });
        let status = reap(command);
        if steps(&log).is_empty() {
            // Killed before the command became the program: then nothing of it has run.
            assert_eq!(status.code(), Some(125), "round {round}: {status}");
            continue;
        }
        ran += 1;
        assert_eq!(status.code(), Some(UNHARMED), "round {round}: {status}");
        assert_eq!(
            std::fs::read_to_string(&out).unwrap(),
            expected,
            "round {round}"
        );
        if let Some(after) = dormant {
            slowest = slowest.max(after);
        }
        if has_begun(&file) {
            let recorded = Recorded::read(&file).unwrap();
            assert!(!recorded.whole, "round {round}: it was killed");
        }
    }
    eprintln!("{ran} of 12 commands ran; dormant after {slowest:?} at most");
    assert!(ran >= 6, "most of the moments are in the run");
    // A second is promised; the machine may be busy.
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
}

#[test]
fn a_killed_gdiag_leaves_a_service_as_it_was_and_ready_for_the_next() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let mut service = service(dir.path());
    let pid = service.pid().to_string();
    let mut random = Random(42);
    let (mut rounds, mut slowest) = (0, Duration::ZERO);
    while rounds < 8 {
        let file = dir.path().join("killed.data");
        let _ = std::fs::remove_file(&file);
        let gdiag = Process::start(recorder(&file, &["-p", &pid]).stderr(Stdio::null()));
        pass(Duration::from_millis(random.below(1_000)));
        gdiag.signal(libc::SIGKILL);
        drop(gdiag.end());
        let killed = Instant::now();
        let shim = Shared::of(service.pid()).unwrap();
        wait_until("the shim is dormant", || shim.is_dormant());
        slowest = slowest.max(killed.elapsed());
        assert!(is_unstopped(service.pid()));
        if has_begun(&file) {
            Recorded::read(&file).unwrap();
        }

        // The next one gets its records, whatever the last one left behind.
        let file = dir.path().join("next.data");
        let output = recorder(&file, &["-p", &pid, "-d", "1s"]).output().unwrap();
        assert!(output.status.success(), "round {rounds}: {output:?}");
        let recorded = Recorded::read(&file).unwrap();
        assert!(
            recorded.ops_of(service.pid()).count() > 0,
            "round {rounds}: {:?} {output:?}",
            recorded.states
        );
        assert!(recorded
            .ops
            .iter()
            .all(|op| matches!(op.kind, gdiag::event::OpKind::Kernel { name } if recorded.names[&name] == "spin")),
            "round {rounds}: names of the last session");
        assert_eq!(shim.state(), state::DORMANT, "round {rounds}");
        rounds += 1;
    }
    eprintln!("{rounds} kills; dormant after {slowest:?} at most");
    assert!(service.is_running());
    let launches = steps(&dir.path().join("log")).last().unwrap().1;
    let output = service.end();
    assert_eq!(output.status.code(), Some(UNHARMED), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let done: u64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!(done >= launches, "{said}");
    let sum = (1..=done).fold(0u64, |sum, n| {
        sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n)
    });
    assert_eq!(said, format!("{done} launches, sum {sum:x}\n"));
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
}

#[test]
fn a_stopped_gdiag_is_a_hole_that_is_shown() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut service = service(dir.path());
    let file = dir.path().join("data");
    let gdiag =
        Process::start(recorder(&file, &["-p", &service.pid().to_string()]).stderr(Stdio::piped()));
    let shim = Shared::of(service.pid()).unwrap();
    wait_until("it collects", || shim.state() == state::ACTIVE);
    let before = steps(&log).len();
    wait_until("something is recorded", || steps(&log).len() > before + 50);

    gdiag.signal(libc::SIGSTOP);
    wait_until("the shim pauses", || shim.state() == state::PAUSED);
    let paused_at = steps(&log).len();
    wait_until("the job goes on", || steps(&log).len() > paused_at + 300);
    assert_eq!(shim.state(), state::PAUSED);
    gdiag.signal(libc::SIGCONT);
    wait_until("the shim collects again", || shim.state() == state::ACTIVE);
    let resumed_at = steps(&log).len();
    wait_until("records flow again", || {
        steps(&log).len() > resumed_at + 150
    });
    gdiag.signal(libc::SIGINT);
    let output = gdiag.end();
    assert!(output.status.success(), "{output:?}");
    assert!(service.is_running());

    let recorded = Recorded::read(&file).unwrap();
    let at = |wanted: ShimState| {
        let found = recorded
            .states
            .iter()
            .find(|(_, state, _)| *state == wanted);
        found
            .unwrap_or_else(|| panic!("{wanted:?} is not in {:?}", recorded.states))
            .2
    };
    let paused = at(ShimState::Paused);
    let active = recorded
        .states
        .iter()
        .find(|(_, state, ts)| *state == ShimState::Active && *ts > paused)
        .expect("it collected again")
        .2;
    assert!(recorded.ops.iter().any(|op| op.end.0 < paused));
    assert!(
        recorded.ops.iter().any(|op| op.start.0 > active),
        "last {:?}, steps {:?}, {:?} {output:?}",
        recorded.ops.iter().map(|op| op.end.0).max(),
        steps(&log).last(),
        recorded.states
    );
    let report = report(&file);
    let hole: Vec<_> = report["gpus"][0]["gaps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|gap| {
            gap["start_ns"].as_u64().unwrap() < active && gap["end_ns"].as_u64().unwrap() > paused
        })
        .collect();
    assert!(!hole.is_empty(), "{:?} {paused} {active}", recorded.states);
    for gap in hole {
        for part in gap["parts"].as_array().unwrap() {
            assert_eq!(part["cause"], "unknown.measurement", "{gap}");
        }
    }
}

#[test]
fn a_target_that_dies_is_recorded_to_the_end() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    // (how, status, whether its exit handlers run)
    for (how, status, tidy) in [
        ("killed", 128 + libc::SIGKILL, false),
        ("aborts", 128 + libc::SIGABRT, false),
        ("leaves", UNHARMED, false),
        ("execs", UNHARMED, true),
        ("run", UNHARMED, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("data"), dir.path().join("log"));
        let arguments = ["--", as_str(harmed()), how, as_str(&log), "900", "20"];
        let output = recorder(&file, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{how}: {output:?}");
        let recorded = Recorded::read(&file).unwrap();
        assert!(recorded.whole, "{how}");
        let steps = steps(&log);
        // The shim hands over what is complete ten times a second; the machine may be busy.
        let safe = match how {
            "run" => u64::MAX,
            "execs" => steps[899].0 - 1_000_000_000,
            _ => steps.last().unwrap().0 - 1_000_000_000,
        };
        let before: Vec<_> = steps.iter().filter(|(ts, _)| *ts <= safe).collect();
        let (at, launched) = *before[before.len() - 1];
        let count = recorded.ops.iter().filter(|op| op.end.0 <= at).count();
        let last = recorded.ops.iter().map(|op| op.end.0).max();
        assert_eq!(
            count as u64, launched,
            "{how} up to {at}, last {last:?}, {:?} {output:?}",
            recorded.states
        );
        if how == "execs" {
            let second = recorded.ops.iter().filter(|op| op.start.0 > steps[899].0);
            assert_eq!(second.count(), 200, "the second program is recorded whole");
        }
        if tidy {
            assert!(!String::from_utf8_lossy(&output.stderr).contains("not hand over"));
        }
    }
}

#[test]
fn children_and_threads_and_closed_files_change_nothing() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    // (mode, numbers, launches of all processes)
    for (mode, numbers, launches) in [
        ("forks", ["40", ""], 800),
        ("starts", ["40", ""], 1_200),
        ("closes", ["40", ""], 800),
        ("threads", ["64", "20"], 1_280),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("data"), dir.path().join("log"));
        let plain = std::process::Command::new(harmed())
            .args([mode, as_str(&log)])
            .args(numbers)
            .output()
            .unwrap();
        let mut arguments = vec!["--", as_str(harmed()), mode, as_str(&log)];
        arguments.extend(numbers);
        let output = recorder(&file, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(UNHARMED), "{mode}: {output:?}");
        assert_eq!(output.stdout, plain.stdout, "{mode}");
        let recorded = Recorded::read(&file).unwrap();
        let quality = &report(&file)["quality"];
        let lost = quality["cupti_lost"].as_u64().unwrap() + quality["shim_lost"].as_u64().unwrap();
        if lost == 0 {
            assert_eq!(recorded.ops.len(), launches, "{mode}");
        }
        let mut seen: Vec<_> = recorded
            .ops
            .iter()
            .map(|op| (op.pid, op.correlation))
            .collect();
        seen.sort_unstable();
        let before = seen.len();
        seen.dedup();
        assert_eq!(seen.len(), before, "{mode}: a record twice");
    }
}

#[test]
fn short_lived_processes_are_recorded_and_leave_nothing_in_gdiag() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("data"), dir.path().join("log"));
    // The shell goes on when it is told to, so that gdiag can be looked at before and after. By a file: whoever wakes a
    // target is looked at as well, and the symbols of this program take more memory than all that is to be seen here.
    let script = format!(
        "one() {{ {0} run {1} 1 >/dev/null; [ $? = 42 ] || exit 9; }}; \
         go() {{ touch {2}/$1; until [ -e {2}/$1.seen ]; do sleep 0.02; done; }}; \
         one; one; go ready; \
         i=0; while [ $i -lt 200 ]; do one; i=$((i+1)); done; go done; exit 7",
        as_str(harmed()),
        as_str(&log),
        as_str(dir.path())
    );
    let gdiag =
        Process::start(recorder(&file, &["--", "sh", "-c", &script]).stderr(Stdio::piped()));
    let look = |mark: &str| {
        wait_until(mark, || dir.path().join(mark).exists());
        // The last process is gone for gdiag, too, a look later.
        wait_until("its shims are forgotten", || {
            std::fs::read_to_string(format!("/proc/{}/maps", gdiag.pid()))
                .is_ok_and(|maps| !maps.contains("memfd:gdiag-shim"))
        });
        // The pages of the ring buffers are used one after the other, whatever comes.
        (descriptors(gdiag.pid()), memory_kb(gdiag.pid(), "RssAnon"))
    };
    let seen = |mark: &str| std::fs::write(dir.path().join(format!("{mark}.seen")), "").unwrap();
    let before = look("ready");
    seen("ready");
    let after = look("done");
    seen("done");
    let output = gdiag.end();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    // Each mapped file stays open once, and some are seen late; but nothing stays of each process.
    assert!(
        after.0 < before.0 + 50,
        "{} descriptors, then {}",
        before.0,
        after.0
    );
    let recorded = Recorded::read(&file).unwrap();
    let mut pids: Vec<_> = recorded.ops.iter().map(|op| op.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    eprintln!(
        "{} of 202 processes recorded; RssAnon {} kB, then {} kB",
        pids.len(),
        before.1,
        after.1
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(recorded.ops.len(), pids.len() * 10, "each whole");
    assert!(
        pids.len() == 202 || stderr.contains("ended before gdiag could read"),
        "{} {stderr}",
        pids.len()
    );
    assert!(pids.len() >= 190, "{} {stderr}", pids.len());
    assert!(after.1 < before.1 + 20_000, "{before:?} {after:?}");
}

#[test]
fn of_two_gdiags_the_second_says_who_was_first() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let mut service = service(dir.path());
    let pid = service.pid().to_string();
    let (first_file, second_file) = (dir.path().join("first"), dir.path().join("second"));
    let first = Process::start(&mut recorder(&first_file, &["-q", "-p", &pid]));
    let shim = Shared::of(service.pid()).unwrap();
    wait_until("the first collects", || shim.state() == state::ACTIVE);
    let second = recorder(&second_file, &["-p", &pid, "-d", "300ms"])
        .output()
        .unwrap();
    assert!(second.status.success(), "{second:?}");
    let stderr = String::from_utf8_lossy(&second.stderr);
    let said = format!("another gdiag (pid {}) records the GPU", first.pid());
    assert_eq!(stderr.matches(&said).count(), 1, "{stderr}");
    assert_eq!(shim.state(), state::ACTIVE, "the first goes on");
    assert!(Recorded::read(&second_file).unwrap().ops.is_empty());
    first.signal(libc::SIGINT);
    assert!(first.end().status.success());
    let recorded = Recorded::read(&first_file).unwrap();
    assert!(recorded.whole && !recorded.ops.is_empty());
    assert!(service.is_running());
}

#[test]
fn limits_of_the_target_are_respected() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    // A file larger than that would be a SIGXFSZ; gdiag itself has no limit.
    for (limit, recorded) in [("--fsize=4000000", true), ("--fsize=100000", false)] {
        let (file, log) = (dir.path().join("data"), dir.path().join("log"));
        let arguments = [
            "--",
            "prlimit",
            limit,
            as_str(harmed()),
            "run",
            as_str(&log),
            "20",
        ];
        let output = recorder(&file, &arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(UNHARMED), "{limit}: {output:?}");
        let ops = Recorded::read(&file).unwrap().ops.len();
        assert_eq!(ops, if recorded { 200 } else { 0 }, "{limit}");
    }
}

#[test]
fn limits_of_gdiag_are_told_or_worked_around() {
    if !can_run() {
        return;
    }
    let _machine = beside_others();
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("data"), dir.path().join("log"));
    let job = ["--", as_str(harmed()), "run", as_str(&log), "20"];
    let run = |prepare: &str, arguments: &[&str]| {
        std::process::Command::new("sh")
            .args(["-c", &format!("{prepare}; exec \"$@\""), "sh"])
            .arg(env!("CARGO_BIN_EXE_gdiag"))
            .args(["record", "-o", as_str(&file)])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    // Without a place for temporary files, and without a home.
    let output = run("unset HOME; export TMPDIR=/nonexistent", &job);
    assert_eq!(output.status.code(), Some(UNHARMED), "{output:?}");
    assert_eq!(Recorded::read(&file).unwrap().ops.len(), 200);
    // The soft limit is gdiag's to raise, and not for the command.
    let shell = ["--", "sh", "-c", "exit $(ulimit -n)"];
    let output = run("ulimit -S -n 33", &shell);
    assert_eq!(output.status.code(), Some(33), "{output:?}");
    // The hard one is not: the command does not run, and it is said why.
    let _ = std::fs::remove_file(&log);
    // All limits are told alike: with 21 libbpf took features of the kernel for missing.
    for few in [12, 20, 21, 22, 50, 127] {
        let output = run(&format!("ulimit -n {few}"), &job);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let told =
            format!("gdiag may have {few} files open, and needs 128\nhint: raise the hard limit");
        assert!(stderr.contains(&told), "{stderr}");
        assert!(!log.exists(), "the command did not run");
    }
    // Nothing is left behind then.
    let output = run("ulimit -n 20; export TMPDIR=$PWD", &job);
    assert_eq!(output.status.code(), Some(125));
    // A place where no recording can be made: likewise, before the command runs.
    let _ = std::fs::remove_file(&log);
    let output = gdiag()
        .args(["record", "-o", "/proc/gdiag.data"])
        .args(job)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(!log.exists(), "the command did not run");
}

#[test]
fn a_storm_of_processes_and_threads_is_recorded_or_counted() {
    if !can_run() {
        return;
    }
    let _machine = alone();
    let dir = tempfile::tempdir().unwrap();
    let (file, log) = (dir.path().join("data"), dir.path().join("log"));
    let numbers = ["2000", "500", "300"];
    let mut recording = Process::start(
        recorder(
            &file,
            &["-q", "-a", "--", as_str(harmed()), "storm", as_str(&log)],
        )
        .args(numbers)
        .stderr(Stdio::piped()),
    );
    let own = recording.pid();
    let mut most = 0;
    wait_until("the storm is over", || {
        most = most.max(memory_kb(recording.pid(), "VmHWM"));
        !recording.is_running()
    });
    let output = recording.end();
    // With -a the command only gives the time.
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let recorded = Recorded::read(&file).unwrap();
    let name = |id| recorded.names.get(&id).map_or("", String::as_str);
    let storm = recorded
        .tasks
        .iter()
        .find(|t| name(t.comm) == "harmed" && t.ppid.0 == own)
        .expect("it was seen");
    let children: Vec<_> = recorded
        .tasks
        .iter()
        .filter(|t| t.reason == (TaskReason::New { parent: storm.tid }))
        .collect();
    let ended = children
        .iter()
        .filter(|child| recorded.exits.iter().any(|exit| exit.tid == child.tid))
        .count();
    let lost = recorded.bpf_lost();
    eprintln!(
        "{} born, {ended} ended, {lost} lost, {most} kB at most",
        children.len()
    );
    assert!(children.len() <= 2_800);
    if lost == 0 {
        assert_eq!((children.len(), ended), (2_800, 2_800));
    }
    assert!(most < 500_000, "{most} kB");
}

#[test]
fn what_the_kernel_side_loses_is_counted_placed_and_shown() {
    if !can_run() {
        return;
    }
    let _machine = alone();
    let dir = tempfile::tempdir().unwrap();
    let mut service = service(dir.path());
    let _load = Process::start(
        std::process::Command::new(hostload())
            .args(["switch", "-s", "60"])
            .stdout(Stdio::null()),
    );
    let file = dir.path().join("data");
    let gdiag = Process::start(recorder(&file, &["-a", "--strict"]).stderr(Stdio::piped()));
    let shim = Shared::of(service.pid()).unwrap();
    wait_until("it records", || shim.state() == state::ACTIVE);
    gdiag.signal(libc::SIGSTOP);
    let stopped = gdiag::collect::clock::monotonic().0;
    // At 24 bytes each, 16 MiB are full after 700,000 switches and wakings.
    pass(Duration::from_secs(5));
    let going_on = gdiag::collect::clock::monotonic().0;
    gdiag.signal(libc::SIGCONT);
    wait_until("it records again", || shim.state() == state::ACTIVE);
    gdiag.signal(libc::SIGINT);
    let output = gdiag.end();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(service.is_running());

    let recorded = Recorded::read(&file).unwrap();
    let lost = recorded.bpf_lost();
    eprintln!("{lost} lost: {:?}", recorded.bpf_losses);
    assert!(lost > 0, "{stderr}");
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(recorded.whole, "--strict keeps the file");
    // The first is the stop; a slow gdiag may lose more while it catches up.
    let (_, _, from, to) = recorded.bpf_losses[0];
    assert!(from < going_on && to > stopped && to > from);
    assert!(recorded.bpf_losses.iter().all(|loss| loss.2 < loss.3));
    let report = report(&file);
    assert_eq!(report["quality"]["bpf_lost"], lost);
    let warnings = report["quality"]["warnings"].to_string();
    assert!(warnings.contains("lost"), "{warnings}");
    let mut touched = 0;
    for gap in report["gpus"][0]["gaps"].as_array().unwrap() {
        let at = |key: &str| gap[key].as_u64().unwrap();
        if at("start_ns") < to && at("end_ns") > from {
            touched += 1;
            // The device's own time is known all the same.
            for part in gap["parts"].as_array().unwrap() {
                let inside =
                    part["start_ns"].as_u64() < Some(to) && part["end_ns"].as_u64() > Some(from);
                let host = part["cause"].as_str().unwrap().starts_with("host.");
                assert!(!(inside && host), "{gap}");
            }
        }
    }
    assert!(touched > 0);
}
