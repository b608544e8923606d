use std::collections::HashSet;

use crate::fxhash::FxHashSet;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::event::{
    Api, ApiCall, ApiDomain, ContextId, Define, DeviceId, Exit, GpuOp, OpKind, StreamId, Task,
    TaskReason, TaskState, Tid,
};
use crate::intern::Names;
use crate::store::tests::arbitrary;
use crate::store::{create_file, trim, Reader};

/// Time between two events.
const STEP: u64 = 10;

/// The same event at another time, and not too long.
fn at(event: Event, ts: u64) -> Event {
    let ts = Nanos(ts);
    let moved = |start: Nanos, end: Nanos| Nanos(ts.0 + end.0.wrapping_sub(start.0) % 2_000);
    macro_rules! lasts {
        ($kind:ident, $e:ident) => {{
            $e.end = moved($e.start, $e.end);
            $e.start = ts;
            Event::$kind($e)
        }};
    }
    macro_rules! has_ts {
        ($kind:ident, $e:ident) => {{
            $e.ts = ts;
            Event::$kind($e)
        }};
    }
    match event {
        Event::Define(e) => Event::Define(e),
        Event::Task(mut e) => has_ts!(Task, e),
        Event::Exit(mut e) => has_ts!(Exit, e),
        Event::Switch(mut e) => has_ts!(Switch, e),
        Event::Waking(mut e) => has_ts!(Waking, e),
        Event::Signal(mut e) => has_ts!(Signal, e),
        Event::Device(mut e) => has_ts!(Device, e),
        Event::Shim(mut e) => has_ts!(Shim, e),
        Event::Probes(mut e) => has_ts!(Probes, e),
        Event::Process(mut e) => has_ts!(Process, e),
        Event::Wait(mut e) => lasts!(Wait, e),
        Event::CpuWait(mut e) => lasts!(CpuWait, e),
        Event::SysCall(mut e) => lasts!(SysCall, e),
        Event::GpuOp(mut e) => lasts!(GpuOp, e),
        Event::Migration(mut e) => lasts!(Migration, e),
        Event::ApiCall(mut e) => lasts!(ApiCall, e),
        Event::Sync(mut e) => lasts!(Sync, e),
        Event::Overhead(mut e) => lasts!(Overhead, e),
        Event::Interrupt(mut e) => {
            e.dur.0 %= 2_000;
            e.start = ts;
            Event::Interrupt(e)
        }
        Event::Stall(mut e) => {
            e.dur.0 %= 2_000;
            e.start = ts;
            Event::Stall(e)
        }
        Event::GpuInvalid(mut e) => {
            e.seen = ts;
            Event::GpuInvalid(e)
        }
        Event::Clock(mut e) => {
            e.mono = ts;
            Event::Clock(e)
        }
        Event::Loss(mut e) => {
            e.to = moved(e.from, e.to);
            e.from = ts;
            Event::Loss(e)
        }
        Event::Sample(mut e) => {
            use crate::event::SampleKind::{Cpu, Launch, OffCpu, Waker};
            let before = |since: Nanos| Nanos(ts.0 - since.0 % 2_000);
            e.kind = match e.kind {
                OffCpu { since } => OffCpu {
                    since: before(since),
                },
                Waker { wakee, since } => Waker {
                    wakee,
                    since: before(since),
                },
                kind @ (Cpu { .. } | Launch { .. }) => kind,
            };
            e.ts = ts;
            Event::Sample(e)
        }
    }
}

fn meta() -> Meta {
    Meta {
        start_mono_ns: 1,
        start_unix_ns: 1_000_001,
        ..Meta::default()
    }
}

fn until(to: Nanos) -> Summary {
    Summary {
        end_mono_ns: to.0,
        ..Summary::default()
    }
}

