//! What the environment asks of the simulated device. Read once, at `cuInit`.

use std::str::FromStr;
use std::sync::OnceLock;

/// How a synchronising call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Busy, as the real driver does unless asked otherwise.
    Spin,
    /// Asleep.
    Block,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// `GDIAG_SIM_DEVICES`
    pub devices: usize,
    /// `GDIAG_SIM_SEED`
    pub seed: u64,
    /// `GDIAG_SIM_QUEUE`: operations that a stream holds before a launch blocks.
    pub queue: usize,
    /// `GDIAG_SIM_SYNC`
    pub sync: SyncMode,
    /// `GDIAG_SIM_GBPS`: bytes per ns, that is GB/s, of a copy engine instead of the measured speed.
    pub gbps: Option<f64>,
    /// `GDIAG_SIM_CONCURRENCY`: kernels that run on a device at once.
    pub concurrency: usize,
    /// `GDIAG_SIM_SHARED_COPY=1`: all devices share one copy engine per direction.
    pub shared_copy: bool,
    /// `GDIAG_SIM_EVENT_LATENCY_US`: from the end of an operation to the start of one in
    /// another stream that waits for it, instead of the drawn time.
    pub event_latency_ns: Option<u64>,
    /// `GDIAG_SIM_ALLOC_US`: what allocating or freeing memory costs instead of the drawn time.
    pub alloc_ns: Option<u64>,
    /// `GDIAG_SIM_MODULE_MS`: what loading a module costs. Depends on the module, so not measured.
    pub module_ns: u64,
    /// `GDIAG_SIM_CONTEXT_MS`: what making a context costs. Depends on the machine, so not measured.
    pub context_ns: u64,
    /// `GDIAG_SIM_LAUNCH_NS`: cost of a launch call instead of the drawn one.
    pub launch_ns: Option<i64>,
    /// `GDIAG_SIM_LEAD_NS`: lead instead of the drawn one.
    pub lead_ns: Option<i64>,
    /// `GDIAG_SIM_NO_CUPTI=1`: do not map libcupti.
    pub no_cupti: bool,
}

impl Config {
    /// `get` is the environment. A value that cannot be read is reported and ignored.
    pub fn new(get: impl Fn(&str) -> Option<String>) -> Config {
        let env = Env { get };
        Config {
            devices: env.number("GDIAG_SIM_DEVICES", 1usize).clamp(1, 64),
            seed: env.number("GDIAG_SIM_SEED", 1),
            queue: env.number("GDIAG_SIM_QUEUE", 1024usize).max(1),
            sync: match env.text("GDIAG_SIM_SYNC").as_deref() {
                None | Some("spin") => SyncMode::Spin,
                Some("block") => SyncMode::Block,
                Some(other) => {
                    complain("GDIAG_SIM_SYNC", other);
                    SyncMode::Spin
                }
            },
            gbps: env
                .optional("GDIAG_SIM_GBPS")
                .map(|gbps: f64| gbps.max(0.001)),
            concurrency: env.number("GDIAG_SIM_CONCURRENCY", 128usize).max(1),
            shared_copy: env.number("GDIAG_SIM_SHARED_COPY", 0u32) != 0,
            event_latency_ns: env.scaled("GDIAG_SIM_EVENT_LATENCY_US", 1e3),
            alloc_ns: env.scaled("GDIAG_SIM_ALLOC_US", 1e3),
            module_ns: env.scaled("GDIAG_SIM_MODULE_MS", 1e6).unwrap_or(1_000_000),
            context_ns: env.scaled("GDIAG_SIM_CONTEXT_MS", 1e6).unwrap_or(0),
            launch_ns: env.optional("GDIAG_SIM_LAUNCH_NS"),
            lead_ns: env.optional("GDIAG_SIM_LEAD_NS"),
            no_cupti: env.number("GDIAG_SIM_NO_CUPTI", 0u32) != 0,
        }
    }
}

/// The configuration of this process.
pub fn get() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| Config::new(|name| std::env::var(name).ok()))
}

fn complain(name: &str, value: &str) {
    eprintln!("simulated GPU: {name}={value} means nothing, ignored");
}

struct Env<F> {
    get: F,
}

impl<F: Fn(&str) -> Option<String>> Env<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn optional<T: FromStr>(&self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        let value = text.parse().ok();
        if value.is_none() {
            complain(name, &text);
        }
        value
    }

    fn number<T: FromStr>(&self, name: &str, default: T) -> T {
        self.optional(name).unwrap_or(default)
    }

    fn scaled(&self, name: &str, ns: f64) -> Option<u64> {
        // A negative time becomes 0 in the cast.
        self.optional(name).map(|value: f64| (value * ns) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_the_environment() {
        let config = Config::new(|name| match name {
            "GDIAG_SIM_DEVICES" => Some("2".into()),
            "GDIAG_SIM_SYNC" => Some("block".into()),
            "GDIAG_SIM_EVENT_LATENCY_US" => Some("2.5".into()),
            "GDIAG_SIM_LEAD_NS" => Some("-100".into()),
            _ => None,
        });
        assert_eq!(config.devices, 2);
        assert_eq!(config.sync, SyncMode::Block);
        assert_eq!(config.event_latency_ns, Some(2_500));
        assert_eq!(config.lead_ns, Some(-100));
        assert_eq!(config.queue, 1024);
    }

    #[test]
    fn nonsense_is_ignored() {
        let config = Config::new(|name| match name {
            "GDIAG_SIM_DEVICES" | "GDIAG_SIM_SYNC" => Some("many".into()),
            "GDIAG_SIM_ALLOC_US" => Some("-1".into()),
            "GDIAG_SIM_GBPS" => Some("fast".into()),
            _ => None,
        });
        assert_eq!(config.devices, 1);
        assert_eq!(config.sync, SyncMode::Spin);
        assert_eq!(config.alloc_ns, Some(0));
        assert_eq!(config.gbps, None);
    }
}
