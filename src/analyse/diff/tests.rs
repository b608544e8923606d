use proptest::prelude::*;

use super::*;
use crate::analyse::diff::noise::BLOCKS;
use crate::analyse::report::Quality;
use crate::event::Pid;
use crate::store::meta::{GpuSource, Meta, Summary};

const SECOND: u64 = 1_000_000_000;

/// The same in each block, but for something up and down.
fn even(each: u64, wobble: u64) -> Series {
    let mut series = Series::default();
    for (i, n) in series.0.iter_mut().enumerate() {
        // Without a pattern that a sum of neighbours would hide or show.
        let down = (i * 7 + i / 3) % 5 < 2;
        *n = if down {
            each - wobble
        } else {
            each + wobble * 2 / 3
        };
    }
    series
}

/// A GPU that is idle `lock` + `sleep` ms of each block of 100 ms and does `operations` in it.
fn gpu(lock: u64, sleep: u64, operations: u64) -> GpuSide {
    let ms = |ms: u64| even(ms * 1_000_000, ms * 100_000);
    let (lock, sleep) = (ms(lock), ms(sleep));
    let mut idle = lock.clone();
    for (sum, n) in idle.0.iter_mut().zip(sleep.0) {
        *sum += n;
    }
    let cause = |cause, time| CauseSide {
        cause,
        time,
        by: None,
    };
    GpuSide {
        index: 0,
        name: "H200".to_string(),
        uuid: "GPU-1".to_string(),
        is_told: true,
        time: even(SECOND / 10, 0),
        idle,
        causes: vec![cause(Cause::Lock, lock), cause(Cause::Sleep, sleep)],
        operations: even(operations, operations / 20),
        step: None,
    }
}

fn side(gpus: Vec<GpuSide>) -> Side {
    Side {
        gpus,
        ..Side::default()
    }
}

fn timed(count: u64, each: u64) -> Timed {
    Timed {
        count: even(count, 0),
        time: even(count * each, count * each / 50),
    }
}

#[test]
fn the_same_twice_has_not_changed() {
    let one = side(vec![gpu(10, 2, 1_000)]);
    let diff = compare(&one, &one);
    assert_eq!(diff.changed(), Some(false));
    let idle = diff.gpus[0].idle;
    assert_eq!(idle.change(), Some(0.0));
    assert!(idle.noise.unwrap() >= LEAST_SHARE);
}

#[test]
fn a_change_beyond_noise_is_told_with_its_cause_first() {
    let (a, b) = (side(vec![gpu(10, 20, 1_000)]), side(vec![gpu(40, 15, 700)]));
    let diff = compare(&a, &b);
    let gpu = &diff.gpus[0];
    assert_eq!(gpu.idle.changed(), Some(true));
    let change = gpu.idle.change().unwrap();
    assert!((change - 0.25).abs() < gpu.idle.noise.unwrap(), "{gpu:?}");
    // What has grown, then what has shrunk.
    let order: Vec<Cause> = gpu.causes.iter().map(|row| row.cause).collect();
    assert_eq!(order, [Cause::Lock, Cause::Sleep]);
    assert_eq!(gpu.causes[0].share.changed(), Some(true));
    // Parts add up to the whole, and the other way round the change is the opposite.
    let sum: f64 = gpu.causes.iter().filter_map(|row| row.share.change()).sum();
    assert!((sum - change).abs() < 1e-9);
    let back = compare(&b, &a);
    assert_eq!(back.gpus[0].idle.change(), Some(-change));
    assert_eq!(back.gpus[0].causes[0].cause, Cause::Sleep);
}

#[test]
fn recordings_of_different_length_compare() {
    let short = gpu(10, 2, 1_000);
    let mut long = short.clone();
    for series in [&mut long.time, &mut long.idle, &mut long.operations] {
        series.0.iter_mut().for_each(|n| *n *= 10);
    }
    for cause in &mut long.causes {
        cause.time.0.iter_mut().for_each(|n| *n *= 10);
    }
    let diff = compare(&side(vec![short]), &side(vec![long]));
    assert_eq!(diff.changed(), Some(false));
    assert!(diff.gpus[0].idle.change().unwrap().abs() < 1e-9);
    assert!(diff.gpus[0].work.time.change().unwrap().abs() < 1e-3);
}

