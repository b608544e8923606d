//! The programs of tests/programs/stacks, built once and recorded one at a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Held while a program runs: its times are compared.
static TURN: Mutex<()> = Mutex::new(());

#[derive(Debug)]
pub struct Program {
    pub name: String,
    command: Vec<PathBuf>,
}

#[derive(Debug)]
pub struct Run {
    pub recording: PathBuf,
    pub truth: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Program {
    /// `None` where nothing can be recorded.
    pub fn built(name: &str) -> Option<Program> {
        can_record().then(|| Program {
            name: name.to_string(),
            command: vec![built().join(name)],
        })
    }

    /// The system's interpreter, and those that GDIAG_STACKS_PYTHON names.
    pub fn pythons() -> Vec<Program> {
        if !can_record() {
            return Vec::new();
        }
        let more = std::env::var("GDIAG_STACKS_PYTHON").unwrap_or_default();
        let interpreters = ["python3"]
            .into_iter()
            .chain(more.split(':').filter(|p| !p.is_empty()));
        let programs = interpreters.filter_map(|interpreter| {
            let script =
                "import sys; print(sys.executable); print('Python', sys.version.split()[0])";
            let output = Command::new(interpreter)
                .args(["-c", script])
                .output()
                .ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            let (executable, name) = text.trim().split_once('\n')?;
            Some(Program {
                name: name.to_string(),
                command: vec![executable.into(), source().join("chains.py")],
            })
        });
        programs.collect()
    }

    pub fn record(&self) -> Run {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stacks");
        let name = self.name.replace(' ', "-");
        let (recording, truth) = (
            dir.join(format!("{name}.data")),
            dir.join(format!("{name}.truth")),
        );
        let seconds = std::env::var("GDIAG_STACKS_SECONDS").unwrap_or_else(|_| "12".to_string());
        let output = Command::new(env!("CARGO_BIN_EXE_gdiag"))
            .args(["record", "-q", "-F", "499", "-o"])
            .arg(&recording)
            .arg("--")
            .args(&self.command)
            .arg(&truth)
            .arg(seconds)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {output:?}", self.name);
        Run {
            recording,
            truth,
            _turn: turn,
        }
    }
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/stacks")
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stacks");
        let status = Command::new("sh")
            .arg(source().join("build.sh"))
            .arg(&dir)
            .status()
            .unwrap();
        assert!(status.success(), "the programs do not build");
        dir
    })
}

/// Whether this machine can run the test. With GDIAG_REQUIRE=bpf, as in CI, it must.
fn can_record() -> bool {
    let can = nix::unistd::geteuid().is_root() && Path::new("/sys/kernel/btf/vmlinux").exists();
    let required = std::env::var("GDIAG_REQUIRE").is_ok_and(|v| v.split(',').any(|n| n == "bpf"));
    assert!(
        can || !required,
        "GDIAG_REQUIRE=bpf, but this needs root and BTF"
    );
    if !can {
        println!("skipped: needs root and BTF");
    }
    can
}
