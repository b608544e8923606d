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

/// Victims that are listed of a preemptor, and those who had the CPU of a thread that waited.
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
    /// Those among `ended` that are there all the same: who executes a program becomes the first thread.
    reborn: BTreeSet<Key>,
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

    pub fn add(&mut self, reading: Reading) {
        for thread in reading.ended.iter().chain(&reading.threads) {
            self.names.insert(thread.tid, who(thread));
        }
        let cpus = reading.cpus.iter().filter(|cpu| {
            self.scope.has(Some(cpu.cpu))
                && (cpu.switches > 0 || self.scope.online.contains(&cpu.cpu))
        });
        let cpus = cpus.map(|cpu| close_cpu(cpu, &reading)).collect();
        for thread in reading.ended {
            let key = Key::of(&thread);
            merge(&mut self.ended, key, close(thread, &self.scope));
        }
        self.fold();
        let mut threads = self.ended.clone();
        self.reborn.clear();
        for thread in reading.threads {
            let key = Key::of(&thread);
            if self.ended.contains_key(&key) {
                self.reborn.insert(key.clone());
            }
            merge(&mut threads, key, close(thread, &self.scope));
        }
        self.now = Closed {
            start: reading.start,
            end: reading.at,
            threads,
            cpus,
        };
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

    /// Likewise, for whoever wants nothing but this and for long: whoever ended is forgotten once it was told of,
    /// and there is no total any more.
    pub fn step(&mut self) -> Summary {
        let step = self.summary(&since(&self.now, &self.before));
        self.before = std::mem::take(&mut self.now);
        let reborn = &self.reborn;
        self.ended.retain(|key, _| {
            let stays = reborn.contains(key);
            if !stays {
                self.before.threads.remove(key);
            }
            stays
        });
        self.folded = 0;
        self.names.clear();
        step
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
                merge(&mut self.before.threads, by_name.clone(), nameless(before));
            }
            merge(&mut self.ended, by_name, nameless(thread));
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
        !t.own && (tids.is_empty() || t.here.is_some_and(|tid| tids.contains(&tid)))
    }

    fn rows(&self, sums: &Closed) -> Vec<ThreadSum> {
        let targets = sums.threads.values().filter(|t| t.target && !t.own);
        let theirs = targets.flat_map(|t| t.sums.cpus.keys().copied().chain(only_cpu(t)));
        let theirs: BTreeSet<Cpu> = theirs.collect();
        let shown = sums.threads.values().filter(|t| {
            let did = t.sums.run > Nanos::ZERO || t.sums.off.iter().any(Times::any);
            let beside = || t.sums.cpus.keys().any(|cpu| theirs.contains(cpu));
            self.shows(t) && did && (t.target || beside())
        });
        let mut rows: Vec<ThreadSum> = shown.map(|t| self.row(t, sums)).collect();
        rows.sort_by_key(|row| row.who.tid);
        rows
    }

    fn row(&self, t: &Thread, sums: &Closed) -> ThreadSum {
        let s = &t.sums;
        let mut row = ThreadSum {
            who: who(t),
            here: t.here,
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
        row.behind = behind(&row, t, sums);
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
        let torn = sums.threads.values().filter(|t| t.torn).count();
        if torn > 0 {
            notes.push(format!(
                "threads that switched each time they were read, so that parts of their sums are ahead of others: {}",
                Count(torn as u64)
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

/// The CPU that it may use, when it is one.
fn only_cpu(t: &Thread) -> Option<Cpu> {
    match t.allowed[..] {
        [cpu] => Some(cpu),
        _ => None,
    }
}

/// Who had the CPU of one that waited for it all the time: whoever ran there. Of waits that began or ended, and
/// of more than one CPU, the sums do not tell.
fn behind(row: &ThreadSum, t: &Thread, sums: &Closed) -> Vec<(Who, Nanos)> {
    /// Threads are read one after another.
    const READING: Nanos = Nanos::from_millis(1);
    let window = sums.end.saturating_sub(sums.start);
    let waited = row.waited();
    let Some(cpu) = only_cpu(t).filter(|_| row.is_starved() && waited + READING >= window) else {
        return Vec::new();
    };
    let ran = sums.threads.values().filter_map(|other| {
        let time = other.sums.cpus.get(&cpu)?;
        Some((who(other), (*time).min(waited)))
    });
    let mut ran: Vec<(Who, Nanos)> = ran.collect();
    ran.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    ran.truncate(LISTED);
    ran
}

/// One of those that share a row.
fn nameless(thread: Thread) -> Thread {
    Thread {
        tid: Tid(0),
        pid: Pid(0),
        here: None,
        born: Nanos::ZERO,
        ..thread
    }
}

/// What is later has its say about who it is.
fn merge(threads: &mut BTreeMap<Key, Thread>, key: Key, thread: Thread) {
    match threads.get_mut(&key) {
        None => {
            threads.insert(key, thread);
        }
        Some(known) => {
            let mut sums = std::mem::take(&mut known.sums);
            sums.merge(&thread.sums);
            *known = Thread { sums, ..thread };
        }
    }
}

/// Adds what goes on, as long as it does. As it is not over it is none of the whole times of a histogram.
fn close(mut t: Thread, scope: &Scope) -> Thread {
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
            if let Some(taker) = t.taker {
                s.add_taker(taker, 1, end.saturating_sub(since.time()));
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
        let sums = match before.threads.get(key) {
            Some(before) => thread.sums.since(&before.sums),
            None => thread.sums.clone(),
        };
        let thread = Thread {
            sums,
            comm: thread.comm.clone(),
            allowed: thread.allowed.clone(),
            ..*thread
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::sched::pinning;
    use crate::decode::sched_sum::Sums;
    use crate::histogram::Histogram;

    const MS: u64 = 1_000_000;

    fn thread(tid: u32, comm: &str) -> Thread {
        Thread {
            tid: Tid(tid),
            pid: Pid(tid),
            here: Some(Tid(tid)),
            comm: comm.to_string(),
            prio: 120,
            born: Nanos(u64::from(tid)),
            at: Nanos(110 * MS),
            target: true,
            kthread: false,
            own: false,
            torn: false,
            allowed: vec![Cpu(0), Cpu(1)],
            state: None,
            taker: None,
            cpu: Some(Cpu(0)),
            sums: Sums::default(),
        }
    }

    fn ran(mut thread: Thread, cpu: u16, ns: u64) -> Thread {
        thread.sums.run += Nanos(ns);
        *thread.sums.cpus.entry(Cpu(cpu)).or_default() += Nanos(ns);
        thread.cpu = Some(Cpu(cpu));
        thread
    }

    fn reading(threads: Vec<Thread>, ended: Vec<Thread>) -> Reading {
        let cpu = |cpu| CpuSums {
            cpu: Cpu(cpu),
            ..CpuSums::default()
        };
        Reading {
            start: Nanos(10 * MS),
            at: Nanos(110 * MS),
            threads,
            ended,
            cpus: vec![cpu(0), cpu(1), cpu(2)],
        }
    }

    fn live() -> Live {
        Live::new(Scope {
            online: vec![Cpu(0), Cpu(1)],
            ..Scope::default()
        })
    }

    fn total(reading: Reading) -> Summary {
        let mut live = live();
        live.add(reading);
        live.total()
    }

    #[test]
    fn what_goes_on_is_time_but_no_whole_time() {
        let mut runs = thread(1, "runs");
        runs.state = Some(State::Running(Since::At(Nanos(100 * MS))));
        let mut waits = thread(2, "waits");
        waits.state = Some(State::Off {
            since: Since::Before(Nanos(10 * MS)),
            reason: OffReason::Futex as u8,
            woken: Some(Nanos(90 * MS)),
        });
        let summary = total(reading(vec![runs, waits], Vec::new()));
        let [runs, waits] = &summary.threads[..] else {
            panic!("{summary:?}");
        };
        assert_eq!((runs.run, runs.runs.count), (Nanos(10 * MS), 0));
        assert_eq!(runs.cpus, [(Cpu(0), Nanos(10 * MS))]);
        let off = |reason, count, ns| OffSum {
            reason,
            count,
            total: Nanos(ns),
            max: Some(Nanos(ns)),
        };
        assert_eq!(
            waits.off,
            [
                off(OffReason::Woken, 1, 20 * MS),
                off(OffReason::Futex, 0, 80 * MS)
            ]
        );
        assert_eq!(waits.runq.count, 0);
    }

    fn waits(tid: u32, comm: &str, reason: OffReason, since: Since) -> Thread {
        Thread {
            state: Some(State::Off {
                since,
                reason: reason as u8,
                woken: None,
            }),
            ..thread(tid, comm)
        }
    }

    #[test]
    fn who_waits_for_its_cpu_all_the_time_is_told_of_with_who_had_it() {
        let before = Since::Before(Nanos(10 * MS));
        let mut starved = waits(1, "starved", OffReason::Woken, before);
        starved.allowed = vec![Cpu(1)];
        let hog = ran(thread(2, "hog"), 1, 98 * MS);
        let hog = Thread {
            target: false,
            ..ran(hog, 0, 2 * MS)
        };
        let asleep = waits(3, "asleep", OffReason::Poll, before);
        let summary = total(reading(vec![starved, hog, asleep], Vec::new()));
        let [starved, hog, asleep] = &summary.threads[..] else {
            panic!("{summary:?}");
        };
        assert!(starved.is_starved() && !hog.is_starved() && !asleep.is_starved());
        assert!(asleep.is_asleep() && !starved.is_asleep());
        assert_eq!((starved.waited(), starved.runq.count), (Nanos(100 * MS), 0));
        assert_eq!(starved.longest_wait_text(), ">=100 ms");
        assert_eq!(starved.behind, [(hog.who.clone(), Nanos(98 * MS))]);

        let verdicts = pinning::judge(&summary);
        let [verdict] = &verdicts[..] else {
            panic!("{verdicts:?}");
        };
        assert_eq!((&*verdict.who.comm, verdict.fine), ("starved", false));
        assert_eq!(verdict.says, "never ran: it waited for a CPU all 100 ms");
        assert_eq!(
            verdict.evidence[..2],
            [
                "it may use CPU 1",
                "hog:2 had its CPU for 98.0 ms of that (98.0 %)"
            ]
        );
    }

    #[test]
    fn who_had_the_cpu_of_one_that_may_use_several_is_not_known() {
        let before = Since::Before(Nanos(10 * MS));
        let starved = waits(1, "starved", OffReason::Woken, before);
        let summary = total(reading(vec![starved, ran(thread(2, "hog"), 1, MS)], vec![]));
        assert!(summary.threads[0].is_starved());
        assert_eq!(summary.threads[0].behind, []);
        let verdict = pinning::of_thread(&summary, &summary.threads[0]);
        assert_eq!(verdict.evidence[0], "it may use CPUs 0-1");
    }

    #[test]
    fn a_wait_that_goes_on_is_of_whoever_took_the_cpu() {
        let since = Since::At(Nanos(30 * MS));
        let preempted = ran(waits(1, "victim", OffReason::Preempted, since), 0, 20 * MS);
        let preempted = Thread {
            taker: Some(Tid(2)),
            ..preempted
        };
        let hog = ran(thread(2, "hog"), 0, 80 * MS);
        let mut live = live();
        live.add(reading(vec![preempted.clone(), hog.clone()], Vec::new()));
        let summary = live.interval();
        assert_eq!(summary.threads[0].waited(), Nanos(80 * MS));
        let preemptor = &summary.preemptors[0];
        assert_eq!((&*preemptor.who.comm, preemptor.count), ("hog", 1));
        assert_eq!(preemptor.waited, Nanos(80 * MS));

        // And it still goes on.
        let later = |t: Thread| Thread {
            at: Nanos(210 * MS),
            ..t
        };
        let mut next = reading(
            vec![later(preempted), later(ran(hog, 0, 100 * MS))],
            Vec::new(),
        );
        next.at = Nanos(210 * MS);
        live.add(next);
        let summary = live.interval();
        assert!(summary.threads[0].is_starved());
        let preemptor = &summary.preemptors[0];
        assert_eq!((preemptor.count, preemptor.waited), (0, Nanos(100 * MS)));
        let verdict = pinning::of_thread(&summary, &summary.threads[0]);
        assert_eq!(verdict.says, "never ran: it waited for a CPU all 100 ms");
    }

    #[test]
    fn a_cpu_without_switches_is_busy_when_somebody_runs_there() {
        let mut runs = thread(1, "runs");
        runs.state = Some(State::Running(Since::Before(Nanos(10 * MS))));
        let summary = total(reading(vec![runs], Vec::new()));
        // CPU 2 is not there.
        let [first, second] = &summary.cpus[..] else {
            panic!("{:?}", summary.cpus);
        };
        assert_eq!((first.busy, first.idle), (Nanos(100 * MS), Nanos::ZERO));
        assert_eq!((second.busy, second.idle), (Nanos::ZERO, Nanos(100 * MS)));
        assert_eq!(first.ran[0].0.comm, "runs");
    }

    #[test]
    fn threads_are_asked_for_by_their_numbers_here() {
        let mut inside = ran(thread(7000, "inside"), 0, MS);
        inside.here = Some(Tid(7));
        inside.torn = true;
        let mut outside = ran(thread(7, "outside"), 0, MS);
        outside.here = None;
        let mut live = live();
        live.scope.tids = vec![Tid(7)];
        live.add(reading(vec![inside, outside], Vec::new()));
        let summary = live.total();
        let rows: Vec<_> = summary.threads.iter().map(|t| &*t.who.comm).collect();
        assert_eq!(rows, ["inside"]);
        assert_eq!(summary.threads[0].here, Some(Tid(7)));
        assert!(summary.notes[0].ends_with("ahead of others: 1"));
    }

    #[test]
    fn gdiag_is_no_row_but_has_had_its_time() {
        let mut own = ran(thread(5, "gdiag"), 0, 3 * MS);
        own.own = true;
        let mut victim = ran(thread(1, "victim"), 0, MS);
        victim.sums.takers.insert(Tid(5), (2, Nanos(MS)));
        victim.sums.wakers.insert(By::Thread(Tid(5)), 1);
        let summary = total(reading(vec![own, victim], Vec::new()));
        assert_eq!(summary.threads.len(), 1);
        assert_eq!(summary.cpus[0].ran[0].0.comm, "gdiag");
        let preemptor = &summary.preemptors[0];
        assert_eq!((preemptor.who.comm.as_str(), preemptor.count), ("gdiag", 2));
        assert_eq!(preemptor.victims[0].0.comm, "victim");
        let Waker::Thread(waker) = &summary.threads[0].wakers[0].0 else {
            panic!("{:?}", summary.threads[0].wakers);
        };
        assert_eq!(waker.comm, "gdiag");
    }

    #[test]
    fn strangers_are_those_on_the_same_cpus() {
        let mut beside = ran(thread(2, "beside"), 0, MS);
        let mut elsewhere = ran(thread(3, "elsewhere"), 1, MS);
        (beside.target, elsewhere.target) = (false, false);
        let target = ran(thread(1, "target"), 0, MS);
        let summary = total(reading(vec![target, beside, elsewhere], Vec::new()));
        let names: Vec<&str> = summary.threads.iter().map(|t| &*t.who.comm).collect();
        assert_eq!(names, ["target", "beside"]);
        assert!(summary.threads[1].is_stranger());
        assert_eq!(summary.cpus[1].ran[0].0.comm, "elsewhere");
    }

    #[test]
    fn an_interval_is_what_came_since_the_last() {
        let mut live = live();
        let first = ran(thread(1, "a"), 0, 10 * MS);
        live.add(reading(vec![first.clone()], Vec::new()));
        assert_eq!(live.interval().threads[0].run, Nanos(10 * MS));

        // It ends, and another comes with its number.
        let end = ran(first, 0, 5 * MS);
        let mut other = ran(thread(1, "b"), 1, MS);
        other.born = Nanos(77);
        let mut later = reading(vec![other], vec![end]);
        later.at = Nanos(210 * MS);
        live.add(later);
        let part = live.interval();
        assert_eq!((part.start, part.end), (Nanos(110 * MS), Nanos(210 * MS)));
        let rows: Vec<_> = part
            .threads
            .iter()
            .map(|t| (t.who.comm.as_str(), t.run.0 / MS))
            .collect();
        assert_eq!(rows, [("a", 5), ("b", 1)]);
        let rows: Vec<u64> = live.total().threads.iter().map(|t| t.run.0 / MS).collect();
        assert_eq!(rows, [15, 1]);
    }

    #[test]
    fn a_step_tells_of_who_ended_in_it_and_the_next_does_not_know_them() {
        let mut live = live();
        let run = |summary: &Summary| -> Vec<(u32, u64)> {
            let rows = summary.threads.iter();
            rows.map(|t| (t.who.tid.0, t.run.0 / MS)).collect()
        };
        let (one, two) = (ran(thread(1, "a"), 0, 10 * MS), thread(2, "b"));
        live.add(reading(vec![one.clone(), two.clone()], Vec::new()));
        assert_eq!(run(&live.step()), [(1, 10)]);

        // One ends; and another thread of the process of two executes a program, and becomes its first thread.
        let (one, two) = (ran(one, 0, 5 * MS), ran(two, 0, 7 * MS));
        let new = ran(thread(2, "c"), 1, MS);
        live.add(reading(vec![new.clone()], vec![one, two]));
        assert_eq!(run(&live.step()), [(1, 5), (2, 8)]);
        let keys: Vec<u32> = live.ended.keys().map(|key| key.tid.0).collect();
        assert_eq!(keys, [2]);

        let new = ran(new, 1, 2 * MS);
        live.add(reading(vec![new.clone()], Vec::new()));
        assert_eq!(run(&live.step()), [(2, 2)]);
        live.add(reading(Vec::new(), vec![ran(new, 1, 3 * MS)]));
        assert_eq!(run(&live.step()), [(2, 3)]);
        assert!(live.ended.is_empty() && live.before.threads.is_empty());
    }

    #[test]
    fn of_many_that_ended_the_oldest_share_rows() {
        let mut live = live();
        let ended = (1..=20_000).map(|tid| {
            let mut t = ran(thread(tid, if tid % 2 == 0 { "even" } else { "odd" }), 0, 3);
            t.at = Nanos(u64::from(tid));
            t.sums.runs = {
                let mut runs = Histogram::default();
                runs.add(Nanos(3));
                runs
            };
            t
        });
        live.add(reading(Vec::new(), ended.collect()));
        let summary = live.total();
        assert!(summary.threads.len() <= MOST_ENDED);
        let run: Nanos = summary.threads.iter().map(|t| t.run).sum();
        let runs: u64 = summary.threads.iter().map(|t| t.runs.count).sum();
        assert_eq!((run, runs), (Nanos(60_000), 20_000));
        let shared = summary.threads.iter().filter(|t| t.who.tid == Tid(0));
        assert_eq!(shared.count(), 2);
        assert!(
            summary.notes[0].contains("8,192 threads"),
            "{:?}",
            summary.notes
        );
    }

    #[test]
    fn the_kernel_is_told_what_a_sleep_means() {
        let calls = syscall::Table::of_machine("x86_64");
        let sleeps = sleeps(calls);
        let said = |row: usize, column: usize| OffReason::ALL[usize::from(sleeps[row][column])];
        assert_eq!(said(202, 0), OffReason::Futex);
        assert_eq!(said(0, 0), OffReason::File);
        assert_eq!(said(0, SLEEP_IOWAIT | SLEEP_UNINTERRUPTIBLE), OffReason::Io);
        assert_eq!(said(SLEEP_NO_CALL, SLEEP_IOWAIT), OffReason::Fault);
        assert_eq!(said(SLEEP_KTHREAD, SLEEP_IOWAIT), OffReason::Io);
        assert_eq!(said(509, 0), OffReason::Other);
    }
}
