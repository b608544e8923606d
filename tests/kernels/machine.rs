//! A virtual machine with another kernel: what boots in it, and what comes out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// It takes a minute or two where nobody else needs the CPU. A hang is a failure of its own.
const LIMIT: Duration = Duration::from_secs(900);

/// On a busy machine the emulated timer is too late for the kernel's test of it, and the TSC looks unstable to
/// older ones: reading the clock would be a system call.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable";

/// What the shim needs of the C library, where these are files of their own.
const LIBRARIES: [&str; 4] = ["libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Kernels stay there, and what the last run of each has left.
fn place(name: &str) -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tmp.parent().unwrap().join("kernels").join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn simgpu() -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent().unwrap().join("simgpu")
}

fn gdiag() -> PathBuf {
    let gdiag = std::env::var_os("GDIAG").map(PathBuf::from);
    gdiag.unwrap_or_else(|| env!("CARGO_BIN_EXE_gdiag").into())
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}\n{said}", output.status))
}

/// What this machine lacks to boot others, in words.
pub fn missing() -> Option<String> {
    for tool in ["qemu-system-x86_64", "setpriv", "busybox", "strip"] {
        let found = Command::new("which").arg(tool).output();
        if !found.is_ok_and(|o| o.status.success()) {
            return Some(format!("needs {tool} (tests/setup.sh kernels)"));
        }
    }
    let applets = run(Command::new("busybox").arg("--list")).unwrap_or_default();
    if !applets.lines().any(|applet| applet == "cpio") {
        return Some("needs a busybox with cpio".to_string());
    }
    let load = simgpu().join("gpuload");
    (!load.exists()).then(|| format!("{} is missing (make simgpu)", load.display()))
}

/// The kernel of a suite of Debian, fetched unless it is there; or the file with that name.
pub fn kernel(name: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        let file = PathBuf::from(name);
        return if file.is_file() {
            Ok(file)
        } else {
            Err(format!("there is no {name}"))
        };
    }
    let dir = place(name);
    let file = dir.join("vmlinuz");
    if !file.exists() {
        let fetch = root().join("tests/kernels/fetch.sh");
        run(Command::new(fetch).arg(name).arg(&dir))?;
    }
    Ok(file)
}

/// What a step came to.
#[derive(Debug)]
pub struct Step {
    pub status: i32,
    pub ms: u64,
    pub out: String,
    pub err: String,
}

/// What a machine has done, by step, and what it said on its console.
#[derive(Debug)]
pub struct Done {
    pub steps: BTreeMap<String, Step>,
    pub console: String,
    pub took: Duration,
}

/// Does not outlive the test.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots the kernel with gdiag and all that the steps need, and waits until it has ended.
pub fn boot(name: &str, kernel: &Path) -> Result<Done, String> {
    let dir = place(&name.replace('/', "_"));
    let initrd = dir.join("initrd");
    pack(&dir.join("root"), &initrd)?;
    let (console, results) = (dir.join("console"), dir.join("results.tar"));
    for file in [&console, &results] {
        let _ = fs::remove_file(file);
    }
    let serial = |file: &Path| format!("file:{}", file.display());
    // Software emulation is the same everywhere. CPUs with threads of their own would be faster, but now and then
    // one runs code as it was before the kernel changed it, or loses its timer (QEMU 7.2).
    let accel = "tcg,thread=single";
    let begun = Instant::now();
    // Ends with the thread that waits for it, however that ends.
    let qemu = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-accel", accel, "-cpu", "max", "-smp", "2", "-m", "1024"])
        .args(["-display", "none", "-monitor", "none"])
        .args(["-serial", &serial(&console), "-serial", &serial(&results)])
        .args(["-append", COMMAND_LINE])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&initrd)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(dir.join("qemu")).unwrap())
        .spawn()
        .map_err(|e| format!("qemu: {e}"))?;
    let mut qemu = Machine(qemu);
    let mut ended = None;
    while ended.is_none() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(50));
        ended = qemu.0.try_wait().unwrap();
    }
    drop(qemu);
    let took = begun.elapsed();
    let console = String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()).into_owned();
    let steps = steps(&dir, &results)?;
    if ended.is_none_or(|status| !status.success()) || !steps.contains_key("end") {
        let said = fs::read_to_string(dir.join("qemu")).unwrap_or_default();
        let how = ended.map_or("did not end".to_string(), |status| format!("{status}"));
        return Err(format!(
            "{name}: the machine {how} after {took:.0?}: {said}\n{console}"
        ));
    }
    Ok(Done {
        steps,
        console,
        took,
    })
}

