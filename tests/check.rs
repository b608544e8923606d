//! `gdiag check` as a person runs it: with all rights, with none, in namespaces, of a process; and its bundle.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "containers/group.rs"]
mod group;
#[path = "scenarios/machine.rs"]
mod machine;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use machine::Machine;
use serde_json::Value;

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

const NOBODY: u32 = 65_534;

fn gdiag(arguments: &[&str]) -> Command {
    let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    gdiag.arg("check").args(arguments).stdin(Stdio::null());
    gdiag
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn of<'a>(document: &'a Value, id: &str) -> &'a Value {
    let checks = document["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["id"] == id);
    found.unwrap_or_else(|| panic!("no {id} in {document}"))
}

/// A process that does not outlive the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that uses CUDA, simulated.
fn load(simgpu: &Path, program: &Path, shim: Option<&Path>) -> Background {
    let mut command = Command::new(program);
    command
        .args(["--seconds", "600", "--kernels", "2", "--host-us", "10"])
        .env("LD_LIBRARY_PATH", simgpu)
        .env("GDIAG_SIM_SYNC", "block")
        .env("GDIAG_TEST_TOKEN", "SECRET-environment")
        .stdout(Stdio::null());
    if let Some(shim) = shim {
        command.env("CUDA_INJECTION64_PATH", shim);
    }
    let child = Background(command.spawn().unwrap());
    let pid = child.0.id();
    let wanted = if shim.is_some() {
        "gdiag-shim"
    } else {
        "cuda-EvtHandlr"
    };
    becomes_true(|| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        tasks.into_iter().any(|task| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == wanted)
        })
    });
    child
}

