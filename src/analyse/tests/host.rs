//! The host's causes, each with a twin that looks alike and is something else.
//!
//! In every story a kernel ends at 100 µs, and MAIN launches the next one at 9,990 µs, late.

use super::story::*;
use crate::analyse::cause::Cause;
use crate::analyse::report::{Report, Waker};
use crate::event::*;
use crate::units::Nanos;

fn before() -> Story {
    timeline().kernel((0, 5), (10, 100))
}

fn after(story: Story) -> Report {
    story.kernel((9_990, 9_995), (10_000, 10_100)).report()
}

/// The causes of the gap without the compute and launching around what is tested.
fn found(r: &Report) -> Vec<(&'static str, u64)> {
    let around = ["host.compute", "host.launch-bound", "gpu.launch-latency"];
    parts(longest(r))
        .into_iter()
        .filter(|p| !around.contains(&p.0))
        .collect()
}

fn what(r: &Report, cause: Cause) -> String {
    let row = r.gpus[0].causes.iter().find(|c| c.cause == cause).unwrap();
    row.by[0].what.clone()
}

fn evidence(r: &Report, cause: Cause) -> String {
    let row = r.gpus[0].causes.iter().find(|c| c.cause == cause).unwrap();
    row.evidence.join("\n")
}

#[test]
fn a_sleep_is_a_sleep() {
    let r = after(before().main_sleeps((1_000, 9_000), 0x2001, Some(NANOSLEEP), None));
    assert_eq!(
        parts(longest(&r)),
        [
            ("host.compute", 900),
            ("host.sleep", 8_000),
            ("host.compute", 990),
            ("host.launch-bound", 5),
            ("gpu.launch-latency", 5)
        ]
    );
    assert_eq!(what(&r, Cause::Sleep), "clock_nanosleep");
    let chain = &longest(&r).chain;
    assert_eq!(chain.len(), 1);
    assert_eq!(chain[0].state, "blocked (clock_nanosleep)");
    assert_eq!(chain[0].woken_by, Some(Waker::Timer));
}

#[test]
fn a_foreign_program_preempts_and_an_own_thread_oversubscribes() {
    for (other, expected) in [
        (HOG, "host.preempted"),
        (THREAD, "host.oversubscribed"),
        (WORKER, "host.oversubscribed"),
        (GDIAG, "host.observer"),
    ] {
        let r = after(
            before()
                .switch(1_000, 1, MAIN, other)
                .switch(5_000, 1, other, MAIN),
        );
        assert_eq!(found(&r), [(expected, 4_000)]);
    }
}

#[test]
fn the_preemptor_is_named_with_its_cgroup_and_the_cpu() {
    let r = after(
        before()
            .process(200, "/system.slice/backup.service")
            .switch(1_000, 1, MAIN, HOG)
            .switch(5_000, 1, HOG, MAIN),
    );
    let hog = "hog (pid 200, cgroup /system.slice/backup.service)";
    assert_eq!(what(&r, Cause::Preempted), hog);
    let text = evidence(&r, Cause::Preempted);
    assert!(
        text.contains(hog) && text.contains("CPU 1") && text.contains("4.00 ms"),
        "{text}"
    );
}

#[test]
fn preemptors_of_one_name_and_group_are_one_line() {
    let switches = |story: Story| {
        let take = |story: Story, at, tid| {
            story
                .switch(at, 1, MAIN, tid)
                .switch(at + 1_000, 1, tid, MAIN)
        };
        let story = take(story, 1_000, HOG);
        let story = take(story, 3_000, 201);
        take(take(story, 5_000, 211), 7_000, 221)
    };
    let stranger = |story: Story, tid, pid, name: &str| {
        story.task(0, tid, pid, 1, name, false, TaskState::Runnable)
    };
    let story = stranger(before(), 201, 201, "hog");
    let story = stranger(story, 211, 211, "hog").process(211, "/backup");
    let r = after(switches(stranger(story, 221, 221, "other")));
    let row = &r.gpus[0]
        .causes
        .iter()
        .find(|row| row.cause == Cause::Preempted);
    let mut by: Vec<(&str, u64)> = row
        .unwrap()
        .by
        .iter()
        .map(|by| (by.what.as_str(), by.total.0 / 1_000))
        .collect();
    by.sort_unstable();
    assert_eq!(
        by,
        [
            ("hog (pid 211, cgroup /backup)", 1_000),
            ("hog (pids 200, 201)", 2_000),
            ("other (pid 221)", 1_000)
        ]
    );
    // The parts of the gap name each.
    let parts = longest(&r).parts.iter();
    let named = parts.filter(|p| p.cause == Cause::Preempted && p.what == "hog (pid 201)");
    assert_eq!(named.count(), 1);
}

#[test]
fn each_nanosecond_goes_to_who_had_the_cpu_then() {
    let r = after(
        before()
            .switch(1_000, 1, MAIN, HOG)
            .switch(3_000, 1, HOG, THREAD)
            .switch(4_000, 1, THREAD, GDIAG)
            .switch(4_500, 1, GDIAG, MAIN),
    );
    assert_eq!(
        found(&r),
        [
            ("host.preempted", 2_000),
            ("host.oversubscribed", 1_000),
            ("host.observer", 500)
        ]
    );
}

#[test]
fn nobody_is_blamed_for_time_in_which_switches_are_missing() {
    // HOG takes the CPU, and somebody else gives it back.
    let r = after(
        before()
            .switch(1_000, 1, MAIN, HOG)
            .switch(5_000, 1, THREAD, MAIN),
    );
    assert_eq!(found(&r), [("unknown", 4_000)]);
}

