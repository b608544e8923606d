//! Names for what the kernel side only numbers, while the machine still knows them.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use gdiag_shim_layout::THREAD_NAME;

use crate::collect::{process, stacks};
use crate::decode::sched::{Lookup, RawWait};
use crate::decode::stacks::RawSample;
use crate::event::{Event, Exit, Pid, Sample, SampleKind, StackId, Task, TaskReason, Tid};
use crate::intern::{Names, Stacks};
use crate::pipeline::stacks::UserStacks;
use crate::symbolize::KernelSymbols;

/// A descriptor's path is read again after this: the number may have been reused.
const DESCRIPTOR_AGE: Duration = Duration::from_secs(1);

/// Stacks remembered by their addresses at most; then all are forgotten.
const KNOWN_STACKS: usize = 1 << 16;

/// Descriptors remembered at most; then all are forgotten.
const DESCRIPTORS: usize = 4096;

/// What the kernel side saw that concerns the shims, in order of time.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// A thread took the name of a shim's. `proc_pid` is the process in /proc.
    Shim {
        pid: Pid,
        proc_pid: u32,
    },
    Exec {
        pid: Pid,
    },
    /// The pid may be another's now.
    Ended {
        pid: Pid,
    },
}

/// Names for what the kernel side only numbers, from /proc and the kernel's symbols.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    symbols: KernelSymbols,
    stacks: Stacks,
    /// By the kernel's addresses: most waits repeat one of a few stacks.
    known_stacks: HashMap<Vec<u64>, StackId>,
    /// Thread ids in /proc, where they differ from the host's.
    proc_tids: HashMap<Tid, u32>,
    descriptors: HashMap<(Tid, u64), (Instant, String)>,
    /// Processes whose description is to be read, by host pid and by their pid in /proc.
    pub(super) described: Vec<(Pid, u32)>,
    pub(super) news: Vec<News>,
    pub(super) user: UserStacks,
    /// Threads of targets by process and their ids inside its PID namespace, where those differ from the host's.
    inner_tids: HashMap<(Pid, u32), Tid>,
    /// Threads of targets that have not ended, by process: its first thread may end before others.
    alive: HashMap<Pid, HashSet<Tid>>,
}

