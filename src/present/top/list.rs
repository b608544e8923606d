//! A table of a screen: what it says, apart from how it is drawn, sorted, filtered and scrolled.

use super::view::Open;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct List {
    pub title: String,
    pub columns: Vec<Column>,
    /// In the order in which they come unless another is asked for.
    pub rows: Vec<Row>,
    /// Under the table: what is missing, or doubtful.
    pub notes: Vec<String>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The same row of the next frame has the same.
    pub id: String,
    /// What Enter does.
    pub opens: Option<Open>,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Of any content: it is made harmless when it is drawn.
    pub text: String,
    /// By what a column is sorted. Those without come last.
    pub key: Key,
    pub tone: Tone,
    /// A bar of this share of the cell behind the text, 0 to 1.
    pub bar: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Key {
    None,
    Number(f64),
    Text(String),
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
