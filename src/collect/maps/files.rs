//! The mapped files of all targets, one number each.
//!
//! A file is known by its build id, wherever it lies: a thousand containers have as many copies
//! of the same library, which all need one unwind table and have one set of names. Only without
//! a build id are device, inode, size and time of change what tells files apart. So the names that
//! are shown can be no truer than the build ids: a file made to have another's may be taken for it.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use nix::sys::memfd::{memfd_create, MFdFlags};

use super::events::{FileHint, Mmap};
use super::open::Opened;
use super::FileId;
use crate::collect::elf::{self, BuildId, Elf, Identity, Segment};
use crate::unwind::vdso;

/// The kernel's name for its own code in every process.
pub(super) const VDSO: &[u8] = b"[vdso]";

/// How the kernel marks the path of a file that has no name any more.
const DELETED: &str = " (deleted)";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Vdso,
    BuildId(BuildId),
    Identity(Identity),
    /// It could not be opened: nothing more is known.
    Unopened(FileHint, Vec<u8>),
}

#[derive(Debug)]
struct Entry {
    /// As the first process with it sees it.
    path: String,
    build_id: BuildId,
    /// Kept when the file has been closed again. `None` when it was never open, or is not ELF.
    segments: Option<Vec<Segment>>,
    elf: Option<Arc<Elf>>,
    /// Being opened.
    asked: bool,
    /// Where else it was seen meanwhile: the process through which it is being opened may end.
    also: Option<(u32, Mmap)>,
    used: u64,
}

/// Numbers from 1 on, never used again.
#[derive(Debug, Default)]
pub struct Files {
    entries: Vec<Entry>,
    ids: HashMap<Key, FileId>,
    /// Counts what was done, to find what was not used for longest.
    turn: u64,
}

impl Files {
    /// Path as the first process that mapped it sees it, made valid UTF-8, or `[vdso]`.
    pub fn path(&self, file: FileId) -> &str {
        self.entry(file).map_or("", |entry| entry.path.as_str())
    }

    pub fn build_id(&self, file: FileId) -> BuildId {
        self.entry(file)
            .map(|entry| entry.build_id.clone())
            .unwrap_or_default()
    }

    /// The file, open. `None` when it could not be opened (yet), is no ELF file, or was closed
    /// because too many are open; then it comes back when it is seen mapped again.
    pub fn elf(&mut self, file: FileId) -> Option<Arc<Elf>> {
        self.turn += 1;
        let turn = self.turn;
        let entry = self.entry_mut(file)?;
        entry.used = turn;
        entry.elf.clone()
    }

    /// How many were seen, and of how many of them neither code nor names could be read.
    pub fn counts(&self) -> (usize, usize) {
        let unread = self.entries.iter().filter(|e| e.segments.is_none()).count();
        (self.entries.len(), unread)
    }

    fn entry(&self, file: FileId) -> Option<&Entry> {
        self.entries.get((file.0 as usize).checked_sub(1)?)
    }

    fn entry_mut(&mut self, file: FileId) -> Option<&mut Entry> {
        self.entries.get_mut((file.0 as usize).checked_sub(1)?)
    }

    /// Whether it is being opened, so that its addresses will be known soon.
    pub(super) fn is_awaited(&self, file: FileId) -> bool {
        self.entry(file).is_some_and(|entry| entry.asked)
    }

    /// Notes that it was seen mapped; true when it is to be opened there.
    pub(super) fn seen(&mut self, file: FileId, proc_pid: u32, mmap: &Mmap) -> bool {
        match self.entry_mut(file) {
            Some(entry) if entry.elf.is_some() => false,
            Some(entry) if entry.asked => {
                entry.also = Some((proc_pid, mmap.clone()));
                false
            }
            Some(entry) => {
                entry.asked = true;
                true
            }
            None => false,
        }
    }

    /// Where it can be tried again, after it could not be opened.
    pub(super) fn elsewhere(&mut self, file: FileId) -> Option<(u32, Mmap)> {
        let entry = self.entry_mut(file)?;
        entry.asked = false;
        entry.also.take()
    }

    /// As [`Elf::bias`]; `None` while the file is not known.
    pub(super) fn bias(&self, file: FileId, start: u64, len: u64, offset: u64) -> Option<u64> {
        let segments = self.entry(file)?.segments.as_ref()?;
        elf::bias(segments, start, len, offset)
    }

    /// The number of the file with this build id.
    pub(super) fn by_build_id(&mut self, id: &BuildId, path: &[u8]) -> FileId {
        self.number(Key::BuildId(id.clone()), path, id)
    }

