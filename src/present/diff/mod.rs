//! The text of `gdiag diff`: first what changed, in sentences, then every figure with its noise.
#![forbid(unsafe_code)]

pub mod json;
mod words;

use std::io::{self, Write};

use crate::analyse::diff::{Diff, Figure, GpuDiff, NamedDiff, Work};
use crate::present::names;
use crate::present::page::{Page, Paint};
use crate::present::report::{or_dash, who_and_what};
use crate::present::style::Style;
use crate::present::table::{Column, Table};
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::units::Count;

/// Rows of the lists; JSON has all.
const CAUSES: usize = 12;
const KERNELS: usize = 10;
const CALLS: usize = 10;

/// One of the recordings.
#[derive(Clone, Copy, Debug)]
pub struct Recording<'a> {
    pub file: &'a str,
    pub meta: &'a Meta,
    pub summary: Option<&'a Summary>,
    pub lost: u64,
    /// Nothing of it was missing or damaged.
    pub whole: bool,
}

/// Writes the comparison of `a` with `b`. `remarks` are what changes the meaning of all that follows.
pub fn write_diff(
    out: &mut impl Write,
    diff: &Diff,
    a: Recording<'_>,
    b: Recording<'_>,
    remarks: &[String],
    style: &Style,
) -> io::Result<()> {
    let mut page = Page::new(out, *style);
    for remark in remarks {
        page.labelled(Paint::Warning, "warning: ", remark)?;
    }
    if !remarks.is_empty() {
        page.blank()?;
    }
    if diff.gpus.is_empty() {
        page.line(Paint::Heading, "There is no GPU that both recordings used")?;
    }
    for gpu in &diff.gpus {
        let told = words::verdict(gpu, diff);
        page.labelled(Paint::Heading, "", &told.first)?;
        for sentence in &told.more {
            page.labelled(Paint::Plain, "  ", sentence)?;
        }
        if let Some(fix) = told.fix {
            page.labelled(Paint::Remedy, "  fix: ", fix)?;
        }
    }
    let simulated = |r: Recording<'_>| {
        r.summary
            .is_some_and(|s| s.gpu_source == GpuSource::Simulated)
    };
    if simulated(a) && simulated(b) {
        let text = "The GPU is simulated: its busy time is made up. The host side is real.";
        page.line(Paint::Warning, text)?;
    }
    page.blank()?;
    recording(&mut page, "A  ", a)?;
    recording(&mut page, "B  ", b)?;
    for gpu in &diff.gpus {
        times(&mut page, gpu)?;
        causes(&mut page, gpu)?;
    }
    let kernel = |name: &str| names::short(name).into_owned();
    let title = "Kernels, mean time";
    named(&mut page, title, &diff.kernels, KERNELS, kernel)?;
    let title = "CUDA calls, mean time";
    named(&mut page, title, &diff.calls, CALLS, str::to_string)?;
    page.blank()?;
    let legend = "*: changed by more than noise; ?: noise not known, so no change is claimed";
    page.line(Paint::Dim, legend)
}

fn recording(
    page: &mut Page<'_, impl Write>,
    label: &str,
    recording: Recording<'_>,
) -> io::Result<()> {
    let meta = recording.meta;
    let length = recording
        .summary
        .map(|summary| summary.end().saturating_sub(meta.start()));
    let length = length.map_or("-".to_string(), |length| length.to_string());
    let kernel = or_dash(&meta.kernel);
    let (file, host) = (recording.file, or_dash(&meta.host));
    let text = format!("{file}: {length} on {host}, Linux {kernel}");
    page.labelled(Paint::Plain, label, &text)
}

fn mark(figure: &Figure) -> &'static str {
    match figure.changed() {
        Some(true) => "*",
        Some(false) => "",
        None => "?",
    }
}

/// Of what there may be in one recording only.
fn mark_of_named(row: &NamedDiff) -> &'static str {
    match (row.count_a, row.count_b) {
        (0, 1..) => "new",
        (1.., 0) => "gone",
        _ => mark(&row.mean),
    }
}

const COLUMNS: [Column; 5] = [
    Column::Number("A"),
    Column::Number("B"),
    Column::Number("CHANGE"),
    Column::Number("NOISE"),
    Column::Word(""),
];

