//! `gdiag start`, `stat`, `snapshot` and `stop`: the flight recorder.

use std::path::PathBuf;

use clap::Args;

use super::record::{MessageArgs, RecordedArgs, RecordingArgs};
use super::values::{parse_bytes, parse_name, parse_positive};
use super::{after_help, Pairs, RecordOptions, Target, DEFAULT_FILE, EXIT_STATUS};
pub use crate::analyse::triggers::Trigger;
use crate::units::{Bytes, Nanos};

pub const START_EXAMPLES: Pairs = &[
    (
        "gdiag start -p 4711 --window 30s",
        "keep the last 30 s of a process in memory",
    ),
    ("gdiag snapshot -o now.data", "write what is in memory now"),
    ("gdiag stop", "end it, and clean up"),
    (
        "gdiag start -a --snapshot-on 'gap>50ms'",
        "of all; a file whenever a GPU is idle for longer than 50 ms",
    ),
];

pub const SNAPSHOT_EXAMPLES: Pairs = &[
    ("gdiag snapshot -o now.data", "write what is in memory now"),
    (
        "gdiag snapshot --last 5s",
        "only the last 5 s, to gdiag.data",
    ),
    ("gdiag report -i now.data", "and what it shows"),
];

pub const STAT_EXAMPLES: Pairs = &[
    (
        "gdiag stat",
        "is a flight recorder running, and what does it hold?",
    ),
    ("gdiag stat --json | jq .lost", "the same for scripts"),
];

pub const STOP_EXAMPLES: Pairs = &[
    ("gdiag stop", "end the flight recorder, and clean up"),
    ("gdiag stop -o last.data", "write what it holds first"),
];

/// `start` can fail as `record` can.
pub const START_EXIT_STATUS: Pairs = &[("77", "this kernel or these privileges cannot do it")];

/// `snapshot`, `stat` and `stop` talk to another process.
pub const FLIGHT_EXIT_STATUS: Pairs = &[("3", "no flight recorder is running")];

/// When and how much to keep in memory.
#[derive(Clone, Debug, Args)]
pub(super) struct KeepArgs {
    /// Keep this much of the past [default: 10s]
    #[arg(long, value_name = "DUR", value_parser = parse_positive)]
    pub(super) window: Option<Nanos>,

    /// Keep at most this much in memory; the oldest goes first [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(super) memory: Option<Bytes>,

    /// Go on for this long after the event before the snapshot is written [default: 1s]
    #[arg(long, value_name = "DUR")]
    pub(super) after: Option<Nanos>,

    /// Write at most so many snapshots by themselves [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) snapshots: Option<u32>,
}

/// With less, not even the threads of a machine have room.
fn parse_memory(text: &str) -> Result<Bytes, String> {
    match parse_bytes(text)? {
        bytes if bytes < Bytes(1 << 20) => Err("must be at least 1M".to_string()),
        bytes => Ok(bytes),
    }
}

/// Start the flight recorder: record into memory, where the newest overwrites the oldest
///
/// It runs in the background until `gdiag stop`. `gdiag snapshot`, the signal USR2 and the events of
/// --snapshot-on write what is in memory to a recording. When its targets have ended, it holds what it
/// has until it is asked for; with --snapshot-on it writes that, and ends.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag start <-p PID[,PID]... | -G PATH[,PATH]... | --container ID | -a> [OPTIONS]",
    after_help = after_help(START_EXAMPLES, &[]),
    after_long_help = after_help(START_EXAMPLES, &[EXIT_STATUS, START_EXIT_STATUS]),
)]
pub(super) struct StartArgs {
    #[command(flatten)]
    recorded: RecordedArgs,

    /// Where snapshots go: FILE.1, FILE.2 and so on
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    output: PathBuf,

    #[command(flatten)]
    keep: KeepArgs,

    /// Write a snapshot after each such event: a GPU idle for longer than this (gap>50ms), a thread
    /// that waited for a CPU (runq>20ms) or for anything (wait>1s)
    #[arg(long, value_name = "EVENT", value_parser = super::values::parse_trigger)]
    snapshot_on: Vec<Trigger>,

    /// Name of this flight recorder: there can be several
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_name)]
    name: String,

    #[command(flatten)]
    recording: RecordingArgs,

    #[command(flatten)]
    messages: MessageArgs,
}

/// Show whether the flight recorder runs, and what it holds
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag stat [--name NAME] [--json]",
    after_help = after_help(STAT_EXAMPLES, &[]),
    after_long_help = after_help(STAT_EXAMPLES, &[EXIT_STATUS, FLIGHT_EXIT_STATUS]),
)]
pub(super) struct StatArgs {
    /// Which flight recorder
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_name)]
    name: String,

    /// Write JSON instead of text (schema gdiag.stat/1)
    #[arg(long)]
    json: bool,
}

