//! Gates: `gdiag report --assert` over recordings of a real GPU, as a script sees it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

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

/// Exit status, stdout and stderr.
fn gate(recording: &str, arguments: &[&str]) -> (i32, String, String) {
    read(&report(&data(recording), arguments))
}

fn read(output: &Output) -> (i32, String, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout.clone()).unwrap(),
        String::from_utf8(output.stderr.clone()).unwrap(),
    )
}

#[test]
fn a_gate_that_holds_lets_pass_and_says_so_in_the_report() {
    let (status, text, errors) = gate(
        "loader.data",
        &[
            "--assert",
            "idle > 50%",
            "--assert=cause(host.throttled)<1%",
        ],
    );
    assert_eq!((status, errors.as_str()), (0, ""));
    let (_, end) = text.split_once("\nAssertions\n").unwrap();
    let lines: Vec<&str> = end.lines().collect();
    assert!(
        lines[0].starts_with("  holds    idle > 50%: GPU 0 was idle "),
        "{end}"
    );
    // Wrapped to the width.
    let words = end.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "cause(host.throttled)<1%: GPU 0 was idle by host.throttled 0.0 % of 457 ms";
    assert!(words.ends_with(said), "{end}");
    // All before is what the report says anyhow.
    let (_, plain, _) = gate("loader.data", &[]);
    assert!(text.starts_with(&plain));
}

#[test]
fn a_gate_that_does_not_hold_is_status_5_and_one_line_each() {
    let (status, text, errors) = gate(
        "loader.data",
        &[
            "--assert=idle<20%",
            "--assert=lost<1",
            "--assert=cause(host.data-loading)<=1ms",
        ],
    );
    assert_eq!(status, 5);
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines[0].starts_with("gdiag: assertion failed: idle<20%: GPU 0 was idle "),
        "{errors}"
    );
    assert!(lines[1].starts_with("gdiag: assertion failed: cause(host.data-loading)<=1ms: GPU 0 was idle by host.data-loading "), "{errors}");
    assert!(
        text.contains("\n  FAILED   idle<20%: GPU 0 was idle "),
        "{text}"
    );
    assert!(
        text.contains("\n  holds    lost<1: 0 events were lost"),
        "{text}"
    );
}

/// Check that what a gate compares is what the report shows.
#[test]
fn json_has_the_verdicts_beside_the_figures_that_they_are_of() {
    let asserts = [
        "idle<20%",
        "busy<9h",
        "explained>=0%",
        "cause(host.*)<=100%",
        "longest-gap<1h",
        "gaps>0",
        "lost<=0",
        "gpu-coverage>50%",
    ];
    for name in ["launch", "item", "loader", "engine", "managed"] {
        let mut arguments = vec!["--json", "--gaps", "all", "--min-gap", "0ns"];
        arguments.extend(asserts.iter().flat_map(|text| ["--assert", text]));
        let (_, text, _) = gate(&format!("{name}.data"), &arguments);
        let report: Value = serde_json::from_str(&text).unwrap();
        let (gpu, verdicts) = (&report["gpus"][0], report["asserts"].as_array().unwrap());
        let number = |value: &Value| value.as_f64().unwrap();
        let window = number(&gpu["window_ns"]);
        let gaps = gpu["gaps"].as_array().unwrap();
        let length = |gap: &Value| number(&gap["end_ns"]) - number(&gap["start_ns"]);
        let host = gpu["causes"].as_array().unwrap().iter();
        let host = host.filter(|cause| cause["id"].as_str().unwrap().starts_with("host."));
        let expected = [
            number(&gpu["idle_ns"]) / window,
            number(&gpu["busy_ns"]),
            number(&gpu["idle_explained"]),
            host.map(|cause| number(&cause["ns"])).sum::<f64>() / window,
            gaps.iter().map(length).fold(0.0, f64::max),
            gaps.len() as f64,
            0.0,
            number(&report["quality"]["gpu_coverage"]),
        ];
        let units = [
            "share", "ns", "share", "share", "ns", "count", "count", "share",
        ];
        assert_eq!(verdicts.len(), asserts.len());
        for (i, verdict) in verdicts.iter().enumerate() {
            assert_eq!(verdict["text"], asserts[i]);
            assert_eq!(verdict["unit"], units[i]);
            let value = number(&verdict["value"]);
            assert!(
                (value - expected[i]).abs() <= 1e-9 * expected[i],
                "{name}: {verdict} {}",
                expected[i]
            );
            let of_recording = i >= 6;
            assert_eq!(verdict["gpu"].is_null(), of_recording);
            assert_eq!(
                verdict["holds"],
                Value::Bool(i > 0 || value < 0.2),
                "{name}: {verdict}"
            );
        }
    }
}

