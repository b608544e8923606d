//! How a summary looks, whatever is in it.

use proptest::prelude::*;
use serde_json::Value;

use super::map::Map;
use super::timehist::Wanted;
use super::*;
use crate::analyse::sched::recorded::{summary, Scope};
use crate::analyse::sched::steps::{Left, Step, Steps};
use crate::analyse::sched::{CpuSum, Preemptor, Who};
use crate::cli::{SchedSort, SchedSource};
use crate::event::{Pid, Tid};
use crate::model::Timeline;
use crate::present::{sample, text};
use crate::store::meta::Meta;
use crate::store::tests::arbitrary;

fn style(width: usize) -> Style {
    Style {
        width,
        color: false,
        gaps_in_full: 0,
    }
}

fn options() -> SchedOptions {
    SchedOptions {
        source: SchedSource::Recording {
            input: "x".into(),
            from: None,
            to: None,
        },
        tids: Vec::new(),
        cpus: None,
        view: SchedView::Summary { hist: false },
        by: SchedBy::Thread,
        sort: SchedSort::Wait,
        top: Some(20),
        json: false,
        output: None,
        strict: false,
        quiet: false,
        verbose: 0,
    }
}

fn who(comm: &str, pid: u32, tid: u32) -> Who {
    Who {
        pid: Pid(pid),
        tid: Tid(tid),
        comm: comm.to_string(),
    }
}

/// A trainer that shares CPU 3 with somebody, its loader, a stranger, and one who sleeps.
fn a_summary() -> Summary {
    let ms = Nanos::from_millis;
    let off = |reason, count, total, max| OffSum {
        reason,
        count,
        total: ms(total),
        max: Some(ms(max)),
    };
    let mut trainer = ThreadSum {
        who: who("python3", 4711, 4711),
        here: Some(Tid(4711)),
        target: true,
        dispatcher: true,
        prio: Some(120),
        run: ms(600),
        runq_max_at: Some(Nanos(1_500_000_000)),
        runq_max_behind: Some(who("stress-ng-cpu", 9000, 9001)),
        behind: vec![(who("stress-ng-cpu", 9000, 9001), ms(180))],
        off: vec![
            off(OffReason::Woken, 20, 20, 1),
            off(OffReason::Preempted, 60, 180, 3),
            off(OffReason::Throttled, 1, 50, 50),
            off(OffReason::Futex, 15, 100, 20),
            off(OffReason::Io, 5, 50, 30),
        ],
        voluntary: 20,
        involuntary: 61,
        migrations: 3,
        cpus: vec![(Cpu(3), ms(590)), (Cpu(1), ms(10))],
        affinity: Some(vec![Cpu(1), Cpu(2), Cpu(3)]),
        wakers: vec![
            (Waker::Thread(who("loader", 4711, 4713)), 15),
            (
                Waker::Interrupt(WakerContext::HardIrq(33), "nvme0q1".to_string()),
                5,
            ),
        ],
        ..ThreadSum::default()
    };
    (0..60).for_each(|_| trainer.runq.add(ms(3)));
    (0..20).for_each(|_| trainer.runq.add(ms(1)));
    (0..80).for_each(|i| trainer.runs.add(ms(i % 10 + 1)));
    let mut loader = ThreadSum {
        who: who("loader", 4711, 4713),
        target: true,
        prio: Some(120),
        run: ms(100),
        off: vec![
            off(OffReason::Sleep, 9, 890, 100),
            OffSum {
                total: Nanos::from_micros(900),
                max: Some(Nanos::from_micros(100)),
                ..off(OffReason::Woken, 9, 0, 0)
            },
        ],
        voluntary: 9,
        cpus: vec![(Cpu(1), ms(100))],
        affinity: Some(vec![Cpu(1), Cpu(2), Cpu(3)]),
        wakers: vec![(Waker::Interrupt(WakerContext::Timer, String::new()), 9)],
        ..ThreadSum::default()
    };
    (0..9).for_each(|_| loader.runq.add(Nanos::from_micros(100)));
    let asleep = ThreadSum {
        who: who("cuda-EvtHandlr", 4711, 4720),
        target: true,
        off: vec![off(OffReason::Poll, 0, 1000, 1000)],
        ..ThreadSum::default()
    };
    let stranger = ThreadSum {
        who: who("stress-ng-cpu", 9000, 9001),
        run: ms(400),
        cpus: vec![(Cpu(3), ms(400))],
        ..ThreadSum::default()
    };
    let cpu = |cpu, busy, idle, unknown, ran| CpuSum {
        cpu: Cpu(cpu),
        busy: ms(busy),
        idle: ms(idle),
        unknown: ms(unknown),
        irq: Nanos::from_micros(700),
        switches: 170,
        ran,
    };
    Summary {
        host: "node7".to_string(),
        start: Nanos::from_secs(1),
        end: Nanos::from_secs(2),
        threads: vec![trainer, loader, asleep, stranger],
        cpus: vec![
            cpu(1, 110, 0, 890, vec![(who("loader", 4711, 4713), ms(100))]),
            cpu(2, 5, 995, 0, Vec::new()),
            cpu(
                3,
                990,
                10,
                0,
                vec![
                    (who("python3", 4711, 4711), ms(590)),
                    (who("stress-ng-cpu", 9000, 9001), ms(400)),
                ],
            ),
        ],
        preemptors: vec![Preemptor {
            who: who("stress-ng-cpu", 9000, 9001),
            count: 60,
            waited: ms(180),
            had: Some(ms(180)),
            victims: vec![(who("python3", 4711, 4711), 60, ms(180))],
        }],
        notes: vec!["interrupts count from 2 us on".to_string()],
        lost: Some(0),
    }
}

