//! Files that appear when they are whole, and not before.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AtFlags, AT_FDCWD};
use nix::unistd::linkat;

use crate::error::Error;
use crate::present::text::clean;

/// Whether a new file may take this name: a link or a device may be there for the whole machine, as /dev/stdout is.
pub(super) fn is_replaceable(path: &Path) -> Result<(), Error> {
    let what = match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => "a symbolic link",
        Ok(there) if !there.is_file() => "no regular file",
        Ok(_) | Err(_) => return Ok(()),
    };
    Err(Error::NotReplaceable {
        path: clean(&path.display().to_string()).into_owned(),
        what,
    })
}

/// Whether links lead from here to a file that some process has open, as from /dev/stdout: what has to be left alone
/// is a link then, though it looks like a file.
pub(super) fn is_open_file(path: &Path) -> bool {
    /// As many as the kernel follows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let dir = directory(&path).canonicalize().unwrap_or_default();
        match fs::read_link(&path) {
            Ok(_) if dir.starts_with("/proc") => return true,
            Ok(to) => path = dir.join(to),
            Err(_) => return false,
        }
    }
    false
}

/// What `path` is in.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        Some(_) | None => Path::new("."),
    }
}

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
        // It gets its name by way of /proc.
        let nameless = Path::new("/proc/self/fd").exists().then(|| {
            OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .mode(mode)
                .open(directory(path))
        });
        let (file, has_name) = match nameless {
            Some(Ok(file)) => (file, false),
            Some(Err(_)) | None => {
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

    /// Nothing but a regular file is replaced.
    pub(super) fn replace(mut self, path: &Path) -> io::Result<()> {
        is_replaceable(path).map_err(io::Error::other)?;
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_and_directories_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name);
        fs::write(name("file"), "old").unwrap();
        fs::create_dir(name("dir")).unwrap();
        symlink(name("file"), name("link")).unwrap();
        symlink(name("nothing"), name("dangling")).unwrap();
        for (path, replaceable) in [
            ("file", true),
            ("new", true),
            ("link", false),
            ("dangling", false),
            ("dir", false),
        ] {
            let path = name(path);
            let temporary = Temporary::beside(&path, 0o600).unwrap();
            temporary.file().write_all(b"x").unwrap();
            assert_eq!(is_replaceable(&path).is_ok(), replaceable, "{path:?}");
            assert_eq!(temporary.replace(&path).is_ok(), replaceable, "{path:?}");
        }
        assert_eq!(fs::read_link(name("link")).unwrap(), name("file"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
    }

    #[test]
    fn a_link_to_an_open_file_is_told_from_one_to_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name);
        let file = File::create(name("file")).unwrap();
        symlink("file", name("link")).unwrap();
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        symlink(open, name("stdout")).unwrap();
        symlink("stdout", name("link-to-stdout")).unwrap();
        symlink("loop", name("loop")).unwrap();
        for (path, open) in [
            ("file", false),
            ("new", false),
            ("link", false),
            ("loop", false),
            ("stdout", true),
            ("link-to-stdout", true),
        ] {
            assert_eq!(is_open_file(&name(path)), open, "{path}");
        }
    }
}
