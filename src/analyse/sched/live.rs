//! What the kernel added up, as a summary: since the start, or since the last time it was read.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    reason, CpuSum, OffReason, OffSum, Preemptor, Summary, ThreadSum, Waker, WakerContext, Who,
};
use crate::analyse::what::softirq_name;
use crate::collect::sched_sum::{
    types::gdiag_off as why, Sleeps, SLEEP_COLUMNS, SLEEP_IOWAIT, SLEEP_KTHREAD, SLEEP_NO_CALL,
    SLEEP_ROWS, SLEEP_UNINTERRUPTIBLE,
};
use crate::decode::sched_sum::{
    By, CpuSums, Doubts, IsIdle, Reading, Since, State, Thread, Times, REASONS,
};
use crate::event::{Cpu, Pid, SwitchFlags, Tid};
use crate::model::syscall;
use crate::units::{Count, Nanos};

/// Victims that are listed of a preemptor.
const LISTED: usize = 8;

/// Threads that have ended and are told of one by one; the older ones of more are added up by name.
const MOST_ENDED: usize = 16_384;

// The kernel side numbers the reasons in this order.
const _: () = assert!(
    REASONS == OffReason::ALL.len()
        && OffReason::Woken as u32 == why::GDIAG_OFF_WOKEN.0
        && OffReason::New as u32 == why::GDIAG_OFF_NEW.0
        && OffReason::Preempted as u32 == why::GDIAG_OFF_PREEMPTED.0
        && OffReason::Yielded as u32 == why::GDIAG_OFF_YIELDED.0
        && OffReason::Throttled as u32 == why::GDIAG_OFF_THROTTLED.0
        && OffReason::Futex as u32 == why::GDIAG_OFF_FUTEX.0
        && OffReason::Poll as u32 == why::GDIAG_OFF_POLL.0
        && OffReason::Sleep as u32 == why::GDIAG_OFF_SLEEP.0
        && OffReason::Io as u32 == why::GDIAG_OFF_IO.0
        && OffReason::Network as u32 == why::GDIAG_OFF_NETWORK.0
        && OffReason::File as u32 == why::GDIAG_OFF_FILE.0
        && OffReason::Memory as u32 == why::GDIAG_OFF_MEMORY.0
        && OffReason::Fault as u32 == why::GDIAG_OFF_FAULT.0
        && OffReason::Ioctl as u32 == why::GDIAG_OFF_IOCTL.0
        && OffReason::Child as u32 == why::GDIAG_OFF_CHILD.0
        && OffReason::Stopped as u32 == why::GDIAG_OFF_STOPPED.0
        && OffReason::Other as u32 == why::GDIAG_OFF_OTHER.0
);

/// Why a thread sleeps, for the kernel to look up: what [`reason::of_sleep`] says of everything that the
/// kernel tells apart.
pub fn sleeps(calls: syscall::Table) -> Box<Sleeps> {
    let mut sleeps = Box::new([[0; SLEEP_COLUMNS]; SLEEP_ROWS]);
    for (row, columns) in sleeps.iter_mut().enumerate() {
        let number = u16::try_from(row).ok().filter(|_| row < SLEEP_NO_CALL);
        let group = number.map(|number| calls.group(number));
        for (column, cell) in columns.iter_mut().enumerate() {
            let iowait = column & SLEEP_IOWAIT != 0;
            let flags = SwitchFlags(if iowait { SwitchFlags::IOWAIT } else { 0 });
            // TASK_INTERRUPTIBLE or TASK_UNINTERRUPTIBLE
            let state = if column & SLEEP_UNINTERRUPTIBLE != 0 {
                2
            } else {
                1
            };
            *cell = reason::of_sleep(Some(state), flags, group, row == SLEEP_KTHREAD) as u8;
        }
    }
    sleeps
}

/// What is asked for, and what the sums do not tell.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub host: String,
    /// Those whose events were counted; `None`: all.
    pub cpus: Option<Vec<Cpu>>,
    /// Those that are there.
    pub online: Vec<Cpu>,
    /// Only these threads; all when there are none.
    pub tids: Vec<Tid>,
    /// Names of handlers, by number.
    pub interrupts: HashMap<u16, String>,
}

impl Scope {
    fn has(&self, cpu: Option<Cpu>) -> bool {
        let Some(cpus) = &self.cpus else { return true };
        cpu.is_some_and(|cpu| cpus.contains(&cpu))
    }
}

