//! System calls by what a wait in them means. Numbers differ between architectures; the
//! recording says which machine it is from.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::decode::syscalls::Number;

/// What a thread that sleeps in a system call waits for, as far as the call alone tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Data from a file, pipe or socket: the object decides.
    Read,
    /// Data to one.
    Write,
    /// Names and attributes of files.
    FileName,
    /// Data must reach the disk.
    Flush,
    /// Data or a peer at a socket.
    Receive,
    Send,
    Connect,
    Accept,
    Futex,
    /// One of several descriptors.
    Poll,
    /// The same, as servers do it.
    Epoll,
    Sleep,
    /// A child changes state.
    WaitChild,
    /// A process or thread is made, or replaced.
    Spawn,
    /// The map of the address space changes.
    Memory,
    Ioctl,
    Yield,
    Other,
}

type Row = (u16, &'static str, Group);

use Group::{
    Accept, Connect, Epoll, FileName, Flush, Futex, Ioctl, Memory, Poll, Read, Receive, Send,
    Sleep, Spawn, WaitChild, Write, Yield,
};

const X86_64: &[Row] = &[
    (0, "read", Read),
    (1, "write", Write),
    (2, "open", FileName),
    (4, "stat", FileName),
    (5, "fstat", FileName),
    (6, "lstat", FileName),
    (7, "poll", Poll),
    (9, "mmap", Memory),
    (10, "mprotect", Memory),
    (11, "munmap", Memory),
    (12, "brk", Memory),
    (16, "ioctl", Ioctl),
    (17, "pread64", Read),
    (18, "pwrite64", Write),
    (19, "readv", Read),
    (20, "writev", Write),
    (21, "access", FileName),
    (23, "select", Poll),
    (24, "sched_yield", Yield),
    (25, "mremap", Memory),
    (26, "msync", Flush),
    (28, "madvise", Memory),
    (34, "pause", Group::Other),
    (35, "nanosleep", Sleep),
    (40, "sendfile", Read),
    (42, "connect", Connect),
    (43, "accept", Accept),
    (44, "sendto", Send),
    (45, "recvfrom", Receive),
    (46, "sendmsg", Send),
    (47, "recvmsg", Receive),
    (56, "clone", Spawn),
    (57, "fork", Spawn),
    (58, "vfork", Spawn),
    (59, "execve", Spawn),
    (61, "wait4", WaitChild),
    (74, "fsync", Flush),
    (75, "fdatasync", Flush),
    (78, "getdents", FileName),
    (128, "rt_sigtimedwait", Group::Other),
    (149, "mlock", Memory),
    (151, "mlockall", Memory),
    (162, "sync", Flush),
    (187, "readahead", Read),
    (202, "futex", Futex),
    (217, "getdents64", FileName),
    (221, "fadvise64", Read),
    (230, "clock_nanosleep", Sleep),
    (232, "epoll_wait", Epoll),
    (247, "waitid", WaitChild),
    (257, "openat", FileName),
    (262, "newfstatat", FileName),
    (269, "faccessat", FileName),
    (270, "pselect6", Poll),
    (271, "ppoll", Poll),
    (275, "splice", Read),
    (277, "sync_file_range", Flush),
    (281, "epoll_pwait", Epoll),
    (288, "accept4", Accept),
    (295, "preadv", Read),
    (296, "pwritev", Write),
    (299, "recvmmsg", Receive),
    (306, "syncfs", Flush),
    (307, "sendmmsg", Send),
    (322, "execveat", Spawn),
    (325, "mlock2", Memory),
    (326, "copy_file_range", Read),
    (327, "preadv2", Read),
    (328, "pwritev2", Write),
    (332, "statx", FileName),
    (426, "io_uring_enter", Group::Other),
    (435, "clone3", Spawn),
    (437, "openat2", FileName),
    (439, "faccessat2", FileName),
    (441, "epoll_pwait2", Epoll),
    (449, "futex_waitv", Futex),
    (454, "futex_wake", Futex),
    (455, "futex_wait", Futex),
    (456, "futex_requeue", Futex),
];

const AARCH64: &[Row] = &[
    (22, "epoll_pwait", Epoll),
    (29, "ioctl", Ioctl),
    (48, "faccessat", FileName),
    (56, "openat", FileName),
    (61, "getdents64", FileName),
    (63, "read", Read),
    (64, "write", Write),
    (65, "readv", Read),
    (66, "writev", Write),
    (67, "pread64", Read),
    (68, "pwrite64", Write),
    (69, "preadv", Read),
    (70, "pwritev", Write),
    (71, "sendfile", Read),
    (72, "pselect6", Poll),
    (73, "ppoll", Poll),
    (76, "splice", Read),
    (79, "newfstatat", FileName),
    (80, "fstat", FileName),
    (81, "sync", Flush),
    (82, "fsync", Flush),
    (83, "fdatasync", Flush),
    (84, "sync_file_range", Flush),
    (95, "waitid", WaitChild),
    (98, "futex", Futex),
    (101, "nanosleep", Sleep),
    (115, "clock_nanosleep", Sleep),
    (124, "sched_yield", Yield),
    (137, "rt_sigtimedwait", Group::Other),
    (202, "accept", Accept),
    (203, "connect", Connect),
    (206, "sendto", Send),
    (207, "recvfrom", Receive),
    (211, "sendmsg", Send),
    (212, "recvmsg", Receive),
    (213, "readahead", Read),
    (214, "brk", Memory),
    (215, "munmap", Memory),
    (216, "mremap", Memory),
    (220, "clone", Spawn),
    (221, "execve", Spawn),
    (222, "mmap", Memory),
    (223, "fadvise64", Read),
    (226, "mprotect", Memory),
    (227, "msync", Flush),
    (228, "mlock", Memory),
    (230, "mlockall", Memory),
    (233, "madvise", Memory),
    (242, "accept4", Accept),
    (243, "recvmmsg", Receive),
    (260, "wait4", WaitChild),
    (267, "syncfs", Flush),
    (269, "sendmmsg", Send),
    (281, "execveat", Spawn),
    (284, "mlock2", Memory),
    (285, "copy_file_range", Read),
    (286, "preadv2", Read),
    (287, "pwritev2", Write),
    (291, "statx", FileName),
    (426, "io_uring_enter", Group::Other),
    (435, "clone3", Spawn),
    (437, "openat2", FileName),
    (439, "faccessat2", FileName),
    (441, "epoll_pwait2", Epoll),
    (449, "futex_waitv", Futex),
    (454, "futex_wake", Futex),
    (455, "futex_wait", Futex),
    (456, "futex_requeue", Futex),
];

/// The numbers of one architecture.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Those of which it is known what a wait in them means.
    rows: &'static [Row],
    arch: Arch,
}

