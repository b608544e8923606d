//! The system calls of the targets, and their calls of the CUDA API.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::HashMap;

use super::cell::{self, grows, left, right, Field};

use crate::analyse::report;
use crate::analyse::syscalls::{Call, Measure, Thread};
use crate::event::{Pid, Tid};
use crate::histogram::Histogram;
use crate::present::syscalls::errno;
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::{Model, Source};
use crate::present::top::screen::{Block, Screen};
use crate::present::top::view::{Open, View};
use crate::units::{Count, Nanos};

/// CUDA calls that are shown above the system calls, on terminals that are not lower than this.
const CUDA_CALLS: usize = 4;
const LEAST_HEIGHT: u16 = 24;
/// Kinds of errors that are named.
const ERRORS: usize = 3;

/// System calls; above them, where there is room, the calls of CUDA that matter most.
pub fn screen(model: &Model, view: &View) -> Screen {
    let mut cuda = cuda(model);
    cuda.rows.truncate(CUDA_CALLS);
    let above = if cuda.rows.is_empty() || view.size.1 < LEAST_HEIGHT {
        Vec::new()
    } else {
        vec![
            Block::Heading("CUDA calls".to_string()),
            Block::Table(cuda),
            Block::Blank,
        ]
    };
    let list = list(model);
    Screen::Table { above, list }
}

/// System calls by name. Those in which threads that launch let a GPU idle come first, then those with most time.
pub fn list(model: &Model) -> List {
    let calls = &model.window.calls;
    let mut total = calls.total();
    total.sort_by_key(|call| Reverse(call.dispatcher_idle.unwrap_or_default()));
    let mut threads: HashMap<&str, usize> = HashMap::new();
    for call in calls.threads.iter().flat_map(|thread| &thread.calls) {
        *threads.entry(&call.name).or_default() += 1;
    }
    let mut fields = vec![left("CALL", 0, |call: &Call| {
        Cell::text(call.name.as_str()).tone(Tone::Name)
    })];
    fields.extend(figures(model));
    fields.push(right("THREADS", 10, move |call: &Call| {
        let threads = threads.get(call.name.as_str()).copied();
        cell::count(threads.unwrap_or_default() as u64)
    }));
    let mut list = cell::list(title(model), fields, &total, |call| {
        (call.name.clone(), Some(Open::Call(call.name.clone())))
    });
    list.notes.extend(what_is_missing(model));
    list.notes.extend(calls.notes.iter().cloned());
    list
}

pub(super) fn title(model: &Model) -> String {
    let what = match model.window.calls.measure {
        Measure::Calls => "System calls",
        Measure::Waits => "System calls that waited",
    };
    match model.source {
        Source::Targets => format!("{what}, of the targets"),
        Source::Machine | Source::Recording { .. } => what.to_string(),
    }
}

fn what_is_missing(model: &Model) -> Option<String> {
    let text = match (model.window.calls.measure, &model.source) {
        (Measure::Calls, _) => return None,
        (Measure::Waits, Source::Recording { .. }) => {
            "the recording has only calls that waited, and the time that they waited"
        }
        (Measure::Waits, Source::Targets | Source::Machine) if model.status.counts_calls => {
            "all calls are counted from now on; those of this window are only the ones that waited"
        }
        (Measure::Waits, Source::Targets | Source::Machine) => {
            "only calls that waited, and the time that they waited; c counts all"
        }
    };
    Some(text.to_string())
}

/// The part of the window that the calls are of.
pub(super) fn told_of(model: &Model) -> Nanos {
    let (window, calls) = (&model.window, &model.window.calls);
    let analysed = cell::analysed(window);
    // Sums may end a little outside of the slices.
    match calls.start.saturating_sub(window.from) {
        Nanos::ZERO => analysed,
        left_out => analysed.saturating_sub(left_out),
    }
}

/// What is told of a call, whoever made it. Errors are only seen where all calls are counted, idle time where
/// there are GPU records.
fn figures<'a>(model: &Model) -> Vec<Field<'a, Call>> {
    let window = told_of(model);
    let all = match model.window.calls.measure {
        Measure::Calls => true,
        Measure::Waits => false,
    };
    let some = |call: &Call, time| (call.times.count > 0).then_some(time);
    let mut fields = vec![
        right("TIME", 1, move |call: &Call| {
            cell::time(some(call, call.times.total))
        }),
        right("CALLS/S", 2, move |call: &Call| {
            cell::rate(call.times.count, window)
        }),
        right("AVG", 4, |call: &Call| cell::time(call.times.average())),
        right("P99", 5, |call: &Call| {
            cell::time(call.times.percentile(0.99))
        }),
        right("MAX", 3, |call: &Call| cell::longest(&call.times)),
        right("ERRORS", 8, move |call: &Call| match all {
            true => cell::count(call.errors).tone(match call.errors {
                0 => Tone::Dim,
                _ => Tone::Warn,
            }),
            false => Cell::none(),
        }),
    ];
    if model.window.calls.gpu {
        fields.extend([
            right("GPU IDLE", 6, |call: &Call| cell::time(call.idle_overlap)),
            right("BY DISPATCHERS", 9, |call: &Call| {
                cell::time(call.dispatcher_idle)
            }),
        ]);
    }
    fields.push(right("OPEN FOR", 7, open_for));
    fields
}

/// The longest that goes on.
fn open_for(call: &Call) -> Cell {
    let Some(longest) = call.open.iter().max_by_key(|open| open.lasts) else {
        return cell::nothing();
    };
    let cell = cell::time(Some(longest.lasts));
    match longest.since {
        Some(_) => cell,
        None => Cell {
            text: format!(">={}", cell.text),
            ..cell
        },
    }
}

