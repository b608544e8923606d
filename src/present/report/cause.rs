//! Why one GPU was idle: causes in order of harm, and the worst of them in detail.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::analyse::report::{CauseRow, Gpu};
use crate::present::page::{Page, Paint};
use crate::present::report::{heading, is_busy, name_of, or_dash, who_and_what, window};
use crate::present::table::{Column, Table};
use crate::units::{Count, Nanos, Share};

/// Causes explained below the table: the worst ones, unless they hardly matter.
const DETAILED: usize = 5;
const DETAILED_SHARE: f64 = 0.02;
/// Causes with less than this share of idle time share a row when there are so many of them.
const TINY_SHARE: f64 = 0.001;
const TINY_ROWS: usize = 3;
/// Culprits and sentences of evidence for each of them.
const CULPRITS: usize = 5;
const EVIDENCE: usize = 6;

pub(super) fn section(
    page: &mut Page<'_, impl Write>,
    gpu: &Gpu,
    title: &str,
    gpus: usize,
) -> io::Result<()> {
    let gaps = match gpu.gap_count {
        1 => "1 gap".to_string(),
        n => format!("{} gaps", Count(n)),
    };
    let times = match (gpu.idle, gpu.busy) {
        (Some(idle), Some(busy)) => format!("{idle} idle in {gaps}, {busy} busy"),
        _ => format!("{} operations, idle time unknown", Count(gpu.operations)),
    };
    heading(page, &format!("{title}: {times}"))?;
    if gpu.busy.is_some() {
        page.labelled(Paint::Plain, "  busy: ", &busy_parts(gpu))?;
    }
    if gpu.startup > Nanos::ZERO || gpu.drain > Nanos::ZERO {
        let (startup, drain) = (gpu.startup, gpu.drain);
        let outside = format!("{startup} before the first operation, {drain} after the last");
        page.labelled(Paint::Plain, "  not counted: ", &outside)?;
    }
    // Several cards look alike; with one there is nothing to tell apart.
    if gpus > 1 {
        page.line(Paint::Plain, &format!("  uuid: {}", or_dash(&gpu.uuid)))?;
    }
    if gpu.causes.is_empty() {
        return Ok(());
    }
    page.blank()?;
    page.table(2, &overview(gpu))?;
    if is_busy(gpu) {
        return Ok(());
    }
    for (i, row) in gpu
        .causes
        .iter()
        .take(DETAILED)
        .filter(|row| row.share >= DETAILED_SHARE)
        .enumerate()
    {
        page.blank()?;
        details(page, i + 1, row, gpu)?;
    }
    Ok(())
}

fn busy_parts(gpu: &Gpu) -> String {
    let parts: Vec<String> = [
        ("kernels", gpu.busy_kernel),
        ("copies", gpu.busy_memcpy),
        ("memsets", gpu.busy_memset),
    ]
    .into_iter()
    .filter(|(_, time)| *time > Nanos::ZERO)
    .map(|(name, time)| format!("{name} {time}"))
    .collect();
    match parts.len() {
        0 => "-".to_string(),
        1 => parts.concat(),
        _ => format!("{} (they can overlap)", parts.join(", ")),
    }
}

/// All causes, but for a tail of tiny ones, which is added up.
fn overview(gpu: &Gpu) -> Table {
    let tiny = |row: &CauseRow| row.share < TINY_SHARE;
    let shown = match gpu.causes.iter().position(tiny) {
        Some(first) if gpu.causes.len() - first >= TINY_ROWS => first,
        Some(_) | None => gpu.causes.len(),
    };
    let mut table = Table::new(&[
        Column::Number("OF IDLE"),
        Column::Number("TIME"),
        Column::Number("GAPS"),
        Column::Word("CAUSE"),
        Column::Text("WHO: WHAT"),
    ]);
    for row in &gpu.causes[..shown] {
        table.row([
            Share(row.share).to_string(),
            row.total.to_string(),
            Count(row.gaps).to_string(),
            row.cause.id().to_string(),
            row.by.first().map_or("-".to_string(), |blame| {
                who_and_what(blame.who.as_ref(), &blame.what)
            }),
        ]);
    }
    let rest = &gpu.causes[shown..];
    if !rest.is_empty() {
        let total: Nanos = rest.iter().map(|row| row.total).sum();
        let share: f64 = rest.iter().map(|row| row.share).sum();
        table.row([
            Share(share).to_string(),
            total.to_string(),
            String::new(),
            "others".to_string(),
            format!("{} smaller causes, all in --json", rest.len()),
        ]);
    }
    if gpu.causes.len() > 1 {
        let total: Nanos = gpu.causes.iter().map(|row| row.total).sum();
        let share = gpu.idle.map_or("-".to_string(), |idle| {
            Share(total.share_of(idle)).to_string()
        });
        table.row([
            share,
            total.to_string(),
            Count(gpu.gap_count).to_string(),
            "all".to_string(),
            String::new(),
        ]);
    }
    table
}

fn details(
    page: &mut Page<'_, impl Write>,
    rank: usize,
    row: &CauseRow,
    gpu: &Gpu,
) -> io::Result<()> {
    let of_window = Share(row.total.share_of(window(gpu)));
    let claim = format!(
        "{}: waited {} for {} ({} of idle, {of_window} of the whole time)",
        row.cause.id(),
        row.total,
        row.cause.waited_for(),
        Share(row.share)
    );
    page.labelled(Paint::Heading, &format!("{rank}. "), &claim)?;
    // Of a single culprit the sentence says all.
    if row.by.len() > 1 || row.evidence.is_empty() {
        page.table(5, &culprits(row))?;
    }
    for sentence in row.evidence.iter().take(EVIDENCE) {
        page.labelled(Paint::Plain, "   - ", sentence)?;
    }
    if !row.cause.fix().is_empty() {
        page.labelled(Paint::Remedy, "   fix: ", row.cause.fix())?;
    }
    Ok(())
}

fn culprits(row: &CauseRow) -> Table {
    let mut table = Table::new(&[
        Column::Number("TIME"),
        Column::Number("OF THIS"),
        Column::Text("WHO"),
        Column::Prose("WHAT"),
    ]);
    for blame in row.by.iter().take(CULPRITS) {
        table.row([
            blame.total.to_string(),
            Share(blame.total.share_of(row.total)).to_string(),
            blame.who.as_ref().map_or("-".to_string(), name_of),
            or_dash(&blame.what).to_string(),
        ]);
    }
    let rest = row.by.get(CULPRITS..).unwrap_or_default();
    if !rest.is_empty() {
        let total: Nanos = rest.iter().map(|blame| blame.total).sum();
        table.row([
            total.to_string(),
            Share(total.share_of(row.total)).to_string(),
            format!("{} more", rest.len()),
            String::new(),
        ]);
    }
    table
}
