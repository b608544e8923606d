//! What NVML says, as of a simulated libnvidia-ml that knows all moods of a driver. Needs `make simgpu`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gdiag::collect::clock::monotonic;
use gdiag::collect::nvml::Nvml;
use gdiag::event::Pid;
use gdiag::facts::GpuFacts;
use gdiag::units::{Bytes, Nanos};

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

const PERIOD: Duration = Duration::from_millis(5);

/// Set in the process that runs a test: its name.
const CASE: &str = "GDIAG_TEST_CASE";
const VALUES: &str = "GDIAG_SIM_NVML";
const LOG: &str = "GDIAG_SIM_NVML_LOG";

/// What is asked of each card in each round.
const ASKED: [&str; 11] = [
    "memory_clock",
    "memory_total",
    "memory_used",
    "memory_utilization",
    "power_limit_mw",
    "power_mw",
    "processes",
    "sm_clock",
    "temperature",
    "throttle",
    "utilization",
];

fn simgpu() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let dir = std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from);
    if dir.join("libnvidia-ml.so.1").exists() {
        return Some(dir);
    }
    let required = std::env::var("GDIAG_REQUIRE")
        .is_ok_and(|list| list.split(',').any(|need| need == "simgpu"));
    assert!(!required, "{} has no libnvidia-ml.so.1", dir.display());
    eprintln!("skipped: needs the simulated GPU (make simgpu)");
    None
}

