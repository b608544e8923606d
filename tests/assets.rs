//! Check that the manual pages and shell completions are those of the command line.
//!
//! `GDIAG_BLESS=1 cargo test --test assets` writes them anew. Pages come from the clap types,
//! the vocabulary of causes, and what is written by hand in `man/sections`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A helper that fails is a test that fails.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{self, Output, Stdio};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use gdiag::analyse::cause::Cause;
use gdiag::cli::{self, Cli, Pairs};

/// Of the release, in the last line of each page.
const DATE: &str = "2026-11-30";

/// Makes an apostrophe that is one in every output.
const APOSTROPHE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// File names and contents.
type Files = BTreeMap<String, String>;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Without `gdiag help`, which shows what the other pages hold.
fn command_line() -> Command {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

#[test]
fn manual_pages_are_up_to_date() {
    let mut pages = Files::new();
    pages_of(&command_line(), &mut pages);
    for name in [
        "gdiag.1",
        "gdiag-check.1",
        "gdiag-diff.1",
        "gdiag-export.1",
        "gdiag-flame.1",
        "gdiag-record.1",
        "gdiag-report.1",
        "gdiag-sched.1",
        "gdiag-snapshot.1",
        "gdiag-start.1",
        "gdiag-stat.1",
        "gdiag-stop.1",
        "gdiag-syscalls.1",
        "gdiag-top.1",
        "gdiag-shim.1",
        "gdiag-shim-install.1",
    ] {
        assert!(pages.contains_key(name), "{name} in {:?}", pages.keys());
    }
    check(&directory("man"), ".1", &pages);
}

#[test]
fn completions_are_up_to_date() {
    let mut scripts = Files::new();
    for (shell, name) in [
        (Shell::Bash, "gdiag.bash"),
        (Shell::Zsh, "_gdiag"),
        (Shell::Fish, "gdiag.fish"),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "gdiag", &mut script);
        // For fish, clap would have words offered after `help` only where there is no `help` yet.
        let script = String::from_utf8(script).unwrap();
        let script = script.replace(" help\" -f -a", "\" -f -a");
        scripts.insert(name.to_string(), script);
    }
    check(&directory("completions"), "", &scripts);
}

/// The output of a tool, if it is here.
fn tool(program: &str, arguments: &[&str], page: &Path) -> Option<Output> {
    let output = process::Command::new(program)
        .args(arguments)
        .arg(page)
        .env("LC_ALL", "C.UTF-8")
        .env("MANWIDTH", "80")
        .stdin(Stdio::null())
        .output();
    match output {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            println!("skipped: needs {program}");
            None
        }
        output => Some(output.unwrap()),
    }
}

#[test]
fn tools_that_read_manual_pages_have_nothing_to_say() {
    let mut pages = Files::new();
    pages_of(&command_line(), &mut pages);
    let dir = tempfile::tempdir().unwrap();
    for (name, page) in &pages {
        let path = dir.path().join(name);
        fs::write(&path, page).unwrap();
        // Style is that of who writes such pages by hand: short lines.
        if let Some(output) = tool("mandoc", &["-T", "lint", "-W", "warning"], &path) {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{name}");
        }
        // A line of long words that cannot be filled is nobody's fault.
        if let Some(output) = tool("man", &["--warnings", "-E", "UTF-8", "-l"], &path) {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: Vec<&str> = said
                .lines()
                .filter(|line| !line.ends_with("cannot adjust line"))
                .collect();
            assert!(said.is_empty(), "{name}: {said:?}");
            assert!(output.stdout.len() > 500, "{}", path.display());
        }
    }
}

#[test]
fn every_page_has_examples_and_exit_statuses() {
    let mut pages = Files::new();
    pages_of(&command_line(), &mut pages);
    for (name, page) in &pages {
        for section in ["NAME", "SYNOPSIS", "EXAMPLES", "EXIT STATUS", "SEE ALSO"] {
            let heading = format!("\n.SH {section}\n");
            assert_eq!(page.matches(&heading).count(), 1, "{name}: {section}");
        }
        for other in page.split("\\fBgdiag\\-").skip(1) {
            if let Some((other, _)) = other.split_once("\\fR(1)") {
                let other = format!("gdiag-{}.1", other.replace("\\-", "-"));
                assert!(pages.contains_key(&other), "{name}: {other}");
            }
        }
        let statuses = page.split(".SH EXIT STATUS\n").nth(1).unwrap_or_default();
        for status in ["0", "1", "2"] {
            assert!(
                statuses.contains(&format!(".TP\n\\fB{status}\\fR\n")),
                "{name}: {status}"
            );
        }
    }
}

