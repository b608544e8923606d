//! Each screen, as a function of the model: what it says, and which rows of it can be opened.
#![forbid(unsafe_code)]

use super::list::List;
use super::model::Model;
use super::page;
use super::screen::Screen;
use super::view::{Open, Tab, View};

/// What is below the header. `None`: the overview, which draws itself.
pub fn screen(_model: &Model, view: &View) -> Option<Screen> {
    match view.opened.last() {
        Some(
            Open::Cause(_)
            | Open::Gap { .. }
            | Open::Thread { .. }
            | Open::Call(_)
            | Open::Kernel(_),
        ) => Some(Screen::Page {
            title: String::new(),
            blocks: Vec::new(),
        }),
        None => match view.tab {
            Tab::Overview => None,
            Tab::Causes
            | Tab::Gaps
            | Tab::Threads
            | Tab::Calls
            | Tab::Kernels
            | Tab::Cpus
            | Tab::Processes => Some(List::default().into()),
        },
    }
}

/// What the cursor moves over; `None`: the screen is a page, which is scrolled.
pub fn stops(model: &Model, view: &View) -> Option<List> {
    match screen(model, view) {
        Some(Screen::Table { list, .. }) => Some(list),
        Some(Screen::Page { .. }) => None,
        None => Some(List::default()),
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

/// Rows that the keys for a page go by.
pub fn room(_model: &Model, view: &View) -> usize {
    usize::from(view.size.1).saturating_sub(6).max(1)
}

/// How far a page can be scrolled.
pub fn last_scroll(model: &Model, view: &View) -> usize {
    match screen(model, view) {
        Some(Screen::Page { blocks, .. }) => {
            page::height(&blocks, view.size.0).saturating_sub(room(model, view))
        }
        Some(Screen::Table { .. }) | None => 0,
    }
}
