//! Each screen, as a function of the model: what it says, and which rows of it can be opened.
#![forbid(unsafe_code)]

mod calls;
mod cell;
mod cpus;
mod kernels;
mod machine;
mod processes;
mod thread;
mod threads;

use super::list::List;
use super::model::{Model, Source};
use super::page;
use super::screen::Screen;
use super::view::{Open, Tab, View};

/// What is below the header. `None`: the overview, which draws itself.
pub fn screen(model: &Model, view: &View) -> Option<Screen> {
    match view.opened.last() {
        Some(Open::Cause(_) | Open::Gap { .. }) => Some(Screen::Page {
            title: String::new(),
            blocks: Vec::new(),
        }),
        Some(&Open::Thread { pid, tid }) => Some(thread::screen(model, pid, tid)),
        Some(Open::Call(name)) => Some(calls::opened(model, name)),
        Some(Open::Kernel(name)) => Some(kernels::opened(model, name)),
        None => match view.tab {
            Tab::Overview if model.source == Source::Machine => Some(machine::screen(model, view)),
            Tab::Overview => None,
            Tab::Causes | Tab::Gaps => Some(List::default().into()),
            Tab::Threads => Some(threads::list(model).into()),
            Tab::Calls => Some(calls::screen(model, view)),
            Tab::Kernels => Some(kernels::list(model).into()),
            Tab::Cpus => Some(cpus::list(model).into()),
            Tab::Processes => Some(processes::list(model).into()),
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
