//! Python frames of real interpreters, read in BPF at the event. Needs root.
//!
//! tests/stacks/chains.py spends its time below known chains of calls, and says what they are by
//! the interpreter's own account; tests/stacks/collect.py says when it collects garbage. Each version that tests/stacks/pythons.sh finds on this machine
//! is tested; others are skipped, whatever GDIAG_REQUIRE says.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{mpsc, Mutex, PoisonError};
use std::time::Duration;

use gdiag::collect::bpf::{self, Bpf};
use gdiag::collect::clock;
use gdiag::collect::maps::{self, AddressSpaces, FileId, Place};
use gdiag::collect::python::{Interpreter, Minor, Part};
use gdiag::collect::stacks::{self, Stacks};
use gdiag::collect::tables::{Made, TableMaker};
use gdiag::decode::python::{merge, Code, Merged, Side};
use gdiag::decode::stacks::{PyAddress, RawSample, UserAddress};
use gdiag::event::{Pid, SampleKind};
use gdiag::units::Nanos;
use serde_json::Value;

/// CPU time that each case takes, and how often a stack is taken in it.
const SECONDS: &str = "0.05";
const FREQUENCY: u32 = 997;
/// `GDIAG_PY_DEPTH_MAX`: the outermost frames of deeper stacks are left out.
const MOST_FRAMES: usize = 128;

fn can_record() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
        && Path::new("/sys/kernel/btf/vmlinux").exists()
}

/// The commands that run this version.
fn commands(version: &str) -> Vec<Vec<String>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stacks/pythons.sh");
    let output = Command::new(script).arg("list").output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .filter(|words| words[0] == version)
        .map(|words| words[1..].to_vec())
        .collect()
}

/// A frame: function, file and line.
type Line = (String, String, u32);

/// The program under test, killed when it is still there at the end.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is mapped in the process, when the kernel side has been told of all of it.
struct Told {
    spaces: AddressSpaces,
    interpreter: Interpreter,
    /// The interpreter's.
    file: FileId,
}

fn tell(stacks: &mut Stacks, pid: u32) -> Told {
    let mut spaces = AddressSpaces::new(maps::Options::default()).unwrap();
    let mut tables = TableMaker::start().unwrap();
    spaces.add(Pid(pid), pid);
    while !spaces.poll(clock::monotonic()) || spaces.waiting() > 0 {
        std::thread::yield_now();
    }
    let mappings = spaces.mappings(Pid(pid)).unwrap();
    let files: HashSet<FileId> = mappings.iter().filter_map(|m| m.file).collect();
    for file in files {
        let elf = spaces.files().elf(file).unwrap();
        let path = spaces.files().path(file).to_owned();
        tables.ask(file, elf, &path);
    }
    let mut found = None;
    while tables.pending > 0 {
        let Some(made) = tables.take() else {
            std::thread::yield_now();
            continue;
        };
        match made {
            Made::Table { file, table, rules } => {
                stacks.add_rules(&rules);
                stacks.add_table(file, &table.unwrap()).unwrap().unwrap();
            }
            Made::Interpreter { file, found: one } => {
                found = found.or(one.map(|interpreter| (*interpreter, file)));
            }
        }
    }
    let (interpreter, file) = found.unwrap_or_else(|| panic!("no interpreter in {mappings:?}"));
    let mapping = mappings.iter().find(|m| m.file == Some(file)).unwrap();
    stacks
        .set_python(Pid(pid), file, &interpreter, mapping.bias)
        .unwrap();
    let generation = spaces.generation(Pid(pid));
    stacks.set_maps(Pid(pid), generation, &mappings).unwrap();
    assert_eq!(stacks.commit(), []);
    Told {
        spaces,
        interpreter,
        file,
    }
}

struct Run {
    samples: Vec<RawSample>,
    codes: HashMap<u64, Vec<(usize, Code)>>,
    told: Told,
    /// What the program said of itself.
    notes: Vec<Value>,
}

