//! A line of several things, of which the most important ones are shown where not all have room.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::{columns, Canvas};

const BETWEEN: u16 = 2;

#[derive(Clone, Debug)]
pub struct Item {
    text: String,
    style: Style,
    /// What is left out first has the highest.
    rank: u8,
    /// It can be cut to so few columns.
    least: Option<u16>,
    right: bool,
}

impl Item {
    pub fn new(rank: u8, text: impl Into<String>, style: Style) -> Item {
        Item {
            text: text.into(),
            style,
            rank,
            least: None,
            right: false,
        }
    }

    /// Rather cut than left out.
    #[must_use]
    pub fn cut(self, least: u16) -> Item {
        Item {
            least: Some(least),
            ..self
        }
    }

    /// At the right end of the line.
    #[must_use]
    pub fn right(self) -> Item {
        Item {
            right: true,
            ..self
        }
    }
}

/// Draws those that fit, in their order. Returns the columns taken from the left.
pub fn draw(canvas: &mut Canvas<'_>, area: Rect, items: &[Item]) -> u16 {
    let mut widths = vec![0; items.len()];
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| items[i].rank);
    let mut left = area.width;
    let mut first = true;
    for i in order {
        let item = &items[i];
        let whole = columns(&canvas.shown(&item.text));
        let between = if first { 0 } else { BETWEEN };
        let room = left.saturating_sub(between);
        let least = if first {
            1
        } else {
            item.least.unwrap_or(whole)
        };
        if whole == 0 || room < whole.min(least) || room == 0 {
            continue;
        }
        widths[i] = whole.min(room);
        left -= widths[i] + between;
        first = false;
    }
    let mut x = area.left();
    let mut end = area.right();
    for (item, &width) in items.iter().zip(&widths).filter(|(_, &width)| width > 0) {
        if !item.right {
            x += canvas.text(x, area.y, width, &item.text, item.style) + BETWEEN;
        }
    }
    let shown = items.iter().zip(&widths).rev();
    for (item, &width) in shown.filter(|(_, &width)| width > 0) {
        if item.right {
            end -= width;
            canvas.text(end, area.y, width, &item.text, item.style);
            end = end.saturating_sub(BETWEEN);
        }
    }
    x.saturating_sub(area.left() + BETWEEN)
}