#[test]
fn time_for_the_same_work_tells_idle_from_busy() {
    // Kernels take twice as long, and the host does what it did.
    let mut a = gpu(10, 0, 900);
    let mut b = gpu(5, 0, 450);
    (a.step, b.step) = (Some(90), Some(90));
    let diff = compare(&side(vec![a]), &side(vec![b]));
    let step = diff.gpus[0].step.unwrap();
    let ms = |value: Option<f64>| (value.unwrap() / 1e6 * 10.0).round() / 10.0;
    assert_eq!((ms(step.work.time.a), ms(step.work.time.b)), (10.0, 20.0));
    assert_eq!((ms(step.work.idle.a), ms(step.work.idle.b)), (1.0, 1.0));
    assert_eq!(step.work.time.changed(), Some(true));
    assert_eq!(step.work.busy.changed(), Some(true));
    assert_eq!(step.work.idle.changed(), Some(false));
    // And the share of idle time has halved.
    assert_eq!(diff.gpus[0].idle.changed(), Some(true));
}

#[test]
fn a_layer_is_not_compared_with_a_step() {
    let with = |step| {
        side(vec![GpuSide {
            step: Some(step),
            ..gpu(10, 0, 1_000)
        }])
    };
    let step = |a, b| compare(&with(a), &with(b)).gpus[0].step;
    assert!(step(90, 100).is_some() && step(100, 390).is_some());
    assert!(step(100, 400).is_none() && step(400, 100).is_none());
}

/// Check that nothing is claimed where it cannot be known.
#[test]
fn too_little_or_nothing_known_claims_no_change() {
    let whole = gpu(10, 2, 1_000);
    let untold = GpuSide {
        is_told: false,
        causes: vec![],
        ..gpu(90, 2, 1_000)
    };
    let diff = compare(&side(vec![whole.clone()]), &side(vec![untold]));
    assert_eq!(diff.gpus[0].idle.b, None);
    assert_eq!(diff.gpus[0].idle.changed(), None);
    // How fast operations come is known all the same.
    assert_eq!(diff.gpus[0].work.time.changed(), Some(false));
    assert_eq!(diff.gpus[0].work.idle.changed(), None);
    assert_eq!(diff.changed(), Some(false));
    let few = gpu(90, 2, 1);
    let diff = compare(&side(vec![whole.clone()]), &side(vec![few]));
    assert!(diff.gpus[0].idle.b.is_some());
    assert_eq!((diff.gpus[0].idle.noise, diff.changed()), (None, None));
    // That a call takes as long as before says nothing of the GPU.
    let with_call = |gpu: &GpuSide| Side {
        calls: BTreeMap::from([("cuLaunchKernel".to_string(), timed(100, 5_000))]),
        ..side(vec![gpu.clone()])
    };
    let diff = compare(&with_call(&whole), &with_call(&gpu(90, 2, 1)));
    assert_eq!(diff.calls[0].mean.changed(), Some(false));
    assert_eq!(diff.changed(), None);
    let long_steps = GpuSide {
        step: Some(16_000),
        ..gpu(90, 2, 1_000)
    };
    let diff = compare(&side(vec![whole]), &side(vec![long_steps]));
    assert_eq!(diff.changed(), None);
    assert_eq!(compare(&Side::default(), &Side::default()).changed(), None);
}

#[test]
fn kernels_that_changed_or_came_stand_first() {
    let kernels = |list: &[(&str, u64, u64)]| Side {
        kernels: (list.iter())
            .map(|(name, count, each)| (name.to_string(), timed(*count, *each)))
            .collect(),
        ..Side::default()
    };
    let a = kernels(&[
        ("big", 100, 9_000),
        ("same", 100, 90_000),
        ("small", 10, 1_000),
        ("gone", 2, 500),
    ]);
    let b = kernels(&[
        ("big", 100, 12_000),
        ("same", 100, 90_100),
        ("small", 10, 2_000),
        ("new", 50, 400_000),
    ]);
    let diff = compare(&a, &b);
    let names: Vec<&str> = diff.kernels.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["new", "big", "small", "gone", "same"]);
    let changed: Vec<Option<bool>> = diff.kernels.iter().map(|row| row.mean.changed()).collect();
    assert_eq!(changed, [None, Some(true), Some(true), None, Some(false)]);
    assert_eq!(
        (diff.kernels[0].mean.a, diff.kernels[0].count_b),
        (None, 50 * 32)
    );
}

