//! Events.

use super::Opaque;
use crate::call::{put, traced, CUresult, INVALID_HANDLE, NOT_READY};
use crate::cbid;
use crate::clock::now;
use crate::leads;
use crate::link;
use crate::model::Handle;

/// `CU_EVENT_BLOCKING_SYNC`
const BLOCKING_SYNC: u32 = 1;

/// # Safety
/// As in CUDA: `out` is valid for writes.
#[no_mangle]
pub unsafe extern "C" fn cuEventCreate(out: *mut Opaque, flags: u32) -> CUresult {
    traced(cbid::EVENT_CREATE, |call| {
        let context = call.context()?;
        call.cost(leads::OTHER_CALL_NS);
        let blocking = flags & BLOCKING_SYNC != 0;
        let event = call
            .runtime
            .simulation()
            .create_event(context.handle, blocking);
        // SAFETY: the program's pointer.
        unsafe { put(out, event as Opaque) }
    })
}

#[no_mangle]
pub extern "C" fn cuEventDestroy_v2(event: Opaque) -> CUresult {
    traced(cbid::EVENT_DESTROY, |call| {
        call.cost(leads::OTHER_CALL_NS);
        let gone = call.runtime.simulation().events.remove(&(event as Handle));
        gone.map(drop).ok_or(INVALID_HANDLE)
    })
}

#[no_mangle]
pub extern "C" fn cuEventRecord(event: Opaque, stream: Opaque) -> CUresult {
    traced(cbid::EVENT_RECORD, |call| {
        let target = call.stream(stream as Handle)?;
        call.cost(call.runtime.cost_of(&leads::EVENT_RECORD_CALL));
        let mut simulation = call.runtime.simulation();
        if !simulation.record_event(event as Handle, target.handle, now()) {
            return Err(INVALID_HANDLE);
        }
        let id = simulation.events.get(&(event as Handle)).map(|e| e.id);
        drop(simulation);
        if let Some(link) = call.runtime.link.get() {
            (link.event)(&link::EventRecord {
                correlation: call.correlation,
                device: target.context.device as u32,
                context_id: target.context.id,
                stream_id: target.id,
                event_id: id.unwrap_or(link::NONE),
            });
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cuEventQuery(event: Opaque) -> CUresult {
    traced(cbid::EVENT_QUERY, |call| {
        call.cost(leads::OTHER_CALL_NS);
        let work = call.runtime.simulation().event_work(event as Handle);
        let t = now();
        let mut work = work.ok_or(INVALID_HANDLE)?.into_iter();
        let done = work.all(|finish| finish.get().is_some_and(|end| end <= t));
        done.then_some(()).ok_or(NOT_READY)
    })
}

#[no_mangle]
pub extern "C" fn cuEventSynchronize(event: Opaque) -> CUresult {
    traced(cbid::EVENT_SYNCHRONIZE, |call| {
        let simulation = call.runtime.simulation();
        let known = simulation.events.get(&(event as Handle));
        let (id, blocking, context) = known
            .map(|e| (e.id, e.blocking, e.context))
            .ok_or(INVALID_HANDLE)?;
        let work = simulation.event_work(event as Handle);
        drop(simulation);
        let sync = link::Sync {
            what: 1, // EVENT_SYNCHRONIZE
            correlation: 0,
            context_id: call.runtime.context(context).map_or(0, |c| c.id),
            stream_id: link::NONE,
            event_id: id,
            result: 0,
            start: 0,
            end: 0,
        };
        let work = work.ok_or(INVALID_HANDLE)?;
        call.synchronise(&work, blocking, &leads::EVENT_SYNC, sync);
        Ok(())
    })
}