fn becomes_true(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn with_all_rights_the_host_can_be_recorded() {
    if Machine::ready().is_none() {
        return;
    }
    let output = gdiag(&["--json"]).output().unwrap();
    let document = json(&output);
    assert_eq!(output.status.code(), Some(0), "{document}");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(document["schema"], "gdiag.check/1");
    assert_eq!(document["can"]["host"], true);
    assert_eq!(of(&document, "bpf.load")["status"], "ok");
    assert_eq!(of(&document, "kernel.btf")["remedy"], Value::Null);
    assert_eq!(document["can"]["process_gpu"], Value::Null);

    let output = gdiag(&[]).output().unwrap();
    let text = text(&output.stdout);
    assert!(text.starts_with("Kernel\nok "), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("gdiag can record"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(!text.contains('\x1b'));
}

/// gdiag where anybody can run it.
fn public_gdiag(dir: &Path) -> PathBuf {
    let gdiag = dir.join("gdiag");
    // By another program: a fork of another test could keep the file open for writing.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_gdiag"))
        .arg(&gdiag)
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    gdiag
}

#[test]
fn without_rights_it_tells_what_it_can_and_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(public_gdiag(dir.path()));
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let bundle = dir.path().join("bundle.tar.gz");
    let command = command.args(["check", "--json", "--bundle"]).arg(&bundle);
    let output = command.current_dir(dir.path()).output().unwrap();
    let document = json(&output);
    assert_eq!(output.status.code(), Some(77), "{document}");
    assert_eq!(document["can"]["host"], false);
    for id in ["bpf.load", "rights.capabilities"] {
        let check = of(&document, id);
        assert_eq!(check["status"], "failure", "{check}");
        assert!(
            check["remedy"]
                .as_str()
                .unwrap()
                .starts_with("run as root, or: setcap"),
            "{check}"
        );
    }
    assert_eq!(of(&document, "bpf.stacks")["status"], "unknown");
    assert_eq!(of(&document, "kernel.btf")["status"], "ok");
    let verdict = document["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("cannot record: "), "{verdict}");
    // What the kernel said is in the bundle.
    let files = unpack(&bundle);
    assert!(files["gdiag-bundle/refused-scheduling.txt"].contains("Operation not permitted"));
}

#[test]
fn in_a_user_namespace_of_its_own_rights_count_for_nothing() {
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            env!("CARGO_BIN_EXE_gdiag"),
            "check",
            "--json",
        ])
        .output()
        .unwrap();
    if text(&output.stderr).starts_with("unshare") {
        println!("skipped: no user namespace can be made here");
        return;
    }
    let document = json(&output);
    assert_eq!(output.status.code(), Some(77), "{document}");
    let check = of(&document, "rights.user_namespace");
    assert_eq!(check["status"], "failure", "{check}");
    let remedy = of(&document, "bpf.load")["remedy"].as_str().unwrap();
    assert!(remedy.contains("user namespace"), "{remedy}");
}

#[test]
fn in_a_pid_namespace_of_its_own_it_says_what_is_not_seen() {
    if Machine::ready().is_none() {
        return;
    }
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .args([env!("CARGO_BIN_EXE_gdiag"), "check", "--json"])
        .output()
        .unwrap();
    let document = json(&output);
    let check = of(&document, "place.container");
    assert_eq!(check["status"], "warning", "{check}");
    assert!(check["found"].as_str().unwrap().contains("pid"), "{check}");
    // And the /proc of another one is no use.
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child"])
        .args([env!("CARGO_BIN_EXE_gdiag"), "check", "--json"])
        .output()
        .unwrap();
    let document = json(&output);
    assert_eq!(of(&document, "rights.proc")["status"], "failure");
    assert_eq!(output.status.code(), Some(77));
}

#[test]
fn too_few_open_files_are_a_failure() {
    if Machine::ready().is_none() {
        return;
    }
    let script = format!(
        "ulimit -n 64; exec {} check --json",
        env!("CARGO_BIN_EXE_gdiag")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let document = json(&output);
    assert_eq!(of(&document, "limits.open_files")["status"], "failure");
    assert_eq!(output.status.code(), Some(77));
}

#[test]
fn a_process_is_looked_at_and_left_alone() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let installed = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["shim", "install"])
        .arg(dir.path())
        .output();
    assert!(installed.unwrap().status.success());
    let library = dir.path().join("libgdiag_cupti.so");

    let bare = load(&machine.simgpu, &machine.gpuload(), None);
    let dormant = load(&machine.simgpu, &machine.gpuload(), Some(&library));
    let check = |child: &Background| {
        let output = gdiag(&["--json", "-p", &child.0.id().to_string()])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        json(&output)
    };
    let document = check(&bare);
    assert_eq!(document["pid"], bare.0.id());
    assert_eq!(document["can"]["process_gpu"], true);
    let found =
        |document: &Value, id: &str| of(document, id)["found"].as_str().unwrap().to_string();
    assert_eq!(
        found(&document, "process.library"),
        "not there; a recording puts it there"
    );
    let cupti = machine.simgpu.join("libcupti.so.13");
    let cupti = fs::canonicalize(cupti).unwrap();
    assert_eq!(
        found(&document, "process.libcupti"),
        format!("{} (in use)", cupti.display())
    );
    // It was not put there by looking.
    let maps = fs::read_to_string(format!("/proc/{}/maps", bare.0.id())).unwrap();
    let ours = ["libgdiag", "gdiag-shim", "memfd:gdiag"];
    assert!(!ours.iter().any(|name| maps.contains(name)), "{maps}");

    let document = check(&dormant);
    assert_eq!(found(&document, "process.library"), "there, asleep");
    assert!(found(&document, "process.environment").ends_with("libgdiag_cupti.so"));

    // While another gdiag records it, it says so, and disturbs neither.
    let pid = dormant.0.id().to_string();
    let mut recorder = Command::new(env!("CARGO_BIN_EXE_gdiag"));
    let recorder = recorder
        .args(["record", "-q", "-p", &pid, "-o"])
        .arg(dir.path().join("x.data"));
    let mut recorder = Background(recorder.spawn().unwrap());
    becomes_true(|| {
        found(&check(&dormant), "process.library").starts_with("there, recording for gdiag, pid")
    });
    let document = check(&dormant);
    assert!(
        found(&document, "cupti.holders").contains("gdiag, pid"),
        "{document}"
    );
    let recorder_pid = nix::unistd::Pid::from_raw(recorder.0.id().try_into().unwrap());
    nix::sys::signal::kill(recorder_pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(recorder.0.wait().unwrap().success());
    let report = Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["report", "--json", "-i"])
        .arg(dir.path().join("x.data"))
        .output()
        .unwrap();
    assert_eq!(json(&report)["recording"]["gpu_source"], "simulated");
}

