use proptest::prelude::*;

use super::*;
use crate::analyse::report::{CallTimes, Caller, CauseRow, Quality, ThreadRef};
use crate::event::Tid;

fn parsed(text: &str) -> Assertion {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refused(text: &str) -> String {
    let parsed: Result<Assertion, String> = text.parse();
    parsed.unwrap_err()
}

fn row(cause: Cause, total: u64) -> CauseRow {
    CauseRow {
        cause,
        total: Nanos(total),
        share: 0.0,
        gaps: 1,
        by: vec![],
        evidence: vec![],
    }
}

/// Idle for 400 of 1,000 ns.
fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        name: String::new(),
        uuid: String::new(),
        window_start: Nanos(0),
        window_end: Nanos(1_000),
        busy: Some(Nanos(600)),
        idle: Some(Nanos(400)),
        idle_explained: Some(0.75),
        busy_kernel: Nanos(600),
        busy_memcpy: Nanos::ZERO,
        busy_memset: Nanos::ZERO,
        operations: 9,
        startup: Nanos::ZERO,
        drain: Nanos::ZERO,
        usual_lead: None,
        causes: vec![
            row(Cause::Throttled, 300),
            row(Cause::Unknown, 60),
            row(Cause::UnknownMeasurement, 40),
        ],
        gap_count: 7,
        longest_gap: Nanos(120),
        gaps: vec![],
    }
}

fn report(gpus: Vec<Gpu>) -> Report {
    Report {
        gpus,
        quality: Quality {
            bpf_lost: 3,
            cupti_lost: 2,
            gpu_coverage: Some(0.995),
            ..Quality::default()
        },
        ..Report::default()
    }
}

/// What each GPU, or the recording, says to one assertion.
fn holds(text: &str, report: &Report) -> Vec<Option<bool>> {
    let assertions = [parsed(text)];
    let verdicts = judge(&assertions, report, None);
    verdicts.iter().map(Verdict::holds).collect()
}

#[test]
fn every_metric_is_measured() {
    let report = report(vec![gpu(0)]);
    for text in [
        "idle<40.1%",
        "idle<=40%",
        "idle >= 40 %",
        "idle<401ns",
        "busy>59.9%",
        "busy>=600ns",
        "explained>=75%",
        "cause(host.throttled)<=30%",
        "cause( host.throttled ) < 301ns",
        "cause(host.*)>=30%",
        "cause(gpu.*)<=0%",
        "cause(unknown)<=6%",
        "cause(unknown.measurement)<=4%",
        "cause(unknown.*)>=10%",
        "longest-gap<=120ns",
        "gaps<=7",
        "lost<6",
        "gpu-coverage>=99.5%",
    ] {
        assert_eq!(holds(text, &report), [Some(true)], "{text}");
    }
    for text in [
        "idle<40%",
        "idle>400ns",
        "busy>60%",
        "explained>75%",
        "cause(host.*)>30%",
        "cause(unknown.*)<10%",
        "longest-gap<120ns",
        "gaps<7",
        "lost<=4",
        "gpu-coverage>99.5%",
    ] {
        assert_eq!(holds(text, &report), [Some(false)], "{text}");
    }
}

#[test]
fn it_must_hold_for_every_gpu_that_was_used() {
    let mut busy = gpu(1);
    (busy.busy, busy.idle) = (Some(Nanos(950)), Some(Nanos(50)));
    let unused = Gpu {
        operations: 0,
        gap_count: 0,
        busy: Some(Nanos::ZERO),
        idle: Some(Nanos::ZERO),
        ..gpu(2)
    };
    let all = report(vec![gpu(0), busy, unused.clone()]);
    assert_eq!(holds("idle<20%", &all), [Some(false), Some(true)]);
    // What is about the recording is said once.
    assert_eq!(holds("lost<=5", &all), [Some(true)]);
    let asked = [parsed("idle<20%")];
    let verdicts = judge(&asked, &report(vec![unused.clone()]), Some(2));
    assert_eq!(verdicts[0].value, Err(Untold::NotUsed));
    assert_eq!(holds("idle<20%", &report(vec![unused])), [None]);
}

/// Check that no gate opens because nothing is known.
#[test]
fn what_cannot_be_told_neither_holds_nor_fails() {
    let blind = Gpu {
        busy: None,
        idle: None,
        idle_explained: None,
        causes: vec![],
        ..gpu(0)
    };
    let instant = Gpu {
        busy: Some(Nanos::ZERO),
        idle: Some(Nanos::ZERO),
        ..gpu(0)
    };
    for text in [
        "idle<=100%",
        "idle>=0%",
        "busy<=100%",
        "cause(host.*)<=100%",
    ] {
        assert_eq!(holds(text, &report(vec![])), [None], "{text}");
        assert_eq!(holds(text, &report(vec![blind.clone()])), [None], "{text}");
        assert_eq!(
            holds(text, &report(vec![instant.clone()])),
            [None],
            "{text}"
        );
    }
    for text in ["explained>=0%", "longest-gap<9h", "gaps<9"] {
        assert_eq!(holds(text, &report(vec![])), [None], "{text}");
        assert_eq!(holds(text, &report(vec![blind.clone()])), [None], "{text}");
    }
    assert_eq!(holds("gpu-coverage>=0%", &Report::default()), [None]);
    assert_eq!(holds("lost<1", &Report::default()), [Some(true)]);
}

