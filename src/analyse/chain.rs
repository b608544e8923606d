//! The wakeup chain of a gap as the report lists it: the dispatcher's telling state, and who
//! ended it.
#![forbid(unsafe_code)]

use crate::analyse::partition::{Asleep, Engine};
use crate::analyse::report::Hop;
use crate::analyse::waits::Wait;
use crate::analyse::walk;
use crate::analyse::what::{thread_ref, waker};
use crate::event::Context;
use crate::model::thread::{State, Stretch, ThreadIdx, Wake, Why};
use crate::units::Nanos;

/// Hops that are listed.
const LONGEST_CHAIN: usize = 4;

/// From `dispatcher` back, over its part `[from, to)` of the gap.
pub(super) fn chain(
    engine: &Engine<'_>,
    dispatcher: ThreadIdx,
    from: Nanos,
    to: Nanos,
) -> Vec<Hop> {
    let mut hops: Vec<Hop> = Vec::new();
    let mut seen = Vec::new();
    let (mut thread, mut from, mut to) = (dispatcher, from, to);
    while hops.len() < LONGEST_CHAIN && from < to && !seen.contains(&thread) {
        seen.push(thread);
        let Some(s) = telling(engine, thread, from, to) else {
            break;
        };
        let (hop, wake) = hop(engine, thread, &s);
        hops.push(hop);
        let next = match (s.state, wake) {
            (State::Blocked(_), Some(wake)) => walk::task_waker(engine.t, wake),
            _ => None,
        };
        match next {
            Some(w) => {
                thread = w.thread;
                from = s.start;
                to = s.end;
            }
            None => break,
        }
    }
    hops
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

fn hop(engine: &Engine<'_>, thread: ThreadIdx, s: &Stretch) -> (Hop, Option<Wake>) {
    let t = engine.t;
    let (state, wake) = match &s.state {
        State::Unknown => ("unknown".to_string(), None),
        State::Exited => ("ended".to_string(), None),
        State::Running { .. } => ("running".to_string(), None),
        State::Runnable { why, .. } => {
            let text = match why {
                Why::Throttled => "runnable (throttled)",
                Why::Preempted => "runnable (preempted)",
                Why::Yielded => "runnable (yielded)",
                Why::Woken => "runnable (woken)",
                Why::New => "runnable (new)",
            };
            (text.to_string(), t.thread(thread).wake_of(s))
        }
        State::Blocked(sleep) => {
            let asleep = engine.describe_wait(thread, s, sleep);
            (blocked_text(engine, &asleep), asleep.wake)
        }
    };
    let hop = Hop {
        who: thread_ref(t, t.who(thread, s.start)),
        state,
        start: s.start,
        end: s.end,
        woken_by: wake.and_then(|w| waker(t, w)),
    };
    let by_task = wake.filter(|w| w.context == Context::Task);
    (hop, by_task)
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
