//! The driver, libcupti, and who uses CUDA.

use std::path::Path;

use gdiag_shim_layout::state;

use super::{list, sentences, Check};
use crate::collect::machine::{CudaUser, Facts, Library, ShimFact, Source};

/// Listed of each kind.
const MOST: usize = 8;

/// There is a driver, or something that behaves like one.
fn has_driver(facts: &Facts) -> bool {
    facts.driver.module.is_some() || facts.driver.nvml.is_ok()
}

/// Whether GPUs can be recorded, as far as the machine is concerned.
pub(super) fn can(facts: &Facts) -> Option<bool> {
    if facts.users.list.iter().any(|user| user.would_use.is_ok()) {
        return Some(true);
    }
    if !has_driver(facts) {
        return Some(false);
    }
    // A program may bring its own.
    if usable(facts).next().is_none() {
        None
    } else {
        Some(true)
    }
}

fn usable(facts: &Facts) -> impl Iterator<Item = &Library> {
    let driver = facts.driver.cuda_major();
    let fits = move |library: &&Library| match (library.major, driver) {
        (Some(library), Some(driver)) => library <= driver,
        (Some(_) | None, _) => true,
    };
    facts
        .libraries
        .iter()
        .filter(|library| !library.foreign)
        .filter(fits)
}

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![driver(facts)];
    if has_driver(facts) {
        checks.push(devices(facts));
        checks.extend(cards(facts));
    }
    checks.push(users(facts));
    checks.push(libraries(facts));
    if has_driver(facts) {
        checks.push(cupti_rights(facts));
    }
    checks.push(holders(facts));
    checks
}

fn driver(facts: &Facts) -> Check {
    let (id, what) = ("gpu.driver", "NVIDIA driver");
    let driver = &facts.driver;
    let version = driver
        .module
        .clone()
        .or_else(|| driver.nvml.as_ref().ok()?.version.clone());
    let cuda = driver.nvml.as_ref().ok().and_then(|nvml| nvml.cuda);
    let cuda = cuda.map_or(String::new(), |(major, minor)| {
        format!(", for CUDA up to {major}.{minor}")
    });
    match (version, &driver.nvml, driver.on_bus) {
        (Some(version), Ok(_), _) => Check::ok(id, what, format!("{version}{cuda}")),
        (Some(version), Err(why), _) => {
            Check::warning(id, what, format!("{version}, but NVML says nothing: {why}")).remedy(
                "see whether `nvidia-smi` works; in a container, give it the GPUs (--gpus all)",
            )
        }
        (None, Ok(_), _) => Check::ok(id, what, format!("of an unknown version{cuda}")),
        (None, Err(why), Some(cards)) if cards > 0 => Check::warning(
            id,
            what,
            format!(
                "not loaded, though there {} on the bus ({why})",
                match cards {
                    1 => "is a GPU of NVIDIA's".to_string(),
                    n => format!("are {n} GPUs of NVIDIA's"),
                }
            ),
        )
        .remedy("load it: modprobe nvidia, or install it; then try nvidia-smi"),
        (None, Err(_), _) => Check::warning(id, what, "none: only the host's side is recorded")
            .remedy(
            "nothing to do where there is no GPU; in a container, give it the GPUs (--gpus all)",
        ),
    }
}

fn devices(facts: &Facts) -> Check {
    let (id, what) = ("gpu.devices", "GPU devices");
    let nodes = &facts.driver.nodes;
    let closed: Vec<&str> = nodes
        .iter()
        .filter(|(_, open)| !open)
        .map(|(name, _)| name.as_str())
        .collect();
    let gpus = nodes
        .iter()
        .filter(|(name, _)| name != "nvidiactl" && name != "nvidia-uvm")
        .count();
    if nodes.is_empty() {
        Check::warning(id, what, "no device files of NVIDIA's in /dev").remedy(
            "nvidia-modprobe -u -c 0 makes them; in a container, give it the GPUs (--gpus all)",
        )
    } else if closed.is_empty() {
        Check::ok(id, what, format!("{gpus} in /dev, and open to this user"))
    } else {
        Check::ok(
            id,
            what,
            format!(
                "{gpus} in /dev; not open to this user: {}",
                list(&closed, 4)
            ),
        )
    }
}

