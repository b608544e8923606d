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

use gdiag_shim_layout::ENV_DISABLE;

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
    proc_pid: u32,
    state: State,
    tries: u32,
    /// What hindered last.
    last: Option<Failure>,
}

#[derive(Debug)]
pub(super) struct Injections {
    allowed: bool,
    processes: HashMap<Pid, Process>,
    sender: Sender<(Pid, Option<Result<Injected, Failure>>)>,
    receiver: Receiver<(Pid, Option<Result<Injected, Failure>>)>,
}

impl Injections {
    pub fn new(allowed: bool) -> Injections {
        let (sender, receiver) = channel();
        Injections {
            allowed,
            processes: HashMap::new(),
            sender,
            receiver,
        }
    }

    /// A process uses CUDA.
    pub fn uses_cuda(&mut self, pid: Pid, proc_pid: u32, now: Nanos) {
        if self.allowed {
            self.processes.entry(pid).or_insert(Process {
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
        while let Ok((pid, result)) = self.receiver.try_recv() {
            let Some(process) = self.processes.get_mut(&pid) else {
                continue;
            };
            process.state = State::Over;
            let mut tell = |outcome| outcomes.push((pid, process.proc_pid, outcome));
            match result {
                // It has a shim already.
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
            process.state = match start(pid, process.proc_pid, self.sender.clone()) {
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
fn start(
    pid: Pid,
    proc_pid: u32,
    sender: Sender<(Pid, Option<Result<Injected, Failure>>)>,
) -> io::Result<()> {
    thread::Builder::new()
        .name("gdiag-inject".to_string())
        .spawn(move || {
            if process::environment_has(proc_pid, shim_file::INJECTION, shim_file::FILE_NAME) {
                thread::sleep(CARRIED_WITHIN);
            }
            let result = shims::is_missing(proc_pid).then(|| {
                if process::environment_has(proc_pid, ENV_DISABLE, "1") {
                    return Err(Failure::Disabled);
                }
                inject::inject(proc_pid)
            });
            // Nobody may be left to hear it.
            let _ = sender.send((pid, result));
        })
        .map(drop)
}
