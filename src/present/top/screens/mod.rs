//! Each screen, as a function of the model: what it says, and which rows of it can be opened.
#![forbid(unsafe_code)]

pub mod calls;
mod cause;
pub mod causes;
mod cell;
mod cpus;
pub mod dispatchers;
mod gap;
mod gaps;
pub mod gpus;
pub mod host;
pub mod kernels;
mod machine;
mod processes;
#[cfg(test)]
pub(super) mod sample;
#[cfg(test)]
mod tests;
mod thread;
pub mod threads;

use super::list::{Cell, Piece, Tone};
use super::model::{Model, Source};
use super::screen::Screen;
use super::view::{Open, Tab, View};
use crate::analyse::cause::{Cause, Side};
use crate::analyse::report::{Gap, ThreadRef};
use crate::units::Nanos;

/// What is below the header. `None`: the overview, which draws itself.
pub fn screen(model: &Model, view: &View) -> Option<Screen> {
    match view.opened.last() {
        Some(&Open::Cause(cause)) => Some(cause::screen(model, view, cause)),
        Some(&Open::Gap { gpu, start }) => Some(gap::screen(model, gpu, start)),
        Some(&Open::Thread { pid, tid }) => Some(thread::screen(model, pid, tid)),
        Some(Open::Call(name)) => Some(calls::opened(model, name)),
        Some(Open::Kernel(name)) => Some(kernels::opened(model, name)),
        None => match view.tab {
            Tab::Overview if model.source == Source::Machine => Some(machine::screen(model, view)),
            Tab::Overview => None,
            Tab::Causes => Some(causes::list(model, view).into()),
            Tab::Gaps => Some(gaps::list(model, view).into()),
            Tab::Threads => Some(threads::list(model).into()),
            Tab::Calls => Some(calls::screen(model, view)),
            Tab::Kernels => Some(kernels::list(model).into()),
            Tab::Cpus => Some(cpus::list(model).into()),
            Tab::Processes => Some(processes::list(model).into()),
        },
    }
}

/// When that was: before now, or of a recording, after its begin.
fn when(model: &Model, at: Nanos) -> String {
    match model.source {
        Source::Recording { start, .. } => {
            let ms = at.saturating_sub(start).as_u64() / 1_000_000;
            format!("{}.{:03} s", ms / 1_000, ms % 1_000)
        }
        Source::Targets | Source::Machine => {
            let hundredths = model.newest.saturating_sub(at).as_u64() / 10_000_000;
            format!("-{}.{:02} s", hundredths / 100, hundredths % 100)
        }
    }
}

pub fn gap_at(model: &Model, gap: &Gap) -> String {
    when(model, gap.start)
}

/// The thread that is told of, as far as it is one.
fn open_ref(who: Option<&ThreadRef>) -> Option<Open> {
    who.map(|who| Open::Thread {
        pid: who.pid,
        tid: who.tid,
    })
}

/// `part` of `whole` as a piece of a bar, where it is.
fn place((start, end): (Nanos, Nanos), (from, to): (Nanos, Nanos), mark: char, tone: Tone) -> Cell {
    let whole = to.saturating_sub(from);
    let before = start.saturating_sub(from).share_of(whole);
    let share = end.saturating_sub(start.max(from)).share_of(whole);
    let blank = Piece {
        share: before,
        mark: ' ',
        tone: Tone::Plain,
    };
    Cell::pieces(vec![blank, Piece { share, mark, tone }])
}

/// What a cause means for a person: whose it is.
pub fn tone_of(cause: Cause) -> Tone {
    match cause.side() {
        Side::Host => Tone::Bad,
        Side::Device => Tone::Warn,
        Side::Unknown => Tone::Dim,
    }
}
