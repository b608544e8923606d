//! The live view: what a frame shows is a function of a [`Model`] and a [`View`].
//!
//! The model is what was measured; the view is what the person looks at: screen, cursor, order, filter. A key
//! changes the view or becomes an [`Ask`]. Nothing here reads a clock, a file or the terminal.
#![forbid(unsafe_code)]

mod canvas;
mod help;
pub mod keys;
pub mod list;
pub mod model;
mod page;
pub mod screen;
pub mod screens;
mod table;
pub mod theme;
pub mod view;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use canvas::Canvas;
pub use model::Model;
pub use theme::Theme;
pub use view::{Ask, View};

/// Draws a frame.
pub fn draw(model: &Model, view: &View, theme: &Theme, area: Rect, buf: &mut Buffer) {
    let area = area.intersection(buf.area);
    let mut canvas = Canvas::new(buf, theme);
    match screens::screen(model, view) {
        Some(screen::Screen::Table { list, .. }) => {
            table::draw(&mut canvas, area, &list, view.state(), true);
        }
        Some(screen::Screen::Page { .. }) | None => {}
    }
}
