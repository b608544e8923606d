//! Draws a list as a table: columns that fit, in widths that suit their content, and the rows around the cursor.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::canvas::{columns, shown, Canvas};
use super::list::{Align, Cell, Column, List, Piece, Tone};
use super::view::State;
use crate::units::Count;

/// Between columns.
const BETWEEN: u16 = 1;
/// A column that does not grow is not wider than this.
const WIDEST: u16 = 40;
/// A column that grows is not narrower, if it can be helped.
const GROWS_FROM: u16 = 36;

const NOTHING: &str = "nothing in this window";
/// And has some air, when there is room.
const GROWS_TO: u16 = 24;
/// Longer ones are hard to compare.
const WIDEST_BAR: u16 = 64;

/// The table in `area`, with a line of title, one of column names, and one for each of the notes where there is room.
pub fn draw(canvas: &mut Canvas<'_>, area: Rect, list: &List, state: &State) {
    if area.is_empty() {
        return;
    }
    let rows = list.arranged(state);
    let at = state.at(list, &rows);
    let notes = notes_shown(list, area.height);
    let title = u16::from(area.height > 2);
    let names = u16::from(area.height > 1);
    let room = area.height - frame(list, area.height);
    let top = state.top(at, rows.len(), usize::from(room));
    let widths = widths(list, &rows, area.width);
    let mut y = area.top();
    if title > 0 {
        let shown = usize::from(room).min(rows.len() - top);
        draw_title(canvas, line(area, y), list, state, (top, shown, rows.len()));
        y += 1;
    }
    if names > 0 {
        draw_names(canvas, line(area, y), list, state, &widths);
        y += 1;
    }
    for (i, &row) in rows.iter().enumerate().skip(top).take(usize::from(room)) {
        let cells = &list.rows[row].cells;
        let under_cursor = i == at;
        draw_row(
            canvas,
            line(area, y),
            list,
            cells,
            &widths,
            under_cursor,
            &state.filter,
        );
        y += 1;
    }
    if rows.is_empty() && room > 0 {
        let text = if list.rows.is_empty() {
            NOTHING
        } else {
            "no row matches the filter"
        };
        let style = canvas.style(Tone::Dim);
        canvas.text(area.x + 1, y, area.width.saturating_sub(1), text, style);
    }
    for (i, note) in (0..notes).zip(&list.notes) {
        let style = canvas.style(Tone::Dim);
        canvas.text(area.x, area.bottom() - notes + i, area.width, note, style);
    }
}

/// Names of the columns and rows from `top` on, in the order in which they come.
pub fn rows(canvas: &mut Canvas<'_>, area: Rect, list: &List, top: usize, cursor: Option<usize>) {
    if area.is_empty() {
        return;
    }
    let all: Vec<usize> = (0..list.rows.len()).collect();
    let widths = widths(list, &all, area.width);
    let state = State::default();
    draw_names(canvas, line(area, area.top()), list, &state, &widths);
    if list.rows.is_empty() && area.height > 1 {
        let dim = canvas.style(Tone::Dim);
        let room = area.width.saturating_sub(1);
        canvas.text(area.x + 1, area.y + 1, room, NOTHING, dim);
    }
    for (y, (i, row)) in (area.top() + 1..area.bottom()).zip(list.rows.iter().enumerate().skip(top))
    {
        let here = cursor == Some(i);
        draw_row(canvas, line(area, y), list, &row.cells, &widths, here, "");
    }
}

/// Lines of a table of this height that are no rows.
pub fn frame(list: &List, height: u16) -> u16 {
    u16::from(height > 2) + u16::from(height > 1) + notes_shown(list, height)
}

fn notes_shown(list: &List, height: u16) -> u16 {
    let notes = u16::try_from(list.notes.len()).unwrap_or(u16::MAX);
    notes.min(height / 6)
}

pub fn line(area: Rect, y: u16) -> Rect {
    Rect {
        y,
        height: 1,
        ..area
    }
}

