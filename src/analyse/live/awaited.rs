//! Launches and copies whose operation was not heard of yet.
//!
//! CUPTI counts its calls up, and operations come about in the order of their calls. So those of a process are kept in
//! a row by their number: nothing is hashed, and what is done is taken from the front.

use std::collections::VecDeque;

use crate::event::{ApiCall, CorrelationId, Pid};
use crate::fxhash::FxHashMap;
use crate::units::Nanos;

/// From the first to the last that is awaited of a process, at most; the oldest of more are given up.
const LONGEST_ROW: usize = 1 << 17;

#[derive(Debug, Default)]
pub(super) struct Awaited(FxHashMap<Pid, Row>);

#[derive(Debug, Default)]
struct Row {
    /// The number of the first.
    first: u32,
    calls: VecDeque<Option<ApiCall>>,
}

impl Row {
    fn index(&self, id: CorrelationId) -> Option<usize> {
        let index = usize::try_from(id.0.checked_sub(self.first)?).ok()?;
        (index < self.calls.len()).then_some(index)
    }

    fn insert(&mut self, call: ApiCall) {
        let id = call.correlation.0;
        let far = |distance: u32| distance as usize >= LONGEST_ROW;
        // Numbers begin anew with a new session.
        if id < self.first && far(self.first - id) {
            self.calls.clear();
        }
        if self.calls.is_empty() {
            self.first = id;
        }
        // Calls of several threads come a little out of order.
        while id < self.first {
            if self.calls.len() >= LONGEST_ROW {
                return;
            }
            self.calls.push_front(None);
            self.first -= 1;
        }
        // Where one is awaited for long, it is given up rather than those that are on their way.
        let over = ((id - self.first) as usize + 1).saturating_sub(LONGEST_ROW);
        if over >= self.calls.len() {
            self.calls.clear();
            self.first = id;
        } else {
            self.calls.drain(..over);
            self.first += u32::try_from(over).unwrap_or(0);
        }
        let index = (id - self.first) as usize;
        if self.calls.len() <= index {
            self.calls.resize(index + 1, None);
        }
        self.calls[index] = Some(call);
    }

    /// Nothing is awaited before the first.
    fn trim(&mut self, is_over: impl Fn(&ApiCall) -> bool) {
        while self
            .calls
            .front()
            .is_some_and(|call| call.as_ref().is_none_or(&is_over))
        {
            self.calls.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }
}

impl Awaited {
    pub(super) fn insert(&mut self, call: ApiCall) {
        self.0.entry(call.pid).or_default().insert(call);
    }

    /// Its operation has come.
    pub(super) fn remove(&mut self, pid: Pid, id: CorrelationId) -> Option<ApiCall> {
        let row = self.0.get_mut(&pid)?;
        let index = row.index(id)?;
        let call = row.calls[index].take();
        if index == 0 {
            row.trim(|_| false);
        }
        call
    }

    pub(super) fn contains(&self, pid: Pid, id: CorrelationId) -> bool {
        let row = self.0.get(&pid);
        row.is_some_and(|row| {
            row.index(id)
                .is_some_and(|index| row.calls[index].is_some())
        })
    }

    /// Those of each process that began before `to`.
    pub(super) fn before(&self, to: Nanos) -> impl Iterator<Item = (Pid, &ApiCall)> {
        let rows = self.0.iter();
        rows.flat_map(move |(&pid, row)| {
            let calls = row.calls.iter().flatten();
            calls
                .filter(move |call| call.start < to)
                .map(move |call| (pid, call))
        })
    }

    /// Of this process all that began before `to` are awaited no more.
    pub(super) fn give_up(&mut self, pid: Pid, to: Nanos) {
        if let Some(row) = self.0.get_mut(&pid) {
            for call in &mut row.calls {
                if call.is_some_and(|call| call.start < to) {
                    *call = None;
                }
            }
            row.trim(|_| false);
        }
    }

    /// Of all processes the first ones that ended before `to`.
    pub(super) fn give_up_old(&mut self, to: Nanos) {
        for row in self.0.values_mut() {
            row.trim(|call| call.end < to);
        }
        self.0.retain(|_, row| !row.calls.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Api, ApiDomain, Tid};

    const PID: Pid = Pid(7);

    fn call(id: u32, start: u64) -> ApiCall {
        ApiCall {
            pid: PID,
            tid: Tid(7),
            api: Api {
                domain: ApiDomain::Driver,
                cbid: 1,
            },
            start: Nanos(start),
            end: Nanos(start + 5),
            correlation: CorrelationId(id),
            result: 0,
        }
    }

    fn ids(awaited: &Awaited) -> Vec<u32> {
        let all = awaited.before(Nanos::MAX);
        all.map(|(_, call)| call.correlation.0).collect()
    }

    #[test]
    fn each_is_taken_once_in_any_order() {
        let mut awaited = Awaited::default();
        for id in [12, 10, 15, 11] {
            awaited.insert(call(id, u64::from(id)));
        }
        assert_eq!(ids(&awaited), [10, 11, 12, 15]);
        let take = |awaited: &mut Awaited, id| awaited.remove(PID, CorrelationId(id));
        assert_eq!(take(&mut awaited, 11), Some(call(11, 11)));
        assert_eq!(take(&mut awaited, 11), None);
        assert_eq!(take(&mut awaited, 13), None);
        assert_eq!(take(&mut awaited, 10), Some(call(10, 10)));
        assert_eq!(awaited.0[&PID].first, 12);
        assert!(awaited.contains(PID, CorrelationId(15)));
        assert!(!awaited.contains(PID, CorrelationId(14)));
    }

    #[test]
    fn numbers_that_begin_anew_take_the_place_of_those_before() {
        let mut awaited = Awaited::default();
        awaited.insert(call(u32::MAX, 1));
        awaited.insert(call(3, 2));
        assert_eq!(ids(&awaited), [3]);
        assert_eq!(awaited.remove(PID, CorrelationId(u32::MAX)), None);
    }

    #[test]
    fn a_row_is_no_longer_than_it_may_be() {
        let mut awaited = Awaited::default();
        awaited.insert(call(1, 1));
        awaited.insert(call(LONGEST_ROW as u32, 2));
        awaited.insert(call(LONGEST_ROW as u32 + 1, 2));
        assert!(awaited.0[&PID].calls.len() <= LONGEST_ROW);
        // However they come, down as well.
        let mut awaited = Awaited::default();
        for step in (1..20).rev() {
            awaited.insert(call(step * (LONGEST_ROW as u32 - 1), 1));
        }
        assert!(awaited.0[&PID].calls.len() <= LONGEST_ROW);
    }

    #[test]
    fn one_that_never_comes_does_not_take_others_with_it() {
        let mut awaited = Awaited::default();
        let last = LONGEST_ROW as u32;
        for id in [1, last - 1, last, last + 1] {
            awaited.insert(call(id, u64::from(id)));
        }
        assert_eq!(ids(&awaited), [last - 1, last, last + 1]);
    }

    #[test]
    fn what_is_too_old_is_given_up() {
        let mut awaited = Awaited::default();
        (1..5).for_each(|id| awaited.insert(call(id, u64::from(id) * 100)));
        awaited.give_up_old(Nanos(206));
        assert_eq!(ids(&awaited), [3, 4]);
        awaited.give_up(PID, Nanos(400));
        assert_eq!(ids(&awaited), [4]);
        awaited.give_up_old(Nanos::MAX);
        assert!(awaited.0.is_empty());
    }
}
