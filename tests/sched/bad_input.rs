//! What `gdiag sched -i` says of a file that is no good: one line, one hint, the right exit status.

use std::fs;
use std::path::{Path, PathBuf};

use super::{gdiag, text};

/// A recording of this repository.
fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engine.data")
}

const VIEWS: [&[&str]; 4] = [&[], &["--json"], &["--timehist"], &["--map"]];

fn sched(input: &Path, view: &[&str]) -> std::process::Output {
    gdiag(&[&["sched", "-i", input.to_str().unwrap()], view].concat())
}

fn assert_refused(input: &Path, line: &str, hint: &str) {
    for view in VIEWS {
        let output = sched(input, view);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{view:?}: {stderr}");
        assert_eq!(text(&output.stdout), "", "{view:?}");
        let lines: Vec<&str> = stderr.lines().collect();
        let [first, second] = lines.as_slice() else {
            panic!("{view:?}: {stderr}");
        };
        assert!(
            first.starts_with("gdiag: ") && first.contains(line),
            "{view:?}: {stderr}"
        );
        assert!(
            second.starts_with("hint: ") && second.contains(hint),
            "{view:?}: {stderr}"
        );
    }
}

#[test]
fn what_is_no_recording() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    assert_refused(
        &dir.path().join("none"),
        "No such file or directory",
        "`gdiag record`",
    );
    assert_refused(&file("empty", b""), "is empty", "record again");
    assert_refused(
        &file("text", b"milk, bread\n"),
        "is not a gdiag recording",
        "`gdiag record` wrote",
    );
    assert_refused(
        &file("perf", b"PERFILE2and so on"),
        "it is a perf.data file",
        "`gdiag record` wrote",
    );
    assert_refused(dir.path(), "it is a directory", "`gdiag record` wrote");
}

#[test]
fn a_recording_of_a_newer_gdiag() {
    let mut bytes = fs::read(recording()).unwrap();
    // The header: 8 bytes of magic, the version, and in the end the checksum of what is before.
    bytes[8..10].copy_from_slice(&9u16.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..20]);
    bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("newer.data");
    fs::write(&path, bytes).unwrap();
    assert_refused(&path, "9", "gdiag");
}

#[test]
fn a_recording_that_was_cut_is_told_as_far_as_it_goes() {
    let bytes = fs::read(recording()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.data");
    let mut told = 0;
    for part in 1..16 {
        fs::write(&path, &bytes[..bytes.len() * part / 16]).unwrap();
        for view in VIEWS {
            let output = sched(&path, view);
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            let what = format!("{part}/16 {view:?}: {stderr}");
            assert_eq!(output.status.code(), Some(1), "{what}");
            assert!(!stderr.contains("panicked"), "{what}");
            if stdout.is_empty() {
                assert!(stderr.contains("\nhint: "), "{what}");
            } else {
                told += 1;
                assert!(stderr.starts_with("gdiag: warning: "), "{what}");
            }
        }
    }
    assert!(told > 0, "nothing was told of any part");
}

#[test]
fn a_recording_without_a_switch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.data");
    let meta = gdiag::store::meta::Meta::default();
    let writer = gdiag::store::Writer::create(&path, &meta).unwrap();
    writer
        .finish(&gdiag::store::meta::Summary::default())
        .unwrap();
    assert_refused(&path, "this recording has no switches", "gdiag record -a");
}

#[test]
fn a_thread_or_cpu_that_is_not_in_it() {
    let path = recording();
    for ask in [&["-t", "1"] as &[&str], &["-C", "1000"]] {
        let output = sched(&path, ask);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains("has no thread that"),
            "{output:?}"
        );
    }
}

/// Check that `gdiag sched | head` ends quietly.
#[test]
fn a_reader_that_went_away() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    for view in VIEWS {
        let mut gdiag = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["sched", "-i"])
            .arg(recording())
            .args(view)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(gdiag.stdout.take());
        let mut stderr = String::new();
        gdiag
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        assert_eq!(gdiag.wait().unwrap().code(), Some(0), "{view:?}");
        assert_eq!(stderr, "", "{view:?}");
    }
}
