//! Slices, added up, are the report of the whole.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::{slice, Slice, SliceOptions, Window};
use crate::analyse::cause::Cause;
use crate::analyse::report::Report;
use crate::analyse::sched::{self, OffReason};
use crate::analyse::tests::random::any_story;
use crate::analyse::tests::story::*;
use crate::analyse::{report, syscalls, Options};
use crate::event::*;
use crate::model::Timeline;
use crate::store::Reader;
use crate::units::Nanos;

const RECORDINGS: [&str; 9] = [
    "launch", "item", "loader", "stacks", "engine", "managed", "attached", "syscalls", "probed",
];

fn options(min_gap: Nanos) -> SliceOptions {
    SliceOptions {
        min_gap,
        gaps: usize::MAX,
        goes_on: false,
        ..SliceOptions::default()
    }
}

/// Slices from the first of these times to the last.
fn cut(t: &Timeline, times: &[Nanos], options: &SliceOptions) -> Vec<Arc<Slice>> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.dedup();
    let pairs = times.iter().zip(times.iter().skip(1));
    pairs
        .map(|(&from, &to)| Arc::new(slice(t, from, to, options)))
        .collect()
}

fn everything(t: &Timeline, cuts: &[Nanos], min_gap: Nanos) -> Vec<Arc<Slice>> {
    let times = [&[Nanos::ZERO, Nanos::MAX], cuts].concat();
    cut(t, &times, &options(min_gap))
}

fn causes(report: &Report, gpu: usize) -> BTreeMap<Cause, (Nanos, u64)> {
    let rows = report.gpus[gpu].causes.iter();
    rows.map(|row| (row.cause, (row.total, row.gaps))).collect()
}

type Times = (Nanos, Nanos, Nanos);

/// Running, able to run, and asleep. In random recordings a thread can become one of another process while it sleeps,
/// so by thread only.
fn times(report: &Report) -> BTreeMap<Tid, Times> {
    let mut all: BTreeMap<Tid, Times> = BTreeMap::new();
    for thread in &report.threads {
        let sum = all.entry(thread.who.tid).or_default();
        sum.0 += thread.run;
        sum.1 += thread.runq;
        sum.2 += thread.blocked;
    }
    all
}

/// Where the report of the whole knows, every slice does, and together they say the same.
fn assert_adds_up(t: &Timeline, cuts: &[Nanos], min_gap: Nanos) {
    let whole = report(
        t,
        &Options {
            gpu: None,
            min_gap,
            gaps: None,
        },
    );
    let slices = everything(t, cuts, min_gap);
    let window = Window::of(&slices);
    let sum = &window.report;
    slices.iter().for_each(|slice| check(&slice.report));
    assert_eq!(sum.gpus.len(), whole.gpus.len());
    for (i, (sum, all)) in sum.gpus.iter().zip(&whole.gpus).enumerate() {
        assert_eq!(sum.operations, all.operations);
        if all.busy.is_none() {
            continue;
        }
        assert_eq!((sum.busy, sum.idle), (all.busy, all.idle));
        let kinds = |g: &crate::analyse::report::Gpu| (g.busy_kernel, g.busy_memcpy, g.busy_memset);
        assert_eq!(kinds(sum), kinds(all));
        assert_eq!(sum.gap_count, all.gap_count);
        assert_eq!(causes(&window.report, i), causes(&whole, i));
        for row in &sum.causes {
            let by: Nanos = row.by.iter().map(|b| b.total).sum();
            assert_eq!(by, row.total);
            assert!(!row.evidence.is_empty());
        }
        assert_eq!(sum.gaps.len(), all.gaps.len().min(50));
        for (sum, all) in sum.gaps.iter().zip(&all.gaps) {
            let mut all = all.clone();
            if all.parts.len() > 100 {
                all.parts.clone_from(&sum.parts);
            }
            assert_eq!(format!("{sum:#?}"), format!("{all:#?}"));
        }
        if all.window_start < all.window_end {
            assert_eq!(
                (sum.window_start, sum.window_end),
                (all.window_start, all.window_end)
            );
        }
    }
    assert_eq!(format!("{:?}", sum.kernels), format!("{:?}", whole.kernels));
    if whole.gpus.iter().all(|gpu| gpu.busy.is_some()) {
        assert_eq!(format!("{:?}", sum.calls), format!("{:?}", whole.calls));
    }
    assert_eq!(times(sum), times(&whole));
    let lost = |r: &Report| (r.quality.lost(), r.quality.invalid_gpu_records);
    assert_eq!(lost(sum), lost(&whole));
    assert_eq!(
        sum.quality.unmatched_gpu_records,
        whole.quality.unmatched_gpu_records
    );
    assert_eq!(sum.quality.gpu_coverage, whole.quality.gpu_coverage);
}

