//! Whom a live command looks at: options that several subcommands have.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::Args;

use super::values::{parse_container, parse_pid};
use super::{usage_error, Target};
use crate::event::Pid;

/// Nobody named, and no command: the whole machine.
#[derive(Debug, Args)]
pub(super) struct WatchedArgs {
    /// Watch these processes and their children; ends when they do
    #[arg(short, long, value_name = "PID[,PID]...", value_delimiter = ',', value_parser = parse_pid)]
    pub(super) pid: Vec<Pid>,

    /// Watch the processes of these cgroups and of those below them, and whoever comes into them;
    /// ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it
    #[arg(short = 'G', long, value_name = "PATH[,PATH]...", value_delimiter = ',',
          value_parser = clap::value_parser!(PathBuf), conflicts_with = "pid")]
    pub(super) cgroup: Vec<PathBuf>,

    /// Watch the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O,
    /// Podman or Kubernetes
    #[arg(long, value_name = "ID[,ID]...", value_delimiter = ',', value_parser = parse_container,
          conflicts_with = "pid")]
    pub(super) container: Vec<String>,

    /// Watch the whole machine, also when a command is given
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup", "container"])]
    pub(super) all: bool,

    /// The command to run, with its arguments: the target, or next to another one how long to watch
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}

impl WatchedArgs {
    /// With `threads` those are watched unless others are named, and a command says how long.
    pub(super) fn into_target(
        self,
        subcommand: &str,
        threads: bool,
    ) -> Result<(Target, Vec<OsString>), clap::Error> {
        let target = if !self.pid.is_empty() {
            Target::Pids(self.pid)
        } else if !self.cgroup.is_empty() || !self.container.is_empty() {
            Target::Cgroups {
                paths: self.cgroup,
                containers: self.container,
            }
        } else if self.all || threads || self.command.is_empty() {
            Target::All
        } else {
            Target::Command
        };
        check_command(subcommand, &self.command)?;
        Ok((target, self.command))
    }
}

pub(super) fn check_command(subcommand: &str, command: &[OsString]) -> Result<(), clap::Error> {
    if command.first().is_some_and(|program| program.is_empty()) {
        return Err(usage_error(
            subcommand,
            ErrorKind::InvalidValue,
            "the command to run has an empty name",
        ));
    }
    Ok(())
}
