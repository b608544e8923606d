//! The whole shim in a real process, on the simulated GPU, seen as gdiag sees it: through
//! `/proc/PID/map_files`. Needs `make simgpu`, or `GDIAG_SIMGPU` with its directory, and root.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod arrival;
mod conditions;
mod leaving;
mod program;
mod support;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use gdiag_shim_layout::cupti::{activity, unified_memory};
use gdiag_shim_layout::{
    kind, state, KernelRecord, ENV_DISABLE, ENV_RING_MIB, ENV_START, ENV_UNIFIED_MEMORY,
};
use support::{Collector, Records, Target};

const START: (&str, &str) = (ENV_START, "1");

/// The program that the shim is loaded into; the tests below run it as a process of its own.
#[test]
#[ignore = "started by the other tests"]
fn program() {
    program::program();
}

#[test]
fn a_launched_program_is_collected_from_its_first_launch_to_its_exit() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    let tid = target.ask("tid").parse().unwrap();
    target.ask("launch 100");
    target.ask("copy");
    target.ask("sync");
    target.exit();
    let records = collector.read();

    assert_eq!(records.states.first(), Some(&state::ACTIVE));
    assert_eq!(records.states.last(), Some(&state::FINISHED));
    assert_eq!(collector.state(), state::FINISHED);
    assert_eq!(
        collector
            .control()
            .simulated
            .load(std::sync::atomic::Ordering::Relaxed),
        1
    );
    assert_eq!(records.kernels.len(), 100);
    assert_eq!((records.memcpys.len(), records.memsets.len()), (2, 1));
    assert_eq!(records.devices.len(), 1);
    assert!(records.syncs.iter().any(|sync| sync.end >= sync.start));

    let launches: HashMap<u32, _> = records
        .calls
        .iter()
        .filter(|call| call.hdr.aux == 307)
        .map(|call| (call.correlation, call))
        .collect();
    assert_eq!(launches.len(), 100);
    for kernel in &records.kernels {
        let launch = launches[&kernel.correlation];
        assert_eq!(launch.tid, tid);
        assert!(
            launch.start <= kernel.start && kernel.start <= kernel.end,
            "{launch:?} {kernel:?}"
        );
        assert_eq!(records.names[&kernel.hdr.aux], "step_kernel");
    }
    // cuDeviceGetCount and cuEventQuery are not on the list; the program makes both.
    assert!(records
        .calls
        .iter()
        .all(|call| call.hdr.aux != 4 && call.hdr.aux != 120));
    assert!(records.lost.is_empty(), "{:?}", records.lost);
}

#[test]
fn every_version_of_cupti_gives_the_same_records() {
    for version in [
        "11.7", "11.8", "12.0", "12.4", "12.6", "12.8", "13.0", "13.1", "13.3", "13.5",
    ] {
        let Some(mut target) = Target::start(&[START, ("GDIAG_SIM_CUPTI", version)]) else {
            return;
        };
        let mut collector = Collector::attach(&target);
        target.ask("launch 10");
        target.ask("copy");
        target.exit();
        let records = collector.read();
        assert_eq!(records.kernels.len(), 10, "{version}");
        assert_eq!(
            (records.memcpys.len(), records.memsets.len()),
            (2, 1),
            "{version}"
        );
        assert_eq!(
            records
                .calls
                .iter()
                .filter(|call| call.hdr.aux == 307)
                .count(),
            10,
            "{version}"
        );
        let bytes: HashSet<u64> = records.memcpys.iter().map(|copy| copy.bytes).collect();
        assert_eq!(bytes, HashSet::from([4096]), "{version}");
        assert!(
            records
                .kernels
                .iter()
                .all(|kernel| records.names[&kernel.hdr.aux] == "step_kernel"),
            "{version}"
        );
    }
}

/// What became of migrations, and the kinds that CUPTI refused.
fn migrate(env: &[(&str, &str)]) -> Option<(Records, u64)> {
    let mut target = Target::start(&[&[START], env].concat())?;
    let mut collector = Collector::attach(&target);
    target.ask("migrate");
    target.exit();
    let records = collector.read();
    assert!(records.lost.is_empty(), "{:?}", records.lost);
    let refused = collector.control().refused_kinds.load(Ordering::Relaxed);
    Some((records, refused))
}

