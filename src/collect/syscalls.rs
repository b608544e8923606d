//! Loads the BPF programs at the entry and the exit of system calls, and reads what they add up.
//!
//! An object of its own beside [`Bpf`], whose maps and ring buffers it shares: its programs make every
//! call of the machine a little slower, so they are there only when asked for.

use std::fmt;
use std::io::Read as _;
use std::mem::{offset_of, MaybeUninit};
use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Btf, Iter, Link, MapCore as _, MapFlags, OpenObject, ProgramMut};
use memmap2::{MmapOptions, MmapRaw};

use crate::collect::bpf::{self, Bpf};
use crate::collect::wire;
use crate::error::Error;
use crate::units::Nanos;

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
#[allow(
    unsafe_op_in_unsafe_fn,
    missing_debug_implementations,
    unused_imports,
    dead_code
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/syscalls.skel.rs"));
}
pub(crate) use skel::types;
use skel::{SyscallsSkel, SyscallsSkelBuilder};

/// Numbers that are told apart: `GDIAG_SYSCALLS` of `bpf/events.h`. The last one stands for all others.
pub const NUMBERS: usize = size_of_wanted() * 8;

const fn size_of_wanted() -> usize {
    const fn of<T, const N: usize>(_: fn(&types::calls_config) -> &[T; N]) -> usize {
        N * size_of::<T>()
    }
    of(|config| &config.wanted)
}

/// The first sums are for threads that there is no room for, one for each number; sum 0 is none.
const SHARED: u32 = NUMBERS as u32;

/// Sums of 2 KiB that there is room for: one for each thread and each of its calls.
const SUMS: u32 = 8 << 10;
const SUMS_OF_ALL: u32 = 24 << 10;

/// Which calls are looked at, and what is told of them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A record for each call.
    pub stream: bool,
    /// With these arguments, by number of the call; `None`: no arguments.
    pub captures: Option<Vec<Captures>>,
    /// Sums for each thread and call.
    pub summary: bool,
    /// And by error.
    pub failures: bool,
    /// Whether calls with this number are wanted, below [`NUMBERS`]; what is missing is not.
    pub wanted: Vec<bool>,
    /// Calls that took less are left out.
    pub least: Nanos,
    pub only_failed: bool,
    /// Threads of the target, by the tids that gdiag itself sees; empty: all of them.
    pub tids: Vec<u32>,
    /// Nothing counts before a program is executed: the target is a command that gdiag launches.
    pub from_exec: bool,
}

impl Plan {
    /// All calls, each with a record of 40 bytes.
    pub fn bare() -> Plan {
        Plan {
            stream: true,
            captures: None,
            summary: false,
            failures: false,
            wanted: vec![true; NUMBERS],
            least: Nanos::ZERO,
            only_failed: false,
            tids: Vec::new(),
            from_exec: false,
        }
    }

    /// All calls, added up.
    pub fn sums() -> Plan {
        Plan {
            stream: false,
            summary: true,
            ..Plan::bare()
        }
    }
}

/// What is read of an argument at the entry of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// What the number of an open file stands for.
    File { arg: u8 },
    /// A string.
    Text { arg: u8 },
    /// So many bytes.
    Bytes { arg: u8, size: u16 },
    /// Elements of so many bytes, as many as argument `times` says, `most` bytes at most.
    Array {
        arg: u8,
        times: u8,
        size: u16,
        most: u16,
    },
    /// An array of pollfds, and what their numbers stand for.
    Polled { arg: u8, times: u8 },
    /// The call has no arguments at all: its record is short.
    NoArguments,
    /// What the number that it returns stands for then.
    Result,
}

/// Of one call. [`Capture::Result`] is the last one.
pub type Captures = [Option<Capture>; 5];

/// Where a block has the number of an argument, that of the result.
pub const RESULT: usize = 6;

/// As the BPF programs have it: `MOST_BYTES`.
const MOST_BYTES: u16 = 400;

impl Capture {
    fn wire(self) -> types::gdiag_capture {
        use types::gdiag_capture_kind as capture;
        let (kind, arg, times, size, most) = match self {
            Capture::File { arg } => (capture::GDIAG_CAPTURE_FILE, arg, 0, 0, 0),
            Capture::Text { arg } => (capture::GDIAG_CAPTURE_TEXT, arg, 0, MOST_BYTES, 0),
            Capture::Bytes { arg, size } => (capture::GDIAG_CAPTURE_BYTES, arg, 0, size, size),
            Capture::Array {
                arg,
                times,
                size,
                most,
            } => (capture::GDIAG_CAPTURE_BYTES, arg, times + 1, size, most),
            Capture::Polled { arg, times } => (capture::GDIAG_CAPTURE_POLL, arg, times + 1, 8, 128),
            Capture::NoArguments => (capture::GDIAG_CAPTURE_NO_ARGS, 0, 0, 0, 0),
            Capture::Result => (capture::GDIAG_CAPTURE_RESULT, 0, 0, 0, 0),
        };
        types::gdiag_capture {
            // There are few kinds.
            kind: kind.0 as u8,
            arg,
            times,
            size,
            most,
            ..types::gdiag_capture::default()
        }
    }
}

