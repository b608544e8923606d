//! The first screen: how busy each GPU is, why it is not, and what its threads do instead.
//!
//! ```text
//! GPU 0 NVIDIA H200 [######............]  38.7 % busy   ._:+#:
//!  nvidia-smi says 97 %  memory 61.2 of 141 GiB  412 of 700 W
//!  18.2 k launches/s, ...
//! Causes of idle time        what was waited for, who, the fix
//! Dispatch threads           where their time went
//! System calls, kernels      as far as there is room
//! ```
//!
//! What has no room is left out, least important first: of 20 columns and 5 lines there remain the busy share and the cause.
#![forbid(unsafe_code)]

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::Canvas;
use super::list::{List, Tone};
use super::model::{Model, Source};
use super::page;
use super::screen::Block;
use super::screens::{calls, causes, dispatchers, gap_at, gpus, host, kernels, threads, tone_of};
use super::strip::{self, Item};
use super::table::{self, line};
use super::view::View;
use crate::analyse::report::Gpu;
use crate::present::report::gap::merge;
use crate::present::report::{or_dash, who_and_what, window};
use crate::units::{Nanos, Share};

/// Rows of what is beside the point here: its own screen has all.
const ROWS: usize = 20;
/// Lines below which there are no tables.
const TINY: u16 = 6;
/// Lines of the panel of one GPU.
const PANEL: u16 = 3;

/// A table, with what is told above it.
struct Section {
    above: Vec<Block>,
    list: List,
    /// What has no room goes away by this, the highest first; 0 stays.
    rank: u8,
    /// So many rows say the most; more where there is room.
    rows: usize,
}

/// A section that has room.
struct Placed {
    section: Section,
    /// Lines of what is told above.
    told: u16,
    area: Rect,
}

struct Layout {
    /// A table with a row for each GPU, if there are several.
    gpus: Rect,
    /// The one that is looked at.
    panel: Rect,
    sections: Vec<Placed>,
}

fn sections(model: &Model, view: &View) -> Vec<Section> {
    let short = |mut list: List| {
        list.rows.truncate(ROWS);
        // Not one line is to be wasted.
        list.notes.clear();
        list
    };
    let section = |list: List, rank, rows| Section {
        above: Vec::new(),
        list: short(list),
        rank,
        rows,
    };
    let mut sections = Vec::new();
    match view.gpu(model) {
        Some(gpu) => sections.push(Section {
            above: causes::verdict(gpu),
            ..section(causes::of(gpu, "Causes"), 0, 4)
        }),
        None => {
            let mut above = host::blocks(model);
            if above.is_empty() {
                above = nothing(model);
            }
            sections.push(Section {
                above,
                ..section(threads::list(model), 0, 4)
            });
        }
    }
    sections.extend([
        section(dispatchers::list(model), 1, 2),
        section(calls::list(model), 3, 3),
        section(kernels::list(model), 2, 3),
    ]);
    sections.retain(|section| !section.list.rows.is_empty() || section.rank == 0);
    sections
}

/// Why there is no GPU to be seen.
fn nothing(model: &Model) -> Vec<Block> {
    let text = match model.source {
        Source::Machine => "no GPU is looked at",
        Source::Recording { .. } => "no GPU activity in this part of the recording",
        Source::Targets if model.targets.is_empty() => {
            "no process uses CUDA yet: the first that does will be shown"
        }
        Source::Targets => "no GPU activity of the targets in this window",
    };
    let mut said = vec![Block::text("", text, Tone::Dim)];
    for target in &model.targets {
        if let (Some(note), None) = (&target.note, target.ended) {
            let label = format!("{}:{}: ", target.comm, target.pid);
            said.push(Block::text(label, note.as_str(), Tone::Warn));
        }
    }
    said
}

fn layout(model: &Model, view: &View, area: Rect) -> Layout {
    let mut left = area;
    let mut take = |height: u16| {
        let height = height.min(left.height);
        let taken = Rect { height, ..left };
        left.y += height;
        left.height -= height;
        taken
    };
    let several = model.window.report.gpus.len();
    let mut gpus = Rect::default();
    if several > 1 {
        let rows = u16::try_from(several).unwrap_or(u16::MAX).saturating_add(1);
        gpus = take(rows.min((area.height / 2).max(4)));
    }
    let panel = match several {
        0 => Rect::default(),
        1 => take(PANEL),
        // The table has said the most of it.
        _ if area.height > gpus.height + 10 => take(PANEL),
        _ => Rect::default(),
    };
    if area.height < TINY {
        return Layout {
            gpus,
            panel,
            sections: Vec::new(),
        };
    }
    let mut sections = sections(model, view);
    let mut told = Vec::new();
    // On a low terminal the tables say it all; without a GPU, why there is none.
    let has_gpu = view.gpu(model).is_some();
    let most = usize::from(left.height / if has_gpu { 6 } else { 2 });
    for section in &mut sections {
        // The last of a verdict is what can be done.
        while has_gpu
            && section.above.len() > 1
            && page::lines(&section.above, area.width).len() > most
        {
            section.above.remove(0);
        }
        told.push(page::lines(&section.above, area.width).len().min(most));
    }
    let heights = heights(&sections, &told, usize::from(left.height));
    let mut placed = Vec::new();
    for ((section, told), height) in sections.into_iter().zip(told).zip(heights) {
        let height = u16::try_from(height).unwrap_or(u16::MAX).min(left.height);
        if height == 0 {
            continue;
        }
        placed.push(Placed {
            section,
            told: u16::try_from(told).unwrap_or(0),
            area: Rect { height, ..left },
        });
        left.y += height;
        left.height -= height;
    }
    Layout {
        gpus,
        panel,
        sections: placed,
    }
}

