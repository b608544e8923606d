//! The lines at the top: where and when this is, whether it moves, and how far it can be trusted.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::Canvas;
use super::list::Tone;
use super::model::{Model, Source, Target};
use super::strip::{self, Item};
use super::table::line;
use super::view::{Tab, View};
use crate::analyse::live::SLICE;
use crate::units::{Count, Nanos, Rate, Share};

/// For each so many lines of the terminal one of what must be told, and one at least.
const LINES_PER_WARNING: u16 = 12;

/// Lines of the header on a terminal of this height.
pub fn height(model: &Model, height: u16) -> u16 {
    let fixed = match height {
        0 => 0,
        1..8 => 1,
        8..14 => 2,
        _ => 3,
    };
    let told = u16::try_from(said(model, height).len()).unwrap_or(0);
    (fixed + told).min(height)
}

/// On a terminal of `height`.
pub fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View, height: u16) {
    let mut lines = (area.top()..area.bottom()).map(|y| line(area, y));
    let said = said(model, height);
    let rest = usize::from(area.height).saturating_sub(said.len());
    if let Some(at) = lines.next() {
        where_and_when(canvas, at, model, view, rest == 1);
    }
    if rest > 2 {
        if let Some(at) = lines.next() {
            health(canvas, at, model);
        }
    }
    for (text, tone) in said {
        if let Some(at) = lines.next() {
            let style = canvas.style(tone);
            canvas.text(at.x, at.y, at.width, &text, style);
        }
    }
    if rest > 1 {
        if let Some(at) = lines.next() {
            tabs(canvas, at, view);
        }
    }
}

/// What must be told at once: what came of a key, and what makes the figures doubtful, the worst first.
fn said(model: &Model, height: u16) -> Vec<(String, Tone)> {
    if height < 7 {
        return Vec::new();
    }
    let message = model.status.message.iter();
    let mut said: Vec<(String, Tone)> = message.map(|m| (m.clone(), Tone::Strong)).collect();
    let mut warnings: Vec<&str> = Vec::new();
    let quality = &model.window.report.quality.warnings;
    for warning in model.status.warnings.iter().chain(quality) {
        if !warnings.contains(&warning.as_str()) {
            warnings.push(warning);
        }
    }
    let room = usize::from((height / LINES_PER_WARNING).max(1)).max(said.len());
    let shown = warnings.len().min(room - said.len());
    for (i, warning) in warnings.iter().take(shown).enumerate() {
        let more = match warnings.len() - shown {
            more @ 1.. if i + 1 == shown => format!("(and {more} more) "),
            _ => String::new(),
        };
        said.push((format!("warning: {more}{warning}"), Tone::Warn));
    }
    said
}

fn where_and_when(canvas: &mut Canvas<'_>, at: Rect, model: &Model, view: &View, only: bool) {
    let (plain, strong) = (Style::new(), canvas.style(Tone::Strong));
    let dim = canvas.style(Tone::Dim);
    let (state, held) = state(model, view);
    let state_style = if held {
        canvas.theme().alarm()
    } else {
        canvas.style(Tone::Good)
    };
    let mut items = vec![
        Item::new(5, "gdiag top", strong),
        Item::new(6, model.host.as_str(), canvas.style(Tone::Name)).cut(6),
        Item::new(3, clock(model), plain),
        Item::new(4, watched(model), plain).cut(12),
    ];
    if only {
        items.extend(trouble(canvas, model));
    }
    items.push(Item::new(2, seconds(model), dim).right());
    items.push(Item::new(0, state, state_style).right());
    strip::draw(canvas, at, &items);
}

fn health(canvas: &mut Canvas<'_>, at: Rect, model: &Model) {
    let (plain, dim) = (Style::new(), canvas.style(Tone::Dim));
    let status = &model.status;
    let mut items = Vec::new();
    // What is played costs, and loses, what it did when it was recorded.
    let live = !matches!(model.source, Source::Recording { .. });
    if live || status.event_rate > 0.0 {
        let text = format!("{} events/s", Rate(status.event_rate));
        items.push(Item::new(3, text, plain));
    }
    if status.lost == 0 {
        items.push(Item::new(2, "none lost", plain));
    }
    items.extend(trouble(canvas, model));
    if live {
        let (cpu, memory) = (Share(status.own_cpu), status.own_memory);
        let text = format!("gdiag: {cpu} of a CPU, {memory}");
        items.push(Item::new(4, text, dim));
    }
    if status.counts_calls {
        items.push(Item::new(5, "counts all system calls", dim));
    }
    strip::draw(canvas, at, &items);
}

