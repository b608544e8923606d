//! The simulation of this process: the model behind a lock, waits, and the thread
//! that runs host functions. Here simulated times meet real ones.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_void, CStr, CString};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::clock::{now, spin_until};
use crate::config::{self, Config, SyncMode};
use crate::leads;
use crate::link::Link;
use crate::model::{Finish, Handle, Settled, Simulation, Submission};

/// What a device has, in bytes.
pub const DEVICE_BYTES: u64 = 141 << 30;

/// Name of the thread that runs host functions, as in the real driver.
const EVENT_THREAD: &CStr = c"cuda-EvtHandlr";

#[derive(Debug)]
pub struct Runtime {
    pub config: &'static Config,
    /// libcupti's side, once it is mapped.
    pub link: OnceLock<&'static Link>,
    pub memory: Mutex<Memory>,
    pub modules: Mutex<Modules>,
    simulation: Mutex<Simulation>,
    /// A host function returned.
    resolved: Condvar,
    /// Wakes the event thread; started with the first context.
    event_thread: OnceLock<i32>,
    correlation: AtomicU32,
    draws: AtomicU64,
}

/// What is allocated, by address.
#[derive(Debug, Default)]
pub struct Memory {
    /// Device memory: size and device.
    pub device: BTreeMap<u64, (u64, usize)>,
    /// Page-locked host memory that belongs to the driver: size.
    pub pinned: BTreeMap<usize, usize>,
    /// Device memory handed out ever. Addresses are never reused.
    pub brk: u64,
}

impl Memory {
    pub fn is_pinned(&self, address: usize) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(&start, &size)| address < start + size)
    }

    pub fn used(&self, device: usize) -> u64 {
        let on_device = self.device.values().filter(|&&(_, d)| d == device);
        on_device.map(|&(size, _)| size).sum()
    }
}

/// Functions of loaded modules.
#[derive(Debug, Default)]
pub struct Modules {
    pub loaded: Vec<Handle>,
    pub functions: HashMap<Handle, &'static CStr>,
    by_name: HashMap<(Handle, CString), Handle>,
}

impl Modules {
    /// Any name is a function. Names stay valid for ever, since records point at them.
    pub fn function(
        &mut self,
        module: Handle,
        name: &CStr,
        new: impl FnOnce() -> Handle,
    ) -> Handle {
        let key = (module, name.to_owned());
        *self.by_name.entry(key).or_insert_with(|| {
            let handle = new();
            let name: &'static CStr = Box::leak(name.to_owned().into_boxed_c_str());
            self.functions.insert(handle, name);
            handle
        })
    }
}

/// A context as its thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    pub handle: Handle,
    pub id: u32,
    pub device: usize,
    pub blocking: bool,
}

thread_local! {
    /// Contexts of this thread, the current one last.
    static CONTEXTS: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
    /// This thread runs host functions.
    static IS_EVENT_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The context of the calling thread.
pub fn current_context() -> Option<Current> {
    CONTEXTS.with_borrow(|stack| stack.last().copied())
}

/// Replaces the current context; `None` takes it away.
pub fn set_current_context(context: Option<Current>) {
    CONTEXTS.with_borrow_mut(|stack| {
        stack.pop();
        stack.extend(context);
    });
}

pub fn push_context(context: Current) {
    CONTEXTS.with_borrow_mut(|stack| stack.push(context));
}

pub fn pop_context() -> Option<Current> {
    CONTEXTS.with_borrow_mut(Vec::pop)
}

pub fn on_event_thread() -> bool {
    IS_EVENT_THREAD.get()
}

/// A panic aborts at the C boundary, so nobody ever sees a poisoned lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The simulation, made at its first use.
pub fn get() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let config = config::get();
        Runtime {
            config,
            link: OnceLock::new(),
            memory: Mutex::default(),
            modules: Mutex::default(),
            simulation: Mutex::new(Simulation::new(config)),
            resolved: Condvar::new(),
            event_thread: OnceLock::new(),
            correlation: AtomicU32::new(0),
            draws: AtomicU64::new(0),
        }
    })
}

