//! User stacks: gives the BPF programs what they walk by, and turns what they send into frames.
//!
//! ```text
//!   a target appears ──► its maps (/proc, then mmap events) ──► struct gdiag_maps
//!                             └─► its files ──► unwind tables, in a thread ──► rows
//!   a sample ──► addresses ──► files and addresses in them ──► frames, Python merged in
//!                                                    └─► names, in another thread
//! ```
#![forbid(unsafe_code)]

use std::collections::HashMap;

use anyhow::Result;

use crate::collect::bpf::Bpf;
use crate::collect::stacks::{self, Stacks};
use crate::decode::stacks::RawSample;
use crate::event::{CallStackId, Cut, Event};
use crate::intern::{CallStacks, Frames, Names};
use crate::units::Nanos;

/// Stacks, when they are taken.
#[derive(Debug, Default)]
pub(super) struct UserStacks {
    on: Option<On>,
}

#[derive(Debug)]
struct On {
    stacks: Stacks,
    plan: stacks::Plan,
    frames: Frames,
    call_stacks: CallStacks,
}

impl UserStacks {
    pub(super) fn start(plan: stacks::Plan, bpf: &Bpf) -> Result<UserStacks> {
        let stacks = Stacks::start(&plan, bpf)?;
        Ok(UserStacks {
            on: Some(On {
                stacks,
                plan,
                frames: Frames::default(),
                call_stacks: CallStacks::default(),
            }),
        })
    }

    /// What a CPU sample stands for.
    pub(super) fn period(&self) -> Nanos {
        let frequency = self.on.as_ref().map_or(0, |on| on.plan.frequency);
        Nanos(1_000_000_000 / u64::from(frequency.max(1)))
    }

    pub(super) fn missing(&self) -> &[String] {
        self.on.as_ref().map_or(&[], |on| &on.stacks.missing)
    }

    pub(super) fn stack(
        &mut self,
        raw: &RawSample,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> CallStackId {
        let Some(on) = &mut self.on else {
            return CallStackId(0);
        };
        on.call_stacks.stack(Vec::new(), Some(Cut::NotYet), sink)
    }

    pub(super) fn py_code(&mut self, code: &stacks::types::gdiag_pycode) {
    }
}
