//! Which CUDA call a thread was in.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::model::api::Class;
use crate::model::gpu::GpuLog;
use crate::model::ops::Call;
use crate::model::search::Hint;
use crate::model::thread::Thread;
use crate::units::Nanos;

/// A call that returns within this time goes at launch speed.
pub(super) const LAUNCH_SPACING: Nanos = Nanos::from_micros(50);

/// What being inside a call makes of a nanosecond; `None` for calls that put work into a
/// stream and return at once.
pub(super) fn cause_of(call: &Call) -> Option<Cause> {
    match call.class {
        Class::Sync => Some(Cause::Sync),
        Class::Memcpy | Class::MemcpyAsync if call.is_small_read_back() => Some(Cause::Sync),
        Class::Memcpy | Class::MemcpyAsync if call.is_pageable_copy() => Some(Cause::PageableCopy),
        // It returns when the copy is done: as good as a synchronisation.
        Class::Memcpy => Some(Cause::Sync),
        Class::Memory => Some(Cause::CudaMemory),
        Class::Module => Some(Cause::ModuleLoad),
        Class::Context | Class::Other => Some(Cause::CudaApi),
        Class::Launch
        | Class::GraphLaunch
        | Class::MemcpyAsync
        | Class::Memset
        | Class::StreamWait
        | Class::HostFunc => None,
    }
}

/// A part of a thread's time with the innermost call that it was in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) call: Option<&'a Call>,
}

impl Segment<'_> {
    pub(super) fn part(self, start: Nanos, end: Nanos) -> Self {
        Segment { start, end, ..self }
    }
}

/// The calls of one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls<'a> {
    gpu: &'a GpuLog,
    list: &'a [u32],
    hint: &'a Hint,
}

impl<'a> Calls<'a> {
    pub(super) fn of(gpu: &'a GpuLog, thread: &'a Thread, hint: &'a Hint) -> Self {
        Calls {
            gpu,
            list: thread.calls(),
            hint,
        }
    }

    fn get(self, i: usize) -> Option<&'a Call> {
        self.list.get(i).map(|&c| &self.gpu.calls()[c as usize])
    }

    fn outer(self, call: &Call) -> Option<&'a Call> {
        call.outer().map(|c| self.gpu.call_at(c))
    }

    /// Number of calls that begin at or before `t`.
    fn begun(self, t: Nanos) -> usize {
        let calls = self.gpu.calls();
        self.hint
            .partition_point(self.list.len(), |i| calls[self.list[i] as usize].start <= t)
    }

    /// `call`, or the nearest call around it, that is still going on at `t`.
    fn still_open(self, call: Option<&'a Call>, t: Nanos) -> Option<&'a Call> {
        let mut call = call;
        while let Some(c) = call {
            if c.end > t {
                break;
            }
            call = self.outer(c);
        }
        call
    }

    /// The innermost call at `t`.
    pub(super) fn innermost(self, t: Nanos) -> Option<&'a Call> {
        let last = self.begun(t).checked_sub(1)?;
        self.still_open(self.get(last), t)
    }

    /// The outermost call at `t`: the one that the program made.
    pub(super) fn outermost(self, t: Nanos) -> Option<&'a Call> {
        let mut call = self.innermost(t)?;
        while let Some(outer) = self.outer(call) {
            call = outer;
        }
        Some(call)
    }

    /// Covers `[from, to)` exactly.
    pub(super) fn segments(self, from: Nanos, to: Nanos, mut each: impl FnMut(Segment<'a>)) {
        let mut next = self.begun(from);
        let mut current = self.innermost(from);
        let mut at = from;
        while at < to {
            let coming = self.get(next).map_or(Nanos::MAX, |c| c.start);
            let end = current.map_or(Nanos::MAX, |c| c.end).min(coming).min(to);
            if at < end {
                each(Segment {
                    start: at,
                    end,
                    call: current,
                });
                at = end;
            }
            if at >= to {
                break;
            }
            if coming <= at {
                current = self.still_open(self.get(next), at);
                next += 1;
            } else {
                current = self.still_open(current, at);
            }
        }
    }

    /// End of the last call before `t` and start of the next one, with that one; `t` is between calls.
    pub(super) fn around(self, t: Nanos) -> (Option<Nanos>, Option<&'a Call>) {
        let next = self.begun(t);
        let before = next.checked_sub(1).and_then(|i| self.get(i)).map(|call| {
            let mut call = call;
            while let Some(outer) = self.outer(call) {
                call = outer;
            }
            call.end
        });
        (before, self.get(next))
    }
}
