//! `gdiag record`, and what the flight recorder shares with it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::Args;

use super::values::{parse_container, parse_pid, parse_positive, parse_trigger};
use super::{
    after_help, flight, usage_error, watched, KeepOptions, Pairs, Target, Trigger, DEFAULT_FILE,
    EXIT_STATUS, RECORD_EXIT_STATUS,
};
use crate::event::Pid;
use crate::units::Nanos;

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
pub(super) struct RecordArgs {
    #[command(flatten)]
    recorded: RecordedArgs,

    /// Write the recording here; an old one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    output: PathBuf,

    /// Stop recording after this time, such as 10s or 250ms
    #[arg(short, long, value_name = "DUR", value_parser = parse_positive)]
    duration: Option<Nanos>,

    #[command(flatten)]
    recording: RecordingArgs,

    /// Record when managed memory moves, and when the GPU waits for it. Slows down programs that
    /// use much of it. CUPTI has to be told before the first allocation: for a launched command only
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "container", "all"])]
    unified_memory: bool,

    /// Keep what happens in memory, and write a snapshot to FILE.1, FILE.2 and so on after each such event: a GPU
    /// idle for longer than this (gap>50ms), a thread that waited for a CPU (runq>20ms) or for anything
    /// (wait>1s). So does the signal USR2, also with --window alone
    #[arg(long, value_name = "EVENT", value_parser = parse_trigger)]
    snapshot_on: Vec<Trigger>,

    #[command(flatten)]
    keep: flight::KeepArgs,

    /// Exit with status 4 when events were lost
    #[arg(long)]
    strict: bool,

    #[command(flatten)]
    messages: MessageArgs,

    /// The command to run, with its arguments: the target, or next to another one how long to record
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Whom a recorder records.
#[derive(Debug, Args)]
pub(super) struct RecordedArgs {
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
}

/// What a recorder records.
#[derive(Debug, Args)]
pub(super) struct RecordingArgs {
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
}

/// What a recorder says meanwhile.
#[derive(Debug, Args)]
pub(super) struct MessageArgs {
    /// Print errors and warnings only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Print what is being done; twice for libbpf's messages too
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
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

impl RecordedArgs {
    /// `None`: nothing that runs already.
    pub(super) fn target(&self) -> Option<Target> {
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
}

impl RecordingArgs {
    pub(super) fn into_options(
        self,
        target: Target,
        command: Vec<OsString>,
        output: PathBuf,
        messages: &MessageArgs,
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
            quiet: messages.quiet,
            verbose: messages.verbose,
        }
    }
}

impl RecordArgs {
    pub(super) fn into_options(self) -> Result<RecordOptions, clap::Error> {
        let target = match self.recorded.target() {
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
                .into_options(target, self.command, self.output, &self.messages)
        })
    }
}
