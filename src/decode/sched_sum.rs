//! What the kernel added up of the scheduler → typed values.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use crate::collect::sched_sum::{types, Raw};
use crate::collect::wire::read_cut;
use crate::event::{Context, Cpu, Pid, Tid};
use crate::histogram::Histogram;
use crate::units::Nanos;

use types::{gdiag_ctx as ctx, gdiag_late as late, gdiag_off as why, gdiag_sum_flags as flags};

/// Reasons to be off the CPU, as `enum gdiag_off` numbers them.
pub const REASONS: usize = why::GDIAG_OFF_REASONS.0 as usize;

/// The first ones are waits for a CPU.
const RUNNABLE: usize = why::GDIAG_OFF_YIELDED.0 as usize + 1;
const WOKEN: u8 = why::GDIAG_OFF_WOKEN.0 as u8;
const PREEMPTED: u8 = why::GDIAG_OFF_PREEMPTED.0 as u8;
const THROTTLED: u8 = why::GDIAG_OFF_THROTTLED.0 as u8;

/// `GDIAG_BY_THREAD` and `GDIAG_BY_INTERRUPT`.
const BY_THREAD: u32 = 0x4000_0000;
const BY_INTERRUPT: u32 = 0x8000_0000;

/// A wake may be stamped just before the switch-out that it ends, on another CPU.
const EARLY_WAKE: Nanos = Nanos::from_micros(50);

/// Length of a record before its sums.
const HEAD: usize = std::mem::offset_of!(types::gdiag_thread_sum, sums);

/// All sums since `start`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    pub start: Nanos,
    pub at: Nanos,
    /// Those that are there.
    pub threads: Vec<Thread>,
    /// Those that ended since the last reading.
    pub ended: Vec<Thread>,
    pub cpus: Vec<CpuSums>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    pub tid: Tid,
    pub pid: Pid,
    /// Its number where gdiag runs; `None`: it has none there.
    pub here: Option<Tid>,
    pub comm: String,
    pub prio: u32,
    /// When it was made: with the tid, it names a thread for good.
    pub born: Nanos,
    /// Until when it is summed up.
    pub at: Nanos,
    pub target: bool,
    pub kthread: bool,
    /// It is gdiag's.
    pub own: bool,
    /// It was changed each time it was read.
    pub torn: bool,
    /// CPUs that it may run on.
    pub allowed: Vec<Cpu>,
    /// What it does at `at`, which is in no sum; `None`: it has ended.
    pub state: Option<State>,
    /// Who took the CPU that it waits for.
    pub taker: Option<Tid>,
    /// Where it runs or ran last.
    pub cpu: Option<Cpu>,
    pub sums: Sums,
}

/// What goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running(Since),
    Off {
        since: Since,
        /// Number of the reason.
        reason: u8,
        /// It sleeps no more, but waits for a CPU.
        woken: Option<Nanos>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Longer than anybody watches.
    Before(Nanos),
    At(Nanos),
}

