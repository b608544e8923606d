//! Timelines as other tools get them, read by readers that share nothing with gdiag: a Perfetto trace by the public
//! definitions (`perfetto.proto`) and Python's protobuf library, JSON by Python. What they find must be what the
//! recording holds and what `gdiag report` says of it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod hostile;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use gdiag::event::{Event, OpKind};
use gdiag::store::Reader;

const RECORDINGS: [&str; 8] = [
    "launch", "item", "loader", "stacks", "engine", "managed", "attached", "probed",
];

/// What only one of the formats has: states and turns are made by the reader of a Perfetto trace.
const OF_ONE_FORMAT: [&str; 8] = [
    "about", "cpu", "running", "runnable", "blocked", "wait", "stop", "life",
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/export")
}

fn gdiag(command: &str, input: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args([command, "-i"])
        .arg(input)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn export(input: &Path, format: &str, arguments: &[&str]) -> Vec<u8> {
    let output = gdiag(
        "export",
        input,
        &[&["--format", format], arguments].concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    output.stdout
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    output.stdout
}

/// An interpreter that has the protobuf library: Debian's packages are for its own.
fn python() -> &'static str {
    static FOUND: OnceLock<&str> = OnceLock::new();
    FOUND.get_or_init(|| {
        let has_it = |python: &&str| {
            let mut command = Command::new(python);
            command
                .args(["-c", "import google.protobuf"])
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let usual = ["python3", "/usr/bin/python3"].into_iter().find(has_it);
        usual.expect("Python's protobuf library is missing: tests/setup.sh build installs it")
    })
}

/// A directory with what protoc makes of the definitions.
fn definitions() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let option = |name, path: &Path| format!("--{name}={}", path.display());
        run(Command::new("protoc")
            .arg(option("proto_path", &scripts()))
            .arg(option("python_out", dir.path()))
            .arg("perfetto.proto"));
        dir
    });
    made.path()
}

/// What the readers find in both formats.
struct Found {
    perfetto: Value,
    chrome: Value,
}

/// The whole of a recording of `tests/data`, read once.
fn golden(name: &str) -> &'static Found {
    static READ: [OnceLock<Found>; RECORDINGS.len()] =
        [const { OnceLock::new() }; RECORDINGS.len()];
    let number = RECORDINGS.iter().position(|n| *n == name).unwrap();
    READ[number].get_or_init(|| read(&data(&format!("{name}.data")), &[]))
}

fn read(input: &Path, arguments: &[&str]) -> Found {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    fs::write(&trace, export(input, "perfetto", arguments)).unwrap();
    let mut reader = Command::new(python());
    reader
        .arg(scripts().join("perfetto_reader.py"))
        .arg(definitions())
        .arg(&trace);
    let perfetto = run(&mut reader);
    fs::write(&trace, export(input, "chrome", arguments)).unwrap();
    let mut reader = Command::new("python3");
    reader.arg(scripts().join("chrome_reader.py")).arg(&trace);
    let chrome = run(&mut reader);
    Found {
        perfetto: serde_json::from_slice(&perfetto).unwrap(),
        chrome: serde_json::from_slice(&chrome).unwrap(),
    }
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap()
}

fn slices<'v>(found: &'v Value, category: &str) -> Vec<&'v Value> {
    let all = list(found, "slices").iter();
    all.filter(|s| s["cat"] == category).collect()
}

fn length(slice: &Value) -> u64 {
    number(slice, "end") - number(slice, "start")
}

