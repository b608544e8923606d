//! What a sleeping thread waits for, from the state it sleeps in, the system call, the object
//! and the kernel stack. A table with no access to the timeline: who ended the wait, and what
//! that makes of it, is the walk's business.
#![forbid(unsafe_code)]

use crate::analyse::what::Stop;
use crate::event::SwitchFlags;
use crate::model::names::Traits;
use crate::model::syscall::Group;
use crate::model::thread::Sleep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Stopped(Stop),
    Reclaim,
    KernelLock,
    /// In NVIDIA's driver, not on a lock.
    Driver,
    PageFault,
    /// A page of managed memory that was on a device.
    ManagedMemory,
    DiskRead,
    DiskWrite,
    /// A peer at a connected socket.
    Network,
    /// A new connection.
    Accept,
    Futex,
    Pipe,
    Poll,
    Epoll,
    Sleep,
    Child,
    Other,
}

impl Wait {
    /// What was waited for, in a word or two.
    pub(super) fn label(self) -> &'static str {
        match self {
            Wait::Stopped(Stop::Signal) => "stopped by a signal",
            Wait::Stopped(Stop::Tracer) => "stopped by a tracer",
            Wait::Stopped(Stop::Freezer) => "frozen",
            Wait::Reclaim => "memory reclaim",
            Wait::KernelLock => "kernel lock",
            Wait::Driver => "NVIDIA driver",
            Wait::PageFault => "page fault",
            Wait::ManagedMemory => "managed memory",
            Wait::DiskRead => "disk read",
            Wait::DiskWrite => "disk write",
            Wait::Network => "network",
            Wait::Accept => "accept",
            Wait::Futex => "futex",
            Wait::Pipe => "pipe",
            Wait::Poll => "poll",
            Wait::Epoll => "epoll",
            Wait::Sleep => "sleep",
            Wait::Child => "child process",
            Wait::Other => "other",
        }
    }
}

/// The object of the system call, as the recording names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    None,
    File,
    Socket,
    Pipe,
    Driver,
}

impl Object {
    pub(super) fn of(name: &str) -> Object {
        let is_socket = |kind| name.starts_with(kind);
        if ["socket:", "tcp ", "udp ", "unix "]
            .into_iter()
            .any(is_socket)
        {
            Object::Socket
        } else if name.starts_with("pipe:") || name.contains("[eventfd]") {
            Object::Pipe
        } else if name.starts_with("/dev/nvidia") {
            Object::Driver
        } else if name.starts_with('/') && !name.starts_with("/dev/") {
            Object::File
        } else {
            Object::None
        }
    }
}

/// Bits of the raw `task->__state`.
pub(super) const INTERRUPTIBLE: u16 = 0x1;
const UNINTERRUPTIBLE: u16 = 0x2;
const STOPPED: u16 = 0x4;
const TRACED: u16 = 0x8;
/// 6.1 and later.
const FROZEN: u16 = 0x8000;

