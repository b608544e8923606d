//! What the arguments of system calls are, as far as it is worth telling: for reading them in the
//! kernel, and for writing them in words.
#![forbid(unsafe_code)]

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// The number of an open file.
    Fd,
    /// The same, or `AT_FDCWD`.
    DirFd,
    Path,
    /// Another string.
    Text,
    /// What is written: as many bytes as that argument says.
    Data(u8),
    Int,
    Count,
    Hex,
    Octal,
    /// The mode of a new file, with the flags in the argument before it; else it is not given.
    NewMode,
    OpenFlags,
    AtFlags,
    AccessMode,
    Prot,
    MapFlags,
    Advice,
    CloneFlags,
    /// Of clone3, at its address.
    CloneArgs,
    FutexOp,
    /// What a futex is expected to be, or how many are woken.
    FutexValue,
    /// Of a futex that waits: a time. Else a number, or nothing.
    FutexTimeout,
    FutexSecond,
    FutexThird,
    /// A struct timespec, at its address.
    Time,
    /// Milliseconds; negative ones are for ever.
    Millis,
    Clock,
    TimerFlags,
    /// An array of struct pollfd, as many as that argument says.
    Polled(u8),
    /// A set of numbers below that of the first argument.
    FdSet,
    EpollOp,
    /// A struct epoll_event, at its address.
    EpollEvent,
    /// An address as long as that argument says.
    SockAddr(u8),
    Domain,
    SocketType,
    SocketLevel,
    SocketOption,
    MessageFlags,
    ShutdownHow,
    IoctlRequest,
    FcntlCommand,
    /// With the command before it.
    FcntlArg,
    Whence,
    Signal,
    SignalHow,
    WaitOptions,
    Resource,
    PrctlOption,
    ArchPrctlCode,
    NewFdFlags,
    RandomFlags,
    LockOp,
    Rusage,
    /// Of openat2, at its address.
    OpenHow,
}

