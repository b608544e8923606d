//! The scheduler, summed up in the kernel: read, and told as a summary.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use anyhow::Result;

use crate::analyse::sched::live::{Live, Scope};
use crate::analyse::sched::Summary;
use crate::collect::sched_sum::{Plan, SchedSum};
use crate::decode::sched_sum::Reading;
use crate::units::Nanos;

/// The sums, and what is made of them.
#[derive(Debug)]
pub struct SchedSums {
    sums: SchedSum,
    live: Live,
}

impl SchedSums {
    /// Nothing counts before [`go`](Self::go).
    pub fn start(plan: &Plan<'_>, scope: Scope) -> Result<SchedSums> {
        Ok(SchedSums {
            sums: SchedSum::start(plan)?,
            live: Live::new(scope),
        })
    }

    /// What this kernel cannot tell.
    pub fn missing_probes(&self) -> &[String] {
        &self.sums.missing
    }

    /// From now on it counts.
    pub fn go(&mut self) -> Result<Nanos> {
        self.sums.go()
    }

    /// When it becomes readable, it is time to [`keep_up`](Self::keep_up).
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.sums.epoll_fd()
    }

    /// Takes note of threads that ended, and of those that came into a target's cgroup.
    pub fn keep_up(&mut self) -> Result<()> {
        self.sums.keep_up()?;
        if self.sums.is_full() {
            self.read()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        let raw = self.sums.read()?;
        let reading = Reading::decode(&raw);
        let mut gone: HashSet<u32> = reading.ended.iter().map(|t| t.tid.0).collect();
        for thread in &reading.threads {
            gone.remove(&thread.tid.0);
        }
        self.sums.forget(&raw, &gone);
        self.live.add(reading);
        Ok(())
    }

    /// Since the start.
    pub fn total(&mut self) -> Result<Summary> {
        self.read()?;
        Ok(self.live.total())
    }

    /// Since the last call of this.
    pub fn interval(&mut self) -> Result<Summary> {
        self.read()?;
        Ok(self.live.interval())
    }

    /// Likewise, for whoever wants nothing else: see [`Live::step`].
    pub fn step(&mut self) -> Result<Summary> {
        self.read()?;
        Ok(self.live.step())
    }

    /// All of it, and how many threads of the target were seen. The programs are gone then.
    pub fn finish(mut self) -> Result<(Summary, usize)> {
        self.sums.stop()?;
        let total = self.total()?;
        Ok((total, self.live.targets()))
    }
}
