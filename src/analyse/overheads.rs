//! Time that CUPTI, the driver or its compiler took inside the target, by the thread it was taken from.
#![forbid(unsafe_code)]

use crate::analyse::calls::Calls;
use crate::event::{OverheadKind, Pid};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::ThreadIdx;
use crate::model::Timeline;
use crate::units::Nanos;

#[derive(Clone, Copy, Debug)]
pub(super) struct Overhead {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) kind: OverheadKind,
}

/// By thread, and for records that name no thread by process.
#[derive(Clone, Debug, Default)]
pub(super) struct Overheads {
    threads: FxHashMap<ThreadIdx, Vec<Overhead>>,
    processes: FxHashMap<Pid, Vec<Overhead>>,
}

impl Overheads {
    pub(super) fn collect(t: &Timeline, wanted: impl Fn(OverheadKind) -> bool) -> Self {
        let mut all = Overheads::default();
        for o in t.gpu().overheads().iter().filter(|o| wanted(o.kind)) {
            let list = match o.tid {
                Some(tid) => match t.find(tid) {
                    Some(thread) => all.threads.entry(thread).or_default(),
                    None => continue,
                },
                None => all.processes.entry(o.pid).or_default(),
            };
            // They come by start; what overlaps an earlier one is cut off, so ends are in order too.
            let start = list
                .last()
                .map_or(o.start, |last: &Overhead| last.end.max(o.start));
            if start < o.end {
                list.push(Overhead {
                    start,
                    end: o.end,
                    kind: o.kind,
                });
            }
        }
        all
    }

    fn in_list<'a>(
        list: Option<&'a Vec<Overhead>>,
        from: Nanos,
        to: Nanos,
    ) -> impl Iterator<Item = Overhead> + 'a {
        let list = list.map_or(&[][..], Vec::as_slice);
        let first = list.partition_point(|o| o.end <= from);
        list[first..]
            .iter()
            .take_while(move |o| o.start < to)
            .copied()
    }

    /// Those of `thread`, a thread of `pid`, that overlap `[from, to)`, by start. Records that name only
    /// the process count when the thread was in a call.
    pub(super) fn on(
        &self,
        thread: ThreadIdx,
        pid: Pid,
        calls: Calls<'_>,
        from: Nanos,
        to: Nanos,
    ) -> Vec<Overhead> {
        let mut found: Vec<Overhead> =
            Overheads::in_list(self.threads.get(&thread), from, to).collect();
        found.extend(
            Overheads::in_list(self.processes.get(&pid), from, to)
                .filter(|o| calls.innermost(o.start.max(from)).is_some()),
        );
        found.sort_by_key(|o| (o.start, o.end));
        found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.processes.is_empty()
    }
}
