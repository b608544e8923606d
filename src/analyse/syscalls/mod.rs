//! System calls added up: by thread and by call. The same for what the kernel added up live, for what
//! is in a recording, and for the presentation.
#![forbid(unsafe_code)]

pub mod join;
pub mod recorded;

use std::collections::BTreeMap;

use crate::event::{Pid, Tid};
use crate::histogram::Histogram;
use crate::units::Nanos;

/// What the times of a summary are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// From entry to return.
    Calls,
    /// Off the CPU, in calls that waited: a recording without system calls knows of no others.
    Waits,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub measure: Measure,
    pub start: Nanos,
    pub end: Nanos,
    /// Most calls first.
    pub threads: Vec<Thread>,
    /// There are records of a GPU, so that it is known which calls overlapped idle gaps.
    pub gpu: bool,
    pub notes: Vec<String>,
}

/// A thread, or several that are told together.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// `None`: several threads.
    pub id: Option<(Pid, Tid)>,
    pub comm: String,
    /// It started work on a GPU.
    pub dispatcher: bool,
    /// Most time first.
    pub calls: Vec<Call>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    pub name: String,
    pub times: Histogram,
    pub errors: u64,
    /// Of the times in ns, added up. Not a number: not known.
    pub squares: f64,
    /// How often by the number of the error; empty when that was not asked for.
    pub by_error: BTreeMap<u16, u64>,
    /// That began before it was watched, and returned: for how long is not known.
    pub begun_before: u64,
    /// That go on.
    pub open: Vec<Open>,
    /// While a device was idle in a gap.
    pub idle_overlap: Option<Nanos>,
    /// Of that, by threads that started work on that device.
    pub dispatcher_idle: Option<Nanos>,
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `None`: since before it was watched.
    pub since: Option<Nanos>,
    /// For so long, at least.
    pub lasts: Nanos,
}

impl Call {
    pub fn new(name: String) -> Call {
        Call {
            name,
            ..Call::default()
        }
    }

    pub fn add(&mut self, time: Nanos, errno: Option<u16>) {
        self.times.add(time);
        #[allow(clippy::cast_precision_loss)]
        let ns = time.0 as f64;
        self.squares += ns * ns;
        if let Some(errno) = errno {
            self.errors += 1;
            *self.by_error.entry(errno).or_default() += 1;
        }
    }

    /// How far the times are from their average. `None` of fewer than two, or when it is not known.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    pub fn deviation(&self) -> Option<Nanos> {
        let n = self.times.count;
        if n < 2 || self.squares.is_nan() {
            return None;
        }
        let mean = self.times.total.0 as f64 / n as f64;
        let variance = (self.squares / n as f64 - mean * mean).max(0.0) * n as f64 / (n - 1) as f64;
        Some(Nanos(variance.sqrt().round() as u64))
    }

    fn merge(&mut self, other: &Call) {
        self.times.merge(&other.times);
        self.errors += other.errors;
        self.squares += other.squares;
        for (&errno, count) in &other.by_error {
            *self.by_error.entry(errno).or_default() += count;
        }
        self.begun_before += other.begun_before;
        self.open.extend(&other.open);
        self.idle_overlap = sum(self.idle_overlap, other.idle_overlap);
        self.dispatcher_idle = sum(self.dispatcher_idle, other.dispatcher_idle);
    }

    /// What has come since `before`, an earlier state of the same.
    pub fn since(&self, before: &Call) -> Call {
        let count_before = |errno| before.by_error.get(errno).copied().unwrap_or(0);
        let by_error = self.by_error.iter();
        let by_error = by_error.map(|(e, n)| (*e, n.saturating_sub(count_before(e))));
        Call {
            name: self.name.clone(),
            times: self.times.since(&before.times),
            errors: self.errors.saturating_sub(before.errors),
            // Not max(): what is not known stays so.
            squares: (self.squares - before.squares).clamp(0.0, f64::INFINITY),
            by_error: by_error.filter(|(_, n)| *n > 0).collect(),
            begun_before: self.begun_before.saturating_sub(before.begun_before),
            open: self.open.clone(),
            idle_overlap: self.idle_overlap,
            dispatcher_idle: self.dispatcher_idle,
        }
    }

    fn is_nothing(&self) -> bool {
        self.times.count == 0 && self.begun_before == 0 && self.open.is_empty()
    }
}

fn sum(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (one, None) | (None, one) => one,
    }
}

impl Thread {
    /// Calls that ended while they were watched.
    pub fn count(&self) -> u64 {
        self.calls.iter().map(|c| c.times.count).sum()
    }
}

impl Summary {
    pub fn empty(measure: Measure, at: Nanos) -> Summary {
        Summary {
            measure,
            start: at,
            end: at,
            threads: Vec::new(),
            gpu: false,
            notes: Vec::new(),
        }
    }

