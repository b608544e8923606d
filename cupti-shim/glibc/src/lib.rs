//! For build scripts: what the linker must be told so that gdiag, and the library that it puts into
//! other programs, run on machines and in containers whose glibc is much older than the one here. On
//! x86-64 both are linked as if that were glibc 2.17. Elsewhere nothing changes.
//!
//! The linker writes down, for each symbol, the version that it finds in the libraries of this machine.
//! So it is given libraries under the names of glibc's that hold nothing but the symbols of a list, with
//! the versions that they had in 2.17; it meets these before the real ones. What the real ones have beyond
//! the list is in there as well, as it is here: whatever calls it works on this machine, and
//! `tests/old_glibc.rs` fails.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
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
            // Other libraries may need what only glibc itself may use.
            args.push("-Wl,--allow-shlib-undefined".into());
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
    let list = parse(SYMBOLS);
    let known: BTreeSet<&str> = list
        .libraries
        .values()
        .flat_map(BTreeMap::values)
        .flatten()
        .map(|symbol| symbol.name.as_str())
        .chain(list.unversioned.iter().copied())
        .collect();
    for (soname, versions) in &list.libraries {
        let mut versions = versions.clone();
        for (version, symbol) in symbols_here(soname) {
            if !known.contains(symbol.name.as_str()) {
                versions.entry(version).or_default().push(symbol);
            }
        }
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

/// What the library of that name has on this machine, each symbol under the version that is linked to by
/// default. None where that cannot be found out: then the list must do.
fn symbols_here(soname: &str) -> Vec<(String, Symbol)> {
    let path = compiler()
        .arg(format!("-print-file-name={soname}"))
        .output();
    let Ok(path) = path else { return Vec::new() };
    let path = String::from_utf8_lossy(&path.stdout).trim().to_owned();
    let table = Command::new("nm")
        .args(["-D", "-S", "--defined-only", &path])
        .output();
    let Ok(table) = table else { return Vec::new() };
    String::from_utf8_lossy(&table.stdout)
        .lines()
        .filter_map(symbol_here)
        .collect()
}

/// `ADDRESS SIZE TYPE NAME@@VERSION`
fn symbol_here(line: &str) -> Option<(String, Symbol)> {
    let [_, size, kind, name] = line
        .split_whitespace()
        .collect::<Vec<_>>()
        .try_into()
        .ok()?;
    let (name, version) = name.split_once("@@")?;
    let bytes = match kind {
        "T" | "W" | "i" => None,
        "B" | "D" | "R" | "V" => Some(u64::from_str_radix(size, 16).ok()?),
        _ => return None,
    };
    (version != "GLIBC_PRIVATE").then(|| {
        let name = name.to_owned();
        (version.to_owned(), Symbol { name, bytes })
    })
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

#[derive(Debug, Clone)]
struct Symbol {
    name: String,
    /// Of data.
    bytes: Option<u64>,
}

type Versions = BTreeMap<String, Vec<Symbol>>;

#[derive(Debug, Default)]
struct List<'a> {
    libraries: BTreeMap<&'a str, Versions>,
    unversioned: Vec<&'a str>,
}

/// `LIBRARY VERSION SYMBOL…`, where `SYMBOL:BYTES` is data, and `unversioned SYMBOL…`.
fn parse(text: &str) -> List<'_> {
    let mut list = List::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some("unversioned") => list.unversioned.extend(words),
            Some(library) => {
                let version = words.next().unwrap_or_else(|| panic!("{line}: no version"));
                let versions = list.libraries.entry(library).or_default();
                let symbols = words.map(|word| match word.split_once(':') {
                    Some((name, bytes)) => Symbol {
                        name: name.to_owned(),
                        bytes: Some(bytes.parse().unwrap_or_else(|e| panic!("{word}: {e}"))),
                    },
                    None => Symbol {
                        name: word.to_owned(),
                        bytes: None,
                    },
                });
                versions
                    .entry(version.to_owned())
                    .or_default()
                    .extend(symbols);
            }
        }
    }
    list
}

/// `libc.so.6` is `-lc`, which the linker looks for as `libc.so`.
fn name_for_linking(soname: &str) -> &str {
    match soname.rsplit_once(".so.") {
        Some((stem, _)) if !soname.starts_with("ld-") => &soname[..stem.len() + ".so".len()],
        _ => soname,
    }
}

fn assembly(versions: &Versions) -> String {
    let define = |Symbol { name, bytes }: &Symbol| {
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
    let node = |(version, symbols): (&String, &Vec<Symbol>)| {
        let names: Vec<&str> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_each_symbol_once() {
        let list = parse(SYMBOLS);
        let names = list.libraries.values().flat_map(BTreeMap::values).flatten();
        let names = names.map(|symbol| symbol.name.as_str());
        let mut seen = BTreeSet::new();
        for name in names.chain(list.unversioned) {
            assert!(seen.insert(name), "{name}");
        }
    }

    #[test]
    fn of_what_is_here_only_what_programs_are_linked_to_counts() {
        let found = |line| symbol_here(line).map(|(version, s)| (version, s.name, s.bytes));
        let function = Some(("GLIBC_2.25".into(), "getentropy".into(), None));
        assert_eq!(
            found("0000000000045d20 00000000000000a3 T getentropy@@GLIBC_2.25"),
            function
        );
        let data = Some(("GLIBC_2.2.5".into(), "environ".into(), Some(8)));
        assert_eq!(
            found("00000000001e0ec8 0000000000000008 V environ@@GLIBC_2.2.5"),
            data
        );
        for line in [
            "0000000000090000 00000000000000a3 T pthread_create@GLIBC_2.2.5",
            "0000000000090000 00000000000000a3 T __libc_fork@@GLIBC_PRIVATE",
            "0000000000000000 A GLIBC_2.25",
            "",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn libraries_are_found_by_the_names_that_programs_ask_for() {
        assert_eq!(name_for_linking("libc.so.6"), "libc.so");
        assert_eq!(
            name_for_linking("ld-linux-x86-64.so.2"),
            "ld-linux-x86-64.so.2"
        );
    }
}
