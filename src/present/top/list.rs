//! A table of a screen: what it says, apart from how it is drawn, sorted, filtered and scrolled.

#![forbid(unsafe_code)]

use std::cmp::Ordering;

use super::view::{Open, State};
use crate::units::{Count, Nanos, Share};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct List {
    pub title: String,
    pub columns: Vec<Column>,
    /// In the order in which they come unless another is asked for.
    pub rows: Vec<Row>,
    /// Under the table: what is missing, or doubtful.
    pub notes: Vec<String>,
}

impl List {
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> List {
        List {
            title: title.into(),
            columns,
            ..List::default()
        }
    }

    /// The rows that are shown, in their order, by their place in `rows`.
    pub fn arranged(&self, state: &State) -> Vec<usize> {
        let filter = state.filter.to_lowercase();
        let mut rows: Vec<usize> = (0..self.rows.len())
            .filter(|&row| self.rows[row].matches(&filter))
            .collect();
        let column = state
            .sort
            .and_then(|name| self.columns.iter().position(|column| column.name == name));
        let Some(column) = column else {
            if state.reversed {
                rows.reverse();
            }
            return rows;
        };
        let key = |row: usize| self.rows[row].cells.get(column).map(|cell| &cell.key);
        rows.sort_by(|&a, &b| match (key(a), key(b)) {
            (Some(a), Some(b)) => a.order(b, state.reversed),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
        rows
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub align: Align,
    /// What a narrow terminal leaves out first has the highest number; 0 always stays.
    pub rank: u8,
    /// Takes what is left of the width.
    pub grows: bool,
}

impl Column {
    pub const fn left(name: &'static str) -> Column {
        Column {
            name,
            align: Align::Left,
            rank: 0,
            grows: false,
        }
    }

    /// For numbers.
    pub const fn right(name: &'static str) -> Column {
        Column {
            align: Align::Right,
            ..Column::left(name)
        }
    }

    #[must_use]
    pub const fn rank(self, rank: u8) -> Column {
        Column { rank, ..self }
    }

    #[must_use]
    pub const fn grows(self) -> Column {
        Column {
            grows: true,
            ..self
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names: what has no room is cut out of the middle.
    Left,
    Right,
    /// Sentences, and lists of which the first tells most: cut at the end.
    Prose,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The same row of the next frame has the same.
    pub id: String,
    /// What Enter does.
    pub opens: Option<Open>,
    pub cells: Vec<Cell>,
}

impl Row {
    pub fn new(id: impl Into<String>, cells: Vec<Cell>) -> Row {
        Row {
            id: id.into(),
            opens: None,
            cells,
        }
    }

    #[must_use]
    pub fn opens(self, what: Open) -> Row {
        Row {
            opens: Some(what),
            ..self
        }
    }

    /// `filter` is in lower case.
    fn matches(&self, filter: &str) -> bool {
        filter.is_empty()
            || self
                .cells
                .iter()
                .any(|cell| cell.text.to_lowercase().contains(filter))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// Of any content: it is made harmless when it is drawn.
    pub text: String,
    /// By what a column is sorted. Those without come last.
    pub key: Key,
    pub tone: Tone,
    /// A bar of this share of the cell behind the text, 0 to 1.
    pub bar: Option<f64>,
    /// Instead of the text: a bar of these pieces, one after another. The text is for those who filter.
    pub pieces: Vec<Piece>,
}

/// A piece of a divided bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Of the whole bar, 0 to 1.
    pub share: f64,
    /// What it is filled with.
    pub mark: char,
    pub tone: Tone,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Cell {
        let text = text.into();
        Cell {
            key: Key::Text(text.clone()),
            text,
            ..Cell::default()
        }
    }

    /// Not known.
    pub fn none() -> Cell {
        Cell {
            text: "-".to_string(),
            tone: Tone::Dim,
            ..Cell::default()
        }
    }

    pub fn number(text: impl Into<String>, key: f64) -> Cell {
        Cell {
            text: text.into(),
            key: Key::Number(key),
            ..Cell::default()
        }
    }

    pub fn time(time: impl Into<Option<Nanos>>) -> Cell {
        time.into().map_or_else(Cell::none, |time| {
            Cell::number(time.to_string(), number(time.as_u64()))
        })
    }

    pub fn count(count: impl Into<Option<u64>>) -> Cell {
        count.into().map_or_else(Cell::none, |count| {
            Cell::number(Count(count).to_string(), number(count))
        })
    }

    /// 0 to 1.
    pub fn share(share: impl Into<Option<f64>>) -> Cell {
        share.into().map_or_else(Cell::none, |share| {
            Cell::number(Share(share).to_string(), share)
        })
    }

    pub fn pieces(pieces: Vec<Piece>) -> Cell {
        Cell {
            pieces,
            ..Cell::default()
        }
    }

    #[must_use]
    pub fn tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    #[must_use]
    pub fn bar(self, share: f64) -> Cell {
        Cell {
            bar: Some(share),
            ..self
        }
    }
}

/// Close enough to sort by.
#[allow(clippy::cast_precision_loss)]
fn number(n: u64) -> f64 {
    n as f64
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Key {
    #[default]
    None,
    Number(f64),
    Text(String),
}

impl Key {
    /// Large numbers come first, and texts in the order of the alphabet, unless that is reversed.
    fn order(&self, other: &Key, reversed: bool) -> Ordering {
        let order = match (self, other) {
            (Key::Number(a), Key::Number(b)) => b.total_cmp(a),
            (Key::Text(a), Key::Text(b)) => {
                let lower = a.to_lowercase().cmp(&b.to_lowercase());
                lower.then_with(|| a.cmp(b))
            }
            (Key::Number(_), Key::Text(_)) => Ordering::Less,
            (Key::Text(_), Key::Number(_)) => Ordering::Greater,
            (Key::None, Key::None) => return Ordering::Equal,
            (Key::None, _) => return Ordering::Greater,
            (_, Key::None) => return Ordering::Less,
        };
        if reversed {
            order.reverse()
        } else {
            order
        }
    }
}

/// What a color means; the theme says which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Dim,
    Strong,
    /// The device is busy, all is well.
    Good,
    /// Worth a look.
    Warn,
    /// The one to blame.
    Bad,
    Name,
}