/// By case: thread, and the callers of the function that spends the time.
type Cases = BTreeMap<String, Vec<(u32, Vec<Line>)>>;

fn cases(notes: &[Value]) -> Cases {
    let mut cases = Cases::new();
    for note in notes {
        let callers = note["callers"].as_array().unwrap().iter();
        let callers = callers
            .map(|c| {
                let text = |i: usize| c[i].as_str().unwrap().to_owned();
                (text(0), text(1), c[2].as_u64().unwrap() as u32)
            })
            .collect();
        cases
            .entry(note["case"].as_str().unwrap().to_owned())
            .or_default()
            .push((note["thread"].as_u64().unwrap() as u32, callers));
    }
    cases
}

/// Runs one of the scripts in tests/stacks, and takes stacks meanwhile.
fn run(command: &[String], script: &str) -> Run {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stacks/");
    let mut program = Program(
        Command::new(&command[0])
            .args(&command[1..])
            .args([&format!("{directory}{script}"), SECONDS])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut output = BufReader::new(program.0.stdout.take().unwrap());
    let mut ready = String::new();
    output.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");

    let pid = program.0.id();
    let records = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&records);
    let plan = bpf::Plan {
        targets: vec![pid],
        ..plan()
    };
    let mut bpf = Bpf::start(&plan, move |bytes| sink.borrow_mut().push(bytes.to_vec())).unwrap();
    let plan = stacks::Plan {
        frequency: FREQUENCY,
        launch_one_in: 0,
    };
    let mut stacks = Stacks::start(&plan, &bpf).unwrap();
    let told = tell(&mut stacks, pid);

    program.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in output.lines() {
            sender.send(line.unwrap()).unwrap();
        }
    });
    let mut notes = Vec::new();
    loop {
        bpf.read().unwrap();
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => notes.push(serde_json::from_str(&line).unwrap()),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    reader.join().unwrap();
    assert!(program.0.wait().unwrap().success());
    bpf.read().unwrap();
    let costs = stacks.costs().unwrap();
    eprintln!("{} ns a sample", costs.time.0 / costs.samples.max(1));

    let mut samples = Vec::new();
    let mut codes: HashMap<u64, Vec<_>> = HashMap::new();
    for bytes in records.borrow().iter() {
        // Their types: GDIAG_REC_SAMPLE and GDIAG_REC_PYCODE.
        match u32::from_ne_bytes(bytes[..4].try_into().unwrap()) {
            8 => samples.push(RawSample::of(bytes).unwrap()),
            9 => {
                let (_, address, code) = Code::read(bytes).unwrap();
                codes
                    .entry(address)
                    .or_default()
                    .push((samples.len(), code));
            }
            _ => {}
        }
    }
    Run {
        samples,
        codes,
        told,
        notes,
    }
}

fn plan() -> bpf::Plan {
    bpf::Plan {
        all: false,
        targets: Vec::new(),
        cgroups: Vec::new(),
        strangers: Vec::new(),
        scheduling: true,
        syscalls: None,
        wait_threshold: Nanos(u64::MAX),
        inject: false,
        libbpf_messages: false,
        stacks: None,
    }
}

impl Run {
    /// The Python frames of a sample, leaf first.
    fn frames(&self, index: usize) -> Vec<Line> {
        let frame = |f: &PyAddress| {
            let told = self.codes.get(&f.code).map_or(&[][..], Vec::as_slice);
            // What was told last before the sample, which may have come through another ring.
            let code = (told.iter().rev().find(|(at, _)| *at <= index)).or_else(|| told.first());
            let (_, code) = code.expect("each code object was told of");
            let line = code.line(self.told.interpreter.lines, f.instr);
            (code.function.clone(), code.file.clone(), line)
        };
        self.samples[index].python.iter().map(frame).collect()
    }

