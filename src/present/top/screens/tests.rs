use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::sample::{empty, hostile, instant, machine, model, ms, FROM};
use super::*;
use crate::analyse::live::Point;
use crate::analyse::sched::OffReason;
use crate::analyse::syscalls::Measure;
use crate::event::{Pid, Tid};
use crate::present::top::list::{Key, List, Row, Tone};
use crate::present::top::screen::Block;
use crate::present::top::{draw, Theme};
use crate::units::Nanos;

const TRAINER: Open = Open::Thread {
    pid: Pid(4711),
    tid: Tid(4711),
};

/// What is in the columns that are named.
fn texts<'a>(list: &List, row: &'a Row, columns: &[&str]) -> Vec<&'a str> {
    let place = |name: &&str| {
        let found = list.columns.iter().position(|column| column.name == *name);
        found.unwrap_or_else(|| panic!("no column {name}"))
    };
    let places = columns.iter().map(place);
    places.map(|place| row.cells[place].text.as_str()).collect()
}

fn row<'a>(list: &'a List, id: &str) -> &'a Row {
    let found = list.rows.iter().find(|row| row.id == id);
    found.unwrap_or_else(|| panic!("no row {id} in {:?}", ids(list)))
}

fn ids(list: &List) -> Vec<&str> {
    list.rows.iter().map(|row| row.id.as_str()).collect()
}

fn page(screen: Screen) -> Vec<Block> {
    match screen {
        Screen::Page { blocks, .. } => blocks,
        Screen::Table { list, .. } => panic!("a table: {}", list.title),
    }
}

fn list_of(screen: Screen) -> List {
    match screen {
        Screen::Table { list, .. } => list,
        Screen::Page { title, .. } => panic!("a page: {title}"),
    }
}

/// The table under a heading of a page.
fn under<'a>(blocks: &'a [Block], heading: &str) -> Option<&'a List> {
    let at = blocks
        .iter()
        .position(|block| *block == Block::Heading(heading.to_string()))?;
    match blocks.get(at + 1) {
        Some(Block::Table(list)) => Some(list),
        _ => None,
    }
}

fn sentences(blocks: &[Block]) -> Vec<String> {
    let text = |block: &Block| match block {
        Block::Text { label, body, .. } => Some(format!("{label}{body}")),
        Block::Blank | Block::Heading(_) | Block::Bar(_) | Block::Table(_) => None,
    };
    blocks.iter().filter_map(text).collect()
}

fn trainer(model: &Model) -> Vec<Block> {
    page(thread::screen(model, Pid(4711), Tid(4711)))
}

/// All screens of this file's neighbours.
fn all_lists(model: &Model) -> Vec<List> {
    let view = View::new(Nanos::from_secs(10));
    let mut lists = vec![
        threads::list(model),
        kernels::list(model),
        cpus::list(model),
        processes::list(model),
    ];
    let sched = &model.window.sched.threads;
    let opened = sched
        .iter()
        .map(|thread| thread::screen(model, thread.who.pid, thread.who.tid));
    let kernels = model.window.report.kernels.iter();
    let kernels = kernels.map(|kernel| kernels::opened(model, &kernel.name));
    let calls = model.window.calls.total();
    let calls = calls.iter().map(|call| calls::opened(model, &call.name));
    let screens = opened.chain(kernels).chain(calls).chain([
        calls::screen(model, &view),
        calls::opened(model, "no such call"),
        kernels::opened(model, "no such kernel"),
        thread::screen(model, Pid(1), Tid(2)),
        machine::screen(model, &view),
    ]);
    for screen in screens {
        let blocks = match screen {
            Screen::Page { blocks, .. } => blocks,
            Screen::Table { above, list } => {
                lists.push(list);
                above
            }
        };
        lists.extend(blocks.into_iter().filter_map(|block| match block {
            Block::Table(list) => Some(list),
            Block::Blank | Block::Heading(_) | Block::Bar(_) | Block::Text { .. } => None,
        }));
    }
    lists
}

