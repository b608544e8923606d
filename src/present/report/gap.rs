//! The longest gaps: one line each, and for the worst a budget that adds up to the whole gap.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::analyse::cause::Cause;
use crate::analyse::report::{Gap, Gpu, Hop, Part, ThreadRef, Waker};
use crate::present::names;
use crate::present::page::{Page, Paint};
use crate::present::report::{heading, name_of, or_dash, who_and_what};
use crate::present::table::{Column, Table};
use crate::present::text;
use crate::units::{Count, Nanos, Share};

/// Lines of a budget; what is left shares the last one.
const LINES: usize = 8;
/// Threads of a wakeup chain.
const HOPS: usize = 8;
/// Frames of a stack, from its leaf.
const FRAMES: usize = 12;

pub(super) fn section(
    page: &mut Page<'_, impl Write>,
    gpu: &Gpu,
    title: &str,
    recording_start: Nanos,
) -> io::Result<()> {
    if gpu.gaps.is_empty() {
        return Ok(());
    }
    let (listed, all) = (Count(gpu.gaps.len() as u64), Count(gpu.gap_count));
    heading(page, &format!("{title}: longest gaps, {listed} of {all}"))?;
    let full = page.style().gaps_in_full.min(gpu.gaps.len());
    for (i, gap) in gpu.gaps.iter().take(full).enumerate() {
        if i > 0 {
            page.blank()?;
        }
        let open = if gap.next.is_none() {
            ", still open at the end"
        } else {
            ""
        };
        let at = since(gap.start, recording_start);
        let line = format!("{}, {at} into the recording{open}", length(gap));
        page.labelled(Paint::Heading, &format!("gap {}: ", i + 1), &line)?;
        let lines = merge(&gap.parts);
        page.table(2, &budget(&lines, length(gap)))?;
        background(page, gap, &lines, gpu.usual_lead)?;
    }
    let rest = gpu.gaps.get(full..).unwrap_or_default();
    if !rest.is_empty() {
        page.blank()?;
        page.table(2, &one_line_each(rest, full, recording_start))?;
    }
    Ok(())
}

fn length(gap: &Gap) -> Nanos {
    gap.end.saturating_sub(gap.start)
}

/// Seconds since the recording began.
fn since(start: Nanos, recording_start: Nanos) -> String {
    let ns = start.saturating_sub(recording_start).as_u64();
    format!("{}.{:06} s", ns / 1_000_000_000, ns / 1_000 % 1_000_000)
}

/// Microseconds with one digit after the point: `12,304.1`.
fn micros(time: Nanos) -> String {
    let tenths = (time.as_u64() + 50) / 100;
    format!("{}.{}", Count(tenths / 10), tenths % 10)
}

