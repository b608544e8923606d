//! What the person looks at, and what keys make of it.
//!
//! A view stays valid whatever the model does: threads end, causes go away, GPUs come. What it points at is known by
//! its name and not by its place, and is looked for anew in each frame.
#![forbid(unsafe_code)]

use ratatui::crossterm::event::KeyEvent;

use super::body::{self, Stops};
use super::help;
use super::keys::{self, Action, Edit};
use super::list::List;
use super::model::{Model, Source};
use crate::analyse::cause::Cause;
use crate::analyse::report::Gpu;
use crate::event::{Pid, Tid};
use crate::units::Nanos;

/// Lengths of the window, in seconds.
const WINDOWS: [u64; 9] = [1, 2, 5, 10, 20, 30, 60, 120, 300];
/// How far one key goes back.
const STEP: Nanos = Nanos::from_millis(500);
/// A filter longer than that finds nothing.
const LONGEST_FILTER: usize = 256;

/// A screen that is always one key away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tab {
    #[default]
    Overview,
    Causes,
    Gaps,
    Threads,
    Calls,
    Kernels,
    Cpus,
    Processes,
}

impl Tab {
    pub const ALL: [Tab; 8] = [
        Tab::Overview,
        Tab::Causes,
        Tab::Gaps,
        Tab::Threads,
        Tab::Calls,
        Tab::Kernels,
        Tab::Cpus,
        Tab::Processes,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Tab::Overview => "Overview",
            Tab::Causes => "Causes",
            Tab::Gaps => "Gaps",
            Tab::Threads => "Threads",
            Tab::Calls => "Calls",
            Tab::Kernels => "Kernels",
            Tab::Cpus => "CPUs",
            Tab::Processes => "Processes",
        }
    }

    fn place(self) -> usize {
        self as usize
    }
}

/// What was opened on the way from the tab to here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Open {
    /// The gaps with a part of this cause, and who.
    Cause(Cause),
    /// The gap of a GPU that began then.
    Gap {
        gpu: u32,
        start: Nanos,
    },
    Thread {
        pid: Pid,
        tid: Tid,
    },
    /// A system call, by thread.
    Call(String),
    Kernel(String),
}

/// Of one screen: where the cursor is, and how its list is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The row under the cursor; `None`: the first one, whichever that is.
    pub cursor: Option<String>,
    /// Where that row was when the cursor came there, for when it is gone.
    pub place: usize,
    /// So many rows are above it on the screen. Of a page: lines that are scrolled away.
    pub above: usize,
    /// The name of a column; `None`: as the rows come.
    pub sort: Option<&'static str>,
    pub reversed: bool,
    pub filter: String,
}

impl State {
    /// Where the cursor is in `rows`, which [`List::arranged`] gave.
    pub fn at(&self, list: &List, rows: &[usize]) -> usize {
        let Some(id) = &self.cursor else { return 0 };
        rows.iter()
            .position(|&row| list.rows[row].id == *id)
            .unwrap_or(self.place)
            .min(rows.len().saturating_sub(1))
    }

    /// The first row that is shown where there is room for `room` of `rows`.
    pub fn top(&self, at: usize, rows: usize, room: usize) -> usize {
        let above = self.above.min(room.saturating_sub(1));
        at.saturating_sub(above).min(rows.saturating_sub(room))
    }

