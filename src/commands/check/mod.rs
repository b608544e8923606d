//! `gdiag check`: looks, decides, shows.
#![forbid(unsafe_code)]

mod bundle;

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Result;
use bundle::Place;
use nix::sys::resource::{getrlimit, setrlimit, Resource};

use super::flight;
use super::subject::check_pid;
use super::to_stdout;
use crate::checkup::Checkup;
use crate::cli::CheckOptions;
use crate::collect::machine::{self, Facts};
use crate::collect::process::Proc;
use crate::error::status;
use crate::present::check;
use crate::present::style::Style;

pub fn run(options: &CheckOptions) -> Result<u8> {
    if let (Some(_), Some(error)) = (options.pid, Proc::look().error()) {
        return Err(error.into());
    }
    let pid = options.pid.map(check_pid).transpose()?;
    let place = options.bundle.as_deref().map(Place::at).transpose()?;
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
    if let Some(place) = place {
        let said = bundle::write(place, &facts)?;
        // With stderr gone there is nobody to tell.
        let _ = writeln!(io::stderr(), "{said}");
    }
    Ok(match checkup.can.host {
        Some(true) => status::DONE,
        Some(false) | None => status::CANNOT,
    })
}
