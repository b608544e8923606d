//! Windows as text or JSON, one after another.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::shared::{Shared, State, HISTORY};
use crate::analyse::live::{Slice, Window, SLICE};
use crate::cli::{SchedBy, SchedOptions, SchedSort, SchedSource, SchedView, Target, TopOptions};
use crate::error::Error;
use crate::present::style::Style;
use crate::present::top::model::Status;
use crate::present::{json, report, sched};
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::units::{Count, Nanos};

/// Gaps that the text shows with all their parts.
const GAPS_IN_FULL: usize = 2;

/// So much is written at once: whoever waits for the end sees that somebody reads.
const PIECE: usize = 4096;

/// How long to wait for something new before looking whether it is over.
const PATIENCE: Duration = Duration::from_millis(200);

/// Prints each window when it is over.
pub(super) struct Printer<'a> {
    options: &'a TopOptions,
    /// When the next one is over; `None`: nothing has come yet.
    next: Option<Nanos>,
    printed: u64,
}

impl<'a> Printer<'a> {
    pub(super) fn new(options: &'a TopOptions) -> Printer<'a> {
        Printer {
            options,
            next: None,
            printed: 0,
        }
    }

    /// Prints until it is over or enough, or nobody reads any more.
    pub(super) fn run(&mut self, shared: &Shared) -> Result<()> {
        let mut version = 0;
        loop {
            let state = shared.wait(version, PATIENCE);
            version = state.version;
            self.print(&state, &shared.printed)?;
            if self.is_enough() || state.over {
                return Ok(());
            }
        }
    }

    /// All that was asked for has been printed.
    pub(super) fn is_enough(&self) -> bool {
        let most = self.options.batch.and_then(|batch| batch.windows);
        most.is_some_and(|most| self.printed >= most)
    }

    /// Prints the windows that are over and were not printed.
    pub(super) fn print(&mut self, state: &State, printed: &AtomicU64) -> Result<()> {
        let Some(first) = state.slices.front() else {
            return Ok(());
        };
        let window = self.options.window;
        let interval = self.options.interval.unwrap_or(window);
        let newest = state.slices.back().map_or(Nanos::ZERO, |s| s.to);
        while !self.is_enough() {
            let to = *self.next.get_or_insert(first.from.saturating_add(window));
            // A leap in time has windows without end: they are left out.
            let missing = first.from.saturating_sub(to);
            if missing > HISTORY {
                let whole = missing.0 / interval.0.max(1);
                self.next = Some(to.saturating_add(Nanos(whole * interval.0)));
                continue;
            }
            // The last one may be shorter.
            let began = newest > to.saturating_sub(interval);
            if newest < to && !(state.over && began) {
                break;
            }
            let slices = inside(&state.slices, to.saturating_sub(window), to);
            let mut window = Window::of(&slices);
            if slices.is_empty() {
                // Of a time that was left out there is nothing to tell, but that.
                (window.from, window.to) = (to.saturating_sub(interval), to);
                (window.sched.start, window.sched.end) = (window.from, window.to);
            }
            self.write(&window, state, printed)?;
            self.printed += 1;
            self.next = Some(to.saturating_add(interval));
            if to == Nanos::MAX {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, window: &Window, state: &State, printed: &AtomicU64) -> Result<()> {
        let simulated = state.simulated;
        let meta = Meta {
            start_mono_ns: window.from.0,
            start_unix_ns: match state.meta.start_unix_ns {
                0 => 0,
                unix => {
                    (unix.saturating_add(window.from.0)).saturating_sub(state.meta.start_mono_ns)
                }
            },
            ..state.meta.clone()
        };
        let summary = Summary {
            end_mono_ns: window.to.0,
            gpu_source: match (window.report.gpus.is_empty(), simulated) {
                (true, _) if !window.report.host_sides.is_empty() => GpuSource::Uprobe,
                (true, _) => GpuSource::None,
                (false, true) => GpuSource::Simulated,
                (false, false) => GpuSource::Cupti,
            },
            events: window.events,
            warnings: warnings(&state.status),
            ..Summary::default()
        };
        let mut out = Vec::new();
        if self.options.json {
            let report = &window.report;
            json::write_report_line(&mut out, report, &meta, Some(&summary), &state.facts)
        } else if window.report.gpus.is_empty() && window.report.host_sides.is_empty() {
            sched::write_summary(&mut out, &window.sched, &table(), &Style::for_stdout(0))
        } else {
            let style = Style::for_stdout(GAPS_IN_FULL);
            report::write_report(&mut out, &window.report, &meta, Some(&summary), &style)
        }
        .context("cannot write the report")?;
        let mut stdout = io::stdout().lock();
        for part in out.chunks(PIECE) {
            printed.fetch_add(1, Ordering::AcqRel);
            match stdout.write_all(part).and_then(|()| stdout.flush()) {
                Ok(()) => printed.fetch_add(1, Ordering::AcqRel),
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(Error::OutputClosed.into())
                }
                Err(e) => return Err(e).context("cannot write to stdout"),
            };
        }
        Ok(())
    }
}

/// A slice belongs to the window in which it ends: windows that follow each other have each slice once.
fn inside(slices: &VecDeque<Arc<Slice>>, from: Nanos, to: Nanos) -> Vec<Arc<Slice>> {
    let slices = slices.iter().filter(|s| from < s.to && s.to <= to);
    slices.cloned().collect()
}

/// What a screen says in its header, too.
fn warnings(status: &Status) -> Vec<String> {
    let mut warnings = status.warnings.clone();
    if status.skipped > 0 {
        warnings.push(format!(
            "{} slices of {SLICE} were not analysed: gdiag could not keep up",
            Count(status.skipped)
        ));
    }
    if status.late > 0 {
        warnings.push(format!(
            "{} GPU records came too late to be in any window",
            Count(status.late)
        ));
    }
    if let Some(behind) = status.behind {
        warnings.push(format!("the analysis is {behind} behind"));
    }
    warnings
}

/// What `gdiag sched` shows unless asked for something else.
fn table() -> SchedOptions {
    SchedOptions {
        source: SchedSource::Live {
            target: Target::All,
            command: Vec::new(),
            duration: None,
            interval: None,
        },
        tids: Vec::new(),
        cpus: None,
        view: SchedView::Summary { hist: false },
        by: SchedBy::Thread,
        sort: SchedSort::Wait,
        top: Some(20),
        json: false,
        output: None,
        strict: false,
        quiet: false,
        verbose: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::sched::Summary as Sched;

    fn slice(from: u64, to: u64) -> Arc<Slice> {
        let (start, end) = (Nanos::from_millis(from), Nanos::from_millis(to));
        Arc::new(Slice::of_machine(
            Sched {
                start,
                end,
                ..Sched::default()
            },
            None,
        ))
    }

    #[test]
    fn windows_that_follow_each_other_have_each_slice_once() {
        let mut slices: VecDeque<_> = (0..20).map(|n| slice(n * 500, n * 500 + 500)).collect();
        // Another source, on another grid, and a last one that is shorter.
        slices.extend((0..9).map(|n| slice(10_130 + n * 500, 10_630 + n * 500)));
        slices.push_back(slice(14_630, 14_700));
        let mut seen = Vec::new();
        let width = Nanos::from_millis(1_300);
        for n in 0..20 {
            let from = Nanos(width.0 * n);
            seen.extend(inside(&slices, from, from + width));
        }
        let times = |slices: &mut dyn Iterator<Item = &Arc<Slice>>| -> Vec<_> {
            slices.map(|s| (s.from, s.to)).collect()
        };
        assert_eq!(times(&mut seen.iter()), times(&mut slices.iter()));
    }

    #[test]
    fn what_was_left_out_is_told_beside_the_numbers() {
        let status = Status {
            skipped: 3,
            late: 7,
            behind: Some(Nanos::from_secs(4)),
            warnings: vec!["first".to_string()],
            ..Status::default()
        };
        let warnings = warnings(&status);
        assert_eq!(warnings.len(), 4);
        assert!(warnings[1].contains('3') && warnings[2].contains('7'));
        assert!(warnings[3].contains('4'));
        assert_eq!(super::warnings(&Status::default()), Vec::<String>::new());
    }
}
