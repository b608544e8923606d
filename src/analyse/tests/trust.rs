//! What happens when records are lost, invalid or contradict each other.

use super::story::*;
use crate::analyse::cause::Cause;
use crate::analyse::report::Report;
use crate::event::*;

/// A kernel each millisecond, launched late; `n` of them.
fn steady(n: i64) -> Story {
    let mut story = timeline();
    for i in 0..n {
        let t = i * 1_000;
        story = story.kernel((t, t + 5), (t + 10, t + 100));
    }
    story.end = n * 1_000 + 1_000_000;
    story
}

fn doubtful(r: &Report) -> Vec<u64> {
    let mut gaps: Vec<_> = r.gpus[0].gaps.iter().collect();
    gaps.sort_by_key(|g| g.start);
    gaps.iter()
        .filter(|g| g.parts.iter().any(|p| p.cause == Cause::UnknownMeasurement))
        .map(|g| (g.start.0 - us(0).0) / 1_000)
        .collect()
}

fn all(mut story: Story) -> Report {
    story.options.gaps = None;
    story.report()
}

fn drop_ops(mut story: Story, dropped: impl Fn(i64) -> bool) -> Story {
    let mut i = -1;
    story.events.retain(|e| match e {
        Event::GpuOp(_) => {
            i += 1;
            !dropped(i)
        }
        _ => true,
    });
    story
}

#[test]
fn a_loss_of_gpu_records_touches_its_gaps_and_no_others() {
    for source in [
        LossSource::ShimRing(Pid(100)),
        LossSource::Cupti(Pid(100)),
        LossSource::ClockStep,
        LossSource::Damage,
    ] {
        let r = all(steady(10).lost(source, 3, (3_500, 4_500)));
        assert_eq!(doubtful(&r), [3_100, 4_100], "{source:?}");
        assert_eq!(total(&r, Cause::UnknownMeasurement), 2 * 910);
    }
    let r = all(steady(10).lost(LossSource::ShimRing(Pid(999)), 3, (3_500, 4_500)));
    assert!(doubtful(&r).is_empty());
}

#[test]
fn lost_scheduling_events_hide_the_time_that_they_were_lost_in() {
    // MAIN runs on CPU 1: what CPU 3 lost is not about it.
    let r = all(steady(3).lost(LossSource::Bpf(Cpu(1)), 7, (1_200, 1_300)));
    assert_eq!(total(&r, Cause::UnknownMeasurement), 100);
    assert_eq!(r.quality.bpf_lost, 7);
    let r = all(steady(3).lost(LossSource::Bpf(Cpu(3)), 7, (1_200, 1_300)));
    assert_eq!(total(&r, Cause::UnknownMeasurement), 0);
    let asleep = steady(3).main_sleeps((1_110, 1_900), S, Some(NANOSLEEP), None);
    // It may have been woken and sleep on something else now, up to its next event.
    let r = all(asleep.lost(LossSource::Bpf(Cpu(3)), 7, (1_200, 1_300)));
    assert_eq!(total(&r, Cause::UnknownMeasurement), 700);
    // What it waits for is who ends the wait.
    let waits = steady(3).main_sleeps((1_110, 1_900), S, Some(FUTEX), None);
    let r = all(waits.lost(LossSource::Bpf(Cpu(3)), 7, (1_200, 1_300)));
    assert_eq!(total(&r, Cause::UnknownMeasurement), 790);
}

#[test]
fn below_the_coverage_that_counts_nothing_is_said_about_idle_time() {
    let r = all(drop_ops(steady(1_000), |i| i % 20 == 3));
    let gpu = &r.gpus[0];
    assert_eq!((gpu.busy, gpu.idle, gpu.idle_explained), (None, None, None));
    assert_eq!(r.quality.gpu_coverage, Some(0.95));
    assert!(
        r.quality.warnings[0].contains("950 of 1,000 launches"),
        "{:?}",
        r.quality.warnings
    );
}

