//! Turning CUPTI on and off.
//!
//! No subscription is held: the activity API needs none, and a held one would leave
//! torch.profiler without its CUDA events. But whoever registers buffer callbacks last gets
//! all records of the process, so before collecting starts the shim asks for a
//! subscription once and gives it back at once: when that is refused, another tool holds
//! CUPTI and would lose its records to us, and the shim stays out of its way.
//!
//! What this cannot see: a tool that uses the activity API without a subscription, as the
//! shim does. What comes later is noticed by a probe, see [`crate::watch`].

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::Ordering;

use gdiag_cupti_locate::{self as locate, Found};
use gdiag_shim_layout::api::{self, Domain};
use gdiag_shim_layout::cupti::{activity, unified_memory, UnifiedMemoryConfig};
use gdiag_shim_layout::{state, Control};

use crate::cupti::{
    Driver, Functions, Kind, Library, Status, FLUSH_FORCED, MULTIPLE_SUBSCRIBERS, NOT_INITIALIZED,
    SUCCESS, THREAD_ID_SYSTEM, ZEROED_BUFFERS,
};
use crate::loaded;
use crate::{pool, sys};

/// `cuptiGetVersion` of CUDA 11.7, the first whose record layouts were checked.
const OLDEST_VERSION: u32 = 17;
/// CUDA 11.8, but also 12.0 and 12.1.
const VERSION_OF_11_8: u32 = 18;

const VERSION_OF_13_0: u32 = 130_000;

/// What is collected, in the order in which it is turned on. Kernels come first: where calls are
/// recorded already and the program launches meanwhile, CUPTI 13.0 often gives no kernel at all, or
/// withholds all records, until the process ends. (Measured, in eager PyTorch: within 20 of such
/// beginnings always, and never in 1,200 with kernels first.) So the first kernels may come without
/// their launches.
const KINDS: [Kind; 8] = [
    Kind(activity::CONCURRENT_KERNEL),
    Kind(activity::RUNTIME),
    Kind(activity::DRIVER),
    Kind(activity::OVERHEAD),
    Kind(activity::SYNCHRONIZATION),
    Kind(activity::MEMCPY),
    Kind(activity::MEMCPY2),
    Kind(activity::MEMSET),
];

/// What is collected besides, when it is asked for.
const UNIFIED_MEMORY: Kind = Kind(activity::UNIFIED_MEMORY_COUNTER);

/// `cuDeviceGetCount`: what the shim calls to see whether its records still come back.
pub(crate) const PROBE_CBID: u32 = 4;

/// Why nothing can be collected now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `BUSY` or `FAILED` of [`state`].
    pub(crate) state: u32,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn failed(reason: impl Into<String>) -> Refusal {
        Refusal {
            state: state::FAILED,
            reason: reason.into(),
        }
    }
}

/// The libcupti of this process. Loaded once and never given up.
#[derive(Clone, Debug)]
pub(crate) struct Cupti {
    pub(crate) functions: Functions,
    path: PathBuf,
    version: u32,
    simulated: bool,
    /// Also collects what happens to managed memory.
    unified_memory: bool,
}

/// The mapped driver, and the libcupti that goes with it.
pub(crate) fn driver() -> Option<Driver> {
    let loaded = loaded::libraries();
    Some(Driver::of(Library::loaded(locate::driver(&loaded)?)?))
}

impl Cupti {
    /// Finds and, if need be, loads libcupti. `driver_version` is 0 when it is not known.
    pub(crate) fn load(
        driver_version: u32,
        toolkits: &[PathBuf],
        unified_memory: bool,
    ) -> Result<Cupti, Refusal> {
        let major = (driver_version > 0).then_some(driver_version / 1000);
        let found = locate::cupti(&loaded::libraries(), major, toolkits, &locate::list);
        let (library, path) = match found.map_err(Refusal::failed)? {
            Found::Loaded(path) => {
                let library = Library::loaded(&path);
                let gone = || {
                    Refusal::failed(format!("{} is mapped but cannot be opened", path.display()))
                };
                (library.ok_or_else(gone)?, path)
            }
            Found::File(path) => (Library::load(&path).map_err(Refusal::failed)?, path),
        };
        let functions = Functions::of(library);
        let version = functions.version();
        if version < OLDEST_VERSION {
            return Err(Refusal::failed(format!(
                "{} is older than CUDA 11.7",
                path.display()
            )));
        }
        Ok(Cupti {
            functions,
            path,
            version,
            simulated: library.has(SIMULATED),
            unified_memory,
        })
    }

    /// Writes down what is in use.
    pub(crate) fn describe(&self, control: &Control) {
        control
            .cupti_path
            .set(self.path.as_os_str().as_encoded_bytes());
        control.cupti_version.store(self.version, Ordering::Relaxed);
        control
            .simulated
            .store(u32::from(self.simulated), Ordering::Relaxed);
    }

    /// CUPTI of CUDA 11 hangs when it is turned on late and the program replays an older graph.
    pub(crate) fn can_start_late(&self) -> bool {
        let real = self
            .path
            .canonicalize()
            .unwrap_or_else(|_| self.path.clone());
        self.version > VERSION_OF_11_8
            || (self.version == VERSION_OF_11_8
                && !locate::is_of_cuda_11(&self.path)
                && !locate::is_of_cuda_11(&real))
    }

