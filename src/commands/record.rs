//! `gdiag record`.
#![forbid(unsafe_code)]

use crate::cli::RecordOptions;

/// The result is the exit status.
pub fn run(_options: &RecordOptions) -> anyhow::Result<u8> {
    anyhow::bail!("record is not built on this branch")
}
