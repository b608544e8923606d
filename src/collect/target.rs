//! Starting a command so that nothing of it is missed, and waiting for processes to end.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{waitpid, WaitStatus};
use nix::unistd::{access, execve, fork, pipe2, AccessFlags, ForkResult};
use nix::{errno::Errno, fcntl::OFlag};

use crate::error::Error;

/// Finds what a shell would start, so that a wrong name is told before anything else happens.
pub fn resolve(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let name = || program.to_string_lossy().into_owned();
    let candidates: Vec<PathBuf> = if program.as_bytes().contains(&b'/') {
        vec![PathBuf::from(program)]
    } else {
        std::env::split_paths(path.unwrap_or(OsStr::new("/usr/bin:/bin")))
            .map(|dir| dir.join(program))
            .collect()
    };
    let mut denied = None;
    for candidate in candidates {
        if candidate.is_dir() {
            denied.get_or_insert(Errno::EISDIR);
            continue;
        }
        match access(&candidate, AccessFlags::X_OK) {
            Ok(()) => return Ok(candidate),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(e) => {
                denied.get_or_insert(e);
            }
        }
    }
    Err(match denied {
        Some(e) => Error::CommandNotExecutable {
            name: name(),
            source: e.into(),
        },
        None => Error::CommandNotFound { name: name() },
    })
}

/// A command that was forked but waits for [`Command::go`] before it becomes the program.
///
/// Dropped before that, or when gdiag dies, it ends without having run anything.
#[derive(Debug)]
pub struct Command {
    pid: u32,
    pidfd: OwnedFd,
    start: Option<OwnedFd>,
    failure: OwnedFd,
    name: String,
}

impl Command {
    /// Forks. `environment` replaces or adds variables. `mask` is the signal mask that the program gets. With `apart`, what it
    /// would have of the terminal is /dev/null.
    ///
    /// Must be called while gdiag has one thread: the child of a fork may only do what is safe
    /// in a signal handler, and allocating is not.
    pub fn prepare(
        program: &Path,
        args: &[OsString],
        environment: &[(&str, OsString)],
        mask: &SigSet,
        apart: bool,
    ) -> Result<Command> {
        let c =
            |text: &OsStr| CString::new(text.as_bytes()).context("a NUL byte in the command line");
        let argv = args.iter().map(|a| c(a)).collect::<Result<Vec<_>>>()?;
        let file = c(program.as_os_str())?;
        let mut env: Vec<CString> = Vec::new();
        for (key, value) in std::env::vars_os() {
            if !environment.iter().any(|(name, _)| OsStr::new(name) == key) {
                env.push(variable(&key, &value)?);
            }
        }
        for (key, value) in environment {
            env.push(variable(OsStr::new(key), value)?);
        }
        let null = if apart { Some(null()?) } else { None };
        let (start_read, start) = pipe2(OFlag::O_CLOEXEC).context("cannot make a pipe")?;
        let (failure, failure_write) = pipe2(OFlag::O_CLOEXEC).context("cannot make a pipe")?;

        // Where it is ignored, as some supervisors leave it, children leave no status behind.
        // SAFETY: the default disposition installs no handler.
        let on_child = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };

