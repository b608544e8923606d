//! What NVML, the library behind nvidia-smi, says of the GPUs: utilisation, memory, power, clocks.
//!
//! Its calls take locks of the driver, which CUDA calls of the processes that are looked at need too; and of a
//! driver in trouble some return after minutes, and not for a signal either. So
//!
//! - they are made by a thread of its own that nobody waits for, not at the end either: whoever wants to know gets what
//!   was told last, and sees by [`GpuFacts::at`] how old that is;
//! - each value is asked for once in a period, and less often where a round takes long: the share of time in NVML is
//!   bounded ([`PAUSE_PER_ROUND`]). A period of `None` asks nothing, and does not load the library;
//! - nothing is changed: no mode, no clock, no accounting, no event set. A card that was lost is not asked again.
//!
//! Once: `nvmlInit_v2`, `nvmlSystemGetDriverVersion`, `nvmlDeviceGetCount_v2`, and of each card
//! `nvmlDeviceGetHandleByIndex_v2`, `GetName`, `GetUUID`, `GetMigMode` and `GetMaxClockInfo` (SM).
//! In each round, of each card: `GetUtilizationRates`, `GetMemoryInfo_v2`, `GetPowerUsage`, `GetEnforcedPowerLimit`,
//! `GetTemperature`, `GetClockInfo` (SM, memory), `GetCurrentClocksThrottleReasons` and
//! `GetComputeRunningProcesses_v3` (twice: how many, and which). [`Nvml::cost`] tells what rounds take.
//!
//! Like any client of NVML gdiag holds the cards' device files open: without persistence mode they stay
//! initialised while it runs. Where the driver is installed but not loaded, NVML itself has it loaded.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use nix::time::{clock_gettime, ClockId};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{Bits, NvmlError};
use nvml_wrapper::Device;

use super::{clock, process};
use crate::event::Pid;
use crate::facts::{GpuFacts, STALE_AFTER};
use crate::units::{Bytes, Nanos};

/// How often it is worth asking: the driver's own samples are not much shorter.
pub const PERIOD: Duration = Duration::from_secs(1);

/// Where containers, NixOS and WSL have the library, which may be in no place that the loader looks at.
const PLACES: [&str; 3] = [
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
];

/// After a round there is a pause of at least so many times its length.
const PAUSE_PER_ROUND: u32 = 10;

/// Asks NVML until it is dropped.
#[derive(Debug)]
pub struct Nvml {
    shared: Arc<Shared>,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Locked for as long as it takes to copy it; never while NVML is asked.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    since: Nanos,
    facts: Vec<GpuFacts>,
    /// There will be no facts.
    why_none: Option<String>,
    cost: Cost,
}

/// What asking has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub rounds: u64,
    /// In NVML, of all rounds, and of the longest.
    pub time: Nanos,
    pub longest: Nanos,
    /// CPU time of the thread that asks, loading the library included.
    pub cpu: Nanos,
}

impl Nvml {
    /// Begins to ask, every `period`; `None`: never does.
    pub fn start(period: Option<Duration>) -> Nvml {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            told: Mutex::new(Told {
                since: clock::monotonic(),
                ..Told::default()
            }),
        });
        let Some(period) = period else {
            shared.told().why_none = Some("not asked for".to_string());
            return Nvml {
                shared,
                thread: None,
            };
        };
        let own = Arc::clone(&shared);
        let spawned = thread::Builder::new()
            .name("gdiag-nvml".to_string())
            .spawn(move || {
                if let Err(error) = ask(&own, period) {
                    own.told().why_none = Some(reason(&error));
                }
            });
        let thread = match spawned {
            Ok(handle) => Some(handle.thread().clone()),
            Err(error) => {
                shared.told().why_none = Some(format!("cannot start a thread: {error}"));
                None
            }
        };
        Nvml { shared, thread }
    }

    /// What was told last of each card, in NVML's order. Empty before the first answer, and without NVML.
    pub fn facts(&self) -> Vec<GpuFacts> {
        self.shared.told().facts.clone()
    }

    /// Why there are no facts, in a few words; `None` when there are some, or may be in a moment.
    pub fn why_none(&self, now: Nanos) -> Option<String> {
        let told = self.shared.told();
        if !told.facts.is_empty() {
            return None;
        }
        let silent = now.saturating_sub(told.since) > STALE_AFTER;
        let silence = || silent.then(|| "the driver does not answer".to_string());
        told.why_none.clone().or_else(silence)
    }

    pub fn cost(&self) -> Cost {
        self.shared.told().cost
    }
}

