//! Sizes, colors, letters: what a terminal may be.

use std::process::{Command, Stdio};

use crate::support::{can_watch, has_tmux, recording, said, state, wait_until, Process, Terminal};

fn gdiag(arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=5", "60", env!("CARGO_BIN_EXE_gdiag")])
        .args(arguments)
        .stdin(Stdio::null());
    command
}

#[test]
fn a_terminal_on_which_nothing_can_be_drawn_is_told_in_a_line() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(80, 24);
    for (set, told) in [("TERM=dumb", "(TERM=dumb)"), ("TERM=", "(TERM is not set)")] {
        let command = terminal.gdiag("top -a");
        terminal.run(&format!("clear; {set} {command}; echo status=$?"));
        // The one before may be there still.
        let screen = terminal.wait_for("the end", |screen| {
            screen.contains("status=1") && screen.contains(told)
        });
        assert!(screen.contains("--batch"), "{screen}");
        assert!(!terminal.is_full_screen());
    }
}

#[test]
fn without_a_terminal_it_prints_text() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    let pid = target.pid().to_string();
    let output = gdiag(&["top", "-w", "1s", "-d", "2s", "-p", &pid])
        .output()
        .unwrap();
    let (code, text, errors) = said(&output);
    assert_eq!(code, Some(0), "{errors}");
    assert!(!text.is_empty() && !text.contains('\x1b'), "{text}");
}

#[test]
fn keys_are_read_where_stdin_is_something_else() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(80, 24);
    // A pipe into which nothing is written.
    let pipe = terminal.dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for stdin in ["< /dev/null", &format!("<> {}", pipe.display())] {
        let pid = terminal.start_top(&format!("{} {stdin}", recording()));
        terminal.keys(&["q"]);
        wait_until("the end", || state(pid).is_none());
        terminal.wait_for_shell();
    }
}

#[test]
fn any_size_will_do_and_so_will_many_of_them() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(80, 24);
    let pid = terminal.start_top(&recording());
    terminal.wait_for_all_of_it();
    for (columns, rows) in [(20, 5), (40, 12), (300, 100), (1, 1), (80, 24)] {
        terminal.resize(columns, rows);
        terminal.wait_for("a frame of this size", |screen| {
            let lines: Vec<&str> = screen.lines().collect();
            let (first, second) = (lines.first(), lines.get(1));
            let width = first.map_or(0, |line| line.chars().count());
            match columns {
                1 => true,
                20 => second.is_some_and(|line| line.starts_with("GPU 0")),
                // What stands at the right end of the first line.
                _ => {
                    width == usize::from(columns)
                        && first.is_some_and(|line| line.ends_with("REPLAY over"))
                }
            }
        });
        assert!(state(pid).is_some());
    }
    for step in 0..60 {
        terminal.resize(20 + step * 3, 5 + step);
    }
    terminal.resize(100, 30);
    terminal.keys(&["?"]);
    terminal.wait_for("help", |screen| screen.contains("the keys"));
    terminal.keys(&["Escape"]);
    terminal.wait_for("no help", |screen| {
        !screen.contains("the keys") && !screen.trim().is_empty()
    });
    terminal.keys(&["q"]);
    terminal.wait_for_shell();
}

/// Sequences that set a color, beside those for bold, dim, underlined and reversed.
fn colors(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for part in text.split("\x1b[").skip(1) {
        let Some((numbers, _)) = part.split_once('m') else {
            continue;
        };
        if numbers
            .split(';')
            .any(|number| number.len() > 1 && number != "39" && number != "49")
        {
            found.push(numbers);
        }
    }
    found
}

#[test]
fn there_are_colors_unless_they_are_not_wanted() {
    if !has_tmux() {
        return;
    }
    for (environment, wanted) in [(&[][..], true), (&[("NO_COLOR", "1")], false)] {
        let terminal = Terminal::with(100, 30, environment);
        terminal.start_top(&recording());
        terminal.wait_for_all_of_it();
        let text = terminal.colored();
        assert_eq!(!colors(&text).is_empty(), wanted, "{text:?}");
        terminal.keys(&["q"]);
        terminal.wait_for_shell();
    }
}

#[test]
fn colors_are_chosen_for_the_background_that_the_terminal_tells() {
    if !has_tmux() {
        return;
    }
    let shown_on = |background: Option<&str>, other_than: &[String]| {
        let terminal = Terminal::new(100, 30);
        if let Some(background) = background {
            terminal.set("window-style", &format!("bg={background}"));
        }
        terminal.start_top(&recording());
        terminal.wait_for_all_of_it();
        let mut found = String::new();
        wait_until("other colors", || {
            found = colors(&terminal.colored()).join(" ");
            !other_than.contains(&found)
        });
        found
    };
    let unknown = shown_on(None, &[]);
    let dark = shown_on(Some("#000000"), std::slice::from_ref(&unknown));
    shown_on(Some("#ffffff"), &[unknown, dark]);
}

#[test]
fn without_utf_8_there_is_ascii_only() {
    if !has_tmux() {
        return;
    }
    for (environment, arguments, ascii) in [
        (&[("LANG", "C")][..], "", true),
        (&[("LANG", "C.UTF-8"), ("LC_ALL", "POSIX")], "", true),
        (&[], "--ascii", true),
        (&[], "", false),
    ] {
        let terminal = Terminal::with(100, 30, environment);
        terminal.start_top(&format!("{arguments} {}", recording()));
        terminal.wait_for_all_of_it();
        let screen = terminal.screen();
        assert_eq!(
            screen.is_ascii(),
            ascii,
            "{environment:?} {arguments}:\n{screen}"
        );
        terminal.keys(&["q"]);
        terminal.wait_for_shell();
    }
}

#[test]
fn a_name_cannot_control_the_terminal() {
    if !can_watch() {
        return;
    }
    let terminal = Terminal::new(100, 30);
    let title = terminal.variable("pane_title");
    let path = terminal.dir.path().join("\x1b]0;owned\x07網🦀");
    std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
    let target = Process::start(Command::new(&path).arg("600"));
    terminal.start_top(&format!("-p {}", target.pid()));
    for key in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        terminal.keys(&[key]);
        terminal.wait_for("a screen", |screen| !screen.trim().is_empty());
    }
    terminal.wait_for("the name, harmless", |screen| screen.contains("owned"));
    assert_eq!(terminal.variable("pane_title"), title);
    terminal.keys(&["q"]);
    terminal.wait_for_shell();
}
