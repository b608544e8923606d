//! How much a slice takes, and what is left of one that would take too much.
//!
//! Slices are kept for minutes, and whatever is watched decides how many threads, kernels and stacks are in them. The rows that
//! matter stay as they are; the others are added up as one, so that sums stay true.
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use super::Slice;
use crate::analyse::report::{self, Gap, Hop, Kernel, Stack, ThreadRef};
use crate::analyse::sched::{self, CpuSum, Preemptor, ThreadSum, Who};
use crate::analyse::syscalls;
use crate::event::{Pid, Tid};
use crate::fxhash::FxHashSet;
use crate::histogram::Histogram;
use crate::units::{Bytes, Nanos};

/// Rows of each table that stay as they are.
const ROWS: usize = 500;

/// Who ran on a CPU.
const RAN: usize = 64;

/// A part of a gap that takes less than one in so many of it has no stack, where a slice has many.
const TELLING: u64 = 100;

/// Parts of gaps whose stacks are kept whatever their length.
const PARTS: usize = 200;

/// What several are called.
const OTHERS: &str = "(others)";

impl Slice {
    /// Adds up the rows that matter least, where there are too many of them.
    pub fn bound(&mut self) {
        let most = ROWS;
        let dropped = bound_threads(self, most)
            | bound_calls(&mut self.calls, most)
            | bound_kernels(&mut self.report.kernels, most)
            | bound_preemptors(&mut self.sched.preemptors, most);
        self.sched.cpus.iter_mut().for_each(bound_ran);
        bound_stacks(self);
        if dropped {
            let text = format!(
                "of more than {most} rows in a moment, those that matter least are told as one, {OTHERS}"
            );
            self.sched.notes.push(text.clone());
            self.parts.said.push(text);
        }
        self.parts.bytes = size(self);
    }

    /// About what it takes, as of [`Slice::bound`].
    pub fn bytes(&self) -> Bytes {
        self.parts.bytes
    }
}

