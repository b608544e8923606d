//! However it ends, the terminal is as it was, and the shell can go on.

use std::fs;

use nix::sys::signal::Signal;

use crate::support::{can_watch, has_tmux, recording, send, state, wait_until, Process, Terminal};

/// How the terminal is set up, and what the last command ended with.
fn mode(terminal: &Terminal) -> String {
    terminal.output("stty -a")
}

fn status(terminal: &Terminal) -> String {
    terminal.output("echo $?").trim().to_string()
}

type Way = (&'static str, fn(&Terminal, u32), &'static str);

/// How to end it, and with which status it ends.
const WAYS: [Way; 7] = [
    ("q", |terminal, _| terminal.keys(&["q"]), "0"),
    ("Ctrl-C", |terminal, _| terminal.keys(&["C-c"]), "0"),
    ("TERM", |_, pid| send(pid, Signal::SIGTERM), "0"),
    ("INT", |_, pid| send(pid, Signal::SIGINT), "0"),
    ("HUP", |_, pid| send(pid, Signal::SIGHUP), "0"),
    ("QUIT", |_, pid| send(pid, Signal::SIGQUIT), "131"),
    ("Ctrl-\\", |terminal, _| terminal.keys(&["C-\\"]), "131"),
];

fn is_given_back(arguments: &str) {
    let terminal = Terminal::new(80, 24);
    // Something that is not usual, to be kept.
    terminal.output("stty -ixon erase ^h");
    let before = mode(&terminal);
    assert!(before.contains("-ixon"), "{before}");
    for (name, end, wanted) in WAYS {
        let pid = terminal.start_top(arguments);
        assert_ne!(terminal.variable("cursor_flag"), "1", "{name}");
        end(&terminal, pid);
        wait_until(name, || state(pid).is_none());
        terminal.wait_for_shell();
        assert_eq!(status(&terminal), wanted, "{name}");
        assert_eq!(mode(&terminal), before, "{name}");
    }
}

#[test]
fn the_terminal_is_given_back_by_keys_and_by_signals() {
    if has_tmux() {
        is_given_back(&recording());
    }
}

#[test]
fn the_terminal_is_given_back_while_something_is_watched() {
    if can_watch() {
        let target = Process::sleeper();
        is_given_back(&format!("-p {}", target.pid()));
    }
}

#[test]
fn a_signal_that_comes_twice_does_not_leave_the_terminal_behind() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    let terminal = Terminal::new(80, 24);
    let before = mode(&terminal);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let pid = terminal.start_top(&format!("-p {}", target.pid()));
        for _ in 0..2 {
            send(pid, signal);
        }
        wait_until("the end", || state(pid).is_none());
        terminal.wait_for_shell();
        assert_eq!(mode(&terminal), before);
    }
}

#[test]
fn the_message_of_a_panic_is_on_the_screen_of_the_shell() {
    if !has_tmux() || !cfg!(debug_assertions) {
        return;
    }
    let terminal = Terminal::new(100, 40);
    let before = mode(&terminal);
    for thread in ["screen", "other"] {
        let command = terminal.gdiag(&format!("top {}", recording()));
        terminal.run(&format!("clear; GDIAG_TEST_PANIC={thread} {command}"));
        terminal.wait_for("the message", |screen| {
            screen.contains("panicked at") && screen.contains("as the test asked")
        });
        terminal.wait_for_shell();
        assert_ne!(status(&terminal), "0");
        assert_eq!(mode(&terminal), before);
    }
}

#[test]
fn it_can_be_suspended_and_comes_back() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(80, 24);
    let before = mode(&terminal);
    let pid = terminal.start_top(&recording());
    for way in ["Ctrl-Z", "TSTP"] {
        match way {
            "TSTP" => send(pid, Signal::SIGTSTP),
            _ => terminal.keys(&["C-z"]),
        }
        wait_until("it stops", || state(pid) == Some('T'));
        terminal.wait_for_shell();
        assert_eq!(mode(&terminal), before, "{way}");
        // In the background it leaves the terminal alone.
        terminal.output("bg");
        wait_until("it goes on", || state(pid) != Some('T'));
        assert_eq!(mode(&terminal), before, "{way}");
        assert!(!terminal.is_full_screen());
        terminal.run("fg");
        terminal.wait_for_top();
    }
    // Nobody can prepare for this one.
    send(pid, Signal::SIGSTOP);
    wait_until("it stops", || state(pid) == Some('T'));
    terminal.run("fg");
    wait_until("it goes on", || state(pid) != Some('T'));
    terminal.wait_for_top();
    terminal.keys(&["q"]);
    terminal.wait_for_shell();
    assert_eq!(mode(&terminal), before);
}

