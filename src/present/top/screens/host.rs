//! Processes of which only the host's side is known: what they launch, and where their time in CUDA goes.
#![forbid(unsafe_code)]

use super::cell::{self, grows, right};
use super::open_ref;
use crate::analyse::report::{Caller, HostSide};
use crate::present::report::{name_of, or_dash};
use crate::present::top::list::{Cell, Tone};
use crate::present::top::model::Model;
use crate::present::top::screen::Block;

/// For each of them what is missing, and who calls.
pub fn blocks(model: &Model) -> Vec<Block> {
    let sides = model.window.report.host_sides.iter();
    sides.flat_map(of_process).collect()
}

fn of_process(side: &HostSide) -> [Block; 4] {
    let watched = side.watched;
    let fields = vec![
        grows("THREAD", 0, |caller: &Caller| {
            Cell::text(name_of(&caller.who)).tone(Tone::Name)
        }),
        right("LAUNCH/S", 0, move |caller: &Caller| {
            cell::rate(caller.launches, watched)
        }),
        right("LAUNCH %", 1, move |caller: &Caller| {
            cell::share(caller.times.launch, watched)
        }),
        right("SYNC %", 1, move |caller: &Caller| {
            cell::share(caller.times.sync, watched)
        }),
        right("COPY %", 2, move |caller: &Caller| {
            cell::share(caller.times.copy, watched)
        }),
        right("MEMORY %", 3, move |caller: &Caller| {
            cell::share(caller.times.memory, watched)
        }),
        right("OTHER %", 4, move |caller: &Caller| {
            cell::share(caller.times.other, watched)
        }),
    ];
    let list = cell::list("", fields, &side.callers, |caller| {
        let id = format!("{}:{}", caller.who.pid, caller.who.tid);
        (id, open_ref(Some(&caller.who)))
    });
    let title = format!("Host side of {} {}", or_dash(&side.comm), side.pid);
    let text = format!(
        "what its GPU did is not known, as {}: only calls of the driver are seen",
        or_dash(&side.reason)
    );
    [
        Block::Heading(title),
        Block::text("", text, Tone::Warn),
        Block::Table(list),
        Block::Blank,
    ]
}
