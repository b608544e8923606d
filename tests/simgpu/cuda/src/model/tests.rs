use super::*;

const EVENT: u64 = 1_500;
const NEXT: u64 = 1_000;
const ENGINE: u64 = 300;
const LEAD: i64 = 7_000;

struct Bench {
    sim: Simulation,
    context: Handle,
}

impl Bench {
    fn new(set: impl FnOnce(&mut Config)) -> Bench {
        let mut config = Config::new(|_| None);
        set(&mut config);
        let mut sim = Simulation::new(&config);
        let context = sim.create_context(0, false);
        Bench { sim, context }
    }

    fn stream(&mut self) -> Handle {
        self.sim.create_stream(self.context, true, 0).unwrap()
    }

    fn null(&self) -> Handle {
        self.sim.contexts[&self.context].null_stream
    }

    /// Submits at `at` with the usual lead; the times if they are known.
    fn submit(&mut self, stream: Handle, at: u64, work: Work) -> Option<(u64, u64)> {
        let mut settled = Vec::new();
        self.sim
            .submit(
                Submission {
                    stream,
                    work,
                    slot: 1,
                    call_start: at - 3_000,
                    doorbell: at,
                    lead: LEAD,
                    gaps: Gaps::plain(NEXT, EVENT, ENGINE),
                },
                &mut settled,
            )
            .unwrap();
        settled.first().map(|s| (s.start, s.end))
    }

    fn kernel(&mut self, stream: Handle, at: u64, ns: u64) -> (u64, u64) {
        self.submit(stream, at, Work::Kernel { ns }).unwrap()
    }

    fn copy(&mut self, stream: Handle, at: u64, direction: Direction, ns: u64) -> (u64, u64) {
        self.submit(stream, at, Work::Copy { direction, ns })
            .unwrap()
    }
}

const HOST: Work = Work::Host(HostFunction {
    function: 1,
    argument: 2,
});

#[test]
fn an_empty_device_starts_a_lead_after_the_launch() {
    let mut b = Bench::new(|_| ());
    let s = b.stream();
    assert_eq!(b.kernel(s, 10_000, 500), (17_000, 17_500));
}

#[test]
fn a_negative_lead_never_goes_before_the_call() {
    let mut b = Bench::new(|_| ());
    let s = b.stream();
    let mut settled = Vec::new();
    let submission = Submission {
        stream: s,
        work: Work::Kernel { ns: 10 },
        slot: 1,
        call_start: 9_000,
        doorbell: 10_000,
        lead: -5_000,
        gaps: Gaps::plain(NEXT, EVENT, ENGINE),
    };
    b.sim.submit(submission, &mut settled).unwrap();
    assert_eq!(settled[0].start, 9_000);
}

#[test]
fn a_stream_runs_its_operations_in_order() {
    let mut b = Bench::new(|_| ());
    let s = b.stream();
    assert_eq!(b.kernel(s, 10_000, 100_000), (17_000, 117_000));
    assert_eq!(b.kernel(s, 14_000, 50_000), (118_000, 168_000));
    assert_eq!(
        b.copy(s, 18_000, Direction::HostToDevice, 10),
        (169_000, 169_010)
    );
}

#[test]
fn kernels_of_two_streams_run_at_once_up_to_the_limit() {
    let mut b = Bench::new(|c| c.concurrency = 2);
    let (s, t, u) = (b.stream(), b.stream(), b.stream());
    assert_eq!(b.kernel(s, 10_000, 100_000), (17_000, 117_000));
    assert_eq!(b.kernel(t, 14_000, 50_000), (21_000, 71_000));
    assert_eq!(b.kernel(u, 18_000, 10_000), (71_000, 81_000));
}

#[test]
fn copies_of_one_direction_take_turns() {
    let mut b = Bench::new(|_| ());
    let (s, t) = (b.stream(), b.stream());
    let up = Direction::HostToDevice;
    assert_eq!(b.copy(s, 10_000, up, 100_000), (17_000, 117_000));
    assert_eq!(b.copy(t, 14_000, up, 100_000), (117_300, 217_300));
    let down = Direction::DeviceToHost;
    assert_eq!(b.copy(t, 18_000, down, 10), (218_300, 218_310));
    let u = b.stream();
    assert_eq!(b.copy(u, 18_000, down, 10), (25_000, 25_010));
}

