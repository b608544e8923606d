//! Buffers for CUPTI, and the two callbacks that it takes them through.
//!
//! CUPTI calls [`requested`] on the program's threads, inside their CUDA calls, and both
//! callbacks while it holds locks of its own. So they may not lock, allocate, do I/O, call
//! CUDA or panic: they move bits of two words. The work is done by the shim's thread, which
//! touches new buffers before they are handed out, and zeroes used ones, because both would
//! otherwise stall the program.
//!
//! Buffers live in one reservation that is never given back: CUPTI may keep a buffer as
//! long as it likes, even beyond the end of all collecting. The memory of those that it does
//! not keep goes back to the system while nothing is collected.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::cupti::{GetNextRecord, SUCCESS};
use crate::sys;

/// About 4,850 kernel records; smaller ones cost time in the launches, larger ones gain nothing.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;
/// One bit of a word for each.
const MAX_BUFFERS: u32 = 64;
const FIRST_BUFFERS: u32 = 8;
const GROW_BY: u32 = 4;
/// So many can still be had while nothing is collected.
const KEPT: usize = 4;
/// With fewer free buffers than this the pool grows, as long as it may.
const LOW: u32 = 4;

/// Taken when the pool is empty: CUPTI before 12.9 can crash when it gets no buffer.
const DISCARD_BYTES: usize = 64 << 10;
#[repr(align(4096))]
struct Discard(
    #[allow(dead_code, reason = "written by CUPTI")] std::cell::UnsafeCell<[u8; DISCARD_BYTES]>,
);
// SAFETY: Rust code never reads it; it is memory for CUPTI, handed out by address.
unsafe impl Sync for Discard {}
static DISCARD: Discard = Discard(std::cell::UnsafeCell::new([0; DISCARD_BYTES]));

/// Start of the reservation; null until [`reserve`] succeeded.
static BASE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Buffers that may be handed out.
static FREE: AtomicU64 = AtomicU64::new(0);
/// Buffers that came back and were not read yet.
static DONE: AtomicU64 = AtomicU64::new(0);
static COMPLETIONS: AtomicU64 = AtomicU64::new(0);
static VALID: [AtomicUsize; MAX_BUFFERS as usize] =
    [const { AtomicUsize::new(0) }; MAX_BUFFERS as usize];
static ORDER: [AtomicU64; MAX_BUFFERS as usize] =
    [const { AtomicU64::new(0) }; MAX_BUFFERS as usize];

/// Times that the pool was empty.
static EMPTY: AtomicU64 = AtomicU64::new(0);
/// Records that went to the discard buffer.
static DISCARDED: AtomicU64 = AtomicU64::new(0);
/// `cuptiActivityGetNextRecord`, to count discarded records.
static NEXT_RECORD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Futex that wakes the shim's thread early. 1: rung and not yet heard.
static BELL: AtomicU32 = AtomicU32::new(0);

/// Buffers with memory behind them: free, done or at CUPTI. Only the shim's thread changes it (or the
/// one that starts it).
static MADE: AtomicU64 = AtomicU64::new(0);

/// Reserves the address range, once, and makes the first buffers ready.
pub(crate) fn reserve(next_record: GetNextRecord) -> Result<(), String> {
    NEXT_RECORD.store(next_record as *mut c_void, Ordering::Release);
    if BASE.load(Ordering::Acquire).is_null() {
        let base = sys::map_anonymous(MAX_BUFFERS as usize * BUFFER_BYTES)
            .map_err(|e| format!("cannot reserve memory for activity buffers: {e}"))?;
        BASE.store(base.as_ptr(), Ordering::Release);
    }
    // Those that were kept may have no memory behind them.
    let kept = FREE.swap(0, Ordering::Acquire);
    for i in bits(kept) {
        // SAFETY: nobody has this buffer now, and it is all zeroes.
        unsafe { sys::populate(buffer_at(i), BUFFER_BYTES) };
    }
    FREE.fetch_or(kept, Ordering::Release);
    grow(FIRST_BUFFERS.saturating_sub(kept.count_ones()));
    Ok(())
}

/// Makes so many more buffers, as long as there may be more.
fn grow(by: u32) {
    let made = MADE.load(Ordering::Relaxed);
    for i in bits(!made).take(by as usize) {
        // SAFETY: nobody has this buffer, and it is all zeroes: untouched, or given back.
        unsafe { sys::populate(buffer_at(i), BUFFER_BYTES) };
        MADE.fetch_or(1 << i, Ordering::Relaxed);
        FREE.fetch_or(1 << i, Ordering::Release);
    }
}

