//! The shared memories of the shims: finding them, keeping them, giving them a sign of life.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use gdiag_shim_layout::ring::{Consumer, Corrupt, Scratch};
use gdiag_shim_layout::{state, Control, Text, BEAT_MS, MEMFD_NAME, RING_OFFSET};
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use procfs::process::Process;

use crate::collect::{maps, target};
use crate::event::Pid;

/// Largest shared memory that gdiag maps; a target could claim any size.
const MAX_MAPPING: u64 = (1 << 30) + RING_OFFSET;

/// How often to try to become a shim's collector.
const CLAIMS: u32 = 100;

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

/// Where a shim stands, beside what its records say. It may say anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShimFacts {
    pub reason: String,
    pub cupti_path: String,
    pub cupti_version: u32,
    pub simulated: bool,
}

/// A shim's own page, to be read at any time.
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

    /// Whether CUPTI refused to record this kind of activity.
    pub fn refuses(&self, kind: u32) -> bool {
        self.0.control().refused_kinds.load(Ordering::Relaxed) >> kind & 1 == 1
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
    /// The process has ended.
    Gone,
    /// It has none.
    NoShim,
    /// Another gdiag, by its pid, collects from it.
    Taken(u32),
    /// What is there cannot be used; the text says why.
    Unusable(String),
}

impl Refusal {
    fn of(what: &str, e: &io::Error) -> Refusal {
        match e.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Refusal::Gone,
            _ => Refusal::Unusable(format!("{what}: {e}")),
        }
    }
}

/// One process's shim.
#[derive(Debug)]
pub struct Shim {
    pub pid: Pid,
    /// Readable when the process has ended; its pid may be another's by then.
    process: OwnedFd,
    mapping: Arc<Mapping>,
    consumer: Consumer,
    scratch: Box<Scratch>,
}

/// Where the shim of a process stands, for one who does not collect from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// One of [`state`].
    pub state: u32,
    pub facts: ShimFacts,
    /// `cuDriverGetVersion`; 0: not known.
    pub driver_version: u32,
    /// The gdiag that collects from it, if one does that can be seen from here.
    pub collector: Option<u32>,
}

/// Looks at the shim of a process, and changes nothing.
pub fn look(proc_pid: u32) -> Result<Look, Refusal> {
    let (mapping, _) = map(proc_pid, false)?;
    let control = mapping.control();
    // Relaxed loads and a fence: of memory that may only be read, Rust promises no others.
    let owner = control.collector.load(Ordering::Relaxed);
    let state = control.state.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    let collector = (owner >> 32) as u32;
    Ok(Look {
        state,
        driver_version: control.driver_version.load(Ordering::Relaxed),
        collector: (owner != 0 && collector_id(collector) == owner).then_some(collector),
        facts: Facts(Arc::clone(&mapping)).read(),
    })
}

/// Maps the shared memory of a process's shim.
fn map(proc_pid: u32, writable: bool) -> Result<(Arc<Mapping>, Consumer), Refusal> {
    let path = find(proc_pid)
        .map_err(|e| Refusal::of("cannot read its memory map", &e))?
        .ok_or(Refusal::NoShim)?;
    let file = OpenOptions::new()
        .read(true)
        .write(writable)
        .open(&path)
        .map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => Refusal::Unusable(format!(
                "cannot open its shared memory: {e}; that takes CAP_CHECKPOINT_RESTORE, also for root in a container"
            )),
            _ => Refusal::of("cannot open its shared memory", &e),
        })?;
    // Shrinking it under us would be a SIGBUS; so the seal comes before the size.
    if !sealed(&file) {
        return Err(Refusal::Unusable(
            "its shared memory is not sealed against shrinking".to_string(),
        ));
    }
    let len = file
        .metadata()
        .map_err(|e| Refusal::of("cannot size its shared memory", &e))?
        .len();
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
            if writable {
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE
            } else {
                ProtFlags::PROT_READ
            },
            MapFlags::MAP_SHARED,
            &file,
            0,
        )
    }
    .map_err(|e| Refusal::of("cannot map its shared memory", &e.into()))?;
    let mapping = Arc::new(Mapping {
        base: base.cast(),
        len: len.get(),
    });
    // SAFETY: mapped for as long as `mapping`, which the result keeps; sealed, as checked.
    let consumer = unsafe { Consumer::new(mapping.base, mapping.len) }
        .map_err(|e| Refusal::Unusable(e.to_string()))?;
    Ok((mapping, consumer))
}

