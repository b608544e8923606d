//! How many of the samples of a program are what it knows, and how much time they stand for.

use std::collections::BTreeMap;

use gdiag::event::{Cut, SampleKind, Tid};

use crate::compare;
use crate::recording::{self, Recording, Stack};
use crate::truth::{Call, Phase};

/// Around its ends, a phase is not yet or no longer where it says.
const MARGIN: u64 = 10_000;

/// From the first phase on, how long gdiag may read what it walks by. Stacks of this time do not
/// count: a debug build takes seconds for it. A release build takes 30 to 90 ms, and they count.
const START_UP: u64 = if cfg!(debug_assertions) {
    3_000_000_000
} else {
    0
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub samples: u64,
    pub complete: u64,
    pub equal: u64,
}

impl Tally {
    pub fn complete_share(&self) -> f64 {
        self.complete as f64 / self.samples.max(1) as f64
    }

    pub fn equal_share(&self) -> f64 {
        self.equal as f64 / self.samples.max(1) as f64
    }

    fn add(&mut self, complete: bool, equal: bool) {
        self.samples += 1;
        self.complete += u64::from(complete);
        self.equal += u64::from(equal);
    }
}

/// A time by the program's clocks, and by the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    pub known: u64,
    pub sampled: u64,
}

impl Times {
    /// Share of the known time by which the sampled one is off.
    pub fn error(self) -> f64 {
        self.sampled as f64 / self.known.max(1) as f64 - 1.0
    }
}

#[derive(Debug, Default)]
pub struct Score {
    pub all: Tally,
    pub by_phase: BTreeMap<String, Tally>,
    /// Why stacks were cut: how many, and when the last one was, counted from the first phase.
    pub cuts: BTreeMap<String, (u64, u64)>,
    pub running: Times,
    pub waiting: Times,
    /// Phases that wait.
    pub waits: u64,
    /// Those of whose end the kernel did not tell: some never show what init's threads switch to.
    pub untold: u64,
    /// One of each kind of cut, and of each phase in which a whole stack was wrong; the most frequent first.
    pub examples: Vec<String>,
}

impl Score {
    pub fn of(recording: &Recording, phases: &[Phase]) -> Score {
        let mut score = Score::default();
        let mut wrong: BTreeMap<String, (u64, String)> = BTreeMap::new();
        score.add_known_times(recording, phases);
        let mut by_thread: BTreeMap<u32, Vec<&Phase>> = BTreeMap::new();
        for phase in phases {
            by_thread.entry(phase.tid).or_default().push(phase);
        }
        for sample in &recording.samples {
            let Some((from, to)) = recording::time_of(sample) else {
                continue;
            };
            let phase = by_thread.get(&sample.tid.0).and_then(|phases| {
                let inside = |phase: &&&Phase| phase.start <= from && to <= phase.end;
                phases.iter().find(inside)
            });
            let Some(phase) = phase else { continue };
            match sample.kind {
                SampleKind::Cpu { period } if !phase.off => score.running.sampled += period.0,
                SampleKind::OffCpu { since } if phase.off => {
                    score.waiting.sampled += (sample.ts - since).0;
                }
                _ => {}
            }
            if to < phases[0].start + START_UP {
                continue;
            }
            let running = matches!(sample.kind, SampleKind::Cpu { .. });
            if running && (to < phase.start + MARGIN || to + MARGIN > phase.end) {
                continue;
            }
            let none = Stack {
                places: Vec::new(),
                cut: None,
            };
            let stack = recording.stacks.get(&sample.user).unwrap_or(&none);
            // What makecontext lets a function return to says nothing of a caller, as it has none.
            let complete = match stack.cut {
                None => compare::begins_at_a_root(&stack.places),
                Some(Cut::NoTable) => phase.name == "context" && stack.places.len() > 1,
                Some(_) => false,
            };
            let equal = compare::is_equal(&stack.places, &phase.chain);
            score.all.add(complete, equal);
            score
                .by_phase
                .entry(phase.name.clone())
                .or_default()
                .add(complete, equal);
            if let Some(cut) = stack.cut {
                let (times, last) = score.cuts.entry(cut_name(cut).to_string()).or_default();
                *times += 1;
                *last = (*last).max(to.saturating_sub(phases[0].start));
            }
            if !complete || !equal {
                let kind = match stack.cut {
                    Some(cut) => cut_name(cut),
                    None => &phase.name,
                };
                let (times, text) = wrong.entry(kind.to_string()).or_default();
                *times += 1;
                *text = example(phase, stack);
            }
        }
        let mut wrong: Vec<_> = wrong.into_values().collect();
        wrong.sort_by_key(|(times, _)| std::cmp::Reverse(*times));
        score.examples = wrong
            .into_iter()
            .map(|(times, text)| format!("{times} times like {text}"))
            .collect();
        score
    }

    fn add_known_times(&mut self, recording: &Recording, phases: &[Phase]) {
        for phase in phases {
            self.by_phase.entry(phase.name.clone()).or_default();
            if !phase.off {
                // Its short waits are below the threshold.
                self.running.known += phase.cpu;
                continue;
            }
            self.waits += 1;
            let mut resumed = recording.resumed.get(&Tid(phase.tid)).into_iter().flatten();
            if resumed.any(|at| (phase.start..=phase.end).contains(at)) {
                self.waiting.known += phase.end - phase.start - phase.cpu;
            } else {
                self.untold += 1;
            }
        }
    }
}

fn cut_name(cut: Cut) -> &'static str {
    match cut {
        Cut::NotYet => "not yet",
        Cut::Unmapped => "unmapped",
        Cut::NoTable => "no table",
        Cut::Unsupported => "unsupported",
        Cut::Unreadable => "unreadable",
        Cut::TooDeep => "too deep",
    }
}

fn example(phase: &Phase, stack: &Stack) -> String {
    let known = phase.chain.iter().map(|call| match call {
        Call::Native { name, optional } => format!("{name}{}", if *optional { "?" } else { "" }),
        Call::Foreign { files, least } => {
            format!("{}{}", if *least == 0 { "*" } else { "+" }, files.join("|"))
        }
        Call::Python { names, lines, .. } => format!("{}:{}", names[1], lines.0),
    });
    let places = stack.places.iter().map(ToString::to_string);
    let cut = stack
        .cut
        .map_or(String::new(), |cut| format!(" (cut: {})", cut_name(cut)));
    format!(
        "{}{cut}\n    known {}\n    found {}",
        phase.name,
        shortened(known),
        shortened(places)
    )
}

/// Equal neighbours once, with how many there are.
fn shortened(names: impl Iterator<Item = String>) -> String {
    let mut runs: Vec<(String, usize)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((last, n)) if *last == name => *n += 1,
            _ => runs.push((name, 1)),
        }
    }
    let shown = runs.iter().map(|(name, n)| match n {
        1 => name.clone(),
        _ => format!("{name}×{n}"),
    });
    shown.collect::<Vec<_>>().join(";")
}
