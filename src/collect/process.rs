//! What /proc says about processes.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{statfs, PROC_SUPER_MAGIC};
use procfs::process::{Process, Status};
use procfs::FromRead as _;

use crate::error::Error;

/// Read of a command line at most.
const MOST_BYTES: u64 = 16 << 10;

/// Read of an environment at most: the kernel lets it have a quarter of the stack, 6 MiB at most.
const MOST_ENVIRONMENT: u64 = 6 << 20;

/// `0,2-3` → 0, 2, 3. `None` for anything else.
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => {
                let cpu: u32 = part.parse().ok()?;
                (cpu, cpu)
            }
        };
        if last < first || last - first > 65_536 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The CPUs that are there and switched on.
pub fn online_cpus() -> Vec<u32> {
    fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .and_then(|list| parse_cpu_list(list.trim()))
        .unwrap_or_default()
}

/// The PID namespace that every kernel starts with has this inode.
const INIT_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Flag of a thread that the kernel made for itself.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Whether this process counts pids as the kernel does: it is not in a container.
pub fn in_first_namespace() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == INIT_PID_NAMESPACE)
}

/// Whose pids /proc shows: those of the PID namespace of whoever mounted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proc {
    #[default]
    Ours,
    Foreign,
    NotMounted,
}

impl Proc {
    pub fn look() -> Proc {
        let own = std::process::id().to_string();
        if fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own)) {
            return Proc::Ours;
        }
        match statfs("/proc") {
            Ok(there) if there.filesystem_type() == PROC_SUPER_MAGIC => Proc::Foreign,
            Ok(_) | Err(_) => Proc::NotMounted,
        }
    }

    /// Why it is no use.
    pub fn error(self) -> Option<Error> {
        match self {
            Proc::Ours => None,
            Proc::Foreign => Some(Error::ForeignProc),
            Proc::NotMounted => Some(Error::NoProc),
        }
    }
}

/// What a number may stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Process,
    ThreadOf(u32),
    /// By its name.
    KernelThread(String),
    /// It has ended, and its parent has not asked how.
    Ended,
    /// /proc does not show it, but it is there.
    Hidden,
    Nothing,
}

pub fn kind(pid: u32) -> Kind {
    let number = i32::try_from(pid).unwrap_or(i32::MAX);
    let look = || {
        let process = Process::new(number).ok()?;
        Some((process.stat().ok()?, status(pid)?.tgid))
    };
    let Some((stat, tgid)) = look() else {
        let asked = nix::sys::signal::kill(nix::unistd::Pid::from_raw(number), None);
        return match asked {
            Ok(()) | Err(nix::errno::Errno::EPERM) => Kind::Hidden,
            Err(_) => Kind::Nothing,
        };
    };
    match u32::try_from(tgid) {
        Ok(tgid) if tgid != pid => Kind::ThreadOf(tgid),
        _ if stat.flags & PF_KTHREAD != 0 => Kind::KernelThread(stat.comm),
        // Other threads may outlive the first one.
        _ if matches!(stat.state, 'Z' | 'X') && stat.num_threads <= 1 => Kind::Ended,
        _ => Kind::Process,
    }
}

/// Whether `pid`, as /proc shows it, is a process and not merely a thread of one.
pub fn is_process(pid: u32) -> bool {
    status(pid).is_some_and(|status| u32::try_from(status.tgid) == Ok(pid))
}

/// Names can be cut within a character, and be no text at all: what else is in the file is still true.
pub fn status(pid: u32) -> Option<Status> {
    status_in(&format!("/proc/{pid}/status"))
}

/// That of this process, whatever number /proc has for it.
pub fn own_status() -> Option<Status> {
    status_in("/proc/self/status")
}

fn status_in(path: &str) -> Option<Status> {
    let text = fs::read(path).ok()?;
    Status::from_read(String::from_utf8_lossy(&text).as_bytes()).ok()
}

/// Whether this process was started with `signal` ignored, as nohup does.
pub fn ignores(signal: u32) -> bool {
    let status = Process::myself().and_then(|own| own.status());
    let bit = signal.checked_sub(1).and_then(|n| 1u64.checked_shl(n));
    matches!((status, bit), (Ok(status), Some(bit)) if status.sigign & bit != 0)
}

