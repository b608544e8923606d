//! One thread: what it did, what it waited for and behind whom, where it was, and its part in idle time.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::calls::{histogram, told_of};
use super::cell::{self, left, prose, right};
use super::threads::{open, row_id, seen, Seen};
use super::when;

use crate::analyse::cause::Cause;
use crate::analyse::live::StackTime;
use crate::analyse::report::Blame;
use crate::analyse::sched::{cpu_list, pinning, OffReason, ThreadSum, Waker, Who};
use crate::analyse::syscalls::{Call, Measure};
use crate::event::{Cpu, Pid, Tid};
use crate::present::sched::waker_text;
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::{Model, Target};
use crate::present::top::screen::{Block, Screen};
use crate::present::top::view::Open;
use crate::units::{Count, Nanos, Rate};

/// Frames of a place, innermost first.
const FRAMES: usize = 3;
/// Of each table.
const ROWS: usize = 12;

pub fn screen(model: &Model, pid: Pid, tid: Tid) -> Screen {
    let threads = seen(model);
    let is_it = |who: &Who| who.pid == pid && who.tid == tid;
    let Some(thread) = threads.iter().find(|seen| is_it(&seen.sum.who)) else {
        return Screen::Page {
            title: format!("Thread {tid} of process {pid}"),
            blocks: vec![Block::text("", gone(model, pid), Tone::Dim)],
        };
    };
    let mut blocks = summary(model, thread);
    // What tells most comes first; what there is nothing of is left out.
    for (title, mut list) in [
        ("What it did", states(model, thread)),
        (
            "Its part in the idle time of GPUs",
            in_causes(model, pid, tid),
        ),
        ("Who had the CPU while it waited", behind(thread.sum)),
        ("Whom it kept waiting", kept_waiting(model, tid)),
        ("Where it was", places(model, pid, tid)),
        (calls_title(model), system_calls(model, pid, tid)),
        ("Who woke it", wakers(model, thread.sum)),
        ("CPUs that it ran on", cpus(model, thread.sum)),
        (
            "How long it waited for a CPU each time",
            histogram(&thread.sum.runq),
        ),
    ] {
        if list.rows.is_empty() {
            continue;
        }
        let more = list.rows.len().saturating_sub(ROWS);
        list.rows.truncate(ROWS);
        blocks.extend([
            Block::Blank,
            Block::Heading(title.to_string()),
            Block::Table(list),
        ]);
        if more > 0 {
            blocks.push(Block::text("", format!("and {more} more"), Tone::Dim));
        }
    }
    Screen::Page {
        title: title(&thread.sum.who),
        blocks,
    }
}

fn title(who: &Who) -> String {
    let comm = if who.comm.is_empty() { "''" } else { &who.comm };
    if who.pid.0 == who.tid.0 {
        format!("Thread {comm} {}", who.tid)
    } else {
        format!("Thread {comm} {} of process {}", who.tid, who.pid)
    }
}

fn gone(model: &Model, pid: Pid) -> &'static str {
    let ended = |target: &Target| target.pid == pid && target.ended.is_some();
    if model.targets.iter().any(ended) {
        "its process has ended, and it did nothing in this window"
    } else {
        "nothing is known of it in this window: it has ended, or did not begin yet"
    }
}

/// What it was in, for how long. The parts add up to the window; calls of CUDA lie across them.
struct State {
    name: String,
    time: Nanos,
    count: Option<u64>,
    max: Option<Nanos>,
    tone: Tone,
}

