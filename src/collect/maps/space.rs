//! The executable mappings of one process, over time.
#![forbid(unsafe_code)]

use super::events::{MapEvent, Mmap};
use super::FileId;
use crate::event::Pid;
use crate::units::Nanos;

/// Mappings of one process at most, as vm.max_map_count is 65,530 where nobody raised it; what
/// comes later counts as unmapped.
pub(super) const MOST_LIVE: usize = 1 << 16;
/// Mappings that are over, of one process; then the older half is forgotten.
const MOST_PAST: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    File(FileId),
    /// A file that has no number yet.
    Ticket(u64),
    Anonymous,
}

/// A mapping with the time in which it held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub start: u64,
    pub end: u64,
    /// Of `start`, in the file.
    pub offset: u64,
    pub code: Code,
    pub from: Nanos,
    /// The end is not included.
    pub until: Nanos,
    pub from_generation: u32,
    pub until_generation: u32,
}

impl Span {
    pub fn of(mmap: &Mmap, code: Code, from: Nanos) -> Span {
        Span {
            start: mmap.start,
            end: mmap.end,
            offset: mmap.offset,
            code,
            from,
            until: Nanos::MAX,
            from_generation: 0,
            until_generation: u32::MAX,
        }
    }

    fn same_code(&self, other: &Span) -> bool {
        (self.start, self.end, self.offset, self.code)
            == (other.start, other.end, other.offset, other.code)
    }

    fn holds(&self, pc: u64) -> bool {
        (self.start..self.end).contains(&pc)
    }
}

/// One process.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// The host's pid, when it is known.
    pub pid: Option<Pid>,
    /// Sorted, none overlap.
    pub live: Vec<Span>,
    /// In the order in which they ended.
    pub past: Vec<Span>,
    pub generation: u32,
    /// Since when this is the program and the process that it is; 0 when it was there before gdiag.
    pub began: Nanos,
    /// When its first thread ended.
    pub ended: Option<Nanos>,
    /// `live` has all that is mapped.
    pub whole: bool,
    /// Its maps are being read; what happened meanwhile.
    pub reading: Option<Vec<MapEvent>>,
    /// When `live` was last known to be right.
    pub checked: Nanos,
}

impl Space {
    /// Everything that is mapped is over.
    pub fn end_all(&mut self, ts: Nanos) {
        self.generation += 1;
        for mut span in std::mem::take(&mut self.live) {
            span.until = ts;
            span.until_generation = self.generation;
            self.past.push(span);
        }
        self.forget();
    }

    /// `new` takes the place of what it overlaps; false when it was there already.
    pub fn insert(&mut self, mut new: Span) -> bool {
        let first = self.live.partition_point(|s| s.end <= new.start);
        let last = self.live.partition_point(|s| s.start < new.end);
        if last == first + 1 && self.live[first].same_code(&new) {
            return false;
        }
        if last == first && self.live.len() >= MOST_LIVE {
            return false;
        }
        self.generation += 1;
        new.from_generation = self.generation;
        let mut now = Vec::with_capacity(3);
        for old in &self.live[first..last] {
            let mut gone = *old;
            gone.until = new.from;
            gone.until_generation = self.generation;
            self.past.push(gone);
            let rest = Span {
                from: new.from,
                from_generation: self.generation,
                ..*old
            };
            if old.start < new.start {
                now.push(Span {
                    end: new.start,
                    ..rest
                });
            }
            if old.end > new.end {
                now.push(Span {
                    start: new.end,
                    offset: old.offset.wrapping_add(new.end - old.start),
                    ..rest
                });
            }
        }
        now.push(new);
        now.sort_unstable_by_key(|s| s.start);
        self.live.splice(first..last, now);
        self.forget();
        true
    }

    /// The mappings as read at some time after `asked`, in place of what events told.
    pub fn replace(&mut self, mut new: Vec<Span>, asked: Nanos) {
        self.generation += 1;
        let old = std::mem::take(&mut self.live);
        for span in &mut new {
            span.from_generation = self.generation;
            // Since when is known only of what was known before.
            span.from = self.began.max(self.checked);
        }
        for mut gone in old {
            let at = new.partition_point(|s| s.start < gone.start);
            match new.get_mut(at) {
                Some(same) if same.same_code(&gone) => *same = gone,
                Some(_) | None => {
                    gone.until = asked.max(gone.from);
                    gone.until_generation = self.generation;
                    self.past.push(gone);
                }
            }
        }
        new.truncate(MOST_LIVE);
        self.live = new;
        self.checked = asked;
        self.whole = true;
        self.forget();
    }

    fn forget(&mut self) {
        if self.past.len() > MOST_PAST {
            self.past.drain(..self.past.len() - MOST_PAST / 2);
        }
    }

