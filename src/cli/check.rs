//! `gdiag check`.

use std::path::PathBuf;

use clap::Args;

use super::values::parse_pid;
use super::{after_help, Pairs, EXIT_STATUS};
use crate::event::Pid;

pub const CHECK_EXAMPLES: Pairs = &[
    (
        "gdiag check",
        "can this machine be recorded, and what is missing?",
    ),
    ("gdiag check -p 4711", "and this process? It is not touched"),
    ("gdiag check --json | jq .can", "the same for scripts"),
    (
        "gdiag check --bundle gdiag-bundle.tar.gz",
        "what a bug report needs, with nothing private in it",
    ),
];

/// What `check` adds.
pub const CHECK_EXIT_STATUS: Pairs = &[(
    "77",
    "something that every recording needs is missing; warnings do not count",
)];

/// Tell whether this machine can be recorded, and what to do about what is missing
///
/// Looks at the kernel, its BPF features, rights and limits, the NVIDIA driver, every libcupti, containers,
/// cgroups and disks, and at who uses CUDA. The BPF programs are loaded as a recording would do it, without a target,
/// and are gone at once. Without root it tells what it can.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag check [-p PID] [--json] [--bundle FILE]",
    after_help = after_help(CHECK_EXAMPLES, &[]),
    after_long_help = after_help(CHECK_EXAMPLES, &[EXIT_STATUS, CHECK_EXIT_STATUS]),
)]
pub(super) struct CheckArgs {
    /// Also look at this process, without touching it: would its GPU be recorded, and why not?
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<Pid>,

    /// Write JSON instead of text (schema gdiag.check/1)
    #[arg(long)]
    json: bool,

    /// Also write a support bundle here (.tar.gz); there are no names, paths or ids of yours in it
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    pub pid: Option<Pid>,
    pub json: bool,
    pub bundle: Option<PathBuf>,
}

impl CheckArgs {
    pub(super) fn into_options(self) -> CheckOptions {
        CheckOptions {
            pid: self.pid,
            json: self.json,
            bundle: self.bundle,
        }
    }
}
