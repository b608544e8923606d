//! Small recordings of which every count and time is known.

use proptest::prelude::*;

use super::pinning::{judge, Verdict};
use super::recorded::{summary, Scope};
use super::steps::{Left, Step, Steps};
use super::*;
use crate::analyse::tests::story::{
    timeline, us, Story, FUTEX, GDIAG, HOG, IDLE, MAIN, NANOSLEEP, S, THREAD,
};
use crate::event::{Event, Loss, LossSource, TaskState};
use crate::model::Timeline;
use crate::store::meta::{self, Meta, TargetMode};
use crate::store::tests::arbitrary;

const SCHED_YIELD: u16 = 24;

fn told(story: &Story) -> Timeline {
    let mut t = Timeline::new(&story.meta);
    story.events.iter().for_each(|event| t.push(event));
    t.finish(Some(&meta::Summary {
        end_mono_ns: us(story.end).0,
        ..meta::Summary::default()
    }));
    t
}

fn whole(story: &Story) -> Scope<'static> {
    Scope {
        from: us(0),
        to: us(story.end),
        cpus: None,
        tids: &[],
        joins: false,
    }
}

fn summed(story: &Story) -> Summary {
    summary(&told(story), &whole(story))
}

fn of(summary: &Summary, tid: u32) -> &ThreadSum {
    let found = summary.threads.iter().find(|t| t.who.tid == Tid(tid));
    found.unwrap_or_else(|| panic!("{tid} is not there"))
}

fn off(thread: &ThreadSum) -> Vec<(OffReason, u64, u64)> {
    let off = thread.off.iter();
    off.map(|off| (off.reason, off.count, off.total.0 / 1_000))
        .collect()
}

fn micros(us: u64) -> Nanos {
    Nanos::from_micros(us)
}

/// MAIN on CPU 1: sleeps, is woken by THREAD while the hog has the CPU, is preempted by the hog, yields to it,
/// and ends up on CPU 2.
fn busy() -> Story {
    let mut story = timeline()
        .runs(10, 3, THREAD)
        .sleeps(100, 1, MAIN, S, Some(FUTEX))
        .switch(150, 1, IDLE, HOG)
        .wakes(200, THREAD, MAIN)
        .switch(300, 1, HOG, MAIN)
        .switch(400, 1, MAIN, HOG)
        .switch(600, 1, HOG, MAIN);
    story = story.event(Event::Switch(crate::event::Switch {
        syscall: Some(SCHED_YIELD),
        ts: us(700),
        cpu: Cpu(1),
        prev: Tid(MAIN),
        next: Tid(HOG),
        state: 0,
        flags: crate::event::SwitchFlags(0),
        minor_faults: 0,
        major_faults: 0,
    }));
    story = story
        .switch(750, 1, HOG, MAIN)
        .sleeps(800, 1, MAIN, S, Some(NANOSLEEP))
        .timer_wakes(890, MAIN)
        .runs(900, 2, MAIN);
    story.end = 1_000;
    story
}

#[test]
fn every_switch_has_its_reason_and_every_time_its_place() {
    let summary = summed(&busy());
    let main = of(&summary, MAIN);
    assert_eq!(main.run, micros(100 + 100 + 100 + 50 + 100));
    assert_eq!((main.voluntary, main.involuntary), (2, 2));
    assert_eq!(
        off(main),
        [
            (OffReason::Woken, 2, 110),
            (OffReason::Preempted, 1, 200),
            (OffReason::Yielded, 1, 50),
            (OffReason::Futex, 1, 100),
            (OffReason::Sleep, 1, 90),
        ]
    );
    let all: u64 = main.off.iter().map(|off| off.total.0).sum();
    assert_eq!(main.run.0 + all, 1_000_000, "it covers the recording");
    assert_eq!(main.runq.count, 4);
    assert_eq!(main.runq.total, micros(100 + 200 + 50 + 10));
    assert_eq!((main.runq.min, main.runq.max), (micros(10), micros(200)));
    assert_eq!(main.runq_max_at, Some(us(600)));
    assert_eq!(main.runq_max_behind.as_ref().map(|w| w.tid), Some(Tid(HOG)));
    // The first and the last run are not whole.
    assert_eq!((main.runs.count, main.runs.total), (3, micros(250)));
    assert_eq!(main.migrations, 1);
    assert_eq!(main.cpus, [(Cpu(1), micros(350)), (Cpu(2), micros(100))]);
    let behind: Vec<_> = main.behind.iter().map(|b| (b.0.tid.0, b.1)).collect();
    assert_eq!(behind, [(HOG, micros(350))]);
}

