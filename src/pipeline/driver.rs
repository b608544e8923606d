//! Which processes have probes on their CUDA driver, and why: those of which CUPTI records nothing.
//!
//! ```text
//!   injection is off, and a target has the driver but no shim ─┐
//!   its shim says Busy or Failed ──────────────────────────────┼─► probes, in a thread ─► event
//!   injection failed (Session::probe_driver) ──────────────────┘
//!   its shim says Active: the probes go, so that no call is counted twice
//! ```
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use crate::collect::bpf::Bpf;
use crate::collect::driver::{Answer, DriverProbes, Outcome};
use crate::event::{Event, Pid, Probes};
use crate::intern::Names;
use crate::units::Nanos;

/// After a look at a process that has no driver (yet) the next one comes so much later, then twice that.
const FIRST_PAUSE: Nanos = Nanos::from_millis(50);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(1);

/// Of so many processes at once each is looked at more seldom: a look reads all its mappings.
const MANY: usize = 64;

/// Why every target is looked at.
const NOT_INJECTED: &str = "injection is off (--no-inject)";

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Recorded by its shim, or not to be looked at.
    Left,
    /// To be looked at for a driver.
    Due { at: Nanos, pause: Nanos },
    /// The thread looks.
    Asked { pause: Nanos },
    /// Since it was looked at then.
    Probed { at: Nanos },
}

#[derive(Clone, Debug)]
struct Target {
    /// In /proc.
    proc_pid: u32,
    state: State,
    /// Why it is to have probes; `None` when it has a shim that records.
    reason: Option<String>,
    /// When it became the program that it is.
    since: Nanos,
}

/// The targets, and the probes once any of them has some.
#[derive(Debug, Default)]
pub(super) struct Drivers {
    /// Every target that has a driver and no shim gets probes.
    everyone: bool,
    probes: Option<DriverProbes>,
    targets: HashMap<Pid, Target>,
    /// Those that ever had probes, with why; by their pid in /proc too.
    probed: BTreeMap<Pid, (u32, String)>,
    /// What could not be done, for people.
    pub(super) failures: Vec<String>,
    broken: bool,
}

impl Drivers {
    pub(super) fn new(everyone: bool) -> Self {
        Drivers {
            everyone,
            ..Drivers::default()
        }
    }

    /// A process of the target was seen first, or has become another program, at `ts`.
    pub(super) fn target(&mut self, pid: Pid, proc_pid: u32, ts: Nanos) {
        let due = State::Due {
            at: ts,
            pause: FIRST_PAUSE,
        };
        let state = match self.targets.get(&pid).map(|t| &t.state) {
            // The answer will be of the new program, or out of date.
            Some(&State::Asked { .. }) => State::Asked { pause: FIRST_PAUSE },
            Some(&State::Probed { at }) if at >= ts => State::Probed { at },
            Some(State::Probed { .. }) => {
                self.take_out(pid);
                due
            }
            Some(State::Left | State::Due { .. }) | None if self.everyone => due,
            Some(State::Left | State::Due { .. }) | None => State::Left,
        };
        let target = Target {
            proc_pid,
            state,
            reason: self.everyone.then(|| NOT_INJECTED.to_string()),
            since: ts,
        };
        self.targets.insert(pid, target);
    }

    pub(super) fn ended(&mut self, pid: Pid) {
        if let (Some(_), Some(probes)) = (self.targets.remove(&pid), &self.probes) {
            probes.forget(pid);
        }
    }

    /// The process is to have probes, unless it has.
    pub(super) fn want(&mut self, pid: Pid, proc_pid: u32, reason: String, now: Nanos) {
        let target = self.targets.entry(pid).or_insert(Target {
            proc_pid,
            state: State::Left,
            reason: None,
            since: Nanos::ZERO,
        });
        target.reason = Some(reason);
        match target.state {
            State::Left | State::Due { .. } => {
                target.state = State::Due {
                    at: now,
                    pause: FIRST_PAUSE,
                }
            }
            State::Asked { .. } | State::Probed { .. } => {}
        }
    }

    /// As [`want`](Self::want), of a process that is known already.
    pub(super) fn want_known(&mut self, pid: Pid, reason: &str, now: Nanos) {
        if let Some(proc_pid) = self.targets.get(&pid).map(|t| t.proc_pid) {
            self.want(pid, proc_pid, reason.to_string(), now);
        }
    }

    /// It has a shim, which will say whether it records: no more looks.
    pub(super) fn has_shim(&mut self, pid: Pid) {
        if let Some(target) = self.targets.get_mut(&pid) {
            match target.state {
                State::Due { .. } => target.state = State::Left,
                State::Left | State::Asked { .. } | State::Probed { .. } => {}
            }
        }
    }

