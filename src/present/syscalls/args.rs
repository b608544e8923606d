//! The arguments of a call in words, as strace writes them. What is not known to be anything else is
//! a hexadecimal number. Only what was read at the entry is told: what a call gives back is not.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use super::escape::quoted;
use super::{flags, ioctl};
use crate::decode::syscalls::{Number, RawArgs};
use crate::model::signature::{self, Arg};
use crate::pipeline::syscalls::Args;
use crate::present::text;
use crate::units::Nanos;

/// One text for each argument. None of them controls a terminal.
pub fn texts(name: &str, number: Number, args: &Args) -> Vec<String> {
    let Some(raw) = &args.raw else {
        return Vec::new();
    };
    // The numbers of others mean other calls.
    let known = match number {
        Number::Native(_) => signature::of(name),
        Number::Compat(_) | Number::None => None,
    };
    let Some(kinds) = known else {
        return raw.values.iter().map(|&value| hex(value)).collect();
    };
    let call = Call { name, raw, args };
    kinds
        .iter()
        .enumerate()
        .map_while(|(i, &kind)| call.text(i, kind))
        .collect()
}

fn hex(value: u64) -> String {
    match value {
        0 => "0".to_string(),
        _ => format!("{value:#x}"),
    }
}

/// As C writes it.
fn octal(value: u64) -> String {
    match value {
        0 => "0".to_string(),
        _ => format!("0{value:o}"),
    }
}

/// An address, as far as nothing else is known.
fn pointer(value: u64) -> String {
    match value {
        0 => "NULL".to_string(),
        _ => format!("{value:#x}"),
    }
}

struct Call<'a> {
    name: &'a str,
    raw: &'a RawArgs,
    args: &'a Args,
}

