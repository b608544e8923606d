//! The errors that a person can act on: each has one hint and one exit status.
//!
//! What is wrong with a recording is a [`StoreError`], which brings its own hint. Everything
//! else travels as plain [`anyhow::Error`]; both end with status 1.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use crate::event::{Pid, Tid};
use crate::store::StoreError;

/// Exit statuses of gdiag, as promised to scripts.
pub mod status {
    pub const DONE: u8 = 0;
    pub const FAILED: u8 = 1;
    /// Wrong usage. It is clap that exits with it.
    pub const USAGE: u8 = 2;
    /// It ran, but the target was never seen.
    pub const NOTHING: u8 = 3;
    /// Events were lost, and `--strict` was given.
    pub const LOST: u8 = 4;
    /// An `--assert` does not hold.
    pub const ASSERTION: u8 = 5;
    /// This kernel or these privileges cannot do it.
    pub const CANNOT: u8 = 77;
    /// [`FAILED`], when the other statuses belong to a launched command.
    pub const FAILED_LAUNCHING: u8 = 125;
    pub const NOT_EXECUTABLE: u8 = 126;
    pub const NOT_FOUND: u8 = 127;
}

/// What was tried, on what. The reason, where there is one, is the next error of the chain.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `what` is the thing tried: `load BPF program 'sched_switch'`.
    #[error("cannot {what}")]
    NotPermitted {
        what: String,
        #[source]
        source: std::io::Error,
    },

    #[error("this kernel does not describe its types: /sys/kernel/btf/vmlinux is missing")]
    NoBtf,

    /// `needs` is a feature such as `BPF ring buffers`, `since` the first release that has it.
    #[error("this kernel ({found}) has no {needs}")]
    KernelTooOld {
        needs: String,
        since: &'static str,
        found: String,
    },

    /// It has all that was looked for.
    #[error("this kernel ({found}) refused the BPF programs")]
    BpfRefused {
        found: String,
        #[source]
        source: libbpf_rs::Error,
    },

    /// CPUs of this machine as lists.
    #[error("no CPU {asked} is online")]
    CpusOffline { asked: String, online: String },

    /// Files that may be open at once, at most.
    #[error("gdiag may have {limit} files open, and needs {needed}")]
    TooFewOpenFiles { limit: u64, needed: u64 },

    #[error("no process has pid {0}")]
    NoSuchProcess(Pid),

    #[error("no thread has tid {0}")]
    NoSuchThread(Tid),

    /// The message says which, and what may have been meant.
    #[error("{0}")]
    NoSuchCall(String),

    #[error("{tid} is a thread of process {pid}, not a process")]
    IsThread { tid: Pid, pid: Pid },

    /// There is no such process here, but some are known by this number inside their container.
    #[error("no process has pid {asked} here, but inside a PID namespace it is process {}", join(.here, " or "))]
    WrongPidNamespace { asked: Pid, here: Vec<Pid> },

    #[error("process {pid} has ended: only its exit status is left")]
    HasEnded { pid: Pid },

    /// Some processes may be known by this number inside their container.
    #[error("{pid} is a thread of the kernel ({comm})")]
    IsKernelThread {
        pid: Pid,
        comm: String,
        here: Vec<Pid>,
    },

    #[error("{0} is gdiag itself")]
    IsGdiag(Pid),

    /// /proc is mounted with hidepid.
    #[error("there is a process {0}, but /proc does not show it")]
    HiddenProcess(Pid),

    /// gdiag is in a PID namespace of its own, and what it asks for may be outside.
    #[error("no process has pid {0} in the PID namespace that gdiag is in")]
    NotInNamespace(Pid),

    #[error("/proc shows the pids of another PID namespace than gdiag's")]
    ForeignProc,

    #[error("/proc is not mounted")]
    NoProc,

    #[error("no cgroup hierarchy is mounted here")]
    NoCgroups,

    #[error("there is no cgroup {} below {}", .name.display(), paths(.mounts))]
    NoSuchCgroup { name: PathBuf, mounts: Vec<PathBuf> },

    #[error("no container has an id that begins with {asked}; {}", containers(.known))]
    NoSuchContainer { asked: String, known: Vec<String> },

    #[error("more than one container has an id that begins with {asked}; {}", containers(.known))]
    AmbiguousContainer { asked: String, known: Vec<String> },

    /// /proc tells of it, but no hierarchy that is mounted has it.
    #[error("the cgroup of container {asked} is in no hierarchy that is mounted here")]
    ContainerNotMounted { asked: String, pid: Pid },

    #[error("{name}: command not found")]
    CommandNotFound { name: String },

    #[error("cannot execute {name}")]
    CommandNotExecutable {
        name: String,
        #[source]
        source: std::io::Error,
    },

    /// It ran, and no event of the target came.
    #[error("nothing was captured: {what}")]
    NothingCaptured { what: String },

    /// With `--strict` only.
    #[error("{lost} events were lost")]
    EventsLost { lost: u64 },

    #[error("there is no GPU {asked} in this recording; it has {}", gpus(.known))]
    NoSuchGpu { asked: u32, known: Vec<u32> },

    /// The recording holds none of these.
    #[error("this recording has no {what}")]
    NotRecorded {
        what: &'static str,
        hint: &'static str,
    },

    /// No time is left for a graph.
    #[error("there is nothing to draw: {why}")]
    NothingToDraw { why: String },

    /// A picture would fill the screen with its source.
    #[error("a picture is not for a terminal")]
    PictureToTerminal,

    /// A trace in protobuf, likewise.
    #[error("a trace is not for a terminal")]
    BinaryToTerminal,

    /// A file by this name would be put into the place of what is there.
    #[error("'{path}' is {what}")]
    NotReplaceable { path: String, what: &'static str },

    /// Empty: not set.
    #[error("nothing can be drawn on this terminal ({})", if .term.is_empty() { "TERM is not set".to_string() } else { format!("TERM={term}") })]
    NoScreen { term: String },

    /// `pid` is 0 when it is in another PID namespace.
    #[error("a flight recorder called '{name}' is running already{}", of(.pid))]
    RecorderRuns { name: String, pid: u32 },

    #[error("user {uid} holds the address of the flight recorder '{name}'{}", of(.pid))]
    AddressTaken { name: String, pid: u32, uid: u32 },

    /// `stop` is also asked to clean up.
    #[error("no flight recorder called '{name}' is running")]
    NoRecorder { name: String, to_stop: bool },

    /// Whoever read our output went away, as `head` does. Ends quietly.
    #[error("the output was closed")]
    OutputClosed,
}

