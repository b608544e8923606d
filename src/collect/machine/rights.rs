//! What this process may do, and what the system allows at all.
#![forbid(unsafe_code)]

use std::fs;

use nix::sys::resource::{getrlimit, Resource};

use super::{number, read_line};
use crate::collect::process::{self, Proc};

/// Bits of a set of capabilities.
pub mod capability {
    pub const SYS_PTRACE: u32 = 19;
    pub const SYS_ADMIN: u32 = 21;
    pub const SYS_RESOURCE: u32 = 24;
    pub const SYSLOG: u32 = 34;
    pub const PERFMON: u32 = 38;
    pub const BPF: u32 = 39;
    pub const CHECKPOINT_RESTORE: u32 = 40;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    pub uid: u32,
    /// The effective set.
    pub capabilities: Option<u64>,
    /// In the user namespace that every kernel starts with; elsewhere capabilities say little.
    pub first_user_namespace: Option<bool>,
    /// `none`, `integrity` or `confidentiality`; `None`: this kernel has no lockdown, or it is not shown.
    pub lockdown: Option<String>,
    pub unprivileged_bpf_disabled: Option<i64>,
    pub perf_event_paranoid: Option<i64>,
    pub ptrace_scope: Option<i64>,
    pub kptr_restrict: Option<i64>,
    /// System calls of this process are filtered.
    pub seccomp: bool,
    pub proc: Proc,
    /// The option of /proc's mount, when there is one: `2`, `invisible`.
    pub hidepid: Option<String>,
    /// Files that may be open at once: now, and at most.
    pub open_files: Option<(u64, u64)>,
    /// Memory that may be locked, in bytes; the kernel counts BPF maps in it before 5.11.
    pub locked_memory: Option<u64>,
}

/// What the user namespace that every kernel starts with is called.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

impl Rights {
    pub(super) fn read() -> Rights {
        let status = process::own_status();
        let limit = |resource| getrlimit(resource).ok();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let lockdown = read_line("/sys/kernel/security/lockdown");
        let user = fs::read_link("/proc/self/ns/user").ok();
        Rights {
            uid: nix::unistd::geteuid().as_raw(),
            capabilities: status.as_ref().map(|status| status.capeff),
            first_user_namespace: user.map(|ns| ns.as_os_str() == FIRST_USER_NAMESPACE),
            lockdown: lockdown.as_deref().and_then(chosen).map(str::to_string),
            unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
            perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            kptr_restrict: number("/proc/sys/kernel/kptr_restrict"),
            seccomp: status
                .and_then(|status| status.seccomp)
                .is_some_and(|mode| mode != 0),
            proc: Proc::look(),
            hidepid: hidepid(&mounts).map(str::to_string),
            open_files: limit(Resource::RLIMIT_NOFILE),
            locked_memory: limit(Resource::RLIMIT_MEMLOCK).map(|(now, _)| now),
        }
    }

    /// Whether a capability is in effect; `None` when that cannot be told.
    pub fn has(&self, capability: u32) -> Option<bool> {
        self.capabilities.map(|set| set >> capability & 1 == 1)
    }
}

/// The word in brackets.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

/// Of the mount that is seen at /proc, which is the last.
fn hidepid(mountinfo: &str) -> Option<&str> {
    let at_proc = |line: &&str| line.split(' ').nth(4) == Some("/proc");
    let line = mountinfo.lines().rfind(at_proc)?;
    let options = line.split(' ').next_back()?;
    let value = options
        .split(',')
        .find_map(|option| option.strip_prefix("hidepid="))?;
    (!matches!(value, "0" | "off")).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_lockdown_is_the_one_in_brackets() {
        assert_eq!(
            chosen("none [integrity] confidentiality"),
            Some("integrity")
        );
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn hidepid_is_that_of_the_last_mount_on_proc() {
        let line =
            |options: &str| format!("22 27 0:21 / /proc rw,relatime - proc proc {options}\n");
        assert_eq!(hidepid(&line("rw")), None);
        assert_eq!(hidepid(&line("rw,hidepid=0")), None);
        assert_eq!(
            hidepid(&line("rw,gid=4,hidepid=invisible")),
            Some("invisible")
        );
        assert_eq!(hidepid(&(line("rw,hidepid=2") + &line("rw"))), None);
        assert_eq!(hidepid(""), None);
    }

    #[test]
    fn a_capability_is_a_bit() {
        let rights = Rights {
            capabilities: Some(1 << capability::BPF),
            ..Rights::default()
        };
        assert_eq!(rights.has(capability::BPF), Some(true));
        assert_eq!(rights.has(capability::PERFMON), Some(false));
        assert_eq!(Rights::default().has(capability::BPF), None);
    }
}
