//! `gdiag sched`: what the scheduler did, live or in a recording, summed up or event by event.
#![forbid(unsafe_code)]

mod live;
mod recorded;
mod stream;

use std::io::{self, Write};

use crate::analyse::sched::Summary;
use crate::cli::{SchedOptions, SchedSource, SchedView};
use crate::commands::to_output;
use crate::error::Error;
use crate::present::sched::{json, write_summary};
use crate::present::style::Style;

/// The result is the exit status.
pub fn run(options: &SchedOptions) -> anyhow::Result<u8> {
    match (&options.source, options.view) {
        (SchedSource::Recording { input, from, to }, SchedView::Summary { .. }) => {
            recorded::run(options, input, *from, *to)
        }
        (
            SchedSource::Live {
                target,
                command,
                duration,
                interval,
            },
            SchedView::Summary { .. },
        ) => live::run(
            options,
            &live::Watch {
                target,
                command,
                duration: *duration,
                interval: *interval,
            },
        ),
        (_, SchedView::Timehist { .. } | SchedView::Map) => stream::run(options),
    }
}

fn no_switches() -> Error {
    Error::NotRecorded {
        what: "switches",
        hint: "record the processes while they run, or the whole machine: gdiag record -a",
    }
}

fn nothing_there() -> Error {
    Error::NotRecorded {
        what: "thread that did anything where it was asked for",
        hint: "leave out -t and -C to see whom it has",
    }
}

/// In the form and to where it was asked for.
fn write(options: &SchedOptions, summary: &Summary) -> anyhow::Result<()> {
    to_output(options.output.as_deref(), |out| {
        render(out, options, summary)
    })
}

fn render(out: &mut dyn Write, options: &SchedOptions, summary: &Summary) -> io::Result<()> {
    if options.json {
        json::write(out, summary, options)
    } else {
        write_summary(out, summary, options, &Style::for_stdout(0))
    }
}
