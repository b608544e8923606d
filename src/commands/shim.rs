//! `gdiag shim install`.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::collect::shim_file;
use crate::commands::to_stdout;
use crate::error::status;

/// Writes the library, and prints what a service must have in its environment. The result is
/// the exit status.
pub fn install(dir: &Path) -> Result<u8> {
    let path = shim_file::install(dir)?;
    // The service may start in another directory.
    let path = path
        .canonicalize()
        .with_context(|| format!("cannot find {} again", path.display()))?;
    to_stdout(|out| writeln!(out, "{}={}", shim_file::INJECTION, path.display()))?;
    Ok(status::DONE)
}
