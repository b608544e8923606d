//! One process per case, and the directory with both libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set in the process that runs a case: its name.
const CASE: &str = "GDIAG_SIM_TEST_CASE";
const DIRECTORY: &str = "GDIAG_SIM_TEST_DIR";

/// Runs `body` in a new process with this environment; the test of that `name` must be the caller.
pub fn case(name: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    cases(name, [env], body);
}

/// Runs `body` in a new process for each environment.
pub fn cases<'a>(
    name: &str,
    envs: impl IntoIterator<Item = impl AsRef<[(&'a str, &'a str)]>>,
    body: impl FnOnce(),
) {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        body();
        return;
    }
    let directory = install();
    for env in envs {
        let env = env.as_ref();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(CASE, name)
            .env(DIRECTORY, &directory)
            .envs(env.iter().copied())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{name} with {env:?}:\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Where the case finds the libraries.
pub fn directory() -> PathBuf {
    std::env::var_os(DIRECTORY).unwrap().into()
}

/// Both libraries by the names under which programs look for them.
pub fn install() -> PathBuf {
    let build = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline"])
        .args(["-p", "gdiag-simgpu-cuda", "-p", "gdiag-simgpu-cupti"])
        .arg("--manifest-path")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../Cargo.toml"))
        .arg("--target-dir")
        .arg(target())
        .status()
        .unwrap();
    assert!(build.success());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simgpu");
    std::fs::create_dir_all(&directory).unwrap();
    for (built, name) in [
        ("libgdiag_simcuda.so", "libcuda.so.1"),
        ("libgdiag_simcupti.so", "libcupti.so.13"),
    ] {
        // A link appears whole, whichever test makes it.
        let link = directory.join(name);
        let fresh = directory.join(format!("{name}.{:?}", std::thread::current().id()));
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(target().join("debug").join(built), &fresh).unwrap();
        std::fs::rename(&fresh, &link).unwrap();
    }
    directory
}

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}
