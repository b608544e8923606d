//! What keys bring to the screen.

use std::process::Command;

use crate::support::{can_watch, has_tmux, recording, simgpu, wait_until, Process, Terminal};

/// A key, and what only the screen has that it goes to, at 120 columns.
const TABS: [(&str, &[&str]); 8] = [
    ("1", &["busy", "Causes:", "Dispatch threads"]),
    ("2", &["IDLE %", "TIME %", "WHO: WHAT"]),
    ("3", &["longest gaps", "LENGTH", "OF GAP %"]),
    ("4", &["Threads:", "BLOCKED ON", "RUNQ MAX"]),
    ("5", &["System calls", "CALLS/S", "P99"]),
    ("6", &["Kernels:", "COUNT/S", "KERNEL"]),
    ("7", &["CPUs, ", "SWITCH/S", "WHO RAN"]),
    ("8", &["PROCESS", "CUDA", "NOTE"]),
];

/// What is below the header, which is the same everywhere.
fn body(screen: &str) -> String {
    let lines = screen.lines().skip_while(|line| !line.starts_with('1'));
    lines.skip(1).collect::<Vec<_>>().join("\n")
}

fn shows(screen: &str, words: &[&str]) -> bool {
    let body = body(screen);
    words.iter().all(|word| body.contains(word))
}

fn quit(terminal: &Terminal) {
    terminal.keys(&["q"]);
    terminal.wait_for_shell();
}

#[test]
fn each_screen_is_a_key_away() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(120, 40);
    terminal.start_top(&recording());
    terminal.wait_for_all_of_it();
    for (key, words) in TABS.iter().chain(&TABS[..1]) {
        terminal.keys(&[key]);
        terminal.wait_for(key, |screen| shows(screen, words));
    }
    for (_, words) in TABS[1..].iter().chain(&TABS[..1]) {
        terminal.keys(&["Tab"]);
        terminal.wait_for("the next one", |screen| shows(screen, words));
    }
    terminal.keys(&["BTab"]);
    terminal.wait_for("the one before", |screen| shows(screen, TABS[7].1));
    quit(&terminal);
}

#[test]
fn a_row_opens_and_esc_goes_back() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(120, 40);
    terminal.start_top(&recording());
    terminal.wait_for_all_of_it();
    // Also where Esc comes together with the key after it.
    terminal.keys(&["2"]);
    terminal.wait_for("causes", |screen| shows(screen, TABS[1].1));
    terminal.keys(&["Enter"]);
    terminal.wait_for("a cause", |screen| shows(screen, &["it waited", "fix:"]));
    terminal.keys(&["Escape"]);
    terminal.wait_for("causes", |screen| shows(screen, TABS[1].1));
    terminal.keys(&["3", "Enter"]);
    terminal.wait_for("a gap", |screen| {
        shows(screen, &["gap of", "In order of time"])
    });
    terminal.keys(&["Escape", "4"]);
    terminal.wait_for("threads", |screen| shows(screen, TABS[3].1));
    terminal.keys(&["Enter"]);
    terminal.wait_for("a thread", |screen| !shows(screen, TABS[3].1));
    quit(&terminal);
}

#[test]
fn lists_are_filtered_sorted_and_explained() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(120, 40);
    terminal.start_top(&recording());
    terminal.wait_for_all_of_it();
    terminal.keys(&["7"]);
    terminal.wait_for("CPUs", |screen| shows(screen, TABS[6].1));
    // Keys are letters while a filter is typed, and pasted text is never keys.
    terminal.keys(&["/"]);
    terminal.type_text("q8no such row");
    let screen = terminal.wait_for("a filter", |screen| screen.contains("q8no such row"));
    assert!(shows(&screen, &["WHO RAN"]), "{screen}");
    terminal.keys(&["Escape"]);
    terminal.wait_for("no filter", |screen| !screen.contains("q8no"));
    terminal.paste("q\nq\n");
    terminal.keys(&["s"]);
    terminal.wait_for("an order", |screen| {
        screen.contains('▲') || screen.contains('▼')
    });
    terminal.keys(&["?"]);
    terminal.wait_for("help", |screen| screen.contains("the keys"));
    terminal.keys(&["?"]);
    terminal.wait_for("CPUs", |screen| shows(screen, TABS[6].1));
    quit(&terminal);
}

#[test]
fn what_is_on_the_screen_can_be_held() {
    if !has_tmux() {
        return;
    }
    let terminal = Terminal::new(120, 40);
    terminal.start_top(&recording());
    terminal.wait_for_all_of_it();
    terminal.keys(&["p"]);
    terminal.wait_for("it is held", |screen| screen.contains("PAUSED"));
    terminal.keys(&["p"]);
    terminal.wait_for("it is not", |screen| !screen.contains("PAUSED"));
    quit(&terminal);
}

#[test]
fn a_job_on_the_simulated_gpu_is_seen_from_its_first_seconds() {
    let Some(simgpu) = simgpu().filter(|_| can_watch()) else {
        return;
    };
    let mut job = Process::start(
        Command::new(simgpu.join("gpuload"))
            .env("LD_LIBRARY_PATH", &simgpu)
            .args(["--seconds", "300", "--kernels", "5"]),
    );
    let terminal = Terminal::new(120, 40);
    terminal.start_top(&format!("-w 5s -p {}", job.pid()));
    terminal.wait_for("its GPU and why it is idle", |screen| {
        shows(screen, &["GPU 0", "% busy", "Causes:", "gpuload"]) && screen.contains("LIVE")
    });
    for (key, words) in TABS {
        terminal.keys(&[key]);
        terminal.wait_for(key, |screen| shows(screen, words));
    }
    terminal.keys(&["6"]);
    terminal.wait_for("its kernels", |screen| {
        shows(screen, &["COUNT/S"]) && !body(screen).contains("Kernels: 0")
    });
    let pid = terminal.pid_of_gdiag();
    job.kill();
    terminal.wait_for("the end of the job", |screen| {
        screen.contains("has ended: q quits")
    });
    terminal.keys(&["q"]);
    wait_until("the end", || crate::support::state(pid).is_none());
    terminal.wait_for_shell();
}

#[test]
fn a_launched_command_has_nothing_of_the_terminal() {
    if !can_watch() {
        return;
    }
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str| {
        dir.join(format!("top-{name}-{}", std::process::id()))
            .display()
            .to_string()
    };
    let (streams, errors) = (file("streams"), file("errors"));
    let terminal = Terminal::new(80, 24);
    let own = "/proc/$$/fd";
    terminal.run(&terminal.gdiag(&format!(
        "top -- sh -c 'readlink {own}/0 {own}/1 {own}/2 | cat > {streams}; sleep 2' 2> {errors}"
    )));
    terminal.wait_for("the end of the command", |screen| {
        screen.contains("has ended: q quits")
    });
    terminal.keys(&["q"]);
    terminal.wait_for_shell();
    let told = std::fs::read_to_string(&streams).unwrap();
    for file in [&streams, &errors] {
        std::fs::remove_file(file).unwrap();
    }
    // What was redirected stays so.
    let expected = ["/dev/null", "/dev/null", &errors];
    assert_eq!(told.lines().collect::<Vec<_>>(), expected);
}
