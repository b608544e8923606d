//! Faults put into good recordings: what is lost, invalid or unsure makes the gaps it touches
//! `unknown.measurement`, and changes nothing about any other gap.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};

use gdiag::event::{Cpu, Event, GpuInvalid, GpuOp, Loss, LossSource, OpKind, Pid};
use gdiag::store::meta::{Meta, Summary};
use gdiag::store::{Reader, Writer};
use gdiag::units::Nanos;
use serde_json::Value;

const RECORDINGS: [&str; 5] = ["launch", "item", "loader", "stacks", "engine"];

const UNKNOWN: &str = "unknown.measurement";

/// Where in a recording faults are put, in tenths of its operations.
const PLACES: [usize; 3] = [2, 5, 8];

/// How long a fault lasts.
const LENGTH: u64 = 3_000_000;

struct Recording {
    meta: Meta,
    summary: Summary,
    events: Vec<Event>,
}

impl Recording {
    fn read(name: &str) -> Recording {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.data"));
        let mut reader = Reader::open(&path).unwrap();
        let mut events = Vec::new();
        reader
            .for_each(|event| {
                events.push(event.clone());
                ControlFlow::Continue(())
            })
            .unwrap();
        Recording {
            meta: reader.meta().clone(),
            summary: reader.summary().unwrap().clone(),
            events,
        }
    }

    fn report(&self, events: &[Event]) -> Report {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.data");
        let mut writer = Writer::create(&path, &self.meta).unwrap();
        for event in events {
            writer.push(event).unwrap();
        }
        writer.finish(&self.summary).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args([
                "report",
                "--json",
                "--gaps",
                "all",
                "--min-gap",
                "1ns",
                "-i",
            ])
            .arg(&path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        Report::of(serde_json::from_slice(&output.stdout).unwrap())
    }

    fn ops(&self) -> impl Iterator<Item = &GpuOp> {
        self.events.iter().filter_map(op)
    }

    /// The times of the faults: each has operations in it.
    fn places(&self) -> Vec<(u64, u64)> {
        let mut ends: Vec<u64> = self.ops().map(|op| op.end.0).collect();
        ends.sort_unstable();
        let at = |tenths: usize| ends[ends.len() * tenths / 10] - LENGTH / 2;
        PLACES
            .iter()
            .map(|&tenths| (at(tenths), at(tenths) + LENGTH))
            .collect()
    }
}

fn op(event: &Event) -> Option<&GpuOp> {
    match event {
        Event::GpuOp(op) => Some(op),
        _ => None,
    }
}

fn loss(source: LossSource, count: u64, (from, to): (u64, u64)) -> Event {
    let (from, to) = (Nanos(from), Nanos(to));
    Event::Loss(Loss {
        source,
        count,
        from,
        to,
    })
}

#[derive(Debug)]
struct Report(BTreeMap<u64, Value>);

impl Report {
    /// The gaps of the only device, by their start.
    fn of(mut report: Value) -> Report {
        forget_next_calls(&mut report);
        let gpus = report["gpus"].as_array().unwrap();
        assert_eq!(gpus.len(), 1);
        let gaps = gpus[0]["gaps"].as_array().unwrap();
        Report(
            gaps.iter()
                .map(|gap| (time(gap, "start_ns"), gap.clone()))
                .collect(),
        )
    }
}

/// Code is named by the call that it leads up to, however late that comes: it may be one that was lost,
/// long after the gap.
fn forget_next_calls(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("own code before ") => {
            text.truncate("own code".len());
        }
        Value::Object(fields) => fields.values_mut().for_each(forget_next_calls),
        Value::Array(values) => values.iter_mut().for_each(forget_next_calls),
        _ => {}
    }
}

fn time(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap()
}

fn overlaps(of: &Value, (from, to): (u64, u64)) -> bool {
    time(of, "start_ns") < to && from < time(of, "end_ns")
}

fn parts(gap: &Value) -> &[Value] {
    gap["parts"].as_array().unwrap()
}

fn is_unknown(gap: &Value) -> bool {
    parts(gap).iter().all(|part| part["cause"] == UNKNOWN)
}

/// All gaps that a fault touched are unknown, and no other gap is changed.
fn only_touched_are_unknown(what: &str, good: &Report, bad: &Report, fault: (u64, u64)) {
    let mut touched = 0;
    for (start, gap) in &bad.0 {
        if overlaps(gap, fault) {
            touched += 1;
            assert!(is_unknown(gap), "{what}, fault {fault:?}: touched: {gap:#}");
        } else {
            let before = good.0.get(start);
            let before = before.unwrap_or_else(|| panic!("{what}: new: {gap:#}"));
            assert!(
                gap == before,
                "{what}, fault {fault:?}: before: {before:#}\nafter: {gap:#}"
            );
        }
    }
    assert!(touched > 0, "{what}: the fault at {fault:?} touched no gap");
    for (start, gap) in &good.0 {
        assert!(
            overlaps(gap, fault) || bad.0.contains_key(start),
            "{what}: gone: {gap:#}"
        );
    }
}

