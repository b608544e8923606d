//! What each thread did: its states, the CUDA calls it made, what it slept in, and when it waited long for a CPU.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::cmp::Reverse;
use std::io;

use crate::analyse::chain::state_text;
use crate::analyse::partition::{Asleep, Engine};
use crate::analyse::tracks::gpus::{flow_of, Linked};
use crate::analyse::tracks::lanes::{Row, Tracks};
use crate::analyse::tracks::who::{named, Cast};
use crate::analyse::tracks::{
    text, uint, Arg, Doing, Flow, Owner, Parent, Sink, Slice, Stay, Value, LONG_WAIT,
};
use crate::analyse::waits::Wait;
use crate::analyse::what::{context_text, describe};
use crate::event::{Context, Pid, StallKind, Tid};
use crate::model::api::{self, Class};
use crate::model::fxhash::FxHashMap;
use crate::model::ops::CallIdx;
use crate::model::thread::{State, Stretch, Thread, ThreadIdx, Wake};
use crate::model::Timeline;
use crate::units::Nanos;

const CALLS_RANK: u32 = 0;
const SYSTEM_CALLS_RANK: u32 = 1;
const WAITS_RANK: u32 = 2;
const STALLS_RANK: u32 = 3;
const SIGNALS_RANK: u32 = 4;

pub(super) fn show_states(
    engine: &Engine<'_>,
    cast: &Cast<'_>,
    sink: &mut dyn Sink,
) -> io::Result<()> {
    let t = cast.t;
    for (idx, thread) in t.threads() {
        for s in thread.states(cast.window.from, cast.window.to) {
            let owner = cast.owner(idx, s.start);
            if !cast.wants(owner.pid) {
                continue;
            }
            if let Some(stay) = stay(engine, cast, idx, &s) {
                sink.stay(owner, &stay)?;
            }
        }
    }
    Ok(())
}

/// `None` where nothing is known of it, or there is nothing of it.
fn stay<'t>(engine: &Engine<'t>, cast: &Cast<'t>, idx: ThreadIdx, s: &Stretch) -> Option<Stay<'t>> {
    let t = cast.t;
    let thread = t.thread(idx);
    let mut args: Vec<Arg<'t>> = Vec::new();
    let mut woken_by = None;
    let doing = match s.state {
        State::Unknown | State::Exited => return None,
        State::Running { cpu } => {
            args.extend(cpu.map(|cpu| ("cpu", uint(cpu.0.into()))));
            let next = thread
                .states(s.end, Nanos(s.end.0.saturating_add(1)))
                .next();
            if let Some(next) = next.filter(|_| s.end == s.span.1) {
                args.push(("then", text(state_text(engine, idx, &next, None))));
            }
            Doing::Running
        }
        State::Runnable { .. } => {
            if let Some(by) = thread.preemptor(s).filter(|tid| tid.0 != 0) {
                args.push(("instead", text(thread_text(t, by, s.start))));
            }
            if let Some(wake) = thread.wake_of(s) {
                args.push(("woken_by", text(waker_text(t, wake))));
                let begins = s.start == s.span.0 && wake.at == s.start;
                woken_by = begins.then(|| running_waker(cast, wake)).flatten();
            }
            Doing::Runnable
        }
        State::Blocked(sleep) => {
            let asleep = engine.describe_wait(idx, s, &sleep);
            args = wait_args(t, &asleep);
            Doing::Blocked
        }
    };
    Some(Stay {
        start: s.start,
        end: s.end,
        doing,
        text: state_text(engine, idx, s, None).into(),
        args,
        woken_by,
    })
}

/// A thread as text, at a time.
fn thread_text(t: &Timeline, tid: Tid, at: Nanos) -> String {
    match t.find(tid) {
        Some(idx) => describe(t, t.who(idx, at)),
        None => format!("tid {tid}"),
    }
}

