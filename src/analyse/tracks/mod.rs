//! What a timeline shows: who had each CPU, what each thread, stream and device did, and what led to what.
//!
//! Decided here once, handed to a [`Sink`] piece by piece, and laid out by whoever writes a format: a recording
//! of millions of events becomes a file without a second copy of it in memory.
#![forbid(unsafe_code)]

mod cpus;
mod gpus;
mod lanes;
mod losses;
mod threads;
mod who;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::io;

use crate::analyse::partition::Engine;
use crate::analyse::report::Quality;
use crate::event::{Context, Cpu, Pid, Tid};
use crate::model::Timeline;
use crate::units::Nanos;

/// What to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Since the beginning of the recording.
    pub from: Option<Nanos>,
    pub to: Option<Nanos>,
    /// Threads and operations of these processes; empty: of all. CPUs show all the same who ran.
    pub pids: Vec<Pid>,
}

/// A wait for a CPU this long has a place of its own, as in perf-trace-viewer.
pub const LONG_WAIT: Nanos = Nanos::from_millis(3);

/// The time that is shown: all that a sink gets lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub from: Nanos,
    pub to: Nanos,
}

impl Window {
    fn of(t: &Timeline, options: &Options) -> Window {
        let at = |since_start: Nanos| Nanos(t.start().0.saturating_add(since_start.0)).min(t.end());
        let from = options.from.map_or(t.start(), at);
        Window {
            from,
            to: options.to.map_or(t.end(), at).max(from),
        }
    }

    fn has(self, at: Nanos) -> bool {
        self.from <= at && at <= self.to
    }

    /// The part of `[start, end]` that is shown; nothing where they only touch.
    fn clip(self, start: Nanos, end: Nanos) -> Option<(Nanos, Nanos)> {
        let (start, end) = (start, end.max(start));
        let is_moment = start == end && self.has(start);
        let (from, to) = (start.max(self.from), end.min(self.to));
        (is_moment || from < to).then_some((from, to))
    }
}

/// One row of slices. Unique in one export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackId(pub u32);

/// Tracks that belong together and to no process: a device, the interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A thread of a process. Of two that had the same ids in turn, both are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub pid: Pid,
    pub tid: Tid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parent {
    Group(GroupId),
    /// What the thread did itself, call by call.
    Calls(Owner),
    Thread(Owner),
    Process(Pid),
}

/// Slices on a track nest: each lies within the one before it, or begins after its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track<'a> {
    pub id: TrackId,
    pub parent: Parent,
    pub name: Cow<'a, str>,
    /// Place among the tracks of its parent.
    pub rank: u32,
    /// Slices that overlap without nesting are on several tracks of one name; this is the number of the track.
    pub lane: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    Uint(u64),
    Int(i64),
    Bool(bool),
    Text(Cow<'a, str>),
    List(Vec<Cow<'a, str>>),
}

pub type Arg<'a> = (&'static str, Value<'a>);

/// Connects two slices; each number has exactly one beginning, and then one end or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    From(u64),
    To(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Slice<'a> {
    pub start: Nanos,
    pub end: Nanos,
    pub name: Cow<'a, str>,
    pub category: &'static str,
    pub args: Vec<Arg<'a>>,
    pub flow: Option<Flow>,
}

/// A thread as the scheduler names it. Tid 0 is the idle task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    pub owner: Owner,
    pub comm: &'a str,
    pub prio: u32,
}

/// How a thread left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// What it did after is not recorded.
    Unknown,
    /// It could have gone on.
    Preempted,
    Yielded,
    Throttled,
    /// It can run, and nothing says why it does not.
    Runnable,
    /// In this raw `task->__state`.
    Blocked(u16),
    Exited,
}

/// From `start` on the CPU was this thread's. Turns of a CPU follow each other without a hole: where the
/// recording has one it is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    pub start: Nanos,
    /// `None`: idle, or not recorded.
    pub who: Option<Named<'a>>,
    /// How the one before left.
    pub left: Left,
}

/// `wakee` was made runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeUp<'a> {
    pub at: Nanos,
    pub wakee: Named<'a>,
    /// Who was current, to be blamed only in [`Context::Task`].
    pub waker: Tid,
    pub context: Context,
    /// Where it ran then, if it did.
    pub target: Option<Cpu>,
}

/// What happened to a thread as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life<'a> {
    /// `parent` made it.
    New {
        at: Nanos,
        who: Named<'a>,
        parent: Owner,
    },
    Renamed {
        at: Nanos,
        who: Named<'a>,
        before: &'a str,
    },
    Exited {
        at: Nanos,
        who: Named<'a>,
    },
}

