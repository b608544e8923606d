//! What a screen says, apart from how it is drawn.
#![forbid(unsafe_code)]

use super::list::{List, Piece, Tone};

/// The part of the screen below the header.
#[derive(Clone, Debug, PartialEq)]
pub enum Screen {
    /// A table with a cursor; above it what stays in place.
    Table { above: Vec<Block>, list: List },
    /// Something to read, scrolled as a whole.
    Page { title: String, blocks: Vec<Block> },
}

impl From<List> for Screen {
    fn from(list: List) -> Screen {
        Screen::Table {
            above: Vec::new(),
            list,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Blank,
    Heading(String),
    /// The label once, then the body wrapped beside it.
    Text {
        label: String,
        body: String,
        tone: Tone,
    },
    /// As wide as the screen.
    Bar(Vec<Piece>),
    /// With all of its rows, in their order.
    Table(List),
}

impl Block {
    pub fn text(label: impl Into<String>, body: impl Into<String>, tone: Tone) -> Block {
        Block::Text {
            label: label.into(),
            body: body.into(),
            tone,
        }
    }
}
