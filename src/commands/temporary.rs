//! Files that appear when they are whole, and not before.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, AT_FDCWD};
use nix::unistd::linkat;

/// A file that is gone unless it replaces another, even if gdiag is killed: it has no name until then, where the file
/// system can do that.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    file: File,
    has_name: bool,
}

impl Temporary {
    pub(super) fn beside(path: &Path, mode: u32) -> io::Result<Temporary> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            Some(_) | None => Path::new("."),
        };
        let nameless = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .mode(mode)
            .open(dir);
        let (file, has_name) = match nameless {
            Ok(file) => (file, false),
            Err(_) => {
                let mut options = OpenOptions::new();
                let named = options.write(true).create_new(true).mode(mode);
                let named = named.open(&temporary)?;
                (named, true)
            }
        };
        Ok(Temporary {
            path: temporary,
            file,
            has_name,
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn replace(mut self, path: &Path) -> io::Result<()> {
        if !self.has_name {
            let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let follow = AtFlags::AT_SYMLINK_FOLLOW;
            linkat(AT_FDCWD, open.as_str(), AT_FDCWD, &self.path, follow)?;
            self.has_name = true;
        }
        fs::rename(&self.path, path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.has_name {
            // Not there any more when it has replaced the other.
            let _ = fs::remove_file(&self.path);
        }
    }
}
