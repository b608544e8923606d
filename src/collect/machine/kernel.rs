//! What the kernel can do. Each feature is looked for in its own description of itself, and none is told from its version.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead as _};

use libbpf_rs::btf::types::Struct;
use libbpf_rs::Btf as KernelTypes;

use crate::collect::driver::Method;
use crate::collect::{bpf, driver, stacks};
use crate::units::Bytes;

const BTF_FILE: &str = "/sys/kernel/btf/vmlinux";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    pub release: String,
    pub machine: String,
    pub btf: Btf,
    /// What all BPF programs of gdiag are built on, each with whether it is there; `None`: BTF does not tell.
    pub helpers: Vec<(&'static str, Option<bool>)>,
    pub missing_required: BTreeSet<String>,
    pub missing_optional: BTreeSet<String>,
    /// `bpf_loop`, for stacks of users.
    pub bpf_loop: Option<bool>,
    /// Where a thread was when it went to sleep.
    pub wait_stacks: Option<bool>,
    pub system_calls: Option<bool>,
    /// That a thread waits because the CPU quota of its cgroup is used up.
    pub throttling: Option<bool>,
    pub probes: Option<Method>,
    /// Addresses of functions are shown, so that kernel stacks have names.
    pub symbols: Option<bool>,
}

/// The kernel's description of its types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Btf {
    #[default]
    Missing,
    Unreadable(String),
    Read(Bytes),
}

impl Kernel {
    pub(super) fn read() -> Kernel {
        let name = nix::sys::utsname::uname();
        let machine = name.map(|name| name.machine().to_string_lossy().into_owned());
        let kernel = Kernel {
            release: bpf::kernel_release(),
            machine: machine.unwrap_or_default(),
            symbols: shows_symbols(),
            ..Kernel::default()
        };
        let size = match fs::metadata(BTF_FILE) {
            Ok(meta) => Bytes(meta.len()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return kernel,
            Err(e) => {
                let btf = Btf::Unreadable(e.to_string());
                return Kernel { btf, ..kernel };
            }
        };
        // libbpf would tell on stderr what it thinks of it.
        let (types, _) = bpf::with_messages(KernelTypes::from_vmlinux);
        let types = match types {
            Ok(types) => types,
            Err(e) => {
                let btf = Btf::Unreadable(format!("{e:#}"));
                return Kernel { btf, ..kernel };
            }
        };
        let helpers = bpf::HELPERS.iter();
        let helpers = helpers.map(|&(helper, what)| (what, bpf::has_helper(&types, helper)));
        let [missing_required, missing_optional] =
            bpf::missing_tracepoints(&types).unwrap_or_default();
        Kernel {
            btf: Btf::Read(size),
            helpers: helpers.collect(),
            missing_required,
            missing_optional,
            bpf_loop: bpf::has_helper(&types, "BPF_FUNC_loop"),
            wait_stacks: Some(stacks::can_see_waits(&types)),
            system_calls: Some(
                ["sys_enter", "sys_exit"]
                    .iter()
                    .all(|name| bpf::tracepoint_args(&types, name).is_some()),
            ),
            throttling: Some(
                has_member(&types, "task_struct", "throttled")
                    || has_member(&types, "cfs_rq", "throttle_count"),
            ),
            probes: Some(driver::Method::of(&types)),
            ..kernel
        }
    }
}

/// As the BPF programs ask it.
fn has_member(types: &KernelTypes<'_>, of: &str, name: &str) -> bool {
    let Some(of) = types.type_by_name::<Struct<'_>>(of) else {
        return false;
    };
    let mut members = of.iter();
    members.any(|member| member.name.is_some_and(|member| member == name))
}

/// Whoever may not see them is shown zeros.
fn shows_symbols() -> Option<bool> {
    let symbols = fs::File::open("/proc/kallsyms").ok()?;
    let mut line = String::new();
    io::BufReader::new(symbols).read_line(&mut line).ok()?;
    let address = line.split_ascii_whitespace().next()?;
    Some(address.bytes().any(|b| b != b'0'))
}