#[test]
fn a_copy_may_use_the_hole_before_one_that_waits() {
    let mut b = Bench::new(|_| ());
    let (s, t) = (b.stream(), b.stream());
    let up = Direction::HostToDevice;
    b.kernel(s, 10_000, 1_000_000);
    assert_eq!(b.copy(s, 14_000, up, 50_000).0, 1_018_000);
    assert_eq!(b.copy(t, 18_000, up, 50_000), (25_000, 75_000));
    // Too long for the rest of the hole: after the one that waits.
    assert_eq!(b.copy(t, 22_000, up, 2_000_000).0, 1_068_000 + ENGINE);
}

#[test]
fn devices_share_copy_engines_only_when_told_so() {
    for (shared, start) in [(false, 21_000), (true, 117_000 + ENGINE)] {
        let mut b = Bench::new(|c| {
            c.devices = 2;
            c.shared_copy = shared;
        });
        let s = b.stream();
        let other = b.sim.create_context(1, false);
        let t = b.sim.create_stream(other, true, 0).unwrap();
        b.copy(s, 10_000, Direction::HostToDevice, 100_000);
        assert_eq!(b.copy(t, 14_000, Direction::HostToDevice, 10).0, start);
    }
}

#[test]
fn an_event_holds_the_other_stream_back() {
    let mut b = Bench::new(|_| ());
    let (s, t) = (b.stream(), b.stream());
    let event = b.sim.create_event(b.context, false);
    b.kernel(s, 10_000, 100_000);
    assert!(b.sim.record_event(event, s, 12_000));
    // Later work of the first stream is not part of the event.
    b.kernel(s, 14_000, 500_000);
    assert!(b.sim.wait_event(t, event, 15_000));
    assert_eq!(b.kernel(t, 18_000, 10).0, 117_000 + EVENT);
}

#[test]
fn an_event_of_the_past_or_never_recorded_holds_nothing_back() {
    let mut b = Bench::new(|_| ());
    let (s, t) = (b.stream(), b.stream());
    let (event, never) = (
        b.sim.create_event(b.context, false),
        b.sim.create_event(b.context, false),
    );
    b.kernel(s, 10_000, 1_000);
    assert!(b.sim.record_event(event, s, 12_000));
    assert!(b.sim.wait_event(t, event, 50_000));
    assert!(b.sim.wait_event(t, never, 50_000));
    assert_eq!(b.kernel(t, 60_000, 10).0, 67_000);
    assert_eq!(b.sim.event_work(never).unwrap().len(), 0);
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    let mut b = Bench::new(|_| ());
    let s = b.sim.create_stream(b.context, false, 0).unwrap();
    let free = b.stream();
    let null = b.null();
    b.kernel(s, 10_000, 100_000);
    b.kernel(free, 10_000, 900_000);
    let (start, end) = b.kernel(null, 14_000, 1_000);
    assert_eq!(start, 117_000 + EVENT);
    assert_eq!(b.kernel(s, 18_000, 10).0, end + EVENT);
    let other = b.stream();
    assert_eq!(b.kernel(other, 20_000, 10).0, 27_000);
}

#[test]
fn work_behind_a_host_function_waits_until_it_returned() {
    let mut b = Bench::new(|_| ());
    let (s, t) = (b.stream(), b.stream());
    b.kernel(s, 10_000, 100_000);
    assert_eq!(b.submit(s, 14_000, HOST), None);
    assert_eq!(b.submit(s, 18_000, Work::Kernel { ns: 5_000 }), None);
    let event = b.sim.create_event(b.context, false);
    b.sim.record_event(event, s, 20_000);
    b.sim.wait_event(t, event, 20_000);
    assert_eq!(b.submit(t, 22_000, Work::Kernel { ns: 7 }), None);
    assert_eq!(b.sim.take_host_call(50_000).unwrap_err(), Some(118_000));

    let call = b.sim.take_host_call(118_500).unwrap();
    let mut settled = Vec::new();
    b.sim.host_returned(&call, 300_000, &mut settled);
    let starts: Vec<u64> = settled.iter().map(|s| s.start).collect();
    assert_eq!(starts, [301_000, 306_000 + EVENT]);
    assert_eq!(b.sim.take_host_call(u64::MAX).unwrap_err(), None);
}

