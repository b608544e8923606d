//! Slices, one after another, as one.

use super::{CudaTime, Launches, StackTime};
use crate::analyse::cause::Cause;
use crate::analyse::report::Report;
use crate::analyse::{sched, syscalls};
use crate::units::Nanos;

/// What happened in `[from, to)`, added up.
#[derive(Clone, Debug)]
pub struct Window {
    pub from: Nanos,
    pub to: Nanos,
    pub report: Report,
    pub sched: sched::Summary,
    pub calls: syscalls::Summary,
    pub launches: Vec<Launches>,
    pub cuda: Vec<CudaTime>,
    pub stacks: Vec<StackTime>,
    pub events: u64,
    pub lost: u64,
    /// A point for each slice, oldest first: what sparklines are drawn from.
    pub points: Vec<Point>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub from: Nanos,
    pub to: Nanos,
    pub gpus: Vec<GpuPoint>,
    /// Share of all CPUs that were busy, 0 to 1; `None` when that is not known.
    pub cpu: Option<f64>,
    pub events: u64,
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuPoint {
    pub gpu: u32,
    /// `None`: not known of this slice.
    pub busy: Option<Nanos>,
    pub idle: Option<Nanos>,
    /// Of most idle time.
    pub cause: Option<Cause>,
    pub launches: u64,
}

impl Window {
    pub fn of(slices: &[std::sync::Arc<super::Slice>]) -> Window {
        let last = slices.last();
        Window {
            from: slices.first().map(|s| s.from).unwrap_or_default(),
            to: last.map(|s| s.to).unwrap_or_default(),
            report: last.map(|s| s.report.clone()).unwrap_or_default(),
            sched: last.map(|s| s.sched.clone()).unwrap_or_default(),
            calls: last.map_or(
                syscalls::Summary {
                    measure: syscalls::Measure::Waits,
                    start: Nanos::ZERO,
                    end: Nanos::ZERO,
                    threads: vec![],
                    gpu: false,
                    notes: vec![],
                },
                |s| s.calls.clone(),
            ),
            launches: last.map(|s| s.launches.clone()).unwrap_or_default(),
            cuda: last.map(|s| s.cuda.clone()).unwrap_or_default(),
            stacks: last.map(|s| s.stacks.clone()).unwrap_or_default(),
            events: slices.iter().map(|s| s.events).sum(),
            lost: 0,
            points: vec![],
        }
    }
}