impl Runtime {
    pub fn simulation(&self) -> MutexGuard<'_, Simulation> {
        lock(&self.simulation)
    }

    /// A context by its handle.
    pub fn context(&self, handle: Handle) -> Option<Current> {
        let simulation = self.simulation();
        let context = simulation.contexts.get(&handle)?;
        Some(Current {
            handle,
            id: context.id,
            device: context.device,
            blocking: context.blocking,
        })
    }

    pub fn next_correlation(&self) -> u32 {
        self.correlation.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn draw(&self, table: &leads::Quantiles) -> i64 {
        let n = self.draws.fetch_add(1, Ordering::Relaxed);
        leads::draw(table, leads::random(self.config.seed, n))
    }

    /// What a launch call costs, in ns.
    pub fn launch_cost(&self) -> u64 {
        let ns = self.config.launch_ns;
        ns.unwrap_or_else(|| self.draw(&leads::LAUNCH_CALL)).max(0) as u64
    }

    pub fn lead(&self) -> i64 {
        let ns = self.config.lead_ns;
        ns.unwrap_or_else(|| self.draw(&leads::LEAD))
    }

    pub fn succession(&self) -> u64 {
        self.draw(&leads::SUCCESSION).max(0) as u64
    }

    /// Hands an operation to the device now; `doorbell` is filled in and returned. `None`: no such stream.
    pub fn submit(&self, mut submission: Submission) -> Option<(Finish, u64)> {
        let mut settled = Vec::new();
        let mut simulation = self.simulation();
        // Read under the lock, so that doorbells ring in the order of submission.
        let doorbell = now();
        submission.doorbell = doorbell;
        let finish = simulation.submit(submission, &mut settled);
        drop(simulation);
        self.settle(&settled);
        finish.map(|finish| (finish, doorbell))
    }

    /// Tells libcupti. Never under the simulation's lock: libcupti has one of its own.
    fn settle(&self, settled: &[Settled]) {
        let Some(link) = self.link.get() else { return };
        for s in settled.iter().filter(|s| s.slot != 0) {
            (link.settle)(s.slot, s.start, s.end);
        }
    }

    /// Waits for the device as a synchronising call does.
    pub fn wait(&self, work: &[Finish], blocking: bool) {
        self.wait_until_before(work, 0, blocking);
    }

    /// The same, but returns `ahead` ns before the work has ended.
    pub fn wait_until_before(&self, work: &[Finish], ahead: u64, blocking: bool) {
        let sleep = blocking || self.config.sync == SyncMode::Block;
        if sleep {
            let mut simulation = self.simulation();
            while work.iter().any(|finish| finish.get().is_none()) {
                simulation = self
                    .resolved
                    .wait(simulation)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        let mut end = 0;
        for finish in work {
            end = end.max(loop {
                match finish.get() {
                    Some(t) => break t,
                    None => core::hint::spin_loop(),
                }
            });
        }
        end = end.saturating_sub(ahead);
        if end <= now() {
            return;
        }
        if sleep {
            sleep_until(end);
        } else {
            spin_until(end + leads::SYNC_RETURN_NS);
        }
    }

    /// Waits as long as the stream's queue is full. Returns since when, if it was.
    pub fn wait_for_room(&self, stream: Handle) -> Option<u64> {
        let mut since = None;
        loop {
            let t = now();
            let front = self.simulation().queue_front(stream, t);
            let Some(front) = front else { return since };
            since.get_or_insert(t);
            // The driver polls the queue, whatever the mode of synchronising calls.
            while front.get().is_none_or(|end| end > now()) {
                core::hint::spin_loop();
            }
        }
    }

    /// Starts the thread that runs host functions, once.
    pub fn start_event_thread(&'static self) {
        self.event_thread.get_or_init(|| {
            // SAFETY: plain system call.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            without_signals(|| {
                std::thread::Builder::new()
                    .spawn(move || self.run_host_functions(fd))
                    .map(drop)
                    .unwrap_or_else(|e| eprintln!("simulated GPU: no event thread: {e}"));
            });
            fd
        });
    }

    /// There may be a new host function.
    pub fn wake_event_thread(&self) {
        if let Some(&fd) = self.event_thread.get() {
            let one = 1u64;
            // SAFETY: the fd is ours and stays open; the buffer is 8 bytes, as an eventfd wants.
            unsafe { libc::write(fd, (&raw const one).cast(), 8) };
        }
    }

    fn run_host_functions(&self, fd: i32) {
        IS_EVENT_THREAD.set(true);
        // SAFETY: names this thread and asks for exact timers on it, for the sake of exact turns.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, EVENT_THREAD.as_ptr());
            libc::prctl(libc::PR_SET_TIMERSLACK, 1usize);
        }
        loop {
            let taken = self.simulation().take_host_call(now());
            match taken {
                Ok(call) => {
                    // SAFETY: cuLaunchHostFunc got this function from the program to be called once with this argument.
                    unsafe {
                        let function: extern "C" fn(*mut c_void) =
                            std::mem::transmute(call.call.function);
                        function(call.call.argument as *mut c_void);
                    }
                    let mut settled = Vec::new();
                    let mut simulation = self.simulation();
                    simulation.host_returned(&call, now(), &mut settled);
                    drop(simulation);
                    self.settle(&settled);
                    self.resolved.notify_all();
                }
                Err(next) => poll_until(fd, next),
            }
        }
    }
}

/// Sleeps in poll(2) until CLOCK_MONOTONIC reads `t`.
fn sleep_until(t: u64) {
    loop {
        let left = t.saturating_sub(now());
        if left == 0 {
            return;
        }
        let timeout = timespec(left);
        // SAFETY: no descriptors; the timespec outlives the call.
        unsafe {
            libc::ppoll(
                std::ptr::null_mut(),
                0,
                &raw const timeout,
                std::ptr::null(),
            )
        };
    }
}

/// Sleeps in poll(2) until the eventfd is written or `t` has come.
fn poll_until(fd: i32, t: Option<u64>) {
    let mut pollfd = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = t.map(|t| timespec(t.saturating_sub(now())));
    let timeout = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one valid pollfd; the timespec, if any, outlives the call.
    unsafe { libc::ppoll(&raw mut pollfd, 1, timeout, std::ptr::null()) };
    let mut count = 0u64;
    // SAFETY: 8 bytes, as an eventfd wants; it does not block.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// Runs `start` with all signals blocked, so that a thread it starts never takes the program's signals.
fn without_signals(start: impl FnOnce()) {
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill in.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
    }
}
