//! Where threads were for most of a slice.
//!
//! A flame graph tells all of it; here the first few places of each thread do, and only those become text.
#![forbid(unsafe_code)]

use super::StackTime;
use crate::analyse::stacks::on_cpu::share_running;
use crate::event::{CallStackId, StackId};
use crate::model::fxhash::FxHashMap;
use crate::model::samples::SampleMark;
use crate::model::thread::{State, Thread, ThreadIdx};
use crate::model::{frame_text, Timeline};
use crate::units::Nanos;

/// Stacks in all, of those who run and of those who wait. There are many slices.
const STACKS: usize = 40;

/// Frames of each; what is left out are the outermost ones.
const FRAMES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    running: bool,
    user: CallStackId,
    kernel: StackId,
}

/// Of each thread of the target the `most` places with most time; most time first.
pub(super) fn most(t: &Timeline, part: (Nanos, Nanos), most: usize) -> Vec<StackTime> {
    let mut list = Vec::new();
    if most == 0 {
        return list;
    }
    let sampled = t
        .threads()
        .filter(|(_, thread)| !thread.samples().is_empty());
    for (idx, thread) in sampled.filter(|(_, thread)| thread.is_target()) {
        let mut places: Vec<(Place, Nanos)> = places(t, thread, part).into_iter().collect();
        places.sort_unstable_by_key(|&(place, time)| (std::cmp::Reverse(time), place));
        places.truncate(most);
        let mut of_one: Vec<StackTime> = Vec::with_capacity(places.len());
        for place in places {
            let stack = text(t, idx, part.1, place);
            // Addresses in one function are one place.
            let same =
                |s: &&mut StackTime| (s.running, &s.frames) == (stack.running, &stack.frames);
            match of_one.iter_mut().find(same) {
                Some(sum) => sum.time += stack.time,
                None => of_one.push(stack),
            }
        }
        list.extend(of_one);
    }
    sort(&mut list);
    // Of those who run and of those who wait: waits are many, and long.
    let (mut running, mut waiting) = (0, 0);
    list.retain(|stack| {
        let count = if stack.running {
            &mut running
        } else {
            &mut waiting
        };
        *count += 1;
        *count <= STACKS
    });
    list
}

/// Most time first.
pub(super) fn sort(list: &mut [StackTime]) {
    list.sort_by(|a, b| {
        let id = |s: &StackTime| (std::cmp::Reverse(s.time), s.pid, s.tid, s.running);
        (id(a).cmp(&id(b))).then_with(|| a.frames.cmp(&b.frames))
    });
}

fn places(t: &Timeline, thread: &Thread, (from, to): (Nanos, Nanos)) -> FxHashMap<Place, Nanos> {
    let mut places: FxHashMap<Place, Nanos> = FxHashMap::default();
    let mut add = |running, sample: &SampleMark, time: Nanos| {
        let (user, kernel) = (sample.user, sample.kernel);
        if user.0 != 0 || kernel.0 != 0 {
            let place = Place {
                running,
                user,
                kernel,
            };
            *places.entry(place).or_default() += time;
        }
    };
    share_running(thread, (from, to), |sample, time| {
        if let Some(sample) = sample {
            add(true, sample, time);
        }
    });
    // No stacks are taken of shorter waits. With the time until it ran again it may just be long enough.
    let long = t.meta().wait_threshold_ns / 2;
    for s in thread.states(from, to) {
        let State::Blocked(_) = s.state else {
            continue;
        };
        if s.span.1.saturating_sub(s.span.0).0 < long {
            continue;
        }
        if let Some(sample) = thread.off_stack(s.span.0) {
            add(false, sample, s.len());
        }
    }
    places
}

fn text(t: &Timeline, idx: ThreadIdx, to: Nanos, (place, time): (Place, Nanos)) -> StackTime {
    let names = t.names();
    let kernel = names.stack(place.kernel);
    let mut frames: Vec<String> = kernel.map(|frame| format!("{frame}_[k]")).collect();
    frames.extend(frame_text::stack(names, place.user));
    frames.truncate(FRAMES);
    frames.reverse();
    StackTime {
        pid: t.pid(t.who(idx, to.saturating_sub(Nanos(1)))),
        tid: t.thread(idx).tid,
        running: place.running,
        frames,
        time,
    }
}
