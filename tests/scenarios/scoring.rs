//! The scorer against reports and truths made by hand. In them a unit of time is 100 us.

use std::collections::BTreeMap;

use serde_json::{json, Value};

use crate::suite::Suite;

const UNIT: u64 = 100_000;

/// A part of a gap: where it ends, its cause, and who it was.
type Part = (u64, &'static str, &'static str);

/// A report of gaps: where each begins, and its parts.
fn report(gaps: &[(u64, &[Part])]) -> Value {
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    let mut listed = Vec::new();
    for (start, parts) in gaps {
        let mut at = start * UNIT;
        let mut rows = Vec::new();
        for (end, cause, what) in *parts {
            let end = end * UNIT;
            rows.push(json!({ "start_ns": at, "end_ns": end, "cause": cause, "what": what }));
            *causes.entry(cause).or_default() += end - at;
            at = end;
        }
        listed.push(json!({ "start_ns": start * UNIT, "end_ns": at, "parts": rows }));
    }
    let idle: u64 = causes.values().sum();
    let causes = causes.iter();
    let causes = causes.map(|(id, ns)| json!({ "id": id, "ns": ns, "by": [{ "ns": ns }] }));
    json!({ "gpus": [{
        "index": 0,
        "window_ns": idle + UNIT,
        "busy_ns": UNIT,
        "idle_ns": idle,
        "causes": causes.collect::<Vec<_>>(),
        "gaps": listed,
    }] })
}

fn span(cause: &str, step: u64, start: u64, end: u64) -> String {
    let (start, end) = (start * UNIT, end * UNIT);
    let ns = end - start;
    format!(
        "{{\"case\":\"it\",\"cause\":\"{cause}\",\"step\":{step},\"start_ns\":{start},\"end_ns\":{end},\"ns\":{ns}}}\n"
    )
}

fn scored(name: &str, report: &Value, truth: &str) -> Suite {
    let mut suite = Suite::default();
    suite.add(name, report, truth);
    suite
}

#[test]
fn only_the_time_of_the_fault_counts() {
    let gap: &[Part] = &[
        (10, "host.compute", ""),
        (40, "host.sleep", ""),
        (45, "host.compute", ""),
    ];
    let suite = scored("x", &report(&[(0, gap)]), &span("host.sleep", 1, 10, 40));
    let score = &suite.faults["x it"];
    assert_eq!((score.gaps, score.right()), (1, 30 * UNIT));
    assert!((score.share() - 1.0).abs() < 1e-9);
    assert_eq!(score.labels(|label, answer| label == answer), 1);
}

#[test]
fn a_neighbour_of_the_cause_is_wrong() {
    let gap: &[Part] = &[(30, "host.page-fault", "")];
    let truth = span("host.disk-read", 1, 0, 30);
    let suite = scored("x", &report(&[(0, gap)]), &truth);
    let score = &suite.faults["x it"];
    assert_eq!(score.right(), 0);
    assert_eq!(score.labels(|label, answer| label != answer), 1);
    let wrong = suite.wrong();
    assert!(wrong.iter().any(|w| w.contains("0.0000 of it is right")));
    assert!(wrong.iter().any(|w| w.contains("1 of 1 injections")));
}

/// Its parts are spread over the gap: together they have most of it.
#[test]
fn a_gap_has_the_label_of_the_injection_that_fills_more_than_half_of_it() {
    let gap: &[Part] = &[
        (10, "host.disk-read", ""),
        (14, "host.compute", ""),
        (24, "host.disk-read", ""),
        (30, "host.compute", ""),
    ];
    let other: &[Part] = &[(110, "host.disk-read", ""), (130, "host.compute", "")];
    let truth = span("host.disk-read", 1, 0, 10)
        + &span("host.disk-read", 1, 14, 24)
        + &span("host.disk-read", 2, 100, 110);
    let suite = scored("x", &report(&[(0, gap), (100, other)]), &truth);
    let score = &suite.faults["x it"];
    assert_eq!((score.injections, score.gaps), (2, 2));
    assert_eq!(score.right(), 30 * UNIT);
    assert_eq!(
        score.labels(|_, _| true),
        1,
        "the second is mostly no fault"
    );
}

