//! Facts without what is private, for a bundle that anybody may see.
//!
//! What goes into a bundle is decided anew from these: so nothing gets there that was not looked at here. Names
//! that somebody gave (of programs, recorders, directories) are left out; of paths stays what the system or a
//! package named ([`reduced`]).

use std::path::{Component, Path, PathBuf};

use crate::collect::inject::Failure;
use crate::collect::machine::{Btf, CudaUser, Facts, Load, Process, Python, ShimFact};

/// Stands for a name that is left out.
const PROGRAM: &str = "(program)";

/// Stands for directories that are left out.
const DOTS: &str = "...";

/// The same, without what is private.
pub fn scrubbed(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    if let Btf::Unreadable(why) = &mut facts.kernel.btf {
        *why = text(why);
    }
    for load in [
        &mut facts.loads.host,
        &mut facts.loads.stacks,
        &mut facts.loads.system_calls,
        &mut facts.loads.driver,
        &mut facts.loads.cuda,
    ] {
        match load {
            Load::NotTried => {}
            Load::Done(missing) => missing.iter_mut().for_each(|what| *what = text(what)),
            Load::Refused(refused) => {
                refused.text = text(&refused.text);
                refused.messages = text(&refused.messages);
            }
        }
    }
    facts.rights.uid = nobody(facts.rights.uid);
    facts.driver.nvml = facts.driver.nvml.map_err(|why| text(&why));
    for library in &mut facts.libraries {
        library.path = reduced(&library.path);
        library.version = library.version.as_deref().map(version);
    }
    facts.users.list.iter_mut().for_each(scrub_user);
    let place = &mut facts.place;
    place.disk.dir = reduced(&place.disk.dir);
    let cgroups = &mut place.cgroups;
    for dir in [
        &mut place.library_dir,
        &mut cgroups.unified,
        &mut cgroups.cpu,
    ]
    .into_iter()
    .flatten()
    {
        *dir = reduced(dir);
    }
    for (dir, controllers) in &mut cgroups.old {
        *dir = reduced(dir);
        // A hierarchy without controllers has a name.
        if controllers.starts_with("name=") && controllers != "name=systemd" {
            *controllers = "name=...".to_string();
        }
    }
    for (number, (uid, name)) in facts.recorders.iter_mut().enumerate() {
        *uid = nobody(*uid);
        *name = format!("number {}", number + 1);
    }
    if let Some(process) = &mut facts.process {
        scrub_process(process);
    }
    facts
}

/// Who it is says nothing but whether it is root.
fn nobody(uid: u32) -> u32 {
    const NOBODY: u32 = 65_534;
    if uid == 0 {
        0
    } else {
        NOBODY
    }
}

fn scrub_user(user: &mut CudaUser) {
    user.comm = PROGRAM.to_string();
    match &mut user.shim {
        ShimFact::None => {}
        ShimFact::There(look) => {
            let path = PathBuf::from(&look.facts.cupti_path);
            look.facts.cupti_path = reduced(&path).display().to_string();
            look.facts.reason = text(&look.facts.reason);
        }
        ShimFact::Hidden(why) => *why = text(why),
    }
    user.mapped
        .iter_mut()
        .for_each(|path| *path = reduced(path));
    user.would_use = match &user.would_use {
        Ok(path) => Ok(reduced(path)),
        Err(why) => Err(text(why)),
    };
}

fn scrub_process(process: &mut Process) {
    process.comm = PROGRAM.to_string();
    if let Some(user) = &mut process.cuda {
        scrub_user(user);
    }
    if let Some(path) = &mut process.injection {
        *path = reduced(path);
    }
    if let Err(Failure::Unreadable(why) | Failure::NotLoaded(why)) = &mut process.inject {
        *why = text(why);
    }
    if let Some(Python::Unknown(file)) = &mut process.python {
        *file = "a Python".to_string();
    }
}

/// Digits and dots only: it may come from the name of a directory.
fn version(of: &str) -> String {
    let known = of.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if known {
        of.to_string()
    } else {
        DOTS.to_string()
    }
}

