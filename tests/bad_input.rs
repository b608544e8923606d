//! What bad input gets: one clear line, one hint, the right exit status, and nothing lost.
//!
//! A kernel without BTF cannot be had here: of that only the message and the status are tested.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "scenarios/machine.rs"]
mod machine;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use machine::Machine;

const NOBODY: u32 = 65534;

/// A directory with a recording to be made in it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// gdiag where anybody can run it.
    fn public_gdiag(&self) -> Command {
        let gdiag = self.path("gdiag");
        // By another program: while this one writes, a fork of another test may inherit the descriptor,
        // and then the copy cannot be executed.
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_gdiag"))
            .arg(&gdiag)
            .status();
        assert!(copied.unwrap().success());
        fs::set_permissions(self.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        Command::new(gdiag)
    }
}

fn record(output: &Path, arguments: &[&str]) -> Command {
    let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    gdiag
        .args(["record", "-o"])
        .arg(output)
        .args(arguments)
        .stdin(Stdio::null());
    gdiag
}

fn report(input: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["report", "-i"])
        .arg(input)
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Without the line breaks that a narrow page makes.
fn flowing(bytes: &[u8]) -> String {
    let text = text(bytes);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// It failed with this status, and all that it said are these two lines.
fn assert_refused(output: &Output, status: i32, line: &str, hint: &str) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(lines[0].starts_with("gdiag: "), "{stderr}");
    assert!(lines[0].contains(line), "{stderr}");
    assert!(lines[1].starts_with("hint: "), "{stderr}");
    assert!(lines[1].contains(hint), "{stderr}");
}

/// The warnings of a recording that went well otherwise.
fn warnings(output: &Output) -> Vec<String> {
    let stderr = text(&output.stderr);
    let lines = stderr.lines();
    let warnings = lines.filter_map(|line| line.strip_prefix("gdiag: warning: "));
    warnings.map(str::to_string).collect()
}

/// A process that does not outlive the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pid_that_nobody_has() {
    let place = Place::new();
    let pid = i32::MAX.to_string();
    let output = record(&place.path("x"), &["-p", &pid]).output().unwrap();
    assert_refused(&output, 1, &format!("no process has pid {pid}"), "`ps -p ");
    assert!(!place.path("x").exists());
}

#[test]
fn the_id_of_a_thread() {
    let place = Place::new();
    let output = std::thread::spawn(move || {
        let tid = nix::unistd::gettid().to_string();
        let output = record(&place.path("x"), &["-p", &tid]).output().unwrap();
        (tid, output)
    });
    let (tid, output) = output.join().unwrap();
    let pid = std::process::id();
    assert_refused(
        &output,
        1,
        &format!("{tid} is a thread of process {pid}, not a process"),
        &format!("-p {pid}"),
    );
}

/// Check that a pid as a container shows it is answered with the one to use here.
#[test]
fn a_pid_of_another_namespace() {
    if Machine::ready().is_none() {
        return;
    }
    let free = (2..).find(|n| !Path::new(&format!("/proc/{n}")).exists());
    let inside = free.unwrap();
    let script = format!(
        "while :; do sleep 60 & [ $! -ge {inside} ] && break; kill $!; done; echo $!; wait"
    );
    let mut container = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let stdout = container.stdout.take().unwrap();
    let _container = Background(container);
    BufReader::new(stdout).read_line(&mut said).unwrap();
    assert_eq!(said.trim(), inside.to_string());

    let outside = host_pid_of(inside);
    let place = Place::new();
    let output = record(&place.path("x"), &["-p", &inside.to_string()])
        .output()
        .unwrap();
    assert_refused(
        &output,
        1,
        &format!("no process has pid {inside} here, but inside a PID namespace it is process"),
        &format!("-p {outside}"),
    );
}

/// The process that is known by this number in a namespace below.
fn host_pid_of(inside: i32) -> u32 {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        ids.is_some_and(|ids| ids.split_whitespace().nth(1) == Some(&inside.to_string()))
    })
    .unwrap()
}

#[test]
fn no_privileges() {
    let place = Place::new();
    let mut gdiag = place.public_gdiag();
    if nix::unistd::geteuid().is_root() {
        gdiag.uid(NOBODY).gid(NOBODY);
    }
    let output = gdiag
        .args(["record", "-o"])
        .arg(place.path("x"))
        .args(["--", "touch"])
        .arg(place.path("ran"))
        .output()
        .unwrap();
    assert_refused(
        &output,
        77,
        "cannot load the BPF programs: Operation not permitted",
        "run as root, or give the binary CAP_BPF, CAP_PERFMON and CAP_CHECKPOINT_RESTORE; `gdiag check` tells what is missing",
    );
    assert!(!place.path("ran").exists() && !place.path("x").exists());
}