/// The set bits, lowest first.
fn bits(word: u64) -> impl Iterator<Item = u32> {
    (0..MAX_BUFFERS).filter(move |i| word & (1 << i) != 0)
}

fn buffer_at(i: u32) -> *mut u8 {
    // SAFETY: the reservation has MAX_BUFFERS buffers, and is there before any bit is set.
    unsafe { BASE.load(Ordering::Acquire).add(i as usize * BUFFER_BYTES) }
}

/// More buffers, when few are free. For the shim's thread.
pub(crate) fn grow_if_low() {
    if FREE.load(Ordering::Relaxed).count_ones() < LOW {
        grow(GROW_BY);
    }
}

/// Gives back the memory of the buffers that are free; [`reserve`] puts it behind them again. For the
/// shim's thread, while nothing is collected.
pub(crate) fn give_back() {
    // Taken like this, no program's thread can take them meanwhile.
    let free = FREE.swap(0, Ordering::Acquire);
    for (n, i) in bits(free).enumerate() {
        // SAFETY: the bit said that nobody has the buffer, and that it is all zeroes.
        let given_back = unsafe { sys::give_back(buffer_at(i), BUFFER_BYTES) };
        // A call that began while it was recorded may yet end, and want a buffer for that.
        if n < KEPT || !given_back {
            FREE.fetch_or(1 << i, Ordering::Release);
        } else {
            MADE.fetch_and(!(1 << i), Ordering::Relaxed);
        }
    }
}

/// Throws away what came after the end of a session, whose records nobody wants. For the shim's thread.
pub(crate) fn discard_late() {
    drain(|_, _| {});
}

/// Hands the records of every completed buffer to `read`, oldest buffer first, and makes the
/// buffers free again. For the shim's thread. Returns how many buffers that were.
pub(crate) fn drain(mut read: impl FnMut(*mut u8, usize)) -> usize {
    // Acquire: CUPTI's writes, and ours to VALID and ORDER, were made before the bit was set.
    let mut done = DONE.swap(0, Ordering::Acquire);
    let count = done.count_ones() as usize;
    while done != 0 {
        let Some(i) = (0..MAX_BUFFERS)
            .filter(|i| done & (1 << i) != 0)
            .min_by_key(|i| ORDER[*i as usize].load(Ordering::Relaxed))
        else {
            break;
        };
        done &= !(1 << i);
        let buffer = buffer_at(i);
        read(
            buffer,
            VALID[i as usize].load(Ordering::Relaxed).min(BUFFER_BYTES),
        );
        // CUPTI was told (attribute 5) that buffers come zeroed, so that it need not do it in a launch.
        // SAFETY: it gave the buffer back, and nobody else gets it before the bit below is set.
        unsafe { ptr::write_bytes(buffer, 0, BUFFER_BYTES) };
        FREE.fetch_or(1 << i, Ordering::Release);
    }
    count
}

/// Whether CUPTI has buffers that it has not given back.
pub(crate) fn is_out() -> bool {
    let here = FREE.load(Ordering::Relaxed) | DONE.load(Ordering::Relaxed);
    MADE.load(Ordering::Relaxed) & !here != 0
}

/// Times the pool was empty and records discarded for it, ever.
pub(crate) fn losses() -> (u64, u64) {
    (
        EMPTY.load(Ordering::Relaxed),
        DISCARDED.load(Ordering::Relaxed),
    )
}

/// Sleeps until the bell is rung or the time is over.
pub(crate) fn wait_for_bell(timeout: std::time::Duration) {
    if BELL.load(Ordering::Acquire) == 0 {
        sys::futex_wait(&BELL, 0, Some(timeout), sys::FutexScope::Process);
    }
    BELL.store(0, Ordering::Release);
}

/// Wakes the shim's thread. One system call that cannot block, and none when already rung.
pub(crate) fn ring_bell() {
    if BELL.swap(1, Ordering::AcqRel) == 0 {
        sys::futex_wake(&BELL, sys::FutexScope::Process);
    }
}

