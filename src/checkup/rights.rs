//! What gdiag may do here.

use super::{list, Check, Status};
use crate::collect::machine::rights::capability;
use crate::collect::machine::{Facts, Load, Rights, FEWEST_OPEN_FILES};
use crate::error::Error;
use crate::units::Bytes;

pub(super) const BE_ROOT: &str =
    "run as root, or: setcap cap_bpf,cap_perfmon,cap_checkpoint_restore,cap_sys_ptrace+ep gdiag";

/// What to do where rights are missing. Root is not told to become root.
pub(super) fn remedy(rights: &Rights, status: Status) -> &'static str {
    let lacks = |(bit, ..): &(u32, _, _)| has(rights, *bit) == Some(false);
    if rights.uid != 0 {
        BE_ROOT
    } else if rights.first_user_namespace == Some(false) {
        "run gdiag on the host, or in a container without a user namespace (podman: as root)"
    } else if CAPABILITIES.iter().any(lacks) {
        "let root have them: in a container --cap-add BPF,PERFMON,CHECKPOINT_RESTORE,SYS_PTRACE, in a unit of systemd CapabilityBoundingSet="
    } else if status == Status::Unknown {
        "nothing to do: the kernel does not show it, not even to root"
    } else {
        "nothing to do: the kernel does not allow it, not even to root"
    }
}

/// Each with whether a recording needs it.
const CAPABILITIES: [(u32, &str, bool); 5] = [
    (capability::BPF, "CAP_BPF", true),
    (capability::PERFMON, "CAP_PERFMON", true),
    (
        capability::CHECKPOINT_RESTORE,
        "CAP_CHECKPOINT_RESTORE",
        true,
    ),
    (capability::SYS_PTRACE, "CAP_SYS_PTRACE", false),
    (capability::SYS_RESOURCE, "CAP_SYS_RESOURCE", false),
];

/// The old right that has the first three in it.
fn has(rights: &Rights, which: u32) -> Option<bool> {
    let in_admin = matches!(
        which,
        capability::BPF | capability::PERFMON | capability::CHECKPOINT_RESTORE
    );
    let has = rights.has(which)?;
    Some(has || in_admin && rights.has(capability::SYS_ADMIN)?)
}

/// Whether processes of others may be looked into.
pub(super) fn may_trace(rights: &Rights) -> bool {
    has(rights, capability::SYS_PTRACE) == Some(true)
}

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let rights = &facts.rights;
    let loaded = matches!(facts.loads.host, Load::Done(_));
    vec![
        capabilities(rights, loaded),
        user_namespace(rights, loaded),
        lockdown(rights, loaded),
        unprivileged_bpf(rights),
        perf_events(rights),
        Check::ok(
            "rights.tracefs",
            "tracefs",
            "not needed: gdiag uses no kprobe and no event of tracefs",
        ),
        ptrace(rights),
        proc(rights),
        open_files(rights),
        locked_memory(rights, loaded),
    ]
}

fn capabilities(rights: &Rights, loaded: bool) -> Check {
    let (id, what) = ("rights.capabilities", "capabilities");
    if rights.capabilities.is_none() {
        return Check::unknown(id, what, "/proc does not tell");
    }
    let missing = |needed: bool| -> Vec<&str> {
        let those = CAPABILITIES.iter().filter(|(_, _, is)| *is == needed);
        let those = those.filter(|(bit, ..)| has(rights, *bit) == Some(false));
        those.map(|(_, name, _)| *name).collect()
    };
    let (needed, useful) = (missing(true), missing(false));
    let user = if rights.uid == 0 { "root" } else { "not root" };
    if needed.is_empty() && useful.is_empty() {
        return Check::ok(id, what, format!("{user}, with all that gdiag can use"));
    }
    let found = |names: &[&str]| format!("{user}, without {}", list(names, 5));
    if needed.contains(&"CAP_BPF") || needed.contains(&"CAP_PERFMON") {
        let found = found(&needed);
        return match loaded {
            true => Check::ok(id, what, found),
            false => Check::failure(id, what, found).remedy(BE_ROOT),
        };
    }
    if !needed.is_empty() {
        return Check::warning(id, what, format!("{}: no GPU is recorded", found(&needed)))
            .remedy(BE_ROOT);
    }
    if useful.contains(&"CAP_SYS_PTRACE") {
        return Check::warning(
            id,
            what,
            format!(
                "{}: running processes of others get no library",
                found(&useful)
            ),
        )
        .remedy(BE_ROOT);
    }
    Check::ok(id, what, found(&useful))
}

fn user_namespace(rights: &Rights, loaded: bool) -> Check {
    let (id, what) = ("rights.user_namespace", "user namespace");
    match rights.first_user_namespace {
        Some(true) => Check::ok(id, what, "the machine's"),
        Some(false) if loaded => Check::ok(id, what, "one of its own, and BPF works all the same"),
        Some(false) => Check::failure(
            id,
            what,
            "one of its own: capabilities in it count for nothing with BPF",
        )
        .remedy(
            "run gdiag on the host, or in a container without a user namespace (podman: as root)",
        ),
        None => Check::unknown(id, what, "/proc does not tell"),
    }
}

