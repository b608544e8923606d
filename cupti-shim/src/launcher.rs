//! Whether the gdiag that launched this program still lives.
//!
//! A launched program, and every process it starts, carries [`ENV_START`] for as long as it runs,
//! which may be long after gdiag was killed. So gdiag holds a lock on the very file that this
//! library was loaded from: the kernel gives the lock up with it, however it dies, and the file is
//! the one thing that is certainly visible here, whatever namespaces this process is in.
//!
//! [`ENV_START`]: gdiag_shim_layout::ENV_START

use std::env;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

/// The driver's variable that names this library.
const INJECTION: &str = "CUDA_INJECTION64_PATH";

/// Remembers where the lock is: the program may change its environment at any time.
#[derive(Debug)]
pub(crate) struct Launcher {
    path: CString,
}

impl Launcher {
    pub(crate) fn of_environment() -> Option<Launcher> {
        let path = CString::new(env::var_os(INJECTION)?.into_vec()).ok()?;
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
        let path = env::temp_dir().join(format!("gdiag-launcher-{}", std::process::id()));
        let launcher = Launcher {
            path: CString::new(path.clone().into_os_string().into_vec()).unwrap(),
        };
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
}
