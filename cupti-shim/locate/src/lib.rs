//! Which libcupti to use: the rules of the shim, by which `gdiag check` says beforehand what a shim would do.
//!
//! Two copies of libcupti in one process disturb each other, and a copy for another release
//! of CUDA gives nothing. So: the one that is mapped already; else the one that belongs to
//! the CUDA libraries in use; else a toolkit's. Never by bare name, which finds whatever
//! the search path has first.
//!
//! Directories are listed by a function that is given: the shim looks at its own file system, gdiag at
//! that of the process it is asked about.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// A libcupti, and whether the process has it already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Loaded(PathBuf),
    File(PathBuf),
}

/// The entries of a directory, sorted by name; none when it cannot be read.
pub type List<'a> = &'a dyn Fn(&Path) -> Vec<PathBuf>;

/// The variables that name a toolkit, the first to be preferred.
pub const TOOLKIT_VARIABLES: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];

/// The driver's library among those loaded.
pub fn driver(loaded: &[PathBuf]) -> Option<&Path> {
    loaded
        .iter()
        .find(|path| file_name(path).starts_with("libcuda.so"))
        .map(PathBuf::as_path)
}

/// Where toolkits are, in order of preference: those that the program names, and the usual places.
pub fn toolkits(named: impl Iterator<Item = PathBuf>, list: List<'_>) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = named.collect();
    roots.extend(["/usr/local/cuda".into(), "/opt/cuda".into()]);
    roots.extend(
        list(Path::new("/usr/local"))
            .into_iter()
            .filter(|path| file_name(path).starts_with("cuda-")),
    );
    roots
}

/// Chooses a libcupti for a process with these libraries. `driver_major` is 13 for a driver of CUDA 13.
pub fn cupti(
    loaded: &[PathBuf],
    driver_major: Option<u32>,
    toolkits: &[PathBuf],
    list: List<'_>,
) -> Result<Found, String> {
    let mapped: Vec<&PathBuf> = loaded.iter().filter(|path| is_cupti(path)).collect();
    if let Some(path) = best(
        mapped.iter().copied().filter(|path| !is_foreign(path)),
        driver_major,
    ) {
        return Ok(Found::Loaded(path.clone()));
    }
    if let Some(path) = mapped.first() {
        return Err(format!(
            "{} is loaded, which serves another tool; a second libcupti would disturb it",
            path.display()
        ));
    }
    let beside: Vec<PathBuf> = loaded
        .iter()
        .filter(|path| is_cuda_library(path))
        .flat_map(|path| beside(path, list))
        .collect();
    let found = best(&beside, driver_major).cloned();
    let found = found.or_else(|| {
        let all: Vec<PathBuf> = toolkits
            .iter()
            .flat_map(|root| in_toolkit(root, list))
            .collect();
        best(&all, driver_major).cloned()
    });
    found.map(Found::File).ok_or_else(|| {
        "no libcupti beside the CUDA libraries of this process nor in a toolkit; \
         install the CUDA toolkit or the package nvidia-cuda-cupti, or set CUDA_HOME"
            .to_string()
    })
}

/// The first for the driver's release of CUDA; else the newest that is older; else one that does not tell.
fn best<'a>(
    candidates: impl IntoIterator<Item = &'a PathBuf>,
    driver_major: Option<u32>,
) -> Option<&'a PathBuf> {
    let rank = |path: &Path| match (major(path), driver_major) {
        (Some(major), Some(driver)) if major > driver => None,
        (Some(major), _) => Some(major),
        (None, _) => Some(0),
    };
    let mut best: Option<(u32, &PathBuf)> = None;
    for path in candidates {
        if let Some(rank) = rank(path) {
            if best.is_none_or(|(other, _)| rank > other) {
                best = Some((rank, path));
            }
        }
    }
    best.map(|(_, path)| path)
}

/// Release of CUDA from the name: 12 for `libcupti.so.12`. The toolkit's real files are named by
/// the year (`libcupti.so.2025.3.1`) and do not tell.
pub fn major(path: &Path) -> Option<u32> {
    let version = file_name(path)
        .strip_prefix("libcupti.so.")?
        .split('.')
        .next()?;
    version.parse().ok().filter(|major| *major < 100)
}

/// Whether a file is of CUDA 11, by its name; the real one, not a link to it.
pub fn is_of_cuda_11(path: &Path) -> bool {
    let name = file_name(path);
    name.starts_with("libcupti.so.11") || name.starts_with("libcupti.so.2022")
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or("")
}

pub fn is_cupti(path: &Path) -> bool {
    let name = file_name(path);
    name == "libcupti.so" || name.starts_with("libcupti.so.")
}