    pub fn count(&self) -> u64 {
        self.threads.iter().map(Thread::count).sum()
    }

    /// In the order in which they are shown, without what is empty.
    pub fn sort(&mut self) {
        for thread in &mut self.threads {
            thread.calls.retain(|call| !call.is_nothing());
            sort_calls(&mut thread.calls);
        }
        self.threads.retain(|thread| !thread.calls.is_empty());
        let key = |t: &Thread| (std::cmp::Reverse(t.count()), t.id);
        self.threads.sort_by_cached_key(key);
    }

    /// What has come since `before`, an earlier state of the same.
    pub fn since(&self, before: &Summary) -> Summary {
        let mut part = self.clone();
        part.start = before.end;
        let known: BTreeMap<_, _> = before.threads.iter().map(|t| (t.id, t)).collect();
        for thread in &mut part.threads {
            let Some(old) = known.get(&thread.id) else {
                continue;
            };
            for call in &mut thread.calls {
                if let Some(old) = old.calls.iter().find(|c| c.name == call.name) {
                    *call = call.since(old);
                }
            }
        }
        part.sort();
        part
    }

    /// All threads together, by call.
    pub fn total(&self) -> Vec<Call> {
        let mut all: BTreeMap<&str, Call> = BTreeMap::new();
        for call in self.threads.iter().flat_map(|t| &t.calls) {
            all.entry(&call.name)
                .or_insert_with(|| Call::new(call.name.clone()))
                .merge(call);
        }
        let mut all: Vec<Call> = all.into_values().collect();
        sort_calls(&mut all);
        all
    }
}

fn sort_calls(calls: &mut [Call]) {
    let longest = |c: &Call| c.open.iter().map(|open| open.lasts).max();
    calls.sort_by(|a, b| {
        let key = |c: &Call| (c.times.total, c.times.count, longest(c));
        key(b).cmp(&key(a)).then_with(|| a.name.cmp(&b.name))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, times: &[u64]) -> Call {
        let mut call = Call::new(name.to_string());
        for &ns in times {
            call.add(Nanos(ns), None);
        }
        call
    }

    fn thread(tid: u32, calls: Vec<Call>) -> Thread {
        Thread {
            id: Some((Pid(tid), Tid(tid))),
            comm: "a".to_string(),
            dispatcher: false,
            calls,
        }
    }

    fn summary(threads: Vec<Thread>) -> Summary {
        let mut summary = Summary {
            measure: Measure::Calls,
            start: Nanos(0),
            end: Nanos(1000),
            threads,
            gpu: false,
            notes: Vec::new(),
        };
        summary.sort();
        summary
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let all = call(
            "read",
            &[2_000, 4_000, 4_000, 4_000, 5_000, 5_000, 7_000, 9_000],
        );
        assert_eq!(all.deviation(), Some(Nanos(2_138)));
        assert_eq!(call("read", &[700, 700]).deviation(), Some(Nanos(0)));
        assert_eq!(call("read", &[700]).deviation(), None);
        // Of one whose squares are not known, of the sum with others, and of what came since.
        let mut unknown = call("read", &[100, 200]);
        unknown.squares = f64::NAN;
        assert_eq!(unknown.deviation(), None);
        unknown.merge(&call("read", &[700, 900]));
        assert_eq!(unknown.deviation(), None);
    }

    #[test]
    fn the_total_has_every_thread_and_each_call_once() {
        let summary = summary(vec![
            thread(1, vec![call("read", &[10]), call("write", &[50, 60])]),
            thread(2, vec![call("read", &[20, 30, 40, 50])]),
        ]);
        assert_eq!(summary.count(), 7);
        assert_eq!(summary.threads[0].id, Some((Pid(2), Tid(2))));
        let total = summary.total();
        let rows: Vec<_> = total
            .iter()
            .map(|c| (c.name.as_str(), c.times.count))
            .collect();
        assert_eq!(rows, [("read", 5), ("write", 2)]);
    }

    #[test]
    fn a_call_that_only_goes_on_is_there() {
        let mut waits = call("poll", &[]);
        waits.open.push(Open {
            since: None,
            lasts: Nanos(900),
        });
        let summary = summary(vec![thread(1, vec![call("read", &[]), waits])]);
        assert_eq!(summary.threads[0].calls.len(), 1);
    }

    #[test]
    fn a_part_has_the_errors_that_came_in_it() {
        let mut before = Call::new("open".to_string());
        before.add(Nanos(100), Some(2));
        let mut now = before.clone();
        now.add(Nanos(300), Some(13));
        now.add(Nanos(400), Some(2));
        let part = now.since(&before);
        assert_eq!((part.times.count, part.errors), (2, 2));
        assert_eq!(part.by_error, BTreeMap::from([(2, 1), (13, 1)]));
        assert_eq!(part.deviation(), Some(Nanos(71)));
    }
}
