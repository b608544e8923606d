//! Who was waited for: from thread to thread, and from process to process.
//!
//! As in `host`, a kernel ends at 100 µs and MAIN launches the next one at 9,990 µs, late.

use super::story::*;
use crate::analyse::cause::Cause;
use crate::analyse::report::{Report, Waker};
use crate::event::*;

/// Programs that are no part of the job; each is followed since it woke somebody.
const ENGINE: u32 = 500;
const SCHEDULER: u32 = 600;

fn before() -> Story {
    timeline().kernel((0, 5), (10, 100))
}

fn after(story: Story) -> Report {
    story.kernel((9_990, 9_995), (10_000, 10_100)).report()
}

fn found(r: &Report) -> Vec<(&'static str, u64)> {
    let around = ["host.launch-bound", "gpu.launch-latency"];
    parts(longest(r))
        .into_iter()
        .filter(|p| !around.contains(&p.0))
        .collect()
}

/// The part that begins at 1,000 µs: its cause, and on whose time it was found.
fn blamed(r: &Report) -> (&'static str, u32) {
    let part = longest(r).parts.iter().find(|p| p.end > us(1_000)).unwrap();
    (part.cause.id(), part.who.as_ref().unwrap().tid.0)
}

fn evidence(r: &Report, cause: Cause) -> String {
    let row = r.gpus[0].causes.iter().find(|c| c.cause == cause).unwrap();
    row.evidence.join("\n")
}

fn chain(r: &Report) -> Vec<(u32, String)> {
    let hops = longest(r).chain.iter();
    hops.map(|h| (h.who.tid.0, h.state.clone())).collect()
}

impl Story {
    /// `tid` sleeps on `cpu` in a system call on an object until `waker` has something for it.
    fn awaits(
        self,
        (tid, cpu): (u32, u16),
        (from, to): (i64, i64),
        (syscall, object): (u16, &str),
        (waker, context): (u32, Context),
    ) -> Self {
        self.sleeps(from, cpu, tid, S, Some(syscall))
            .wait(tid, (from, to), S, Some(syscall), &[], object)
            .wakes_by(to, tid, waker, context)
            .runs(to, cpu, tid)
    }
}

const TASK: Context = Context::Task;
const NET_RX: Context = Context::SoftIrq(3);

/// Of whoever has the number of a follower that ended, not every switch is seen.
#[test]
fn a_stranger_with_the_number_of_a_follower_is_not_followed() {
    let wait = |story: Story| {
        let r = after(story.awaits(
            (MAIN, 1),
            (1_000, 9_000),
            (RECVFROM, "tcp 10.0.0.1:9 -> 10.0.0.2:80"),
            (ENGINE, TASK),
        ));
        blamed(&r)
    };
    let ends = |at| {
        Event::Exit(Exit {
            ts: us(at),
            tid: Tid(ENGINE),
            pid: Pid(ENGINE),
            code: 0,
        })
    };
    let story = before().followed(60, ENGINE, ENGINE, "engine", TaskState::Running);
    let mut reused = story.clone().event(ends(200)).task(
        300,
        ENGINE,
        ENGINE,
        1,
        "other",
        false,
        TaskState::Running,
    );
    if let Some(Event::Task(task)) = reused.events.last_mut() {
        task.start = us(250);
    }
    assert_eq!(wait(reused), ("host.network", MAIN));
    // It closes its files last.
    assert_eq!(wait(story.event(ends(8_990))), ("host.compute", ENGINE));
}

