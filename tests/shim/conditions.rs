//! What may be the case in a program that the shim comes into: how it comes, and what is forbidden there.

use std::ffi::{c_int, CString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::thread::{self, JoinHandle};

/// Carries `command` out, if it is one of these.
pub fn meet(command: &str, mut number: impl FnMut() -> u32) -> bool {
    match command {
        "put-in" => put_in(|| {}),
        "put-in-unattended" => drop(load(|| {})),
        "put-in-at-exit" => {
            extern "C" fn at_exit() {
                put_in(|| {});
            }
            // SAFETY: the function stays where it is.
            assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
        }
        "put-in-real-time" => put_in(become_real_time),
        "put-in-refusing" => {
            let call = number();
            put_in(move || refuse(call));
        }
        "put-in-with-mib" => {
            let more = u64::from(number()) << 20;
            put_in(move || limit_memory(more));
        }
        "put-in-without-files" => put_in(limit_files),
        // Where the sandbox allows it.
        "unlimit" => {
            for resource in [libc::RLIMIT_AS, libc::RLIMIT_NOFILE] {
                let _ = set_limit(resource, limit(resource).rlim_max);
            }
        }
        _ => return false,
    }
    true
}

/// What gdiag does to a running program: a new thread loads the library through a descriptor. It does
/// `before` when the library is there, and has done nothing yet.
fn load(before: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let library = fs::read(env!("GDIAG_SHIM_SO")).unwrap();
    // SAFETY: a C string; the descriptor is the file's.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"library".as_ptr(), 0);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.write_all(&library).unwrap();
    drop(library);
    let path = CString::new(format!("/proc/self/fd//{}", file.as_raw_fd())).unwrap();
    let load = move || {
        let _file = file;
        // SAFETY: C strings, and the library's entry has this type.
        let entry: extern "C" fn() -> c_int = unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null());
            let entry = libc::dlsym(library, c"InitializeInjection".as_ptr());
            assert!(!entry.is_null());
            std::mem::transmute(entry)
        };
        before();
        assert_eq!(entry(), 1);
    };
    thread::spawn(load)
}

fn put_in(before: impl FnOnce() + Send + 'static) {
    load(before).join().unwrap();
}

fn become_real_time() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: about this thread, with a structure of ours.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// Makes a system call fail from now on, in all threads, as a sandbox does.
fn refuse(call: u32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let error = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The first word is the number of the call.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, error),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let (mode, all) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: a filter of that length, which the kernel copies.
    let set = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(libc::SYS_seccomp, mode, all, &raw const program)
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// The limit of now, and how far it may be raised.
fn limit(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure of ours.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit
}

fn set_limit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: value,
        ..limit(resource)
    };
    // SAFETY: a structure of ours.
    if unsafe { libc::setrlimit(resource, &limit) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Address space for so many bytes more than are in use.
fn limit_memory(more: u64) {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    set_limit(libc::RLIMIT_AS, pages * 4096 + more).unwrap();
}

/// Leaves no descriptor.
fn limit_files() {
    // Above the limit nothing new is opened; what is open stays so.
    set_limit(libc::RLIMIT_NOFILE, 0).unwrap();
}
