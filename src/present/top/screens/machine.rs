//! The overview of a machine without a GPU: the scheduler and the system calls at a glance.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use super::cell::{self, grows, left, right};
use super::threads::{open, ran_on, row_id, seen, table, Seen};
use super::{analysed, calls, cpus, plural, Line, Section};
use crate::analyse::sched::{CpuSum, Preemptor};
use crate::present::top::list::{List, Tone};
use crate::present::top::model::Model;
use crate::units::{Nanos, Rate, Share};

/// Rows of each table, at most: the tabs have all.
const ROWS: usize = 20;

/// Who waits for CPUs comes first: what hurts is what a person came for.
pub fn sections(model: &Model) -> Vec<Section> {
    let section = |list: List, rank, rows| Section {
        list,
        rank,
        rows,
        text: Vec::new(),
    };
    let mut sections = vec![
        Section {
            text: head(model),
            ..section(waiting(model), 0, 5)
        },
        section(running(model), 1, 5),
        section(preemptors(model), 2, 3),
        section(system_calls(model), 3, 4),
    ];
    sections.retain(|section| !section.list.rows.is_empty() || section.rank == 0);
    sections
}

fn head(model: &Model) -> Vec<Line> {
    let window = analysed(&model.window);
    let sched = &model.window.sched;
    let Some(busy) = cpus::busy(model) else {
        return vec![Line::new(Tone::Dim, "nothing is known of the CPUs yet")];
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
    vec![Line::new(
        Tone::Plain,
        format!(
            "{}, {} busy, {irq} in interrupts, {switches} switches/s, {} awake",
            plural(sched.cpus.len(), "CPU"),
            Share(busy),
            plural(awake, "thread")
        ),
    )]
}

/// Threads by how long they waited for a CPU.
fn waiting(model: &Model) -> List {
    let window = analysed(&model.window);
    let mut threads = seen(model);
    threads.retain(|seen| seen.waited().is_some_and(|waited| waited > Nanos::ZERO));
    threads.sort_by_key(|seen| (Reverse(seen.waited()), seen.sum.who.tid));
    threads.truncate(ROWS);
    let fields = vec![
        grows("THREAD", 0, |seen: &Seen<'_>| {
            cell::name(&seen.sum.who.comm)
        }),
        right("TID", 3, |seen: &Seen<'_>| cell::id(seen.sum.who.tid.0)),
        right("RUNQ %", 0, move |seen: &Seen<'_>| match seen.waited() {
            Some(waited) => cell::share(waited, window).harm().with_bar(),
            None => cell::unknown(),
        }),
        right("P99", 4, |seen: &Seen<'_>| {
            cell::time(seen.sum.runq.percentile(0.99))
        }),
        right("MAX", 1, |seen: &Seen<'_>| cell::longest(&seen.sum.runq)),
        right("RUN %", 5, move |seen: &Seen<'_>| {
            cell::share(seen.sum.run, window)
        }),
        right("THROT %", 6, move |seen: &Seen<'_>| {
            match seen.throttled() {
                Some(time) => cell::share(time, window).harm(),
                None => cell::unknown(),
            }
        }),
        left("BEHIND", 2, |seen: &Seen<'_>| cell::who_for(seen.behind)),
    ];
    table("Waited for a CPU".to_string(), fields, &threads)
}

/// Threads by how long they ran.
fn running(model: &Model) -> List {
    let window = analysed(&model.window);
    let mut threads = seen(model);
    threads.retain(|seen| seen.sum.run > Nanos::ZERO);
    threads.sort_by_key(|seen| (Reverse(seen.sum.run), seen.sum.who.tid));
    threads.truncate(ROWS);
    let a_second = move |count: Option<u64>| {
        count.map_or_else(cell::unknown, |count| cell::rate(count, window))
    };
    let fields = vec![
        grows("THREAD", 0, |seen: &Seen<'_>| {
            cell::name(&seen.sum.who.comm)
        }),
        right("TID", 1, |seen: &Seen<'_>| cell::id(seen.sum.who.tid.0)),
        right("PID", 5, |seen: &Seen<'_>| cell::id(seen.sum.who.pid.0)),
        right("RUN %", 0, move |seen: &Seen<'_>| {
            cell::share(seen.sum.run, window).with_bar()
        }),
        right("RUNQ %", 2, move |seen: &Seen<'_>| match seen.waited() {
            Some(waited) => cell::share(waited, window).harm(),
            None => cell::unknown(),
        }),
        right("SWITCH/S", 3, move |seen: &Seen<'_>| {
            let known = !seen.sum.is_stranger();
            a_second(known.then(|| seen.sum.switches()))
        }),
        left("CPUS", 4, |seen: &Seen<'_>| ran_on(&seen.sum.cpus)),
    ];
    table("Ran most".to_string(), fields, &threads)
}

/// Who took CPUs from others, or had them while those waited.
fn preemptors(model: &Model) -> List {
    let window = analysed(&model.window);
    let mut preemptors: Vec<&Preemptor> = model.window.sched.preemptors.iter().collect();
    let time = |p: &Preemptor| p.had.unwrap_or(p.waited);
    preemptors.sort_by_key(|p| (Reverse((time(p), p.count)), p.who.tid));
    preemptors.truncate(ROWS);
    let fields = vec![
        grows("THREAD", 0, |p: &&Preemptor| cell::name(&p.who.comm)),
        right("TID", 3, |p: &&Preemptor| cell::id(p.who.tid.0)),
        right("HAD IT", 0, |p: &&Preemptor| cell::time(p.had)),
        right("TOOK IT/S", 1, move |p: &&Preemptor| {
            cell::rate(p.count, window)
        }),
        right("THEN WAITED", 4, |p: &&Preemptor| {
            cell::time(Some(p.waited))
        }),
        left("FROM", 2, |p: &&Preemptor| {
            let most = p.victims.iter().max_by_key(|victim| victim.2);
            most.map_or_else(cell::unknown, |(who, _, _)| cell::text(who.to_string()))
        }),
    ];
    let title = "Had a CPU that others waited for";
    cell::list(title, fields, &preemptors, |p| {
        (row_id(&p.who), Some(open(&p.who)))
    })
}

fn system_calls(model: &Model) -> List {
    let mut list = calls::list(model);
    list.rows.truncate(ROWS);
    list
}

/// Lines for each section when there are `height` in all, a title and a head of a table in each of them, and
/// sentences that take `text` lines each. What has too little room is left out.
pub fn heights(sections: &[(usize, &Section)], height: usize) -> Vec<usize> {
    /// Title and head.
    const FRAME: usize = 2;
    let least = |(text, section): &(usize, &Section)| {
        text + FRAME + section.list.rows.len().clamp(1, section.rows.max(1))
    };
    let most = |(text, section): &(usize, &Section)| text + FRAME + section.list.rows.len().max(1);
    let mut heights = vec![0; sections.len()];
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_key(|&i| sections.get(i).map(|section| section.1.rank));
    let mut left = height;
    for round in [&least as &dyn Fn(&(usize, &Section)) -> usize, &most] {
        for &i in &order {
            let (Some(section), Some(has)) = (sections.get(i), heights.get_mut(i)) else {
                continue;
            };
            let wants = round(section).saturating_sub(*has).min(left);
            // A title without a row says nothing.
            if *has + wants > section.0 + FRAME {
                *has += wants;
                left -= wants;
            }
        }
    }
    heights
}
