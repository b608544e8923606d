//! The NVIDIA driver: what its module says in /proc, its device files, and NVML.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{access, AccessFlags};

use super::read_line;
use crate::collect::nvml::{self, DriverFacts};

/// NVML of a driver in trouble may never answer.
const PATIENCE: Duration = Duration::from_secs(5);

const NVIDIA: &str = "0x10de";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Of the module in the kernel.
    pub module: Option<String>,
    /// `NVreg_RestrictProfilingToAdminUsers`: counters of the GPU are for root.
    pub profiling_admin_only: Option<bool>,
    /// NVIDIA's GPUs on the PCI bus; `None` when the bus is not shown.
    pub on_bus: Option<usize>,
    /// Device files of GPUs, each with whether this user may open it.
    pub nodes: Vec<(String, bool)>,
    /// What NVML says, or why it says nothing.
    pub nvml: Result<DriverFacts, String>,
}

impl Default for Driver {
    fn default() -> Driver {
        Driver {
            module: None,
            profiling_admin_only: None,
            on_bus: Some(0),
            nodes: Vec::new(),
            nvml: Err("not asked".to_string()),
        }
    }
}

impl Driver {
    pub(super) fn read() -> Driver {
        let version = fs::read_to_string("/proc/driver/nvidia/version").ok();
        let params = fs::read_to_string("/proc/driver/nvidia/params").ok();
        let module = version
            .as_deref()
            .and_then(module_version)
            .or_else(|| read_line("/sys/module/nvidia/version"));
        let on_bus = on_bus();
        // NVML would have the module loaded.
        let asleep = module.is_none() && on_bus.is_some_and(|count| count > 0);
        Driver {
            profiling_admin_only: params.as_deref().and_then(admin_only),
            nodes: nodes(),
            nvml: if asleep {
                Err("not asked: that would load the driver's module".to_string())
            } else {
                nvml::ask_once(PATIENCE)
            },
            module,
            on_bus,
        }
    }

    /// The CUDA that the driver serves.
    pub fn cuda_major(&self) -> Option<u32> {
        let nvml = self.nvml.as_ref().ok()?;
        Some(nvml.cuda?.0)
    }
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  …`, also `Open Kernel Module for x86_64`.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    line.split_ascii_whitespace()
        .find(is_version)
        .map(str::to_string)
}

fn admin_only(params: &str) -> Option<bool> {
    let value = params
        .lines()
        .find_map(|line| line.strip_prefix("RmProfilingAdminOnly:"))?;
    Some(value.trim() != "0")
}

/// Display controllers of NVIDIA's.
fn on_bus() -> Option<usize> {
    let devices = fs::read_dir("/sys/bus/pci/devices").ok()?;
    let is_gpu = |dir: &Path| {
        read_line(dir.join("vendor")).as_deref() == Some(NVIDIA)
            && read_line(dir.join("class")).is_some_and(|class| class.starts_with("0x03"))
    };
    Some(
        devices
            .flatten()
            .filter(|device| is_gpu(&device.path()))
            .count(),
    )
}

fn nodes() -> Vec<(String, bool)> {
    let Ok(entries) = fs::read_dir("/dev") else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let is_node = |name: &String| {
        let gpu = name.strip_prefix("nvidia");
        let number = gpu.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        // The last is that of WSL.
        number || matches!(name.as_str(), "nvidiactl" | "nvidia-uvm" | "dxg")
    };
    let may_open = |name: &str| {
        access(
            &Path::new("/dev").join(name),
            AccessFlags::R_OK | AccessFlags::W_OK,
        )
        .is_ok()
    };
    let mut nodes: Vec<_> = names
        .filter(is_node)
        .map(|name| (name.clone(), may_open(&name)))
        .collect();
    nodes.sort();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_modules_tell_their_version() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.2.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build  (dvs-builder)\n";
        assert_eq!(module_version(closed).as_deref(), Some("535.183.01"));
        assert_eq!(module_version(open).as_deref(), Some("580.159.03"));
        assert_eq!(module_version("garbage 1.2"), None);
    }

    #[test]
    fn a_parameter_that_is_not_told_is_not_known() {
        assert_eq!(admin_only("Foo: 1\nRmProfilingAdminOnly: 1\n"), Some(true));
        assert_eq!(admin_only("RmProfilingAdminOnly: 0\n"), Some(false));
        assert_eq!(admin_only("Foo: 1\n"), None);
    }
}
