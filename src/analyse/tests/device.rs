//! Work that was queued in time and still did not start: the host is never the answer.

use super::story::*;
use crate::analyse::cause::{Cause, Side};
use crate::analyse::report::Report;
use crate::event::*;

fn never_the_host(r: &Report) {
    let late = |c: &&crate::analyse::report::CauseRow| c.cause.side() == Side::Host;
    assert_eq!(r.gpus[0].causes.iter().find(late).map(|c| c.cause), None);
}

/// Device 0 ends at 100 µs and its next kernel, launched at 60, waits for device 1 until 5,000.
fn across_devices(wait: bool) -> Report {
    let mut story = timeline()
        .device(100, 0, "GPU-a")
        .device(100, 1, "GPU-b")
        .kernel((0, 5), (10, 100))
        .kernel_with(MAIN, (6, 8), (20, 4_992), |op| {
            op.device = DeviceId(1);
            op.stream = StreamId(9);
        });
    if wait {
        story = story.waits_for_event(7, 50);
    }
    story.kernel((60, 65), (5_000, 5_100)).report()
}

#[test]
fn waiting_for_an_event_of_another_device_is_a_dependency() {
    let r = across_devices(true);
    assert_eq!(parts(longest(&r)), [("gpu.dependency", 4_900)]);
    assert_eq!(r.gpus[0].causes[0].by[0].what, "stream 9 of pid 100");
    assert_eq!(longest(&r).lead_ns, Some(4_935_000));
    never_the_host(&r);
}

#[test]
fn the_same_timing_without_an_event_wait_is_not_called_one() {
    let r = across_devices(false);
    assert_eq!(parts(longest(&r)), [("unknown", 4_900)]);
    never_the_host(&r);
}

#[test]
fn an_event_wait_of_another_stream_or_of_earlier_work_does_not_count() {
    // On stream 8; and before the predecessor on stream 7.
    let r = timeline()
        .waits_for_event(7, -10)
        .kernel((0, 5), (10, 100))
        .waits_for_event(8, 50)
        .kernel((60, 65), (5_000, 5_100))
        .report();
    assert_eq!(parts(longest(&r)), [("unknown", 4_900)]);
}

#[test]
fn a_host_function_between_two_operations_is_named() {
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .call(MAIN, HOST_FUNC, (20, 22))
        .kernel((30, 35), (5_000, 5_100))
        .report();
    assert_eq!(parts(longest(&r)), [("gpu.host-callback", 4_900)]);
    assert_eq!(r.gpus[0].causes[0].by[0].what, "cudaLaunchHostFunc");
    never_the_host(&r);
}

#[test]
fn a_host_function_after_the_launch_has_nothing_to_do_with_it() {
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((30, 35), (5_000, 5_100))
        .call(MAIN, HOST_FUNC, (40, 42))
        .report();
    assert_eq!(parts(longest(&r)), [("unknown", 4_900)]);
}

#[test]
fn copies_of_one_direction_queue_for_their_engine() {
    // A short copy of device 0 starts when a long one of another device is done.
    let copies = |kind| {
        let mut story = timeline()
            .device(100, 0, "GPU-a")
            .device(100, 1, "GPU-b")
            .kernel((0, 5), (10, 100));
        let correlation = story.api(MAIN, MEMCPY_ASYNC, (6, 8));
        let long = GpuOp {
            device: DeviceId(1),
            stream: StreamId(9),
            ..Story::gpu_op(
                OpKind::Memcpy {
                    kind,
                    src: MemoryKind::Pinned,
                    dst: MemoryKind::Device,
                    bytes: 1 << 30,
                },
                (20, 7_990),
                correlation,
            )
        };
        story
            .event(Event::GpuOp(long))
            .copy_on(
                8,
                CopyKind::HostToDevice,
                MemoryKind::Pinned,
                4096,
                (60, 65),
                (8_000, 8_010),
            )
            .report()
    };
    let r = copies(CopyKind::HostToDevice);
    assert_eq!(parts(longest(&r)), [("gpu.copy-engine", 7_900)]);
    never_the_host(&r);
    let r = copies(CopyKind::DeviceToHost);
    assert_eq!(parts(longest(&r)), [("unknown", 7_900)]);
}

#[test]
fn a_copy_on_the_same_device_keeps_it_busy() {
    let r = timeline()
        .copy_on(
            8,
            CopyKind::HostToDevice,
            MemoryKind::Pinned,
            1 << 30,
            (0, 5),
            (10, 8_000),
        )
        .copy_on(
            9,
            CopyKind::HostToDevice,
            MemoryKind::Pinned,
            4096,
            (20, 25),
            (8_002, 8_010),
        )
        .report();
    assert_eq!(r.gpus[0].idle.map(|n| n.0), Some(2_000));
    assert_eq!(total(&r, Cause::GpuLaunchLatency), 2);
}