#[test]
fn who_gives_the_cpu_up_had_it_since_the_waking() {
    // While MAIN slept, switches of CPU 1 were not recorded; from its waking on they all are.
    let r = after(
        before()
            .sleeps(1_000, 1, MAIN, S, Some(NANOSLEEP))
            .timer_wakes(3_000, MAIN)
            .switch(5_000, 1, HOG, MAIN),
    );
    assert_eq!(
        found(&r),
        [("host.sleep", 2_000), ("host.preempted", 2_000)]
    );
}

#[test]
fn a_cpu_with_missing_switches_is_not_the_one_that_was_waited_for() {
    // MAIN waits for CPU 0, whose switches are all recorded, and comes back to CPU 1 in the end.
    let story = || {
        before()
            .switch(1_000, 1, MAIN, HOG)
            .switch(2_000, 0, 77, 78)
            .switch(4_000, 0, 78, 77)
            .switch(5_000, 1, THREAD, MAIN)
            .switch(5_500, 0, 77, 78)
    };
    assert_eq!(
        found(&after(story())),
        [
            ("host.preempted", 1_000),
            ("host.preempted", 2_000),
            ("host.preempted", 1_000)
        ]
    );
    // With two CPUs that it can have been nobody knows which.
    let two = story()
        .switch(2_000, 2, 87, 88)
        .switch(4_000, 2, 88, 87)
        .switch(5_500, 2, 87, 88);
    assert_eq!(found(&after(two)), [("unknown", 4_000)]);
}

#[test]
fn a_quota_is_not_a_neighbour() {
    let r = after(
        before()
            .throttled(1_000, 1, MAIN, HOG)
            .switch(5_000, 1, HOG, MAIN),
    );
    assert_eq!(found(&r), [("host.throttled", 4_000)]);
}

#[test]
fn a_yield_is_spinning() {
    let yielded = Switch {
        ts: us(1_000),
        cpu: Cpu(1),
        prev: Tid(MAIN),
        next: Tid(HOG),
        state: 0,
        syscall: Some(24),
        flags: SwitchFlags::default(),
        minor_faults: 0,
        major_faults: 0,
    };
    let r = after(
        before()
            .event(Event::Switch(yielded))
            .switch(2_000, 1, HOG, MAIN),
    );
    assert_eq!(found(&r), [("host.spin", 1_000)]);
}

#[test]
fn a_look_between_two_yields_is_spinning_and_work_is_not() {
    let yields = |story: Story, at: i64| {
        story
            .event(Event::Switch(Switch {
                ts: us(at),
                cpu: Cpu(1),
                prev: Tid(MAIN),
                next: Tid(HOG),
                state: 0,
                syscall: Some(24),
                flags: SwitchFlags::default(),
                minor_faults: 0,
                major_faults: 0,
            }))
            .switch(at + 500, 1, HOG, MAIN)
    };
    let twice = |pause: i64| {
        total(
            &after(yields(yields(before(), 1_000), 1_500 + pause)),
            Cause::Spin,
        )
    };
    assert_eq!(twice(80), 1_080);
    assert_eq!(twice(200), 1_000);
}

#[test]
fn ready_in_a_call_is_not_in_the_call() {
    let r = after(
        before()
            .call(MAIN, MALLOC, (500, 6_000))
            .switch(1_000, 1, MAIN, HOG)
            .switch(5_000, 1, HOG, MAIN),
    );
    assert_eq!(
        found(&r),
        [
            ("host.cuda-memory", 500),
            ("host.preempted", 4_000),
            ("host.cuda-memory", 1_000)
        ]
    );
}

#[test]
fn the_way_back_from_a_sleep_can_be_somebody_elses_cpu_time() {
    // Woken at 3,000, but HOG has CPU 1 until 5,000.
    let r = after(
        before()
            .event(Event::Switch(Switch {
                ts: us(1_000),
                cpu: Cpu(1),
                prev: Tid(MAIN),
                next: Tid(HOG),
                state: S,
                syscall: Some(NANOSLEEP),
                flags: SwitchFlags::default(),
                minor_faults: 0,
                major_faults: 0,
            }))
            .timer_wakes(3_000, MAIN)
            .switch(5_000, 1, HOG, MAIN),
    );
    assert_eq!(
        found(&r),
        [("host.sleep", 2_000), ("host.preempted", 2_000)]
    );
}

#[test]
fn an_idle_cpu_that_wakes_slowly_is_named_and_a_quick_one_is_part_of_the_sleep() {
    let woken = |runs| {
        after(
            before()
                .sleeps(1_000, 1, MAIN, S, Some(NANOSLEEP))
                .timer_wakes(3_000, MAIN)
                .runs(runs, 1, MAIN),
        )
    };
    assert_eq!(
        found(&woken(3_400)),
        [("host.sleep", 2_000), ("host.cpu-wakeup", 400)]
    );
    assert_eq!(found(&woken(3_010)), [("host.sleep", 2_010)]);
}

#[test]
fn a_wake_stamped_just_before_its_sleep_still_ends_it() {
    let r = after(
        before()
            .timer_wakes(999, MAIN)
            .sleeps(1_000, 1, MAIN, S, Some(FUTEX))
            .runs(1_020, 1, MAIN),
    );
    assert!(found(&r).iter().all(|p| p.1 <= 20), "{:?}", found(&r));
}

