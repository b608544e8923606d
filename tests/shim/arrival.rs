//! The shim comes into a program that runs, whatever the program does, may do or is about to do.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use gdiag_shim_layout::{state, ENV_DISABLE};

use crate::program;
use crate::support::{Collector, Target};
use crate::START;

#[test]
fn a_shim_put_into_a_running_program_collects_when_it_is_wanted() {
    let Some(mut target) = Target::start_without_shim(&[]) else {
        return;
    };
    target.ask("launch 5");
    assert_eq!(target.shim_memory(), None);
    target.ask("put-in-real-time");
    let mut collector = Collector::attach(&target);
    collector.wait_for(state::DORMANT);
    assert_eq!(
        target.shim_policies(),
        [0],
        "it is no more urgent than others"
    );
    for _ in 0..2 {
        collector.begin();
        collector.wait_for(state::ACTIVE);
        target.ask("launch 20");
        collector.stop();
        collector.wait_for(state::DORMANT);
        let records = collector.read();
        assert_eq!((records.kernels.len(), records.devices.len()), (20, 1));
        assert!(records.lost.is_empty(), "{:?}", records.lost);
    }
    target.exit();
    assert_eq!(collector.state(), state::FINISHED);
}

#[test]
fn a_shim_may_come_before_the_program_begins_with_cuda() {
    for first in [None, Some("initialise")] {
        let Some(mut target) = Target::start_without_shim(&[(program::STEPS, "1")]) else {
            return;
        };
        if let Some(first) = first {
            target.ask(first);
        }
        target.ask("put-in");
        let mut collector = Collector::attach(&target);
        collector.begin();
        if first.is_none() {
            // The simulated driver brings its libcupti along with `cuInit`.
            collector.wait_for(state::FAILED);
            target.ask("initialise");
        }
        collector.wait_for(state::ACTIVE);
        target.ask("context");
        target.ask("launch 20");
        target.exit();
        let records = collector.read();
        assert_eq!((records.kernels.len(), records.devices.len()), (20, 1));
        assert!(records.lost.is_empty(), "{:?}", records.lost);
    }
}

#[test]
fn a_program_has_one_shim_however_many_come() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    target.ask("put-in");
    target.ask("put-in");
    let mut collector = Collector::attach(&target);
    let shims = target
        .threads()
        .iter()
        .filter(|name| *name == "gdiag-shim")
        .count();
    assert_eq!(shims, 1);
    collector.begin();
    collector.wait_for(state::ACTIVE);
    target.ask("launch 20");
    target.exit();
    assert_eq!(collector.read().kernels.len(), 20);
}

/// Its parent was launched by a gdiag that still records, and the program has another tool instead.
#[test]
fn a_launch_that_was_not_of_this_library_starts_nothing() {
    let other = std::env::temp_dir().join(format!("gdiag-other-tool-{}", std::process::id()));
    let file = File::create(&other).unwrap();
    // SAFETY: a plain call on an open descriptor.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    let env = [START, ("CUDA_INJECTION64_PATH", other.to_str().unwrap())];
    let started = Target::start_without_shim(&env);
    fs::remove_file(&other).unwrap();
    let Some(mut target) = started else {
        return;
    };
    target.ask("put-in");
    let mut collector = Collector::attach(&target);
    collector.wait_for(state::DORMANT);
    target.ask("launch 5");
    target.exit();
    let records = collector.read();
    assert_eq!(records.states, [state::DORMANT, state::FINISHED]);
    assert_eq!(records.kernels.len(), 0);
}

#[test]
fn the_kill_switch_of_the_programs_start_holds_for_a_shim_that_is_put_in() {
    let Some(mut target) = Target::start_without_shim(&[(ENV_DISABLE, "1")]) else {
        return;
    };
    target.ask("put-in");
    assert_eq!(target.shim_memory(), None);
    target.ask("launch 5");
    target.exit();
}

/// Has the shim come under such a condition, asks it to collect if it is there at all, and goes on without
/// the condition.
fn survive(condition: &str) {
    let Some(mut target) = Target::start_without_shim(&[]) else {
        return;
    };
    target.ask(condition);
    target.ask("launch 5");
    if target.threads().iter().any(|name| name == "gdiag-shim") {
        let mut collector = Collector::attach(&target);
        collector.begin();
        target.ask("launch 5");
        collector.stop();
    }
    target.ask("unlimit");
    target.ask("launch 5");
    target.exit();
}

#[test]
fn a_sandbox_that_refuses_a_call_costs_at_most_the_records() {
    for call in [
        libc::SYS_memfd_create,
        libc::SYS_ftruncate,
        libc::SYS_fcntl,
        libc::SYS_prlimit64,
        libc::SYS_prctl,
        libc::SYS_madvise,
        libc::SYS_clone3,
        libc::SYS_openat,
        libc::SYS_flock,
        libc::SYS_sched_getscheduler,
        libc::SYS_statx,
    ] {
        survive(&format!("put-in-refusing {call}"));
    }
}

/// From not even a thread's stack, over not even the ring, to not all of the buffers.
#[test]
fn too_little_address_space_costs_at_most_the_records() {
    for mib in [0, 2, 16, 33, 36, 80, 120, 200] {
        survive(&format!("put-in-with-mib {mib}"));
    }
}

#[test]
fn a_program_that_may_open_nothing_runs_on() {
    survive("put-in-without-files");
}

#[test]
fn a_program_that_exits_while_the_shim_comes_exits() {
    for condition in ["put-in-at-exit", "put-in-unattended"] {
        for _ in 0..5 {
            let Some(mut target) = Target::start_without_shim(&[]) else {
                return;
            };
            target.ask(condition);
            target.exit();
        }
    }
}
