//! The wakeup chain of a gap as the report lists it: from the dispatcher back to the thread that the
//! longest part of the gap's main cause was found on, and if it waited for a lock to who held that.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::partition::{Asleep, Engine, Task};
use crate::analyse::report::{Hop, Waker};
use crate::analyse::waits::Wait;
use crate::analyse::walk::Verdict;
use crate::analyse::what::{thread_ref, waker, Piece, What};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::{State, Stretch, ThreadIdx, Wake, Why};
use crate::units::Nanos;

/// From `dispatcher` back, over its part `[from, to)` of the gap.
pub(super) fn chain(
    engine: &Engine<'_>,
    dispatcher: ThreadIdx,
    (from, to): (Nanos, Nanos),
    pieces: &[Piece],
) -> Vec<Hop> {
    let mut hops = Vec::new();
    let Some(main) = main_piece(pieces) else {
        return hops;
    };
    let blamed = main.who.map(|w| w.thread);
    let at = blamed.map_or(main.start, |thread| middle(engine, thread, main));
    let mut task = Task::dispatcher(dispatcher);
    let (mut from, mut to) = (from, to);
    while let Some(s) = at_time(engine, task.thread, (from, to), at) {
        if Some(task.thread) == blamed {
            hops.push(hop(engine, task.thread, &s, Some(main)));
            hops.extend(held_by(engine, main, &s));
            break;
        }
        hops.push(hop(engine, task.thread, &s, None));
        let Some(next) = next(engine, task, &s, at) else {
            break;
        };
        (task, from, to) = (next, s.start, s.end);
    }
    hops
}

/// The longest piece of the cause that has most of the time.
fn main_piece(pieces: &[Piece]) -> Option<&Piece> {
    let mut totals: FxHashMap<Cause, u64> = FxHashMap::default();
    let hosts = || pieces.iter().filter(|p| p.who.is_some());
    for piece in hosts() {
        *totals.entry(piece.cause).or_default() += piece.len().0;
    }
    let rank = |p: &&Piece| {
        (
            totals[&p.cause],
            p.cause,
            p.len(),
            std::cmp::Reverse(p.start),
        )
    };
    hosts().max_by_key(rank)
}

/// The middle of what the thread did most of the piece.
fn middle(engine: &Engine<'_>, thread: ThreadIdx, piece: &Piece) -> Nanos {
    let states = engine.t.thread(thread).states(piece.start, piece.end);
    let longest = states.max_by_key(|s| (s.len(), std::cmp::Reverse(s.start)));
    longest.map_or(piece.start, |s| Nanos(s.start.0 + s.len().0 / 2))
}

fn at_time(
    engine: &Engine<'_>,
    thread: ThreadIdx,
    (from, to): (Nanos, Nanos),
    at: Nanos,
) -> Option<Stretch> {
    if !(from <= at && at < to) {
        return None;
    }
    let s = engine.t.thread(thread).states(at, to).next()?;
    Some(s.part(s.span.0.max(from), s.end))
}

/// The thread that the walk goes on to.
fn next(engine: &Engine<'_>, task: Task, s: &Stretch, at: Nanos) -> Option<Task> {
    let State::Blocked(sleep) = &s.state else {
        return None;
    };
    let asleep = engine.describe_wait(task.thread, s, sleep);
    let Verdict::For { by, .. } = engine.verdict(task, s, &asleep) else {
        return None;
    };
    if task.waits(by.thread) {
        return None;
    }
    let helper = task.helper(by.thread, engine.role_of(task, by, s))?;
    let mut late = engine.who_was_late(task, by, *s);
    let (thread, ..) = late.find(|&(_, from, to)| from <= at && at < to)?;
    Some(helper.with_thread(thread))
}