/// One system call: how long it takes and how it fails, and who makes it.
pub fn opened(model: &Model, name: &str) -> Screen {
    let calls = &model.window.calls;
    let mut made: Vec<(&Thread, &Call)> = Vec::new();
    for thread in &calls.threads {
        let call = thread.calls.iter().find(|call| call.name == name);
        made.extend(call.map(|call| (thread, call)));
    }
    made.sort_by_key(|(thread, call)| {
        let idle = call.dispatcher_idle.unwrap_or_default();
        (Reverse((idle, call.times.total)), thread.id)
    });
    let total = calls.total().into_iter().find(|call| call.name == name);
    let mut list = by_thread(model, name, &made);
    list.notes.extend(what_is_missing(model));
    Screen::Table {
        above: total.map_or_else(Vec::new, |call| summary(&call)),
        list,
    }
}

/// Of all threads together.
fn summary(call: &Call) -> Vec<Block> {
    let times = &call.times;
    let mut blocks = Vec::new();
    if let (Some(median), Some(p90), Some(p99)) = (
        times.percentile(0.5),
        times.percentile(0.9),
        times.percentile(0.99),
    ) {
        let text = format!(
            "{} times, {} in all: median {median}, p90 {p90}, p99 {p99}, longest {}",
            Count(times.count),
            times.total,
            times.longest_text()
        );
        blocks.push(Block::text("took    ", text, Tone::Plain));
    }
    let mut errors: Vec<(u16, u64)> = call.by_error.iter().map(|(e, n)| (*e, *n)).collect();
    errors.sort_by_key(|&(errno, count)| (Reverse(count), errno));
    let mut named: Vec<String> = errors
        .iter()
        .take(ERRORS)
        .map(|&(number, count)| {
            let (name, meaning) = errno(number);
            format!("{} times {name} ({meaning})", Count(count))
        })
        .collect();
    if errors.len() > ERRORS {
        named.push(format!("{} more", errors.len() - ERRORS));
    }
    if !named.is_empty() {
        blocks.push(Block::text("failed  ", named.join(", "), Tone::Warn));
    }
    blocks
}

fn by_thread(model: &Model, name: &str, made: &[(&Thread, &Call)]) -> List {
    fn ids(thread: &Thread) -> (Option<Pid>, Option<Tid>) {
        (thread.id.map(|id| id.0), thread.id.map(|id| id.1))
    }
    let number = |n: Option<u32>| n.map_or_else(Cell::none, cell::id);
    let mut fields = vec![
        grows("THREAD", 0, |(thread, _): &(&Thread, &Call)| {
            let cell = cell::name(&thread.comm);
            match thread.dispatcher {
                true => cell.tone(Tone::Strong),
                false => cell,
            }
        }),
        right("TID", 2, move |(thread, _): &(&Thread, &Call)| {
            number(ids(thread).1.map(|tid| tid.0))
        }),
        right("PID", 11, move |(thread, _): &(&Thread, &Call)| {
            number(ids(thread).0.map(|pid| pid.0))
        }),
    ];
    fields.extend(
        figures(model)
            .into_iter()
            .map(|field| field.of(|(_, call): &(&Thread, &Call)| *call)),
    );
    let title = format!("{name}, by {}", cell::plural(made.len(), "thread"));
    cell::list(title, fields, made, |(thread, _)| match thread.id {
        Some((pid, tid)) => (format!("{pid}:{tid}"), Some(Open::Thread { pid, tid })),
        None => (thread.comm.clone(), None),
    })
}

/// By powers of two.
pub(super) fn histogram(times: &Histogram) -> List {
    let octaves = times.octaves();
    let most = octaves.iter().map(|octave| octave.2).max().unwrap_or(0);
    let fields = vec![
        right("FROM", 1, |octave: &(Nanos, Nanos, u64)| {
            cell::time(Some(octave.0))
        }),
        right("TO", 0, |octave: &(Nanos, Nanos, u64)| {
            cell::time(Some(octave.1))
        }),
        right("TIMES", 0, |octave: &(Nanos, Nanos, u64)| {
            cell::count(octave.2)
        }),
        grows("", 2, move |octave: &(Nanos, Nanos, u64)| {
            bar(octave.2, most)
        }),
    ];
    cell::list("", fields, &octaves, |octave| {
        (octave.0.as_u64().to_string(), None)
    })
}

#[allow(clippy::cast_precision_loss)]
fn bar(count: u64, most: u64) -> Cell {
    cell::nothing().bar(count as f64 / most.max(1) as f64)
}

/// Calls of the CUDA API, those that overlap most idle time first.
fn cuda(model: &Model) -> List {
    let window = cell::analysed(&model.window);
    let calls = &model.window.report.calls;
    let average = |call: &report::Call| call.total.as_u64().checked_div(call.count).map(Nanos);
    let fields = vec![
        left("CUDA CALL", 0, |call: &report::Call| {
            Cell::text(call.name.as_str()).tone(Tone::Name)
        }),
        right("TIME", 1, |call: &report::Call| {
            cell::time(Some(call.total))
        }),
        right("CALLS/S", 2, move |call: &report::Call| {
            cell::rate(call.count, window)
        }),
        right("AVG", 5, move |call: &report::Call| {
            cell::time(average(call))
        }),
        right("MAX", 4, |call: &report::Call| cell::time(Some(call.max))),
        right("GPU IDLE", 3, |call: &report::Call| {
            cell::time(call.idle_overlap)
        }),
    ];
    cell::list("", fields, calls, |call| (call.name.clone(), None))
}
