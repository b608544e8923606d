//! Processes of which only the host's side was recorded. What a GPU did is not known, and nothing here
//! may read as if it were.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::analyse::report::{HostSide, Pause};
use crate::present::page::{Page, Paint};
use crate::present::report::gap::since;
use crate::present::report::{heading, name_of, or_dash};
use crate::present::table::{Column, Table};
use crate::units::{Count, Nanos};

const PROCESSES: usize = 8;
const CALLERS: usize = 10;
/// Of what a thread did in a pause, the most.
const DOINGS: usize = 3;

const NOT_SEEN: &str =
    "when a GPU ran or was idle, kernels, graph nodes: so there are no gaps and no causes";

pub(super) fn sections(
    page: &mut Page<'_, impl Write>,
    sides: &[HostSide],
    recording_start: Nanos,
) -> io::Result<()> {
    for side in sides.iter().take(PROCESSES) {
        section(page, side, recording_start)?;
    }
    if sides.len() > PROCESSES {
        let more = Count((sides.len() - PROCESSES) as u64);
        page.line(Paint::Plain, &format!("and of {more} more processes"))?;
    }
    Ok(())
}

fn section(
    page: &mut Page<'_, impl Write>,
    side: &HostSide,
    recording_start: Nanos,
) -> io::Result<()> {
    let launches = side.callers.iter().map(|caller| caller.launches).sum();
    let title = format!(
        "Host side of {} {}: {} launches in {}",
        or_dash(&side.comm),
        side.pid,
        Count(launches),
        side.watched
    );
    heading(page, &title)?;
    let from = format!(
        "probes on the CUDA driver, from {} into the recording",
        since(side.from, recording_start)
    );
    page.labelled(Paint::Plain, "  measured by  ", &from)?;
    page.labelled(Paint::Plain, "  because      ", or_dash(&side.reason))?;
    page.labelled(Paint::Warning, "  not seen     ", NOT_SEEN)?;
    if side.callers.is_empty() {
        return page.line(Paint::Plain, "  no call was made");
    }
    page.blank()?;
    page.table(2, &callers(side))?;
    if side.pauses.is_empty() {
        return Ok(());
    }
    page.blank()?;
    let dispatcher = side.callers.first().map(|caller| name_of(&caller.who));
    let text = format!(
        "Longest pauses between launches of {}. That is no idle GPU: it may have had work all along.",
        dispatcher.unwrap_or_default()
    );
    page.labelled(Paint::Plain, "  ", &text)?;
    page.table(2, &pauses(&side.pauses, recording_start))
}

fn callers(side: &HostSide) -> Table {
    let mut table = Table::new(&[
        Column::Number("LAUNCHES"),
        Column::Number("A SECOND"),
        Column::Number("LAUNCH"),
        Column::Number("COPY"),
        Column::Number("SYNC"),
        Column::Number("MEMORY"),
        Column::Number("OTHER"),
        Column::Text("THREAD"),
    ]);
    for caller in side.callers.iter().take(CALLERS) {
        let times = caller.times;
        table.row([
            Count(caller.launches).to_string(),
            a_second(caller.launches, side.watched),
            times.launch.to_string(),
            times.copy.to_string(),
            times.sync.to_string(),
            times.memory.to_string(),
            times.other.to_string(),
            name_of(&caller.who),
        ]);
    }
    table
}

fn a_second(count: u64, time: Nanos) -> String {
    let each = u128::from(count) * 1_000_000_000;
    let rate = each.checked_div(u128::from(time.as_u64()));
    rate.map_or("-".to_string(), |rate| {
        Count(u64::try_from(rate).unwrap_or(u64::MAX)).to_string()
    })
}

fn pauses(pauses: &[Pause], recording_start: Nanos) -> Table {
    let mut table = Table::new(&[
        Column::Number("PAUSE"),
        Column::Number("AT"),
        Column::Prose("THE THREAD MEANWHILE"),
    ]);
    for pause in pauses {
        let shown = pause.doing.iter().take(DOINGS);
        let mut what: Vec<String> = shown.map(|(what, time)| format!("{what} {time}")).collect();
        if pause.open {
            what.push("no launch since".to_string());
        }
        table.row([
            pause.end.saturating_sub(pause.start).to_string(),
            since(pause.start, recording_start),
            what.join(", "),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_time_is_unknown() {
        assert_eq!(a_second(5, Nanos::ZERO), "-");
        assert_eq!(a_second(5, Nanos::from_millis(500)), "10");
        assert_eq!(a_second(u64::MAX, Nanos(1)), Count(u64::MAX).to_string());
    }
}
