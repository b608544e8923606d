//! Summaries of one stretch of time after another, as one of all of it.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use super::{CpuSum, OffSum, Preemptor, Summary, ThreadSum, Waker, Who};
use crate::event::{Cpu, Pid, Tid};
use crate::fxhash::FxHashMap;
use crate::units::Nanos;

/// Those who had the CPU of a thread that waited, those who woke it, and victims, listed of each.
const LISTED: usize = 8;

type Id = (Pid, Tid);

fn id(who: &Who) -> Id {
    (who.pid, who.tid)
}

/// The name that it has now.
fn rename(who: &mut Who, now: &Who) {
    if who.comm != now.comm {
        who.comm.clone_from(&now.comm);
    }
}

/// Times by who.
#[derive(Debug, Default)]
struct Times {
    index: FxHashMap<Id, usize>,
    list: Vec<(Who, Nanos)>,
}

impl Times {
    fn add(&mut self, more: &[(Who, Nanos)]) {
        for (who, time) in more {
            let next = self.list.len();
            match *self.index.entry(id(who)).or_insert(next) {
                new if new == next => self.list.push((who.clone(), *time)),
                known => {
                    let (name, sum) = &mut self.list[known];
                    rename(name, who);
                    *sum = sum.saturating_add(*time);
                }
            }
        }
    }

    /// Most time first.
    fn sorted(mut self) -> Vec<(Who, Nanos)> {
        self.list.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        self.list
    }
}

#[derive(Debug, Default)]
struct OneThread {
    sum: ThreadSum,
    behind: Times,
}

#[derive(Debug)]
struct OneCpu {
    sum: CpuSum,
    ran: Times,
}

/// Adds up what comes in order of time: names, priorities and masks are the last ones.
pub fn join<'a>(parts: impl IntoIterator<Item = &'a Summary>) -> Summary {
    let mut all: Option<Summary> = None;
    let mut threads: Vec<OneThread> = Vec::new();
    let mut known: FxHashMap<Id, usize> = FxHashMap::default();
    let mut cpus: FxHashMap<Cpu, OneCpu> = FxHashMap::default();
    let mut preemptors: FxHashMap<Id, Preemptor> = FxHashMap::default();
    let mut notes: Vec<&[String]> = Vec::new();
    for part in parts {
        let all = all.get_or_insert_with(|| Summary {
            start: part.start,
            ..Summary::default()
        });
        all.end = part.end;
        if all.host.is_empty() {
            all.host.clone_from(&part.host);
        }
        all.lost = sum(all.lost, part.lost);
        notes.push(&part.notes);
        for thread in &part.threads {
            let index = *known.entry(id(&thread.who)).or_insert_with(|| {
                threads.push(OneThread::default());
                threads.len() - 1
            });
            threads[index].sum.join(thread);
            threads[index].behind.add(&thread.behind);
        }
        for cpu in &part.cpus {
            let one = cpus.entry(cpu.cpu).or_insert_with(|| OneCpu {
                sum: CpuSum {
                    cpu: cpu.cpu,
                    busy: Nanos::ZERO,
                    idle: Nanos::ZERO,
                    unknown: Nanos::ZERO,
                    irq: Nanos::ZERO,
                    switches: 0,
                    ran: Vec::new(),
                },
                ran: Times::default(),
            });
            one.sum.busy += cpu.busy;
            one.sum.idle += cpu.idle;
            one.sum.unknown += cpu.unknown;
            one.sum.irq += cpu.irq;
            one.sum.switches += cpu.switches;
            one.ran.add(&cpu.ran);
        }
        for more in &part.preemptors {
            match preemptors.get_mut(&id(&more.who)) {
                Some(preemptor) => preemptor.join(more),
                None => {
                    preemptors.insert(id(&more.who), more.clone());
                }
            }
        }
    }
    let mut all = all.unwrap_or_default();
    all.threads = threads.into_iter().map(OneThread::finish).collect();
    all.threads.sort_by_key(|thread| thread.who.tid);
    all.cpus = cpus
        .into_values()
        .map(|cpu| CpuSum {
            ran: cpu.ran.sorted(),
            ..cpu.sum
        })
        .collect();
    all.cpus.sort_by_key(|cpu| cpu.cpu);
    all.preemptors = preemptors.into_values().map(Preemptor::sorted).collect();
    (all.preemptors).sort_by(|a, b| (b.had, b.waited, &a.who).cmp(&(a.had, a.waited, &b.who)));
    all.notes = crate::analyse::each_once(notes.into_iter().rev().flatten());
    all
}