/// The process that a thread id belongs to.
pub fn process_of_thread(tid: u32) -> Option<u32> {
    let status = status(tid)?;
    u32::try_from(status.tgid).ok()
}

/// Processes that call themselves `ns_pid` inside a PID namespace below ours.
pub fn known_inside_as(ns_pid: u32) -> Vec<u32> {
    let Ok(all) = procfs::process::all_processes() else {
        return Vec::new();
    };
    let inner = i32::try_from(ns_pid).ok();
    all.flatten()
        .filter_map(|p| {
            let ids = status(u32::try_from(p.pid).ok()?)?.nspid?;
            (ids.len() > 1 && ids.last().copied() == inner).then(|| u32::try_from(p.pid()).ok())?
        })
        .collect()
}

/// `roots` and all processes that descend from them, as they are now.
pub fn with_descendants(roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in all() {
        if let Some(parent) = parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut todo = roots.to_vec();
    while let Some(pid) = todo.pop() {
        if seen.insert(pid) {
            found.push(pid);
            todo.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

/// What a process is. Empty strings for what could not be read: it may have gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    pub cmdline: String,
    pub exe: String,
    pub cgroup: String,
}

pub fn describe(pid: u32) -> Description {
    let dir = Path::new("/proc").join(pid.to_string());
    let cmdline = read_some(&dir.join("cmdline"), MOST_BYTES);
    let cmdline: Vec<_> = cmdline
        .split(|&b| b == 0)
        .filter(|arg| !arg.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let exe = fs::read_link(dir.join("exe"))
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default();
    let cgroup = read_some(&dir.join("cgroup"), MOST_BYTES);
    let cgroup = String::from_utf8_lossy(&cgroup);
    Description {
        cmdline: cmdline.join(" "),
        exe,
        cgroup: cpu_cgroup(&cgroup).unwrap_or_default().to_string(),
    }
}

/// Whether a variable of the environment that a process began with ends in `end`.
pub fn environment_has(pid: u32, name: &str, end: &str) -> bool {
    let path = Path::new("/proc").join(pid.to_string()).join("environ");
    let environment = read_some(&path, MOST_ENVIRONMENT);
    environment.split(|&b| b == 0).any(|variable| {
        variable
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
            .is_some_and(|value| value.ends_with(end.as_bytes()))
    })
}

/// A variable of the environment that a process began with; `None` also where that cannot be read.
pub fn environment(pid: u32, name: &str) -> Option<OsString> {
    let path = Path::new("/proc").join(pid.to_string()).join("environ");
    let environment = read_some(&path, MOST_ENVIRONMENT);
    let mut variables = environment.split(|&b| b == 0);
    let value = variables.find_map(|variable| {
        let rest = variable.strip_prefix(name.as_bytes())?;
        rest.strip_prefix(b"=")
    })?;
    Some(OsString::from_vec(value.to_vec()))
}

/// What a process calls itself now; `None` when it is gone.
pub fn comm(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.strip_suffix('\n').unwrap_or(&text).to_string())
}

/// The beginning of a file. A command line can have any length.
fn read_some(path: &Path, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        // What could be read before an error is worth keeping.
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    bytes
}

/// The cgroup that limits the CPU: of the v1 cpu controller where there is one, else of v2.
fn cpu_cgroup(text: &str) -> Option<&str> {
    let mut unified = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if controllers.split(',').any(|c| c == "cpu") {
            return Some(path);
        }
        if id == "0" {
            unified = Some(path);
        }
    }
    unified
}

/// What descriptor `fd` of a thread is: a path, `socket:[…]`, `pipe:[…]`. Empty when unknown.
pub fn open_file(tid: u32, fd: u64) -> String {
    fs::read_link(format!("/proc/{tid}/fd/{fd}"))
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The same, if it still is the file with this inode. The file itself is not looked at, as that of a
/// server that does not answer would take for ever.
pub fn descriptor(tid: u32, fd: u64, inode: u64) -> Option<String> {
    let is_it = || {
        let info = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}"));
        // Before Linux 5.14 it is not told.
        info.is_ok_and(|info| parse_inode(&info).is_none_or(|now| now == inode))
    };
    if !is_it() {
        return None;
    }
    // By then the number may have been given to another file.
    Some(open_file(tid, fd)).filter(|path| !path.is_empty() && is_it())
}

fn parse_inode(info: &str) -> Option<u64> {
    let number = info.lines().find_map(|line| line.strip_prefix("ino:"))?;
    number.trim().parse().ok()
}

/// The numbers of the first `most` open files of a thread, each with its inode.
pub fn open_files(tid: u32, most: usize) -> Vec<(u32, u64)> {
    let Ok(fds) = fs::read_dir(format!("/proc/{tid}/fdinfo")) else {
        return Vec::new();
    };
    fds.take(most)
        .filter_map(|fd| {
            let fd = fd.ok()?;
            let info = fs::read_to_string(fd.path()).ok()?;
            Some((fd.file_name().to_str()?.parse().ok()?, parse_inode(&info)?))
        })
        .collect()
}

/// The number in `socket:[…]`.
pub fn socket_number(path: &str) -> Option<u32> {
    let number = path.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// The numbers of the sockets that a process has, among its first `most` descriptors.
pub fn sockets(pid: u32, most: usize) -> Vec<u32> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    fds.take(most)
        .filter_map(|fd| socket_number(fs::read_link(fd.ok()?.path()).ok()?.to_str()?))
        .collect()
}

/// All processes that /proc shows.
pub fn all() -> Vec<u32> {
    let Ok(dir) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    dir.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// The parent of a process; of all processes of a machine in few system calls.
pub fn parent(pid: u32) -> Option<u32> {
    // More than all that comes before it: the name has at most 64 bytes.
    let mut stat = [0; 128];
    let mut file = fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let read = file.read(&mut stat).ok()?;
    parse_parent(&stat[..read])
}

/// `pid (name) state parent …`; the name may have anything in it, parentheses too.
fn parse_parent(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// What names the network namespace of a process.
pub fn network_namespace(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// The numbers of what epoll `fd` of a thread watches, `most` at most.
pub fn watched(tid: u32, fd: u64, most: usize) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}"))
        .map(|text| parse_watched(&text).take(most).collect())
        .unwrap_or_default()
}

/// Inodes are hexadecimal. Sockets and pipes have theirs from one counter, so that a number is of one only.
fn parse_watched(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.lines()
        .filter(|line| line.starts_with("tfd:"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let inode = words.find_map(|word| word.strip_prefix("ino:"))?;
            u32::from_str_radix(inode, 16).ok()
        })
}

/// Memory of a thread; fewer bytes when not all of them are there.
pub fn memory(tid: u32, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = fs::File::open(format!("/proc/{tid}/mem"))
        .and_then(|file| file.read_at(&mut bytes, address))
        .unwrap_or(0);
    bytes.truncate(read);
    bytes
}

/// Handler names by interrupt number, from /proc/interrupts.
pub fn interrupts() -> Vec<(u16, String)> {
    fs::read_to_string("/proc/interrupts")
        .map(|text| parse_interrupts(&text))
        .unwrap_or_default()
}

fn parse_interrupts(text: &str) -> Vec<(u16, String)> {
    let mut lines = text.lines();
    let cpus = lines
        .next()
        .map_or(0, |head| head.split_whitespace().count());
    lines
        .filter_map(|line| {
            let (number, rest) = line.trim_start().split_once(':')?;
            let number = number.parse().ok()?;
            // A count for each CPU, then chip, hardware number and trigger, then the handlers.
            let name = rest.split_whitespace().skip(cpus).collect::<Vec<_>>();
            let handlers = name.get(2..).unwrap_or_default().join(" ");
            (!handlers.is_empty()).then_some((number, handlers))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_numbers_and_ranges() {
        assert_eq!(parse_cpu_list("0"), Some(vec![0]));
        assert_eq!(parse_cpu_list("0,2-4"), Some(vec![0, 2, 3, 4]));
        for bad in ["", "a", "1-", "-1", "3-2", "0,,1", "0-99999999"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_whose_name_is_no_text_is_one_all_the_same() {
        use std::os::unix::ffi::OsStrExt as _;

        let dir = tempfile::tempdir().unwrap();
        let path = dir
            .path()
            .join(std::ffi::OsStr::from_bytes(b"\xff\x1b[2J\xf0\x9f"));
        std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        let mut child = std::process::Command::new(&path).arg("60").spawn().unwrap();
        let (found, own) = (kind(child.id()), is_process(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Kind::Process);
        assert!(own);
    }

    #[test]
    fn the_cgroup_that_limits_the_cpu_is_found_on_both_versions() {
        assert_eq!(cpu_cgroup("0::/user.slice\n"), Some("/user.slice"));
        let v1 = "9:memory:/m\n4:cpu,cpuacct:/jobs/7\n0::/unified\n";
        assert_eq!(cpu_cgroup(v1), Some("/jobs/7"));
        assert_eq!(cpu_cgroup("1:name=systemd:/x\n"), None);
        assert_eq!(cpu_cgroup("garbage"), None);
    }

    #[test]
    fn interrupts_have_the_names_of_their_handlers() {
        let text = "           CPU0       CPU1\n\
                    \x20  4:          1          0   IO-APIC   4-edge      ttyS0\n\
                    \x20 42:          0          9  PCI-MSIX-0000:00:06.0   0-edge      nvidia, other\n\
                    \x20NMI:          0          0   Non-maskable interrupts\n";
        assert_eq!(
            parse_interrupts(text),
            vec![(4, "ttyS0".to_string()), (42, "nvidia, other".to_string())]
        );
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parse_parent(b"7 (a) S 3 7 7 0"), Some(3));
        assert_eq!(parse_parent(b"7 (a) R 9 (\xff) S 3 7 7 0"), Some(3));
        for bad in [&b""[..], b"7 (a", b"7 (a) S", b"7 (a) S x 1"] {
            assert_eq!(parse_parent(bad), None);
        }
        let own = std::process::id();
        assert_eq!(parent(own), Some(std::os::unix::process::parent_id()));
        assert!(with_descendants(&[own]).contains(&own));
    }

    #[test]
    fn an_epoll_tells_the_numbers_of_what_it_watches() {
        let text = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1059\n\
            tfd:        4 events:       19 data:  7f0000000004  pos:0 ino:1a2b sdev:8\n\
            tfd:        5 events:       19 data:                5  pos:0 ino:2a sdev:8\n\
            tfd:        6 events: 19\n";
        assert_eq!(parse_watched(text).collect::<Vec<_>>(), [0x1a2b, 0x2a]);
        assert_eq!(socket_number("socket:[17]"), Some(17));
        assert_eq!(socket_number("pipe:[17]"), None);
    }

    #[test]
    fn what_is_left_of_a_process_is_no_process() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while kind(child.id()) != Kind::Ended {
            assert!(std::time::Instant::now() < deadline, "it did not end");
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_variable_is_found_behind_however_many_others() {
        let mut child = std::process::Command::new("cat")
            .env_clear()
            .envs((0..1000).map(|n| (format!("A{n}"), "x".repeat(100))))
            .env("Z", "a/1")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let has = |name, end| environment_has(child.id(), name, end);
        assert_eq!(
            (has("Z", "/1"), has("Z", "2"), has("B", "")),
            (true, false, false)
        );
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_told_from_its_threads_and_from_nothing() {
        let own = std::process::id();
        assert!(is_process(own));
        assert!(!is_process(u32::MAX));
        assert_eq!(process_of_thread(own), Some(own));
        assert_eq!((kind(own), kind(u32::MAX)), (Kind::Process, Kind::Nothing));
        let thread = std::thread::spawn(|| kind(nix::unistd::gettid().as_raw().cast_unsigned()));
        assert_eq!(thread.join().unwrap(), Kind::ThreadOf(own));
        if in_first_namespace() {
            assert_eq!(kind(2), Kind::KernelThread("kthreadd".to_string()));
        }
        assert_eq!(Proc::look(), Proc::Ours);
        assert!(with_descendants(&[own]).contains(&own));
        assert!(describe(own).cmdline.contains("gdiag"));
        // Rust ignores SIGPIPE.
        assert!(ignores(13) && !ignores(11) && !ignores(0) && !ignores(99));
        assert_eq!(describe(u32::MAX), Description::default());
    }
}
