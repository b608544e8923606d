//! What is decided, of facts that are made up.

use std::collections::BTreeSet;
use std::path::PathBuf;

use gdiag_shim_layout::state;
use nix::errno::Errno;

use super::*;
use crate::collect::driver::Method;
use crate::collect::inject::Failure;
use crate::collect::machine::place::{Cgroups, Disk};
use crate::collect::machine::process::Libc;
use crate::collect::machine::{
    Btf, CudaUser, Driver, Kernel, Library, Loads, Place, Process, Python, Refused, Rights,
    ShimFact, Source, Users,
};
use crate::collect::nvml::{CardFacts, DriverFacts};
use crate::collect::process::Proc;
use crate::collect::python::Minor;
use crate::collect::shims::Look;
use crate::units::Bytes;

const CUPTI: &str = "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12";

fn loaded() -> Load {
    Load::Done(Vec::new())
}

fn refused() -> Load {
    Load::Refused(Refused {
        text: "cannot load the BPF programs: Operation not permitted (os error 1)".to_string(),
        not_permitted: true,
        messages: String::new(),
    })
}

/// A machine on which everything is as it should be.
pub(crate) fn good() -> Facts {
    Facts {
        kernel: Kernel {
            release: "6.12.43-amd64".to_string(),
            machine: "x86_64".to_string(),
            btf: Btf::Read(Bytes(6 << 20)),
            helpers: [
                "BPF ring buffers",
                "BPF task storage",
                "BPF access to a thread's registers",
            ]
            .map(|name| (name, Some(true)))
            .to_vec(),
            bpf_loop: Some(true),
            wait_stacks: Some(true),
            system_calls: Some(true),
            throttling: Some(true),
            probes: Some(Method::Many),
            symbols: Some(true),
            ..Kernel::default()
        },
        loads: Loads {
            host: loaded(),
            stacks: loaded(),
            system_calls: loaded(),
            driver: loaded(),
            cuda: loaded(),
        },
        rights: Rights {
            uid: 0,
            capabilities: Some(u64::MAX >> 23),
            first_user_namespace: Some(true),
            lockdown: Some("none".to_string()),
            unprivileged_bpf_disabled: Some(2),
            perf_event_paranoid: Some(3),
            ptrace_scope: Some(1),
            open_files: Some((1024, 1_048_576)),
            locked_memory: Some(8 << 20),
            ..Rights::default()
        },
        driver: Driver {
            module: Some("575.57.08".to_string()),
            profiling_admin_only: Some(true),
            on_bus: Some(2),
            nodes: ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
                .map(|name| (name.to_string(), true))
                .to_vec(),
            nvml: Ok(DriverFacts {
                version: Some("575.57.08".to_string()),
                cuda: Some((12, 9)),
                cards: vec![
                    CardFacts {
                        name: "NVIDIA H200".to_string(),
                        mig: Some(false),
                        persistence: Some(true),
                        trouble: None,
                    };
                    2
                ],
            }),
        },
        libraries: vec![Library {
            path: CUPTI.into(),
            source: Source::Toolkit,
            version: Some("12.9.79".to_string()),
            major: Some(12),
            foreign: false,
        }],
        users: Users {
            list: vec![user(ShimFact::None)],
            complete: true,
        },
        place: Place {
            cgroups: Cgroups {
                unified: Some("/sys/fs/cgroup".into()),
                old: Vec::new(),
                cpu: Some("/sys/fs/cgroup".into()),
            },
            disk: Disk {
                gone: false,
                dir: "/var/log/gpu".into(),
                free: Some(Bytes(80 << 30)),
                filesystem: Some("ext4".to_string()),
                writable: true,
            },
            library_dir: Some("/tmp".into()),
            shared_memory: Some((Bytes(60 << 30), Bytes(64 << 30))),
            clock: Some("tsc".to_string()),
            cpus: 64,
            possible_cpus: Some(64),
            cpu_model: Some("AMD EPYC 9654".to_string()),
            idle: Some(("acpi_idle".to_string(), 100)),
            libc: Some("glibc 2.36".to_string()),
            ..Place::default()
        },
        recorders: vec![(0, "default".to_string())],
        process: None,
    }
}

