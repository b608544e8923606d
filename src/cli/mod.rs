//! What was asked: clap types, and their conversion to plain options.
//!
//! Nothing here has an effect. The texts after the options (examples, exit
//! status) are public because the manual pages are made from them too.
#![forbid(unsafe_code)]

mod export;
mod flight;
mod sched;
mod syscalls;
mod watched;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::analyse::stacks::{self, Mode};
use crate::collect::process;
use crate::event::{Cpu, Pid, Tid};
use crate::units::{Bytes, Nanos};

pub use export::{ExportFormat, ExportOptions, EXPORT_EXAMPLES};
pub use flight::{
    KeepOptions, SnapshotOptions, StartOptions, StatOptions, StopOptions, Trigger,
    FLIGHT_EXIT_STATUS, SNAPSHOT_EXAMPLES, START_EXAMPLES, START_EXIT_STATUS, STAT_EXAMPLES,
    STOP_EXAMPLES,
};
pub use sched::{
    CpuList, SchedBy, SchedOptions, SchedSort, SchedSource, SchedView, SCHED_EXAMPLES,
};
pub use syscalls::{SyscallsOptions, SyscallsSource, SYSCALLS_EXAMPLES};

/// Where a recording goes, and comes from, unless said otherwise.
pub const DEFAULT_FILE: &str = "gdiag.data";

/// Two columns of a help text: examples and what they do, statuses and what they mean.
pub type Pairs = &'static [(&'static str, &'static str)];

pub const EXAMPLES: Pairs = &[
    (
        "gdiag record -- python3 train.py",
        "record a program from its start",
    ),
    ("gdiag report", "why was the GPU idle?"),
    (
        "gdiag record -p 4711 -- sleep 10",
        "record a running program for 10 s",
    ),
    (
        "gdiag sched -p 4711 -d 10s",
        "who takes its CPUs, and how long does it wait for one?",
    ),
    (
        "gdiag syscalls -s -p 4711 -d 10s",
        "which system calls does it make, and how long do they take?",
    ),
];

pub const RECORD_EXAMPLES: Pairs = &[
    (
        "gdiag record -- python3 train.py",
        "a program and its children, from the start",
    ),
    (
        "gdiag record -d 30s -- ./serve",
        "the same, but stop recording after 30 s",
    ),
    (
        "gdiag record -p 4711 -- sleep 10",
        "process 4711, while another command runs",
    ),
    (
        "gdiag record -p 4711,4712 -d 10s",
        "two processes, for 10 s",
    ),
    (
        "gdiag record --container 9e4f1c -d 10s",
        "all of a container",
    ),
    (
        "gdiag record -a -o node.data",
        "the whole machine, until Ctrl-C",
    ),
];

pub const REPORT_EXAMPLES: Pairs = &[
    ("gdiag report", "explain gdiag.data"),
    (
        "gdiag report -i node.data --gpu 1",
        "one GPU of another recording",
    ),
    (
        "gdiag report --gaps all --min-gap 1ms",
        "every gap of at least 1 ms, in full",
    ),
    ("gdiag report --json | jq .quality", "JSON for scripts"),
];

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

pub const SHIM_EXAMPLES: Pairs = &[
    (
        "gdiag shim install /opt/gdiag",
        "write the library, and print what to set",
    ),
    (
        "CUDA_INJECTION64_PATH=/opt/gdiag/libgdiag_cupti.so ./serve",
        "start a service that carries it asleep",
    ),
];

/// Exit status of every subcommand.
pub const EXIT_STATUS: Pairs = &[
    ("0", "done; also when the reader of the output went away"),
    ("1", "failed"),
    ("2", "wrong usage"),
];

/// `report` fails in one way more.
pub const REPORT_EXIT_STATUS: Pairs = &[
    EXIT_STATUS[0],
    (
        "1",
        "failed, or the recording was cut and is reported as far as it goes",
    ),
    EXIT_STATUS[2],
];

/// So does `flame`.
pub const FLAME_EXIT_STATUS: Pairs = &[
    EXIT_STATUS[0],
    (
        "1",
        "failed, or the recording was cut and is drawn as far as it goes",
    ),
    EXIT_STATUS[2],
];

/// What `record` adds: it can fail in more ways, and lend the status of a launched command.
pub const RECORD_EXIT_STATUS: Pairs = &[
    ("3", "ran, but captured nothing: the target was never seen"),
    ("4", "events were lost, and --strict was given"),
    ("77", "this kernel or these privileges cannot do it"),
    (
        "125",
        "CMD is the target, and gdiag itself failed (instead of 1)",
    ),
    ("126", "CMD was found, but cannot be executed"),
    ("127", "CMD was not found"),
    (
        "other",
        "CMD is the target: its own status, or 128 + N when signal N ended it",
    ),
];

