//! All cases together, and what is demanded of them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::gpu::Gpu;
use crate::score::{ratio, score, Answers, Score};
use crate::truth::{self, on_device};

/// Share of the injected idle time with the right cause, over all host cases.
const HOST: f64 = 0.95;
/// And over all device cases.
const DEVICE: f64 = 0.95;
/// And in each case.
const CASE: f64 = 0.85;
/// Share of it with a cause that is neither unknown nor `host.other`.
const EXPLAINED: f64 = 0.95;
/// Gaps that each case has to make.
const GAPS: usize = 30;
/// Share of a device fault's idle time that may be the host's, as the two clocks differ at its edges.
const EDGES: f64 = 0.001;
/// Share of the time of a fault without effect that it may seem to have had.
const NOISE: f64 = 0.01;
/// Share of a case's idle time that others may have taken: with more of it nothing was measured.
const AMBIENT: f64 = 0.25;

/// Whose recording it is that ends like this: of the same calls where they make no gap.
const TWIN: &str = "-twin";

#[derive(Clone, Debug, Default)]
pub struct Suite {
    pub faults: BTreeMap<String, Score>,
    pub twins: BTreeMap<String, Score>,
}

impl Suite {
    /// A recording by its name, its report and its truth. Before the first `-` stands the program:
    /// two of them can have cases of the same name.
    pub fn add(&mut self, name: &str, report: &Value, truth: &str) {
        let kind = if name.ends_with(TWIN) {
            &mut self.twins
        } else {
            &mut self.faults
        };
        let file = name.rsplit('/').next().unwrap_or(name);
        let program = file.split(['-', '.']).next().unwrap_or(file);
        for (case, score) in score(&Gpu::read_all(report), &truth::read(truth)) {
            kind.entry(format!("{program} {case}"))
                .or_default()
                .add(&score);
        }
    }

    /// Of faults, by the injected cause.
    pub fn by_cause(&self) -> BTreeMap<&str, Answers> {
        let mut by: BTreeMap<&str, Answers> = BTreeMap::new();
        for (cause, answers) in self.faults.values().flat_map(|score| &score.answers) {
            by.entry(cause).or_default().add(answers);
        }
        by
    }

    pub fn total(&self, device: bool) -> Total {
        let mut total = Total::default();
        for (cause, answers) in self.by_cause() {
            if on_device(cause) == device {
                total.right += answers.of(|id| id == cause);
                total.blames_host += answers.of(is_host);
                total.answers.add(&answers);
            }
        }
        total
    }

    /// Forgets a case, which is to be recorded again.
    pub fn forget(&mut self, case: &str, twin: bool) {
        let kind = if twin {
            &mut self.twins
        } else {
            &mut self.faults
        };
        kind.remove(case);
    }

    /// What is wrong with one case, in words; with one that was not recorded, that.
    pub fn wrong_with(&self, case: &str, twin: bool) -> Vec<String> {
        let (kind, wrong): (_, fn(&str, &Score) -> Wrong) = if twin {
            (&self.twins, wrong_twin)
        } else {
            (&self.faults, wrong_fault)
        };
        match kind.get(case) {
            Some(score) => wrong(case, score).0,
            None => vec![format!("{case}: not recorded")],
        }
    }

    /// Every demand that is not met, in words.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Wrong::default();
        for (case, score) in &self.faults {
            wrong.0.extend(wrong_fault(case, score).0);
        }
        let (host, device) = (self.total(false), self.total(true));
        wrong.unless(
            host.answers.by.is_empty() || host.share() >= HOST,
            format!("host cases: {:.4} is right, not {HOST}", host.share()),
        );
        wrong.unless(
            device.answers.by.is_empty() || device.share() >= DEVICE,
            format!("device cases: {:.4} is right, not {DEVICE}", device.share()),
        );
        let blamed = ratio(device.blames_host, device.answers.idle());
        wrong.unless(
            blamed <= EDGES,
            format!("device cases: the host is blamed for {blamed:.4} of them, more than {EDGES}"),
        );
        let mut all = host.answers;
        all.add(&device.answers);
        let explained = ratio(all.explained(), all.idle());
        wrong.unless(
            all.by.is_empty() || explained >= EXPLAINED,
            format!("{explained:.4} is explained, not {EXPLAINED}"),
        );
        for (case, score) in &self.twins {
            wrong.0.extend(wrong_twin(case, score).0);
        }
        wrong.0
    }
}

/// Demands that are not met, in words.
#[derive(Debug, Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn unless(&mut self, holds: bool, what: String) {
        if !holds {
            self.0.push(what);
        }
    }
}

fn wrong_fault(case: &str, score: &Score) -> Wrong {
    let mut wrong = Wrong::default();
    let all = score.all();
    wrong.unless(
        score.gaps >= GAPS,
        format!(
            "{case}: {} of {} injections made a gap, not {GAPS}",
            score.gaps, score.injections
        ),
    );
    wrong.unless(
        score.share() >= CASE,
        format!("{case}: {:.4} of it is right, not {CASE}", score.share()),
    );
    let ambient = ratio(all.ambient_ns(), all.ambient_ns() + all.idle());
    wrong.unless(
        ambient <= AMBIENT,
        format!("{case}: others took {ambient:.2} of it, so that nothing was measured"),
    );
    let blamed = score.labels(|label, answer| on_device(label) && is_host(answer));
    wrong.unless(
        blamed == 0,
        format!("{case}: {blamed} gaps of the device are the host's"),
    );
    wrong
}

fn wrong_twin(case: &str, score: &Score) -> Wrong {
    let mut wrong = Wrong::default();
    let blamed = ratio(score.right(), score.injected);
    wrong.unless(
        blamed <= NOISE,
        format!("{case}, twin: blamed for {blamed:.4} of the time, more than {NOISE}"),
    );
    let gaps = score.labels(|label, answer| label == answer);
    wrong.unless(
        gaps == 0,
        format!("{case}, twin: {gaps} gaps have its cause"),
    );
    wrong.unless(
        score.injections >= GAPS,
        format!("{case}, twin: {} injections, not {GAPS}", score.injections),
    );
    wrong
}

/// Of all faults of the host, or of all of the device.
#[derive(Clone, Debug, Default)]
pub struct Total {
    pub answers: Answers,
    pub right: u64,
    pub blames_host: u64,
}

impl Total {
    pub fn share(&self) -> f64 {
        ratio(self.right, self.answers.idle())
    }
}

pub fn is_host(id: &str) -> bool {
    id.starts_with("host.")
}
