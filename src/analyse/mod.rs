//! From a timeline to an explanation.
//!
//! For each device: the union of its operations (`busy`), then every gap by the lead rule
//! (`gaps`): the host's share is what the launching thread did (`partition`, `runqueue`, `waits`,
//! `walk`), the rest is the device's own delay (`device`). Before that, `quality` says
//! which records can be believed.
#![forbid(unsafe_code)]

pub mod assert;
mod busy;
mod calls;
pub mod cause;
mod chain;
mod describe;
mod device;
pub mod diff;
mod evidence;
mod futex;
mod gaps;
mod host_side;
mod intervals;
pub mod live;
mod loaders;
mod missing;
mod overheads;
mod partition;
mod quality;
pub mod report;
mod runqueue;
mod sampled;
pub mod sched;
mod scope;
mod series;
pub mod stacks;
mod sums;
pub mod syscalls;
mod tables;
#[cfg(test)]
mod tests;
pub mod tracks;
pub mod triggers;
mod waits;
mod walk;
mod what;

use std::ops::Range;

use crate::event::{Pid, ShimState};
use crate::model::fxhash::FxHashMap;
use crate::model::gpu::Gpu;
use crate::model::ops::Op;
use crate::model::thread::ThreadIdx;
use crate::model::{Blind, BlindBecause, Timeline};
use crate::units::Nanos;

use busy::Gap;
use cause::Cause;
use evidence::Sentence;
use gaps::Explainer;
use intervals::Intervals;
use partition::Engine;
use quality::Trust;
use report::{Quality, Report};
use scope::Scope;
use sums::{Row, Sums};
use what::Piece;

/// What the report is asked for. Only lists depend on it, never sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Only the device with this number.
    pub gpu: Option<u32>,
    /// Shorter gaps are not listed, and get their cause from the lead rule alone.
    pub min_gap: Nanos,
    /// Gaps listed for each device; `None` is all.
    pub gaps: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            gpu: None,
            min_gap: Nanos::from_micros(10),
            gaps: Some(20),
        }
    }
}

/// Parts of a gap that are kept of a slice, of which there are many.
const PARTS: usize = 100;

/// Explains a finished timeline.
pub fn report(t: &Timeline, options: &Options) -> Report {
    let engine = Engine::new(t);
    let trust = Trust::of(t, Scope::WHOLE);
    let devices = devices(&engine, &trust, options, Scope::WHOLE);
    Report {
        quality: quality::quality(t, &trust, options.min_gap),
        gpus: devices.list.into_iter().map(|d| d.gpu).collect(),
        host_sides: host_side::host_sides(&engine, Scope::WHOLE),
        threads: tables::threads(t, Scope::WHOLE),
        kernels: tables::kernels(t, options.gpu, Scope::WHOLE),
        calls: tables::calls(t, &devices.idle, Scope::WHOLE),
    }
}

/// Sentences without those that were there before.
fn each_once<'a>(sentences: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen: Vec<&String> = Vec::new();
    for sentence in sentences {
        if !seen.contains(&sentence) {
            seen.push(sentence);
        }
    }
    seen.into_iter().cloned().collect()
}

/// When the devices of each process were idle, as far as it can be told.
type IdleOf = FxHashMap<Pid, Intervals>;

/// A device, and what there is to say about its causes.
#[derive(Debug)]
struct Explained {
    gpu: report::Gpu,
    /// In the order of its causes.
    sentences: Vec<Vec<Sentence>>,
    /// Causes of the gap that reaches into the scope from before, which it had there already; `None`:
    /// no gap does.
    continued: Option<Vec<Cause>>,
}

#[derive(Debug, Default)]
struct Devices {
    list: Vec<Explained>,
    /// Of all devices, also those that were not asked for.
    idle: IdleOf,
}

