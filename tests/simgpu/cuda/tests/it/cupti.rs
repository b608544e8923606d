//! A minimal tool on the simulated libcupti: collects records and decodes what the tests judge.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::driver::{functions, ok, Library};
use crate::process;

pub const MEMCPY: u32 = 1;
pub const MEMSET: u32 = 2;
pub const DRIVER: u32 = 4;
pub const KERNEL: u32 = 10;
pub const OVERHEAD: u32 = 17;
pub const MEMCPY2: u32 = 22;
pub const CUDA_EVENT: u32 = 36;
pub const SYNC: u32 = 38;
pub const ALL: [u32; 8] = [
    MEMCPY, MEMSET, DRIVER, KERNEL, OVERHEAD, MEMCPY2, CUDA_EVENT, SYNC,
];

pub type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
pub type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
pub type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);

functions! { Cupti {
    version "cuptiGetVersion" (*mut u32);
    timestamp "cuptiGetTimestamp" (*mut u64);
    register "cuptiActivityRegisterCallbacks" (Request, Complete);
    enable "cuptiActivityEnable" (u32);
    disable "cuptiActivityDisable" (u32);
    driver_api "cuptiActivityEnableDriverApi" (u32, u8);
    next "cuptiActivityGetNextRecord" (*mut u8, usize, *mut *mut u8);
    dropped "cuptiActivityGetNumDroppedRecords" (*mut c_void, u32, *mut usize);
    flush "cuptiActivityFlushAll" (u32);
    flush_period "cuptiActivityFlushPeriod" (u32);
    set "cuptiActivitySetAttribute" (u32, *mut usize, *mut c_void);
    get "cuptiActivityGetAttribute" (u32, *mut usize, *mut c_void);
    thread_ids "cuptiSetThreadIdType" (u32);
    subscribe "cuptiSubscribe" (*mut *mut c_void, Callback, *mut c_void);
    unsubscribe "cuptiUnsubscribe" (*mut c_void);
    enable_callback "cuptiEnableCallback" (u32, *mut c_void, u32, u32);
    enable_domain "cuptiEnableDomain" (u32, *mut c_void, u32);
    result_string "cuptiGetResultString" (u32, *mut *const c_char);
    finalise "cuptiFinalize" ();
} }

/// A record as it came.
#[derive(Clone, Debug)]
pub struct Record(pub Vec<u8>);

impl Record {
    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    pub fn kind(&self) -> u32 {
        self.u32(0)
    }

    /// Start and end of any kind that has them.
    pub fn times(&self) -> (u64, u64) {
        let at = match self.kind() {
            DRIVER | SYNC => 8,
            OVERHEAD => 24,
            _ => 16,
        };
        (self.u64(at), self.u64(at + 8))
    }

    pub fn start(&self) -> u64 {
        self.times().0
    }

    pub fn end(&self) -> u64 {
        self.times().1
    }

    pub fn correlation(&self) -> u32 {
        match self.kind() {
            DRIVER => self.u32(32),
            KERNEL => self.u32(92),
            MEMCPY2 => self.u32(60),
            SYNC => self.u32(24),
            CUDA_EVENT => self.u32(4),
            _ => self.u32(44),
        }
    }

    /// Device, context and stream of an operation.
    pub fn place(&self) -> (u32, u32, u32) {
        let at = if self.kind() == KERNEL { 40 } else { 32 };
        (self.u32(at), self.u32(at + 4), self.u32(at + 8))
    }

    pub fn cbid(&self) -> u32 {
        assert_eq!(self.kind(), DRIVER);
        self.u32(4)
    }
}

/// How the tool's buffers are.
pub static BUFFER_BYTES: AtomicUsize = AtomicUsize::new(1 << 20);
/// How often a buffer was asked for.
pub static REQUESTS: AtomicUsize = AtomicUsize::new(0);
/// The thread of the last request.
pub static REQUEST_TID: AtomicUsize = AtomicUsize::new(0);

