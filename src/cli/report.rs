//! `gdiag report`.

use std::path::PathBuf;

use clap::Args;

use super::{after_help, Pairs, DEFAULT_FILE, REPORT_EXIT_STATUS};
use crate::analyse::assert::Assertion;
use crate::units::Nanos;

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
    (
        "gdiag report --assert 'lost<1' --assert 'cause(host.throttled)<1%'",
        "exit status 5 unless both hold",
    ),
];

/// Explain why the GPUs of a recording were idle
///
/// Prints, worst first, what share of the time each GPU was idle, what it waited for, who caused
/// it with the evidence and a remedy, and the longest gaps with every part of their time
/// accounted for. Needs no privileges, and gives the same answer on any machine.
#[derive(Debug, Args)]
#[command(
    override_usage = "gdiag report [-i FILE] [--json] [--gpu N] [--min-gap DUR] [--gaps N|all] \
[--assert EXPR]...",
    after_help = after_help(REPORT_EXAMPLES, &[]),
    after_long_help = after_help(REPORT_EXAMPLES, &[REPORT_EXIT_STATUS]),
)]
pub(super) struct ReportArgs {
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

    /// Exit with status 5 unless this holds, such as 'idle<20%' (can be given again)
    ///
    /// EXPR is a METRIC, one of < <= > >=, and a limit, with or without spaces: a share, a duration or a number, where
    /// each makes sense. METRIC is idle, busy, cause(ID), explained, longest-gap, gaps, lost or gpu-coverage. It must hold for every GPU that was
    /// used, or for the one of --gpu. What cannot be told does not hold: status 1.
    #[arg(long = "assert", value_name = "EXPR")]
    asserts: Vec<Assertion>,
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
    pub asserts: Vec<Assertion>,
}

impl ReportOptions {
    /// How many gaps of each GPU to list; `None` is every one.
    pub fn gap_limit(&self) -> Option<usize> {
        self.gaps.map_or(Some(20), GapLimit::count)
    }
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

impl ReportArgs {
    pub(super) fn into_options(self) -> ReportOptions {
        ReportOptions {
            input: self.input,
            json: self.json,
            gpu: self.gpu,
            min_gap: self.min_gap,
            gaps: self.gaps,
            asserts: self.asserts,
        }
    }
}

pub(super) fn parse_limit(text: &str) -> Result<GapLimit, String> {
    if text == "all" {
        return Ok(GapLimit::All);
    }
    text.parse()
        .map(GapLimit::Count)
        .map_err(|_| "write a number, or all".to_string())
}
