//! Compiles the BPF objects to skeletons, builds the shim that gdiag embeds, and links gdiag so that it
//! runs where glibc is older than here.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use gdiag_old_glibc::Output;
use libbpf_cargo::SkeletonBuilder;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    build_bpf();
    build_shim();
    link_to_old_glibc();
}

/// Tests as well: cargo has directories to search for all or none, and those that dependencies name go
/// before what is given to the linker alone.
fn link_to_old_glibc() {
    if let Some(link) = gdiag_old_glibc::link(Output::Program) {
        println!(
            "cargo:rustc-link-search=native={}",
            link.libraries.display()
        );
        for arg in link.args {
            println!("cargo:rustc-link-arg={arg}");
        }
    }
}

/// The skeletons, as `$OUT_DIR/NAME.skel.rs`.
fn build_bpf() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => panic!("gdiag does not know the registers of {other:?}"),
    };
    println!("cargo:rerun-if-changed=bpf");
    for name in [
        "sched",
        "stacks",
        "driver",
        "syscalls",
        "sched_sum",
        "cuda_processes",
    ] {
        let source = format!("bpf/{name}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            // v3 has 32-bit jumps and atomics, and every kernel with a ring buffer knows it.
            .clang_args([
                "-mcpu=v3",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-parameter",
                "-Ibpf",
                &format!("-D__TARGET_ARCH_{arch}"),
            ])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
            .unwrap_or_else(|e| panic!("cannot build {source} (is clang installed?): {e:#}"));
    }
}

/// Builds the library for the target processes and leaves its path in `GDIAG_SHIM_SO`, for
/// `include_bytes!`.
///
/// It is a cargo build of its own, in a directory of its own: the outer build holds the lock
/// of the usual one, and the shim is a release build whatever the outer build is. Everything
/// it needs was fetched for gdiag itself, so it never touches the network.
fn build_shim() {
    for path in [
        "Cargo.toml",
        "Cargo.lock",
        "cupti-shim/Cargo.toml",
        "cupti-shim/build.rs",
        "cupti-shim/src",
        "cupti-shim/layout/Cargo.toml",
        "cupti-shim/layout/src",
        "cupti-shim/locate/Cargo.toml",
        "cupti-shim/locate/src",
        "cupti-shim/glibc",
    ] {
        println!("cargo:rerun-if-changed={path}");
    }
    let var =
        |name| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"));
    let target = var("TARGET");
    let target_dir = PathBuf::from(var("OUT_DIR")).join("shim");
    let status = Command::new(var("CARGO"))
        .args([
            "build",
            "--release",
            "--locked",
            "--offline",
            "--package",
            "gdiag-cupti-shim",
        ])
        .arg("--manifest-path")
        .arg(PathBuf::from(var("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&target_dir)
        // A panic must not end the process it happens in, whatever the profile says for gdiag.
        .env("CARGO_PROFILE_RELEASE_PANIC", "unwind")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // Meant for gdiag: instrumentation, or a linter in place of the compiler.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .unwrap_or_else(|e| panic!("cannot run cargo for the shim: {e}"));
    assert!(
        status.success(),
        "the shim does not build: cargo ended with {status}"
    );
    let library = target_dir.join(target).join("release/libgdiag_cupti.so");
    println!("cargo:rustc-env=GDIAG_SHIM_SO={}", library.display());
}
