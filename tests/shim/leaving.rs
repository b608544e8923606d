//! What a recording leaves behind in the program.

use gdiag_shim_layout::state;

use crate::support::{Collector, Target};

#[test]
fn a_recording_after_another_has_all_records_and_only_its_own() {
    let Some(mut target) = Target::start(&[]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    for launches in [7, 11, 13] {
        target.ask("launch 5");
        collector.begin();
        collector.wait_for(state::ACTIVE);
        target.ask(&format!("launch {launches}"));
        target.ask("copy");
        collector.stop();
        collector.wait_for(state::DORMANT);
        let records = collector.read();
        assert_eq!(
            (records.kernels.len(), records.memcpys.len()),
            (launches, 2)
        );
        assert_eq!(records.devices.len(), 1);
        assert!(records.lost.is_empty(), "{:?}", records.lost);
    }
    target.exit();
}

/// One that stayed would be all there; a page or two are a neighbour's.
const ONE_BUFFER: u64 = 512 << 10;

#[test]
fn the_memory_of_a_recording_goes_when_it_has_ended() {
    let Some(mut target) = Target::start(&[("GDIAG_SIM_LAUNCH_NS", "0")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    collector.wait_for(state::DORMANT);
    let before = target.shim_resident();
    for _ in 0..2 {
        collector.begin();
        collector.wait_for(state::ACTIVE);
        target.ask("launch 20000");
        let records = collector.read_until(|records| records.kernels.len() == 20_000);
        assert!(records.lost.is_empty(), "{:?}", records.lost);
        let during = target.shim_resident();
        assert!(during.0 > before.0 + (1 << 20), "{before:?} {during:?}");
        assert!(during.1 >= before.1 + (8 << 20), "{before:?} {during:?}");
        collector.stop();
        collector.wait_for(state::DORMANT);
        collector.read();
        target.wait_until("the memory is given back", |target| {
            let (ring, pool) = target.shim_resident();
            ring <= before.0 + 8192 && pool < before.1 + ONE_BUFFER
        });
        println!(
            "before {before:?}, during {during:?}, after {:?}",
            target.shim_resident()
        );
    }
    target.exit();
}

/// What it wrote last stays for the collector that may come back.
#[test]
fn a_shim_whose_collector_died_keeps_no_more_than_what_was_not_read() {
    let Some(mut target) = Target::start(&[("GDIAG_SIM_LAUNCH_NS", "0")]) else {
        return;
    };
    let mut collector = Collector::attach(&target);
    let before = target.shim_resident();
    collector.begin();
    collector.wait_for(state::ACTIVE);
    target.ask("launch 20000");
    collector.read_until(|records| records.kernels.len() == 20_000);
    target.ask("launch 100");
    collector.hold_breath();
    collector.wait_for(state::PAUSED);
    target.wait_until("the memory is given back", |target| {
        let (ring, pool) = target.shim_resident();
        ring < before.0 + (1 << 20) && pool < before.1 + ONE_BUFFER
    });
    assert_eq!(collector.read().kernels.len(), 100);
    target.exit();
}
