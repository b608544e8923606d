//! One function per subcommand: they wire the steps of the pipeline together.
#![forbid(unsafe_code)]

pub mod check;
pub mod diff;
pub mod export;
pub mod flame;
pub mod flight;
mod loaded;
pub mod record;
mod recorder;
pub mod report;
pub mod sched;
pub mod shim;
mod subject;
pub mod syscalls;
mod temporary;
pub mod top;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;

use crate::cli::Action;
use crate::error::Error;
use crate::present::text;

/// Does what was asked; the result is the exit status.
pub fn run(action: &Action) -> anyhow::Result<u8> {
    match action {
        Action::Top(options) => top::run(options),
        Action::Record(options) => record::run(options),
        Action::Report(options) => report::run(options),
        Action::Diff(options) => diff::run(options),
        Action::Flame(options) => flame::run(options),
        Action::Sched(options) => sched::run(options),
        Action::Syscalls(options) => syscalls::run(options),
        Action::Export(options) => export::run(options),
        Action::Start(options) => flight::start(options),
        Action::Stat(options) => flight::stat(options),
        Action::Snapshot(options) => flight::snapshot(options),
        Action::Stop(options) => flight::stop(options),
        Action::Check(options) => check::run(options),
        Action::ShimInstall { dir } => shim::install(dir),
    }
}

/// Says on stderr what limits the answer. It may quote what a recording or a process calls itself.
pub(crate) fn warn(warning: &str) {
    // With stderr gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{}", warning_line(warning));
}

fn warning_line(warning: &str) -> String {
    format!("gdiag: warning: {}", text::clean(warning))
}

/// Writes results to stdout. A reader that went away, as in `gdiag report | head`, ends
/// the program quietly: [`Error::OutputClosed`].
pub(crate) fn to_stdout(
    write: impl FnOnce(&mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()>,
) -> anyhow::Result<()> {
    deliver(io::stdout().lock(), write)
}

/// Writes results to this file, or to stdout as [`to_stdout`] does.
pub(crate) fn to_output(
    output: Option<&Path>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    match output {
        None => to_stdout(|out| write(out)),
        Some(path) => {
            let what = || format!("cannot write '{}'", path.display());
            let file = File::create(path).with_context(what)?;
            buffered(file, |out| write(out)).with_context(what)
        }
    }
}

/// Writes all of it, in big pieces.
fn buffered<W: Write>(
    out: W,
    write: impl FnOnce(&mut BufWriter<W>) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 * 1024, out);
    write(&mut out)?;
    out.flush()
}

fn deliver<W: Write>(
    out: W,
    write: impl FnOnce(&mut BufWriter<W>) -> io::Result<()>,
) -> anyhow::Result<()> {
    match buffered(out, write) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Error::OutputClosed.into()),
        Err(e) => Err(e).context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_one_harmless_line() {
        assert_eq!(
            warning_line("pid 7: \x1b[2J\nfine"),
            "gdiag: warning: pid 7: \\x1b[2J\\nfine"
        );
    }
    use crate::error::{exit_status, render};

    /// Fails every write with this error of the system.
    struct Broken(i32);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(self.0))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let error = deliver(Broken(libc::EPIPE), |out| out.write_all(b"report")).unwrap_err();
        assert_eq!(
            (exit_status(&error, false), render(&error)),
            (0, String::new())
        );
    }

    #[test]
    fn a_full_disk_is_one() {
        let error = deliver(Broken(libc::ENOSPC), |out| out.write_all(b"report")).unwrap_err();
        assert_eq!(exit_status(&error, false), 1);
        assert!(render(&error).starts_with("gdiag: cannot write to stdout: No space left"));
    }
}
