//! Probes on the calls of the CUDA driver, for processes of which no CUPTI records can be had.
//!
//! They tell the host's side and no more: which thread was in which call, and for how long. They are
//! put into one process at a time, so that others with the same driver pay nothing, and are gone
//! when gdiag is, however it ends.
//!
//! An object of its own beside [`Bpf`], whose ring buffers it shares, loaded when it is first needed.

mod attach;
mod functions;

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{btf, Btf, Iter, Link, MapCore as _, MapFlags, OpenObject};
use procfs::process::Process;

use crate::collect::bpf::Bpf;
use crate::collect::{clock, maps, shims};
use crate::event::Pid;
use crate::units::Nanos;

use attach::{Places, When};

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
#[allow(
    unsafe_op_in_unsafe_fn,
    missing_debug_implementations,
    unused_imports,
    dead_code
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/driver.skel.rs"));
}
pub(crate) use skel::types;
use skel::{DriverSkel, DriverSkelBuilder};

/// How long the end may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where each function has probes of its own; else there are two links for each file.
const CLOSED_AT_ONCE: usize = 32;
const FEW: usize = 4;

/// How this kernel puts probes into a process, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// One program for begin and return of all functions at once (6.13).
    Session,
    /// All functions at once (6.6).
    Many,
    /// One by one.
    Each,
}

impl Method {
    /// The best one that the kernel knows, by what its BTF lists.
    pub(super) fn of(vmlinux: &Btf<'_>) -> Method {
        let known: Option<btf::types::Enum<'_>> = vmlinux.type_by_name("bpf_attach_type");
        let has = |name: &str| {
            let named = |v: btf::types::EnumMember<'_>| v.name.is_some_and(|n| n == name);
            known.as_ref().is_some_and(|known| known.iter().any(named))
        };
        if has("BPF_TRACE_UPROBE_SESSION") {
            Method::Session
        } else if has("BPF_TRACE_UPROBE_MULTI") {
            Method::Many
        } else {
            Method::Each
        }
    }
}

/// What became of a [`watch`](DriverProbes::watch).
#[derive(Debug)]
pub enum Outcome {
    /// So many functions have a probe.
    Probed(usize),
    /// The process has no driver, or a shim.
    Nothing,
    /// It has one that cannot be probed; the text says why.
    Failed(String),
}

#[derive(Debug)]
pub struct Answer {
    pub pid: Pid,
    /// When the process was looked at: what it has become since is not in the outcome.
    pub at: Nanos,
    pub outcome: Outcome,
}

/// The loaded programs. Dropping it takes all probes out.
pub struct DriverProbes {
    skel: DriverSkel<'static>,
    _exits: Link,
    /// Until the end.
    worker: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    /// The number of the last watch.
    number: u32,
    pub method: Method,
}