#[test]
fn one_that_is_stopped_ends_when_it_is_told_to() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    let terminal = Terminal::new(80, 24);
    let before = mode(&terminal);
    let pid = terminal.start_top(&format!("-p {}", target.pid()));
    terminal.keys(&["C-z"]);
    wait_until("it stops", || state(pid) == Some('T'));
    terminal.wait_for_shell();
    terminal.output("kill %1");
    wait_until("the end", || state(pid).is_none());
    assert!(!terminal.is_full_screen());
    assert_eq!(mode(&terminal), before);
}

fn has_thread(pid: u32, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    tasks.is_ok_and(|tasks| {
        let comm = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
        tasks
            .flatten()
            .any(|task| comm(task).is_ok_and(|comm| comm.trim_end() == name))
    })
}

#[test]
fn in_the_background_it_waits_for_the_terminal() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(80, 24);
    let command = terminal.gdiag(&format!("top {}", recording()));
    let before = mode(&terminal);
    terminal.run(&format!("{command} &"));
    wait_until("it would draw", || {
        let running = terminal.output("jobs -p");
        running
            .trim()
            .parse()
            .is_ok_and(|pid| has_thread(pid, "gdiag-output"))
    });
    assert_eq!(mode(&terminal), before);
    assert!(!terminal.is_full_screen());
    terminal.run("fg");
    terminal.wait_for_top();
    terminal.keys(&["q"]);
    terminal.wait_for_shell();
}

#[test]
fn without_its_terminal_it_ends() {
    if !has_tmux() {
        return;
    }
    // Without HUP there is nothing but the terminal to tell it.
    for ignored in ["USR1", "HUP"] {
        let terminal = Terminal::new(80, 24);
        let command = terminal.gdiag(&format!("top {}", recording()));
        terminal.run(&format!("(trap '' {ignored}; exec {command})"));
        terminal.wait_for_top();
        let pid = terminal.pid_of_gdiag();
        terminal.pull_out();
        wait_until("the end", || state(pid).is_none());
    }
}

#[test]
fn what_its_target_did_last_stays_until_somebody_leaves() {
    if !can_watch() {
        return;
    }
    let mut target = Process::sleeper();
    let terminal = Terminal::new(80, 24);
    let before = mode(&terminal);
    let pid = terminal.start_top(&format!("-p {}", target.pid()));
    target.kill();
    terminal.wait_for("the end of the target", |screen| {
        screen.contains("has ended: q quits")
    });
    assert!(state(pid).is_some());
    terminal.keys(&["q"]);
    wait_until("the end", || state(pid).is_none());
    terminal.wait_for_shell();
    assert_eq!(status(&terminal), "0");
    assert_eq!(mode(&terminal), before);
    // A signal ends it as well.
    let mut target = Process::sleeper();
    let pid = terminal.start_top(&format!("-p {}", target.pid()));
    target.kill();
    terminal.wait_for("the end of the target", |screen| {
        screen.contains("has ended: q quits")
    });
    send(pid, Signal::SIGTERM);
    wait_until("the end", || state(pid).is_none());
    terminal.wait_for_shell();
    assert_eq!(mode(&terminal), before);
}

#[test]
fn a_terminal_that_takes_nothing_holds_up_neither_signals_nor_the_end() {
    if !can_watch() {
        return;
    }
    let target = Process::sleeper();
    // A terminal that nobody reads, with room for a few frames.
    let pty = nix::pty::openpty(None, None).unwrap();
    let slave = fs::File::from(pty.slave);
    let mut gdiag = std::process::Command::new(env!("CARGO_BIN_EXE_gdiag"))
        .args(["top", "-I", "100ms", "-p", &target.pid().to_string()])
        .env("TERM", "xterm")
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = gdiag.id();
    let is_taken = || {
        let mode = nix::sys::termios::tcgetattr(&slave).unwrap();
        !mode
            .local_flags
            .contains(nix::sys::termios::LocalFlags::ICANON)
    };
    wait_until("the terminal is taken", is_taken);
    // As Ctrl-S has it.
    nix::sys::termios::tcflow(&slave, nix::sys::termios::FlowArg::TCOOFF).unwrap();
    send(pid, Signal::SIGTERM);
    wait_until("the end", || gdiag.try_wait().unwrap().is_some());
    assert!(!is_taken());
}
