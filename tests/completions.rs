//! The completions, in the shells that they are for: on a terminal, where somebody types and presses Tab.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stderr)] // A helper that fails is a test that fails.

#[allow(dead_code)] // It is for more than this.
#[path = "top/support.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::Terminal;

/// What is typed before Tab, and what the shell must offer. None of it is in what was typed.
const TYPED: &[(&str, &[&str])] = &[
    ("gdiag re", &["record", "report"]),
    ("gdiag report --", &["--json", "--min-gap", "--gaps"]),
    ("gdiag flame --mode ", &["idle", "mixed", "offcpu"]),
    ("gdiag help s", &["sched", "syscalls", "snapshot"]),
];

/// Where the completions of this checkout are.
fn completions(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("completions");
    path.join(file).display().to_string()
}

/// Whether the shell is here; as in CI, it must be with GDIAG_REQUIRE=shells.
fn has(shell: &str) -> bool {
    let is_here = Command::new(shell).arg("--version").output().is_ok();
    let required = std::env::var("GDIAG_REQUIRE").unwrap_or_default();
    assert!(
        is_here || !required.split(',').any(|need| need == "shells"),
        "needs {shell}"
    );
    if !is_here {
        eprintln!("skipped: needs {shell}");
    }
    is_here && support::has_tmux()
}

/// Types in a shell that `start` starts, with the prompt `complete> `, and looks at what it offers.
fn offers(terminal: &Terminal, start: &str) {
    terminal.run(&format!("clear; exec {start}"));
    let is_empty = |screen: &str| screen.trim() == "complete>";
    terminal.wait_for("the prompt", is_empty);
    for (typed, expected) in TYPED {
        terminal.type_text(typed);
        terminal.keys(&["Tab", "Tab"]);
        terminal.wait_for(typed, |screen| {
            expected.iter().all(|word| screen.contains(word))
        });
        terminal.keys(&["C-c"]);
        terminal.wait_for("a new line", |screen| {
            screen.trim_end().ends_with("complete>")
        });
        terminal.run("clear");
        terminal.wait_for("an empty screen", is_empty);
    }
}

#[test]
fn bash_completes() {
    if !has("bash") {
        return;
    }
    let terminal = Terminal::new(120, 40);
    let rc = terminal.dir.path().join("completing");
    let text = format!(
        "PS1='complete> '\nbind 'set enable-bracketed-paste off'\nsource {}\n",
        completions("gdiag.bash")
    );
    fs::write(&rc, text).unwrap();
    let start = format!("bash --noprofile --rcfile {} -i", rc.display());
    offers(&terminal, &start);
}

#[test]
fn zsh_completes() {
    if !has("zsh") {
        return;
    }
    let terminal = Terminal::new(120, 40);
    let dir = terminal.dir.path().display().to_string();
    // As in a user's own .zshrc. The insecure directories that compinit asks about are those of this checkout.
    let text = format!(
        "fpath=({} $fpath)\nautoload -Uz compinit\ncompinit -u -d {dir}/dump\nPS1='complete> '\n",
        completions("").trim_end_matches('/')
    );
    fs::write(terminal.dir.path().join(".zshrc"), text).unwrap();
    offers(&terminal, &format!("env ZDOTDIR={dir} zsh -d -i"));
}

#[test]
fn fish_completes() {
    if !has("fish") {
        return;
    }
    let terminal = Terminal::new(120, 40);
    let dir = terminal.dir.path().display().to_string();
    let start = format!(
        "env HOME={dir} fish --no-config -C 'function fish_prompt; echo -n \"complete> \"; end' -C 'source {}'",
        completions("gdiag.fish")
    );
    offers(&terminal, &start);
}
