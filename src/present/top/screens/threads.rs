//! The threads of the targets, and those who took their CPUs: what each did with the window, and what hurt it.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::cell::{self, grows, left, prose, right, Field};

use crate::analyse::live::CudaTime;
use crate::analyse::sched::{cpu_list, OffReason, OffSum, Summary, ThreadSum, Who};
use crate::event::{Cpu, Pid, Tid};
use crate::present::top::list::{Cell, Key, List, Tone};
use crate::present::top::model::{Model, Source};
use crate::present::top::view::Open;
use crate::units::Nanos;

/// Reasons that are named, and the least share of all of them for the second.
const REASONS: usize = 2;
const REASON_SHARE: f64 = 0.1;

/// Of the time that targets waited for a CPU.
const IN_THE_WAY: f64 = 0.001;

/// What a thread is to the person who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Dispatcher,
    Target,
    /// Had or took a CPU that a target wanted.
    Preemptor,
    Other,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Role::Dispatcher => "dispatcher",
            Role::Target => "target",
            Role::Preemptor => "preemptor",
            Role::Other => "other",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Role::Dispatcher => Tone::Strong,
            Role::Target => Tone::Name,
            Role::Preemptor => Tone::Warn,
            Role::Other => Tone::Plain,
        }
    }
}

/// A thread, with what other parts of the window know of it.
pub(super) struct Seen<'a> {
    pub(super) sum: &'a ThreadSum,
    pub(super) role: Role,
    pub(super) cuda: Option<&'a CudaTime>,
    /// Who was in its way most, and for how long.
    pub(super) behind: Option<(&'a Who, Nanos)>,
    /// Its process is over.
    pub(super) ended: bool,
}

impl Seen<'_> {
    /// Time that it could have run, had there been a CPU. `None`: it was only seen where it ran.
    pub(super) fn waited(&self) -> Option<Nanos> {
        self.known(ThreadSum::waited)
    }

    fn known<T>(&self, of: impl Fn(&ThreadSum) -> T) -> Option<T> {
        (!self.sum.is_stranger()).then(|| of(self.sum))
    }

    pub(super) fn throttled(&self) -> Option<Nanos> {
        self.known(throttled)
    }

    pub(super) fn blocked(&self) -> Option<Nanos> {
        self.known(ThreadSum::blocked)
    }

    fn is_dim(&self) -> bool {
        self.ended || (self.sum.is_asleep() && self.role != Role::Dispatcher)
    }
}

fn throttled(sum: &ThreadSum) -> Nanos {
    sum.off_for(OffReason::Throttled)
        .map_or(Nanos::ZERO, |off| off.total)
}

/// Every thread that the window knows of.
pub(super) fn seen(model: &Model) -> Vec<Seen<'_>> {
    let window = &model.window;
    let cuda: HashMap<(Pid, Tid), &CudaTime> =
        window.cuda.iter().map(|c| ((c.pid, c.tid), c)).collect();
    let in_the_way = in_the_way(&window.sched);
    let took = takers(&window.sched);
    let ended: HashSet<Pid> = model
        .targets
        .iter()
        .filter(|target| target.ended.is_some())
        .map(|target| target.pid)
        .collect();
    let threads = window.sched.threads.iter().map(|sum| Seen {
        sum,
        role: match sum {
            sum if sum.dispatcher => Role::Dispatcher,
            sum if sum.target => Role::Target,
            sum if in_the_way.contains(&sum.who.tid) => Role::Preemptor,
            _ => Role::Other,
        },
        cuda: cuda.get(&(sum.who.pid, sum.who.tid)).copied(),
        behind: behind(sum, &took),
        ended: ended.contains(&sum.who.pid),
    });
    threads.collect()
}

/// Who took a CPU, or had it for a share that matters of the time that targets waited. Many had it for a moment.
fn in_the_way(sched: &Summary) -> HashSet<Tid> {
    let all = sched.preemptors.iter().filter_map(|p| p.had);
    let all = all.fold(Nanos::ZERO, Nanos::saturating_add);
    let matters = |had: Nanos| had.share_of(all) >= IN_THE_WAY;
    let preemptors = sched.preemptors.iter();
    let preemptors = preemptors.filter(|p| p.count > 0 || p.had.is_some_and(matters));
    let targets = sched.threads.iter().filter(|thread| thread.target);
    let most = targets.filter_map(|thread| thread.behind.first());
    let most = most.map(|(who, _)| who.tid);
    most.chain(preemptors.map(|p| p.who.tid)).collect()
}

