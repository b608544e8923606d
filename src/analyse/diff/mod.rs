//! What changed from one recording to another, and how sure that is.
//!
//! Two recordings never give the same figures. [`noise`] says how far each figure would be off if it were measured again;
//! what differs by more than both can explain has changed, and nothing else is said to have. The data goes
//! in as two [`Side`]s, the answer is plain data: `present::diff` words it.
#![forbid(unsafe_code)]

pub mod noise;
mod remarks;
mod side;
mod step;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::analyse::cause::Cause;
use crate::analyse::report::Blame;

pub use remarks::{remarks, About};
pub use side::{side, CauseSide, GpuSide, Side, Timed};

use noise::{precise, ratio, Estimate, Series};

/// Standard errors that a change must exceed, for many figures are compared. Simulated, one that has not changed is said to
/// have once in some 10,000 times; gdiag-diff(1) has the rest.
const SURE: f64 = 4.0;

/// Runs of the same differ in what stays as it is from start to end of each: where memory lies, how warm the machine is.
/// No single recording shows that. So a bound is never below this, in shares of the time…
const LEAST_SHARE: f64 = 0.01;

/// …and in parts of a time.
const LEAST_PART: f64 = 0.03;

/// Operations or steps without which no noise is known.
const LEAST_OPERATIONS: u64 = 64;
const LEAST_STEPS: u64 = 16;

/// With so many times the operations it is not the same step: one side has a layer for it, or an epoch.
const OTHER_STEP: u64 = 4;

/// A figure of both recordings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figure {
    /// `None`: it is not known, or there is no such thing on that side.
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// By how much they may differ without a change. `None`: not known.
    pub noise: Option<f64>,
}

impl Figure {
    pub fn change(&self) -> Option<f64> {
        Some(self.b? - self.a?)
    }

    /// `None`: cannot be told.
    pub fn changed(&self) -> Option<bool> {
        Some(self.change()?.abs() > self.noise?)
    }

    fn has_changed(&self) -> bool {
        self.changed() == Some(true)
    }

    /// Of shares, `least` is a share; of times, a part of the greater one.
    fn of(a: Estimate, b: Estimate, is_known: bool, least: impl Fn(f64) -> f64) -> Figure {
        let errors = a.error.zip(b.error).filter(|_| is_known);
        let greater = a.value.unwrap_or(0.0).max(b.value.unwrap_or(0.0));
        Figure {
            a: a.value,
            b: b.value,
            noise: errors.map(|(a, b)| (SURE * a.hypot(b)).max(least(greater))),
        }
    }

    fn share(a: Estimate, b: Estimate, is_known: bool) -> Figure {
        Figure::of(a, b, is_known, |_| LEAST_SHARE)
    }

    fn time(a: Estimate, b: Estimate, is_known: bool) -> Figure {
        Figure::of(a, b, is_known, |greater| LEAST_PART * greater)
    }
}

/// The answer.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// Those that both recordings have.
    pub gpus: Vec<GpuDiff>,
    /// Mean time in nanoseconds: what has changed first, by what it costs.
    pub kernels: Vec<NamedDiff>,
    pub calls: Vec<NamedDiff>,
}

#[derive(Clone, Debug)]
pub struct GpuDiff {
    pub index: u32,
    pub name_a: String,
    pub name_b: String,
    /// Nanoseconds in which busy and idle are told.
    pub window_a: u64,
    pub window_b: u64,
    pub operations_a: u64,
    pub operations_b: u64,
    /// Shares of the window.
    pub idle: Figure,
    pub busy: Figure,
    /// Nanoseconds for a thousand operations.
    pub work: Work,
    /// The same for a step, where both sides have steps.
    pub step: Option<Step>,
    /// Shares of the window: what has grown most first, then what has shrunk, then the rest by size.
    pub causes: Vec<CauseDiff>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub time: Figure,
    pub idle: Figure,
    pub busy: Figure,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub work: Work,
    pub operations_a: u64,
    pub operations_b: u64,
}