    /// Turns everything on. Returns the kinds that were refused, as bits.
    pub(crate) fn start(&self) -> Result<u64, Refusal> {
        let f = &self.functions;
        let (Some(register), Some(enable), Some(next), Some(_)) = (
            f.register_callbacks,
            f.enable,
            f.get_next_record,
            f.flush_all,
        ) else {
            return Err(Refusal::failed(format!(
                "{} lacks the activity functions",
                self.path.display()
            )));
        };
        self.ask_for_room()?;
        pool::reserve(next).map_err(Refusal::failed)?;
        // One byte in the headers; CUPTI takes more and reads the lowest.
        let mut yes = 1u64;
        let mut size = size_of_val(&yes);
        if let Some(set) = f.set_attribute {
            // Without it CUPTI zeroes buffers itself: slower, not wrong.
            // SAFETY: a value of the size that is said.
            unsafe { set(ZEROED_BUFFERS, &mut size, (&raw mut yes).cast()) };
        }
        if let Some(set) = f.set_thread_id_type {
            // SAFETY: a plain call.
            unsafe { set(THREAD_ID_SYSTEM) };
        }
        // SAFETY: the callbacks have the types that CUPTI calls, and stay mapped for good.
        let registered = unsafe { register(pool::requested, pool::completed) };
        registered
            .ok()
            .map_err(|status| self.refusal("cuptiActivityRegisterCallbacks", status))?;

        let mut refused = 0;
        if self.unified_memory && self.enable_unified_memory().is_err() {
            refused |= 1 << UNIFIED_MEMORY.0;
        }
        for kind in KINDS {
            // SAFETY: a plain call.
            let enabled = unsafe { enable(kind) };
            if let Err(status) = enabled.ok() {
                refused |= 1 << kind.0;
                // Without kernels the rest would be misread as an idle device.
                if kind.0 == activity::CONCURRENT_KERNEL {
                    self.stop();
                    return Err(self.refusal("cuptiActivityEnable for kernels", status));
                }
            }
            if kind.0 == activity::RUNTIME {
                only_wanted(f.enable_runtime_api, Domain::Runtime);
            } else if kind.0 == activity::DRIVER {
                only_wanted(f.enable_driver_api, Domain::Driver);
            }
        }
        Ok(refused)
    }

    /// Has what happens to managed memory recorded; CUPTI says no where it cannot be, or not yet.
    pub(crate) fn enable_unified_memory(&self) -> Result<(), Status> {
        let (Some(configure), Some(enable)) = (
            self.functions.configure_unified_memory,
            self.functions.enable,
        ) else {
            return Err(NOT_INITIALIZED);
        };
        let configure = |scope| {
            let counter = |kind| UnifiedMemoryConfig {
                scope,
                kind,
                device: 0,
                enable: 1,
            };
            let mut counters = [
                counter(unified_memory::TO_DEVICE),
                counter(unified_memory::TO_HOST),
                counter(unified_memory::DEVICE_FAULTS),
            ];
            // SAFETY: an array of that many.
            unsafe { configure(counters.as_mut_ptr(), counters.len() as u32) }.ok()
        };
        // Samples of both scopes exist; no document says where the wider one is not known.
        configure(unified_memory::ALL_DEVICES)
            .or_else(|_| configure(unified_memory::ONE_DEVICE))?;
        // SAFETY: a plain call.
        unsafe { enable(UNIFIED_MEMORY) }.ok()
    }

