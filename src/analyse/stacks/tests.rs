//! Stacks of small recordings, and that times are exact in every recording.

use proptest::prelude::*;

use super::*;
use crate::analyse::tests::story::*;
use crate::analyse::{self, report::Report};
use crate::event::*;
use crate::present::flame::label::{Ids, Labels};
use crate::present::flame::table::Table;
use crate::store::meta::{Meta, Summary};
use crate::store::tests::arbitrary;

impl Story {
    /// Ids of its own for stacks and frames: what is defined so far has lower ones.
    fn next_id(&self) -> u32 {
        u32::try_from(self.events.len()).unwrap() + 1_000
    }

    /// Frames leaf first: `function@file:line` of Python, `library!function`, `library!` without symbols.
    fn stack(&mut self, frames: &[&str], cut: Option<Cut>) -> CallStackId {
        let mut ids = Vec::new();
        for text in frames {
            let id = FrameId(self.next_id());
            let (frame, function) = match (text.split_once('@'), text.split_once('!')) {
                (Some((function, place)), _) => {
                    let (file, line) = place.split_once(':').unwrap();
                    let frame = crate::event::Frame::Python {
                        function: self.name(function),
                        file: self.name(file),
                        line: line.parse().unwrap(),
                    };
                    (frame, "")
                }
                (None, Some((module, function))) => {
                    let frame = crate::event::Frame::Native {
                        module: self.name(module),
                        build_id: NameId(0),
                        address: 0x10,
                    };
                    (frame, function)
                }
                (None, None) => panic!("{text}"),
            };
            self.events.push(Event::Define(Define::Frame { id, frame }));
            if !function.is_empty() {
                let functions: Vec<Function> = function
                    .split('+')
                    .map(|f| Function {
                        name: self.name(f),
                        file: NameId(0),
                        line: 0,
                    })
                    .collect();
                self.events.push(Event::Define(Define::Functions {
                    frame: id,
                    functions,
                }));
            }
            ids.push(id);
        }
        let id = CallStackId(self.next_id());
        self.events.push(Event::Define(Define::CallStack {
            id,
            frames: ids,
            cut,
        }));
        id
    }

    fn sampled(mut self, at: i64, tid: u32, kind: SampleKind, frames: &[&str]) -> Self {
        let user = self.stack(frames, None);
        self.event(Event::Sample(Sample {
            ts: us(at),
            tid: Tid(tid),
            kind,
            kernel: StackId(0),
            user,
            gil: None,
            collects: false,
        }))
    }

    fn cpu_sample(self, at: i64, tid: u32, frames: &[&str]) -> Self {
        let period = Nanos::from_micros(100);
        self.sampled(at, tid, SampleKind::Cpu { period }, frames)
    }

    fn launch_sample(self, at: i64, frames: &[&str], one_in: u32) -> Self {
        self.sampled(at, MAIN, SampleKind::Launch { one_in }, frames)
    }

    /// Folded lines of stacks that hold `part`, without what they all begin with.
    fn folded(&self, options: &Options) -> Vec<String> {
        let t = self.built();
        let flame = fold(&t, options);
        let table = Table::of(&flame.folded, &Labels::new(&t, Ids::Shown));
        let lines = table.lines();
        lines
            .map(|line| line.replace("python3 (pid 100);python3 (tid 100);", "MAIN;"))
            .filter(|line| line.contains("MAIN") || line.starts_with("GPU"))
            .collect()
    }
}

fn mode(mode: Mode) -> Options {
    Options {
        mode,
        ..Options::default()
    }
}

/// MAIN runs all the time but from 400 to 600.
fn running() -> Story {
    let mut story = timeline();
    story.end = 1_000;
    story.main_sleeps((400, 600), S, Some(FUTEX), Some(THREAD))
}