fn states(model: &Model, thread: &Seen<'_>) -> List {
    let window = cell::analysed(&model.window);
    let sum = thread.sum;
    let mut states = vec![State {
        name: "running".to_string(),
        time: sum.run,
        count: Some(sum.runs.count).filter(|&count| count > 0),
        max: sum.runs.longest(),
        tone: Tone::Good,
    }];
    for off in &sum.off {
        let (what, tone) = match off.reason {
            reason if reason.is_runnable() => ("runnable", Tone::Warn),
            OffReason::Throttled => ("throttled", Tone::Bad),
            _ => ("blocked", Tone::Plain),
        };
        let name = match off.reason {
            OffReason::Throttled => what.to_string(),
            reason => format!("{what}: {}", reason.name()),
        };
        states.push(State {
            name,
            time: off.total,
            count: Some(off.count),
            max: off.max,
            tone,
        });
    }
    states.sort_by_key(|state| Reverse(state.time));
    let told = states.iter().map(|state| state.time);
    let told = told.fold(Nanos::ZERO, Nanos::saturating_add);
    let rest = window.saturating_sub(told);
    // The edges of what was told of it.
    const UNTOLD: f64 = 0.001;
    if rest.share_of(window) >= UNTOLD {
        states.push(State {
            name: "not alive, or not known".to_string(),
            time: rest,
            count: None,
            max: None,
            tone: Tone::Dim,
        });
    }
    if let Some(cuda) = thread.cuda {
        states.push(State {
            name: "(meanwhile in CUDA calls)".to_string(),
            time: cuda.time,
            count: None,
            max: None,
            tone: Tone::Name,
        });
    }
    let fields = vec![
        left("STATE", 0, |state: &State| {
            Cell::text(state.name.as_str()).tone(state.tone)
        }),
        right("%", 0, move |state: &State| {
            cell::share(state.time, window).with_bar()
        }),
        right("TIME", 1, |state: &State| cell::time(Some(state.time))),
        right("TIMES", 2, |state: &State| {
            state.count.map_or_else(Cell::none, cell::count)
        }),
        right("LONGEST", 3, |state: &State| cell::time(state.max)),
    ];
    cell::list("", fields, &states, |state| (state.name.clone(), None))
}

/// Who it is, how it waited for a CPU, and whether it is where it should be.
fn summary(model: &Model, thread: &Seen<'_>) -> Vec<Block> {
    let sum = thread.sum;
    let line = |label: &str, tone, text: String| Block::text(label, text, tone);
    let mut blocks = vec![line("role    ", Tone::Plain, facts(model, thread))];
    if sum.is_stranger() {
        let text = "only what it ran beside the targets";
        blocks.push(line("known   ", Tone::Dim, text.to_string()));
        return blocks;
    }
    blocks.extend(waits(model, sum).map(|text| line("waited  ", Tone::Plain, text)));
    if sum.target && sum.run.saturating_add(sum.waited()) > Nanos::ZERO {
        let verdict = pinning::of_thread(&model.window.sched, sum);
        let tone = if verdict.fine { Tone::Good } else { Tone::Bad };
        blocks.push(line("verdict ", tone, format!("it {}", verdict.says)));
        for text in verdict.evidence {
            blocks.push(line("      - ", Tone::Plain, text));
        }
        let fix = verdict
            .remedy
            .map(|text| line("fix     ", Tone::Strong, text));
        blocks.extend(fix);
    }
    blocks
}

/// `dispatcher, 18.2 k launches/s, moved 1.20 times/s, may use CPUs 0-7`
fn facts(model: &Model, thread: &Seen<'_>) -> String {
    let window = cell::analysed(&model.window);
    let sum = thread.sum;
    let mut facts = vec![thread.role.name().to_string()];
    if thread.ended {
        facts.push("ended".to_string());
    }
    if sum.kthread {
        facts.push("of the kernel".to_string());
    }
    let launches = thread.cuda.map(|cuda| cuda.launches);
    if let Some(rate) = launches.and_then(|n| Rate::of(n, window)) {
        facts.push(format!("{rate} launches/s"));
    }
    match sum.prio {
        Some(prio) if prio < 100 => facts.push(format!("real time priority {}", 99 - prio)),
        Some(prio) if prio < 140 && prio != 120 => {
            facts.push(format!("nice {}", i64::from(prio) - 120));
        }
        Some(_) | None => {}
    }
    if let Some(rate) = Rate::of(sum.migrations, window).filter(|_| sum.migrations > 0) {
        facts.push(format!("moved {rate} times/s"));
    }
    match (&sum.affinity, sum.allowed) {
        (Some(cpus), _) => facts.push(format!("may use CPUs {}", cpu_list(cpus))),
        (None, Some(1)) => facts.push("may use 1 CPU".to_string()),
        (None, Some(n)) => facts.push(format!("may use {n} CPUs")),
        (None, None) => {}
    }
    facts.join(", ")
}

