//! Summaries of one stretch of time after another, as one of all of it.
#![forbid(unsafe_code)]

use super::{Call, Measure, Summary, Thread};
use crate::event::{Pid, Tid};
use crate::fxhash::FxHashMap;
use crate::units::Nanos;

struct One<'a> {
    thread: Thread,
    calls: FxHashMap<&'a str, Call>,
}

/// Adds up what comes in order of time. Calls that go on are those of the last part.
pub fn join<'a>(parts: impl IntoIterator<Item = &'a Summary>) -> Summary {
    let mut all: Option<Summary> = None;
    let mut threads: FxHashMap<Option<(Pid, Tid)>, One<'a>> = FxHashMap::default();
    let mut notes: Vec<&[String]> = Vec::new();
    for part in parts {
        let all = all.get_or_insert_with(|| Summary::empty(part.measure, part.start));
        all.end = part.end;
        all.measure = part.measure;
        all.gpu |= part.gpu;
        notes.push(&part.notes);
        // What went on has ended by now, or is told of again.
        for one in threads.values_mut() {
            one.calls.values_mut().for_each(|call| call.open.clear());
        }
        for thread in &part.threads {
            let one = threads.entry(thread.id).or_insert_with(|| One {
                thread: Thread {
                    id: thread.id,
                    comm: String::new(),
                    dispatcher: false,
                    calls: Vec::new(),
                },
                calls: FxHashMap::default(),
            });
            if one.thread.comm != thread.comm {
                one.thread.comm.clone_from(&thread.comm);
            }
            one.thread.dispatcher |= thread.dispatcher;
            for call in &thread.calls {
                one.calls
                    .entry(&call.name)
                    .or_insert_with(|| Call::new(call.name.clone()))
                    .merge(call);
            }
        }
    }
    let mut all = all.unwrap_or_else(|| Summary::empty(Measure::Waits, Nanos::ZERO));
    all.threads = threads
        .into_values()
        .map(|one| Thread {
            calls: one.calls.into_values().collect(),
            ..one.thread
        })
        .collect();
    all.notes = crate::analyse::each_once(notes.into_iter().rev().flatten());
    all.sort();
    all
}
