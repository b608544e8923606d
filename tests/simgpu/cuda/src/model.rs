//! The simulated devices: when each operation starts and ends.
//!
//! Nothing here reads a clock or blocks, so the rules can be tested with plain numbers.
//! The times of an operation are computed when it is submitted, because everything
//! before it is known by then. The one exception is a host function: it ends when the
//! host says so. What comes after it waits in [`Simulation::pending`] until then.
//!
//! The rules:
//! - a stream runs its operations in the order of submission;
//! - an operation starts its lead after its launch, or if something that it waits for ends later
//!   than that, a gap after that;
//! - a copy holds its copy engine alone; a hole in front of a copy that waits for something may be used;
//! - at most `concurrency` kernels run on a device at once;
//! - the null stream waits for all blocking streams of its context, and they for it.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::config::Config;
use crate::gaps::{Before, Gaps};

/// What the program holds for a context, stream or event. Never a valid address.
pub type Handle = u64;

/// When something ends, in ns; unknown until a host function before it has returned.
#[derive(Clone, Debug)]
pub struct Finish(Arc<AtomicU64>);

impl Finish {
    fn unknown() -> Finish {
        Finish(Arc::new(AtomicU64::new(0)))
    }

    pub fn get(&self) -> Option<u64> {
        match self.0.load(Ordering::Acquire) {
            0 => None,
            t => Some(t),
        }
    }

    fn set(&self, t: u64) {
        self.0.store(t.max(1), Ordering::Release);
    }

    fn is_past(&self, now: u64) -> bool {
        self.get().is_some_and(|t| t <= now)
    }
}

/// Something must have ended.
#[derive(Clone, Debug)]
struct Dep {
    finish: Finish,
    before: Before,
}