#[test]
fn running_time_goes_to_the_nearest_sample() {
    let story = running()
        .cpu_sample(100, MAIN, &["app!a", "app!main"])
        .cpu_sample(300, MAIN, &["app!b", "app!main"])
        .cpu_sample(900, MAIN, &["app!a", "app!main"]);
    assert_eq!(
        story.folded(&mode(Mode::Cpu)),
        ["MAIN;main;a 600000", "MAIN;main;b 200000"],
        "the middle of 300 and 900 is where it runs again"
    );
}

#[test]
fn a_thread_that_ran_without_a_sample_says_so() {
    assert_eq!(
        running().folded(&mode(Mode::Cpu)),
        ["MAIN;[no sample] 800000"]
    );
}

#[test]
fn a_window_has_its_own_samples_only() {
    let story = running().cpu_sample(100, MAIN, &["app!a"]);
    let options = |from, to| Options {
        from: Some(Nanos::from_micros(from)),
        to: Some(Nanos::from_micros(to)),
        ..mode(Mode::Cpu)
    };
    assert_eq!(story.folded(&options(50, 150)), ["MAIN;a 100000"]);
    assert_eq!(
        story.folded(&options(150, 500)),
        ["MAIN;[no sample] 250000"]
    );
    assert!(story.folded(&options(450, 550)).is_empty());
    assert!(story.folded(&options(5_000, 6_000)).is_empty());
}

#[test]
fn kinds_of_frames_are_told_apart() {
    let mut story = running();
    let user = story.stack(
        &[
            "/usr/lib/libcuda.so.1!",
            "/lib/libcudart.so.12!cudaLaunchKernel",
            "app!inner+outer",
            "load@/src/a.py:7",
        ],
        Some(Cut::NoTable),
    );
    let kernel = StackId(7_000);
    let frames = vec![story.name("vfs_read")];
    let story = story
        .event(Event::Define(Define::Stack { id: kernel, frames }))
        .event(Event::Sample(Sample {
            ts: us(100),
            tid: Tid(MAIN),
            kind: SampleKind::Cpu {
                period: Nanos::ZERO,
            },
            kernel,
            user,
            gil: None,
            collects: false,
        }));
    assert_eq!(
        story.folded(&mode(Mode::Cpu)),
        ["MAIN;[cut: no unwind table];load (a.py:7);outer;inner_[i];cudaLaunchKernel;[libcuda.so.1];vfs_read_[k] 800000"]
    );
    let addresses = Options {
        addresses: true,
        ..mode(Mode::Cpu)
    };
    assert!(story.folded(&addresses)[0].contains(";libcuda.so.1+0x10;"));
    let t = story.built();
    let flame = fold(&t, &mode(Mode::Cpu));
    let stacks: Vec<_> = flame.folded.stacks().map(|(frames, _)| frames).collect();
    let kinds: Vec<_> = stacks
        .iter()
        .find(|s| s.len() == 9)
        .unwrap()
        .iter()
        .map(|f| f.kind())
        .collect();
    use frame::Kind::*;
    assert_eq!(
        kinds,
        [Base, Base, Unknown, Python, Native, Native, Cuda, Cuda, Kernel]
    );
}

#[test]
fn waits_have_the_stack_of_the_sleeper_and_that_of_its_waker() {
    let off = SampleKind::OffCpu { since: us(400) };
    let woke = SampleKind::Waker {
        wakee: Tid(MAIN),
        since: us(400),
    };
    let frames = ["futex_do_wait", "do_futex"];
    let story = running()
        .wait(MAIN, (400, 600), S, Some(FUTEX), &frames, "")
        .sampled(600, MAIN, off, &["libc!wait", "app!main"])
        .sampled(600, THREAD, woke, &["libc!signal", "app!worker"]);
    let sleeper = "MAIN;main;wait;do_futex_[k];futex_do_wait_[k];[blocked: futex]";
    assert_eq!(
        story.folded(&mode(Mode::OffCpu)),
        [format!("{sleeper} 200000")]
    );
    let wakers = Options {
        wakers: true,
        ..mode(Mode::OffCpu)
    };
    assert_eq!(
        story.folded(&wakers),
        [format!(
            "{sleeper};-- woken by helper (pid 100, tid 101) --;signal;worker 200000"
        )]
    );
}

