//! Opens what is mapped, and makes sure that it is what is mapped.
//!
//! A path says little: the file may have been deleted or replaced since, or the process has
//! another root. So a file counts only when its build id is the one that the kernel saw at the
//! time, or device and inode are those of the mapping, or it was opened through the mapping
//! itself (/proc/PID/map_files), which leads to deleted files too but takes CAP_CHECKPOINT_RESTORE,
//! which a container does not give even to root.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::resource::{getrlimit, Resource};
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{fstatfs, BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC};

use super::events::{FileHint, Mmap};
use super::proc;
use crate::collect::elf::{Elf, Identity};

/// Files held open at most, however many the limit of the process allows.
const MOST_OPEN: u64 = 8192;

/// What became of the attempt to open a mapped file.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    Elf(Arc<Elf>),
    /// A file, but not of code that could be described.
    Other(Identity),
    /// Gone, another file by now, no file at all, or too many are open.
    No,
}

/// Files that are open already, so that each is opened once for all processes.
#[derive(Debug)]
pub(super) struct Opener {
    known: Mutex<HashMap<Identity, Weak<Elf>>>,
    pub most: usize,
    /// Files that were not found by their paths, and that must not be opened through their mappings.
    refused: AtomicU64,
}

impl Opener {
    pub fn new() -> Opener {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(now, _)| now);
        Opener {
            known: Mutex::default(),
            most: usize::try_from((limit / 2).min(MOST_OPEN)).unwrap_or(512),
            refused: AtomicU64::new(0),
        }
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Opens the files of `maps`, which were mapped by one process, in their order.
    pub fn open(&self, proc_pid: u32, maps: &[Mmap]) -> Vec<Opened> {
        let mut same: HashMap<(&FileHint, &[u8]), Opened> = HashMap::new();
        let mut unsure = Vec::new();
        let mut all: Vec<Opened> = Vec::with_capacity(maps.len());
        for (i, mmap) in maps.iter().enumerate() {
            let key = (&mmap.file, mmap.path.as_slice());
            let opened = match same.get(&key) {
                Some(opened) => opened.clone(),
                None if !has_file(mmap) => Opened::No,
                None => match self.open_one(proc_pid, mmap) {
                    Attempt::Sure(opened) => {
                        same.insert(key, opened.clone());
                        opened
                    }
                    Attempt::Unsure(opened) => {
                        unsure.push(i);
                        opened
                    }
                },
            };
            all.push(opened);
        }
        // The mapping is still there after its file was opened through it: it was that file.
        if !unsure.is_empty() {
            let now = proc::read(proc_pid).unwrap_or_default();
            for i in unsure {
                if now
                    .binary_search_by_key(&maps[i].start, |m| m.start)
                    .is_ok_and(|at| now[at] == maps[i])
                {
                    continue;
                }
                all[i] = Opened::No;
            }
        }
        all
    }

    fn open_one(&self, proc_pid: u32, mmap: &Mmap) -> Attempt {
        let through = format!("/proc/{proc_pid}/map_files/{:x}-{:x}", mmap.start, mmap.end);
        let through = self.open_path(Path::new(&through));
        let is_refused = matches!(&through, Err(e) if e.raw_os_error() == Some(libc::EPERM));
        if let Ok(opened) = through {
            if fits(&opened, &mmap.file) {
                return Attempt::Sure(opened);
            }
            // File systems with devices of their own inside (btrfs, overlay) tell stat(2) another
            // number than maps.
            if matches!(mmap.file, FileHint::Inode { .. }) {
                return Attempt::Unsure(opened);
            }
        }
        let root = PathBuf::from(format!("/proc/{proc_pid}/root"));
        let path = Path::new(std::ffi::OsStr::from_bytes(&mmap.path));
        let inside = path.strip_prefix("/").map(|path| root.join(path));
        for path in inside.as_deref().into_iter().chain([path]) {
            match self.open_path(path) {
                Ok(opened)
                    if fits(&opened, &mmap.file) || fits_but_for_device(&opened, &mmap.file) =>
                {
                    return Attempt::Sure(opened);
                }
                Ok(_) | Err(_) => {}
            }
        }
        if is_refused {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        Attempt::Sure(Opened::No)
    }

    /// Opens a regular file, and nothing else: to open a device or a pipe may do something.
    fn open_path(&self, path: &Path) -> io::Result<Opened> {
        let handle = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
            .open(path)?;
        if !handle.metadata()?.is_file() {
            return Ok(Opened::No);
        }
        if let Some(elf) = self.known(&Identity::of(&handle)?) {
            return Ok(Opened::Elf(elf));
        }
        if Elf::open_files() >= self.most {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let file = File::open(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
        let identity = Identity::of(&file)?;
        let Some(elf) = Elf::read(file)? else {
            return Ok(Opened::Other(identity));
        };
        let elf = Arc::new(elf);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= 2 * self.most {
            known.retain(|_, elf| elf.strong_count() > 0);
        }
        known.insert(elf.identity, Arc::downgrade(&elf));
        Ok(Opened::Elf(elf))
    }

    fn known(&self, identity: &Identity) -> Option<Arc<Elf>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(identity).and_then(Weak::upgrade)
    }
}

enum Attempt {
    Sure(Opened),
    /// Opened through the mapping, which may have become another's before.
    Unsure(Opened),
}

/// Whether a mapping is of a file that could be opened at all.
pub(super) fn has_file(mmap: &Mmap) -> bool {
    mmap.path.starts_with(b"/") && !mmap.path.starts_with(b"//anon")
}

fn fits(opened: &Opened, hint: &FileHint) -> bool {
    let identity = match opened {
        Opened::Elf(elf) => {
            if let FileHint::BuildId(id) = hint {
                return elf.build_id == *id;
            }
            &elf.identity
        }
        Opened::Other(identity) => identity,
        Opened::No => return false,
    };
    let of_file = FileHint::Inode {
        major: u32::try_from(major(identity.device)).unwrap_or(u32::MAX),
        minor: u32::try_from(minor(identity.device)).unwrap_or(u32::MAX),
        inode: identity.inode,
    };
    *hint == of_file
}

/// Whether it is the file of the mapping as far as can be told on a file system that tells stat(2)
/// another device than maps.
fn fits_but_for_device(opened: &Opened, hint: &FileHint) -> bool {
    let (Opened::Elf(elf), FileHint::Inode { inode, .. }) = (opened, hint) else {
        return false;
    };
    let kind = fstatfs(elf.file()).map(|fs| fs.filesystem_type());
    elf.identity.inode == *inode
        && kind.is_ok_and(|kind| [OVERLAYFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC].contains(&kind))
}
