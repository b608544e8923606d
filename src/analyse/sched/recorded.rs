//! A recording, summed up.
//!
//! A recording of the whole machine knows everything between its first event and its last. One of some
//! processes (`-p`) knows everything about those; of others only that they ran while a target ran or waited
//! on the same CPU, and of a CPU on which nothing of the target happened, nothing.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{
    cpu_list, reason, CpuSum, OffReason, OffSum, Preemptor, Summary, ThreadSum, Waker,
    WakerContext, Who,
};
use crate::analyse::what::{irq_name, softirq_name};
use crate::event::{Cpu, Tid};
use crate::model::cpu::{CpuLog, Ran};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::{Identity, State, Stretch, Thread, ThreadIdx, Wake, Why};
use crate::model::Timeline;
use crate::store::meta::TargetMode;
use crate::units::Nanos;

/// Victims that are listed of a preemptor, and those who had the CPU of a thread that waited.
const LISTED: usize = 8;

/// Which part of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub from: Nanos,
    pub to: Nanos,
    /// Only what happens on these CPUs: running there, leaving them, and waiting to run there. `None`: all.
    pub cpus: Option<&'a [Cpu]>,
    /// Only these threads; all when there are none.
    pub tids: &'a [Tid],
    /// The part is added to others before and after it: what crosses an end counts once, whole, where it ends.
    pub joins: bool,
}

impl Scope<'_> {
    /// A CPU that is not known is none of those that were asked for.
    fn has(&self, cpu: Option<Cpu>) -> bool {
        self.cpus
            .is_none_or(|cpus| cpu.is_some_and(|cpu| cpus.contains(&cpu)))
    }
}

pub fn summary(t: &Timeline, scope: &Scope<'_>) -> Summary {
    let mut preemptors = Preemptors::default();
    let mut threads = Vec::new();
    for (index, thread) in t.threads() {
        if !scope.tids.is_empty() && !scope.tids.contains(&thread.tid) {
            continue;
        }
        for life in lives(thread) {
            let mut adder = Adder::new(t, scope, index, life);
            adder.add_all(&mut preemptors);
            threads.extend(adder.finish(&mut preemptors));
        }
    }
    threads.sort_by_key(|thread: &ThreadSum| thread.who.tid);
    let cpus = cpus(t, scope);
    Summary {
        host: t.meta().host.clone(),
        start: scope.from,
        end: scope.to,
        notes: notes(t, scope, &threads, &cpus),
        threads,
        cpus,
        preemptors: preemptors.finish(t),
        lost: Some(t.lost().bpf),
    }
}

/// One thread from its birth to its end; the next with its number is another.
#[derive(Clone, Copy, Debug)]
struct Life<'a> {
    from: Nanos,
    to: Nanos,
    identities: &'a [Identity],
}

fn lives(thread: &Thread) -> Vec<Life<'_>> {
    let mut lives: Vec<Life<'_>> = thread
        .identities()
        .chunk_by(|a, b| a.start == b.start)
        .map(|identities| Life {
            from: identities.first().map_or(Nanos::ZERO, |i| i.from),
            to: Nanos::MAX,
            identities,
        })
        .collect();
    let starts: Vec<Nanos> = lives.iter().skip(1).map(|life| life.from).collect();
    for (life, next) in lives.iter_mut().zip(starts) {
        life.to = next;
    }
    match lives.first_mut() {
        // What is recorded of it before it was introduced is its own all the same.
        Some(first) => first.from = Nanos::ZERO,
        None => lives.push(Life {
            from: Nanos::ZERO,
            to: Nanos::MAX,
            identities: &[],
        }),
    }
    lives
}

/// A state from its beginning to its end, which several stretches can tell of.
#[derive(Clone, Copy, Debug)]
struct Phase {
    first: Stretch,
    last: Stretch,
}

impl Phase {
    /// The same goes on: all that a thread is said to do when it is introduced, it did before.
    fn goes_on(&self, next: &Stretch) -> bool {
        match (self.last.state, next.state) {
            (State::Running { .. }, State::Running { .. })
            | (State::Blocked(_), State::Blocked(_)) => true,
            (State::Runnable { why, .. }, State::Runnable { why: other, .. }) => why == other,
            (
                State::Unknown
                | State::Exited
                | State::Running { .. }
                | State::Runnable { .. }
                | State::Blocked(_),
                _,
            ) => false,
        }
    }

    fn state(&self) -> State {
        self.last.state
    }

    fn len(&self) -> Nanos {
        self.last.end.saturating_sub(self.first.start)
    }