/// Like the budget of a latency: every part in order of size, then their sum.
fn budget(lines: &[Line<'_>], gap: Nanos) -> Table {
    let mut table = Table::new(&[
        Column::Number("US"),
        Column::Number("OF GAP"),
        Column::Word("CAUSE"),
        Column::Prose("WHO: WHAT"),
    ]);
    let shown = if lines.len() > LINES {
        LINES - 1
    } else {
        lines.len()
    };
    for line in &lines[..shown] {
        let times = if line.times > 1 {
            format!(" ({} times)", Count(line.times))
        } else {
            String::new()
        };
        table.row([
            micros(line.total),
            Share(line.total.share_of(gap)).to_string(),
            line.cause.id().to_string(),
            format!("{}{times}", who_and_what(line.who, line.what)),
        ]);
    }
    if shown < lines.len() {
        let total: Nanos = lines[shown..].iter().map(|line| line.total).sum();
        table.row([
            micros(total),
            Share(total.share_of(gap)).to_string(),
            "others".to_string(),
            format!("{} smaller lines, all in --json", lines.len() - shown),
        ]);
    }
    let total: Nanos = lines.iter().map(|line| line.total).sum();
    table.row([
        micros(total),
        Share(total.share_of(gap)).to_string(),
        "the gap".to_string(),
        String::new(),
    ]);
    table
}

/// How the gap began and ended, and what the budget was read from.
fn background(
    page: &mut Page<'_, impl Write>,
    gap: &Gap,
    lines: &[Line<'_>],
    usual_lead: Option<Nanos>,
) -> io::Result<()> {
    if let Some(line) = lines.iter().find(|line| !line.stack.is_empty()) {
        page.labelled(
            Paint::Plain,
            &format!("  stack of {}: ", line.cause.id()),
            &stack(line.stack),
        )?;
    }
    if let Some(opened_by) = &gap.opened_by {
        let mut who = format!("{} of {}", opened_by.call, name_of(&opened_by.who));
        if !opened_by.stack.is_empty() {
            who.push_str(&format!(", from {}", stack(&opened_by.stack)));
        }
        page.labelled(Paint::Plain, "  opened by: ", &who)?;
    }
    if let Some(next) = &gap.next {
        let rest = format!(", stream {} of process {}", next.stream, next.pid);
        let label = format!("  ended by: {} ", next.kind);
        let room = page
            .style()
            .width
            .saturating_sub(text::width(&label) + text::width(&rest));
        let name = names::short(&next.name);
        let name = text::clean(or_dash(&name));
        page.line(
            Paint::Plain,
            &format!("{label}{}{rest}", text::cut_middle(&name, room)),
        )?;
    }
    if let Some(dispatcher) = &gap.dispatcher {
        let (role, lead) = match (&gap.next, gap.lead_ns) {
            (None, _) => ("  last launcher: ", String::new()),
            (Some(_), None) => ("  launched by: ", ", lead -".to_string()),
            (Some(_), Some(ns)) => {
                let usual = usual_lead.map_or(String::new(), |lead| format!(" (usually {lead})"));
                ("  launched by: ", format!(", lead {}{usual}", signed(ns)))
            }
        };
        page.labelled(
            Paint::Plain,
            role,
            &format!("{}{lead}", name_of(dispatcher)),
        )?;
    }
    if !gap.chain.is_empty() {
        page.line(Paint::Plain, "  wakeups, back to who was late:")?;
        page.table(4, &chain(&gap.chain))?;
    }
    Ok(())
}

fn signed(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", Nanos(ns.unsigned_abs()))
}

fn stack(frames: &[String]) -> String {
    let shown: Vec<&str> = frames
        .iter()
        .take(FRAMES)
        .map(|frame| or_dash(frame))
        .collect();
    let more = if frames.len() > FRAMES { " < ..." } else { "" };
    format!("{}{more}", shown.join(" < "))
}

/// Parts with the same answer, added up: a thread preempted ten times is one line.
struct Line<'a> {
    cause: Cause,
    who: Option<&'a ThreadRef>,
    what: &'a str,
    total: Nanos,
    times: u64,
    /// Of the longest part that has one.
    stack: &'a [String],
    longest: Nanos,
}

/// Most time first; equal ones in order of time.
fn merge(parts: &[Part]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut index = std::collections::HashMap::new();
    for part in parts {
        let time = part.end.saturating_sub(part.start);
        let key = (part.cause, part.who.as_ref(), part.what.as_str());
        let at = *index.entry(key).or_insert(lines.len());
        if at == lines.len() {
            lines.push(Line {
                cause: part.cause,
                who: part.who.as_ref(),
                what: &part.what,
                total: Nanos::ZERO,
                times: 0,
                stack: &[],
                longest: Nanos::ZERO,
            });
        }
        let line = &mut lines[at];
        line.total += time;
        line.times += 1;
        if !part.stack.is_empty() && time >= line.longest {
            line.longest = time;
            line.stack = &part.stack;
        }
    }
    lines.sort_by_key(|line| std::cmp::Reverse(line.total));
    lines
}

fn chain(hops: &[Hop]) -> Table {
    let mut table = Table::new(&[
        Column::Text("THREAD"),
        Column::Text("STATE"),
        Column::Number("TIME"),
        Column::Text("WOKEN BY"),
    ]);
    for hop in hops.iter().take(HOPS) {
        let woken_by = match &hop.woken_by {
            None => "-".to_string(),
            Some(Waker::Task(who)) => name_of(who),
            Some(Waker::Irq(name)) => format!("interrupt {name}"),
            Some(Waker::SoftIrq(name)) => format!("softirq {name}"),
            Some(Waker::Timer) => "timer".to_string(),
        };
        table.row([
            name_of(&hop.who),
            or_dash(&hop.state).to_string(),
            hop.end.saturating_sub(hop.start).to_string(),
            woken_by,
        ]);
    }
    if hops.len() > HOPS {
        table.row([
            format!("{} more", hops.len() - HOPS),
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    table
}

fn one_line_each(gaps: &[Gap], before: usize, recording_start: Nanos) -> Table {
    let mut table = Table::new(&[
        Column::Number("GAP"),
        Column::Number("LENGTH"),
        Column::Number("AT"),
        Column::Number("OF GAP"),
        Column::Word("MAIN CAUSE"),
        Column::Text("WHO: WHAT"),
    ]);
    for (i, gap) in gaps.iter().enumerate() {
        let lines = merge(&gap.parts);
        let Some(main) = lines.first() else { continue };
        table.row([
            (before + i + 1).to_string(),
            length(gap).to_string(),
            since(gap.start, recording_start),
            Share(main.total.share_of(length(gap))).to_string(),
            main.cause.id().to_string(),
            who_and_what(main.who, main.what),
        ]);
    }
    table
}
