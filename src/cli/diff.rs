//! `gdiag diff`.

use std::path::PathBuf;

use clap::Args;

use super::{after_help, Pairs, DEFAULT_FILE, DIFF_EXIT_STATUS};
use crate::units::Nanos;

/// What `record` makes of an older recording.
pub const OLD_FILE: &str = "gdiag.data.old";

pub const DIFF_EXAMPLES: Pairs = &[
    (
        "gdiag diff",
        "what changed since the recording before this one",
    ),
    (
        "gdiag diff good.data slow.data",
        "what is slow that was not",
    ),
    (
        "gdiag diff good.data slow.data --json | jq '.gpus[0].idle'",
        "the idle share of a GPU, its change and the noise, for scripts",
    ),
];

/// Say what changed from one recording to another
///
/// Compares shares of time, and time for the same work, so that recordings of different length compare. Every
/// figure has a bound for what it would differ by if nothing had changed, taken from how it
/// varies within each recording; a change within this noise is said to be none. Needs no privileges.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag diff [A [B]] [--json] [--gpu N] [--min-gap DUR]",
    after_help = after_help(DIFF_EXAMPLES, &[]),
    after_long_help = after_help(DIFF_EXAMPLES, &[DIFF_EXIT_STATUS]),
)]
pub(super) struct DiffArgs {
    /// The recording to compare with
    #[arg(value_name = "A", default_value = OLD_FILE)]
    a: PathBuf,

    /// The recording that may have changed
    #[arg(value_name = "B", default_value = DEFAULT_FILE)]
    b: PathBuf,

    /// Write JSON instead of text (schema gdiag.diff/1)
    #[arg(long)]
    json: bool,

    /// Only this GPU, by its number in the reports
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// Look for the cause of gaps at least this long; shorter ones still count in every sum
    #[arg(long, value_name = "DUR", default_value = "10us")]
    min_gap: Nanos,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DiffOptions {
    pub a: PathBuf,
    pub b: PathBuf,
    pub json: bool,
    /// Number of the only GPU to compare; `None` is all of them.
    pub gpu: Option<u32>,
    pub min_gap: Nanos,
}

impl DiffArgs {
    pub(super) fn into_options(self) -> DiffOptions {
        DiffOptions {
            a: self.a,
            b: self.b,
            json: self.json,
            gpu: self.gpu,
            min_gap: self.min_gap,
        }
    }
}
