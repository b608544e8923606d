//! Loads the BPF programs that walk user stacks, and gives them what they walk by: the maps of
//! the targets and the unwind tables of the mapped files.
//!
//! An object of its own beside [`Bpf`], whose maps and ring buffers it shares: where it cannot
//! be loaded, everything else goes on without user stacks.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::btf::types::Struct;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Btf, Link, MapCore as _, MapFlags, MapHandle, MapType, OpenObject};
use memmap2::MmapMut;
use perf_event_open_sys::bindings as perf;

use crate::collect::bpf::{self, Bpf};
use crate::collect::elf::Elf;
use crate::collect::maps::{FileId, Mapping};
use crate::collect::python::Interpreter;
use crate::collect::{process, wire};
use crate::event::Pid;
use crate::units::Nanos;
use crate::unwind::{abi, Rule, Table};

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
    include!(concat!(env!("OUT_DIR"), "/stacks.skel.rs"));
}
pub(crate) use skel::types;
use skel::{StacksSkel, StacksSkelBuilder};

// The tables keep the kernel side's numbers.
const _: () = {
    use types::{gdiag_cfa as cfa, gdiag_fp as fp, gdiag_rule_id as id};
    assert!(
        abi::RULE_NONE as u32 == id::GDIAG_RULE_NONE.0
            && abi::RULE_ROOT as u32 == id::GDIAG_RULE_ROOT.0
            && abi::FIRST_RULE as u32 == id::GDIAG_FIRST_RULE.0
            && abi::CFA_UNSUPPORTED as u32 == cfa::GDIAG_CFA_UNSUPPORTED.0
            && abi::CFA_SP as u32 == cfa::GDIAG_CFA_SP.0
            && abi::CFA_FP as u32 == cfa::GDIAG_CFA_FP.0
            && abi::CFA_FP_DEREF as u32 == cfa::GDIAG_CFA_FP_DEREF.0
            && abi::CFA_SP_DEREF as u32 == cfa::GDIAG_CFA_SP_DEREF.0
            && abi::CFA_PLT as u32 == cfa::GDIAG_CFA_PLT.0
            && abi::CFA_SIGNAL as u32 == cfa::GDIAG_CFA_SIGNAL.0
            && abi::FP_SAME as u32 == fp::GDIAG_FP_SAME.0
            && abi::FP_AT_CFA as u32 == fp::GDIAG_FP_AT_CFA.0
            && abi::FP_UNSUPPORTED as u32 == fp::GDIAG_FP_UNSUPPORTED.0
            && abi::FP_AT_FP as u32 == fp::GDIAG_FP_AT_FP.0
            && size_of::<types::gdiag_rule>() == size_of::<abi::WireRule>()
            && abi::MAX_RULES * size_of::<types::gdiag_rule>() == size_of_rules()
    );
};

const fn size_of_rules() -> usize {
    const fn of<T, const N: usize>(_: fn(&types::bss) -> &[T; N]) -> usize {
        N * size_of::<T>()
    }
    of(|bss| &bss.rules)
}

/// The tracepoint at the end of a switch, without which there are no stacks of waits.
const SWITCH_END: &str = "sched_exit_tp";

const SHARD_ROWS: usize = size_of::<types::shard>() / size_of::<u32>();
const MAX_MAPPINGS: usize = size_of_mappings() / size_of::<types::gdiag_mapping>();

const fn size_of_mappings() -> usize {
    size_of::<types::gdiag_maps>() - std::mem::offset_of!(types::gdiag_maps, mappings)
}

/// The functions of the driver that start work on the device, and their variants for the default
/// stream of a thread.
const LAUNCHES: [&str; 8] = [
    "cuLaunchKernel",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel_ptsz",
    "cuGraphLaunch",
    "cuGraphLaunch_ptsz",
];

/// No memory of a process is there or above.
const USER_END: u64 = 1 << 56;

/// Which stacks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Samples a second of each running target; 0 takes none.
    pub frequency: u32,
    /// One launch in so many, on every thread; 0 takes none, and then nothing is put into the driver.
    pub launch_one_in: u32,
}

