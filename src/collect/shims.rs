//! The shared memories of the shims: finding them, keeping them, giving them a sign of life.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gdiag_shim_layout::ring::{Consumer, Corrupt, Scratch};
use gdiag_shim_layout::{state, Control, Text, BEAT_MS, MEMFD_NAME, RING_OFFSET};
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

use crate::decode::gpu::ShimFacts;
use crate::event::Pid;

/// Largest shared memory that gdiag maps; a target could claim any size.
const MAX_MAPPING: u64 = (1 << 30) + RING_OFFSET;

/// Shared memory of one shim, mapped until the last user is gone. It outlives its process.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to no thread; it is only used through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn control(&self) -> &Control {
        // SAFETY: `Consumer::new` checked that the mapping holds an aligned control block
        // before a `Mapping` is kept, and it stays mapped as long as `self`. All fields that
        // both sides touch are atomics.
        unsafe { self.base.cast::<Control>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and with the last owner gone nobody uses it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

/// What a shim says about itself, beside its records.
#[derive(Clone, Debug)]
pub struct Facts(Arc<Mapping>);

impl Facts {
    /// One of [`state`].
    pub fn state(&self) -> u32 {
        self.0.control().state.load(Ordering::Acquire)
    }

    pub fn read(&self) -> ShimFacts {
        let control = self.0.control();
        ShimFacts {
            reason: text(&control.reason),
            cupti_path: text(&control.cupti_path),
            cupti_version: control.cupti_version.load(Ordering::Relaxed),
            simulated: control.simulated.load(Ordering::Relaxed) == 1,
        }
    }

    /// Records lost so far, in the ring and by CUPTI.
    pub fn losses(&self) -> (u64, u64) {
        let control = self.0.control();
        (
            control.lost_ring.load(Ordering::Relaxed),
            control.lost_cupti.load(Ordering::Relaxed),
        )
    }
}

fn text<const N: usize>(text: &Text<N>) -> String {
    String::from_utf8_lossy(text.get(&mut [0; N])).into_owned()
}

/// Why a process with a shim gives no records.
#[derive(Debug)]
pub enum Refusal {
    /// It has none.
    NoShim,
    /// Another gdiag, by its pid, collects from it.
    Taken(u32),
    /// What is there cannot be used; the text says why.
    Unusable(String),
}

/// One process's shim.
#[derive(Debug)]
pub struct Shim {
    pub pid: Pid,
    /// The pid by which /proc knows it.
    pub proc_pid: u32,
    mapping: Arc<Mapping>,
    consumer: Consumer,
    scratch: Box<Scratch>,
}

impl Shim {
    fn open(pid: Pid, proc_pid: u32) -> Result<Shim, Refusal> {
        let unusable =
            |what: &str, e: &dyn std::fmt::Display| Refusal::Unusable(format!("{what}: {e}"));
        let path = find(proc_pid).ok_or(Refusal::NoShim)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| unusable("cannot open its shared memory", &e))?;
        let len = file
            .metadata()
            .map_err(|e| unusable("cannot size its shared memory", &e))?
            .len();
        if !sealed(&file) {
            // Shrinking it under us would be a SIGBUS.
            return Err(Refusal::Unusable(
                "its shared memory is not sealed against shrinking".to_string(),
            ));
        }
        let len = (RING_OFFSET..=MAX_MAPPING)
            .contains(&len)
            .then(|| usize::try_from(len).ok().and_then(NonZeroUsize::new))
            .flatten()
            .ok_or_else(|| Refusal::Unusable(format!("its shared memory has {len} bytes")))?;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that cannot shrink.
        let base = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
        }
        .map_err(|e| unusable("cannot map its shared memory", &e))?;
        let mapping = Arc::new(Mapping {
            base: base.cast(),
            len: len.get(),
        });
        // SAFETY: mapped for as long as `mapping`, which the result keeps; sealed, as checked.
        let consumer = unsafe { Consumer::new(mapping.base, mapping.len) }
            .map_err(|e| Refusal::Unusable(e.to_string()))?;
        Ok(Shim {
            pid,
            proc_pid,
            mapping,
            consumer,
            scratch: Box::default(),
        })
    }

    pub fn facts(&self) -> Facts {
        Facts(Arc::clone(&self.mapping))
    }

    /// Makes it collect for us.
    fn claim(&mut self) -> Result<(), Refusal> {
        let own = std::process::id();
        let control = self.mapping.control();
        loop {
            let owner = control.collector.load(Ordering::Acquire);
            if owner != 0 && owner != own && PathBuf::from(format!("/proc/{owner}")).exists() {
                return Err(Refusal::Taken(owner));
            }
            if control
                .collector
                .compare_exchange(owner, own, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        let began_by_itself = control.session.load(Ordering::Relaxed) == 0
            && control.wanted.load(Ordering::Relaxed) == 1;
        if !began_by_itself {
            // What an earlier collector left behind is not ours.
            let _ = self.consumer.drain(&mut self.scratch, |_, _| {});
            control.session.fetch_add(1, Ordering::AcqRel);
        }
        control.beat.fetch_add(1, Ordering::Release);
        control.wanted.store(1, Ordering::Release);
        wake(control);
        Ok(())
    }

    /// Hands each record, header included, to `each`. An error means that the target broke its ring.
    pub fn drain(&mut self, each: impl FnMut(u16, &[u8])) -> Result<u64, Corrupt> {
        self.consumer.drain(&mut self.scratch, each)
    }

    /// Asks it to stop and to hand over what it has.
    pub fn release(&self) {
        let control = self.mapping.control();
        control.wanted.store(0, Ordering::Release);
        wake(control);
    }

    /// Whether it has stopped, so that nothing more will come.
    pub fn is_idle(&self) -> bool {
        matches!(
            self.mapping.control().state.load(Ordering::Acquire),
            state::DORMANT | state::FINISHED | state::FAILED | state::BUSY
        )
    }

    fn disown(&self) {
        let own = std::process::id();
        let _ = self.mapping.control().collector.compare_exchange(
            own,
            0,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
}

fn sealed(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK))
}

/// Path by which the shared memory of a process can be opened, whatever its namespaces are.
fn find(proc_pid: u32) -> Option<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{proc_pid}/maps")).ok()?;
    let name = format!("/memfd:{MEMFD_NAME} (deleted)");
    let range = maps
        .lines()
        .find(|line| line.ends_with(&name))?
        .split_whitespace()
        .next()?;
    Some(PathBuf::from(format!("/proc/{proc_pid}/map_files/{range}")))
}

