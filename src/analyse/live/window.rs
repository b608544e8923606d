//! Slices, one after another, as one.
//!
//! Everything is added up by what it is of: a card by its uuid, a thread by its ids, a kernel by its name. What is not
//! known of a slice is neither busy nor idle: of a device, busy and idle time together are what is known, and what they
//! leave of the window is not.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::sync::Arc;

use super::gpus::Gpus;
use super::{CudaTime, Launches, Slice, StackTime};
use crate::analyse::cause::Cause;
use crate::analyse::host_side::{self, PAUSES};
use crate::analyse::quality::{self, Counts};
use crate::analyse::report::{Call, Caller, HostSide, Kernel, Quality, Report, Thread};
use crate::analyse::{each_once, sched, syscalls, tables};
use crate::event::{Pid, Tid};
use crate::fxhash::FxHashMap;
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

/// Stacks of a thread that are kept.
const STACKS: usize = 20;

impl Window {
    /// Nothing has been seen yet.
    pub fn empty(at: Nanos) -> Window {
        Window {
            from: at,
            to: at,
            report: Report::default(),
            sched: sched::Summary {
                start: at,
                end: at,
                ..sched::Summary::default()
            },
            calls: syscalls::Summary::empty(syscalls::Measure::Waits, at),
            launches: Vec::new(),
            cuda: Vec::new(),
            stacks: Vec::new(),
            events: 0,
            lost: 0,
            points: Vec::new(),
        }
    }

    /// Adds up slices that follow each other.
    pub fn of(slices: &[Arc<Slice>]) -> Window {
        let (Some(first), Some(last)) = (slices.first(), slices.last()) else {
            return Window::empty(Nanos::ZERO);
        };
        let gpus = Gpus::of(slices);
        let events = slices.iter().map(|s| s.events).sum();
        Window {
            from: first.from,
            to: last.to,
            report: Report {
                quality: Quality {
                    events,
                    ..quality(slices)
                },
                gpus: gpus.reports(slices),
                host_sides: host_sides(slices),
                threads: threads(slices),
                kernels: kernels(slices),
                calls: calls(slices),
            },
            sched: sched::join::join(slices.iter().map(|s| &s.sched)),
            calls: syscalls::join::join(slices.iter().map(|s| &s.calls)),
            launches: gpus.launches(slices),
            cuda: cuda(slices),
            stacks: stacks(slices),
            events,
            lost: (slices.iter().map(|s| s.lost)).fold(0, u64::saturating_add),
            points: slices.iter().map(|s| point(&gpus, s)).collect(),
        }
    }
}

/// Losses are added up; sentences come once, with the sums, and what was said last comes first.
fn quality(slices: &[Arc<Slice>]) -> Quality {
    let mut sum = Quality::default();
    let mut counts = Counts::default();
    for slice in slices {
        let q = &slice.report.quality;
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut sum.bpf_lost, q.bpf_lost);
        add(&mut sum.shim_lost, q.shim_lost);
        add(&mut sum.cupti_lost, q.cupti_lost);
        add(&mut sum.invalid_gpu_records, q.invalid_gpu_records);
        add(&mut sum.unmatched_gpu_records, q.unmatched_gpu_records);
        sum.max_clock_error = sum.max_clock_error.max(q.max_clock_error);
        counts.add(&slice.parts.counts);
    }
    sum.gpu_coverage = counts.coverage();
    sum.warnings = quality::counted(&sum, &counts);
    let said = slices.iter().rev().flat_map(|s| &s.parts.said);
    sum.warnings.extend(each_once(said));
    sum
}

fn threads(slices: &[Arc<Slice>]) -> Vec<Thread> {
    let mut rows: FxHashMap<(Pid, Tid), Thread> = FxHashMap::default();
    for thread in slices.iter().flat_map(|s| &s.report.threads) {
        let id = (thread.who.pid, thread.who.tid);
        let Some(row) = rows.get_mut(&id) else {
            rows.insert(id, thread.clone());
            continue;
        };
        if row.who.comm != thread.who.comm {
            row.who.comm.clone_from(&thread.who.comm);
        }
        row.dispatcher |= thread.dispatcher;
        row.run += thread.run;
        row.runq += thread.runq;
        row.blocked += thread.blocked;
        row.launches += thread.launches;
    }
    let mut rows: Vec<Thread> = rows.into_values().collect();
    tables::sort_threads(&mut rows);
    rows
}

fn kernels(slices: &[Arc<Slice>]) -> Vec<Kernel> {
    let mut rows: FxHashMap<&str, Kernel> = FxHashMap::default();
    for kernel in slices.iter().flat_map(|s| &s.report.kernels) {
        let Some(row) = rows.get_mut(kernel.name.as_str()) else {
            rows.insert(&kernel.name, kernel.clone());
            continue;
        };
        row.count += kernel.count;
        row.total = row.total.saturating_add(kernel.total);
        row.min = row.min.min(kernel.min);
        row.max = row.max.max(kernel.max);
    }
    let mut rows: Vec<Kernel> = rows.into_values().collect();
    tables::sort_kernels(&mut rows);
    rows
}

