//! Values of options, from what was typed.

use super::sched::CpuList;
use super::Trigger;
use crate::collect::process;
use crate::event::{Cpu, Pid, Tid};
use crate::units::{Bytes, Nanos};

/// Shorter ones are not told one by one by the BPF programs.
const LEAST_CPU_WAIT: Nanos = Nanos::from_millis(1);

/// Shorter windows say little, longer ones take much memory.
pub(super) const LEAST_WINDOW: Nanos = Nanos::from_secs(1);
pub(super) const MOST_WINDOW: Nanos = Nanos::from_secs(300);

pub(super) fn parse_pid(text: &str) -> Result<Pid, String> {
    match text.trim().parse() {
        // pid_t is signed, and 0 is no process.
        Ok(pid) if pid > 0 && pid <= i32::MAX.unsigned_abs() => Ok(Pid(pid)),
        _ => Err("a process id is a number above 0, such as 4711".to_string()),
    }
}

/// Kubernetes shows ids as `containerd://ID`.
pub(super) fn parse_container(text: &str) -> Result<String, String> {
    let id = text.trim();
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    let id = id.to_ascii_lowercase();
    if id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(
            "the id of a container is 64 hexadecimal digits; its first ones will do".to_string(),
        );
    }
    Ok(id)
}

pub(super) fn parse_tid(text: &str) -> Result<Tid, String> {
    match parse_pid(text) {
        Ok(id) => Ok(Tid(id.0)),
        Err(_) => Err("a thread id is a number above 0, such as 4711".to_string()),
    }
}

pub(super) fn parse_positive(text: &str) -> Result<Nanos, String> {
    match text.parse()? {
        Nanos::ZERO => Err("must be longer than nothing".to_string()),
        duration => Ok(duration),
    }
}

/// How much of the past a live view is about.
pub(super) fn parse_window(text: &str) -> Result<Nanos, String> {
    match text.parse()? {
        window if (LEAST_WINDOW..=MOST_WINDOW).contains(&window) => Ok(window),
        _ => Err(format!("must be {LEAST_WINDOW} to {MOST_WINDOW}")),
    }
}

pub(super) fn parse_speed(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches(['x', 'X']).parse() {
        Ok(speed) if (0.01..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("a speed is a number from 0.01 to 1000, such as 0.5 or 10".to_string()),
    }
}

/// Whether they are there is for those to say who look at them.
pub(super) fn parse_cpus(text: &str) -> Result<CpuList, String> {
    let wrong = || format!("'{text}' is not a list of CPUs: write it as 0,2-3");
    let numbers = process::parse_cpu_list(text.trim()).ok_or_else(wrong)?;
    let cpus: Result<Vec<Cpu>, _> = numbers
        .into_iter()
        .map(|cpu| u16::try_from(cpu).map(Cpu))
        .collect();
    let mut cpus = cpus.map_err(|_| wrong())?;
    cpus.sort_unstable();
    cpus.dedup();
    Ok(CpuList(cpus))
}

/// As perf trace has them: a number without a unit.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn parse_millis(text: &str) -> Result<Nanos, String> {
    match text.trim().parse::<f64>() {
        Ok(ms) if (0.0..1e9).contains(&ms) => Ok(Nanos((ms * 1e6).round() as u64)),
        _ => Err("write milliseconds, such as 10 or 0.5".to_string()),
    }
}

/// `256M`, `1G`, `64KiB`, `1048576`.
pub(super) fn parse_bytes(text: &str) -> Result<Bytes, String> {
    let wrong = || format!("'{text}' is not a size: write it as 256M or 1G");
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(Bytes(bytes)),
        _ => Err(wrong()),
    }
}

/// Of a flight recorder: a word, as it goes into an address.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let is_fine = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    if text.is_empty() || text.len() > 40 || !text.bytes().all(is_fine) {
        return Err("a name has up to 40 letters, digits, '-', '_' and '.'".to_string());
    }
    Ok(text.to_string())
}

pub(super) fn parse_trigger(text: &str) -> Result<Trigger, String> {
    let (what, duration) = text
        .split_once('>')
        .ok_or("write an event and a duration, such as 'gap>50ms'")?;
    let duration = parse_positive(duration.trim())?;
    match what.trim() {
        "gap" => Ok(Trigger::Gap(duration)),
        "runq" if duration < LEAST_CPU_WAIT => {
            Err("waits for a CPU that are shorter than 1ms are not looked for".to_string())
        }
        "runq" => Ok(Trigger::RunQueue(duration)),
        "wait" => Ok(Trigger::Wait(duration)),
        other => Err(format!("there is no event '{other}': gap, runq or wait")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_side_has_the_same_least_wait() {
        let programs = include_str!("../../bpf/sched.bpf.c");
        let line = format!("#define MIN_CPU_WAIT_NS {}\n", LEAST_CPU_WAIT.0);
        assert!(programs.contains(&line), "{line}");
    }
}