/// Lines for each section, of `height` in all, by what matters. What has too little room is left out.
fn heights(sections: &[Section], told: &[usize], height: usize) -> Vec<usize> {
    /// Title, and names of columns.
    const FRAME: usize = 2;
    /// Each but the last is followed by a blank.
    const BLANK: usize = 1;
    let mut heights = vec![0; sections.len()];
    let mut order: Vec<usize> = (0..sections.len()).collect();
    order.sort_by_key(|&i| sections[i].rank);
    let mut left = height;
    for all in [false, true] {
        for &i in &order {
            let (section, told) = (&sections[i], told[i]);
            let rows = section.list.rows.len().max(1);
            let rows = if all { rows } else { rows.min(section.rows) };
            let wants = (told + FRAME + rows + BLANK)
                .saturating_sub(heights[i])
                .min(left);
            // A title without a row says nothing.
            if heights[i] + wants > told + FRAME {
                heights[i] += wants;
                left -= wants;
            }
        }
    }
    heights
}

/// All rows of the tables that have room, one after another.
pub fn stops(model: &Model, view: &View, area: Rect) -> List {
    all_rows(&layout(model, view, area))
}

fn all_rows(layout: &Layout) -> List {
    let mut rows = Vec::new();
    for (i, placed) in layout.sections.iter().enumerate() {
        rows.extend(placed.section.list.rows.iter().map(|row| {
            let mut row = row.clone();
            row.id = format!("{i} {}", row.id);
            row
        }));
    }
    List {
        rows,
        ..List::default()
    }
}

pub fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View) {
    if area.is_empty() {
        return;
    }
    let layout = layout(model, view, area);
    if area.height < TINY {
        return tiny(canvas, area, model, view);
    }
    if !layout.gpus.is_empty() {
        all_gpus(canvas, layout.gpus, model, view);
    }
    if let Some(gpu) = view.gpu(model) {
        panel(canvas, layout.panel, model, gpu);
    }
    let stops = all_rows(&layout);
    let order: Vec<usize> = (0..stops.rows.len()).collect();
    let mut at = Some(view.state().at(&stops, &order)).filter(|_| !order.is_empty());
    for placed in &layout.sections {
        let rows = placed.section.list.rows.len();
        let here = at.filter(|&at| at < rows);
        at = at.and_then(|at| at.checked_sub(rows));
        section(canvas, placed, here);
    }
}

/// A line for each; where not all have room, the last line says how many more there are.
fn all_gpus(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View) {
    let chosen = view.gpu_place(model);
    let list = gpus::list(model, chosen, canvas.glyphs());
    let rows = usize::from(area.height.saturating_sub(1));
    let (Some(hidden @ 1..), true) = (list.rows.len().checked_sub(rows), rows > 1) else {
        return table::rows(canvas, area, &list, 0, None);
    };
    let upper = Rect {
        height: area.height - 1,
        ..area
    };
    table::rows(
        canvas,
        upper,
        &list,
        (chosen + 2).saturating_sub(rows),
        None,
    );
    let dim = canvas.style(Tone::Dim);
    let text = format!(" and {} more: n and N go through all of them", hidden + 1);
    canvas.text(area.x, area.bottom() - 1, area.width, &text, dim);
}

fn section(canvas: &mut Canvas<'_>, placed: &Placed, cursor: Option<usize>) {
    let Placed {
        section,
        told,
        area,
    } = placed;
    let strong = canvas.style(Tone::Strong);
    canvas.text(area.x, area.y, area.width, &section.list.title, strong);
    let mut rest = below(*area, 1);
    let mut lines = page::lines(&section.above, area.width);
    let cut = lines.len() > usize::from(*told);
    lines.truncate(usize::from(*told));
    if let (true, Some(page::Line::Text(text, _))) = (cut, lines.last_mut()) {
        text.push(canvas.glyphs().dots);
    }
    for told in &lines {
        if rest.is_empty() {
            return;
        }
        page::draw_line(canvas, line(rest, rest.y), told, false);
        rest = below(rest, 1);
    }
    let rows = section.list.rows.len();
    // The blank before the next section, as long as all rows have room.
    let room = usize::from(rest.height.saturating_sub(1));
    let top = cursor.map_or(0, |cursor| (cursor + 1).saturating_sub(room.min(rows)));
    table::rows(canvas, rest, &section.list, top, cursor);
}