    /// The native and the Python frames of a sample in one.
    fn merged(&self, sample: &RawSample) -> Merged {
        let part = |address: &UserAddress| {
            let pc = address.inside();
            match self.told.spaces.find_in(sample.pid, pc, sample.generation) {
                Place::File(at) if at.file == self.told.file => {
                    self.told.interpreter.part(at.address)
                }
                Place::File(_) | Place::Anonymous | Place::NotYet | Place::Unmapped => Part::Other,
            }
        };
        let parts: Vec<Part> = sample.user.iter().map(part).collect();
        let entries: Vec<bool> = sample.python.iter().map(|f| f.entry).collect();
        let native = Side {
            frames: &parts,
            whole: sample.cut.is_none(),
        };
        let python = Side {
            frames: &entries,
            whole: sample.python_whole,
        };
        merge(native, python)
    }
}

/// One at a time: each takes a whole CPU.
static ALONE: Mutex<()> = Mutex::new(());

fn check(version: &str, minor: u8) {
    if !can_record() {
        eprintln!("skipped: needs root and BTF");
        return;
    }
    let commands = commands(version);
    if commands.is_empty() {
        eprintln!("skipped: no Python {version}; tests/stacks/pythons.sh fetches what there is");
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for command in commands {
        let run = run(&command, "chains.py");
        assert_eq!(run.told.interpreter.version, Minor(minor));
        check_run(&command.join(" "), &run);
    }
}

fn check_run(name: &str, run: &Run) {
    let stacks: Vec<Vec<Line>> = (0..run.samples.len()).map(|i| run.frames(i)).collect();
    let spins = |stack: &Vec<Line>| stack.first().is_some_and(|(name, _, _)| name == "spin");
    let first = stacks.iter().position(spins).unwrap();
    let last = stacks.iter().rposition(spins).unwrap();
    let cases = cases(&run.notes);
    let mut seen: BTreeMap<&str, u32> = cases.keys().map(|k| (k.as_str(), 0)).collect();
    let (mut wrong, mut holders) = (Vec::new(), 0u32);
    let (mut whole, mut exact) = (0u32, 0u32);
    for (sample, stack) in (run.samples.iter().zip(&stacks)).take(last + 1).skip(first) {
        let case = cases.iter().find(|(_, threads)| {
            threads.iter().any(|(thread, callers)| {
                *thread == sample.tid.0 && spins(stack) && same(&stack[1..], callers)
            })
        });
        match case {
            Some((case, _)) => *seen.get_mut(case.as_str()).unwrap() += 1,
            None => wrong.push((sample, stack)),
        }
        if sample.cut.is_none() && sample.python_whole {
            whole += 1;
            exact += u32::from(run.merged(sample).exact);
        }
        holders += u32::from(sample.gil_holder == Some(sample.tid.0));
    }
    let right: u32 = seen.values().sum();
    let cpu = last + 1 - first;
    eprintln!(
        "{name}: {right} of {cpu} right, {exact} of {whole} merged, lock known {holders}, codes {}",
        run.codes.len()
    );
    if let Some((sample, stack)) = wrong.first() {
        eprintln!("first wrong: {:?} {:?}", sample.python.len(), stack);
    }
    assert!(f64::from(right) >= 0.99 * cpu as f64, "{right} of {cpu}");
    // All but those deeper than is looked at.
    assert!(f64::from(whole) >= 0.9 * cpu as f64, "{whole} of {cpu}");
    assert!(
        f64::from(exact) >= 0.99 * f64::from(whole),
        "{exact} of {whole}"
    );
    for (case, count) in seen {
        assert!(count >= 20, "{case} was seen only {count} times");
    }
    // Who runs Python has the lock, and from 3.11 on the interpreter knows its tid.
    if run.told.interpreter.version >= Minor(11) {
        assert!(f64::from(holders) >= 0.99 * cpu as f64);
    } else {
        assert_eq!(holders, 0);
    }
}

/// The command for a copy of the interpreter, below `to`, in which nothing has a name but what others link to;
/// `None` where it cannot be made.
fn stripped(command: &[String], version: &str, to: &Path) -> Option<Vec<String>> {
    let [program] = command else {
        return None;
    };
    let program = fs::canonicalize(program).unwrap();
    let prefix = program.parent()?.parent()?;
    let library = format!("libpython{version}.so.1.0");
    let shared = prefix.join("lib").join(&library);
    let copy = to.join(format!("python{version}"));
    for (from, to) in [(&program, &copy), (&shared, &to.join(&library))] {
        if !from.exists() {
            continue;
        }
        let strip = Command::new("strip").arg("-o").arg(to).arg(from).status();
        if !strip.is_ok_and(|status| status.success()) {
            return None;
        }
    }
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    Some(vec![
        "env".to_owned(),
        format!("PYTHONHOME={}", text(prefix)),
        format!("LD_LIBRARY_PATH={}", text(to)),
        text(&copy),
    ])
}

fn check_collector(version: &str) {
    if !can_record() {
        eprintln!("skipped: needs root and BTF");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for command in commands(version) {
        check_collections(&command.join(" "), &run(&command, "collect.py"));
        let directory = tempfile::tempdir().unwrap();
        let Some(command) = stripped(&command, version, directory.path()) else {
            eprintln!("skipped: no stripped copy of {}", command.join(" "));
            continue;
        };
        check_collections(&command.join(" "), &run(&command, "collect.py"));
    }
}

fn check_collections(name: &str, run: &Run) {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for note in &run.notes {
        let number = |key: &str| note[key].as_u64().unwrap();
        let within = |s: &&RawSample| {
            matches!(s.kind, SampleKind::Cpu { .. })
                && u64::from(s.tid.0) == number("thread")
                && (number("start")..number("end")).contains(&s.ts.0)
        };
        let count = counts.entry(note["what"].as_str().unwrap()).or_default();
        for sample in run.samples.iter().filter(within) {
            count.0 += usize::from(sample.collects);
            count.1 += 1;
        }
    }
    eprintln!("{name}: collect, of all samples: {counts:?}");
    for what in ["collect", "finalizer"] {
        let (collect, all) = counts[what];
        assert!(all >= 50, "{what}: only {all} samples");
        assert!(collect * 100 >= all * 95, "{what}: {collect} of {all}");
    }
    for what in ["compute", "other"] {
        let (collect, all) = counts[what];
        assert!(all >= 50, "{what}: only {all} samples");
        assert_eq!(collect, 0, "{what}, of {all}");
    }
}

/// Whether the frames are these, or as many of them as are looked at.
fn same(frames: &[Line], callers: &[Line]) -> bool {
    let seen = callers.len().min(MOST_FRAMES - 1);
    frames == &callers[..seen]
}

#[test]
fn python_3_8() {
    check("3.8", 8);
}

#[test]
fn python_3_9() {
    check("3.9", 9);
}

#[test]
fn python_3_10() {
    check("3.10", 10);
}

#[test]
fn python_3_11() {
    check("3.11", 11);
}

#[test]
fn python_3_12() {
    check("3.12", 12);
}

#[test]
fn python_3_13() {
    check("3.13", 13);
}

#[test]
fn python_3_14() {
    check("3.14", 14);
}

#[test]
fn python_3_8_collects() {
    check_collector("3.8");
}

#[test]
fn python_3_9_collects() {
    check_collector("3.9");
}

#[test]
fn python_3_10_collects() {
    check_collector("3.10");
}

#[test]
fn python_3_11_collects() {
    check_collector("3.11");
}

#[test]
fn python_3_12_collects() {
    check_collector("3.12");
}

#[test]
fn python_3_13_collects() {
    check_collector("3.13");
}

#[test]
fn python_3_14_collects() {
    check_collector("3.14");
}
