//! One function per subcommand: they wire the steps of the pipeline together.
#![forbid(unsafe_code)]

pub mod record;
pub mod report;
pub mod shim;

use std::io::{self, BufWriter, Write};

use anyhow::Context;

use crate::cli::Action;
use crate::error::Error;

/// Does what was asked; the result is the exit status.
pub fn run(action: &Action) -> anyhow::Result<u8> {
    match action {
        Action::Record(options) => record::run(options),
        Action::Report(options) => report::run(options),
        Action::ShimInstall { dir } => shim::install(dir),
    }
}

/// Writes results to stdout. A reader that went away, as in `gdiag report | head`, ends
/// the program quietly: [`Error::OutputClosed`].
pub(crate) fn to_stdout(
    write: impl FnOnce(&mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Error::OutputClosed.into()),
        Err(e) => Err(e).context("cannot write to stdout"),
    }
}
