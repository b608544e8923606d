//! Events as they come, until their slice can be analysed.
//!
//! Records of a device come up to a second late, a wait is told when it ends, and a launch may be long before its
//! operation. So events are kept by the time when they ended, in steps, and a slice waits until what belongs to it has arrived. What is
//! older than what slices may still need is carried on as a state: who each thread is and what it does, what
//! the devices did last. Memory depends on the rate of events, not on how long it has been going on.

use std::collections::VecDeque;

use super::awaited::Awaited;
use super::slice::{again, slice};
use super::{Missing, Slice, SliceOptions};
use crate::analyse::report::{Gap, Part};
use crate::event::{
    ApiCall, Define, DeviceId, Event, GpuOp, Loss, LossSource, NameId, Pid, Switch, Tid,
};
use crate::fxhash::{FxHashMap, FxHashSet};
use crate::model::api::{self, Class};
use crate::model::names::Names;
use crate::model::Timeline;
use crate::store::meta::{Meta, Summary, TargetMode};
use crate::store::{Before, Used};
use crate::units::Nanos;

/// A slice.
pub const SLICE: Nanos = Nanos::from_millis(500);

/// Events are kept by steps of this length.
const STEP: Nanos = Nanos::from_millis(100);

/// What happened so long before a slice and after it is looked at with it: chains of wakeups, and what was launched ahead.
const AROUND: Nanos = Nanos::from_millis(100);

/// What happened has been heard of by so much later: the shim flushes every 250 ms, gdiag reads every 100 ms,
/// and CUPTI takes its time.
pub const ARRIVAL: Nanos = Nanos::from_millis(600);

/// A slice waits no longer than this for operations that were launched.
const PATIENCE: Nanos = Nanos::from_millis(2_500);

/// A gap is looked at as a whole when it ends, unless it began longer ago.
const LONGEST_LOOK_BACK: Nanos = Nanos::from_secs(10);

/// For a gap that began long ago no more events than this are kept.
const MOST_KEPT: usize = 400_000;

/// A launch that has no operation by then never will.
const NEVER: Nanos = Nanos::from_secs(60);

/// Emptied steps that are kept for their room.
const MOST_SPARE: usize = 8;

/// Slices that are waiting at most, before the oldest are left out.
const MOST_LATE: u64 = 4;

/// Slices that are made in one go at most. Times come from outside: one may be from far in the future.
const MOST_AT_ONCE: u64 = 600;

/// A time that leaves room to calculate.
const LATEST: Nanos = Nanos(u64::MAX / 2);

/// What a process that is stopped has not handed over ended in this time before it.
const HELD_BACK: Nanos = Nanos::from_secs(1);

/// An event, and from when on it matters: an operation does from its launch on, without which it cannot be told
/// whether that came back.
type Kept = (Nanos, Event);

/// Events of one step, by when they ended.
type Step = Vec<Kept>;

/// An idle time that had not ended.
#[derive(Clone, Debug)]
struct OpenGap {
    gpu: String,
    start: Nanos,
    /// Its end, after the slice, was known already.
    ended: bool,
    /// As it was told last.
    parts: Vec<Part>,
}

/// Since when it is not known what a device did, as not all that it was to do has come back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unknown {
    gpu: String,
    since: Nanos,
}

/// Operations that came after their slice.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    /// The first of them started then.
    since: Option<Nanos>,
    /// Those that are not counted in all of their time, as their slices cannot be made again.
    lost: u64,
    time: Nanos,
}

/// What was heard of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// When its last operation ended.
    end: Nanos,
    /// When the last launch was made whose operation has come.
    launched: Nanos,
}

