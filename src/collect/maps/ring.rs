//! The kernel's own stream of mapping events: a dummy perf event on each CPU, with its ring.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use nix::unistd::{sysconf, SysconfVar};
use perf_event_open_sys::bindings as sys;

use super::events::{parse, Counts, MapEvent};
use crate::collect::clock;
use crate::collect::process::parse_cpu_list;
use crate::units::Nanos;

/// Of one CPU; a power of two pages. A record is about 120 bytes, so that 1,000 mappings fit.
const RING_BYTES: usize = 128 << 10;

/// More than any record has: a path of 4096 bytes is the longest part of one.
const MOST_RECORD: usize = 4608;

/// Every executable mapping, exec, fork and exit of the machine from now on.
///
/// The kernel gives pids as the PID namespace of gdiag counts. A CPU that comes online later is
/// not watched.
#[derive(Debug)]
pub struct MmapEvents {
    rings: Vec<Ring>,
    counts: Counts,
    /// Read, but later than what all rings are known to be read up to.
    held: Vec<MapEvent>,
    /// Reused by each reading.
    bytes: Vec<u8>,
    build_ids: bool,
}

impl MmapEvents {
    /// An error when the kernel does not allow it: without CAP_PERFMON, in most containers. All but
    /// this works without, see [`super::Options::events`].
    pub fn open() -> io::Result<MmapEvents> {
        let mut build_ids = true;
        let mut rings = Vec::new();
        let mut refused = None;
        for cpu in online_cpus()? {
            let mut opened = event(cpu, build_ids);
            // Linux before 5.12 knows no build ids, and refuses bits that it does not know.
            if build_ids && opened.as_ref().is_err_and(is_unknown) {
                build_ids = false;
                opened = event(cpu, build_ids);
            }
            match opened.and_then(Ring::of) {
                Ok(ring) => rings.push(ring),
                // Gone offline since.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => refused = Some(e),
            }
        }
        match refused {
            // Events of some CPUs only would miss mappings without a word.
            Some(e) => Err(e),
            None if rings.is_empty() => Err(io::ErrorKind::NotFound.into()),
            None => Ok(MmapEvents {
                rings,
                counts: Counts::default(),
                held: Vec::new(),
                bytes: Vec::new(),
                build_ids,
            }),
        }
    }

    /// Whether the kernel sends build ids, by which files of processes that are gone are known.
    pub fn has_build_ids(&self) -> bool {
        self.build_ids
    }

    /// Hands what happened up to now to `each`, in order of time over all CPUs and readings.
    /// Whoever reads other sources first finds all earlier mappings here afterwards.
    /// False when some may be missing: then [`super::AddressSpaces::distrust`] what is known.
    #[must_use]
    pub fn read(&mut self, mut each: impl FnMut(MapEvent)) -> bool {
        let before = self.counts;
        let until = clock::monotonic();
        for ring in &mut self.rings {
            self.bytes.clear();
            ring.take(&mut self.bytes, &mut self.counts);
            let held = &mut self.held;
            parse(&self.bytes, &mut self.counts, |event| held.push(event));
        }
        self.deliver(until, &mut each);
        self.counts == before
    }

    /// A ring that is read earlier than another may lack what the other has: events later than
    /// the start of the reading wait for the next.
    fn deliver(&mut self, until: Nanos, each: &mut impl FnMut(MapEvent)) {
        self.held.sort_by_key(|event| event.ts);
        let ripe = self.held.partition_point(|event| event.ts <= until);
        self.held.drain(..ripe).for_each(each);
    }

    /// Since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

fn is_unknown(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINVAL | libc::E2BIG))
}

