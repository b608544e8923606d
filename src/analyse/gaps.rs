//! One gap: whose it is, and how it divides.
//!
//! The lead rule comes first. What was launched before the device ran dry is the device's
//! own delay; otherwise the host owes the time until the launch call returned.
#![forbid(unsafe_code)]

use crate::analyse::busy::Gap;
use crate::analyse::calls;
use crate::analyse::cause::Cause;
use crate::analyse::device::{self, Queued};
use crate::analyse::intervals::Intervals;
use crate::analyse::partition::{Engine, Task};
use crate::analyse::series;
use crate::analyse::what::{Piece, What};
use crate::event::Migration;
use crate::model::api::Class;
use crate::model::gpu::Gpu;
use crate::model::ops::{Call, Op};
use crate::model::thread::ThreadIdx;
use crate::model::Timeline;
use crate::units::Nanos;

/// Delay between dependent operations that needs no other explanation.
const INTRINSIC: Nanos = Nanos::from_micros(10);

/// No healthy launch takes longer: a median above it comes from waits that all look alike.
const LONGEST_USUAL_LEAD: Nanos = Nanos::from_micros(50);

/// After a synchronising call this much running is still its price: the refill.
const REFILL: Nanos = Nanos::from_micros(50);

const UNEXPLAINED: &str = "queued in time; nothing recorded says what held it up";

/// Migrations of one series follow each other at this distance at most, and what waited for them
/// starts no later.
const MIGRATIONS: Nanos = Nanos::from_micros(20);

/// What a gap can be explained with.
#[derive(Debug)]
pub(super) struct Explainer<'a> {
    pub(super) engine: &'a Engine<'a>,
    pub(super) gpu: &'a Gpu,
    pub(super) usual_lead: Option<Nanos>,
    pub(super) min_gap: Nanos,
    /// When managed memory of the device's processes moved, or the device waited for it.
    pub(super) migrations: Intervals,
    /// Thread of the last launch: it owes the launch that an open gap still waits for.
    pub(super) last_launcher: Option<ThreadIdx>,
}

/// The operation that ended a gap, with its launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    pub(super) op: &'a Op,
    pub(super) launch: Option<&'a Call>,
}

impl Ending<'_> {
    /// Start of the operation minus end of its launch call.
    pub(super) fn lead(&self) -> Option<i64> {
        let launch = self.launch?;
        let (start, end) = (self.op.start.0, launch.end.0);
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Some(if start >= end {
            signed(start - end)
        } else {
            -signed(end - start)
        })
    }
}

/// Median lead of the operations that were launched to an empty device.
pub(super) fn usual_lead(engine: &Engine<'_>, gpu: &Gpu, gaps: &[Gap]) -> Option<Nanos> {
    let log = engine.t.gpu();
    let mut leads: Vec<u64> = gaps
        .iter()
        .filter_map(|gap| {
            let op = &gpu.ops[gap.next? as usize];
            let launch = log.call_at(op.call()?);
            let to_empty = op.is_first_of_call() && launch.end >= gap.start;
            to_empty.then(|| op.start.saturating_sub(launch.end).0)
        })
        .collect();
    if leads.is_empty() {
        return None;
    }
    let middle = (leads.len() - 1) / 2;
    Some(Nanos(*leads.select_nth_unstable(middle).1))
}

/// When managed memory of the processes that use the device moved.
pub(super) fn migrations(t: &Timeline, gpu: &Gpu) -> Intervals {
    let all = t.gpu().migrations().iter();
    let here = all.filter(|m| gpu.users.contains(&(m.pid, m.device)));
    let around = |m: &Migration| {
        let from = m.start.saturating_sub(MIGRATIONS);
        (from, Nanos(m.end.0.saturating_add(MIGRATIONS.0)))
    };
    Intervals::union_of(here.map(around).collect())
}

