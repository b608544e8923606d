//! The line at the bottom: the keys that matter here, or the filter that is typed.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::canvas::{columns, Canvas};
use super::keys::{Action, GROUPS};
use super::model::{Model, Source};
use super::view::{Tab, View};
use super::{body, list::Tone};

pub fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View) {
    if view.typing.is_some() {
        return filter(canvas, area, &view.state().filter);
    }
    let label = canvas.theme().label();
    let key_style = canvas.style(Tone::Strong);
    let mut x = area.x;
    for (key, word) in shown(model, view) {
        let wide = columns(key) + columns(word) + 1;
        if x + wide > area.right() {
            break;
        }
        x += canvas.text(x, area.y, area.right() - x, key, key_style);
        x += canvas.text(x, area.y, area.right() - x, word, label) + 1;
    }
}

/// Most useful first.
fn shown(model: &Model, view: &View) -> Vec<(&'static str, &'static str)> {
    let has_list = body::has_list(model, view);
    let deeper = !view.opened.is_empty() || view.tab != Tab::Overview;
    let recording = matches!(model.source, Source::Recording { .. });
    let mut actions = vec![(Action::Help, true), (Action::Quit, true)];
    if view.help {
        actions = vec![(Action::Back, true)];
    } else {
        actions.extend([
            (Action::Back, deeper),
            (Action::Open, true),
            (Action::Filter, has_list),
            (Action::SortNext, has_list),
            (Action::Pause, true),
            (Action::Earlier, true),
            (Action::NextGpu, model.window.report.gpus.len() > 1),
            (Action::Longer, true),
            (Action::Faster, recording),
            (Action::Snapshot, !recording),
        ]);
    }
    let bindings = || GROUPS.iter().flat_map(|group| group.bindings);
    actions
        .iter()
        .filter(|(_, here)| *here)
        .filter_map(|(action, _)| bindings().find(|binding| binding.action == *action)?.short)
        .collect()
}

fn filter(canvas: &mut Canvas<'_>, area: Rect, typed: &str) {
    let strong = canvas.style(Tone::Strong);
    let mut x = area.x + canvas.text(area.x, area.y, area.width, "Filter: ", strong);
    // The end is where one types.
    let shown = canvas.shown(typed).into_owned();
    let room = area.right().saturating_sub(x + 1);
    let mut from = shown.char_indices().map(|(at, _)| at);
    let fits = |at: &usize| columns(&shown[*at..]) <= room;
    let start = from.find(fits).unwrap_or(shown.len());
    x += canvas.text(x, area.y, room, &shown[start..], Style::new());
    canvas.text(
        x,
        area.y,
        1,
        " ",
        Style::new().add_modifier(Modifier::REVERSED),
    );
    let hint = "  Enter keeps it, Esc drops it";
    if area.right().saturating_sub(x + 1) >= columns(hint) {
        let dim = canvas.style(Tone::Dim);
        canvas.text(x + 1, area.y, area.right() - x - 1, hint, dim);
    }
}
