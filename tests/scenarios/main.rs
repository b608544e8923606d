//! Faults with a known truth, recorded with real BPF on the simulated GPU and explained.
//!
//! The loads write down by their own clock when each fault was in effect. The score of a case is the
//! share of that time, as far as the device was idle in it, that carries the right cause.
//!
//! GDIAG_CASES=A,pyload:B scores these cases only, and GDIAG_SEED=N has the order of an earlier run.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

mod gpu;
mod integrity;
mod machine;
mod programs;
mod run;
mod score;
mod scoring;
mod shuffle;
mod suite;
mod table;
mod takeover;
mod truth;

use std::ffi::OsString;

use machine::Machine;
use programs::{Case, Program};
use run::{scenarios, Run};
use shuffle::Shuffle;
use suite::Suite;

/// Times that each fault is injected.
const INJECTIONS: &str = "32";

/// Cases of one recording.
const TOGETHER: usize = 8;

/// Two devices that share the copy engines, so that one can wait for the other; and contexts that
/// cost something, as real ones do.
const DEVICES: [(&str, &str); 3] = [
    ("GDIAG_SIM_DEVICES", "2"),
    ("GDIAG_SIM_SHARED_COPY", "1"),
    ("GDIAG_SIM_CONTEXT_MS", "2"),
];

/// Where the reports and truths are, for `score` to have a second look.
const SCORED: &str = "scored";

/// What one recording is of.
#[derive(Debug)]
struct Batch<'a> {
    program: &'a Program,
    cases: Vec<&'a str>,
    env: Vec<(&'a str, &'a str)>,
    twin: bool,
    seed: u64,
}

/// As the suite calls a case.
fn key(program: &Program, case: &str) -> String {
    format!("{} {case}", program.name)
}

impl Batch<'_> {
    fn key(&self, case: &str) -> String {
        key(self.program, case)
    }

    fn name(&self, number: usize) -> String {
        let twin = if self.twin { "-twin" } else { "" };
        format!("{SCORED}/{}-{number}{twin}", self.program.name)
    }

    fn record(&self, machine: &Machine, name: &str) -> Result<Run, String> {
        let mut load = self.program.command.clone();
        let (cases, seed) = (self.cases.join(","), self.seed.to_string());
        load.extend(["--case", &cases, "--gaps", INJECTIONS, "--seed", &seed].map(OsString::from));
        if self.twin {
            load.push("--twin".into());
        }
        let mut env = DEVICES.to_vec();
        env.extend(&self.env);
        Run::of(machine, name, &self.program.outside, &load, &env)
    }
}

/// What the case needs beyond what all have.
fn own_env(case: &Case) -> Vec<(&str, &str)> {
    let env = case.env.iter().map(|(name, value)| (&**name, &**value));
    env.filter(|pair| !DEVICES.contains(pair)).collect()
}

/// Those that this machine can do.
fn cases(programs: &[Program]) -> impl Iterator<Item = (&Program, &Case)> {
    let cases = programs.iter().flat_map(|program| {
        let cases = program.cases.iter();
        cases.map(move |case| (program, case))
    });
    cases.filter(|(_, case)| case.lacks.is_none())
}

/// Does GDIAG_CASES ask for this case, or for all?
fn asked_for(program: &Program, case: &Case) -> bool {
    let both = format!("{}:{}", program.name, case.name);
    let only = std::env::var("GDIAG_CASES").ok();
    only.is_none_or(|only| {
        only.split(',')
            .any(|name| name == case.name || name == both)
    })
}

/// The wanted cases and twins of all programs, some to a recording, in random order.
fn plan<'a>(
    programs: &'a [Program],
    shuffle: &mut Shuffle,
    wanted: impl Fn(&Program, &Case, bool) -> bool,
) -> Vec<Batch<'a>> {
    let mut plan = Vec::new();
    for program in programs {
        for twin in [false, true] {
            let cases = program.cases.iter();
            let mut cases: Vec<&Case> = cases
                .filter(|case| case.lacks.is_none() && (!twin || case.twin))
                .filter(|case| asked_for(program, case) && wanted(program, case, twin))
                .collect();
            shuffle.list(&mut cases);
            cases.sort_by_key(|case| own_env(case));
            for same in cases.chunk_by(|a, b| own_env(a) == own_env(b)) {
                plan.extend(same.chunks(TOGETHER).map(|some| Batch {
                    program,
                    cases: some.iter().map(|case| &*case.name).collect(),
                    env: own_env(some[0]),
                    twin,
                    seed: shuffle.next(),
                }));
            }
        }
    }
    shuffle.list(&mut plan);
    plan
}

/// Records these cases, and scores them anew.
fn score(suite: &mut Suite, machine: &Machine, batch: &Batch<'_>, name: &str) {
    println!("{name}: {}", batch.cases.join(", "));
    for case in &batch.cases {
        suite.forget(&batch.key(case), batch.twin);
    }
    match batch.record(machine, name) {
        Ok(run) => {
            let report = run.json("10us");
            let path = scenarios().join(format!("{name}.report.json"));
            std::fs::write(path, report.to_string()).unwrap();
            suite.add(name, &report, &run.truth);
        }
        Err(why) => println!("{why}"),
    }
}

/// A case that misses a demand is recorded so many times again, and the last time counts: whatever else
/// this machine did may have been in its way. What is wrong with gdiag is wrong each time.
const AGAIN: usize = 2;

#[test]
fn injected_faults_get_their_cause_and_their_twins_do_not() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let (mut shuffle, seed) = Shuffle::new();
    println!("GDIAG_SEED={seed}");
    let programs = Program::all(&machine);
    for (program, case) in programs
        .iter()
        .flat_map(|p| p.cases.iter().map(move |c| (p, c)))
    {
        if let Some(lacks) = &case.lacks {
            println!("skipped: {} {}: {lacks}", program.name, case.name);
        }
    }
    let scored = scenarios().join(SCORED);
    let _ = std::fs::remove_dir_all(&scored);
    std::fs::create_dir_all(&scored).unwrap();
    let mut suite = Suite::default();
    let mut number = 0;
    for round in 0..=AGAIN {
        let batches = plan(&programs, &mut shuffle, |program, case, twin| {
            let wrong = suite.wrong_with(&key(program, &case.name), twin);
            if round > 0 && !wrong.is_empty() {
                println!("again, as {}", wrong.join("; "));
            }
            !wrong.is_empty()
        });
        assert!(
            round > 0 || !batches.is_empty(),
            "GDIAG_CASES names no case"
        );
        for batch in &batches {
            let name = batch.name(number);
            score(&mut suite, &machine, batch, &name);
            number += 1;
        }
    }
    println!("{suite}");
    let mut wrong = suite.wrong();
    for (program, case) in cases(&programs).filter(|(program, case)| asked_for(program, case)) {
        let key = key(program, &case.name);
        let kinds = [(&suite.faults, true), (&suite.twins, case.twin)];
        if kinds
            .iter()
            .any(|(kind, due)| *due && !kind.contains_key(&key))
        {
            wrong.push(format!("{key}: not recorded"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