/// What a thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Running,
    Runnable,
    Blocked,
}

/// A thread's state, for a sink that does not make it up from turns and wakes.
#[derive(Clone, Debug, PartialEq)]
pub struct Stay<'a> {
    pub start: Nanos,
    pub end: Nanos,
    pub doing: Doing,
    /// `running`, `runnable (preempted)`, `blocked (futex)`.
    pub text: Cow<'a, str>,
    pub args: Vec<Arg<'a>>,
    /// By a thread whose running is shown: an arrow leads from there to the start.
    pub woken_by: Option<Owner>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProcessInfo<'a> {
    pub pid: Pid,
    pub ppid: Option<Pid>,
    pub name: &'a str,
    /// Arguments joined by spaces; empty when not known.
    pub cmdline: &'a str,
    pub kthread: bool,
    /// Since when this is known.
    pub since: Nanos,
    /// Its beginning is told by [`Life::New`].
    pub is_born: bool,
    /// What its threads did is shown, beside who had the CPUs.
    pub shown: bool,
    /// Place among the processes: targets first, then by running time.
    pub rank: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ThreadInfo<'a> {
    pub owner: Owner,
    /// Its last name.
    pub comm: &'a str,
    pub since: Nanos,
    /// Its beginning is told by [`Life::New`].
    pub is_born: bool,
    pub rank: u32,
}

/// Takes a timeline, in this order: processes and threads; CPU by CPU; states, thread by thread; then groups and
/// tracks, where slices of one track come by start. Tracks come before their slices, and their parents before them.
pub trait Sink {
    fn process(&mut self, process: &ProcessInfo<'_>) -> io::Result<()>;
    fn thread(&mut self, thread: &ThreadInfo<'_>) -> io::Result<()>;
    /// The next turn of this CPU; the first one begins with the window.
    fn turn(&mut self, cpu: Cpu, turn: &Turn<'_>) -> io::Result<()>;
    fn wake(&mut self, cpu: Cpu, wake: &WakeUp<'_>) -> io::Result<()>;
    fn life(&mut self, cpu: Cpu, life: &Life<'_>) -> io::Result<()>;
    /// Nothing more of this CPU.
    fn end_cpu(&mut self, cpu: Cpu) -> io::Result<()>;
    /// It makes states from turns and wakes itself: [`Sink::stay`] is not called.
    fn makes_states(&self) -> bool;
    fn stay(&mut self, owner: Owner, stay: &Stay<'_>) -> io::Result<()>;
    fn group(&mut self, id: GroupId, name: &str) -> io::Result<()>;
    fn track(&mut self, track: &Track<'_>) -> io::Result<()>;
    fn slice(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()>;
    /// A slice without length, in its place among those of its track.
    fn instant(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()>;
    /// Nothing more of these tracks.
    fn end_tracks(&mut self) -> io::Result<()>;
}

/// What was shown.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    pub quality: Quality,
    /// Slices for which there was no place: more than [`lanes::MOST`] overlap there.
    pub left_out: u64,
}

/// Shows a finished timeline.
pub fn show(
    t: &Timeline,
    options: &Options,
    min_gap: Nanos,
    sink: &mut dyn Sink,
) -> io::Result<Shown> {
    let window = window(t, options);
    let engine = Engine::new(t);
    let cast = who::Cast::new(t, window, &options.pids);
    cast.introduce(sink)?;
    cpus::show(t, window, sink)?;
    if !sink.makes_states() {
        threads::show_states(&engine, &cast, sink)?;
    }
    let mut tracks = lanes::Tracks::new(sink);
    let gpus = gpus::show(&cast, min_gap, &mut tracks)?;
    gpus::show_overheads(&cast, &mut tracks)?;
    threads::show_calls(&engine, &cast, &gpus.linked, &mut tracks)?;
    threads::show_long_waits(&cast, &mut tracks)?;
    cpus::show_interrupts(t, window, &mut tracks)?;
    losses::show(&cast, &mut tracks)?;
    Ok(Shown {
        quality: gpus.quality,
        left_out: tracks.left_out(),
    })
}

/// The time that these options choose.
pub fn window(t: &Timeline, options: &Options) -> Window {
    Window::of(t, options)
}

fn uint(n: u64) -> Value<'static> {
    Value::Uint(n)
}

fn text<'a>(text: impl Into<Cow<'a, str>>) -> Value<'a> {
    Value::Text(text.into())
}