fn events(path: &Path) -> (Vec<Event>, Meta) {
    let mut reader = Reader::open(path).unwrap();
    let mut events = Vec::new();
    reader
        .for_each(|event| {
            events.push(event.clone());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(reader.coverage().is_whole());
    (events, reader.meta().clone())
}

fn snapshot(memory: &mut Memory, path: &Path, from: Nanos, to: Nanos) -> Stats {
    let held = memory.held_now().unwrap();
    let file = create_file(path).unwrap();
    held.write(file, path, &meta(), &until(to), from).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever has gone: what a snapshot says of its window is what the whole recording says of it.
    #[test]
    fn a_snapshot_is_the_part_of_the_whole_recording(
        all in arbitrary::events(800),
        jitter in proptest::collection::vec(0u64..300, 800),
        chunk in 64usize..1024,
        window in 0u64..5_000,
        later in 0u64..4_000,
        sooner in 0u64..4_000,
    ) {
        let start = 10_000;
        let all: Vec<Event> = all
            .into_iter()
            .enumerate()
            .map(|(i, event)| at(event, start + i as u64 * STEP + jitter[i]))
            .collect();
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Memory::new(Bytes(1 << 20), Nanos(window), Nanos(start)).unwrap();
        memory.chunk_len = chunk;
        let whole = dir.path().join("whole");
        let mut writer = Writer::create(&whole, &meta()).unwrap();
        for (i, event) in all.iter().enumerate() {
            memory.push(event).unwrap();
            writer.push(event).unwrap();
            memory.age(Nanos(start + i as u64 * STEP + 300)).unwrap();
        }
        writer.finish(&Summary::default()).unwrap();

        let from = Nanos(memory.fill().from.0 + later);
        let to = Nanos((start + all.len() as u64 * STEP + 5_000).saturating_sub(sooner).max(from.0));
        let (held, part) = (dir.path().join("held"), dir.path().join("part"));
        snapshot(&mut memory, &held, from, to);
        trim(&mut Reader::open(&whole).unwrap(), &part, from, to).unwrap();
        let (held, part) = (events(&held), events(&part));
        prop_assert_eq!(held.0, part.0);
        prop_assert_eq!(held.1, part.1);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_is_held(
        all in arbitrary::events(1500),
        most in 1u64 << 17..1 << 18,
    ) {
        let mut memory = Memory::new(Bytes(most), Nanos::from_secs(3600), Nanos(1)).unwrap();
        let start = 10_000;
        for round in 0..4 {
            for (i, event) in all.iter().enumerate() {
                let ts = start + (round * all.len() + i) as u64 * STEP;
                memory.push(&at(event.clone(), ts)).unwrap();
                memory.age(Nanos(ts)).unwrap();
                if memory.is_littered() {
                    memory.tidy(FxHashSet::default()).unwrap();
                }
                // What comes in with one event.
                let slack = 16 << 10;
                prop_assert!(memory.fill().bytes.0 <= most + slack, "{:?}", memory.fill());
            }
        }
        prop_assert!(all.is_empty() || memory.fill().events > 0);
        prop_assert_eq!(memory.stats().events, 4 * all.len() as u64);
    }
}

fn exit(ts: u64) -> Event {
    Event::Exit(Exit {
        ts: Nanos(ts),
        tid: Tid(9),
        pid: Pid(9),
        code: 0,
    })
}

fn thread(ts: u64, tid: u32, comm: NameId) -> Event {
    Event::Task(Task {
        ts: Nanos(ts),
        tid: Tid(tid),
        pid: Pid(tid),
        ppid: Pid(1),
        comm,
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

/// Names come without end, each is used for a while: those that are used are defined, and the others take no room.
#[test]
fn definitions_that_nothing_uses_go_and_those_in_use_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let most = Bytes(1 << 20);
    let mut memory = Memory::new(most, Nanos(1_000), Nanos(1)).unwrap();
    memory.chunk_len = 1 << 10;
    let mut names = Names::default();
    let mut tidied = 0;
    let mut kept = None;
    for ts in 1..60_000 {
        let mut push = |event| memory.push(&event).unwrap();
        // One that only a shim has a number for.
        let kernel = *kept.get_or_insert_with(|| names.name("kernel", &mut push));
        let lives = names.name("lives", &mut push);
        // It does not compress well.
        let text = format!(
            "{:x}",
            u128::from(ts).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
        );
        let other = names.name(&text, &mut push);
        push(thread(ts, 1, lives));
        push(thread(ts, 2 + ts as u32, other));
        push(Event::Exit(Exit {
            ts: Nanos(ts),
            tid: Tid(2 + ts as u32),
            pid: Pid(2 + ts as u32),
            code: 0,
        }));
        if ts == 59_990 {
            push(op(ts, 1, kernel));
        }
        memory.age(Nanos(ts)).unwrap();
        if memory.is_littered() {
            names.forget();
            memory.tidy([kernel].into_iter().collect()).unwrap();
            tidied += 1;
        }
        assert!(memory.fill().bytes <= most);
    }
    assert!(tidied > 1);
    snapshot(&mut memory, &path, Nanos(1), Nanos(60_000));
    let (events, _) = events(&path);
    let mut defined = HashSet::new();
    let mut used = Vec::new();
    for event in &events {
        match event {
            Event::Define(Define::Name { id, .. }) => {
                defined.insert(*id);
            }
            Event::Task(e) => used.push(e.comm),
            Event::GpuOp(GpuOp {
                kind: OpKind::Kernel { name },
                ..
            }) => used.push(*name),
            _ => {}
        }
    }
    assert!(used.len() > 1_000);
    assert!(used.contains(&kept.unwrap()));
    assert!(used.iter().all(|name| defined.contains(name)));
    assert!(defined.iter().all(|name| used.contains(name)));
}

fn call(ts: u64, correlation: u32) -> Event {
    Event::ApiCall(ApiCall {
        pid: Pid(9),
        tid: Tid(9),
        api: Api {
            domain: ApiDomain::Runtime,
            cbid: 211,
        },
        start: Nanos(ts),
        end: Nanos(ts + 1),
        correlation: CorrelationId(correlation),
        result: 0,
    })
}

fn op(ts: u64, correlation: u32, name: NameId) -> Event {
    Event::GpuOp(GpuOp {
        pid: Pid(9),
        device: DeviceId(0),
        context: ContextId(1),
        stream: StreamId(7),
        kind: OpKind::Kernel { name },
        start: Nanos(ts),
        end: Nanos(ts + 5),
        correlation: CorrelationId(correlation),
        graph: 0,
        node: 0,
    })
}

/// However long a launch has waited for its operation to start: it is there with it, and those of
/// operations that are gone take no room.
#[test]
fn the_launch_of_an_operation_in_the_window_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let mut memory = Memory::new(Bytes(4 << 20), Nanos(1_000), Nanos(1)).unwrap();
    memory.chunk_len = 1 << 10;
    let ahead = 3_000;
    let all = 40_000;
    for n in 1..all {
        memory.push(&call(u64::from(n), n)).unwrap();
        if n > ahead {
            memory.push(&op(n.into(), n - ahead, NameId(0))).unwrap();
        }
        memory.age(Nanos(n.into())).unwrap();
    }
    assert!(memory.past.reaching.len() < 3 * ahead as usize + 1024);
    let from = memory.fill().from;
    assert!(from > Nanos(30_000));
    snapshot(&mut memory, &path, from, Nanos(all.into()));
    let (events, _) = events(&path);
    let calls: HashSet<u32> = events
        .iter()
        .filter_map(|e| match e {
            Event::ApiCall(call) => Some(call.correlation.0),
            _ => None,
        })
        .collect();
    let mut operations = 0;
    for event in &events {
        if let Event::GpuOp(op) = event {
            assert!(calls.contains(&op.correlation.0), "{op:?}");
            operations += 1;
        }
    }
    assert!(operations >= 1_000);
}

#[test]
fn what_is_held_does_not_change_while_the_recording_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (now, then) = (dir.path().join("now"), dir.path().join("then"));
    let mut memory = Memory::new(Bytes(1 << 20), Nanos(500), Nanos(1)).unwrap();
    memory.chunk_len = 64;
    for ts in 1..1_000 {
        memory.push(&exit(ts)).unwrap();
    }
    let held = memory.held_now().unwrap();
    snapshot(&mut memory, &now, Nanos(1), Nanos(1_000));
    for ts in 1_000..3_000 {
        memory.push(&exit(ts)).unwrap();
        memory.age(Nanos(ts)).unwrap();
    }
    assert!(memory.fill().from > Nanos(1_000));
    let file = create_file(&then).unwrap();
    held.write(file, &then, &meta(), &until(Nanos(1_000)), Nanos(1))
        .unwrap();
    assert_eq!(events(&now), events(&then));
}

fn loss(from: u64, to: u64) -> Event {
    Event::Loss(crate::event::Loss {
        source: crate::event::LossSource::ClockStep,
        count: 1,
        from: Nanos(from),
        to: Nanos(to),
    })
}

#[test]
fn launches_without_room_are_counted_and_losses_stay() {
    let mut memory = Memory::new(Bytes(1 << 17), Nanos(100), Nanos(1)).unwrap();
    memory.chunk_len = 1 << 10;
    memory.push(&loss(1, 1 << 50)).unwrap();
    for n in 1..20_000 {
        memory.push(&call(n, n as u32)).unwrap();
        memory.age(Nanos(n)).unwrap();
    }
    let held = memory.held_now().unwrap();
    assert!(held.given_up() > 0);
    assert!(held.reaching.iter().any(|e| matches!(e, Event::Loss(_))));
    // Once all is later than that, it is all there.
    for n in 20_000..60_000 {
        memory.push(&exit(n)).unwrap();
        memory.age(Nanos(n)).unwrap();
    }
    assert!(memory.fill().from > Nanos(20_000));
    memory.past.advance(Nanos(60_000));
    assert_eq!(memory.held_now().unwrap().given_up(), 0);
}

#[test]
fn a_time_that_has_not_come_yet_does_not_hold_up_the_others() {
    let mut memory = Memory::new(Bytes(1 << 20), Nanos(1_000), Nanos(1)).unwrap();
    memory.chunk_len = 64;
    memory.push(&exit(1 << 60)).unwrap();
    for ts in 1..5_000 {
        memory.push(&exit(ts)).unwrap();
        memory.age(Nanos(ts)).unwrap();
    }
    let from = memory.fill().from;
    assert!((Nanos(3_500)..Nanos(4_500)).contains(&from), "{from}");
}
