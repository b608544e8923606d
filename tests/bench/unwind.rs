//! What an unwind table costs to make, and how large it is:
//! `cargo bench --bench unwind -- FILE...`. Without files: this program and the libraries that it runs on.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use gdiag::unwind::{Rules, Table};
use nix::time::{clock_gettime, ClockId};
use object::{Object, ObjectSection};

const RUNS: u32 = 5;

fn main() -> anyhow::Result<()> {
    let mut files: BTreeSet<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    if files.is_empty() {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let paths = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        files.extend(
            paths
                .filter(|path| path.starts_with('/'))
                .map(str::to_string),
        );
    }
    for path in files {
        let bytes = fs::read(&path)?;
        let eh_frame = object::File::parse(&bytes[..])?
            .section_by_name(".eh_frame")
            .map_or(0, |section| section.size());

        reset_peak();
        let before = peak_kib();
        let mut took = Duration::MAX;
        let mut made = None;
        for _ in 0..RUNS {
            drop(made.take());
            let begin = cpu_time()?;
            let mut rules = Rules::new();
            let table = Table::of(&bytes, &mut rules);
            took = took.min(cpu_time()?.saturating_sub(begin));
            made = Some((table, rules.end()));
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        match made {
            Some((Ok(table), rules)) => println!(
                "{name}: {:.2} MB of .eh_frame in {:.1} ms, {:.0} MB/s; {} rows in {} pages ({} in the fullest), {:.2} MB, {rules} rules; peak memory grew by {:.2} MB",
                eh_frame as f64 / 1e6,
                took.as_secs_f64() * 1e3,
                eh_frame as f64 / 1e6 / took.as_secs_f64(),
                table.rows.len(),
                table.pages.len(),
                table.pages.iter().map(|page| page.rows.len()).max().unwrap_or(0),
                table.bytes() as f64 / 1e6,
                (peak_kib() - before) as f64 * 1024.0 / 1e6,
            ),
            Some((Err(why), _)) => println!("{name}: {why}"),
            None => {}
        }
    }
    Ok(())
}

/// What this thread has had of the CPUs: others may have the machine too.
fn cpu_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// The most memory that this process ever had, in KiB.
fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = peak.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Makes the memory it has now the most it ever had.
fn reset_peak() {
    // Not allowed everywhere; then the largest files must come last.
    let _ = fs::write("/proc/self/clear_refs", "5");
}
