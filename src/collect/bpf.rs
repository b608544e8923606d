//! Loads and attaches the BPF programs, and reads what they send.
//!
//! Only BTF tracepoints, task storage and ring buffers are used: no kprobe, no
//! tracefs, no perf event, no pinned map. Everything goes away with the process,
//! however it dies.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use gdiag_shim_layout::THREAD_NAME;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{
    btf, btf::ReferencesType as _, AsRawLibbpf as _, Btf, Link, MapCore, MapFlags, MapHandle,
    MapMut, MapType, OpenObject, PrintLevel, ProgramInput, RingBuffer, RingBufferBuilder,
};

use crate::collect::cgroup::Cgroup;
use crate::collect::marks::{self, Marks};
use crate::collect::{clock, stacks, syscalls, wire};
use crate::error::Error;
use crate::event::{Cpu, Loss, LossSource};
use crate::units::{Bytes, Nanos};

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
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}
pub(crate) use skel::types;
use skel::{OpenSchedSkel, SchedSkel, SchedSkelBuilder};

/// CPUs that share a ring buffer. Chunks make contention rare; this keeps it local.
const CPUS_PER_RING: usize = 8;
/// For 1 M switches a second of the CPUs that share it, each with its waking and so 48 B, a third of a second.
const RING_BYTES: u32 = 16 << 20;

/// Ends the reading of a ring.
const ONCE_OVER: i32 = -libc::ECANCELED;

/// Of so many bytes of a ring, those that are left after a record of `len`.
fn still_unread(unread: u64, len: usize) -> u64 {
    const HEADER: u64 = 8;
    unread.saturating_sub((len as u64).next_multiple_of(8) + HEADER)
}

/// Tracepoints without which there is nothing to tell.
const REQUIRED: [&str; 3] = ["sched_switch", "sched_waking", "task_newtask"];

/// Tracepoints that tell who the targets are.
const IDENTITY: [&str; 5] = [
    "task_newtask",
    "task_rename",
    "sched_process_exec",
    "sched_process_exit",
    "cgroup_attach_task",
];

/// A record comes at most so long after the time it tells: no program is interrupted for longer.
const LATE: Nanos = Nanos::from_millis(1);

/// What the kernel side should look at.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every task is a target.
    pub all: bool,
    /// Processes that are targets, by the pids that gdiag itself sees, with all that they started and will.
    pub targets: Vec<u32>,
    /// Cgroups whose processes are targets, also those that come into them later.
    pub cgroups: Vec<Cgroup>,
    /// Processes that are no target though they are in one of the cgroups, or started by a target.
    pub strangers: Vec<u32>,
    /// Who runs, waits and wakes is recorded. Else only who the targets are, which costs nothing but
    /// when one begins, ends or changes its name.
    pub scheduling: bool,
    /// Waits at least this long are sent with their kernel stack.
    pub wait_threshold: Nanos,
    /// Each system call is recorded. That is the work of [`syscalls`].
    pub syscalls: Option<syscalls::Plan>,
    /// Which user stacks to take. They are the work of [`stacks`]; here it is only noted who was off
    /// the CPU for long.
    pub stacks: Option<stacks::Plan>,
    /// GPU records may be had by putting the shim into running processes. Where they may not, the host's
    /// side of CUDA is told by probes on the driver.
    pub inject: bool,
    /// libbpf tells on stderr what it does, and the verifier why it refuses.
    pub libbpf_messages: bool,
}

impl Plan {
    /// The processes that are to be targets, as they are now.
    fn processes(&self) -> BTreeSet<u32> {
        marks::processes(&self.targets, &self.cgroups, &self.strangers)
    }
}

/// The attached programs. Dropping it detaches them.
pub struct Bpf {
    skel: SchedSkel<'static>,
    config: types::gdiag_config,
    _links: Vec<Link>,
    /// Of the plan.
    strangers: Vec<u32>,
    /// Processes that came into a cgroup and that the iterator has looked for.
    joined: u32,
    rings: RingBuffer<'static>,
    ring_count: u32,
    /// Of the ring that is being read, how much of what was there before is still to come, at most.
    unread: Arc<AtomicU64>,
    /// Possible CPUs; which of them are online may change at any time.
    cpus: u32,
    scheduling: bool,
    seen_losses: Vec<types::cpu_losses>,
    last_read: Nanos,
    /// When the oldest event happened that can be lost and not have been told of.
    loss_from: Nanos,
    /// Optional programs that this kernel does not have, each with what is missing.
    pub missing: Vec<String>,
}

