//! Where gdiag is: container, cgroups, disks, clocks, CPUs.
#![forbid(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::statfs::statfs;
use nix::sys::statvfs::{statvfs, FsFlags};
use nix::unistd::{access, AccessFlags};

use super::process::libc_of;
use super::read_line;
use crate::collect::process::{online_cpus, parse_cpu_list};
use crate::units::Bytes;

/// Inodes of the namespaces that every kernel starts with.
const FIRST: [(&str, u64); 4] = [
    ("pid", 4_026_531_836),
    ("user", 4_026_531_837),
    ("cgroup", 4_026_531_835),
    ("ipc", 4_026_531_839),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Signs of a container, in words.
    pub container: Vec<&'static str>,
    /// Namespaces that are not the machine's first ones.
    pub own_namespaces: Vec<&'static str>,
    pub cgroups: Cgroups,
    pub disk: Disk,
    /// Where the library for launched commands would be written.
    pub library_dir: Option<PathBuf>,
    /// Free and total.
    pub shared_memory: Option<(Bytes, Bytes)>,
    /// Why there are no memfds, where there are none.
    pub no_memfd: Option<String>,
    pub clock: Option<String>,
    pub cpus: usize,
    pub possible_cpus: Option<usize>,
    pub cpu_model: Option<String>,
    /// The driver of idle states, and the longest way out of one, in µs.
    pub idle: Option<(String, u64)>,
    /// The C library of gdiag itself.
    pub libc: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// Where version 2 is mounted.
    pub unified: Option<PathBuf>,
    /// Where hierarchies of version 1 are, each with its controllers.
    pub old: Vec<(PathBuf, String)>,
    /// The hierarchy with the CPU controller.
    pub cpu: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub dir: PathBuf,
    /// It was removed, as a working directory may be.
    pub gone: bool,
    pub free: Option<Bytes>,
    pub filesystem: Option<String>,
    pub writable: bool,
}

impl Place {
    pub(super) fn read(dir: &Path) -> Place {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let name = CString::from(c"gdiag");
        Place {
            container: container_signs(),
            own_namespaces: own_namespaces(),
            cgroups: cgroups(&mounts),
            disk: disk(dir, &mounts),
            library_dir: library_dir(),
            shared_memory: statvfs("/dev/shm").ok().map(|fs| {
                let size = fs.fragment_size();
                (
                    Bytes(fs.blocks_available() * size),
                    Bytes(fs.blocks() * size),
                )
            }),
            no_memfd: memfd_create(name.as_c_str(), MFdFlags::MFD_CLOEXEC)
                .err()
                .map(|e| e.desc().to_string()),
            clock: read_line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            cpus: online_cpus().len(),
            possible_cpus: read_line("/sys/devices/system/cpu/possible")
                .and_then(|list| parse_cpu_list(&list))
                .map(|cpus| cpus.len()),
            cpu_model: cpu_model(),
            idle: idle(),
            libc: libc_of(std::process::id()).map(|libc| libc.to_string()),
        }
    }
}

fn container_signs() -> Vec<&'static str> {
    let exists = |path: &str| Path::new(path).exists();
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let runtimes = ["docker", "kubepods", "libpod", "containerd", "lxc", "crio"];
    let signs = [
        ("/.dockerenv", exists("/.dockerenv")),
        ("/run/.containerenv", exists("/run/.containerenv")),
        (
            "its cgroup",
            runtimes.iter().any(|name| cgroup.contains(name)),
        ),
        (
            "the variable container",
            std::env::var_os("container").is_some(),
        ),
        (
            "the variable KUBERNETES_SERVICE_HOST",
            std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        ),
    ];
    signs
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(sign, _)| sign)
        .collect()
}

fn own_namespaces() -> Vec<&'static str> {
    let is_other = |(name, inode): &(&'static str, u64)| {
        fs::read_link(format!("/proc/self/ns/{name}"))
            .is_ok_and(|link| link.as_os_str() != format!("{name}:[{inode}]").as_str())
    };
    let mut own: Vec<_> = FIRST
        .into_iter()
        .filter(is_other)
        .map(|(name, _)| name)
        .collect();
    // The first mount namespace has no number of its own; that of the first process does.
    let ns = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    if ns("1")
        .zip(ns("self"))
        .is_some_and(|(first, own)| first != own)
    {
        own.push("mount");
    }
    own
}

