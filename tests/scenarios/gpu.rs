//! A GPU of a report, with the arithmetic that every report owes checked when it is read.

use std::collections::BTreeMap;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub start: u64,
    pub end: u64,
    pub cause: String,
    pub what: String,
}

impl Part {
    pub fn ns(&self) -> u64 {
        self.end - self.start
    }
}

#[derive(Clone, Debug)]
pub struct Gap {
    pub start: u64,
    pub end: u64,
    pub parts: Vec<Part>,
}

#[derive(Clone, Debug)]
pub struct Gpu {
    pub index: u64,
    pub window: u64,
    pub idle: u64,
    /// ns by cause id.
    pub causes: BTreeMap<String, u64>,
    /// By start.
    pub gaps: Vec<Gap>,
}

pub fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no whole number: {value}"))
}

pub fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("no text: {value}"))
        .to_string()
}

fn list(value: &Value) -> &Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
}

impl Gpu {
    /// Those that have idle figures. Short gaps need not be listed.
    pub fn read_all(report: &Value) -> Vec<Gpu> {
        let gpus = list(&report["gpus"]).iter().enumerate();
        let told = gpus.filter(|(_, gpu)| !gpu["idle_ns"].is_null());
        told.map(|(index, _)| Gpu::read(report, index, false))
            .collect()
    }

    /// Device `index` of a report with idle figures. `every_gap`: short ones are listed, too.
    pub fn read(report: &Value, index: usize, every_gap: bool) -> Gpu {
        let gpu = &report["gpus"][index];
        let causes = list(&gpu["causes"]).iter().map(|row| {
            let by: u64 = list(&row["by"]).iter().map(|by| number(&by["ns"])).sum();
            assert_eq!(by, number(&row["ns"]), "who did it adds up: {row}");
            (text(&row["id"]), by)
        });
        let mut gaps: Vec<Gap> = list(&gpu["gaps"]).iter().map(read_gap).collect();
        gaps.sort_by_key(|gap| gap.start);
        let gpu = Gpu {
            index: number(&gpu["index"]),
            window: number(&gpu["window_ns"]),
            idle: number(&gpu["idle_ns"]),
            causes: causes.collect(),
            gaps,
        };
        gpu.check(number(&report["gpus"][index]["busy_ns"]), every_gap);
        gpu
    }

    fn check(&self, busy: u64, every_gap: bool) {
        assert_eq!(busy + self.idle, self.window, "busy and idle");
        assert_eq!(self.causes.values().sum::<u64>(), self.idle, "causes");
        for pair in self.gaps.windows(2) {
            assert!(pair[0].end <= pair[1].start, "gaps overlap: {pair:?}");
        }
        let mut listed: BTreeMap<String, u64> = BTreeMap::new();
        for part in self.gaps.iter().flat_map(|gap| &gap.parts) {
            *listed.entry(part.cause.clone()).or_default() += part.ns();
        }
        if every_gap {
            assert_eq!(listed, self.causes, "the gaps' parts by cause");
        }
        for (cause, ns) in &listed {
            assert!(*ns <= self.causes[cause], "{cause}: more in the gaps");
        }
    }

    /// The parts of gaps within `[start, end)`, cut to it.
    pub fn parts_in(&self, start: u64, end: u64) -> impl Iterator<Item = Part> + '_ {
        let first = self.gaps.partition_point(|gap| gap.end <= start);
        self.gaps[first..]
            .iter()
            .take_while(move |gap| gap.start < end)
            .flat_map(|gap| &gap.parts)
            .map(move |part| Part {
                start: part.start.max(start),
                end: part.end.min(end),
                ..part.clone()
            })
            .filter(|part| part.start < part.end)
    }
}

fn read_gap(gap: &Value) -> Gap {
    let parts = list(&gap["parts"]).iter().map(|part| Part {
        start: number(&part["start_ns"]),
        end: number(&part["end_ns"]),
        cause: text(&part["cause"]),
        what: text(&part["what"]),
    });
    let gap = Gap {
        start: number(&gap["start_ns"]),
        end: number(&gap["end_ns"]),
        parts: parts.collect(),
    };
    // Each begins where the one before ends: disjoint, and nothing left out.
    let mut at = gap.start;
    for part in &gap.parts {
        assert_eq!(part.start, at, "parts of {gap:?}");
        assert!(part.start < part.end, "an empty part of {gap:?}");
        at = part.end;
    }
    assert_eq!(at, gap.end, "parts of {gap:?}");
    gap
}