fn devices(engine: &Engine<'_>, trust: &Trust, options: &Options, scope: Scope) -> Devices {
    let t = engine.t;
    let mut idle: FxHashMap<Pid, Vec<(Nanos, Nanos)>> = FxHashMap::default();
    let mut list = Vec::new();
    for (index, gpu) in (0..).zip(t.gpu().devices()) {
        let usage = device_usage(t, gpu, trust, scope);
        if options.gpu.is_none_or(|wanted| wanted == index) {
            list.push(explain_gpu(engine, trust, index, gpu, &usage, options));
        }
        // Where idle time cannot be told, no call overlaps it.
        if !is_told(t, gpu, trust) {
            continue;
        }
        // There can be millions of gaps: the list takes their place in memory.
        let gaps: Vec<(Nanos, Nanos)> =
            (usage.1.gaps.into_iter().map(|g| (g.start, g.end))).collect();
        if let [(pid, _)] = gpu.users[..] {
            let list = idle.entry(pid).or_default();
            if list.is_empty() {
                *list = gaps;
                continue;
            }
        }
        for (pid, _) in &gpu.users {
            idle.entry(*pid).or_default().extend(&gaps);
        }
    }
    let idle = idle
        .into_iter()
        .map(|(pid, list)| (pid, Intervals::union_of(list)))
        .collect();
    Devices { list, idle }
}

/// The idle gaps of the devices that each process uses, as far as they can be told.
fn idle_of_processes(t: &Timeline) -> IdleOf {
    let trust = Trust::of(t, Scope::WHOLE);
    let mut idle: FxHashMap<Pid, Vec<(Nanos, Nanos)>> = FxHashMap::default();
    for gpu in t
        .gpu()
        .devices()
        .iter()
        .filter(|gpu| is_told(t, gpu, &trust))
    {
        let (_, usage) = device_usage(t, gpu, &trust, Scope::WHOLE);
        for (pid, _) in &gpu.users {
            let gaps = usage.gaps.iter().map(|gap| (gap.start, gap.end));
            idle.entry(*pid).or_default().extend(gaps);
        }
    }
    let lists = idle.into_iter();
    lists
        .map(|(pid, list)| (pid, Intervals::union_of(list)))
        .collect()
}

/// Hands every gap to `each` with the number of its device, in order of time: the same that [`report()`] lists and
/// sums up, but one at a time, for there can be millions.
pub fn gaps(t: &Timeline, min_gap: Nanos, mut each: impl FnMut(u32, report::Gap)) -> Quality {
    let engine = Engine::new(t);
    let trust = Trust::of(t, Scope::WHOLE);
    for (index, gpu) in (0..).zip(t.gpu().devices()) {
        let (_, usage) = device_usage(t, gpu, &trust, Scope::WHOLE);
        let explainer = explainer(&engine, gpu, &usage, min_gap);
        each_gap(&explainer, &trust, &usage, |i, pieces| {
            each(
                index,
                describe::whole(&explainer, &usage.gaps[i], pieces, None),
            );
        });
    }
    quality::quality(t, &trust, min_gap)
}

/// Whether busy and idle time can be told. Of a recording in which no operation began or ended they cannot: it
/// may be that nothing ran, or that one ran all along. While it goes on, what comes next will tell.
fn is_told(t: &Timeline, gpu: &Gpu, trust: &Trust) -> bool {
    let any = !gpu.ops.is_empty() || trust.scope.goes_on;
    any && trust.is_sound(t, gpu)
}

/// The time of which the device's idle share is told.
fn window(t: &Timeline, gpu: &Gpu, trust: &Trust, scope: Scope) -> (Nanos, Nanos) {
    let Some((first, last)) = busy::extent(&gpu.ops) else {
        return (t.start(), t.start());
    };
    if scope.goes_on {
        return window_so_far(t, gpu, trust, scope, (first, last));
    }
    if !t.window_is_recording() {
        return (first, last);
    }
    let start = collected_from(t, gpu, first);
    (start, collected_until(t, gpu, last, t.end()).max(start))
}

/// The same while it goes on: what came last is not the last.
fn window_so_far(
    t: &Timeline,
    gpu: &Gpu,
    trust: &Trust,
    scope: Scope,
    (first, last): (Nanos, Nanos),
) -> (Nanos, Nanos) {
    let start = if t.window_is_recording() {
        // Of what was before the timeline its last operation is known.
        collected_from(t, gpu, first).min(first)
    } else {
        first
    };
    let now = t.end().max(scope.to);
    let mut end = collected_until(t, gpu, last, now);
    if !t.window_is_recording() {
        let ended = |u: &(Pid, _)| t.exit_of(u.0);
        let all_ended: Option<Vec<Nanos>> = gpu.users.iter().map(ended).collect();
        let exit = all_ended.and_then(|list| list.into_iter().max());
        end = exit.map_or(end, |exit| end.min(exit.max(last)));
    }
    // Launched work that has not come back can be on the device all the time since.
    let pending = trust.pending(gpu).map(|from| from.max(last));
    (start, pending.map_or(end, |from| end.min(from)).max(start))
}