/// Who had the CPU most while it waited; where that was not added up, who took it.
fn behind<'a>(
    sum: &'a ThreadSum,
    took: &HashMap<Tid, (&'a Who, Nanos)>,
) -> Option<(&'a Who, Nanos)> {
    match sum.behind.first() {
        Some((who, time)) => Some((who, *time)),
        None => took.get(&sum.who.tid).copied(),
    }
}

/// By thread, who took its CPU, and how long it waited then; the worst of them.
fn takers(sched: &Summary) -> HashMap<Tid, (&Who, Nanos)> {
    let mut takers: HashMap<Tid, (&Who, Nanos)> = HashMap::new();
    for preemptor in &sched.preemptors {
        for (victim, _, waited) in &preemptor.victims {
            let worst = takers
                .entry(victim.tid)
                .or_insert((&preemptor.who, *waited));
            if *waited > worst.1 {
                *worst = (&preemptor.who, *waited);
            }
        }
    }
    takers
}

/// Dispatchers first, those that were kept from running most before others; then whoever ran most.
fn by_harm(seen: &Seen<'_>) -> impl Ord {
    let sum = seen.sum;
    let harm = match seen.role {
        Role::Dispatcher => sum
            .waited()
            .saturating_add(throttled(sum))
            .saturating_add(sum.blocked()),
        Role::Target | Role::Preemptor | Role::Other => Nanos::ZERO,
    };
    let dispatches = seen.role == Role::Dispatcher;
    (
        Reverse((dispatches, harm, sum.run, sum.waited())),
        sum.who.tid,
    )
}

pub fn list(model: &Model) -> List {
    let machine = model.source == Source::Machine;
    let mut threads = seen(model);
    let all = threads.len();
    // A target that hangs must be there; on a whole machine those that sleep are nearly all.
    threads.retain(|seen| match seen.role {
        Role::Dispatcher => true,
        Role::Target | Role::Preemptor | Role::Other => !machine || !seen.sum.is_asleep(),
    });
    if !machine && threads.iter().any(|seen| seen.sum.target) {
        threads.retain(|seen| seen.role != Role::Other);
    }
    let asleep = if machine { all - threads.len() } else { 0 };
    threads.sort_by_cached_key(by_harm);
    let mut list = table(title(&threads), fields(model), &threads);
    if asleep > 0 {
        let text = format!("{} slept all the time", cell::plural(asleep, "more thread"));
        list.notes.push(text);
    }
    list.notes.extend(model.window.sched.notes.iter().cloned());
    list
}

/// Rows that open their thread.
pub(super) fn table<'a>(
    title: String,
    fields: Vec<Field<'_, Seen<'a>>>,
    threads: &[Seen<'a>],
) -> List {
    let mut list = cell::list(title, fields, threads, |seen| {
        let who = &seen.sum.who;
        (row_id(who), Some(open(who)))
    });
    list.rows = list
        .rows
        .into_iter()
        .zip(threads)
        .map(|(row, seen)| if seen.is_dim() { row.dimmed() } else { row })
        .collect();
    list
}

pub(super) fn row_id(who: &Who) -> String {
    format!("{}:{}", who.pid, who.tid)
}

pub(super) fn open(who: &Who) -> Open {
    Open::Thread {
        pid: who.pid,
        tid: who.tid,
    }
}

