//! The scheduler event by event: what each switch, wakeup and move means for the threads that it is about.
//!
//! Unlike a [`Timeline`](crate::model::Timeline) it remembers only the present, and the names of threads: so it
//! can follow a machine for long, and so it needs events in order of time, as they happen and as a recording has
//! them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{reason, OffReason, Waker, WakerContext, Who};
use crate::analyse::what::softirq_name;
use crate::event::{
    Context, Cpu, Define, Event, Exit, Loss, LossSource, NameId, Pid, Switch, SwitchFlags, Task,
    TaskReason, TaskState, Tid, Waking,
};
use crate::model::fxhash::FxHashMap;
use crate::model::syscall::{Group, Table};
use crate::units::Nanos;

/// A wake may be stamped just before the switch-out that it ends, on another CPU.
const EARLY_WAKE: Nanos = Nanos::from_micros(50);

/// So much later than its first deed somebody is introduced who woke another.
const INTRODUCED: Nanos = Nanos::from_micros(100);

/// In bytes. Those of threads and interrupts are shorter; command lines are not wanted.
const LONGEST_NAME: usize = 256;

/// What is to be told, in order of time.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A thread left a CPU: what it had waited for, how long it ran, and why it left.
    Left(Box<Left>),
    /// Another one runs on a CPU; tid 0: its idle task.
    Runs { ts: Nanos, cpu: Cpu, who: Who },
    Woken {
        ts: Nanos,
        cpu: Cpu,
        who: Who,
        by: Waker,
        target: bool,
    },
    Moved {
        ts: Nanos,
        who: Who,
        from: Cpu,
        to: Cpu,
        target: bool,
    },
    /// Events are missing; what threads did then is not known.
    Lost { from: Nanos, to: Nanos, count: u64 },
}

impl Step {
    /// The end, of what lasts.
    pub fn ts(&self) -> Nanos {
        match self {
            Step::Left(left) => left.ts,
            Step::Runs { ts, .. } | Step::Woken { ts, .. } | Step::Moved { ts, .. } => *ts,
            Step::Lost { to, .. } => *to,
        }
    }
}

/// What cannot be known is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    pub ts: Nanos,
    pub cpu: Cpu,
    pub who: Who,
    /// All that it does is seen, rather than that it ran beside others.
    pub target: bool,
    /// Off the CPU before this run, in all.
    pub off: Option<Nanos>,
    /// The part of that in which it could have run.
    pub delay: Option<Nanos>,
    pub run: Option<Nanos>,
    /// Why it was off.
    pub waited: Option<OffReason>,
    /// Who ended that: whoever woke it, or who had preempted it.
    pub by: Option<Waker>,
    /// Who had the CPU right before it ran, when it could have run then.
    pub behind: Option<Who>,
    /// Why it leaves; `None` when it ends, or is not known.
    pub why: Option<OffReason>,
    pub ended: bool,
    pub next: Who,
}

#[derive(Clone, Debug)]
struct Thread {
    pid: Pid,
    comm: NameId,
    kthread: bool,
    /// Every switch of it comes.
    followed: bool,
    state: State,
    /// Where it ran last.
    cpu: Option<Cpu>,
}

#[derive(Clone, Debug)]
enum State {
    Unknown,
    Runs(Box<Run>),
    Off(Off),
}

#[derive(Clone, Debug)]
struct Run {
    since: Option<Nanos>,
    off: Option<Nanos>,
    delay: Option<Nanos>,
    waited: Option<OffReason>,
    by: Option<(Tid, Context)>,
    behind: Option<Tid>,
    /// It was woken although it runs: perhaps it was about to sleep.
    early_wake: Option<(Nanos, Tid, Context)>,
}

#[derive(Clone, Debug)]
struct Off {
    since: Nanos,
    why: OffReason,
    /// Since when it could run.
    ready: Option<Nanos>,
    by: Option<(Tid, Context)>,
}

