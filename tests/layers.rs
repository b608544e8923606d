//! Data moves one way, so modules know only those before them. The order is written down in `src/lib.rs`, and read from there.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Who uses a module that comes later, and why that is right. Each must still be needed.
const EXCEPTIONS: &[(&str, &str)] = &[
    // Has the last word on every error, and an error of the store brings its own hint.
    ("error", "store"),
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The names in backquotes of a line of the crate's documentation.
fn listed(library: &str, line: &str) -> Vec<String> {
    let start = format!("//! - {line}: ");
    let found = library.lines().find_map(|l| l.strip_prefix(&start));
    let names = found.unwrap_or_else(|| panic!("src/lib.rs has no line '{start}…'"));
    names
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_string)
        .collect()
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        // Tests may look at all that comes of something.
        if path.is_dir() && name != "tests" {
            files(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Without comments, and without the items that are only there in tests.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() != "#[cfg(test)]" {
            code.push_str(line.split("//").next().unwrap_or_default());
            code.push('\n');
            continue;
        }
        // To the end of the item: its first line, or the brace below that.
        let end = line.replace("#[cfg(test)]", "}");
        let first = lines
            .by_ref()
            .find(|line| !line.trim_start().starts_with('#'));
        if first.is_some_and(|line| !line.ends_with([';', '}'])) {
            lines.by_ref().find(|line| *line == end);
        }
    }
    code
}

/// The modules of this crate that are named.
fn used(code: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = code.match_indices("crate::").filter_map(|(at, _)| {
        let rest = &code[at + "crate::".len()..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        (!code[..at].ends_with(is_part)).then(|| rest[..end].to_string())
    });
    names.collect()
}

/// What each module of the crate uses of the others, with the file that does.
fn uses(modules: &[String]) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for module in modules {
        let mut paths = Vec::new();
        let directory = source().join(module);
        if directory.is_dir() {
            files(&directory, &mut paths);
        } else {
            paths.push(source().join(format!("{module}.rs")));
        }
        assert!(!paths.is_empty(), "{module}");
        for path in paths {
            let file = path.strip_prefix(source()).unwrap();
            for other in used(&code(&fs::read_to_string(&path).unwrap())) {
                assert!(
                    modules.contains(&other),
                    "src/{}: name the module, one in each `use`: 'crate::{other}'",
                    file.display()
                );
                if other != *module {
                    found.push((module.clone(), other, file.display().to_string()));
                }
            }
        }
    }
    found
}

#[test]
fn modules_use_only_those_before_them() {
    let library = fs::read_to_string(source().join("lib.rs")).unwrap();
    let (row, beside) = (listed(&library, "row"), listed(&library, "beside"));
    let mut modules: Vec<String> = library
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .map(str::to_string)
        .collect();
    let mut known = [row.clone(), beside.clone()].concat();
    known.sort();
    modules.sort();
    assert_eq!(
        known, modules,
        "src/lib.rs: each module belongs into one of the two lines"
    );
    let place = |name: &String| row.iter().position(|module| module == name);
    let mut exceptions: BTreeSet<(&str, &str)> = EXCEPTIONS.iter().copied().collect();
    let mut wrong = Vec::new();
    let uses = uses(&modules);
    for (module, other, file) in &uses {
        let is_fine = match (place(module), place(other)) {
            (Some(user), Some(used)) => used < user,
            (_, None) => true,
            (None, Some(_)) => false,
        };
        if !is_fine && !EXCEPTIONS.contains(&(module, other)) {
            wrong.push(format!("src/{file} uses {other}"));
        }
        if !is_fine {
            exceptions.remove(&(module.as_str(), other.as_str()));
        }
    }
    assert!(uses.len() > 100, "{}", uses.len());
    assert!(
        wrong.is_empty(),
        "against the order in src/lib.rs:\n{}",
        wrong.join("\n")
    );
    assert!(exceptions.is_empty(), "no longer needed: {exceptions:?}");
    let of_store = |(module, other, _): &&(String, String, String)| {
        module == "store" && place(other).is_some()
    };
    assert_eq!(
        uses.iter().find(of_store),
        None,
        "any machine can read a recording"
    );
}

#[test]
fn what_is_only_in_tests_and_comments_does_not_count() {
    let text = "\
use crate::a;
// crate::b
#[cfg(test)]
use crate::c;
fn f() { crate::d::g(\"mycrate::foo\") }
#[cfg(test)]
mod tests;
#[cfg(test)]
#[allow(unused)]
mod more {
    use super::*;
    use crate::e;
    mod deep {
    }
}
impl F {
    #[cfg(test)]
    fn f() {
        crate::g::h();
    }
    type G = crate::i::J;
}
";
    let names: Vec<String> = used(&code(text)).into_iter().collect();
    assert_eq!(names, ["a", "d", "i"]);
}
