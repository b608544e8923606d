//! Whether a thread's system call filters would take its life for what is to be done in it.
//!
//! Most containers have a filter, and most filters answer what they forbid with an error, which is
//! harmless. Others kill. So each filter is run here, on the calls that will be made, before any is.

use std::mem::offset_of;

use nix::errno::Errno;

use crate::event::Tid;

/// Not in the libc crate.
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;

/// BPF_MAXINSNS.
const MOST_INSTRUCTIONS: usize = 4096;

/// A thread can have many, one on the other.
const MOST_FILTERS: usize = 64;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// What the code, the loader, the C library and the shim call, with those arguments that filters
/// look at: `clone` for a thread, `prctl` for a name.
const CALLS: &[(&str, libc::c_long, [u64; 6])] = &[
    ("mmap", libc::SYS_mmap, [0, 4096, 5, 2, 3, 0]),
    ("munmap", libc::SYS_munmap, [0; 6]),
    ("mprotect", libc::SYS_mprotect, [0, 4096, 1, 0, 0, 0]),
    ("madvise", libc::SYS_madvise, [0; 6]),
    ("brk", libc::SYS_brk, [0; 6]),
    (
        "rt_sigprocmask",
        libc::SYS_rt_sigprocmask,
        [2, 0, 0, 8, 0, 0],
    ),
    ("clock_gettime", libc::SYS_clock_gettime, [0; 6]),
    ("nanosleep", libc::SYS_nanosleep, [0; 6]),
    ("restart_syscall", libc::SYS_restart_syscall, [0; 6]),
    ("clone", libc::SYS_clone, [0x3d_0f00, 0, 0, 0, 0, 0]),
    ("clone3", libc::SYS_clone3, [0, 88, 0, 0, 0, 0]),
    ("set_robust_list", libc::SYS_set_robust_list, [0; 6]),
    ("rseq", libc::SYS_rseq, [0; 6]),
    ("sigaltstack", libc::SYS_sigaltstack, [0; 6]),
    ("sched_getaffinity", libc::SYS_sched_getaffinity, [0; 6]),
    ("prctl", libc::SYS_prctl, [15, 0, 0, 0, 0, 0]),
    ("memfd_create", libc::SYS_memfd_create, [0, 1, 0, 0, 0, 0]),
    ("ftruncate", libc::SYS_ftruncate, [3, 4096, 0, 0, 0, 0]),
    ("fcntl", libc::SYS_fcntl, [3, 1033, 7, 0, 0, 0]),
    (
        "openat",
        libc::SYS_openat,
        [u64::MAX - 99, 0, 0x8_0000, 0, 0, 0],
    ),
    ("open", libc::SYS_open, [0; 6]),
    ("read", libc::SYS_read, [3, 0, 832, 0, 0, 0]),
    ("pread64", libc::SYS_pread64, [3, 0, 832, 0, 0, 0]),
    ("lseek", libc::SYS_lseek, [3, 0, 0, 0, 0, 0]),
    ("fstat", libc::SYS_fstat, [3, 0, 0, 0, 0, 0]),
    ("newfstatat", libc::SYS_newfstatat, [3, 0, 0, 0x1000, 0, 0]),
    ("statx", libc::SYS_statx, [3, 0, 0x1000, 0, 0, 0]),
    ("close", libc::SYS_close, [3, 0, 0, 0, 0, 0]),
    ("readlink", libc::SYS_readlink, [0; 6]),
    ("getdents64", libc::SYS_getdents64, [3, 0, 0, 0, 0, 0]),
    ("getrlimit", libc::SYS_getrlimit, [1, 0, 0, 0, 0, 0]),
    ("prlimit64", libc::SYS_prlimit64, [0; 6]),
    ("getpid", libc::SYS_getpid, [0; 6]),
    ("gettid", libc::SYS_gettid, [0; 6]),
    ("futex", libc::SYS_futex, [0, 0x80, 0, 0, 0, 0]),
    ("flock", libc::SYS_flock, [3, 5, 0, 0, 0, 0]),
    ("pause", libc::SYS_pause, [0; 6]),
    ("poll", libc::SYS_poll, [0; 6]),
    ("write", libc::SYS_write, [2, 0, 0, 0, 0, 0]),
    ("exit", libc::SYS_exit, [0; 6]),
];