#[test]
fn of_two_faults_in_a_gap_each_has_its_own_time_and_the_longer_one_the_label() {
    let gap: &[Part] = &[
        (10, "host.sleep", ""),
        (30, "host.preempted", "hog (pid 7)"),
    ];
    let truth = span("host.sleep", 1, 0, 10) + &span("host.preempted", 1, 10, 30);
    let suite = scored("x", &report(&[(0, gap)]), &truth);
    let score = &suite.faults["x it"];
    assert_eq!(score.right(), 30 * UNIT);
    let label = |label: &str, _: &str| label == "host.preempted";
    assert_eq!(score.labels(label), 1);
}

#[test]
fn who_else_took_the_cpu_is_left_out_and_told() {
    let gap: &[Part] = &[
        (10, "host.sleep", ""),
        (12, "host.preempted", "cron (pid 9)"),
        (14, "host.observer", "gdiag-symbols (pid 8)"),
        (20, "host.preempted", "hog (pid 7)"),
    ];
    let suite = scored("x", &report(&[(0, gap)]), &span("host.sleep", 1, 0, 20));
    let all = suite.faults["x it"].all();
    assert_eq!(all.idle(), 16 * UNIT, "hogs are the scenarios' own");
    let who: Vec<&str> = all.ambient.keys().map(String::as_str).collect();
    assert_eq!(who, ["cron", "gdiag-symbols"]);
    assert!(suite
        .to_string()
        .contains("(0.4 ms: cron 0.2, gdiag-symbols 0.2)"));
}

#[test]
fn in_a_fault_of_the_device_the_host_is_never_to_blame() {
    let gap: &[Part] = &[
        (29, "gpu.dependency", ""),
        (30, "host.preempted", "cron (pid 9)"),
    ];
    let gaps: Vec<(u64, &[Part])> = vec![(0, gap)];
    let suite = scored("x", &report(&gaps), &span("gpu.dependency", 1, 0, 30));
    assert_eq!(suite.total(true).blames_host, UNIT);
    let wrong = suite.wrong();
    assert!(wrong
        .iter()
        .any(|w| w.contains("the host is blamed for 0.03")));

    let gap: &[Part] = &[(30, "host.sync", "")];
    let suite = scored("x", &report(&[(0, gap)]), &span("gpu.dependency", 1, 0, 30));
    let wrong = suite.wrong();
    assert!(wrong
        .iter()
        .any(|w| w.contains("1 gaps of the device are the host's")));
}

#[test]
fn a_twin_must_not_have_its_cause() {
    let gap: &[Part] = &[(30, "host.lock", "")];
    let innocent: &[Part] = &[(30, "host.compute", "")];
    let truth = span("host.lock", 1, 0, 30);
    let blamed = scored("x-twin", &report(&[(0, gap)]), &truth);
    assert!(blamed.faults.is_empty());
    let wrong = blamed.wrong();
    assert!(wrong
        .iter()
        .any(|w| w.contains("blamed for 1.0000 of the time")));
    assert!(wrong.iter().any(|w| w.contains("1 gaps have its cause")));
    let wrong = scored("x-twin", &report(&[(0, innocent)]), &truth).wrong();
    assert!(wrong.iter().all(|w| w.contains("injections")), "{wrong:?}");
}

#[test]
fn unknown_and_other_explain_nothing() {
    let gap: &[Part] = &[
        (10, "unknown", ""),
        (20, "host.other", ""),
        (40, "host.lock", ""),
    ];
    let suite = scored("x", &report(&[(0, gap)]), &span("host.sleep", 1, 0, 40));
    let all = suite.faults["x it"].all();
    assert_eq!((all.unknown(), all.explained()), (10 * UNIT, 20 * UNIT));
}

/// The load's CPU clock says for how long it computed in a call that also slept, but not when.
#[test]
fn computing_in_a_call_that_slept_is_left_out_as_far_as_it_was_measured() {
    let gap: &[Part] = &[(2, "host.compute", ""), (10, "host.disk-read", "")];
    let truth = "{\"case\":\"it\",\"cause\":\"host.disk-read\",\"step\":1,\"start_ns\":0,\"end_ns\":1000000,\"ns\":900000}\n";
    let suite = scored("x", &report(&[(0, gap)]), truth);
    let all = suite.faults["x it"].all();
    assert_eq!(all.by["host.compute"], UNIT);
    assert_eq!(all.besides, UNIT);
}
