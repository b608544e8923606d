//! `gdiag top`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::Args;

use super::values::{parse_positive, parse_speed, parse_window};
use super::watched::WatchedArgs;
use super::{after_help, usage_error, Pairs, StackOptions, Target, EXIT_STATUS, LIVE_EXIT_STATUS};
use crate::units::Nanos;

pub const TOP_EXAMPLES: Pairs = &[
    ("gdiag top", "why are the GPUs of this machine idle, now?"),
    ("gdiag top -p 4711", "the same of one process"),
    (
        "gdiag top --once --json -p 4711 > now.json",
        "ten seconds of it, for a script",
    ),
    (
        "gdiag top --batch -n 6 -w 10s",
        "a minute as text, for a log",
    ),
    (
        "gdiag top -i gdiag.data --speed 0.5",
        "a recording, at half of its speed",
    ),
];

/// Where a snapshot goes; a number is added.
pub const SNAPSHOT_FILE: &str = "gdiag-top.data";

/// Show live why GPUs are idle, and who is to blame
///
/// Without a target it finds the processes that use CUDA, also those that begin later; where there are
/// none it shows what the scheduler and system calls do on the whole machine. Press ? for the keys.
///
/// With --once or --batch, or when the output is no terminal, it prints text or JSON instead.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag top [-p PID[,PID]... | -G PATH | --container ID | -a] [OPTIONS] [[--] CMD [ARG]...]\n       gdiag top -i FILE [OPTIONS]",
    after_help = after_help(TOP_EXAMPLES, &[]),
    after_long_help = after_help(TOP_EXAMPLES, &[EXIT_STATUS, LIVE_EXIT_STATUS]),
)]
pub(super) struct TopArgs {
    #[command(flatten)]
    watched: WatchedArgs,

    /// Play this recording instead of watching
    #[arg(short, long, value_name = "FILE",
          conflicts_with_all = ["pid", "cgroup", "container", "all", "command"])]
    input: Option<PathBuf>,

    /// With -i: how fast, as a multiple of the time that it took, such as 0.25 or 10
    #[arg(long, value_name = "X", default_value = "1", value_parser = parse_speed, requires = "input")]
    speed: f64,

    /// Show this much of the past, 1s to 300s
    #[arg(short, long, value_name = "DUR", default_value = "10s", value_parser = parse_window)]
    window: Nanos,

    /// Time between two updates of the screen, or with --batch between two windows [default: 1s, with --batch
    /// the window]
    #[arg(short = 'I', long, value_name = "DUR", value_parser = parse_positive)]
    interval: Option<Nanos>,

    /// End after this time, such as 10s or 250ms
    #[arg(short, long, value_name = "DUR", value_parser = parse_positive)]
    duration: Option<Nanos>,

    /// Print window after window instead of a screen
    #[arg(short, long)]
    batch: bool,

    /// With --batch: end after so many windows
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,

    /// Print one window and exit, like --batch -n 1
    #[arg(long, conflicts_with_all = ["iterations", "batch"])]
    once: bool,

    /// Write JSON instead of text (schema gdiag.report/1), a line for each window; implies --batch
    #[arg(long)]
    json: bool,

    /// Begin with this GPU
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// Where snapshots go: FILE.1, FILE.2 and so on
    #[arg(short, long, value_name = "FILE", default_value = SNAPSHOT_FILE)]
    output: PathBuf,

    /// Samples a second of where each running thread of the target is; 0 for none
    #[arg(short = 'F', long, value_name = "HZ", default_value = "99",
          value_parser = clap::value_parser!(u32).range(0..=10_000))]
    freq: u32,

    /// Take no user stacks: no samples, and no program or line for waits
    #[arg(long, conflicts_with = "freq")]
    no_stacks: bool,

    /// Put nothing into running processes: GPU records only from those that carry gdiag's library
    #[arg(long)]
    no_inject: bool,

    /// Do not ask the driver (NVML) for what nvidia-smi shows
    #[arg(long, conflicts_with = "input")]
    no_nvml: bool,

    /// Draw with ASCII only
    #[arg(long)]
    ascii: bool,

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
pub struct TopOptions {
    pub source: TopSource,
    pub window: Nanos,
    /// `None`: a second on a screen, the window in batches.
    pub interval: Option<Nanos>,
    pub duration: Option<Nanos>,
    /// `None`: a screen, if there is one.
    pub batch: Option<Batch>,
    pub json: bool,
    pub gpu: Option<u32>,
    /// Of snapshots.
    pub output: PathBuf,
    pub stacks: Option<StackOptions>,
    pub inject: bool,
    /// Ask NVML for utilisation, memory, power and clocks.
    pub nvml: bool,
    pub ascii: bool,
    pub strict: bool,
    pub quiet: bool,
    pub verbose: u8,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TopSource {
    Live {
        target: Target,
        command: Vec<OsString>,
    },
    Recording {
        input: PathBuf,
        speed: f64,
    },
}

/// Windows one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// `None`: until the end.
    pub windows: Option<u64>,
}

impl TopArgs {
    pub(super) fn into_options(self) -> Result<TopOptions, clap::Error> {
        let batch = if self.once {
            Some(Batch { windows: Some(1) })
        } else {
            (self.batch || self.json || self.iterations.is_some()).then_some(Batch {
                windows: self.iterations,
            })
        };
        if self.interval.is_some_and(|interval| interval > self.window) {
            return Err(usage_error(
                "top",
                ErrorKind::InvalidValue,
                "--interval must not be longer than --window",
            ));
        }
        let source = match self.input {
            Some(input) => TopSource::Recording {
                input,
                speed: self.speed,
            },
            None => {
                let everyone = self.watched.all;
                let (target, command) = self.watched.into_target("top", false)?;
                let target = match target {
                    Target::All if !everyone => Target::Cuda,
                    named => named,
                };
                TopSource::Live { target, command }
            }
        };
        Ok(TopOptions {
            source,
            window: self.window,
            interval: self.interval,
            duration: self.duration,
            batch,
            json: self.json,
            gpu: self.gpu,
            output: self.output,
            stacks: (!self.no_stacks).then_some(StackOptions {
                frequency: self.freq,
                launch_one_in: None,
            }),
            inject: !self.no_inject,
            nvml: !self.no_nvml,
            ascii: self.ascii,
            strict: self.strict,
            quiet: self.quiet,
            verbose: self.verbose,
        })
    }
}