#[test]
fn handing_the_device_to_another_process_is_named() {
    let r = timeline()
        .device(100, 0, "GPU-a")
        .device(300, 0, "GPU-a")
        .kernel((0, 5), (10, 100))
        .kernel_with(CHILD, (20, 25), (900, 1_000), |op| op.pid = Pid(300))
        .report();
    assert_eq!(parts(longest(&r)), [("gpu.other-process", 800)]);
    assert_eq!(r.gpus[0].causes[0].by[0].what, "stream 7 of pid 100");
}

#[test]
fn a_long_lead_after_a_late_launch_is_shared_out() {
    // Five launches to an idle device set the usual lead to 5 µs; the last one starts 400 µs late.
    let mut story = timeline();
    for i in 0..5 {
        let t = i * 40;
        story = story.kernel((t, t + 5), (t + 10, t + 20));
    }
    let r = story
        .waits_for_event(7, 990)
        .kernel((1_000, 1_005), (1_405, 1_500))
        .report();
    let last = longest(&r);
    assert_eq!(r.gpus[0].usual_lead.map(|n| n.0), Some(5_000));
    let device: Vec<_> = parts(last)
        .into_iter()
        .filter(|p| p.0.starts_with("gpu."))
        .collect();
    assert_eq!(device, [("gpu.launch-latency", 5), ("gpu.dependency", 395)]);
}

#[test]
fn a_somewhat_longer_lead_is_still_launch_latency() {
    let mut story = timeline();
    for i in 0..5 {
        let t = i * 40;
        story = story.kernel((t, t + 5), (t + 10, t + 20));
    }
    let r = story.kernel((1_000, 1_005), (1_017, 1_100)).report();
    assert_eq!(total(&r, Cause::Unknown), 0);
}

#[test]
fn a_copy_that_the_host_waits_for_was_queued_when_it_was_called() {
    // cudaMemcpy from pinned memory, called while the device was busy, behind a host function.
    let mut story = timeline()
        .kernel((0, 5), (10, 100))
        .call(MAIN, HOST_FUNC, (12, 14));
    let correlation = story.api(MAIN, 31, (20, 5_020));
    let copy = Story::gpu_op(
        OpKind::Memcpy {
            kind: CopyKind::HostToDevice,
            src: MemoryKind::Pinned,
            dst: MemoryKind::Device,
            bytes: 1 << 20,
        },
        (5_000, 5_010),
        correlation,
    );
    let r = story.event(Event::GpuOp(copy)).report();
    assert_eq!(parts(longest(&r)), [("gpu.host-callback", 4_900)]);
}

/// Device 0 ends at 100 µs, and what was launched at 60 starts at 5,000; pages move in between.
fn with_migrations(device: u32, moves: &[(i64, i64)], change: impl Fn(Story) -> Story) -> Report {
    let mut story = change(timeline().device(100, 0, "GPU-a").kernel((0, 5), (10, 100)));
    for &(from, to) in moves {
        story = story.event(Event::Migration(Migration {
            pid: Pid(100),
            device: DeviceId(device),
            kind: MigrationKind::DeviceFaults,
            start: us(from),
            end: us(to),
            bytes: 0,
        }));
    }
    story.kernel((60, 65), (5_000, 5_100)).report()
}

#[test]
fn while_managed_memory_moves_a_queued_operation_waits_for_it() {
    let moves = [(110, 2_000), (2_030, 4_990)];
    let r = with_migrations(0, &moves, |story| story);
    assert_eq!(parts(longest(&r)), [("gpu.unified-memory", 4_900)]);
    never_the_host(&r);
    // Those of another device are nothing to this one.
    let r = with_migrations(1, &moves, |story| story);
    assert_eq!(parts(longest(&r)), [("unknown", 4_900)]);
    // A part of the time is no reason for the rest.
    let r = with_migrations(0, &[(120, 2_080)], |story| story);
    let first = ("gpu.unified-memory", 2_000);
    assert_eq!(parts(longest(&r)), [first, ("unknown", 2_900)]);
}

#[test]
fn a_prefetch_is_awaited_through_an_event_and_an_operation_has_the_first_word() {
    let moves = [(110, 4_990)];
    let r = with_migrations(0, &moves, |story| story.waits_for_event(7, 50));
    assert_eq!(parts(longest(&r)), [("gpu.unified-memory", 4_900)]);
    let r = with_migrations(0, &moves, |story| {
        story
            .waits_for_event(7, 50)
            .device(100, 1, "GPU-b")
            .kernel_with(MAIN, (6, 8), (20, 4_992), |op| {
                op.device = DeviceId(1);
                op.stream = StreamId(9);
            })
    });
    assert_eq!(parts(longest(&r)), [("gpu.dependency", 4_900)]);
}
