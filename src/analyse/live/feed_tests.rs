//! What comes in any order, late, or not at all, is in the right slice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Feed, Slice, SliceOptions, Window, SLICE};
use crate::analyse::cause::Cause;
use crate::analyse::report::{Gpu, Report};
use crate::analyse::tests::story::*;
use crate::event::*;
use crate::fxhash::FxHashSet;
use crate::units::Nanos;

fn ms(t: i64) -> i64 {
    t * 1_000
}

/// A feed, and all slices that it made, the last of each time.
struct Fed {
    feed: Feed,
    slices: BTreeMap<Nanos, Slice>,
    again: usize,
}

/// When something is heard of: what is of CUDA is held back for as long.
fn heard(event: &Event, held: i64) -> Nanos {
    let cuda = Nanos(u64::try_from(held).unwrap() * 1_000);
    match event {
        Event::GpuOp(e) => e.end + cuda,
        Event::ApiCall(e) => e.end + cuda,
        Event::Wait(e) => e.end,
        other => other.ts().unwrap_or(Nanos::ZERO),
    }
}

impl Fed {
    fn new(story: &Story) -> Fed {
        Fed {
            feed: Feed::new(&story.meta, us(0), SliceOptions::default()),
            slices: BTreeMap::new(),
            again: 0,
        }
    }

    fn add(&mut self, slices: Vec<Slice>) {
        for slice in slices {
            self.again += usize::from(self.slices.insert(slice.from, slice).is_some());
        }
    }

    fn take(&mut self, until: i64) {
        let slices = self.feed.take(us(until), None);
        self.add(slices);
    }

    /// The story until `end`, every 100 ms what was heard of by then.
    fn hears(&mut self, events: &[(Nanos, Event)], from: i64, end: i64) {
        let mut at = from;
        while at < end {
            let until = (at + ms(100)).min(end);
            let range = us(at)..us(until);
            let first = |at: i64| at == 0;
            for (heard, event) in events {
                if range.contains(heard) || (first(at) && *heard < us(0)) {
                    self.feed.push(event.clone());
                }
            }
            self.take(until);
            at = until;
        }
    }

    fn window(&self, from: i64, to: i64) -> Window {
        let slices = self.slices.values();
        let inside = slices.filter(|s| us(from) <= s.from && s.to <= us(to));
        let slices: Vec<Arc<Slice>> = inside.cloned().map(Arc::new).collect();
        slices.iter().for_each(|s| follow(&s.report));
        Window::of(&slices)
    }

    fn gpu(&self, from: i64, to: i64) -> Gpu {
        self.window(from, to).report.gpus[0].clone()
    }
}

/// Of each listed gap its parts follow each other and cover it.
fn follow(report: &Report) {
    for gap in report.gpus.iter().flat_map(|gpu| &gpu.gaps) {
        let mut at = gap.start;
        for part in &gap.parts {
            assert_eq!(part.start, at);
            at = part.end;
        }
        assert_eq!(at, gap.end);
    }
}

fn arrivals(story: &Story, held: i64) -> Vec<(Nanos, Event)> {
    let events = story.events.iter();
    let mut events: Vec<_> = events.map(|e| (heard(e, held), e.clone())).collect();
    // Definitions come before what mentions them.
    events.sort_by_key(|(at, event)| match event {
        Event::Define(_) => Nanos::ZERO,
        _ => *at,
    });
    events
}

fn fed(story: &Story, held: i64, end: i64) -> Fed {
    let mut fed = Fed::new(story);
    fed.hears(&arrivals(story, held), 0, end);
    fed
}

/// As milliseconds.
fn rounded(time: Option<Nanos>) -> Option<u64> {
    time.map(|time| (time.0 + 500_000) / 1_000_000)
}

/// A kernel of 1 ms each 2 ms, launched 1 ms before.
fn loop_from(mut story: Story, from: i64, to: i64) -> Story {
    let mut at = from;
    while at < to {
        story = story.kernel((at, at + 5), (at + ms(1), at + ms(2)));
        at += ms(2);
    }
    story
}

/// Kernels and a copy for a second, 14 seconds of sleep, and kernels again.
fn long_sleep() -> Story {
    let story = loop_from(timeline(), 0, ms(1_000));
    let story = story.copy(
        CopyKind::DeviceToHost,
        MemoryKind::Pageable,
        4,
        (ms(1_000), ms(1_000) + 5),
        (ms(1_001), ms(1_002)),
    );
    let story = story.main_sleeps((ms(1_002), ms(15_000)), S, Some(NANOSLEEP), None);
    loop_from(story, ms(15_001), ms(17_500))
}

