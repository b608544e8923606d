//! Busy and idle time, the window, and the lead rule.

use super::story::*;
use crate::analyse::cause::{Cause, Side};
use crate::analyse::{report, Options};
use crate::event::*;
use crate::units::Nanos;

#[test]
fn overlapping_streams_are_one_busy_time() {
    let r = timeline()
        .kernel_on(7, (0, 5), (10, 100))
        .kernel_on(13, (5, 10), (20, 50))
        .kernel_on(13, (11, 15), (60, 120))
        .report();
    let gpu = &r.gpus[0];
    assert_eq!((gpu.busy, gpu.idle), (Some(Nanos(110_000)), Some(Nanos(0))));
    assert_eq!((gpu.gap_count, gpu.idle_explained), (0, Some(1.0)));
}

#[test]
fn a_short_operation_inside_a_long_one_opens_no_gap() {
    let r = timeline()
        .kernel_on(7, (0, 5), (10, 1_000))
        .kernel_on(8, (5, 10), (20, 30))
        .kernel_on(8, (500, 505), (900, 950))
        .report();
    assert_eq!(r.gpus[0].idle, Some(Nanos(0)));
}

#[test]
fn a_copy_is_busy_time_and_a_sync_record_is_not() {
    let story = timeline()
        .kernel((0, 5), (10, 100))
        .copy(
            CopyKind::HostToDevice,
            MemoryKind::Pinned,
            1 << 20,
            (20, 25),
            (100, 300),
        )
        .event(Event::Sync(Sync {
            pid: Pid(100),
            kind: SyncKind::Stream,
            context: ContextId(1),
            stream: Some(StreamId(7)),
            start: us(300),
            end: us(900),
            correlation: CorrelationId(0),
        }))
        .kernel((990, 995), (1_000, 1_100));
    let gpu = &story.report().gpus[0];
    assert_eq!(gpu.idle, Some(Nanos(700_000)));
    assert_eq!(gpu.busy_memcpy, Nanos(200_000));
    assert_eq!(gpu.busy_kernel, Nanos(190_000));
}

#[test]
fn devices_of_two_processes_are_one_card_by_uuid() {
    let r = timeline()
        .device(100, 0, "GPU-a")
        .device(300, 1, "GPU-a")
        .device(100, 1, "GPU-b")
        .kernel((0, 5), (10, 100))
        .kernel_with(CHILD, (80, 85), (90, 200), |op| {
            op.pid = Pid(300);
            op.device = DeviceId(1);
        })
        .report();
    assert_eq!(r.gpus.len(), 2);
    assert_eq!(r.gpus[0].uuid, "GPU-a");
    assert_eq!(r.gpus[0].busy, Some(Nanos(190_000)));
    assert_eq!((r.gpus[1].operations, r.gpus[1].idle), (0, None));
}

/// Check that a GPU at 0 % is no busy one, nor one with all its idle time explained.
#[test]
fn of_a_device_without_operations_nothing_is_told() {
    let idle = || timeline().device(100, 0, "GPU-a");
    for story in [
        idle().call(MAIN, DEVICE_SYNC, (10, 500)),
        idle().attach(1_000),
    ] {
        let r = story.report();
        let gpu = &r.gpus[0];
        assert_eq!((gpu.operations, gpu.gap_count), (0, 0));
        assert_eq!((gpu.busy, gpu.idle, gpu.idle_explained), (None, None, None));
        assert!(gpu.causes.is_empty() && gpu.gaps.is_empty());
        // No call overlaps an idle time that is not known.
        assert!(r.calls.iter().all(|call| call.idle_overlap.is_none()));
    }
}

#[test]
fn the_kernels_of_one_device_are_told_alone() {
    let mut story = timeline().device(100, 0, "GPU-a").device(100, 1, "GPU-b");
    let other = story.name("other");
    let story = story
        .kernel((0, 5), (10, 100))
        .kernel_with(MAIN, (105, 110), (120, 220), |op| {
            op.device = DeviceId(1);
            op.kind = OpKind::Kernel { name: other };
        });
    let kernels = |gpu| -> Vec<(String, u64, Nanos)> {
        let options = Options {
            gpu,
            ..Options::default()
        };
        let rows = report(&story.built(), &options).kernels.into_iter();
        rows.map(|k| (k.name, k.count, k.total)).collect()
    };
    let all = kernels(None);
    assert_eq!(all.len(), 2);
    let first = kernels(Some(0));
    assert_eq!((first.len(), first[0].1, first[0].2), (1, 1, Nanos(90_000)));
    assert_ne!(first[0].0, "other");
    assert_eq!(kernels(Some(1)), [("other".to_string(), 1, Nanos(100_000))]);
}

