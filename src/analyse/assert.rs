//! Claims about a report that a script makes, such as `idle<20%`, and whether they hold.
//!
//! A gate must never open because something is not known: what cannot be told is a verdict of its own.
//! The grammar is METRIC OP VALUE; a manual page explains it, gdiag-report(1).
#![forbid(unsafe_code)]

use std::str::FromStr;

use crate::analyse::cause::Cause;
use crate::analyse::report::{Gpu, HostSide, Report};
use crate::event::Pid;
use crate::units::Nanos;

/// A claim, as it was written and as it was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    pub text: String,
    pub metric: Metric,
    pub op: Op,
    pub limit: Amount,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    Idle,
    Busy,
    /// Share of idle time with a named cause.
    Explained,
    /// Idle time of one cause, or of a family of them.
    Cause(Causes),
    LongestGap,
    Gaps,
    /// Events lost by anybody.
    Lost,
    GpuCoverage,
}

/// As named in `cause(NAME)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Causes {
    pub name: String,
    list: Vec<Cause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Less,
    AtMost,
    More,
    AtLeast,
}

/// A measured value, or what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// 0 to 100, as people write it, so that a limit of 0.1 % is exactly that.
    Percent(f64),
    Time(Nanos),
    Count(u64),
}

/// What came out of an assertion, for one GPU or for the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict<'a> {
    pub assertion: &'a Assertion,
    /// `None`: it is about the recording, or there is no GPU that it could be about.
    pub gpu: Option<u32>,
    /// The time that shares are of.
    pub window: Nanos,
    pub value: Result<Amount, Untold>,
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untold {
    NoGpu,
    /// Of this process only the calls were recorded: what a GPU did for it is not known.
    CallsOnly(Pid),
    /// It was asked for, and nothing ran on it.
    NotUsed,
    /// Records are missing, and nobody can tell where.
    IdleUnknown,
    /// All that ran took no time.
    NoTime,
    /// No launch was seen.
    NoLaunch,
}

impl Verdict<'_> {
    /// `None`: cannot be told.
    pub fn holds(&self) -> Option<bool> {
        let order = |value: Amount| match (value, self.assertion.limit) {
            (Amount::Percent(a), Amount::Percent(b)) => a.partial_cmp(&b),
            (Amount::Time(a), Amount::Time(b)) => Some(a.cmp(&b)),
            (Amount::Count(a), Amount::Count(b)) => Some(a.cmp(&b)),
            (Amount::Percent(_) | Amount::Time(_) | Amount::Count(_), _) => None,
        };
        let order = order(self.value.ok()?)?;
        Some(match self.assertion.op {
            Op::Less => order.is_lt(),
            Op::AtMost => order.is_le(),
            Op::More => order.is_gt(),
            Op::AtLeast => order.is_ge(),
        })
    }
}

/// Judges every assertion, in the order in which they were made. `asked` is the one GPU to look at; else all
/// count on which something ran.
pub fn judge<'a>(
    assertions: &'a [Assertion],
    report: &Report,
    asked: Option<u32>,
) -> Vec<Verdict<'a>> {
    let used: Vec<&Gpu> = report
        .gpus
        .iter()
        .filter(|gpu| asked.is_some() || is_used(gpu))
        .collect();
    let launches = |side: &&HostSide| side.callers.iter().any(|caller| caller.launches > 0);
    let unseen = (report.host_sides.iter().find(launches))
        .map(|side| side.pid)
        .filter(|_| asked.is_none());
    let mut verdicts = Vec::new();
    for assertion in assertions {
        let whole = |value| Verdict {
            assertion,
            gpu: None,
            window: Nanos::ZERO,
            value,
        };
        match assertion.metric {
            Metric::Lost => verdicts.push(whole(Ok(Amount::Count(report.quality.lost())))),
            Metric::GpuCoverage => {
                let coverage = report.quality.gpu_coverage.ok_or(Untold::NoLaunch);
                verdicts.push(whole(coverage.map(|share| Amount::Percent(share * 100.0))));
            }
            Metric::Idle
            | Metric::Busy
            | Metric::Explained
            | Metric::Cause(_)
            | Metric::LongestGap
            | Metric::Gaps => {
                if used.is_empty() {
                    verdicts.push(whole(Err(Untold::NoGpu)));
                } else if let Some(pid) = unseen {
                    verdicts.push(whole(Err(Untold::CallsOnly(pid))));
                }
                verdicts.extend(used.iter().map(|gpu| Verdict {
                    assertion,
                    gpu: Some(gpu.index),
                    window: window(gpu),
                    value: measure(assertion, gpu),
                }));
            }
        }
    }
    verdicts
}

