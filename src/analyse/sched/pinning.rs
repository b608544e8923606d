//! Are the threads that matter where they should be: do they wait for a CPU, behind whom, and would another
//! one have been free?
//!
//! Nothing is guessed: whoever is named had the CPU, or took it, for a share of the wait that is stated; a
//! CPU is called free only when its idle time is so long that it must have been idle while the thread
//! waited. A thread that waits little is where it should be, whoever else runs there.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use super::{cpu_list, CpuSum, Summary, ThreadSum, Who};
use crate::event::Cpu;
use crate::units::{Count, Nanos, Share};

/// Waiting less than this, or than this share of the time that it could run, is no harm; nor are waits that are
/// all shorter and behind nobody.
const LEAST_WAIT: Nanos = Nanos::from_millis(1);
const LEAST_SHARE: f64 = 0.01;

/// Whoever had less than this share of the wait is not named.
const CULPRIT_SHARE: f64 = 0.1;
const CULPRITS: usize = 3;

/// Where nobody is known to launch GPU work: threads that could run for this share of the time.
const BUSY_SHARE: f64 = 0.1;
const JUDGED: usize = 4;

/// Moves a second that are worth a sentence, and how many there must be.
const MOVES_PER_SECOND: u64 = 50;
const LEAST_MOVES: u64 = 50;

/// Of each CPU: then there is no room anywhere.
const FULL: f64 = 0.95;

/// A CPU was free when it was surely idle for this share of the wait.
const FREE_SHARE: f64 = 0.5;

/// What is to be said of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub who: Who,
    /// It waits for no CPU to speak of.
    pub fine: bool,
    pub says: String,
    pub evidence: Vec<String>,
    pub remedy: Option<String>,
}

/// Of the threads that launch GPU work each has a verdict; of others those that have a problem.
pub fn judge(summary: &Summary) -> Vec<Verdict> {
    let window = summary.end.saturating_sub(summary.start);
    let dispatchers: Vec<&ThreadSum> = summary.threads.iter().filter(|t| t.dispatcher).collect();
    let any = !dispatchers.is_empty();
    let mut judged = if any {
        dispatchers
    } else {
        // Whoever waits all the time never runs.
        let wants = |t: &ThreadSum| t.run.saturating_add(t.waited()).share_of(window) >= BUSY_SHARE;
        let busy = |t: &&ThreadSum| t.target && !t.kthread && wants(t);
        summary.threads.iter().filter(busy).collect()
    };
    judged.sort_by_key(|t| (Reverse((t.runq.total, t.run)), t.who.tid));
    let verdicts = judged.into_iter().map(|thread| of_thread(summary, thread));
    let verdicts = verdicts.filter(|verdict| any || !verdict.fine);
    verdicts.take(JUDGED).collect()
}

/// The verdict of any thread.
pub fn of_thread(summary: &Summary, thread: &ThreadSum) -> Verdict {
    let waited = thread.waited();
    let share = waited.share_of(thread.run + waited);
    if waited >= LEAST_WAIT && share >= LEAST_SHARE {
        let culprits = culprits(summary, thread);
        // A CPU that was idle takes its time to wake.
        let goes_on = waited.saturating_sub(thread.runq.total);
        let longest = thread.longest_wait().max(goes_on);
        if !culprits.is_empty() || longest >= LEAST_WAIT {
            return waits(summary, thread, &culprits);
        }
    }
    moves_or_fine(summary, thread)
}

fn moves_or_fine(summary: &Summary, thread: &ThreadSum) -> Verdict {
    let waited = thread.waited();
    let window = summary.end.saturating_sub(summary.start);
    let rate = per_second(thread.migrations, window);
    let restless = thread.migrations >= LEAST_MOVES && rate >= MOVES_PER_SECOND;
    let (says, remedy) = if restless {
        (
            format!(
                "moved between CPUs {} times, {} a second",
                Count(thread.migrations),
                Count(rate)
            ),
            Some(format!(
                "if it matters that its caches stay warm, pin it{}",
                taskset(thread, &cpu_list(&favourite(thread)))
            )),
        )
    } else {
        ("is where it should be".to_string(), None)
    };
    let share = Share(waited.share_of(thread.run + waited));
    Verdict {
        who: thread.who.clone(),
        fine: !restless,
        says,
        evidence: vec![format!(
            "it {}; it waited {waited} for a CPU, {share} of the time that it could run, at most {} at a time",
            places(thread),
            thread.longest_wait()
        )],
        remedy,
    }
}

