//! The sums as text: a block for each thread, as perf trace has it, or one for all.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use super::errno;
use crate::analyse::syscalls::{Call, Measure, Summary, Thread};
use crate::present::page::{Page, Paint};
use crate::present::table::{Column, Table};
use crate::units::{Count, Nanos, Share};

/// What to show of the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Show {
    /// All threads as one.
    pub total: bool,
    pub histograms: bool,
    pub errnos: bool,
    /// Threads; `None`: every one.
    pub top: Option<usize>,
}

/// Columns of the longest bar of a histogram.
const BAR: u64 = 40;

pub fn write<W: Write>(page: &mut Page<'_, W>, summary: &Summary, show: &Show) -> io::Result<()> {
    let all = summary.count();
    let what = match summary.measure {
        Measure::Calls => "system calls",
        Measure::Waits => "system calls that waited",
    };
    let (made, waiting): (Vec<&Thread>, Vec<&Thread>) = summary
        .threads
        .iter()
        .partition(|t| t.calls.iter().any(|c| c.times.count + c.begun_before > 0));
    let head = format!(
        "{}: {} {what} of {}",
        summary.end.saturating_sub(summary.start),
        Count(all),
        plural(made.len() as u64, "thread")
    );
    page.line(Paint::Heading, &head)?;
    for note in &summary.notes {
        page.labelled(Paint::Warning, "note: ", note)?;
    }
    if show.total {
        page.blank()?;
        return block(page, &summary.total(), summary, show);
    }
    let shown = show.top.unwrap_or(usize::MAX);
    for thread in made.iter().take(shown) {
        page.blank()?;
        page.line(Paint::Heading, &title(thread, all))?;
        page.blank()?;
        block(page, &thread.calls, summary, show)?;
    }
    let hidden = made.iter().skip(shown);
    if hidden.len() > 0 {
        page.blank()?;
        let text = format!(
            "{} more with {} calls: --top all shows them, --total adds all up",
            plural(hidden.len() as u64, "thread"),
            Count(hidden.map(|t| t.count()).sum())
        );
        page.line(Paint::Dim, &text)?;
    }
    if !waiting.is_empty() {
        page.blank()?;
        all_the_time(page, &waiting, shown)?;
    }
    Ok(())
}

/// Threads that were in one call all the time.
fn all_the_time<W: Write>(
    page: &mut Page<'_, W>,
    threads: &[&Thread],
    shown: usize,
) -> io::Result<()> {
    let head = format!(
        "{} ended no call, and {} in one",
        plural(threads.len() as u64, "thread"),
        if threads.len() == 1 { "is" } else { "are" }
    );
    page.line(Paint::Heading, &head)?;
    page.blank()?;
    let mut table = Table::new(&[
        Column::Text("THREAD"),
        Column::Word("CALL"),
        Column::Word("FOR"),
    ]);
    for thread in threads.iter().take(shown) {
        for call in &thread.calls {
            for open in &call.open {
                let least = if open.since.is_none() { ">= " } else { "" };
                table.row([
                    who(thread),
                    call.name.clone(),
                    format!("{least}{}", open.lasts),
                ]);
            }
        }
    }
    page.table(2, &table)?;
    let hidden = threads.len().saturating_sub(shown);
    if hidden > 0 {
        page.line(
            Paint::Dim,
            &format!("  {hidden} more: --top all shows them"),
        )?;
    }
    Ok(())
}

fn who(thread: &Thread) -> String {
    match thread.id {
        Some((_, tid)) => format!("{} ({tid})", thread.comm),
        None => thread.comm.clone(),
    }
}

fn title(thread: &Thread, all: u64) -> String {
    let count = thread.count();
    #[allow(clippy::cast_precision_loss)]
    let share = Share(count as f64 / all.max(1) as f64);
    let role = if thread.dispatcher {
        ", starts work on the GPU"
    } else {
        ""
    };
    format!("{}, {}, {share}{role}", who(thread), plural(count, "call"))
}

