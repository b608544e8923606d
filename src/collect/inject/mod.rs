//! Puts the shim into a process that runs already.
//!
//! The process was not started for us and must not notice. So nothing is asked of it but what one
//! thread, which waits in a system call anyway, can do in microseconds: make a thread, and go on
//! waiting ([`code`]). Which threads can be asked is told by what they wait in ([`waits`]). They are
//! tried one after the other; if none will do, the process is left as it was, and the reason said.
//!
//! gdiag holds the chosen thread from [`tracee::Held::hold`] to [`tracee::Held::go`], and does
//! nothing in that time but look at its registers and write below its stack. Before and after, the
//! target needs nothing from gdiag, whatever becomes of gdiag.
//!
//! For x86-64 and the GNU C library.

#[cfg(target_arch = "x86_64")]
mod attempt;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod libraries;
#[cfg(target_arch = "x86_64")]
mod seccomp;
#[cfg(target_arch = "x86_64")]
mod tracee;
#[cfg(target_arch = "x86_64")]
mod waits;

use std::fmt;
use std::fs::{self, File};

use gdiag_shim_layout::ENV_DISABLE;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::collect::process;
use crate::event::Tid;
use crate::units::Nanos;

/// How it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The thread that was used, as /proc numbers it.
    pub through: Tid,
    /// For so long it did not wait, as it would have.
    pub held: Nanos,
    /// Until the library was loaded.
    pub took: Nanos,
}

/// Why it was not done. The process runs on as before; of the last three kinds it keeps a page or the
/// library, of which nothing uses anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The process has ended.
    Gone,
    /// ptrace is not allowed.
    Refused(Errno),
    /// A debugger, or another tracer, by its pid.
    Traced(u32),
    /// Another gdiag is doing it.
    AnotherGdiag,
    /// By a stop signal.
    Stopped,
    /// Of the machine, for which there is no code to inject.
    Architecture,
    NotGlibc,
    /// By its environment.
    Disabled,
    /// Its threads have shadow stacks, which would take the code for an attack.
    ShadowStack,
    /// A system call filter would punish it for this call; empty when the filter cannot be read.
    Filtered(&'static str),
    /// No thread waits in a way that can be interrupted, or none stopped.
    NoThread,
    /// There is no room for code or memory, or the machine cannot save its registers.
    NoRoom(&'static str),
    Unreadable(String),
    /// The thread did not make another one: an error number.
    NoNewThread(Errno),
    /// What the new thread or its loader said.
    NotLoaded(String),
    /// Nothing more was heard; the process may still load it.
    Late,
}

impl Failure {
    /// Whether it may work a little later.
    pub fn may_pass(&self) -> bool {
        match self {
            Failure::Traced(_) | Failure::AnotherGdiag | Failure::Stopped | Failure::NoThread => {
                true
            }
            Failure::Gone
            | Failure::Refused(_)
            | Failure::Architecture
            | Failure::NotGlibc
            | Failure::Disabled
            | Failure::ShadowStack
            | Failure::Filtered(_)
            | Failure::NoRoom(_)
            | Failure::Unreadable(_)
            | Failure::NoNewThread(_)
            | Failure::NotLoaded(_)
            | Failure::Late => false,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Gone => f.write_str("it has ended"),
            Failure::Refused(e) => {
                write!(f, "ptrace is not allowed ({})", e.desc())?;
                match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
                    Ok(scope) if scope.trim() != "0" => {
                        write!(f, "; kernel.yama.ptrace_scope is {}", scope.trim())
                    }
                    _ => f.write_str("; run gdiag as root, or with CAP_SYS_PTRACE"),
                }
            }
            Failure::Traced(pid) => write!(f, "process {pid} is tracing it, as a debugger does"),
            Failure::AnotherGdiag => f.write_str("another gdiag is doing so"),
            Failure::Stopped => f.write_str("it is stopped; record again after SIGCONT"),
            Failure::Architecture => f.write_str("gdiag can do it on x86-64 only"),
            Failure::Disabled => write!(f, "{ENV_DISABLE}=1 is set in its environment"),
            Failure::NotGlibc => f.write_str("its C library is not the GNU one"),
            Failure::ShadowStack => f.write_str("it uses shadow stacks"),
            Failure::Filtered("") => f.write_str("its system call filter (seccomp) cannot be read"),
            Failure::Filtered(call) => {
                write!(f, "its system call filter (seccomp) does not allow {call}")
            }
            Failure::NoThread => f.write_str(
                "none of its threads waits in a system call that can be interrupted unnoticed",
            ),
            Failure::NoRoom(what) => write!(f, "there is no room for {what}"),
            Failure::Unreadable(what) => f.write_str(what),
            Failure::NoNewThread(e) => write!(f, "it cannot make a thread ({})", e.desc()),
            Failure::NotLoaded(why) => f.write_str(why),
            Failure::Late => f.write_str("it did not load the library in time"),
        }
    }
}

/// Keeps every other gdiag that sees the same /proc from injecting into a process, until it is
/// dropped: one that looked before this one is done would see no shim, and bring another. The process
/// itself knows nothing of such a lock.
#[derive(Debug)]
pub struct Alone {
    _lock: Flock<File>,
}

pub fn alone(proc_pid: u32) -> Result<Alone, Failure> {
    let stat = File::open(format!("/proc/{proc_pid}/stat")).map_err(|_| Failure::Gone)?;
    match Flock::lock(stat, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Alone { _lock: lock }),
        Err((_, Errno::EAGAIN)) => Err(Failure::AnotherGdiag),
        Err((_, e)) => Err(Failure::Unreadable(format!(
            "cannot lock its stat file: {e}"
        ))),
    }
}

/// What keeps gdiag from putting the shim into a process, as far as that can be told without touching it.
pub fn inspect(proc_pid: u32) -> Result<(), Failure> {
    if is_disabled(proc_pid) {
        return Err(Failure::Disabled);
    }
    #[cfg(target_arch = "x86_64")]
    return attempt::inspect(proc_pid);
    #[cfg(not(target_arch = "x86_64"))]
    Err(Failure::Architecture)
}

/// Whether the environment of a process says that it wants no shim.
pub fn is_disabled(proc_pid: u32) -> bool {
    process::environment_has(proc_pid, ENV_DISABLE, "1")
}

/// Loads the shim into a process. Waits for it, so in a thread of its own; that thread has to end
/// after a failure, because it may still trace a thread of the process.
#[cfg(target_arch = "x86_64")]
pub fn inject(proc_pid: u32) -> Result<Injected, Failure> {
    attempt::inject(proc_pid)
}

/// Says why not.
#[cfg(not(target_arch = "x86_64"))]
pub fn inject(_proc_pid: u32) -> Result<Injected, Failure> {
    Err(Failure::Architecture)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
