//! Memory and copies. Simulated memory has no contents: a copy to the host writes zeros.
//!
//! Copies behave as CUDA documents them: from pageable memory the call returns when
//! the data is staged, to pageable memory when it has arrived, and between pinned and
//! device memory an asynchronous call returns at once.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::launch::enqueue;
use super::Opaque;
use crate::call::{
    put, traced, Active, CUresult, Target, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY,
};
use crate::cbid::{self, Cbid};
use crate::clock::{now, spin_until};
use crate::draws;
use crate::leads::{self, BySize, Transfer};
use crate::link::{what, Operation};
use crate::model::{Direction, Finish, Handle, Work};
use crate::runtime::{self, Launch, DEVICE_BYTES};

/// CUPTI's memory kinds.
const PAGEABLE: u8 = 1;
const PINNED: u8 = 2;
const DEVICE: u8 = 3;

/// Where device addresses begin. Nothing is mapped there, so a host that follows one faults.
const DEVICE_BASE: u64 = 0x0d00_0000_0000;
const DEVICE_ALIGN: u64 = 512;

/// How much is staged at once.
const STAGING_CHUNK: usize = leads::STAGED_WHOLE_BYTES as usize;

fn allocate(call: &Active, bytes: usize) -> Result<u64, CUresult> {
    let device = call.context()?.device;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    call.cost(call.runtime.alloc_cost(&leads::MEM_ALLOC_4M_CALL));
    let mut memory = runtime::lock(&call.runtime.memory);
    let size = (bytes as u64).next_multiple_of(DEVICE_ALIGN);
    if memory.used(device) + size > DEVICE_BYTES {
        return Err(OUT_OF_MEMORY);
    }
    let address = DEVICE_BASE + memory.brk;
    memory.brk += size;
    memory.device.insert(address, (size, device));
    Ok(address)
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuMemAlloc_v2(out: *mut u64, bytes: usize) -> CUresult {
    // SAFETY: the program's pointer.
    traced(cbid::MEM_ALLOC, |call| unsafe {
        put(out, allocate(call, bytes)?)
    })
}

#[no_mangle]
pub extern "C" fn cuMemFree_v2(address: u64) -> CUresult {
    traced(cbid::MEM_FREE, |call| {
        call.context()?;
        if address == 0 {
            return Ok(());
        }
        let managed = runtime::lock(&call.runtime.memory)
            .managed
            .remove(&(address as usize));
        if let Some(size) = managed {
            let work = call
                .runtime
                .simulation()
                .device_work(call.context()?.device);
            call.runtime.wait(&work, false, &leads::CTX_SYNC);
            // SAFETY: exactly the mapping of cuMemAllocManaged, and the program gave it up.
            unsafe { libc::munmap(address as *mut c_void, size) };
            return Ok(());
        }
        let known = runtime::lock(&call.runtime.memory)
            .device
            .get(&address)
            .copied();
        let (_, device) = known.ok_or(INVALID_VALUE)?;
        // Freeing waits for everything on the device.
        let work = call.runtime.simulation().device_work(device);
        call.runtime.wait(&work, false, &leads::CTX_SYNC);
        spin_until(now() + call.runtime.alloc_cost(&leads::MEM_FREE_4M_CALL));
        runtime::lock(&call.runtime.memory).device.remove(&address);
        Ok(())
    })
}

/// New memory that the host can use.
fn map(bytes: usize, flags: c_int) -> Result<*mut c_void, CUresult> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a new mapping.
    let address = unsafe {
        libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    Ok(address)
}

unsafe fn host_alloc(id: Cbid, out: *mut *mut c_void, bytes: usize) -> CUresult {
    traced(id, |call| {
        call.context()?;
        // Populated, as page-locking does.
        let address = map(bytes, libc::MAP_POPULATE)?;
        // Page-locking was not measured; mapping the memory is real.
        call.cost(call.runtime.alloc_cost(&leads::MEM_ALLOC_4M_CALL));
        runtime::lock(&call.runtime.memory)
            .pinned
            .insert(address as usize, bytes);
        // SAFETY: the program's pointer.
        unsafe { put(out, address) }
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuMemHostAlloc(
    out: *mut *mut c_void,
    bytes: usize,
    _flags: u32,
) -> CUresult {
    // SAFETY: the program's pointer.
    unsafe { host_alloc(cbid::MEM_HOST_ALLOC, out, bytes) }
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocHost_v2(out: *mut *mut c_void, bytes: usize) -> CUresult {
    // SAFETY: the program's pointer.
    unsafe { host_alloc(cbid::MEM_ALLOC_HOST, out, bytes) }
}

/// # Safety
/// As in CUDA: `address` came from this library and is used no more.
#[no_mangle]
pub unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    traced(cbid::MEM_FREE_HOST, |call| {
        let context = call.context()?;
        let size = runtime::lock(&call.runtime.memory)
            .pinned
            .remove(&(address as usize))
            .ok_or(INVALID_VALUE)?;
        let work = call.runtime.simulation().device_work(context.device);
        call.runtime.wait(&work, false, &leads::CTX_SYNC);
        spin_until(now() + call.runtime.alloc_cost(&leads::MEM_FREE_4M_CALL));
        // SAFETY: exactly the mapping of host_alloc, and the program gave it up.
        unsafe { libc::munmap(address, size) };
        Ok(())
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocManaged(out: *mut u64, bytes: usize, _flags: u32) -> CUresult {
    traced(cbid::MEM_ALLOC_MANAGED, |call| {
        call.context()?;
        let address = map(bytes, 0)?;
        call.cost(call.runtime.alloc_cost(&leads::MEM_ALLOC_4M_CALL));
        runtime::lock(&call.runtime.memory)
            .managed
            .insert(address as usize, bytes);
        // SAFETY: the program's pointer.
        unsafe { put(out, address as u64) }
    })
}

/// Managed memory moves as fast as a copy of pinned memory, which is a guess, and whether it is
/// there already or not: nobody is told when the host touches it.
fn prefetch(
    call: &Active,
    address: u64,
    bytes: usize,
    direction: Direction,
    stream: Opaque,
) -> Result<(), CUresult> {
    let (target, runtime) = (call.stream(stream as Handle)?, call.runtime);
    if !runtime::lock(&runtime.memory).is_managed(address as usize, bytes) {
        return Err(INVALID_VALUE);
    }
    let mut operation = target.operation(what::MIGRATION, call.correlation);
    operation.bytes = bytes as u64;
    let rows = match direction {
        Direction::HostToDevice => &leads::HTOD_PINNED,
        Direction::DeviceToHost => &leads::DTOH_PINNED,
    };
    operation.copy_kind = match direction {
        Direction::HostToDevice => 1,
        Direction::DeviceToHost => 2,
    };
    let work = Work::Copy {
        direction,
        ns: runtime.copy_ns(rows.length, bytes as u64),
    };
    let launch = runtime.transfer_launch(rows, bytes as u64);
    let finish = enqueue(call, &target, Some(&operation), work, launch);
    finish.map(drop).ok_or(INVALID_HANDLE)
}

/// `CU_DEVICE_CPU`
const CPU: c_int = -1;

#[no_mangle]
pub extern "C" fn cuMemPrefetchAsync(
    address: u64,
    bytes: usize,
    device: c_int,
    stream: Opaque,
) -> CUresult {
    let direction = if device == CPU {
        Direction::DeviceToHost
    } else {
        Direction::HostToDevice
    };
    traced(cbid::MEM_PREFETCH_ASYNC, |call| {
        prefetch(call, address, bytes, direction, stream)
    })
}

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const LOCATION_DEVICE: c_int = 1;

#[no_mangle]
pub extern "C" fn cuMemPrefetchAsync_v2(
    address: u64,
    bytes: usize,
    location: Location,
    _flags: u32,
    stream: Opaque,
) -> CUresult {
    let direction = if location.kind == LOCATION_DEVICE {
        Direction::HostToDevice
    } else {
        Direction::DeviceToHost
    };
    traced(cbid::MEM_PREFETCH_ASYNC_V2, |call| {
        prefetch(call, address, bytes, direction, stream)
    })
}

/// A copy between host and device as the program asked for it.
struct Copy {
    direction: Direction,
    host: *mut c_void,
    bytes: usize,
    asynchronous: bool,
}

unsafe fn copy(id: Cbid, stream: Opaque, copy: &Copy) -> CUresult {
    traced(id, |call| {
        let target = call.stream(stream as Handle)?;
        if copy.bytes == 0 {
            return Ok(());
        }
        if copy.host.is_null() {
            return Err(INVALID_VALUE);
        }
        let pinned = runtime::lock(&call.runtime.memory).is_pinned(copy.host as usize);
        match (copy.direction, pinned) {
            // SAFETY: the program's memory of that size.
            (Direction::HostToDevice, false) => unsafe { copy_staged(call, &target, copy) },
            // SAFETY: likewise.
            (Direction::DeviceToHost, false) => unsafe { copy_back(call, &target, copy) },
            (Direction::HostToDevice, true) => {
                copy_pinned(call, &target, copy, &leads::HTOD_PINNED)
            }
            (Direction::DeviceToHost, true) => {
                copy_pinned(call, &target, copy, &leads::DTOH_PINNED)
            }
        }
    })
}

fn copy_pinned(
    call: &Active,
    target: &Target,
    copy: &Copy,
    rows: &Transfer,
) -> Result<(), CUresult> {
    let launch = call.runtime.transfer_launch(rows, copy.bytes as u64);
    let (finish, _) = enqueue_copy(call, target, copy, PINNED, rows.length, launch)?;
    if !copy.asynchronous {
        // Not measured: as long as if the program asked for it.
        let blocking = target.context.blocking;
        call.runtime.wait(&[finish], blocking, &leads::STREAM_SYNC);
    }
    Ok(())
}

/// From pageable memory: the call ends when the last bytes are staged.
unsafe fn copy_staged(call: &Active, target: &Target, copy: &Copy) -> Result<(), CUresult> {
    let (runtime, bytes) = (call.runtime, copy.bytes as u64);
    if !copy.asynchronous {
        // The synchronous call waits for the stream first.
        let work = runtime.simulation().stream_work(target.handle, now());
        let work = work.ok_or(INVALID_HANDLE)?;
        runtime.wait(&work, target.context.blocking, &leads::STREAM_SYNC);
    }
    if bytes <= leads::STAGED_WHOLE_BYTES {
        // SAFETY: the program's memory of that size.
        unsafe { stage(copy.host.cast(), copy.bytes) };
        let rows = &leads::HTOD_PAGEABLE;
        let launch = runtime.transfer_launch(rows, bytes);
        enqueue_copy(call, target, copy, PAGEABLE, rows.length, launch)?;
        return Ok(());
    }
    let rows = &leads::HTOD_PAGEABLE_LARGE;
    let first = STAGING_CHUNK;
    // SAFETY: the beginning of the program's memory.
    unsafe { stage(copy.host.cast(), first) };
    let launch = runtime.staged_launch(rows, bytes);
    let (finish, _) = enqueue_copy(call, target, copy, PAGEABLE, rows.length, launch)?;
    // SAFETY: the rest of the same memory.
    unsafe { stage(copy.host.cast::<u8>().add(first), copy.bytes - first) };
    // The last bytes fit in when the engine has taken those before.
    let returned = draws::at_size(rows.returned, bytes, runtime.random());
    let end = runtime.end_of(&[finish], target.context.blocking);
    spin_until(end.saturating_add_signed(returned));
    Ok(())
}

/// To pageable memory: the call ends when the driver has moved the bytes on to it.
unsafe fn copy_back(call: &Active, target: &Target, copy: &Copy) -> Result<(), CUresult> {
    let (runtime, bytes) = (call.runtime, copy.bytes as u64);
    let rows = &leads::DTOH_PAGEABLE;
    let launch = runtime.staged_launch(rows, bytes);
    let (finish, ns) = enqueue_copy(call, target, copy, PAGEABLE, rows.length, launch)?;
    let (finish, blocking) = ([finish], target.context.blocking);
    // What is staged in turns is moved on while the copy runs, but for the end.
    let early = if bytes > leads::STAGED_WHOLE_BYTES {
        let end = runtime.end_of(&finish, blocking);
        runtime.wait_until(end.saturating_sub(ns), blocking);
        copy.bytes - STAGING_CHUNK
    } else {
        0
    };
    // SAFETY: the beginning of the program's memory.
    unsafe { copy.host.cast::<u8>().write_bytes(0, early) };
    let arrived = runtime.wait(&finish, blocking, &leads::DTOH_PAGEABLE_RETURN);
    // SAFETY: the rest of the same memory.
    unsafe {
        let rest = copy.host.cast::<u8>().add(early);
        rest.write_bytes(0, copy.bytes - early);
    }
    let at = runtime.random();
    let moving = draws::at_size(rows.returned, bytes, at) - draws::at_size(rows.returned, 0, at);
    spin_until(arrived.saturating_add_signed(moving));
    Ok(())
}

/// Really reads the bytes, in chunks, as the driver's staging does.
unsafe fn stage(from: *const u8, bytes: usize) {
    thread_local! {
        static CHUNK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    CHUNK.with_borrow_mut(|chunk| {
        chunk.resize(STAGING_CHUNK, 0);
        for offset in (0..bytes).step_by(STAGING_CHUNK) {
            let n = STAGING_CHUNK.min(bytes - offset);
            let to = chunk.as_mut_ptr();
            // SAFETY: inside the program's memory and the chunk; they do not overlap.
            unsafe { to.copy_from_nonoverlapping(from.add(offset), n) };
            std::hint::black_box(&chunk);
        }
    });
}

/// Returns the copy's end and its length.
fn enqueue_copy(
    call: &Active,
    target: &Target,
    copy: &Copy,
    host_kind: u8,
    length: BySize,
    launch: Launch,
) -> Result<(Finish, u64), CUresult> {
    let mut operation = target.operation(what::MEMCPY, call.correlation);
    operation.bytes = copy.bytes as u64;
    operation.asynchronous = u8::from(copy.asynchronous);
    (operation.copy_kind, operation.src_kind, operation.dst_kind) = match copy.direction {
        Direction::HostToDevice => (1, host_kind, DEVICE),
        Direction::DeviceToHost => (2, DEVICE, host_kind),
    };
    let ns = call.runtime.copy_ns(length, copy.bytes as u64);
    let direction = copy.direction;
    let work = Work::Copy { direction, ns };
    let finish = enqueue(call, target, Some(&operation), work, launch);
    Ok((finish.ok_or(INVALID_HANDLE)?, ns))
}

/// # Safety
/// As in CUDA: `host` is valid for `bytes`.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(
    _device: u64,
    host: *const c_void,
    bytes: usize,
) -> CUresult {
    let it = Copy {
        direction: Direction::HostToDevice,
        host: host.cast_mut(),
        bytes,
        asynchronous: false,
    };
    // SAFETY: the program's memory.
    unsafe { copy(cbid::MEMCPY_HTOD, null_mut(), &it) }
}

/// # Safety
/// As in CUDA: `host` is valid for `bytes` until the copy is done.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    _device: u64,
    host: *const c_void,
    bytes: usize,
    stream: Opaque,
) -> CUresult {
    let it = Copy {
        direction: Direction::HostToDevice,
        host: host.cast_mut(),
        bytes,
        asynchronous: true,
    };
    // SAFETY: the program's memory.
    unsafe { copy(cbid::MEMCPY_HTOD_ASYNC, stream, &it) }
}

/// # Safety
/// As in CUDA: `host` is valid for `bytes`.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(
    host: *mut c_void,
    _device: u64,
    bytes: usize,
) -> CUresult {
    let it = Copy {
        direction: Direction::DeviceToHost,
        host,
        bytes,
        asynchronous: false,
    };
    // SAFETY: the program's memory.
    unsafe { copy(cbid::MEMCPY_DTOH, null_mut(), &it) }
}

/// # Safety
/// As in CUDA: `host` is valid for `bytes` until the copy is done.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    host: *mut c_void,
    _device: u64,
    bytes: usize,
    stream: Opaque,
) -> CUresult {
    let it = Copy {
        direction: Direction::DeviceToHost,
        host,
        bytes,
        asynchronous: true,
    };
    // SAFETY: the program's memory.
    unsafe { copy(cbid::MEMCPY_DTOH_ASYNC, stream, &it) }
}

/// Enqueues what the device does in its own memory.
fn enqueue_on_device(
    call: &Active,
    target: &Target,
    operation: &Operation,
    rows: &Transfer,
) -> Result<(), CUresult> {
    let (runtime, bytes) = (call.runtime, operation.bytes);
    let work = Work::OnDevice {
        ns: draws::length(rows.length, bytes, runtime.random()),
    };
    let launch = runtime.transfer_launch(rows, bytes);
    let finish = enqueue(call, target, Some(operation), work, launch);
    finish.map(drop).ok_or(INVALID_HANDLE)
}

#[no_mangle]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    _to: u64,
    _from: u64,
    bytes: usize,
    stream: Opaque,
) -> CUresult {
    traced(cbid::MEMCPY_DTOD_ASYNC, |call| {
        let target = call.stream(stream as Handle)?;
        let mut operation = target.operation(what::MEMCPY, call.correlation);
        operation.bytes = bytes as u64;
        operation.asynchronous = 1;
        (operation.copy_kind, operation.src_kind, operation.dst_kind) = (8, DEVICE, DEVICE);
        enqueue_on_device(call, &target, &operation, &leads::DTOD)
    })
}

#[no_mangle]
pub extern "C" fn cuMemcpyPeerAsync(
    _to: u64,
    to_context: Opaque,
    _from: u64,
    from_context: Opaque,
    bytes: usize,
    stream: Opaque,
) -> CUresult {
    traced(cbid::MEMCPY_PEER_ASYNC, |call| {
        let target = call.stream(stream as Handle)?;
        let runtime = call.runtime;
        let to = runtime.context(to_context as Handle).ok_or(INVALID_VALUE)?;
        let from = runtime
            .context(from_context as Handle)
            .ok_or(INVALID_VALUE)?;
        let mut operation = target.operation(what::MEMCPY_PEER, call.correlation);
        operation.bytes = bytes as u64;
        operation.asynchronous = 1;
        operation.source = [from.device as u32, from.id];
        operation.destination = [to.device as u32, to.id];
        (operation.copy_kind, operation.src_kind, operation.dst_kind) = (10, DEVICE, DEVICE);
        // Not measured: as if it went to the host.
        let rows = &leads::DTOH_PINNED;
        let work = Work::Copy {
            direction: Direction::DeviceToHost,
            ns: runtime.copy_ns(rows.length, bytes as u64),
        };
        let launch = runtime.transfer_launch(rows, bytes as u64);
        let finish = enqueue(call, &target, Some(&operation), work, launch);
        finish.map(drop).ok_or(INVALID_HANDLE)
    })
}

#[no_mangle]
pub extern "C" fn cuMemsetD8Async(_to: u64, value: u8, bytes: usize, stream: Opaque) -> CUresult {
    traced(cbid::MEMSET_D8_ASYNC, |call| {
        let target = call.stream(stream as Handle)?;
        let mut operation = target.operation(what::MEMSET, call.correlation);
        operation.bytes = bytes as u64;
        operation.asynchronous = 1;
        operation.value = value.into();
        operation.dst_kind = DEVICE;
        enqueue_on_device(call, &target, &operation, &leads::MEMSET)
    })
}