/// Takes the rows beyond `most` out, in order of `rank`; those that stay keep theirs.
fn beyond<T, K: Ord>(rows: &mut Vec<T>, most: usize, rank: impl Fn(&T) -> K) -> Vec<T> {
    if rows.len() <= most {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_cached_key(|&i| Reverse(rank(&rows[i])));
    let kept: FxHashSet<usize> = order.into_iter().take(most).collect();
    let all = std::mem::take(rows).into_iter().enumerate();
    let (stay, go): (Vec<_>, Vec<_>) = all.partition(|(i, _)| kept.contains(i));
    *rows = stay.into_iter().map(|(_, row)| row).collect();
    go.into_iter().map(|(_, row)| row).collect()
}

fn others(pid: Pid) -> Who {
    Who {
        pid,
        tid: Tid(0),
        comm: OTHERS.to_string(),
    }
}

fn bound_threads(slice: &mut Slice, most: usize) -> bool {
    let launches: FxHashSet<Tid> = slice.cuda.iter().map(|cuda| cuda.tid).collect();
    let rest = beyond(&mut slice.sched.threads, most, |t| {
        let first = (t.dispatcher, launches.contains(&t.who.tid));
        (first, t.run.saturating_add(t.runq.total), t.switches())
    });
    let any = !rest.is_empty();
    let listed: FxHashSet<Pid> = slice.sched.threads.iter().map(|t| t.who.pid).collect();
    let mut of: Vec<(Pid, Vec<ThreadSum>)> = Vec::new();
    for mut thread in rest {
        // Sums of a process that is listed stay its own.
        let pid = thread.who.pid;
        let pid = if listed.contains(&pid) { pid } else { Pid(0) };
        thread.who = others(pid);
        thread.here = None;
        thread.affinity = None;
        thread.allowed = None;
        match of.iter_mut().find(|(one, _)| *one == pid) {
            Some((_, threads)) => threads.push(thread),
            None => of.push((pid, vec![thread])),
        }
    }
    for (_, threads) in of {
        slice.sched.threads.extend(sched::join::add_up(&threads));
    }
    slice.sched.threads.sort_by_key(|thread| thread.who.tid);
    let rest = beyond(&mut slice.report.threads, most, |t| {
        (t.dispatcher, t.launches, t.run.saturating_add(t.runq))
    });
    slice.report.threads.extend(added_up(&rest));
    any | !rest.is_empty()
}

fn added_up(rest: &[report::Thread]) -> Option<report::Thread> {
    let sum = |of: fn(&report::Thread) -> Nanos| {
        (rest.iter().map(of)).fold(Nanos::ZERO, Nanos::saturating_add)
    };
    (!rest.is_empty()).then(|| report::Thread {
        who: ThreadRef {
            pid: Pid(0),
            tid: Tid(0),
            comm: OTHERS.to_string(),
        },
        dispatcher: false,
        run: sum(|t| t.run),
        runq: sum(|t| t.runq),
        blocked: sum(|t| t.blocked),
        launches: rest.iter().map(|t| t.launches).sum(),
    })
}

fn bound_calls(calls: &mut syscalls::Summary, most: usize) -> bool {
    let rest = beyond(&mut calls.threads, most, |t| {
        let time = t.calls.iter().map(|call| call.times.total);
        (
            t.dispatcher,
            time.fold(Nanos::ZERO, Nanos::saturating_add),
            t.count(),
        )
    });
    let any = !rest.is_empty();
    calls
        .threads
        .extend(syscalls::join::as_one(rest, OTHERS.to_string()));
    any
}

fn bound_kernels(kernels: &mut Vec<Kernel>, most: usize) -> bool {
    let rest = beyond(kernels, most, |kernel| kernel.total);
    let times = |of: fn(&Kernel) -> Nanos| rest.iter().map(of);
    if let (Some(min), Some(max)) = (times(|k| k.min).min(), times(|k| k.max).max()) {
        kernels.push(Kernel {
            name: OTHERS.to_string(),
            count: rest.iter().map(|k| k.count).sum(),
            total: times(|k| k.total).fold(Nanos::ZERO, Nanos::saturating_add),
            min,
            max,
        });
    }
    !rest.is_empty()
}

fn bound_preemptors(preemptors: &mut Vec<Preemptor>, most: usize) -> bool {
    let rest = beyond(preemptors, most, |p| (p.had, p.waited));
    let sum = rest.iter().fold(None, |sum: Option<Preemptor>, more| {
        let mut sum = sum.unwrap_or_else(|| Preemptor {
            who: others(Pid(0)),
            count: 0,
            waited: Nanos::ZERO,
            had: Some(Nanos::ZERO),
            victims: Vec::new(),
        });
        sum.count += more.count;
        sum.waited = sum.waited.saturating_add(more.waited);
        let had = sum.had.zip(more.had);
        sum.had = had.map(|(a, b)| a.saturating_add(b));
        Some(sum)
    });
    preemptors.extend(sum);
    !rest.is_empty()
}

/// They come with most time first.
fn bound_ran(cpu: &mut CpuSum) {
    if cpu.ran.len() > RAN {
        let rest = cpu.ran.split_off(RAN).into_iter();
        let rest = rest
            .map(|(_, time)| time)
            .fold(Nanos::ZERO, Nanos::saturating_add);
        cpu.ran.push((others(Pid(0)), rest));
    }
}

/// Where there are many parts of gaps, those that hardly matter do without their stacks.
fn bound_stacks(slice: &mut Slice) {
    let gaps = || slice.report.gpus.iter().flat_map(|gpu| &gpu.gaps);
    if gaps().map(|gap| gap.parts.len()).sum::<usize>() <= PARTS {
        return;
    }
    for gap in slice.report.gpus.iter_mut().flat_map(|gpu| &mut gpu.gaps) {
        let whole = gap.end.saturating_sub(gap.start);
        let least = Nanos(whole.0 / TELLING);
        for part in &mut gap.parts {
            if part.end.saturating_sub(part.start) < least {
                part.stack = Stack::default();
            }
        }
    }
}

/// A table of an allocator's view: what is pointed to counts with what an allocation costs.
const ALLOCATION: usize = 16;

fn text(text: &str) -> usize {
    text.len() + ALLOCATION
}

fn texts(list: &[String]) -> usize {
    let own = |one: &String| size_of::<String>() + text(one);
    list.iter().map(own).sum()
}

fn each<T>(list: &[T], behind: impl Fn(&T) -> usize) -> usize {
    let own = |one: &T| size_of::<T>() + behind(one);
    list.iter().map(own).sum()
}

fn size(slice: &Slice) -> Bytes {
    let report = &slice.report;
    let bytes = size_of::<Slice>()
        + each(&report.gpus, |gpu| {
            each(&gpu.gaps, gap)
                + each(&gpu.causes, |row| {
                    each(&row.by, |by| text(&by.what)) + texts(&row.evidence)
                })
        })
        + each(&report.host_sides, |side| {
            each(&side.callers, |c| text(&c.who.comm))
                + each(&side.pauses, |p| each(&p.doing, |d| text(&d.0)))
        })
        + each(&report.threads, |thread| text(&thread.who.comm))
        + each(&report.kernels, |kernel| text(&kernel.name))
        + each(&report.calls, |call| text(&call.name))
        + each(&slice.sched.threads, thread)
        + each(&slice.sched.cpus, |cpu| each(&cpu.ran, |r| text(&r.0.comm)))
        + each(&slice.sched.preemptors, |p| {
            text(&p.who.comm) + each(&p.victims, |v| text(&v.0.comm))
        })
        + each(&slice.calls.threads, |thread| {
            text(&thread.comm)
                + each(&thread.calls, |call| {
                    text(&call.name) + histogram(&call.times) + 48 * call.by_error.len()
                })
        })
        + each(&slice.launches, |l| {
            histogram(&l.call) + histogram(&l.start)
        })
        + each(&slice.cuda, |_| 0)
        + each(&slice.stacks, |stack| texts(&stack.frames))
        + texts(&slice.sched.notes)
        + texts(&slice.parts.said);
    Bytes(bytes as u64)
}

fn histogram(histogram: &Histogram) -> usize {
    histogram.heap() + ALLOCATION
}

fn thread(thread: &ThreadSum) -> usize {
    text(&thread.who.comm)
        + histogram(&thread.runs)
        + histogram(&thread.runq)
        + each(&thread.behind, |(who, _)| text(&who.comm))
        + each(&thread.off, |_| 0)
        + each(&thread.cpus, |_| 0)
        + thread.affinity.as_ref().map_or(0, |list| each(list, |_| 0))
        + each(&thread.wakers, |_| 2 * ALLOCATION)
}

fn gap(gap: &Gap) -> usize {
    let of_stack = |stack: &Stack| texts(&stack.frames) + texts(&stack.telling);
    each(&gap.parts, |part| text(&part.what) + of_stack(&part.stack))
        + each(&gap.chain, |hop: &Hop| {
            text(&hop.who.comm) + text(&hop.state)
        })
        + (gap.opened_by.as_ref()).map_or(0, |by| text(&by.call) + of_stack(&by.stack))
        + gap.next.as_ref().map_or(0, |next| text(&next.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::sched::Summary;

    fn slice(threads: u32) -> Slice {
        let sched = Summary {
            end: Nanos::from_millis(500),
            threads: (1..=threads)
                .map(|n| {
                    let mut thread = ThreadSum {
                        who: Who {
                            pid: Pid(1 + n % 2),
                            tid: Tid(n),
                            comm: format!("t{n}"),
                        },
                        target: true,
                        run: Nanos(u64::from(n)),
                        ..ThreadSum::default()
                    };
                    thread.runs.add(Nanos(u64::from(n)));
                    thread
                })
                .collect(),
            ..Summary::default()
        };
        Slice::of_machine(sched, None)
    }

    fn ran(slice: &Slice) -> u64 {
        slice.sched.threads.iter().map(|t| t.run.0).sum()
    }

    #[test]
    fn the_rows_that_matter_stay_and_the_others_are_added_up() {
        let mut many = slice(4000);
        let before = ran(&many);
        many.bound();
        assert_eq!(ran(&many), before);
        let threads = &many.sched.threads;
        assert_eq!(threads.len(), ROWS + 2);
        assert!(threads.iter().any(|t| t.who.tid == Tid(4000)));
        let rest: Vec<u64> = threads
            .iter()
            .filter(|t| t.who.comm == OTHERS)
            .map(|t| t.runs.count)
            .collect();
        assert_eq!(rest, [1750, 1750]);
        assert_eq!(many.sched.notes.len(), 1);
    }

    #[test]
    fn few_rows_stay_as_they_are() {
        let mut few = slice(ROWS as u32);
        few.bound();
        assert_eq!(few.sched, slice(ROWS as u32).sched);
    }

    #[test]
    fn a_slice_of_many_threads_takes_no_more_than_one_of_as_many_as_are_told() {
        let [mut some, mut many] = [500, 8000].map(slice);
        some.bound();
        many.bound();
        assert!(some.bytes().0 > 100_000, "{:?}", some.bytes());
        // Longer times take longer histograms.
        assert!(many.bytes().0 < 3 * some.bytes().0);
    }
}
