//! The longest gaps: one line each, and for the worst a budget that adds up to the whole gap.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::analyse::cause::Cause;
use crate::analyse::report::{Gap, Gpu, Hop, Part, Stack, ThreadRef, Waker};
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
/// A stack is shown of what took at least this share of the gap.
const STACK_SHARE: f64 = 0.1;
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

pub(in crate::present) fn length(gap: &Gap) -> Nanos {
    gap.end.saturating_sub(gap.start)
}

/// Seconds since the recording began.
pub(super) fn since(start: Nanos, recording_start: Nanos) -> String {
    let ns = start.saturating_sub(recording_start).as_u64();
    format!("{}.{:06} s", ns / 1_000_000_000, ns / 1_000 % 1_000_000)
}

/// One unit for all lines of a budget, so that they can be compared and added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Micros,
    Millis,
}

impl Unit {
    const MICROS_BELOW: Nanos = Nanos::from_millis(10);

    fn of(gap: Nanos) -> Unit {
        if gap < Unit::MICROS_BELOW {
            Unit::Micros
        } else {
            Unit::Millis
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Unit::Micros => "US",
            Unit::Millis => "MS",
        }
    }

    /// With one digit after the point, `2,304.1`, or with three for milliseconds.
    fn text(self, time: Nanos) -> String {
        match self {
            Unit::Micros => {
                let tenths = (time.as_u64() + 50) / 100;
                format!("{}.{}", Count(tenths / 10), tenths % 10)
            }
            Unit::Millis => {
                let micros = (time.as_u64() + 500) / 1_000;
                format!("{}.{:03}", Count(micros / 1_000), micros % 1_000)
            }
        }
    }
}

/// Like the budget of a latency: every part in order of size, then their sum.
fn budget(lines: &[Line<'_>], gap: Nanos) -> Table {
    let unit = Unit::of(gap);
    let mut table = Table::new(&[
        Column::Number(unit.heading()),
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
            unit.text(line.total),
            Share(line.total.share_of(gap)).to_string(),
            line.cause.id().to_string(),
            format!("{}{times}", who_and_what(line.who, line.what)),
        ]);
    }
    if shown < lines.len() {
        let total: Nanos = lines[shown..].iter().map(|line| line.total).sum();
        table.row([
            unit.text(total),
            Share(total.share_of(gap)).to_string(),
            "others".to_string(),
            format!("{} smaller lines, all in --json", lines.len() - shown),
        ]);
    }
    let total: Nanos = lines.iter().map(|line| line.total).sum();
    table.row([
        unit.text(total),
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
    let matters =
        |line: &&Line<'_>| line.stack.is_some() && line.total.share_of(length(gap)) >= STACK_SHARE;
    let shown = lines.iter().find(matters);
    if let Some((line, of_line)) = shown.and_then(|line| Some((line, line.stack?))) {
        let label = format!("  stack of {}: ", line.cause.id());
        page.labelled(Paint::Plain, &label, &stack(of_line))?;
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
            (Some(_), None) => ("  launched by: ", String::new()),
            (Some(_), Some(ns)) => ("  launched by: ", started(ns, usual_lead)),
        };
        page.labelled(
            Paint::Plain,
            role,
            &format!("{}{lead}", name_of(dispatcher)),
        )?;
    }
    // Of a single thread that nobody woke the budget has said all.
    if gap.chain.len() > 1 || gap.chain.iter().any(|hop| hop.woken_by.is_some()) {
        page.line(Paint::Plain, "  wakeups, back to who was late:")?;
        page.table(4, &chain(&gap.chain))?;
    }
    Ok(())
}

/// The lead, in words: from the end of the launch call to the start of the operation.
pub(in crate::present) fn started(lead_ns: i64, usual: Option<Nanos>) -> String {
    let (lead, late) = (Nanos(lead_ns.unsigned_abs()), lead_ns < 0);
    let side = if late {
        "after the operation had started"
    } else {
        "before the operation started"
    };
    let usual = match (usual, late) {
        (None, _) => String::new(),
        (Some(usual), true) => format!(" (usually {usual} before)"),
        (Some(usual), false) => format!(" (usually {usual})"),
    };
    format!("; the call returned {lead} {side}{usual}")
}

/// The way into the kernel is the same for all waits.
fn is_entry(frame: &str) -> bool {
    ["do_syscall_64", "x64_sys_call", "ret_from_fork_asm"].contains(&frame)
        || ["entry_SYSCALL", "asm_", "el0", "invoke_syscall"]
            .iter()
            .any(|start| frame.starts_with(start))
}

/// What the program did where that is known: the kernel's part is in the budget. Else all there is.
pub(in crate::present) fn stack(stack: &Stack) -> String {
    if !stack.telling.is_empty() {
        return stack.telling.join(" < ");
    }
    let all: Vec<&str> = stack.frames.iter().map(|frame| or_dash(frame)).collect();
    let mut frames = all.clone();
    frames.retain(|frame| !is_entry(frame));
    if frames.is_empty() {
        frames = all;
    }
    let shown = &frames[..frames.len().min(FRAMES)];
    let more = if frames.len() > FRAMES { " < ..." } else { "" };
    format!("{}{more}", shown.join(" < "))
}

/// Parts with the same answer, added up: a thread preempted ten times is one line.
pub(in crate::present) struct Line<'a> {
    pub(in crate::present) cause: Cause,
    pub(in crate::present) who: Option<&'a ThreadRef>,
    pub(in crate::present) what: &'a str,
    pub(in crate::present) total: Nanos,
    pub(in crate::present) times: u64,
    /// Of the longest part that has one.
    pub(in crate::present) stack: Option<&'a Stack>,
    longest: Nanos,
}