impl fmt::Debug for DriverProbes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverProbes")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl DriverProbes {
    /// Loads the programs. Their records come out of the ring buffers of `bpf`.
    pub fn start(bpf: &Bpf) -> Result<DriverProbes> {
        let vmlinux = Btf::from_vmlinux().context("no BTF")?;
        // What tells begin from return in a session may be another function in later kernels.
        let best = Method::of(&vmlinux);
        [Method::Session, Method::Many]
            .into_iter()
            .filter(|&method| method >= best)
            .find_map(|method| DriverProbes::start_with(bpf, method).ok())
            .map_or_else(|| DriverProbes::start_with(bpf, Method::Each), Ok)
    }

    /// As [`start`](Self::start), in one of the ways that the kernel knows.
    pub fn start_with(bpf: &Bpf, method: Method) -> Result<DriverProbes> {
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = DriverSkelBuilder::default().open(storage)?;
        let session = method == Method::Session;
        open.progs.call_session.set_autoload(session);
        open.progs.call_entry.set_autoload(!session);
        open.progs.call_return.set_autoload(!session);
        if method == Method::Each {
            // Has the number 0, which says nothing for a probe.
            use libbpf_rs::ProgramAttachType::CgroupInetIngress as Plain;
            open.progs.call_entry.set_attach_type(Plain);
            open.progs.call_return.set_attach_type(Plain);
        }
        let shared = bpf.shared();
        open.maps.tasks.reuse_fd(shared.tasks)?;
        open.maps.cpus.reuse_fd(shared.cpus)?;
        open.maps.losses.reuse_fd(shared.losses)?;
        open.maps.driver_tasks.reuse_fd(shared.driver_tasks)?;
        open.maps.rings.reuse_fd(shared.rings)?;
        let config = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the BPF object has no rodata")?;
        config.cfg.cpus_per_ring = shared.config.cpus_per_ring;
        config.cfg.wakeup_bytes = shared.config.wakeup_bytes;
        let skel = open.load()?;
        let exits = skel.progs.thread_exits.attach_trace()?;
        let program = |p: &libbpf_rs::Program<'_>| p.as_fd().try_clone_to_owned();
        let programs = match method {
            Method::Session => Programs::Session(program(&skel.progs.call_session)?),
            Method::Many => Programs::Many {
                entry: program(&skel.progs.call_entry)?,
                returns: program(&skel.progs.call_return)?,
            },
            Method::Each => Programs::Each {
                entry: program(&skel.progs.call_entry)?,
                returns: program(&skel.progs.call_return)?,
            },
        };
        if let Programs::Many { entry, .. } = &programs {
            anyhow::ensure!(
                attach::many_sees_all_threads(entry),
                "this kernel sees calls of the first thread alone"
            );
        }
        let (worker, requests) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        std::thread::Builder::new()
            .name("gdiag-driver".to_string())
            .spawn(move || work(&programs, &requests, &answer))
            .context("cannot start a thread")?;
        Ok(DriverProbes {
            skel,
            _exits: exits,
            worker: Some(worker),
            answers,
            number: 0,
            method,
        })
    }

    /// Puts probes into a process, by a thread of its own: what became of it is told by
    /// [`answers`](Self::answers). With `only_without_shim` one with a shim is left alone.
    pub fn watch(&mut self, pid: Pid, proc_pid: u32, only_without_shim: bool) {
        self.number += 1;
        let (key, number) = (pid.0.to_ne_bytes(), self.number.to_ne_bytes());
        // Without it, calls that do not return are not told of.
        let _ = self.skel.maps.watches.update(&key, &number, MapFlags::ANY);
        self.ask(Request::Watch {
            pid,
            proc_pid,
            number: self.number,
            only_without_shim,
        });
    }

    fn ask(&self, request: Request) {
        let _ = self.worker.as_ref().map(|worker| worker.send(request));
    }

    pub fn answers(&self) -> Vec<Answer> {
        self.answers.try_iter().collect()
    }

    /// Takes the probes out of a process. What its threads are in is sent as not returned.
    pub fn stop(&mut self, pid: Pid) {
        self.send_open_calls(pid);
        self.forget(pid);
    }

    /// As [`stop`](Self::stop), of a process that is no more.
    pub fn forget(&self, pid: Pid) {
        let _ = self.skel.maps.watches.delete(&pid.0.to_ne_bytes());
        self.ask(Request::Stop { pid });
    }

    /// The end: sends what all threads are in. What begins later is not seen to its end.
    pub fn finish(&mut self) {
        // Of all: no process has this number.
        self.send_open_calls(Pid(0));
    }

    fn send_open_calls(&mut self, pid: Pid) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.ending_pid = pid.0;
        }
        // What cannot be told is that these calls had begun.
        let iterate = || -> Result<()> {
            let program = &self.skel.progs.send_open_calls;
            let link = program.attach_iter_with_opts(libbpf_rs::IterOpts::None)?;
            Iter::new(&link)?.read_to_end(&mut Vec::new())?;
            Ok(())
        };
        let _ = iterate();
    }
}

impl Drop for DriverProbes {
    fn drop(&mut self) {
        // The thread takes out what is there and ends. When a process keeps it waiting, the kernel does
        // that when gdiag ends.
        self.worker = None;
        let deadline = Instant::now() + PATIENCE;
        let left = || deadline.saturating_duration_since(Instant::now());
        while self.answers.recv_timeout(left()).is_ok() {}
    }
}

#[derive(Debug)]
enum Request {
    Watch {
        pid: Pid,
        proc_pid: u32,
        number: u32,
        only_without_shim: bool,
    },
    Stop {
        pid: Pid,
    },
}

#[derive(Debug)]
enum Programs {
    Session(OwnedFd),
    Many { entry: OwnedFd, returns: OwnedFd },
    Each { entry: OwnedFd, returns: OwnedFd },
}

/// Links, in the order in which they are to be closed.
type Links = Vec<OwnedFd>;

