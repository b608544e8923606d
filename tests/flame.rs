//! Flame graphs as scripts, other tools and browsers get them.
//!
//! Real recordings without user stacks (`tests/data`), and one made here that has samples of all kinds
//! and names that broke other tools. In a headless Chromium the pictures must add up, and searching and
//! zooming must work; without one (Debian: `chromium`) those tests are skipped.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "flame/browser.rs"]
mod browser;
#[path = "flame/story.rs"]
mod story;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use browser::Browser;

const RECORDINGS: [&str; 3] = ["launch", "item", "loader"];
const MODES: [&str; 5] = ["idle", "mixed", "cpu", "offcpu", "gpu"];

fn data(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    data.join(format!("{name}.data"))
}

fn gdiag(command: &str, input: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args([command, "-i"])
        .arg(input)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn flame(input: &Path, arguments: &[&str]) -> String {
    let output = gdiag("flame", input, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn folded(input: &Path, mode: &str, more: &[&str]) -> BTreeMap<String, u64> {
    let text = flame(input, &[&["--mode", mode, "--folded"], more].concat());
    let lines = text.lines().map(|line| {
        let (stack, time) = line.rsplit_once(' ').unwrap();
        (stack.to_string(), time.parse().unwrap())
    });
    let count = text.lines().count();
    let stacks: BTreeMap<String, u64> = lines.collect();
    assert_eq!(stacks.len(), count, "each stack once");
    stacks
}

fn total(stacks: &BTreeMap<String, u64>) -> u64 {
    stacks.values().sum()
}

/// From the report: idle time, running time, and time off the CPU.
fn report(input: &Path) -> (u64, u64, u64) {
    let output = gdiag("report", input, &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |list: &str, key: &str| -> u64 {
        let rows = report[list].as_array().unwrap();
        rows.iter().map(|row| row[key].as_u64().unwrap()).sum()
    };
    (
        sum("gpus", "idle_ns"),
        sum("threads", "run_ns"),
        sum("threads", "runq_ns") + sum("threads", "blocked_ns"),
    )
}

fn recordings() -> Vec<(PathBuf, Option<tempfile::TempDir>)> {
    let mut all: Vec<_> = RECORDINGS.iter().map(|name| (data(name), None)).collect();
    let directory = tempfile::tempdir().unwrap();
    all.push((story::record(directory.path()), Some(directory)));
    all
}

#[test]
fn times_are_those_of_the_report() {
    for (input, _directory) in recordings() {
        let (idle, run, off) = report(&input);
        let (idle_stacks, off_stacks) =
            (folded(&input, "idle", &[]), folded(&input, "offcpu", &[]));
        assert_eq!(total(&idle_stacks), idle, "{}", input.display());
        assert_eq!(total(&off_stacks), off, "{}", input.display());
        let gpu = total(&folded(&input, "gpu", &[]));
        let mixed = total(&folded(&input, "mixed", &[]));
        assert_eq!(mixed, run + off + gpu, "{}", input.display());
        assert!(idle > 0 && run > 0 && off > 0 && gpu > 0);
    }
}

#[test]
fn causes_at_the_base_are_those_of_the_report() {
    for (input, _directory) in recordings() {
        let output = gdiag("report", &input, &["--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let causes = report["gpus"][0]["causes"].as_array().unwrap();
        let expected: BTreeMap<String, u64> = causes
            .iter()
            .map(|c| {
                let id = c["id"].as_str().unwrap().to_string();
                (id, c["ns"].as_u64().unwrap())
            })
            .collect();
        let mut drawn = BTreeMap::new();
        for (stack, time) in folded(&input, "idle", &[]) {
            let cause = stack.split(';').nth(1).unwrap().to_string();
            *drawn.entry(cause).or_insert(0) += time;
        }
        assert_eq!(drawn, expected, "{}", input.display());
    }
}

#[test]
fn a_recording_without_samples_still_shows_waits_by_their_kernel_stacks() {
    let stacks = folded(&data("loader"), "offcpu", &[]);
    assert!(
        stacks
            .keys()
            .any(|s| s.contains(";do_futex_[k];") && s.ends_with("[blocked: futex]")),
        "{stacks:#?}"
    );
    let output = gdiag("flame", &data("loader"), &["--mode", "cpu", "--folded"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = stderr(&output);
    assert!(text.starts_with("gdiag: this recording has no CPU samples\nhint: record it again"));
}

#[test]
fn idle_time_without_a_sample_is_shared_out_unless_told_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let input = story::record(directory.path());
    let exact = gdiag("flame", &input, &["--folded", "--exact"]);
    assert!(stderr(&exact).contains("--exact"), "{}", stderr(&exact));
    let estimated = gdiag("flame", &input, &["--folded"]);
    let text = stderr(&estimated);
    assert!(text.contains("of idle time is shared out"), "{text}");
    let (before, after) = (
        folded(&input, "idle", &["--exact"]),
        folded(&input, "idle", &[]),
    );
    let unsampled = |stacks: &BTreeMap<String, u64>| -> u64 {
        let without = stacks.iter().filter(|(s, _)| s.ends_with("[no sample]"));
        without.map(|(_, time)| time).sum()
    };
    assert_eq!(total(&before), total(&after));
    assert!(unsampled(&before) > unsampled(&after));
    // Nothing helps where there are no samples at all.
    let none = stderr(&gdiag("flame", &data("item"), &["--folded"]));
    assert!(none.contains("no CPU samples were recorded") && !none.contains("--exact"));
}

#[test]
fn windows_and_filters_take_their_part() {
    let directory = tempfile::tempdir().unwrap();
    let input = story::record(directory.path());
    for mode in MODES {
        let whole = total(&folded(&input, mode, &[]));
        let before = total(&folded(&input, mode, &["--to", "12ms"]));
        let after = total(&folded(&input, mode, &["--from", "12ms"]));
        assert!(before > 0 && after > 0, "{mode}");
        assert_eq!(before + after, whole, "{mode}");
    }
    let threads: u64 = ["100", "101", "300"]
        .iter()
        .map(|tid| total(&folded(&input, "cpu", &["-t", tid])))
        .sum();
    assert_eq!(threads, total(&folded(&input, "cpu", &[])));
    let one = folded(&input, "cpu", &["-p", "300"]);
    assert!(one.keys().all(|s| s.contains("(pid 300)")), "{one:#?}");
    let output = gdiag("flame", &input, &["-p", "4", "--folded"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nothing to draw"));
    let output = gdiag("flame", &input, &["--gpu", "7"]);
    assert!(stderr(&output).contains("there is no GPU 7"));
}

/// Check that gdiag does not depend on the order of hash tables, and that all is as it should be.
#[test]
fn stacks_are_as_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let input = story::record(directory.path());
    let text = flame(&input, &["--mode", "mixed", "--folded", "--wakers"]);
    assert_eq!(
        text,
        flame(&input, &["--mode", "mixed", "--folded", "--wakers"])
    );
    for part in [
        // Python in native, CUDA's libraries, the kernel on the device.
        ";main (train.py:12);forward (model.py:31);at::linear;cudaLaunchKernel;cuLaunchKernel;gemm_[g] ",
        // A wait, and who ended it.
        ";futex_do_wait_[k];__schedule_[k];[blocked: futex];-- woken by loader (pid 300) --;",
        ";[runnable: woken] ",
        ";[cut: no unwind table];[libnative.so] ",
        ";inlined_[i] ",
    ] {
        assert!(text.contains(part), "{part}");
    }
    for name in story::HOSTILE {
        let changed = gdiag::present::flame::label::safe(name);
        assert!(text.contains(&format!(";{changed}")), "{changed}");
    }
}

#[test]
fn a_recording_compared_with_itself_has_not_changed() {
    let input = data("item");
    let path = input.to_str().unwrap();
    let text = flame(&input, &["--diff", path, "--folded"]);
    let mut sum = 0;
    for line in text.lines() {
        let mut parts = line.rsplitn(3, ' ');
        let after: u64 = parts.next().unwrap().parse().unwrap();
        let before: u64 = parts.next().unwrap().parse().unwrap();
        assert_eq!(before, after, "{line}");
        assert!(!line.contains("(pid ") && !line.contains("(tid "), "{line}");
        sum += after;
    }
    assert_eq!(sum, report(&input).0);
}

#[test]
fn a_cut_recording_is_drawn_as_far_as_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cut.data");
    let bytes = std::fs::read(data("item")).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() * 3 / 4]).unwrap();
    let output = gdiag("flame", &file, &["--mode", "offcpu", "--folded"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stdout.is_empty());
    assert!(
        stderr(&output).contains("gdiag: warning: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_picture_is_written_to_its_file_only() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out.svg");
    let arguments = ["-o", file.to_str().unwrap(), "--title", "a <title>"];
    assert_eq!(flame(&data("item"), &arguments), "");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<?xml ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains(">a &lt;title&gt;</text>"));
    let output = gdiag("flame", &data("item"), &["-o", "/nonexistent/x.svg"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("gdiag: cannot write '/nonexistent/x.svg': "));
}

/// In a picture frames have no suffix for kernel and inlined functions: they have colours.
fn as_drawn(stack: &str) -> String {
    let frames = stack.split(';').map(|frame| {
        let frame = frame.strip_suffix("_[k]").unwrap_or(frame);
        frame.strip_suffix("_[i]").unwrap_or(frame)
    });
    frames.collect::<Vec<_>>().join(";")
}

/// Check every mode's picture as a person uses it: all of it, a search, a zoom, and back.
#[test]
fn pictures_work_in_a_browser() {
    let Some(browser) = Browser::find() else {
        println!("skipped: no chromium");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let input = story::record(directory.path());
    for mode in MODES {
        let file = directory.path().join(format!("{mode}.svg"));
        let out = file.to_str().unwrap();
        flame(&input, &["--mode", mode, "-o", out, "--min-width", "0"]);
        let stacks = folded(&input, mode, &[]);
        let seen = browser.use_picture(&file, r"train.py|\\(tid 100\\)");

        assert_eq!(seen.total, total(&stacks), "{mode}");
        let mut expected = BTreeMap::new();
        for (stack, time) in &stacks {
            *expected.entry(as_drawn(stack)).or_insert(0) += time;
        }
        assert_eq!(seen.stacks, expected, "{mode}");
        let found = expected
            .iter()
            .filter(|(stack, _)| stack.contains("train.py") || stack.contains("(tid 100)"))
            .map(|(_, time)| time)
            .sum::<u64>();
        assert!(found > 0, "{mode}");
        assert_eq!(seen.searched, found, "{mode}: what the search found");
        assert!(seen.matched_text.starts_with("Matched: "), "{mode}");
        assert_eq!(seen.marks_left, 0, "{mode}");
        assert_eq!(seen.legend_overlaps, 0, "{mode}");

        let root = stacks.keys().next().unwrap().split(';').next().unwrap();
        let under: u64 = stacks
            .iter()
            .filter(|(stack, _)| stack.split(';').next() == Some(root))
            .map(|(_, time)| time)
            .sum();
        let zoomed = seen.zooms.iter().find(|z| z.name == root);
        let zoomed = zoomed.unwrap_or_else(|| panic!("{mode}: {root} in {:?}", seen.zooms));
        assert_eq!(zoomed.time, under, "{mode}");
        assert!(zoomed.fills && zoomed.resets, "{mode}: {zoomed:?}");
        for name in story::HOSTILE {
            let changed = gdiag::present::flame::label::safe(name);
            let expected = stacks.keys().any(|s| s.split(';').any(|f| f == changed));
            assert_eq!(seen.names.contains(&changed), expected, "{mode}: {changed}");
        }
    }
}
