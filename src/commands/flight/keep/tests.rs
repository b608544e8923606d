use std::ops::ControlFlow;

use super::*;
use crate::event::{NameId, Pid, StackId, Task, TaskReason, TaskState, Tid, Wait};
use crate::store::Reader;

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn keeper(output: PathBuf, memory: Bytes, triggers: Vec<Trigger>) -> Keeper {
    let meta = Meta {
        start_mono_ns: 1,
        ..Meta::default()
    };
    let options = KeepOptions {
        window: ms(700),
        memory,
        after: ms(100),
        snapshots: 10,
        triggers,
    };
    Keeper::of(meta, "a job".to_string(), true, &options, output, None).unwrap()
}

fn thread(at: Nanos, tid: u32) -> Event {
    Event::Task(Task {
        ts: at,
        tid: Tid(tid),
        pid: Pid(tid),
        ppid: Pid(1),
        comm: NameId(0),
        start: Nanos(1),
        ns_tid: Tid(tid),
        ns_pid: Pid(tid),
        cgroup: 1,
        prio: 120,
        reason: TaskReason::Seen,
        target: true,
        kthread: false,
        state: TaskState::Running,
        syscall: None,
    })
}

fn wait(start: Nanos, end: Nanos) -> Event {
    Event::Wait(Wait {
        tid: Tid(9),
        start,
        end,
        state: 1,
        syscall: None,
        stack: StackId(0),
        object: NameId(0),
    })
}

/// A machine that is so busy that chunks close all the time.
fn busy(keeper: &mut Keeper, from: u64, to: u64) {
    for at in from..to {
        for n in 0..100 {
            keeper.push(&wait(ms(at) + Nanos(n), ms(at) + Nanos(2 * n)));
        }
        if at % 100 == 99 {
            keeper.stepped(ms(at + 1), Costs::default).unwrap();
            keeper
                .tend(ms(at + 1), false, false, &Context::default)
                .unwrap();
        }
    }
}

fn waits_of(path: &Path) -> Vec<(Nanos, Nanos)> {
    let mut reader = Reader::open(path).unwrap();
    let mut waits = Vec::new();
    let each = |event: &Event| {
        if let Event::Wait(wait) = event {
            waits.push((wait.start, wait.end));
        }
        ControlFlow::Continue(())
    };
    reader.for_each(each).unwrap();
    waits
}

#[test]
fn a_snapshot_has_its_event_however_late_it_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let trigger = Trigger::Wait(ms(500));
    let mut keeper = keeper(dir.path().join("x"), Bytes(64 << 20), vec![trigger]);
    keeper.push(&thread(Nanos(2), 9));
    busy(&mut keeper, 1, 1_000);
    keeper.push(&wait(ms(400), ms(950)));
    busy(&mut keeper, 1_000, 1_800);
    // Another one is still being written all the time.
    keeper.conclude(&Context::default).unwrap();
    assert_eq!(keeper.written, 1);
    let waits = waits_of(&dir.path().join("x.1"));
    assert!(waits.contains(&(ms(400), ms(950))));
    let first = waits.iter().map(|(start, _)| *start).min().unwrap();
    assert!(first <= ms(400), "{first}");
    assert!(waits.iter().any(|(start, _)| *start >= ms(1_000)));
}

#[test]
fn what_is_asked_for_stays_until_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path().join("x"), Bytes(64 << 20), Vec::new());
    busy(&mut keeper, 1, 1_000);
    // A slow one is in the way.
    let (_hangs, result) = channel();
    let (path, why) = (PathBuf::new(), String::new());
    keeper.writing = Some(Writing {
        result,
        to: Goal::File { path, why },
    });
    keeper.ask(ms(1_000), None, Goes::Numbered("USR2".to_string()));
    busy(&mut keeper, 1_000, 5_000);
    keeper.writing = None;
    keeper.conclude(&Context::default).unwrap();
    let waits = waits_of(&dir.path().join("x.1"));
    assert!(waits.iter().any(|(start, _)| *start < ms(310)));
    assert!(waits.iter().all(|(start, _)| *start < ms(1_000)));
    // Then it goes.
    busy(&mut keeper, 5_000, 5_200);
    assert!(keeper.memory.fill().from > ms(4_000));
}

#[test]
fn what_had_to_go_for_want_of_room_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = keeper(dir.path().join("x"), Bytes(1 << 20), Vec::new());
    busy(&mut keeper, 1, 1_000);
    keeper.ask_since(
        Nanos(1),
        ms(1_000),
        None,
        Goes::Numbered("USR2".to_string()),
    );
    keeper.options.window = Nanos::from_secs(60);
    keeper.memory = Memory::new(Bytes(1 << 20), ms(0), ms(700)).unwrap();
    keeper.conclude(&Context::default).unwrap();
    let mut reader = Reader::open(&dir.path().join("x.1")).unwrap();
    reader.for_each(|_| ControlFlow::Continue(())).unwrap();
    let warnings = &reader.summary().unwrap().warnings;
    assert!(warnings[0].contains("had to go"), "{warnings:?}");

    // And of which nothing is left, there is no file.
    keeper.memory = Memory::new(Bytes(1 << 20), ms(0), ms(2_000)).unwrap();
    keeper.ask_since(ms(500), ms(1_000), None, Goes::Numbered("USR2".to_string()));
    keeper.conclude(&Context::default).unwrap();
    assert!(!dir.path().join("x.2").exists());
    assert!(keeper.messages.back().unwrap().contains("--memory is full"));
}