impl Since {
    pub fn time(self) -> Nanos {
        match self {
            Since::Before(time) | Since::At(time) => time,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    pub run: Nanos,
    pub runs: Histogram,
    pub runq: Histogram,
    pub runq_max_at: Option<Nanos>,
    /// Who had the CPU before; `None`: its idle task.
    pub behind: Option<Tid>,
    /// By number of the reason.
    pub off: [Times; REASONS],
    pub voluntary: u64,
    pub involuntary: u64,
    pub migrations: u64,
    pub cpus: BTreeMap<Cpu, Nanos>,
    pub wakers: BTreeMap<By, u64>,
    /// Wakeups by others that there was no room for.
    pub other_wakers: u64,
    /// Who took its CPU: how often, and how long it waited each time until it ran again.
    pub takers: BTreeMap<Tid, (u64, Nanos)>,
    /// The same of others that there was no room for.
    pub other_takers: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub count: u64,
    pub total: Nanos,
    /// The longest; `None`: not known, or there is none.
    pub max: Option<Nanos>,
}

impl Times {
    pub fn any(&self) -> bool {
        self.total > Nanos::ZERO || self.count > 0
    }

    /// A time that is not over at `end`. What began before anybody watched is not counted as one.
    pub fn add(&mut self, since: Since, end: Nanos) {
        let time = end.saturating_sub(since.time());
        self.merge(&Times {
            count: u64::from(matches!(since, Since::At(_))),
            total: time,
            max: Some(time),
        });
    }

    fn merge(&mut self, other: &Times) {
        if !self.any() {
            self.max = other.max;
        } else if other.any() {
            self.max = self.max.zip(other.max).map(|(a, b)| a.max(b));
        }
        self.count += other.count;
        self.total += other.total;
    }

    /// The longest of a part is known when it is the longest of all, and began in it.
    fn since(&self, before: &Times) -> Times {
        let total = self.total.saturating_sub(before.total);
        let is_new = !before.any() || self.max > before.max;
        Times {
            count: self.count.saturating_sub(before.count),
            total,
            max: self.max.filter(|&max| is_new && max <= total),
        }
    }
}

impl Sums {
    pub fn merge(&mut self, other: &Sums) {
        if other.runq.max > self.runq.max || self.runq_max_at.is_none() {
            self.runq_max_at = other.runq_max_at;
            self.behind = other.behind;
        }
        self.run += other.run;
        self.runs.merge(&other.runs);
        self.runq.merge(&other.runq);
        for (mine, theirs) in self.off.iter_mut().zip(&other.off) {
            mine.merge(theirs);
        }
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
        self.migrations += other.migrations;
        self.other_wakers += other.other_wakers;
        self.other_takers += other.other_takers;
        for (&by, &(count, waited)) in &other.takers {
            self.add_taker(by, count, waited);
        }
        for (&cpu, &time) in &other.cpus {
            *self.cpus.entry(cpu).or_default() += time;
        }
        for (&by, &count) in &other.wakers {
            *self.wakers.entry(by).or_default() += count;
        }
    }

    pub fn add_taker(&mut self, by: Tid, count: u64, waited: Nanos) {
        let entry = self.takers.entry(by).or_default();
        *entry = (entry.0 + count, entry.1 + waited);
    }

    /// What has come since `before`, which is an earlier state of the same.
    pub fn since(&self, before: &Sums) -> Sums {
        let mut off = self.off;
        for (now, then) in off.iter_mut().zip(&before.off) {
            *now = now.since(then);
        }
        // Who had the longest wait before may still have it.
        let longest = self.runq_max_at != before.runq_max_at;
        let cpus = self.cpus.iter().map(|(&cpu, &time)| {
            let then = before.cpus.get(&cpu).copied().unwrap_or_default();
            (cpu, time.saturating_sub(then))
        });
        let wakers = self.wakers.iter().map(|(&by, &count)| {
            let then = before.wakers.get(&by).copied().unwrap_or_default();
            (by, count.saturating_sub(then))
        });
        let takers = self.takers.iter().map(|(&by, &(count, waited))| {
            let then = before.takers.get(&by).copied().unwrap_or_default();
            let count = count.saturating_sub(then.0);
            (by, (count, waited.saturating_sub(then.1)))
        });
        Sums {
            run: self.run.saturating_sub(before.run),
            runs: self.runs.since(&before.runs),
            runq: self.runq.since(&before.runq),
            runq_max_at: self.runq_max_at.filter(|_| longest),
            behind: self.behind.filter(|_| longest),
            off,
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
            migrations: self.migrations.saturating_sub(before.migrations),
            cpus: cpus.filter(|(_, time)| *time > Nanos::ZERO).collect(),
            wakers: wakers.filter(|(_, count)| *count > 0).collect(),
            other_wakers: self.other_wakers.saturating_sub(before.other_wakers),
            takers: takers
                .filter(|(_, (count, waited))| *count > 0 || *waited > Nanos::ZERO)
                .collect(),
            other_takers: self.other_takers.saturating_sub(before.other_takers),
        }
    }
}

/// Who or what woke a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    Thread(Tid),
    HardIrq(u16),
    SoftIrq(u16),
    Timer,
}

impl By {
    fn of(number: u32) -> Option<By> {
        if number & BY_THREAD != 0 {
            return Some(By::Thread(Tid(number & !BY_THREAD)));
        }
        if number & BY_INTERRUPT == 0 {
            return None;
        }
        let vector = (number & 0xffff) as u16;
        match ctx(number >> 16 & 0xff) {
            ctx::GDIAG_CTX_HARDIRQ => Some(By::HardIrq(vector)),
            ctx::GDIAG_CTX_SOFTIRQ => Some(By::SoftIrq(vector)),
            ctx::GDIAG_CTX_TIMER => Some(By::Timer),
            _ => None,
        }
    }

