//! Signals while the terminal is the live view's: they are read when their turn has come, and nothing happens in
//! the middle of something else. All threads have them blocked.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context as _, Result};
use nix::sys::signal::{kill, raise, SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::collect::process;

/// Those that have to do with the terminal.
const OF_TERMINAL: [Signal; 4] = [
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGQUIT,
];

/// Those that end a run.
const OF_RUN: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

#[derive(Debug)]
pub(super) struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Before there is a second thread, and after what is launched was forked. `ends`: also those that end a run,
    /// where no [`Subject`](crate::commands::subject::Subject) reads them.
    pub(super) fn block(ends: bool) -> Result<Signals> {
        let mut set: SigSet = OF_TERMINAL.into_iter().collect();
        if ends {
            set.extend(OF_RUN);
            if process::ignores(Signal::SIGHUP as u32) {
                set.remove(Signal::SIGHUP);
            }
        }
        set.thread_block().context("cannot block signals")?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot receive signals")?;
        Ok(Signals { fd })
    }

    pub(super) fn next(&self) -> Option<Signal> {
        let info = self.fd.read_signal().ok().flatten()?;
        Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()
    }

    /// Stops gdiag, as what came would have done. Returns when it goes on.
    pub(super) fn stop(&self) {
        let _ = raise(Signal::SIGTSTP);
        self.let_through(Signal::SIGTSTP);
    }

    /// Stops the whole job, as the key does where a terminal looks after it.
    pub(super) fn stop_job(&self) {
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
        self.let_through(Signal::SIGTSTP);
    }

    /// Ends gdiag as `signal` does, if it is one that does.
    pub(super) fn end(&self, signal: Signal) {
        let _ = raise(signal);
        self.let_through(signal);
    }

    /// What is pending happens now.
    fn let_through(&self, signal: Signal) {
        let set = SigSet::from(signal);
        if let Ok(before) = set.thread_swap_mask(SigmaskHow::SIG_UNBLOCK) {
            let _ = before.thread_set_mask();
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
