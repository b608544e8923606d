//! The loop that every recording and every live view runs: read the sources, decode, hand on events.
#![forbid(unsafe_code)]

pub mod call_sums;
pub mod captures;
mod driver;
mod endpoints;
mod files;
mod injections;
pub mod machine;
mod objects;
mod owners;
mod pythons;
mod resolver;
pub mod sched_sums;
mod stacks;
pub mod syscalls;

use std::cell::RefCell;
use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gdiag_shim_layout::cupti::activity;
use gdiag_shim_layout::THREAD_NAME;

use crate::analyse::syscalls::Summary;
use crate::collect::bpf::{Bpf, Plan};
use crate::collect::inject::Injected;
use crate::collect::shims::{Refusal, Shim, ShimFacts, Shims};
use crate::collect::stacks::Costs;
use crate::collect::syscalls::Syscalls;
use crate::collect::{clock, process};
use crate::decode::gpu::{self, GpuDecoder};
use crate::decode::sched::Batch;
use crate::event::{Define, Event, NameId, Pid, Process, ShimState, Tid};
use crate::fxhash::FxHashSet;
use crate::intern::Names;
use crate::model::api;
use crate::units::{Count, Nanos};

use call_sums::CallSums;
use driver::Drivers;
use injections::{Injections, Outcome};
use resolver::{News, Resolver};
use stacks::UserStacks;

/// How long between two steps of a [`Session`].
const STEP: Nanos = Nanos::from_millis(100);

/// While stacks wait for what is being read about a program that just began.
const SHORT_STEP: Nanos = Nanos::from_millis(10);

/// How long the shims may take to hand over their last records.
const SHIM_PATIENCE: Duration = Duration::from_secs(2);

/// Warnings kept at most: the same fault in a thousand processes is one fault.
const WARNINGS: usize = 20;

/// The sources of one machine, running.
#[derive(Debug)]
pub struct Session {
    bpf: Bpf,
    /// Only there, it makes them be recorded.
    syscalls: Option<Syscalls>,
    /// Only there, it makes them be counted.
    call_sums: Option<CallSums>,
    /// What the kernel side sent and nobody took yet.
    batch: Rc<RefCell<Batch>>,
    shims: Shims,
    gpu: GpuDecoder,
    drivers: Drivers,
    names: Names,
    lookup: Resolver,
    injections: Injections,
    /// What was put where, for whoever wants to know.
    injected: Vec<(Pid, Injected)>,
    /// Shims that cannot be used, so that each is told once.
    refused: HashSet<Pid>,
    /// Processes with a shim that ended before it was found, and one of them.
    vanished: Option<(u64, Pid)>,
    /// Threads of the target that have not ended.
    alive: HashSet<Tid>,
    warnings: Vec<String>,
    more_warnings: u64,
    missing: Vec<String>,
    host_only: bool,
    /// Of [`Seen::lost`], system calls of threads that there was no memory for.
    told_unseen: u64,
    pub seen: Seen,
}

/// What has shown up so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub target_threads: u64,
    pub lost: u64,
    pub gpu_operations: u64,
    /// Calls that probes on a driver measured.
    pub probed_calls: u64,
    /// Calls that a shim recorded and that start kernels.
    pub launches: u64,
    pub shims: u64,
    /// A shim could not be used, and a warning says why.
    pub shim_refused: bool,
    /// CUPTI does not record what happens to managed memory, though it was asked to.
    pub unified_memory_refused: bool,
    /// The shims' device is the simulator of gdiag's tests.
    pub simulated: bool,
}

impl Seen {
    /// What a shim says of all its records. It may say anything.
    fn add_facts(&mut self, shim: &Shim) {
        let facts = shim.facts();
        let (ring, cupti) = facts.losses();
        self.lost = self.lost.saturating_add(ring).saturating_add(cupti);
        self.unified_memory_refused |= facts.refuses(activity::UNIFIED_MEMORY_COUNTER);
    }
}

