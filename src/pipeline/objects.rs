//! What a system call that waited worked on, in words.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::collect::process;
use crate::decode::sched::{FileId, RawWait};
use crate::event::{Define, Event, NameId, Pid, Role, Tid, Wait};
use crate::intern::Names;
use crate::pipeline::endpoints::{Endpoint, Endpoints};

/// What a number or an address stands for is looked up once for what comes in together, no longer: it
/// is soon reused.
const AGE: Duration = Duration::from_millis(50);

/// What is dear to look at is looked at no sooner than after so many times as long as it took.
const REST: u32 = 100;

/// Looking may take so much of each `WINDOW`. Beyond that an older answer does, if it is not older than
/// `OLDEST`; else nothing is said.
const WINDOW: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_millis(10);
const OLDEST: Duration = Duration::from_secs(1);
const DEAR: Duration = Duration::from_millis(1);

/// Objects remembered at most, and names with what was said of them; then all are forgotten.
const OBJECTS: usize = 16_384;
const TOLD: usize = 1 << 16;

/// What an epoll watches at most, as far as it is looked at.
const WATCHED: usize = 16_384;

/// Descriptors of a poll or select that are looked at; of more, nothing is said.
const POLLED: usize = 16;

/// `FD_SETSIZE`.
const SELECTED: u64 = 1024;

/// A thread as /proc numbers it and its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InProc {
    pub tid: u32,
    pub pid: u32,
}

/// Where a system call says what it works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Argument {
    Descriptor(u64),
    Epoll(u64),
    /// The address of an array and its length.
    Poll(u64, u64),
    /// The number of bits in the sets, and the addresses of the two that can be asked for data.
    Select(u64, [u64; 2]),
}

impl Argument {
    fn of(syscall: i64, args: [u64; 3]) -> Option<Argument> {
        let [first, second, third] = args;
        if DESCRIPTOR_CALLS.contains(&syscall) {
            Some(Argument::Descriptor(first))
        } else if EPOLL_CALLS.contains(&syscall) {
            Some(Argument::Epoll(first))
        } else if POLL_CALLS.contains(&syscall) {
            Some(Argument::Poll(first, second))
        } else if SELECT_CALLS.contains(&syscall) {
            Some(Argument::Select(first, [second, third]))
        } else {
            None
        }
    }
}

/// Calls whose first argument is a descriptor and that can wait.
const DESCRIPTOR_CALLS: [i64; 25] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_ioctl,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_flock,
];

const EPOLL_CALLS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
];

const POLL_CALLS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
];

const SELECT_CALLS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    libc::SYS_pselect6,
];

/// Something that was looked at.
#[derive(Clone, Copy, Debug)]
struct Known {
    looked: Instant,
    age: Duration,
    name: NameId,
}

/// How much time looking has taken of late.
#[derive(Debug, Default)]
struct Budget {
    since: Option<Instant>,
    spent: Duration,
}