/// Check that a list can be drawn, sorted and kept in place, whatever it is about.
#[test]
fn every_list_is_whole_and_every_number_is_one() {
    for (what, model) in [
        ("sample", model()),
        ("machine", machine()),
        ("nothing yet", empty()),
        ("no time", instant()),
        ("hostile", hostile("a\n\x1b[31m;\u{202e}")),
        ("no names", hostile("")),
    ] {
        for list in all_lists(&model) {
            let names: Vec<&str> = list.columns.iter().map(|column| column.name).collect();
            let at = format!("{what}, {} {names:?}", list.title);
            for row in &list.rows {
                assert_eq!(row.cells.len(), list.columns.len(), "{at}");
                for cell in &row.cells {
                    if let Key::Number(key) = cell.key {
                        assert!(key.is_finite(), "{at}: {cell:?}");
                        assert!(!cell.text.contains("NaN"), "{at}: {cell:?}");
                    }
                    let bar = cell.bar.unwrap_or(0.0);
                    assert!((0.0..=1.0).contains(&bar), "{at}: {cell:?}");
                }
            }
            let mut once = names.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), names.len(), "{at}");
            assert_eq!(
                list.columns
                    .iter()
                    .filter(|column| column.rank == 0)
                    .count()
                    > 0,
                !list.columns.is_empty(),
                "{at}: nothing stays"
            );
            // The names of the hostile report are the same for all of its kernels.
            if what == "sample" || what == "machine" {
                let mut once = ids(&list);
                once.sort_unstable();
                once.dedup();
                assert_eq!(once.len(), list.rows.len(), "{at}");
            }
        }
    }
}

#[test]
fn dispatchers_come_first_then_who_ran_most_and_sleepers_last() {
    let list = threads::list(&model());
    assert_eq!(
        ids(&list),
        ["4711:4711", "4711:4790", "9001:9001", "77:77", "4711:4800"]
    );
    assert_eq!(
        list.title,
        "Threads: 1 dispatcher, 2 other targets, 2 preemptors"
    );
    let roles: Vec<&str> = list
        .rows
        .iter()
        .map(|row| texts(&list, row, &["ROLE"])[0])
        .collect();
    assert_eq!(
        roles,
        ["dispatcher", "target", "preemptor", "preemptor", "target"]
    );
    // The pool that sleeps is there, but in nobody's way.
    let asleep = row(&list, "4711:4800");
    assert!(asleep.cells.iter().all(|cell| cell.tone == Tone::Dim));
    assert_eq!(row(&list, "4711:4711").opens, Some(TRAINER));
}

#[test]
fn a_dispatcher_that_was_kept_longer_comes_before_one_that_ran_longer() {
    let mut model = model();
    let threads = &mut model.window.sched.threads;
    let loader = threads.iter_mut().find(|t| t.who.tid == Tid(4790)).unwrap();
    loader.dispatcher = true;
    assert_eq!(ids(&threads::list(&model))[..2], ["4711:4711", "4711:4790"]);
}

#[test]
fn a_thread_has_its_states_as_shares_of_the_window() {
    let list = threads::list(&model());
    let of = |id: &str, columns: &[&str]| -> Vec<String> {
        let texts = texts(&list, row(&list, id), columns);
        texts.into_iter().map(str::to_string).collect()
    };
    let states = [
        "RUN %",
        "RUNQ %",
        "THROT %",
        "BLOCK %",
        "BLOCKED ON",
        "CUDA %",
    ];
    assert_eq!(
        of("4711:4711", &states),
        ["42.0", "30.8", "1.2", "26.0", "futex 17 %, io 9 %", "31.0"]
    );
    assert_eq!(
        of("4711:4790", &states),
        ["91.0", "<0.1", "0.0", "9.0", "io", "-"]
    );
    // What is not known of a stranger is not zero.
    assert_eq!(of("9001:9001", &states), ["57.0", "-", "-", "-", "-", "-"]);
    assert_eq!(
        of(
            "4711:4711",
            &[
                "THREAD", "TID", "PID", "LAUNCH/S", "RUNQ MAX", "BEHIND", "CPUS", "MIGR/S",
                "VOL/S", "INVOL/S"
            ]
        ),
        [
            "python3",
            "4711",
            "4711",
            "18.2 k",
            "12.0 ms",
            "stress-ng:9001 2.90 s",
            "2-3",
            "1.20",
            "144",
            "81.5"
        ]
    );
}

