//! Which thread of a process may be interrupted without anybody noticing.
//!
//! A thread that sits in one of these calls holds no lock of the allocator or of the loader, and
//! the call can be made again as it was. The kernel shows calls and arguments in
//! `/proc/PID/task/TID/syscall` without disturbing anyone.
#![forbid(unsafe_code)]

use std::fs;

use crate::event::Tid;

/// System call numbers of x86-64.
mod nr {
    pub const READ: u64 = 0;
    pub const POLL: u64 = 7;
    pub const SELECT: u64 = 23;
    pub const NANOSLEEP: u64 = 35;
    pub const FUTEX: u64 = 202;
    pub const RESTART_SYSCALL: u64 = 219;
    pub const CLOCK_NANOSLEEP: u64 = 230;
    pub const PPOLL: u64 = 271;
}

/// A system call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub number: u64,
    pub args: [u64; 6],
    /// Stack pointer.
    pub sp: u64,
}

/// A thread that waits safely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub tid: Tid,
    pub sp: u64,
}

/// How well a call suits, the lower the better; `None`: not at all.
///
/// Left out are waits for a lock, which the allocator and the loader have too; calls that change
/// the signal mask while they wait; waits for children, because a traced thread is sent even the
/// SIGCHLD that it ignores; and those that end at every interruption, whoever causes it,
/// as epoll_wait does: were gdiag killed before it could make good for that, the program would see it.
pub(super) fn suits(number: u64, args: &[u64; 6]) -> Option<u8> {
    match number {
        nr::POLL => Some(0),
        nr::PPOLL if args[3] == 0 => Some(0),
        // For 2: a contended lock, of the C library or of Rust's, also one that is waited for with a
        // timeout.
        nr::FUTEX if args[2] as u32 == 2 => None,
        nr::FUTEX => match args[1] & 0x7f {
            // FUTEX_WAIT_BITSET, as condition variables, semaphores and joins wait.
            9 => Some(1),
            // FUTEX_WAIT
            0 => Some(4),
            _ => None,
        },
        nr::CLOCK_NANOSLEEP => Some(1),
        nr::NANOSLEEP => Some(2),
        nr::READ | nr::SELECT => Some(3),
        // Something was interrupted before: only calls whose state the kernel keeps get here.
        nr::RESTART_SYSCALL => Some(5),
        _ => None,
    }
}

/// What the kernel gives back for a call that was interrupted, before anyone sees it.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// What a thread has to do to go on as if it had not been interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoOn {
    /// The call has ended: with this result.
    Return(u64),
    /// Make this call.
    Call(u64),
}

/// By the number of the call and its result as a stopped thread shows them.
pub(super) fn go_on(number: u64, result: i64) -> GoOn {
    match result {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => GoOn::Call(number),
        ERESTART_RESTARTBLOCK => GoOn::Call(nr::RESTART_SYSCALL),
        _ => GoOn::Return(result.cast_unsigned()),
    }
}

/// `number arg*6 sp pc`, all but the number in hexadecimal; `running` or `-1 sp pc` for others.
fn parse(text: &str) -> Option<Call> {
    let mut fields = text.split_ascii_whitespace();
    let number = fields.next()?.parse().ok()?;
    let mut hex = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = hex()?;
    }
    Some(Call {
        number,
        args,
        sp: hex()?,
    })
}

/// The state letter of a thread, and whether a signal waits that its handler or its end would take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub state: u8,
    pub signalled: bool,
    pub tracer: u32,
    pub shadow_stack: bool,
    /// System calls are filtered.
    pub seccomp: bool,
}

pub(super) fn status(proc_pid: u32, tid: Tid) -> Option<Status> {
    let text = fs::read(format!("/proc/{proc_pid}/task/{tid}/status")).ok()?;
    Some(parse_status(&String::from_utf8_lossy(&text)))
}

