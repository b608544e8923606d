//! The overview of a machine without a GPU: the scheduler and the system calls at a glance.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use super::cell::{self, grows, left, right};
use super::threads::{open, ran_on, row_id, seen, table, Seen};
use super::{calls, cpus};
use crate::analyse::sched::{CpuSum, Preemptor};
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::Model;
use crate::present::top::screen::{Block, Screen};
use crate::present::top::view::View;
use crate::units::{Nanos, Rate, Share};

/// Rows of the tables that stay in place, at most: the tabs have all.
const ROWS: usize = 3;

/// Lines that the header takes, and so many rows of threads at least.
const HEADER: usize = 6;
const THREADS: usize = 5;

/// What hurts is what a person came for: so threads come by how long they waited for a CPU. Above them, as far as
/// there is room, who had the CPUs meanwhile, and the system calls.
pub fn screen(model: &Model, view: &View) -> Screen {
    let mut room = usize::from(view.size.1).saturating_sub(HEADER + THREADS);
    let mut above = head(model);
    room = room.saturating_sub(above.len());
    for (title, mut list) in [
        (
            "Had a CPU that others waited for".to_string(),
            preemptors(model),
        ),
        (calls::title(model), system_calls(model)),
    ] {
        list.rows.truncate(ROWS);
        // With a blank, its title and the names of its columns.
        let lines = list.rows.len() + 3;
        if list.rows.is_empty() || lines > room {
            continue;
        }
        room -= lines;
        above.extend([Block::Blank, Block::Heading(title), Block::Table(list)]);
    }
    Screen::Table {
        above,
        list: threads(model),
    }
}

fn head(model: &Model) -> Vec<Block> {
    let window = cell::analysed(&model.window);
    let sched = &model.window.sched;
    let Some(busy) = cpus::busy(model) else {
        let text = "nothing is known of the CPUs in this window";
        return vec![Block::text("", text, Tone::Dim)];
    };
    let sum = |of: fn(&CpuSum) -> Nanos| {
        let times = sched.cpus.iter().map(of);
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    };
    let known = sum(|cpu| cpu.busy).saturating_add(sum(|cpu| cpu.idle));
    let irq = Share(sum(|cpu| cpu.irq).share_of(known));
    let switches: u64 = sched.cpus.iter().map(|cpu| cpu.switches).sum();
    let switches = Rate::of(switches, window).map_or("-".to_string(), |rate| rate.to_string());
    let awake = sched.threads.iter().filter(|t| !t.is_asleep()).count();
    vec![Block::text(
        "",
        format!(
            "{}, {} busy, {irq} in interrupts, {switches} switches/s, {} awake",
            cell::plural(sched.cpus.len(), "CPU"),
            Share(busy),
            cell::plural(awake, "thread")
        ),
        Tone::Plain,
    )]
}

/// Those that were awake, by how long they waited for a CPU, then by how long they ran.
fn threads(model: &Model) -> List {
    let window = cell::analysed(&model.window);
    let part =
        move |time: Option<Nanos>| time.map_or_else(Cell::none, |time| cell::share(time, window));
    let mut threads = seen(model);
    threads.retain(|seen| !seen.sum.is_asleep());
    threads.sort_by_cached_key(|seen| (Reverse((seen.waited(), seen.sum.run)), seen.sum.who.tid));
    let fields = vec![
        grows("THREAD", 0, |seen: &Seen<'_>| {
            cell::name(&seen.sum.who.comm)
        }),
        right("TID", 3, |seen: &Seen<'_>| cell::id(seen.sum.who.tid.0)),
        right("PID", 10, |seen: &Seen<'_>| cell::id(seen.sum.who.pid.0)),
        right("RUNQ %", 1, move |seen: &Seen<'_>| {
            part(seen.waited()).harm().with_bar()
        }),
        right("RUN %", 2, move |seen: &Seen<'_>| {
            cell::share(seen.sum.run, window).with_bar()
        }),
        right("RUNQ P99", 7, |seen: &Seen<'_>| {
            cell::time(seen.sum.runq.percentile(0.99))
        }),
        right("RUNQ MAX", 4, |seen: &Seen<'_>| {
            cell::longest(&seen.sum.runq)
        }),
        right("THROT %", 9, move |seen: &Seen<'_>| {
            part(seen.throttled()).harm()
        }),
        right("SWITCH/S", 8, move |seen: &Seen<'_>| {
            let known = !seen.sum.is_stranger();
            let count = known.then(|| seen.sum.switches());
            count.map_or_else(Cell::none, |count| cell::rate(count, window))
        }),
        left("CPUS", 6, |seen: &Seen<'_>| ran_on(&seen.sum.cpus)),
        grows("BEHIND", 5, |seen: &Seen<'_>| cell::who_for(seen.behind)),
    ];
    let title = "Threads, by how long they waited for a CPU";
    table(title.to_string(), fields, &threads)
}

/// Who took CPUs from others, or had them while those waited.
fn preemptors(model: &Model) -> List {
    let window = cell::analysed(&model.window);
    let mut preemptors: Vec<&Preemptor> = model.window.sched.preemptors.iter().collect();
    let time = |p: &Preemptor| p.had.unwrap_or(p.waited);
    preemptors.sort_by_key(|p| (Reverse((time(p), p.count)), p.who.tid));
    let fields = vec![
        left("THREAD", 0, |p: &&Preemptor| cell::name(&p.who.comm)),
        right("TID", 3, |p: &&Preemptor| cell::id(p.who.tid.0)),
        right("HAD IT", 0, |p: &&Preemptor| cell::time(p.had)),
        right("TOOK IT/S", 1, move |p: &&Preemptor| {
            cell::rate(p.count, window)
        }),
        right("THEN WAITED", 4, |p: &&Preemptor| {
            cell::time(Some(p.waited))
        }),
        grows("FROM", 2, |p: &&Preemptor| {
            let most = p.victims.iter().max_by_key(|victim| victim.2);
            most.map_or_else(Cell::none, |(who, _, _)| Cell::text(who.to_string()))
        }),
    ];
    cell::list("", fields, &preemptors, |p| {
        (row_id(&p.who), Some(open(&p.who)))
    })
}

fn system_calls(model: &Model) -> List {
    List {
        title: String::new(),
        notes: Vec::new(),
        ..calls::list(model)
    }
}
