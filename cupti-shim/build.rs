//! How the shim is linked. Its thread and its exit handler outlive any `dlclose`, so it may not be
//! unmapped. And it goes into programs of other machines and containers, whose glibc may be much
//! older than the one here, so on x86-64 it is linked as if that were glibc 2.17.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What glibc 2.17 has of what the shim needs.
const SYMBOLS: &str = "glibc/symbols";
/// What it has not.
const MISSING: &str = "glibc/stat.c";

fn main() {
    for path in ["build.rs", SYMBOLS, MISSING] {
        println!("cargo:rerun-if-changed={path}");
    }
    link_arg("-Wl,-z,nodelete");
    let target = |name| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if (target("ARCH"), target("OS"), target("ENV"))
        == ("x86_64".into(), "linux".into(), "gnu".into())
    {
        link_to_old_glibc(&PathBuf::from(
            env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"),
        ));
    }
}

/// For the library alone: the programs of its tests are for this machine.
fn link_arg(arg: &str) {
    println!("cargo:rustc-cdylib-link-arg={arg}");
}

/// Libraries under the names of glibc's that hold nothing but the symbols of the list, with the
/// versions that are in the list. The linker meets them before the real ones, and writes down the
/// versions that it sees.
fn link_to_old_glibc(out: &Path) {
    let text = fs::read_to_string(SYMBOLS).unwrap_or_else(|e| panic!("{SYMBOLS}: {e}"));
    for (soname, versions) in parse(&text) {
        let stub = out.join(name_for_linking(soname));
        let source = out.join(format!("{soname}.s"));
        let script = out.join(format!("{soname}.map"));
        write(&source, &assembly(&versions));
        write(&script, &version_script(&versions));
        run(compiler()
            .args(["-shared", "-nostdlib"])
            .arg(format!("-Wl,-soname,{soname}"))
            .arg(format!("-Wl,--version-script,{}", script.display()))
            .arg("-o")
            .args([&stub, &source]));
        // Nobody says -l for the loader; where it is not needed, it is left out.
        if soname.starts_with("ld-") {
            link_arg(&stub.display().to_string());
        }
    }
    link_arg(&format!("-L{}", out.display()));

    let object = out.join("stat.o");
    run(compiler()
        .args([
            "-O2", "-fPIC", "-fno-lto", "-Wall", "-Wextra", "-Werror", "-c", MISSING, "-o",
        ])
        .arg(&object));
    link_arg(&object.display().to_string());
}

/// `LIBRARY VERSION SYMBOL…`
type Versions<'a> = BTreeMap<&'a str, Vec<&'a str>>;

fn parse(text: &str) -> BTreeMap<&str, Versions<'_>> {
    let mut libraries = BTreeMap::<_, Versions>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if let (Some(library), Some(version)) = (words.next(), words.next()) {
            let versions = libraries.entry(library).or_default();
            versions.entry(version).or_default().extend(words);
        }
    }
    libraries
}

/// `libc.so.6` is `-lc`, which the linker looks for as `libc.so`.
fn name_for_linking(soname: &str) -> &str {
    match soname.rsplit_once(".so.") {
        Some((stem, _)) if !soname.starts_with("ld-") => &soname[..stem.len() + ".so".len()],
        _ => soname,
    }
}

fn assembly(versions: &Versions) -> String {
    let define = |symbol: &&str| format!(".globl {symbol}\n.type {symbol}, @function\n{symbol}:\n");
    let symbols: String = versions.values().flatten().map(define).collect();
    format!("{symbols}.section .note.GNU-stack, \"\", @progbits\n")
}

fn version_script(versions: &Versions) -> String {
    let node = |(version, symbols): (&&str, &Vec<&str>)| {
        format!("{version} {{ {}; }};\n", symbols.join("; "))
    };
    versions.iter().map(node).collect()
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The C compiler for the target.
fn compiler() -> Command {
    cc::Build::new().get_compiler().to_command()
}

fn run(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?} ended with {status}");
}