#[test]
fn wakers_are_threads_and_interrupts_never_whom_they_interrupted() {
    let summary = summed(&busy());
    let wakers = &of(&summary, MAIN).wakers;
    let thread = wakers.iter().find_map(|(waker, n)| match waker {
        Waker::Thread(who) => Some((who.tid.0, *n)),
        Waker::Interrupt(..) => None,
    });
    assert_eq!(thread, Some((THREAD, 1)));
    assert!(wakers.contains(&(Waker::Interrupt(WakerContext::Timer, String::new()), 1)));
}

#[test]
fn a_preemptor_has_its_victims_and_what_it_had() {
    let summary = summed(&busy());
    let [hog] = summary.preemptors.as_slice() else {
        panic!("{:?}", summary.preemptors);
    };
    assert_eq!((hog.who.tid, hog.who.comm.as_str()), (Tid(HOG), "hog"));
    assert_eq!((hog.count, hog.waited), (1, micros(200)));
    // Of the yield, and of the time that MAIN had been woken, too.
    assert_eq!(hog.had, Some(micros(350)));
    let victims: Vec<_> = hog.victims.iter().map(|v| (v.0.tid.0, v.1, v.2)).collect();
    assert_eq!(victims, [(MAIN, 1, micros(200))]);
}

#[test]
fn of_a_stranger_only_its_running_is_known_and_of_its_cpu_only_what_was_seen() {
    let summary = summed(&busy());
    let hog = of(&summary, HOG);
    assert!(hog.is_stranger());
    assert_eq!(hog.run, micros(150 + 200 + 50));
    assert_eq!((hog.voluntary, hog.involuntary), (0, 0));
    let cpu = &summary.cpus[0];
    // Nobody of the target was there from 100 to 150, nor from 800 on.
    assert_eq!((cpu.cpu, cpu.busy), (Cpu(1), micros(750)));
    assert_eq!((cpu.known_idle(), cpu.unknown), (None, micros(250)));
    assert_eq!(cpu.switches, 9);
    assert!(summary.notes[0].starts_with("only the processes of the target"));
}

#[test]
fn of_the_whole_machine_idle_time_is_known() {
    let mut story = busy();
    story.meta.mode = TargetMode::All;
    let summary = summed(&story);
    let cpu = &summary.cpus[0];
    assert_eq!((cpu.busy, cpu.idle), (micros(750), micros(250)));
    assert_eq!(cpu.unknown, Nanos::ZERO);
    let ran: Vec<_> = cpu.ran.iter().map(|r| (r.0.tid.0, r.1)).collect();
    assert_eq!(ran, [(HOG, micros(400)), (MAIN, micros(350))]);
}

#[test]
fn a_range_counts_what_begins_in_it_and_times_what_is_in_it() {
    let story = busy();
    let t = told(&story);
    let summary = summary(
        &t,
        &Scope {
            from: us(350),
            to: us(650),
            ..whole(&story)
        },
    );
    let main = of(&summary, MAIN);
    assert_eq!((main.voluntary, main.involuntary), (0, 1));
    assert_eq!(main.run, micros(50 + 50));
    assert_eq!(off(main), [(OffReason::Preempted, 1, 200)]);
    assert_eq!((main.runs.count, main.runq.count), (0, 1));
}

#[test]
fn on_other_cpus_nothing_counts() {
    let story = busy();
    let t = told(&story);
    let scope = Scope {
        cpus: Some(&[Cpu(2)]),
        ..whole(&story)
    };
    let summary = summary(&t, &scope);
    let main = of(&summary, MAIN);
    assert_eq!((main.run, main.migrations), (micros(100), 1));
    // It waited for CPU 2, but slept on CPU 1.
    assert_eq!(off(main), [(OffReason::Woken, 1, 10)]);
    assert!(summary.threads.iter().all(|t| t.who.tid != Tid(HOG)));
    assert_eq!(summary.cpus.len(), 1);
}

#[test]
fn time_without_quota_is_no_time_in_the_queue() {
    let mut story = timeline()
        .throttled(100, 1, MAIN, IDLE)
        .switch(600, 1, IDLE, MAIN);
    story.end = 1_000;
    let main = summed(&story);
    let main = of(&main, MAIN);
    assert_eq!(off(main), [(OffReason::Throttled, 1, 500)]);
    assert_eq!((main.runq.count, main.involuntary), (0, 1));
    assert_eq!(main.blocked(), Nanos::ZERO);
}

