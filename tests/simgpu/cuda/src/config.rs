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
    /// `GDIAG_SIM_GBPS`: bytes per ns, that is GB/s, of a copy engine.
    pub gbps: f64,
    /// `GDIAG_SIM_CONCURRENCY`: kernels that run on a device at once.
    pub concurrency: usize,
    /// `GDIAG_SIM_SHARED_COPY=1`: all devices share one copy engine per direction.
    pub shared_copy: bool,
    /// `GDIAG_SIM_EVENT_LATENCY_US`: from the end of an operation to the start of one in
    /// another stream that waits for it.
    pub event_latency_ns: u64,
    /// `GDIAG_SIM_ALLOC_US`: what allocating or freeing memory costs.
    pub alloc_ns: u64,
    /// `GDIAG_SIM_MODULE_MS`: what loading a module costs.
    pub module_ns: u64,
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
            gbps: env.number("GDIAG_SIM_GBPS", 50.0f64).max(0.001),
            concurrency: env.number("GDIAG_SIM_CONCURRENCY", 128usize).max(1),
            shared_copy: env.number("GDIAG_SIM_SHARED_COPY", 0u32) != 0,
            event_latency_ns: env.scaled("GDIAG_SIM_EVENT_LATENCY_US", 1.5, 1e3),
            alloc_ns: env.scaled("GDIAG_SIM_ALLOC_US", 60.0, 1e3),
            module_ns: env.scaled("GDIAG_SIM_MODULE_MS", 1.0, 1e6),
            launch_ns: env.number("GDIAG_SIM_LAUNCH_NS", None),
            lead_ns: env.number("GDIAG_SIM_LEAD_NS", None),
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

    fn number<T: Parse>(&self, name: &str, default: T) -> T {
        let Some(text) = self.text(name) else {
            return default;
        };
        T::parse(&text).unwrap_or_else(|| {
            complain(name, &text);
            default
        })
    }

    fn scaled(&self, name: &str, default: f64, ns: f64) -> u64 {
        // A negative time becomes 0 in the cast.
        (self.number(name, default) * ns) as u64
    }
}

trait Parse: Sized {
    fn parse(text: &str) -> Option<Self>;
}

macro_rules! parse {
    ($($t:ty)*) => { $(impl Parse for $t {
        fn parse(text: &str) -> Option<Self> { <$t>::from_str(text).ok() }
    })* };
}
parse!(usize u64 u32 f64);

impl Parse for Option<i64> {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Some)
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
        assert_eq!(config.event_latency_ns, 2_500);
        assert_eq!(config.lead_ns, Some(-100));
        assert_eq!(config.queue, 1024);
    }

    #[test]
    fn nonsense_is_ignored() {
        let config = Config::new(|name| match name {
            "GDIAG_SIM_DEVICES" | "GDIAG_SIM_SYNC" => Some("many".into()),
            "GDIAG_SIM_ALLOC_US" => Some("-1".into()),
            _ => None,
        });
        assert_eq!(config.devices, 1);
        assert_eq!(config.sync, SyncMode::Spin);
        assert_eq!(config.alloc_ns, 0);
    }
}
