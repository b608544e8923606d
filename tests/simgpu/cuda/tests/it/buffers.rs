//! Records, buffers and faults.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::sync::Mutex;

use crate::cupti::{
    call_of, of_kind, Record, Tool, ALL, BUFFER_BYTES, CUDA_EVENT, DRIVER, KERNEL, MEMCPY, MEMCPY2,
    MEMSET, OVERHEAD, REQUESTS, REQUEST_TID, SYNC,
};
use crate::driver::{ok, Program};
use crate::process::{case, cases};

const FOREVER: u64 = 600_000_000_000;

fn gettid() -> u32 {
    // SAFETY: plain call.
    unsafe { libc::gettid() as u32 }
}

fn realtime() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64
}

/// Version, `cuptiGetVersion`, and sizes: kernel, memcpy, memset, sync, overhead, event.
const LAYOUTS: [(&str, u32, [usize; 6]); 9] = [
    ("11.7", 17, [176, 88, 88, 40, 40, 24]),
    ("11.8", 18, [200, 88, 88, 40, 40, 24]),
    ("12.1", 18, [208, 88, 88, 40, 40, 24]),
    ("12.4", 22, [208, 88, 88, 40, 56, 24]),
    ("12.9", 28, [208, 96, 88, 56, 56, 56]),
    ("13.0", 130_001, [216, 96, 88, 56, 56, 56]),
    ("13.2", 130_202, [224, 96, 88, 56, 56, 56]),
    ("13.3", 130_301, [232, 96, 88, 56, 56, 56]),
    ("13.5", 130_500, [248, 112, 104, 56, 56, 80]),
];

#[test]
fn records_have_the_layout_of_the_chosen_version() {
    cases(
        "buffers::records_have_the_layout_of_the_chosen_version",
        LAYOUTS.map(|(version, ..)| [("GDIAG_SIM_CUPTI", version)]),
        || {
            let chosen = std::env::var("GDIAG_SIM_CUPTI").unwrap();
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let (s, event) = (p.stream(), p.event());
            let memory = p.device_memory(64);
            let host = p.pinned(64);
            p.launch(s, 1_000);
            ok!((p.cu.up_async)(memory, host, 64, s));
            ok!((p.cu.set_async)(memory, 0, 64, s));
            ok!((p.cu.peer_async)(
                memory, p.context, memory, p.context, 64, s
            ));
            ok!((p.cu.event_record)(event, s));
            let mut module = null_mut();
            ok!((p.cu.module_load)(&raw mut module, c"text".as_ptr().cast()));
            p.synchronise(s);
            let records = tool.flush();
            let size = |kind| of_kind(&records, kind)[0].0.len();
            let found = [KERNEL, MEMCPY, MEMSET, SYNC, OVERHEAD, CUDA_EVENT].map(size);
            let (_, number, sizes) = LAYOUTS.into_iter().find(|l| l.0 == chosen).unwrap();
            assert_eq!(found, sizes, "{chosen}");
            assert_eq!((size(DRIVER), size(MEMCPY2)), (40, 96));
            let mut version = 0;
            ok!((tool.cupti.version)(&raw mut version));
            assert_eq!(version, number);
        },
    );
}

#[test]
fn operations_share_the_correlation_id_of_their_call() {
    case(
        "buffers::operations_share_the_correlation_id_of_their_call",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            let (s, memory, host) = (p.stream(), p.device_memory(64), p.pinned(64));
            p.launch(s, 1_000);
            ok!((p.cu.up_async)(memory, host, 64, s));
            ok!((p.cu.down_async)(host, memory, 64, s));
            ok!((p.cu.set_async)(memory, 0, 64, s));
            p.synchronise(s);
            let records = tool.flush();
            let operations: Vec<Record> = [KERNEL, MEMCPY, MEMSET]
                .iter()
                .flat_map(|&kind| of_kind(&records, kind))
                .collect();
            let cbids: Vec<u32> = operations
                .iter()
                .map(|op| call_of(&records, op).cbid())
                .collect();
            assert_eq!(cbids, [307, 277, 279, 216]);
            for op in &operations {
                assert_eq!(op.place(), operations[0].place());
                assert!(call_of(&records, op).start() <= op.start());
            }
        },
    );
}

#[test]
fn records_are_on_the_wall_clock() {
    case("buffers::records_are_on_the_wall_clock", &[], || {
        let p = Program::start();
        let tool = Tool::collecting(&[DRIVER]);
        let (mut stamp, before) = (0, realtime());
        ok!((tool.cupti.timestamp)(&raw mut stamp));
        p.synchronise(null_mut());
        let after = realtime();
        assert!(before <= stamp && stamp <= after);
        let call = &of_kind(&tool.flush(), DRIVER)[0];
        // The offset between the clocks is known to within a microsecond or two.
        assert!(before <= call.start() + 5_000 && call.end() <= after + 5_000);
    });
}