fn block<W: Write>(
    page: &mut Page<'_, W>,
    calls: &[Call],
    summary: &Summary,
    show: &Show,
) -> io::Result<()> {
    table(page, calls, summary)?;
    for call in calls {
        if let Some(text) = unmeasured(call) {
            page.line(Paint::Dim, &format!("  {}: {text}", call.name))?;
        }
    }
    if show.errnos && calls.iter().any(|call| !call.by_error.is_empty()) {
        page.blank()?;
        errors(page, calls)?;
    }
    if show.histograms {
        for call in calls.iter().filter(|call| call.times.count > 0) {
            page.blank()?;
            histogram(page, call)?;
        }
    }
    Ok(())
}

fn table<W: Write>(page: &mut Page<'_, W>, calls: &[Call], summary: &Summary) -> io::Result<()> {
    let number = Column::Number;
    let first = [
        Column::Word("CALL"),
        number("CALLS"),
        number("ERRORS"),
        number("TOTAL"),
        number("MIN"),
        number("AVG"),
        number("P50"),
        number("P99"),
        number("MAX"),
        number("STDDEV"),
    ];
    let idle = [number("GPU IDLE"), number("BY DISPATCHERS")];
    let with_gpu = [&first[..], &idle].concat();
    let mut table = Table::new(if summary.gpu { &with_gpu } else { &first });
    let or_nothing = |time: Option<Nanos>| time.map_or("-".to_string(), |t| t.to_string());
    for call in calls {
        let times = &call.times;
        let some = |time| or_nothing((times.count > 0).then_some(time));
        let errors = match summary.measure {
            Measure::Calls => Count(call.errors).to_string(),
            Measure::Waits => "-".to_string(),
        };
        let row = [
            call.name.clone(),
            Count(times.count).to_string(),
            errors,
            some(times.total),
            times.shortest_text(),
            or_nothing(times.average()),
            or_nothing(times.percentile(0.5)),
            or_nothing(times.percentile(0.99)),
            times.longest_text(),
            or_nothing(call.deviation()),
        ];
        if summary.gpu {
            let [a, b, c, d, e, f, g, h, i, j] = row;
            let overlap = or_nothing(call.idle_overlap);
            let own = or_nothing(call.dispatcher_idle);
            table.row([a, b, c, d, e, f, g, h, i, j, overlap, own]);
        } else {
            table.row(row);
        }
    }
    page.table(2, &table)
}

