//! Modules, kernels and host functions.

use std::ffi::{c_char, c_int, c_void, CStr};

use super::Opaque;
use crate::call::{
    put, traced, traced_as, Active, CUresult, Shown, Target, INVALID_HANDLE, INVALID_VALUE,
};
use crate::cbid::{self, Cbid};
use crate::clock::{now, spin_until};
use crate::leads;
use crate::link::{self, what};
use crate::model::{Handle, HostFunction, Submission, Work};
use crate::runtime::{self, Launch};

/// CUPTI's overheadKind of a full launch queue.
const COMMAND_BUFFER_FULL: u32 = 6 << 16;
/// CUPTI's overheadKind of compiling PTX.
const DRIVER_COMPILER: u32 = 1;

/// From the doorbell to the end of a launch call, unless the lead says that it was more. Not
/// measured, and no record shows it.
const AFTER_DOORBELL_NS: i64 = 250;

unsafe fn load(id: Cbid, out: *mut Opaque, image: *const c_void) -> CUresult {
    traced(id, |call| {
        call.context()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        let start = now();
        call.cost(call.runtime.config.module_ns);
        // SAFETY: an image has at least a magic number.
        let binary = unsafe { image.cast::<[u8; 4]>().read() };
        let compiled = binary != *b"\x7fELF" && binary != 0xBA55_ED50_u32.to_le_bytes();
        if compiled {
            call.overhead(DRIVER_COMPILER, start);
        }
        let module = call.runtime.simulation().handle();
        runtime::lock(&call.runtime.modules).loaded.push(module);
        // SAFETY: the program's pointer.
        unsafe { put(out, module as Opaque) }
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes, `image` is one.
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadData(out: *mut Opaque, image: *const c_void) -> CUresult {
    // SAFETY: the program's pointers.
    unsafe { load(cbid::MODULE_LOAD_DATA, out, image) }
}

/// # Safety
/// As in CUDA: `out` is valid for writes, `image` is one. Options are not looked at.
#[no_mangle]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    out: *mut Opaque,
    image: *const c_void,
    _count: u32,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's pointers.
    unsafe { load(cbid::MODULE_LOAD_DATA_EX, out, image) }
}

#[no_mangle]
pub extern "C" fn cuModuleUnload(module: Opaque) -> CUresult {
    traced(cbid::MODULE_UNLOAD, |call| {
        call.cost(leads::OTHER_CALL_NS);
        let mut modules = runtime::lock(&call.runtime.modules);
        let at = modules.loaded.iter().position(|&m| m == module as Handle);
        modules.loaded.swap_remove(at.ok_or(INVALID_HANDLE)?);
        Ok(())
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes, `name` is a string.
#[no_mangle]
pub unsafe extern "C" fn cuModuleGetFunction(
    out: *mut Opaque,
    module: Opaque,
    name: *const c_char,
) -> CUresult {
    traced(cbid::MODULE_GET_FUNCTION, |call| {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        call.cost(leads::OTHER_CALL_NS);
        let mut modules = runtime::lock(&call.runtime.modules);
        let module = module as Handle;
        if !modules.loaded.contains(&module) {
            return Err(INVALID_HANDLE);
        }
        // SAFETY: the program's string.
        let name = unsafe { CStr::from_ptr(name) };
        let function = modules.function(module, name, || call.runtime.simulation().handle());
        // SAFETY: the program's pointer.
        unsafe { put(out, function as Opaque) }
    })
}

/// The arguments of `cuLaunchKernel`, laid out as CUPTI's callbacks show them.
#[repr(C)]
struct LaunchParams {
    function: Opaque,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Opaque,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

unsafe fn launch(id: Cbid, params: &LaunchParams, shown: *const c_void) -> CUresult {
    let runtime = runtime::get();
    let name = {
        let modules = runtime::lock(&runtime.modules);
        modules.functions.get(&(params.function as Handle)).copied()
    };
    let shown = Shown {
        symbol: name.map_or(std::ptr::null(), CStr::as_ptr),
        params: shown,
    };
    traced_as(id, &shown, |call| {
        let name = name.ok_or(INVALID_HANDLE)?;
        let target = call.stream(params.stream as Handle)?;
        // The simulator's contract: the first parameter is the kernel's duration.
        // SAFETY: kernelParams, if given, is the program's array of pointers to its parameters.
        let ns = unsafe {
            if params.kernel_params.is_null() || (*params.kernel_params).is_null() {
                return Err(INVALID_VALUE);
            }
            (*params.kernel_params).cast::<u64>().read_unaligned()
        };
        let operation = link::Operation {
            name: name.as_ptr(),
            grid: params.grid,
            block: params.block,
            shared_bytes: params.shared_bytes,
            ..target.operation(what::KERNEL, call.correlation)
        };
        let launch = call.runtime.kernel_launch(target.handle, ns);
        enqueue(call, &target, Some(&operation), Work::Kernel { ns }, launch);
        Ok(())
    })
}

/// Enqueues work in a call that takes `launch.cost` once the queue has room.
pub fn enqueue(
    call: &Active,
    target: &Target,
    operation: Option<&link::Operation>,
    work: Work,
    launch: Launch,
) -> Option<crate::model::Finish> {
    let runtime = call.runtime;
    let mut start = call.start;
    if let Some(since) = runtime.wait_for_room(target.handle) {
        call.overhead(COMMAND_BUFFER_FULL, since);
        start = now();
    }
    let link = runtime.link.get();
    let slot = match (link, operation) {
        (Some(link), Some(operation)) => (link.reserve)(operation),
        _ => 0,
    };
    // The device learns of the work before it starts, and before the call ends. A thread that
    // loses its CPU before that is late.
    let starts = launch.cost + launch.lead;
    let rings = starts.min(launch.cost - AFTER_DOORBELL_NS).max(0);
    spin_until(start + rings as u64);
    let (finish, doorbell) = runtime.submit(Submission {
        stream: target.handle,
        work,
        slot,
        call_start: call.start,
        doorbell: 0,
        lead: starts - rings,
        gaps: runtime.gaps(&work),
    })?;
    spin_until(doorbell + (launch.cost - rings) as u64);
    Some(finish)
}

/// # Safety
/// As in CUDA, and: the first kernel parameter is a `u64`, the duration in ns.
#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Opaque,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: Opaque,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let params = LaunchParams {
        function,
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
        stream,
        kernel_params,
        extra,
    };
    // SAFETY: the program's pointers.
    unsafe { launch(cbid::LAUNCH_KERNEL, &params, (&raw const params).cast()) }
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Debug)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Opaque,
    attributes: *mut c_void,
    attribute_count: u32,
}

/// # Safety
/// As in CUDA, and: the first kernel parameter is a `u64`, the duration in ns.
#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Opaque,
    kernel_params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's pointer.
    let Some(config) = (unsafe { config.as_ref() }) else {
        return INVALID_VALUE;
    };
    let params = LaunchParams {
        function,
        grid: config.grid,
        block: config.block,
        shared_bytes: config.shared_bytes,
        stream: config.stream,
        kernel_params,
        extra,
    };
    // SAFETY: the program's pointers.
    unsafe { launch(cbid::LAUNCH_KERNEL_EX, &params, std::ptr::null()) }
}

#[no_mangle]
pub extern "C" fn cuLaunchHostFunc(
    stream: Opaque,
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> CUresult {
    traced(cbid::LAUNCH_HOST_FUNC, |call| {
        let target = call.stream(stream as Handle)?;
        let work = Work::Host(HostFunction {
            function: function.ok_or(INVALID_VALUE)? as usize,
            argument: argument as usize,
        });
        let launch = call.runtime.host_function_launch();
        enqueue(call, &target, None, work, launch);
        call.runtime.wake_event_thread();
        Ok(())
    })
}
