//! The GPUs side by side, a line for each.
#![forbid(unsafe_code)]

use super::cell::{self, analysed, grows, left, right};
use super::tone_of;
use crate::analyse::live::{GpuPoint, Launches, Window};
use crate::analyse::report::{Gap, Gpu};
use crate::facts::GpuFacts;
use crate::present::report::window;
use crate::present::top::list::{Cell, Key, List, Tone};
use crate::present::top::model::Model;
use crate::present::top::theme::Glyphs;
use crate::units::{Nanos, Rate, Share};

/// Utilization by NVML that is so much higher hides something, 0 to 1.
const TELLING: f64 = 0.1;

/// What NVML says of it.
pub fn facts<'m>(model: &'m Model, gpu: &Gpu) -> Option<&'m GpuFacts> {
    model.facts.iter().find(|facts| facts.uuid == gpu.uuid)
}

/// Of launches whose operation ran on it.
pub fn launches<'m>(window: &'m Window, gpu: &Gpu) -> Option<&'m Launches> {
    window.launches.iter().find(|l| l.gpu == gpu.index)
}

pub fn launch_rate(window: &Window, gpu: &Gpu) -> Option<Rate> {
    Rate::of(launches(window, gpu)?.call.count, analysed(window))
}

pub fn busy_share(gpu: &Gpu) -> Option<f64> {
    Some(gpu.busy?.share_of(window(gpu)))
}

pub fn longest(gpu: &Gpu) -> Option<&Gap> {
    let gaps = gpu.gaps.iter();
    gaps.max_by_key(|gap| gap.end.saturating_sub(gap.start))
}

/// What the driver calls busy, when it is far from what was measured.
pub fn hidden(gpu: &Gpu, facts: &GpuFacts) -> Option<u32> {
    let said = facts.utilization?;
    let measured = busy_share(gpu)?;
    ((f64::from(said) / 100.0 - measured).abs() >= TELLING).then_some(said)
}

/// Busy shares of the window in so many columns, the newest last; unknown ones are marked.
pub fn trend(window: &Window, gpu: u32, columns: usize, glyphs: &Glyphs) -> String {
    let points: Vec<Option<f64>> = window
        .points
        .iter()
        .map(|point| {
            let gpu = point.gpus.iter().find(|g| g.gpu == gpu)?;
            share(gpu)
        })
        .collect();
    spark(&points, columns, glyphs)
}

fn share(point: &GpuPoint) -> Option<f64> {
    let (busy, idle) = (point.busy?, point.idle?);
    let whole = busy.saturating_add(idle);
    (whole.as_u64() > 0).then(|| busy.share_of(whole))
}

/// Several points of one column are their average; fewer points than columns get a column each.
pub fn spark(points: &[Option<f64>], columns: usize, glyphs: &Glyphs) -> String {
    let columns = columns.min(points.len());
    let column = |i: usize| {
        let from = i * points.len() / columns;
        let to = ((i + 1) * points.len() / columns).max(from + 1);
        let known: Vec<f64> = points[from..to].iter().flatten().copied().collect();
        if known.is_empty() {
            return glyphs.unknown;
        }
        #[allow(clippy::cast_precision_loss)]
        let average = known.iter().sum::<f64>() / known.len() as f64;
        height(average, glyphs)
    };
    (0..columns).map(column).collect()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]
fn height(share: f64, glyphs: &Glyphs) -> char {
    let last = glyphs.spark.len() - 1;
    let step = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
    glyphs.spark[step.min(last)]
}

/// What it was busy with; they can overlap.
pub fn kinds(gpu: &Gpu) -> String {
    let kinds = [
        ("kernels", gpu.busy_kernel),
        ("copies", gpu.busy_memcpy),
        ("memsets", gpu.busy_memset),
    ];
    let some = kinds.into_iter().filter(|(_, time)| *time > Nanos::ZERO);
    let texts: Vec<String> = some
        .map(|(name, time)| format!("{name} {}", Share(time.share_of(window(gpu)))))
        .collect();
    texts.join(", ")
}

