//! How much of the injected time carries the right cause.

use std::collections::BTreeMap;

use crate::gpu::{Gpu, Part};
use crate::run::Truth;

/// What the report says of the injected idle time: the time inside the truth's intervals that is a gap.
#[derive(Clone, Debug, Default)]
pub struct Score {
    /// Injections that made a gap.
    pub injections: usize,
    /// Injected idle time, less what is named below.
    pub injected: u64,
    pub right: u64,
    /// Other causes, and `unknown`.
    pub wrong: BTreeMap<String, u64>,
    /// Time that others on this machine took, gdiag among them: no part of the scenario. By who.
    pub ambient: BTreeMap<String, u64>,
    /// Computing inside of calls that also slept, as much as the load's own CPU clock counted.
    pub computing: u64,
    /// Causes that are as true as the injected one.
    pub besides: u64,
}

impl Score {
    pub fn of(gpu: &Gpu, truth: &[Truth], cause: &str, besides: &[&str]) -> Score {
        let mut score = Score::default();
        let mut steps = Vec::new();
        for span in truth {
            let mut computing = (span.end - span.start).saturating_sub(span.ns);
            for part in gpu.parts_in(span.start, span.end) {
                let ns = part.ns();
                steps.push(span.step);
                if part.cause == cause {
                    score.injected += ns;
                    score.right += ns;
                } else if besides.contains(&part.cause.as_str()) {
                    score.besides += ns;
                } else if let Some(who) = ambient(&part) {
                    *score.ambient.entry(who).or_default() += ns;
                } else {
                    let own = if part.cause == "host.compute" {
                        ns.min(computing)
                    } else {
                        0
                    };
                    computing -= own;
                    score.computing += own;
                    score.injected += ns - own;
                    if ns > own {
                        *score.wrong.entry(part.cause).or_default() += ns - own;
                    }
                }
            }
        }
        steps.dedup();
        score.injections = steps.len();
        score
    }

    pub fn share(&self) -> f64 {
        ratio(self.right, self.injected)
    }

    pub fn unknown(&self) -> u64 {
        let unknown = |(id, ns): (&String, &u64)| id.starts_with("unknown").then_some(*ns);
        self.wrong.iter().filter_map(unknown).sum()
    }

    /// Time for which the host is blamed.
    pub fn host(&self) -> u64 {
        let host = |(id, ns): (&String, &u64)| id.starts_with("host.").then_some(*ns);
        self.wrong.iter().filter_map(host).sum()
    }

    pub fn ambient_ns(&self) -> u64 {
        self.ambient.values().sum()
    }
}

pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Who it was, if it was somebody outside the scenario that took the CPU: other programs of this
/// machine, and gdiag. The load's own hogs are all called `hog`.
fn ambient(part: &Part) -> Option<String> {
    let who = part.what.split(" (").next().unwrap_or_default();
    match part.cause.as_str() {
        "host.preempted" if who != "hog" => Some(who.to_string()),
        "host.observer" if who.starts_with("gdiag") => Some(who.to_string()),
        _ => None,
    }
}