/// Until nobody asks any more; the probes go with it. Nobody waits for it either: a process may keep it
/// waiting for the lock of its memory.
fn work(programs: &Programs, requests: &Receiver<Request>, answer: &Sender<Answer>) {
    let mut watched: HashMap<Pid, Links> = HashMap::new();
    let files = maps::DriverFiles::default();
    for request in requests {
        match request {
            Request::Stop { pid } => close(watched.remove(&pid).unwrap_or_default()),
            Request::Watch {
                pid,
                proc_pid,
                number,
                only_without_shim,
            } => {
                let at = clock::monotonic();
                let outcome = if only_without_shim && !shims::is_missing(proc_pid) {
                    Outcome::Nothing
                } else {
                    match attach(programs, &files, proc_pid, number) {
                        Ok((0, _)) => Outcome::Nothing,
                        Ok((count, links)) => {
                            watched.insert(pid, links);
                            Outcome::Probed(count)
                        }
                        Err(e) => Outcome::Failed(format!("{e:#}")),
                    }
                };
                if answer.send(Answer { pid, at, outcome }).is_err() {
                    break;
                }
            }
        }
    }
    watched.into_values().for_each(close);
}

/// Taking a probe out waits until no CPU is in it; many at once wait for the same.
fn close(mut links: Links) {
    while links.len() > FEW {
        let some = links.len().min(CLOSED_AT_ONCE);
        std::thread::scope(|scope| {
            for link in links.drain(..some) {
                scope.spawn(move || drop(link));
            }
        });
    }
}

/// Returns how many functions got a probe: none, where there is no driver.
fn attach(
    programs: &Programs,
    files: &maps::DriverFiles,
    proc_pid: u32,
    number: u32,
) -> Result<(usize, Links)> {
    let drivers = files
        .of(proc_pid)
        .context("cannot read what it has mapped")?;
    if drivers.is_empty() {
        return Ok((0, Vec::new()));
    }
    if returns_may_kill(proc_pid) {
        anyhow::bail!(
            "it has a seccomp filter, which on this kernel would kill it at the first return from a probed function"
        );
    }
    let mut found = 0;
    let mut links = Vec::new();
    for driver in drivers {
        let functions = functions::find(&driver).context("cannot read its driver")?;
        if functions.is_empty() {
            continue;
        }
        let (offsets, cookies): (Vec<u64>, Vec<u64>) = functions
            .iter()
            .map(|&(offset, cbid)| (offset, u64::from(number) << 32 | u64::from(cbid)))
            .unzip();
        let path = CString::new(format!("/proc/self/fd/{}", driver.file().as_raw_fd()))?;
        let places = Places {
            path: &path,
            offsets: &offsets,
            cookies: &cookies,
            proc_pid,
        };
        let new = put(programs, &places).context("the kernel refuses probes on its driver")?;
        links.extend(new);
        found += functions.len();
    }
    if found == 0 {
        anyhow::bail!("its driver has none of the known functions");
    }
    Ok((found, links))
}

/// A begin that is seen has its return seen, too: returns come first and go last.
fn put(programs: &Programs, places: &Places<'_>) -> io::Result<Links> {
    Ok(match programs {
        Programs::Session(program) => vec![attach::many(program, places, When::Session)?],
        Programs::Many { entry, returns } => {
            let returns = attach::many(returns, places, When::Return)?;
            vec![attach::many(entry, places, When::Entry)?, returns]
        }
        Programs::Each { entry, returns } => {
            let returns = attach::each(returns, places, true)?;
            let mut links = attach::each(entry, places, false)?;
            links.extend(returns);
            links
        }
    })
}

/// From 6.11 on a probed function returns by a system call of its own (on x86-64), which seccomp filters
/// did not let pass before 6.14.
fn returns_may_kill(proc_pid: u32) -> bool {
    const FILTER: u32 = 2;
    let release = nix::sys::utsname::uname().ok();
    let release = release.and_then(|u| version(&u.release().to_string_lossy()));
    let known = cfg!(target_arch = "x86_64")
        && release.is_none_or(|release| ((6, 11)..(6, 14)).contains(&release));
    let status = |pid| Process::new(pid).ok()?.status().ok()?.seccomp;
    let mode = || i32::try_from(proc_pid).ok().and_then(status);
    known && mode().is_none_or(|mode| mode == FILTER)
}

/// `6.12.9-amd64` → (6, 12)
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart_by_their_release() {
        assert_eq!(version("6.12.9-amd64"), Some((6, 12)));
        assert_eq!(version("5.14.0-427.13.1.el9_4.x86_64"), Some((5, 14)));
        assert_eq!(version("6.18-rc1"), Some((6, 18)));
        assert_eq!(version("unknown"), None);
    }
}
