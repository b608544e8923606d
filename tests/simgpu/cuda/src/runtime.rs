//! The simulation of this process: the model behind a lock, waits, and the thread
//! that runs host functions. Here simulated times meet real ones.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_void, CStr, CString};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::clock::{now, spin_until, thread_cpu};
use crate::config::{self, Config, SyncMode};
use crate::draws;
use crate::gaps::{self, Gaps};
use crate::leads::{self, BySize, Quantiles, Return, Staged, Transfer};
use crate::link::Link;
use crate::model::{Finish, Handle, Settled, Simulation, Submission, Work};

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
    /// Managed memory: size.
    pub managed: BTreeMap<usize, usize>,
    /// Device memory handed out ever. Addresses are never reused.
    pub brk: u64,
}

impl Memory {
    pub fn is_pinned(&self, address: usize) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(&start, &size)| address < start + size)
    }

    /// Whether all of it is managed memory.
    pub fn is_managed(&self, address: usize, bytes: usize) -> bool {
        let below = self.managed.range(..=address).next_back();
        below.is_some_and(|(&start, &size)| address + bytes <= start + size)
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
    /// When this thread launched or waited last, and its CPU time then.
    static AWAKE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
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

    /// The next draw: a fraction of 2^64.
    pub fn random(&self) -> u64 {
        let n = self.draws.fetch_add(1, Ordering::Relaxed);
        draws::random(self.config.seed, n)
    }

    /// What a call that this table is about costs, in ns.
    pub fn cost_of(&self, call: &Quantiles) -> u64 {
        draws::ns(call, self.random())
    }

    /// What allocating or freeing memory costs, in ns.
    pub fn alloc_cost(&self, call: &Quantiles) -> u64 {
        let ns = self.config.alloc_ns;
        ns.unwrap_or_else(|| self.cost_of(call))
    }

    /// The call that launches a kernel of this length.
    pub fn kernel_launch(&self, stream: Handle, kernel_ns: u64) -> Launch {
        let t = now();
        let rested = rested(t);
        let work = self.simulation().stream_work(stream, t);
        let queued = work.is_some_and(|work| !work.is_empty());
        let (call, lead) = match (queued, rested) {
            (true, _) if gaps::is_short(kernel_ns) => {
                (&leads::LAUNCH_QUEUED_NOP_CALL, &leads::LAUNCH_EMPTY_LEAD)
            }
            (true, _) => (&leads::LAUNCH_QUEUED_20US_CALL, &leads::LAUNCH_EMPTY_LEAD),
            (false, false) => (&leads::LAUNCH_EMPTY_CALL, &leads::LAUNCH_EMPTY_LEAD),
            (false, true) => (
                &leads::LAUNCH_EMPTY_AFTER_SLEEP_CALL,
                &leads::LAUNCH_EMPTY_AFTER_SLEEP_LEAD,
            ),
        };
        self.launch(|at| draws::at(call, at), |at| draws::at(lead, at))
            .costing(self.config.launch_ns)
    }

    /// The call that enqueues a host function. It takes as long to come to an idle device's
    /// function as to one whose turn comes: the driver's thread has to wake up for both.
    pub fn host_function_launch(&self) -> Launch {
        let (call, lead) = (
            &leads::HOST_FUNCTION_CALL,
            &leads::HOST_FUNCTION_ENTRY_AFTER_KERNEL,
        );
        self.launch(|at| draws::at(call, at), |at| draws::at(lead, at))
            .costing(self.config.launch_ns)
    }

    /// The call that enqueues a copy or memset.
    pub fn transfer_launch(&self, rows: &Transfer, bytes: u64) -> Launch {
        self.launch(
            |at| draws::at_size(rows.call, bytes, at),
            |at| draws::at_size(rows.lead, bytes, at),
        )
    }

    /// The part of a call that comes before its pageable copy.
    pub fn staged_launch(&self, rows: &Staged, bytes: u64) -> Launch {
        self.launch(|at| draws::at_size(rows.start, bytes, at), |_| 0)
    }

    /// One draw for both: what holds a call up after the device has learned of the work
    /// makes the lead shorter by as much.
    fn launch(&self, call: impl FnOnce(u64) -> i64, lead: impl FnOnce(u64) -> i64) -> Launch {
        let at = self.random();
        Launch {
            cost: call(at),
            lead: self.config.lead_ns.unwrap_or_else(|| lead(!at)),
        }
    }

    /// How long a copy engine takes.
    pub fn copy_ns(&self, length: BySize, bytes: u64) -> u64 {
        let at = self.random();
        match self.config.gbps {
            None => draws::length(length, bytes, at),
            Some(gbps) => {
                let (smallest, fixed) = length[0];
                draws::ns(fixed, at) + (bytes.saturating_sub(smallest) as f64 / gbps) as u64
            }
        }
    }

    pub fn gaps(&self, work: &Work) -> Gaps {
        Gaps::draw(work, self.config.event_latency_ns, self.random())
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

    /// Waits for the device as a synchronising call does. Returns when that was over.
    pub fn wait(&self, work: &[Finish], blocking: bool, returns: &Return) -> u64 {
        if work.is_empty() {
            return now();
        }
        let at = self.random();
        let awake = draws::ns(returns.awake, at);
        let sleep = blocking || self.config.sync == SyncMode::Block;
        let end = self.end_of(work, sleep);
        let over = if sleep && end > now() {
            let over = end + draws::ns(returns.asleep, at);
            // After waking up it has as much to do as a thread that was awake.
            sleep_until(over.saturating_sub(awake));
            over
        } else {
            end + awake
        };
        spin_until(over);
        AWAKE.set((now(), thread_cpu()));
        over
    }

    /// Waits for a time on the device as a synchronising call does.
    pub fn wait_until(&self, t: u64, blocking: bool) {
        if blocking || self.config.sync == SyncMode::Block {
            sleep_until(t);
        }
        spin_until(t);
    }

    /// When all of the work ends; waits until that is known.
    pub fn end_of(&self, work: &[Finish], sleep: bool) -> u64 {
        if sleep {
            let mut simulation = self.simulation();
            while work.iter().any(|finish| finish.get().is_none()) {
                simulation = self
                    .resolved
                    .wait(simulation)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        let known = |finish: &Finish| loop {
            match finish.get() {
                Some(t) => break t,
                None => core::hint::spin_loop(),
            }
        };
        work.iter().map(known).max().unwrap_or(0)
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

/// A launch call as it will be, in ns.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// From its start to its end.
    pub cost: i64,
    /// From its end to the start of the operation on an empty device. May be negative.
    pub lead: i64,
}

impl Launch {
    /// With the cost that the environment asks for, if any.
    fn costing(self, ns: Option<i64>) -> Launch {
        Launch {
            cost: ns.unwrap_or(self.cost).max(0),
            ..self
        }
    }
}

/// The rows "after sleep" were measured after sleeps of this length.
const SLEPT_NS: u64 = 1_000_000;

/// Whether the thread has been off its CPU for so long since it launched or waited last. It launches now.
fn rested(now: u64) -> bool {
    let cpu = thread_cpu();
    let (last, last_cpu) = AWAKE.replace((now, cpu));
    let off_cpu = (now - last).saturating_sub(cpu - last_cpu);
    last != 0 && off_cpu >= SLEPT_NS
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
