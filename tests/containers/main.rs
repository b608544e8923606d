//! Targets in containers, gdiag in containers: who is who, and whose file it is. Needs root, BTF,
//! namespaces and `make simgpu`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod cgroups;
mod group;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{
    can_run, compile, gdiag, install, record, record_confined, recorded, recorded_until, simgpu,
    until, with_gpu, Library, Recorded, Running, WAYS,
};

/// What makes a container of a process: options of unshare(1).
const CONTAINER: &[&str] = &[
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--ipc",
    "--uts",
];

/// Work for as long as anybody watches.
const LOAD: &[&str] = &["--seconds", "600", "--kernels", "4", "--host-us", "100"];

fn unshare(options: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(options).arg("--");
    command
}

/// The workload in namespaces of its own, and its pid on the host.
fn gpuload(options: &[&str], library: Library, dir: &Path) -> (Running, u32) {
    let mut command = unshare(options);
    command.arg(simgpu().join("gpuload")).args(LOAD);
    with_gpu(&mut command, &simgpu(), library, &install(dir));
    let running = Running::start(&mut command);
    let pid = running.find_gpu("gpuload", library);
    (running, pid)
}

#[test]
fn a_target_in_namespaces_of_its_own_is_recorded_from_outside() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let containers = [
        (CONTAINER, Some(1)),
        (&["--net", "--cgroup"] as &[&str], None),
        (
            &[
                "--user",
                "--map-root-user",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "--net",
                "--cgroup",
            ],
            Some(1),
        ),
    ];
    let each = WAYS
        .iter()
        .flat_map(|way| containers.iter().map(move |c| (*way, *c)));
    for (library, (options, inner)) in each {
        let (_container, pid) = gpuload(options, library, dir.path());
        let r = recorded_until(&["-p", &pid.to_string(), "-d", "1s"], Recorded::is_clear);
        r.assert_dispatched_by(pid);
        let task = r.tasks.iter().find(|task| task.tid.0 == pid).unwrap();
        assert_eq!(
            (task.ns_tid.0, task.ns_pid.0),
            (inner.unwrap_or(pid), inner.unwrap_or(pid))
        );
        assert!(r.targets().contains(&(pid, "gpuload")), "{:?}", r.targets());
        assert!(
            r.names_functions_of("/gpuload"),
            "{options:?}: {:?}",
            r.frames()
        );
        let process = r
            .processes
            .iter()
            .find(|process| process.pid.0 == pid)
            .unwrap();
        assert!(r.name(process.cgroup).starts_with('/'));
        assert!(r.has_all_of_the_gpu(), "{:?}", r.warnings());
    }
}

#[test]
fn probes_on_the_driver_of_a_container_name_the_hosts_threads() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (_container, pid) = gpuload(CONTAINER, Library::Injected, dir.path());
    let r = recorded(&["-p", &pid.to_string(), "-d", "1s", "--no-inject"]);
    assert!(r.ops.is_empty());
    assert_eq!(r.launching(), [(pid, pid)]);
    let of = format!("pid {pid}: the host's side only");
    assert!(
        r.warnings().iter().any(|w| w.starts_with(&of)),
        "{:?}",
        r.warnings()
    );
}

/// What a program needs to run with another root: itself, its libraries, the loader.
fn libraries_of(file: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

#[test]
fn a_target_with_another_root_has_its_libraries_elsewhere() {
    if !can_run() {
        return;
    }
    for library in WAYS {
        records_with_another_root(library);
    }
}

/// By another program: while this one writes, a fork of another test may inherit the descriptor, and
/// then the copy cannot be executed.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success(), "{from:?}");
}

