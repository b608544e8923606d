//! Check what `make install` leaves where, and that `make uninstall` finds it again. Nothing is built here: it
//! installs the gdiag of these tests.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn make(target: &str, root: &Path, gdiag: &str, prefix: &str) -> Output {
    Command::new("make")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("MAKEFLAGS")
        .arg(target)
        .arg(format!("DESTDIR={}", root.display()))
        .arg(format!("GDIAG={gdiag}"))
        .arg(format!("PREFIX={prefix}"))
        .output()
        .unwrap()
}

fn succeeds(target: &str, root: &Path, prefix: &str) {
    let output = make(target, root, env!("CARGO_BIN_EXE_gdiag"), prefix);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "make {target}: {stderr}");
}

/// Files, by their paths in the root, with their permissions.
fn files(root: &Path) -> BTreeSet<(String, u32)> {
    let mut found = BTreeSet::new();
    let mut directories = vec![PathBuf::from(root)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                directories.push(entry.path());
            } else {
                let path = entry.path();
                let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                found.insert((format!("/{name}"), metadata.permissions().mode() & 0o7777));
            }
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn expected(bin: &str, share: &str, fish: &str) -> BTreeSet<(String, u32)> {
    let mut expected = BTreeSet::from([
        (format!("{bin}/gdiag"), 0o755),
        (format!("{share}/bash-completion/completions/gdiag"), 0o644),
        (format!("{share}/zsh/site-functions/_gdiag"), 0o644),
        (format!("{fish}/gdiag.fish"), 0o644),
    ]);
    for page in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/man")).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".1") {
            expected.insert((format!("{share}/man/man1/{name}"), 0o644));
        }
    }
    expected
}

#[test]
fn what_is_installed_is_removed_again_and_is_where_shells_and_man_look() {
    for (prefix, fish) in [
        ("/usr/local", "/etc/fish/completions"),
        ("/opt/gdiag", "/opt/gdiag/share/fish/vendor_completions.d"),
        (
            "/opt/it's a place",
            "/opt/it's a place/share/fish/vendor_completions.d",
        ),
    ] {
        let root = tempfile::tempdir().unwrap();
        succeeds("install", root.path(), prefix);
        let share = format!("{prefix}/share");
        assert_eq!(
            files(root.path()),
            expected(&format!("{prefix}/bin"), &share, fish)
        );

        let installed = root.path().join(&prefix[1..]).join("bin/gdiag");
        let version = Command::new(installed).arg("--version").output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&version.stdout).trim_end(),
            concat!("gdiag ", env!("CARGO_PKG_VERSION"))
        );

        let others = root.path().join(&share[1..]).join("man/man1/other.1");
        fs::write(&others, "").unwrap();
        succeeds("uninstall", root.path(), prefix);
        let left: Vec<String> = files(root.path())
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert_eq!(left, [format!("{share}/man/man1/other.1")]);
    }
}

/// A name with a space is one name: what the first word of it names belongs to somebody else.
#[test]
fn nothing_is_touched_beside_a_root_with_a_space_in_its_name() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("vic"), "").unwrap();
    let root = dir.path().join("vic im");
    fs::create_dir(&root).unwrap();
    succeeds("install", &root, "/usr/local");
    assert!(root.join("usr/local/bin/gdiag").is_file());
    succeeds("uninstall", &root, "/usr/local");
    assert_eq!(
        files(dir.path()),
        BTreeSet::from([("/vic".to_string(), mode(&dir.path().join("vic")))])
    );
}

#[test]
fn a_relative_prefix_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for (target, prefix) in [
        ("install", "relative"),
        ("uninstall", "relative"),
        ("install", ""),
    ] {
        let output = make(target, root.path(), env!("CARGO_BIN_EXE_gdiag"), prefix);
        assert!(!output.status.success());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.starts_with("PREFIX must begin with /\n"), "{stderr}");
        assert_eq!(files(root.path()), BTreeSet::new());
    }
}

/// Usually run by root, whose files a user's tree must not get.
#[test]
fn installing_builds_nothing() {
    let root = tempfile::tempdir().unwrap();
    let output = make("install", root.path(), "/nonexistent/gdiag", "/usr/local");
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("run make first"), "{stderr}");
    assert_eq!(files(root.path()), BTreeSet::new());
}
