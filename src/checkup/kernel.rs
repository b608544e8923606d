//! The kernel, and whether it takes the BPF programs.

use super::{list, Check};
use crate::collect::driver::Method;
use crate::collect::machine::{Btf, Facts, Load, Refused};
use crate::error::Error;

const NEWER: &str = "use Linux 5.15 or later, or a distribution that brings this to an older one";

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let kernel = &facts.kernel;
    let mut checks = vec![Check::ok(
        "kernel.version",
        "kernel",
        format!("{} {}", kernel.release, kernel.machine),
    )];
    checks.push(match &kernel.btf {
        Btf::Missing => Check::failure("kernel.btf", "BTF", "/sys/kernel/btf/vmlinux is missing")
            .remedy(Error::NoBtf.hint().unwrap_or_default()),
        Btf::Unreadable(why) => {
            Check::failure("kernel.btf", "BTF", format!("cannot be read: {why}"))
                .remedy("let gdiag read /sys/kernel/btf/vmlinux: mount sysfs, and run as root")
        }
        Btf::Read(size) => Check::ok(
            "kernel.btf",
            "BTF",
            format!("/sys/kernel/btf/vmlinux, {size}"),
        ),
    });
    let is_read = matches!(kernel.btf, Btf::Read(_));
    let feature =
        |id, what, there: Option<bool>, without: &str, remedy: &str, is_needed| match there {
            Some(true) => Check::ok(id, what, "there"),
            None if is_read => Check::unknown(id, what, "BTF does not tell; loading does"),
            None => Check::unknown(id, what, "without BTF it cannot be told"),
            Some(false) if is_needed => {
                Check::failure(id, what, "not in this kernel").remedy(remedy)
            }
            Some(false) => {
                Check::warning(id, what, format!("not in this kernel: {without}")).remedy(remedy)
            }
        };
    let helper = |name: &str| {
        let mut helpers = kernel.helpers.iter();
        helpers
            .find(|(what, _)| *what == name)
            .and_then(|(_, there)| *there)
    };
    for (id, what, name) in [
        ("kernel.ring_buffer", "ring buffers", "BPF ring buffers"),
        ("kernel.task_storage", "task storage", "BPF task storage"),
        (
            "kernel.registers",
            "thread registers",
            "BPF access to a thread's registers",
        ),
    ] {
        checks.push(feature(id, what, helper(name), "", NEWER, true));
    }
    checks.push(tracepoints(facts, is_read));
    checks.push(feature(
        "kernel.bpf_loop",
        "bpf_loop",
        kernel.bpf_loop,
        "no stacks of users",
        "use Linux 5.17 or later",
        false,
    ));
    checks.push(feature(
        "kernel.wait_stacks",
        "stacks of waits",
        kernel.wait_stacks,
        "waits have no user stack",
        "use a kernel with the tracepoint sched_exit_tp (Linux 6.16 or later)",
        false,
    ));
    checks.push(feature(
        "kernel.system_calls",
        "system calls",
        kernel.system_calls,
        "no system calls are recorded",
        "use a kernel built with CONFIG_FTRACE_SYSCALLS",
        false,
    ));
    checks.push(feature(
        "kernel.throttling",
        "CPU quotas",
        kernel.throttling,
        "waits for a new quota look like waits for a CPU",
        "use a kernel built with CONFIG_CFS_BANDWIDTH",
        false,
    ));
    checks.push(match kernel.probes {
        None => Check::unknown(
            "kernel.driver_probes",
            "driver probes",
            "without BTF it cannot be told",
        ),
        Some(Method::Session) => Check::ok(
            "kernel.driver_probes",
            "driver probes",
            "sessions: one program for all functions",
        ),
        Some(Method::Many) => Check::ok(
            "kernel.driver_probes",
            "driver probes",
            "all functions at once",
        ),
        Some(Method::Each) => Check::ok(
            "kernel.driver_probes",
            "driver probes",
            "one by one: to put them in takes a little longer",
        ),
    });
    checks.push(match kernel.symbols {
        Some(true) => Check::ok("kernel.symbols", "kernel symbols", "shown"),
        Some(false) => Check::warning(
            "kernel.symbols",
            "kernel symbols",
            "hidden: kernel stacks have no names",
        )
        .remedy("run as root, or with CAP_SYSLOG; kernel.kptr_restrict=2 hides them from root too"),
        None => Check::warning(
            "kernel.symbols",
            "kernel symbols",
            "/proc/kallsyms cannot be read: kernel stacks have no names",
        )
        .remedy("use a kernel built with CONFIG_KALLSYMS, and run as root"),
    });
    checks.extend(loads(facts));
    checks
}

