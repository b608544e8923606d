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
use crate::collect::process::{self, Kind, Proc};
use crate::error::{status, Error};
use crate::event::Pid;
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
    pid.map_or(Ok(()), still_there)?;
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

/// Of a process that ended while it was looked at, what was found is not true.
fn still_there(pid: u32) -> Result<(), Error> {
    match process::kind(pid) {
        Kind::Ended | Kind::Nothing => Err(Error::HasEnded { pid: Pid(pid) }),
        Kind::Process | Kind::ThreadOf(_) | Kind::KernelThread(_) | Kind::Hidden => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_meanwhile_is_said_to_have() {
        assert!(still_there(std::process::id()).is_ok());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let said = still_there(child.id()).unwrap_err();
        assert!(matches!(said, Error::HasEnded { pid } if pid.0 == child.id()));
    }
}
