//! `gdiag top`: a thread collects and analyses, another draws. They share the last slices and nothing else.
#![forbid(unsafe_code)]

use crate::cli::TopOptions;

/// The result is the exit status.
pub fn run(_options: &TopOptions) -> anyhow::Result<u8> {
    anyhow::bail!("top is being built")
}