#[test]
fn a_number_that_is_used_again_is_another_thread() {
    let mut story = timeline()
        .event(Event::Exit(crate::event::Exit {
            ts: us(100),
            tid: Tid(THREAD),
            pid: Pid(100),
            code: 0,
        }))
        .born(500, THREAD, 100, MAIN, "second")
        .runs(510, 3, THREAD);
    story.end = 1_000;
    let summary = summed(&story);
    let both: Vec<_> = summary
        .threads
        .iter()
        .filter(|t| t.who.tid == Tid(THREAD))
        .collect();
    let [first, second] = both.as_slice() else {
        panic!("{both:?}");
    };
    assert_eq!(
        (first.who.comm.as_str(), first.run),
        ("helper", Nanos::ZERO)
    );
    assert_eq!(
        (second.who.comm.as_str(), second.run),
        ("second", micros(490))
    );
    assert_eq!(second.runq.total, micros(10));
}

fn verdicts(story: &Story) -> Vec<Verdict> {
    judge(&summed(story))
}

/// MAIN launches and wants CPU 1, of which the hog has half.
fn contended() -> Story {
    let mut story = timeline().kernel((1, 2), (5, 6));
    for i in 0..10 {
        story =
            story
                .switch(i * 2_000 + 1_000, 1, MAIN, HOG)
                .switch(i * 2_000 + 2_000, 1, HOG, MAIN);
    }
    story.end = 20_000;
    story
}

#[test]
fn a_thread_that_waits_behind_another_is_told_of_with_both_their_shares() {
    let all = verdicts(&contended());
    let [verdict] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(verdict.who.tid, Tid(MAIN));
    assert!(!verdict.fine);
    assert_eq!(
        verdict.says,
        "waited 10.0 ms for a CPU, 50.0 % of the time that it could run"
    );
    assert!(
        verdict.evidence[1].starts_with("hog:200 had its CPU for 10.0 ms of that (100.0 %)"),
        "{verdict:?}"
    );
    let remedy = verdict.remedy.as_deref().unwrap();
    assert!(
        remedy.starts_with("keep hog:200 (process 200) off its CPU"),
        "{remedy}"
    );
}

#[test]
fn nobody_is_blamed_for_a_wait_that_is_short() {
    let mut story = timeline().kernel((1, 2), (5, 6));
    for i in 0..10 {
        story =
            story
                .switch(i * 2_000 + 1_000, 1, MAIN, HOG)
                .switch(i * 2_000 + 1_010, 1, HOG, MAIN);
    }
    story.end = 20_000;
    let all = verdicts(&story);
    assert_eq!(all.len(), 1, "it launches");
    assert!(all[0].fine && all[0].remedy.is_none(), "{all:?}");
}

#[test]
fn of_a_thread_that_launches_nothing_only_a_problem_is_worth_a_word() {
    let mut story = timeline();
    story.end = 20_000;
    // One runs all the time; the others could run all the time, and never do.
    let all = verdicts(&story);
    let names: Vec<&str> = all.iter().map(|verdict| &*verdict.who.comm).collect();
    assert_eq!(names, ["helper", "child", "pt_data_worker"]);
    for verdict in &all {
        assert!(!verdict.fine);
        assert_eq!(verdict.says, "never ran: it waited for a CPU all 20.0 ms");
    }
}

#[test]
fn a_thread_that_hardly_runs_because_it_is_starved_is_told_of() {
    let mut story = timeline();
    for i in 0..10 {
        story = story
            .switch(i * 2_000 + 100, 1, MAIN, HOG)
            .switch(i * 2_000 + 2_000, 1, HOG, MAIN);
    }
    story.end = 20_000;
    let all = verdicts(&story);
    // Before those that never ran.
    let verdict = &all[0];
    assert_eq!(verdict.who.tid, Tid(MAIN));
    assert_eq!(
        verdict.says,
        "waited 19.0 ms for a CPU, 95.0 % of the time that it could run"
    );
}

#[test]
fn its_own_process_is_told_to_make_room_rather_than_strangers() {
    let mut story = timeline().kernel((1, 2), (5, 6));
    for i in 0..10 {
        story = story.switch(i * 2_000 + 1_000, 1, MAIN, THREAD).switch(
            i * 2_000 + 2_000,
            1,
            THREAD,
            MAIN,
        );
    }
    story.end = 20_000;
    let all = verdicts(&story);
    let remedy = all[0].remedy.as_deref().unwrap();
    assert!(remedy.starts_with("threads of its own process"), "{remedy}");
}

