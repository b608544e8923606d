//! Faults with a known truth, recorded with real BPF on the simulated GPU and explained.
//!
//! The load writes down by its own clock when each fault was in effect. The score of a scenario is
//! the share of that time, as far as the device was idle in it, that carries the right cause.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

mod cases;
mod gpu;
mod integrity;
mod machine;
mod run;
mod score;
mod table;
mod takeover;

use cases::{Case, AHEAD, AHEAD_EVERY, BASE, CASES, DEVICES, INJECTIONS};
use gpu::Gpu;
use machine::Machine;
use run::Run;
use score::{ratio, Score};
use table::Table;

/// Everything that is wrong is told at the end, with the table.
#[derive(Debug, Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn unless(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(what());
        }
    }

    fn none(self, table: &Table) {
        table.print();
        assert!(self.0.is_empty(), "\n{}", self.0.join("\n"));
    }
}

/// Share of time that a fault without effect may seem to have.
const NOISE: f64 = 0.01;

fn inject(machine: &Machine, case: &Case, every: u32, kind: &str, arguments: &[&str]) -> Run {
    let ms = case.ms.map_or_else(String::new, |ms| format!(":{ms}"));
    let fault = format!("{}{ms}@{every}", case.injection);
    let arguments = [arguments, &["--inject", &fault]].concat();
    let name = format!("{}{kind}", case.injection);
    Run::new(machine, &name, &arguments, &DEVICES)
}

#[test]
fn injected_faults_get_their_cause() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let mut table = Table::default();
    let mut wrong = Wrong::default();
    table.heading("Injected idle time, and the share of it with the right cause");
    for case in &CASES {
        let run = inject(&machine, case, 2, "", &BASE);
        assert!(run.truth.iter().all(|t| t.cause == case.cause));
        // Sums hold for every gap; short ones have their cause from the lead rule alone.
        Gpu::read(&run.json("0ns"), 0, true);
        let gpu = Gpu::read(&run.json("10us"), 0, false);
        let score = Score::of(&gpu, &run.truth, case.cause, case.besides);
        table.row(case.injection, case.cause, &score, &gpu);

        let name = case.injection;
        wrong.unless(score.injections >= 30, || {
            format!(
                "{name}: {} injections of {INJECTIONS} made a gap",
                score.injections
            )
        });
        wrong.unless(score.share() >= case.least, || {
            format!("{name}: {:.3} is right, not {}", score.share(), case.least)
        });
        if case.on_device() {
            // Whoever took the host's CPU: the device had its work in time.
            let host = score.host() + score.ambient_ns();
            wrong.unless(host == 0, || format!("{name}: {host} ns blame the host"));
        }
    }
    wrong.none(&table);
}

#[test]
fn with_work_queued_ahead_nothing_is_blamed() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let mut table = Table::default();
    let mut wrong = Wrong::default();
    table.heading("The same with 30 steps queued ahead: no gap");
    for case in CASES.iter().filter(|case| case.hides) {
        let run = inject(&machine, case, AHEAD_EVERY, "-ahead", &AHEAD);
        let gpu = Gpu::read(&run.json("0ns"), 0, true);
        // What the device takes from one operation to the next is all that there is.
        let score = Score::of(&gpu, &run.truth, case.cause, &["gpu.launch-latency"]);
        table.row(case.injection, case.cause, &score, &gpu);

        let name = case.injection;
        let truth: u64 = run.truth.iter().map(|t| t.ns).sum();
        assert!(truth > 0, "{name}: the fault came");
        let idle = ratio(score.injected, truth);
        wrong.unless(idle <= NOISE, || {
            format!("{name}: idle for {idle:.4} of the fault, with work queued")
        });
        let blamed = gpu.causes.get(case.cause).copied().unwrap_or_default();
        let blamed = ratio(blamed, gpu.window);
        wrong.unless(blamed <= NOISE, || {
            format!("{name}: blamed for {blamed:.4} of the window")
        });
    }
    wrong.none(&table);
}
