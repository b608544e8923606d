use std::collections::BTreeMap;

use super::*;
use crate::analyse::cause::Cause;
use crate::analyse::diff::{CauseDiff, Step};
use crate::analyse::report::{Blame, ThreadRef};
use crate::event::{Pid, Tid};
use crate::present::sample;

fn figure(a: f64, b: f64, noise: f64) -> Figure {
    Figure {
        a: Some(a),
        b: Some(b),
        noise: Some(noise),
    }
}

fn named(name: &str, mean: Figure) -> NamedDiff {
    NamedDiff {
        name: name.to_string(),
        mean,
        count_a: if mean.a.is_some() { 4_000 } else { 0 },
        count_b: if mean.b.is_some() { 3_000 } else { 0 },
        total_a: 1,
        total_b: 2,
    }
}

fn preempted(comm: &str) -> GpuDiff {
    let work = |scale: f64| Work {
        time: figure(5.2e6 * scale, 7.8e6 * scale, 2e5 * scale),
        idle: figure(0.6e6 * scale, 3.2e6 * scale, 2e5 * scale),
        busy: figure(4.6e6 * scale, 4.6e6 * scale, 1e5 * scale),
    };
    GpuDiff {
        index: 0,
        name_a: "NVIDIA H200".to_string(),
        name_b: "NVIDIA H200".to_string(),
        window_a: 10_000_000_000,
        window_b: 9_000_000_000,
        operations_a: 40_000,
        operations_b: 24_000,
        idle: figure(0.121, 0.41, 0.021),
        busy: figure(0.879, 0.59, 0.021),
        work: work(50.0),
        step: Some(Step {
            work: work(1.0),
            operations_a: 20,
            operations_b: 20,
        }),
        causes: vec![
            CauseDiff {
                cause: Cause::Preempted,
                share: figure(0.001, 0.265, 0.019),
                by: Some(Blame {
                    who: Some(ThreadRef {
                        pid: Pid(777),
                        tid: Tid(777),
                        comm: comm.to_string(),
                    }),
                    what: "sh 788 ran on CPU 3 instead".to_string(),
                    total: crate::units::Nanos(1),
                }),
            },
            CauseDiff {
                cause: Cause::Sync,
                share: figure(0.08, 0.09, 0.015),
                by: None,
            },
        ],
    }
}

fn diff(gpu: GpuDiff) -> Diff {
    let only_b = Figure {
        b: Some(400.0),
        ..Figure::default()
    };
    Diff {
        gpus: vec![gpu],
        kernels: vec![
            named("_Z6matmulPfS_i", figure(200_000.0, 260_000.0, 4_000.0)),
            named("fill", only_b),
        ],
        calls: vec![named("cuLaunchKernel", figure(7_000.0, 7_100.0, 400.0))],
    }
}

