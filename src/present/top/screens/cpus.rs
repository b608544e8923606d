//! The CPUs: how busy, with what, and by whom.
#![forbid(unsafe_code)]

use std::collections::HashSet;

use super::cell::{self, prose, right};
use super::threads::{open, whole_percent};

use crate::analyse::sched::CpuSum;
use crate::event::Tid;
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::{Model, Source};
use crate::units::{Nanos, Share};

/// Who ran: so many are named, if they ran for this share of the time.
const NAMED: usize = 4;
const NAMED_SHARE: f64 = 0.001;

/// In the order of their numbers. Enter opens who ran most.
pub fn list(model: &Model) -> List {
    let window = cell::analysed(&model.window);
    let sched = &model.window.sched;
    let targets: HashSet<Tid> = sched
        .threads
        .iter()
        .filter(|thread| thread.target)
        .map(|thread| thread.who.tid)
        .collect();
    let by_targets = move |cpu: &CpuSum| {
        let ran = cpu.ran.iter().filter(|(who, _)| targets.contains(&who.tid));
        ran.map(|&(_, time)| time)
            .fold(Nanos::ZERO, Nanos::saturating_add)
    };
    let machine = model.source == Source::Machine;
    let mut fields = vec![
        right("CPU", 0, |cpu: &CpuSum| cell::id(u32::from(cpu.cpu.0))),
        right("BUSY %", 1, move |cpu: &CpuSum| match known_busy(cpu) {
            Some(busy) => cell::share(busy, window).with_bar(),
            None => Cell::none(),
        }),
    ];
    // Where all are targets it says nothing.
    if !machine {
        fields.push(right(
            "TARGETS %",
            5,
            move |cpu: &CpuSum| match known_busy(cpu) {
                Some(_) => cell::share(by_targets(cpu), window),
                None => Cell::none(),
            },
        ));
    }
    fields.extend([
        right("IRQ %", 3, move |cpu: &CpuSum| {
            cell::share(cpu.irq, window).harm()
        }),
        right("UNKNOWN %", 6, move |cpu: &CpuSum| {
            cell::share(cpu.unknown, window).harm()
        }),
        right("SWITCH/S", 4, move |cpu: &CpuSum| match known_busy(cpu) {
            Some(_) => cell::rate(cpu.switches, window),
            None => Cell::none(),
        }),
        prose("WHO RAN", 2, move |cpu: &CpuSum| who_ran(cpu, window)),
    ]);
    let mut list = cell::list(title(model), fields, &sched.cpus, |cpu| {
        let most = cpu.ran.first().map(|(who, _)| open(who));
        (cpu.cpu.to_string(), most)
    });
    if sched.cpus.iter().any(|cpu| cpu.unknown > Nanos::ZERO) {
        let text = "UNKNOWN: switches were lost, or not recorded there; BUSY is at least that much";
        list.notes.push(text.to_string());
    }
    list
}

/// `None`: nothing is known of it.
fn known_busy(cpu: &CpuSum) -> Option<Nanos> {
    (cpu.busy > Nanos::ZERO || cpu.known_idle().is_some()).then_some(cpu.busy)
}

fn title(model: &Model) -> String {
    let cpus = &model.window.sched.cpus;
    if cpus.is_empty() {
        return "CPUs".to_string();
    }
    let number = cell::plural(cpus.len(), "CPU");
    match busy(model) {
        Some(busy) => format!("{number}, {} busy", Share(busy)),
        None if model.source == Source::Targets => {
            format!("{number}, seen only where targets ran")
        }
        None => format!("{number}, - busy"),
    }
}

/// Share of all CPUs, of the time of which it is known. By slices it is known better than by CPUs: what runs on one
/// without a break is seen there late.
pub(super) fn busy(model: &Model) -> Option<f64> {
    let points = model.window.points.iter();
    let known = points.filter_map(|p| Some((p.cpu?, p.to.saturating_sub(p.from).0)));
    #[allow(clippy::cast_precision_loss)]
    let (busy, time) = known.fold((0.0, 0.0), |(busy, time), (share, length)| {
        let length = length as f64;
        (busy + share * length, time + length)
    });
    if time > 0.0 {
        return Some(busy / time);
    }
    let cpus = &model.window.sched.cpus;
    let sum = |of: fn(&CpuSum) -> Nanos| {
        let times = cpus.iter().map(of);
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    };
    let (busy, idle) = (sum(|cpu| cpu.busy), sum(|cpu| cpu.idle));
    // Where only targets are seen, no CPU is known to have been idle.
    if idle == Nanos::ZERO && sum(|cpu| cpu.unknown) > Nanos::ZERO {
        return None;
    }
    let known = busy.saturating_add(idle);
    (known > Nanos::ZERO).then(|| busy.share_of(known))
}

fn who_ran(cpu: &CpuSum, window: Nanos) -> Cell {
    let named = cpu
        .ran
        .iter()
        .filter(|(_, time)| time.share_of(window) >= NAMED_SHARE)
        .take(NAMED)
        .map(|(who, time)| format!("{who} {}", whole_percent(*time, window)));
    let named: Vec<String> = named.collect();
    match named.is_empty() {
        true if known_busy(cpu).is_none() => Cell::none(),
        true => cell::nothing(),
        false => Cell::text(named.join(", ")).tone(Tone::Plain),
    }
}
