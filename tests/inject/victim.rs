//! Targets: what kinds there are, and what has become of one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use gdiag_shim_layout::{state, Control, MEMFD_NAME};

use crate::support::{
    becomes_true, descriptors, held, mappings, now_ns, simgpu, threads, wait_until, DEADLINE,
};

/// Threads that the victim has afterwards, and not before.
const SHIM_THREADS: [&str; 1] = ["gdiag-shim"];

/// Beginnings of names of what it has mapped afterwards, and not before.
///
/// The last is the kernel's: after the first uprobe it stays.
const NEW_MAPPINGS: [&str; 5] = [
    "/memfd:gdiag-shim",
    "/memfd:libgdiag_cupti.so",
    "/usr/lib",
    "/lib",
    "[uprobes]",
];

/// A way to be a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind<'a> {
    pub name: &'a str,
    pub options: &'a [&'a str],
    /// In mount, PID and network namespaces of its own.
    pub contained: bool,
    pub expected: Expected,
}

/// What comes of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// GPU operations.
    Operations,
    /// It uses no GPU, but looks so: the library is loaded.
    Library,
    /// The library may be loaded or not. What forbids calls may forbid those that are needed.
    Anything,
}

pub const fn kind<'a>(name: &'a str, options: &'a [&'a str]) -> Kind<'a> {
    Kind {
        name,
        options,
        contained: false,
        expected: Expected::Operations,
    }
}

/// Each kind of the rounds.
pub const KINDS: &[Kind<'static>] = &[
    kind("1 thread", &["--threads=1"]),
    kind("1,000 threads", &["--threads=1000"]),
    kind("malloc", &["--threads=8", "--malloc=2"]),
    kind("fork", &["--threads=8", "--fork=1"]),
    Kind {
        contained: true,
        ..kind("unshare -mpn", &["--threads=32"])
    },
    Kind {
        expected: Expected::Anything,
        ..kind("seccomp, EPERM", &["--threads=8", "--seccomp=eperm"])
    },
    kind("64 threads", &["--threads=64"]),
    kind("dlopen", &["--threads=8", "--dlopen=2"]),
    kind("threads that come and go", &["--threads=8", "--churn=2"]),
    kind("signal storm", &["--threads=32", "--signals=1"]),
    kind("nobody, not dumpable", &["--threads=8", "--undumpable"]),
    Kind {
        expected: Expected::Anything,
        ..kind("seccomp, kill", &["--threads=8", "--seccomp=kill"])
    },
];

/// Ways to wait in which a thread can be interrupted; others are left alone.
const SUITABLE: [&str; 18] = [
    "poll",
    "poll_timeout",
    "raw_poll",
    "raw_ppoll",
    "raw_select",
    "nanosleep",
    "raw_nanosleep",
    "clock_nanosleep",
    "raw_clock_nanosleep",
    "cond",
    "cond_timeout",
    "sem",
    "sem_timeout",
    "futex",
    "futex_timeout",
    "raw_futex_timeout",
    "read",
    "raw_read",
];

/// A target all of whose threads wait in that way, or as nobody can be interrupted.
pub fn waiting<'a>(way: &'a str, options: &'a [&'a str]) -> Kind<'a> {
    Kind {
        expected: if SUITABLE.contains(&way) {
            Expected::Library
        } else {
            Expected::Anything
        },
        ..kind(way, options)
    }
}

/// All ways to wait that the victim knows.
pub fn ways() -> Vec<String> {
    let output = Command::new(simgpu("victim"))
        .arg("--list-waits")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_string).collect()
}

/// What there was before anything was done.
#[derive(Debug, Default)]
struct Before {
    threads: BTreeMap<u32, String>,
    descriptors: BTreeSet<(String, String)>,
    mappings: BTreeSet<String>,
}

/// What the victim says at its end.
#[derive(Debug, Default)]
pub struct Verdict {
    pub failures: Vec<String>,
    /// Ways to wait, and how long beyond its timeout one was at most.
    pub late: BTreeMap<String, u64>,
}

/// A running victim. Killed when dropped.
#[derive(Debug)]
pub struct Victim {
    child: Child,
    input: Option<ChildStdin>,
    /// As the machine numbers it; the child may be unshare(1).
    pub pid: u32,
    said: PathBuf,
    errors: PathBuf,
    log: PathBuf,
    before: Before,
}

impl Victim {
    pub fn start(kind: &Kind, dir: &Path) -> Victim {
        let victim = simgpu("victim");
        let file = |extension| dir.join(format!("{}.{extension}", kind.name));
        let mut command = if kind.contained {
            let mut unshare = Command::new("unshare");
            unshare
                .args(["-mpn", "--fork", "--kill-child"])
                .arg(&victim);
            unshare
        } else {
            Command::new(&victim)
        };
        let mut child = command
            .arg(file("log"))
            .arg(format!("--plugin={}", simgpu("victim-plugin.so").display()))
            .args(kind.options)
            .stdin(Stdio::piped())
            .stdout(File::create(file("out")).unwrap())
            .stderr(File::create(file("err")).unwrap())
            .spawn()
            .unwrap();
        Victim {
            input: child.stdin.take(),
            pid: if kind.contained { 0 } else { child.id() },
            child,
            said: file("out"),
            errors: file("err"),
            log: file("log"),
            before: Before::default(),
        }
    }

