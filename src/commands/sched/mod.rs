//! `gdiag sched`: what the scheduler did, live or in a recording, summed up or event by event.
#![forbid(unsafe_code)]

mod recorded;
mod stream;

use crate::analyse::sched::Summary;
use crate::cli::{SchedOptions, SchedSource, SchedView};
use crate::commands::to_output;
use crate::present::sched::{json, write_summary};
use crate::present::style::Style;

/// The result is the exit status.
pub fn run(options: &SchedOptions) -> anyhow::Result<u8> {
    match (&options.source, options.view) {
        (SchedSource::Recording { input, from, to }, SchedView::Summary { .. }) => {
            recorded::run(options, input, *from, *to)
        }
        (SchedSource::Live { .. }, SchedView::Summary { .. }) => {
            anyhow::bail!("under construction")
        }
        (_, SchedView::Timehist { .. } | SchedView::Map) => stream::run(options),
    }
}

/// In the form and to where it was asked for.
fn write(options: &SchedOptions, summary: &Summary) -> anyhow::Result<()> {
    to_output(options.output.as_deref(), |out| {
        if options.json {
            json::write(out, summary, options)
        } else {
            write_summary(out, summary, options, &Style::for_stdout(0))
        }
    })
}