/// Check that a thread that neither runs, waits for a CPU nor sleeps does not look as if nothing kept it.
#[test]
fn a_thread_without_quota_says_so_where_there_is_no_column_for_that() {
    let mut model = model();
    let trainer = &mut model.window.sched.threads[4];
    trainer.off.retain(|off| off.reason == OffReason::Throttled);
    let list = threads::list(&model);
    let trainer = row(&list, "4711:4711");
    assert_eq!(texts(&list, trainer, &["BLOCKED ON"]), ["throttled 1 %"]);
}

#[test]
fn rows_are_sorted_by_what_was_measured_and_not_by_its_text() {
    let list = threads::list(&model());
    let run = list.columns.iter().position(|c| c.name == "RUN %").unwrap();
    let key = |id| row(&list, id).cells[run].key.clone();
    assert_eq!(key("4711:4711"), Key::Number(0.42));
    let behind = list
        .columns
        .iter()
        .position(|c| c.name == "BEHIND")
        .unwrap();
    let behind = &row(&list, "4711:4711").cells[behind];
    assert_eq!(behind.key, Key::Number(2.9e9));
}

#[test]
fn who_took_a_cpu_is_named_where_nobody_added_up_who_had_it() {
    let mut model = model();
    for thread in &mut model.window.sched.threads {
        thread.behind.clear();
    }
    let list = threads::list(&model);
    let trainer = row(&list, "4711:4711");
    assert_eq!(
        texts(&list, trainer, &["BEHIND"]),
        ["stress-ng:9001 2.95 s"]
    );
}

#[test]
fn threads_of_a_process_that_ended_are_dim() {
    let mut model = model();
    model.targets[1].ended = Some(model.newest);
    let list = threads::list(&model);
    let trainer = row(&list, "4711:4711");
    assert!(trainer.cells.iter().all(|cell| cell.tone == Tone::Dim));
}

#[test]
fn on_a_whole_machine_only_those_that_are_awake_are_listed() {
    let list = threads::list(&machine());
    assert_eq!(list.title, "Threads");
    assert_eq!(list.notes, ["1 more thread slept all the time"]);
    assert!(!ids(&list).contains(&"4711:4800"));
}

#[test]
fn names_are_passed_on_as_they_came() {
    let name = "\x1b[31m訓練\n;:9";
    let model = hostile(name);
    let list = threads::list(&model);
    let first = texts(&list, &list.rows[0], &["THREAD", "BEHIND"]);
    assert_eq!(first, [name, format!("{name}:9001 2.90 s").as_str()]);
    let list = calls::list(&model);
    assert_eq!(list.rows[0].opens, Some(Open::Call(name.to_string())));
    let list = processes::list(&model);
    let row = row(&list, "4711:4940300000000");
    assert_eq!(texts(&list, row, &["PROCESS", "NOTE"]), [name, name]);
}

#[test]
fn a_thread_without_a_name_is_no_hole() {
    let list = threads::list(&hostile(""));
    assert_eq!(texts(&list, &list.rows[0], &["THREAD"]), ["''"]);
}

