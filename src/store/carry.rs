//! What the second half of a recording needs to know from the first.
//!
//! Who each thread is and what it does at that moment, devices, processes, the state of shims; and of the
//! definitions those that are still used. It is bounded by what there is at a time, however long the
//! first half was: what was known of a process goes with its last thread.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use crate::event::{
    CallStackId, ClockPair, Define, Device, DeviceId, Event, Exit, Frame, FrameId, NameId, OpKind,
    Pid, Probes, Process, Shim, StackId, Task, TaskReason, TaskState, Tid,
};
use crate::fxhash::{FxHashMap, FxHashSet};
use crate::units::Nanos;

/// A thread that has not ended, and what it does since when.
#[derive(Clone, Debug)]
struct Thread {
    task: Task,
    since: Nanos,
    state: TaskState,
    syscall: Option<u16>,
}

/// What was so when the part begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    threads: FxHashMap<Tid, Thread>,
    /// How many of `threads` each process has.
    alive: HashMap<Pid, usize>,
    /// Facts that hold all the time, whenever they were found out.
    processes: BTreeMap<Pid, Process>,
    devices: BTreeMap<(Pid, DeviceId), Device>,
    shims: BTreeMap<Pid, Shim>,
    probes: BTreeMap<Pid, Probes>,
    clock: Option<ClockPair>,
}

impl Before {
    /// Takes note of an event of a recording that begins anew at `from`.
    pub(crate) fn event(&mut self, event: &Event, from: Nanos) {
        let is_before = event.ts().is_some_and(|ts| ts < from);
        match event {
            Event::Process(e) => {
                self.processes.insert(e.pid, *e);
            }
            Event::Device(e) => {
                self.devices.insert((e.pid, e.id), e.clone());
            }
            _ if !is_before => {}
            Event::Task(e) => self.task(e),
            Event::Exit(e) => self.exit(e),
            Event::Switch(e) => {
                let left = if e.state == 0 {
                    TaskState::Runnable
                } else {
                    TaskState::Off(e.state)
                };
                self.state(e.prev, e.ts, left, e.syscall);
                self.state(e.next, e.ts, TaskState::Running, None);
            }
            Event::Waking(e) => {
                if let Some(thread) = self.threads.get_mut(&e.wakee) {
                    let sleeps = matches!(thread.state, TaskState::Off(_));
                    if sleeps && thread.since <= e.ts {
                        thread.since = e.ts;
                        (thread.state, thread.syscall) = (TaskState::Runnable, None);
                    }
                }
            }
            Event::Shim(e) => {
                if self.shims.get(&e.pid).is_none_or(|last| last.ts <= e.ts) {
                    self.shims.insert(e.pid, *e);
                }
            }
            Event::Probes(e) => {
                if self.probes.get(&e.pid).is_none_or(|last| last.ts <= e.ts) {
                    self.probes.insert(e.pid, *e);
                }
            }
            Event::Clock(e) => {
                if self.clock.is_none_or(|last| last.mono <= e.mono) {
                    self.clock = Some(*e);
                }
            }
            Event::Define(_)
            | Event::Interrupt(_)
            | Event::Wait(_)
            | Event::CpuWait(_)
            | Event::SysCall(_)
            | Event::Stall(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::GpuOp(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::ApiCall(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Loss(_) => {}
        }
    }

    fn task(&mut self, e: &Task) {
        let new = Thread {
            task: e.clone(),
            since: e.ts,
            state: match e.reason {
                TaskReason::New { .. } => TaskState::Runnable,
                TaskReason::Seen | TaskReason::Followed | TaskReason::Exec | TaskReason::Rename => {
                    e.state
                }
            },
            syscall: e.syscall,
        };
        let Some(known) = self.threads.get_mut(&e.tid) else {
            self.threads.insert(e.tid, new);
            *self.alive.entry(e.pid).or_default() += 1;
            return;
        };
        if known.task.ts > e.ts {
            return;
        }
        let pid = std::mem::replace(&mut known.task, new.task).pid;
        // By any other reason it goes on with what it did.
        let tells = match e.reason {
            TaskReason::Seen | TaskReason::Followed | TaskReason::New { .. } => true,
            TaskReason::Exec | TaskReason::Rename => false,
        };
        if tells && known.since <= e.ts {
            (known.since, known.state, known.syscall) = (new.since, new.state, new.syscall);
        }
        if pid != e.pid {
            *self.alive.entry(e.pid).or_default() += 1;
            self.ended(pid, e.ts);
        }
    }

    fn exit(&mut self, e: &Exit) {
        // The id may have been given to a new thread after that.
        if self
            .threads
            .get(&e.tid)
            .is_none_or(|thread| thread.task.ts > e.ts)
        {
            return;
        }
        if let Some(thread) = self.threads.remove(&e.tid) {
            self.ended(thread.task.pid, e.ts);
        }
    }

    /// One thread less; with the last one, what was known of the process has no meaning any more.
    fn ended(&mut self, pid: Pid, ts: Nanos) {
        let left = self.alive.get_mut(&pid);
        let Some(left) = left else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.alive.remove(&pid);
        self.processes.remove(&pid);
        self.devices.retain(|(of, _), _| *of != pid);
        // What is noted of it later stays until then.
        if self.shims.get(&pid).is_some_and(|shim| shim.ts <= ts) {
            self.shims.remove(&pid);
        }
        if self.probes.get(&pid).is_some_and(|probes| probes.ts <= ts) {
            self.probes.remove(&pid);
        }
    }

    /// Of a thread that nobody has named yet, nothing is kept.
    fn state(&mut self, tid: Tid, ts: Nanos, state: TaskState, syscall: Option<u16>) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            if thread.since <= ts {
                (thread.since, thread.state, thread.syscall) = (ts, state, syscall);
            }
        }
    }

    /// Threads that have not ended.
    pub(super) fn thread_count(&self) -> u64 {
        self.threads.len() as u64
    }

    /// What a recording that begins at `from` has to begin with.
    pub(crate) fn events(&self, from: Nanos) -> Vec<Event> {
        let mut threads: Vec<Thread> = self.threads.values().cloned().collect();
        threads.sort_unstable_by_key(|thread| thread.task.tid);
        let tasks = threads.into_iter().map(|thread| {
            Event::Task(Task {
                ts: from,
                reason: TaskReason::Seen,
                state: thread.state,
                syscall: thread.syscall,
                ..thread.task
            })
        });
        let processes = self.processes.values().cloned();
        let devices = self.devices.values().cloned();
        let shims = self.shims.values().cloned();
        let probes = self.probes.values().cloned();
        self.clock
            .map(|e| {
                Event::Clock(ClockPair {
                    mono: from,
                    real: moved(e, from),
                    ..e
                })
            })
            .into_iter()
            .chain(processes.map(|e| Event::Process(Process { ts: from, ..e })))
            .chain(devices.map(|e| Event::Device(Device { ts: from, ..e })))
            .chain(shims.map(|e| Event::Shim(Shim { ts: from, ..e })))
            .chain(probes.map(|e| Event::Probes(Probes { ts: from, ..e })))
            .chain(tasks)
            .collect()
    }
}

/// The other clock of the pair at `mono`.
fn moved(pair: ClockPair, mono: Nanos) -> Nanos {
    Nanos(pair.real.0.saturating_add(mono.saturating_sub(pair.mono).0))
}

/// Names, stacks and frames that the part mentions.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) names: FxHashSet<NameId>,
    pub(super) stacks: FxHashSet<StackId>,
    pub(super) call_stacks: FxHashSet<CallStackId>,
    pub(super) frames: FxHashSet<FrameId>,
}

