//! System calls of a recording, and how long a device was idle meanwhile.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::{Call, Measure, Open, Summary, Thread};
use crate::analyse::intervals::Intervals;
use crate::analyse::IdleOf;
use crate::decode::syscalls::Number;
use crate::event::{Pid, Tid};
use crate::model::thread::{State, ThreadIdx};
use crate::model::Timeline;
use crate::units::Nanos;

/// What of a recording is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub from: Nanos,
    pub to: Nanos,
    /// Empty: all.
    pub tids: &'a [Tid],
    /// By number; the last one stands for all that are higher, too.
    pub wanted: &'a [bool],
    pub least: Nanos,
    pub only_failed: bool,
    /// The part is added to others before and after it: a wait counts once, whole, where it ends.
    pub joins: bool,
}

/// A call, or the part of one that was waited in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    pub thread: ThreadIdx,
    pub number: u16,
    pub start: Nanos,
    pub end: Nanos,
    /// `None` of a wait: what the call returned is not recorded.
    pub result: Option<i64>,
}

impl Made {
    fn errno(&self) -> Option<u16> {
        match self.result? {
            result @ -4095..=-1 => u16::try_from(-result).ok(),
            _ => None,
        }
    }
}

/// What the recording knows of calls.
pub fn measure(t: &Timeline) -> Measure {
    if t.meta().syscalls {
        Measure::Calls
    } else {
        Measure::Waits
    }
}

/// Hands out what was made in the scope, thread by thread.
pub fn each(t: &Timeline, scope: &Scope<'_>, mut sink: impl FnMut(Made)) {
    let measure = measure(t);
    for (idx, thread) in t.threads() {
        if !thread.is_target() || !(scope.tids.is_empty() || scope.tids.contains(&thread.tid)) {
            continue;
        }
        let mut offer = |made: Made| {
            let last = scope.wanted.len().saturating_sub(1);
            let wanted = scope.wanted.get(usize::from(made.number).min(last));
            if wanted.copied().unwrap_or(false)
                && made.end.saturating_sub(made.start) >= scope.least
                && (!scope.only_failed || made.errno().is_some())
            {
                sink(made);
            }
        };
        match measure {
            Measure::Calls => {
                let calls = thread.sys_calls().iter();
                for call in calls.filter(|c| c.end >= scope.from && c.end < scope.to) {
                    offer(Made {
                        thread: idx,
                        number: call.number,
                        start: call.start,
                        end: call.end,
                        result: Some(call.result),
                    });
                }
            }
            Measure::Waits => {
                for stretch in thread.states(scope.from, scope.to) {
                    if let State::Blocked(sleep) = stretch.state {
                        let (start, end) = if scope.joins {
                            (stretch.span.0.max(t.start()), stretch.span.1)
                        } else {
                            (stretch.start, stretch.end)
                        };
                        if let Some(number) = sleep.syscall.filter(|_| end <= scope.to) {
                            offer(Made {
                                thread: idx,
                                number,
                                start,
                                end,
                                result: None,
                            });
                        }
                    }
                }
            }
        }
    }
}

/// When devices were idle: those of a process, or of a process without one, any.
struct Idle<'a> {
    by_pid: &'a IdleOf,
    any: Intervals,
}

impl<'a> Idle<'a> {
    /// `None` when there is no device.
    fn of(by_pid: &'a IdleOf) -> Option<Idle<'a>> {
        let any = match by_pid.len() {
            0 => return None,
            1 => by_pid.values().next()?.clone(),
            _ => Intervals::union_of(by_pid.values().flat_map(Intervals::iter).collect()),
        };
        Some(Idle { by_pid, any })
    }

    fn overlap(&self, pid: Pid, from: Nanos, to: Nanos) -> Nanos {
        let own = self.by_pid.get(&pid).unwrap_or(&self.any);
        own.total_in(from, to)
    }
}

pub fn summary(t: &Timeline, scope: &Scope<'_>) -> Summary {
    with_idle(t, scope, &crate::analyse::idle_of_processes(t))
}

/// The same when it is known already when devices were idle.
pub(in crate::analyse) fn with_idle(t: &Timeline, scope: &Scope<'_>, idle: &IdleOf) -> Summary {
    let table = t.syscalls();
    let idle = Idle::of(idle);
    // A number of a thread may have been of several, one after another.
    let mut threads: BTreeMap<(Pid, ThreadIdx), (Nanos, BTreeMap<u16, Call>)> = BTreeMap::new();
    each(t, scope, |made| {
        let pid = t.pid(t.who(made.thread, made.start));
        let (last, calls) = threads.entry((pid, made.thread)).or_default();
        *last = made.end.saturating_sub(Nanos(1)).max(*last);
        let named = || table.text(Number::Native(made.number)).into_owned();
        let call = calls
            .entry(made.number)
            .or_insert_with(|| Call::new(named()));
        call.add(made.end.saturating_sub(made.start), made.errno());
        if let Some(idle) = &idle {
            let from = if scope.joins {
                made.start
            } else {
                made.start.max(scope.from)
            };
            let overlap = idle.overlap(pid, from, made.end);
            add(&mut call.idle_overlap, overlap);
            if t.thread(made.thread).launches > 0 {
                add(&mut call.dispatcher_idle, overlap);
            }
        }
    });
    let measure = measure(t);
    if scope.joins && measure == Measure::Waits {
        waits_at_end(t, scope, |made| {
            let pid = t.pid(t.who(made.thread, made.start));
            let (last, calls) = threads.entry((pid, made.thread)).or_default();
            *last = made.end.saturating_sub(Nanos(1)).max(*last);
            let named = || table.text(Number::Native(made.number)).into_owned();
            let call = calls
                .entry(made.number)
                .or_insert_with(|| Call::new(named()));
            call.open.push(Open {
                since: (made.start > t.start()).then_some(made.start),
                lasts: made.end.saturating_sub(made.start),
            });
        });
    }
    let mut summary = Summary {
        measure,
        start: scope.from,
        end: scope.to,
        threads: threads
            .into_iter()
            .map(|((pid, idx), (last, calls))| Thread {
                id: Some((pid, t.thread(idx).tid)),
                comm: t.comm(t.who(idx, last)).to_string(),
                dispatcher: t.thread(idx).launches > 0,
                calls: calls.into_values().collect(),
            })
            .collect(),
        gpu: idle.is_some(),
        notes: Vec::new(),
    };
    if measure == Measure::Waits {
        summary.notes.push(
            "system calls were not recorded (gdiag record --syscalls does): what is known are their waits, and the time off the CPU in them"
                .to_string(),
        );
    }
    summary.sort();
    summary
}

/// Those that go on when the scope ends.
fn waits_at_end(t: &Timeline, scope: &Scope<'_>, mut sink: impl FnMut(Made)) {
    let last = scope.to.saturating_sub(Nanos(1));
    for (idx, thread) in t.threads().filter(|(_, thread)| thread.is_target()) {
        let Some(stretch) = thread.states(last, scope.to).next() else {
            continue;
        };
        let State::Blocked(sleep) = stretch.state else {
            continue;
        };
        if let Some(number) = sleep.syscall.filter(|_| stretch.span.1 > scope.to) {
            sink(Made {
                thread: idx,
                number,
                start: stretch.span.0.max(t.start()),
                end: scope.to,
                result: None,
            });
        }
    }
}

fn add(sum: &mut Option<Nanos>, time: Nanos) {
    *sum = Some(sum.unwrap_or_default() + time);
}