#[test]
fn a_host_function_holds_up_nobody_else() {
    let mut b = Bench::new(|_| ());
    let (s, t) = (b.stream(), b.stream());
    assert_eq!(b.submit(s, 10_000, HOST), None);
    assert_eq!(b.kernel(t, 14_000, 10).0, 21_000);
}

#[test]
fn a_full_queue_names_the_operation_to_wait_for() {
    let mut b = Bench::new(|c| c.queue = 3);
    let s = b.stream();
    for i in 0..3 {
        assert!(b.sim.queue_front(s, 10_000 + i).is_none());
        b.kernel(s, 10_000 + i, 100_000);
    }
    let front = b.sim.queue_front(s, 20_000).unwrap();
    assert_eq!(front.get(), Some(117_000));
    assert!(b.sim.queue_front(s, 117_000).is_none());
}

#[test]
fn destroyed_streams_still_hold_up_a_context_synchronisation() {
    let mut b = Bench::new(|_| ());
    let s = b.stream();
    let (_, end) = b.kernel(s, 10_000, 100_000);
    assert!(b.sim.destroy_stream(s, 12_000));
    assert!(!b.sim.destroy_stream(s, 12_000));
    let ends: Vec<_> = b
        .sim
        .context_work(b.context)
        .iter()
        .map(Finish::get)
        .collect();
    assert_eq!(ends, [Some(end)]);
    assert_eq!(b.sim.device_work(0).len(), 1);
}

#[test]
fn nothing_overlaps_in_a_stream_or_an_engine_whatever_is_submitted() {
    let mut b = Bench::new(|c| c.concurrency = 3);
    let streams: Vec<Handle> = (0..5).map(|_| b.stream()).collect();
    let events: Vec<Handle> = (0..3)
        .map(|_| b.sim.create_event(b.context, false))
        .collect();
    let mut in_stream: Vec<Vec<(u64, u64)>> = vec![Vec::new(); streams.len()];
    let mut kernels = Vec::new();
    let mut copies: [Vec<(u64, u64)>; 2] = Default::default();
    let mut at = 10_000;
    for n in 0..600 {
        let r = crate::draws::random(42, n);
        let which = (r % 5) as usize;
        let (stream, ns) = (streams[which], (r >> 8) % 40_000);
        at += (r >> 32) % 9_000;
        match (r >> 48) % 6 {
            0 | 1 => {
                let op = b.kernel(stream, at, ns);
                kernels.push(op);
                in_stream[which].push(op);
            }
            2 => {
                let op = b.copy(stream, at, Direction::HostToDevice, ns);
                copies[0].push(op);
                in_stream[which].push(op);
            }
            3 => {
                let op = b.copy(stream, at, Direction::DeviceToHost, ns);
                copies[1].push(op);
                in_stream[which].push(op);
            }
            4 => assert!(b.sim.record_event(events[n as usize % 3], stream, at)),
            _ => assert!(b.sim.wait_event(stream, events[n as usize % 3], at)),
        }
    }
    for ops in &in_stream {
        assert!(ops.len() > 50);
        assert!(ops.windows(2).all(|w| w[0].1 <= w[1].0));
    }
    for ops in &mut copies {
        ops.sort_unstable();
        assert!(ops.windows(2).all(|w| w[0].1 <= w[1].0));
    }
    let at_once = |t: u64| kernels.iter().filter(|&&(s, e)| s <= t && t < e).count();
    assert!(kernels.iter().all(|&(start, _)| at_once(start) <= 3));
}
