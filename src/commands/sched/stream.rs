//! A line for each switch, of a recording or as they happen.

use crate::cli::SchedOptions;

pub(super) fn run(_options: &SchedOptions) -> anyhow::Result<u8> {
    anyhow::bail!("under construction")
}
