//! One gap: every part of its time, who waited for whom, and how it began and ended.
#![forbid(unsafe_code)]

use super::cell::{self, grows, left, right};
use super::{causes, open_ref, place, tone_of, when};
use crate::analyse::cause::Cause;
use crate::analyse::report::{Gap, Gpu, Hop, Part};
use crate::present::names;
use crate::present::report::gap::{length, merge, stack, started, woken_by, Line as Budget};
use crate::present::report::{name_of, or_dash, who_and_what};
use crate::present::top::list::{Cell, List, Piece, Tone};
use crate::present::top::model::Model;
use crate::present::top::screen::{Block, Screen};
use crate::units::{Nanos, Share};

/// A stack is shown of what took at least this share of the gap.
const STACK_SHARE: f64 = 0.1;
const FRAMES: usize = 24;

pub fn screen(model: &Model, gpu: u32, start: Nanos) -> Screen {
    let with_it = model.window.report.gpus.iter().filter_map(|g| {
        let gap = g.gaps.iter().find(|gap| gap.start == start)?;
        Some((g, gap))
    });
    // The number of a card changes when processes come and go, the time does not.
    let found = with_it.min_by_key(|(g, _)| g.index != gpu);
    let Some((gpu, gap)) = found else {
        let text =
            "it is not among the longest gaps of the window that is shown, or no longer in it";
        return Screen::Page {
            title: format!("GPU {gpu}: gap at {}", when(model, start)),
            blocks: vec![Block::text("", text, Tone::Dim)],
        };
    };
    let lines = merge(&gap.parts);
    let mut blocks = said(gap, &lines);
    if !gap.parts.is_empty() {
        blocks.push(Block::Bar(bar(gap)));
        blocks.push(Block::Table(budget(gap, &lines)));
        blocks.push(Block::Blank);
    }
    // Where each part was one only, that has said it all.
    if gap.parts.len() > 1 {
        let heading = "In order of time".to_string();
        let table = Block::Table(partition(gap));
        blocks.extend([Block::Heading(heading), table, Block::Blank]);
    }
    // Of a single thread that nobody woke the parts have said all.
    if gap.chain.len() > 1 || gap.chain.iter().any(|hop| hop.woken_by.is_some()) {
        let heading = "Wakeups, back to who was late".to_string();
        let table = Block::Table(chain(gap));
        blocks.extend([Block::Heading(heading), table, Block::Blank]);
    }
    blocks.push(Block::Heading("How it began and ended".to_string()));
    blocks.extend(background(gpu, gap, &lines));
    Screen::Page {
        title: title(model, gpu, gap),
        blocks,
    }
}

/// All of the gap, each cause with its letter.
fn bar(gap: &Gap) -> Vec<Piece> {
    let whole = length(gap);
    let parts = gap.parts.iter().zip(letters(&gap.parts));
    let pieces = parts.map(|(part, mark)| Piece {
        share: part.end.saturating_sub(part.start).share_of(whole),
        mark,
        tone: tone_of(part.cause),
    });
    pieces.collect()
}

fn title(model: &Model, gpu: &Gpu, gap: &Gap) -> String {
    let open = if gap.next.is_none() {
        ", still open"
    } else {
        ""
    };
    format!(
        "{}: gap of {} at {}{open}",
        causes::name(gpu),
        length(gap),
        when(model, gap.start)
    )
}

fn said(gap: &Gap, lines: &[Budget<'_>]) -> Vec<Block> {
    let Some(main) = lines.first() else {
        return vec![Block::text("", "nothing is known of it", Tone::Dim)];
    };
    let claim = format!(
        "{} of it the GPU waited for {} ({})",
        Share(main.total.share_of(length(gap))),
        main.cause.waited_for(),
        main.cause.id()
    );
    let mut said = vec![Block::text("", claim, Tone::Plain)];
    if !main.cause.fix().is_empty() {
        said.push(Block::text("fix: ", main.cause.fix(), Tone::Good));
    }
    said
}

/// Parts with one answer, added up.
fn budget(gap: &Gap, lines: &[Budget<'_>]) -> List {
    let whole = length(gap);
    let letters: Vec<(Cause, char)> = gap
        .parts
        .iter()
        .map(|part| part.cause)
        .zip(letters(&gap.parts))
        .collect();
    let letter = move |cause| {
        let found = letters.iter().find(|(c, _)| *c == cause);
        found.map_or(String::new(), |(_, letter)| letter.to_string())
    };
    let fields = vec![
        left("BAR", 1, move |line: &Budget<'_>| {
            Cell::text(letter(line.cause)).tone(tone_of(line.cause))
        }),
        right("OF GAP %", 0, move |line: &Budget<'_>| {
            cell::share(line.total, whole).with_bar()
        }),
        right("TIME", 1, |line: &Budget<'_>| cell::time(Some(line.total))),
        right("TIMES", 3, |line: &Budget<'_>| cell::count(line.times)),
        left("CAUSE", 0, |line: &Budget<'_>| {
            Cell::text(line.cause.id()).tone(tone_of(line.cause))
        }),
        grows("WHO: WHAT", 2, |line: &Budget<'_>| {
            Cell::text(who_and_what(line.who, line.what))
        }),
    ];
    cell::list("", fields, lines, |line| {
        let id = format!("{} {}", line.cause.id(), who_and_what(line.who, line.what));
        (id, open_ref(line.who))
    })
}

