//! Who a sleeping thread waited for.
//!
//! Locks, children and the kernel's own waits end the walk: their mechanism is the cause, and
//! the holder is evidence. Waits for data pass through to the thread that delivered
//! it, and take what that thread was doing in the same time; of a thread outside of the
//! recording nothing is known but that it was late.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::partition::{Asleep, Engine, Role, Task};
use crate::analyse::waits::Wait;
use crate::analyse::what::{Piece, What};
use crate::event::{self, Context, NameId, Pid, Signal, Tid};
use crate::model::names::Traits;
use crate::model::syscall::Group;
use crate::model::thread::{State, Stretch, ThreadIdx, Wake, Who};
use crate::model::Timeline;
use crate::units::Nanos;

/// Between two waits of one series a thread runs no longer than this.
const SERIES_SPACING: Nanos = Nanos::from_micros(200);

/// The softirq in which packets are received.
pub(super) const NET_RX: u16 = 3;

/// What a wait comes down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the cause itself.
    Is(Cause, What),
    /// What `by` did meanwhile is, where that is recorded, and `outside` where it is not.
    For { by: Who, outside: Cause },
}

impl Engine<'_> {
    /// Asleep outside of the CUDA calls that explain a sleep.
    pub(super) fn asleep(&self, task: Task, s: &Stretch, asleep: &Asleep, out: &mut Vec<Piece>) {
        match self.verdict(task, s, asleep) {
            Verdict::Is(cause, what) => {
                self.push_stack(task, s.start, s.end, cause, what, asleep.stack, out);
            }
            Verdict::For { by, outside } => self.through(task, s, asleep, by, outside, out),
        }
    }

    pub(super) fn verdict(&self, task: Task, s: &Stretch, asleep: &Asleep) -> Verdict {
        let plain = |cause| Verdict::Is(cause, asleep.what());
        // Too short a wait to have a stack.
        if asleep.wait == Wait::Other && asleep.syscall.is_none() {
            let pid = self.t.pid(self.t.who(task.thread, s.start));
            let moved = self.to_host.get(&pid);
            if moved.is_some_and(|moved| moved.overlaps(s.start, s.end)) {
                return plain(Cause::GpuUnifiedMemory);
            }
        }
        match asleep.wait {
            Wait::Reclaim => plain(Cause::Reclaim),
            Wait::KernelLock => {
                let (cause, what) = self.kernel_lock(task.thread, s, asleep);
                Verdict::Is(cause, what)
            }
            Wait::Driver => plain(Cause::CudaApi),
            Wait::PageFault => plain(Cause::PageFault),
            Wait::ManagedMemory => plain(Cause::GpuUnifiedMemory),
            Wait::DiskRead => plain(Cause::DiskRead),
            Wait::DiskWrite => plain(Cause::DiskWrite),
            Wait::Sleep => plain(Cause::Sleep),
            Wait::Child => plain(Cause::Subprocess),
            Wait::Accept => plain(Cause::NoDemand),
            Wait::Stopped(_) => plain(Cause::Stopped),
            Wait::Futex => self.futex(task, s, asleep),
            Wait::Network => self.received(task, s, asleep),
            Wait::Pipe => match asleep.waker {
                Some(by) => self.waits_for(task, s, asleep, by),
                None => unfinished(task, Cause::Other, asleep),
            },
            Wait::Poll | Wait::Epoll => self.polled(task, s, asleep),
            // Another way to wait for somebody: a message queue, a signal.
            Wait::Other => match asleep.waker.filter(|_| asleep.interruptible) {
                Some(by) if self.t.thread(by.thread).is_followed() => {
                    self.waits_for(task, s, asleep, by)
                }
                Some(_) | None => unfinished(task, Cause::Other, asleep),
            },
        }
    }

    /// Who held a lock of the kernel is evidence, unless it is there to look.
    pub(super) fn kernel_lock(
        &self,
        thread: ThreadIdx,
        s: &Stretch,
        asleep: &Asleep,
    ) -> (Cause, What) {
        let Some(holder) = asleep.waker else {
            return (Cause::KernelLock, asleep.what());
        };
        let t = self.t;
        let released = t.waker_stack(t.thread(thread).tid, s.span.0);
        let reads_maps = released.is_some_and(|(by, sample)| {
            by == holder.thread && t.names().traits(sample.kernel).has(Traits::MAPS_READ)
        });
        let foreign = t.pid(holder) != t.pid(t.who(thread, s.start));
        let cause = if self.is_profiler(holder) || (foreign && reads_maps) {
            Cause::Observer
        } else {
            Cause::KernelLock
        };
        let what = What::Lock {
            holder: Some(holder),
            object: asleep.frame,
        };
        (cause, what)
    }

    /// A wait for `by`, and what its lateness is called when its own time is not recorded.
    pub(super) fn waits_for(&self, task: Task, s: &Stretch, asleep: &Asleep, by: Who) -> Verdict {
        if self.just_started(task.thread, by, s) {
            return Verdict::Is(Cause::Subprocess, asleep.what());
        }
        let outside = if self.is_rank(task.thread, by, s.start) {
            Cause::Peer
        } else {
            match (asleep.wait, self.role(asleep.object)) {
                (_, Some(event::Role::Listening | event::Role::Accepted)) => Cause::NoDemand,
                (_, Some(event::Role::Connected)) | (Wait::Network, None) => Cause::Network,
                // Servers wait in epoll; in poll anybody does.
                (Wait::Epoll, None) => Cause::NoDemand,
                // A queue that a stranger fills holds requests.
                (Wait::Futex | Wait::Pipe, None) if self.is_outside(task.thread, by, s.start) => {
                    Cause::NoDemand
                }
                _ => Cause::Unknown,
            }
        };
        Verdict::For { by, outside }
    }

    fn role(&self, object: NameId) -> Option<event::Role> {
        self.t.names().endpoint(object).map(|e| e.role)
    }

    /// Asleep until somebody connects, or one who did asks for something.
    fn serves(&self, asleep: &Asleep) -> bool {
        match self.role(asleep.object) {
            Some(event::Role::Listening | event::Role::Accepted) => true,
            Some(event::Role::Connected) | None => false,
        }
    }

    /// At a socket.
    fn received(&self, task: Task, s: &Stretch, asleep: &Asleep) -> Verdict {
        match asleep.waker {
            Some(peer) if self.serves(asleep) && self.is_outside(task.thread, peer, s.start) => {
                let (peer, object) = (peer, asleep.object);
                Verdict::Is(Cause::NoDemand, What::From { peer, object })
            }
            Some(peer) => self.waits_for(task, s, asleep, peer),
            None if self.serves(asleep) => Verdict::Is(Cause::NoDemand, asleep.what()),
            None => Verdict::Is(Cause::Network, asleep.what()),
        }
    }

    fn polled(&self, task: Task, s: &Stretch, asleep: &Asleep) -> Verdict {
        let epoll = asleep.wait == Wait::Epoll;
        let group = if epoll { Group::Epoll } else { Group::Poll };
        let role = self.role(asleep.object);
        let wake = self.waker_at_last(task.thread, s, asleep, group);
        if let Some(peer) = wake.and_then(|w| self.ended_by(w, asleep.object)) {
            let peer_asks = self.serves(asleep) && self.is_outside(task.thread, peer, s.start);
            if peer_asks {
                let object = asleep.object;
                return Verdict::Is(Cause::NoDemand, What::From { peer, object });
            }
            return self.waits_for(task, s, asleep, peer);
        }
        let cause = match (role, wake.map(|w| w.context)) {
            (Some(event::Role::Listening | event::Role::Accepted), _) => Cause::NoDemand,
            (Some(event::Role::Connected), Some(Context::SoftIrq(_)) | None) => Cause::Network,
            (Some(event::Role::Connected), Some(Context::Timer)) if !epoll => Cause::Network,
            // Servers wait for requests in epoll; a client that waits for its answer polls one socket.
            (None, Some(Context::SoftIrq(_)) | None) if epoll && !task.is_loader() => {
                Cause::NoDemand
            }
            (None, Some(Context::SoftIrq(_))) => Cause::Network,
            // Nothing came until the time that it had set itself.
            (None, Some(Context::Timer)) if !epoll => Cause::Sleep,
            (_, Some(Context::HardIrq(_) | Context::Timer | Context::Task)) | (None, None) => {
                Cause::Other
            }
        };
        unfinished(task, cause, asleep)
    }

    /// Replaces the wait by what `by` did meanwhile. `outside` is the cause where that is not recorded.
    fn through(
        &self,
        task: Task,
        s: &Stretch,
        asleep: &Asleep,
        by: Who,
        outside: Cause,
        out: &mut Vec<Piece>,
    ) {
        let mut stay = |start: Nanos, end: Nanos, cause, what| {
            self.push_stack(task, start, end, cause, what, asleep.stack, out);
        };
        if task.waits(by.thread) {
            let what = What::Say("threads that seem to wait for each other");
            return stay(s.start, s.end, Cause::Unknown, what);
        }
        let since = self.t.thread(by.thread).followed_since(s.span.1);
        let known = since.unwrap_or(s.end).clamp(s.start, s.end);
        if s.start < known {
            let (peer, object) = (by, asleep.object);
            stay(s.start, known, outside, What::From { peer, object });
        }
        if known == s.end {
            return;
        }
        let Some(helper) = task.helper(by.thread, self.role_of(task, by, s)) else {
            let what = What::Say("at the end of a long chain of threads that wait for each other");
            return stay(known, s.end, Cause::Unknown, what);
        };
        for (thread, start, end) in self.who_was_late(task, by, s.part(known, s.end)) {
            self.explain(helper.with_thread(thread), start, end, out);
        }
    }

    /// `by`, but a thread that was born meanwhile could not be late before. Its process's main thread
    /// could: it had to make it.
    pub(super) fn who_was_late(
        &self,
        task: Task,
        by: Who,
        s: Stretch,
    ) -> impl Iterator<Item = (ThreadIdx, Nanos, Nanos)> {
        let identity = self.t.identity(by);
        let born = identity.map_or(s.start, |id| id.start.clamp(s.start, s.end));
        let main = identity
            .and_then(|id| self.t.find(Tid(id.pid.0)))
            .filter(|&main| !task.waits(main) && self.t.thread(main).is_followed());
        let before = main.unwrap_or(by.thread);
        [(before, s.start, born), (by.thread, born, s.end)]
            .into_iter()
            .filter(|(_, start, end)| start < end)
    }

    /// A thread that launches work itself is judged like the dispatcher.
    pub(super) fn role_of(&self, task: Task, by: Who, s: &Stretch) -> Role {
        if self.t.thread(by.thread).launches > 0 {
            return Role::Dispatcher;
        }
        let waiter = self.t.who(task.thread, s.start);
        let same_process = self.t.pid(by) == self.t.pid(waiter);
        let own = || same_process && (task.is_loader() || self.works_ahead(task.thread, by, s));
        Role::Helper {
            loader: own()
                || self.is_loader(task.thread, by, s)
                || self.waits_for_loader(task.thread, by, s),
        }
    }

    /// Who ended the wait. A wait that timed out and was taken up again at once ends with the
    /// last of the series.
    pub(super) fn waker_at_last(
        &self,
        thread: ThreadIdx,
        s: &Stretch,
        asleep: &Asleep,
        group: Group,
    ) -> Option<Wake> {
        const LONGEST_SERIES: usize = 64;
        let ended = |w: &Wake| w.context != Context::Timer;
        if let Some(wake) = asleep.wake.filter(ended) {
            return Some(wake);
        }
        let t = self.t;
        let mut between = Nanos::ZERO;
        for next in t
            .thread(thread)
            .states(s.span.1, Nanos::MAX)
            .take(LONGEST_SERIES)
        {
            match next.state {
                State::Running { .. } | State::Runnable { .. } => {
                    between = Nanos(between.0.saturating_add(next.len().0));
                    if between > SERIES_SPACING {
                        break;
                    }
                }
                State::Blocked(sleep) => {
                    let this = sleep.syscall.map(|nr| t.syscalls().group(nr));
                    if this != Some(group) {
                        break;
                    }
                    match t.thread(thread).wake_of(&next) {
                        Some(wake) if ended(&wake) => return Some(wake),
                        Some(_) => between = Nanos::ZERO,
                        None => break,
                    }
                }
                State::Unknown | State::Exited => break,
            }
        }
        asleep.wake
    }

    /// The thread that ended a wait. A packet of a peer on this machine comes in an interrupt, on top of the
    /// thread that sent it.
    pub(super) fn ended_by(&self, wake: Wake, object: NameId) -> Option<Who> {
        let t = self.t;
        let Context::SoftIrq(vector) = wake.context else {
            return task_waker(t, wake);
        };
        let endpoint = t.names().endpoint(object)?;
        let current = t.find(wake.waker).map(|thread| t.who(thread, wake.at));
        let Some(peer) = endpoint.peer else {
            // Packets come through the loopback device from nobody else.
            let local = vector == NET_RX && is_loopback(t.name(object));
            let sends = |w: &Who| t.identity(*w).is_some_and(|id| !id.kthread);
            return current.filter(|w| local && wake.waker != Tid(0) && sends(w));
        };
        // Where it is not the first one, there are others that were not seen.
        let is_first = |thread: &ThreadIdx| t.thread(*thread).tid.0 == peer.0;
        let only = || {
            let one = (*self.single.get(&peer)?).filter(is_first)?;
            Some(t.who(one, wake.at))
        };
        current.filter(|&w| t.pid(w) == peer).or_else(only)
    }

    /// Neither recorded as a part of the job, nor related to the waiting thread's process.
    pub(super) fn is_outside(&self, waiter: ThreadIdx, other: Who, at: Nanos) -> bool {
        let t = self.t;
        let waiter = t.who(waiter, at);
        let related = t.pid(waiter) == t.pid(other)
            || descends_from(t, other, t.pid(waiter))
            || descends_from(t, waiter, t.pid(other));
        let target = || t.identity(other).is_some_and(|id| id.target);
        !related && (!t.meta().is_one_job() || !target())
    }

    /// A program that the launching thread has started since it last called CUDA: whether it waits for its
    /// end or for what it prints is the same.
    fn just_started(&self, waiter: ThreadIdx, other: Who, s: &Stretch) -> bool {
        let t = self.t;
        let waiter_is = t.who(waiter, s.start);
        let (mine, theirs) = (t.pid(waiter_is), t.pid(other));
        let leader = t
            .find(Tid(theirs.0))
            .and_then(|l| t.thread(l).identities().last());
        let (Some(called), Some(leader)) = (self.calls(waiter).around(s.span.0).0, leader) else {
            return false;
        };
        // The same program at work in another process is a helper.
        let exe = |pid| t.process(pid).map(|p| t.name(p.exe));
        let other_program = match (exe(mine), exe(theirs)) {
            (Some(mine), Some(theirs)) => mine != theirs,
            (Some(_) | None, None) | (None, Some(_)) => t.comm(waiter_is) != t.comm(other),
        };
        mine != theirs && leader.ppid == mine && leader.start >= called && other_program
    }

    /// Another process that launches work to a GPU, as far as can be told: one that was started with the same
    /// program by the same parent does what its sibling does.
    fn is_rank(&self, waiter: ThreadIdx, other: Who, at: Nanos) -> bool {
        let t = self.t;
        let waiter = t.who(waiter, at);
        let (mine, theirs) = (t.pid(waiter), t.pid(other));
        if mine == theirs {
            return false;
        }
        if self.launching.contains(&theirs) {
            return true;
        }
        let program = |pid| {
            let process = t.process(pid)?;
            let mut words = t.name(process.cmdline).split(' ').filter(|w| !w.is_empty());
            Some((t.name(process.exe), words.next()?, words.next()?))
        };
        let parent = |who| t.identity(who).map(|id| id.ppid).filter(|p| p.0 > 1);
        self.launching.contains(&mine)
            && parent(waiter).is_some_and(|p| parent(other) == Some(p))
            && program(mine).is_some_and(|p| program(theirs) == Some(p))
    }
}

