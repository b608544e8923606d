//! gdiag puts its library into processes that run already: whatever they are doing, and whatever
//! becomes of gdiag meanwhile, they must not notice.
//!
//! The targets check themselves (tests/programs/victim): that every wait ends when and as it must,
//! with all registers as they were. Needs root, BTF and `make simgpu`. `GDIAG_ROUNDS=200` gives the
//! figures; GDIAG is another gdiag than the one just built, such as a release build.
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

mod figures;
mod odd;
mod support;
mod victim;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use figures::{held_us, Figures};
use support::{
    becomes_true, can_run, killer, machine, now_ns, operations, pass, recorder, report, rounds,
    threads, Random, Recording, Running,
};
use victim::{waiting, ways, Expected, Kind, Victim, KINDS};

/// Targets that are recorded together, to save time.
const TOGETHER: usize = 6;

type Table = BTreeMap<String, Figures>;

fn of<'a>(table: &'a mut Table, name: &str) -> &'a mut Figures {
    table.entry(name.to_string()).or_default()
}

fn pids(victims: &[(Kind, Victim)]) -> String {
    let pids: Vec<_> = victims.iter().map(|(_, v)| v.pid.to_string()).collect();
    pids.join(",")
}

fn start<'a>(kinds: &[Kind<'a>], dir: &Path) -> Vec<(Kind<'a>, Victim)> {
    let mut victims: Vec<_> = kinds.iter().map(|k| (*k, Victim::start(k, dir))).collect();
    for (_, victim) in &mut victims {
        victim.settle();
    }
    victims
}

/// Records until so long after the last injection, as a person would that sees it.
fn record(victims: &[(Kind, Victim)], file: &Path, dir: &Path, time: Duration) -> Recording {
    let mut gdiag = Running::start(&mut recorder(file, &["-p", &pids(victims)]), dir);
    becomes_true(support::DEADLINE / 2, || {
        let mut each = victims.iter();
        !gdiag.is_running()
            || each.all(|(kind, victim)| match kind.expected {
                Expected::Operations => victim.is_recorded(),
                Expected::Library => victim.has_library(),
                Expected::Anything => true,
            })
    });
    pass(time);
    gdiag.signal(libc::SIGINT);
    gdiag.end()
}

/// All of them end, and say how it was.
fn finish(victims: Vec<(Kind, Victim)>, round: usize, table: &mut Table) {
    let mut victims = victims;
    for (_, victim) in &mut victims {
        victim.finish();
    }
    for (kind, victim) in victims {
        let figures = of(table, kind.name);
        figures.rounds += 1;
        match victim.end() {
            Ok(verdict) => figures.failures.extend(
                verdict
                    .failures
                    .iter()
                    .map(|f| format!("round {round}: {f}")),
            ),
            Err(why) if why.starts_with("hangs") => {
                figures.hangs.push(format!("round {round}: {why}"));
            }
            Err(why) => figures.crashes.push(format!("round {round}: {why}")),
        }
    }
}

/// Whether any of its threads is held, and whether it goes on.
fn look(victims: &mut [(Kind, Victim)], round: usize, table: &mut Table) {
    for (kind, victim) in victims {
        let figures = of(table, kind.name);
        let held = victim.held();
        figures
            .held
            .extend(held.iter().map(|t| format!("round {round}: {t}")));
        if victim.lives() && !victim.steps_on() {
            figures.hangs.push(format!("round {round}: no more steps"));
        }
    }
}

/// A recording that ended as it should has GPU operations of every target that allows it.
fn judge(
    recording: &Recording,
    file: &Path,
    victims: &[(Kind, Victim)],
    round: usize,
    table: &mut Table,
) {
    let found = operations(file);
    let held = held_us(&recording.said);
    for (kind, victim) in victims {
        let figures = of(table, kind.name);
        let mut complain = |what: String| {
            let said: Vec<_> = recording
                .said
                .lines()
                .filter(|line| line.contains("warning"))
                .collect();
            let said = said.join(" | ");
            figures
                .complaints
                .push(format!("round {round}: {what}: {said}"));
        };
        if recording.status != Some(0) {
            complain(format!("status {:?}", recording.status));
        }
        match &found {
            Err(e) => complain(e.clone()),
            Ok(found) => match kind.expected {
                Expected::Operations if !found.contains_key(&victim.pid) => {
                    complain(format!("no GPU operations of {}", victim.pid));
                }
                Expected::Library if !victim.has_library() => {
                    complain(format!("no library in {}", victim.pid));
                }
                Expected::Operations | Expected::Library | Expected::Anything => {}
            },
        }
        let left = victim.leftovers();
        if !left.is_empty() {
            figures
                .complaints
                .push(format!("round {round}: left behind: {left:?}"));
        }
        figures.held_us.extend(held.get(&victim.pid));
    }
}

