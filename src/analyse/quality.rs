//! How far the records can be trusted, before anything is concluded from them.
//!
//! A launch whose operation never came back is a hole. Where losses can be placed in time they
//! make the gaps they touch `unknown.measurement`; where they cannot, busy and idle time are
//! not known at all.
#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::collections::BTreeMap;

use crate::analyse::busy::{Gap, Usage};
use crate::analyse::calls::LAUNCH_SPACING;
use crate::analyse::host_side::{self, Watch};
use crate::analyse::intervals::{just_after, Intervals};
use crate::analyse::missing::Missing;
use crate::analyse::report::Quality;
use crate::analyse::what::{missing_text, What};
use crate::event::{Pid, Shim, ShimState};
use crate::model::api::{self, Class};
use crate::model::fxhash::FxHashMap;
use crate::model::gpu::Gpu;
use crate::model::ops::CallIdx;
use crate::model::thread::ThreadIdx;
use crate::model::{BlindBecause, Timeline};
use crate::units::{Count, Nanos, Share};

/// At most this share of launches may be unaccounted for.
const TOLERATED: f64 = 0.001;

/// CUPTI hands operations over up to two flush periods after they end.
const UNDECIDED: Nanos = Nanos::from_millis(2 * gdiag_shim_layout::FLUSH_MS);

/// How long after a launch its record may have been lost.
const RECORDED_WITHIN: Nanos = Nanos::from_millis(500);

/// Launches of one process against what came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    pub(super) expected: u64,
    pub(super) came_back: u64,
    /// Missing, and no known loss explains when.
    unplaced: u64,
    /// Launches whose operation is missing, by start.
    missing: Vec<CallIdx>,
    /// From here on launches had not come back yet when the recording ended.
    pending: Option<Nanos>,
}

impl Coverage {
    pub(super) fn is_sound(&self) -> bool {
        self.expected == 0 || share(self.unplaced, self.expected) <= TOLERATED
    }
}

#[allow(clippy::cast_precision_loss)]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[derive(Debug)]
pub(super) struct Trust {
    coverage: FxHashMap<Pid, Coverage>,
}

impl Trust {
    pub(super) fn of(t: &Timeline) -> Self {
        let coverage = t
            .gpu()
            .recorded_pids()
            .into_iter()
            .map(|pid| (pid, coverage(t, pid)));
        Trust {
            coverage: coverage.collect(),
        }
    }

    fn total(&self) -> (u64, u64) {
        let sum = |f: fn(&Coverage) -> u64| self.coverage.values().map(f).sum();
        (sum(|c| c.came_back), sum(|c| c.expected))
    }

    fn share(&self) -> Option<f64> {
        let (came_back, expected) = self.total();
        (expected > 0).then(|| share(came_back, expected))
    }

    /// Busy and idle time of the device can be told.
    pub(super) fn is_sound(&self, t: &Timeline, gpu: &Gpu) -> bool {
        let invalid = invalid_of(t, gpu);
        let seen = gpu.ops.len() as u64 + invalid;
        gpu.users
            .iter()
            .filter_map(|(pid, _)| self.coverage.get(pid))
            .all(Coverage::is_sound)
            && share(invalid, seen) <= TOLERATED
    }

