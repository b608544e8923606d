//! How the shim is linked. Its thread and its exit handler outlive any `dlclose`, so it may not be
//! unmapped. And it goes into programs of other machines and containers.

use gdiag_old_glibc::Output;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    link_arg("-Wl,-z,nodelete");
    if let Some(link) = gdiag_old_glibc::link(Output::Library) {
        link_arg(&format!("-L{}", link.libraries.display()));
        for arg in link.args {
            link_arg(&arg);
        }
    }
}

/// For the library alone: the programs of its tests are for this machine.
fn link_arg(arg: &str) {
    println!("cargo:rustc-cdylib-link-arg={arg}");
}