fn take() -> Option<u32> {
    let mut free = FREE.load(Ordering::Relaxed);
    while free != 0 {
        let i = free.trailing_zeros();
        // Acquire: the zeroing of the buffer was done before its bit was set.
        match FREE.compare_exchange_weak(
            free,
            free & !(1 << i),
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                if free.count_ones() <= LOW {
                    ring_bell();
                }
                return Some(i);
            }
            Err(now) => free = now,
        }
    }
    None
}

/// `CUpti_BuffersCallbackRequestFunc`
pub(crate) unsafe extern "C" fn requested(
    buffer: *mut *mut u8,
    size: *mut usize,
    max_records: *mut usize,
) {
    let (start, bytes) = catch_unwind(|| match take() {
        Some(i) => (buffer_at(i), BUFFER_BYTES),
        None => {
            EMPTY.fetch_add(1, Ordering::Relaxed);
            ring_bell();
            let start = DISCARD.0.get().cast::<u8>();
            // SAFETY: it is that large. Another thread's CUPTI buffer may be the same memory, and
            // records in there be torn: they are counted and thrown away.
            unsafe { ptr::write_bytes(start, 0, DISCARD_BYTES) };
            (start, DISCARD_BYTES)
        }
    })
    .unwrap_or((DISCARD.0.get().cast::<u8>(), DISCARD_BYTES));
    // SAFETY: CUPTI passes three valid addresses for the answer.
    unsafe {
        *buffer = start;
        *size = bytes;
        *max_records = 0;
    }
}

/// `CUpti_BuffersCallbackCompleteFunc`. Context and stream say nothing since CUDA 6.
pub(crate) unsafe extern "C" fn completed(
    _: *mut c_void,
    _: u32,
    buffer: *mut u8,
    _: usize,
    valid: usize,
) {
    let _ = catch_unwind(|| {
        if buffer == DISCARD.0.get().cast::<u8>() {
            DISCARDED.fetch_add(
                count_records(buffer, valid.min(DISCARD_BYTES)),
                Ordering::Relaxed,
            );
            return;
        }
        let offset = (buffer as usize).wrapping_sub(BASE.load(Ordering::Relaxed) as usize);
        let i = offset / BUFFER_BYTES;
        if i >= MAX_BUFFERS as usize {
            return; // Not one of ours: it was requested through another tool's callback.
        }
        VALID[i].store(valid, Ordering::Relaxed);
        ORDER[i].store(
            COMPLETIONS.fetch_add(1, Ordering::Relaxed),
            Ordering::Relaxed,
        );
        DONE.fetch_or(1 << i, Ordering::Release);
    });
}

