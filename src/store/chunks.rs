//! Finds chunks in a file and hands out only what checks out.
//!
//! The file is not mapped: a recording that shrinks while it is read would kill
//! the process, and reading a chunk at a time is as fast.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use zerocopy::FromBytes;

use super::format::{ChunkHeader, CHUNK_HEADER_LEN, CHUNK_MAGIC, CODEC_NONE, CODEC_ZSTD};

/// How far to look at once for the next chunk after damage.
const WINDOW_LEN: usize = 64 << 10;

/// What is at some place of the file.
#[derive(Debug)]
pub(super) enum Found {
    /// A whole chunk; its contents are in [`Chunks::raw`].
    Whole(ChunkHeader),
    /// A chunk whose header is whole, but its contents are not.
    Damaged(ChunkHeader),
    /// No chunk begins here.
    Nothing,
    /// The file ends inside the chunk.
    Cut,
}

/// The part of a file that holds chunks.
pub(super) struct Chunks {
    file: File,
    /// Chunks end here.
    pub(super) end: u64,
    stored: Vec<u8>,
    unpacker: Unpacker,
}

impl Chunks {
    pub(super) fn new(file: File, end: u64) -> io::Result<Self> {
        Ok(Chunks {
            file,
            end,
            stored: Vec::new(),
            unpacker: Unpacker::new()?,
        })
    }

    /// Contents of the last whole chunk.
    pub(super) fn raw(&self) -> &[u8] {
        &self.unpacker.raw
    }

    /// Fills `buf` from `at`; false when the file ends before.
    pub(super) fn read(&self, buf: &mut [u8], at: u64) -> io::Result<bool> {
        match self.file.read_exact_at(buf, at) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads the chunk at `at`. Allocates no more than a chunk may hold, whatever the file says.
    pub(super) fn at(&mut self, at: u64) -> io::Result<Found> {
        let mut header = [0; CHUNK_HEADER_LEN];
        let Some(room) = self
            .end
            .checked_sub(at)
            .and_then(|n| n.checked_sub(CHUNK_HEADER_LEN as u64))
        else {
            return Ok(Found::Cut);
        };
        if !self.read(&mut header, at)? {
            return Ok(Found::Cut);
        }
        let Some(header) = parse(&header) else {
            return Ok(Found::Nothing);
        };
        if u64::from(header.stored_len.get()) > room {
            return Ok(Found::Cut);
        }
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(header.stored_len.get() as usize, 0);
        let is_there = self.read(&mut stored, at + CHUNK_HEADER_LEN as u64);
        self.stored = stored;
        if !is_there? {
            return Ok(Found::Cut);
        }
        Ok(if self.unpacker.unpack(&header, &self.stored) {
            Found::Whole(header)
        } else {
            Found::Damaged(header)
        })
    }

    /// Where the next chunk after damage begins, at `from` or later; the end when there is none.
    pub(super) fn find(&self, from: u64) -> io::Result<u64> {
        let mut window = vec![0; WINDOW_LEN];
        let mut at = from;
        while at < self.end {
            let len = (self.end - at).min(WINDOW_LEN as u64) as usize;
            let window = &mut window[..len];
            if !self.read(window, at)? {
                break;
            }
            let found = window
                .windows(CHUNK_HEADER_LEN)
                .position(|bytes| bytes.starts_with(&CHUNK_MAGIC) && parse(bytes).is_some());
            if let Some(offset) = found {
                return Ok(at + offset as u64);
            }
            if len < WINDOW_LEN {
                break;
            }
            // A header may lie across the edge.
            at += (len - (CHUNK_HEADER_LEN - 1)) as u64;
        }
        Ok(self.end)
    }
}

/// Checks and decompresses the contents of chunks, one after another in the same memory.
pub(super) struct Unpacker {
    /// Contents of the last whole chunk.
    pub(super) raw: Vec<u8>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

impl Unpacker {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Unpacker {
            raw: Vec::new(),
            decompressor: zstd::bulk::Decompressor::new()?,
        })
    }

    /// Whether `stored` is whole.
    pub(super) fn unpack(&mut self, header: &ChunkHeader, stored: &[u8]) -> bool {
        if crc32fast::hash(stored) != header.payload_crc.get() {
            return false;
        }
        let raw_len = header.raw_len.get() as usize;
        self.raw.clear();
        self.raw.reserve(raw_len);
        match header.codec {
            CODEC_NONE => self.raw.extend_from_slice(stored),
            CODEC_ZSTD => {
                // Never grows the buffer: a chunk that holds more than it says is an error.
                if self
                    .decompressor
                    .decompress_to_buffer(stored, &mut self.raw)
                    .is_err()
                {
                    return false;
                }
            }
            // A new codec would take a new major version.
            _ => return false,
        }
        self.raw.len() == raw_len
    }
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

fn parse(bytes: &[u8]) -> Option<ChunkHeader> {
    ChunkHeader::read_from_bytes(bytes)
        .ok()
        .filter(ChunkHeader::is_valid)
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks")
            .field("file", &self.file)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
