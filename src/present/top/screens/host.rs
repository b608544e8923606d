//! Processes of which only the host's side is known: what they launch, and where their time in CUDA goes.
#![forbid(unsafe_code)]

use super::cell::{self, grows, right};
use super::{open_ref, Line, Section};
use crate::analyse::report::{Caller, HostSide};
use crate::present::report::{name_of, or_dash};
use crate::present::top::list::Tone;
use crate::present::top::model::Model;

pub fn sections(model: &Model) -> Vec<Section> {
    let sides = model.window.report.host_sides.iter();
    sides.map(section).collect()
}

fn section(side: &HostSide) -> Section {
    let watched = side.watched;
    let fields = vec![
        grows("THREAD", 0, |caller: &Caller| {
            cell::text(name_of(&caller.who)).tone(Tone::Name)
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
    let title = format!("Host side of {} {}", or_dash(&side.comm), side.pid);
    let list = cell::list(title, fields, &side.callers, |caller| {
        let id = format!("{}:{}", caller.who.pid, caller.who.tid);
        (id, open_ref(Some(&caller.who)))
    });
    let text = format!(
        "What its GPU did is not known, as {}: only calls of the driver are seen.",
        or_dash(&side.reason)
    );
    Section {
        text: vec![Line::new(Tone::Warn, text)],
        list,
        rank: 0,
        rows: 3,
    }
}
