//! What the kernel added up of the scheduler → typed values.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use crate::collect::sched_sum::{types, Raw};
use crate::collect::wire::read_cut;
use crate::event::{Context, Cpu, Pid, Tid};
use crate::histogram::Histogram;
use crate::units::Nanos;

use types::{gdiag_ctx as ctx, gdiag_off as why, gdiag_sum_flags as flags};

/// Reasons to be off the CPU, as `enum gdiag_off` numbers them.
pub const REASONS: usize = why::GDIAG_OFF_REASONS.0 as usize;

/// The first ones are waits for a CPU.
const RUNNABLE: usize = why::GDIAG_OFF_YIELDED.0 as usize + 1;
const NEW: u8 = why::GDIAG_OFF_NEW.0 as u8;
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
    /// CPUs that it may run on.
    pub allowed: Vec<Cpu>,
    /// What it does at `at`, which is in no sum; `None`: it has ended.
    pub state: Option<State>,
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
    pub max: Nanos,
}

impl Times {
    pub fn any(&self) -> bool {
        self.total > Nanos::ZERO || self.count > 0
    }

    /// A time that is not over at `end`. What began before anybody watched is not counted as one.
    pub fn add(&mut self, since: Since, end: Nanos) {
        let time = end.saturating_sub(since.time());
        self.count += u64::from(matches!(since, Since::At(_)));
        self.total += time;
        self.max = self.max.max(time);
    }

    fn merge(&mut self, other: &Times) {
        self.count += other.count;
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The longest of a part is known only when it is the longest of all; else none is longer than this.
    fn since(&self, before: &Times) -> Times {
        let total = self.total.saturating_sub(before.total);
        Times {
            count: self.count.saturating_sub(before.count),
            total,
            max: if self.max > before.max {
                self.max
            } else {
                self.max.min(total)
            },
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

    fn add_taker(&mut self, by: Tid, count: u64, waited: Nanos) {
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
            takers: takers.filter(|(_, (count, _))| *count > 0).collect(),
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
            threads: threads(&raw.threads, raw.start),
            ended: threads(&raw.ended, raw.start),
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
fn threads(mut bytes: &[u8], start: Nanos) -> Vec<Thread> {
    let mut threads = Vec::new();
    while let Some(size) = read_size(bytes) {
        let Some(record) = bytes.get(..size) else {
            break;
        };
        if let Some(record) = read_cut::<types::gdiag_thread_sum>(record, HEAD) {
            threads.push(thread(&record, start));
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

fn thread(r: &types::gdiag_thread_sum, start: Nanos) -> Thread {
    let has = |flag: flags| u32::from(r.flags) & flag.0 != 0;
    let comm: Vec<u8> = r.comm.iter().map(|c| c.cast_unsigned()).collect();
    let comm = comm.split(|&c| c == 0).next().unwrap_or_default();
    let known = r.sums.cpu.checked_sub(1).unwrap_or(r.cpu);
    let allowed = (0..).map(Cpu).zip(bits(&r.allowed));
    Thread {
        tid: Tid(r.tid),
        pid: Pid(r.pid),
        comm: String::from_utf8_lossy(comm).into_owned(),
        prio: r.prio,
        born: Nanos(r.start_ns),
        at: Nanos(r.now_ns),
        target: has(flags::GDIAG_SUM_TARGET),
        kthread: has(flags::GDIAG_SUM_KTHREAD),
        own: has(flags::GDIAG_SUM_OWN),
        allowed: allowed.filter_map(|(cpu, is)| is.then_some(cpu)).collect(),
        state: state(r, start),
        cpu: number(known),
        sums: sums(&r.sums),
    }
}

fn bits(words: &[u64]) -> impl Iterator<Item = bool> + '_ {
    words
        .iter()
        .flat_map(|word| (0..u64::BITS).map(move |bit| word >> bit & 1 != 0))
}

fn state(r: &types::gdiag_thread_sum, start: Nanos) -> Option<State> {
    let s = &r.sums;
    let has = |flag: flags| u32::from(r.flags) & flag.0 != 0;
    let (running, since, reason) = if s.seen != 0 {
        let since = Since::At(Nanos(if s.on != 0 { s.on_ns } else { s.off_ns }));
        (s.on != 0, since, s.reason)
    } else {
        // One that is made while it is read.
        let since = if r.start_ns > start.0 {
            Since::At(Nanos(r.start_ns))
        } else {
            Since::Before(start)
        };
        let woken = s.woken_ns >= start.0 && s.woken_ns != 0;
        let reason = if woken { s.reason } else { r.reason };
        (has(flags::GDIAG_SUM_ON_CPU), since, reason)
    };
    if running {
        return Some(State::Running(since));
    }
    if has(flags::GDIAG_SUM_ENDED) {
        return None;
    }
    let woken = Nanos(s.woken_ns);
    let is_woken = reason > THROTTLED && woken + EARLY_WAKE >= since.time() && s.woken_ns != 0;
    Some(State::Off {
        since,
        reason,
        woken: is_woken.then(|| woken.max(since.time())),
    })
}

fn sums(s: &types::gdiag_thread_sums) -> Sums {
    let mut off = s.off.map(|sum| Times {
        count: sum.count,
        total: Nanos(sum.total_ns),
        max: Nanos(sum.max_ns),
    });
    let runq = &off[..RUNNABLE];
    let runq = Histogram::from_parts(
        runq.iter().map(|times| times.count).sum(),
        runq.iter().map(|times| times.total).sum(),
        (Nanos(s.runq_min_ns), Nanos(s.runq_max_ns)),
        s.runqs.iter().map(|&n| u64::from(n)),
    );
    let first = Nanos(s.first_wait_ns);
    let new = &mut off[usize::from(NEW)];
    new.total += first;
    new.max = new.max.max(first);
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
