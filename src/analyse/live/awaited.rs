//! Launches and copies whose operation was not heard of yet.
//!
//! CUPTI counts its calls up, recorded or not, and operations come about in the order of their calls. So those of a
//! process have their place in a table by their number as it is: nothing is hashed, and neighbours stay neighbours.
//! The numbers come from the target: whatever they are, a table stays small and a look into it short.

use crate::event::{ApiCall, CorrelationId, Pid};
use crate::fxhash::FxHashMap;
use crate::units::Nanos;

/// Places of a table at most; it is a power of two.
const MOST: usize = 1 << 17;

const FEWEST: usize = 1 << 8;

/// A call is at its place or one of those after it. When all are taken the table grows, or the oldest is given up.
const NEAR: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Awaited(FxHashMap<Pid, Table>);

#[derive(Debug, Default)]
struct Table {
    places: Vec<Option<ApiCall>>,
    count: usize,
}

impl Table {
    fn near(&self, id: CorrelationId) -> impl Iterator<Item = usize> {
        let mask = self.places.len().wrapping_sub(1);
        let near = NEAR.min(self.places.len());
        (0..near).map(move |i| (id.0 as usize).wrapping_add(i) & mask)
    }

    fn find(&self, id: CorrelationId) -> Option<usize> {
        self.near(id)
            .find(|&at| self.places[at].is_some_and(|call| call.correlation == id))
    }

    fn insert(&mut self, call: ApiCall) {
        let id = call.correlation;
        if self.places.is_empty() {
            self.places.resize(FEWEST, None);
        }
        // The number may be of an earlier session.
        let mut free = self.find(id);
        while free.is_none() {
            free = self.near(id).find(|&at| self.places[at].is_none());
            if free.is_some() || self.places.len() >= MOST {
                break;
            }
            self.grow();
        }
        let start = |at: &usize| self.places[*at].map(|call| call.start);
        let Some(at) = free.or_else(|| self.near(id).min_by_key(start)) else {
            return;
        };
        if self.places[at].replace(call).is_none() {
            self.count += 1;
        }
    }

    fn grow(&mut self) {
        let more = self.places.len() * 2;
        let calls = std::mem::replace(&mut self.places, vec![None; more]);
        self.count = 0;
        for call in calls.into_iter().flatten() {
            // Who was near to each other has more room now.
            if let Some(at) = self
                .near(call.correlation)
                .find(|&at| self.places[at].is_none())
            {
                self.places[at] = Some(call);
                self.count += 1;
            }
        }
    }

    fn calls(&self) -> impl Iterator<Item = &ApiCall> {
        self.places.iter().flatten().take(self.count)
    }

    fn give_up(&mut self, which: impl Fn(&ApiCall) -> bool) {
        for place in &mut self.places {
            if place.as_ref().is_some_and(&which) {
                *place = None;
                self.count -= 1;
            }
        }
    }
}

impl Awaited {
    pub(super) fn insert(&mut self, call: ApiCall) {
        self.0.entry(call.pid).or_default().insert(call);
    }

    /// Its operation has come.
    pub(super) fn remove(&mut self, pid: Pid, id: CorrelationId) -> Option<ApiCall> {
        let table = self.0.get_mut(&pid)?;
        let at = table.find(id)?;
        table.count -= 1;
        table.places[at].take()
    }

    pub(super) fn contains(&self, pid: Pid, id: CorrelationId) -> bool {
        let table = self.0.get(&pid);
        table.is_some_and(|table| table.find(id).is_some())
    }

    /// Those of each process that began before `to`.
    pub(super) fn before(&self, to: Nanos) -> impl Iterator<Item = (Pid, &ApiCall)> {
        let calls = self.0.iter().flat_map(|(&pid, table)| {
            let calls = table.calls();
            calls.map(move |call| (pid, call))
        });
        calls.filter(move |(_, call)| call.start < to)
    }

