//! What the second half of a recording needs to know from the first.
//!
//! Who each thread is and what it does at that moment, devices, processes, the state of shims; and of the
//! definitions those that are still used. It is bounded by what there is at a time, however long the
//! first half was: what was known of a process goes with its last thread.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::event::{
    CallStackId, ClockPair, Define, Device, DeviceId, Event, Exit, Frame, FrameId, NameId, OpKind,
    Pid, Probes, Process, Shim, StackId, Task, TaskReason, TaskState, Tid,
};
use crate::units::Nanos;

/// What was so when the part begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    tasks: BTreeMap<Tid, Task>,
    /// What the threads of `tasks` do, since when.
    states: HashMap<Tid, (Nanos, TaskState, Option<u16>)>,
    /// Threads of `tasks` in each process.
    threads: HashMap<Pid, usize>,
    /// Facts that hold all the time, whenever they were found out.
    processes: BTreeMap<Pid, Process>,
    devices: BTreeMap<(Pid, DeviceId), Device>,
    shims: BTreeMap<Pid, Shim>,
    probes: BTreeMap<Pid, Probes>,
    clock: Option<ClockPair>,
}

impl Before {
    /// Takes note of an event of a recording that begins anew at `from`.
    pub(super) fn event(&mut self, event: &Event, from: Nanos) {
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
                let asleep = self.states.get(&e.wakee).map(|s| s.1);
                if let Some(TaskState::Off(_)) = asleep {
                    self.state(e.wakee, e.ts, TaskState::Runnable, None);
                }
            }
            Event::Shim(e) => {
                self.shims.insert(e.pid, *e);
            }
            Event::Probes(e) => {
                self.probes.insert(e.pid, *e);
            }
            Event::Clock(e) => self.clock = Some(*e),
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
        match self.tasks.get(&e.tid) {
            Some(last) if last.ts > e.ts => return,
            Some(last) if last.pid == e.pid => {}
            Some(last) => {
                let pid = last.pid;
                self.ended(pid);
                *self.threads.entry(e.pid).or_default() += 1;
            }
            None => *self.threads.entry(e.pid).or_default() += 1,
        }
        self.tasks.insert(e.tid, e.clone());
        match e.reason {
            TaskReason::Seen | TaskReason::Followed => {
                self.state(e.tid, e.ts, e.state, e.syscall);
            }
            TaskReason::New { .. } => self.state(e.tid, e.ts, TaskState::Runnable, e.syscall),
            // It goes on with what it did, when that is known.
            TaskReason::Exec | TaskReason::Rename => {
                let now = (e.ts, e.state, e.syscall);
                self.states.entry(e.tid).or_insert(now);
            }
        }
    }

    fn exit(&mut self, e: &Exit) {
        // The id may have been given to a new thread after that.
        if self.tasks.get(&e.tid).is_none_or(|task| task.ts > e.ts) {
            return;
        }
        self.states.remove(&e.tid);
        if let Some(task) = self.tasks.remove(&e.tid) {
            self.ended(task.pid);
        }
    }

    /// One thread less; with the last one, what was known of the process has no meaning any more.
    fn ended(&mut self, pid: Pid) {
        let left = self.threads.get_mut(&pid);
        let Some(left) = left else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.threads.remove(&pid);
        self.processes.remove(&pid);
        self.devices.retain(|(of, _), _| *of != pid);
        self.shims.remove(&pid);
        self.probes.remove(&pid);
    }

    /// Of a thread that nobody has named yet, nothing is kept.
    fn state(&mut self, tid: Tid, ts: Nanos, state: TaskState, syscall: Option<u16>) {
        if !self.tasks.contains_key(&tid) {
            return;
        }
        let last = self.states.entry(tid).or_insert((ts, state, syscall));
        if last.0 <= ts {
            *last = (ts, state, syscall);
        }
    }

    /// Threads that have not ended.
    pub(super) fn threads(&self) -> u64 {
        self.tasks.len() as u64
    }

    /// What a recording that begins at `from` has to begin with.
    pub(super) fn events(self, from: Nanos) -> Vec<Event> {
        let tasks = self.tasks.into_values().filter_map(|task| {
            let &(_, state, syscall) = self.states.get(&task.tid)?;
            Some(Event::Task(Task {
                ts: from,
                reason: TaskReason::Seen,
                state,
                syscall,
                ..task
            }))
        });
        let processes = self.processes.into_values();
        let devices = self.devices.into_values();
        let shims = self.shims.into_values();
        let probes = self.probes.into_values();
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
pub(super) struct Used {
    pub(super) names: HashSet<NameId>,
    pub(super) stacks: HashSet<StackId>,
    pub(super) call_stacks: HashSet<CallStackId>,
    pub(super) frames: HashSet<FrameId>,
}

impl Used {
    pub(super) fn event(&mut self, event: &Event) {
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
