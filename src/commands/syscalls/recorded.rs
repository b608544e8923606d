//! System calls of a recording.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::Result;

use super::filter;
use super::live::Printer;
use super::output::Output;
use crate::analyse::syscalls::recorded::{self, Made, Scope};
use crate::analyse::syscalls::Measure;
use crate::cli::SyscallsOptions;
use crate::collect::syscalls::NUMBERS;
use crate::commands::loaded::{load, Loaded};
use crate::commands::warn;
use crate::decode::syscalls::Number;
use crate::error::{status, Error};
use crate::model::Timeline;
use crate::pipeline::syscalls::Call;
use crate::units::Nanos;

pub(super) fn run(
    options: &SyscallsOptions,
    input: &Path,
    (from, to): (Option<Nanos>, Option<Nanos>),
) -> Result<u8> {
    let Loaded {
        timeline,
        mut warnings,
        whole,
    } = load(input)?;
    let t = &timeline;
    let missing = if whole { Vec::new() } else { warnings.clone() };
    let wanted =
        filter::wanted(&options.filter, t.syscalls(), NUMBERS).map_err(Error::NoSuchCall)?;
    let at = |time: Nanos| Nanos(t.start().0.saturating_add(time.0)).min(t.end());
    let scope = Scope {
        from: from.map_or(t.start(), at),
        to: to.map_or(Nanos(t.end().0.saturating_add(1)), at),
        tids: &options.tids,
        wanted: &wanted,
        least: options.least.unwrap_or(Nanos::ZERO),
        only_failed: options.failed,
        joins: false,
    };
    if recorded::measure(t) == Measure::Waits && !options.summary {
        warnings.push(
            "system calls were not recorded (gdiag record --syscalls does): each line is a wait in one, with its time off the CPU"
                .to_string(),
        );
    }
    for warning in &warnings {
        warn(warning);
    }
    let output = Output::create(options.output.as_deref())?;
    let mut printer = Printer::new(options, output, t.start(), t.syscalls());
    let lost = t.lost().bpf;
    let mut seen = false;
    if options.stream {
        let mut all: Vec<Made> = Vec::new();
        recorded::each(t, &scope, |made| all.push(made));
        all.sort_by_key(|made| made.end);
        seen |= !all.is_empty();
        for made in &all {
            if printer.is_full() {
                break;
            }
            printer.calls(&[call(t, made)])?;
        }
    }
    if options.summary {
        let mut summary = recorded::summary(t, &scope);
        summary.end = summary.end.min(t.end());
        seen |= !summary.threads.is_empty();
        summary.notes.splice(0..0, missing);
        // Of one that was cut or damaged nobody knows what else was in it.
        printer.summary(&summary, whole.then_some(lost))?;
    }
    printer.finish()?;
    if !whole {
        return Ok(status::FAILED);
    }
    if lost > 0 && options.strict {
        return Err(Error::EventsLost { lost }.into());
    }
    let is_narrowed = !options.tids.is_empty()
        || !options.filter.is_empty()
        || options.failed
        || options.least.is_some()
        || from.is_some()
        || to.is_some();
    if !seen && !is_narrowed {
        return Err(Error::NotRecorded {
            what: "system calls, nor waits in any",
            hint: "record them with `gdiag record --syscalls`",
        }
        .into());
    }
    Ok(status::DONE)
}

fn call(t: &Timeline, made: &Made) -> Call {
    let who = t.who(made.thread, made.start);
    Call {
        pid: t.pid(who),
        tid: t.thread(made.thread).tid,
        comm: t.comm(who).into(),
        number: Number::Native(made.number),
        start: Some(made.start),
        end: made.end,
        result: made.result,
        goes_on: false,
        args: None,
    }
}