    /// Of this process all that began before `to` are awaited no more.
    pub(super) fn give_up(&mut self, pid: Pid, to: Nanos) {
        if let Some(table) = self.0.get_mut(&pid) {
            table.give_up(|call| call.start < to);
        }
    }

    /// Of all processes those that ended before `to`.
    pub(super) fn give_up_old(&mut self, to: Nanos) {
        for table in self.0.values_mut() {
            table.give_up(|call| call.end < to);
            if table.count == 0 && table.places.len() > FEWEST {
                table.places = Vec::new();
            }
        }
    }

    /// The process is no more.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.0.remove(&pid);
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
        let mut ids: Vec<u32> = all.map(|(_, call)| call.correlation.0).collect();
        ids.sort_unstable();
        ids
    }

    fn take(awaited: &mut Awaited, id: u32) -> Option<ApiCall> {
        awaited.remove(PID, CorrelationId(id))
    }

    #[test]
    fn each_is_taken_once_in_any_order() {
        let mut awaited = Awaited::default();
        for id in [12, 10, 15, 11] {
            awaited.insert(call(id, u64::from(id)));
        }
        assert_eq!(ids(&awaited), [10, 11, 12, 15]);
        assert_eq!(take(&mut awaited, 11), Some(call(11, 11)));
        assert_eq!(take(&mut awaited, 11), None);
        assert_eq!(take(&mut awaited, 13), None);
        assert_eq!(take(&mut awaited, 10), Some(call(10, 10)));
        assert!(awaited.contains(PID, CorrelationId(15)));
        assert!(!awaited.contains(PID, CorrelationId(14)));
        assert_eq!(ids(&awaited), [12, 15]);
    }

    #[test]
    fn a_number_that_is_given_again_takes_the_place_of_the_one_before() {
        let mut awaited = Awaited::default();
        awaited.insert(call(3, 1));
        awaited.insert(call(3, 2));
        assert_eq!(ids(&awaited), [3]);
        assert_eq!(take(&mut awaited, 3), Some(call(3, 2)));
        assert_eq!(ids(&awaited), [0; 0]);
    }

    #[test]
    fn calls_that_are_not_recorded_between_two_make_no_difference() {
        let mut awaited = Awaited::default();
        for i in 0..1_000 {
            awaited.insert(call(i * 1_000_003, u64::from(i)));
        }
        for i in 0..1_000 {
            let found = take(&mut awaited, i * 1_000_003);
            assert_eq!(found.map(|call| call.start), Some(Nanos(u64::from(i))));
        }
        assert!(awaited.0[&PID].places.len() <= 1 << 14);
    }

    #[test]
    fn many_in_a_row_are_all_there() {
        let mut awaited = Awaited::default();
        (0..100_000).for_each(|id| awaited.insert(call(id, u64::from(id))));
        assert_eq!(ids(&awaited).len(), 100_000);
        (0..100_000).for_each(|id| assert!(take(&mut awaited, id).is_some()));
    }

    #[test]
    fn whatever_the_numbers_are_no_more_than_so_many_are_kept() {
        let up = |i: u32| i.wrapping_mul(MOST as u32);
        let down = |i: u32| u32::MAX - i.wrapping_mul(MOST as u32 - 1);
        let row = |i: u32| i;
        for number in [up as fn(u32) -> u32, down, row] {
            let mut awaited = Awaited::default();
            for i in 0..300_000 {
                awaited.insert(call(number(i), u64::from(i)));
            }
            let table = &awaited.0[&PID];
            assert!(table.places.len() <= MOST);
            assert_eq!(table.count, ids(&awaited).len());
            // It is the oldest that are given up.
            assert!(awaited.contains(PID, CorrelationId(number(299_999))));
            assert!(awaited.contains(PID, CorrelationId(number(299_990))));
        }
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
        assert_eq!(ids(&awaited), [0; 0]);
        awaited.forget(PID);
        assert!(awaited.0.is_empty());
    }
}
