//! When operations run, as the records tell it.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

use crate::cupti::{
    call_of, calls, of_kind, Record, Tool, ALL, DRIVER, KERNEL, MEMCPY, MEMCPY2, MEMSET, OVERHEAD,
    SYNC,
};
use crate::driver::{ok, Handle, Program};
use crate::leads::{self, Quantiles, Return};
use crate::process::{case, cases};

/// Longer than any test runs.
const FOREVER: u64 = 600_000_000_000;
const MS: u64 = 1_000_000;

/// A table's extremes, in ns.
fn least(table: &Quantiles) -> i64 {
    i64::from(table[0])
}

fn most(table: &Quantiles) -> i64 {
    i64::from(table[100])
}

/// `later - earlier`
fn after(later: u64, earlier: u64) -> i64 {
    later.wrapping_sub(earlier) as i64
}

/// The soonest after its start that a launch call makes an empty device start: call and lead
/// come from one draw, so the extremes of the sum are at the quantiles.
fn soonest_start() -> i64 {
    let sums = |call: Quantiles, lead: Quantiles| {
        (0..=100).map(move |i| i64::from(call[i]) + i64::from(lead[100 - i]))
    };
    let warm = sums(leads::LAUNCH_EMPTY_CALL, leads::LAUNCH_EMPTY_LEAD);
    let rested = sums(
        leads::LAUNCH_EMPTY_AFTER_SLEEP_CALL,
        leads::LAUNCH_EMPTY_AFTER_SLEEP_LEAD,
    );
    // Each of the two parts is rounded down.
    warm.chain(rested).min().unwrap() - 2
}

fn in_order(ops: &[Record]) {
    for pair in ops.windows(2) {
        assert!(pair[0].end() <= pair[1].start(), "{pair:?}");
    }
}

#[test]
fn a_stream_runs_in_order_with_its_leads() {
    case(
        "timeline::a_stream_runs_in_order_with_its_leads",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let s = p.stream();
            for _ in 0..50 {
                for _ in 0..4 {
                    p.launch(s, 30_000);
                }
                p.synchronise(s);
            }
            let records = tool.flush();
            let kernels = of_kind(&records, KERNEL);
            assert_eq!(kernels.len(), 200);
            in_order(&kernels);
            for (i, kernel) in kernels.iter().enumerate() {
                let call = call_of(&records, kernel);
                assert_eq!(call.cbid(), 307);
                assert!(call.start() <= call.end() && call.start() <= kernel.start());
                assert_eq!(kernel.end() - kernel.start(), 30_000);
                if i % 4 == 0 {
                    // The device was empty: the lead is one of the table's.
                    let lead = most(&leads::LAUNCH_EMPTY_LEAD)
                        .max(most(&leads::LAUNCH_EMPTY_AFTER_SLEEP_LEAD));
                    let start = after(kernel.start(), call.start());
                    assert!(start >= soonest_start(), "{i}: {start}");
                    assert!(after(kernel.start(), call.end()) <= lead, "{i}");
                }
            }
            // Grid, block, shared memory and the name are those of the launch.
            let kernel = &kernels[0];
            let numbers: Vec<u32> = (0..6).map(|i| kernel.u32(52 + 4 * i)).collect();
            assert_eq!(numbers, [4, 2, 1, 128, 1, 1]);
            assert_eq!(kernel.u32(80), 64);
            // SAFETY: names stay valid for ever.
            let name = unsafe { std::ffi::CStr::from_ptr(kernel.u64(104) as *const _) };
            assert_eq!(name.to_str().unwrap(), crate::driver::KERNEL);
        },
    );
}

#[test]
fn a_fixed_lead_is_kept_to_the_nanosecond() {
    case(
        "timeline::a_fixed_lead_is_kept_to_the_nanosecond",
        &[
            ("GDIAG_SIM_LEAD_NS", "50000"),
            ("GDIAG_SIM_LAUNCH_NS", "9000"),
        ],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[KERNEL, DRIVER]);
            for _ in 0..10 {
                p.launch(null_mut(), 1_000);
                p.synchronise(null_mut());
            }
            let records = tool.flush();
            for kernel in of_kind(&records, KERNEL) {
                let call = call_of(&records, &kernel);
                assert!(call.end() - call.start() >= 9_000);
                assert!(kernel.start() >= call.start() + 59_000);
                // Later only if the thread lost its CPU after the doorbell, and then the call is longer.
                assert!(kernel.start() <= call.end() + 50_000);
            }
        },
    );
}

