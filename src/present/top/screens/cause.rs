//! One cause: what lets a person check the claim, who it was, what to do, and the gaps that it made.
#![forbid(unsafe_code)]

use super::cell::{self, grows, right};
use super::{causes, gaps, open_ref, Line, Section};
use crate::analyse::cause::Cause;
use crate::analyse::report::{Blame, CauseRow, Gpu};
use crate::present::report::{name_of, or_dash, window};
use crate::present::top::list::{List, Tone};
use crate::present::top::model::Model;
use crate::present::top::view::View;
use crate::units::{Count, Share};

/// Of the GPU that is looked at.
pub fn sections(model: &Model, view: &View, cause: Cause) -> Vec<Section> {
    let gpu = view.gpu(model);
    let row = gpu.and_then(|gpu| {
        let row = gpu.causes.iter().find(|row| row.cause == cause)?;
        Some((gpu, row))
    });
    let Some((gpu, row)) = row else {
        let on = gpu.map_or("no GPU".to_string(), causes::name);
        let text = "no idle time of this cause in the window that is shown";
        return vec![Section {
            list: List {
                title: format!("{} on {on}", cause.id()),
                ..List::default()
            },
            text: vec![Line::new(Tone::Dim, text)],
            ..Section::default()
        }];
    };
    let mut sections = vec![Section {
        text: said(gpu, row),
        list: culprits(gpu, row),
        rows: 5,
        rank: 0,
    }];
    let list = gaps::of_cause(model, gpu, cause);
    if !list.rows.is_empty() {
        sections.push(Section {
            list,
            rows: 5,
            rank: 1,
            ..Section::default()
        });
    }
    sections
}

fn said(gpu: &Gpu, row: &CauseRow) -> Vec<Line> {
    let claim = format!(
        "It waited {} for {}: {} of idle, {} of the time, in {} gaps.",
        row.total,
        row.cause.waited_for(),
        Share(row.share),
        Share(row.total.share_of(window(gpu))),
        Count(row.gaps),
    );
    let mut lines = vec![Line::new(Tone::Plain, claim)];
    let evidence = row.evidence.iter();
    lines.extend(evidence.map(|said| Line::new(Tone::Plain, said.as_str())));
    if !row.cause.fix().is_empty() {
        lines.push(Line::new(Tone::Good, format!("fix: {}", row.cause.fix())));
    }
    lines
}

fn culprits(gpu: &Gpu, row: &CauseRow) -> List {
    let all = row.total;
    let fields = vec![
        right("OF IT %", 0, move |blame: &Blame| {
            cell::share(blame.total, all).with_bar()
        }),
        right("TIME", 1, |blame: &Blame| cell::time(Some(blame.total))),
        grows("WHO", 0, |blame: &Blame| {
            blame.who.as_ref().map_or_else(cell::unknown, |who| {
                cell::text(name_of(who)).tone(Tone::Name)
            })
        }),
        grows("WHAT", 0, |blame: &Blame| cell::text(or_dash(&blame.what))),
    ];
    let title = format!("{} on {}", row.cause.id(), causes::name(gpu));
    cell::list(title, fields, &row.by, |blame| {
        let who = blame.who.as_ref().map_or(String::new(), name_of);
        let opens = open_ref(blame.who.as_ref());
        (format!("{who} {}", blame.what), opens)
    })
}
