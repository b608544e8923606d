//! Draws something to read: sentences and tables one below another, scrolled as a whole.
//!
//! The cursor is on a line of it, whatever that is; on a row of a table that can be opened, Enter does so.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;

use super::canvas::Canvas;
use super::list::{List, Tone};
use super::screens::Section;
use super::table;
use super::view::{Open, State};
use crate::present::text;

enum Line<'a> {
    Blank,
    Title(&'a str),
    Text(String, Tone),
    Names(&'a List),
    Row(&'a List, usize),
    Note(&'a str),
}

fn lines(sections: &[Section], width: u16) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for section in sections {
        let list = &section.list;
        if !lines.is_empty() {
            lines.push(Line::Blank);
        }
        if !list.title.is_empty() {
            lines.push(Line::Title(&list.title));
        }
        for said in &section.text {
            lines.extend(wrapped(&said.text, width).map(|text| Line::Text(text, said.tone)));
        }
        if !list.rows.is_empty() {
            lines.push(Line::Names(list));
            lines.extend((0..list.rows.len()).map(|row| Line::Row(list, row)));
        }
        lines.extend(list.notes.iter().map(|note| Line::Note(note)));
    }
    lines
}

/// Blanks at the begin are an indent for all lines of it.
pub fn wrapped(said: &str, width: u16) -> impl Iterator<Item = String> {
    let body = said.trim_start_matches(' ');
    let indent = said.len() - body.len();
    let room = usize::from(width).saturating_sub(indent);
    let clean = super::canvas::shown(body, true);
    let lines = text::wrap(&clean, room);
    lines
        .into_iter()
        .map(move |line| format!("{:indent$}{line}", ""))
}

/// Of each line, what its row opens.
pub fn opens(sections: &[Section], width: u16) -> Vec<Option<Open>> {
    let lines = lines(sections, width);
    let opens = lines.iter().map(|line| match line {
        Line::Row(list, row) => list.rows[*row].opens.clone(),
        Line::Blank | Line::Title(_) | Line::Text(..) | Line::Names(_) | Line::Note(_) => None,
    });
    opens.collect()
}

pub fn draw(canvas: &mut Canvas<'_>, area: Rect, sections: &[Section], state: &State) {
    let lines = lines(sections, area.width);
    let at = state.place.min(lines.len().saturating_sub(1));
    let top = state.top(at, lines.len(), usize::from(area.height));
    let (strong, dim) = (canvas.style(Tone::Strong), canvas.style(Tone::Dim));
    for (y, (i, line)) in (area.top()..area.bottom()).zip(lines.iter().enumerate().skip(top)) {
        let here = table::line(area, y);
        match line {
            Line::Blank => {}
            Line::Title(title) => {
                canvas.text(here.x, y, here.width, title, strong);
            }
            Line::Text(text, tone) => {
                let style = canvas.style(*tone);
                canvas.text(here.x, y, here.width, text, style);
            }
            Line::Note(note) => {
                canvas.text(here.x, y, here.width, note, dim);
            }
            Line::Names(list) => {
                let rows: Vec<usize> = (0..list.rows.len()).collect();
                let widths = table::widths(canvas, list, &rows, here.width);
                table::draw_names(canvas, here, list, &State::default(), &widths);
            }
            Line::Row(list, row) => {
                let rows: Vec<usize> = (0..list.rows.len()).collect();
                let widths = table::widths(canvas, list, &rows, here.width);
                table::draw_row(
                    canvas,
                    here,
                    list,
                    &list.rows[*row].cells,
                    &widths,
                    i == at,
                    "",
                );
            }
        }
        if i == at && !matches!(line, Line::Row(..)) {
            let cursor = canvas.theme().cursor();
            canvas.tint(here, cursor);
        }
    }
    let room = usize::from(area.height);
    if lines.len() > room && area.height > 0 {
        let place = format!(
            " {}-{} of {}",
            top + 1,
            (top + room).min(lines.len()),
            lines.len()
        );
        let width = super::canvas::columns(&place);
        if area.width > 2 * width {
            canvas.right(area.right() - width, area.top(), width, &place, dim);
        }
    }
}