/// Check what becomes of the gaps when records of the shim or CUPTI are lost, as a recorder would tell it.
fn lose_gpu_records(
    source: fn(Pid) -> LossSource,
    is_lost: fn(&Event) -> Option<(Pid, Nanos)>,
    reach: u64,
) {
    for name in RECORDINGS {
        let recording = Recording::read(name);
        let good = recording.report(&recording.events);
        for fault in recording.places() {
            let mut lost = BTreeMap::new();
            let mut events = recording.events.clone();
            events.retain(|event| match is_lost(event) {
                Some((pid, ts)) if fault.0 <= ts.0 && ts.0 < fault.1 => {
                    *lost.entry(pid).or_insert(0) += 1;
                    false
                }
                _ => true,
            });
            assert!(!lost.is_empty(), "{name}: nothing to lose at {fault:?}");
            for (pid, count) in lost {
                events.push(loss(source(pid), count, fault));
            }
            let bad = recording.report(&events);
            let touched = (fault.0, fault.1 + reach);
            only_touched_are_unknown(name, &good, &bad, touched);
        }
    }
}

#[test]
fn lost_records_of_cupti_make_the_gaps_they_touch_unknown() {
    let of_op = |event: &Event| op(event).map(|op| (op.pid, op.end));
    lose_gpu_records(LossSource::Cupti, of_op, 0);
}

/// Calls are lost too. A thread that runs up to a call for not much longer than since the call before is
/// bound by launches, so the calls before a gap are a part of what it is judged by.
#[test]
fn lost_records_of_the_shim_make_the_gaps_they_touch_unknown() {
    let is_lost = |event: &Event| match event {
        Event::GpuOp(op) => Some((op.pid, op.end)),
        Event::ApiCall(call) => Some((call.pid, call.end)),
        Event::Sync(sync) => Some((sync.pid, sync.end)),
        Event::Overhead(overhead) => Some((overhead.pid, overhead.end)),
        _ => None,
    };
    lose_gpu_records(LossSource::ShimRing, is_lost, 50_000);
}

#[test]
fn a_clock_step_makes_the_gaps_it_touches_unknown() {
    for name in RECORDINGS {
        let recording = Recording::read(name);
        let good = recording.report(&recording.events);
        for fault in recording.places() {
            let mut events = recording.events.clone();
            events.push(loss(LossSource::ClockStep, 0, fault));
            let bad = recording.report(&events);
            only_touched_are_unknown(name, &good, &bad, fault);
        }
    }
}

/// Every so many operations one is made invalid, or lost.
const STEP: usize = 907;

#[test]
fn an_invalid_record_makes_the_gap_it_was_in_unknown() {
    one_operation_less(|op| {
        Some(Event::GpuInvalid(GpuInvalid {
            pid: op.pid,
            device: op.device,
            correlation: op.correlation,
            seen: Nanos(op.end.0 + 1_000_000),
        }))
    });
}

#[test]
fn an_operation_that_is_lost_without_a_word_makes_the_gap_it_was_in_unknown() {
    // What copies of no bytes leave, copies whose record is lost leave too.
    one_operation_less(|_| None);
}

