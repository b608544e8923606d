//! Adds pieces up into causes, with who and what.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::evidence;
use crate::analyse::report::{Blame, CauseRow};
use crate::analyse::what::{thread_ref, Piece, What};
use crate::event::CallStackId;
use crate::model::fxhash::FxHashMap;
use crate::model::thread::Who;
use crate::model::Timeline;
use crate::units::Nanos;

/// Rows beyond this many are added up into one.
const MOST_ROWS: usize = 50;

/// All pieces of one cause with the same thread and the same matter.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) who: Option<Who>,
    pub(super) what: What,
    pub(super) total: Nanos,
    pub(super) count: u64,
    pub(super) longest: Piece,
    /// Samples that the timer took of the thread in these pieces, by their stack.
    pub(super) samples: FxHashMap<CallStackId, u64>,
}

#[derive(Clone, Debug, Default)]
struct CauseSum {
    total: Nanos,
    gaps: u64,
    last_gap: Option<usize>,
    shares: FxHashMap<(Option<Who>, What), Share>,
}

#[derive(Clone, Debug)]
pub(super) struct Sums<'t> {
    t: &'t Timeline,
    /// In the order of [`Cause::ALL`].
    causes: Vec<CauseSum>,
}

impl<'t> Sums<'t> {
    pub(super) fn new(t: &'t Timeline) -> Self {
        Sums {
            t,
            causes: vec![CauseSum::default(); Cause::ALL.len()],
        }
    }

    /// `gap` is the number of the gap that the piece is part of.
    pub(super) fn add(&mut self, gap: usize, piece: &Piece) {
        let sum = &mut self.causes[piece.cause as usize];
        sum.total += piece.len();
        if sum.last_gap != Some(gap) {
            sum.last_gap = Some(gap);
            sum.gaps += 1;
        }
        let share = sum.shares.entry((piece.who, piece.what)).or_insert(Share {
            who: piece.who,
            what: piece.what,
            total: Nanos::ZERO,
            count: 0,
            longest: *piece,
            samples: FxHashMap::default(),
        });
        if let Some(thread) = piece.who.map(|w| self.t.thread(w.thread)) {
            if !thread.samples().is_empty() {
                let inside = thread.samples_in(piece.start, piece.end);
                for sample in inside.iter().filter(|s| s.is_cpu()) {
                    *share.samples.entry(sample.user).or_default() += 1;
                }
            }
        }
        share.total += piece.len();
        share.count += 1;
        if piece.len() > share.longest.len() {
            share.longest = *piece;
        }
    }

    /// Most time first; equal times in the order of the vocabulary.
    pub(super) fn rows(self, idle: Nanos) -> Vec<CauseRow> {
        let t = self.t;
        let mut rows: Vec<CauseRow> = Cause::ALL
            .iter()
            .copied()
            .zip(self.causes)
            .filter(|(_, sum)| sum.gaps > 0)
            .map(|(cause, sum)| {
                let mut shares: Vec<(Share, Blame)> = sum
                    .shares
                    .into_values()
                    .map(|s| {
                        let blame = Blame {
                            who: s.who.map(|w| thread_ref(t, w)),
                            what: s.what.text(t),
                            total: s.total,
                        };
                        (s, blame)
                    })
                    .collect();
                shares.sort_by(|(a, x), (b, y)| {
                    let id = |b: &Blame| b.who.as_ref().map(|w| (w.pid, w.tid));
                    (b.total.cmp(&a.total))
                        .then_with(|| id(x).cmp(&id(y)))
                        .then_with(|| x.what.cmp(&y.what))
                        .then_with(|| a.longest.start.cmp(&b.longest.start))
                });
                let (sorted, by): (Vec<Share>, Vec<Blame>) = shares.into_iter().unzip();
                CauseRow {
                    cause,
                    total: sum.total,
                    share: sum.total.share_of(idle),
                    gaps: sum.gaps,
                    by: shorten(by),
                    evidence: evidence::sentences(t, cause, &sorted),
                }
            })
            .collect();
        rows.sort_by(|a, b| b.total.cmp(&a.total).then(a.cause.cmp(&b.cause)));
        rows
    }
}

fn shorten(mut by: Vec<Blame>) -> Vec<Blame> {
    if by.len() > MOST_ROWS {
        let rest = by.split_off(MOST_ROWS - 1);
        by.push(Blame {
            who: None,
            what: format!("{} others", rest.len()),
            total: rest.iter().map(|b| b.total).sum(),
        });
    }
    by
}