fn printed(summary: &Summary, options: &SchedOptions, width: usize) -> String {
    let mut out = Vec::new();
    write_summary(&mut out, summary, options, &style(width)).unwrap();
    String::from_utf8(out).unwrap()
}

fn json(summary: &Summary) -> Value {
    let mut out = Vec::new();
    json::write(&mut out, summary, &options()).unwrap();
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn the_sample_summary_is_the_golden_one() {
    let hist = SchedOptions {
        view: SchedView::Summary { hist: true },
        ..options()
    };
    sample::assert_golden("sched-80.txt", &printed(&a_summary(), &options(), 80));
    sample::assert_golden("sched-140.txt", &printed(&a_summary(), &hist, 140));
    let mut out = Vec::new();
    json::write(&mut out, &a_summary(), &options()).unwrap();
    sample::assert_golden("sched.json", &String::from_utf8(out).unwrap());
}

#[test]
fn what_is_not_known_is_a_dash_and_null() {
    let summary = a_summary();
    let text = printed(&summary, &options(), 80);
    let stranger = text
        .lines()
        .find(|line| line.starts_with("stress-ng"))
        .unwrap();
    assert_eq!(
        stranger.split_whitespace().skip(3).collect::<Vec<_>>(),
        ["-"; 6]
    );
    let document = json(&summary);
    let threads = document["threads"].as_array().unwrap();
    let stranger = threads.iter().find(|t| t["tid"] == 9001).unwrap();
    for key in [
        "runq_ns",
        "runq_count",
        "runq_avg_ns",
        "runq_p99_ns",
        "runq_max_ns",
        "blocked_ns",
        "voluntary",
        "involuntary",
        "migrations",
        "affinity",
        "off",
        "wakers",
        "prio",
    ] {
        assert_eq!(stranger.get(key), Some(&Value::Null), "{key}");
    }
    assert_eq!(document["cpus"][0]["idle_ns"], Value::Null);
    assert_eq!(document["cpus"][1]["idle_ns"], 995_000_000);
}

/// Check that one that never gets a CPU does not look like one that wants none.
#[test]
fn who_waits_all_the_time_is_told_of_in_text_and_json() {
    let mut summary = a_summary();
    summary.threads.push(ThreadSum {
        who: who("starved", 4711, 4730),
        target: true,
        behind: vec![(who("hog", 8000, 8000), Nanos::from_millis(990))],
        off: vec![OffSum {
            reason: OffReason::Woken,
            count: 0,
            total: Nanos::from_secs(1),
            max: Some(Nanos::from_secs(1)),
        }],
        affinity: Some(vec![Cpu(2)]),
        ..ThreadSum::default()
    });
    let text = printed(&summary, &options(), 80);
    let row = text.lines().find(|line| line.starts_with("starved"));
    let cells: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(
        cells[3..],
        ["0", "1.00", "s", "-", "-", ">=1.00", "s", "-"],
        "{text}"
    );
    assert!(
        text.contains("\n1 thread waited for a CPU all the time\n"),
        "{text}"
    );
    assert!(text.contains("\n1 thread slept all the time\n"), "{text}");

    let document = json(&summary);
    let threads = document["threads"].as_array().unwrap();
    // By time waited.
    let starved = &threads[0];
    assert_eq!(starved["tid"], 4730);
    assert_eq!(starved["runq_ns"], 1_000_000_000);
    assert_eq!(starved["runq_count"], 0);
    assert_eq!(starved["behind"][0]["tid"], 8000);
    for key in [
        "runq_avg_ns",
        "runq_p99_ns",
        "runq_max_ns",
        "runq_max_at_ns",
    ] {
        assert_eq!(starved[key], Value::Null, "{key}");
    }
}

#[test]
fn the_keys_that_were_promised_are_there() {
    let document = json(&a_summary());
    let thread = &document["threads"][0];
    for (key, value) in [
        ("pid", 4711),
        ("tid", 4711),
        ("run_ns", 600_000_000),
        ("runq_ns", 200_000_000),
        ("runq_count", 80),
        ("runq_avg_ns", 2_500_000),
        ("runq_max_ns", 3_000_000),
        ("blocked_ns", 150_000_000),
        ("voluntary", 20),
        ("involuntary", 61),
        ("migrations", 3),
    ] {
        assert_eq!(thread[key], value, "{key}");
    }
    assert_eq!(thread["cpus"], serde_json::json!([3, 1]));
    assert_eq!(thread["affinity"], serde_json::json!([1, 2, 3]));
    assert_eq!(document["cpus"][2]["busy_ns"], 990_000_000);
    let preemptor = &document["preemptors"][0];
    assert_eq!(
        (&preemptor["count"], &preemptor["ns"]),
        (&60.into(), &180_000_000.into())
    );
}

#[test]
fn rows_are_threads_processes_or_names_in_the_order_that_was_asked_for() {
    let names = |by, sort| -> Vec<String> {
        let rows = rows(&a_summary().threads, by, sort);
        rows.into_iter().map(|row| row.name).collect()
    };
    assert_eq!(
        names(SchedBy::Thread, SchedSort::Run),
        [
            "python3:4711",
            "stress-ng-cpu:9001",
            "loader:4713",
            "cuda-EvtHandlr:4720"
        ]
    );
    assert_eq!(
        names(SchedBy::Process, SchedSort::Wait),
        ["python3:4711 (3)", "stress-ng-cpu:9000"]
    );
    assert_eq!(
        names(SchedBy::Name, SchedSort::Switches)[..2],
        ["python3", "loader"]
    );
    let process = &rows(&a_summary().threads, SchedBy::Process, SchedSort::Wait)[0].sum;
    assert_eq!(process.run, Nanos::from_millis(700));
    assert_eq!((process.runq.count, process.voluntary), (89, 29));
    assert_eq!(process.affinity, None, "they do not agree");
    assert_eq!(process.wakers[0].1, 15);
}

#[test]
fn a_loss_is_the_first_thing_that_is_said() {
    let summary = Summary {
        lost: Some(12),
        ..a_summary()
    };
    let text = printed(&summary, &options(), 80);
    let second = text.lines().nth(1).unwrap();
    assert!(second.starts_with("warning: 12 events lost"), "{text}");
}

/// Whatever a program may call itself.
const NAMES: [&str; 8] = [
    "a b;c[d]",
    "\x1b[31mred\x1b[0m",
    "\u{202e}lortnoc",
    "\u{8a13}\u{7df4}\u{8a13}\u{7df4}",
    "\n\r\t\0",
    "\u{fffd}\u{fffd}",
    "",
    "{\"k\":1}\\",
];

fn hostile() -> Summary {
    let mut summary = a_summary();
    let mut names = NAMES.iter().cycle();
    let mut rename = |who: &mut Who| who.comm = (*names.next().unwrap()).to_string();
    for _ in 0..2 {
        let threads = summary.threads.clone();
        summary.threads.extend(threads);
    }
    for thread in &mut summary.threads {
        rename(&mut thread.who);
        thread.runq_max_behind.iter_mut().for_each(&mut rename);
        thread.behind.iter_mut().for_each(|b| rename(&mut b.0));
    }
    for preemptor in &mut summary.preemptors {
        rename(&mut preemptor.who);
        preemptor.victims.iter_mut().for_each(|v| rename(&mut v.0));
    }
    summary.host = NAMES[1].to_string();
    summary
}

fn assert_harmless(text: &str, width: Option<usize>) {
    for line in text.lines() {
        assert!(
            !line.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{line:?}"
        );
        if let Some(width) = width {
            assert!(text::width(line) <= width, "{width}: {line:?}");
        }
    }
}

#[test]
fn hostile_names_break_neither_the_layout_nor_the_terminal() {
    for width in [80, 110, 160] {
        for by in [SchedBy::Thread, SchedBy::Process, SchedBy::Name] {
            let options = SchedOptions {
                by,
                view: SchedView::Summary { hist: true },
                top: None,
                ..options()
            };
            assert_harmless(&printed(&hostile(), &options, width), Some(width));
        }
    }
    let document = json(&hostile());
    let mut found: Vec<&str> = document["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["comm"].as_str().unwrap())
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), NAMES.len(), "JSON has them whole");
}