#[test]
fn waits_without_a_stack_say_why() {
    let mut story = running();
    story.meta.wait_threshold_ns = 250_000;
    assert_eq!(
        story.folded(&mode(Mode::OffCpu)),
        ["MAIN;[short waits];[blocked: futex] 200000"]
    );
    story.meta.wait_threshold_ns = 100_000;
    assert_eq!(
        story.folded(&mode(Mode::OffCpu)),
        ["MAIN;[no stack: none was taken];[blocked: futex] 200000"]
    );
    story.end = 500;
    story
        .events
        .retain(|e| e.ts().is_none_or(|ts| ts < us(500)));
    assert_eq!(
        story.folded(&mode(Mode::OffCpu)),
        ["MAIN;[no stack: it had not ended];[blocked: futex] 100000"]
    );
}

#[test]
fn waiting_for_a_cpu_after_a_wait_is_part_of_the_same_stack() {
    let mut story = timeline();
    story.end = 1_000;
    let story = story
        .sleeps(400, 1, MAIN, S, Some(FUTEX))
        .wakes(600, THREAD, MAIN)
        .runs(700, 1, MAIN)
        .sampled(
            700,
            MAIN,
            SampleKind::OffCpu { since: us(400) },
            &["app!main"],
        );
    assert_eq!(
        story.folded(&mode(Mode::OffCpu)),
        [
            "MAIN;main;[blocked: futex] 200000",
            "MAIN;main;[runnable: woken] 100000"
        ]
    );
}

#[test]
fn device_time_goes_to_the_stack_of_its_own_launch() {
    let story = running()
        .kernel((100, 110), (110, 210))
        .launch_sample(105, &["libcuda.so.1!cuLaunchKernel", "step@a.py:3"], 10)
        .kernel((200, 210), (210, 215))
        .cpu_sample(205, MAIN, &["app!other"]);
    assert_eq!(
        story.folded(&mode(Mode::Gpu)),
        [
            "GPU 0 (no name);MAIN;other;kernel_[g] 5000",
            "GPU 0 (no name);MAIN;step (a.py:3);cuLaunchKernel;kernel_[g] 100000"
        ]
    );
}

/// The probe is at the driver's entry, and the record of a direct driver call begins after it.
#[test]
fn a_stack_just_before_the_record_of_a_launch_is_that_launch() {
    let story = running()
        .kernel((100, 110), (110, 111))
        .launch_sample(112, &["app!a"], 1)
        .kernel((140, 150), (150, 250));
    assert_eq!(
        story.folded(&mode(Mode::Gpu)),
        ["GPU 0 (no name);MAIN;a;kernel_[g] 101000"]
    );
    let launches = fold(&story.built(), &mode(Mode::Gpu)).launches;
    let us = Nanos::from_micros;
    assert_eq!((launches.exact, launches.estimated), (us(100), us(1)));
}

#[test]
fn launches_that_were_not_sampled_are_shared_out_in_proportion() {
    let story = running()
        .kernel((100, 110), (110, 111))
        .launch_sample(105, &["app!a"], 3)
        .kernel((120, 130), (130, 131))
        .launch_sample(125, &["app!b"], 1)
        .kernel((140, 150), (150, 250));
    let t = story.built();
    let launches = fold(&t, &mode(Mode::Gpu)).launches;
    let us = Nanos::from_micros;
    assert_eq!(
        (launches.exact, launches.estimated, launches.unknown),
        (us(2), us(100), us(0))
    );
    assert_eq!(
        story.folded(&mode(Mode::Gpu)),
        [
            "GPU 0 (no name);MAIN;a;kernel_[g] 76000",
            "GPU 0 (no name);MAIN;b;kernel_[g] 26000"
        ]
    );
    // Of another kernel nothing is known.
    let story = running()
        .kernel((100, 110), (110, 111))
        .launch_sample(105, &["app!a"], 3)
        .copy(
            CopyKind::HostToDevice,
            MemoryKind::Pinned,
            4096,
            (120, 130),
            (130, 140),
        );
    assert_eq!(
        story.folded(&mode(Mode::Gpu)),
        [
            "GPU 0 (no name);MAIN;[launch not sampled];memcpy HtoD_[g] 10000",
            "GPU 0 (no name);MAIN;a;kernel_[g] 1000"
        ]
    );
}

