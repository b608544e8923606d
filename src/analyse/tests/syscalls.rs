//! System calls of a recording, and the idle time that they overlap.

use super::story::*;
use crate::analyse::syscalls::recorded::{summary, Scope};
use crate::analyse::syscalls::{Call, Measure, Summary};
use crate::event::*;
use crate::units::Nanos;

fn of(story: &Story, scope: &Scope<'_>) -> Summary {
    summary(&story.built(), scope)
}

fn all() -> Scope<'static> {
    Scope {
        from: us(0),
        to: us(100_000),
        tids: &[],
        wanted: &[true; 512],
        least: Nanos::ZERO,
        only_failed: false,
        joins: false,
    }
}

fn made(story: Story, tid: u32, number: u16, (from, to): (i64, i64), result: i64) -> Story {
    story.event(Event::SysCall(SysCall {
        tid: Tid(tid),
        start: us(from),
        end: us(to),
        number,
        result,
    }))
}

fn call<'a>(summary: &'a Summary, comm: &str, name: &str) -> &'a Call {
    let thread = summary.threads.iter().find(|t| t.comm == comm);
    let calls = thread.map(|t| t.calls.iter()).into_iter().flatten();
    calls
        .clone()
        .find(|c| c.name == name)
        .unwrap_or_else(|| panic!("no {name} of {comm} in {summary:?}"))
}

/// MAIN's device is idle from 100 to 10,000 us.
fn calls() -> Story {
    let mut story = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((9_990, 9_995), (10_000, 10_100));
    story.meta.syscalls = true;
    story = made(story, MAIN, READ, (50, 250), 7);
    story = made(story, MAIN, READ, (300, 400), -11);
    story = made(story, THREAD, FUTEX, (9_000, 10_050), 0);
    story = made(story, HOG, READ, (500, 600), 0);
    made(story, MAIN, NANOSLEEP, (20_000, 20_500), 0)
}

#[test]
fn calls_overlap_the_idle_time_of_their_devices() {
    let found = of(&calls(), &all());
    assert_eq!((found.measure, found.gpu), (Measure::Calls, true));
    let read = call(&found, "python3", "read");
    assert_eq!((read.times.count, read.errors), (2, 1));
    assert_eq!(read.times.total, Nanos::from_micros(300));
    // 100 to 250, and 300 to 400.
    assert_eq!(read.idle_overlap, Some(Nanos::from_micros(250)));
    assert_eq!(read.dispatcher_idle, read.idle_overlap);
    let futex = call(&found, "helper", "futex");
    assert_eq!(futex.idle_overlap, Some(Nanos::from_micros(1_000)));
    assert_eq!(futex.dispatcher_idle, None);
    let after = call(&found, "python3", "clock_nanosleep");
    assert_eq!(after.idle_overlap, Some(Nanos::ZERO));
    // A stranger's calls are nobody's business.
    assert_eq!(found.threads.len(), 2);
    assert!(found.threads[0].dispatcher);
}

#[test]
fn without_a_device_nothing_is_said_of_idle_time() {
    let mut story = timeline();
    story.meta.syscalls = true;
    let found = of(&made(story, MAIN, READ, (50, 250), 7), &all());
    assert!(!found.gpu);
    assert_eq!(call(&found, "python3", "read").idle_overlap, None);
}

#[test]
fn the_scope_leaves_out_what_was_not_asked_for() {
    let story = calls();
    let names = |scope: &Scope<'_>| -> Vec<String> {
        let total = of(&story, scope).total();
        total.into_iter().map(|c| c.name).collect()
    };
    let late = Scope {
        from: us(10_000),
        ..all()
    };
    assert_eq!(names(&late), ["futex", "clock_nanosleep"]);
    let one = Scope {
        tids: &[Tid(THREAD)],
        ..all()
    };
    assert_eq!(names(&one), ["futex"]);
    let failed = Scope {
        only_failed: true,
        ..all()
    };
    assert_eq!(names(&failed), ["read"]);
    let long = Scope {
        least: Nanos::from_micros(500),
        ..all()
    };
    assert_eq!(names(&long), ["futex", "clock_nanosleep"]);
    let none = Scope {
        wanted: &[],
        ..all()
    };
    assert_eq!(names(&none), [""; 0]);
}

#[test]
fn without_calls_it_tells_what_was_waited_in() {
    let story = timeline().main_sleeps((1_000, 3_000), 0x2001, Some(NANOSLEEP), None);
    let found = of(&story, &all());
    assert_eq!(found.measure, Measure::Waits);
    let nap = call(&found, "python3", "clock_nanosleep");
    assert_eq!(nap.times.count, 1);
    assert_eq!(nap.times.total, Nanos::from_micros(2_000));
    assert_eq!(nap.errors, 0);
    assert!(found.notes[0].contains("--syscalls"), "{:?}", found.notes);
}

#[test]
fn a_number_that_no_call_has_is_one_of_those_above() {
    let story = made(calls(), MAIN, 9_999, (600, 601), -38);
    let count = |scope: &Scope<'_>| {
        let found = of(&story, scope);
        let calls = found.threads.iter().flat_map(|t| &t.calls);
        calls.filter(|c| c.name == "syscall_9999").count()
    };
    assert_eq!(count(&all()), 1);
    let mut named = [true; 512];
    named[511] = false;
    let only = Scope {
        wanted: &named,
        ..all()
    };
    assert_eq!(count(&only), 0);
}