/// What live commands and recorders add.
pub const LIVE_EXIT_STATUS: Pairs = RECORD_EXIT_STATUS;

/// The help text of a subcommand after its options.
fn after_help(examples: Pairs, statuses: &[Pairs]) -> String {
    let width = examples
        .iter()
        .map(|(example, _)| example.len())
        .max()
        .unwrap_or(0);
    let mut text = "Examples:".to_string();
    for (example, meaning) in examples {
        text.push_str(&format!("\n  {example:<width$}  {meaning}"));
    }
    if !statuses.is_empty() {
        text.push_str("\n\nExit status:");
    }
    for (status, meaning) in statuses.iter().copied().flatten() {
        text.push_str(&format!("\n  {status:<5}  {meaning}"));
    }
    text
}

/// Why is this GPU idle, and who is to blame?
///
/// gdiag records what the GPU did (through CUPTI) and what the host did (through BPF) on one
/// clock, finds every gap in which a GPU had nothing to do, and gives each nanosecond of it one
/// cause, with the evidence and what to do about it.
#[derive(Debug, Parser)]
#[command(
    name = "gdiag",
    version,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = after_help(EXAMPLES, &[]),
    after_long_help = after_help(EXAMPLES, &[EXIT_STATUS, RECORD_EXIT_STATUS]),
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(RecordArgs),
    Report(ReportArgs),
    Flame(FlameArgs),
    Sched(sched::SchedArgs),
    Syscalls(syscalls::SyscallsArgs),
    Export(export::ExportArgs),
    Start(flight::StartArgs),
    Stat(flight::StatArgs),
    Snapshot(flight::SnapshotArgs),
    Stop(flight::StopArgs),
    Shim(ShimArgs),
}

/// Record what GPUs and the host do
///
/// A command given without -p, -G, --container or -a is the target: it is started with gdiag's
/// CUPTI library and followed with its children. With one of these it only says how long to record,
/// as with perf.
///
/// INT, TERM and HUP end a recording with a complete file; a second INT ends it at once.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag record [OPTIONS] [--] CMD [ARG]...\n       gdiag record [OPTIONS] <-p PID[,PID]... | -G PATH[,PATH]... | --container ID | -a> [[--] CMD [ARG]...]",
    after_help = after_help(RECORD_EXAMPLES, &[]),
    after_long_help = after_help(RECORD_EXAMPLES, &[EXIT_STATUS, RECORD_EXIT_STATUS]),
)]
struct RecordArgs {
    #[command(flatten)]
    recording: RecordingArgs,

    /// Write the recording here; an old one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    output: PathBuf,

    /// Stop recording after this time, such as 10s or 250ms
    #[arg(short, long, value_name = "DUR", value_parser = parse_positive)]
    duration: Option<Nanos>,

    /// Record when managed memory moves, and when the GPU waits for it. Slows down programs that
    /// use much of it. CUPTI has to be told before the first allocation: for a launched command only
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "container", "all"])]
    unified_memory: bool,

    /// Keep what happens in memory, and write a snapshot to FILE.1, FILE.2 and so on after each such event: a GPU
    /// idle for longer than this (gap>50ms), a thread that waited for a CPU (runq>20ms) or for anything
    /// (wait>1s). So does the signal USR2, also with --window alone
    #[arg(long, value_name = "EVENT>DUR", value_parser = parse_trigger)]
    snapshot_on: Vec<Trigger>,

    #[command(flatten)]
    keep: flight::KeepArgs,

    /// Exit with status 4 when events were lost
    #[arg(long)]
    strict: bool,

    /// The command to run, with its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Whom a recorder records, and what.
#[derive(Debug, Args)]
struct RecordingArgs {
    /// Record these processes and their children; ends when they do
    #[arg(short, long, value_name = "PID[,PID]...", value_delimiter = ',', value_parser = parse_pid)]
    pid: Vec<Pid>,