/// The present.
#[derive(Debug)]
pub struct Steps {
    syscalls: Table,
    names: FxHashMap<NameId, String>,
    irqs: FxHashMap<u16, NameId>,
    threads: FxHashMap<Tid, Thread>,
    /// Not told yet, as somebody in it may not have been introduced.
    held: VecDeque<Event>,
    /// Every switch of every thread comes.
    all: bool,
}

impl Steps {
    /// `machine` as uname(2) names it; with `all` the whole machine is seen.
    pub fn new(machine: &str, all: bool) -> Self {
        Steps {
            syscalls: Table::of_machine(machine),
            names: FxHashMap::default(),
            irqs: FxHashMap::default(),
            threads: FxHashMap::default(),
            held: VecDeque::new(),
            all,
        }
    }

    /// Tells what happened until shortly before this event, too.
    pub fn event(&mut self, event: &Event, sink: &mut dyn FnMut(Step)) {
        let now = match event {
            Event::Define(Define::Name { id, text }) => {
                if text.len() <= LONGEST_NAME {
                    self.names.insert(*id, text.clone());
                }
                return;
            }
            Event::Define(Define::Irq { irq, name }) => {
                self.irqs.insert(*irq, *name);
                return;
            }
            Event::Task(task) => {
                self.task(task);
                task.ts
            }
            Event::Switch(Switch { ts, .. })
            | Event::Waking(Waking { ts, .. })
            | Event::Exit(Exit { ts, .. })
            | Event::Loss(Loss { to: ts, .. }) => {
                self.held.push_back(event.clone());
                *ts
            }
            Event::Define(_)
            | Event::Interrupt(_)
            | Event::Wait(_)
            | Event::CpuWait(_)
            | Event::Stall(_)
            | Event::Signal(_)
            | Event::SysCall(_)
            | Event::Sample(_)
            | Event::GpuOp(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::ApiCall(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Device(_)
            | Event::Shim(_)
            | Event::Probes(_)
            | Event::Process(_)
            | Event::Clock(_) => return,
        };
        let is_due = |event: &Event| {
            event
                .ts()
                .is_none_or(|ts| now.saturating_sub(ts) >= INTRODUCED)
        };
        while self.held.front().is_some_and(is_due) {
            if let Some(event) = self.held.pop_front() {
                self.tell(&event, sink);
            }
        }
    }

    /// Tells all that happened so far.
    pub fn flush(&mut self, sink: &mut dyn FnMut(Step)) {
        for event in std::mem::take(&mut self.held) {
            self.tell(&event, sink);
        }
    }

    fn tell(&mut self, event: &Event, sink: &mut dyn FnMut(Step)) {
        match event {
            Event::Switch(switch) => self.switch(switch, sink),
            Event::Waking(waking) => self.waking(waking, sink),
            Event::Exit(exit) => {
                // Of one that runs the last switch is still to come.
                let runs = |thread: &Thread| matches!(thread.state, State::Runs(_));
                if !self.threads.get(&exit.tid).is_some_and(runs) {
                    self.threads.remove(&exit.tid);
                }
            }
            Event::Loss(loss) => {
                if let LossSource::Bpf(_) | LossSource::Damage = loss.source {
                    for thread in self.threads.values_mut() {
                        thread.state = State::Unknown;
                    }
                    sink(Step::Lost {
                        from: loss.from,
                        to: loss.to,
                        count: loss.count,
                    });
                }
            }
            // Only these are held.
            _ => {}
        }
    }

    fn task(&mut self, task: &Task) {
        let followed = self.all || task.target || task.reason == TaskReason::Followed;
        let fresh = match self.threads.get_mut(&task.tid) {
            Some(thread) if !matches!(task.reason, TaskReason::New { .. }) => {
                thread.pid = task.pid;
                thread.comm = task.comm;
                thread.followed |= followed;
                return;
            }
            Some(_) | None => Thread {
                pid: task.pid,
                comm: task.comm,
                kthread: task.kthread,
                followed,
                state: State::Unknown,
                cpu: None,
            },
        };
        let state = match (task.reason, task.state) {
            (TaskReason::New { parent }, _) => State::Off(Off {
                since: task.ts,
                why: OffReason::New,
                ready: Some(task.ts),
                by: Some((parent, Context::Task)),
            }),
            // Since when is not known.
            (
                TaskReason::Seen | TaskReason::Followed | TaskReason::Exec | TaskReason::Rename,
                TaskState::Running | TaskState::Runnable | TaskState::Off(_),
            ) => State::Unknown,
        };
        self.threads.insert(task.tid, Thread { state, ..fresh });
    }

    fn thread(&mut self, tid: Tid) -> &mut Thread {
        let all = self.all;
        self.threads.entry(tid).or_insert_with(|| Thread {
            pid: Pid(tid.0),
            comm: NameId(0),
            kthread: false,
            followed: all,
            state: State::Unknown,
            cpu: None,
        })
    }

    fn who(&self, tid: Tid) -> Who {
        let thread = self.threads.get(&tid);
        let comm = match thread.and_then(|thread| self.names.get(&thread.comm)) {
            Some(comm) if !comm.is_empty() => comm.clone(),
            _ if tid.0 == 0 => "<idle>".to_string(),
            Some(_) | None => "?".to_string(),
        };
        Who {
            pid: thread.map_or(Pid(tid.0), |thread| thread.pid),
            tid,
            comm,
        }
    }

    fn waker(&self, (tid, context): (Tid, Context)) -> Waker {
        let name = match context {
            Context::Task => return Waker::Thread(self.who(tid)),
            Context::HardIrq(irq) => {
                let name = self.irqs.get(&irq).and_then(|id| self.names.get(id));
                name.map_or_else(|| irq.to_string(), Clone::clone)
            }
            Context::SoftIrq(vector) => softirq_name(vector),
            Context::Timer => String::new(),
        };
        match WakerContext::of(context) {
            Some(context) => Waker::Interrupt(context, name),
            None => Waker::Thread(self.who(tid)),
        }
    }

    fn switch(&mut self, e: &Switch, sink: &mut dyn FnMut(Step)) {
        if e.prev.0 != 0 {
            self.left(e, sink);
        }
        let moved = if e.next.0 == 0 { None } else { self.runs(e) };
        if let Some(from) = moved {
            sink(Step::Moved {
                ts: e.ts,
                who: self.who(e.next),
                from,
                to: e.cpu,
                target: self.is_followed(e.next),
            });
        }
        sink(Step::Runs {
            ts: e.ts,
            cpu: e.cpu,
            who: self.who(e.next),
        });
    }

    fn is_followed(&self, tid: Tid) -> bool {
        self.threads.get(&tid).is_some_and(|t| t.followed)
    }

    /// Why `prev` leaves; `None` when it ends.
    fn why(&self, e: &Switch, kthread: bool) -> Option<OffReason> {
        let group = e.syscall.map(|nr| self.syscalls.group(nr));
        if e.flags.has(SwitchFlags::EXITING) && e.state != 0 {
            None
        } else if e.state != 0 {
            Some(reason::of_sleep(Some(e.state), e.flags, group, kthread))
        } else if e.flags.has(SwitchFlags::THROTTLED) {
            Some(OffReason::Throttled)
        } else if group == Some(Group::Yield) {
            Some(OffReason::Yielded)
        } else {
            Some(OffReason::Preempted)
        }
    }

    fn left(&mut self, e: &Switch, sink: &mut dyn FnMut(Step)) {
        let kthread = self.thread(e.prev).kthread;
        let why = self.why(e, kthread);
        let ended = why.is_none();
        let thread = self.thread(e.prev);
        let followed = thread.followed;
        let same_cpu = thread.cpu.is_none_or(|cpu| cpu == e.cpu);
        let run = match std::mem::replace(&mut thread.state, State::Unknown) {
            // A thread that leaves another CPU than it got has lost events.
            State::Runs(run) if same_cpu => Some(*run),
            State::Runs(_) | State::Off(_) | State::Unknown => None,
        };
        thread.cpu = Some(e.cpu);
        let early = run.as_ref().and_then(|run| run.early_wake);
        let early =
            early.filter(|early| e.state != 0 && e.ts.saturating_sub(early.0) <= EARLY_WAKE);
        if let Some(why) = why.filter(|_| followed) {
            let could_run = !why.is_blocked();
            let (ready, by) = match early {
                // Woken in the moment in which it went to sleep. Should it be woken once more, that one counts.
                Some((_, by, context)) => (Some(e.ts), Some((by, context))),
                None if could_run => (Some(e.ts), Some((e.next, Context::Task))),
                None => (None, None),
            };
            thread.state = State::Off(Off {
                since: e.ts,
                why,
                ready,
                by: by.filter(|by| by.0 .0 != 0 || by.1 != Context::Task),
            });
        }
        let run = run.unwrap_or(Run {
            since: None,
            off: None,
            delay: None,
            waited: None,
            by: None,
            behind: None,
            early_wake: None,
        });
        let left = Left {
            ts: e.ts,
            cpu: e.cpu,
            who: self.who(e.prev),
            target: followed,
            off: run.off,
            delay: run.delay,
            run: run.since.map(|since| e.ts.saturating_sub(since)),
            waited: run.waited,
            by: run.by.map(|by| self.waker(by)),
            behind: run.behind.map(|tid| self.who(tid)),
            why: why.filter(|_| followed),
            ended,
            next: self.who(e.next),
        };
        if ended {
            // The number may be another's.
            self.threads.remove(&e.prev);
        }
        sink(Step::Left(Box::new(left)));
    }

    /// `next` runs. Where it was moved from, if it was.
    fn runs(&mut self, e: &Switch) -> Option<Cpu> {
        let thread = self.thread(e.next);
        let followed = thread.followed;
        let from = thread.cpu.filter(|&cpu| cpu != e.cpu);
        thread.cpu = Some(e.cpu);
        let mut run = Run {
            since: Some(e.ts),
            off: None,
            delay: None,
            waited: None,
            by: None,
            behind: None,
            early_wake: None,
        };
        match &thread.state {
            State::Off(off) if followed => {
                run.off = Some(e.ts.saturating_sub(off.since));
                // Without a waking it is not known when it could run again.
                run.delay = off.ready.map(|ready| e.ts.saturating_sub(ready));
                if off.why == OffReason::Throttled {
                    run.delay = None;
                }
                run.waited = Some(off.why);
                run.by = off.by;
                run.behind = off.ready.and(Some(e.prev)).filter(|prev| prev.0 != 0);
            }
            State::Off(_) | State::Runs(_) | State::Unknown => {}
        }
        thread.state = State::Runs(Box::new(run));
        from.filter(|_| followed)
    }

    fn waking(&mut self, e: &Waking, sink: &mut dyn FnMut(Step)) {
        if e.wakee.0 == 0 {
            return;
        }
        let thread = self.thread(e.wakee);
        let followed = thread.followed;
        let by = (e.waker, e.context);
        match &mut thread.state {
            // Of a thread that could run anyway a wake says nothing.
            State::Off(off) if off.why.is_blocked() => {
                off.ready = Some(e.ts.max(off.since));
                off.by = Some(by);
            }
            State::Off(_) => return,
            State::Runs(run) => {
                run.early_wake = Some((e.ts, e.waker, e.context));
                return;
            }
            // Since when it slept is not known; from here on it waits for a CPU.
            State::Unknown => {}
        }
        sink(Step::Woken {
            ts: e.ts,
            cpu: e.cpu,
            who: self.who(e.wakee),
            by: self.waker(by),
            target: followed,
        });
    }
}
