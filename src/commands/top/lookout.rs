//! Nobody was named: whoever uses CUDA is looked at, and while there is none the machine is.

use anyhow::Result;

use crate::analyse::live::{Slice, SLICE};
use crate::collect::clock;
use crate::collect::cuda_processes::CudaProcesses;
use crate::pipeline::machine::{Machine, Plan};
use crate::pipeline::Session;
use crate::units::Nanos;

/// How often it is looked for new ones.
const LOOK: Nanos = Nanos::from_secs(1);

/// After the last one has ended, before the machine is looked at: the next one may be about to begin.
const LINGER: Nanos = Nanos::from_secs(5);

#[derive(Debug)]
pub(super) struct Lookout {
    processes: CudaProcesses,
    next_look: Nanos,
    /// Since when there is nobody.
    alone: Option<Nanos>,
    machine: Option<Machine>,
    counts_calls: bool,
    /// When the next step of the machine is due.
    next_step: Nanos,
    libbpf_messages: bool,
}

impl Lookout {
    pub(super) fn start(libbpf_messages: bool) -> Result<Lookout> {
        Ok(Lookout {
            processes: CudaProcesses::start()?,
            next_look: Nanos::ZERO,
            // At the beginning there is nothing to wait for.
            alone: Some(Nanos::ZERO),
            machine: None,
            counts_calls: false,
            next_step: Nanos::ZERO,
            libbpf_messages,
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
        self.machine.is_some()
    }

    pub(super) fn count_calls(&mut self, on: bool) -> Result<()> {
        self.counts_calls = on;
        match &mut self.machine {
            Some(machine) => machine.count_calls(on),
            None => Ok(()),
        }
    }

    /// Between two looks at the sources: new ones become targets of `session`, and what the machine did is the result.
    pub(super) fn turn(&mut self, session: &mut Session, now: Nanos) -> Result<Option<Slice>> {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            let came = self.processes.look()?.came;
            let came: Vec<u32> = came.iter().map(|process| process.pid).collect();
            // Of those that have ended by now there is nothing to see.
            session.add_targets(&came)?;
            self.alone = match self.processes.all().len() {
                0 => self.alone.or(Some(now)),
                _ => None,
            };
        }
        match (self.alone, &mut self.machine) {
            (Some(since), None) if now >= since + LINGER => {
                let mut machine = Machine::start(Plan {
                    all: true,
                    libbpf_messages: self.libbpf_messages,
                    ..Plan::default()
                })?;
                machine.count_calls(self.counts_calls)?;
                self.machine = Some(machine);
                self.next_step = clock::monotonic() + SLICE;
                Ok(None)
            }
            (_, None) => Ok(None),
            (None, Some(machine)) => {
                let step = machine.step();
                self.machine = None;
                step.map(|step| Some(Slice::of_machine(step.sched, step.calls)))
            }
            (Some(_), Some(machine)) => {
                machine.keep_up()?;
                if now < self.next_step {
                    return Ok(None);
                }
                // A late one is longer, and the next not shorter for it.
                self.next_step = now + SLICE;
                let step = machine.step()?;
                Ok(Some(Slice::of_machine(step.sched, step.calls)))
            }
        }
    }
}
