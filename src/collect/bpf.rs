//! Loads and attaches the BPF programs, and reads what they send.
//!
//! Only BTF tracepoints, task storage and ring buffers are used: no kprobe, no
//! tracefs, no perf event, no pinned map. Everything goes away with the process,
//! however it dies.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{
    btf, btf::ReferencesType as _, Btf, Iter, Link, MapCore, MapFlags, MapHandle, MapType,
    OpenObject, ProgramInput, RingBuffer, RingBufferBuilder,
};

use crate::collect::clock;
use crate::decode::sched::Batch;
use crate::decode::wire;
use crate::error::Error;
use crate::event::{Cpu, Loss, LossSource};
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
    include!(concat!(env!("OUT_DIR"), "/sched.skel.rs"));
}
pub(crate) use skel::types;
use skel::{OpenSchedSkel, SchedSkel, SchedSkelBuilder};

/// CPUs that share a ring buffer. Chunks make contention rare; this keeps it local.
const CPUS_PER_RING: usize = 8;
/// At 1 M switches a second and CPU group, 48 B each, this holds a third of a second.
const RING_BYTES: u32 = 16 << 20;
/// `MAX_RINGS` in `sched.bpf.c`.
const MAX_RINGS: usize = 64;

/// Programs without which there is nothing to tell.
const REQUIRED: [&str; 5] = [
    "sched_switch",
    "sched_waking",
    "task_newtask",
    "mark_targets",
    "flush_cpu",
];

/// What the kernel side should look at.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Every task is a target.
    pub all: bool,
    /// Processes whose threads are targets from the start, by the pids that gdiag itself sees.
    pub targets: Vec<u32>,
    /// Children of targets become targets.
    pub follow: bool,
    /// Waits at least this long are sent with their kernel stack.
    pub wait_threshold: Nanos,
}

/// The attached programs. Dropping it detaches them.
pub struct Bpf {
    skel: SchedSkel<'static>,
    _links: Vec<Link>,
    rings: RingBuffer<'static>,
    batch: Rc<RefCell<Batch>>,
    cpus: Vec<u32>,
    seen_losses: Vec<types::cpu_losses>,
    last_read: Nanos,
    /// Optional programs that this kernel does not have, each with what is missing.
    pub missing: Vec<String>,
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
    /// Loads, attaches, and marks the targets that exist.
    pub fn start(plan: &Plan) -> Result<Bpf> {
        libbpf_rs::set_print(None);
        let vmlinux = Btf::from_vmlinux().map_err(|_| Error::NoBtf)?;
        let cpus = online_cpus()?;
        let possible = libbpf_rs::num_possible_cpus().context("cannot count the CPUs")?;
        let rings = possible.div_ceil(CPUS_PER_RING).clamp(1, MAX_RINGS);

        // The skeleton borrows this storage for as long as the programs live: for good.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SchedSkelBuilder::default()
            .open(storage)
            .map_err(load_error)?;
        let missing = choose_programs(&mut open, &vmlinux)?;
        let config = &mut open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the BPF object has no rodata")?
            .cfg;
        config.wait_threshold_ns = plan.wait_threshold.0;
        config.rings = u32::try_from(rings)?;
        config.cpus_per_ring = u32::try_from(possible.div_ceil(rings))?;
        config.wakeup_bytes = RING_BYTES / 4;
        config.all = u8::from(plan.all);
        config.follow = u8::from(plan.follow);
        let skel = open.load().map_err(load_error)?;

        let batch = Rc::new(RefCell::new(Batch::default()));
        let ring_maps = make_rings(&skel, rings)?;
        let mut builder = RingBufferBuilder::new();
        for map in &ring_maps {
            let batch = Rc::clone(&batch);
            builder.add(map, move |bytes| {
                batch.borrow_mut().add(bytes);
                0
            })?;
        }
        let rings = builder.build().context("cannot map the ring buffers")?;

        for pid in &plan.targets {
            skel.maps
                .target_pids
                .update(&pid.to_ne_bytes(), &[1], MapFlags::ANY)
                .context("cannot tell the BPF programs their targets")?;
        }
        let links = attach(&skel)?;
        let seen_losses = read_losses(&skel)?;
        let bpf = Bpf {
            skel,
            _links: links,
            rings,
            batch,
            cpus,
            seen_losses,
            last_read: clock::monotonic(),
            missing,
        };
        bpf.mark_targets()?;
        Ok(bpf)
    }