/// When something that reached the device at `launched` may start; `None` while an end is unknown.
fn ready(deps: &[Dep], launched: u64, gaps: &Gaps) -> Option<u64> {
    deps.iter().try_fold(launched, |earliest, dep| {
        let end = dep.finish.get()?;
        // What was over by then is no wait.
        let from = if end > launched {
            end + gaps.after(dep.before)
        } else {
            launched
        };
        Some(earliest.max(from))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
}

/// A host function as the program gave it, opaque here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFunction {
    pub function: usize,
    pub argument: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Work {
    Kernel {
        ns: u64,
    },
    Copy {
        direction: Direction,
        ns: u64,
    },
    /// A memset, or a copy inside the device: no engine.
    OnDevice {
        ns: u64,
    },
    Host(HostFunction),
}

/// An operation on its way to the device.
#[derive(Clone, Debug)]
pub struct Submission {
    pub stream: Handle,
    pub work: Work,
    /// libcupti's slot, handed back when the times are known.
    pub slot: u64,
    /// Start of the launch call: a negative lead cannot go before it.
    pub call_start: u64,
    /// When the device learned of it.
    pub doorbell: u64,
    /// From doorbell to start on an empty device.
    pub lead: i64,
    /// How long after what it waits for it starts.
    pub gaps: Gaps,
}

/// The times of an operation became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub slot: u64,
    pub start: u64,
    pub end: u64,
}

/// A host function whose turn comes at `at`.
#[derive(Clone, Debug)]
pub struct HostCall {
    pub at: u64,
    pub call: HostFunction,
    finish: Finish,
}

#[derive(Debug)]
struct Waiting {
    submission: Submission,
    device: usize,
    deps: Vec<Dep>,
    finish: Finish,
}

/// Something that at most `limit` operations use at once.
#[derive(Debug, Default)]
struct Resource {
    /// Reservations, by start.
    taken: Vec<(u64, u64)>,
    /// When the last of them ends.
    last: u64,
    /// How many reservations make it worth to drop the old ones.
    crowded: usize,
}

impl Resource {
    /// Reserves the first stretch of `ns` from `earliest` on in which fewer than `limit` others run.
    fn place(&mut self, earliest: u64, ns: u64, limit: usize, now: u64) -> u64 {
        // A negative lead reaches a little into the past, nothing else does.
        const PAST_NS: u64 = 100_000;
        if self.taken.len() >= self.crowded {
            self.taken.retain(|&(_, end)| end + PAST_NS > now);
            self.crowded = 2 * self.taken.len() + 64;
        }
        let start = if earliest >= self.last {
            earliest
        } else {
            self.first_fit(earliest, ns, limit)
        };
        let at = self.taken.partition_point(|&(s, _)| s <= start);
        self.taken.insert(at, (start, start + ns));
        self.last = self.last.max(start + ns);
        start
    }

    fn first_fit(&self, earliest: u64, ns: u64, limit: usize) -> u64 {
        let at_once = |t: u64| self.taken.iter().filter(|&&(s, e)| s <= t && t < e).count();
        let fits = |start: u64| {
            // The number of users only grows where one starts.
            at_once(start) < limit
                && self
                    .taken
                    .iter()
                    .filter(|&&(s, _)| start < s && s < start + ns)
                    .all(|&(s, _)| at_once(s) < limit)
        };
        if fits(earliest) {
            return earliest;
        }
        let ends = self.taken.iter().map(|&(_, end)| end);
        ends.filter(|&end| end > earliest && fits(end))
            .min()
            .unwrap_or(self.last)
    }
}

#[derive(Debug, Default)]
struct Device {
    compute: Resource,
    /// One per direction.
    engines: [Resource; 2],
}

#[derive(Debug)]
pub struct Context {
    pub id: u32,
    pub device: usize,
    pub null_stream: Handle,
    /// Synchronising calls sleep, whatever [`Config::sync`] says.
    pub blocking: bool,
    /// What destroyed streams left behind.
    orphans: Vec<Dep>,
}

#[derive(Debug)]
pub struct Stream {
    pub id: u32,
    pub context: Handle,
    pub device: usize,
    pub priority: i32,
    /// Neither waits for the null stream nor holds it up.
    non_blocking: bool,
    /// What the next operation waits for: the one before it, and events.
    tail: Vec<Dep>,
    in_flight: VecDeque<Finish>,
}

#[derive(Debug)]
pub struct Event {
    pub id: u32,
    pub context: Handle,
    /// Synchronising with it sleeps, whatever [`Config::sync`] says.
    pub blocking: bool,
    finishes: Vec<Finish>,
}

#[derive(Debug)]
pub struct Simulation {
    config: Config,
    devices: Vec<Device>,
    pub contexts: HashMap<Handle, Context>,
    pub streams: HashMap<Handle, Stream>,
    pub events: HashMap<Handle, Event>,
    /// Operations behind a host function, in the order of submission.
    pending: VecDeque<Waiting>,
    /// Host functions whose turn is known.
    host_calls: Vec<HostCall>,
    handles: u64,
    context_ids: u32,
    stream_ids: u32,
    event_ids: u32,
}

/// The ids that CUPTI shows for the first context's null stream and the first created stream.
const FIRST_NULL_STREAM_ID: u32 = 7;
const FIRST_STREAM_ID: u32 = 13;

impl Simulation {
    pub fn new(config: &Config) -> Simulation {
        Simulation {
            devices: (0..config.devices).map(|_| Device::default()).collect(),
            config: config.clone(),
            contexts: HashMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            pending: VecDeque::new(),
            host_calls: Vec::new(),
            handles: 0,
            context_ids: 0,
            stream_ids: FIRST_STREAM_ID - 1,
            event_ids: 0,
        }
    }

    /// A new handle. Low addresses are never mapped, so a program that follows one faults at once.
    pub fn handle(&mut self) -> Handle {
        self.handles += 1;
        0x1000 + self.handles * 0x10
    }

    pub fn create_context(&mut self, device: usize, blocking: bool) -> Handle {
        let handle = self.handle();
        let null_stream = self.handle();
        self.context_ids += 1;
        let id = if self.context_ids == 1 {
            FIRST_NULL_STREAM_ID
        } else {
            self.next_stream_id()
        };
        self.streams.insert(
            null_stream,
            Stream {
                id,
                context: handle,
                device,
                priority: 0,
                non_blocking: false,
                tail: Vec::new(),
                in_flight: VecDeque::new(),
            },
        );
        self.contexts.insert(
            handle,
            Context {
                id: self.context_ids,
                device,
                null_stream,
                blocking,
                orphans: Vec::new(),
            },
        );
        handle
    }

    /// False when there is no such context.
    pub fn destroy_context(&mut self, context: Handle) -> bool {
        self.streams.retain(|_, stream| stream.context != context);
        self.events.retain(|_, event| event.context != context);
        self.contexts.remove(&context).is_some()
    }

    fn next_stream_id(&mut self) -> u32 {
        self.stream_ids += 1;
        self.stream_ids
    }

    pub fn create_stream(
        &mut self,
        context: Handle,
        non_blocking: bool,
        priority: i32,
    ) -> Option<Handle> {
        let device = self.contexts.get(&context)?.device;
        let handle = self.handle();
        let id = self.next_stream_id();
        self.streams.insert(
            handle,
            Stream {
                id,
                context,
                device,
                priority,
                non_blocking,
                tail: Vec::new(),
                in_flight: VecDeque::new(),
            },
        );
        Some(handle)
    }

    /// The stream is gone at once, its work goes on.
    pub fn destroy_stream(&mut self, handle: Handle, now: u64) -> bool {
        let Some(stream) = self.streams.remove(&handle) else {
            return false;
        };
        if let Some(context) = self.contexts.get_mut(&stream.context) {
            context.orphans.retain(|dep| !dep.finish.is_past(now));
            context.orphans.extend(stream.tail);
        }
        true
    }

    pub fn create_event(&mut self, context: Handle, blocking: bool) -> Handle {
        let handle = self.handle();
        self.event_ids += 1;
        self.events.insert(
            handle,
            Event {
                id: self.event_ids,
                context,
                blocking,
                finishes: Vec::new(),
            },
        );
        handle
    }

    fn is_null(&self, handle: Handle, stream: &Stream) -> bool {
        self.contexts
            .get(&stream.context)
            .is_some_and(|context| context.null_stream == handle)
    }

    /// What an operation enqueued now waits for.
    fn deps_of(&self, handle: Handle, stream: &Stream) -> Vec<Dep> {
        let mut deps = stream.tail.clone();
        let mut across = |other: &Stream| {
            deps.extend(other.tail.iter().map(|dep| Dep {
                finish: dep.finish.clone(),
                before: Before::Event,
            }));
        };
        if self.is_null(handle, stream) {
            self.streams
                .iter()
                .filter(|(&h, s)| h != handle && s.context == stream.context && !s.non_blocking)
                .for_each(|(_, other)| across(other));
        } else if !stream.non_blocking {
            let context = self.contexts.get(&stream.context);
            if let Some(null) = context.and_then(|c| self.streams.get(&c.null_stream)) {
                across(null);
            }
        }
        deps
    }

    /// The operation that must end before the stream takes another one; `None` when there is room.
    pub fn queue_front(&mut self, stream: Handle, now: u64) -> Option<Finish> {
        let stream = self.streams.get_mut(&stream)?;
        while stream.in_flight.front().is_some_and(|f| f.is_past(now)) {
            stream.in_flight.pop_front();
        }
        (stream.in_flight.len() >= self.config.queue)
            .then(|| stream.in_flight[stream.in_flight.len() - self.config.queue].clone())
    }

    /// `None` when there is no such stream. The operation's times, if known, are in `settled` too.
    pub fn submit(&mut self, submission: Submission, settled: &mut Vec<Settled>) -> Option<Finish> {
        let stream = self.streams.get(&submission.stream)?;
        let deps = self.deps_of(submission.stream, stream);
        let finish = Finish::unknown();
        let waiting = Waiting {
            device: stream.device,
            deps,
            finish: finish.clone(),
            submission,
        };
        let tail = Dep {
            finish: finish.clone(),
            before: Before::of(&waiting.submission.work),
        };
        let now = waiting.submission.doorbell;
        let handle = waiting.submission.stream;
        if let Some(waiting) = self.schedule(waiting, now, settled) {
            self.pending.push_back(waiting);
        }
        let stream = self.streams.get_mut(&handle)?;
        stream.tail = vec![tail];
        while stream.in_flight.front().is_some_and(|f| f.is_past(now)) {
            stream.in_flight.pop_front();
        }
        stream.in_flight.push_back(finish.clone());
        Some(finish)
    }

    /// Gives the operation its times, or gives it back when something before it is unknown.
    fn schedule(&mut self, op: Waiting, now: u64, settled: &mut Vec<Settled>) -> Option<Waiting> {
        let s = &op.submission;
        let launched = s.doorbell.saturating_add_signed(s.lead).max(s.call_start);
        let Some(earliest) = ready(&op.deps, launched, &s.gaps) else {
            return Some(op);
        };
        let device = &mut self.devices[op.device];
        let (start, ns) = match s.work {
            Work::Kernel { ns } => {
                let (ns, limit) = (ns.max(1), self.config.concurrency);
                (device.compute.place(earliest, ns, limit, now), ns)
            }
            Work::Copy { direction, ns } => {
                let owner = if self.config.shared_copy {
                    0
                } else {
                    op.device
                };
                let engine = &mut self.devices[owner].engines[direction as usize];
                let ns = ns.max(1);
                (engine.place(earliest, ns + s.gaps.engine, 1, now), ns)
            }
            Work::OnDevice { ns } => (earliest, ns.max(1)),
            Work::Host(call) => {
                self.host_calls.push(HostCall {
                    at: earliest,
                    call,
                    finish: op.finish,
                });
                return None;
            }
        };
        let end = start + ns;
        op.finish.set(end);
        settled.push(Settled {
            slot: s.slot,
            start,
            end,
        });
        None
    }

    /// The host function whose turn comes first, taken out if it has come.
    pub fn take_host_call(&mut self, now: u64) -> Result<HostCall, Option<u64>> {
        let first = self
            .host_calls
            .iter()
            .enumerate()
            .min_by_key(|(_, call)| call.at)
            .map(|(index, call)| (index, call.at));
        match first {
            Some((index, at)) if at <= now => Ok(self.host_calls.remove(index)),
            Some((_, at)) => Err(Some(at)),
            None => Err(None),
        }
    }

    /// A host function returned at `now`: what waited for it gets its times.
    pub fn host_returned(&mut self, call: &HostCall, now: u64, settled: &mut Vec<Settled>) {
        call.finish.set(now);
        // One pass is enough: an operation only waits for earlier ones.
        for op in std::mem::take(&mut self.pending) {
            if let Some(still) = self.schedule(op, now, settled) {
                self.pending.push_back(still);
            }
        }
    }

    /// What is in the stream now.
    pub fn stream_work(&self, handle: Handle, now: u64) -> Option<Vec<Finish>> {
        let stream = self.streams.get(&handle)?;
        let deps = self.deps_of(handle, stream).into_iter();
        let finishes = deps.map(|dep| dep.finish);
        Some(finishes.filter(|finish| !finish.is_past(now)).collect())
    }

    /// What is in all streams of a context now.
    pub fn context_work(&self, context: Handle) -> Vec<Finish> {
        let streams = self.streams.values().filter(|s| s.context == context);
        let orphans = self.contexts.get(&context).map(|c| &c.orphans);
        streams
            .flat_map(|s| &s.tail)
            .chain(orphans.into_iter().flatten())
            .map(|dep| dep.finish.clone())
            .collect()
    }

    /// What is on a device now, in all contexts.
    pub fn device_work(&self, device: usize) -> Vec<Finish> {
        let contexts = self.contexts.iter().filter(|(_, c)| c.device == device);
        contexts
            .flat_map(|(&handle, _)| self.context_work(handle))
            .collect()
    }

    /// False when there is no such event or stream.
    pub fn record_event(&mut self, event: Handle, stream: Handle, now: u64) -> bool {
        let Some(work) = self.stream_work(stream, now) else {
            return false;
        };
        let Some(event) = self.events.get_mut(&event) else {
            return false;
        };
        event.finishes = work;
        true
    }

    /// What an event waits for; empty for an event that was never recorded.
    pub fn event_work(&self, event: Handle) -> Option<Vec<Finish>> {
        self.events.get(&event).map(|event| event.finishes.clone())
    }

    /// Makes later work of the stream wait for an event. False when one of them does not exist.
    pub fn wait_event(&mut self, stream: Handle, event: Handle, now: u64) -> bool {
        let Some(work) = self.event_work(event) else {
            return false;
        };
        let Some(stream) = self.streams.get_mut(&stream) else {
            return false;
        };
        stream.tail.extend(
            work.into_iter()
                .filter(|finish| !finish.is_past(now))
                .map(|finish| Dep {
                    finish,
                    before: Before::Event,
                }),
        );
        true
    }
}

#[cfg(test)]
mod tests;
