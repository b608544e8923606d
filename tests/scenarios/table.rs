//! The figures of all scenarios as a table: `cargo test --test scenarios -- --nocapture`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::gpu::Gpu;
use crate::score::{ratio, Score};

#[derive(Debug, Default)]
pub struct Table {
    text: String,
}

impl Table {
    pub fn heading(&mut self, title: &str) {
        writeln!(
            self.text,
            "\n{title}\n{:<14} {:<20} {:>5} {:>9} {:>7} {:>8} {:>9} {:>9}  wrong causes (ambient time, left out)",
            "injection", "cause", "gaps", "idle ms", "right", "unknown", "ambient", "explained"
        )
        .unwrap();
    }

    pub fn row(&mut self, injection: &str, cause: &str, score: &Score, gpu: &Gpu) {
        writeln!(
            self.text,
            "{injection:<14} {cause:<20} {:>5} {:>9.1} {:>7} {:>8} {:>9.1} {:>9}  {}{}",
            score.injections,
            ms(score.injected),
            percent(score.share()),
            percent(ratio(score.unknown(), score.injected)),
            ms(score.ambient_ns()),
            percent(gpu.explained),
            shares(&score.wrong, |ns| percent(ratio(ns, score.injected))),
            match shares(&score.ambient, |ns| format!("{:.1} ms", ms(ns))) {
                text if text.is_empty() => text,
                text => format!(" ({text})"),
            }
        )
        .unwrap();
    }

    pub fn print(&self) {
        println!("{}", self.text);
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Most first, the smallest left out.
fn shares(by: &BTreeMap<String, u64>, show: impl Fn(u64) -> String) -> String {
    let all: u64 = by.values().sum();
    let mut most: Vec<_> = by.iter().filter(|(_, ns)| **ns * 50 >= all).collect();
    most.sort_by_key(|(_, ns)| std::cmp::Reverse(**ns));
    let shown = most
        .iter()
        .take(5)
        .map(|(name, ns)| format!("{name} {}", show(**ns)));
    shown.collect::<Vec<_>>().join(", ")
}