/// `text` with its paths reduced.
fn text(text: &str) -> String {
    let ends =
        |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`' | '(' | ')' | ',' | ';' | '=');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ends).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let path = word.trim_end_matches([':', '.']);
        if word.starts_with(['/', '~']) && path.len() > 1 {
            out.push_str(&reduced(Path::new(path)).display().to_string());
            out.push_str(&word[path.len()..]);
        } else if word.contains("://") || word.contains('/') && word.contains("..") {
            out.push_str(DOTS);
        } else {
            out.push_str(word);
        }
        let mark = after.chars().next().map_or(0, char::len_utf8);
        out.push_str(&after[..mark]);
        rest = &after[mark..];
    }
    out
}

/// A path of which only names are left that the system or a package gave.
fn reduced(path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() || is_of_system(path) {
        return path.to_path_buf();
    }
    let names: Vec<&str> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_str().unwrap_or(DOTS)),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        })
        .collect();
    let site = names
        .iter()
        .rposition(|name| matches!(*name, "site-packages" | "dist-packages"));
    if let Some(at) = site {
        let inside = &names[at + 1..];
        let known = matches!(inside.first(), Some(&("nvidia" | "torch" | "triton")));
        let inside: Vec<&str> = match known {
            true => inside.iter().map(|name| known_name(name)).collect(),
            false => vec![DOTS, file_name(&names)],
        };
        return ["<python>", names[at]].iter().chain(&inside).collect();
    }
    match names.first() {
        Some(&("home" | "root" | "~")) => ["~", DOTS, file_name(&names)].iter().collect(),
        Some(_) | None => [DOTS, file_name(&names)].iter().collect(),
    }
}

/// The last name, if it is a library's that is known.
fn file_name<'a>(names: &[&'a str]) -> &'a str {
    let name = names.last().copied().unwrap_or(DOTS);
    known_name(name)
}

/// Names of the libraries and directories that are looked for.
fn known_name(name: &str) -> &str {
    const DIRECTORIES: [&str; 12] = [
        "nvidia",
        "torch",
        "triton",
        "cuda_cupti",
        "cuda_runtime",
        "lib",
        "lib64",
        "backends",
        "cupti",
        "extras",
        "CUPTI",
        "_C",
    ];
    let digits =
        |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let library = [
        "libcupti.so",
        "libcuda.so",
        "libgdiag_cupti.so",
        "libnvidia-ml.so",
    ]
    .iter()
    .any(|known| {
        name.strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || rest.strip_prefix('.').is_some_and(digits))
    });
    let release = name.strip_prefix("cu").is_some_and(digits);
    if library || release || DIRECTORIES.contains(&name) {
        name
    } else {
        DOTS
    }
}

/// Below a directory of the system, down to a name that is known.
fn is_of_system(path: &Path) -> bool {
    const WHOLE: [&str; 16] = [
        "/",
        "/tmp",
        "/var/tmp",
        "/run",
        "/dev/shm",
        "/proc",
        "/sys",
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/kernel/btf/vmlinux",
        "/proc/kallsyms",
        "/proc/driver/nvidia/params",
        "/dev/null",
        "/etc/ld.so.cache",
    ];
    if WHOLE.iter().any(|known| path == Path::new(known)) {
        return true;
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return false;
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    if known_name(name) == DOTS {
        return false;
    }
    let dirs = path.parent().into_iter().flat_map(Path::components);
    let mut dirs = dirs.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_str().unwrap_or(DOTS)),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    });
    let is_cuda = |name: &str| {
        let rest = name
            .strip_prefix("cuda")
            .map(|rest| rest.strip_prefix('-').unwrap_or(rest));
        rest.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
    };
    dirs.all(|name| {
        is_cuda(name)
            || known_name(name) != DOTS
            || matches!(
                name,
                "usr"
                    | "local"
                    | "opt"
                    | "targets"
                    | "x86_64-linux"
                    | "sbsa-linux"
                    | "x86_64-linux-gnu"
                    | "aarch64-linux-gnu"
            )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> String {
        reduced(Path::new(path)).display().to_string()
    }

    #[test]
    fn paths_of_the_system_stay() {
        for path in [
            "/usr/lib/x86_64-linux-gnu/libcupti.so.12",
            "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
            "/usr/local/cuda-12.9/targets/x86_64-linux/lib/libcupti.so.2025.2.1",
            "/opt/cuda/lib64/libcupti.so",
            "/sys/fs/cgroup",
            "/tmp",
        ] {
            assert_eq!(shown(path), path);
        }
    }

    #[test]
    fn of_others_only_names_of_packages_stay() {
        for (path, expected) in [
            ("/home/SECRET/x/libcupti.so.12", "~/.../libcupti.so.12"),
            ("/root/x/libcupti.so.12", "~/.../libcupti.so.12"),
            ("/data/SECRET/libcupti.so.13", ".../libcupti.so.13"),
            ("/usr/local/SECRET/libcupti.so.13", ".../libcupti.so.13"),
            (
                "/usr/local/cuda-SECRET/lib64/libcupti.so.13",
                ".../libcupti.so.13",
            ),
            ("/usr/lib/libcupti.so.SECRET", ".../..."),
            (
                "/home/SECRET/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13",
                "<python>/site-packages/nvidia/cu13/lib/libcupti.so.13",
            ),
            (
                "/x/site-packages/torch/lib/../../nvidia/SECRET/lib/libcupti.so.13",
                "<python>/site-packages/torch/lib/nvidia/.../lib/libcupti.so.13",
            ),
            (
                "/x/site-packages/SECRET/libcupti.so.13",
                "<python>/site-packages/.../libcupti.so.13",
            ),
            ("/usr/lib/../SECRET/libcupti.so.13", ".../libcupti.so.13"),
            ("/SECRET", ".../..."),
            ("", ""),
        ] {
            assert_eq!(shown(path), expected, "{path}");
        }
    }

    #[test]
    fn paths_in_a_sentence_are_reduced() {
        assert_eq!(
            text("cannot load '/home/SECRET/libcupti.so.12': no such file"),
            "cannot load '~/.../libcupti.so.12': no such file"
        );
        assert_eq!(
            text("/data/SECRET/x is loaded, path=/SECRET, a/b, https://SECRET"),
            ".../... is loaded, path=.../..., a/b, ..."
        );
        assert_eq!(text("no path; 6.1 / 7"), "no path; 6.1 / 7");
    }
}