#[test]
fn one_missing_operation_among_thousands_makes_its_gap_unknown() {
    let r = all(drop_ops(steady(2_000), |i| i == 500));
    assert_eq!(doubtful(&r), [499_100]);
    assert!(r.gpus[0].idle.is_some());
}

#[test]
fn a_loss_that_can_be_placed_does_not_hide_everything() {
    let story = drop_ops(steady(1_000), |i| (100..150).contains(&i));
    // A call that was lost within 50 µs before a gap would be a part of what it is judged by.
    let r = all(story.lost(LossSource::ShimRing(Pid(100)), 50, (99_900, 150_040)));
    assert!(r.gpus[0].idle.is_some());
    assert_eq!(r.quality.gpu_coverage, Some(0.95));
    assert_eq!(doubtful(&r), [99_100]);
}

#[test]
fn launches_that_failed_are_not_missed() {
    let mut story = steady(10);
    for i in 0..5 {
        story.api(MAIN, LAUNCH, (500 + i * 1_000, 505 + i * 1_000));
        let Some(Event::ApiCall(call)) = story.events.last_mut() else {
            unreachable!()
        };
        call.result = 700;
    }
    let r = all(story);
    assert_eq!((r.quality.gpu_coverage, doubtful(&r)), (Some(1.0), vec![]));
}

#[test]
fn launches_captured_into_a_graph_are_not_missed() {
    let mut story = steady(2);
    for i in 0..50 {
        story = story.call(MAIN, LAUNCH, (1_200 + i * 10, 1_205 + i * 10));
    }
    story = story.call(MAIN, INSTANTIATE, (1_800, 1_900));
    let r = all(story.kernel((2_000, 2_005), (2_010, 2_100)));
    assert_eq!((r.quality.gpu_coverage, doubtful(&r)), (Some(1.0), vec![]));
}

#[test]
fn launches_still_under_way_at_the_end_leave_the_open_gap_unknown() {
    let mut story = steady(10).attach(11_000);
    for i in 0..20 {
        story = story.call(MAIN, LAUNCH, (9_050 + i, 9_051 + i));
    }
    let r = all(story);
    assert_eq!(r.quality.gpu_coverage, Some(1.0));
    assert_eq!(doubtful(&r), [9_100]);
}

#[test]
fn an_operation_without_its_launch_explains_nothing() {
    let mut story = steady(3);
    let name = story.name("_Z6kernelv");
    let op = Story::gpu_op(
        OpKind::Kernel { name },
        (5_000, 5_100),
        CorrelationId(77_777),
    );
    let r = all(story.event(Event::GpuOp(op)));
    assert_eq!(r.quality.unmatched_gpu_records, 1);
    assert_eq!(doubtful(&r), [2_100]);
    let gap = longest(&r);
    assert!(gap.dispatcher.is_none() && gap.lead_ns.is_none());
}

#[test]
fn an_operation_that_starts_before_its_launch_is_a_measurement_error() {
    let r = all(steady(1_100).kernel((1_200_000, 1_200_005), (1_150_000, 1_150_100)));
    assert_eq!(r.quality.invalid_gpu_records, 1);
    assert_eq!(doubtful(&r), [1_099_100]);
}

#[test]
fn a_record_with_impossible_times_makes_its_gap_unknown() {
    let mut story = steady(1_100);
    let correlation = story.api(MAIN, LAUNCH, (500_500, 500_505));
    let r = all(story.event(Event::GpuInvalid(GpuInvalid {
        pid: Pid(100),
        device: DeviceId(0),
        correlation,
        seen: us(600_000),
    })));
    assert_eq!(r.quality.invalid_gpu_records, 1);
    assert_eq!(doubtful(&r), [500_100]);
}

#[test]
fn zeroed_and_inverted_operations_are_counted_and_never_used() {
    let mut story = steady(10);
    let mut op = story.kernel_op((0, 0), CorrelationId(1));
    op.start = crate::units::Nanos(0);
    op.end = crate::units::Nanos(0);
    let mut inverted = story.kernel_op((5, 9), CorrelationId(2));
    std::mem::swap(&mut inverted.start, &mut inverted.end);
    let r = all(story.event(Event::GpuOp(op)).event(Event::GpuOp(inverted)));
    assert_eq!(r.quality.invalid_gpu_records, 2);
    assert_eq!(r.gpus[0].operations, 10);
    // Two of twelve are too many to conclude anything.
    assert_eq!(r.gpus[0].idle, None);
}

