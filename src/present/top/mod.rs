//! The live view: what a frame shows is a function of a [`Model`] and a [`View`].
//!
//! The model is what was measured; the view is what the person looks at: screen, cursor, order, filter. A key
//! changes the view or becomes an [`Ask`]. Nothing here reads a clock, a file or the terminal.
#![forbid(unsafe_code)]

pub mod list;
pub mod model;
pub mod screens;
pub mod view;

pub use model::Model;
pub use view::{Ask, View};
