//! What samples add: where in the program time was lost, and causes that only a stack can tell.
//!
//! As in `host`, a kernel ends at 100 µs and MAIN launches the next one at 9,990 µs, late.

use super::story::*;
use crate::analyse::cause::Cause;
use crate::analyse::report::{Part, Report};
use crate::event::*;

fn before() -> Story {
    timeline().kernel((0, 5), (10, 100))
}

fn after(story: Story) -> Report {
    story.kernel((9_990, 9_995), (10_000, 10_100)).report()
}

fn part(r: &Report, cause: Cause) -> &Part {
    let parts = &longest(r).parts;
    parts.iter().find(|p| p.cause == cause).unwrap()
}

fn evidence(r: &Report, cause: Cause) -> String {
    let row = r.gpus[0].causes.iter().find(|c| c.cause == cause).unwrap();
    row.evidence.join("\n")
}

#[test]
fn running_code_is_named_by_the_sample_in_its_middle_and_by_most_of_them() {
    let main = "main (train.py:9)";
    let r = after(
        before()
            .sample(
                1_000,
                MAIN,
                CPU,
                &["/opt/a.so:sort", "load (data.py:4)", main],
            )
            .sample(5_000, MAIN, CPU, &["/opt/a.so:hash"])
            .sample(
                9_000,
                MAIN,
                CPU,
                &["/opt/a.so:sort", "load (data.py:4)", main],
            )
            .sample(
                9_200,
                MAIN,
                CPU,
                &["/opt/a.so:sort", "load (data.py:6)", main],
            )
            .sample(5_000, THREAD, CPU, &["other (x.py:1)"]),
    );
    let part = part(&r, Cause::Compute);
    assert_eq!(part.stack.frames, ["hash"]);
    let text = evidence(&r, Cause::Compute);
    assert!(
        text.ends_with("; 3 of 4 samples in sort < load (data.py:4)"),
        "{text}"
    );
}

#[test]
fn a_launch_is_a_sample_of_running_when_the_timer_took_none() {
    let launch = SampleKind::Launch { one_in: 8 };
    let story = || before().sample(4_000, MAIN, launch, &["step (train.py:3)"]);
    let r = after(story());
    assert_eq!(part(&r, Cause::Compute).stack.frames, ["step (train.py:3)"]);
    let r = after(story().sample(400, MAIN, CPU, &["load (data.py:4)"]));
    assert_eq!(part(&r, Cause::Compute).stack.frames, ["load (data.py:4)"]);
}

#[test]
fn a_wait_has_the_kernel_s_frames_and_then_the_program_s() {
    let frames = ["do_nanosleep", "do_syscall_64"];
    let user = [
        "/usr/lib/libc.so.6:clock_nanosleep",
        "/usr/bin/python3.12:call",
        "pause (train.py:7)",
        "/usr/bin/python3.12+",
    ];
    let r = after(
        before()
            .main_sleeps((1_000, 9_000), S, Some(NANOSLEEP), None)
            .wait(MAIN, (1_000, 9_000), S, Some(NANOSLEEP), &frames, "")
            .sample(9_001, MAIN, off(1_000), &user)
            .sample(9_500, MAIN, CPU, &["later (train.py:8)"]),
    );
    let stack = &part(&r, Cause::Sleep).stack;
    assert_eq!(
        stack.frames,
        [
            "do_nanosleep",
            "do_syscall_64",
            "clock_nanosleep",
            "call",
            "pause (train.py:7)",
            "python3.12+0x40"
        ]
    );
    assert_eq!(stack.telling, ["pause (train.py:7)"]);
    let text = evidence(&r, Cause::Sleep);
    assert!(text.ends_with("; in pause (train.py:7)"), "{text}");
    // The same wait without a sample of it.
    let r = after(
        before()
            .main_sleeps((1_000, 9_000), S, Some(NANOSLEEP), None)
            .wait(MAIN, (1_000, 9_000), S, Some(NANOSLEEP), &frames, "")
            .sample(800, MAIN, off(500), &user),
    );
    assert_eq!(part(&r, Cause::Sleep).stack.frames, frames);
}

#[test]
fn a_cut_stack_says_so_at_its_end() {
    let mut story = before();
    let user = story.user(&["/opt/a.so+"], Some(Cut::NoTable));
    let r = after(story.sample_with(5_000, MAIN, CPU, &[], |s| s.user = user));
    let stack = &part(&r, Cause::Compute).stack;
    assert_eq!(stack.frames, ["a.so+0x40", "[cut: no unwind table]"]);
    assert!(stack.telling.is_empty());
}

