//! The text of `gdiag sched`: tables as those who know `perf sched` expect them, and what they lack there.
//!
//! A table has columns that fit 80; the same rows in the same order go through all of them. What cannot be
//! known is `-`.
#![forbid(unsafe_code)]

mod hist;
pub mod json;
pub mod map;
mod rows;
#[cfg(test)]
mod tests;
pub mod timehist;

use std::io::{self, Write};

use crate::analyse::sched::{
    cpu_list, pinning, OffReason, OffSum, Preemptor, Summary, ThreadSum, Waker, WakerContext,
};
use crate::cli::{SchedBy, SchedOptions, SchedView};
use crate::event::Cpu;
use crate::present::page::{Page, Paint};
use crate::present::style::Style;
use crate::present::table::{Column, Table};
use crate::units::{Count, Nanos, Share};

use rows::{added, rows, Row};

/// Who ran, woke, preempted, was preempted: so many are named in a cell.
const NAMED: usize = 4;

/// Without a count, of a loss that cannot be counted.
fn lost_events(count: u64) -> String {
    match count {
        0 => "events lost".to_string(),
        n => format!("lost {} events", Count(n)),
    }
}

/// Writes the tables that `options` ask for.
pub fn write_summary(
    mut out: &mut dyn Write,
    summary: &Summary,
    options: &SchedOptions,
    style: &Style,
) -> io::Result<()> {
    let page = &mut Page::new(&mut out, *style);
    let (asleep, awake): (Vec<_>, Vec<_>) = summary
        .threads
        .iter()
        .cloned()
        .partition(ThreadSum::is_asleep);
    let all = rows(&awake, options.by, options.sort);
    head(page, summary)?;
    verdict(page, summary)?;
    let shown = &all[..options.top.unwrap_or(all.len()).min(all.len())];
    let what = match options.by {
        SchedBy::Thread => "Threads",
        SchedBy::Process => "Processes (threads)",
        SchedBy::Name => "Names (threads)",
    };
    let targets: Vec<&ThreadSum> = summary.threads.iter().filter(|t| t.target).collect();
    let total = added(&targets);
    let mut title = format!("{what}: time waited for a CPU");
    if shown.len() < all.len() {
        title.push_str(&format!(
            ", {} of {} (--top all)",
            shown.len(),
            Count(all.len() as u64)
        ));
    }
    if shown.iter().any(|row| row.sum.dispatcher) {
        title.push_str(" (* launches)");
    }
    latency(page, &title, shown, &total, targets.len(), summary)?;
    let starved = awake.iter().filter(|t| t.is_starved()).count();
    if starved > 0 {
        let text = format!(
            "{} waited for a CPU all the time",
            plural(starved as u64, "thread")
        );
        page.line(Paint::Warning, &text)?;
    }
    if !asleep.is_empty() {
        let text = format!(
            "{} slept all the time",
            plural(asleep.len() as u64, "thread")
        );
        page.line(Paint::Dim, &text)?;
    }
    if let SchedView::Summary { hist: true } = options.view {
        histograms(page, shown, &total, targets.len(), options)?;
    }
    switches(page, shown)?;
    off_cpu(page, shown)?;
    wakers(page, shown)?;
    cpus(page, summary)?;
    preemptors(page, summary, options)
}

fn heading(page: &mut Page<'_, impl Write>, text: &str) -> io::Result<()> {
    page.blank()?;
    page.labelled(Paint::Heading, "", text)
}

fn head(page: &mut Page<'_, impl Write>, summary: &Summary) -> io::Result<()> {
    let window = summary.end.saturating_sub(summary.start);
    let switches: u64 = summary.cpus.iter().map(|cpu| cpu.switches).sum();
    let host = if summary.host.is_empty() {
        "-"
    } else {
        &summary.host
    };
    let cpus = plural(summary.cpus.len() as u64, "CPU");
    let threads = plural(summary.threads.len() as u64, "thread");
    let lost = match summary.lost {
        None => String::new(),
        Some(0) => "; no event lost".to_string(),
        Some(n) => format!("; {} lost", plural(n, "event")),
    };
    page.labelled(
        Paint::Plain,
        "",
        &format!(
            "{window} on {host}: {threads} on {cpus}, {}{lost}",
            plural(switches, "switch")
        ),
    )?;
    if let Some(lost) = summary.lost.filter(|&lost| lost > 0) {
        let text = format!(
            "{} lost: times and counts are too small by what was in them",
            plural(lost, "event")
        );
        page.labelled(Paint::Warning, "warning: ", &text)?;
    }
    for note in &summary.notes {
        page.labelled(Paint::Dim, "note: ", note)?;
    }
    Ok(())
}

