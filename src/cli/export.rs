//! `gdiag export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::parse_pid;
use super::{after_help, Pairs, DEFAULT_FILE, EXPORT_EXIT_STATUS};
use crate::event::Pid;
use crate::units::Nanos;

pub const EXPORT_EXAMPLES: Pairs = &[
    (
        "gdiag export --format perfetto -o trace.pftrace",
        "gdiag.data as a timeline, for https://ui.perfetto.dev",
    ),
    (
        "gdiag export -i node.data --format chrome --from 2s --to 3s -o trace.json",
        "one second of another recording, as Chrome's JSON",
    ),
];

/// Write a recording in a format of other tools
///
/// Timelines have a track for each CPU with who runs there, for each thread with its states, for
/// each stream of a GPU with its operations, and for each GPU with its gaps and their causes;
/// arrows lead from wakers to whom they woke, and from launches to kernels. Needs no privileges.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag export [-i FILE] --format FORMAT [-o OUT] [OPTIONS]",
    after_help = after_help(EXPORT_EXAMPLES, &[]),
    after_long_help = after_help(EXPORT_EXAMPLES, &[EXPORT_EXIT_STATUS]),
)]
pub(super) struct ExportArgs {
    /// Read this recording
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    input: PathBuf,

    /// Write this format
    #[arg(long, value_name = "FORMAT")]
    format: ExportFormat,

    /// Write here instead of to stdout
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Leave out what was before this time since the start of the recording, such as 1.5s
    #[arg(long, value_name = "T")]
    from: Option<Nanos>,

    /// Leave out what was after this time since the start of the recording
    #[arg(long, value_name = "T")]
    to: Option<Nanos>,

    /// Only the threads and operations of these processes; CPUs show all the same who ran
    #[arg(short, long, value_name = "PID[,PID]...", value_delimiter = ',', value_parser = parse_pid)]
    pid: Vec<Pid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Perfetto's own trace format (protobuf), for ui.perfetto.dev and trace_processor
    Perfetto,
    /// Trace events as JSON, for chrome://tracing and many others
    Chrome,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ExportOptions {
    pub input: PathBuf,
    pub format: ExportFormat,
    /// `None` is stdout.
    pub output: Option<PathBuf>,
    /// Times since the start of the recording.
    pub from: Option<Nanos>,
    pub to: Option<Nanos>,
    /// Empty: all.
    pub pids: Vec<Pid>,
}

impl ExportArgs {
    pub(super) fn into_options(self) -> Result<ExportOptions, clap::Error> {
        super::check_range("export", self.from, self.to)?;
        Ok(ExportOptions {
            input: self.input,
            format: self.format,
            output: self.output,
            from: self.from,
            to: self.to,
            pids: self.pid,
        })
    }
}
