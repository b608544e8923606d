//! Reads a recording, whatever state it is in.
//!
//! The file is untrusted: it may be cut, damaged, or made up. What checks out is
//! used, what does not is counted, and memory is bounded by the size of a chunk.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use zerocopy::FromBytes;

use super::chunks::{Chunks, Found};
use super::coverage::{Coverage, End};
use super::decode::{Decoder, Malformed, Record};
use super::error::{recognise, StoreError};
use super::format::{
    ChunkHeader, ChunkKind, FileHeader, IndexEntry, Trailer, CHUNK_HEADER_LEN, FILE_HEADER_LEN,
    FLAG_UNFINISHED, MAGIC, MAJOR, TRAILER_LEN,
};
use super::meta::{Meta, Summary};
use super::state::State;
use crate::event::{Event, Loss, LossSource};
use crate::units::{Bytes, Nanos};

/// An open recording.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    chunks: Chunks,
    /// Where the first chunk is.
    start: u64,
    meta: Meta,
    summary: Option<Summary>,
    /// By offset. Only damage needs it: to tell which times are missing.
    index: Vec<IndexEntry>,
    /// What is known before the first chunk is read.
    opening: Coverage,
    coverage: Coverage,
    state: State,
}

impl Reader {
    /// Opens the recording at `path` and reads what it says about itself.
    pub fn open(path: &Path) -> Result<Reader, StoreError> {
        let unread = |source| StoreError::read(path, source);
        let (file, len) = open_file(path)?;
        let mut chunks = Chunks::new(file, len).map_err(unread)?;
        let header = read_header(&chunks, path)?;
        // Versions and lengths are believed only when the header is whole: a flipped bit is not a newer gdiag.
        let header_damaged = !header.is_sound();
        if !header_damaged && header.major != MAJOR {
            return Err(StoreError::NewerVersion {
                path: path.to_owned(),
                found: header.major.get(),
                known: MAJOR,
            });
        }
        let start = if header_damaged {
            FILE_HEADER_LEN as u64
        } else {
            header.len.get().into()
        };

        let trailer = read_trailer(&chunks).map_err(unread)?;
        let end = match trailer {
            Some(_) => End::Complete,
            None if header.flags.get() & FLAG_UNFINISHED != 0 => End::Unfinished,
            None => End::Cut,
        };
        let mut summary = None;
        let mut index = Vec::new();
        if let Some(trailer) = trailer {
            chunks.end = len - TRAILER_LEN as u64;
            if let Found::Whole(header) = chunks.at(trailer.summary_offset.get()).map_err(unread)? {
                summary = parse_summary(&header, chunks.raw());
            }
            index = read_index(&mut chunks, trailer.index_offset.get()).map_err(unread)?;
        }
        let meta = match chunks.at(start).map_err(unread)? {
            Found::Whole(header) if kind_of(&header) == Some(ChunkKind::Meta) => {
                serde_json::from_slice::<Meta>(chunks.raw()).ok()
            }
            Found::Whole(_) | Found::Damaged(_) | Found::Nothing => None,
            Found::Cut => {
                return Err(StoreError::Cut {
                    path: path.to_owned(),
                })
            }
        };
        let opening = Coverage {
            end,
            header_damaged,
            meta_lost: meta.is_none(),
            ..Coverage::default()
        };
        Ok(Reader {
            path: path.to_owned(),
            chunks,
            start,
            meta: meta.unwrap_or_default(),
            summary,
            index,
            coverage: opening.clone(),
            opening,
            state: State::default(),
        })
    }

