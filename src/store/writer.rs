//! Writes a recording while it is made.
//!
//! The file is a valid recording after every chunk, so that a recorder may be
//! killed, or the disk fill up, at any moment.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zerocopy::IntoBytes;

use super::encode::Encoder;
use super::error::StoreError;
use super::format::{
    ChunkKind, FileHeader, IndexEntry, Trailer, FLAG_UNFINISHED, MAX_INDEX_ENTRIES, TARGET_RAW_LEN,
};
use super::meta::{Meta, Summary};
use super::pack::Packer;
use crate::event::Event;
use crate::units::Bytes;

/// A span in which no time was mentioned.
const NO_TIMES: (u64, u64) = (u64::MAX, 0);

/// How much was recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub events: u64,
    pub switches: u64,
    /// What switches and wakings took before compression.
    pub switch_bytes: Bytes,
    /// What all events took before compression.
    pub raw: Bytes,
    /// Size of the file; the open chunk is not in it yet.
    pub written: Bytes,
}

/// A recording in the making. Events are kept in the order in which they are pushed.
///
/// Dropped without [`Writer::finish`], it writes the open chunk and leaves the file marked as unfinished.
pub struct Writer {
    path: PathBuf,
    file: File,
    /// Where the next chunk goes: the end of the last whole one.
    offset: u64,
    open: Encoder,
    packer: Packer,
    index: Vec<IndexEntry>,
    stats: Stats,
    /// The error that ended the recording. Going on after it would leave a hole that nobody sees.
    failed: Option<io::ErrorKind>,
    finished: bool,
}

impl Writer {
    /// Creates or replaces the file at `path`.
    pub fn create(path: &Path, meta: &Meta) -> Result<Writer, StoreError> {
        let file = create_file(path)?;
        Writer::new(file, path, meta)
    }

    /// Writes to an open and empty file; `path` is what errors call it.
    pub fn new(file: File, path: &Path, meta: &Meta) -> Result<Writer, StoreError> {
        let packer = Packer::new().map_err(|source| StoreError::Create {
            path: path.to_owned(),
            source,
        })?;
        let mut writer = Writer {
            path: path.to_owned(),
            file,
            offset: 0,
            open: Encoder::default(),
            packer,
            index: Vec::new(),
            stats: Stats::default(),
            failed: None,
            finished: false,
        };
        writer.append(FileHeader::new(FLAG_UNFINISHED).as_bytes())?;
        writer.json_chunk(ChunkKind::Meta, meta)?;
        Ok(writer)
    }

    /// Adds an event. After an error no more can be added, and all before the open chunk is in the file.
    pub fn push(&mut self, event: &Event) -> Result<(), StoreError> {
        self.check()?;
        let before = self.open.bytes().len();
        self.open.push(event);
        let len = self.open.bytes().len();
        let added = (len - before) as u64;
        self.stats.events += 1;
        self.stats.raw.0 += added;
        if let Event::Switch(_) | Event::Waking(_) = event {
            self.stats.switches += u64::from(matches!(event, Event::Switch(_)));
            self.stats.switch_bytes.0 += added;
        }
        if len >= TARGET_RAW_LEN {
            self.flush()?;
        }
        Ok(())
    }

