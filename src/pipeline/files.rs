//! What the numbers of open files stood for when a call was made with them.
//!
//! The kernel side says which file it was at the entry: its inode, its mode and the last part of its path. The
//! whole path is that of the call that opened it, where that was seen, or what /proc says while the process
//! still has the same file under the number. What is told is never that of a file that took its place.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::collect::process;
use crate::decode::sched::FileId;
use crate::decode::syscalls::{Block, Number, RawArgs, RawCall};
use crate::event::{Exit, Pid, Task, Tid};
use crate::pipeline::endpoints::Endpoints;
use crate::pipeline::syscalls::Args;

/// Remembered of a process; then all is forgotten.
const MOST: usize = 4096;

/// Files of a process that are looked at before it makes a call.
const LOOKED_AHEAD: usize = 16;

/// Looking into /proc may take so much of each `WINDOW`; beyond that the last part of a path does.
const WINDOW: Duration = Duration::from_millis(100);
const BUDGET: Duration = Duration::from_millis(20);

/// A path that the kernel cut is at least so long.
const CUT_NAME: usize = 35;

const FILE_TYPE: u16 = 0o170_000;
const SOCKET: u16 = 0o140_000;
const FIFO: u16 = 0o010_000;

#[derive(Debug, Default)]
pub(super) struct Files {
    processes: HashMap<Pid, Process>,
    /// As /proc numbers threads and their processes.
    in_proc: HashMap<Tid, (u32, u32)>,
    endpoints: Endpoints,
    window: Option<Instant>,
    spent: Duration,
}

#[derive(Debug, Default)]
struct Process {
    parent: Pid,
    /// By number and inode.
    known: HashMap<(i32, u64), Rc<str>>,
    /// By number: the path with which it was opened last.
    opened: HashMap<i32, Box<[u8]>>,
}

impl Files {
    pub(super) fn task(&mut self, task: &Task, proc_tid: u32, proc_pid: u32) {
        if proc_pid != 0 {
            self.in_proc.insert(task.tid, (proc_tid, proc_pid));
        }
        let process = self.processes.entry(task.pid).or_default();
        process.parent = task.ppid;
    }

    /// What the processes seen so far have open, while there is time to look.
    pub(super) fn look_ahead(&mut self) {
        for (&tid, &(proc_tid, _)) in &self.in_proc {
            let Some(process) = self.processes.get_mut(&Pid(tid.0)) else {
                continue;
            };
            for (fd, inode) in process::open_files(proc_tid, LOOKED_AHEAD) {
                if let Some(path) = process::descriptor(proc_tid, u64::from(fd), inode) {
                    if let Ok(fd) = i32::try_from(fd) {
                        process.known.insert((fd, inode), path.into());
                    }
                }
            }
        }
    }

    pub(super) fn exit(&mut self, exit: &Exit) {
        self.in_proc.remove(&exit.tid);
        if exit.tid.0 == exit.pid.0 {
            self.processes.remove(&exit.pid);
        }
    }

    /// What the arguments of a call stood for.
    pub(super) fn of_args(&mut self, call: &RawCall, args: &RawArgs) -> Args {
        let mut files = Vec::new();
        for (arg, block) in args.blocks() {
            if let Block::File { fd, file, name } = block {
                if let Some(text) = self.text(call, fd, file, name) {
                    files.push((arg, fd, text));
                }
            }
        }
        self.note_open(call, args);
        Args {
            raw: Some(Box::new(args.clone())),
            files,
        }
    }

    fn note_open(&mut self, call: &RawCall, args: &RawArgs) {
        let (Number::Native(number), Some(fd)) = (call.number(), call.result()) else {
            return;
        };
        let (Some(arg), Ok(fd)) = (path_of_open(number), i32::try_from(fd)) else {
            return;
        };
        if let Some((path, false)) = args.text(arg) {
            let process = self.processes.entry(call.pid).or_default();
            if fd >= 0 {
                if process.opened.len() >= MOST {
                    process.opened.clear();
                }
                process.opened.insert(fd, path.into());
            }
        }
    }

