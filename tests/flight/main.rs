//! The flight recorder: started, asked, stopped, killed. Needs root, BTF and `make simgpu`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gdiag::event::Event;
use gdiag::store::Reader;
use nix::sys::signal::Signal;

use support::{
    can_run, gdiag, job, kernel_objects, length, new_name, report, said, send, wait_until, Process,
    Recorder,
};

const LONG: [&str; 4] = ["--seconds", "300", "--kernels", "5"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Until a moment that means nothing.
fn pass(time: Duration) {
    let moment = Instant::now() + time;
    while Instant::now() < moment {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Operations of the device in a recording.
fn operations(path: &Path) -> usize {
    let mut operations = 0;
    Reader::open(path)
        .unwrap()
        .for_each(|event| {
            operations += usize::from(matches!(event, Event::GpuOp(_)));
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    operations
}

fn records_the_gpu(recorder: &Recorder, dir: &Path) {
    let file = dir.join("looked.data");
    wait_until("it records the GPU", || {
        let (status, _, errors) = said(&recorder.ask("snapshot", &["-o", text(&file)]));
        assert_eq!(status, Some(0), "{errors}");
        operations(&file) > 0
    });
}

#[test]
fn a_recorder_is_asked_for_snapshots_and_goes_on_until_it_is_stopped() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let job = job(dir.path(), &LONG);
    let recorder = Recorder::start(&["-p", &job.pid().to_string(), "--window", "30s"]);
    wait_until("it holds some seconds", || {
        let stat = recorder.stat().unwrap();
        assert_eq!(stat["schema"], "gdiag.stat/1");
        assert_eq!(stat["pid"], recorder.pid);
        assert_eq!(stat["lost"], 0);
        let held = stat["to_ns"].as_u64().unwrap() - stat["from_ns"].as_u64().unwrap();
        held > 2_500_000_000 && stat["events"].as_u64().unwrap() > 1_000
    });

    // Named from where the caller is.
    let snapshot = |arguments: &[&str]| {
        let output = gdiag()
            .args(["snapshot", "--name", &recorder.name, "-o", "now.data"])
            .args(arguments)
            .current_dir(dir.path())
            .output()
            .unwrap();
        let (status, out, errors) = said(&output);
        assert_eq!((status, out.as_str()), (Some(0), ""), "{errors}");
        assert!(errors.starts_with("[ gdiag snapshot: "), "{errors}");
    };
    let (now, old) = (dir.path().join("now.data"), dir.path().join("now.data.old"));
    snapshot(&[]);
    let first = report(&now);
    assert!(length(&first) > Duration::from_secs(2));
    assert!(first["gpus"][0]["busy_ns"].as_u64().unwrap() > 0);
    assert_eq!(first["recording"]["gpu_source"], "simulated");
    assert_eq!(first["quality"]["unmatched_gpu_records"], 0);

    snapshot(&["--last", "1s"]);
    assert_eq!(report(&old), first);
    let last = report(&now);
    assert_eq!(length(&last), Duration::from_secs(1));
    // The device never rests for long: its records reach to both ends.
    let window = last["gpus"][0]["window_ns"].as_u64().unwrap();
    assert!(window > 900_000_000, "{window}");

    let end = dir.path().join("end.data");
    let objects = recorder.bpf_objects();
    assert!(!objects.is_empty() && objects.is_subset(&kernel_objects()));
    let (status, _, errors) = said(&recorder.ask("stop", &["-o", text(&end)]));
    assert_eq!(status, Some(0), "{errors}");
    assert!(recorder.is_gone());
    assert!(length(&report(&end)) >= length(&first));
    wait_until("the kernel forgets its objects", || {
        objects.is_disjoint(&kernel_objects())
    });
    assert_eq!(recorder.stat(), None);
}

#[test]
fn only_one_has_a_name_and_none_is_status_3() {
    if !can_run() {
        return;
    }
    let name = new_name();
    for command in ["stat", "snapshot", "stop"] {
        let dir = tempfile::tempdir().unwrap();
        let output = gdiag()
            .args([command, "--name", &name])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let (status, out, errors) = said(&output);
        assert_eq!((status, out.as_str()), (Some(3), ""), "{errors}");
        assert!(
            errors.starts_with(&format!(
                "gdiag: no flight recorder called '{name}' is running\n"
            )),
            "{errors}"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    let sleeper = Process::start(Command::new("sleep").arg("300"));
    let pid = sleeper.pid().to_string();
    let recorder = Recorder::start(&["-p", &pid]);
    let output = gdiag()
        .args(["start", "--name", &recorder.name, "-p", &pid])
        .output()
        .unwrap();
    let (status, out, errors) = said(&output);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    let said_so = format!(
        "gdiag: a flight recorder called '{}' is running already (pid {})\n",
        recorder.name, recorder.pid
    );
    assert!(errors.starts_with(&said_so), "{errors}");
    // Another name is another recorder.
    drop(Recorder::start(&["-p", &pid]));
    assert!(recorder.stat().is_some());
}

#[test]
fn what_cannot_be_recorded_is_said_at_once() {
    if !can_run() {
        return;
    }
    let output = gdiag().args(["start", "-p", "4194304"]).output().unwrap();
    let (status, out, errors) = said(&output);
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(
        errors.starts_with("gdiag: no process has pid 4194304\n"),
        "{errors}"
    );
}

#[test]
fn when_the_targets_have_ended_what_is_held_waits_to_be_asked_for() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), &LONG);
    let recorder = Recorder::start(&["-p", &job.pid().to_string()]);
    let objects = recorder.bpf_objects();
    records_the_gpu(&recorder, dir.path());
    job.signal(Signal::SIGKILL);
    job.0.wait().unwrap();
    wait_until("it sees that", || recorder.stat().unwrap()["ended"] == true);
    wait_until("the kernel forgets its objects", || {
        objects.is_disjoint(&kernel_objects())
    });

    let file = dir.path().join("end.data");
    let (status, _, errors) = said(&recorder.ask("snapshot", &["-o", text(&file)]));
    assert_eq!(status, Some(0), "{errors}");
    assert!(operations(&file) > 0);
    let (status, _, errors) = said(&recorder.ask("stop", &[] as &[&str]));
    assert_eq!(status, Some(0), "{errors}");
    assert!(recorder.is_gone());
}

#[test]
fn with_events_to_wait_for_the_end_of_the_targets_is_written_by_itself() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), &LONG);
    let file = dir.path().join("end.data");
    let recorder = Recorder::start(&[
        "-p",
        &job.pid().to_string(),
        "--snapshot-on",
        "gap>100s",
        "--window",
        "200s",
        "-o",
        text(&file),
    ]);
    records_the_gpu(&recorder, dir.path());
    job.signal(Signal::SIGKILL);
    job.0.wait().unwrap();
    wait_until("it ends", || recorder.is_gone());
    assert!(operations(&dir.path().join("end.data.1")) > 0);
}