/// Runs `body` in a process of its own that finds the simulated library, which answers as `values` say. The test
/// of that `name` must be the caller.
fn case(name: &str, cards: u32, values: &str, body: impl FnOnce()) {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        return body();
    }
    let Some(simgpu) = simgpu() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("values"), values).unwrap();
    // One that does not end is a failure too.
    let output = Command::new("timeout")
        .args(["-s", "KILL", "120"])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .env("LD_LIBRARY_PATH", simgpu)
        .env("GDIAG_SIM_DEVICES", cards.to_string())
        .env(VALUES, dir.path().join("values"))
        .env(LOG, dir.path().join("log"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// From now on the library answers so.
fn say(values: &str) {
    let path = PathBuf::from(std::env::var_os(VALUES).unwrap());
    let fresh = path.with_extension("new");
    fs::write(&fresh, values).unwrap();
    // It appears whole.
    fs::rename(&fresh, &path).unwrap();
}

/// How often each value was asked for.
fn asked() -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    let log = fs::read_to_string(std::env::var_os(LOG).unwrap()).unwrap_or_default();
    for line in log.lines() {
        *counts.entry(line.to_string()).or_default() += 1;
    }
    counts
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn facts(nvml: &Nvml, cards: usize) -> Vec<GpuFacts> {
    wait_for("facts", || {
        Some(nvml.facts()).filter(|facts| facts.len() == cards)
    })
}

fn why_none(nvml: &Nvml) -> String {
    wait_for("a reason", || nvml.why_none(monotonic()))
}

/// Without what no two runs have in common.
fn timeless(facts: &GpuFacts) -> GpuFacts {
    GpuFacts {
        at: Nanos::ZERO,
        ..facts.clone()
    }
}

/// What the simulated library says of a card that nobody said anything about.
fn healthy(index: u32) -> GpuFacts {
    GpuFacts {
        index,
        uuid: format!("GPU-67646961-672d-7369-6d75-6c61746564{index:02x}"),
        name: "Simulated H200 (gdiag)".to_string(),
        at: Nanos::ZERO,
        note: None,
        utilization: Some(97),
        memory_utilization: Some(12),
        memory_used: Some(Bytes(2048 << 20)),
        memory_total: Some(Bytes(143_771 << 20)),
        power_watts: Some(212.5),
        power_limit_watts: Some(700.0),
        temperature_celsius: Some(41),
        sm_clock_mhz: Some(1980),
        sm_clock_max_mhz: Some(1980),
        memory_clock_mhz: Some(3201),
        throttle: Some(Vec::new()),
        processes: Some(Vec::new()),
    }
}

#[test]
fn every_value_of_every_card_is_told() {
    let values = "1.utilization = 40\n1.power_mw = 655300\n1.throttle = 0x44";
    case("every_value_of_every_card_is_told", 2, values, || {
        let before = monotonic();
        let nvml = Nvml::start(Some(PERIOD));
        let facts = facts(&nvml, 2);
        assert!(before <= facts[0].at && facts[0].at <= facts[1].at && facts[1].at <= monotonic());
        assert_eq!(timeless(&facts[0]), healthy(0));
        let hot = GpuFacts {
            utilization: Some(40),
            power_watts: Some(655.3),
            throttle: Some(vec!["HW thermal slowdown".into(), "SW power cap".into()]),
            ..healthy(1)
        };
        assert_eq!(timeless(&facts[1]), hot);
        assert_eq!(nvml.why_none(monotonic()), None);
    });
}

#[test]
fn values_are_asked_for_again_and_again_and_each_once_in_a_round() {
    let name = "values_are_asked_for_again_and_again_and_each_once_in_a_round";
    case(name, 2, "", || {
        let nvml = Nvml::start(Some(PERIOD));
        facts(&nvml, 2);
        say("temperature = 77");
        wait_for("77 degrees", || {
            let facts = nvml.facts();
            facts
                .iter()
                .all(|f| f.temperature_celsius == Some(77))
                .then_some(())
        });
        let rounds = nvml.cost().rounds;
        assert!(rounds > 0 && nvml.cost().longest <= nvml.cost().time);
        drop(nvml);
        let mut counts = asked();
        for once in ["init", "driver", "count"] {
            assert_eq!(counts.remove(once), Some(1), "{once}");
        }
        for card in 0..2 {
            for once in ["open", "uuid", "name", "mig", "sm_clock_max"] {
                assert_eq!(counts.remove(&format!("{card}.{once}")), Some(1), "{once}");
            }
            let last = counts.get(&format!("{card}.processes")).copied().unwrap();
            for value in ASKED {
                let count = counts.remove(&format!("{card}.{value}")).unwrap();
                // The round that was under way is not over, or was not counted yet.
                let expected = u64::from(last)..=u64::from(last) + 1;
                assert!(expected.contains(&u64::from(count)), "{value}: {count}");
                assert!(u64::from(count) >= rounds, "{value}: {count} of {rounds}");
            }
        }
        assert!(counts.is_empty(), "asked too: {counts:?}");
    });
}

#[test]
fn a_value_that_is_not_supported_is_not_told_and_all_others_are() {
    let name = "a_value_that_is_not_supported_is_not_told_and_all_others_are";
    case(name, 11, &unsupported(), || {
        let nvml = Nvml::start(Some(PERIOD));
        let facts = facts(&nvml, ASKED.len());
        for (value, facts) in ASKED.iter().zip(&facts) {
            let mut expected = healthy(facts.index);
            match *value {
                "memory_clock" => expected.memory_clock_mhz = None,
                "memory_total" | "memory_used" => {
                    expected.memory_total = None;
                    expected.memory_used = None;
                }
                "memory_utilization" | "utilization" => {
                    expected.utilization = None;
                    expected.memory_utilization = None;
                }
                "power_limit_mw" => expected.power_limit_watts = None,
                "power_mw" => expected.power_watts = None,
                "processes" => expected.processes = None,
                "sm_clock" => expected.sm_clock_mhz = None,
                "temperature" => expected.temperature_celsius = None,
                "throttle" => expected.throttle = None,
                other => panic!("{other}"),
            }
            assert_eq!(timeless(facts), expected, "without {value}");
        }
    });
}

/// On each card another one is missing, for one reason or another.
fn unsupported() -> String {
    let words = ["unsupported", "no-permission"];
    let lines = ASKED.iter().enumerate();
    lines
        .map(|(card, value)| format!("{card}.{value} = {}\n", words[card % 2]))
        .collect()
}

#[test]
fn a_card_in_parts_has_no_utilisation_and_says_so() {
    let name = "a_card_in_parts_has_no_utilisation_and_says_so";
    case(name, 1, "mig = 1\nutilization = unsupported", || {
        let nvml = Nvml::start(Some(PERIOD));
        let expected = GpuFacts {
            note: Some("MIG".to_string()),
            utilization: None,
            memory_utilization: None,
            ..healthy(0)
        };
        assert_eq!(timeless(&facts(&nvml, 1)[0]), expected);
    });
}

#[test]
fn processes_are_those_that_are_known_here() {
    let name = "processes_are_those_that_are_known_here";
    case(name, 1, "", || {
        let own = std::process::id();
        // More than any kernel gives out.
        let nobody = 1 << 23;
        say(&format!("processes = 0:5 {own}:300 {nobody}:7 1"));
        let nvml = Nvml::start(Some(PERIOD));
        let expected = vec![(Pid(own), Some(Bytes(300 << 20))), (Pid(1), None)];
        let expected = gdiag::collect::process::in_first_namespace().then_some(expected);
        assert_eq!(facts(&nvml, 1)[0].processes, expected);
    });
}

#[test]
fn a_card_that_is_lost_keeps_its_name_and_is_not_asked_again() {
    let name = "a_card_that_is_lost_keeps_its_name_and_is_not_asked_again";
    case(name, 2, "", || {
        let nvml = Nvml::start(Some(PERIOD));
        facts(&nvml, 2);
        say("0.* = lost");
        let lost = wait_for("a lost card", || {
            nvml.facts().into_iter().find(|f| f.note.is_some())
        });
        let expected = GpuFacts {
            index: 0,
            uuid: healthy(0).uuid,
            name: healthy(0).name,
            note: Some("lost".to_string()),
            sm_clock_max_mhz: Some(1980),
            ..GpuFacts::default()
        };
        assert_eq!(timeless(&lost), expected);
        let of_lost = |counts: BTreeMap<String, u32>| -> u32 {
            let all = counts.iter().filter(|(key, _)| key.starts_with("0."));
            all.map(|(_, count)| count).sum()
        };
        let (before, rounds) = (of_lost(asked()), nvml.cost().rounds);
        wait_for("more rounds", || {
            (nvml.cost().rounds > rounds + 2).then_some(())
        });
        assert_eq!(of_lost(asked()), before);
        let facts = nvml.facts();
        assert!(facts[0].at > lost.at && facts[0].note == lost.note);
        assert_eq!(timeless(&facts[1]), healthy(1));
    });
}

#[test]
fn a_card_that_cannot_be_opened_is_there_and_takes_nothing_from_the_others() {
    let name = "a_card_that_cannot_be_opened_is_there_and_takes_nothing_from_the_others";
    let values = "0.open = lost\n1.open = no-permission\n2.uuid = reset";
    case(name, 4, values, || {
        let nvml = Nvml::start(Some(PERIOD));
        let facts = facts(&nvml, 4);
        let notes: Vec<_> = facts.iter().map(|f| f.note.as_deref()).collect();
        let rights = Some("no rights to ask the driver");
        assert_eq!(notes, [Some("lost"), rights, Some("needs a reset"), None]);
        for bad in &facts[..3] {
            assert_eq!((bad.utilization, &bad.throttle), (None, &None));
        }
        assert_eq!(timeless(&facts[3]), healthy(3));
    });
}

#[test]
fn a_driver_that_hangs_holds_nobody_up() {
    let name = "a_driver_that_hangs_holds_nobody_up";
    case(name, 2, "1.power_mw = hang", || {
        let nvml = Nvml::start(Some(PERIOD));
        let told = facts(&nvml, 1);
        // The thread is on its way to the second card, where it stays.
        wait_for("a question about it", || {
            asked().contains_key("1.power_mw").then_some(())
        });
        assert_eq!(nvml.facts(), told);
        assert!(!told[0].is_stale(told[0].at));
        assert!(told[0].is_stale(told[0].at + Nanos::from_secs(4)));
        say("");
        let after = facts(&nvml, 2);
        assert_eq!(timeless(&after[1]), healthy(1));
        wait_for("news of the first card", || {
            (nvml.facts()[0].at > told[0].at).then_some(())
        });
        // And for ever: this process ends nevertheless.
        let asked_then = asked()["0.utilization"];
        say("utilization = hang");
        wait_for("a question more", || {
            (asked()["0.utilization"] > asked_then).then_some(())
        });
    });
}

#[test]
fn a_driver_that_never_answers_is_told_as_that() {
    let name = "a_driver_that_never_answers_is_told_as_that";
    case(name, 1, "init = hang", || {
        let start = monotonic();
        let nvml = Nvml::start(Some(PERIOD));
        assert_eq!(nvml.why_none(start), None);
        let later = monotonic() + Nanos::from_secs(4);
        let why = nvml.why_none(later);
        assert_eq!(why.as_deref(), Some("the driver does not answer"));
        assert!(nvml.facts().is_empty());
    });
}

#[test]
fn why_there_is_no_nvml_is_said_once_and_briefly() {
    let name = "why_there_is_no_nvml_is_said_once_and_briefly";
    case(name, 1, "", || {
        let reasons = [
            ("init = not-loaded", "the NVIDIA driver is not loaded"),
            ("init = no-permission", "no rights to ask the driver"),
            (
                "init = mismatch",
                "libnvidia-ml.so.1 and the driver are of different versions",
            ),
            ("count = 0", "the driver knows no GPU"),
        ];
        for (values, reason) in reasons {
            say(values);
            let nvml = Nvml::start(Some(PERIOD));
            assert_eq!(why_none(&nvml), reason);
            assert!(nvml.facts().is_empty());
        }
        // Each was asked once, and not again.
        assert_eq!(asked()["init"], 4);
    });
}

#[test]
fn a_machine_without_the_library_is_told_so() {
    // In a process that does not look where the simulated one is.
    let nvml = Nvml::start(Some(PERIOD));
    let found = wait_for("an answer", || {
        let why = nvml.why_none(monotonic());
        why.map(Err).or_else(|| {
            let facts = nvml.facts();
            (!facts.is_empty()).then_some(Ok(facts))
        })
    });
    match found {
        Ok(facts) => eprintln!("skipped: this machine has {} GPUs", facts.len()),
        Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{why}"),
    }
}
