//! What a row of the tables is about: a thread, a process, or all threads of one name; and which comes first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::analyse::sched::{OffReason, OffSum, ThreadSum, Waker};
use crate::cli::{SchedBy, SchedSort};
use crate::event::{Cpu, Pid, Tid};
use crate::units::Nanos;

/// One or more threads, added up.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) sum: ThreadSum,
}

pub(super) fn rows(threads: &[ThreadSum], by: SchedBy, sort: SchedSort) -> Vec<Row> {
    let mut rows = match by {
        SchedBy::Thread => threads
            .iter()
            .map(|sum| Row {
                name: sum.who.to_string(),
                sum: sum.clone(),
            })
            .collect(),
        SchedBy::Process => processes(threads),
        SchedBy::Name => names(threads),
    };
    rows.sort_by_cached_key(|row| by_sort(&row.sum, sort));
    rows
}

/// What comes first has the least of it.
pub(super) fn by_sort(sum: &ThreadSum, sort: SchedSort) -> (Reverse<(u64, Nanos)>, Tid) {
    let first = match sort {
        SchedSort::Wait => sum.waited().0,
        SchedSort::Run => sum.run.0,
        SchedSort::Avg => sum.runq.average().map_or(0, Nanos::as_u64),
        SchedSort::Max => sum.longest_wait().0,
        SchedSort::Switches => sum.switches(),
        SchedSort::Preempted => preempted(sum),
    };
    (Reverse((first, sum.run)), sum.who.tid)
}

fn processes(threads: &[ThreadSum]) -> Vec<Row> {
    let mut of: BTreeMap<Pid, Vec<&ThreadSum>> = BTreeMap::new();
    for thread in threads {
        of.entry(thread.who.pid).or_default().push(thread);
    }
    let rows = of.into_iter().map(|(pid, threads)| {
        // The first thread has the name of the process.
        let first = threads.iter().find(|thread| thread.who.tid.0 == pid.0);
        let comm = first
            .or(threads.first())
            .map_or("", |thread| &thread.who.comm);
        Row {
            name: format!("{comm}:{pid}{}", count_of(threads.len())),
            sum: added(&threads),
        }
    });
    rows.collect()
}

fn names(threads: &[ThreadSum]) -> Vec<Row> {
    let mut of: BTreeMap<&str, Vec<&ThreadSum>> = BTreeMap::new();
    for thread in threads {
        of.entry(&thread.who.comm).or_default().push(thread);
    }
    let rows = of.into_iter().map(|(comm, threads)| Row {
        name: format!("{comm}{}", count_of(threads.len())),
        sum: added(&threads),
    });
    rows.collect()
}

fn count_of(threads: usize) -> String {
    match threads {
        1 => String::new(),
        n => format!(" ({n})"),
    }
}

/// All of them as one. What is no sum, such as where they may run, is known when all agree.
pub(super) fn added(threads: &[&ThreadSum]) -> ThreadSum {
    let Some(first) = threads.first() else {
        return ThreadSum::default();
    };
    let mut all = ThreadSum {
        who: first.who.clone(),
        kthread: threads.iter().all(|t| t.kthread),
        target: threads.iter().any(|t| t.target),
        dispatcher: threads.iter().any(|t| t.dispatcher),
        prio: agreed(threads, |t| t.prio),
        affinity: agreed(threads, |t| t.affinity.clone()),
        allowed: agreed(threads, |t| t.allowed),
        ..ThreadSum::default()
    };
    let mut off: BTreeMap<OffReason, OffSum> = BTreeMap::new();
    let mut cpus: BTreeMap<Cpu, Nanos> = BTreeMap::new();
    let mut wakers: BTreeMap<&Waker, u64> = BTreeMap::new();
    for thread in threads {
        if thread.runq.count > 0 && (all.runq.count == 0 || thread.runq.max > all.runq.max) {
            all.runq_max_at = thread.runq_max_at;
            all.runq_max_behind.clone_from(&thread.runq_max_behind);
        }
        all.run = all.run.saturating_add(thread.run);
        all.runs.merge(&thread.runs);
        all.runq.merge(&thread.runq);
        all.voluntary += thread.voluntary;
        all.involuntary += thread.involuntary;
        all.migrations += thread.migrations;
        for sum in &thread.off {
            let entry = off.entry(sum.reason).or_insert(OffSum {
                count: 0,
                total: Nanos::ZERO,
                max: Some(Nanos::ZERO),
                ..*sum
            });
            entry.count += sum.count;
            entry.total = entry.total.saturating_add(sum.total);
            entry.max = entry.max.zip(sum.max).map(|(a, b)| a.max(b));
        }
        for &(cpu, time) in &thread.cpus {
            let sum = cpus.entry(cpu).or_default();
            *sum = sum.saturating_add(time);
        }
        for (waker, count) in &thread.wakers {
            *wakers.entry(waker).or_default() += count;
        }
    }
    all.off = off.into_values().collect();
    all.cpus = cpus.into_iter().collect();
    all.cpus.sort_by_key(|&(cpu, time)| (Reverse(time), cpu));
    let wakers = wakers.into_iter();
    all.wakers = wakers
        .map(|(waker, count)| (waker.clone(), count))
        .collect();
    all.wakers.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    all
}

fn agreed<T: PartialEq>(threads: &[&ThreadSum], of: impl Fn(&ThreadSum) -> Option<T>) -> Option<T> {
    let first = of(threads.first()?);
    let same = threads.iter().all(|thread| of(thread) == first);
    first.filter(|_| same)
}

pub(super) fn preempted(sum: &ThreadSum) -> u64 {
    sum.off_for(OffReason::Preempted).map_or(0, |off| off.count)
}
