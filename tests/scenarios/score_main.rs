//! Scores recordings made elsewhere, as on a machine with a real GPU: `score DIR...` reads each
//! NAME.report.json (of `gdiag report --json --gaps all`) with its NAME.truth.jsonl, prints the table and
//! fails where a demand is not met. A NAME is PROGRAM-WHATEVER, with `-twin` at its end where the same calls make no gap.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A report that cannot be read is a failed run.

mod gpu;
mod score;
#[allow(dead_code)] // Nothing is recorded again here.
mod suite;
mod table;
mod truth;

use std::process::ExitCode;

use suite::Suite;

fn main() -> ExitCode {
    let mut suite = Suite::default();
    for dir in std::env::args_os().skip(1) {
        let mut paths: Vec<_> = std::fs::read_dir(&dir)
            .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            let file = path.file_name().unwrap().to_string_lossy();
            let Some(name) = file.strip_suffix(".report.json") else {
                continue;
            };
            let report = std::fs::read_to_string(&path).unwrap();
            let report = serde_json::from_str(&report).unwrap();
            let truth = path.with_file_name(format!("{name}.truth.jsonl"));
            let truth = std::fs::read_to_string(&truth)
                .unwrap_or_else(|e| panic!("{}: {e}", truth.display()));
            suite.add(name, &report, &truth);
        }
    }
    if suite.faults.is_empty() && suite.twins.is_empty() {
        println!("usage: score DIR..., with a NAME.report.json and a NAME.truth.jsonl for each recording");
        return ExitCode::from(2);
    }
    println!("{suite}");
    let wrong = suite.wrong();
    for line in &wrong {
        println!("{line}");
    }
    if wrong.is_empty() {
        println!("every demand is met");
    }
    ExitCode::from(u8::from(!wrong.is_empty()))
}
