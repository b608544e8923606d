//! Streams.

use super::Opaque;
use crate::call::{put, traced, CUresult, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY};
use crate::cbid::{self, Cbid};
use crate::clock::now;
use crate::leads;
use crate::link;
use crate::model::Handle;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;

unsafe fn create(id: Cbid, out: *mut Opaque, flags: u32, priority: i32) -> CUresult {
    traced(id, |call| {
        let context = call.context()?;
        call.cost(leads::OTHER_CALL_NS);
        let stream = call.runtime.simulation().create_stream(
            context.handle,
            flags & NON_BLOCKING != 0,
            priority,
        );
        // SAFETY: the program's pointer.
        unsafe { put(out, stream.ok_or(INVALID_CONTEXT)? as Opaque) }
    })
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuStreamCreate(out: *mut Opaque, flags: u32) -> CUresult {
    // SAFETY: the program's pointer.
    unsafe { create(cbid::STREAM_CREATE, out, flags, 0) }
}

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    out: *mut Opaque,
    flags: u32,
    priority: i32,
) -> CUresult {
    // SAFETY: the program's pointer.
    unsafe { create(cbid::STREAM_CREATE_WITH_PRIORITY, out, flags, priority) }
}

#[no_mangle]
pub extern "C" fn cuStreamDestroy_v2(stream: Opaque) -> CUresult {
    traced(cbid::STREAM_DESTROY, |call| {
        call.cost(leads::OTHER_CALL_NS);
        let gone = call
            .runtime
            .simulation()
            .destroy_stream(stream as Handle, now());
        gone.then_some(()).ok_or(INVALID_HANDLE)
    })
}

#[no_mangle]
pub extern "C" fn cuStreamQuery(stream: Opaque) -> CUresult {
    traced(cbid::STREAM_QUERY, |call| {
        let target = call.stream(stream as Handle)?;
        call.cost(leads::OTHER_CALL_NS);
        let t = now();
        let work = call.runtime.simulation().stream_work(target.handle, t);
        let mut work = work.ok_or(INVALID_HANDLE)?.into_iter();
        let done = work.all(|finish| finish.get().is_some_and(|end| end <= t));
        done.then_some(()).ok_or(NOT_READY)
    })
}

#[no_mangle]
pub extern "C" fn cuStreamSynchronize(stream: Opaque) -> CUresult {
    traced(cbid::STREAM_SYNCHRONIZE, |call| {
        let target = call.stream(stream as Handle)?;
        let work = call.runtime.simulation().stream_work(target.handle, now());
        let sync = target.sync(3); // STREAM_SYNCHRONIZE
        let (work, blocking) = (work.ok_or(INVALID_HANDLE)?, target.context.blocking);
        call.synchronise(&work, blocking, &leads::STREAM_SYNC, sync);
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cuStreamWaitEvent(stream: Opaque, event: Opaque, _flags: u32) -> CUresult {
    traced(cbid::STREAM_WAIT_EVENT, |call| {
        let target = call.stream(stream as Handle)?;
        call.cost(call.runtime.cost_of(&leads::STREAM_WAIT_EVENT_CALL));
        let mut simulation = call.runtime.simulation();
        if !simulation.wait_event(target.handle, event as Handle, now()) {
            return Err(INVALID_HANDLE);
        }
        let id = simulation.events.get(&(event as Handle)).map(|e| e.id);
        drop(simulation);
        let sync = link::Sync {
            event_id: id.unwrap_or(link::NONE),
            ..target.sync(2) // STREAM_WAIT_EVENT
        };
        call.report(sync);
        Ok(())
    })
}