impl Lookup for Resolver {
    fn sample(
        &mut self,
        raw: &RawSample,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> Sample {
        let kernel = self.stack(&raw.kernel, names, sink);
        let user = self.user.stack(raw, names, sink);
        let gil = raw.gil_holder.map(|tid| {
            let known = self.inner_tids.get(&(raw.pid, tid));
            known.copied().unwrap_or(Tid(tid))
        });
        Sample {
            ts: raw.ts,
            tid: raw.tid,
            kind: match raw.kind {
                SampleKind::Cpu { .. } => SampleKind::Cpu {
                    period: self.user.period(),
                },
                kind @ (SampleKind::OffCpu { .. }
                | SampleKind::Waker { .. }
                | SampleKind::Launch { .. }) => kind,
            },
            kernel,
            user,
            gil,
        }
    }

    fn py_code(&mut self, code: &stacks::types::gdiag_pycode) {
        self.user.py_code(code);
    }

    fn stack(&mut self, ips: &[u64], names: &mut Names, sink: &mut dyn FnMut(Event)) -> StackId {
        if let Some(&id) = self.known_stacks.get(ips) {
            return id;
        }
        let frames = self.symbols.stack(ips);
        let frames = frames
            .into_iter()
            .map(|frame| names.name(frame, sink))
            .collect();
        let id = self.stacks.stack(frames, sink);
        if self.known_stacks.len() >= KNOWN_STACKS {
            self.known_stacks.clear();
        }
        self.known_stacks.insert(ips.to_vec(), id);
        id
    }

    fn object(&mut self, wait: &RawWait) -> String {
        match wait.syscall.map(i64::from) {
            Some(nr) if FD_CALLS.contains(&nr) => self.descriptor(wait.tid, wait.args[0]),
            _ => String::new(),
        }
    }

    fn task(&mut self, task: &Task, comm: &str, proc_tid: u32, proc_pid: u32) {
        if proc_tid != task.tid.0 {
            self.proc_tids.insert(task.tid, proc_tid);
        }
        if proc_pid == 0 {
            return;
        }
        let leader = task.tid.0 == task.pid.0;
        let renamed = task.reason == TaskReason::Rename;
        let followed = task.reason == TaskReason::Followed;
        if (leader || followed) && !renamed && !task.kthread {
            self.described.push((task.pid, proc_pid));
            self.user.task(task, proc_pid);
        }
        if !task.target {
            return;
        }
        self.alive.entry(task.pid).or_default().insert(task.tid);
        if task.ns_tid != task.tid {
            self.inner_tids.insert((task.pid, task.ns_tid.0), task.tid);
        }
        if task.reason == TaskReason::Exec {
            self.news.push(News::Exec { pid: task.pid });
        }
        if !leader && comm == THREAD_NAME {
            let pid = task.pid;
            self.news.push(News::Shim { pid, proc_pid });
        }
    }

    fn exit(&mut self, exit: &Exit) {
        self.proc_tids.remove(&exit.tid);
        let over = match self.alive.get_mut(&exit.pid) {
            Some(alive) => {
                alive.remove(&exit.tid);
                alive.is_empty()
            }
            None => exit.tid.0 == exit.pid.0,
        };
        if over {
            self.alive.remove(&exit.pid);
            self.user.exit(exit.pid, exit.ts);
            self.inner_tids.retain(|(pid, _), _| *pid != exit.pid);
            self.news.push(News::Ended { pid: exit.pid });
        }
    }
}

/// Calls whose first argument is a descriptor and that can wait.
const FD_CALLS: [i64; 25] = [
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

impl Resolver {
    /// Does now what the first stack would wait for.
    pub(super) fn load(&mut self) {
        self.symbols.load();
    }

    fn descriptor(&mut self, tid: Tid, fd: u64) -> String {
        if let Some((read, path)) = self.descriptors.get(&(tid, fd)) {
            if read.elapsed() < DESCRIPTOR_AGE {
                return path.clone();
            }
        }
        let proc_tid = self.proc_tids.get(&tid).copied().unwrap_or(tid.0);
        let path = process::descriptor(proc_tid, fd);
        if self.descriptors.len() >= DESCRIPTORS {
            self.descriptors.clear();
        }
        self.descriptors
            .insert((tid, fd), (Instant::now(), path.clone()));
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{NameId, TaskState};
    use crate::units::Nanos;

    fn thread(tid: u32) -> Task {
        Task {
            ts: Nanos(1),
            tid: Tid(tid),
            pid: Pid(7),
            ppid: Pid(1),
            comm: NameId(0),
            start: Nanos(1),
            ns_tid: Tid(tid),
            ns_pid: Pid(7),
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target: true,
            kthread: false,
            state: TaskState::Running,
            syscall: None,
        }
    }

    /// How often the process was said to be over by it.
    fn exit(resolver: &mut Resolver, tid: u32) -> usize {
        resolver.exit(&Exit {
            ts: Nanos(2),
            tid: Tid(tid),
            pid: Pid(7),
            code: 0,
        });
        let ended = |news: &News| matches!(news, News::Ended { pid: Pid(7) });
        resolver.news.drain(..).filter(ended).count()
    }

    #[test]
    fn a_process_goes_on_without_its_first_thread() {
        let mut resolver = Resolver::default();
        for tid in [7, 8, 9] {
            resolver.task(&thread(tid), "a", tid, 7);
        }
        assert_eq!(exit(&mut resolver, 7), 0);
        assert_eq!(exit(&mut resolver, 9), 0);
        assert_eq!(exit(&mut resolver, 8), 1);
        // Of another, only the first thread is known.
        assert_eq!(exit(&mut resolver, 9), 0);
        assert_eq!(exit(&mut resolver, 7), 1);
    }
}
