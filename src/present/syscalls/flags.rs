//! The names of the bits and of the numbers that arguments are made of.
#![forbid(unsafe_code)]

/// A bit, or a number.
type Row = (u64, &'static str);

macro_rules! rows {
    ($($name:ident)*) => {
        // What is negative in C is the same bits here.
        &[$((libc::$name as u64, stringify!($name))),*]
    };
}

/// Bits joined by `|`; what has no name as a number. `none` is what no bit at all is.
pub(super) fn bits(value: u64, names: &[Row], none: &str) -> String {
    let mut rest = value;
    let mut parts: Vec<&str> = Vec::new();
    for &(bit, name) in names {
        if bit != 0 && rest & bit == bit {
            rest &= !bit;
            parts.push(name);
        }
    }
    let number = format!("{rest:#x}");
    if rest != 0 {
        parts.push(&number);
    }
    if parts.is_empty() {
        return none.to_string();
    }
    parts.join("|")
}

/// The name of a number, or the number.
pub(super) fn one(value: u64, names: &[Row]) -> String {
    name(value, names).map_or_else(|| int(value), str::to_string)
}

pub(super) fn name(value: u64, names: &[Row]) -> Option<&'static str> {
    names.iter().find(|row| row.0 == value).map(|row| row.1)
}

/// As C's int, which is what most numbers are: the upper half of the register may hold anything.
pub(super) fn int(value: u64) -> String {
    low(value).cast_signed().to_string()
}

/// The lower half.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn low(value: u64) -> u32 {
    value as u32
}

/// The way to open, which is no bit, and the bits.
pub(super) fn open(value: u64) -> String {
    const ACCESS: u64 = libc::O_ACCMODE as u64;
    // O_SYNC has the bit of O_DSYNC, and O_TMPFILE that of O_DIRECTORY.
    const BITS: &[Row] = rows!(O_SYNC O_TMPFILE O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK
        O_DSYNC O_DIRECT O_DIRECTORY O_NOFOLLOW O_NOATIME O_CLOEXEC O_PATH);
    let value = u64::from(low(value));
    let access = match value & ACCESS {
        0 => "O_RDONLY",
        1 => "O_WRONLY",
        2 => "O_RDWR",
        _ => "O_ACCMODE",
    };
    match value & !ACCESS & !LARGEFILE {
        0 => access.to_string(),
        rest => format!("{access}|{}", bits(rest, BITS, "")),
    }
}

/// glibc says that it is 0, and sets it.
#[cfg(target_arch = "x86_64")]
const LARGEFILE: u64 = 0x8000;
#[cfg(not(target_arch = "x86_64"))]
const LARGEFILE: u64 = 0x2_0000;

/// Whether the mode of a new file is given.
pub(super) fn creates(flags: u64) -> bool {
    const TMPFILE: u64 = libc::O_TMPFILE as u64;
    flags & (libc::O_CREAT as u64) != 0 || flags & TMPFILE == TMPFILE
}

/// The signal at the end of the child is the lowest byte.
pub(super) fn clone(value: u64) -> String {
    let signal = value & 0xff;
    let flags = bits(value & !0xff, CLONE, "");
    match (flags.is_empty(), signal) {
        (true, 0) => "0".to_string(),
        (false, 0) => flags,
        (true, signal) => self::signal(signal),
        (false, signal) => format!("{flags}|{}", self::signal(signal)),
    }
}

pub(super) fn signal(value: u64) -> String {
    let number = low(value).cast_signed();
    match nix::sys::signal::Signal::try_from(number) {
        Ok(signal) => signal.as_str().to_string(),
        Err(_) if (32..=64).contains(&number) => format!("SIGRT_{}", number - 32),
        Err(_) => number.to_string(),
    }
}

/// The command, which is a number, and bits.
pub(super) fn futex(value: u64) -> (&'static str, String) {
    const COMMANDS: &[Row] = &[
        (0, "FUTEX_WAIT"),
        (1, "FUTEX_WAKE"),
        (2, "FUTEX_FD"),
        (3, "FUTEX_REQUEUE"),
        (4, "FUTEX_CMP_REQUEUE"),
        (5, "FUTEX_WAKE_OP"),
        (6, "FUTEX_LOCK_PI"),
        (7, "FUTEX_UNLOCK_PI"),
        (8, "FUTEX_TRYLOCK_PI"),
        (9, "FUTEX_WAIT_BITSET"),
        (10, "FUTEX_WAKE_BITSET"),
        (11, "FUTEX_WAIT_REQUEUE_PI"),
        (12, "FUTEX_CMP_REQUEUE_PI"),
        (13, "FUTEX_LOCK_PI2"),
    ];
    const BITS: &[Row] = &[(128, "PRIVATE"), (256, "CLOCK_REALTIME")];
    let value = u64::from(low(value));
    let command = name(value & 127, COMMANDS).unwrap_or("");
    let rest = bits(value & !127, BITS, "");
    let text = match (command, rest.as_str()) {
        ("", _) => format!("{value:#x}"),
        (command, "") => command.to_string(),
        (command, "PRIVATE") => format!("{command}_PRIVATE"),
        (command, rest) => match rest.strip_prefix("PRIVATE|") {
            Some(rest) => format!("{command}_PRIVATE|{rest}"),
            None => format!("{command}|{rest}"),
        },
    };
    (command, text)
}

