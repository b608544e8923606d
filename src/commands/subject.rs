//! Whom a command looks at, and until when: processes, cgroups, the machine, or a command that is
//! launched for it.
//!
//! `record`, `sched`, `syscalls` and the flight recorder differ in what they do while they look. What they
//! have in common is here: targets are checked before anything starts, signals end a run cleanly, and a
//! launched command is stood in for, with its exit status.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::resource::{getrlimit, rlim_t, setrlimit, Resource};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::cli::Target;
use crate::collect::cgroup::{Cgroup, Hierarchies};
use crate::collect::clock;
use crate::collect::machine::FEWEST_OPEN_FILES;
use crate::collect::process::{self, Kind, Proc};
use crate::collect::target::{self, Command};
use crate::error::{self, status, Error};
use crate::event::Pid;
use crate::units::Nanos;

/// Variables for a launched command.
type Environment = Vec<(&'static str, OsString)>;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A signal.
    Asked,
    Duration,
    CommandEnded,
    TargetsEnded,
}

/// What [`Subject::wait`] was waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Woken {
    /// The source has something to read.
    pub(super) ready: bool,
    /// USR1 came: an interim report is wanted.
    pub(super) report: bool,
    /// USR2 came: a snapshot is wanted.
    pub(super) snapshot: bool,
    pub(super) end: Option<End>,
}

pub(super) struct Subject {
    signals: Signals,
    target: Target,
    /// Of [`Target::Pids`].
    pids: Vec<u32>,
    /// Those of `pids` that have not ended.
    processes: Vec<OwnedFd>,
    cgroups: Vec<Cgroup>,
    command: Option<Command>,
    deadline: Option<Nanos>,
    /// There is a terminal to give back before a second signal may end gdiag at once.
    has_screen: bool,
    /// What ended the run.
    asked: Option<Signal>,
}

impl Subject {
    /// Checks all that was asked for, and forks the command, which then waits for [`Subject::go`].
    /// `environment` is asked when the command is the target. `screen`: the terminal is gdiag's, so the command has nothing of it.
    ///
    /// Must be called while gdiag has one thread.
    pub(super) fn prepare(
        target: &Target,
        command: &[OsString],
        screen: bool,
        environment: impl FnOnce() -> Environment,
    ) -> Result<Subject> {
        if let Some(error) = Proc::look().error() {
            return Err(error.into());
        }
        let most = open_files()?;
        let signals = Signals::block()?;
        let program = command.first().map(resolve).transpose()?;
        let (pids, cgroups) = match target {
            Target::Pids(pids) => {
                let pids = pids.iter().map(|&pid| check_pid(pid));
                (pids.collect::<Result<Vec<_>>>()?, Vec::new())
            }
            Target::Cgroups { paths, containers } => (Vec::new(), find_cgroups(paths, containers)?),
            Target::Command | Target::All | Target::Cuda => (Vec::new(), Vec::new()),
        };
        // Forked before anything starts a thread; it waits until it is watched.
        let environment = match target {
            Target::Command => environment(),
            Target::Pids(_) | Target::Cgroups { .. } | Target::All | Target::Cuda => Vec::new(),
        };
        let command = program
            .map(|program| {
                let mask = &signals.before;
                Command::prepare(&program, command, &environment, mask, screen)
            })
            .transpose()?;
        // Only now: the command keeps the limit that gdiag was started with.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
        let processes = pids.iter().map(|&pid| watch_process(pid));
        Ok(Subject {
            processes: processes.collect::<Result<Vec<_>>>()?,
            signals,
            target: target.clone(),
            pids,
            cgroups,
            command,
            deadline: None,
            has_screen: false,
            asked: None,
        })
    }

    /// The processes to look at, with all that they started and will, by the pids that gdiag sees.
    pub(super) fn targets(&self) -> Vec<u32> {
        match &self.command {
            Some(command) if self.target == Target::Command => vec![command.pid()],
            Some(_) | None => self.pids.clone(),
        }
    }

    /// The command is the target.
    pub(super) fn is_command(&self) -> bool {
        self.target == Target::Command
    }

    /// Processes that are no target, though they may be in the cgroup of some, or gdiag a child of one.
    pub(super) fn strangers(&self) -> Vec<u32> {
        match &self.command {
            Some(command) if self.target != Target::Command => vec![command.pid()],
            Some(_) | None => Vec::new(),
        }
    }

    pub(super) fn cgroups(&self) -> &[Cgroup] {
        &self.cgroups
    }

    /// All processes of the target, as they are now. Of a launched command none.
    pub(super) fn members(&self) -> Vec<u32> {
        match self.target {
            Target::Pids(_) => process::with_descendants(&self.pids),
            Target::Cgroups { .. } => self.cgroups.iter().flat_map(Cgroup::processes).collect(),
            Target::All => process::with_descendants(&[0]),
            Target::Command | Target::Cuda => Vec::new(),
        }
    }