    /// Record the processes of these cgroups and of those below them, and whoever comes into them;
    /// ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it
    #[arg(short = 'G', long, value_name = "PATH[,PATH]...", value_delimiter = ',',
          value_parser = clap::value_parser!(PathBuf), conflicts_with = "pid")]
    cgroup: Vec<PathBuf>,

    /// Record the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O,
    /// Podman or Kubernetes
    #[arg(long, value_name = "ID[,ID]...", value_delimiter = ',', value_parser = parse_container,
          conflicts_with = "pid")]
    container: Vec<String>,

    /// Record the whole machine
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup", "container"])]
    all: bool,

    /// Keep the kernel stack of waits at least this long
    #[arg(long, value_name = "DUR", default_value = "100us")]
    wait_threshold: Nanos,

    /// Samples a second of where each running thread of the target is; 0 for none
    #[arg(short = 'F', long, value_name = "HZ", default_value = "99",
          value_parser = clap::value_parser!(u32).range(0..=10_000))]
    freq: u32,

    /// Keep the stack of one launch in N (of each thread), or of fewer when that costs too much.
    /// Puts a probe into the driver, which every launch pays for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    launch_stacks: Option<u32>,

    /// Take no user stacks: no samples, and no program or line for waits
    #[arg(long, conflicts_with_all = ["freq", "launch_stacks"])]
    no_stacks: bool,

    /// Put nothing into running processes: GPU records only from those that carry gdiag's library
    #[arg(long)]
    no_inject: bool,

    /// Record each system call of the target, with its time and result. Costs every call a microsecond or so
    #[arg(long)]
    syscalls: bool,

    /// Print errors and warnings only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Print what is being done; twice for libbpf's messages too
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// Explain why the GPUs of a recording were idle
///
/// Prints, worst first, what share of the time each GPU was idle, what it waited for, who caused
/// it with the evidence and a remedy, and the longest gaps with every part of their time
/// accounted for. Needs no privileges, and gives the same answer on any machine.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag report [-i FILE] [--json] [--gpu N] [--min-gap DUR] [--gaps N|all]",
    after_help = after_help(REPORT_EXAMPLES, &[]),
    after_long_help = after_help(REPORT_EXAMPLES, &[REPORT_EXIT_STATUS]),
)]
struct ReportArgs {
    /// Read this recording
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    input: PathBuf,

    /// Write JSON instead of text (schema gdiag.report/1)
    #[arg(long)]
    json: bool,

    /// Only this GPU, by its number in the report
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// List gaps at least this long; shorter ones still count in every sum
    #[arg(long, value_name = "DUR", default_value = "10us")]
    min_gap: Nanos,

    /// List this many gaps of each GPU, or all [default: 20, and in text 5 of them in full]
    #[arg(long, value_name = "N|all", value_parser = parse_limit)]
    gaps: Option<GapLimit>,
}

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
struct FlameArgs {
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

/// Handle the library that records CUDA inside a program
///
/// `gdiag record -- CMD` brings the library along by itself. Install it to start a service that
/// carries it asleep, so that it can be recorded later with -p.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct ShimArgs {
    #[command(subcommand)]
    command: ShimCommand,
}

#[derive(Debug, Subcommand)]
enum ShimCommand {
    /// Write the library for CUDA_INJECTION64_PATH
    #[command(
        after_help = after_help(SHIM_EXAMPLES, &[]),
        after_long_help = after_help(SHIM_EXAMPLES, &[EXIT_STATUS]),
    )]
    Install {
        /// Directory to write it into
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

/// What to do, with everything that it needs to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    Record(RecordOptions),
    Report(ReportOptions),
    Flame(FlameOptions),
    Sched(SchedOptions),
    Syscalls(SyscallsOptions),
    Export(ExportOptions),
    Start(StartOptions),
    Stat(StatOptions),
    Snapshot(SnapshotOptions),
    Stop(StopOptions),
    ShimInstall { dir: PathBuf },
}

impl Action {
    /// A command is started and is itself what gets recorded: its exit status is gdiag's.
    pub fn launches_target(&self) -> bool {
        let target = match self {
            Action::Record(options) => &options.target,
            Action::Sched(SchedOptions {
                source: SchedSource::Live { target, .. },
                ..
            })
            | Action::Syscalls(SyscallsOptions {
                source: SyscallsSource::Live { target, .. },
                ..
            }) => target,
            Action::Report(_)
            | Action::Flame(_)
            | Action::Sched(_)
            | Action::Syscalls(_)
            | Action::Export(_)
            | Action::Start(_)
            | Action::Stat(_)
            | Action::Snapshot(_)
            | Action::Stop(_)
            | Action::ShimInstall { .. } => return false,
        };
        *target == Target::Command
    }
}

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// [`RecordOptions::command`] and its children.
    Command,
    /// These processes, in the PID namespace of gdiag, and their children.
    Pids(Vec<Pid>),
    /// All that is in these, now and later.
    Cgroups {
        paths: Vec<PathBuf>,
        /// Beginnings of the ids of containers.
        containers: Vec<String>,
    },
    All,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RecordOptions {
    pub target: Target,
    /// Program and arguments; empty only when the target is not the command.
    /// Next to another target it only says how long to record.
    pub command: Vec<OsString>,
    pub output: PathBuf,
    /// `None`: until the command or the targets end, or a signal comes.
    pub duration: Option<Nanos>,
    /// Waits at least this long keep their stack.
    pub wait_threshold: Nanos,
    /// `None`: no user stacks at all.
    pub stacks: Option<StackOptions>,
    pub unified_memory: bool,
    /// The library may be put into running processes that use CUDA.
    pub inject: bool,
    /// Each system call of the target is recorded.
    pub syscalls: bool,
    /// In memory, and written at events, rather than all to the file.
    pub keep: Option<KeepOptions>,
    pub strict: bool,
    pub quiet: bool,
    pub verbose: u8,
}

