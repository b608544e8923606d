//! A machine without a GPU: what its threads did, step by step, as sums that the kernel keeps. No event is read, so
//! that it costs little however busy the machine.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result};

use super::call_sums::CallSums;
use super::sched_sums::SchedSums;
use crate::analyse::sched::live::{sleeps, Scope};
use crate::analyse::sched::ThreadSum;
use crate::analyse::{sched, syscalls};
use crate::collect::bpf::{self, Bpf};
use crate::collect::cgroup::Cgroup;
use crate::collect::{process, sched_sum};
use crate::event::Cpu;
use crate::model::syscall::Table;
use crate::units::Nanos;

/// Who is looked at.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Every thread is a target.
    pub all: bool,
    /// Processes that are targets, by the pids that gdiag itself sees, with all that they started and will.
    pub targets: Vec<u32>,
    /// Cgroups whose processes are targets, also those that come into them later.
    pub cgroups: Vec<Cgroup>,
    /// Processes that are no target though they are in one of the cgroups, or started by a target.
    pub strangers: Vec<u32>,
    /// libbpf tells on stderr what it does, and the verifier why it refuses.
    pub libbpf_messages: bool,
}

/// What happened in one step.
#[derive(Clone, Debug)]
pub struct Step {
    pub sched: sched::Summary,
    /// `None`: calls were not counted.
    pub calls: Option<syscalls::Summary>,
}

/// The sums, running.
#[derive(Debug)]
pub struct Machine {
    plan: Plan,
    sched: SchedSums,
    /// Processes that were targets in the last step, where not all are: by now their parents may be others.
    members: Vec<u32>,
    calls: Option<Calls>,
}

/// In the order in which they go.
#[derive(Debug)]
struct Calls {
    sums: CallSums,
    /// Knows the targets.
    bpf: Bpf,
}

impl Machine {
    /// The first step begins now.
    pub fn start(plan: Plan) -> Result<Machine> {
        let uname = nix::sys::utsname::uname().context("uname failed")?;
        let online = process::online_cpus().into_iter();
        let scope = Scope {
            host: uname.nodename().to_string_lossy().into_owned(),
            online: online
                .filter_map(|cpu| Some(Cpu(u16::try_from(cpu).ok()?)))
                .collect(),
            interrupts: process::interrupts().into_iter().collect(),
            ..Scope::default()
        };
        let sums = sched_sum::Plan {
            all: plan.all,
            targets: plan.targets.clone(),
            cgroups: &plan.cgroups,
            strangers: plan.strangers.clone(),
            cpus: None,
            sleeps: &sleeps(Table::own()),
            libbpf_messages: plan.libbpf_messages,
        };
        let mut sched = SchedSums::start(&sums, scope)?;
        sched.go()?;
        Ok(Machine {
            plan,
            sched,
            members: Vec::new(),
            calls: None,
        })
    }

    /// What this kernel cannot tell.
    pub fn missing_probes(&self) -> &[String] {
        self.sched.missing_probes()
    }

    /// When it becomes readable, it is time to [`keep_up`](Self::keep_up). What counts calls has nothing urgent.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.sched.epoll_fd()
    }

    /// Between two steps, when there is a reason, and at least every 100 ms where cgroups are looked at.
    pub fn keep_up(&mut self) -> Result<()> {
        if let Some(calls) = &mut self.calls {
            calls.bpf.read()?;
        }
        self.sched.keep_up()
    }

    /// What happened since the step before.
    pub fn step(&mut self) -> Result<Step> {
        let sched = self.sched.step()?;
        if !self.plan.all {
            let first = |t: &&ThreadSum| t.target && t.who.tid.0 == t.who.pid.0;
            let threads = sched.threads.iter().filter(first);
            self.members = threads.filter_map(|t| Some(t.here?.0)).collect();
        }
        let mut calls = None;
        if let Some(Calls { sums, bpf }) = &mut self.calls {
            // Who comes and goes is known already; what the rings hold must not fill them.
            bpf.read()?;
            let part = calls.insert(sums.take(bpf));
            name(part, &sched);
        }
        Ok(Step { sched, calls })
    }

    /// From now on system calls are added up, or not any more: then their programs are gone, and no call of the
    /// machine is slower.
    pub fn count_calls(&mut self, on: bool) -> Result<()> {
        self.calls = match (self.calls.take(), on) {
            (None, true) => Some(self.start_calls()?),
            (Some(calls), true) => Some(calls),
            (_, false) => None,
        };
        Ok(())
    }

    fn start_calls(&self) -> Result<Calls> {
        let plan = &self.plan;
        let targets = bpf::Plan {
            all: plan.all,
            targets: [&plan.targets[..], &self.members].concat(),
            cgroups: plan.cgroups.clone(),
            strangers: plan.strangers.clone(),
            scheduling: false,
            wait_threshold: Nanos::MAX,
            syscalls: None,
            stacks: None,
            inject: false,
            libbpf_messages: plan.libbpf_messages,
        };
        let bpf = Bpf::start(&targets, |_| {})?;
        let sums = CallSums::start(&bpf)?;
        Ok(Calls { sums, bpf })
    }
}

/// The names of threads, as they are now.
fn name(calls: &mut syscalls::Summary, sched: &sched::Summary) {
    let threads = sched.threads.iter().map(|t| (t.who.tid, &t.who));
    let names: HashMap<_, _> = threads.collect();
    for thread in &mut calls.threads {
        let Some((pid, tid)) = thread.id else {
            continue;
        };
        if let Some(who) = names.get(&tid).filter(|who| who.pid == pid) {
            thread.comm.clone_from(&who.comm);
        }
    }
}