fn draw_title(
    canvas: &mut Canvas<'_>,
    area: Rect,
    list: &List,
    state: &State,
    (top, shown, all): (usize, usize, usize),
) {
    let strong = canvas.style(Tone::Strong);
    let dim = canvas.style(Tone::Dim);
    let place = match (shown, all) {
        (_, 0) => String::new(),
        (shown, all) if shown >= all => Count(all as u64).to_string(),
        (shown, all) => format!("{}-{} of {}", top + 1, top + shown, Count(all as u64)),
    };
    let mut rest = String::new();
    if let Some(sort) = state.sort {
        rest.push_str(&format!("by {sort}  "));
    }
    if state.reversed {
        rest.push_str("reversed  ");
    }
    if !state.filter.is_empty() {
        rest.push_str(&format!("with '{}'  ", state.filter));
    }
    rest.push_str(&place);
    let width = columns(&canvas.shown(&rest)).min(area.width / 2);
    canvas.right(area.right() - width, area.y, width, &rest, dim);
    let room = area.width.saturating_sub(width + 2);
    canvas.text(area.x, area.y, room, &list.title, strong);
}

pub fn draw_names(canvas: &mut Canvas<'_>, area: Rect, list: &List, state: &State, widths: &[u16]) {
    let band = canvas.theme().band();
    canvas.clear(area, band);
    let glyphs = canvas.glyphs();
    let mut x = area.x;
    for (column, &width) in list.columns.iter().zip(widths) {
        if width == 0 {
            continue;
        }
        let sorted = state.sort == Some(column.name);
        let style = if sorted {
            band.add_modifier(Modifier::BOLD | Modifier::REVERSED)
        } else {
            band
        };
        let mark = if state.reversed {
            glyphs.up
        } else {
            glyphs.down
        };
        let text = if sorted {
            format!("{}{mark}", column.name)
        } else {
            column.name.to_string()
        };
        aligned(canvas, (x, area.y, width), column.align, &text, style);
        x += width + BETWEEN;
    }
}

pub fn draw_row(
    canvas: &mut Canvas<'_>,
    area: Rect,
    list: &List,
    cells: &[Cell],
    widths: &[u16],
    under_cursor: bool,
    filter: &str,
) {
    let cursor = canvas.theme().cursor();
    if under_cursor {
        canvas.clear(area, cursor);
    }
    let mut x = area.x;
    for ((column, &width), cell) in list.columns.iter().zip(widths).zip(cells) {
        if width == 0 {
            continue;
        }
        let style = if under_cursor {
            cursor
        } else {
            canvas.style(cell.tone)
        };
        let at = Rect {
            x,
            width: width.min(area.right().saturating_sub(x)),
            ..area
        };
        draw_cell(canvas, at, column, cell, style, filter);
        x += width + BETWEEN;
    }
}

fn draw_cell(
    canvas: &mut Canvas<'_>,
    at: Rect,
    column: &Column,
    cell: &Cell,
    style: Style,
    filter: &str,
) {
    if !cell.pieces.is_empty() {
        return pieces(canvas, at, &cell.pieces);
    }
    if let Some(bar) = cell.bar {
        let filled = part(bar, at.width);
        let behind = canvas.theme().bar_behind();
        canvas.tint(
            Rect {
                width: filled,
                ..at
            },
            behind,
        );
    }
    aligned(
        canvas,
        (at.x, at.y, at.width),
        column.align,
        &cell.text,
        style,
    );
    if !filter.is_empty() {
        mark_found(canvas, at, filter);
    }
}

/// Underlines what the filter found, as far as it is on the screen.
fn mark_found(canvas: &mut Canvas<'_>, at: Rect, filter: &str) {
    let found = canvas.theme().found();
    let filter: Vec<String> = filter
        .chars()
        .map(|c| c.to_lowercase().to_string())
        .collect();
    let cells: Vec<String> = (at.left()..at.right())
        .map(|x| canvas.symbol(x, at.y).to_lowercase())
        .collect();
    let mut x = 0;
    while x + filter.len() <= cells.len() {
        if cells[x..].iter().zip(&filter).all(|(a, b)| a == b) {
            // Both are narrower than a screen.
            let (from, width) = (x as u16, filter.len() as u16);
            let area = Rect {
                x: at.x + from,
                width,
                ..at
            };
            canvas.tint(area, found);
            x += filter.len();
        } else {
            x += 1;
        }
    }
}