impl Call<'_> {
    /// `None`: this argument and those behind it are not given.
    fn text(&self, i: usize, kind: Arg) -> Option<String> {
        let value = *self.raw.values.get(i)?;
        let before = i.checked_sub(1).and_then(|i| self.raw.values.get(i));
        let before = before.copied().unwrap_or(0);
        let number = u64::from(flags::low(value));
        Some(match kind {
            Arg::Fd => self.file(i, flags::low(value).cast_signed()),
            Arg::DirFd => match flags::low(value).cast_signed() {
                libc::AT_FDCWD => "AT_FDCWD".to_string(),
                fd => self.file(i, fd),
            },
            Arg::Path | Arg::Text => match self.raw.text(i) {
                Some((bytes, cut)) => quoted(bytes, cut),
                None => pointer(value),
            },
            Arg::Data(length) => match self.raw.bytes(i) {
                Some(bytes) => {
                    let whole = self.raw.values.get(usize::from(length)).copied();
                    quoted(bytes, whole.is_some_and(|n| n > bytes.len() as u64))
                }
                None => pointer(value),
            },
            Arg::Int => value_of_int(value),
            Arg::Count => value.to_string(),
            Arg::Hex | Arg::Rusage => hex(value),
            Arg::NewMode if !flags::creates(before) => return None,
            Arg::Octal | Arg::NewMode => octal(number),
            Arg::OpenFlags => flags::open(value),
            Arg::AtFlags => flags::bits(number, flags::AT, "0"),
            Arg::AccessMode => flags::bits(number, flags::ACCESS, "F_OK"),
            Arg::Prot => flags::bits(number, flags::PROT, "PROT_NONE"),
            Arg::MapFlags => flags::map(value),
            Arg::Advice => flags::one(number, flags::ADVICE),
            Arg::CloneFlags => flags::clone(value),
            Arg::CloneArgs => match self.words::<1>(i) {
                Some([flags]) => format!("{{flags={}, ...}}", flags::clone(flags)),
                None => pointer(value),
            },
            Arg::OpenHow => match self.words::<3>(i) {
                Some([how, mode, resolve]) => format!(
                    "{{flags={}, mode={}, resolve={}}}",
                    flags::open(how),
                    octal(mode),
                    hex(resolve)
                ),
                None => pointer(value),
            },
            Arg::FutexOp => flags::futex(value).1,
            Arg::FutexValue => match self.futex() {
                "FUTEX_UNLOCK_PI" | "FUTEX_LOCK_PI" | "FUTEX_TRYLOCK_PI" | "FUTEX_LOCK_PI2" => {
                    return None
                }
                _ => number.to_string(),
            },
            Arg::FutexTimeout => match self.futex() {
                "FUTEX_WAKE" | "FUTEX_WAKE_BITSET" | "FUTEX_FD" => return None,
                "FUTEX_REQUEUE"
                | "FUTEX_CMP_REQUEUE"
                | "FUTEX_CMP_REQUEUE_PI"
                | "FUTEX_WAKE_OP" => number.to_string(),
                _ => self.time(i, value),
            },
            Arg::FutexSecond => match self.futex() {
                "FUTEX_WAIT" => return None,
                _ => hex(value),
            },
            Arg::FutexThird => hex(number),
            Arg::Time => self.time(i, value),
            Arg::Millis => flags::int(value),
            Arg::Clock => flags::one(number, flags::CLOCKS),
            Arg::TimerFlags => flags::bits(number, flags::TIMER, "0"),
            Arg::Polled(count) => self.polled(i, usize::from(count), value),
            Arg::FdSet => self.fd_set(i, value),
            Arg::EpollOp => flags::one(number, flags::EPOLL_OPS),
            Arg::EpollEvent => match self.raw.bytes(i).and_then(|b| b.first_chunk::<4>()) {
                Some(&events) => epoll_event(u32::from_ne_bytes(events)),
                None => pointer(value),
            },
            Arg::SockAddr(_) => match self.raw.bytes(i) {
                Some(bytes) => sock_addr(bytes).unwrap_or_else(|| pointer(value)),
                None => pointer(value),
            },
            Arg::Domain => flags::one(number, flags::DOMAINS),
            Arg::SocketType => flags::socket_type(value),
            Arg::SocketLevel => flags::one(number, flags::LEVELS),
            Arg::SocketOption if before == libc::SOL_SOCKET as u64 => {
                flags::one(number, flags::OPTIONS)
            }
            Arg::SocketOption => number.to_string(),
            Arg::MessageFlags => flags::bits(number, flags::MESSAGE, "0"),
            Arg::ShutdownHow => flags::one(number, flags::SHUTDOWN),
            Arg::IoctlRequest => ioctl::text(self.path(i - 1, before), value),
            Arg::FcntlCommand => flags::one(number, flags::FCNTL),
            Arg::FcntlArg => match i32::try_from(before).unwrap_or(-1) {
                libc::F_GETFD | libc::F_GETFL | libc::F_GETOWN | libc::F_GETPIPE_SZ => return None,
                libc::F_SETFD => match value {
                    1 => "FD_CLOEXEC".to_string(),
                    _ => number.to_string(),
                },
                libc::F_SETFL => flags::open(value),
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => flags::int(value),
                _ => hex(value),
            },
            Arg::Whence => flags::one(number, flags::WHENCE),
            Arg::Signal => flags::signal(value),
            Arg::SignalHow => flags::one(number, flags::SIGNAL_HOW),
            Arg::WaitOptions => flags::bits(number, flags::WAIT, "0"),
            Arg::Resource => flags::one(number, flags::RESOURCES),
            Arg::PrctlOption => flags::one(number, flags::PRCTL),
            Arg::ArchPrctlCode => match flags::name(number, flags::ARCH_PRCTL) {
                Some(name) => name.to_string(),
                None => hex(value),
            },
            Arg::NewFdFlags => flags::bits(number, flags::NEW_FD, "0"),
            Arg::RandomFlags => flags::bits(number, flags::RANDOM, "0"),
            Arg::LockOp => flags::bits(number, flags::LOCK, "0"),
        })
    }

    fn futex(&self) -> &'static str {
        let op = self.raw.values.get(1).copied().unwrap_or(0);
        flags::futex(op).0
    }

    /// What file `fd` in argument `i` was, if that is known.
    fn path(&self, i: usize, fd: u64) -> Option<&str> {
        let fd = flags::low(fd).cast_signed();
        let mut files = self.args.files.iter();
        files.find_map(|(arg, it, text)| (*arg == i && *it == fd).then_some(&**text))
    }

    fn file(&self, i: usize, fd: i32) -> String {
        match self.path(i, i64::from(fd).cast_unsigned()) {
            Some(path) => format!("{fd}<{}>", text::clean(path)),
            None => fd.to_string(),
        }
    }

    /// The 64-bit words at argument `i`.
    fn words<const N: usize>(&self, i: usize) -> Option<[u64; N]> {
        let mut words = self.raw.bytes(i)?.chunks_exact(8);
        let mut all = [0; N];
        for word in &mut all {
            *word = u64::from_ne_bytes(words.next()?.try_into().ok()?);
        }
        Some(all)
    }

    /// A length or a time, whichever the call means.
    fn time(&self, i: usize, value: u64) -> String {
        let Some([seconds, nanos]) = self.words::<2>(i) else {
            return pointer(value);
        };
        let absolute = match self.name {
            "clock_nanosleep" => self.raw.values[1] & 1 != 0,
            "futex" => self.futex() != "FUTEX_WAIT",
            "futex_wait" | "futex_waitv" | "clock_settime" => true,
            _ => false,
        };
        let whole = seconds
            .checked_mul(1_000_000_000)
            .and_then(|s| s.checked_add(nanos));
        match whole {
            // A length is read more easily with its unit.
            Some(whole) if !absolute && nanos < 1_000_000_000 => {
                format!("{{{}}}", Nanos(whole))
            }
            _ => format!(
                "{{tv_sec={}, tv_nsec={}}}",
                seconds.cast_signed(),
                nanos.cast_signed()
            ),
        }
    }

    fn polled(&self, i: usize, count: usize, value: u64) -> String {
        let Some(bytes) = self.raw.bytes(i) else {
            return pointer(value);
        };
        let mut all: Vec<String> = bytes
            .chunks_exact(8)
            .map(|entry| {
                let fd = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
                let events = u16::from_ne_bytes([entry[4], entry[5]]);
                let events = flags::bits(u64::from(events), flags::POLL, "0");
                format!("{{fd={}, {events}}}", self.file(i, fd))
            })
            .collect();
        let whole = self.raw.values.get(count).copied().unwrap_or(0);
        if whole > all.len() as u64 {
            all.push("...".to_string());
        }
        format!("[{}]", all.join(", "))
    }

    /// The numbers in it below the first argument.
    fn fd_set(&self, i: usize, value: u64) -> String {
        let Some(bytes) = self.raw.bytes(i) else {
            return pointer(value);
        };
        let end = usize::try_from(flags::low(self.raw.values[0])).unwrap_or(0);
        let set = (0..end.min(bytes.len() * 8)).filter(|fd| bytes[fd / 8] >> (fd % 8) & 1 != 0);
        let set: Vec<String> = set.map(|fd| fd.to_string()).collect();
        format!("[{}]", set.join(" "))
    }
}

