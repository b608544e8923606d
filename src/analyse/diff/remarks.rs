//! What else differs between two recordings: whoever reads a comparison has to know it first.
#![forbid(unsafe_code)]

use std::fmt::Display;

use crate::analyse::diff::{has_enough, GpuSide, Side, LEAST_OPERATIONS, LEAST_STEPS};
use crate::store::meta::{GpuSource, Meta, Summary, TargetMode};
use crate::units::Count;

/// What is known of one recording as a whole.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    pub meta: &'a Meta,
    pub summary: Option<&'a Summary>,
    pub side: &'a Side,
}

/// Sentences, most important first.
pub fn remarks(a: About<'_>, b: About<'_>) -> Vec<String> {
    let mut said = Vec::new();
    let source = |about: About<'_>| about.summary.map(|summary| summary.gpu_source);
    let simulated = |about| source(about) == Some(GpuSource::Simulated);
    if simulated(a) != simulated(b) {
        let which = if simulated(a) { "A" } else { "B" };
        said.push(format!(
            "the GPU of {which} is simulated: its busy time is made up"
        ));
    }
    gpus(a.side, b.side, &mut said);
    for (name, about) in [("A", a), ("B", b)] {
        // What was lost is among them.
        let own = about.side.quality.warnings.iter();
        said.extend(own.map(|text| format!("{name}: {text}")));
        for gpu in &about.side.gpus {
            of_gpu(name, gpu, &mut said);
        }
    }
    if a.meta.host != b.meta.host {
        differ("machines", &a.meta.host, &b.meta.host, &mut said);
    } else {
        other_cards(a.side, b.side, &mut said);
        if a.meta.boot_id != b.meta.boot_id {
            said.push("the machine was booted in between".to_string());
        }
    }
    differ("kernels", &a.meta.kernel, &b.meta.kernel, &mut said);
    differ(
        "online CPUs",
        a.meta.cpus_online,
        b.meta.cpus_online,
        &mut said,
    );
    let versions = (&a.meta.gdiag_version, &b.meta.gdiag_version);
    differ("versions of gdiag", versions.0, versions.1, &mut said);
    let mode = |m: &Meta| match m.mode {
        TargetMode::Launch => "from its start",
        TargetMode::Attach => "while it ran",
        TargetMode::All => "as the whole machine",
    };
    differ("ways to record", mode(a.meta), mode(b.meta), &mut said);
    said
}

fn differ<T: PartialEq + Display>(what: &str, a: T, b: T, said: &mut Vec<String>) {
    if a != b {
        let shown = |value: T| match value.to_string() {
            text if text.is_empty() => "-".to_string(),
            text => text,
        };
        said.push(format!("the {what} differ: {} and {}", shown(a), shown(b)));
    }
}

fn gpus(a: &Side, b: &Side, said: &mut Vec<String>) {
    for (name, side) in [("A", a), ("B", b)] {
        if side.gpus.is_empty() {
            said.push(format!("{name} has no GPU activity"));
        }
    }
    if a.gpus.is_empty() || b.gpus.is_empty() {
        return;
    }
    for (name, one, other) in [("A", a, b), ("B", b, a)] {
        let has = |gpu: &&GpuSide| !other.gpus.iter().any(|o| o.index == gpu.index);
        for gpu in one.gpus.iter().filter(has) {
            said.push(format!(
                "only {name} used GPU {}: it is not compared",
                gpu.index
            ));
        }
    }
    for one in &a.gpus {
        let other = b.gpus.iter().find(|other| other.index == one.index);
        if let Some(other) = other.filter(|other| other.name != one.name) {
            differ(
                &format!("models of GPU {}", one.index),
                &one.name,
                &other.name,
                said,
            );
        }
    }
}

/// Each recording numbers the cards that were used in it.
fn other_cards(a: &Side, b: &Side, said: &mut Vec<String>) {
    for one in &a.gpus {
        let is_other = |other: &&GpuSide| {
            other.index == one.index
                && other.name == one.name
                && other.uuid != one.uuid
                && !other.uuid.is_empty()
                && !one.uuid.is_empty()
        };
        if b.gpus.iter().any(|other| is_other(&other)) {
            said.push(format!("GPU {} is another card in B", one.index));
        }
    }
}

fn of_gpu(name: &str, gpu: &GpuSide, said: &mut Vec<String>) {
    let index = gpu.index;
    if !gpu.is_told {
        said.push(format!(
            "idle time of GPU {index} is unknown in {name}, as its records are not complete"
        ));
    }
    if has_enough(gpu) {
        return;
    }
    let operations = gpu.operations.total();
    let (count, least) = match gpu.step {
        Some(step) if operations >= LEAST_OPERATIONS => {
            (format!("{} steps", operations / step.max(1)), LEAST_STEPS)
        }
        Some(_) | None => (
            format!("{} operations", Count(operations)),
            LEAST_OPERATIONS,
        ),
    };
    said.push(format!(
        "{name} has {count} of GPU {index}, too few to tell a change from noise: record at least {least}"
    ));
}