fn load(name: &str) -> Timeline {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.data"));
    let mut reader = Reader::open(&path).unwrap();
    let mut t = Timeline::new(reader.meta());
    reader
        .for_each(|event| {
            t.push(event);
            ControlFlow::Continue(())
        })
        .unwrap();
    t.finish(reader.summary());
    t
}

/// So many cuts, as far apart, and none at a round time.
fn even_cuts(t: &Timeline, slices: u64) -> Vec<Nanos> {
    let len = t.end().saturating_sub(t.start()).0;
    (1..slices)
        .map(|i| Nanos(t.start().0 + len / slices * i + 7))
        .collect()
}

#[test]
fn slices_of_real_recordings_add_up_to_their_reports() {
    for name in RECORDINGS {
        let t = load(name);
        for slices in [2, 13] {
            assert_adds_up(&t, &even_cuts(&t, slices), Nanos::from_micros(10));
        }
    }
}

#[test]
fn what_threads_did_in_slices_adds_up() {
    for name in RECORDINGS {
        let t = load(name);
        let (from, to) = (t.start(), t.end());
        let whole = sched::recorded::summary(
            &t,
            &sched::recorded::Scope {
                from,
                to,
                cpus: None,
                tids: &[],
                joins: false,
            },
        );
        let all_calls = syscalls::recorded::Scope {
            from,
            to,
            tids: &[],
            wanted: &[true],
            least: Nanos::ZERO,
            only_failed: false,
            joins: true,
        };
        let calls = syscalls::recorded::summary(&t, &all_calls);
        let mut times = even_cuts(&t, 17);
        times.extend([from, to]);
        let window = Window::of(&cut(&t, &times, &options(Nanos::from_micros(10))));
        let sum = &window.sched;
        assert_eq!((sum.start, sum.end), (from, to));
        assert_eq!(sum.threads.len(), whole.threads.len(), "{name}");
        for (sum, all) in sum.threads.iter().zip(&whole.threads) {
            assert_eq!(sum.who, all.who);
            assert_eq!(sum.run, all.run, "{name} {}", all.who);
            let counts = |t: &sched::ThreadSum| (t.voluntary, t.involuntary, t.migrations);
            assert_eq!(counts(sum), counts(all), "{name} {}", all.who);
            let off = |t: &sched::ThreadSum| -> Vec<(OffReason, u64, Nanos)> {
                t.off.iter().map(|o| (o.reason, o.count, o.total)).collect()
            };
            assert_eq!(off(sum), off(all), "{name} {}", all.who);
            assert_eq!(sum.runs, all.runs, "{name} {}", all.who);
            assert_eq!(sum.runq, all.runq, "{name} {}", all.who);
            assert_eq!(sum.runq_max_at, all.runq_max_at);
            assert_eq!(sum.wakers, all.wakers);
        }
        for (sum, all) in sum.cpus.iter().zip(&whole.cpus) {
            assert_eq!((sum.cpu, sum.switches), (all.cpu, all.switches));
            assert_eq!(
                sum.busy + sum.idle + sum.unknown,
                all.busy + all.idle + all.unknown
            );
        }
        let exact = |summary: &syscalls::Summary| {
            let mut exact = summary.clone();
            let calls = exact.threads.iter_mut().flat_map(|t| &mut t.calls);
            // Sums of fractions depend on their order.
            calls.for_each(|call| call.squares = 0.0);
            exact
        };
        assert_eq!(exact(&window.calls), exact(&calls), "{name}");
    }
}