fn tracepoints(facts: &Facts, is_read: bool) -> Check {
    let (id, what) = ("kernel.tracepoints", "tracepoints");
    let names = |set: &std::collections::BTreeSet<String>| list(&set.iter().collect::<Vec<_>>(), 6);
    let (required, optional) = (
        &facts.kernel.missing_required,
        &facts.kernel.missing_optional,
    );
    if !is_read {
        Check::unknown(id, what, "without BTF it cannot be told")
    } else if !required.is_empty() {
        Check::failure(id, what, format!("not in this kernel: {}", names(required))).remedy(NEWER)
    } else if !optional.is_empty() {
        let found = format!(
            "all that are needed; without {}, what they would show is left out",
            names(optional)
        );
        Check::ok(id, what, found)
    } else {
        Check::ok(id, what, "all that gdiag can use")
    }
}

fn loads(facts: &Facts) -> Vec<Check> {
    let loads = &facts.loads;
    let mut checks = Vec::new();
    checks.push(match &loads.host {
        Load::Done(_) => Check::ok(
            "bpf.load",
            "BPF programs",
            "loaded and attached, and gone again",
        ),
        Load::NotTried => Check::failure("bpf.load", "BPF programs", "not tried"),
        Load::Refused(refused) => Check::failure("bpf.load", "BPF programs", refused.text.clone())
            .remedy(why_refused(facts, refused)),
    });
    for (id, what, load, without) in [
        (
            "bpf.stacks",
            "user stacks",
            &loads.stacks,
            "no stacks of users",
        ),
        (
            "bpf.system_calls",
            "system calls",
            &loads.system_calls,
            "no system calls are recorded",
        ),
        (
            "bpf.driver",
            "driver calls",
            &loads.driver,
            "no CUDA calls are measured where CUPTI records nothing",
        ),
        (
            "bpf.cuda_processes",
            "CUDA processes",
            &loads.cuda,
            "`gdiag top` and --cuda cannot find who uses CUDA",
        ),
    ] {
        checks.push(match load {
            Load::Done(missing) if missing.is_empty() => {
                Check::ok(id, what, "loaded, and gone again")
            }
            // A check of its own says so where the kernel has no tracepoint for it.
            Load::Done(missing) => {
                Check::ok(id, what, format!("loaded, without {}", list(missing, 3)))
            }
            Load::NotTried => {
                Check::unknown(id, what, "not tried, as it builds on the programs above")
            }
            Load::Refused(refused) => {
                Check::warning(id, what, format!("{without}: {}", refused.text))
                    .remedy(why_refused(facts, refused))
            }
        });
    }
    checks
}

/// What to do, by what is known of the reasons.
fn why_refused(facts: &Facts, refused: &Refused) -> String {
    let rights = &facts.rights;
    if !refused.not_permitted {
        return "see what the kernel says: gdiag record -vv -a -d 1s; and report it with the bundle of --bundle".to_string();
    }
    if rights.lockdown.as_deref() == Some("confidentiality") {
        return "boot without lockdown=confidentiality: it keeps BPF from reading the kernel's memory".to_string();
    }
    if rights.first_user_namespace == Some(false) {
        return "run gdiag outside of the user namespace: the rights of one count for nothing with BPF".to_string();
    }
    if rights.seccomp && rights.uid == 0 {
        return "allow bpf(2) in this container: --privileged, or --cap-add BPF,PERFMON,CHECKPOINT_RESTORE and a seccomp profile with bpf".to_string();
    }
    super::rights::BE_ROOT.to_string()
}
