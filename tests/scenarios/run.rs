//! Records a load with `gdiag record` and reads what `gdiag report` says of it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::machine::Machine;

/// A hang is a failure of its own, not one of whoever started the tests.
const LIMIT: [&str; 2] = ["--kill-after=5", "100"];

/// Where recordings stay until the next run of the same scenario.
pub fn scenarios() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A recording of a load.
#[derive(Debug)]
pub struct Run {
    pub recording: PathBuf,
    /// What was injected, a line each.
    pub truth: String,
}

impl Run {
    /// Runs `gdiag record` on the load, and that beside what `outside` starts. Fails as the load does.
    pub fn of(
        machine: &Machine,
        name: &str,
        outside: &[OsString],
        load: &[OsString],
        env: &[(&str, &str)],
    ) -> Result<Run, String> {
        let recording = scenarios().join(format!("{name}.data"));
        let truth = scenarios().join(format!("{name}.truth.jsonl"));
        let output = Command::new("timeout")
            .args(LIMIT)
            .args(outside)
            .args([env!("CARGO_BIN_EXE_gdiag"), "record", "-o"])
            .arg(&recording)
            .arg("--")
            .args(load)
            .arg("--truth")
            .arg(&truth)
            .env("LD_LIBRARY_PATH", &machine.simgpu)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name}: {}\n{said}", output.status));
        }
        let truth = std::fs::read_to_string(truth).unwrap();
        Ok(Run { recording, truth })
    }

    pub fn gpuload(machine: &Machine, name: &str, arguments: &[&str], env: &[(&str, &str)]) -> Run {
        let mut load = vec![machine.gpuload().into()];
        load.extend(arguments.iter().map(OsString::from));
        Run::of(machine, name, &[], &load, env).unwrap()
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