fn plural(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        n if what.ends_with("ch") => format!("{} {what}es", Count(n)),
        n => format!("{} {what}s", Count(n)),
    }
}

fn verdict(page: &mut Page<'_, impl Write>, summary: &Summary) -> io::Result<()> {
    for verdict in pinning::judge(summary) {
        page.blank()?;
        page.labelled(
            Paint::Heading,
            "",
            &format!("{}: {}", verdict.who, verdict.says),
        )?;
        for evidence in &verdict.evidence {
            page.labelled(Paint::Plain, "  ", evidence)?;
        }
        if let Some(remedy) = &verdict.remedy {
            page.labelled(Paint::Remedy, "  fix: ", remedy)?;
        }
    }
    Ok(())
}

/// `-` of a stranger, and of nothing.
fn known(row: &Row, text: impl FnOnce(&ThreadSum) -> Option<String>) -> String {
    let text = if row.sum.is_stranger() {
        None
    } else {
        text(&row.sum)
    };
    text.unwrap_or_else(|| "-".to_string())
}

fn time(time: Option<Nanos>) -> Option<String> {
    time.map(|time| time.to_string())
}

fn latency(
    page: &mut Page<'_, impl Write>,
    title: &str,
    shown: &[Row],
    total: &ThreadSum,
    targets: usize,
    summary: &Summary,
) -> io::Result<()> {
    heading(page, title)?;
    if shown.is_empty() {
        return page.line(Paint::Plain, "  none of them ran");
    }
    // Where there is room: who had the CPU until the longest wait was over.
    const ROOM: usize = 110;
    let wide = page.style().width >= ROOM;
    let mut columns = vec![
        Column::Task("TASK"),
        Column::Number("RUN"),
        Column::Number("SWITCHES"),
        Column::Number("WAITED"),
        Column::Number("AVG"),
        Column::Number("P99"),
        Column::Number("MAX"),
        Column::Number("MAX AT"),
    ];
    if wide {
        columns.push(Column::Name("BEHIND"));
    }
    let mut table = Table::new(&columns);
    let start = summary.start;
    let cells = |row: &Row| {
        let mut cells = vec![
            row.name.clone(),
            row.sum.run.to_string(),
            known(row, |sum| Some(Count(sum.switches()).to_string())),
            known(row, |sum| Some(sum.waited().to_string())),
            known(row, |sum| time(sum.runq.average())),
            known(row, |sum| time(sum.runq.percentile(0.99))),
            known(row, |sum| Some(sum.longest_wait_text())),
            known(row, |sum| {
                Some(seconds(sum.runq_max_at?.saturating_sub(start)))
            }),
        ];
        if wide {
            cells.push(known(row, |sum| {
                Some(sum.runq_max_behind.as_ref()?.to_string())
            }));
        }
        cells
    };
    for row in shown {
        let mut cells = cells(row);
        if let Some(name) = cells.first_mut().filter(|_| row.sum.dispatcher) {
            name.push('*');
        }
        table.cells(cells);
    }
    if targets > 1 {
        table.cells(cells(&Row {
            name: format!("all {}", plural(targets as u64, "thread")),
            sum: total.clone(),
        }));
    }
    page.table(0, &table)
}

/// As perf has instants, but no longer than a person can find again.
fn seconds(time: Nanos) -> String {
    let ms = time.0 / 1_000_000;
    format!("{}.{:03} s", ms / 1_000, ms % 1_000)
}

fn histograms(
    page: &mut Page<'_, impl Write>,
    shown: &[Row],
    total: &ThreadSum,
    targets: usize,
    options: &SchedOptions,
) -> io::Result<()> {
    both_histograms(page, &plural(targets as u64, "thread"), total)?;
    // One each only where few are asked for.
    let each = match options.by {
        SchedBy::Thread => options.tids.len() > 1,
        SchedBy::Process | SchedBy::Name => true,
    };
    for row in shown.iter().filter(|row| each && !row.sum.is_stranger()) {
        both_histograms(page, &row.name, &row.sum)?;
    }
    Ok(())
}

fn both_histograms(page: &mut Page<'_, impl Write>, name: &str, sum: &ThreadSum) -> io::Result<()> {
    hist::write(page, &format!("Waited for a CPU: {name}"), &sum.runq)?;
    hist::write(page, &format!("On a CPU at a time: {name}"), &sum.runs)
}

