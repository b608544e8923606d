//! What other tracers get wrong in scripts: each live command, in each such situation, with its status
//! and what it says. docs/coming-from-perf.md has the table of what the others do.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "scenarios/machine.rs"]
#[allow(dead_code)] // The GPU is not needed here.
mod machine;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use machine::Machine;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// Each command that watches, without its target. Results of the first go to a file.
const LIVE: [&[&str]; 5] = [
    &["record", "-o", "x.data"],
    &["sched"],
    &["sched", "--timehist"],
    &["syscalls", "-s"],
    &["syscalls"],
];

fn gdiag(dir: &Path, command: &[&str], arguments: &[&str]) -> Command {
    let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    gdiag
        .args(command)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null());
    gdiag
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A process that does not outlive the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Something that is never idle for long, and makes system calls.
fn busy() -> Background {
    let load = Command::new("sh")
        .args(["-c", "while :; do sleep 0.01; done"])
        .spawn();
    Background(load.unwrap())
}

/// Watches a process while a command runs that says when it has begun, and then sends `signal` to gdiag.
fn interrupted(dir: &Path, command: &[&str], target: u32, signal: Signal) -> Output {
    let beside = [
        "-p",
        &target.to_string(),
        "--",
        "sh",
        "-c",
        // Whoever starts a test in the background has INT ignored in all of this: it may outlive gdiag.
        "echo begun >&2; exec sleep 20 >/dev/null 2>&1",
    ];
    let mut child = gdiag(dir, command, &beside)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let results = std::thread::spawn(move || {
        let mut all = Vec::new();
        stdout.read_to_end(&mut all).unwrap();
        all
    });
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut stderr = String::new();
    while !stderr.contains("begun\n") {
        assert_ne!(
            lines.read_line(&mut stderr).unwrap(),
            0,
            "{command:?}: {stderr}"
        );
    }
    // Until there is something to tell of.
    let begun = switches(target);
    while switches(target) < begun + 20 {
        std::thread::yield_now();
    }
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    lines.read_to_string(&mut stderr).unwrap();
    Output {
        status: child.wait().unwrap(),
        stdout: results.join().unwrap(),
        stderr: stderr.into_bytes(),
    }
}

/// How often the first thread of a process left its CPU by itself.
fn switches(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Check that `timeout`, systemd, a closed terminal and Ctrl-C all end a run with its result.
#[test]
fn a_signal_ends_a_run_with_its_result() {
    if Machine::ready().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = busy();
    for command in LIVE {
        for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
            // Under nohup, this test too, it is not to end anything.
            if signal == Signal::SIGHUP && gdiag::collect::process::ignores(signal as u32) {
                continue;
            }
            let output = interrupted(dir.path(), command, target.0.id(), signal);
            let stderr = text(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(0),
                "{command:?} {signal}: {stderr}"
            );
            let has_result = match command[0] {
                "record" => dir.path().join("x.data").exists(),
                _ => output.stdout.len() > 100,
            };
            assert!(has_result, "{command:?} {signal}: {stderr}");
            // One line for a script to read.
            let summary = format!("[ gdiag {}: ", command[0]);
            let summaries = stderr.lines().filter(|line| line.starts_with(&summary));
            assert_eq!(summaries.count(), 1, "{command:?} {signal}: {stderr}");
        }
    }
}

/// Check that gdiag stands in for the command that it launched.
#[test]
fn the_status_of_a_launched_command() {
    if Machine::ready().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let not_executable = dir.path().join("data");
    fs::write(&not_executable, "no program").unwrap();
    let not_executable = not_executable.to_str().unwrap();
    let cases: [(&[&str], i32); 6] = [
        (&["true"], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["sh", "-c", "kill -15 $$"], 143),
        (&["/nonexistent/program"], 127),
        (&[not_executable], 126),
    ];
    for command in LIVE {
        for (launched, status) in cases {
            let arguments = [&["--"], launched].concat();
            let output = gdiag(dir.path(), command, &arguments).output().unwrap();
            let stderr = text(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(status),
                "{command:?} {launched:?}: {stderr}"
            );
        }
    }
}