/// What the objects have in common.
pub(super) struct Shared<'a> {
    pub(super) tasks: BorrowedFd<'a>,
    pub(super) cpus: BorrowedFd<'a>,
    pub(super) losses: BorrowedFd<'a>,
    pub(super) driver_tasks: BorrowedFd<'a>,
    pub(super) rings: BorrowedFd<'a>,
    pub(super) config: &'a types::gdiag_config,
}

impl fmt::Debug for Bpf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bpf")
            .field("cpus", &self.cpus)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

impl Bpf {
    /// Loads, attaches, and marks the targets that exist. `record` gets each record as it is read;
    /// its bytes may have any alignment.
    pub fn start(plan: &Plan, record: impl FnMut(&[u8]) + 'static) -> Result<Bpf> {
        print_messages(plan.libbpf_messages);
        let vmlinux = Btf::from_vmlinux().map_err(|_| Error::NoBtf)?;
        check_helpers(&vmlinux)?;
        let possible = libbpf_rs::num_possible_cpus().context("cannot count the CPUs")?;

        // The skeleton borrows this storage for as long as the programs live: for good.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SchedSkelBuilder::default()
            .open(storage)
            .map_err(load_error)?;
        let missing = choose_programs(&mut open, &vmlinux, plan)?;
        let most_rings = open.maps.rings.max_entries() as usize;
        let rings = possible.div_ceil(CPUS_PER_RING).clamp(1, most_rings);
        let config = &mut open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the BPF object has no rodata")?
            .cfg;
        config.wait_threshold_ns = plan.wait_threshold.0;
        config.cpus_per_ring = u32::try_from(possible.div_ceil(rings))?;
        config.wakeup_bytes = RING_BYTES / 4;
        config.cpus = u32::try_from(possible)?;
        config.online = online_cpus();
        config.all = u8::from(plan.all);
        config.stacks = u8::from(plan.stacks.is_some());
        config.cgroups = u8::from(!plan.cgroups.is_empty());
        config.shim_comm = const { comm(THREAD_NAME) };
        let config = *config;
        let skel = open.load().map_err(load_error)?;

        let record = Rc::new(RefCell::new(record));
        let unread = Arc::new(AtomicU64::new(0));
        let ring_maps = make_rings(&skel, rings)?;
        let mut builder = RingBufferBuilder::new();
        for map in &ring_maps {
            let (record, unread) = (Rc::clone(&record), Arc::clone(&unread));
            builder.add(map, move |bytes| {
                (record.borrow_mut())(bytes);
                let left = still_unread(unread.load(Ordering::Relaxed), bytes.len());
                unread.store(left, Ordering::Relaxed);
                if left == 0 {
                    ONCE_OVER
                } else {
                    0
                }
            })?;
        }
        let ring_count = u32::try_from(ring_maps.len())?;
        let rings = builder.build().context("cannot map the ring buffers")?;

        marks::tell_cgroups(&skel.maps.target_cgroups, &plan.cgroups)?;
        let start = clock::monotonic();
        let links = attach(&skel)?;
        let seen_losses = read_losses(&skel)?;
        let bpf = Bpf {
            skel,
            config,
            _links: links,
            strangers: plan.strangers.clone(),
            joined: 0,
            rings,
            ring_count,
            unread,
            cpus: u32::try_from(possible)?,
            scheduling: plan.scheduling,
            seen_losses,
            last_read: start,
            loss_from: start,
            missing,
        };
        bpf.marks().mark_all(|| plan.processes())?;
        Ok(bpf)
    }

    /// Makes these processes targets, with all that they started and will, as if they had been from the
    /// start; whoever is one stays one. By the pids that gdiag sees, and those that are gone are left out.
    pub fn add_targets(&self, pids: &[u32]) -> Result<()> {
        self.marks()
            .mark_all(|| marks::processes(pids, &[], &self.strangers))
    }

