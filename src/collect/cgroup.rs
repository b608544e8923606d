//! Cgroups: which one is meant by a path or by the id of a container, and who is in it.
//!
//! Version 1 has a hierarchy for each controller or some of them, version 2 has one, and many machines
//! have both. A container is usually in all of them, by the same path, and its id is in that path
//! whatever started it.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::collect::process;
use crate::error::Error;
use crate::event::Pid;

/// Directories that are looked through at most, of one hierarchy or below one cgroup.
const MOST: usize = 1 << 17;

/// Every container runtime gives out ids of so many hexadecimal digits.
const ID_LEN: usize = 64;

/// A cgroup that is recorded, with all below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    dir: PathBuf,
    /// Of its hierarchy, as in /proc/PID/cgroup.
    pub hierarchy: u32,
    /// As the kernel numbers those of a hierarchy: the inode of its directory.
    pub id: u64,
}

impl Cgroup {
    fn open(hierarchy: u32, dir: PathBuf) -> io::Result<Cgroup> {
        let id = fs::metadata(&dir)?.ino();
        Ok(Cgroup { dir, hierarchy, id })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it has not been removed. Another may have its path by now.
    pub fn exists(&self) -> bool {
        fs::metadata(&self.dir).is_ok_and(|meta| meta.ino() == self.id)
    }

    /// The processes in it and below, as /proc numbers them.
    pub fn processes(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        walk(&self.dir, &mut |dir| add_processes(dir, &mut found));
        found
    }

    fn is_empty(&self) -> bool {
        self.processes().is_empty()
    }
}

fn add_processes(dir: &Path, found: &mut BTreeSet<u32>) {
    // Those of another PID namespace are 0.
    let numbers = |text: String| -> Vec<u32> {
        let numbers = text.lines().filter_map(|line| line.parse().ok());
        numbers.filter(|&number| number != 0).collect()
    };
    match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(text) => found.extend(numbers(text)),
        // Where threads of one process may be in several, the processes are not told.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let threads = fs::read_to_string(dir.join("cgroup.threads")).unwrap_or_default();
            let processes = numbers(threads).into_iter();
            found.extend(processes.filter_map(process::process_of_thread));
        }
        Err(_) => {}
    }
}

/// Hands out a directory and all below it.
fn walk(top: &Path, each: &mut dyn FnMut(&Path)) {
    let mut todo = vec![top.to_path_buf()];
    let mut left = MOST;
    while let Some(dir) = todo.pop() {
        each(&dir);
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            if left > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left -= 1;
                todo.push(entry.path());
            }
        }
    }
}

/// A hierarchy that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    id: u32,
    /// As in /proc/PID/cgroup: `cpu,cpuacct`, `name=systemd`, empty for version 2.
    controllers: String,
    mount: PathBuf,
    /// What of it is mounted there.
    root: PathBuf,
}

impl Hierarchy {
    /// The directory of a cgroup, if it is one and below the mount.
    fn dir(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let below = below.strip_prefix("/").unwrap_or(below);
        let dir = fs::canonicalize(self.mount.join(below)).ok()?;
        (dir.starts_with(&self.mount) && dir.is_dir()).then_some(dir)
    }
}