/// `id parent major:minor root mount options [tags] - type source options`.
fn mount_fields(line: &str) -> Option<(PathBuf, &str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let mount = before.split(' ').nth(4)?;
    let mut after = after.split(' ');
    let kind = after.next()?;
    Some((
        PathBuf::from(mount.replace("\\040", " ")),
        kind,
        after.nth(1).unwrap_or(""),
    ))
}

fn cgroups(mounts: &str) -> Cgroups {
    let mut found = Cgroups::default();
    for (mount, kind, options) in mounts.lines().filter_map(mount_fields) {
        match kind {
            "cgroup2" => {
                found.unified.get_or_insert(mount);
            }
            "cgroup" => {
                let controllers: Vec<_> = options
                    .split(',')
                    .filter(|option| !matches!(*option, "rw" | "ro" | "xattr" | "clone_children"))
                    .collect();
                if controllers.contains(&"cpu") {
                    found.cpu.get_or_insert(mount.clone());
                }
                found.old.push((mount, controllers.join(",")));
            }
            _ => {}
        }
    }
    if let (None, Some(unified)) = (&found.cpu, &found.unified) {
        let controllers = read_line(unified.join("cgroup.controllers")).unwrap_or_default();
        if controllers.split(' ').any(|name| name == "cpu") {
            found.cpu = Some(unified.clone());
        }
    }
    found
}

fn disk(dir: &Path, mounts: &str) -> Disk {
    let whole = fs::canonicalize(dir);
    let gone = matches!(&whole, Err(e) if e.kind() == ErrorKind::NotFound);
    let dir = whole.unwrap_or_else(|_| dir.to_path_buf());
    // The last mount that holds it; where the longest is hidden by another, they are told apart by nothing here.
    let holds = mounts
        .lines()
        .filter_map(mount_fields)
        .filter(|(mount, ..)| dir.starts_with(mount));
    let filesystem = holds.max_by_key(|(mount, ..)| mount.as_os_str().len());
    Disk {
        gone,
        free: statfs(&dir)
            .ok()
            .map(|fs| Bytes(fs.blocks_available() * u64::try_from(fs.block_size()).unwrap_or(0))),
        filesystem: filesystem.map(|(_, kind, _)| kind.to_string()),
        writable: access(&dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok(),
        dir,
    }
}

/// The first of the places where [`shim_file`](crate::collect::shim_file) writes that will do.
fn library_dir() -> Option<PathBuf> {
    crate::collect::shim_file::places().into_iter().find(|dir| {
        let flags = statvfs(dir).map(|fs| fs.flags());
        access(dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
            && flags.is_ok_and(|flags| !flags.intersects(FsFlags::ST_NOEXEC | FsFlags::ST_RDONLY))
    })
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn idle() -> Option<(String, u64)> {
    let driver = read_line("/sys/devices/system/cpu/cpuidle/current_driver")?;
    let states = fs::read_dir("/sys/devices/system/cpu/cpu0/cpuidle")
        .into_iter()
        .flatten()
        .flatten();
    let latency =
        states.filter(|state| read_line(state.path().join("disable")).as_deref() != Some("1"));
    let latency = latency.filter_map(|state| read_line(state.path().join("latency"))?.parse().ok());
    Some((driver, latency.max().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_controller_is_looked_for_in_both_versions() {
        let old = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = cgroups(old);
        assert_eq!(found.cpu, Some(PathBuf::from("/sys/fs/cgroup/cpu")));
        assert_eq!(found.old[0].1, "cpu,cpuacct");
        assert_eq!(found.unified, Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(cgroups("garbage"), Cgroups::default());
    }

    #[test]
    fn the_file_system_of_a_directory_is_that_of_the_innermost_mount() {
        let mounts = "1 0 0:1 / / rw - ext4 /dev/x rw\n2 1 0:2 / /proc rw - proc proc rw\n";
        assert_eq!(
            disk(Path::new("/proc"), mounts).filesystem.as_deref(),
            Some("proc")
        );
        assert_eq!(
            disk(Path::new("/"), mounts).filesystem.as_deref(),
            Some("ext4")
        );
    }

    #[test]
    fn a_directory_that_was_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!disk(dir.path(), "").gone);
        assert!(disk(&dir.path().join("removed"), "").gone);
    }
}
