//! The thread that makes slices of events, so that collecting never waits for it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::Arc;

use super::shared::Shared;
use crate::analyse::live::{Feed, Slice};
use crate::analyse::syscalls;
use crate::collect::clock;
use crate::event::{Event, NameId};
use crate::fxhash::FxHashSet;
use crate::units::Nanos;

/// So long sums are kept for slices that are made again.
const KEPT: Nanos = Nanos::from_secs(12);

/// Less than this between two sources is no slice.
const BORDER: Nanos = Nanos::from_millis(20);

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
    /// All that there was until then has been handed over.
    End(Nanos),
}

/// Runs until the end, or until nobody looks any more. What is empty goes back, to be filled again.
pub(super) fn run(
    mut feed: Feed,
    from: &Receiver<Batch>,
    emptied: &SyncSender<Vec<Event>>,
    shared: &Arc<Shared>,
) {
    let mut calls = VecDeque::new();
    let mut told = (None, 0, 0);
    let add = |mut slices: Vec<Slice>, calls: &mut VecDeque<syscalls::Summary>| {
        for slice in &mut slices {
            add_calls(slice, calls);
        }
        shared.add(slices);
    };
    while let Ok(batch) = from.recv() {
        if shared.is_left() {
            return;
        }
        match batch {
            Batch::Events(mut events) => {
                shared.queued.fetch_sub(events.len(), Ordering::AcqRel);
                events.drain(..).for_each(|event| feed.push(event));
                // A few are enough, and whoever filled it may be gone.
                let _ = emptied.try_send(events);
                #[cfg(debug_assertions)]
                panic_if_asked();
            }
            Batch::Forget(names) => feed.forget_ids(names),
            Batch::Calls(summary) => calls.push_back(summary),
            Batch::Slice(slice) => {
                // What was going on before is told before it; at the beginning nothing was.
                if shared.has_slices() && feed.until() + BORDER < slice.from {
                    add(feed.finish(slice.from), &mut calls);
                }
                feed.pass(slice.to);
                shared.add(vec![*slice]);
            }
            Batch::Until(until) => {
                // What waits to be looked at here is late as well.
                let now = clock::monotonic();
                add(feed.take(until, Some(now)), &mut calls);
                let fares = (feed.behind(now), feed.skipped(), feed.late());
                if told != fares {
                    told = fares;
                    shared.update(|state| {
                        let status = &mut state.status;
                        (status.behind, status.skipped, status.late) = fares;
                    });
                }
            }
            Batch::End(end) => {
                add(feed.finish(end), &mut calls);
                return;
            }
        }
    }
}

/// Tests see what becomes of the others then.
#[cfg(debug_assertions)]
fn panic_if_asked() {
    let thread = std::env::var_os("GDIAG_TEST_PANIC");
    assert!(
        thread.is_none_or(|thread| thread != "analyst"),
        "as the test asked"
    );
}

/// What was counted and ended in the slice takes the place of the calls that only waited. Sums are taken about as often as
/// slices are made, so they are off by a part of one: none may end in a slice, or two.
fn add_calls(slice: &mut Slice, calls: &mut VecDeque<syscalls::Summary>) {
    // Those of before came too late for their slice, or that is made again.
    while calls
        .front()
        .is_some_and(|sums| sums.end + KEPT <= slice.to)
    {
        calls.pop_front();
    }
    let (from, to) = (slice.from, slice.to);
    let inside = |sums: &&syscalls::Summary| from < sums.end && sums.end <= to;
    if calls.iter().any(|sums| inside(&sums)) {
        slice.calls = syscalls::join::join(calls.iter().filter(inside));
    } else if let Some(sums) = calls.iter().find(|s| s.start <= from && from < s.end) {
        // The next one has those of this time, too.
        slice.calls = syscalls::Summary::empty(sums.measure, from);
        slice.calls.end = to;
    }
}
