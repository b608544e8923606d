//! Who had each CPU, from its switches, and what woke whom there.
//!
//! The collector records the switches of its targets, and all switches of a CPU while a target waits for it.
//! Between two switches that do not fit together others were not recorded, and from then to then the CPU is nobody's.
#![forbid(unsafe_code)]

use std::io;

use crate::analyse::intervals::Intervals;
use crate::analyse::tracks::lanes::{Row, Tracks};
use crate::analyse::tracks::who::named;
use crate::analyse::tracks::{uint, Left, Life, Owner, Sink, Slice, Turn, WakeUp, Window};
use crate::analyse::what::context_text;
use crate::event::{Context, Cpu, Tid};
use crate::model::cpu::CpuLog;
use crate::model::thread::{State, Stretch, ThreadIdx, Why};
use crate::model::Timeline;
use crate::store::meta::TargetMode;
use crate::units::Nanos;

/// What is told beside the switches of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    New,
    Renamed,
    Wake,
    Exited,
}

/// Small: there are about as many as switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extra {
    at: Nanos,
    thread: ThreadIdx,
    kind: Kind,
}

const _: () = assert!(std::mem::size_of::<Extra>() == 16);

pub(super) fn show(t: &Timeline, window: Window, sink: &mut dyn Sink) -> io::Result<()> {
    let mut extras = extras(t, window);
    let cpus = t.cpus().len().max(extras.len());
    for number in 0..cpus {
        let of_this = extras
            .get_mut(number)
            .map(std::mem::take)
            .unwrap_or_default();
        let log = t.cpus().get(number);
        let switches = log.map_or(0, |log| log.changes().len());
        if switches == 0 && of_this.is_empty() {
            continue;
        }
        let cpu = Cpu(u16::try_from(number).unwrap_or(u16::MAX));
        show_cpu(t, window, cpu, log, of_this, sink)?;
    }
    Ok(())
}

fn show_cpu(
    t: &Timeline,
    window: Window,
    cpu: Cpu,
    log: Option<&CpuLog>,
    mut extras: Vec<Extra>,
    sink: &mut dyn Sink,
) -> io::Result<()> {
    extras.sort_unstable();
    let mut extras = extras.into_iter().peekable();
    let mut clipped = Clipped {
        window,
        before: None,
        begun: false,
    };
    // Whoever wakes another and leaves at once has woken it first.
    let mut tell_turn = |turn: &Turn<'_>| {
        while let Some(extra) = extras.next_if(|e| e.at <= turn.start) {
            tell(t, cpu, extra, sink)?;
        }
        sink.turn(cpu, turn)
    };
    if let Some(log) = log {
        Turns::new(t, cpu, log).each(&mut |turn| clipped.turn(turn, &mut tell_turn))?;
    }
    clipped.begin(&mut tell_turn)?;
    for extra in extras {
        tell(t, cpu, extra, sink)?;
    }
    sink.end_cpu(cpu)
}

type Tell<'a> = dyn FnMut(&Turn<'_>) -> io::Result<()> + 'a;

/// Leaves out the turns outside of the window.
struct Clipped<'t> {
    window: Window,
    /// The last one that began before the window.
    before: Option<Turn<'t>>,
    begun: bool,
}

impl<'t> Clipped<'t> {
    fn turn(&mut self, turn: Turn<'t>, tell: &mut Tell<'_>) -> io::Result<()> {
        if turn.start < self.window.from {
            self.before = Some(turn);
            return Ok(());
        }
        self.begin(tell)?;
        if turn.start <= self.window.to {
            tell(&turn)?;
        }
        Ok(())
    }

    /// A window begins with nobody, then with who had the CPU already.
    fn begin(&mut self, tell: &mut Tell<'_>) -> io::Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let nobody = Turn {
            start: self.window.from,
            who: None,
            left: Left::Unknown,
        };
        tell(&nobody)?;
        match self.before.filter(|turn| turn.who.is_some()) {
            Some(turn) => tell(&Turn {
                start: self.window.from,
                left: Left::Unknown,
                ..turn
            }),
            None => Ok(()),
        }
    }
}

