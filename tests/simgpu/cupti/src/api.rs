//! The exported functions: CUPTI's names and signatures, and the link to libcuda.

use std::collections::HashSet;
use std::ffi::{c_char, c_void, CStr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::clock;
use crate::config;
use crate::kind;
use crate::link::{self, Call, Link};
use crate::session;
use crate::version::Support;

pub type CUptiResult = u32;

const SUCCESS: CUptiResult = 0;
const INVALID_PARAMETER: CUptiResult = 1;
const INVALID_OPERATION: CUptiResult = 7;
const PARAMETER_SIZE_NOT_SUFFICIENT: CUptiResult = 10;
const MAX_LIMIT_REACHED: CUptiResult = 12;
const NOT_COMPATIBLE: CUptiResult = 14;
const NOT_INITIALIZED: CUptiResult = 15;
const INVALID_KIND: CUptiResult = 21;
const UM_PROFILING_NOT_SUPPORTED: CUptiResult = 28;
const MULTIPLE_SUBSCRIBERS: CUptiResult = 39;

/// Tells the shim that nothing here is real.
#[no_mangle]
pub static gdiag_simulated: u32 = 1;

/// After `cuptiFinalize` every call fails.
static FINALISED: AtomicBool = AtomicBool::new(false);

/// The result of most calls before they do anything.
fn usable() -> Result<(), CUptiResult> {
    if FINALISED.load(Ordering::Relaxed) {
        Err(NOT_INITIALIZED)
    } else if config::get().busy {
        // What the first version of the API answers while somebody uses the second.
        Err(NOT_COMPATIBLE)
    } else {
        Ok(())
    }
}

fn result(outcome: Result<(), CUptiResult>) -> CUptiResult {
    outcome.err().unwrap_or(SUCCESS)
}

/// # Safety
/// `out` is null or valid for writes.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), CUptiResult> {
    if out.is_null() {
        return Err(INVALID_PARAMETER);
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// # Safety
/// As in CUPTI: `version` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuptiGetVersion(version: *mut u32) -> CUptiResult {
    // SAFETY: the tool's pointer.
    result(unsafe { put(version, config::get().version.api) })
}

/// # Safety
/// As in CUPTI: `timestamp` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuptiGetTimestamp(timestamp: *mut u64) -> CUptiResult {
    // SAFETY: the tool's pointer.
    result(usable().and_then(|()| unsafe { put(timestamp, clock::realtime()) }))
}

#[no_mangle]
pub extern "C" fn cuptiActivityRegisterCallbacks(
    request: Option<session::Request>,
    complete: Option<session::Complete>,
) -> CUptiResult {
    let (Some(request), Some(complete)) = (request, complete) else {
        return INVALID_PARAMETER;
    };
    result(usable().map(|()| session::register(request, complete)))
}

fn enable(kind: u32, on: bool) -> CUptiResult {
    // Kernels one at a time are not simulated.
    if kind == kind::KERNEL {
        return INVALID_KIND;
    }
    result(
        usable().and_then(|()| match config::get().version.support(kind) {
            Support::Yes => {
                session::enable(kind, on);
                Ok(())
            }
            Support::Later => Err(NOT_COMPATIBLE),
            Support::No => Err(INVALID_KIND),
        }),
    )
}

#[no_mangle]
pub extern "C" fn cuptiActivityEnable(kind: u32) -> CUptiResult {
    enable(kind, true)
}

#[no_mangle]
pub extern "C" fn cuptiActivityDisable(kind: u32) -> CUptiResult {
    enable(kind, false)
}

/// `CUpti_ActivityUnifiedMemoryCounterConfig`
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct UnifiedMemoryConfig {
    scope: u32,
    kind: u32,
    device: u32,
    enable: u32,
}