fn switches(page: &mut Page<'_, impl Write>, shown: &[Row]) -> io::Result<()> {
    let shown: Vec<&Row> = shown.iter().filter(|row| !row.sum.is_stranger()).collect();
    if shown.is_empty() {
        return Ok(());
    }
    heading(page, "Why they left the CPU, and where they ran")?;
    let count = |sum: &ThreadSum, reason| sum.off_for(reason).map_or(0, |off| off.count);
    // What happens seldom has its column only where it happened.
    let has = |reason| shown.iter().any(|row| count(&row.sum, reason) > 0);
    let (yields, throttles) = (has(OffReason::Yielded), has(OffReason::Throttled));
    let masks = shown.iter().any(|row| row.sum.allowed_cpus().is_some());
    let mut columns = vec![
        Column::Task("TASK"),
        Column::Number("SLEPT"),
        Column::Number("PREEMPTED"),
    ];
    columns.extend(yields.then_some(Column::Number("YIELDED")));
    columns.extend(throttles.then_some(Column::Number("THROTTLED")));
    columns.extend([Column::Number("MIGRATED"), Column::Text("ON CPUS")]);
    columns.extend(masks.then_some(Column::Text("MAY USE")));
    let mut table = Table::new(&columns);
    for row in shown {
        let sum = &row.sum;
        let counted = |reason| Count(count(sum, reason)).to_string();
        let mut cells = vec![
            row.name.clone(),
            Count(sum.voluntary).to_string(),
            counted(OffReason::Preempted),
        ];
        cells.extend(yields.then(|| counted(OffReason::Yielded)));
        cells.extend(throttles.then(|| counted(OffReason::Throttled)));
        cells.extend([Count(sum.migrations).to_string(), ran_on(&sum.cpus)]);
        cells.extend(masks.then(|| may_use(sum)));
        table.cells(cells);
    }
    page.table(0, &table)
}

fn ran_on(cpus: &[(Cpu, Nanos)]) -> String {
    let mut cpus: Vec<Cpu> = cpus.iter().map(|&(cpu, _)| cpu).collect();
    cpus.sort_unstable();
    cpu_list(&cpus)
}

fn may_use(sum: &ThreadSum) -> String {
    match (&sum.affinity, sum.allowed) {
        (Some(cpus), _) => cpu_list(cpus),
        (None, Some(n)) => plural(u64::from(n), "CPU"),
        (None, None) => "-".to_string(),
    }
}

fn off_cpu(page: &mut Page<'_, impl Write>, shown: &[Row]) -> io::Result<()> {
    if shown.iter().all(|row| row.sum.off.is_empty()) {
        return Ok(());
    }
    heading(page, "What they waited for off the CPU")?;
    let mut table = Table::new(&[
        Column::Task("TASK"),
        Column::Number("BLOCKED"),
        Column::Prose("FOR"),
    ]);
    for row in shown.iter().filter(|row| !row.sum.is_stranger()) {
        let reasons = known(row, |sum| {
            let mut off: Vec<&OffSum> = sum
                .off
                .iter()
                .filter(|off| !off.reason.is_runnable())
                .collect();
            off.sort_by_key(|off| std::cmp::Reverse((off.total, off.count)));
            let texts: Vec<String> = off.into_iter().map(off_text).collect();
            (!texts.is_empty()).then(|| texts.join(", "))
        });
        table.row([
            row.name.clone(),
            known(row, |sum| Some(sum.blocked().to_string())),
            reasons,
        ]);
    }
    page.table(0, &table)
}

fn off_text(off: &OffSum) -> String {
    let name = off.reason.name();
    match off.count {
        // It began before, and goes on.
        0 => format!("{name} {}", off.total),
        1 => format!("{name} {}", off.total),
        n => {
            let max = off.max.map_or("-".to_string(), |max| max.to_string());
            format!("{name} {} ({}x, max {max})", off.total, Count(n))
        }
    }
}

fn wakers(page: &mut Page<'_, impl Write>, shown: &[Row]) -> io::Result<()> {
    if shown.iter().all(|row| row.sum.wakers.is_empty()) {
        return Ok(());
    }
    heading(page, "Who woke them")?;
    let mut table = Table::new(&[
        Column::Task("TASK"),
        Column::Number("WOKEN"),
        Column::Prose("BY"),
    ]);
    for row in shown.iter().filter(|row| !row.sum.is_stranger()) {
        let count: u64 = row.sum.wakers.iter().map(|(_, count)| count).sum();
        let by = row.sum.wakers.iter();
        let by = by.map(|(waker, count)| format!("{} {}x", waker_text(waker), Count(*count)));
        table.row([
            row.name.clone(),
            known(row, |_| Some(Count(count).to_string())),
            known(row, |_| listed(by)),
        ]);
    }
    page.table(0, &table)
}