/// Where in the gap each of them was.
fn partition(gap: &Gap) -> List {
    let whole = (gap.start, gap.end);
    let letters = letters(&gap.parts);
    let fields = vec![
        right("FROM", 0, move |(part, _): &(&Part, char)| {
            cell::offset(part.start.saturating_sub(whole.0))
        }),
        right("FOR", 0, |(part, _): &(&Part, char)| {
            cell::time(Some(part.end.saturating_sub(part.start)))
        }),
        left("CAUSE", 0, |(part, _): &(&Part, char)| {
            Cell::text(part.cause.id()).tone(tone_of(part.cause))
        }),
        grows(
            "WHERE IN THE GAP",
            2,
            move |&(part, letter): &(&Part, char)| {
                place((part.start, part.end), whole, letter, tone_of(part.cause))
            },
        ),
        left("WHO", 3, |(part, _): &(&Part, char)| {
            part.who
                .as_ref()
                .map_or_else(Cell::none, |who| Cell::text(name_of(who)).tone(Tone::Name))
        }),
        grows("WHAT", 4, |(part, _): &(&Part, char)| {
            Cell::text(or_dash(&part.what))
        }),
    ];
    let parts: Vec<(&Part, char)> = gap.parts.iter().zip(letters).collect();
    cell::list("", fields, &parts, |(part, _)| {
        let id = format!("{}", part.start.as_u64());
        (id, open_ref(part.who.as_ref()))
    })
}

/// Each cause has one, so that it is not told by color alone.
fn letters(parts: &[Part]) -> Vec<char> {
    let mut causes = Vec::new();
    let letters = parts.iter().map(|part| {
        let known = causes.iter().position(|&cause| cause == part.cause);
        let n = known.unwrap_or_else(|| {
            causes.push(part.cause);
            causes.len() - 1
        });
        ('A'..='Z').nth(n).unwrap_or('Z')
    });
    letters.collect()
}

fn chain(gap: &Gap) -> List {
    let whole = (gap.start, gap.end);
    let fields = vec![
        grows("THREAD", 0, |hop: &Hop| {
            Cell::text(name_of(&hop.who)).tone(Tone::Name)
        }),
        left("STATE", 0, |hop: &Hop| Cell::text(or_dash(&hop.state))),
        right("FROM", 3, move |hop: &Hop| {
            cell::offset(hop.start.saturating_sub(whole.0))
        }),
        right("FOR", 0, |hop: &Hop| {
            cell::time(Some(hop.end.saturating_sub(hop.start)))
        }),
        left("WOKEN BY", 0, |hop: &Hop| Cell::text(woken_by(hop))),
        grows("WHERE IN THE GAP", 2, move |hop: &Hop| {
            place((hop.start, hop.end), whole, '#', Tone::Name)
        }),
    ];
    cell::list("", fields, &gap.chain, |hop| {
        let id = format!("{} {}", name_of(&hop.who), hop.start.as_u64());
        (id, open_ref(Some(&hop.who)))
    })
}

fn background(gpu: &Gpu, gap: &Gap, lines: &[Budget<'_>]) -> Vec<Block> {
    let plain = |label: &str, text: String| Block::text(label, text, Tone::Plain);
    let mut said = Vec::new();
    if let Some(opened_by) = &gap.opened_by {
        let mut text = format!("{} of {}", opened_by.call, name_of(&opened_by.who));
        if !opened_by.stack.is_empty() {
            text.push_str(&format!(", from {}", stack(&opened_by.stack)));
        }
        said.push(plain("opened by      ", text));
    }
    if let Some(next) = &gap.next {
        let text = format!(
            "{} {}, stream {} of process {}",
            next.kind,
            or_dash(&names::short(&next.name)),
            next.stream,
            next.pid
        );
        said.push(plain("ended by       ", text));
    }
    if let Some(dispatcher) = &gap.dispatcher {
        let (role, lead) = match (&gap.next, gap.lead_ns) {
            (None, _) => ("last launcher  ", String::new()),
            (Some(_), None) => ("launched by    ", String::new()),
            (Some(_), Some(ns)) => ("launched by    ", started(ns, gpu.usual_lead)),
        };
        said.push(plain(role, format!("{}{lead}", name_of(dispatcher))));
    }
    let whole = length(gap);
    let matters = |line: &&Budget<'_>| line.total.share_of(whole) >= STACK_SHARE;
    for line in lines.iter().filter(matters) {
        let Some(stack) = line.stack else { continue };
        said.push(Block::Blank);
        let heading = format!("Stack of {}, innermost first", line.cause.id());
        said.push(Block::Heading(heading));
        let frames = stack.frames.iter().take(FRAMES);
        said.extend(frames.map(|frame| Block::text("  ", or_dash(frame), Tone::Plain)));
        if let Some(more @ 1..) = stack.frames.len().checked_sub(FRAMES) {
            said.push(Block::text("  ", format!("and {more} more"), Tone::Dim));
        }
    }
    if said.is_empty() {
        said.push(Block::text("", "not known", Tone::Dim));
    }
    said
}
