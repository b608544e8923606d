//! The background: the recording, threads, kernels, calls, and how far the data can be trusted.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::analyse::report::{Call, Kernel, Quality, Thread};
use crate::present::names;
use crate::present::page::{Page, Paint};
use crate::present::report::{heading, maybe, name_of, or_dash, percent, WARNINGS_FIRST};
use crate::present::table::{Column, Table};
use crate::present::text::cut_middle;
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::units::{Bytes, Count, Nanos};

const THREADS: usize = 15;
const KERNELS: usize = 10;
const CALLS: usize = 10;
/// Columns of the command line; JSON has it whole.
const COMMAND: usize = 400;

pub(super) fn recording(
    page: &mut Page<'_, impl Write>,
    meta: &Meta,
    summary: Option<&Summary>,
) -> io::Result<()> {
    let length = summary.map(|summary| summary.end().saturating_sub(meta.start()));
    let mut text = maybe(length);
    if meta.start_unix_ns > 0 {
        text.push_str(&format!(" from {}", utc(meta.start_unix_ns)));
    }
    text.push_str(&format!(" on {}", or_dash(&meta.host)));
    if !meta.kernel.is_empty() {
        text.push_str(&format!(", Linux {} {}", meta.kernel, meta.machine));
    }
    page.labelled(Paint::Plain, "Recorded ", &text)?;
    if meta.command.is_empty() {
        return Ok(());
    }
    let command = command_line(&meta.command);
    page.labelled(Paint::Plain, "      by ", &cut_middle(&command, COMMAND))
}

