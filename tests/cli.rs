//! The command line as a script sees it: exit status, and what goes to stdout and stderr.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)] // A helper that fails is a test that fails.

use std::process::{Command, Output, Stdio};

fn gdiag(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn wrong_usage_is_status_2_on_stderr() {
    for arguments in [
        &["record"] as &[&str],
        &["record", "-d", "soon", "--", "true"],
        &["report", "--gaps", "x"],
        &["nonsense"],
    ] {
        let output = gdiag(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "");
        assert!(
            stderr(&output).starts_with("error: "),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn help_and_version_are_results() {
    for arguments in [
        &["-V"] as &[&str],
        &["--help"],
        &["record", "--help"],
        &["report", "-h"],
    ] {
        let output = gdiag(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(stderr(&output), "");
        assert!(!stdout(&output).is_empty());
    }
}

#[test]
fn help_with_a_command_is_that_of_the_command() {
    for command in [&["record"] as &[&str], &["top"], &["shim", "install"]] {
        let by_name = gdiag(&[&["help"], command].concat());
        assert_eq!(by_name.status.code(), Some(0), "{command:?}");
        let by_option = gdiag(&[command, &["--help"]].concat());
        assert_eq!(stdout(&by_name), stdout(&by_option));
    }
    assert_eq!(gdiag(&["help", "nothing"]).status.code(), Some(2));
}

#[test]
fn a_failure_is_one_line_and_a_hint() {
    let output = gdiag(&["report", "-i", "/nonexistent/gdiag.data"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "");
    let stderr = stderr(&output);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(
        lines[0].starts_with("gdiag: cannot open recording '/nonexistent/gdiag.data': "),
        "{stderr}"
    );
    assert!(lines[1].starts_with("hint: record one"), "{stderr}");
}

#[test]
fn a_file_that_is_no_recording_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes.txt");
    std::fs::write(&file, "milk, bread\n").unwrap();
    let output = gdiag(&["report", "-i", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("is not a gdiag recording"),
        "{}",
        stderr(&output)
    );
}