#[test]
fn whoever_took_a_cpu_for_a_moment_is_not_to_blame_for_those_who_had_it_then() {
    let who = |tid: u32, comm: &str| Who {
        pid: Pid(tid),
        tid: Tid(tid),
        comm: comm.to_string(),
    };
    let ms = Nanos::from_millis;
    let mut thread = ThreadSum {
        who: who(1, "one"),
        target: true,
        dispatcher: true,
        run: ms(40),
        cpus: vec![(Cpu(0), ms(40))],
        ..ThreadSum::default()
    };
    thread.runq.add(ms(60));
    let preemptor = |by: Who| Preemptor {
        who: by,
        count: 5,
        waited: ms(30),
        had: None,
        victims: vec![(who(1, "one"), 5, ms(30))],
    };
    // Nothing is known of who had the CPU while it waited, as when it is added up in the kernel.
    let verdicts = judge(&Summary {
        end: ms(100),
        threads: vec![thread],
        preemptors: vec![
            preemptor(who(15, "rcu_preempt")),
            preemptor(who(200, "hog")),
        ],
        cpus: vec![CpuSum {
            cpu: Cpu(0),
            busy: ms(100),
            idle: Nanos::ZERO,
            unknown: Nanos::ZERO,
            irq: Nanos::ZERO,
            switches: 20,
            ran: vec![
                (who(200, "hog"), ms(59)),
                (who(15, "rcu_preempt"), Nanos(50_000)),
            ],
        }],
        ..Summary::default()
    });
    let said = format!("{verdicts:?}");
    assert!(said.contains("hog:200 took its CPU 5 times"), "{said}");
    assert!(!said.contains("rcu_preempt"), "{said}");
    assert!(verdicts[0].remedy.as_deref().unwrap().contains("hog:200"));
}

#[test]
fn a_cpu_is_free_only_where_it_must_have_been() {
    let who = Who {
        pid: Pid(1),
        tid: Tid(1),
        comm: "one".to_string(),
    };
    let mut thread = ThreadSum {
        who,
        here: Some(Tid(1)),
        target: true,
        dispatcher: true,
        run: Nanos::from_millis(40),
        allowed: Some(2),
        ..ThreadSum::default()
    };
    thread.runq.add(Nanos::from_millis(60));
    let cpu = |cpu, idle| CpuSum {
        cpu: Cpu(cpu),
        busy: Nanos::from_millis(100 - idle),
        idle: Nanos::from_millis(idle),
        unknown: Nanos::ZERO,
        irq: Nanos::ZERO,
        switches: 1,
        ran: Vec::new(),
    };
    let judged = |idle| {
        judge(&Summary {
            end: Nanos::from_millis(100),
            threads: vec![thread.clone()],
            cpus: vec![cpu(0, 0), cpu(1, idle)],
            ..Summary::default()
        })
    };
    let remedy = judged(0)[0].remedy.clone().unwrap();
    assert!(remedy.starts_with("all 2 CPUs are busy"), "{remedy}");
    // 60 + 80 - 100: of 60 ms at least 40.
    let remedy = judged(80)[0].remedy.clone().unwrap();
    assert!(
        remedy.starts_with("its mask does not keep it from CPU 1"),
        "a smaller mask is no remedy: {remedy}"
    );
    assert_eq!(
        judged(60)[0].remedy,
        None,
        "it may have been idle before and after"
    );
}

fn steps(story: &Story) -> Vec<Step> {
    let mut steps = Steps::new("x86_64", story.meta.mode == TargetMode::All);
    let mut all = Vec::new();
    for event in &story.events {
        steps.event(event, &mut |step| all.push(step));
    }
    steps.flush(&mut |step| all.push(step));
    all
}

fn lefts(steps: &[Step], tid: u32) -> Vec<Left> {
    let left = steps.iter().filter_map(|step| match step {
        Step::Left(left) if left.who.tid == Tid(tid) => Some((**left).clone()),
        _ => None,
    });
    left.collect()
}

