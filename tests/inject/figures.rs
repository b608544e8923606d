//! What the rounds came to, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Of one kind of target.
#[derive(Debug, Default)]
pub struct Figures {
    pub rounds: usize,
    /// Each with its round.
    pub crashes: Vec<String>,
    pub hangs: Vec<String>,
    pub held: Vec<String>,
    pub failures: Vec<String>,
    /// Of gdiag: no records, a bad status, something left behind.
    pub complaints: Vec<String>,
    /// Steps a second afterwards, as a share of those before.
    pub ratios: Vec<f64>,
    /// How long a thread was held, in us.
    pub held_us: Vec<f64>,
}

impl Figures {
    pub fn wrong(&self) -> impl Iterator<Item = &String> {
        let harm = self.crashes.iter().chain(&self.hangs).chain(&self.held);
        harm.chain(&self.failures).chain(&self.complaints)
    }
}

pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(values[middle - 1].midpoint(values[middle])),
    }
}

fn most(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_string(), |v| format!("{v:.digits$}"))
}

/// A step of the target, in us.
const STEP_US: f64 = 10_000.0;

pub fn table(title: &str, figures: &BTreeMap<String, Figures>) -> String {
    let mut text = format!(
        "\n{title}\n{:<26}{:>7}{:>9}{:>7}{:>9}{:>8}{:>11}{:>12}{:>10}{:>10}{:>11}\n",
        "target",
        "rounds",
        "crashes",
        "hangs",
        "stopped",
        "wrong",
        "complaints",
        "throughput",
        "held ms",
        "at most",
        "of a step"
    );
    let mut all = Vec::new();
    for (kind, f) in figures {
        let (middle, longest) = (median(&f.held_us), most(&f.held_us));
        let _ = writeln!(
            text,
            "{kind:<26}{:>7}{:>9}{:>7}{:>9}{:>8}{:>11}{:>12}{:>10}{:>10}{:>11}",
            f.rounds,
            f.crashes.len(),
            f.hangs.len(),
            f.held.len(),
            f.failures.len(),
            f.complaints.len(),
            number(median(&f.ratios), 3),
            number(middle.map(|us| us / 1e3), 3),
            number(longest.map(|us| us / 1e3), 3),
            number(middle.map(|us| 100.0 * us / STEP_US), 1) + " %",
        );
        all.extend_from_slice(&f.held_us);
    }
    let _ = writeln!(
        text,
        "held in all: {} injections, median {} ms, at most {} ms",
        all.len(),
        number(median(&all).map(|us| us / 1e3), 3),
        number(most(&all).map(|us| us / 1e3), 3),
    );
    for (kind, f) in figures {
        for what in f.wrong() {
            let _ = writeln!(text, "{kind}: {what}");
        }
    }
    text
}

/// `gdiag: process PID: library loaded in 5.1 ms through thread 7, which was held for 80 us`: the
/// time that each process's thread was held, in us.
pub fn held_us(said: &str) -> BTreeMap<u32, f64> {
    said.lines()
        .filter_map(|line| {
            let (pid, rest) = line.strip_prefix("gdiag: process ")?.split_once(':')?;
            let (_, time) = rest.split_once("which was held for ")?;
            let (value, unit) = time.split_once(' ')?;
            let us = match unit {
                "ns" => 1e-3,
                "us" => 1.0,
                "ms" => 1e3,
                "s" => 1e6,
                other => panic!("a unit: {other}"),
            };
            Some((pid.parse().ok()?, value.parse::<f64>().ok()? * us))
        })
        .collect()
}