static DELIVERED: Mutex<Vec<Record>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    REQUESTS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: plain call.
    REQUEST_TID.store(unsafe { libc::gettid() } as usize, Ordering::SeqCst);
    let bytes = BUFFER_BYTES.load(Ordering::SeqCst);
    let memory = match bytes {
        0 => std::ptr::null_mut(),
        _ => Box::leak(vec![0u64; bytes / 8].into_boxed_slice()).as_mut_ptr(),
    };
    // SAFETY: libcupti's out-pointers.
    unsafe {
        *buffer = memory.cast();
        *size = bytes;
        *most = 0;
    }
}

unsafe extern "C" fn complete(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let library = Library::open(&process::directory().join("libcupti.so.13"));
    let cupti = Cupti::load(&library);
    let mut records: Vec<*mut u8> = Vec::new();
    let mut record = std::ptr::null_mut();
    // SAFETY: the buffer holds `valid` bytes of records.
    let end = unsafe {
        loop {
            match (cupti.next)(buffer, valid, &raw mut record) {
                0 => records.push(record),
                12 => break buffer.add(valid),
                other => panic!("next record: {other}"),
            }
        }
    };
    let ends = records.iter().skip(1).copied().chain([end]);
    let copies = records.iter().zip(ends).map(|(&from, to)| {
        // SAFETY: two places in one buffer.
        Record(unsafe { std::slice::from_raw_parts(from, to.offset_from(from) as usize).to_vec() })
    });
    DELIVERED.lock().unwrap().extend(copies.collect::<Vec<_>>());
    MORE.notify_all();
}

pub struct Tool {
    pub cupti: Cupti,
}

impl Tool {
    /// libcupti as the shim finds it. Call after `cuInit`.
    pub fn open() -> Tool {
        Tool {
            cupti: Cupti::load(&Library::open(&process::directory().join("libcupti.so.13"))),
        }
    }

    /// Collects these kinds.
    pub fn collecting(kinds: &[u32]) -> Tool {
        let tool = Tool::open();
        ok!((tool.cupti.register)(request, complete));
        for &kind in kinds {
            ok!((tool.cupti.enable)(kind));
        }
        tool
    }

    /// What has been delivered so far.
    pub fn delivered(&self) -> Vec<Record> {
        DELIVERED.lock().unwrap().clone()
    }

    /// Everything that is complete, the usual flush.
    pub fn flush(&self) -> Vec<Record> {
        ok!((self.cupti.flush)(0));
        self.delivered()
    }

    /// Waits until a record came that `wanted` accepts, without flushing.
    pub fn wait_for(&self, wanted: impl Fn(&Record) -> bool) -> bool {
        let limit = Duration::from_secs(20);
        let delivered = DELIVERED.lock().unwrap();
        let (_records, waited) = MORE
            .wait_timeout_while(delivered, limit, |records| !records.iter().any(&wanted))
            .unwrap();
        !waited.timed_out()
    }

    pub fn dropped(&self) -> usize {
        let mut count = 0;
        ok!((self.cupti.dropped)(
            std::ptr::null_mut(),
            0,
            &raw mut count
        ));
        count
    }
}

pub fn of_kind(records: &[Record], kind: u32) -> Vec<Record> {
    records
        .iter()
        .filter(|record| record.kind() == kind)
        .cloned()
        .collect()
}

/// The API record that an operation came from.
pub fn call_of<'a>(records: &'a [Record], op: &Record) -> &'a Record {
    let mut calls = records
        .iter()
        .filter(|r| r.kind() == DRIVER && r.correlation() == op.correlation());
    let call = calls.next().unwrap();
    assert!(calls.next().is_none(), "a correlation id twice");
    call
}

/// The API records of a call.
pub fn calls(records: &[Record], cbid: u32) -> Vec<Record> {
    records
        .iter()
        .filter(|r| r.kind() == DRIVER && r.cbid() == cbid)
        .cloned()
        .collect()
}
