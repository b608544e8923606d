//! The last moments of the process: what CUPTI still has is sent, and the exit waits for that, a little.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::{pool, sys};

/// Set by the exit handler, and answered by [`EXIT_DONE`].
static EXITING: AtomicBool = AtomicBool::new(false);
/// Futex. 1: nothing will be written any more.
static EXIT_DONE: AtomicU32 = AtomicU32::new(0);

/// Whether the shim's thread is to finish.
pub(crate) fn is_near() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Nothing will be written any more: lets an exit go on.
pub(crate) fn done() {
    EXIT_DONE.store(1, Ordering::Release);
    sys::futex_wake(&EXIT_DONE, sys::FutexScope::Process);
}

/// Has the shim's thread send what there is, and waits for it, but never longer than this. The
/// thread does it, not the caller, because CUPTI may hang now and an exit may not.
pub(crate) fn finish_within(limit: Duration, wake_dormant: impl Fn()) {
    EXITING.store(true, Ordering::Release);
    let start = sys::monotonic();
    while EXIT_DONE.load(Ordering::Acquire) == 0 {
        let spent = sys::monotonic().saturating_sub(start);
        let Some(left) = limit.checked_sub(Duration::from_nanos(spent)) else {
            return;
        };
        // Again and again: the thread may have been about to sleep the last time.
        pool::ring_bell();
        wake_dormant();
        sys::futex_wait(
            &EXIT_DONE,
            0,
            Some(left.min(Duration::from_millis(5))),
            sys::FutexScope::Process,
        );
    }
}