/// One thread, or with tid 0 all of one name that ended long ago.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tid: Tid,
    born: Nanos,
    name: Option<String>,
}

impl Key {
    fn of(thread: &Thread) -> Key {
        Key {
            tid: thread.tid,
            born: thread.born,
            name: None,
        }
    }
}

/// Sums without anything open: what went on when they were read is in them.
#[derive(Clone, Debug, Default)]
struct Closed {
    start: Nanos,
    end: Nanos,
    threads: BTreeMap<Key, Thread>,
    cpus: Vec<CpuSums>,
}

/// Follows the readings of one watch.
#[derive(Clone, Debug, Default)]
pub struct Live {
    scope: Scope,
    ended: BTreeMap<Key, Thread>,
    /// How many of them are told of by name only.
    folded: u64,
    /// Whoever was seen, also gdiag itself.
    names: HashMap<Tid, Who>,
    now: Closed,
    before: Closed,
}

impl Live {
    pub fn new(scope: Scope) -> Live {
        Live {
            scope,
            ..Live::default()
        }
    }

    pub fn add(&mut self, reading: &Reading) {
        for thread in reading.ended.iter().chain(&reading.threads) {
            self.names.insert(thread.tid, who(thread));
        }
        for thread in &reading.ended {
            merge(
                &mut self.ended,
                Key::of(thread),
                &close(thread, &self.scope),
            );
        }
        self.fold();
        let mut threads = self.ended.clone();
        for thread in &reading.threads {
            merge(&mut threads, Key::of(thread), &close(thread, &self.scope));
        }
        let cpus = reading.cpus.iter().filter(|cpu| {
            self.scope.has(Some(cpu.cpu))
                && (cpu.switches > 0 || self.scope.online.contains(&cpu.cpu))
        });
        let now = Closed {
            start: reading.start,
            end: reading.at,
            threads,
            cpus: cpus.map(|cpu| close_cpu(cpu, reading)).collect(),
        };
        self.now = now;
    }

    /// Since the start.
    pub fn total(&self) -> Summary {
        self.summary(&self.now)
    }

    /// Since the last time that this was asked.
    pub fn interval(&mut self) -> Summary {
        let interval = self.summary(&since(&self.now, &self.before));
        self.before = self.now.clone();
        interval
    }

    /// Threads of what was asked for that were seen.
    pub fn targets(&self) -> usize {
        let all = self.now.threads.values();
        all.filter(|thread| thread.target && !thread.own).count()
    }

    /// Memory does not grow with the number of threads that come and go.
    fn fold(&mut self) {
        if self.ended.len() <= MOST_ENDED {
            return;
        }
        let single = self.ended.iter().filter(|(key, _)| key.name.is_none());
        let mut oldest: Vec<(Nanos, Key)> = single.map(|(key, t)| (t.at, key.clone())).collect();
        oldest.sort_unstable();
        oldest.truncate(MOST_ENDED / 2);
        for (_, key) in oldest {
            let Some(thread) = self.ended.remove(&key) else {
                continue;
            };
            self.folded += 1;
            let by_name = Key {
                tid: Tid(0),
                born: Nanos::ZERO,
                name: Some(thread.comm.clone()),
            };
            if let Some(before) = self.before.threads.remove(&key) {
                merge(&mut self.before.threads, by_name.clone(), &nameless(before));
            }
            merge(&mut self.ended, by_name, &nameless(thread));
        }
    }

    fn summary(&self, sums: &Closed) -> Summary {
        let rows = self.rows(sums);
        let doubts = sums.cpus.iter().map(|cpu| cpu.doubts);
        let doubts = doubts.fold(Doubts::default(), Doubts::plus);
        Summary {
            host: self.scope.host.clone(),
            start: sums.start,
            end: sums.end,
            cpus: self.cpus(sums),
            preemptors: self.preemptors(sums),
            notes: self.notes(sums, doubts),
            lost: Some(doubts.missed + doubts.no_memory + doubts.unsent),
            threads: rows,
        }
    }

    /// gdiag itself is known only by the CPU time that it takes.
    fn shows(&self, t: &Thread) -> bool {
        let tids = &self.scope.tids;
        !t.own && (tids.is_empty() || tids.contains(&t.tid))
    }

