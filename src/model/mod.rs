//! The timeline: every event of a recording, arranged so that any moment of any thread, CPU
//! and device can be looked up.
//!
//! Events may come in any order: [`Timeline::push`] only files them, [`Timeline::finish`]
//! sorts and joins. Millions of events are held at once, so each is kept as 16 to 40 bytes
//! and names stay numbers.
#![forbid(unsafe_code)]

pub mod api;
pub mod cpu;
pub mod frame_text;
pub mod frames;
pub mod gpu;
pub mod names;
pub mod ops;
pub mod samples;
pub mod search;
pub mod signature;
mod spans;
pub mod syscall;
pub mod thread;
mod tids;

use crate::event::{
    Cpu, Event, Loss, LossSource, NameId, Pid, Probes, Process, Shim, ShimState, Signal, Tid,
};
use crate::store::meta::{Meta, Summary, TargetMode};
use crate::units::Nanos;

pub use crate::fxhash;
use crate::fxhash::FxHashMap;
use cpu::CpuLog;
use frames::CallTraits;
use gpu::GpuLog;
use names::Names;
use samples::SampleMark;
use thread::{Identity, Thread, ThreadIdx, Who};
use tids::TidMap;

/// A time in which the GPU records of some processes are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blind {
    pub from: Nanos,
    pub to: Nanos,
    /// `None`: of all processes.
    pub pid: Option<Pid>,
    pub why: BlindBecause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlindBecause {
    /// The shim's ring was full.
    RingFull,
    /// CUPTI dropped records.
    CuptiDropped,
    ClockStep,
    /// The shim did not collect for a while.
    NotCollecting,
    /// The shim collected and got nothing: CUPTI was another tool's, or a kernel held its records back.
    Silent,
    /// That part of the recording cannot be read.
    Damaged,
}

/// A time in which events of a CPU are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLoss {
    pub from: Nanos,
    pub to: Nanos,
    /// `None`: of all.
    pub cpu: Option<Cpu>,
}

impl CpuLoss {
    pub fn concerns(&self, cpu: Cpu) -> bool {
        self.cpu.is_none_or(|lost| lost == cpu)
    }
}

/// Records lost, by who lost them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    pub bpf: u64,
    pub shim: u64,
    pub cupti: u64,
    pub clock_steps: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Timeline {
    meta: Meta,
    summary: Option<Summary>,
    names: Names,
    threads: Vec<Thread>,
    tids: TidMap,
    cpus: Vec<CpuLog>,
    gpu: GpuLog,
    processes: FxHashMap<Pid, Process>,
    shims: Vec<Shim>,
    probes: Vec<Probes>,
    signals: Vec<Signal>,
    /// Samples of wakers: the thread, and their number in it. By whom they woke, and since when
    /// that one had waited.
    wakers: Vec<(ThreadIdx, u32)>,
    losses: Vec<Loss>,
    blind: Vec<Blind>,
    cpu_losses: Vec<CpuLoss>,
    exits: FxHashMap<Pid, Nanos>,
    clock_error: Option<Nanos>,
    events: u64,
    first: Option<Nanos>,
    last: Nanos,
    syscalls: Option<syscall::Table>,
}

/// When events of the scheduler were lost, in order and apart. `losses` are in order.
fn lost_events(losses: &[Loss]) -> Vec<(Nanos, Nanos)> {
    let mut lost: Vec<(Nanos, Nanos)> = Vec::new();
    for loss in losses {
        match (loss.source, lost.last_mut()) {
            (LossSource::Bpf(_) | LossSource::Damage, Some(last)) if loss.from <= last.1 => {
                last.1 = last.1.max(loss.to);
            }
            (LossSource::Bpf(_) | LossSource::Damage, _) => lost.push((loss.from, loss.to)),
            (LossSource::ShimRing(_) | LossSource::Cupti(_) | LossSource::ClockStep, _) => {}
        }
    }
    lost
}

/// Whether the shim of a process was collecting. `shims` are by process, then time.
fn is_active(shims: &[Shim], pid: Pid, ts: Nanos) -> bool {
    let upto = shims.partition_point(|s| (s.pid, s.ts) <= (pid, ts));
    let last = upto.checked_sub(1).and_then(|i| shims.get(i));
    last.is_some_and(|s| s.pid == pid && s.state == ShimState::Active)
}

/// Ids of CPUs above this come from a broken recording.
const MAX_CPUS: usize = 1 << 14;

impl Timeline {
    pub fn new(meta: &Meta) -> Self {
        Timeline {
            meta: meta.clone(),
            syscalls: Some(syscall::Table::of_machine(&meta.machine)),
            ..Timeline::default()
        }
    }

