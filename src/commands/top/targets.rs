//! Who is looked at, as the events tell: nobody walks /proc for it while a session runs.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::shared::HISTORY;
use crate::analyse::live::Slice;
use crate::collect::process;
use crate::event::{Event, Pid};
use crate::present::top::model::Target;
use crate::units::Nanos;

/// Targets that are listed, at most.
pub(super) const MOST_TARGETS: usize = 200;

/// Those that ended sooner leave nothing behind: a shell starts programs without end.
const SHORT: Nanos = Nanos::from_secs(1);

/// How often it is looked whether they are still there: the event of an end can be lost.
const LOOK: Nanos = Nanos::from_secs(5);

#[derive(Debug)]
pub(super) struct Targets {
    /// In the order in which they came.
    list: VecDeque<Target>,
    /// Everybody is a target: only those that use CUDA are listed.
    everyone: bool,
    /// /proc has them by the same pids.
    first_namespace: bool,
    next_look: Nanos,
    /// There was no room for all that are there.
    full: bool,
}

impl Targets {
    pub(super) fn new(everyone: bool) -> Targets {
        Targets {
            list: VecDeque::new(),
            everyone,
            first_namespace: process::in_first_namespace(),
            next_look: Nanos::ZERO,
            full: false,
        }
    }

    /// Of a recording: what is in /proc has nothing to do with it.
    pub(super) fn of_recording(everyone: bool) -> Targets {
        Targets {
            first_namespace: false,
            ..Targets::new(everyone)
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn push(&mut self, event: &Event) {
        match event {
            Event::Task(task) if task.target && task.tid.0 == task.pid.0 && !self.everyone => {
                // It may be another program by now.
                self.add(task.pid, task.ts).comm.clear();
            }
            Event::Exit(exit) if exit.tid.0 == exit.pid.0 => self.ended(exit.pid, exit.ts),
            Event::Shim(shim) => self.uses_cuda(shim.pid, shim.ts),
            Event::Probes(probes) => self.uses_cuda(probes.pid, probes.ts),
            Event::Define(_)
            | Event::Task(_)
            | Event::Exit(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Interrupt(_)
            | Event::Wait(_)
            | Event::CpuWait(_)
            | Event::Stall(_)
            | Event::SysCall(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::GpuOp(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::ApiCall(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Device(_)
            | Event::Process(_)
            | Event::Loss(_)
            | Event::Clock(_) => {}
        }
    }

    /// Those of /proc.
    pub(super) fn add_cuda(&mut self, pids: &[u32], now: Nanos) {
        if self.first_namespace {
            pids.iter().for_each(|&pid| self.uses_cuda(Pid(pid), now));
        }
    }

    fn uses_cuda(&mut self, pid: Pid, at: Nanos) {
        self.add(pid, at).cuda = true;
    }

    fn add(&mut self, pid: Pid, at: Nanos) -> &mut Target {
        let known = self.list.iter().rposition(|t| t.pid == pid);
        // What ended at that moment may be told of once more.
        let known = known.filter(|&i| self.list[i].ended.is_none_or(|ended| at <= ended));
        if let Some(known) = known {
            return &mut self.list[known];
        }
        self.list.push_back(Target {
            pid,
            comm: String::new(),
            cuda: false,
            since: at,
            ended: None,
            note: None,
        });
        if self.list.len() > MOST_TARGETS {
            let over = |t: &Target| t.ended.is_some();
            let least = (self.list.iter().position(|t| over(t) && !t.cuda))
                .or(self.list.iter().position(over));
            // Those with CUDA matter most, and the newest is the one that is asked for.
            let last = self.list.len() - 1;
            self.full |= least.is_none();
            let least = least.or(self.list.iter().take(last).rposition(|t| !t.cuda));
            self.list.remove(least.unwrap_or(0));
        }
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    fn ended(&mut self, pid: Pid, at: Nanos) {
        let alive = |t: &Target| t.pid == pid && t.ended.is_none();
        let Some(index) = self.list.iter().position(alive) else {
            return;
        };
        let target = &mut self.list[index];
        target.ended = Some(at);
        if !target.cuda && at.saturating_sub(target.since) < SHORT {
            self.list.remove(index);
        }
    }

    /// As of `now`. `newest` knows their names, and `notes` what there is to say of some.
    pub(super) fn told(
        &mut self,
        now: Nanos,
        newest: Option<&Slice>,
        notes: &[(Pid, String)],
    ) -> Vec<Target> {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            let alive = self.list.iter().filter(|t| t.ended.is_none());
            let is_gone = |pid: &Pid| self.first_namespace && !process::is_process(pid.0);
            let gone: Vec<Pid> = alive.map(|t| t.pid).filter(is_gone).collect();
            gone.into_iter().for_each(|pid| self.ended(pid, now));
        }
        self.list
            .retain(|t| t.ended.is_none_or(|ended| now < ended + HISTORY));
        let alive = self.list.iter_mut().filter(|t| t.ended.is_none());
        for target in alive {
            if target.comm.is_empty() {
                target.comm = name(target.pid, newest, self.first_namespace);
            }
            let note = notes.iter().find(|(pid, _)| *pid == target.pid);
            target.note = note.map(|(_, text)| text.clone());
        }
        self.list.iter().cloned().collect()
    }
}

fn name(pid: Pid, newest: Option<&Slice>, first_namespace: bool) -> String {
    if first_namespace {
        return process::comm(pid.0).unwrap_or_default();
    }
    let mut threads = newest.into_iter().flat_map(|slice| &slice.sched.threads);
    let first = threads.find(|t| t.who.pid == pid && t.who.tid.0 == pid.0);
    first.map_or_else(String::new, |first| first.who.comm.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Exit, NameId, Shim, ShimState, Tid};

    fn shim(pid: u32, at: u64) -> Event {
        Event::Shim(Shim {
            ts: Nanos::from_secs(at),
            pid: Pid(pid),
            state: ShimState::Active,
            reason: NameId(0),
            cupti_path: NameId(0),
            cupti_version: 0,
            simulated: false,
        })
    }

    fn exit(pid: u32, at: u64) -> Event {
        Event::Exit(Exit {
            ts: Nanos::from_secs(at),
            tid: Tid(pid),
            pid: Pid(pid),
            code: 0,
        })
    }

    fn targets() -> Targets {
        Targets {
            // No pid of these tests is of this machine.
            first_namespace: false,
            ..Targets::new(false)
        }
    }

    #[test]
    fn whoever_has_a_shim_uses_cuda_and_stays_for_a_while_after_its_end() {
        let mut targets = targets();
        targets.add(Pid(7), Nanos::from_secs(1));
        targets.push(&shim(7, 2));
        targets.push(&exit(7, 3));
        let notes = [(Pid(7), "said while it lived".to_string())];
        let told = targets.told(Nanos::from_secs(4), None, &notes);
        assert!(told[0].cuda);
        assert_eq!(told[0].ended, Some(Nanos::from_secs(3)));
        let much_later = Nanos::from_secs(3) + HISTORY;
        assert!(targets.told(much_later, None, &[]).is_empty());
    }

    #[test]
    fn programs_that_end_at_once_do_not_push_others_out() {
        let mut targets = targets();
        targets.add(Pid(1), Nanos::from_secs(1));
        for pid in 2..2000 {
            targets.add(Pid(pid), Nanos::from_secs(2));
            targets.push(&exit(pid, 2));
        }
        let told = targets.told(Nanos::from_secs(3), None, &[]);
        assert_eq!(told.len(), 1);
        assert!(!targets.is_full());
    }

    #[test]
    fn where_there_is_no_room_those_with_cuda_are_listed_and_it_is_said() {
        let mut targets = targets();
        targets.push(&shim(1, 1));
        for pid in 2..1000 {
            targets.add(Pid(pid), Nanos::from_secs(2));
        }
        targets.push(&shim(5000, 3));
        let told = targets.told(Nanos::from_secs(3), None, &[]);
        assert_eq!(told.len(), MOST_TARGETS);
        assert_eq!(told.iter().filter(|t| t.cuda).count(), 2);
        assert!(targets.is_full());
    }

    #[test]
    fn a_pid_that_comes_again_is_another_process() {
        let mut targets = targets();
        targets.add(Pid(7), Nanos::from_secs(1));
        targets.push(&exit(7, 3));
        targets.add(Pid(7), Nanos::from_secs(5));
        let told = targets.told(Nanos::from_secs(6), None, &[]);
        let ended: Vec<bool> = told.iter().map(|t| t.ended.is_some()).collect();
        assert_eq!(ended, [true, false]);
    }
}