#[test]
fn a_killed_recorder_leaves_nothing_and_the_job_goes_on() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut job = job(dir.path(), &LONG);
    let files = || {
        let mut names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = files();
    let recorder = Recorder::start(&["-p", &job.pid().to_string()]);
    wait_until("it records", || {
        recorder.stat().unwrap()["events"].as_u64().unwrap() > 1_000
    });
    let objects = recorder.bpf_objects();
    assert!(objects.is_subset(&kernel_objects()));
    send(recorder.pid, Signal::SIGKILL);
    wait_until("it is gone", || recorder.is_gone());
    wait_until("the kernel forgets its objects", || {
        objects.is_disjoint(&kernel_objects())
    });
    let (status, _, errors) = said(&recorder.ask("stop", &[] as &[&str]));
    assert_eq!(status, Some(3));
    assert!(errors.contains("nothing is left to clean up"), "{errors}");
    assert_eq!(files(), before);
    assert!(job.is_running());

    // The next one finds everything as it was.
    let next = Recorder::start(&["-p", &job.pid().to_string()]);
    records_the_gpu(&next, dir.path());
}

#[test]
fn it_keeps_nothing_of_whoever_started_it() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Process::start(Command::new("sleep").arg("300"));
    let name = new_name();
    // As a script that holds a lock does.
    let script = format!(
        "exec 9>lock; exec {} start --name {name} -p {}",
        env!("CARGO_BIN_EXE_gdiag"),
        sleeper.pid()
    );
    let output = Command::new("timeout")
        .args(["60", "sh", "-c", &script])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (status, line, errors) = said(&output);
    assert_eq!(status, Some(0), "{errors}");
    let recorder = Recorder::named(name, &line);
    let proc = |file: &str| format!("/proc/{}/{file}", recorder.pid);
    assert_eq!(fs::read_link(proc("cwd")).unwrap(), Path::new("/"));
    for entry in fs::read_dir(proc("fd")).unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        assert!(!target.starts_with(dir.path()), "{target:?}");
        if ["0", "1", "2"].iter().any(|fd| entry.file_name() == *fd) {
            assert_eq!(target, Path::new("/dev/null"));
        }
    }
    let stat = fs::read_to_string(proc("stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = rest.split(' ').collect();
    // It leads no session, and has no terminal.
    assert_ne!(fields[3], recorder.pid.to_string());
    assert_eq!(fields[4], "0");
}

#[test]
fn a_signal_ends_it_cleanly() {
    if !can_run() {
        return;
    }
    let sleeper = Process::start(Command::new("sleep").arg("300"));
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let recorder = Recorder::start(&["-p", &sleeper.pid().to_string()]);
        send(recorder.pid, signal);
        wait_until("it ends", || recorder.is_gone());
        assert_eq!(recorder.stat(), None);
    }
}