    fn text(&mut self, call: &RawCall, fd: i32, file: FileId, name: &[u8]) -> Option<Rc<str>> {
        let key = (fd, file.inode);
        let process = self.processes.entry(call.pid).or_default();
        if let Some(text) = process.known.get(&key) {
            return Some(Rc::clone(text));
        }
        let parent = process.parent;
        let opened = process.opened.get(&fd);
        let opened = opened.filter(|path| is_file(file) && ends_in(path, name));
        let opened = opened.map(|path| String::from_utf8_lossy(path).into_owned());
        let inherited = || {
            let known = &self.processes.get(&parent)?.known;
            known.get(&key).map(|text| text.to_string())
        };
        let found = opened.or_else(inherited);
        let text: Rc<str> = match found.or_else(|| self.look(call.tid, fd, file)) {
            Some(text) => text.into(),
            // Not remembered: /proc may say more the next time.
            None => return without_path(file, name).map(Rc::from),
        };
        let process = self.processes.entry(call.pid).or_default();
        if process.known.len() >= MOST {
            process.known.clear();
        }
        process.known.insert(key, Rc::clone(&text));
        Some(text)
    }

    /// What /proc says, if the thread still has that file.
    fn look(&mut self, tid: Tid, fd: i32, file: FileId) -> Option<String> {
        let &(tid, pid) = self.in_proc.get(&tid)?;
        let fd = u64::try_from(fd).ok()?;
        let start = Instant::now();
        if self.window.is_none_or(|since| start - since >= WINDOW) {
            self.window = Some(start);
            self.spent = Duration::ZERO;
        }
        if self.spent >= BUDGET {
            return None;
        }
        let path = process::descriptor(tid, fd, file.inode);
        let socket = path.as_deref().and_then(process::socket_number);
        let socket = socket.and_then(|inode| self.endpoints.socket(pid, inode));
        self.spent += start.elapsed();
        socket.map(|socket| socket.text).or(path)
    }
}

/// Where calls that open a file have its path.
fn path_of_open(number: u16) -> Option<usize> {
    match i64::from(number) {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => Some(0),
        libc::SYS_openat | libc::SYS_openat2 => Some(1),
        _ => None,
    }
}

fn is_file(file: FileId) -> bool {
    !matches!(file.mode & FILE_TYPE, SOCKET | FIFO)
}

/// Whether `name`, which may be cut, is the last part of a path.
fn ends_in(path: &[u8], name: &[u8]) -> bool {
    // The root of each mount has this name, whatever it is mounted at.
    if name == b"/" {
        return path == name;
    }
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
    let last = path[..end].rsplit(|&b| b == b'/').next().unwrap_or(path);
    !name.is_empty() && (last == name || name.len() >= CUT_NAME && last.starts_with(name))
}

fn without_path(file: FileId, name: &[u8]) -> Option<String> {
    let inode = file.inode;
    match file.mode & FILE_TYPE {
        SOCKET => Some(format!("socket:[{inode}]")),
        FIFO => Some(format!("pipe:[{inode}]")),
        // Of what has no path, the kernel's name says what it is.
        0 => Some(format!("anon_inode:{}", String::from_utf8_lossy(name))),
        _ if name.is_empty() || name == b"/" => None,
        _ => Some(format!(".../{}", String::from_utf8_lossy(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_that_of_the_file_only_when_it_ends_alike() {
        assert!(ends_in(b"/etc/passwd", b"passwd"));
        assert!(ends_in(b"passwd", b"passwd"));
        assert!(!ends_in(b"/etc/passwd", b"shadow"));
        assert!(!ends_in(b"/etc/passwd", b"pass"));
        assert!(!ends_in(b"/etc/", b""));
        assert!(ends_in(b"/etc//", b"etc"));
        assert!(ends_in(b"/", b"/") && !ends_in(b"/dev/shm", b"/"));
        let long = [b'x'; 60];
        assert!(ends_in(&long, &long[..CUT_NAME]));
    }

    #[test]
    fn what_has_no_path_is_told_by_its_kind() {
        let of = |mode, name: &str| without_path(FileId { inode: 7, mode }, name.as_bytes());
        assert_eq!(of(SOCKET | 0o777, "").as_deref(), Some("socket:[7]"));
        assert_eq!(of(FIFO | 0o600, "").as_deref(), Some("pipe:[7]"));
        assert_eq!(
            of(0o600, "[eventpoll]").as_deref(),
            Some("anon_inode:[eventpoll]")
        );
        assert_eq!(of(0o100_644, "data").as_deref(), Some(".../data"));
        assert_eq!(of(0o100_644, ""), None);
    }
}