    fn move_to(&mut self, list: &List, rows: &[usize], to: usize, room: usize) {
        let at = self.at(list, rows);
        let top = self.top(at, rows.len(), room);
        let to = to.min(rows.len().saturating_sub(1));
        self.place = to;
        self.cursor = match to {
            // At the top one follows what is there, not what once was.
            0 => None,
            to => rows.get(to).map(|&row| list.rows[row].id.clone()),
        };
        self.above = to.saturating_sub(top).min(room.saturating_sub(1));
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub tab: Tab,
    /// The last one is on the screen.
    pub opened: Vec<Open>,
    /// The GPU that is looked at, by its uuid: its place changes as processes come and go.
    gpu: Option<String>,
    /// Where it was in the GPUs of the report.
    place: usize,
    pub window: Nanos,
    /// The end of the window that is held; `None`: it moves on.
    pub held: Option<Nanos>,
    /// A filter is being typed; what it was before.
    pub typing: Option<String>,
    pub help: bool,
    /// Columns and lines of the terminal, for keys that go by the page.
    pub size: (u16, u16),
    pub help_scroll: usize,
    tabs: [State; Tab::ALL.len()],
    /// Of what was opened, one each.
    deeper: Vec<State>,
}

impl View {
    pub fn new(window: Nanos) -> View {
        View {
            tab: Tab::Overview,
            opened: Vec::new(),
            gpu: None,
            place: 0,
            window,
            held: None,
            typing: None,
            help: false,
            size: (80, 24),
            help_scroll: 0,
            tabs: Default::default(),
            deeper: Vec::new(),
        }
    }

    /// Of the screen that is shown.
    pub fn state(&self) -> &State {
        self.deeper.last().unwrap_or(&self.tabs[self.tab.place()])
    }

    fn state_mut(&mut self) -> &mut State {
        match self.deeper.last_mut() {
            Some(state) => state,
            None => &mut self.tabs[self.tab.place()],
        }
    }