impl<'a> Explainer<'a> {
    pub(super) fn ending(&self, gap: &Gap) -> Option<Ending<'a>> {
        let op = &self.gpu.ops[gap.next? as usize];
        let launch = op.call().map(|c| self.engine.t.gpu().call_at(c));
        Some(Ending { op, launch })
    }

    pub(super) fn dispatcher(&self, gap: &Gap) -> Option<ThreadIdx> {
        match gap.next {
            Some(_) => self.ending(gap)?.launch.map(|l| l.thread),
            None => self.last_launcher,
        }
    }

    fn usual(&self) -> Nanos {
        self.usual_lead.unwrap_or(INTRINSIC).min(LONGEST_USUAL_LEAD)
    }

    fn whole(gap: &Gap, cause: Cause, what: What, out: &mut Vec<Piece>) {
        out.push(Piece::of_nobody(gap.start, gap.end, cause, what));
    }

    /// The pieces of `gap`, in order, covering it exactly. `doubt` says why records around it cannot
    /// be trusted.
    pub(super) fn explain(&self, gap: &Gap, doubt: Option<What>, out: &mut Vec<Piece>) {
        out.clear();
        if let Some(what) = doubt {
            return Self::whole(gap, Cause::UnknownMeasurement, what, out);
        }
        match self.ending(gap) {
            None => self.open(gap, out),
            Some(Ending { op, launch: None }) => {
                let what = if op.is_from_graph() {
                    "the launch of a graph was not recorded"
                } else {
                    "the launch call was not recorded"
                };
                Self::whole(gap, Cause::UnknownMeasurement, What::Say(what), out);
            }
            Some(Ending { op, .. }) if op.starts_before_launch() => {
                let what = What::Say("the next operation seems to start before its launch");
                Self::whole(gap, Cause::UnknownMeasurement, what, out);
            }
            Some(Ending {
                op,
                launch: Some(launch),
            }) => self.closed(gap, op, launch, out),
        }
        series::charge_between_waits(out);
        settle(gap, out);
    }

    /// Nothing came until the end of the window.
    fn open(&self, gap: &Gap, out: &mut Vec<Piece>) {
        match self.last_launcher {
            Some(thread) => {
                self.engine
                    .explain(Task::dispatcher(thread), gap.start, gap.end, out);
            }
            None => Self::whole(
                gap,
                Cause::Unknown,
                What::Say("nothing was ever launched"),
                out,
            ),
        }
    }

    fn closed(&self, gap: &Gap, op: &Op, launch: &Call, out: &mut Vec<Piece>) {
        let submitted = self.submitted(op, launch);
        let handed_over = submitted.clamp(gap.start, gap.end);
        if gap.len() < self.min_gap {
            if gap.start < handed_over {
                let (cause, what) = (Cause::LaunchBound, What::In(launch.api()));
                out.push(Piece {
                    who: Some(self.engine.t.who(launch.thread, gap.start)),
                    ..Piece::of_nobody(gap.start, handed_over, cause, what)
                });
            }
            if handed_over < gap.end {
                let cause = Cause::GpuLaunchLatency;
                out.push(Piece::of_nobody(handed_over, gap.end, cause, What::Nothing));
            }
            return;
        }
        if gap.start < handed_over {
            let task = Task::dispatcher(launch.thread);
            self.engine.explain(task, gap.start, handed_over, out);
            self.charge_refill(gap, launch.thread, out);
        }
        if handed_over < gap.end {
            self.device_side(gap, op, launch, handed_over, out);
        }
    }

    /// When the device had been told. A node of a graph is told with the first one.
    fn submitted(&self, op: &Op, launch: &Call) -> Nanos {
        if !op.is_first_of_call() {
            return launch.start.min(op.start);
        }
        // A copy that the host waits for returns long after it was queued. (The host itself works on
        // a pageable copy all that time, so there the whole call counts.)
        let waits = launch.class == Class::Memcpy
            && launch.waited_for_its_op()
            && !launch.is_pageable_copy();
        if waits {
            let queued = launch.start.0.saturating_add(self.usual().max(INTRINSIC).0);
            return launch.end.min(Nanos(queued));
        }
        launch.end
    }

    /// `[from, gap.end)`: the operation was queued and did not start.
    fn device_side(&self, gap: &Gap, op: &Op, launch: &Call, from: Nanos, out: &mut Vec<Piece>) {
        let mut push = |start: Nanos, end: Nanos, cause, what| {
            if start < end {
                out.push(Piece::of_nobody(start, end, cause, what));
            }
        };
        let usual = self.usual();
        let waited = gap.end.saturating_sub(from);
        let latency = (Cause::GpuLaunchLatency, What::Nothing);
        if waited <= usual.max(INTRINSIC) {
            return push(from, gap.end, latency.0, latency.1);
        }
        let found = device::cause(
            self.engine.t,
            &Queued {
                gpu: self.gpu,
                gap: *gap,
                op,
                launch,
                usual,
            },
        );
        let late_host = from > gap.start;
        let starts = if late_host {
            Nanos(from.0.saturating_add(usual.0)).min(gap.end)
        } else {
            from
        };
        let named = found.filter(|f| !matches!(f.1, What::Say(_)));
        if named.is_none() && self.migrations.overlaps(starts, gap.end) {
            push(from, starts, latency.0, latency.1);
            let otherwise = found.unwrap_or((Cause::Unknown, What::Say(UNEXPLAINED)));
            return self.migrations.cut(starts, gap.end, |a, b, moves| {
                let moved = What::Say("pages of managed memory moved");
                let (cause, what) = if moves {
                    (Cause::GpuUnifiedMemory, moved)
                } else {
                    otherwise
                };
                push(a, b, cause, what);
            });
        }
        match found {
            Some((cause, what)) => {
                push(from, starts, latency.0, latency.1);
                push(starts, gap.end, cause, what);
            }
            // Half of all leads are above the median. Without a sign of anything else, some more of
            // the same is the likelier story.
            None if waited.0 <= usual.0 + usual.max(INTRINSIC).0 => {
                push(from, gap.end, latency.0, latency.1);
            }
            None => {
                let what = What::Say(UNEXPLAINED);
                push(from, starts, latency.0, latency.1);
                push(starts, gap.end, Cause::Unknown, what);
            }
        }
    }

    /// The call in which the host waited when the device ran dry.
    pub(super) fn opened_by(&self, gap: &Gap) -> Option<(&'a Call, ThreadIdx)> {
        let t = self.engine.t;
        let opener = gap.opener.map(|i| &self.gpu.ops[i as usize]);
        let launcher = opener.and_then(Op::call).map(|c| t.gpu().call_at(c).thread);
        let last_busy = gap.start.saturating_sub(Nanos(1));
        [self.dispatcher(gap), launcher]
            .into_iter()
            .flatten()
            .find_map(|thread| {
                let call = self.engine.calls(thread).outermost(last_busy)?;
                let blocks = calls::cause_of(call).is_some() && call.end >= gap.start;
                blocks.then_some((call, thread))
            })
    }

    /// The first running after a synchronising call is still its price.
    fn charge_refill(&self, gap: &Gap, dispatcher: ThreadIdx, pieces: &mut Vec<Piece>) {
        let first = pieces.iter().position(|p| p.cause == Cause::Sync);
        let (mut i, thread, what) = match first {
            Some(first) => {
                let sync = pieces[first];
                let thread = sync.who.map_or(dispatcher, |w| w.thread);
                (first + 1, thread, sync.what)
            }
            None => match self.just_synchronised(gap, dispatcher) {
                Some(call) => (0, dispatcher, What::In(call.api())),
                None => return,
            },
        };
        let mut left = REFILL.0;
        while i < pieces.len() && left > 0 {
            let piece = pieces[i];
            let own = matches!(piece.cause, Cause::LaunchBound | Cause::Compute)
                && piece.who.is_some_and(|w| w.thread == thread);
            if own {
                let len = piece.len().0;
                let charged = Piece {
                    cause: Cause::Sync,
                    what,
                    ..piece
                };
                if len <= left {
                    pieces[i] = charged;
                } else {
                    let cut = Nanos(piece.start.0 + left);
                    pieces[i] = Piece {
                        end: cut,
                        ..charged
                    };
                    pieces.insert(
                        i + 1,
                        Piece {
                            start: cut,
                            ..piece
                        },
                    );
                }
                left -= len.min(left);
            }
            i += 1;
        }
    }

    /// The synchronising call that returned as the gap opened. The clocks of host and device agree
    /// to some microseconds only, so it may seem to have returned before.
    fn just_synchronised(&self, gap: &Gap, dispatcher: ThreadIdx) -> Option<&'a Call> {
        const CLOCKS: Nanos = Nanos::from_micros(5);
        let call = self
            .engine
            .calls(dispatcher)
            .innermost(gap.start.saturating_sub(CLOCKS))?;
        (calls::cause_of(call) == Some(Cause::Sync)).then_some(call)
    }
}

