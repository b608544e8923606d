//! The sources: what the kernel, the shim and /proc say, as they say it.

pub mod bpf;