type Out<'a, 't> = dyn FnMut(Turn<'t>) -> io::Result<()> + 'a;

/// The turns of one CPU.
struct Turns<'t> {
    t: &'t Timeline,
    cpu: Cpu,
    switches: Vec<(Nanos, Tid, Tid)>,
    /// Every switch of the machine is recorded, unless it was lost.
    all: bool,
    /// When switches of this CPU were lost.
    losses: Intervals,
}

impl<'t> Turns<'t> {
    fn new(t: &'t Timeline, cpu: Cpu, log: &CpuLog) -> Self {
        let losses = t.cpu_losses().iter().filter(|l| l.concerns(cpu));
        let losses = Intervals::union_of(losses.map(|l| (l.from, l.to)).collect());
        Turns {
            t,
            cpu,
            switches: log.changes().collect(),
            all: t.meta().mode == TargetMode::All,
            losses,
        }
    }

    fn each(&self, out: &mut Out<'_, 't>) -> io::Result<()> {
        let Some(&(first, prev, _)) = self.switches.first() else {
            return Ok(());
        };
        if prev.0 != 0 {
            let since = self.had_cpu_before(first, prev).unwrap_or(first);
            out(self.turn(since, prev, Left::Unknown))?;
        }
        for (i, &(at, prev, next)) in self.switches.iter().enumerate() {
            out(self.turn(at, next, self.left(prev, at)))?;
            match self.switches.get(i + 1) {
                Some(&coming) => self.between(i, (at, next), coming, out)?,
                None => self.last((at, next), out)?,
            }
        }
        Ok(())
    }

    /// From one switch to the one that is recorded next.
    fn between(
        &self,
        i: usize,
        (at, who): (Nanos, Tid),
        (end, leaves, _): (Nanos, Tid, Tid),
        out: &mut Out<'_, 't>,
    ) -> io::Result<()> {
        let (from, to) = match self.loss_in(at, end) {
            Some(lost) => lost,
            None if who == leaves => return Ok(()),
            None => (at, self.seen_since(i + 1).clamp(at, end)),
        };
        if who.0 != 0 {
            out(self.turn(from, Tid(0), Left::Unknown))?;
        }
        if leaves.0 != 0 {
            out(self.turn(to, leaves, Left::Unknown))?;
        }
        Ok(())
    }

    fn last(&self, (at, who): (Nanos, Tid), out: &mut Out<'_, 't>) -> io::Result<()> {
        let loss = self.loss_in(at, Nanos::MAX).map(|lost| lost.0);
        let end = if self.stays(who, at) { loss } else { Some(at) };
        match end.filter(|_| who.0 != 0) {
            Some(end) => out(self.turn(end, Tid(0), Left::Unknown)),
            None => Ok(()),
        }
    }

    /// It would be recorded if it left its CPU.
    fn stays(&self, who: Tid, at: Nanos) -> bool {
        let thread = self.t.find(who).map(|idx| self.t.thread(idx));
        self.all || thread.is_some_and(|thread| thread.followed_since(at).is_some())
    }

    /// From the first to the last moment between these of which switches were lost.
    fn loss_in(&self, from: Nanos, to: Nanos) -> Option<(Nanos, Nanos)> {
        let mut lost = self.losses.within(from, to);
        let first = lost.next()?;
        Some((first.0, lost.last().map_or(first.1, |last| last.1)))
    }