    fn rows(&self, sums: &Closed) -> Vec<ThreadSum> {
        let targets = sums.threads.values().filter(|t| t.target && !t.own);
        let theirs: BTreeSet<Cpu> = targets.flat_map(|t| t.sums.cpus.keys().copied()).collect();
        let shown = sums.threads.values().filter(|t| {
            let did = t.sums.run > Nanos::ZERO || t.sums.off.iter().any(Times::any);
            let beside = || t.sums.cpus.keys().any(|cpu| theirs.contains(cpu));
            self.shows(t) && did && (t.target || beside())
        });
        let mut rows: Vec<ThreadSum> = shown.map(|t| self.row(t)).collect();
        rows.sort_by_key(|row| row.who.tid);
        rows
    }

    fn row(&self, t: &Thread) -> ThreadSum {
        let s = &t.sums;
        let mut row = ThreadSum {
            who: who(t),
            target: t.target,
            kthread: t.kthread,
            prio: Some(t.prio),
            run: s.run,
            cpus: s.cpus.iter().map(|(&cpu, &time)| (cpu, time)).collect(),
            affinity: Some(t.allowed.clone()).filter(|cpus| !cpus.is_empty()),
            allowed: u16::try_from(t.allowed.len()).ok().filter(|&n| n > 0),
            ..ThreadSum::default()
        };
        row.cpus.sort_by_key(|&(cpu, time)| (Reverse(time), cpu));
        if !t.target {
            return row;
        }
        row.runs = s.runs.clone();
        row.runq = s.runq.clone();
        row.runq_max_at = s.runq_max_at;
        row.runq_max_behind = s.behind.map(|tid| self.of_tid(tid));
        let off = OffReason::ALL.iter().zip(&s.off);
        row.off = off
            .filter(|(_, times)| times.any())
            .map(|(&reason, times)| OffSum {
                reason,
                count: times.count,
                total: times.total,
                max: times.max,
            })
            .collect();
        row.voluntary = s.voluntary;
        row.involuntary = s.involuntary;
        row.migrations = s.migrations;
        let wakers = s.wakers.iter().filter(|(_, &count)| count > 0);
        row.wakers = wakers.map(|(&by, &n)| (self.waker(by), n)).collect();
        row.wakers.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        row
    }

    fn waker(&self, by: By) -> Waker {
        let name = match by {
            By::Thread(tid) => return Waker::Thread(self.of_tid(tid)),
            By::HardIrq(irq) => {
                let name = self.scope.interrupts.get(&irq);
                name.cloned().unwrap_or_else(|| irq.to_string())
            }
            By::SoftIrq(vector) => softirq_name(vector),
            By::Timer => String::new(),
        };
        let context = WakerContext::of(by.context()).unwrap_or(WakerContext::Timer);
        Waker::Interrupt(context, name)
    }

    fn of_tid(&self, tid: Tid) -> Who {
        let unknown = || Who {
            pid: Pid(tid.0),
            tid,
            comm: if tid.0 == 0 { "swapper" } else { "?" }.to_string(),
        };
        self.names.get(&tid).cloned().unwrap_or_else(unknown)
    }

    fn cpus(&self, sums: &Closed) -> Vec<CpuSum> {
        let mut ran: BTreeMap<Cpu, Vec<(Who, Nanos)>> = BTreeMap::new();
        for thread in sums.threads.values() {
            for (&cpu, &time) in &thread.sums.cpus {
                ran.entry(cpu).or_default().push((who(thread), time));
            }
        }
        let cpus = sums.cpus.iter().map(|cpu| {
            let mut ran = ran.remove(&cpu.cpu).unwrap_or_default();
            ran.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
            CpuSum {
                cpu: cpu.cpu,
                busy: cpu.busy,
                idle: cpu.idle,
                unknown: cpu.unknown,
                irq: cpu.irq,
                switches: cpu.switches,
                ran,
            }
        });
        cpus.collect()
    }

    /// Of the threads that are shown.
    fn preemptors(&self, sums: &Closed) -> Vec<Preemptor> {
        let mut found: BTreeMap<Tid, Preemptor> = BTreeMap::new();
        let shown = sums.threads.values().filter(|t| t.target && self.shows(t));
        for victim in shown {
            for (&by, &(count, waited)) in &victim.sums.takers {
                let preemptor = found.entry(by).or_insert_with(|| Preemptor {
                    who: self.of_tid(by),
                    count: 0,
                    waited: Nanos::ZERO,
                    had: None,
                    victims: Vec::new(),
                });
                preemptor.count += count;
                preemptor.waited += waited;
                preemptor.victims.push((who(victim), count, waited));
            }
        }
        let mut all: Vec<Preemptor> = found.into_values().collect();
        for preemptor in &mut all {
            let victims = &mut preemptor.victims;
            victims.sort_by(|a, b| (b.2, &a.0).cmp(&(a.2, &b.0)));
            victims.truncate(LISTED);
        }
        all.sort_by(|a, b| (b.waited, &a.who).cmp(&(a.waited, &b.who)));
        all
    }

