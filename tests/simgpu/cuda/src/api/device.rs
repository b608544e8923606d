//! Initialisation, devices, contexts, and the look-up of functions.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock};

use super::Opaque;
use crate::call::{
    put, traced, Active, CUresult, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_FOUND,
    SUCCESS,
};
use crate::cbid;
use crate::init;
use crate::leads;
use crate::link;
use crate::model::Handle;
use crate::runtime::{self, Current, Runtime, DEVICE_BYTES};

/// A driver for CUDA 13.0.
const DRIVER_VERSION: c_int = 13_000;

/// What the device calls itself; it must say that it is not real.
const NAME: &CStr = c"Simulated H200 (gdiag)";

/// `CU_CTX_SCHED_BLOCKING_SYNC`
const SCHED_BLOCKING: u32 = 4;

#[no_mangle]
pub extern "C" fn cuInit(flags: u32) -> CUresult {
    if flags != 0 {
        return INVALID_VALUE;
    }
    init::initialise();
    SUCCESS
}

/// # Safety
/// As in CUDA: `version` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CUresult {
    // SAFETY: the program's pointer. Works before cuInit, so it is not traced.
    unsafe { put(version, DRIVER_VERSION) }
        .err()
        .unwrap_or(SUCCESS)
}

fn device(runtime: &Runtime, ordinal: c_int) -> Result<usize, CUresult> {
    usize::try_from(ordinal)
        .ok()
        .filter(|&device| device < runtime.config.devices)
        .ok_or(INVALID_DEVICE)
}