fn left(comm: &str) -> Step {
    Step::Left(Box::new(Left {
        ts: Nanos(79_371_874_569_123),
        cpu: Cpu(11),
        who: who(comm, 31_949, 31_950),
        target: true,
        off: Some(Nanos::from_micros(1_500)),
        delay: Some(Nanos::from_micros(1_200)),
        run: Some(Nanos::from_micros(14)),
        waited: Some(OffReason::Futex),
        by: Some(Waker::Thread(who(comm, 7, 7))),
        behind: Some(who("hog", 8, 8)),
        why: Some(OffReason::Preempted),
        ended: false,
        next: who(comm, 9, 9),
    }))
}

fn lines(wanted: &Wanted, steps: &[Step]) -> String {
    let mut out = Vec::new();
    for step in steps {
        wanted.write(step, &mut out).unwrap();
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn a_line_of_timehist_has_the_columns_of_perf_and_the_reasons() {
    assert_eq!(
        lines(&Wanted::default(), &[left("gcc")]),
        "   79371.874569 [0011]  gcc[31950/31949]                1.500      1.200      0.014  \
         futex, woken by gcc[7], behind hog[8] -> preempted by gcc[9]\n"
    );
    for name in NAMES {
        assert_harmless(&lines(&Wanted::default(), &[left(name)]), None);
    }
}

#[test]
fn timehist_shows_what_was_asked_for() {
    let none = |wanted: Wanted| lines(&wanted, &[left("gcc")]).is_empty();
    assert!(none(Wanted {
        threshold: Some(Nanos::from_millis(2)),
        ..Wanted::default()
    }));
    assert!(!none(Wanted {
        threshold: Some(Nanos::from_millis(1)),
        ..Wanted::default()
    }));
    assert!(none(Wanted {
        tids: vec![Tid(1)],
        ..Wanted::default()
    }));
    assert!(none(Wanted {
        cpus: Some(vec![Cpu(0)]),
        ..Wanted::default()
    }));
    let woken = Step::Woken {
        ts: Nanos(1_000_000),
        cpu: Cpu(0),
        who: who("a", 1, 1),
        by: Waker::Interrupt(WakerContext::SoftIrq(3), "NET_RX".to_string()),
        target: true,
    };
    let moved = Step::Moved {
        ts: Nanos(1_000_000),
        who: who("a", 1, 1),
        from: Cpu(0),
        to: Cpu(2),
        target: true,
    };
    let both = [woken, moved];
    assert_eq!(lines(&Wanted::default(), &both), "");
    let wanted = Wanted {
        wakeups: true,
        migrations: true,
        ..Wanted::default()
    };
    assert_eq!(
        lines(&wanted, &both),
        "       0.001000 [0000]  softirq NET_RX              awakened: a[1]\n       \
         0.001000 [0002]  a[1]                        migrated: cpu 0 => 2\n"
    );
}

fn runs(ts: u64, cpu: u16, comm: &str, tid: u32) -> Step {
    Step::Runs {
        ts: Nanos(ts * 1_000),
        cpu: Cpu(cpu),
        who: who(comm, tid, tid),
    }
}

fn mapped(map: &mut Map, steps: &[Step]) -> String {
    let mut out = Vec::new();
    for step in steps {
        map.write(step, &mut out).unwrap();
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn a_map_has_a_column_for_each_cpu_and_tells_who_is_who_once() {
    let mut map = Map::new(80, None);
    let steps = [
        runs(1, 1, "gcc", 7),
        runs(2, 0, "make", 8),
        runs(3, 1, "", 0),
        runs(4, 1, "gcc", 7),
    ];
    assert_eq!(
        mapped(&mut map, &steps),
        "            CPU  1\n       \
         0.000001 *A0  A0 => gcc:7\n            \
         CPU  0   1\n       \
         0.000002 *B0  A0  B0 => make:8\n       \
         0.000003  B0 *.\n       \
         0.000004  B0 *A0\n"
    );
}

#[test]
fn a_map_of_many_cpus_fits_the_width_and_names_whom_it_shows() {
    let mut map = Map::new(80, None);
    let steps: Vec<Step> = (0..2_000_u32)
        .map(|i| {
            let cpu = u16::try_from(i * 7 % 96).unwrap();
            runs(
                u64::from(i),
                cpu,
                NAMES[i as usize % NAMES.len()],
                i % 600 + 1,
            )
        })
        .collect();
    let text = mapped(&mut map, &steps);
    assert_harmless(&text, None);
    for line in text.lines() {
        let shown = line.split("=>").next().unwrap();
        assert!(text::width(shown) <= 80, "{line}");
        assert!(!shown.contains('?'), "{line}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Check that a recording may hold anything: whoever made it may have meant harm.
    #[test]
    fn any_recording_can_be_shown(events in arbitrary::events(120), host in any::<String>()) {
        let mut t = Timeline::new(&Meta { host, ..Meta::default() });
        let mut steps = Steps::new("x86_64", true);
        let wanted = Wanted { wakeups: true, migrations: true, next: true, ..Wanted::default() };
        let mut map = Map::new(80, None);
        let (mut lines, mut mapped) = (Vec::new(), Vec::new());
        for event in &events {
            t.push(event);
            steps.event(event, &mut |step| {
                wanted.write(&step, &mut lines).unwrap();
                map.write(&step, &mut mapped).unwrap();
            });
        }
        t.finish(None);
        let scope = Scope { from: t.start(), to: t.end(), cpus: None, tids: &[], joins: false };
        let summary = summary(&t, &scope);
        assert_harmless(&printed(&summary, &options(), 80), None);
        json(&summary);
        assert_harmless(&String::from_utf8(lines).unwrap(), None);
        assert_harmless(&String::from_utf8(mapped).unwrap(), None);
    }
}
