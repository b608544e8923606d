//! System calls while they are made.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, Write as _};

use anyhow::Result;

use super::filter;
use super::output::Output;
use crate::analyse::syscalls::Summary;
use crate::cli::{SyscallsOptions, Target};
use crate::collect::{bpf, clock, process, syscalls};
use crate::commands::subject::{End, Subject};
use crate::error::{status, Error};
use crate::model::syscall::Table;
use crate::pipeline::captures::captures;
use crate::pipeline::syscalls::{Call, CallSession};
use crate::present::page::Page;
use crate::present::syscalls::{self as present, Lines, Show, Times};
use crate::units::{Count, Nanos};

/// How long between two looks, when there is no hurry.
const STEP: Nanos = Nanos::from_millis(100);

/// Least time between two looks, however urgent.
const URGENT_STEP: Nanos = Nanos::from_millis(5);

/// Lines are written out in pieces of so many bytes or a little more.
const ENOUGH: usize = 64 << 10;

pub(super) struct Run<'a> {
    pub(super) target: &'a Target,
    pub(super) command: &'a [OsString],
    pub(super) duration: Option<Nanos>,
    pub(super) interval: Option<Nanos>,
}

pub(super) fn run(options: &SyscallsOptions, run: &Run<'_>) -> Result<u8> {
    let table = Table::own();
    let wanted =
        filter::wanted(&options.filter, table, syscalls::NUMBERS).map_err(Error::NoSuchCall)?;
    let target = target(options, run.target)?;
    let mut subject = Subject::prepare(&target, run.command, false, Vec::new)?;
    let targets = bpf::Plan {
        all: target == Target::All,
        targets: subject.targets(),
        cgroups: subject.cgroups().to_vec(),
        strangers: subject.strangers(),
        scheduling: false,
        syscalls: None,
        wait_threshold: Nanos::MAX,
        stacks: None,
        inject: false,
        libbpf_messages: options.verbose > 1,
    };
    let calls = syscalls::Plan {
        stream: options.stream,
        captures: options.stream.then(|| captures(table, syscalls::NUMBERS)),
        summary: options.summary,
        failures: options.summary && options.errno_summary,
        wanted,
        least: options.least.unwrap_or(Nanos::ZERO),
        only_failed: options.failed,
        tids: options.tids.iter().map(|tid| tid.0).collect(),
        from_exec: target == Target::Command,
    };
    if options.verbose > 0 {
        let text = format!("gdiag: watching the system calls of {}\n", subject.text());
        let _ = io::stderr().write_all(text.as_bytes());
    }
    // What fails before the command runs is no matter of its: it is let go.
    let output = Output::create(options.output.as_deref())?;
    let session = CallSession::start(&targets, &calls)?;
    if !options.quiet {
        for probe in session.missing_probes() {
            let text = format!(
                "gdiag: warning: this kernel has no {probe}: what it would show is left out\n"
            );
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
    let printer = Printer::new(options, output, session.started(), table);
    subject.go(run.duration)?;
    let result = watch(options, run, &mut subject, session, printer);
    subject.conclude(result)
}

/// Threads alone name their processes.
fn target(options: &SyscallsOptions, target: &Target) -> Result<Target> {
    if options.tids.is_empty() || *target != Target::All {
        return Ok(target.clone());
    }
    let mut pids = Vec::new();
    for tid in &options.tids {
        let Some(pid) = process::process_of_thread(tid.0) else {
            return Err(Error::NoSuchThread(*tid).into());
        };
        let pid = crate::event::Pid(pid);
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    Ok(Target::Pids(pids))
}

fn watch(
    options: &SyscallsOptions,
    run: &Run<'_>,
    subject: &mut Subject,
    mut session: CallSession,
    mut printer: Printer<'_>,
) -> Result<u8> {
    let mut next_step = clock::monotonic() + STEP;
    let mut last_step = Nanos::ZERO;
    let mut next_sums = run.interval.map(|interval| clock::monotonic() + interval);
    let end = loop {
        let rested = clock::monotonic() >= last_step + URGENT_STEP;
        let until = next_sums.map_or(next_step, |at| at.min(next_step));
        let woken = if rested {
            subject.wait(Some(session.epoll_fd()), until)?
        } else {
            subject.wait(None, last_step + URGENT_STEP)?
        };
        let now = clock::monotonic();
        if now >= next_step || woken.ready {
            let ended = session.step()?;
            printer.calls(&ended)?;
            printer.finish()?;
            last_step = clock::monotonic();
            next_step = last_step + STEP;
        }
        let due = next_sums.is_some_and(|at| now >= at);
        if (woken.report || due) && options.summary {
            let ended = session.look()?;
            printer.calls(&ended)?;
            printer.part(&session)?;
            next_sums = run.interval.map(|interval| clock::monotonic() + interval);
        }
        if woken.end.is_some() || printer.is_full() {
            break woken.end;
        }
    };
    let runs_on = subject.is_command() && end != Some(End::CommandEnded);
    if runs_on && !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "gdiag: the watch has ended, the command runs on"
        );
    }
    finish(options, session, printer)
}

fn finish(
    options: &SyscallsOptions,
    mut session: CallSession,
    mut printer: Printer<'_>,
) -> Result<u8> {
    let last = session.finish()?;
    printer.calls(&last)?;
    let lasted = clock::monotonic().saturating_sub(session.started());
    let mut count = printer.printed;
    if options.summary {
        let sums = session.sums();
        count = sums.count();
        printer.summary(&sums, Some(session.seen.lost))?;
    }
    printer.finish()?;
    let malformed = session.malformed();
    if malformed > 0 && !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "gdiag: warning: {} records could not be understood and were left out",
            Count(malformed)
        );
    }
    let seen = session.seen;
    if !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "[ gdiag syscalls: {lasted}, {} calls, lost {} ]",
            Count(count),
            Count(seen.lost)
        );
    }
    if seen.target_threads == 0 {
        return Err(Error::NothingCaptured {
            what: "no thread of the target was seen".to_string(),
        }
        .into());
    }
    if seen.lost > 0 && options.strict {
        return Err(Error::EventsLost { lost: seen.lost }.into());
    }
    Ok(status::DONE)
}