impl Budget {
    fn allows(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since >= WINDOW) {
            self.since = Some(now);
            self.spent = Duration::ZERO;
        }
        self.spent < MOST
    }

    /// What is dear has limits of its own.
    fn spend(&mut self, took: Duration) {
        if took < DEAR {
            self.spent += took;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Objects {
    budget: Budget,
    known: HashMap<(Tid, Argument, Option<FileId>), Known>,
    endpoints: Endpoints,
    told: HashMap<NameId, (Role, Option<Pid>)>,
    /// Of processes that /proc gives other numbers than the host, the host's.
    pids: HashMap<u32, Pid>,
    /// /proc shows a PID namespace of its own: what is not in `pids` is not known.
    inside: bool,
}

impl Objects {
    /// A process that has to do with the targets.
    pub fn process(&mut self, pid: Pid, proc_pid: u32) {
        if pid.0 != proc_pid {
            self.inside = true;
            self.pids.insert(proc_pid, pid);
        }
        self.endpoints.owners.prefer(proc_pid);
    }

    pub fn forget(&mut self, pid: Pid) {
        let proc_pid = if self.inside {
            let of = |(&proc_pid, &known): (&u32, &Pid)| (known == pid).then_some(proc_pid);
            self.pids.iter().find_map(of)
        } else {
            Some(pid.0)
        };
        if let Some(proc_pid) = proc_pid {
            self.pids.remove(&proc_pid);
            self.endpoints.owners.forget(proc_pid);
        }
    }

    /// See [`Session::forget_ids`](super::Session::forget_ids).
    pub fn forget_ids(&mut self) {
        self.known.clear();
        self.told.clear();
    }

    /// What `wait` was for. If that is a socket, it is also said who is at the other end.
    pub fn of(
        &mut self,
        wait: &RawWait,
        thread: InProc,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> NameId {
        let argument = wait
            .syscall
            .and_then(|syscall| Argument::of(syscall.into(), wait.args));
        let Some(argument) = argument else {
            return NameId(0);
        };
        let looked = Instant::now();
        let key = (wait.tid, argument, wait.file);
        let known = self.known.get(&key).map(|k| (looked - k.looked, *k));
        if let Some((_, known)) = known.filter(|(age, known)| *age < known.age) {
            return known.name;
        }
        if !self.budget.allows(looked) {
            let known = known.filter(|(age, _)| *age < OLDEST);
            return known.map_or(NameId(0), |(_, known)| known.name);
        }
        let endpoint = match argument {
            Argument::Descriptor(fd) => self.descriptor(thread, fd, wait.file),
            Argument::Epoll(fd) => self.epoll(thread, fd),
            Argument::Poll(address, count) => self.poll(thread, address, count),
            Argument::Select(count, sets) => self.select(thread, count, sets),
        };
        let took = looked.elapsed();
        self.budget.spend(took);
        // It was closed since: what it last was is what was waited for.
        let last = known.filter(|(age, _)| endpoint.text.is_empty() && *age < OLDEST);
        if let Some((_, last)) = last {
            return last.name;
        }
        let age = AGE.max(took * REST);
        let name = self.tell(&endpoint, names, sink);
        if self.known.len() >= OBJECTS {
            self.known.clear();
        }
        self.known.insert(key, Known { looked, age, name });
        name
    }

    /// As if so much time had gone by.
    #[cfg(test)]
    fn age_for_tests(&mut self, by: Duration) {
        for known in self.known.values_mut() {
            known.looked -= by;
        }
    }

    /// `file` is what the number stood for in the wait; by now it can be another's.
    fn descriptor(&mut self, thread: InProc, fd: u64, file: Option<FileId>) -> Endpoint {
        let Some(file) = file else {
            return plain(String::new());
        };
        match u32::from(file.mode) & libc::S_IFMT {
            libc::S_IFSOCK => {
                let inode = u32::try_from(file.inode).unwrap_or(0);
                let socket = self.endpoints.socket(thread.pid, inode);
                socket.unwrap_or_else(|| plain(format!("socket:[{}]", file.inode)))
            }
            kind => match process::descriptor(thread.tid, fd, file.inode) {
                Some(path) => plain(path),
                None if kind == libc::S_IFIFO => plain(format!("pipe:[{}]", file.inode)),
                None => plain(String::new()),
            },
        }
    }

    fn epoll(&mut self, thread: InProc, fd: u64) -> Endpoint {
        let inodes = process::watched(thread.tid, fd, WATCHED);
        let set = self.endpoints.set("epoll", thread.pid, &inodes);
        set.unwrap_or_else(|| plain(String::new()))
    }

    fn poll(&mut self, thread: InProc, address: u64, count: u64) -> Endpoint {
        match usize::try_from(count) {
            Ok(0) => plain(Wait::NO_DESCRIPTORS.to_string()),
            Ok(count) if count <= POLLED => {
                let array = process::memory(thread.tid, address, count * POLLFD);
                self.polled(thread, polled(&array, count))
            }
            _ => plain(String::new()),
        }
    }

    fn select(&mut self, thread: InProc, count: u64, sets: [u64; 2]) -> Endpoint {
        if count == 0 {
            return plain(Wait::NO_DESCRIPTORS.to_string());
        }
        if count > SELECTED {
            return plain(String::new());
        }
        // The kernel has them in words.
        let len = usize::try_from(count.div_ceil(64) * 8).unwrap_or(0);
        let read = |&address: &u64| match address {
            0 => Vec::new(),
            _ => process::memory(thread.tid, address, len),
        };
        let sets: Vec<_> = sets.iter().map(read).collect();
        self.polled(thread, selected(&sets, count))
    }

    /// Of descriptors that were in the memory of the thread, where by now other things may be.
    fn polled(&mut self, thread: InProc, fds: Option<Vec<u64>>) -> Endpoint {
        let paths: Vec<_> = fds
            .unwrap_or_default()
            .into_iter()
            .map(|fd| process::open_file(thread.tid, fd))
            .collect();
        if paths.is_empty() || paths.iter().any(String::is_empty) {
            return plain(String::new());
        }
        let inodes: Vec<_> = paths
            .iter()
            .filter_map(|path| process::socket_number(path))
            .collect();
        match paths.first() {
            Some(path) if inodes.is_empty() && paths.len() == 1 => plain(format!("poll of {path}")),
            _ => {
                let set = self.endpoints.set("poll", thread.pid, &inodes);
                set.unwrap_or_else(|| plain(String::new()))
            }
        }
    }

    fn tell(
        &mut self,
        endpoint: &Endpoint,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> NameId {
        let peer = endpoint.peer.and_then(|peer| self.pid(peer));
        let text = &endpoint.text;
        let mut object = match peer {
            Some(peer) if !endpoint.names_peer => {
                names.name(&format!("{text}, to process {peer}"), sink)
            }
            Some(_) | None => names.name(text, sink),
        };
        let Some(role) = endpoint.role else {
            return object;
        };
        if let Some(&(_, Some(other))) = self.told.get(&object) {
            match peer {
                // The addresses are another connection's by now, or another network's.
                Some(peer) if peer != other => {
                    object = names.name(&format!("{text} of process {peer}"), sink);
                }
                _ => return object,
            }
        }
        if self.told.get(&object) != Some(&(role, peer)) {
            if self.told.len() >= TOLD {
                self.told.clear();
            }
            self.told.insert(object, (role, peer));
            sink(Event::Define(Define::Endpoint { object, role, peer }));
        }
        object
    }

    /// The host's number of a process.
    fn pid(&self, proc_pid: u32) -> Option<Pid> {
        if self.inside {
            self.pids.get(&proc_pid).copied()
        } else {
            Some(Pid(proc_pid))
        }
    }
}

/// Something of which no more is known than its name.
fn plain(text: String) -> Endpoint {
    Endpoint {
        text,
        names_peer: true,
        role: None,
        peer: None,
    }
}

/// `struct pollfd`.
const POLLFD: usize = 8;

/// All flags of poll(2).
const POLL_FLAGS: u16 = 0x37ff;

/// The descriptors in an array of `count` for poll(2). `None` when it is none.
fn polled(array: &[u8], count: usize) -> Option<Vec<u64>> {
    if array.len() != count * POLLFD {
        return None;
    }
    let mut fds = Vec::new();
    for entry in array.chunks_exact(POLLFD) {
        let &[f0, f1, f2, f3, e0, e1, r0, r1] = entry else {
            return None;
        };
        let flags = u16::from_ne_bytes([e0, e1]) | u16::from_ne_bytes([r0, r1]);
        if flags & !POLL_FLAGS != 0 {
            return None;
        }
        // A negative one is left out by the kernel too.
        fds.extend(u64::try_from(i32::from_ne_bytes([f0, f1, f2, f3])));
    }
    Some(fds)
}

/// The descriptors below `count` in some sets of select(2). `None` when those are too many, so
/// unlikely to be sets.
fn selected(sets: &[Vec<u8>], count: u64) -> Option<Vec<u64>> {
    let is_in = |set: &Vec<u8>, fd: u64| {
        let byte = usize::try_from(fd / 8).ok().and_then(|at| set.get(at));
        byte.is_some_and(|byte| byte >> (fd % 8) & 1 == 1)
    };
    let fds: Vec<u64> = (0..count)
        .filter(|&fd| sets.iter().any(|set| is_in(set, fd)))
        .collect();
    (fds.len() <= POLLED).then_some(fds)
}

#[cfg(test)]
mod tests;