pub fn list(model: &Model, chosen: usize, glyphs: &Glyphs) -> List {
    let time = analysed(&model.window);
    let here = |gpu: &Gpu| {
        let gpus = &model.window.report.gpus;
        gpus.get(chosen.min(gpus.len().saturating_sub(1)))
            .is_some_and(|g| std::ptr::eq(g, gpu))
    };
    let fields = vec![
        left("GPU", 0, move |gpu: &&Gpu| {
            let mark = if here(gpu) { glyphs.cursor } else { ' ' };
            Cell::text(format!("{mark}{}", gpu.index)).tone(Tone::Strong)
        }),
        grows("NAME", 8, |gpu: &&Gpu| {
            Cell::text(gpu.name.as_str()).tone(Tone::Name)
        }),
        right("BUSY %", 0, |gpu: &&Gpu| match gpu.busy {
            Some(busy) => cell::share(busy, window(gpu)).with_bar(),
            None => Cell::none(),
        }),
        left("TREND", 3, move |gpu: &&Gpu| {
            Cell::text(trend(&model.window, gpu.index, 16, glyphs)).tone(Tone::Good)
        }),
        left("TOP CAUSE", 0, |gpu: &&Gpu| match gpu.causes.first() {
            Some(row) if gpu.operations > 0 => Cell::text(row.cause.id()).tone(tone_of(row.cause)),
            _ => Cell::default(),
        }),
        right("IDLE %", 1, |gpu: &&Gpu| match gpu.causes.first() {
            Some(row) if gpu.operations > 0 => cell::share(row.total, gpu.idle.unwrap_or_default()),
            _ => Cell::default(),
        }),
        right("SMI %", 2, move |gpu: &&Gpu| {
            let facts = facts(model, gpu);
            let Some(said) = facts.and_then(|facts| facts.utilization) else {
                return Cell::none();
            };
            let tone = match facts.and_then(|facts| hidden(gpu, facts)) {
                Some(_) => Tone::Warn,
                None => Tone::Plain,
            };
            Cell {
                key: Key::Number(f64::from(said)),
                ..Cell::text(said.to_string()).tone(tone)
            }
        }),
        right("LONGEST", 4, |gpu: &&Gpu| {
            cell::time(longest(gpu).map(|gap| gap.end.saturating_sub(gap.start)))
        }),
        right("LAUNCH/S", 5, move |gpu: &&Gpu| {
            match launches(&model.window, gpu) {
                Some(launches) => cell::rate(launches.call.count, time),
                None => Cell::none(),
            }
        }),
        right("MEMORY", 6, move |gpu: &&Gpu| {
            cell::bytes(facts(model, gpu).and_then(|facts| facts.memory_used))
        }),
        right("WATTS", 7, move |gpu: &&Gpu| {
            let watts = facts(model, gpu).and_then(|facts| facts.power_watts);
            watts.map_or_else(Cell::none, |watts| Cell {
                key: Key::Number(watts),
                ..Cell::text(format!("{watts:.0}"))
            })
        }),
    ];
    let gpus: Vec<&Gpu> = model.window.report.gpus.iter().collect();
    cell::list("GPUs", fields, &gpus, |gpu| (gpu.uuid.clone(), None))
}

/// For people: what is known of the card at `now`, in the order of what matters.
pub fn card(facts: &GpuFacts, now: Nanos) -> Vec<(String, Tone)> {
    let mut said = Vec::new();
    if facts.is_stale(now) {
        let since = now.saturating_sub(facts.at);
        said.push((
            format!("the driver has not answered for {since}"),
            Tone::Bad,
        ));
    }
    if let Some(note) = &facts.note {
        said.push((note.clone(), Tone::Warn));
    }
    if let Some(reasons @ [_, ..]) = facts.throttle.as_deref() {
        let text = format!("throttled: {}", reasons.join(", "));
        said.push((text, Tone::Warn));
    }
    if let Some(used) = facts.memory_used {
        let of = facts.memory_total.map_or(String::new(), |total| {
            #[allow(clippy::cast_precision_loss)]
            let share = used.0 as f64 / (total.0.max(1)) as f64;
            format!(" of {total} ({})", Share(share))
        });
        said.push((format!("memory {used}{of}"), Tone::Plain));
    }
    if let Some(watts) = facts.power_watts {
        let limit = facts.power_limit_watts;
        let of = limit.map_or(String::new(), |limit| format!(" of {limit:.0}"));
        said.push((format!("{watts:.0}{of} W"), Tone::Plain));
    }
    if let Some(mhz) = facts.sm_clock_mhz {
        let of = facts.sm_clock_max_mhz;
        let of = of.map_or(String::new(), |max| format!(" of {max}"));
        said.push((format!("SM {mhz}{of} MHz"), Tone::Plain));
    }
    if let Some(celsius) = facts.temperature_celsius {
        said.push((format!("{celsius} C"), Tone::Plain));
    }
    if let Some(mhz) = facts.memory_clock_mhz {
        said.push((format!("memory clock {mhz} MHz"), Tone::Dim));
    }
    if let Some(share) = facts.memory_utilization {
        said.push((format!("memory busy {share} %"), Tone::Dim));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present::top::Theme;

    #[test]
    fn a_sparkline_has_the_average_of_each_column() {
        let theme = Theme {
            unicode: true,
            ..Theme::MONO
        };
        let points = [
            Some(0.0),
            Some(0.0),
            Some(1.0),
            None,
            None,
            None,
            Some(0.4),
            Some(0.6),
        ];
        assert_eq!(spark(&points, 4, theme.glyphs()), "▁█·▅");
        assert_eq!(spark(&points[..2], 4, theme.glyphs()), "▁▁");
        assert_eq!(spark(&[], 4, theme.glyphs()), "");
    }
}