fn waker_text(t: &Timeline, wake: Wake) -> String {
    match wake.context {
        Context::Task if wake.waker.0 == 0 => "the idle task".to_string(),
        Context::Task => thread_text(t, wake.waker, wake.at),
        Context::HardIrq(_) | Context::SoftIrq(_) | Context::Timer => context_text(t, wake.context),
    }
}

/// The waker, when the time in which it woke is shown, too.
fn running_waker(cast: &Cast<'_>, wake: Wake) -> Option<Owner> {
    if wake.context != Context::Task || wake.waker.0 == 0 || !cast.window.has(wake.at) {
        return None;
    }
    let idx = cast.t.find(wake.waker)?;
    let owner = cast.owner(idx, wake.at);
    let end = Nanos(wake.at.0.saturating_add(1)).min(cast.window.to);
    let state = cast.t.thread(idx).states(wake.at, end).next()?.state;
    (matches!(state, State::Running { .. }) && cast.wants(owner.pid)).then_some(owner)
}

fn wait_args<'t>(t: &'t Timeline, asleep: &Asleep) -> Vec<Arg<'t>> {
    let mut args = vec![("for", text(asleep.wait.label()))];
    if let Some(nr) = asleep.syscall {
        args.push(("syscall", syscall(t, nr)));
    }
    let object = t.name(asleep.object);
    if !object.is_empty() {
        args.push(("object", text(object)));
    }
    let frame = t.name(asleep.frame);
    if !frame.is_empty() {
        args.push(("kernel_function", text(frame)));
    }
    if let Some(wake) = asleep.wake {
        args.push(("woken_by", text(waker_text(t, wake))));
    }
    args
}

fn syscall(t: &Timeline, nr: u16) -> Value<'static> {
    match t.syscalls().name(nr) {
        Some(name) => text(name),
        None => text(format!("syscall_{nr}")),
    }
}

/// Calls, waits, stalls and signals, thread by thread.
///
/// Waits are told here to a sink that makes states itself: it knows that a thread slept, and not in what.
pub(super) fn show_calls(
    engine: &Engine<'_>,
    cast: &Cast<'_>,
    linked: &Linked,
    tracks: &mut Tracks<'_>,
) -> io::Result<()> {
    let t = cast.t;
    let mut signals: FxHashMap<Tid, Vec<usize>> = FxHashMap::default();
    for (number, signal) in t.signals().iter().enumerate() {
        signals.entry(signal.receiver).or_default().push(number);
    }
    for (idx, thread) in t.threads() {
        let mut rows = Rows::default();
        rows.calls(cast, idx, thread, linked, tracks)?;
        rows.system_calls(cast, idx, thread, tracks)?;
        if tracks.makes_states() {
            rows.waits(engine, cast, idx, thread, tracks)?;
        }
        rows.stalls(cast, idx, thread, tracks)?;
        let of_this = signals.get(&thread.tid).map_or(&[][..], Vec::as_slice);
        rows.signals(cast, idx, of_this, tracks)?;
        tracks.end()?;
    }
    Ok(())
}

/// Of one thread; when its number was used again, of several in turn.
#[derive(Default)]
struct Rows {
    rows: Vec<(Pid, u32, Row<'static>)>,
}

impl Rows {
    fn row(&mut self, owner: Owner, rank: u32) -> &mut Row<'static> {
        let found = (self.rows.iter()).position(|r| (r.0, r.1) == (owner.pid, rank));
        let at = found.unwrap_or_else(|| {
            let row = match rank {
                CALLS_RANK => Row::nested(Parent::Calls(owner), "CUDA calls", rank),
                WAITS_RANK => Row::flat(Parent::Thread(owner), "waits", rank),
                STALLS_RANK => Row::flat(Parent::Thread(owner), "stalls", rank),
                SYSTEM_CALLS_RANK => Row::nested(Parent::Thread(owner), "system calls", rank),
                _ => Row::flat(Parent::Thread(owner), "signals", rank),
            };
            self.rows.push((owner.pid, rank, row));
            self.rows.len() - 1
        });
        &mut self.rows[at].2
    }

