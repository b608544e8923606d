//! What the report says of the time in which a fault was in effect.
//!
//! A score counts the injected id alone. What other programs of the machine took meanwhile is no part
//! of the scenario: it is left out, and told.

use std::collections::{BTreeMap, BTreeSet};

use crate::gpu::{Gap, Gpu, Part};
use crate::truth::Truth;

/// A shorter gap has no label of its own; its time counts all the same.
const LEAST_GAP: u64 = 100_000;

/// Between two refills the device takes its time to start, which is no fault of the host's.
const BESIDES: [(&str, &str); 2] = [
    ("host.sync", "gpu.launch-latency"),
    ("host.launch-bound", "gpu.launch-latency"),
];

/// What a thread computes, by whose thread it is.
const COMPUTING: [&str; 2] = ["host.compute", "host.data-loading"];

/// The answers for one injected cause, in ns of idle time.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    pub by: BTreeMap<String, u64>,
    /// Time that others on this machine took, gdiag among them, by who.
    pub ambient: BTreeMap<String, u64>,
    /// Left out as well: computing inside of calls that also slept, as much as the load's own CPU
    /// clock counted, and what is as true as the injected cause.
    pub besides: u64,
}

impl Answers {
    pub fn of(&self, wanted: impl Fn(&str) -> bool) -> u64 {
        let by = self.by.iter();
        by.filter_map(|(id, ns)| wanted(id).then_some(*ns)).sum()
    }

    pub fn idle(&self) -> u64 {
        self.of(|_| true)
    }

    pub fn unknown(&self) -> u64 {
        self.of(|id| id.starts_with("unknown"))
    }

    pub fn explained(&self) -> u64 {
        self.of(|id| !id.starts_with("unknown") && id != "host.other")
    }

    pub fn ambient_ns(&self) -> u64 {
        self.ambient.values().sum()
    }

    pub fn add(&mut self, other: &Answers) {
        add_all(&mut self.by, &other.by);
        add_all(&mut self.ambient, &other.ambient);
        self.besides += other.besides;
    }

    fn count(&mut self, span: &Truth, part: Part, computing: &mut u64) {
        let ns = part.ns();
        let as_true =
            span.besides.contains(&part.cause) || BESIDES.contains(&(&span.cause, &part.cause));
        if part.cause != span.cause && as_true {
            self.besides += ns;
        } else if let Some(who) = ambient(span, &part) {
            *self.ambient.entry(who).or_default() += ns;
        } else {
            let mut own = 0;
            let computes = COMPUTING.contains(&part.cause.as_str());
            if computes && part.cause != span.cause {
                own = ns.min(*computing);
            }
            *computing -= own;
            self.besides += own;
            if ns > own {
                *self.by.entry(part.cause).or_default() += ns - own;
            }
        }
    }
}

/// Of one case.
#[derive(Clone, Debug, Default)]
pub struct Score {
    /// By the injected cause; most cases have one.
    pub answers: BTreeMap<String, Answers>,
    pub injections: usize,
    /// Injections that made idle time.
    pub gaps: usize,
    /// For how long faults were in effect.
    pub injected: u64,
    /// Gaps by injected cause and the answer that has most of the overlap with it.
    pub labelled: BTreeMap<(String, String), usize>,
}

impl Score {
    pub fn causes(&self) -> String {
        self.answers.keys().cloned().collect::<Vec<_>>().join(" + ")
    }

    pub fn all(&self) -> Answers {
        let mut all = Answers::default();
        for answers in self.answers.values() {
            all.add(answers);
        }
        all
    }

    pub fn right(&self) -> u64 {
        let answers = self.answers.iter();
        answers.map(|(cause, one)| one.of(|id| id == cause)).sum()
    }

    /// Share of the idle time that has the injected cause.
    pub fn share(&self) -> f64 {
        ratio(self.right(), self.all().idle())
    }

    /// Gaps whose label and answer are like this.
    pub fn labels(&self, wanted: impl Fn(&str, &str) -> bool) -> usize {
        let labelled = self.labelled.iter();
        let wanted = labelled.filter(|((label, answer), _)| wanted(label, answer));
        wanted.map(|(_, count)| count).sum()
    }

