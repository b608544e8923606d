//! What the lists have in common: what their numbers are about, how they read, and by what they are sorted.
//!
//! A list says all that is known, in the order that helps most; what a narrow terminal leaves out, and another
//! order or a filter, is the business of whoever draws it. Columns stay the same from frame to frame, so that the
//! one that is sorted by does not go away. Names are as they came from outside.
#![forbid(unsafe_code)]

use super::when;
use crate::analyse::live::Window;
use crate::analyse::sched::Who;
use crate::histogram::Histogram;
use crate::present::top::list::{Align, Cell, Column, Key, List, Row, Tone};
use crate::present::top::model::Model;
use crate::present::top::view::Open;
use crate::units::{Bytes, Count, Nanos, Rate, Share};

/// A column, and what it says of a `T`: together, so that no row has more or fewer cells than there are columns.
pub(super) struct Field<'a, T> {
    column: Column,
    cell: Box<dyn Fn(&T) -> Cell + 'a>,
}

impl<'a, T: 'a> Field<'a, T> {
    /// The same column of something that has a `T`.
    pub(super) fn of<U>(self, part: impl Fn(&U) -> &T + 'a) -> Field<'a, U> {
        let cell = self.cell;
        Field {
            column: self.column,
            cell: Box::new(move |whole: &U| cell(part(whole))),
        }
    }
}

fn field<'a, T>(
    (name, align, rank, grows): (&'static str, Align, u8, bool),
    cell: impl Fn(&T) -> Cell + 'a,
) -> Field<'a, T> {
    let column = Column {
        name,
        align,
        rank,
        grows,
    };
    let cell = Box::new(cell);
    Field { column, cell }
}

pub(super) fn right<'a, T>(
    name: &'static str,
    rank: u8,
    cell: impl Fn(&T) -> Cell + 'a,
) -> Field<'a, T> {
    field((name, Align::Right, rank, false), cell)
}

pub(super) fn left<'a, T>(
    name: &'static str,
    rank: u8,
    cell: impl Fn(&T) -> Cell + 'a,
) -> Field<'a, T> {
    field((name, Align::Left, rank, false), cell)
}

/// The one that takes what is left of the width.
pub(super) fn grows<'a, T>(
    name: &'static str,
    rank: u8,
    cell: impl Fn(&T) -> Cell + 'a,
) -> Field<'a, T> {
    field((name, Align::Left, rank, true), cell)
}

/// The same for sentences, and for lists of which the first tells most.
pub(super) fn prose<'a, T>(
    name: &'static str,
    rank: u8,
    cell: impl Fn(&T) -> Cell + 'a,
) -> Field<'a, T> {
    field((name, Align::Prose, rank, true), cell)
}

/// `row` is the id, and what Enter opens.
pub(super) fn list<T>(
    title: impl Into<String>,
    fields: Vec<Field<'_, T>>,
    items: &[T],
    row: impl Fn(&T) -> (String, Option<Open>),
) -> List {
    let rows = items.iter().map(|item| {
        let (id, opens) = row(item);
        Row {
            id,
            opens,
            cells: fields.iter().map(|field| (field.cell)(item)).collect(),
        }
    });
    List {
        title: title.into(),
        rows: rows.collect(),
        columns: fields.into_iter().map(|field| field.column).collect(),
        notes: Vec::new(),
    }
}

/// The time that the sums of a window are about: what was skipped to catch up is no part of it.
pub(super) fn analysed(window: &Window) -> Nanos {
    let whole = window.to.saturating_sub(window.from);
    if window.points.is_empty() {
        return whole;
    }
    let lengths = window.points.iter().map(|p| p.to.saturating_sub(p.from));
    lengths.fold(Nanos::ZERO, Nanos::saturating_add).min(whole)
}

/// `1 thread`, `12 threads`.
pub(super) fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        n if what.ends_with("ss") => format!("{n} {what}es"),
        n => format!("{n} {what}s"),
    }
}

/// Zeros are many, and say least.
fn number(text: String, key: f64) -> Cell {
    let tone = if key == 0.0 { Tone::Dim } else { Tone::Plain };
    Cell::number(text, key).tone(tone)
}

#[allow(clippy::cast_precision_loss)]
fn float(n: u64) -> f64 {
    n as f64
}

/// What does not apply.
pub(super) fn nothing() -> Cell {
    Cell::default()
}

/// Some have none, which must not look like a hole.
pub(super) fn name(comm: &str) -> Cell {
    let cell = Cell::text(comm).tone(Tone::Name);
    if comm.is_empty() {
        let text = "''".to_string();
        return Cell { text, ..cell };
    }
    cell
}

/// Who, and for how long.
pub(super) fn who_for(found: Option<(&Who, Nanos)>) -> Cell {
    found.map_or_else(Cell::none, |(who, time)| {
        number(format!("{who} {time}"), float(time.0))
    })
}

/// Of a thread, a process, a CPU.
pub(super) fn id(n: u32) -> Cell {
    Cell::number(n.to_string(), f64::from(n))
}

pub(super) fn count(n: u64) -> Cell {
    number(Count(n).to_string(), float(n))
}

/// A second.
pub(super) fn rate(n: u64, time: Nanos) -> Cell {
    Rate::of(n, time).map_or_else(Cell::none, |rate| number(rate.to_string(), rate.0))
}

pub(super) fn time(time: Option<Nanos>) -> Cell {
    time.map_or_else(Cell::none, |time| number(time.to_string(), float(time.0)))
}

pub(super) fn bytes(bytes: Option<Bytes>) -> Cell {
    bytes.map_or_else(Cell::none, |bytes| {
        number(bytes.to_string(), float(bytes.0))
    })
}

/// Where only a bound is known, it says so.
pub(super) fn longest(times: &Histogram) -> Cell {
    if times.count == 0 {
        return Cell::none();
    }
    number(times.longest_text(), float(times.max.0))
}

/// After the begin of something: `+12.3 ms`.
pub(super) fn offset(after: Nanos) -> Cell {
    Cell::number(format!("+{after}"), float(after.0))
}

/// An instant, before now or after the begin of a recording.
pub(super) fn at(model: &Model, at: Nanos) -> Cell {
    Cell::number(when(model, at), float(at.0))
}

/// In per cent, which the title of the column says.
pub(super) fn share(part: Nanos, whole: Nanos) -> Cell {
    if whole == Nanos::ZERO {
        return Cell::none();
    }
    let share = part.share_of(whole);
    let text = Share(share).to_string();
    number(text.trim_end_matches(" %").to_string(), share)
}

impl Cell {
    /// A bar of the share that it tells.
    pub(super) fn with_bar(self) -> Cell {
        let bar = match self.key {
            Key::Number(share) => Some(share.clamp(0.0, 1.0)),
            Key::None | Key::Text(_) => None,
        };
        Cell { bar, ..self }
    }

    /// A share that does harm from some size on.
    pub(super) fn harm(self) -> Cell {
        const WORTH_A_LOOK: f64 = 0.01;
        const BAD: f64 = 0.1;
        let tone = match self.key {
            Key::Number(share) if share >= BAD => Tone::Bad,
            Key::Number(share) if share >= WORTH_A_LOOK => Tone::Warn,
            Key::Number(_) | Key::None | Key::Text(_) => return self,
        };
        self.tone(tone)
    }
}

impl Row {
    /// What is over, or sleeps all the time.
    pub(super) fn dimmed(mut self) -> Row {
        for cell in &mut self.cells {
            cell.tone = Tone::Dim;
        }
        self
    }
}