#[test]
fn sub_microsecond_times_are_kept_to_the_nanosecond() {
    let mut story = timeline();
    for (start, end) in [(10_000u64, 10_300), (10_301, 10_750), (11_749, 11_750)] {
        let correlation = story.api(MAIN, LAUNCH, (1, 2));
        let mut op = story.kernel_op((0, 0), correlation);
        op.start = Nanos(us(0).0 + start);
        op.end = Nanos(us(0).0 + end);
        story = story.event(Event::GpuOp(op));
    }
    let r = story.report();
    assert_eq!(r.gpus[0].busy, Some(Nanos(300 + 449 + 1)));
    assert_eq!(r.gpus[0].idle, Some(Nanos(1 + 999)));
    assert_eq!(r.kernels[0].min, Nanos(1));
}

#[test]
fn a_launched_command_has_the_window_of_its_operations() {
    let r = timeline().kernel((990, 995), (1_000, 2_000)).report();
    let gpu = &r.gpus[0];
    assert_eq!((gpu.window_start, gpu.window_end), (us(1_000), us(2_000)));
    assert_eq!(
        (gpu.startup, gpu.drain),
        (Nanos(1_000_000), Nanos(98_000_000))
    );
    assert_eq!(gpu.gap_count, 0);
}

#[test]
fn an_attached_process_is_measured_over_the_whole_recording() {
    let r = timeline()
        .attach(10_000)
        .kernel((90, 95), (100, 1_000))
        .report();
    let gpu = &r.gpus[0];
    assert_eq!((gpu.window_start, gpu.window_end), (us(0), us(10_000)));
    assert_eq!(gpu.idle, Some(Nanos(9_100_000)));
    let open = longest(&r);
    assert!(open.next.is_none() && open.lead_ns.is_none());
    assert_eq!(open.dispatcher.as_ref().map(|d| d.tid), Some(Tid(MAIN)));
    assert_eq!(parts(open), [("host.compute", 9_000)]);
}

#[test]
fn a_late_launch_is_the_hosts_and_the_usual_lead_the_devices() {
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((1_090, 1_095), (1_100, 1_200))
        .report();
    let gap = longest(&r);
    assert_eq!(gap.lead_ns, Some(5_000));
    assert_eq!(
        parts(gap),
        [
            ("host.compute", 990),
            ("host.launch-bound", 5),
            ("gpu.launch-latency", 5)
        ]
    );
    assert_eq!(r.gpus[0].usual_lead, Some(Nanos(5_000)));
}

#[test]
fn work_queued_before_the_device_ran_dry_never_blames_the_host() {
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((10, 15), (600, 700))
        .report();
    assert_eq!(parts(longest(&r)), [("unknown", 500)]);
    assert!(r.gpus[0]
        .causes
        .iter()
        .all(|c| c.cause.side() != Side::Host));
}

#[test]
fn a_negative_lead_counts_as_none() {
    // The kernel starts while the launch call has not returned.
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((995, 1_020), (1_000, 1_100))
        .report();
    let gap = longest(&r);
    assert_eq!(gap.lead_ns, Some(-20_000));
    assert_eq!(
        parts(gap),
        [("host.compute", 895), ("host.launch-bound", 5)]
    );
    assert_eq!(r.gpus[0].usual_lead, Some(Nanos(0)));
}

#[test]
fn short_gaps_get_their_cause_from_the_lead_rule_alone() {
    // MAIN sleeps in the first gap: too short for that to matter.
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .main_sleeps((101, 104), S, Some(NANOSLEEP), None)
        .kernel((105, 106), (108, 200))
        .kernel((110, 115), (205, 300))
        .report();
    assert!(r.gpus[0].gaps.is_empty());
    assert_eq!(r.gpus[0].gap_count, 2);
    assert_eq!(total(&r, Cause::LaunchBound), 6);
    assert_eq!(total(&r, Cause::GpuLaunchLatency), 2 + 5);
    assert_eq!(total(&r, Cause::Sleep), 0);
}

