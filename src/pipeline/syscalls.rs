//! System calls, live: read, put into order, and told with who made them and on what.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use anyhow::Result;

use crate::analyse::syscalls::{Call as CallSum, Measure, Open, Summary, Thread as ThreadSum};
use crate::collect::bpf::{self, Bpf};
use crate::collect::syscalls::{Plan, Sum, Syscalls};
use crate::collect::{clock, stacks};
use crate::decode::sched::{Batch, Lookup, RawWait};
use crate::decode::stacks::RawSample;
use crate::decode::syscalls::{Number, RawArgs, RawCall};
use crate::event::{CallStackId, Event, Exit, NameId, Pid, Sample, SampleKind, StackId, Task, Tid};
use crate::intern::Names;
use crate::model::syscall::Table;
use crate::units::Nanos;

use super::call_sums;
use super::files::Files;

/// Threads whose names are kept for the sums; then only those that run.
const KNOWN: usize = 1 << 17;

/// A system call, and who made it.
#[derive(Clone, Debug)]
pub struct Call {
    pub pid: Pid,
    pub tid: Tid,
    pub comm: Rc<str>,
    pub number: Number,
    /// `None`: before it was watched.
    pub start: Option<Nanos>,
    pub end: Nanos,
    /// `None`: it has not returned.
    pub result: Option<i64>,
    /// It may still return.
    pub goes_on: bool,
    pub args: Option<Args>,
}

/// The arguments, with what the numbers of open files stood for.
#[derive(Clone, Debug, Default)]
pub struct Args {
    pub raw: Option<Box<RawArgs>>,
    /// By argument and number; what could not be found out is missing.
    pub files: Vec<(usize, i32, Rc<str>)>,
}

/// What has shown up so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub target_threads: u64,
    pub lost: u64,
}

/// The sources, running.
#[derive(Debug)]
pub struct CallSession {
    bpf: Bpf,
    syscalls: Syscalls,
    batch: Rc<RefCell<Batch>>,
    names: Names,
    lookup: CallLookup,
    start: Nanos,
    failures: bool,
    /// Calls that were not seen, which are among those lost.
    unseen: u64,
    pub seen: Seen,
}

impl CallSession {
    pub fn start(targets: &bpf::Plan, calls: &Plan) -> Result<CallSession> {
        let batch = Rc::new(RefCell::new(Batch::default()));
        let sent = Rc::clone(&batch);
        let bpf = Bpf::start(targets, move |bytes| sent.borrow_mut().add(bytes))?;
        let syscalls = Syscalls::start(calls, &bpf)?;
        let mut session = CallSession {
            bpf,
            syscalls,
            batch,
            names: Names::default(),
            lookup: CallLookup::default(),
            start: clock::monotonic(),
            failures: calls.failures,
            unseen: 0,
            seen: Seen::default(),
        };
        // A command that waits to be let go may be over before the next look.
        if calls.from_exec {
            session.batch_until_now()?;
            session.lookup.files.look_ahead();
        }
        Ok(session)
    }

    /// Who is there already.
    fn batch_until_now(&mut self) -> Result<()> {
        self.bpf.read()?;
        self.take_until(Nanos::MAX)?;
        Ok(())
    }