#[test]
fn help_shows_what_the_page_does() {
    fn look(command: &Command) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let help = command.get_after_long_help().unwrap().to_string();
        let words: Vec<&str> = help.split_whitespace().collect();
        let help = words.join(" ");
        let page = page(command, name);
        for section in ["EXAMPLES", "EXIT STATUS"] {
            let after = page.split(&format!(".SH {section}\n")).nth(1).unwrap();
            let text = after.split(".SH ").next().unwrap();
            let rows = text.lines().filter(|line| *line != ".TP");
            for row in rows.filter(|row| !row.starts_with("\\&")) {
                let bold = row
                    .strip_prefix("\\fB")
                    .and_then(|r| r.strip_suffix("\\fR"));
                let plain = bold.unwrap_or(row).replace("\\-", "-").replace("\\e", "\\");
                assert!(help.contains(&plain), "{name} --help: {plain}");
            }
        }
        command.get_subcommands().for_each(look);
    }
    look(&command_line());
}

/// Check that every key of a JSON document is explained in the page of its command.
#[test]
fn every_json_key_is_in_the_manual() {
    for (golden, page, least) in [
        ("report.json", "gdiag-report.1", 50),
        ("report-asserts.json", "gdiag-report.1", 50),
        ("diff.json", "gdiag-diff.1", 40),
    ] {
        let golden = directory("src/present/testdata").join(golden);
        explained(&golden, &directory("man").join(page), least);
    }
}

fn explained(golden: &Path, page: &Path, least: usize) {
    let golden = fs::read_to_string(golden).unwrap();
    let document: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let manual = fs::read_to_string(page).unwrap();
    let manual = manual
        .replace("\\fI", " ")
        .replace("\\fB", " ")
        .replace("\\fR", " ");
    let mut keys = Vec::new();
    keys_of(&document, &mut keys);
    assert!(keys.len() > least);
    for key in keys {
        let documented = manual
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| word == key);
        assert!(documented, "{key}");
    }
}

/// Check that every key and every id of gdiag-check's document is explained in its page.
#[test]
fn every_check_is_in_the_manual() {
    let golden = fs::read_to_string(directory("src/present/testdata/check.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let manual = fs::read_to_string(directory("man/gdiag-check.1")).unwrap();
    let mut names = Vec::new();
    keys_of(&document, &mut names);
    for check in document["checks"].as_array().unwrap() {
        names.push(check["id"].as_str().unwrap().to_string());
    }
    assert!(names.len() > 50);
    for name in names {
        assert!(manual.contains(&format!("\\fB{name}\\fR")), "{name}");
    }
}

fn keys_of(value: &serde_json::Value, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                keys.push(key.clone());
                keys_of(value, keys);
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| keys_of(value, keys)),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => {}
    }
}

/// Compares with the files of `directory` whose names end so, or replaces them.
fn check(directory: &Path, ending: &str, expected: &Files) {
    let found: Files = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && path.to_str().unwrap().ends_with(ending))
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_string(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect();
    if std::env::var_os("GDIAG_BLESS").is_some() {
        for name in found.keys() {
            fs::remove_file(directory.join(name)).unwrap();
        }
        for (name, text) in expected {
            fs::write(directory.join(name), text).unwrap();
        }
        return;
    }
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(expected), "in {}", directory.display());
    for (name, text) in expected {
        assert!(
            found[name] == *text,
            "{name} is out of date: GDIAG_BLESS=1 cargo test --test assets"
        );
    }
}

fn pages_of(command: &Command, pages: &mut Files) {
    let name = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_string();
    pages.insert(format!("{name}.1"), page(command, &name));
    for subcommand in command.get_subcommands() {
        pages_of(subcommand, pages);
    }
}