#[derive(Debug)]
pub struct Feed {
    meta: Meta,
    options: SliceOptions,
    names: Names,
    /// Since ids were forgotten; what was defined before goes when nothing mentions it.
    fresh: Option<Fresh>,
    before: Before,
    /// When the feed began.
    began: Nanos,
    /// What was before that is not looked at.
    shown_from: Nanos,
    /// When `before` holds, and the first of `steps` begins.
    start: Nanos,
    steps: VecDeque<Step>,
    /// Emptied ones, with their room.
    spare: Vec<Step>,
    kept: usize,
    /// The next slice begins here.
    next: Nanos,
    awaited: Awaited,
    devices: Devices,
    open: Vec<OpenGap>,
    unknown: Vec<Unknown>,
    late: Late,
    /// By how much operations were late lately.
    reach: Nanos,
    /// Processes that are stopped, and since when.
    stopped: FxHashMap<Pid, Nanos>,
    /// The last slices, oldest first.
    told: VecDeque<Slice>,
    /// Events and losses that came since the last slice.
    events: u64,
    lost: u64,
    /// Slices that were left out to catch up.
    skipped: u64,
}

/// Definitions since ids were forgotten.
#[derive(Debug)]
struct Fresh {
    defines: Vec<Define>,
    /// Names from before that events still use.
    names: FxHashSet<NameId>,
    /// Events from before are gone when the steps begin after this.
    since: Nanos,
}

/// What devices did last, of what is not kept any more.
#[derive(Debug, Default)]
struct Devices {
    last_op: FxHashMap<(Pid, DeviceId), GpuOp>,
    /// The last launch of each thread.
    last_launch: FxHashMap<(Pid, Tid), ApiCall>,
    /// Those that are not there yet: most come from one device, and one thread, in a row.
    newest_op: Option<GpuOp>,
    newest_launch: Option<ApiCall>,
    /// Of each process, of all that came.
    heard: FxHashMap<Pid, Heard>,
}

impl Devices {
    fn operation(&mut self, e: &GpuOp) {
        let device = |op: &GpuOp| (op.pid, op.device);
        match &mut self.newest_op {
            Some(newest) if device(newest) == device(e) => {
                if e.end >= newest.end {
                    *newest = *e;
                }
            }
            other => {
                let before = other.replace(*e);
                self.file(before, None);
            }
        }
    }

    fn call(&mut self, e: &ApiCall) {
        if !api::starts_kernels(api::class(e.api)) {
            return;
        }
        let thread = |call: &ApiCall| (call.pid, call.tid);
        match &mut self.newest_launch {
            Some(newest) if thread(newest) == thread(e) => {
                if e.start >= newest.start {
                    *newest = *e;
                }
            }
            other => {
                let before = other.replace(*e);
                self.file(None, before);
            }
        }
    }

    fn file(&mut self, op: Option<GpuOp>, launch: Option<ApiCall>) {
        if let Some(e) = op {
            let last = self.last_op.entry((e.pid, e.device)).or_insert(e);
            if e.end >= last.end {
                *last = e;
            }
        }
        if let Some(e) = launch {
            let last = self.last_launch.entry((e.pid, e.tid)).or_insert(e);
            if e.start >= last.start {
                *last = e;
            }
        }
    }

    fn file_all(&mut self) {
        let (op, launch) = (self.newest_op.take(), self.newest_launch.take());
        self.file(op, launch);
    }

    fn other(&mut self, event: &Event) {
        let Event::Exit(e) = event else { return };
        self.file_all();
        self.last_launch.remove(&(e.pid, e.tid));
        if e.tid.0 == e.pid.0 {
            self.last_op.retain(|(pid, _), _| *pid != e.pid);
            self.heard.remove(&e.pid);
        }
    }

    fn forget_launches(&mut self, which: impl Fn(&ApiCall) -> bool) {
        self.file_all();
        self.last_launch.retain(|_, call| !which(call));
    }

    /// What a timeline begins with.
    fn events(&mut self) -> Vec<Event> {
        self.file_all();
        let ops = self.last_op.values().map(|e| Event::GpuOp(*e));
        let launches = self.last_launch.values().map(|e| Event::ApiCall(*e));
        ops.chain(launches).collect()
    }
}