impl Session {
    /// Starts the kernel side. `sink` gets what can be said before anything happens.
    pub fn start(plan: &Plan, sink: &mut dyn FnMut(Event)) -> Result<Session> {
        let mut lookup = Resolver::default();
        lookup.load();
        let batch = Rc::new(RefCell::new(Batch::default()));
        let sent = Rc::clone(&batch);
        let bpf = Bpf::start(plan, move |bytes| sent.borrow_mut().add(bytes))?;
        let mut missing = bpf.missing.clone();
        if let Some(stacks) = plan.stacks {
            match UserStacks::start(stacks, !plan.all, &bpf) {
                Ok(user) => lookup.user = user,
                Err(e) => missing.push(format!("user stacks ({e:#})")),
            }
            missing.extend_from_slice(lookup.user.missing());
        }
        let syscalls = match &plan.syscalls {
            Some(calls) => match Syscalls::start(calls, &bpf) {
                Ok(syscalls) => Some(syscalls),
                Err(e) => {
                    missing.push(format!("system calls ({e:#})"));
                    None
                }
            },
            None => None,
        };
        let mut session = Session {
            bpf,
            syscalls,
            call_sums: None,
            batch,
            shims: Shims::start().context("cannot start a thread")?,
            gpu: GpuDecoder::default(),
            drivers: Drivers::new(!plan.inject),
            names: Names::default(),
            lookup,
            injections: Injections::new(plan.inject),
            injected: Vec::new(),
            refused: HashSet::new(),
            vanished: None,
            alive: HashSet::new(),
            warnings: Vec::new(),
            more_warnings: 0,
            missing,
            host_only: false,
            told_unseen: 0,
            seen: Seen::default(),
        };
        session.clock(sink);
        for (irq, handlers) in process::interrupts() {
            let name = session.names.name(&handlers, sink);
            sink(Event::Define(Define::Irq { irq, name }));
        }
        Ok(session)
    }

    /// Leaves the GPU's side alone: no shim is asked to record, and no driver gets probes.
    pub fn host_only(mut self) -> Session {
        self.drivers = Drivers::new(false);
        self.host_only = true;
        self
    }

    /// Makes more processes targets, with all that they started and will: the next step tells who they are,
    /// and asks their shims. By the pids that gdiag sees; whoever is a target stays one. Returns those that are
    /// left out: gdiag itself, and what is no process, any more or at all.
    pub fn add_targets(&mut self, pids: &[u32]) -> Result<Vec<u32>> {
        let own = std::process::id();
        let (there, left_out): (Vec<u32>, Vec<u32>) = pids
            .iter()
            .partition(|&&pid| pid != own && process::is_process(pid));
        if !there.is_empty() {
            self.bpf.add_targets(&there)?;
        }
        Ok(left_out)
    }

