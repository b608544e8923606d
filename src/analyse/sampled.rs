//! What samples say of a piece of idle time: where its thread was in its own code.
#![forbid(unsafe_code)]

use crate::analyse::report::Stack;
use crate::analyse::what::Piece;
use crate::event::{SampleKind, StackId};
use crate::model::frame_text;
use crate::model::frames::CallTraits;
use crate::model::names::Traits;
use crate::model::ops::Call;
use crate::model::samples::SampleMark;
use crate::model::thread::{State, Stretch, Thread, Why};
use crate::model::Timeline;
use crate::units::Nanos;

/// States of a thread that are looked at for one piece.
const MOST_STATES: usize = 64;

/// The sample that tells where the thread was in `[from, to)`: the one of its longest stretch there, running
/// or asleep, else of any other.
pub(super) fn sample_in(thread: &Thread, from: Nanos, to: Nanos) -> Option<&SampleMark> {
    if thread.samples().is_empty() {
        return None;
    }
    let states = || thread.states(from, to).take(MOST_STATES);
    let longest = states().max_by_key(|s| (s.len(), std::cmp::Reverse(s.start)))?;
    of_stretch(thread, &longest).or_else(|| states().find_map(|s| of_stretch(thread, &s)))
}

fn of_stretch<'t>(thread: &'t Thread, s: &Stretch) -> Option<&'t SampleMark> {
    match s.state {
        State::Running { .. } => while_running(thread, s.start, s.end),
        State::Blocked(_) => thread.off_stack(s.span.0),
        // Where it lost the CPU was no choice of its own.
        State::Runnable { .. } | State::Unknown | State::Exited => None,
    }
}

/// The timer's sample nearest to the middle; without one, that of a launch.
fn while_running(thread: &Thread, from: Nanos, to: Nanos) -> Option<&SampleMark> {
    let middle = from.0 + to.saturating_sub(from).0 / 2;
    let samples = thread.samples_in(from, to);
    let near = |s: &&SampleMark| s.ts.0.abs_diff(middle);
    let is_launch = |s: &&SampleMark| matches!(s.kind(), SampleKind::Launch { .. });
    let cpu = samples.iter().filter(|s| s.is_cpu()).min_by_key(near);
    cpu.or_else(|| samples.iter().filter(is_launch).min_by_key(near))
}

/// The stack of a piece: the kernel's frames, then those of the program.
pub(super) fn stack_of(t: &Timeline, piece: &Piece) -> Stack {
    let sample = piece
        .who
        .and_then(|w| sample_in(t.thread(w.thread), piece.start, piece.end));
    let kernel = match (piece.stack, sample) {
        (StackId(0), Some(sample)) => sample.kernel,
        (stack, _) => stack,
    };
    let mut stack = user_stack(t, sample);
    let kernel = t.names().stack(kernel).map(str::to_string);
    stack.frames.splice(0..0, kernel);
    stack
}

/// From where the program made a call: a sample in it, by the timer or of a launch, else that of a wait in it.
pub(super) fn stack_of_call(t: &Timeline, call: &Call) -> Stack {
    let thread = t.thread(call.thread);
    let samples = thread.samples_in(call.start, Nanos(call.end.0.saturating_add(1)));
    let runs = |s: &&SampleMark| s.off_since().is_none() && s.woke().is_none();
    let waits = |s: &&SampleMark| s.off_since().is_some_and(|since| since >= call.start);
    let found = samples.iter().find(runs);
    user_stack(t, found.or_else(|| samples.iter().find(waits)))
}

fn user_stack(t: &Timeline, sample: Option<&SampleMark>) -> Stack {
    let Some(user) = sample.map(|s| s.user) else {
        return Stack::default();
    };
    Stack {
        frames: frame_text::stack(t.names(), user),
        telling: frame_text::telling(t.names(), user),
    }
}

/// What a thread was running for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// For its own work, as far as anybody knows.
    Own,
    Collecting,
    Spinning,
    Forking,
    Balancing,
    Reclaiming,
    Faulting,
}

fn doing(t: &Timeline, sample: &SampleMark) -> Doing {
    let kernel = t.names().traits(sample.kernel);
    let user = t.names().call_traits(sample.user);
    if kernel.has(Traits::BALANCE) {
        Doing::Balancing
    } else if kernel.has(Traits::RECLAIM) {
        Doing::Reclaiming
    } else if kernel.has(Traits::FORK) || user.has(CallTraits::FORKS) {
        Doing::Forking
    } else if kernel.has(Traits::FILE_FAULT) && kernel.has(Traits::IO | Traits::FILE_READ) {
        Doing::Faulting
    } else if t.collects(sample) {
        Doing::Collecting
    } else if kernel.has(Traits::YIELD) || user.has(CallTraits::SPINS) {
        Doing::Spinning
    } else {
        Doing::Own
    }
}

