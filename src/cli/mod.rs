//! What was asked: clap types, and their conversion to plain options.
//!
//! Nothing here has an effect. The texts after the options (examples, exit
//! status) are public because the manual pages are made from them too.
#![forbid(unsafe_code)]

mod check;
mod diff;
mod export;
mod flame;
mod flight;
mod record;
mod report;
mod sched;
mod syscalls;
mod top;
mod values;
mod watched;

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::event::Pid;
use crate::units::Nanos;

pub use check::{CheckOptions, CHECK_EXAMPLES, CHECK_EXIT_STATUS};
pub use diff::{DiffOptions, DIFF_EXAMPLES, OLD_FILE};
pub use export::{ExportFormat, ExportOptions, EXPORT_EXAMPLES};
pub use flame::{FlameOptions, FLAME_EXAMPLES};
pub use flight::{
    KeepOptions, SnapshotOptions, StartOptions, StatOptions, StopOptions, Trigger,
    FLIGHT_EXIT_STATUS, SNAPSHOT_EXAMPLES, START_EXAMPLES, START_EXIT_STATUS, STAT_EXAMPLES,
    STOP_EXAMPLES,
};
pub use record::{RecordOptions, StackOptions, RECORD_EXAMPLES};
pub use report::{GapLimit, ReportOptions, REPORT_EXAMPLES};
pub use sched::{
    CpuList, SchedBy, SchedOptions, SchedSort, SchedSource, SchedView, SCHED_EXAMPLES,
};
pub use syscalls::{SyscallsOptions, SyscallsSource, SYSCALLS_EXAMPLES};
pub use top::{Batch, TopOptions, TopSource, SNAPSHOT_FILE, TOP_EXAMPLES};

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
    ("gdiag top", "the same, live"),
    (
        "gdiag sched -p 4711 -d 10s",
        "who takes its CPUs, and how long does it wait for one?",
    ),
    (
        "gdiag syscalls -s -p 4711 -d 10s",
        "which system calls does it make, and how long do they take?",
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

/// `report` fails in more ways.
pub const REPORT_EXIT_STATUS: Pairs = &[
    EXIT_STATUS[0],
    (
        "1",
        "failed, or the recording was cut and is reported as far as it goes, or an --assert cannot be told",
    ),
    EXIT_STATUS[2],
    ("5", "an --assert does not hold"),
];

/// So does `diff`.
pub const DIFF_EXIT_STATUS: Pairs = &[
    (
        "0",
        "compared, whether anything changed or not; also when the reader of the output went away",
    ),
    (
        "1",
        "failed, or a recording was cut and is compared as far as it goes, or no GPU is in both",
    ),
    EXIT_STATUS[2],
];

/// An `export` can be of a cut recording.
pub const EXPORT_EXIT_STATUS: Pairs = &[
    EXIT_STATUS[0],
    (
        "1",
        "failed, or the recording was cut and is written as far as it goes",
    ),
    EXIT_STATUS[2],
];

/// So can a `flame` graph.
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

/// Of all subcommands together.
pub const ALL_EXIT_STATUS: Pairs = &[
    EXIT_STATUS[0],
    EXIT_STATUS[1],
    EXIT_STATUS[2],
    RECORD_EXIT_STATUS[0],
    RECORD_EXIT_STATUS[1],
    REPORT_EXIT_STATUS[3],
    RECORD_EXIT_STATUS[2],
    RECORD_EXIT_STATUS[3],
    RECORD_EXIT_STATUS[4],
    RECORD_EXIT_STATUS[5],
    RECORD_EXIT_STATUS[6],
];

/// What live commands and recorders add.
pub const LIVE_EXIT_STATUS: Pairs = RECORD_EXIT_STATUS;

/// A narrow terminal: what is wider would be wrapped into the first column.
const NARROW: usize = 78;

/// The help text of a subcommand after its options. Where two columns do not fit, what an example
/// does is told below it.
fn after_help(examples: Pairs, statuses: &[Pairs]) -> String {
    let longest = |column: fn(&(&'static str, &'static str)) -> &'static str| {
        examples.iter().map(|pair| column(pair).len()).max()
    };
    let width = longest(|pair| pair.0).unwrap_or(0);
    let fits = 4 + width + longest(|pair| pair.1).unwrap_or(0) <= NARROW;
    let mut text = "Examples:".to_string();
    for (example, meaning) in examples {
        text.push_str(&if fits {
            format!("\n  {example:<width$}  {meaning}")
        } else {
            format!("\n  {example}\n      {meaning}")
        });
    }
    if !statuses.is_empty() {
        text.push_str("\n\nExit status:");
    }
    for (status, meaning) in statuses.iter().copied().flatten() {
        text.push_str(&format!("\n  {status:<5} "));
        let mut column = 8;
        for word in meaning.split(' ') {
            if column + 1 + word.len() > NARROW {
                text.push_str("\n        ");
                column = 8;
            }
            text.push(' ');
            text.push_str(word);
            column += 1 + word.len();
        }
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
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = after_help(EXAMPLES, &[]),
    after_long_help = after_help(EXAMPLES, &[ALL_EXIT_STATUS]),
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Top(top::TopArgs),
    Record(record::RecordArgs),
    Report(report::ReportArgs),
    Diff(diff::DiffArgs),
    Flame(flame::FlameArgs),
    Sched(sched::SchedArgs),
    Syscalls(syscalls::SyscallsArgs),
    Export(export::ExportArgs),
    Start(flight::StartArgs),
    Stat(flight::StatArgs),
    Snapshot(flight::SnapshotArgs),
    Stop(flight::StopArgs),
    Check(check::CheckArgs),
    Shim(ShimArgs),
}

/// Handle the library that records CUDA inside a program
///
/// `gdiag record -- CMD` brings the library along by itself. Install it to start a service that
/// carries it asleep, so that it can be recorded later with -p.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = after_help(SHIM_EXAMPLES, &[]),
    after_long_help = after_help(SHIM_EXAMPLES, &[EXIT_STATUS]),
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
    Top(TopOptions),
    Record(RecordOptions),
    Report(ReportOptions),
    Diff(DiffOptions),
    Flame(FlameOptions),
    Sched(SchedOptions),
    Syscalls(SyscallsOptions),
    Export(ExportOptions),
    Start(StartOptions),
    Stat(StatOptions),
    Snapshot(SnapshotOptions),
    Stop(StopOptions),
    Check(CheckOptions),
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
            Action::Top(TopOptions {
                source: TopSource::Live { target, .. },
                ..
            }) => target,
            Action::Top(_)
            | Action::Report(_)
            | Action::Diff(_)
            | Action::Flame(_)
            | Action::Sched(_)
            | Action::Syscalls(_)
            | Action::Export(_)
            | Action::Start(_)
            | Action::Stat(_)
            | Action::Snapshot(_)
            | Action::Stop(_)
            | Action::Check(_)
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
    /// Whoever uses CUDA, also those that begin later.
    Cuda,
}