    /// With names that an earlier part of the same recording defined.
    pub fn with_names(meta: &Meta, names: Names) -> Self {
        Timeline {
            names,
            ..Timeline::new(meta)
        }
    }

    /// For the part that comes next.
    pub fn into_names(self) -> Names {
        self.names
    }

    fn thread_mut(&mut self, tid: Tid) -> (ThreadIdx, &mut Thread) {
        let idx = self.tids.get(tid).unwrap_or_else(|| {
            let idx = ThreadIdx(u32::try_from(self.threads.len()).unwrap_or(u32::MAX));
            self.threads.push(Thread::new(tid));
            self.tids.insert(tid, idx);
            idx
        });
        (idx, &mut self.threads[idx.0 as usize])
    }

    fn cpu_mut(&mut self, cpu: Cpu) -> Option<&mut CpuLog> {
        let i = usize::from(cpu.0);
        if i >= MAX_CPUS {
            return None;
        }
        if self.cpus.len() <= i {
            self.cpus.resize_with(i + 1, CpuLog::default);
        }
        self.cpus.get_mut(i)
    }

    /// Files one event. Any order will do.
    pub fn push(&mut self, event: &Event) {
        self.events += 1;
        if let Some(ts) = event.ts() {
            self.first = Some(self.first.map_or(ts, |f| f.min(ts)));
            self.last = self.last.max(ts);
        }
        match event {
            Event::Define(e) => self.names.define(e),
            Event::Task(e) => {
                if e.tid.0 != 0 {
                    self.thread_mut(e.tid).1.task(e);
                }
            }
            Event::Exit(e) => {
                self.thread_mut(e.tid).1.exit(e.ts);
                if e.pid.0 == e.tid.0 {
                    let at = self.exits.entry(e.pid).or_insert(e.ts);
                    *at = (*at).max(e.ts);
                }
            }
            Event::Switch(e) => {
                // Tid 0 is the idle task of every CPU: a CPU's state, not a thread's.
                if e.prev.0 != 0 {
                    self.thread_mut(e.prev).1.off(e);
                }
                if e.next.0 != 0 {
                    self.thread_mut(e.next).1.on(e.ts, e.cpu);
                }
                if let Some(cpu) = self.cpu_mut(e.cpu) {
                    cpu.switch(e);
                }
            }
            Event::Waking(e) => {
                if e.wakee.0 != 0 {
                    self.thread_mut(e.wakee)
                        .1
                        .wake(e.ts, e.cpu, e.waker, e.context);
                }
            }
            Event::Interrupt(e) => {
                if let Some(cpu) = self.cpu_mut(e.cpu) {
                    cpu.interrupt(e);
                }
            }
            Event::Wait(e) => self.thread_mut(e.tid).1.wait(*e),
            Event::CpuWait(e) => self.thread_mut(e.tid).1.cpu_wait(*e),
            Event::Stall(e) => self.thread_mut(e.tid).1.stall(*e),
            Event::SysCall(e) => {
                self.last = self.last.max(e.end);
                self.thread_mut(e.tid).1.sys_call(*e);
            }
            Event::Signal(e) => self.signals.push(*e),
            Event::Sample(e) => {
                if e.tid.0 != 0 {
                    self.thread_mut(e.tid).1.sample(e);
                }
            }
            Event::GpuOp(e) => {
                self.last = self.last.max(e.end);
                self.gpu.op(e);
            }
            Event::Migration(e) => {
                self.last = self.last.max(e.end);
                self.gpu.migration(*e);
            }
            Event::GpuInvalid(e) => self.gpu.invalid(*e),
            Event::ApiCall(e) => {
                self.last = self.last.max(e.end);
                let (idx, _) = self.thread_mut(e.tid);
                let call = self.gpu.call(e, idx);
                self.threads[idx.0 as usize].call(call);
            }
            Event::Sync(e) => self.gpu.sync(e),
            Event::Overhead(e) => self.gpu.overhead(*e),
            Event::Device(e) => self.gpu.device(e),
            Event::Shim(e) => self.shims.push(*e),
            Event::Probes(e) => self.probes.push(*e),
            Event::Process(e) => {
                self.processes.insert(e.pid, *e);
            }
            Event::Clock(e) => {
                self.clock_error = Some(self.clock_error.map_or(e.error, |w| w.max(e.error)));
            }
            Event::Loss(e) => self.losses.push(*e),
        }
    }