#[test]
fn idle_time_stands_on_its_cause_and_has_the_stack_of_that_time() {
    let story = timeline()
        .kernel((0, 10), (10, 100))
        .cpu_sample(500, MAIN, &["load@a.py:7", "main@a.py:1"])
        .sleeps(1_000, 1, MAIN, S, Some(NANOSLEEP))
        .timer_wakes(3_000, MAIN)
        .runs(3_000, 1, MAIN)
        .sampled(
            3_000,
            MAIN,
            SampleKind::OffCpu { since: us(1_000) },
            &["libc!nanosleep", "main@a.py:2"],
        )
        .kernel((3_100, 3_110), (3_115, 3_200));
    let folded = story.folded(&Options {
        exact: true,
        ..Options::default()
    });
    assert_eq!(
        folded,
        [
            "GPU 0 (no name);gpu.launch-latency 5000",
            "GPU 0 (no name);host.compute;MAIN;[no sample] 100000",
            "GPU 0 (no name);host.compute;MAIN;main (a.py:1);load (a.py:7) 900000",
            "GPU 0 (no name);host.launch-bound;MAIN;[no sample] 10000",
            "GPU 0 (no name);host.sleep;MAIN;main (a.py:2);nanosleep;[blocked: sleep] 2000000",
        ]
    );
}

#[test]
fn idle_time_without_a_sample_is_shared_out_only_when_asked() {
    let mut story = timeline();
    for gap in 0..10 {
        let at = gap * 1_000;
        story = story.kernel((at, at + 10), (at + 10, at + 100));
    }
    let story = story
        .cpu_sample(1_500, MAIN, &["app!a"])
        .cpu_sample(3_500, MAIN, &["app!b"])
        .cpu_sample(3_700, MAIN, &["app!b"]);
    let compute = |options: &Options| -> Vec<String> {
        let lines = story.folded(options).into_iter();
        lines
            .filter_map(|l| Some(l.split_once("host.compute;MAIN;")?.1.to_string()))
            .collect()
    };
    assert_eq!(
        compute(&Options {
            exact: true,
            ..Options::default()
        }),
        ["[no sample] 6300000", "a 900000", "b 900000"]
    );
    let options = Options::default();
    assert_eq!(compute(&options), ["a 3000000", "b 5100000"]);
    let flame = fold(&story.built(), &options);
    let ms = |n| Nanos::from_micros(n);
    assert_eq!((flame.unsampled, flame.estimated), (ms(6_390), ms(6_300)));
}

#[test]
fn the_thread_that_took_the_cpu_is_named() {
    let story = timeline()
        .kernel((0, 10), (10, 100))
        .switch(200, 1, MAIN, HOG)
        .switch(2_200, 1, HOG, MAIN)
        .kernel((2_300, 2_310), (2_315, 2_400));
    let folded = story.folded(&Options::default());
    assert!(
        folded
            .iter()
            .any(|l| l.ends_with("[runnable: preempted];-- CPU taken by hog (pid 200) -- 2000000")),
        "{folded:#?}"
    );
}

