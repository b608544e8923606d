//! `gdiag.sched/1`.

use std::io::{self, Write};

use crate::analyse::sched::Summary;
use crate::cli::SchedOptions;

/// `gdiag.sched/1`.
pub const SCHED_SCHEMA: &str = "gdiag.sched/1";

/// Writes the document as one line where `-I` asks for many, and a newline.
pub fn write(out: &mut dyn Write, summary: &Summary, _options: &SchedOptions) -> io::Result<()> {
    writeln!(
        out,
        "{{\"schema\":\"{SCHED_SCHEMA}\",\"threads\":{}}}",
        summary.threads.len()
    )
}
