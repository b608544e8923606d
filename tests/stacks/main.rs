//! Programs that know their own call chains, recorded: the stacks are theirs, and so are the times.
//!
//! `make stacks` prints how whole they are, and examples of what was wrong. GDIAG_STACKS_PYTHON names more
//! interpreters, separated by colons; GDIAG_STACKS_SECONDS is how long each program runs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

mod compare;
mod names;
mod program;
mod recording;
mod score;
mod truth;

use std::fmt::Write as _;

use program::Program;
use recording::Recording;
use score::Score;

/// What gdiag promises.
const COMPLETE: f64 = 0.99;
const EQUAL: f64 = 0.99;
const TIME: f64 = 0.02;

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn scored(program: &Program) -> Score {
    let run = program.record();
    let recording = Recording::read(&run.recording);
    let phases = truth::read(&run.truth);
    let score = Score::of(&recording, &phases);
    let mut text = format!(
        "\n{:<24}{:>8} samples, {:>9} complete, {:>9} equal, running {:>7.0} ms {:>+7.2} %, waiting {:>7.0} ms {:>+7.2} % ({} of {} untold), lost {}, {} kB\n",
        program.name,
        score.all.samples,
        percent(score.all.complete_share()),
        percent(score.all.equal_share()),
        score.running.known as f64 / 1e6,
        score.running.error() * 100.0,
        score.waiting.known as f64 / 1e6,
        score.waiting.error() * 100.0,
        score.untold,
        score.waits,
        recording.lost,
        recording.size / 1000,
    );
    for (cut, (times, last)) in &score.cuts {
        let last = *last as f64 / 1e6;
        writeln!(text, "  cut, {cut}: {times}, the last after {last:.0} ms").unwrap();
    }
    for (phase, tally) in &score.by_phase {
        if tally.complete < tally.samples || tally.equal < tally.samples {
            writeln!(
                text,
                "  {phase}: of {} samples {} complete, {} equal",
                tally.samples, tally.complete, tally.equal
            )
            .unwrap();
        }
    }
    for example in &score.examples {
        writeln!(text, "  {example}").unwrap();
    }
    println!("{text}");
    score
}

fn check(program: &Program) {
    let wrong = wrong_with(program);
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn wrong_with(program: &Program) -> Vec<String> {
    let score = scored(program);
    let name = &program.name;
    let mut wrong = Vec::new();
    let mut unless = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{name}: {what}"));
        }
    };
    unless(
        score.all.samples >= 200,
        format!("{} samples", score.all.samples),
    );
    unless(
        score.all.complete_share() >= COMPLETE,
        format!("{} complete", percent(score.all.complete_share())),
    );
    unless(
        score.all.equal_share() >= EQUAL,
        format!("{} equal", percent(score.all.equal_share())),
    );
    for (phase, tally) in &score.by_phase {
        unless(tally.samples > 0, format!("no samples of {phase}"));
    }
    unless(
        score.untold * 5 <= score.waits,
        format!("no end of {} waits of {}", score.untold, score.waits),
    );
    for (what, times) in [("running", score.running), ("waiting", score.waiting)] {
        unless(
            times.error().abs() <= TIME,
            format!(
                "{what}: {} ns by samples, {} known",
                times.sampled, times.known
            ),
        );
    }
    wrong
}

#[test]
fn stacks_of_c_are_the_known_chains() {
    if let Some(program) = Program::built("chains-c") {
        check(&program);
    }
}

#[test]
fn stacks_of_cpp_are_the_known_chains() {
    if let Some(program) = Program::built("chains-cc") {
        check(&program);
    }
}

#[test]
fn stacks_of_rust_are_the_known_chains() {
    if let Some(program) = Program::built("chains-rs") {
        check(&program);
    }
}

#[test]
fn stacks_of_python_are_the_known_chains() {
    let wrong: Vec<String> = Program::pythons().iter().flat_map(wrong_with).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
