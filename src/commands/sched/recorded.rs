//! The summary of a recording.

use crate::cli::SchedOptions;

pub(super) fn run(_options: &SchedOptions) -> anyhow::Result<u8> {
    anyhow::bail!("under construction")
}