    /// Since when the switches of this CPU, of which number `i` is one, are all recorded: a target waited for it.
    fn seen_since(&self, i: usize) -> Nanos {
        /// Threads that run between the beginning of a wait for a CPU and its end, at most; more are not looked at.
        const MOST: usize = 64;
        let unknown = self.switches.get(i).map_or(Nanos::MAX, |s| s.0);
        let mut leaves = None;
        for &(at, prev, next) in self.switches.iter().skip(i).take(MOST) {
            if leaves.is_some_and(|tid| tid != prev) {
                break;
            }
            leaves = Some(next);
            let Some(idx) = self.t.find(next).filter(|_| next.0 != 0) else {
                continue;
            };
            let thread = self.t.thread(idx);
            let Some(just) = at.0.checked_sub(1).map(Nanos) else {
                continue;
            };
            let before = thread.states(just, at).next();
            if let Some(Stretch {
                state: State::Runnable { .. },
                span,
                ..
            }) = before
            {
                return span.0.min(unknown);
            }
        }
        unknown
    }

    /// Since when it had this CPU when it left it, as far as its own states tell.
    fn had_cpu_before(&self, at: Nanos, who: Tid) -> Option<Nanos> {
        let thread = self.t.thread(self.t.find(who)?);
        let just = Nanos(at.0.checked_sub(1)?);
        let stretch = thread.states(just, at).next()?;
        match stretch.state {
            State::Running { cpu } if cpu == Some(self.cpu) => Some(stretch.span.0),
            State::Running { .. }
            | State::Runnable { .. }
            | State::Blocked(_)
            | State::Unknown
            | State::Exited => None,
        }
    }

    fn turn(&self, start: Nanos, who: Tid, left: Left) -> Turn<'t> {
        Turn {
            start,
            who: (who.0 != 0).then(|| named(self.t, who, start)),
            left,
        }
    }

    fn left(&self, who: Tid, at: Nanos) -> Left {
        if who.0 == 0 {
            return Left::Runnable;
        }
        let idx = self.t.find(who);
        let state = idx.and_then(|idx| {
            let thread = self.t.thread(idx);
            thread.states(at, Nanos(at.0.saturating_add(1))).next()
        });
        match state.map(|s| s.state) {
            None | Some(State::Unknown | State::Running { .. }) => Left::Unknown,
            Some(State::Exited) => Left::Exited,
            Some(State::Blocked(sleep)) => sleep.state.map_or(Left::Unknown, Left::Blocked),
            Some(State::Runnable { why, .. }) => match why {
                Why::Preempted => Left::Preempted,
                Why::Yielded => Left::Yielded,
                Why::Throttled => Left::Throttled,
                Why::Woken | Why::New => Left::Runnable,
            },
        }
    }
}

/// By CPU.
fn extras(t: &Timeline, window: Window) -> Vec<Vec<Extra>> {
    let mut extras: Vec<Vec<Extra>> = Vec::new();
    let mut push = |cpu: Cpu, at: Nanos, thread: ThreadIdx, kind: Kind| {
        if !window.has(at) {
            return;
        }
        let number = usize::from(cpu.0);
        if extras.len() <= number {
            extras.resize_with(number + 1, Vec::new);
        }
        extras[number].push(Extra { at, thread, kind });
    };
    for (idx, thread) in t.threads() {
        for s in thread.states(window.from, window.to) {
            match s.state {
                State::Runnable {
                    why: Why::Woken, ..
                } => {
                    if let Some(wake) = thread.wake_of(&s).filter(|w| w.at == s.start) {
                        push(wake.cpu, s.start, idx, Kind::Wake);
                    }
                }
                State::Exited if s.start == s.span.0 => {
                    push(cpu_at(t, thread.tid, s.start), s.start, idx, Kind::Exited);
                }
                State::Unknown
                | State::Running { .. }
                | State::Runnable { .. }
                | State::Blocked(_)
                | State::Exited => {}
            }
        }
        let mut before: Option<&crate::model::thread::Identity> = None;
        for identity in thread.identities() {
            match (identity.made_by, before) {
                (Some(parent), _) => {
                    push(
                        cpu_at(t, parent, identity.from),
                        identity.from,
                        idx,
                        Kind::New,
                    );
                }
                (None, Some(before)) if t.name(before.comm) != t.name(identity.comm) => {
                    let cpu = cpu_at(t, thread.tid, identity.from);
                    push(cpu, identity.from, idx, Kind::Renamed);
                }
                (None, _) => {}
            }
            before = Some(identity);
        }
    }
    extras
}

