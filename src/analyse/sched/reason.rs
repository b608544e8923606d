//! Why a thread sleeps, by what the kernel says at the switch alone: the state, the flags, the system call.
//!
//! The stacks and objects of long waits would tell more (see `analyse::waits`), but short ones have
//! none, and what is added up in the kernel has none either: the same wait must count as the same here.
#![forbid(unsafe_code)]

use super::OffReason;
use crate::event::SwitchFlags;
use crate::model::syscall::Group;

const UNINTERRUPTIBLE: u16 = 0x2;
/// Stopped, traced, parked, frozen (6.1 and later).
const STOPS: u16 = 0x4 | 0x8 | 0x40 | 0x8000;

/// `state` is the raw `task->__state`; `None` when the sleep began before anybody looked. `group` is that of
/// the system call; `None` outside of one, as always for a thread of the kernel.
pub fn of_sleep(
    state: Option<u16>,
    flags: SwitchFlags,
    group: Option<Group>,
    kthread: bool,
) -> OffReason {
    let state = state.unwrap_or(0);
    let io = flags.has(SwitchFlags::IOWAIT);
    let uninterruptible = state & UNINTERRUPTIBLE != 0;
    if state & STOPS != 0 {
        return OffReason::Stopped;
    }
    if flags.has(SwitchFlags::MEMSTALL) {
        return OffReason::Memory;
    }
    let Some(group) = group else {
        return match (io, kthread) {
            (true, true) => OffReason::Io,
            (true, false) => OffReason::Fault,
            (false, _) => OffReason::Other,
        };
    };
    match group {
        Group::Futex => OffReason::Futex,
        Group::Poll | Group::Epoll => OffReason::Poll,
        Group::Sleep => OffReason::Sleep,
        Group::WaitChild | Group::Spawn => OffReason::Child,
        Group::Receive | Group::Send | Group::Connect | Group::Accept => OffReason::Network,
        Group::Flush => OffReason::Io,
        Group::Read | Group::Write | Group::FileName if io || uninterruptible => OffReason::Io,
        Group::Read | Group::Write | Group::FileName => OffReason::File,
        Group::Memory if io => OffReason::Fault,
        Group::Memory => OffReason::Memory,
        Group::Ioctl => OffReason::Ioctl,
        Group::Yield | Group::Other if io => OffReason::Io,
        Group::Yield | Group::Other => OffReason::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_has_the_reason_that_its_switch_tells() {
        let none = SwitchFlags(0);
        let io = SwitchFlags(SwitchFlags::IOWAIT);
        let stall = SwitchFlags(SwitchFlags::MEMSTALL | SwitchFlags::IOWAIT);
        for (state, flags, group, reason) in [
            (0x1, none, Some(Group::Futex), OffReason::Futex),
            (0x2001, none, Some(Group::Sleep), OffReason::Sleep),
            (0x1, none, Some(Group::Epoll), OffReason::Poll),
            (0x102, io, Some(Group::Read), OffReason::Io),
            (0x1, none, Some(Group::Read), OffReason::File),
            (0x102, io, None, OffReason::Fault),
            (0x2, none, None, OffReason::Other),
            (0x104, none, None, OffReason::Stopped),
            (0x104, none, Some(Group::Futex), OffReason::Stopped),
            (0x2, stall, Some(Group::Read), OffReason::Memory),
            (0x2, none, Some(Group::Memory), OffReason::Memory),
            (0x1, none, Some(Group::Accept), OffReason::Network),
            (0x2, none, Some(Group::Spawn), OffReason::Child),
        ] {
            let got = of_sleep(Some(state), flags, group, false);
            assert_eq!(got, reason, "{state:#x} {flags:?} {group:?}");
        }
        assert_eq!(of_sleep(Some(0x2), io, None, true), OffReason::Io);
        assert_eq!(of_sleep(None, none, None, false), OffReason::Other);
    }
}