#[test]
fn a_window_of_one_slice_is_that_slice() {
    for name in ["loader", "attached", "probed"] {
        let t = load(name);
        let (from, to) = (t.start(), t.end());
        let one = slice(&t, from, to, &SliceOptions::default());
        let mut window = Window::of(&[Arc::new(one.clone())]);
        // Rows that two threads of one number share are one.
        assert!(window.sched.threads.len() <= one.sched.threads.len());
        window.sched.threads.clone_from(&one.sched.threads);
        assert_eq!(window.sched, one.sched, "{name}");
        assert_eq!(window.calls, one.calls, "{name}");
        assert_eq!(window.launches, one.launches, "{name}");
        assert_eq!(window.cuda, one.cuda, "{name}");
        assert_eq!(window.stacks, one.stacks, "{name}");
        assert_eq!((window.from, window.to), (from, to));
        let text = |r: &Report| format!("{r:#?}");
        assert_eq!(text(&window.report), text(&one.report), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn slices_add_up_wherever_time_is_cut(
        story in any_story(),
        cuts in prop::collection::vec(0..3_000_000u64, 0..6),
    ) {
        let cuts: Vec<Nanos> = cuts.iter().map(|ns| Nanos(us(0).0 + ns)).collect();
        assert_adds_up(&story.built(), &cuts, story.options.min_gap);
    }
}

/// Busy until 100, idle until 900, busy until 1000.
fn one_gap() -> Story {
    timeline()
        .kernel((0, 5), (10, 100))
        .kernel((890, 895), (900, 1_000))
        .attach(1_000)
}

fn live(t: &Timeline, times: &[i64]) -> Vec<Arc<Slice>> {
    let times: Vec<Nanos> = times.iter().map(|&at| us(at)).collect();
    cut(t, &times, &SliceOptions::default())
}

#[test]
fn a_gap_is_listed_where_it_ends_and_before_as_far_as_it_has_come() {
    let t = one_gap().built();
    let slices = live(&t, &[0, 300, 600, 1_000]);
    let gaps = |slice: &Slice| -> Vec<(Nanos, Nanos, bool)> {
        let gaps = slice.report.gpus[0].gaps.iter();
        gaps.map(|gap| (gap.start, gap.end, gap.next.is_some()))
            .collect()
    };
    let before = (us(0), us(10), true);
    assert_eq!(gaps(&slices[0]), [(us(100), us(300), false), before]);
    assert_eq!(gaps(&slices[1]), [(us(100), us(600), false)]);
    assert_eq!(gaps(&slices[2]), [(us(100), us(900), true)]);
    // Once it has ended, it is told of once.
    let gpu = &Window::of(&slices).report.gpus[0];
    let listed: Vec<_> = gpu.gaps.iter().map(|g| (g.start, g.end)).collect();
    assert_eq!(listed, [(us(100), us(900)), (us(0), us(10))]);
    assert_eq!(gpu.gap_count, 2);
    assert!(gpu.causes.iter().all(|row| row.gaps <= 2));
    // While it lasts, the last that was said of it counts.
    let gpu = &Window::of(&slices[..2]).report.gpus[0];
    assert_eq!(gpu.gaps[0].end, us(600));
    assert!(gpu.gaps[0].next.is_none());
    assert_eq!((gpu.gaps.len(), gpu.gap_count), (2, 2));
    // A window that begins inside of it has it, too.
    let gpu = &Window::of(&slices[1..]).report.gpus[0];
    assert_eq!((gpu.gaps.len(), gpu.gap_count), (1, 1));
    assert_eq!(gpu.idle, Some(Nanos(600_000)));
}

#[test]
fn a_slice_that_is_not_known_is_neither_busy_nor_idle() {
    let t = one_gap().built();
    let mut slices = live(&t, &[0, 300, 600, 1_000]);
    let unknown = Arc::make_mut(&mut slices[1]);
    for gpu in &mut unknown.report.gpus {
        (gpu.busy, gpu.idle, gpu.idle_explained) = (None, None, None);
        gpu.causes.clear();
        gpu.gaps.clear();
    }
    let window = Window::of(&slices);
    let gpu = &window.report.gpus[0];
    assert_eq!(gpu.busy, Some(Nanos(190_000)));
    assert_eq!(gpu.idle, Some(Nanos(510_000)));
    assert_eq!((gpu.window_start, gpu.window_end), (us(0), us(1_000)));
    let known: Vec<_> = window.points.iter().map(|p| p.gpus[0].busy).collect();
    assert_eq!(known, [Some(Nanos(90_000)), None, Some(Nanos(100_000))]);
}

#[test]
fn what_was_launched_and_has_not_come_back_may_be_running() {
    let mut story = one_gap();
    story.api(MAIN, LAUNCH, (1_200, 1_205));
    story.end = 2_000;
    let t = story.built();
    let slices = live(&t, &[0, 1_000, 2_000]);
    let gpu = &slices[1].report.gpus[0];
    assert_eq!((gpu.window_start, gpu.window_end), (us(1_000), us(1_200)));
    assert_eq!((gpu.busy, gpu.idle), (Some(Nanos(0)), Some(Nanos(200_000))));
    let whole = &Window::of(&slices).report.gpus[0];
    assert_eq!(whole.busy, Some(Nanos(190_000)));
    assert_eq!(whole.drain, Nanos(800_000));
}

#[test]
fn of_a_launch_before_the_timeline_nothing_is_concluded() {
    // The last operation of the device is of another launch than the last of the thread.
    let story = |launch: i64, op: i64| {
        let mut story = one_gap();
        story.meta.start_mono_ns = us(50).0;
        story.api(MAIN, LAUNCH, (launch, launch + 1));
        story.kernel((op, op + 1), (op + 2, op + 30))
    };
    for (launch, op) in [(20, 30), (40, 30)] {
        let mut story = story(launch, op);
        story
            .events
            .retain(|e| !matches!(e, Event::GpuOp(op) if op.start > us(800)));
        story
            .events
            .retain(|e| !matches!(e, Event::ApiCall(c) if c.start > us(800)));
        let t = story.attach(1_000).built();
        let slices = live(&t, &[300, 600, 1_000]);
        for slice in &slices {
            let gpu = &slice.report.gpus[0];
            assert_eq!(gpu.idle, Some(slice.to - slice.from));
            let of_measurement = (gpu.causes.iter()).find(|c| c.cause == Cause::UnknownMeasurement);
            assert!(of_measurement.is_none(), "{gpu:#?}");
        }
    }
}

#[test]
fn records_that_are_lost_make_only_their_slice_unknown() {
    let mut story = timeline();
    for i in 0..20 {
        let at = i * 500;
        story = story.kernel((at, at + 5), (at + 10, at + 100));
        if i == 10 {
            story.api(MAIN, LAUNCH, (at + 200, at + 205));
        }
    }
    // Long enough that nothing of it can be on its way.
    story = story.kernel((1_990_000, 1_990_005), (1_990_010, 1_990_100));
    let t = story.attach(2_000_000).built();
    assert_eq!(report(&t, &Options::default()).gpus[0].busy, None);
    let slices = live(&t, &[0, 4_000, 6_000, 10_000, 2_000_000]);
    let known: Vec<bool> = (slices.iter())
        .map(|s| s.report.gpus[0].busy.is_some())
        .collect();
    assert_eq!(known, [true, false, true, true]);
    let quality = &Window::of(&slices).report.quality;
    assert!(
        quality.warnings[0].starts_with("21 of 22 launches came back"),
        "{:?}",
        quality.warnings
    );
}

#[test]
fn losses_are_added_up_into_one_sentence() {
    let source = LossSource::Bpf(Cpu(0));
    let t = one_gap()
        .lost(source, 3, (200, 210))
        .lost(source, 4, (700, 710))
        .built();
    let slices = live(&t, &[0, 300, 600, 1_000]);
    let lost: Vec<u64> = slices.iter().map(|s| s.lost).collect();
    assert_eq!(lost, [3, 0, 4]);
    let window = Window::of(&slices);
    assert_eq!((window.lost, window.sched.lost), (7, Some(7)));
    let q = &window.report.quality;
    assert_eq!(q.bpf_lost, 7);
    assert_eq!(q.warnings.len(), 1, "{:?}", q.warnings);
    assert!(q.warnings[0].starts_with("7 scheduling events"));
}

#[test]
fn a_card_is_known_by_its_uuid() {
    let story = |first: &str, second: &str| {
        timeline()
            .device(100, 0, first)
            .device(100, 1, second)
            .kernel((0, 5), (10, 100))
            .attach(1_000)
            .built()
    };
    let mut slices = live(&story("GPU-a", "GPU-b"), &[0, 500]);
    slices.extend(live(&story("GPU-b", "GPU-a"), &[500, 1_000]));
    let window = Window::of(&slices);
    let uuids: Vec<_> = (window.report.gpus.iter())
        .map(|gpu| (gpu.index, gpu.uuid.as_str()))
        .collect();
    assert_eq!(uuids, [(0, "GPU-b"), (1, "GPU-a")]);
    let busy: Vec<_> = window.report.gpus.iter().map(|gpu| gpu.busy).collect();
    assert_eq!(busy, [Some(Nanos(0)), Some(Nanos(90_000))]);
    assert_eq!(window.points[0].gpus[1].launches, 1);
}

#[test]
fn evidence_is_about_the_whole_window() {
    let mut story = timeline();
    for i in 0..6 {
        let at = i * 1_000;
        story = story.kernel((at, at + 5), (at + 10, at + 100)).main_sleeps(
            (at + 200, at + 800),
            S,
            Some(NANOSLEEP),
            None,
        );
    }
    let t = story.attach(6_000).built();
    let window = Window::of(&live(&t, &[0, 1_500, 3_000, 4_500, 6_000]));
    let sleep = (window.report.gpus[0].causes.iter()).find(|row| row.cause == Cause::Sleep);
    let evidence = &sleep.unwrap().evidence;
    assert_eq!(evidence.len(), 1, "{evidence:?}");
    assert!(
        evidence[0].contains(": 6 times, 3.60 ms in all"),
        "{evidence:?}"
    );
    assert!(evidence[0].contains(" ago"), "{evidence:?}");
}

#[test]
fn of_a_gap_with_very_many_parts_the_longest_are_kept() {
    let mut story = timeline().kernel((0, 5), (10, 100));
    for i in 0..500 {
        let at = 200 + i * 10;
        let asleep = if i % 50 == 0 { 9 } else { 4 };
        story = story.main_sleeps((at, at + asleep), S, Some(NANOSLEEP), None);
    }
    let t = story.attach(6_000).built();
    let all = report(&t, &Options::default());
    let [gap, _] = &all.gpus[0].gaps[..] else {
        panic!("{:?}", all.gpus[0].gaps.len());
    };
    assert!(gap.parts.len() > 500);
    let slices = live(&t, &[0, 6_000]);
    check(&slices[0].report);
    let kept = &slices[0].report.gpus[0].gaps[0];
    assert_eq!((kept.start, kept.end), (gap.start, gap.end));
    assert!(kept.parts.len() <= 100);
    let whole = kept
        .parts
        .iter()
        .filter(|part| part.what == "clock_nanosleep");
    assert!(whole.count() >= 10);
    let joined = kept
        .parts
        .iter()
        .find(|part| part.what.contains("short parts"));
    assert!(joined.is_some());
    // Sums know nothing of it.
    assert_eq!(causes(&slices[0].report, 0), causes(&all, 0));
}

#[test]
fn nothing_is_a_window_too() {
    let window = Window::of(&[]);
    assert!(window.report.gpus.is_empty() && window.points.is_empty());
    assert_eq!(Window::empty(us(7)).calls.end, us(7));
}