/// What makes the figures doubtful.
fn trouble(canvas: &Canvas<'_>, model: &Model) -> Vec<Item> {
    let status = &model.status;
    let mut items = Vec::new();
    if status.lost > 0 {
        let text = format!(" {} LOST ", Count(status.lost));
        items.push(Item::new(1, text, canvas.theme().alarm()));
    }
    if let Some(behind) = status.behind {
        let text = format!("behind by {behind}");
        items.push(Item::new(1, text, canvas.style(Tone::Warn)));
    }
    if status.skipped > 0 {
        let time = Nanos(status.skipped.saturating_mul(SLICE.0));
        let text = format!("{time} left out");
        items.push(Item::new(2, text, canvas.style(Tone::Warn)));
    }
    if status.late > 0 {
        let text = format!("{} GPU records too late", Count(status.late));
        items.push(Item::new(2, text, canvas.style(Tone::Warn)));
    }
    items
}

/// Whether the window moves; `true`: the person should know that it does not.
fn state(model: &Model, view: &View) -> (String, bool) {
    if let Some(held) = view.held {
        let back = model.newest.saturating_sub(held);
        return (format!(" PAUSED at -{} ", tenths(back)), true);
    }
    match &model.source {
        Source::Targets | Source::Machine => ("LIVE".to_string(), false),
        Source::Recording {
            speed,
            start,
            end,
            over,
            ..
        } => {
            if *over {
                return ("REPLAY over".to_string(), false);
            }
            let played = model.newest.saturating_sub(*start);
            let share = played.share_of(end.saturating_sub(*start)).min(1.0);
            (format!("REPLAY {speed}x {:.0} %", share * 100.0), false)
        }
    }
}

/// The length of the window, and that it is not as long as asked for.
fn seconds(model: &Model) -> String {
    let is = model.window.to.saturating_sub(model.window.from);
    let asked = whole(model.window_asked);
    // Half a second is a slice.
    if is.saturating_add(Nanos::from_millis(600)) < model.window_asked {
        format!("window {} of {asked}", whole(is))
    } else {
        format!("window {asked}")
    }
}

fn whole(time: Nanos) -> String {
    if time.as_u64().is_multiple_of(1_000_000_000) {
        format!("{} s", time.as_u64() / 1_000_000_000)
    } else {
        tenths(time)
    }
}

/// `12.5 s`
fn tenths(time: Nanos) -> String {
    let tenths = time.as_u64() / 100_000_000;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

/// The time of day at the end of the window.
fn clock(model: &Model) -> String {
    let status = &model.status;
    if status.wall_s == 0 {
        return String::new();
    }
    let of_day = status
        .wall_s
        .saturating_add(i64::from(status.utc_offset_s))
        .rem_euclid(86_400);
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{h:02}:{m:02}:{s:02}")
}

/// Who is looked at.
fn watched(model: &Model) -> String {
    match &model.source {
        Source::Machine => "the whole machine".to_string(),
        Source::Recording { path, .. } => path.display().to_string(),
        Source::Targets => {
            let alive = |target: &&Target| target.ended.is_none();
            let mut targets: Vec<&Target> = model.targets.iter().filter(alive).collect();
            // Those with CUDA say most of why the GPU is idle.
            targets.sort_by_key(|target| !target.cuda);
            match (targets.first(), targets.len(), model.targets.len()) {
                (None, _, 0) => "waiting for a process that uses CUDA".to_string(),
                (None, _, _) => "all targets have ended".to_string(),
                (Some(one), 1, _) => name(one),
                (Some(one), n, _) => format!("{} and {} more", name(one), n - 1),
            }
        }
    }
}

fn name(target: &Target) -> String {
    format!("{}:{}", target.comm, target.pid)
}

fn tabs(canvas: &mut Canvas<'_>, at: Rect, view: &View) {
    let (here, dim) = (canvas.theme().cursor(), canvas.style(Tone::Dim));
    let items: Vec<Item> = Tab::ALL
        .iter()
        .enumerate()
        .map(|(i, &tab)| {
            let is_here = tab == view.tab;
            let (rank, style) = if is_here { (0, here) } else { (1, dim) };
            let opened = if is_here && !view.opened.is_empty() {
                ">"
            } else {
                ""
            };
            Item::new(rank, format!("{}{}{opened}", i + 1, tab.name()), style)
        })
        .collect();
    strip::draw(canvas, at, &items);
}
