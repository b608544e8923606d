//! `gdiag sched`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::{parse_cpus, parse_positive, parse_tid};
use super::watched::WatchedArgs;
use super::{after_help, Pairs, Target, EXIT_STATUS, LIVE_EXIT_STATUS};
use crate::event::{Cpu, Tid};
use crate::units::Nanos;

pub const SCHED_EXAMPLES: Pairs = &[
    (
        "gdiag sched --cpus 0,2-3 -d 10s",
        "who ran and who waited on CPUs 0, 2 and 3",
    ),
    (
        "gdiag sched -p 4711 -- sleep 10",
        "one process, its preemptors and its pinning",
    ),
    (
        "gdiag sched --hist -d 10s",
        "run-queue latency as histograms",
    ),
    (
        "gdiag sched --timehist -p 4711",
        "a line for each switch, as they happen",
    ),
    ("gdiag sched -i node.data --map", "a recording, CPU by CPU"),
];

/// Show what the scheduler did: who ran, who waited for a CPU, why, and who was in the way
///
/// Without -i it watches until a signal comes, a time is over or a command ends, and adds up in the
/// kernel: no event leaves it, and little is slowed down. Without a target it watches the whole
/// machine. With -i it tells the same of a recording, and needs no privileges.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag sched [-C CPUS] [-p PID[,PID]... | -G PATH | --container ID | -a] [-d DUR] [OPTIONS] [[--] CMD [ARG]...]\n       gdiag sched -i FILE [OPTIONS]",
    after_help = after_help(SCHED_EXAMPLES, &[]),
    after_long_help = after_help(SCHED_EXAMPLES, &[EXIT_STATUS, LIVE_EXIT_STATUS]),
)]
pub(super) struct SchedArgs {
    #[command(flatten)]
    watched: WatchedArgs,

    /// Only these threads are shown; a command says how long to watch then
    #[arg(short, long, value_name = "TID[,TID]...", value_delimiter = ',', value_parser = parse_tid)]
    tid: Vec<Tid>,

    /// Only what happens on these CPUs counts, such as 0,2-3: running there, and waiting to run there
    #[arg(short = 'C', long, alias = "cpu", value_name = "CPUS", value_parser = parse_cpus)]
    cpus: Option<CpuList>,

    /// Stop watching after this time, such as 10s or 250ms
    #[arg(short, long, value_name = "DUR", value_parser = parse_positive, conflicts_with = "input")]
    duration: Option<Nanos>,

    /// Each time so much time is over, print what has come since, too
    #[arg(short = 'I', long, value_name = "DUR", value_parser = parse_positive, conflicts_with = "input")]
    interval: Option<Nanos>,

    /// Read this recording instead of watching
    #[arg(short, long, value_name = "FILE",
          conflicts_with_all = ["pid", "cgroup", "container", "all", "command"])]
    input: Option<PathBuf>,

    /// Print a line for each switch
    #[arg(long, conflicts_with_all = ["map", "hist", "json", "interval", "by", "sort", "top"])]
    timehist: bool,

    /// Print a column for each CPU and a line for each change
    #[arg(long, conflicts_with_all = ["hist", "json", "interval", "tid", "by", "sort", "top"])]
    map: bool,

    /// Print histograms of the time waited for a CPU and of the time on one, too: of all, and of each with
    /// --by process, --by name or several -t
    #[arg(long)]
    hist: bool,

    /// With --timehist: wakeups, too
    #[arg(short = 'w', long, requires = "timehist")]
    wakeups: bool,

    /// With --timehist: migrations, too
    #[arg(short = 'M', long, requires = "timehist")]
    migrations: bool,

    /// With --timehist: who runs next, too
    #[arg(short = 'n', long, requires = "timehist")]
    next: bool,

    /// With --timehist: only what waited for a CPU at least this long
    #[arg(long, value_name = "DUR", requires = "timehist")]
    threshold: Option<Nanos>,

    /// What a row is about
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "thread",
        conflicts_with = "json"
    )]
    by: SchedBy,

    /// Which rows come first
    #[arg(short, long, value_name = "KEY", default_value = "wait")]
    sort: SchedSort,

    /// Show this many rows of a table, or all
    #[arg(long, value_name = "N|all", default_value = "20", value_parser = super::report::parse_limit)]
    top: super::GapLimit,

    /// With -i: leave out what was before this time since the start of the recording, such as 1.5s
    #[arg(long, value_name = "T", requires = "input")]
    from: Option<Nanos>,

    /// With -i: leave out what was after this time since the start of the recording
    #[arg(long, value_name = "T", requires = "input")]
    to: Option<Nanos>,

    /// Write JSON instead of text (schema gdiag.sched/1); with -I one line each time
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

/// In order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<Cpu>);

/// Whose sums are one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchedBy {
    /// Each thread by itself
    Thread,
    /// All threads of a process
    Process,
    /// All threads of one name
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchedSort {
    /// Time waited for a CPU
    Wait,
    /// Time on a CPU
    Run,
    /// Average run-queue latency
    Avg,
    /// Longest run-queue latency
    Max,
    /// Switches
    Switches,
    /// Times that another took its CPU
    Preempted,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SchedOptions {
    pub source: SchedSource,
    /// `None`: all.
    pub tids: Vec<Tid>,
    /// `None`: all.
    pub cpus: Option<Vec<Cpu>>,
    pub view: SchedView,
    pub by: SchedBy,
    pub sort: SchedSort,
    /// Rows; `None` is every one.
    pub top: Option<usize>,
    pub json: bool,
    /// `None` is stdout.
    pub output: Option<PathBuf>,
    pub strict: bool,
    pub quiet: bool,
    pub verbose: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SchedSource {
    Live {
        target: Target,
        command: Vec<OsString>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedView {
    /// Tables; with `hist` histograms, too.
    Summary {
        hist: bool,
    },
    Timehist {
        wakeups: bool,
        migrations: bool,
        next: bool,
        threshold: Option<Nanos>,
    },
    Map,
}

impl SchedArgs {
    pub(super) fn into_options(self) -> Result<SchedOptions, clap::Error> {
        let source = match self.input {
            Some(input) => {
                super::check_range("sched", self.from, self.to)?;
                SchedSource::Recording {
                    input,
                    from: self.from,
                    to: self.to,
                }
            }
            None => {
                let (target, command) = self.watched.into_target("sched", !self.tid.is_empty())?;
                SchedSource::Live {
                    target,
                    command,
                    duration: self.duration,
                    interval: self.interval,
                }
            }
        };
        let view = if self.timehist {
            SchedView::Timehist {
                wakeups: self.wakeups,
                migrations: self.migrations,
                next: self.next,
                threshold: self.threshold,
            }
        } else if self.map {
            SchedView::Map
        } else {
            SchedView::Summary { hist: self.hist }
        };
        Ok(SchedOptions {
            source,
            tids: self.tid,
            cpus: self.cpus.map(|list| list.0),
            view,
            by: self.by,
            sort: self.sort,
            top: self.top.count(),
            json: self.json,
            output: self.output,
            strict: self.strict,
            quiet: self.quiet,
            verbose: self.verbose,
        })
    }
}
