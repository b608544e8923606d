//! Names for what the kernel side only numbers, while the machine still knows them.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};

use gdiag_shim_layout::THREAD_NAME;

use crate::collect::shims::DRIVER_THREAD;
use crate::collect::stacks;
use crate::decode::sched::{Lookup, RawWait};
use crate::decode::stacks::RawSample;
use crate::decode::syscalls::RawCall;
use crate::event::{Event, Exit, NameId, Pid, Sample, SampleKind, StackId, Task, TaskReason, Tid};
use crate::intern::{Names, Stacks};
use crate::pipeline::objects::{InProc, Objects};
use crate::pipeline::stacks::UserStacks;
use crate::symbolize::KernelSymbols;
use crate::units::Nanos;

/// Stacks remembered by their addresses at most; then all are forgotten.
const KNOWN_STACKS: usize = 1 << 16;

/// What the kernel side saw that concerns the shims, in order of time.
#[derive(Clone, Copy, Debug)]
pub(super) enum News {
    /// A thread took the name of a shim's. `proc_pid` is the process in /proc.
    Shim {
        pid: Pid,
        proc_pid: u32,
    },
    /// A process of the target was seen first.
    Target {
        pid: Pid,
        proc_pid: u32,
    },
    /// A thread of the driver's is there: the process uses CUDA.
    Cuda {
        pid: Pid,
        proc_pid: u32,
    },
    Exec {
        pid: Pid,
        proc_pid: u32,
        ts: Nanos,
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
    /// Threads that have not ended and that /proc shows.
    in_proc: HashMap<Tid, InProc>,
    objects: Objects,
    /// Processes whose description is to be read, by host pid and by their pid in /proc.
    pub(super) described: Vec<(Pid, u32)>,
    pub(super) news: Vec<News>,
    /// System calls that returned and are no events: of 32-bit programs, or begun before.
    pub(super) calls_left_out: u64,
    pub(super) user: UserStacks,
    /// Recorded threads by process and their ids inside its PID namespace, where those differ from the host's.
    inner_tids: HashMap<Pid, HashMap<u32, Tid>>,
    /// Recorded threads that have not ended, by process: its first thread may end before others.
    alive: HashMap<Pid, HashSet<Tid>>,
    /// Processes of the target that have not ended.
    targets: HashSet<Pid>,
}

impl Lookup for Resolver {
    fn sys_call(&mut self, raw: &RawCall) {
        self.calls_left_out += u64::from(raw.result().is_some() && raw.event().is_none());
    }

    fn sample(
        &mut self,
        raw: &RawSample,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> Sample {
        let kernel = self.stack(&raw.kernel, names, sink);
        let user = self.user.stack(raw, names, sink);
        // The same number is another thread's on the host.
        let gil = raw
            .gil_holder
            .and_then(|tid| match self.inner_tids.get(&raw.pid) {
                Some(inner) => inner.get(&tid).copied(),
                None => Some(Tid(tid)),
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
            collects: raw.collects,
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

    fn object(&mut self, wait: &RawWait, names: &mut Names, sink: &mut dyn FnMut(Event)) -> NameId {
        match self.in_proc.get(&wait.tid) {
            Some(&thread) => self.objects.of(wait, thread, names, sink),
            None => NameId(0),
        }
    }

    fn task(&mut self, task: &Task, comm: &str, proc_tid: u32, proc_pid: u32) {
        if proc_pid == 0 {
            return;
        }
        let (tid, pid) = (proc_tid, proc_pid);
        self.in_proc.insert(task.tid, InProc { tid, pid });
        if !task.kthread {
            self.objects.process(task.pid, proc_pid);
        }
        let leader = task.tid.0 == task.pid.0;
        let renamed = task.reason == TaskReason::Rename;
        let followed = task.reason == TaskReason::Followed;
        if (leader || followed) && !renamed && !task.kthread {
            self.described.push((task.pid, proc_pid));
            self.user.task(task, proc_pid);
        }
        if task.target || followed {
            self.alive.entry(task.pid).or_default().insert(task.tid);
            if task.ns_tid != task.tid {
                let inner = self.inner_tids.entry(task.pid).or_default();
                inner.insert(task.ns_tid.0, task.tid);
            }
        }
        if !task.target {
            return;
        }
        let pid = task.pid;
        if self.targets.insert(pid) {
            self.news.push(News::Target { pid, proc_pid });
        }
        if task.reason == TaskReason::Exec {
            let ts = task.ts;
            self.news.push(News::Exec { pid, proc_pid, ts });
        }
        if !leader && comm == THREAD_NAME {
            self.news.push(News::Shim { pid, proc_pid });
        }
        if !leader && comm.starts_with(DRIVER_THREAD) {
            self.news.push(News::Cuda { pid, proc_pid });
        }
    }

    fn exit(&mut self, exit: &Exit) {
        self.in_proc.remove(&exit.tid);
        let over = match self.alive.get_mut(&exit.pid) {
            Some(alive) => {
                alive.remove(&exit.tid);
                alive.is_empty()
            }
            None => exit.tid.0 == exit.pid.0,
        };
        if over {
            self.alive.remove(&exit.pid);
            self.targets.remove(&exit.pid);
            self.objects.forget(exit.pid);
            self.user.exit(exit.pid, exit.ts);
            self.inner_tids.remove(&exit.pid);
            self.news.push(News::Ended { pid: exit.pid });
        }
    }
}

impl Resolver {
    /// See [`Session::forget_ids`](super::Session::forget_ids).
    pub(super) fn forget_ids(&mut self) {
        self.stacks.forget();
        self.known_stacks.clear();
        self.objects.forget_ids();
        self.user.forget_ids();
    }

    /// Does now what the first stack would wait for.
    pub(super) fn load(&mut self) {
        self.symbols.load();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TaskState;

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

    fn follows(tid: u32) -> Task {
        Task {
            target: false,
            reason: TaskReason::Followed,
            ..thread(tid)
        }
    }

    fn gil_of(resolver: &mut Resolver, holder: u32) -> Option<Tid> {
        let raw = RawSample {
            ts: Nanos(1),
            tid: Tid(8),
            pid: Pid(7),
            kind: SampleKind::Cpu {
                period: Nanos::ZERO,
            },
            generation: 0,
            kernel: Vec::new(),
            user: Vec::new(),
            cut: None,
            python: Vec::new(),
            python_whole: false,
            gil_holder: Some(holder),
            collects: false,
        };
        let sample = resolver.sample(&raw, &mut Names::default(), &mut |_| {});
        sample.gil
    }

    #[test]
    fn a_process_of_which_only_other_threads_were_followed_ends_with_them() {
        let mut resolver = Resolver::default();
        resolver.task(&follows(8), "a", 8, 7);
        resolver.task(&follows(9), "a", 9, 7);
        assert_eq!(exit(&mut resolver, 8), 0);
        assert_eq!(exit(&mut resolver, 9), 1);
        assert!(resolver.alive.is_empty());
    }

    #[test]
    fn a_number_of_a_namespace_is_nobody_else_on_the_host() {
        let mut resolver = Resolver::default();
        assert_eq!(gil_of(&mut resolver, 2), Some(Tid(2)));
        let inner = Task {
            ns_tid: Tid(1),
            ..follows(8)
        };
        resolver.task(&inner, "a", 8, 7);
        assert_eq!(gil_of(&mut resolver, 1), Some(Tid(8)));
        assert_eq!(gil_of(&mut resolver, 2), None);
        assert_eq!(exit(&mut resolver, 8), 1);
        assert!(resolver.inner_tids.is_empty());
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