#[test]
fn the_call_that_opened_a_gap_is_told_with_where_it_was_made() {
    let opened = |samples: &dyn Fn(Story) -> Story| {
        let story = timeline()
            .kernel((0, 5), (10, 1_000))
            .call(MAIN, DEVICE_SYNC, (20, 1_010));
        let r = after(samples(story));
        let opened = longest(&r).opened_by.as_ref().unwrap();
        assert_eq!(opened.call, "cudaDeviceSynchronize");
        opened.stack.frames.clone()
    };
    let asleep = |story: Story| {
        story.main_sleeps((50, 1_005), S, Some(POLL), None).sample(
            1_005,
            MAIN,
            off(50),
            &["wait (a.py:2)"],
        )
    };
    assert_eq!(opened(&asleep), ["wait (a.py:2)"]);
    let spinning = |story: Story| asleep(story).sample(30, MAIN, CPU, &["spin (a.py:1)"]);
    assert_eq!(opened(&spinning), ["spin (a.py:1)"]);
    let elsewhere = |story: Story| {
        story
            .sample(10, MAIN, CPU, &["earlier (a.py:1)"])
            .sample(500, THREAD, CPU, &["other (a.py:1)"])
            .sample(600, MAIN, woke(THREAD, 550), &["signal (a.py:1)"])
    };
    assert!(opened(&elsewhere).is_empty());
}

#[test]
fn the_frame_tells_the_interpreter_lock_from_another_lock() {
    let libc = "/usr/lib/libc.so.6+";
    let take_gil = [libc, "/usr/bin/python3.12:take_gil", "work (a.py:3)"];
    let mutex = [libc, "/opt/a.so:lock_queue", "work (a.py:3)"];
    let unnamed = [libc, "/usr/bin/python3.12+", "work (a.py:3)"];
    let once = |frames: &[&str]| {
        after(
            before()
                .process(100, "/")
                .main_sleeps((1_000, 9_000), S, Some(FUTEX), Some(THREAD))
                .sample(9_000, MAIN, off(1_000), frames),
        )
    };
    assert_eq!(total(&once(&take_gil), Cause::Gil), 8_000);
    assert_eq!(total(&once(&mutex), Cause::Lock), 8_000);
    assert_eq!(total(&once(&unnamed), Cause::Lock), 8_000);
    let text = evidence(&once(&mutex), Cause::Lock);
    assert!(text.contains("; in lock_queue < work (a.py:3)"), "{text}");
    // Twice in a row, the first as long as the switch interval.
    let series = |frames: &[&str]| {
        after(
            before()
                .process(100, "/")
                .main_sleeps((1_000, 6_060), S, Some(FUTEX), None)
                .sample(6_060, MAIN, off(1_000), frames)
                .main_sleeps((6_070, 9_000), S, Some(FUTEX), Some(THREAD))
                .sample(9_000, MAIN, off(6_070), frames),
        )
    };
    assert_eq!(total(&series(&mutex), Cause::Gil), 0);
    assert_eq!(total(&series(&unnamed), Cause::Gil), 7_990);
}