#[test]
fn a_step_tells_what_was_before_and_why_it_ends() {
    let steps = steps(&busy());
    let left = lefts(&steps, MAIN);
    let times: Vec<_> = left
        .iter()
        .map(|l| [l.off, l.delay, l.run].map(|t| t.map(|t| t.0 / 1_000)))
        .collect();
    assert_eq!(
        times,
        [
            // The run before the first switch began before anybody looked.
            [None, None, Some(100)],
            [Some(200), Some(100), Some(100)],
            [Some(200), Some(200), Some(100)],
            [Some(50), Some(50), Some(50)],
        ]
    );
    let why: Vec<_> = left.iter().map(|l| (l.waited, l.why)).collect();
    assert_eq!(
        why,
        [
            (None, Some(OffReason::Futex)),
            (Some(OffReason::Futex), Some(OffReason::Preempted)),
            (Some(OffReason::Preempted), Some(OffReason::Yielded)),
            (Some(OffReason::Yielded), Some(OffReason::Sleep)),
        ]
    );
    let by = |l: &Left| match &l.by {
        Some(Waker::Thread(who)) => Some(who.tid.0),
        Some(Waker::Interrupt(..)) | None => None,
    };
    assert_eq!(by(&left[1]), Some(THREAD));
    assert_eq!(by(&left[2]), Some(HOG));
    assert_eq!(left[1].behind.as_ref().map(|w| w.tid), Some(Tid(HOG)));
    let moved = steps.iter().find_map(|step| match step {
        Step::Moved { who, from, to, .. } => Some((who.tid.0, *from, *to)),
        _ => None,
    });
    assert_eq!(moved, Some((MAIN, Cpu(1), Cpu(2))));
}

#[test]
fn of_a_stranger_no_wait_is_told() {
    let hog = lefts(&steps(&busy()), HOG);
    assert_eq!(hog.len(), 3);
    assert!(hog
        .iter()
        .all(|l| l.off.is_none() && l.why.is_none() && l.run.is_some()));
}

#[test]
fn after_a_loss_nothing_is_known_until_it_runs_again() {
    let story = timeline()
        .switch(100, 1, MAIN, HOG)
        .event(Event::Loss(Loss {
            source: LossSource::Bpf(Cpu(1)),
            count: 7,
            from: us(150),
            to: us(200),
        }))
        .switch(300, 1, HOG, MAIN)
        .switch(400, 1, MAIN, HOG);
    let steps = steps(&story);
    assert!(steps.contains(&Step::Lost {
        from: us(150),
        to: us(200),
        count: 7
    }));
    let last = lefts(&steps, MAIN).pop().unwrap();
    assert_eq!((last.off, last.run), (None, Some(micros(100))));
}

#[test]
fn whoever_is_introduced_late_has_its_name() {
    let story = timeline()
        .sleeps(100, 1, MAIN, S, Some(FUTEX))
        .wakes(200, 77, MAIN)
        .task(200, 77, 77, 1, "late", false, TaskState::Running)
        .runs(210, 1, MAIN);
    let woken = steps(&story).into_iter().find_map(|step| match step {
        Step::Woken {
            by: Waker::Thread(who),
            ..
        } => Some(who.comm),
        _ => None,
    });
    assert_eq!(woken.as_deref(), Some("late"));
}

#[test]
fn gdiag_is_named_like_anybody() {
    let story = timeline()
        .switch(100, 1, MAIN, GDIAG)
        .switch(300, 1, GDIAG, MAIN);
    assert_eq!(summed(&story).preemptors[0].who.comm, "gdiag");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Check that whatever a recording holds, times add up to no more than there was, and nothing panics.
    #[test]
    fn any_recording_adds_up(events in arbitrary::events(120), all in any::<bool>()) {
        let mode = if all { TargetMode::All } else { TargetMode::Attach };
        let mut t = Timeline::new(&Meta { mode, machine: "x86_64".into(), ..Meta::default() });
        let mut steps = Steps::new("x86_64", all);
        for event in &events {
            t.push(event);
            steps.event(event, &mut |_| {});
        }
        steps.flush(&mut |_| {});
        t.finish(None);
        let scope = Scope { from: t.start(), to: t.end(), cpus: None, tids: &[], joins: false };
        let summary = summary(&t, &scope);
        let window = t.end() - t.start();
        for thread in &summary.threads {
            let off: u64 = thread.off.iter().map(|off| off.total.0).sum();
            prop_assert!(thread.run.0 + off <= window.0);
            prop_assert!(thread.runq.total <= window);
        }
        for cpu in &summary.cpus {
            prop_assert_eq!(cpu.busy + cpu.idle + cpu.unknown, window);
            prop_assert!(cpu.irq <= window);
        }
        judge(&summary);
    }
}