fn below(area: Rect, lines: u16) -> Rect {
    let lines = lines.min(area.height);
    Rect {
        y: area.y + lines,
        height: area.height - lines,
        ..area
    }
}

/// The GPU that is looked at: how busy, what the driver says, and how work gets to it.
fn panel(canvas: &mut Canvas<'_>, area: Rect, model: &Model, gpu: &Gpu) {
    let mut lines = (area.top()..area.bottom()).map(|y| line(area, y));
    if let Some(at) = lines.next() {
        busy(canvas, at, model, gpu);
    }
    if let Some(at) = lines.next() {
        card(canvas, at, model, gpu);
    }
    if let Some(at) = lines.next() {
        work(canvas, at, model, gpu);
    }
}

/// Name, bar, share and trend.
fn busy(canvas: &mut Canvas<'_>, at: Rect, model: &Model, gpu: &Gpu) {
    let share = gpus::busy_share(gpu);
    let text = match share {
        Some(_) if window(gpu) == Nanos::ZERO => "busy unknown".to_string(),
        Some(share) => format!("{:>7} busy", Share(share).to_string()),
        None => "busy unknown".to_string(),
    };
    let strong = canvas.style(Tone::Strong);
    let good = canvas.style(Tone::Good);
    let name_room = at.width.saturating_sub(34).min(24);
    let mut x = at.x;
    if name_room >= 6 {
        let name = causes::name(gpu);
        x += canvas.text(x, at.y, name_room, &name, strong) + 1;
    }
    let trend_room = (at.right().saturating_sub(x) / 3).min(60);
    let trend = gpus::trend(
        &model.window,
        gpu.index,
        usize::from(trend_room),
        canvas.glyphs(),
    );
    let trend_width = super::canvas::columns(&trend);
    let text_width = super::canvas::columns(&text);
    let bar = at
        .right()
        .saturating_sub(x + text_width + trend_width + 4)
        .min(80);
    if bar >= 6 {
        meter(
            canvas,
            Rect {
                x,
                width: bar,
                ..at
            },
            share,
        );
        x += bar + 1;
    }
    x += canvas.text(x, at.y, at.right().saturating_sub(x), &text, strong) + 2;
    canvas.text(x, at.y, at.right().saturating_sub(x), &trend, good);
}

/// `[#####.....]`
fn meter(canvas: &mut Canvas<'_>, at: Rect, share: Option<f64>) {
    let glyphs = canvas.glyphs();
    let (good, dim) = (canvas.style(Tone::Good), canvas.style(Tone::Dim));
    let strong = canvas.style(Tone::Strong);
    canvas.glyph(at.x, at.y, '[', strong);
    canvas.glyph(at.right() - 1, at.y, ']', strong);
    let inner = at.width.saturating_sub(2);
    let Some(share) = share else { return };
    let steps = u16::try_from(glyphs.bar.len()).unwrap_or(1);
    let filled = table::part(share, inner.saturating_mul(steps));
    for i in 0..inner {
        let x = at.x + 1 + i;
        match filled.saturating_sub(i * steps).min(steps) {
            0 => canvas.glyph(x, at.y, glyphs.track, dim),
            part => canvas.glyph(x, at.y, glyphs.bar[usize::from(part) - 1], good),
        }
    }
}

/// What the driver says: a kernel on the GPU half of the time can be 97 % to it.
fn card(canvas: &mut Canvas<'_>, at: Rect, model: &Model, gpu: &Gpu) {
    let at = indented(at);
    let dim = canvas.style(Tone::Dim);
    let kinds = gpus::kinds(gpu);
    let Some(facts) = gpus::facts(model, gpu) else {
        let mut items = vec![Item::new(0, kinds, Style::new())];
        if !matches!(model.source, Source::Recording { .. }) {
            items.push(Item::new(1, "nothing known from NVML", dim));
        }
        strip::draw(canvas, at, &items);
        return;
    };
    let mut items = Vec::new();
    match (gpus::hidden(gpu, facts), facts.utilization) {
        (Some(said), _) => {
            let text = format!("nvidia-smi says {said} %");
            items.push(Item::new(0, text, canvas.style(Tone::Warn)));
        }
        (None, Some(said)) => {
            let text = format!("nvidia-smi: {said} %");
            items.push(Item::new(3, text, dim));
        }
        (None, None) => {}
    }
    for (i, (text, tone)) in gpus::card(facts, model.newest).into_iter().enumerate() {
        let rank = u8::try_from(i + 1).unwrap_or(u8::MAX);
        items.push(Item::new(rank, text, canvas.style(tone)));
    }
    items.push(Item::new(u8::MAX, kinds, dim));
    strip::draw(canvas, at, &items);
}