/// Which user stacks to take, beside those of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackOptions {
    /// Samples a second; 0 for none.
    pub frequency: u32,
    /// One launch in so many; `None` for no launch.
    pub launch_one_in: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReportOptions {
    pub input: PathBuf,
    pub json: bool,
    /// Number of the only GPU to report; `None` is all of them.
    pub gpu: Option<u32>,
    pub min_gap: Nanos,
    /// As asked; `None` when nothing was said.
    pub gaps: Option<GapLimit>,
}

impl ReportOptions {
    /// How many gaps of each GPU to list; `None` is every one.
    pub fn gap_limit(&self) -> Option<usize> {
        self.gaps.map_or(Some(20), GapLimit::count)
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapLimit {
    Count(usize),
    All,
}

impl GapLimit {
    /// `None` is every one.
    pub fn count(self) -> Option<usize> {
        match self {
            GapLimit::Count(n) => Some(n),
            GapLimit::All => None,
        }
    }
}

impl Cli {
    /// Checks what clap cannot, and leaves clap's types behind.
    pub fn into_action(self) -> Result<Action, clap::Error> {
        Ok(match self.command {
            Command::Record(args) => Action::Record(args.into_options()?),
            Command::Report(args) => Action::Report(args.into_options()),
            Command::Flame(args) => Action::Flame(args.into_options()?),
            Command::Sched(args) => Action::Sched(args.into_options()?),
            Command::Syscalls(args) => Action::Syscalls(args.into_options()?),
            Command::Export(args) => Action::Export(args.into_options()?),
            Command::Start(args) => Action::Start(args.into_options()?),
            Command::Stat(args) => Action::Stat(args.into_options()),
            Command::Snapshot(args) => Action::Snapshot(args.into_options()),
            Command::Stop(args) => Action::Stop(args.into_options()),
            Command::Shim(args) => match args.command {
                ShimCommand::Install { dir } => Action::ShimInstall { dir },
            },
        })
    }
}

impl RecordingArgs {
    /// `None`: nothing that runs already.
    fn target(&self) -> Option<Target> {
        if self.all {
            Some(Target::All)
        } else if !self.pid.is_empty() {
            Some(Target::Pids(self.pid.clone()))
        } else if !self.cgroup.is_empty() || !self.container.is_empty() {
            Some(Target::Cgroups {
                paths: self.cgroup.clone(),
                containers: self.container.clone(),
            })
        } else {
            None
        }
    }

    fn into_options(
        self,
        target: Target,
        command: Vec<OsString>,
        output: PathBuf,
    ) -> RecordOptions {
        RecordOptions {
            target,
            command,
            output,
            duration: None,
            wait_threshold: self.wait_threshold,
            stacks: (!self.no_stacks).then_some(StackOptions {
                frequency: self.freq,
                launch_one_in: self.launch_stacks,
            }),
            unified_memory: false,
            inject: !self.no_inject,
            syscalls: self.syscalls,
            keep: None,
            strict: false,
            quiet: self.quiet,
            verbose: self.verbose,
        }
    }
}

impl RecordArgs {
    fn into_options(self) -> Result<RecordOptions, clap::Error> {
        let target = match self.recording.target() {
            Some(target) => target,
            None if !self.command.is_empty() => Target::Command,
            None => {
                return Err(usage_error(
                    "record",
                    ErrorKind::MissingRequiredArgument,
                    "nothing to record: give a command, processes (-p PID, -G CGROUP, --container ID), \
                     or the whole machine (-a)\n\n  \
                     hint: gdiag record -- python3 train.py",
                ))
            }
        };
        watched::check_command("record", &self.command)?;
        let keep = self.keep.into_record_options(self.snapshot_on)?;
        Ok(RecordOptions {
            duration: self.duration,
            unified_memory: self.unified_memory,
            keep,
            strict: self.strict,
            ..self
                .recording
                .into_options(target, self.command, self.output)
        })
    }
}

impl ReportArgs {
    fn into_options(self) -> ReportOptions {
        ReportOptions {
            input: self.input,
            json: self.json,
            gpu: self.gpu,
            min_gap: self.min_gap,
            gaps: self.gaps,
        }
    }
}

impl FlameArgs {
    fn into_options(self) -> Result<FlameOptions, clap::Error> {
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

/// An error that shows the usage of a subcommand.
fn usage_error(subcommand: &str, kind: ErrorKind, message: &str) -> clap::Error {
    let mut gdiag = Cli::command();
    gdiag.build();
    match gdiag.find_subcommand_mut(subcommand) {
        Some(command) => command.error(kind, message),
        None => gdiag.error(kind, message),
    }
}

fn check_range(
    subcommand: &str,
    from: Option<Nanos>,
    to: Option<Nanos>,
) -> Result<(), clap::Error> {
    match (from, to) {
        (Some(from), Some(to)) if from >= to => Err(usage_error(
            subcommand,
            ErrorKind::InvalidValue,
            "--from must be before --to",
        )),
        _ => Ok(()),
    }
}

fn parse_pid(text: &str) -> Result<Pid, String> {
    match text.trim().parse() {
        // pid_t is signed, and 0 is no process.
        Ok(pid) if pid > 0 && pid <= i32::MAX.unsigned_abs() => Ok(Pid(pid)),
        _ => Err("a process id is a number above 0, such as 4711".to_string()),
    }
}

/// Kubernetes shows ids as `containerd://ID`.
fn parse_container(text: &str) -> Result<String, String> {
    let id = text.trim();
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    let id = id.to_ascii_lowercase();
    if id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(
            "the id of a container is 64 hexadecimal digits; its first ones will do".to_string(),
        );
    }
    Ok(id)
}

fn parse_tid(text: &str) -> Result<Tid, String> {
    match parse_pid(text) {
        Ok(id) => Ok(Tid(id.0)),
        Err(_) => Err("a thread id is a number above 0, such as 4711".to_string()),
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..100.0).contains(&percent) => Ok(percent),
        _ => Err("write a number from 0 to 100, such as 0.1".to_string()),
    }
}

fn parse_positive(text: &str) -> Result<Nanos, String> {
    match text.parse()? {
        Nanos::ZERO => Err("must be longer than nothing".to_string()),
        duration => Ok(duration),
    }
}

/// Whether they are there is for those to say who look at them.
fn parse_cpus(text: &str) -> Result<CpuList, String> {
    let wrong = || format!("'{text}' is not a list of CPUs: write it as 0,2-3");
    let numbers = process::parse_cpu_list(text.trim()).ok_or_else(wrong)?;
    let cpus: Result<Vec<Cpu>, _> = numbers
        .into_iter()
        .map(|cpu| u16::try_from(cpu).map(Cpu))
        .collect();
    let mut cpus = cpus.map_err(|_| wrong())?;
    cpus.sort_unstable();
    cpus.dedup();
    Ok(CpuList(cpus))
}

/// As perf trace has them: a number without a unit.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn parse_millis(text: &str) -> Result<Nanos, String> {
    match text.trim().parse::<f64>() {
        Ok(ms) if (0.0..1e9).contains(&ms) => Ok(Nanos((ms * 1e6).round() as u64)),
        _ => Err("write milliseconds, such as 10 or 0.5".to_string()),
    }
}

/// `256M`, `1G`, `64KiB`, `1048576`.
fn parse_bytes(text: &str) -> Result<Bytes, String> {
    let wrong = || format!("'{text}' is not a size: write it as 256M or 1G");
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(Bytes(bytes)),
        _ => Err(wrong()),
    }
}

