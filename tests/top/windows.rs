//! Windows as text or JSON, for scripts: what is printed, with which status, and that it ends.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{can_watch, said, send, simgpu, wait_until, Process, Terminal};

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "60", env!("CARGO_BIN_EXE_gdiag"), "top"])
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Each line is a report.
fn reports(text: &str) -> Vec<Value> {
    let reports: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for report in &reports {
        assert_eq!(report["schema"], "gdiag.report/1");
    }
    reports
}

/// From when to when, in nanoseconds.
fn window(report: &Value) -> (u64, u64) {
    let at = |key: &str| report["recording"][key].as_u64().unwrap();
    (at("start_ns"), at("end_ns"))
}

#[test]
fn once_tells_all_of_a_command_that_ends_before_the_window_does() {
    if !can_watch() {
        return;
    }
    for (seconds, status) in [("0.1", 0), ("0.9", 7)] {
        let script = format!("sleep {seconds}; exit {status}");
        let output = top(&["--once", "--json", "--", "sh", "-c", &script])
            .output()
            .unwrap();
        let (code, text, errors) = said(&output);
        assert_eq!(code, Some(status), "{errors}");
        let reports = reports(&text);
        assert_eq!(reports.len(), 1, "{text}");
        let (start, end) = window(&reports[0]);
        let slept = (seconds.parse::<f64>().unwrap() * 1e9) as u64;
        assert!(end - start >= slept, "{text}");
    }
}

#[test]
fn windows_follow_each_other_without_a_hole() {
    let Some(simgpu) = simgpu().filter(|_| can_watch()) else {
        return;
    };
    let job = Process::start(
        Command::new(simgpu.join("gpuload"))
            .env("LD_LIBRARY_PATH", &simgpu)
            .args(["--seconds", "300", "--kernels", "5"]),
    );
    let pid = job.pid().to_string();
    // One that is no number of slices.
    for width in ["1s", "1300ms"] {
        let output = top(&["--json", "-n", "3", "-w", width, "-p", &pid])
            .output()
            .unwrap();
        let (code, text, errors) = said(&output);
        assert_eq!(code, Some(0), "{errors}");
        let windows: Vec<_> = reports(&text).iter().map(window).collect();
        assert_eq!(windows.len(), 3, "{text}");
        for pair in windows.windows(2) {
            assert_eq!(pair[0].1, pair[1].0, "{windows:?}");
        }
    }
    let output = top(&["--json", "-n", "3", "-w", "2s", "-I", "1s", "-p", &pid])
        .output()
        .unwrap();
    let (code, text, errors) = said(&output);
    assert_eq!(code, Some(0), "{errors}");
    let windows: Vec<_> = reports(&text).iter().map(window).collect();
    assert_eq!(windows.len(), 3, "{text}");
    for pair in windows.windows(2) {
        assert_eq!(pair[1].1 - pair[0].1, 1_000_000_000, "{windows:?}");
        assert!(pair[1].0 < pair[0].1, "{windows:?}");
    }
}

#[test]
fn without_a_terminal_there_is_one_window_also_of_a_recording() {
    if !can_watch() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["record", "-q", "-o"])
        .arg(&path)
        .args(["--", "sleep", "2.5"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let path = path.to_str().unwrap();
    let play = |more: &[&str]| {
        let output = top(&[&["-i", path, "-w", "1s"], more].concat()).output();
        let (code, text, errors) = said(&output.unwrap());
        assert_eq!(code, Some(0), "{errors}");
        text
    };
    let windows: Vec<_> = reports(&play(&["--json"])).iter().map(window).collect();
    // The last one is shorter.
    assert_eq!(windows.len(), 3, "{windows:?}");
    assert!(windows.windows(2).all(|pair| pair[0].1 == pair[1].0));
    assert_eq!(reports(&play(&["--once", "--json"])).len(), 1);
    assert_eq!(reports(&play(&["-n", "2", "--json"])).len(), 2);
    assert_eq!(play(&[]), play(&["--once"]));
    assert_ne!(play(&[]), play(&["--batch"]));
}

/// Prints into a pipe that is full, and that nobody reads.
fn into_full_pipe(arguments: &[&str]) -> (Child, File) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let flags = |flags| fcntl(&write, FcntlArg::F_SETFL(flags)).unwrap();
    flags(OFlag::O_NONBLOCK);
    let mut write_all = File::from(write.try_clone().unwrap());
    while write_all.write(&[b'x'; 4096]).is_ok() {}
    flags(OFlag::empty());
    let gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .arg("top")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(File::from(write))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (gdiag, File::from(read))
}

