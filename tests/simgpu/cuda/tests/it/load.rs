//! gpuload's truth against the device: during an injection the device is idle, and
//! with work queued ahead it is not.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::install;

/// Idle time of device 0 inside the injections' intervals, and the intervals' length.
struct Outcome {
    causes: Vec<String>,
    idle: u64,
    total: u64,
}

impl Outcome {
    fn idle_share(&self) -> f64 {
        self.idle as f64 / self.total as f64
    }
}

fn compile(output: &str, flags: &[&str], sources: &[PathBuf]) -> PathBuf {
    // Tests run at once, so each has its own.
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&output)
        .args(flags)
        .args(sources)
        .args(["-lpthread", "-ldl"])
        .status()
        .unwrap();
    assert!(built.success());
    output
}

/// `None` when the load says that its scratch directory is no disk.
fn run(name: &str, args: &[&str], env: &[(&str, &str)]) -> Option<Outcome> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = std::fs::read_dir(here.join("../../programs/gpuload")).unwrap();
    let sources: Vec<PathBuf> = sources
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect();
    let load = compile(&format!("gpuload-{name}"), &[], &sources);
    let dump = here.join("tests/it/dump.c");
    let dump = compile(&format!("dump-{name}.so"), &["-shared", "-fPIC"], &[dump]);
    let (ops, truth) = (load.with_extension("ops"), load.with_extension("truth"));
    let output = Command::new(&load)
        .args(["--steps", "11", "--scratch", env!("CARGO_TARGET_TMPDIR")])
        .args(args)
        .arg("--truth")
        .arg(&truth)
        .env("LD_LIBRARY_PATH", install())
        .env("CUDA_INJECTION64_PATH", dump)
        .env("DUMP_FILE", &ops)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("is in memory") {
        eprintln!("skipped: {name} needs a disk");
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    Some(judge(
        &std::fs::read_to_string(ops).unwrap(),
        &std::fs::read_to_string(truth).unwrap(),
    ))
}

fn judge(ops: &str, truth: &str) -> Outcome {
    let mut busy: Vec<(u64, u64)> = ops
        .lines()
        .map(|line| {
            let mut numbers = line.split(' ').map(|n| n.parse::<u64>().unwrap());
            [(); 3].map(|()| numbers.next().unwrap())
        })
        .filter(|op| op[0] == 0)
        .map(|op| (op[1], op[2]))
        .collect();
    busy.sort_unstable();
    let mut outcome = Outcome {
        causes: Vec::new(),
        idle: 0,
        total: 0,
    };
    for line in truth.lines() {
        let field = |key: &str| {
            let at = line.find(&format!("\"{key}\":")).unwrap() + key.len() + 3;
            let end = line[at..].find([',', '}']).unwrap();
            line[at..at + end].trim_matches('"').to_owned()
        };
        let (start, end): (u64, u64) = (
            field("start_ns").parse().unwrap(),
            field("end_ns").parse().unwrap(),
        );
        assert!(start < end);
        let mut free_from = start;
        for &(from, to) in &busy {
            outcome.idle += from.min(end).saturating_sub(free_from);
            free_from = free_from.max(to);
        }
        outcome.idle += end.saturating_sub(free_from);
        outcome.total += end - start;
        outcome.causes.push(field("cause"));
        // An injection may have taken effect many times.
        outcome.causes.dedup();
    }
    outcome
}

/// One injection of this kind, of about 8 ms, makes the device idle with this cause.
fn makes_a_gap(injection: &str, cause: &str, least: f64, env: &[(&str, &str)]) {
    let Some(outcome) = run(injection, &["--inject", &format!("{injection}:8")], env) else {
        return;
    };
    assert_eq!(outcome.causes, [cause]);
    assert!(outcome.total >= 2_000_000, "{injection}: {}", outcome.total);
    let share = outcome.idle_share();
    assert!(
        share >= least,
        "{injection}: idle for {share} of the injection"
    );
}

#[test]
fn host_faults_make_the_device_idle() {
    makes_a_gap("sleep", "host.sleep", 0.95, &[]);
    makes_a_gap("compute", "host.compute", 0.95, &[]);
    makes_a_gap("lock", "host.lock", 0.95, &[]);
    makes_a_gap("peer-sleep", "host.sleep", 0.95, &[]);
    makes_a_gap("chain", "host.compute", 0.95, &[]);
    makes_a_gap("stop", "host.stopped", 0.95, &[]);
    makes_a_gap("subprocess", "host.subprocess", 0.95, &[]);
    makes_a_gap("oversubscribe", "host.oversubscribed", 0.95, &[]);
    // Its hogs are children of the load here.
    makes_a_gap("preempt", "host.oversubscribed", 0.95, &[]);
}

#[test]
fn disk_faults_make_the_device_idle() {
    makes_a_gap("disk", "host.disk-read", 0.95, &[]);
    makes_a_gap("mmapfault", "host.page-fault", 0.95, &[]);
    makes_a_gap("fsync", "host.disk-write", 0.95, &[]);
}

#[test]
fn cuda_calls_make_the_device_idle() {
    makes_a_gap("alloc", "host.cuda-memory", 0.95, &[]);
    makes_a_gap("module", "host.module-load", 0.95, &[]);
    // The copies themselves are not idle time: in the tables at most 40 % of a call.
    makes_a_gap("pageable", "host.pageable-copy", 0.6, &[]);
    // Nor are the kernels between the waits.
    makes_a_gap("sync", "host.sync", 0.05, &[]);
}

#[test]
fn device_faults_make_the_device_idle() {
    let two = ("GDIAG_SIM_DEVICES", "2");
    let shared = ("GDIAG_SIM_SHARED_COPY", "1");
    makes_a_gap("hostfunc", "gpu.host-callback", 0.95, &[]);
    makes_a_gap("eventwait", "gpu.dependency", 0.95, &[two]);
    makes_a_gap("copyengine", "gpu.copy-engine", 0.95, &[two, shared]);
}

#[test]
fn with_work_queued_ahead_a_host_fault_makes_no_gap() {
    // The load is 30 steps of 4 ms ahead when it sleeps.
    let args = ["--steps", "40", "--ahead", "30", "--inject", "sleep:8@40"];
    let outcome = run("ahead", &args, &[]).unwrap();
    assert_eq!(outcome.causes, ["host.sleep"]);
    assert!(outcome.idle_share() < 0.1, "{}", outcome.idle_share());
}
