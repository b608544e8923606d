//! One side of a comparison: what a recording says, block by block.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::analyse::cause::Cause;
use crate::analyse::diff::noise::{Cut, Series};
use crate::analyse::diff::step;
use crate::analyse::quality::Trust;
use crate::analyse::report::{Blame, Quality};
use crate::analyse::scope::Scope;
use crate::analyse::{device_usage, each_gap, explainer, partition::Engine, report, Options};
use crate::event::OpKind;
use crate::model::api::{self, Class};
use crate::model::fxhash::FxHashMap;
use crate::model::gpu::Gpu;
use crate::model::Timeline;
use crate::units::Nanos;

/// What is compared of a recording.
#[derive(Clone, Debug, Default)]
pub struct Side {
    pub gpus: Vec<GpuSide>,
    /// By name.
    pub kernels: BTreeMap<String, Timed>,
    pub calls: BTreeMap<String, Timed>,
    pub quality: Quality,
}

#[derive(Clone, Debug, Default)]
pub struct GpuSide {
    pub index: u32,
    pub name: String,
    /// Empty: not known.
    pub uuid: String,
    /// Busy and idle time can be told.
    pub is_told: bool,
    /// Lengths of the blocks.
    pub time: Series,
    pub idle: Series,
    pub causes: Vec<CauseSide>,
    /// Operations started.
    pub operations: Series,
    /// Operations in a step, where there are steps.
    pub step: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct CauseSide {
    pub cause: Cause,
    pub time: Series,
    /// Most of it.
    pub by: Option<Blame>,
}

/// How often, and how long altogether.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    pub count: Series,
    pub time: Series,
}

impl Timed {
    fn add(&mut self, block: usize, len: Nanos) {
        self.count.add(block, 1);
        self.time.add(block, len.0);
    }

    fn join(&mut self, other: &Timed) {
        self.count.join(&other.count);
        self.time.join(&other.time);
    }
}

/// Reads off a finished timeline what can be compared.
pub fn side(t: &Timeline, gpu: Option<u32>, min_gap: Nanos) -> Side {
    let options = Options {
        gpu,
        min_gap,
        gaps: Some(0),
    };
    let whole = report(t, &options);
    let engine = Engine::new(t);
    let trust = Trust::of(t, Scope::WHOLE);
    let mut side = Side::default();
    for told in &whole.gpus {
        let Some(gpu) = t.gpu().devices().get(told.index as usize) else {
            continue;
        };
        if gpu.ops.is_empty() {
            continue;
        }
        let ((from, to), usage) = device_usage(t, gpu, &trust, Scope::WHOLE);
        let cut = Cut { from, to };
        let mut idle = Series::default();
        let mut causes = vec![Series::default(); Cause::ALL.len()];
        let explainer = explainer(&engine, gpu, &usage, min_gap);
        each_gap(&explainer, &trust, &usage, |_, pieces| {
            for piece in pieces {
                cut.spread(&mut causes[piece.cause as usize], piece.start, piece.end);
                cut.spread(&mut idle, piece.start, piece.end);
            }
        });
        let mut operations = Series::default();
        for op in gpu.ops.iter().filter(|op| !op.outlasts_followers()) {
            operations.add(cut.block(op.start), 1);
        }
        side.gpus.push(GpuSide {
            index: told.index,
            name: told.name.clone(),
            uuid: told.uuid.clone(),
            is_told: told.idle.is_some(),
            time: cut.lengths(),
            idle,
            causes: (told.causes.iter())
                .map(|row| CauseSide {
                    cause: row.cause,
                    time: causes[row.cause as usize].clone(),
                    by: row.by.first().cloned(),
                })
                .collect(),
            operations,
            step: step_of(t, gpu),
        });
        kernels(t, gpu, cut, &mut side.kernels);
    }
    side.calls = calls(t, &whole.gpus);
    side.quality = whole.quality;
    side
}

fn kernels(t: &Timeline, gpu: &Gpu, cut: Cut, into: &mut BTreeMap<String, Timed>) {
    let mut rows = FxHashMap::default();
    for op in gpu.ops.iter().filter(|op| !op.outlasts_followers()) {
        if let OpKind::Kernel { name } = op.kind() {
            let row: &mut Timed = rows.entry(name).or_default();
            row.add(cut.block(op.start), op.end.saturating_sub(op.start));
        }
    }
    for (name, row) in rows {
        let sum = into.entry(t.name(name).to_string()).or_default();
        sum.join(&row);
    }
}

/// Calls have no device: their blocks are those of the time in which any of them was used.
fn calls(t: &Timeline, gpus: &[report::Gpu]) -> BTreeMap<String, Timed> {
    let used = || gpus.iter().filter(|gpu| gpu.operations > 0);
    let (from, to) = (
        used().map(|gpu| gpu.window_start).min(),
        used().map(|gpu| gpu.window_end).max(),
    );
    let (from, to) = from.zip(to).unwrap_or((t.start(), t.end()));
    let cut = Cut { from, to };
    let mut rows = FxHashMap::default();
    for pid in t.gpu().calling_pids() {
        for index in t.gpu().calls_of(pid) {
            let call = t.gpu().call_at(index);
            // Those of start-up have no part in what goes on.
            if call.start < from || call.start > to {
                continue;
            }
            let row: &mut Timed = rows.entry(call.api()).or_default();
            row.add(cut.block(call.start), call.end.saturating_sub(call.start));
        }
    }
    let mut calls: BTreeMap<String, Timed> = BTreeMap::new();
    for (api, row) in rows {
        let sum = calls.entry(api::name(api).into_owned()).or_default();
        sum.join(&row);
    }
    calls
}

/// What an operation does, as far as it takes to see a pattern. The sizes of copies vary.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Does {
    Kernel(u32),
    Copy(crate::event::CopyKind),
    Set,
    Graph,
}

fn step_of(t: &Timeline, gpu: &Gpu) -> Option<u64> {
    // From the middle: a program has to warm up.
    let skip = gpu.ops.len().saturating_sub(step::MOST) / 2;
    let middle = gpu.ops.iter().skip(skip).take(step::MOST);
    let does: Vec<Does> = middle
        .map(|op| match op.kind() {
            OpKind::Kernel { name } => Does::Kernel(name.0),
            OpKind::Memcpy { kind, .. } => Does::Copy(kind),
            OpKind::Memset { .. } => Does::Set,
            OpKind::Graph => Does::Graph,
        })
        .collect();
    let mut waits: Vec<Nanos> = Vec::new();
    for (pid, _) in &gpu.users {
        let calls = t.gpu().calls_of(*pid).map(|index| t.gpu().call_at(index));
        let outer = calls.filter(|c| c.class == Class::Sync && c.outer().is_none() && !c.failed());
        waits.extend(outer.map(|call| call.end));
    }
    waits.sort_unstable();
    // Operations are by start.
    let before = |at: &Nanos| gpu.ops.partition_point(|op| op.start < *at);
    let waits: Vec<usize> = waits.iter().map(before).collect();
    step::length(&does, &waits)
}
