//! Check that gdiag runs on an old glibc, and that the shim loads into programs there: by what they say
//! that they need, which holds for any machine that they may go to. `tests/old_glibc.sh` tries it on one.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::fs;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, Sym};
use object::{LittleEndian, SymbolIndex};

const ENDIAN: LittleEndian = LittleEndian;

/// CentOS 7 has this one, and what the manylinux2014 wheels of CUDA programs need.
const OLDEST_GLIBC: [u32; 3] = [2, 17, 0];
/// Comes with the compiler of that system, 4.8.
const OLDEST_GCC: [u32; 3] = [4, 8, 0];

#[derive(Debug, PartialEq, Eq)]
struct Undefined {
    name: String,
    weak: bool,
    version: Option<String>,
}

#[derive(Debug, Default)]
struct Needs {
    needed: Vec<String>,
    /// Library and version.
    versions: Vec<(String, String)>,
    undefined: Vec<Undefined>,
    exported: Vec<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const SHIM: &str = env!("GDIAG_SHIM_SO");
const GDIAG: &str = env!("CARGO_BIN_EXE_gdiag");

fn read(path: &str) -> Needs {
    let data = &*fs::read(path).unwrap();
    let header = FileHeader64::<LittleEndian>::parse(data).unwrap();
    let sections = header.sections(ENDIAN, data).unwrap();
    let symbols = sections.symbols(ENDIAN, data, elf::SHT_DYNSYM).unwrap();
    let strings = symbols.strings();
    let mut needs = Needs::default();

    let (dynamic, _) = sections.dynamic(ENDIAN, data).unwrap().unwrap();
    for entry in dynamic.iter().filter(|d| d.tag(ENDIAN) == elf::DT_NEEDED) {
        needs
            .needed
            .push(text(entry.string(ENDIAN, strings).unwrap()));
    }

    let (mut libraries, _) = sections.gnu_verneed(ENDIAN, data).unwrap().unwrap();
    while let Some((library, mut versions)) = libraries.next().unwrap() {
        let library = text(library.file(ENDIAN, strings).unwrap());
        while let Some(version) = versions.next().unwrap() {
            let version = text(version.name(ENDIAN, strings).unwrap());
            needs.versions.push((library.clone(), version));
        }
    }

    let table = sections.versions(ENDIAN, data).unwrap().unwrap();
    for (i, symbol) in symbols.iter().enumerate().skip(1) {
        let name = text(symbol.name(ENDIAN, strings).unwrap());
        if symbol.is_undefined(ENDIAN) {
            let index = table.version_index(ENDIAN, SymbolIndex(i));
            let version = table.version(index.into()).unwrap();
            needs.undefined.push(Undefined {
                name,
                weak: symbol.st_bind() == elf::STB_WEAK,
                version: version.map(|version| text(version.name())),
            });
        } else {
            needs.exported.push(name);
        }
    }
    needs
}

/// `[2, 3, 4]` for `GLIBC_2.3.4`; none for the likes of `GLIBC_PRIVATE`.
fn release(version: &str) -> Option<[u32; 3]> {
    let (_, numbers) = version.split_once('_')?;
    let mut release = [0; 3];
    for (i, number) in numbers.split('.').enumerate() {
        *release.get_mut(i)? = number.parse().ok()?;
    }
    Some(release)
}

#[test]
fn releases_are_compared_by_number() {
    assert_eq!(release("GLIBC_2.3.4"), Some([2, 3, 4]));
    assert!(release("GLIBC_2.4") < release("GLIBC_2.17"));
    assert_eq!(release("GLIBC_PRIVATE"), None);
    assert_eq!(release("GLIBC_ABI_DT_RELR"), None);
}

#[test]
fn no_version_is_newer_than_the_oldest_glibc() {
    for path in [SHIM, GDIAG] {
        let needs = read(path);
        assert!(needs.versions.len() > 5, "{path}: {:?}", needs.versions);
        for (library, version) in needs.versions {
            let oldest = match &*library {
                "libgcc_s.so.1" => OLDEST_GCC,
                // Without the feature `static`: for this machine only.
                "libelf.so.1" | "libz.so.1" => continue,
                _ => OLDEST_GLIBC,
            };
            let had = release(&version).is_some_and(|release| release <= oldest);
            assert!(had, "{path}: {version} of {library}");
        }
    }
}

/// One without a version has never been seen by the linker: see `cupti-shim/glibc/symbols`.
#[test]
fn what_they_cannot_do_without_has_a_version() {
    for path in [SHIM, GDIAG] {
        let needs = read(path);
        assert!(needs.undefined.iter().any(|symbol| symbol.name == "dlopen"));
        if path == GDIAG && cfg!(not(feature = "static")) {
            continue; // zlib's have none.
        }
        for symbol in needs.undefined {
            assert!(
                symbol.weak || symbol.version.is_some(),
                "{path}: {symbol:?}"
            );
        }
    }
}

/// A version that a library lacks keeps them from being loaded even if the symbol is weak.
#[test]
fn what_newer_releases_have_is_looked_for_without_a_version() {
    for path in [SHIM, GDIAG] {
        let needs = read(path);
        let weak = needs
            .undefined
            .iter()
            .find(|symbol| symbol.name == "__cxa_thread_atexit_impl");
        let weak = weak.expect("of 2.18, and Rust's standard library uses it where it is");
        assert_eq!((weak.weak, &weak.version), (true, &None), "{path}");
    }
}

#[test]
fn only_libraries_that_every_machine_can_have_are_needed() {
    let expected = [
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libgcc_s.so.1",
        "libpthread.so.0",
    ];
    for path in [SHIM, GDIAG] {
        let mut needed = read(path).needed;
        // Of glibc, as the others.
        needed.retain(|library| path == SHIM || library != "libm.so.6");
        if cfg!(not(feature = "static")) {
            needed.retain(|library| library != "libelf.so.1" && library != "libz.so.1");
        }
        needed.sort_unstable();
        assert_eq!(needed, expected, "{path}");
    }
}

/// Anything else could be found by the program in place of what it means.
#[test]
fn only_the_entry_of_the_shim_is_exported() {
    assert_eq!(read(SHIM).exported, ["InitializeInjection"]);
}