#[test]
fn the_states_of_a_thread_add_up_to_the_window() {
    let blocks = trainer(&model());
    let list = under(&blocks, "What it did").unwrap();
    let rows: Vec<Vec<&str>> = list
        .rows
        .iter()
        .map(|row| texts(list, row, &["STATE", "%", "TIME", "TIMES", "LONGEST"]))
        .collect();
    assert_eq!(
        rows,
        [
            ["running", "42.0", "4.20 s", "3,000", "1.40 ms"],
            ["runnable: preempted", "29.8", "2.98 s", "812", "12.0 ms"],
            ["blocked: futex", "17.0", "1.70 s", "900", "40.0 ms"],
            ["blocked: io", "9.0", "900 ms", "90", "21.0 ms"],
            ["throttled", "1.2", "120 ms", "3", "60.0 ms"],
            ["runnable: woken", "1.0", "100 ms", "1,438", "2.00 ms"],
            ["(meanwhile in CUDA calls)", "31.0", "3.10 s", "-", "-"],
        ]
    );
    let mut model = model();
    model.window.sched.threads[4]
        .off
        .retain(|off| off.reason != OffReason::Futex);
    let blocks = trainer(&model);
    let list = under(&blocks, "What it did").unwrap();
    let rest = row(list, "not alive, or not known");
    assert_eq!(texts(list, rest, &["TIME"]), ["1.70 s"]);
}