/// Check that a rank that CUPTI did not record is not passed over for one that it did.
#[test]
fn a_process_of_which_only_calls_are_known_opens_no_gate() {
    let mut report = report(vec![gpu(0)]);
    report.host_sides.push(HostSide {
        pid: Pid(9),
        comm: String::new(),
        reason: String::new(),
        from: Nanos::ZERO,
        watched: Nanos(1_000),
        callers: vec![Caller {
            who: ThreadRef {
                pid: Pid(9),
                tid: Tid(9),
                comm: String::new(),
            },
            calls: 1,
            launches: 1,
            times: CallTimes::default(),
        }],
        pauses: vec![],
    });
    assert_eq!(holds("idle<=50%", &report), [None, Some(true)]);
    assert_eq!(holds("lost<10", &report), [Some(true)]);
    let asked = [parsed("idle<=50%")];
    let verdicts = judge(&asked, &report, Some(0));
    assert_eq!(verdicts.len(), 1);
}

#[test]
fn what_cannot_be_meant_is_refused_with_what_could_be() {
    for (text, hint) in [
        ("idle", "write what, <"),
        ("", "write what, <"),
        ("<20%", "one of idle, busy"),
        ("idel<20%", "did you mean idle?"),
        ("wattage<20%", "there are idle, busy"),
        ("idle==20%", "'==' is none of <"),
        ("idle=<20%", "'=<' is none of <"),
        ("idle<20", "write it as 20% or 50ms"),
        ("idle<", "write it as 20% or 50ms"),
        ("idle<101%", "at most 100%"),
        ("explained>101%", "at most 100%"),
        ("explained>5ms", "write it as 20%"),
        ("explained>nan%", "write it as 20%"),
        ("gpu-coverage>-1%", "write it as 20%"),
        ("longest-gap<20%", "is not a duration"),
        ("gaps<20%", "is not a number"),
        ("lost<-1", "is not a number"),
        ("host.throttled<1%", "cause(host.throttled)"),
        ("cause(host.throttled<1%", "write cause(ID)"),
        ("cause(host.trottled)<1%", "did you mean 'host.throttled'?"),
        ("cause(preempted)<1%", "did you mean 'host.preempted'?"),
        ("cause(quux)<1%", "`man gdiag` lists them"),
        ("cause(quux.*)<1%", "`man gdiag` lists them"),
        ("cause(.*)<1%", "`man gdiag` lists them"),
        ("cause(*)<1%", "`man gdiag` lists them"),
        ("cause()<1%", "`man gdiag` lists them"),
    ] {
        let message = refused(text);
        assert!(message.contains(hint), "{text}: {message}");
        assert!(
            !message.contains('\n') && !message.ends_with('.'),
            "{message}"
        );
    }
}

fn any_metric() -> impl Strategy<Value = (String, bool, bool, bool)> {
    // Name; whether it can be compared with a share, a duration, a count.
    let cause = prop::sample::select(Cause::ALL.to_vec())
        .prop_map(|cause| (format!("cause({})", cause.id()), true, true, false));
    let other = prop::sample::select(vec![
        ("idle", true, true, false),
        ("busy", true, true, false),
        ("explained", true, false, false),
        ("longest-gap", false, true, false),
        ("gaps", false, false, true),
        ("lost", false, false, true),
        ("gpu-coverage", true, false, false),
    ])
    .prop_map(|(name, share, time, count)| (name.to_string(), share, time, count));
    prop_oneof![cause, other]
}

proptest! {
    /// Check that each metric takes the units that make sense for it, with blanks or without, and no other.
    #[test]
    fn units_are_those_of_the_metric(
        (name, share, time, count) in any_metric(),
        op in prop::sample::select(vec![("<", Op::Less), ("<=", Op::AtMost), (">", Op::More), (">=", Op::AtLeast)]),
        blank in prop::sample::select(vec!["", " ", "\t "]),
        number in 0u64..=100,
    ) {
        for (unit, is_allowed, amount) in [
            ("%", share, Amount::Percent(number as f64)),
            ("ms", time, Amount::Time(Nanos::from_millis(number))),
            ("", count, Amount::Count(number)),
        ] {
            let text = format!("{blank}{name}{blank}{}{blank}{number}{unit}{blank}", op.0);
            let read: Result<Assertion, String> = text.parse();
            prop_assert_eq!(read.is_ok(), is_allowed, "{} {:?}", &text, &read);
            if let Ok(read) = read {
                prop_assert_eq!(&read.text, text.trim());
                prop_assert_eq!((read.op, read.limit), (op.1, amount));
            }
        }
    }

    #[test]
    fn nothing_typed_makes_it_panic(text in "\\PC*", metric in "(idle|cause\\(|lost)?[<>=]{0,3}[0-9.%a-z]*") {
        let _ = text.parse::<Assertion>();
        let _ = metric.parse::<Assertion>();
    }

    /// Check that an assertion and its opposite are never both right.
    #[test]
    fn an_assertion_and_its_opposite_differ(idle in 0u64..=1_000, limit in 0u64..=100) {
        let mut one = gpu(0);
        (one.busy, one.idle) = (Some(Nanos(1_000 - idle)), Some(Nanos(idle)));
        let report = report(vec![one]);
        let less = holds(&format!("idle<{limit}%"), &report);
        let at_least = holds(&format!("idle>={limit}%"), &report);
        prop_assert_eq!(&less, &[Some(idle < limit * 10)]);
        prop_assert_eq!(at_least, [less[0].map(|held| !held)]);
    }
}