/// The type, which is a number, and bits.
pub(super) fn socket_type(value: u64) -> String {
    const TYPES: &[Row] = rows!(SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_RDM SOCK_SEQPACKET);
    const BITS: &[Row] = rows!(SOCK_NONBLOCK SOCK_CLOEXEC);
    let value = u64::from(low(value));
    let kind = one(value & 0xf, TYPES);
    match bits(value & !0xf, BITS, "") {
        rest if rest.is_empty() => kind,
        rest => format!("{kind}|{rest}"),
    }
}

/// The way to share, which is no bit, and the bits.
pub(super) fn map(value: u64) -> String {
    const TYPES: &[Row] = rows!(MAP_SHARED MAP_PRIVATE MAP_SHARED_VALIDATE);
    const BITS: &[Row] = rows!(MAP_FIXED MAP_ANONYMOUS MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE
        MAP_LOCKED MAP_NORESERVE MAP_POPULATE MAP_NONBLOCK MAP_STACK MAP_HUGETLB MAP_SYNC
        MAP_FIXED_NOREPLACE);
    let value = u64::from(low(value));
    let kind = one(value & 0xf, TYPES);
    match bits(value & !0xf, BITS, "") {
        rest if rest.is_empty() => kind,
        rest => format!("{kind}|{rest}"),
    }
}

const CLONE: &[Row] = rows!(CLONE_VM CLONE_FS CLONE_FILES CLONE_SIGHAND CLONE_PIDFD CLONE_PTRACE
    CLONE_VFORK CLONE_PARENT CLONE_THREAD CLONE_NEWNS CLONE_SYSVSEM CLONE_SETTLS
    CLONE_PARENT_SETTID CLONE_CHILD_CLEARTID CLONE_DETACHED CLONE_UNTRACED CLONE_CHILD_SETTID
    CLONE_NEWCGROUP CLONE_NEWUTS CLONE_NEWIPC CLONE_NEWUSER CLONE_NEWPID CLONE_NEWNET CLONE_IO);
pub(super) const PROT: &[Row] = rows!(PROT_READ PROT_WRITE PROT_EXEC PROT_GROWSDOWN PROT_GROWSUP);
pub(super) const AT: &[Row] =
    rows!(AT_SYMLINK_NOFOLLOW AT_REMOVEDIR AT_SYMLINK_FOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH);
pub(super) const ACCESS: &[Row] = rows!(R_OK W_OK X_OK);
pub(super) const MESSAGE: &[Row] = rows!(MSG_OOB MSG_PEEK MSG_DONTROUTE MSG_CTRUNC MSG_TRUNC
    MSG_DONTWAIT MSG_EOR MSG_WAITALL MSG_CONFIRM MSG_ERRQUEUE MSG_NOSIGNAL MSG_MORE MSG_WAITFORONE
    MSG_FASTOPEN MSG_CMSG_CLOEXEC);
pub(super) const POLL: &[Row] = rows!(POLLIN POLLPRI POLLOUT POLLERR POLLHUP POLLNVAL POLLRDNORM
    POLLRDBAND POLLWRNORM POLLWRBAND POLLRDHUP);
pub(super) const EPOLL: &[Row] = rows!(EPOLLIN EPOLLPRI EPOLLOUT EPOLLERR EPOLLHUP EPOLLRDNORM
    EPOLLRDBAND EPOLLWRNORM EPOLLWRBAND EPOLLMSG EPOLLRDHUP EPOLLEXCLUSIVE EPOLLWAKEUP EPOLLONESHOT);
pub(super) const EPOLL_ET: Row = (0x8000_0000, "EPOLLET");
pub(super) const EPOLL_OPS: &[Row] = rows!(EPOLL_CTL_ADD EPOLL_CTL_DEL EPOLL_CTL_MOD);
pub(super) const NEW_FD: &[Row] = rows!(O_NONBLOCK O_CLOEXEC O_DIRECT EFD_SEMAPHORE);
pub(super) const RANDOM: &[Row] = rows!(GRND_NONBLOCK GRND_RANDOM);
pub(super) const TIMER: &[Row] = rows!(TIMER_ABSTIME);
pub(super) const LOCK: &[Row] = rows!(LOCK_SH LOCK_EX LOCK_NB LOCK_UN);
pub(super) const WAIT: &[Row] =
    rows!(WNOHANG WUNTRACED WEXITED WCONTINUED WNOWAIT __WNOTHREAD __WALL __WCLONE);
pub(super) const WHENCE: &[Row] = rows!(SEEK_SET SEEK_CUR SEEK_END SEEK_DATA SEEK_HOLE);
pub(super) const SIGNAL_HOW: &[Row] = rows!(SIG_BLOCK SIG_UNBLOCK SIG_SETMASK);
pub(super) const SHUTDOWN: &[Row] = rows!(SHUT_RD SHUT_WR SHUT_RDWR);
pub(super) const DOMAINS: &[Row] =
    rows!(AF_UNSPEC AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_ALG AF_VSOCK AF_XDP);