/// As a shell would take it; only for reading.
fn command_line(arguments: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=+.,:/@%^".contains(c);
    let quoted = arguments.iter().map(|argument| {
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// `2026-02-28 14:02:11 UTC`.
fn utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last one; eras have 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// `gaps` are known where there are GPU records.
pub(super) fn threads(
    page: &mut Page<'_, impl Write>,
    threads: &[Thread],
    gaps: bool,
) -> io::Result<()> {
    if threads.is_empty() {
        return Ok(());
    }
    let mark = match threads.iter().any(|thread| thread.dispatcher) {
        true if gaps => " (* its launches ended gaps)",
        true => " (* it launches)",
        false => "",
    };
    // Pools are full of threads that sleep all the time.
    let awake: Vec<&Thread> = threads
        .iter()
        .filter(|thread| thread.dispatcher || thread.run + thread.runq > Nanos::ZERO)
        .collect();
    let shown = &awake[..awake.len().min(THREADS)];
    let note = if shown.len() < threads.len() {
        format!(", {} of {}", shown.len(), Count(threads.len() as u64))
    } else {
        String::new()
    };
    heading(page, &format!("Threads{mark}{note}"))?;
    if shown.is_empty() {
        return page.line(Paint::Plain, "  none of them ran");
    }
    let mut table = Table::new(&[
        Column::Number("RUNNING"),
        Column::Number("RUN QUEUE"),
        Column::Number("BLOCKED"),
        Column::Number("LAUNCHES"),
        Column::Word(""),
        Column::Text("THREAD"),
    ]);
    for thread in shown {
        table.row([
            thread.run.to_string(),
            thread.runq.to_string(),
            thread.blocked.to_string(),
            Count(thread.launches).to_string(),
            if thread.dispatcher { "*" } else { "" }.to_string(),
            name_of(&thread.who),
        ]);
    }
    page.table(2, &table)
}

pub(super) fn kernels(page: &mut Page<'_, impl Write>, kernels: &[Kernel]) -> io::Result<()> {
    if kernels.is_empty() {
        return Ok(());
    }
    heading(
        page,
        &format!("Kernels by total time{}", cut_note(kernels.len(), KERNELS)),
    )?;
    let mut table = Table::new(&[
        Column::Number("TOTAL"),
        Column::Number("COUNT"),
        Column::Number("MEAN"),
        Column::Number("MIN"),
        Column::Number("MAX"),
        Column::Name("KERNEL"),
    ]);
    for kernel in kernels.iter().take(KERNELS) {
        table.row([
            kernel.total.to_string(),
            Count(kernel.count).to_string(),
            maybe(kernel.total.as_u64().checked_div(kernel.count).map(Nanos)),
            kernel.min.to_string(),
            kernel.max.to_string(),
            or_dash(&names::short(&kernel.name)).to_string(),
        ]);
    }
    page.table(2, &table)
}

pub(super) fn calls(page: &mut Page<'_, impl Write>, calls: &[Call]) -> io::Result<()> {
    if calls.is_empty() {
        return Ok(());
    }
    let known = calls.iter().any(|call| call.idle_overlap.is_some());
    let order = if known {
        "time in which a GPU was idle"
    } else {
        "total time"
    };
    let note = cut_note(calls.len(), CALLS);
    heading(page, &format!("CUDA calls by {order}{note}"))?;
    let mut columns = vec![
        Column::Number("TOTAL"),
        Column::Number("COUNT"),
        Column::Number("MAX"),
        Column::Name("CALL"),
    ];
    if known {
        columns.insert(0, Column::Number("GPU IDLE"));
    }
    let mut table = Table::new(&columns);
    for call in calls.iter().take(CALLS) {
        let (total, count) = (call.total.to_string(), Count(call.count).to_string());
        let (max, name) = (call.max.to_string(), or_dash(&call.name).to_string());
        if known {
            table.row([maybe(call.idle_overlap), total, count, max, name]);
        } else {
            table.row([total, count, max, name]);
        }
    }
    page.table(2, &table)
}

fn cut_note(len: usize, shown: usize) -> String {
    if len > shown {
        format!(", {shown} of {}", Count(len as u64))
    } else {
        String::new()
    }
}

pub(super) fn quality(
    page: &mut Page<'_, impl Write>,
    quality: &Quality,
    meta: &Meta,
    summary: Option<&Summary>,
) -> io::Result<()> {
    heading(page, "Quality of the data")?;
    let lost = format!(
        "{}, lost: {} by BPF, {} by the shim, {} by CUPTI",
        Count(quality.events),
        Count(quality.bpf_lost),
        Count(quality.shim_lost),
        Count(quality.cupti_lost)
    );
    page.labelled(Paint::Plain, "  events          ", &lost)?;
    let source = match summary.map(|summary| summary.gpu_source) {
        Some(GpuSource::Cupti) => "CUPTI",
        Some(GpuSource::Simulated) => "a simulated GPU",
        Some(GpuSource::Uprobe) => "none; calls from probes on the driver",
        Some(GpuSource::None) => "none",
        None => "-",
    };
    let records = match summary.map(|summary| summary.gpu_source) {
        Some(GpuSource::Uprobe) => source.to_string(),
        Some(GpuSource::Cupti | GpuSource::Simulated | GpuSource::None) | None => format!(
            "from {source}; {} invalid, {} without their launch",
            Count(quality.invalid_gpu_records),
            Count(quality.unmatched_gpu_records)
        ),
    };
    page.labelled(Paint::Plain, "  GPU records     ", &records)?;
    let coverage = quality.gpu_coverage.map_or("-".to_string(), |coverage| {
        format!(
            "{} of the launches came back as GPU records",
            percent(coverage)
        )
    });
    page.labelled(Paint::Plain, "  GPU coverage    ", &coverage)?;
    let clock = quality
        .max_clock_error
        .map_or("-".to_string(), |error| format!("at most {error}"));
    page.labelled(Paint::Plain, "  clock error     ", &clock)?;
    if let Some(summary) = summary.filter(|summary| summary.switches > 0) {
        #[allow(clippy::cast_precision_loss)]
        let each = summary.switch_bytes as f64 / summary.switches as f64;
        let (switches, bytes) = (Count(summary.switches), Bytes(summary.switch_bytes));
        let text = format!("{each:.1} bytes each before compression ({bytes} for {switches})");
        page.labelled(Paint::Plain, "  switches        ", &text)?;
    }
    page.labelled(
        Paint::Plain,
        "  stacks          ",
        &format!("of waits of at least {}", Nanos(meta.wait_threshold_ns)),
    )?;
    if let Some(summary) = summary.filter(|summary| summary.stacks > 0) {
        let each = Nanos(summary.stacks_ns / summary.stacks);
        let (taken, lost) = (Count(summary.stacks), Count(summary.stacks_lost));
        let text = format!("{taken}, {each} of the target's time each; lost: {lost}");
        page.labelled(Paint::Plain, "  user stacks     ", &text)?;
    }
    for probe in &meta.missing_probes {
        page.labelled(Paint::Warning, "  not recorded    ", probe)?;
    }
    for warning in quality.warnings.iter().skip(WARNINGS_FIRST) {
        page.labelled(Paint::Warning, "  warning         ", warning)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_772_287_331, "2026-02-28 14:02:11 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), text);
        }
    }

    #[test]
    fn a_command_line_reads_as_it_was_typed() {
        let words = ["sh", "-c", "echo 'x'; true", ""].map(String::from);
        assert_eq!(command_line(&words), r"sh -c 'echo '\''x'\''; true' ''");
    }
}
