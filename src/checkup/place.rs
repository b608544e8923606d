//! Where gdiag runs, and where it writes.

use super::{list, Check};
use crate::collect::machine::Facts;
use crate::units::Bytes;

/// Less is gone soon: a busy machine writes some MiB a second.
const LITTLE: Bytes = Bytes(1 << 30);

/// Where the file itself is memory.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    vec![
        container(facts),
        cgroup(facts),
        disk(facts),
        temporary(facts),
        shared_memory(facts),
        clock(facts),
        cpus(facts),
        libc(facts),
        recorders(facts),
    ]
}

fn container(facts: &Facts) -> Check {
    let (id, what) = ("place.container", "container");
    let place = &facts.place;
    let own = list(&place.own_namespaces, 5);
    let pid = place.own_namespaces.contains(&"pid");
    match (place.container.is_empty(), own.is_empty()) {
        (true, true) => Check::ok(id, what, "none"),
        (false, true) => Check::ok(id, what, format!("yes ({}), with the host's namespaces", list(&place.container, 5))),
        (_, false) if pid => {
            Check::warning(id, what, format!("its own namespaces: {own}; processes outside are not seen, and NVML tells no users of a GPU"))
                .remedy("run gdiag on the host, or with its PID namespace (--pid=host)")
        }
        (_, false) => Check::ok(id, what, format!("its own namespaces: {own}")),
    }
}

fn cgroup(facts: &Facts) -> Check {
    let (id, what) = ("place.cgroup", "cgroups");
    let cgroups = &facts.place.cgroups;
    let version = match (&cgroups.unified, cgroups.old.is_empty()) {
        (None, true) => {
            return Check::warning(
                id,
                what,
                "no hierarchy is mounted: -G and --container find nothing",
            )
            .remedy("mount -t cgroup2 cgroup2 /sys/fs/cgroup");
        }
        (Some(at), true) => format!("version 2 at {}", at.display()),
        (None, false) => "version 1".to_string(),
        (Some(at), false) => format!("version 1, and 2 at {}", at.display()),
    };
    match &cgroups.cpu {
        Some(at) => Check::ok(
            id,
            what,
            format!("{version}; CPU controller at {}", at.display()),
        ),
        None => Check::ok(id, what, format!("{version}; no CPU controller here")),
    }
}

fn disk(facts: &Facts) -> Check {
    let (id, what) = ("place.disk", "disk");
    let disk = &facts.place.disk;
    let dir = disk.dir.display();
    let filesystem = disk
        .filesystem
        .as_deref()
        .unwrap_or("an unknown file system");
    let memory = if IN_MEMORY.contains(&filesystem) {
        ", which is memory"
    } else {
        ""
    };
    let elsewhere = "give another place: gdiag record -o FILE";
    match disk.free {
        _ if disk.gone => Check::warning(id, what, "the directory is gone").remedy(elsewhere),
        _ if !disk.writable => {
            Check::warning(id, what, format!("gdiag.data cannot be written into {dir}"))
                .remedy(elsewhere)
        }
        None => Check::unknown(
            id,
            what,
            format!("{dir} on {filesystem}{memory}; free space is not told"),
        ),
        Some(free) if free < LITTLE => Check::warning(
            id,
            what,
            format!("{free} free in {dir}, on {filesystem}{memory}"),
        )
        .remedy(elsewhere),
        Some(free) => Check::ok(
            id,
            what,
            format!("{free} free in {dir}, on {filesystem}{memory}"),
        ),
    }
}

fn temporary(facts: &Facts) -> Check {
    let (id, what) = ("place.temporary", "temporary files");
    match &facts.place.library_dir {
        Some(dir) => Check::ok(
            id,
            what,
            format!(
                "the library for launched commands goes to {}",
                dir.display()
            ),
        ),
        None => Check::warning(
            id,
            what,
            "no directory for the library of launched commands: read-only, or noexec",
        )
        .remedy("set TMPDIR to a directory that programs may be loaded from"),
    }
}

fn shared_memory(facts: &Facts) -> Check {
    let (id, what) = ("place.shared_memory", "shared memory");
    let size = facts
        .place
        .shared_memory
        .map_or("not mounted; not needed".to_string(), |(free, total)| {
            format!("{free} of {total} free; not needed")
        });
    match &facts.place.no_memfd {
        None => Check::ok(id, what, format!("memfds work; /dev/shm {size}")),
        Some(why) => Check::warning(id, what, format!("no memfds here: {why}"))
            .remedy("allow memfd_create(2) in the seccomp profile of this container"),
    }
}

fn clock(facts: &Facts) -> Check {
    let (id, what) = ("host.clock", "clock");
    match facts.place.clock.as_deref() {
        Some(clock @ ("tsc" | "arch_sys_counter")) => Check::ok(id, what, clock),
        Some(clock @ ("kvm-clock" | "hyperv_clocksource_tsc_page" | "xen")) => {
            Check::ok(id, what, format!("{clock}, of the hypervisor"))
        }
        Some(clock) => Check::warning(
            id,
            what,
            format!("{clock}: reading it takes up to microseconds, for gdiag and for everybody"),
        )
        .remedy("see why the kernel gave up the TSC: dmesg | grep -i tsc"),
        None => Check::unknown(id, what, "the kernel does not tell"),
    }
}

fn cpus(facts: &Facts) -> Check {
    let place = &facts.place;
    let of = place
        .possible_cpus
        .filter(|possible| *possible != place.cpus);
    let of = of.map_or(String::new(), |possible| format!(" of {possible} possible"));
    let idle = match &place.idle {
        Some((driver, latency)) if driver != "none" => {
            format!("; idle by {driver}, awake within {latency} us")
        }
        Some(_) | None => "; no idle driver".to_string(),
    };
    let model = place
        .cpu_model
        .as_ref()
        .map_or(String::new(), |model| format!(", {model}"));
    Check::ok(
        "host.cpus",
        "CPUs",
        format!("{} online{of}{model}{idle}", place.cpus),
    )
}

fn libc(facts: &Facts) -> Check {
    let (id, what) = ("host.libc", "C library");
    match &facts.place.libc {
        Some(libc) => Check::ok(id, what, libc.clone()),
        None => Check::unknown(id, what, "the memory map of gdiag itself cannot be read"),
    }
}

fn recorders(facts: &Facts) -> Check {
    let (id, what) = ("gdiag.recorders", "flight recorders");
    let texts: Vec<String> = facts
        .recorders
        .iter()
        .map(|(uid, name)| match uid {
            0 => format!("'{name}' of root"),
            uid => format!("'{name}' of user {uid}"),
        })
        .collect();
    match texts.is_empty() {
        true => Check::ok(id, what, "none runs"),
        false => Check::ok(id, what, list(&texts, 5)),
    }
}