/// Before the shim of any of its processes collects, nothing is known of the device.
fn collected_from(t: &Timeline, gpu: &Gpu, first: Nanos) -> Nanos {
    let uses = |pid: Pid| gpu.users.iter().any(|u| u.0 == pid);
    let active = t
        .shims()
        .iter()
        .filter(|s| s.state == ShimState::Active && uses(s.pid))
        .map(|s| s.ts)
        .min();
    active
        .map_or(t.start(), |a| a.clamp(t.start(), t.end()))
        .min(first.max(t.start()))
}

/// Nor is it after the last one stopped for good.
fn collected_until(t: &Timeline, gpu: &Gpu, last: Nanos, end: Nanos) -> Nanos {
    let stopped = |pid: Pid| {
        let ends = |b: &&Blind| b.pid == Some(pid) && b.to >= t.last_of(pid);
        let blind = t.blind().iter().filter(ends).find_map(|b| match b.why {
            BlindBecause::NotCollecting => Some(b.from),
            // What came last was held back, maybe, and went with the rest.
            BlindBecause::Silent => Some(last.min(b.from)),
            BlindBecause::RingFull
            | BlindBecause::CuptiDropped
            | BlindBecause::ClockStep
            | BlindBecause::Damaged => None,
        });
        blind.unwrap_or(end)
    };
    let collected = gpu.users.iter().map(|u| stopped(u.0)).max();
    collected.unwrap_or(end).max(last.min(end))
}

type Window = (Nanos, Nanos);

/// The part of the window that is in the scope, with the sums of that part and all gaps.
fn device_usage(t: &Timeline, gpu: &Gpu, trust: &Trust, scope: Scope) -> (Window, busy::Usage) {
    let window = window(t, gpu, trust, scope);
    let part = scope.clip(window);
    (part, busy::usage(&gpu.ops, window, part))
}

fn explain_gpu(
    engine: &Engine<'_>,
    trust: &Trust,
    index: u32,
    gpu: &Gpu,
    &((from, to), ref usage): &(Window, busy::Usage),
    options: &Options,
) -> Explained {
    let t = engine.t;
    let scope = trust.scope;
    let told = is_told(t, gpu, trust);
    let explainer = explainer(engine, gpu, usage, options.min_gap);
    let inside = gaps_in(&usage.gaps, scope);
    let listed = longest(&usage.gaps, inside.clone(), options, scope.to);
    let mut sums = Sums::new(t);
    let mut lists: Vec<(usize, report::Gap)> = Vec::new();
    let mut continued = None;
    each_gap(&explainer, trust, usage, |i, pieces| {
        let gap = &usage.gaps[i];
        let cut = gap.start < scope.from || gap.end > scope.to;
        for piece in pieces {
            let whole = (piece.start, piece.end);
            if !cut {
                sums.add(i, piece, whole);
                continue;
            }
            let part = scope.clip(whole);
            if part.0 < part.1 {
                // As far as it has come.
                let end = part.1;
                sums.add(i, &Piece { end, ..*piece }, part);
            }
        }
        if gap.start < scope.from {
            let before = |cause| {
                let mut before = pieces.iter().take_while(|p| p.start < scope.from);
                before.any(|p| p.cause == cause)
            };
            let inside = pieces.iter().filter(|p| p.end > scope.from);
            let inside = inside.take_while(|p| p.start < scope.to).map(|p| p.cause);
            continued = Some(inside.filter(|&cause| before(cause)).collect());
        }
        if listed.binary_search(&i).is_ok() {
            let most = (!scope.is_whole()).then_some(PARTS);
            lists.push((i, describe::gap(&explainer, gap, pieces, scope.to, most)));
        }
    });
    lists.sort_by_key(|(i, gap)| (std::cmp::Reverse(gap.end.saturating_sub(gap.start)), *i));
    let idle = usage.idle;
    let summand = (!scope.is_whole()).then_some(scope.to);
    let (causes, sentences): (Vec<_>, Vec<_>) = (sums.rows(idle, summand).into_iter())
        .map(|Row { row, sentences }| (row, sentences))
        .unzip();
    let explained: Nanos = causes
        .iter()
        .filter(|r| r.cause.is_explained())
        .map(|r| r.total)
        .sum();
    let idle_explained = if idle.0 == 0 {
        1.0
    } else {
        explained.share_of(idle)
    };
    let gpu = report::Gpu {
        index,
        name: t.name(gpu.name).to_string(),
        uuid: t.name(gpu.uuid).to_string(),
        window_start: from,
        window_end: to,
        busy: told.then_some(usage.busy),
        idle: told.then_some(idle),
        idle_explained: told.then_some(idle_explained),
        busy_kernel: usage.kernel,
        busy_memcpy: usage.memcpy,
        busy_memset: usage.memset,
        operations: operations(gpu, scope),
        startup: from.saturating_sub(t.start().max(scope.from)),
        drain: if gpu.ops.is_empty() {
            Nanos::ZERO
        } else {
            scope.end(t).saturating_sub(to)
        },
        usual_lead: explainer.usual_lead,
        causes,
        gap_count: inside.len() as u64,
        longest_gap: longest_of(&usage.gaps[inside], scope.to),
        gaps: lists.into_iter().map(|(_, gap)| gap).collect(),
    };
    Explained {
        gpu,
        sentences,
        continued,
    }
}

