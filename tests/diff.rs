//! `gdiag diff` as a script sees it: over recordings of a real GPU, and from a fault that is made on the simulated one.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "scenarios/machine.rs"]
mod machine;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use machine::Machine;
use serde_json::Value;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn gdiag(arguments: &[&str], files: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(arguments)
        .args(files)
        .env("COLUMNS", "80")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn compared(a: &Path, b: &Path) -> Value {
    let output = gdiag(&["diff", "--json"], &[a, b]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

/// Every figure of the document, wherever it is.
fn figures<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(object) if object.contains_key("noise") => found.push(value),
        Value::Object(object) => object.values().for_each(|value| figures(value, found)),
        Value::Array(list) => list.iter().for_each(|value| figures(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    for name in ["launch", "item", "loader", "engine", "managed", "attached"] {
        let file = data(&format!("{name}.data"));
        let diff = compared(&file, &file);
        assert_ne!(diff["changed"], true, "{name}");
        let mut all = Vec::new();
        figures(&diff, &mut all);
        assert!(all.len() > 10, "{name}");
        for figure in all {
            assert_eq!(number(&figure["change"]), 0.0, "{name}: {figure}");
        }
    }
}

/// Check that shares are those of the reports.
#[test]
fn figures_are_those_of_the_reports() {
    let (a, b) = (data("launch.data"), data("item.data"));
    let diff = compared(&a, &b);
    for (side, file) in [("a", &a), ("b", &b)] {
        let output = gdiag(&["report", "--json", "-i"], &[file]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (gpu, told) = (&report["gpus"][0], &diff["gpus"][0]);
        let window = number(&gpu["window_ns"]);
        assert_eq!(number(&told[side]["window_ns"]), window);
        let idle = number(&gpu["idle_ns"]) / window;
        assert!((number(&told["idle"][side]) - idle).abs() < 1e-9);
        for cause in gpu["causes"].as_array().unwrap() {
            let rows = told["causes"].as_array().unwrap();
            let row = rows.iter().find(|row| row["id"] == cause["id"]).unwrap();
            let share = number(&cause["ns"]) / window;
            assert!((number(&row["share"][side]) - share).abs() < 1e-9, "{row}");
        }
        for kernel in report["kernels"].as_array().unwrap() {
            let rows = diff["kernels"].as_array().unwrap();
            let row = rows.iter().find(|row| row["name"] == kernel["name"]);
            assert_eq!(row.unwrap()[side]["count"], kernel["count"]);
        }
    }
}

#[test]
fn another_job_is_another_story() {
    let diff = compared(&data("launch.data"), &data("item.data"));
    assert_eq!(diff["changed"], true);
    let gpu = &diff["gpus"][0];
    assert_eq!(gpu["idle"]["changed"], true);
    // What it added is what has grown most.
    assert_eq!(gpu["causes"][0]["id"], "host.sync");
    let output = gdiag(&["diff"], &[&data("launch.data"), &data("item.data")]);
    let text = text(&output.stdout);
    let start = "GPU 0 NVIDIA H200: idle 92.6 % -> 62.0 % (-30.6 +- ";
    assert!(text.starts_with(start), "{text}");
    assert!(text.contains("host.launch-bound -36.9 +- "), "{text}");
}

#[test]
fn what_cannot_be_compared_is_status_1() {
    let (launch, probed) = (data("launch.data"), data("probed.data"));
    let output = gdiag(&["diff"], &[&launch, &probed]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("warning: B has no GPU activity\n"));
    let output = gdiag(&["diff"], &[&launch, Path::new("/nonexistent/x.data")]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert!(text(&output.stderr).contains("'/nonexistent/x.data'"));
    let output = gdiag(&["diff", "--gpu", "7"], &[&launch, &launch]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("launch.data': there is no GPU 7"), "{said}");
}

#[test]
fn a_cut_recording_is_compared_as_far_as_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let cut = directory.path().join("cut.data");
    let whole = std::fs::read(data("item.data")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() * 9 / 10]).unwrap();
    let output = gdiag(&["diff", "--json"], &[&data("item.data"), &cut]);
    assert_eq!(output.status.code(), Some(1));
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&diff["a"]["whole"], &diff["b"]["whole"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    // What the status is for is seen without reading the document.
    assert!(text(&output.stderr).starts_with("gdiag: warning: B: "));
    assert!(
        diff["warnings"][0].as_str().unwrap().starts_with("B: "),
        "{}",
        diff["warnings"]
    );
    assert_eq!(diff["gpus"].as_array().unwrap().len(), 1);
}

/// Check from end to end that a fault that is made is the one that is found, as large as it is.
#[test]
fn a_fault_that_came_is_named_with_its_size() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let record = |name: &str, more: &[&str]| {
        let file = directory.path().join(name);
        // Before all others, which are noise: there may be much of it where tests run.
        let output = Command::new("chrt")
            .args(["-f", "1", "timeout", "60", env!("CARGO_BIN_EXE_gdiag")])
            .args(["record", "-q", "-o"])
            .arg(&file)
            .arg("--")
            .arg(machine.gpuload())
            .args(["--steps", "200", "--truth"])
            .arg(directory.path().join("truth"))
            .args(more)
            .env("LD_LIBRARY_PATH", &machine.simgpu)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        file
    };
    let before = record("before.data", &[]);
    let after = record("after.data", &["--inject", "sleep:20@2"]);
    let diff = compared(&before, &after);
    let gpu = &diff["gpus"][0];
    let first = &gpu["causes"][0];
    assert_eq!(first["id"], "host.sleep", "{gpu}");
    assert_eq!(first["share"]["changed"], true, "{first}");
    let truth = std::fs::read_to_string(directory.path().join("truth")).unwrap();
    let injected: f64 = truth
        .lines()
        .map(|line| number(&serde_json::from_str::<Value>(line).unwrap()["ns"]))
        .sum();
    let injected = injected / number(&gpu["b"]["window_ns"]);
    let (found, noise) = (
        number(&first["share"]["change"]),
        number(&first["share"]["noise"]),
    );
    // How late it woke up is in what was injected, but not the fault of the sleep.
    let late = 0.1 * injected;
    assert!(
        (found - injected).abs() <= noise + late,
        "{found} {injected} {first}"
    );
    // The load waits for the device after every step.
    assert_eq!(gpu["b"]["step_operations"], 20, "{gpu}");
}