/// Copies that other tools bring along for themselves.
pub fn is_foreign(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str().to_string_lossy().to_ascii_lowercase();
        part == "triton" || part.contains("nsight")
    })
}

fn is_cuda_library(path: &Path) -> bool {
    let name = file_name(path);
    [
        "libcudart.so",
        "libtorch_cuda.so",
        "libcublas.so",
        "libcudnn.so",
        "libnvrtc.so",
    ]
    .iter()
    .any(|library| name.starts_with(library))
}

/// Copies that were installed together with this library.
fn beside(library: &Path, list: List<'_>) -> Vec<PathBuf> {
    let Some(dir) = library.parent() else {
        return Vec::new();
    };
    let mut found = candidates(dir, list);
    // Python wheels: nvidia/cuda_runtime/lib and torch/lib have nvidia/cuda_cupti/lib or nvidia/cu13/lib beside them.
    if let Some(site) = dir.parent().and_then(Path::parent) {
        found.extend(in_wheels(site, list));
    }
    // A toolkit: lib64 has extras/CUPTI/lib64 beside it.
    if let Some(root) = dir.parent() {
        found.extend(candidates(&root.join("extras/CUPTI/lib64"), list));
    }
    found
}

/// Those of the wheels in a directory of Python packages, or in its `nvidia`.
pub fn in_wheels(site: &Path, list: List<'_>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in [site.to_path_buf(), site.join("nvidia")] {
        found.extend(candidates(&root.join("cuda_cupti/lib"), list));
        for release in list(&root).into_iter().filter(|path| is_release_dir(path)) {
            found.extend(candidates(&release.join("lib"), list));
        }
    }
    found
}

/// A guess at which other tool uses CUPTI, from the libraries of a process.
pub fn other_tool(loaded: &[PathBuf]) -> Option<&'static str> {
    let has = |part: &str| {
        loaded
            .iter()
            .any(|path| path.to_string_lossy().contains(part))
    };
    if has("libToolsInjection") || has("nsight-systems") {
        Some("Nsight Systems is loaded")
    } else if has("nsight-compute") {
        Some("Nsight Compute is loaded")
    } else if has("libdcgm") {
        Some("DCGM is loaded")
    } else if has("libtorch_cpu") {
        Some("perhaps torch.profiler, which keeps it after its first use")
    } else {
        None
    }
}