    /// Becomes readable when there is much to read.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.bpf.epoll_fd()
    }

    /// When watching began.
    pub fn started(&self) -> Nanos {
        self.start
    }

    /// Optional programs that this kernel does not have.
    pub fn missing_probes(&self) -> &[String] {
        &self.bpf.missing
    }

    /// Records that made no sense.
    pub fn malformed(&self) -> u64 {
        self.batch.borrow().malformed
    }

    /// Hands out the calls that ended, in order of their ends.
    pub fn step(&mut self) -> Result<Vec<Call>> {
        let limit = self.bpf.read()?;
        self.take_until(limit)
    }

    /// The last calls, and those that go on.
    pub fn finish(&mut self) -> Result<Vec<Call>> {
        self.lookup.forget_open();
        self.syscalls.send_open()?;
        self.bpf.read()?;
        self.take_until(Nanos::MAX)
    }

    /// As [`step`](Self::step); and the sums know which calls go on.
    pub fn look(&mut self) -> Result<Vec<Call>> {
        let mut calls = self.finish()?;
        calls.retain(|call| !call.goes_on);
        Ok(calls)
    }

    fn take_until(&mut self, limit: Nanos) -> Result<Vec<Call>> {
        self.lookup.forget_ended();
        for loss in self.bpf.losses()? {
            self.seen.lost = self.seen.lost.saturating_add(loss.count);
            self.lookup.files.lost();
        }
        let unseen = self.syscalls.shortage().unseen;
        self.seen.lost = self
            .seen
            .lost
            .saturating_add(unseen.saturating_sub(self.unseen));
        self.unseen = unseen;
        let seen = &mut self.seen;
        self.batch.borrow_mut().take_until(
            limit,
            &mut self.names,
            &mut self.lookup,
            &mut |event| match event {
                Event::Task(task) if task.target => seen.target_threads += 1,
                _ => {}
            },
        );
        Ok(std::mem::take(&mut self.lookup.calls))
    }

    /// What was added up so far, with the calls that go on as far as they were read.
    pub fn sums(&self) -> Summary {
        let table = Table::own();
        let mut failures: HashMap<u32, BTreeMap<u16, u64>> = HashMap::new();
        if self.failures {
            for failure in self.syscalls.failures() {
                let by_error = failures.entry(failure.sum).or_default();
                by_error.insert(failure.error, failure.count);
            }
        }
        let mut threads: HashMap<(u32, u64), ThreadSum> = HashMap::new();
        self.syscalls.sums(&mut |index, sum| {
            let thread = threads
                .entry((sum.tid, sum.task_start_ns))
                .or_insert_with(|| self.lookup.thread(sum));
            let by_error = failures.remove(&index).unwrap_or_default();
            thread.calls.push(call_sums::call(sum, by_error, table));
        });
        let mut summary = Summary {
            measure: Measure::Calls,
            start: self.start,
            end: clock::monotonic(),
            threads: threads.into_values().collect(),
            gpu: false,
            notes: call_sums::notes(self.syscalls.shortage()),
        };
        self.lookup.add_unmeasured(&mut summary, table);
        summary.sort();
        summary
    }
}

#[derive(Clone, Debug)]
struct Known {
    start: Nanos,
    comm: Rc<str>,
}

/// What is known of threads and files, and the calls that were decoded.
#[derive(Debug, Default)]
struct CallLookup {
    threads: HashMap<Tid, Known>,
    /// Since the step before: their last calls are still to come.
    ended: Vec<Tid>,
    /// The last names of all threads that ended, by tid and when they began.
    past: HashMap<(Tid, Nanos), Rc<str>>,
    files: Files,
    calls: Vec<Call>,
    /// Calls whose length is not known, by thread and number.
    unmeasured: HashMap<(Pid, Tid, Number), Unmeasured>,
}

#[derive(Clone, Debug, Default)]
struct Unmeasured {
    begun_before: u64,
    open: Option<Open>,
}

impl CallLookup {
    fn comm(&self, tid: Tid) -> Rc<str> {
        let known = self.threads.get(&tid);
        known.map_or_else(|| Rc::from(""), |known| Rc::clone(&known.comm))
    }

    fn forget_ended(&mut self) {
        for tid in self.ended.drain(..) {
            if let Some(known) = self.threads.remove(&tid) {
                if self.past.len() < KNOWN {
                    self.past.insert((tid, known.start), known.comm);
                }
            }
        }
    }

