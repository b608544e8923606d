//! Recording by cgroup and by container, in whatever hierarchies this machine has.
#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::group::{hierarchies, unique, Group};
use crate::support::{
    can_run, install, record, recorded, recorded_until, simgpu, wait_until, with_gpu, Library,
    Recorded, Running,
};

fn sleeper() -> Running {
    Running::start(Command::new("sleep").arg("600"))
}

#[test]
fn all_that_is_in_a_cgroup_and_all_that_comes_is_recorded() {
    if !can_run() {
        return;
    }
    for hierarchy in hierarchies() {
        let group = Group::new(&hierarchy, &unique("members")).unwrap();
        let below = Group::new(&group.0, "below").unwrap();
        let (member, deep, stranger, leaver) = (sleeper(), sleeper(), sleeper(), sleeper());
        group.add(member.pid());
        below.add(deep.pid());
        group.add(leaver.pid());
        // With threads, which all come at once.
        let program = "import threading, time\n\
                       for _ in range(3): threading.Thread(target=time.sleep, args=(600,)).start()\n\
                       time.sleep(600)";
        let late = Running::start(Command::new("python3").args(["-c", program]));
        let tasks = || fs::read_dir(format!("/proc/{}/task", late.pid())).unwrap();
        wait_until("it has threads", || tasks().count() == 4);
        let threads: Vec<u32> = tasks()
            .map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();

        // It moves them when the recording is on, and says so by its own end.
        let dir = tempfile::tempdir().unwrap();
        let moves = format!(
            "echo {} >{}/cgroup.procs; echo {} >{}/cgroup.procs; sleep 0.5",
            late.pid(),
            below.path(),
            leaver.pid(),
            hierarchy.display()
        );
        let script = dir.path().join("moves");
        fs::write(&script, moves).unwrap();
        let name = group.0.file_name().unwrap().to_str().unwrap();
        for by in [group.path(), name] {
            group.add(leaver.pid());
            fs::write(hierarchy.join("cgroup.procs"), late.pid().to_string()).unwrap();
            let r = recorded(&["-G", by, "--", "sh", script.to_str().unwrap()]);
            let mut found: Vec<u32> = r.targets().iter().map(|&(tid, _)| tid).collect();
            found.sort_unstable();
            let mut expected = threads.clone();
            expected.extend([member.pid(), deep.pid(), leaver.pid()]);
            expected.sort_unstable();
            assert_eq!(found, expected, "{by}");
            assert!(!found.contains(&stranger.pid()));
        }
        drop((member, deep, leaver, late));
    }
}