    /// Whether another tool has a subscription now.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.ask_for_room(), Err(refusal) if refusal.state == state::BUSY)
    }

    /// Whether another tool holds CUPTI: see the module's documentation.
    fn ask_for_room(&self) -> Result<(), Refusal> {
        let (Some(subscribe), Some(unsubscribe)) =
            (self.functions.subscribe, self.functions.unsubscribe)
        else {
            return Ok(());
        };
        let mut subscriber = ptr::null_mut();
        // SAFETY: the callback has the right type, does nothing and stays mapped for good.
        let status = unsafe { subscribe(&mut subscriber, no_callback, ptr::null_mut()) };
        if status == SUCCESS {
            // SAFETY: the handle is the one that was just given.
            unsafe { unsubscribe(subscriber) };
        }
        match status {
            MULTIPLE_SUBSCRIBERS | NOT_INITIALIZED => Err(self.refusal("cuptiSubscribe", status)),
            // Others do not say that the activity API will not work.
            _ => Ok(()),
        }
    }

    /// Turns everything off; what is complete can still be flushed. The library stays as it is:
    /// `cuptiFinalize` breaks graphs for good.
    pub(crate) fn stop(&self) {
        if let Some(disable) = self.functions.disable {
            let more = self.unified_memory.then_some(&UNIFIED_MEMORY);
            // Calls last, so that no kernel comes without its launch.
            let (kernels, others) = KINDS.split_at(1);
            for kind in kernels.iter().chain(others.iter().rev()).chain(more) {
                // SAFETY: a plain call.
                unsafe { disable(*kind) };
            }
        }
    }

    /// Has complete buffers handed over. `forced` also gives those with operations that still
    /// run, whose times are then zero for good: only for the end of the process.
    ///
    /// `false`: CUPTI was shut down behind our back.
    pub(crate) fn flush(&self, forced: bool) -> bool {
        let Some(flush) = self.functions.flush_all else {
            return true;
        };
        // SAFETY: the shim's thread holds no lock, and the callbacks can run.
        let status = unsafe { flush(if forced { FLUSH_FORCED } else { 0 }) };
        status != NOT_INITIALIZED
    }

    /// Threads have buffers of their own, so that no running kernel can hold back the records
    /// of the shim's own calls.
    pub(crate) fn has_thread_buffers(&self) -> bool {
        self.version >= VERSION_OF_13_0
    }

    /// Records that CUPTI dropped since the last call.
    ///
    /// Asked by the shim's thread rather than in the callback: all buffers belong to the global
    /// queue since CUDA 6, so there is no context that could be gone by now.
    pub(crate) fn dropped(&self) -> u64 {
        let mut dropped = 0;
        // SAFETY: writes one usize; no context means the global queue.
        let status = self
            .functions
            .get_dropped
            .map(|f| unsafe { f(ptr::null_mut(), 0, &mut dropped) });
        if status == Some(SUCCESS) {
            dropped as u64
        } else {
            0
        }
    }

    /// CUPTI's clock, which is CLOCK_REALTIME unless someone told it otherwise.
    pub(crate) fn now(&self) -> u64 {
        self.functions.timestamp().unwrap_or_else(sys::realtime)
    }

    /// `cuptiGetTimestamp` minus CLOCK_REALTIME in ns, from the tightest of several brackets.
    pub(crate) fn clock_offset(&self) -> i64 {
        let measure = || {
            let before = sys::realtime();
            let cupti = self.functions.timestamp()?;
            let after = sys::realtime();
            let middle = before.midpoint(after);
            Some((
                after.wrapping_sub(before),
                cupti.wrapping_sub(middle).cast_signed(),
            ))
        };
        (0..20)
            .filter_map(|_| measure())
            .min()
            .map_or(0, |(_, offset)| offset)
    }

    fn refusal(&self, what: &str, status: Status) -> Refusal {
        let code = self.functions.describe(status);
        match status {
            MULTIPLE_SUBSCRIBERS => {
                let owner = locate::other_tool(&loaded::libraries());
                let owner = owner.map(|owner| format!(" ({owner})")).unwrap_or_default();
                Refusal { state: state::BUSY, reason: format!("another tool holds CUPTI{owner}: {what}: {code}") }
            }
            NOT_INITIALIZED => Refusal::failed(format!(
                "{} does not start with this driver, or another tool has shut it down: {what}: {code}",
                self.path.display()
            )),
            _ => Refusal::failed(format!("{what}: {code}")),
        }
    }
}

/// Exported by the simulated libcupti of gdiag's own tests.
const SIMULATED: &std::ffi::CStr = c"gdiag_simulated";

unsafe extern "C" fn no_callback(_: *mut c_void, _: u32, _: u32, _: *const c_void) {}

/// Turns the records of all calls off that gdiag does not want. Before CUDA 12.5 that cannot be
/// done, and the shim's thread drops them.
fn only_wanted(enable: Option<unsafe extern "C" fn(u32, u8) -> Status>, domain: Domain) {
    let Some(enable) = enable else { return };
    for cbid in 1..api::MAX_CBID {
        let probe = domain == Domain::Driver && cbid == PROBE_CBID;
        if api::lookup(domain, cbid).is_none() && !probe {
            // SAFETY: a plain call; CUPTI refuses numbers that it does not know.
            unsafe { enable(cbid, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_11_may_only_be_there_from_the_start() {
        let cupti = |path: &str, version| Cupti {
            functions: Functions::of(Library::loaded(std::path::Path::new("libc.so.6")).unwrap()),
            path: path.into(),
            version,
            simulated: false,
            unified_memory: false,
        };
        assert!(!cupti("/x/libcupti.so.11.7", 17).can_start_late());
        assert!(!cupti("/x/libcupti.so.11.8", 18).can_start_late());
        assert!(!cupti("/x/libcupti.so.2022.3.0", 18).can_start_late());
        assert!(cupti("/x/libcupti.so.12", 18).can_start_late());
        assert!(cupti("/x/libcupti.so.13", 130_001).can_start_late());
    }

    /// The driver and CUPTI share no number, so a wanted call must never be the probe.
    #[test]
    fn the_probe_is_not_a_call_of_the_table() {
        assert_eq!(api::lookup(Domain::Driver, PROBE_CBID), None);
    }

    #[test]
    fn kernels_are_turned_on_before_calls() {
        assert_eq!(KINDS[0], Kind(activity::CONCURRENT_KERNEL));
        assert!(
            KINDS.iter().all(|kind| kind.0 < 64),
            "refused kinds are bits of a u64"
        );
    }
}