/// What the table has no place for: calls of which the length is not known.
fn unmeasured(call: &Call) -> Option<String> {
    let mut parts = Vec::new();
    if call.begun_before > 0 {
        parts.push(format!(
            "{} began before and {} not in the table",
            plural(call.begun_before, "call"),
            if call.begun_before == 1 { "is" } else { "are" }
        ));
    }
    let longest = call.open.iter().max_by_key(|open| open.lasts);
    if let Some(longest) = longest {
        let least = if longest.since.is_none() {
            "at least "
        } else {
            ""
        };
        parts.push(match call.open.len() {
            1 => format!("goes on, for {least}{}", longest.lasts),
            n => format!("{n} go on, the longest for {least}{}", longest.lasts),
        });
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn errors<W: Write>(page: &mut Page<'_, W>, calls: &[Call]) -> io::Result<()> {
    let mut table = Table::new(&[
        Column::Word("CALL"),
        Column::Number("ERRORS"),
        Column::Word("ERRNO"),
        Column::Text("MEANING"),
    ]);
    for call in calls {
        let mut rows: Vec<_> = call.by_error.iter().collect();
        rows.sort_by_key(|&(&number, &count)| (std::cmp::Reverse(count), number));
        for (&number, &count) in rows {
            let (name, meaning) = errno(number);
            table.row([
                call.name.clone(),
                Count(count).to_string(),
                name.into_owned(),
                meaning.to_string(),
            ]);
        }
    }
    page.table(2, &table)
}

fn histogram<W: Write>(page: &mut Page<'_, W>, call: &Call) -> io::Result<()> {
    page.line(Paint::Plain, &format!("  {}", call.name))?;
    let rows = call.times.octaves();
    let most = rows.iter().map(|row| row.2).max().unwrap_or(1).max(1);
    for (from, to, count) in rows {
        // What is there at all has a bar.
        let bar = (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(most));
        let bar = "#".repeat(usize::try_from(bar).unwrap_or(0));
        let line = format!(
            "  {:>9} to {:>9} {:>12} |{bar}",
            from.to_string(),
            to.to_string(),
            Count(count).to_string()
        );
        page.line(Paint::Plain, &line)?;
    }
    Ok(())
}

fn plural(n: u64, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {what}{s}", Count(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::syscalls::Open;
    use crate::event::{Pid, Tid};
    use crate::present::style::Style;

    fn call(name: &str, times: &[u64], error: Option<u16>) -> Call {
        let mut call = Call::new(name.to_string());
        times.iter().for_each(|&t| call.add(Nanos(t), error));
        call
    }

    fn thread(tid: u32, comm: &str, calls: Vec<Call>) -> Thread {
        Thread {
            id: Some((Pid(1), Tid(tid))),
            comm: comm.to_string(),
            dispatcher: false,
            calls,
        }
    }

    fn printed(threads: Vec<Thread>, gpu: bool, show: &Show) -> String {
        let mut summary = Summary {
            measure: Measure::Calls,
            start: Nanos(0),
            end: Nanos::from_secs(10),
            threads,
            gpu,
            notes: Vec::new(),
        };
        summary.sort();
        let mut out = Vec::new();
        let style = Style {
            width: 160,
            color: false,
            gaps_in_full: 0,
        };
        write(&mut Page::new(&mut out, style), &summary, show).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn sample() -> Vec<Thread> {
        let mut poll = call("poll", &[], None);
        poll.open.push(Open {
            since: None,
            lasts: Nanos::from_secs(10),
        });
        let mut futex = call("futex", &[1_000_000, 3_000_000], None);
        futex.begun_before = 1;
        vec![
            thread(7, "python3", vec![futex, call("openat", &[2_000], Some(2))]),
            thread(9, "idle\x1b[2J", vec![poll]),
        ]
    }

    #[test]
    fn each_thread_has_a_block_and_who_only_waits_a_line() {
        let text = printed(sample(), false, &Show::default());
        assert_eq!(
            text,
            "10.0 s: 3 system calls of 1 thread

python3 (7), 3 calls, 100.0 %

  CALL    CALLS  ERRORS    TOTAL      MIN      AVG      P50      P99      MAX   STDDEV
  futex       2       0  4.00 ms  1.00 ms  2.00 ms  1.02 ms  3.00 ms  3.00 ms  1.41 ms
  openat      1       1  2.00 us  2.00 us  2.00 us  2.00 us  2.00 us  2.00 us        -
  futex: 1 call began before and is not in the table

1 thread ended no call, and is in one

  THREAD           CALL  FOR
  idle\\x1b[2J (9)  poll  >= 10.0 s
"
        );
    }

    #[test]
    fn errors_histograms_and_totals_are_there_when_asked_for() {
        let show = Show {
            total: true,
            histograms: true,
            errnos: true,
            top: None,
        };
        let text = printed(sample(), false, &show);
        for part in [
            "ENOENT  No such file or directory",
            "|####",
            "poll: goes on, for at least 10.0 s",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("python3"), "{text}");
    }

    #[test]
    fn with_a_gpu_the_idle_time_is_told_where_it_is_known() {
        let mut threads = sample();
        threads[0].calls[0].idle_overlap = Some(Nanos::from_millis(2));
        let text = printed(threads, true, &Show::default());
        assert!(text.contains("GPU IDLE"), "{text}");
        assert!(text.contains("2.00 ms               -"), "{text}");
    }

    #[test]
    fn what_is_not_shown_is_said() {
        let threads = (0..5).map(|i| thread(i, "a", vec![call("read", &[1], None)]));
        let show = Show {
            top: Some(2),
            ..Show::default()
        };
        let text = printed(threads.collect(), false, &show);
        assert!(text.contains("3 threads more with 3 calls"), "{text}");
    }
}