#[test]
fn a_lock_names_its_holder_and_what_it_did() {
    let r = after(
        before()
            .runs(500, 2, THREAD)
            .sleeps(600, 2, THREAD, S, Some(NANOSLEEP))
            .timer_wakes(6_900, THREAD)
            .runs(6_900, 2, THREAD)
            .main_sleeps((1_000, 7_000), S, Some(FUTEX), Some(THREAD)),
    );
    assert_eq!(found(&r), [("host.lock", 6_000)]);
    let text = evidence(&r, Cause::Lock);
    assert!(
        text.contains("released by helper (pid 100, tid 101)"),
        "{text}"
    );
    assert!(text.contains("asleep in clock_nanosleep 5.90 ms"), "{text}");
    let chain = &longest(&r).chain;
    assert_eq!(chain.len(), 2);
    assert_eq!(chain[1].who.tid, Tid(THREAD));
    assert_eq!(chain[1].state, "blocked (clock_nanosleep)");
}

#[test]
fn the_interpreter_lock_is_waited_for_in_episodes_of_the_switch_interval() {
    let wait = |story: Story, last: (i64, i64)| {
        after(
            story
                .process(100, "/")
                .runs(500, 2, THREAD)
                .main_sleeps((1_000, 6_060), S, Some(FUTEX), None)
                .main_sleeps(last, S, Some(FUTEX), Some(THREAD)),
        )
    };
    assert_eq!(
        found(&wait(before(), (6_070, 9_000))),
        [("host.gil", 5_060), ("host.gil", 2_930)]
    );
    // One wait of the same total length is a lock.
    let r = after(before().process(100, "/").runs(500, 2, THREAD).main_sleeps(
        (1_000, 9_000),
        S,
        Some(FUTEX),
        Some(THREAD),
    ));
    assert_eq!(found(&r), [("host.lock", 8_000)]);
}

#[test]
fn threads_that_launch_hand_work_to_each_other() {
    // THREAD launches; asleep until MAIN, at work in its own code, has something for it.
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .runs(20, 2, THREAD)
        .sleeps(50, 2, THREAD, S, Some(FUTEX))
        .wakes(8_000, MAIN, THREAD)
        .runs(8_000, 2, THREAD)
        .kernel_by(THREAD, (8_010, 8_015), (8_020, 8_100))
        .report();
    assert_eq!(total(&r, Cause::Lock), 0);
    assert_eq!(parts(longest(&r))[0], ("host.compute", 7_900));
    let who = longest(&r).parts[0].who.as_ref();
    assert_eq!(who.map(|w| w.tid), Some(Tid(MAIN)));
}

#[test]
fn a_launch_that_waits_for_another_launching_thread_waits_for_a_lock() {
    // Both are in the driver: THREAD holds the context while it loads a module.
    let r = timeline()
        .kernel_by(THREAD, (0, 5), (10, 100))
        .runs(0, 2, THREAD)
        .call(THREAD, LIBRARY_LOAD, (50, 8_000))
        .main_sleeps((1_000, 8_000), S, Some(FUTEX), Some(THREAD))
        .kernel((900, 8_010), (8_015, 8_100))
        .report();
    assert_eq!(total(&r, Cause::Lock), 7_000);
}

#[test]
fn a_lock_that_the_shim_holds_is_the_observers() {
    let shim = |name| {
        after(
            before()
                .task(1, 150, 100, 1, name, true, TaskState::Running)
                .main_sleeps((1_000, 9_000), S, Some(FUTEX), Some(150)),
        )
    };
    assert_eq!(found(&shim("gdiag-shim")), [("host.observer", 8_000)]);
    assert_eq!(found(&shim("other")), [("host.lock", 8_000)]);
}

#[test]
fn a_futex_that_times_out_is_a_polling_interval() {
    let r = after(before().main_sleeps((1_000, 9_000), S, Some(FUTEX), None));
    assert_eq!(found(&r), [("host.sleep", 8_000)]);
}

#[test]
fn a_poll_that_times_out_is_a_sleep_and_an_epoll_is_not() {
    let r = after(before().main_sleeps((1_000, 9_000), S, Some(POLL), None));
    assert_eq!(found(&r), [("host.sleep", 8_000)]);
    let r = after(before().main_sleeps((1_000, 9_000), S, Some(EPOLL_WAIT), None));
    assert_eq!(found(&r), [("host.other", 8_000)]);
}

#[test]
fn threads_that_are_usually_packed_are_so_when_the_others_are_busy_for_a_moment() {
    let wait = |(from, to): (i64, i64), idle| {
        Event::CpuWait(CpuWait {
            tid: Tid(MAIN),
            start: us(from),
            end: us(to),
            allowed: 1,
            online: 4,
            idle,
        })
    };
    for (idle, expected) in [(2, "host.affinity"), (0, "host.oversubscribed")] {
        let r = after(
            before()
                .switch(1_000, 1, MAIN, THREAD)
                .switch(3_000, 1, THREAD, MAIN)
                .event(wait((1_000, 3_000), 0))
                .switch(4_000, 1, MAIN, THREAD)
                .switch(9_000, 1, THREAD, MAIN)
                .event(wait((4_000, 9_000), idle)),
        );
        assert_eq!(found(&r), [(expected, 2_000), (expected, 5_000)]);
    }
}