    /// For each gap that cannot be trusted: its index and why, by index.
    pub(super) fn doubts(&self, t: &Timeline, gpu: &Gpu, usage: &Usage) -> Vec<(usize, What)> {
        let mut doubts: Vec<(usize, What)> = Vec::new();
        let gaps = &usage.gaps;
        let uses = |pid: Option<Pid>| match pid {
            Some(pid) => gpu.users.iter().any(|u| u.0 == pid),
            None => true,
        };
        for blind in t.blind().iter().filter(|b| uses(b.pid)) {
            let to = match blind.why {
                // With the operations calls were lost; what comes next is judged by the one before it.
                BlindBecause::RingFull => Nanos(blind.to.0.saturating_add(LAUNCH_SPACING.0)),
                BlindBecause::CuptiDropped
                | BlindBecause::ClockStep
                | BlindBecause::NotCollecting
                | BlindBecause::Silent => blind.to,
            };
            let what = What::Missing(blind.why);
            touched(gaps, blind.from, to, what, &mut doubts);
        }
        for op in gpu.ops.iter().filter(|o| o.outlasts_followers()) {
            let what = What::Say("an operation with an impossible end");
            touched(gaps, op.start, op.end, what, &mut doubts);
        }
        let others = OnceCell::new();
        let missing = |launch, what, doubts: &mut Vec<(usize, What)>| {
            let others = others.get_or_init(|| Missing::of(t, gpu));
            if let Some((from, to)) = others.ran(launch) {
                return touched(gaps, from, to, what, doubts);
            }
            // It ran at the first chance that the device had.
            let launched = t.gpu().call_at(launch).start;
            let gap = gaps.partition_point(|g| g.end <= launched);
            if gap < gaps.len() {
                doubts.push((gap, what));
            }
        };
        for (pid, _) in &gpu.users {
            let Some(coverage) = self.coverage.get(pid) else {
                continue;
            };
            let what = What::Say("an operation launched before is missing");
            for &launch in &coverage.missing {
                missing(launch, what, &mut doubts);
            }
            if let (Some(_), Some(last)) = (coverage.pending, gaps.last()) {
                if last.next.is_none() {
                    let what =
                        What::Say("launched work had not come back when the recording ended");
                    doubts.push((gaps.len() - 1, what));
                }
            }
        }
        for record in t.gpu().invalid_records() {
            if !gpu.users.contains(&(record.pid, record.device)) {
                continue;
            }
            let what = What::Say("a record with impossible times");
            match t.gpu().call_by_correlation(record.pid, record.correlation) {
                Some(launch) => missing(launch, what, &mut doubts),
                None => {
                    let from = record.seen.saturating_sub(UNDECIDED);
                    touched(gaps, from, record.seen, what, &mut doubts);
                }
            }
        }
        // The first reason given stands.
        doubts.sort_by_key(|d| d.0);
        doubts.dedup_by_key(|d| d.0);
        doubts
    }
}

fn touched(gaps: &[Gap], from: Nanos, to: Nanos, what: What, doubts: &mut Vec<(usize, What)>) {
    let to = to.max(just_after(from));
    let first = gaps.partition_point(|g| g.end <= from);
    for (i, gap) in gaps.iter().enumerate().skip(first) {
        if gap.start >= to {
            break;
        }
        doubts.push((i, what));
    }
}

fn invalid_of(t: &Timeline, gpu: &Gpu) -> u64 {
    let records = t.gpu().invalid_records().iter();
    let invalid = records
        .filter(|r| gpu.users.contains(&(r.pid, r.device)))
        .count();
    let impossible =
        |o: &&crate::model::ops::Op| o.outlasts_followers() || o.starts_before_launch();
    (invalid + gpu.ops.iter().filter(impossible).count()) as u64
}

fn coverage(t: &Timeline, pid: Pid) -> Coverage {
    let log = t.gpu();
    let mut launches: Vec<CallIdx> = log
        .recorded_calls_of(pid)
        .filter(|&c| {
            let call = log.call_at(c);
            api::starts_kernels(call.class) && !call.failed()
        })
        .collect();
    launches.sort_by_key(|&c| (log.call_at(c).start, c));
    let mut coverage = Coverage::default();
    if launches.iter().all(|&c| log.call_at(c).has_op()) {
        coverage.expected = launches.len() as u64;
        coverage.came_back = coverage.expected;
        return coverage;
    }
    let captured = captures(t, pid);
    let end = t.exit_of(pid).map_or(t.end(), |exit| exit.min(t.end()));
    let undecided_from = end.saturating_sub(UNDECIDED);
    let last_back = launches.iter().rposition(|&c| log.call_at(c).has_op());
    // Both ends belong to it: a loss can be placed at one instant.
    let blind = t.blind().iter();
    let blind = blind.filter(|b| b.pid.is_none_or(|blind| blind == pid));
    let blind = Intervals::union_of(blind.map(|b| (b.from, just_after(b.to))).collect());
    for (i, &c) in launches.iter().enumerate() {
        let call = log.call_at(c);
        if call.has_op() {
            coverage.expected += 1;
            coverage.came_back += 1;
        } else if captured.overlaps(call.start, call.end.max(just_after(call.start))) {
            // Put into a graph, not on the device.
        } else if last_back.is_some_and(|last| i > last) {
            coverage.pending = coverage.pending.or(Some(call.start));
        } else if call.start >= undecided_from {
            coverage.missing.push(c);
        } else {
            coverage.expected += 1;
            coverage.missing.push(c);
            let recorded_by = Nanos(call.end.0.saturating_add(RECORDED_WITHIN.0));
            let placed = blind.overlaps(call.start, just_after(recorded_by));
            coverage.unplaced += u64::from(!placed);
        }
    }
    coverage
}