/// Makes sure of what everything else relies on: pieces in order, disjoint, covering the gap. A hole
/// would be a defect, and is called unknown. Equal neighbours become one.
fn settle(gap: &Gap, pieces: &mut Vec<Piece>) {
    let mut at = gap.start;
    let exact = pieces.iter().all(|p| {
        let follows = p.start == at && p.start < p.end;
        at = p.end;
        follows
    }) && at == gap.end;
    if !exact {
        *pieces = cover(gap, pieces);
    }
    pieces.dedup_by(|later, first| {
        let same = (later.cause, later.who, later.what) == (first.cause, first.who, first.what);
        if same {
            first.end = later.end;
        }
        same
    });
}

fn cover(gap: &Gap, pieces: &[Piece]) -> Vec<Piece> {
    let hole = |start, end| Piece::of_nobody(start, end, Cause::Unknown, What::Nothing);
    let mut at = gap.start;
    let mut covering = Vec::with_capacity(pieces.len() + 1);
    for piece in pieces {
        let (start, end) = (piece.start.max(at), piece.end.min(gap.end));
        if start >= end {
            continue;
        }
        if at < start {
            covering.push(hole(at, start));
        }
        covering.push(Piece {
            start,
            end,
            ..*piece
        });
        at = end;
    }
    if at < gap.end {
        covering.push(hole(at, gap.end));
    }
    covering
}
