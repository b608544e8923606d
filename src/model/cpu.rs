//! Who had each CPU, and what interrupted them.
//!
//! The collector records the switches of its targets, and all switches of a CPU while a target
//! waits for it; otherwise the log of a CPU has holes. What it says about the time between two
//! switches holds when the thread that began to run is also the one that leaves.
#![forbid(unsafe_code)]

use crate::event::{Context, Interrupt, Switch, Tid};
use crate::units::Nanos;

#[derive(Clone, Copy, Debug)]
struct Change {
    ts: Nanos,
    prev: u32,
    next: u32,
}

/// Time of a CPU with the thread that had it; `None` when switches in it were not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    pub start: Nanos,
    pub end: Nanos,
    pub tid: Option<Tid>,
}

/// Time that an interrupt took from the thread that it interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Irq {
    pub start: Nanos,
    pub end: Nanos,
    pub context: Context,
}

#[derive(Clone, Copy, Debug)]
struct RawIrq {
    start: Nanos,
    dur: u32,
    tid: u32,
    context: Context,
}

#[derive(Clone, Debug, Default)]
pub struct CpuLog {
    changes: Vec<Change>,
    irqs: Vec<RawIrq>,
    /// Longest interrupt, to bound the search backwards.
    longest_irq: u32,
}

impl CpuLog {
    pub(super) fn switch(&mut self, e: &Switch) {
        self.changes.push(Change {
            ts: e.ts,
            prev: e.prev.0,
            next: e.next.0,
        });
    }

    pub(super) fn interrupt(&mut self, e: &Interrupt) {
        let dur = u32::try_from(e.dur.0).unwrap_or(u32::MAX);
        self.longest_irq = self.longest_irq.max(dur);
        self.irqs.push(RawIrq {
            start: e.start,
            dur,
            tid: e.tid.0,
            context: e.context,
        });
    }

    pub(super) fn finish(&mut self) {
        if !self.changes.is_sorted_by_key(|c| c.ts) {
            self.changes.sort_by_key(|c| c.ts);
        }
        if !self.irqs.is_sorted_by_key(|i| i.start) {
            self.irqs.sort_by_key(|i| i.start);
        }
    }

