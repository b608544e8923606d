//! What the library answers: as of an H200 that is busy, or as a file says.
//!
//! `GDIAG_SIM_NVML` names the file. It is read at every call, so what it says can change. A line is `KEY = VALUE`, or
//! `N.KEY = VALUE` of card N alone; `N.* = VALUE` is of all that card N is asked. The keys are those of
//! [`default`], and what they are asked for is the value, or a word:
//!
//! - `unsupported`, `no-permission`, `not-loaded`, `lost`, `reset`, `mismatch`: the call fails in this way;
//! - `hang`: the call does not return before the file says something else.
//!
//! `GDIAG_SIM_NVML_LOG` names a file that gets a line for every value that is asked for: its key, with the card's number.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;
use std::time::Duration;

/// NVML's number for what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u32);

const UNSUPPORTED: Failure = Failure(3);
const UNKNOWN: Failure = Failure(999);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// The library itself.
    None,
    Number(usize),
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Card::None => Ok(()),
            Card::Number(number) => write!(f, "{number}."),
        }
    }
}

/// Clocks in MHz, memory in MiB, power in mW.
fn default(card: Card, key: &str) -> Option<String> {
    let text = match key {
        "init" | "shutdown" | "open" | "processes" => "",
        "driver" => "580.159.01",
        "count" => return Some(std::env::var("GDIAG_SIM_DEVICES").unwrap_or_else(|_| "1".into())),
        "name" => "Simulated H200 (gdiag)",
        // That of the simulated libcuda.
        "uuid" => {
            let Card::Number(number) = card else {
                return None;
            };
            return Some(format!(
                "GPU-67646961-672d-7369-6d75-6c61746564{number:02x}"
            ));
        }
        "mig" | "throttle" => "0",
        "utilization" => "97",
        "memory_utilization" => "12",
        "memory_total" => "143771",
        "memory_used" => "2048",
        "power_mw" => "212500",
        "power_limit_mw" => "700000",
        "temperature" => "41",
        "sm_clock" | "sm_clock_max" => "1980",
        "memory_clock" => "3201",
        _ => return None,
    };
    Some(text.to_string())
}

/// Answers, when there is an answer.
pub fn ask(card: Card, key: &str) -> Result<String, Failure> {
    log(card, key);
    loop {
        let file = std::env::var_os("GDIAG_SIM_NVML");
        let text = file.and_then(|path| std::fs::read_to_string(path).ok());
        let said = value(text.as_deref().unwrap_or_default(), card, key);
        let Some(value) = said.or_else(|| default(card, key)) else {
            return Err(UNKNOWN);
        };
        return match value.as_str() {
            "unsupported" => Err(UNSUPPORTED),
            "no-permission" => Err(Failure(4)),
            "not-loaded" => Err(Failure(9)),
            "lost" => Err(Failure(15)),
            "reset" => Err(Failure(16)),
            "mismatch" => Err(Failure(18)),
            "hang" => {
                thread::sleep(Duration::from_millis(2));
                continue;
            }
            _ => Ok(value),
        };
    }
}

/// A value that is a number, also as `0x…`.
pub fn number(card: Card, key: &str) -> Result<u32, Failure> {
    let text = ask(card, key)?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| UNKNOWN)
}

/// The last line about it.
fn value(file: &str, card: Card, key: &str) -> Option<String> {
    let (own, all) = (format!("{card}{key}"), format!("{card}*"));
    let lines = file.lines().rev().filter_map(|line| line.split_once('='));
    let mut found = lines.map(|(name, value)| (name.trim(), value.trim()));
    let names = [own.as_str(), all.as_str(), key];
    found
        .find(|(name, _)| names.contains(name))
        .map(|(_, value)| value.to_string())
}

fn log(card: Card, key: &str) {
    let Some(path) = std::env::var_os("GDIAG_SIM_NVML_LOG") else {
        return;
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    if let Ok(mut file) = file {
        let _ = file.write_all(format!("{card}{key}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_about_a_value_counts() {
        let file = "utilization = 3\n# a word\n1.utilization = 5\n0.* = lost\n0.power_mw=7";
        let says = |card, key| value(file, Card::Number(card), key);
        assert_eq!(says(0, "power_mw").as_deref(), Some("7"));
        assert_eq!(says(0, "utilization").as_deref(), Some("lost"));
        assert_eq!(says(1, "utilization").as_deref(), Some("5"));
        assert_eq!(says(2, "utilization").as_deref(), Some("3"));
        assert_eq!(says(1, "power_mw"), None);
    }

    #[test]
    fn the_library_itself_has_no_values_of_a_card() {
        assert_eq!(
            value("* = lost", Card::None, "init").as_deref(),
            Some("lost")
        );
        assert_eq!(value("0.init = lost", Card::None, "init"), None);
    }
}