fn cards(facts: &Facts) -> Vec<Check> {
    let Ok(nvml) = &facts.driver.nvml else {
        return Vec::new();
    };
    let names: Vec<&str> = nvml.cards.iter().map(|card| card.name.as_str()).collect();
    let trouble: Vec<String> = nvml
        .cards
        .iter()
        .enumerate()
        .filter_map(|(i, card)| Some(format!("GPU {i}: {}", card.trouble.as_ref()?)))
        .collect();
    let mut kinds: Vec<String> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        if !name.is_empty() && !names[..at].contains(name) {
            kinds.push(match names.iter().filter(|other| other == &name).count() {
                1 => (*name).to_string(),
                n => format!("{n} x {name}"),
            });
        }
    }
    let cards = match trouble.is_empty() {
        _ if names.is_empty() => Check::warning("gpu.cards", "GPUs", "the driver knows none")
            .remedy("see `nvidia-smi -L`"),
        true => Check::ok("gpu.cards", "GPUs", list(&kinds, MOST)),
        false => Check::warning("gpu.cards", "GPUs", sentences(&trouble, MOST))
            .remedy("see `nvidia-smi` and the kernel's log (dmesg, lines with NVRM)"),
    };
    let off = nvml
        .cards
        .iter()
        .filter(|card| card.persistence == Some(false))
        .count();
    let known = nvml.cards.iter().any(|card| card.persistence.is_some());
    let persistence = match off {
        _ if !known => Check::unknown(
            "gpu.persistence",
            "persistence mode",
            "the driver does not tell",
        ),
        0 => Check::ok("gpu.persistence", "persistence mode", "on"),
        // It costs the first program seconds, and no recording anything.
        _ => Check::ok(
            "gpu.persistence",
            "persistence mode",
            "off: the first CUDA program waits for the GPU to start",
        ),
    };
    let split = nvml
        .cards
        .iter()
        .filter(|card| card.mig == Some(true))
        .count();
    let mig = match split {
        0 if nvml.cards.iter().all(|card| card.mig.is_none()) => {
            Check::ok("gpu.mig", "MIG", "not on these GPUs")
        }
        0 => Check::ok("gpu.mig", "MIG", "off"),
        n => Check::warning(
            "gpu.mig",
            "MIG",
            format!(
                "on, on {n} of {}: the driver tells no utilisation of them",
                nvml.cards.len()
            ),
        )
        .remedy(
            "nothing to do: kernels and copies are recorded for each instance that a program uses",
        ),
    };
    vec![cards, persistence, mig]
}

fn libraries(facts: &Facts) -> Check {
    let (id, what) = ("cupti.libraries", "libcupti");
    let texts: Vec<String> = facts
        .libraries
        .iter()
        .map(|library| {
            let version = library
                .version
                .as_deref()
                .map_or(String::new(), |version| format!(" ({version})"));
            let kind = match (library.foreign, library.source) {
                (true, _) => ", another tool's own",
                (false, Source::Mapped) => ", in use",
                (false, Source::Toolkit | Source::Wheel | Source::Variable | Source::Linker) => "",
            };
            format!("{}{version}{kind}", library.path.display())
        })
        .collect();
    let is_there = usable(facts).next().is_some();
    if is_there {
        return Check::ok(id, what, sentences(&texts, MOST));
    }
    let found = match texts.is_empty() {
        true => "none found here; a program may bring its own".to_string(),
        false => format!("none for this driver: {}", sentences(&texts, MOST)),
    };
    if has_driver(facts) {
        Check::warning(id, what, found)
            .remedy("pip install nvidia-cuda-cupti in the program's environment, install the CUDA toolkit, or set CUDA_HOME")
    } else {
        Check::ok(id, what, found)
    }
}