    fn live_at(&self, pc: u64) -> Option<&Span> {
        let at = self.live.partition_point(|s| s.end <= pc);
        self.live.get(at).filter(|s| s.holds(pc))
    }

    pub fn at(&self, pc: u64, ts: Nanos) -> Option<&Span> {
        self.live_at(pc).filter(|s| s.from <= ts).or_else(|| {
            let held = |s: &&Span| s.holds(pc) && s.from <= ts && ts < s.until;
            self.past.iter().rev().find(held)
        })
    }

    pub fn at_generation(&self, pc: u64, generation: u32) -> Option<&Span> {
        let live = self.live_at(pc);
        live.filter(|s| s.from_generation <= generation)
            .or_else(|| {
                let held = |s: &&Span| {
                    s.holds(pc)
                        && s.from_generation <= generation
                        && generation < s.until_generation
                };
                self.past.iter().rev().find(held)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(start: u64, end: u64, number: u32, from: u64) -> Span {
        Span {
            start,
            end,
            offset: 0,
            code: Code::File(FileId(number)),
            from: Nanos(from),
            until: Nanos::MAX,
            from_generation: 0,
            until_generation: u32::MAX,
        }
    }

    fn code(space: &Space, pc: u64, ts: u64) -> Option<(Code, u64)> {
        let span = space.at(pc, Nanos(ts))?;
        Some((span.code, pc - span.start + span.offset))
    }

    #[test]
    fn a_new_mapping_cuts_a_hole_into_an_old_one() {
        let mut space = Space::default();
        assert!(space.insert(file(100, 200, 1, 10)));
        assert!(space.insert(file(140, 160, 2, 20)));
        let (one, two) = (Code::File(FileId(1)), Code::File(FileId(2)));
        assert_eq!(code(&space, 150, 9), None);
        assert_eq!(code(&space, 150, 10), Some((one, 50)));
        assert_eq!(code(&space, 150, 19), Some((one, 50)));
        assert_eq!(code(&space, 150, 20), Some((two, 10)));
        for ts in [10, 19, 20, 30] {
            assert_eq!(code(&space, 139, ts), Some((one, 39)), "{ts}");
            assert_eq!(code(&space, 160, ts), Some((one, 60)), "{ts}");
            assert_eq!(code(&space, 200, ts), None);
        }
        assert_eq!(space.live.len(), 3);
        // All of it at once.
        assert!(space.insert(file(0, 300, 3, 40)));
        assert_eq!(space.live.len(), 1);
        assert_eq!(code(&space, 150, 39), Some((two, 10)));
        assert_eq!(code(&space, 150, 40), Some((Code::File(FileId(3)), 150)));
    }

    #[test]
    fn the_same_mapping_again_changes_nothing() {
        let mut space = Space::default();
        assert!(space.insert(file(100, 200, 1, 10)));
        let generation = space.generation;
        assert!(!space.insert(file(100, 200, 1, 20)));
        assert_eq!((space.generation, space.past.len()), (generation, 0));
        assert!(space.insert(file(100, 200, 2, 30)));
        assert!(space.generation > generation);
        let old = space.at_generation(150, generation).unwrap();
        assert_eq!(old.code, Code::File(FileId(1)));
    }

    #[test]
    fn another_program_has_nothing_of_the_old() {
        let mut space = Space::default();
        space.insert(file(100, 200, 1, 10));
        space.end_all(Nanos(20));
        assert!(code(&space, 150, 19).is_some());
        assert_eq!(code(&space, 150, 20), None);
    }

    #[test]
    fn what_is_read_again_replaces_what_is_not_there_any_more() {
        let mut space = Space::default();
        space.insert(file(100, 200, 1, 10));
        space.insert(file(300, 400, 2, 10));
        space.replace(vec![file(100, 200, 1, 0), file(500, 600, 3, 0)], Nanos(50));
        assert!(space.whole);
        assert!(code(&space, 150, 10).is_some() && code(&space, 150, 60).is_some());
        assert!(code(&space, 350, 49).is_some());
        assert_eq!(code(&space, 350, 50), None);
        assert!(code(&space, 550, 60).is_some());
    }

    #[test]
    fn mappings_without_end_take_no_memory_without_end() {
        let mut space = Space::default();
        for n in 0..100_000 {
            space.insert(file(100, 200, n % 7 + 1, n.into()));
        }
        assert_eq!(space.live.len(), 1);
        assert!(space.past.len() <= MOST_PAST);
        for n in 0..MOST_LIVE as u64 + 100 {
            space.insert(file(1000 + 10 * n, 1005 + 10 * n, 1, 0));
        }
        assert_eq!(space.live.len(), MOST_LIVE);
    }
}