    /// Waits until it has begun, and looks at it.
    pub fn settle(&mut self) {
        wait_until("the victim is ready", || {
            assert!(self.lives(), "{}", self.errors());
            self.begun() > 0
        });
        if self.pid == 0 {
            let shell = self.child.id();
            let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
            self.pid = children.unwrap().trim().parse().unwrap();
        }
        self.before = Before {
            threads: threads(self.pid),
            descriptors: descriptors(self.pid),
            mappings: mappings(self.pid),
        };
    }

    /// How often it began: once, and at each exec.
    fn begun(&self) -> usize {
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        said.matches("ready\n").count()
    }

    pub fn has_begun_again(&self) -> bool {
        self.begun() > 1
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child was not waited for, so its pid and that of its child are theirs.
        unsafe { libc::kill(self.pid.cast_signed(), signal) };
    }

    fn maps(&self) -> String {
        fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default()
    }

    pub fn has_library(&self) -> bool {
        self.maps().contains("/memfd:libgdiag_cupti.so")
    }

    /// Its shim collects.
    pub fn is_recorded(&self) -> bool {
        let maps = self.maps();
        let name = format!("/memfd:{MEMFD_NAME} (deleted)");
        let line = maps.lines().find(|line| line.ends_with(&name));
        let Some(range) = line.and_then(|line| line.split(' ').next()) else {
            return false;
        };
        let shared = File::open(format!("/proc/{}/map_files/{range}", self.pid));
        let mut state = [0; 4];
        shared.is_ok_and(|file| {
            let at = std::mem::offset_of!(Control, state) as u64;
            file.read_exact_at(&mut state, at).is_ok()
        }) && u32::from_ne_bytes(state) == state::ACTIVE
    }

    /// One of the letters that it knows.
    pub fn tell(&mut self, letter: u8) {
        use std::io::Write as _;
        let input = self.input.as_mut().unwrap();
        // It may have ended.
        let _ = input.write_all(&[letter]);
    }

    /// Steps a second between two moments of CLOCK_MONOTONIC.
    pub fn rate(&self, from_ns: u64, to_ns: u64) -> f64 {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let ends: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .filter(|end| (from_ns..to_ns).contains(end))
            .collect();
        match ends[..] {
            [first, .., last] => (ends.len() - 1) as f64 * 1e9 / (last - first) as f64,
            _ => 0.0,
        }
    }

    /// It goes on computing.
    pub fn steps_on(&mut self) -> bool {
        let now = now_ns();
        becomes_true(DEADLINE / 2, || {
            !self.lives() || self.rate(now, u64::MAX) > 0.0
        }) && self.lives()
    }

    /// What differs from before, but for the shim; some of it may take a moment to go.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        becomes_true(Duration::from_secs(5), || {
            found = self.leftovers_now();
            found.is_empty()
        });
        found
    }

    fn leftovers_now(&self) -> Vec<String> {
        let mut found = Vec::new();
        let before = &self.before;
        let own: BTreeSet<_> = before.threads.values().collect();
        let now = threads(self.pid);
        for (tid, name) in &now {
            // Those that come and go have the names of the others.
            if !before.threads.contains_key(tid)
                && !own.contains(name)
                && !SHIM_THREADS.contains(&name.as_str())
            {
                found.push(format!("a thread {name}"));
            }
        }
        let coming: Vec<_> = now
            .keys()
            .filter(|t| !before.threads.contains_key(t))
            .collect();
        if coming.len() > 20 {
            found.push(format!("{} more threads", coming.len()));
        }
        for (fd, file) in descriptors(self.pid).difference(&before.descriptors) {
            found.push(format!("descriptor {fd} of {file}"));
        }
        for name in mappings(self.pid).difference(&before.mappings) {
            let expected = NEW_MAPPINGS.iter().any(|begin| name.starts_with(begin))
                || name.contains("/victim-plugin.so")
                || name.contains("/libcupti.so")
                || name == "[heap]";
            if !expected {
                found.push(format!("a mapping of {name}"));
            }
        }
        found
    }

    /// Threads that are stopped or traced a second later.
    pub fn held(&self) -> Vec<String> {
        let mut found = Vec::new();
        becomes_true(Duration::from_secs(1), || {
            found = held(self.pid);
            found.is_empty()
        });
        found
    }

    /// All shall end: `end` waits for it.
    pub fn finish(&mut self) {
        self.input = None;
    }

    /// What it says, or why it cannot.
    pub fn end(mut self) -> Result<Verdict, String> {
        self.finish();
        if !becomes_true(2 * DEADLINE, || !self.lives()) {
            let state: BTreeSet<_> = threads(self.pid).into_values().collect();
            return Err(format!("hangs, with threads {state:?}"));
        }
        let status = self.child.wait().unwrap();
        if let Some(signal) = status.signal() {
            return Err(format!("killed by signal {signal}"));
        }
        let said = fs::read_to_string(&self.said).unwrap_or_default();
        let line = said.lines().find(|line| line.starts_with('{'));
        let Some(line) = line else {
            return Err(format!("{status}: {} {}", said, self.errors()));
        };
        let verdict: serde_json::Value =
            serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        let mut result = Verdict::default();
        for (name, check) in verdict["checks"].as_object().unwrap() {
            if check["failed"] != 0 {
                let first = check["first"].as_str().unwrap_or_default();
                let failure = format!(
                    "{name}: {first} ({} of {})",
                    check["failed"], check["count"]
                );
                result.failures.push(failure);
            }
            let late = check["late_ns"].as_u64().unwrap_or(0);
            result.late.insert(name.clone(), late);
        }
        if result.failures.is_empty() && status.code() != Some(0) {
            return Err(format!("{status}"));
        }
        Ok(result)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // unshare(1) takes its child along.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