/// Who was seen beside a target, and followed later, is one.
#[test]
fn waits_before_and_after_a_client_was_followed_are_one_line() {
    let object = "tcp 10.0.0.1:80 <- 10.0.0.1:4000";
    let request = |story: Story, from, to| {
        story.awaits((MAIN, 1), (from, to), (RECVFROM, object), (ENGINE, TASK))
    };
    let off = TaskState::Off(S);
    let story = before()
        .endpoint(object, Role::Accepted, Some(500))
        .task(0, ENGINE, 500, 1, "client", false, off);
    let story =
        request(story, 1_000, 3_000).followed(3_001, ENGINE, 500, "client", TaskState::Running);
    let r = after(request(story, 4_000, 9_000));
    let text = evidence(&r, Cause::NoDemand);
    assert!(text.contains("2 times, 7.00 ms in all"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// The hardest known case: a worker waits for the scheduler's process, which waits for the engine's, which
/// collects garbage. No trace of a GPU shows it.
#[test]
fn an_engine_that_collects_garbage_two_processes_away_is_named() {
    let work = ["schedule (engine.py:7)"];
    let collects = [
        "/usr/bin/python3.12:gc_collect_main",
        "schedule (engine.py:7)",
    ];
    let r = after(
        before()
            .followed(50, SCHEDULER, 600, "sched", TaskState::Running)
            .followed(60, ENGINE, 500, "engine", TaskState::Running)
            .awaits(
                (SCHEDULER, 2),
                (500, 8_800),
                (RECVFROM, "socket:[5]"),
                (ENGINE, TASK),
            )
            .awaits(
                (MAIN, 1),
                (1_000, 9_000),
                (READ, "pipe:[7]"),
                (SCHEDULER, TASK),
            )
            .sample(900, ENGINE, CPU, &work)
            .sample(1_100, ENGINE, CPU, &collects)
            .sample(4_000, ENGINE, CPU, &collects)
            .sample(8_000, ENGINE, CPU, &collects)
            .sample(8_700, ENGINE, CPU, &work),
    );
    assert_eq!(
        found(&r),
        [
            ("host.compute", 900),
            ("host.gc", 7_350),
            ("host.compute", 450),
            ("host.compute", 200),
            ("host.compute", 990)
        ]
    );
    assert_eq!(blamed(&r), ("host.gc", ENGINE));
    let text = evidence(&r, Cause::Gc);
    let expected = "engine (pid 500): collecting garbage: once, 7.35 ms at +1.00 ms; 3 of 3 samples in schedule \
                    (engine.py:7); sched (pid 600) waited for it";
    assert_eq!(text, expected);
    assert_eq!(
        chain(&r),
        [
            (MAIN, "blocked (read, pipe:[7])".to_string()),
            (SCHEDULER, "blocked (recvfrom, socket:[5])".to_string()),
            (ENGINE, "running (collecting garbage)".to_string())
        ]
    );
    let woken_by = longest(&r).chain[0].woken_by.clone();
    assert!(matches!(woken_by, Some(Waker::Task(w)) if w.tid == Tid(SCHEDULER)));
}

#[test]
fn every_end_of_the_walk_is_told_on_the_time_of_the_last_thread() {
    let waits = || {
        before()
            .followed(60, ENGINE, 500, "engine", TaskState::Running)
            .awaits((CHILD, 2), (500, 8_900), (READ, "pipe:[7]"), (ENGINE, TASK))
            .awaits((MAIN, 1), (1_000, 9_000), (READ, "pipe:[8]"), (CHILD, TASK))
    };
    let asleep = |state, syscall, flags| {
        waits()
            .leaves(900, 3, ENGINE, state, syscall, flags)
            .timer_wakes(8_850, ENGINE)
            .runs(8_850, 3, ENGINE)
    };
    for (story, cause) in [
        (waits(), "host.compute"),
        (asleep(S, Some(NANOSLEEP), 0), "host.sleep"),
        (
            asleep(0x102, Some(READ), SwitchFlags::IOWAIT),
            "host.disk-read",
        ),
        (asleep(0x104, None, 0), "host.stopped"),
        (asleep(S, Some(WAIT4), 0), "host.subprocess"),
        (
            waits()
                .switch(900, 3, ENGINE, HOG)
                .switch(8_850, 3, HOG, ENGINE),
            "host.preempted",
        ),
    ] {
        assert_eq!(blamed(&after(story)), (cause, ENGINE));
    }
}

#[test]
fn a_lock_ends_the_walk_wherever_it_is_met() {
    let r = after(
        before()
            .followed(60, ENGINE, 500, "engine", TaskState::Running)
            .followed(60, 501, 500, "engine", TaskState::Running)
            .awaits((ENGINE, 3), (900, 8_900), (FUTEX, ""), (501, TASK))
            .awaits(
                (MAIN, 1),
                (1_000, 9_000),
                (READ, "pipe:[8]"),
                (ENGINE, TASK),
            ),
    );
    assert_eq!(blamed(&r), ("host.lock", ENGINE));
    let tids: Vec<u32> = chain(&r).into_iter().map(|hop| hop.0).collect();
    assert_eq!(tids, [MAIN, ENGINE, 501]);
}

#[test]
fn before_a_program_was_followed_its_time_is_not_made_up() {
    let wait = |syscall, object| {
        after(
            before()
                .followed(4_000, ENGINE, 500, "engine", TaskState::Running)
                .awaits((MAIN, 1), (1_000, 9_000), (syscall, object), (ENGINE, TASK)),
        )
    };
    let r = wait(RECVFROM, "socket:[5]");
    let part = [("host.network", 3_000), ("host.compute", 5_000)];
    assert_eq!(found(&r)[1..3], part);
    let text = evidence(&r, Cause::Network);
    let peer = "waited for engine (pid 500) at socket:[5], whose own time is not recorded";
    assert!(text.contains(peer), "{text}");
    // Somebody who is no part of the job fills a queue.
    assert_eq!(found(&wait(READ, "pipe:[5]"))[1], ("host.no-demand", 3_000));
}

#[test]
fn threads_that_wait_in_a_circle_are_not_followed_round_and_round() {
    // Times of different CPUs differ: CHILD seems to be woken by MAIN, which sleeps.
    let r = after(
        before()
            .runs(500, 2, CHILD)
            .awaits((CHILD, 2), (1_100, 8_900), (READ, "pipe:[7]"), (MAIN, TASK))
            .awaits((MAIN, 1), (1_000, 9_000), (READ, "pipe:[8]"), (CHILD, TASK)),
    );
    assert_eq!(total(&r, Cause::Unknown), 7_800);
    assert_eq!(chain(&r).len(), 2);
}

#[test]
fn a_chain_without_end_is_followed_for_eight_hops() {
    let chain_of = |threads: u32| {
        let mut story = before();
        for i in 0..threads {
            let tid = 700 + i;
            story = story.followed(50, tid, tid, "relay", TaskState::Running);
        }
        for i in (0..threads - 1).rev() {
            let to = 9_000 - i64::from(i) * 10 - 10;
            let cpu = u16::try_from(i + 2).unwrap();
            let waker = (701 + i, TASK);
            story = story.awaits((700 + i, cpu), (900, to), (READ, "pipe:[7]"), waker);
        }
        after(story.awaits((MAIN, 1), (1_000, 9_000), (READ, "pipe:[8]"), (700, TASK)))
    };
    assert_eq!(blamed(&chain_of(8)), ("host.compute", 707));
    assert_eq!(chain(&chain_of(8)).len(), 9);
    assert_eq!(blamed(&chain_of(9)), ("unknown", 707));
}

#[test]
fn a_packet_from_this_machine_is_its_senders_doing() {
    let wait = |peer, current| {
        after(
            before()
                .followed(60, ENGINE, 500, "engine", TaskState::Running)
                .followed(60, 501, 500, "engine", TaskState::Running)
                .endpoint("socket:[5]", Role::Connected, peer)
                .awaits(
                    (MAIN, 1),
                    (1_000, 9_000),
                    (RECVFROM, "socket:[5]"),
                    (current, NET_RX),
                ),
        )
    };
    let r = wait(Some(500), ENGINE);
    assert_eq!(blamed(&r), ("host.compute", ENGINE));
    assert_eq!(chain(&r)[1], (ENGINE, "running".to_string()));
    let woken_by = longest(&r).chain[0].woken_by.clone();
    assert!(matches!(woken_by, Some(Waker::Task(w)) if w.tid == Tid(ENGINE)));
    // Whoever it interrupts is not the sender.
    assert_eq!(blamed(&wait(Some(500), HOG)), ("host.network", MAIN));
    assert_eq!(blamed(&wait(None, ENGINE)), ("host.network", MAIN));
}

#[test]
fn over_the_loopback_device_nobody_else_sends() {
    let wait = |object: &str, current| {
        let r = after(
            before()
                .followed(60, ENGINE, 500, "engine", TaskState::Running)
                .endpoint(object, Role::Connected, None)
                .awaits(
                    (MAIN, 1),
                    (1_000, 9_000),
                    (RECVFROM, object),
                    (current, NET_RX),
                ),
        );
        blamed(&r)
    };
    let here = "tcp 127.0.0.1:4000 -> 127.0.0.1:5000";
    assert_eq!(wait(here, ENGINE), ("host.compute", ENGINE));
    assert_eq!(wait(here, IDLE), ("host.network", MAIN));
    let away = "tcp 127.0.0.1:4000 -> 10.0.0.7:5000";
    assert_eq!(wait(away, ENGINE), ("host.network", MAIN));
}

#[test]
fn the_only_thread_of_a_peer_is_known_whoever_delivered_its_packet() {
    let blamed_of = |tid| {
        let r = after(
            before()
                .followed(60, tid, ENGINE, "engine", TaskState::Running)
                .endpoint("socket:[5]", Role::Connected, Some(ENGINE))
                .awaits(
                    (MAIN, 1),
                    (1_000, 9_000),
                    (RECVFROM, "socket:[5]"),
                    (IDLE, NET_RX),
                ),
        );
        blamed(&r)
    };
    assert_eq!(blamed_of(ENGINE), ("host.compute", ENGINE));
    // It has a first thread, too, which may be the one.
    assert_eq!(blamed_of(ENGINE + 1), ("host.network", MAIN));
}

#[test]
fn a_request_from_outside_is_no_demand_and_one_of_the_job_is_waited_for() {
    let wait = |role, syscall, waker| {
        let r = after(
            before()
                .followed(60, ENGINE, 500, "client", TaskState::Running)
                .runs(60, 2, CHILD)
                .endpoint("socket:[5]", role, None)
                .awaits((MAIN, 1), (1_000, 9_000), (syscall, "socket:[5]"), waker),
        );
        blamed(&r)
    };
    for syscall in [RECVFROM, EPOLL_WAIT, POLL] {
        for role in [Role::Accepted, Role::Listening] {
            for waker in [(ENGINE, TASK), (HOG, TASK), (IDLE, NET_RX)] {
                let expected = ("host.no-demand", MAIN);
                assert_eq!(
                    wait(role, syscall, waker),
                    expected,
                    "{role:?} {syscall} {waker:?}"
                );
            }
        }
        let at = |waker| wait(Role::Connected, syscall, waker);
        assert_eq!(at((ENGINE, TASK)), ("host.compute", ENGINE));
        assert_eq!(at((HOG, TASK)), ("host.network", MAIN));
        assert_eq!(at((IDLE, NET_RX)), ("host.network", MAIN));
        let of_job = wait(Role::Accepted, syscall, (CHILD, TASK));
        assert_eq!(of_job, ("host.data-loading", CHILD));
    }
}

#[test]
fn an_epoll_that_times_out_is_told_by_whom_it_serves() {
    for (role, expected) in [
        (Role::Listening, "host.no-demand"),
        (Role::Accepted, "host.no-demand"),
        (Role::Connected, "host.other"),
    ] {
        let r = after(
            before()
                .endpoint("anon_inode:[eventpoll]", role, None)
                .main_sleeps((1_000, 9_000), S, Some(EPOLL_WAIT), None)
                .wait(
                    MAIN,
                    (1_000, 9_000),
                    S,
                    Some(EPOLL_WAIT),
                    &[],
                    "anon_inode:[eventpoll]",
                ),
        );
        assert_eq!(blamed(&r), (expected, MAIN), "{role:?}");
    }
}

#[test]
fn another_rank_that_is_not_recorded_is_a_late_peer() {
    let program = |story: Story, pid: u32, arguments: &str| {
        let mut story = story;
        let exe = story.name("/usr/bin/python3.12");
        let cmdline = story.name(&format!("python3 {arguments}"));
        story.event(Event::Process(Process {
            ts: us(0),
            pid: Pid(pid),
            cmdline,
            exe,
            cgroup: NameId(0),
        }))
    };
    let wait = |other: &str| {
        let mut story = before().task(1, MAIN, 100, 50, "python3", true, TaskState::Running);
        story = story.task(1, 110, 110, 50, "python3", false, TaskState::Running);
        story = program(program(story, 100, "train.py --rank 0"), 110, other);
        let story = story.awaits(
            (MAIN, 1),
            (1_000, 9_000),
            (RECVFROM, "socket:[5]"),
            (110, TASK),
        );
        blamed(&after(story))
    };
    assert_eq!(wait("train.py --rank 1"), ("host.peer", MAIN));
    assert_eq!(wait("client.py"), ("host.network", MAIN));
}

#[test]
fn the_frames_tell_a_queue_from_a_lock() {
    let libc = "/usr/lib/libc.so.6:sem_clockwait";
    let lock = "/usr/bin/python3.12:PyThread_acquire_lock_timed";
    let queue = [
        libc,
        lock,
        "Condition.wait (/lib/threading.py:9)",
        "Queue.get (/lib/queue.py:5)",
    ];
    let mutex = [libc, lock, "step (train.py:5)"];
    let condition = ["/usr/lib/libc.so.6:pthread_cond_wait", "/opt/a.so:pop"];
    let wait = |frames: &[&str]| {
        after(
            before()
                .process(100, "/")
                .runs(500, 2, THREAD)
                .sleeps(900, 2, THREAD, S, Some(NANOSLEEP))
                .timer_wakes(8_900, THREAD)
                .runs(8_900, 2, THREAD)
                .awaits((MAIN, 1), (1_000, 9_000), (FUTEX, ""), (THREAD, TASK))
                .sample(9_000, MAIN, off(1_000), frames),
        )
    };
    assert_eq!(blamed(&wait(&queue)), ("host.sleep", THREAD));
    assert_eq!(blamed(&wait(&condition)), ("host.sleep", THREAD));
    assert_eq!(blamed(&wait(&mutex)), ("host.lock", MAIN));
    // Inside of a call it is the driver's.
    let r = timeline()
        .kernel((0, 5), (10, 100))
        .runs(500, 2, THREAD)
        .awaits((MAIN, 1), (1_000, 9_000), (FUTEX, ""), (THREAD, TASK))
        .sample(9_000, MAIN, off(1_000), &condition)
        .kernel((900, 9_995), (10_000, 10_100))
        .report();
    assert_eq!(total(&r, Cause::Lock), 8_000);
}

#[test]
fn a_lock_of_the_kernel_that_a_profiler_holds_is_the_observers() {
    let wait = |holder: &str, frames: &[&str]| {
        let mut story = before().task(1, 800, 800, 1, holder, false, TaskState::Running);
        let names: Vec<NameId> = frames.iter().map(|f| story.name(f)).collect();
        let stack = StackId(900);
        let define = Define::Stack {
            id: stack,
            frames: names,
        };
        let story = story
            .event(Event::Define(define))
            .sleeps(1_000, 1, MAIN, D, Some(9))
            .wait(
                MAIN,
                (1_000, 9_000),
                D,
                Some(9),
                &["rwsem_down_write_slowpath"],
                "",
            )
            .wakes(9_000, 800, MAIN)
            .runs(9_000, 1, MAIN)
            .sample_with(9_000, 800, woke(MAIN, 1_000), &[], |s| s.kernel = stack);
        blamed(&after(story)).0
    };
    assert_eq!(wait("py-spy", &[]), "host.observer");
    assert_eq!(wait("gdiag", &[]), "host.observer");
    assert_eq!(
        wait("top", &["up_read", "smap_gather_stats"]),
        "host.observer"
    );
    assert_eq!(
        wait("other", &["up_read", "do_madvise"]),
        "host.kernel-lock"
    );
}
