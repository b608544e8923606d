fn main() {
    // The shim looks for the library by this name.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcupti.so.13");
    println!("cargo:rerun-if-changed=build.rs");
}