#[derive(Clone, Debug)]
pub struct CauseDiff {
    pub cause: Cause,
    pub share: Figure,
    /// Who has most of it, on the side where it is greater.
    pub by: Option<Blame>,
}

#[derive(Clone, Debug)]
pub struct NamedDiff {
    pub name: String,
    pub mean: Figure,
    pub count_a: u64,
    pub count_b: u64,
    pub total_a: u64,
    pub total_b: u64,
}

impl Diff {
    /// `None`: of no GPU it could be told.
    pub fn changed(&self) -> Option<bool> {
        let mut named = self.kernels.iter().chain(&self.calls);
        if named.any(|row| row.mean.has_changed()) {
            return Some(true);
        }
        let gpus = self.gpus.iter().filter_map(GpuDiff::changed);
        gpus.reduce(|a, b| a || b)
    }
}

impl GpuDiff {
    /// `None`: neither its idle time nor its pace can be told, nor has anything else changed.
    pub fn changed(&self) -> Option<bool> {
        if self.figures().iter().any(Figure::has_changed) {
            return Some(true);
        }
        self.idle.changed().or(self.work.time.changed())
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![self.idle, self.busy];
        figures.extend([self.work.time, self.work.idle, self.work.busy]);
        if let Some(step) = &self.step {
            figures.extend([step.work.time, step.work.idle, step.work.busy]);
        }
        figures.extend(self.causes.iter().map(|cause| cause.share));
        figures
    }
}

/// From `a` to `b`.
pub fn compare(a: &Side, b: &Side) -> Diff {
    let gpus = a.gpus.iter().filter_map(|left| {
        let right = b.gpus.iter().find(|right| right.index == left.index)?;
        Some(compare_gpus(left, right))
    });
    Diff {
        gpus: gpus.collect(),
        kernels: compare_named(&a.kernels, &b.kernels),
        calls: compare_named(&a.calls, &b.calls),
    }
}

fn compare_gpus(a: &GpuSide, b: &GpuSide) -> GpuDiff {
    let is_known = has_enough(a) && has_enough(b);
    let share = |x: &Series, y: &Series| Figure::share(share_of(a, x), share_of(b, y), is_known);
    let (busy_a, busy_b) = (busy(a), busy(b));
    let work = |scale_a: f64, scale_b: f64| {
        let figure = |x: &Series, y: &Series, needs_idle: bool| {
            let of = |side: &GpuSide, series: &Series, scale: f64| {
                if needs_idle && !side.is_told {
                    return Estimate::default();
                }
                scaled(ratio(series, &side.operations), scale)
            };
            Figure::time(of(a, x, scale_a), of(b, y, scale_b), is_known)
        };
        let time = figure(&a.time, &b.time, false);
        // What is a part of it has no less noise than the whole.
        let part = |figure: Figure| {
            let whole = time.a.unwrap_or(0.0).max(time.b.unwrap_or(0.0));
            Figure {
                noise: figure.noise.map(|noise| noise.max(LEAST_SHARE * whole)),
                ..figure
            }
        };
        Work {
            time,
            idle: part(figure(&a.idle, &b.idle, true)),
            busy: part(figure(&busy_a, &busy_b, true)),
        }
    };
    let steps = a.step.zip(b.step);
    let alike = steps.filter(|&(a, b)| a.max(b) / a.min(b).max(1) < OTHER_STEP);
    let step = alike.map(|(operations_a, operations_b)| Step {
        work: work(precise(operations_a), precise(operations_b)),
        operations_a,
        operations_b,
    });
    GpuDiff {
        index: a.index,
        name_a: a.name.clone(),
        name_b: b.name.clone(),
        window_a: a.time.total(),
        window_b: b.time.total(),
        operations_a: a.operations.total(),
        operations_b: b.operations.total(),
        idle: share(&a.idle, &b.idle),
        busy: share(&busy_a, &busy_b),
        work: work(1_000.0, 1_000.0),
        step,
        causes: compare_causes(a, b, share),
    }
}