/// When the process recorded launches into graphs instead of carrying them out. The calls that begin
/// and end a capture are not recorded; what is seen are launches without operations that
/// lead up to the instantiation of a graph.
fn captures(t: &Timeline, pid: Pid) -> Intervals {
    let log = t.gpu();
    let mut calls: Vec<CallIdx> = log.recorded_calls_of(pid).collect();
    calls.sort_by_key(|&c| (log.call_at(c).start, c));
    let mut run: FxHashMap<ThreadIdx, Nanos> = FxHashMap::default();
    let mut found = Vec::new();
    for &c in &calls {
        let call = log.call_at(c);
        if api::starts_kernels(call.class) && !call.failed() {
            if call.has_op() {
                run.remove(&call.thread);
            } else {
                run.entry(call.thread).or_insert(call.start);
            }
        } else if call.class == Class::Module && api::name(call.api()).contains("GraphInstantiate")
        {
            if let Some(from) = run.remove(&call.thread) {
                found.push((from, call.end));
            }
        }
    }
    Intervals::union_of(found)
}

/// A time in which no records of a process came though its shim collected.
struct Silence<'a> {
    pid: Pid,
    from: Nanos,
    to: Nanos,
    /// Where the shim says why.
    shim: Option<&'a Shim>,
}

impl Silence<'_> {
    fn holds(&self, shim: &Shim) -> bool {
        shim.pid == self.pid && self.from <= shim.ts && shim.ts <= self.to
    }
}

fn silences(t: &Timeline) -> Vec<Silence<'_>> {
    /// The shim tells what is lost and its state one after the other.
    const TOGETHER: Nanos = Nanos::from_millis(100);
    let mut silences: Vec<Silence<'_>> = Vec::new();
    for blind in t.blind().iter().filter(|b| b.why == BlindBecause::Silent) {
        let Some(pid) = blind.pid else { continue };
        let last = silences.iter_mut().rev().find(|s| s.pid == pid);
        match last {
            Some(s) if blind.from.saturating_sub(s.to) <= TOGETHER => s.to = s.to.max(blind.to),
            _ => silences.push(Silence {
                pid,
                from: blind.from,
                to: blind.to,
                shim: None,
            }),
        }
    }
    for silence in &mut silences {
        let mut said = t.shims().iter().filter(|s| s.state == ShimState::Busy);
        silence.shim = said.rfind(|s| silence.holds(s));
    }
    silences
}

/// Numbers and sentences about the whole recording.
pub(super) fn quality(t: &Timeline, trust: &Trust, min_gap: Nanos) -> Quality {
    let lost = t.lost();
    let impossible: u64 = t
        .gpu()
        .devices()
        .iter()
        .map(|g| {
            let bad =
                |o: &&crate::model::ops::Op| o.outlasts_followers() || o.starts_before_launch();
            g.ops.iter().filter(bad).count() as u64
        })
        .sum();
    let mut q = Quality {
        events: t.events(),
        bpf_lost: lost.bpf,
        shim_lost: lost.shim,
        cupti_lost: lost.cupti,
        invalid_gpu_records: t.gpu().invalid_records().len() as u64 + impossible,
        unmatched_gpu_records: t.gpu().unmatched(),
        gpu_coverage: trust.share(),
        max_clock_error: t.clock_error(),
        warnings: Vec::new(),
    };
    q.warnings = warnings(t, trust, &q, min_gap);
    q
}

/// Processes whose calls were measured by probes, each with when and why. Those without any GPU record
/// for the same reason share a sentence.
fn probed_texts(t: &Timeline, watches: &BTreeMap<Pid, Vec<Watch<'_>>>) -> Vec<String> {
    /// A job may have hundreds of processes.
    const NAMED: usize = 8;
    let uses_gpu = |pid: Pid| {
        let devices = t.gpu().devices().iter();
        (devices.filter(|gpu| !gpu.ops.is_empty())).any(|g| g.users.iter().any(|u| u.0 == pid))
    };
    let mut without: BTreeMap<&str, Vec<Pid>> = BTreeMap::new();
    let mut texts = Vec::new();
    for (&pid, list) in watches {
        if !uses_gpu(pid) {
            without
                .entry(list.last().map_or("", |w| w.reason))
                .or_default()
                .push(pid);
            continue;
        }
        texts.extend(list.iter().map(|watch| {
            format!(
                "pid {pid}: {}: from {} to {} of the recording only its calls are known, from probes \
                 on the CUDA driver",
                watch.reason,
                watch.from.saturating_sub(t.start()),
                watch.to.saturating_sub(t.start())
            )
        }));
    }
    let gaps = t.gpu().devices().iter().any(|gpu| !gpu.ops.is_empty());
    texts.extend(without.into_iter().map(|(reason, pids)| {
        let named: Vec<String> = pids.iter().take(NAMED).map(Pid::to_string).collect();
        let more = match pids.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let s = if pids.len() == 1 { "" } else { "s" };
        let gaps = if gaps {
            "; what others seem to leave idle may be its work"
        } else {
            ""
        };
        format!(
            "pid{s} {}{more}: the host's side only, by probes on the CUDA driver, because {reason}: \
             what a GPU did for it is not known{gaps}",
            named.join(", ")
        )
    }));
    texts
}

