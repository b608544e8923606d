//! Who is looked at: the processes, also those that ended a moment ago.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use super::cell::{self, left, prose, right};
use super::threads::open;

use crate::analyse::sched::ThreadSum;
use crate::event::Pid;
use crate::facts::GpuFacts;
use crate::present::top::list::{Cell, Key, List, Tone};
use crate::present::top::model::{Model, Source, Target};
use crate::present::top::view::Open;
use crate::units::{Bytes, Nanos};

/// A process, as far as it is known.
struct Process<'a> {
    pid: Pid,
    comm: &'a str,
    /// `None`: of a whole machine.
    target: Option<&'a Target>,
    threads: Vec<&'a ThreadSum>,
    launches: Option<u64>,
    gpus: Gpus,
}

/// What NVML tells of a process.
#[derive(Default)]
struct Gpus {
    /// NVML tells of processes.
    known: bool,
    numbers: Vec<u32>,
    memory: Option<Bytes>,
}

impl Process<'_> {
    fn is_over(&self) -> bool {
        self.target.is_some_and(|target| target.ended.is_some())
    }

    fn sum(&self, of: impl Fn(&ThreadSum) -> Nanos) -> Nanos {
        let times = self.threads.iter().map(|thread| of(thread));
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    }

    /// The thread that tells most of it.
    fn main(&self) -> Option<Open> {
        let most = |t: &&&ThreadSum| (t.dispatcher, t.run, t.who.tid.0 == self.pid.0);
        let thread = self.threads.iter().max_by_key(most)?;
        Some(open(&thread.who))
    }
}

fn processes(model: &Model) -> Vec<Process<'_>> {
    let mut of: HashMap<Pid, Vec<&ThreadSum>> = HashMap::new();
    for thread in &model.window.sched.threads {
        of.entry(thread.who.pid).or_default().push(thread);
    }
    let mut launches: HashMap<Pid, u64> = HashMap::new();
    for cuda in &model.window.cuda {
        *launches.entry(cuda.pid).or_default() += cuda.launches;
    }
    let targets = model.targets.iter().map(|target| Process {
        pid: target.pid,
        comm: &target.comm,
        target: Some(target),
        threads: of.remove(&target.pid).unwrap_or_default(),
        launches: launches.get(&target.pid).copied(),
        gpus: gpus(&model.facts, target.pid),
    });
    let mut processes: Vec<Process<'_>> = targets.collect();
    if model.source == Source::Machine {
        let mut others: Vec<Process<'_>> = of
            .into_iter()
            .map(|(pid, threads)| Process {
                pid,
                comm: name_of(pid, &threads),
                target: None,
                threads,
                launches: launches.get(&pid).copied(),
                gpus: gpus(&model.facts, pid),
            })
            .filter(|process| !process.threads.iter().all(|thread| thread.is_asleep()))
            .collect();
        others.sort_by_key(|p| (std::cmp::Reverse(p.sum(|t| t.run)), p.pid));
        processes.extend(others);
    }
    // As they were found; those that are over last.
    processes.sort_by_key(Process::is_over);
    processes
}

/// The first thread has the name of the process.
fn name_of<'a>(pid: Pid, threads: &[&'a ThreadSum]) -> &'a str {
    let first = threads.iter().find(|thread| thread.who.tid.0 == pid.0);
    let named = first.or(threads.first());
    named.map_or("", |thread| thread.who.comm.as_str())
}

fn gpus(facts: &[GpuFacts], pid: Pid) -> Gpus {
    let mut gpus = Gpus::default();
    for gpu in facts {
        let Some(processes) = &gpu.processes else {
            continue;
        };
        gpus.known = true;
        for &(_, memory) in processes.iter().filter(|(one, _)| *one == pid) {
            if gpus.numbers.last() != Some(&gpu.index) {
                gpus.numbers.push(gpu.index);
            }
            let sum = gpus.memory.map_or(0, |memory| memory.0);
            gpus.memory = memory
                .map(|memory| Bytes(sum.saturating_add(memory.0)))
                .or(gpus.memory);
        }
    }
    gpus
}