fn user(shim: ShimFact) -> CudaUser {
    CudaUser {
        pid: 4711,
        comm: "python3".to_string(),
        shim,
        mapped: vec![CUPTI.into()],
        would_use: Ok(CUPTI.into()),
        other_tool: None,
        hidden: false,
    }
}

fn shim(state: u32, reason: &str) -> ShimFact {
    let mut look = Look {
        state,
        ..Look::default()
    };
    look.facts.reason = reason.to_string();
    ShimFact::There(look)
}

/// A process that is as it should be.
pub(crate) fn good_process() -> Process {
    Process {
        pid: 4711,
        comm: "python3".to_string(),
        has_driver: Some(true),
        uses_cuda: true,
        cuda: Some(user(ShimFact::None)),
        inject: Ok(()),
        injection: None,
        disabled: false,
        environment_readable: true,
        seccomp: Some(0),
        shadow_stack: Some(false),
        tracer: Some(0),
        other_namespaces: Vec::new(),
        libc: Some(Libc::Glibc(Some("2.36".to_string()))),
        python: Some(Python::Known(Minor(12))),
    }
}

/// What a check says of the good machine after a change.
fn after(id: &str, change: impl FnOnce(&mut Facts)) -> Check {
    let mut facts = good();
    facts.process = Some(good_process());
    change(&mut facts);
    let checkup = Checkup::of(&facts);
    let check = checkup.checks.into_iter().find(|check| check.id == id);
    check.unwrap_or_else(|| panic!("no check {id}"))
}

#[track_caller]
fn assert_status(id: &str, status: Status, change: impl FnOnce(&mut Facts)) {
    let check = after(id, change);
    assert_eq!(check.status, status, "{check:?}");
    // What is not ok has a remedy; what cannot be told may have none.
    if matches!(status, Status::Warning | Status::Failure) {
        assert!(check.remedy.is_some(), "{check:?}");
    }
}

#[test]
fn on_a_good_machine_all_is_well() {
    let mut facts = good();
    let checkup = Checkup::of(&facts);
    let bad: Vec<_> = checkup
        .checks
        .iter()
        .filter(|check| check.status != Status::Ok)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(
        checkup.verdict(),
        "gdiag can record this machine's host side and its GPUs"
    );
    facts.process = Some(good_process());
    let checkup = Checkup::of(&facts);
    assert_eq!(checkup.count(Status::Ok), checkup.checks.len());
    assert_eq!(checkup.can.process_gpu, Some(true));
    assert_eq!(
        checkup.verdict(),
        "gdiag can record process 4711: the host's side and its GPU"
    );
}

#[test]
fn ids_are_there_once_each() {
    let mut facts = good();
    facts.process = Some(good_process());
    let checkup = Checkup::of(&facts);
    let ids: BTreeSet<_> = checkup.checks.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), checkup.checks.len());
}

#[test]
fn a_kernel_without_what_is_needed_is_a_failure() {
    use Status::{Failure, Unknown, Warning};
    assert_status("kernel.btf", Failure, |f| f.kernel.btf = Btf::Missing);
    assert_status("kernel.btf", Failure, |f| {
        f.kernel.btf = Btf::Unreadable("x".to_string());
    });
    for (at, id) in [
        "kernel.ring_buffer",
        "kernel.task_storage",
        "kernel.registers",
    ]
    .into_iter()
    .enumerate()
    {
        assert_status(id, Failure, |f| f.kernel.helpers[at].1 = Some(false));
        assert_status(id, Unknown, |f| f.kernel.helpers[at].1 = None);
    }
    assert_status("kernel.tracepoints", Failure, |f| {
        f.kernel.missing_required.insert("sched_switch".to_string());
    });
    assert_status("kernel.tracepoints", Status::Ok, |f| {
        f.kernel
            .missing_optional
            .insert("irq_handler_entry".to_string());
    });
    assert_status("kernel.tracepoints", Unknown, |f| {
        f.kernel.btf = Btf::Missing;
    });
    assert_status("kernel.bpf_loop", Warning, |f| {
        f.kernel.bpf_loop = Some(false);
    });
    assert_status("kernel.wait_stacks", Warning, |f| {
        f.kernel.wait_stacks = Some(false);
    });
    assert_status("kernel.system_calls", Warning, |f| {
        f.kernel.system_calls = Some(false);
    });
    assert_status("kernel.throttling", Warning, |f| {
        f.kernel.throttling = Some(false);
    });
    assert_status("kernel.driver_probes", Unknown, |f| f.kernel.probes = None);
    assert_status("kernel.symbols", Warning, |f| {
        f.kernel.symbols = Some(false);
    });
    assert_status("kernel.symbols", Warning, |f| f.kernel.symbols = None);
}