/// All hierarchies that are mounted here, the one to prefer first.
#[derive(Clone, Debug)]
pub struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    pub fn mounted() -> Result<Hierarchies, Error> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let all = parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        if all.is_empty() {
            return Err(Error::NoCgroups);
        }
        Ok(Hierarchies(all))
    }

    /// The cgroup that is meant by `name`: its directory, its path in a hierarchy, or a line of
    /// /proc/PID/cgroup.
    pub fn find(&self, name: &Path) -> Result<Cgroup, Error> {
        let whole = fs::canonicalize(name).ok().filter(|path| path.is_dir());
        let of_dir = whole.filter(|_| name.is_absolute()).and_then(|dir| {
            let on = self.0.iter().filter(|h| dir.starts_with(&h.mount));
            let hierarchy = on.max_by_key(|h| h.mount.as_os_str().len())?;
            Cgroup::open(hierarchy.id, dir).ok()
        });
        if let Some(cgroup) = of_dir {
            return Ok(cgroup);
        }
        let line = name.to_str().and_then(parse_line);
        let path = line.map_or(name, |line| Path::new(line.path));
        let found = self
            .0
            .iter()
            .filter(|hierarchy| line.is_none_or(|line| line.hierarchy == hierarchy.id));
        let found = found.filter_map(|h| Cgroup::open(h.id, h.dir(path)?).ok());
        choose(found.collect()).ok_or_else(|| Error::NoSuchCgroup {
            name: name.to_path_buf(),
            mounts: self.0.iter().map(|h| h.mount.clone()).collect(),
        })
    }

    /// The cgroup of the container whose id begins with `prefix`.
    pub fn container(&self, prefix: &str) -> Result<Cgroup, Error> {
        let mut all: BTreeMap<String, Vec<Cgroup>> = BTreeMap::new();
        for hierarchy in &self.0 {
            walk(&hierarchy.mount, &mut |dir| {
                let name = dir.file_name().and_then(|name| name.to_str());
                let Some(id) = name.and_then(container_id) else {
                    return;
                };
                if let Ok(cgroup) = Cgroup::open(hierarchy.id, dir.to_path_buf()) {
                    all.entry(id.to_string()).or_default().push(cgroup);
                }
            });
        }
        let asked = || prefix.to_string();
        let is_meant = |id: &String| id.starts_with(prefix);
        let meant: Vec<String> = all.keys().filter(|id| is_meant(id)).cloned().collect();
        match &meant[..] {
            [one] => {
                choose(all.remove(one).unwrap_or_default()).ok_or_else(|| Error::NoSuchContainer {
                    asked: asked(),
                    known: Vec::new(),
                })
            }
            [] => Err(match process_of_container(prefix) {
                Some(pid) => Error::ContainerNotMounted {
                    asked: asked(),
                    pid: Pid(pid),
                },
                None => Error::NoSuchContainer {
                    asked: asked(),
                    known: all.into_keys().collect(),
                },
            }),
            [..] => Err(Error::AmbiguousContainer {
                asked: asked(),
                known: meant,
            }),
        }
    }
}

/// Of those in several hierarchies, the first with anybody in it, or else the first.
fn choose(mut found: Vec<Cgroup>) -> Option<Cgroup> {
    if found.is_empty() {
        return None;
    }
    let at = found.iter().position(|cgroup| !cgroup.is_empty());
    Some(found.swap_remove(at.unwrap_or(0)))
}

/// The first process, by its number, of a container of which /proc tells.
fn process_of_container(prefix: &str) -> Option<u32> {
    let mut pids = process::all();
    pids.sort_unstable();
    pids.into_iter().find(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let mut names = text.lines().flat_map(|line| line.split('/'));
        names.any(|name| container_id(name).is_some_and(|id| id.starts_with(prefix)))
    })
}

/// The id in the name of a container's cgroup: `docker-ID.scope`, `cri-containerd-ID.scope`,
/// `crio-ID`, `libpod-ID.scope`, or the id alone. The cgroup of its monitor is not its own.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (runtime, id) = name.rsplit_once('-').unwrap_or(("", name));
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (id.len() == ID_LEN && id.bytes().all(is_digit) && !runtime.ends_with("conmon")).then_some(id)
}

/// A line of /proc/PID/cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line<'a> {
    hierarchy: u32,
    controllers: &'a str,
    path: &'a str,
}

fn parse_line(line: &str) -> Option<Line<'_>> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Line {
        hierarchy: hierarchy.parse().ok()?,
        controllers,
        path: path.starts_with('/').then_some(path)?,
    })
}