fn lockdown(rights: &Rights, loaded: bool) -> Check {
    let (id, what) = ("rights.lockdown", "lockdown");
    match rights.lockdown.as_deref() {
        None => Check::ok(id, what, "not in this kernel, or not shown"),
        Some("confidentiality") if !loaded => Check::failure(
            id,
            what,
            "confidentiality: BPF may not read the kernel's memory",
        )
        .remedy("boot without lockdown=confidentiality"),
        Some(mode) => Check::ok(id, what, mode),
    }
}

fn unprivileged_bpf(rights: &Rights) -> Check {
    let (id, what) = ("rights.unprivileged_bpf", "unprivileged BPF");
    let found = match rights.unprivileged_bpf_disabled {
        None => "kernel.unprivileged_bpf_disabled is not shown".to_string(),
        Some(value) => format!("kernel.unprivileged_bpf_disabled={value}"),
    };
    Check::ok(
        id,
        what,
        format!("{found}; no matter: gdiag needs CAP_BPF anyway"),
    )
}

fn perf_events(rights: &Rights) -> Check {
    let (id, what) = ("rights.perf_events", "perf events");
    let Some(value) = rights.perf_event_paranoid else {
        return Check::warning(
            id,
            what,
            "not in this kernel: no samples of running threads",
        )
        .remedy("use a kernel built with CONFIG_PERF_EVENTS");
    };
    match has(rights, capability::PERFMON) {
        Some(true) => Check::ok(
            id,
            what,
            format!("kernel.perf_event_paranoid={value}; no matter with CAP_PERFMON"),
        ),
        Some(false) | None if value > -1 => Check::warning(
            id,
            what,
            format!("kernel.perf_event_paranoid={value}: no samples of running threads"),
        )
        .remedy(BE_ROOT),
        Some(false) | None => Check::ok(id, what, format!("kernel.perf_event_paranoid={value}")),
    }
}

fn ptrace(rights: &Rights) -> Check {
    let (id, what) = ("rights.ptrace", "ptrace");
    let scope = rights.ptrace_scope;
    let found = match scope {
        None => "not restricted by yama".to_string(),
        Some(scope) => format!("kernel.yama.ptrace_scope={scope}"),
    };
    match scope {
        Some(3..) => Check::warning(id, what, format!("{found}: running programs get no library, whoever asks"))
            .remedy("let programs start with it: gdiag record -- CMD, or `gdiag shim install`; 3 stays until the next boot"),
        Some(1..) if !may_trace(rights) => {
            Check::warning(id, what, format!("{found}: running programs get no library")).remedy(BE_ROOT)
        }
        Some(_) | None if may_trace(rights) => Check::ok(id, what, format!("{found}; allowed")),
        Some(_) | None => Check::ok(id, what, format!("{found}; own processes only")),
    }
}

fn proc(rights: &Rights) -> Check {
    let (id, what) = ("rights.proc", "/proc");
    if let Some(error) = rights.proc.error() {
        return Check::failure(id, what, error.to_string())
            .remedy(error.hint().unwrap_or_default());
    }
    match &rights.hidepid {
        None => Check::ok(id, what, "shows all processes"),
        Some(value) if may_trace(rights) => Check::ok(
            id,
            what,
            format!("hidepid={value}; no matter with CAP_SYS_PTRACE"),
        ),
        Some(value) => Check::warning(
            id,
            what,
            format!("hidepid={value}: processes of others are not seen"),
        )
        .remedy(BE_ROOT),
    }
}

fn open_files(rights: &Rights) -> Check {
    let (id, what) = ("limits.open_files", "open files");
    match rights.open_files {
        None => Check::unknown(id, what, "the limit cannot be read"),
        Some((_, most)) if most < FEWEST_OPEN_FILES => {
            let error = Error::TooFewOpenFiles {
                limit: most,
                needed: FEWEST_OPEN_FILES,
            };
            Check::failure(id, what, error.to_string()).remedy(error.hint().unwrap_or_default())
        }
        Some((now, most)) => Check::ok(
            id,
            what,
            format!("{}, and {} at most", limit(now), limit(most)),
        ),
    }
}

fn locked_memory(rights: &Rights, loaded: bool) -> Check {
    /// Maps and rings of a recording.
    const ENOUGH: u64 = 256 << 20;
    let (id, what) = ("limits.locked_memory", "locked memory");
    let Some(now) = rights.locked_memory else {
        return Check::unknown(id, what, "the limit cannot be read");
    };
    let size = if now == u64::MAX {
        "unlimited".to_string()
    } else {
        Bytes(now).to_string()
    };
    let may_raise = has(rights, capability::SYS_RESOURCE) == Some(true);
    if loaded || now >= ENOUGH || may_raise {
        return Check::ok(
            id,
            what,
            format!("{size}; it counts before Linux 5.11 only"),
        );
    }
    Check::unknown(
        id,
        what,
        format!("{size}; too little before Linux 5.11, where it counts"),
    )
    .remedy("ulimit -l unlimited, or LimitMEMLOCK=infinity in a unit of systemd")
}

fn limit(value: u64) -> String {
    if value == u64::MAX {
        "unlimited".to_string()
    } else {
        value.to_string()
    }
}
