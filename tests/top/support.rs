//! A terminal with a shell in it, by tmux, and what can be seen of gdiag from outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;

/// Nothing here takes longer, however busy the machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// What the shell prints when it waits for a command.
const PROMPT: &str = "ready> ";

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn required(need: &str) -> bool {
    std::env::var("GDIAG_REQUIRE").is_ok_and(|list| list.split(',').any(|n| n == need))
}

/// Whether there is a terminal to test with. With GDIAG_REQUIRE=bpf, as in CI, there must be.
pub fn has_tmux() -> bool {
    let tmux = Command::new("tmux").arg("-V").output().is_ok();
    assert!(tmux || !required("bpf"), "needs tmux");
    if !tmux {
        eprintln!("skipped: needs tmux");
    }
    tmux
}

/// Whether processes can be watched, too.
pub fn can_watch() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let bpf = root && Path::new("/sys/kernel/btf/vmlinux").exists();
    assert!(bpf || !required("bpf"), "needs root and BTF");
    if !bpf {
        eprintln!("skipped: needs root and BTF");
    }
    bpf && has_tmux()
}

/// A recording, played to its end at once.
pub fn recording() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engine.data");
    format!("-i {} --speed 1000", path.display())
}

/// The directory of the simulated GPU, if this machine has it. With GDIAG_REQUIRE=simgpu it must.
pub fn simgpu() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let dir = std::env::var_os("GDIAG_SIMGPU").map_or_else(|| target.join("simgpu"), PathBuf::from);
    let is_there = dir.join("gpuload").exists();
    assert!(is_there || !required("simgpu"), "needs `make simgpu`");
    if !is_there {
        eprintln!("skipped: needs the simulated GPU (make simgpu)");
    }
    is_there.then_some(dir)
}

/// A process that does not outlive the test.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Process {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        Process(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Something to watch that needs nothing and does nothing.
    pub fn sleeper() -> Process {
        Process::start(Command::new("sleep").arg("600"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

/// The state of a process, as in `ps`; `None`: it has ended.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    after.trim_start().chars().next().filter(|&c| c != 'Z')
}

/// A tmux server with one window and a shell in it.
#[derive(Debug)]
pub struct Terminal {
    socket: PathBuf,
    pub dir: tempfile::TempDir,
}

impl Terminal {
    pub fn new(columns: u16, rows: u16) -> Terminal {
        Terminal::with(columns, rows, &[])
    }

    /// With these variables. UTF-8 and colors unless they say otherwise.
    pub fn with(columns: u16, rows: u16, environment: &[(&str, &str)]) -> Terminal {
        let dir = tempfile::tempdir().unwrap();
        let rc = dir.path().join("bashrc");
        fs::write(&rc, format!("PS1='{PROMPT}'\nulimit -c 0\n")).unwrap();
        let terminal = Terminal {
            socket: dir.path().join("tmux"),
            dir,
        };
        let mut command = terminal.tmux(&["-u", "new-session", "-d"]);
        command.args(["-x", &columns.to_string(), "-y", &rows.to_string()]);
        for variable in ["NO_COLOR", "COLORTERM", "COLORFGBG", "LC_ALL", "LC_CTYPE"] {
            command.env_remove(variable);
        }
        for (name, value) in [("LANG", "C.UTF-8")].iter().chain(environment) {
            command.args(["-e", &format!("{name}={value}")]);
        }
        command.arg(format!("bash --noprofile --rcfile {} -i", rc.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        terminal.wait_for("the shell", |screen| screen.contains(PROMPT.trim_end()));
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "30", "tmux", "-f", "/dev/null", "-S"]);
        command.arg(&self.socket).args(arguments);
        command
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.tmux(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses keys, by tmux's names for them.
    pub fn keys(&self, keys: &[&str]) {
        self.ask(&[&["send-keys", "--"], keys].concat());
    }

    pub fn type_text(&self, text: &str) {
        self.ask(&["send-keys", "-l", "--", text]);
    }

    /// Pastes text, as with a mouse.
    pub fn paste(&self, text: &str) {
        self.ask(&["set-buffer", "--", text]);
        self.ask(&["paste-buffer", "-p", "-r"]);
    }

    /// Runs a command in the shell, which has to be waiting for one.
    pub fn run(&self, line: &str) {
        self.type_text(line);
        self.keys(&["Enter"]);
    }

    /// `gdiag` with these arguments, as a line for the shell.
    pub fn gdiag(&self, arguments: &str) -> String {
        format!("{} {arguments}", env!("CARGO_BIN_EXE_gdiag"))
    }

    /// What is on the screen.
    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// The same with what colors it.
    pub fn colored(&self) -> String {
        self.ask(&["capture-pane", "-p", "-e"])
    }

    pub fn wait_for(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if condition(&screen) {
                return screen;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "never: {what}; there is:\n{screen}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A variable of tmux.
    pub fn variable(&self, name: &str) -> String {
        let value = self.ask(&["display-message", "-p", &format!("#{{{name}}}")]);
        value.trim_end().to_string()
    }

    /// Sets an option of tmux.
    pub fn set(&self, option: &str, value: &str) {
        self.ask(&["set-option", "-g", option, value]);
    }

    /// A program has the other screen.
    pub fn is_full_screen(&self) -> bool {
        self.variable("alternate_on") == "1"
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.ask(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// Ends the terminal with all that is in it.
    pub fn pull_out(&self) {
        self.ask(&["kill-server"]);
    }

    /// The gdiag that runs here.
    pub fn pid_of_gdiag(&self) -> u32 {
        let shell: u32 = self.variable("pane_pid").parse().unwrap();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        let is_gdiag = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "gdiag\n")
        };
        let mut pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.find(is_gdiag).expect("gdiag runs in this terminal")
    }

    /// Starts `gdiag top` and waits until it has drawn something.
    pub fn start_top(&self, arguments: &str) -> u32 {
        self.run(&self.gdiag(&format!("top {arguments}")));
        self.wait_for_top();
        self.pid_of_gdiag()
    }

    pub fn wait_for_top(&self) {
        wait_until("the other screen", || self.is_full_screen());
        self.wait_for("a frame", |screen| !screen.trim().is_empty());
    }

    /// A recording has been played.
    pub fn wait_for_all_of_it(&self) {
        self.wait_for("all of it", |screen| screen.contains("REPLAY over"));
    }

    /// What this command prints.
    pub fn output(&self, command: &str) -> String {
        let path = self.dir.path().join("output");
        let done = self.dir.path().join("done");
        let _ = fs::remove_file(&done);
        let (to, end) = (path.display(), done.display());
        self.run(&format!("{command} > {to} 2>&1; touch {end}"));
        wait_until(command, || done.exists());
        fs::read_to_string(path).unwrap()
    }

    /// The shell waits for a command, on a screen of its own, with a cursor.
    pub fn wait_for_shell(&self) {
        wait_until("the first screen", || !self.is_full_screen());
        assert_eq!(self.variable("cursor_flag"), "1", "the cursor is shown");
        self.wait_for("the prompt", |screen| {
            screen.trim_end().ends_with(PROMPT.trim_end())
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

/// The exit status, what it wrote to stdout, and to stderr.
pub fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}
