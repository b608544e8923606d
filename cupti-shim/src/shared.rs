//! The memfd that gdiag reads: made here, written only through [`Shared`].

use std::ffi::CString;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use gdiag_shim_layout::ring::{self, Producer};
use gdiag_shim_layout::{Control, MEMFD_NAME, RING_BYTES, RING_OFFSET};

use crate::sys;

/// Size of the ring for a value of `GDIAG_SHIM_RING_MIB`; one that makes no sense counts as none.
pub(crate) fn ring_bytes(mib: Option<&str>) -> u64 {
    mib.and_then(|mib| mib.parse::<u64>().ok())
        .filter(|mib| mib.is_power_of_two() && *mib <= 1024)
        .map_or(RING_BYTES, |mib| mib << 20)
}

/// Under a limit on the size of files (`ulimit -f`), to make a larger memfd would be a SIGXFSZ,
/// the end of the program: a smaller ring then, and none where not even 1 MiB is allowed.
fn largest_allowed(ring_bytes: u64) -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut allowed = ring_bytes;
    while RING_OFFSET + allowed > limit.rlim_cur {
        allowed /= 2;
        if allowed < 1 << 20 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
    }
    Ok(allowed)
}

/// Whether this process has such memory already, of whatever copy of the library. It is not
/// inherited by a forked child.
pub(crate) fn is_here() -> bool {
    let name = format!("/memfd:{MEMFD_NAME} (deleted)\n");
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    maps.split_inclusive(|byte| *byte == b'\n')
        .any(|line| line.ends_with(name.as_bytes()))
}

/// The shared memory of this process. It is never unmapped: gdiag may come at any time.
#[derive(Debug)]
pub(crate) struct Shared {
    producer: Producer,
}

impl Shared {
    /// Makes the memfd, seals it against shrinking and growing, and maps it. It has no name in
    /// any file system and no descriptor stays open; gdiag finds it in `/proc/PID/maps`.
    pub(crate) fn create(ring_bytes: u64) -> io::Result<Shared> {
        let name = CString::new(MEMFD_NAME)?;
        let ring_bytes = largest_allowed(ring_bytes)?;
        let len = (RING_OFFSET + ring_bytes) as usize;
        let fd = sys::memfd_create(&name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
        let mapped = map(fd, len);
        // SAFETY: opened above and used nowhere else.
        unsafe { libc::close(fd) };
        let base = mapped?;
        // SAFETY: `base` has `len` bytes and stays mapped for the life of the process.
        unsafe { ring::format(base, len, ring_bytes) }.map_err(io::Error::other)?;
        // SAFETY: as above, and this is the only producer.
        let producer = unsafe { Producer::new(base, len) }.map_err(io::Error::other)?;
        producer
            .control()
            .ns_pid
            .store(std::process::id(), Ordering::Relaxed);
        Ok(Shared { producer })
    }

    pub(crate) fn control(&self) -> &Control {
        self.producer.control()
    }

    /// `false`: the ring is full.
    pub(crate) fn push(&mut self, record: &[u8]) -> bool {
        self.producer.push(record)
    }

    /// Gives back the memory of the ring that holds nothing unread. Returns whether that is all of it.
    pub(crate) fn give_back(&mut self) -> bool {
        for (start, bytes) in self.producer.spare_pages(sys::page_bytes()) {
            // SAFETY: whole pages of the ring, which nobody reads before they are written again;
            // where the kernel refuses, they stay as they are.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_REMOVE) };
        }
        self.producer.unread() == 0
    }

    pub(crate) fn note_peak(&self) {
        self.control()
            .ring_peak
            .fetch_max(self.producer.unread(), Ordering::Relaxed);
    }

    /// Gives `state` and the reason for it to gdiag.
    pub(crate) fn set_state(&self, state: u32, reason: &str) {
        self.control().reason.set(reason.as_bytes());
        self.control().state.store(state, Ordering::Release);
    }
}

fn map(fd: i32, len: usize) -> io::Result<NonNull<u8>> {
    let size = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: plain calls on a descriptor that the caller owns.
    unsafe {
        if libc::ftruncate(fd, size) != 0 {
            return Err(io::Error::last_os_error());
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if libc::fcntl(fd, libc::F_ADD_SEALS, seals) != 0 {
            return Err(io::Error::last_os_error());
        }
        let at = libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A forked child is another process; its records would be taken for this one's.
        libc::madvise(at, len, libc::MADV_DONTFORK);
        NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_size_is_a_power_of_two_of_mib_or_the_default() {
        assert_eq!(ring_bytes(None), RING_BYTES);
        assert_eq!(ring_bytes(Some("1")), 1 << 20);
        assert_eq!(ring_bytes(Some("1024")), 1 << 30);
        for bad in ["0", "3", "2048", "-1", "", "1 ", "18446744073709551615"] {
            assert_eq!(ring_bytes(Some(bad)), RING_BYTES, "{bad}");
        }
    }

    /// Check what gdiag relies on: the name in the maps, and that the file cannot shrink.
    #[test]
    fn the_memory_is_found_by_name_and_cannot_shrink() {
        let shared = Shared::create(1 << 20).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = format!("{:x}-", ptr::from_ref(shared.control()).addr());
        let line = maps
            .lines()
            .find(|line| line.trim_start_matches('0').starts_with(&at))
            .unwrap();
        assert!(line.ends_with("/memfd:gdiag-shim (deleted)"), "{line}");
        assert!(line.contains(" rw-s "), "{line}");
        assert_eq!(
            shared.control().ns_pid.load(Ordering::Relaxed),
            std::process::id()
        );

        let range = line.split(' ').next().unwrap();
        let through = format!("/proc/self/map_files/{range}");
        let Ok(file) = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(through)
        else {
            println!("skipped: map_files needs root");
            return;
        };
        assert!(file.set_len(4096).is_err());
        assert!(file.set_len(1 << 30).is_err());
    }
}