    /// Its beginning is in the scope, and was seen.
    fn begun(&self, t: &Timeline, scope: &Scope<'_>) -> bool {
        let begin = self.first.span.0;
        if scope.joins {
            begin >= scope.from && begin > t.start()
        } else {
            begin > scope.from
        }
    }

    fn ended(&self, scope: &Scope<'_>) -> bool {
        self.last.span.1 <= scope.to
    }

    /// How long it was, or has been so far: with what was before the scope, when that counts here.
    fn time(&self, t: &Timeline, scope: &Scope<'_>) -> Nanos {
        let begin = self.first.span.0;
        let start = if scope.joins && begin > t.start() {
            begin
        } else {
            self.first.start
        };
        self.last.end.saturating_sub(start)
    }

    /// All of it is known, and it counts here.
    fn is_complete(&self, t: &Timeline, scope: &Scope<'_>) -> bool {
        let known = if scope.joins {
            self.first.span.0 > t.start()
        } else {
            self.begun(t, scope)
        };
        known && self.ended(scope)
    }
}

/// Adds up one thread.
struct Adder<'a> {
    t: &'a Timeline,
    scope: &'a Scope<'a>,
    index: ThreadIdx,
    life: Life<'a>,
    sum: ThreadSum,
    off: BTreeMap<OffReason, OffSum>,
    cpus: BTreeMap<Cpu, Nanos>,
    /// By who, with when last: to know who that was.
    wakers: FxHashMap<Woken, (u64, Nanos)>,
    behind: FxHashMap<Tid, (Nanos, Nanos)>,
    /// Where it last ran.
    cpu: Option<Cpu>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Woken {
    By(Tid),
    In(WakerContext),
}

impl<'a> Adder<'a> {
    fn new(t: &'a Timeline, scope: &'a Scope<'a>, index: ThreadIdx, life: Life<'a>) -> Self {
        let thread = t.thread(index);
        let at = life.to.min(scope.to).saturating_sub(Nanos(1));
        let sum = ThreadSum {
            who: who(t, index, at),
            here: Some(thread.tid),
            target: thread.is_target() && life.identities.iter().any(|i| i.target),
            kthread: life.identities.iter().any(|i| i.kthread),
            dispatcher: thread.launches > 0,
            prio: life.identities.last().map(|i| i.prio),
            allowed: thread.allowed_cpus(),
            packed: thread.is_usually_packed(),
            ..ThreadSum::default()
        };
        Adder {
            t,
            scope,
            index,
            life,
            sum,
            off: BTreeMap::new(),
            cpus: BTreeMap::new(),
            wakers: FxHashMap::default(),
            behind: FxHashMap::default(),
            cpu: None,
        }
    }