fn has_enough(side: &GpuSide) -> bool {
    let operations = side.operations.total();
    let steps = side
        .step
        .map_or(LEAST_STEPS, |step| operations / step.max(1));
    operations >= LEAST_OPERATIONS && steps >= LEAST_STEPS
}

fn share_of(side: &GpuSide, part: &Series) -> Estimate {
    if side.is_told {
        ratio(part, &side.time)
    } else {
        Estimate::default()
    }
}

fn scaled(estimate: Estimate, scale: f64) -> Estimate {
    Estimate {
        value: estimate.value.map(|value| value * scale),
        error: estimate.error.map(|error| error * scale),
    }
}

fn busy(side: &GpuSide) -> Series {
    let mut busy = side.time.clone();
    for (busy, idle) in busy.0.iter_mut().zip(side.idle.0) {
        *busy = busy.saturating_sub(idle);
    }
    busy
}

fn compare_causes(
    a: &GpuSide,
    b: &GpuSide,
    share: impl Fn(&Series, &Series) -> Figure,
) -> Vec<CauseDiff> {
    let none = Series::default();
    let mut rows: Vec<CauseDiff> = Cause::ALL
        .iter()
        .filter_map(|&cause| {
            let find = |side: &'_ GpuSide| side.causes.iter().position(|c| c.cause == cause);
            let left = find(a).and_then(|i| a.causes.get(i));
            let right = find(b).and_then(|i| b.causes.get(i));
            if left.is_none() && right.is_none() {
                return None;
            }
            let time = |side: Option<&CauseSide>| side.map_or(none.clone(), |s| s.time.clone());
            let share = share(&time(left), &time(right));
            let greater = if share.change().is_some_and(|change| change < 0.0) {
                left
            } else {
                right.or(left)
            };
            Some(CauseDiff {
                cause,
                share,
                by: greater.and_then(|side| side.by.clone()),
            })
        })
        .collect();
    rows.sort_by(|x, y| {
        let order = |row: &CauseDiff| {
            let change = row.share.change().unwrap_or(0.0);
            let size = row.share.a.unwrap_or(0.0).max(row.share.b.unwrap_or(0.0));
            match (row.share.has_changed(), change > 0.0) {
                (true, true) => (0, -change),
                (true, false) => (1, change),
                (false, _) => (2, -size),
            }
        };
        let (x, y) = (order(x), order(y));
        x.0.cmp(&y.0).then(x.1.total_cmp(&y.1))
    });
    rows
}

fn compare_named(a: &BTreeMap<String, Timed>, b: &BTreeMap<String, Timed>) -> Vec<NamedDiff> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let none = Timed::default();
    let mut rows: Vec<NamedDiff> = names
        .into_iter()
        .map(|name| {
            let (a, b) = (a.get(name).unwrap_or(&none), b.get(name).unwrap_or(&none));
            let mean = |side: &Timed| ratio(&side.time, &side.count);
            NamedDiff {
                name: name.clone(),
                mean: Figure::time(mean(a), mean(b), true),
                count_a: a.count.total(),
                count_b: b.count.total(),
                total_a: a.time.total(),
                total_b: b.time.total(),
            }
        })
        .collect();
    rows.sort_by(|x, y| {
        let (x, y) = (x.weight(), y.weight());
        y.0.cmp(&x.0).then(y.1.total_cmp(&x.1))
    });
    rows
}

impl NamedDiff {
    /// Whether it has changed, come or gone; then what that costs, else what it takes.
    fn weight(&self) -> (bool, f64) {
        let total = precise(self.total_a.max(self.total_b));
        match self.mean.change() {
            None => (true, total),
            Some(change) if self.mean.has_changed() => {
                let count = precise(self.count_a.max(self.count_b));
                (true, change.abs() * count)
            }
            Some(_) => (false, total),
        }
    }
}