fn report(input: &Path) -> Value {
    let output = gdiag(
        "report",
        input,
        &["--json", "--gaps", "all", "--min-gap", "0ns"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn events(input: &Path) -> Vec<Event> {
    let mut events = Vec::new();
    let mut reader = Reader::open(input).unwrap();
    reader
        .for_each(|event| {
            events.push(event.clone());
            ControlFlow::Continue(())
        })
        .unwrap();
    events
}

#[test]
fn a_timeline_holds_what_the_report_says() {
    for name in RECORDINGS {
        let input = data(&format!("{name}.data"));
        let found = golden(name);
        // Gaps get their causes as `report` without options gives them.
        let usual = gdiag("report", &input, &["--json"]);
        let usual: Value = serde_json::from_slice(&usual.stdout).unwrap();
        let all = report(&input);
        // Those at the ends of a recording that was cut to a moment are shown as far as they are in it.
        let (start, end) = (
            number(&all["recording"], "start_ns"),
            number(&all["recording"], "end_ns"),
        );
        let in_kernels: u64 = (events(&input).iter())
            .filter_map(|event| match event {
                Event::GpuOp(op) if matches!(op.kind, OpKind::Kernel { .. }) => Some(op),
                _ => None,
            })
            .map(|op| op.end.0.min(end).saturating_sub(op.start.0.max(start)))
            .sum();
        for timeline in [&found.perfetto, &found.chrome] {
            let sum: u64 = slices(timeline, "kernel").into_iter().map(length).sum();
            assert_eq!(sum, in_kernels, "{name}");
            let kernels: u64 = list(&usual, "kernels")
                .iter()
                .map(|k| number(k, "count"))
                .sum();
            assert_eq!(slices(timeline, "kernel").len() as u64, kernels, "{name}");

            let gpus = || list(&all, "gpus").iter();
            let gaps: usize = gpus().map(|gpu| list(gpu, "gaps").len()).sum();
            assert_eq!(slices(timeline, "gap").len(), gaps, "{name}");
            let idle: u64 = gpus().map(|gpu| number(gpu, "idle_ns")).sum();
            let sum: u64 = slices(timeline, "gap").into_iter().map(length).sum();
            assert_eq!(sum, idle, "{name}");

            let mut by_cause: BTreeMap<&str, u64> = BTreeMap::new();
            for cause in list(&usual, "gpus")
                .iter()
                .flat_map(|gpu| list(gpu, "causes"))
            {
                *by_cause.entry(cause["id"].as_str().unwrap()).or_default() += number(cause, "ns");
            }
            let mut shown: BTreeMap<&str, u64> = BTreeMap::new();
            for part in slices(timeline, "cause") {
                *shown.entry(part["name"].as_str().unwrap()).or_default() += length(part);
            }
            assert_eq!(shown, by_cause, "{name}");
        }
    }
}

#[test]
fn launches_and_what_they_started_are_connected() {
    for name in RECORDINGS {
        let input = data(&format!("{name}.data"));
        let found = golden(name);
        // A recording that was cut to a moment begins with operations whose calls were before it.
        let start = number(&found.chrome["other"], "start_ns");
        let all = events(&input);
        let calls = all.iter().filter_map(|event| match event {
            Event::ApiCall(call) if call.end.as_u64() > start => Some(call),
            _ => None,
        });
        let before = all
            .iter()
            .filter(|event| matches!(event, Event::ApiCall(call) if call.end.as_u64() <= start));
        let launches: u64 = (list(&report(&input), "threads").iter())
            .map(|t| number(t, "launches"))
            .sum();
        let shown = slices(&found.perfetto, "launch");
        let shown = shown.iter().filter(|s| s["args"]["failed"] != true).count() as u64;
        assert!(
            shown <= launches && launches <= shown + before.count() as u64,
            "{name}"
        );
        assert!(shown <= calls.count() as u64, "{name}");

        let flows = list(&found.perfetto, "flows");
        assert_eq!(
            flows.len() as u64,
            found.chrome["flows"]["launch"].as_u64().unwrap_or(0),
            "{name}"
        );
        for flow in flows {
            let ends: Vec<&str> = flow
                .as_array()
                .unwrap()
                .iter()
                .map(|c| c.as_str().unwrap())
                .collect();
            let (first, rest) = ends.split_first().unwrap();
            assert!(
                ["launch", "copy call", "memset call", "call"].contains(first),
                "{ends:?}"
            );
            let ops = ["kernel", "memcpy", "memset", "graph"];
            assert!(rest.iter().all(|end| ops.contains(end)), "{ends:?}");
        }
        if name != "probed" {
            assert!(flows.len() > 40, "{name}");
        }
    }
}

#[test]
fn both_formats_show_the_same() {
    for name in RECORDINGS {
        let found = golden(name);
        let texts = |timeline: &Value| {
            let all = list(timeline, "slices")
                .iter()
                .chain(list(timeline, "instants"));
            let common = all.filter(|s| !OF_ONE_FORMAT.contains(&s["cat"].as_str().unwrap()));
            let text = |s: &Value| {
                let keys = ["cat", "name", "start", "end", "args"];
                keys.map(|key| s[key].to_string()).join(" ")
            };
            let mut texts: Vec<String> = common.map(text).collect();
            texts.sort_unstable();
            texts
        };
        assert!(texts(&found.perfetto) == texts(&found.chrome), "{name}");
    }
}

/// Of a machine whose switches are all recorded there is nothing else on its CPUs; else what is not recorded
/// is nobody's.
#[test]
fn each_switch_of_the_recording_is_there_and_no_other() {
    for name in RECORDINGS {
        let input = data(&format!("{name}.data"));
        let found = golden(name);
        let mut recorded: BTreeMap<u16, Vec<(u64, u32, u32)>> = BTreeMap::new();
        for event in events(&input) {
            if let Event::Switch(s) = event {
                let of_cpu = recorded.entry(s.cpu.0).or_default();
                of_cpu.push((s.ts.as_u64(), s.prev.0, s.next.0));
            }
        }
        for (cpu, mut switches) in recorded {
            switches.sort_by_key(|s| s.0);
            let shown: Vec<(u64, Option<u64>, u64)> =
                list(&found.perfetto["cpus"], &cpu.to_string())
                    .iter()
                    .map(|s| (number(s, "at"), s["prev"].as_u64(), number(s, "next")))
                    .collect();
            let mut rest = shown.iter();
            for &(at, prev, next) in &switches {
                let this = (at, Some(u64::from(prev)), u64::from(next));
                assert!(
                    rest.any(|s| *s == this),
                    "{name}: CPU {cpu}: {this:?} in {shown:?}"
                );
            }
            // What is added only ever ends or begins a time that is not recorded.
            for &(at, prev, next) in &shown {
                let is_recorded = switches
                    .iter()
                    .any(|&(t, p, n)| (at, prev, next) == (t, Some(p.into()), n.into()));
                assert!(is_recorded || prev.is_none_or(|p| p == 0) || next == 0);
            }
            let fits = switches.windows(2).filter(|w| w[0].2 == w[1].1).count();
            let holes = switches.len() - 1 - fits;
            // The idle CPU before, who had it first, and both ends of each hole, and of what comes last.
            assert!(
                shown.len() <= switches.len() + 2 * holes + 3,
                "{name}: CPU {cpu}"
            );
        }
    }
}

#[test]
fn hostile_names_come_back_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("hostile.data");
    hostile::write(&input);
    let found = read(&input, &[]);
    let kernels = |timeline: &Value| -> Vec<String> {
        let kernels = slices(timeline, "kernel");
        kernels
            .iter()
            .map(|s| s["name"].as_str().unwrap().to_string())
            .collect()
    };
    let names: Vec<String> = hostile::names();
    assert_eq!(kernels(&found.perfetto), names);
    assert_eq!(kernels(&found.chrome), names);
    let comms: Vec<&str> = (list(&found.perfetto["cpus"], "0").iter())
        .map(|s| s["comm"].as_str().unwrap())
        .filter(|comm| *comm != "swapper")
        .collect();
    assert_eq!(comms, names);
    let on_cpu: Vec<String> = (slices(&found.chrome, "cpu").iter())
        .map(|s| s["name"].as_str().unwrap().to_string())
        .collect();
    let expected: Vec<String> = (hostile::FIRST_TID..)
        .zip(&names)
        .map(|(tid, name)| format!("{name} #{tid}"))
        .collect();
    assert_eq!(on_cpu, expected);
}

#[test]
fn a_part_of_the_time_and_of_the_processes() {
    let input = data("loader.data");
    let whole = golden("loader");
    let start = number(&whole.chrome["other"], "start_ns");
    let found = read(&input, &["--from", "50ms", "--to", "120ms"]);
    for timeline in [&found.perfetto, &found.chrome] {
        let all = list(timeline, "slices");
        assert!(all.len() > 100 && all.len() < list(&whole.perfetto, "slices").len());
        for s in all {
            assert!(number(s, "start") >= start + 50_000_000, "{s}");
            assert!(number(s, "end") <= start + 120_000_000, "{s}");
        }
    }
    let pid = slices(&whole.chrome, "kernel").len();
    assert!(pid > 0);
    let nobody = read(&input, &["-p", "4194303"]);
    for category in ["kernel", "launch", "running", "blocked"] {
        assert!(slices(&nobody.chrome, category).is_empty(), "{category}");
    }
    assert_eq!(
        slices(&nobody.chrome, "cpu").len(),
        slices(&whole.chrome, "cpu").len()
    );
    assert_eq!(
        slices(&nobody.chrome, "gap").len(),
        slices(&whole.chrome, "gap").len()
    );
}

#[test]
fn tracks_are_as_approved() {
    let found = golden("engine");
    let mut rows: Vec<(String, u64, u64)> = Vec::new();
    for slice in list(&found.perfetto, "slices") {
        let path: Vec<&str> = list(slice, "track")
            .iter()
            .map(|p| p.as_str().unwrap())
            .collect();
        let row = format!("{} | {}", path.join(" | "), slice["cat"].as_str().unwrap());
        match rows.iter_mut().find(|r| r.0 == row) {
            Some(r) => (r.1, r.2) = (r.1 + 1, r.2 + length(slice)),
            None => rows.push((row, 1, length(slice))),
        }
    }
    let mut text = String::new();
    for (row, count, ns) in rows {
        text.push_str(&format!("{count:>6} {ns:>12} {row}\n"));
    }
    let path = data("engine.tracks");
    if std::env::var_os("GDIAG_BLESS").is_some_and(|v| v == "1") {
        fs::write(&path, &text).unwrap();
        return;
    }
    let approved = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        approved == text,
        "{}: now\n{text}if that is right: make bless",
        path.display()
    );
}

#[test]
fn a_cut_recording_is_exported_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("cut.data");
    let whole = fs::read(data("loader.data")).unwrap();
    fs::write(&input, &whole[..whole.len() / 2]).unwrap();
    let trace = dir.path().join("trace");
    for format in ["perfetto", "chrome"] {
        let arguments = ["--format", format, "-o", trace.to_str().unwrap()];
        let output = gdiag("export", &input, &arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("the file was cut"),
            "{}",
            stderr(&output)
        );
        assert!(fs::metadata(&trace).unwrap().len() > 1_000);
    }
    let file: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    assert!(list(&file["otherData"], "warnings")
        .iter()
        .any(|w| w.as_str().unwrap().contains("was cut")));
}