/// When it was over.
fn end(event: &Event) -> Option<Nanos> {
    match event {
        Event::Interrupt(e) => Some(e.start.saturating_add(e.dur)),
        Event::Wait(e) => Some(e.end),
        Event::CpuWait(e) => Some(e.end),
        Event::Stall(e) => Some(e.start.saturating_add(e.dur)),
        Event::SysCall(e) => Some(e.end),
        Event::GpuOp(e) => Some(e.end),
        Event::Migration(e) => Some(e.end),
        Event::ApiCall(e) => Some(e.end),
        Event::Sync(e) => Some(e.end),
        Event::Overhead(e) => Some(e.end),
        Event::Loss(e) => Some(e.to),
        Event::Define(_)
        | Event::Task(_)
        | Event::Exit(_)
        | Event::Switch(_)
        | Event::Waking(_)
        | Event::Signal(_)
        | Event::Sample(_)
        | Event::GpuInvalid(_)
        | Event::Device(_)
        | Event::Shim(_)
        | Event::Probes(_)
        | Event::Process(_)
        | Event::Clock(_) => event.ts(),
    }
}

impl Feed {
    /// `start` is when the first slice begins.
    pub fn new(meta: &Meta, start: Nanos, options: SliceOptions) -> Feed {
        Feed {
            meta: Meta {
                // A device is looked at all the time, not from its first operation to its last.
                mode: match meta.mode {
                    TargetMode::Launch | TargetMode::Attach => TargetMode::Attach,
                    TargetMode::All => TargetMode::All,
                },
                ..meta.clone()
            },
            options,
            names: Names::default(),
            fresh: None,
            before: Before::default(),
            began: start,
            shown_from: start,
            start,
            steps: VecDeque::new(),
            spare: Vec::new(),
            kept: 0,
            next: start,
            awaited: Awaited::default(),
            devices: Devices::default(),
            open: Vec::new(),
            unknown: Vec::new(),
            late: Late::default(),
            reach: Nanos::ZERO,
            stopped: FxHashMap::default(),
            told: VecDeque::new(),
            events: 0,
            lost: 0,
            skipped: 0,
        }
    }

    /// Slices that were not analysed because there was too much to do.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Where the next slice begins: up to there all is known.
    pub fn until(&self) -> Nanos {
        self.next
    }

    /// Ids that were given so far are not used any more by events that come, but for these `names`.
    pub fn forget_ids(&mut self, names: FxHashSet<NameId>) {
        let since = self.steps_end();
        self.fresh = Some(Fresh {
            defines: Vec::new(),
            names,
            since,
        });
    }

    fn steps_end(&self) -> Nanos {
        Nanos(self.start.0 + STEP.0 * self.steps.len() as u64)
    }

