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
use crate::model::thread::{State, Stretch, Thread};
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
    } else if kernel.has(Traits::FORK) {
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

/// Divides `[from, to)` of a running thread by what it ran for: each moment is like the timer's sample
/// next to it. Without a sample it was work of its own.
pub(super) fn by_doing(
    t: &Timeline,
    thread: &Thread,
    (from, to): (Nanos, Nanos),
    mut each: impl FnMut(Nanos, Nanos, Doing),
) {
    let samples = if thread.samples().is_empty() {
        &[]
    } else {
        thread.samples_in(from, to)
    };
    let mut at = from;
    let mut last: Option<(&SampleMark, Doing)> = None;
    let loops = Loop::of(t, samples);
    for sample in samples.iter().filter(|s| s.is_cpu()) {
        let now = match doing(t, sample) {
            Doing::Own if loops.is_some_and(|l| l.contains(sample)) => Doing::Spinning,
            other => other,
        };
        if let Some((before, was)) = last.filter(|l| l.1 != now) {
            let middle = Nanos(before.ts.0 + sample.ts.saturating_sub(before.ts).0 / 2);
            each(at, middle, was);
            at = middle;
        }
        last = Some((sample, now));
    }
    each(at, to, last.map_or(Doing::Own, |l| l.1));
}
