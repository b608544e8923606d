//! Events that are worth a snapshot, found while they happen.
//!
//! A wrong alarm is worse than a late one. Records of the device come late, in batches, and not in order: a
//! gap is only believed when all that may have run in it has been heard of. So times at which a device was
//! busy are gathered as islands, and looked at up to a horizon before which nothing can come any more: the
//! time that records take to arrive, and no later than the first launch whose operation is still awaited.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::event::{
    ApiCall, CorrelationId, Define, DeviceId, Event, GpuOp, LossSource, NameId, Pid, ShimState, Tid,
};
use crate::model::api::{self, Class};
use crate::units::Nanos;

/// An event that is worth a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// A GPU had nothing to do for longer than this.
    Gap(Nanos),
    /// A thread of the target waited for a CPU for longer than this.
    RunQueue(Nanos),
    /// A thread of the target waited for anything for longer than this.
    Wait(Nanos),
}

impl Trigger {
    /// What is longer than this sets it off.
    pub fn least(self) -> Nanos {
        match self {
            Trigger::Gap(least) | Trigger::RunQueue(least) | Trigger::Wait(least) => least,
        }
    }

    /// Its event is known for sure so much later than it could be.
    pub fn alarm_after(self) -> Nanos {
        match self {
            Trigger::Gap(_) => ARRIVAL + PATIENCE,
            Trigger::RunQueue(_) | Trigger::Wait(_) => Nanos::ZERO,
        }
    }
}

impl fmt::Display for Trigger {
    /// As it is written on the command line, without a blank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, least) = match self {
            Trigger::Gap(least) => ("gap", least),
            Trigger::RunQueue(least) => ("runq", least),
            Trigger::Wait(least) => ("wait", least),
        };
        write!(f, "{what}>{}", least.to_string().replace(' ', ""))
    }
}

/// An operation that ended then has been heard of by so much later: the shim flushes every 250 ms, gdiag
/// reads every 100 ms, and CUPTI takes its time.
const ARRIVAL: Nanos = Nanos::from_millis(600);

/// An idle time that still lasts is told so much later than it could be: calls that return only when their
/// operation is done, as plain copies do, are not known before.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// A copy or memset may start nothing. It is awaited for so long.
const MAYBE: Nanos = Nanos::from_secs(2);

/// A launch that has no operation by then never will.
const NEVER: Nanos = Nanos::from_secs(60);

/// Awaited launches at most: the first of them decides, so of more the last are left out.
const MOST_AWAITED: usize = 1 << 17;

/// Alarms that are kept until they are asked for.
const MOST_FIRED: usize = 64;

/// What set off an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired {
    pub trigger: Trigger,
    pub start: Nanos,
    /// `None` when it still lasts.
    pub end: Option<Nanos>,
    pub who: Who,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// GPUs in the order in which they were first heard of.
    Gpu(usize),
    Thread(Tid),
}

impl Fired {
    /// Told with times from `start` on, at `now`.
    pub fn text(&self, start: Nanos, now: Nanos) -> String {
        let took = self.end.unwrap_or(now).saturating_sub(self.start);
        let since = |at: Nanos| at.saturating_sub(start);
        let who = match self.who {
            Who::Gpu(gpu) => format!("GPU {gpu}"),
            Who::Thread(tid) => format!("thread {tid}"),
        };
        match (self.trigger, self.end) {
            (Trigger::Gap(_), Some(end)) => {
                format!("gap of {took} on {who} ended at +{}", since(end))
            }
            (Trigger::Gap(_), None) => {
                format!("gap of {took} on {who} lasts since +{}", since(self.start))
            }
            (Trigger::RunQueue(_), _) => {
                format!("{who} waited {took} for a CPU from +{}", since(self.start))
            }
            (Trigger::Wait(_), _) => {
                format!("{who} waited {took} from +{}", since(self.start))
            }
        }
    }
}

/// A launch whose operation was not heard of yet.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    start: Nanos,
    until: Nanos,
}

/// When a device was busy: islands that are further apart than the gap that is looked for.
#[derive(Debug, Default)]
struct Islands {
    /// By start: the end.
    by_start: BTreeMap<Nanos, Nanos>,
    /// The idle time since the last one has been told.
    told: bool,
    users: HashSet<Pid>,
}

