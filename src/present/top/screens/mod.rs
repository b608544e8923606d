//! What the screens say: lists made of a [`Model`](super::Model), not drawn yet.
//!
//! A list shows all that is known, in the order that helps most; what a narrow terminal leaves out, and another
//! order or a filter, is the business of whoever draws it. Columns stay the same from frame to frame, so
//! that the one that is sorted by does not go away. Names are as they came from outside.
#![forbid(unsafe_code)]

pub mod calls;
mod cell;
pub mod cpus;
pub mod kernels;
pub mod machine;
pub mod processes;
pub mod thread;
pub mod threads;

use super::list::{List, Tone};
use crate::analyse::live::Window;
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
