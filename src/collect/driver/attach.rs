//! Puts one program at many places of a file, for one process, from any thread.
//!
//! libbpf does the same, but by an object that belongs to one thread; and to put a probe into a process
//! waits for the lock of its memory, which that process may hold for long.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use perf_event_open_sys::bindings as perf;

/// Where to put probes: offsets in a file, each with what the program is told there.
#[derive(Debug)]
pub(super) struct Places<'a> {
    /// By a path that leads to the file itself, whatever it is called by now.
    pub(super) path: &'a CString,
    pub(super) offsets: &'a [u64],
    pub(super) cookies: &'a [u64],
    /// As gdiag's own PID namespace counts.
    pub(super) proc_pid: u32,
}

/// When a probe acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Entry,
    Return,
    /// At both; the program can tell which.
    Session,
}

/// All places at once (Linux 6.6). The probes are there until the result is closed.
pub(super) fn many(program: &OwnedFd, places: &Places<'_>, when: When) -> io::Result<OwnedFd> {
    let count = places.offsets.len().min(places.cookies.len());
    let mut opts = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        ..Default::default()
    };
    opts.__bindgen_anon_1.uprobe_multi = sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        flags: if when == When::Return {
            sys::BPF_F_UPROBE_MULTI_RETURN
        } else {
            0
        },
        cnt: u32::try_from(count).unwrap_or(u32::MAX),
        path: places.path.as_ptr(),
        offsets: places.offsets.as_ptr(),
        cookies: places.cookies.as_ptr(),
        pid: places.proc_pid,
        ..Default::default()
    };
    let kind = match when {
        When::Session => sys::BPF_TRACE_UPROBE_SESSION,
        When::Entry | When::Return => sys::BPF_TRACE_UPROBE_MULTI,
    };
    // SAFETY: the path and the arrays, which have at least `count` elements, outlive the call.
    own(unsafe { sys::bpf_link_create(program.as_raw_fd(), 0, kind, &opts) })
}

/// Whether [`many`] acts in all threads of a process: at first (before 6.10) it did in the first one alone.
/// Those kernels look for this pid before they find that it is none.
pub(super) fn many_sees_all_threads(program: &OwnedFd) -> bool {
    let nowhere = Places {
        path: &CString::from(c"/"),
        offsets: &[0],
        cookies: &[0],
        proc_pid: u32::MAX,
    };
    many(program, &nowhere, When::Entry).is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL))
}

/// The same for older kernels: a perf event for each place.
pub(super) fn each(
    program: &OwnedFd,
    places: &Places<'_>,
    returns: bool,
) -> io::Result<Vec<OwnedFd>> {
    let kind = read_number("/sys/bus/event_source/devices/uprobe/type", "")?;
    let bit = read_number(
        "/sys/bus/event_source/devices/uprobe/format/retprobe",
        "config:",
    )?;
    let pid = libc::pid_t::try_from(places.proc_pid).unwrap_or(libc::pid_t::MAX);
    let put = |(&offset, &cookie)| {
        let mut attr = perf::perf_event_attr::default();
        attr.size = u32::try_from(size_of::<perf::perf_event_attr>()).unwrap_or(0);
        attr.type_ = kind;
        attr.config = u64::from(returns) << bit.min(63);
        attr.__bindgen_anon_3.config1 = places.path.as_ptr() as u64;
        attr.__bindgen_anon_4.config2 = offset;
        let flags = perf::PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: the attributes are whole, and the path that they name outlives the call.
        let event =
            own(unsafe { perf_event_open_sys::perf_event_open(&mut attr, pid, -1, -1, flags) })?;
        let mut opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            ..Default::default()
        };
        opts.__bindgen_anon_1.perf_event.bpf_cookie = cookie;
        let (program, at) = (program.as_raw_fd(), event.as_raw_fd());
        // SAFETY: the options are whole and outlive the call; the link keeps the event.
        own(unsafe { sys::bpf_link_create(program, at, sys::BPF_PERF_EVENT, &opts) })
    };
    places.offsets.iter().zip(places.cookies).map(put).collect()
}

fn own(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn read_number(path: &str, before: &str) -> io::Result<u32> {
    let text = fs::read_to_string(path)?;
    let number = text.trim().strip_prefix(before).map(str::parse);
    number
        .and_then(Result::ok)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}
