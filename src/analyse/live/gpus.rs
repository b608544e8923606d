//! The devices of slices, added up.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{GpuParts, GpuPoint, Launches, Slice};
use crate::analyse::cause::Cause;
use crate::analyse::evidence::{Sentence, When};
use crate::analyse::report::{Blame, CauseRow, Gap, Gpu};
use crate::analyse::sums::{shorten, told, MOST_ROWS, OTHERS};
use crate::event::{Pid, Tid};
use crate::fxhash::FxHashMap;
use crate::units::Nanos;

/// Gaps listed of a device.
const GAPS: usize = 50;

/// A card by its uuid, or where it has none by its number.
type Key<'a> = (&'a str, u32);

fn key(gpu: &Gpu) -> Key<'_> {
    match gpu.uuid.as_str() {
        "" => ("", gpu.index),
        uuid => (uuid, 0),
    }
}

/// Which devices there are, in the order of their numbers in the last slice that has them.
#[derive(Debug)]
pub(super) struct Gpus<'a> {
    keys: Vec<Key<'a>>,
}

impl<'a> Gpus<'a> {
    pub(super) fn of(slices: &'a [Arc<Slice>]) -> Gpus<'a> {
        let mut found: Vec<(u32, Key<'a>)> = Vec::new();
        for gpu in slices.iter().rev().flat_map(|s| &s.report.gpus) {
            if !found.iter().any(|f| f.1 == key(gpu)) {
                found.push((gpu.index, key(gpu)));
            }
        }
        found.sort_unstable();
        Gpus {
            keys: found.into_iter().map(|f| f.1).collect(),
        }
    }

    fn index(&self, gpu: &Gpu) -> Option<u32> {
        let found = self.keys.iter().position(|&k| k == key(gpu))?;
        u32::try_from(found).ok()
    }

    pub(super) fn reports(&self, slices: &[Arc<Slice>]) -> Vec<Gpu> {
        (0..)
            .zip(&self.keys)
            .filter_map(|(index, &wanted)| added(slices, index, wanted))
            .collect()
    }

    pub(super) fn launches(&self, slices: &[Arc<Slice>]) -> Vec<Launches> {
        let mut sums: Vec<Launches> = (0..)
            .zip(&self.keys)
            .map(|(gpu, _)| Launches {
                gpu,
                ..Launches::default()
            })
            .collect();
        for slice in slices {
            for one in &slice.launches {
                let gpu = slice.report.gpus.iter().find(|gpu| gpu.index == one.gpu);
                let index = gpu.and_then(|gpu| self.index(gpu));
                if let Some(sum) = index.and_then(|i| sums.get_mut(i as usize)) {
                    sum.call.merge(&one.call);
                    sum.start.merge(&one.start);
                }
            }
        }
        sums
    }

    pub(super) fn points(&self, slice: &Slice) -> Vec<GpuPoint> {
        let gpus = slice.report.gpus.iter();
        let points = gpus.filter_map(|gpu| {
            let launches = slice.launches.iter().find(|l| l.gpu == gpu.index);
            let seen = gpu.window_start < gpu.window_end;
            Some(GpuPoint {
                gpu: self.index(gpu)?,
                busy: gpu.busy.filter(|_| seen),
                idle: gpu.idle.filter(|_| seen),
                cause: gpu.causes.first().map(|row| row.cause),
                launches: launches.map_or(0, |l| l.call.count),
            })
        });
        let mut points: Vec<GpuPoint> = points.collect();
        points.sort_by_key(|point| point.gpu);
        points
    }
}

/// What is known of one device, by slice.
struct Part<'a> {
    slice: &'a Slice,
    gpu: &'a Gpu,
    parts: Option<&'a GpuParts>,
}

fn added(slices: &[Arc<Slice>], index: u32, wanted: Key<'_>) -> Option<Gpu> {
    let parts: Vec<Part<'_>> = slices
        .iter()
        .filter_map(|slice| {
            let at = (slice.report.gpus.iter()).position(|gpu| key(gpu) == wanted)?;
            Some(Part {
                slice,
                gpu: &slice.report.gpus[at],
                parts: slice.parts.gpus.get(at),
            })
        })
        .collect();
    let last = parts.last()?;
    let (from, to) = (slices.first()?.from, slices.last()?.to);
    let known = |time: fn(&Gpu) -> Option<Nanos>| -> Option<Nanos> {
        let known = parts.iter().filter_map(|p| time(p.gpu));
        known.reduce(Nanos::saturating_add)
    };
    let busy = known(|gpu| gpu.busy);
    // They are shares of the time that is known.
    let total = |time: fn(&Gpu) -> Nanos| -> Nanos {
        let told = |p: &&Part<'_>| p.gpu.busy.is_some() || busy.is_none();
        parts.iter().filter(told).map(|p| time(p.gpu)).sum()
    };
    let windows = parts.iter().map(|p| (p.gpu.window_start, p.gpu.window_end));
    let seen = || windows.clone().filter(|(start, end)| start < end);
    let start = seen().map(|w| w.0).min();
    let end = seen().map(|w| w.1).max();
    let nothing = (last.gpu.window_start, last.gpu.window_end);
    let (window_start, window_end) = start.zip(end).unwrap_or(nothing);
    let idle = known(|gpu| gpu.idle);
    let causes = causes(&parts, idle.unwrap_or_default(), to);
    let explained = causes.iter().filter(|row| row.cause.is_explained());
    let explained: Nanos = explained.map(|row| row.total).sum();
    // A gap that reaches into a slice is counted where it began.
    let again = parts.iter().skip(1).filter(|p| p.is_continued()).count() as u64;
    let gaps = gaps(&parts, to);
    let longest_gap = gaps.iter().map(|gap| gap.end.saturating_sub(gap.start));
    let gap_count: u64 = parts.iter().map(|p| p.gpu.gap_count).sum();
    Some(Gpu {
        index,
        name: last.gpu.name.clone(),
        uuid: last.gpu.uuid.clone(),
        window_start,
        window_end,
        busy,
        idle,
        idle_explained: idle.map(|idle| match idle {
            Nanos::ZERO => 1.0,
            some => explained.share_of(some),
        }),
        busy_kernel: total(|gpu| gpu.busy_kernel),
        busy_memcpy: total(|gpu| gpu.busy_memcpy),
        busy_memset: total(|gpu| gpu.busy_memset),
        operations: parts.iter().map(|p| p.gpu.operations).sum(),
        startup: window_start.saturating_sub(from),
        drain: to.saturating_sub(window_end),
        usual_lead: parts.iter().rev().find_map(|p| p.gpu.usual_lead),
        causes,
        gap_count: gap_count.saturating_sub(again),
        longest_gap: longest_gap.max().unwrap_or_default(),
        gaps,
    })
}

impl Part<'_> {
    fn is_continued(&self) -> bool {
        self.parts.is_some_and(|parts| parts.continued.is_some())
    }