fn per_second(count: u64, window: Nanos) -> u64 {
    let per_ns = u128::from(count) * 1_000_000_000;
    let rate = per_ns.checked_div(u128::from(window.0)).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Only where it can be typed: in another PID namespace its number is another thread's.
fn taskset(thread: &ThreadSum, cpus: &str) -> String {
    let command = |tid| format!(": taskset -pc {cpus} {tid}");
    thread.here.map_or_else(String::new, command)
}

/// The CPU that it ran on most.
fn favourite(thread: &ThreadSum) -> Vec<Cpu> {
    thread
        .cpus
        .first()
        .map(|&(cpu, _)| cpu)
        .into_iter()
        .collect()
}

/// `ran on CPUs 0-1 (it may use 0-3), and moved 7 times`
fn places(thread: &ThreadSum) -> String {
    if thread.run == Nanos::ZERO {
        return match (&thread.affinity, thread.allowed_cpus()) {
            (Some(cpus), Some(1)) => format!("may use CPU {}", cpu_list(cpus)),
            (Some(cpus), _) => format!("may use CPUs {}", cpu_list(cpus)),
            (None, Some(n)) => format!("may use {n} CPUs"),
            (None, None) => "did not run".to_string(),
        };
    }
    let mut used: Vec<Cpu> = thread.cpus.iter().map(|&(cpu, _)| cpu).collect();
    used.sort_unstable();
    let (count, list) = (used.len(), cpu_list(&used));
    let used = if count == 1 {
        format!("CPU {list}")
    } else {
        format!("CPUs {list}")
    };
    let may = match (&thread.affinity, thread.allowed_cpus()) {
        (Some(cpus), _) if cpu_list(cpus) != list => format!(" (it may use {})", cpu_list(cpus)),
        (None, Some(n)) if n != count => format!(" (it may use {n})"),
        (Some(_), _) | (None, _) => String::new(),
    };
    let moved = match thread.migrations {
        0 => String::new(),
        1 => ", and moved once".to_string(),
        n => format!(", and moved {} times", Count(n)),
    };
    format!("ran on {used}{may}{moved}")
}

/// Somebody who had, or took, its CPU for a share of its wait.
struct Culprit<'a> {
    who: &'a Who,
    /// A thread of the kernel.
    kthread: bool,
    /// Of the wait.
    time: Nanos,
    says: String,
}