/// Whether this is for the figures.
fn in_full() -> bool {
    rounds() > 10
}

/// The throughput is taken over so long, and so long after gdiag has gone.
fn span() -> (Duration, Duration) {
    let ms = Duration::from_millis;
    if in_full() {
        (ms(600), ms(1000))
    } else {
        (ms(300), ms(300))
    }
}

/// Steps a second when gdiag has gone against those before it came.
fn compare(victims: &[(Kind, Victim)], begun: u64, done: u64, table: &mut Table) {
    let (span, gap) = span();
    let [span, gap] = [span, gap].map(|time| time.as_nanos() as u64);
    let until = done + gap + span;
    pass(Duration::from_nanos(until.saturating_sub(now_ns())));
    for (kind, victim) in victims {
        let before = victim.rate(begun - span, begun);
        if before > 0.0 {
            let after = victim.rate(done + gap, until);
            of(table, kind.name).ratios.push(after / before);
        }
    }
}

/// Prints what came of it; nothing may have been wrong.
fn conclude(title: &str, table: &Table) {
    eprintln!("{}", figures::table(title, table));
    let wrong: usize = table.values().map(|f| f.wrong().count()).sum();
    assert_eq!(wrong, 0, "see above");
    // The machine may be busy with something else.
    let ratios: Vec<_> = table.values().flat_map(|f| f.ratios.clone()).collect();
    let ratio = figures::median(&ratios).unwrap_or(1.0);
    assert!(
        ratio > 0.5,
        "afterwards they compute {ratio} of what they did before"
    );
}

#[test]
fn a_target_does_not_notice_that_it_is_recorded() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("attach");
    let mut figures = Table::new();
    let (shortest, longest) = if in_full() { (1000, 1000) } else { (300, 600) };
    for round in 0..rounds() {
        for kinds in KINDS.chunks(TOGETHER) {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("data");
            let mut victims = start(kinds, dir.path());
            // At any moment of its steps and waits.
            pass(span().0 + random.ms(50, 150));
            let begun = now_ns();
            let time = random.ms(shortest, longest);
            let recording = record(&victims, &file, dir.path(), time);
            let done = now_ns();
            look(&mut victims, round, &mut figures);
            judge(&recording, &file, &victims, round, &mut figures);
            if round == 0 {
                let report = report(&file);
                assert_eq!(report["recording"]["gpu_source"], "simulated", "{report}");
            }
            compare(&victims, begun, done, &mut figures);
            if round % 5 == 0 && victims.iter_mut().all(|(_, v)| v.lives()) {
                // And once more.
                let recording = record(&victims, &file, dir.path(), time);
                look(&mut victims, round, &mut figures);
                judge(&recording, &file, &victims, round, &mut figures);
            }
            finish(victims, round, &mut figures);
        }
    }
    conclude("recorded while it runs", &figures);
}

/// Of victims of which each has only threads that wait in one way.
fn options_of(ways: &[String]) -> Vec<[String; 3]> {
    let option = |way| {
        [
            "--threads=6".into(),
            "--no-device".into(),
            format!("--waits={way}"),
        ]
    };
    ways.iter().map(option).collect()
}

#[test]
fn a_thread_does_not_notice_in_whatever_it_waits() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("waits");
    let mut figures = Table::new();
    let ways = ways();
    let options = options_of(&ways);
    let options: Vec<_> = options
        .iter()
        .map(|o| o.each_ref().map(String::as_str))
        .collect();
    let kinds: Vec<_> = ways
        .iter()
        .zip(&options)
        .map(|(way, o)| waiting(way, o))
        .collect();
    // All ways are taken once for every twenty rounds; each has a process of its own.
    for round in 0..rounds().div_ceil(20) {
        for kinds in kinds.chunks(13) {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("data");
            let mut victims = start(kinds, dir.path());
            pass(random.ms(0, 200));
            let recording = record(&victims, &file, dir.path(), random.ms(300, 600));
            look(&mut victims, round, &mut figures);
            judge(&recording, &file, &victims, round, &mut figures);
            finish(victims, round, &mut figures);
        }
    }
    conclude("by what the company waits in", &figures);
}