#[test]
fn threads_on_one_cpu_are_packed_when_others_idle() {
    for (allowed, idle, other, expected) in [
        (1, 3, THREAD, "host.affinity"),
        (1, 0, THREAD, "host.oversubscribed"),
        (4, 3, THREAD, "host.oversubscribed"),
        (1, 3, HOG, "host.preempted"),
    ] {
        let wait = CpuWait {
            tid: Tid(MAIN),
            start: us(1_000),
            end: us(5_000),
            allowed,
            online: 4,
            idle,
        };
        let r = after(
            before()
                .switch(1_000, 1, MAIN, other)
                .switch(5_000, 1, other, MAIN)
                .event(Event::CpuWait(wait)),
        );
        assert_eq!(found(&r), [(expected, 4_000)], "{allowed} {idle} {other}");
        if expected == "host.affinity" {
            let text = evidence(&r, Cause::Affinity);
            let mask = "it may use 1 of 4 CPUs, and 3 of the others were idle";
            assert!(text.ends_with(mask), "{text}");
        }
    }
}

#[test]
fn an_interrupt_is_never_the_task_that_it_interrupted() {
    let r = after(
        before()
            .runs(500, 2, THREAD)
            .sleeps(1_000, 1, MAIN, S, Some(FUTEX))
            .wakes_by(9_000, MAIN, THREAD, Context::HardIrq(40))
            .runs(9_000, 1, MAIN),
    );
    assert_eq!(found(&r), [("host.other", 8_000)]);
}

#[test]
fn reads_faults_and_flushes_are_told_apart() {
    let io = SwitchFlags::IOWAIT;
    for (state, syscall, flags, frames, object, cause) in [
        (
            0x102,
            Some(READ),
            io,
            &["folio_wait_bit", "filemap_read"][..],
            "/data/a",
            "host.disk-read",
        ),
        (0x102, Some(READ), io, &[][..], "", "host.disk-read"),
        (
            0x102,
            None,
            io,
            &["folio_wait_bit", "filemap_fault"][..],
            "",
            "host.page-fault",
        ),
        (
            D,
            Some(FSYNC),
            0,
            &["jbd2_log_wait_commit"][..],
            "/out/b",
            "host.disk-write",
        ),
        (D, None, SwitchFlags::MEMSTALL, &[][..], "", "host.reclaim"),
        (S, Some(WAIT4), 0, &["do_wait"][..], "", "host.subprocess"),
        (S, Some(16), 0, &[][..], "", "host.other"),
    ] {
        let r = after(
            before()
                .leaves(1_000, 1, MAIN, state, syscall, flags)
                .wait(MAIN, (1_000, 9_000), state, syscall, frames, object)
                .wakes_by(9_000, MAIN, IDLE, Context::SoftIrq(4))
                .runs(9_000, 1, MAIN),
        );
        assert_eq!(found(&r), [(cause, 8_000)], "{syscall:?} {frames:?}");
    }
}

#[test]
fn the_kernels_work_between_two_reads_belongs_to_the_reads() {
    let read = |story: Story, (from, to): (i64, i64), syscall| {
        story
            .leaves(from, 1, MAIN, 0x102, syscall, SwitchFlags::IOWAIT)
            .wakes_by(to, MAIN, IDLE, Context::SoftIrq(4))
            .runs(to, 1, MAIN)
    };
    let twice = |pause: i64, second| {
        let story = read(before(), (1_000, 1_400), Some(READ));
        after(read(story, (1_400 + pause, 1_800 + pause), second))
    };
    assert_eq!(found(&twice(100, Some(READ))), [("host.disk-read", 900)]);
    // A longer run is work, and so is one between different things.
    let apart = [("host.disk-read", 400), ("host.disk-read", 400)];
    assert_eq!(found(&twice(500, Some(READ))), apart);
    let different = [("host.disk-read", 400), ("host.page-fault", 400)];
    assert_eq!(found(&twice(100, None)), different);
}

#[test]
fn a_launch_between_two_reads_is_not_a_read() {
    let mut story = before();
    for (from, to) in [(1_000, 1_400), (1_450, 1_800)] {
        story = story
            .leaves(from, 1, MAIN, 0x102, Some(READ), SwitchFlags::IOWAIT)
            .wakes_by(to, MAIN, IDLE, Context::SoftIrq(4))
            .runs(to, 1, MAIN);
    }
    let r = after(story.call(MAIN, STREAM_WAIT, (1_420, 1_425)));
    assert_eq!(
        found(&r),
        [("host.disk-read", 400), ("host.disk-read", 350)]
    );
}

#[test]
fn a_read_names_the_file_and_shows_the_stack() {
    let r = after(
        before()
            .leaves(1_000, 1, MAIN, 0x102, Some(READ), SwitchFlags::IOWAIT)
            .wait(
                MAIN,
                (1_000, 9_000),
                0x102,
                Some(READ),
                &["__schedule", "folio_wait_bit", "filemap_read"],
                "/data/train.bin",
            )
            .wakes_by(9_000, MAIN, IDLE, Context::SoftIrq(4))
            .runs(9_000, 1, MAIN),
    );
    assert_eq!(
        what(&r, Cause::DiskRead),
        "read on /data/train.bin (folio_wait_bit)"
    );
    let text = evidence(&r, Cause::DiskRead);
    assert!(
        text.contains("state D (uninterruptible, waiting for I/O)"),
        "{text}"
    );
    assert!(text.contains("folio_wait_bit < filemap_read"), "{text}");
    let part = &longest(&r).parts[1];
    assert_eq!(
        part.stack.frames,
        ["__schedule", "folio_wait_bit", "filemap_read"]
    );
}

