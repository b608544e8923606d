//! What encoder and decoder both remember inside a chunk.
//!
//! A field is cheap when both sides could nearly guess it. Everything that is
//! guessed from is here and starts afresh with each chunk, so that a chunk can be
//! read without the one before.
#![forbid(unsafe_code)]

use super::format::record::TID_SLOTS;

/// Streams of records whose times follow each other. GPU records arrive late and in
/// batches; were they measured against the host's, both would pay for each jump.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lane {
    Host,
    Api,
    Gpu,
}

#[derive(Debug)]
pub(super) struct State {
    /// Last time written, for each [`Lane`].
    pub(super) times: [u64; 3],
    /// Last correlation id written, for each [`Lane`].
    pub(super) correlations: [u32; 3],
    /// Last graph node.
    pub(super) node: u64,
    /// CPU of the last packed record.
    pub(super) cpu: u16,
    /// Who runs on each CPU after the switches so far; the idle task when there was none.
    current: Vec<u32>,
    /// The last tid or pid seen with each remainder by [`TID_SLOTS`].
    pub(super) tids: [u32; TID_SLOTS],
}

impl Default for State {
    fn default() -> Self {
        State {
            times: [0; 3],
            correlations: [0; 3],
            node: 0,
            cpu: 0,
            current: Vec::new(),
            tids: [0; TID_SLOTS],
        }
    }
}

impl State {
    pub(super) fn reset(&mut self) {
        let mut current = std::mem::take(&mut self.current);
        current.fill(0);
        *self = State {
            current,
            ..State::default()
        };
    }

    #[inline]
    pub(super) fn current(&self, cpu: u16) -> u32 {
        self.current.get(usize::from(cpu)).copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn set_current(&mut self, cpu: u16, tid: u32) {
        let cpu = usize::from(cpu);
        if cpu >= self.current.len() {
            // At most 256 KiB, for CPU 65535.
            self.current.resize(cpu + 1, 0);
        }
        self.current[cpu] = tid;
    }

    #[inline]
    pub(super) fn slot(tid: u32) -> usize {
        tid as usize % TID_SLOTS
    }
}
