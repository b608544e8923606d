//! Events that the analyst never sees, because it has too much to do: what is missing is a loss like any other, so
//! that nobody is blamed by what was not looked at.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::event::{Cpu, Event, Loss, LossSource, Pid};
use crate::units::Nanos;

/// When so many events wait, those of the scheduler are left out: most of all are.
const MANY: usize = 2_000_000;

/// Where an event is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Cpu(u16),
    /// A process, of whose device records are missing.
    Process(u32),
    /// No one CPU: all of them may have been concerned.
    Anywhere,
}

/// What was left out since it was last told.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// [`MANY`].
    many: usize,
    /// It goes on until half of what waits has been looked at: not every second event is of use.
    scheduling: bool,
    all: bool,
    counts: BTreeMap<Place, u64>,
    /// When the last was told.
    since: Nanos,
}

impl LeftOut {
    pub(super) fn new() -> LeftOut {
        LeftOut {
            many: many(),
            scheduling: false,
            all: false,
            counts: BTreeMap::new(),
            since: Nanos::ZERO,
        }
    }

    /// Whether this one is left out while `waiting` others wait.
    pub(super) fn takes(&mut self, event: &Event, waiting: usize) -> bool {
        let is_full = |already, most| waiting > if already { most / 2 } else { most };
        self.scheduling = is_full(self.scheduling, self.many);
        // And then all but those without which the others mean nothing.
        self.all = is_full(self.all, 2 * self.many);
        if !self.scheduling {
            return false;
        }
        let place = match event {
            Event::Switch(e) => Place::Cpu(e.cpu.0),
            Event::Waking(e) => Place::Cpu(e.cpu.0),
            Event::Interrupt(e) => Place::Cpu(e.cpu.0),
            _ if !self.all => return false,
            Event::GpuOp(e) => Place::Process(e.pid.0),
            Event::ApiCall(e) => Place::Process(e.pid.0),
            Event::Sync(e) => Place::Process(e.pid.0),
            Event::Overhead(e) => Place::Process(e.pid.0),
            Event::Migration(e) => Place::Process(e.pid.0),
            Event::GpuInvalid(e) => Place::Process(e.pid.0),
            Event::Wait(_)
            | Event::CpuWait(_)
            | Event::Stall(_)
            | Event::SysCall(_)
            | Event::Signal(_)
            | Event::Sample(_) => Place::Anywhere,
            Event::Define(_)
            | Event::Task(_)
            | Event::Exit(_)
            | Event::Loss(_)
            | Event::Device(_)
            | Event::Shim(_)
            | Event::Probes(_)
            | Event::Process(_)
            | Event::Clock(_) => return false,
        };
        *self.counts.entry(place).or_default() += 1;
        true
    }

    /// The losses until `now`, of `cpus` CPUs.
    pub(super) fn told(&mut self, now: Nanos, cpus: u16) -> Vec<Loss> {
        let from = std::mem::replace(&mut self.since, now);
        let mut counts = std::mem::take(&mut self.counts);
        if let Some(count) = counts.remove(&Place::Anywhere) {
            for cpu in 0..cpus {
                counts.entry(Place::Cpu(cpu)).or_default();
            }
            *counts.entry(Place::Cpu(0)).or_default() += count;
        }
        let loss = |(place, count): (Place, u64)| {
            let source = match place {
                Place::Cpu(cpu) => LossSource::Bpf(Cpu(cpu)),
                Place::Process(pid) => LossSource::ShimRing(Pid(pid)),
                Place::Anywhere => LossSource::Bpf(Cpu(0)),
            };
            let to = now;
            Loss {
                source,
                count,
                from,
                to,
            }
        };
        counts.into_iter().map(loss).collect()
    }
}

#[cfg(not(debug_assertions))]
fn many() -> usize {
    MANY
}

/// Tests see what becomes of the rest when it is less.
#[cfg(debug_assertions)]
fn many() -> usize {
    let asked = std::env::var("GDIAG_TEST_QUEUE").ok();
    asked.and_then(|many| many.parse().ok()).unwrap_or(MANY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Interrupt, Tid};

    fn interrupt(cpu: u16) -> Event {
        Event::Interrupt(Interrupt {
            start: Nanos(1),
            dur: Nanos(1),
            cpu: Cpu(cpu),
            tid: Tid(1),
            context: crate::event::Context::Timer,
        })
    }

    fn signal() -> Event {
        Event::Signal(crate::event::Signal {
            ts: Nanos(1),
            sender: Tid(1),
            receiver: Tid(2),
            signal: 19,
        })
    }

    #[test]
    fn what_is_left_out_is_a_loss_of_its_cpu_and_time() {
        let mut left_out = LeftOut::new();
        assert!(!left_out.takes(&interrupt(3), MANY));
        assert!(left_out.told(Nanos(5), 8).is_empty());
        for _ in 0..2 {
            assert!(left_out.takes(&interrupt(3), MANY + 1));
        }
        assert!(!left_out.takes(&signal(), MANY + 1));
        let loss = Loss {
            source: LossSource::Bpf(Cpu(3)),
            count: 2,
            from: Nanos(5),
            to: Nanos(9),
        };
        assert_eq!(left_out.told(Nanos(9), 8), [loss]);
        assert!(left_out.told(Nanos(10), 8).is_empty());
    }

    #[test]
    fn it_goes_on_until_half_of_what_waits_is_gone() {
        let mut left_out = LeftOut::new();
        let mut takes = |waiting| left_out.takes(&interrupt(0), waiting);
        assert!(takes(MANY + 1));
        assert!(takes(MANY - 1) && takes(MANY / 2 + 1));
        assert!(!takes(MANY / 2) && !takes(MANY));
    }

    #[test]
    fn a_flood_of_anything_ends_at_a_bound() {
        let mut left_out = LeftOut::new();
        assert!(left_out.takes(&signal(), 2 * MANY + 1));
        // Nobody knows of which CPU it was.
        let losses = left_out.told(Nanos(1), 4);
        assert_eq!(losses.len(), 4);
        assert_eq!(losses.iter().map(|l| l.count).sum::<u64>(), 1);
    }
}
