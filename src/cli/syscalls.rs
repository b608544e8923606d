//! `gdiag syscalls`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::values::{parse_millis, parse_positive, parse_tid};
use super::watched::WatchedArgs;
use super::{after_help, Pairs, Target, EXIT_STATUS, LIVE_EXIT_STATUS};
use crate::event::Tid;
use crate::units::Nanos;

pub const SYSCALLS_EXAMPLES: Pairs = &[
    (
        "gdiag syscalls -p 4711",
        "the system calls of a process, as they end",
    ),
    (
        "gdiag syscalls -p 4711 --duration 10",
        "only those that took 10 ms or longer",
    ),
    (
        "gdiag syscalls -s -d 10s",
        "count, errors and times of each call, of the whole machine",
    ),
    (
        "gdiag syscalls --filter openat,execve --failed -- ./serve",
        "what a program does not find",
    ),
    (
        "gdiag syscalls -s -i gdiag.data",
        "which calls made the GPU wait",
    ),
];

/// Show system calls: one by one as they end, or summed up
///
/// Without -i it watches until a signal comes, a time is over or a command ends; without a target
/// the whole machine. Summaries (-s) are added up in the kernel. With -i it tells the same of a
/// recording made with `gdiag record --syscalls`; of another one, which calls waited, and for how
/// long.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag syscalls [-s] [-p PID[,PID]... | -G PATH | --container ID | -a] [-d DUR] [OPTIONS] [[--] CMD [ARG]...]\n       gdiag syscalls -i FILE [-s] [OPTIONS]",
    after_help = after_help(SYSCALLS_EXAMPLES, &[]),
    after_long_help = after_help(SYSCALLS_EXAMPLES, &[EXIT_STATUS, LIVE_EXIT_STATUS]),
)]
pub(super) struct SyscallsArgs {
    #[command(flatten)]
    watched: WatchedArgs,

    /// Only these threads; a command says how long to watch then
    #[arg(short, long, value_name = "TID[,TID]...", value_delimiter = ',', value_parser = parse_tid)]
    tid: Vec<Tid>,

    /// Sum up, instead of a line for each call
    #[arg(short, long, group = "sums", conflicts_with = "with_summary")]
    summary: bool,

    /// A line for each call, and the sums at the end
    #[arg(short = 'S', long, group = "sums")]
    with_summary: bool,

    /// Print the time of the machine's clock (CLOCK_MONOTONIC) instead of that since the start
    #[arg(short = 'T', long, conflicts_with = "summary")]
    time: bool,

    /// Only calls that took at least this many milliseconds, such as 10 or 0.5
    #[arg(long, value_name = "MS", value_parser = parse_millis)]
    duration: Option<Nanos>,

    /// Only these calls, or with ! all but these; * stands for anything
    #[arg(
        short = 'e',
        long = "filter",
        value_name = "NAME[,NAME]...",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    filter: Vec<String>,

    /// Only calls that failed
    #[arg(long, alias = "failure")]
    failed: bool,

    /// Sums by error, too
    #[arg(long, requires = "sums")]
    errno_summary: bool,

    /// Print a histogram of each call's times, too
    #[arg(long, requires = "sums")]
    hist: bool,

    /// One table of all threads, instead of one for each
    #[arg(long, requires = "sums")]
    total: bool,

    /// Stop watching after this time, such as 10s or 250ms
    #[arg(short, value_name = "DUR", value_parser = parse_positive, conflicts_with = "input")]
    d: Option<Nanos>,

    /// Each time so much time is over, print the sums of what has come since, too
    #[arg(short = 'I', long, value_name = "DUR", value_parser = parse_positive,
          conflicts_with = "input", requires = "sums")]
    interval: Option<Nanos>,

    /// Stop after so many lines
    #[arg(long, value_name = "N", conflicts_with = "summary",
          value_parser = clap::value_parser!(u64).range(1..))]
    max_events: Option<u64>,

    /// Show the sums of this many threads, or of all
    #[arg(long, value_name = "N|all", default_value = "20", requires = "sums", value_parser = super::report::parse_limit)]
    top: super::GapLimit,

    /// Read this recording instead of watching
    #[arg(short, long, value_name = "FILE",
          conflicts_with_all = ["pid", "cgroup", "container", "all", "command"])]
    input: Option<PathBuf>,

    /// With -i: leave out what was before this time since the start of the recording, such as 1.5s
    #[arg(long, value_name = "T", requires = "input")]
    from: Option<Nanos>,

    /// With -i: leave out what was after this time since the start of the recording
    #[arg(long, value_name = "T", requires = "input")]
    to: Option<Nanos>,

    /// Write JSON instead of text: a line for each call, or sums (schema gdiag.syscalls/1)
    #[arg(long)]
    json: bool,

    /// Write here instead of to stdout
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Exit with status 4 when events were lost
    #[arg(long)]
    strict: bool,

    /// Print results, errors and warnings only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Print what is being done; twice for libbpf's messages too
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SyscallsOptions {
    pub source: SyscallsSource,
    /// Empty: all.
    pub tids: Vec<Tid>,
    /// A line for each call.
    pub stream: bool,
    /// The sums.
    pub summary: bool,
    pub monotonic_times: bool,
    pub least: Option<Nanos>,
    /// As they were typed.
    pub filter: Vec<String>,
    pub failed: bool,
    pub errno_summary: bool,
    pub hist: bool,
    pub total: bool,
    pub max_events: Option<u64>,
    /// `None` is every one.
    pub top: Option<usize>,
    pub json: bool,
    /// `None` is stdout.
    pub output: Option<PathBuf>,
    pub strict: bool,
    pub quiet: bool,
    pub verbose: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SyscallsSource {
    Live {
        target: Target,
        command: Vec<OsString>,
        /// The run time.
        duration: Option<Nanos>,
        interval: Option<Nanos>,
    },
    /// Times since the start of the recording.
    Recording {
        input: PathBuf,
        from: Option<Nanos>,
        to: Option<Nanos>,
    },
}

impl SyscallsArgs {
    pub(super) fn into_options(self) -> Result<SyscallsOptions, clap::Error> {
        let source = match self.input {
            Some(input) => {
                super::check_range("syscalls", self.from, self.to)?;
                SyscallsSource::Recording {
                    input,
                    from: self.from,
                    to: self.to,
                }
            }
            None => {
                let (target, command) =
                    self.watched.into_target("syscalls", !self.tid.is_empty())?;
                SyscallsSource::Live {
                    target,
                    command,
                    duration: self.d,
                    interval: self.interval,
                }
            }
        };
        Ok(SyscallsOptions {
            source,
            tids: self.tid,
            stream: !self.summary,
            summary: self.summary || self.with_summary,
            monotonic_times: self.time,
            least: self.duration,
            filter: self.filter,
            failed: self.failed,
            errno_summary: self.errno_summary,
            hist: self.hist,
            total: self.total,
            max_events: self.max_events,
            top: self.top.count(),
            json: self.json,
            output: self.output,
            strict: self.strict,
            quiet: self.quiet,
            verbose: self.verbose,
        })
    }
}