pub(super) const LEVELS: &[Row] =
    rows!(SOL_SOCKET IPPROTO_IP IPPROTO_TCP IPPROTO_UDP IPPROTO_IPV6 SOL_NETLINK);
/// Of SOL_SOCKET.
pub(super) const OPTIONS: &[Row] = rows!(SO_DEBUG SO_REUSEADDR SO_TYPE SO_ERROR SO_DONTROUTE
    SO_BROADCAST SO_SNDBUF SO_RCVBUF SO_KEEPALIVE SO_OOBINLINE SO_PRIORITY SO_LINGER SO_REUSEPORT
    SO_PASSCRED SO_PEERCRED SO_RCVLOWAT SO_SNDLOWAT SO_RCVTIMEO SO_SNDTIMEO SO_ATTACH_FILTER
    SO_TIMESTAMP SO_ACCEPTCONN SO_SNDBUFFORCE SO_RCVBUFFORCE SO_PROTOCOL SO_DOMAIN SO_BUSY_POLL
    SO_ZEROCOPY SO_INCOMING_CPU);
pub(super) const CLOCKS: &[Row] = rows!(CLOCK_REALTIME CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID
    CLOCK_THREAD_CPUTIME_ID CLOCK_MONOTONIC_RAW CLOCK_REALTIME_COARSE CLOCK_MONOTONIC_COARSE
    CLOCK_BOOTTIME CLOCK_REALTIME_ALARM CLOCK_BOOTTIME_ALARM CLOCK_TAI);
pub(super) const RESOURCES: &[Row] = rows!(RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA RLIMIT_STACK
    RLIMIT_CORE RLIMIT_RSS RLIMIT_NPROC RLIMIT_NOFILE RLIMIT_MEMLOCK RLIMIT_AS RLIMIT_LOCKS
    RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME);
pub(super) const ADVICE: &[Row] = rows!(MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED
    MADV_DONTNEED MADV_FREE MADV_REMOVE MADV_DONTFORK MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE
    MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP MADV_WIPEONFORK MADV_KEEPONFORK
    MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE MADV_COLLAPSE);
pub(super) const FCNTL: &[Row] = rows!(F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_GETLK F_SETLK
    F_SETLKW F_SETOWN F_GETOWN F_DUPFD_CLOEXEC F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS
    F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW);
pub(super) const PRCTL: &[Row] = rows!(PR_SET_PDEATHSIG PR_GET_PDEATHSIG PR_GET_DUMPABLE
    PR_SET_DUMPABLE PR_SET_KEEPCAPS PR_SET_NAME PR_GET_NAME PR_SET_SECCOMP PR_CAPBSET_READ
    PR_CAPBSET_DROP PR_SET_TIMERSLACK PR_SET_CHILD_SUBREAPER PR_SET_NO_NEW_PRIVS
    PR_GET_NO_NEW_PRIVS PR_SET_THP_DISABLE PR_SET_MM PR_SET_PTRACER PR_SET_VMA);
pub(super) const ARCH_PRCTL: &[Row] = &[
    (0x1001, "ARCH_SET_GS"),
    (0x1002, "ARCH_SET_FS"),
    (0x1003, "ARCH_GET_FS"),
    (0x1004, "ARCH_GET_GS"),
    (0x1011, "ARCH_GET_CPUID"),
    (0x1012, "ARCH_SET_CPUID"),
    (0x1021, "ARCH_GET_XCOMP_SUPP"),
    (0x1022, "ARCH_GET_XCOMP_PERM"),
    (0x1023, "ARCH_REQ_XCOMP_PERM"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_names_and_the_rest_is_a_number() {
        assert_eq!(bits(3, PROT, "PROT_NONE"), "PROT_READ|PROT_WRITE");
        assert_eq!(bits(0, PROT, "PROT_NONE"), "PROT_NONE");
        assert_eq!(bits(0x4001, PROT, ""), "PROT_READ|0x4000");
        assert_eq!(open(0o2_000_102), "O_RDWR|O_CREAT|O_CLOEXEC");
        assert_eq!(open(0xffff_0000_0000_0000), "O_RDONLY");
        assert_eq!(map(0x22), "MAP_PRIVATE|MAP_ANONYMOUS");
        assert_eq!(socket_type(0x8_0001), "SOCK_STREAM|SOCK_CLOEXEC");
    }

    #[test]
    fn a_futex_has_its_command() {
        assert_eq!(futex(128).1, "FUTEX_WAIT_PRIVATE");
        assert_eq!(futex(1).1, "FUTEX_WAKE");
        assert_eq!(futex(0x189).1, "FUTEX_WAIT_BITSET_PRIVATE|CLOCK_REALTIME");
        assert_eq!(futex(99).1, "0x63");
    }

    #[test]
    fn a_clone_says_what_is_shared() {
        assert_eq!(clone(17), "SIGCHLD");
        assert_eq!(clone(0x4111), "CLONE_VM|CLONE_VFORK|SIGCHLD");
        assert_eq!(clone(0), "0");
    }
}