    /// Sorts and joins. Without a summary the recording was cut, and ends with its last event.
    pub fn finish(&mut self, summary: Option<&Summary>) {
        self.summary = summary.cloned();
        self.names.finish();
        let names = &self.names;
        self.shims.sort_by_key(|s| (s.pid, s.ts));
        self.probes.sort_by_key(|p| (p.pid, p.ts));
        let shims = &self.shims;
        self.gpu.drop_probed(|pid, ts| is_active(shims, pid, ts));
        self.gpu.finish(|id| names.get(id).to_string());
        let start = self.start();
        let table = self.syscalls();
        self.losses.sort_by_key(|l| (l.from, l.to));
        let lost = lost_events(&self.losses);
        for thread in &mut self.threads {
            thread.launches = self.gpu.finish_thread(thread.calls_mut());
            thread.finish(start, &lost, |nr| table.group(nr) == syscall::Group::Yield);
        }
        for cpu in &mut self.cpus {
            cpu.finish();
        }
        self.find_wakers();
        self.signals.sort_by_key(|s| s.ts);
        self.place_losses();
    }

    fn find_wakers(&mut self) {
        let mut wakers = Vec::new();
        for (idx, thread) in (0..).map(ThreadIdx).zip(&self.threads) {
            let of_one = (0..).zip(thread.samples()).filter(|s| s.1.woke().is_some());
            wakers.extend(of_one.map(|(i, _)| (idx, i)));
        }
        wakers.sort_by_key(|&w| self.woke(w));
        self.wakers = wakers;
    }

    fn place_losses(&mut self) {
        for loss in &self.losses {
            let blind = |pid, why| Blind {
                from: loss.from,
                to: loss.to,
                pid,
                why,
            };
            let of_cpu = |cpu| CpuLoss {
                from: loss.from,
                to: loss.to,
                cpu,
            };
            match loss.source {
                LossSource::Bpf(cpu) => self.cpu_losses.push(of_cpu(Some(cpu))),
                LossSource::ShimRing(pid) => {
                    self.blind.push(blind(Some(pid), BlindBecause::RingFull));
                }
                LossSource::Cupti(pid) => {
                    let why = match loss.count {
                        0 => BlindBecause::Silent,
                        _ => BlindBecause::CuptiDropped,
                    };
                    self.blind.push(blind(Some(pid), why));
                }
                LossSource::ClockStep => self.blind.push(blind(None, BlindBecause::ClockStep)),
                LossSource::Damage => {
                    self.blind.push(blind(None, BlindBecause::Damaged));
                    self.cpu_losses.push(of_cpu(None));
                }
            }
        }
        for of_one in self.shims.chunk_by(|a, b| a.pid == b.pid) {
            let is_active = |s: &Shim| s.state == ShimState::Active;
            // What was never begun does not end.
            let begun = of_one.iter().position(is_active).unwrap_or(of_one.len());
            let mut until = None;
            for shim in of_one[begun..].iter().rev() {
                let why = match shim.state {
                    ShimState::Active => {
                        until = Some(shim.ts);
                        continue;
                    }
                    ShimState::Busy => BlindBecause::Silent,
                    ShimState::Dormant | ShimState::Paused | ShimState::Failed => {
                        BlindBecause::NotCollecting
                    }
                };
                let to = until.unwrap_or_else(|| self.last_of(shim.pid));
                self.blind.push(Blind {
                    from: shim.ts,
                    to: to.max(shim.ts),
                    pid: Some(shim.pid),
                    why,
                });
            }
        }
        self.blind.sort_by_key(|b| (b.from, b.to, b.pid));
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Beginning of the recording, or its first event when the header does not say.
    pub fn start(&self) -> Nanos {
        if self.meta.start_mono_ns == 0 {
            self.first.unwrap_or(Nanos::ZERO)
        } else {
            self.meta.start()
        }
    }

    pub fn end(&self) -> Nanos {
        let end = match &self.summary {
            Some(s) if s.end_mono_ns != 0 => s.end(),
            Some(_) | None => self.last,
        };
        end.max(self.start())
    }

    /// The window of a device is the recording, rather than its first to its last operation.
    pub fn window_is_recording(&self) -> bool {
        match self.meta.mode {
            TargetMode::Launch => false,
            TargetMode::Attach | TargetMode::All => true,
        }
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id)
    }

    pub fn syscalls(&self) -> syscall::Table {
        self.syscalls
            .unwrap_or_else(|| syscall::Table::of_machine(""))
    }

    pub fn threads(&self) -> impl Iterator<Item = (ThreadIdx, &Thread)> {
        (0..).map(ThreadIdx).zip(&self.threads)
    }

    pub fn thread(&self, idx: ThreadIdx) -> &Thread {
        &self.threads[idx.0 as usize]
    }