impl Error {
    pub fn status(&self) -> u8 {
        match self {
            Error::OutputClosed => status::DONE,
            Error::PictureToTerminal
            | Error::BinaryToTerminal
            | Error::NotReplaceable { .. }
            | Error::NoSuchCall(_) => status::USAGE,
            Error::NothingCaptured { .. } | Error::NoRecorder { .. } => status::NOTHING,
            Error::EventsLost { .. } => status::LOST,
            Error::NotPermitted { .. }
            | Error::NoBtf
            | Error::KernelTooOld { .. }
            | Error::BpfRefused { .. }
            | Error::ForeignProc
            | Error::NoProc => status::CANNOT,
            Error::CommandNotExecutable { .. } => status::NOT_EXECUTABLE,
            Error::CommandNotFound { .. } => status::NOT_FOUND,
            Error::CpusOffline { .. }
            | Error::TooFewOpenFiles { .. }
            | Error::NoSuchProcess(_)
            | Error::NoSuchThread(_)
            | Error::IsThread { .. }
            | Error::WrongPidNamespace { .. }
            | Error::HasEnded { .. }
            | Error::IsKernelThread { .. }
            | Error::IsGdiag(_)
            | Error::HiddenProcess(_)
            | Error::NotInNamespace(_)
            | Error::NoCgroups
            | Error::NoSuchCgroup { .. }
            | Error::NoSuchContainer { .. }
            | Error::AmbiguousContainer { .. }
            | Error::ContainerNotMounted { .. }
            | Error::NoSuchGpu { .. }
            | Error::NoScreen { .. }
            | Error::NotRecorded { .. }
            | Error::NothingToDraw { .. }
            | Error::RecorderRuns { .. }
            | Error::AddressTaken { .. } => status::FAILED,
        }
    }

