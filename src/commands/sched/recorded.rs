//! A recording: read once, event by event, and summed up.

use std::path::Path;

use crate::analyse::sched::recorded::{self, Scope};
use crate::analyse::sched::Summary;
use crate::cli::SchedOptions;
use crate::commands::loaded::{load, Loaded};
use crate::commands::warn;
use crate::error::{status, Error};
use crate::model::Timeline;
use crate::units::Nanos;

pub(super) fn run(
    options: &SchedOptions,
    input: &Path,
    from: Option<Nanos>,
    to: Option<Nanos>,
) -> anyhow::Result<u8> {
    let Loaded {
        timeline,
        warnings,
        whole,
    } = load(input)?;
    for warning in &warnings {
        warn(warning);
    }
    let mut summary = summary(&timeline, options, (from, to))?;
    let lost = summary.lost;
    if !whole {
        // Nobody knows what else was in it.
        summary.lost = None;
        summary.notes.splice(0..0, warnings);
    }
    super::write(options, &summary)?;
    Ok(match lost {
        _ if !whole => status::FAILED,
        Some(lost) if lost > 0 && options.strict => return Err(Error::EventsLost { lost }.into()),
        Some(_) | None => status::DONE,
    })
}

fn summary(
    timeline: &Timeline,
    options: &SchedOptions,
    (from, to): (Option<Nanos>, Option<Nanos>),
) -> Result<Summary, Error> {
    let switches = |from, to| {
        timeline
            .cpus()
            .iter()
            .map(|cpu| cpu.switches(from, to))
            .sum::<u64>()
    };
    if switches(Nanos::ZERO, Nanos::MAX) == 0 {
        return Err(super::no_switches());
    }
    let start = timeline.start();
    let at = |time: Nanos| Nanos(start.0.saturating_add(time.0)).min(timeline.end());
    let scope = Scope {
        from: from.map_or(start, at),
        to: to.map_or(timeline.end(), at),
        cpus: options.cpus.as_deref(),
        tids: &options.tids,
        joins: false,
    };
    let summary = recorded::summary(timeline, &scope);
    if summary.threads.is_empty() && (!options.tids.is_empty() || options.cpus.is_some()) {
        return Err(super::nothing_there());
    }
    Ok(summary)
}
