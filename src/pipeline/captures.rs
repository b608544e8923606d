//! What the kernel side has to read of the arguments of each system call, so that they can be told in words:
//! at the entry, since what is in memory then may be other things at the exit.
#![forbid(unsafe_code)]

use crate::collect::syscalls::{Capture, Captures};
use crate::model::signature::{self, Arg};
use crate::model::syscall::Table;

/// Of what a call writes.
const DATA: u16 = 32;

/// What has to be read at the entry of each call, by number.
pub fn captures(table: Table, numbers: usize) -> Vec<Captures> {
    let mut all = vec![Captures::default(); numbers];
    for (number, name) in table.calls() {
        let (Some(captures), Some(args)) = (all.get_mut(usize::from(number)), signature::of(name))
        else {
            continue;
        };
        let mut wanted: Vec<Capture> = (0u8..)
            .zip(args)
            .filter_map(|(arg, &kind)| capture(kind, arg))
            .collect();
        if args.is_empty() {
            wanted.push(Capture::NoArguments);
        }
        // When there is no room for all, paths say the most.
        wanted.sort_by_key(|capture| !matches!(capture, Capture::Text { .. }));
        let [places @ .., result] = captures;
        for (place, capture) in places.iter_mut().zip(wanted) {
            *place = Some(capture);
        }
        *result = opens(name).then_some(Capture::Result);
    }
    all
}

/// Whether a call opens the file that its path names.
fn opens(call: &str) -> bool {
    matches!(call, "open" | "creat" | "openat" | "openat2")
}

fn capture(kind: Arg, arg: u8) -> Option<Capture> {
    Some(match kind {
        Arg::Fd | Arg::DirFd => Capture::File { arg },
        Arg::Path | Arg::Text => Capture::Text { arg },
        Arg::Data(times) => Capture::Array {
            arg,
            times,
            size: 1,
            most: DATA,
        },
        Arg::SockAddr(times) => Capture::Array {
            arg,
            times,
            size: 1,
            most: 128,
        },
        Arg::Polled(times) => Capture::Polled { arg, times },
        Arg::Time | Arg::FutexTimeout => Capture::Bytes { arg, size: 16 },
        Arg::EpollEvent => Capture::Bytes { arg, size: 12 },
        Arg::FdSet => Capture::Bytes { arg, size: 128 },
        Arg::CloneArgs => Capture::Bytes { arg, size: 8 },
        Arg::OpenHow => Capture::Bytes { arg, size: 24 },
        Arg::Int
        | Arg::Count
        | Arg::Hex
        | Arg::Octal
        | Arg::NewMode
        | Arg::OpenFlags
        | Arg::AtFlags
        | Arg::AccessMode
        | Arg::Prot
        | Arg::MapFlags
        | Arg::Advice
        | Arg::CloneFlags
        | Arg::FutexOp
        | Arg::FutexValue
        | Arg::FutexSecond
        | Arg::FutexThird
        | Arg::Millis
        | Arg::Clock
        | Arg::TimerFlags
        | Arg::EpollOp
        | Arg::Domain
        | Arg::SocketType
        | Arg::SocketLevel
        | Arg::SocketOption
        | Arg::MessageFlags
        | Arg::ShutdownHow
        | Arg::IoctlRequest
        | Arg::FcntlCommand
        | Arg::FcntlArg
        | Arg::Whence
        | Arg::Signal
        | Arg::SignalHow
        | Arg::WaitOptions
        | Arg::Resource
        | Arg::PrctlOption
        | Arg::ArchPrctlCode
        | Arg::NewFdFlags
        | Arg::RandomFlags
        | Arg::LockOp
        | Arg::Rusage => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_that_is_known_has_something_read_of_what_it_points_to() {
        let table = Table::of_machine("x86_64");
        let all = captures(table, 512);
        assert_eq!(all[0][0], Some(Capture::File { arg: 0 }));
        assert_eq!(all[257][0], Some(Capture::Text { arg: 1 }));
        assert_eq!(all[257][4], Some(Capture::Result));
        assert_eq!(all[39][0], Some(Capture::NoArguments));
        assert_eq!(all[511], Captures::default());
    }
}