/// The other end of `tcp 127.0.0.1:4000 -> 127.0.0.1:5000` is on this machine.
fn is_loopback(object: &str) -> bool {
    let other = ["-> ", "<- "]
        .iter()
        .find_map(|arrow| object.split(arrow).nth(1));
    other.is_some_and(|o| o.starts_with("127.") || o.starts_with("[::1]"))
}

/// A wait that cannot be followed further: of a loader it is still the loader's time.
pub(super) fn unfinished(task: Task, cause: Cause, asleep: &Asleep) -> Verdict {
    let cause = if task.is_loader() && cause == Cause::Other {
        Cause::DataLoading
    } else {
        cause
    };
    Verdict::Is(cause, asleep.what())
}

/// The thread that woke, unless it was an interrupt that did.
pub(super) fn task_waker(t: &Timeline, wake: Wake) -> Option<Who> {
    match wake.context {
        Context::Task if wake.waker != Tid(0) => {
            let thread = t.find(wake.waker)?;
            Some(t.who(thread, wake.at))
        }
        Context::Task | Context::HardIrq(_) | Context::SoftIrq(_) | Context::Timer => None,
    }
}

/// Is `pid` a parent, grandparent, … of the thread's process?
pub(super) fn descends_from(t: &Timeline, who: Who, pid: Pid) -> bool {
    const DEEPEST: usize = 16;
    let mut parent = t.identity(who).map(|i| i.ppid);
    for _ in 0..DEEPEST {
        match parent {
            Some(p) if p == pid => return true,
            Some(p) if p.0 > 1 => {
                let leader = t.find(Tid(p.0));
                parent = leader
                    .and_then(|l| t.thread(l).identities().last())
                    .map(|i| i.ppid);
            }
            Some(_) | None => return false,
        }
    }
    false
}

/// Who sent the signal that stopped the process at about `at`.
pub(super) fn stop_sender(t: &Timeline, stopped: Who, at: Nanos) -> Option<Who> {
    const LATE: u64 = 1_000_000;
    let pid = t.pid(stopped);
    let signals = t.signals();
    let upto = signals.partition_point(|s| s.ts.0 <= at.0.saturating_add(LATE));
    let signal = signals[..upto].iter().rev().find(|s| {
        let receiver = t.find(s.receiver).map(|r| t.pid(t.who(r, s.ts)));
        s.signal != Signal::CONT && receiver.unwrap_or(Pid(s.receiver.0)) == pid
    })?;
    let sender = t.find(signal.sender)?;
    Some(t.who(sender, signal.ts))
}
