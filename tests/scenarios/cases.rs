//! The faults that are injected, one scenario each.

/// Sixty steps with an injection in every other one.
pub const INJECTIONS: usize = 32;
pub const BASE: [&str; 4] = ["--kernels", "5", "--steps", "64"];

/// The faults come with 120 ms of work queued, from the first one on.
pub const AHEAD: [&str; 10] = [
    "--kernels",
    "5",
    "--kernel-us",
    "800",
    "--ahead",
    "30",
    "--host-us",
    "50",
    "--steps",
    "330",
];
pub const AHEAD_EVERY: u32 = 60;

/// Two devices that share the copy engines, so that one can wait for the other.
pub const DEVICES: [(&str, &str); 2] = [("GDIAG_SIM_DEVICES", "2"), ("GDIAG_SIM_SHARED_COPY", "1")];

#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What `gpuload --inject` calls it.
    pub injection: &'static str,
    pub cause: &'static str,
    /// How long each is, unless as usual.
    pub ms: Option<u32>,
    /// Share of the injected idle time that must have this cause.
    pub least: f64,
    /// True as well, and not told apart by the truth.
    pub besides: &'static [&'static str],
    /// With enough work queued ahead it makes no gap: it neither waits for the device nor is in it.
    pub hides: bool,
}

const fn host(injection: &'static str, cause: &'static str) -> Case {
    Case {
        injection,
        cause,
        ms: None,
        least: 0.9,
        besides: &[],
        hides: true,
    }
}

/// The load waits for the device in it.
const fn call(injection: &'static str, cause: &'static str) -> Case {
    Case {
        hides: false,
        ..host(injection, cause)
    }
}

pub const CASES: [Case; 19] = [
    host("preempt", "host.preempted"),
    host("disk", "host.disk-read"),
    host("lock", "host.lock"),
    host("sleep", "host.sleep"),
    host("quota", "host.throttled"),
    host("stop", "host.stopped"),
    call("eventwait", "gpu.dependency"),
    call("copyengine", "gpu.copy-engine"),
    call("hostfunc", "gpu.host-callback"),
    host("compute", "host.compute"),
    host("oversubscribe", "host.oversubscribed"),
    host("mmapfault", "host.page-fault"),
    host("fsync", "host.disk-write"),
    host("network", "host.network"),
    Case {
        // The child takes the CPU on which its parent would go on: a CPU taken by its own job.
        least: 0.75,
        ..host("subprocess", "host.subprocess")
    },
    Case {
        // The device takes its time to start after each refill.
        besides: &["gpu.launch-latency"],
        // Most of the time the device is busy.
        ms: Some(8),
        ..call("sync", "host.sync")
    },
    call("pageable", "host.pageable-copy"),
    call("alloc", "host.cuda-memory"),
    call("module", "host.module-load"),
];

impl Case {
    pub fn on_device(&self) -> bool {
        self.cause.starts_with("gpu.")
    }
}