fn printed(diff: &Diff, remarks: &[String]) -> String {
    let mut out = Vec::new();
    let (meta, summary) = (sample::meta(), sample::summary());
    let recording = |file| Recording {
        file,
        meta: &meta,
        summary: Some(&summary),
        lost: 0,
        whole: true,
    };
    let style = Style {
        width: 80,
        color: false,
        gaps_in_full: 0,
    };
    let (a, b) = (recording("good.data"), recording("slow.data"));
    write_diff(&mut out, diff, a, b, remarks, &style).unwrap();
    String::from_utf8(out).unwrap()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_sample_is_the_golden_one() {
    let text = printed(
        &diff(preempted("python3")),
        &["B lost 12 events".to_string()],
    );
    sample::assert_golden("diff-80.txt", &text);
}

#[test]
fn it_begins_with_what_changed_and_whose_fault_it_is() {
    let text = words(&printed(&diff(preempted("python3")), &[]));
    let start = "GPU 0 NVIDIA H200: idle 12.1 % -> 41.0 % (+28.9 +- 2.1 points) \
                 most of it: host.preempted +26.4 +- 1.9 points (0.1 % -> 26.5 %); \
                 python3 777: sh 788 ran on CPU 3 instead \
                 a step of 20 operations took 5.20 ms -> 7.80 ms (+50.0 % +- 3.8 %): \
                 idle +2.60 ms, busy as before fix: ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn no_change_is_an_answer() {
    let mut gpu = preempted("python3");
    gpu.idle = figure(0.121, 0.125, 0.021);
    gpu.busy = figure(0.879, 0.875, 0.021);
    gpu.causes.clear();
    gpu.step = None;
    gpu.work.time = figure(5.2e6, 5.21e6, 2e5);
    gpu.work.busy = gpu.work.time;
    gpu.work.idle = gpu.work.time;
    let mut diff = diff(gpu);
    let text = words(&printed(&diff, &[]));
    // A kernel has changed, though its GPU did not feel it.
    assert!(
        text.contains(": no change of its time beyond noise; idle 12.1 %"),
        "{text}"
    );
    diff.kernels.clear();
    let text = words(&printed(&diff, &[]));
    let start = "GPU 0 NVIDIA H200: nothing changed beyond noise; idle 12.1 % -> 12.5 % \
                 (within noise, +- 2.1 points) \
                 1,000 operations took 5.20 ms -> 5.21 ms (within noise, +-3.8 %) The GPU is simulated: ";
    assert!(text.starts_with(start), "{text}");
}

/// Check that slower kernels are not blamed on the host, whose idle time is a smaller share of more.
#[test]
fn slower_kernels_are_named() {
    let mut gpu = preempted("python3");
    gpu.idle = figure(0.2, 0.15, 0.02);
    gpu.causes[0].share = figure(0.1, 0.06, 0.02);
    if let Some(step) = &mut gpu.step {
        step.work.time = figure(5e6, 7e6, 1e5);
        step.work.busy = figure(4e6, 6e6, 1e5);
        step.work.idle = figure(1e6, 1e6, 1e5);
    }
    let text = words(&printed(&diff(gpu), &[]));
    let start = "GPU 0 NVIDIA H200: idle 20.0 % -> 15.0 % (-5.0 +- 2.0 points) \
                 a step of 20 operations took 5.00 ms -> 7.00 ms (+40.0 % +- 2.0 %): \
                 idle as before, busy +2.00 ms \
                 kernels: matmul 200 us -> 260 us (+30.0 %) The GPU is simulated: ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn without_noise_nothing_is_claimed() {
    let mut gpu = preempted("python3");
    let blind = |figure: &mut Figure| figure.noise = None;
    blind(&mut gpu.idle);
    blind(&mut gpu.busy);
    gpu.causes.iter_mut().for_each(|row| blind(&mut row.share));
    gpu.step = None;
    let work = &mut gpu.work;
    for figure in [&mut work.time, &mut work.idle, &mut work.busy] {
        blind(figure);
    }
    let mut diff = diff(gpu);
    diff.kernels.clear();
    diff.calls.clear();
    let text = words(&printed(&diff, &[]));
    assert!(
        text.contains("idle 12.1 % -> 41.0 % (noise not known, so no change is claimed)"),
        "{text}"
    );
    assert!(
        !text.contains("most of it") && !text.contains("fix:"),
        "{text}"
    );
    assert_eq!(diff.changed(), None);
}

#[test]
fn what_is_not_known_of_one_is_not_new_in_the_other() {
    let mut gpu = preempted("python3");
    let unknown = |figure: &mut Figure| (figure.a, figure.noise) = (None, None);
    for figure in [&mut gpu.idle, &mut gpu.busy] {
        unknown(figure);
    }
    gpu.causes
        .iter_mut()
        .for_each(|row| unknown(&mut row.share));
    let text = words(&printed(&diff(gpu), &[]));
    assert!(text.contains("- 41.0 % - - ? idle "), "{text}");
    assert!(text.contains("- 26.5 % - - ? host.preempted "), "{text}");
    assert!(text.contains("- - new 0 3,000 fill "), "{text}");
}

#[test]
fn hostile_names_do_not_reach_a_terminal() {
    let mut diff = diff(preempted("x\x1b[2J\u{202e}"));
    diff.kernels[0].name = format!("\x1b]0;{}", "k".repeat(5_000));
    let text = printed(&diff, &["y\x07".to_string()]);
    assert!(!text.contains(['\x1b', '\x07', '\u{202e}']), "{text}");
    let widest = text.lines().map(crate::present::text::width).max();
    assert!(widest <= Some(80), "{text}");
}

#[test]
fn json_has_the_same_and_null_for_what_is_not_known() {
    let mut out = Vec::new();
    let (meta, summary) = (sample::meta(), sample::summary());
    let recording = Recording {
        file: "x.data",
        meta: &meta,
        summary: Some(&summary),
        lost: 3,
        whole: true,
    };
    let diff = diff(preempted("python3"));
    json::write_diff(&mut out, &diff, recording, recording, &[]).unwrap();
    let text = String::from_utf8(out).unwrap();
    sample::assert_golden("diff.json", &text);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schema"], "gdiag.diff/1");
    assert_eq!(value["changed"], true);
    assert_eq!(value["gpus"][0]["idle"]["changed"], true);
    assert_eq!(value["gpus"][0]["causes"][0]["by"]["comm"], "python3");
    assert!(value["gpus"][0]["causes"][1]["by"].is_null());
    let new = &value["kernels"][1]["mean_ns"];
    let known: BTreeMap<&str, bool> = (new.as_object().unwrap().iter())
        .map(|(key, value)| (key.as_str(), !value.is_null()))
        .collect();
    let expected = [
        ("a", false),
        ("b", true),
        ("change", false),
        ("changed", false),
        ("noise", false),
    ];
    assert_eq!(known, BTreeMap::from(expected));
}