impl Cli {
    /// Checks what clap cannot, and leaves clap's types behind.
    pub fn into_action(self) -> Result<Action, clap::Error> {
        Ok(match self.command {
            Command::Top(args) => Action::Top(args.into_options()?),
            Command::Record(args) => Action::Record(args.into_options()?),
            Command::Report(args) => Action::Report(args.into_options()),
            Command::Diff(args) => Action::Diff(args.into_options()),
            Command::Flame(args) => Action::Flame(args.into_options()?),
            Command::Sched(args) => Action::Sched(args.into_options()?),
            Command::Syscalls(args) => Action::Syscalls(args.into_options()?),
            Command::Export(args) => Action::Export(args.into_options()?),
            Command::Start(args) => Action::Start(args.into_options()?),
            Command::Stat(args) => Action::Stat(args.into_options()),
            Command::Snapshot(args) => Action::Snapshot(args.into_options()),
            Command::Stop(args) => Action::Stop(args.into_options()),
            Command::Check(args) => Action::Check(args.into_options()),
            Command::Shim(args) => match args.command {
                ShimCommand::Install { dir } => Action::ShimInstall { dir },
            },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::stacks::{self, Mode};
    use crate::event::Tid;
    use crate::units::Bytes;

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
    fn a_comparison_is_with_the_recording_before() {
        let diff = |args: &[&str]| match parse(&[&["diff"], args].concat()).unwrap() {
            Action::Diff(options) => (options.a, options.b),
            other => panic!("{other:?}"),
        };
        let files = |a: &str, b: &str| (PathBuf::from(a), PathBuf::from(b));
        assert_eq!(diff(&[]), files("gdiag.data.old", "gdiag.data"));
        assert_eq!(diff(&["good.data"]), files("good.data", "gdiag.data"));
        assert_eq!(diff(&["a", "b", "--json"]), files("a", "b"));
        assert_eq!(refused(&["diff", "a", "b", "c"]).0, 2);
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
