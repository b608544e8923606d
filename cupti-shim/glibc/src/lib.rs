//! For build scripts: what the linker must be told so that gdiag, and the library that it puts into
//! other programs, run on machines and in containers whose glibc is much older than the one here. On
//! x86-64 both are linked as if that were glibc 2.17. Elsewhere nothing changes.
//!
//! The linker writes down, for each symbol, the version that it finds in the libraries of this machine.
//! So it is given libraries under the names of glibc's that hold nothing but the symbols of a list, with
//! the versions that they had in 2.17; it meets these before the real ones. A symbol that is not in the
//! list is linked without a version: it works here, and `tests/old_glibc.rs` fails.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What glibc 2.17 has of what is needed.
const SYMBOLS: &str = include_str!("../symbols");
/// What it has not.
const MISSING: &str = include_str!("../missing.c");
/// What a program does before `main`.
const START: &str = include_str!("../start.c");

/// What is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Library,
    Program,
}

/// What the linker must be told.
#[derive(Debug)]
pub struct Link {
    /// To be searched before any other directory.
    pub libraries: PathBuf,
    /// In the compiler's spelling.
    pub args: Vec<String>,
}

/// For the package whose build script calls this; none where its target has no such glibc.
pub fn link(output: Output) -> Option<Link> {
    let target = |name| env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    if [target("ARCH"), target("OS"), target("ENV")] != ["x86_64", "linux", "gnu"] {
        return None;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("glibc");
    fs::create_dir_all(&out).unwrap_or_else(|e| panic!("{}: {e}", out.display()));

    let mut args = libraries(&out);
    args.push(object(&out, "missing", MISSING));
    match output {
        // What a library lacks is left to whoever loads it anyway.
        Output::Library => {}
        Output::Program => {
            args.push("-Wl,--unresolved-symbols=ignore-all".into());
            args.push("-Wl,--wrap=__libc_start_main".into());
            args.push(object(&out, "start", START));
        }
    }
    Some(Link {
        libraries: out,
        args,
    })
}

/// Makes the libraries of the list, and returns those that must be named.
fn libraries(out: &Path) -> Vec<String> {
    let mut args = Vec::new();
    for (soname, versions) in parse(SYMBOLS) {
        let library = out.join(name_for_linking(soname));
        let source = out.join(format!("{soname}.s"));
        let script = out.join(format!("{soname}.map"));
        write(&source, &assembly(&versions));
        write(&script, &version_script(&versions));
        run(compiler()
            .args(["-shared", "-nostdlib"])
            .arg(format!("-Wl,-soname,{soname}"))
            .arg(format!("-Wl,--version-script,{}", script.display()))
            .arg("-o")
            .args([&library, &source]));
        // Nobody says -l for the loader; where it is not needed, it is left out.
        if soname.starts_with("ld-") {
            args.push(library.display().to_string());
        }
    }
    args
}

fn object(out: &Path, name: &str, text: &str) -> String {
    let source = out.join(format!("{name}.c"));
    let object = out.join(format!("{name}.o"));
    write(&source, text);
    // Without -fno-builtin a compiler may take one function for another of a newer glibc.
    run(compiler()
        .args(["-O2", "-fPIC", "-fno-lto", "-fno-builtin"])
        .args(["-ffunction-sections", "-Wall", "-Wextra", "-Werror", "-c"])
        .arg(&source)
        .arg("-o")
        .arg(&object));
    object.display().to_string()
}

/// A name, and for data its size.
type Symbol<'a> = (&'a str, Option<&'a str>);
type Versions<'a> = BTreeMap<&'a str, Vec<Symbol<'a>>>;

/// `LIBRARY VERSION SYMBOL…`, where `SYMBOL:BYTES` is data.
fn parse(text: &str) -> BTreeMap<&str, Versions<'_>> {
    let mut libraries = BTreeMap::<_, Versions>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if let (Some(library), Some(version)) = (words.next(), words.next()) {
            let versions = libraries.entry(library).or_default();
            let symbols = words.map(|word| match word.split_once(':') {
                Some((name, bytes)) => (name, Some(bytes)),
                None => (word, None),
            });
            versions.entry(version).or_default().extend(symbols);
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
    let define = |(name, bytes): &Symbol| {
        match bytes {
        None => format!(".text\n.globl {name}\n.type {name}, @function\n{name}:\n"),
        Some(bytes) => format!(
            ".bss\n.globl {name}\n.type {name}, @object\n.size {name}, {bytes}\n{name}: .zero {bytes}\n"
        ),
    }
    };
    let symbols: String = versions.values().flatten().map(define).collect();
    format!("{symbols}.section .note.GNU-stack, \"\", @progbits\n")
}

fn version_script(versions: &Versions) -> String {
    let node = |(version, symbols): (&&str, &Vec<Symbol>)| {
        let names: Vec<&str> = symbols.iter().map(|(name, _)| *name).collect();
        format!("{version} {{ {}; }};\n", names.join("; "))
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