    fn thread(&self) -> &'a Thread {
        self.t.thread(self.index)
    }

    fn add_all(&mut self, preemptors: &mut Preemptors) {
        let from = self.scope.from.max(self.life.from);
        let to = self.scope.to.min(self.life.to);
        let mut open: Option<Phase> = None;
        let mut before = State::Unknown;
        if self.scope.joins && self.life.from < from {
            let mut earlier = self.thread().states_before(from);
            before = earlier.next().unwrap_or(State::Unknown);
            let ran = std::iter::once(before).chain(earlier);
            self.cpu = ran.into_iter().find_map(|state| match state {
                State::Running { cpu } => cpu,
                State::Unknown | State::Runnable { .. } | State::Blocked(_) | State::Exited => None,
            });
        }
        for stretch in self.thread().states(from, to) {
            if let Some(phase) = open.as_mut().filter(|phase| phase.goes_on(&stretch)) {
                phase.last = stretch;
                continue;
            }
            let begins = Phase {
                first: stretch,
                last: stretch,
            };
            if let Some(done) = open.replace(begins) {
                self.add(&done, before, preemptors);
                before = done.state();
            }
        }
        if let Some(phase) = open {
            self.add(&phase, before, preemptors);
        }
    }

    fn add(&mut self, phase: &Phase, before: State, preemptors: &mut Preemptors) {
        match phase.state() {
            State::Unknown | State::Exited => {}
            State::Running { cpu } => self.ran(phase, cpu),
            State::Blocked(sleep) => {
                if !self.scope.has(self.cpu) {
                    return;
                }
                if phase.begun(self.t, self.scope) {
                    self.sum.voluntary += 1;
                }
                let group = sleep.syscall.map(|nr| self.t.syscalls().group(nr));
                let reason = reason::of_sleep(sleep.state, sleep.flags, group, self.sum.kthread);
                self.count_off(reason, phase);
            }
            State::Runnable { why, cpu } => {
                let next = self.thread().cpu_after(&phase.last);
                if !self.scope.has(next.or(cpu).or(self.cpu)) {
                    return;
                }
                let was_running = matches!(before, State::Running { .. });
                self.waited(phase, why, was_running);
                match why {
                    Why::Throttled => return,
                    Why::Woken => self.woken(phase),
                    Why::Preempted => self.preempted(phase, preemptors),
                    Why::Yielded | Why::New => {}
                }
                self.runnable(phase, cpu, next);
            }
        }
    }

    fn ran(&mut self, phase: &Phase, cpu: Option<Cpu>) {
        let moved = cpu.is_some() && self.cpu.is_some() && cpu != self.cpu;
        self.cpu = cpu.or(self.cpu);
        if !self.scope.has(cpu) {
            return;
        }
        if moved && phase.begun(self.t, self.scope) {
            self.sum.migrations += 1;
        }
        self.sum.run += phase.len();
        if let Some(cpu) = cpu {
            *self.cpus.entry(cpu).or_default() += phase.len();
        }
        if phase.is_complete(self.t, self.scope) {
            self.sum.runs.add(phase.time(self.t, self.scope));
        }
    }

    fn waited(&mut self, phase: &Phase, why: Why, was_running: bool) {
        let reason = match why {
            Why::Woken => OffReason::Woken,
            Why::New => OffReason::New,
            Why::Preempted => OffReason::Preempted,
            Why::Yielded => OffReason::Yielded,
            Why::Throttled => OffReason::Throttled,
        };
        self.count_off(reason, phase);
        match why {
            Why::Preempted | Why::Yielded | Why::Throttled => {
                self.sum.involuntary += u64::from(phase.begun(self.t, self.scope));
            }
            // Woken in the moment in which it went to sleep.
            Why::Woken => {
                self.sum.voluntary += u64::from(was_running && phase.begun(self.t, self.scope));
            }
            Why::New => {}
        }
    }

    fn count_off(&mut self, reason: OffReason, phase: &Phase) {
        let off = self.off.entry(reason).or_insert(OffSum {
            reason,
            count: 0,
            total: Nanos::ZERO,
            max: None,
        });
        off.count += u64::from(phase.begun(self.t, self.scope));
        off.total += phase.len();
        off.max = off.max.max(Some(phase.time(self.t, self.scope)));
    }

    fn woken(&mut self, phase: &Phase) {
        let wake = self.thread().wake_of(&phase.first);
        let Some(Wake {
            at, waker, context, ..
        }) = wake.filter(|_| phase.begun(self.t, self.scope))
        else {
            return;
        };
        let key = WakerContext::of(context).map_or(Woken::By(waker), Woken::In);
        let entry = self.wakers.entry(key).or_default();
        *entry = (entry.0 + 1, at);
    }

    fn preempted(&mut self, phase: &Phase, preemptors: &mut Preemptors) {
        let by = self.thread().preemptor(&phase.first);
        // Where the idle task comes next, it was moved away rather than preempted.
        let by = by.filter(|tid| tid.0 != 0 && *tid != self.sum.who.tid);
        if let Some(by) = by.filter(|_| self.sum.target) {
            // It took the CPU where this began.
            let count = u64::from(!self.scope.joins || phase.begun(self.t, self.scope));
            preemptors.add(by, &self.sum.who, phase, count);
        }
    }

    /// `cpu` is the one that it left, or that it was woken for.
    fn runnable(&mut self, phase: &Phase, cpu: Option<Cpu>, next: Option<Cpu>) {
        let mut until = None;
        self.who_had(phase, cpu, next, &mut |ran| {
            until = Some(ran);
        });
        let complete = phase.is_complete(self.t, self.scope) && next.is_some();
        if !complete {
            return;
        }
        let time = phase.time(self.t, self.scope);
        let longest = self.sum.runq.count == 0 || time > self.sum.runq.max;
        self.sum.runq.add(time);
        if longest {
            self.sum.runq_max_at = Some(phase.last.end);
            let until = until.filter(|ran: &Ran| ran.end == phase.last.end);
            let tid = until.and_then(|ran| ran.tid).filter(|tid| tid.0 != 0);
            self.sum.runq_max_behind = tid.map(|tid| of_tid(self.t, tid, phase.last.end));
        }
    }

    /// Who had the CPU while it waited. `each` gets every part of that time.
    fn who_had(
        &mut self,
        phase: &Phase,
        cpu: Option<Cpu>,
        next: Option<Cpu>,
        each: &mut dyn FnMut(Ran),
    ) {
        let own = self.sum.who.tid;
        let behind = &mut self.behind;
        let mut had = |ran: Ran| {
            each(ran);
            let tid = ran.tid.filter(|tid| tid.0 != 0 && *tid != own);
            if let Some(tid) = tid {
                let sum = behind.entry(tid).or_default();
                *sum = (sum.0 + ran.end.saturating_sub(ran.start), ran.end);
            }
        };
        let (start, end) = (phase.first.start, phase.last.end);
        let Some(log) = cpu.and_then(|cpu| self.t.cpu(cpu)) else {
            return;
        };
        // Preempted, and moved when its CPU had nothing more to run: from then on it waited for another one.
        let moved_to = next
            .filter(|&next| Some(next) != cpu)
            .and_then(|next| self.t.cpu(next));
        for ran in log.ran(start, end, phase.first.span.0) {
            match moved_to.filter(|_| ran.tid == Some(Tid(0))) {
                Some(other) => other
                    .ran(ran.start, ran.end, Nanos::ZERO)
                    .for_each(&mut had),
                None => had(ran),
            }
        }
    }

    /// `None` when nothing is known of it in this scope.
    fn finish(self, preemptors: &mut Preemptors) -> Option<ThreadSum> {
        let t = self.t;
        let mut sum = self.sum;
        sum.off = self.off.into_values().collect();
        if sum.run == Nanos::ZERO && sum.off.is_empty() {
            return None;
        }
        sum.cpus = self.cpus.into_iter().collect();
        sum.cpus.sort_by_key(|&(cpu, time)| (Reverse(time), cpu));
        sum.wakers = wakers(t, self.wakers);
        let behind = self.behind.into_iter();
        let behind = behind.map(|(tid, (time, at))| (of_tid(t, tid, at), time));
        sum.behind = behind.collect();
        if sum.target {
            for (who, time) in &sum.behind {
                preemptors.had(who.tid, *time, sum.runq_max_at.unwrap_or(self.scope.to));
            }
        }
        sum.behind.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        sum.behind.truncate(LISTED);
        Some(sum)
    }
}

