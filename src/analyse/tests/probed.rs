//! Calls that probes on the driver measured: they tell the host's side, and never more.

use super::story::*;
use crate::analyse::cause::Cause;
use crate::analyse::report::Report;
use crate::event::*;
use crate::units::Nanos;

// Calls of the CUDA driver.
const CU_LAUNCH: u32 = 307;
const CU_SYNC: u32 = 126;
const CU_COPY: u32 = 277;
const CU_ALLOC: u32 = 243;

fn probed(story: Story, tid: u32, cbid: u32, (from, to): (i64, i64), result: u32) -> Story {
    let pid = Pid(if tid < 200 { 100 } else { tid });
    story.event(Event::ApiCall(ApiCall {
        pid,
        tid: Tid(tid),
        api: Api {
            domain: ApiDomain::Driver,
            cbid,
        },
        start: us(from),
        end: us(to),
        correlation: ApiCall::PROBED,
        result,
    }))
}

fn probes(mut story: Story, pid: u32, at: i64, functions: u32, reason: &str) -> Story {
    let reason = story.name(reason);
    story.event(Event::Probes(Probes {
        ts: us(at),
        pid: Pid(pid),
        functions,
        reason,
    }))
}

fn shim(pid: u32, at: i64, state: ShimState) -> Event {
    Event::Shim(Shim {
        ts: us(at),
        pid: Pid(pid),
        state,
        reason: NameId(0),
        cupti_path: NameId(0),
        cupti_version: 0,
        simulated: true,
    })
}

/// Launches, waits, reads a file, and launches again.
fn host_only() -> Story {
    let mut story = probes(timeline(), 100, 0, 9, "injection is off");
    story.end = 10_000;
    for at in [1_000, 1_100, 1_200] {
        story = probed(story, MAIN, CU_LAUNCH, (at, at + 5), 0);
    }
    story = probed(story, MAIN, CU_COPY, (1_300, 1_310), 0);
    story = probed(story, MAIN, CU_SYNC, (1_400, 2_400), 0);
    story = story.main_sleeps((3_000, 5_000), S, Some(READ), None);
    story = story.wait(MAIN, (3_000, 5_000), S, Some(READ), &[], "/data/x");
    story = probed(story, MAIN, CU_LAUNCH, (5_205, 5_210), 0);
    story = probed(story, THREAD, CU_LAUNCH, (1_000, 1_001), 0);
    probed(story, THREAD, CU_ALLOC, (2_000, 2_100), 0)
}

fn texts(report: &Report) -> String {
    report.quality.warnings.join("\n")
}

#[test]
fn without_gpu_records_there_are_calls_and_no_gaps() {
    let r = host_only().report();
    assert!(r.gpus.is_empty());
    assert_eq!(r.quality.gpu_coverage, None);
    let [side] = r.host_sides.as_slice() else {
        panic!("{:?}", r.host_sides);
    };
    assert_eq!((side.pid, side.watched), (Pid(100), Nanos(10_000_000)));
    let [main, thread] = side.callers.as_slice() else {
        panic!("{:?}", side.callers);
    };
    assert_eq!((main.who.tid, main.launches, main.calls), (Tid(MAIN), 4, 6));
    let times = [main.times.launch, main.times.copy, main.times.sync];
    assert_eq!(times.map(|t| t.0), [20_000, 10_000, 1_000_000]);
    assert_eq!(thread.times.memory, Nanos(100_000));
    let call = r.calls.iter().find(|c| c.name == "cuLaunchKernel").unwrap();
    assert_eq!((call.count, call.idle_overlap), (5, None));
    assert!(
        texts(&r).contains(
            "pid 100: the host's side only, by probes on the CUDA driver, because injection is off"
        ),
        "{}",
        texts(&r)
    );
}

#[test]
fn a_pause_between_launches_says_what_the_thread_did() {
    let r = host_only().report();
    let pauses = &r.host_sides[0].pauses;
    let spans: Vec<_> = pauses.iter().map(|p| (p.start, p.end, p.open)).collect();
    assert_eq!(
        spans[..2],
        [(us(5_210), us(10_000), true), (us(1_205), us(5_205), false)]
    );
    for pause in pauses {
        let sum: Nanos = pause.doing.iter().map(|(_, time)| *time).sum();
        assert_eq!(sum, pause.end.saturating_sub(pause.start), "{pause:?}");
    }
    assert_eq!(
        pauses[1].doing,
        [
            ("blocked (read, /data/x)".to_string(), Nanos(2_000_000)),
            ("cuStreamSynchronize".to_string(), Nanos(1_000_000)),
            ("running".to_string(), Nanos(990_000)),
            ("cuMemcpyHtoDAsync_v2".to_string(), Nanos(10_000)),
        ]
    );
}