/// By name, so that it is the same for all machines; `None`: not known.
pub fn of(name: &str) -> Option<&'static [Arg]> {
    use Arg::{
        AccessMode, Advice, ArchPrctlCode, AtFlags, Clock, CloneArgs, CloneFlags, Count, Data,
        DirFd, Domain, EpollEvent, EpollOp, FcntlArg, FcntlCommand, Fd, FdSet, FutexOp,
        FutexSecond, FutexThird, FutexTimeout, FutexValue, Hex, Int, IoctlRequest, LockOp,
        MapFlags, MessageFlags, Millis, NewFdFlags, NewMode, Octal, OpenFlags, OpenHow, Path,
        Polled, PrctlOption, Prot, RandomFlags, Resource, Rusage, ShutdownHow, Signal, SignalHow,
        SockAddr, SocketLevel, SocketOption, SocketType, Text, Time, TimerFlags, WaitOptions,
        Whence,
    };
    Some(match name {
        "read" => &[Fd, Hex, Count],
        "write" => &[Fd, Data(2), Count],
        "pread64" => &[Fd, Hex, Count, Int],
        "pwrite64" => &[Fd, Data(2), Count, Int],
        "readv" | "writev" => &[Fd, Hex, Count],
        "preadv" | "pwritev" => &[Fd, Hex, Count, Int],
        "preadv2" | "pwritev2" => &[Fd, Hex, Count, Int, Int, Hex],
        "open" => &[Path, OpenFlags, NewMode],
        "creat" => &[Path, Octal],
        "openat" => &[DirFd, Path, OpenFlags, NewMode],
        "openat2" => &[DirFd, Path, OpenHow, Count],
        "close" | "fsync" | "fdatasync" | "syncfs" | "dup" | "fchdir" => &[Fd],
        "close_range" => &[Int, Int, Hex],
        "fstat" => &[Fd, Hex],
        "stat" | "lstat" | "statfs" => &[Path, Hex],
        "fstatfs" => &[Fd, Hex],
        "newfstatat" => &[DirFd, Path, Hex, AtFlags],
        "statx" => &[DirFd, Path, AtFlags, Hex, Hex],
        "access" => &[Path, AccessMode],
        "faccessat" => &[DirFd, Path, AccessMode],
        "faccessat2" => &[DirFd, Path, AccessMode, AtFlags],
        "chdir" | "rmdir" | "unlink" | "chroot" | "swapon" | "swapoff" => &[Path],
        "mkdir" | "chmod" => &[Path, Octal],
        "mkdirat" | "fchmodat" => &[DirFd, Path, Octal],
        "fchmod" => &[Fd, Octal],
        "chown" | "lchown" => &[Path, Int, Int],
        "fchown" => &[Fd, Int, Int],
        "fchownat" => &[DirFd, Path, Int, Int, AtFlags],
        "unlinkat" => &[DirFd, Path, AtFlags],
        "rename" | "link" | "symlink" => &[Path, Path],
        "renameat" => &[DirFd, Path, DirFd, Path],
        "renameat2" => &[DirFd, Path, DirFd, Path, Hex],
        "linkat" => &[DirFd, Path, DirFd, Path, AtFlags],
        "symlinkat" => &[Path, DirFd, Path],
        "readlink" => &[Path, Hex, Count],
        "readlinkat" => &[DirFd, Path, Hex, Count],
        "truncate" => &[Path, Int],
        "ftruncate" => &[Fd, Int],
        "fallocate" => &[Fd, Hex, Int, Int],
        "fadvise64" => &[Fd, Int, Int, Int],
        "readahead" => &[Fd, Int, Count],
        "lseek" => &[Fd, Int, Whence],
        "getdents" | "getdents64" => &[Fd, Hex, Count],
        "getcwd" => &[Hex, Count],
        "utimensat" => &[DirFd, Path, Hex, AtFlags],
        "mount" => &[Path, Path, Text, Hex, Hex],
        "umount2" => &[Path, Hex],
        "getxattr" | "setxattr" => &[Path, Text, Hex, Count],
        "fgetxattr" => &[Fd, Text, Hex, Count],
        "ioctl" => &[Fd, IoctlRequest, Hex],
        "fcntl" => &[Fd, FcntlCommand, FcntlArg],
        "flock" => &[Fd, LockOp],
        "dup2" => &[Fd, Int],
        "dup3" => &[Fd, Int, NewFdFlags],
        "pipe" => &[Hex],
        "pipe2" => &[Hex, NewFdFlags],
        "eventfd2" | "inotify_init1" | "epoll_create1" | "timerfd_create" => match name {
            "eventfd2" => &[Int, NewFdFlags],
            "timerfd_create" => &[Clock, NewFdFlags],
            _ => &[NewFdFlags],
        },
        "epoll_create" => &[Int],
        "inotify_add_watch" => &[Fd, Path, Hex],
        "timerfd_settime" => &[Fd, TimerFlags, Hex, Hex],
        "timerfd_gettime" => &[Fd, Hex],
        "memfd_create" => &[Text, Hex],
        "sendfile" => &[Fd, Fd, Hex, Count],
        "splice" => &[Fd, Hex, Fd, Hex, Count, Hex],
        "tee" => &[Fd, Fd, Count, Hex],
        "copy_file_range" => &[Fd, Hex, Fd, Hex, Count, Hex],
        "mmap" => &[Hex, Count, Prot, MapFlags, Fd, Hex],
        "munmap" | "mlock" | "munlock" => &[Hex, Count],
        "mprotect" => &[Hex, Count, Prot],
        "mremap" => &[Hex, Count, Count, Hex, Hex],
        "msync" => &[Hex, Count, Hex],
        "madvise" => &[Hex, Count, Advice],
        "process_madvise" => &[Fd, Hex, Count, Advice, Hex],
        "brk" => &[Hex],
        "mbind" => &[Hex, Count, Int, Hex, Count, Hex],
        "futex" => &[
            Hex,
            FutexOp,
            FutexValue,
            FutexTimeout,
            FutexSecond,
            FutexThird,
        ],
        "futex_waitv" => &[Hex, Count, Hex, Time, Clock],
        "futex_wake" => &[Hex, Hex, Int, Hex],
        "futex_wait" => &[Hex, Int, Hex, Hex, Time, Clock],
        "poll" => &[Polled(1), Count, Millis],
        "ppoll" => &[Polled(1), Count, Time, Hex, Count],
        "select" => &[Int, FdSet, FdSet, FdSet, Hex],
        "pselect6" => &[Int, FdSet, FdSet, FdSet, Time, Hex],
        "epoll_ctl" => &[Fd, EpollOp, Fd, EpollEvent],
        "epoll_wait" => &[Fd, Hex, Int, Millis],
        "epoll_pwait" => &[Fd, Hex, Int, Millis, Hex, Count],
        "epoll_pwait2" => &[Fd, Hex, Int, Time, Hex, Count],
        "socket" | "socketpair" => match name {
            "socket" => &[Domain, SocketType, Int],
            _ => &[Domain, SocketType, Int, Hex],
        },
        "bind" | "connect" => &[Fd, SockAddr(2), Count],
        "listen" => &[Fd, Int],
        "accept" => &[Fd, Hex, Hex],
        "accept4" => &[Fd, Hex, Hex, NewFdFlags],
        "getsockname" | "getpeername" => &[Fd, Hex, Hex],
        "sendto" => &[Fd, Data(2), Count, MessageFlags, SockAddr(5), Count],
        "recvfrom" => &[Fd, Hex, Count, MessageFlags, Hex, Hex],
        "sendmsg" | "recvmsg" => &[Fd, Hex, MessageFlags],
        "sendmmsg" => &[Fd, Hex, Count, MessageFlags],
        "recvmmsg" => &[Fd, Hex, Count, MessageFlags, Time],
        "setsockopt" | "getsockopt" => &[Fd, SocketLevel, SocketOption, Hex, Hex],
        "shutdown" => &[Fd, ShutdownHow],
        "nanosleep" => &[Time, Hex],
        "clock_nanosleep" => &[Clock, TimerFlags, Time, Hex],
        "clock_gettime" | "clock_getres" => &[Clock, Hex],
        "clock_settime" => &[Clock, Time],
        "clone" => &[CloneFlags, Hex, Hex, Hex, Hex],
        "clone3" => &[CloneArgs, Count],
        "fork" | "vfork" | "pause" | "getpid" | "gettid" | "getppid" | "getuid" | "geteuid"
        | "getgid" | "getegid" | "getpgrp" | "setsid" | "sync" | "sched_yield" | "rt_sigreturn"
        | "munlockall" | "vhangup" => &[],
        "execve" => &[Path, Hex, Hex],
        "execveat" => &[DirFd, Path, Hex, Hex, AtFlags],
        "exit" | "exit_group" => &[Int],
        "wait4" => &[Int, Hex, WaitOptions, Rusage],
        "waitid" => &[Int, Int, Hex, WaitOptions, Rusage],
        "kill" => &[Int, Signal],
        "tkill" => &[Int, Signal],
        "tgkill" => &[Int, Int, Signal],
        "rt_sigaction" => &[Signal, Hex, Hex, Count],
        "rt_sigprocmask" => &[SignalHow, Hex, Hex, Count],
        "rt_sigsuspend" => &[Hex, Count],
        "rt_sigtimedwait" => &[Hex, Hex, Time, Count],
        "sigaltstack" => &[Hex, Hex],
        "pidfd_open" => &[Int, Hex],
        "pidfd_send_signal" => &[Fd, Signal, Hex, Hex],
        "prctl" => &[PrctlOption, Hex, Hex, Hex, Hex],
        "arch_prctl" => &[ArchPrctlCode, Hex],
        "prlimit64" => &[Int, Resource, Hex, Hex],
        "getrlimit" | "setrlimit" => &[Resource, Hex],
        "getrusage" => &[Int, Hex],
        "getrandom" => &[Hex, Count, RandomFlags],
        "set_tid_address" => &[Hex],
        "set_robust_list" => &[Hex, Count],
        "rseq" => &[Hex, Count, Hex, Hex],
        "sched_setaffinity" | "sched_getaffinity" => &[Int, Count, Hex],
        "getpgid" | "getsid" | "umask" | "setuid" | "setgid" => match name {
            "umask" => &[Octal],
            _ => &[Int],
        },
        "setpgid" | "getpriority" => &[Int, Int],
        "setpriority" => &[Int, Int, Int],
        "uname" | "sysinfo" | "times" => &[Hex],
        "getcpu" => &[Hex, Hex, Hex],
        "io_uring_enter" => &[Fd, Count, Count, Hex, Hex, Count],
        "io_uring_setup" => &[Count, Hex],
        "perf_event_open" => &[Hex, Int, Int, Int, Hex],
        "bpf" => &[Int, Hex, Count],
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::syscall::Table;

    #[test]
    fn no_call_has_more_than_six() {
        let mut known = 0;
        for machine in ["x86_64", "aarch64"] {
            for (_, name) in Table::of_machine(machine).calls() {
                if let Some(args) = of(name) {
                    known += 1;
                    assert!(args.len() <= 6, "{name}");
                }
            }
        }
        assert!(known > 250, "{known}");
        assert_eq!(of("no such call"), None);
    }
}
