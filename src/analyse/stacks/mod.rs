//! Where time went, as stacks: what a flame graph is drawn from.
//!
//! Times are whole nanoseconds and exact in sum: what a mode is about (running time, time off the
//! CPU, operations, idle time) is divided among the stacks that were taken, and what no stack was taken
//! of is there too, under a frame that says so.
#![forbid(unsafe_code)]

pub mod folded;
pub mod frame;
mod off_cpu;
pub(super) mod on_cpu;
mod on_gpu;
mod place;
#[cfg(test)]
mod tests;

use crate::analyse::partition::Engine;
use crate::analyse::quality::Trust;
use crate::analyse::scope::Scope;
use crate::analyse::what::{Piece, What};
use crate::analyse::{device_usage, each_gap, explainer};
use crate::event::{Pid, SampleKind, Tid};
use crate::model::fxhash::FxHashMap;
use crate::model::ops::Op;
use crate::model::thread::{State, Stretch, ThreadIdx, Who};
use crate::model::Timeline;
use crate::units::Nanos;

use folded::{Folded, NodeIdx, Weights};
use frame::{Frame, WokenBy};
use off_cpu::OffCpu;
use on_cpu::share_running;
pub use on_gpu::LaunchTimes;
use on_gpu::OnGpu;
use place::Places;

/// What the time is time of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The devices had nothing to do: by cause, then by what the thread to blame did.
    #[default]
    Idle,
    /// `Cpu`, `OffCpu` and `Gpu` in one.
    Mixed,
    /// Threads ran.
    Cpu,
    /// Threads slept, or waited for a CPU.
    OffCpu,
    /// Operations ran on a device. Those that overlap count each.
    Gpu,
}

/// What to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub mode: Mode,
    /// Since the beginning of the recording.
    pub from: Option<Nanos>,
    pub to: Option<Nanos>,
    /// Threads of these processes, or with these ids; empty: all threads of the target.
    pub pids: Vec<Pid>,
    pub tids: Vec<Tid>,
    /// Only the device with this number.
    pub gpu: Option<u32>,
    /// Put the stacks of those who ended waits on those who waited.
    pub wakers: bool,
    /// Show functions without a name by their addresses.
    pub addresses: bool,
    /// Keep running idle time without a sample apart, rather than share it out to the samples of the
    /// same cause and thread.
    pub exact: bool,
}

impl Options {
    fn everyone(&self) -> bool {
        self.pids.is_empty() && self.tids.is_empty()
    }

    fn wants(&self, t: &Timeline, who: Who) -> bool {
        let target = t.thread(who.thread).is_target();
        (target && self.everyone())
            || self.pids.contains(&t.pid(who))
            || self.tids.contains(&t.thread(who.thread).tid)
    }
}

/// Samples of a recording, by why they were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub cpu: u64,
    pub off_cpu: u64,
    pub waker: u64,
    pub launch: u64,
}

impl Samples {
    pub fn of(t: &Timeline) -> Samples {
        let mut counts = Samples::default();
        for sample in t.threads().flat_map(|(_, thread)| thread.samples()) {
            let count = match sample.kind() {
                SampleKind::Cpu { .. } => &mut counts.cpu,
                SampleKind::OffCpu { .. } => &mut counts.off_cpu,
                SampleKind::Waker { .. } => &mut counts.waker,
                SampleKind::Launch { .. } => &mut counts.launch,
            };
            *count += 1;
        }
        counts
    }
}

/// Stacks with their times, and what they cover.
#[derive(Clone, Debug)]
pub struct Flame {
    pub folded: Folded,
    pub from: Nanos,
    pub to: Nanos,
    pub launches: LaunchTimes,
    /// Running time without a sample: all of it, or in mode `Idle` of parts of gaps.
    pub unsampled: Nanos,
    /// How much of that was shared out to samples of other gaps.
    pub estimated: Nanos,
    /// Devices whose records do not tell when they were idle.
    pub unsound: Vec<u32>,
}