fn title(threads: &[Seen<'_>]) -> String {
    let of = |role| threads.iter().filter(|seen| seen.role == role).count();
    let roles = [
        (Role::Dispatcher, "dispatcher"),
        (Role::Target, "other target"),
        (Role::Preemptor, "preemptor"),
    ];
    let parts: Vec<String> = roles
        .into_iter()
        .filter(|&(role, _)| of(role) > 0)
        .map(|(role, what)| cell::plural(of(role), what))
        .collect();
    if of(Role::Dispatcher) + of(Role::Preemptor) == 0 {
        return "Threads".to_string();
    }
    format!("Threads: {}", parts.join(", "))
}

fn fields<'a>(model: &Model) -> Vec<Field<'static, Seen<'a>>> {
    let window = cell::analysed(&model.window);
    let part =
        move |time: Option<Nanos>| time.map_or_else(Cell::none, |time| cell::share(time, window));
    let a_second =
        move |count: Option<u64>| count.map_or_else(Cell::none, |count| cell::rate(count, window));
    vec![
        grows("THREAD", 0, |seen: &Seen<'_>| {
            cell::name(&seen.sum.who.comm).tone(seen.role.tone())
        }),
        right("TID", 5, |seen: &Seen<'_>| cell::id(seen.sum.who.tid.0)),
        right("PID", 17, |seen: &Seen<'_>| cell::id(seen.sum.who.pid.0)),
        left("ROLE", 12, |seen: &Seen<'_>| Cell::text(seen.role.name())),
        right("RUN %", 2, move |seen: &Seen<'_>| {
            cell::share(seen.sum.run, window).with_bar()
        }),
        right("RUNQ %", 1, move |seen: &Seen<'_>| {
            part(seen.waited()).harm().with_bar()
        }),
        right("THROT %", 10, move |seen: &Seen<'_>| {
            part(seen.throttled()).harm()
        }),
        right("BLOCK %", 3, move |seen: &Seen<'_>| part(seen.blocked())),
        right("CUDA %", 7, move |seen: &Seen<'_>| {
            part(seen.cuda.map(|cuda| cuda.time))
        }),
        right("LAUNCH/S", 8, move |seen: &Seen<'_>| {
            a_second(seen.cuda.map(|cuda| cuda.launches))
        }),
        right("RUNQ P99", 11, |seen: &Seen<'_>| {
            cell::time(seen.sum.runq.percentile(0.99))
        }),
        right("RUNQ MAX", 6, |seen: &Seen<'_>| {
            cell::longest(&seen.sum.runq)
        }),
        right("MIGR/S", 14, move |seen: &Seen<'_>| {
            a_second(seen.known(|sum| sum.migrations))
        }),
        right("VOL/S", 15, move |seen: &Seen<'_>| {
            a_second(seen.known(|sum| sum.voluntary))
        }),
        right("INVOL/S", 16, move |seen: &Seen<'_>| {
            a_second(seen.known(|sum| sum.involuntary))
        }),
        left("CPUS", 13, |seen: &Seen<'_>| ran_on(&seen.sum.cpus)),
        prose("BLOCKED ON", 4, move |seen: &Seen<'_>| {
            blocked_on(seen, window)
        }),
        grows("BEHIND", 9, |seen: &Seen<'_>| cell::who_for(seen.behind)),
    ]
}

/// `futex 61 %, io 20 %`: shares of the window, most first. Without its quota it is kept from running just so.
pub(super) fn blocked_on(seen: &Seen<'_>, window: Nanos) -> Cell {
    let mut off: Vec<&OffSum> = seen.sum.off.iter().collect();
    off.retain(|off| !off.reason.is_runnable() && off.total > Nanos::ZERO);
    off.sort_by_key(|off| (Reverse(off.total), off.reason));
    let (Some(most), true) = (off.first(), window > Nanos::ZERO) else {
        return match seen.sum.is_stranger() {
            true => Cell::none(),
            false => cell::nothing(),
        };
    };
    let all = off.iter().map(|off| off.total);
    let all = all.fold(Nanos::ZERO, Nanos::saturating_add);
    let named: Vec<String> = off
        .iter()
        .take(REASONS)
        .filter(|off| off.total.share_of(all) >= REASON_SHARE)
        .map(|off| format!("{} {}", off.reason.name(), whole_percent(off.total, window)))
        .collect();
    // One reason is as long as the column beside it says.
    let text = match named.len() {
        0 | 1 if most.reason.is_blocked() => most.reason.name().to_string(),
        _ => named.join(", "),
    };
    Cell::text(text)
}

/// For sentences and lists, where a digit less reads better.
pub(super) fn whole_percent(part: Nanos, whole: Nanos) -> String {
    let share = part.share_of(whole);
    match share * 100.0 {
        0.0 => "0 %".to_string(),
        percent if percent < 1.0 => "<1 %".to_string(),
        percent if percent < 99.5 => format!("{percent:.0} %"),
        percent if percent < 100.0 => ">99 %".to_string(),
        percent => format!("{percent:.0} %"),
    }
}

/// In the order of their numbers; sorted by how many they are.
pub(super) fn ran_on(cpus: &[(Cpu, Nanos)]) -> Cell {
    let mut used: Vec<Cpu> = cpus.iter().map(|&(cpu, _)| cpu).collect();
    if used.is_empty() {
        return Cell::none();
    }
    used.sort_unstable();
    used.dedup();
    #[allow(clippy::cast_precision_loss)]
    let key = Key::Number(used.len() as f64);
    Cell {
        key,
        ..Cell::text(cpu_list(&used))
    }
}
