//! The few system calls that the shim makes, as safe as they can be.

use std::ffi::{c_int, c_void, CStr};
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Whether the futex word is in private memory or shared with gdiag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FutexScope {
    Process,
    Shared,
}

impl FutexScope {
    fn flag(self) -> i32 {
        match self {
            FutexScope::Process => libc::FUTEX_PRIVATE_FLAG,
            FutexScope::Shared => 0,
        }
    }
}

/// Sleeps while `word` is `expected`, until woken, the time is over, or for no reason.
pub(crate) fn futex_wait(
    word: &AtomicU32,
    expected: u32,
    timeout: Option<Duration>,
    scope: FutexScope,
) {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(t.subsec_nanos() as i32),
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is a live atomic, the timeout is null or a live timespec.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | scope.flag(),
            expected,
            timeout,
        )
    };
}

/// Wakes all that sleep on `word`. Never blocks.
pub(crate) fn futex_wake(word: &AtomicU32, scope: FutexScope) {
    // SAFETY: the word is a live atomic.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | scope.flag(),
            i32::MAX,
        )
    };
}

/// A file in memory. Not by the function of that name, which glibc has since 2.27.
pub(crate) fn memfd_create(name: &CStr, flags: libc::c_uint) -> io::Result<RawFd> {
    // SAFETY: a C string, and plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    RawFd::try_from(fd).map_err(io::Error::other)
}

/// Has `function` called when the process exits. It must stay mapped for good.
///
/// Not by `atexit`, which is code of the glibc of the machine that this is built on.
pub(crate) fn at_exit(function: extern "C" fn(*mut c_void)) {
    extern "C" {
        fn __cxa_atexit(
            function: extern "C" fn(*mut c_void),
            argument: *mut c_void,
            library: *mut c_void,
        ) -> c_int;
    }
    // SAFETY: no argument, and no library whose unloading would call the function earlier.
    unsafe { __cxa_atexit(function, ptr::null_mut(), ptr::null_mut()) };
}

/// A thread inherits its creator's scheduling. This one must not run before the program's threads
/// only because it was made by one that may.
pub(crate) fn leave_real_time() {
    // Besides the policy it may say that children do not inherit it.
    const RESET_ON_FORK: c_int = 0x4000_0000;
    // SAFETY: plain calls about this thread, and a structure of ours.
    unsafe {
        let policy = libc::sched_getscheduler(0) & !RESET_ON_FORK;
        if matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR) {
            let ordinary: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_OTHER, &ordinary);
        }
    }
}

/// Address space for `bytes`, readable and writable, zero, without memory behind it yet.
pub(crate) fn map_anonymous(bytes: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, chosen by the kernel, touches no other memory.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// Puts memory behind fresh pages now, so that nobody faults on them later.
///
/// # Safety
///
/// The range must be mapped writable, be page-aligned, and hold zeroes that nobody uses.
pub(crate) unsafe fn populate(at: *mut u8, bytes: usize) {
    // SAFETY: as promised to us; the call changes no contents.
    if unsafe { libc::madvise(at.cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
        return;
    }
    // Before Linux 5.14: write to each page.
    for offset in (0..bytes).step_by(4096) {
        // SAFETY: inside the range; the zero is already there.
        unsafe { at.add(offset).write_volatile(0) };
    }
}

/// Takes the memory away from behind private pages, which read as zeroes afterwards. `false`:
/// the kernel refuses, and they are as they were.
///
/// # Safety
///
/// The range must be mapped writable and private, be page-aligned, and hold nothing that anybody needs.
pub(crate) unsafe fn give_back(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: as promised to us.
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_DONTNEED) == 0 }
}

pub(crate) fn page_bytes() -> u64 {
    // SAFETY: takes a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// CLOCK_REALTIME in ns.
pub(crate) fn realtime() -> u64 {
    clock(libc::CLOCK_REALTIME)
}

/// CLOCK_MONOTONIC in ns.
pub(crate) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the timespec is ours.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}