    /// The gap that reaches into the slice had this cause before.
    fn continues(&self, cause: Cause) -> bool {
        let causes = self.parts.and_then(|parts| parts.continued.as_ref());
        causes.is_some_and(|causes| causes.contains(&cause))
    }
}

type BlameKey<'a> = (Option<(Pid, Tid)>, &'a str);

#[derive(Default)]
struct CauseSum<'a> {
    total: Nanos,
    gaps: u64,
    by: FxHashMap<BlameKey<'a>, Blame>,
    sentences: FxHashMap<&'a str, Sentence>,
}

/// Most idle time first.
fn causes(parts: &[Part<'_>], idle: Nanos, to: Nanos) -> Vec<CauseRow> {
    let mut sums: FxHashMap<Cause, CauseSum<'_>> = FxHashMap::default();
    for (i, part) in parts.iter().enumerate() {
        for (at, row) in part.gpu.causes.iter().enumerate() {
            let sum = sums.entry(row.cause).or_default();
            let again = i > 0 && part.continues(row.cause);
            sum.total += row.total;
            sum.gaps += row.gaps.saturating_sub(u64::from(again));
            let sentences = part.parts.and_then(|p| p.sentences.get(at));
            sum.add(row, sentences.map_or(&[][..], Vec::as_slice));
        }
    }
    let mut rows: Vec<CauseRow> = (sums.into_iter())
        .map(|(cause, sum)| CauseRow {
            cause,
            total: sum.total,
            share: sum.total.share_of(idle),
            // It began before the window.
            gaps: sum.gaps.max(1),
            evidence: evidence(sum.sentences, to),
            by: blames(sum.by),
        })
        .collect();
    rows.sort_by_key(|row| (Reverse(row.total), row.cause));
    rows
}

impl<'a> CauseSum<'a> {
    fn add(&mut self, row: &'a CauseRow, sentences: &'a [Sentence]) {
        for blame in &row.by {
            let who = blame.who.as_ref().map(|who| (who.pid, who.tid));
            match self.by.get_mut(&(who, blame.what.as_str())) {
                Some(sum) => {
                    sum.total += blame.total;
                    if sum.who != blame.who {
                        sum.who.clone_from(&blame.who);
                    }
                }
                None => {
                    self.by.insert((who, &blame.what), blame.clone());
                }
            }
        }
        for sentence in sentences {
            match self.sentences.get_mut(sentence.claim.as_str()) {
                Some(sum) => sum.join(sentence),
                None => {
                    self.sentences.insert(&sentence.claim, sentence.clone());
                }
            }
        }
    }
}

/// Most time first.
fn blames(by: FxHashMap<BlameKey<'_>, Blame>) -> Vec<Blame> {
    let mut by: Vec<Blame> = by.into_values().collect();
    by.sort_by(|a, b| {
        let is_others = |b: &Blame| b.who.is_none() && b.what == OTHERS;
        let id = |b: &Blame| b.who.as_ref().map(|w| (w.pid, w.tid));
        (is_others(a).cmp(&is_others(b)))
            .then_with(|| b.total.cmp(&a.total))
            .then_with(|| id(a).cmp(&id(b)))
            .then_with(|| a.what.cmp(&b.what))
    });
    shorten(by, MOST_ROWS, |_| OTHERS.to_string())
}

fn evidence(sentences: FxHashMap<&str, Sentence>, to: Nanos) -> Vec<String> {
    let mut sentences: Vec<Sentence> = sentences.into_values().collect();
    sentences.sort_by(|a, b| {
        let order = |s: &Sentence| (Reverse(s.amount.total), s.amount.at);
        (order(a).cmp(&order(b))).then_with(|| a.claim.cmp(&b.claim))
    });
    told(&sentences, When::Ago(to))
}

/// The longest first. One that had not ended when a slice did, is told of in the next one again.
fn gaps(parts: &[Part<'_>], to: Nanos) -> Vec<Gap> {
    let mut seen: BTreeSet<Nanos> = BTreeSet::new();
    let mut gaps: Vec<&Gap> = Vec::new();
    for part in parts.iter().rev() {
        for gap in &part.gpu.gaps {
            let end = part.slice.to;
            let goes_on = gap.next.is_none() && gap.end == end && end < to;
            if !goes_on && seen.insert(gap.start) {
                gaps.push(gap);
            }
        }
    }
    gaps.sort_by_key(|gap| (Reverse(gap.end.saturating_sub(gap.start)), gap.start));
    gaps.truncate(GAPS);
    gaps.into_iter().cloned().collect()
}