    fn thread(&self, sum: &Sum) -> ThreadSum {
        let tid = Tid(sum.tid);
        let now = self.threads.get(&tid);
        let now = now.filter(|known| known.start.0 == sum.task_start_ns);
        let comm = now.map(|known| &known.comm);
        let comm = comm.or_else(|| self.past.get(&(tid, Nanos(sum.task_start_ns))));
        let thread = call_sums::thread(sum);
        match comm {
            Some(comm) => ThreadSum {
                comm: comm.to_string(),
                ..thread
            },
            None => thread,
        }
    }

    fn note_unmeasured(&mut self, call: &RawCall) {
        let key = (call.pid, call.tid, call.number());
        if call.has_ended() {
            return;
        }
        if call.result().is_none() {
            let since = call.start();
            let lasts = since.map_or(Nanos::ZERO, |since| call.end.saturating_sub(since));
            let entry = self.unmeasured.entry(key).or_default();
            entry.open = Some(Open { since, lasts });
        } else if call.start().is_none() {
            self.unmeasured.entry(key).or_default().begun_before += 1;
        }
    }

    /// They may have returned.
    fn forget_open(&mut self) {
        self.unmeasured.retain(|_, known| {
            known.open = None;
            known.begun_before > 0
        });
    }

    fn add_unmeasured(&self, summary: &mut Summary, table: Table) {
        for (&(pid, tid, number), unmeasured) in &self.unmeasured {
            let name = table.text(number).into_owned();
            let id = Some((pid, tid));
            let at = summary.threads.iter().position(|t| t.id == id);
            let at = at.unwrap_or_else(|| {
                summary.threads.push(ThreadSum {
                    id,
                    comm: self.comm(tid).to_string(),
                    dispatcher: false,
                    calls: Vec::new(),
                });
                summary.threads.len() - 1
            });
            let calls = &mut summary.threads[at].calls;
            let at = calls.iter().position(|c| c.name == name);
            let at = at.unwrap_or_else(|| {
                calls.push(CallSum::new(name));
                calls.len() - 1
            });
            calls[at].begun_before += unmeasured.begun_before;
            let watched = summary.end.saturating_sub(summary.start);
            calls[at].open.extend(unmeasured.open.map(|open| Open {
                lasts: open.since.map_or(watched, |_| open.lasts),
                ..open
            }));
        }
    }
}

impl Lookup for CallLookup {
    fn sys_call(&mut self, raw: &RawCall) {
        self.note_unmeasured(raw);
        let args = raw.args.as_ref().map(|args| self.files.of_args(raw, args));
        self.calls.push(Call {
            pid: raw.pid,
            tid: raw.tid,
            comm: self.comm(raw.tid),
            number: raw.number(),
            start: raw.start(),
            end: raw.end,
            result: raw.result(),
            goes_on: raw.result().is_none() && !raw.has_ended(),
            args,
        });
    }

    fn task(&mut self, task: &Task, comm: &str, proc_tid: u32, proc_pid: u32) {
        let known = Known {
            start: task.start,
            comm: comm.into(),
        };
        self.ended.retain(|&tid| tid != task.tid);
        self.threads.insert(task.tid, known);
        self.files.task(task, proc_tid, proc_pid);
    }

    fn exit(&mut self, exit: &Exit) {
        self.ended.push(exit.tid);
        self.files.exit(exit);
    }

    // Nothing of the following is asked for.

    fn stack(&mut self, _: &[u64], _: &mut Names, _: &mut dyn FnMut(Event)) -> StackId {
        StackId(0)
    }

    fn object(&mut self, _: &RawWait, _: &mut Names, _: &mut dyn FnMut(Event)) -> NameId {
        NameId(0)
    }

    fn sample(&mut self, raw: &RawSample, _: &mut Names, _: &mut dyn FnMut(Event)) -> Sample {
        Sample {
            ts: raw.ts,
            tid: raw.tid,
            kind: SampleKind::Cpu {
                period: Nanos::ZERO,
            },
            kernel: StackId(0),
            user: CallStackId(0),
            gil: None,
            collects: false,
        }
    }

    fn py_code(&mut self, _: &stacks::types::gdiag_pycode) {}
}
