//! Reports of real recordings, made on an H200 (`tests/data/README.md`): as text and as JSON they must
//! be what was approved, they must add up, and a recording that is cut or damaged anywhere must
//! still be reported as far as it goes.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const RECORDINGS: [&str; 8] = [
    "launch", "item", "loader", "stacks", "engine", "managed", "attached", "syscalls",
];

/// Every so many bytes a recording is cut, or a bit of it flipped.
const STEP: usize = 997;

/// Without its first bytes a file is no recording.
const HEADER: usize = 24;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn report(recording: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .arg("report")
        .arg("-i")
        .arg(recording)
        .args(arguments)
        .env("COLUMNS", "80")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn whole_report(name: &str, arguments: &[&str]) -> String {
    let output = report(&data(&format!("{name}.data")), arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{name}: {errors}");
    assert_eq!(errors, "", "{name}");
    String::from_utf8(output.stdout).unwrap()
}

/// Compares with the approved file, or with GDIAG_BLESS=1 (`make bless`) approves `actual`.
fn approve(file: &str, actual: &str) {
    let path = data(file);
    if std::env::var_os("GDIAG_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let approved = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = (1..)
        .zip(approved.lines().zip(actual.lines()))
        .find(|(_, (a, b))| a != b);
    if let Some((number, (approved, actual))) = differ {
        panic!(
            "{file}:{number}: approved `{approved}`, now `{actual}`; if that is right: make bless"
        );
    }
    assert!(
        approved == actual,
        "{file}: longer or shorter than approved; if that is right: make bless"
    );
}

#[test]
fn flame_graphs_are_as_approved() {
    for mode in ["idle", "gpu", "offcpu"] {
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["flame", "--folded", "--mode", mode, "-i"])
            .arg(data("stacks.data"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{mode}");
        let folded = String::from_utf8(output.stdout).unwrap();
        approve(&format!("stacks-{mode}.folded"), &folded);
    }
}

#[test]
fn reports_are_as_approved() {
    for name in RECORDINGS.into_iter().chain(["probed"]) {
        approve(
            &format!("{name}.txt"),
            &whole_report(name, &["--gaps", "3"]),
        );
        approve(
            &format!("{name}.json"),
            &whole_report(name, &["--json", "--gaps", "3"]),
        );
    }
}

/// What the scheduler did, and which system calls overlapped idle time, beside a GPU.
#[test]
fn host_modes_are_as_approved() {
    for (file, arguments) in [
        ("syscalls-calls.txt", &["syscalls", "-s"] as &[&str]),
        ("syscalls-calls.json", &["syscalls", "-s", "--json"]),
        ("syscalls-sched.txt", &["sched"]),
        ("syscalls-sched.json", &["sched", "--json"]),
        (
            "syscalls-timehist.txt",
            &["sched", "--timehist", "--to", "60ms"],
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(arguments)
            .arg("-i")
            .arg(data("syscalls.data"))
            .env("COLUMNS", "80")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        approve(file, &String::from_utf8(output.stdout).unwrap());
    }
}

#[test]
fn the_known_fault_comes_first() {
    for (name, fault) in [
        ("launch", "host.launch-bound"),
        ("loader", "host.data-loading"),
        ("managed", "gpu.unified-memory"),
    ] {
        let report: Value = serde_json::from_str(&whole_report(name, &["--json"])).unwrap();
        let first = &report["gpus"][0]["causes"][0];
        assert_eq!(first["id"], fault);
        assert!(first["share"].as_f64().unwrap() > 0.5, "{first}");
    }
}

/// Without CUPTI: the host's side of CUDA, and not a word on when the GPU was idle.
#[test]
fn probes_on_the_driver_tell_of_calls_and_of_no_gap() {
    let report: Value = serde_json::from_str(&whole_report("probed", &["--json"])).unwrap();
    assert_eq!(report["recording"]["gpu_source"], "uprobe");
    assert_eq!(list(&report, "gpus").len(), 0);
    assert!(list(&report, "calls")
        .iter()
        .any(|call| call["name"] == "cuLaunchKernel" && number(call, "count") == 2892));
}

/// The hardest case: nothing in any trace of the GPU, or of the process that uses it, tells why it waits.
#[test]
fn an_engine_outside_of_the_job_is_caught_in_its_garbage_collector() {
    let report: Value = serde_json::from_str(&whole_report("engine", &["--json"])).unwrap();
    for gap in &list(&report["gpus"][0], "gaps")[..2] {
        let collects = |part: &&Value| part["cause"] == "host.gc" && part["comm"] == "engine";
        let collected: u64 = list(gap, "parts").iter().filter(collects).map(length).sum();
        assert!(collected * 10 > length(gap) * 9, "{gap}");
        assert_ne!(gap["dispatcher"]["comm"], "engine");
        // From the dispatcher back to the engine, which ran.
        let chain = list(gap, "chain");
        assert_eq!(chain[0]["comm"], gap["dispatcher"]["comm"]);
        assert_eq!(chain[0]["woken_by"]["comm"], "engine");
        let last = &chain[chain.len() - 1];
        assert_eq!(
            (&last["comm"], &last["state"]),
            (&"engine".into(), &"running (collecting garbage)".into())
        );
    }
}

#[test]
fn text_fits_80_columns() {
    for name in RECORDINGS {
        for line in whole_report(name, &["--gaps", "all"]).lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}

#[test]
fn every_nanosecond_has_one_cause() {
    for name in RECORDINGS {
        let json = whole_report(name, &["--json", "--gaps", "all", "--min-gap", "1ns"]);
        let report: Value = serde_json::from_str(&json).unwrap();
        adds_up(&report);
        // With all gaps listed, they are the idle time.
        for gpu in list(&report, "gpus") {
            let idle: u64 = list(gpu, "gaps").iter().map(length).sum();
            assert_eq!(Some(idle), gpu["idle_ns"].as_u64(), "{name}");
        }
    }
}

#[test]
fn only_lists_depend_on_the_limits() {
    for name in RECORDINGS {
        let parse = |arguments: &[&str]| -> Value {
            serde_json::from_str(&whole_report(name, arguments)).unwrap()
        };
        let few = parse(&["--json", "--gaps", "1"]);
        let mut all = parse(&["--json", "--gaps", "all"]);
        for (few, all) in list(&few, "gpus")
            .iter()
            .zip(all["gpus"].as_array_mut().unwrap())
        {
            assert_eq!(list(few, "gaps").len(), 1);
            assert_eq!(few["gaps"][0], all["gaps"][0]);
            all["gaps"] = few["gaps"].clone();
        }
        assert_eq!(few, all, "{name}");
    }
}

#[test]
fn keys_are_those_of_the_schema() {
    let who = ["pid", "tid", "comm"];
    for name in RECORDINGS {
        let json = whole_report(name, &["--json", "--gaps", "all"]);
        let report: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(report["schema"], "gdiag.report/1");
        has(
            &report,
            &[
                "schema",
                "recording",
                "quality",
                "gpus",
                "threads",
                "kernels",
                "calls",
            ],
        );
        has(
            &report["recording"],
            &[
                "start_ns",
                "end_ns",
                "start_unix_ns",
                "host",
                "kernel",
                "command",
                "gdiag_version",
                "gpu_source",
            ],
        );
        has(
            &report["quality"],
            &[
                "bpf_lost",
                "shim_lost",
                "cupti_lost",
                "invalid_gpu_records",
                "unmatched_gpu_records",
                "gpu_coverage",
                "max_clock_error_ns",
                "warnings",
            ],
        );
        for gpu in list(&report, "gpus") {
            has(
                gpu,
                &[
                    "index",
                    "name",
                    "uuid",
                    "window_ns",
                    "busy_ns",
                    "idle_ns",
                    "idle_explained",
                    "busy",
                    "causes",
                    "gaps",
                ],
            );
            has(&gpu["busy"], &["kernel_ns", "memcpy_ns", "memset_ns"]);
            for cause in list(gpu, "causes") {
                has(cause, &["id", "ns", "share", "gaps", "by", "fix"]);
                for by in list(cause, "by") {
                    has(by, &["pid", "tid", "comm", "what", "ns"]);
                }
            }
            for gap in list(gpu, "gaps") {
                has(
                    gap,
                    &[
                        "start_ns",
                        "end_ns",
                        "next",
                        "dispatcher",
                        "lead_ns",
                        "opened_by",
                        "parts",
                        "chain",
                    ],
                );
                has(
                    &gap["next"],
                    &["kind", "name", "stream", "correlation", "pid"],
                );
                has(&gap["dispatcher"], &who);
                for part in list(gap, "parts") {
                    has(part, &["start_ns", "end_ns", "cause", "what", "stack"]);
                    has(part, &who);
                }
                for hop in list(gap, "chain") {
                    has(hop, &["state", "start_ns", "end_ns", "woken_by"]);
                    has(hop, &who);
                }
            }
        }
        for thread in list(&report, "threads") {
            has(thread, &who);
            has(
                thread,
                &["dispatcher", "run_ns", "runq_ns", "blocked_ns", "launches"],
            );
        }
        for kernel in list(&report, "kernels") {
            has(
                kernel,
                &["name", "count", "total_ns", "min_ns", "avg_ns", "max_ns"],
            );
        }
        for call in list(&report, "calls") {
            has(
                call,
                &["name", "count", "total_ns", "max_ns", "idle_overlap_ns"],
            );
        }
    }
}

#[test]
fn a_recording_cut_anywhere_is_reported_as_far_as_it_goes() {
    for name in RECORDINGS {
        let bytes = std::fs::read(data(&format!("{name}.data"))).unwrap();
        let mut operations = vec![0];
        for len in (0..bytes.len())
            .step_by(STEP)
            .chain([bytes.len() - 1, bytes.len()])
        {
            let (status, found) = report_of(&bytes[..len]);
            let cut = i32::from(len < bytes.len());
            assert_eq!(status, cut, "{name} cut at {len}");
            operations.push(found.as_ref().map_or(0, kernels));
        }
        assert!(operations.is_sorted(), "{name}: {operations:?}");
        operations.dedup();
        // Of the shortest recordings they came back from the GPU in one or two chunks.
        let least = match name {
            "managed" => 2,
            "engine" => 3,
            _ => 4,
        };
        assert!(operations.len() >= least, "{name}: {operations:?}");
    }
}

#[test]
fn a_flipped_bit_is_noticed_wherever_it_is() {
    for name in RECORDINGS {
        let bytes = std::fs::read(data(&format!("{name}.data"))).unwrap();
        for at in (0..bytes.len()).step_by(STEP) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            let (status, found) = report_of(&damaged);
            assert_eq!(status, 1, "{name} with a bit of byte {at} flipped");
            assert!(found.is_some() || at < HEADER, "{name}: byte {at}");
        }
    }
}

/// Check that nobody is blamed for what a damaged part does not tell.
#[test]
fn damage_in_the_middle_is_blamed_on_no_one() {
    for name in ["launch", "loader", "item"] {
        let bytes = std::fs::read(data(&format!("{name}.data"))).unwrap();
        let (status, whole) = report_of(&bytes);
        assert_eq!(status, 0);
        let (from, to) = (bytes.len() / 2, bytes.len() / 2 + 1000);
        let mut damaged = bytes;
        damaged[from..to].fill(0);
        let (status, damaged) = report_of(&damaged);
        assert_eq!(status, 1);
        let (whole, damaged) = (whole.unwrap(), damaged.unwrap());
        let (whole, damaged) = (&whole["gpus"][0], &damaged["gpus"][0]);
        let of = |gpu: &Value, id: &str| -> u64 {
            let causes = list(gpu, "causes").iter();
            causes
                .filter(|c| c["id"] == id)
                .map(|c| number(c, "ns"))
                .sum()
        };
        for cause in list(damaged, "causes") {
            let id = cause["id"].as_str().unwrap();
            let (before, now) = (of(whole, id), number(cause, "ns"));
            assert!(
                !id.starts_with("host.") || now <= before,
                "{name}: {id} {before} {now}"
            );
        }
        // All of the idle time that was not there before.
        let more = number(damaged, "idle_ns").saturating_sub(number(whole, "idle_ns"));
        assert!(
            of(damaged, "unknown.measurement") > more,
            "{name}: {more} {damaged}"
        );
        let parts = list(damaged, "gaps")
            .iter()
            .flat_map(|gap| list(gap, "parts"));
        let said = |part: &Value| part["what"] == "the recording is damaged there";
        assert!(parts.into_iter().any(said), "{name}");
    }
}

/// Exit status and report, which adds up whatever is missing.
fn report_of(recording: &[u8]) -> (i32, Option<Value>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), recording).unwrap();
    let output = report(file.path(), &["--json", "--gaps", "3"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("panicked"), "{errors}");
    let status = output.status.code().expect("not killed");
    assert!(status == 0 || !errors.is_empty(), "failed without a word");
    let found = (!output.stdout.is_empty()).then(|| {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        adds_up(&report);
        report
    });
    (status, found)
}

/// Kernels that were seen.
fn kernels(report: &Value) -> u64 {
    let kernels = list(report, "kernels");
    kernels.iter().map(|kernel| number(kernel, "count")).sum()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("{key} is not a list"))
}

fn has(value: &Value, keys: &[&str]) {
    if value.is_null() {
        return;
    }
    for key in keys {
        assert!(value.get(key).is_some(), "no {key} in {value}");
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

fn length(value: &Value) -> u64 {
    number(value, "end_ns") - number(value, "start_ns")
}

fn adds_up(report: &Value) {
    for gpu in list(report, "gpus") {
        let (Some(busy), Some(idle)) = (gpu["busy_ns"].as_u64(), gpu["idle_ns"].as_u64()) else {
            assert!(gpu["busy_ns"].is_null() && gpu["idle_ns"].is_null());
            assert!(list(gpu, "causes").is_empty());
            continue;
        };
        assert_eq!(busy + idle, number(gpu, "window_ns"));
        let causes = list(gpu, "causes");
        let total: u64 = causes.iter().map(|cause| number(cause, "ns")).sum();
        assert_eq!(total, idle);
        for cause in causes {
            let by: u64 = list(cause, "by").iter().map(|b| number(b, "ns")).sum();
            assert_eq!(by, number(cause, "ns"), "{}", cause["id"]);
        }
        let explained = gpu["idle_explained"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&explained));
        let mut longest = u64::MAX;
        for gap in list(gpu, "gaps") {
            assert!(length(gap) <= longest);
            longest = length(gap);
            let mut at = number(gap, "start_ns");
            for part in list(gap, "parts") {
                assert_eq!(number(part, "start_ns"), at);
                assert!(length(part) > 0);
                at = number(part, "end_ns");
            }
            assert_eq!(at, number(gap, "end_ns"));
        }
    }
}
