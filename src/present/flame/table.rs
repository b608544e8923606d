//! Stacks as sorted text, from one recording or two.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{self, Write};

use crate::analyse::stacks::folded::Folded;
use crate::analyse::stacks::frame::{Frame, Kind};
use crate::present::flame::label::Labels;

/// Time of a stack: in the recording, or in the one to compare with and this one.
type Times = [u64; 2];

/// Stacks whose frames have text. Equal ones are one, and they are sorted frame by frame, so that all
/// that begin alike are neighbours: tools merge neighbours only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Sorted; frames are numbers of it.
    names: Vec<(String, Kind)>,
    stacks: Vec<(Vec<u32>, Times)>,
    differential: bool,
}

impl Table {
    pub fn of(folded: &Folded, labels: &Labels<'_>) -> Table {
        let mut build = Build::default();
        build.add(folded, labels, 1);
        build.table(false)
    }

    /// Two recordings side by side.
    pub fn of_both(
        (before, before_labels): (&Folded, &Labels<'_>),
        (after, after_labels): (&Folded, &Labels<'_>),
    ) -> Table {
        let mut build = Build::default();
        build.add(before, before_labels, 0);
        build.add(after, after_labels, 1);
        build.table(true)
    }

    /// Scales the times before so that they add up to those after.
    pub fn normalize(&mut self) {
        let [before, after] = self.totals();
        if before == 0 {
            return;
        }
        let mut rest = after;
        for (_, times) in &mut self.stacks {
            let scaled = u128::from(times[0]).saturating_mul(after) / before;
            times[0] = u64::try_from(scaled).unwrap_or(u64::MAX);
            rest = rest.saturating_sub(scaled);
        }
        // What division left over; it is less than a nanosecond for each stack.
        if let Some((_, times)) = self.stacks.iter_mut().max_by_key(|(_, times)| times[0]) {
            times[0] = times[0].saturating_add(u64::try_from(rest).unwrap_or(0));
        }
    }

    /// Turns every stack around, so that leaves of a name come together.
    pub fn reverse(&mut self) {
        for (stack, _) in &mut self.stacks {
            stack.reverse();
        }
        self.stacks.sort();
    }

    pub fn totals(&self) -> [u128; 2] {
        let mut totals = [0, 0];
        for (_, times) in &self.stacks {
            totals[0] += u128::from(times[0]);
            totals[1] += u128::from(times[1]);
        }
        totals
    }

    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// It compares two recordings.
    pub fn is_differential(&self) -> bool {
        self.differential
    }

    pub fn names(&self) -> impl Iterator<Item = (&str, Kind)> {
        self.names.iter().map(|(name, kind)| (name.as_str(), *kind))
    }

    /// One line for each stack: `root;…;leaf time`, or `root;…;leaf before after`.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = String> + '_ {
        self.stacks.iter().map(|(stack, [before, after])| {
            let mut line = String::new();
            for (i, &frame) in stack.iter().enumerate() {
                if i > 0 {
                    line.push(';');
                }
                line.push_str(&self.names[frame as usize].0);
            }
            if self.differential {
                line.push_str(&format!(" {before} {after}"));
            } else {
                line.push_str(&format!(" {after}"));
            }
            line
        })
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for line in self.lines() {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Build {
    names: Vec<(String, Kind)>,
    numbers: HashMap<String, u32>,
    stacks: Vec<(Vec<u32>, Times)>,
}

impl Build {
    fn number(&mut self, text: String, kind: Kind) -> u32 {
        if let Some(&number) = self.numbers.get(&text) {
            // A colour belongs to a name. Which one must not depend on the order.
            let known = &mut self.names[number as usize].1;
            *known = kind.min(*known);
            return number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.clone(), number);
        self.names.push((text, kind));
        number
    }

    fn add(&mut self, folded: &Folded, labels: &Labels<'_>, column: usize) {
        let mut known: HashMap<Frame, u32> = HashMap::new();
        for (frames, time) in folded.stacks() {
            let stack = frames
                .into_iter()
                .map(|frame| match known.get(&frame) {
                    Some(&number) => number,
                    None => {
                        let number = self.number(labels.text(frame), frame.kind());
                        known.insert(frame, number);
                        number
                    }
                })
                .collect();
            let mut times = [0, 0];
            times[column] = time.0;
            self.stacks.push((stack, times));
        }
    }

    fn table(self, differential: bool) -> Table {
        let Build {
            names, mut stacks, ..
        } = self;
        // Numbers in the order of their names, so that comparing stacks compares numbers.
        let mut order: Vec<usize> = (0..names.len()).collect();
        order.sort_by(|&a, &b| names[a].cmp(&names[b]));
        let mut rank = vec![0; names.len()];
        for (new, &old) in (0..).zip(&order) {
            rank[old] = new;
        }
        for frame in stacks.iter_mut().flat_map(|(stack, _)| stack) {
            *frame = rank[*frame as usize];
        }
        stacks.sort();
        stacks.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                for (sum, more) in first.1.iter_mut().zip(later.1) {
                    *sum = sum.saturating_add(more);
                }
            }
            same
        });
        let mut names: Vec<_> = names.into_iter().map(Some).collect();
        Table {
            names: order.iter().filter_map(|&i| names[i].take()).collect(),
            stacks,
            differential,
        }
    }
}