#[test]
fn kernels_of_different_streams_overlap_up_to_the_limit() {
    cases(
        "timeline::kernels_of_different_streams_overlap_up_to_the_limit",
        [
            [("GDIAG_SIM_CONCURRENCY", "1")],
            [("GDIAG_SIM_CONCURRENCY", "2")],
        ],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[KERNEL]);
            let (s, t) = (p.stream(), p.stream());
            p.launch(s, 100 * MS);
            p.launch(t, 100 * MS);
            p.synchronise(s);
            p.synchronise(t);
            let kernels = of_kind(&tool.flush(), KERNEL);
            assert_ne!(kernels[0].place().2, kernels[1].place().2);
            let overlap = kernels[1].start() < kernels[0].end();
            assert_eq!(
                overlap,
                std::env::var("GDIAG_SIM_CONCURRENCY").unwrap() == "2"
            );
        },
    );
}

#[test]
fn an_event_holds_a_stream_of_another_device_back() {
    case(
        "timeline::an_event_holds_a_stream_of_another_device_back",
        &[
            ("GDIAG_SIM_DEVICES", "2"),
            ("GDIAG_SIM_EVENT_LATENCY_US", "40"),
        ],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let s = p.stream();
            let event = p.event();
            p.launch(s, 50 * MS);
            ok!((p.cu.event_record)(event, s));
            let q = Program::on(p.cu, 1);
            let t = q.stream();
            ok!((q.cu.stream_wait_event)(t, event, 0));
            q.launch(t, 1_000);
            // SAFETY: live handles.
            unsafe {
                assert_eq!((q.cu.stream_query)(t), 600);
                assert_eq!((q.cu.event_query)(event), 600);
            }
            q.synchronise(t);
            ok!((q.cu.event_query)(event));
            let records = tool.flush();
            let kernels = of_kind(&records, KERNEL);
            assert_eq!((kernels[0].place().0, kernels[1].place().0), (0, 1));
            assert_eq!(kernels[1].start(), kernels[0].end() + 40_000);
            // The wait is reported with the waiting stream, the event and the host's times.
            let waits: Vec<Record> = of_kind(&records, SYNC)
                .into_iter()
                .filter(|sync| sync.u32(4) == 2)
                .collect();
            assert_eq!(waits.len(), 1);
            assert_eq!(waits[0].u32(32), kernels[1].place().2);
            assert_ne!(waits[0].u32(36), u32::MAX);
            assert!(waits[0].end() < kernels[0].end());
        },
    );
}

#[test]
fn copies_of_one_direction_never_overlap() {
    case(
        "timeline::copies_of_one_direction_never_overlap",
        &[("GDIAG_SIM_GBPS", "10")],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let bytes = 1 << 20;
            let (memory, host) = (p.device_memory(bytes), p.pinned(bytes));
            let streams: Vec<Handle> = (0..4).map(|_| p.stream()).collect();
            for _ in 0..5 {
                for &s in &streams {
                    ok!((p.cu.up_async)(memory, host, bytes, s));
                    ok!((p.cu.down_async)(host, memory, bytes, s));
                }
            }
            ok!((p.cu.context_synchronise)());
            let records = tool.flush();
            for direction in [1, 2] {
                let mut copies = of_kind(&records, MEMCPY);
                copies.retain(|copy| copy.u8(4) == direction);
                copies.sort_by_key(Record::start);
                assert_eq!(copies.len(), 20);
                in_order(&copies);
                // 1 MiB at 10 GB/s, of which 4 KiB are in the measured fixed part.
                let fixed = if direction == 1 {
                    leads::HTOD_PINNED_4K_LENGTH
                } else {
                    leads::DTOH_PINNED_4K_LENGTH
                };
                for copy in &copies {
                    let ns = after(copy.end(), copy.start()) - 104_448;
                    assert!(ns >= least(&fixed) && ns <= most(&fixed), "{ns}");
                }
                // From one stream to the next, through one engine.
                for pair in copies.windows(2) {
                    let gap = after(pair[1].start(), pair[0].end());
                    assert!(gap >= least(&leads::COPY_ENGINE_GAP), "{gap}");
                }
            }
        },
    );
}

