//! `gdiag syscalls`.
#![forbid(unsafe_code)]

mod filter;
mod live;
mod output;
mod recorded;

use anyhow::Result;

use crate::cli::{SyscallsOptions, SyscallsSource};

/// The result is the exit status.
pub fn run(options: &SyscallsOptions) -> Result<u8> {
    match &options.source {
        SyscallsSource::Live {
            target,
            command,
            duration,
            interval,
        } => live::run(
            options,
            &live::Run {
                target,
                command,
                duration: *duration,
                interval: *interval,
            },
        ),
        SyscallsSource::Recording { input, from, to } => {
            recorded::run(options, input, (*from, *to))
        }
    }
}