#[test]
fn a_sleep_of_14_s_is_one_to_its_end() {
    let fed = fed(&long_sleep(), ms(300), ms(17_500));
    let gpu = fed.gpu(ms(1_500), ms(15_000));
    assert_eq!(rounded(gpu.idle), Some(13_500));
    let causes: Vec<Cause> = gpu.causes.iter().map(|row| row.cause).collect();
    assert_eq!(causes, [Cause::Sleep], "{:#?}", gpu.causes);
    assert!(fed.feed.skipped() == 0);
}

#[test]
fn a_kernel_of_4_s_was_busy_in_all_of_its_slices() {
    let story = loop_from(timeline(), 0, ms(1_000));
    let story = story.kernel((ms(1_000), ms(1_000) + 5), (ms(1_001), ms(5_000)));
    let story = loop_from(story, ms(5_001), ms(8_000));
    let events = arrivals(&story, ms(200));
    let mut fed = Fed::new(&story);
    fed.hears(&events, 0, ms(5_000));
    // Nobody knows that it runs.
    let gpu = fed.gpu(ms(1_500), ms(2_000));
    assert_eq!((gpu.busy, gpu.idle), (Some(Nanos(0)), Some(Nanos(0))));
    fed.hears(&events, ms(5_000), ms(8_000));
    let gpu = fed.gpu(ms(1_500), ms(5_000));
    assert_eq!(
        (rounded(gpu.busy), rounded(gpu.idle)),
        (Some(3_500), Some(0))
    );
    let gpu = fed.gpu(0, ms(6_500));
    let busy = rounded(gpu.busy).unwrap() + rounded(gpu.idle).unwrap();
    assert_eq!(busy, 6_500);
    let kernels = &fed.window(0, ms(6_500)).report.kernels;
    assert_eq!(kernels[0].count, 500 + 1 + 749);
}

#[test]
fn an_operation_that_is_too_late_for_its_slice_is_counted() {
    let story = loop_from(timeline(), 0, ms(8_000));
    let mut events = arrivals(&story, ms(200));
    let first = events
        .iter_mut()
        .find(|(_, e)| matches!(e, Event::GpuOp(_)));
    first.unwrap().0 = us(ms(7_000));
    let mut fed = Fed::new(&story);
    fed.hears(&events, 0, ms(6_900));
    assert_eq!(fed.feed.late(), 0);
    fed.hears(&events, ms(6_900), ms(8_000));
    assert_eq!(fed.feed.late(), 1);
}

#[test]
fn after_a_hole_in_the_records_nothing_is_called_idle_until_the_next_operation() {
    let story = timeline().device(100, 0, "GPU-a");
    let story = loop_from(story, 0, ms(1_000));
    let story = story.event(Event::Loss(Loss {
        source: LossSource::ShimRing(Pid(MAIN)),
        count: 100,
        from: us(ms(1_000)),
        to: us(ms(2_000)),
    }));
    let story = loop_from(story, ms(5_000), ms(9_000));
    let events = arrivals(&story, ms(200));
    let assert_unknown = |fed: &Fed, from: i64| {
        let gpu = fed.gpu(ms(from), ms(5_000));
        let mut rows = gpu.causes.iter();
        let is_unknown = rows.all(|row| row.cause == Cause::UnknownMeasurement);
        assert!(is_unknown, "{:#?}", gpu.causes);
    };
    let mut fed = Fed::new(&story);
    fed.hears(&events, 0, ms(9_000));
    assert_unknown(&fed, 2_000);
    // Also where it is not kept any more, as slices were left out: gdiag was stopped, say.
    let mut fed = Fed::new(&story);
    fed.hears(&events, 0, ms(1_000));
    for (heard, event) in &events {
        if (us(ms(1_000))..us(ms(7_000))).contains(heard) {
            fed.feed.push(event.clone());
        }
    }
    let slices = fed.feed.take(us(ms(7_000)), Some(us(ms(7_000))));
    assert!(fed.feed.skipped() > 0);
    fed.add(slices);
    assert_unknown(&fed, 2_500);
    // Then all is as before.
    fed.hears(&events, ms(7_000), ms(9_000));
    let gpu = fed.gpu(ms(6_000), ms(8_000));
    assert_eq!(
        (rounded(gpu.busy), rounded(gpu.idle)),
        (Some(1_000), Some(1_000))
    );
}

