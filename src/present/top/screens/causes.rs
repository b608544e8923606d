//! Why the GPU that is looked at was idle.
#![forbid(unsafe_code)]

use super::cell::{self, grows, left, right};
use super::tone_of;
use crate::analyse::report::{CauseRow, Gpu};
use crate::present::report::{accusation, is_busy, or_dash, unknown_text, who_and_what, window};
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::Model;
use crate::present::top::screen::Block;
use crate::present::top::view::{Open, View};
use crate::units::{Nanos, Share};

pub fn list(model: &Model, view: &View) -> List {
    let Some(gpu) = view.gpu(model) else {
        let mut list = table("Causes of idle time", &[], Nanos::ZERO, Nanos::ZERO);
        list.notes.push("there are no GPU records".to_string());
        return list;
    };
    of(gpu, &name(gpu))
}

/// All causes of it. The title begins with `head`.
pub fn of(gpu: &Gpu, head: &str) -> List {
    let title = format!("{head}: {}", idle(gpu));
    table(
        &title,
        &gpu.causes,
        gpu.idle.unwrap_or_default(),
        window(gpu),
    )
}

pub fn name(gpu: &Gpu) -> String {
    format!("GPU {} {}", gpu.index, or_dash(&gpu.name))
}

/// How idle, and how much of that is explained.
fn idle(gpu: &Gpu) -> String {
    match (gpu.idle, gpu.idle_explained) {
        (None, _) => "idle time unknown, as its records are not complete".to_string(),
        (Some(idle), explained) => {
            let explained = explained.map_or(String::new(), |share| {
                format!(", {} of that explained", Share(share))
            });
            let share = Share(idle.share_of(window(gpu)));
            format!(
                "idle {share} of {}{explained}{}",
                window(gpu),
                unknown_text(gpu)
            )
        }
    }
}

/// The worst cause, whose it is, and what can be done.
pub fn verdict(gpu: &Gpu) -> Vec<Block> {
    let said = |text: &str, tone| vec![Block::text("", text, tone)];
    // An operation counts where it ends: one that goes on is none yet.
    let is_unused = gpu.operations == 0 && gpu.busy == Some(Nanos::ZERO);
    if gpu.idle.is_some() && is_unused && gpu.causes.is_empty() {
        return said("nothing is known of it yet", Tone::Plain);
    }
    if is_busy(gpu) {
        return said("busy all the time: nothing to explain", Tone::Good);
    }
    let Some(top) = gpu.causes.first() else {
        return Vec::new();
    };
    let mut blocks = vec![Block::text("", accusation(top), Tone::Plain)];
    if !top.cause.fix().is_empty() {
        blocks.push(Block::text("fix: ", top.cause.fix(), Tone::Good));
    }
    blocks
}

fn table(title: &str, rows: &[CauseRow], idle: Nanos, window: Nanos) -> List {
    let fields = vec![
        right("IDLE %", 0, move |row: &CauseRow| {
            cell::share(row.total, idle).with_bar()
        }),
        right("TIME %", 2, move |row: &CauseRow| {
            cell::share(row.total, window)
        }),
        right("TIME", 4, |row: &CauseRow| cell::time(Some(row.total))),
        right("GAPS", 5, |row: &CauseRow| cell::count(row.gaps)),
        left("CAUSE", 0, |row: &CauseRow| {
            Cell::text(row.cause.id()).tone(tone_of(row.cause))
        }),
        grows("WHO: WHAT", 1, |row: &CauseRow| {
            row.by.first().map_or_else(Cell::none, |blame| {
                Cell::text(who_and_what(blame.who.as_ref(), &blame.what))
            })
        }),
    ];
    cell::list(title, fields, rows, |row| {
        (row.cause.id().to_string(), Some(Open::Cause(row.cause)))
    })
}