    /// All defaults when its chunk is damaged; [`Coverage::meta_lost`] tells.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// `None` when the recorder did not finish, or the end of the file is missing or damaged.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Hands out every event in the order of the file, until `each` breaks off. Begins anew at each call.
    ///
    /// A part that is damaged is handed out as a [`Loss`] of its time: nobody is blamed there.
    ///
    /// Fails only when the file cannot be read at all; what is damaged or missing is told by
    /// [`Reader::coverage`]. After damage, a name or stack may be used that was never defined.
    pub fn for_each(
        &mut self,
        mut each: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.coverage = self.opening.clone();
        let mut at = self.start;
        // Of the last chunk of events.
        let mut before = None;
        while at < self.chunks.end {
            at = match self
                .chunks
                .at(at)
                .map_err(|e| StoreError::read(&self.path, e))?
            {
                Found::Whole(header) => {
                    if self.hand_out(&header, &mut each).is_break() {
                        break;
                    }
                    before = span(&header).or(before);
                    at + stored_len(&header)
                }
                Found::Damaged(header) => {
                    let len = stored_len(&header);
                    if self.damaged(span(&header), len, &mut each).is_break() {
                        break;
                    }
                    before = span(&header).or(before);
                    at + len
                }
                Found::Nothing => {
                    let next = self
                        .chunks
                        .find(at + 1)
                        .map_err(|e| StoreError::read(&self.path, e))?;
                    let span = match self.indexed_span(at, next) {
                        None if self.index.is_empty() => self.span_around(before, next)?,
                        span => span,
                    };
                    if self.damaged(span, next - at, &mut each).is_break() {
                        break;
                    }
                    next
                }
                Found::Cut => {
                    let len = self.chunks.end - at;
                    if self.opening.end == End::Complete {
                        // Chunks of a finished file fill it: this one lies about its length.
                        self.coverage.damaged(None, len);
                    } else {
                        self.coverage.unread.0 += len;
                    }
                    break;
                }
            };
        }
        Ok(())
    }

    /// What [`Reader::for_each`] found; before it, what opening the file showed.
    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Size of the file, when it was opened.
    pub fn file_size(&self) -> Bytes {
        let trailer = if self.opening.end == End::Complete {
            TRAILER_LEN as u64
        } else {
            0
        };
        Bytes(self.chunks.end + trailer)
    }

    fn hand_out(
        &mut self,
        header: &ChunkHeader,
        each: &mut impl FnMut(&Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match kind_of(header) {
            Some(ChunkKind::Events) => {}
            Some(ChunkKind::Meta | ChunkKind::Index) => return ControlFlow::Continue(()),
            Some(ChunkKind::Summary) => {
                // A file that was cut inside its index still has it.
                if self.summary.is_none() {
                    self.summary = parse_summary(header, self.chunks.raw());
                }
                return ControlFlow::Continue(());
            }
            None => {
                self.coverage.unknown_chunks += 1;
                return ControlFlow::Continue(());
            }
        }
        let mut records = 0;
        let mut decoder = Decoder::new(self.chunks.raw(), &mut self.state);
        let sound = loop {
            match decoder.next() {
                Ok(Some(Record::Event(event))) => {
                    records += 1;
                    self.coverage.events += 1;
                    each(&event)?;
                }
                Ok(Some(Record::Unknown)) => {
                    records += 1;
                    self.coverage.unknown_records += 1;
                }
                Ok(None) => break records == header.records.get(),
                Err(Malformed) => break false,
            }
        };
        if sound {
            return ControlFlow::Continue(());
        }
        self.damaged(span(header), stored_len(header), each)
    }

    fn damaged(
        &mut self,
        span: Option<(Nanos, Nanos)>,
        bytes: u64,
        each: &mut impl FnMut(&Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.coverage.damaged(span, bytes);
        let Some((from, to)) = span else {
            return ControlFlow::Continue(());
        };
        each(&Event::Loss(Loss {
            source: LossSource::Damage,
            count: 0,
            from,
            to,
        }))
    }

    /// Times between which lies what was lost between the chunk with the times `before` and the one at `next`.
    /// Chunks overlap, so all of theirs. `None` when no events come next: then the events end with those before.
    fn span_around(
        &mut self,
        before: Option<(Nanos, Nanos)>,
        next: u64,
    ) -> Result<Option<(Nanos, Nanos)>, StoreError> {
        let found = self
            .chunks
            .at(next)
            .map_err(|e| StoreError::read(&self.path, e))?;
        let next = match found {
            Found::Whole(header) | Found::Damaged(header) => span(&header),
            Found::Nothing | Found::Cut => None,
        };
        Ok(next.map(|next| before.map_or(next, |before| around(before, next))))
    }

    /// Times of the chunks that begin in a part of the file, as the index tells them.
    fn indexed_span(&self, from: u64, to: u64) -> Option<(Nanos, Nanos)> {
        let begin = self
            .index
            .partition_point(|entry| entry.offset.get() < from);
        self.index[begin..]
            .iter()
            .take_while(|entry| entry.offset.get() < to)
            .filter(|entry| ChunkKind::from_code(entry.kind.get()) == Some(ChunkKind::Events))
            .filter_map(|entry| times(entry.first_ns.get(), entry.last_ns.get()))
            .reduce(around)
    }
}

/// The file and its size.
fn open_file(path: &Path) -> Result<(File, u64), StoreError> {
    let path = path.to_owned();
    // Asked before opening: to open a pipe is to wait for its writer.
    let kind = match fs::metadata(&path) {
        Ok(metadata) => metadata.file_type(),
        Err(source) => return Err(StoreError::Open { path, source }),
    };
    if kind.is_dir() {
        let what = "a directory";
        return Err(StoreError::NotARecording { path, what });
    }
    if !kind.is_file() {
        let what = "a pipe or a device; copy what comes out of it into a file first";
        return Err(StoreError::NotARecording { path, what });
    }
    match File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file))) {
        Ok((0, _)) => Err(StoreError::Empty { path }),
        Ok((len, file)) => Ok((file, len)),
        Err(source) => Err(StoreError::Open { path, source }),
    }
}