    fn calls(
        &mut self,
        cast: &Cast<'_>,
        idx: ThreadIdx,
        thread: &Thread,
        linked: &Linked,
        tracks: &mut Tracks<'_>,
    ) -> io::Result<()> {
        for &number in thread.calls() {
            let index = CallIdx(number);
            let call = cast.t.gpu().call_at(index);
            let owner = cast.owner(idx, call.start);
            let Some((start, end)) = cast.window.clip(call.start, call.end) else {
                continue;
            };
            if !cast.wants(owner.pid) {
                continue;
            }
            let mut args = Vec::new();
            if call.failed() {
                args.push(("failed", Value::Bool(true)));
            }
            if call.is_open() {
                args.push(("did_not_return", Value::Bool(true)));
            }
            if call.is_probed() {
                args.push(("by", text("probes on the driver")));
            }
            let slice = Slice {
                start,
                end,
                name: api::name(call.api()),
                category: class(call.class),
                args,
                flow: linked.has(index).then(|| Flow::From(flow_of(index))),
            };
            self.row(owner, CALLS_RANK).slice(tracks, &slice)?;
        }
        Ok(())
    }

    fn system_calls(
        &mut self,
        cast: &Cast<'_>,
        idx: ThreadIdx,
        thread: &Thread,
        tracks: &mut Tracks<'_>,
    ) -> io::Result<()> {
        for call in thread.sys_calls() {
            let owner = cast.owner(idx, call.start);
            let Some((start, end)) = cast.window.clip(call.start, call.end) else {
                continue;
            };
            if !cast.wants(owner.pid) {
                continue;
            }
            let mut args = vec![("result", Value::Int(call.result))];
            args.extend(call.errno().map(|errno| ("errno", uint(errno.into()))));
            let name = cast.t.syscalls().name(call.number);
            let slice = Slice {
                start,
                end,
                name: name.map_or_else(|| format!("syscall_{}", call.number).into(), Cow::from),
                category: "syscall",
                args,
                flow: None,
            };
            self.row(owner, SYSTEM_CALLS_RANK).slice(tracks, &slice)?;
        }
        Ok(())
    }

    fn waits(
        &mut self,
        engine: &Engine<'_>,
        cast: &Cast<'_>,
        idx: ThreadIdx,
        thread: &Thread,
        tracks: &mut Tracks<'_>,
    ) -> io::Result<()> {
        let t = cast.t;
        for s in thread.states(cast.window.from, cast.window.to) {
            let State::Blocked(sleep) = &s.state else {
                continue;
            };
            let owner = cast.owner(idx, s.start);
            if !cast.wants(owner.pid) {
                continue;
            }
            let asleep = engine.describe_wait(idx, &s, sleep);
            let call = asleep.syscall.and_then(|nr| t.syscalls().name(nr));
            let (name, category) = match (asleep.wait, call) {
                (Wait::Stopped(_), _) => (asleep.wait.label(), "stop"),
                (_, Some(call)) => (call, "wait"),
                // Asleep outside of a system call, of unknown kind: its state says as much.
                (Wait::Other, None) if asleep.syscall.is_none() => continue,
                (_, None) => (asleep.wait.label(), "wait"),
            };
            let slice = Slice {
                start: s.start,
                end: s.end,
                name: name.into(),
                category,
                args: wait_args(t, &asleep),
                flow: None,
            };
            self.row(owner, WAITS_RANK).slice(tracks, &slice)?;
        }
        Ok(())
    }