pub(super) fn classify(sleep: &Sleep, group: Option<Group>, object: Object, stack: Traits) -> Wait {
    let state = sleep.state.unwrap_or(0);
    // A cgroup v2 freeze looks like an ordinary sleep but for its stack.
    if state & TRACED != 0 || stack.has(Traits::PTRACE_STOP) {
        return Wait::Stopped(Stop::Tracer);
    }
    if state & STOPPED != 0 || stack.has(Traits::SIGNAL_STOP) {
        return Wait::Stopped(Stop::Signal);
    }
    if state & FROZEN != 0 || stack.has(Traits::FROZEN) {
        return Wait::Stopped(Stop::Freezer);
    }
    let uninterruptible = state & UNINTERRUPTIBLE != 0;
    let io = sleep.flags.has(SwitchFlags::IOWAIT) || stack.has(Traits::IO);
    // A read of a page that was just evicted also counts as a memory stall; it is still a read.
    let file_io = stack.has(Traits::FILE_READ)
        || (stack.has(Traits::FAULT) && stack.has(Traits::IO) && !stack.has(Traits::SWAP));
    if stack.has(Traits::RECLAIM) || (sleep.flags.has(SwitchFlags::MEMSTALL) && !file_io) {
        return Wait::Reclaim;
    }
    if group.is_none() && stack.has(Traits::FAULT) && stack.has(Traits::DRIVER) {
        return Wait::ManagedMemory;
    }
    if stack.has(Traits::KERNEL_LOCK) && !stack.has(Traits::FUTEX) {
        return Wait::KernelLock;
    }
    let Some(group) = group else {
        return if io || stack.has(Traits::FAULT | Traits::REMOTE_FS) {
            if stack.has(Traits::FAULT) || sleep.flags.has(SwitchFlags::IOWAIT) {
                Wait::PageFault
            } else {
                by_stack(stack)
            }
        } else {
            by_stack(stack)
        };
    };
    let to_disk = io || object == Object::File || stack.has(Traits::REMOTE_FS);
    match group {
        Group::Flush => Wait::DiskWrite,
        Group::Read if object == Object::Socket || stack.has(Traits::SOCKET) => Wait::Network,
        Group::Read if object == Object::Pipe || stack.has(Traits::PIPE) => Wait::Pipe,
        Group::Read if to_disk || stack.has(Traits::FILE_READ) => Wait::DiskRead,
        Group::Write if object == Object::Socket || stack.has(Traits::SOCKET) => Wait::Network,
        Group::Write if object == Object::Pipe || stack.has(Traits::PIPE) => Wait::Pipe,
        Group::Write if to_disk || stack.has(Traits::WRITEBACK) => Wait::DiskWrite,
        Group::FileName if io || stack.has(Traits::REMOTE_FS) => Wait::DiskRead,
        Group::Receive | Group::Send | Group::Connect => Wait::Network,
        Group::Accept => Wait::Accept,
        Group::Futex => Wait::Futex,
        Group::Poll => Wait::Poll,
        Group::Epoll => Wait::Epoll,
        Group::Sleep => Wait::Sleep,
        Group::WaitChild | Group::Spawn => Wait::Child,
        Group::Memory if io || stack.has(Traits::FAULT) => Wait::PageFault,
        // With no I/O, what makes a change of the address space sleep is its lock.
        Group::Memory if uninterruptible => Wait::KernelLock,
        Group::Ioctl if object == Object::Driver || stack.has(Traits::DRIVER) => {
            if uninterruptible && !io {
                Wait::KernelLock
            } else {
                Wait::Driver
            }
        }
        // Files do not sleep like this: it is a pipe, a socket or the like, too short to be named.
        Group::Read | Group::Write
            if state & INTERRUPTIBLE != 0
                && object == Object::None
                && stack == Traits::default() =>
        {
            Wait::Pipe
        }
        Group::Read
        | Group::Write
        | Group::FileName
        | Group::Memory
        | Group::Ioctl
        | Group::Yield
        | Group::Other => by_stack(stack),
    }
}

/// Whether it is for others to end the sleep: then who did is a part of its cause.
pub(super) fn is_ended_by_others(sleep: &Sleep, group: Option<Group>) -> bool {
    sleep.state.unwrap_or(0) & UNINTERRUPTIBLE == 0 && group != Some(Group::Sleep)
}

