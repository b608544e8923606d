//! Which CUPTI to be, and what to get wrong on purpose. Read once.

use std::sync::OnceLock;

use crate::version::{self, Version};

#[derive(Clone, Debug)]
pub struct Config {
    /// `GDIAG_SIM_CUPTI`: 11.7 to 13.5.
    pub version: &'static Version,
    /// `GDIAG_SIM_DROP=N`: every Nth operation record is dropped, and counted as dropped.
    pub drop: u64,
    /// `GDIAG_SIM_LOSE=N`: every Nth operation record is dropped, and nobody is told.
    pub lose: u64,
    /// `GDIAG_SIM_ZERO=N`: every Nth operation record has no times.
    pub zero: u64,
    /// `GDIAG_SIM_CUPTI_BUSY=1`: another tool holds CUPTI through the second version of its API.
    pub busy: bool,
    /// `GDIAG_SIM_UNIFIED_MEMORY_REFUSALS=N`: how many times it is refused to record what happens
    /// to managed memory.
    pub unified_memory_refusals: u64,
    /// `GDIAG_SIM_CUPTI_TAKEOVER_MS=N`: so long after the first kind is enabled, another
    /// tool registers its own buffer callbacks and disables our kinds.
    pub takeover_ns: Option<u64>,
    /// `GDIAG_SIM_CUPTI_TAKEOVER_FOR_MS=N`: that tool holds a subscription for so long. Without it
    /// the tool holds none.
    pub takeover_for_ns: u64,
}

impl Config {
    pub fn new(get: impl Fn(&str) -> Option<String>) -> Config {
        let number = |name: &str| -> u64 {
            let Some(text) = get(name).filter(|text| !text.is_empty()) else {
                return 0;
            };
            text.parse().unwrap_or_else(|_| {
                eprintln!("simulated GPU: {name}={text} means nothing, ignored");
                0
            })
        };
        let version = match get("GDIAG_SIM_CUPTI").filter(|text| !text.is_empty()) {
            None => version::DEFAULT,
            Some(name) => version::find(&name).unwrap_or_else(|| {
                eprintln!("simulated GPU: GDIAG_SIM_CUPTI={name} is no version, ignored");
                version::DEFAULT
            }),
        };
        Config {
            version,
            drop: number("GDIAG_SIM_DROP"),
            lose: number("GDIAG_SIM_LOSE"),
            zero: number("GDIAG_SIM_ZERO"),
            busy: number("GDIAG_SIM_CUPTI_BUSY") != 0,
            unified_memory_refusals: number("GDIAG_SIM_UNIFIED_MEMORY_REFUSALS"),
            takeover_ns: Some(number("GDIAG_SIM_CUPTI_TAKEOVER_MS"))
                .filter(|&ms| ms != 0)
                .map(|ms| ms * 1_000_000),
            takeover_for_ns: number("GDIAG_SIM_CUPTI_TAKEOVER_FOR_MS") * 1_000_000,
        }
    }
}

/// The configuration of this process.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::new(|name| std::env::var(name).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_faults_come_from_the_environment() {
        let config = Config::new(|name| match name {
            "GDIAG_SIM_CUPTI" => Some("12.4".into()),
            "GDIAG_SIM_DROP" => Some("7".into()),
            "GDIAG_SIM_CUPTI_TAKEOVER_MS" => Some("5".into()),
            "GDIAG_SIM_CUPTI_TAKEOVER_FOR_MS" => Some("7".into()),
            _ => None,
        });
        assert_eq!(config.version.api, 22);
        assert_eq!((config.drop, config.lose, config.zero), (7, 0, 0));
        assert_eq!(config.takeover_ns, Some(5_000_000));
        assert_eq!(config.takeover_for_ns, 7_000_000);
    }

    #[test]
    fn nonsense_is_ignored() {
        let config = Config::new(|name| match name {
            "GDIAG_SIM_CUPTI" => Some("14.0".into()),
            "GDIAG_SIM_ZERO" => Some("often".into()),
            _ => None,
        });
        assert_eq!(config.version.name, "13.0");
        assert_eq!(config.zero, 0);
    }
}