#[test]
fn threads_have_the_id_that_was_asked_for() {
    case(
        "buffers::threads_have_the_id_that_was_asked_for",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[DRIVER]);
            p.synchronise(null_mut());
            ok!((tool.cupti.thread_ids)(1));
            p.synchronise(null_mut());
            let calls = of_kind(&tool.flush(), DRIVER);
            // SAFETY: plain call.
            let me = unsafe { libc::pthread_self() } as u32;
            assert_eq!([calls[0].u32(28), calls[1].u32(28)], [me, gettid()]);
            assert_eq!(calls[0].u32(24), std::process::id());
        },
    );
}

#[test]
fn buffers_are_asked_for_on_the_calling_thread() {
    case(
        "buffers::buffers_are_asked_for_on_the_calling_thread",
        &[],
        || {
            let p = Program::start();
            Tool::collecting(&ALL);
            p.synchronise(null_mut());
            assert_eq!(REQUEST_TID.load(Ordering::SeqCst) as u32, gettid());
        },
    );
}

#[test]
fn each_thread_has_a_buffer_where_the_version_says_so() {
    cases(
        "buffers::each_thread_has_a_buffer_where_the_version_says_so",
        [
            [("GDIAG_SIM_CUPTI", "12.4"), ("BUFFERS", "1")],
            [("GDIAG_SIM_CUPTI", "13.0"), ("BUFFERS", "2")],
        ],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[DRIVER]);
            p.synchronise(null_mut());
            let (cu, context) = (p.cu, p.context as usize);
            std::thread::spawn(move || {
                ok!((cu.context_current)(context as *mut c_void));
            })
            .join()
            .unwrap();
            let count = REQUESTS.load(Ordering::SeqCst);
            assert_eq!(count.to_string(), std::env::var("BUFFERS").unwrap());
            assert_eq!(tool.flush().len(), 2);
        },
    );
}

#[test]
fn a_flush_withholds_what_still_runs() {
    case("buffers::a_flush_withholds_what_still_runs", &[], || {
        let p = Program::start();
        let tool = Tool::collecting(&ALL);
        let s = p.stream();
        p.launch(s, 1_000);
        p.synchronise(s);
        assert_eq!(of_kind(&tool.flush(), KERNEL).len(), 1);
        p.launch(s, 1_000);
        p.synchronise(s);
        p.launch(s, FOREVER);
        // The complete kernel is in the same buffer as the running one.
        assert_eq!(of_kind(&tool.flush(), KERNEL).len(), 1);
        ok!((tool.cupti.flush)(1));
        let kernels = of_kind(&tool.delivered(), KERNEL);
        assert_eq!(kernels.len(), 3);
        assert_ne!(kernels[1].times(), (0, 0));
        assert_eq!(kernels[2].times(), (0, 0));
    });
}

#[test]
fn full_buffers_come_without_a_flush() {
    case("buffers::full_buffers_come_without_a_flush", &[], || {
        BUFFER_BYTES.store(4096, Ordering::SeqCst);
        let p = Program::start();
        let tool = Tool::collecting(&[KERNEL]);
        let s = p.stream();
        // 18 records of 216 bytes fill a buffer.
        for _ in 0..19 {
            p.launch(s, 1_000);
        }
        assert!(tool.wait_for(|record| record.kind() == KERNEL));
        assert_eq!(tool.delivered().len(), 18);
        assert!(tool.delivered().iter().all(|r| r.times() != (0, 0)));
        p.synchronise(s);
        assert_eq!(tool.flush().len(), 19);
    });
}

#[test]
fn without_a_buffer_every_record_counts_as_dropped() {
    case(
        "buffers::without_a_buffer_every_record_counts_as_dropped",
        &[],
        || {
            let p = Program::start();
            let s = p.stream();
            BUFFER_BYTES.store(0, Ordering::SeqCst);
            let tool = Tool::collecting(&[KERNEL]);
            for _ in 0..25 {
                p.launch(s, 1_000);
            }
            assert_eq!(tool.dropped(), 25);
            assert_eq!(tool.dropped(), 0, "the count starts anew");
            BUFFER_BYTES.store(4096, Ordering::SeqCst);
            p.launch(s, 1_000);
            p.synchronise(s);
            assert_eq!((tool.flush().len(), tool.dropped()), (1, 0));
        },
    );
}