/// From the first to the last sample of one run that are in a yield, when there are many of them: the
/// others in between are on the way to the next.
#[derive(Clone, Copy, Debug)]
struct Loop(Nanos, Nanos);

impl Loop {
    fn of(t: &Timeline, samples: &[SampleMark]) -> Option<Loop> {
        /// One of so many samples at least.
        const MANY: usize = 4;
        let cpu = || samples.iter().filter(|s| s.is_cpu());
        let mut spins = cpu().filter(|s| doing(t, s) == Doing::Spinning);
        let first = spins.next()?.ts;
        let (more, last) = spins.fold((0, first), |(n, _), s| (n + 1, s.ts));
        let inside = Loop(first, last);
        let between = cpu().filter(|s| inside.contains(s)).count();
        ((more + 1) * MANY >= between).then_some(inside)
    }

    fn contains(self, sample: &SampleMark) -> bool {
        self.0 <= sample.ts && sample.ts <= self.1
    }
}

/// Shorter runs are not worth a search around them.
const SHORT_RUN: Nanos = Nanos::from_micros(50);

/// A sample tells of what was run without a break before and after it, so far at most: two periods of the timer.
const REACH: Nanos = Nanos::from_millis(20);

/// Where a thread was when it lost its CPU, which it did not choose: as good as a sample of the timer.
fn lost_cpu(thread: &Thread, s: &Stretch) -> Option<SampleMark> {
    match s.state {
        State::Runnable {
            why: Why::Preempted | Why::Throttled | Why::Yielded,
            ..
        } => thread.off_stack(s.span.0).copied(),
        State::Runnable {
            why: Why::Woken | Why::New,
            ..
        }
        | State::Unknown
        | State::Running { .. }
        | State::Blocked(_)
        | State::Exited => None,
    }
}

/// What a thread did at some moments of `[from, to)`, in which it ran.
fn moments(
    t: &Timeline,
    thread: &Thread,
    (from, to): (Nanos, Nanos),
    unbroken: impl Fn(Nanos, Nanos) -> bool,
) -> Vec<(Nanos, Doing)> {
    let inside = thread.samples_in(from, to);
    let loops = Loop::of(t, inside);
    let in_loop = |s: &SampleMark| loops.is_some_and(|l| l.contains(s));
    let timer = inside.iter().filter(|s| s.is_cpu());
    let mut found: Vec<(Nanos, Doing)> = timer
        .map(|s| match doing(t, s) {
            Doing::Own if in_loop(s) => (s.ts, Doing::Spinning),
            other => (s.ts, other),
        })
        .collect();
    if to.saturating_sub(from) < SHORT_RUN {
        return found;
    }
    let state_at = |at: Nanos| thread.states(at, Nanos(at.0.saturating_add(1))).next();
    let lost_at = |at| state_at(at).and_then(|s| lost_cpu(thread, &s));
    if let Some(sample) = lost_at(from.saturating_sub(Nanos(1))) {
        found.insert(0, (from, doing(t, &sample)));
    }
    if let Some(sample) = lost_at(to) {
        found.push((to, doing(t, &sample)));
    }
    if found.is_empty() {
        let earlier = thread.samples_in(from.saturating_sub(REACH), from);
        let before = earlier.iter().rev().find(|s| s.is_cpu());
        let later = thread.samples_in(to, Nanos(to.0.saturating_add(REACH.0)));
        let after = later.iter().find(|s| s.is_cpu());
        let before = before.filter(|s| unbroken(s.ts, from));
        let after = after.filter(|s| unbroken(to, s.ts));
        found.extend(before.map(|s| (from, doing(t, s))));
        found.extend(after.map(|s| (to, doing(t, s))));
    }
    found
}

/// Divides `[from, to)` of a running thread by what it ran for: each moment is like the one next to it of
/// which there is a sample, and without any `unseen`. `unbroken`: between these times the thread neither slept
/// nor called CUDA.
pub(super) fn by_doing(
    t: &Timeline,
    thread: &Thread,
    (from, to): (Nanos, Nanos),
    unseen: Doing,
    unbroken: impl Fn(Nanos, Nanos) -> bool,
    mut each: impl FnMut(Nanos, Nanos, Doing),
) {
    let known = if thread.samples().is_empty() {
        Vec::new()
    } else {
        moments(t, thread, (from, to), unbroken)
    };
    let mut at = from;
    let mut last: Option<(Nanos, Doing)> = None;
    for (time, now) in known {
        if let Some((before, was)) = last.filter(|l| l.1 != now) {
            let middle = Nanos(before.0 + time.saturating_sub(before).0 / 2);
            each(at, middle, was);
            at = middle;
        }
        last = Some((time, now));
    }
    each(at, to, last.map_or(unseen, |l| l.1));
}