/// Of the own /proc files: where hierarchies are mounted, and how they are numbered.
fn parse(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    let numbers: Vec<Line<'_>> = cgroup.lines().filter_map(parse_line).collect();
    let mut all: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else {
            continue;
        };
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let (Some(root), Some(mount)) = (before.next(), before.next()) else {
            continue;
        };
        let (Some(kind), Some(options)) = (after.next(), after.nth(1)) else {
            continue;
        };
        let is_it = |line: &&Line<'_>| match kind {
            "cgroup2" => line.hierarchy == 0,
            "cgroup" => {
                let of = |name| options.split(',').any(|option| option == name);
                line.hierarchy != 0 && line.controllers.split(',').all(of)
            }
            _ => false,
        };
        let Some(known) = numbers.iter().find(is_it) else {
            continue;
        };
        // It may be mounted at several places.
        if all.iter().all(|h| h.id != known.hierarchy) {
            all.push(Hierarchy {
                id: known.hierarchy,
                controllers: known.controllers.to_string(),
                mount: unescape(mount).into(),
                root: unescape(root).into(),
            });
        }
    }
    all.sort_by_key(|h| {
        let limits_cpu = h.controllers.split(',').any(|name| name == "cpu");
        (h.id != 0, !limits_cpu)
    });
    all
}

