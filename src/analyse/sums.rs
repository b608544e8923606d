//! Adds pieces up into causes, with who and what.
#![forbid(unsafe_code)]

use std::collections::hash_map::Entry;

use crate::analyse::cause::Cause;
use crate::analyse::evidence::{self, Sentence, When, SENTENCES};
use crate::analyse::report::{Blame, CauseRow};
use crate::analyse::what::{cgroup_of, describe, describe_as, thread_ref, Piece, What};
use crate::event::{CallStackId, Pid, Tid};
use crate::model::fxhash::FxHashMap;
use crate::model::thread::Who;
use crate::model::Timeline;
use crate::units::Nanos;

/// Rows beyond this many are added up into one.
pub(super) const MOST_ROWS: usize = 50;

/// Of what is added to others there is much.
const MOST_SUMMANDS: usize = 20;

/// In which rows are added up that are too many. The same everywhere, so that these rows add up, too.
pub(super) const OTHERS: &str = "others";

/// A cause, and its evidence in parts.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) row: CauseRow,
    pub(super) sentences: Vec<Sentence>,
}

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
    /// Threads that [`What::Ran`] stands for, by process: several may have one name and control group.
    ran: Vec<(Pid, Tid)>,
}

impl Share {
    pub(super) fn text(&self, t: &Timeline) -> String {
        let What::Ran(who) = self.what else {
            return self.what.text(t);
        };
        let mut pids: Vec<Pid> = self.ran.iter().map(|ran| ran.0).collect();
        pids.dedup();
        match (self.ran.len(), &pids[..]) {
            (0 | 1, _) => describe(t, who),
            (threads, [pid]) => describe_as(t, who, &format!("pid {pid}, {threads} threads")),
            (_, several) => describe_as(t, who, &listed(several)),
        }
    }

    /// Takes in another of the same thread and cause.
    fn join(&mut self, other: Share) {
        self.total += other.total;
        self.count += other.count;
        if other.longest.len() > self.longest.len() {
            self.longest = other.longest;
        }
        for (stack, count) in other.samples {
            *self.samples.entry(stack).or_default() += count;
        }
        self.ran.extend(other.ran);
        self.ran.sort_unstable();
        self.ran.dedup();
    }
}

/// `pids 1, 2, 3 and 4 more`
fn listed(pids: &[Pid]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = pids.iter().take(SHOWN).map(Pid::to_string).collect();
    let more = match pids.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("pids {}{more}", shown.join(", "))
}

/// Whoever had the CPU, with all others of its name and control group: what a person can do about
/// one is what can be done about all of them.
fn joined(t: &Timeline, shares: impl Iterator<Item = Share>) -> Vec<Share> {
    let mut several: FxHashMap<(Option<Who>, &str, &str), Share> = FxHashMap::default();
    let mut joined = Vec::new();
    for mut share in shares {
        let What::Ran(who) = share.what else {
            joined.push(share);
            continue;
        };
        let pid = t.pid(who);
        share.ran = vec![(pid, t.thread(who.thread).tid)];
        let group = (share.who, t.comm(who), cgroup_of(t, who));
        match several.entry(group) {
            Entry::Occupied(mut one) => one.get_mut().join(share),
            Entry::Vacant(none) => {
                none.insert(share);
            }
        }
    }
    joined.extend(several.into_values());
    joined
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

    /// `gap` is the number of the gap that the piece is part of. Only a part of the piece counts, and the piece where it
    /// begins.
    pub(super) fn add(&mut self, gap: usize, piece: &Piece, (start, end): (Nanos, Nanos)) {
        let len = end.saturating_sub(start);
        let sum = &mut self.causes[piece.cause as usize];
        sum.total += len;
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
            ran: Vec::new(),
        });
        if let Some(thread) = piece.who.map(|w| self.t.thread(w.thread)) {
            if !thread.samples().is_empty() {
                let inside = thread.samples_in(start, end);
                for sample in inside.iter().filter(|s| s.is_cpu()) {
                    *share.samples.entry(sample.user).or_default() += 1;
                }
            }
        }
        share.total += len;
        share.count += u64::from(piece.start == start);
        if piece.len() > share.longest.len() {
            share.longest = *piece;
        }
    }

    /// Most time first; equal times in the order of the vocabulary. `summand`: they are of a slice
    /// with this end.
    pub(super) fn rows(self, idle: Nanos, summand: Option<Nanos>) -> Vec<Row> {
        let t = self.t;
        let when = summand.map_or(When::Since(t.start()), When::Ago);
        let most = match summand {
            Some(_) => 2 * SENTENCES,
            None => SENTENCES,
        };
        let mut rows: Vec<Row> = Cause::ALL
            .iter()
            .copied()
            .zip(self.causes)
            .filter(|(_, sum)| sum.gaps > 0)
            .map(|(cause, sum)| {
                let mut shares: Vec<(Share, Blame)> = joined(t, sum.shares.into_values())
                    .into_iter()
                    .map(|s| {
                        let blame = Blame {
                            who: s.who.map(|w| thread_ref(t, w)),
                            what: s.text(t),
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
                let sentences = evidence::sentences(t, cause, &sorted, most);
                let row = CauseRow {
                    cause,
                    total: sum.total,
                    share: sum.total.share_of(idle),
                    gaps: sum.gaps,
                    by: if summand.is_some() {
                        shorten(by, MOST_SUMMANDS, |_| OTHERS.to_string())
                    } else {
                        shorten(by, MOST_ROWS, |rest| format!("{rest} {OTHERS}"))
                    },
                    evidence: told(&sentences, when),
                };
                Row { row, sentences }
            })
            .collect();
        rows.sort_by(|Row { row: a, .. }, Row { row: b, .. }| {
            b.total.cmp(&a.total).then(a.cause.cmp(&b.cause))
        });
        rows
    }
}

/// The first ones, as text.
pub(super) fn told(sentences: &[Sentence], when: When) -> Vec<String> {
    let said = sentences.iter().take(SENTENCES);
    said.map(|s| s.text(when)).collect()
}

pub(super) fn shorten(
    mut by: Vec<Blame>,
    most: usize,
    others: impl Fn(usize) -> String,
) -> Vec<Blame> {
    if by.len() > most {
        let rest = by.split_off(most - 1);
        by.push(Blame {
            who: None,
            what: others(rest.len()),
            total: rest.iter().map(|b| b.total).sum(),
        });
    }
    by
}