    fn stalls(
        &mut self,
        cast: &Cast<'_>,
        idx: ThreadIdx,
        thread: &Thread,
        tracks: &mut Tracks<'_>,
    ) -> io::Result<()> {
        for stall in thread.stalls(cast.window.from, cast.window.to) {
            let owner = cast.owner(idx, stall.start);
            if !cast.wants(owner.pid) {
                continue;
            }
            let name = match stall.kind {
                StallKind::Reclaim => "memory reclaim",
                StallKind::Compaction => "memory compaction",
                StallKind::Yields => "yields and nobody wants the CPU",
            };
            let slice = Slice {
                start: stall.start,
                end: Nanos(stall.start.0.saturating_add(stall.dur.0)),
                name: name.into(),
                category: "stall",
                args: Vec::new(),
                flow: None,
            };
            self.row(owner, STALLS_RANK).slice(tracks, &slice)?;
        }
        Ok(())
    }

    fn signals(
        &mut self,
        cast: &Cast<'_>,
        idx: ThreadIdx,
        signals: &[usize],
        tracks: &mut Tracks<'_>,
    ) -> io::Result<()> {
        let t = cast.t;
        for signal in signals.iter().filter_map(|&number| t.signals().get(number)) {
            let owner = cast.owner(idx, signal.ts);
            if !cast.window.has(signal.ts) || !cast.wants(owner.pid) {
                continue;
            }
            let slice = Slice {
                start: signal.ts,
                end: signal.ts,
                name: signal_name(signal.signal),
                category: "signal",
                args: vec![("sent_by", text(thread_text(t, signal.sender, signal.ts)))],
                flow: None,
            };
            self.row(owner, SIGNALS_RANK).instant(tracks, &slice)?;
        }
        Ok(())
    }
}

/// As the numbers are on x86-64 and aarch64.
fn signal_name(number: u8) -> Cow<'static, str> {
    match number {
        18 => "SIGCONT".into(),
        19 => "SIGSTOP".into(),
        20 => "SIGTSTP".into(),
        21 => "SIGTTIN".into(),
        22 => "SIGTTOU".into(),
        number => format!("signal {number}").into(),
    }
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Launch | Class::GraphLaunch => "launch",
        Class::Memcpy | Class::MemcpyAsync => "copy call",
        Class::Memset => "memset call",
        Class::Sync => "sync",
        Class::StreamWait => "stream wait",
        Class::Memory => "memory call",
        Class::Module => "module call",
        Class::HostFunc => "host function",
        Class::Context => "context call",
        Class::Other => "call",
    }
}

/// All long waits for a CPU in one place, whoever waited.
pub(super) fn show_long_waits(cast: &Cast<'_>, tracks: &mut Tracks<'_>) -> io::Result<()> {
    let t = cast.t;
    let mut long: Vec<(Nanos, Nanos, ThreadIdx)> = Vec::new();
    for (idx, thread) in t.threads() {
        for s in thread.states(cast.window.from, cast.window.to) {
            let whole = s.span.1.saturating_sub(s.span.0);
            let waits = matches!(s.state, State::Runnable { .. });
            if waits && whole >= LONG_WAIT && cast.wants(cast.owner(idx, s.start).pid) {
                long.push((s.start, s.end, idx));
            }
        }
    }
    if long.is_empty() {
        return Ok(());
    }
    long.sort_unstable_by_key(|&(start, end, idx)| (start, Reverse(end), idx));
    let parent = tracks.group("Waits for a CPU")?;
    let mut row = Row::flat(parent, format!("waiting >= {}", Millis(LONG_WAIT)), 0);
    for (start, end, idx) in long {
        let who = named(t, t.thread(idx).tid, start);
        let slice = Slice {
            start,
            end,
            name: format!("{} #{}", who.comm, who.owner.tid).into(),
            category: "long wait",
            args: vec![
                ("pid", uint(who.owner.pid.0.into())),
                ("tid", uint(who.owner.tid.0.into())),
                ("ns", uint(end.saturating_sub(start).0)),
            ],
            flow: None,
        };
        row.slice(tracks, &slice)?;
    }
    tracks.end()
}

/// Whole milliseconds.
struct Millis(Nanos);

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ms", self.0 .0 / 1_000_000)
    }
}