#[test]
fn a_stop_is_not_a_sleep_and_names_who_did_it() {
    let stopped = |state, frames: &[&str], signal: bool, waker| {
        let mut story = before();
        if signal {
            story = story.event(Event::Signal(Signal {
                ts: us(999),
                sender: Tid(HOG),
                receiver: Tid(MAIN),
                signal: 19,
            }));
        }
        after(
            story
                .sleeps(1_000, 1, MAIN, state, None)
                .wait(MAIN, (1_000, 9_000), state, None, frames, "")
                .wakes(9_000, waker, MAIN)
                .runs(9_000, 1, MAIN),
        )
    };
    let r = stopped(0x104, &["do_signal_stop", "get_signal"], true, THREAD);
    assert_eq!(found(&r), [("host.stopped", 8_000)]);
    assert_eq!(
        what(&r, Cause::Stopped),
        "stopped by a signal, hog (pid 200)"
    );
    let r = stopped(0x8, &["ptrace_stop"], false, HOG);
    assert_eq!(
        what(&r, Cause::Stopped),
        "stopped by a tracer, hog (pid 200)"
    );
    let r = stopped(S, &["schedule", "get_signal"], false, HOG);
    assert_eq!(found(&r), [("host.stopped", 8_000)]);
    let r = stopped(S, &["schedule", "do_nanosleep"], false, HOG);
    assert_eq!(found(&r), [("host.sleep", 8_000)]);
}

#[test]
fn a_stop_inside_a_call_is_not_the_call() {
    let r = after(before().call(MAIN, DEVICE_SYNC, (500, 9_500)).main_sleeps(
        (1_000, 9_000),
        0x104,
        None,
        Some(HOG),
    ));
    assert_eq!(found(&r)[1], ("host.stopped", 8_000));
}

#[test]
fn a_sync_costs_until_it_returns_and_fifty_microseconds_of_refill() {
    let r = after(before().call(MAIN, DEVICE_SYNC, (20, 120)));
    assert_eq!(
        parts(longest(&r)),
        [
            ("host.sync", 20 + 50),
            ("host.compute", 9_990 - 170),
            ("host.launch-bound", 5),
            ("gpu.launch-latency", 5)
        ]
    );
    let opened = longest(&r).opened_by.as_ref().unwrap();
    assert_eq!(
        (opened.call.as_str(), opened.who.tid),
        ("cudaDeviceSynchronize", Tid(MAIN))
    );
}

#[test]
fn a_quick_refill_is_all_sync() {
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .call(MAIN, DEVICE_SYNC, (20, 120))
        .kernel((140, 145), (150, 200))
        .report();
    assert_eq!(
        parts(longest(&r)),
        [("host.sync", 45), ("gpu.launch-latency", 5)]
    );
}

#[test]
fn asleep_in_a_sync_is_the_sync() {
    let r = after(before().call(MAIN, DEVICE_SYNC, (20, 120)).main_sleeps(
        (30, 115),
        S,
        Some(POLL),
        Some(THREAD),
    ));
    assert_eq!(parts(longest(&r))[0], ("host.sync", 70));
}

#[test]
fn a_small_read_back_to_pageable_memory_is_a_sync_and_a_large_one_a_copy() {
    let copy = |bytes, host| {
        timeline()
            .kernel((0, 5), (10, 100))
            .copy(CopyKind::DeviceToHost, host, bytes, (20, 150), (102, 104))
            .kernel((990, 995), (1_000, 1_100))
            .report()
    };
    let first = |r: &Report| parts(longest(r))[0];
    assert_eq!(
        first(&copy(4, MemoryKind::Pageable)),
        ("host.sync", 46 + 50)
    );
    assert_eq!(
        first(&copy(64 << 10, MemoryKind::Pageable)),
        ("host.pageable-copy", 46)
    );
    assert_ne!(first(&copy(4, MemoryKind::Pinned)).0, "host.sync");
}

#[test]
fn staging_a_pageable_copy_is_the_hosts_and_a_pinned_one_is_not() {
    let copy = |host| {
        timeline()
            .kernel((0, 5), (10, 100))
            .copy(
                CopyKind::HostToDevice,
                host,
                4 << 20,
                (1_000, 3_200),
                (2_990, 3_100),
            )
            .report()
    };
    let r = copy(MemoryKind::Pageable);
    assert_eq!(
        parts(longest(&r)),
        [("host.compute", 900), ("host.pageable-copy", 1_990)]
    );
    let r = copy(MemoryKind::Pinned);
    assert_eq!(
        parts(longest(&r)),
        [("host.compute", 900), ("host.launch-bound", 1_990)]
    );
}

#[test]
fn the_innermost_call_decides() {
    for (call, cause) in [
        (MALLOC, "host.cuda-memory"),
        (LIBRARY_LOAD, "host.module-load"),
        (INSTANTIATE, "host.module-load"),
        (STREAM_CREATE, "host.cuda-api"),
    ] {
        let r = after(before().call(MAIN, call, (1_000, 5_000)));
        assert_eq!(found(&r), [(cause, 4_000)]);
        // Asleep in the driver is the same.
        let asleep = before().call(MAIN, call, (1_000, 5_000));
        let r = after(asleep.main_sleeps((2_000, 4_000), D, Some(16), None));
        assert_eq!(found(&r).iter().map(|p| p.1).sum::<u64>(), 4_000);
    }
    let mut story = before();
    story.api(MAIN, LIBRARY_LOAD, (1_000, 5_000));
    story.api(MAIN, MALLOC, (2_000, 3_000));
    let r = after(story);
    assert_eq!(
        found(&r),
        [
            ("host.module-load", 1_000),
            ("host.cuda-memory", 1_000),
            ("host.module-load", 2_000)
        ]
    );
}

#[test]
fn a_short_call_of_no_class_is_part_of_launching() {
    let r = after(before().call(MAIN, STREAM_CREATE, (9_960, 9_965)));
    assert!(found(&r).is_empty());
}

