//! What can go wrong with a recording, in words for the person who asked for it.
#![forbid(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Says what was tried, on what, and why it failed; [`StoreError::hint`] says what to do.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot open recording '{}'", path.display())]
    Open { path: PathBuf, source: io::Error },

    #[error("cannot read recording '{}'", path.display())]
    Read { path: PathBuf, source: io::Error },

    #[error("cannot create recording '{}'", path.display())]
    Create { path: PathBuf, source: io::Error },

    /// What was written before is readable, up to the last whole chunk.
    #[error("cannot write recording '{}'", path.display())]
    Write { path: PathBuf, source: io::Error },

    /// `what` completes "it is …".
    #[error("'{}' is not a gdiag recording: it is {what}", path.display())]
    NotARecording { path: PathBuf, what: &'static str },

    #[error("recording '{}' is empty", path.display())]
    Empty { path: PathBuf },

    #[error("recording '{}' was cut before its first event", path.display())]
    Cut { path: PathBuf },

    /// Major versions of the format.
    #[error(
        "recording '{}' has format {found}, this gdiag reads formats up to {known}",
        path.display()
    )]
    NewerVersion {
        path: PathBuf,
        found: u16,
        known: u16,
    },
}

impl StoreError {
    /// What the person can do about it, as a sentence without a full stop.
    pub fn hint(&self) -> &'static str {
        match self {
            StoreError::Open { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => "record one with `gdiag record`, or name another file",
                io::ErrorKind::PermissionDenied => {
                    "a recording belongs to whoever made it: read it as that user, or change its owner"
                }
                _ => "name another file",
            },
            StoreError::Read { .. } => "copy the file to another disk and read it from there",
            StoreError::Create { source, .. } if source.kind() == io::ErrorKind::IsADirectory => {
                "that is a directory: name a file with -o"
            }
            StoreError::Create { .. } => "name a file that can be written with -o",
            StoreError::Write { .. } => {
                "make room there or name a file elsewhere with -o; \
                 what was recorded before is in the file, and `gdiag report` reads it"
            }
            StoreError::NotARecording { .. } => "name a file that `gdiag record` wrote",
            StoreError::Empty { .. } => "the recorder was stopped before it wrote anything: record again",
            StoreError::Cut { .. } => "copy it again, or record again: nothing in it can be reported",
            StoreError::NewerVersion { .. } => "read it with the gdiag that recorded it, or a newer one",
        }
    }

    pub(super) fn read(path: &Path, source: io::Error) -> Self {
        StoreError::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// What a file is that is not a recording, from how it begins.
pub(super) fn recognise(head: &[u8]) -> &'static str {
    const SIGNATURES: [(&[u8], &str); 8] = [
        (b"PERFILE2", "a perf.data file; 'perf report' reads it"),
        (
            b"\x17\x08\x44tracing",
            "a trace-cmd file; 'trace-cmd report' reads it",
        ),
        (
            b"SQLite format 3\0",
            "an SQLite database, perhaps an export of Nsight Systems",
        ),
        (b"\x7fELF", "a program or library"),
        (b"\x1f\x8b", "compressed with gzip; decompress it first"),
        (
            b"\x28\xb5\x2f\xfd",
            "compressed with zstd; decompress it first",
        ),
        (b"\xfd7zXZ\0", "compressed with xz; decompress it first"),
        (b"PK\x03\x04", "a ZIP archive"),
    ];
    for (signature, what) in SIGNATURES {
        if head.starts_with(signature) {
            return what;
        }
    }
    if head.iter().all(|&byte| byte == 0) {
        return "all zeros where it should begin, as after a crash of the machine";
    }
    let is_text = match std::str::from_utf8(head) {
        Ok(text) => text.chars().all(|c| !c.is_control() || c.is_whitespace()),
        // The head may end inside a character.
        Err(e) => e.error_len().is_none() && e.valid_up_to() > 0,
    };
    match head.trim_ascii_start().first() {
        Some(b'{' | b'[') if is_text => "a JSON file",
        _ if is_text => "a text file",
        _ => "of a kind that gdiag does not know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_files_are_called_by_their_name() {
        for (head, what) in [
            (&b"PERFILE2h\0\0\0"[..], "perf.data"),
            (b"\x17\x08\x44tracing6", "trace-cmd"),
            (b"\x1f\x8b\x08\x00", "gzip"),
            (b"  {\"traceEvents\":[", "JSON"),
            (b"# a note\nfor m\xc3", "text"),
            (b"\0\0\0\0\0\0\0\0", "zeros"),
            (b"\x01\x02\xff\xfe", "does not know"),
        ] {
            assert!(recognise(head).contains(what), "{}", recognise(head));
        }
    }
}