#[test]
fn programs_that_the_kernel_refuses_have_a_remedy_that_fits() {
    assert_status("bpf.load", Status::Failure, |f| f.loads.host = refused());
    assert_status("bpf.stacks", Status::Warning, |f| {
        f.loads.stacks = refused();
    });
    assert_status("bpf.system_calls", Status::Unknown, |f| {
        f.loads.system_calls = Load::NotTried;
    });
    let remedy = |change: fn(&mut Facts)| {
        let check = after("bpf.load", |f| {
            f.loads.host = refused();
            change(f);
        });
        check.remedy.unwrap()
    };
    assert!(remedy(|f| f.rights.uid = 1000).contains("run as root"));
    assert!(remedy(|_| {}).contains("not even to root"));
    assert!(
        remedy(|f| f.rights.lockdown = Some("confidentiality".to_string())).contains("lockdown")
    );
    assert!(remedy(|f| f.rights.first_user_namespace = Some(false)).contains("user namespace"));
    assert!(remedy(|f| f.rights.seccomp = true).contains("--cap-add"));
    let other = remedy(|f| {
        f.loads.host = Load::Refused(Refused::default());
    });
    assert!(other.contains("--bundle"), "{other}");
}

#[test]
fn what_happened_beats_what_is_said_of_rights() {
    use Status::{Failure, Ok, Unknown, Warning};
    let none = |f: &mut Facts| {
        f.rights.uid = 1000;
        f.rights.capabilities = Some(0);
    };
    assert_status("rights.capabilities", Ok, none);
    assert_status("rights.capabilities", Failure, |f| {
        none(f);
        f.loads.host = refused();
    });
    // CAP_BPF and CAP_PERFMON, CAP_SYS_PTRACE.
    assert_status("rights.capabilities", Warning, |f| {
        f.rights.capabilities = Some(3 << 38 | 1 << 19);
    });
    assert_status("rights.capabilities", Warning, |f| {
        f.rights.capabilities = Some(7 << 38);
    });
    // CAP_SYS_ADMIN and CAP_SYS_PTRACE.
    assert_status("rights.capabilities", Ok, |f| {
        f.rights.capabilities = Some(1 << 21 | 1 << 19);
    });
    assert_status("rights.capabilities", Unknown, |f| {
        f.rights.capabilities = None;
    });
    assert_status("rights.user_namespace", Ok, |f| {
        f.rights.first_user_namespace = Some(false);
    });
    assert_status("rights.user_namespace", Failure, |f| {
        f.rights.first_user_namespace = Some(false);
        f.loads.host = refused();
    });
    assert_status("rights.user_namespace", Unknown, |f| {
        f.rights.first_user_namespace = None;
    });
    assert_status("rights.lockdown", Ok, |f| {
        f.rights.lockdown = Some("integrity".to_string());
    });
    assert_status("rights.lockdown", Failure, |f| {
        f.rights.lockdown = Some("confidentiality".to_string());
        f.loads.host = refused();
    });
    assert_status("rights.unprivileged_bpf", Ok, |f| {
        f.rights.unprivileged_bpf_disabled = None;
    });
    assert_status("rights.perf_events", Warning, none);
    assert_status("rights.perf_events", Warning, |f| {
        f.rights.perf_event_paranoid = None;
    });
    assert_status("rights.perf_events", Ok, |f| {
        none(f);
        f.rights.perf_event_paranoid = Some(-1);
    });
    assert_status("rights.ptrace", Warning, none);
    assert_status("rights.ptrace", Warning, |f| {
        f.rights.ptrace_scope = Some(3);
    });
    assert_status("rights.ptrace", Ok, |f| f.rights.ptrace_scope = None);
    for (proc, found) in [
        (Proc::Foreign, "another PID namespace"),
        (Proc::NotMounted, "/proc is not mounted"),
    ] {
        assert_status("rights.proc", Failure, |f| f.rights.proc = proc);
        let check = after("rights.proc", |f| f.rights.proc = proc);
        assert!(check.found.contains(found), "{check:?}");
    }
    let hidden = |f: &mut Facts| f.rights.hidepid = Some("2".to_string());
    assert_status("rights.proc", Ok, hidden);
    assert_status("rights.proc", Warning, |f| {
        none(f);
        hidden(f);
    });
}

