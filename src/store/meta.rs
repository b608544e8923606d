//! What a recording says about itself, apart from its events.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::event::Pid;
use crate::units::Nanos;

/// Where the GPU records come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuSource {
    Cupti,
    Simulated,
    Uprobe,
    #[default]
    None,
}

/// How the target was chosen; it decides the window of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetMode {
    /// A command that gdiag started: the window is first to last operation.
    #[default]
    Launch,
    /// `-p`, or a cgroup: the window is the recording.
    Attach,
    /// `-a`
    All,
}

/// Known when the recording begins. Written as JSON, so that any version can show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    pub gdiag_version: String,
    /// Host name, kernel release and machine (`x86_64`), as uname(2) gives them.
    pub host: String,
    pub kernel: String,
    pub machine: String,
    pub boot_id: String,
    pub cpus_online: u32,
    /// The command line of gdiag itself.
    pub command: Vec<String>,
    pub mode: TargetMode,
    /// Targets were found one by one, whoever used CUDA: that two are targets does not say that they work together.
    pub unrelated: bool,
    /// Host pids that were asked for or launched.
    pub targets: Vec<Pid>,
    /// Directories of the cgroups that were asked for.
    pub cgroups: Vec<String>,
    pub start_mono_ns: u64,
    pub start_unix_ns: u64,
    /// Waits at least this long have a stack.
    pub wait_threshold_ns: u64,
    /// Each system call of the targets is recorded.
    pub syscalls: bool,
    /// Program of the kernel side that could not be used, with the reason.
    pub missing_probes: Vec<String>,
}

/// Known when the recording ends. A file without it was cut.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    pub end_mono_ns: u64,
    pub gpu_source: GpuSource,
    pub events: u64,
    /// Switches recorded, and bytes they (with their wakeups) took before compression.
    pub switches: u64,
    pub switch_bytes: u64,
    /// User stacks that were taken, and time of the target's CPUs that it took.
    pub stacks: u64,
    pub stacks_ns: u64,
    pub stacks_lost: u64,
    /// Sentences for the top of the report.
    pub warnings: Vec<String>,
}

impl Meta {
    pub fn start(&self) -> Nanos {
        Nanos(self.start_mono_ns)
    }

    /// Being a target means something: it is a part of the job that was asked for.
    pub fn is_one_job(&self) -> bool {
        match self.mode {
            TargetMode::Launch | TargetMode::Attach => !self.unrelated,
            TargetMode::All => false,
        }
    }
}

impl Summary {
    pub fn end(&self) -> Nanos {
        Nanos(self.end_mono_ns)
    }
}