fn is_used(gpu: &Gpu) -> bool {
    gpu.operations > 0 || gpu.gap_count > 0
}

fn window(gpu: &Gpu) -> Nanos {
    let time = |time: Option<Nanos>| time.unwrap_or_default();
    time(gpu.busy).saturating_add(time(gpu.idle))
}

fn measure(assertion: &Assertion, gpu: &Gpu) -> Result<Amount, Untold> {
    if !is_used(gpu) {
        return Err(Untold::NotUsed);
    }
    let (Some(busy), Some(idle)) = (gpu.busy, gpu.idle) else {
        return Err(Untold::IdleUnknown);
    };
    let in_unit = |time: Nanos| match assertion.limit {
        Amount::Percent(_) => percent(time, window(gpu)).ok_or(Untold::NoTime),
        Amount::Time(_) | Amount::Count(_) => Ok(Amount::Time(time)),
    };
    match &assertion.metric {
        Metric::Idle => in_unit(idle),
        Metric::Busy => in_unit(busy),
        Metric::Cause(causes) => in_unit(causes.total(gpu)),
        Metric::Explained => {
            let share = gpu.idle_explained.ok_or(Untold::IdleUnknown)?;
            Ok(Amount::Percent(share * 100.0))
        }
        Metric::LongestGap => Ok(Amount::Time(gpu.longest_gap)),
        Metric::Gaps => Ok(Amount::Count(gpu.gap_count)),
        // They are of the recording.
        Metric::Lost | Metric::GpuCoverage => Err(Untold::NoGpu),
    }
}

/// Multiplied first: what is exactly at a limit stays there.
#[allow(clippy::cast_precision_loss)]
fn percent(part: Nanos, whole: Nanos) -> Option<Amount> {
    (whole > Nanos::ZERO).then(|| Amount::Percent(part.0 as f64 * 100.0 / whole.0 as f64))
}

impl Causes {
    fn total(&self, gpu: &Gpu) -> Nanos {
        let of_these = gpu
            .causes
            .iter()
            .filter(|row| self.list.contains(&row.cause));
        of_these.fold(Nanos::ZERO, |sum, row| sum.saturating_add(row.total))
    }

    /// An id, or a family: `host.*` are those that begin so, and `unknown.*` has `unknown` itself, too.
    fn named(name: &str) -> Result<Causes, String> {
        let family = name.strip_suffix(".*");
        let is_meant = |cause: &&Cause| match family {
            Some(family) => {
                let rest = cause.id().strip_prefix(family);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
            None => cause.id() == name,
        };
        let list: Vec<Cause> = Cause::ALL.iter().filter(is_meant).copied().collect();
        if !list.is_empty() && family != Some("") {
            let name = name.to_string();
            return Ok(Causes { name, list });
        }
        let hint = match nearest(name, Cause::ALL.iter().map(|cause| cause.id())) {
            Some(id) => format!("did you mean '{id}'?"),
            None => {
                "`man gdiag` lists them; host.*, gpu.* and unknown.* are all of a kind".to_string()
            }
        };
        Err(format!("there is no cause '{name}'; {hint}"))
    }
}

fn nearest<'a>(word: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Below, a suggestion only puzzles.
    const SIMILAR: f64 = 0.75;
    all.map(|one| {
        // Most people remember the last word of an id.
        let short = one.rsplit('.').next().unwrap_or(one);
        let score = strsim::jaro_winkler(word, one).max(strsim::jaro_winkler(word, short));
        (score, one)
    })
    .filter(|(score, _)| *score >= SIMILAR)
    .max_by(|a, b| a.0.total_cmp(&b.0))
    .map(|(_, one)| one)
}