#[test]
fn limits_count_where_they_are_too_low() {
    use Status::{Failure, Ok, Unknown};
    assert_status("limits.open_files", Failure, |f| {
        f.rights.open_files = Some((64, 64));
    });
    assert_status("limits.open_files", Ok, |f| {
        f.rights.open_files = Some((64, 128));
    });
    assert_status("limits.open_files", Unknown, |f| f.rights.open_files = None);
    assert_status("limits.locked_memory", Ok, |f| {
        f.rights.locked_memory = Some(0);
    });
    assert_status("limits.locked_memory", Unknown, |f| {
        f.rights.capabilities = Some(0);
        f.loads.host = refused();
    });
    assert_status("limits.locked_memory", Unknown, |f| {
        f.rights.locked_memory = None;
    });
}

#[test]
fn no_gpu_is_a_warning_and_the_host_is_recorded() {
    let mut facts = good();
    facts.driver = Driver::default();
    facts.users.list.clear();
    let checkup = Checkup::of(&facts);
    let of = |id: &str| checkup.checks.iter().find(|check| check.id == id);
    assert_eq!(
        of("gpu.driver").map(|check| check.status),
        Some(Status::Warning)
    );
    assert!(of("gpu.mig").is_none() && of("cupti.rights").is_none());
    assert_eq!(
        (checkup.can.host, checkup.can.gpu),
        (Some(true), Some(false))
    );
    assert_eq!(
        checkup.verdict(),
        "gdiag can record this machine's host side, and no GPU (1 warning)"
    );
}

#[test]
fn what_is_wrong_with_a_driver_is_told() {
    use Status::{Ok, Unknown, Warning};
    assert_status("gpu.driver", Warning, |f| {
        f.driver.nvml = Err("no library".to_string());
    });
    let asleep = after("gpu.driver", |f| {
        f.driver.module = None;
        f.driver.nvml = Err("not asked".to_string());
    });
    assert!(asleep.found.contains("2 GPUs of NVIDIA's"), "{asleep:?}");
    let nvml = |f: &mut Facts, change: fn(&mut CardFacts)| {
        if let Result::Ok(nvml) = &mut f.driver.nvml {
            nvml.cards.iter_mut().for_each(change);
        }
    };
    assert_status("gpu.devices", Warning, |f| f.driver.nodes.clear());
    let closed = after("gpu.devices", |f| f.driver.nodes[0].1 = false);
    assert!(
        closed.found.ends_with("not open to this user: nvidia0"),
        "{closed:?}"
    );
    assert_status("gpu.cards", Warning, |f| {
        nvml(f, |card| card.trouble = Some("lost".to_string()));
    });
    assert_status("gpu.cards", Warning, |f| {
        f.driver.nvml = Result::Ok(DriverFacts::default());
    });
    assert_eq!(after("gpu.cards", |_| {}).found, "2 x NVIDIA H200");
    assert_status("gpu.persistence", Ok, |f| {
        nvml(f, |card| card.persistence = Some(false));
    });
    assert_status("gpu.persistence", Unknown, |f| {
        nvml(f, |card| card.persistence = None);
    });
    assert_status("gpu.mig", Warning, |f| {
        nvml(f, |card| card.mig = Some(true));
    });
    assert_status("gpu.mig", Ok, |f| nvml(f, |card| card.mig = None));
    assert_status("cupti.rights", Ok, |f| {
        f.driver.profiling_admin_only = Some(false);
    });
    assert_status("cupti.rights", Unknown, |f| {
        f.driver.profiling_admin_only = None;
    });
}

