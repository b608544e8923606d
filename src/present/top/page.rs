//! Draws something to read: sentences, bars and tables one below another, scrolled as a whole.
//!
//! The cursor is on a line of it, whatever that is; on a row of a table that opens something, Enter does so.
#![forbid(unsafe_code)]

use std::rc::Rc;

use ratatui::layout::Rect;

use super::canvas::{columns, shown, Canvas};
use super::list::{List, Piece, Tone};
use super::screen::Block;
use super::table;
use super::view::{Open, State};
use crate::present::text;

#[derive(Debug)]
pub enum Line<'a> {
    Blank,
    Heading(&'a str),
    Text(String, Tone),
    Bar(&'a [Piece]),
    Names(&'a List, Rc<[u16]>),
    Row(&'a List, usize, Rc<[u16]>),
    Note(&'a str),
}

/// All of it, at this width.
pub fn lines(blocks: &[Block], width: u16) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for block in blocks {
        match block {
            Block::Blank => lines.push(Line::Blank),
            Block::Heading(heading) => lines.push(Line::Heading(heading)),
            Block::Text { label, body, tone } => {
                let texts = wrapped(label, body, width).into_iter();
                lines.extend(texts.map(|text| Line::Text(text, *tone)));
            }
            Block::Bar(pieces) => lines.push(Line::Bar(pieces)),
            Block::Table(list) => {
                if !list.title.is_empty() {
                    lines.push(Line::Heading(&list.title));
                }
                let rows: Vec<usize> = (0..list.rows.len()).collect();
                let widths: Rc<[u16]> = table::widths(list, &rows, width).into();
                lines.push(Line::Names(list, widths.clone()));
                let rows = rows.into_iter();
                lines.extend(rows.map(|row| Line::Row(list, row, widths.clone())));
                lines.extend(list.notes.iter().map(|note| Line::Note(note)));
            }
        }
    }
    while let Some(Line::Blank) = lines.last() {
        lines.pop();
    }
    lines
}

/// The label once, and the body beside it.
fn wrapped(label: &str, body: &str, width: u16) -> Vec<String> {
    let label = shown(label, true);
    let indent = usize::from(columns(&label).min(width / 2));
    let room = usize::from(width).saturating_sub(indent);
    let texts = text::wrap(&shown(body, true), room).into_iter();
    let lines = texts.enumerate().map(|(i, text)| match i {
        0 => format!("{label}{text}"),
        _ => format!("{:indent$}{text}", ""),
    });
    lines.collect()
}

/// Of each line, what its row opens. The title of the page is one.
pub fn opens(blocks: &[Block], width: u16) -> Vec<Option<Open>> {
    let opens = lines(blocks, width).into_iter().map(|line| match line {
        Line::Row(list, row, _) => list.rows[row].opens.clone(),
        Line::Blank
        | Line::Heading(_)
        | Line::Text(..)
        | Line::Bar(_)
        | Line::Names(..)
        | Line::Note(_) => None,
    });
    opens.collect()
}

/// The title stays where it is.
pub fn draw(canvas: &mut Canvas<'_>, area: Rect, title: &str, blocks: &[Block], state: &State) {
    if area.is_empty() {
        return;
    }
    let strong = canvas.style(Tone::Strong);
    let dim = canvas.style(Tone::Dim);
    let taken = canvas.name(area.x, area.y, area.width, title, strong);
    let rest = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    let lines = lines(blocks, area.width);
    let room = usize::from(rest.height);
    let at = state.place.min(lines.len().saturating_sub(1));
    let top = state.top(at, lines.len(), room);
    if lines.len() > room {
        let last = (top + room).min(lines.len());
        let place = format!("{}-{last} of {}", top + 1, lines.len());
        let width = columns(&place);
        if taken + 2 + width <= area.width {
            canvas.right(area.right() - width, area.y, width, &place, dim);
        }
    }
    for (y, (i, line)) in (rest.top()..rest.bottom()).zip(lines.iter().enumerate().skip(top)) {
        draw_line(canvas, table::line(rest, y), line, i == at);
    }
}

pub fn draw_line(canvas: &mut Canvas<'_>, at: Rect, line: &Line<'_>, cursor: bool) {
    match line {
        Line::Blank => {}
        Line::Heading(text) => {
            let strong = canvas.style(Tone::Strong);
            canvas.text(at.x, at.y, at.width, text, strong);
        }
        Line::Text(text, tone) => {
            let style = canvas.style(*tone);
            canvas.text(at.x, at.y, at.width, text, style);
        }
        Line::Bar(pieces) => table::pieces(canvas, at, pieces),
        Line::Note(note) => {
            let dim = canvas.style(Tone::Dim);
            canvas.text(at.x, at.y, at.width, note, dim);
        }
        Line::Names(list, widths) => {
            table::draw_names(canvas, at, list, &State::default(), widths);
        }
        Line::Row(list, row, widths) => {
            let cells = &list.rows[*row].cells;
            return table::draw_row(canvas, at, list, cells, widths, cursor, "");
        }
    }
    if cursor {
        let style = canvas.theme().cursor();
        canvas.tint(at, style);
    }
}
