//! `gdiag flame`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::{parse_pid, parse_tid};
use super::{after_help, check_range, Pairs, DEFAULT_FILE, FLAME_EXIT_STATUS};
use crate::analyse::stacks::{self, Mode};
use crate::event::{Pid, Tid};
use crate::units::Nanos;

pub const FLAME_EXAMPLES: Pairs = &[
    (
        "gdiag flame -o idle.svg",
        "who made the GPU wait, in a browser",
    ),
    (
        "gdiag flame --mode mixed --to 10s -o mixed.svg",
        "CPU, off-CPU and GPU time of the first 10 s",
    ),
    (
        "gdiag flame --diff slow.data -o diff.svg",
        "what changed since another recording",
    ),
    (
        "gdiag flame --mode offcpu --folded > offcpu.folded",
        "folded stacks for other tools",
    ),
];

/// Draw flame graphs: stacks as wide as the time they took
///
/// Writes an SVG picture for a browser, in which frames can be searched and zoomed into, or
/// folded stacks for other tools. Times are whole nanoseconds and add up to those of the
/// recording; what no stack was taken of is shown, too, and says so. Needs no privileges.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag flame [-i FILE] [--mode MODE] [--folded] [-o OUT] [--diff OTHER] [OPTIONS]",
    after_help = after_help(FLAME_EXAMPLES, &[]),
    after_long_help = after_help(FLAME_EXAMPLES, &[FLAME_EXIT_STATUS]),
)]
pub(super) struct FlameArgs {
    /// Read this recording
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    input: PathBuf,

    /// What the time is time of
    #[arg(long, value_name = "MODE", default_value = "idle")]
    mode: FlameMode,

    /// Write folded stacks instead of a picture: `root;...;leaf NS`
    #[arg(long)]
    folded: bool,

    /// Write here instead of to stdout
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Show what changed since this recording: red took more, blue less
    ///
    /// Processes and threads are matched by name. Folded stacks get two times, before and after.
    #[arg(long, value_name = "OTHER")]
    diff: Option<PathBuf>,

    /// Scale the times of OTHER to the same sum
    #[arg(long, requires = "diff")]
    normalize: bool,

    /// Leave out what was before this time since the start of the recording, such as 1.5s
    #[arg(long, value_name = "T")]
    from: Option<Nanos>,

    /// Leave out what was after this time since the start of the recording
    #[arg(long, value_name = "T")]
    to: Option<Nanos>,

    /// Only these processes
    #[arg(short, long, value_name = "PID[,PID]...", value_delimiter = ',', value_parser = parse_pid)]
    pid: Vec<Pid>,

    /// Only these threads
    #[arg(short, long, value_name = "TID[,TID]...", value_delimiter = ',', value_parser = parse_tid)]
    tid: Vec<Tid>,

    /// Only this GPU, by its number in the report
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// Put the stacks of those who ended waits on top of those who waited
    #[arg(long)]
    wakers: bool,

    /// Show functions without a name by address, rather than all of a file as one
    #[arg(long)]
    addresses: bool,

    /// Keep idle time without a sample of its own apart
    ///
    /// Most gaps are shorter than the time between two samples. With many of them, the samples that
    /// hit some tell where the thread mostly was in all of them, so their time is shared out to the
    /// samples of the same device, cause and thread; but where it was in each, only its own sample tells.
    #[arg(long)]
    exact: bool,

    /// Title of the picture
    #[arg(long, value_name = "TEXT", conflicts_with = "folded")]
    title: Option<String>,

    /// Width of the picture in pixels [default: that of the browser]
    #[arg(long, value_name = "PX", conflicts_with = "folded", value_parser = clap::value_parser!(u32).range(200..=100_000))]
    width: Option<u32>,

    /// Leave out frames narrower than this many percent of the picture
    #[arg(long, value_name = "PERCENT", default_value = "0.05", conflicts_with = "folded", value_parser = parse_percent)]
    min_width: f64,

    /// Turn stacks around: merge them from their leaves
    #[arg(long)]
    reverse: bool,

    /// Draw the root at the top
    #[arg(long, conflicts_with = "folded")]
    inverted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlameMode {
    /// Host stacks by the GPU idle time that they caused, with its cause at the base
    Idle,
    /// CPU, off-CPU and GPU time in one graph
    Mixed,
    /// Time on a CPU
    Cpu,
    /// Time asleep or waiting for a CPU
    #[value(name = "offcpu")]
    OffCpu,
    /// Time of GPU operations, by the stacks that launched them
    Gpu,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FlameOptions {
    pub input: PathBuf,
    pub what: stacks::Options,
    /// Text rather than a picture.
    pub folded: bool,
    /// `None` is stdout.
    pub output: Option<PathBuf>,
    /// The recording to compare with.
    pub diff: Option<PathBuf>,
    pub normalize: bool,
    pub title: Option<String>,
    /// In pixels.
    pub width: Option<u32>,
    /// In percent.
    pub min_width: f64,
    pub reverse: bool,
    pub inverted: bool,
}

impl FlameArgs {
    pub(super) fn into_options(self) -> Result<FlameOptions, clap::Error> {
        check_range("flame", self.from, self.to)?;
        Ok(FlameOptions {
            input: self.input,
            what: stacks::Options {
                mode: match self.mode {
                    FlameMode::Idle => Mode::Idle,
                    FlameMode::Mixed => Mode::Mixed,
                    FlameMode::Cpu => Mode::Cpu,
                    FlameMode::OffCpu => Mode::OffCpu,
                    FlameMode::Gpu => Mode::Gpu,
                },
                from: self.from,
                to: self.to,
                pids: self.pid,
                tids: self.tid,
                gpu: self.gpu,
                wakers: self.wakers,
                addresses: self.addresses,
                exact: self.exact,
            },
            folded: self.folded,
            output: self.output,
            diff: self.diff,
            normalize: self.normalize,
            title: self.title,
            width: self.width,
            min_width: self.min_width,
            reverse: self.reverse,
            inverted: self.inverted,
        })
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("write a number from 0 to 100, such as 0.1".to_string()),
    }
}