/// Kernels that came, and how many are said to be dropped, of 20.
fn of_twenty() -> (Vec<Record>, usize) {
    let p = Program::start();
    let tool = Tool::collecting(&[KERNEL]);
    for _ in 0..20 {
        p.launch(null_mut(), 1_000);
    }
    p.synchronise(null_mut());
    (tool.flush(), tool.dropped())
}

#[test]
fn injected_drops_are_counted() {
    case(
        "buffers::injected_drops_are_counted",
        &[("GDIAG_SIM_DROP", "4")],
        || {
            let (kernels, dropped) = of_twenty();
            assert_eq!((kernels.len(), dropped), (15, 5));
        },
    );
}

#[test]
fn injected_losses_are_not_counted() {
    case(
        "buffers::injected_losses_are_not_counted",
        &[("GDIAG_SIM_LOSE", "10")],
        || {
            let (kernels, dropped) = of_twenty();
            assert_eq!((kernels.len(), dropped), (18, 0));
        },
    );
}

#[test]
fn injected_zeros_have_no_times() {
    case(
        "buffers::injected_zeros_have_no_times",
        &[("GDIAG_SIM_ZERO", "5")],
        || {
            let (kernels, dropped) = of_twenty();
            let zeros = kernels.iter().filter(|k| k.times() == (0, 0)).count();
            assert_eq!((kernels.len(), zeros, dropped), (20, 4, 0));
        },
    );
}

unsafe extern "C" fn no_request(_: *mut *mut u8, _: *mut usize, _: *mut usize) {}
unsafe extern "C" fn no_complete(_: *mut c_void, _: u32, _: *mut u8, _: usize, _: usize) {}

/// Site, cbid and correlation of every callback.
static CALLBACKS: Mutex<Vec<(u32, u32, u32)>> = Mutex::new(Vec::new());

unsafe extern "C" fn callback(_: *mut c_void, domain: u32, cbid: u32, data: *const c_void) {
    assert_eq!(domain, 1);
    // SAFETY: CUpti_CallbackData: the site comes first, the correlation id at 64.
    let (site, correlation) = unsafe {
        let data = data.cast::<u8>();
        (data.cast::<u32>().read(), data.add(64).cast::<u32>().read())
    };
    CALLBACKS.lock().unwrap().push((site, cbid, correlation));
}

#[test]
fn a_busy_cupti_refuses() {
    case(
        "buffers::a_busy_cupti_refuses",
        &[("GDIAG_SIM_CUPTI_BUSY", "1")],
        || {
            let p = Program::start();
            let cupti = Tool::open().cupti;
            let mut subscriber = null_mut();
            let mut stamp = 0u64;
            // SAFETY: live arguments of the right kind.
            unsafe {
                assert_eq!(
                    (cupti.subscribe)(&raw mut subscriber, callback, null_mut()),
                    39
                );
                assert_eq!((cupti.register)(no_request, no_complete), 14);
                assert_eq!((cupti.enable)(KERNEL), 14);
                assert_eq!((cupti.timestamp)(&raw mut stamp), 14);
                assert_eq!((cupti.flush_period)(100), 14);
            }
            p.launch(null_mut(), 1_000);
            p.synchronise(null_mut());
        },
    );
}

#[test]
fn another_tool_takes_the_buffers_over() {
    case(
        "buffers::another_tool_takes_the_buffers_over",
        &[("GDIAG_SIM_CUPTI_TAKEOVER_MS", "1")],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&ALL);
            std::thread::sleep(std::time::Duration::from_millis(2));
            p.launch(null_mut(), 1_000);
            p.synchronise(null_mut());
            assert!(of_kind(&tool.flush(), KERNEL).is_empty());
        },
    );
}

#[test]
fn there_is_one_subscriber_and_it_is_called_back() {
    case(
        "buffers::there_is_one_subscriber_and_it_is_called_back",
        &[],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[DRIVER]);
            let cupti = tool.cupti;
            let (mut subscriber, mut second) = (null_mut(), null_mut());
            ok!((cupti.subscribe)(&raw mut subscriber, callback, null_mut()));
            // SAFETY: live arguments of the right kind.
            let again = unsafe { (cupti.subscribe)(&raw mut second, callback, null_mut()) };
            assert_eq!(again, 39);
            ok!((cupti.enable_callback)(1, subscriber, 1, 307));
            p.launch(null_mut(), 1_000);
            p.synchronise(null_mut());
            ok!((cupti.enable_callback)(0, subscriber, 1, 307));
            ok!((cupti.enable_domain)(1, subscriber, 1));
            p.synchronise(null_mut());
            ok!((cupti.unsubscribe)(subscriber));
            p.synchronise(null_mut());
            let ids: Vec<u32> = of_kind(&tool.flush(), DRIVER)
                .iter()
                .map(Record::correlation)
                .collect();
            let expected = [
                (0, 307, ids[0]),
                (1, 307, ids[0]),
                (0, 126, ids[2]),
                (1, 126, ids[2]),
            ];
            assert_eq!(*CALLBACKS.lock().unwrap(), expected);
            ok!((cupti.subscribe)(&raw mut second, callback, null_mut()));
        },
    );
}

