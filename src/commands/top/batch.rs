//! Windows as text or JSON, one after another.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::shared::{Shared, State};
use crate::analyse::live::{Slice, Window};
use crate::cli::{SchedBy, SchedOptions, SchedSort, SchedSource, SchedView, Target, TopOptions};
use crate::error::Error;
use crate::present::style::Style;
use crate::present::{json, report, sched};
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::units::Nanos;

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
            let to = *self.next.get_or_insert(first.from + window);
            // The last one may be shorter.
            let began = newest > to.saturating_sub(interval);
            if newest < to && !(state.over && began) {
                break;
            }
            let from = to.saturating_sub(window);
            let inside = |s: &&Arc<Slice>| s.from >= from && s.to <= to;
            let slices: Vec<Arc<Slice>> = state.slices.iter().filter(inside).cloned().collect();
            if !slices.is_empty() {
                self.write(&Window::of(&slices), state, printed)?;
            }
            self.printed += 1;
            self.next = Some(to + interval);
        }
        Ok(())
    }

    fn write(&self, window: &Window, state: &State, printed: &AtomicU64) -> Result<()> {
        let simulated = state.simulated;
        let meta = Meta {
            start_mono_ns: window.from.0,
            start_unix_ns: match state.meta.start_unix_ns {
                0 => 0,
                unix => (unix + window.from.0).saturating_sub(state.meta.start_mono_ns),
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
            warnings: state.status.warnings.clone(),
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
            match stdout.write_all(part).and_then(|()| stdout.flush()) {
                Ok(()) => printed.fetch_add(part.len() as u64, Ordering::AcqRel),
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(Error::OutputClosed.into())
                }
                Err(e) => return Err(e).context("cannot write to stdout"),
            };
        }
        Ok(())
    }
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