    /// The GPU that is looked at.
    pub fn gpu<'m>(&self, model: &'m Model) -> Option<&'m Gpu> {
        model.window.report.gpus.get(self.gpu_place(model))
    }

    /// Its place in the report. While it is not there, another one is looked at.
    pub fn gpu_place(&self, model: &Model) -> usize {
        let gpus = &model.window.report.gpus;
        let is_it = |gpu: &Gpu| self.gpu.as_ref().is_some_and(|uuid| *uuid == gpu.uuid);
        if gpus.get(self.place).is_some_and(is_it) {
            return self.place;
        }
        let last = gpus.len().saturating_sub(1);
        let found = gpus.iter().position(is_it);
        found.unwrap_or_else(|| self.place.min(last))
    }

    /// Looks at the one at this place from now on.
    pub fn choose_gpu(&mut self, model: &Model, place: usize) {
        self.place = place;
        let gpu = model.window.report.gpus.get(place);
        self.gpu = gpu.map(|gpu| gpu.uuid.clone());
    }

    /// The first one that is looked at stays that.
    pub fn hold_gpu(&mut self, model: &Model) {
        if self.gpu.is_none() {
            self.choose_gpu(model, self.gpu_place(model));
        }
    }

    pub fn open(&mut self, what: Open) {
        self.opened.push(what);
        self.deeper.push(State::default());
    }

    pub fn go(&mut self, tab: Tab) {
        self.tab = tab;
        self.opened.clear();
        self.deeper.clear();
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent, model: &Model) -> Option<Ask> {
        if self.typing.is_some() {
            match keys::edit(key) {
                Ok(edit) => self.edit(edit?),
                Err(action) => return self.act(action, model),
            }
            return None;
        }
        let action = keys::action(key)?;
        if self.help && !keys::is_interrupt(key) {
            return self.in_help(action);
        }
        self.act(action, model)
    }

    /// Text was pasted: it means nothing but as a filter.
    pub fn paste(&mut self, text: &str) {
        if self.typing.is_some() {
            let line = text.lines().next().unwrap_or_default();
            for c in line.chars().filter(|c| !c.is_control()) {
                self.edit(Edit::Insert(c));
            }
        }
    }

    fn edit(&mut self, edit: Edit) {
        let before = self.typing.clone().unwrap_or_default();
        let filter = &mut self.state_mut().filter;
        match edit {
            Edit::Insert(c) if filter.chars().count() < LONGEST_FILTER => filter.push(c),
            Edit::Insert(_) => {}
            Edit::DeleteLast => {
                // As in less, there is nothing left to type then.
                if filter.pop().is_none() {
                    self.typing = None;
                }
            }
            Edit::DeleteWord => {
                let kept = filter.trim_end().rfind(' ').map_or(0, |at| at + 1);
                filter.truncate(kept);
            }
            Edit::DeleteAll => filter.clear(),
            Edit::Accept => self.typing = None,
            Edit::Cancel => {
                *filter = before;
                self.typing = None;
            }
        }
    }

    fn in_help(&mut self, action: Action) -> Option<Ask> {
        let room = usize::from(self.size.1);
        let last = help::last_scroll(self.size);
        if let Action::Move(by) = action {
            self.help_scroll = by.to(self.help_scroll.min(last), last, room);
            return None;
        }
        if action == Action::Redraw {
            return Some(Ask::Redraw);
        }
        if action == Action::Suspend {
            return Some(Ask::Suspend);
        }
        self.help = false;
        None
    }

    fn act(&mut self, action: Action, model: &Model) -> Option<Ask> {
        match action {
            Action::Move(by) => self.scroll(model, |at, last, room| by.to(at, last, room)),
            Action::Open => self.open_row(model),
            Action::Back => self.back(),
            Action::NextTab => self.go(Tab::ALL[(self.tab.place() + 1) % Tab::ALL.len()]),
            Action::PreviousTab => {
                self.go(Tab::ALL[(self.tab.place() + Tab::ALL.len() - 1) % Tab::ALL.len()]);
            }
            Action::Tab(n) => {
                if let Some(&tab) = Tab::ALL.get(usize::from(n)) {
                    self.go(tab);
                }
            }
            Action::NextGpu => self.turn_gpu(model, 1),
            Action::PreviousGpu => self.turn_gpu(model, -1),
            Action::Filter => {
                if body::has_list(model, self) {
                    self.typing = Some(self.state().filter.clone());
                }
            }
            Action::SortNext => self.sort(model, 1),
            Action::SortPrevious => self.sort(model, -1),
            Action::Reverse => {
                if body::has_list(model, self) {
                    let state = self.state_mut();
                    state.reversed = !state.reversed;
                }
            }
            Action::Pause => {
                self.held = match self.held {
                    Some(_) => None,
                    None => Some(model.newest),
                }
            }
            Action::Earlier => self.scrub(model, STEP, false),
            Action::Later => self.scrub(model, STEP, true),
            Action::WindowEarlier => self.scrub(model, self.window, false),
            Action::WindowLater => self.scrub(model, self.window, true),
            Action::Longer => {
                let longer = WINDOWS.iter().map(|&s| Nanos::from_secs(s));
                self.window = longer
                    .filter(|&w| w > self.window)
                    .min()
                    .unwrap_or(self.window);
            }
            Action::Shorter => {
                let shorter = WINDOWS.iter().map(|&s| Nanos::from_secs(s));
                self.window = shorter
                    .filter(|&w| w < self.window)
                    .max()
                    .unwrap_or(self.window);
            }
            Action::Faster => return self.replays(model).then_some(Ask::Faster),
            Action::Slower => return self.replays(model).then_some(Ask::Slower),
            Action::CountCalls => return Some(Ask::CountCalls(!model.status.counts_calls)),
            Action::Snapshot => return Some(Ask::Snapshot),
            Action::Help => {
                self.help = true;
                self.help_scroll = 0;
            }
            Action::Redraw => return Some(Ask::Redraw),
            Action::Suspend => return Some(Ask::Suspend),
            Action::Quit => return Some(Ask::Quit),
        }
        None
    }

    fn replays(&self, model: &Model) -> bool {
        matches!(model.source, Source::Recording { .. })
    }

    /// `to`: from the row under the cursor, the last there is, and how many are seen at a time.
    fn scroll(&mut self, model: &Model, to: impl Fn(usize, usize, usize) -> usize) {
        let room = body::room(model, self);
        match body::stops(model, self) {
            Stops::Rows(list) => {
                let state = self.state_mut();
                let rows = list.arranged(state);
                let (at, last) = (state.at(&list, &rows), rows.len().saturating_sub(1));
                state.move_to(&list, &rows, to(at, last, room), room);
            }
            Stops::Lines(lines) => {
                let state = self.state_mut();
                let last = lines.len().saturating_sub(1);
                let at = state.place.min(last);
                let top = state.top(at, lines.len(), room);
                state.place = to(at, last, room).min(last);
                state.above = state.place.saturating_sub(top).min(room - 1);
            }
        }
    }

    fn open_row(&mut self, model: &Model) {
        let what = match body::stops(model, self) {
            Stops::Rows(list) => {
                // Where it is now, so that back comes back there.
                self.scroll(model, |at, _, _| at);
                let rows = list.arranged(self.state());
                let row = rows.get(self.state().at(&list, &rows));
                row.and_then(|&row| list.rows[row].opens.clone())
            }
            Stops::Lines(lines) => {
                let at = self.state().place.min(lines.len().saturating_sub(1));
                lines.into_iter().nth(at).flatten()
            }
        };
        if let Some(what) = what {
            self.open(what);
        }
    }

    fn back(&mut self) {
        let filter = &mut self.state_mut().filter;
        if !filter.is_empty() {
            filter.clear();
        } else if self.opened.pop().is_some() {
            self.deeper.pop();
        } else {
            self.tab = Tab::Overview;
        }
    }

    fn turn_gpu(&mut self, model: &Model, by: isize) {
        let gpus = model.window.report.gpus.len();
        if gpus > 0 {
            let at = self.gpu_place(model).checked_add_signed(by);
            self.choose_gpu(model, at.map_or(gpus - 1, |at| at % gpus));
        }
    }

    fn sort(&mut self, model: &Model, by: isize) {
        let Some(list) = body::sortable(model, self) else {
            return;
        };
        let state = self.state_mut();
        // The order in which the rows come is one more, before the first column.
        let names: Vec<Option<&'static str>> = std::iter::once(None)
            .chain(list.columns.iter().map(|column| Some(column.name)))
            .collect();
        let at = names.iter().position(|&name| name == state.sort);
        let next = at.unwrap_or(0).checked_add_signed(by);
        state.sort = names[next.map_or(names.len() - 1, |next| next % names.len())];
        state.reversed = false;
    }

    fn scrub(&mut self, model: &Model, by: Nanos, later: bool) {
        let from = self.held.unwrap_or(model.newest);
        let to = if later {
            from.saturating_add(by)
        } else {
            from.saturating_sub(by)
        };
        self.held = if later && to >= model.newest {
            None
        } else {
            let oldest = model.oldest.saturating_add(STEP).min(model.newest);
            Some(to.clamp(oldest, model.newest))
        };
    }
}