pub fn list(model: &Model) -> List {
    let window = cell::analysed(&model.window);
    let now = model.window.to.max(model.newest);
    let processes = processes(model);
    let fields = vec![
        right("PID", 0, |p: &Process<'_>| cell::id(p.pid.0)),
        left("PROCESS", 1, |p: &Process<'_>| cell::name(p.comm)),
        left("CUDA", 6, |p: &Process<'_>| {
            // Whatever shows that it does is enough.
            let seen = p.launches.is_some() || !p.gpus.numbers.is_empty();
            match p.target.map(|target| target.cuda || seen) {
                Some(true) => Cell::text("yes").tone(Tone::Good),
                Some(false) => Cell::text("no").tone(Tone::Dim),
                None => Cell::none(),
            }
        }),
        left("GPU", 5, |p: &Process<'_>| numbers(&p.gpus)),
        right("GPU MEM", 7, |p: &Process<'_>| cell::bytes(p.gpus.memory)),
        right("LAUNCH/S", 3, move |p: &Process<'_>| {
            p.launches
                .map_or_else(Cell::none, |count| cell::rate(count, window))
        }),
        right("CPU %", 2, move |p: &Process<'_>| match p.threads.len() {
            0 => Cell::none(),
            _ => cell::share(p.sum(|t| t.run), window),
        }),
        right("RUNQ %", 8, move |p: &Process<'_>| match p.threads.len() {
            0 => Cell::none(),
            _ => cell::share(p.sum(ThreadSum::waited), window),
        }),
        right("THREADS", 9, |p: &Process<'_>| match p.threads.len() {
            0 => Cell::none(),
            n => cell::count(n as u64),
        }),
        right("WATCHED", 10, move |p: &Process<'_>| watched(p, now)),
        prose("NOTE", 4, move |p: &Process<'_>| note(p, now)),
    ];
    let mut list = cell::list(title(&processes), fields, &processes, |p| {
        // Its number can come again.
        let since = p.target.map_or(0, |target| target.since.as_u64());
        (format!("{}:{since}", p.pid), p.main())
    });
    list.rows = list
        .rows
        .into_iter()
        .zip(&processes)
        .map(|(row, p)| if p.is_over() { row.dimmed() } else { row })
        .collect();
    list
}

fn title(processes: &[Process<'_>]) -> String {
    let over = processes.iter().filter(|p| p.is_over()).count();
    let alive = cell::plural(processes.len() - over, "process");
    match (processes.len(), over) {
        (0, _) => "Processes".to_string(),
        (_, 0) => alive,
        (_, over) => format!("{alive}, {over} ended"),
    }
}

fn numbers(gpus: &Gpus) -> Cell {
    let Some(&first) = gpus.numbers.first() else {
        return match gpus.known {
            true => cell::nothing(),
            false => Cell::none(),
        };
    };
    let numbers: Vec<String> = gpus.numbers.iter().map(u32::to_string).collect();
    Cell {
        key: Key::Number(f64::from(first)),
        ..Cell::text(numbers.join(","))
    }
}

fn watched(process: &Process<'_>, now: Nanos) -> Cell {
    let Some(target) = process.target else {
        return cell::nothing();
    };
    let until = target.ended.unwrap_or(now);
    let time = until.saturating_sub(target.since);
    Cell {
        text: age(time),
        ..cell::time(Some(time))
    }
}

fn note(process: &Process<'_>, now: Nanos) -> Cell {
    let Some(target) = process.target else {
        return cell::nothing();
    };
    let ended = target
        .ended
        .map(|at| format!("ended {} ago", age(now.saturating_sub(at))));
    let parts: Vec<&str> = ended
        .as_deref()
        .into_iter()
        .chain(target.note.as_deref())
        .collect();
    match parts.is_empty() {
        true => cell::nothing(),
        false => Cell::text(parts.join("; ")),
    }
}

/// As exact as it is looked at.
fn age(time: Nanos) -> String {
    match time.as_u64() / 1_000_000_000 {
        s if s < 120 => format!("{s} s"),
        s if s < 7_200 => format!("{} min", s / 60),
        s if s < 172_800 => format!("{} h", s / 3_600),
        s => format!("{} d", s / 86_400),
    }
}