impl Islands {
    fn add(&mut self, mut start: Nanos, mut end: Nanos, gap: Nanos) {
        let near = |end: Nanos, start: Nanos| start.saturating_sub(end) <= gap;
        let before = self.by_start.range(..=start).next_back();
        if let Some((&s, &e)) = before.filter(|(_, &e)| near(e, start)) {
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.by_start.range(start..).next() {
            if !near(end, s) {
                break;
            }
            self.by_start.remove(&s);
            end = end.max(e);
        }
        self.by_start.insert(start, end);
    }

    /// The gap between the first two, if nothing can come into it any more.
    fn next_gap(&mut self, horizon: Nanos) -> Option<(Nanos, Nanos)> {
        let mut islands = self.by_start.iter();
        let (&first, &end) = islands.next()?;
        let (&start, _) = islands.next()?;
        if start > horizon {
            return None;
        }
        self.by_start.remove(&first);
        Some((end, start))
    }
}

/// Watches events for those that were asked for.
#[derive(Debug, Default)]
pub struct Triggers {
    gap: Option<Nanos>,
    run_queue: Option<Nanos>,
    wait: Option<Nanos>,
    targets: HashSet<Tid>,
    /// Texts of the ids that cards have.
    uuids: HashMap<NameId, String>,
    known: HashMap<String, usize>,
    gpus: HashMap<(Pid, DeviceId), usize>,
    devices: Vec<Islands>,
    awaited: HashMap<(Pid, CorrelationId), Awaited>,
    /// Operations that were heard of before their launch, and when.
    early: HashMap<(Pid, CorrelationId), Nanos>,
    /// Processes of which nothing is heard at the moment, since when.
    silent: HashMap<Pid, Nanos>,
    ended: HashSet<Pid>,
    fired: Vec<Fired>,
}

impl Triggers {
    pub fn new(triggers: &[Trigger]) -> Triggers {
        let least = |of: fn(&Trigger) -> Option<Nanos>| triggers.iter().filter_map(of).min();
        Triggers {
            gap: least(|t| match t {
                Trigger::Gap(least) => Some(*least),
                Trigger::RunQueue(_) | Trigger::Wait(_) => None,
            }),
            run_queue: least(|t| match t {
                Trigger::RunQueue(least) => Some(*least),
                Trigger::Gap(_) | Trigger::Wait(_) => None,
            }),
            wait: least(|t| match t {
                Trigger::Wait(least) => Some(*least),
                Trigger::Gap(_) | Trigger::RunQueue(_) => None,
            }),
            ..Triggers::default()
        }
    }

    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Task(e) if e.target => {
                self.targets.insert(e.tid);
            }
            Event::Exit(e) => {
                self.targets.remove(&e.tid);
                let uses_gpu = || self.devices.iter().any(|gpu| gpu.users.contains(&e.pid));
                if e.tid.0 == e.pid.0 && uses_gpu() {
                    self.ended.insert(e.pid);
                    self.awaited.retain(|(pid, _), _| *pid != e.pid);
                    self.silent.remove(&e.pid);
                }
            }
            Event::CpuWait(e) => {
                if let Some(least) = self.run_queue {
                    self.waited(Trigger::RunQueue(least), least, e.tid, e.start, e.end);
                }
            }
            Event::Wait(e) => {
                if let Some(least) = self.wait {
                    self.waited(Trigger::Wait(least), least, e.tid, e.start, e.end);
                }
            }
            Event::Define(_)
            | Event::Device(_)
            | Event::GpuOp(_)
            | Event::ApiCall(_)
            | Event::Shim(_)
            | Event::Loss(_) => {
                if let Some(gap) = self.gap {
                    self.gpu_event(event, gap);
                }
            }
            Event::Task(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Interrupt(_)
            | Event::SysCall(_)
            | Event::Stall(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Probes(_)
            | Event::Process(_)
            | Event::Clock(_) => {}
        }
    }

    fn gpu_event(&mut self, event: &Event, gap: Nanos) {
        if let Event::Define(Define::Name { id, text }) = event {
            if text.starts_with("GPU-") || text.starts_with("MIG-") {
                self.uuids.insert(*id, text.clone());
            }
        } else if let Event::Device(e) = event {
            let next = self.devices.len();
            let gpu = match self.uuids.get(&e.uuid) {
                Some(uuid) => *self.known.entry(uuid.clone()).or_insert(next),
                None => next,
            };
            let gpu = *self.gpus.entry((e.pid, e.id)).or_insert(gpu);
            self.device(gpu).users.insert(e.pid);
            self.ended.remove(&e.pid);
        } else if let Event::GpuOp(e) = event {
            self.operation(e, gap);
        } else if let Event::ApiCall(e) = event {
            self.call(e);
        } else if let Event::Shim(e) = event {
            match e.state {
                ShimState::Active => {
                    if let Some(since) = self.silent.remove(&e.pid) {
                        self.unknown(Some(e.pid), since, e.ts, gap);
                    }
                }
                ShimState::Dormant | ShimState::Paused | ShimState::Busy | ShimState::Failed => {
                    self.silent.entry(e.pid).or_insert(e.ts);
                }
            }
        } else if let Event::Loss(e) = event {
            match e.source {
                LossSource::ShimRing(pid) | LossSource::Cupti(pid) => {
                    self.unknown(Some(pid), e.from, e.to, gap);
                }
                LossSource::ClockStep | LossSource::Damage => {
                    self.unknown(None, e.from, e.to, gap);
                }
                LossSource::Bpf(_) => {}
            }
        }
    }

