//! What the cells of all lists have in common: how a number reads, and by what it is sorted.
#![forbid(unsafe_code)]

use super::when;
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

fn plain(text: String, key: Key) -> Cell {
    // Zeros are many, and say least.
    let tone = match key {
        Key::Number(0.0) => Tone::Dim,
        Key::Number(_) | Key::None | Key::Text(_) => Tone::Plain,
    };
    Cell {
        text,
        key,
        tone,
        ..Cell::default()
    }
}

#[allow(clippy::cast_precision_loss)]
fn by(n: u64) -> Key {
    Key::Number(n as f64)
}

/// What cannot be known.
pub(super) fn unknown() -> Cell {
    plain("-".to_string(), Key::None).tone(Tone::Dim)
}

/// What does not apply.
pub(super) fn nothing() -> Cell {
    plain(String::new(), Key::None)
}

pub(super) fn text(text: impl Into<String>) -> Cell {
    let text = text.into();
    let key = Key::Text(text.clone());
    plain(text, key)
}

/// Some have none, which must not look like a hole.
pub(super) fn name(comm: &str) -> Cell {
    let shown = if comm.is_empty() { "''" } else { comm };
    plain(shown.to_string(), Key::Text(comm.to_string())).tone(Tone::Name)
}

/// Who, and for how long.
pub(super) fn who_for(found: Option<(&Who, Nanos)>) -> Cell {
    found.map_or_else(unknown, |(who, time)| {
        plain(format!("{who} {time}"), by(time.0))
    })
}

/// Of a thread, a process, a CPU.
pub(super) fn id(n: u32) -> Cell {
    plain(n.to_string(), by(u64::from(n))).tone(Tone::Plain)
}

pub(super) fn count(n: u64) -> Cell {
    plain(Count(n).to_string(), by(n))
}

/// A second.
pub(super) fn rate(n: u64, time: Nanos) -> Cell {
    Rate::of(n, time).map_or_else(unknown, |rate| plain(rate.to_string(), Key::Number(rate.0)))
}

pub(super) fn time(time: Option<Nanos>) -> Cell {
    time.map_or_else(unknown, |time| plain(time.to_string(), by(time.0)))
}

pub(super) fn bytes(bytes: Option<Bytes>) -> Cell {
    bytes.map_or_else(unknown, |bytes| plain(bytes.to_string(), by(bytes.0)))
}

/// Where only a bound is known, it says so.
pub(super) fn longest(times: &Histogram) -> Cell {
    if times.count == 0 {
        return unknown();
    }
    plain(times.longest_text(), by(times.max.0))
}

/// After the begin of something: `+12.3 ms`.
pub(super) fn offset(after: Nanos) -> Cell {
    plain(format!("+{after}"), by(after.0)).tone(Tone::Plain)
}

/// An instant, before now or after the begin of a recording.
pub(super) fn at(model: &Model, at: Nanos) -> Cell {
    plain(when(model, at), by(at.0))
}

/// In per cent, which the title of the column says.
pub(super) fn share(part: Nanos, whole: Nanos) -> Cell {
    if whole == Nanos::ZERO {
        return unknown();
    }
    let share = part.share_of(whole);
    plain(percent(share), Key::Number(share))
}

fn percent(share: f64) -> String {
    Share(share).to_string().trim_end_matches(" %").to_string()
}

impl Cell {
    pub(super) fn tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    /// What is not known, or does not apply, stays as it is.
    pub(super) fn toned(self, tone: Tone) -> Cell {
        if self.key == Key::None {
            self
        } else {
            self.tone(tone)
        }
    }

    /// Of a share.
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