#[test]
fn a_graph_is_launched_once_however_many_nodes_it_has() {
    let mut story = timeline().kernel((0, 5), (10, 100));
    let graph = story.api(MAIN, GRAPH_LAUNCH, (1_000, 1_200));
    for (node, span) in [
        (1, (1_010, 1_050)),
        (2, (1_070, 1_100)),
        (3, (1_120, 1_150)),
    ] {
        let mut op = story.kernel_op(span, graph);
        op.graph = 9;
        op.node = node;
        story = story.event(Event::GpuOp(op));
    }
    let r = story.report();
    // Between the nodes the call has not even returned, and still the host owes nothing.
    assert_eq!(total(&r, Cause::LaunchBound), 10);
    assert_eq!(total(&r, Cause::Compute), 900);
    let device = total(&r, Cause::GpuLaunchLatency) + total(&r, Cause::Unknown);
    assert_eq!(device, 40);
}

#[test]
fn the_list_is_cut_and_the_sums_are_not() {
    let mut story = timeline();
    for i in 0..10 {
        let t = i * 1_000;
        story = story.kernel((t, t + 5), (t + 10, t + 100));
    }
    let all = story.report();
    assert_eq!(all.gpus[0].gaps.len(), 9);
    story.options.gaps = Some(3);
    let some = story.report();
    assert_eq!(some.gpus[0].gaps.len(), 3);
    assert_eq!(some.gpus[0].gap_count, 9);
    assert_eq!(some.gpus[0].idle, all.gpus[0].idle);
    let sums = |r: &crate::analyse::report::Report| -> Vec<_> {
        r.gpus[0]
            .causes
            .iter()
            .map(|c| (c.cause, c.total))
            .collect()
    };
    assert_eq!(sums(&some), sums(&all));
}

#[test]
fn one_device_can_be_asked_for() {
    let mut story = timeline()
        .device(100, 0, "GPU-a")
        .device(100, 1, "GPU-b")
        .kernel((0, 5), (10, 100))
        .kernel_with(MAIN, (6, 8), (12, 50), |op| op.device = DeviceId(1));
    story.options.gpu = Some(1);
    let r = story.report();
    assert_eq!(r.gpus.len(), 1);
    assert_eq!((r.gpus[0].index, r.gpus[0].uuid.as_str()), (1, "GPU-b"));
}

#[test]
fn events_in_any_order_give_the_same_report() {
    let story = timeline()
        .kernel((0, 5), (10, 100))
        .main_sleeps((120, 900), S, Some(NANOSLEEP), None)
        .kernel((990, 995), (1_000, 1_100));
    let mut backwards = story.clone();
    backwards.events.reverse();
    // Definitions still come first; everything else is upside down.
    backwards
        .events
        .sort_by_key(|e| !matches!(e, Event::Define(_)));
    let (a, b) = (story.report(), backwards.report());
    assert_eq!(parts(longest(&a)), parts(longest(&b)));
    assert_eq!(a.gpus[0].causes.len(), b.gpus[0].causes.len());
}

#[test]
fn a_call_and_the_call_inside_it_with_one_id_are_one_launch() {
    let mut story = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((200, 220), (230, 300));
    let inner = story.events.iter().rev().find_map(|e| match e {
        Event::ApiCall(call) => Some(*call),
        _ => None,
    });
    let inner = inner.unwrap();
    story = story.event(Event::ApiCall(ApiCall {
        api: Api {
            domain: ApiDomain::Driver,
            cbid: 307,
        },
        start: us(205),
        end: us(215),
        ..inner
    }));
    let r = story.report();
    // The lead counts from the end of the outer call.
    assert_eq!(longest(&r).lead_ns, Some(10_000));
    assert_eq!(r.quality.gpu_coverage, Some(1.0));
    assert_eq!(r.calls.len(), 1);
    assert_eq!(
        (r.calls[0].name.as_str(), r.calls[0].count),
        ("cudaLaunchKernel", 2)
    );
}

#[test]
fn calls_show_how_much_of_their_time_a_device_was_idle() {
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .call(MAIN, DEVICE_SYNC, (20, 120))
        .kernel((190, 195), (200, 300))
        .report();
    let sync = r
        .calls
        .iter()
        .find(|c| c.name == "cudaDeviceSynchronize")
        .unwrap();
    assert_eq!(
        (sync.total, sync.idle_overlap),
        (Nanos(100_000), Some(Nanos(20_000)))
    );
}