    /// Maps that the other objects use as well.
    pub(super) fn shared(&self) -> Shared<'_> {
        Shared {
            tasks: self.skel.maps.tasks.as_fd(),
            cpus: self.skel.maps.cpus.as_fd(),
            losses: self.skel.maps.losses.as_fd(),
            driver_tasks: self.skel.maps.driver_tasks.as_fd(),
            rings: self.skel.maps.rings.as_fd(),
            config: &self.config,
        }
    }

    /// Becomes readable when a ring buffer holds much, or something urgent.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer manager owns the descriptor, and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.rings.epoll_fd()) }
    }

    /// Hands out the records of everything that happened before the time it returns.
    pub fn read(&mut self) -> Result<Nanos> {
        let joined = self.skel.maps.bss_data.as_deref();
        let joined = joined.map_or(0, |bss| bss.joined);
        if joined != self.joined {
            self.joined = joined;
            self.marks().run()?;
        }
        let now = clock::monotonic();
        // Without switches and wakeups there are no chunks.
        let chunks = if self.scheduling { self.cpus } else { 0 };
        for cpu in 0..chunks {
            let input = ProgramInput {
                cpu,
                flags: libbpf_rs::libbpf_sys::BPF_F_TEST_RUN_ON_CPU,
                ..ProgramInput::default()
            };
            // Refused at once where the CPU is offline. What it had not sent when it went stays
            // with it until it is back.
            let _ = self.skel.progs.flush_cpu.test_run(input);
        }
        self.read_rings()?;
        self.last_read = now;
        Ok(if self.scheduling {
            now
        } else {
            now.saturating_sub(LATE)
        })
    }

    /// Reads each ring buffer once over, and no more: all that was there before is read then, and nobody who
    /// writes faster than this reads keeps it from coming back. The rest waits in the ring, or is lost and counted.
    fn read_rings(&self) -> Result<()> {
        for ring in 0..self.ring_count {
            self.unread.store(RING_BYTES.into(), Ordering::Relaxed);
            // SAFETY: the manager lives as long as `self`, and has that many rings.
            let result = unsafe {
                let manager = self.rings.as_libbpf_object().as_ptr();
                let ring = libbpf_rs::libbpf_sys::ring_buffer__ring(manager, ring);
                libbpf_rs::libbpf_sys::ring__consume(ring)
            };
            if result < 0 && result != ONCE_OVER {
                return Err(io::Error::from_raw_os_error(-result))
                    .context("cannot read the ring buffers");
            }
        }
        Ok(())
    }

    /// What was lost since the last call. What is in a chunk that is lost can be as old as the read
    /// before it.
    pub fn losses(&mut self) -> Result<Vec<Loss>> {
        let now = clock::monotonic();
        let from = std::mem::replace(&mut self.loss_from, self.last_read);
        let current = read_losses(&self.skel)?;
        let mut lost = Vec::new();
        for (cpu, (new, old)) in (0u16..).zip(current.iter().zip(&self.seen_losses)) {
            let count =
                new.slots.saturating_sub(old.slots) + new.records.saturating_sub(old.records);
            if count > 0 {
                lost.push(Loss {
                    source: LossSource::Bpf(Cpu(cpu)),
                    count,
                    from,
                    to: now,
                });
            }
        }
        self.seen_losses = current;
        Ok(lost)
    }

    /// gdiag's own process, as the kernel numbers it.
    pub(super) fn own_tgid(&self) -> i32 {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or(0, |bss| bss.own_tgid)
    }

    /// Threads that woke a target and were not followed, because too many are already.
    pub fn unfollowed(&self) -> u32 {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or(0, |bss| bss.unfollowed)
    }

    fn marks(&self) -> Marks<'_, MapMut<'static>> {
        Marks {
            pids: &self.skel.maps.target_pids,
            iterator: &self.skel.progs.mark_targets,
        }
    }
}