/// Folds a finished timeline.
pub fn fold(t: &Timeline, options: &Options) -> Flame {
    let at = |since_start: Nanos| Nanos(t.start().0.saturating_add(since_start.0)).min(t.end());
    let from = options.from.map_or(t.start(), at);
    let to = options.to.map_or(t.end(), at).max(from);
    let engine = Engine::new(t);
    let mut folder = Folder {
        t,
        options,
        from,
        to,
        off_cpu: OffCpu {
            engine: &engine,
            wakers: options.wakers,
        },
        places: Places::new(t, options.addresses),
        out: Folded::default(),
        unsampled: FxHashMap::default(),
        seen: FxHashMap::default(),
    };
    let mut launches = LaunchTimes::default();
    let mut unsound = Vec::new();
    match options.mode {
        Mode::Idle => unsound = folder.idle(),
        Mode::Mixed => {
            folder.on_cpu();
            folder.off_cpu();
            launches = folder.on_gpu(false);
        }
        Mode::Cpu => folder.on_cpu(),
        Mode::OffCpu => folder.off_cpu(),
        Mode::Gpu => launches = folder.on_gpu(true),
    }
    let (unsampled, estimated) = folder.share_unsampled();
    Flame {
        folded: folder.out,
        from,
        to,
        launches,
        unsampled,
        estimated,
        unsound,
    }
}

struct Folder<'e, 't> {
    t: &'t Timeline,
    options: &'e Options,
    from: Nanos,
    to: Nanos,
    off_cpu: OffCpu<'e, 't>,
    places: Places<'t>,
    out: Folded,
    /// Running time without a sample, by the stack that ends in the thread.
    unsampled: FxHashMap<NodeIdx, Nanos>,
    /// Samples of other running time of it.
    seen: FxHashMap<NodeIdx, Weights>,
}

