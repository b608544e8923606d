//! The sources: what the kernel, the shim and /proc say, as they say it.

pub mod background;
pub mod bpf;
pub mod cgroup;
pub mod clock;
pub mod cuda_processes;
pub mod driver;
pub mod elf;
pub mod inject;
pub mod local_time;
pub mod machine;
pub mod maps;
mod marks;
pub mod nvml;
pub mod passing;
pub mod process;
pub mod python;
pub mod sched_sum;
pub mod shim_file;
pub mod shims;
pub mod sock_diag;
pub mod stacks;
pub mod syscalls;
pub mod tables;
pub mod target;
pub(crate) mod wire;