#[test]
fn a_snapshot_that_finds_no_room_is_told_and_the_recorder_goes_on() {
    if !can_run() {
        return;
    }
    let sleeper = Process::start(Command::new("sleep").arg("300"));
    let recorder = Recorder::start(&["-p", &sleeper.pid().to_string()]);
    let (status, out, errors) = said(&recorder.ask("snapshot", &["-o", "/dev/full"]));
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(
        errors.starts_with("gdiag: no snapshot in /dev/full: "),
        "{errors}"
    );
    assert!(errors.contains("No space left"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("now.data");
    let (status, _, errors) = said(&recorder.ask("snapshot", &["-o", text(&file)]));
    assert_eq!(status, Some(0), "{errors}");
    // Written by whom it was asked for: nobody else may read it.
    assert!(report(&file)["recording"]["end_ns"].is_u64());
}

/// Stops the job for a while; the device runs dry.
fn stop_for(job: &Process, time: Duration) {
    job.signal(Signal::SIGSTOP);
    pass(time);
    job.signal(Signal::SIGCONT);
}

#[test]
fn a_gap_is_written_once_with_its_cause() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let job = job(dir.path(), &LONG);
    let file = dir.path().join("gap.data");
    let recorder = Recorder::start(&[
        "-p",
        &job.pid().to_string(),
        "--snapshot-on",
        "gap>700ms",
        "-o",
        text(&file),
    ]);
    wait_until("it records", || {
        recorder.stat().unwrap()["events"].as_u64().unwrap() > 5_000
    });
    stop_for(&job, Duration::from_millis(1_000));
    let first = dir.path().join("gap.data.1");
    wait_until("the gap is written", || {
        recorder.stat().unwrap()["snapshots"] == 1
    });

    let stat = recorder.stat().unwrap();
    assert_eq!(stat["triggers"][0]["fired"], 1, "{stat}");
    let message = stat["messages"][0].as_str().unwrap();
    assert!(
        message.starts_with("gap of ") && message.contains(" on GPU 0 ended at +"),
        "{message}"
    );
    assert!(message.contains(text(&first)), "{message}");
    let report = report(&first);
    let gaps = report["gpus"][0]["gaps"].as_array().unwrap();
    let length = |gap: &serde_json::Value| {
        gap["end_ns"].as_u64().unwrap() - gap["start_ns"].as_u64().unwrap()
    };
    let longest = gaps.iter().max_by_key(|gap| length(gap)).unwrap();
    assert!(length(longest) > 700_000_000, "{longest}");
    let stopped: u64 = longest["parts"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|part| part["cause"] == "host.stopped")
        .map(length)
        .sum();
    assert!(stopped > 700_000_000, "{longest}");
    // And after it, what --after asks for.
    let after =
        report["recording"]["end_ns"].as_u64().unwrap() - longest["end_ns"].as_u64().unwrap();
    assert!(after >= 1_000_000_000, "{after}");
    assert!(!dir.path().join("gap.data.2").exists());
}

/// `gdiag record` in the foreground, and what it says.
fn record(dir: &Path, arguments: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    command
        .arg("record")
        .args(arguments)
        .current_dir(dir)
        .stderr(File::create(dir.join("said")).unwrap());
    Process::start(&mut command)
}

#[test]
fn record_writes_around_usr2_and_nothing_without() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let sleeper = Process::start(Command::new("sleep").arg("300"));
    let said = || fs::read_to_string(dir.path().join("said")).unwrap();
    let pid = sleeper.pid().to_string();
    let mut asked = record(dir.path(), &["-p", &pid, "--window", "5s", "-o", "x.data"]);
    // It says so when the kernel side runs: from then on signals are its own.
    wait_until("signals are blocked", || {
        let status = fs::read_to_string(format!("/proc/{}/status", asked.pid())).unwrap();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"))
            .unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (Signal::SIGUSR2 as u64 - 1) != 0
    });
    asked.signal(Signal::SIGUSR2);
    wait_until("it is written", || said().contains("x.data.1"));
    asked.signal(Signal::SIGINT);
    assert_eq!(asked.0.wait().unwrap().code(), Some(0));
    assert!(said().contains("1 snapshots"), "{}", said());
    report(&dir.path().join("x.data.1"));
    assert!(!dir.path().join("x.data").exists());

    let arguments = [
        "-p",
        &pid,
        "--snapshot-on",
        "gap>1s",
        "-d",
        "1s",
        "-o",
        "y.data",
    ];
    let mut quiet = record(dir.path(), &arguments);
    assert_eq!(quiet.0.wait().unwrap().code(), Some(0));
    assert!(
        said().contains("none of the events of --snapshot-on happened"),
        "{}",
        said()
    );
    assert!(!dir.path().join("y.data.1").exists());
}