#[test]
fn a_duration_that_its_own_stream_contradicts_is_not_busy_time() {
    // One of 1,100 kernels claims to have lasted over the three after it.
    let mut story = steady(1_100);
    let long = story.events.iter_mut().filter_map(|e| match e {
        Event::GpuOp(op) => Some(op),
        _ => None,
    });
    let op = long.into_iter().nth(500).unwrap();
    op.end = us(503_500);
    let r = all(story);
    assert_eq!(r.quality.invalid_gpu_records, 1);
    assert_eq!(r.gpus[0].busy.map(|b| b.0), Some(1_099 * 90_000));
    assert_eq!(doubtful(&r), [499_100, 501_100, 502_100, 503_100]);
}

#[test]
fn a_shim_that_pauses_is_blind_until_it_goes_on() {
    let mut story = steady(10);
    for (at, state) in [
        (0, ShimState::Active),
        (3_500, ShimState::Paused),
        (4_500, ShimState::Active),
    ] {
        story = story.event(Event::Shim(Shim {
            ts: us(at),
            pid: Pid(100),
            state,
            reason: NameId(0),
            cupti_path: NameId(0),
            cupti_version: 0,
            simulated: true,
        }));
    }
    assert_eq!(doubtful(&all(story)), [3_100, 4_100]);
}

#[test]
fn without_gpu_records_nothing_is_called_idle() {
    let mut story = timeline();
    let reason = story.name("ncu holds it");
    let r = story
        .event(Event::Shim(Shim {
            ts: us(10),
            pid: Pid(100),
            state: ShimState::Busy,
            reason,
            cupti_path: NameId(0),
            cupti_version: 0,
            simulated: false,
        }))
        .report();
    assert!(r.gpus.is_empty());
    assert_eq!(r.quality.gpu_coverage, None);
    let all = r.quality.warnings.join("\n");
    assert!(all.contains("no GPU operations"), "{all}");
    assert!(
        all.contains("pid 100: another tool holds CUPTI: ncu holds it"),
        "{all}"
    );
}

#[test]
fn a_cut_recording_says_so() {
    let story = steady(3);
    let mut t = crate::model::Timeline::new(&story.meta);
    story.events.iter().for_each(|e| t.push(e));
    t.finish(None);
    let r = crate::analyse::report(&t, &story.options);
    check(&r);
    assert!(r.quality.warnings.iter().any(|w| w.contains("cut")));
}

#[test]
fn collection_that_began_late_starts_the_window_late() {
    let story = steady(10).attach(20_000).event(Event::Shim(Shim {
        ts: us(5),
        pid: Pid(100),
        state: ShimState::Active,
        reason: NameId(0),
        cupti_path: NameId(0),
        cupti_version: 0,
        simulated: true,
    }));
    let gpu = &all(story).gpus[0];
    assert_eq!((gpu.window_start, gpu.window_end), (us(5), us(20_000)));
    assert_eq!(gpu.startup.0, 5_000);
}

#[test]
fn collection_that_stops_at_the_end_ends_the_window() {
    let shim = |at, state| {
        Event::Shim(Shim {
            ts: us(at),
            pid: Pid(100),
            state,
            reason: NameId(0),
            cupti_path: NameId(0),
            cupti_version: 0,
            simulated: true,
        })
    };
    let story = steady(10)
        .attach(20_000)
        .event(shim(0, ShimState::Active))
        .event(shim(19_000, ShimState::Dormant));
    let r = all(story);
    assert_eq!(r.gpus[0].window_end, us(19_000));
    assert_eq!((doubtful(&r), r.gpus[0].drain.0), (vec![], 1_000_000));
}

fn shim(pid: u32, at: i64, state: ShimState, reason: NameId) -> Event {
    Event::Shim(Shim {
        ts: us(at),
        pid: Pid(pid),
        state,
        reason,
        cupti_path: NameId(0),
        cupti_version: 0,
        simulated: true,
    })
}