fn parse_status(text: &str) -> Status {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let mask = |name| field(name).and_then(|text| u64::from_str_radix(text, 16).ok());
    let pending = mask("SigPnd").unwrap_or(0) | mask("ShdPnd").unwrap_or(0);
    Status {
        state: field("State").map_or(b'?', |text| text.bytes().next().unwrap_or(b'?')),
        signalled: pending & !mask("SigBlk").unwrap_or(0) != 0,
        tracer: field("TracerPid").map_or(0, |text| text.parse().unwrap_or(0)),
        seccomp: field("Seccomp").is_some_and(|mode| mode != "0"),
        shadow_stack: field("x86_Thread_features").is_some_and(|text| text.contains("shstk")),
    }
}

/// The threads of a process that wait safely, the best first; `most` of them at most.
pub(super) fn find(proc_pid: u32, most: usize) -> Vec<Waiter> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{proc_pid}/task")) else {
        return Vec::new();
    };
    let mut found: Vec<(u8, Waiter)> = tasks
        .filter_map(|task| {
            let tid = task.ok()?.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(format!("/proc/{proc_pid}/task/{tid}/syscall")).ok()?;
            let call = parse(&text)?;
            let rank = suits(call.number, &call.args)?;
            // The kernel's own threads in a process, for io_uring: they have no stack, nor can be traced.
            let sp = Some(call.sp).filter(|&sp| sp != 0)?;
            let tid = Tid(tid);
            Some((rank, Waiter { tid, sp }))
        })
        .collect();
    // The first thread last: it answers for the process when signals come.
    found.sort_by_key(|(rank, waiter)| (waiter.tid.0 == proc_pid, *rank, waiter.tid));
    found.into_iter().map(|(_, w)| w).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_the_kernel_shows_them() {
        let text = "7 0x7ffd0 0x2 0xffffffff 0x0 0x8 0x1 0x7ffc58 0x7f12\n";
        let call = parse(text).unwrap();
        assert_eq!((call.number, call.args[1], call.sp), (7, 2, 0x7f_fc58));
        for other in ["running\n", "-1 0x7ffc58 0x7f12\n", "", "7 0x1\n", "x y"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn locks_and_waits_with_a_mask_are_left_alone() {
        let futex = |op, value| suits(nr::FUTEX, &[0, op, value, 0, 0, 0]);
        assert!(futex(0x189, 0).is_some(), "a condition variable");
        assert!(futex(0x80, 1).is_some());
        assert_eq!(futex(0x80, 2), None, "a contended lock");
        assert_eq!(futex(0x189, 2), None, "pthread_mutex_timedlock");
        assert_eq!(futex(0x86, 0), None, "FUTEX_LOCK_PI");
        assert!(suits(nr::PPOLL, &[0; 6]).is_some());
        assert_eq!(suits(nr::PPOLL, &[0, 0, 0, 1, 0, 0]), None);
        // sigsuspend, rt_sigtimedwait, epoll_wait, wait4, write
        for number in [130, 128, 232, 61, 1] {
            assert_eq!(suits(number, &[0; 6]), None);
        }
    }

    #[test]
    fn an_interrupted_call_is_made_again_and_a_finished_one_is_not() {
        assert_eq!(go_on(nr::POLL, -516), GoOn::Call(219));
        assert_eq!(go_on(nr::FUTEX, -512), GoOn::Call(nr::FUTEX));
        assert_eq!(go_on(nr::SELECT, -514), GoOn::Call(nr::SELECT));
        assert_eq!(go_on(nr::POLL, 1), GoOn::Return(1));
        assert_eq!(go_on(nr::FUTEX, -110), GoOn::Return(-110i64 as u64));
        assert_eq!(go_on(nr::READ, -4), GoOn::Return(-4i64 as u64));
    }

    #[test]
    fn a_signal_that_is_blocked_waits_for_nobody() {
        let text = "Name:\tx\nState:\tS (sleeping)\nTracerPid:\t12\nSigPnd:\t0000000000000200\n\
            ShdPnd:\t0000000000000000\nSigBlk:\t0000000000000200\n";
        let status = parse_status(text);
        assert_eq!((status.state, status.tracer), (b'S', 12));
        assert!(!status.signalled);
        assert!(parse_status(&text.replace("SigBlk:\t0000000000000200", "SigBlk:\t0")).signalled);
    }
}
