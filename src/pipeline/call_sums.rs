//! System calls that the kernel adds up, in parts: each is what came since the one before.
//!
//! Programs at every call of the machine cost each of them something. So they are there only as long as
//! somebody wants to know, and with them everything that they added up.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;

use crate::analyse::syscalls::{Call, Measure, Summary, Thread};
use crate::collect::bpf::Bpf;
use crate::collect::clock;
use crate::collect::syscalls::{Plan, Shortage, Sum, Syscalls};
use crate::decode::sched::comm;
use crate::decode::syscalls::Number;
use crate::event::{Pid, Tid};
use crate::histogram::Histogram;
use crate::model::syscall::Table;
use crate::units::{Count, Nanos};

/// When there is no room for more threads, those that ended are forgotten by beginning anew; at most so often, as
/// those that are there may be too many by themselves.
const ANEW_AFTER: Nanos = Nanos::from_secs(60);

/// The programs, attached. Dropping it detaches them.
#[derive(Debug)]
pub struct CallSums {
    syscalls: Syscalls,
    began: Nanos,
    /// When the last part ended.
    since: Nanos,
    /// By index of the sum: how many calls it had in the last part, and what it was.
    counts: Vec<u64>,
    before: HashMap<u32, Call>,
    shortage: Shortage,
}

impl CallSums {
    /// The calls of the targets of `bpf`, which must be there for as long as the result.
    pub fn start(bpf: &Bpf) -> Result<CallSums> {
        let syscalls = Syscalls::start(&Plan::sums(), bpf)?;
        let now = clock::monotonic();
        Ok(CallSums {
            syscalls,
            began: now,
            since: now,
            counts: Vec::new(),
            before: HashMap::new(),
            shortage: Shortage::default(),
        })
    }

    /// What was added since the last call of this. Calls that go on are not in it, and threads have the name
    /// that they had at their first call of the kind that they began last.
    pub fn take(&mut self, bpf: &Bpf) -> Summary {
        let table = Table::own();
        let mut threads: HashMap<(u32, u64), Thread> = HashMap::new();
        let before = &mut self.before;
        self.syscalls
            .changed_sums(&mut self.counts, &mut |index, sum| {
                let now = call(sum, BTreeMap::new(), table);
                let part = match before.get(&index) {
                    Some(before) => now.since(before),
                    None => now.clone(),
                };
                before.insert(index, now);
                let key = (sum.tid, sum.task_start_ns);
                let of = threads.entry(key).or_insert_with(|| thread(sum));
                if of.id.is_some() {
                    // Sums that began later have higher numbers.
                    of.comm = comm(&sum.comm);
                }
                of.calls.push(part);
            });
        let now = clock::monotonic();
        let shortage = self.syscalls.shortage();
        let mut part = Summary {
            measure: Measure::Calls,
            start: std::mem::replace(&mut self.since, now),
            end: now,
            threads: threads.into_values().collect(),
            gpu: false,
            notes: notes(shortage.since(self.shortage)),
        };
        self.shortage = shortage;
        part.sort();
        if self.syscalls.is_full() && now.saturating_sub(self.began) >= ANEW_AFTER {
            // Else it goes on as it is.
            if let Ok(anew) = CallSums::start(bpf) {
                *self = CallSums {
                    since: self.since,
                    ..anew
                };
            }
        }
        part
    }
}

/// Whose calls they are.
pub(super) fn thread(sum: &Sum) -> Thread {
    Thread {
        id: (sum.tid != 0).then_some((Pid(sum.pid), Tid(sum.tid))),
        comm: match sum.tid {
            0 => "others".to_string(),
            _ => comm(&sum.comm),
        },
        dispatcher: false,
        calls: Vec::new(),
    }
}

pub(super) fn call(sum: &Sum, by_error: BTreeMap<u16, u64>, table: Table) -> Call {
    const WORD: f64 = 18_446_744_073_709_551_616.0;
    #[allow(clippy::cast_precision_loss)]
    let squares = match sum.tid {
        // Of several threads there are none: no number, and no deviation.
        0 => f64::NAN,
        _ => sum.squares_high as f64 * WORD + sum.squares_low as f64,
    };
    Call {
        name: match Number::of_wire(sum.nr) {
            Number::None => "(other)".to_string(),
            number => table.text(number).into_owned(),
        },
        times: Histogram::from_parts(
            sum.count,
            Nanos(sum.total_ns),
            (Nanos(sum.min_ns), Nanos(sum.max_ns)),
            sum.buckets,
        ),
        errors: sum.errors,
        squares,
        by_error,
        ..Call::default()
    }
}

/// What is missing, for people.
pub(super) fn notes(shortage: Shortage) -> Vec<String> {
    let Shortage {
        shared,
        unseen,
        failures,
    } = shortage;
    let mut notes = Vec::new();
    if shared > 0 {
        notes.push(format!(
            "there was no room for all threads: {} of their calls are told under \"others\"",
            Count(shared)
        ));
    }
    if unseen > 0 {
        notes.push(format!(
            "{} calls were not seen: no memory for their threads",
            Count(unseen)
        ));
    }
    if failures > 0 {
        notes.push(format!(
            "{} failures are not in the sums by error: no room",
            Count(failures)
        ));
    }
    notes
}
