//! One cause: what lets a person check the claim, who it was, what to do, and the gaps that it made.
#![forbid(unsafe_code)]

use super::cell::{self, grows, right};
use super::{causes, gaps, open_ref};
use crate::analyse::cause::Cause;
use crate::analyse::report::{Blame, CauseRow, Gpu};
use crate::present::report::{name_of, or_dash, window};
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::Model;
use crate::present::top::screen::{Block, Screen};
use crate::present::top::view::View;
use crate::units::{Count, Share};

/// The table of the gaps needs room too.
const CULPRITS: usize = 5;

/// Of the GPU that is looked at.
pub fn screen(model: &Model, view: &View, cause: Cause) -> Screen {
    let gpu = view.gpu(model);
    let row = gpu.and_then(|gpu| {
        let row = gpu.causes.iter().find(|row| row.cause == cause)?;
        Some((gpu, row))
    });
    let Some((gpu, row)) = row else {
        let on = gpu.map_or("no GPU".to_string(), causes::name);
        let text = "no idle time of this cause in the window that is shown";
        return Screen::Page {
            title: format!("{} on {on}", cause.id()),
            blocks: vec![Block::text("", text, Tone::Dim)],
        };
    };
    let mut above = said(gpu, row);
    above.extend([Block::Table(culprits(row)), Block::Blank]);
    Screen::Table {
        above,
        list: gaps::of_cause(model, gpu, cause),
    }
}

fn said(gpu: &Gpu, row: &CauseRow) -> Vec<Block> {
    let claim = format!(
        "it waited {} for {}: {} of idle, {} of the time, in {} gaps",
        row.total,
        row.cause.waited_for(),
        Share(row.share),
        Share(row.total.share_of(window(gpu))),
        Count(row.gaps),
    );
    let title = format!("{} on {}", row.cause.id(), causes::name(gpu));
    let mut blocks = vec![Block::Heading(title), Block::text("", claim, Tone::Plain)];
    if !row.cause.fix().is_empty() {
        blocks.push(Block::text("fix: ", row.cause.fix(), Tone::Good));
    }
    let evidence = row.evidence.iter();
    blocks.extend(evidence.map(|said| Block::text("- ", said.as_str(), Tone::Plain)));
    blocks
}

fn culprits(row: &CauseRow) -> List {
    let all = row.total;
    let fields = vec![
        right("OF IT %", 0, move |blame: &Blame| {
            cell::share(blame.total, all).with_bar()
        }),
        right("TIME", 1, |blame: &Blame| cell::time(Some(blame.total))),
        grows("WHO", 0, |blame: &Blame| {
            blame
                .who
                .as_ref()
                .map_or_else(Cell::none, |who| Cell::text(name_of(who)).tone(Tone::Name))
        }),
        grows("WHAT", 0, |blame: &Blame| Cell::text(or_dash(&blame.what))),
    ];
    let shown = &row.by[..row.by.len().min(CULPRITS)];
    cell::list("", fields, shown, |blame| {
        let who = blame.who.as_ref().map_or(String::new(), name_of);
        let opens = open_ref(blame.who.as_ref());
        (format!("{who} {}", blame.what), opens)
    })
}