    pub fn context(self) -> Context {
        match self {
            By::Thread(_) => Context::Task,
            By::HardIrq(irq) => Context::HardIrq(irq),
            By::SoftIrq(vector) => Context::SoftIrq(vector),
            By::Timer => Context::Timer,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSums {
    pub cpu: Cpu,
    pub busy: Nanos,
    pub idle: Nanos,
    pub unknown: Nanos,
    pub irq: Nanos,
    pub switches: u64,
    /// Since the last switch; `None`: there was none.
    pub open: Option<(Nanos, IsIdle)>,
    pub doubts: Doubts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsIdle(pub bool);

/// What is missing in the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Switches and wakeups that must have been and were not seen.
    pub missed: u64,
    /// Switches and wakeups that there was no memory to add up for.
    pub no_memory: u64,
    /// Threads that ended and whose sums found no room.
    pub unsent: u64,
    /// Run time of which it is not known on which CPU it was.
    pub no_place: Nanos,
}

impl CpuSums {
    pub fn since(&self, before: &CpuSums) -> CpuSums {
        CpuSums {
            cpu: self.cpu,
            busy: self.busy.saturating_sub(before.busy),
            idle: self.idle.saturating_sub(before.idle),
            unknown: self.unknown.saturating_sub(before.unknown),
            irq: self.irq.saturating_sub(before.irq),
            switches: self.switches.saturating_sub(before.switches),
            open: self.open,
            doubts: self.doubts.since(before.doubts),
        }
    }
}

impl Doubts {
    pub fn plus(self, other: Doubts) -> Doubts {
        Doubts {
            missed: self.missed + other.missed,
            no_memory: self.no_memory + other.no_memory,
            unsent: self.unsent + other.unsent,
            no_place: self.no_place + other.no_place,
        }
    }

    fn since(self, before: Doubts) -> Doubts {
        Doubts {
            missed: self.missed.saturating_sub(before.missed),
            no_memory: self.no_memory.saturating_sub(before.no_memory),
            unsent: self.unsent.saturating_sub(before.unsent),
            no_place: self.no_place.saturating_sub(before.no_place),
        }
    }
}

impl Reading {
    pub fn decode(raw: &Raw) -> Reading {
        let mut reading = Reading {
            start: raw.start,
            at: raw.at,
            threads: threads(&raw.threads, raw),
            ended: threads(&raw.ended, raw),
            cpus: (0..).map(Cpu).zip(&raw.cpus).map(cpu).collect(),
        };
        reading.drop_doubles();
        reading.add_more(raw);
        reading
    }

    /// A thread that ended while they were read is there twice. (One that ended before, and has the number and
    /// the birth of one that is there, is another all the same: who executes a program takes both from
    /// the first thread of the process.)
    fn drop_doubles(&mut self) {
        let ended = self.ended.iter().map(|t| ((t.tid, t.born), t.at));
        let ended: HashMap<_, _> = ended.collect();
        self.threads.retain(|t| {
            let end = ended.get(&(t.tid, t.born));
            end.is_none_or(|&end| end < t.at)
        });
    }

    /// What the kernel's memory of a thread has no room for is in maps, by tid.
    fn add_more(&mut self, raw: &Raw) {
        // Of those that have had a number the last.
        let all = self.ended.iter_mut().chain(&mut self.threads);
        let mut all: HashMap<u32, &mut Sums> = all.map(|t| (t.tid.0, &mut t.sums)).collect();
        for (pair, sum) in &raw.places {
            if let (Some(sums), Some(cpu)) = (all.get_mut(&pair.tid), number(pair.other)) {
                *sums.cpus.entry(cpu).or_default() += Nanos(sum.ns);
            }
        }
        for (pair, sum) in &raw.takers {
            if let Some(sums) = all.get_mut(&pair.tid) {
                sums.add_taker(Tid(pair.other), sum.count, Nanos(sum.ns));
            }
        }
        for (pair, sum) in &raw.wakers {
            if let (Some(sums), Some(by)) = (all.get_mut(&pair.tid), By::of(pair.other)) {
                *sums.wakers.entry(by).or_default() += sum.count;
            }
        }
    }
}

fn number(cpu: u32) -> Option<Cpu> {
    u16::try_from(cpu).ok().map(Cpu)
}

/// Records one after another, each with its size in front.
fn threads(mut bytes: &[u8], raw: &Raw) -> Vec<Thread> {
    let mut threads = Vec::new();
    while let Some(size) = read_size(bytes) {
        let Some(record) = bytes.get(..size) else {
            break;
        };
        if let Some(record) = read_cut::<types::gdiag_thread_sum>(record, HEAD) {
            threads.push(thread(&record, raw));
        }
        bytes = bytes.get(size..).unwrap_or_default();
    }
    threads
}

fn read_size(bytes: &[u8]) -> Option<usize> {
    let size = u32::from_ne_bytes(*bytes.first_chunk()?);
    let size = usize::try_from(size).ok()?;
    (size >= HEAD).then_some(size)
}

fn thread(r: &types::gdiag_thread_sum, raw: &Raw) -> Thread {
    let has = |flag: flags| u32::from(r.flags) & flag.0 != 0;
    let comm: Vec<u8> = r.comm.iter().map(|c| c.cast_unsigned()).collect();
    let comm = comm.split(|&c| c == 0).next().unwrap_or_default();
    let known = r.sums.cpu.checked_sub(1).unwrap_or(r.cpu);
    let allowed = (0..).map(Cpu).zip(bits(&r.allowed));
    Thread {
        tid: Tid(r.tid),
        pid: Pid(r.pid),
        here: (r.proc_tid != 0).then_some(Tid(r.proc_tid)),
        comm: String::from_utf8_lossy(comm).into_owned(),
        prio: r.prio,
        born: Nanos(r.start_ns),
        at: Nanos(r.now_ns),
        target: has(flags::GDIAG_SUM_TARGET),
        kthread: has(flags::GDIAG_SUM_KTHREAD),
        own: has(flags::GDIAG_SUM_OWN),
        torn: has(flags::GDIAG_SUM_TORN),
        allowed: allowed.filter_map(|(cpu, is)| is.then_some(cpu)).collect(),
        state: state(r, raw),
        taker: taker(r),
        cpu: number(known),
        sums: sums(&r.sums),
    }
}

fn bits(words: &[u64]) -> impl Iterator<Item = bool> + '_ {
    words
        .iter()
        .flat_map(|word| (0..u64::BITS).map(move |bit| word >> bit & 1 != 0))
}

/// `None`: it has ended, or is not known. A switch that was hidden leaves a thread running for good.
fn state(r: &types::gdiag_thread_sum, raw: &Raw) -> Option<State> {
    let s = &r.sums;
    let has = |flag: flags| u32::from(r.flags) & flag.0 != 0;
    let ended = has(flags::GDIAG_SUM_ENDED);
    let on_cpu = |cpu: u32| {
        let cpu = usize::try_from(cpu).ok().and_then(|cpu| raw.cpus.get(cpu));
        cpu.map(|cpu| cpu.sums.task)
    };
    if s.seen == 0 {
        return unseen(r, raw, on_cpu(r.cpu));
    }
    if s.on != 0 {
        let still = ended || on_cpu(s.cpu.wrapping_sub(1)) == Some(r.task);
        return still.then_some(State::Running(Since::At(Nanos(s.on_ns))));
    }
    if ended {
        return None;
    }
    let (off, woken) = (Nanos(s.off_ns), Nanos(s.woken_ns));
    let is_woken = s.reason > THROTTLED && s.woken_ns != 0 && woken + EARLY_WAKE >= off;
    // It sleeps: it has run since it was woken, and that was hidden.
    let is_woken = is_woken && r.reason == WOKEN;
    Some(State::Off {
        since: Since::At(off),
        reason: s.reason,
        woken: is_woken.then(|| woken.max(off)),
    })
}

/// Nobody, where its CPU had nothing else to run: it was moved, or held back.
fn taker(r: &types::gdiag_thread_sum) -> Option<Tid> {
    let s = &r.sums;
    let has_ended = u32::from(r.flags) & flags::GDIAG_SUM_ENDED.0 != 0;
    let waits = s.seen != 0 && s.on == 0 && s.reason == PREEMPTED && !has_ended;
    (waits && s.preemptor != 0).then_some(Tid(s.preemptor))
}

/// One that has had no switch. `task` is who runs on its CPU: 0 where there was no switch either.
fn unseen(r: &types::gdiag_thread_sum, raw: &Raw, task: Option<u64>) -> Option<State> {
    let s = &r.sums;
    let has = |flag: flags| u32::from(r.flags) & flag.0 != 0;
    if r.start_ns > r.now_ns {
        // Made after the stop.
        return None;
    }
    let since = if r.start_ns > raw.start.0 {
        Since::At(Nanos(r.start_ns))
    } else {
        Since::Before(raw.start)
    };
    let off = |reason, woken| State::Off {
        since,
        reason,
        woken,
    };
    if s.woken_ns != 0 && r.reason == WOKEN {
        return Some(off(s.reason, Some(Nanos(s.woken_ns).max(since.time()))));
    }
    match late(u32::from(s.late)) {
        late::GDIAG_LATE_RAN => Some(State::Running(since)),
        late::GDIAG_LATE_WAITED => Some(off(WOKEN, None)),
        late::GDIAG_LATE_SLEPT => Some(off(s.reason, None)),
        _ if has(flags::GDIAG_SUM_ENDED) => None,
        _ if has(flags::GDIAG_SUM_ON_CPU) => (task == Some(0)).then_some(State::Running(since)),
        _ => Some(off(r.reason, None)),
    }
}

fn sums(s: &types::gdiag_thread_sums) -> Sums {
    let mut off = s.off.map(|sum| Times {
        count: sum.count,
        total: Nanos(sum.total_ns),
        max: (sum.count > 0 || sum.total_ns > 0).then_some(Nanos(sum.max_ns)),
    });
    let runq = &off[..RUNNABLE];
    let runq = Histogram::from_parts(
        runq.iter().map(|times| times.count).sum(),
        runq.iter().map(|times| times.total).sum(),
        (Nanos(s.runq_min_ns), Nanos(s.runq_max_ns)),
        s.runqs.iter().map(|&n| u64::from(n)),
    );
    let first = Nanos(s.first_wait_ns);
    // What it was that ended before the start is not known.
    off[usize::from(WOKEN)].merge(&Times {
        count: 0,
        total: first,
        max: (first > Nanos::ZERO).then_some(first),
    });
    let whole = s.run_ns.saturating_sub(s.first_run_ns);
    let runs = Histogram::from_parts(
        s.run_count,
        Nanos(whole),
        (Nanos(s.run_min_ns), Nanos(s.run_max_ns)),
        s.runs.iter().map(|&n| u64::from(n)),
    );
    let mut cpus = BTreeMap::new();
    for place in s.places.iter().filter(|place| place.ns > 0) {
        if let Some(cpu) = place.cpu.checked_sub(1).and_then(number) {
            *cpus.entry(cpu).or_default() += Nanos(place.ns);
        }
    }
    let wakers = s.wakers.iter().zip(s.waker_counts);
    Sums {
        run: Nanos(s.run_ns),
        runs,
        runq,
        runq_max_at: (s.runq_max_at_ns != 0).then_some(Nanos(s.runq_max_at_ns)),
        behind: (s.behind != 0).then_some(Tid(s.behind)),
        off,
        voluntary: s.voluntary,
        involuntary: s.involuntary,
        migrations: s.migrations,
        cpus,
        wakers: wakers
            .filter_map(|(&by, count)| Some((By::of(by)?, count)))
            .collect(),
        other_wakers: s.other_wakers,
        takers: (s.taken_count > 0)
            .then_some((Tid(s.taken_by), (s.taken_count, Nanos(s.taken_ns))))
            .into_iter()
            .collect(),
        other_takers: s.other_takers,
    }
}

fn cpu((cpu, data): (Cpu, &types::cpu_data)) -> CpuSums {
    let s = &data.sums;
    CpuSums {
        cpu,
        busy: Nanos(s.busy_ns),
        idle: Nanos(s.idle_ns),
        unknown: Nanos(s.unknown_ns),
        irq: Nanos(s.irq_ns),
        switches: s.switches,
        open: (s.task != 0).then_some((Nanos(s.since_ns), IsIdle(s.idle != 0))),
        doubts: Doubts {
            missed: s.missed,
            no_memory: s.no_memory,
            unsent: s.unsent,
            no_place: Nanos(s.no_place),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::wire::as_bytes;

    const START: u64 = 1_000_000;
    const NOW: u64 = 5_000_000;

    fn record(tid: u32) -> types::gdiag_thread_sum {
        let mut r = types::gdiag_thread_sum {
            size: size_of::<types::gdiag_thread_sum>() as u32,
            tid,
            pid: tid,
            now_ns: NOW,
            start_ns: 10,
            ..Default::default()
        };
        r.sums.seen = 1;
        r
    }

    /// It did nothing since the start, so there is nothing but what it is.
    fn bare(tid: u32, has: u32, reason: u32) -> Vec<u8> {
        let r = types::gdiag_thread_sum {
            size: HEAD as u32,
            flags: has as u16,
            task: 0xabc,
            reason: reason as u8,
            cpu: 3,
            ..record(tid)
        };
        as_bytes(&r)[..HEAD].to_vec()
    }

    fn raw(threads: Vec<u8>, ended: Vec<u8>) -> Raw {
        Raw {
            start: Nanos(START),
            at: Nanos(NOW),
            threads,
            ended,
            cpus: vec![types::cpu_data::default(); 4],
            takers: Vec::new(),
            places: Vec::new(),
            wakers: Vec::new(),
        }
    }

    fn only(bytes: &[u8]) -> Thread {
        let mut reading = Reading::decode(&raw(bytes.to_vec(), Vec::new()));
        assert_eq!(reading.threads.len(), 1);
        reading.threads.remove(0)
    }

    #[test]
    fn whoever_did_nothing_does_it_since_before_the_start() {
        let since = Since::Before(Nanos(START));
        let runs = only(&bare(7, flags::GDIAG_SUM_ON_CPU.0, 0));
        assert_eq!(
            (runs.state, runs.cpu),
            (Some(State::Running(since)), Some(Cpu(3)))
        );
        let sleeps = only(&bare(7, 0, why::GDIAG_OFF_POLL.0));
        let state = State::Off {
            since,
            reason: why::GDIAG_OFF_POLL.0 as u8,
            woken: None,
        };
        assert_eq!(sleeps.state, Some(state));
        assert_eq!(sleeps.sums, Sums::default());
    }

    #[test]
    fn a_thread_runs_only_where_its_cpu_says_so() {
        let mut r = record(7);
        (r.task, r.sums.on, r.sums.on_ns, r.sums.cpu) = (0xabc, 1, 2_000_000, 2);
        let mut raw = raw(as_bytes(&r).to_vec(), Vec::new());
        let mut state = |task| {
            raw.cpus[1].sums.task = task;
            Reading::decode(&raw).threads[0].state
        };
        let running = Some(State::Running(Since::At(Nanos(2_000_000))));
        assert_eq!((state(0xabc), state(0xdef)), (running, None));

        // Nobody can have had a CPU since the start that others have had since.
        raw.threads = bare(7, flags::GDIAG_SUM_ON_CPU.0, 0);
        raw.cpus[3].sums.task = 0xdef;
        assert_eq!(Reading::decode(&raw).threads[0].state, None);
    }

    #[test]
    fn what_comes_after_the_stop_says_what_was_before() {
        let state = |what: late| {
            let mut r = record(7);
            (r.sums.seen, r.sums.late) = (0, what.0 as u8);
            r.flags = flags::GDIAG_SUM_ON_CPU.0 as u16;
            r.sums.reason = why::GDIAG_OFF_POLL.0 as u8;
            only(as_bytes(&r)).state
        };
        let since = Since::Before(Nanos(START));
        let off = |reason: why| {
            Some(State::Off {
                since,
                reason: reason.0 as u8,
                woken: None,
            })
        };
        assert_eq!(state(late::GDIAG_LATE_RAN), Some(State::Running(since)));
        assert_eq!(state(late::GDIAG_LATE_WAITED), off(why::GDIAG_OFF_WOKEN));
        assert_eq!(state(late::GDIAG_LATE_SLEPT), off(why::GDIAG_OFF_POLL));
    }

    #[test]
    fn who_could_run_all_along_waits_since_before_the_start() {
        let waits = only(&bare(7, 0, why::GDIAG_OFF_WOKEN.0));
        let state = State::Off {
            since: Since::Before(Nanos(START)),
            reason: WOKEN,
            woken: None,
        };
        assert_eq!((waits.state, waits.taker), (Some(state), None));
    }

    #[test]
    fn a_wait_that_goes_on_knows_who_took_the_cpu() {
        let mut r = record(7);
        (r.sums.off_ns, r.sums.reason, r.sums.preemptor) = (2_000_000, PREEMPTED, 9);
        let taker = |r: &types::gdiag_thread_sum| only(as_bytes(r)).taker;
        assert_eq!(taker(&r), Some(Tid(9)));
        // It runs again; it sleeps; its idle task came next.
        assert_eq!(taker(&with(r, |r| r.sums.on = 1)), None);
        assert_eq!(taker(&with(r, |r| r.sums.reason = WOKEN)), None);
        assert_eq!(taker(&with(r, |r| r.sums.preemptor = 0)), None);
    }

    fn with(
        mut r: types::gdiag_thread_sum,
        change: impl FnOnce(&mut types::gdiag_thread_sum),
    ) -> types::gdiag_thread_sum {
        change(&mut r);
        r
    }

    #[test]
    fn who_was_woken_waits_for_a_cpu_since_then() {
        let mut r = record(7);
        r.sums.off_ns = 2_000_000;
        r.sums.reason = why::GDIAG_OFF_FUTEX.0 as u8;
        let woken = |r: &types::gdiag_thread_sum| match only(as_bytes(r)).state {
            Some(State::Off { woken, .. }) => woken,
            other => panic!("{other:?}"),
        };
        assert_eq!(woken(&r), None);
        r.sums.woken_ns = 4_000_000;
        assert_eq!(woken(&r), Some(Nanos(4_000_000)));
        // Just before the switch-out that it ended; and one that was for an earlier sleep.
        r.sums.woken_ns = 1_990_000;
        assert_eq!(woken(&r), Some(Nanos(2_000_000)));
        r.sums.woken_ns = 1_100_000;
        assert_eq!(woken(&r), None);
        // It has run since then, and sleeps again: that was hidden.
        r.sums.woken_ns = 4_000_000;
        r.reason = why::GDIAG_OFF_FUTEX.0 as u8;
        assert_eq!(woken(&r), None);
        r.reason = WOKEN;
        // A quota ends without.
        r.sums.woken_ns = 4_000_000;
        r.sums.reason = THROTTLED;
        assert_eq!(woken(&r), None);
    }

    #[test]
    fn what_began_before_the_start_is_time_but_no_whole_one() {
        let mut r = record(7);
        (r.sums.run_ns, r.sums.first_run_ns, r.sums.run_count) = (900, 400, 1);
        (r.sums.run_min_ns, r.sums.run_max_ns) = (500, 500);
        r.sums.runs[17] = 1;
        r.sums.first_wait_ns = 70;
        r.sums.off[usize::from(WOKEN)].count = 1;
        r.sums.off[usize::from(WOKEN)].total_ns = 5;
        let sums = only(as_bytes(&r)).sums;
        assert_eq!(sums.run, Nanos(900));
        assert_eq!((sums.runs.count, sums.runs.total), (1, Nanos(500)));
        assert_eq!((sums.runq.count, sums.runq.total), (1, Nanos(5)));
        let woken = sums.off[usize::from(WOKEN)];
        assert_eq!(
            (woken.count, woken.total, woken.max),
            (1, Nanos(75), Some(Nanos(70)))
        );
        assert!(!sums.off[why::GDIAG_OFF_NEW.0 as usize].any());
    }

    #[test]
    fn one_that_ends_while_all_are_read_is_there_once() {
        let ended = |tid, at| {
            let mut r = record(tid);
            r.flags = flags::GDIAG_SUM_ENDED.0 as u16;
            r.now_ns = at;
            as_bytes(&r).to_vec()
        };
        let live: Vec<u8> = [record(7), record(8)]
            .iter()
            .flat_map(|r| as_bytes(r).to_vec())
            .collect();
        // 8 has its number from a thread that ended.
        let reading = Reading::decode(&raw(live, [ended(7, NOW), ended(8, 3_000_000)].concat()));
        let tids: Vec<u32> = reading.threads.iter().map(|t| t.tid.0).collect();
        assert_eq!(tids, [8]);
        assert_eq!(reading.ended.len(), 2);
        assert!(reading.ended.iter().all(|t| t.state.is_none()));
    }

    #[test]
    fn what_did_not_fit_a_thread_is_added_from_the_maps() {
        let mut r = record(7);
        r.sums.places[0] = types::gdiag_place {
            ns: 10,
            cpu: 1,
            ..Default::default()
        };
        r.sums.wakers[0] = BY_THREAD | 42;
        r.sums.waker_counts[0] = 2;
        (r.sums.taken_by, r.sums.taken_count, r.sums.taken_ns) = (9, 1, 100);
        let mut raw = raw(as_bytes(&r).to_vec(), Vec::new());
        let pair = |other, count, ns| {
            let key = types::gdiag_pair { tid: 7, other };
            (key, types::gdiag_pair_sum { count, ns })
        };
        raw.places = vec![pair(0, 1, 5), pair(6, 1, 7)];
        let softirq = BY_INTERRUPT | ctx::GDIAG_CTX_SOFTIRQ.0 << 16 | 3;
        raw.wakers = vec![pair(BY_THREAD | 42, 1, 0), pair(softirq, 4, 0)];
        raw.takers = vec![pair(9, 2, 50)];
        let reading = Reading::decode(&raw);
        let sums = &reading.threads[0].sums;
        let cpus: Vec<_> = sums.cpus.iter().map(|(cpu, ns)| (cpu.0, ns.0)).collect();
        assert_eq!(cpus, [(0, 15), (6, 7)]);
        let wakers: Vec<_> = sums.wakers.iter().map(|(&by, &n)| (by, n)).collect();
        assert_eq!(wakers, [(By::Thread(Tid(42)), 3), (By::SoftIrq(3), 4)]);
        assert_eq!(sums.takers[&Tid(9)], (3, Nanos(150)));
    }

    #[test]
    fn bytes_that_are_no_records_end_the_list() {
        for bytes in [
            vec![],
            vec![1, 2, 3],
            vec![0; 64],
            vec![0xff; 4096],
            [bare(7, 0, 0), vec![9, 9]].concat(),
            [
                bare(7, 0, 0),
                as_bytes(&record(8))[..size_of::<types::gdiag_thread_sum>() - 1].to_vec(),
            ]
            .concat(),
        ] {
            let reading = Reading::decode(&raw(bytes.clone(), bytes));
            assert!(reading.threads.len() <= 1);
        }
        // A reason that there is none for, a CPU that there is none of.
        let mut r = record(7);
        (r.sums.reason, r.sums.cpu) = (200, u32::MAX);
        let odd = only(as_bytes(&r));
        assert_eq!(odd.cpu, None);
    }

    #[test]
    fn a_part_is_what_the_whole_has_more() {
        let mut before = record(7);
        before.sums.off[5].count = 1;
        before.sums.off[5].total_ns = 90;
        before.sums.off[5].max_ns = 90;
        before.sums.runq_max_at_ns = 33;
        let mut now = before;
        now.sums.off[5].count = 3;
        now.sums.off[5].total_ns = 110;
        now.sums.voluntary = 2;
        let before = only(as_bytes(&before)).sums;
        let part = only(as_bytes(&now)).sums.since(&before);
        let times = part.off[5];
        assert_eq!((times.count, times.total), (2, Nanos(20)));
        // Not the longest of all, which was before.
        assert_eq!(times.max, None);
        assert_eq!((part.voluntary, part.runq_max_at), (2, None));
    }
}