/// `nvidia/cu13` and the like.
fn is_release_dir(path: &Path) -> bool {
    file_name(path)
        .strip_prefix("cu")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Those of a toolkit.
pub fn in_toolkit(root: &Path, list: List<'_>) -> Vec<PathBuf> {
    let targets = format!(
        "targets/{}-linux/lib",
        if cfg!(target_arch = "aarch64") {
            "sbsa"
        } else {
            env::consts::ARCH
        }
    );
    ["extras/CUPTI/lib64", &targets, "lib64"]
        .iter()
        .flat_map(|dir| candidates(&root.join(dir), list))
        .collect()
}

/// Every libcupti of a directory that tells its release by its name.
pub fn candidates(dir: &Path, list: List<'_>) -> Vec<PathBuf> {
    list(dir)
        .into_iter()
        .filter(|path| is_cupti(path) && major(path).is_some() && !is_foreign(path))
        .collect()
}

/// A [`List`] of this process's own file system.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory tree that is removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(test: &str, files: &[&str]) -> Tree {
            let root = env::temp_dir().join(format!("gdiag-locate-{}-{test}", std::process::id()));
            for file in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "").unwrap();
            }
            Tree(root)
        }

        fn path(&self, file: &str) -> PathBuf {
            self.0.join(file)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn a_mapped_copy_wins_over_everything_on_disk() {
        let tree = Tree::new("mapped", &["cuda/extras/CUPTI/lib64/libcupti.so.13"]);
        let loaded = paths(&[
            "/lib/libc.so.6",
            "/site/torch/lib/../../nvidia/cu13/lib/libcupti.so.13",
        ]);
        let found = cupti(&loaded, Some(13), &[tree.path("cuda")], &list);
        assert_eq!(found, Ok(Found::Loaded(loaded[1].clone())));
    }

    #[test]
    fn of_two_mapped_copies_the_drivers_release_wins() {
        let loaded = paths(&["/a/libcupti.so.12", "/b/libcupti.so.13"]);
        assert_eq!(
            cupti(&loaded, Some(13), &[], &list),
            Ok(Found::Loaded(loaded[1].clone()))
        );
        assert_eq!(
            cupti(&loaded, Some(12), &[], &list),
            Ok(Found::Loaded(loaded[0].clone()))
        );
    }

    #[test]
    fn copies_of_other_tools_are_neither_used_nor_joined_by_a_second_one() {
        let tree = Tree::new("foreign", &["cuda/extras/CUPTI/lib64/libcupti.so.13"]);
        for foreign in [
            "/site/triton/backends/nvidia/lib/cupti/libcupti.so.12",
            "/opt/nvidia/nsight-compute/2025.3/target/linux/libcupti.so.13",
        ] {
            let error =
                cupti(&paths(&[foreign]), Some(13), &[tree.path("cuda")], &list).unwrap_err();
            assert!(error.contains(foreign), "{error}");
            let with_own = paths(&[foreign, "/site/nvidia/cu13/lib/libcupti.so.13"]);
            assert_eq!(
                cupti(&with_own, Some(13), &[], &list),
                Ok(Found::Loaded(with_own[1].clone()))
            );
        }
    }

    #[test]
    fn the_wheel_of_the_cuda_libraries_in_use_wins_over_the_toolkit() {
        let tree = Tree::new(
            "wheel",
            &[
                "site/nvidia/cuda_runtime/lib/libcudart.so.12",
                "site/nvidia/cuda_cupti/lib/libcupti.so.12",
                "site/triton/backends/nvidia/lib/cupti/libcupti.so.13",
                "cuda/extras/CUPTI/lib64/libcupti.so.13",
            ],
        );
        let loaded = [tree.path("site/nvidia/cuda_runtime/lib/libcudart.so.12")];
        let found = cupti(&loaded, Some(13), &[tree.path("cuda")], &list);
        assert_eq!(
            found,
            Ok(Found::File(
                tree.path("site/nvidia/cuda_cupti/lib/libcupti.so.12")
            ))
        );

        let tree = Tree::new(
            "cu13",
            &[
                "site/torch/lib/libtorch_cuda.so",
                "site/nvidia/cu13/lib/libcupti.so.13",
            ],
        );
        let found = cupti(
            &[tree.path("site/torch/lib/libtorch_cuda.so")],
            Some(13),
            &[],
            &list,
        );
        assert_eq!(
            found,
            Ok(Found::File(
                tree.path("site/nvidia/cu13/lib/libcupti.so.13")
            ))
        );
    }

    #[test]
    fn of_several_toolkits_the_newest_that_the_driver_supports_wins() {
        let tree = Tree::new(
            "toolkits",
            &[
                "cuda-11.8/extras/CUPTI/lib64/libcupti.so.11.8",
                "cuda-12.9/extras/CUPTI/lib64/libcupti.so",
                "cuda-12.9/extras/CUPTI/lib64/libcupti.so.12",
                "cuda-12.9/extras/CUPTI/lib64/libcupti.so.2025.2.1",
                "cuda-13.0/extras/CUPTI/lib64/libcupti.so.13",
            ],
        );
        let roots = ["cuda-11.8", "cuda-12.9", "cuda-13.0"].map(|root| tree.path(root));
        for (driver, expected) in [
            (Some(13), "cuda-13.0/extras/CUPTI/lib64/libcupti.so.13"),
            (Some(14), "cuda-13.0/extras/CUPTI/lib64/libcupti.so.13"),
            (Some(12), "cuda-12.9/extras/CUPTI/lib64/libcupti.so.12"),
            (Some(11), "cuda-11.8/extras/CUPTI/lib64/libcupti.so.11.8"),
            (None, "cuda-13.0/extras/CUPTI/lib64/libcupti.so.13"),
        ] {
            assert_eq!(
                cupti(&[], driver, &roots, &list),
                Ok(Found::File(tree.path(expected))),
                "{driver:?}"
            );
        }
    }

    #[test]
    fn nothing_found_says_what_to_do() {
        let error = cupti(&paths(&["/lib/libc.so.6"]), Some(13), &[], &list).unwrap_err();
        assert!(error.contains("CUDA_HOME"), "{error}");
    }

    #[test]
    fn the_driver_is_known_by_its_name() {
        assert_eq!(driver(&paths(&["/x/libc.so.6"])), None);
        assert_eq!(
            driver(&paths(&["/x/libcudart.so.12", "/y/libcuda.so.1"])),
            Some(Path::new("/y/libcuda.so.1"))
        );
    }

    #[test]
    fn another_tool_is_guessed_from_the_libraries() {
        let other = |of: &[&str]| other_tool(&paths(of)).unwrap_or_default();
        assert!(other(&["/site/torch/lib/libtorch_cpu.so"]).contains("torch.profiler"));
        assert!(other(&[
            "/site/torch/lib/libtorch_cpu.so",
            "/opt/nsys/libToolsInjection64.so"
        ])
        .contains("Systems"));
        assert_eq!(other(&["/lib/libc.so.6"]), "");
    }
}