const METRICS: [&str; 8] = [
    "idle",
    "busy",
    "explained",
    "cause(ID)",
    "longest-gap",
    "gaps",
    "lost",
    "gpu-coverage",
];

impl FromStr for Assertion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let at = text
            .find(['<', '>', '='])
            .ok_or("write what, <, <=, > or >=, and how much, such as 'idle<20%'")?;
        let (metric, rest) = text.split_at(at);
        let length = rest.find(|c| !matches!(c, '<' | '>' | '='));
        let (op, limit) = rest.split_at(length.unwrap_or(rest.len()));
        let op = match op {
            "<" => Op::Less,
            "<=" => Op::AtMost,
            ">" => Op::More,
            ">=" => Op::AtLeast,
            other => return Err(format!("'{other}' is none of <, <=, > and >=")),
        };
        let metric: Metric = metric.trim().parse()?;
        let limit = metric.limit(limit.trim())?;
        Ok(Assertion {
            text: text.to_string(),
            metric,
            op,
            limit,
        })
    }
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let in_brackets = name.strip_prefix("cause").map(str::trim_start);
        if let Some(rest) = in_brackets.and_then(|rest| rest.strip_prefix('(')) {
            let id = rest
                .strip_suffix(')')
                .ok_or("write cause(ID), such as 'cause(host.throttled)<1%'")?;
            return Causes::named(id.trim()).map(Metric::Cause);
        }
        Ok(match name {
            "idle" => Metric::Idle,
            "busy" => Metric::Busy,
            "explained" => Metric::Explained,
            "longest-gap" => Metric::LongestGap,
            "gaps" => Metric::Gaps,
            "lost" => Metric::Lost,
            "gpu-coverage" => Metric::GpuCoverage,
            "" => return Err(format!("what is compared? one of {}", METRICS.join(", "))),
            other => {
                let cause = Cause::from_id(other).map(Cause::id);
                return Err(match cause {
                    Some(id) => format!("write it as cause({id})"),
                    None => unknown_metric(other),
                });
            }
        })
    }
}

fn unknown_metric(name: &str) -> String {
    let hint = match nearest(name, METRICS.into_iter()) {
        Some(metric) => format!("did you mean {metric}?"),
        None => format!("there are {}", METRICS.join(", ")),
    };
    format!("'{name}' is nothing that is measured; {hint}")
}

impl Metric {
    /// Reads what it is compared with, in a unit that it can have.
    fn limit(&self, text: &str) -> Result<Amount, String> {
        match self {
            Metric::Idle | Metric::Busy | Metric::Cause(_) if text.ends_with('%') => {
                percentage(text)
            }
            Metric::Idle | Metric::Busy | Metric::Cause(_) => {
                text.parse().map(Amount::Time).map_err(|_: String| {
                    format!("'{text}' is no share of time and no duration: write it as 20% or 50ms")
                })
            }
            Metric::Explained | Metric::GpuCoverage => percentage(text),
            Metric::LongestGap => text.parse().map(Amount::Time),
            Metric::Gaps | Metric::Lost => text
                .parse()
                .map(Amount::Count)
                .map_err(|_| format!("'{text}' is not a number: write it as 100")),
        }
    }
}

fn percentage(text: &str) -> Result<Amount, String> {
    let number = text.strip_suffix('%').map(str::trim_end);
    // Not what a float can be besides: inf, NaN, 1e3.
    let is_plain = |n: &&str| n.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match number.filter(is_plain).and_then(|n| n.parse().ok()) {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Amount::Percent(percent)),
        Some(_) => Err(format!(
            "'{text}' is more than all: a share is at most 100%"
        )),
        None => Err(format!("'{text}' is not a share: write it as 20%")),
    }
}

#[cfg(test)]
mod tests;
