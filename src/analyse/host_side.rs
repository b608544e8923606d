//! What is known of a process of which only the host's side was recorded, by probes on the CUDA driver.
//!
//! Nothing here says what a device did: a pause between two launches is no idle device. What the
//! device had to do meanwhile is not known.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::analyse::chain;
use crate::analyse::partition::Engine;
use crate::analyse::report::{CallTimes, Caller, HostSide, Pause};
use crate::analyse::scope::Scope;
use crate::analyse::what::thread_ref;
use crate::event::{Pid, Probes, ShimState};
use crate::model::api::{self, Class};
use crate::model::ops::Call;
use crate::model::thread::ThreadIdx;
use crate::model::Timeline;
use crate::units::Nanos;

/// Pauses that are listed of a process.
pub(super) const PAUSES: usize = 5;

/// When a process had probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watch<'a> {
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    pub(super) reason: &'a str,
}

/// The processes that had probes, by pid, each with when.
pub(super) fn watches(t: &Timeline) -> BTreeMap<Pid, Vec<Watch<'_>>> {
    let mut all = BTreeMap::new();
    for of_one in t.probes().chunk_by(|a, b| a.pid == b.pid) {
        let mut list: Vec<Watch<'_>> = Vec::new();
        let ends = of_one.iter().skip(1).map(Some).chain([None]);
        for (probes, next) in of_one.iter().zip(ends) {
            if let Some(watch) = watch(t, probes, next) {
                list.push(watch);
            }
        }
        if let Some(first) = of_one.first().filter(|_| !list.is_empty()) {
            all.insert(first.pid, list);
        }
    }
    all
}

fn watch<'a>(t: &'a Timeline, probes: &Probes, next: Option<&Probes>) -> Option<Watch<'a>> {
    let end = next.map_or_else(|| t.last_of(probes.pid), |next| next.ts);
    // From then on CUPTI's records count.
    let recorded = t
        .shims()
        .iter()
        .filter(|s| s.pid == probes.pid && s.state == ShimState::Active && s.ts >= probes.ts);
    let end = recorded.map(|s| s.ts).fold(end, Nanos::min);
    (probes.functions > 0).then(|| Watch {
        from: probes.ts,
        to: end.max(probes.ts),
        reason: t.name(probes.reason),
    })
}

pub(super) fn host_sides(engine: &Engine<'_>, scope: Scope) -> Vec<HostSide> {
    let watches = watches(engine.t);
    let sides = watches
        .iter()
        .map(|(&pid, list)| side(engine, pid, list, scope));
    let mut sides: Vec<HostSide> = sides.collect();
    sort_sides(&mut sides);
    sides
}

pub(super) fn sort_sides(sides: &mut [HostSide]) {
    let launches = |side: &HostSide| side.callers.iter().map(|c| c.launches).sum::<u64>();
    sides.sort_by_key(|side| (std::cmp::Reverse(launches(side)), side.pid));
}

fn side(engine: &Engine<'_>, pid: Pid, watches: &[Watch<'_>], scope: Scope) -> HostSide {
    let t = engine.t;
    let mut by_thread: BTreeMap<ThreadIdx, Vec<&Call>> = BTreeMap::new();
    for call in t.gpu().probed_calls_of(pid).map(|c| t.gpu().call_at(c)) {
        by_thread.entry(call.thread).or_default().push(call);
    }
    let mut callers: Vec<(ThreadIdx, Caller)> = by_thread
        .iter()
        .map(|(&thread, calls)| (thread, caller(t, thread, calls)))
        .collect();
    callers.sort_by_key(|(_, c)| rank(c));
    let dispatcher = callers.first().filter(|(_, c)| c.launches > 0);
    let dispatcher = dispatcher.map(|&(thread, _)| thread);
    let pauses = dispatcher.map_or_else(Vec::new, |thread| {
        let calls = by_thread.get(&thread).map_or(&[][..], Vec::as_slice);
        pauses(engine, thread, calls, watches, scope)
    });
    if !scope.is_whole() {
        for calls in by_thread.values_mut() {
            calls.retain(|call| scope.has(call.end));
        }
        by_thread.retain(|_, calls| !calls.is_empty());
        callers = by_thread
            .iter()
            .map(|(&thread, calls)| (thread, caller(t, thread, calls)))
            .collect();
        callers.sort_by_key(|(_, c)| rank(c));
    }
    let watched = |w: &Watch<'_>| {
        let (from, to) = scope.clip((w.from, w.to));
        to.saturating_sub(from)
    };
    let leader = t.find(crate::event::Tid(pid.0));
    HostSide {
        pid,
        comm: leader.map_or_else(String::new, |thread| {
            t.comm(t.who(thread, t.last_of(pid))).to_string()
        }),
        reason: watches.last().map_or("", |w| w.reason).to_string(),
        from: watches.first().map_or(t.start(), |w| w.from),
        watched: watches.iter().map(watched).sum(),
        callers: callers.into_iter().map(|(_, caller)| caller).collect(),
        pauses,
    }
}