/// Writes calls and sums as they were asked for.
pub(super) struct Printer<'a> {
    options: &'a SyscallsOptions,
    output: Output,
    lines: Lines,
    /// Lines that are not written yet.
    text: Vec<u8>,
    printed: u64,
    /// The sums that were printed last.
    before: Option<Summary>,
}

impl<'a> Printer<'a> {
    pub(super) fn new(
        options: &'a SyscallsOptions,
        output: Output,
        start: Nanos,
        table: Table,
    ) -> Self {
        Printer {
            options,
            output,
            lines: Lines {
                times: if options.monotonic_times {
                    Times::Monotonic
                } else {
                    Times::Since(start)
                },
                start,
                table,
            },
            text: Vec::new(),
            printed: 0,
            before: None,
        }
    }

    /// No more lines are wanted.
    pub(super) fn is_full(&self) -> bool {
        let most = self.options.max_events;
        most.is_some_and(|most| self.printed >= most)
    }

    pub(super) fn calls(&mut self, calls: &[Call]) -> Result<()> {
        if !self.options.stream {
            return Ok(());
        }
        for call in calls {
            if self.is_full() {
                break;
            }
            if !self.is_wanted(call) {
                continue;
            }
            if self.options.json {
                present::write_call(&mut self.text, call, self.lines.table)?;
            } else {
                self.lines.write(&mut self.text, call)?;
            }
            self.printed += 1;
            if self.text.len() >= ENOUGH {
                self.write_out()?;
            }
        }
        self.write_out()
    }

    fn write_out(&mut self) -> Result<()> {
        let text = std::mem::take(&mut self.text);
        self.output.write(|out| out.write_all(&text))?;
        self.text = text;
        self.text.clear();
        Ok(())
    }

    /// The kernel cannot tell of calls whose begin or end it did not see.
    fn is_wanted(&self, call: &Call) -> bool {
        let begun = call.start.unwrap_or(self.lines.start);
        let took = call.end.saturating_sub(begun);
        took >= self.options.least.unwrap_or(Nanos::ZERO)
            && !(self.options.failed && call.result.is_none())
    }

    fn show(&self) -> Show {
        Show {
            total: self.options.total,
            histograms: self.options.hist,
            errnos: self.options.errno_summary,
            top: self.options.top,
        }
    }

    /// What has come since the sums were printed last.
    fn part(&mut self, session: &CallSession) -> Result<()> {
        let now = session.sums();
        let part = match &self.before {
            Some(before) => now.since(before),
            None => now.clone(),
        };
        self.before = Some(now);
        self.print(&part, Some(session.seen.lost))?;
        if !self.options.json {
            self.output.write(|out| out.write_all(b"\n"))?;
        }
        self.output.flush()
    }

    /// The sums of all.
    pub(super) fn summary(&mut self, sums: &Summary, lost: Option<u64>) -> Result<()> {
        if self.options.stream && !self.options.json {
            self.output.write(|out| out.write_all(b"\n"))?;
        }
        self.print(sums, lost)
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        self.output.flush()
    }

    fn print(&mut self, summary: &Summary, lost: Option<u64>) -> Result<()> {
        let (show, json, style) = (self.show(), self.options.json, self.output.style());
        self.output.write(|mut out| {
            if json {
                return present::write_summary(&mut out, summary, &show, lost);
            }
            let mut page = Page::new(&mut out, style);
            present::write(&mut page, summary, &show)
        })
    }
}
