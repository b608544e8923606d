//! `gdiag sched` against a program that knows what it did (tests/programs/knows), and on bad input.
//! What records needs root and BTF.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

mod bad_input;
mod truth;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf, as in CI, it must.
fn can_record() -> bool {
    let can = nix::unistd::geteuid().is_root() && Path::new("/sys/kernel/btf/vmlinux").exists();
    let required = std::env::var("GDIAG_REQUIRE").is_ok_and(|v| v.split(',').any(|n| n == "bpf"));
    assert!(
        can || !required,
        "GDIAG_REQUIRE=bpf, but this needs root and BTF"
    );
    if !can {
        println!("skipped: needs root and BTF");
    }
    can
}

/// tests/programs/knows, compiled once.
fn knows() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("knows");
        let fresh = program.with_extension(std::process::id().to_string());
        let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&fresh)
            .arg(root.join("tests/programs/knows/knows.c"))
            .status();
        assert!(status.unwrap().success(), "knows does not compile");
        // In one step: another run of the tests may have it open.
        std::fs::rename(&fresh, &program).unwrap();
        program
    })
}

fn gdiag(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
