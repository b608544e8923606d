//! The shim's thread and its exit handler outlive any `dlclose`, so the library may not be unmapped.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