#[test]
fn a_launch_that_loads_its_kernel_is_a_module_load() {
    let load = OverheadKind::LazyFunctionLoading;
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .overhead(load, Some(MAIN), (1_005, 2_995))
        .kernel((1_000, 3_000), (3_005, 3_100))
        .report();
    let loads: u64 = parts(longest(&r))
        .iter()
        .filter(|p| p.0 == "host.module-load")
        .map(|p| p.1)
        .sum();
    assert_eq!(loads, 1_990);
}

#[test]
fn launches_at_launch_speed_are_launch_bound_and_work_between_them_is_compute() {
    let run = |spacing: i64| {
        let mut story = timeline();
        for i in 0..20 {
            let t = i * spacing;
            story = story.kernel((t, t + 5), (t + 10, t + 12));
        }
        story.report()
    };
    let bound = run(40);
    assert_eq!(total(&bound, Cause::Compute), 0);
    assert!(total(&bound, Cause::LaunchBound) > 19 * 30);
    let compute = run(200);
    assert_eq!(total(&compute, Cause::LaunchBound), 19 * 5);
    assert!(total(&compute, Cause::Compute) > 19 * 150);
}

#[test]
fn cupti_at_work_for_us_is_the_observer() {
    for (tid, in_call, expected) in [
        (Some(MAIN), false, true),
        (Some(THREAD), false, false),
        (None, false, false),
        (None, true, true),
    ] {
        let mut story = before().overhead(OverheadKind::BufferRequest, tid, (2_000, 3_000));
        if in_call {
            story = story.call(MAIN, STREAM_WAIT, (1_990, 3_010));
        }
        let r = after(story);
        assert_eq!(
            total(&r, Cause::Observer),
            if expected { 1_000 } else { 0 },
            "{tid:?}"
        );
    }
}

#[test]
fn interrupts_take_their_time_from_the_thread_that_they_interrupt() {
    let irq = |tid| {
        Event::Interrupt(Interrupt {
            start: us(2_000),
            dur: Nanos(300_000),
            cpu: Cpu(1),
            tid: Tid(tid),
            context: Context::SoftIrq(3),
        })
    };
    let r = after(before().event(irq(MAIN)));
    assert_eq!(found(&r), [("host.irq", 300)]);
    assert_eq!(what(&r, Cause::Irq), "softirq NET_RX");
    assert!(found(&after(before().event(irq(HOG)))).is_empty());
}

#[test]
fn waiting_for_a_loader_that_works_is_data_loading() {
    let r = after(before().runs(500, 2, WORKER).main_sleeps(
        (1_000, 9_000),
        S,
        Some(POLL),
        Some(WORKER),
    ));
    assert_eq!(found(&r), [("host.data-loading", 8_000)]);
    let by = &r.gpus[0].causes[0].by[0];
    assert_eq!(
        by.who.as_ref().map(|w| w.comm.as_str()),
        Some("pt_data_worker")
    );
}

/// Check that the start of a loader counts as loading: the thread that delivers did not exist yet.
#[test]
fn before_a_helper_was_born_its_process_was_the_late_one() {
    let feeder = WORKER + 1;
    let r = after(
        before()
            .runs(500, 2, WORKER)
            .born(6_000, feeder, WORKER, WORKER, "pt_data_worker")
            .runs(6_000, 3, feeder)
            .main_sleeps((1_000, 9_000), S, Some(POLL), Some(feeder)),
    );
    assert_eq!(total(&r, Cause::Unknown), 0);
    assert_eq!(total(&r, Cause::DataLoading), 8_000);
    let by = &r.gpus[0].causes[0].by;
    let time_of = |tid: u32| {
        by.iter()
            .filter(|b| b.who.as_ref().is_some_and(|w| w.tid == Tid(tid)))
            .map(|b| b.total)
            .sum::<Nanos>()
    };
    assert_eq!(
        (time_of(WORKER), time_of(feeder)),
        (us(5_000) - us(0), us(3_000) - us(0))
    );
}

#[test]
fn waiting_for_a_loader_that_reads_is_the_disk() {
    let r = after(
        before()
            .runs(500, 2, WORKER)
            .leaves(2_000, 2, WORKER, 0x102, Some(READ), SwitchFlags::IOWAIT)
            .wakes_by(8_000, WORKER, IDLE, Context::SoftIrq(4))
            .runs(8_000, 2, WORKER)
            .main_sleeps((1_000, 9_000), S, Some(POLL), Some(WORKER)),
    );
    assert_eq!(
        found(&r),
        [
            ("host.data-loading", 1_000),
            ("host.disk-read", 6_000),
            ("host.data-loading", 1_000)
        ]
    );
}

#[test]
fn a_loader_that_gets_no_cpu_is_short_of_cpu() {
    let r = after(
        before()
            .runs(500, 2, WORKER)
            .switch(2_000, 2, WORKER, HOG)
            .switch(6_000, 2, HOG, WORKER)
            .main_sleeps((1_000, 9_000), S, Some(POLL), Some(WORKER)),
    );
    assert_eq!(found(&r)[1], ("host.preempted", 4_000));
}

#[test]
fn a_thread_that_hands_on_what_a_loader_delivers_is_no_lock() {
    let r = after(
        before()
            .runs(500, 2, WORKER)
            .sleeps(700, 3, THREAD, S, Some(POLL))
            .sleeps(1_000, 1, MAIN, S, Some(FUTEX))
            .wakes(8_900, WORKER, THREAD)
            .runs(8_900, 3, THREAD)
            .wakes(9_000, THREAD, MAIN)
            .runs(9_000, 1, MAIN),
    );
    assert_eq!(total(&r, Cause::Lock), 0);
    assert_eq!(total(&r, Cause::DataLoading), 8_000);
}