/// The calls with one number of one thread, or of all that there was no room for.
pub(crate) type Sum = types::gdiag_sum;

/// How often calls failed with one error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the sum.
    pub sum: u32,
    pub error: u16,
    pub count: u64,
}

/// What could not be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Sums that several threads share.
    pub shared: u64,
    /// Calls of threads that there was no memory for.
    pub unseen: u64,
    /// Failures that are not in the sums by error.
    pub failures: u64,
}

impl Shortage {
    /// What has come since `before`, an earlier state of the same.
    pub fn since(self, before: Shortage) -> Shortage {
        Shortage {
            shared: self.shared.saturating_sub(before.shared),
            unseen: self.unseen.saturating_sub(before.unseen),
            failures: self.failures.saturating_sub(before.failures),
        }
    }
}

/// The attached programs. Dropping it detaches them.
pub struct Syscalls {
    skel: SyscallsSkel<'static>,
    _links: Vec<Link>,
    /// The map `sums`.
    memory: MmapRaw,
    most_sums: u32,
}

impl fmt::Debug for Syscalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Syscalls").finish_non_exhaustive()
    }
}

impl Syscalls {
    /// Loads and attaches. The records come out of the ring buffers of `bpf`, which knows the targets.
    pub fn start(plan: &Plan, bpf: &Bpf) -> Result<Syscalls> {
        let vmlinux = Btf::from_vmlinux().map_err(|_| Error::NoBtf)?;
        for name in ["sys_enter", "sys_exit"] {
            if bpf::tracepoint_args(&vmlinux, name).is_none() {
                return Err(bpf::without_tracepoint(name).into());
            }
        }
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SyscallsSkelBuilder::default()
            .open(storage)
            .map_err(bpf::load_error)?;
        let shared = bpf.shared();
        open.maps.tasks.reuse_fd(shared.tasks)?;
        open.maps.cpus.reuse_fd(shared.cpus)?;
        open.maps.losses.reuse_fd(shared.losses)?;
        open.maps.driver_tasks.reuse_fd(shared.driver_tasks)?;
        open.maps.rings.reuse_fd(shared.rings)?;
        let most_sums = match (plan.summary, shared.config.all) {
            (false, _) => 2 * SHARED,
            (true, 0) => SUMS,
            (true, _) => SUMS_OF_ALL,
        };
        open.maps.sums.set_max_entries(most_sums)?;
        let rodata = open.maps.rodata_data.as_deref_mut();
        let rodata = rodata.context("the BPF object has no rodata")?;
        rodata.cfg.cpus_per_ring = shared.config.cpus_per_ring;
        rodata.cfg.wakeup_bytes = shared.config.wakeup_bytes;
        rodata.cfg.all = shared.config.all;
        let args = plan.stream && plan.captures.is_some();
        let calls = &mut rodata.calls;
        calls.least_ns = plan.least.0;
        calls.wanted = bits(&plan.wanted);
        calls.own_tgid = bpf.own_tgid();
        calls.sums = most_sums;
        calls.stream = u8::from(plan.stream);
        calls.args = u8::from(args);
        calls.summary = u8::from(plan.summary);
        calls.failures = u8::from(plan.failures);
        calls.only_failed = u8::from(plan.only_failed);
        calls.only_marked = u8::from(!plan.tids.is_empty());
        calls.from_exec = u8::from(plan.from_exec);
        open.progs.caller_exec.set_autoload(args);
        let skel = open.load().map_err(bpf::load_error)?;
        for (number, captures) in (0u32..).zip(plan.captures.iter().flatten()) {
            set_captures(&skel, number, captures)?;
        }
        for tid in &plan.tids {
            skel.maps
                .wanted_tids
                .update(&tid.to_ne_bytes(), &[1], MapFlags::ANY)
                .context("cannot tell the BPF programs their threads")?;
        }
        let memory = MmapOptions::new()
            .len(most_sums as usize * size_of::<Sum>())
            .map_raw_read_only(skel.maps.sums.as_fd().as_raw_fd())
            .context("cannot map the sums")?;
        let mut links = Vec::new();
        if args {
            links.push(skel.progs.caller_exec.attach_trace()?);
        }
        links.extend([
            skel.progs.caller_exit.attach_trace()?,
            skel.progs.sys_exit.attach_trace()?,
            skel.progs.sys_enter.attach_trace()?,
        ]);
        walk_tasks(&skel.progs.mark_callers)?;
        Ok(Syscalls {
            skel,
            _links: links,
            memory,
            most_sums,
        })
    }

