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