impl<'t> Folder<'_, 't> {
    /// The threads to look at, with the part of the window in which they are themselves.
    fn lives(&self) -> Vec<(ThreadIdx, Who, Nanos, Nanos)> {
        let mut lives = Vec::new();
        for (idx, _) in self.t.threads() {
            for (who, from, to) in place::lives(self.t, idx, (self.from, self.to)) {
                if self.options.wants(self.t, who) {
                    lives.push((idx, who, from, to));
                }
            }
        }
        lives
    }

    fn on_cpu(&mut self) {
        for (idx, who, from, to) in self.lives() {
            self.running(Folded::ROOT, idx, who, (from, to));
        }
    }

    /// Adds the running time of a thread in a window.
    fn running(&mut self, base: NodeIdx, idx: ThreadIdx, who: Who, window: (Nanos, Nanos)) {
        let (places, out) = (&mut self.places, &mut self.out);
        let (unsampled, seen) = (&mut self.unsampled, &mut self.seen);
        let mut counted = None;
        share_running(self.t.thread(idx), window, |sample, time| {
            let base = places.thread(out, base, who);
            let Some(sample) = sample else {
                let sum = unsampled.entry(base).or_default();
                *sum = Nanos(sum.0.saturating_add(time.0));
                return;
            };
            let node = if sample.user.0 != 0 || sample.kernel.0 != 0 {
                let node = places.user(out, base, sample.user);
                places.kernel(out, node, sample.kernel)
            } else {
                out.push(base, Frame::Note("no stack"))
            };
            out.add(node, time);
            // Its time can come in pieces.
            if counted.replace(sample.ts) != Some(sample.ts) {
                seen.entry(base).or_default().add(node, 1);
            }
        });
    }

    /// Adds the running time without a sample; returns it, and how much was shared out.
    fn share_unsampled(&mut self) -> (Nanos, Nanos) {
        let (mut unsampled, mut estimated) = (Nanos::ZERO, Nanos::ZERO);
        let more = |sum: Nanos, time: Nanos| Nanos(sum.0.saturating_add(time.0));
        for (base, time) in std::mem::take(&mut self.unsampled) {
            unsampled = more(unsampled, time);
            match self.seen.get(&base).filter(|_| !self.options.exact) {
                Some(seen) => {
                    estimated = more(estimated, time);
                    seen.share(time, &mut self.out);
                }
                None => {
                    let node = self.out.push(base, Frame::Note("no sample"));
                    self.out.add(node, time);
                }
            }
        }
        (unsampled, estimated)
    }

    fn off_cpu(&mut self) {
        for (idx, who, from, to) in self.lives() {
            for s in self.t.thread(idx).states(from, to) {
                self.waiting(Folded::ROOT, idx, who, &s, |_, node| node);
            }
        }
    }

    /// Adds a stretch off the CPU, with what `more` puts on its stack. False: it is none.
    fn waiting(
        &mut self,
        base: NodeIdx,
        idx: ThreadIdx,
        who: Who,
        s: &Stretch,
        more: impl FnOnce(&mut Folded, NodeIdx) -> NodeIdx,
    ) -> bool {
        let (places, out) = (&mut self.places, &mut self.out);
        let base = places.thread(out, base, who);
        let Some(node) = self.off_cpu.stack(places, out, base, idx, s) else {
            return false;
        };
        let node = more(out, node);
        out.add(node, s.len());
        true
    }

    fn on_gpu(&mut self, by_device: bool) -> LaunchTimes {
        let (t, options, out) = (self.t, self.options, &mut self.out);
        let mut launches = OnGpu::new(&mut self.places);
        for (index, gpu) in (0..).zip(t.gpu().devices()) {
            if options.gpu.is_some_and(|wanted| wanted != index) {
                continue;
            }
            // An end that cannot be true says nothing of how long it took.
            for op in gpu.ops.iter().filter(|op| !op.outlasts_followers()) {
                let (start, end) = (op.start.max(self.from), op.end.min(self.to));
                if start >= end {
                    continue;
                }
                let base = if by_device {
                    out.push(Folded::ROOT, Frame::Device(index))
                } else {
                    Folded::ROOT
                };
                let time = end.saturating_sub(start);
                match op.call().map(|c| t.gpu().call_at(c)) {
                    Some(launch) => {
                        let who = t.who(launch.thread, launch.start);
                        if options.wants(t, who) {
                            launches.launched(out, base, op, (launch, who), time);
                        }
                    }
                    None if options.everyone() || options.pids.contains(&pid_of(t, op)) => {
                        launches.orphan(out, base, op, time);
                    }
                    None => {}
                }
            }
        }
        launches.finish(out)
    }

    /// Returns the devices whose idle time cannot be told.
    fn idle(&mut self) -> Vec<u32> {
        let t = self.t;
        let engine = self.off_cpu.engine;
        let trust = Trust::of(t, Scope::WHOLE);
        // As in the report: its causes have the same times.
        let min_gap = crate::analyse::Options::default().min_gap;
        let mut unsound = Vec::new();
        for (index, gpu) in (0..).zip(t.gpu().devices()) {
            if self.options.gpu.is_some_and(|wanted| wanted != index) {
                continue;
            }
            if !trust.is_sound(t, gpu) {
                unsound.push(index);
                continue;
            }
            let (_, usage) = device_usage(t, gpu, &trust, Scope::WHOLE);
            let explainer = explainer(engine, gpu, &usage, min_gap);
            each_gap(&explainer, &trust, &usage, |_, pieces| {
                for piece in pieces {
                    self.idle_piece(index, piece);
                }
            });
        }
        unsound
    }

    fn idle_piece(&mut self, device: u32, piece: &Piece) {
        let (from, to) = (piece.start.max(self.from), piece.end.min(self.to));
        if from >= to {
            return;
        }
        let wanted = match piece.who {
            Some(who) => self.options.everyone() || self.options.wants(self.t, who),
            None => self.options.everyone(),
        };
        if !wanted {
            return;
        }
        let base = self.out.push(Folded::ROOT, Frame::Device(device));
        let base = self.out.push(base, Frame::Cause(piece.cause));
        let Some(who) = piece.who else {
            return self.out.add(base, to.saturating_sub(from));
        };
        let idx = who.thread;
        let taken_by = match piece.what {
            What::Ran(who) => Some(WokenBy::Thread(who)),
            What::RanTid(tid) => Some(WokenBy::Tid(tid)),
            What::Nothing
            | What::Say(_)
            | What::Working
            | What::In(_)
            | What::Before(_)
            | What::Irq(_)
            | What::Wait { .. }
            | What::Lock { .. }
            | What::From { .. }
            | What::Stopped { .. }
            | What::Overhead(_)
            | What::AfterStream(_)
            | What::Missing(_) => None,
        };
        self.running(base, idx, who, (from, to));
        for s in self.t.thread(idx).states(from, to) {
            let known = self.waiting(base, idx, who, &s, |out, node| match taken_by {
                Some(by) => out.push(node, Frame::TakenBy(by)),
                None => node,
            });
            let note = match s.state {
                State::Exited => "it has ended",
                State::Unknown | State::Blocked(_) | State::Runnable { .. } => off_cpu::NO_EVENTS,
                State::Running { .. } => continue,
            };
            if !known {
                let node = self.places.thread(&mut self.out, base, who);
                let node = self.out.push(node, Frame::Note(note));
                self.out.add(node, s.len());
            }
        }
    }
}

fn pid_of(t: &Timeline, op: &Op) -> Pid {
    t.gpu().stream_of(op).pid
}
