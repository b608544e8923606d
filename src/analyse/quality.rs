//! How far the records can be trusted, before anything is concluded from them.
//!
//! A launch whose operation never came back is a hole. Where losses can be placed in time they
//! make the gaps they touch `unknown.measurement`; where they cannot, busy and idle time are
//! not known at all.
#![forbid(unsafe_code)]

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;

use crate::analyse::busy::{Gap, Usage};
use crate::analyse::calls::LAUNCH_SPACING;
use crate::analyse::host_side::{self, Watch};
use crate::analyse::intervals::{just_after, Intervals};
use crate::analyse::missing::Missing;
use crate::analyse::report::Quality;
use crate::analyse::scope::Scope;
use crate::analyse::what::{missing_text, What};
use crate::event::{Pid, Shim, ShimState};
use crate::model::api::{self, Class};
use crate::model::fxhash::FxHashMap;
use crate::model::gpu::Gpu;
use crate::model::ops::{CallIdx, Op};
use crate::model::thread::ThreadIdx;
use crate::model::{BlindBecause, Lost, Timeline};
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
    /// The same of the scope only.
    inside: (u64, u64),
    /// Missing in the scope, and no known loss explains when.
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
    /// Only what is missing here counts against it.
    pub(super) scope: Scope,
    coverage: FxHashMap<Pid, Coverage>,
}

impl Trust {
    pub(super) fn of(t: &Timeline, scope: Scope) -> Self {
        let coverage = t
            .gpu()
            .recorded_pids()
            .into_iter()
            .map(|pid| (pid, coverage(t, pid, scope)));
        Trust {
            scope,
            coverage: coverage.collect(),
        }
    }

    fn total(&self) -> (u64, u64) {
        let sum = |f: fn(&Coverage) -> u64| self.coverage.values().map(f).sum();
        (sum(|c| c.inside.0), sum(|c| c.inside.1))
    }

    /// Since when work of one that uses the device has not come back.
    pub(super) fn pending(&self, gpu: &Gpu) -> Option<Nanos> {
        let users = gpu.users.iter();
        let coverage = users.filter_map(|u| self.coverage.get(&u.0));
        coverage.filter_map(|c| c.pending).min()
    }