/// What a key asks of the rest of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Quit,
    /// Write what is in memory to a recording.
    Snapshot,
    /// Count all system calls of the targets, or no more.
    CountCalls(bool),
    /// Of a recording: multiply the speed.
    Faster,
    Slower,
    /// Draw everything anew, as Ctrl-L does.
    Redraw,
    /// Stop as Ctrl-Z does.
    Suspend,
}

#[cfg(test)]
mod tests {
    use ratatui::crossterm::event::{KeyCode, KeyModifiers};

    use super::super::list::{Cell, Column, Row};
    use super::super::screens::sample;
    use super::*;

    fn list(ids: &[&str]) -> List {
        let row = |id: &&str| Row::new(*id, vec![Cell::text(*id)]);
        List {
            rows: ids.iter().map(row).collect(),
            ..List::new("t", vec![Column::left("ID")])
        }
    }

    fn press(view: &mut View, model: &Model, code: KeyCode) -> Option<Ask> {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), model)
    }

    fn typed(view: &mut View, model: &Model, keys: &str) {
        for c in keys.chars() {
            press(view, model, KeyCode::Char(c));
        }
    }

    fn view() -> View {
        View::new(Nanos::from_secs(10))
    }

    #[test]
    fn the_cursor_stays_on_its_row_wherever_that_goes() {
        let mut state = State::default();
        let before = list(&["a", "b", "c", "d"]);
        let all = [0, 1, 2, 3];
        state.move_to(&before, &all, 2, 10);
        let after = list(&["c", "x", "a", "b"]);
        assert_eq!(state.at(&after, &all), 0);
        // When it is gone, the one in its place is next.
        let without = list(&["a", "b", "d"]);
        assert_eq!(state.at(&without, &[0, 1, 2]), 2);
        assert_eq!(state.at(&list(&[]), &[]), 0);
        // At the top it is the first one, whichever that is.
        state.move_to(&before, &all, 0, 10);
        assert_eq!(state.at(&after, &all), 0);
    }

    #[test]
    fn a_list_scrolls_as_little_as_it_can() {
        let ids: Vec<String> = (0..100).map(|i| i.to_string()).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let (long, all) = (list(&ids), (0..100).collect::<Vec<usize>>());
        let mut state = State::default();
        let mut top_at = |to| {
            state.move_to(&long, &all, to, 10);
            state.top(state.at(&long, &all), 100, 10)
        };
        assert_eq!(top_at(9), 0);
        assert_eq!(top_at(10), 1);
        assert_eq!(top_at(5), 1);
        assert_eq!(top_at(0), 0);
        assert_eq!(top_at(1_000), 90);
    }

    #[test]
    fn rows_are_sorted_by_any_column_and_those_without_a_value_come_last() {
        let mut list = list(&["b", "a", "C"]);
        list.rows.push(Row::new("none", vec![Cell::none()]));
        let order = |state: &State| -> Vec<String> {
            let rows = list.arranged(state).into_iter();
            rows.map(|row| list.rows[row].id.clone()).collect()
        };
        let mut state = State::default();
        assert_eq!(order(&state), ["b", "a", "C", "none"]);
        state.sort = Some("ID");
        assert_eq!(order(&state), ["a", "b", "C", "none"]);
        state.reversed = true;
        assert_eq!(order(&state), ["C", "b", "a", "none"]);
        state.filter = "c".to_string();
        assert_eq!(order(&state), ["C"]);
        // Of a column that is no longer there: as they come.
        state = State {
            sort: Some("GONE"),
            ..State::default()
        };
        assert_eq!(order(&state), ["b", "a", "C", "none"]);
    }

    #[test]
    fn the_filter_is_edited_kept_and_dropped() {
        let model = sample::model();
        let mut view = view();
        view.go(Tab::Threads);
        typed(&mut view, &model, "/pt data");
        view.paste("x\ty\nsecond line");
        assert_eq!(view.state().filter, "pt dataxy");
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        view.key(control('w'), &model);
        assert_eq!(view.state().filter, "pt ");
        press(&mut view, &model, KeyCode::Backspace);
        press(&mut view, &model, KeyCode::Enter);
        assert_eq!((view.state().filter.as_str(), &view.typing), ("pt", &None));
        // What is typed anew can be taken back.
        typed(&mut view, &model, "/q");
        press(&mut view, &model, KeyCode::Esc);
        assert_eq!(view.state().filter, "pt");
        // Each list has its own; Esc drops it.
        typed(&mut view, &model, "5");
        assert_eq!(view.state().filter, "");
        typed(&mut view, &model, "4");
        press(&mut view, &model, KeyCode::Esc);
        assert_eq!((view.state().filter.as_str(), view.tab), ("", Tab::Threads));
        press(&mut view, &model, KeyCode::Esc);
        assert_eq!(view.tab, Tab::Overview);
        // Pasted text is never taken for keys.
        view.paste("q");
        assert_eq!(view.typing, None);
    }

    #[test]
    fn a_way_in_leads_back_to_the_same_row() {
        let model = sample::model();
        let mut view = view();
        view.go(Tab::Causes);
        typed(&mut view, &model, "jl");
        assert_eq!(view.opened, [Open::Cause(Cause::DiskRead)]);
        press(&mut view, &model, KeyCode::Enter);
        assert!(matches!(view.opened.last(), Some(Open::Gap { gpu: 0, .. })));
        typed(&mut view, &model, "hh");
        assert_eq!(view.opened, []);
        assert_eq!(view.state().cursor.as_deref(), Some("host.disk-read"));
    }

    #[test]
    fn scrubbing_holds_the_window_and_ends_where_it_is_live() {
        let mut model = sample::model();
        (model.oldest, model.newest) = (Nanos::from_secs(90), Nanos::from_secs(110));
        let mut view = view();
        typed(&mut view, &model, "[[");
        assert_eq!(view.held, Some(Nanos::from_secs(109)));
        typed(&mut view, &model, "{");
        assert_eq!(view.held, Some(Nanos::from_secs(99)));
        typed(&mut view, &model, "{{{");
        assert_eq!(view.held, Some(Nanos::from_millis(90_500)));
        typed(&mut view, &model, "}]");
        assert_eq!(view.held, Some(Nanos::from_secs(101)));
        typed(&mut view, &model, "}");
        assert_eq!(view.held, None);
        typed(&mut view, &model, "p");
        assert_eq!(view.held, Some(model.newest));
        typed(&mut view, &model, " ");
        assert_eq!(view.held, None);
    }

    #[test]
    fn the_window_has_steps() {
        let model = sample::model();
        let mut view = View::new(Nanos::from_secs(7));
        typed(&mut view, &model, "+");
        assert_eq!(view.window, Nanos::from_secs(10));
        typed(&mut view, &model, "--");
        assert_eq!(view.window, Nanos::from_secs(2));
        typed(&mut view, &model, "---");
        assert_eq!(view.window, Nanos::from_secs(1));
        typed(&mut view, &model, "++++++++++++");
        assert_eq!(view.window, Nanos::from_secs(300));
    }

    #[test]
    fn gpus_that_go_away_leave_another_in_view() {
        let mut model = sample::model();
        let mut view = view();
        typed(&mut view, &model, "N");
        let last = model.window.report.gpus.len() - 1;
        assert_eq!(view.gpu_place(&model), last);
        model.window.report.gpus.truncate(1);
        assert_eq!(view.gpu(&model).map(|gpu| gpu.index), Some(0));
        typed(&mut view, &model, "n");
        assert_eq!(view.gpu_place(&model), 0);
        model.window.report.gpus.clear();
        typed(&mut view, &model, "n");
        assert!(view.gpu(&model).is_none());
    }

    #[test]
    fn a_gpu_stays_in_view_wherever_it_comes_in_the_report() {
        let mut model = sample::model();
        let mut view = view();
        view.hold_gpu(&model);
        let uuid = model.window.report.gpus[0].uuid.clone();
        model.window.report.gpus.reverse();
        view.hold_gpu(&model);
        assert_eq!(view.gpu(&model).map(|gpu| &gpu.uuid), Some(&uuid));
        // It comes back when it is there again.
        let gone = model.window.report.gpus.pop();
        assert!(view.gpu(&model).is_some_and(|gpu| gpu.uuid != uuid));
        model.window.report.gpus.extend(gone);
        assert_eq!(view.gpu(&model).map(|gpu| &gpu.uuid), Some(&uuid));
    }

    #[test]
    fn keys_ask_for_what_the_view_cannot_do() {
        let model = sample::model();
        let mut view = view();
        let mut ask = |c| press(&mut view, &model, KeyCode::Char(c));
        assert_eq!(ask('q'), Some(Ask::Quit));
        assert_eq!(ask('w'), Some(Ask::Snapshot));
        assert_eq!(ask('c'), Some(Ask::CountCalls(true)));
        // Nothing is played here.
        assert_eq!(ask('.'), None);
        // In the help, q is the way out of it.
        assert_eq!(ask('?'), None);
        assert_eq!(ask('q'), None);
        assert_eq!(ask('q'), Some(Ask::Quit));
        assert_eq!(ask('?'), None);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(interrupt, &model), Some(Ask::Quit));
    }
}