/// Write what the flight recorder holds to a recording; it goes on
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag snapshot [-o FILE] [--last DUR] [--name NAME]",
    after_help = after_help(SNAPSHOT_EXAMPLES, &[]),
    after_long_help = after_help(SNAPSHOT_EXAMPLES, &[EXIT_STATUS, FLIGHT_EXIT_STATUS]),
)]
pub(super) struct SnapshotArgs {
    /// Which flight recorder
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_name)]
    name: String,

    /// Write the recording here; an old one becomes FILE.old
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    output: PathBuf,

    /// Only the last so much of what it holds
    #[arg(long, value_name = "DUR", value_parser = parse_positive)]
    last: Option<Nanos>,
}

/// End the flight recorder, and clean up after one that was killed
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag stop [-o FILE] [--name NAME]",
    after_help = after_help(STOP_EXAMPLES, &[]),
    after_long_help = after_help(STOP_EXAMPLES, &[EXIT_STATUS, FLIGHT_EXIT_STATUS]),
)]
pub(super) struct StopArgs {
    /// Which flight recorder
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = parse_name)]
    name: String,

    /// Write what it holds to a recording first
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How much of the past to keep, and when to write it.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepOptions {
    pub window: Nanos,
    pub memory: Bytes,
    /// Recorded after an event before the snapshot of it is written.
    pub after: Nanos,
    /// Snapshots that are written without being asked for, at most.
    pub snapshots: u32,
    pub triggers: Vec<Trigger>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StartOptions {
    pub name: String,
    /// Its output is where snapshots go, with a number after it.
    pub record: RecordOptions,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatOptions {
    pub name: String,
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    pub name: String,
    pub output: PathBuf,
    pub last: Option<Nanos>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopOptions {
    pub name: String,
    pub output: Option<PathBuf>,
}

impl KeepArgs {
    pub(super) fn into_options(
        self,
        subcommand: &str,
        triggers: Vec<Trigger>,
    ) -> Result<KeepOptions, clap::Error> {
        let options = KeepOptions {
            window: self.window.unwrap_or(Nanos::from_secs(10)),
            memory: self.memory.unwrap_or(Bytes(256 << 20)),
            after: self.after.unwrap_or(Nanos::from_secs(1)),
            snapshots: self.snapshots.unwrap_or(10),
            triggers,
        };
        for trigger in &options.triggers {
            let kind = std::mem::discriminant(trigger);
            let same = options
                .triggers
                .iter()
                .filter(|t| std::mem::discriminant(*t) == kind);
            if same.count() > 1 {
                return Err(super::usage_error(
                    subcommand,
                    clap::error::ErrorKind::InvalidValue,
                    "an event can be given once: the shorter of two times has all of the other",
                ));
            }
            // From the alarm on, what belongs to it is kept.
            let late = trigger.alarm_after();
            let needed = trigger.least() + options.after.max(late);
            if needed >= options.window {
                return Err(super::usage_error(
                    subcommand,
                    clap::error::ErrorKind::InvalidValue,
                    &format!(
                        "a window of {} does not hold {trigger} and {} after it: give a longer --window",
                        options.window,
                        options.after.max(late)
                    ),
                ));
            }
        }
        Ok(options)
    }

    /// For `record`, which writes everything to its file unless a window or an event is given.
    pub(super) fn into_record_options(
        self,
        triggers: Vec<Trigger>,
    ) -> Result<Option<KeepOptions>, clap::Error> {
        if self.window.is_some() || !triggers.is_empty() {
            return self.into_options("record", triggers).map(Some);
        }
        for (option, is_given) in [
            ("--memory", self.memory.is_some()),
            ("--after", self.after.is_some()),
            ("--snapshots", self.snapshots.is_some()),
        ] {
            if is_given {
                return Err(super::usage_error(
                    "record",
                    clap::error::ErrorKind::MissingRequiredArgument,
                    &format!("{option} needs --window or --snapshot-on: without, everything is written to the file"),
                ));
            }
        }
        Ok(None)
    }
}

impl StartArgs {
    pub(super) fn into_options(self) -> Result<StartOptions, clap::Error> {
        let target = self.recorded.target().ok_or_else(|| {
            super::usage_error(
                "start",
                clap::error::ErrorKind::MissingRequiredArgument,
                "nothing to record: give processes (-p PID, -G CGROUP, --container ID) or the whole \
                 machine (-a)\n\n  hint: gdiag start -a",
            )
        })?;
        debug_assert!(target != Target::Command);
        let keep = self.keep.into_options("start", self.snapshot_on)?;
        let options = RecordOptions {
            keep: Some(keep),
            ..self
                .recording
                .into_options(target, Vec::new(), self.output, &self.messages)
        };
        Ok(StartOptions {
            name: self.name,
            record: options,
        })
    }
}

impl StatArgs {
    pub(super) fn into_options(self) -> StatOptions {
        StatOptions {
            name: self.name,
            json: self.json,
        }
    }
}

impl SnapshotArgs {
    pub(super) fn into_options(self) -> SnapshotOptions {
        SnapshotOptions {
            name: self.name,
            output: self.output,
            last: self.last,
        }
    }
}

impl StopArgs {
    pub(super) fn into_options(self) -> StopOptions {
        StopOptions {
            name: self.name,
            output: self.output,
        }
    }
}