/// Whether libbpf tells on stderr what it does.
pub(super) fn print_messages(wanted: bool) {
    if kept().is_some() {
        libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text: String| {
            if let Some(kept) = kept().as_mut() {
                kept.push_str(&text);
            }
        })));
        return;
    }
    libbpf_rs::set_print(wanted.then_some((PrintLevel::Debug, |_, text: String| {
        let _ = io::stderr().write_all(text.as_bytes());
    })));
}

/// What libbpf and the verifier say, while somebody wants it.
static KEPT: Mutex<Option<String>> = Mutex::new(None);

fn kept() -> MutexGuard<'static, Option<String>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does it, and keeps what libbpf and the verifier say meanwhile.
pub(super) fn with_messages<T>(load: impl FnOnce() -> T) -> (T, String) {
    *kept() = Some(String::new());
    print_messages(false);
    let result = load();
    let messages = kept().take().unwrap_or_default();
    print_messages(false);
    (result, messages)
}

pub(super) fn load_error(e: libbpf_rs::Error) -> anyhow::Error {
    use libbpf_rs::ErrorKind;
    match e.kind() {
        // The verifier says EACCES to what it finds wrong. libbpf-rs tells the two apart in words only.
        ErrorKind::PermissionDenied if !says(&e, libc::EACCES) => Error::NotPermitted {
            what: "load the BPF programs".to_string(),
            source: io::Error::from_raw_os_error(libc::EPERM),
        }
        .into(),
        ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::TooBig => {
            Error::BpfRefused {
                found: kernel_release(),
                source: e,
            }
            .into()
        }
        _ => anyhow::Error::new(e).context("the kernel refused the BPF programs"),
    }
}

fn says(e: &libbpf_rs::Error, errno: i32) -> bool {
    format!("{e:#}").contains(&io::Error::from_raw_os_error(errno).to_string())
}

/// The oldest kernel with all that is needed; some distributions bring it to older ones.
pub(super) const OLDEST_KERNEL: &str = "5.15";

/// The helpers that everything here is built on, and what they give.
pub(super) const HELPERS: [(&str, &str); 3] = [
    ("BPF_FUNC_ringbuf_output", "BPF ring buffers"),
    ("BPF_FUNC_task_storage_get", "BPF task storage"),
    (
        "BPF_FUNC_task_pt_regs",
        "BPF access to a thread's registers",
    ),
];

/// Whether the kernel has a helper; `None` where BTF does not tell.
pub(super) fn has_helper(vmlinux: &Btf<'_>, helper: &str) -> Option<bool> {
    let known: btf::types::Enum<'_> = vmlinux.type_by_name("bpf_func_id")?;
    let mut names = known.iter();
    Some(names.any(|v| v.name == Some(OsStr::new(helper))))
}

/// Refuses a kernel without them.
pub(super) fn check_helpers(vmlinux: &Btf<'_>) -> Result<(), Error> {
    for (helper, what) in HELPERS {
        // Where BTF does not tell, loading will.
        if has_helper(vmlinux, helper) == Some(false) {
            return Err(Error::KernelTooOld {
                needs: what.to_string(),
                since: OLDEST_KERNEL,
                found: kernel_release(),
            });
        }
    }
    Ok(())
}

/// The tracepoints that this can use and the kernel does not have: those that are required, and the others.
pub(super) fn missing_tracepoints(vmlinux: &Btf<'_>) -> Result<[BTreeSet<String>; 2]> {
    let mut storage = MaybeUninit::uninit();
    let open = SchedSkelBuilder::default()
        .open(&mut storage)
        .map_err(load_error)?;
    let mut missing: [BTreeSet<String>; 2] = Default::default();
    for prog in open.open_object().progs() {
        let section = prog.section().to_string_lossy().into_owned();
        if let Some(name) = section.strip_prefix("tp_btf/") {
            if tracepoint_args(vmlinux, name).is_none() {
                missing[usize::from(!REQUIRED.contains(&name))].insert(name.to_string());
            }
        }
    }
    Ok(missing)
}

