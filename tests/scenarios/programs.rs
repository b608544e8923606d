//! The programs that inject faults, and what each can do here.
//!
//! All have the same options: `--list` prints a line of JSON per case, and `--case A,B [--twin] --gaps N
//! --seed N --truth FILE` does those cases, so that one recording holds several. Beside what is
//! recorded run those that belong to nobody's job: `outside -- COMMAND`.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::machine::Machine;

#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    pub command: Vec<OsString>,
    /// Runs a command beside the programs that its cases ask, preempt or are asked by.
    pub outside: Vec<OsString>,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// It has a twin: the same calls where they make no gap.
    pub twin: bool,
    /// What it needs of the environment.
    pub env: Vec<(String, String)>,
    /// Why it cannot be done here.
    pub lacks: Option<String>,
}

impl Program {
    pub fn all(machine: &Machine) -> Vec<Program> {
        let pyload = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pyload/pyload.py");
        let python = vec!["python3".into(), pyload.into()];
        vec![
            Program::new(
                machine,
                "gpuload",
                vec![machine.gpuload().into()],
                "outside",
            ),
            Program::new(machine, "pyload", python, "--outside"),
        ]
    }

    fn new(
        machine: &Machine,
        name: &'static str,
        command: Vec<OsString>,
        outside: &str,
    ) -> Program {
        let output = Command::new(&command[0])
            .args(&command[1..])
            .arg("--list")
            .env("LD_LIBRARY_PATH", &machine.simgpu)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let list = String::from_utf8(output.stdout).unwrap();
        let mut beside = command.clone();
        beside.extend([outside, "--"].map(OsString::from));
        Program {
            name,
            command,
            outside: beside,
            cases: list.lines().map(read_case).collect(),
        }
    }
}

fn read_case(line: &str) -> Case {
    let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let text = |key: &str| value[key].as_str().map(str::to_string);
    let env = value["env"].as_object().into_iter().flatten();
    Case {
        name: text("case").unwrap_or_else(|| panic!("no case: {line}")),
        twin: value["twin"].as_bool().unwrap_or(false),
        env: env
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_string()))
            .collect(),
        lacks: text("lacks"),
    }
}
