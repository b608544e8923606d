//! Another tool takes CUPTI over in the middle of a recording, as torch.profiler does.
//!
//! Neither launches nor operations are recorded then. That must not look like a host that does nothing.

use crate::gpu::Gpu;
use crate::machine::Machine;
use crate::run::Run;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn record(machine: &Machine, name: &str, seconds: &str, env: &[(&str, &str)]) -> Run {
    let load = ["--seconds", seconds, "--inject", "sleep@10"];
    Run::gpuload(machine, name, &load, env)
}

#[test]
fn a_time_that_another_tool_recorded_has_no_cause_and_recording_goes_on_after_it() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let (at, held) = (2 * SECOND, 3 * SECOND / 2);
    let env = [
        ("GDIAG_SIM_CUPTI_TAKEOVER_MS", "2000"),
        ("GDIAG_SIM_CUPTI_TAKEOVER_FOR_MS", "1500"),
    ];
    let run = record(&machine, "takeover", "6", &env);
    let report = run.json("0ns");
    let gpu = Gpu::read(&report, 0, true);

    // The load makes no gap of this length.
    let mut holes = gpu.gaps.iter().filter(|gap| gap.end - gap.start > SECOND);
    let hole = holes.next().unwrap();
    assert!(holes.next().is_none());
    let begin = gpu.gaps[0].start;
    assert!(hole.start < begin + at + SECOND / 10, "{hole:?} {begin}");
    assert!(hole.end - hole.start > held, "{hole:?}");
    let causes = hole.parts.iter().map(|part| part.cause.as_str());
    assert_eq!(causes.collect::<Vec<_>>(), ["unknown.measurement"]);
    // Nor does anything else have none.
    assert!(gpu.causes["unknown.measurement"] < hole.end - hole.start + 100 * MS);
    let known = |part: &&crate::gpu::Part| part.cause == "host.sleep";
    let sleeps = |from, to| gpu.parts_in(from, to).any(|part| known(&&part));
    assert!(sleeps(begin, hole.start) && sleeps(hole.end, u64::MAX));

    let text = run.text();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = words
        .split_once("another tool has taken CUPTI over, as torch.profiler does when it starts: no GPU records from ")
        .unwrap_or_else(|| panic!("{text}"));
    assert!(said.1.contains(" s of the recording ("), "{text}");
}

/// The process ends before the silence would have been long enough to be noticed.
#[test]
fn a_takeover_at_the_end_is_said() {
    let Some(machine) = Machine::ready() else {
        return;
    };
    let env = [("GDIAG_SIM_CUPTI_TAKEOVER_MS", "900")];
    let run = record(&machine, "takeover-end", "1", &env);
    let report = run.json("0ns");
    // What CUPTI had not handed over yet is the other tool's: that may be all of it.
    match Gpu::read_all(&report).as_slice() {
        [] => assert!(report["gpus"][0]["window_ns"].is_null()),
        [gpu] => assert!(gpu.window < SECOND, "it ends with the last that is known"),
        more => panic!("{more:?}"),
    }
    let text = run.text();
    assert!(text.contains("another tool has taken CUPTI over"), "{text}");
}