    /// Closes the open chunk: all events so far are in the file, whatever happens to this process.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        if self.open.records() == 0 {
            return Ok(());
        }
        let mut open = std::mem::take(&mut self.open);
        let written = self.chunk(ChunkKind::Events, open.bytes(), open.records(), open.span());
        open.clear();
        self.open = open;
        written
    }

    /// Closes the file. What `summary` says about events and switches is replaced by what was counted here.
    pub fn finish(mut self, summary: &Summary) -> Result<Stats, StoreError> {
        // Not tried again when this value is dropped.
        self.finished = true;
        self.flush()?;
        let summary = Summary {
            events: self.stats.events,
            switches: self.stats.switches,
            switch_bytes: self.stats.switch_bytes.0,
            ..summary.clone()
        };
        let summary_offset = self.offset;
        self.json_chunk(ChunkKind::Summary, &summary)?;
        let index_offset = self.offset;
        for part in std::mem::take(&mut self.index).chunks(MAX_INDEX_ENTRIES) {
            self.chunk(
                ChunkKind::Index,
                part.as_bytes(),
                part.len() as u32,
                NO_TIMES,
            )?;
        }
        self.append(Trailer::new(summary_offset, index_offset).as_bytes())?;
        let header = FileHeader::new(0);
        self.file
            .write_all_at(header.as_bytes(), 0)
            .map_err(|e| self.fail(e))?;
        Ok(self.stats)
    }

    pub fn stats(&self) -> Stats {
        self.stats
    }

    fn json_chunk<T: serde::Serialize>(
        &mut self,
        kind: ChunkKind,
        value: &T,
    ) -> Result<(), StoreError> {
        let json = serde_json::to_vec(value).map_err(|e| self.fail(e.into()))?;
        self.chunk(kind, &json, 1, NO_TIMES)
    }

    fn chunk(
        &mut self,
        kind: ChunkKind,
        raw: &[u8],
        records: u32,
        times: (u64, u64),
    ) -> Result<(), StoreError> {
        self.check()?;
        let offset = self.offset;
        let packed = self.packer.pack(kind, raw, records, times);
        let (header, chunk) = match packed {
            Ok(packed) => packed,
            Err(e) => return Err(self.fail(e)),
        };
        if let Err(e) = self.file.write_all_at(chunk, offset) {
            return Err(self.undo(e));
        }
        let len = chunk.len() as u64;
        self.grown(len);
        self.index.push(IndexEntry {
            offset: offset.into(),
            first_ns: header.first_ns,
            last_ns: header.last_ns,
            records: header.records,
            kind: header.kind,
            pad: 0.into(),
        });
        Ok(())
    }

    /// Writes behind the last whole chunk; when that fails, whatever part was written is taken back.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        if let Err(e) = self.file.write_all_at(bytes, self.offset) {
            return Err(self.undo(e));
        }
        self.grown(bytes.len() as u64);
        Ok(())
    }

    fn undo(&mut self, source: io::Error) -> StoreError {
        // Readers cope with the part as well; that it may fail changes nothing.
        let _ = self.file.set_len(self.offset);
        self.fail(source)
    }

    fn grown(&mut self, by: u64) {
        self.offset += by;
        self.stats.written = Bytes(self.offset);
    }

    fn check(&self) -> Result<(), StoreError> {
        match self.failed {
            None => Ok(()),
            Some(kind) => Err(StoreError::Write {
                path: self.path.clone(),
                source: kind.into(),
            }),
        }
    }

    fn fail(&mut self, source: io::Error) -> StoreError {
        self.failed = Some(source.kind());
        StoreError::Write {
            path: self.path.clone(),
            source,
        }
    }
}

/// A new file for a recording, or one that was there and is empty from now on. Readable by its owner only: it
/// tells much about the machine.
pub fn create_file(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| StoreError::Create {
            path: path.to_owned(),
            source,
        })
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            // The caller has an error of its own to tell.
            let _ = self.flush();
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("path", &self.path)
            .field("stats", &self.stats)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::Reader;
    use super::*;
    use crate::event::{Exit, Pid, Tid};
    use crate::units::Nanos;

    #[test]
    fn what_was_flushed_before_the_disk_was_full_stays_readable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gdiag.data");
        let event = Event::Exit(Exit {
            ts: Nanos(1),
            tid: Tid(2),
            pid: Pid(3),
            code: 0,
        });
        let mut writer = Writer::create(&path, &Meta::default()).unwrap();
        writer.push(&event).unwrap();
        writer.flush().unwrap();
        let written = writer.stats().written;

        writer.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        writer.push(&event).unwrap();
        assert!(matches!(writer.flush(), Err(StoreError::Write { .. })));
        // From now on at once: a chunk written after a lost one would hide the hole.
        assert!(matches!(writer.push(&event), Err(StoreError::Write { .. })));
        assert_eq!(writer.stats().written, written);
        assert!(writer.finish(&Summary::default()).is_err());

        let mut reader = Reader::open(&path).unwrap();
        let mut events = Vec::new();
        reader
            .for_each(|event| {
                events.push(event.clone());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(events, [event]);
        assert_eq!(reader.coverage().unread, Bytes(0));
    }
}