/// `182 times for a CPU: median 12.0 us, p99 4.10 ms, longest 12.1 ms (at -3.20 s), behind hog:9001`
fn waits(model: &Model, sum: &ThreadSum) -> Option<String> {
    let runq = &sum.runq;
    let (median, p99) = (runq.percentile(0.5)?, runq.percentile(0.99)?);
    let times = match runq.count {
        1 => "once".to_string(),
        n => format!("{} times", Count(n)),
    };
    let mut text = format!(
        "{times} for a CPU: median {median}, p99 {p99}, longest {}",
        runq.longest_text()
    );
    if let Some(at) = sum.runq_max_at {
        text.push_str(&format!(" (at {})", when(model, at)));
    }
    if let Some(who) = &sum.runq_max_behind {
        text.push_str(&format!(", behind {who}"));
    }
    Some(text)
}

/// Its part in the causes of idle time.
fn in_causes(model: &Model, pid: Pid, tid: Tid) -> List {
    struct Part<'a> {
        gpu: u32,
        cause: Cause,
        idle: Option<Nanos>,
        blame: &'a Blame,
    }
    let mut parts: Vec<Part<'_>> = Vec::new();
    for gpu in &model.window.report.gpus {
        for row in &gpu.causes {
            let own = row.by.iter().filter(|blame| {
                let who = blame.who.as_ref();
                who.is_some_and(|who| who.pid == pid && who.tid == tid)
            });
            parts.extend(own.map(|blame| Part {
                gpu: gpu.index,
                cause: row.cause,
                idle: gpu.idle,
                blame,
            }));
        }
    }
    parts.sort_by_key(|part| Reverse(part.blame.total));
    let fields = vec![
        right("GPU", 3, |part: &Part<'_>| cell::id(part.gpu)),
        left("CAUSE", 0, |part: &Part<'_>| {
            Cell::text(part.cause.id()).tone(Tone::Bad)
        }),
        right("OF IDLE %", 1, |part: &Part<'_>| match part.idle {
            Some(idle) => cell::share(part.blame.total, idle).with_bar(),
            None => Cell::none(),
        }),
        right("TIME", 2, |part: &Part<'_>| {
            cell::time(Some(part.blame.total))
        }),
        prose("WHAT", 1, |part: &Part<'_>| {
            Cell::text(part.blame.what.as_str())
        }),
    ];
    cell::list("", fields, &parts, |part| {
        let id = format!("{}:{}:{}", part.gpu, part.cause.id(), part.blame.what);
        (id, Some(Open::Cause(part.cause)))
    })
}

/// Who had the CPU while it waited for one.
fn behind(sum: &ThreadSum) -> List {
    let waited = sum.waited();
    let fields = vec![
        left("WHO", 0, |(who, _): &(Who, Nanos)| cell::name(&who.comm)),
        right("TID", 2, |(who, _): &(Who, Nanos)| cell::id(who.tid.0)),
        right("PID", 3, |(who, _): &(Who, Nanos)| cell::id(who.pid.0)),
        right("TIME", 0, |(_, time): &(Who, Nanos)| {
            cell::time(Some(*time))
        }),
        right("OF WAIT %", 1, move |(_, time): &(Who, Nanos)| {
            cell::share((*time).min(waited), waited).with_bar()
        }),
    ];
    cell::list("", fields, &sum.behind, |(who, _)| {
        (row_id(who), Some(open(who)))
    })
}

