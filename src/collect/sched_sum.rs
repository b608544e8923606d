//! Loads the BPF programs that sum the scheduler up (`bpf/sched_sum.bpf.c`), and reads the sums.
//!
//! An object of its own: no event leaves the kernel, so nothing of what [`Bpf`](super::bpf::Bpf) carries
//! them with is needed. Everything goes away with the process, however it dies.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{Btf, Link, MapCore, MapFlags, MapMut, OpenObject, RingBuffer, RingBufferBuilder};

use crate::collect::cgroup::Cgroup;
use crate::collect::marks::{self, Marks};
use crate::collect::{bpf, clock, wire};
use crate::error::Error;
use crate::event::Cpu;
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
    include!(concat!(env!("OUT_DIR"), "/sched_sum.skel.rs"));
}
pub(crate) use skel::types;
use skel::{OpenSchedSumSkel, SchedSumSkel, SchedSumSkelBuilder};

/// Rows of the table of sleeps: one for each system call, and two more.
pub const SLEEP_ROWS: usize = size_of::<Sleeps>() / size_of::<[u8; SLEEP_COLUMNS]>();
/// Threads that are in no system call, and threads of the kernel.
pub const SLEEP_NO_CALL: usize = SLEEP_ROWS - 2;
pub const SLEEP_KTHREAD: usize = SLEEP_ROWS - 1;
/// Bits of a column.
pub const SLEEP_IOWAIT: usize = 1;
pub const SLEEP_UNINTERRUPTIBLE: usize = 2;
pub const SLEEP_COLUMNS: usize = 4;

/// Why a thread sleeps: numbers of `enum gdiag_off`, by `bpf/sched_sum.h`.
pub type Sleeps = [[u8; SLEEP_COLUMNS]; sleep_rows()];

const fn sleep_rows() -> usize {
    const fn of<const N: usize, const M: usize>(
        _: fn(&types::gdiag_sum_config) -> &[[u8; M]; N],
    ) -> usize {
        N
    }
    of(|config| &config.sleeps)
}

/// Tracepoints without which there is nothing to tell.
const REQUIRED: [&str; 3] = ["sched_switch", "sched_waking", "sched_wakeup_new"];

/// How long the last switches of threads that end are waited for.
const MOST_PATIENCE: Nanos = Nanos::from_millis(250);

/// Threads that have ended and were not read.
const MOST_ENDED: usize = 4096;

/// Entries of a map that are read at once.
const BATCH: u32 = 4096;

/// What is summed up.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Every thread is a target.
    pub all: bool,
    /// Processes that are targets, by the pids that gdiag itself sees, with all that they started and will.
    pub targets: Vec<u32>,
    /// Cgroups whose processes are targets, also those that come into them later.
    pub cgroups: &'a [Cgroup],
    /// Processes that are no target though they are in one of the cgroups, or started by a target.
    pub strangers: Vec<u32>,
    /// Only what happens on these counts; `None`: on every one.
    pub cpus: Option<&'a [Cpu]>,
    pub sleeps: &'a Sleeps,
    /// libbpf tells on stderr what it does, and the verifier why it refuses.
    pub libbpf_messages: bool,
}

impl Plan<'_> {
    fn processes(&self) -> BTreeSet<u32> {
        marks::processes(&self.targets, self.cgroups, &self.strangers)
    }
}

/// The sums as the kernel keeps them, at one moment. The records may have any alignment.
#[derive(Clone, Debug)]
pub struct Raw {
    /// Since when.
    pub start: Nanos,
    /// Until when, of the CPUs; each thread's record says it by itself.
    pub at: Nanos,
    /// Of every thread that is there.
    pub threads: Vec<u8>,
    /// Of those that ended since the last reading.
    pub ended: Vec<u8>,
    pub(crate) cpus: Vec<types::cpu_data>,
    pub(crate) takers: Pairs,
    pub(crate) places: Pairs,
    pub(crate) wakers: Pairs,
}

/// The attached programs. Dropping it detaches them.
pub struct SchedSum {
    skel: SchedSumSkel<'static>,
    _links: Vec<Link>,
    ring: RingBuffer<'static>,
    ended: Arc<Mutex<Vec<u8>>>,
    start: Nanos,
    stop: Option<Nanos>,
    /// Processes that came into a cgroup and that the iterator has looked for.
    joined: u32,
    /// Optional programs that this kernel does not have, each with what is missing.
    pub missing: Vec<String>,
}

