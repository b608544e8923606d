//! Samples as the BPF programs sent them: addresses, which only the maps of that moment can name.
#![forbid(unsafe_code)]

use std::mem::offset_of;

use crate::collect::bpf::types::{
    gdiag_cut as cut, gdiag_py_cut, gdiag_py_flags, gdiag_sample_flags, gdiag_sample_kind as kind,
};
use crate::collect::stacks::types;
use crate::collect::wire::read_cut;
use crate::event::{Cut, Pid, SampleKind, Tid};
use crate::units::Nanos;

/// A sample whose frames are still addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSample {
    pub ts: Nanos,
    pub tid: Tid,
    pub pid: Pid,
    /// The period of a CPU sample is not known here: 0.
    pub kind: SampleKind,
    /// Which of the process's maps the stack was walked with.
    pub generation: u32,
    /// Leaf first, as all frames here.
    pub kernel: Vec<u64>,
    pub user: Vec<UserAddress>,
    /// Why callers are missing; `None` when none are.
    pub cut: Option<Cut>,
    pub python: Vec<PyAddress>,
    /// The Python frames go to the root of the thread.
    pub python_whole: bool,
    /// As the interpreter knows the thread: the number in the thread's own namespace.
    pub gil_holder: Option<u32>,
    /// It is collecting Python's garbage.
    pub collects: bool,
}

/// A place in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserAddress {
    pub pc: u64,
    /// The thread is in the middle of a call from here: `pc` is the address it will return to.
    pub returns: bool,
}

impl UserAddress {
    /// An address inside the instruction that the frame is at.
    pub fn inside(self) -> u64 {
        self.pc.saturating_sub(u64::from(self.returns))
    }
}

/// A place in a Python function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PyAddress {
    /// Of the code object.
    pub code: u64,
    /// Bytes from the start of the bytecode; negative before its first instruction.
    pub instr: i32,
    /// The outermost frame of one call of the interpreter's loop.
    pub entry: bool,
}

impl RawSample {
    /// `None` when it is not what this program knows.
    pub fn of(bytes: &[u8]) -> Option<RawSample> {
        let least = offset_of!(types::gdiag_sample, frames);
        let s = read_cut::<types::gdiag_sample>(bytes, least)?;
        let (kernel, user, python) = (
            usize::from(s.kernel),
            usize::from(s.user),
            usize::from(s.python),
        );
        let used = (bytes.len() - least) / size_of::<u64>();
        let mut words = s.frames.get(..used)?;
        if words.len() < kernel + user + 2 * python {
            return None;
        }
        let mut take = |n: usize| {
            let (taken, rest) = words.split_at(n);
            words = rest;
            taken
        };
        let kernel = take(kernel).to_vec();
        let user = take(user);
        let python = take(2 * python)
            .chunks_exact(2)
            .map(|words| PyAddress {
                code: words[0],
                // Two 32-bit fields in the order of memory.
                instr: (words[1] as u32).cast_signed(),
                entry: (words[1] >> 32) as u32 & gdiag_py_flags::GDIAG_PY_ENTRY.0 != 0,
            })
            .collect();
        let since = Nanos(s.since_ns);
        Some(RawSample {
            ts: Nanos(s.hdr.ts_ns),
            tid: Tid(s.hdr.tid),
            pid: Pid(s.pid),
            kind: match kind(u32::from(s.kind)) {
                kind::GDIAG_SAMPLE_CPU => SampleKind::Cpu {
                    period: Nanos::ZERO,
                },
                kind::GDIAG_SAMPLE_OFF => SampleKind::OffCpu { since },
                kind::GDIAG_SAMPLE_WAKER => SampleKind::Waker {
                    wakee: Tid(s.other),
                    since,
                },
                kind::GDIAG_SAMPLE_LAUNCH => SampleKind::Launch { one_in: s.one_in },
                _ => return None,
            },
            generation: s.generation,
            kernel,
            user: user
                .iter()
                .enumerate()
                .map(|(i, &word)| UserAddress {
                    pc: word & !EXACT,
                    returns: i > 0 && word & EXACT == 0,
                })
                .collect(),
            cut: match cut(u32::from(s.cut)) {
                cut::GDIAG_CUT_ROOT | cut::GDIAG_CUT_NONE => None,
                cut::GDIAG_CUT_NO_MAPS => Some(Cut::NotYet),
                cut::GDIAG_CUT_UNMAPPED => Some(Cut::Unmapped),
                cut::GDIAG_CUT_NO_TABLE => Some(Cut::NoTable),
                cut::GDIAG_CUT_UNSUPPORTED => Some(Cut::Unsupported),
                cut::GDIAG_CUT_UNREADABLE => Some(Cut::Unreadable),
                cut::GDIAG_CUT_DEPTH => Some(Cut::TooDeep),
                _ => return None,
            },
            python,
            python_whole: u32::from(s.py_cut) == gdiag_py_cut::GDIAG_PY_ROOT.0,
            gil_holder: (s.py_holder != 0).then_some(s.py_holder),
            collects: u32::from(s.flags) & gdiag_sample_flags::GDIAG_SAMPLE_COLLECTS.0 != 0,
        })
    }
}

/// `GDIAG_FRAME_EXACT`: set in an address that was about to run, below a signal's frame.
const EXACT: u64 = 1 << 63;
