//! What the threads of `top` have in common: the last slices, and how it goes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::wake::Waker;
use crate::analyse::live::Slice;
use crate::facts::GpuFacts;
use crate::present::top::model::{Source, Status, Target};
use crate::present::top::Ask;
use crate::store::meta::Meta;
use crate::units::Nanos;

/// So much can be looked back at.
pub(super) const HISTORY: Nanos = Nanos::from_secs(300);

/// And so many bytes of it are held, about: what is watched decides how much is in a second.
const MOST_BYTES: u64 = 128 << 20;

/// Requests that have not been looked at; a person does not type faster.
const MOST_ASKED: usize = 16;

/// Held for moments only: nobody draws, writes or analyses meanwhile.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Of who waits for other things as well.
    waker: OnceLock<Waker>,
    /// Nobody looks any more: collecting is to end.
    leave: AtomicBool,
    /// Events that were handed over and not looked at yet.
    pub(super) queued: AtomicUsize,
    /// Counts up before a piece is written to stdout, and after it: odd while somebody has to read.
    pub(super) printed: AtomicU64,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) meta: Meta,
    pub(super) source: Source,
    /// Oldest first, one after another.
    pub(super) slices: VecDeque<Arc<Slice>>,
    /// What they take, about.
    bytes: u64,
    /// Some went before their time, as they took too much.
    pub(super) is_short: bool,
    /// Counts up with each change.
    pub(super) version: u64,
    pub(super) targets: Vec<Target>,
    pub(super) status: Status,
    /// In the order of NVML's numbers.
    pub(super) facts: Vec<GpuFacts>,
    /// The device is the simulator of gdiag's tests.
    pub(super) simulated: bool,
    /// Nothing comes any more.
    pub(super) over: bool,
    asked: Vec<Ask>,
}

impl State {
    /// How much of the past is held, if that is less than it should be.
    pub(super) fn shortened(&self) -> Option<Nanos> {
        let (first, last) = (self.slices.front()?, self.slices.back()?);
        let held = last.to.saturating_sub(first.from);
        // In whole seconds it says the same for a while.
        let held = Nanos::from_secs(held.0 / 1_000_000_000);
        self.is_short.then_some(held)
    }
}

impl Shared {
    pub(super) fn new(meta: Meta, source: Source) -> Shared {
        Shared {
            state: Mutex::new(State {
                meta,
                source,
                slices: VecDeque::new(),
                bytes: 0,
                is_short: false,
                version: 0,
                targets: Vec::new(),
                status: Status::default(),
                facts: Vec::new(),
                simulated: false,
                over: false,
                asked: Vec::new(),
            }),
            changed: Condvar::new(),
            waker: OnceLock::new(),
            leave: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            printed: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panicked while holding it left it whole: all changes are assignments.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and wakes whoever looks.
    pub(super) fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        state.version += 1;
        self.changed.notify_all();
        drop(state);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// From now on changes wake this one too.
    pub(super) fn wakes(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().over
    }

    pub(super) fn has_slices(&self) -> bool {
        !self.lock().slices.is_empty()
    }

    /// All there is; slices are shared, not copied.
    pub(super) fn look(&self) -> State {
        self.lock().clone()
    }

    /// Waits until there is something newer than `version`, for so long at most.
    pub(super) fn wait(&self, version: u64, most: Duration) -> State {
        let state = self.lock();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, most, |state| state.version == version)
            .unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    /// Adds slices, which take the place of those of the same time.
    pub(super) fn add(&self, slices: Vec<Slice>) {
        if slices.is_empty() {
            return;
        }
        // Made outside of the lock, and what goes is freed outside of it.
        let bounded = |mut slice: Slice| {
            slice.bound();
            Arc::new(slice)
        };
        let slices: Vec<Arc<Slice>> = slices.into_iter().map(bounded).collect();
        let mut gone = Vec::new();
        self.update(|state| {
            for slice in slices {
                state.bytes += slice.bytes().0;
                let at = state.slices.partition_point(|s| s.from < slice.from);
                match state.slices.get_mut(at).filter(|s| s.from == slice.from) {
                    Some(old) => {
                        state.bytes -= old.bytes().0;
                        gone.push(std::mem::replace(old, slice));
                    }
                    None => state.slices.insert(at, slice),
                }
            }
            let newest = state.slices.back().map_or(Nanos::ZERO, |s| s.to);
            let oldest = newest.saturating_sub(HISTORY);
            while let Some(front) = state.slices.front() {
                let too_large = state.bytes > MOST_BYTES && state.slices.len() > 1;
                if front.to > oldest && !too_large {
                    break;
                }
                state.is_short |= front.to > oldest;
                state.bytes -= front.bytes().0;
                gone.extend(state.slices.pop_front());
            }
        });
        drop(gone);
    }

    pub(super) fn ask(&self, ask: Ask) {
        let mut state = self.lock();
        if state.asked.len() < MOST_ASKED {
            state.asked.push(ask);
        }
    }

    pub(super) fn asked(&self) -> Vec<Ask> {
        std::mem::take(&mut self.lock().asked)
    }

    pub(super) fn leave(&self) {
        self.leave.store(true, Ordering::Release);
    }

    pub(super) fn is_left(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::sched::{Summary, ThreadSum, Who};
    use crate::event::{Pid, Tid};

    #[test]
    fn what_is_held_is_bounded_by_bytes_and_the_oldest_go_first() {
        let shared = Shared::new(Meta::default(), Source::Machine);
        let slice = |n: u64| {
            let threads = (1..=400).map(|tid| ThreadSum {
                who: Who {
                    pid: Pid(1),
                    tid: Tid(tid),
                    comm: "x".repeat(4096),
                },
                ..ThreadSum::default()
            });
            let from = Nanos::from_millis(500 * n);
            let sched = Summary {
                start: from,
                end: from + Nanos::from_millis(500),
                threads: threads.collect(),
                ..Summary::default()
            };
            Slice::of_machine(sched, None)
        };
        for n in 0..120 {
            // As when it is made again.
            shared.add(vec![slice(n), slice(n)]);
        }
        let state = shared.look();
        assert!(state.is_short);
        assert!(state.bytes <= MOST_BYTES);
        let held = state.slices.iter().map(|slice| slice.bytes().0);
        assert_eq!(held.sum::<u64>(), state.bytes);
        assert!((30..120).contains(&state.slices.len()));
        assert_eq!(state.slices.back().unwrap().to, Nanos::from_secs(60));
    }
}
