use proptest::prelude::*;

use super::*;
use crate::event::{
    Api, ApiDomain, ContextId, CpuWait, Device, Exit, Loss, NameId, OpKind, Shim, StackId,
    StreamId, Task, TaskReason, TaskState, Wait,
};

const JOB: Pid = Pid(7);
/// `cuLaunchKernel` of the driver, and `cuMemcpyHtoDAsync_v2`.
const LAUNCH: u32 = 307;
const COPY: u32 = 276;

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn gaps() -> Triggers {
    Triggers::new(&[Trigger::Gap(ms(50))])
}

fn op(pid: Pid, start: u64, end: u64, correlation: u32) -> Event {
    Event::GpuOp(GpuOp {
        pid,
        device: DeviceId(0),
        context: ContextId(1),
        stream: StreamId(7),
        kind: OpKind::Kernel { name: NameId(3) },
        start: ms(start),
        end: ms(end),
        correlation: CorrelationId(correlation),
        graph: 0,
        node: 0,
    })
}

fn call(cbid: u32, start: u64, correlation: u32) -> Event {
    Event::ApiCall(ApiCall {
        pid: JOB,
        tid: Tid(7),
        api: Api {
            domain: ApiDomain::Driver,
            cbid,
        },
        start: ms(start),
        end: ms(start),
        correlation: CorrelationId(correlation),
        result: 0,
    })
}

fn exit(pid: Pid, ts: u64) -> Event {
    Event::Exit(Exit {
        ts: ms(ts),
        tid: Tid(pid.0),
        pid,
        code: 0,
    })
}

fn shim(ts: u64, state: ShimState) -> Event {
    Event::Shim(Shim {
        ts: ms(ts),
        pid: JOB,
        state,
        reason: NameId(0),
        cupti_path: NameId(0),
        cupti_version: 0,
        simulated: false,
    })
}

fn tell(triggers: &mut Triggers, events: &[Event]) {
    events.iter().for_each(|event| triggers.event(event));
}

/// Beginnings and ends in ms, of what is told at `now`.
fn told(triggers: &mut Triggers, now: u64) -> Vec<(u64, Option<u64>)> {
    let fired = triggers.take(ms(now)).into_iter();
    fired
        .map(|f| (f.start.0 / 1_000_000, f.end.map(|e| e.0 / 1_000_000)))
        .collect()
}

#[test]
fn the_calls_of_these_tests_are_what_they_say() {
    let class = |cbid| {
        api::class(Api {
            domain: ApiDomain::Driver,
            cbid,
        })
    };
    assert_eq!(class(LAUNCH), Class::Launch);
    assert!(matches!(class(COPY), Class::Memcpy | Class::MemcpyAsync));
}

#[test]
fn a_gap_is_told_once_and_not_before_all_has_arrived() {
    let mut triggers = gaps();
    tell(&mut triggers, &[op(JOB, 0, 10, 1), op(JOB, 70, 80, 2)]);
    assert_eq!(told(&mut triggers, 100), []);
    assert_eq!(told(&mut triggers, 700), [(10, Some(70))]);
    assert_eq!(told(&mut triggers, 800), []);
}

#[test]
fn what_is_not_longer_than_asked_for_is_no_gap() {
    let mut triggers = gaps();
    tell(&mut triggers, &[op(JOB, 0, 10, 1), op(JOB, 60, 80, 2)]);
    assert_eq!(told(&mut triggers, 700), []);
}

#[test]
fn a_record_that_comes_late_fills_its_gap() {
    let mut triggers = gaps();
    tell(&mut triggers, &[op(JOB, 0, 10, 1), op(JOB, 100, 110, 3)]);
    assert_eq!(told(&mut triggers, 300), []);
    tell(&mut triggers, &[op(JOB, 20, 90, 2)]);
    assert_eq!(told(&mut triggers, 900), []);
}

#[test]
fn an_operation_that_may_still_run_leaves_no_gap() {
    let mut triggers = gaps();
    tell(
        &mut triggers,
        &[
            op(JOB, 0, 10, 1),
            // On another stream, and for long.
            call(LAUNCH, 5, 2),
            op(JOB, 100, 110, 3),
        ],
    );
    assert_eq!(told(&mut triggers, 20_000), []);
    tell(&mut triggers, &[op(JOB, 11, 20_000, 2)]);
    assert_eq!(told(&mut triggers, 20_700), []);
}