/// How work gets to it, and the longest time without.
fn work(canvas: &mut Canvas<'_>, at: Rect, model: &Model, gpu: &Gpu) {
    let plain = Style::new();
    let mut items = Vec::new();
    if let Some(launches) = gpus::launches(&model.window, gpu) {
        if let Some(rate) = gpus::launch_rate(&model.window, gpu) {
            items.push(Item::new(1, format!("{rate} launches/s"), plain));
        }
        let of = |share| launches.start.percentile(share);
        if let (Some(median), Some(p99)) = (of(0.5), of(0.99)) {
            let text = format!("latency {median}, p99 {p99}");
            items.push(Item::new(2, text, plain));
        }
        if let Some(median) = launches.call.percentile(0.5) {
            items.push(Item::new(
                3,
                format!("launch call {median}"),
                canvas.style(Tone::Dim),
            ));
        }
    }
    if let Some(gap) = gpus::longest(gpu) {
        let length = gap.end.saturating_sub(gap.start);
        let text = match gap.next {
            Some(_) => format!("longest gap {length} at {}", gap_at(model, gap)),
            None => format!("longest gap {length}, still open"),
        };
        items.push(Item::new(0, text, plain));
        if let Some(line) = merge(&gap.parts).first() {
            let text = format!("by {}", line.cause.id());
            items.push(Item::new(3, text, canvas.style(tone_of(line.cause))));
        }
    }
    strip::draw(canvas, indented(at), &items);
}

fn indented(at: Rect) -> Rect {
    let by = 1.min(at.width);
    Rect {
        x: at.x + by,
        width: at.width - by,
        ..at
    }
}

/// What remains of it all when there is next to no room.
fn tiny(canvas: &mut Canvas<'_>, area: Rect, model: &Model, view: &View) {
    let mut lines = (area.top()..area.bottom()).map(|y| line(area, y));
    let several = model.window.report.gpus.len() > 1;
    if view.gpu(model).is_none() {
        let said = sections(model, view);
        let told = said.iter().flat_map(|section| &section.above);
        let blocks: Vec<Block> = told.cloned().collect();
        for (told, at) in page::lines(&blocks, area.width).iter().zip(lines) {
            page::draw_line(canvas, at, told, false);
        }
        return;
    }
    if several {
        let gpus = &model.window.report.gpus;
        let chosen = view.gpu_place(model);
        let top = (chosen + 1).saturating_sub(usize::from(area.height));
        for (gpu, at) in gpus.iter().skip(top).zip(lines) {
            let (share, cause) = (busy_text(gpu), top_cause(gpu));
            let (text, tone) = cause.unwrap_or_default();
            let strong = canvas.style(Tone::Strong);
            let head = format!("GPU {} {share}", gpu.index);
            let x = at.x + canvas.text(at.x, at.y, at.width, &head, strong) + 1;
            let style = canvas.style(tone);
            canvas.text(x, at.y, at.right().saturating_sub(x), &text, style);
        }
        return;
    }
    let Some(gpu) = view.gpu(model) else { return };
    if let Some(at) = lines.next() {
        let strong = canvas.style(Tone::Strong);
        let text = format!("GPU {} {} busy", gpu.index, busy_text(gpu));
        canvas.text(at.x, at.y, at.width, &text, strong);
    }
    let Some((text, tone)) = top_cause(gpu) else {
        return;
    };
    if let Some(at) = lines.next() {
        let style = canvas.style(tone);
        canvas.text(at.x, at.y, at.width, &text, style);
    }
    let by = gpu.causes.first().and_then(|row| row.by.first());
    if let (Some(by), Some(at)) = (by, lines.next()) {
        let who = who_and_what(by.who.as_ref(), &by.what);
        canvas.text(at.x, at.y, at.width, or_dash(&who), Style::new());
    }
    if let Some(at) = lines.next() {
        let width = at.width;
        if width >= 6 {
            meter(canvas, at, gpus::busy_share(gpu));
        }
    }
}

fn busy_text(gpu: &Gpu) -> String {
    gpus::busy_share(gpu).map_or("-".to_string(), |share| Share(share).to_string())
}

fn top_cause(gpu: &Gpu) -> Option<(String, Tone)> {
    let row = gpu.causes.first().filter(|_| gpu.operations > 0)?;
    let text = format!("{} {}", row.cause.id(), Share(row.share));
    Some((text, tone_of(row.cause)))
}