impl fmt::Debug for SchedSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SchedSum")
            .field("start", &self.start)
            .field("stop", &self.stop)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// One thread has it at a time; which one may change.
fn lock(ended: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SchedSum {
    /// Loads, attaches, and marks the targets that exist. Nothing counts before [`go`](Self::go).
    pub fn start(plan: &Plan<'_>) -> Result<SchedSum> {
        bpf::print_messages(plan.libbpf_messages);
        let vmlinux = Btf::from_vmlinux().map_err(|_| Error::NoBtf)?;
        bpf::check_helpers(&vmlinux)?;
        // The skeleton borrows this storage for as long as the programs live: for good.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SchedSumSkelBuilder::default()
            .open(storage)
            .map_err(bpf::load_error)?;
        let missing = choose_programs(&mut open, &vmlinux, plan)?;
        let config = &mut open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the BPF object has no rodata")?
            .cfg;
        let possible = libbpf_rs::num_possible_cpus().context("cannot count the CPUs")?;
        config.mask_bytes = u32::try_from(possible.div_ceil(64) * size_of::<u64>())?;
        config.all = u8::from(plan.all);
        config.cgroups = u8::from(!plan.cgroups.is_empty());
        config.some_cpus = u8::from(plan.cpus.is_some());
        for cpu in plan.cpus.unwrap_or_default() {
            if let Some(counted) = config.counted.get_mut(usize::from(cpu.0)) {
                *counted = 1;
            }
        }
        config.sleeps = *plan.sleeps;
        let skel = open.load().map_err(bpf::load_error)?;

        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let sink = Arc::clone(&ended);
        builder.add(&skel.maps.ended, move |bytes| {
            lock(&sink).extend_from_slice(bytes);
            0
        })?;
        let ring = builder.build().context("cannot map the ring buffer")?;
        marks::tell_cgroups(&skel.maps.target_cgroups, plan.cgroups)?;
        let links = attach(&skel)?;
        let sum = SchedSum {
            skel,
            _links: links,
            ring,
            ended,
            start: Nanos::ZERO,
            stop: None,
            joined: 0,
            missing,
        };
        sum.marks().mark_all(|| plan.processes())?;
        Ok(sum)
    }

    fn marks(&self) -> Marks<'_, MapMut<'static>> {
        Marks {
            pids: &self.skel.maps.target_pids,
            iterator: &self.skel.progs.mark_targets,
        }
    }

    /// From now on it counts.
    pub fn go(&mut self) -> Result<Nanos> {
        let bss = self.skel.maps.bss_data.as_deref_mut();
        let bss = bss.context("the BPF object has no variables")?;
        self.start = clock::monotonic();
        bss.start_ns = self.start.0;
        Ok(self.start)
    }

    /// From now on nothing counts; what did can be read. Waits a little for threads that are about to be no more.
    pub fn stop(&mut self) -> Result<Nanos> {
        let bss = self.skel.maps.bss_data.as_deref_mut();
        let bss = bss.context("the BPF object has no variables")?;
        let now = clock::monotonic();
        bss.stop_ns = now.0;
        self.stop = Some(now);
        while self.dying() > 0 && clock::monotonic() < now + MOST_PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(now)
    }

    /// Threads that end and are not told of yet.
    fn dying(&self) -> u32 {
        self.skel.maps.bss_data.as_deref().map_or(0, |bss| {
            // SAFETY: it is part of `bss`. The kernel writes it, too, so that each look is a new one.
            unsafe { std::ptr::from_ref(&bss.dying).read_volatile() }
        })
    }

    /// Becomes readable when many threads have ended that were not read.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer manager owns the descriptor, and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    /// Makes room for threads that will end, and marks those that came into a target's cgroup.
    pub fn keep_up(&mut self) -> Result<()> {
        let joined = self.skel.maps.bss_data.as_deref();
        let joined = joined.map_or(0, |bss| bss.joined);
        if joined != self.joined {
            self.joined = joined;
            self.marks().run()?;
        }
        self.ring
            .consume()
            .context("cannot read of the threads that ended")
    }

    /// So many have ended that it is time to read: what the maps have of them takes room that others need.
    pub fn is_full(&self) -> bool {
        lock(&self.ended).len() >= MOST_ENDED * size_of::<types::gdiag_thread_sum>()
    }

    pub fn read(&mut self) -> Result<Raw> {
        let maps = &self.skel.maps;
        let at = self.stop.unwrap_or_else(clock::monotonic);
        let cpus = maps
            .cpus
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .context("the sums of the CPUs are gone")?;
        let cpus = cpus.iter().map(|cpu| wire::read(cpu).unwrap_or_default());
        let cpus = cpus.collect();
        let threads = marks::walk_tasks(&self.skel.progs.read_threads)?;
        // After those that are there: who ended meanwhile is in both.
        self.keep_up()?;
        // After that: whoever ended is in the maps with all that it has.
        let maps = &self.skel.maps;
        let (takers, places, wakers) = (
            pairs(&maps.more_takers)?,
            pairs(&maps.more_places)?,
            pairs(&maps.more_wakers)?,
        );
        Ok(Raw {
            start: self.start,
            at,
            threads,
            ended: std::mem::take(&mut *lock(&self.ended)),
            cpus,
            takers,
            places,
            wakers,
        })
    }

    /// Makes room in the maps: these have ended, and what `raw` has of them is all.
    pub fn forget(&self, raw: &Raw, gone: &HashSet<u32>) {
        let maps = &self.skel.maps;
        forget(&maps.more_takers, &raw.takers, gone);
        forget(&maps.more_places, &raw.places, gone);
        forget(&maps.more_wakers, &raw.wakers, gone);
    }
}

/// Turns off what this kernel cannot run, or nobody needs, and says so.
fn choose_programs(
    open: &mut OpenSchedSumSkel<'_>,
    vmlinux: &Btf<'_>,
    plan: &Plan<'_>,
) -> Result<Vec<String>> {
    let old_switch = bpf::tracepoint_args(vmlinux, "sched_switch").is_some_and(|args| args < 5);
    open.progs.sched_switch.set_autoload(!old_switch);
    open.progs.sched_switch_pre518.set_autoload(old_switch);
    open.progs.task_newtask.set_autoload(!plan.all);
    let cgroups = !plan.cgroups.is_empty();
    open.progs.cgroup_attach_task.set_autoload(cgroups);
    let mut missing = Vec::new();
    for mut prog in open.open_object_mut().progs_mut() {
        let section = prog.section().to_string_lossy().into_owned();
        let Some(name) = section.strip_prefix("tp_btf/") else {
            prog.set_autoattach(false);
            continue;
        };
        if prog.autoload() && bpf::tracepoint_args(vmlinux, name).is_none() {
            if REQUIRED.contains(&name) {
                return Err(Error::KernelTooOld {
                    needs: format!("BTF for the tracepoint {name}"),
                    since: bpf::OLDEST_KERNEL,
                    found: bpf::kernel_release(),
                }
                .into());
            }
            prog.set_autoload(false);
            missing.push(format!("tracepoint {name}"));
        }
    }
    Ok(missing)
}

fn attach(skel: &SchedSumSkel<'_>) -> Result<Vec<Link>> {
    let tracepoints = skel.object().progs_mut().filter(|prog| {
        prog.autoload() && prog.section().as_encoded_bytes().starts_with(b"tp_btf/")
    });
    let links = tracepoints.map(|prog| {
        prog.attach_trace()
            .with_context(|| format!("cannot attach to {}", prog.section().to_string_lossy()))
    });
    links.collect()
}

type Pairs = Vec<(types::gdiag_pair, types::gdiag_pair_sum)>;

fn forget(map: &impl MapCore, pairs: &Pairs, gone: &HashSet<u32>) {
    for (pair, _) in pairs.iter().filter(|(pair, _)| gone.contains(&pair.tid)) {
        let _ = map.delete(wire::as_bytes(pair));
    }
}

fn pairs(map: &impl MapCore) -> Result<Pairs> {
    let entries = map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)?;
    let read = |(key, value): (Vec<u8>, Vec<u8>)| Some((wire::read(&key)?, wire::read(&value)?));
    Ok(entries.filter_map(read).collect())
}