fn online_cpus() -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpu_list(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn event(cpu: u32, build_ids: bool) -> io::Result<OwnedFd> {
    let mut attr = sys::perf_event_attr::default();
    attr.type_ = sys::PERF_TYPE_SOFTWARE;
    attr.size = u32::try_from(size_of::<sys::perf_event_attr>()).expect("136 bytes");
    attr.config = u64::from(sys::PERF_COUNT_SW_DUMMY);
    attr.sample_type = u64::from(sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_build_id(u64::from(build_ids));
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.set_exclude_kernel(1);
    let cpu = i32::try_from(cpu).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `attr` is initialised, says its own size and outlives the call.
    let fd = unsafe {
        perf_event_open_sys::perf_event_open(
            &mut attr,
            -1,
            cpu,
            -1,
            u64::from(sys::PERF_FLAG_FD_CLOEXEC),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The ring of one event.
#[derive(Debug)]
struct Ring {
    /// Keeps the event alive.
    _event: File,
    /// A page of the kernel's words, then the data.
    base: NonNull<u8>,
    page: usize,
}

// SAFETY: the mapping belongs to this value alone and may be read on any thread.
unsafe impl Send for Ring {}

impl Ring {
    fn of(event: OwnedFd) -> io::Result<Ring> {
        let page = sysconf(SysconfVar::PAGE_SIZE)?
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(4096);
        let len = NonZeroUsize::new(page + RING_BYTES).expect("not 0");
        let event = File::from(event);
        // SAFETY: a new mapping at an address of the kernel's choice; a perf event cannot shrink.
        let base = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &event,
                0,
            )
        }?;
        Ok(Ring {
            _event: event,
            base: base.cast(),
            page,
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is a field of perf_event_mmap_page: aligned and inside of the first page,
        // which is mapped as long as `self`; kernel and gdiag use it as an atomic word.
        unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Moves all that is in the ring to the end of `out`.
    fn take(&mut self, out: &mut Vec<u8>, counts: &mut Counts) {
        let head_word = self.word(std::mem::offset_of!(sys::perf_event_mmap_page, data_head));
        let tail_word = self.word(std::mem::offset_of!(sys::perf_event_mmap_page, data_tail));
        // Pairs with the kernel's barrier before it moves the head: the records are complete.
        let head = head_word.load(Ordering::Acquire);
        // Only gdiag writes it.
        let tail = tail_word.load(Ordering::Relaxed);
        match pieces(tail, head, RING_BYTES) {
            Some(pieces) => {
                let used = pieces[0].1 + pieces[1].1;
                counts.full += u64::from(RING_BYTES - used < MOST_RECORD);
                for (at, len) in pieces {
                    // SAFETY: `pieces` lie inside of the data, which follows the first page and
                    // is mapped; the kernel writes nothing between tail and head.
                    let piece = unsafe {
                        std::slice::from_raw_parts(self.base.add(self.page + at).as_ptr(), len)
                    };
                    out.extend_from_slice(piece);
                }
            }
            None => counts.broken += 1,
        }
        // The kernel may write there again, but not before the copies are done.
        tail_word.store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length, and no reference to it is left.
        let _ = unsafe { munmap(self.base.cast(), self.page + RING_BYTES) };
    }
}

/// The bytes from `tail` to `head` in a ring of `size`, as position and length: two pieces when
/// they wrap. `None` when that cannot be.
fn pieces(tail: u64, head: u64, size: usize) -> Option<[(usize, usize); 2]> {
    let len = usize::try_from(head.wrapping_sub(tail)).ok()?;
    if len > size {
        return None;
    }
    let at = usize::try_from(tail % size as u64).ok()?;
    let first = len.min(size - at);
    Some([(at, first), (0, len - first)])
}

#[cfg(test)]
mod tests {
    use super::super::events::What;
    use super::*;

    #[test]
    fn what_wraps_is_read_in_two_pieces() {
        assert_eq!(pieces(0, 0, 64), Some([(0, 0), (0, 0)]));
        assert_eq!(pieces(8, 24, 64), Some([(8, 16), (0, 0)]));
        assert_eq!(pieces(56, 72, 64), Some([(56, 8), (0, 8)]));
        assert_eq!(pieces(64, 128, 64), Some([(0, 64), (0, 0)]));
        assert_eq!(pieces(u64::MAX - 7, 8, 64), Some([(56, 8), (0, 8)]));
        assert_eq!(pieces(0, 65, 64), None);
        assert_eq!(pieces(1, 0, 64), None);
    }

    #[test]
    fn events_later_than_the_start_of_a_reading_wait_for_the_next() {
        let exit = |ts| MapEvent {
            ts: Nanos(ts),
            proc_pid: 7,
            what: What::Exit,
        };
        let mut events = MmapEvents {
            rings: Vec::new(),
            counts: Counts::default(),
            held: vec![exit(30), exit(10), exit(20)],
            bytes: Vec::new(),
            build_ids: true,
        };
        let mut seen = Vec::new();
        events.deliver(Nanos(20), &mut |event| seen.push(event.ts.0));
        assert_eq!(seen, [10, 20]);
        events.held.push(exit(25));
        events.deliver(Nanos(40), &mut |event| seen.push(event.ts.0));
        assert_eq!(seen, [10, 20, 25, 30]);
    }
}
