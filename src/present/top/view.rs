//! What the person looks at.

use crate::analyse::cause::Cause;
use crate::event::{Pid, Tid};
use crate::units::Nanos;

/// A screen that is always one key away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Overview,
    Causes,
    Gaps,
    Threads,
    Calls,
    Kernels,
    Cpus,
    Processes,
}

/// What was opened on the way from the tab to here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// The gaps with a part of this cause, and who.
    Cause(Cause),
    /// The gap of a GPU that began then.
    Gap {
        gpu: u32,
        start: Nanos,
    },
    Thread {
        pid: Pid,
        tid: Tid,
    },
    /// A system call, by thread.
    Call(String),
    Kernel(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub tab: Tab,
    /// The last one is on the screen.
    pub opened: Vec<Open>,
    /// Position in the GPUs of the report.
    pub gpu: usize,
    pub window: Nanos,
    /// The end of the window that is held; `None`: it moves on.
    pub held: Option<Nanos>,
    pub filter: String,
    /// The filter is being typed.
    pub typing: bool,
    pub help: bool,
}

/// What a key asks of the rest of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Quit,
    /// Write what is in memory to a recording.
    Snapshot,
    /// Count all system calls of the targets, or no more.
    CountCalls(bool),
    /// Of a recording: multiply the speed.
    Faster,
    Slower,
    /// Draw everything anew, as Ctrl-L does.
    Redraw,
    /// Stop as Ctrl-Z does.
    Suspend,
}