    /// What to do about it, if there is anything.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::NotPermitted { .. } => {
                "run as root, or give the binary CAP_BPF, CAP_PERFMON and CAP_CHECKPOINT_RESTORE; `gdiag check` tells what is missing".to_string()
            }
            Error::NoBtf => {
                "use a kernel built with CONFIG_DEBUG_INFO_BTF, as those of Debian, Ubuntu, Fedora and RHEL are"
                    .to_string()
            }
            Error::KernelTooOld { since, .. } => format!("use Linux {since} or later"),
            Error::BpfRefused { .. } => {
                "its verifier's reason is among the messages of the same command with -vv".to_string()
            }
            Error::CpusOffline { online, .. } => format!("those that are online: {online}"),
            Error::TooFewOpenFiles { .. } => {
                "raise the hard limit: ulimit -Hn 4096, or LimitNOFILE=4096 in a unit of systemd".to_string()
            }
            Error::NoSuchProcess(pid) => {
                format!("`ps -p {pid}` shows whether it is still there; give the pid as it is on this side of any container")
            }
            Error::NoSuchThread(tid) => format!("`ps -L -q {tid}` shows whether it is still there"),
            Error::NoSuchCall(_) => "`man 2 syscalls` lists them; * stands for anything".to_string(),
            Error::IsThread { pid, .. } => format!("give the whole process: -p {pid}"),
            Error::WrongPidNamespace { here, .. } => format!("use the pid it has here: -p {}", join(here, " or -p ")),
            Error::HasEnded { .. } => "look at it while it runs, or let gdiag start it: -- CMD".to_string(),
            Error::IsKernelThread { pid, here, .. } if !here.is_empty() => {
                format!("inside a PID namespace, {pid} is process {0}: -p {0}", join(here, " or "))
            }
            Error::IsKernelThread { .. } => "look at the whole machine (-a) to see what the kernel's threads do".to_string(),
            Error::IsGdiag(_) => "give the pid of the program to look at".to_string(),
            Error::HiddenProcess(_) => {
                "/proc is mounted with hidepid: run as root, or with CAP_SYS_PTRACE".to_string()
            }
            Error::NotInNamespace(_) => {
                "give the pid as `ps` shows it beside gdiag; what is outside of this container can be seen from the host only".to_string()
            }
            Error::ForeignProc => {
                "mount the right one, as `unshare --mount-proc` does, or enter the mount namespace too (nsenter -m)".to_string()
            }
            Error::NoProc => "mount -t proc proc /proc".to_string(),
            Error::NoCgroups => "mount one: mount -t cgroup2 cgroup2 /sys/fs/cgroup".to_string(),
            Error::NoSuchCgroup { .. } => {
                "`cat /proc/PID/cgroup` shows the cgroups of a process; either of its path or its directory will do".to_string()
            }
            Error::NoSuchContainer { .. } => {
                "give an id, not a name, as `docker ps`, `podman ps` or `crictl ps` show it".to_string()
            }
            Error::AmbiguousContainer { .. } => "give more of the id".to_string(),
            Error::ContainerNotMounted { pid, .. } => {
                format!("give its processes: -p {pid} is the first of them; or mount the cgroup file system of the host")
            }
            Error::CommandNotFound { .. } => "check the spelling, or give its path".to_string(),
            Error::CommandNotExecutable { .. } => {
                "make it executable (chmod +x), or start it with its interpreter".to_string()
            }
            Error::NothingCaptured { .. } => {
                "check that the target runs meanwhile, and look longer with -d".to_string()
            }
            Error::EventsLost { .. } => "look at fewer processes or for a shorter time, or leave out --strict".to_string(),
            Error::NoSuchGpu { .. } => "leave out --gpu for all of them".to_string(),
            Error::NotRecorded { hint, .. } => (*hint).to_string(),
            Error::NothingToDraw { .. } => {
                "try another --mode, or leave out --from, --to, -p and -t".to_string()
            }
            Error::PictureToTerminal => {
                "write it to a file with -o flame.svg, or see the stacks with --folded".to_string()
            }
            Error::NoScreen { .. } => "print text instead with --batch, or --once".to_string(),
            Error::BinaryToTerminal => {
                "write it to a file with -o trace.pftrace, or ask for text with --format chrome".to_string()
            }
            Error::NotReplaceable { .. } => "name a new file".to_string(),
            Error::RecorderRuns { .. } => {
                "end it with `gdiag stop`, or give the new one a --name of its own".to_string()
            }
            Error::AddressTaken { .. } => "give another --name".to_string(),
            Error::NoRecorder { to_stop: true, .. } => {
                "nothing is left to clean up: one that was killed leaves no socket, file, BPF program or map".to_string()
            }
            Error::NoRecorder { .. } => {
                "start one with `gdiag start`; one of another user or network namespace is not seen from here".to_string()
            }
            Error::OutputClosed => return None,
        })
    }
}

