//! Events as they come, until their slice can be analysed.
//!
//! Records of a device come up to a second late, a wait is told when it ends, and a launch may be long before its
//! operation. So events are kept by the time when they ended, in steps, and a slice waits until what belongs to it has arrived. What is
//! older than what slices may still need is carried on as a state: who each thread is and what it does, what
//! the devices did last. Memory depends on the rate of events, not on how long it has been going on.

use std::collections::VecDeque;

use super::awaited::Awaited;
use super::{slice, Slice, SliceOptions};
use crate::event::{
    ApiCall, CorrelationId, Define, DeviceId, Event, GpuOp, Loss, LossSource, NameId, Pid,
    ShimState, Tid,
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

/// Slices that are made at once, at most: a time that comes from outside may be any.
const MOST_AT_ONCE: u64 = 600;

/// An event, and from when on it matters: an operation does from its launch on, without which it cannot be told
/// whether that came back.
type Kept = (Nanos, Event);

/// Events of one step, by when they ended.
type Step = Vec<Kept>;

/// An idle time that had not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OpenGap {
    gpu: String,
    start: Nanos,
}

/// What came in the time of a slice.
#[derive(Clone, Copy, Debug)]
struct Counts {
    from: Nanos,
    to: Nanos,
    events: u64,
    lost: u64,
}

#[derive(Debug)]
pub struct Feed {
    meta: Meta,
    options: SliceOptions,
    names: Names,
    /// Since ids were forgotten; what was defined before goes when nothing mentions it.
    fresh: Option<Fresh>,
    before: Before,
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
    /// Since when slices were made though operations were awaited that may have run in them.
    given_up: Option<Nanos>,
    /// Of the last slices, oldest first.
    counts: VecDeque<Counts>,
    /// Events and losses that came since the last slice.
    events: u64,
    lost: u64,
    /// Slices that were left out to catch up.
    skipped: u64,
    /// Operations that came when their slice was made already, and will not be made again.
    late: u64,
}

/// Definitions since ids were forgotten.
#[derive(Debug)]
struct Fresh {
    defines: Vec<Define>,
    /// From before, and still used.
    names: FxHashSet<NameId>,
    /// Events from before are gone when the steps begin after this.
    since: Nanos,
}

/// What devices did last, of what is not kept any more.
#[derive(Debug, Default)]
struct Devices {
    last_op: FxHashMap<(Pid, DeviceId), GpuOp>,
    /// The calls that started these, as far as they are known.
    calls: FxHashMap<(Pid, DeviceId), ApiCall>,
    /// The last launch of each thread.
    last_launch: FxHashMap<(Pid, Tid), ApiCall>,
    /// Those that are not there yet: most come from one device, and one thread, in a row.
    newest_op: Option<GpuOp>,
    newest_launch: Option<ApiCall>,
    /// Where records are missing, since those operations.
    holes: Vec<Loss>,
    /// Since when the shims do not collect that do not.
    silent: FxHashMap<Pid, Nanos>,
    /// When the last operation of each process ended, of all that was heard of.
    last_end: FxHashMap<Pid, Nanos>,
}

/// The shim of this process did not collect.
fn silence(pid: Pid, from: Nanos, to: Nanos) -> Loss {
    Loss {
        source: LossSource::Cupti(pid),
        count: 0,
        from,
        to: to.max(from),
    }
}

