//! Events of one CPU, as the kernel would have recorded them.
#![forbid(unsafe_code)]

use crate::analyse::tracks::{Left, Life, Named, Turn, WakeUp};
use crate::event::{Context, Cpu};
use crate::model::fxhash::FxHashMap;
use crate::present::export::perfetto::proto::{
    CompactSched, FtraceEvent, FtraceEventBundle, SchedProcessExit, SchedWaking, TaskNewtask,
    TaskRename, CLONE_THREAD, FLAG_HARDIRQ, FLAG_SOFTIRQ,
};
use crate::present::export::perfetto::signed;
use crate::units::Nanos;

/// Enough to make what each bundle repeats small.
const MOST: usize = 2048;

/// Name of the idle task of a CPU.
const IDLE: &str = "swapper";

/// Kernel priority of the idle task.
const IDLE_PRIO: i32 = 120;

#[derive(Debug, Default)]
pub(super) struct Bundle {
    cpu: Cpu,
    events: Vec<FtraceEvent>,
    switches: CompactSched,
    last_switch: u64,
    comms: FxHashMap<String, u32>,
}

impl Bundle {
    pub(super) fn is_full(&self) -> bool {
        self.events.len() + self.switches.switch_timestamp.len() >= MOST
    }

    pub(super) fn take(&mut self) -> Option<FtraceEventBundle> {
        self.comms.clear();
        let event = std::mem::take(&mut self.events);
        let switches = std::mem::take(&mut self.switches);
        let has_switches = !switches.switch_timestamp.is_empty();
        let any = has_switches || !event.is_empty();
        any.then(|| FtraceEventBundle {
            cpu: Some(self.cpu.0.into()),
            event,
            compact_sched: has_switches.then_some(switches),
        })
    }

    pub(super) fn turn(&mut self, cpu: Cpu, turn: &Turn<'_>) {
        self.cpu = cpu;
        let (tid, comm, prio) = match &turn.who {
            Some(who) => (signed(who.owner.tid.0), who.comm, prio(who)),
            None => (0, IDLE, IDLE_PRIO),
        };
        let at = turn.start.as_u64();
        let since = match self.switches.switch_timestamp.len() {
            0 => at,
            _ => at.saturating_sub(self.last_switch),
        };
        self.last_switch = at;
        let comm = self.comm(comm);
        self.switches.switch_timestamp.push(since);
        self.switches.switch_prev_state.push(prev_state(turn.left));
        self.switches.switch_next_pid.push(tid);
        self.switches.switch_next_prio.push(prio);
        self.switches.switch_next_comm_index.push(comm);
    }

    fn comm(&mut self, comm: &str) -> u32 {
        if let Some(&index) = self.comms.get(comm) {
            return index;
        }
        let index = u32::try_from(self.comms.len()).unwrap_or(u32::MAX);
        self.comms.insert(comm.to_string(), index);
        self.switches.intern_table.push(comm.to_string());
        index
    }

    pub(super) fn wake(&mut self, cpu: Cpu, wake: &WakeUp<'_>) {
        self.cpu = cpu;
        self.events.push(FtraceEvent {
            pid: Some(wake.waker.0),
            common_flags: match wake.context {
                Context::Task => None,
                Context::HardIrq(_) | Context::Timer => Some(FLAG_HARDIRQ),
                Context::SoftIrq(_) => Some(FLAG_SOFTIRQ),
            },
            sched_waking: Some(SchedWaking {
                comm: Some(wake.wakee.comm.to_string()),
                pid: Some(signed(wake.wakee.owner.tid.0)),
                prio: Some(prio(&wake.wakee)),
                target_cpu: wake.target.map(|cpu| cpu.0.into()),
            }),
            ..event(wake.at)
        });
    }

    pub(super) fn life(&mut self, cpu: Cpu, life: &Life<'_>) {
        self.cpu = cpu;
        self.events.push(match life {
            Life::New { at, who, parent } => FtraceEvent {
                pid: Some(parent.tid.0),
                task_newtask: Some(TaskNewtask {
                    pid: Some(signed(who.owner.tid.0)),
                    comm: Some(who.comm.to_string()),
                    clone_flags: Some(if parent.pid == who.owner.pid {
                        CLONE_THREAD
                    } else {
                        0
                    }),
                }),
                ..event(*at)
            },
            Life::Renamed { at, who, before } => FtraceEvent {
                pid: Some(who.owner.tid.0),
                task_rename: Some(TaskRename {
                    pid: Some(signed(who.owner.tid.0)),
                    oldcomm: Some((*before).to_string()),
                    newcomm: Some(who.comm.to_string()),
                }),
                ..event(*at)
            },
            Life::Exited { at, who } => FtraceEvent {
                pid: Some(who.owner.tid.0),
                sched_process_exit: Some(SchedProcessExit {
                    comm: Some(who.comm.to_string()),
                    pid: Some(signed(who.owner.tid.0)),
                    tgid: Some(signed(who.owner.pid.0)),
                    prio: Some(prio(who)),
                }),
                ..event(*at)
            },
        });
    }
}

fn event(at: Nanos) -> FtraceEvent {
    FtraceEvent {
        timestamp: Some(at.as_u64()),
        ..FtraceEvent::default()
    }
}

fn prio(who: &Named<'_>) -> i32 {
    i32::try_from(who.prio).unwrap_or(i32::MAX)
}

/// `prev_state` of a switch as kernels since 4.14 encode it (`__trace_sched_switch_state`): the state as /proc
/// shows it, one bit each.
pub(super) fn prev_state(left: Left) -> i64 {
    const INTERRUPTIBLE: u16 = 0x01;
    const UNINTERRUPTIBLE: u16 = 0x02;
    const EXIT_DEAD: u16 = 0x10;
    /// The bits that are shown; of several the highest.
    const REPORT: u16 = 0x7f;
    const DEAD: u16 = 0x80;
    const NOLOAD: u16 = 0x400;
    const RTLOCK_WAIT: u16 = 0x1000;
    const FROZEN: u16 = 0x8000;
    const REPORT_IDLE: i64 = 0x80;
    const PREEMPTED: i64 = 0x100;
    /// No kernel reports it; readers call it unknown.
    const UNKNOWN: i64 = 0x1000;
    match left {
        Left::Unknown => UNKNOWN,
        Left::Preempted => PREEMPTED,
        Left::Yielded | Left::Throttled | Left::Runnable => 0,
        Left::Exited => EXIT_DEAD.into(),
        Left::Blocked(state) if state & (UNINTERRUPTIBLE | NOLOAD) == UNINTERRUPTIBLE | NOLOAD => {
            REPORT_IDLE
        }
        Left::Blocked(state) if state & (RTLOCK_WAIT | FROZEN) != 0 => UNINTERRUPTIBLE.into(),
        Left::Blocked(state) if state & DEAD != 0 => EXIT_DEAD.into(),
        Left::Blocked(state) => match state & REPORT {
            0 => INTERRUPTIBLE.into(),
            bits => 1 << (u16::BITS - 1 - bits.leading_zeros()),
        },
    }
}