fn ended(pid: u32, at: i64) -> Event {
    Event::Exit(Exit {
        ts: us(at),
        tid: Tid(pid),
        pid: Pid(pid),
        code: 0,
    })
}

const TAKEN: &str = "another tool has taken CUPTI over";

/// Operations of the sixth to the tenth millisecond went to another tool.
fn taken_over(story: Story) -> Story {
    let mut story = story.lost(LossSource::Cupti(Pid(100)), 0, (5_500, 7_500));
    story.events.retain(|e| match e {
        Event::GpuOp(op) => !(us(6_000)..us(10_000)).contains(&op.start),
        Event::ApiCall(call) => !(us(6_000)..us(10_000)).contains(&call.start),
        _ => true,
    });
    let reason = story.name(TAKEN);
    story
        .event(shim(100, 0, ShimState::Active, NameId(0)))
        .event(shim(100, 7_501, ShimState::Busy, reason))
}

#[test]
fn while_another_tool_has_cupti_idle_time_is_not_known_and_it_is_said() {
    let story = taken_over(steady(20)).event(shim(100, 9_500, ShimState::Active, NameId(0)));
    let r = all(story);
    assert_eq!(doubtful(&r), [5_100]);
    assert_eq!(total(&r, Cause::UnknownMeasurement), 4_910);
    let said: Vec<_> = r
        .quality
        .warnings
        .iter()
        .filter(|w| w.contains(TAKEN))
        .collect();
    let expected = format!(
        "pid 100: {TAKEN}: no GPU records from 5.50 ms to 9.50 ms of the recording (4.00 ms)"
    );
    assert_eq!(said, [&expected]);
}

#[test]
fn a_silence_that_nobody_explains_is_told_all_the_same() {
    let r = all(steady(10).lost(LossSource::Cupti(Pid(100)), 0, (3_500, 4_500)));
    assert_eq!(doubtful(&r), [3_100, 4_100]);
    let expected = "pid 100: GPU records stopped coming back: no GPU records from 3.50 ms to 4.50 ms of the recording (1.00 ms)";
    assert!(
        r.quality.warnings.iter().any(|w| w == expected),
        "{:?}",
        r.quality.warnings
    );
}

/// What the device did from its last operation on is not known, so that nothing is said of it.
#[test]
fn a_takeover_that_lasts_to_the_end_ends_the_window() {
    let story = taken_over(steady(6).attach(20_000))
        .event(ended(100, 15_000))
        .event(shim(100, 14_000, ShimState::Dormant, NameId(0)));
    let r = all(story);
    assert_eq!(r.gpus[0].window_end, us(5_100));
    assert_eq!(total(&r, Cause::UnknownMeasurement), 0);
    let until_its_end = "from 5.50 ms to 15.0 ms";
    assert!(
        r.quality.warnings.iter().any(|w| w.contains(until_its_end)),
        "{:?}",
        r.quality.warnings
    );
}

#[test]
fn a_process_that_has_ended_hides_nothing_of_others() {
    let other = |e: Event| match e {
        Event::GpuOp(op) if op.start >= us(5_000) => Event::GpuOp(GpuOp {
            pid: Pid(200),
            ..op
        }),
        Event::ApiCall(call) if call.start >= us(5_000) => Event::ApiCall(ApiCall {
            pid: Pid(200),
            ..call
        }),
        e => e,
    };
    let mut story = steady(10);
    story.events = story.events.into_iter().map(other).collect();
    let story = story
        .device(100, 0, "GPU-1")
        .device(200, 0, "GPU-1")
        .event(shim(100, 0, ShimState::Active, NameId(0)))
        .event(shim(200, 0, ShimState::Active, NameId(0)))
        .event(shim(100, 4_500, ShimState::Dormant, NameId(0)))
        .event(ended(100, 4_600));
    let r = all(story);
    assert_eq!((r.gpus.len(), doubtful(&r)), (1, vec![4_100]));
}
