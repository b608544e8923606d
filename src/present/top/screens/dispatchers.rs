//! The threads that feed the GPUs: where their time went.
#![forbid(unsafe_code)]

use super::cell::{self, analysed, grows, left, right};
use super::threads::{blocked_on, ran_on, seen, table, Role, Seen};
use crate::present::top::list::{Cell, List, Piece, Tone};
use crate::present::top::model::Model;
use crate::units::Nanos;

/// Those that launched most first.
pub fn list(model: &Model) -> List {
    let window = analysed(&model.window);
    let mut threads = seen(model);
    threads.retain(|seen| seen.role == Role::Dispatcher);
    threads.sort_by_key(|seen| {
        let launches = seen.cuda.map_or(0, |cuda| cuda.launches);
        (std::cmp::Reverse(launches), seen.sum.who.tid)
    });
    let fields = vec![
        left("THREAD", 0, |seen: &Seen<'_>| {
            Cell::text(seen.sum.who.to_string()).tone(Tone::Name)
        }),
        grows("STATE", 1, move |seen: &Seen<'_>| states(seen, window)),
        right("RUN %", 0, move |seen: &Seen<'_>| {
            cell::share(seen.sum.run, window)
        }),
        right("RUNQ %", 0, move |seen: &Seen<'_>| match seen.waited() {
            Some(waited) => cell::share(waited, window).harm(),
            None => Cell::none(),
        }),
        left("BLOCKED ON", 2, move |seen: &Seen<'_>| {
            blocked_on(seen, window)
        }),
        right("CUDA %", 3, move |seen: &Seen<'_>| match seen.cuda {
            Some(cuda) => cell::share(cuda.time, window),
            None => Cell::none(),
        }),
        right("LAUNCH/S", 5, move |seen: &Seen<'_>| match seen.cuda {
            Some(cuda) => cell::rate(cuda.launches, window),
            None => Cell::none(),
        }),
        right("CPU", 4, |seen: &Seen<'_>| ran_on(&seen.sum.cpus)),
        right("MIGR", 7, |seen: &Seen<'_>| {
            cell::count(seen.sum.migrations)
        }),
        left("BEHIND", 6, |seen: &Seen<'_>| cell::who_for(seen.behind)),
    ];
    let title = "Dispatch threads: R running, Q runnable, T throttled, B blocked";
    table(title.to_string(), fields, &threads)
}

/// All of the window, divided.
fn states(seen: &Seen<'_>, window: Nanos) -> Cell {
    let states = [
        (Some(seen.sum.run), 'R', Tone::Good),
        (seen.waited(), 'Q', Tone::Bad),
        (seen.throttled(), 'T', Tone::Warn),
        (seen.blocked(), 'B', Tone::Dim),
    ];
    let pieces = states.into_iter().filter_map(|(time, mark, tone)| {
        let share = time?.share_of(window);
        (share > 0.0).then_some(Piece { share, mark, tone })
    });
    Cell {
        pieces: pieces.collect(),
        ..Cell::default()
    }
}
