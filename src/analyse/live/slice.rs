//! From a timeline to what happened in a part of it.
#![forbid(unsafe_code)]

use super::{stacks, CudaTime, GpuParts, Launches, Parts, Slice, SliceOptions};
use crate::analyse::partition::Engine;
use crate::analyse::quality::Trust;
use crate::analyse::report::Report;
use crate::analyse::scope::Scope;
use crate::analyse::{devices, host_side, quality, sched, syscalls, tables, Devices, Options};
use crate::model::gpu::Gpu;
use crate::model::ops::CallIdx;
use crate::model::thread::{Thread, ThreadIdx};
use crate::model::{api, Timeline};
use crate::store::meta::TargetMode;
use crate::units::{Bytes, Nanos};

/// What happened in `[from, to)`. The timeline is finished and holds what is needed to explain that: the last
/// operation of each device before `from` at least, the states of threads as of then, and what belongs
/// to the slice and came late. How many `events` there were in it, the timeline does not know.
pub fn slice(t: &Timeline, from: Nanos, to: Nanos, options: &SliceOptions) -> Slice {
    let scope = Scope {
        from,
        to,
        goes_on: options.goes_on,
    };
    let engine = Engine::new(t);
    let trust = Trust::of(t, scope);
    let devices = if options.only_host {
        Devices::default()
    } else {
        let options = Options {
            gpu: None,
            min_gap: options.min_gap,
            gaps: Some(options.gaps),
        };
        devices(&engine, &trust, &options, scope)
    };
    let (quality, counts, said) = quality::of_slice(t, &trust, options.min_gap);
    let lost = quality.lost();
    let (gpus, parts): (Vec<_>, Vec<_>) = (devices.list.into_iter())
        .map(|d| {
            let parts = GpuParts {
                sentences: d.sentences,
                continued: d.continued,
            };
            (d.gpu, parts)
        })
        .unzip();
    let mut sched = sched::recorded::summary(
        t,
        &sched::recorded::Scope {
            from,
            to,
            cpus: None,
            tids: &[],
            joins: true,
        },
    );
    sched.lost = Some(quality.bpf_lost);
    let calls = syscalls::recorded::with_idle(
        t,
        &syscalls::recorded::Scope {
            from,
            to,
            tids: &[],
            wanted: &[true],
            least: Nanos::ZERO,
            only_failed: false,
            joins: true,
        },
        &devices.idle,
    );
    let launches = |(index, gpu)| launches(t, index, gpu, scope);
    Slice {
        from,
        to,
        launches: if options.only_host {
            Vec::new()
        } else {
            (0..).zip(t.gpu().devices()).map(launches).collect()
        },
        report: Report {
            quality,
            gpus,
            host_sides: host_side::host_sides(&engine, scope),
            threads: tables::threads(t, scope),
            kernels: tables::kernels(t, None, scope),
            calls: tables::calls(t, &devices.idle, scope),
        },
        sched,
        calls,
        cuda: t
            .threads()
            .filter_map(|(idx, thread)| cuda_time(t, idx, thread, scope))
            .collect(),
        stacks: stacks::most(t, (from, to), options.stacks),
        events: 0,
        lost,
        parts: Parts {
            counts,
            said,
            gpus: parts,
            bytes: Bytes(0),
            cpus: (t.meta().mode == TargetMode::All).then_some(t.meta().cpus_online),
        },
    }
}

fn launches(t: &Timeline, index: u32, gpu: &Gpu, scope: Scope) -> Launches {
    let mut launches = Launches {
        gpu: index,
        ..Launches::default()
    };
    let ended = gpu.ops.iter().filter(|op| scope.has(op.end));
    for op in ended.filter(|op| op.is_first_of_call() && !op.outlasts_followers()) {
        let Some(call) = op.call().map(|c| t.gpu().call_at(c)) else {
            continue;
        };
        launches.call.add(call.end.saturating_sub(call.start));
        if !op.starts_before_launch() {
            launches.start.add(op.start.saturating_sub(call.start));
        }
    }
    launches
}

fn cuda_time(t: &Timeline, idx: ThreadIdx, thread: &Thread, scope: Scope) -> Option<CudaTime> {
    let calls = thread.calls().iter().map(|&c| t.gpu().call_at(CallIdx(c)));
    let mut time = Nanos::ZERO;
    let mut launches = 0;
    let mut seen = false;
    for call in calls.filter(|call| scope.overlaps(call.start, call.end) || scope.has(call.end)) {
        seen = true;
        launches +=
            u64::from(scope.has(call.end) && api::starts_kernels(call.class) && !call.failed());
        // What is called from inside of another call is a part of that one's time.
        if call.outer().is_none() {
            let (start, end) = scope.clip((call.start, call.end));
            time += end.saturating_sub(start);
        }
    }
    seen.then(|| CudaTime {
        pid: t.pid(t.who(idx, scope.to.saturating_sub(Nanos(1)))),
        tid: thread.tid,
        time,
        launches,
    })
}