    /// Who is looked at, for a person.
    pub(super) fn text(&self) -> String {
        let list = |pids: &[u32]| {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            pids.join(", ")
        };
        match self.target {
            Target::All => "every process".to_string(),
            Target::Cuda => "whoever uses CUDA".to_string(),
            Target::Command | Target::Pids(_) => {
                format!("process {} and its children", list(&self.targets()))
            }
            Target::Cgroups { .. } => format!("all of {}", self.directories().join(", ")),
        }
    }

    pub(super) fn directories(&self) -> Vec<String> {
        let directories = self.cgroups.iter().map(|cgroup| cgroup.dir().display());
        directories.map(|dir| dir.to_string()).collect()
    }

    /// A second signal ends gdiag at once only after [`Subject::conclude`] was called.
    pub(super) fn wait_for_screen(&mut self) {
        self.has_screen = true;
    }

    /// From now on time counts: lets the command run, and ends after `duration`.
    pub(super) fn go(&mut self, duration: Option<Nanos>) -> Result<()> {
        if let Some(command) = &mut self.command {
            command.go()?;
        }
        self.deadline = duration.map(|duration| clock::monotonic() + duration);
        Ok(())
    }

    /// Waits until `until`, until `source` can be read, a signal comes, or the end. Signals that end a run are
    /// passed on to the command; after the first, the next INT ends gdiag at once.
    pub(super) fn wait(&mut self, source: Option<BorrowedFd<'_>>, until: Nanos) -> Result<Woken> {
        let now = clock::monotonic();
        let until = self.deadline.map_or(until, |d| d.min(until));
        let millis = until.saturating_sub(now).0.div_ceil(1_000_000);
        let mut fds = vec![PollFd::new(self.signals.fd.as_fd(), PollFlags::POLLIN)];
        let mut add = |fd| {
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
            fds.len() - 1
        };
        let source = source.map(&mut add);
        let command = self.command.as_ref().map(|c| add(c.pidfd()));
        let first = self.processes.iter().map(|fd| add(fd.as_fd())).min();
        let timeout = PollTimeout::try_from(millis.min(1000)).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e).context("cannot wait for events"),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        drop(fds);

        let is_ready = |index: Option<usize>| index.is_some_and(|i| ready[i]);
        let mut woken = Woken {
            ready: is_ready(source),
            ..Woken::default()
        };
        let mut asked = None;
        while let Some((signal, from_terminal)) = self.signals.next() {
            match signal {
                Signal::SIGUSR1 => woken.report = true,
                Signal::SIGUSR2 => woken.snapshot = true,
                _ => {
                    asked = Some(signal);
                    if let Some(command) = &self.command {
                        pass_on(command, signal, from_terminal);
                    }
                }
            }
        }
        if let Some(first) = first {
            let mut index = first;
            self.processes.retain(|_| {
                index += 1;
                !ready[index - 1]
            });
        }
        let targets_ended = match self.target {
            Target::Pids(_) => self.processes.is_empty(),
            Target::Cgroups { .. } => !self.cgroups.iter().any(Cgroup::exists),
            Target::Command | Target::All | Target::Cuda => false,
        };
        woken.end = if let Some(signal) = asked {
            self.asked = Some(signal);
            if !self.has_screen {
                self.signals.release(signal);
            }
            Some(End::Asked)
        } else if is_ready(command) {
            Some(End::CommandEnded)
        } else if self.deadline.is_some_and(|d| clock::monotonic() >= d) {
            Some(End::Duration)
        } else {
            targets_ended.then_some(End::TargetsEnded)
        };
        Ok(woken)
    }

    /// The exit status in the end. When the command is the target, gdiag stands in for it: it waits, also when
    /// the run ended before the command did, and has its status, unless it fails itself.
    pub(super) fn conclude(&self, result: Result<u8>) -> Result<u8> {
        if let Some(signal) = self.asked.filter(|_| self.has_screen) {
            self.signals.release(signal);
        }
        let command = self.command.as_ref();
        // One that was never let go ends with gdiag, without having run anything.
        let stands_in = |c: &&Command| self.target == Target::Command && c.is_started();
        let Some(command) = command.filter(stands_in) else {
            return result;
        };
        match result {
            Ok(status) if status == status::DONE => {
                Ok(target::shell_status(wait_for(command, &self.signals)?))
            }
            Ok(status) => Ok(status),
            Err(failure) => {
                // The job matters more than what was to be seen of it.
                let _ = io::stderr().write_all(error::render(&failure).as_bytes());
                wait_for(command, &self.signals)?;
                Ok(error::exit_status(&failure, true))
            }
        }
    }
}

/// A terminal tells its whole foreground group, the command included.
fn pass_on(command: &Command, signal: Signal, from_terminal: bool) {
    if !from_terminal {
        command.signal(signal);
    }
}

