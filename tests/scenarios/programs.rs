//! The programs that inject faults, and what each can do here.
//!
//! All have the same options: `--list` prints a line of JSON per case, and `--case A,B [--twin] --gaps N
//! --seed N --truth FILE` does those cases, so that one recording holds several.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::machine::Machine;

#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    pub command: Vec<OsString>,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// It has a twin: the same calls where they make no gap.
    pub twin: bool,
    /// Why it cannot be done here.
    pub lacks: Option<String>,
}

impl Program {
    pub fn all(machine: &Machine) -> Vec<Program> {
        let pyload = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pyload/pyload.py");
        let mut programs = vec![Program::new(
            machine,
            "gpuload",
            vec![machine.gpuload().into()],
        )];
        if pyload.exists() {
            programs.push(Program::new(
                machine,
                "pyload",
                vec!["python3".into(), pyload.into()],
            ));
        }
        programs
    }

    fn new(machine: &Machine, name: &'static str, command: Vec<OsString>) -> Program {
        let output = Command::new(&command[0])
            .args(&command[1..])
            .arg("--list")
            .env("LD_LIBRARY_PATH", &machine.simgpu)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let list = String::from_utf8(output.stdout).unwrap();
        Program {
            name,
            command,
            cases: list.lines().map(read_case).collect(),
        }
    }
}

fn read_case(line: &str) -> Case {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let text = |key: &str| value[key].as_str().map(str::to_string);
    Case {
        name: text("case").unwrap_or_else(|| panic!("no case: {line}")),
        twin: value["twin"].as_bool().unwrap_or(false),
        lacks: text("lacks"),
    }
}
