//! Cgroups for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A cgroup that is removed again.
#[derive(Debug)]
pub struct Group(pub PathBuf);

impl Group {
    pub fn new(parent: &Path, name: &str) -> Option<Group> {
        let dir = parent.join(name);
        fs::create_dir(&dir).ok()?;
        Some(Group(dir))
    }

    pub fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = fs::remove_dir(&self.0);
            return;
        }
        // Whoever was killed in there may take a moment to leave.
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::remove_dir(&self.0).is_err() && self.0.exists() {
            assert!(Instant::now() < deadline, "{} is not empty", self.path());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Where cgroups can be made: of the controller of version 1 that processes are shown with, and of
/// version 2. At least one.
pub fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_one = |line: &&str| {
        let kind = line.split(' ').nth(2);
        kind == Some("cgroup2")
            || kind == Some("cgroup") && line.split([' ', ',']).any(|option| option == "cpu")
    };
    let dirs = mounts
        .lines()
        .filter(is_one)
        .filter_map(|line| line.split(' ').nth(1));
    let mut all: Vec<PathBuf> = dirs
        .map(PathBuf::from)
        .filter(|dir| Group::new(dir, &unique("probe")).is_some())
        .collect();
    all.sort_by_key(|dir| dir.join("cgroup.controllers").exists());
    let required = std::env::var("GDIAG_REQUIRE").is_ok_and(|v| v.split(',').any(|n| n == "bpf"));
    assert!(!all.is_empty() || !required, "no cgroup can be made here");
    if all.is_empty() {
        eprintln!("skipped: no cgroup can be made here");
    }
    all
}

pub fn unique(name: &str) -> String {
    format!("gdiag-test-{name}-{}", std::process::id())
}