#[test]
fn a_cgroup_ends_the_recording_with_its_own_end_and_an_empty_one_captures_nothing() {
    if !can_run() {
        return;
    }
    for hierarchy in hierarchies() {
        let group = Group::new(&hierarchy, &unique("end")).unwrap();
        let (output, _) = record(&["-G", group.path(), "-d", "100ms"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("no process was in the cgroup") && text.contains("hint: "),
            "{text}"
        );

        let mut member = sleeper();
        group.add(member.pid());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let mut gdiag = crate::gdiag();
        gdiag.args(["record", "-G", group.path(), "-o"]).arg(&path);
        let mut gdiag = gdiag.spawn().unwrap();
        wait_until("it records", || {
            fs::metadata(&path).is_ok_and(|meta| meta.len() > 0)
        });
        member.end();
        assert!(gdiag.try_wait().unwrap().is_none(), "others may come");
        drop(group);
        wait_until("the recording ends", || gdiag.try_wait().unwrap().is_some());
        assert!(gdiag.wait().unwrap().success());
    }
}

#[test]
fn a_cgroup_that_is_not_there_is_named() {
    if !can_run() {
        return;
    }
    let (output, _) = record(&["-G", "/no/such/cgroup", "-d", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("there is no cgroup /no/such/cgroup below /"),
        "{text}"
    );
}

/// Ids that begin alike, and are of this run of the tests.
fn ids() -> [String; 2] {
    let own = format!("{:08x}", std::process::id());
    ["a", "b"].map(|last| format!("{own}{}", last.repeat(56)))
}

#[test]
fn a_container_is_recorded_by_its_id() {
    if !can_run() {
        return;
    }
    let Some(hierarchy) = hierarchies().into_iter().next() else {
        return;
    };
    let [id, other] = ids();
    let runtime = Group::new(&hierarchy, &unique("system.slice")).unwrap();
    let group = Group::new(&runtime.0, &format!("docker-{id}.scope")).unwrap();
    let monitor = Group::new(&runtime.0, &format!("libpod-conmon-{id}.scope")).unwrap();
    let second = Group::new(&runtime.0, &format!("cri-containerd-{other}.scope")).unwrap();

    let dir = tempfile::tempdir().unwrap();
    // It comes by its cgroup as with a container runtime: before its program runs.
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "echo $$ >\"$0/cgroup.procs\" && exec unshare \"$@\"",
            group.path(),
        ])
        .args(crate::CONTAINER)
        .arg("--")
        .arg(simgpu().join("gpuload"))
        .args(crate::LOAD);
    with_gpu(
        &mut command,
        &simgpu(),
        Library::Injected,
        &install(dir.path()),
    );
    let container = Running::start(&mut command);
    let pid = container.find_gpu("gpuload", Library::Injected);

    let first = &id[..9];
    let r = recorded_until(&["--container", first, "-d", "1s"], Recorded::is_clear);
    r.assert_dispatched_by(pid);
    let process = r
        .processes
        .iter()
        .find(|process| process.pid.0 == pid)
        .unwrap();
    assert!(
        r.name(process.cgroup).contains(&id),
        "{}",
        r.name(process.cgroup)
    );

    let (output, _) = record(&["--container", &id[..8], "-d", "1s"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let both = format!("there are {}, {}", &id[..12], &other[..12]);
    assert!(
        text.contains("more than one container") && text.contains(&both),
        "{text}"
    );
    let (output, _) = record(&["--container", &"0".repeat(64), "-d", "1s"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("no container has an id") && text.contains(&id[..12]),
        "{text}"
    );
    drop(container);
    drop((group, monitor, second));
}

#[test]
fn a_container_that_starts_later_is_recorded() {
    if !can_run() {
        return;
    }
    for hierarchy in hierarchies() {
        let group = Group::new(&hierarchy, &unique("late")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "echo $$ >\"$0/cgroup.procs\" && exec unshare \"$@\"",
                group.path(),
            ])
            .args(crate::CONTAINER)
            .arg("--")
            .arg(simgpu().join("gpuload"))
            .args(["--steps", "100"]);
        with_gpu(
            &mut command,
            &simgpu(),
            Library::Carried,
            &install(dir.path()),
        );
        let path = dir.path().join("data");
        let mut gdiag = crate::gdiag();
        gdiag.args(["record", "-G", group.path(), "-o"]).arg(&path);
        let mut gdiag = gdiag.spawn().unwrap();
        wait_until("it records", || {
            fs::metadata(&path).is_ok_and(|meta| meta.len() > 0)
        });
        assert!(command
            .stdin(Stdio::null())
            .output()
            .unwrap()
            .status
            .success());
        drop(group);
        wait_until("the recording ends", || gdiag.try_wait().unwrap().is_some());
        assert!(gdiag.wait().unwrap().success());
        let r = Recorded::read(&path);
        // But for what it did before gdiag saw its library.
        assert!(r.ops.len() > 1000, "{} operations of 2,000", r.ops.len());
        let load = r
            .tasks
            .iter()
            .find(|t| t.target && r.name(t.comm) == "gpuload")
            .unwrap();
        r.assert_dispatched_by(load.pid.0);
    }
}

/// Forks straight into a cgroup when its input ends, as systemd and newer runtimes do.
const BORN_INSIDE: &str = "\
import ctypes, os, struct, sys
cgroup = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
CLONE_INTO_CGROUP, SIGCHLD, SYS_clone3 = 1 << 33, 17, 435
args = struct.pack('11Q', CLONE_INTO_CGROUP, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, cgroup)
sys.stdin.read()
pid = ctypes.CDLL(None).syscall(SYS_clone3, ctypes.create_string_buffer(args), len(args))
if pid == 0:
    os.execvp('sleep', ['sleep', '0.3'])
os.waitpid(pid, 0)
print(pid)
";

#[test]
fn a_process_that_is_born_into_a_cgroup_is_recorded() {
    if !can_run() {
        return;
    }
    let is_v2 = |dir: &PathBuf| dir.join("cgroup.controllers").exists();
    let Some(hierarchy) = hierarchies().into_iter().find(is_v2) else {
        println!("skipped: only version 2 can do it");
        return;
    };
    let group = Group::new(&hierarchy, &unique("born")).unwrap();
    let mut parent = Command::new("python3")
        .args(["-c", BORN_INSIDE, group.path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut gdiag = crate::gdiag();
    gdiag.args(["record", "-G", group.path(), "-o"]).arg(&path);
    let mut gdiag = gdiag.spawn().unwrap();
    wait_until("it records", || {
        fs::metadata(&path).is_ok_and(|meta| meta.len() > 0)
    });
    drop(parent.stdin.take());
    let output = parent.wait_with_output().unwrap();
    let pid = String::from_utf8(output.stdout).unwrap();
    drop(group);
    assert!(gdiag.wait().unwrap().success());
    let r = Recorded::read(&path);
    let pid = pid.trim().parse().unwrap();
    assert!(r.targets().contains(&(pid, "sleep")), "{:?}", r.targets());
    assert!(r.targets().iter().all(|&(tid, _)| tid == pid));
}