fn calls(slices: &[Arc<Slice>]) -> Vec<Call> {
    let mut rows: FxHashMap<&str, Call> = FxHashMap::default();
    for call in slices.iter().flat_map(|s| &s.report.calls) {
        let Some(row) = rows.get_mut(call.name.as_str()) else {
            rows.insert(&call.name, call.clone());
            continue;
        };
        row.count += call.count;
        row.total = row.total.saturating_add(call.total);
        row.max = row.max.max(call.max);
        tables::add_known(&mut row.idle_overlap, call.idle_overlap);
    }
    let mut rows: Vec<Call> = rows.into_values().collect();
    tables::sort_calls(&mut rows);
    rows
}

fn host_sides(slices: &[Arc<Slice>]) -> Vec<HostSide> {
    let mut sides: FxHashMap<Pid, HostSide> = FxHashMap::default();
    let newest = slices.len().saturating_sub(1);
    for (i, slice) in slices.iter().enumerate() {
        for side in &slice.report.host_sides {
            let sum = sides.entry(side.pid).or_insert_with(|| HostSide {
                watched: Nanos::ZERO,
                callers: Vec::new(),
                pauses: Vec::new(),
                ..side.clone()
            });
            sum.comm.clone_from(&side.comm);
            sum.reason.clone_from(&side.reason);
            sum.from = sum.from.min(side.from);
            sum.watched += side.watched;
            for caller in &side.callers {
                add_caller(&mut sum.callers, caller);
            }
            // One that goes on is told of again in the next slice.
            let goes_on = |open: bool, end: Nanos| open && end == slice.to && i < newest;
            let known = side.pauses.iter().filter(|p| !goes_on(p.open, p.end));
            sum.pauses.extend(known.cloned());
        }
    }
    let mut sides: Vec<HostSide> = sides.into_values().collect();
    for side in &mut sides {
        side.callers.sort_by_key(host_side::rank);
        (side.pauses).sort_by_key(|p| host_side::length(p.start, p.end));
        side.pauses.truncate(PAUSES);
    }
    host_side::sort_sides(&mut sides);
    sides
}

fn add_caller(callers: &mut Vec<Caller>, more: &Caller) {
    let id = |c: &Caller| (c.who.pid, c.who.tid);
    let Some(sum) = callers.iter_mut().find(|c| id(c) == id(more)) else {
        return callers.push(more.clone());
    };
    sum.who.comm.clone_from(&more.who.comm);
    sum.calls += more.calls;
    sum.launches += more.launches;
    let (sum, more) = (&mut sum.times, &more.times);
    sum.launch += more.launch;
    sum.copy += more.copy;
    sum.sync += more.sync;
    sum.memory += more.memory;
    sum.other += more.other;
}

/// By ids.
fn cuda(slices: &[Arc<Slice>]) -> Vec<CudaTime> {
    let mut rows: FxHashMap<(Pid, Tid), CudaTime> = FxHashMap::default();
    for one in slices.iter().flat_map(|s| &s.cuda) {
        let row = rows.entry((one.pid, one.tid)).or_insert(CudaTime {
            time: Nanos::ZERO,
            launches: 0,
            ..*one
        });
        row.time += one.time;
        row.launches += one.launches;
    }
    let mut rows: Vec<CudaTime> = rows.into_values().collect();
    rows.sort_by_key(|row| (row.pid, row.tid));
    rows
}

/// Most time first.
fn stacks(slices: &[Arc<Slice>]) -> Vec<StackTime> {
    let mut rows: FxHashMap<(Pid, Tid, bool, &[String]), Nanos> = FxHashMap::default();
    for stack in slices.iter().flat_map(|s| &s.stacks) {
        let place = (stack.pid, stack.tid, stack.running, &stack.frames[..]);
        *rows.entry(place).or_default() += stack.time;
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_unstable_by_key(|&(place, time)| (Reverse(time), place));
    let mut of_thread: FxHashMap<(Pid, Tid), usize> = FxHashMap::default();
    rows.retain(|&((pid, tid, ..), _)| {
        let count = of_thread.entry((pid, tid)).or_default();
        *count += 1;
        *count <= STACKS
    });
    let mut rows: Vec<StackTime> = rows
        .into_iter()
        .map(|((pid, tid, running, frames), time)| StackTime {
            pid,
            tid,
            running,
            frames: frames.to_vec(),
            time,
        })
        .collect();
    super::stacks::sort(&mut rows);
    rows
}

fn point(gpus: &Gpus<'_>, slice: &Slice) -> Point {
    Point {
        from: slice.from,
        to: slice.to,
        gpus: gpus.points(slice),
        cpu: busy_cpus(slice),
        events: slice.events,
        lost: slice.lost,
    }
}

/// `None` where not everybody was seen. A thread that runs without a break leaves no trace on its CPU, so threads are added
/// up rather than CPUs.
fn busy_cpus(slice: &Slice) -> Option<f64> {
    let time = slice.to.saturating_sub(slice.from);
    let all = Nanos(time.0.saturating_mul(u64::from(slice.parts.cpus?)));
    let ran = slice.sched.threads.iter().map(|thread| thread.run);
    let ran = ran.fold(Nanos::ZERO, Nanos::saturating_add);
    (all > Nanos::ZERO).then(|| ran.min(all).share_of(all))
}