    /// When it went from whom to whom, by time.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = (Nanos, Tid, Tid)> + '_ {
        (self.changes.iter()).map(|c| (c.ts, Tid(c.prev), Tid(c.next)))
    }

    /// All interrupts on this CPU that overlap `[from, to)`, cut to it, by start.
    pub fn interrupts(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = Irq> + '_ {
        self.interrupts_if(from, to, |_| true)
    }

    /// Who had this CPU during `[from, to)`, covering it exactly. Since `watched` a target waited for the
    /// CPU, so that a hole that began earlier had ended by then.
    pub fn ran(&self, from: Nanos, to: Nanos, watched: Nanos) -> impl Iterator<Item = Ran> + '_ {
        let mut next = self.changes.partition_point(|c| c.ts <= from);
        let mut at = from;
        std::iter::from_fn(move || {
            while at < to {
                let coming = self.changes.get(next);
                let end = coming.map_or(to, |c| c.ts.min(to));
                let tid = match (next.checked_sub(1).map(|i| self.changes[i]), coming) {
                    (Some(last), Some(coming)) => {
                        let known = last.next == coming.prev || last.ts < watched;
                        known.then_some(coming.prev)
                    }
                    (Some(last), None) => Some(last.next),
                    (None, Some(coming)) => Some(coming.prev),
                    (None, None) => None,
                };
                next += 1;
                let start = at;
                at = end;
                if start < end {
                    return Some(Ran {
                        start,
                        end,
                        tid: tid.map(Tid),
                    });
                }
            }
            None
        })
    }

    /// This CPU was busy and switched in `[from, to)`, and every switch of that time is recorded.
    pub fn is_followed(&self, from: Nanos, to: Nanos) -> bool {
        let switches = self
            .ran(from, to, from)
            .try_fold(0, |n, ran| ran.tid.filter(|tid| tid.0 != 0).map(|_| n + 1));
        switches > Some(1)
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.irqs.is_empty()
    }

    /// Recorded switches in `[from, to)`.
    pub fn switches(&self, from: Nanos, to: Nanos) -> u64 {
        let before = |t| self.changes.partition_point(|c| c.ts < t);
        before(to).saturating_sub(before(from)) as u64
    }

    /// Time in recorded interrupts during `[from, to)`; one inside of another counts once.
    pub fn irq_time(&self, from: Nanos, to: Nanos) -> Nanos {
        let reach = from.saturating_sub(Nanos(u64::from(self.longest_irq)));
        let first = self.irqs.partition_point(|i| i.start < reach);
        let (mut total, mut at) = (Nanos::ZERO, from);
        for irq in self.irqs[first..].iter().take_while(|i| i.start < to) {
            let end = Nanos(irq.start.0.saturating_add(u64::from(irq.dur))).min(to);
            total += end.saturating_sub(irq.start.max(at));
            at = at.max(end);
        }
        total
    }

    /// Interrupts of `tid` on this CPU that overlap `[from, to)`, cut to it, by start.
    pub fn irqs(&self, tid: Tid, from: Nanos, to: Nanos) -> impl Iterator<Item = Irq> + '_ {
        self.interrupts_if(from, to, move |of| of == tid)
    }

    fn interrupts_if<'a>(
        &'a self,
        from: Nanos,
        to: Nanos,
        wanted: impl Fn(Tid) -> bool + 'a,
    ) -> impl Iterator<Item = Irq> + 'a {
        let reach = from.saturating_sub(Nanos(u64::from(self.longest_irq)));
        let first = self.irqs.partition_point(|i| i.start < reach);
        self.irqs[first..]
            .iter()
            .take_while(move |i| i.start < to)
            .filter(move |i| wanted(Tid(i.tid)))
            .filter_map(move |i| {
                let end = Nanos(i.start.0.saturating_add(u64::from(i.dur))).min(to);
                let start = i.start.max(from);
                (start < end).then_some(Irq {
                    start,
                    end,
                    context: i.context,
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Cpu, SwitchFlags};

    fn log(changes: &[(u64, u32, u32)]) -> CpuLog {
        let mut log = CpuLog::default();
        for &(ts, prev, next) in changes {
            log.switch(&Switch {
                ts: Nanos(ts),
                cpu: Cpu(0),
                prev: Tid(prev),
                next: Tid(next),
                state: 0,
                syscall: None,
                flags: SwitchFlags::default(),
                minor_faults: 0,
                major_faults: 0,
            });
        }
        log.finish();
        log
    }

    fn ran(log: &CpuLog, from: u64, to: u64) -> Vec<(u64, u64, Option<u32>)> {
        log.ran(Nanos(from), Nanos(to), Nanos::ZERO)
            .map(|r| (r.start.0, r.end.0, r.tid.map(|t| t.0)))
            .collect()
    }

    #[test]
    fn a_cpu_belongs_to_who_came_and_left() {
        let log = log(&[(10, 1, 2), (20, 2, 3), (30, 3, 1)]);
        assert_eq!(
            ran(&log, 5, 40),
            [
                (5, 10, Some(1)),
                (10, 20, Some(2)),
                (20, 30, Some(3)),
                (30, 40, Some(1))
            ]
        );
        assert_eq!(ran(&log, 12, 15), [(12, 15, Some(2))]);
        assert_eq!(ran(&log, 15, 15), []);
    }

    #[test]
    fn a_hole_in_the_log_names_nobody() {
        let log = log(&[(10, 1, 2), (30, 4, 1)]);
        assert_eq!(ran(&log, 12, 40), [(12, 30, None), (30, 40, Some(1))]);
        assert_eq!(ran(&CpuLog::default(), 1, 2), [(1, 2, None)]);
        let watched = log.ran(Nanos(20), Nanos(30), Nanos(20)).next();
        assert_eq!(watched.and_then(|r| r.tid), Some(Tid(4)));
        let lost = log.ran(Nanos(20), Nanos(30), Nanos(10)).next();
        assert_eq!(lost.and_then(|r| r.tid), None);
    }

    #[test]
    fn a_cpu_is_followed_while_it_is_busy_and_no_switch_is_missing() {
        let log = log(&[(10, 1, 2), (20, 2, 3), (30, 3, 0), (40, 7, 8)]);
        let followed = |from, to| log.is_followed(Nanos(from), Nanos(to));
        assert!(followed(12, 28));
        assert!(!followed(12, 18), "no switch, so perhaps nobody looked");
        assert!(!followed(12, 35), "idle");
        assert!(!followed(25, 50), "a hole");
    }

    #[test]
    fn only_interrupts_of_the_thread_count() {
        let mut log = CpuLog::default();
        for (start, dur, tid) in [(10, 20, 1), (15, 2, 2), (50, 5, 1)] {
            log.interrupt(&Interrupt {
                start: Nanos(start),
                dur: Nanos(dur),
                cpu: Cpu(0),
                tid: Tid(tid),
                context: Context::SoftIrq(3),
            });
        }
        log.finish();
        assert_eq!(log.irq_time(Nanos(0), Nanos(100)), Nanos(25));
        assert_eq!(log.irq_time(Nanos(20), Nanos(52)), Nanos(12));
        let got: Vec<_> = log
            .irqs(Tid(1), Nanos(20), Nanos(52))
            .map(|i| (i.start.0, i.end.0))
            .collect();
        assert_eq!(got, [(20, 30), (50, 52)]);
    }
}
