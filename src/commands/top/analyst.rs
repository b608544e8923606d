//! The thread that makes slices of events, so that collecting never waits for it.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::Arc;

use super::shared::Shared;
use crate::analyse::live::{Feed, Slice};
use crate::event::Event;
use crate::units::Nanos;

/// What is handed over.
#[derive(Debug)]
pub(super) enum Batch {
    Events(Vec<Event>),
    /// All events before `until` were handed over.
    Until(Nanos),
    /// A slice that was made elsewhere, of a time in which there was nothing to analyse.
    Slice(Box<Slice>),
    /// Ids that were given before are not used any more.
    Forget,
}

/// Runs until nobody hands over anything any more.
pub(super) fn run(mut feed: Feed, from: &Receiver<Batch>, shared: &Arc<Shared>) {
    while let Ok(batch) = from.recv() {
        match batch {
            Batch::Events(events) => {
                shared.queued.fetch_sub(events.len(), Ordering::AcqRel);
                events.into_iter().for_each(|event| feed.push(event));
            }
            Batch::Forget => feed.forget_ids(),
            Batch::Slice(slice) => {
                feed.pass(slice.to);
                shared.add(vec![*slice]);
            }
            Batch::Until(now) => {
                shared.add(feed.take(now));
                let behind = feed.behind(now);
                let skipped = feed.skipped();
                shared.update(|state| {
                    state.status.behind = behind;
                    state.status.skipped = skipped;
                });
            }
        }
    }
}