    pub fn push(&mut self, event: Event) {
        if let Event::Define(define) = event {
            self.names.define(&define);
            if let Some(fresh) = &mut self.fresh {
                fresh.defines.push(define);
            }
            return;
        }
        self.events += 1;
        let mut since = event.ts().unwrap_or(self.start);
        match &event {
            Event::GpuOp(e) => {
                if e.start < self.next {
                    self.is_late(e);
                }
                let heard = self.devices.heard.entry(e.pid).or_default();
                heard.end = e.end.max(heard.end);
                if let Some(call) = self.awaited.remove(e.pid, e.correlation) {
                    heard.launched = call.start.max(heard.launched);
                    since = call.start.min(e.start);
                    // They are kept as long as each other. That there are two of it does no harm.
                    if self.step_of(call.end) < self.step_of(e.end) {
                        self.keep(e.end, (call.start, Event::ApiCall(call)));
                    }
                }
            }
            Event::ApiCall(e) => self.call(e),
            Event::Loss(e) => self.lost = self.lost.saturating_add(e.count),
            Event::Exit(e) if e.tid.0 == e.pid.0 => {
                self.awaited.forget(e.pid);
                self.stopped.remove(&e.pid);
            }
            Event::Switch(e) => self.switch(e),
            Event::Define(_)
            | Event::Task(_)
            | Event::Exit(_)
            | Event::Waking(_)
            | Event::Interrupt(_)
            | Event::Wait(_)
            | Event::CpuWait(_)
            | Event::Stall(_)
            | Event::SysCall(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Device(_)
            | Event::Shim(_)
            | Event::Probes(_)
            | Event::Process(_)
            | Event::Clock(_) => {}
        }
        let at = end(&event).unwrap_or(self.start);
        self.keep(at, (since, event));
    }

    /// It started in a slice that was told already, and may be in none.
    fn is_late(&mut self, e: &GpuOp) {
        if e.end <= self.shown_from {
            return;
        }
        let floor = self.floor();
        let mut again = self.told.iter().map(|slice| slice.from);
        let from = again.find(|&from| from >= floor).unwrap_or(self.next);
        let gone = e.end.min(from).saturating_sub(e.start.max(self.shown_from));
        if gone > Nanos::ZERO {
            self.late.lost += 1;
            self.late.time = self.late.time.saturating_add(gone);
        }
        let by = self.next.saturating_sub(e.start);
        self.reach = self.reach.max(by).min(PATIENCE);
        let since = self.late.since.map_or(e.start, |since| since.min(e.start));
        self.late.since = Some(since);
    }

    /// When its main thread is stopped a process is.
    fn switch(&mut self, e: &Switch) {
        /// `TASK_STOPPED` and `TASK_TRACED`.
        const STOPPED: u16 = 0x4 | 0x8;
        if e.state & STOPPED != 0 && self.devices.heard.contains_key(&Pid(e.prev.0)) {
            self.stopped.insert(Pid(e.prev.0), e.ts);
        }
        if !self.stopped.is_empty() {
            self.stopped.remove(&Pid(e.next.0));
        }
    }

    fn call(&mut self, e: &ApiCall) {
        match api::class(e.api) {
            Class::Launch
            | Class::GraphLaunch
            | Class::Memcpy
            | Class::MemcpyAsync
            | Class::Memset => {
                let runs = e.correlation != ApiCall::PROBED && e.result == 0;
                if runs {
                    self.awaited.insert(*e);
                }
            }
            // What was launched into a graph until now does not run by itself.
            Class::Module if api::name(e.api).contains("GraphInstantiate") => {
                let awaited = &self.awaited;
                let is_captured = |call: &ApiCall| {
                    call.pid == e.pid
                        && call.start < e.start
                        && awaited.contains(call.pid, call.correlation)
                };
                self.devices.forget_launches(is_captured);
                self.awaited.give_up(e.pid, e.start);
            }
            Class::Sync
            | Class::StreamWait
            | Class::Memory
            | Class::Module
            | Class::HostFunc
            | Class::Context
            | Class::Other => {}
        }
    }

    /// The number of the step in which something ended. Times come from outside, too: one from far in the future makes
    /// no steps until then.
    fn step_of(&self, end: Nanos) -> usize {
        const MOST_STEPS: u64 = 3_000;
        let index = end.saturating_sub(self.start).0 / STEP.0;
        usize::try_from(index.min(MOST_STEPS)).unwrap_or(0)
    }

    fn keep(&mut self, end: Nanos, event: Kept) {
        let index = self.step_of(end);
        if self.steps.len() <= index {
            let spare = &mut self.spare;
            (self.steps).resize_with(index + 1, || spare.pop().unwrap_or_default());
        }
        self.steps[index].push(event);
        self.kept += 1;
    }

    /// The slices that are complete when all that had arrived by `until` was pushed. One that was there before
    /// takes the place of that: more is known about it. What is too late by then is left out, by the clock; with `None` there
    /// is all the time that it takes.
    pub fn take(&mut self, until: Nanos, now: Option<Nanos>) -> Vec<Slice> {
        let mut slices = Vec::new();
        self.jump(until);
        loop {
            let to = self.next.saturating_add(SLICE);
            let due = to.saturating_add(ARRIVAL);
            let latest = to.saturating_add(PATIENCE);
            if until < due || (self.is_awaited(to) && until < latest) || to > LATEST {
                break;
            }
            let late = now.map_or(0, |now| now.saturating_sub(latest).0 / SLICE.0);
            if late >= MOST_LATE {
                self.skip(1);
            } else {
                self.analyse(to, &mut slices);
                self.next = to;
            }
            self.age(until);
        }
        slices
    }

    /// Nothing of it is lost for what comes after it.
    fn skip(&mut self, slices: u64) {
        self.skipped = self.skipped.saturating_add(slices);
        self.forget_told();
        self.next = Nanos(self.next.0.saturating_add(SLICE.0.saturating_mul(slices)));
    }

    fn forget_told(&mut self) {
        self.open.clear();
        self.unknown.clear();
        (self.events, self.lost) = (0, 0);
    }

    /// There are not more slices to make than anybody wants to see.
    fn jump(&mut self, until: Nanos) {
        let slices = until.min(LATEST).saturating_sub(self.next).0 / SLICE.0;
        if slices > MOST_AT_ONCE {
            self.skip(slices - MOST_AT_ONCE);
            self.age(until);
        }
    }

    /// What has not been analysed of the time until `end`, when nothing comes any more. The last slice may be shorter.
    pub fn finish(&mut self, end: Nanos) -> Vec<Slice> {
        let end = end.min(LATEST);
        let mut slices = Vec::new();
        self.jump(end);
        while self.next < end {
            let to = (self.next + SLICE).min(end);
            self.analyse(to, &mut slices);
            self.next = to;
            self.age(end);
        }
        slices
    }

    /// The text of a name that events used a moment ago.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id)
    }