    /// Becomes readable when there is much to read, or something urgent.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.bpf.epoll_fd()
    }

    /// How long to wait before the next step.
    pub fn pause(&self) -> Nanos {
        if self.lookup.user.is_preparing() {
            SHORT_STEP
        } else {
            STEP
        }
    }

    /// Whether anything of the target still runs, as far as has been read.
    pub fn targets_alive(&self) -> bool {
        !self.alive.is_empty()
    }

    pub fn records_syscalls(&self) -> bool {
        self.syscalls.is_some()
    }

    /// From now on the system calls of the targets are added up in the kernel, or not any more: then their
    /// programs are gone, and no call of the machine is slower.
    pub fn count_calls(&mut self, on: bool) -> Result<()> {
        self.call_sums = match (self.call_sums.take(), on) {
            (None, true) => Some(CallSums::start(&self.bpf)?),
            (Some(sums), true) => Some(sums),
            (_, false) => None,
        };
        Ok(())
    }

    /// What was added up since the last call of this; `None` while it is not.
    pub fn call_sums(&mut self) -> Option<Summary> {
        self.call_sums.as_mut().map(|sums| sums.take(&self.bpf))
    }

    /// What this kernel cannot tell.
    pub fn missing_probes(&self) -> &[String] {
        &self.missing
    }

    /// What a person should know about this recording.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        if let Some((count, pid)) = self.vanished {
            let who = match count {
                1 => format!("process {pid}"),
                _ => format!("{count} processes with CUDA, {pid} among them,"),
            };
            warnings.push(format!(
                "{who} ended before gdiag could read their GPU records: they are missing"
            ));
        }
        if self.lookup.calls_left_out > 0 {
            warnings.push(format!(
                "{} system calls were left out: their begin was not seen, or they are of 32-bit programs",
                Count(self.lookup.calls_left_out)
            ));
        }
        let unseen = self.unseen_calls();
        if unseen > 0 {
            warnings.push(format!(
                "{} system calls were not seen: no memory for their threads",
                Count(unseen)
            ));
        }
        if self.more_warnings > 0 {
            let more = self.more_warnings;
            warnings.push(format!("{more} more of the like"));
        }
        warnings
    }

    /// Forgets all ids of names, frames and stacks: what comes again is defined again, under a new one.
    /// The old ones are never used any more, but for the names that are the result.
    pub fn forget_ids(&mut self) -> FxHashSet<NameId> {
        self.names.forget();
        self.lookup.forget_ids();
        self.gpu.names().collect()
    }

    fn unseen_calls(&self) -> u64 {
        let syscalls = self.syscalls.as_ref();
        syscalls.map_or(0, |syscalls| syscalls.shortage().unseen)
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < WARNINGS {
            self.warnings.push(warning);
        } else {
            self.more_warnings += 1;
        }
    }

    /// What the user stacks cost so far; zero when none are taken.
    pub fn stack_costs(&self) -> Costs {
        self.lookup.user.costs().unwrap_or_default()
    }

    /// Why a shim of the target did not record.
    pub fn refused(&self) -> Option<&(ShimState, String)> {
        self.gpu.refused.as_ref()
    }

    /// Reads everything that happened before now. Call it at least every 100 ms.
    pub fn step(&mut self, sink: &mut dyn FnMut(Event)) -> Result<()> {
        // The kernel side first: it says who the threads are that the shims' records name.
        self.kernel_events(sink)?;
        self.inject();
        self.clock(sink);
        self.drain_shims(sink);
        let now = clock::monotonic();
        self.drivers.step(&self.bpf, now, &mut self.names, sink);
        for failure in std::mem::take(&mut self.drivers.failures) {
            self.warn(failure);
        }
        self.lookup.user.names(&mut self.names, sink);
        self.kernel_losses(sink)
    }

    /// Measures the calls of a process by probes on its driver, because CUPTI cannot record it: `reason`
    /// says why, to people. Until a shim of it records.
    pub fn probe_driver(&mut self, pid: Pid, proc_pid: u32, reason: String) {
        let now = clock::monotonic();
        self.drivers.want(pid, proc_pid, reason, now);
    }

    /// Processes whose calls were measured by probes: pid, pid in /proc, and why.
    pub fn probed(&self) -> impl Iterator<Item = (Pid, u32, &str)> {
        self.drivers.probed()
    }

    /// Stops the shims and reads what is left.
    pub fn finish(&mut self, sink: &mut dyn FnMut(Event)) -> Result<()> {
        self.call_sums = None;
        self.lookup.user.stop();
        let now = clock::monotonic();
        self.drivers.finish(now, &mut self.names, sink);
        // Also finds the shims that came last.
        self.kernel_events(sink)?;
        self.shims.release();
        let deadline = Instant::now() + SHIM_PATIENCE;
        let late = loop {
            let busy = self.shims.busy();
            self.clock(sink);
            self.drain_shims(sink);
            if busy.is_empty() || Instant::now() >= deadline {
                break busy;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        for pid in late {
            self.warn(format!(
                "process {pid} did not hand over its last GPU records in time"
            ));
        }
        for shim in self.shims.iter_mut() {
            self.seen.add_facts(shim);
        }
        self.kernel_events(sink)?;
        self.kernel_losses(sink)?;
        let mut warnings = Vec::new();
        self.lookup
            .user
            .finish(&mut self.names, sink, &mut |warning| warnings.push(warning));
        for warning in warnings {
            self.warn(warning);
        }
        let unfollowed = self.bpf.unfollowed();
        if unfollowed > 0 {
            self.warn(format!(
                "{unfollowed} wakeups by threads that are not followed: too many wake the target, so some waits end at who woke"
            ));
        }
        let malformed = self.gpu.malformed + self.batch.borrow().malformed;
        if malformed > 0 {
            self.warn(format!(
                "{malformed} records could not be understood and were left out"
            ));
        }
        Ok(())
    }

    fn clock(&mut self, sink: &mut dyn FnMut(Event)) {
        let pair = clock::pair();
        sink(Event::Clock(pair));
        if let Some(step) = self.gpu.clock(pair) {
            self.warn(format!(
                "the wall clock was stepped while recording (at {} s): GPU times around it are unsure",
                step.to.0 / 1_000_000_000
            ));
            sink(Event::Loss(step));
        }
    }

    fn kernel_losses(&mut self, sink: &mut dyn FnMut(Event)) -> Result<()> {
        for loss in self.bpf.losses()? {
            self.seen.lost = self.seen.lost.saturating_add(loss.count);
            sink(Event::Loss(loss));
        }
        let unseen = self.unseen_calls();
        let more = unseen.saturating_sub(self.told_unseen);
        self.seen.lost = self.seen.lost.saturating_add(more);
        self.told_unseen = unseen;
        Ok(())
    }

    fn kernel_events(&mut self, sink: &mut dyn FnMut(Event)) -> Result<()> {
        let limit = self.bpf.read()?;
        self.lookup.user.update()?;
        let (gpu, seen, alive) = (&mut self.gpu, &mut self.seen, &mut self.alive);
        self.batch.borrow_mut().take_until(
            limit,
            &mut self.names,
            &mut self.lookup,
            &mut |event| {
                match &event {
                    Event::Task(task) if task.target => {
                        seen.target_threads += 1;
                        alive.insert(task.tid);
                        gpu.task(task);
                    }
                    Event::Exit(exit) => {
                        alive.remove(&exit.tid);
                        gpu.exit(exit.pid, exit.tid);
                    }
                    Event::ApiCall(_) => seen.probed_calls += 1,
                    _ => {}
                }
                sink(event);
            },
        );
        let now = clock::monotonic();
        for news in std::mem::take(&mut self.lookup.news) {
            match news {
                News::Shim { .. } | News::Cuda { .. } if self.host_only => {}
                // Before the description: a process with a shim may be short-lived.
                News::Shim { pid, proc_pid } => self.attach_shim(pid, proc_pid, sink),
                News::Target { pid, proc_pid } => self.drivers.target(pid, proc_pid, now),
                News::Cuda { pid, proc_pid } => {
                    if self.shims.of(pid).is_none() {
                        self.injections.uses_cuda(pid, proc_pid, limit);
                    }
                }
                News::Exec { pid, proc_pid, ts } => {
                    self.new_program(pid, sink);
                    self.drivers.target(pid, proc_pid, ts);
                }
                News::Ended { pid } => {
                    self.refused.remove(&pid);
                    self.injections.forget(pid);
                    self.drivers.ended(pid);
                }
            }
        }
        for (pid, proc_pid) in std::mem::take(&mut self.lookup.described) {
            let what = process::describe(proc_pid);
            let event = Event::Process(Process {
                ts: limit,
                pid,
                cmdline: self.names.name(&what.cmdline, sink),
                exe: self.names.name(&what.exe, sink),
                cgroup: self.names.name(&what.cgroup, sink),
            });
            sink(event);
        }
        Ok(())
    }

    /// Puts shims where they are missing, and says what has come of it.
    fn inject(&mut self) {
        let now = clock::monotonic();
        for (pid, proc_pid, outcome) in self.injections.step(now) {
            match outcome {
                Outcome::Done(injected) => self.injected.push((pid, injected)),
                Outcome::Failed(why) => {
                    self.seen.shim_refused = true;
                    let why = format!("gdiag's library cannot be put into it: {why}");
                    self.drivers.want(pid, proc_pid, why, now);
                }
            }
        }
    }

    /// Processes that use CUDA and that the library could not be put into before the end, by their pids
    /// in /proc, with why; others have been told of already.
    pub fn not_injected(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        let untold = self.injections.untold();
        untold.map(|(pid, proc_pid, why)| {
            let text = format!("process {pid} uses CUDA, but gdiag's library could not be put into it: {why}: host side only");
            (proc_pid, text)
        })
    }

    /// Those of [`Session::not_injected`], and what hindered.
    pub fn hindered(&self) -> impl Iterator<Item = (Pid, String)> + '_ {
        let untold = self.injections.untold();
        untold.map(|(pid, _, why)| (pid, why.to_string()))
    }

    /// What was put into which process since the last call.
    pub fn injected(&mut self) -> Vec<(Pid, Injected)> {
        std::mem::take(&mut self.injected)
    }

    fn attach_shim(&mut self, pid: Pid, proc_pid: u32, sink: &mut dyn FnMut(Event)) {
        if self.refused.contains(&pid) {
            return;
        }
        match self.shims.of(pid).map(|shim| shim.has_ended()) {
            Some(false) => return,
            // The pid is another's already.
            Some(true) => self.last_records(pid, sink),
            None => {}
        }
        let reason = match self.shims.attach(pid, proc_pid) {
            Ok(shim) => {
                self.seen.shims += 1;
                self.drivers.has_shim(pid);
                self.seen.simulated |= shim.facts().read().simulated;
                return;
            }
            Err(Refusal::Gone) => {
                let count = self.vanished.map_or(0, |(count, _)| count);
                self.vanished = Some((count + 1, pid));
                return;
            }
            Err(Refusal::NoShim) => {
                format!("process {pid} has a thread named {THREAD_NAME}, but no shim")
            }
            Err(Refusal::Taken(other)) => {
                format!("another gdiag (pid {other}) records the GPU of process {pid}; stop that one first")
            }
            Err(Refusal::Unusable(why)) => {
                format!("the shim of process {pid} cannot be used: {why}")
            }
        };
        self.refused.insert(pid);
        self.seen.shim_refused = true;
        self.shim_is(pid, ShimState::Failed, reason, sink);
    }

    /// The process became another program: the shim it had, if any, is gone with its memory.
    fn new_program(&mut self, pid: Pid, sink: &mut dyn FnMut(Event)) {
        self.refused.remove(&pid);
        self.injections.forget(pid);
        if self.shims.of(pid).is_some() {
            self.drain_shim(pid, sink);
            self.forget(pid);
        }
        self.gpu.exec(pid);
    }

    fn shim_is(&mut self, pid: Pid, state: ShimState, reason: String, sink: &mut dyn FnMut(Event)) {
        let facts = ShimFacts {
            reason,
            ..ShimFacts::default()
        };
        let now = clock::monotonic();
        self.drivers.want_known(pid, &facts.reason, now);
        let event = gpu::shim_event(now, pid, state, &facts, &mut self.names, sink);
        sink(event);
        self.warn(facts.reason);
    }

    /// Where the shim does not record, probes tell the host's side.
    fn shim_said(&mut self, pid: Pid, state: ShimState, reason: &str, sink: &mut dyn FnMut(Event)) {
        let now = clock::monotonic();
        match state {
            ShimState::Busy | ShimState::Failed => self.drivers.want_known(pid, reason, now),
            ShimState::Active => {
                if self.drivers.leave(pid) {
                    sink(driver::taken_out(now, pid));
                }
            }
            ShimState::Dormant | ShimState::Paused => {}
        }
    }

    fn drain_shims(&mut self, sink: &mut dyn FnMut(Event)) {
        // Looked at before the drain, so that a process that is gone by then is drained whole.
        let shims: Vec<_> = self
            .shims
            .iter_mut()
            .map(|s| (s.pid, s.has_ended()))
            .collect();
        for (pid, ended) in shims {
            if ended {
                self.last_records(pid, sink);
            } else {
                self.drain_shim(pid, sink);
            }
        }
    }

    /// Of a process that has ended.
    fn last_records(&mut self, pid: Pid, sink: &mut dyn FnMut(Event)) {
        self.drain_shim(pid, sink);
        self.forget(pid);
        self.gpu.forget(pid);
    }

    /// Gives its shim up, and keeps what it says that it lost.
    fn forget(&mut self, pid: Pid) {
        if let Some(shim) = self.shims.of(pid) {
            self.seen.add_facts(shim);
        }
        self.shims.forget(pid);
    }

    fn drain_shim(&mut self, pid: Pid, sink: &mut dyn FnMut(Event)) {
        let Some(shim) = self.shims.of(pid) else {
            return;
        };
        let facts = shim.facts();
        let (gpu, names, seen) = (&mut self.gpu, &mut self.names, &mut self.seen);
        let mut said = Vec::new();
        let reason = if shim.is_ours() {
            let result = shim.drain(|kind, bytes| {
                gpu.record(pid, kind, bytes, || facts.read(), names, &mut |event| {
                    match &event {
                        Event::GpuOp(_) | Event::GpuInvalid(_) => seen.gpu_operations += 1,
                        Event::ApiCall(call) if api::starts_kernels(api::class(call.api)) => {
                            seen.launches += 1;
                        }
                        Event::Shim(shim) => {
                            seen.simulated |= shim.simulated;
                            said.push(shim.state);
                        }
                        _ => {}
                    }
                    sink(event);
                });
            });
            if let Some(&state) = said.last() {
                self.shim_said(pid, state, &facts.read().reason, sink);
            }
            match result {
                Ok(_) => return,
                Err(corrupt) => format!("process {pid} broke the memory it shares with gdiag ({corrupt}): its GPU records end here"),
            }
        } else {
            format!(
                "another gdiag has taken over the GPU of process {pid}: its GPU records end here"
            )
        };
        self.refused.insert(pid);
        self.forget(pid);
        self.shim_is(pid, ShimState::Failed, reason, sink);
    }
}
