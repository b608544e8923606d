//! The help screen, made from the table of the keys.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::{columns, Canvas};
use super::keys::GROUPS;
use super::list::Tone;

/// Of the names of keys.
const KEYS: u16 = 18;
/// Of a column of help, with the space between two.
const COLUMN: u16 = 78;
const WIDEST_HELP: u16 = 58;

enum Line {
    Title(&'static str),
    Key(&'static str, &'static str),
    Blank,
}

fn lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for group in GROUPS {
        if !lines.is_empty() {
            lines.push(Line::Blank);
        }
        lines.push(Line::Title(group.title));
        let keys = group.bindings.iter();
        lines.extend(keys.map(|binding| Line::Key(binding.names, binding.help)));
    }
    lines
}

/// How far it can be scrolled on a terminal of this size.
pub fn last_scroll((_, height): (u16, u16)) -> usize {
    lines().len().saturating_sub(usize::from(room(height)))
}

/// Without the title, and the line at the bottom.
fn room(height: u16) -> u16 {
    height.saturating_sub(2).max(1)
}

pub fn draw(canvas: &mut Canvas<'_>, area: Rect, scroll: usize) {
    canvas.clear(area, Style::new());
    let lines = lines();
    let room = usize::from(area.height.saturating_sub(1));
    let top = scroll.min(lines.len().saturating_sub(room));
    let strong = canvas.style(Tone::Strong);
    let name = canvas.style(Tone::Name);
    let dim = canvas.style(Tone::Dim);
    let title = format!("gdiag top {}: the keys", env!("CARGO_PKG_VERSION"));
    canvas.text(area.x, area.y, area.width, &title, strong);
    if lines.len() > room {
        let place = format!("{}-{} of {}", top + 1, top + room, lines.len());
        let width = columns(&place);
        if area.width > columns(&title) + width {
            canvas.right(area.right() - width, area.y, width, &place, dim);
        }
    }
    let indent = area.width.saturating_sub(COLUMN).min(2);
    for (y, line) in (area.y + 1..area.bottom()).zip(lines.iter().skip(top)) {
        let x = area.x + indent;
        let width = area.width - indent;
        match line {
            Line::Blank => {}
            Line::Title(title) => {
                canvas.text(x, y, width, title, strong);
            }
            Line::Key(keys, help) => {
                canvas.right(x, y, KEYS.min(width), keys, name);
                let rest = width.saturating_sub(KEYS + 2).min(WIDEST_HELP + 4);
                canvas.text(x + KEYS + 2, y, rest, help, Style::new());
            }
        }
    }
}