/// The first few, and how many more there are.
fn listed(texts: impl Iterator<Item = String>) -> Option<String> {
    let texts: Vec<String> = texts.collect();
    let first = texts.get(..NAMED).unwrap_or(&texts).join(", ");
    match texts.len().saturating_sub(NAMED) {
        0 => (!first.is_empty()).then_some(first),
        more => Some(format!("{first}, {more} more")),
    }
}

pub(super) fn waker_text(waker: &Waker) -> String {
    match waker {
        Waker::Thread(who) => who.to_string(),
        Waker::Interrupt(WakerContext::HardIrq(_), name) => format!("irq {name}"),
        Waker::Interrupt(WakerContext::SoftIrq(_), name) => format!("softirq {name}"),
        Waker::Interrupt(WakerContext::Timer, _) => "timer".to_string(),
    }
}

fn cpus(page: &mut Page<'_, impl Write>, summary: &Summary) -> io::Result<()> {
    if summary.cpus.is_empty() {
        return Ok(());
    }
    heading(page, "CPUs")?;
    let window = summary.end.saturating_sub(summary.start);
    let share = |time: Nanos| Share(time.share_of(window)).to_string();
    let mut table = Table::new(&[
        Column::Number("CPU"),
        Column::Number("BUSY"),
        Column::Number("IDLE"),
        Column::Number("UNKNOWN"),
        Column::Number("IRQ"),
        Column::Number("SWITCHES"),
        Column::Prose("WHO RAN"),
    ]);
    for cpu in &summary.cpus {
        let ran = cpu.ran.iter();
        let ran = ran.map(|(who, time)| format!("{who} {}", share(*time)));
        table.row([
            cpu.cpu.to_string(),
            share(cpu.busy),
            cpu.known_idle().map_or("-".to_string(), share),
            share(cpu.unknown),
            share(cpu.irq),
            Count(cpu.switches).to_string(),
            listed(ran).unwrap_or_else(|| "-".to_string()),
        ]);
    }
    page.table(0, &table)
}

fn preemptors(
    page: &mut Page<'_, impl Write>,
    summary: &Summary,
    options: &SchedOptions,
) -> io::Result<()> {
    if summary.preemptors.is_empty() {
        return Ok(());
    }
    let all = summary.preemptors.iter().filter_map(|p| p.had);
    let all = all.fold(Nanos::ZERO, Nanos::saturating_add);
    // Many had it for a moment once.
    const LEAST: f64 = 0.001;
    let matters =
        |p: &&Preemptor| p.count > 0 || p.had.is_none_or(|had| had.share_of(all) >= LEAST);
    let mut shown: Vec<&Preemptor> = summary.preemptors.iter().filter(matters).collect();
    let had = shown.iter().any(|p| p.had.is_some());
    let ran = |p: &Preemptor| summary.ran(p.who.tid);
    if !had {
        // Who came for a moment is not what they then waited for.
        shown.sort_by_key(|p| std::cmp::Reverse(p.waited.min(ran(p))));
    }
    let title = if had {
        "Who was in the way: took their CPU, or had it while they waited"
    } else {
        "Who took their CPU, and how long they then waited"
    };
    heading(page, title)?;
    let mut columns = vec![Column::Task("TASK")];
    columns.push(Column::Number(if had { "HAD IT" } else { "RAN" }));
    columns.extend([
        Column::Number("TOOK IT"),
        Column::Number("THEN WAITED"),
        Column::Prose("FROM"),
    ]);
    let mut table = Table::new(&columns);
    for preemptor in shown.into_iter().take(options.top.unwrap_or(usize::MAX)) {
        let victims = preemptor.victims.iter();
        let victims = victims
            .filter(|victim| victim.1 > 0)
            .map(|(who, count, _)| format!("{who} {}x", Count(*count)));
        let mut cells = vec![preemptor.who.to_string()];
        let was_there = if had {
            preemptor.had
        } else {
            Some(ran(preemptor))
        };
        cells.push(time(was_there).unwrap_or_else(|| "-".to_string()));
        cells.extend([
            Count(preemptor.count).to_string(),
            preemptor.waited.to_string(),
            listed(victims).unwrap_or_else(|| "-".to_string()),
        ]);
        table.cells(cells);
    }
    page.table(0, &table)
}
