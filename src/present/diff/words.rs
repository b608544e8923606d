//! What changed, in two or three sentences, and numbers with their noise.
#![forbid(unsafe_code)]

use crate::analyse::diff::{CauseDiff, Diff, Figure, GpuDiff, NamedDiff, Work};
use crate::present::names;
use crate::present::report::{or_dash, who_and_what};
use crate::present::text::cut_middle;
use crate::units::{Count, Nanos};

pub(super) struct Told {
    pub(super) first: String,
    pub(super) more: Vec<String>,
    pub(super) fix: Option<&'static str>,
}

/// Kernels named in a sentence.
const KERNELS: usize = 2;

/// Columns of such a name; the table below has more of it.
const NAME: usize = 50;

/// From this part of a change on, a cause is most of it.
const MOST: f64 = 0.5;

pub(super) fn verdict(gpu: &GpuDiff, diff: &Diff) -> Told {
    let title = format!("GPU {} {}", gpu.index, or_dash(&gpu.name_b));
    let (work, of) = work_of(gpu);
    let mut more: Vec<String> = Vec::new();
    let mut fix = None;
    // With only more or less busy time, idle time is another share of it, and nobody is to blame for that.
    let against = |(idle, busy): (f64, f64)| idle * busy < 0.0;
    let is_diluted = work.busy.changed() == Some(true)
        && work.idle.changed() == Some(false)
        && gpu
            .idle
            .change()
            .zip(work.busy.change())
            .is_some_and(against);
    if let Some((text, remedy)) = main_cause(gpu).filter(|_| !is_diluted) {
        more.push(text);
        fix = remedy;
    }
    more.extend(pace(work, &of));
    if work.busy.changed() == Some(true) {
        more.extend(kernels(&diff.kernels));
    }
    let mut named = diff.kernels.iter().chain(&diff.calls);
    let unchanged = if named.any(|row| row.mean.changed() == Some(true)) {
        "no change of its time beyond noise; "
    } else {
        "nothing changed beyond noise; "
    };
    let answer = if gpu.changed() == Some(false) {
        unchanged
    } else {
        ""
    };
    let first = format!("{title}: {answer}{}", idle(&gpu.idle));
    Told { first, more, fix }
}

/// A step where there is one, else a thousand operations.
fn work_of(gpu: &GpuDiff) -> (&Work, String) {
    match &gpu.step {
        Some(step) if step.operations_a == step.operations_b => {
            let of = format!("a step of {} operations", Count(step.operations_a));
            (&step.work, of)
        }
        Some(step) => {
            let (a, b) = (Count(step.operations_a), Count(step.operations_b));
            (&step.work, format!("a step (of {a} operations, now {b})"))
        }
        None => (&gpu.work, "1,000 operations".to_string()),
    }
}

fn idle(figure: &Figure) -> String {
    let (Some(a), Some(b), Some(change)) = (figure.a, figure.b, figure.change()) else {
        return "idle time is not known of both".to_string();
    };
    let values = format!("idle {} -> {}", share(a), share(b));
    let noise = figure
        .noise
        .map(|noise| format!("{:.1} points", noise * 100.0));
    match (figure.changed(), noise) {
        (Some(true), Some(noise)) => format!("{values} ({} +- {noise})", points(change)),
        (Some(false), Some(noise)) => format!("{values} (within noise, +- {noise})"),
        (Some(_), None) | (None, _) => {
            format!("{values} (noise not known, so no change is claimed)")
        }
    }
}