/// The archive from which the kernel fills its memory.
fn pack(dir: &Path, initrd: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(dir);
    for at in [
        "bin", "lib64", "proc", "sys", "dev", "tmp", "var/tmp", "simgpu",
    ] {
        fs::create_dir_all(dir.join(at)).unwrap();
    }
    let strip = |from: &Path, to: PathBuf| run(Command::new("strip").arg("-o").arg(to).arg(from));
    strip(&gdiag(), dir.join("bin/gdiag"))?;
    for library in ["libcuda.so.1", "libcupti.so.13", "libnvidia-ml.so.1"] {
        strip(&simgpu().join(library), dir.join("simgpu").join(library))?;
    }
    // Its frames are to have names.
    let load = simgpu().join("gpuload");
    fs::copy(&load, dir.join("simgpu/gpuload")).map_err(|e| e.to_string())?;
    let knows = dir.join("bin/knows");
    run(
        Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-O2", "-pthread", "-o"])
            .arg(&knows)
            .arg(root().join("tests/programs/knows/knows.c")),
    )?;
    copy_libraries(&[&gdiag(), &load, &knows], dir)?;
    let busybox = run(Command::new("which").arg("busybox"))?;
    fs::copy(busybox.trim(), dir.join("bin/busybox")).map_err(|e| e.to_string())?;
    symlink("busybox", dir.join("bin/sh")).map_err(|e| e.to_string())?;
    let init = root().join("tests/kernels/init");
    fs::copy(init, dir.join("init")).map_err(|e| e.to_string())?;
    let cpio = Command::new("sh")
        .args(["-ec", "find . | busybox cpio -o -H newc -R 0:0"])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(File::create(initrd).unwrap())
        .stderr(Stdio::null())
        .status();
    let packed = cpio.is_ok_and(|status| status.success());
    packed
        .then_some(())
        .ok_or_else(|| "busybox cpio failed".to_string())
}

/// What the programs are linked with, where they look for it.
fn copy_libraries(programs: &[&Path], dir: &Path) -> Result<(), String> {
    let listed = run(Command::new("ldd").args(programs))?;
    let mut files: Vec<PathBuf> = listed
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
        .map(PathBuf::from)
        .collect();
    let libc = files.iter().find(|file| file.ends_with("libc.so.6"));
    let beside = libc.and_then(|file| file.parent()).map(Path::to_path_buf);
    let beside = beside.ok_or_else(|| format!("no libc.so.6 in {listed}"))?;
    files.extend(LIBRARIES.map(|library| beside.join(library)));
    for file in files.iter().filter(|file| file.exists()) {
        let to = dir.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file, to).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

fn steps(dir: &Path, results: &Path) -> Result<BTreeMap<String, Step>, String> {
    let dir = dir.join("steps");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    // The last one may be cut.
    let _ = run(Command::new("tar")
        .args(["--ignore-zeros", "-xf"])
        .arg(results)
        .arg("-C")
        .arg(&dir));
    let mut steps = BTreeMap::new();
    for entry in fs::read_dir(&dir).unwrap() {
        let at = entry.unwrap().path();
        let read = |name: &str| fs::read(at.join(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        let number = |name: &str| {
            let text = text(name);
            text.trim().parse().map_err(|e| format!("{text:?}: {e}"))
        };
        let step = Step {
            status: number("status")?,
            ms: u64::try_from(number("ms")?).unwrap_or(0),
            out: text("out"),
            err: text("err"),
        };
        let name = at.file_name().unwrap().to_string_lossy().into_owned();
        steps.insert(name, step);
    }
    Ok(steps)
}
