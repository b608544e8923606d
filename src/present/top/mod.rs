//! The live view: what a frame shows is a function of a [`Model`] and a [`View`].
//!
//! The model is what was measured; the view is what the person looks at: screen, cursor, order, filter. A key
//! changes the view or becomes an [`Ask`]. Nothing here reads a clock, a file or the terminal.
#![forbid(unsafe_code)]

mod body;
mod canvas;
mod footer;
mod header;
mod help;
pub mod keys;
pub mod list;
pub mod model;
mod overview;
mod page;
pub mod screen;
pub mod screens;
mod strip;
mod table;
#[cfg(test)]
mod tests;
pub mod theme;
pub mod view;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use canvas::Canvas;
pub use model::Model;
pub use theme::Theme;
pub use view::{Ask, View};

/// Draws a frame: all of `area` is written.
pub fn draw(model: &Model, view: &View, theme: &Theme, area: Rect, buf: &mut Buffer) {
    let area = area.intersection(buf.area);
    if area.is_empty() {
        return;
    }
    let mut canvas = Canvas::new(buf, theme);
    canvas.clear(area, Style::new());
    let [head, body, foot] = parts(model, area);
    if view.help {
        let all = Rect {
            height: area.height - foot.height,
            ..area
        };
        help::draw(&mut canvas, all, view.help_scroll);
    } else {
        header::draw(&mut canvas, head, model, view, area.height);
        body::draw(&mut canvas, body, model, view);
    }
    footer::draw(&mut canvas, foot, model, view);
}

/// Header, what is looked at, and the line at the bottom.
fn parts(model: &Model, area: Rect) -> [Rect; 3] {
    let head = header::height(model, area.height);
    let foot = u16::from(area.height >= 8);
    let body = area.height.saturating_sub(head + foot);
    let from = |y: u16, height: u16| Rect {
        y: area.y + y,
        height,
        ..area
    };
    [from(0, head), from(head, body), from(head + body, foot)]
}