fn records_with_another_root(way: Library) {
    let root = tempfile::tempdir().unwrap();
    let inside = |path: &str| root.path().join(path.trim_start_matches('/'));
    for dir in [
        "/proc",
        "/old",
        "/bin",
        "/gpu",
        "/strange/libs",
        "/lib64",
        "/lib",
    ] {
        fs::create_dir_all(inside(dir)).unwrap();
    }
    let library = install(&inside("/gpu"));
    let mut needed: Vec<PathBuf> = libraries_of(&library);
    for file in ["gpuload", "libcuda.so.1", "libcupti.so.13"] {
        let to = if file == "gpuload" { "/bin" } else { "/gpu" };
        copy(&simgpu().join(file), &inside(to).join(file));
        needed.extend(libraries_of(&simgpu().join(file)));
    }
    for file in needed {
        let name = file.file_name().unwrap();
        // The loader is where programs say that it is.
        let is_loader = name.to_str().unwrap().starts_with("ld-");
        let to = if is_loader {
            inside(file.to_str().unwrap())
        } else {
            inside("/strange/libs").join(name)
        };
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy(&file, &to);
    }

    let mut command = unshare(CONTAINER);
    command
        .args(["sh", "-c"])
        .arg(
            "set -e; mount --bind \"$0\" \"$0\"; cd \"$0\"; mount -t proc proc proc; \
             pivot_root . old; exec /bin/gpuload \"$@\"",
        )
        .arg(root.path())
        .args(LOAD);
    let library = Path::new("/gpu").join(library.file_name().unwrap());
    let libraries = Path::new("/gpu:/strange/libs");
    with_gpu(&mut command, libraries, way, &library);
    let container = Running::start(&mut command);
    let pid = container.find_gpu("gpuload", way);

    let in_libc = |(file, function): &(String, String)| {
        file.starts_with("/strange/libs/libc.so") && !function.is_empty()
    };
    let r = recorded_until(&["-p", &pid.to_string(), "-d", "1s"], |r| {
        r.is_clear() && r.frames().iter().any(in_libc)
    });
    r.assert_dispatched_by(pid);
    let frames = r.frames();
    let in_program =
        |(file, function): &(String, String)| file == "/bin/gpuload" && !function.is_empty();
    assert!(frames.iter().any(in_program), "{frames:?}");
    assert!(frames.iter().any(in_libc), "{frames:?}");
}

/// Check that a file that is mounted over another is the one whose symbols are shown, with a build id
/// and without.
#[test]
fn the_containers_own_file_counts_and_not_the_hosts_of_the_same_path() {
    if !can_run() {
        return;
    }
    for option in ["-Wl,--build-id=sha1", "-Wl,--build-id=none"] {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let library = |function: &str| {
            // Of the same size and layout: only the name differs.
            format!(
                "__attribute__((noinline)) static void {function}(void) {{ for (volatile int i = 0; i < 1000000; i++); }}\n\
                 void work(void) {{ for (;;) {function}(); }}\n"
            )
        };
        let shared = &["-shared", "-fPIC", option];
        compile(&at("libwork.so"), &library("function_of_the_host_"), shared);
        compile(&at("other.so"), &library("function_of_container"), shared);
        let program = "void work(void); int main(void) { work(); }";
        let (lib, rpath) = (
            at("libwork.so"),
            format!("-Wl,-rpath,{}", dir.path().display()),
        );
        compile(&at("worker"), program, &[lib.to_str().unwrap(), &rpath]);

        let mut command = unshare(CONTAINER);
        command
            .args([
                "sh",
                "-c",
                "mount --bind \"$1\" \"$2\" && exec \"$3\"",
                "sh",
            ])
            .args(["other.so", "libwork.so", "worker"].map(at));
        let container = Running::start(&mut command);
        let pid = container.find("worker");
        let r = recorded_until(&["-p", &pid.to_string(), "-F", "999", "-d", "1s"], |r| {
            r.has_function("function_of_container")
        });
        let frames = r.frames();
        assert!(r.has_function("function_of_container"), "{frames:?}");
        assert!(!r.has_function("function_of_the_host_"), "{frames:?}");

        // By the path in the container's root, since its mappings are not to be opened.
        let pid = pid.to_string();
        let confined = || record_confined(&["-p", &pid, "-F", "999", "-d", "1s"]);
        let r = until(confined, |r| r.has_function("function_of_container"));
        let frames = r.frames();
        assert!(r.has_function("function_of_container"), "{frames:?}");
        assert!(!r.has_function("function_of_the_host_"), "{frames:?}");
        assert!(
            !r.warnings().iter().any(|w| w.contains("CAP_")),
            "{:?}",
            r.warnings()
        );
        // A file without a path cannot be opened.
        fs::remove_file(at("worker")).unwrap();
        let why =
            |w: &&str| w.contains("could not be opened") && w.contains("CAP_CHECKPOINT_RESTORE");
        let told = |r: &Recorded| r.warnings().into_iter().filter(why).count();
        let r = until(confined, |r| told(r) > 0);
        assert_eq!(told(&r), 1, "{:?}", r.warnings());
        assert!(!r.has_function("main"));
    }
}