/// Callers are in the order of this.
pub(super) fn rank(c: &Caller) -> impl Ord {
    let times = (Reverse(c.launches), Reverse(c.times.total()));
    (times, c.who.tid)
}

fn caller(t: &Timeline, thread: ThreadIdx, calls: &[&Call]) -> Caller {
    let mut times = CallTimes::default();
    let mut launches = 0;
    let mut last = Nanos::ZERO;
    for call in calls {
        launches += u64::from(is_launch(call));
        last = last.max(call.start);
        // What is called from inside of another call is a part of that one's time.
        if call.outer().is_some() {
            continue;
        }
        let sum = match call.class {
            Class::Launch | Class::GraphLaunch => &mut times.launch,
            Class::Memcpy | Class::MemcpyAsync | Class::Memset => &mut times.copy,
            Class::Sync => &mut times.sync,
            Class::Memory => &mut times.memory,
            Class::StreamWait | Class::Module | Class::HostFunc | Class::Context | Class::Other => {
                &mut times.other
            }
        };
        *sum += call.end.saturating_sub(call.start);
    }
    Caller {
        who: thread_ref(t, t.who(thread, last)),
        calls: calls.len() as u64,
        launches,
        times,
    }
}

fn is_launch(call: &Call) -> bool {
    api::starts_kernels(call.class) && !call.failed()
}

/// Pauses are in the order of this.
pub(super) fn length(start: Nanos, end: Nanos) -> impl Ord {
    (Reverse(end.saturating_sub(start)), start)
}

/// The longest times in which the thread launched nothing, from its first launch on.
fn pauses(
    engine: &Engine<'_>,
    thread: ThreadIdx,
    calls: &[&Call],
    watches: &[Watch<'_>],
    scope: Scope,
) -> Vec<Pause> {
    let mut launches: Vec<(Nanos, Nanos)> = calls
        .iter()
        .filter(|c| is_launch(c))
        .map(|c| (c.start, c.end))
        .collect();
    launches.sort_unstable();
    let mut pauses: Vec<(Nanos, Nanos, bool)> = Vec::new();
    for watch in watches {
        let first = launches.partition_point(|l| l.0 < watch.from);
        let after = launches.partition_point(|l| l.0 < watch.to);
        let inside = &launches[first.min(after)..after];
        let between = inside.iter().zip(inside.iter().skip(1));
        pauses.extend(between.map(|(one, next)| (one.1, next.0, false)));
        pauses.extend(inside.last().map(|last| (last.1, watch.to, true)));
    }
    for (_, end, open) in &mut pauses {
        if *end > scope.to {
            (*end, *open) = (scope.to, true);
        }
    }
    pauses.retain(|&(start, end, _)| start < end && scope.overlaps(start, end));
    pauses.sort_by_key(|&(start, end, _)| length(start, end));
    pauses.truncate(PAUSES);
    let described = pauses.into_iter().map(|(start, end, open)| Pause {
        start,
        end,
        open,
        doing: doing(engine, thread, start, end),
    });
    described.collect()
}

/// Where the time of a thread went: the CUDA calls that it was in, else what it did. Adds up.
fn doing(engine: &Engine<'_>, thread: ThreadIdx, from: Nanos, to: Nanos) -> Vec<(String, Nanos)> {
    let mut sums: BTreeMap<String, Nanos> = BTreeMap::new();
    let mut add = |what: String, time: Nanos| *sums.entry(what).or_default() += time;
    engine.calls(thread).segments(from, to, |segment| {
        if let Some(call) = segment.call {
            let time = segment.end.saturating_sub(segment.start);
            return add(api::name(call.api()).into_owned(), time);
        }
        let mut at = segment.start;
        for s in engine.t.thread(thread).states(segment.start, segment.end) {
            add(chain::state_text(engine, thread, &s, None), s.len());
            at = s.end;
        }
        if at < segment.end {
            add("unknown".to_string(), segment.end.saturating_sub(at));
        }
    });
    let mut sums: Vec<(String, Nanos)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    sums
}
