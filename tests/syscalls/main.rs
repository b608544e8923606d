//! `gdiag syscalls` on this kernel, against programs that know which calls they made. Needs root.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;

/// As the program has it.
const HOSTILE: &[u8] = b"a\x1b[2J;]\n\xe2\x82";

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf, as in CI, it must.
fn can_watch() -> bool {
    let root = nix::unistd::geteuid().is_root();
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

/// A program of tests/programs.
fn compiled(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join(format!("tests/programs/{name}/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("syscalls-{name}"));
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(cc)
        .args(["-O2", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    program
}

fn caller() -> &'static Path {
    // All tests of this file are one process.
    static CALLER: OnceLock<PathBuf> = OnceLock::new();
    CALLER.get_or_init(|| compiled("caller"))
}

fn gdiag(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    command.arg("syscalls").args(arguments).stdin(Stdio::null());
    command
}

/// gdiag with the program that makes all its calls.
fn watched(arguments: &[&str]) -> (Output, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let output = gdiag(arguments)
        .arg("--")
        .args([caller(), dir.path()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    (output, dir)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn nothing_lost(output: &Output) {
    let stderr = stderr(output);
    assert!(stderr.contains(", lost 0 ]"), "{stderr}");
}

/// The thread with this name, and one of its calls.
fn sum<'a>(document: &'a Value, comm: &str, call: &str) -> &'a Value {
    let threads = document["threads"].as_array().unwrap();
    let thread = threads
        .iter()
        .find(|t| t["comm"] == comm)
        .unwrap_or_else(|| panic!("no {comm} in {document}"));
    let calls = thread["calls"].as_array().unwrap();
    calls
        .iter()
        .find(|c| c["name"] == call)
        .unwrap_or_else(|| panic!("no {call} of {comm} in {thread}"))
}

#[test]
fn sums_are_those_of_the_program_to_the_unit() {
    if !can_watch() {
        return;
    }
    let (output, _dir) = watched(&["-s", "--json", "--errno-summary", "--hist"]);
    nothing_lost(&output);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "gdiag.syscalls/1");
    let of = |call| sum(&document, "syscalls-caller", call);

    assert_eq!(
        (&of("getppid")["count"], &of("getppid")["errors"]),
        (&1000.into(), &0.into())
    );
    let rmdir = of("rmdir");
    assert_eq!(
        (&rmdir["count"], &rmdir["errors"]),
        (&57.into(), &57.into())
    );
    assert_eq!(rmdir["errnos"]["ENOENT"], 50);
    assert_eq!(rmdir["errnos"]["ENOTDIR"], 7);
    assert_eq!(of("futex")["errnos"]["ETIMEDOUT"], 2);
    // Numbers that no call has.
    let other = of("(other)");
    assert_eq!(
        (&other["count"], &other["errnos"]["ENOSYS"]),
        (&6.into(), &6.into())
    );

    let nap = of("clock_nanosleep");
    assert_eq!(nap["count"], 5);
    let ns = |key: &str| nap[key].as_u64().unwrap();
    assert!(ns("min_ns") >= 20_000_000, "{nap}");
    assert!(ns("total_ns") >= 5 * ns("min_ns") && ns("total_ns") <= 5 * ns("max_ns"));
    assert!(
        ns("min_ns") <= ns("p50_ns")
            && ns("p50_ns") <= ns("p99_ns")
            && ns("p99_ns") <= ns("max_ns")
    );
    let buckets = nap["histogram"].as_array().unwrap();
    let counted: u64 = buckets.iter().map(|b| b["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 5);

    // Another thread, whatever its name, and a child.
    let hostile = String::from_utf8_lossy(HOSTILE);
    assert_eq!(sum(&document, &hostile, "getppid")["count"], 11);
    assert_eq!(sum(&document, "true", "getppid")["count"], 13);
    let execve = sum(&document, "true", "execve");
    assert_eq!(execve["count"], 1);
    let children = document["threads"].as_array().unwrap();
    assert_eq!(children.len(), 3, "{document}");
}

#[test]
fn lines_say_which_file_and_what_came_of_it() {
    if !can_watch() {
        return;
    }
    let filter = "openat,pread64,clock_nanosleep,futex,poll,rmdir,execve,exit_group";
    let (output, dir) = watched(&["--json", "--filter", filter]);
    nothing_lost(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &'static str, comm: &'static str| -> Vec<&Value> {
        let all = lines.iter();
        all.filter(|l| l["name"] == name && l["comm"] == comm)
            .collect()
    };

    let directory = dir.path().display();
    let reads = of("pread64", "syscalls-caller");
    let ours: Vec<&str> = reads
        .iter()
        .filter(|read| read["args"][3] == "7")
        .map(|read| read["args"][0].as_str().unwrap())
        .collect();
    let first = format!("3<{directory}/a\\x1b[2J;]\\n\u{fffd}>");
    let second = format!("3<{directory}/second>");
    assert_eq!(ours, [&first, &first, &first, &second, &second, &second]);

    let at = |offset: &str| -> Vec<&str> {
        let reads = reads.iter().filter(|read| read["args"][3] == *offset);
        reads
            .map(|read| read["args"][0].as_str().unwrap())
            .collect()
    };
    assert_eq!(
        at("8"),
        [0, 1, 2].map(|n| format!("3<{directory}/again{n}>"))
    );
    // What became of the first one is not seen here.
    let same = at("9");
    assert_eq!(same[0], format!("3<{directory}/0/same>"));
    assert!(
        [format!("3<{directory}/1/same>"), "3<.../same>".to_string()]
            .contains(&same[1].to_string()),
        "{same:?}"
    );

    let naps = of("clock_nanosleep", "syscalls-caller");
    assert_eq!(naps.len(), 5);
    for nap in naps {
        assert_eq!(nap["args"][0], "CLOCK_MONOTONIC");
        assert_eq!(nap["args"][2], "{20.0 ms}");
        assert_eq!(nap["result"], 0);
        let (start, end) = (&nap["start_ns"], &nap["end_ns"]);
        let took = nap["duration_ns"].as_u64().unwrap();
        assert_eq!(took, end.as_u64().unwrap() - start.as_u64().unwrap());
        assert!(took >= 20_000_000, "{nap}");
    }
    let timed_out = of("futex", "syscalls-caller");
    let timed_out: Vec<_> = timed_out
        .iter()
        .filter(|f| f["error"] == "ETIMEDOUT")
        .collect();
    assert_eq!(timed_out.len(), 2);
    assert_eq!(timed_out[0]["args"][1], "FUTEX_WAIT_PRIVATE");
    assert_eq!(timed_out[0]["args"][3], "{1.00 ms}");
    let failed = of("rmdir", "syscalls-caller");
    assert_eq!(failed[0]["args"][0], "\"/no/such/directory\"");
    assert_eq!(failed[0]["result"], -2);
    let polled = of("poll", "syscalls-caller")[0]["args"][0]
        .as_str()
        .unwrap()
        .to_string();
    assert!(
        polled.starts_with("[{fd=3<pipe:[") && polled.ends_with("]>, POLLIN}]"),
        "{polled}"
    );

    // The path is in no page of the child when it asks, and gone when it has what it asked for.
    assert_eq!(of("execve", "true")[0]["args"][0], "\"/bin/true\"");
    let last = of("exit_group", "syscalls-caller");
    assert_eq!((last.len(), &last[0]["result"]), (1, &Value::Null));
}

#[test]
fn no_name_controls_the_terminal() {
    if !can_watch() {
        return;
    }
    for arguments in [&["-S"] as &[&str], &["-s"], &["-T"]] {
        let (output, _dir) = watched(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let control = |c: &char| c.is_control() && *c != '\n';
        assert_eq!(text.chars().find(control), None, "{arguments:?}");
        assert!(text.contains("\\x1b[2J"), "{text}");
    }
}

#[test]
fn filters_leave_out_what_is_not_wanted() {
    if !can_watch() {
        return;
    }
    let count = |arguments: &[&str]| {
        let (output, _dir) = watched(arguments);
        String::from_utf8(output.stdout).unwrap().lines().count()
    };
    assert_eq!(count(&["--failed", "--filter", "rmd*"]), 57);
    assert_eq!(
        count(&["--duration", "19", "-e", "clock_nanosleep,getppid"]),
        5
    );
    assert_eq!(count(&["--max-events", "3", "-e", "getppid"]), 3);
    let (output, _dir) = watched(&["-s", "--json", "--filter", "!getppid"]);
    let document = String::from_utf8(output.stdout).unwrap();
    assert!(!document.contains("getppid") && document.contains("rmdir"));
}

#[test]
fn what_cannot_be_watched_is_said() {
    if !can_watch() {
        return;
    }
    let said = |arguments: &[&str]| {
        let output = gdiag(arguments).output().unwrap();
        let text = stderr(&output);
        assert!(output.stdout.is_empty(), "{output:?}");
        (output.status.code(), text)
    };
    for (arguments, status, part) in [
        (
            &["-p", "4194305"] as &[&str],
            1,
            "no process has pid 4194305",
        ),
        (&["-t", "4194305"], 1, "no thread has tid 4194305"),
        (&["-p", "2"], 1, "is a thread of the kernel"),
        (&["-e", "opneat"], 2, "there is 'openat'"),
        (&["--", "/no/such/program"], 127, "command not found"),
    ] {
        let (code, text) = said(arguments);
        assert_eq!(code, Some(status), "{text}");
        assert!(text.contains(part), "{text}");
    }
    let output = gdiag(&["-s", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn without_privileges_it_says_what_is_missing() {
    if !can_watch() {
        return;
    }
    // Where nobody can get at it.
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let binary = dir.path().join("gdiag");
    std::fs::copy(env!("CARGO_BIN_EXE_gdiag"), &binary).unwrap();
    let output = Command::new(&binary)
        .args(["syscalls", "-s", "-d", "1s"])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(77), "{output:?}");
    assert!(stderr(&output).contains("cannot"), "{output:?}");
}

/// A process that does not outlive the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_signal_ends_it_and_a_call_that_goes_on_is_shown() {
    if !can_watch() {
        return;
    }
    let target = Running(Command::new(caller()).arg("pause").spawn().unwrap());
    let pid = target.0.id().to_string();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // Under nohup, this test too, it is not to end anything.
        if signal == Signal::SIGHUP && gdiag::collect::process::ignores(signal as u32) {
            continue;
        }
        // The first sums say that it watches.
        let mut watch = gdiag(&["-s", "--json", "-p", &pid, "-I", "100ms"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(watch.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let first: Value = serde_json::from_str(&line).unwrap();
        let pause = sum(&first, "syscalls-caller", "pause");
        assert_eq!(pause["open"].as_array().unwrap().len(), 1, "{first}");
        kill(Pid::from_raw(watch.id().try_into().unwrap()), signal).unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let mut said = String::new();
        watch
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert!(watch.wait().unwrap().success(), "{said}");
        assert!(said.starts_with("[ gdiag syscalls: "), "{said}");
        let last = rest.lines().last().unwrap();
        let document: Value = serde_json::from_str(last).unwrap();
        let pause = sum(&document, "syscalls-caller", "pause");
        assert_eq!(pause["count"], 0);
        assert_eq!(pause["open"][0]["since_ns"], Value::Null);
        assert!(pause["open"][0]["lasts_ns"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    if !can_watch() {
        return;
    }
    let mut watch = gdiag(&["--", caller().to_str().unwrap(), "storm", "300000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    drop(out);
    let output = watch.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_recording_tells_the_same() {
    if !can_watch() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.data");
    let work = tempfile::tempdir().unwrap();
    for syscalls in [true, false] {
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["record", "-o"])
            .arg(&file)
            .args(syscalls.then_some("--syscalls"))
            .arg("--")
            .args([caller(), work.path()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let input = file.to_str().unwrap();
        let output = gdiag(&["-s", "--json", "-i", input]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let nap = sum(&document, "syscalls-caller", "clock_nanosleep");
        assert!(nap["total_ns"].as_u64().unwrap() >= 90_000_000, "{nap}");
        assert_eq!(nap["idle_overlap_ns"], Value::Null);
        if syscalls {
            assert_eq!(document["measure"], "calls");
            assert_eq!(nap["count"], 5);
            let getppid = sum(&document, "syscalls-caller", "getppid");
            assert_eq!(getppid["count"], 1000);
            assert_eq!(sum(&document, "syscalls-caller", "rmdir")["errors"], 57);
        } else {
            assert_eq!(document["measure"], "waits");
            assert_eq!(nap["errors"], Value::Null);
            assert_eq!(document["notes"].as_array().unwrap().len(), 1);
        }
    }
}