/// What a process is in.
fn has_blocked_writer(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.is_ok_and(|tasks| {
        tasks.flatten().any(|task| {
            let wchan = std::fs::read_to_string(task.path().join("wchan"));
            wchan.is_ok_and(|place| place.contains("pipe_write"))
        })
    })
}

#[test]
fn a_pipe_that_nobody_reads_does_not_keep_it_from_its_end() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    let pid = target.pid().to_string();
    let (mut gdiag, pipe) = into_full_pipe(&["--batch", "-w", "1s", "-p", &pid]);
    let id = gdiag.id();
    wait_until("it writes", || has_blocked_writer(id));
    send(id, Signal::SIGTERM);
    wait_until("the end", || gdiag.try_wait().unwrap().is_some());
    drop(pipe);

    let (mut gdiag, pipe) = into_full_pipe(&["--batch", "-w", "1s", "-d", "2s", "-p", &pid]);
    wait_until("the end", || gdiag.try_wait().unwrap().is_some());
    drop(pipe);
}

#[test]
fn it_ends_when_nobody_can_read_what_it_prints() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["top", "--batch", "-w", "1s", "-p"])
        .arg(target.pid().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(gdiag.stdout.take());
    wait_until("the end", || gdiag.try_wait().unwrap().is_some());
}

#[test]
fn a_thread_that_fails_ends_it_with_an_error() {
    if !can_watch() || !cfg!(debug_assertions) {
        return;
    }
    let target = Process::sleeper();
    let pid = target.pid().to_string();
    for arguments in [&["--once", "-p", &pid][..], &["--batch", "-p", &pid]] {
        let output = top(arguments)
            .env("GDIAG_TEST_PANIC", "analyst")
            .output()
            .unwrap();
        let (code, _, errors) = said(&output);
        assert_eq!(code, Some(1), "{errors}");
        assert!(
            errors.contains("the thread that analyses has failed"),
            "{errors}"
        );
    }
}

#[test]
fn what_there_was_no_time_for_is_a_loss() {
    if !can_watch() || !cfg!(debug_assertions) {
        return;
    }
    // It is busy enough to have events.
    let busy = "for i in $(seq 200); do sleep 0.01; done";
    for (strict, status) in [(&[][..], 0), (&["--strict"], 4)] {
        let arguments = [strict, &["--json", "-w", "1s", "--", "sh", "-c", busy]];
        let output = top(&arguments.concat())
            .env("GDIAG_TEST_QUEUE", "0")
            .output()
            .unwrap();
        let (code, text, errors) = said(&output);
        assert_eq!(code, Some(status), "{errors}");
        assert!(errors.contains("events were lost"), "{errors}");
        let lost = |report: &Value| report["quality"]["bpf_lost"].as_u64().unwrap();
        assert!(
            reports(&text).iter().any(|report| lost(report) > 0),
            "{text}"
        );
    }
}

#[test]
fn a_snapshot_that_was_asked_for_is_there_after_the_end() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    let terminal = Terminal::new(120, 30);
    let path = terminal.dir.path().join("kept");
    let arguments = format!("-p {} -o {}", target.pid(), path.display());
    for (keys, number) in [(&["w", "q"][..], 1), (&["P", "C-c"], 1)] {
        let file = path.with_extension(number.to_string());
        let _ = std::fs::remove_file(&file);
        let pid = terminal.start_top(&arguments);
        terminal.keys(keys);
        wait_until("the end", || crate::support::state(pid).is_none());
        terminal.wait_for("where it is", |screen| {
            screen.contains("wrote") && screen.contains("kept.1")
        });
        terminal.wait_for_shell();
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["report", "-i"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