/// What the stacks cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    pub samples: u64,
    pub frames: u64,
    /// Time in the programs that took them.
    pub time: Nanos,
    /// Of that, for launches.
    pub launch_time: Nanos,
    pub lost: u64,
    /// Functions that have the probe for launches.
    pub probes: usize,
}

/// The kernel has no room for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The attached programs. Dropping it detaches them.
pub struct Stacks {
    skel: StacksSkel<'static>,
    links: Vec<Link>,
    /// In each driver: containers may have their own.
    launch_links: HashMap<FileId, Vec<Link>>,
    probes: usize,
    shards: Vec<MmapMut>,
    /// Rows used of the last shard.
    rows: usize,
    /// How often a process was said to run Python.
    pythons: u32,
    /// Changes to be told to the BPF programs, in one go: the kernel waits after each until no program
    /// uses what was there before, for tens of milliseconds where there are many CPUs.
    told: Vec<(Pid, MapHandle)>,
    gone: Vec<Pid>,
    /// Processes whose mappings the BPF programs have.
    known: HashSet<Pid>,
    /// What this kernel cannot do, in words.
    pub missing: Vec<String>,
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stacks")
            .field("shards", &self.shards.len())
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}

/// Whether this kernel can say where a thread was when it went to sleep.
pub(super) fn can_see_waits(vmlinux: &Btf<'_>) -> bool {
    bpf::tracepoint_args(vmlinux, SWITCH_END).is_some()
}

/// Whether a timer's program may use maps whose memory is not all there from the start. The allocator that
/// made it safe tells (6.1).
fn takes_any_map(vmlinux: &Btf<'_>) -> bool {
    let allocator: Option<Struct<'_>> = vmlinux.type_by_name("bpf_mem_alloc");
    allocator.is_some()
}

impl Stacks {
    /// Loads and attaches. The records come out of the ring buffers of `bpf`.
    pub fn start(plan: &Plan, bpf: &Bpf) -> Result<Stacks> {
        let vmlinux = Btf::from_vmlinux().context("no BTF")?;
        anyhow::ensure!(
            // Where BTF does not tell, loading will.
            bpf::has_helper(&vmlinux, "BPF_FUNC_loop") != Some(false),
            "BPF programs cannot loop before Linux 5.17"
        );
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = StacksSkelBuilder::default().open(storage)?;
        let mut missing = Vec::new();
        if !can_see_waits(&vmlinux) {
            open.progs.resumed.set_autoload(false);
            missing.push(format!(
                "tracepoint {SWITCH_END}, so waits have no user stack"
            ));
        }
        if !takes_any_map(&vmlinux) {
            open.maps.py_processes.set_map_flags(0)?;
        }
        let shared = bpf.shared();
        open.maps.tasks.reuse_fd(shared.tasks)?;
        open.maps.cpus.reuse_fd(shared.cpus)?;
        open.maps.losses.reuse_fd(shared.losses)?;
        open.maps.driver_tasks.reuse_fd(shared.driver_tasks)?;
        open.maps.rings.reuse_fd(shared.rings)?;
        let config = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the BPF object has no rodata")?;
        let cfg = &mut config.cfg;
        cfg.wait_threshold_ns = shared.config.wait_threshold_ns;
        cfg.cpus_per_ring = shared.config.cpus_per_ring;
        cfg.wakeup_bytes = shared.config.wakeup_bytes;
        cfg.all = shared.config.all;
        let mut skel = open.load()?;
        if let Some(data) = skel.maps.data_data.as_deref_mut() {
            data.launch_one_in = plan.launch_one_in.max(1);
        }
        let mut links = Vec::new();
        if can_see_waits(&vmlinux) {
            links.push(skel.progs.resumed.attach_trace()?);
        }
        links.push(skel.progs.waker.attach_trace()?);
        links.push(skel.progs.forked.attach_trace()?);
        links.push(skel.progs.execed.attach_trace()?);
        if plan.frequency > 0 {
            for cpu in process::online_cpus() {
                match cpu_clock(cpu, plan.frequency) {
                    // The link owns the event from now on.
                    Ok(timer) => links.push(
                        skel.progs
                            .sample_cpu
                            .attach_perf_event(timer.into_raw_fd())?,
                    ),
                    // It went offline.
                    Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                    Err(e) => {
                        missing.push(format!("timer for samples ({e})"));
                        break;
                    }
                }
            }
        }
        Ok(Stacks {
            skel,
            links,
            launch_links: HashMap::new(),
            probes: 0,
            shards: Vec::new(),
            rows: 0,
            pythons: 0,
            told: Vec::new(),
            gone: Vec::new(),
            known: HashSet::new(),
            missing,
        })
    }