        // SAFETY: one thread (see above), and the child only reads, writes, execs and exits.
        match unsafe { fork() }.context("cannot fork")? {
            ForkResult::Child => {
                drop(start);
                drop(failure);
                let mut byte = [0];
                let go = matches!(nix::unistd::read(&start_read, &mut byte), Ok(1));
                if go {
                    if let Some(null) = &null {
                        leave_terminal(null);
                    }
                    let _ =
                        nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None);
                    // Rust ignores SIGPIPE; the program must not inherit that.
                    // SAFETY: neither installs a handler: gdiag never had one.
                    unsafe {
                        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                        if on_child == libc::SIG_IGN {
                            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                        }
                    }
                    let errno = execve(&file, &argv, &env).err().unwrap_or(Errno::EINVAL);
                    let _ = nix::unistd::write(&failure_write, &(errno as i32).to_ne_bytes());
                }
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(125) }
            }
            ForkResult::Parent { child } => {
                let pid = u32::try_from(child.as_raw()).context("a negative pid")?;
                Ok(Command {
                    pid,
                    pidfd: pidfd_open(pid).context("cannot watch the command")?,
                    start: Some(start),
                    failure,
                    name: program.to_string_lossy().into_owned(),
                })
            }
        }
    }

    /// Pid as gdiag sees it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Becomes readable when the command has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Lets it become the program.
    pub fn go(&mut self) -> Result<()> {
        let Some(start) = self.start.take() else {
            return Ok(());
        };
        std::fs::File::from(start)
            .write_all(&[1])
            .context("the command's process is gone")?;
        let mut answer = Vec::new();
        std::fs::File::from(self.failure.try_clone()?)
            .read_to_end(&mut answer)
            .context("cannot hear from the command's process")?;
        match <[u8; 4]>::try_from(answer.as_slice()) {
            // The pipe closed at exec: it runs.
            Err(_) => Ok(()),
            Ok(bytes) => {
                let _ = waitpid(self.raw(), None);
                Err(Error::CommandNotExecutable {
                    name: self.name.clone(),
                    source: io::Error::from_raw_os_error(i32::from_ne_bytes(bytes)),
                }
                .into())
            }
        }
    }

    fn raw(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.pid).unwrap_or(i32::MAX))
    }

    /// It was let go.
    pub fn is_started(&self) -> bool {
        self.start.is_none()
    }

    /// Waits for its end; the status is in the encoding of wait(2).
    pub fn wait(&self) -> Result<i32> {
        loop {
            match waitpid(self.raw(), None) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(code << 8),
                Ok(WaitStatus::Signaled(_, signal, core)) => {
                    return Ok(signal as i32 | if core { 0x80 } else { 0 })
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e).context("cannot wait for the command"),
            }
        }
    }

    /// Passes a signal on.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let _ = nix::sys::signal::kill(self.raw(), signal);
    }
}

/// Status of a command as a shell shows it: the exit code, or 128 + signal.
pub fn shell_status(status: i32) -> u8 {
    let signal = status & 0x7f;
    let code = if signal == 0 {
        (status >> 8) & 0xff
    } else {
        128 + signal
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn null() -> Result<OwnedFd> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null");
    Ok(null.context("cannot open /dev/null")?.into())
}

/// Standard streams that are no terminal stay as they are. In a child: nothing is allocated.
fn leave_terminal(null: &OwnedFd) {
    for fd in 0..3 {
        // SAFETY: both take integers; the streams that are replaced are those of a child that is about to exec.
        unsafe {
            if libc::isatty(fd) == 1 {
                libc::dup2(null.as_raw_fd(), fd);
            }
        }
    }
}

fn variable(key: &OsStr, value: &OsStr) -> Result<CString> {
    let mut text = key.to_os_string().into_vec();
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    CString::new(text).context("a NUL byte in the environment")
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the system call takes two integers and returns a new descriptor or -1.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_pidfd_open,
            libc::pid_t::try_from(pid).unwrap_or(-1),
            0,
        )
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_found_as_a_shell_would() {
        let path = Some(OsStr::new("/nonexistent:/usr/bin:/bin"));
        assert!(resolve(OsStr::new("env"), path).unwrap().ends_with("env"));
        assert!(matches!(
            resolve(OsStr::new("no-such-program"), path),
            Err(Error::CommandNotFound { .. })
        ));
        assert!(matches!(
            resolve(OsStr::new("/etc/passwd"), path),
            Err(Error::CommandNotExecutable { .. })
        ));
        assert!(matches!(
            resolve(OsStr::new("/etc"), path),
            Err(Error::CommandNotExecutable { .. })
        ));
    }

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(shell_status(0), 0);
        assert_eq!(shell_status(7 << 8), 7);
        assert_eq!(shell_status(libc::SIGKILL), 137);
        assert_eq!(shell_status(libc::SIGSEGV | 0x80), 139);
    }
}