/// The header of a file that has our magic, or what the file is instead.
fn read_header(chunks: &Chunks, path: &Path) -> Result<FileHeader, StoreError> {
    let mut head = [0; 512];
    let len = chunks.end.min(head.len() as u64) as usize;
    let head = &mut head[..len];
    let is_there = chunks
        .read(head, 0)
        .map_err(|e| StoreError::read(path, e))?;
    let path = path.to_owned();
    match FileHeader::read_from_prefix(head) {
        Ok((header, _)) if is_there && header.magic == MAGIC => Ok(header),
        Err(_) if MAGIC.starts_with(head) || head.starts_with(&MAGIC) => {
            Err(StoreError::Cut { path })
        }
        _ => Err(StoreError::NotARecording {
            path,
            what: recognise(head),
        }),
    }
}

fn read_trailer(chunks: &Chunks) -> io::Result<Option<Trailer>> {
    let mut bytes = [0; TRAILER_LEN];
    match chunks.end.checked_sub(TRAILER_LEN as u64) {
        Some(at) if chunks.read(&mut bytes, at)? => {}
        _ => return Ok(None),
    }
    Ok(Trailer::read_from_bytes(&bytes)
        .ok()
        .filter(Trailer::is_valid))
}

/// The entries up to the first index chunk that is not whole.
fn read_index(chunks: &mut Chunks, mut at: u64) -> io::Result<Vec<IndexEntry>> {
    // A true index has an entry for each chunk: no more than fit into the file.
    let most = chunks.end as usize / CHUNK_HEADER_LEN;
    let mut index = Vec::new();
    while let Found::Whole(header) = chunks.at(at)? {
        if kind_of(&header) != Some(ChunkKind::Index) {
            break;
        }
        let Ok(entries) = <[IndexEntry]>::ref_from_bytes(chunks.raw()) else {
            break;
        };
        if index.len() + entries.len() > most {
            break;
        }
        index.extend_from_slice(entries);
        at += stored_len(&header);
    }
    index.sort_by_key(|entry| entry.offset.get());
    Ok(index)
}

fn parse_summary(header: &ChunkHeader, raw: &[u8]) -> Option<Summary> {
    if kind_of(header) != Some(ChunkKind::Summary) {
        return None;
    }
    serde_json::from_slice(raw).ok()
}

fn kind_of(header: &ChunkHeader) -> Option<ChunkKind> {
    ChunkKind::from_code(header.kind.get())
}

/// Length of the chunk in the file, header and all.
fn stored_len(header: &ChunkHeader) -> u64 {
    CHUNK_HEADER_LEN as u64 + u64::from(header.stored_len.get())
}

/// Least and greatest time of the events in a chunk.
fn span(header: &ChunkHeader) -> Option<(Nanos, Nanos)> {
    match kind_of(header) {
        Some(ChunkKind::Events) => times(header.first_ns.get(), header.last_ns.get()),
        Some(ChunkKind::Meta | ChunkKind::Summary | ChunkKind::Index) | None => None,
    }
}

fn around(a: (Nanos, Nanos), b: (Nanos, Nanos)) -> (Nanos, Nanos) {
    (a.0.min(b.0), a.1.max(b.1))
}

fn times(first: u64, last: u64) -> Option<(Nanos, Nanos)> {
    (first <= last).then_some((Nanos(first), Nanos(last)))
}