/// Wakes a shim that sleeps on `wanted`.
fn wake(control: &Control) {
    // SAFETY: the futex word is mapped and aligned; waking looks at nothing else.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            control.wanted.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
        );
    }
}

/// All shims that are collected from, with the thread that tells them we are alive.
#[derive(Debug)]
pub struct Shims {
    shims: Vec<Shim>,
    beating: Arc<Mutex<Vec<Arc<Mapping>>>>,
    stop: Arc<AtomicBool>,
    heart: Option<JoinHandle<()>>,
}

impl Shims {
    pub fn start() -> io::Result<Shims> {
        let beating: Arc<Mutex<Vec<Arc<Mapping>>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (list, done) = (Arc::clone(&beating), Arc::clone(&stop));
        // A thread of its own: the reader may be busy for longer than a shim waits.
        let heart = std::thread::Builder::new()
            .name("gdiag-beat".to_string())
            .spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    for mapping in list
                        .lock()
                        .map_or_else(|e| e.into_inner().clone(), |l| l.clone())
                    {
                        mapping.control().beat.fetch_add(1, Ordering::Release);
                    }
                    std::thread::park_timeout(Duration::from_millis(BEAT_MS));
                }
            })?;
        Ok(Shims {
            shims: Vec::new(),
            beating,
            stop,
            heart: Some(heart),
        })
    }

    /// Collects from the shim of a process, if it has one and nobody else does.
    pub fn attach(&mut self, pid: Pid, proc_pid: u32) -> Result<&mut Shim, Refusal> {
        let known = self.shims.iter().position(|s| s.pid == pid);
        let index = match known {
            Some(index) => index,
            None => {
                let mut shim = Shim::open(pid, proc_pid)?;
                shim.claim()?;
                if let Ok(mut list) = self.beating.lock() {
                    list.push(Arc::clone(&shim.mapping));
                }
                self.shims.push(shim);
                self.shims.len() - 1
            }
        };
        Ok(&mut self.shims[index])
    }

    pub fn knows(&self, pid: Pid) -> bool {
        self.shims.iter().any(|s| s.pid == pid)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shim> {
        self.shims.iter_mut()
    }

    pub fn is_empty(&self) -> bool {
        self.shims.is_empty()
    }

    /// Forgets the shim of a process: it is broken, or its process has gone and all was read.
    pub fn forget(&mut self, pid: Pid) {
        let Some(index) = self.shims.iter().position(|s| s.pid == pid) else {
            return;
        };
        let shim = self.shims.swap_remove(index);
        shim.disown();
        if let Ok(mut list) = self.beating.lock() {
            list.retain(|m| !Arc::ptr_eq(m, &shim.mapping));
        }
    }

    /// Stops all shims, and calls `drain` until they have handed over everything, or `patience` is over.
    pub fn finish(&mut self, patience: Duration, mut drain: impl FnMut(&mut Shims)) {
        for shim in &self.shims {
            shim.release();
        }
        let deadline = Instant::now() + patience;
        loop {
            let idle = self.shims.iter().all(Shim::is_idle);
            drain(self);
            if idle || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Shims {
    fn drop(&mut self) {
        for shim in &self.shims {
            shim.release();
            shim.disown();
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(heart) = self.heart.take() {
            heart.thread().unpark();
            let _ = heart.join();
        }
    }
}