/// How gdiag is killed.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// So long after its start.
    After(Duration),
    /// The same, but it is stopped for a while before.
    Stopped(Duration),
    /// When the target has one thread more.
    AtNewThread,
    /// At a call that it makes for the injection.
    AtCall(u64),
}

/// From the start of gdiag to its first thread in a target: what the random moments are about.
fn time_to_inject(dir: &Path) -> Duration {
    let mut victims = start(&KINDS[..1], dir);
    let pid = victims[0].1.pid;
    let before = threads(pid).len();
    let begun = now_ns();
    let arguments = ["-p", &pid.to_string(), "-d", "2s"];
    let gdiag = Running::start(&mut recorder(&dir.join("data"), &arguments), dir);
    assert!(
        becomes_true(support::DEADLINE, || threads(pid).len() > before),
        "nothing was injected"
    );
    let time = Duration::from_nanos(now_ns() - begun);
    gdiag.end();
    victims[0].1.finish();
    time
}

fn kill(death: Death, victims: &[(Kind, Victim)], file: &Path, dir: &Path) {
    let arguments = ["-p", &pids(victims)];
    let mut command = recorder(file, &arguments);
    if let Death::AtCall(n) = death {
        command
            .env("LD_PRELOAD", killer())
            .env("GDIAG_KILL_AT", n.to_string());
    }
    let before: Vec<_> = victims.iter().map(|(_, v)| threads(v.pid).len()).collect();
    let mut gdiag = Running::start(&mut command, dir);
    match death {
        Death::After(time) => pass(time),
        Death::Stopped(time) => {
            pass(time);
            gdiag.signal(libc::SIGSTOP);
            pass(Duration::from_millis(50));
        }
        Death::AtNewThread => {
            let steady = |(_, victim): &(Kind, Victim), n| threads(victim.pid).len() <= n;
            becomes_true(Duration::from_secs(3), || {
                victims.iter().zip(&before).any(|(v, n)| !steady(v, *n))
            });
        }
        Death::AtCall(_) => {
            becomes_true(Duration::from_secs(3), || !gdiag.is_running());
        }
    }
    gdiag.signal(libc::SIGKILL);
    gdiag.end();
}

#[test]
fn a_killed_gdiag_leaves_its_target_running() {
    if !can_run() {
        return;
    }
    let _machine = machine();
    let mut random = Random::new("kill -9");
    let mut figures = Table::new();
    let dir = tempfile::tempdir().unwrap();
    let inject = time_to_inject(dir.path());
    eprintln!("gdiag injects {inject:?} after its start");
    let inject = inject.as_millis() as u64;
    let ways = ways();
    let options = options_of(&ways);
    let options: Vec<_> = options
        .iter()
        .map(|o| o.each_ref().map(String::as_str))
        .collect();
    let waiting = ways.iter().zip(&options).map(|(way, o)| waiting(way, o));
    // Those that cannot be injected into have nothing to lose.
    let kinds: Vec<_> = KINDS
        .iter()
        .copied()
        .chain(waiting)
        .filter(|kind| kind.expected != Expected::Anything)
        .collect();
    for round in 0..rounds() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        // Other ones each time.
        let kinds: Vec<_> = (0..TOGETHER)
            .map(|n| kinds[(round * TOGETHER + n) % kinds.len()])
            .collect();
        let mut victims = start(&kinds, dir.path());
        pass(span().0 + random.ms(50, 150));
        let death = match random.below(8) {
            0 => Death::After(random.ms(0, inject + 100)),
            1 | 2 => Death::After(random.ms(inject.saturating_sub(20), inject + 60)),
            3 => Death::Stopped(random.ms(inject.saturating_sub(20), inject + 60)),
            4 => Death::AtNewThread,
            _ => Death::AtCall(1 + random.below(24)),
        };
        let begun = now_ns();
        kill(death, &victims, &file, dir.path());
        let done = now_ns();
        look(&mut victims, round, &mut figures);
        compare(&victims, begun, done, &mut figures);
        // The next one gets its records, whatever the last one left behind.
        let recording = record(&victims, &file, dir.path(), Duration::from_millis(400));
        let so_far: usize = figures.values().map(|f| f.wrong().count()).sum();
        look(&mut victims, round, &mut figures);
        judge(&recording, &file, &victims, round, &mut figures);
        finish(victims, round, &mut figures);
        if figures.values().map(|f| f.wrong().count()).sum::<usize>() > so_far {
            eprintln!("round {round}: {death:?}");
        }
    }
    conclude("gdiag is killed", &figures);
}
