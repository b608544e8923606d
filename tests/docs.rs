//! What README.md and the manual pages tell people to type is typed here.
//!
//! Each `sh` block of README.md, each EXAMPLES section of a page, and each whole command in the text between is run in
//! turn in one directory, with real BPF and the simulated GPU. [`STAND_INS`] says what takes the place of programs and
//! numbers that are only examples, and [`NOT_RUN`] which commands are left to a person. What other documents name, or
//! only in part, is not run but checked: [`named`].
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

#[path = "containers/group.rs"]
mod group;
#[path = "scenarios/machine.rs"]
mod machine;
#[path = "docs/named.rs"]
mod named;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use gdiag::analyse::cause::Cause;
use machine::Machine;

/// In an example → here. The shell variables are set by [`Place`].
const STAND_INS: &[(&str, &str)] = &[
    ("python3 train.py", "$GPULOAD --steps 100"),
    ("./serve", "$GPULOAD --steps 100"),
    ("4711", "$SERVICE1"),
    ("4712", "$SERVICE2"),
    ("9e4f1c", "$CONTAINER"),
    ("sleep 10", "sleep 0.3"),
    ("-d 10s", "-d 300ms"),
    ("-w 10s", "-w 1s"),
    // They would run until somebody presses a key, or print a whole window.
    ("gdiag top", "gdiag top -d 2s"),
    ("target/simgpu", "$SIMGPU"),
    ("/opt/gdiag", "$PWD/opt"),
    ("docs/runbooks/", "$RUNBOOKS/"),
    // One GPU is simulated.
    ("--gpu 1", "--gpu 0"),
    // Would run until Ctrl-C.
    ("-a -o node.data", "-a -o node.data -d 300ms"),
    ("--from 2s --to 3s", "--from 10ms --to 20ms"),
    // Here there may be two.
    ("--cpus 0,2-3", "--cpus 0"),
];

/// What commands that are not run begin with, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("make", "builds, and installs packages"),
    ("sudo make install", "installs"),
    ("git clone", "needs the network"),
];

/// What reports and graphs are asked of.
const RECORDINGS: &[&str] = &[
    "gdiag.data",
    "gdiag.data.old",
    "before.data",
    "good.data",
    "slow.data",
    "node.data",
    "now.data",
];

/// A recording of a whole program.
const SAMPLE: &str = "sample.data";

/// Every page.
const PAGES: &[&str] = &[
    "gdiag.1",
    "gdiag-check.1",
    "gdiag-diff.1",
    "gdiag-export.1",
    "gdiag-flame.1",
    "gdiag-record.1",
    "gdiag-report.1",
    "gdiag-sched.1",
    "gdiag-top.1",
    "gdiag-snapshot.1",
    "gdiag-start.1",
    "gdiag-stat.1",
    "gdiag-stop.1",
    "gdiag-syscalls.1",
    "gdiag-shim.1",
    "gdiag-shim-install.1",
];

fn read(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The lines of the `sh` blocks, without comments.
fn commands_of_markdown(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => {
                let command = line.split(" # ").next().unwrap_or_default().trim();
                if !command.is_empty() && !command.starts_with('#') {
                    commands.push(command.to_string());
                }
            }
            _ => {}
        }
    }
    commands
}

/// The terms of the EXAMPLES section.
fn commands_of_page(text: &str) -> Vec<String> {
    text.lines()
        .skip_while(|line| *line != ".SH EXAMPLES")
        .skip(1)
        .take_while(|line| !line.starts_with(".SH "))
        .filter_map(|line| line.strip_prefix("\\fB")?.strip_suffix("\\fR"))
        .map(|term| term.replace("\\-", "-"))
        .collect()
}

/// A process that does not outlive the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The directory in which everything is typed, and two services that carry the shim asleep, one of
/// them in a container.
struct Place {
    dir: tempfile::TempDir,
    machine: Machine,
    services: [Background; 2],
    container: String,
    cgroup: Option<group::Group>,
}