#[test]
fn a_libcupti_that_does_not_fit_is_none() {
    assert_status("cupti.libraries", Status::Warning, |f| f.libraries.clear());
    assert_status("cupti.libraries", Status::Warning, |f| {
        f.libraries[0].major = Some(13);
    });
    assert_status("cupti.libraries", Status::Warning, |f| {
        f.libraries[0].foreign = true;
    });
    assert_status("cupti.libraries", Status::Ok, |f| {
        f.libraries[0].major = None;
    });
    let mut facts = good();
    facts.libraries.clear();
    facts.users.list.clear();
    // A program may bring its own.
    assert_eq!(Checkup::of(&facts).can.gpu, None);
}

#[test]
fn who_uses_cuda_and_who_holds_cupti_is_told() {
    use Status::{Ok, Unknown, Warning};
    let set = |f: &mut Facts, user: CudaUser| f.users.list = vec![user];
    assert_eq!(
        after("cuda.processes", |f| f.users.list.clear()).found,
        "nobody"
    );
    assert_status("cuda.processes", Warning, |f| {
        set(
            f,
            CudaUser {
                would_use: Err("none".to_string()),
                ..user(ShimFact::None)
            },
        );
    });
    assert_status("cuda.processes", Unknown, |f| {
        set(
            f,
            CudaUser {
                hidden: true,
                would_use: Err("-".to_string()),
                ..user(ShimFact::None)
            },
        );
    });
    assert_status("cupti.holders", Ok, |f| {
        set(f, user(shim(state::ACTIVE, "")));
    });
    assert_status("cupti.holders", Warning, |f| {
        set(f, user(shim(state::BUSY, "another tool holds CUPTI")));
    });
    assert_status("cupti.holders", Warning, |f| {
        set(
            f,
            CudaUser {
                other_tool: Some("Nsight Systems is loaded"),
                ..user(ShimFact::None)
            },
        );
    });
    // Torch is there in most of them.
    assert_status("cupti.holders", Ok, |f| {
        set(
            f,
            CudaUser {
                other_tool: Some("perhaps torch.profiler"),
                ..user(ShimFact::None)
            },
        );
    });
}

#[test]
fn a_place_that_will_not_do_is_told() {
    use Status::{Ok, Unknown, Warning};
    assert_status("place.container", Warning, |f| {
        f.place.own_namespaces = vec!["pid"];
    });
    assert_status("place.container", Ok, |f| {
        f.place.container = vec!["/.dockerenv"];
    });
    assert_status("place.cgroup", Warning, |f| {
        f.place.cgroups = Cgroups::default();
    });
    assert_status("place.cgroup", Ok, |f| f.place.cgroups.cpu = None);
    assert_status("place.disk", Warning, |f| f.place.disk.writable = false);
    assert_status("place.disk", Warning, |f| {
        f.place.disk.free = Some(Bytes(1 << 20));
    });
    assert_status("place.disk", Unknown, |f| f.place.disk.free = None);
    assert_status("place.temporary", Warning, |f| f.place.library_dir = None);
    assert_status("place.shared_memory", Warning, |f| {
        f.place.no_memfd = Some("not permitted".to_string());
    });
    assert_status("place.shared_memory", Ok, |f| f.place.shared_memory = None);
    assert_status("host.clock", Warning, |f| {
        f.place.clock = Some("hpet".to_string());
    });
    assert_status("host.clock", Ok, |f| {
        f.place.clock = Some("kvm-clock".to_string());
    });
    assert_status("host.clock", Unknown, |f| f.place.clock = None);
    assert_status("host.libc", Unknown, |f| f.place.libc = None);
    assert_eq!(after("gdiag.recorders", |_| {}).found, "'default' of root");
}

/// What is said of the process after a change, and whether its GPU can be recorded.
fn process_after(id: &str, change: impl FnOnce(&mut Process)) -> (Status, Option<bool>) {
    let mut process = good_process();
    change(&mut process);
    let facts = Facts {
        process: Some(process),
        ..good()
    };
    let checkup = Checkup::of(&facts);
    let check = checkup.checks.iter().find(|check| check.id == id);
    (
        check.unwrap_or_else(|| panic!("no check {id}")).status,
        checkup.can.process_gpu,
    )
}

