//! Nobody was named: whoever uses CUDA is looked at, and while there is none the machine is.

use std::thread::JoinHandle;

use anyhow::{anyhow, Context as _, Result};

use crate::analyse::live::{Slice, SLICE};
use crate::collect::cuda_processes::CudaProcesses;
use crate::pipeline::machine::{Machine, Plan};
use crate::pipeline::Session;
use crate::units::Nanos;

/// How often it is looked for new ones.
const LOOK: Nanos = Nanos::from_secs(1);

/// After the last one has ended, before the machine is looked at: the next one may be about to begin.
const LINGER: Nanos = Nanos::from_secs(5);

/// After a failure, before the machine is tried again: that costs programs that are loaded.
const PAUSE: Nanos = Nanos::from_secs(10);

#[derive(Debug)]
pub(super) struct Lookout {
    processes: CudaProcesses,
    next_look: Nanos,
    /// Processes that came and are no targets yet.
    came: Vec<u32>,
    /// Since when there is nobody.
    alone: Option<Nanos>,
    machine: State,
    counts_calls: bool,
    /// When the next step of the machine is due.
    next_step: Nanos,
    /// Not before this is the machine looked at.
    next_try: Nanos,
    libbpf_messages: bool,
    /// Why no targets are found, and why the machine is not looked at.
    no_targets: Option<String>,
    no_machine: Option<String>,
}

/// Whether the machine is looked at.
#[derive(Debug)]
enum State {
    Off,
    /// Programs are loaded by another thread: meanwhile the rings are read.
    Starts(JoinHandle<Result<Machine>>),
    On(Box<Machine>),
}

impl Lookout {
    pub(super) fn start(libbpf_messages: bool) -> Result<Lookout> {
        Ok(Lookout {
            processes: CudaProcesses::start()?,
            next_look: Nanos::ZERO,
            came: Vec::new(),
            // At the beginning there is nothing to wait for.
            alone: Some(Nanos::ZERO),
            machine: State::Off,
            counts_calls: false,
            next_step: Nanos::ZERO,
            next_try: Nanos::ZERO,
            libbpf_messages,
            no_targets: None,
            no_machine: None,
        })
    }

    /// Those that use CUDA now.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.all().map(|process| process.pid).collect()
    }

    /// There may be more of them than could be found.
    pub(super) fn is_full(&self) -> bool {
        self.processes.is_full()
    }

    pub(super) fn watches_machine(&self) -> bool {
        matches!(self.machine, State::On(_))
    }

    /// What cannot be done, as of the last try.
    pub(super) fn failures(&self) -> impl Iterator<Item = &String> {
        self.no_targets.iter().chain(&self.no_machine)
    }

    pub(super) fn count_calls(&mut self, on: bool) -> Result<()> {
        self.counts_calls = on;
        match &mut self.machine {
            State::On(machine) => machine.count_calls(on),
            State::Off | State::Starts(_) => Ok(()),
        }
    }

    /// Between two looks at the sources: new ones become targets of `session`, and what the machine did is the result.
    pub(super) fn turn(&mut self, session: &mut Session, now: Nanos) -> Option<Slice> {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            let looked = self.look(session, now);
            let failed = |e| format!("cannot look at those that use CUDA: {e:#}");
            self.no_targets = looked.err().map(failed);
        }
        let watched = self.watch(now);
        watched.unwrap_or_else(|e| {
            self.machine = State::Off;
            self.next_try = now + PAUSE;
            self.no_machine = Some(format!("cannot look at the machine: {e:#}"));
            None
        })
    }

    /// What the machine did since the last step, when nothing more comes.
    pub(super) fn end(&mut self) -> Option<Slice> {
        match std::mem::replace(&mut self.machine, State::Off) {
            State::On(mut machine) => step(&mut machine).ok(),
            State::Off | State::Starts(_) => None,
        }
    }

    fn look(&mut self, session: &mut Session, now: Nanos) -> Result<()> {
        let came = self.processes.look()?.came;
        self.came.extend(came.iter().map(|process| process.pid));
        self.alone = match self.processes.all().len() {
            0 => self.alone.or(Some(now)),
            _ => None,
        };
        // Of those that have ended by now there is nothing to see. After a failure they are tried again.
        session.add_targets(&self.came)?;
        self.came.clear();
        Ok(())
    }

    fn watch(&mut self, now: Nanos) -> Result<Option<Slice>> {
        match std::mem::replace(&mut self.machine, State::Off) {
            State::Off => {
                let is_alone = self.alone.is_some_and(|since| now >= since + LINGER);
                if is_alone && now >= self.next_try {
                    self.machine = State::Starts(self.load()?);
                }
                Ok(None)
            }
            // Whoever loads it lets go of it.
            State::Starts(_) if self.alone.is_none() => Ok(None),
            State::Starts(loading) if !loading.is_finished() => {
                self.machine = State::Starts(loading);
                Ok(None)
            }
            State::Starts(loading) => {
                let loaded = loading.join();
                let mut machine = loaded.map_err(|_| anyhow!("a thread has failed"))??;
                machine.count_calls(self.counts_calls)?;
                self.no_machine = None;
                self.machine = State::On(Box::new(machine));
                self.next_step = now + SLICE;
                Ok(None)
            }
            State::On(mut machine) if self.alone.is_none() => step(&mut machine).map(Some),
            State::On(mut machine) => {
                machine.keep_up()?;
                let mut slice = None;
                if now >= self.next_step {
                    // A late one is longer, and the next not shorter for it.
                    self.next_step = now + SLICE;
                    slice = Some(step(&mut machine)?);
                }
                self.machine = State::On(machine);
                Ok(slice)
            }
        }
    }

    fn load(&self) -> Result<JoinHandle<Result<Machine>>> {
        let plan = Plan {
            all: true,
            libbpf_messages: self.libbpf_messages,
            ..Plan::default()
        };
        let counts_calls = self.counts_calls;
        let thread = std::thread::Builder::new().name("gdiag-load".to_string());
        let load = move || {
            let mut machine = Machine::start(plan)?;
            machine.count_calls(counts_calls)?;
            Ok(machine)
        };
        thread.spawn(load).context("cannot start a thread")
    }
}

fn step(machine: &mut Machine) -> Result<Slice> {
    let step = machine.step()?;
    Ok(Slice::of_machine(step.sched, step.calls))
}