fn aligned(
    canvas: &mut Canvas<'_>,
    (x, y, width): (u16, u16, u16),
    align: Align,
    text: &str,
    style: Style,
) {
    match align {
        Align::Left if is_sentence(text) => canvas.text(x, y, width, text, style),
        Align::Left => canvas.name(x, y, width, text, style),
        Align::Right => canvas.right(x, y, width, text, style),
        Align::Prose => canvas.text(x, y, width, text, style),
    };
}

/// Who, and what it did: the end says less than the begin, unless it is a path. Of a name it is the middle.
fn is_sentence(text: &str) -> bool {
    let last = text.rsplit(' ').next().unwrap_or_default();
    text.contains(": ") && !last.contains('/')
}

/// A bar of `at`, divided. What has a share at all gets a column, if there are enough.
pub fn pieces(canvas: &mut Canvas<'_>, at: Rect, pieces: &[Piece]) {
    let mut sum = 0.0;
    let mut x = 0;
    for piece in pieces {
        sum += piece.share.max(0.0);
        let mut end = part(sum, at.width);
        if piece.share > 0.0 && end <= x {
            end = (x + 1).min(at.width);
            // The last column, if no other is left.
            x = x.min(end.saturating_sub(1));
        }
        // What is blank is no part of the bar.
        if piece.mark != ' ' {
            let style = canvas.theme().block(piece.tone);
            for x in x..end {
                canvas.glyph(at.x + x, at.y, piece.mark, style);
            }
        }
        x = x.max(end);
    }
}

/// So much of `width`, rounded.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn part(share: f64, width: u16) -> u16 {
    // The cast gives 0 for what is no number.
    (share.clamp(0.0, 1.0) * f64::from(width)).round() as u16
}

/// Of each column; 0 for those that are left out.
pub fn widths(list: &List, rows: &[usize], width: u16) -> Vec<u16> {
    let content: Vec<u16> = list
        .columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let cells = rows.iter().filter_map(|&row| list.rows[row].cells.get(i));
            let widest = cells.map(|cell| columns(&shown(&cell.text, true))).max();
            // With room for the mark of the order.
            let name = columns(column.name) + 1;
            widest.unwrap_or(0).max(name)
        })
        .collect();
    // Of a narrow screen it leaves some for the column that tells most.
    let grows_from = GROWS_FROM.min(width / 2);
    let wanted: Vec<u16> = list
        .columns
        .iter()
        .zip(&content)
        .map(|(column, &content)| {
            if column.grows {
                content.min(grows_from)
            } else {
                content.min(WIDEST)
            }
        })
        .collect();
    let mut shown = vec![true; wanted.len()];
    let taken = |shown: &[bool]| {
        let widths = wanted.iter().zip(shown).filter(|(_, shown)| **shown);
        let sum: u32 = widths.map(|(&w, _)| u32::from(w + BETWEEN)).sum();
        sum.saturating_sub(u32::from(BETWEEN))
    };
    while taken(&shown) > u32::from(width) {
        let ranks = list.columns.iter().enumerate();
        let out = ranks
            .filter(|&(i, column)| shown[i] && column.rank > 0)
            .max_by_key(|&(i, column)| (column.rank, i));
        let Some((out, _)) = out else { break };
        shown[out] = false;
    }
    let mut widths: Vec<u16> = wanted
        .iter()
        .zip(&shown)
        .map(|(&w, &shown)| if shown { w } else { 0 })
        .collect();
    let mut left = width.saturating_sub(u16::try_from(taken(&shown)).unwrap_or(u16::MAX));
    // Each that grows takes as much as it can use; the last of all columns what is left, so that no number is
    // far from its name.
    let last = (0..widths.len()).rev().find(|&i| shown[i]);
    let growing: Vec<usize> = (0..widths.len())
        .filter(|&i| shown[i] && list.columns[i].grows)
        .collect();
    for (n, &i) in growing.iter().enumerate() {
        let share = left / u16::try_from(growing.len() - n).unwrap_or(1);
        let is_bar = |&row: &usize| {
            list.rows[row]
                .cells
                .get(i)
                .is_some_and(|cell| !cell.pieces.is_empty())
        };
        let most = match last {
            Some(last) if last == i => u16::MAX,
            _ if rows.iter().any(is_bar) => WIDEST_BAR,
            _ => content[i].max(GROWS_TO),
        };
        let more = most.saturating_sub(widths[i]).min(share);
        widths[i] += more;
        left -= more;
    }
    widths
}