#[derive(Clone, Copy, Debug)]
enum Arch {
    X86_64,
    Aarch64,
    I386,
    Unknown,
}

impl Table {
    /// For a machine name as uname(2) gives it. Of another machine no call is known: its
    /// numbers mean other calls.
    pub fn of_machine(machine: &str) -> Table {
        let (rows, arch) = match machine {
            "x86_64" => (X86_64, Arch::X86_64),
            "aarch64" => (AARCH64, Arch::Aarch64),
            _ => (&[][..], Arch::Unknown),
        };
        Table { rows, arch }
    }

    /// Of the machine that gdiag was built for.
    pub fn own() -> Table {
        Table::of_machine(std::env::consts::ARCH)
    }

    /// The numbers that 32-bit programs use on this architecture.
    pub fn compat(self) -> Table {
        let arch = match self.arch {
            Arch::X86_64 => Arch::I386,
            Arch::Aarch64 | Arch::I386 | Arch::Unknown => Arch::Unknown,
        };
        Table { rows: &[], arch }
    }

    fn row(self, nr: u16) -> Option<&'static Row> {
        let i = self.rows.binary_search_by_key(&nr, |row| row.0).ok()?;
        self.rows.get(i)
    }

    pub fn group(self, nr: u16) -> Group {
        self.row(nr).map_or(Group::Other, |row| row.2)
    }

    pub fn name(self, nr: u16) -> Option<&'static str> {
        // Of what waits, the crate has some names that differ from the kernel's.
        if let Some(row) = self.row(nr) {
            return Some(row.1);
        }
        let number = usize::from(nr);
        match self.arch {
            Arch::X86_64 => syscalls::x86_64::Sysno::new(number).map(|n| n.name()),
            Arch::Aarch64 => syscalls::aarch64::Sysno::new(number).map(|n| n.name()),
            Arch::I386 => syscalls::x86::Sysno::new(number).map(|n| n.name()),
            Arch::Unknown => None,
        }
    }

    /// The name of any call, for a person.
    pub fn text(self, number: Number) -> Cow<'static, str> {
        match number {
            Number::Native(nr) => match self.name(nr) {
                Some(name) => name.into(),
                None => format!("syscall_{nr}").into(),
            },
            Number::Compat(nr) => match self.compat().name(nr) {
                Some(name) => format!("{name}@32").into(),
                None => format!("syscall_{nr}@32").into(),
            },
            Number::None => "syscall_?".into(),
        }
    }

    /// All calls, each with its number.
    pub fn calls(self) -> impl Iterator<Item = (u16, &'static str)> {
        (0..1024).filter_map(move |nr| Some((nr, self.name(nr)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_know_both_machines() {
        for table in [X86_64, AARCH64] {
            assert!(table.windows(2).all(|w| w[0].0 < w[1].0));
        }
        let x86 = Table::of_machine("x86_64");
        assert_eq!((x86.name(202), x86.group(202)), (Some("futex"), Futex));
        let arm = Table::of_machine("aarch64");
        assert_eq!((arm.name(98), arm.group(98)), (Some("futex"), Futex));
        assert_eq!(arm.group(202), Accept);
        let rarely_waited_in = (x86.name(39), x86.group(39));
        assert_eq!(rarely_waited_in, (Some("getpid"), Group::Other));
        assert_eq!(x86.compat().name(5), Some("open"));
        assert_eq!(x86.name(1000), None);
    }

    #[test]
    fn all_calls_have_names() {
        for (machine, last) in [("x86_64", "fork"), ("aarch64", "openat")] {
            let table = Table::of_machine(machine);
            let names: Vec<_> = table.calls().map(|(_, name)| name).collect();
            assert!(names.len() > 300, "{machine}: {}", names.len());
            assert!(names.contains(&last));
        }
    }

    #[test]
    fn numbers_of_an_unknown_machine_mean_nothing() {
        let table = Table::of_machine("riscv64");
        assert_eq!((table.name(202), table.group(202)), (None, Group::Other));
    }
}