/// Threads of targets that waited behind this one.
fn kept_waiting(model: &Model, tid: Tid) -> List {
    struct Victim<'a> {
        who: &'a Who,
        /// Had its CPU meanwhile.
        had: Option<Nanos>,
        took: u64,
        then: Nanos,
    }
    let sched = &model.window.sched;
    let mut victims: BTreeMap<(Pid, Tid), Victim<'_>> = BTreeMap::new();
    for thread in sched.threads.iter().filter(|thread| thread.target) {
        if let Some((_, time)) = thread.behind.iter().find(|(who, _)| who.tid == tid) {
            let who = &thread.who;
            let (had, took, then) = (Some(*time), 0, Nanos::ZERO);
            let victim = Victim {
                who,
                had,
                took,
                then,
            };
            victims.insert((who.pid, who.tid), victim);
        }
    }
    let preemptors = sched.preemptors.iter().filter(|p| p.who.tid == tid);
    for (who, took, then) in preemptors.flat_map(|p| &p.victims) {
        let victim = victims.entry((who.pid, who.tid)).or_insert(Victim {
            who,
            had: None,
            took: 0,
            then: Nanos::ZERO,
        });
        (victim.took, victim.then) = (*took, *then);
    }
    let mut victims: Vec<Victim<'_>> = victims.into_values().collect();
    victims.sort_by_key(|victim| Reverse((victim.had, victim.then)));
    let fields = vec![
        left("WHO", 0, |victim: &Victim<'_>| cell::name(&victim.who.comm)),
        right("TID", 2, |victim: &Victim<'_>| cell::id(victim.who.tid.0)),
        right("WAITED BEHIND IT", 0, |victim: &Victim<'_>| {
            cell::time(victim.had)
        }),
        right("PREEMPTED", 1, |victim: &Victim<'_>| {
            cell::count(victim.took)
        }),
        right("THEN WAITED", 3, |victim: &Victim<'_>| {
            cell::time(Some(victim.then).filter(|_| victim.took > 0))
        }),
    ];
    cell::list("", fields, &victims, |victim| {
        (row_id(victim.who), Some(open(victim.who)))
    })
}

fn wakers(model: &Model, sum: &ThreadSum) -> List {
    let window = cell::analysed(&model.window);
    let fields = vec![
        left("WHO", 0, |(waker, _): &(Waker, u64)| {
            Cell::text(waker_text(waker)).tone(Tone::Name)
        }),
        right("TIMES", 1, |(_, times): &(Waker, u64)| cell::count(*times)),
        right("TIMES/S", 0, move |(_, times): &(Waker, u64)| {
            cell::rate(*times, window)
        }),
    ];
    cell::list(
        "Who woke it",
        fields,
        &sum.wakers,
        |(waker, _)| match waker {
            Waker::Thread(who) => (row_id(who), Some(open(who))),
            Waker::Interrupt(..) => (waker_text(waker), None),
        },
    )
}

fn cpus(model: &Model, sum: &ThreadSum) -> List {
    let window = cell::analysed(&model.window);
    let fields = vec![
        right("CPU", 0, |(cpu, _): &(Cpu, Nanos)| {
            cell::id(u32::from(cpu.0))
        }),
        right("TIME", 1, |(_, time): &(Cpu, Nanos)| {
            cell::time(Some(*time))
        }),
        right("%", 0, move |(_, time): &(Cpu, Nanos)| {
            cell::share(*time, window).with_bar()
        }),
    ];
    cell::list("", fields, &sum.cpus, |(cpu, _)| (cpu.to_string(), None))
}

fn calls_title(model: &Model) -> &'static str {
    match model.window.calls.measure {
        Measure::Calls => "Its system calls",
        Measure::Waits => "Its system calls that waited",
    }
}

fn system_calls(model: &Model, pid: Pid, tid: Tid) -> List {
    let window = told_of(model);
    let threads = &model.window.calls.threads;
    let thread = threads.iter().find(|thread| thread.id == Some((pid, tid)));
    let calls = thread.map_or(&[][..], |thread| &thread.calls);
    let fields = vec![
        left("CALL", 0, |call: &Call| {
            Cell::text(call.name.as_str()).tone(Tone::Name)
        }),
        right("%", 1, move |call: &Call| {
            cell::share(call.times.total, window).with_bar()
        }),
        right("TIME", 2, |call: &Call| {
            cell::time((call.times.count > 0).then_some(call.times.total))
        }),
        right("CALLS/S", 2, move |call: &Call| {
            cell::rate(call.times.count, window)
        }),
        right("AVG", 4, |call: &Call| cell::time(call.times.average())),
        right("P99", 5, |call: &Call| {
            cell::time(call.times.percentile(0.99))
        }),
        right("MAX", 3, |call: &Call| cell::longest(&call.times)),
        right("GPU IDLE", 6, |call: &Call| cell::time(call.idle_overlap)),
    ];
    cell::list("", fields, calls, |call| {
        (call.name.clone(), Some(Open::Call(call.name.clone())))
    })
}

