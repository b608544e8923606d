//! Which threads and processes there were, and which of them are shown.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

use crate::analyse::tracks::{Named, Owner, ProcessInfo, Sink, ThreadInfo, Window};
use crate::event::{Pid, Tid};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::{State, Thread, ThreadIdx};
use crate::model::Timeline;
use crate::units::Nanos;

/// Who `tid` was at `at`.
pub(super) fn named(t: &Timeline, tid: Tid, at: Nanos) -> Named<'_> {
    let Some(idx) = t.find(tid) else {
        return Named {
            owner: Owner {
                pid: Pid(tid.0),
                tid,
            },
            comm: "?",
            prio: 0,
        };
    };
    let who = t.who(idx, at);
    Named {
        owner: Owner {
            pid: t.pid(who),
            tid,
        },
        comm: t.comm(who),
        prio: t.identity(who).map_or(0, |i| i.prio),
    }
}

#[derive(Debug, Default)]
struct Process {
    run: u64,
    target: bool,
    threads: Vec<(u64, Owner)>,
}

/// All that had a time in the window.
#[derive(Debug)]
pub(super) struct Cast<'t> {
    pub(super) t: &'t Timeline,
    pub(super) window: Window,
    pids: Vec<Pid>,
}

impl<'t> Cast<'t> {
    pub(super) fn new(t: &'t Timeline, window: Window, pids: &[Pid]) -> Self {
        Cast {
            t,
            window,
            pids: pids.to_vec(),
        }
    }

    pub(super) fn wants(&self, pid: Pid) -> bool {
        self.pids.is_empty() || self.pids.contains(&pid)
    }

    /// Whose `idx` was at `at`.
    pub(super) fn owner(&self, idx: ThreadIdx, at: Nanos) -> Owner {
        Owner {
            pid: self.t.pid(self.t.who(idx, at)),
            tid: self.t.thread(idx).tid,
        }
    }

    /// The processes with their threads, busiest first.
    pub(super) fn introduce(&self, sink: &mut dyn Sink) -> io::Result<()> {
        let t = self.t;
        let mut processes: FxHashMap<Pid, Process> = FxHashMap::default();
        let mut threads: BTreeMap<Owner, ThreadInfo<'_>> = BTreeMap::new();
        for (idx, thread) in t.threads() {
            for (owner, run) in self.running(idx, thread) {
                let info = threads
                    .entry(owner)
                    .or_insert_with(|| self.info(owner, thread));
                let process = processes.entry(owner.pid).or_default();
                process.run = process.run.saturating_add(run);
                process.target |= thread.is_target();
                process.threads.push((run, info.owner));
            }
        }
        let mut order: Vec<(Pid, Process)> = processes.into_iter().collect();
        order.sort_by_key(|(pid, p)| (!p.target, Reverse(p.run), *pid));
        for (rank, (pid, mut process)) in (0..).zip(order) {
            sink.process(&self.process(pid, &process, rank))?;
            process
                .threads
                .sort_by_key(|&(run, owner)| (Reverse(run), owner));
            for (rank, (_, owner)) in (0..).zip(process.threads) {
                if let Some(info) = threads.get_mut(&owner) {
                    info.rank = rank;
                    sink.thread(info)?;
                }
            }
        }
        Ok(())
    }

    /// The processes that `thread` belonged to in turn, and how long it ran for each.
    fn running(&self, idx: ThreadIdx, thread: &Thread) -> BTreeMap<Owner, u64> {
        let mut sums = BTreeMap::new();
        let Window { from, to } = self.window;
        for identity in thread.identities() {
            if identity.from <= to {
                let owner = Owner {
                    pid: identity.pid,
                    tid: thread.tid,
                };
                sums.entry(owner).or_insert(0);
            }
        }
        for s in thread.states(from, to) {
            let run = match s.state {
                State::Running { .. } => s.len().0,
                State::Runnable { .. } | State::Blocked(_) => 0,
                State::Unknown | State::Exited => continue,
            };
            *sums.entry(self.owner(idx, s.start)).or_insert(0) += run;
        }
        sums.entry(self.owner(idx, to)).or_insert(0);
        sums
    }

    fn info(&self, owner: Owner, thread: &Thread) -> ThreadInfo<'t> {
        let of_this = || (thread.identities().iter()).filter(|i| i.pid == owner.pid);
        let last = of_this().rfind(|i| i.from <= self.window.to);
        let first = of_this().next();
        let comm = last.map_or("", |i| self.t.name(i.comm));
        ThreadInfo {
            owner,
            comm: if comm.is_empty() { "?" } else { comm },
            since: first.map_or(self.window.from, |i| i.from),
            is_born: first.is_some_and(|i| i.made_by.is_some() && self.window.has(i.from)),
            rank: 0,
        }
    }

    fn process(&self, pid: Pid, process: &Process, rank: u32) -> ProcessInfo<'t> {
        let t = self.t;
        let leader = t.find(Tid(pid.0)).map(|idx| t.thread(idx));
        let any = process
            .threads
            .first()
            .and_then(|&(_, owner)| t.find(owner.tid));
        let thread = leader.or(any.map(|idx| t.thread(idx)));
        let identities = || thread.into_iter().flat_map(Thread::identities);
        let mut of_this = identities().filter(|i| i.pid == pid);
        let first = of_this.next();
        let last = of_this.next_back().or(first);
        let name = last.map_or("", |i| t.name(i.comm));
        let since = first.map_or(self.window.from, |i| i.from);
        let details = t.process(pid);
        ProcessInfo {
            pid,
            ppid: last.map(|i| i.ppid),
            name: if name.is_empty() { "?" } else { name },
            cmdline: details.map_or("", |p| t.name(p.cmdline)),
            kthread: last.is_some_and(|i| i.kthread),
            since: details.map_or(since, |p| p.ts.max(since)),
            is_born: first.is_some_and(|i| i.made_by.is_some() && self.window.has(i.from)),
            shown: self.wants(pid),
            rank,
        }
    }
}
