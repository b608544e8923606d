//! The runbooks in docs/runbooks, against jobs with a known fault: real BPF, a simulated GPU.
//!
//! Each verdict that a script can give has a job that must get it. Other programs of this machine are never quite out
//! of the way, so a wrong verdict is given [`TRIES`] chances; a wrong script is wrong each time.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "containers/group.rs"]
mod group;
#[path = "scenarios/machine.rs"]
mod machine;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gdiag::analyse::cause::Cause;
use machine::Machine;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Each is run by a test below, and listed in the README.
const RUNBOOKS: [&str; 6] = [
    "gate.sh",
    "gpu-at-40-percent.sh",
    "noisy-neighbour.sh",
    "one-rank-is-slow.sh",
    "stalls-every-n-seconds.sh",
    "step-time-doubled.sh",
];

const TRIES: usize = 4;

const DEADLINE: Duration = Duration::from_secs(60);

/// What a line on stdout may begin with.
const KEYS: &str =
    "verdict gpu cause who where fix also note warning kept rank stalls period change \
                    kernel quota evidence lost fails unknown holds thread";

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn runbook(name: &str) -> PathBuf {
    source("docs/runbooks").join(name)
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

/// jq is installed by tests/setup.sh.
fn jq() -> bool {
    let there = has("jq");
    let required = std::env::var("GDIAG_REQUIRE").is_ok_and(|v| v.split(',').any(|n| n == "bpf"));
    assert!(there || !required, "needs jq");
    if !there {
        println!("skipped: needs jq");
    }
    there
}

/// The shells that are here.
fn shells() -> Vec<Vec<&'static str>> {
    let all = [vec!["dash"], vec!["bash", "--posix"], vec!["busybox", "sh"]];
    let mut here: Vec<_> = all.into_iter().filter(|shell| has(shell[0])).collect();
    here.insert(0, vec!["sh"]);
    here
}

/// A machine with what scripts and their jobs need; the scripts' recordings are in `dir`, which must be empty after each.
struct Place {
    // Gone before it is the next one's turn.
    group: Option<Weighted>,
    dir: TempDir,
    machine: Machine,
}

/// A cgroup that can have a weight and a quota.
struct Weighted {
    group: group::Group,
    /// Of the first version of cgroups.
    first: bool,
}

impl Weighted {
    fn new(name: &str) -> Option<Weighted> {
        let made = group::hierarchies().into_iter().find_map(|dir| {
            let group = group::Group::new(&dir, &group::unique(name))?;
            let first = group.0.join("cpu.cfs_quota_us").exists();
            (first || group.0.join("cpu.max").exists()).then_some(Weighted { group, first })
        });
        if made.is_none() {
            println!("no cgroup with a cpu controller can be made here");
        }
        made
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.group.0.join(file), value).unwrap();
    }

    /// In percent of the usual one.
    fn weight(&self, percent: u32) {
        if self.first {
            self.set("cpu.shares", &(1024 * percent / 100).to_string());
        } else {
            self.set("cpu.weight", &percent.to_string());
        }
    }

    /// In percent of a CPU.
    fn quota(&self, percent: Option<u32>) {
        let us = percent.map(|percent| (1000 * percent).to_string());
        if self.first {
            self.set("cpu.cfs_quota_us", us.as_deref().unwrap_or("-1"));
        } else {
            let us = us.as_deref().unwrap_or("max");
            self.set("cpu.max", &format!("{us} 100000"));
        }
    }
}

