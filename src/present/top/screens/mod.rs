//! What the screens say: lists made of a [`Model`](super::Model), not drawn yet.
//!
//! A list shows all that is known, in the order that helps most; what a narrow terminal leaves out, and another
//! order or a filter, is the business of whoever draws it. Columns stay the same from frame to frame, so
//! that the one that is sorted by does not go away. Names are as they came from outside.
#![forbid(unsafe_code)]

pub mod calls;
pub mod cause;
pub mod causes;
mod cell;
pub mod cpus;
pub mod dispatchers;
pub mod gap;
pub mod gaps;
pub mod gpus;
pub mod host;
pub mod kernels;
pub mod machine;
pub mod processes;
pub mod thread;
pub mod threads;

use super::list::{Cell, List, Piece, Tone};
use super::model::{Model, Source};
use super::view::Open;
use crate::analyse::cause::{Cause, Side};
use crate::analyse::live::Window;
use crate::analyse::report::{Gap, ThreadRef};
use crate::units::Nanos;

/// One of several parts of a screen, one under another: sentences, then a table. Either can be empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Each is wrapped where it is drawn.
    pub text: Vec<Line>,
    /// With the title of the section.
    pub list: List,
    /// What a low terminal leaves out first has the highest number; 0 always stays.
    pub rank: u8,
    /// So many rows of the table say most; more where there is room.
    pub rows: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    pub tone: Tone,
}

impl Line {
    fn new(tone: Tone, text: impl Into<String>) -> Line {
        let text = text.into();
        Line { text, tone }
    }
}

/// The time that the sums of a window are about: what was skipped to catch up is no part of it.
fn analysed(window: &Window) -> Nanos {
    let whole = window.to.saturating_sub(window.from);
    if window.points.is_empty() {
        return whole;
    }
    let lengths = window.points.iter().map(|p| p.to.saturating_sub(p.from));
    lengths.fold(Nanos::ZERO, Nanos::saturating_add).min(whole)
}

/// `1 thread`, `12 threads`.
fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        n if what.ends_with("ss") => format!("{n} {what}es"),
        n => format!("{n} {what}s"),
    }
}

/// When that was: before now, or of a recording, after its begin.
fn when(model: &Model, at: Nanos) -> String {
    let tenths = |time: Nanos| {
        let ms = time.as_u64() / 1_000_000;
        format!("{}.{:02} s", ms / 1_000, ms / 10 % 100)
    };
    match model.source {
        Source::Recording { start, .. } => tenths(at.saturating_sub(start)),
        Source::Targets | Source::Machine => {
            format!("-{}", tenths(model.newest.saturating_sub(at)))
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
    Cell {
        pieces: vec![blank, Piece { share, mark, tone }],
        ..Cell::default()
    }
}

/// What a cause means for a person: whose it is.
pub fn tone_of(cause: Cause) -> Tone {
    match cause.side() {
        Side::Host => Tone::Bad,
        Side::Device => Tone::Warn,
        Side::Unknown => Tone::Dim,
    }
}
