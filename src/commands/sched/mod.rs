//! `gdiag sched`: what the scheduler did, live or in a recording, summed up or event by event.
#![forbid(unsafe_code)]

mod recorded;
mod stream;

use crate::cli::{SchedOptions, SchedSource, SchedView};

/// The result is the exit status.
pub fn run(options: &SchedOptions) -> anyhow::Result<u8> {
    match (&options.source, options.view) {
        (SchedSource::Recording { .. }, SchedView::Summary { .. }) => recorded::run(options),
        (SchedSource::Live { .. }, SchedView::Summary { .. }) => {
            anyhow::bail!("under construction")
        }
        (_, SchedView::Timehist { .. } | SchedView::Map) => stream::run(options),
    }
}