#[test]
fn a_run_in_which_a_child_is_made_is_the_price_of_the_child() {
    let forks = |to| {
        after(before().born(2_500, 900, 900, MAIN, "true").main_sleeps(
            (to, 9_000),
            S,
            Some(WAIT4),
            Some(900),
        ))
    };
    assert_eq!(total(&forks(3_000), Cause::Subprocess), 8_900);
    // Nor is MAIN slow when another thread makes a child; and a thread is no child.
    let other = before().born(2_500, 900, 900, THREAD, "true");
    assert_eq!(total(&after(other), Cause::Subprocess), 0);
    let r = after(before().born(2_500, 150, 100, MAIN, "python3"));
    assert_eq!(total(&r, Cause::Subprocess), 0);
}

#[test]
fn what_a_new_program_prints_is_waited_for_as_its_end_is() {
    let started = |born: i64, name: &str| {
        let r = after(
            before()
                .born(born, 900, 900, MAIN, name)
                .runs(born, 2, 900)
                .main_sleeps((3_000, 9_000), S, Some(READ), Some(900)),
        );
        total(&r, Cause::Subprocess) >= 6_000
    };
    assert!(started(2_500, "nvidia-smi"));
    assert!(!started(2_500, "python3"), "the same program");
    assert!(
        !started(3, "nvidia-smi"),
        "it was there before the last launch"
    );
}

#[test]
fn who_asks_and_launches_before_it_waits_is_served_by_a_loader() {
    let asked = |launches: bool| {
        let mut story = before()
            .runs(100, 2, CHILD)
            .sleeps(200, 2, CHILD, S, Some(READ))
            .wakes(700, MAIN, CHILD)
            .runs(705, 2, CHILD);
        if launches {
            story = story.call(MAIN, STREAM_WAIT, (800, 802));
        }
        let r = after(story.main_sleeps((1_000, 9_000), S, Some(POLL), Some(CHILD)));
        total(&r, Cause::DataLoading)
    };
    assert_eq!((asked(false), asked(true)), (0, 8_000));
}

#[test]
fn who_loses_the_cpu_to_the_helper_that_it_asked_waits_for_it() {
    let asks = |times: i64| {
        let mut story = before().runs(100, 1, CHILD);
        story = story.sleeps(150, 1, CHILD, S, Some(READ));
        for i in 0..times {
            let at = 1_000 + i * 1_000;
            story = story
                .wakes(at - 10, MAIN, CHILD)
                .runs(at - 5, 2, CHILD)
                .main_sleeps((at, at + 500), S, Some(READ), Some(CHILD))
                .sleeps(at + 510, 2, CHILD, S, Some(READ));
        }
        let story = story
            .wakes(5_990, MAIN, CHILD)
            .switch(6_000, 1, MAIN, CHILD)
            .leaves(8_000, 1, CHILD, S, Some(READ), 0)
            .switch(8_000, 1, CHILD, MAIN);
        total(&after(story), Cause::Oversubscribed)
    };
    // Without a habit nobody knows whether it would have gone on.
    assert_eq!((asks(0), asks(3)), (2_000, 0));
}

#[test]
fn a_child_that_works_ahead_is_a_loader_and_one_that_answers_is_a_helper() {
    let ahead = after(before().runs(500, 2, CHILD).main_sleeps(
        (1_000, 9_000),
        S,
        Some(POLL),
        Some(CHILD),
    ));
    assert_eq!(found(&ahead), [("host.data-loading", 8_000)]);
    let asked = after(
        before()
            .runs(100, 2, CHILD)
            .sleeps(200, 2, CHILD, S, Some(READ))
            .wakes(950, MAIN, CHILD)
            .runs(955, 2, CHILD)
            .main_sleeps((1_000, 9_000), S, Some(POLL), Some(CHILD)),
    );
    assert!(found(&asked).is_empty());
    assert_eq!(total(&asked, Cause::DataLoading), 0);
    let who = longest(&asked).parts[1].who.clone().unwrap();
    assert_eq!(
        (who.tid, longest(&asked).parts[1].cause),
        (Tid(CHILD), Cause::Compute)
    );
}

#[test]
fn a_server_without_requests_is_not_at_fault() {
    let r = after(before().main_sleeps((1_000, 9_000), S, Some(EPOLL_WAIT), Some(HOG)));
    assert_eq!(found(&r), [("host.no-demand", 8_000)]);
    let r = after(
        before()
            .sleeps(1_000, 1, MAIN, S, Some(EPOLL_WAIT))
            .wakes_by(9_000, MAIN, THREAD, Context::SoftIrq(3))
            .runs(9_000, 1, MAIN),
    );
    assert_eq!(found(&r), [("host.no-demand", 8_000)]);
}

#[test]
fn a_slow_peer_is_the_network() {
    let r = after(
        before()
            .sleeps(1_000, 1, MAIN, S, Some(RECVFROM))
            .wakes_by(9_000, MAIN, IDLE, Context::SoftIrq(3))
            .runs(9_000, 1, MAIN),
    );
    assert_eq!(found(&r), [("host.network", 8_000)]);
}