/// What the holder of a lock did meanwhile, or who else is told to be behind the wait.
fn held_by(engine: &Engine<'_>, main: &Piece, s: &Stretch) -> Option<Hop> {
    let holder = match main.what {
        What::Lock { holder, .. } => holder?,
        What::From { peer, .. } => peer,
        What::Nothing
        | What::Say(_)
        | What::Working
        | What::In(_)
        | What::Before(_)
        | What::Ran(_)
        | What::RanTid(_)
        | What::Irq(_)
        | What::Wait { .. }
        | What::Stopped { .. }
        | What::Overhead(_)
        | What::AfterStream(_)
        | What::Missing(_) => return None,
    };
    let telling = telling(engine, holder.thread, s.start, s.end)?;
    Some(hop(engine, holder.thread, &telling, None))
}

/// The longest wait of the thread, or if it hardly waited the longest run.
fn telling(engine: &Engine<'_>, thread: ThreadIdx, from: Nanos, to: Nanos) -> Option<Stretch> {
    let states = || engine.t.thread(thread).states(from, to);
    let rank = |s: &Stretch| (s.len(), std::cmp::Reverse(s.start));
    let waits = |s: &Stretch| matches!(s.state, State::Blocked(_) | State::Runnable { .. });
    let wait = states().filter(waits).max_by_key(rank);
    let any = states().max_by_key(rank);
    let enough = to.saturating_sub(from).0 / 10;
    wait.filter(|w| w.len().0 >= enough).or(any)
}

/// `main` is the piece that was found on the thread's time.
fn hop(engine: &Engine<'_>, thread: ThreadIdx, s: &Stretch, main: Option<&Piece>) -> Hop {
    let t = engine.t;
    let by = |wake: Option<Wake>| wake.and_then(|w| waker(t, w));
    let woken_by = match &s.state {
        State::Unknown | State::Exited | State::Running { .. } => None,
        State::Runnable { .. } => by(t.thread(thread).wake_of(s)),
        State::Blocked(sleep) => {
            let asleep = engine.describe_wait(thread, s, sleep);
            let peer = asleep.waker.map(|w| Waker::Task(thread_ref(t, w)));
            peer.or(by(asleep.wake))
        }
    };
    Hop {
        who: thread_ref(t, t.who(thread, s.start)),
        state: state_text(engine, thread, s, main),
        start: s.start,
        end: s.end,
        woken_by,
    }
}

/// What the thread did, for people.
pub(super) fn state_text(
    engine: &Engine<'_>,
    thread: ThreadIdx,
    s: &Stretch,
    main: Option<&Piece>,
) -> String {
    let text = match &s.state {
        State::Unknown => "unknown",
        State::Exited => "ended",
        State::Running { .. } => return running_text(main),
        State::Runnable { why, .. } => match why {
            Why::Throttled => "runnable (throttled)",
            Why::Preempted => "runnable (preempted)",
            Why::Yielded => "runnable (yielded)",
            Why::Woken => "runnable (woken)",
            Why::New => "runnable (new)",
        },
        State::Blocked(sleep) => {
            return blocked_text(engine, &engine.describe_wait(thread, s, sleep))
        }
    };
    text.to_string()
}

fn running_text(main: Option<&Piece>) -> String {
    match main.map(|m| m.what) {
        Some(What::Say(doing)) if main.is_some_and(|m| m.cause != Cause::Compute) => {
            format!("running ({doing})")
        }
        Some(_) | None => "running".to_string(),
    }
}

fn blocked_text(engine: &Engine<'_>, asleep: &Asleep) -> String {
    if let Wait::Stopped(_) = asleep.wait {
        return "stopped".to_string();
    }
    let call = asleep.syscall.and_then(|nr| engine.t.syscalls().name(nr));
    let object = engine.t.name(asleep.object);
    match (call, object.is_empty()) {
        (Some(call), true) => format!("blocked ({call})"),
        (Some(call), false) => format!("blocked ({call}, {object})"),
        (None, true) => "blocked".to_string(),
        (None, false) => format!("blocked ({object})"),
    }
}