/// When the system call is unknown or says little.
fn by_stack(stack: Traits) -> Wait {
    const TABLE: [(u32, Wait); 12] = [
        (Traits::WRITEBACK, Wait::DiskWrite),
        (Traits::FILE_READ, Wait::DiskRead),
        (Traits::SLEEP, Wait::Sleep),
        (Traits::ACCEPT, Wait::Accept),
        (Traits::SOCKET, Wait::Network),
        (Traits::PIPE, Wait::Pipe),
        (Traits::EPOLL, Wait::Epoll),
        (Traits::POLL, Wait::Poll),
        (Traits::FUTEX, Wait::Futex),
        (Traits::CHILD, Wait::Child),
        (Traits::DRIVER, Wait::Driver),
        (Traits::FAULT, Wait::Other),
    ];
    TABLE
        .iter()
        .find(|(bit, _)| stack.has(*bit))
        .map_or(Wait::Other, |&(_, wait)| wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep(state: u16, flags: u8) -> Sleep {
        Sleep {
            state: Some(state),
            syscall: None,
            flags: SwitchFlags(flags),
            major_faults: 0,
        }
    }

    fn stack(frames: &[&str]) -> Traits {
        Traits::of_stack(frames.iter().copied())
    }

    const S: u16 = 1;
    const D: u16 = 2;
    const KILLABLE: u16 = 0x102;
    const IO: u8 = SwitchFlags::IOWAIT;

    /// Check signatures that were measured on kernel 6.18, with and without their stacks.
    #[test]
    fn measured_waits_are_told_apart() {
        for (state, flags, group, frames, expected) in [
            (
                0x2001,
                0,
                Some(Group::Sleep),
                &["do_nanosleep"][..],
                Wait::Sleep,
            ),
            (0x2001, 0, Some(Group::Sleep), &[], Wait::Sleep),
            (S, 0, Some(Group::Futex), &["futex_do_wait"], Wait::Futex),
            (
                D,
                0,
                Some(Group::Flush),
                &["blkdev_issue_flush"],
                Wait::DiskWrite,
            ),
            (D, IO, Some(Group::Flush), &[], Wait::DiskWrite),
            (KILLABLE, IO, Some(Group::Read), &[], Wait::DiskRead),
            (
                KILLABLE,
                IO,
                Some(Group::Read),
                &["folio_wait_bit", "filemap_read"],
                Wait::DiskRead,
            ),
            (
                KILLABLE,
                IO,
                None,
                &["folio_wait_bit", "filemap_fault"],
                Wait::PageFault,
            ),
            (KILLABLE, IO, None, &[], Wait::PageFault),
            (
                D,
                0,
                Some(Group::Spawn),
                &["wait_for_completion", "kernel_clone"],
                Wait::Child,
            ),
            (S, 0, Some(Group::WaitChild), &["do_wait"], Wait::Child),
            (
                S,
                0,
                Some(Group::Receive),
                &["unix_stream_recvmsg"],
                Wait::Network,
            ),
            (
                0x104,
                0,
                None,
                &["do_signal_stop", "get_signal"],
                Wait::Stopped(Stop::Signal),
            ),
            (0x8, 0, None, &["ptrace_stop"], Wait::Stopped(Stop::Tracer)),
            (
                D,
                0,
                None,
                &["__refrigerator"],
                Wait::Stopped(Stop::Freezer),
            ),
            (
                S,
                0,
                None,
                &["schedule", "get_signal"],
                Wait::Stopped(Stop::Freezer),
            ),
            (
                D,
                0,
                Some(Group::Memory),
                &["rwsem_down_write_slowpath"],
                Wait::KernelLock,
            ),
            (D, 0, Some(Group::Memory), &[], Wait::KernelLock),
            (S, 0, Some(Group::Poll), &[], Wait::Poll),
        ] {
            let object = Object::None;
            let got = classify(&sleep(state, flags), group, object, stack(frames));
            assert_eq!(got, expected, "{state:#x} {group:?} {frames:?}");
        }
    }

    #[test]
    fn a_read_is_what_its_object_is() {
        for (name, expected) in [
            ("/data/set.bin", Wait::DiskRead),
            ("socket:[123]", Wait::Network),
            ("tcp 10.0.0.1:5000 -> 10.0.0.2:80", Wait::Network),
            ("unix pair [12]", Wait::Network),
            ("udp listening on 0.0.0.0:53", Wait::Network),
            ("pipe:[77]", Wait::Pipe),
            ("anon_inode:[eventfd]", Wait::Pipe),
            ("", Wait::Pipe),
            ("/dev/pts/1", Wait::Pipe),
        ] {
            let got = classify(
                &sleep(S, 0),
                Some(Group::Read),
                Object::of(name),
                Traits::default(),
            );
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn uninterruptible_alone_is_not_the_disk() {
        let got = classify(&sleep(D, 0), None, Object::None, Traits::default());
        assert_eq!(got, Wait::Other);
    }

    #[test]
    fn a_memory_stall_is_reclaim_unless_a_file_is_read() {
        let stall = sleep(D, SwitchFlags::MEMSTALL | IO);
        let frames = stack(&["folio_wait_bit", "filemap_read"]);
        assert_eq!(
            classify(&stall, None, Object::None, Traits::default()),
            Wait::Reclaim
        );
        assert_eq!(
            classify(&stall, Some(Group::Read), Object::None, frames),
            Wait::DiskRead
        );
    }
}