#[test]
fn a_process_without_cuda_has_no_gpu_to_record() {
    let no_driver = |p: &mut Process| {
        p.has_driver = Some(false);
        p.uses_cuda = false;
    };
    assert_eq!(
        process_after("process.cuda", no_driver),
        (Status::Warning, Some(false))
    );
    let unused = |p: &mut Process| p.uses_cuda = false;
    assert_eq!(
        process_after("process.cuda", unused),
        (Status::Warning, Some(false))
    );
    assert_eq!(process_after("process.library", unused).0, Status::Ok);
}

#[test]
fn whether_the_library_will_be_there_is_told_with_the_reason() {
    let id = "process.library";
    let there = |state| move |p: &mut Process| p.cuda = Some(user(shim(state, "why")));
    assert_eq!(
        process_after(id, there(state::DORMANT)),
        (Status::Ok, Some(true))
    );
    assert_eq!(
        process_after(id, there(state::ACTIVE)),
        (Status::Ok, Some(true))
    );
    assert_eq!(
        process_after(id, there(state::BUSY)),
        (Status::Warning, Some(false))
    );
    assert_eq!(
        process_after(id, there(state::FAILED)),
        (Status::Warning, Some(false))
    );
    let fails = |failure| move |p: &mut Process| p.inject = Err(failure);
    for failure in [
        Failure::Refused(Errno::EPERM),
        Failure::Disabled,
        Failure::ShadowStack,
        Failure::NotGlibc,
        Failure::Architecture,
        Failure::NoRoom("a page"),
        Failure::Unreadable("x".to_string()),
    ] {
        assert_eq!(
            process_after(id, fails(failure)),
            (Status::Warning, Some(false))
        );
    }
    // They may pass.
    for failure in [
        Failure::Traced(1),
        Failure::Stopped,
        Failure::NoThread,
        Failure::AnotherGdiag,
    ] {
        assert_eq!(process_after(id, fails(failure)), (Status::Warning, None));
    }
    let hidden = |p: &mut Process| {
        p.has_driver = None;
        p.python = None;
        p.cuda = Some(CudaUser {
            hidden: true,
            ..user(ShimFact::None)
        });
    };
    assert_eq!(process_after(id, hidden), (Status::Unknown, None));
    assert_eq!(process_after("process.python", hidden).0, Status::Unknown);
    assert_eq!(process_after("process.libcupti", hidden).0, Status::Unknown);
}

#[test]
fn root_is_not_told_to_become_root() {
    let remedy = |uid: u32, capabilities: u64| {
        let mut facts = good();
        facts.rights.uid = uid;
        facts.rights.capabilities = Some(capabilities);
        facts.process = Some(Process {
            environment_readable: false,
            ..good_process()
        });
        let mut checks = Checkup::of(&facts).checks.into_iter();
        let check = checks.find(|check| check.id == "process.environment");
        check.unwrap().remedy.unwrap()
    };
    assert!(remedy(1000, 0).starts_with("run as root"));
    assert_eq!(
        remedy(0, u64::MAX),
        "nothing to do: the kernel does not show it, not even to root"
    );
    assert!(remedy(0, 0).starts_with("let root have them: in a container --cap-add"));
}

#[test]
fn cuda_11_cannot_be_turned_on_in_a_running_program() {
    let old = |p: &mut Process| {
        p.cuda = Some(CudaUser {
            would_use: Ok(PathBuf::from("/x/libcupti.so.11.8")),
            ..user(ShimFact::None)
        });
    };
    assert_eq!(
        process_after("process.libcupti", old),
        (Status::Warning, Some(false))
    );
    let none = |p: &mut Process| {
        p.cuda = Some(CudaUser {
            would_use: Err("none".to_string()),
            ..user(ShimFact::None)
        });
    };
    assert_eq!(
        process_after("process.libcupti", none),
        (Status::Warning, Some(false))
    );
}

