//! A simulated libnvidia-ml for gdiag's tests: real names, real signatures, values as the test wants them.
//!
//! The functions that gdiag calls, and no others: one that changes something is not there to be called. What they
//! answer is in [`values`], and changes while a program runs.

mod values;

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use values::{ask, number, Card, Failure};

/// NVML's result: 0, or what went wrong.
type Return = c_uint;

/// The number of a card, and one more: never null.
type Device = *mut c_void;

const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const INSUFFICIENT_SIZE: Return = 7;

/// `nvmlClockType_t`
const CLOCK_SM: c_uint = 1;
const CLOCK_MEMORY: c_uint = 2;

/// For parts of a card that has none: `gpuInstanceId` and `computeInstanceId`.
const NO_INSTANCE: c_uint = c_uint::MAX;

const MIB: c_ulonglong = 1 << 20;

#[repr(C)]
#[derive(Debug)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
#[derive(Debug)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`
#[repr(C)]
#[derive(Debug)]
pub struct Process {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

fn result(body: impl FnOnce() -> Result<(), Failure>) -> Return {
    body().err().map_or(SUCCESS, |failure| failure.0)
}

fn card(device: Device) -> Card {
    Card::Number((device as usize).wrapping_sub(1))
}

/// # Safety
/// `out` is null or valid for writes.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure(INVALID_ARGUMENT));
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// # Safety
/// `out` is null or valid for `room` bytes.
unsafe fn put_text(out: *mut c_char, room: c_uint, text: &str) -> Result<(), Failure> {
    if out.is_null() || room as usize <= text.len() {
        return Err(Failure(INSUFFICIENT_SIZE));
    }
    for (place, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller's promise: there is room for the text and its end.
        unsafe { out.add(place).write(byte as c_char) };
    }
    Ok(())
}

#[no_mangle]
pub extern "C" fn nvmlInit_v2() -> Return {
    result(|| ask(Card::None, "init").map(drop))
}

#[no_mangle]
pub extern "C" fn nvmlShutdown() -> Return {
    result(|| ask(Card::None, "shutdown").map(drop))
}

/// # Safety
/// As in NVML: `version` is valid for `length` bytes.
#[no_mangle]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put_text(version, length, &ask(Card::None, "driver")?) })
}

/// # Safety
/// As in NVML: `count` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put(count, number(Card::None, "count")?) })
}

/// # Safety
/// As in NVML: `device` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut Device,
) -> Return {
    result(|| {
        let index = index as usize;
        ask(Card::Number(index), "open")?;
        // SAFETY: the program's pointer.
        unsafe { put(device, null_mut::<u8>().wrapping_add(index + 1).cast()) }
    })
}

/// # Safety
/// As in NVML: `name` is valid for `length` bytes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: Device,
    name: *mut c_char,
    length: c_uint,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put_text(name, length, &ask(card(device), "name")?) })
}

/// # Safety
/// As in NVML: `uuid` is valid for `length` bytes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: Device,
    uuid: *mut c_char,
    length: c_uint,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put_text(uuid, length, &ask(card(device), "uuid")?) })
}

/// # Safety
/// As in NVML: `current` and `pending` are valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Return {
    result(|| {
        let mode = number(card(device), "mig")?;
        // SAFETY: the program's pointers.
        unsafe { put(current, mode).and_then(|()| put(pending, mode)) }
    })
}

/// # Safety
/// As in NVML: `mhz` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: Device,
    clock: c_uint,
    mhz: *mut c_uint,
) -> Return {
    result(|| {
        let key = match clock {
            CLOCK_SM => "sm_clock_max",
            _ => return Err(Failure(INVALID_ARGUMENT)),
        };
        // SAFETY: the program's pointer.
        unsafe { put(mhz, number(card(device), key)?) }
    })
}

/// # Safety
/// As in NVML: `mhz` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: Device,
    clock: c_uint,
    mhz: *mut c_uint,
) -> Return {
    result(|| {
        let key = match clock {
            CLOCK_SM => "sm_clock",
            CLOCK_MEMORY => "memory_clock",
            _ => return Err(Failure(INVALID_ARGUMENT)),
        };
        // SAFETY: the program's pointer.
        unsafe { put(mhz, number(card(device), key)?) }
    })
}

/// # Safety
/// As in NVML: `utilization` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: Device,
    utilization: *mut Utilization,
) -> Return {
    result(|| {
        let rates = Utilization {
            gpu: number(card(device), "utilization")?,
            memory: number(card(device), "memory_utilization")?,
        };
        // SAFETY: the program's pointer.
        unsafe { put(utilization, rates) }
    })
}

/// # Safety
/// As in NVML: `memory` is valid, and says which version it is.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut Memory) -> Return {
    result(|| {
        let expected = size_of::<Memory>() as c_uint | 2 << 24;
        // SAFETY: the program's pointer.
        if memory.is_null() || unsafe { (*memory).version } != expected {
            return Err(Failure(INVALID_ARGUMENT));
        }
        let total = c_ulonglong::from(number(card(device), "memory_total")?) * MIB;
        let used = c_ulonglong::from(number(card(device), "memory_used")?) * MIB;
        let reserved = 600 * MIB;
        let values = Memory {
            version: expected,
            total,
            reserved,
            free: total.saturating_sub(used + reserved),
            used,
        };
        // SAFETY: the program's pointer.
        unsafe { put(memory, values) }
    })
}

/// # Safety
/// As in NVML: `milliwatts` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(
    device: Device,
    milliwatts: *mut c_uint,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put(milliwatts, number(card(device), "power_mw")?) })
}

/// # Safety
/// As in NVML: `milliwatts` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: Device,
    milliwatts: *mut c_uint,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put(milliwatts, number(card(device), "power_limit_mw")?) })
}

/// # Safety
/// As in NVML: `celsius` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: Device,
    _sensor: c_uint,
    celsius: *mut c_uint,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put(celsius, number(card(device), "temperature")?) })
}

/// # Safety
/// As in NVML: `bits` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: Device,
    bits: *mut c_ulonglong,
) -> Return {
    // SAFETY: the program's pointer.
    result(|| unsafe { put(bits, number(card(device), "throttle")?.into()) })
}

/// # Safety
/// As in NVML: `processes` is null or has room for `count` of them.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    processes: *mut Process,
) -> Return {
    result(|| {
        let text = ask(card(device), "processes")?;
        let list: Vec<Process> = text.split_whitespace().filter_map(process).collect();
        if count.is_null() {
            return Err(Failure(INVALID_ARGUMENT));
        }
        // SAFETY: the program's pointer.
        let room = unsafe { count.replace(list.len() as c_uint) } as usize;
        if room < list.len() {
            return Err(Failure(INSUFFICIENT_SIZE));
        }
        for (place, process) in list.into_iter().enumerate() {
            // SAFETY: the program's array, which has room.
            unsafe { put(processes.wrapping_add(place), process) }?;
        }
        Ok(())
    })
}

/// `PID:MIB`, or `PID` whose memory is not told.
fn process(text: &str) -> Option<Process> {
    let (pid, memory) = text.split_once(':').unwrap_or((text, ""));
    Some(Process {
        pid: pid.parse().ok()?,
        used: memory
            .parse::<c_ulonglong>()
            .map_or(c_ulonglong::MAX, |mib| mib * MIB),
        gpu_instance: NO_INSTANCE,
        compute_instance: NO_INSTANCE,
    })
}