/// Turns off what this kernel cannot run, and says so.
fn choose_programs(
    open: &mut OpenSchedSkel<'_>,
    vmlinux: &Btf<'_>,
    plan: &Plan,
) -> Result<Vec<String>> {
    let old_switch = tracepoint_args(vmlinux, "sched_switch").is_some_and(|args| args < 5);
    open.progs.sched_switch.set_autoload(!old_switch);
    open.progs.sched_switch_pre518.set_autoload(old_switch);
    let mut missing = Vec::new();
    for mut prog in open.open_object_mut().progs_mut() {
        let section = prog.section().to_string_lossy().into_owned();
        let Some(name) = section.strip_prefix("tp_btf/") else {
            prog.set_autoattach(false);
            continue;
        };
        let is_idle = name == "cgroup_attach_task" && plan.cgroups.is_empty();
        if is_idle || !plan.scheduling && !IDENTITY.contains(&name) {
            prog.set_autoload(false);
            continue;
        }
        if tracepoint_args(vmlinux, name).is_none() {
            if REQUIRED.contains(&name) {
                return Err(without_tracepoint(name).into());
            }
            prog.set_autoload(false);
            missing.push(format!("tracepoint {name}"));
        }
    }
    Ok(missing)
}

/// The kernel has no such tracepoint, and that will not do.
pub(super) fn without_tracepoint(name: &str) -> Error {
    Error::KernelTooOld {
        needs: format!("BTF for the tracepoint {name}"),
        since: OLDEST_KERNEL,
        found: kernel_release(),
    }
}

/// Number of arguments of a tracepoint's BTF type, the context pointer included.
pub(super) fn tracepoint_args(vmlinux: &Btf<'_>, name: &str) -> Option<usize> {
    let typedef: btf::types::Typedef<'_> = vmlinux.type_by_name(&format!("btf_trace_{name}"))?;
    let pointer = btf::types::Ptr::try_from(typedef.referenced_type()).ok()?;
    let proto = btf::types::FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(proto.iter().count())
}

/// CPUs of this machine that run; a change during the recording is not looked at.
fn online_cpus() -> u16 {
    // SAFETY: sysconf only reads a number.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u16::try_from(online).unwrap_or(0)
}

pub(super) fn kernel_release() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| "unknown".to_string(),
        |u| u.release().to_string_lossy().into_owned(),
    )
}

fn make_rings(skel: &SchedSkel<'_>, count: usize) -> Result<Vec<MapHandle>> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>()
            as libbpf_rs::libbpf_sys::size_t,
        ..Default::default()
    };
    (0..u32::try_from(count)?)
        .map(|i| {
            let ring = MapHandle::create(
                MapType::RingBuf,
                Some("gdiag_ring"),
                0,
                0,
                RING_BYTES,
                &opts,
            )
            .with_context(|| {
                format!(
                    "cannot create a ring buffer of {}",
                    Bytes(RING_BYTES.into())
                )
            })?;
            let fd = ring.as_fd().as_raw_fd();
            skel.maps
                .rings
                .update(&i.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
                .context("cannot hand a ring buffer to the BPF programs")?;
            Ok(ring)
        })
        .collect()
}

fn attach(skel: &SchedSkel<'_>) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for prog in skel.object().progs_mut() {
        if !prog.autoload() || !prog.section().as_encoded_bytes().starts_with(b"tp_btf/") {
            continue;
        }
        let link = prog
            .attach_trace()
            .with_context(|| format!("cannot attach to {}", prog.section().to_string_lossy()))?;
        links.push(link);
    }
    Ok(links)
}

fn read_losses(skel: &SchedSkel<'_>) -> Result<Vec<types::cpu_losses>> {
    let values = skel
        .maps
        .losses
        .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
        .context("the loss counters are gone")?;
    Ok(values
        .iter()
        .map(|bytes| wire::read(bytes).unwrap_or_default())
        .collect())
}

/// A thread's name as the kernel keeps it.
pub(super) const fn comm(name: &str) -> [i8; 16] {
    let mut comm = [0; 16];
    let mut i = 0;
    // One byte stays NUL.
    assert!(name.len() < comm.len());
    while i < name.len() {
        comm[i] = name.as_bytes()[i].cast_signed();
        i += 1;
    }
    comm
}