    fn notes(&self, sums: &Closed, doubts: Doubts) -> Vec<String> {
        let mut notes = Vec::new();
        if self.folded > 0 {
            notes.push(format!(
                "{} threads that ended are summed up by their names, as tid 0",
                Count(self.folded)
            ));
        }
        if doubts.no_place > Nanos::ZERO {
            notes.push(format!(
                "of {} of run time it is not known on which CPU it was: threads ran on too many",
                doubts.no_place
            ));
        }
        let all = sums.threads.values().filter(|t| t.target);
        let (wakeups, preemptions) = all.fold((0, 0), |(wakeups, preemptions), t| {
            (
                wakeups + t.sums.other_wakers,
                preemptions + t.sums.other_takers,
            )
        });
        for (count, what) in [(wakeups, "wakeups"), (preemptions, "preemptions")] {
            if count > 0 {
                notes.push(format!(
                    "by whom is not known of {} {what}: there were too many different ones",
                    Count(count)
                ));
            }
        }
        notes
    }
}

fn who(t: &Thread) -> Who {
    Who {
        pid: t.pid,
        tid: t.tid,
        comm: t.comm.clone(),
    }
}

/// One of those that share a row.
fn nameless(thread: Thread) -> Thread {
    Thread {
        tid: Tid(0),
        pid: Pid(0),
        born: Nanos::ZERO,
        ..thread
    }
}

/// What is later has its say about who it is.
fn merge(threads: &mut BTreeMap<Key, Thread>, key: Key, thread: &Thread) {
    match threads.get_mut(&key) {
        None => {
            threads.insert(key, thread.clone());
        }
        Some(known) => {
            let mut sums = std::mem::take(&mut known.sums);
            sums.merge(&thread.sums);
            *known = Thread {
                sums,
                ..thread.clone()
            };
        }
    }
}

/// Adds what goes on, as long as it does. As it is not over it is none of the whole times of a histogram.
fn close(thread: &Thread, scope: &Scope) -> Thread {
    let mut t = thread.clone();
    let state = t.state.take().filter(|_| scope.has(t.cpu));
    let (s, at) = (&mut t.sums, t.at);
    match state {
        None => {}
        Some(State::Running(since)) => {
            let time = at.saturating_sub(since.time());
            s.run += time;
            if let Some(cpu) = t.cpu {
                *s.cpus.entry(cpu).or_default() += time;
            }
        }
        Some(State::Off {
            since,
            reason,
            woken,
        }) => {
            let end = woken.unwrap_or(at);
            if let Some(times) = s.off.get_mut(usize::from(reason)) {
                times.add(since, end);
            }
            if let Some(woken) = woken {
                s.off[OffReason::Woken as usize].add(Since::At(woken), at);
            }
        }
    }
    t
}

fn close_cpu(cpu: &CpuSums, reading: &Reading) -> CpuSums {
    let mut closed = *cpu;
    let (since, IsIdle(idle)) = cpu.open.unwrap_or_else(|| {
        // No switch: whoever runs there has all the time.
        let there = |t: &&Thread| {
            t.cpu == Some(cpu.cpu) && matches!(t.state, Some(State::Running(Since::Before(_))))
        };
        let all = reading.threads.iter().chain(&reading.ended);
        (reading.start, IsIdle(all.filter(there).count() == 0))
    });
    closed.open = None;
    let time = reading.at.saturating_sub(since);
    if idle {
        closed.idle += time;
    } else {
        closed.busy += time;
    }
    closed
}

fn since(now: &Closed, before: &Closed) -> Closed {
    let threads = now.threads.iter().map(|(key, thread)| {
        let mut thread = thread.clone();
        if let Some(before) = before.threads.get(key) {
            thread.sums = thread.sums.since(&before.sums);
        }
        (key.clone(), thread)
    });
    let cpus = now.cpus.iter().map(|cpu| {
        let then = before.cpus.iter().find(|then| then.cpu == cpu.cpu);
        then.map_or(*cpu, |then| cpu.since(then))
    });
    Closed {
        start: if before.end == Nanos::ZERO {
            now.start
        } else {
            before.end
        },
        end: now.end,
        threads: threads.collect(),
        cpus: cpus.collect(),
    }
}