#[test]
fn driver_calls_can_be_filtered_from_12_5_on() {
    cases(
        "buffers::driver_calls_can_be_filtered_from_12_5_on",
        [[("GDIAG_SIM_CUPTI", "12.4")], [("GDIAG_SIM_CUPTI", "12.5")]],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[DRIVER]);
            // SAFETY: numbers.
            let result = unsafe { (tool.cupti.driver_api)(126, 0) };
            p.launch(null_mut(), 1_000);
            p.synchronise(null_mut());
            let cbids: Vec<u32> = tool.flush().iter().map(Record::cbid).collect();
            match std::env::var("GDIAG_SIM_CUPTI").unwrap().as_str() {
                "12.4" => assert_eq!((result, &cbids[..]), (14, &[307, 126][..])),
                _ => assert_eq!((result, &cbids[..]), (0, &[307][..])),
            }
        },
    );
}

#[test]
fn kinds_of_later_versions_are_refused() {
    case("buffers::kinds_of_later_versions_are_refused", &[], || {
        let p = Program::start();
        let tool = Tool::collecting(&[DRIVER]);
        // SAFETY: numbers.
        unsafe {
            assert_eq!((tool.cupti.enable)(56), 14);
            assert_eq!((tool.cupti.enable)(99), 21);
            assert_eq!((tool.cupti.disable)(DRIVER), 0);
        }
        p.synchronise(null_mut());
        assert!(tool.flush().is_empty());
    });
}

#[test]
fn event_records_come_with_synchronisation_before_12_9() {
    cases(
        "buffers::event_records_come_with_synchronisation_before_12_9",
        [[("GDIAG_SIM_CUPTI", "12.8")], [("GDIAG_SIM_CUPTI", "12.9")]],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[SYNC]);
            let event = p.event();
            ok!((p.cu.event_record)(event, null_mut()));
            let old = std::env::var("GDIAG_SIM_CUPTI").unwrap() == "12.8";
            assert_eq!(of_kind(&tool.flush(), CUDA_EVENT).len(), usize::from(old));
        },
    );
}

#[test]
fn attributes_are_kept() {
    case("buffers::attributes_are_kept", &[], || {
        let _p = Program::start();
        let tool = Tool::open();
        let (mut size, mut value) = (8, 0u64);
        let pointer = (&raw mut value).cast::<c_void>();
        ok!((tool.cupti.get)(0, &raw mut size, pointer));
        assert_eq!((size, value), (8, 3_200_000));
        let mut one = 1u8;
        size = 1;
        ok!((tool.cupti.set)(5, &raw mut size, (&raw mut one).cast()));
        value = 0;
        ok!((tool.cupti.get)(5, &raw mut size, pointer));
        assert_eq!(value, 1);
        ok!((tool.cupti.get)(9, &raw mut size, pointer));
        assert_eq!(value, 1, "a buffer per thread is the default of 13.0");
        // SAFETY: live arguments.
        unsafe {
            assert_eq!((tool.cupti.get)(2, &raw mut size, pointer), 10);
            assert_eq!((tool.cupti.get)(77, &raw mut size, pointer), 1);
        }
    });
}

#[test]
fn asking_for_a_buffer_is_reported_as_overhead() {
    case(
        "buffers::asking_for_a_buffer_is_reported_as_overhead",
        &[("GDIAG_SIM_CUPTI", "12.8")],
        || {
            let p = Program::start();
            let tool = Tool::collecting(&[OVERHEAD, KERNEL]);
            p.launch(null_mut(), 1_000);
            p.synchronise(null_mut());
            let records = tool.flush();
            // Asking for a buffer is reported as overhead of the thread that did.
            let request = &of_kind(&records, OVERHEAD)[0];
            assert_eq!((request.u32(4), request.u32(8)), (7 << 16, 2));
            assert_eq!(request.u32(12), std::process::id());
            assert!(request.start() <= request.end());
        },
    );
}

#[test]
fn after_finalising_nothing_works() {
    case("buffers::after_finalising_nothing_works", &[], || {
        let p = Program::start();
        let tool = Tool::collecting(&ALL);
        ok!((tool.cupti.finalise)());
        p.launch(null_mut(), 1_000);
        p.synchronise(null_mut());
        // SAFETY: a number.
        assert_eq!(unsafe { (tool.cupti.enable)(KERNEL) }, 15);
        assert!(tool.delivered().is_empty());
    });
}