/// The cause that moved idle time most; where idle time is as before, the one that changed most within it.
fn main_cause(gpu: &GpuDiff) -> Option<(String, Option<&'static str>)> {
    let change = |row: &CauseDiff| row.share.change().unwrap_or(0.0);
    let idle = gpu
        .idle
        .change()
        .filter(|_| gpu.idle.changed() == Some(true));
    let along = idle.map_or(1.0, f64::signum);
    let changed = gpu
        .causes
        .iter()
        .filter(|row| row.share.changed() == Some(true));
    let row = match idle {
        Some(_) => changed
            .filter(|row| change(row) * along > 0.0)
            .max_by(by_change),
        None => changed.max_by(by_change),
    }?;
    let label = match idle {
        Some(idle) if change(row) / idle >= MOST => "most of it: ",
        Some(_) => "the greatest part: ",
        None => "but ",
    };
    let (a, b) = (row.share.a?, row.share.b?);
    let noise = row.share.noise? * 100.0;
    let who = row.by.as_ref().map_or(String::new(), |blame| {
        format!("; {}", who_and_what(blame.who.as_ref(), &blame.what))
    });
    let (id, points, a, b) = (row.cause.id(), points(change(row)), share(a), share(b));
    let text = format!("{label}{id} {points} +- {noise:.1} points ({a} -> {b}){who}");
    let fix = Some(row.cause.fix()).filter(|fix| change(row) > 0.0 && !fix.is_empty());
    Some((text, fix))
}

fn by_change(x: &&CauseDiff, y: &&CauseDiff) -> std::cmp::Ordering {
    let size = |row: &CauseDiff| row.share.change().map_or(0.0, f64::abs);
    size(x).total_cmp(&size(y))
}

/// What a unit of work takes, and whether that is idle or busy time.
fn pace(work: &Work, of: &str) -> Option<String> {
    let (a, b) = (work.time.a?, work.time.b?);
    let values = format!("{of} took {} -> {}", time(a), time(b));
    let noise = relative_noise(&work.time);
    let change = relative(&work.time);
    let (Some(noise), Some(change)) = (noise, change) else {
        return Some(format!("{values} (noise not known)"));
    };
    if work.time.changed() != Some(true) {
        return Some(format!("{values} (within noise, {noise})"));
    }
    let part = |figure: &Figure, name: &str| match (figure.change(), figure.changed()) {
        (Some(change), Some(true)) => format!("{name} {}", signed(change)),
        (Some(_), Some(false)) => format!("{name} as before"),
        (None, _) | (_, None) => format!("{name} not known"),
    };
    let (idle, busy) = (part(&work.idle, "idle"), part(&work.busy, "busy"));
    let noise = noise.trim_start_matches("+-");
    Some(format!("{values} ({change} +- {noise}): {idle}, {busy}"))
}

fn kernels(rows: &[NamedDiff]) -> Option<String> {
    let changed = rows.iter().filter(|row| row.mean.changed() == Some(true));
    let told: Vec<String> = changed
        .take(KERNELS)
        .filter_map(|row| {
            let short = names::short(&row.name);
            let name = cut_middle(&short, NAME);
            let (a, b) = (row.mean.a?, row.mean.b?);
            let change = relative(&row.mean)?;
            Some(format!("{name} {} -> {} ({change})", time(a), time(b)))
        })
        .collect();
    (!told.is_empty()).then(|| format!("kernels: {}", told.join(", ")))
}

pub(super) fn share(value: f64) -> String {
    crate::units::Share(value).to_string()
}

/// A change of a share.
pub(super) fn points(change: f64) -> String {
    format!("{:+.1}", change * 100.0)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn nanos(value: f64) -> Nanos {
    Nanos(value.abs().round() as u64)
}

pub(super) fn time(value: f64) -> String {
    nanos(value).to_string()
}

fn signed(change: f64) -> String {
    let sign = if change < 0.0 { '-' } else { '+' };
    format!("{sign}{}", nanos(change))
}

/// Change in parts of what it was.
pub(super) fn relative(figure: &Figure) -> Option<String> {
    let (a, change) = (figure.a.filter(|a| *a > 0.0)?, figure.change()?);
    Some(format!("{:+.1} %", 100.0 * change / a))
}

pub(super) fn relative_noise(figure: &Figure) -> Option<String> {
    let (a, noise) = (figure.a.filter(|a| *a > 0.0)?, figure.noise?);
    Some(format!("+-{:.1} %", 100.0 * noise / a))
}