/// Kind, source and destination of the only copy.
fn kinds(records: &[Record]) -> (u8, u8, u8) {
    let copies = of_kind(records, MEMCPY);
    assert_eq!(copies.len(), 1);
    (copies[0].u8(4), copies[0].u8(5), copies[0].u8(6))
}

#[test]
fn pageable_copies_to_the_device_return_once_staged() {
    case(
        "timeline::pageable_copies_to_the_device_return_once_staged",
        &[],
        || {
            let p = Program::start();
            Tool::collecting(&ALL);
            let (s, host) = (p.stream(), vec![1u8; 64 << 10]);
            let memory = p.device_memory(host.len());
            // That this returns at all is the point: the stream is busy for ever.
            p.launch(s, FOREVER);
            ok!((p.cu.up_async)(memory, host.as_ptr().cast(), host.len(), s));
        },
    );
}

#[test]
fn synchronous_pageable_copies_wait_for_the_stream_first() {
    case(
        "timeline::synchronous_pageable_copies_wait_for_the_stream_first",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let host = vec![1u8; 16 << 20];
            let memory = p.device_memory(host.len());
            p.launch(null_mut(), 10 * MS);
            ok!((p.cu.up)(memory, host.as_ptr().cast(), host.len()));
            p.synchronise(null_mut());
            let records = tool.flush();
            assert_eq!(kinds(&records), (1, 1, 3));
            let copy = &of_kind(&records, MEMCPY)[0];
            let call = call_of(&records, copy);
            let kernel = &of_kind(&records, KERNEL)[0];
            assert!(copy.start() >= kernel.end() && call.end() >= kernel.end());
            // Only the last bytes are still on their way when the call returns.
            let returned = least(&leads::HTOD_PAGEABLE_1M_RETURN_AFTER_END);
            assert!(after(call.end(), copy.end()) >= returned);
        },
    );
}

#[test]
fn pageable_copies_to_the_host_return_when_done() {
    case(
        "timeline::pageable_copies_to_the_host_return_when_done",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let (s, mut host) = (p.stream(), vec![1u8; 64 << 10]);
            let memory = p.device_memory(host.len());
            p.launch(s, 20 * MS);
            ok!((p.cu.down_async)(
                host.as_mut_ptr().cast(),
                memory,
                host.len(),
                s
            ));
            let records = tool.flush();
            assert_eq!(kinds(&records), (2, 3, 1));
            let copy = &of_kind(&records, MEMCPY)[0];
            assert!(copy.start() >= of_kind(&records, KERNEL)[0].end());
            let returned = after(call_of(&records, copy).end(), copy.end());
            assert!(returned >= least(&leads::DTOH_PAGEABLE_4B_RETURN_AFTER_END));
            assert!(host.iter().all(|&byte| byte == 0));
        },
    );
}

#[test]
fn pinned_copies_return_at_once_unless_synchronous() {
    case(
        "timeline::pinned_copies_return_at_once_unless_synchronous",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let host = p.pinned(4 << 10);
            let memory = p.device_memory(4 << 10);
            ok!((p.cu.down)(host, memory, 4 << 10));
            let records = tool.flush();
            assert_eq!(kinds(&records), (2, 3, 2));
            let copy = &of_kind(&records, MEMCPY)[0];
            let call = call_of(&records, copy);
            assert_eq!(call.cbid(), 278);
            assert!(call.end() >= copy.end());
            // An address inside the allocation is pinned too; both calls return though the stream is busy.
            let s = p.stream();
            p.launch(s, FOREVER);
            let inside = host.cast::<u8>().wrapping_add(1_000).cast::<c_void>();
            ok!((p.cu.up_async)(memory, inside, 1_000, s));
            ok!((p.cu.down_async)(inside, memory, 1_000, s));
        },
    );
}

