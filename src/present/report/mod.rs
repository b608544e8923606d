//! The text of `gdiag report`, for a person in an incident.
//!
//! What matters most comes first: whether the data can be trusted, the verdict on each GPU,
//! the causes in order of harm with their evidence and remedy, the longest gaps with every part
//! of their time accounted for; then the background. Nothing is decided here: what the
//! analysis does not know is shown as `-`.
#![forbid(unsafe_code)]

mod cause;
mod data;
pub(super) mod gap;
mod host;

use std::io::{self, Write};

use crate::analyse::report::{CauseRow, Gpu, Quality, Report, ThreadRef};
use crate::present::page::{Page, Paint};
use crate::present::style::Style;
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::units::{Count, Nanos, Share};

/// Below this share of idle time a GPU counts as busy all the time.
const NOTHING_TO_EXPLAIN: f64 = 0.01;

/// Where a smaller share of the launches came back, a device may have run something after all.
const MOST_CAME_BACK: f64 = 0.999;

/// Warnings shown before the verdict; the rest wait in the section about the data.
const WARNINGS_FIRST: usize = 5;

/// Writes the report. `summary` is `None` when the recording does not say how it ended.
pub fn write_report(
    out: &mut impl Write,
    report: &Report,
    meta: &Meta,
    summary: Option<&Summary>,
    style: &Style,
) -> io::Result<()> {
    let simulated = summary.is_some_and(|summary| summary.gpu_source == GpuSource::Simulated);
    let mut page = Page::new(out, *style);
    warnings(&mut page, &report.quality)?;
    verdicts(&mut page, report, simulated)?;
    page.blank()?;
    data::recording(&mut page, meta, summary)?;
    for gpu in &report.gpus {
        if !ran_nothing(gpu) {
            cause::section(&mut page, gpu, &title(gpu, simulated), report.gpus.len())?;
            gap::section(&mut page, gpu, &title(gpu, simulated), meta.start())?;
        }
    }
    host::sections(&mut page, &report.host_sides, meta.start())?;
    data::threads(&mut page, &report.threads, !report.gpus.is_empty())?;
    data::kernels(&mut page, &report.kernels)?;
    data::calls(&mut page, &report.calls)?;
    data::quality(&mut page, &report.quality, meta, summary)
}

/// What changes the meaning of all that follows.
fn warnings(page: &mut Page<'_, impl Write>, quality: &Quality) -> io::Result<()> {
    let lost = quality.lost();
    for warning in quality.warnings.iter().take(WARNINGS_FIRST) {
        page.labelled(Paint::Warning, "warning: ", warning)?;
    }
    let more = quality.warnings.len().saturating_sub(WARNINGS_FIRST);
    if more > 0 {
        page.line(
            Paint::Warning,
            &format!("warning: {more} more at the end of this report"),
        )?;
    } else if quality.warnings.is_empty() && lost > 0 {
        page.line(
            Paint::Warning,
            &format!("warning: {} events were lost", Count(lost)),
        )?;
    } else if quality.warnings.is_empty() {
        return Ok(());
    }
    page.blank()
}

fn verdicts(page: &mut Page<'_, impl Write>, report: &Report, simulated: bool) -> io::Result<()> {
    if report.gpus.is_empty() && !report.host_sides.is_empty() {
        let text = "No GPU records: only the host's side of CUDA, from probes on the driver";
        page.labelled(Paint::Heading, "", text)?;
    } else if report.gpus.is_empty() {
        // Why is in the warnings above: no CUDA, or CUDA that could not be recorded.
        page.line(Paint::Heading, "No GPU activity in this recording")?;
    }
    for gpu in &report.gpus {
        page.labelled(
            Paint::Heading,
            "",
            &verdict(gpu, &report.quality, simulated),
        )?;
        if let Some(top) = gpu
            .causes
            .first()
            .filter(|_| !is_busy(gpu) && gpu.idle.is_some())
        {
            page.labelled(Paint::Plain, "  ", &accusation(top))?;
            if !top.cause.fix().is_empty() {
                page.labelled(Paint::Remedy, "  fix: ", top.cause.fix())?;
            }
        }
    }
    if !report.gpus.is_empty() && report.gpus.iter().all(ran_nothing) && !report.threads.is_empty()
    {
        let text = "what the threads of its processes did is in the table of threads";
        page.labelled(Paint::Plain, "  ", text)?;
    }
    if simulated {
        page.line(
            Paint::Warning,
            "The GPU is simulated: its busy time is made up. The host side is real.",
        )?;
    }
    Ok(())
}

/// What the worst cause is, and whose.
pub(super) fn accusation(top: &CauseRow) -> String {
    let share = Share(top.share);
    let (waited_for, id) = (top.cause.waited_for(), top.cause.id());
    let who = top.by.first().filter(|blame| blame.who.is_some());
    let who = who.map_or(String::new(), |blame| {
        let part = Share(blame.total.share_of(top.total));
        let who = who_and_what(blame.who.as_ref(), &blame.what);
        format!("; {part} of that is {who}")
    });
    format!("most of all it waited for {waited_for} ({id}, {share} of idle){who}")
}

