//! What is between the header and the bottom line: which screen that is, and what its cursor moves over.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;

use super::canvas::Canvas;
use super::list::List;
use super::model::Model;
use super::screens::{
    calls, cause, causes, cpus, gap, gaps, kernels, processes, thread, threads, Section,
};
use super::view::{Open, Tab, View};
use super::{overview, page, parts, table};

/// What a screen says, apart from how it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Screen {
    /// As much of everything as fits, most important first.
    Overview,
    /// A table that is sorted and filtered.
    List(List),
    /// Something to read, scrolled as a whole; a row of its tables can be opened.
    Page(Vec<Section>),
}

pub fn screen(model: &Model, view: &View) -> Screen {
    match view.opened.last() {
        Some(Open::Cause(cause)) => Screen::Page(cause::sections(model, view, *cause)),
        Some(&Open::Gap { gpu, start }) => Screen::Page(gap::sections(model, gpu, start)),
        Some(&Open::Thread { pid, tid }) => Screen::Page(thread::sections(model, pid, tid)),
        Some(Open::Call(name)) => Screen::Page(calls::opened(model, name)),
        Some(Open::Kernel(name)) => Screen::Page(kernels::opened(model, name)),
        None => match view.tab {
            Tab::Overview => Screen::Overview,
            Tab::Causes => Screen::List(causes::list(model, view)),
            Tab::Gaps => Screen::List(gaps::list(model, view)),
            Tab::Threads => Screen::List(threads::list(model)),
            Tab::Calls => Screen::List(calls::list(model)),
            Tab::Kernels => Screen::List(kernels::list(model)),
            Tab::Cpus => Screen::List(cpus::list(model)),
            Tab::Processes => Screen::List(processes::list(model)),
        },
    }
}

pub fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View) {
    match screen(model, view) {
        Screen::Overview => overview::draw(canvas, area, model, view),
        Screen::List(list) => table::draw(canvas, area, &list, view.state()),
        Screen::Page(sections) => page::draw(canvas, area, &sections, view.state()),
    }
}

/// What the cursor moves over, row by row.
#[derive(Debug)]
pub enum Stops {
    /// Rows, which are followed by their names.
    Rows(List),
    /// Lines of a page, and what the row in each opens.
    Lines(Vec<Option<Open>>),
}

pub fn stops(model: &Model, view: &View) -> Stops {
    match screen(model, view) {
        Screen::Overview => Stops::Rows(overview::stops(model, view, area(model, view))),
        Screen::List(list) => Stops::Rows(list),
        Screen::Page(sections) => Stops::Lines(page::opens(&sections, view.size.0)),
    }
}

/// A list that can be sorted and filtered.
pub fn sortable(model: &Model, view: &View) -> Option<List> {
    match screen(model, view) {
        Screen::List(list) => Some(list),
        Screen::Overview | Screen::Page(_) => None,
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
    let body = usize::from(area(model, view).height);
    let frame = match screen(model, view) {
        Screen::List(list) => table::frame(&list, area(model, view).height),
        Screen::Overview | Screen::Page(_) => 0,
    };
    body.saturating_sub(usize::from(frame)).max(1)
}