/// Cells for [`COLUMNS`].
fn share_cells(figure: &Figure) -> Vec<String> {
    let maybe = |value: Option<f64>, text: fn(f64) -> String| value.map_or("-".to_string(), text);
    vec![
        maybe(figure.a, words::share),
        maybe(figure.b, words::share),
        maybe(figure.change(), words::points),
        maybe(figure.noise, |noise| format!("+-{:.1}", noise * 100.0)),
        mark(figure).to_string(),
    ]
}

fn time_cells(figure: &Figure, mark: &str) -> Vec<String> {
    let time = |value: Option<f64>| value.map_or("-".to_string(), words::time);
    vec![
        time(figure.a),
        time(figure.b),
        words::relative(figure).unwrap_or("-".to_string()),
        words::relative_noise(figure).unwrap_or("-".to_string()),
        mark.to_string(),
    ]
}

fn heading(page: &mut Page<'_, impl Write>, text: &str) -> io::Result<()> {
    page.blank()?;
    page.labelled(Paint::Heading, "", text)
}

/// Times for a step and for a thousand operations.
fn times(page: &mut Page<'_, impl Write>, gpu: &GpuDiff) -> io::Result<()> {
    heading(page, &format!("GPU {}: time", gpu.index))?;
    let mut table = Table::new(&[&COLUMNS[..], &[Column::Text("OF")]].concat());
    let mut rows = |work: &Work, of: &str| {
        for (figure, what) in [
            (&work.time, String::new()),
            (&work.idle, ", idle".to_string()),
            (&work.busy, ", busy".to_string()),
        ] {
            let name = format!("{of}{what}");
            table.cells(time_cells(figure, mark(figure)).into_iter().chain([name]));
        }
    };
    if let Some(step) = &gpu.step {
        let of = match (step.operations_a, step.operations_b) {
            (a, b) if a == b => format!("a step of {} operations", Count(a)),
            (a, b) => format!("a step of {} and {} operations", Count(a), Count(b)),
        };
        rows(&step.work, &of);
    }
    rows(&gpu.work, "1,000 operations");
    page.table(2, &table)
}

fn causes(page: &mut Page<'_, impl Write>, gpu: &GpuDiff) -> io::Result<()> {
    let title = format!("GPU {}: share of its time", gpu.index);
    heading(page, &title)?;
    let columns = [Column::Word("IDLE, BY CAUSE"), Column::Text("WHO: WHAT")];
    let mut table = Table::new(&[&COLUMNS[..], &columns[..]].concat());
    for (figure, name) in [(&gpu.idle, "idle"), (&gpu.busy, "busy")] {
        let name = [name.to_string(), String::new()];
        table.cells(share_cells(figure).into_iter().chain(name));
    }
    for row in gpu.causes.iter().take(CAUSES) {
        let who = row.by.as_ref().map_or("-".to_string(), |blame| {
            who_and_what(blame.who.as_ref(), &blame.what)
        });
        let name = [row.cause.id().to_string(), who];
        table.cells(share_cells(&row.share).into_iter().chain(name));
    }
    page.table(2, &table)?;
    more(page, gpu.causes.len(), CAUSES)
}

fn named(
    page: &mut Page<'_, impl Write>,
    title: &str,
    rows: &[NamedDiff],
    most: usize,
    name: impl Fn(&str) -> String,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    heading(page, title)?;
    let counts = [
        Column::Number("COUNT A"),
        Column::Number("COUNT B"),
        Column::Name("NAME"),
    ];
    let mut table = Table::new(&[&COLUMNS[..], &counts[..]].concat());
    for row in rows.iter().take(most) {
        let rest = [
            Count(row.count_a).to_string(),
            Count(row.count_b).to_string(),
            or_dash(&name(&row.name)).to_string(),
        ];
        let figures = time_cells(&row.mean, mark_of_named(row));
        table.cells(figures.into_iter().chain(rest));
    }
    page.table(2, &table)?;
    more(page, rows.len(), most)
}

fn more(page: &mut Page<'_, impl Write>, all: usize, shown: usize) -> io::Result<()> {
    match all.saturating_sub(shown) {
        0 => Ok(()),
        more => page.line(Paint::Dim, &format!("  and {more} more, see --json")),
    }
}

#[cfg(test)]
mod tests;