/// One sentence: how idle, of how long, and how much of that is explained.
fn verdict(gpu: &Gpu, quality: &Quality, simulated: bool) -> String {
    let window = window(gpu);
    let few = quality
        .gpu_coverage
        .is_some_and(|share| share < MOST_CAME_BACK);
    let judgement = match (gpu.idle, gpu.busy) {
        (_, _) if ran_nothing(gpu) && !few => {
            "ran nothing: no operation of what was recorded began or ended (one that ran all along would not show)"
                .to_string()
        }
        (None, _) => match quality.gpu_coverage {
            Some(coverage) if coverage < 1.0 => format!(
                "idle time unknown, as only {} of the launches came back as GPU records",
                percent(coverage)
            ),
            Some(_) | None => "idle time unknown, as its records are not complete".to_string(),
        },
        (Some(_), Some(busy)) if is_busy(gpu) => {
            format!(
                "busy {} of {window}; nothing to explain{}",
                Share(busy.share_of(window)),
                unknown_text(gpu)
            )
        }
        (Some(idle), _) => {
            let explained = gpu
                .idle_explained
                .map_or("-".to_string(), |share| Share(share).to_string());
            format!(
                "idle {} of {window}; {explained} of that explained{}",
                Share(idle.share_of(window)),
                unknown_text(gpu)
            )
        }
    };
    format!("{}: {judgement}", title(gpu, simulated))
}

pub(super) fn is_busy(gpu: &Gpu) -> bool {
    gpu.operations > 0
        && gpu
            .idle
            .is_some_and(|idle| idle.share_of(window(gpu)) < NOTHING_TO_EXPLAIN)
}

/// Nothing that began or ended, as far as it is known.
pub(super) fn ran_nothing(gpu: &Gpu) -> bool {
    gpu.operations == 0 && gpu.gap_count == 0
}

/// The time that shares are of: all of the window of which it is known whether the device was busy.
pub(super) fn window(gpu: &Gpu) -> Nanos {
    match (gpu.busy, gpu.idle) {
        (Some(busy), Some(idle)) => busy.saturating_add(idle),
        (None, _) | (_, None) => gpu.window_end.saturating_sub(gpu.window_start),
    }
}

/// The rest of the window, in words; empty where that is next to nothing.
pub(super) fn unknown_text(gpu: &Gpu) -> String {
    let unknown = unknown(gpu);
    if unknown.share_of(window(gpu).saturating_add(unknown)) < NOTHING_TO_EXPLAIN {
        return String::new();
    }
    format!("; {unknown} more is not known")
}

/// Of the window of a live view, what was not recorded, or has not come back.
pub(super) fn unknown(gpu: &Gpu) -> Nanos {
    let whole = gpu.window_end.saturating_sub(gpu.window_start);
    whole.saturating_sub(window(gpu))
}

fn title(gpu: &Gpu, simulated: bool) -> String {
    // The simulated GPU of the tests says so in its name.
    let says_so = gpu.name.to_ascii_lowercase().contains("simulated");
    let simulated = if simulated && !says_so {
        " (simulated)"
    } else {
        ""
    };
    format!("GPU {} {}{simulated}", gpu.index, or_dash(&gpu.name))
}

/// With more digits than [`Share`], for shares that must be close to all.
fn percent(share: f64) -> String {
    // Rounded down: 99.996 % is not 100 %.
    format!("{:.2} %", (share * 10_000.0).floor() / 100.0)
}

pub(super) fn or_dash(text: &str) -> &str {
    if text.is_empty() {
        "-"
    } else {
        text
    }
}

fn maybe(time: Option<Nanos>) -> String {
    time.map_or("-".to_string(), |time| time.to_string())
}

/// `python3 4711`, or `loader 4711/4712` for another thread than the first.
pub(super) fn name_of(who: &ThreadRef) -> String {
    let comm = if who.comm.is_empty() { "''" } else { &who.comm };
    if who.pid.0 == who.tid.0 {
        format!("{comm} {}", who.pid)
    } else {
        format!("{comm} {}/{}", who.pid, who.tid)
    }
}

/// Who it was and what it was, as far as either is known.
pub(super) fn who_and_what(who: Option<&ThreadRef>, what: &str) -> String {
    match (who.map(name_of), what) {
        (None, "") => "-".to_string(),
        (None, what) => what.to_string(),
        (Some(who), "") => who,
        (Some(who), what) => format!("{who}: {what}"),
    }
}

fn heading(page: &mut Page<'_, impl Write>, text: &str) -> io::Result<()> {
    page.blank()?;
    page.labelled(Paint::Heading, "", text)
}

#[cfg(test)]
mod tests;
