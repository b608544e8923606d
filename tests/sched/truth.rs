//! Counts agree to the unit with what the kernel counted, and with what the program itself did.

use std::path::Path;

use serde_json::Value;

use super::{can_record, gdiag, knows, text};

/// Some sandboxes hide from BPF whatever happens while a thread of their init is current: then a count cannot
/// agree, and the next try may.
const TRIES: usize = 5;

/// What the program says, and what gdiag says of its window.
struct Both {
    knows: Value,
    sched: Value,
}

impl Both {
    fn recorded(arguments: &[&str], file: &Path) -> Both {
        let file = file.to_str().unwrap();
        let program = knows().to_str().unwrap();
        let record = [&["record", "-q", "-o", file, "--", program], arguments].concat();
        let output = gdiag(&record);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let knows: Value = serde_json::from_slice(&output.stdout).unwrap();
        let whole = json(&["sched", "-i", file, "--json"]);
        let start = whole["start_ns"].as_u64().unwrap();
        let since = |key: &str| format!("{}ns", knows[key].as_u64().unwrap() - start);
        let (from, to) = (since("start_ns"), since("end_ns"));
        let sched = json(&["sched", "-i", file, "--json", "--from", &from, "--to", &to]);
        Both { knows, sched }
    }

    /// Both sides of each thread of the program.
    fn threads(&self) -> Vec<(&Value, &Value)> {
        let threads = self.knows["threads"].as_array().unwrap().iter();
        threads
            .map(|thread| (thread, find(&self.sched, &thread["tid"])))
            .collect()
    }
}

fn json(arguments: &[&str]) -> Value {
    let output = gdiag(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn find<'a>(sched: &'a Value, tid: &Value) -> &'a Value {
    let threads = sched["threads"].as_array().unwrap();
    let found = threads.iter().find(|t| &t["tid"] == tid);
    found.unwrap_or(&Value::Null)
}

fn off(thread: &Value, reason: &str) -> u64 {
    let off = thread["off"].as_array().map_or(&[][..], Vec::as_slice);
    let found = off.iter().find(|off| off["reason"] == reason);
    found.map_or(0, |off| off["count"].as_u64().unwrap())
}

/// What does not agree.
fn differences(pairs: &[(&str, u64, u64)]) -> Vec<String> {
    let differ = pairs.iter().filter(|(_, a, b)| a != b);
    differ
        .map(|(what, a, b)| format!("{what}: {a} is {b}"))
        .collect()
}

/// Records the program until `check` finds nothing that differs.
fn agrees(arguments: &[&str], check: impl Fn(&Both) -> Vec<String>) {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("knows.data");
    let mut last = Vec::new();
    for _ in 0..TRIES {
        last = check(&Both::recorded(arguments, &file));
        if last.is_empty() {
            return;
        }
        println!("once more: {last:?}");
    }
    panic!("{arguments:?}: {last:?}");
}

/// The switches of each thread, as the kernel counted them, and more that is known of them.
fn switches_agree(both: &Both, more: impl Fn(&Value, &Value) -> Vec<String>) -> Vec<String> {
    let threads = both.threads();
    let differ = threads.iter().flat_map(|(known, found)| {
        let count = |key: &str| found[key].as_u64().unwrap_or(u64::MAX);
        let counted = |key: &str| known["window"][key].as_u64().unwrap();
        let mut all = differences(&[
            ("voluntary", count("voluntary"), counted("voluntary")),
            ("involuntary", count("involuntary"), counted("involuntary")),
        ]);
        all.extend(more(known, found));
        all
    });
    differ.collect()
}

#[test]
fn sleeps_are_counted_to_the_unit() {
    agrees(&["sleep", "100", "500"], |both| {
        switches_agree(both, |_, found| {
            differences(&[
                ("sleeps", off(found, "sleep"), 100),
                ("moves", found["migrations"].as_u64().unwrap(), 0),
            ])
        })
    });
}

#[test]
fn waits_for_a_lock_are_counted_to_the_unit() {
    agrees(&["futex", "1000"], |both| {
        switches_agree(both, |known, found| {
            let voluntary = known["window"]["voluntary"].as_u64().unwrap();
            differences(&[("futex", off(found, "futex"), voluntary)])
        })
    });
}

#[test]
fn yields_are_told_from_preemptions() {
    agrees(&["yield", "1000"], |both| {
        switches_agree(both, |known, found| {
            let involuntary = known["window"]["involuntary"].as_u64().unwrap();
            let yielded = off(found, "yielded");
            let rest = off(found, "preempted") + off(found, "throttled");
            let mut all = differences(&[("all", yielded + rest, involuntary)]);
            // A call that nobody else wanted the CPU after is no switch.
            if yielded == 0 || yielded > 1000 {
                all.push(format!("{yielded} yields"));
            }
            all
        })
    });
}

#[test]
fn moves_are_counted_to_the_unit() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: needs two CPUs");
        return;
    }
    agrees(&["migrate", "50"], |both| {
        switches_agree(both, |known, found| {
            let count = |of: &Value| of["migrations"].as_u64().unwrap();
            differences(&[
                ("migrations", count(found), count(known)),
                ("moves", count(known), 50),
            ])
        })
    });
}