fn operations(gpu: &Gpu, scope: Scope) -> u64 {
    if scope.is_whole() {
        return gpu.ops.len() as u64;
    }
    gpu.ops.iter().filter(|op| scope.has(op.end)).count() as u64
}

/// Numbers of the gaps with time in the scope.
fn gaps_in(gaps: &[Gap], scope: Scope) -> Range<usize> {
    if scope.is_whole() {
        return 0..gaps.len();
    }
    let first = gaps.partition_point(|g| g.end <= scope.from);
    let after = gaps.partition_point(|g| g.start < scope.to);
    first..after.max(first)
}

fn explainer<'a>(
    engine: &'a Engine<'_>,
    gpu: &'a Gpu,
    usage: &busy::Usage,
    min_gap: Nanos,
) -> Explainer<'a> {
    Explainer {
        engine,
        gpu,
        usual_lead: gaps::usual_lead(engine, gpu, &usage.gaps),
        min_gap,
        migrations: gaps::migrations(engine.t, gpu),
        last_launcher: match usage.gaps.last() {
            Some(gap) if gap.next.is_none() => last_launcher(engine.t, gpu),
            Some(_) | None => None,
        },
    }
}

/// Hands the number and the pieces of every gap in the scope to `each`, in order of time; none, where idle
/// time cannot be told.
fn each_gap(
    explainer: &Explainer<'_>,
    trust: &Trust,
    usage: &busy::Usage,
    mut each: impl FnMut(usize, &[Piece]),
) {
    let (t, gpu) = (explainer.engine.t, explainer.gpu);
    if !trust.is_sound(t, gpu) {
        return;
    }
    let doubts = trust.doubts(t, gpu, usage);
    let mut doubts = doubts.iter().peekable();
    let mut pieces: Vec<Piece> = Vec::new();
    for i in gaps_in(&usage.gaps, trust.scope) {
        while doubts.next_if(|d| d.0 < i).is_some() {}
        let doubt = doubts.next_if(|d| d.0 == i).map(|d| d.1);
        explainer.explain(&usage.gaps[i], doubt, &mut pieces);
        each(i, &pieces);
    }
}

fn longest_of(gaps: &[Gap], until: Nanos) -> Nanos {
    let lengths = gaps
        .iter()
        .map(|g| g.end.min(until).saturating_sub(g.start));
    lengths.max().unwrap_or_default()
}

/// Numbers of the gaps to list, in order of time. What comes after `until` is no part of them.
fn longest(gaps: &[Gap], inside: Range<usize>, options: &Options, until: Nanos) -> Vec<usize> {
    let len = |i: usize| gaps[i].end.min(until).saturating_sub(gaps[i].start);
    let mut long: Vec<usize> = inside.filter(|&i| len(i) >= options.min_gap).collect();
    if let Some(most) = options.gaps.filter(|&most| most < long.len()) {
        if most > 0 {
            let order = |&i: &usize| (std::cmp::Reverse(len(i)), i);
            long.select_nth_unstable_by_key(most - 1, order);
        }
        long.truncate(most);
    }
    long.sort_unstable();
    long
}

/// The thread of the last launch of an operation of this device.
fn last_launcher(t: &Timeline, gpu: &Gpu) -> Option<ThreadIdx> {
    let log = t.gpu();
    let calls = gpu.ops.iter().filter_map(Op::call).map(|c| log.call_at(c));
    calls.max_by_key(|c| (c.start, c.thread)).map(|c| c.thread)
}
