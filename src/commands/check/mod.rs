//! `gdiag check`: looks, decides, shows.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::Result;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

use super::flight;
use super::subject::check_pid;
use super::to_stdout;
use crate::checkup::Checkup;
use crate::cli::CheckOptions;
use crate::collect::machine::{self, Facts};
use crate::error::status;
use crate::present::check;
use crate::present::style::Style;

pub fn run(options: &CheckOptions) -> Result<u8> {
    let pid = options.pid.map(check_pid).transpose()?;
    if options.bundle.is_some() {
        anyhow::bail!("bundles come with the next commit");
    }
    // As a recording does.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let facts = Facts {
        recorders: flight::running(),
        ..machine::look(Path::new("."), pid)
    };
    let checkup = Checkup::of(&facts);
    to_stdout(|out| match options.json {
        true => check::write_json(out, &checkup),
        false => check::write_text(out, &checkup, Style::for_stdout(0)),
    })?;
    Ok(match checkup.can.host {
        Some(true) => status::DONE,
        Some(false) | None => status::CANNOT,
    })
}
