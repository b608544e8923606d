//! The integrity gate: what is lost is told, and nothing is made of it.
//!
//! The load launches a known number of kernels, and the simulated CUPTI loses or spoils every Nth record.

use serde_json::Value;

use crate::gpu::{number, Gpu};
use crate::machine::Machine;
use crate::run::Run;

const STEPS: u64 = 300;
const KERNELS: u64 = 5;
const LAUNCHES: u64 = STEPS * KERNELS;
const KERNEL_NS: u64 = 1_000_000;

fn record(machine: &Machine, fault: &str, every: u64) -> Run {
    let (steps, kernels) = (STEPS.to_string(), KERNELS.to_string());
    let kernel_us = (KERNEL_NS / 1000).to_string();
    let arguments = [
        "--steps",
        &steps,
        "--kernels",
        &kernels,
        "--kernel-us",
        &kernel_us,
        "--host-us",
        "100",
    ];
    let name = format!("{}-{every}", fault.to_lowercase());
    let every = every.to_string();
    let variable = format!("GDIAG_SIM_{fault}");
    Run::gpuload(machine, &name, &arguments, &[(&variable, &every)])
}

/// Records counted as lost by BPF, the shim and CUPTI, and those with impossible times.
fn counts(report: &Value) -> [u64; 4] {
    let quality = &report["quality"];
    ["bpf_lost", "shim_lost", "cupti_lost", "invalid_gpu_records"].map(|key| number(&quality[key]))
}

fn coverage(report: &Value) -> f64 {
    report["quality"]["gpu_coverage"].as_f64().unwrap()
}

/// Check that of `launched` launches `back` came back. serde_json reads the last digit by guess.
fn assert_coverage(report: &Value, back: u64, launched: u64) {
    let expected = back as f64 / launched as f64;
    let got = coverage(report);
    assert!((got - expected).abs() < 1e-12, "{got} is not {expected}");
}

/// Nothing is said about busy and idle time.
fn assert_no_figures(report: &Value) {
    let gpu = &report["gpus"][0];
    assert_eq!(report["gpus"].as_array().unwrap().len(), 1);
    for key in ["busy_ns", "idle_ns", "idle_explained"] {
        assert_eq!(gpu[key], Value::Null, "{key}");
    }
    assert!(gpu["busy"]
        .as_object()
        .unwrap()
        .values()
        .all(Value::is_null));
    assert_eq!(gpu["causes"], Value::Array(Vec::new()));
    assert_eq!(gpu["gaps"], Value::Array(Vec::new()));
}

/// `(came back, launched)` of the sentence that says why there are no figures.
fn came_back(text: &str) -> (u64, u64) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (before, after) = text
        .split_once(" launches came back from the GPU (")
        .unwrap_or_else(|| panic!("it is not said why: {text}"));
    assert!(after
        .contains("it is not known when the others were lost: busy and idle time are not shown"));
    let figures: Vec<u64> = before
        .replace(',', "")
        .rsplit(' ')
        .filter_map(|word| word.parse().ok())
        .take(2)
        .collect();
    (figures[1], figures[0])
}

#[test]
fn nothing_lost_is_said_to_be_nothing() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let run = record(&machine, "DROP", 0);
    let report = run.json("0ns");
    let gpu = Gpu::read(&report, 0, true);
    assert_eq!(counts(&report), [0, 0, 0, 0]);
    assert_coverage(&report, LAUNCHES, LAUNCHES);
    assert!(!gpu.causes.contains_key("unknown.measurement"));
    // The device is simulated, but not its arithmetic.
    let busy = gpu.window - gpu.idle;
    assert!(
        busy.abs_diff(LAUNCHES * KERNEL_NS) < LAUNCHES * 100,
        "{busy}"
    );
}

/// CUPTI says how many records it dropped between two flushes: the gaps of that time are unknown.
#[test]
fn a_loss_that_can_be_placed_spoils_its_gaps_only() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    // Not in the last flush periods, in which what is missing may be on its way.
    let every = 800;
    let dropped = LAUNCHES / every;
    let run = record(&machine, "DROP", every);
    let report = run.json("0ns");
    let gpu = Gpu::read(&report, 0, true);
    assert_eq!(counts(&report), [0, 0, dropped, 0]);
    assert_coverage(&report, LAUNCHES - dropped, LAUNCHES);
    let unknown = gpu.causes["unknown.measurement"];
    assert!(unknown >= dropped * KERNEL_NS, "{unknown} of {}", gpu.idle);
    assert!(unknown < gpu.idle, "other gaps keep their causes");
    for gap in &gpu.gaps {
        let spoilt = |id: &str| id == "unknown.measurement";
        let parts = || gap.parts.iter().map(|part| part.cause.as_str());
        assert!(parts().all(spoilt) || !parts().any(spoilt), "{gap:?}");
    }
    let text = run.text();
    assert!(
        text.contains(&format!("{dropped} GPU records were dropped by CUPTI")),
        "{text}"
    );
}

#[test]
fn a_loss_that_nobody_counted_leaves_no_figures() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let every = 50;
    let run = record(&machine, "LOSE", every);
    let report = run.json("0ns");
    assert_no_figures(&report);
    assert_eq!(counts(&report), [0, 0, 0, 0]);
    assert_loss_is_told(&run, &report, LAUNCHES / every);
}

fn assert_loss_is_told(run: &Run, report: &Value, lost: u64) {
    let text = run.text();
    let (back, launched) = came_back(&text);
    assert_eq!(back, LAUNCHES - lost);
    // Those of the last flush periods could still have been on their way.
    let undecided = LAUNCHES - launched;
    assert!(undecided < lost, "{back} of {launched}");
    assert_coverage(report, back, launched);
    assert!(coverage(report) < 0.999);
    assert!(text.contains("idle time unknown, as only 98."), "{text}");
}

#[test]
fn fewer_than_one_launch_in_a_thousand_may_be_missing() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let run = record(&machine, "LOSE", 800);
    let report = run.json("0ns");
    let gpu = Gpu::read(&report, 0, true);
    assert_coverage(&report, LAUNCHES - 1, LAUNCHES);
    assert!(gpu.causes["unknown.measurement"] > 0);
}

#[test]
fn records_without_times_are_not_operations() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let every = 50;
    let spoilt = LAUNCHES / every;
    let run = record(&machine, "ZERO", every);
    let report = run.json("0ns");
    assert_no_figures(&report);
    assert_eq!(counts(&report), [0, 0, 0, spoilt]);
    assert_loss_is_told(&run, &report, spoilt);
    let text = run.text();
    assert!(
        text.contains(&format!("{spoilt} GPU records have impossible times")),
        "{text}"
    );
}
