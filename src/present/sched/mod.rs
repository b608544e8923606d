//! The text of `gdiag sched`: tables as those who know `perf sched` expect them.
#![forbid(unsafe_code)]

pub mod json;

use std::io::{self, Write};

use crate::analyse::sched::Summary;
use crate::cli::SchedOptions;
use crate::present::style::Style;

/// Writes the tables that `options` ask for.
pub fn write_summary(
    out: &mut impl Write,
    summary: &Summary,
    _options: &SchedOptions,
    _style: &Style,
) -> io::Result<()> {
    writeln!(out, "{} threads", summary.threads.len())
}