    /// What was until `to` is not to be analysed.
    pub fn pass(&mut self, to: Nanos) {
        if to > self.next {
            self.next = to;
            self.shown_from = to;
            self.told.clear();
            self.forget_told();
            self.age(to);
        }
    }

    /// By how much slices are later than they have to be by the clock; a little is nothing.
    pub fn behind(&self, now: Nanos) -> Option<Nanos> {
        let due = self.next.saturating_add(SLICE + ARRIVAL);
        let late = now.saturating_sub(due);
        (late >= PATIENCE).then_some(late)
    }

    /// Operations that may have run before `to` have not been heard of.
    fn is_awaited(&self, to: Nanos) -> bool {
        let heard = |pid: Pid| {
            self.devices
                .heard
                .get(&pid)
                .is_some_and(|heard| heard.end >= to)
        };
        let mut awaited = self.awaited.before(to);
        awaited.any(|(pid, call)| !heard(pid) && is_due(call))
    }

    /// From here on slices can be made again: all of their events are there.
    fn floor(&self) -> Nanos {
        if self.start == self.began {
            self.began
        } else {
            self.start + AROUND
        }
    }

    fn analyse(&mut self, to: Nanos, slices: &mut Vec<Slice>) {
        let from = self.next;
        let timeline = self.timeline(to);
        let mut newest = slice(&timeline, from, to, &self.options);
        newest.events = std::mem::take(&mut self.events);
        newest.lost = std::mem::take(&mut self.lost);
        let late = std::mem::take(&mut self.late);
        newest.came_late(late.lost, late.time);
        complete(&mut newest, &self.open, self.start);
        if let Some(since) = self.known_since(&newest, late) {
            let floor = self.floor();
            let earlier = self.told.iter_mut();
            for old in earlier.filter(|old| old.to > since && old.from >= floor) {
                let mut more = again(&timeline, old, &self.options);
                complete(&mut more, &self.open, self.start);
                *old = more;
                slices.push(old.clone());
            }
        }
        self.open = open_gaps(&newest);
        self.unknown = unknown_of(&newest);
        self.told.push_back(newest.clone());
        let oldest = to.saturating_sub(LONGEST_LOOK_BACK);
        while self.told.front().is_some_and(|told| told.to <= oldest) {
            self.told.pop_front();
        }
        slices.push(newest);
        self.reach = Nanos(self.reach.0 / 4 * 3);
        self.names = timeline.into_names();
    }

    /// From then on more is known than when it was told.
    fn known_since(&self, newest: &Slice, late: Late) -> Option<Nanos> {
        // What was said of a gap while it lasted was all that was known then.
        let still = open_gaps(newest);
        let ended = self.open.iter().filter(|gap| {
            let is_same =
                |other: &OpenGap| other.gpu == gap.gpu && other.start == gap.start && !other.ended;
            !gap.ended && !still.iter().any(is_same)
        });
        let known = self.unknown.iter().filter(|unknown| {
            let known = newest.known_until(&unknown.gpu);
            known.is_some_and(|until| until > unknown.since && until > self.floor())
        });
        let ended = ended.map(|gap| gap.start);
        let known = known.map(|unknown| unknown.since);
        ended.chain(known).chain(late.since).min()
    }

