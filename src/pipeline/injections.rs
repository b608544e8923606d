//! Processes of the target that use CUDA and carry no shim: it is put into them.
//!
//! The sign is a thread of the driver's that every process has from its first use of CUDA on, and
//! none before: to load CUPTI earlier could make a program that forks first lose its GPU.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread;
use std::time::Duration;

use crate::collect::inject::{self, Failure, Injected};
use crate::collect::{process, shim_file, shims};
use crate::event::Pid;
use crate::units::Nanos;

/// A process that was told to load the shim by its environment has this long for it.
const CARRIED_WITHIN: Duration = Duration::from_secs(1);

/// What hinders now may not hinder later.
const AGAIN_AFTER: Nanos = Nanos::from_secs(1);

/// So often it is tried.
const TRIES: u32 = 5;

/// Injections at once; the others come after them.
const AT_ONCE: usize = 8;

/// What came of a process.
#[derive(Debug)]
pub(super) enum Outcome {
    Done(Injected),
    /// Not possible in this process, or not any more.
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// From then on.
    Due(Nanos),
    /// By a thread of its own.
    Running,
    Over,
}

#[derive(Debug)]
struct Process {
    /// Of all that were ever told of: the pid may be another's, or its program another one, before
    /// the result is there.
    number: u64,
    proc_pid: u32,
    state: State,
    tries: u32,
    /// What hindered last.
    last: Option<Failure>,
}

/// What a thread says at its end.
#[derive(Debug)]
struct Answer {
    pid: Pid,
    /// Of its [`Process`].
    number: u64,
    /// `None`: it has a shim already.
    result: Option<Result<Injected, Failure>>,
}

#[derive(Debug)]
pub(super) struct Injections {
    allowed: bool,
    processes: HashMap<Pid, Process>,
    /// So many processes were told of.
    told: u64,
    sender: Sender<Answer>,
    receiver: Receiver<Answer>,
}

impl Injections {
    pub fn new(allowed: bool) -> Injections {
        let (sender, receiver) = channel();
        Injections {
            allowed,
            processes: HashMap::new(),
            told: 0,
            sender,
            receiver,
        }
    }

    /// A process uses CUDA.
    pub fn uses_cuda(&mut self, pid: Pid, proc_pid: u32, now: Nanos) {
        if self.allowed {
            self.told += 1;
            self.processes.entry(pid).or_insert(Process {
                number: self.told,
                proc_pid,
                state: State::Due(now),
                tries: 0,
                last: None,
            });
        }
    }

    /// It has ended, or become another program.
    pub fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Begins what is due, and says what has come of the others.
    pub fn step(&mut self, now: Nanos) -> Vec<(Pid, u32, Outcome)> {
        let mut outcomes = Vec::new();
        while let Ok(answer) = self.receiver.try_recv() {
            let Answer {
                pid,
                number,
                result,
            } = answer;
            let process = self.processes.get_mut(&pid);
            let Some(process) = process.filter(|process| process.number == number) else {
                continue;
            };
            process.state = State::Over;
            let mut tell = |outcome| outcomes.push((pid, process.proc_pid, outcome));
            match result {
                None | Some(Err(Failure::Gone)) => {}
                Some(Ok(injected)) => tell(Outcome::Done(injected)),
                Some(Err(failure)) if failure.may_pass() && process.tries < TRIES => {
                    process.state = State::Due(now + AGAIN_AFTER);
                    process.last = Some(failure);
                }
                Some(Err(failure)) => tell(Outcome::Failed(failure)),
            }
        }
        let running = |p: &&Process| p.state == State::Running;
        let room = AT_ONCE.saturating_sub(self.processes.values().filter(running).count());
        let due = |p: &Process| matches!(p.state, State::Due(at) if now >= at);
        let next = self.processes.iter_mut().filter(|(_, p)| due(p));
        for (&pid, process) in next.take(room) {
            process.tries += 1;
            process.state = match start(pid, process, self.sender.clone()) {
                Ok(()) => State::Running,
                Err(_) => State::Due(now + AGAIN_AFTER),
            };
        }
        outcomes
    }

    /// Where it was tried in vain and would have been again: pid, pid in /proc, and what hindered.
    pub fn untold(&self) -> impl Iterator<Item = (Pid, u32, &Failure)> {
        let hindered = self
            .processes
            .iter()
            .filter(|(_, p)| p.state != State::Over);
        hindered.filter_map(|(&pid, p)| Some((pid, p.proc_pid, p.last.as_ref()?)))
    }
}

/// A tracer's own thread: with its end, the target is free of it whatever happened.
fn start(pid: Pid, process: &Process, sender: Sender<Answer>) -> io::Result<()> {
    let (number, proc_pid) = (process.number, process.proc_pid);
    thread::Builder::new()
        .name("gdiag-inject".to_string())
        .spawn(move || {
            if process::environment_has(proc_pid, shim_file::INJECTION, shim_file::FILE_NAME) {
                thread::sleep(CARRIED_WITHIN);
            }
            let alone = inject::alone(proc_pid);
            let result = shims::is_missing(proc_pid).then(|| {
                let _alone = alone?;
                if inject::is_disabled(proc_pid) {
                    return Err(Failure::Disabled);
                }
                let injected = inject::inject(proc_pid)?;
                // Its entry has returned, so it is there by now, or never.
                if shims::is_missing(proc_pid) {
                    let why = "the library was loaded, and could not set up its shared memory";
                    return Err(Failure::NotLoaded(why.to_string()));
                }
                Ok(injected)
            });
            // Nobody may be left to hear it.
            let _ = sender.send(Answer {
                pid,
                number,
                result,
            });
        })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: Pid = Pid(7);

    fn answer(injections: &mut Injections, number: u64, failure: Failure) -> Vec<String> {
        let process = injections.processes.get_mut(&PID).unwrap();
        process.state = State::Running;
        let result = Some(Err(failure));
        let answer = Answer {
            pid: PID,
            number,
            result,
        };
        injections.sender.send(answer).unwrap();
        let outcomes = injections.step(Nanos::ZERO).into_iter();
        outcomes
            .map(|(_, _, outcome)| format!("{outcome:?}"))
            .collect()
    }

    fn state(injections: &Injections) -> State {
        injections.processes[&PID].state
    }

    #[test]
    fn what_came_of_the_program_before_says_nothing_of_this_one() {
        let mut injections = Injections::new(true);
        injections.uses_cuda(PID, 7, Nanos::ZERO);
        injections.forget(PID);
        injections.uses_cuda(PID, 7, Nanos::ZERO);
        assert!(answer(&mut injections, 1, Failure::Late).is_empty());
        assert_eq!(state(&injections), State::Running);
        assert_eq!(answer(&mut injections, 2, Failure::Late), ["Failed(Late)"]);
        assert_eq!(state(&injections), State::Over);
    }

    #[test]
    fn what_may_pass_is_tried_again_and_told_of_at_the_end_if_that_comes_first() {
        let mut injections = Injections::new(true);
        injections.uses_cuda(PID, 7, Nanos::ZERO);
        assert_eq!(injections.untold().count(), 0);
        assert!(answer(&mut injections, 1, Failure::Stopped).is_empty());
        assert_eq!(state(&injections), State::Due(AGAIN_AFTER));
        assert_eq!(injections.untold().count(), 1);
        injections.processes.get_mut(&PID).unwrap().tries = TRIES;
        assert_eq!(
            answer(&mut injections, 1, Failure::Stopped),
            ["Failed(Stopped)"]
        );
        assert_eq!(injections.untold().count(), 0);
    }
}