/// What a filter does with a call; of several, the least counts.
mod action {
    pub const KIND: u32 = 0xffff_0000;
    pub const ERRNO: u32 = 0x0005_0000;
    /// Without a tracer that asks for it, an error.
    pub const TRACE: u32 = 0x7ff0_0000;
    pub const LOG: u32 = 0x7ffc_0000;
    pub const ALLOW: u32 = 0x7fff_0000;
}

/// The name of a call that a filter of a stopped thread would punish. An error when the filters
/// cannot be read.
pub(super) fn forbids(tid: Tid) -> Result<Option<&'static str>, Errno> {
    for index in 0..MOST_FILTERS {
        let Some(filter) = filter(tid, index)? else {
            return Ok(None);
        };
        if let Some(name) = punishes(&filter) {
            return Ok(Some(name));
        }
    }
    Err(Errno::E2BIG)
}

/// A filter of a stopped thread; `None` beyond the last.
fn filter(tid: Tid, index: usize) -> Result<Option<Vec<libc::sock_filter>>, Errno> {
    let nothing = libc::sock_filter {
        code: 0,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let mut filter = vec![nothing; MOST_INSTRUCTIONS];
    // SAFETY: writes at most BPF_MAXINSNS instructions, for which there is room.
    let len = unsafe {
        libc::ptrace(
            PTRACE_SECCOMP_GET_FILTER,
            tid.0.cast_signed(),
            index,
            filter.as_mut_ptr(),
        )
    };
    match Errno::result(len) {
        Ok(len) => {
            filter.truncate(usize::try_from(len).unwrap_or(0));
            Ok(Some(filter))
        }
        Err(Errno::ENOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

fn punishes(filter: &[libc::sock_filter]) -> Option<&'static str> {
    CALLS.iter().find_map(|(name, number, args)| {
        // Of one that makes no sense nobody knows.
        let kind = run(filter, &data(*number, args)).map(|action| action & action::KIND);
        let harmless = matches!(
            kind,
            Some(action::ERRNO | action::TRACE | action::LOG | action::ALLOW)
        );
        (!harmless).then_some(*name)
    })
}

/// `struct seccomp_data`, as 32-bit words.
fn data(number: libc::c_long, args: &[u64; 6]) -> [u32; 16] {
    let mut data = [0; 16];
    data[0] = number as u32;
    data[offset_of!(libc::seccomp_data, arch) / 4] = AUDIT_ARCH_X86_64;
    for (arg, words) in args.iter().zip(data[4..].chunks_exact_mut(2)) {
        words[0] = *arg as u32;
        words[1] = (*arg >> 32) as u32;
    }
    data
}

/// Runs a filter, which the kernel has checked; `None` for one that it would not have let pass.
fn run(filter: &[libc::sock_filter], data: &[u32; 16]) -> Option<u32> {
    use libc::{
        BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE,
        BPF_JGT, BPF_JMP, BPF_JSET, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MISC, BPF_MUL,
        BPF_NEG, BPF_OR, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_X, BPF_XOR,
    };
    let (mut a, mut x) = (0u32, 0u32);
    let mut memory = [0u32; 16];
    let mut at = 0usize;
    loop {
        let step = filter.get(at)?;
        at += 1;
        let (code, k) = (u32::from(step.code), step.k);
        let (class, mode, op) = (code & 7, code & 0xe0, code & 0xf0);
        let operand = if code & BPF_X == 0 { k } else { x };
        let slot = k as usize;
        match class {
            BPF_LD => {
                a = match mode {
                    BPF_ABS => *data.get(slot / 4)?,
                    BPF_IMM => k,
                    BPF_MEM => *memory.get(slot)?,
                    BPF_LEN => 64,
                    _ => return None,
                }
            }
            BPF_LDX => {
                x = match mode {
                    BPF_IMM => k,
                    BPF_MEM => *memory.get(slot)?,
                    BPF_LEN => 64,
                    _ => return None,
                }
            }
            BPF_ST => *memory.get_mut(slot)? = a,
            BPF_STX => *memory.get_mut(slot)? = x,
            BPF_ALU => {
                a = match op {
                    BPF_ADD => a.wrapping_add(operand),
                    BPF_SUB => a.wrapping_sub(operand),
                    BPF_MUL => a.wrapping_mul(operand),
                    BPF_DIV => a.checked_div(operand)?,
                    BPF_AND => a & operand,
                    BPF_OR => a | operand,
                    BPF_XOR => a ^ operand,
                    BPF_LSH => a.checked_shl(operand).unwrap_or(0),
                    BPF_RSH => a.checked_shr(operand).unwrap_or(0),
                    BPF_NEG => a.wrapping_neg(),
                    _ => return None,
                }
            }
            BPF_JMP => {
                let holds = match op {
                    BPF_JA => {
                        at = at.checked_add(slot)?;
                        continue;
                    }
                    BPF_JEQ => a == operand,
                    BPF_JGT => a > operand,
                    BPF_JGE => a >= operand,
                    BPF_JSET => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { step.jt } else { step.jf });
            }
            BPF_RET => return Some(if code & 0x18 == BPF_A { a } else { k }),
            BPF_MISC if code & 0xf8 == BPF_TAX => x = a,
            BPF_MISC => a = x,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        }
    }

    /// Allows all but one call, which gets `action`.
    fn but(number: libc::c_long, action: u32) -> Vec<libc::sock_filter> {
        vec![
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ, 0, 1, number as u32),
            step(libc::BPF_RET, 0, 0, action),
            step(libc::BPF_RET, 0, 0, action::ALLOW),
        ]
    }

    #[test]
    fn a_filter_that_kills_is_told_from_one_that_says_no() {
        let memfd = libc::SYS_memfd_create;
        assert_eq!(punishes(&but(memfd, 0x8000_0000)), Some("memfd_create"));
        assert_eq!(punishes(&but(memfd, 0)), Some("memfd_create"));
        assert_eq!(punishes(&but(memfd, 0x0003_0000)), Some("memfd_create"));
        assert_eq!(punishes(&but(memfd, action::ERRNO | 1)), None);
        assert_eq!(punishes(&but(libc::SYS_ptrace, 0)), None);
    }

    #[test]
    fn a_filter_may_look_at_arguments() {
        // clone: forbidden unless for a thread (CLONE_THREAD), with the low word of the first argument.
        let filter = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ, 0, 3, libc::SYS_clone as u32),
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 16),
            step(libc::BPF_JMP | libc::BPF_JSET, 1, 0, 0x1_0000),
            step(libc::BPF_RET, 0, 0, 0),
            step(libc::BPF_RET, 0, 0, action::ALLOW),
        ];
        assert_eq!(punishes(&filter), None);
        let fork = data(libc::SYS_clone, &[17, 0, 0, 0, 0, 0]);
        assert_eq!(run(&filter, &fork), Some(0));
    }

    #[test]
    fn what_the_kernel_would_refuse_says_nothing_and_is_not_trusted() {
        let data = data(0, &[0; 6]);
        assert_eq!(run(&[], &data), None);
        assert!(punishes(&[]).is_some());
        assert_eq!(run(&[step(libc::BPF_JMP, 0, 0, u32::MAX)], &data), None);
        assert_eq!(run(&[step(libc::BPF_LD | 0x40, 0, 0, 0)], &data), None);
    }
}