    /// Tells where `pid` has its code, from the next [`commit`](Self::commit) on. `mappings` are
    /// sorted and do not overlap; [`kept`] says what of them there is room for.
    pub fn set_maps(&mut self, pid: Pid, generation: u32, mappings: &[Mapping]) -> Result<()> {
        // The kernel's page for old programs, [vsyscall], is no user's code, and above what the
        // search can compare.
        let above = mappings.partition_point(|m| m.start < USER_END);
        let mappings = kept(&mappings[..above]);
        let count = mappings.len();
        let mut value = Vec::with_capacity(size_of::<types::gdiag_maps>());
        value.extend_from_slice(&generation.to_ne_bytes());
        value.extend_from_slice(&u32::try_from(count).unwrap_or(0).to_ne_bytes());
        for m in mappings.iter() {
            let file = m.file.map_or(0, |file| file.0);
            for word in [m.start, m.end, m.bias, u64::from(file)] {
                value.extend_from_slice(&word.to_ne_bytes());
            }
        }
        value.resize(size_of::<types::gdiag_maps>(), 0);
        let inner = create("gdiag_maps", size_of::<types::gdiag_maps>(), 0)?;
        inner.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)?;
        self.told.push((pid, inner));
        Ok(())
    }

    /// Tells all of it. The result are the processes that there was no room for.
    pub fn commit(&mut self) -> Vec<Pid> {
        let map = &self.skel.maps.maps_of;
        let key = |pid: &Pid| pid.0.to_ne_bytes();
        let each = MapFlags::ANY;
        let gone = std::mem::take(&mut self.gone);
        if !gone.is_empty() {
            let keys: Vec<u8> = gone.iter().flat_map(key).collect();
            if map
                .delete_batch(&keys, gone.len() as u32, each, each)
                .is_err()
            {
                for pid in &gone {
                    let _ = map.delete(&key(pid));
                }
            }
        }
        let told = std::mem::take(&mut self.told);
        if told.is_empty() {
            return Vec::new();
        }
        self.known.extend(told.iter().map(|(pid, _)| *pid));
        let value = |inner: &MapHandle| inner.as_fd().as_raw_fd().to_ne_bytes();
        let keys: Vec<u8> = told.iter().flat_map(|(pid, _)| key(pid)).collect();
        let values: Vec<u8> = told.iter().flat_map(|(_, inner)| value(inner)).collect();
        if map
            .update_batch(&keys, &values, told.len() as u32, each, each)
            .is_ok()
        {
            return Vec::new();
        }
        // One by one: the map is full, or the kernel knows no batches of these (before 5.16 or so).
        let failed = told
            .iter()
            .filter(|(pid, inner)| map.update(&key(pid), &value(inner), each).is_err());
        failed.map(|(pid, _)| *pid).collect()
    }

    /// Tells that `pid` runs Python: this interpreter, mapped with this bias. To be told anew
    /// when the process executes another program.
    pub fn set_python(
        &mut self,
        pid: Pid,
        file: FileId,
        interpreter: &Interpreter,
        bias: u64,
    ) -> Result<()> {
        self.pythons += 1;
        let value = interpreter.in_process(file, bias, self.pythons);
        self.skel
            .maps
            .py_processes
            .update(&pid.0.to_ne_bytes(), wire::as_bytes(&value), MapFlags::ANY)
            .context("cannot tell the BPF programs of a Python process")
    }

    /// `pid` does not run Python, or no more.
    pub fn forget_python(&self, pid: Pid) {
        let _ = self.skel.maps.py_processes.delete(&pid.0.to_ne_bytes());
    }

    /// The process is no more.
    pub fn forget(&mut self, pid: Pid) {
        self.forget_python(pid);
        self.told.retain(|(told, _)| *told != pid);
        if self.known.remove(&pid) {
            self.gone.push(pid);
        }
    }

    /// Processes whose stacks were to be taken and whose maps were unknown or out of date.
    pub fn wanted(&self) -> Vec<Pid> {
        let keys: Vec<_> = self.skel.maps.wanted.keys().collect();
        keys.iter()
            .filter_map(|key| {
                let _ = self.skel.maps.wanted.delete(key);
                let pid = u32::from_ne_bytes(key.as_slice().try_into().ok()?);
                Some(Pid(pid))
            })
            .collect()
    }

    /// Hands over the unwind table of a file, whose rules are there already.
    pub fn add_table(&mut self, file: FileId, table: &Table) -> Result<Result<(), Full>> {
        let mut keys = Vec::new();
        let mut values = Vec::new();
        let mut count = 0u32;
        for page in &table.pages {
            let rows = &table.rows[page.rows.clone()];
            if rows.is_empty() {
                continue;
            }
            let full = self.shards.is_empty() || self.rows + rows.len() > SHARD_ROWS;
            if full && self.add_shard()?.is_err() {
                return Ok(Err(Full));
            }
            let (Some(shard), first) = (self.shards.last_mut(), self.rows) else {
                return Ok(Err(Full));
            };
            for (to, row) in shard[first * 4..].chunks_exact_mut(4).zip(rows) {
                to.copy_from_slice(&row.to_ne_bytes());
            }
            self.rows += rows.len();
            keys.extend_from_slice(&file.0.to_ne_bytes());
            keys.extend_from_slice(&page.number.to_ne_bytes());
            let shard = u32::try_from(self.shards.len() - 1)?;
            values.extend_from_slice(&shard.to_ne_bytes());
            values.extend_from_slice(&u16::try_from(first)?.to_ne_bytes());
            values.extend_from_slice(&u16::try_from(first + rows.len() - 1)?.to_ne_bytes());
            count += 1;
        }
        if count == 0 {
            return Ok(Ok(()));
        }
        // The rows are there before anything leads to them.
        let added =
            self.skel
                .maps
                .pages
                .update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY);
        Ok(added.map_err(|_| Full))
    }

    /// Hands over rules that tables use from now on.
    pub fn add_rules(&mut self, rules: &[(u16, Rule)]) {
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        for (id, rule) in rules {
            let rule = rule.wire();
            bss.rules[usize::from(*id)] = types::gdiag_rule {
                cfa_off: rule.cfa_off,
                fp_off: rule.fp_off,
                cfa: rule.cfa,
                fp: rule.fp,
            };
        }
    }

    fn add_shard(&mut self) -> Result<Result<(), Full>> {
        let most = self.skel.maps.shards.max_entries() as usize;
        if self.shards.len() >= most {
            return Ok(Err(Full));
        }
        let flags = libbpf_rs::libbpf_sys::BPF_F_MMAPABLE;
        let Ok(map) = create("gdiag_rows", size_of::<types::shard>(), flags) else {
            return Ok(Err(Full));
        };
        // SAFETY: the memory is the map's own, and only BPF programs read it meanwhile.
        let memory = unsafe {
            memmap2::MmapOptions::new()
                .len(size_of::<types::shard>())
                .map_mut(map.as_fd().as_raw_fd())
        }
        .context("cannot map an unwind table")?;
        let index = u32::try_from(self.shards.len())?;
        let fd = map.as_fd().as_raw_fd();
        self.skel
            .maps
            .shards
            .update(&index.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
        self.shards.push(memory);
        self.rows = 0;
        Ok(Ok(()))
    }

    /// Puts the probe for launches into the driver. It acts in every process that has the file
    /// mapped; in others than targets it returns at once.
    /// Says how many functions it found.
    pub fn probe_launches(&mut self, file: FileId, driver: &Elf) -> Result<usize> {
        if let Some(links) = self.launch_links.get(&file) {
            return Ok(links.len());
        }
        let path = format!("/proc/self/fd/{}", driver.file().as_raw_fd());
        let mut links = Vec::new();
        for name in LAUNCHES {
            let Some(offset) = driver.symbol(name)?.and_then(|at| driver.offset_of(at)) else {
                continue;
            };
            let link = self
                .skel
                .progs
                .launch
                .attach_uprobe(false, -1, &path, usize::try_from(offset)?)
                .with_context(|| format!("cannot probe {name} of the driver"))?;
            links.push(link);
        }
        let found = links.len();
        self.probes += found;
        self.launch_links.insert(file, links);
        Ok(found)
    }

    pub fn set_launch_one_in(&mut self, one_in: u32) {
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            data.launch_one_in = one_in.max(1);
        }
    }

    pub fn costs(&self) -> Result<Costs> {
        let values = self
            .skel
            .maps
            .costs
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?
            .context("the cost counters are gone")?;
        Ok(values
            .iter()
            .filter_map(|bytes| wire::read::<types::stack_costs>(bytes))
            .fold(Costs::default(), |sum, c| Costs {
                samples: sum.samples + c.samples,
                frames: sum.frames + c.frames,
                time: sum.time + Nanos(c.ns),
                launch_time: sum.launch_time + Nanos(c.launch_ns),
                lost: sum.lost + c.lost,
                probes: self.probes,
            }))
    }

    /// Takes no more stacks. What was taken can still be read.
    pub fn stop(&mut self) {
        self.links.clear();
        for links in self.launch_links.values_mut() {
            links.clear();
        }
    }
}