    /// It has a shim, and that one records. Returns whether the process had probes.
    pub(super) fn leave(&mut self, pid: Pid) -> bool {
        let Some(target) = self.targets.get_mut(&pid) else {
            return false;
        };
        target.reason = None;
        let state = std::mem::replace(&mut target.state, State::Left);
        match state {
            State::Left | State::Due { .. } => false,
            State::Asked { .. } => {
                self.take_out(pid);
                false
            }
            State::Probed { .. } => {
                self.take_out(pid);
                true
            }
        }
    }

    fn take_out(&mut self, pid: Pid) {
        if let Some(probes) = &mut self.probes {
            probes.stop(pid);
        }
    }

    /// Looks at those that are due, and tells what came of earlier looks.
    pub(super) fn step(
        &mut self,
        bpf: &Bpf,
        now: Nanos,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) {
        let due = |t: &Target| matches!(t.state, State::Due { at, .. } if at <= now);
        if !self.broken && self.probes.is_none() && self.targets.values().any(due) {
            match DriverProbes::start(bpf) {
                Ok(probes) => self.probes = Some(probes),
                Err(e) => {
                    self.broken = true;
                    self.failures
                        .push(format!("no probes on the CUDA driver: {e:#}"));
                }
            }
        }
        self.take_answers(now, names, sink);
        let Some(probes) = &mut self.probes else {
            return;
        };
        for (&pid, target) in &mut self.targets {
            if let State::Due { at, pause } = target.state {
                if at <= now {
                    // With a reason of its own, its shim does not record.
                    let only_without_shim = target.reason.as_deref() == Some(NOT_INJECTED);
                    probes.watch(pid, target.proc_pid, only_without_shim);
                    target.state = State::Asked { pause };
                }
            }
        }
    }

    fn take_answers(&mut self, now: Nanos, names: &mut Names, sink: &mut dyn FnMut(Event)) {
        let answers = self.probes.as_ref().map(DriverProbes::answers);
        for answer in answers.unwrap_or_default() {
            self.answer(answer, now, names, sink);
        }
    }

    fn answer(
        &mut self,
        Answer { pid, at, outcome }: Answer,
        now: Nanos,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) {
        let many = self.targets.len().div_ceil(MANY).max(1) as u64;
        let Some(target) = self.targets.get_mut(&pid) else {
            return;
        };
        let State::Asked { pause } = target.state else {
            // Taken out again meanwhile.
            return;
        };
        if at < target.since {
            // Of the program that it was before.
            target.state = State::Due {
                at: now,
                pause: FIRST_PAUSE,
            };
            return self.take_out(pid);
        }
        match outcome {
            Outcome::Probed(functions) => {
                target.state = State::Probed { at };
                let reason = target.reason.clone().unwrap_or_default();
                let name = names.name(&reason, sink);
                sink(Event::Probes(Probes {
                    ts: at,
                    pid,
                    functions: u32::try_from(functions).unwrap_or(u32::MAX),
                    reason: name,
                }));
                self.probed.insert(pid, (target.proc_pid, reason));
            }
            Outcome::Nothing => {
                let next = Nanos(pause.0.saturating_mul(2)).min(Nanos(LONGEST_PAUSE.0 * many));
                target.state = State::Due {
                    at: now + pause,
                    pause: next,
                };
            }
            Outcome::Failed(why) => {
                target.state = State::Left;
                // Of one that has ended meanwhile there is nothing to tell.
                if crate::collect::process::is_process(target.proc_pid) {
                    self.failures.push(format!(
                        "no probes on the CUDA driver of process {pid}: {why}"
                    ));
                }
            }
        }
    }

    /// The end of the recording.
    pub(super) fn finish(&mut self, now: Nanos, names: &mut Names, sink: &mut dyn FnMut(Event)) {
        self.take_answers(now, names, sink);
        if let Some(probes) = &mut self.probes {
            probes.finish();
        }
    }

    /// All that ever had probes: pid, pid in /proc, and why.
    pub(super) fn probed(&self) -> impl Iterator<Item = (Pid, u32, &str)> {
        let all = self.probed.iter();
        all.map(|(&pid, (proc_pid, why))| (pid, *proc_pid, why.as_str()))
    }
}