/// # Safety
/// As in CUPTI: `configs` is an array of that many.
#[no_mangle]
pub unsafe extern "C" fn cuptiActivityConfigureUnifiedMemoryCounter(
    configs: *const UnifiedMemoryConfig,
    count: u32,
) -> CUptiResult {
    if configs.is_null() || count == 0 {
        return INVALID_PARAMETER;
    }
    // SAFETY: the tool's array.
    let configs = unsafe { std::slice::from_raw_parts(configs, count as usize) };
    let known = |it: &UnifiedMemoryConfig| {
        (1..=2).contains(&it.scope) && (1..=8).contains(&it.kind) && it.enable <= 1
    };
    result(usable().and_then(|()| {
        static REFUSED: AtomicU64 = AtomicU64::new(0);
        if REFUSED.fetch_add(1, Ordering::Relaxed) < config::get().unified_memory_refusals {
            return Err(UM_PROFILING_NOT_SUPPORTED);
        }
        if !configs.iter().all(known) {
            return Err(INVALID_PARAMETER);
        }
        for it in configs {
            session::count_unified_memory(it.kind, it.enable == 1);
        }
        Ok(())
    }))
}

/// One more than any callback id of the versions here.
const CBIDS: u32 = 1_000;

fn filter(cbid: u32) -> Result<(), CUptiResult> {
    usable()?;
    if !config::get().version.has_api_filter() {
        return Err(NOT_COMPATIBLE);
    }
    if cbid == 0 || cbid >= CBIDS {
        return Err(INVALID_PARAMETER);
    }
    Ok(())
}

#[no_mangle]
pub extern "C" fn cuptiActivityEnableDriverApi(cbid: u32, enable: u8) -> CUptiResult {
    result(filter(cbid).map(|()| session::enable_driver_call(cbid, enable != 0)))
}

/// Accepted for the sake of the caller: no runtime runs on the simulated driver.
#[no_mangle]
pub extern "C" fn cuptiActivityEnableRuntimeApi(cbid: u32, _enable: u8) -> CUptiResult {
    result(filter(cbid))
}

/// # Safety
/// As in CUPTI: `buffer` holds `valid` bytes of records, `record` is valid and null or one of them.
#[no_mangle]
pub unsafe extern "C" fn cuptiActivityGetNextRecord(
    buffer: *mut u8,
    valid: usize,
    record: *mut *mut u8,
) -> CUptiResult {
    if buffer.is_null() || record.is_null() {
        return INVALID_PARAMETER;
    }
    // SAFETY: the tool's buffer; no read goes past `valid`.
    unsafe {
        let size = |at: *mut u8| {
            let kind = at.cast::<u32>().read_unaligned();
            config::get().version.size(kind).map(|n| n as usize)
        };
        let next = if (*record).is_null() {
            0
        } else {
            let offset = (*record).offset_from(buffer) as usize;
            let Some(size) = size(*record) else {
                return INVALID_KIND;
            };
            offset + size
        };
        if next + 4 > valid {
            return MAX_LIMIT_REACHED;
        }
        let next = buffer.add(next);
        if size(next).is_none() {
            return INVALID_KIND;
        }
        *record = next;
    }
    SUCCESS
}

/// # Safety
/// As in CUPTI: `dropped` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuptiActivityGetNumDroppedRecords(
    _context: *mut c_void,
    _stream: u32,
    dropped: *mut usize,
) -> CUptiResult {
    result(usable().and_then(|()| {
        if dropped.is_null() {
            return Err(INVALID_PARAMETER);
        }
        let count = session::DROPPED.swap(0, Ordering::Relaxed);
        // SAFETY: the tool's pointer.
        unsafe { put(dropped, count as usize) }
    }))
}