#[test]
fn a_launch_that_is_heard_of_after_its_operation_is_not_awaited() {
    let mut triggers = gaps();
    tell(
        &mut triggers,
        &[op(JOB, 0, 10, 1), op(JOB, 70, 80, 2), call(LAUNCH, 0, 1)],
    );
    assert_eq!(told(&mut triggers, 700), [(10, Some(70))]);
}

#[test]
fn a_copy_that_starts_nothing_delays_and_no_more() {
    let mut triggers = gaps();
    tell(
        &mut triggers,
        &[op(JOB, 0, 10, 1), call(COPY, 20, 2), op(JOB, 70, 80, 3)],
    );
    assert_eq!(told(&mut triggers, 900), []);
    assert_eq!(told(&mut triggers, 2_100), [(10, Some(70)), (80, None)]);
}

#[test]
fn an_idle_time_that_lasts_is_told_once() {
    let mut triggers = gaps();
    tell(&mut triggers, &[op(JOB, 0, 10, 1)]);
    assert_eq!(told(&mut triggers, 1_000), []);
    assert_eq!(told(&mut triggers, 1_700), [(10, None)]);
    assert_eq!(told(&mut triggers, 3_000), []);
    tell(&mut triggers, &[op(JOB, 4_000, 4_010, 2)]);
    assert_eq!(told(&mut triggers, 4_700), []);
    tell(&mut triggers, &[op(JOB, 4_100, 4_110, 3)]);
    assert_eq!(told(&mut triggers, 4_800), [(4_010, Some(4_100))]);
}

#[test]
fn what_was_not_used_yet_and_who_has_ended_is_not_idle() {
    let mut triggers = gaps();
    assert_eq!(told(&mut triggers, 10_000), []);
    tell(
        &mut triggers,
        &[op(JOB, 10_000, 10_010, 1), exit(JOB, 10_020)],
    );
    assert_eq!(told(&mut triggers, 20_000), []);
}

#[test]
fn nothing_is_claimed_of_times_of_which_records_are_missing() {
    let mut triggers = gaps();
    tell(
        &mut triggers,
        &[
            op(JOB, 0, 10, 1),
            Event::Loss(Loss {
                source: LossSource::ShimRing(JOB),
                count: 5,
                from: ms(5),
                to: ms(100),
            }),
            op(JOB, 110, 120, 9),
            shim(150, ShimState::Paused),
        ],
    );
    assert_eq!(told(&mut triggers, 10_000), []);
    tell(
        &mut triggers,
        &[shim(10_000, ShimState::Active), op(JOB, 10_010, 10_020, 10)],
    );
    assert_eq!(told(&mut triggers, 11_000), []);
}

#[test]
fn two_processes_that_share_a_card_keep_it_busy_together() {
    let mut triggers = gaps();
    let other = Pid(8);
    let device = |pid, uuid| {
        Event::Device(Device {
            ts: ms(0),
            pid,
            id: DeviceId(0),
            name: NameId(1),
            uuid: NameId(uuid),
        })
    };
    let uuid = |id| {
        Event::Define(Define::Name {
            id: NameId(id),
            text: "GPU-1234".to_string(),
        })
    };
    // The second id of the same text.
    tell(
        &mut triggers,
        &[uuid(2), device(JOB, 2), uuid(5), device(other, 5)],
    );
    tell(
        &mut triggers,
        &[
            op(JOB, 0, 10, 1),
            op(JOB, 100, 110, 2),
            op(other, 10, 90, 1),
        ],
    );
    assert_eq!(told(&mut triggers, 800), []);
    // One of them ends: the other still uses it.
    tell(&mut triggers, &[exit(other, 120)]);
    assert_eq!(told(&mut triggers, 3_000), [(110, None)]);
}