#[test]
fn a_pid_that_nobody_has_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let pid = i32::MAX.to_string();
    for command in LIVE {
        let output = gdiag(dir.path(), command, &["-p", &pid]).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        assert!(
            stderr.starts_with(&format!("gdiag: no process has pid {pid}\n")),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 2, "with a hint: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

/// Check that the number by which a container knows its process is answered with the one to use here.
#[test]
fn a_pid_of_another_namespace_is_translated() {
    if Machine::ready().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let free = (2..).find(|n| !Path::new(&format!("/proc/{n}")).exists());
    let inside = free.unwrap();
    let script = format!(
        "while :; do sleep 600 & [ $! -ge {inside} ] && break; kill $!; done; echo $!; wait"
    );
    let mut container = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = container.stdout.take().unwrap();
    let _container = Background(container);
    let mut said = String::new();
    BufReader::new(stdout).read_line(&mut said).unwrap();
    assert_eq!(said.trim(), inside.to_string());
    for command in LIVE {
        let output = gdiag(dir.path(), command, &["-p", &inside.to_string()])
            .output()
            .unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        let line =
            format!("gdiag: no process has pid {inside} here, but inside a PID namespace it is");
        assert!(stderr.starts_with(&line), "{stderr}");
    }
}

#[test]
fn a_cpu_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let output = gdiag(
        dir.path(),
        &["sched", "--cpus", "0,4095", "-d", "10ms"],
        &[],
    )
    .output();
    let output = output.unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("gdiag: no CPU 4095 is online"),
        "{stderr}"
    );
    assert!(stderr.contains("\nhint: "), "{stderr}");
    let output = gdiag(dir.path(), &["sched", "--cpus", "0-foo"], &[])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Check that `gdiag ... | head -1` ends quietly.
#[test]
fn a_closed_pipe_ends_quietly() {
    if Machine::ready().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = busy();
    let pid = target.0.id().to_string();
    for command in &LIVE[1..] {
        let mut child = gdiag(dir.path(), command, &["-q", "-p", &pid, "-d", "1s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        assert_eq!(text(&output.stderr), "", "{command:?}");
    }
}

/// Check that whoever reads recordings reads a cut one as far as it goes, and says so.
#[test]
fn a_cut_recording() {
    if Machine::ready().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "for i in $(seq 300); do /bin/true; done";
    let output = gdiag(
        dir.path(),
        &["record", "--syscalls", "-o", "x.data"],
        &["--", "sh", "-c", script],
    )
    .output();
    assert!(output.unwrap().status.success());
    let whole = fs::read(dir.path().join("x.data")).unwrap();
    // Without its end.
    fs::write(dir.path().join("cut.data"), &whole[..whole.len() * 3 / 4]).unwrap();
    for command in [
        &["sched"] as &[&str],
        &["sched", "--timehist"],
        &["sched", "--map"],
        &["syscalls", "-s"],
        &["syscalls"],
        &["export", "--format", "chrome", "-o", "out"],
        &["export", "--format", "perfetto", "-o", "out"],
    ] {
        let output = gdiag(dir.path(), command, &["-i", "x.data"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        let output = gdiag(dir.path(), command, &["-i", "cut.data"])
            .output()
            .unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {stderr}");
        let result = match command[0] {
            "export" => fs::read(dir.path().join("out")).unwrap(),
            _ => output.stdout,
        };
        assert!(result.len() > 100, "{command:?}");
        let said = format!("{stderr}{}", String::from_utf8_lossy(&result));
        assert!(
            said.contains("the end of this recording is missing"),
            "{command:?}: {stderr}"
        );
        let output = gdiag(dir.path(), command, &["-i", "/etc/passwd"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}");
    }
    // Who reads nothing but the result has to know.
    for command in [
        &["sched", "--json"] as &[&str],
        &["syscalls", "-s", "--json"],
    ] {
        for (file, whole) in [("x.data", true), ("cut.data", false)] {
            let output = gdiag(dir.path(), command, &["-i", file]).output().unwrap();
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["lost"].is_u64(), whole, "{command:?} {file}");
            let notes = json["notes"].to_string();
            let said = notes.contains("the end of this recording is missing");
            assert_eq!(said, !whole, "{command:?} {file}: {notes}");
        }
    }
}