fn warnings(t: &Timeline, trust: &Trust, q: &Quality, min_gap: Nanos) -> Vec<String> {
    let mut w = Vec::new();
    let ops: u64 = t.gpu().devices().iter().map(|g| g.ops.len() as u64).sum();
    if ops == 0 {
        w.push("no GPU operations were recorded: idle time cannot be diagnosed".to_string());
    }
    if t.summary().is_none() {
        w.push("the recording was cut: it is reported as far as it goes".to_string());
    }
    let (came_back, expected) = trust.total();
    let unsound = trust.coverage.values().any(|c| !c.is_sound());
    if unsound {
        w.push(format!(
            "{} of {} launches came back from the GPU ({}), and it is not known when the others were \
             lost: busy and idle time are not shown",
            Count(came_back),
            Count(expected),
            Share(share(came_back, expected)),
        ));
    }
    if share(q.invalid_gpu_records, ops + q.invalid_gpu_records) > TOLERATED {
        w.push(format!(
            "{} GPU records have impossible times",
            Count(q.invalid_gpu_records)
        ));
    }
    for (count, who) in [
        (
            q.bpf_lost,
            "scheduling events were lost because the kernel's ring buffer was full",
        ),
        (
            q.shim_lost,
            "GPU records were lost because the shim's ring was full",
        ),
        (q.cupti_lost, "GPU records were dropped by CUPTI"),
    ] {
        if count > 0 {
            w.push(format!("{} {who}", Count(count)));
        }
    }
    let steps = t.lost().clock_steps;
    if steps > 0 {
        let why = missing_text(BlindBecause::ClockStep);
        w.push(format!(
            "{why} {steps} times: gaps at these moments are not explained"
        ));
    }
    if ops > 0 && share(q.unmatched_gpu_records, ops) > TOLERATED {
        w.push(format!(
            "{} of {} operations have no recorded launch call",
            Count(q.unmatched_gpu_records),
            Count(ops)
        ));
    }
    if q.max_clock_error.is_some_and(|e| e > min_gap) {
        let error = q.max_clock_error.unwrap_or_default();
        w.push(format!("GPU and host clocks agree to {error} only"));
    }
    let silences = silences(t);
    for silence in &silences {
        let reason = match silence.shim {
            Some(shim) => t.name(shim.reason),
            None => missing_text(BlindBecause::Silent),
        };
        w.push(format!(
            "pid {}: {reason}: no GPU records from {} to {} of the recording ({})",
            silence.pid,
            silence.from.saturating_sub(t.start()),
            silence.to.saturating_sub(t.start()),
            silence.to.saturating_sub(silence.from)
        ));
    }
    let watches = host_side::watches(t);
    w.extend(probed_texts(t, &watches));
    for shim in t.shims() {
        let reason = t.name(shim.reason);
        let probed = watches.get(&shim.pid);
        let said = probed.is_some_and(|list| list.iter().any(|w| w.reason == reason));
        if said || silences.iter().any(|s| s.holds(shim)) {
            continue;
        }
        let state = match shim.state {
            ShimState::Busy => "another tool holds CUPTI",
            ShimState::Failed => "GPU activity cannot be recorded",
            ShimState::Dormant | ShimState::Active | ShimState::Paused => continue,
        };
        w.push(if reason.starts_with(state) {
            format!("pid {}: {reason}", shim.pid)
        } else if reason.is_empty() {
            format!("pid {}: {state}", shim.pid)
        } else {
            format!("pid {}: {state}: {reason}", shim.pid)
        });
    }
    for probe in &t.meta().missing_probes {
        w.push(format!("not recorded: {probe}"));
    }
    w.extend(
        t.summary()
            .into_iter()
            .flat_map(|s| s.warnings.iter().cloned()),
    );
    let mut seen = std::collections::HashSet::new();
    w.retain(|text| seen.insert(text.clone()));
    w
}
