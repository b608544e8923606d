//! One thread of the target, held by ptrace for as short as possible.
//!
//! A tracer is a thread, and the kernel lets go of all that it holds when it ends. So whatever
//! goes wrong here, the end of the calling thread sets the target free.

use std::io;
use std::ptr;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::event::Tid;

/// PTRACE_EVENT_STOP.
const EVENT_STOP: i32 = 128;

/// Signals that may get in between before it stops.
const SIGNALS: u32 = 16;

/// Why a thread could not be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotHeld {
    /// It or its process has ended.
    Gone,
    /// ptrace is not allowed, or another tracer has it.
    Refused(Errno),
    /// A stop signal has stopped the process.
    Stopped,
    /// It did not stop in time, and is let go when the calling thread ends.
    Late,
}

/// A stopped thread. Dropping it lets it go.
#[derive(Debug)]
pub(super) struct Held {
    pid: Pid,
}

impl Held {
    /// Stops a thread within `patience`.
    pub fn hold(tid: Tid, patience: Duration) -> Result<Held, NotHeld> {
        let pid = Pid::from_raw(tid.0.cast_signed());
        let refused = |e| match e {
            Errno::ESRCH => NotHeld::Gone,
            e => NotHeld::Refused(e),
        };
        ptrace::seize(pid, ptrace::Options::empty()).map_err(refused)?;
        ptrace::interrupt(pid).map_err(refused)?;
        let deadline = Instant::now() + patience;
        for _ in 0..SIGNALS {
            match stop(pid, deadline)? {
                Stop::Interrupted => return Ok(Held { pid }),
                Stop::Group => {
                    let _ = ptrace::detach(pid, None);
                    return Err(NotHeld::Stopped);
                }
                // On its way to a handler, or to its end: that comes first.
                Stop::Signal(signal) => {
                    pass(pid, signal).map_err(refused)?;
                    ptrace::interrupt(pid).map_err(refused)?;
                }
            }
        }
        // It is about to take yet another one: let it.
        Err(NotHeld::Late)
    }

    pub fn registers(&self) -> Result<libc::user_regs_struct, Errno> {
        ptrace::getregs(self.pid)
    }

    /// From here on it does what the registers say, also without us.
    pub fn go(self, registers: libc::user_regs_struct) -> Result<(), Errno> {
        ptrace::setregs(self.pid, registers)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Gone, if that fails.
        let _ = ptrace::detach(self.pid, None);
    }
}

enum Stop {
    Interrupted,
    Group,
    Signal(i32),
}

fn stop(pid: Pid, deadline: Instant) -> Result<Stop, NotHeld> {
    let mut pause = Duration::from_micros(10);
    loop {
        let mut status = 0;
        // By hand: nix knows no name for real-time signals, and loses the stop.
        // SAFETY: writes one int.
        match unsafe { libc::waitpid(pid.as_raw(), &mut status, libc::__WALL | libc::WNOHANG) } {
            0 => {}
            -1 => match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => continue,
                _ => return Err(NotHeld::Gone),
            },
            _ if !libc::WIFSTOPPED(status) => return Err(NotHeld::Gone),
            _ => {
                let signal = libc::WSTOPSIG(status);
                return Ok(match (status >> 16, signal) {
                    (EVENT_STOP, libc::SIGTRAP) => Stop::Interrupted,
                    (EVENT_STOP, _) => Stop::Group,
                    _ => Stop::Signal(signal),
                });
            }
        }
        if Instant::now() >= deadline {
            return Err(NotHeld::Late);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Lets it run on, to take this signal.
fn pass(pid: Pid, signal: i32) -> Result<(), Errno> {
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: takes two numbers; the address is not used.
    let done = unsafe {
        libc::ptrace(
            libc::PTRACE_CONT,
            pid.as_raw(),
            nothing,
            libc::c_long::from(signal),
        )
    };
    Errno::result(done).map(drop)
}