/// Several of one name as one.
pub fn add_up(threads: &[ThreadSum]) -> Option<ThreadSum> {
    let mut one = OneThread::default();
    for thread in threads {
        one.sum.join(thread);
        one.behind.add(&thread.behind);
        // One of many says nothing about most of them; those that woke most are few.
        one.sum.wakers.truncate(LISTED);
    }
    (!threads.is_empty()).then(|| one.finish())
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (one, None) | (None, one) => one,
    }
}

impl OneThread {
    fn finish(self) -> ThreadSum {
        let mut sum = self.sum;
        sum.off.sort_by_key(|off| off.reason);
        sum.cpus.sort_by_key(|&(cpu, time)| (Reverse(time), cpu));
        sum.wakers.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        sum.behind = self.behind.sorted();
        sum.behind.truncate(LISTED);
        sum
    }
}

impl ThreadSum {
    /// All but `behind`, and in no order.
    fn join(&mut self, more: &ThreadSum) {
        if id(&self.who) == id(&more.who) {
            rename(&mut self.who, &more.who);
        } else {
            self.who = more.who.clone();
        }
        self.here = more.here;
        self.target |= more.target;
        self.kthread |= more.kthread;
        self.dispatcher |= more.dispatcher;
        self.prio = more.prio.or(self.prio);
        self.run += more.run;
        self.runs.merge(&more.runs);
        if more.runq.count > 0 && (self.runq.count == 0 || more.runq.max > self.runq.max) {
            self.runq_max_at = more.runq_max_at;
            self.runq_max_behind.clone_from(&more.runq_max_behind);
        }
        self.runq.merge(&more.runq);
        for off in &more.off {
            match self.off.iter_mut().find(|o| o.reason == off.reason) {
                Some(sum) => sum.join(off),
                None => self.off.push(*off),
            }
        }
        self.voluntary += more.voluntary;
        self.involuntary += more.involuntary;
        self.migrations += more.migrations;
        for &(cpu, time) in &more.cpus {
            match self.cpus.iter_mut().find(|c| c.0 == cpu) {
                Some(sum) => sum.1 += time,
                None => self.cpus.push((cpu, time)),
            }
        }
        if more.affinity.is_some() {
            self.affinity.clone_from(&more.affinity);
        }
        self.allowed = more.allowed.or(self.allowed);
        self.packed = more.packed;
        for (waker, count) in &more.wakers {
            match self.wakers.iter_mut().find(|w| is_same(&w.0, waker)) {
                Some(sum) => sum.1 += count,
                None => self.wakers.push((waker.clone(), *count)),
            }
        }
    }
}

fn is_same(a: &Waker, b: &Waker) -> bool {
    match (a, b) {
        (Waker::Thread(a), Waker::Thread(b)) => id(a) == id(b),
        (Waker::Interrupt(a, _), Waker::Interrupt(b, _)) => a == b,
        (Waker::Thread(_), Waker::Interrupt(..)) | (Waker::Interrupt(..), Waker::Thread(_)) => {
            false
        }
    }
}

impl OffSum {
    fn join(&mut self, more: &OffSum) {
        self.count += more.count;
        self.total += more.total;
        // Not known of a part, so not of the whole.
        self.max = self.max.zip(more.max).map(|(a, b)| a.max(b));
    }
}

impl Preemptor {
    fn join(&mut self, more: &Preemptor) {
        rename(&mut self.who, &more.who);
        self.count += more.count;
        self.waited = self.waited.saturating_add(more.waited);
        let had = self.had.zip(more.had);
        self.had = had.map(|(a, b)| a.saturating_add(b));
        for victim in &more.victims {
            match (self.victims.iter_mut()).find(|v| id(&v.0) == id(&victim.0)) {
                Some(sum) => {
                    rename(&mut sum.0, &victim.0);
                    *sum = (
                        std::mem::take(&mut sum.0),
                        sum.1 + victim.1,
                        sum.2.saturating_add(victim.2),
                    );
                }
                None => self.victims.push(victim.clone()),
            }
        }
    }

    fn sorted(mut self) -> Preemptor {
        (self.victims).sort_by(|a, b| (b.2, &a.0).cmp(&(a.2, &b.0)));
        self.victims.truncate(LISTED);
        self
    }
}