impl Used {
    pub(crate) fn event(&mut self, event: &Event) {
        match event {
            Event::Task(e) => self.names.extend([e.comm]),
            Event::Wait(e) => {
                self.names.insert(e.object);
                self.stacks.insert(e.stack);
            }
            Event::Sample(e) => {
                self.stacks.insert(e.kernel);
                self.call_stacks.insert(e.user);
            }
            Event::GpuOp(e) => match e.kind {
                OpKind::Kernel { name } => self.names.extend([name]),
                OpKind::Memcpy { .. } | OpKind::Memset { .. } | OpKind::Graph => {}
            },
            Event::Device(e) => self.names.extend([e.name, e.uuid]),
            Event::Shim(e) => self.names.extend([e.reason, e.cupti_path]),
            Event::Probes(e) => self.names.extend([e.reason]),
            Event::Process(e) => self.names.extend([e.cmdline, e.exe, e.cgroup]),
            Event::Define(_)
            | Event::Exit(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Interrupt(_)
            | Event::CpuWait(_)
            | Event::SysCall(_)
            | Event::Stall(_)
            | Event::Signal(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::ApiCall(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Clock(_)
            | Event::Loss(_) => {}
        }
    }

    pub(super) fn frames(&mut self, event: &Event) {
        if let Event::Define(Define::CallStack { id, frames, .. }) = event {
            if self.call_stacks.contains(id) {
                self.frames.extend(frames);
            }
        }
    }

    pub(super) fn names(&mut self, event: &Event) {
        let Event::Define(define) = event else {
            return;
        };
        if !self.defines(event) {
            return;
        }
        self.made_of(define);
    }

    /// What a definition mentions.
    pub(super) fn made_of(&mut self, define: &Define) {
        match define {
            Define::Name { .. } | Define::Endpoint { .. } => {}
            Define::CallStack { frames, .. } => self.frames.extend(frames),
            Define::Stack { frames, .. } => self.names.extend(frames),
            Define::Irq { name, .. } => self.names.extend([name]),
            Define::Frame { frame, .. } => match frame {
                Frame::Native {
                    module, build_id, ..
                } => self.names.extend([module, build_id]),
                Frame::Anonymous { .. } => {}
                Frame::Python { function, file, .. } => self.names.extend([function, file]),
            },
            Define::Functions { functions, .. } => {
                for function in functions {
                    self.names.extend([function.name, function.file]);
                }
            }
        }
    }

    pub(super) fn defines(&self, event: &Event) -> bool {
        let Event::Define(define) = event else {
            return false;
        };
        match define {
            Define::Name { id, .. } => self.names.contains(id),
            Define::Stack { id, .. } => self.stacks.contains(id),
            Define::Irq { .. } => true,
            Define::Endpoint { object, .. } => self.names.contains(object),
            Define::CallStack { id, .. } => self.call_stacks.contains(id),
            Define::Frame { id: frame, .. } | Define::Functions { frame, .. } => {
                self.frames.contains(frame)
            }
        }
    }
}