/// The kernel's own times leave out interrupts and what a hypervisor took, and begin a little before the switch is
/// traced: 5 % of what is long, and 30 us of each switch.
fn is_near(found: u64, kernel: u64, switches: u64) -> bool {
    found.abs_diff(kernel) <= kernel / 20 + switches * 30_000
}

#[test]
fn whoever_takes_a_cpu_is_known_and_so_are_the_times() {
    agrees(&["preempt", "400"], |both| {
        let mut differ = switches_agree(both, |known, found| {
            let window = &known["window"];
            let of = |key: &str| window[key].as_u64().unwrap();
            let mut all = Vec::new();
            for key in ["run_ns", "runq_ns"] {
                let found = found[key].as_u64().unwrap();
                if !is_near(found, of(key), of("runs")) {
                    all.push(format!("{key}: {found} is {}", of(key)));
                }
            }
            all
        });
        let threads = both.threads();
        let [(_, found), (hog, _)] = threads.as_slice() else {
            panic!("{:?}", both.knows);
        };
        // Every preemption is somebody's.
        let preemptors = both.sched["preemptors"].as_array().unwrap();
        let victims = preemptors
            .iter()
            .flat_map(|p| p["victims"].as_array().unwrap());
        let of_victim = victims.filter(|v| v["tid"] == found["tid"]);
        let times: u64 = of_victim.map(|v| v["count"].as_u64().unwrap()).sum();
        differ.extend(differences(&[("taken", times, off(found, "preempted"))]));
        let behind = found["behind"].as_array().unwrap();
        let Some(hog) = behind.iter().find(|who| who["tid"] == hog["tid"]) else {
            return vec!["the victim did not wait behind the hog".to_string()];
        };
        let had: u64 = behind.iter().map(|who| who["ns"].as_u64().unwrap()).sum();
        if hog["ns"] == 0 || had > found["runq_ns"].as_u64().unwrap() {
            differ.push(format!("behind: {behind:?}"));
        }
        differ
    });
}

/// What the program says, run under this gdiag.
fn known(arguments: &[&str], program: &[&str]) -> Value {
    let knows = knows().to_str().unwrap();
    let output = gdiag(&[arguments, &["--", knows], program].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The lines of timehist about the sleeper of a run; live, or of a recording.
fn timehist(live: bool, file: &str) -> String {
    const SLEEP: [&str; 3] = ["sleep", "50", "300"];
    if live {
        known(&["sched", "--timehist", "-q", "-w", "-o", file], &SLEEP);
        return std::fs::read_to_string(file).unwrap();
    }
    let known = known(&["record", "-q", "-o", file], &SLEEP);
    let tid = known["threads"][0]["tid"].to_string();
    let output = gdiag(&["sched", "-i", file, "--timehist", "-w", "-t", &tid]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn assert_lines(live: bool) {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out");
    let mut last = Vec::new();
    for _ in 0..TRIES {
        let text = timehist(live, file.to_str().unwrap());
        let count = |what: &[&str]| {
            let has_all = |line: &&str| what.iter().all(|what| line.contains(what));
            text.lines().filter(has_all).count() as u64
        };
        last = differences(&[
            ("sleeps", count(&["]  sleeper[", "-> sleep"]), 50),
            (
                "slept",
                count(&["]  sleeper[", "sleep, woken by timer"]),
                50,
            ),
            ("waits", count(&["]  sleeper[", "-> futex"]), 2),
            ("wakes", count(&["]  timer", "awakened: sleeper["]), 50),
        ]);
        if last.is_empty() {
            return;
        }
        println!("once more: {last:?}");
    }
    panic!("{last:?}");
}

#[test]
fn timehist_of_a_recording_has_a_line_for_each_sleep_and_each_wake() {
    assert_lines(false);
}

#[test]
fn timehist_as_it_happens_has_them_too() {
    assert_lines(true);
}

#[test]
fn system_calls_are_counted_to_the_unit_and_so_are_those_that_failed() {
    if !can_record() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out");
    let file = file.to_str().unwrap();
    let mut last = Vec::new();
    for _ in 0..TRIES {
        let known = known(
            &["syscalls", "-s", "-q", "--json", "-o", file],
            &["calls", "1000"],
        );
        let found: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let caller = &known["threads"][0];
        let found = find(&found, &caller["tid"]);
        let calls = found["calls"].as_array().map_or(&[][..], Vec::as_slice);
        last.clear();
        for call in caller["calls"].as_array().unwrap() {
            let name = call["name"].as_str().unwrap();
            let Some(found) = calls.iter().find(|found| found["name"] == name) else {
                last.push(format!("no {name}"));
                continue;
            };
            let of = |of: &Value, key: &str| of[key].as_u64().unwrap();
            last.extend(differences(&[
                (name, of(found, "count"), of(call, "count")),
                (name, of(found, "errors"), of(call, "errors")),
            ]));
            // The program's clock is read before and after.
            if of(found, "total_ns") > of(call, "ns") || of(found, "max_ns") > of(call, "max_ns") {
                last.push(format!(
                    "{name} took {} of {}",
                    found["total_ns"], call["ns"]
                ));
            }
        }
        if last.is_empty() {
            return;
        }
        println!("once more: {last:?}");
    }
    panic!("{last:?}");
}
