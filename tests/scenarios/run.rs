//! Records the load with `gdiag record` and reads what `gdiag report` says of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::machine::Machine;

/// A line of the load's truth: for `ns` of the time from `start` to `end` the fault was in effect.
#[derive(Clone, Debug)]
pub struct Truth {
    pub start: u64,
    pub end: u64,
    pub ns: u64,
    pub step: u64,
    pub cause: String,
}

/// A recording of the load.
#[derive(Debug)]
pub struct Run {
    pub truth: Vec<Truth>,
    /// Stays there until the next run of this scenario.
    pub recording: PathBuf,
}

impl Run {
    /// Runs `gdiag record` on the load, under `gpuload hogs`: the hogs are nobody's job.
    pub fn new(machine: &Machine, name: &str, arguments: &[&str], env: &[(&str, &str)]) -> Run {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios");
        std::fs::create_dir_all(&dir).unwrap();
        let recording = dir.join(format!("{name}.data"));
        let truth = dir.join(format!("{name}.truth.json"));
        let output = Command::new(machine.gpuload())
            .args(["hogs", "--", env!("CARGO_BIN_EXE_gdiag"), "record", "-o"])
            .arg(&recording)
            .arg("--")
            .arg(machine.gpuload())
            .arg("--truth")
            .arg(&truth)
            .args(arguments)
            .env("LD_LIBRARY_PATH", &machine.simgpu)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let truth = std::fs::read_to_string(truth).unwrap();
        Run {
            truth: truth.lines().map(read_truth).collect(),
            recording,
        }
    }

    pub fn report(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["report", "-i"])
            .arg(&self.recording)
            .args(arguments)
            .output()
            .unwrap()
    }

    pub fn text(&self) -> String {
        let output = self.report(&[]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Every gap of at least `min_gap`.
    pub fn json(&self, min_gap: &str) -> Value {
        let output = self.report(&["--json", "--gaps", "all", "--min-gap", min_gap]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn read_truth(line: &str) -> Truth {
    let line: Value = serde_json::from_str(line).unwrap();
    let number = |key: &str| line[key].as_u64().unwrap();
    Truth {
        start: number("start_ns"),
        end: number("end_ns"),
        ns: number("ns"),
        step: number("step"),
        cause: line["cause"].as_str().unwrap().to_string(),
    }
}