/// Where the thread ran at or right before `at`; the first CPU when that is not known.
fn cpu_at(t: &Timeline, tid: Tid, at: Nanos) -> Cpu {
    let Some(idx) = t.find(tid) else {
        return Cpu(0);
    };
    let around = t
        .thread(idx)
        .states(Nanos(at.0.saturating_sub(1)), Nanos(at.0.saturating_add(1)));
    let running = around.filter_map(|s| match s.state {
        State::Running { cpu } => cpu,
        State::Runnable { .. } | State::Blocked(_) | State::Unknown | State::Exited => None,
    });
    running.last().unwrap_or(Cpu(0))
}

fn tell(t: &Timeline, cpu: Cpu, extra: Extra, sink: &mut dyn Sink) -> io::Result<()> {
    let thread = t.thread(extra.thread);
    let at = extra.at;
    let who = named(t, thread.tid, at);
    match extra.kind {
        Kind::Wake => {
            let mut states = thread.states(at, Nanos(at.0.saturating_add(1)));
            let woken = states.next().and_then(|s| Some((s, thread.wake_of(&s)?)));
            let Some((stretch, wake)) = woken else {
                return Ok(());
            };
            sink.wake(
                cpu,
                &WakeUp {
                    at,
                    wakee: who,
                    waker: wake.waker,
                    context: wake.context,
                    target: thread.cpu_after(&stretch),
                },
            )
        }
        Kind::Exited => sink.life(cpu, &Life::Exited { at, who }),
        Kind::Renamed => {
            let number = thread.identity_at(at).saturating_sub(1);
            let before = thread.identity(number).map_or("", |i| t.name(i.comm));
            sink.life(cpu, &Life::Renamed { at, who, before })
        }
        Kind::New => {
            let identity = thread.identity(thread.identity_at(at));
            let Some(tid) = identity.and_then(|i| i.made_by) else {
                return Ok(());
            };
            let parent: Owner = named(t, tid, at).owner;
            sink.life(cpu, &Life::New { at, who, parent })
        }
    }
}

pub(super) fn show_interrupts(
    t: &Timeline,
    window: Window,
    tracks: &mut Tracks<'_>,
) -> io::Result<()> {
    let mut parent = None;
    for (number, log) in (0..).zip(t.cpus()) {
        let mut interrupts = log.interrupts(window.from, window.to).peekable();
        if interrupts.peek().is_none() {
            continue;
        }
        let parent = match parent {
            Some(parent) => parent,
            None => *parent.insert(tracks.group("Interrupts")?),
        };
        let mut row = Row::nested(parent, format!("CPU {number}"), number);
        // Within one start the longer first, so that the other nests in it.
        let mut together = Vec::new();
        while let Some(first) = interrupts.next() {
            together.clear();
            together.push(first);
            while let Some(next) = interrupts.next_if(|i| i.start == first.start) {
                together.push(next);
            }
            together.sort_by_key(|i| std::cmp::Reverse(i.end));
            for irq in &together {
                row.slice(
                    tracks,
                    &Slice {
                        start: irq.start,
                        end: irq.end,
                        name: context_text(t, irq.context).into(),
                        category: match irq.context {
                            Context::HardIrq(_) => "irq",
                            Context::SoftIrq(_) => "softirq",
                            Context::Timer | Context::Task => "timer",
                        },
                        args: vec![("ns", uint(irq.end.saturating_sub(irq.start).0))],
                        flow: None,
                    },
                )?;
            }
        }
        tracks.end()?;
    }
    Ok(())
}