#[test]
fn a_full_queue_blocks_the_launch_until_there_is_room() {
    case(
        "timeline::a_full_queue_blocks_the_launch_until_there_is_room",
        &[("GDIAG_SIM_QUEUE", "4")],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let s = p.stream();
            for _ in 0..8 {
                p.launch(s, 10 * MS);
            }
            p.synchronise(s);
            let records = tool.flush();
            let kernels = of_kind(&records, KERNEL);
            let mut full = of_kind(&records, OVERHEAD);
            full.retain(|overhead| overhead.u32(4) == 6 << 16);
            for n in 4..8 {
                let (call, front) = (call_of(&records, &kernels[n]), &kernels[n - 4]);
                assert!(call.end() >= front.end(), "{n}");
                // The wait is reported as overhead of the call.
                let wait = full.iter().find(|o| o.u32(40) == call.correlation());
                if let Some(wait) = wait {
                    assert!(wait.start() < front.end() && wait.end() >= front.end());
                }
            }
            // There was room for the first four.
            let first: Vec<u32> = kernels[..4].iter().map(Record::correlation).collect();
            assert!(!full.is_empty());
            assert!(full.iter().all(|o| !first.contains(&o.u32(40))));
            // A kernel that was queued in time follows at once: a full queue makes no gap.
            for pair in kernels.windows(2) {
                let in_time = call_of(&records, &pair[1]).end() + 30_000 < pair[0].end();
                let gap = after(pair[1].start(), pair[0].end());
                assert!(!in_time || gap <= most(&leads::LAUNCH_QUEUED_20US_GAP));
            }
        },
    );
}

#[test]
fn synchronising_calls_end_after_the_work() {
    cases(
        "timeline::synchronising_calls_end_after_the_work",
        [[("GDIAG_SIM_SYNC", "spin")], [("GDIAG_SIM_SYNC", "block")]],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let (s, event) = (p.stream(), p.event());
            p.launch(s, 5 * MS);
            p.synchronise(s);
            p.launch(s, 5 * MS);
            ok!((p.cu.event_record)(event, s));
            ok!((p.cu.event_synchronise)(event));
            p.launch(s, 5 * MS);
            ok!((p.cu.context_synchronise)());
            let records = tool.flush();
            let kernels = of_kind(&records, KERNEL);
            let syncs = of_kind(&records, SYNC);
            let stream = kernels[0].place().2;
            // Type, stream, cbid: stream, event and context.
            let expected = [
                (3, stream, 126, &leads::STREAM_SYNC),
                (1, u32::MAX, 121, &leads::EVENT_SYNC),
                (4, u32::MAX, 17, &leads::CTX_SYNC),
            ];
            let asleep = std::env::var("GDIAG_SIM_SYNC").unwrap() == "block";
            let soonest = |returns: &Return| {
                least(if asleep {
                    returns.asleep
                } else {
                    returns.awake
                })
            };
            assert_eq!(syncs.len(), 3);
            for ((sync, kernel), (what, stream, cbid, returns)) in
                syncs.iter().zip(&kernels).zip(expected)
            {
                assert_eq!((sync.u32(4), sync.u32(32)), (what, stream));
                let call = call_of(&records, sync);
                assert_eq!(call.cbid(), cbid);
                assert!(call.start() <= sync.start() && sync.end() <= call.end());
                assert!(sync.start() <= kernel.end());
                assert!(after(sync.end(), kernel.end()) >= soonest(returns));
            }
        },
    );
}

static RAN_ON: Mutex<String> = Mutex::new(String::new());
static CALL_RESULT: AtomicU32 = AtomicU32::new(0);

extern "C" fn host_function(argument: *mut c_void) {
    let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
    *RAN_ON.lock().unwrap() = name.trim().to_owned();
    let query = argument as usize;
    // SAFETY: the argument is cuStreamQuery.
    let query: unsafe extern "C" fn(Handle) -> u32 = unsafe { std::mem::transmute(query) };
    // SAFETY: the null stream.
    CALL_RESULT.store(unsafe { query(null_mut()) }, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_millis(3));
}

