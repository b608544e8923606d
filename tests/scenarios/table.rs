//! The figures of a suite, as text.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::score::{ratio, Answers, Score};
use crate::suite::{is_host, Suite, Total};
use crate::truth::on_device;

impl Display for Suite {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        writeln!(
            f,
            "\nInjected idle time, and the share of it with the right cause"
        )?;
        writeln!(
            f,
            "{:<24} {:<22} {:>5} {:>9} {:>7} {:>7} {:>8} {:>9}  wrong causes (ambient time, left out)",
            "case", "cause", "gaps", "idle ms", "right", "top-1", "unknown", "explained"
        )?;
        for (case, score) in &self.faults {
            fault(f, case, score)?;
        }
        let (host, device) = (self.total(false), self.total(true));
        total(f, "all of the host", &host)?;
        total(f, "all of the device", &device)?;
        if !device.answers.by.is_empty() {
            let gaps = |blamed: bool| {
                let of = |score: &Score| {
                    score.labels(|label, answer| on_device(label) && (!blamed || is_host(answer)))
                };
                self.faults.values().map(of).sum::<usize>()
            };
            writeln!(
                f,
                "the host is blamed for {} of {} gaps of the device, {:.3} ms ({})",
                gaps(true),
                gaps(false),
                ms(device.blames_host),
                percent(ratio(device.blames_host, device.answers.idle()))
            )?;
        }

        writeln!(f, "\nWhat each injected cause was taken for, in ms")?;
        for (cause, answers) in self.by_cause() {
            writeln!(
                f,
                "{cause:<22} {}",
                list(&answers.by, 0, |ns| format!("{:.1}", ms(ns)))
            )?;
        }

        if !self.twins.is_empty() {
            writeln!(f, "\nThe same calls where they make no gap")?;
            writeln!(
                f,
                "{:<24} {:<22} {:>5} {:>9} {:>9} {:>9} {:>6}  what idle time there was",
                "case", "cause", "times", "fault ms", "idle ms", "blamed", "gaps"
            )?;
        }
        for (case, score) in &self.twins {
            twin(f, case, score)?;
        }
        twins(f, self.twins.values())
    }
}

fn fault(f: &mut Formatter, case: &str, score: &Score) -> fmt::Result {
    let all = score.all();
    let mut wrong = BTreeMap::new();
    for (cause, answers) in &score.answers {
        for (id, ns) in answers.by.iter().filter(|(id, _)| *id != cause) {
            *wrong.entry(id.clone()).or_default() += ns;
        }
    }
    let right = score.labels(|label, answer| label == answer);
    let labelled = score.labels(|_, _| true);
    write!(f, "{case:<24} {:<22} {:>5} ", score.causes(), score.gaps)?;
    figures(f, &all, score.right(), &top_1(right, labelled))?;
    let share = |ns| percent(ratio(ns, all.idle()));
    write!(f, "  {}", list(&wrong, all.idle() / 1000, share))?;
    ambient(f, &all)
}

fn total(f: &mut Formatter, name: &str, total: &Total) -> fmt::Result {
    if total.answers.by.is_empty() {
        return Ok(());
    }
    write!(f, "{name:<53} ")?;
    figures(f, &total.answers, total.right, "")?;
    ambient(f, &total.answers)
}

fn figures(f: &mut Formatter, all: &Answers, right: u64, top_1: &str) -> fmt::Result {
    let share = |ns| percent(ratio(ns, all.idle()));
    write!(
        f,
        "{:>9.1} {:>7} {top_1:>7} {:>8} {:>9}",
        ms(all.idle()),
        share(right),
        share(all.unknown()),
        share(all.explained())
    )
}

fn ambient(f: &mut Formatter, answers: &Answers) -> fmt::Result {
    let total = answers.ambient_ns();
    if total < MS / 10 {
        return writeln!(f);
    }
    let most = list(&answers.ambient, total / 20, |ns| format!("{:.1}", ms(ns)));
    writeln!(f, " ({:.1} ms: {most})", ms(total))
}

fn twin(f: &mut Formatter, case: &str, score: &Score) -> fmt::Result {
    let all = score.all();
    writeln!(
        f,
        "{case:<24} {:<22} {:>5} {:>9.1} {:>9.2} {:>9} {:>6}  {}",
        score.causes(),
        score.injections,
        ms(score.injected),
        ms(all.idle()),
        percent(ratio(score.right(), score.injected)),
        score.labels(|label, answer| label == answer),
        list(&all.by, 10_000, |ns| format!("{:.2} ms", ms(ns)))
    )
}

fn twins<'a>(f: &mut Formatter, twins: impl Iterator<Item = &'a Score>) -> fmt::Result {
    let (mut gaps, mut blamed, mut injected) = (0, 0, 0);
    for score in twins {
        gaps += score.labels(|label, answer| label == answer);
        blamed += score.right();
        injected += score.injected;
    }
    if injected == 0 {
        return Ok(());
    }
    writeln!(
        f,
        "they are blamed for {gaps} gaps, {:.3} ms ({} of the time that they took)",
        ms(blamed),
        percent(ratio(blamed, injected))
    )
}

fn top_1(right: usize, of: usize) -> String {
    if of == 0 {
        "-".to_string()
    } else {
        format!("{right}/{of}")
    }
}

const MS: u64 = 1_000_000;

fn ms(ns: u64) -> f64 {
    ns as f64 / MS as f64
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Most first, those of less than `least` left out.
fn list(by: &BTreeMap<String, u64>, least: u64, show: impl Fn(u64) -> String) -> String {
    let mut most: Vec<_> = by.iter().filter(|(_, ns)| **ns > least).collect();
    most.sort_by_key(|(_, ns)| std::cmp::Reverse(**ns));
    let shown = most
        .iter()
        .map(|(name, ns)| format!("{name} {}", show(**ns)));
    shown.collect::<Vec<_>>().join(", ")
}
