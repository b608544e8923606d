//! The thread that makes slices of events, so that collecting never waits for it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;

use super::shared::Shared;
use crate::analyse::live::{Feed, Slice, SLICE};
use crate::analyse::syscalls;
use crate::collect::clock;
use crate::event::{Event, NameId};
use crate::fxhash::FxHashSet;
use crate::units::Nanos;

/// So long sums are kept for slices that are made again.
const KEPT: Nanos = Nanos::from_secs(12);

/// What is handed over.
#[derive(Debug)]
pub(super) enum Batch {
    Events(Vec<Event>),
    /// All events before `until` were handed over.
    Until(Nanos),
    /// A slice that was made elsewhere, of a time in which there was nothing to analyse.
    Slice(Box<Slice>),
    /// System calls of about the time that a slice takes.
    Calls(syscalls::Summary),
    /// Ids that were given before are not used any more, but for these names.
    Forget(FxHashSet<NameId>),
}

/// Runs until nobody hands over anything any more. What is empty goes back, to be filled again.
pub(super) fn run(
    mut feed: Feed,
    from: &Receiver<Batch>,
    emptied: &Sender<Vec<Event>>,
    shared: &Arc<Shared>,
) {
    let mut calls = VecDeque::new();
    let mut told = (None, 0);
    while let Ok(batch) = from.recv() {
        match batch {
            Batch::Events(mut events) => {
                shared.queued.fetch_sub(events.len(), Ordering::AcqRel);
                events.drain(..).for_each(|event| feed.push(event));
                // Whoever filled it may be gone.
                let _ = emptied.send(events);
            }
            Batch::Forget(names) => feed.forget_ids(names),
            Batch::Calls(summary) => calls.push_back(summary),
            Batch::Slice(slice) => {
                // What was going on before is told before it.
                if feed.until() + SLICE <= slice.from {
                    shared.add(feed.finish(slice.from));
                }
                feed.pass(slice.to);
                shared.add(vec![*slice]);
            }
            Batch::Until(until) => {
                let mut slices = feed.take(until, Some(clock::monotonic()));
                for slice in &mut slices {
                    add_calls(slice, &mut calls);
                }
                shared.add(slices);
                let fares = (feed.behind(clock::monotonic()), feed.skipped());
                if told != fares {
                    told = fares;
                    shared.update(|state| {
                        (state.status.behind, state.status.skipped) = fares;
                    });
                }
            }
        }
    }
}

/// What was counted and ended in the slice takes the place of the calls that only waited. Sums are taken about as often as
/// slices are made, so they are off by a part of one.
fn add_calls(slice: &mut Slice, calls: &mut VecDeque<syscalls::Summary>) {
    // Those of before came too late for their slice, or that is made again.
    while calls
        .front()
        .is_some_and(|sums| sums.end + KEPT <= slice.to)
    {
        calls.pop_front();
    }
    let inside = |sums: &&syscalls::Summary| slice.from < sums.end && sums.end <= slice.to;
    if let Some(sums) = calls.iter().find(inside) {
        slice.calls = sums.clone();
    }
}