    /// Has a record sent of each call that goes on now.
    pub fn send_open(&self) -> Result<()> {
        walk_tasks(&self.skel.progs.open_calls)
    }

    /// Hands out what was added up, each sum with its index.
    pub fn sums(&self, sink: &mut dyn FnMut(u32, &Sum)) {
        self.changed_sums(&mut Vec::new(), sink);
    }

    /// Likewise, but only what was added to since `counts` were left by the last look. Most threads of a machine
    /// sleep.
    pub fn changed_sums(&self, counts: &mut Vec<u64>, sink: &mut dyn FnMut(u32, &Sum)) {
        let used = self.used_sums();
        if counts.len() < used as usize {
            counts.resize(used as usize, 0);
        }
        for (index, seen) in (0..used).zip(counts).skip(1) {
            let sum = self.memory.as_ptr().cast::<Sum>();
            // SAFETY: the memory is page-aligned, has room for that many sums, and stays mapped. BPF programs
            // write it meanwhile, so each look is a new one; any value is valid.
            let count = unsafe {
                let sum = sum.add(index as usize).cast::<u8>();
                sum.add(offset_of!(Sum, count))
                    .cast::<u64>()
                    .read_volatile()
            };
            if count != *seen {
                // SAFETY: as above.
                let sum = unsafe { sum.add(index as usize).read_volatile() };
                *seen = sum.count;
                sink(index, &sum);
            }
        }
    }

    fn used_sums(&self) -> u32 {
        let data = self.skel.maps.data_data.as_deref();
        data.map_or(0, |data| {
            // SAFETY: it is part of `data`. The kernel writes it, too, so that each look is a new one.
            unsafe { std::ptr::from_ref(&data.used_sums).read_volatile() }
        })
        .clamp(SHARED + 1, self.most_sums)
    }

    /// Calls that were not made before are added up together, whoever makes them.
    pub fn is_full(&self) -> bool {
        self.used_sums() == self.most_sums
    }

    pub fn failures(&self) -> Vec<Failure> {
        let map = &self.skel.maps.failures;
        let failure = |key: Vec<u8>| {
            let which: types::gdiag_failure = wire::read(&key)?;
            let count = map.lookup(&key, MapFlags::ANY).ok()??;
            Some(Failure {
                sum: which.sum,
                error: u16::try_from(which.error).ok()?,
                count: u64::from_ne_bytes(count.try_into().ok()?),
            })
        };
        map.keys().filter_map(failure).collect()
    }

    pub fn shortage(&self) -> Shortage {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or_else(Shortage::default, |bss| Shortage {
            shared: bss.shared_calls,
            unseen: bss.unseen_calls,
            failures: bss.lost_failures,
        })
    }
}

fn bits(wanted: &[bool]) -> [u64; NUMBERS / 64] {
    let mut bits = [0; NUMBERS / 64];
    for (number, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
        if let Some(word) = bits.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }
    bits
}

fn set_captures(skel: &SyscallsSkel<'_>, number: u32, captures: &Captures) -> Result<()> {
    let of = captures.map(|capture| capture.map_or_else(Default::default, Capture::wire));
    let value = types::gdiag_captures { of };
    skel.maps
        .captures
        .update(&number.to_ne_bytes(), wire::as_bytes(&value), MapFlags::ANY)
        .context("cannot tell the BPF programs which arguments to read")
}

fn walk_tasks(program: &ProgramMut<'_>) -> Result<()> {
    let link = program
        .attach_iter_with_opts(libbpf_rs::IterOpts::None)
        .context("cannot walk the tasks of this machine")?;
    let mut nothing = Vec::new();
    Iter::new(&link)?.read_to_end(&mut nothing)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bits() {
        let mut wanted = vec![false; NUMBERS + 10];
        for number in [0, 65, NUMBERS - 1, NUMBERS + 3] {
            wanted[number] = true;
        }
        let mut expected = [0; NUMBERS / 64];
        expected[0] = 1;
        expected[1] = 2;
        expected[NUMBERS / 64 - 1] = 1 << 63;
        assert_eq!(bits(&wanted), expected);
        assert_eq!(bits(&[]), [0; NUMBERS / 64]);
    }

    #[test]
    fn the_kernel_reads_as_much_as_gdiag_asks_for() {
        let source = include_str!("../../bpf/syscalls.bpf.c");
        assert!(source.contains(&format!("#define MOST_BYTES {MOST_BYTES}\n")));
    }
}
