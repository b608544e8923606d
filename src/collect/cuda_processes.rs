//! Finds the processes that use CUDA, as they come and go.
//!
//! The sign is a thread that the driver makes in every process from its first use of CUDA on, or one of gdiag's
//! shim. That the driver is mapped says less: a process that was forked has it, too, and cannot use it.
//!
//! The kernel walks its threads (`bpf/cuda_processes.bpf.c`). With 5,000 processes a look takes 1.1 ms, and it waits for
//! no lock of theirs; to read the maps of all of them in /proc takes 100 ms, and to read only how large they are 45 ms
//! (measured on 6.18).

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::mem::MaybeUninit;

use anyhow::{Context as _, Result};
use gdiag_shim_layout::THREAD_NAME;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Iter, IterOpts, Link, OpenObject};

use crate::collect::shims::DRIVER_THREAD;
use crate::collect::{bpf, wire};
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
    include!(concat!(env!("OUT_DIR"), "/cuda_processes.skel.rs"));
}
pub(crate) use skel::types;
use skel::{CudaProcessesSkel, CudaProcessesSkelBuilder};

type Found = types::gdiag_cuda_process;

/// Threads that are looked at, at most: any program can name its own like the driver's.
const MOST_THREADS: usize = 4096;

/// A process that uses CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaProcess {
    /// As gdiag sees it.
    pub pid: u32,
    /// When its first thread began: a pid may be given again.
    pub born: Nanos,
    /// The name of its first thread, which may be anything.
    pub comm: String,
}

/// What is different from the look before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub came: Vec<CudaProcess>,
    /// They have ended, or became other programs.
    pub gone: Vec<CudaProcess>,
}

/// Those that were there when it looked last. gdiag itself is not among them.
pub struct CudaProcesses {
    link: Link,
    _skel: CudaProcessesSkel<'static>,
    known: BTreeMap<(u32, Nanos), String>,
    full: bool,
}

impl fmt::Debug for CudaProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaProcesses")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl CudaProcesses {
    /// Loads the program. It runs when it is asked, and costs nothing else.
    pub fn start() -> Result<CudaProcesses> {
        // The skeleton borrows this storage for as long as the program lives: for good.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = CudaProcessesSkelBuilder::default()
            .open(storage)
            .map_err(bpf::load_error)?;
        let config = open.maps.rodata_data.as_deref_mut();
        let config = &mut config.context("the BPF object has no rodata")?.cfg;
        config.driver = const { bpf::comm(DRIVER_THREAD) };
        config.shim = const { bpf::comm(THREAD_NAME) };
        let skel = open.load().map_err(bpf::load_error)?;
        let link = skel
            .progs
            .find_cuda
            .attach_iter_with_opts(IterOpts::None)
            .context("cannot walk the tasks of this machine")?;
        Ok(CudaProcesses {
            link,
            _skel: skel,
            known: BTreeMap::new(),
            full: false,
        })
    }

    /// Looks again.
    pub fn look(&mut self) -> Result<Changes> {
        let most = MOST_THREADS * size_of::<Found>();
        let mut threads = Vec::new();
        Iter::new(&self.link)?
            .take(most as u64)
            .read_to_end(&mut threads)
            .context("cannot walk the tasks of this machine")?;
        self.full = threads.len() >= most;
        let now = processes(&threads);
        let changes = Changes {
            came: missing(&now, &self.known),
            gone: missing(&self.known, &now),
        };
        self.known = now;
        Ok(changes)
    }

    /// The last look has seen as many threads as it does at most: there may be more processes.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// All that were there at the last look, by pid.
    pub fn all(&self) -> impl ExactSizeIterator<Item = CudaProcess> + '_ {
        self.known.iter().map(process)
    }
}

fn process((&(pid, born), comm): (&(u32, Nanos), &String)) -> CudaProcess {
    let comm = comm.clone();
    CudaProcess { pid, born, comm }
}

/// What the kernel wrote, each process once.
fn processes(threads: &[u8]) -> BTreeMap<(u32, Nanos), String> {
    let threads = threads.chunks_exact(size_of::<Found>());
    let threads = threads.filter_map(wire::read::<Found>);
    threads
        .map(|found| {
            let comm = found.comm.map(i8::cast_unsigned);
            let name = comm.split(|&b| b == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            ((found.pid, Nanos(found.start_ns)), name)
        })
        .collect()
}

/// Those of `these` that are not in `others`.
fn missing(
    these: &BTreeMap<(u32, Nanos), String>,
    others: &BTreeMap<(u32, Nanos), String>,
) -> Vec<CudaProcess> {
    let missing = these.iter().filter(|(key, _)| !others.contains_key(key));
    missing.map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(pid: u32, start_ns: u64, comm: &str) -> Vec<u8> {
        let found = Found {
            start_ns,
            pid,
            comm: bpf::comm(comm),
            ..Found::default()
        };
        wire::as_bytes(&found).to_vec()
    }

    #[test]
    fn a_process_with_several_such_threads_is_one() {
        let bytes = [thread(7, 1, "a"), thread(8, 2, "b"), thread(7, 1, "a")].concat();
        let found = processes(&bytes);
        let pids: Vec<u32> = found.keys().map(|&(pid, _)| pid).collect();
        assert_eq!(pids, [7, 8]);
        assert!(processes(&bytes[..10]).is_empty());
    }

    #[test]
    fn a_pid_that_was_given_again_went_and_came() {
        let before = processes(&thread(7, 1, "a"));
        let now = processes(&thread(7, 2, "b"));
        assert_eq!(missing(&now, &before)[0].comm, "b");
        assert_eq!(missing(&before, &now)[0].comm, "a");
        assert_eq!(missing(&now, &now), []);
    }

    #[test]
    fn a_name_that_is_no_text_is_shown_as_well_as_can_be() {
        let mut bytes = thread(7, 1, "x");
        let at = bytes.len() - 16;
        bytes[at..].fill(0xff);
        let found = processes(&bytes);
        assert!(found.values().all(|name| name.chars().count() == 16));
    }
}