    pub fn add(&mut self, other: &Score) {
        for (cause, answers) in &other.answers {
            self.answers.entry(cause.clone()).or_default().add(answers);
        }
        self.injections += other.injections;
        self.gaps += other.gaps;
        self.injected += other.injected;
        for (label, count) in &other.labelled {
            *self.labelled.entry(label.clone()).or_default() += count;
        }
    }
}

/// The scores of a recording's cases, by name.
pub fn score(gpus: &[Gpu], truth: &[Truth]) -> BTreeMap<String, Score> {
    let mut scores: BTreeMap<String, Score> = BTreeMap::new();
    let mut injections = BTreeSet::new();
    let mut gaps = BTreeSet::new();
    for span in truth {
        let score = scores.entry(span.case.clone()).or_default();
        let answers = score.answers.entry(span.cause.clone()).or_default();
        let mut computing = span.end - span.start - span.ns;
        score.injected += span.ns;
        score.injections += usize::from(injections.insert((&span.case, span.step)));
        for gpu in gpus.iter().filter(|gpu| gpu.index == span.device) {
            for part in gpu.parts_in(span.start, span.end) {
                score.gaps += usize::from(gaps.insert((&span.case, span.step)));
                answers.count(span, part, &mut computing);
            }
        }
    }
    for gpu in gpus {
        let truth: Vec<&Truth> = truth.iter().filter(|t| t.device == gpu.index).collect();
        for gap in &gpu.gaps {
            if let Some((span, answer)) = label(gpu, gap, &truth) {
                let score = scores.entry(span.case.clone()).or_default();
                let label = (span.cause.clone(), answer);
                *score.labelled.entry(label).or_default() += 1;
            }
        }
    }
    scores
}

/// The injection that has more than half of the gap, and the cause that has most of what they share.
fn label<'a>(gpu: &Gpu, gap: &Gap, truth: &[&'a Truth]) -> Option<(&'a Truth, String)> {
    let ns = gap.end - gap.start;
    if ns <= LEAST_GAP {
        return None;
    }
    let first = truth.partition_point(|span| span.end <= gap.start);
    let inside = || {
        let spans = truth[first..].iter().copied();
        spans.take_while(|span| span.start < gap.end)
    };
    let overlap = |span: &Truth| span.end.min(gap.end) - span.start.max(gap.start);
    let most = |same: fn(&Truth, &Truth) -> bool, among: &dyn Fn(&Truth) -> bool| {
        let candidates = inside().filter(|span| among(span));
        let sum = |one: &Truth| -> u64 {
            let all = inside().filter(|span| same(span, one));
            all.map(overlap).sum()
        };
        candidates
            .map(|span| (sum(span), span))
            .max_by_key(|(sum, _)| *sum)
    };
    let (shared, injection) = most(same_injection, &|_| true)?;
    if shared * 2 <= ns {
        return None;
    }
    let (_, span) = most(same_fault, &|span| same_injection(span, injection))?;
    let mut by: BTreeMap<String, u64> = BTreeMap::new();
    for fault in inside().filter(|fault| same_fault(fault, span)) {
        let (start, end) = (fault.start.max(gap.start), fault.end.min(gap.end));
        for part in gpu.parts_in(start, end) {
            if ambient(fault, &part).is_none() {
                *by.entry(part.cause.clone()).or_default() += part.ns();
            }
        }
    }
    let (answer, _) = by.into_iter().max_by_key(|(_, ns)| *ns)?;
    Some((span, answer))
}

fn same_injection(one: &Truth, other: &Truth) -> bool {
    one.step == other.step && one.case == other.case
}

fn same_fault(one: &Truth, other: &Truth) -> bool {
    same_injection(one, other) && one.cause == other.cause
}

/// Who it was, if it was somebody outside the scenario that took the CPU: other programs of this
/// machine, and gdiag. The scenarios' own are all called `hog`. Whoever took the host's CPU in a
/// device's fault: the device had its work in time.
fn ambient(span: &Truth, part: &Part) -> Option<String> {
    let who = part.what.split(" (").next().unwrap_or_default();
    let ambient = match part.cause.as_str() {
        "host.preempted" => who != "hog",
        "host.observer" => who.starts_with("gdiag"),
        _ => false,
    };
    (ambient && !span.on_device()).then(|| who.to_string())
}

pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

pub fn add_all(to: &mut BTreeMap<String, u64>, from: &BTreeMap<String, u64>) {
    for (key, ns) in from {
        *to.entry(key.clone()).or_default() += ns;
    }
}