#[test]
fn a_text_says_what_and_when() {
    let gap = Fired {
        trigger: Trigger::Gap(ms(50)),
        start: ms(1_000),
        end: Some(ms(1_073)),
        who: Who::Gpu(0),
    };
    assert_eq!(
        gap.text(ms(500), ms(2_000)),
        "gap of 73.0 ms on GPU 0 ended at +573 ms"
    );
    let lasts = Fired { end: None, ..gap };
    assert_eq!(
        lasts.text(ms(500), ms(2_000)),
        "gap of 1.00 s on GPU 0 lasts since +500 ms"
    );
    let queue = Fired {
        trigger: Trigger::RunQueue(ms(20)),
        who: Who::Thread(Tid(9)),
        ..gap
    };
    assert_eq!(
        queue.text(ms(500), ms(2_000)),
        "thread 9 waited 73.0 ms for a CPU from +500 ms"
    );
    assert_eq!(queue.trigger.to_string(), "runq>20.0ms");
}

#[test]
fn only_waits_of_targets_count() {
    let mut triggers = Triggers::new(&[Trigger::RunQueue(ms(20)), Trigger::Wait(ms(100))]);
    let task = |tid, target| {
        Event::Task(Task {
            ts: ms(0),
            tid: Tid(tid),
            pid: JOB,
            ppid: Pid(1),
            comm: NameId(0),
            start: ms(0),
            ns_tid: Tid(tid),
            ns_pid: JOB,
            cgroup: 0,
            prio: 120,
            reason: TaskReason::Seen,
            target,
            kthread: false,
            state: TaskState::Running,
            syscall: None,
        })
    };
    let queued = |tid, start, end| {
        Event::CpuWait(CpuWait {
            tid: Tid(tid),
            start: ms(start),
            end: ms(end),
            allowed: 2,
            online: 2,
            idle: 0,
        })
    };
    let waited = |tid, start, end| {
        Event::Wait(Wait {
            tid: Tid(tid),
            start: ms(start),
            end: ms(end),
            state: 1,
            syscall: None,
            stack: StackId(0),
            object: NameId(0),
        })
    };
    tell(
        &mut triggers,
        &[
            task(7, true),
            task(8, false),
            queued(7, 0, 20),
            queued(8, 0, 50),
            waited(8, 0, 500),
            waited(7, 0, 50),
            queued(7, 100, 121),
            waited(7, 200, 301),
        ],
    );
    assert_eq!(
        told(&mut triggers, 400),
        [(100, Some(121)), (200, Some(301))]
    );
}

proptest! {
    /// Kernels on some streams, whose records come in any order and late: each gap is told once, and nothing
    /// else is.
    #[test]
    fn every_gap_is_told_once_and_nothing_else(
        work in proptest::collection::vec((0u64..200, 1u64..300, 0u64..3, 0u64..400), 1..60),
    ) {
        let gap = ms(50);
        let mut free = [0u64; 3];
        let mut at = 0;
        // Arrivals: launches at most 350 ms after the call, operations after their end.
        let mut arrivals: Vec<(u64, Event)> = Vec::new();
        let mut busy: Vec<(u64, u64)> = Vec::new();
        for (i, (pause, len, stream, late)) in work.into_iter().enumerate() {
            at += pause;
            let start = free[stream as usize].max(at);
            let end = start + len;
            free[stream as usize] = end;
            let number = i as u32 + 1;
            arrivals.push((at + late % 350, call(LAUNCH, at, number)));
            arrivals.push((end + late, op(JOB, start, end, number)));
            busy.push((start, end));
        }
        arrivals.sort_by_key(|(at, _)| *at);
        busy.sort_unstable();
        let mut expected = Vec::new();
        let mut until = busy[0].1;
        for &(start, end) in &busy {
            if ms(start.saturating_sub(until)) > gap {
                expected.push((until, Some(start)));
            }
            until = until.max(end);
        }

        let mut triggers = gaps();
        let mut got = Vec::new();
        let mut next = 0;
        let end = until + 1_000;
        for now in (0..end).step_by(100) {
            while next < arrivals.len() && arrivals[next].0 <= now {
                triggers.event(&arrivals[next].1);
                next += 1;
            }
            got.extend(told(&mut triggers, now));
        }
        prop_assert_eq!(got, expected);
    }
}