fn of(pid: &u32) -> String {
    match pid {
        0 => String::new(),
        pid => format!(" (pid {pid})"),
    }
}

fn paths(paths: &[PathBuf]) -> String {
    const MOST: usize = 2;
    let first: Vec<_> = paths.iter().take(MOST).map(|path| path.display()).collect();
    let first = join(&first, ", ");
    match paths.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// As many ids as fit a line, as short as `docker ps` shows them.
fn containers(ids: &[String]) -> String {
    const SHORT: usize = 12;
    const MOST: usize = 10;
    if ids.is_empty() {
        return "no cgroup here is that of a container".to_string();
    }
    let short: Vec<_> = ids
        .iter()
        .take(MOST)
        .map(|id| id.get(..SHORT).unwrap_or(id))
        .collect();
    let more = match ids.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("there are {}{more}", join(&short, ", "))
}

fn gpus(known: &[u32]) -> String {
    match known {
        [] => "none".to_string(),
        [one] => format!("GPU {one}"),
        several => format!("GPUs {}", join(several, ", ")),
    }
}

fn join<T: ToString>(items: &[T], separator: &str) -> String {
    items
        .iter()
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join(separator)
}

/// The first error of the chain that knows its hint and status.
fn known(error: &anyhow::Error) -> Option<&Error> {
    // An `Error` given to `context()` is found by the first, one given to `?` below it by the second.
    error
        .downcast_ref()
        .or_else(|| error.chain().find_map(|cause| cause.downcast_ref()))
}

/// What `main` ends with. `launching`: the target is a command that gdiag starts, so that
/// the usual "failed" would look like the command's own status.
pub fn exit_status(error: &anyhow::Error, launching: bool) -> u8 {
    match known(error).map_or(status::FAILED, Error::status) {
        status::FAILED if launching => status::FAILED_LAUNCHING,
        other => other,
    }
}

/// What `main` prints: the whole chain in one line, then the hint. Empty for a closed output.
pub fn render(error: &anyhow::Error) -> String {
    let known = known(error);
    if matches!(known, Some(Error::OutputClosed)) {
        return String::new();
    }
    let of_store = || {
        error
            .chain()
            .find_map(|cause| cause.downcast_ref::<StoreError>())
    };
    let hint = known
        .and_then(Error::hint)
        .or_else(|| of_store().map(|e| e.hint().to_string()));
    let mut text = format!("gdiag: {error:#}\n");
    if let Some(hint) = hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    fn denied() -> Error {
        Error::NotPermitted {
            what: "load BPF program 'sched_switch'".to_string(),
            source: io::Error::from_raw_os_error(libc::EPERM),
        }
    }

    #[test]
    fn one_line_says_what_and_why_and_the_next_what_to_do() {
        assert_eq!(
            render(&denied().into()),
            "gdiag: cannot load BPF program 'sched_switch': Operation not permitted (os error 1)\n\
             hint: run as root, or give the binary CAP_BPF, CAP_PERFMON and CAP_CHECKPOINT_RESTORE; \
             `gdiag check` tells what is missing\n"
        );
    }

    #[test]
    fn the_hint_is_found_wherever_the_error_sits_in_the_chain() {
        let inside: anyhow::Result<()> = Err(denied()).context("cannot start");
        let outside: anyhow::Result<()> = Err(io::Error::from_raw_os_error(libc::ENOENT))
            .context(Error::CommandNotFound { name: "x".into() });
        let (inside, outside) = (inside.unwrap_err(), outside.unwrap_err());
        assert_eq!(exit_status(&inside, false), status::CANNOT);
        assert!(render(&inside).contains("cannot start: cannot load BPF"));
        assert!(render(&inside).contains("hint: run as root"));
        assert_eq!(exit_status(&outside, false), status::NOT_FOUND);
        assert!(render(&outside).contains("hint: check the spelling"));
    }

    #[test]
    fn a_recording_that_cannot_be_read_has_the_hint_of_the_store() {
        let source = io::Error::from_raw_os_error(libc::ENOSPC);
        let error = anyhow::Error::from(StoreError::Write {
            path: "gdiag.data".into(),
            source,
        });
        assert_eq!(exit_status(&error, false), status::FAILED);
        let text = render(&error);
        assert!(
            text.starts_with("gdiag: cannot write recording 'gdiag.data': No space left"),
            "{text}"
        );
        assert!(text.contains("\nhint: make room"), "{text}");
    }

    #[test]
    fn a_plain_error_has_no_hint_and_fails() {
        let error = anyhow::anyhow!("it broke");
        assert_eq!(render(&error), "gdiag: it broke\n");
        assert_eq!(exit_status(&error, false), 1);
    }

    #[test]
    fn a_failure_beside_a_launched_command_is_125() {
        assert_eq!(exit_status(&anyhow::anyhow!("it broke"), true), 125);
        // What says more than "failed" keeps its own number.
        assert_eq!(exit_status(&denied().into(), true), 77);
        assert_eq!(
            exit_status(&Error::CommandNotFound { name: "x".into() }.into(), true),
            127
        );
    }

    #[test]
    fn a_closed_output_is_silent_success() {
        let error = anyhow::Error::from(Error::OutputClosed);
        assert_eq!(
            (render(&error), exit_status(&error, true)),
            (String::new(), 0)
        );
    }

    #[test]
    fn containers_are_listed_as_docker_shows_them_and_not_without_end() {
        let known = (0..12).map(|n| format!("{n:064x}")).collect();
        let text = render(
            &Error::NoSuchContainer {
                asked: "9e".into(),
                known,
            }
            .into(),
        );
        let ids = format!("there are {}", ["000000000000"; 10].join(", "));
        assert!(text.contains(&format!("{ids} and 2 more\n")), "{text}");
        assert!(text.contains("\nhint: give an id, not a name"), "{text}");
    }

    #[test]
    fn hierarchies_are_counted_when_there_are_many() {
        let error = |count| Error::NoSuchCgroup {
            name: "/x".into(),
            mounts: (0..count).map(|n| format!("/cg/{n}").into()).collect(),
        };
        assert_eq!(error(1).to_string(), "there is no cgroup /x below /cg/0");
        assert_eq!(
            error(5).to_string(),
            "there is no cgroup /x below /cg/0, /cg/1 and 3 more"
        );
    }

    #[test]
    fn a_container_pid_is_answered_with_the_pid_to_use() {
        let error = Error::WrongPidNamespace {
            asked: Pid(7),
            here: vec![Pid(4711)],
        };
        assert_eq!(
            render(&error.into()),
            "gdiag: no process has pid 7 here, but inside a PID namespace it is process 4711\n\
             hint: use the pid it has here: -p 4711\n"
        );
    }
}
