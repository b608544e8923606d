//! Clocks and the real cost of simulated calls. Both crates include this file.

/// The time of a clock in ns.
fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: ts is a valid timespec; the clocks used here always exist on Linux.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// CLOCK_MONOTONIC in ns: what the simulation runs on.
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME in ns: what CUPTI's records carry.
#[allow(dead_code)] // libcuda never shows it
pub fn realtime() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// CPU time of the calling thread in ns.
#[allow(dead_code)] // only libcuda asks
pub fn thread_cpu() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Keeps the thread busy until `t`, as the driver does: no system call, so it can be preempted like it.
#[allow(dead_code)] // libcupti has no cost of its own to simulate
pub fn spin_until(t: u64) {
    while now() < t {
        core::hint::spin_loop();
    }
}