/// The kernel writes a space in a path as `\040`.
fn unescape(path: &str) -> String {
    path.replace("\\040", " ").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9e4f1c5d0b7a86325f3d8c7b6a5948372615f4e3d2c1b0a99e8d7c6b5a493827";

    #[test]
    fn the_id_of_a_container_is_in_the_name_of_its_cgroup_whatever_started_it() {
        for name in [
            ID.to_string(),
            format!("docker-{ID}.scope"),
            format!("cri-containerd-{ID}.scope"),
            format!("crio-{ID}.scope"),
            format!("crio-{ID}"),
            format!("libpod-{ID}.scope"),
            format!("nerdctl-{ID}.scope"),
        ] {
            assert_eq!(container_id(&name), Some(ID), "{name}");
        }
        for name in [
            String::new(),
            ID[1..].to_string(),
            format!("{ID}0"),
            ID.to_uppercase(),
            ID.replace('9', "g"),
            format!("libpod-conmon-{ID}.scope"),
            format!("crio-conmon-{ID}.scope"),
            format!("docker-{ID}.mount"),
            "kubepods-pod12345678_1234_1234_1234_123456789012.slice".to_string(),
        ] {
            assert_eq!(container_id(&name), None, "{name}");
        }
    }

    #[test]
    fn hierarchies_have_the_numbers_of_proc_and_the_places_of_their_mounts() {
        let mountinfo = "\
23 1 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
33 31 0:30 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
35 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime - cgroup2 cgroup2 rw
36 31 0:38 / /mnt rw,relatime - cgroup2 cgroup2 rw
garbage
";
        let cgroup = "9:name=systemd:/\n4:cpu,cpuacct:/a:b\n5:memory:/\n0::/\nx\n";
        let found: Vec<_> = parse(mountinfo, cgroup)
            .into_iter()
            .map(|h| {
                (
                    h.id,
                    h.mount.display().to_string(),
                    h.root.display().to_string(),
                )
            })
            .collect();
        let expected = [
            (0, "/sys/fs/cgroup/uni fied", "/"),
            (4, "/sys/fs/cgroup/cpu,cpuacct", "/docker/x"),
            (5, "/sys/fs/cgroup/memory", "/"),
            (9, "/sys/fs/cgroup/systemd", "/"),
        ]
        .map(|(id, mount, root)| (id, mount.to_string(), root.to_string()));
        assert_eq!(found, expected);
        // Version 2 alone, as most machines have it.
        let alone = parse(
            "25 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate",
            "0::/init.scope\n",
        );
        assert_eq!((alone.len(), alone[0].id), (1, 0));
        assert_eq!(parse(mountinfo, ""), []);
    }

    #[test]
    fn a_line_of_proc_is_told_from_a_path() {
        let line = parse_line("4:cpu,cpuacct:/a:b").unwrap();
        assert_eq!((line.hierarchy, line.path), (4, "/a:b"));
        assert_eq!(parse_line("0::/x").map(|l| l.path), Some("/x"));
        for path in ["/docker/x", "docker", "a:b:c", "1:cpu", "x::/y"] {
            assert_eq!(parse_line(path), None, "{path}");
        }
    }

    /// A tree that looks like mounted hierarchies.
    fn tree(dirs: &[(&str, &str)]) -> (tempfile::TempDir, Hierarchies) {
        let top = tempfile::tempdir().unwrap();
        for (dir, processes) in dirs {
            let dir = top.path().join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cgroup.procs"), processes).unwrap();
        }
        let hierarchy = |id, name: &str| Hierarchy {
            id,
            controllers: name.to_string(),
            mount: fs::canonicalize(top.path().join(name)).unwrap(),
            root: "/".into(),
        };
        let all = vec![hierarchy(0, "v2"), hierarchy(4, "cpu")];
        (top, Hierarchies(all))
    }

    #[test]
    fn the_cgroup_with_processes_is_meant() {
        let (top, all) = tree(&[
            ("v2/jobs/a", ""),
            ("cpu/jobs/a", "12\n0\n"),
            ("cpu/jobs/a/below", "13\n12\n"),
            ("cpu/else", "14\n"),
            ("outside", "15\n"),
        ]);
        for name in ["/jobs/a", "jobs/a", "4:cpu:/jobs/a"] {
            let cgroup = all.find(Path::new(name)).unwrap();
            assert_eq!(cgroup.hierarchy, 4, "{name}");
            assert_eq!(cgroup.processes(), BTreeSet::from([12, 13]), "{name}");
            assert!(cgroup.exists());
        }
        let by_directory = all.find(&top.path().join("v2/jobs/a")).unwrap();
        assert_eq!(by_directory.hierarchy, 0);
        fs::remove_dir_all(by_directory.dir()).unwrap();
        assert!(!by_directory.exists());
        assert_eq!(all.find(Path::new("/jobs/a")).unwrap().hierarchy, 4);
        for name in [
            "/jobs/b",
            "../outside",
            "0::/jobs/a",
            "/jobs/a/cgroup.procs",
            "/",
        ] {
            let found = all.find(Path::new(name));
            if name == "/" {
                assert!(found.is_ok_and(|c| c.dir().ends_with("cpu")), "{name}");
            } else {
                assert!(matches!(found, Err(Error::NoSuchCgroup { .. })), "{name}");
            }
        }
    }

    #[test]
    fn a_container_is_found_by_the_beginning_of_its_id_when_only_one_has_it() {
        let other = ID.replace("9e4f", "9e5f");
        let (_top, all) = tree(&[
            (&format!("v2/system.slice/docker-{ID}.scope"), ""),
            (&format!("v2/system.slice/libpod-conmon-{ID}.scope"), "11\n"),
            (&format!("cpu/docker/{ID}"), "12\n"),
            (&format!("cpu/kubepods/burstable/pod7/{other}"), "13\n"),
        ]);
        for prefix in ["9e4", ID] {
            let cgroup = all.container(prefix).unwrap();
            assert_eq!(
                (cgroup.hierarchy, cgroup.processes()),
                (4, BTreeSet::from([12]))
            );
        }
        match all.container("9e").unwrap_err() {
            Error::AmbiguousContainer { known, .. } => {
                assert_eq!(known, [ID.to_string(), other.clone()])
            }
            e => panic!("{e}"),
        }
        match all.container("abc").unwrap_err() {
            Error::NoSuchContainer { known, .. } => assert_eq!(known, [ID.to_string(), other]),
            e => panic!("{e}"),
        }
    }

    #[test]
    fn the_own_cgroup_has_this_process() {
        let Ok(all) = Hierarchies::mounted() else {
            return;
        };
        let text = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = std::process::id();
        for line in text.lines() {
            if let Ok(cgroup) = all.find(Path::new(line)) {
                assert!(cgroup.processes().contains(&own), "{line}");
            }
        }
    }
}
