//! What follows what, and how soon: the gap between an operation that waits on the device
//! and what it waits for.
#![forbid(unsafe_code)]

use crate::draws;
use crate::leads::{self, Quantiles};
use crate::model::{Direction, Work};

/// Kernels below this length are like the measured empty ones, others like those of 20 µs.
const SHORT_KERNEL_NS: u64 = 10_000;

pub fn is_short(kernel_ns: u64) -> bool {
    kernel_ns < SHORT_KERNEL_NS
}

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    ShortKernel,
    Kernel,
    OnDevice,
    ToDevice,
    ToHost,
    HostFunction,
    /// Whatever it is, it is in another stream.
    Event,
}

impl Before {
    const ALL: [Before; 7] = [
        Before::ShortKernel,
        Before::Kernel,
        Before::OnDevice,
        Before::ToDevice,
        Before::ToHost,
        Before::HostFunction,
        Before::Event,
    ];

    /// What this is for the next operation of its stream.
    pub fn of(work: &Work) -> Before {
        match *work {
            Work::Kernel { ns } if is_short(ns) => Before::ShortKernel,
            Work::Kernel { .. } => Before::Kernel,
            Work::OnDevice { .. } => Before::OnDevice,
            Work::Copy { direction, .. } => match direction {
                Direction::HostToDevice => Before::ToDevice,
                Direction::DeviceToHost => Before::ToHost,
            },
            Work::Host(_) => Before::HostFunction,
        }
    }
}

/// The measured gap. Where a pair was not measured, the nearest one that was: another copy
/// for a copy, an operation of the same engine otherwise.
fn table(before: Before, next: &Work) -> &'static Quantiles {
    match (before, next) {
        (Before::Event, _) => &leads::EVENT_WAIT_LATENCY,
        (_, Work::Host(_)) => &leads::HOST_FUNCTION_ENTRY_AFTER_KERNEL,
        (Before::HostFunction, _) => &leads::HOST_FUNCTION_KERNEL_AFTER_EXIT,
        (Before::ShortKernel, Work::Kernel { .. }) => &leads::LAUNCH_QUEUED_NOP_GAP,
        (Before::Kernel, Work::Kernel { .. }) => &leads::LAUNCH_QUEUED_20US_GAP,
        (
            Before::ShortKernel | Before::Kernel | Before::OnDevice,
            Work::Kernel { .. } | Work::OnDevice { .. },
        ) => &leads::CHAIN_MEMSET_TO_KERNEL_GAP,
        (Before::ToDevice | Before::ToHost, Work::Kernel { .. }) => {
            &leads::CHAIN_HTOD_TO_KERNEL_GAP
        }
        (Before::ToDevice | Before::ToHost, Work::OnDevice { .. }) => {
            &leads::CHAIN_DTOH_TO_MEMSET_GAP
        }
        (_, Work::Copy { direction, .. }) => match (before, direction) {
            (Before::ToDevice, Direction::HostToDevice)
            | (Before::ToHost, Direction::DeviceToHost) => &leads::COPY_ENGINE_GAP,
            (_, Direction::HostToDevice) => &leads::CHAIN_KERNEL_TO_HTOD_GAP,
            (_, Direction::DeviceToHost) => &leads::CHAIN_KERNEL_TO_DTOH_GAP,
        },
    }
}

/// The gaps of one operation, in ns, drawn before it is known which of them it meets.
#[derive(Clone, Debug)]
pub struct Gaps {
    after: [u64; Before::ALL.len()],
    /// Between a copy and the next one of any stream in its engine.
    pub engine: u64,
}

impl Gaps {
    /// `event` takes the place of the measured latency of an event wait.
    pub fn draw(next: &Work, event: Option<u64>, at: u64) -> Gaps {
        let mut after = Before::ALL.map(|before| draws::ns(table(before, next), at));
        if let Some(ns) = event {
            after[Before::Event as usize] = ns;
        }
        Gaps {
            after,
            engine: draws::ns(&leads::COPY_ENGINE_GAP, at),
        }
    }

    pub fn after(&self, before: Before) -> u64 {
        self.after[before as usize]
    }

    #[cfg(test)]
    pub fn plain(stream: u64, event: u64, engine: u64) -> Gaps {
        let mut after = [stream; Before::ALL.len()];
        after[Before::Event as usize] = event;
        Gaps { after, engine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEDIAN: u64 = 1 << 63;
    const UP: Work = Work::Copy {
        direction: Direction::HostToDevice,
        ns: 1,
    };
    const DOWN: Work = Work::Copy {
        direction: Direction::DeviceToHost,
        ns: 1,
    };

    fn gap(before: &Work, next: &Work) -> u64 {
        Gaps::draw(next, None, MEDIAN).after(Before::of(before))
    }

    #[test]
    fn every_measured_pair_has_its_own_row() {
        let (nop, long) = (Work::Kernel { ns: 500 }, Work::Kernel { ns: 20_000 });
        let set = Work::OnDevice { ns: 1 };
        for (before, next, row) in [
            (&nop, &nop, &leads::LAUNCH_QUEUED_NOP_GAP),
            (&long, &long, &leads::LAUNCH_QUEUED_20US_GAP),
            (&long, &UP, &leads::CHAIN_KERNEL_TO_HTOD_GAP),
            (&UP, &nop, &leads::CHAIN_HTOD_TO_KERNEL_GAP),
            (&nop, &DOWN, &leads::CHAIN_KERNEL_TO_DTOH_GAP),
            (&DOWN, &set, &leads::CHAIN_DTOH_TO_MEMSET_GAP),
            (&set, &nop, &leads::CHAIN_MEMSET_TO_KERNEL_GAP),
            (&UP, &UP, &leads::COPY_ENGINE_GAP),
        ] {
            assert_eq!(gap(before, next), row[50] as u64, "{before:?} {next:?}");
        }
    }

    #[test]
    fn an_index_is_the_place_in_the_list() {
        for (index, before) in Before::ALL.into_iter().enumerate() {
            assert_eq!(before as usize, index);
        }
    }

    #[test]
    fn the_environment_sets_only_the_event_latency() {
        let drawn = Gaps::draw(&UP, None, MEDIAN);
        let set = Gaps::draw(&UP, Some(40_000), MEDIAN);
        assert_eq!(
            drawn.after(Before::Event),
            leads::EVENT_WAIT_LATENCY[50] as u64
        );
        assert_eq!(set.after(Before::Event), 40_000);
        assert_eq!(set.after(Before::Kernel), drawn.after(Before::Kernel));
    }
}