#[test]
fn who_held_the_interpreter_lock_is_named_with_what_it_did() {
    let take_gil = ["/usr/bin/python3.12:take_gil", "work (a.py:3)"];
    // Nobody woke it: the wait timed out, and THREAD held the lock then.
    let r = after(
        before()
            .runs(500, 2, THREAD)
            .sample(5_000, THREAD, CPU, &["crunch (b.py:5)"])
            .main_sleeps((1_000, 6_000), S, Some(FUTEX), None)
            .sample_with(6_000, MAIN, off(1_000), &take_gil, |s| {
                s.gil = Some(Tid(THREAD));
            }),
    );
    assert_eq!(total(&r, Cause::Gil), 5_000);
    let text = evidence(&r, Cause::Gil);
    for said in [
        "the interpreter lock, a lock, released by helper (pid 100, tid 101)",
        "; in work (a.py:3)",
        "helper was running 5.00 ms, seen in crunch (b.py:5)",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn the_holder_of_a_lock_is_seen_where_it_gave_it_back() {
    let r = after(
        before()
            .runs(500, 2, THREAD)
            .main_sleeps((1_000, 9_000), S, Some(FUTEX), Some(THREAD))
            .sample(9_000, THREAD, woke(MAIN, 1_000), &["put (queue.py:5)"]),
    );
    let text = evidence(&r, Cause::Lock);
    assert!(text.contains("8.00 ms, seen in put (queue.py:5)"), "{text}");
}

#[test]
fn garbage_is_collected_between_the_samples_that_say_so() {
    let work = ["work (a.py:3)"];
    let collects = [
        "/usr/bin/python3.12:visit",
        "/usr/bin/python3.12:gc_collect_main.constprop.0",
        "work (a.py:3)",
    ];
    let r = after(
        before()
            .sample(1_000, MAIN, CPU, &work)
            .sample(3_000, MAIN, CPU, &collects)
            .sample(5_000, MAIN, CPU, &collects)
            .sample(7_000, MAIN, CPU, &work),
    );
    assert_eq!(
        parts(longest(&r))[..3],
        [
            ("host.compute", 1_900),
            ("host.gc", 4_000),
            ("host.compute", 3_990)
        ]
    );
    let text = evidence(&r, Cause::Gc);
    assert!(
        text.ends_with(
            "collecting garbage: once, 4.00 ms at +2.00 ms; 2 of 2 samples in work (a.py:3)"
        ),
        "{text}"
    );
    // One sample speaks for all of the run, and none for no garbage.
    let r = after(before().sample(3_000, MAIN, CPU, &collects));
    assert_eq!(total(&r, Cause::Gc), 9_890);
    let r = after(before().sample(3_000, THREAD, CPU, &collects));
    assert_eq!(total(&r, Cause::Gc), 0);
}

#[test]
fn garbage_is_collected_where_the_interpreter_says_so_and_no_function_has_a_name() {
    let frames = ["/usr/bin/python3.12+0x1f0", "work (a.py:3)"];
    let collects =
        |story: Story, at| story.sample_with(at, MAIN, CPU, &frames, |s| s.collects = true);
    let mut story = before().sample(1_000, MAIN, CPU, &frames);
    for at in [3_000, 5_000] {
        story = collects(story, at);
    }
    let r = after(story.sample(7_000, MAIN, CPU, &frames));
    assert_eq!(
        parts(longest(&r))[..3],
        [
            ("host.compute", 1_900),
            ("host.gc", 4_000),
            ("host.compute", 3_990)
        ]
    );
}

#[test]
fn a_loader_that_collects_garbage_is_a_late_loader() {
    let r = after(
        before()
            .runs(500, 2, WORKER)
            .main_sleeps((1_000, 9_000), S, Some(READ), Some(WORKER))
            .wait(
                MAIN,
                (1_000, 9_000),
                S,
                Some(READ),
                &["pipe_read"],
                "pipe:[1]",
            )
            .sample(5_000, WORKER, CPU, &["/usr/bin/python3.12:gc_collect_main"]),
    );
    assert_eq!(total(&r, Cause::DataLoading), 8_000);
    assert_eq!(total(&r, Cause::Gc), 0);
}

/// A sample of MAIN in the kernel, by the timer.
fn in_kernel(mut story: Story, at: i64, frames: &[&str]) -> Story {
    let frames: Vec<NameId> = frames.iter().map(|f| story.name(f)).collect();
    let id = StackId(u32::try_from(story.events.len()).unwrap() + 500);
    let story = story.event(Event::Define(Define::Stack { id, frames }));
    story.sample_with(at, MAIN, CPU, &["step (train.py:3)"], |s| s.kernel = id)
}

#[test]
fn what_the_kernel_did_for_a_running_thread_is_in_the_sample() {
    for (frames, cause) in [
        (
            &["copy_pte_range", "dup_mm", "kernel_clone"][..],
            "host.subprocess",
        ),
        (&["wp_page_copy", "handle_mm_fault"], "host.subprocess"),
        (
            &["change_pte_range", "change_prot_numa", "task_numa_work"],
            "host.numa-balancing",
        ),
        (&["shrink_node", "try_to_free_pages"], "host.reclaim"),
        (
            &["page_cache_ra_unbounded", "filemap_fault", "do_fault"],
            "host.page-fault",
        ),
        (&["do_sched_yield"], "host.spin"),
        // Memory that is touched for the first time, and a file that is in memory, are no faults to tell.
        (
            &["clear_page", "do_anonymous_page", "handle_mm_fault"],
            "host.compute",
        ),
        (
            &["next_uptodate_folio", "filemap_map_pages", "do_fault"],
            "host.compute",
        ),
        (&["copy_page_to_iter", "filemap_read"], "host.compute"),
        // A read into memory that is new.
        (
            &["do_anonymous_page", "exc_page_fault", "filemap_read"],
            "host.compute",
        ),
    ] {
        let story = in_kernel(before(), 1_000, &["do_syscall_64"]);
        let story = in_kernel(in_kernel(story, 3_000, frames), 5_000, frames);
        let r = after(in_kernel(story, 7_000, &["do_syscall_64"]));
        let part = longest(&r)
            .parts
            .iter()
            .find(|p| p.end > us(3_000))
            .unwrap();
        assert_eq!(part.cause.id(), cause, "{frames:?}");
        if cause != "host.compute" {
            assert_eq!((part.start, part.end), (us(2_000), us(6_000)));
        }
    }
}

#[test]
fn a_loop_that_yields_is_seen_in_some_of_its_samples() {
    let seen = |every: i64| {
        let mut story = before();
        for i in 0..16 {
            let yields: &[&str] = if i % every == 0 {
                &["do_sched_yield"]
            } else {
                &[]
            };
            story = in_kernel(story, 1_000 + i * 500, yields);
        }
        total(&after(story), Cause::Spin)
    };
    assert!(seen(3) > 7_000, "{}", seen(3));
    // Now and then is no loop.
    assert!(seen(8) < 2_000, "{}", seen(8));
}

#[test]
fn a_function_that_spins_by_name_spins() {
    let r = after(before().sample(3_000, MAIN, CPU, &["/opt/a.so:spin_until_ready"]));
    assert_eq!(total(&r, Cause::Spin), 9_890);
}