impl Shim {
    fn open(pid: Pid, proc_pid: u32) -> Result<Shim, Refusal> {
        let process = target::pidfd_open(proc_pid)
            .map_err(|e| Refusal::of("its process cannot be watched", &e))?;
        let (mapping, consumer) = map(proc_pid, true)?;
        Ok(Shim {
            pid,
            process,
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
        let own = own_id();
        let control = self.mapping.control();
        // Another gdiag may take the place meanwhile, once; a target may change the word for ever.
        for attempt in 0.. {
            if attempt == CLAIMS {
                let why = "it does not let itself be claimed";
                return Err(Refusal::Unusable(why.to_string()));
            }
            let owner = control.collector.load(Ordering::Acquire);
            let pid = (owner >> 32) as u32;
            if owner != 0 && owner != own && collector_id(pid) == owner {
                return Err(Refusal::Taken(pid));
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

    /// Whether another gdiag has not taken it over meanwhile, as it may when this one cannot be
    /// seen in its PID namespace: a ring has one reader.
    pub fn is_ours(&self) -> bool {
        self.mapping.control().collector.load(Ordering::Acquire) == own_id()
    }

    /// Whether its process has ended, all threads of it.
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1))
    }

    /// Hands each record, header included, to `each`. An error means that the target broke its ring.
    pub fn drain(&mut self, each: impl FnMut(u16, &[u8])) -> Result<u64, Corrupt> {
        self.consumer.drain(&mut self.scratch, each)
    }

    /// Asks it to stop and to hand over what it has.
    fn release(&self) {
        let control = self.mapping.control();
        control.wanted.store(0, Ordering::Release);
        wake(control);
    }

    /// Whether it has stopped, so that nothing more will come.
    fn is_idle(&self) -> bool {
        let state = self.mapping.control().state.load(Ordering::Acquire);
        matches!(
            state,
            state::DORMANT | state::FINISHED | state::FAILED | state::BUSY
        ) || self.has_ended()
    }

    /// Leaves it dormant and free for another gdiag, unless it is that one's already.
    fn give_back(&mut self) {
        if self.is_ours() {
            self.release();
            // It keeps the memory of what was not read.
            let _ = self.consumer.drain(&mut self.scratch, |_, _| {});
            let collector = &self.mapping.control().collector;
            let _ = collector.compare_exchange(own_id(), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn sealed(file: &File) -> bool {
    fcntl(file, FcntlArg::F_GET_SEALS)
        .is_ok_and(|seals| SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SHRINK))
}

/// A gdiag, as [`Control::collector`] names it; 0 when no such process runs. By its start time too:
/// the pid of one that was killed may be another's soon. One that has ended does not run, though nobody may
/// ever ask for its status: not every first process of a container does.
fn collector_id(pid: u32) -> u64 {
    let stat = i32::try_from(pid)
        .ok()
        .and_then(|pid| Process::new(pid).ok()?.stat().ok());
    let stat = stat.filter(|stat| !matches!(stat.state, 'Z' | 'X'));
    stat.map_or(0, |stat| {
        u64::from(pid) << 32 | stat.starttime & 0xffff_ffff
    })
}

fn own_id() -> u64 {
    static OWN: OnceLock<u64> = OnceLock::new();
    *OWN.get_or_init(|| collector_id(std::process::id()))
}

/// Path by which the shared memory of a process can be opened, whatever its namespaces are.
fn find(proc_pid: u32) -> io::Result<Option<PathBuf>> {
    let device = memfd_device()?;
    // Read line by line and as bytes: there may be many, and file names are whatever they like.
    let maps = BufReader::new(File::open(format!("/proc/{proc_pid}/maps"))?);
    let mut exiting = true;
    for line in maps.split(b'\n') {
        exiting = false;
        if let Some(range) = shim_range(&line?, &device) {
            return Ok(Some(PathBuf::from(format!(
                "/proc/{proc_pid}/map_files/{range}"
            ))));
        }
    }
    if exiting {
        // Its memory is gone already, itself not yet.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(None)
}

/// Name of a thread that the driver has in each process that uses CUDA, from its first use on; also
/// where the versions differ, they begin so. A process that was forked from one has the driver's
/// code mapped, too, and cannot use it.
pub const DRIVER_THREAD: &str = "cuda-EvtHandlr";

/// Whether a process uses CUDA, and has no shim by which its GPU could be recorded.
pub fn is_missing(proc_pid: u32) -> bool {
    let Ok(device) = memfd_device() else {
        return false;
    };
    let Ok(maps) = File::open(format!("/proc/{proc_pid}/maps")) else {
        return false;
    };
    let mut cuda = false;
    for line in BufReader::new(maps).split(b'\n').map_while(Result::ok) {
        if shim_range(&line, &device).is_some() {
            return false;
        }
        cuda |= maps::is_driver(&line);
    }
    cuda && has_driver_thread(proc_pid)
}

pub(super) fn has_driver_thread(proc_pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{proc_pid}/task")) else {
        return false;
    };
    tasks.flatten().any(|task| {
        fs::read(task.path().join("comm"))
            .is_ok_and(|comm| comm.starts_with(DRIVER_THREAD.as_bytes()))
    })
}

/// The address range of a line of the maps, if it is a shim's memory. A file that only has the name,
/// on a file system that may keep whoever opens it waiting, is on another device.
fn shim_range<'a>(line: &'a [u8], device: &str) -> Option<&'a str> {
    let name = format!("/memfd:{MEMFD_NAME} (deleted)");
    let line = std::str::from_utf8(line.strip_suffix(name.as_bytes())?).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (range, _mode, _offset, dev, _inode) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    (dev == device && fields.next().is_none()).then_some(range)
}

/// The device of memfds, as in the maps: one for the whole kernel.
fn memfd_device() -> io::Result<String> {
    let own = File::from(memfd_create(c"gdiag", MFdFlags::MFD_CLOEXEC)?);
    let dev = own.metadata()?.dev();
    Ok(format!("{:02x}:{:02x}", libc::major(dev), libc::minor(dev)))
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
        let mut shim = Shim::open(pid, proc_pid)?;
        shim.claim()?;
        if let Ok(mut list) = self.beating.lock() {
            list.push(Arc::clone(&shim.mapping));
        }
        self.shims.push(shim);
        let last = self.shims.len() - 1;
        Ok(&mut self.shims[last])
    }

    pub fn of(&mut self, pid: Pid) -> Option<&mut Shim> {
        self.shims.iter_mut().find(|s| s.pid == pid)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Shim> {
        self.shims.iter_mut()
    }

    /// Forgets the shim of a process: it is broken, or its process has gone and all was read.
    pub fn forget(&mut self, pid: Pid) {
        let Some(index) = self.shims.iter().position(|s| s.pid == pid) else {
            return;
        };
        let mut shim = self.shims.swap_remove(index);
        shim.give_back();
        if let Ok(mut list) = self.beating.lock() {
            list.retain(|m| !Arc::ptr_eq(m, &shim.mapping));
        }
    }

    /// Asks all to stop and to hand over what they have.
    pub fn release(&self) {
        for shim in self.shims.iter().filter(|shim| shim.is_ours()) {
            shim.release();
        }
    }

    /// The processes whose shims have not stopped yet.
    pub fn busy(&self) -> Vec<Pid> {
        let busy = self.shims.iter().filter(|shim| !shim.is_idle());
        busy.map(|shim| shim.pid).collect()
    }
}

impl Drop for Shims {
    fn drop(&mut self) {
        for shim in &mut self.shims {
            shim.give_back();
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(heart) = self.heart.take() {
            heart.thread().unpark();
            let _ = heart.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_memfd_of_that_name_is_a_shims_memory() {
        let line = |dev: &str, path: &str| {
            format!("7f0000000000-7f0002001000 rw-s 00000000 {dev} 1042      {path}")
        };
        let range = |line: String| shim_range(line.as_bytes(), "00:01").map(str::to_string);
        let name = "/memfd:gdiag-shim (deleted)";
        assert_eq!(
            range(line("00:01", name)).as_deref(),
            Some("7f0000000000-7f0002001000")
        );
        for other in [
            line("00:2a", name),
            line("00:01", &format!("/mnt{name}")),
            line("00:01", &format!("/a b{name}")),
            line("00:01", "/memfd:gdiag-shim"),
            name.to_string(),
            String::new(),
        ] {
            assert_eq!(range(other.clone()), None, "{other}");
        }
        let mut bytes = b"\xff ".to_vec();
        bytes.extend(line("00:01", name).as_bytes());
        assert_eq!(shim_range(&bytes, "00:01"), None);
    }

    #[test]
    fn the_driver_is_known_by_the_name_of_its_library_at_the_end_of_a_line() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 1042      {path}");
        for path in [
            "/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08",
            "/opt/sim gpu/libcuda.so.1",
            "/usr/lib64/libcuda.so.1 (deleted)",
        ] {
            assert!(maps::is_driver(line(path).as_bytes()), "{path}");
        }
        for path in ["", "[stack]", "/usr/lib/libcudart.so.12", "/libcuda.so.d/x"] {
            assert!(!maps::is_driver(line(path).as_bytes()), "{path}");
        }
        assert!(!is_missing(std::process::id()));
    }

    #[test]
    fn this_process_has_memfds_where_they_are_looked_for() {
        let file = File::from(memfd_create(MEMFD_NAME, MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(4096).unwrap();
        // SAFETY: a new mapping that nobody uses.
        let map = unsafe {
            let len = NonZeroUsize::new(4096).unwrap();
            mmap(
                None,
                len,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
            .unwrap()
        };
        let found = find(std::process::id()).unwrap();
        // SAFETY: mapped above.
        unsafe { munmap(map, 4096).unwrap() };
        assert!(found.is_some_and(|path| path.starts_with("/proc")));
    }

    #[test]
    fn a_collector_is_known_by_its_start_too() {
        let own = own_id();
        assert_eq!((own >> 32) as u32, std::process::id());
        assert_eq!(own, collector_id(std::process::id()));
        assert_eq!(collector_id(u32::MAX), 0);
    }
}