/// Of a flight recorder: a word, as it goes into an address.
fn parse_name(text: &str) -> Result<String, String> {
    let is_fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    if text.is_empty() || text.len() > 40 || !text.bytes().all(is_fine) {
        return Err("a name has up to 40 letters, digits, '-', '_' and '.'".to_string());
    }
    Ok(text.to_string())
}

/// Shorter ones are not told one by one by the BPF programs.
const LEAST_CPU_WAIT: Nanos = Nanos::from_millis(1);

fn parse_trigger(text: &str) -> Result<Trigger, String> {
    let (what, duration) = text
        .split_once('>')
        .ok_or("write an event and a duration, such as 'gap>50ms'")?;
    let duration = parse_positive(duration.trim())?;
    match what.trim() {
        "gap" => Ok(Trigger::Gap(duration)),
        "runq" if duration < LEAST_CPU_WAIT => {
            Err("waits for a CPU that are shorter than 1ms are not looked for".to_string())
        }
        "runq" => Ok(Trigger::RunQueue(duration)),
        "wait" => Ok(Trigger::Wait(duration)),
        other => Err(format!("there is no event '{other}': gap, runq or wait")),
    }
}

fn parse_limit(text: &str) -> Result<GapLimit, String> {
    if text == "all" {
        return Ok(GapLimit::All);
    }
    text.parse()
        .map(GapLimit::Count)
        .map_err(|_| "write a number, or all".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Action, clap::Error> {
        Cli::try_parse_from([&["gdiag"], args].concat()).and_then(Cli::into_action)
    }

    fn record(args: &[&str]) -> RecordOptions {
        match parse(&[&["record"], args].concat()).unwrap() {
            Action::Record(options) => options,
            other => panic!("{other:?}"),
        }
    }

    fn report(args: &[&str]) -> ReportOptions {
        match parse(&[&["report"], args].concat()).unwrap() {
            Action::Report(options) => options,
            other => panic!("{other:?}"),
        }
    }

    fn flame(args: &[&str]) -> FlameOptions {
        match parse(&[&["flame"], args].concat()).unwrap() {
            Action::Flame(options) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flame_graph_is_of_idle_time_unless_asked_otherwise() {
        let options = flame(&[]);
        assert_eq!(options.what, stacks::Options::default());
        assert_eq!(options.input, PathBuf::from("gdiag.data"));
        assert_eq!((options.output, options.folded), (None, false));
        let options = flame(&[
            "--mode", "offcpu", "-p", "7", "-t", "8,9", "--from", "1.5s", "--to", "2s", "--gpu",
            "1", "--wakers",
        ]);
        assert_eq!(
            options.what,
            stacks::Options {
                mode: Mode::OffCpu,
                from: Some(Nanos::from_millis(1_500)),
                to: Some(Nanos::from_secs(2)),
                pids: vec![Pid(7)],
                tids: vec![Tid(8), Tid(9)],
                gpu: Some(1),
                wakers: true,
                ..stacks::Options::default()
            }
        );
    }

    #[test]
    fn a_flame_graph_that_makes_no_sense_is_wrong_usage() {
        for args in [
            &["flame", "--mode", "all"][..],
            &["flame", "--from", "2s", "--to", "1s"],
            &["flame", "--normalize"],
            &["flame", "--folded", "--width", "800"],
            &["flame", "--min-width", "100"],
            &["flame", "-t", "0"],
        ] {
            assert_eq!(refused(args).0, 2, "{args:?}");
        }
    }

    /// The exit status and the message of a refused command line.
    fn refused(args: &[&str]) -> (i32, String) {
        let error = parse(args).unwrap_err();
        (error.exit_code(), error.to_string())
    }

    #[test]
    fn what_a_view_would_ignore_is_refused() {
        let sched = |arguments: &[&str]| parse(&[&["sched"], arguments].concat());
        for view in ["--timehist", "--map"] {
            for option in ["--by=name", "--sort=run", "--top=3"] {
                assert!(sched(&[view, option]).is_err(), "{view} {option}");
                assert!(sched(&[option]).is_ok(), "{option}");
            }
            assert!(sched(&[view]).is_ok());
        }
        assert!(sched(&["--map", "-t", "7"]).is_err());
        assert!(sched(&["--json", "--by", "process"]).is_err());
        let syscalls = |arguments: &[&str]| parse(&[&["syscalls"], arguments].concat());
        for option in [
            "--hist",
            "--total",
            "--errno-summary",
            "--top=3",
            "--interval=1s",
        ] {
            assert!(syscalls(&[option]).is_err(), "{option}");
            for sums in ["-s", "-S"] {
                assert!(syscalls(&[sums, option]).is_ok(), "{sums} {option}");
            }
        }
        assert!(syscalls(&["-s", "-T"]).is_err());
        assert!(syscalls(&[]).is_ok() && syscalls(&["-T"]).is_ok());
    }

    #[test]
    fn with_threads_a_command_says_how_long() {
        let target = |arguments: &[&str]| match parse(arguments).unwrap() {
            Action::Sched(SchedOptions {
                source: SchedSource::Live { target, .. },
                ..
            })
            | Action::Syscalls(SyscallsOptions {
                source: SyscallsSource::Live { target, .. },
                ..
            }) => target,
            other => panic!("{other:?}"),
        };
        for subcommand in ["sched", "syscalls"] {
            // Those of the threads, where they are on the machine.
            assert_eq!(
                target(&[subcommand, "-t", "7", "--", "sleep", "1"]),
                Target::All
            );
            assert_eq!(
                target(&[subcommand, "-p", "8", "-t", "7", "--", "sleep", "1"]),
                Target::Pids(vec![Pid(8)])
            );
            assert_eq!(target(&[subcommand, "--", "sleep", "1"]), Target::Command);
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_alone_is_the_target() {
        let options = record(&["--", "python3", "train.py", "-d", "x"]);
        assert_eq!(options.target, Target::Command);
        assert_eq!(options.command, ["python3", "train.py", "-d", "x"]);
        assert_eq!(options.output, PathBuf::from("gdiag.data"));
        assert_eq!(options.wait_threshold, Nanos::from_micros(100));
        assert_eq!(options.duration, None);
    }

    #[test]
    fn everything_after_the_command_belongs_to_it_even_without_dashes() {
        let options = record(&["-d", "2s", "python3", "-u", "train.py", "-a", "--strict"]);
        assert_eq!(
            options.command,
            ["python3", "-u", "train.py", "-a", "--strict"]
        );
        assert_eq!(options.duration, Some(Nanos::from_secs(2)));
        assert!(!options.strict);
    }

    #[test]
    fn a_command_beside_pids_only_times_the_recording() {
        let options = record(&["-p", "12,13", "-p", "14", "--", "sleep", "10"]);
        assert_eq!(
            options.target,
            Target::Pids(vec![Pid(12), Pid(13), Pid(14)])
        );
        assert_eq!(options.command, ["sleep", "10"]);
    }

    #[test]
    fn cgroups_and_containers_are_recorded_together() {
        let options = record(&[
            "-G",
            "/jobs/a,b",
            "--container",
            "9E4F,containerd://0123",
            "--",
            "sleep",
            "1",
        ]);
        assert_eq!(
            options.target,
            Target::Cgroups {
                paths: vec!["/jobs/a".into(), "b".into()],
                containers: vec!["9e4f".to_string(), "0123".to_string()],
            }
        );
        assert_eq!(options.command, ["sleep", "1"]);
    }

    #[test]
    fn the_whole_machine_needs_no_command() {
        let options = record(&["-a", "-qo", "x.data", "--strict", "--wait-threshold", "1ms"]);
        assert_eq!(options.target, Target::All);
        assert_eq!(options.output, PathBuf::from("x.data"));
        assert_eq!(options.wait_threshold, Nanos::from_millis(1));
        assert!(options.strict && options.quiet && options.command.is_empty());
    }

    #[test]
    fn record_writes_all_to_its_file_unless_it_keeps_a_window() {
        assert_eq!(record(&["-a"]).keep, None);
        let keep = record(&[
            "-a",
            "--snapshot-on",
            "gap>50ms",
            "--snapshot-on",
            "runq > 2ms",
        ]);
        let triggers = vec![
            Trigger::Gap(Nanos::from_millis(50)),
            Trigger::RunQueue(Nanos::from_millis(2)),
        ];
        let keep = keep.keep.unwrap();
        assert_eq!(keep.triggers, triggers);
        assert_eq!(
            (keep.window, keep.memory, keep.after, keep.snapshots),
            (
                Nanos::from_secs(10),
                Bytes(256 << 20),
                Nanos::from_secs(1),
                10
            )
        );
        let keep = record(&["-a", "--window", "3s", "--memory", "2M"])
            .keep
            .unwrap();
        assert_eq!(
            (keep.window, keep.memory),
            (Nanos::from_secs(3), Bytes(2 << 20))
        );
        assert_eq!(keep.triggers, []);
        for args in [
            &["record", "-a", "--memory", "64M"][..],
            &["record", "-a", "--after", "1s"],
            &["record", "-a", "--snapshots", "3"],
            &["record", "-a", "--window", "0s"],
            &["record", "-a", "--window", "1s", "--memory", "1K"],
            &["record", "-a", "--snapshot-on", "gap"],
            &["record", "-a", "--snapshot-on", "gap>0s"],
            &["record", "-a", "--snapshot-on", "runq>100us"],
            &["record", "-a", "--snapshot-on", "moon>1s"],
            &[
                "record",
                "-a",
                "--snapshot-on",
                "gap>1s",
                "--snapshot-on",
                "gap>2s",
            ],
            &["record", "-a", "--snapshot-on", "gap>1s", "--window", "2s"],
            &["start"],
            &["start", "-a", "--name", "a/b"],
        ] {
            assert_eq!(refused(args).0, 2, "{args:?}");
        }
    }

    #[test]
    fn stacks_are_taken_unless_told_otherwise() {
        let stacks = |args: &[&str]| record(&[args, &["--", "true"]].concat()).stacks;
        let taken = |frequency, launch_one_in| {
            Some(StackOptions {
                frequency,
                launch_one_in,
            })
        };
        assert_eq!(stacks(&[]), taken(99, None));
        assert_eq!(stacks(&["-F", "0"]), taken(0, None));
        assert_eq!(stacks(&["--launch-stacks", "100"]), taken(99, Some(100)));
        assert_eq!(stacks(&["--no-stacks"]), None);
    }

    #[test]
    fn only_a_launched_target_lends_gdiag_its_exit_status() {
        assert!(parse(&["record", "--", "true"]).unwrap().launches_target());
        assert!(!parse(&["record", "-p", "1", "--", "true"])
            .unwrap()
            .launches_target());
        assert!(!parse(&["record", "-a", "--", "true"])
            .unwrap()
            .launches_target());
        assert!(!parse(&["record", "-G", "/", "--", "true"])
            .unwrap()
            .launches_target());
        assert!(!parse(&["report"]).unwrap().launches_target());
    }

    #[test]
    fn record_without_a_target_is_refused_with_a_hint() {
        for args in [
            &["record"] as &[&str],
            &["record", "-o", "x"],
            &["record", "-d", "1s", "--"],
        ] {
            let (status, text) = refused(args);
            assert_eq!(status, 2);
            assert!(text.contains("nothing to record"), "{text}");
            assert!(text.contains("hint: gdiag record -- "), "{text}");
            assert!(text.contains("Usage: gdiag record"), "{text}");
        }
    }

    #[test]
    fn bad_values_are_usage_errors() {
        for args in [
            &["record", "-d", "10", "--", "true"] as &[&str],
            &["record", "-d", "0s", "--", "true"],
            &["record", "-d", "-1s", "--", "true"],
            &["record", "-d", "1x", "--", "true"],
            &["record", "--wait-threshold", "soon", "--", "true"],
            &["record", "-F", "10001", "--", "true"],
            &["record", "--launch-stacks", "0", "--", "true"],
            &["record", "--no-stacks", "-F", "9", "--", "true"],
            &["record", "-p", "0"],
            &["record", "-p", "python3"],
            &["record", "-p", "-5"],
            &["record", "-p", "1,"],
            &["record", "-p", "4294967295"],
            &["record", "-p", "1", "-a"],
            &["record", "-G", "/x", "-p", "1"],
            &["record", "--container", "9e", "-p", "1"],
            &["record", "-G", "/x", "-a"],
            &["record", "-G", ""],
            &["record", "--container", "web"],
            &["record", "--container", ""],
            &["record", "--unified-memory", "-G", "/x"],
            &["record", "--unified-memory", "-p", "1"],
            &["record", "--unified-memory", "-a"],
            &["record", "-q", "-v", "--", "true"],
            &["record", "--no-such-option"],
            &["record", "--", ""],
            &["report", "--min-gap", "10"],
            &["report", "--gaps", "some"],
            &["report", "--gaps", "-1"],
            &["report", "--gpu", "first"],
            &["report", "gdiag.data"],
            &["shim"],
            &["shim", "install"],
            &["check"],
            &[],
        ] {
            assert_eq!(refused(args).0, 2, "{args:?}");
        }
    }

    #[test]
    fn a_bad_duration_is_told_how_to_write_one() {
        let (_, text) = refused(&["record", "-d", "10", "--", "true"]);
        assert!(text.contains("10s, 250ms, 20us"), "{text}");
    }

    #[test]
    fn report_lists_twenty_gaps_of_ten_microseconds_unless_told() {
        let options = report(&[]);
        assert_eq!(options.gap_limit(), Some(20));
        assert_eq!(options.min_gap, Nanos::from_micros(10));
        assert_eq!(options.gpu, None);
        assert!(!options.json);
        assert_eq!(report(&["--gaps", "all"]).gap_limit(), None);
        assert_eq!(report(&["--gaps", "0"]).gap_limit(), Some(0));
        assert_eq!(report(&["--gpu", "3", "-i", "x"]).gpu, Some(3));
    }

    #[test]
    fn version_and_help_end_with_zero() {
        let (status, text) = refused(&["-V"]);
        assert_eq!(
            (status, text.trim()),
            (0, concat!("gdiag ", env!("CARGO_PKG_VERSION")))
        );
        for args in [
            &["--help"] as &[&str],
            &["record", "-h"],
            &["shim", "install", "--help"],
        ] {
            assert_eq!(refused(args).0, 0, "{args:?}");
        }
    }
}