#[test]
fn what_a_process_is_decides_what_can_be_had_of_it() {
    use Status::{Ok, Unknown, Warning};
    let status = |id: &str, change: fn(&mut Process)| process_after(id, change).0;
    assert_eq!(
        status("process.environment", |p| p.environment_readable = false),
        Unknown
    );
    assert_eq!(
        status("process.environment", |p| p.disabled = true),
        Warning
    );
    assert_eq!(
        status("process.environment", |p| p.injection =
            Some("/x/libgdiag_cupti.so".into())),
        Ok
    );
    assert_eq!(
        status("process.environment", |p| p.injection =
            Some("/x/other.so".into())),
        Warning
    );
    assert_eq!(
        process_after("process.seccomp", |p| p.seccomp = Some(2)),
        (Ok, None)
    );
    assert_eq!(status("process.seccomp", |p| p.seccomp = Some(1)), Warning);
    assert_eq!(status("process.seccomp", |p| p.seccomp = None), Unknown);
    assert_eq!(
        status("process.shadow_stack", |p| p.shadow_stack = Some(true)),
        Warning
    );
    assert_eq!(status("process.tracer", |p| p.tracer = Some(7)), Warning);
    assert_eq!(status("process.tracer", |p| p.tracer = None), Unknown);
    assert_eq!(
        status("process.namespaces", |p| p.other_namespaces = vec!["mount"]),
        Ok
    );
    assert_eq!(
        status("process.libc", |p| p.libc = Some(Libc::Musl)),
        Warning
    );
    assert_eq!(status("process.libc", |p| p.libc = None), Unknown);
    assert_eq!(
        status("process.python", |p| p.python =
            Some(Python::Unknown("libpython3.7m.so.1.0".to_string()))),
        Warning
    );
    assert_eq!(
        status("process.python", |p| p.python = Some(Python::None)),
        Ok
    );
}

#[test]
fn a_failure_is_the_verdict_and_nothing_can_be_recorded() {
    let mut facts = good();
    facts.loads.host = refused();
    facts.loads.stacks = Load::NotTried;
    facts.rights.proc = Proc::Foreign;
    facts.process = Some(good_process());
    let checkup = Checkup::of(&facts);
    assert_eq!(checkup.verdict(), "cannot record: 2 failures");
    assert_eq!(checkup.can.host, Some(false));
    assert_eq!(checkup.can.gpu, Some(false));
    assert_eq!(checkup.can.user_stacks, Some(false));
    assert_eq!(checkup.can.process_gpu, Some(false));
}

#[test]
fn nothing_private_is_left_in_scrubbed_facts() {
    let secret = "/home/SECRET/libcupti.so.12";
    let mut facts = good();
    facts.rights.uid = 4242;
    facts.recorders = vec![(4242, "SECRET".to_string())];
    facts.libraries[0].path = secret.into();
    facts.libraries[0].version = Some("SECRET".to_string());
    facts.place.disk.dir = "/data/SECRET".into();
    facts.place.library_dir = Some("/data/SECRET".into());
    facts.place.cgroups.unified = Some("/SECRET".into());
    facts.place.cgroups.old = vec![("/SECRET".into(), "name=SECRET".to_string())];
    facts.driver.nvml = Err("/opt/SECRET/libnvidia-ml.so.1: cannot open".to_string());
    let mut of = user(shim(state::BUSY, "/home/SECRET/libcupti.so.12 is loaded"));
    of.comm = "SECRET".to_string();
    of.mapped = vec![secret.into()];
    of.would_use = Err(format!("{secret} does not start"));
    facts.users.list = vec![of.clone()];
    facts.process = Some(Process {
        comm: "SECRET".to_string(),
        injection: Some("/SECRET/tool.so".into()),
        inject: Err(Failure::NotLoaded("/SECRET: no".to_string())),
        python: Some(Python::Unknown("libpython3-SECRET.so".to_string())),
        cuda: Some(of),
        ..good_process()
    });
    facts.loads.host = Load::Refused(Refused {
        text: "at /SECRET".to_string(),
        not_permitted: false,
        messages: "in '/home/SECRET/x'".to_string(),
    });
    assert!(format!("{:?}", Checkup::of(&facts)).contains("SECRET"));
    let scrubbed = scrubbed(&facts);
    let text = format!("{scrubbed:?}{:?}", Checkup::of(&scrubbed));
    assert!(!text.contains("SECRET") && !text.contains("4242"), "{text}");
    // And what it is about is still there.
    assert!(text.contains("libcupti.so.12"));
}