/// Of several threads of one number the last; of several names the last.
fn who(t: &Timeline, index: ThreadIdx, at: Nanos) -> Who {
    let who = t.who(index, at);
    Who {
        pid: t.pid(who),
        tid: t.thread(index).tid,
        comm: t.comm(who).to_string(),
    }
}

fn of_tid(t: &Timeline, tid: Tid, at: Nanos) -> Who {
    match t.find(tid) {
        Some(index) => who(t, index, at),
        None => Who {
            pid: crate::event::Pid(tid.0),
            tid,
            comm: "?".to_string(),
        },
    }
}

fn wakers(t: &Timeline, found: FxHashMap<Woken, (u64, Nanos)>) -> Vec<(Waker, u64)> {
    let mut wakers: Vec<(Waker, u64)> = found
        .into_iter()
        .map(|(by, (count, at))| {
            let waker = match by {
                Woken::By(tid) => Waker::Thread(of_tid(t, tid, at)),
                Woken::In(context) => Waker::Interrupt(context, interrupt_name(t, context)),
            };
            (waker, count)
        })
        .collect();
    wakers.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    wakers
}

/// As far as it has one.
pub(super) fn interrupt_name(t: &Timeline, context: WakerContext) -> String {
    match context {
        WakerContext::HardIrq(irq) => irq_name(t, irq),
        WakerContext::SoftIrq(vector) => softirq_name(vector),
        WakerContext::Timer => String::new(),
    }
}

#[derive(Default)]
struct Preemptors(FxHashMap<Tid, Found>);

#[derive(Default)]
struct Found {
    count: u64,
    waited: Nanos,
    had: Nanos,
    last: Nanos,
    victims: BTreeMap<Who, (u64, Nanos)>,
}

impl Preemptors {
    fn add(&mut self, by: Tid, victim: &Who, phase: &Phase, count: u64) {
        let found = self.0.entry(by).or_default();
        found.count += count;
        found.waited = found.waited.saturating_add(phase.len());
        found.last = found.last.max(phase.first.start);
        let entry = match found.victims.get_mut(victim) {
            Some(entry) => entry,
            None => found.victims.entry(victim.clone()).or_default(),
        };
        *entry = (entry.0 + count, entry.1.saturating_add(phase.len()));
    }