#[test]
fn a_host_that_touches_page_after_page_waits_for_the_device_all_the_time() {
    let moves = |story: Story, pages: [i64; 3]| {
        pages.iter().fold(story, |story, &at| {
            story.event(Event::Migration(Migration {
                pid: Pid(100),
                device: DeviceId(0),
                kind: MigrationKind::ToHost,
                start: us(at),
                end: us(at + 5),
                bytes: 1 << 16,
            }))
        })
    };
    // In between it runs, and sleeps for too short a time to have a stack.
    let sleeps = |story: Story| {
        story
            .sleeps(2_030, 1, MAIN, D, None)
            .wakes_by(2_040, MAIN, IDLE, Context::HardIrq(40))
            .runs(2_040, 1, MAIN)
    };
    let r = after(sleeps(moves(before(), [2_000, 2_150, 2_300])));
    assert_eq!(
        found(&r),
        [30, 10, 265].map(|us| ("gpu.unified-memory", us))
    );
    // What is far from the next is on its own.
    let r = after(moves(before(), [2_000, 3_000, 4_000]));
    assert_eq!(found(&r), [("gpu.unified-memory", 5); 3]);
}

#[test]
fn a_host_that_touches_managed_memory_waits_for_the_device() {
    let back = |kind| {
        Event::Migration(Migration {
            pid: Pid(100),
            device: DeviceId(0),
            kind,
            start: us(2_000),
            end: us(3_000),
            bytes: 1 << 20,
        })
    };
    let r = after(before().event(back(MigrationKind::ToHost)));
    assert_eq!(found(&r), [("gpu.unified-memory", 1_000)]);
    assert!(found(&after(before().event(back(MigrationKind::ToDevice)))).is_empty());
    // In a fault that sleeps.
    let r = after(
        before()
            .sleeps(1_000, 1, MAIN, D, None)
            .wait(
                MAIN,
                (1_000, 9_000),
                D,
                None,
                &["uvm_va_block_cpu_fault", "__do_fault"],
                "",
            )
            .wakes_by(9_000, MAIN, IDLE, Context::HardIrq(40))
            .runs(9_000, 1, MAIN),
    );
    assert_eq!(found(&r), [("gpu.unified-memory", 8_000)]);
}

#[test]
fn a_kernel_lock_held_by_another_process_is_not_the_calls_fault() {
    let lock = |holder| {
        after(
            before()
                .call(MAIN, MALLOC, (500, 9_500))
                .sleeps(1_000, 1, MAIN, D, Some(16))
                .wait(
                    MAIN,
                    (1_000, 9_000),
                    D,
                    Some(16),
                    &["rwsem_down_write_slowpath", "os_acquire_rwlock_write"],
                    "/dev/nvidia0",
                )
                .wakes(9_000, holder, MAIN)
                .runs(9_000, 1, MAIN),
        )
    };
    assert_eq!(found(&lock(HOG))[1], ("host.kernel-lock", 8_000));
    assert_eq!(found(&lock(THREAD)), [("host.cuda-memory", 9_000)]);
}

#[test]
fn reclaim_while_running_is_reclaim() {
    let r = after(before().event(Event::Stall(Stall {
        tid: Tid(MAIN),
        start: us(2_000),
        dur: Nanos(1_500_000),
        kind: StallKind::Reclaim,
    })));
    assert_eq!(found(&r), [("host.reclaim", 1_500)]);
}

#[test]
fn a_dispatcher_without_scheduling_events_is_unknown() {
    let r = timeline()
        .kernel_by(150, (0, 5), (10, 100))
        .kernel_by(150, (9_990, 9_995), (10_000, 10_100))
        .report();
    assert_eq!(found(&r), [("unknown", 9_895)]);
}

#[test]
fn a_thread_that_came_back_on_another_cpu_was_moved_when_its_cpu_ran_idle() {
    let r = after(
        before()
            .switch(1_000, 1, MAIN, HOG)
            .switch(3_000, 1, HOG, IDLE)
            .switch(500, 2, IDLE, THREAD)
            .switch(4_000, 2, THREAD, MAIN),
    );
    assert_eq!(
        found(&r),
        [("host.preempted", 2_000), ("host.oversubscribed", 1_000)]
    );
}

#[test]
fn thread_ids_that_are_used_again_keep_their_names_apart() {
    let r = after(
        before()
            .switch(1_000, 1, MAIN, HOG)
            .switch(3_000, 1, HOG, MAIN)
            .event(Event::Exit(Exit {
                ts: us(4_000),
                tid: Tid(HOG),
                pid: Pid(200),
                code: 0,
            }))
            .task(4_500, HOG, 200, 1, "monitor", false, TaskState::Runnable)
            .switch(5_000, 1, MAIN, HOG)
            .switch(8_000, 1, HOG, MAIN),
    );
    let row = r.gpus[0]
        .causes
        .iter()
        .find(|c| c.cause == Cause::Preempted)
        .unwrap();
    let by: Vec<_> = row
        .by
        .iter()
        .map(|b| (b.what.as_str(), b.total.0 / 1_000))
        .collect();
    assert_eq!(by, [("monitor (pid 200)", 3_000), ("hog (pid 200)", 2_000)]);
}

#[test]
fn the_thread_table_adds_up_and_puts_dispatchers_first() {
    let r = after(
        before()
            .switch(1_000, 1, MAIN, HOG)
            .switch(3_000, 1, HOG, MAIN)
            .main_sleeps((4_000, 9_000), S, Some(NANOSLEEP), None),
    );
    let main = &r.threads[0];
    assert_eq!(
        (main.who.tid, main.dispatcher, main.launches),
        (Tid(MAIN), true, 2)
    );
    assert_eq!(
        (main.runq, main.blocked),
        (Nanos(2_000_000), Nanos(5_000_000))
    );
    assert_eq!(main.run.0 + main.runq.0 + main.blocked.0, 100_000_000);
    assert!(r.threads.iter().all(|t| t.who.tid != Tid(HOG)));
}