/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`
const FLUSH_FORCED: u32 = 1;

#[no_mangle]
pub extern "C" fn cuptiActivityFlushAll(flag: u32) -> CUptiResult {
    result(usable().and_then(|()| {
        let done = session::flush(flag & FLUSH_FORCED != 0);
        done.then_some(()).ok_or(INVALID_OPERATION)
    }))
}

/// Accepted, and changes nothing: it would deliver full buffers, which the worker does anyway.
#[no_mangle]
pub extern "C" fn cuptiActivityFlushPeriod(_ms: u32) -> CUptiResult {
    result(usable())
}

/// Attributes by number: their size and value now. Sizes as in the header.
static ATTRIBUTES: LazyLock<Mutex<[(u32, usize, u64); 10]>> = LazyLock::new(|| {
    let per_thread = config::get().version.has_thread_buffers();
    Mutex::new([
        (0, 8, 3_200_000), // DEVICE_BUFFER_SIZE
        (1, 8, 8 << 20),   // DEVICE_BUFFER_SIZE_CDP
        (2, 8, 250),       // DEVICE_BUFFER_POOL_LIMIT
        (3, 8, 25_000),    // PROFILING_SEMAPHORE_POOL_SIZE
        (4, 8, 250),       // PROFILING_SEMAPHORE_POOL_LIMIT
        (ZEROED, 1, 0),
        (6, 8, 3), // DEVICE_BUFFER_PRE_ALLOCATE_VALUE
        (7, 8, 3), // PROFILING_SEMAPHORE_PRE_ALLOCATE_VALUE
        (8, 1, 0), // MEM_ALLOCATION_TYPE_HOST_PINNED
        (PER_THREAD, 1, per_thread.into()),
    ])
});

const ZEROED: u32 = 5;
const PER_THREAD: u32 = 9;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
/// As in CUPTI: `size` is valid, `value` is valid for that many bytes.
unsafe fn attribute(
    number: u32,
    size: *mut usize,
    value: *mut c_void,
    set: bool,
) -> Result<(), CUptiResult> {
    usable()?;
    if size.is_null() || value.is_null() {
        return Err(INVALID_PARAMETER);
    }
    let mut attributes = lock(&ATTRIBUTES);
    let known = attributes.iter_mut().find(|(n, _, _)| *n == number);
    let (_, bytes, now) = known.ok_or(INVALID_PARAMETER)?;
    // SAFETY: the tool's pointers; at most `*size` bytes of the value are touched.
    unsafe {
        if *size < *bytes {
            return Err(PARAMETER_SIZE_NOT_SUFFICIENT);
        }
        let inside = std::ptr::from_mut(now).cast::<u8>();
        let outside = value.cast::<u8>();
        // Little-endian, as all machines that CUDA runs on.
        if set {
            inside.copy_from_nonoverlapping(outside, *bytes);
        } else {
            outside.copy_from_nonoverlapping(inside, *bytes);
        }
        *size = *bytes;
    }
    match number {
        ZEROED => session::set_zeroed(*now != 0),
        PER_THREAD => session::set_thread_buffers(*now != 0),
        _ => {}
    }
    Ok(())
}

/// # Safety
/// As in CUPTI: `size` is valid, `value` is valid for that many bytes.
#[no_mangle]
pub unsafe extern "C" fn cuptiActivitySetAttribute(
    number: u32,
    size: *mut usize,
    value: *mut c_void,
) -> CUptiResult {
    // SAFETY: the tool's pointers.
    result(unsafe { attribute(number, size, value, true) })
}

/// # Safety
/// As in CUPTI: `size` is valid, `value` is valid for that many bytes.
#[no_mangle]
pub unsafe extern "C" fn cuptiActivityGetAttribute(
    number: u32,
    size: *mut usize,
    value: *mut c_void,
) -> CUptiResult {
    // SAFETY: the tool's pointers.
    result(unsafe { attribute(number, size, value, false) })
}

#[no_mangle]
pub extern "C" fn cuptiSetThreadIdType(what: u32) -> CUptiResult {
    result(usable().and_then(|()| {
        if what > 1 {
            return Err(INVALID_PARAMETER);
        }
        session::THREAD_ID_TYPE.store(what, Ordering::Relaxed);
        Ok(())
    }))
}

/// # Safety
/// As in CUPTI: `what` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuptiGetThreadIdType(what: *mut u32) -> CUptiResult {
    let now = session::THREAD_ID_TYPE.load(Ordering::Relaxed);
    // SAFETY: the tool's pointer.
    result(usable().and_then(|()| unsafe { put(what, now) }))
}

/// `CUpti_CallbackFunc`
pub type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

struct Subscriber {
    callback: Callback,
    userdata: *mut c_void,
    /// All driver calls.
    all: bool,
    cbids: HashSet<u32>,
}

// SAFETY: userdata is only handed back to the tool, which asked for calls on any thread.
unsafe impl Send for Subscriber {}

static SUBSCRIBER: Mutex<Option<Subscriber>> = Mutex::new(None);
/// There is a subscriber that wants driver calls; read without the lock on every call.
static WANTS_CALLS: AtomicBool = AtomicBool::new(false);

/// The only subscriber's handle.
const HANDLE: usize = 0x5_1000;

/// # Safety
/// As in CUPTI: `subscriber` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuptiSubscribe(
    subscriber: *mut *mut c_void,
    callback: Option<Callback>,
    userdata: *mut c_void,
) -> CUptiResult {
    if FINALISED.load(Ordering::Relaxed) {
        return NOT_INITIALIZED;
    }
    let mut current = lock(&SUBSCRIBER);
    if config::get().busy || current.is_some() || session::held_by_other() {
        return MULTIPLE_SUBSCRIBERS;
    }
    let Some(callback) = callback else {
        return INVALID_PARAMETER;
    };
    // SAFETY: the tool's pointer.
    if let Err(e) = unsafe { put(subscriber, HANDLE as *mut c_void) } {
        return e;
    }
    *current = Some(Subscriber {
        callback,
        userdata,
        all: false,
        cbids: HashSet::new(),
    });
    SUCCESS
}

#[no_mangle]
pub extern "C" fn cuptiUnsubscribe(subscriber: *mut c_void) -> CUptiResult {
    result(usable().and_then(|()| {
        let mut current = lock(&SUBSCRIBER);
        if subscriber.addr() != HANDLE || current.is_none() {
            return Err(INVALID_PARAMETER);
        }
        *current = None;
        WANTS_CALLS.store(false, Ordering::Relaxed);
        Ok(())
    }))
}

/// `CUPTI_CB_DOMAIN_DRIVER_API`, the only domain with callbacks here, and the highest one.
const DRIVER_API: u32 = 1;
const LAST_DOMAIN: u32 = 6;

fn subscribe(
    subscriber: *mut c_void,
    domain: u32,
    change: impl FnOnce(&mut Subscriber),
) -> CUptiResult {
    result(usable().and_then(|()| {
        let mut current = lock(&SUBSCRIBER);
        let Some(current) = current.as_mut().filter(|_| subscriber.addr() == HANDLE) else {
            return Err(INVALID_PARAMETER);
        };
        if domain == 0 || domain > LAST_DOMAIN {
            return Err(INVALID_PARAMETER);
        }
        if domain == DRIVER_API {
            change(current);
            let wants = current.all || !current.cbids.is_empty();
            WANTS_CALLS.store(wants, Ordering::Relaxed);
        }
        Ok(())
    }))
}

#[no_mangle]
pub extern "C" fn cuptiEnableCallback(
    enable: u32,
    subscriber: *mut c_void,
    domain: u32,
    cbid: u32,
) -> CUptiResult {
    subscribe(subscriber, domain, |it| {
        if enable != 0 {
            it.cbids.insert(cbid);
        } else {
            it.cbids.remove(&cbid);
        }
    })
}

#[no_mangle]
pub extern "C" fn cuptiEnableDomain(
    enable: u32,
    subscriber: *mut c_void,
    domain: u32,
) -> CUptiResult {
    subscribe(subscriber, domain, |it| {
        it.all = enable != 0;
        if !it.all {
            it.cbids.clear();
        }
    })
}

/// Results that this library returns, with CUPTI's names.
const RESULTS: &[(CUptiResult, &CStr)] = &[
    (SUCCESS, c"CUPTI_SUCCESS"),
    (INVALID_PARAMETER, c"CUPTI_ERROR_INVALID_PARAMETER"),
    (INVALID_OPERATION, c"CUPTI_ERROR_INVALID_OPERATION"),
    (
        PARAMETER_SIZE_NOT_SUFFICIENT,
        c"CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT",
    ),
    (MAX_LIMIT_REACHED, c"CUPTI_ERROR_MAX_LIMIT_REACHED"),
    (NOT_COMPATIBLE, c"CUPTI_ERROR_NOT_COMPATIBLE"),
    (NOT_INITIALIZED, c"CUPTI_ERROR_NOT_INITIALIZED"),
    (INVALID_KIND, c"CUPTI_ERROR_INVALID_KIND"),
    (
        UM_PROFILING_NOT_SUPPORTED,
        c"CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED",
    ),
    (
        MULTIPLE_SUBSCRIBERS,
        c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
    ),
];

/// # Safety
/// As in CUPTI: `text` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuptiGetResultString(
    value: CUptiResult,
    text: *mut *const c_char,
) -> CUptiResult {
    let known = RESULTS.iter().find(|&&(v, _)| v == value);
    let Some((_, name)) = known else {
        return INVALID_PARAMETER;
    };
    // SAFETY: the tool's pointer; the text is static.
    result(unsafe { put(text, name.as_ptr()) })
}

#[no_mangle]
pub extern "C" fn cuptiFinalize() -> CUptiResult {
    result(usable().map(|()| {
        FINALISED.store(true, Ordering::Relaxed);
        *lock(&SUBSCRIBER) = None;
        WANTS_CALLS.store(false, Ordering::Relaxed);
        session::finalise();
    }))
}

/// `CUpti_CallbackData`
#[repr(C)]
struct CallbackData {
    site: u32,
    function_name: *const c_char,
    function_params: *const c_void,
    return_value: *mut u32,
    symbol_name: *const c_char,
    context: *mut c_void,
    context_id: u32,
    correlation_data: *mut u64,
    correlation_id: u32,
}

const ENTER: u32 = 0;
const EXIT: u32 = 1;

/// Calls the subscriber back, without any lock, as it may call CUPTI.
fn call_back(call: &mut Call, site: u32) {
    if !WANTS_CALLS.load(Ordering::Relaxed) {
        return;
    }
    let subscriber = lock(&SUBSCRIBER);
    let wanted = subscriber
        .as_ref()
        .filter(|it| it.all || it.cbids.contains(&call.cbid));
    let Some((callback, userdata)) = wanted.map(|it| (it.callback, it.userdata)) else {
        return;
    };
    drop(subscriber);
    let data = CallbackData {
        site,
        function_name: call.name,
        function_params: call.params,
        return_value: &raw mut call.result,
        symbol_name: call.symbol,
        context: call.context,
        context_id: call.context_id,
        correlation_data: &raw mut call.data,
        correlation_id: call.correlation,
    };
    // SAFETY: the subscriber's function, with data that lives until it returns.
    unsafe { callback(userdata, DRIVER_API, call.cbid, (&raw const data).cast()) };
}

extern "C" fn on_enter(call: &mut Call) {
    call_back(call, ENTER);
}

extern "C" fn on_exit(call: &mut Call) {
    call_back(call, EXIT);
    session::api(call);
}

extern "C" fn on_reserve(op: &link::Operation) -> u64 {
    session::reserve(op)
}

extern "C" fn on_settle(slot: u64, start: u64, end: u64) {
    session::settle(slot, start, end);
}

extern "C" fn on_sync(sync: &link::Sync) {
    session::sync(sync);
}

extern "C" fn on_event(event: &link::EventRecord) {
    session::event(event);
}

extern "C" fn on_overhead(overhead: &link::Overhead) {
    session::overhead(overhead);
}

static LINK: Link = Link {
    version: link::VERSION,
    enter: on_enter,
    exit: on_exit,
    reserve: on_reserve,
    settle: on_settle,
    sync: on_sync,
    event: on_event,
    overhead: on_overhead,
};

/// [`link::ENTRY`]
#[no_mangle]
pub extern "C" fn gdiag_sim_link() -> *const Link {
    &raw const LINK
}