    /// All that is known of the time until `to`, and a little after it.
    fn timeline(&mut self, to: Nanos) -> Timeline {
        let until = to + AROUND;
        let meta = Meta {
            start_mono_ns: self.start.0,
            ..self.meta.clone()
        };
        let mut timeline = Timeline::with_names(&meta, std::mem::take(&mut self.names));
        for event in self.before.events(self.start) {
            timeline.push(&event);
        }
        for event in self.devices.events() {
            timeline.push(&event);
        }
        for event in self.running().chain(self.held_back(until)) {
            timeline.push(&event);
        }
        for (since, event) in self.steps.iter().flatten() {
            if *since < until {
                timeline.push(event);
            }
        }
        timeline.finish(Some(&Summary {
            end_mono_ns: until.0,
            ..Summary::default()
        }));
        timeline
    }

    /// Launches whose steps are gone, and whose operations can be running all the time since. A timeline concludes nothing
    /// from what was launched before it.
    fn running(&self) -> impl Iterator<Item = Event> + '_ {
        let is_last = |pid: Pid, call: &ApiCall| {
            let heard = self.devices.heard.get(&pid);
            heard.is_none_or(|heard| heard.launched < call.start)
        };
        let old = self.awaited.before(self.start);
        old.filter(move |&(pid, call)| call.end < self.start && is_due(call) && is_last(pid, call))
            .map(|(_, call)| {
                Event::ApiCall(ApiCall {
                    start: self.start,
                    end: self.start,
                    ..*call
                })
            })
    }

    /// A process that is stopped hands nothing over, nor what was before.
    fn held_back(&self, until: Nanos) -> impl Iterator<Item = Event> + '_ {
        let stopped = self.stopped.iter().filter(move |(_, &at)| at < until);
        stopped.map(move |(&pid, &at)| {
            let heard = self.devices.heard.get(&pid).map_or(at, |heard| heard.end);
            Event::Loss(Loss {
                from: heard.max(at.saturating_sub(HELD_BACK)).min(at),
                to: until,
                source: LossSource::Cupti(pid),
                count: 0,
            })
        })
    }

    /// Lets go of what no slice needs any more.
    fn age(&mut self, now: Nanos) {
        let needed = self.next.saturating_sub(AROUND);
        // A slice that may be made again is needed as a whole.
        let begin = |at: Nanos| {
            let slice = self.told.iter().find(|told| told.to > at);
            let begin = slice.map_or(at, |slice| slice.from.min(at));
            begin.saturating_sub(AROUND)
        };
        let open = self.open.iter().filter(|gap| !gap.ended);
        let gaps = open.map(|gap| gap.start);
        let unknown = self.unknown.iter().map(|unknown| unknown.since);
        let late = self.next.saturating_sub(self.reach);
        let late = Some(late).filter(|_| self.reach >= Nanos::from_millis(1));
        let again = gaps.chain(unknown).chain(late).map(begin);
        let since = again.fold(needed, Nanos::min);
        let since = since.max(self.next.saturating_sub(LONGEST_LOOK_BACK));
        while !self.steps.is_empty()
            && self.start + STEP <= needed
            && (self.start + STEP <= since || self.kept > MOST_KEPT)
        {
            let mut gone = self.steps.pop_front().unwrap_or_default();
            self.start += STEP;
            self.kept -= gone.len();
            for (_, event) in gone.drain(..) {
                match event {
                    Event::GpuOp(e) => self.devices.operation(&e),
                    Event::ApiCall(e) => self.devices.call(&e),
                    other => {
                        self.before.event(&other, self.start);
                        self.devices.other(&other);
                    }
                }
            }
            if self.spare.len() < MOST_SPARE {
                self.spare.push(gone);
            }
        }
        if self.steps.is_empty() {
            let steps = since.saturating_sub(self.start).0 / STEP.0;
            self.start += Nanos(STEP.0 * steps);
        }
        self.awaited.give_up_old(now.saturating_sub(NEVER));
        self.tidy();
    }

    /// After ids were forgotten, and all events that used them are gone.
    fn tidy(&mut self) {
        let start = self.start;
        let Some(fresh) = self.fresh.take_if(|fresh| fresh.since <= start) else {
            return;
        };
        let mut used = Used::default();
        used.names.extend(&fresh.names);
        for event in self
            .before
            .events(start)
            .iter()
            .chain(&self.devices.events())
        {
            used.event(event);
        }
        for (_, event) in self.steps.iter().flatten() {
            used.event(event);
        }
        let old = std::mem::take(&mut self.names);
        let mut names = old.only(&used.names);
        for define in &fresh.defines {
            names.define(define);
        }
        self.names = names;
    }
}