/// What of a process's mappings there is room for. Code that was made at run time goes first: in a
/// process with so many mappings it is most of them, and stacks end there anyway.
fn kept(mappings: &[Mapping]) -> Cow<'_, [Mapping]> {
    if mappings.len() <= MAX_MAPPINGS {
        return Cow::Borrowed(mappings);
    }
    let of_files = mappings.iter().filter(|m| m.file.is_some());
    Cow::Owned(of_files.take(MAX_MAPPINGS).copied().collect())
}

/// An inner map: an array of one value.
fn create(name: &str, value: usize, flags: u32) -> Result<MapHandle> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>()
            as libbpf_rs::libbpf_sys::size_t,
        map_flags: flags,
        ..Default::default()
    };
    MapHandle::create(
        MapType::Array,
        Some(name),
        4,
        u32::try_from(value)?,
        1,
        &opts,
    )
    .context("cannot create a map")
}

/// A timer of the kernel that fires `frequency` times a second while `cpu` is not idle.
fn cpu_clock(cpu: u32, frequency: u32) -> io::Result<OwnedFd> {
    let mut attr = perf::perf_event_attr::default();
    attr.size = u32::try_from(size_of::<perf::perf_event_attr>()).unwrap_or(0);
    attr.type_ = perf::PERF_TYPE_SOFTWARE;
    attr.config = u64::from(perf::PERF_COUNT_SW_CPU_CLOCK);
    attr.set_freq(1);
    attr.__bindgen_anon_1.sample_freq = u64::from(frequency);
    // SAFETY: the attributes are whole and outlive the call.
    let fd = unsafe {
        perf_event_open_sys::perf_event_open(
            &mut attr,
            -1,
            i32::try_from(cpu).unwrap_or(-1),
            -1,
            perf::PERF_FLAG_FD_CLOEXEC.into(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_when_code_made_at_run_time_takes_all_room() {
        let mapping = |i: u64, file| Mapping {
            start: i << 12,
            end: (i + 1) << 12,
            bias: 0,
            file,
        };
        let made: Vec<_> = (0..MAX_MAPPINGS as u64).map(|i| mapping(i, None)).collect();
        assert_eq!(kept(&made).len(), MAX_MAPPINGS);
        let library = mapping(1 << 20, Some(FileId(7)));
        let all = [made, vec![library]].concat();
        assert_eq!(*kept(&all), [library]);
        assert_eq!(kept(&vec![library; MAX_MAPPINGS + 9]).len(), MAX_MAPPINGS);
    }
}