#[test]
fn a_thread_that_others_keep_from_its_cpu_is_written() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let spin = |name: &str| {
        let mut command = Command::new("taskset");
        command.args([
            "-c",
            "0",
            "sh",
            "-c",
            &format!("while :; do :; done # {name}"),
        ]);
        Process::start(&mut command)
    };
    let target = spin("target");
    let mut recorder = record(
        dir.path(),
        &[
            "-p",
            &target.pid().to_string(),
            "--snapshot-on",
            "runq>5ms",
            "--after",
            "200ms",
            "--snapshots",
            "1",
            "-o",
            "q.data",
        ],
    );
    let hogs: Vec<Process> = (0..4).map(|_| spin("hog")).collect();
    let said = || fs::read_to_string(dir.path().join("said")).unwrap();
    wait_until("it is written", || said().contains("q.data.1"));
    wait_until("it says that there will be no more", || {
        said().contains("1 of 1 snapshots")
    });
    drop(hogs);
    recorder.signal(Signal::SIGTERM);
    assert_eq!(recorder.0.wait().unwrap().code(), Some(0));
    let line = said();
    let line = line.lines().find(|line| line.contains("q.data.1")).unwrap();
    assert!(
        line.starts_with(&format!("gdiag: thread {} waited ", target.pid())),
        "{line}"
    );
    assert!(!dir.path().join("q.data.2").exists());
    let mut waits = 0;
    Reader::open(&dir.path().join("q.data.1"))
        .unwrap()
        .for_each(|event| {
            if let Event::CpuWait(wait) = event {
                waits += u32::from(wait.end.saturating_sub(wait.start).0 > 5_000_000);
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert!(waits > 0);
}

#[test]
fn nothing_that_is_sent_to_it_keeps_it_from_recording() {
    if !can_run() {
        return;
    }
    let sleeper = Process::start(Command::new("sleep").arg("300"));
    let recorder = Recorder::start(&["-p", &sleeper.pid().to_string()]);
    let address = format!("gdiag/flight/0/{}", recorder.name);
    let address = SocketAddr::from_abstract_name(address).unwrap();
    let connect = || UnixStream::connect_addr(&address).unwrap();

    let mut silent: Vec<UnixStream> = (0..200).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"{\"gdiag\":1,").unwrap();
    for garbage in [
        &b"\n"[..],
        b"{}\n",
        b"{\"gdiag\":2,\"ask\":\"stat\"}\n",
        b"{\"gdiag\":1,\"ask\":\"explode\"}\n",
        b"\0\xff\xfe\n",
        &[b'x'; 100_000],
    ] {
        let mut stream = connect();
        // It may have had enough of it.
        let _ = stream.write_all(garbage);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        assert!(!answer.contains("\"stat\""), "{answer}");
    }
    // Asks and asks, and never reads.
    let mut deaf: Vec<UnixStream> = (0..100).map(|_| connect()).collect();
    for stream in &mut deaf {
        let _ = stream.write_all(b"{\"gdiag\":1,\"ask\":\"stat\"}\n");
    }
    // A snapshot without a file.
    let mut fileless = connect();
    fileless
        .write_all(b"{\"gdiag\":1,\"ask\":\"snapshot\",\"last_ns\":null}\n")
        .unwrap();
    let mut answer = String::new();
    let _ = fileless.read_to_string(&mut answer);
    assert!(
        answer.is_empty() || answer.contains("open file"),
        "{answer}"
    );

    let first = recorder.stat().unwrap();
    wait_until("it records on", || {
        let stat = recorder.stat().unwrap();
        stat["to_ns"].as_u64() > first["to_ns"].as_u64()
            && stat["recorded_events"].as_u64() > first["recorded_events"].as_u64()
    });
    silent.clear();
}

#[test]
fn a_recorder_that_is_killed_while_it_writes_leaves_no_file_that_looks_whole() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let job = job(dir.path(), &LONG);
    for round in 0..6 {
        let recorder = Recorder::start(&["-p", &job.pid().to_string()]);
        wait_until("it records", || {
            recorder.stat().unwrap()["events"].as_u64().unwrap() > 2_000
        });
        let file = dir.path().join(format!("{round}.data"));
        let mut asking = Process::start(
            gdiag()
                .args(["snapshot", "--name", &recorder.name, "-o"])
                .arg(&file)
                .stderr(Stdio::null()),
        );
        wait_until("the file is there", || file.exists());
        pass(Duration::from_millis(120 * round));
        send(recorder.pid, Signal::SIGKILL);
        let status = asking.0.wait().unwrap().code();
        let whole = Reader::open(&file).is_ok_and(|mut reader| {
            let _ = reader.for_each(|_| std::ops::ControlFlow::Continue(()));
            reader.coverage().is_whole()
        });
        // It may have been killed after the last byte, and before it could say so.
        assert!(
            (status == Some(0) && whole) || status == Some(1),
            "round {round}: {status:?}, {whole}"
        );
    }
}
