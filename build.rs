//! Compiles `bpf/*.bpf.c` to skeletons.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    build_bpf();
}

/// One skeleton per BPF object, as `$OUT_DIR/<name>.skel.rs`.
fn build_bpf() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => panic!("gdiag does not know the registers of {other:?}"),
    };
    println!("cargo:rerun-if-changed=bpf");
    for name in ["sched"] {
        SkeletonBuilder::new()
            .source(format!("bpf/{name}.bpf.c"))
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
            .unwrap_or_else(|e| {
                panic!("cannot build bpf/{name}.bpf.c (is clang installed?): {e:#}")
            });
    }
}