    pub fn find(&self, tid: Tid) -> Option<ThreadIdx> {
        self.tids.get(tid)
    }

    pub fn cpus(&self) -> &[CpuLog] {
        &self.cpus
    }

    pub fn cpu(&self, cpu: Cpu) -> Option<&CpuLog> {
        self.cpus.get(usize::from(cpu.0))
    }

    pub fn gpu(&self) -> &GpuLog {
        &self.gpu
    }

    /// Who ended the wait of `wakee` that began at `since`, and where it was when it did: the waker's
    /// sample that names this thread and this beginning, give or take 5 µs. `None` when it was not a long wait,
    /// or an interrupt ended it.
    pub fn waker_stack(&self, wakee: Tid, since: Nanos) -> Option<(ThreadIdx, &SampleMark)> {
        let from = self.wakers.partition_point(|&w| self.woke(w).0 < wakee);
        let of_this = &self.wakers[from..];
        let len = of_this.partition_point(|&w| self.woke(w).0 == wakee);
        let found = samples::nearest(len, since, |i| self.woke(of_this[i]).1)?;
        let (thread, sample) = of_this[found];
        let sample = self.thread(thread).samples().get(sample as usize)?;
        Some((thread, sample))
    }

    /// An entry of `wakers`: whom that sample says it woke, and since when that one had waited.
    fn woke(&self, (thread, sample): (ThreadIdx, u32)) -> (Tid, Nanos) {
        let sample = self.thread(thread).samples().get(sample as usize);
        sample.and_then(SampleMark::woke).unwrap_or_default()
    }

    /// Whether the thread was collecting garbage there: its interpreter said so, or a function of the collector is
    /// on its stack.
    pub fn collects(&self, sample: &SampleMark) -> bool {
        sample.says_it_collects()
            || self
                .names()
                .call_traits(sample.user)
                .has(CallTraits::COLLECTS)
    }

    /// Who `thread` was at `t`.
    pub fn who(&self, thread: ThreadIdx, t: Nanos) -> Who {
        Who {
            thread,
            identity: self.thread(thread).identity_at(t),
        }
    }

    pub fn identity(&self, who: Who) -> Option<&Identity> {
        self.thread(who.thread).identity(who.identity)
    }

    /// The process of `who`; a thread without an identity is taken for its own process.
    pub fn pid(&self, who: Who) -> Pid {
        self.identity(who)
            .map_or(Pid(self.thread(who.thread).tid.0), |i| i.pid)
    }

    pub fn comm(&self, who: Who) -> &str {
        match self.identity(who).map(|i| self.name(i.comm)) {
            Some(name) if !name.is_empty() => name,
            Some(_) | None => "?",
        }
    }

    pub fn process(&self, pid: Pid) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// By process, then time.
    pub fn shims(&self) -> &[Shim] {
        &self.shims
    }

    /// By process, then time.
    pub fn probes(&self) -> &[Probes] {
        &self.probes
    }

    /// By time.
    pub fn signals(&self) -> &[Signal] {
        &self.signals
    }

    /// When GPU records are missing, by time.
    pub fn blind(&self) -> &[Blind] {
        &self.blind
    }

    /// Everything that was lost, by time.
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// When scheduling events are missing, by time.
    pub fn cpu_losses(&self) -> &[CpuLoss] {
        &self.cpu_losses
    }

    pub fn lost(&self) -> Lost {
        self.lost_if(|_| true)
    }

    pub fn lost_if(&self, wanted: impl Fn(&Loss) -> bool) -> Lost {
        let mut lost = Lost::default();
        for loss in self.losses.iter().filter(|loss| wanted(loss)) {
            let sum = match loss.source {
                LossSource::Bpf(_) => &mut lost.bpf,
                LossSource::ShimRing(_) => &mut lost.shim,
                LossSource::Cupti(_) => &mut lost.cupti,
                LossSource::ClockStep => {
                    lost.clock_steps += 1;
                    continue;
                }
                // How much is not known; where the file was read, that is told.
                LossSource::Damage => continue,
            };
            *sum = sum.saturating_add(loss.count);
        }
        lost
    }

    /// When the process ended, if it did.
    pub fn exit_of(&self, pid: Pid) -> Option<Nanos> {
        self.exits.get(&pid).copied()
    }

    /// When the process or the recording ended, whichever was first: later it can have no records.
    pub fn last_of(&self, pid: Pid) -> Nanos {
        let end = self.end();
        self.exit_of(pid).map_or(end, |exit| exit.min(end))
    }

    pub fn clock_error(&self) -> Option<Nanos> {
        self.clock_error
    }
}
