//! What every traced driver call has in common: results, the correlation id, and what libcupti hears of it.

use std::ffi::{c_char, c_void};
use std::ptr::null;

use crate::cbid::Cbid;
use crate::clock::{now, spin_until};
use crate::init;
use crate::leads;
use crate::link;
use crate::model::{Finish, Handle};
use crate::runtime::{self, Current, Runtime};

pub type CUresult = u32;

pub const SUCCESS: CUresult = 0;
pub const INVALID_VALUE: CUresult = 1;
pub const OUT_OF_MEMORY: CUresult = 2;
pub const NOT_INITIALIZED: CUresult = 3;
pub const INVALID_DEVICE: CUresult = 101;
pub const INVALID_CONTEXT: CUresult = 201;
pub const INVALID_HANDLE: CUresult = 400;
pub const NOT_FOUND: CUresult = 500;
pub const NOT_READY: CUresult = 600;
pub const NOT_PERMITTED: CUresult = 800;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`. The simulation has no stream per thread: both are the null stream.
const SPECIAL_STREAMS: std::ops::RangeInclusive<Handle> = 1..=2;

/// A driver call in progress.
#[derive(Debug)]
pub struct Active {
    pub runtime: &'static Runtime,
    pub correlation: u32,
    pub start: u64,
    context: Option<Current>,
}

/// The arguments of a launch as callbacks show them.
#[derive(Debug)]
pub struct Shown {
    pub symbol: *const c_char,
    pub params: *const c_void,
}

/// Runs a driver call, traced as `cbid`. The result is the body's.
pub fn traced(cbid: Cbid, body: impl FnOnce(&Active) -> Result<(), CUresult>) -> CUresult {
    let nothing = Shown {
        symbol: null(),
        params: null(),
    };
    traced_as(cbid, &nothing, body)
}

pub fn traced_as(
    cbid: Cbid,
    shown: &Shown,
    body: impl FnOnce(&Active) -> Result<(), CUresult>,
) -> CUresult {
    if !init::is_initialised() {
        return NOT_INITIALIZED;
    }
    if runtime::on_event_thread() {
        return NOT_PERMITTED;
    }
    let runtime = runtime::get();
    let context = runtime::current_context();
    let mut call = link::Call {
        cbid: cbid.id,
        correlation: runtime.next_correlation(),
        context_id: context.map_or(0, |c| c.id),
        result: SUCCESS,
        context: context.map_or(0, |c| c.handle) as *mut c_void,
        name: cbid.name.as_ptr(),
        symbol: shown.symbol,
        params: shown.params,
        data: 0,
        start: now(),
        end: 0,
    };
    let link = runtime.link.get();
    if let Some(link) = link {
        (link.enter)(&mut call);
    }
    let active = Active {
        runtime,
        correlation: call.correlation,
        start: call.start,
        context,
    };
    call.result = body(&active).err().unwrap_or(SUCCESS);
    call.end = now();
    if let Some(link) = link {
        (link.exit)(&mut call);
    }
    call.result
}

impl Active {
    pub fn context(&self) -> Result<Current, CUresult> {
        self.context.ok_or(INVALID_CONTEXT)
    }

    /// Keeps the call busy until it took `ns`.
    pub fn cost(&self, ns: u64) {
        spin_until(self.start + ns);
    }

    /// A stream of the current context, for work to be enqueued. 0 is its null stream.
    pub fn stream(&self, handle: Handle) -> Result<Target, CUresult> {
        let context = self.context()?;
        let simulation = self.runtime.simulation();
        let handle = if handle == 0 || SPECIAL_STREAMS.contains(&handle) {
            let context = simulation.contexts.get(&context.handle);
            context.ok_or(INVALID_CONTEXT)?.null_stream
        } else {
            handle
        };
        let stream = simulation.streams.get(&handle).ok_or(INVALID_HANDLE)?;
        if stream.context != context.handle {
            return Err(INVALID_HANDLE);
        }
        Ok(Target {
            handle,
            id: stream.id,
            priority: stream.priority,
            context,
        })
    }

    /// Waits for `work` and reports it.
    pub fn synchronise(
        &self,
        work: &[Finish],
        blocking: bool,
        returns: &leads::Return,
        sync: link::Sync,
    ) {
        self.cost(leads::OTHER_CALL_NS);
        self.runtime.wait(work, blocking, returns);
        self.report(sync);
    }

    /// Reports a synchronisation that this call was until now.
    pub fn report(&self, sync: link::Sync) {
        if let Some(link) = self.runtime.link.get() {
            (link.sync)(&link::Sync {
                correlation: self.correlation,
                start: self.start,
                end: now(),
                ..sync
            });
        }
    }

    /// Reports time that the driver took by itself since `start`.
    pub fn overhead(&self, what: u32, start: u64) {
        if let Some(link) = self.runtime.link.get() {
            (link.overhead)(&link::Overhead {
                what,
                correlation: self.correlation,
                start,
                end: now(),
            });
        }
    }
}

/// A stream that takes work.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub handle: Handle,
    pub id: u32,
    pub priority: i32,
    pub context: Current,
}

impl Target {
    /// A record of an operation in this stream, to be filled in.
    pub fn operation(&self, what: u32, correlation: u32) -> link::Operation {
        link::Operation {
            what,
            device: self.context.device as u32,
            context_id: self.context.id,
            stream_id: self.id,
            correlation,
            source: [0; 2],
            destination: [0; 2],
            priority: self.priority,
            name: null(),
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            copy_kind: 0,
            src_kind: 0,
            dst_kind: 0,
            asynchronous: 0,
            bytes: 0,
            value: 0,
        }
    }

    /// What a synchronisation of this stream reports.
    pub fn sync(&self, what: u32) -> link::Sync {
        link::Sync {
            what,
            correlation: 0,
            context_id: self.context.id,
            stream_id: self.id,
            event_id: link::NONE,
            result: 0,
            start: 0,
            end: 0,
        }
    }
}

/// Writes a result where the program wants it.
///
/// # Safety
/// `out` is null or valid for writes.
pub unsafe fn put<T>(out: *mut T, value: T) -> Result<(), CUresult> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}
