//! The process that was asked about.

use gdiag_shim_layout::{state, ENV_DISABLE};

use super::gpu::{is_late_for, shim_text};
use super::{list, Check};
use crate::collect::inject::Failure;
use crate::collect::machine::process::Libc;
use crate::collect::machine::{Facts, Load, Process, Python, ShimFact};
use crate::collect::shim_file;

/// Whether what its GPU does can be recorded; `None`: only trying tells.
pub(super) fn can(facts: &Facts, process: &Process) -> Option<bool> {
    let user = process.cuda.as_ref()?;
    if process.has_driver == Some(false) {
        return Some(false);
    }
    match &user.shim {
        _ if user.hidden => None,
        ShimFact::There(look) => Some(!matches!(
            look.state,
            state::BUSY | state::FAILED | state::FINISHED
        )),
        ShimFact::Hidden(_) => Some(false),
        ShimFact::None if !process.uses_cuda || process.disabled => Some(false),
        ShimFact::None if !matches!(facts.loads.host, Load::Done(_)) => Some(false),
        ShimFact::None => match (&process.inject, &user.would_use) {
            (Ok(()), Ok(path)) if !is_late_for(path) && process.seccomp == Some(0) => Some(true),
            // Its filters are read when a thread is held.
            (Ok(()), Ok(path)) if !is_late_for(path) => None,
            (Err(failure), Ok(_)) if failure.may_pass() => None,
            (Ok(()) | Err(_), _) => Some(false),
        },
    }
}

pub(super) fn checks(facts: &Facts, process: &Process) -> Vec<Check> {
    let mut checks = vec![
        Check::ok(
            "process.name",
            "process",
            format!("{} {}", process.pid, process.comm),
        ),
        cuda(process),
        library(process),
        cupti(process),
        environment(process),
        filter(process),
        shadow_stack(process),
        tracer(process),
        namespaces(process),
        libc(process),
        python(facts, process),
    ];
    checks.retain(|check| !check.found.is_empty());
    checks
}

fn cuda(process: &Process) -> Check {
    let (id, what) = ("process.cuda", "CUDA");
    if process.uses_cuda {
        Check::ok(id, what, "in use")
    } else if process.has_driver == Some(true) {
        Check::warning(
            id,
            what,
            "the driver is loaded, and CUDA was not used here: of a forked process, or not yet",
        )
        .remedy("give the process that launches kernels; gdiag record takes in its children")
    } else {
        Check::warning(id, what, "not used by this process: only the host's side is recorded")
            .remedy("give the process that launches kernels; gdiag record takes in its children, also those that come later")
    }
}

fn is_hidden(process: &Process) -> bool {
    process.cuda.as_ref().is_some_and(|user| user.hidden)
}

/// Would the library be there?
fn library(process: &Process) -> Check {
    let (id, what) = ("process.library", "gdiag's library");
    let shim = process
        .cuda
        .as_ref()
        .map_or(&ShimFact::None, |user| &user.shim);
    match shim {
        _ if is_hidden(process) => {
            Check::unknown(id, what, "its memory map cannot be read").remedy(super::rights::BE_ROOT)
        }
        ShimFact::There(look) if matches!(look.state, state::BUSY | state::FAILED) => {
            Check::warning(id, what, format!("there, and cannot record: {}", look.facts.reason))
                .remedy("end the tool that holds CUPTI, or restart the program, and record again")
        }
        ShimFact::There(look) => {
            let of = look.collector.map_or(String::new(), |pid| format!(" for gdiag, pid {pid}"));
            let text = shim_text(shim);
            let text = text.strip_prefix("gdiag's library, ").unwrap_or(&text);
            Check::ok(id, what, format!("there, {text}{of}"))
        }
        ShimFact::Hidden(why) => Check::warning(id, what, format!("there, and {why}"))
            .remedy(super::rights::BE_ROOT),
        ShimFact::None if !process.uses_cuda => {
            Check::ok(id, what, "not there; it comes with the first use of CUDA")
        }
        ShimFact::None => match &process.inject {
            Ok(()) => Check::ok(id, what, "not there; a recording puts it there"),
            Err(failure) => {
                Check::warning(id, what, format!("not there, and cannot be put there: {failure}; CUDA calls are measured by probes instead"))
                    .remedy(instead(failure))
            }
        },
    }
}

/// What to do where the library cannot be put into a process.
fn instead(failure: &Failure) -> String {
    let carried = "start the program with it: gdiag record -- CMD, or see `gdiag shim install`";
    match failure {
        Failure::Gone => "give a process that runs".to_string(),
        Failure::Refused(_) => super::rights::BE_ROOT.to_string(),
        Failure::Traced(pid) => {
            format!("end process {pid}, which traces it, or let go of it there")
        }
        Failure::AnotherGdiag => "wait for the other gdiag".to_string(),
        Failure::Stopped => "let it run on: kill -CONT PID".to_string(),
        Failure::Disabled => format!("start the program without {ENV_DISABLE}"),
        Failure::NoThread => format!("record all the same, gdiag tries again; or {carried}"),
        Failure::Architecture
        | Failure::NotGlibc
        | Failure::ShadowStack
        | Failure::Filtered(_)
        | Failure::NoRoom(_)
        | Failure::Unreadable(_)
        | Failure::NoNewThread(_)
        | Failure::NotLoaded(_)
        | Failure::Late => carried.to_string(),
    }
}