impl Place {
    fn new(machine: Machine) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let installed = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["shim", "install"])
            .arg(dir.path().join("shim"))
            .output()
            .unwrap();
        let variable = String::from_utf8(installed.stdout).unwrap();
        let (name, shim) = variable.trim_end().split_once('=').unwrap();
        let service = || {
            Background(
                Command::new(machine.gpuload())
                    .args(["--seconds", "600", "--kernels", "2", "--host-us", "10"])
                    .env("LD_LIBRARY_PATH", &machine.simgpu)
                    .env(name, shim)
                    .env("GDIAG_SIM_SYNC", "block")
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap(),
            )
        };
        let services = [service(), service()];
        let container = format!("{:064x}", std::process::id());
        let hierarchy = group::hierarchies().into_iter().next();
        let cgroup =
            hierarchy.and_then(|dir| group::Group::new(&dir, &format!("docker-{container}.scope")));
        if let Some(cgroup) = &cgroup {
            cgroup.add(services[0].0.id());
        }
        let place = Place {
            dir,
            machine,
            services,
            container,
            cgroup,
        };
        let sample = place.run(&format!("gdiag record -o {SAMPLE} -- $GPULOAD --steps 100"));
        assert!(sample.status.success(), "{sample:?}");
        place
    }

    fn run(&self, command: &str) -> Output {
        let gdiag = Path::new(env!("CARGO_BIN_EXE_gdiag")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        Command::new("sh")
            .args(["-c", command])
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", gdiag.display()))
            .env("SIMGPU", &self.machine.simgpu)
            .env("GPULOAD", self.machine.gpuload())
            .env("LD_LIBRARY_PATH", &self.machine.simgpu)
            .env("SERVICE1", self.services[0].0.id().to_string())
            .env("SERVICE2", self.services[1].0.id().to_string())
            .env("CONTAINER", &self.container)
            .env(
                "RUNBOOKS",
                Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/runbooks"),
            )
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Types a command of `document`.
    fn type_in(&self, document: &str, example: &str) {
        let mut command = example.to_string();
        for (from, to) in STAND_INS {
            command = command.replace(from, to);
        }
        // jq may not be here: its argument is looked up in the document instead.
        let (command, filter) = match command.split_once(" | jq ") {
            Some((command, filter)) => (command.to_string(), Some(filter.trim_matches('\''))),
            None => (command, None),
        };
        let live = ["gdiag sched", "gdiag syscalls", "gdiag record -a"];
        let ends = [" -d ", " -i ", " -- "];
        let command = if live.iter().any(|start| command.starts_with(start))
            && !ends.iter().any(|end| command.contains(end))
        {
            // Would run until Ctrl-C.
            format!("{command} -d 300ms")
        } else {
            command
        };
        println!("{document}: {command}");
        let recorder = ["gdiag snapshot", "gdiag stat", "gdiag stop"];
        if recorder.iter().any(|start| command.starts_with(start)) {
            // One may be running already, from the example before.
            self.run("gdiag stat || gdiag start -p $SERVICE1");
        }
        let reads = ["gdiag report", "gdiag diff", "gdiag flame", "gdiag export"];
        if reads.iter().any(|start| command.starts_with(start)) || command.contains(" -i ") {
            // Whatever was recorded last, and however little of it.
            for name in RECORDINGS {
                fs::copy(self.dir.path().join(SAMPLE), self.dir.path().join(name)).unwrap();
            }
        }
        let output = self.run(&command);
        // What a runbook ends with from 10 on is what it found.
        let found = command.contains("$RUNBOOKS/") && output.status.code() >= Some(10);
        assert!(
            output.status.success() || found,
            "{document}: {example}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        if let Some(filter) = filter {
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let pointer = filter.replace(['.', '['], "/").replace(']', "");
            let found = json.pointer(&pointer);
            assert!(
                found.is_some_and(|v| !v.is_null()),
                "{document}: {example}: {filter}"
            );
        }
    }
}

#[test]
fn every_command_that_is_shown_works() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let place = Place::new(machine);
    let whole = |document: &str, spans: Vec<String>| {
        let spans = spans.into_iter();
        spans
            .filter(|span| named::is_whole(document, span))
            .collect::<Vec<_>>()
    };
    let readme = read("README.md");
    let in_text = whole("README.md", named::spans_of_markdown(&readme));
    let mut documents = vec![(
        "README.md",
        [commands_of_markdown(&readme), in_text].concat(),
    )];
    for page in PAGES {
        let text = read(&format!("man/{page}"));
        let mut commands = commands_of_page(&text);
        let in_text = whole(page, named::spans_of_page(&text));
        let new = |span: &String| !commands.contains(span);
        let in_text: Vec<String> = in_text.into_iter().filter(new).collect();
        commands.extend(in_text);
        documents.push((page, commands));
    }
    let (mut run, mut left) = (0, 0);
    for (document, commands) in &documents {
        for command in commands {
            let no_container = command.contains("--container") && place.cgroup.is_none();
            if no_container || NOT_RUN.iter().any(|(start, _)| command.starts_with(start)) {
                left += 1;
            } else {
                place.type_in(document, command);
                run += 1;
            }
        }
        // If one was started.
        place.run("gdiag stop");
    }
    assert!(run >= 20, "{run} commands were run, {left} were not");
}

#[test]
fn no_page_is_forgotten() {
    let mut pages: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".1"))
        .collect();
    pages.sort();
    let mut known = PAGES.to_vec();
    known.sort_unstable();
    assert_eq!(pages, known);
}

#[test]
fn the_readme_lists_every_cause_once() {
    let readme = read("README.md");
    let table: Vec<&str> = readme
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(" `"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect();
    for cause in Cause::ALL {
        let times = table.iter().filter(|id| **id == cause.id()).count();
        assert_eq!(times, 1, "{}", cause.id());
    }
}

#[test]
fn files_that_are_named_are_there() {
    let tops = ["src/", "bpf/", "cupti-shim/", "man/", "tests/", ".ci/"];
    for document in ["README.md", "CONTRIBUTING.md", "BENCHMARKS.md"] {
        let text = read(document);
        let names = text
            .split(|c: char| c.is_whitespace() || "`()[],;:|<>{}\"".contains(c))
            .map(|word| word.trim_end_matches('.'))
            .filter(|word| tops.iter().any(|top| word.starts_with(top)))
            .filter(|word| !word.contains('*'));
        let mut count = 0;
        for name in names {
            let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            assert!(path.exists(), "{document}: {name}");
            count += 1;
        }
        assert!(count > 0, "{document}");
    }
}
