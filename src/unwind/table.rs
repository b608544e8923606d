//! The table of one file: pages of rows.
#![forbid(unsafe_code)]

use std::ops::Range;

use super::abi;
use super::cfi::Frames;
use super::elf::Source;
use super::rule::{Rules, MAX_NEW_RULES};
use super::Unusable;

/// 64 KiB of the addresses of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its addresses without their low [`abi::PAGE_BITS`].
    pub number: u32,
    /// Its rows in [`Table::rows`]: never none, and at most one for each address.
    pub rows: Range<usize>,
}

/// For each address of a file's code, the number of the rule that leads to the caller.
///
/// A page is there when some function with unwind information has code in it. Its first row
/// is for its first address, so a search within it always finds one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Sorted by number.
    pub pages: Vec<Page>,
    /// The low 16 bits of an address above the number of the rule that holds from there on, up to
    /// the next row or the end of the page.
    pub rows: Vec<u32>,
}

impl Table {
    /// Makes the table of an ELF file, and gives numbers to the rules that are new with it.
    ///
    /// `elf` is all of the file, at an address that is a multiple of 8 as mmap and allocators
    /// give it. Only its headers and its `.eh_frame` are looked at.
    pub fn of(elf: &[u8], rules: &mut Rules) -> Result<Self, Unusable> {
        Self::from_source(&Source::of(elf)?, rules)
    }

    pub(super) fn from_source(source: &Source<'_>, rules: &mut Rules) -> Result<Self, Unusable> {
        let mut frames = Frames::new(source);
        let functions = frames.functions();
        if functions.is_empty() {
            return Err(Unusable::NoUnwindInfo);
        }
        let limit = rules.end() + MAX_NEW_RULES;
        let mut builder = Builder::default();
        // Compilers take 5 bytes and more for one, and room that is not used takes no memory.
        builder.table.rows.reserve(source.eh_frame.len() / 4);
        for function in &functions {
            frames.rows(function, |start, end, caller| {
                builder.push(start, end, rules.id(caller, limit));
            });
        }
        Ok(builder.finish())
    }

    /// The number of the rule at an address of the file.
    pub fn rule_at(&self, address: u64) -> u16 {
        let number = address >> abi::PAGE_BITS;
        let Ok(page) = self
            .pages
            .binary_search_by_key(&number, |page| u64::from(page.number))
        else {
            return abi::RULE_NONE;
        };
        let rows = &self.rows[self.pages[page].rows.clone()];
        let low = address as u16;
        let after = rows.partition_point(|row| (row >> 16) as u16 <= low);
        after
            .checked_sub(1)
            .map_or(abi::RULE_NONE, |last| rows[last] as u16)
    }

    /// What the table takes in memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.pages[..]) + size_of_val(&self.rows[..])
    }
}

/// Takes ranges in the order of their addresses, none of which overlap.
#[derive(Debug, Default)]
struct Builder {
    table: Table,
    /// Where the last range ended.
    end: u64,
}

impl Builder {
    fn push(&mut self, start: u64, end: u64, rule: u16) {
        debug_assert!(self.end <= start && start < end);
        if self.end < start {
            self.gap();
        }
        let first = start >> abi::PAGE_BITS;
        let last = (end - 1) >> abi::PAGE_BITS;
        for number in first..=last {
            let low = if number == first { start as u16 } else { 0 };
            self.open(number as u32, low);
            self.row(low, rule);
        }
        self.end = end;
    }

    /// What follows the last range is not covered.
    fn gap(&mut self) {
        let number = self.end >> abi::PAGE_BITS;
        if self
            .table
            .pages
            .last()
            .is_some_and(|page| u64::from(page.number) == number)
        {
            self.row(self.end as u16, abi::RULE_NONE);
        }
    }

    /// Makes `number` the last page, of which `low` is the first address that is covered.
    fn open(&mut self, number: u32, low: u16) {
        if self
            .table
            .pages
            .last()
            .is_some_and(|page| page.number == number)
        {
            return;
        }
        let at = self.table.rows.len();
        self.table.pages.push(Page {
            number,
            rows: at..at,
        });
        if low > 0 {
            self.row(0, abi::RULE_NONE);
        }
    }

    /// Adds a row to the last page, unless the row before it says the same.
    fn row(&mut self, low: u16, rule: u16) {
        let Some(page) = self.table.pages.last_mut() else {
            return;
        };
        let before = self.table.rows[page.rows.clone()].last();
        if before.is_none_or(|row| *row as u16 != rule) {
            self.table.rows.push(u32::from(low) << 16 | u32::from(rule));
            page.rows.end = self.table.rows.len();
        }
    }

    fn finish(mut self) -> Table {
        if self.table.pages.is_empty() {
            return self.table;
        }
        self.gap();
        self.table.pages.shrink_to_fit();
        self.table.rows.shrink_to_fit();
        self.table
    }
}