    /// Busy and idle time of the device can be told.
    pub(super) fn is_sound(&self, t: &Timeline, gpu: &Gpu) -> bool {
        let invalid = invalid_of(t, gpu, self.scope);
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
                BlindBecause::RingFull | BlindBecause::Damaged => {
                    Nanos(blind.to.0.saturating_add(LAUNCH_SPACING.0))
                }
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
        let running_since: Cell<Option<Nanos>> = Cell::new(None);
        let missing = |launch, may_run: bool, what, doubts: &mut Vec<(usize, What)>| {
            let others = others.get_or_init(|| Missing::of(t, gpu));
            if let Some((from, to)) = others.ran(launch) {
                return touched(gaps, from, to, what, doubts);
            }
            let launched = t.gpu().call_at(launch).start;
            // It may be running all the time since. What is known from before the timeline is no more than a hint.
            if may_run && launched >= t.start() {
                let first = running_since.get().map_or(launched, |s| s.min(launched));
                return running_since.set(Some(first));
            }
            // It ran at the first chance that the device had.
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
                missing(launch, self.scope.goes_on, what, &mut doubts);
            }
            if let (Some(_), Some(last)) = (coverage.pending, gaps.last()) {
                // While more can come, its window ends before that.
                if last.next.is_none() && !self.scope.goes_on {
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
                Some(launch) => missing(launch, false, what, &mut doubts),
                None => {
                    let from = record.seen.saturating_sub(UNDECIDED);
                    touched(gaps, from, record.seen, what, &mut doubts);
                }
            }
        }
        if let Some(since) = running_since.get() {
            let what = What::Say("launched work has not come back");
            touched(gaps, since, Nanos::MAX, what, &mut doubts);
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

fn invalid_of(t: &Timeline, gpu: &Gpu, scope: Scope) -> u64 {
    let records = t.gpu().invalid_records().iter();
    let invalid = records
        .filter(|r| scope.has(r.seen) && gpu.users.contains(&(r.pid, r.device)))
        .count() as u64;
    invalid + impossible(gpu, scope)
}

/// Operations with times that cannot be.
fn impossible(gpu: &Gpu, scope: Scope) -> u64 {
    let is_bad =
        |o: &&Op| (o.outlasts_followers() || o.starts_before_launch()) && scope.has(o.start);
    gpu.ops.iter().filter(is_bad).count() as u64
}

fn coverage(t: &Timeline, pid: Pid, scope: Scope) -> Coverage {
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
    let inside = |c: &CallIdx| scope.has(log.call_at(*c).start);
    if launches.iter().all(|&c| log.call_at(c).has_op()) {
        coverage.expected = launches.len() as u64;
        coverage.came_back = coverage.expected;
        let inside = launches.into_iter().filter(inside).count() as u64;
        coverage.inside = (inside, inside);
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
            coverage.inside.0 += u64::from(inside(&c));
            coverage.inside.1 += u64::from(inside(&c));
        } else if scope.goes_on && call.start < t.start() {
            // Of a thread's last launch before the timeline, nobody knows whether its operation is there, too.
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
            coverage.unplaced += u64::from(!placed && inside(&c));
            coverage.inside.1 += u64::from(inside(&c));
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

impl<'a> Silence<'a> {
    fn reason(&self, t: &'a Timeline) -> &'a str {
        match self.shim {
            Some(shim) => t.name(shim.reason),
            None => missing_text(BlindBecause::Silent),
        }
    }

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

/// What the sentences about numbers are made from, beside [`Quality`]. Adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    operations: u64,
    came_back: u64,
    expected: u64,
    /// Of a part, busy and idle time of a device cannot be told; of another, they can.
    unsound: bool,
    sound: bool,
    clock_steps: u64,
    /// Shorter gaps do not matter.
    min_gap: Nanos,
}

impl Counts {
    fn of(t: &Timeline, trust: &Trust, min_gap: Nanos) -> Counts {
        let (came_back, expected) = trust.total();
        let scope = trust.scope;
        let operations = |gpu: &Gpu| super::operations(gpu, scope);
        let unsound = trust.coverage.values().any(|c| !c.is_sound());
        Counts {
            operations: t.gpu().devices().iter().map(operations).sum(),
            came_back,
            expected,
            unsound,
            sound: !unsound,
            clock_steps: lost(t, scope).clock_steps,
            min_gap,
        }
    }

    pub(super) fn add(&mut self, more: &Counts) {
        self.operations += more.operations;
        self.came_back += more.came_back;
        self.expected += more.expected;
        self.unsound |= more.unsound;
        self.sound |= more.sound;
        self.clock_steps += more.clock_steps;
        self.min_gap = more.min_gap;
    }

    pub(super) fn coverage(&self) -> Option<f64> {
        (self.expected > 0).then(|| share(self.came_back, self.expected))
    }
}

fn lost(t: &Timeline, scope: Scope) -> Lost {
    if scope.is_whole() {
        t.lost()
    } else {
        t.lost_if(|loss| scope.has(loss.to))
    }
}

/// Numbers and sentences about the whole recording.
pub(super) fn quality(t: &Timeline, trust: &Trust, min_gap: Nanos) -> Quality {
    let (mut q, counts) = numbers(t, trust, min_gap);
    q.events = t.events();
    q.warnings = warnings(t, &q, &counts);
    q
}

/// The same of a part of what came in. Returns the sentences without a number, too: those hold for as long as they
/// are said, the others have to be made of the sums.
pub(super) fn of_slice(
    t: &Timeline,
    trust: &Trust,
    min_gap: Nanos,
) -> (Quality, Counts, Vec<String>) {
    let (mut q, counts) = numbers(t, trust, min_gap);
    let said = standing(t, trust.scope);
    q.warnings = counted(&q, &counts);
    q.warnings.extend(said.iter().cloned());
    (q, counts, said)
}

fn numbers(t: &Timeline, trust: &Trust, min_gap: Nanos) -> (Quality, Counts) {
    let scope = trust.scope;
    let lost = lost(t, scope);
    let devices = t.gpu().devices().iter();
    let impossible: u64 = devices.map(|gpu| impossible(gpu, scope)).sum();
    let invalid = t.gpu().invalid_records().iter();
    let counts = Counts::of(t, trust, min_gap);
    let q = Quality {
        events: 0,
        bpf_lost: lost.bpf,
        shim_lost: lost.shim,
        cupti_lost: lost.cupti,
        invalid_gpu_records: invalid.filter(|r| scope.has(r.seen)).count() as u64 + impossible,
        unmatched_gpu_records: unmatched(t, scope),
        gpu_coverage: counts.coverage(),
        max_clock_error: t.clock_error(),
        warnings: Vec::new(),
    };
    (q, counts)
}

fn unmatched(t: &Timeline, scope: Scope) -> u64 {
    if scope.is_whole() {
        return t.gpu().unmatched();
    }
    let ops = t.gpu().devices().iter().flat_map(|gpu| &gpu.ops);
    ops.filter(|op| op.is_unmatched() && scope.has(op.end))
        .count() as u64
}

/// What holds of the target and of the machine in a slice, in words that stay the same while it does.
fn standing(t: &Timeline, scope: Scope) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    let silences = silences(t);
    for silence in &silences {
        if scope.overlaps(silence.from, silence.to) {
            let reason = silence.reason(t);
            said.push(format!("pid {}: {reason}: no GPU records", silence.pid));
        }
    }
    let watches = host_side::watches(t);
    for (pid, list) in &watches {
        let now = list.iter().rfind(|w| scope.overlaps(w.from, w.to));
        if let Some(watch) = now {
            said.push(format!(
                "pid {pid}: the host's side only, by probes on the CUDA driver, because {}: what a GPU \
                 does for it is not known",
                watch.reason
            ));
        }
    }
    // Of each process what held last.
    for of_one in t.shims().chunk_by(|a, b| a.pid == b.pid) {
        let Some(shim) = of_one.iter().rfind(|s| s.ts < scope.to) else {
            continue;
        };
        let text = shim_text(t, shim, &watches, &silences);
        said.extend(text.filter(|_| t.exit_of(shim.pid).is_none_or(|exit| exit > scope.from)));
    }
    said.extend(missing_probes(t));
    said
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

fn warnings(t: &Timeline, q: &Quality, counts: &Counts) -> Vec<String> {
    let mut w = Vec::new();
    if counts.operations == 0 {
        w.push("no GPU operations were recorded: idle time cannot be diagnosed".to_string());
    }
    if t.summary().is_none() {
        w.push("the recording was cut: it is reported as far as it goes".to_string());
    }
    w.extend(counted(q, counts));
    let silences = silences(t);
    for silence in &silences {
        w.push(format!(
            "pid {}: {}: no GPU records from {} to {} of the recording ({})",
            silence.pid,
            silence.reason(t),
            silence.from.saturating_sub(t.start()),
            silence.to.saturating_sub(t.start()),
            silence.to.saturating_sub(silence.from)
        ));
    }
    let watches = host_side::watches(t);
    w.extend(probed_texts(t, &watches));
    let shims = t.shims().iter();
    w.extend(shims.filter_map(|shim| shim_text(t, shim, &watches, &silences)));
    w.extend(missing_probes(t));
    w.extend(
        t.summary()
            .into_iter()
            .flat_map(|s| s.warnings.iter().cloned()),
    );
    let mut seen = std::collections::HashSet::new();
    w.retain(|text| seen.insert(text.clone()));
    w
}

/// Sentences about numbers.
pub(super) fn counted(q: &Quality, counts: &Counts) -> Vec<String> {
    let mut w = Vec::new();
    if counts.unsound {
        w.push(format!(
            "{} of {} launches came back from the GPU ({}), and it is not known when the others were \
             lost: busy and idle time {}are not shown",
            Count(counts.came_back),
            Count(counts.expected),
            Share(share(counts.came_back, counts.expected)),
            if counts.sound { "around them " } else { "" },
        ));
    }
    let operations = counts.operations;
    if share(
        q.invalid_gpu_records,
        operations.saturating_add(q.invalid_gpu_records),
    ) > TOLERATED
    {
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
    let steps = counts.clock_steps;
    if steps > 0 {
        let why = missing_text(BlindBecause::ClockStep);
        w.push(format!(
            "{why} {steps} times: gaps at these moments are not explained"
        ));
    }
    if operations > 0 && share(q.unmatched_gpu_records, operations) > TOLERATED {
        w.push(format!(
            "{} of {} operations have no recorded launch call",
            Count(q.unmatched_gpu_records),
            Count(operations)
        ));
    }
    if let Some(error) = q.max_clock_error.filter(|e| *e > counts.min_gap) {
        w.push(format!("GPU and host clocks agree to {error} only"));
    }
    w
}

/// Why a process has no GPU records, unless that was said already.
fn shim_text(
    t: &Timeline,
    shim: &Shim,
    watches: &BTreeMap<Pid, Vec<Watch<'_>>>,
    silences: &[Silence<'_>],
) -> Option<String> {
    let reason = t.name(shim.reason);
    let probed = watches.get(&shim.pid);
    let said = probed.is_some_and(|list| list.iter().any(|w| w.reason == reason));
    if said || silences.iter().any(|s| s.holds(shim)) {
        return None;
    }
    let state = match shim.state {
        ShimState::Busy => "another tool holds CUPTI",
        ShimState::Failed => "GPU activity cannot be recorded",
        ShimState::Dormant | ShimState::Active | ShimState::Paused => return None,
    };
    Some(if reason.starts_with(state) {
        format!("pid {}: {reason}", shim.pid)
    } else if reason.is_empty() {
        format!("pid {}: {state}", shim.pid)
    } else {
        format!("pid {}: {state}: {reason}", shim.pid)
    })
}

fn missing_probes(t: &Timeline) -> impl Iterator<Item = String> + '_ {
    let probes = t.meta().missing_probes.iter();
    probes.map(|probe| format!("not recorded: {probe}"))
}
