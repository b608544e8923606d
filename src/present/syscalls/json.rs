//! `gdiag.syscalls/1`, and a line for each call. Times are whole ns; what is not known is null.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::{args, errno};
use crate::analyse::syscalls as sums;
use crate::event::{Pid, Tid};
use crate::model::signature;
use crate::model::syscall::Table;
use crate::pipeline::syscalls::Call;
use crate::units::Nanos;

const SCHEMA: &str = "gdiag.syscalls/1";

#[derive(Serialize)]
struct CallDoc<'a> {
    start_ns: Option<u64>,
    end_ns: u64,
    duration_ns: Option<u64>,
    pid: u32,
    tid: u32,
    comm: &'a str,
    name: &'a str,
    args: Option<Vec<String>>,
    result: Option<i64>,
    error: Option<String>,
}

/// One object and a newline.
pub fn write_call(out: &mut impl Write, call: &Call, table: Table) -> io::Result<()> {
    let name = table.text(call.number);
    let errno_of = |result: i64| match result {
        -4095..=-1 => u16::try_from(-result).ok(),
        _ => None,
    };
    let args = call.args.as_ref();
    let has_none = signature::of(&name).is_some_and(<[_]>::is_empty);
    let document = CallDoc {
        start_ns: call.start.map(Nanos::as_u64),
        end_ns: call.end.0,
        duration_ns: call.start.map(|start| call.end.saturating_sub(start).0),
        pid: call.pid.0,
        tid: call.tid.0,
        comm: &call.comm,
        name: &name,
        args: match args {
            Some(known) => Some(args::texts(&name, call.number, known)),
            None => has_none.then(Vec::new),
        },
        result: call.result,
        error: call
            .result
            .and_then(errno_of)
            .map(|number| errno(number).0.into_owned()),
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct SummaryDoc<'a> {
    schema: &'static str,
    start_ns: u64,
    end_ns: u64,
    /// `calls`: from entry to return; `waits`: off the CPU in calls that waited, no others are known.
    measure: &'static str,
    calls: u64,
    lost: Option<u64>,
    notes: &'a [String],
    total: Option<Vec<SumDoc<'a>>>,
    threads: Vec<ThreadDoc<'a>>,
}

#[derive(Serialize)]
struct ThreadDoc<'a> {
    /// Null: several threads.
    pid: Option<u32>,
    tid: Option<u32>,
    comm: &'a str,
    dispatcher: bool,
    calls: Vec<SumDoc<'a>>,
}

#[derive(Serialize)]
struct SumDoc<'a> {
    name: &'a str,
    count: u64,
    errors: Option<u64>,
    total_ns: u64,
    min_ns: Option<u64>,
    avg_ns: Option<u64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    stddev_ns: Option<u64>,
    errnos: Option<BTreeMap<String, u64>>,
    histogram: Option<Vec<BucketDoc>>,
    begun_before: u64,
    open: Vec<OpenDoc>,
    idle_overlap_ns: Option<u64>,
    dispatcher_idle_ns: Option<u64>,
}

#[derive(Serialize)]
struct BucketDoc {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

#[derive(Serialize)]
struct OpenDoc {
    since_ns: Option<u64>,
    lasts_ns: u64,
}

/// The document and a newline.
pub fn write_summary(
    out: &mut impl Write,
    summary: &sums::Summary,
    show: &super::Show,
    lost: Option<u64>,
) -> io::Result<()> {
    let total = show.total.then(|| summary.total());
    let waits = summary.measure == sums::Measure::Waits;
    let of = |call| sum(call, show, waits);
    let document = SummaryDoc {
        schema: SCHEMA,
        start_ns: summary.start.0,
        end_ns: summary.end.0,
        measure: if waits { "waits" } else { "calls" },
        calls: summary.count(),
        lost,
        notes: &summary.notes,
        total: total.as_ref().map(|calls| calls.iter().map(of).collect()),
        threads: summary
            .threads
            .iter()
            .map(|thread| ThreadDoc {
                pid: thread.id.map(|(Pid(pid), _)| pid),
                tid: thread.id.map(|(_, Tid(tid))| tid),
                comm: &thread.comm,
                dispatcher: thread.dispatcher,
                calls: thread.calls.iter().map(of).collect(),
            })
            .collect(),
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

fn sum<'a>(call: &'a sums::Call, show: &super::Show, waits: bool) -> SumDoc<'a> {
    let times = &call.times;
    let errnos = call.by_error.iter();
    let buckets = times.octaves().into_iter();
    SumDoc {
        name: &call.name,
        count: times.count,
        errors: (!waits).then_some(call.errors),
        total_ns: times.total.0,
        min_ns: times.shortest().map(Nanos::as_u64),
        avg_ns: times.average().map(Nanos::as_u64),
        p50_ns: times.percentile(0.5).map(Nanos::as_u64),
        p99_ns: times.percentile(0.99).map(Nanos::as_u64),
        max_ns: times.longest().map(Nanos::as_u64),
        stddev_ns: call.deviation().map(Nanos::as_u64),
        errnos: show.errnos.then(|| {
            errnos
                .map(|(e, n)| (errno(*e).0.into_owned(), *n))
                .collect()
        }),
        histogram: show.histograms.then(|| {
            buckets
                .map(|(from, to, count)| BucketDoc {
                    from_ns: from.0,
                    to_ns: to.0,
                    count,
                })
                .collect()
        }),
        begun_before: call.begun_before,
        open: call
            .open
            .iter()
            .map(|open| OpenDoc {
                since_ns: open.since.map(Nanos::as_u64),
                lasts_ns: open.lasts.0,
            })
            .collect(),
        idle_overlap_ns: call.idle_overlap.map(Nanos::as_u64),
        dispatcher_idle_ns: call.dispatcher_idle.map(Nanos::as_u64),
    }
}
