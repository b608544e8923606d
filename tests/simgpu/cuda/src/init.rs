//! `cuInit`: maps libcupti and calls the injected library, each at most once.

use std::ffi::{c_int, c_void, CStr, CString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

use crate::link;
use crate::runtime;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Not,
    /// By this thread, which may call cuInit again from the injected library.
    Now(ThreadId),
    Done,
}

static PROGRESS: Mutex<Progress> = Mutex::new(Progress::Not);
static FINISHED: Condvar = Condvar::new();

/// Other calls are allowed: `cuInit` is done, or this is called by the injected library.
pub fn is_initialised() -> bool {
    match *runtime::lock(&PROGRESS) {
        Progress::Not => false,
        Progress::Now(_) | Progress::Done => true,
    }
}

pub fn initialise() {
    let me = std::thread::current().id();
    let mut progress = runtime::lock(&PROGRESS);
    loop {
        match *progress {
            Progress::Done => return,
            Progress::Now(thread) if thread == me => return,
            Progress::Now(_) => {
                progress = FINISHED
                    .wait(progress)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            Progress::Not => break,
        }
    }
    *progress = Progress::Now(me);
    drop(progress);
    map_cupti();
    inject();
    *runtime::lock(&PROGRESS) = Progress::Done;
    FINISHED.notify_all();
}

/// Maps the libcupti beside this library, so that the injected library finds one, and links with it.
fn map_cupti() {
    let runtime = runtime::get();
    if runtime.config.no_cupti {
        return;
    }
    let Some(path) = own_path() else { return };
    let Ok(path) = CString::new(
        path.with_file_name("libcupti.so.13")
            .into_os_string()
            .into_vec(),
    ) else {
        return;
    };
    // SAFETY: loads the simulated libcupti, whose constructors do nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return;
    }
    // SAFETY: the handle is valid and never closed.
    let entry = unsafe { libc::dlsym(library, link::ENTRY.as_ptr()) };
    if entry.is_null() {
        eprintln!(
            "simulated GPU: {} is not the simulator's",
            path.to_string_lossy()
        );
        return;
    }
    // SAFETY: the symbol is a link::Entry in the simulator's libcupti; version is checked before the rest is used.
    let table = unsafe {
        let entry: link::Entry = std::mem::transmute(entry);
        &*entry()
    };
    if table.version == link::VERSION {
        // Set once: cuInit gets here once.
        let _ = runtime.link.set(table);
    } else {
        eprintln!(
            "simulated GPU: {} is of another build",
            path.to_string_lossy()
        );
    }
}

/// Loads `CUDA_INJECTION64_PATH` and calls its entry. Failures are silent, as in the real driver.
fn inject() {
    let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH") else {
        return;
    };
    let Ok(path) = CString::new(path.as_bytes()) else {
        return;
    };
    if path.is_empty() {
        return;
    }
    // SAFETY: loading and calling this library is what the variable asks for; the entry has this signature.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            return;
        }
        let entry = libc::dlsym(library, c"InitializeInjection".as_ptr());
        if !entry.is_null() {
            let entry: extern "C" fn() -> c_int = std::mem::transmute(entry);
            entry();
        }
    }
}

/// Where this library was loaded from.
pub fn own_path() -> Option<PathBuf> {
    // SAFETY: Dl_info is plain data; dladdr fills it in for an address of this library, and the name outlives the call.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let here = own_path as fn() -> Option<PathBuf> as *const c_void;
        if libc::dladdr(here, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = CStr::from_ptr(info.dli_fname);
        Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_path_buf())
    }
}