#[test]
fn a_host_function_runs_in_turn_on_the_drivers_thread() {
    cases(
        "timeline::a_host_function_runs_in_turn_on_the_drivers_thread",
        [[("GDIAG_SIM_SYNC", "spin")], [("GDIAG_SIM_SYNC", "block")]],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let s = p.stream();
            p.launch(s, 4 * MS);
            let argument = p.cu.stream_query as usize as *mut c_void;
            ok!((p.cu.launch_host)(s, host_function, argument));
            p.launch(s, MS);
            p.synchronise(s);
            assert_eq!(*RAN_ON.lock().unwrap(), "cuda-EvtHandlr");
            // CUDA calls are not permitted there.
            assert_eq!(CALL_RESULT.load(Ordering::SeqCst), 800);
            let records = tool.flush();
            let kernels = of_kind(&records, KERNEL);
            assert!(kernels[1].start() >= kernels[0].end() + 3 * MS);
            assert_eq!(calls(&records, 527).len(), 1);
            assert!(of_kind(&records, SYNC)[0].end() >= kernels[1].end());
        },
    );
}

#[test]
fn freeing_memory_waits_for_the_device() {
    case(
        "timeline::freeing_memory_waits_for_the_device",
        &[("GDIAG_SIM_ALLOC_US", "500")],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let s = p.stream();
            let memory = p.device_memory(100);
            p.launch(s, 10 * MS);
            ok!((p.cu.free)(memory));
            // SAFETY: a number.
            assert_eq!(unsafe { (p.cu.free)(memory) }, 1, "freed twice");
            let records = tool.flush();
            let free = &calls(&records, 245)[0];
            assert!(free.end() >= of_kind(&records, KERNEL)[0].end() + 500_000);
            let alloc = &calls(&records, 243)[0];
            assert!(alloc.end() - alloc.start() >= 500_000);
        },
    );
}

#[test]
fn memsets_and_peer_copies_have_their_records() {
    case(
        "timeline::memsets_and_peer_copies_have_their_records",
        &[("GDIAG_SIM_DEVICES", "2")],
        || {
            let p = Program::start();
            let q = Program::on(p.cu, 1);
            ok!((p.cu.context_current)(p.context));
            let tool = Tool::collecting(&ALL);
            let s = p.stream();
            let memory = p.device_memory(4096);
            ok!((p.cu.set_async)(memory, 7, 4096, s));
            ok!((p.cu.peer_async)(
                memory, q.context, memory, p.context, 4096, s
            ));
            p.synchronise(s);
            let records = tool.flush();
            let set = &of_kind(&records, MEMSET)[0];
            assert_eq!((set.u32(4), set.u64(8)), (7, 4096));
            assert_eq!(call_of(&records, set).cbid(), 216);
            let peer = &of_kind(&records, MEMCPY2)[0];
            assert_eq!((peer.u8(4), peer.u64(8)), (10, 4096));
            // Source and destination: devices 0 and 1, contexts 1 and 2.
            let ids: Vec<u32> = (0..4).map(|i| peer.u32(44 + 4 * i)).collect();
            assert_eq!(ids, [0, 1, 1, 2]);
            assert_eq!(call_of(&records, peer).cbid(), 319);
            assert!(peer.start() >= set.end());
        },
    );
}

#[test]
fn modules_cost_their_time() {
    case(
        "timeline::modules_cost_their_time",
        &[("GDIAG_SIM_MODULE_MS", "3")],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[DRIVER, OVERHEAD]);
            for image in [c".version 8.0 ...", c"\x7fELF..."] {
                let mut module = null_mut();
                ok!((p.cu.module_load)(&raw mut module, image.as_ptr().cast()));
            }
            let records = tool.flush();
            let loads = calls(&records, 19);
            assert_eq!(loads.len(), 2);
            assert!(loads.iter().all(|load| load.end() - load.start() >= 3 * MS));
            // Only the text was compiled.
            let mut compiled = of_kind(&records, OVERHEAD);
            compiled.retain(|overhead| overhead.u32(4) == 1);
            assert_eq!(compiled.len(), 1);
            let inside = loads[0].start() <= compiled[0].start();
            assert!(inside && compiled[0].end() <= loads[0].end());
        },
    );
}