    /// Becomes readable when a ring buffer holds much, or something urgent.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring buffer manager owns the descriptor, and lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.rings.epoll_fd()) }
    }

    /// Reads everything that happened before the time it returns into the batch.
    pub fn read(&mut self) -> Result<Nanos> {
        let now = clock::monotonic();
        for &cpu in &self.cpus {
            let input = ProgramInput {
                cpu,
                flags: libbpf_rs::libbpf_sys::BPF_F_TEST_RUN_ON_CPU,
                ..ProgramInput::default()
            };
            // A CPU that went offline has nothing to flush.
            let _ = self.skel.progs.flush_cpu.test_run(input);
        }
        self.rings
            .consume()
            .context("cannot read the ring buffers")?;
        Ok(now)
    }

    /// Records that [`Bpf::read`] brought and nobody took yet.
    pub fn batch(&self) -> std::cell::RefMut<'_, Batch> {
        self.batch.borrow_mut()
    }

    /// What was lost since the last call. A chunk holds up to 100 ms, so the span begins that much earlier.
    pub fn losses(&mut self) -> Result<Vec<Loss>> {
        let now = clock::monotonic();
        let from = self.last_read.saturating_sub(Nanos::from_millis(100));
        self.last_read = now;
        let current = read_losses(&self.skel)?;
        let mut lost = Vec::new();
        for (cpu, (new, old)) in (0u16..).zip(current.iter().zip(&self.seen_losses)) {
            let count = (new.slots - old.slots) + (new.records - old.records);
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

    /// Marks every thread of `pid`, as gdiag sees it, as a target from now on.
    pub fn add_target(&self, pid: u32) -> Result<()> {
        self.skel
            .maps
            .target_pids
            .update(&pid.to_ne_bytes(), &[1], MapFlags::ANY)?;
        self.mark_targets()
    }

    /// Runs the task iterator once.
    fn mark_targets(&self) -> Result<()> {
        let link = self
            .skel
            .progs
            .mark_targets
            .attach_iter_with_opts(libbpf_rs::IterOpts::None)
            .context("cannot walk the tasks of this machine")?;
        let mut iter = Iter::new(&link)?;
        let mut nothing = Vec::new();
        iter.read_to_end(&mut nothing)?;
        Ok(())
    }
}

fn load_error(e: libbpf_rs::Error) -> anyhow::Error {
    match e.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Error::NotPermitted {
            what: "load the BPF programs".to_string(),
            source: io::Error::from_raw_os_error(libc::EPERM),
        }
        .into(),
        _ => anyhow::Error::new(e).context("the kernel refused the BPF programs"),
    }
}

/// Turns off what this kernel cannot run, and says so.
fn choose_programs(open: &mut OpenSchedSkel<'_>, vmlinux: &Btf<'_>) -> Result<Vec<String>> {
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
        if tracepoint_args(vmlinux, name).is_none() {
            if REQUIRED.iter().any(|r| prog.name() == OsStr::new(r)) {
                return Err(Error::KernelTooOld {
                    needs: format!("BTF for the tracepoint {name}"),
                    since: "5.11",
                    found: kernel_release(),
                }
                .into());
            }
            prog.set_autoload(false);
            missing.push(format!("tracepoint {name}"));
        }
    }
    Ok(missing)
}

/// Number of arguments of a tracepoint's BTF type, the context pointer included.
fn tracepoint_args(vmlinux: &Btf<'_>, name: &str) -> Option<usize> {
    let typedef: btf::types::Typedef<'_> = vmlinux.type_by_name(&format!("btf_trace_{name}"))?;
    let pointer = btf::types::Ptr::try_from(typedef.referenced_type()).ok()?;
    let proto = btf::types::FuncProto::try_from(pointer.referenced_type()).ok()?;
    Some(proto.iter().count())
}

fn kernel_release() -> String {
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
            .context("cannot create a ring buffer of 16 MiB")?;
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

/// The CPUs that are online, by number: not all that are possible are.
fn online_cpus() -> Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .context("cannot read which CPUs are online")?;
    crate::collect::process::parse_cpu_list(text.trim()).with_context(|| {
        format!(
            "cannot understand the list of online CPUs '{}'",
            text.trim()
        )
    })
}

/// How long the kernel side may hold a record before the reader looks.
pub const POLL: Duration = Duration::from_millis(100);