/// A script in a container, in which `$GDIAG` records into `$FILE`.
fn inside(script: &str, library: Library) -> Recorded {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut command = unshare(CONTAINER);
    command
        .args(["sh", "-c", script])
        .args(LOAD)
        .env("GDIAG", env!("CARGO_BIN_EXE_gdiag"))
        .env("FILE", &path);
    with_gpu(&mut command, &simgpu(), library, &install(dir.path()));
    command.env(
        "PATH",
        format!("{}:{}", simgpu().display(), std::env::var("PATH").unwrap()),
    );
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Recorded::read(&path)
}

#[test]
fn inside_a_container_its_own_pids_count() {
    if !can_run() {
        return;
    }
    let load = "gpuload --seconds 600 --kernels 4 --host-us 100 >&2";
    // The workload itself, a parent of it, and one that is in yet another namespace.
    let starts = [
        (format!("{load} & "), Some(2)),
        (format!("sh -c '{load}; true' & "), None),
        (
            format!("unshare --pid --fork --kill-child --mount-proc --mount {load} & "),
            Some(1),
        ),
    ];
    let each = WAYS
        .iter()
        .flat_map(|way| starts.iter().map(move |start| (*way, start)));
    for (library, (start, inner)) in each {
        let ready = library.ready();
        let script = format!(
            "{start} P=$!; until grep -qs {ready} /proc/[0-9]*/task/*/comm; do sleep 0.02; done; \
             $GDIAG record -o $FILE -p $P -d 1s; S=$?; kill -9 $P; exit $S"
        );
        // On a busy machine, what a stack needs may come late.
        let r = (0..4)
            .map(|_| inside(&script, library))
            .find(Recorded::is_clear);
        let r = r.unwrap_or_else(|| inside(&script, library));
        let task = r
            .tasks
            .iter()
            .find(|t| t.target && r.name(t.comm) == "gpuload")
            .unwrap();
        assert_ne!(task.tid, task.ns_tid, "the recording has the host's ids");
        assert!(
            inner.is_none_or(|inner| task.ns_tid.0 == inner),
            "{start}: {task:?}"
        );
        r.assert_dispatched_by(task.pid.0);
        assert!(
            r.names_functions_of("/gpuload"),
            "{start}: {:?}",
            r.frames()
        );
        assert!(r.has_all_of_the_gpu(), "{:?}", r.warnings());
    }
}

#[test]
fn inside_a_container_a_command_is_launched_and_recorded() {
    if !can_run() {
        return;
    }
    let script = "unset CUDA_INJECTION64_PATH; \
                  $GDIAG record -o $FILE -- gpuload --steps 200 >&2";
    let r = inside(script, Library::Carried);
    let task = r
        .tasks
        .iter()
        .find(|t| t.target && r.name(t.comm) == "gpuload")
        .unwrap();
    assert_ne!(task.tid, task.ns_tid);
    r.assert_dispatched_by(task.pid.0);
}

#[test]
fn the_holder_of_the_interpreter_lock_is_a_thread_of_the_host() {
    if !can_run() {
        return;
    }
    let program = "import threading\n\
                   def burn():\n    while True: sum(range(1000))\n\
                   for _ in range(2): threading.Thread(target=burn).start()\n";
    let burns = |r: &Recorded| r.has_function("burn");
    let run = |command: &mut Command| {
        let running = Running::start(command.args(["python3", "-c", program]));
        let mut pid = 0;
        support::wait_until("python runs", || {
            let all = gdiag::collect::process::with_descendants(&[running.pid()]);
            let has_threads =
                |pid: &u32| fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|t| t.count() == 3);
            pid = all.into_iter().find(has_threads).unwrap_or(0);
            pid != 0
        });
        recorded_until(&["-p", &pid.to_string(), "-F", "499", "-d", "1s"], burns)
    };
    let r = run(&mut unshare(CONTAINER));
    if !burns(&r) {
        let outside = run(&mut Command::new("env"));
        assert!(
            !burns(&outside),
            "only inside of a container there are no frames"
        );
        println!("skipped: no frames of this Python are known");
        return;
    }
    let threads: Vec<u32> = r.targets().iter().map(|&(tid, _)| tid).collect();
    let holders: Vec<u32> = r.samples.iter().filter_map(|s| Some(s.gil?.0)).collect();
    assert!(!holders.is_empty());
    assert!(
        holders.iter().all(|tid| threads.contains(tid)),
        "{holders:?} of {threads:?}"
    );
}