#[test]
fn a_call_that_has_not_returned_counts_with_its_time_so_far() {
    let story = probed(
        host_only(),
        MAIN,
        CU_SYNC,
        (6_000, 10_000),
        ApiCall::NOT_RETURNED,
    );
    let r = story.report();
    assert_eq!(r.host_sides[0].callers[0].times.sync, Nanos(5_000_000));
    assert_eq!(
        r.host_sides[0].pauses[0].doing[0],
        ("cuStreamSynchronize".to_string(), Nanos(4_000_000))
    );
}

/// A kernel every millisecond for `n` of them, each launched 90 us before.
fn steady(n: i64) -> Story {
    (0..n).fold(timeline(), |story, i| {
        let at = i * 1_000;
        story.kernel((at, at + 10), (at + 100, at + 900))
    })
}

/// From 3.5 to 6.5 ms the shim of process 100 does not record.
fn interrupted() -> Story {
    let mut story = steady(10)
        .event(shim(100, 0, ShimState::Active))
        .event(shim(100, 3_500, ShimState::Failed))
        .event(shim(100, 6_500, ShimState::Active));
    story.events.retain(|e| match e {
        Event::GpuOp(op) => !(us(3_500)..us(6_500)).contains(&op.start),
        Event::ApiCall(call) => !(us(3_500)..us(6_500)).contains(&call.start),
        _ => true,
    });
    story
}

#[test]
fn where_only_probes_measured_nothing_is_blamed() {
    let without = interrupted().report();
    let mut story = probes(interrupted(), 100, 3_600, 9, "it failed");
    for at in [4_000, 5_000, 6_000] {
        story = probed(story, MAIN, CU_LAUNCH, (at, at + 10), 0);
    }
    let with = probes(story, 100, 6_600, 0, "").report();
    check(&with);
    let causes = |r: &Report| {
        let rows = r.gpus[0].causes.iter();
        rows.map(|c| (c.cause, c.total)).collect::<Vec<_>>()
    };
    assert_eq!(causes(&with), causes(&without));
    assert!(total(&with, Cause::UnknownMeasurement) >= 3_000);
    assert_eq!(with.gpus[0].busy, without.gpus[0].busy);
    assert_eq!(with.quality.gpu_coverage, Some(1.0));
    assert_eq!(with.quality.unmatched_gpu_records, 0);
    let said =
        "pid 100: it failed: from 3.60 ms to 6.50 ms of the recording only its calls are known";
    assert!(texts(&with).contains(said), "{}", texts(&with));
}

#[test]
fn what_cupti_recorded_too_counts_once() {
    let mut story = probes(interrupted(), 100, 3_600, 9, "it failed");
    story = probed(story, MAIN, CU_LAUNCH, (5_000, 5_010), 0);
    // The probes are still there for a while when the shim goes on.
    story = probed(story, MAIN, CU_LAUNCH, (7_001, 7_009), 0);
    story = probed(story, MAIN, CU_LAUNCH, (8_001, 8_009), 0);
    let r = probes(story, 100, 8_100, 0, "").report();
    let pauses = &r.host_sides[0].pauses;
    let ends: Vec<_> = pauses.iter().map(|p| (p.end, p.open)).collect();
    assert_eq!(ends, [(us(6_500), true)]);
    let count = |name: &str| r.calls.iter().find(|c| c.name == name).map(|c| c.count);
    assert_eq!(count("cuLaunchKernel"), Some(1));
    assert_eq!(count("cudaLaunchKernel"), Some(7));
    let main = r.threads.iter().find(|t| t.who.tid == Tid(MAIN)).unwrap();
    assert_eq!(main.launches, 8);
}

#[test]
fn beside_one_that_cupti_records_another_process_is_told_apart() {
    let story = probes(steady(10), CHILD, 0, 9, "no ptrace");
    let r = probed(story, CHILD, CU_LAUNCH, (500, 510), 0).report();
    assert_eq!(r.quality.gpu_coverage, Some(1.0));
    assert_eq!(r.host_sides.len(), 1);
    let said = "pid 300: the host's side only, by probes on the CUDA driver, because no ptrace: what a GPU did for it is not known; what others seem to leave idle may be its work";
    assert!(texts(&r).contains(said), "{}", texts(&r));
}

#[test]
fn calls_inside_of_calls_are_counted_and_their_time_once() {
    let mut story = probes(timeline(), 100, 0, 9, "x");
    story = probed(story, MAIN, CU_ALLOC, (100, 200), 0);
    story = probed(story, MAIN, CU_SYNC, (110, 150), 0);
    let r = story.report();
    let caller = &r.host_sides[0].callers[0];
    assert_eq!((caller.calls, caller.launches), (2, 0));
    assert_eq!((caller.times.memory.0, caller.times.sync.0), (100_000, 0));
    assert!(r.host_sides[0].pauses.is_empty());
}