#[test]
fn without_a_gate_the_document_is_as_ever() {
    let (_, text, _) = gate("launch.data", &["--json"]);
    assert!(!text.contains("\"asserts\""));
}

/// What a gate lists must not change what it judges.
#[test]
fn lists_do_not_change_a_verdict() {
    for lists in [
        &["--gaps", "0"] as &[&str],
        &["--gaps", "all"],
        &["--min-gap", "1s"],
    ] {
        for (assertion, status) in [
            ("longest-gap>=10us", 0),
            ("longest-gap<10us", 5),
            ("gaps<10", 5),
        ] {
            let arguments = [lists, &["--assert", assertion]].concat();
            assert_eq!(gate("item.data", &arguments).0, status, "{arguments:?}");
        }
    }
}

#[test]
fn without_a_gpu_no_gate_opens() {
    let (status, text, errors) = gate("probed.data", &["--assert", "idle<100%"]);
    assert_eq!(status, 1);
    let why = "idle<100%: there is no GPU activity in this recording\n";
    assert_eq!(errors, format!("gdiag: assertion cannot be told: {why}"));
    assert!(text.ends_with(&format!("  unknown  {why}")), "{text}");
    let (_, text, _) = gate("probed.data", &["--json", "--assert", "idle<100%"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let verdict = &report["asserts"][0];
    assert!(verdict["holds"].is_null() && verdict["value"].is_null() && verdict["gpu"].is_null());
    // One that is known to be wrong counts more.
    let (status, _, errors) = gate("probed.data", &["--assert=idle<100%", "--assert=lost>0"]);
    assert_eq!((status, errors.lines().count()), (5, 2));
}

#[test]
fn a_cut_recording_is_1_unless_a_gate_fails() {
    let directory = tempfile::tempdir().unwrap();
    let cut = directory.path().join("cut.data");
    let whole = std::fs::read(data("loader.data")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() * 9 / 10]).unwrap();
    assert_eq!(report(&cut, &[]).status.code(), Some(1));
    let (status, text, errors) = read(&report(&cut, &["--assert", "idle<=100%"]));
    assert_eq!((status, errors.as_str()), (1, ""));
    assert!(text.contains("  holds    idle<=100%: "), "{text}");
    assert_eq!(
        report(&cut, &["--assert", "idle<1%"]).status.code(),
        Some(5)
    );
}

/// Check that `gdiag report --assert … | head -1` is still a gate.
#[test]
fn a_gate_does_not_open_when_nobody_reads_the_report() {
    let status = |assertion: &str| {
        let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["report", "--gaps", "all", "--assert", assertion, "-i"])
            .arg(data("launch.data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop(gdiag.stdout.take());
        gdiag.wait().unwrap().code()
    };
    assert_eq!(
        (status("idle<1%"), status("idle<=100%")),
        (Some(5), Some(0))
    );
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    for (assertion, hint) in [
        ("cause(host.trottled)<1%", "did you mean 'host.throttled'?"),
        ("idel<1%", "did you mean idle?"),
        ("idle<1", "write it as 20% or 50ms"),
        ("lost", "such as 'idle<20%'"),
    ] {
        let (status, text, errors) = gate("launch.data", &["--assert", assertion]);
        assert_eq!((status, text.as_str()), (2, ""), "{assertion}");
        assert!(errors.contains(hint), "{assertion}: {errors}");
    }
}