fn waits(summary: &Summary, thread: &ThreadSum, culprits: &[Culprit<'_>]) -> Verdict {
    let waited = thread.waited();
    let share = Share(waited.share_of(thread.run + waited));
    let free = free_cpus(summary, thread);
    let mut evidence = vec![format!("it {}", places(thread))];
    evidence.extend(culprits.iter().map(|culprit| culprit.says.clone()));
    let longest = format!("the longest wait was {}", thread.longest_wait_text());
    match &thread.runq_max_behind {
        Some(who) if culprits.is_empty() => {
            evidence.push(format!("{longest}, behind {who}"));
        }
        Some(_) | None => {}
    }
    evidence.extend(free.iter().map(Free::says));
    if thread.packed {
        evidence.push("in most of its long waits, CPUs that it may not use were idle".to_string());
    }
    Verdict {
        who: thread.who.clone(),
        fine: false,
        says: if thread.is_starved() {
            format!("never ran: it waited for a CPU all {waited}")
        } else {
            format!("waited {waited} for a CPU, {share} of the time that it could run")
        },
        evidence,
        remedy: remedy(summary, thread, culprits, &free),
    }
}

fn culprits<'a>(summary: &'a Summary, thread: &'a ThreadSum) -> Vec<Culprit<'a>> {
    let waited = thread.waited();
    let is_kthread = |who: &Who| {
        let found = summary.threads.iter().find(|t| t.who.tid == who.tid);
        found.is_some_and(|t| t.kthread)
    };
    let took = |who: &Who| -> Option<(u64, Nanos)> {
        let preemptor = summary.preemptors.iter().find(|p| p.who.tid == who.tid)?;
        let victim = preemptor
            .victims
            .iter()
            .find(|v| v.0.tid == thread.who.tid)?;
        Some((victim.1, victim.2))
    };
    let mut found: Vec<Culprit<'_>> = Vec::new();
    for (who, had) in &thread.behind {
        // A wait that is not over is no latency yet, but somebody is in the way already.
        let had = (*had).min(waited);
        if had.share_of(waited) >= CULPRIT_SHARE {
            let took = took(who).map_or_else(String::new, |(count, _)| {
                format!(", and took it {} times", Count(count))
            });
            found.push(Culprit {
                who,
                kthread: is_kthread(who),
                time: had,
                says: format!(
                    "{} had its CPU for {had} of that ({}){took}",
                    who,
                    Share(had.share_of(waited))
                ),
            });
        }
    }
    if thread.behind.is_empty() {
        for preemptor in &summary.preemptors {
            let who = &preemptor.who;
            let Some((count, then)) = took(who) else {
                continue;
            };
            // What came after it may have been in the way as well: it is to blame for what it ran itself, at most.
            let ran = ran_beside(summary, thread, who);
            let time = then.min(ran);
            if time.share_of(waited) >= CULPRIT_SHARE {
                let took = match count {
                    0 => "had taken its CPU before".to_string(),
                    n => format!("took its CPU {} times", Count(n)),
                };
                found.push(Culprit {
                    who,
                    kthread: is_kthread(who),
                    time,
                    says: format!(
                        "{who} {took} and ran {ran} there; {} waited {then} ({}) after that",
                        thread.who,
                        Share(then.share_of(waited))
                    ),
                });
            }
        }
        found.sort_by_key(|culprit| Reverse(culprit.time));
    }
    found.truncate(CULPRITS);
    found
}

/// How long somebody ran on the CPUs that the thread ran on.
fn ran_beside(summary: &Summary, thread: &ThreadSum, who: &Who) -> Nanos {
    let used = |cpu: &&CpuSum| thread.cpus.iter().any(|&(used, _)| used == cpu.cpu);
    let ran = summary.cpus.iter().filter(used).flat_map(|cpu| &cpu.ran);
    let times = ran
        .filter(|(one, _)| one.tid == who.tid)
        .map(|&(_, time)| time);
    times.fold(Nanos::ZERO, Nanos::saturating_add)
}

/// A CPU that must have been idle while the thread waited.
struct Free {
    cpu: Cpu,
    /// At least.
    idle: Nanos,
    /// Whether the thread may run there.
    allowed: bool,
}

impl Free {
    fn says(&self) -> String {
        let may = if self.allowed { "may" } else { "may not" };
        format!(
            "CPU {}, which it {may} use, was idle for at least {} of that",
            self.cpu, self.idle
        )
    }
}

/// Where the thread may run must be known: all of them, or a list.
fn free_cpus(summary: &Summary, thread: &ThreadSum) -> Vec<Free> {
    let waited = thread.waited();
    let window = summary.end.saturating_sub(summary.start);
    let may_use = |cpu: &CpuSum| match (&thread.affinity, thread.allowed) {
        (Some(cpus), _) => Some(cpus.contains(&cpu.cpu)),
        (None, Some(n)) => (usize::from(n) >= summary.cpus.len()).then_some(true),
        (None, None) => None,
    };
    let free = summary.cpus.iter().filter_map(|cpu| {
        // Both fit into the window only if they overlap by so much.
        let idle = cpu.idle.saturating_add(waited).saturating_sub(window);
        let allowed = may_use(cpu)?;
        (idle.share_of(waited) >= FREE_SHARE).then_some(Free {
            cpu: cpu.cpu,
            idle,
            allowed,
        })
    });
    let mut free: Vec<Free> = free.collect();
    free.sort_by_key(|f| (Reverse((f.allowed, f.idle)), f.cpu));
    free.truncate(CULPRITS);
    free
}

/// `None` when the numbers prove nobody's part.
fn remedy(
    summary: &Summary,
    thread: &ThreadSum,
    culprits: &[Culprit<'_>],
    free: &[Free],
) -> Option<String> {
    if let Some(free) = free.first() {
        if free.allowed {
            // A mask with that one alone would keep it from all others.
            return Some(format!(
                "its mask does not keep it from CPU {}, which has room: the scheduler may yet move it there",
                free.cpu
            ));
        }
        let mut cpus = vec![free.cpu];
        cpus.extend(thread.affinity.iter().flatten());
        cpus.sort_unstable();
        return Some(format!(
            "let it run where there is room{}",
            taskset(thread, &cpu_list(&cpus))
        ));
    }
    if thread.packed {
        return Some(format!(
            "it may use too few CPUs: widen the cpuset of its cgroup, or give it more{}",
            taskset(thread, "CPUS")
        ));
    }
    let pinned = thread
        .allowed_cpus()
        .is_some_and(|n| n < summary.cpus.len());
    let window = summary.end.saturating_sub(summary.start);
    let full = |cpu: &CpuSum| cpu.busy.share_of(window) >= FULL;
    if !pinned && summary.cpus.len() > 1 && summary.cpus.iter().all(full) {
        return Some(format!(
            "all {} CPUs are busy: run less beside it, or give process {} CPUs of its own (cpuset, isolcpus)",
            summary.cpus.len(),
            thread.who.pid
        ));
    }
    let own = |culprit: &&Culprit<'_>| culprit.who.pid == thread.who.pid;
    let of = |culprits: &mut dyn Iterator<Item = &Culprit<'_>>| {
        culprits
            .map(|c| c.time)
            .fold(Nanos::ZERO, Nanos::saturating_add)
    };
    let by_own = of(&mut culprits.iter().filter(own));
    let by_kernel = of(&mut culprits.iter().filter(|c| c.kthread));
    let foreign = || culprits.iter().filter(|c| !own(c) && !c.kthread);
    let by_foreign = of(&mut foreign());
    let most = by_own.max(by_kernel).max(by_foreign);
    if most == Nanos::ZERO {
        return None;
    }
    Some(if most == by_own {
        "threads of its own process want its CPU: use fewer of them, or pin them elsewhere with taskset -pc"
            .to_string()
    } else if most == by_kernel {
        format!(
            "work of the kernel has its CPU: move interrupts (/proc/irq/N/smp_affinity) and workqueues away, \
             or pin it elsewhere{}",
            taskset(thread, "CPU")
        )
    } else {
        let other = foreign().next()?;
        let away = format!(
            "keep {} (process {}) off its CPU with taskset -pc, or give process {} a cpuset of its own",
            other.who, other.who.pid, thread.who.pid
        );
        if pinned {
            away
        } else {
            format!("{away}; it is not pinned itself")
        }
    })
}