/// Most time first; equal ones in order of time.
pub(in crate::present) fn merge(parts: &[Part]) -> Vec<Line<'_>> {
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
                stack: None,
                longest: Nanos::ZERO,
            });
        }
        let line = &mut lines[at];
        line.total += time;
        line.times += 1;
        if !part.stack.is_empty() && time >= line.longest {
            line.longest = time;
            line.stack = Some(&part.stack);
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
        table.row([
            name_of(&hop.who),
            or_dash(&hop.state).to_string(),
            hop.end.saturating_sub(hop.start).to_string(),
            woken_by(hop),
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

pub(in crate::present) fn woken_by(hop: &Hop) -> String {
    match &hop.woken_by {
        None => "-".to_string(),
        Some(Waker::Task(who)) => name_of(who),
        Some(Waker::Irq(name)) => format!("interrupt {name}"),
        Some(Waker::SoftIrq(name)) => format!("softirq {name}"),
        Some(Waker::Timer) => "timer".to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_has_one_unit_that_suits_the_gap() {
        let text = |gap, time| {
            let unit = Unit::of(Nanos(gap));
            format!("{} {}", unit.text(Nanos(time)), unit.heading())
        };
        assert_eq!(text(9_999_999, 9_876_543), "9,876.5 US");
        assert_eq!(text(10_000_000, 9_876_543), "9.877 MS");
        assert_eq!(text(5_358_271_600, 5_034_795_000), "5,034.795 MS");
    }

    #[test]
    fn the_lead_says_on_which_side_of_the_start_the_call_returned() {
        let usual = Some(Nanos(1_770));
        assert_eq!(
            started(6_900, usual),
            "; the call returned 6.90 us before the operation started (usually 1.77 us)"
        );
        assert_eq!(
            started(-9_060, usual),
            "; the call returned 9.06 us after the operation had started (usually 1.77 us before)"
        );
        assert_eq!(
            started(0, None),
            "; the call returned 0 ns before the operation started"
        );
    }

    #[test]
    fn the_way_into_the_kernel_is_not_shown() {
        let frames = |list: &[&str]| {
            stack(&Stack {
                frames: list.iter().map(|f| (*f).to_string()).collect(),
                telling: Vec::new(),
            })
        };
        assert_eq!(
            frames(&[
                "futex_wait",
                "__x64_sys_futex",
                "x64_sys_call",
                "do_syscall_64",
                "entry_SYSCALL_64_after_hwframe"
            ]),
            "futex_wait < __x64_sys_futex"
        );
        assert_eq!(
            frames(&["filemap_fault", "exc_page_fault", "asm_exc_page_fault"]),
            "filemap_fault < exc_page_fault"
        );
        assert_eq!(frames(&["do_syscall_64"]), "do_syscall_64");
        assert_eq!(
            frames(&["futex_wait", "do_syscall_64", "libc.so.6+0x10", "app+0x20"]),
            "futex_wait < libc.so.6+0x10 < app+0x20"
        );
    }

    #[test]
    fn of_a_stack_the_program_s_own_part_is_shown() {
        let list = |texts: &[&str]| texts.iter().map(|f| (*f).to_string()).collect();
        let text = stack(&Stack {
            frames: list(&[
                "futex_wait",
                "do_syscall_64",
                "take_gil",
                "f (a.py:1)",
                "g (a.py:2)",
            ]),
            telling: list(&["f (a.py:1)", "g (a.py:2)"]),
        });
        assert_eq!(text, "f (a.py:1) < g (a.py:2)");
    }
}
