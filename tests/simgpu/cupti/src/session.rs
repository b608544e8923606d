//! What is collected: enabled kinds, buffers and their delivery, faults.
//!
//! As measured on the real library: buffers are asked for on the application's thread
//! inside its call, with a lock held; an operation has its place in a buffer from its
//! launch on, so a buffer with an operation that still runs is withheld; a full buffer is
//! delivered by a worker thread once everything in it is complete.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::config;
use crate::kind;
use crate::link::{what, Call, EventRecord, Operation, Overhead, Sync};
use crate::overhead;
use crate::record::{self, Record};

/// `CUpti_BuffersCallbackRequestFunc`: buffer, its size, most records.
pub type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
/// `CUpti_BuffersCallbackCompleteFunc`: context, stream, buffer, its size, bytes written.
pub type Complete = unsafe extern "C" fn(*mut std::ffi::c_void, u32, *mut u8, usize, usize);

/// Enabled kinds as a bit set; read without the lock on every call.
static ENABLED: AtomicU64 = AtomicU64::new(0);
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_*`
pub static THREAD_ID_TYPE: AtomicU32 = AtomicU32::new(0);
/// Records that found no buffer, since somebody asked. Not under the lock: a buffer callback may ask.
pub static DROPPED: AtomicU64 = AtomicU64::new(0);

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| {
    Mutex::new(State {
        thread_buffers: config::get().version.has_thread_buffers(),
        ..State::default()
    })
});
/// Held while finished buffers are handed over, so that they come one at a time.
static DELIVERY: Mutex<()> = Mutex::new(());
/// A buffer is full.
static FULL: Condvar = Condvar::new();

thread_local! {
    /// This thread is inside a buffer callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static TID: u32 = {
        // SAFETY: plain system call.
        unsafe { libc::gettid() as u32 }
    };
}

/// CUPTI's alignment of buffers.
const ALIGN: usize = 8;

#[derive(Default)]
struct State {
    request: Option<Request>,
    complete: Option<Complete>,
    /// Driver calls without a record.
    filtered: HashSet<u32>,
    /// Counters of unified memory that give records.
    unified_memory: HashSet<u32>,
    /// The buffer that each thread writes to, by [`State::key`].
    current: HashMap<u32, u32>,
    /// All buffers that we hold.
    buffers: HashMap<u32, Buffer>,
    full: VecDeque<u32>,
    buffer_ids: u32,
    operations: u64,
    first_enable: Option<u64>,
    /// Until when the tool that took over holds a subscription.
    held_until: u64,
    has_worker: bool,
    thread_buffers: bool,
    /// Buffers come zeroed, so we need not do it.
    zeroed: bool,
}

/// A buffer of the program.
struct Buffer {
    start: *mut u8,
    size: usize,
    used: usize,
    room: usize,
    operations: Vec<Open>,
    /// It holds more than overhead records.
    worth: bool,
}

// SAFETY: the memory belongs to whoever holds the Buffer, from the request to the delivery.
unsafe impl Send for Buffer {}

/// An operation in a buffer.
struct Open {
    offset: usize,
    times: Option<(u64, u64)>,
    /// Never write its times.
    zero: bool,
}

impl Buffer {
    fn is_complete(&self, now: u64) -> bool {
        self.operations
            .iter()
            .all(|op| op.times.is_some_and(|(_, end)| end <= now))
    }

    fn fits(&self, record: &Record) -> bool {
        self.room > 0 && record.bytes().len() <= self.size - self.used
    }

    /// The caller checked that it fits.
    fn push(&mut self, record: &Record) -> usize {
        let (offset, bytes) = (self.used, record.bytes());
        // SAFETY: `fits` says that the bytes lie inside the program's buffer.
        unsafe {
            let to = self.start.add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        self.used += bytes.len();
        self.room -= 1;
        offset
    }

    /// Writes the times of what has ended by `now`; the rest keeps zeros.
    fn close(&mut self, now: u64) {
        for op in self.operations.iter().filter(|op| !op.zero) {
            if let Some((start, end)) = op.times.filter(|&(_, end)| end <= now) {
                // SAFETY: every operation's record has both fields, 8 bytes each, inside the buffer.
                unsafe {
                    let at = self.start.add(op.offset + record::OPERATION_START);
                    at.cast::<u64>().write_unaligned(start);
                    at.add(8).cast::<u64>().write_unaligned(end);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic aborts at the C boundary, so nobody ever sees a poisoned lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enabled(kind: u32) -> bool {
    ENABLED.load(Ordering::Relaxed) >> kind & 1 != 0
}

/// CLOCK_MONOTONIC to CUPTI's clock. Follows steps and slews of the wall clock in steps of at least [`STEP_NS`],
/// so that times of one stream stay in order.
fn to_cupti(t: u64) -> u64 {
    const STEP_NS: u64 = 1_000;
    const CHECK_NS: u64 = 100_000_000;
    static OFFSET: AtomicI64 = AtomicI64::new(0);
    static CHECKED: AtomicU64 = AtomicU64::new(0);

    let now = clock::now();
    let checked = CHECKED.load(Ordering::Acquire);
    if checked == 0 || now > checked + CHECK_NS {
        // The closest of a few pairs: the thread may lose its CPU between two readings.
        let pair = || {
            let before = clock::now();
            let real = clock::realtime();
            let after = clock::now();
            let middle = before + (after - before) / 2;
            (after - before, real.wrapping_sub(middle) as i64)
        };
        let (_, offset) = (0..8).map(|_| pair()).min().unwrap_or_else(pair);
        if checked == 0 || OFFSET.load(Ordering::Relaxed).abs_diff(offset) > STEP_NS {
            OFFSET.store(offset, Ordering::Release);
        }
        CHECKED.store(now, Ordering::Release);
    }
    t.wrapping_add_signed(OFFSET.load(Ordering::Acquire))
}

/// The calling thread as records name it.
fn thread_id() -> u32 {
    if THREAD_ID_TYPE.load(Ordering::Relaxed) == 1 {
        TID.with(|&tid| tid)
    } else {
        // SAFETY: plain call. Cut to 32 bits, as the real library does.
        unsafe { libc::pthread_self() as u32 }
    }
}

impl State {
    /// Whose buffer a thread writes to.
    fn key(&self) -> u32 {
        if self.thread_buffers {
            TID.with(|&tid| tid)
        } else {
            0
        }
    }

    /// Writes a record; where, if there was a buffer.
    fn write(&mut self, record: &Record, worth: bool) -> Option<(u32, usize)> {
        self.request?;
        let id = self.buffer_for(record)?;
        let buffer = self.buffers.get_mut(&id)?;
        buffer.worth |= worth;
        Some((id, buffer.push(record)))
    }

    /// A buffer of this thread with room for the record; counts a drop when there is none.
    fn buffer_for(&mut self, record: &Record) -> Option<u32> {
        let key = self.key();
        if let Some(id) = self.current.get(&key).copied() {
            if self.buffers.get(&id).is_some_and(|b| b.fits(record)) {
                return Some(id);
            }
            self.current.remove(&key);
            self.full.push_back(id);
            FULL.notify_one();
        }
        let id = self.new_buffer(key);
        if let Some(id) = id.filter(|id| self.buffers.get(id).is_some_and(|b| b.fits(record))) {
            return Some(id);
        }
        DROPPED.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Asks the tool for a buffer, on the application's thread and with the lock held, as CUPTI does.
    fn new_buffer(&mut self, key: u32) -> Option<u32> {
        let request = self.request?;
        let began = clock::now();
        let (mut start, mut size, mut most) = (std::ptr::null_mut(), 0, 0);
        IN_CALLBACK.set(true);
        // SAFETY: the registered callback, with three valid out-pointers.
        unsafe { request(&raw mut start, &raw mut size, &raw mut most) };
        IN_CALLBACK.set(false);
        if start.is_null() || start.addr() % ALIGN != 0 {
            return None;
        }
        if !self.zeroed {
            // SAFETY: the tool gave these bytes to us.
            unsafe { start.write_bytes(0, size) };
        }
        self.buffer_ids += 1;
        let id = self.buffer_ids;
        let buffer = Buffer {
            start,
            size,
            used: 0,
            room: if most == 0 { usize::MAX } else { most },
            operations: Vec::new(),
            worth: false,
        };
        self.buffers.insert(id, buffer);
        self.current.insert(key, id);
        let what = overhead::ACTIVITY_BUFFER_REQUEST;
        if let Some(record) = overhead_record(&Overhead {
            what,
            correlation: 0,
            start: began,
            end: clock::now(),
        }) {
            let buffer = self.buffers.get_mut(&id)?;
            if buffer.fits(&record) {
                buffer.push(&record);
            }
        }
        Some(id)
    }

    /// Takes out what can be handed over: complete buffers, or all of them.
    fn take(&mut self, forced: bool, only_full: bool) -> Vec<Buffer> {
        let now = clock::realtime();
        let mut ids: Vec<u32> = self.full.iter().copied().collect();
        if !only_full {
            let mut current: Vec<u32> = self.current.values().copied().collect();
            current.sort_unstable();
            ids.extend(current);
        }
        ids.retain(|id| {
            let buffer = self.buffers.get(id);
            buffer.is_some_and(|b| b.used > 0 && (forced || b.is_complete(now)))
        });
        self.full.retain(|id| !ids.contains(id));
        self.current.retain(|_, id| !ids.contains(id));
        let mut taken: Vec<Buffer> = ids
            .iter()
            .filter_map(|id| self.buffers.remove(id))
            .collect();
        for buffer in &mut taken {
            buffer.close(now);
        }
        taken
    }

    /// `GDIAG_SIM_CUPTI_TAKEOVER_MS`: the other tool comes.
    fn check_takeover(&mut self) {
        let Some(after) = config::get().takeover_ns else {
            return;
        };
        if self.first_enable.is_some_and(|t| clock::now() > t + after) {
            ENABLED.store(0, Ordering::Relaxed);
            self.request = None;
            self.complete = None;
            self.held_until = clock::now() + config::get().takeover_for_ns;
            // Once is enough: a time that never comes.
            self.first_enable = Some(u64::MAX - after);
        }
    }
}

/// Hands buffers to the tool. Takes the delivery lock's guard to show that it is held.
fn deliver(_delivery: &MutexGuard<'_, ()>, complete: Option<Complete>, buffers: Vec<Buffer>) {
    let Some(complete) = complete else { return };
    for buffer in buffers {
        IN_CALLBACK.set(true);
        let (start, size, used) = (buffer.start, buffer.size, buffer.used);
        // SAFETY: the registered callback gets its own buffer back.
        unsafe { complete(std::ptr::null_mut(), 0, start, size, used) };
        IN_CALLBACK.set(false);
    }
}

fn run_worker() {
    /// How soon to look again at a full buffer with operations that still run.
    const AGAIN: Duration = Duration::from_millis(5);
    let mut state = lock(&STATE);
    loop {
        while state.full.is_empty() {
            state = FULL.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let delivery = lock(&DELIVERY);
        let mut locked = lock(&STATE);
        let (buffers, complete) = (locked.take(false, true), locked.complete);
        drop(locked);
        deliver(&delivery, complete, buffers);
        drop(delivery);
        state = lock(&STATE);
        if !state.full.is_empty() {
            (state, _) = FULL
                .wait_timeout(state, AGAIN)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Called when a kind is enabled for the first time.
fn start_worker() {
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill in. The thread must not take the program's signals.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        if let Err(e) = std::thread::Builder::new().spawn(run_worker) {
            eprintln!("simulated GPU: no CUPTI worker: {e}");
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}

// What the tool asks for.

pub fn register(request: Request, complete: Complete) {
    let mut state = lock(&STATE);
    state.request = Some(request);
    state.complete = Some(complete);
}

pub fn enable(kind: u32, on: bool) {
    let mut state = lock(&STATE);
    if on {
        ENABLED.fetch_or(1 << kind, Ordering::Relaxed);
        state.first_enable.get_or_insert_with(clock::now);
        if !state.has_worker {
            state.has_worker = true;
            start_worker();
        }
    } else {
        ENABLED.fetch_and(!(1 << kind), Ordering::Relaxed);
    }
}

pub fn enable_driver_call(cbid: u32, on: bool) {
    let mut state = lock(&STATE);
    if on {
        state.filtered.remove(&cbid);
    } else {
        state.filtered.insert(cbid);
    }
}

pub fn count_unified_memory(counter: u32, on: bool) {
    let mut state = lock(&STATE);
    if on {
        state.unified_memory.insert(counter);
    } else {
        state.unified_memory.remove(&counter);
    }
}

pub fn set_zeroed(zeroed: bool) {
    lock(&STATE).zeroed = zeroed;
}

pub fn set_thread_buffers(thread_buffers: bool) {
    lock(&STATE).thread_buffers = thread_buffers;
}

/// The tool that took over holds a subscription.
pub fn held_by_other() -> bool {
    let mut state = lock(&STATE);
    state.check_takeover();
    clock::now() < state.held_until
}

/// False inside a buffer callback, where flushing is not allowed.
pub fn flush(forced: bool) -> bool {
    if IN_CALLBACK.get() {
        return false;
    }
    let began = clock::now();
    let delivery = lock(&DELIVERY);
    let mut state = lock(&STATE);
    state.check_takeover();
    let (buffers, complete) = (state.take(forced, false), state.complete);
    drop(state);
    let worth = buffers.iter().any(|buffer| buffer.worth);
    deliver(&delivery, complete, buffers);
    drop(delivery);
    if worth {
        overhead(&Overhead {
            what: overhead::BUFFER_FLUSH,
            correlation: 0,
            start: began,
            end: clock::now(),
        });
    }
    true
}

/// `cuptiFinalize`: nothing is collected any more, buffers that we hold are never given back.
pub fn finalise() {
    ENABLED.store(0, Ordering::Relaxed);
    let mut state = lock(&STATE);
    state.request = None;
    state.complete = None;
}

// What libcuda reports.

pub fn api(call: &Call) {
    if !enabled(kind::DRIVER) {
        return;
    }
    let times = (to_cupti(call.start), to_cupti(call.end));
    let version = config::get().version;
    let record = record::api(version, call, std::process::id(), thread_id(), times);
    let mut state = lock(&STATE);
    state.check_takeover();
    if !state.filtered.contains(&call.cbid) {
        state.write(&record, true);
    }
}

/// Every `n`th of a count, never for 0.
fn every(n: u64, count: u64) -> bool {
    n != 0 && count.is_multiple_of(n)
}

/// A place for an operation: the buffer's id above, the operation's index plus one below. 0 for none.
pub fn reserve(op: &Operation) -> u64 {
    if !enabled(record::operation_kind(op)) {
        return 0;
    }
    let config = config::get();
    let record = record::operation(config.version, op);
    let mut state = lock(&STATE);
    state.check_takeover();
    if op.what == what::MIGRATION && !state.unified_memory.contains(&record::counter_kind(op)) {
        return 0;
    }
    state.operations += 1;
    let count = state.operations;
    if every(config.lose, count) {
        return 0;
    }
    if every(config.drop, count) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        return 0;
    }
    let Some((id, offset)) = state.write(&record, true) else {
        return 0;
    };
    let Some(buffer) = state.buffers.get_mut(&id) else {
        return 0;
    };
    buffer.operations.push(Open {
        offset,
        times: None,
        zero: every(config.zero, count),
    });
    u64::from(id) << 32 | buffer.operations.len() as u64
}

pub fn settle(slot: u64, start: u64, end: u64) {
    let (id, index) = ((slot >> 32) as u32, (slot as u32 as usize).wrapping_sub(1));
    let times = (to_cupti(start), to_cupti(end));
    let mut state = lock(&STATE);
    // Gone after a forced flush: its times are never delivered.
    let buffer = state.buffers.get_mut(&id);
    if let Some(op) = buffer.and_then(|b| b.operations.get_mut(index)) {
        op.times = Some(times);
    }
}

pub fn sync(sync: &Sync) {
    if !enabled(kind::SYNCHRONIZATION) {
        return;
    }
    let times = (to_cupti(sync.start), to_cupti(sync.end));
    let record = record::sync(config::get().version, sync, times);
    lock(&STATE).write(&record, true);
}

pub fn event(event: &EventRecord) {
    let version = config::get().version;
    let with_sync = version.sync_includes_events() && enabled(kind::SYNCHRONIZATION);
    if enabled(kind::CUDA_EVENT) || with_sync {
        let record = record::event(version, event);
        lock(&STATE).write(&record, true);
    }
}

fn overhead_record(it: &Overhead) -> Option<Record> {
    let version = config::get().version;
    let wanted = enabled(kind::OVERHEAD) && version.has_overhead(it.what);
    wanted.then(|| {
        let times = (to_cupti(it.start), to_cupti(it.end));
        record::overhead(version, it, std::process::id(), thread_id(), times)
    })
}

pub fn overhead(it: &Overhead) {
    if let Some(record) = overhead_record(it) {
        lock(&STATE).write(&record, false);
    }
}
