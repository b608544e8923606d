//! Tells BPF programs who the targets are.
//!
//! Whoever is marked, its children are targets from then on. Those that came between the look at what is
//! there and the marking are found by the next look.

use std::collections::BTreeSet;
use std::io::Read as _;

use anyhow::{Context as _, Result};
use libbpf_rs::{Iter, MapCore, MapFlags, ProgramMut};

use crate::collect::bpf::types;
use crate::collect::cgroup::Cgroup;
use crate::collect::{process, wire};

/// Looks at the processes that are there, when each finds new ones.
const MOST_LOOKS: u32 = 5;

/// The processes that are to be targets, as they are now: these with all that they started, and those in
/// the cgroups, but not the strangers.
pub(super) fn processes(targets: &[u32], cgroups: &[Cgroup], strangers: &[u32]) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = cgroups.iter().flat_map(Cgroup::processes).collect();
    if !targets.is_empty() {
        all.extend(process::with_descendants(targets));
    }
    all.retain(|pid| !strangers.contains(pid));
    all
}

/// The map and the iterator by which an object (`bpf/target.bpf.h`) is told.
pub(super) struct Marks<'a, M> {
    /// `target_pids`
    pub(super) pids: &'a M,
    /// `mark_targets`
    pub(super) iterator: &'a ProgramMut<'a>,
}

impl<M: MapCore> Marks<'_, M> {
    /// Marks what `processes` finds.
    pub(super) fn mark_all(&self, processes: impl Fn() -> BTreeSet<u32>) -> Result<()> {
        let mut known = BTreeSet::new();
        for look in 0..MOST_LOOKS {
            let there = processes();
            let new: Vec<u32> = there.difference(&known).copied().collect();
            if new.is_empty() && look > 0 {
                break;
            }
            for pid in &new {
                self.pids
                    .update(&pid.to_ne_bytes(), &[1], MapFlags::ANY)
                    .context("cannot tell the BPF programs their targets")?;
            }
            self.run()?;
            known = there;
        }
        Ok(())
    }

    /// Runs the task iterator once. The pids that it was given may be others' soon: they are forgotten.
    pub(super) fn run(&self) -> Result<()> {
        let marked: Vec<_> = self.pids.keys().collect();
        walk_tasks(self.iterator)?;
        for pid in marked {
            let _ = self.pids.delete(&pid);
        }
        Ok(())
    }
}

/// Runs a task iterator; the result is what it wrote.
pub(super) fn walk_tasks(iterator: &ProgramMut<'_>) -> Result<Vec<u8>> {
    let link = iterator
        .attach_iter_with_opts(libbpf_rs::IterOpts::None)
        .context("cannot walk the tasks of this machine")?;
    let mut written = Vec::new();
    Iter::new(&link)?
        .read_to_end(&mut written)
        .context("cannot walk the tasks of this machine")?;
    Ok(written)
}

/// Fills `target_cgroups`.
pub(super) fn tell_cgroups(map: &impl MapCore, cgroups: &[Cgroup]) -> Result<()> {
    for cgroup in cgroups {
        let key = types::gdiag_cgroup {
            id: cgroup.id,
            hierarchy: cgroup.hierarchy,
            ..types::gdiag_cgroup::default()
        };
        map.update(wire::as_bytes(&key), &[1], MapFlags::ANY)
            .context("cannot tell the BPF programs their cgroups")?;
    }
    Ok(())
}