#[test]
fn a_thread_keeps_its_name_and_a_reused_id_is_another_thread() {
    let story = running()
        .sleeps(700, 1, MAIN, S, None)
        .runs(700, 2, CHILD)
        .event(Event::Exit(Exit {
            ts: us(800),
            tid: Tid(CHILD),
            pid: Pid(300),
            code: 0,
        }))
        .born(850, CHILD, 300, MAIN, "child")
        .runs(900, 2, CHILD);
    let t = story.built();
    let flame = fold(&t, &mode(Mode::Cpu));
    let table = Table::of(&flame.folded, &Labels::new(&t, Ids::Shown));
    let lines: Vec<_> = table.lines().filter(|l| l.contains("child")).collect();
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines.iter().all(|l| l.contains("(tid 300, born at ")));
    assert!(lines.iter().all(|l| l.ends_with(" 100000")), "{lines:#?}");
}

/// What the modes must add up to, from the report where it has it.
fn expected(t: &Timeline, report: &Report, mode: Mode) -> u128 {
    let sum = |list: Vec<Nanos>| list.iter().map(|n| u128::from(n.0)).sum::<u128>();
    let threads = &report.threads;
    let run = || sum(threads.iter().map(|t| t.run).collect());
    let off = || sum(threads.iter().flat_map(|t| [t.runq, t.blocked]).collect());
    let ops = || {
        let ops = t.gpu().devices().iter().flat_map(|g| &g.ops);
        let sound = ops.filter(|op| !op.outlasts_followers());
        let clipped = |op: &Op| op.end.min(t.end()).saturating_sub(op.start.max(t.start()));
        sum(sound.map(clipped).collect())
    };
    match mode {
        Mode::Idle => sum(report.gpus.iter().filter_map(|g| g.idle).collect()),
        Mode::Mixed => run() + off() + ops(),
        Mode::Cpu => run(),
        Mode::OffCpu => off(),
        Mode::Gpu => ops(),
    }
}

/// Before or amid what [`arbitrary`] makes.
fn start() -> impl Strategy<Value = u64> {
    prop_oneof![1..600u64, 999_999_000..1_000_500_000u64]
}

const MODES: [Mode; 5] = [Mode::Idle, Mode::Mixed, Mode::Cpu, Mode::OffCpu, Mode::Gpu];

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Check that no nanosecond is lost or counted twice, whatever was recorded.
    #[test]
    fn times_add_up(events in arbitrary::events(150), start in start(), len in 0..3_000_000u64) {
        let mut t = Timeline::new(&Meta {
            start_mono_ns: start,
            ..Meta::default()
        });
        events.iter().for_each(|e| t.push(e));
        t.finish(Some(&Summary {
            end_mono_ns: start + len,
            ..Summary::default()
        }));
        let report = analyse::report(&t, &analyse::Options::default());
        for mode in MODES {
            // A device can have had operations long before; its window is then not the recording.
            let in_window = |g: &analyse::report::Gpu| g.window_start >= t.start() && g.window_end <= t.end();
            if mode == Mode::Idle && !report.gpus.iter().all(in_window) {
                continue;
            }
            for more in [false, true] {
                let options = Options { mode, wakers: more, exact: more, ..Options::default() };
                prop_assert_eq!(fold(&t, &options).folded.total(), expected(&t, &report, mode), "{:?}", mode);
            }
        }
    }

    /// Check that two windows side by side have the time of both.
    #[test]
    fn windows_add_up(events in arbitrary::events(150), start in start(), len in 2..3_000_000u64) {
        let mut t = Timeline::new(&Meta {
            start_mono_ns: start,
            ..Meta::default()
        });
        events.iter().for_each(|e| t.push(e));
        t.finish(Some(&Summary {
            end_mono_ns: start + len,
            ..Summary::default()
        }));
        for mode in MODES {
            let part = |from, to| {
                let options = Options { mode, from, to, ..Options::default() };
                fold(&t, &options).folded.total()
            };
            let middle = Some(Nanos(len / 2));
            prop_assert_eq!(part(None, middle) + part(middle, None), part(None, None), "{:?}", mode);
        }
    }
}