/// Waits for the end of the command that gdiag stands in for, once nothing is watched any more: what
/// gdiag is told to do, the command is told. The status is in the encoding of wait(2).
fn wait_for(command: &Command, signals: &Signals) -> Result<i32> {
    loop {
        let mut fds = [
            PollFd::new(command.pidfd(), PollFlags::POLLIN),
            PollFd::new(signals.fd.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e).context("cannot wait for the command"),
        }
        if fds[0].any().unwrap_or(false) {
            return command.wait();
        }
        while let Some((signal, from_terminal)) = signals.next() {
            match signal {
                Signal::SIGUSR1 | Signal::SIGUSR2 => {}
                _ => pass_on(command, signal, from_terminal),
            }
        }
    }
}

/// How many files gdiag may have open at most.
///
/// With too few libbpf may ask for more than there are while it tries out what the kernel can do: then a
/// feature seems to be missing, and the kernel refuses what is not meant for it.
fn open_files() -> Result<rlim_t> {
    let (_, most) =
        getrlimit(Resource::RLIMIT_NOFILE).context("cannot tell the limit of open files")?;
    if most < FEWEST_OPEN_FILES {
        let (limit, needed) = (most, FEWEST_OPEN_FILES);
        return Err(Error::TooFewOpenFiles { limit, needed }.into());
    }
    Ok(most)
}

fn resolve(name: &OsString) -> Result<PathBuf> {
    Ok(target::resolve(name, std::env::var_os("PATH").as_deref())?)
}

pub(super) fn check_pid(pid: Pid) -> Result<u32> {
    if pid.0 == std::process::id() {
        return Err(Error::IsGdiag(pid).into());
    }
    let inside = || {
        process::known_inside_as(pid.0)
            .into_iter()
            .map(Pid)
            .collect()
    };
    Err(match process::kind(pid.0) {
        Kind::Process => return Ok(pid.0),
        Kind::ThreadOf(owner) => Error::IsThread {
            tid: pid,
            pid: Pid(owner),
        },
        Kind::KernelThread(comm) => Error::IsKernelThread {
            pid,
            comm,
            here: inside(),
        },
        Kind::Ended => Error::HasEnded { pid },
        Kind::Hidden => Error::HiddenProcess(pid),
        Kind::Nothing => {
            let here: Vec<Pid> = inside();
            if !here.is_empty() {
                Error::WrongPidNamespace { asked: pid, here }
            } else if process::in_first_namespace() {
                Error::NoSuchProcess(pid)
            } else {
                Error::NotInNamespace(pid)
            }
        }
    }
    .into())
}

fn find_cgroups(paths: &[PathBuf], containers: &[String]) -> Result<Vec<Cgroup>> {
    let all = Hierarchies::mounted()?;
    let paths = paths.iter().map(|path| all.find(path));
    let containers = containers.iter().map(|id| all.container(id));
    Ok(paths.chain(containers).collect::<Result<Vec<_>, _>>()?)
}

fn watch_process(pid: u32) -> Result<OwnedFd> {
    target::pidfd_open(pid).map_err(|e| match e.raw_os_error() {
        // It was there a moment ago.
        Some(libc::ESRCH) => Error::HasEnded { pid: Pid(pid) }.into(),
        _ => anyhow::Error::new(e).context(format!("cannot watch process {pid}")),
    })
}

/// The signals that end or steer a run, delivered through a descriptor.
struct Signals {
    fd: SignalFd,
    /// The mask that gdiag was started with, for the command.
    before: SigSet,
}

impl Signals {
    fn block() -> Result<Signals> {
        let mut set = SigSet::empty();
        for signal in [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
        ] {
            set.add(signal);
        }
        // Under nohup a recording outlives its terminal. (INT is another matter: a script has it
        // ignored in all that it starts in the background, and then sends it all the same.)
        if !process::ignores(Signal::SIGHUP as u32) {
            set.add(Signal::SIGHUP);
        }
        let mut before = SigSet::empty();
        nix::sys::signal::sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before))
            .context("cannot block signals")?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot receive signals")?;
        Ok(Signals { fd, before })
    }

    /// The next signal, and whether a key on the terminal sent it.
    fn next(&self) -> Option<(Signal, bool)> {
        let info = self.fd.read_signal().ok().flatten()?;
        let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
        Some((signal, info.ssi_code == libc::SI_KERNEL))
    }

    /// After `signal`, INT ends gdiag at once, and so does the same again. The others may still come, late, and
    /// mean no harm: they stay blocked.
    fn release(&self, signal: Signal) {
        let mut set = SigSet::empty();
        set.add(Signal::SIGINT);
        if signal == Signal::SIGTERM {
            set.add(signal);
        }
        let _ = nix::sys::signal::sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_term_a_late_request_for_a_snapshot_does_no_harm() {
        // The mask is that of this thread.
        let signals = Signals::block().unwrap();
        signals.release(Signal::SIGTERM);
        let now = SigSet::thread_get_mask().unwrap();
        for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
            assert!(now.contains(signal));
        }
        assert!(!now.contains(Signal::SIGINT) && !now.contains(Signal::SIGTERM));
    }
}