    fn had(&mut self, by: Tid, time: Nanos, at: Nanos) {
        let found = self.0.entry(by).or_default();
        found.had = found.had.saturating_add(time);
        if found.count == 0 {
            found.last = found.last.max(at);
        }
    }

    fn finish(self, t: &Timeline) -> Vec<Preemptor> {
        let mut all: Vec<Preemptor> = self
            .0
            .into_iter()
            .map(|(tid, found)| {
                let victims = found.victims.into_iter();
                let mut victims: Vec<_> = victims.map(|(who, (n, time))| (who, n, time)).collect();
                victims.sort_by(|a, b| (b.2, &a.0).cmp(&(a.2, &b.0)));
                victims.truncate(LISTED);
                Preemptor {
                    who: of_tid(t, tid, found.last),
                    count: found.count,
                    waited: found.waited,
                    had: Some(found.had),
                    victims,
                }
            })
            .collect();
        all.sort_by(|a, b| (b.had, b.waited, &a.who).cmp(&(a.had, a.waited, &b.who)));
        all
    }
}

fn cpus(t: &Timeline, scope: &Scope<'_>) -> Vec<CpuSum> {
    let all = (0..).map(Cpu).zip(t.cpus());
    let wanted = all.filter(|(cpu, log)| match scope.cpus {
        Some(cpus) => cpus.contains(cpu),
        None => !log.is_empty(),
    });
    let sums = wanted.map(|(cpu, log)| {
        let mut sum = CpuSum {
            cpu,
            busy: Nanos::ZERO,
            idle: Nanos::ZERO,
            unknown: Nanos::ZERO,
            irq: log.irq_time(scope.from, scope.to),
            switches: log.switches(scope.from, scope.to),
            ran: Vec::new(),
        };
        let mut who: FxHashMap<Tid, (Nanos, Nanos)> = FxHashMap::default();
        for ran in log.ran(scope.from, scope.to, Nanos::ZERO) {
            let len = ran.end.saturating_sub(ran.start);
            match ran.tid.filter(|&tid| is_certain(t, scope, &ran, tid)) {
                None => sum.unknown += len,
                Some(Tid(0)) => sum.idle += len,
                Some(tid) => {
                    sum.busy += len;
                    let entry = who.entry(tid).or_default();
                    *entry = (entry.0 + len, ran.end);
                }
            }
        }
        sum.ran = who
            .into_iter()
            .map(|(tid, (time, at))| (of_tid(t, tid, at), time))
            .collect();
        sum.ran.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        sum
    });
    sums.collect()
}

/// In a recording of some processes, a CPU without them goes unseen: that its idle task or a stranger came
/// and later left does not say that nobody else was there between. That a stranger had it is believed between
/// its own two switches, as these are seldom far apart.
fn is_certain(t: &Timeline, scope: &Scope<'_>, ran: &Ran, tid: Tid) -> bool {
    match t.meta().mode {
        TargetMode::All => true,
        TargetMode::Launch | TargetMode::Attach => {
            let thread = t.find(tid).map(|index| t.thread(index));
            let followed = thread.is_some_and(Thread::is_followed);
            let between = ran.start > scope.from && ran.end < scope.to;
            tid.0 != 0 && (followed || between)
        }
    }
}

fn notes(t: &Timeline, scope: &Scope<'_>, threads: &[ThreadSum], cpus: &[CpuSum]) -> Vec<String> {
    let mut notes = Vec::new();
    let whole = t.meta().mode == TargetMode::All;
    if !whole && threads.iter().any(ThreadSum::is_stranger) {
        notes.push(
            "only the processes of the target were recorded: others are known where they ran beside \
             them, and of a CPU without them nothing is; gdiag record -a knows all"
                .to_string(),
        );
    }
    let unseen = scope.cpus.unwrap_or_default().iter();
    let unseen = unseen.filter(|cpu| t.cpu(**cpu).is_none_or(CpuLog::is_empty));
    let unseen: Vec<Cpu> = unseen.copied().collect();
    if !unseen.is_empty() {
        notes.push(format!("nothing was recorded on CPU {}", cpu_list(&unseen)));
    }
    for probe in &t.meta().missing_probes {
        notes.push(format!(
            "the kernel had no {probe}: what it would show is left out"
        ));
    }
    if cpus.iter().any(|cpu| cpu.irq > Nanos::ZERO) {
        notes.push(
            "interrupts count from 2 us on, and only those that interrupted a thread".to_string(),
        );
    }
    notes
}