/// Where it was, running and waiting, each place folded to the frames that tell most.
fn places(model: &Model, pid: Pid, tid: Tid) -> List {
    let window = cell::analysed(&model.window);
    let mut of: BTreeMap<(String, bool), Nanos> = BTreeMap::new();
    let own = |stack: &&StackTime| stack.pid == pid && stack.tid == tid;
    for stack in model.window.stacks.iter().filter(own) {
        let time = of
            .entry((telling(&stack.frames), stack.running))
            .or_default();
        *time = time.saturating_add(stack.time);
    }
    let mut places: Vec<((String, bool), Nanos)> = of.into_iter().collect();
    places.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
    type Place = ((String, bool), Nanos);
    let fields = vec![
        right("%", 0, move |place: &Place| {
            cell::share(place.1, window).with_bar()
        }),
        right("TIME", 2, |place: &Place| cell::time(Some(place.1))),
        left("STATE", 1, |((_, running), _): &Place| match running {
            true => Cell::text("running").tone(Tone::Good),
            false => Cell::text("waiting"),
        }),
        prose("WHERE", 0, |((place, _), _): &Place| {
            Cell::text(place.as_str())
        }),
    ];
    cell::list("", fields, &places, |((place, running), _)| {
        (format!("{running}:{place}"), None)
    })
}

/// `leaf < caller < its caller`: of the program, where it has names; with Python in it the innermost Python and
/// what that called. `frames` are outermost first, as flame graphs have them.
fn telling(frames: &[String]) -> String {
    let is_kernel = |frame: &str| frame.ends_with("_[k]");
    let is_python = |frame: &str| frame.contains(".py:") || frame.ends_with(".py)");
    let is_interpreter = |frame: &str| frame.starts_with("_Py") || frame.starts_with("Py");
    let has_name = |frame: &str| !frame.starts_with('[') && !frame.contains("+0x");
    let inner = frames.iter().rev().map(String::as_str);
    let named = inner.clone().filter(|frame| {
        has_name(frame) && !is_kernel(frame) && (is_python(frame) || !is_interpreter(frame))
    });
    let named: Vec<&str> = named.collect();
    let shown: Vec<&str> = match named.iter().position(|frame| is_python(frame)) {
        // What lies between two of Python is how one calls the other.
        Some(first) => {
            let native = first.checked_sub(1).and_then(|i| named.get(i));
            let python = named.iter().filter(|frame| is_python(frame));
            native.into_iter().chain(python).copied().collect()
        }
        None if named.is_empty() => inner.collect(),
        None => named,
    };
    let shown = shown.into_iter().take(FRAMES);
    let shown: Vec<&str> = shown
        .map(|frame| frame.strip_suffix("_[k]").unwrap_or(frame))
        .collect();
    if shown.is_empty() {
        return "-".to_string();
    }
    shown.join(" < ")
}

#[cfg(test)]
mod tests {
    use super::telling;

    #[test]
    fn a_place_is_told_by_the_frames_of_the_program() {
        for (frames, told) in [
            (
                &["main", "run", "read", "vfs_read_[k]"][..],
                "read < run < main",
            ),
            (&["main", "a", "b", "c"], "c < b < a"),
            (
                &[
                    "_start",
                    "main (t.py:9)",
                    "_PyEval_Vector",
                    "step (t.py:2)",
                    "_PyCFunction",
                    "at::add",
                    "at::impl",
                ],
                "at::add < step (t.py:2) < main (t.py:9)",
            ),
            (
                &["[cut: too deep]", "a.so+0x10", "futex_wait_[k]"],
                "futex_wait < a.so+0x10 < [cut: too deep]",
            ),
            (&[], "-"),
        ] {
            let frames: Vec<String> = frames.iter().map(|f| (*f).to_string()).collect();
            assert_eq!(telling(&frames), told);
        }
    }
}