    fn device(&mut self, gpu: usize) -> &mut Islands {
        while self.devices.len() <= gpu {
            self.devices.push(Islands::default());
        }
        &mut self.devices[gpu]
    }

    fn operation(&mut self, e: &GpuOp, gap: Nanos) {
        let key = (e.pid, e.correlation);
        if self.awaited.remove(&key).is_none() && self.early.len() < MOST_AWAITED {
            self.early.insert(key, e.end);
        }
        let next = self.devices.len();
        let gpu = *self.gpus.entry((e.pid, e.device)).or_insert(next);
        let device = self.device(gpu);
        device.users.insert(e.pid);
        device.add(e.start, e.end, gap);
    }

    fn call(&mut self, e: &ApiCall) {
        let patience = match api::class(e.api) {
            Class::Launch | Class::GraphLaunch => NEVER,
            Class::Memcpy | Class::MemcpyAsync | Class::Memset => MAYBE,
            Class::Sync
            | Class::StreamWait
            | Class::Memory
            | Class::Module
            | Class::HostFunc
            | Class::Context
            | Class::Other => return,
        };
        let key = (e.pid, e.correlation);
        if e.correlation == ApiCall::PROBED || e.result != 0 || self.early.remove(&key).is_some() {
            return;
        }
        if self.awaited.len() < MOST_AWAITED && !self.ended.contains(&e.pid) {
            let until = e.end + patience;
            self.awaited.insert(
                key,
                Awaited {
                    start: e.start,
                    until,
                },
            );
        }
    }

    /// Something may have run then that was not recorded: no gap is claimed there.
    fn unknown(&mut self, pid: Option<Pid>, from: Nanos, to: Nanos, gap: Nanos) {
        for device in &mut self.devices {
            let uses = pid.is_none_or(|pid| device.users.contains(&pid));
            if uses && !device.by_start.is_empty() {
                device.add(from.min(to), to, gap);
            }
        }
    }

    fn waited(&mut self, trigger: Trigger, least: Nanos, tid: Tid, start: Nanos, end: Nanos) {
        if self.targets.contains(&tid) && end.saturating_sub(start) > least {
            self.fire(Fired {
                trigger,
                start,
                end: Some(end),
                who: Who::Thread(tid),
            });
        }
    }

    fn fire(&mut self, fired: Fired) {
        if self.fired.len() < MOST_FIRED {
            self.fired.push(fired);
        }
    }

    /// What has happened since the last call, as far as it is sure at `now`, when all that had arrived by
    /// then has been told.
    pub fn take(&mut self, now: Nanos) -> Vec<Fired> {
        if let Some(gap) = self.gap {
            self.gaps(now, gap);
        }
        std::mem::take(&mut self.fired)
    }

    fn gaps(&mut self, now: Nanos, gap: Nanos) {
        let recent = now.saturating_sub(MAYBE);
        self.early.retain(|_, end| *end >= recent);
        self.awaited.retain(|_, launch| launch.until >= now);
        let mut first: HashMap<Pid, Nanos> = HashMap::new();
        for (&(pid, _), launch) in &self.awaited {
            let known = first.entry(pid).or_insert(launch.start);
            *known = launch.start.min(*known);
        }
        let arrived = now.saturating_sub(ARRIVAL);
        let mut fired = Vec::new();
        for (gpu, device) in self.devices.iter_mut().enumerate() {
            let awaited = device.users.iter().filter_map(|pid| first.get(pid));
            let horizon = awaited.copied().fold(arrived, Nanos::min);
            let who = Who::Gpu(gpu);
            let trigger = Trigger::Gap(gap);
            while let Some((start, end)) = device.next_gap(horizon) {
                if !std::mem::take(&mut device.told) {
                    let end = Some(end);
                    fired.push(Fired {
                        trigger,
                        start,
                        end,
                        who,
                    });
                }
            }
            let is_used = |pid: &Pid| !self.ended.contains(pid) && !self.silent.contains_key(pid);
            let is_sure = device
                .users
                .iter()
                .all(|pid| !self.silent.contains_key(pid))
                && device.users.iter().any(is_used);
            let last = device.by_start.last_key_value().map(|(_, &end)| end);
            let alone = device.by_start.len() == 1;
            if let Some(start) = last.filter(|_| is_sure && alone && !device.told) {
                let still = start.0.saturating_add(gap.0).saturating_add(PATIENCE.0);
                if horizon.0 > still {
                    device.told = true;
                    fired.push(Fired {
                        trigger,
                        start,
                        end: None,
                        who,
                    });
                }
            }
        }
        for one in fired {
            self.fire(one);
        }
    }
}

#[cfg(test)]
mod tests;
