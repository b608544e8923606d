//! From a thread id to its place in the timeline: one look-up for every event.
#![forbid(unsafe_code)]

use crate::event::Tid;
use crate::model::fxhash::FxHashMap;
use crate::model::thread::ThreadIdx;

/// PID_MAX_LIMIT of 64-bit kernels.
const DENSE: u32 = 1 << 22;
const NONE: u32 = u32::MAX;

/// A plain array for real ids; ids that no kernel hands out go to a map.
#[derive(Clone, Debug, Default)]
pub(super) struct TidMap {
    dense: Vec<u32>,
    rest: FxHashMap<u32, u32>,
}

impl TidMap {
    pub(super) fn get(&self, tid: Tid) -> Option<ThreadIdx> {
        let found = if tid.0 < DENSE {
            self.dense
                .get(tid.0 as usize)
                .copied()
                .filter(|&i| i != NONE)
        } else {
            self.rest.get(&tid.0).copied()
        };
        found.map(ThreadIdx)
    }

    pub(super) fn insert(&mut self, tid: Tid, thread: ThreadIdx) {
        if tid.0 < DENSE {
            let i = tid.0 as usize;
            if self.dense.len() <= i {
                self.dense.resize((i + 1).next_power_of_two(), NONE);
            }
            self.dense[i] = thread.0;
        } else {
            self.rest.insert(tid.0, thread.0);
        }
    }
}