fn count_records(buffer: *mut u8, valid: usize) -> u64 {
    let next = NEXT_RECORD.load(Ordering::Acquire);
    if next.is_null() {
        return 0;
    }
    // SAFETY: `reserve` stored a function of exactly this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, GetNextRecord>(next) };
    let mut record = ptr::null_mut();
    let mut count = 0;
    while count < (DISCARD_BYTES / 16) as u64 {
        // SAFETY: the function walks `valid` bytes of the buffer that CUPTI just completed.
        if unsafe { next(buffer, valid, &mut record) } != SUCCESS {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cupti::Status;

    unsafe extern "C" fn no_record(_: *mut u8, _: usize, _: *mut *mut u8) -> Status {
        Status(12)
    }

    fn request() -> (*mut u8, usize) {
        let (mut buffer, mut size, mut max) = (ptr::null_mut(), 0, 1);
        // SAFETY: three valid addresses.
        unsafe { requested(&mut buffer, &mut size, &mut max) };
        assert_eq!(max, 0);
        (buffer, size)
    }

    fn complete(buffer: *mut u8, valid: usize) {
        // SAFETY: the callback only compares the address.
        unsafe { completed(ptr::null_mut(), 0, buffer, BUFFER_BYTES, valid) };
    }

    /// The pool is one for the process, so this is one test.
    #[test]
    fn buffers_go_round_come_back_in_order_and_never_run_out() {
        reserve(no_record).unwrap();
        reserve(no_record).unwrap();
        assert_eq!(FREE.load(Ordering::Relaxed).count_ones(), FIRST_BUFFERS);
        assert!(!is_out());

        let first: Vec<_> = (0..FIRST_BUFFERS).map(|_| request()).collect();
        assert!(first.iter().all(|(_, size)| *size == BUFFER_BYTES));
        assert_eq!(losses(), (0, 0));
        let (discard, size) = request();
        assert_eq!((size, losses().0), (DISCARD_BYTES, 1));
        complete(discard, 100);

        // Back in another order than they were handed out, with something written.
        for (n, (buffer, _)) in first.iter().rev().enumerate() {
            // SAFETY: the buffer is that large and ours.
            unsafe { buffer.add(5).write(0xFF) };
            complete(*buffer, n * 8);
        }
        complete(ptr::null_mut(), 8);
        assert!(!is_out(), "all are back, if not read yet");
        let mut seen = Vec::new();
        assert_eq!(
            drain(|buffer, valid| seen.push((buffer, valid))),
            FIRST_BUFFERS as usize
        );
        let expected: Vec<_> = first
            .iter()
            .rev()
            .enumerate()
            .map(|(n, (b, _))| (*b, n * 8))
            .collect();
        assert_eq!(seen, expected);
        assert_eq!(drain(|_, _| panic!("nothing is there")), 0);
        // SAFETY: still mapped.
        let byte = unsafe { first[0].0.add(5).read() };
        assert_eq!(byte, 0, "zeroed before it is used again");

        // Growing ends at the bound.
        let mut held = Vec::new();
        loop {
            grow_if_low();
            let (buffer, size) = request();
            if size == DISCARD_BYTES {
                break;
            }
            held.push(buffer);
        }
        assert_eq!(held.len(), MAX_BUFFERS as usize);
        assert!(is_out());
        held.sort_unstable();
        held.dedup();
        assert_eq!(held.len(), MAX_BUFFERS as usize, "no buffer twice");

        // Threads that take and give back at once.
        std::thread::scope(|scope| {
            for buffer in held.drain(..) {
                complete(buffer, 0);
            }
            assert_eq!(drain(|_, _| {}), MAX_BUFFERS as usize);
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let (buffer, size) = request();
                        if size == BUFFER_BYTES {
                            // SAFETY: ours until it is completed.
                            let word = unsafe { &*buffer.cast::<AtomicU32>() };
                            assert_eq!(word.fetch_add(1, Ordering::Relaxed), 0, "handed out twice");
                            word.fetch_sub(1, Ordering::Relaxed);
                            complete(buffer, 8);
                        }
                    }
                });
            }
            for _ in 0..200 {
                drain(|_, _| {});
                std::thread::yield_now();
            }
        });
        drain(|_, _| {});
        assert_eq!(FREE.load(Ordering::Relaxed), u64::MAX);

        // Two stay with CUPTI over the end of a session: one for good, one comes back late.
        let (kept, late) = (request().0, request().0);
        // SAFETY: both are that large and ours.
        unsafe {
            kept.add(7).write(0xFF);
            late.add(7).write(0xFF);
        }
        give_back();
        assert_eq!(resident(), 2);
        assert!(is_out());
        let (wanted_later, size) = request();
        assert_eq!(size, BUFFER_BYTES);
        // SAFETY: that large and ours.
        unsafe { wanted_later.add(7).write(0xFF) };
        complete(wanted_later, 8);
        complete(late, 8);
        discard_late();
        give_back();
        assert_eq!(resident(), 1);
        reserve(no_record).unwrap();
        assert_eq!(FREE.load(Ordering::Relaxed).count_ones(), FIRST_BUFFERS);
        assert_eq!(resident(), 1 + FIRST_BUFFERS as usize);
        for _ in 0..FIRST_BUFFERS {
            let (buffer, _) = request();
            assert_ne!(buffer, kept);
            // SAFETY: still mapped.
            assert_eq!(unsafe { buffer.add(7).read() }, 0);
        }
        // SAFETY: still mapped.
        assert_eq!(unsafe { kept.add(7).read() }, 0xFF);
    }

    /// Buffers whose first page is in memory.
    fn resident() -> usize {
        let is_resident = |i| {
            let mut pages = [0u8; BUFFER_BYTES / 4096];
            // SAFETY: a mapped range, and a byte for each of its pages.
            let asked =
                unsafe { libc::mincore(buffer_at(i).cast(), BUFFER_BYTES, pages.as_mut_ptr()) };
            asked == 0 && pages[0] & 1 != 0
        };
        (0..MAX_BUFFERS).filter(|i| is_resident(*i)).count()
    }
}