/// What is said of a pid that cannot be recorded.
#[test]
fn a_pid_that_is_no_target_is_told_why() {
    if !can_run() {
        return;
    }
    let (thread, owner) = {
        let thread = std::thread::spawn(|| {
            let tid = nix::unistd::gettid();
            std::thread::park();
            tid
        });
        let own = std::process::id();
        let mut tid = 0;
        support::wait_until("the thread runs", || {
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            let ids = tasks.filter_map(|t| t.file_name().to_str()?.parse::<u32>().ok());
            tid = ids.max().unwrap();
            tid != own
        });
        thread.thread().unpark();
        (tid, own)
    };
    let (output, _) = record(&["-p", &thread.to_string(), "-d", "1s"]);
    let text = String::from_utf8_lossy(&output.stderr);
    // The thread may be over by now, and its number free.
    if !text.contains("no process has pid") {
        let expected = format!("{thread} is a thread of process {owner}, not a process");
        assert!(text.contains(&expected), "{text}");
    }

    let mut ended = Command::new("true").spawn().unwrap();
    support::wait_until("it ends", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", ended.id())).unwrap();
        stat.contains(") Z ")
    });
    let (output, _) = record(&["-p", &ended.id().to_string(), "-d", "1s"]);
    ended.wait().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("has ended"),
        "{output:?}"
    );
    assert_eq!(output.status.code(), Some(1));

    let script = |options: &[&str], script: &str| {
        let mut command = unshare(options);
        command
            .args(["sh", "-c", script])
            .env("GDIAG", env!("CARGO_BIN_EXE_gdiag"));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("\nhint: "), "{text}");
        (output.status.code(), text)
    };
    let itself = script(&[], "exec $GDIAG record -p $$ -d 1s");
    assert!(itself.1.contains("is gdiag itself"), "{itself:?}");
    let outside = script(CONTAINER, "$GDIAG record -p 4194000 -d 1s");
    assert!(
        outside.1.contains("in the PID namespace that gdiag is in"),
        "{outside:?}"
    );
    let foreign = script(
        &["--pid", "--fork", "--kill-child"],
        "$GDIAG record -p 1 -d 1s",
    );
    assert!(
        foreign.1.contains("another PID namespace than gdiag's"),
        "{foreign:?}"
    );
    // Group 0 sees all processes, unless it is another that does.
    let hidden = script(
        CONTAINER,
        "mount -t proc -o hidepid=2,gid=1 proc /proc && \
         setpriv --bounding-set=-sys_ptrace -- $GDIAG record -p 1 -d 1s; exit $?",
    );
    assert!(hidden.1.contains("/proc does not show it"), "{hidden:?}");
    assert_eq!(
        [itself.0, outside.0, foreign.0, hidden.0],
        [Some(1), Some(1), Some(77), Some(1)]
    );
    if gdiag::collect::process::in_first_namespace() {
        let (output, _) = record(&["-p", "2", "-d", "1s"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("2 is a thread of the kernel (kthreadd)"),
            "{text}"
        );
    }
}

#[test]
fn children_that_are_born_while_gdiag_attaches_are_recorded() {
    if !can_run() {
        return;
    }
    let parent = Running::start(Command::new("sh").args([
        "-c",
        "i=0; while [ $i -lt 400 ]; do sleep 30 & sleep 0.01; i=$((i+1)); done; wait",
    ]));
    let r = recorded(&[
        "-p",
        &parent.pid().to_string(),
        "--no-stacks",
        "-d",
        "300ms",
    ]);
    let all: Vec<u32> = r.targets().iter().map(|&(tid, _)| tid).collect();
    let last = all.iter().max().unwrap();
    let there = gdiag::collect::process::with_descendants(&[parent.pid()]);
    let missed: Vec<_> = there
        .iter()
        .filter(|pid| *pid < last && !all.contains(pid))
        .collect();
    // Some before the attach and some after it; a busy machine starts few.
    assert!(all.len() > 4, "{all:?}");
    assert!(missed.is_empty(), "{missed:?} of {there:?}");
}