#[test]
fn a_process_that_wants_no_library_says_so() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let mut command = Command::new(machine.gpuload());
    command
        .args(["--seconds", "600", "--kernels", "2", "--host-us", "10"])
        .env("LD_LIBRARY_PATH", &machine.simgpu)
        .env("GDIAG_DISABLE", "1")
        .stdout(Stdio::null());
    let child = Background(command.spawn().unwrap());
    let pid = child.0.id().to_string();
    becomes_true(|| {
        let output = gdiag(&["--json", "-p", &pid]).output().unwrap();
        let document = json(&output);
        of(&document, "process.cuda")["found"] == "in use"
            && of(&document, "process.environment")["status"] == "warning"
            && of(&document, "process.library")["found"]
                .as_str()
                .unwrap()
                .contains("GDIAG_DISABLE=1")
            && document["can"]["process_gpu"] == false
    });
}

#[test]
fn a_wrong_pid_is_told_as_elsewhere() {
    let output = gdiag(&["-p", &i32::MAX.to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("no process has pid"));
    let output = gdiag(&["-p", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// The files of a bundle.
fn unpack(bundle: &Path) -> BTreeMap<String, String> {
    let file = fs::File::open(bundle).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        files.insert(name, text);
    }
    files
}

#[test]
fn a_bundle_is_a_file_of_its_owner_and_replaces_whole() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.tar.gz");
    fs::write(&bundle, "old").unwrap();
    let output = gdiag(&["--bundle", bundle.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(matches!(output.status.code(), Some(0 | 77)), "{output:?}");
    let mode = fs::metadata(&bundle).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let files = unpack(&bundle);
    let manifest = &files["gdiag-bundle/MANIFEST"];
    for name in files
        .keys()
        .filter_map(|name| name.strip_prefix("gdiag-bundle/"))
    {
        assert!(
            name == "MANIFEST" || manifest.contains(name),
            "{name} in {manifest}"
        );
    }
    let document: Value = serde_json::from_str(&files["gdiag-bundle/check.json"]).unwrap();
    assert_eq!(document["schema"], "gdiag.check/1");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    // Where it cannot be written, nothing is looked at.
    let output = gdiag(&["--bundle", "/nonexistent/b.tar.gz"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "");
}

/// A user may have any name.
#[test]
fn the_bundle_has_the_document_of_the_check_whatever_the_user_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.tar.gz");
    let output = gdiag(&["--json", "--bundle", bundle.to_str().unwrap()])
        .envs([("USER", "true"), ("LOGNAME", "checks")])
        .env("HOME", "/home/\",\n")
        .output()
        .unwrap();
    let ids = |document: &Value| -> Vec<(String, Vec<String>)> {
        let checks = document["checks"].as_array().unwrap().iter();
        let keys = |check: &Value| check.as_object().unwrap().keys().cloned().collect();
        checks
            .map(|check| (check["id"].as_str().unwrap().to_string(), keys(check)))
            .collect()
    };
    let shown = json(&output);
    let packed: Value = serde_json::from_str(&unpack(&bundle)["gdiag-bundle/check.json"]).unwrap();
    assert_eq!(ids(&packed), ids(&shown));
    assert_eq!(packed["can"], shown["can"]);
}

/// As in a chroot without /proc.
#[test]
fn without_proc_the_check_says_so_and_the_bundle_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("b.tar.gz");
    let script = format!(
        "mount -t tmpfs none /proc && exec {} check --json --bundle {}",
        env!("CARGO_BIN_EXE_gdiag"),
        bundle.display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .unwrap();
    if output.stdout.is_empty() && text(&output.stderr).contains("unshare") {
        println!("skipped: no mount namespace can be made here");
        return;
    }
    let document = json(&output);
    assert_eq!(output.status.code(), Some(77), "{document}");
    assert_eq!(
        of(&document, "rights.proc")["found"],
        "/proc is not mounted"
    );
    assert!(unpack(&bundle).contains_key("gdiag-bundle/check.json"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_working_directory_that_is_gone_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mkdir x && cd x && rmdir ../x && exec {} check --json",
        env!("CARGO_BIN_EXE_gdiag")
    );
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let document = json(&output);
    let disk = of(&document, "place.disk");
    assert_eq!(disk["status"], "warning", "{disk}");
    assert_eq!(disk["found"], "the directory is gone");
}

/// Check that nothing of what only this machine's owner knows is in a bundle.
#[test]
fn a_bundle_has_nothing_private_in_it() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let home = PathBuf::from(format!("/home/SECRET-home-{}", std::process::id()));
    if fs::create_dir_all(&home).is_err() {
        println!("skipped: nothing can be made in /home");
        return;
    }
    struct Home<'a>(&'a Path);
    impl Drop for Home<'_> {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0);
        }
    }
    let _home = Home(&home);
    for file in ["libcuda.so.1", "libcupti.so.13"] {
        fs::copy(machine.simgpu.join(file), home.join(file)).unwrap();
    }
    // The name of a process is at most 15 bytes long.
    let program = home.join("SECRET-process");
    fs::copy(machine.gpuload(), &program).unwrap();
    let cgroup = group::hierarchies().into_iter().next();
    let name = format!("SECRET-cgroup-{}", std::process::id());
    let cgroup = cgroup.and_then(|dir| group::Group::new(&dir, &name));
    // After the cgroup: it ends before that is removed.
    let child = load(&home, &program, None);
    if let Some(cgroup) = &cgroup {
        cgroup.add(child.0.id());
    }
    let flight = format!("SECRET-{}", std::process::id());
    let socket = format!("gdiag/flight/0/{flight}");
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(
            socket,
        );
    let _recorder = std::os::unix::net::UnixListener::bind_addr(&address.unwrap()).unwrap();

    let bundle = home.join("b.tar.gz");
    let script = format!(
        "hostname SECRET-host && exec {} check -p {} --bundle {}",
        env!("CARGO_BIN_EXE_gdiag"),
        child.0.id(),
        bundle.display()
    );
    let output = Command::new("unshare")
        .args(["--uts", "sh", "-c", &script])
        .current_dir(&home)
        .env("HOME", &home)
        .env("USER", "SECRET-user")
        .env("LD_LIBRARY_PATH", &home)
        .env("GDIAG_TEST_TOKEN", "SECRET-environment")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // They are where they may be, so what is missing below was there to be told.
    let shown = text(&output.stdout);
    for secret in ["SECRET-process", "SECRET-home", &flight] {
        assert!(shown.contains(secret), "{secret} in {shown}");
    }
    let files = unpack(&bundle);
    assert!(files.len() > 7);
    for (name, text) in &files {
        for line in text.lines() {
            assert!(!line.contains("SECRET"), "{name}: {line}");
        }
    }
    assert!(files["gdiag-bundle/check.txt"].contains("~/.../libcupti.so.13"));
    let host = nix::unistd::gethostname().unwrap();
    let host = host.to_str().unwrap();
    if host.len() >= 3 && host != "localhost" {
        // Of the real one, where it tells anything.
        let output = gdiag(&["--bundle", bundle.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(output.status.success());
        assert!(unpack(&bundle).values().all(|text| !text.contains(host)));
    }
}

/// A link such as /dev/stdout belongs to the whole machine. It is refused before anything is looked at.
#[test]
fn a_bundle_replaces_no_link_and_no_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "old").unwrap();
    let link = dir.path().join("stdout");
    std::os::unix::fs::symlink("/proc/self/fd/1", &link).unwrap();
    let pipe = dir.path().join("\x1b[2Jpipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, said) in [
        (&link, "stdout' is a symbolic link\nhint: name a new file\n"),
        (
            &pipe,
            "\\x1b[2Jpipe' is no regular file\nhint: name a new file\n",
        ),
    ] {
        let output = gdiag(&["--bundle", path.to_str().unwrap()])
            .stdout(fs::File::create(&file).unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).ends_with(said), "{output:?}");
        assert_eq!(fs::read(&file).unwrap(), b"");
    }
    assert!(link.is_symlink());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

/// And a terminal is as little a new file.
#[test]
fn a_bundle_is_not_for_a_terminal() {
    let command = format!("{} check --bundle /dev/tty", env!("CARGO_BIN_EXE_gdiag"));
    let Ok(mut child) = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
    else {
        println!("skipped: needs script(1)");
        return;
    };
    let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .collect();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(2), "{lines:?}");
    assert!(
        lines[0].contains("'/dev/tty' is no regular file"),
        "{lines:?}"
    );
}
