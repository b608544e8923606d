//! Whether the gdiag that launched this program still lives.
//!
//! A launched program, and every process it starts, carries [`ENV_START`] for as long as it runs,
//! which may be long after gdiag was killed. So gdiag holds a lock on the very file that this
//! library was loaded from: the kernel gives the lock up with it, however it dies, and the file is
//! the one thing that is certainly visible here, whatever namespaces this process is in.
//!
//! [`ENV_START`]: gdiag_shim_layout::ENV_START

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Remembers where the lock is: the program may change its environment at any time.
#[derive(Debug)]
pub(crate) struct Launcher {
    path: CString,
}

impl Launcher {
    /// `path` is what the program has for the driver to load, and may be another tool's library;
    /// the variables of a launch go on to every child. `own` is where this library is from.
    pub(crate) fn of_library(path: PathBuf, own: &Path) -> Option<Launcher> {
        let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        if path != own && (file(&path).is_none() || file(&path) != file(own)) {
            return None;
        }
        let path = CString::new(path.into_os_string().into_vec()).ok()?;
        Some(Launcher { path })
    }

    /// Keeps no descriptor: the program may close it, or count on the next number.
    pub(crate) fn is_alive(&self) -> bool {
        // SAFETY: a C string, and plain calls on a descriptor that is nobody else's.
        unsafe {
            let fd = libc::open(self.path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if fd < 0 {
                return false;
            }
            let locked = libc::flock(fd, libc::LOCK_SH | libc::LOCK_NB) != 0
                && *libc::__errno_location() == libc::EWOULDBLOCK;
            libc::close(fd);
            locked
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn it_lives_as_long_as_it_holds_the_lock() {
        let path = std::env::temp_dir().join(format!("gdiag-launcher-{}", std::process::id()));
        let launcher = Launcher::of_library(path.clone(), &path).unwrap();
        assert!(!launcher.is_alive(), "no such file");
        let file = File::create(&path).unwrap();
        assert!(!launcher.is_alive(), "nobody holds it");
        // SAFETY: a plain call on an open descriptor.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
        assert!(launcher.is_alive());
        assert!(launcher.is_alive(), "looking changes nothing");
        drop(file);
        assert!(!launcher.is_alive());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_library_of_another_tool_says_nothing_of_gdiag() {
        let launcher = |path: &str, own: &str| Launcher::of_library(path.into(), Path::new(own));
        assert!(launcher("/proc/self/exe", "/proc/self/../self/exe").is_some());
        assert!(launcher("/proc/self/exe", "/bin/sh").is_none());
        assert!(launcher("/nonexistent/a.so", "/nonexistent/b.so").is_none());
    }
}