#[test]
fn a_thread_says_how_it_waited_and_what_to_do_about_it() {
    let blocks = trainer(&model());
    let text = sentences(&blocks).join("\n");
    for part in [
        "dispatcher, 18.2 k launches/s, moved 1.20 times/s, may use CPUs 2-3",
        "2,250 times for a CPU: median",
        "longest 12.0 ms (at -2.75 s), behind stress-ng:9001",
        "for a CPU, 42.",
        "stress-ng:9001 had its CPU for 2.90 s",
        "verdict it waited",
        "fix     ",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn a_thread_tells_where_it_was_and_its_part_in_idle_time() {
    let blocks = trainer(&model());
    let places = under(&blocks, "Where it was").unwrap();
    let rows: Vec<Vec<&str>> = places
        .rows
        .iter()
        .map(|row| texts(places, row, &["TIME", "STATE", "WHERE"]))
        .collect();
    assert_eq!(
        rows,
        [
            [
                "3.00 s",
                "running",
                "at::native::add < forward (model.py:31) < train_step (train.py:88)"
            ],
            ["1.70 s", "waiting", "main (train.py:120)"],
            [
                "1.20 s",
                "running",
                "train_step (train.py:88) < main (train.py:120)"
            ],
        ]
    );
    let causes = under(&blocks, "Its part in the idle time of GPUs").unwrap();
    assert_eq!(
        texts(causes, &causes.rows[0], &["CAUSE", "TIME", "OF IDLE %"]),
        ["host.preempted", "2.90 s", "47.3"]
    );
    let calls = under(&blocks, "Its system calls").unwrap();
    assert_eq!(ids(calls), ["futex", "read"]);
    let wakers = under(&blocks, "Who woke it").unwrap();
    assert_eq!(ids(wakers), ["4711:4790", "irq nvme0q3"]);
}

#[test]
fn a_preemptor_says_whom_it_kept_waiting_and_no_more_than_is_known() {
    let blocks = page(thread::screen(&model(), Pid(9001), Tid(9001)));
    let list = under(&blocks, "Whom it kept waiting").unwrap();
    assert_eq!(
        texts(
            list,
            &list.rows[0],
            &["WHO", "WAITED BEHIND IT", "PREEMPTED", "THEN WAITED"]
        ),
        ["python3", "2.90 s", "810", "2.95 s"]
    );
    let text = sentences(&blocks).join("\n");
    assert!(
        text.contains("only what it ran beside the targets"),
        "{text}"
    );
    assert!(!text.contains("where it should be"), "{text}");
}

#[test]
fn a_thread_that_is_gone_says_so() {
    let blocks = page(thread::screen(&model(), Pid(4600), Tid(4600)));
    let text = sentences(&blocks).join("\n");
    assert!(text.contains("its process has ended"), "{text}");
}

#[test]
fn calls_in_which_dispatchers_let_a_gpu_idle_come_first() {
    let list = calls::list(&model());
    assert_eq!(ids(&list), ["read", "futex"]);
    let columns = [
        "CALLS/S",
        "TIME",
        "MAX",
        "ERRORS",
        "GPU IDLE",
        "BY DISPATCHERS",
        "OPEN FOR",
        "THREADS",
    ];
    assert_eq!(
        texts(&list, &list.rows[0], &columns),
        ["53.0", "1.81 s", "30.0 ms", "12", "1.20 s", "700 ms", "", "2"]
    );
    assert_eq!(
        texts(&list, &list.rows[1], &columns),
        ["90.0", "1.70 s", "1.89 ms", "0", "400 ms", "380 ms", ">=10.0 s", "2"]
    );
    assert!(list.notes.is_empty());
}

#[test]
fn where_only_waits_are_known_it_is_said_and_errors_are_not_zero() {
    let mut model = model();
    model.window.calls.measure = Measure::Waits;
    let list = calls::list(&model);
    assert_eq!(list.title, "System calls that waited, of the targets");
    assert_eq!(texts(&list, &list.rows[0], &["ERRORS"]), ["-"]);
    assert!(list.notes[0].ends_with("c counts all"), "{:?}", list.notes);
    model.status.counts_calls = true;
    assert!(calls::list(&model).notes[0].starts_with("all calls are counted from now on"));
}

#[test]
fn a_call_is_told_by_thread_with_its_errors() {
    let Screen::Table { above, list } = calls::opened(&model(), "read") else {
        panic!("a page");
    };
    assert_eq!(ids(&list), ["4711:4711", "4711:4790"]);
    assert_eq!(list.rows[0].opens, Some(TRAINER));
    let text = sentences(&above).join("\n");
    assert!(text.contains("530 times, 1.81 s in all"), "{text}");
    assert!(text.contains("9 times EAGAIN"), "{text}");
    assert!(list_of(calls::opened(&model(), "none")).rows.is_empty());
}

#[test]
fn kernels_have_their_share_of_the_time_and_readable_names() {
    let list = kernels::list(&model());
    let columns = ["BUSY %", "TIME", "COUNT/S", "AVG", "KERNEL"];
    let rows: Vec<Vec<&str>> = list
        .rows
        .iter()
        .map(|row| texts(&list, row, &columns))
        .collect();
    assert_eq!(rows[0][..4], ["52.9", "2.40 s", "12.0 k", "20.0 us"]);
    assert_eq!(
        rows[0][4],
        "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >"
    );
    assert_eq!(rows[1][4], "ampere_sgemm_128x64_nn");
    // Only their time is known.
    assert_eq!(rows[2], ["20.6", "936 ms", "-", "-", "[memory copies]"]);
    assert_eq!(list.rows[2].opens, None);
}

#[test]
fn a_cpu_of_which_nothing_is_known_is_not_idle() {
    let list = cpus::list(&model());
    let columns = [
        "CPU",
        "BUSY %",
        "TARGETS %",
        "UNKNOWN %",
        "SWITCH/S",
        "WHO RAN",
    ];
    let rows: Vec<Vec<&str>> = list
        .rows
        .iter()
        .map(|row| texts(&list, row, &columns))
        .collect();
    assert_eq!(
        rows,
        [
            [
                "0",
                "91.0",
                "91.0",
                "0.0",
                "228",
                "pt_data_worker:4790 91 %"
            ],
            ["1", "0.0", "0.0", "0.0", "0", ""],
            [
                "3",
                "99.0",
                "40.0",
                "0.0",
                "248",
                "stress-ng:9001 57 %, python3:4711 40 %, sshd:77 <1 %, bystander:80 <1 %"
            ],
            ["4", "-", "-", "100.0", "-", "-"],
        ]
    );
    assert_eq!(list.title, "4 CPUs, 63.3 % busy");
}

#[test]
fn processes_that_ended_stay_dim_at_the_end_with_their_reason() {
    let list = processes::list(&model());
    assert_eq!(list.title, "2 processes, 1 ended");
    let columns = [
        "PID", "CUDA", "GPU", "GPU MEM", "LAUNCH/S", "CPU %", "WATCHED", "NOTE",
    ];
    let rows: Vec<Vec<&str>> = list
        .rows
        .iter()
        .map(|row| texts(&list, row, &columns))
        .collect();
    assert_eq!(
        rows,
        [
            ["4711", "yes", "0,1", "42.0 GiB", "18.2 k", "133.0", "70 s", ""],
            ["4720", "no", "", "-", "-", "-", "70 s", ""],
            [
                "4600",
                "yes",
                "",
                "-",
                "-",
                "-",
                "67 s",
                "ended 3 s ago; no GPU records: it began before gdiag"
            ],
        ]
    );
    assert!(list.rows[2].cells.iter().all(|cell| cell.tone == Tone::Dim));
    assert_eq!(list.rows[0].opens, Some(TRAINER));
}

#[test]
fn without_a_gpu_the_overview_is_about_cpus_and_who_waits_for_them() {
    let mut view = View::new(Nanos::from_secs(10));
    let Screen::Table { above, list } = machine::screen(&machine(), &view) else {
        panic!("a page");
    };
    assert_eq!(ids(&list)[..2], ["4711:4711", "4711:4790"]);
    assert!(sentences(&above)[0].starts_with("4 CPUs, 63.3 % busy"));
    assert!(under(&above, "Had a CPU that others waited for").is_some());
    // A low terminal has the threads.
    view.size = (80, 12);
    let Screen::Table { above, .. } = machine::screen(&machine(), &view) else {
        panic!("a page");
    };
    assert_eq!(above.len(), 1);
}

#[test]
fn what_was_skipped_to_catch_up_is_no_part_of_the_time() {
    let mut model = model();
    let point = |from, to| Point {
        from: FROM + Nanos::from_secs(from),
        to: FROM + Nanos::from_secs(to),
        gpus: Vec::new(),
        cpu: None,
        events: 0,
        lost: 0,
    };
    model.window.points = vec![point(0, 3), point(8, 10)];
    assert_eq!(cell::analysed(&model.window), ms(5_000));
    // How busy the CPUs were is the average of the slices of which it is known.
    model.window.points[0].cpu = Some(0.5);
    model.window.points.push(Point {
        cpu: Some(1.0),
        ..point(3, 4)
    });
    assert_eq!(cpus::busy(&model), Some(0.625));
    model.window.points.pop();
    let list = threads::list(&model);
    assert_eq!(
        texts(&list, row(&list, "4711:4711"), &["RUN %", "MIGR/S"]),
        ["84.0", "2.40"]
    );
}

/// What a terminal without colors shows; lines end where their text does.
fn drawn(model: &Model, view: &mut View, (width, height): (u16, u16)) -> String {
    view.size = (width, height);
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(model, view, &Theme::MONO, area, &mut buffer);
    let mut text = String::new();
    for y in 0..height {
        let cells = (0..width).filter_map(|x| Some(buffer.cell((x, y))?.symbol()));
        let line: String = cells.collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Check that of a narrow terminal what tells most is left.
#[test]
fn a_narrow_terminal_has_the_columns_that_tell_most() {
    let columns = |width| {
        let mut view = View::new(Nanos::from_secs(10));
        view.tab = Tab::Threads;
        let text = drawn(&model(), &mut view, (width, 24));
        let found = text.lines().find(|line| line.starts_with("THREAD"));
        found.unwrap_or_default().to_string()
    };
    for (width, has) in [
        (20, &["RUNQ %"][..]),
        (40, &["RUNQ %", "RUN %", "BLOCK %"]),
        (60, &["RUNQ %", "RUN %", "BLOCK %", "BLOCKED ON"]),
        (80, &["TID", "RUNQ MAX", "CUDA %"]),
    ] {
        let shown = columns(width);
        for name in has {
            assert!(shown.contains(name), "{width}: {shown}");
        }
    }
}