fn page(command: &Command, name: &str) -> String {
    let man = clap_mangen::Man::new(command.clone());
    let mut sections = Vec::new();
    man.render_name_section(&mut sections).unwrap();
    man.render_synopsis_section(&mut sections).unwrap();
    man.render_description_section(&mut sections).unwrap();
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut sections).unwrap();
    }
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut sections).unwrap();
    }
    // Each section comes with the preamble of a whole page, and with lines that do nothing.
    let sections = String::from_utf8(sections).unwrap();
    let sections = sections
        .replace(APOSTROPHE, "")
        .replace(".br\n\n.br\n", ".sp\n")
        .replace(" \n", "\n");
    let mut page = format!(
        "{APOSTROPHE}.TH {} 1 {DATE} \"gdiag {}\" \"gdiag manual\"\n{sections}",
        roff(&name.to_uppercase()),
        env!("CARGO_PKG_VERSION")
    );

    let (examples, statuses): (Pairs, &[Pairs]) = match name {
        "gdiag" => (cli::EXAMPLES, &[cli::ALL_EXIT_STATUS]),
        "gdiag-record" => (
            cli::RECORD_EXAMPLES,
            &[cli::EXIT_STATUS, cli::RECORD_EXIT_STATUS],
        ),
        "gdiag-report" => (cli::REPORT_EXAMPLES, &[cli::REPORT_EXIT_STATUS]),
        "gdiag-diff" => (cli::DIFF_EXAMPLES, &[cli::DIFF_EXIT_STATUS]),
        "gdiag-flame" => (cli::FLAME_EXAMPLES, &[cli::FLAME_EXIT_STATUS]),
        "gdiag-sched" => (
            cli::SCHED_EXAMPLES,
            &[cli::EXIT_STATUS, cli::LIVE_EXIT_STATUS],
        ),
        "gdiag-syscalls" => (
            cli::SYSCALLS_EXAMPLES,
            &[cli::EXIT_STATUS, cli::LIVE_EXIT_STATUS],
        ),
        "gdiag-top" => (
            cli::TOP_EXAMPLES,
            &[cli::EXIT_STATUS, cli::LIVE_EXIT_STATUS],
        ),
        "gdiag-export" => (cli::EXPORT_EXAMPLES, &[cli::EXPORT_EXIT_STATUS]),
        "gdiag-start" => (
            cli::START_EXAMPLES,
            &[cli::EXIT_STATUS, cli::START_EXIT_STATUS],
        ),
        "gdiag-snapshot" => (
            cli::SNAPSHOT_EXAMPLES,
            &[cli::EXIT_STATUS, cli::FLIGHT_EXIT_STATUS],
        ),
        "gdiag-stat" => (
            cli::STAT_EXAMPLES,
            &[cli::EXIT_STATUS, cli::FLIGHT_EXIT_STATUS],
        ),
        "gdiag-stop" => (
            cli::STOP_EXAMPLES,
            &[cli::EXIT_STATUS, cli::FLIGHT_EXIT_STATUS],
        ),
        "gdiag-shim" | "gdiag-shim-install" => (cli::SHIM_EXAMPLES, &[cli::EXIT_STATUS]),
        "gdiag-check" => (
            cli::CHECK_EXAMPLES,
            &[cli::EXIT_STATUS, cli::CHECK_EXIT_STATUS],
        ),
        _ => (&[], &[]),
    };
    if name == "gdiag-report" {
        page.push_str(".SH CAUSES\nThe ids are public and do not change.\n");
        for &cause in Cause::ALL {
            page.push_str(&format!(
                ".TP\n\\fB{}\\fR\nThe GPU waited for {}.",
                roff(cause.id()),
                roff(cause.waited_for())
            ));
            if !cause.fix().is_empty() {
                page.push_str(&format!("\nRemedy: {}.", roff(cause.fix())));
            }
            page.push('\n');
        }
    }
    definitions(&mut page, "EXAMPLES", &[examples]);
    definitions(&mut page, "EXIT STATUS", statuses);
    let by_hand = directory("man/sections").join(format!("{name}.roff"));
    page.push_str(
        &fs::read_to_string(&by_hand).unwrap_or_else(|e| panic!("{}: {e}", by_hand.display())),
    );
    page
}

fn definitions(page: &mut String, title: &str, tables: &[Pairs]) {
    let mut rows = tables.iter().copied().flatten().peekable();
    if rows.peek().is_none() {
        return;
    }
    page.push_str(&format!(".SH {}\n", roff(title)));
    for (term, meaning) in rows {
        page.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", roff(term), roff(meaning)));
    }
}

/// Plain text for roff: hyphens that can be copied, and nothing that reads as a request.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        format!("\\&{text}")
    } else {
        text
    }
}
