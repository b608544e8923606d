//! Whether the kernel takes the BPF programs, by handing them to it.
#![forbid(unsafe_code)]

use anyhow::Result;

use crate::collect::bpf::{self, Bpf, Plan};
use crate::collect::cuda_processes::{CudaProcess, CudaProcesses};
use crate::collect::driver::DriverProbes;
use crate::collect::stacks::{self, Stacks};
use crate::collect::syscalls::{self, Syscalls};
use crate::error::Error;
use crate::units::Nanos;

/// Kept of what libbpf and the verifier say of one refusal: its end, which says why.
const MOST_MESSAGES: usize = 64 << 10;

/// What became of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Load {
    /// It builds on another that was refused.
    #[default]
    NotTried,
    /// With what it must do without, in words.
    Done(Vec<String>),
    Refused(Refused),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub text: String,
    pub not_permitted: bool,
    /// What libbpf and the verifier said.
    pub messages: String,
}

/// What became of each object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// Who runs, waits and wakes: what every recording needs.
    pub host: Load,
    /// Stacks of users.
    pub stacks: Load,
    pub system_calls: Load,
    /// Probes on the driver.
    pub driver: Load,
    /// The search for processes that use CUDA.
    pub cuda: Load,
}

impl Loads {
    /// Each with its name.
    pub fn all(&self) -> [(&'static str, &Load); 5] {
        [
            ("scheduling", &self.host),
            ("stacks", &self.stacks),
            ("syscalls", &self.system_calls),
            ("driver", &self.driver),
            ("cuda_processes", &self.cuda),
        ]
    }
}

/// As a recording starts, but without a target: nothing is recorded. The processes are those that use CUDA.
pub(super) fn try_all() -> (Loads, Option<Vec<CudaProcess>>) {
    let plan = Plan {
        all: false,
        targets: Vec::new(),
        cgroups: Vec::new(),
        strangers: Vec::new(),
        scheduling: true,
        wait_threshold: Nanos::from_millis(1),
        syscalls: None,
        stacks: None,
        inject: false,
        libbpf_messages: false,
    };
    let mut loads = Loads::default();
    let (host, kept) = attempt(|| Bpf::start(&plan, |_| {}), |_| Vec::new());
    loads.host = host;
    if let Some(bpf) = &kept {
        // One sample a second would be taken, if there were a target.
        let sampled = stacks::Plan {
            frequency: 1,
            launch_one_in: 0,
        };
        let (load, _) = attempt(
            || Stacks::start(&sampled, bpf),
            |stacks| stacks.missing.clone(),
        );
        loads.stacks = load;
        let calls = syscalls::Plan::bare();
        (loads.system_calls, _) = attempt(|| Syscalls::start(&calls, bpf), |_| Vec::new());
        (loads.driver, _) = attempt(|| DriverProbes::start(bpf), |_| Vec::new());
    }
    drop(kept);
    let found = || {
        let mut processes = CudaProcesses::start()?;
        processes.look()?;
        Ok(processes.all().collect::<Vec<_>>())
    };
    let (cuda, found) = attempt(found, |_| Vec::new());
    loads.cuda = cuda;
    (loads, found)
}

fn attempt<T>(
    start: impl FnOnce() -> Result<T>,
    missing: impl FnOnce(&T) -> Vec<String>,
) -> (Load, Option<T>) {
    let (result, messages) = bpf::with_messages(start);
    match result {
        Ok(started) => (Load::Done(missing(&started)), Some(started)),
        Err(e) => (Load::Refused(refused(&e, &messages)), None),
    }
}

fn refused(error: &anyhow::Error, messages: &str) -> Refused {
    let not_permitted = error.chain().any(|cause| {
        let known = cause.downcast_ref::<Error>();
        let kind = cause
            .downcast_ref::<libbpf_rs::Error>()
            .map(libbpf_rs::Error::kind);
        matches!(known, Some(Error::NotPermitted { .. }))
            || kind == Some(libbpf_rs::ErrorKind::PermissionDenied)
    });
    let from = messages.len().saturating_sub(MOST_MESSAGES);
    let from = (from..messages.len()).find(|&at| messages.is_char_boundary(at));
    Refused {
        text: format!("{error:#}"),
        not_permitted,
        messages: messages[from.unwrap_or(0)..].to_string(),
    }
}