/// # Safety
/// As in CUDA: `count` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    // SAFETY: the program's pointer.
    traced(cbid::DEVICE_GET_COUNT, |call| unsafe {
        put(count, call.runtime.config.devices as c_int)
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGet(out: *mut c_int, ordinal: c_int) -> CUresult {
    traced(cbid::DEVICE_GET, |call| {
        device(call.runtime, ordinal)?;
        // SAFETY: the program's pointer.
        unsafe { put(out, ordinal) }
    })
}

/// # Safety
/// As in CUDA: `name` is valid for `len` bytes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: c_int) -> CUresult {
    traced(cbid::DEVICE_GET_NAME, |call| {
        device(call.runtime, dev)?;
        let room = usize::try_from(len).ok().filter(|&len| len > 0);
        let (Some(room), false) = (room, name.is_null()) else {
            return Err(INVALID_VALUE);
        };
        let length = NAME.to_bytes().len().min(room - 1);
        // SAFETY: at most `len` bytes of the program's buffer.
        unsafe {
            name.copy_from_nonoverlapping(NAME.as_ptr(), length);
            name.add(length).write(0);
        }
        Ok(())
    })
}

/// Tells devices of one machine apart, and is the same in every process.
fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"gdiag-simulated\0";
    uuid[15] = device as u8;
    uuid
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid(out: *mut [u8; 16], dev: c_int) -> CUresult {
    traced(cbid::DEVICE_GET_UUID, |call| {
        let device = device(call.runtime, dev)?;
        // SAFETY: the program's pointer.
        unsafe { put(out, uuid(device)) }
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(out: *mut [u8; 16], dev: c_int) -> CUresult {
    traced(cbid::DEVICE_GET_UUID_V2, |call| {
        let device = device(call.runtime, dev)?;
        // SAFETY: the program's pointer.
        unsafe { put(out, uuid(device)) }
    })
}

/// # Safety
/// As in CUDA: `value` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    dev: c_int,
) -> CUresult {
    traced(cbid::DEVICE_GET_ATTRIBUTE, |call| {
        let device = device(call.runtime, dev)?;
        // Those of an H200, where programs usually look.
        let known = match attribute {
            1 => 1024,             // threads per block
            10 => 32,              // warp size
            13 => 1_980_000,       // clock in kHz
            16 => 132,             // multiprocessors
            31 | 41 => 1,          // concurrent kernels; unified addressing
            33 => device as c_int, // PCI bus
            40 => 2,               // copy engines
            39 => 2048,            // threads per multiprocessor
            75 => 9,               // compute capability, major
            _ => 0,
        };
        // SAFETY: the program's pointer.
        unsafe { put(value, known) }
    })
}

/// # Safety
/// As in CUDA: `bytes` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: c_int) -> CUresult {
    traced(cbid::DEVICE_TOTAL_MEM, |call| {
        device(call.runtime, dev)?;
        // SAFETY: the program's pointer.
        unsafe { put(bytes, DEVICE_BYTES as usize) }
    })
}

/// Makes a context and the current one of this thread.
unsafe fn create(call: &Active, out: *mut Opaque, flags: u32, dev: c_int) -> Result<(), CUresult> {
    let runtime = call.runtime;
    let device = device(runtime, dev)?;
    call.cost(runtime.config.context_ns);
    let handle = runtime
        .simulation()
        .create_context(device, flags & SCHED_BLOCKING != 0);
    runtime.start_event_thread();
    // SAFETY: the program's pointer.
    unsafe { put(out, handle as Opaque) }?;
    if let Some(context) = runtime.context(handle) {
        runtime::push_context(context);
    }
    Ok(())
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v2(out: *mut Opaque, flags: u32, dev: c_int) -> CUresult {
    // SAFETY: the program's pointer.
    traced(cbid::CTX_CREATE, |call| unsafe {
        create(call, out, flags, dev)
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes. The parameters are not looked at.
#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v4(
    out: *mut Opaque,
    _params: *const c_void,
    flags: u32,
    dev: c_int,
) -> CUresult {
    // SAFETY: the program's pointer.
    traced(cbid::CTX_CREATE_V4, |call| unsafe {
        create(call, out, flags, dev)
    })
}

#[no_mangle]
pub extern "C" fn cuCtxDestroy_v2(context: Opaque) -> CUresult {
    traced(cbid::CTX_DESTROY, |call| {
        let handle = context as Handle;
        let work = call.runtime.simulation().context_work(handle);
        call.runtime.wait(&work, false, &leads::CTX_SYNC);
        if !call.runtime.simulation().destroy_context(handle) {
            return Err(INVALID_CONTEXT);
        }
        if runtime::current_context().is_some_and(|c| c.handle == handle) {
            runtime::pop_context();
        }
        Ok(())
    })
}

/// A context by handle; 0 is none.
fn context(runtime: &Runtime, handle: Opaque) -> Result<Option<Current>, CUresult> {
    if handle.is_null() {
        return Ok(None);
    }
    let context = runtime.context(handle as Handle);
    context.map(Some).ok_or(INVALID_CONTEXT)
}

#[no_mangle]
pub extern "C" fn cuCtxSetCurrent(handle: Opaque) -> CUresult {
    traced(cbid::CTX_SET_CURRENT, |call| {
        runtime::set_current_context(context(call.runtime, handle)?);
        Ok(())
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCurrent(out: *mut Opaque) -> CUresult {
    let current = runtime::current_context().map_or(0, |c| c.handle);
    // SAFETY: the program's pointer.
    traced(cbid::CTX_GET_CURRENT, |_| unsafe {
        put(out, current as Opaque)
    })
}

#[no_mangle]
pub extern "C" fn cuCtxPushCurrent_v2(handle: Opaque) -> CUresult {
    traced(cbid::CTX_PUSH_CURRENT, |call| {
        runtime::push_context(context(call.runtime, handle)?.ok_or(INVALID_CONTEXT)?);
        Ok(())
    })
}

/// # Safety
/// As in CUDA: `out` is null or valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(out: *mut Opaque) -> CUresult {
    traced(cbid::CTX_POP_CURRENT, |_| {
        let popped = runtime::pop_context().ok_or(INVALID_CONTEXT)?;
        if out.is_null() {
            return Ok(());
        }
        // SAFETY: the program's pointer.
        unsafe { put(out, popped.handle as Opaque) }
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuCtxGetDevice(out: *mut c_int) -> CUresult {
    // SAFETY: the program's pointer.
    traced(cbid::CTX_GET_DEVICE, |call| unsafe {
        put(out, call.context()?.device as c_int)
    })
}

#[no_mangle]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    traced(cbid::CTX_SYNCHRONIZE, |call| {
        let context = call.context()?;
        let work = call.runtime.simulation().context_work(context.handle);
        let sync = link::Sync {
            what: 4, // CONTEXT_SYNCHRONIZE
            correlation: 0,
            context_id: context.id,
            stream_id: link::NONE,
            event_id: link::NONE,
            result: 0,
            start: 0,
            end: 0,
        };
        call.synchronise(&work, context.blocking, &leads::CTX_SYNC, sync);
        Ok(())
    })
}

/// Primary contexts: handle and how often each is retained, by device.
static PRIMARY: Mutex<Option<HashMap<usize, (Handle, usize)>>> = Mutex::new(None);

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(out: *mut Opaque, dev: c_int) -> CUresult {
    traced(cbid::PRIMARY_CTX_RETAIN, |call| {
        let device = device(call.runtime, dev)?;
        let mut primary = runtime::lock(&PRIMARY);
        let (handle, count) = primary
            .get_or_insert_default()
            .entry(device)
            .or_insert_with(|| {
                let handle = call.runtime.simulation().create_context(device, false);
                (handle, 0)
            });
        call.runtime.start_event_thread();
        // SAFETY: the program's pointer.
        unsafe { put(out, *handle as Opaque) }?;
        *count += 1;
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(dev: c_int) -> CUresult {
    traced(cbid::PRIMARY_CTX_RELEASE, |call| {
        let device = device(call.runtime, dev)?;
        let mut primary = runtime::lock(&PRIMARY);
        let contexts = primary.get_or_insert_default();
        let (handle, count) = contexts.get_mut(&device).ok_or(INVALID_CONTEXT)?;
        *count -= 1;
        if *count == 0 {
            let work = call.runtime.simulation().context_work(*handle);
            call.runtime.wait(&work, false, &leads::CTX_SYNC);
            call.runtime.simulation().destroy_context(*handle);
            contexts.remove(&device);
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cuDevicePrimaryCtxRelease(dev: c_int) -> CUresult {
    cuDevicePrimaryCtxRelease_v2(dev)
}

/// # Safety
/// As in CUDA: both are valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    traced(cbid::MEM_GET_INFO, |call| {
        let device = call.context()?.device;
        call.cost(leads::OTHER_CALL_NS);
        let used = runtime::lock(&call.runtime.memory).used(device);
        // SAFETY: the program's pointers.
        unsafe {
            put(free, (DEVICE_BYTES - used) as usize)?;
            put(total, DEVICE_BYTES as usize)
        }
    })
}

/// Results that this library returns, by value, with their names and meanings.
const RESULTS: &[(CUresult, &CStr, &CStr)] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (
        201,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid device context",
    ),
    (
        400,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
];

unsafe fn result_text(result: CUresult, name: bool, out: *mut *const c_char) -> CUresult {
    let known = RESULTS.iter().find(|&&(value, _, _)| value == result);
    let text = known.map_or(std::ptr::null(), |(_, n, meaning)| {
        if name { n } else { meaning }.as_ptr()
    });
    // SAFETY: the program's pointer.
    match unsafe { put(out, text) } {
        Ok(()) if known.is_some() => SUCCESS,
        Ok(()) | Err(_) => INVALID_VALUE,
    }
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuGetErrorName(result: CUresult, out: *mut *const c_char) -> CUresult {
    // SAFETY: the program's pointer.
    unsafe { result_text(result, true, out) }
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuGetErrorString(result: CUresult, out: *mut *const c_char) -> CUresult {
    // SAFETY: the program's pointer.
    unsafe { result_text(result, false, out) }
}

/// The newest version of a function by its plain name, as the driver's own look-up gives it.
unsafe fn look_up(symbol: *const c_char, cuda_version: c_int) -> *mut c_void {
    static SELF: OnceLock<usize> = OnceLock::new();
    let library = *SELF.get_or_init(|| {
        let path = init::own_path().map(|p| [p.as_os_str().as_bytes(), b"\0"].concat());
        // SAFETY: the path ends with NUL; NOLOAD only finds this library, which is loaded.
        path.map_or(0, |path| unsafe {
            libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_NOLOAD) as usize
        })
    }) as *mut c_void;
    if library.is_null() || symbol.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: the program's NUL-terminated name.
    let name = unsafe { CStr::from_ptr(symbol) }.to_bytes();
    let newest = if name == b"cuCtxCreate" && cuda_version >= 13_000 {
        "_v4"
    } else {
        "_v2"
    };
    for suffix in [newest, ""] {
        let full = [name, suffix.as_bytes(), b"\0"].concat();
        // SAFETY: a valid handle and a NUL-terminated name.
        let found = unsafe { libc::dlsym(library, full.as_ptr().cast()) };
        if !found.is_null() {
            return found;
        }
    }
    std::ptr::null_mut()
}

/// # Safety
/// As in CUDA: `symbol` is a string, `function` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    cuda_version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the program's pointers.
    unsafe { cuGetProcAddress_v2(symbol, function, cuda_version, flags, std::ptr::null_mut()) }
}

/// # Safety
/// As in CUDA: `symbol` is a string, `function` is valid for writes, `status` is null or valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    cuda_version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> CUresult {
    // SAFETY: the program's pointers.
    unsafe {
        let found = look_up(symbol, cuda_version);
        if !status.is_null() {
            // CU_GET_PROC_ADDRESS_SUCCESS or _SYMBOL_NOT_FOUND
            status.write(c_int::from(found.is_null()));
        }
        match put(function, found) {
            Ok(()) if !found.is_null() => SUCCESS,
            Ok(()) => NOT_FOUND,
            Err(result) => result,
        }
    }
}