#[test]
fn migrations_of_managed_memory_are_records_when_they_are_asked_for() {
    // 12.6 has the shorter records.
    for version in ["11.7", "12.6", "13.0"] {
        let env = [(ENV_UNIFIED_MEMORY, "1"), ("GDIAG_SIM_CUPTI", version)];
        let Some((records, refused)) = migrate(&env) else {
            return;
        };
        assert_eq!(refused, 0, "{version}");
        let moves: Vec<_> = records
            .migrations
            .iter()
            .map(|it| (it.hdr.aux, it.device, it.value, it.start < it.end))
            .collect();
        let expected = [unified_memory::TO_DEVICE, unified_memory::TO_HOST]
            .map(|counter| (counter, 0, 1 << 20, true));
        assert_eq!(moves, expected, "{version}");
        assert!(records.memcpys.is_empty(), "{version}: they are no copies");
    }
}

#[test]
fn migrations_are_left_alone_unless_they_are_asked_for() {
    let Some((records, refused)) = migrate(&[]) else {
        return;
    };
    assert_eq!((records.migrations.len(), refused), (0, 0));
}

/// As a CUPTI may that does not know the devices before `cuInit` is over.
#[test]
fn a_cupti_that_refuses_unified_memory_at_first_is_asked_again() {
    let env = [
        START,
        (ENV_UNIFIED_MEMORY, "1"),
        // One for each scope.
        ("GDIAG_SIM_UNIFIED_MEMORY_REFUSALS", "2"),
    ];
    let Some(mut target) = Target::start(&env) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.wait_until("it is not refused any more", |_| {
        collector.control().refused_kinds.load(Ordering::Relaxed) == 0
    });
    target.ask("migrate");
    target.exit();
    assert_eq!(collector.read().migrations.len(), 2);
}

#[test]
fn a_cupti_that_refuses_unified_memory_records_all_else() {
    let env = [
        (ENV_UNIFIED_MEMORY, "1"),
        ("GDIAG_SIM_UNIFIED_MEMORY_REFUSALS", "1000"),
    ];
    let Some((records, refused)) = migrate(&env) else {
        return;
    };
    assert_eq!(refused, 1 << activity::UNIFIED_MEMORY_COUNTER);
    assert_eq!(records.migrations.len(), 0);
    assert!(records.states.contains(&state::ACTIVE));
    assert!(records.calls.iter().any(|call| call.hdr.aux == 467));
}

#[test]
fn a_dormant_shim_collects_when_it_is_wanted_and_only_then() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    collector.wait_for(state::DORMANT);
    target.ask("launch 10");
    let before = collector.read();
    assert_eq!((before.kernels.len(), before.calls.len()), (0, 0));

    collector.begin();
    collector.wait_for(state::ACTIVE);
    target.ask("launch 20");
    collector.stop();
    collector.wait_for(state::DORMANT);
    let during = collector.read();
    assert_eq!(during.kernels.len(), 20);
    assert_eq!(during.devices.len(), 1);

    target.ask("launch 30");
    target.exit();
    assert_eq!(collector.read().kernels.len(), 0);
}

#[test]
fn a_new_session_gets_the_names_and_devices_again() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    let mut both = Vec::new();
    for _ in 0..2 {
        collector.begin();
        collector.wait_for(state::ACTIVE);
        let mut records = collector.read_until(|records| records.devices.len() == 1);
        target.ask("launch 5");
        records.append(collector.read_until(|records| records.kernels.len() == 5));
        both.push(records);
    }
    target.exit();
    for records in both {
        assert!(records
            .kernels
            .iter()
            .all(|kernel| records.names[&kernel.hdr.aux] == "step_kernel"));
        let at = |kind| records.order.iter().position(|k| *k == kind).unwrap();
        assert!(at(kind::STATE) < at(kind::DEVICE) && at(kind::DEVICE) < at(kind::NAME));
    }
}

#[test]
fn a_collector_that_dies_leaves_the_program_alone_until_one_is_back() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    collector.begin();
    collector.wait_for(state::ACTIVE);
    target.ask("launch 5");
    collector.hold_breath();
    collector.wait_for(state::PAUSED);
    let paused = collector.read();
    assert_eq!(paused.kernels.len(), 5, "what was complete came out");
    assert_eq!(paused.states.last(), Some(&state::PAUSED));
    target.ask("launch 7");
    collector.breathe();
    collector.wait_for(state::ACTIVE);
    target.ask("launch 9");
    target.exit();
    assert_eq!(collector.read().kernels.len(), 9);
}

