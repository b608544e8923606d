//! Running between two waits of the same kind.
//!
//! A read of a cold file is a series of waits with the kernel at work in between: it submits the
//! next request and copies what has come. The same goes for page faults, flushes, and starting
//! processes; and for a thread that gives its CPU away over and over. Scheduling events do not say whether a thread ran in the kernel or in its own
//! code; a run that is shorter than the waits beside it is taken for a part of them.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::analyse::what::{Piece, What};
use crate::model::thread::ThreadIdx;
use crate::units::Nanos;

/// A longer run is the thread's own work in any case.
const LONGEST_RUN: Nanos = Nanos::from_millis(1);

fn thread(piece: &Piece) -> Option<ThreadIdx> {
    piece.who.map(|w| w.thread)
}

/// Who yields in a loop looks in between whether there is something to do.
const LONGEST_LOOK: Nanos = Nanos::from_micros(100);

/// A wait with work of the kernel around it.
fn is_wait(piece: &Piece) -> bool {
    if piece.cause == Cause::Spin {
        return true;
    }
    let kernel_works = matches!(
        piece.cause,
        Cause::DiskRead | Cause::DiskWrite | Cause::PageFault | Cause::Subprocess
    );
    kernel_works && matches!(piece.what, What::Wait { .. })
}

/// The thread ran, and not in a CUDA call.
fn is_run(piece: &Piece) -> bool {
    match piece.what {
        What::Before(_) | What::Working => true,
        What::Say(_) => piece.cause == Cause::Compute,
        What::Nothing
        | What::In(_)
        | What::Ran(_)
        | What::RanTid(_)
        | What::Irq(_)
        | What::Wait { .. }
        | What::Lock { .. }
        | What::From { .. }
        | What::Stopped { .. }
        | What::Overhead(_)
        | What::AfterStream(_)
        | What::Missing(_) => false,
    }
}

/// Neither a run nor a wait, and no reason to end the series.
fn is_aside(piece: &Piece) -> bool {
    matches!(
        piece.cause,
        Cause::Irq | Cause::CpuWakeup | Cause::Preempted | Cause::Oversubscribed | Cause::Observer
    )
}

/// Gives short runs between two waits of one cause to that cause.
pub(super) fn charge_between_waits(pieces: &mut [Piece]) {
    let mut from: Option<usize> = None;
    let mut ran = Nanos::ZERO;
    for i in 0..pieces.len() {
        let piece = pieces[i];
        let first = from.map(|f| pieces[f]);
        let same_thread = first.is_none_or(|f| thread(&f) == thread(&piece));
        if is_wait(&piece) {
            if let (Some(f), Some(first)) = (from, first) {
                let longest = if piece.cause == Cause::Spin {
                    LONGEST_LOOK
                } else {
                    first.len().max(piece.len()).min(LONGEST_RUN)
                };
                if same_thread && first.cause == piece.cause && ran <= longest {
                    for between in &mut pieces[f + 1..i] {
                        if is_run(between) {
                            between.cause = first.cause;
                            between.what = first.what;
                        }
                    }
                }
            }
            from = Some(i);
            ran = Nanos::ZERO;
        } else if is_run(&piece) && same_thread {
            ran += piece.len();
        } else if !(is_aside(&piece) && same_thread) {
            from = None;
        }
    }
}
