//! The library that gdiag puts into a CUDA process. Its only promise is to do no harm.
//!
//! The driver loads it at `cuInit` because `CUDA_INJECTION64_PATH` names it, or gdiag puts it
//! into a program that runs; either calls [`InitializeInjection`]. It makes the shared memory
//! that gdiag finds, starts one thread, and sleeps until it is wanted. When it is, CUPTI's
//! activity records are copied from CUPTI's buffers into the ring of the shared memory, by
//! that thread.
//!
//! ```text
//!  program's threads ─► CUPTI ─► pool (two callbacks) ─► worker ─► decode ─► output ─► ring ─► gdiag
//! ```
//!
//! What it never does: print, change the environment, hold a lock of the program, call CUDA in
//! a callback, let a panic out, `cuptiFinalize`, or free memory that CUPTI may hold. Whatever
//! fails, the program runs on and the reason is in the shared memory.

mod beat;
mod cupti;
mod decode;
mod environment;
mod exit;
mod launcher;
mod loaded;
mod output;
mod pool;
mod session;
mod shared;
mod sys;
mod watch;
mod worker;

use std::ffi::{c_int, c_void, CString};
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gdiag_shim_layout::{state, THREAD_NAME};

use crate::environment::Environment;
use crate::launcher::Launcher;
use crate::shared::Shared;
use crate::worker::Worker;

/// An exit may take this much longer because of the shim.
const EXIT_LIMIT: Duration = Duration::from_millis(200);
/// CUPTI decodes on our thread, and the program's thread-local storage is part of every stack.
const STACK_BYTES: usize = 1 << 20;

/// The process that has the thread and the shared memory. A forked child has neither.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The futex that a dormant shim sleeps on; null before the shared memory exists.
static WANTED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Called by the driver, once, inside `cuInit`; or by gdiag, in a thread of its own of a program that
/// runs. Always says 1, success: a shim that cannot work
/// must not keep the program from working.
#[no_mangle]
pub extern "C" fn InitializeInjection() -> c_int {
    static CALLED: AtomicBool = AtomicBool::new(false);
    if !CALLED.swap(true, Ordering::AcqRel) {
        let _ = catch_unwind(start);
    }
    1
}

fn start() {
    let environment = Environment::of_library(environment::own_path().as_deref());
    // A second shim would take CUPTI's records away from the first, which the driver loaded or gdiag
    // put here.
    if environment.disabled || shared::is_here() {
        return;
    }
    // The library has a standard library of its own, so this hook is not the program's.
    std::panic::set_hook(Box::new(|_| {}));
    let ring_bytes = shared::ring_bytes(environment.ring_mib.as_deref());
    let Ok(shared) = Shared::create(ring_bytes) else {
        return;
    };
    WANTED.store(
        ptr::from_ref(&shared.control().wanted).cast_mut(),
        Ordering::Release,
    );
    OWNER.store(std::process::id(), Ordering::Relaxed);

    // The thread first: nothing may be turned on that nobody would ever turn off.
    let (hand_over, take) = mpsc::sync_channel::<Worker>(1);
    let signals = block_signals();
    let spawned = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || {
            sys::leave_real_time();
            if let Ok(mut worker) = take.recv() {
                // gdiag takes the new name as the sign that the shared memory is complete.
                set_thread_name();
                guarded(&mut worker, Worker::run);
            }
            exit::done();
            // A thread that ends would give back its stack and run destructors while the program
            // exits; this one just stays.
            loop {
                // SAFETY: sleeps; all signals are blocked.
                unsafe { libc::pause() };
            }
        });
    restore_signals(&signals);
    if let Err(e) = spawned {
        shared.set_state(state::FAILED, &format!("cannot start a thread: {e}"));
        return;
    }
    let mut worker = Worker::new(shared, environment.toolkits);
    register_exit_handler();
    let launcher = environment.launcher.filter(Launcher::is_alive);
    guarded(&mut worker, |worker| match launcher {
        Some(launcher) => worker.start_unasked(launcher, environment.unified_memory),
        None => worker.lie_down(),
    });
    let _ = hand_over.send(worker);
}

/// A panic ends collecting, nothing else.
fn guarded(worker: &mut Worker, work: impl FnOnce(&mut Worker)) {
    if catch_unwind(AssertUnwindSafe(|| work(worker))).is_err() {
        let _ = catch_unwind(AssertUnwindSafe(|| worker.abandon()));
    }
}

fn block_signals() -> MaybeUninit<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are ours; the first is filled before it is used.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    before
}

fn restore_signals(before: &MaybeUninit<libc::sigset_t>) {
    // SAFETY: filled by `block_signals`, which cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
}

fn set_thread_name() {
    if let Ok(name) = CString::new(THREAD_NAME) {
        // SAFETY: a C string, of which the kernel takes 15 bytes.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}

/// Harmless to repeat: only the first to run does anything.
pub(crate) fn register_exit_handler() {
    extern "C" fn at_exit(_: *mut c_void) {
        static RAN: AtomicBool = AtomicBool::new(false);
        // By its id, because a raw fork or clone runs no handler of `pthread_atfork`.
        if RAN.swap(true, Ordering::AcqRel) || OWNER.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        let _ = catch_unwind(|| {
            exit::finish_within(EXIT_LIMIT, || {
                // SAFETY: null, or the word in the shared memory, which is never unmapped.
                if let Some(wanted) = unsafe { WANTED.load(Ordering::Acquire).as_ref() } {
                    sys::futex_wake(wanted, sys::FutexScope::Shared);
                }
            });
        });
    }
    sys::at_exit(at_exit);
}