#[test]
fn a_killed_program_loses_nothing_that_was_written() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 50");
    collector.wait_until_unread();
    target.kill();
    let records = collector.read();
    assert_eq!(records.kernels.len(), 50);
    assert_eq!(
        collector.state(),
        state::ACTIVE,
        "nobody was there to say otherwise"
    );
}

#[test]
fn a_ring_that_nobody_reads_costs_records_and_not_time() {
    let Some(mut target) =
        Target::start(&[START, (ENV_RING_MIB, "1"), ("GDIAG_SIM_LAUNCH_NS", "0")])
    else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 15000");
    target.exit();
    let lost = collector
        .control()
        .lost_ring
        .load(std::sync::atomic::Ordering::Relaxed);
    let peak = collector
        .control()
        .ring_peak
        .load(std::sync::atomic::Ordering::Relaxed);
    let records = collector.read();
    let all = records.kernels.len()
        + records
            .calls
            .iter()
            .filter(|call| call.hdr.aux == 307)
            .count();
    assert!(all < 30_000 && lost > 0, "{all} {lost}");
    assert!(all as u64 + lost >= 30_000, "{all} {lost}");
    assert!(peak > (1 << 20) - 4096 && peak <= 1 << 20, "{peak}");
}

#[test]
fn dropped_records_are_counted_and_placed_in_time() {
    let Some(mut target) = Target::start(&[START, ("GDIAG_SIM_DROP", "10")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 100");
    target.exit();
    let records = collector.read();
    assert_eq!(records.kernels.len(), 90);
    assert_eq!(records.lost.iter().map(|lost| lost.count).sum::<u64>(), 10);
    for lost in &records.lost {
        assert_eq!(lost.hdr.aux, 1);
        assert!(lost.from < lost.to);
    }
    assert_eq!(
        collector
            .control()
            .lost_cupti
            .load(std::sync::atomic::Ordering::Relaxed),
        10
    );
}

#[test]
fn records_without_times_are_passed_on_as_they_are() {
    let Some(mut target) = Target::start(&[START, ("GDIAG_SIM_ZERO", "4")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 100");
    target.exit();
    let records = collector.read();
    assert_eq!(records.kernels.len(), 100);
    assert_eq!(
        records
            .kernels
            .iter()
            .filter(|kernel| kernel.start == 0 && kernel.end == 0)
            .count(),
        25
    );
}

#[test]
fn cupti_held_by_another_tool_is_said_and_left_alone() {
    let Some(mut target) = Target::start(&[START, ("GDIAG_SIM_CUPTI_BUSY", "1")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    collector.wait_for(state::BUSY);
    assert!(
        collector.reason().contains("another tool holds CUPTI"),
        "{}",
        collector.reason()
    );
    assert!(collector.reason().contains("39"), "{}", collector.reason());
    target.ask("launch 10");
    target.exit();
    assert_eq!(collector.read().kernels.len(), 0);
}

/// The only loss is one of an unknown number of records.
fn assert_hole(records: &Records, kernels: usize) {
    assert_eq!(records.kernels.len(), kernels);
    let [lost] = records.lost.as_slice() else {
        panic!("{:?}", records.lost)
    };
    assert_eq!((lost.hdr.aux, lost.count), (1, 0));
    assert!(lost.from > 0 && lost.from < lost.to, "{lost:?}");
    let inside = |kernel: &&KernelRecord| lost.from < kernel.start && kernel.end < lost.to;
    assert_eq!(records.kernels.iter().find(inside).map(|k| k.start), None);
}

#[test]
fn buffers_taken_over_by_another_tool_are_noticed() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 10");
    let mut records = collector.read_until(|records| records.kernels.len() == 10);
    target.ask("take-over");
    target.ask("launch 10");
    collector.wait_for(state::BUSY);
    assert!(
        collector.reason().contains("taken CUPTI over"),
        "{}",
        collector.reason()
    );
    target.ask("launch 10");
    target.exit();
    records.append(collector.read());
    assert_hole(&records, 10);
    let states = [state::ACTIVE, state::BUSY, state::FINISHED];
    assert_eq!(records.states, states);
    assert!(collector.reason().contains("taken CUPTI over"));
    let at = |kind| records.order.iter().position(|k| *k == kind).unwrap();
    assert!(at(kind::KERNEL) < at(kind::LOST));
}

/// In every version: nothing can hold a record back any more.
#[test]
fn a_takeover_shortly_before_the_end_is_told_at_the_end() {
    for version in ["12.4", "13.0"] {
        let env = [START, ("GDIAG_SIM_CUPTI", version)];
        let Some(mut target) = Target::start(&env) else {
            return;
        };
        let mut collector = Collector::attach(&target);
        target.ask("launch 10");
        let mut records = collector.read_until(|records| records.kernels.len() == 10);
        target.ask("take-over");
        target.ask("launch 10");
        target.exit();
        records.append(collector.read());
        assert_hole(&records, 10);
        let states = [state::ACTIVE, state::BUSY, state::FINISHED];
        assert_eq!(records.states, states, "{version}");
        assert!(collector.reason().contains("taken CUPTI over"), "{version}");
    }
}

#[test]
fn a_takeover_shortly_before_the_release_is_told_with_the_release() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    collector.begin();
    collector.wait_for(state::ACTIVE);
    target.ask("launch 10");
    let mut records = collector.read_until(|records| records.kernels.len() == 10);
    target.ask("take-over");
    target.ask("launch 10");
    collector.stop();
    collector.wait_for(state::DORMANT);
    records.append(collector.read());
    assert_hole(&records, 10);
    assert!(records.states.ends_with(&[state::BUSY, state::DORMANT]));
    target.exit();
}

#[test]
fn collecting_goes_on_when_the_other_tool_lets_go() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 10");
    let mut records = collector.read_until(|records| records.kernels.len() == 10);
    target.ask("subscribe");
    target.ask("take-over");
    target.ask("launch 10");
    collector.wait_for(state::BUSY);
    // Until the shim must have seen who holds it.
    collector.watch(std::time::Duration::from_millis(1_500), |collector| {
        assert_eq!(collector.state(), state::BUSY);
    });
    target.ask("unsubscribe");
    collector.wait_for(state::ACTIVE);
    target.ask("launch 20");
    target.exit();
    records.append(collector.read());
    assert_hole(&records, 30);
    let states = [state::ACTIVE, state::BUSY, state::ACTIVE, state::FINISHED];
    assert_eq!(records.states, states);
}

/// Its session may last: to take CUPTI back would end it.
#[test]
fn a_tool_without_a_subscription_is_left_alone() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 10");
    let mut records = collector.read_until(|records| records.kernels.len() == 10);
    target.ask("take-over");
    collector.wait_for(state::BUSY);
    collector.watch(std::time::Duration::from_millis(2_500), |collector| {
        assert_eq!(collector.state(), state::BUSY);
    });
    target.ask("launch 10");
    target.exit();
    records.append(collector.read());
    assert_hole(&records, 10);
}

#[test]
fn what_runs_at_the_release_is_waited_for() {
    for version in ["12.4", "13.0"] {
        let Some(mut target) = Target::start(&[("GDIAG_SIM_CUPTI", version)]) else {
            return;
        };
        let mut collector = Collector::attach(&target);
        collector.begin();
        collector.wait_for(state::ACTIVE);
        target.ask("long 50");
        collector.stop();
        collector.wait_for(state::DORMANT);
        let records = collector.read();
        assert_eq!(records.kernels.len(), 1, "{version}");
        assert!(records.lost.is_empty(), "{version}: {:?}", records.lost);
        target.exit();
    }
}

/// Before CUDA 13 it holds back all records; after the release nobody reads them.
#[test]
fn a_kernel_that_outlasts_the_release_leaves_a_hole_and_no_blame() {
    let Some(mut target) = Target::start(&[("GDIAG_SIM_CUPTI", "12.4")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    collector.begin();
    collector.wait_for(state::ACTIVE);
    // The shim calls when it has found the devices.
    let mut records = collector.read_until(|records| records.devices.len() == 1);
    target.ask("long 3000");
    collector.stop();
    collector.wait_for(state::DORMANT);
    records.append(collector.read());
    assert_hole(&records, 0);
    assert!(!records.states.contains(&state::BUSY));
    target.exit();
}

#[test]
fn a_cupti_that_another_tool_shut_down_is_noticed() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 10");
    let mut records = collector.read_until(|records| records.kernels.len() == 10);
    target.ask("finalize");
    collector.wait_for(state::BUSY);
    assert!(
        collector.reason().contains("shut"),
        "{}",
        collector.reason()
    );
    target.ask("launch 10");
    target.exit();
    records.append(collector.read());
    assert_hole(&records, 10);
}

/// Before CUDA 13 all threads share a buffer, and a running kernel holds it back.
#[test]
fn a_long_kernel_that_looked_like_a_takeover_is_forgiven() {
    let Some(mut target) = Target::start(&[START, ("GDIAG_SIM_CUPTI", "12.4")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    // Until the shim knows that its probes come back.
    collector.watch(std::time::Duration::from_millis(1_500), |_| {});
    target.ask("long 5000");
    collector.wait_for(state::BUSY);
    collector.wait_for(state::ACTIVE);
    target.exit();
    let records = collector.read();
    assert_eq!(records.kernels.len(), 1);
    let states = [state::ACTIVE, state::BUSY, state::ACTIVE, state::FINISHED];
    assert_eq!(records.states, states);
    assert!(records.lost.is_empty(), "{:?}", records.lost);
}

#[test]
fn an_idle_program_is_not_taken_for_one_that_was_taken_over() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    // Long enough for the probes that would have to stay away.
    collector.watch(std::time::Duration::from_secs(5), |collector| {
        assert_eq!(collector.state(), state::ACTIVE, "{}", collector.reason());
    });
    target.exit();
    let records = collector.read();
    assert_eq!(records.states, [state::ACTIVE, state::FINISHED]);
    assert!(records.lost.is_empty(), "{:?}", records.lost);
}

#[test]
fn without_libcupti_the_reason_is_there_and_the_program_runs() {
    let Some(mut target) = Target::start(&[START, ("GDIAG_SIM_NO_CUPTI", "1")]) else {
        return;
    };
    let collector = Collector::attach(&target);
    collector.wait_for(state::FAILED);
    assert!(
        collector.reason().contains("libcupti"),
        "{}",
        collector.reason()
    );
    target.ask("launch 10");
    target.exit();
}

#[test]
fn the_kill_switch_leaves_nothing_behind() {
    let Some(mut target) = Target::start(&[START, (ENV_DISABLE, "1")]) else {
        return;
    };
    assert_eq!(target.shim_memory(), None);
    assert!(!target.threads().iter().any(|name| name == "gdiag-shim"));
    target.ask("launch 10");
    target.exit();
}

#[test]
fn a_forked_child_has_no_part_in_it() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("launch 10");
    assert_eq!(target.ask("fork"), "child exited with 0");
    target.ask("launch 10");
    target.exit();
    let records = collector.read();
    assert_eq!(records.kernels.len(), 20);
    assert_eq!(
        records.states,
        [state::ACTIVE, state::FINISHED],
        "the child's exit was not taken for ours"
    );
}

#[test]
fn launches_of_several_threads_keep_their_threads() {
    let Some(mut target) = Target::start(&[START]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    target.ask("threads 4 2000");
    target.exit();
    let records = collector.read();
    assert_eq!(records.kernels.len(), 8_000);
    let mut by_thread: HashMap<u32, usize> = HashMap::new();
    for call in records.calls.iter().filter(|call| call.hdr.aux == 307) {
        *by_thread.entry(call.tid).or_default() += 1;
    }
    assert_eq!(by_thread.len(), 4);
    assert!(
        by_thread.values().all(|count| *count == 2_000),
        "{by_thread:?}"
    );
    let correlations: HashSet<u32> = records
        .kernels
        .iter()
        .map(|kernel| kernel.correlation)
        .collect();
    assert_eq!(correlations.len(), 8_000, "no record twice");
}

/// gdiag's sign that a process has a shim.
#[test]
fn the_thread_is_named_when_the_memory_is_there() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    target.wait_until("the thread has its name", |target| {
        target.threads().iter().any(|name| name == "gdiag-shim")
    });
    assert!(target.shim_memory().is_some());
    target.exit();
}