fn one_operation_less(instead: fn(&GpuOp) -> Option<Event>) {
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for name in RECORDINGS {
        let recording = Recording::read(name);
        let good = recording.report(&recording.events);
        let number = recording.events.iter().enumerate();
        let ops = number.filter_map(|(i, e)| Some((i, *op(e)?)));
        let is_kernel = |op: &GpuOp| matches!(op.kind, OpKind::Kernel { .. });
        let ops: Vec<_> = ops.filter(|(_, op)| is_kernel(op)).collect();
        // The ends of the window belong to it.
        for &(i, op) in ops.iter().skip(STEP).step_by(STEP) {
            let mut events = recording.events.clone();
            match instead(&op) {
                Some(event) => events[i] = event,
                None => drop(events.remove(i)),
            }
            let bad = recording.report(&events);
            let fault = (op.start.0, op.end.0);
            tried += 1;
            let mut say = |what: &str, gap: &Value| {
                wrong.push(format!(
                    "{name} {fault:?} {:?}: {what}: {gap}",
                    op.correlation
                ));
            };
            for (start, gap) in &bad.0 {
                match (overlaps(gap, fault), good.0.get(start)) {
                    (true, _) if !is_unknown(gap) => say("touched", gap),
                    (false, None) => say("new", gap),
                    (false, Some(before)) if before != gap => say("changed", gap),
                    _ => {}
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} faults of {tried}: {wrong:#?}",
        wrong.len()
    );
}

/// Whether a gap is judged by what its threads did in a fault that ended at `t`, before it: one of them has
/// no event of the scheduler between, or its last CUDA call was before.
fn is_judged_by(gap: &Value, events: &[Event], t: u64) -> bool {
    let start = time(gap, "start_ns");
    let mut threads = BTreeSet::new();
    collect_tids(gap, &mut threads);
    threads.into_iter().any(|tid| {
        let switched = events.iter().filter_map(|event| match event {
            Event::Switch(s) if s.prev.0 == tid || s.next.0 == tid => Some(s.ts.0),
            Event::Waking(w) if w.wakee.0 == tid => Some(w.ts.0),
            _ => None,
        });
        let called = events.iter().filter_map(|event| match event {
            Event::ApiCall(call) if call.tid.0 == tid => Some(call.end.0),
            _ => None,
        });
        let known_from = switched.filter(|&ts| ts >= t).min();
        let last_call = called.filter(|&end| end <= start).max();
        known_from.is_none_or(|from| start < from || last_call.is_some_and(|end| end <= from))
    })
}

fn collect_tids(value: &Value, tids: &mut BTreeSet<u32>) {
    match value {
        Value::Object(fields) => {
            tids.extend(
                value["tid"]
                    .as_u64()
                    .and_then(|tid| u32::try_from(tid).ok()),
            );
            fields.values().for_each(|field| collect_tids(field, tids));
        }
        Value::Array(values) => values.iter().for_each(|value| collect_tids(value, tids)),
        _ => {}
    }
}

fn cause_at(gap: &Value, at: u64) -> &str {
    let part = parts(gap).iter().find(|part| overlaps(part, (at, at + 1)));
    part.unwrap()["cause"].as_str().unwrap()
}

/// Lost events of the scheduler on all CPUs.
#[test]
fn lost_events_of_the_scheduler_make_the_host_unknown_and_nothing_else() {
    let mut wrong = Vec::new();
    for name in RECORDINGS {
        let recording = Recording::read(name);
        let good = recording.report(&recording.events);
        let cpus: BTreeSet<Cpu> = recording
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Switch(s) => Some(s.cpu),
                _ => None,
            })
            .collect();
        for fault in recording.places() {
            let mut events = recording.events.clone();
            let mut lost = 0;
            events.retain(|event| {
                let ts = match event {
                    Event::Switch(e) => e.ts,
                    Event::Waking(e) => e.ts,
                    Event::Interrupt(e) => Nanos(e.start.0 + e.dur.0),
                    Event::Wait(e) => e.end,
                    Event::CpuWait(e) => e.end,
                    Event::Sample(e) => e.ts,
                    _ => return true,
                };
                let keep = ts.0 < fault.0 || fault.1 <= ts.0;
                lost += u64::from(!keep);
                keep
            });
            for &cpu in &cpus {
                events.push(loss(LossSource::Bpf(cpu), lost, fault));
            }
            let bad = recording.report(&events);
            assert!(good.0.keys().eq(bad.0.keys()));
            let mut unknown = 0;
            for (start, gap) in &bad.0 {
                let before = &good.0[start];
                if !overlaps(gap, fault) && !is_judged_by(before, &events, fault.1) {
                    if gap != before {
                        wrong.push(format!("{name} {fault:?} untouched: {before:#} {gap:#}"));
                    }
                    continue;
                }
                for part in parts(gap) {
                    let cause = part["cause"].as_str().unwrap();
                    let (from, to) = (time(part, "start_ns"), time(part, "end_ns"));
                    unknown += u64::from(cause == UNKNOWN);
                    let inside = from.max(fault.0)..to.min(fault.1);
                    if !inside.is_empty() && cause.starts_with("host.") {
                        wrong.push(format!("{name} {fault:?} host part {part} {gap:#}"));
                    }
                    if cause != UNKNOWN {
                        for at in [from, (from + to) / 2, to - 1] {
                            if cause_at(before, at) != cause {
                                wrong.push(format!("{name} {fault:?} invented {part} {before:#}"));
                            }
                        }
                    }
                }
            }
            if unknown == 0 {
                wrong.push(format!("{name} {fault:?}: nothing is unknown"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}: {}", wrong.len(), wrong.join("\n"));
}
