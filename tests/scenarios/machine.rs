//! What these tests need of the machine, and what they share on it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by whoever measures: two scenarios at once would be each other's fault.
static TURN: Mutex<()> = Mutex::new(());

/// Where the simulated GPU and the load are, and the right to use them alone.
#[derive(Debug)]
pub struct Machine {
    pub simgpu: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Machine {
    /// `None`, with a line that says why, where these tests cannot run; with GDIAG_REQUIRE that is a failure.
    pub fn ready() -> Option<Machine> {
        if let Some((need, why)) = lacking() {
            let required = std::env::var("GDIAG_REQUIRE").unwrap_or_default();
            assert!(
                !required.split(',').any(|name| name == need),
                "GDIAG_REQUIRE={required}, but {why}"
            );
            println!("skipped: {why}");
            return None;
        }
        Some(Machine {
            simgpu: simgpu(),
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }

    pub fn gpuload(&self) -> PathBuf {
        self.simgpu.join("gpuload")
    }
}

fn simgpu() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from)
}

/// What is missing, by its name in GDIAG_REQUIRE.
fn lacking() -> Option<(&'static str, String)> {
    if !nix::unistd::geteuid().is_root() {
        return Some(("bpf", "this needs root".to_string()));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some(("bpf", "this needs a kernel with BTF".to_string()));
    }
    let files = ["libcuda.so.1", "libcupti.so.13", "gpuload"];
    let dir = simgpu();
    let missing = files.iter().find(|file| !dir.join(file).exists())?;
    Some((
        "simgpu",
        format!("{} has no {missing} (make simgpu)", dir.display()),
    ))
}
