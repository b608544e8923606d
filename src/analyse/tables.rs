//! The tables beside the explanation: threads, kernels, calls.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::analyse::report::{Call, Kernel, Thread};
use crate::analyse::scope::Scope;
use crate::analyse::what::thread_ref;
use crate::analyse::IdleOf;
use crate::event::{Api, NameId, OpKind};
use crate::model::fxhash::FxHashMap;
use crate::model::ops::CallIdx;
use crate::model::thread::State;
use crate::model::{self, api, Timeline};
use crate::units::Nanos;

fn add(sum: &mut Nanos, more: Nanos) {
    *sum = Nanos(sum.0.saturating_add(more.0));
}

pub(super) fn threads(t: &Timeline, scope: Scope) -> Vec<Thread> {
    let (start, end) = (scope.from.max(t.start()), scope.end(t));
    let mut rows = Vec::new();
    for (idx, thread) in t.threads() {
        if !thread.is_target() {
            continue;
        }
        let launches = launches(t, thread, scope);
        // One row for each thread that had the id, not one for each name that it had.
        let mut rows_of: BTreeMap<(u32, u64), (Thread, Nanos)> = BTreeMap::new();
        for s in thread.states(start, end) {
            let who = t.who(idx, s.start);
            let birth = t.identity(who).map_or(0, |i| i.start.0);
            let (row, last) = rows_of.entry((t.pid(who).0, birth)).or_insert_with(|| {
                let row = Thread {
                    who: thread_ref(t, who),
                    dispatcher: thread.launches > 0,
                    run: Nanos::ZERO,
                    runq: Nanos::ZERO,
                    blocked: Nanos::ZERO,
                    launches,
                };
                (row, s.start)
            });
            *last = s.end.saturating_sub(Nanos(1));
            match s.state {
                State::Running { .. } => add(&mut row.run, s.len()),
                State::Runnable { .. } => add(&mut row.runq, s.len()),
                State::Blocked(_) => add(&mut row.blocked, s.len()),
                State::Unknown | State::Exited => {}
            }
        }
        rows.extend(rows_of.into_values().map(|(mut row, last)| {
            // The name that it had in the end.
            row.who.comm = t.comm(t.who(idx, last)).to_string();
            row
        }));
    }
    sort_threads(&mut rows);
    rows
}

pub(super) fn sort_threads(rows: &mut [Thread]) {
    rows.sort_by_key(|r| {
        let waited = (std::cmp::Reverse(r.runq), std::cmp::Reverse(r.blocked));
        (!r.dispatcher, waited, r.who.pid, r.who.tid)
    });
}

fn launches(t: &Timeline, thread: &model::thread::Thread, scope: Scope) -> u64 {
    if scope.is_whole() {
        return thread.launches;
    }
    let calls = thread.calls().iter().map(|&c| t.gpu().call_at(CallIdx(c)));
    calls
        .filter(|call| scope.has(call.end) && api::starts_kernels(call.class) && !call.failed())
        .count() as u64
}

/// Of one device, or of all.
pub(super) fn kernels(t: &Timeline, gpu: Option<u32>, scope: Scope) -> Vec<Kernel> {
    struct Row {
        count: u64,
        total: Nanos,
        min: Nanos,
        max: Nanos,
    }
    let mut rows: FxHashMap<NameId, Row> = FxHashMap::default();
    let devices = (0..).zip(t.gpu().devices());
    let asked = devices.filter(|(index, _)| gpu.is_none_or(|gpu| gpu == *index));
    for op in asked.flat_map(|(_, g)| &g.ops) {
        let OpKind::Kernel { name } = op.kind() else {
            continue;
        };
        if op.outlasts_followers() || !scope.has(op.end) {
            continue;
        }
        let len = op.end.saturating_sub(op.start);
        let row = rows.entry(name).or_insert(Row {
            count: 0,
            total: Nanos::ZERO,
            min: Nanos::MAX,
            max: Nanos::ZERO,
        });
        row.count += 1;
        add(&mut row.total, len);
        row.min = row.min.min(len);
        row.max = row.max.max(len);
    }
    // The same kernel can have several ids: each process defines its own names.
    let mut by_name: BTreeMap<&str, Kernel> = BTreeMap::new();
    for (name, row) in rows {
        let text = t.name(name);
        let kernel = by_name.entry(text).or_insert_with(|| Kernel {
            name: text.to_string(),
            count: 0,
            total: Nanos::ZERO,
            min: Nanos::MAX,
            max: Nanos::ZERO,
        });
        kernel.count += row.count;
        add(&mut kernel.total, row.total);
        kernel.min = kernel.min.min(row.min);
        kernel.max = kernel.max.max(row.max);
    }
    let mut kernels: Vec<Kernel> = by_name.into_values().collect();
    sort_kernels(&mut kernels);
    kernels
}

pub(super) fn sort_kernels(kernels: &mut [Kernel]) {
    kernels.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
}

pub(super) fn add_known(sum: &mut Option<Nanos>, more: Option<Nanos>) {
    if let Some(more) = more {
        add(sum.get_or_insert_default(), more);
    }
}

/// `idle` tells when a device of the process was idle, where that can be told.
pub(super) fn calls(t: &Timeline, idle: &IdleOf, scope: Scope) -> Vec<Call> {
    let mut rows: FxHashMap<Api, Call> = FxHashMap::default();
    for pid in t.gpu().calling_pids() {
        let idle = idle.get(&pid);
        for index in t.gpu().calls_of(pid) {
            let call = t.gpu().call_at(index);
            if !scope.has(call.end) {
                continue;
            }
            let len = call.end.saturating_sub(call.start);
            let row = rows.entry(call.api()).or_insert_with(|| Call {
                name: api::name(call.api()).into_owned(),
                count: 0,
                total: Nanos::ZERO,
                max: Nanos::ZERO,
                idle_overlap: None,
            });
            row.count += 1;
            add(&mut row.total, len);
            row.max = row.max.max(len);
            // What a call put on the device is not known, so neither is what the device did.
            let known = idle.filter(|_| !call.is_probed());
            let overlap = known.map(|idle| idle.total_in(call.start, call.end));
            add_known(&mut row.idle_overlap, overlap);
        }
    }
    // Variants of a call that differ in their callback id only are one row.
    let mut by_name: BTreeMap<String, Call> = BTreeMap::new();
    for row in rows.into_values() {
        match by_name.get_mut(&row.name) {
            Some(sum) => {
                sum.count += row.count;
                add(&mut sum.total, row.total);
                sum.max = sum.max.max(row.max);
                add_known(&mut sum.idle_overlap, row.idle_overlap);
            }
            None => {
                by_name.insert(row.name.clone(), row);
            }
        }
    }
    let mut calls: Vec<Call> = by_name.into_values().collect();
    sort_calls(&mut calls);
    calls
}

pub(super) fn sort_calls(calls: &mut [Call]) {
    calls.sort_by(|a, b| {
        (b.idle_overlap, b.total)
            .cmp(&(a.idle_overlap, a.total))
            .then_with(|| a.name.cmp(&b.name))
    });
}