/// Most numbers are C's int; a long one shows in full.
fn value_of_int(value: u64) -> String {
    let long = value.cast_signed();
    match i32::try_from(long) {
        Ok(int) => int.to_string(),
        Err(_) if value >> 32 == 0 => flags::int(value),
        Err(_) => long.to_string(),
    }
}

fn epoll_event(events: u32) -> String {
    let edge = u64::from(events) & flags::EPOLL_ET.0;
    let mut text = flags::bits(u64::from(events) & !edge, flags::EPOLL, "0");
    if edge != 0 {
        text = format!("{text}|{}", flags::EPOLL_ET.1);
    }
    format!("{{{text}}}")
}

/// `None`: too short for what it says it is.
fn sock_addr(bytes: &[u8]) -> Option<String> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = || Some(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?));
    Some(match i32::from(family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?);
            format!("{{AF_INET, {}}}", SocketAddrV4::new(ip, port()?))
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?);
            format!("{{AF_INET6, {}}}", SocketAddrV6::new(ip, port()?, 0, 0))
        }
        libc::AF_UNIX => {
            let path = bytes.get(2..)?;
            // An abstract name begins with NUL, and has no end but its length.
            match path.split_first() {
                None => "{AF_UNIX}".to_string(),
                Some((0, name)) => format!("{{AF_UNIX, @{}}}", quoted(name, false)),
                Some(_) => {
                    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
                    format!("{{AF_UNIX, {}}}", quoted(&path[..end], false))
                }
            }
        }
        _ => format!("{{{}, ...}}", flags::one(u64::from(family), flags::DOMAINS)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decode::syscalls::tests::{block, file_block};
    use crate::model::syscall::Table;

    const TEXT: u8 = 2;
    const BYTES: u8 = 3;

    fn said(
        name: &str,
        values: [u64; 6],
        blocks: &[Vec<u8>],
        files: &[(usize, i32, &str)],
    ) -> String {
        let args = Args {
            raw: Some(Box::new(RawArgs::new(values, blocks.concat()))),
            files: files
                .iter()
                .map(|&(arg, fd, text)| (arg, fd, text.into()))
                .collect(),
        };
        texts(name, Number::Native(0), &args).join(", ")
    }

    fn bytes_of(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn an_open_says_what_and_how() {
        let path = block(TEXT, 1, 0, b"/tmp/a b\0");
        let cwd = i64::from(libc::AT_FDCWD).cast_unsigned();
        assert_eq!(
            said(
                "openat",
                [cwd, 1, 0o2_000_000, 7, 7, 7],
                std::slice::from_ref(&path),
                &[]
            ),
            r#"AT_FDCWD, "/tmp/a b", O_RDONLY|O_CLOEXEC"#
        );
        assert_eq!(
            said(
                "openat",
                [5, 1, 0o101, 0o644, 7, 7],
                &[path],
                &[(0, 5, "/tmp")]
            ),
            r#"5</tmp>, "/tmp/a b", O_WRONLY|O_CREAT, 0644"#
        );
        // Unreadable: its address.
        assert_eq!(
            said("open", [0x1234, 0, 0, 0, 0, 0], &[], &[]),
            "0x1234, O_RDONLY"
        );
    }

    #[test]
    fn a_number_of_a_file_is_told_only_with_what_it_was() {
        let file = file_block(0, 3, 9, 0o100_644, "x");
        assert_eq!(
            said(
                "read",
                [3, 0x1000, 512, 0, 0, 0],
                &[file],
                &[(0, 3, "/data/x\x1b[2J")]
            ),
            "3</data/x\\x1b[2J>, 0x1000, 512"
        );
        assert_eq!(said("close", [u64::MAX, 0, 0, 0, 0, 0], &[], &[]), "-1");
    }

    #[test]
    fn a_futex_has_the_arguments_of_its_command() {
        let time = block(BYTES, 3, 0, &bytes_of(&[1, 500_000_000]));
        assert_eq!(
            said(
                "futex",
                [0x1000, 128, 2, 0x10, 0, 0],
                std::slice::from_ref(&time),
                &[]
            ),
            "0x1000, FUTEX_WAIT_PRIVATE, 2, {1.50 s}"
        );
        assert_eq!(
            said("futex", [0x1000, 129, 1, 0x10, 0, 0], &[], &[]),
            "0x1000, FUTEX_WAKE_PRIVATE, 1"
        );
        assert_eq!(
            said("futex", [0x1000, 0x189, 2, 0x10, 0, 0xffff_ffff], &[time], &[]),
            "0x1000, FUTEX_WAIT_BITSET_PRIVATE|CLOCK_REALTIME, 2, {tv_sec=1, tv_nsec=500000000}, 0, 0xffffffff"
        );
    }

    #[test]
    fn a_poll_has_its_files_and_events() {
        let mut entries = Vec::new();
        for (fd, events) in [(3i32, 1u16), (4, 5)] {
            entries.extend(fd.to_ne_bytes());
            entries.extend(events.to_ne_bytes());
            entries.extend([0; 2]);
        }
        let array = block(BYTES, 0, 0, &entries);
        assert_eq!(
            said(
                "poll",
                [0x10, 3, u64::from(u32::MAX), 0, 0, 0],
                &[array],
                &[(0, 3, "tcp 1.2.3.4:80")]
            ),
            "[{fd=3<tcp 1.2.3.4:80>, POLLIN}, {fd=4, POLLIN|POLLOUT}, ...], 3, -1"
        );
        assert_eq!(said("poll", [0, 0, 5, 0, 0, 0], &[], &[]), "NULL, 0, 5");
    }

    #[test]
    fn addresses_of_sockets_are_read() {
        let inet = [2, 0, 0x1f, 0x90, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let of = |bytes: &[u8]| {
            said(
                "connect",
                [3, 1, 16, 0, 0, 0],
                &[block(BYTES, 1, 0, bytes)],
                &[],
            )
        };
        assert_eq!(of(&inet), "3, {AF_INET, 127.0.0.1:8080}, 16");
        assert_eq!(
            of(b"\x01\0/run/a;\n\0zzz"),
            "3, {AF_UNIX, \"/run/a;\\n\"}, 16"
        );
        assert_eq!(of(b"\x01\0\0hidden"), "3, {AF_UNIX, @\"hidden\"}, 16");
        assert_eq!(of(&inet[..5]), "3, 0x1, 16");
    }

    #[test]
    fn a_call_of_the_gpu_driver_is_named() {
        assert_eq!(
            said(
                "ioctl",
                [7, 0xc020_462a, 0x7ffe, 0, 0, 0],
                &[],
                &[(0, 7, "/dev/nvidiactl")]
            ),
            "7</dev/nvidiactl>, NV_ESC_RM_CONTROL, 0x7ffe"
        );
    }

    #[test]
    fn what_is_not_known_is_hexadecimal() {
        assert_eq!(
            said("no_such", [1, 0, 255, 0, 0, 0], &[], &[]),
            "0x1, 0, 0xff, 0, 0, 0"
        );
        assert_eq!(
            said(
                "nanosleep",
                [0x10, 0, 0, 0, 0, 0],
                &[block(BYTES, 0, 0, &bytes_of(&[0, 20_000_000]))],
                &[]
            ),
            "{20.0 ms}, 0"
        );
        assert_eq!(
            said("mmap", [0, 4096, 3, 0x22, u64::MAX, 0], &[], &[]),
            "0, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0"
        );
    }

    proptest! {
        /// Check that no call, whatever its arguments and whatever they point to, panics or
        /// controls a terminal.
        #[test]
        fn any_arguments_are_told(
            number in 0u16..470,
            values in any::<[u64; 6]>(),
            small in any::<bool>(),
            kind in 1u8..4,
            arg in 0u8..6,
            bytes in proptest::collection::vec(any::<u8>(), 0..140),
            path in ".{0,20}",
        ) {
            let table = Table::of_machine("x86_64");
            let name = table.name(number).unwrap_or("none");
            let values = if small { values.map(|v| v % 300) } else { values };
            let blocks = [block(kind, arg, 3, &bytes)].concat();
            let args = Args {
                raw: Some(Box::new(RawArgs::new(values, blocks))),
                files: vec![(usize::from(arg), flags::low(values[0]).cast_signed(), path.as_str().into())],
            };
            for text in texts(name, Number::Native(number), &args) {
                prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}
