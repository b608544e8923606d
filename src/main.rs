//! Parse, run, print the error chain, exit status.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use gdiag::cli::Cli;
use gdiag::{commands, error};

fn main() -> ExitCode {
    let action = match Cli::try_parse().and_then(Cli::into_action) {
        Ok(action) => action,
        // Help and version to stdout with 0, wrong usage to stderr with 2.
        Err(usage) => usage.exit(),
    };
    match commands::run(&action) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            // With stderr gone there is nobody left to tell.
            let _ = std::io::stderr().write_all(error::render(&failure).as_bytes());
            ExitCode::from(error::exit_status(&failure, action.launches_target()))
        }
    }
}
