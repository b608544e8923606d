//! The gaps of a GPU, longest first.
#![forbid(unsafe_code)]

use super::cell::{self, grows, left, right};
use super::{causes, tone_of};
use crate::analyse::cause::Cause;
use crate::analyse::report::{Gap, Gpu};
use crate::present::names;
use crate::present::report::gap::{length, merge};
use crate::present::report::{name_of, who_and_what};
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::Model;
use crate::present::top::view::{Open, View};
use crate::units::{Count, Nanos};

/// A gap, and of what the list tells.
struct Told<'a> {
    gap: &'a Gap,
    cause: Cause,
    /// Of that cause.
    time: Nanos,
    who: String,
}

pub fn list(model: &Model, view: &View) -> List {
    let Some(gpu) = view.gpu(model) else {
        let mut list = List {
            title: "Gaps".to_string(),
            ..List::default()
        };
        list.notes.push("there are no GPU records".to_string());
        return list;
    };
    let told = gpu.gaps.iter().filter_map(|gap| tell(gap, |_| true));
    let (listed, all) = (gpu.gaps.len() as u64, gpu.gap_count);
    let title = format!(
        "{}: longest gaps, {} of {}",
        causes::name(gpu),
        Count(listed),
        Count(all.max(listed))
    );
    table(title, model, gpu, &told.collect::<Vec<_>>())
}

/// Those with a part of it, most of it first.
pub fn of_cause(model: &Model, gpu: &Gpu, cause: Cause) -> List {
    let told = gpu.gaps.iter().filter_map(|gap| tell(gap, |c| c == cause));
    let mut told: Vec<Told<'_>> = told.collect();
    told.sort_by_key(|told| std::cmp::Reverse(told.time));
    let title = format!("Gaps with {}, of those that are listed", cause.id());
    table(title, model, gpu, &told)
}

/// By the largest part of those that matter.
fn tell(gap: &Gap, matters: impl Fn(Cause) -> bool) -> Option<Told<'_>> {
    let lines = merge(&gap.parts);
    let of_cause = |cause| {
        let lines = lines.iter().filter(|line| line.cause == cause);
        lines.map(|line| line.total).sum::<Nanos>()
    };
    let main = lines.iter().find(|line| matters(line.cause));
    let Some(main) = main else {
        // Nothing is said of its parts; it was there all the same.
        return (lines.is_empty() && matters(Cause::Unknown)).then(|| Told {
            gap,
            cause: Cause::Unknown,
            time: length(gap),
            who: "-".to_string(),
        });
    };
    Some(Told {
        gap,
        cause: main.cause,
        time: of_cause(main.cause),
        who: who_and_what(main.who, main.what),
    })
}

fn table(title: String, model: &Model, gpu: &Gpu, told: &[Told<'_>]) -> List {
    let longest = told.iter().map(|told| length(told.gap)).max();
    let fields = vec![
        right("LENGTH", 0, move |told: &Told<'_>| {
            let mut cell = cell::time(Some(length(told.gap)));
            cell.bar = longest.map(|longest| length(told.gap).share_of(longest));
            cell
        }),
        right("AT", 1, |told: &Told<'_>| cell::at(model, told.gap.start)),
        right("OF GAP %", 3, |told: &Told<'_>| {
            cell::share(told.time, length(told.gap))
        }),
        left("CAUSE", 0, |told: &Told<'_>| {
            Cell::text(told.cause.id()).tone(tone_of(told.cause))
        }),
        grows("WHO: WHAT", 2, |told: &Told<'_>| {
            Cell::text(told.who.as_str())
        }),
        left("LAUNCHED BY", 4, |told: &Told<'_>| {
            let who = told.gap.dispatcher.as_ref();
            who.map_or_else(Cell::none, |who| Cell::text(name_of(who)).tone(Tone::Name))
        }),
        left("ENDED BY", 5, |told: &Told<'_>| match &told.gap.next {
            Some(next) => Cell::text(format!("{} {}", next.kind, names::short(&next.name))),
            None => Cell::text("still open").tone(Tone::Warn),
        }),
    ];
    cell::list(title, fields, told, |told| {
        let start = told.gap.start;
        let opens = Open::Gap {
            gpu: gpu.index,
            start,
        };
        (format!("{}:{}", gpu.index, start.as_u64()), Some(opens))
    })
}