/// A copy may need no operation.
fn is_due(call: &ApiCall) -> bool {
    api::starts_kernels(api::class(call.api))
}

fn unknown_of(slice: &Slice) -> Vec<Unknown> {
    let gpus = slice.report.gpus.iter().zip(&slice.parts.gpus);
    let gpus = gpus.filter(|(_, parts)| match parts.missing {
        Missing::Work => true,
        // It may be for good.
        Missing::Records => parts.known_until.saturating_add(LONGEST_LOOK_BACK) > slice.to,
        Missing::Nothing => false,
    });
    gpus.map(|(gpu, parts)| Unknown {
        gpu: gpu.uuid.clone(),
        since: parts.known_until,
    })
    .collect()
}

fn open_gaps(slice: &Slice) -> Vec<OpenGap> {
    let gpus = slice.report.gpus.iter().zip(&slice.parts.gpus);
    gpus.flat_map(|(gpu, parts)| {
        let last = gpu.gaps.iter().find(|gap| gap.next.is_none());
        let start = parts.open.or(last.map(|gap| gap.start))?;
        let gap = last.filter(|gap| gap.start == start);
        Some(OpenGap {
            gpu: gpu.uuid.clone(),
            start,
            ended: parts.open.is_none(),
            parts: gap.map_or_else(Vec::new, |gap| gap.parts.clone()),
        })
    })
    .collect()
}

/// Of what was before the timeline that begins at `start`, what was said last stands.
fn complete(slice: &mut Slice, told: &[OpenGap], start: Nanos) {
    for gpu in &mut slice.report.gpus {
        for gap in gpu.gaps.iter_mut().filter(|gap| gap.start < start) {
            let same = |open: &&OpenGap| open.gpu == gpu.uuid && open.start == gap.start;
            if let Some(open) = told.iter().find(same) {
                put_before(gap, &open.parts, start);
            }
        }
    }
}

fn put_before(gap: &mut Gap, told: &[Part], at: Nanos) {
    let Some(at) = told.last().map(|part| part.end.min(at).min(gap.end)) else {
        return;
    };
    let before = told.iter().filter(|part| part.start < at);
    let mut parts: Vec<Part> = before.cloned().collect();
    if let Some(last) = parts.last_mut() {
        last.end = at;
    }
    for mut part in std::mem::take(&mut gap.parts) {
        part.start = part.start.max(at);
        let goes_on = |last: &&mut Part| {
            last.cause == part.cause && last.who == part.who && last.what == part.what
        };
        if part.start >= part.end {
            continue;
        }
        match parts.last_mut().filter(goes_on) {
            Some(last) => last.end = part.end,
            None => parts.push(part),
        }
    }
    gap.parts = shorter(parts);
}

/// Most parts of a gap, of which a new one comes with each slice.
const PARTS: usize = 200;

/// The shortest go with the one before them.
fn shorter(mut parts: Vec<Part>) -> Vec<Part> {
    let too_many = parts.len().saturating_sub(PARTS);
    if too_many == 0 {
        return parts;
    }
    let mut lengths: Vec<Nanos> = parts.iter().skip(1).map(|p| p.end - p.start).collect();
    lengths.sort_unstable();
    let short = lengths.get(too_many - 1).copied().unwrap_or_default();
    let mut kept: Vec<Part> = Vec::with_capacity(PARTS);
    for part in parts.drain(..) {
        match kept.last_mut() {
            Some(last) if part.end - part.start <= short => last.end = part.end,
            Some(_) | None => kept.push(part),
        }
    }
    kept
}