/// No more probes, as an event.
pub(super) fn taken_out(ts: Nanos, pid: Pid) -> Event {
    Event::Probes(Probes {
        ts,
        pid,
        functions: 0,
        reason: crate::event::NameId(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: Pid = Pid(7);

    fn state(drivers: &Drivers) -> Option<&State> {
        drivers.targets.get(&PID).map(|t| &t.state)
    }

    fn answer(drivers: &mut Drivers, outcome: Outcome, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let answer = Answer {
            pid: PID,
            at: Nanos(now),
            outcome,
        };
        let mut sink = |e| events.push(e);
        drivers.answer(answer, Nanos(now), &mut Names::default(), &mut sink);
        events
    }

    fn ask(drivers: &mut Drivers) {
        let target = drivers.targets.get_mut(&PID).unwrap();
        let State::Due { pause, .. } = target.state else {
            panic!("{target:?}");
        };
        target.state = State::Asked { pause };
    }

    #[test]
    fn a_process_without_driver_is_looked_at_again_and_more_seldom() {
        let mut drivers = Drivers::new(true);
        drivers.target(PID, 7, Nanos(0));
        let mut last = 0;
        for _ in 0..8 {
            ask(&mut drivers);
            assert!(answer(&mut drivers, Outcome::Nothing, last).is_empty());
            let Some(&State::Due { at, .. }) = state(&drivers) else {
                panic!("{drivers:?}");
            };
            assert!(at.0 > last && at.0 - last <= LONGEST_PAUSE.0);
            last = at.0;
        }
        ask(&mut drivers);
        let events = answer(&mut drivers, Outcome::Probed(9), last);
        assert!(matches!(
            events.last(),
            Some(Event::Probes(Probes {
                pid: PID,
                functions: 9,
                ..
            }))
        ));
        assert_eq!(state(&drivers), Some(&State::Probed { at: Nanos(last) }));
        assert_eq!(drivers.probed().next(), Some((PID, 7, NOT_INJECTED)));
    }

    #[test]
    fn a_new_program_is_looked_at_anew_unless_it_was_already() {
        let mut drivers = Drivers::new(true);
        drivers.target(PID, 7, Nanos(0));
        ask(&mut drivers);
        answer(&mut drivers, Outcome::Probed(9), 100);
        // That the process had become another one before is told later.
        drivers.target(PID, 7, Nanos(90));
        let at = Nanos(100);
        assert_eq!(state(&drivers), Some(&State::Probed { at }));
        drivers.target(PID, 7, Nanos(110));
        assert!(matches!(state(&drivers), Some(State::Due { .. })));
        // It becomes another one after it was looked at, and before that is told.
        ask(&mut drivers);
        drivers.target(PID, 7, Nanos(130));
        assert!(answer(&mut drivers, Outcome::Probed(9), 120).is_empty());
        assert!(matches!(state(&drivers), Some(State::Due { .. })));
        ask(&mut drivers);
        assert_eq!(answer(&mut drivers, Outcome::Probed(9), 140).len(), 2);
    }

    #[test]
    fn only_who_has_a_reason_gets_probes_when_injection_is_on() {
        let mut drivers = Drivers::new(false);
        drivers.target(PID, 7, Nanos(0));
        assert_eq!(state(&drivers), Some(&State::Left));
        drivers.want_known(PID, "another tool holds CUPTI", Nanos(5));
        assert!(matches!(state(&drivers), Some(State::Due { .. })));
        drivers.want_known(Pid(8), "nobody knows it", Nanos(5));
        assert_eq!(drivers.targets.len(), 1);
    }

    #[test]
    fn a_process_with_a_shim_is_looked_at_no_more_until_that_fails() {
        let mut drivers = Drivers::new(true);
        drivers.target(PID, 7, Nanos(0));
        drivers.has_shim(PID);
        assert_eq!(state(&drivers), Some(&State::Left));
        drivers.want_known(PID, "it failed", Nanos(5));
        ask(&mut drivers);
        answer(&mut drivers, Outcome::Probed(9), 6);
        assert_eq!(drivers.probed().next(), Some((PID, 7, "it failed")));
    }

    #[test]
    fn a_shim_that_records_ends_the_probes_and_an_answer_that_comes_late_is_nothing() {
        let mut drivers = Drivers::new(false);
        drivers.want(PID, 7, "busy".into(), Nanos(0));
        ask(&mut drivers);
        assert!(!drivers.leave(PID), "it has none yet");
        assert!(answer(&mut drivers, Outcome::Probed(9), 1).is_empty());
        assert_eq!(state(&drivers), Some(&State::Left));
        drivers.want(PID, 7, "busy".into(), Nanos(2));
        ask(&mut drivers);
        answer(&mut drivers, Outcome::Probed(9), 3);
        assert!(drivers.leave(PID));
        assert!(!drivers.leave(PID));
    }
}