/// `None`: of all.
fn pid_of(hole: &Loss) -> Option<Pid> {
    match hole.source {
        LossSource::ShimRing(pid) | LossSource::Cupti(pid) => Some(pid),
        LossSource::Bpf(_) | LossSource::ClockStep | LossSource::Damage => None,
    }
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
            // What is looked at begins after it.
            let is_over =
                |hole: &Loss| pid_of(hole).is_none_or(|pid| pid == e.pid) && hole.to <= e.start;
            self.holes.retain(|hole| !is_over(hole));
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
        match event {
            Event::Exit(e) => {
                self.file_all();
                self.last_launch.remove(&(e.pid, e.tid));
                if e.tid.0 == e.pid.0 {
                    self.last_op.retain(|(pid, _), _| *pid != e.pid);
                    self.last_end.remove(&e.pid);
                    self.silent.remove(&e.pid);
                    self.holes.retain(|hole| pid_of(hole) != Some(e.pid));
                }
            }
            Event::Loss(e) => match e.source {
                LossSource::ShimRing(_)
                | LossSource::Cupti(_)
                | LossSource::ClockStep
                | LossSource::Damage => self.hole(*e),
                LossSource::Bpf(_) => {}
            },
            Event::Shim(e) => {
                let silent = self.silent.remove(&e.pid);
                if let Some(from) = silent {
                    self.hole(silence(e.pid, from, e.ts));
                }
                if e.state != ShimState::Active {
                    self.silent.insert(e.pid, e.ts);
                }
            }
            Event::Define(_)
            | Event::Task(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Interrupt(_)
            | Event::Wait(_)
            | Event::CpuWait(_)
            | Event::Stall(_)
            | Event::SysCall(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::GpuOp(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::ApiCall(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Device(_)
            | Event::Probes(_)
            | Event::Process(_)
            | Event::Clock(_) => {}
        }
    }

    /// Records are missing there: that nothing was heard of since an operation before it does not mean that nothing
    /// ran.
    fn hole(&mut self, hole: Loss) {
        const MOST: usize = 64;
        self.file_all();
        // What was lost counts in the slice in which it was.
        let hole = Loss { count: 0, ..hole };
        if self.holes.len() < MOST {
            self.holes.push(hole);
        } else if let Some(last) = self.holes.last_mut() {
            // Too many to be told apart.
            (last.source, last.to) = (LossSource::ClockStep, last.to.max(hole.to));
        }
    }

    fn forget_launches(&mut self, which: impl Fn(&ApiCall) -> bool) {
        self.file_all();
        self.last_launch.retain(|_, call| !which(call));
    }

    /// After a step is gone: the last operations may have been started in it, most likely at its end.
    fn match_calls(&mut self, gone: &[Kept]) {
        const MOST: usize = 64;
        self.file_all();
        let calls = &self.calls;
        let is_known = |key: &(Pid, DeviceId), op: &GpuOp| {
            calls
                .get(key)
                .is_some_and(|call| call.correlation == op.correlation)
        };
        let ops = self.last_op.iter().filter(|(key, op)| !is_known(key, op));
        let mut ops: Vec<_> = ops.take(MOST).map(|(k, op)| (*k, op.correlation)).collect();
        for (_, event) in gone.iter().rev() {
            if ops.is_empty() {
                break;
            }
            let Event::ApiCall(call) = event else {
                continue;
            };
            let started = |op: &((Pid, DeviceId), CorrelationId)| {
                (op.0 .0, op.1) == (call.pid, call.correlation)
            };
            if let Some(i) = ops.iter().position(started) {
                self.calls.insert(ops.swap_remove(i).0, *call);
            }
        }
        let last = &self.last_op;
        self.calls.retain(|key, call| {
            last.get(key)
                .is_some_and(|op| op.correlation == call.correlation)
        });
    }

    /// What a timeline begins with that starts then.
    fn events(&mut self, start: Nanos) -> Vec<Event> {
        self.file_all();
        let silences = self.silent.iter();
        let silences = silences.map(|(&pid, &from)| silence(pid, from, start));
        let holes = self.holes.iter().copied().chain(silences).map(Event::Loss);
        let ops = self.last_op.values().map(|e| Event::GpuOp(*e));
        let calls = self.calls.values().chain(self.last_launch.values());
        let calls = calls.map(|e| Event::ApiCall(*e));
        ops.chain(calls).chain(holes).collect()
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
            start,
            steps: VecDeque::new(),
            spare: Vec::new(),
            kept: 0,
            next: start,
            awaited: Awaited::default(),
            devices: Devices::default(),
            open: Vec::new(),
            given_up: None,
            counts: VecDeque::new(),
            events: 0,
            lost: 0,
            skipped: 0,
            late: 0,
        }
    }

    /// Slices that were not analysed because there was too much to do.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Operations that came too late to be in any slice.
    pub fn late(&self) -> u64 {
        self.late
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
        let steps = STEP.0.saturating_mul(self.steps.len() as u64);
        self.start.saturating_add(Nanos(steps))
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
                let last = self.devices.last_end.entry(e.pid).or_default();
                *last = e.end.max(*last);
                let mut unsure = self.open.iter().map(|gap| gap.start).chain(self.given_up);
                let is_made_again = unsure.any(|since| since < e.end);
                self.late += u64::from(e.end <= self.next && !is_made_again);
                if let Some(call) = self.awaited.remove(e.pid, e.correlation) {
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
                self.awaited.give_up(e.pid, Nanos::MAX);
            }
            Event::Define(_)
            | Event::Task(_)
            | Event::Exit(_)
            | Event::Switch(_)
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
        let at = event.end().unwrap_or(self.start);
        self.keep(at, (since, event));
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

    /// The slices that are complete at `now`, when all that had arrived by then was pushed; `clock` is the time by
    /// now, where somebody waits for them: what is much too late is left out then. One that was there before
    /// takes the place of that: more is known about it.
    pub fn take(&mut self, now: Nanos, clock: Option<Nanos>) -> Vec<Slice> {
        let mut slices = Vec::new();
        self.leap(now);
        loop {
            let from = self.next;
            let to = from.saturating_add(SLICE);
            if now < to.saturating_add(ARRIVAL) || to == from {
                break;
            }
            let patience = to.saturating_add(PATIENCE);
            let is_awaited = self.is_awaited(to);
            if is_awaited && now < patience {
                break;
            }
            let late = clock.map_or(0, |clock| clock.saturating_sub(patience).0 / SLICE.0);
            if late >= MOST_LATE {
                // Nothing of it is lost for what comes after it.
                self.skip(to);
                self.skipped += 1;
            } else {
                if is_awaited {
                    self.given_up.get_or_insert(from);
                }
                self.analyse(to, is_awaited, &mut slices);
                self.next = to;
            }
            self.age(now);
        }
        slices
    }

    /// What has not been analysed of the time until `end`, when nothing comes any more. The last slice may be shorter.
    pub fn finish(&mut self, end: Nanos) -> Vec<Slice> {
        let mut slices = Vec::new();
        self.leap(end);
        while self.next < end {
            let to = self.next.saturating_add(SLICE).min(end);
            self.analyse(to, false, &mut slices);
            self.next = to;
            self.age(end);
        }
        slices
    }

    /// Leaves out what is too much to be done at once.
    fn leap(&mut self, to: Nanos) {
        let waiting = to.saturating_sub(self.next).0 / SLICE.0;
        if let Some(over) = waiting.checked_sub(MOST_AT_ONCE).filter(|&over| over > 0) {
            self.skip(Nanos(self.next.0 + over * SLICE.0));
            self.skipped += over;
            self.age(to);
        }
    }

    fn skip(&mut self, to: Nanos) {
        self.next = to;
        self.open.clear();
        self.given_up = None;
        (self.events, self.lost) = (0, 0);
    }

    /// The text of a name that events used a moment ago.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id)
    }

    /// What was until `to` is not to be analysed.
    pub fn pass(&mut self, to: Nanos) {
        if to > self.next {
            self.skip(to);
            self.age(to);
        }
    }

    /// By how much slices are later than they have to be; a little is nothing.
    pub fn behind(&self, now: Nanos) -> Option<Nanos> {
        let due = self.next.saturating_add(SLICE).saturating_add(ARRIVAL);
        let late = now.saturating_sub(due);
        (late >= PATIENCE).then_some(late)
    }

    /// Operations that may have run before `to` have not been heard of.
    fn is_awaited(&self, to: Nanos) -> bool {
        let heard = |pid: Pid| {
            self.devices
                .last_end
                .get(&pid)
                .is_some_and(|&end| end >= to)
        };
        // A copy may need none.
        let is_due = |call: &ApiCall| api::starts_kernels(api::class(call.api));
        let mut awaited = self.awaited.before(to);
        awaited.any(|(pid, call)| !heard(pid) && is_due(call))
    }

    /// `is_awaited`: not all that may have run then has been heard of.
    fn analyse(&mut self, to: Nanos, is_awaited: bool, slices: &mut Vec<Slice>) {
        let from = self.next;
        let timeline = self.timeline(to);
        let mut newest = slice(&timeline, from, to, &self.options);
        newest.events = std::mem::take(&mut self.events);
        newest.lost = std::mem::take(&mut self.lost);
        let open: Vec<OpenGap> = (newest.report.gpus.iter())
            .flat_map(|gpu| {
                let last = gpu.gaps.iter().find(|gap| gap.next.is_none());
                last.map(|gap| OpenGap {
                    gpu: gpu.uuid.clone(),
                    start: gap.start,
                })
            })
            .collect();
        // Of those that ended soon after the slice before, that knew.
        let told_before = from.saturating_add(AROUND);
        let ended = |gap: &&OpenGap| {
            let gpu = newest.report.gpus.iter().find(|gpu| gpu.uuid == gap.gpu);
            let mut gaps = gpu.into_iter().flat_map(|gpu| &gpu.gaps);
            gaps.any(|g| g.start == gap.start && g.next.is_some() && g.end > told_before)
        };
        let ended = (self.open.iter().filter(ended)).map(|gap| gap.start).min();
        // What was awaited has been heard of since.
        let heard = self.given_up.take_if(|_| !is_awaited);
        if let Some(since) = ended.into_iter().chain(heard).min() {
            // What was said of that time was all that was known then.
            let since = since.max(self.start);
            let earlier = self.counts.iter().filter(|c| c.from < from && c.to > since);
            for counts in earlier {
                let mut again = slice(&timeline, counts.from, counts.to, &self.options);
                (again.events, again.lost) = (counts.events, counts.lost);
                slices.push(again);
            }
        }
        self.counts.push_back(Counts {
            from,
            to,
            events: newest.events,
            lost: newest.lost,
        });
        let oldest = to.saturating_sub(LONGEST_LOOK_BACK);
        while self.counts.front().is_some_and(|c| c.to <= oldest) {
            self.counts.pop_front();
        }
        slices.push(newest);
        self.open = open;
        self.names = timeline.into_names();
    }

    /// All that is known of the time until `to`, and a little after it.
    fn timeline(&mut self, to: Nanos) -> Timeline {
        let until = to.saturating_add(AROUND);
        let meta = Meta {
            start_mono_ns: self.start.0,
            ..self.meta.clone()
        };
        let mut timeline = Timeline::with_names(&meta, std::mem::take(&mut self.names));
        for event in self.before.events(self.start) {
            timeline.push(&event);
        }
        for event in self.devices.events(self.start) {
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

    /// Lets go of what no slice needs any more.
    fn age(&mut self, now: Nanos) {
        let needed = self.next.saturating_sub(AROUND);
        let gaps = self.open.iter().map(|gap| gap.start);
        let since = gaps.chain(self.given_up).min().unwrap_or(self.next);
        let since = since.max(self.next.saturating_sub(LONGEST_LOOK_BACK));
        let since = since.saturating_sub(AROUND);
        let is_old = |start: Nanos| start.saturating_add(STEP) <= since;
        let may_go = |start: Nanos| start.saturating_add(STEP) <= needed;
        while !self.steps.is_empty()
            && may_go(self.start)
            && (is_old(self.start) || self.kept > MOST_KEPT)
        {
            let mut gone = self.steps.pop_front().unwrap_or_default();
            self.start += STEP;
            self.kept -= gone.len();
            for (_, event) in &gone {
                match event {
                    Event::GpuOp(e) => self.devices.operation(e),
                    Event::ApiCall(e) => self.devices.call(e),
                    other => {
                        self.before.event(other, self.start);
                        self.devices.other(other);
                    }
                }
            }
            self.devices.match_calls(&gone);
            gone.clear();
            if self.spare.len() < MOST_SPARE {
                self.spare.push(gone);
            }
        }
        if self.steps.is_empty() {
            let whole = needed.saturating_sub(self.start).0 / STEP.0;
            self.start += Nanos(whole * STEP.0);
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
        used.names.extend(fresh.names);
        for event in self
            .before
            .events(start)
            .iter()
            .chain(&self.devices.events(start))
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