#[test]
fn gpus_are_those_with_the_same_number() {
    let at = |index, lock| GpuSide {
        index,
        ..gpu(lock, 2, 1_000)
    };
    let a = side(vec![at(0, 10), at(2, 10)]);
    let b = side(vec![at(2, 40), at(3, 10)]);
    let diff = compare(&a, &b);
    assert_eq!(diff.gpus.len(), 1);
    assert_eq!(
        (diff.gpus[0].index, diff.gpus[0].idle.changed()),
        (2, Some(true))
    );
    let meta = Meta::default();
    let about = |side| About {
        meta: &meta,
        summary: None,
        side,
    };
    let said = remarks(about(&a), about(&b));
    assert_eq!(
        said,
        [
            "only A used GPU 0: it is not compared",
            "only B used GPU 3: it is not compared"
        ]
    );
}

#[test]
fn what_else_differs_is_said() {
    let quality = Quality {
        bpf_lost: 12,
        warnings: vec!["12 scheduling events were lost".to_string()],
        ..Quality::default()
    };
    let (a, b) = (
        side(vec![gpu(1, 1, 1_000)]),
        Side {
            quality,
            ..side(vec![GpuSide {
                name: "B200".to_string(),
                ..gpu(1, 1, 1)
            }])
        },
    );
    let meta = |host: &str, kernel: &str| Meta {
        host: host.to_string(),
        kernel: kernel.to_string(),
        targets: vec![Pid(1)],
        ..Meta::default()
    };
    let (meta_a, meta_b) = (meta("a", "6.1.0"), meta("b", "6.12.0"));
    let simulated = Summary {
        gpu_source: GpuSource::Simulated,
        ..Summary::default()
    };
    let about = |meta, summary, side| About {
        meta,
        summary: Some(summary),
        side,
    };
    let real = Summary::default();
    let said = remarks(about(&meta_a, &simulated, &a), about(&meta_b, &real, &b));
    assert_eq!(
        said,
        [
            "the GPU of A is simulated: its busy time is made up",
            "the models of GPU 0 differ: H200 and B200",
            "B: 12 scheduling events were lost",
            "B has 32 operations of GPU 0, too few to tell a change from noise: record at least 64",
            "the machines differ: a and b",
            "the kernels differ: 6.1.0 and 6.12.0",
        ]
    );
    let said = remarks(about(&meta_a, &real, &a), about(&meta_a, &real, &a));
    assert_eq!(said, [""; 0]);
    let other = side(vec![GpuSide {
        uuid: "GPU-2".to_string(),
        ..gpu(1, 1, 1_000)
    }]);
    let said = remarks(about(&meta_a, &real, &a), about(&meta_a, &real, &other));
    assert_eq!(said, ["GPU 0 is another card in B"]);
}

fn any_series() -> impl Strategy<Value = Series> {
    let uniform = prop::array::uniform32(0u64..1 << 40);
    prop_oneof![
        Just(Series::default()),
        uniform.prop_map(Series),
        any::<[u64; BLOCKS]>().prop_map(Series)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Check that any figures are compared, and that what is compared with itself has not changed.
    #[test]
    fn nothing_differs_from_itself(
        time in any_series(),
        idle in any_series(),
        operations in any_series(),
        step in prop::option::of(any::<u64>()),
        is_told in any::<bool>(),
    ) {
        let gpu = GpuSide {
            index: 0,
            name: String::new(),
            uuid: String::new(),
            is_told,
            time: time.clone(),
            idle: idle.clone(),
            causes: vec![CauseSide { cause: Cause::Gil, time: idle, by: None }],
            operations,
            step,
        };
        let timed = Timed { count: time.clone(), time };
        let named = |name: &str| BTreeMap::from([(name.to_string(), timed.clone())]);
        let one = Side { gpus: vec![gpu], kernels: named("k"), calls: named("c"), ..Side::default() };
        prop_assert_ne!(compare(&one, &one).changed(), Some(true));
    }
}