    /// The number of a file that was opened, or of one that was not; true when it became open now.
    pub(super) fn opened(
        &mut self,
        hint: &FileHint,
        path: &[u8],
        opened: &Opened,
    ) -> (FileId, bool) {
        let none = BuildId::default();
        match opened {
            Opened::Elf(elf) => {
                let key = if elf.build_id.tells_apart() {
                    Key::BuildId(elf.build_id.clone())
                } else {
                    Key::Identity(elf.identity)
                };
                let file = self.number(key, path, &elf.build_id);
                (file, self.settle(file, opened))
            }
            Opened::Other(identity) => (self.number(Key::Identity(*identity), path, &none), false),
            Opened::No => match hint {
                FileHint::BuildId(id) if id.tells_apart() => (self.by_build_id(id, path), false),
                FileHint::BuildId(_) | FileHint::Inode { .. } => {
                    let key = Key::Unopened(hint.clone(), path.to_vec());
                    (self.number(key, path, &none), false)
                }
            },
        }
    }

    /// What became of opening it; true when it became open now.
    pub(super) fn settle(&mut self, file: FileId, opened: &Opened) -> bool {
        self.turn += 1;
        let turn = self.turn;
        let Some(entry) = self.entry_mut(file) else {
            return false;
        };
        entry.asked = false;
        let Opened::Elf(elf) = opened else {
            return false;
        };
        entry.also = None;
        let deleted = elf.file().metadata().is_ok_and(|meta| meta.nlink() == 0);
        if let (true, Some(path)) = (deleted, entry.path.strip_suffix(DELETED)) {
            entry.path = path.to_string();
        }
        entry.used = turn;
        if entry.elf.is_none() {
            entry.elf = Some(Arc::clone(elf));
        }
        let new = entry.segments.is_none();
        entry.segments.get_or_insert_with(|| elf.segments.clone());
        new
    }

    /// The code that the kernel maps into every 64-bit process, ours included.
    pub(super) fn vdso(&mut self) -> FileId {
        let known = self.ids.contains_key(&Key::Vdso);
        let file = self.number(Key::Vdso, VDSO, &BuildId::default());
        if !known {
            if let Ok(Some(elf)) = own_vdso().and_then(Elf::read) {
                let id = elf.build_id.clone();
                let elf = Arc::new(elf);
                self.settle(file, &Opened::Elf(elf));
                if let Some(entry) = self.entry_mut(file) {
                    entry.build_id = id;
                }
            }
        }
        file
    }

    /// Closes those that were not used for longest, when more than three quarters of `most` are
    /// open. Their numbers and segments stay.
    pub(super) fn close_some(&mut self, most: usize) {
        if Elf::open_files() < most / 4 * 3 {
            return;
        }
        let mut open: Vec<_> = self
            .entries
            .iter_mut()
            .filter(|e| e.elf.is_some())
            .collect();
        open.sort_unstable_by_key(|entry| entry.used);
        let closed = open.len().saturating_sub(most / 2);
        for entry in open.into_iter().take(closed) {
            entry.elf = None;
        }
    }

    fn number(&mut self, key: Key, path: &[u8], build_id: &BuildId) -> FileId {
        if let Some(&file) = self.ids.get(&key) {
            return file;
        }
        self.entries.push(Entry {
            path: String::from_utf8_lossy(path).into_owned(),
            build_id: build_id.clone(),
            segments: None,
            elf: None,
            asked: false,
            also: None,
            used: self.turn,
        });
        let file = FileId(u32::try_from(self.entries.len()).expect("fewer than 4 billion files"));
        self.ids.insert(key, file);
        file
    }
}

/// A file with the bytes of the vdso.
fn own_vdso() -> io::Result<File> {
    let bytes = vdso::image().ok_or(io::ErrorKind::NotFound)?;
    let mut file = File::from(memfd_create("gdiag-vdso", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_has_symbols() {
        let mut files = Files::default();
        let vdso = files.vdso();
        assert_eq!(files.vdso(), vdso);
        assert_eq!(files.path(vdso), "[vdso]");
        let elf = files.elf(vdso).unwrap();
        let gettime = elf.symbol("__vdso_clock_gettime").unwrap();
        assert!(gettime.is_some());
        assert!(!files.build_id(vdso).is_empty());
    }

    #[test]
    fn one_build_is_one_file_wherever_it_lies() {
        let mut files = Files::default();
        let id = BuildId::new(&[7; 20]);
        let a = files.by_build_id(&id, b"/a/lib.so");
        assert_eq!(files.by_build_id(&id, b"/b/lib.so"), a);
        assert_eq!(files.path(a), "/a/lib.so");
        let hint = FileHint::BuildId(BuildId::new(&[8; 20]));
        let (b, open) = files.opened(&hint, b"/c", &Opened::No);
        assert!(b != a && !open && files.elf(b).is_none());
        assert_eq!(files.path(FileId(0)), "");
        assert!(files.elf(FileId(99)).is_none());
    }
}