#[test]
fn what_another_gpu_did_stays_known_when_a_long_gap_ends() {
    let mut story = long_sleep().device(100, 0, "GPU-a").device(300, 1, "GPU-b");
    let mut at = 0;
    while at < ms(17_500) {
        let from = at;
        story = story.kernel_with(
            CHILD,
            (from, from + 5),
            (from + ms(1), from + ms(4)),
            |op| {
                (op.pid, op.device) = (Pid(CHILD), DeviceId(1));
            },
        );
        at += ms(5);
    }
    let fed = fed(&story, ms(300), ms(17_500));
    let window = fed.window(0, ms(16_500));
    let gpu = &window.report.gpus[1];
    let known = (rounded(gpu.busy), rounded(gpu.idle));
    assert_eq!(known, (Some(9_900), Some(6_600)));
    assert_eq!(
        rounded(window.report.gpus[0].idle),
        Some(500 + 13_999 + 750 + 1)
    );
    let main = window
        .report
        .threads
        .iter()
        .find(|t| t.who.tid == Tid(MAIN));
    let main = main.unwrap();
    assert_eq!(rounded(Some(main.run)), Some(16_500 - 13_998));
    assert_eq!(rounded(Some(main.blocked)), Some(13_998));
}

#[test]
fn names_that_stay_in_use_are_known_when_ids_were_forgotten() {
    let mut story = loop_from(timeline(), 0, ms(1_000));
    let seldom = story.name("_Z6seldomv");
    let kernel = story.name("_Z6kernelv");
    let other = story.name("nobody");
    let story = loop_from(story, ms(1_000), ms(4_000));
    let story = story.kernel_with(
        MAIN,
        (ms(4_000), ms(4_000) + 5),
        (ms(4_001), ms(4_002)),
        |op| {
            op.kind = OpKind::Kernel { name: seldom };
        },
    );
    let story = loop_from(story, ms(4_003), ms(6_000));
    let events = arrivals(&story, ms(200));
    let mut fed = Fed::new(&story);
    fed.hears(&events, 0, ms(1_500));
    fed.feed.forget_ids([seldom, kernel].into_iter().collect());
    fed.hears(&events, ms(1_500), ms(6_000));
    assert_eq!(fed.feed.name(seldom), "_Z6seldomv");
    assert_eq!(fed.feed.name(other), "");
    let kernels = fed.window(ms(3_500), ms(5_000)).report.kernels;
    assert!(kernels.iter().all(|kernel| !kernel.name.is_empty()));
    assert_eq!(kernels.len(), 2);
    // What nobody uses is gone.
    let mut fed = Fed::new(&story);
    fed.hears(&events, 0, ms(1_500));
    fed.feed.forget_ids(FxHashSet::default());
    fed.hears(&events, ms(1_500), ms(3_900));
    assert_eq!(fed.feed.name(seldom), "");
}

#[test]
fn slices_are_behind_by_the_clock_and_left_out_when_it_is_too_much() {
    let story = loop_from(timeline(), 0, ms(10_000));
    let events = arrivals(&story, ms(200));
    let mut feed = Feed::new(&story.meta, us(0), SliceOptions::default());
    events.iter().for_each(|(_, e)| feed.push(e.clone()));
    let slices = feed.take(us(ms(3_000)), Some(us(ms(3_100))));
    assert_eq!((slices.len(), feed.skipped()), (4, 0));
    assert_eq!(feed.behind(us(ms(3_100))), None);
    // It works on what was 20 seconds ago.
    let slices = feed.take(us(ms(4_000)), Some(us(ms(24_000))));
    assert_eq!((slices.len(), feed.skipped()), (0, 2));
    let behind = us(ms(24_000)) - us(ms(3_000)) - SLICE - super::feed::ARRIVAL;
    assert_eq!(feed.behind(us(ms(24_000))), Some(behind));
    // A recording has all the time of the world.
    let slices = feed.take(us(ms(10_000)), None);
    assert_eq!((slices.len(), feed.skipped()), (12, 2));
}

#[test]
fn times_from_far_in_the_future_end() {
    let far = Nanos(u64::MAX - 5);
    for end in [far, us(ms(1_000_000_000))] {
        let story = loop_from(timeline(), 0, ms(1_000));
        let mut fed = Fed::new(&story);
        fed.hears(&arrivals(&story, 0), 0, ms(1_000));
        fed.feed.push(Event::Interrupt(Interrupt {
            start: us(0),
            dur: far,
            cpu: Cpu(0),
            tid: Tid(0),
            context: Context::HardIrq(1),
        }));
        assert!(fed.feed.take(end, None).len() <= 601);
        let mut fed = Fed::new(&story);
        fed.hears(&arrivals(&story, 0), 0, ms(1_000));
        assert!(fed.feed.finish(end).len() <= 601);
    }
}