fn cupti_rights(facts: &Facts) -> Check {
    let (id, what) = ("cupti.rights", "CUPTI rights");
    match facts.driver.profiling_admin_only {
        Some(true) => Check::ok(id, what, "counters are for root (RmProfilingAdminOnly: 1); records of kernels and copies are not counters"),
        Some(false) => Check::ok(id, what, "for every user (RmProfilingAdminOnly: 0)"),
        None => Check::unknown(id, what, "the driver does not tell (/proc/driver/nvidia/params)"),
    }
}

/// `4711 python3`.
pub(super) fn name(user: &CudaUser) -> String {
    format!("{} {}", user.pid, user.comm)
}

fn users(facts: &Facts) -> Check {
    let (id, what) = ("cuda.processes", "uses CUDA now");
    let users = &facts.users.list;
    let texts: Vec<String> = users
        .iter()
        .map(|user| {
            let cupti = match &user.would_use {
                Ok(path) => path.display().to_string(),
                Err(_) if user.hidden => return name(user),
                Err(_) => "no libcupti".to_string(),
            };
            format!("{} ({}, {cupti})", name(user), shim_text(&user.shim))
        })
        .collect();
    let without = users.iter().filter(|user| !user.hidden);
    let without: Vec<String> = without
        .filter_map(|user| {
            Some(format!(
                "{}: {}",
                name(user),
                user.would_use.as_ref().err()?
            ))
        })
        .collect();
    if !without.is_empty() {
        return Check::warning(id, what, sentences(&without, MOST))
            .remedy("gdiag check -p PID says more of one of them");
    }
    if users.iter().any(|user| user.hidden) {
        return Check::unknown(
            id,
            what,
            format!(
                "{}; the memory of some cannot be read",
                sentences(&texts, MOST)
            ),
        )
        .remedy(super::rights::BE_ROOT);
    }
    let complete = if facts.users.complete {
        ""
    } else {
        "; only processes that /proc shows were looked at"
    };
    match texts.is_empty() {
        true => Check::ok(id, what, format!("nobody{complete}")),
        false => Check::ok(id, what, format!("{}{complete}", sentences(&texts, MOST))),
    }
}

pub(super) fn shim_text(shim: &ShimFact) -> String {
    match shim {
        ShimFact::None => "no library of gdiag's".to_string(),
        ShimFact::Hidden(_) => "gdiag's library, which cannot be looked at".to_string(),
        ShimFact::There(look) => match look.state {
            state::STARTING => "gdiag's library, starting".to_string(),
            state::DORMANT => "gdiag's library, asleep".to_string(),
            state::ACTIVE => "gdiag's library, recording".to_string(),
            state::PAUSED => "gdiag's library, paused".to_string(),
            state::BUSY => "gdiag's library, held off by another tool".to_string(),
            state::FAILED => "gdiag's library, which failed".to_string(),
            state::FINISHED => "gdiag's library, at its end".to_string(),
            other => format!("gdiag's library, in state {other}"),
        },
    }
}

fn holders(facts: &Facts) -> Check {
    let (id, what) = ("cupti.holders", "holds CUPTI");
    let mut others: Vec<String> = Vec::new();
    let mut gdiags: Vec<String> = Vec::new();
    for user in &facts.users.list {
        if let ShimFact::There(look) = &user.shim {
            if matches!(look.state, state::BUSY | state::FAILED) {
                others.push(format!("{}: {}", name(user), look.facts.reason));
                continue;
            }
            if let Some(pid) = look.collector {
                gdiags.push(format!("{}: gdiag, pid {pid}", name(user)));
                continue;
            }
        }
        match user.other_tool {
            // That torch is loaded says little.
            Some(tool) if !tool.contains("torch") => others.push(format!("{}: {tool}", name(user))),
            Some(_) | None => {}
        }
    }
    if !others.is_empty() {
        return Check::warning(id, what, sentences(&others, MOST))
            .remedy("end that tool, or start the program without it, and record again");
    }
    match gdiags.is_empty() {
        true => Check::ok(id, what, "nobody that can be seen"),
        false => Check::ok(id, what, sentences(&gdiags, MOST)),
    }
}

/// A libcupti of CUDA 11 cannot be turned on in a running program.
pub(super) fn is_late_for(path: &Path) -> bool {
    gdiag_cupti_locate::is_of_cuda_11(path)
}