impl Drop for Nvml {
    /// Tells the thread to end, and does not wait until it does.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until `deadline`, or until it is to stop.
    fn wait(&self, deadline: Instant) {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stopped() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}

/// What a card is, as far as a recording is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardFacts {
    pub name: String,
    pub mig: Option<bool>,
    pub persistence: Option<bool>,
    /// What is wrong with it.
    pub trouble: Option<String>,
}

/// What the driver is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFacts {
    pub version: Option<String>,
    /// The CUDA that it serves: 12 and 8.
    pub cuda: Option<(u32, u32)>,
    pub cards: Vec<CardFacts>,
}

/// Asks once, and waits for the answer for so long; the error says why there is none. A thread that gets none stays behind.
pub fn ask_once(patience: Duration) -> Result<DriverFacts, String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::Builder::new()
        .name("gdiag-nvml".to_string())
        .spawn(move || {
            // Nobody may be left to hear it.
            let _ = sender.send(describe().map_err(|error| reason(&error)));
        })
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    receiver
        .recv_timeout(patience)
        .unwrap_or_else(|_| Err("the driver does not answer".to_string()))
}

fn describe() -> Result<DriverFacts, NvmlError> {
    let nvml = load()?;
    let version = |number: i32| {
        let number = u32::try_from(number).ok()?;
        Some((number / 1000, number % 1000 / 10))
    };
    let mut facts = DriverFacts {
        version: nvml.sys_driver_version().ok(),
        cuda: nvml.sys_cuda_driver_version().ok().and_then(version),
        cards: Vec::new(),
    };
    for index in 0..nvml.device_count()? {
        let card = nvml.device_by_index(index).map(|device| {
            Ok::<_, Gone>(CardFacts {
                name: told(device.name())?.unwrap_or_default(),
                mig: told(device.mig_mode())?.map(|mode| mode.current == 1),
                persistence: told(device.is_in_persistent_mode())?,
                trouble: None,
            })
        });
        let trouble = |text: String| CardFacts {
            trouble: Some(text),
            ..CardFacts::default()
        };
        facts.cards.push(match card {
            Ok(Ok(card)) => card,
            Ok(Err(gone)) => trouble(gone.0.to_string()),
            Err(error) => trouble(reason(&error)),
        });
    }
    std::mem::forget(nvml);
    Ok(facts)
}

/// The thread: returns when it is to stop, or with what is in the way.
fn ask(shared: &Shared, period: Duration) -> Result<(), NvmlError> {
    let nvml = load()?;
    let count = nvml.device_count()?;
    let mut cards = Vec::new();
    for index in 0..count {
        if shared.stopped() {
            break;
        }
        cards.push(Card::open(&nvml, index));
    }
    if cards.is_empty() {
        shared.told().why_none = Some("the driver knows no GPU".to_string());
    }
    while !cards.is_empty() && !shared.stopped() {
        let begin = Instant::now();
        for (place, card) in cards.iter_mut().enumerate() {
            if shared.stopped() {
                break;
            }
            let facts = card.ask();
            // One by one: a card that does not answer takes nothing from those before it.
            let mut told = shared.told();
            match told.facts.get_mut(place) {
                Some(old) => *old = facts,
                None => told.facts.push(facts),
            }
        }
        let took = begin.elapsed();
        shared.told().cost.add(took);
        shared.wait((begin + period).max(Instant::now() + took * PAUSE_PER_ROUND));
    }
    // gdiag is about to end, which closes all; NVML would take locks for that once more.
    std::mem::forget(nvml);
    Ok(())
}

fn load() -> Result<nvml_wrapper::Nvml, NvmlError> {
    match nvml_wrapper::Nvml::init() {
        Err(NvmlError::LibloadingError(error)) => {
            let place = PLACES.iter().find(|place| Path::new(place).exists());
            let place = place.ok_or(NvmlError::LibloadingError(error))?;
            nvml_wrapper::Nvml::builder()
                .lib_path(place.as_ref())
                .init()
        }
        other => other,
    }
}

