//! How much of a recording could be read.
#![forbid(unsafe_code)]

use crate::units::{Bytes, Count, Nanos};

/// Spans of damage that are told one by one.
const MAX_DAMAGE: usize = 100;

/// How the file ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The recorder finished it.
    #[default]
    Complete,
    /// The recorder was killed, could not write any more, or is still running.
    Unfinished,
    /// The recorder finished it, but its end is missing now.
    Cut,
}

/// A part of the file that could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Times of what was in it, or of what is around it when they are lost with it; `None` when
    /// there is nothing to tell them from.
    pub span: Option<(Nanos, Nanos)>,
    pub bytes: Bytes,
}

/// What a reader found and what it could not use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub end: End,
    /// Events handed out.
    pub events: u64,
    /// Bytes of the file that could not be used: damaged chunks and the part behind the last whole one.
    pub unread: Bytes,
    /// Damaged chunks; a stretch in which not even their headers are left counts as one.
    pub damaged_chunks: u64,
    /// Where they were, in the order of the file. The last of a great many stands for all the rest.
    pub damage: Vec<Damage>,
    /// The file header does not match its checksum; the chunks have their own.
    pub header_damaged: bool,
    /// Host, command and options are not known: their chunk could not be read.
    pub meta_lost: bool,
    /// Chunks and records of kinds that a newer gdiag introduced. They were skipped.
    pub unknown_chunks: u64,
    pub unknown_records: u64,
}

impl Coverage {
    /// All that this gdiag understands of the recording was there.
    pub fn is_whole(&self) -> bool {
        self.end == End::Complete
            && self.damaged_chunks == 0
            && !self.header_damaged
            && !self.meta_lost
    }

    /// Sentences for the top of a report. Times are shown from `start`.
    pub fn warnings(&self, start: Nanos) -> Vec<String> {
        let mut warnings = Vec::new();
        match self.end {
            End::Complete => {}
            End::Unfinished => warnings.push(
                "the recorder did not finish this recording (it was killed, could not write, or still runs): \
                 its last moments are missing"
                    .to_string(),
            ),
            End::Cut => warnings.push("the end of this recording is missing: the file was cut".to_string()),
        }
        if self.header_damaged {
            warnings.push("the header of the recording is damaged".to_string());
        }
        if self.meta_lost {
            warnings.push(
                "what the recording says about its host and command cannot be read".to_string(),
            );
        }
        if self.damaged_chunks > 0 {
            let spans = self.damage.iter().filter_map(|damage| damage.span);
            let span = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
            let place = span.map_or_else(String::new, |(first, last)| {
                format!(
                    ", between {} and {}",
                    first.saturating_sub(start),
                    last.saturating_sub(start)
                )
            });
            warnings.push(format!(
                "{} of the recording skipped{place}: its events and names are missing",
                if self.damaged_chunks == 1 {
                    "a damaged part".to_string()
                } else {
                    format!("{} damaged parts", Count(self.damaged_chunks))
                },
            ));
        }
        let unknown = self.unknown_chunks + self.unknown_records;
        if unknown > 0 {
            warnings.push(format!(
                "{} records of kinds that only a newer gdiag knows were skipped",
                Count(unknown)
            ));
        }
        warnings
    }

    pub(super) fn damaged(&mut self, span: Option<(Nanos, Nanos)>, bytes: u64) {
        self.damaged_chunks += 1;
        self.unread.0 += bytes;
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push(Damage {
                span,
                bytes: Bytes(bytes),
            });
        } else if let Some(last) = self.damage.last_mut() {
            last.span = match (last.span, span) {
                (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
                (a, b) => a.or(b),
            };
            last.bytes.0 += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_damage_is_counted_but_not_listed() {
        let mut coverage = Coverage::default();
        for i in 0..1000 {
            coverage.damaged(Some((Nanos(i), Nanos(i + 1))), 10);
        }
        assert_eq!(coverage.damaged_chunks, 1000);
        assert_eq!(coverage.unread, Bytes(10_000));
        assert_eq!(coverage.damage.len(), MAX_DAMAGE);
        let last = coverage.damage[MAX_DAMAGE - 1];
        assert_eq!(last.span, Some((Nanos(99), Nanos(1000))));
        assert_eq!(last.bytes, Bytes(10 * 901));
    }

    #[test]
    fn damage_is_told_with_its_time() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.warnings(Nanos::ZERO), Vec::<String>::new());
        coverage.damaged(None, 1);
        coverage.damaged(Some((Nanos::from_secs(12), Nanos::from_secs(13))), 1);
        let warnings = coverage.warnings(Nanos::from_secs(10));
        assert_eq!(
            warnings,
            ["2 damaged parts of the recording skipped, between 2.00 s and 3.00 s: its events and names are missing"]
        );
    }
}
