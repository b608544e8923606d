//! What is between the header and the bottom line: where it is drawn, and what its cursor moves over.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;

use super::canvas::Canvas;
use super::list::List;
use super::model::Model;
use super::screen::{Block, Screen};
use super::screens::screen;
use super::table::{self, line};
use super::view::{Open, View};
use super::{overview, page, parts};

/// Rows of a table that stay, however much is told above it.
const ROWS: u16 = 4;

pub fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View) {
    match screen(model, view) {
        None => overview::draw(canvas, area, model, view),
        Some(Screen::Table { above, list }) => {
            let (upper, lower) = divided(area, &above, &list);
            let told = page::lines(&above, area.width);
            for (y, told) in (upper.top()..upper.bottom()).zip(&told) {
                page::draw_line(canvas, line(upper, y), told, false);
            }
            table::draw(canvas, lower, &list, view.state());
        }
        Some(Screen::Page { title, blocks }) => {
            page::draw(canvas, area, &title, &blocks, view.state());
        }
    }
}

/// What is told above a table, and the table.
fn divided(area: Rect, above: &[Block], list: &List) -> (Rect, Rect) {
    let wanted = match above {
        [] => 0,
        above => {
            // With a blank between them.
            let lines = page::lines(above, area.width).len() + 1;
            u16::try_from(lines).unwrap_or(u16::MAX)
        }
    };
    let rows = u16::try_from(list.rows.len()).unwrap_or(u16::MAX);
    // Its title, and the names of its columns.
    let least = rows.clamp(1, ROWS) + 2;
    let height = wanted.min(area.height.saturating_sub(least));
    let upper = Rect { height, ..area };
    let lower = Rect {
        y: area.y + height,
        height: area.height - height,
        ..area
    };
    (upper, lower)
}

/// What the cursor moves over.
#[derive(Debug)]
pub enum Stops {
    /// Rows, which are followed by their names.
    Rows(List),
    /// Lines of a page, and what the row in each opens.
    Lines(Vec<Option<Open>>),
}

pub fn stops(model: &Model, view: &View) -> Stops {
    match screen(model, view) {
        None => Stops::Rows(overview::stops(model, view, area(model, view))),
        Some(Screen::Table { list, .. }) => Stops::Rows(list),
        Some(Screen::Page { blocks, .. }) => Stops::Lines(page::opens(&blocks, view.size.0)),
    }
}

/// A list that can be sorted and filtered.
pub fn sortable(model: &Model, view: &View) -> Option<List> {
    match screen(model, view) {
        Some(Screen::Table { list, .. }) => Some(list),
        Some(Screen::Page { .. }) | None => None,
    }
}

pub fn has_list(model: &Model, view: &View) -> bool {
    sortable(model, view).is_some()
}

fn area(model: &Model, view: &View) -> Rect {
    let (width, height) = view.size;
    let [_, body, _] = parts(model, Rect::new(0, 0, width, height));
    body
}

/// Rows that the keys for a page go by.
pub fn room(model: &Model, view: &View) -> usize {
    let area = area(model, view);
    let room = match screen(model, view) {
        Some(Screen::Table { above, list }) => {
            let (_, lower) = divided(area, &above, &list);
            lower.height - table::frame(&list, lower.height).min(lower.height)
        }
        // Below its title.
        Some(Screen::Page { .. }) => area.height.saturating_sub(1),
        None => area.height,
    };
    usize::from(room).max(1)
}