#[test]
fn what_cannot_be_read_or_written_is_one_line_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    fs::write(&trace, "old").unwrap();
    let o = trace.to_str().unwrap();
    let nothing = dir.path().join("nothing.data");
    let output = gdiag("export", &nothing, &["--format", "chrome", "-o", o]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with("gdiag: "),
        "{}",
        stderr(&output)
    );
    let output = gdiag(
        "export",
        &data("README.md"),
        &["--format", "chrome", "-o", o],
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read(&trace).unwrap(), b"old");

    let input = data("loader.data");
    for (out, problem) in [
        ("/dev/full", "No space left on device"),
        ("/nowhere/trace", "No such file or directory"),
    ] {
        let output = gdiag("export", &input, &["--format", "perfetto", "-o", out]);
        assert_eq!(output.status.code(), Some(1));
        let text = stderr(&output);
        assert!(
            text.starts_with(&format!("gdiag: cannot write '{out}': {problem}")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_new_file_replaces_the_old_one_and_says_where_to_open_it() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let link = dir.path().join("link");
    fs::write(&trace, "old").unwrap();
    std::os::unix::fs::symlink(&trace, &link).unwrap();
    let input = data("loader.data");
    for format in ["perfetto", "chrome"] {
        let arguments = ["--format", format, "-o", link.to_str().unwrap()];
        let output = gdiag("export", &input, &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
        let text = stderr(&output);
        assert!(
            text.contains("wrote ") && text.contains("ui.perfetto.dev"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read(&trace).unwrap() == export(&input, format, &["-o", "-"]));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for format in ["perfetto", "chrome"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["export", "--format", format, "-i"])
            .arg(data("launch.data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut some = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut some).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(0), "")
        );
    }
}

#[test]
fn protobuf_is_not_for_a_terminal() {
    let input = data("loader.data");
    let command = format!(
        "{} export --format perfetto -i {}",
        env!("CARGO_BIN_EXE_gdiag"),
        input.display()
    );
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.starts_with("gdiag: a trace is not for a terminal"),
        "{text}"
    );
}
