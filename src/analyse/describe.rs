//! A gap with all that there is to say about it: names instead of numbers.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::analyse::busy::Gap;
use crate::analyse::cause::Cause;
use crate::analyse::gaps::Explainer;
use crate::analyse::report::{self, NextOp, OpenedBy, Part};
use crate::analyse::what::{thread_ref, Piece};
use crate::analyse::{chain, sampled};
use crate::event::{CopyKind, NameId, OpKind};
use crate::model::ops::{Call, Op};
use crate::model::thread::ThreadIdx;
use crate::model::{api, Timeline};
use crate::units::{Bytes, Count, Nanos};

/// As it is seen at `until`: what ends it later is not known then.
pub(super) fn gap(
    explainer: &Explainer<'_>,
    gap: &Gap,
    pieces: &[Piece],
    until: Nanos,
    most: Option<usize>,
) -> report::Gap {
    if gap.end <= until {
        return whole(explainer, gap, pieces, most);
    }
    let before = pieces.iter().filter(|p| p.start < until);
    let cut = |p: &Piece| Piece {
        end: p.end.min(until),
        ..*p
    };
    let pieces: Vec<Piece> = before.map(cut).collect();
    let seen = whole(explainer, gap, &pieces, most);
    report::Gap {
        end: until,
        next: None,
        lead_ns: None,
        ..seen
    }
}

/// With `most` parts at most; `None`: all.
pub(super) fn whole(
    explainer: &Explainer<'_>,
    gap: &Gap,
    pieces: &[Piece],
    most: Option<usize>,
) -> report::Gap {
    let t = explainer.engine.t;
    let ending = explainer.ending(gap);
    let dispatcher = explainer.dispatcher(gap);
    let parts = match most.filter(|&most| most < pieces.len()) {
        Some(most) => joined(pieces, most, |run| several(t, run)),
        None => pieces.iter().map(|p| part(t, p)).collect(),
    };
    // The host's share ends where the device's own delay begins.
    let host_end = pieces
        .iter()
        .filter(|p| p.who.is_some())
        .map(|p| p.end)
        .max();
    let chain = dispatcher
        .zip(host_end)
        .map_or_else(Vec::new, |(thread, end)| {
            chain::chain(explainer.engine, thread, (gap.start, end), pieces)
        });
    report::Gap {
        start: gap.start,
        end: gap.end,
        next: ending.map(|e| next_op(t, e.op)),
        dispatcher: dispatcher.map(|d| thread_ref(t, t.who(d, gap.end))),
        lead_ns: ending.and_then(|e| e.lead()),
        opened_by: explainer
            .opened_by(gap)
            .map(|(call, thread)| opened(t, call, thread)),
        parts,
        chain,
    }
}

fn part(t: &Timeline, p: &Piece) -> Part {
    Part {
        start: p.start,
        end: p.end,
        cause: p.cause,
        who: p.who.map(|w| thread_ref(t, w)),
        what: p.what.text(t),
        stack: sampled::stack_of(t, p),
    }
}

/// The longest pieces each, and what is between them as one, so that there are `most` parts at most.
fn joined(
    pieces: &[Piece],
    most: usize,
    mut each: impl FnMut(&[Piece]) -> Option<Part>,
) -> Vec<Part> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(pieces[i].len()));
    let mut long = vec![false; pieces.len()];
    // As many again, and one, can be between them.
    for &i in order.iter().take(most.saturating_sub(1) / 2) {
        long[i] = true;
    }
    let mut parts = Vec::with_capacity(most);
    let mut from = 0;
    for (i, _) in long.iter().enumerate().filter(|(_, &long)| long) {
        if from < i {
            parts.extend(each(&pieces[from..i]));
        }
        parts.extend(each(&pieces[i..=i]));
        from = i + 1;
    }
    if from < pieces.len() {
        parts.extend(each(&pieces[from..]));
    }
    parts
}

/// Neighbours as one: of the cause with most of their time, and it says that it is not all.
fn several(t: &Timeline, run: &[Piece]) -> Option<Part> {
    let total = |cause| -> Nanos {
        let same = run.iter().filter(|p| p.cause == cause);
        same.map(Piece::len).sum()
    };
    let causes: BTreeSet<Cause> = run.iter().map(|p| p.cause).collect();
    let main = causes.into_iter().max_by_key(|&cause| total(cause));
    let of_main = run.iter().filter(|p| Some(p.cause) == main);
    let longest = of_main.max_by_key(|p| p.len());
    let (first, last) = (run.first(), run.last());
    let ((longest, first), last) = longest.zip(first).zip(last)?;
    let part = part(t, longest);
    if run.len() == 1 {
        return Some(part);
    }
    Some(Part {
        start: first.start,
        end: last.end,
        what: format!(
            "{} short parts, most of this: {}",
            Count(run.len() as u64),
            part.what
        ),
        ..part
    })
}

fn opened(t: &Timeline, call: &Call, thread: ThreadIdx) -> OpenedBy {
    OpenedBy {
        call: api::name(call.api()).into_owned(),
        who: thread_ref(t, t.who(thread, call.start)),
        stack: sampled::stack_of_call(t, call),
    }
}

fn next_op(t: &Timeline, op: &Op) -> NextOp {
    let (kind, name) = match op.kind() {
        OpKind::Kernel { name } => ("kernel", t.name(name).to_string()),
        OpKind::Memcpy { kind, bytes, .. } => {
            ("memcpy", format!("{} {}", direction(kind), Bytes(bytes)))
        }
        OpKind::Memset { bytes } => ("memset", Bytes(bytes).to_string()),
        OpKind::Graph => ("graph", t.name(NameId(0)).to_string()),
    };
    let stream = t.gpu().stream_of(op);
    NextOp {
        kind,
        name,
        stream: stream.stream,
        correlation: op.correlation,
        pid: stream.pid,
    }
}

pub(super) fn direction(kind: CopyKind) -> &'static str {
    match kind {
        CopyKind::HostToDevice => "HtoD",
        CopyKind::DeviceToHost => "DtoH",
        CopyKind::DeviceToDevice => "DtoD",
        CopyKind::HostToHost => "HtoH",
        CopyKind::PeerToPeer => "PtoP",
        CopyKind::Unknown | CopyKind::Other(_) => "copy",
    }
}
