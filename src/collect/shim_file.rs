//! The shim that gdiag carries in itself, written out where a program can load it.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gdiag_shim_layout::{ENV_START, ENV_UNIFIED_MEMORY};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::{statvfs, FsFlags};

/// The variable by which the CUDA driver finds a library to load at `cuInit`.
pub const INJECTION: &str = "CUDA_INJECTION64_PATH";

/// Name of the library on disk.
pub const FILE_NAME: &str = "libgdiag_cupti.so";

/// Built from `cupti-shim` by build.rs.
pub(super) const SHIM: &[u8] = include_bytes!(env!("GDIAG_SHIM_SO"));

/// Writes the library into `dir`, which is made if it is missing. Replaces it in one step: a
/// program that has the old one mapped must not see it change.
pub fn install(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let path = dir.join(FILE_NAME);
    let temporary = dir.join(format!(".{FILE_NAME}.{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        // New, and not whatever somebody has put there: the directory may be anyone's.
        let _ = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(&temporary)?;
        file.write_all(SHIM)?;
        // Whatever the umask is: the target may run as another user.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    };
    write()
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Directories that it may be written to for launched commands, in the order in which they are tried.
pub(super) fn places() -> Vec<PathBuf> {
    let mut places = vec![std::env::temp_dir()];
    places.extend(["/tmp", "/var/tmp", "/dev/shm", "/run"].map(PathBuf::from));
    places
}

/// The library in a directory of its own, for one launched command and its children.
#[derive(Debug)]
pub struct ShimFile {
    dir: PathBuf,
    path: PathBuf,
    keep: bool,
    /// Locked: by that the shims know that gdiag lives.
    lock: Option<Flock<fs::File>>,
}

impl ShimFile {
    /// In the first directory that lets programs be loaded from it.
    pub fn write_temporary() -> Result<ShimFile> {
        let mut first = None;
        for base in places() {
            match ShimFile::write_in(&base) {
                Ok(file) => return Ok(file),
                Err(e) => {
                    first.get_or_insert(e);
                }
            }
        }
        Err(first.unwrap_or_else(|| anyhow::anyhow!("no directory for temporary files")))
    }

    fn write_in(base: &Path) -> Result<ShimFile> {
        let flags = statvfs(base).map(|fs| fs.flags());
        if flags.is_ok_and(|flags| flags.contains(FsFlags::ST_NOEXEC)) {
            anyhow::bail!("{} is mounted noexec", base.display());
        }
        let dir = (0..100)
            .map(|attempt| base.join(format!("gdiag-{}-{attempt}", std::process::id())))
            .find(|dir| fs::create_dir(dir).is_ok())
            .with_context(|| format!("cannot make a directory in {}", base.display()))?;
        let mut file = ShimFile {
            path: dir.join(FILE_NAME),
            dir,
            keep: false,
            lock: None,
        };
        fs::set_permissions(&file.dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot open {} to the command", file.dir.display()))?;
        file.path = install(&file.dir)?;
        file.lock = fs::File::open(&file.path)
            .ok()
            .and_then(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok());
        Ok(file)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What makes a launched program load it and collect from `cuInit` on.
    pub fn environment(&self, unified_memory: bool) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![
            (INJECTION, self.path.clone().into_os_string()),
            (ENV_START, OsString::from("1")),
        ];
        if unified_memory {
            environment.push((ENV_UNIFIED_MEMORY, OsString::from("1")));
        }
        environment
    }

    /// Leaves it where it is: a process that carries its path may still want to load it, since
    /// the driver looks for it when the process first uses CUDA, whenever that is.
    pub fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for ShimFile {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_a_shared_object_that_everyone_can_load() {
        let dir = tempfile::tempdir().unwrap();
        let path = install(&dir.path().join("new")).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(&bytes[..4], b"\x7fELF");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o755
        );
        // Again, over the old one, and nothing else is left.
        install(&dir.path().join("new")).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn the_temporary_copy_goes_away_unless_it_is_kept() {
        let kept = ShimFile::write_temporary().unwrap();
        let dir = kept.dir.clone();
        kept.keep();
        assert!(dir.join(FILE_NAME).exists());
        fs::remove_dir_all(dir).unwrap();

        let gone = ShimFile::write_temporary().unwrap();
        let dir = gone.dir.clone();
        drop(gone);
        assert!(!dir.exists());
    }
}