fn cupti(process: &Process) -> Check {
    let (id, what) = ("process.libcupti", "libcupti");
    let Some(user) = &process.cuda else {
        return Check::unknown(id, what, "the process has ended");
    };
    match &user.would_use {
        _ if user.hidden => Check::unknown(id, what, "its memory map cannot be read").remedy(super::rights::BE_ROOT),
        Ok(path) if is_late_for(path) && user.shim == ShimFact::None => {
            Check::warning(id, what, format!("{}, of CUDA 11, which cannot be turned on in a program that runs", path.display()))
                .remedy("start the program with gdiag's library: gdiag record -- CMD, or see `gdiag shim install`")
        }
        Ok(path) => {
            let mapped = if user.mapped.contains(path) { "in use" } else { "would be loaded" };
            Check::ok(id, what, format!("{} ({mapped})", path.display()))
        }
        Err(_) if process.has_driver == Some(false) => Check::ok(id, what, "none is looked for without CUDA"),
        Err(why) => Check::warning(id, what, why.clone())
            .remedy("pip install nvidia-cuda-cupti in its environment, install the CUDA toolkit, or set CUDA_HOME"),
    }
}

fn environment(process: &Process) -> Check {
    let (id, what) = ("process.environment", "environment");
    if !process.environment_readable {
        return Check::unknown(id, what, "cannot be read").remedy(super::rights::BE_ROOT);
    }
    if process.disabled {
        return Check::warning(
            id,
            what,
            format!("{ENV_DISABLE}=1: gdiag's library does nothing there"),
        )
        .remedy(format!("start the program without {ENV_DISABLE}"));
    }
    match &process.injection {
        None => Check::ok(
            id,
            what,
            format!("no {}, no {ENV_DISABLE}", shim_file::INJECTION),
        ),
        Some(path)
            if path
                .file_name()
                .is_some_and(|name| name == shim_file::FILE_NAME) =>
        {
            Check::ok(
                id,
                what,
                format!("{}={}", shim_file::INJECTION, path.display()),
            )
        }
        Some(path) => Check::warning(
            id,
            what,
            format!(
                "{}={}: another tool's library, which may hold CUPTI",
                shim_file::INJECTION,
                path.display()
            ),
        )
        .remedy("start the program without it if no GPU records come"),
    }
}

fn filter(process: &Process) -> Check {
    let (id, what) = ("process.seccomp", "system call filter");
    match process.seccomp {
        Some(0) => Check::ok(id, what, "none"),
        Some(1) => Check::warning(id, what, "strict: nothing can be put into it")
            .remedy("start the program with gdiag's library: see `gdiag shim install`"),
        Some(_) => Check::ok(
            id,
            what,
            "there (seccomp); whether it allows gdiag's library is looked at when a thread is held",
        ),
        None => Check::unknown(id, what, "/proc does not tell"),
    }
}

fn shadow_stack(process: &Process) -> Check {
    let (id, what) = ("process.shadow_stack", "shadow stack");
    match process.shadow_stack {
        Some(true) => Check::warning(id, what, "on: gdiag's library cannot be put into it")
            .remedy("start the program with it: gdiag record -- CMD, or see `gdiag shim install`"),
        Some(false) => Check::ok(id, what, "off"),
        None => Check::ok(id, what, "not in this kernel"),
    }
}

fn tracer(process: &Process) -> Check {
    let (id, what) = ("process.tracer", "tracer");
    match process.tracer {
        Some(0) => Check::ok(id, what, "none"),
        Some(pid) => Check::warning(
            id,
            what,
            format!("process {pid} is tracing it, as a debugger does"),
        )
        .remedy(format!("end process {pid}, or let go of it there")),
        None => Check::unknown(id, what, "/proc does not tell"),
    }
}

fn namespaces(process: &Process) -> Check {
    let other = &process.other_namespaces;
    let found = match other.is_empty() {
        true => "those of gdiag".to_string(),
        false => format!(
            "others than gdiag's: {}; gdiag looks through them",
            list(other, 6)
        ),
    };
    Check::ok("process.namespaces", "namespaces", found)
}

fn libc(process: &Process) -> Check {
    let (id, what) = ("process.libc", "C library");
    match &process.libc {
        None => {
            Check::unknown(id, what, "its memory map cannot be read").remedy(super::rights::BE_ROOT)
        }
        Some(libc @ Libc::Glibc(_)) => Check::ok(id, what, libc.to_string()),
        Some(libc) => Check::warning(
            id,
            what,
            format!("{libc}: gdiag's library needs glibc 2.17 or later"),
        )
        .remedy("nothing to do: CUDA itself needs glibc; the host's side is recorded"),
    }
}

fn python(facts: &Facts, process: &Process) -> Check {
    let (id, what) = ("process.python", "Python");
    let Some(python) = &process.python else {
        return Check::unknown(id, what, "its memory map cannot be read")
            .remedy(super::rights::BE_ROOT);
    };
    match python {
        Python::None => Check::ok(id, what, "none"),
        Python::Known(_) if matches!(facts.loads.stacks, Load::Refused(_)) => {
            Check::warning(id, what, "there, but this kernel takes no stacks of users")
                .remedy("see bpf.stacks above")
        }
        Python::Known(minor) => Check::ok(
            id,
            what,
            format!("CPython 3.{}, whose frames are read", minor.0),
        ),
        Python::Unknown(file) => Check::warning(
            id,
            what,
            format!("{file}, whose frames cannot be read: stacks are native only"),
        )
        .remedy("use a release of CPython 3.8 to 3.14, with the GIL, that is not stripped"),
    }
}
