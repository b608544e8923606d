//! Going to the background, and telling whoever waits in the foreground what came of it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context as _, Result};
use nix::fcntl::OFlag;
use nix::sys::wait::waitpid;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe2, setsid, ForkResult};

/// Which of the two this process is now.
#[derive(Debug)]
pub enum Side {
    Foreground(Outcome),
    Background(Starter),
}

/// What the background said before it was on its own.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status that it asks for; `None` when it ended without a word.
    pub status: Option<u8>,
    pub text: String,
}

/// In the background, until all is well: errors still go to the terminal.
#[derive(Debug)]
pub struct Starter {
    pipe: File,
}

/// Splits in two: the foreground returns once the background has said how it went, or has ended.
///
/// Must be called while gdiag has one thread: more would be missing in the background.
pub fn split() -> Result<Side> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC).context("cannot make a pipe")?;
    // SAFETY: one thread (see above), so the child is whole.
    match unsafe { fork() }.context("cannot fork")? {
        ForkResult::Parent { child } => {
            drop(write);
            let mut said = Vec::new();
            File::from(read)
                .read_to_end(&mut said)
                .context("cannot hear from the background")?;
            let _ = waitpid(child, None);
            let status = said.first().copied();
            let text = String::from_utf8_lossy(said.get(1..).unwrap_or_default()).into_owned();
            Ok(Side::Foreground(Outcome { status, text }))
        }
        ForkResult::Child => {
            drop(read);
            setsid().context("cannot begin a session")?;
            // Once more, so that it leads no session and no terminal can become its own.
            // SAFETY: still one thread.
            match unsafe { fork() }.context("cannot fork")? {
                // SAFETY: ends this process without running anything of the other's.
                ForkResult::Parent { .. } => unsafe { libc::_exit(0) },
                ForkResult::Child => {
                    let_go(&write);
                    Ok(Side::Background(Starter { pipe: write.into() }))
                }
            }
        }
    }
}

/// Closes what a script has open in its children, locks and pipes: all but the terminal and `kept`.
fn let_go(kept: &OwnedFd) {
    const FIRST: u32 = 3;
    let kept = kept.as_raw_fd().unsigned_abs();
    for (from, to) in [(FIRST, kept.saturating_sub(1)), (kept + 1, u32::MAX)] {
        if from <= to {
            // Before Linux 5.9 they stay.
            // SAFETY: this process has just begun, and has opened nothing but `kept`.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    }
}

impl Starter {
    /// All is well: lets go of the terminal and of the directory, and of the foreground with `text`. Fails when
    /// that is not there any more: nobody would know of this process.
    pub fn running(mut self, text: &str) -> io::Result<()> {
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        std::env::set_current_dir("/")?;
        let null = null.as_fd();
        dup2_stdin(null)?;
        dup2_stdout(null)?;
        dup2_stderr(null)?;
        self.say(0, text)
    }

    /// It failed, and has said why.
    pub fn failed(mut self, status: u8) {
        // It ends anyway.
        let _ = self.say(status, "");
    }

    fn say(&mut self, status: u8, text: &str) -> io::Result<()> {
        let mut message = vec![status];
        message.extend_from_slice(text.as_bytes());
        self.pipe.write_all(&message)
    }
}
