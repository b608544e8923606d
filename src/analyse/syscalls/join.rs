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
///
/// Calls and waits are not added into one: what the newest parts measure is what is told, and what is of the other measure is
/// left out.
pub fn join<'a>(parts: impl IntoIterator<Item = &'a Summary>) -> Summary {
    let parts: Vec<&Summary> = parts.into_iter().collect();
    let measure = measure(&parts);
    let asked = parts.first().map(|part| part.start);
    let mut all = join_all((parts.iter().copied()).filter(|part| part.measure == measure));
    if let Some(late) = asked.filter(|&asked| asked < all.start) {
        let since = all.end.saturating_sub(all.start);
        let missing = all.start.saturating_sub(late);
        all.notes.push(match measure {
            Measure::Calls => format!(
                "all calls are counted for {since} now; of the {missing} before that only waits are known, and left out"
            ),
            Measure::Waits => format!(
                "waits are told of the last {since}; the {missing} before that, when all calls were counted, are left out"
            ),
        });
    }
    all
}

/// Of the newest part, or of the one before it: sums are taken about as often as slices are made, and
/// now and then one misses its slice.
fn measure(parts: &[&Summary]) -> Measure {
    let mut newest = parts.iter().rev().take(2);
    if newest.any(|part| part.measure == Measure::Calls) {
        Measure::Calls
    } else {
        Measure::Waits
    }
}

/// These threads told together.
pub fn as_one(threads: Vec<Thread>, comm: String) -> Option<Thread> {
    let mut calls: FxHashMap<String, Call> = FxHashMap::default();
    let mut one = Thread {
        id: None,
        comm,
        dispatcher: false,
        calls: Vec::new(),
    };
    if threads.is_empty() {
        return None;
    }
    for thread in threads {
        one.dispatcher |= thread.dispatcher;
        for call in thread.calls {
            match calls.get_mut(&call.name) {
                Some(sum) => sum.merge(&call),
                None => {
                    calls.insert(call.name.clone(), call);
                }
            }
        }
    }
    one.calls = calls.into_values().collect();
    super::sort_calls(&mut one.calls);
    Some(one)
}

fn join_all<'a>(parts: impl IntoIterator<Item = &'a Summary>) -> Summary {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn part(measure: Measure, second: u64, calls: u64) -> Summary {
        let mut call = Call::new("read".to_string());
        (0..calls).for_each(|_| call.add(Nanos(1000), None));
        Summary {
            end: Nanos::from_secs(second + 1),
            threads: vec![Thread {
                id: Some((Pid(1), Tid(1))),
                comm: "one".to_string(),
                dispatcher: false,
                calls: vec![call],
            }],
            ..Summary::empty(measure, Nanos::from_secs(second))
        }
    }

    #[test]
    fn calls_and_waits_are_not_added_into_one() {
        use Measure::{Calls, Waits};
        let parts = [part(Waits, 0, 100), part(Calls, 1, 7), part(Calls, 2, 5)];
        let sum = join(&parts);
        assert_eq!((sum.measure, sum.count()), (Calls, 12));
        assert_eq!(
            (sum.start, sum.end),
            (Nanos::from_secs(1), Nanos::from_secs(3))
        );
        assert_eq!(sum.notes.len(), 1, "{:?}", sum.notes);

        let parts = [part(Calls, 0, 7), part(Waits, 1, 3), part(Waits, 2, 4)];
        let sum = join(&parts);
        assert_eq!((sum.measure, sum.count()), (Waits, 7));
    }

    #[test]
    fn a_sum_that_misses_its_slice_does_not_change_what_is_measured() {
        use Measure::{Calls, Waits};
        let parts = [part(Calls, 0, 7), part(Waits, 1, 100), part(Calls, 2, 5)];
        assert_eq!(join(&parts).count(), 12);
        let sum = join(&parts[..2]);
        assert_eq!((sum.measure, sum.count()), (Calls, 7));
    }
}
