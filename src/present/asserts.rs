//! What came out of assertions, as sentences: at the end of a report, and on stderr for who reads a log.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::analyse::assert::{Amount, Metric, Untold, Verdict};
use crate::present::page::{Page, Paint};
use crate::present::style::Style;
use crate::units::Count;

/// A section of the report; nothing without assertions.
pub fn section(out: &mut impl Write, verdicts: &[Verdict<'_>], style: &Style) -> io::Result<()> {
    if verdicts.is_empty() {
        return Ok(());
    }
    let mut page = Page::new(out, *style);
    page.blank()?;
    page.line(Paint::Heading, "Assertions")?;
    for verdict in verdicts {
        let (paint, label) = match verdict.holds() {
            Some(true) => (Paint::Plain, "  holds    "),
            Some(false) => (Paint::Warning, "  FAILED   "),
            None => (Paint::Warning, "  unknown  "),
        };
        let text = format!("{}: {}", verdict.assertion.text, found(verdict));
        page.labelled(paint, label, &text)?;
    }
    Ok(())
}

/// The line for stderr, without a newline; `None` when the assertion holds.
pub fn complaint(verdict: &Verdict<'_>) -> Option<String> {
    let what = match verdict.holds() {
        Some(true) => return None,
        Some(false) => "assertion failed",
        None => "assertion cannot be told",
    };
    let text = &verdict.assertion.text;
    Some(format!("{what}: {text}: {}", found(verdict)))
}

fn found(verdict: &Verdict<'_>) -> String {
    let gpu = verdict
        .gpu
        .map_or("the GPU".to_string(), |index| format!("GPU {index}"));
    let value = match verdict.value {
        Ok(value) => distinct(value, verdict.assertion.limit),
        Err(why) => return untold(why, &gpu),
    };
    let of_window = match verdict.value {
        Ok(Amount::Time(time)) if time == verdict.window => String::new(),
        Ok(_) | Err(_) => format!(" of {}", verdict.window),
    };
    match &verdict.assertion.metric {
        Metric::Idle => format!("{gpu} was idle {value}{of_window}"),
        Metric::Busy => format!("{gpu} was busy {value}{of_window}"),
        Metric::Cause(causes) => {
            let name = &causes.name;
            format!("{gpu} was idle by {name} {value}{of_window}")
        }
        Metric::Explained => format!("{value} of the idle time of {gpu} is explained"),
        Metric::LongestGap => format!("the longest gap of {gpu} was {value}"),
        Metric::Gaps => format!("{gpu} had {value} gaps"),
        Metric::Lost => format!("{value} events were lost"),
        Metric::GpuCoverage => format!("{value} of the launches came back as GPU records"),
    }
}

fn untold(why: Untold, gpu: &str) -> String {
    match why {
        Untold::NoGpu => "there is no GPU activity in this recording".to_string(),
        Untold::CallsOnly(pid) => format!("what a GPU did for process {pid} is not known"),
        Untold::NotUsed => format!("{gpu} was not used by what was recorded"),
        Untold::IdleUnknown => {
            format!("the idle time of {gpu} is unknown, as its records are not complete")
        }
        Untold::NoTime => format!("all that ran on {gpu} took no time"),
        Untold::NoLaunch => "no launch was seen".to_string(),
    }
}

/// With as many digits as it takes to see that it is not the limit.
fn distinct(value: Amount, limit: Amount) -> String {
    match (value, limit) {
        (Amount::Percent(value), Amount::Percent(limit)) => {
            let text = |digits: usize| format!("{value:.digits$} %");
            let differs = |digits: &usize| text(*digits) != format!("{limit:.0$} %", *digits);
            text((1..=6).find(differs).unwrap_or(1))
        }
        (Amount::Time(value), Amount::Time(limit)) if value != limit => {
            let (text, other) = (value.to_string(), limit.to_string());
            if text == other {
                format!("{} ns", Count(value.as_u64()))
            } else {
                text
            }
        }
        (Amount::Percent(percent), _) => format!("{percent:.1} %"),
        (Amount::Time(time), _) => time.to_string(),
        (Amount::Count(count), _) => Count(count).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::assert::{judge, Assertion};
    use crate::analyse::report::Report;
    use crate::present::sample;
    use crate::units::Nanos;

    fn complaints(text: &str, report: &Report) -> Vec<String> {
        let assertions: Vec<Assertion> = vec![text.parse().unwrap()];
        let verdicts = judge(&assertions, report, None);
        verdicts.iter().filter_map(complaint).collect()
    }

    #[test]
    fn a_complaint_says_what_was_asserted_and_what_was_found() {
        let report = sample::report();
        for (text, said) in [
            ("busy>99.7%", "GPU 0 was busy 38.7 % of 10.0 s"),
            ("gaps < 100", "GPU 0 had 151,234 gaps"),
            ("longest-gap<=50ms", "the longest gap of GPU 0 was 100 ms"),
        ] {
            let lines = complaints(text, &report);
            assert_eq!(lines[0], format!("assertion failed: {text}: {said}"));
        }
        let lines = complaints("cause(host.*)<1%", &report);
        assert!(lines[0].contains("GPU 0 was idle by host.* "), "{lines:?}");
        assert_eq!(complaints("busy>1%", &report), [""; 0]);
    }

    #[test]
    fn what_cannot_be_told_has_its_reason() {
        assert_eq!(
            complaints("idle<20%", &Report::default()),
            ["assertion cannot be told: idle<20%: there is no GPU activity in this recording"]
        );
        assert_eq!(
            complaints("idle<20%", &sample::unknowable()),
            ["assertion cannot be told: idle<20%: the idle time of GPU 0 is unknown, as its records are not complete"]
        );
    }

    #[test]
    fn a_value_next_to_its_limit_is_told_from_it() {
        let percent = |value, limit| distinct(Amount::Percent(value), Amount::Percent(limit));
        assert_eq!(percent(42.0, 20.0), "42.0 %");
        assert_eq!(percent(20.004, 20.0), "20.004 %");
        assert_eq!(percent(20.0, 20.0), "20.0 %");
        let time = |value, limit| distinct(Amount::Time(Nanos(value)), Amount::Time(Nanos(limit)));
        assert_eq!(time(50_000_001, 50_000_000), "50,000,001 ns");
        assert_eq!(time(50_000_000, 50_000_000), "50.0 ms");
    }
}