#[test]
fn no_btf() {
    let error = anyhow::Error::from(gdiag::error::Error::NoBtf);
    assert_eq!(gdiag::error::exit_status(&error, true), 77);
    let text = gdiag::error::render(&error);
    assert!(text.contains(
        "/sys/kernel/btf/vmlinux is missing\nhint: use a kernel built with CONFIG_DEBUG_INFO_BTF"
    ));
}

#[test]
fn no_cuda_in_the_target() {
    if Machine::ready().is_none() {
        return;
    }
    let place = Place::new();
    let file = place.path("x");
    let output = record(&file, &["--", "sh", "-c", "echo done; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "the command's own");
    assert_eq!(text(&output.stdout), "done\n");
    assert_eq!(
        warnings(&output),
        ["no CUDA was seen in the target: host side only"]
    );

    let output = report(&file, &[]);
    assert!(output.status.success());
    let text = flowing(&output.stdout);
    assert!(text.starts_with("warning: no CUDA was seen in the target: host side only"));
    assert!(text.contains("No GPU activity in this recording"));
    let output = report(&file, &["--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["recording"]["gpu_source"], "none");
    assert_eq!(json["quality"]["gpu_coverage"], serde_json::Value::Null);
}

#[test]
fn a_running_process_that_wants_no_shim() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let place = Place::new();
    let load = Command::new(machine.gpuload())
        .args(["--seconds", "600"])
        .env("LD_LIBRARY_PATH", &machine.simgpu)
        .env("GDIAG_DISABLE", "1")
        .env_remove("CUDA_INJECTION64_PATH")
        .stdout(Stdio::null())
        .spawn();
    let mut load = Background(load.unwrap());
    let pid = load.0.id();
    let uses_cuda = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.flatten().any(|task| {
            fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|c| c.starts_with("cuda-EvtHandlr"))
        })
    };
    while !uses_cuda() {
        assert!(load.0.try_wait().unwrap().is_none(), "the load ended");
        std::thread::yield_now();
    }
    let output = record(&place.path("x"), &["-p", &pid.to_string(), "-d", "1s"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        warnings(&output),
        [format!(
            "process {pid}: CUDA calls are measured by probes on the driver, host side only, where CUPTI \
             records nothing: gdiag's library cannot be put into it: GDIAG_DISABLE=1 is set in its environment"
        )]
    );
    let text = flowing(&report(&place.path("x"), &[]).stdout);
    let why =
        "because gdiag's library cannot be put into it: GDIAG_DISABLE=1 is set in its environment";
    assert!(text.contains(why), "{text}");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(!maps.contains("memfd:"), "{maps}");
}

/// Records the load with this variable; the load must not notice.
fn record_load(file: &Path, variable: &str) -> Option<Output> {
    let machine = Machine::ready()?;
    let load = machine.gpuload();
    let output = record(file, &["--", load.to_str().unwrap(), "--steps", "10"])
        .env("LD_LIBRARY_PATH", &machine.simgpu)
        .env(variable, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains("10 steps in"));
    Some(output)
}

/// One warning; where there was time for it, a second one says that probes were put on the driver, and
/// does not say why once more.
fn only_probes_besides(said: &[String]) {
    let probes = "CUDA calls are measured by probes on the driver, host side only, where CUPTI records nothing";
    let others = said.iter().filter(|warning| !warning.ends_with(probes));
    assert_eq!(others.count(), 1, "{said:?}");
    assert!(said.len() <= 2, "{said:?}");
}

#[test]
fn no_libcupti() {
    let place = Place::new();
    let Some(output) = record_load(&place.path("x"), "GDIAG_SIM_NO_CUPTI") else {
        return;
    };
    let said = warnings(&output);
    only_probes_besides(&said);
    assert!(
        said[0].contains("no libcupti beside the CUDA libraries"),
        "{said:?}"
    );
    assert!(said[0].contains("install the CUDA toolkit"), "{said:?}");
    let output = report(&place.path("x"), &[]);
    assert!(output.status.success());
    let text = flowing(&output.stdout);
    assert!(text.contains(&said[0]), "{text}");
}

#[test]
fn a_libcupti_that_another_tool_holds() {
    let place = Place::new();
    let Some(output) = record_load(&place.path("x"), "GDIAG_SIM_CUPTI_BUSY") else {
        return;
    };
    let said = warnings(&output);
    only_probes_besides(&said);
    assert_eq!(
        said[0].matches("another tool holds CUPTI").count(),
        1,
        "{said:?}"
    );
    assert!(
        said[0].contains("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
        "{said:?}"
    );
    let output = report(&place.path("x"), &[]);
    assert!(output.status.success());
    let text = flowing(&output.stdout);
    assert!(text.contains(&said[0]), "{text}");
}

/// A file system in memory, as long as the test runs.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf, bytes: u64) -> SmallDisk {
        fs::create_dir(&at).unwrap();
        let size = format!("size={bytes}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&at)
            .status();
        assert!(mount.unwrap().success());
        SmallDisk(at)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_fills_up_while_recording() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let place = Place::new();
    let disk = SmallDisk::mount(place.path("disk"), 192 << 10);
    let file = disk.0.join("x");
    let load = machine.gpuload();
    // About 100,000 launches.
    let arguments = [
        "--",
        load.to_str().unwrap(),
        "--steps",
        "500",
        "--kernels",
        "200",
        "--kernel-us",
        "2",
    ];
    let output = record(&file, &arguments)
        .env("LD_LIBRARY_PATH", &machine.simgpu)
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("cannot write recording"), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    assert!(stderr.contains("\nhint: make room there"), "{stderr}");
    assert!(
        text(&output.stdout).contains("500 steps in"),
        "the command ran on to its end"
    );

    let output = report(&file, &[]);
    assert_eq!(output.status.code(), Some(1));
    let text = flowing(&output.stdout);
    assert!(
        text.starts_with("warning: the recorder did not finish this recording"),
        "{text}"
    );
    assert!(
        text.contains("GPU 0 Simulated H200"),
        "what was written is reported: {text}"
    );
}

/// A recording of the load, whole.
fn a_recording(machine: &Machine, file: &Path) {
    let load = machine.gpuload();
    let arguments = [
        "--",
        load.to_str().unwrap(),
        "--steps",
        "60",
        "--inject",
        "disk@3",
    ];
    let output = record(file, &arguments)
        .env("LD_LIBRARY_PATH", &machine.simgpu)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Either nothing can be said of it, in two lines, or the text begins with a warning.
fn assert_damage_is_told(input: &Path, what: &str) {
    let output = report(input, &[]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{what}: {stdout}{stderr}");
    assert!(!stderr.contains("panicked"), "{what}: {stderr}");
    if stdout.is_empty() {
        assert_eq!(stderr.lines().count(), 2, "{what}: {stderr}");
        assert!(stderr.contains("\nhint: "), "{what}: {stderr}");
    } else {
        assert!(stdout.starts_with("warning: "), "{what}: {stdout}");
        assert_eq!(stderr, "", "{what}");
        let output = report(input, &["--json", "--gaps", "all"]);
        assert_eq!(output.status.code(), Some(1), "{what}");
        assert!(
            text(&output.stderr).starts_with("gdiag: warning: "),
            "{what}"
        );
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    }
}

#[test]
fn a_recording_that_was_cut_or_damaged() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let place = Place::new();
    let (whole, broken) = (place.path("x"), place.path("broken"));
    a_recording(&machine, &whole);
    let bytes = fs::read(&whole).unwrap();
    let places = || (0..bytes.len()).step_by(bytes.len() / 23 + 1);
    for at in places().chain([1, 7, 8, 64, bytes.len() - 1]) {
        fs::write(&broken, &bytes[..at]).unwrap();
        assert_damage_is_told(&broken, &format!("cut at {at} of {}", bytes.len()));
    }
    for at in places() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x40;
        fs::write(&broken, &bytes).unwrap();
        assert_damage_is_told(&broken, &format!("byte {at} of {}", bytes.len()));
    }
}

#[test]
fn what_is_no_recording() {
    let place = Place::new();
    let fifo = place.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    fs::write(place.path("empty"), "").unwrap();
    fs::write(place.path("text"), "milk, bread\n").unwrap();
    fs::write(place.path("perf"), b"PERFILE2and so on").unwrap();
    for (name, line, hint) in [
        ("empty", "is empty", "record again"),
        ("text", "is not a gdiag recording", "`gdiag record` wrote"),
        (
            "perf",
            "it is a perf.data file; 'perf report' reads it",
            "`gdiag record` wrote",
        ),
        ("fifo", "it is a pipe or a device", "`gdiag record` wrote"),
        (".", "it is a directory", "`gdiag record` wrote"),
        ("none", "No such file or directory", "`gdiag record`"),
    ] {
        assert_refused(&report(&place.path(name), &[]), 1, line, hint);
    }
}

#[test]
fn a_recording_of_somebody_else() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to be somebody else");
        return;
    }
    let place = Place::new();
    let file = place.path("x");
    fs::write(&file, "anything").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let output = place
        .public_gdiag()
        .uid(NOBODY)
        .gid(NOBODY)
        .args(["report", "-i"])
        .arg(&file)
        .output()
        .unwrap();
    assert_refused(
        &output,
        1,
        "Permission denied",
        "a recording belongs to whoever made it",
    );
}

/// Check that `gdiag report | head` ends quietly.
#[test]
fn a_reader_that_went_away() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let place = Place::new();
    let file = place.path("x");
    a_recording(&machine, &file);
    for arguments in [&["--json", "--gaps", "all"] as &[&str], &["--gaps", "all"]] {
        let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["report", "-i"])
            .arg(&file)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(gdiag.stdout.take());
        let mut stderr = String::new();
        gdiag
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        assert!(gdiag.wait().unwrap().success());
        assert_eq!(stderr, "");
    }
}