impl Cost {
    fn add(&mut self, took: Duration) {
        let took = Nanos(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.rounds += 1;
        self.time = self.time.saturating_add(took);
        self.longest = self.longest.max(took);
        if let Ok(cpu) = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID) {
            self.cpu = Nanos(u64::try_from(Duration::from(cpu).as_nanos()).unwrap_or(0));
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = Nanos(self.time.0 / self.rounds.max(1));
        let Cost {
            rounds,
            longest,
            cpu,
            ..
        } = self;
        write!(
            f,
            "{rounds} rounds, {each} each, {longest} the longest; {cpu} of CPU"
        )
    }
}

#[derive(Debug)]
struct Card<'n> {
    /// `None`: it cannot be asked, for ever.
    device: Option<Device<'n>>,
    /// What does not change.
    known: GpuFacts,
}

/// It can be asked nothing any more: why.
#[derive(Debug, PartialEq, Eq)]
struct Gone(&'static str);

impl<'n> Card<'n> {
    fn open(nvml: &'n nvml_wrapper::Nvml, index: u32) -> Card<'n> {
        let mut known = GpuFacts {
            index,
            ..GpuFacts::default()
        };
        let device = match nvml.device_by_index(index) {
            Ok(device) => Some(device),
            Err(error) => {
                known.note = Some(reason(&error));
                None
            }
        };
        let mut card = Card { device, known };
        if let Err(gone) = card.know() {
            card.lose(&gone);
        }
        card
    }

    fn know(&mut self) -> Result<(), Gone> {
        let Some(device) = &self.device else {
            return Ok(());
        };
        let known = &mut self.known;
        known.uuid = told(device.uuid())?.unwrap_or_default();
        known.name = told(device.name())?.unwrap_or_default();
        known.sm_clock_max_mhz = told(device.max_clock_info(Clock::SM))?;
        // Its parts have no utilisation, and it has none as a whole.
        let mig = told(device.mig_mode())?.is_some_and(|mode| mode.current == 1);
        known.note = mig.then(|| "MIG".to_string());
        Ok(())
    }

    fn ask(&mut self) -> GpuFacts {
        self.known.at = clock::monotonic();
        let asked = self.device.as_ref().map(|device| now(device, &self.known));
        match asked {
            Some(Ok(facts)) => return facts,
            Some(Err(gone)) => self.lose(&gone),
            None => {}
        }
        self.known.clone()
    }

    /// It stays lost until the driver is loaded anew; a call on it may hang.
    fn lose(&mut self, gone: &Gone) {
        self.device = None;
        self.known.note = Some(gone.0.to_string());
    }
}

fn now(device: &Device<'_>, known: &GpuFacts) -> Result<GpuFacts, Gone> {
    let utilization = told(device.utilization_rates())?;
    let memory = told(device.memory_info())?;
    Ok(GpuFacts {
        utilization: utilization.as_ref().map(|u| u.gpu),
        memory_utilization: utilization.as_ref().map(|u| u.memory),
        memory_used: memory.as_ref().map(|m| Bytes(m.used)),
        memory_total: memory.as_ref().map(|m| Bytes(m.total)),
        power_watts: told(device.power_usage())?.map(watts),
        power_limit_watts: told(device.enforced_power_limit())?.map(watts),
        temperature_celsius: told(device.temperature(TemperatureSensor::Gpu))?,
        sm_clock_mhz: told(device.clock_info(Clock::SM))?,
        memory_clock_mhz: told(device.clock_info(Clock::Memory))?,
        throttle: throttle(device)?,
        processes: processes(device)?,
        ..known.clone()
    })
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

fn throttle(device: &Device<'_>) -> Result<Option<Vec<String>>, Gone> {
    let bits = match device.current_throttle_reasons_strict() {
        // A driver newer than the library's list.
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => Some(bits),
        other => told(other)?.map(|reasons| reasons.bits()),
    };
    Ok(bits.map(throttle_words))
}

type MemoryOf = (Pid, Option<Bytes>);

fn processes(device: &Device<'_>) -> Result<Option<Vec<MemoryOf>>, Gone> {
    let Some(list) = told(device.running_compute_processes())? else {
        return Ok(None);
    };
    // The driver tells pids of the caller's namespace, which are those that gdiag uses only where that is the host's.
    if !process::in_first_namespace() {
        return Ok(None);
    }
    // Some drivers tell of processes that they cannot name here, or that have gone.
    let here = list.into_iter().filter(|p| is_here(p.pid));
    let known = here.map(|p| {
        let memory = match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        (Pid(p.pid), memory)
    });
    Ok(Some(known.collect()))
}

fn is_here(pid: u32) -> bool {
    pid != 0 && Path::new(&format!("/proc/{pid}")).exists()
}

/// The bits of `nvmlClocksThrottleReasons`, without that nothing runs.
fn throttle_words(bits: u64) -> Vec<String> {
    const NAMES: [(ThrottleReasons, &str); 9] = [
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "HW thermal slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "HW power brake"),
        (ThrottleReasons::HW_SLOWDOWN, "HW slowdown"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "SW thermal slowdown"),
        (ThrottleReasons::SW_POWER_CAP, "SW power cap"),
        (ThrottleReasons::SYNC_BOOST, "sync boost"),
        (
            ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
            "application clocks",
        ),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, "display clocks"),
        (ThrottleReasons::GPU_IDLE, ""),
    ];
    let why = ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let mut left = bits;
    let mut words = Vec::new();
    for (reason, name) in NAMES {
        // The driver sets this one beside the two that say why.
        let said = reason == ThrottleReasons::HW_SLOWDOWN && bits & why.bits() != 0;
        if left & reason.bits() != 0 && !name.is_empty() && !said {
            words.push(name.to_string());
        }
        left &= !reason.bits();
    }
    if left != 0 {
        words.push(format!("reason {left:#x}"));
    }
    words
}

/// A value that is not told is `None`, whatever the reason, which does not change from second to second.
fn told<T>(result: Result<T, NvmlError>) -> Result<Option<T>, Gone> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::GpuLost) => Err(Gone("lost")),
        Err(NvmlError::ResetRequired) => Err(Gone("needs a reset")),
        Err(_) => Ok(None),
    }
}

fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::GpuLost => "lost".to_string(),
        NvmlError::ResetRequired => "needs a reset".to_string(),
        NvmlError::DriverNotLoaded => "the NVIDIA driver is not loaded".to_string(),
        NvmlError::NoPermission => "no rights to ask the driver".to_string(),
        NvmlError::LibRmVersionMismatch => {
            "libnvidia-ml.so.1 and the driver are of different versions".to_string()
        }
        // With the name of the file.
        NvmlError::LibloadingError(error) => error.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_low_clocks_are_words_and_idle_is_none_of_them() {
        assert!(throttle_words(0).is_empty());
        assert!(throttle_words(0x1).is_empty());
        assert_eq!(throttle_words(0x4), ["SW power cap"]);
        assert_eq!(throttle_words(0x2), ["application clocks"]);
        assert_eq!(throttle_words(0x31), ["SW thermal slowdown", "sync boost"]);
    }

    #[test]
    fn a_slowdown_that_is_explained_is_said_once() {
        assert_eq!(throttle_words(0x48), ["HW thermal slowdown"]);
        assert_eq!(throttle_words(0x88), ["HW power brake"]);
        assert_eq!(throttle_words(0x8), ["HW slowdown"]);
    }

    #[test]
    fn a_reason_that_a_later_driver_adds_is_shown_by_its_bit() {
        assert_eq!(throttle_words(0x1004), ["SW power cap", "reason 0x1000"]);
    }

    #[test]
    fn what_a_card_does_not_tell_is_not_told_and_a_lost_card_is_lost() {
        assert_eq!(told(Ok(0)), Ok(Some(0)));
        assert_eq!(told::<u32>(Err(NvmlError::NotSupported)), Ok(None));
        assert_eq!(told::<u32>(Err(NvmlError::NoPermission)), Ok(None));
        assert_eq!(told::<u32>(Err(NvmlError::GpuLost)), Err(Gone("lost")));
    }

    #[test]
    fn nothing_is_asked_when_it_is_off() {
        let nvml = Nvml::start(None);
        assert!(nvml.thread.is_none());
        assert!(nvml.facts().is_empty());
        assert_eq!(
            nvml.why_none(clock::monotonic()).as_deref(),
            Some("not asked for")
        );
    }

    #[test]
    fn silence_is_told_after_a_while() {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            told: Mutex::new(Told {
                since: Nanos::from_secs(10),
                ..Told::default()
            }),
        });
        let nvml = Nvml {
            shared,
            thread: None,
        };
        assert_eq!(nvml.why_none(Nanos::from_secs(12)), None);
        assert!(nvml.why_none(Nanos::from_secs(14)).is_some());
    }
}