/// What a script said.
#[derive(Debug)]
struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn of(output: Output) -> Said {
        Said {
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Whatever it says, it says in the promised form.
    fn check(&self) {
        if self.out.is_empty() {
            return;
        }
        for line in self.out.lines() {
            let key = line.split(": ").next().unwrap();
            assert!(
                KEYS.split_whitespace().any(|k| k == key),
                "{line}\n{self:?}"
            );
        }
        let visible = |c: char| c == '\n' || !c.is_control();
        assert!(self.out.chars().all(visible), "{self:?}");
        let status = self.out.strip_prefix("verdict: ").unwrap();
        let status: i32 = status.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(Some(status), self.status, "{self:?}");
        let verdicts = self.out.lines().filter(|l| l.starts_with("verdict: "));
        assert_eq!(verdicts.count(), 1, "{self:?}");
    }

    fn value(&self, key: &str) -> Option<&str> {
        let line = self.out.lines().find(|line| line.starts_with(key))?;
        line[key.len()..].strip_prefix(": ")
    }
}

impl Place {
    fn ready() -> Option<Place> {
        let machine = Machine::ready()?;
        if !jq() {
            return None;
        }
        let group = Weighted::new("runbooks");
        if let Some(group) = &group {
            group.weight(3000);
        }
        Some(Place {
            machine,
            dir: tempfile::tempdir().unwrap(),
            group,
        })
    }

    /// `program`, with CPU time before others: their turn is not what a test is about.
    fn program(&self, program: &str) -> Command {
        let mut command;
        if let Some(group) = &self.group {
            command = Command::new("sh");
            let enter = "echo 0 >\"$0/cgroup.procs\" && exec \"$@\"";
            command.args(["-c", enter, group.group.path(), program]);
        } else {
            command = Command::new(program);
        }
        self.environment(&mut command);
        command
    }

    /// `shell` runs `name`; nothing that it needs hangs for ever.
    fn command(&self, shell: &[&str], name: &str, arguments: &[&str]) -> Command {
        let mut command = self.program("timeout");
        command
            .args(["--kill-after=5", "120"])
            .args(shell)
            .arg(runbook(name))
            .args(arguments)
            .env("TMPDIR", self.dir.path());
        command
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("GDIAG", env!("CARGO_BIN_EXE_gdiag"))
            .env("LD_LIBRARY_PATH", &self.machine.simgpu)
            .env("GDIAG_SIM_SYNC", "block")
            .env("GDIAG_SIM_DEVICES", "2")
            .env("GDIAG_SIM_SHARED_COPY", "1")
            .env_remove("OUT")
            .stdin(Stdio::null());
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Said {
        let said = Said::of(self.command(&["sh"], name, arguments).output().unwrap());
        said.check();
        self.is_clean();
        said
    }

    fn is_clean(&self) {
        let left: Vec<_> = fs::read_dir(&self.dir).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// The same before all others, for a job that waits more than it runs: it gets its CPU at once.
    fn run_first(&self, name: &str, arguments: &[&str]) -> Said {
        let urgent = ["-f", "1", "timeout", "--kill-after=5", "60", "sh"];
        let mut command = Command::new("chrt");
        command.args(urgent).arg(runbook(name)).args(arguments);
        self.environment(&mut command);
        let said = Said::of(command.env("TMPDIR", self.dir.path()).output().unwrap());
        said.check();
        self.is_clean();
        said
    }

    /// Runs it until the verdict is that, and returns what it said.
    fn expect(&self, status: i32, name: &str, arguments: &[&str]) -> Said {
        self.expect_of(status, name, arguments, Place::run)
    }

    fn expect_of(
        &self,
        status: i32,
        name: &str,
        arguments: &[&str],
        run: impl Fn(&Place, &str, &[&str]) -> Said,
    ) -> Said {
        let mut all = Vec::new();
        for _ in 0..TRIES {
            let said = run(self, name, arguments);
            if said.status == Some(status) {
                println!("{name}: {}", said.value("verdict").unwrap_or("-"));
                return said;
            }
            all.push(said);
        }
        panic!("{name} {arguments:?}: not {status}: {all:#?}");
    }

    fn gpuload(&self) -> String {
        self.machine.gpuload().to_str().unwrap().to_string()
    }

    /// A job that runs by itself.
    fn start(&self, program: &str, arguments: &[&str]) -> Job {
        let mut command = self.program(program);
        let job = Job(command
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap());
        // Who moves it into another group must not be overtaken.
        wait_until("the job has its group", || {
            let words = fs::read_to_string(format!("/proc/{}/cmdline", job.pid()));
            words.is_ok_and(|words| !words.is_empty() && !words.contains("cgroup.procs"))
        });
        job
    }

    /// A job on the GPU, at work.
    fn service(&self, arguments: &[&str]) -> Job {
        let mut all = vec!["--seconds", "600"];
        all.extend(arguments);
        let job = self.start(&self.gpuload(), &all);
        wait_until("the job uses the driver", || {
            let maps = fs::read_to_string(format!("/proc/{}/maps", job.0.id()));
            maps.is_ok_and(|maps| maps.contains("libcuda.so"))
        });
        job
    }

    /// Ranks that meet after each step, and their pids.
    fn ranks(&self, arguments: &[&str]) -> (Job, Vec<String>) {
        let mut command = self.program("python3");
        command.arg(source("tests/programs/pyload/lockstep.py"));
        command.args(["--seconds", "600"]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut job = Job(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(job.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pids = line.split_whitespace().skip(1).map(String::from);
        (job, pids.collect())
    }

    fn record(&self, file: &Path, arguments: &[&str]) {
        let mut command = self.program("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_gdiag"), "record", "-q", "-o"]);
        command
            .arg(file)
            .args(["--", &self.gpuload()])
            .args(arguments);
        assert!(command.output().unwrap().status.success());
    }
}

/// A process that does not outlive the test.
struct Job(Child);

impl Job {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn files_of_runbooks() -> Vec<String> {
    let files = fs::read_dir(source("docs/runbooks")).unwrap().flatten();
    let mut names: Vec<String> = files
        .map(|file| file.file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".sh") && name != "lib.sh")
        .collect();
    names.sort();
    names
}

#[test]
fn every_runbook_is_listed_and_run_here() {
    assert_eq!(files_of_runbooks(), RUNBOOKS);
    let readme = fs::read_to_string(runbook("README.md")).unwrap();
    for name in RUNBOOKS {
        assert!(readme.contains(&format!("[{name}]({name})")), "{name}");
    }
}

#[test]
fn shells_and_shellcheck_find_nothing_wrong() {
    let mut files: Vec<PathBuf> = RUNBOOKS.iter().map(|name| runbook(name)).collect();
    files.push(runbook("lib.sh"));
    for shell in shells() {
        for file in &files {
            let mut command = Command::new(shell[0]);
            let output = command.args(&shell[1..]).arg("-n").arg(file).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{shell:?}: {output:?}");
        }
    }
    if !has("shellcheck") {
        println!("skipped: there is no shellcheck");
        return;
    }
    let mut shellcheck = Command::new("shellcheck");
    let output = shellcheck.args(["-x", "-s", "sh"]).args(&files).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
}

/// What jq says to a program that may use lib.jq.
fn ask_jq(program: &str) -> serde_json::Value {
    let output = Command::new("jq")
        .args(["-n", "-L"])
        .arg(source("docs/runbooks"))
        .arg(format!("include \"lib\"; {program}"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_cause_has_a_class_and_no_other_has() {
    if !jq() {
        return;
    }
    let classes = ask_jq("classes");
    let mut known: Vec<&str> = classes.as_object().unwrap().keys().map(|k| &**k).collect();
    let mut causes: Vec<&str> = Cause::ALL.iter().map(|cause| cause.id()).collect();
    known.sort_unstable();
    causes.sort_unstable();
    assert_eq!(known, causes);
    let statuses = ask_jq("statuses");
    for class in classes.as_object().unwrap().values() {
        assert!(statuses.get(class.as_str().unwrap()).is_some(), "{class}");
    }
}

#[test]
fn the_readme_tells_the_exit_statuses() {
    if !jq() {
        return;
    }
    let readme = fs::read_to_string(runbook("README.md")).unwrap();
    let rows = readme.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let status: u64 = cells.next()?.parse().ok()?;
        let class = cells.next()?;
        (class != "-").then(|| (class.to_string(), status))
    });
    let rows: BTreeMap<String, u64> = rows.collect();
    let statuses = ask_jq("statuses");
    let statuses = statuses.as_object().unwrap().iter();
    let statuses: BTreeMap<String, u64> = statuses
        .map(|(class, status)| (class.clone(), status.as_u64().unwrap()))
        .collect();
    assert_eq!(rows, statuses);
    let of_gdiag = [1, 2, 3, 4, 5, 77, 125, 126, 127];
    assert!(!statuses.values().any(|status| of_gdiag.contains(status)));
}

#[test]
fn values_are_written_as_people_read_them() {
    if !jq() {
        return;
    }
    let said = ask_jq(
        "[(0, 999, 59949, 1000000, 1234567890, null | length_of_time), (0, 0.4204, 1, null | percent), \
          (\"a\\u001b[2J\\nverdict: 0\\u202e\\u200b\\u009bx\" | clean), (null | clean)]",
    );
    let expected = serde_json::json!([
        "0.0 us",
        "1.0 us",
        "59.9 us",
        "1.0 ms",
        "1.2 s",
        "-",
        "0.0 %",
        "42.0 %",
        "100.0 %",
        "-",
        "a?[2J?verdict: 0???x",
        "-"
    ]);
    assert_eq!(said, expected);
}

#[test]
fn wrong_usage_is_told_with_an_example() {
    let wrong: [(&str, &[&[&str]]); 6] = [
        (
            "gate.sh",
            &[
                &[],
                &["4711"],
                &["--tries", "x", "--", "true"],
                &["-i", "a", "b"],
                &["--"],
            ],
        ),
        (
            "gpu-at-40-percent.sh",
            &[
                &[],
                &["x"],
                &["1", "2"],
                &["--idle", "101", "1"],
                &["--idle", "010", "1"],
                &["--idle"],
                &["--gpu", "-1", "1"],
                &["--what", "1"],
                &["--container"],
                &["--"],
            ],
        ),
        (
            "noisy-neighbour.sh",
            &[&[], &["--cpus"], &["--", "true"], &["x"]],
        ),
        (
            "one-rank-is-slow.sh",
            &[
                &[],
                &["1", "x"],
                &["--", "true"],
                &["-i", "a", "1"],
                &["--all", "1"],
                &["--all", "-i", "a"],
                &["--percent", "-3"],
            ],
        ),
        (
            "stalls-every-n-seconds.sh",
            &[
                &[],
                &["--", "true"],
                &["-d", "long", "1"],
                &["--stalls", "1.5", "1"],
            ],
        ),
        (
            "step-time-doubled.sh",
            &[
                &[],
                &["a.data"],
                &["a.data", "b.data", "c.data"],
                &["--what", "a", "b"],
            ],
        ),
    ];
    assert_eq!(wrong.map(|(name, _)| name), RUNBOOKS);
    for (name, cases) in wrong {
        for (arguments, shell) in cases.iter().zip(shells().iter().cycle()) {
            let mut command = Command::new(shell[0]);
            let command = command
                .args(&shell[1..])
                .arg(runbook(name))
                .args(*arguments);
            let said = Said::of(command.output().unwrap());
            assert_eq!(said.status, Some(2), "{name} {arguments:?}: {said:?}");
            assert_eq!(said.out, "");
            assert!(said.err.starts_with(&format!("{name}: ")), "{said:?}");
            assert!(
                said.err.contains("\nusage: ") && said.err.contains("\nexamples:\n"),
                "{said:?}"
            );
        }
    }
}

/// What each is called with on a machine where it can work.
fn usual(pid: &str) -> [(&'static str, Vec<String>); 6] {
    let recording = source("tests/data/item.data").to_str().unwrap().to_string();
    let own = |words: &[&str]| {
        words
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<String>>()
    };
    [
        ("gate.sh", own(&["--", "true"])),
        ("gpu-at-40-percent.sh", own(&["-d", "1s", pid])),
        ("noisy-neighbour.sh", own(&["-d", "1s", pid])),
        ("one-rank-is-slow.sh", own(&["-d", "1s", pid])),
        ("stalls-every-n-seconds.sh", own(&["-d", "1", pid])),
        ("step-time-doubled.sh", own(&["-d", "1s", &recording, pid])),
    ]
}

#[test]
fn without_jq_one_line_says_so() {
    for (name, arguments) in usual("1") {
        let mut command = Command::new("sh");
        command.arg(runbook(name)).args(&arguments);
        command
            .env("GDIAG", env!("CARGO_BIN_EXE_gdiag"))
            .env("JQ", "/nowhere/jq");
        let said = Said::of(command.output().unwrap());
        assert_eq!(said.status, Some(77), "{name}: {said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
        assert!(said.err.contains("jq") && said.out.is_empty(), "{said:?}");
    }
}

#[test]
fn without_rights_they_cannot() {
    let Some(place) = Place::ready() else {
        return;
    };
    let nobody = |program: &Path| {
        let mut command = Command::new(program);
        command.uid(65534).gid(65534);
        command
    };
    let gdiag = Path::new(env!("CARGO_BIN_EXE_gdiag"));
    if !nobody(gdiag)
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
    {
        println!("skipped: nobody cannot run {}", gdiag.display());
        return;
    }
    let sleeper = Job(Command::new("sleep")
        .arg("600")
        .uid(65534)
        .gid(65534)
        .spawn()
        .unwrap());
    for (name, arguments) in usual(&sleeper.pid()) {
        let mut command = nobody(Path::new("sh"));
        command.arg(runbook(name)).args(&arguments);
        place.environment(&mut command);
        command.env("TMPDIR", "/tmp");
        let said = Said::of(command.output().unwrap());
        assert_eq!(said.status, Some(77), "{name}: {said:?}");
        assert!(said.err.contains("hint: run as root"), "{said:?}");
    }
}

#[test]
fn a_target_that_is_not_there_is_a_failure() {
    let Some(place) = Place::ready() else {
        return;
    };
    for (name, arguments) in &usual("999999999")[1..] {
        let arguments: Vec<&str> = arguments.iter().map(|a| &**a).collect();
        let said = place.run(name, &arguments);
        assert_eq!(said.status, Some(1), "{name}: {said:?}");
        assert!(said.err.contains("no process has pid"), "{said:?}");
    }
}

/// A job that has its fault in every step, for long enough to be told from whatever else goes on here.
#[test]
fn an_idle_gpu_gets_the_class_of_its_cause() {
    let Some(place) = Place::ready() else {
        return;
    };
    let load = place.gpuload();
    let name = "gpu-at-40-percent.sh";
    for (status, cause, fault) in [
        (15, "host.disk-read", "disk:40@1"),
        (16, "host.disk-write", "fsync:40@1"),
        (17, "host.cuda-memory", "alloc:40@1"),
        (18, "host.sleep", "sleep:40@1"),
        (19, "host.lock", "lock-sleep:40@1"),
        (21, "gpu.dependency", "eventwait:40@1"),
        (23, "host.stopped", "stop:40@1"),
    ] {
        let job = [&load, "--seconds", "1.5", "--inject", fault];
        let said = place.expect_of(
            status,
            name,
            &[&["--gpu", "0", "--"], &job[..]].concat(),
            Place::run_first,
        );
        let line = said.value("cause").unwrap();
        assert!(line.starts_with(cause), "{said:?}");
        assert!(said.value("fix").is_some(), "{said:?}");
    }
}

#[test]
fn a_quota_is_told_from_neighbours() {
    let Some(place) = Place::ready() else {
        return;
    };
    let Some(other) = Weighted::new("runbooks-other") else {
        return;
    };
    other.weight(9000);
    other.quota(Some(3));
    let service = place.service(&[]);
    other.group.add(service.0.id());
    let said = place.expect(12, "gpu-at-40-percent.sh", &["-d", "2s", &service.pid()]);
    assert!(
        said.value("cause").unwrap().starts_with("host.throttled"),
        "{said:?}"
    );
}

#[test]
fn foreign_and_own_threads_on_the_cpu_are_told_apart() {
    let Some(place) = Place::ready() else {
        return;
    };
    let load = place.gpuload();
    let script = runbook("gpu-at-40-percent.sh");
    let script = script.to_str().unwrap();
    for (status, causes, fault) in [
        (11, "host.preempted", "preempt:40@1"),
        (13, "host.affinity host.oversubscribed", "affinity:60@1"),
        (22, "host.no-demand", "idle:40@1"),
    ] {
        let right = (0..TRIES).any(|_| {
            // Hogs and clients that belong to nobody's job are started before it.
            let mut command = place.program("timeout");
            command.args([
                "--kill-after=5",
                "120",
                &load,
                "outside",
                "--",
                "sh",
                script,
            ]);
            command.args(["--", &load, "--seconds", "1.5", "--inject", fault]);
            let said = Said::of(command.env("TMPDIR", place.dir.path()).output().unwrap());
            said.check();
            place.is_clean();
            println!("{}", said.out);
            let cause = said.value("cause").unwrap_or("-").split(' ').next();
            said.status == Some(status) && causes.split(' ').any(|id| Some(id) == cause)
        });
        assert!(right, "{causes}");
    }
}

#[test]
fn a_busy_gpu_is_fine() {
    let Some(place) = Place::ready() else {
        return;
    };
    let load = place.gpuload();
    let job = [&load, "--seconds", "1.5", "--ahead", "60"];
    let fine = [&["--"], &job[..]].concat();
    place.expect(0, "gpu-at-40-percent.sh", &fine);
    place.expect(0, "gate.sh", &fine);
    let service = place.service(&["--ahead", "60"]);
    place.expect(0, "gpu-at-40-percent.sh", &["-d", "1500ms", &service.pid()]);
    let said = place.expect(
        0,
        "stalls-every-n-seconds.sh",
        &["-d", "3", "--over", "2s", &service.pid()],
    );
    assert!(said.value("stalls").is_none(), "{said:?}");
}

#[test]
fn without_gpu_records_nothing_is_guessed() {
    let Some(place) = Place::ready() else {
        return;
    };
    let probed = source("tests/data/probed.data");
    let probed = probed.to_str().unwrap();
    for (name, arguments) in [
        ("gpu-at-40-percent.sh", vec!["--", "sleep", "0.5"]),
        ("gpu-at-40-percent.sh", vec!["-i", probed]),
        ("gate.sh", vec!["--", "sleep", "0.5"]),
        ("gate.sh", vec!["--assert", "idle>1%", "-i", probed]),
        ("one-rank-is-slow.sh", vec!["-i", probed]),
        ("step-time-doubled.sh", vec![probed, probed]),
    ] {
        let said = place.run(name, &arguments);
        assert_eq!(said.status, Some(10), "{name}: {said:?}");
        assert!(said.value("warning").is_some(), "{said:?}");
    }
    let sleeper = place.start("sleep", &["600"]);
    let said = place.run("stalls-every-n-seconds.sh", &["-d", "1", &sleeper.pid()]);
    assert_eq!(said.status, Some(10), "{said:?}");
}

/// A gdiag whose JSON is another by a program for sed.
fn changed_gdiag(dir: &Path, program: &str) -> PathBuf {
    let gdiag = dir.join("gdiag");
    let real = env!("CARGO_BIN_EXE_gdiag");
    fs::write(
        &gdiag,
        format!("#!/bin/sh\n'{real}' \"$@\" | sed '{program}'\n"),
    )
    .unwrap();
    fs::set_permissions(&gdiag, fs::Permissions::from_mode(0o755)).unwrap();
    gdiag
}

/// No load here has these on demand for most of the time.
#[test]
fn causes_that_cannot_be_provoked_have_their_class() {
    let Some(place) = Place::ready() else {
        return;
    };
    let keep = tempfile::tempdir().unwrap();
    let engine = source("tests/data/engine.data");
    for (status, cause) in [
        (14, "host.reclaim"),
        (20, "host.peer"),
        (10, "unknown.measurement"),
    ] {
        let gdiag = changed_gdiag(keep.path(), &format!("s/host.sleep/{cause}/"));
        let arguments = ["-i", engine.to_str().unwrap()];
        let mut command = place.command(&["sh"], "gpu-at-40-percent.sh", &arguments);
        let said = Said::of(command.env("GDIAG", gdiag).output().unwrap());
        said.check();
        assert_eq!(said.status, Some(status), "{said:?}");
        assert!(said.value("cause").unwrap().starts_with(cause), "{said:?}");
    }
}

/// No recording here has lost anything.
#[test]
fn with_lost_events_nothing_is_fine() {
    let Some(place) = Place::ready() else {
        return;
    };
    let keep = tempfile::tempdir().unwrap();
    let item = source("tests/data/item.data");
    let item = item.to_str().unwrap();
    let lost = r#"s/"cupti_lost": 0/"cupti_lost": 7/; s/"lost": 0/"lost": 7/"#;
    let gdiag = changed_gdiag(keep.path(), lost);
    for (name, arguments) in [
        ("gpu-at-40-percent.sh", vec!["-i", item]),
        ("gate.sh", vec!["--assert", "idle<99%", "-i", item]),
        ("one-rank-is-slow.sh", vec!["-i", item]),
        ("step-time-doubled.sh", vec![item, item]),
    ] {
        let mut command = place.command(&["sh"], name, &arguments);
        let said = Said::of(command.env("GDIAG", &gdiag).output().unwrap());
        said.check();
        assert_eq!(said.status, Some(10), "{name}: {said:?}");
        assert!(
            said.value("verdict").unwrap().contains(": 7 events "),
            "{said:?}"
        );
    }
}

/// Check that what is not there any more is not taken for fine.
#[test]
fn of_a_cut_recording_nothing_is_fine() {
    let Some(place) = Place::ready() else {
        return;
    };
    let keep = tempfile::tempdir().unwrap();
    let cut = keep.path().join("cut.data");
    let whole = fs::read(source("tests/data/item.data")).unwrap();
    fs::write(&cut, &whole[..whole.len() * 9 / 10]).unwrap();
    let cut = cut.to_str().unwrap();
    for (name, arguments) in [
        ("gpu-at-40-percent.sh", ["--idle", "99", "-i", cut]),
        ("gate.sh", ["--assert", "idle<99%", "-i", cut]),
    ] {
        let said = place.run(name, &arguments);
        assert_eq!(said.status, Some(10), "{name}: {said:?}");
        let why = said.value("verdict").unwrap();
        assert!(why.contains("the recording is cut"), "{said:?}");
    }
}

/// Check that an answer of which a part is missing is none, and that the status of jq is not that of the script.
#[test]
fn a_jq_that_fails_is_a_failure() {
    let Some(place) = Place::ready() else {
        return;
    };
    let keep = tempfile::tempdir().unwrap();
    let jq = keep.path().join("jq");
    fs::write(&jq, "#!/bin/sh\necho verdict: 0 fine: so far\nexit 5\n").unwrap();
    fs::set_permissions(&jq, fs::Permissions::from_mode(0o755)).unwrap();
    let item = source("tests/data/item.data");
    let item = item.to_str().unwrap();
    for (name, arguments) in [
        ("gpu-at-40-percent.sh", vec!["-i", item]),
        ("gate.sh", vec!["-i", item]),
        ("one-rank-is-slow.sh", vec!["-i", item]),
        ("step-time-doubled.sh", vec![item, item]),
    ] {
        let mut command = place.command(&["sh"], name, &arguments);
        let said = Said::of(command.env("JQ", &jq).output().unwrap());
        place.is_clean();
        assert_eq!((said.status, said.out.as_str()), (Some(1), ""), "{said:?}");
    }
}

#[test]
fn a_gate_opens_only_for_what_holds() {
    let Some(place) = Place::ready() else {
        return;
    };
    let item = source("tests/data/item.data");
    let item = item.to_str().unwrap();
    let holds = place.run(
        "gate.sh",
        &[
            "--assert",
            "idle < 90%",
            "--assert",
            "cause(host.*)>1%",
            "-i",
            item,
        ],
    );
    assert_eq!(holds.status, Some(0), "{holds:?}");
    let fails = place.run(
        "gate.sh",
        &["--assert", "lost<=0", "--assert", "idle<20%", "-i", item],
    );
    assert_eq!(fails.status, Some(32), "{fails:?}");
    assert_eq!(fails.value("fails"), Some("idle<20%: GPU 0 62.0 %"));
    assert!(fails.value("cause").is_some(), "{fails:?}");
    // Before anything runs.
    let typo = place.run(
        "gate.sh",
        &["--assert", "idel<20%", "--", "touch", "/nowhere/file"],
    );
    assert_eq!(typo.status, Some(2), "{typo:?}");
    assert!(typo.err.contains("did you mean idle?"), "{typo:?}");
    let broken = place.run("gate.sh", &["--", "sh", "-c", "exit 3"]);
    assert_eq!(broken.status, Some(1), "{broken:?}");
    let load = place.gpuload();
    let tried = place.run(
        "gate.sh",
        &[
            "--tries",
            "2",
            "--",
            &load,
            "--seconds",
            "0.5",
            "--inject",
            "sleep:40@1",
        ],
    );
    assert_eq!(tried.status, Some(32), "{tried:?}");
    assert!(tried.err.contains("try 1 of 2"), "{tried:?}");
}

#[test]
fn slower_steps_are_told_from_more_of_them() {
    let Some(place) = Place::ready() else {
        return;
    };
    let keep = tempfile::tempdir().unwrap();
    let file = |name: &str| keep.path().join(name).to_str().unwrap().to_string();
    let (old, longer, slower) = (file("old.data"), file("longer.data"), file("slower.data"));
    let usual = ["--kernel-us", "1000", "--kernels", "4"];
    place.record(Path::new(&old), &[&usual[..], &["--seconds", "1"]].concat());
    place.record(
        Path::new(&longer),
        &[&usual[..], &["--seconds", "2"]].concat(),
    );
    let asleep = ["--seconds", "1", "--inject", "sleep:20@1"];
    place.record(Path::new(&slower), &[&usual[..], &asleep].concat());
    let name = "step-time-doubled.sh";
    // Twice as many steps are no slower ones; other programs may double them here, and not treble them.
    place.expect(0, name, &["--percent", "200", &old, &longer]);
    let said = place.expect(18, name, &["--percent", "200", &old, &slower]);
    assert!(said.out.contains("most of all for host.sleep"), "{said:?}");
    let load = place.gpuload();
    let heavy = [
        "--",
        &load,
        "--seconds",
        "1",
        "--kernel-us",
        "8000",
        "--kernels",
        "4",
    ];
    let said = place.expect(
        30,
        name,
        &[&["--percent", "200", &*old], &heavy[..]].concat(),
    );
    assert!(said.value("kernel").unwrap().ends_with("spin"), "{said:?}");
    let short = file("short.data");
    place.record(Path::new(&short), &["--steps", "3"]);
    let said = place.run(name, &[&old, &short]);
    assert_eq!(said.status, Some(10), "{said:?}");
}

#[test]
fn the_slow_rank_is_found_with_its_cause() {
    let Some(place) = Place::ready() else {
        return;
    };
    let name = "one-rank-is-slow.sh";
    let slow = ["--ms", "40", "--fault"];
    for (status, late, faults) in [
        (18, 1, vec!["sleep"]),
        (18, 0, vec!["sleep", "--slow", "0"]),
        (18, 1, vec!["sleep", "--collective"]),
        (30, 1, vec!["kernels", "--collective"]),
    ] {
        let (_job, pids) = place.ranks(&[&slow[..], &faults].concat());
        let pids: Vec<&str> = pids.iter().map(|pid| &**pid).collect();
        let said = place.expect(status, name, &[&["-d", "2s"], &pids[..]].concat());
        let verdict = said.value("verdict").unwrap();
        let expected = format!("the others wait for process {} (rank-{late})", pids[late]);
        assert!(verdict.contains(&expected), "{said:?}");
    }
    // Its worker is to blame, and another cause may be the largest where CPUs are short: the rank is right.
    let (_job, pids) = place.ranks(&["--ms", "40", "--fault", "helper"]);
    let said = place.run(name, &["-d", "2s", &pids[0], &pids[1]]);
    let verdict = said.value("verdict").unwrap();
    assert!(
        verdict.contains(&format!("wait for process {} (rank-1)", pids[1])),
        "{said:?}"
    );
}

#[test]
fn equal_ranks_are_fine() {
    let Some(place) = Place::ready() else {
        return;
    };
    let (_job, pids) = place.ranks(&[]);
    // As other programs of this machine may delay one of them.
    place.expect(
        0,
        "one-rank-is-slow.sh",
        &["-d", "2s", "--percent", "40", &pids[0], &pids[1]],
    );
    let alone = place.service(&[]);
    let said = place.run("one-rank-is-slow.sh", &["-d", "1s", &alone.pid()]);
    assert_eq!(said.status, Some(10), "{said:?}");
}

#[test]
fn stalls_have_their_cause_and_period() {
    let Some(place) = Place::ready() else {
        return;
    };
    let name = "stalls-every-n-seconds.sh";
    let watch = ["-d", "30", "--over", "250ms", "--stalls", "5"];
    let service = place.service(&[
        "--kernels",
        "1",
        "--kernel-us",
        "20000",
        "--inject",
        "sleep:400@20",
    ]);
    let said = place.expect(18, name, &[&watch[..], &[&*service.pid()]].concat());
    assert!(said.out.contains("stalls: host.sleep"), "{said:?}");
    assert!(said.value("period").is_some(), "{said:?}");
    drop(service);
    let faults = [
        "--inject",
        "sleep:400@13",
        "--inject",
        "stop:400@13",
        "--inject",
        "lock-sleep:400@13",
    ];
    let service = place.service(&[&["--kernels", "1"], &faults[..]].concat());
    place.expect(31, name, &[&watch[..], &[&*service.pid()]].concat());
}

/// A cgroup whose weight decides who waits for whom, whatever else runs here.
#[test]
fn a_neighbour_a_quota_and_own_threads_are_told_apart() {
    let Some(place) = Place::ready() else {
        return;
    };
    let Some(other) = Weighted::new("runbooks-other") else {
        return;
    };
    let name = "noisy-neighbour.sh";
    let spin = "while :; do :; done";
    let own_threads =
        "import threading,hashlib\ndef f():\n while True: hashlib.sha256(bytes(1<<20)).digest()\n\
                       for i in range(6): threading.Thread(target=f).start()";
    let pinned = |words: &[&str]| place.start("taskset", &[&["-c", "0"], words].concat());

    other.weight(9000);
    let job = pinned(&["python3", "-c", own_threads]);
    other.group.add(job.0.id());
    place.expect(13, name, &["-d", "2s", &job.pid()]);
    drop(job);

    other.quota(Some(20));
    let job = place.start("sh", &["-c", spin]);
    other.group.add(job.0.id());
    let said = place.expect(12, name, &["-d", "2s", &job.pid()]);
    assert!(said.value("quota").is_some(), "{said:?}");
    drop(job);
    other.quota(None);

    other.weight(100);
    let hog = pinned(&["sh", "-c", spin]);
    let job = pinned(&["sh", "-c", spin]);
    other.group.add(job.0.id());
    place.expect(11, name, &["-d", "2s", &job.pid()]);
    place.expect(11, name, &["-d", "2s", "--cpus", "0"]);
    drop((job, hog));

    let job = place.start("sleep", &["600"]);
    place.expect(0, name, &["-d", "1s", &job.pid()]);
}

#[test]
fn a_target_that_dies_is_not_fine() {
    let Some(place) = Place::ready() else {
        return;
    };
    for name in ["gpu-at-40-percent.sh", "stalls-every-n-seconds.sh"] {
        let mut service = place.service(&["--ahead", "60"]);
        let pid = service.pid();
        let arguments = match name {
            "gpu-at-40-percent.sh" => vec!["-d", "60s", &pid],
            _ => vec!["-d", "60", "--over", "30s", &pid],
        };
        let script = place.command(&["sh"], name, &arguments);
        let script = spawn_with_output(script);
        wait_until("gdiag's library is in it", || is_recorded(&pid));
        service.0.kill().unwrap();
        let said = Said::of(script.wait_with_output().unwrap());
        said.check();
        assert_ne!(said.status, Some(0), "{name}: {said:?}");
        assert!(said.out.contains("ended meanwhile"), "{name}: {said:?}");
        service.0.wait().unwrap();
        place.is_clean();
    }
}

fn spawn_with_output(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// gdiag's library collects there.
fn is_recorded(pid: &str) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks.flatten().any(|task| {
        let comm = fs::read_to_string(task.path().join("comm"));
        comm.is_ok_and(|comm| comm.starts_with("gdiag-shim"))
    })
}

#[test]
fn an_interrupted_script_leaves_nothing_behind() {
    let Some(place) = Place::ready() else {
        return;
    };
    let service = place.service(&[]);
    let pid = service.pid();
    for (name, arguments, signal, status) in [
        (
            "gpu-at-40-percent.sh",
            vec!["-d", "60s", &*pid],
            Signal::SIGTERM,
            143,
        ),
        (
            "one-rank-is-slow.sh",
            vec!["-d", "60s", &*pid],
            Signal::SIGHUP,
            129,
        ),
        (
            "noisy-neighbour.sh",
            vec!["-d", "60s", &*pid],
            Signal::SIGINT,
            130,
        ),
        (
            "stalls-every-n-seconds.sh",
            vec!["-d", "60", "--over", "30s", &*pid],
            Signal::SIGINT,
            130,
        ),
    ] {
        for shell in shells() {
            // What is ignored when a shell begins, as Ctrl-C is in the background, it cannot trap.
            let mut command = Command::new("env");
            command
                .arg("--default-signal=INT,QUIT")
                .args(&shell)
                .arg(runbook(name))
                .args(&arguments);
            place.environment(&mut command);
            command.env("TMPDIR", place.dir.path());
            let script = spawn_with_output(command);
            let id = script.id();
            wait_until("gdiag runs for the script", || has_gdiag(id));
            kill(Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
            let said = Said::of(script.wait_with_output().unwrap());
            assert_eq!(said.status, Some(status), "{shell:?} {name}: {said:?}");
            assert_eq!(said.out, "");
            place.is_clean();
            let stat = format!("runbook-{id}");
            wait_until("the recorder is gone", || {
                let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"));
                let output = gdiag.args(["stat", "--name", &stat]).output().unwrap();
                output.status.code() == Some(3)
            });
        }
    }
}

/// A child of the script is gdiag, or a flight recorder of its name answers.
fn has_gdiag(script: u32) -> bool {
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children"));
    let of_script = children
        .unwrap_or_default()
        .split_whitespace()
        .any(|child| {
            fs::read_to_string(format!("/proc/{child}/comm"))
                .is_ok_and(|comm| comm.starts_with("gdiag"))
        });
    let recorder = || {
        let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"));
        let name = format!("runbook-{script}");
        gdiag
            .args(["stat", "--name", &name])
            .output()
            .unwrap()
            .status
            .success()
    };
    of_script || recorder()
}

#[test]
fn hostile_names_are_harmless() {
    let Some(place) = Place::ready() else {
        return;
    };
    let (_job, pids) = place.ranks(&[
        "--ms",
        "40",
        "--fault",
        "sleep",
        "--name",
        "\u{1b}[2J\nverdict: 0",
    ]);
    let arguments = ["-d", "2s", &pids[0], &pids[1]];
    let said = place.expect(18, "one-rank-is-slow.sh", &arguments);
    assert!(said.out.contains("?[2J?verdict: 0"), "{said:?}");
    let arguments = ["-d", "2s", &pids[1]];
    let said = place.expect(18, "gpu-at-40-percent.sh", &arguments);
    assert!(said.out.contains("?[2J?verdict: 0"), "{said:?}");
}

#[test]
fn recordings_are_kept_where_asked() {
    let Some(place) = Place::ready() else {
        return;
    };
    let out = place.dir.path().join("a b");
    let load = place.gpuload();
    let mut command = place.command(
        &["sh"],
        "gpu-at-40-percent.sh",
        &["--", &load, "--seconds", "0.5"],
    );
    let said = Said::of(command.env("OUT", &out).output().unwrap());
    said.check();
    assert_eq!(said.value("kept"), Some(out.to_str().unwrap()), "{said:?}");
    for file in ["gdiag.data", "report.json"] {
        assert!(fs::metadata(out.join(file)).unwrap().len() > 0, "{file}");
    }
    // The same place again keeps what was there.
    let said = Said::of(command.env("OUT", &out).output().unwrap());
    said.check();
    assert!(out.join("gdiag.data.old").exists());
}

/// What the README shows, typed.
#[test]
fn the_examples_of_the_readme_work() {
    let Some(place) = Place::ready() else {
        return;
    };
    let service = place.service(&[]);
    let readme = fs::read_to_string(runbook("README.md")).unwrap();
    let block = readme
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let mut count = 0;
    for line in block.lines().filter(|line| !line.contains("--container")) {
        let line = line.replace("4711", &service.pid());
        let line = line.replace(
            "python3 train.py",
            &format!("{} --seconds 1", place.gpuload()),
        );
        let mut command = Command::new("timeout");
        command
            .args(["100", "sh", "-c", &line])
            .current_dir(source("."));
        place.environment(&mut command);
        let said = Said::of(command.env("TMPDIR", place.dir.path()).output().unwrap());
        said.check();
        assert!(said.out.starts_with("verdict: "), "{line}: {said:?}");
        count += 1;
    }
    assert!(count >= 3);
}
