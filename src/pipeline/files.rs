//! What the numbers of open files stood for when a call was made with them.
//!
//! The kernel side says which file it was at the entry: its inode, its mode and the last part of its path. The
//! whole path is that of the call that opened it, where that was seen, or what /proc says while the process
//! still has the same file under the number. What is told is never that of a file that took its place: what
//! is remembered of a number goes with the call that gives it to another file, and must be of the inode and
//! have the name that the kernel side told of this very call, as inodes are used again.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::collect::process;
use crate::collect::syscalls::RESULT;
use crate::decode::sched::FileId;
use crate::decode::syscalls::{Block, Number, RawArgs, RawCall};
use crate::event::{Exit, Pid, Task, Tid};
use crate::pipeline::endpoints::Endpoints;
use crate::pipeline::syscalls::Args;
use crate::units::Nanos;

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
    /// By number.
    known: HashMap<i32, Known>,
}

#[derive(Debug)]
struct Known {
    inode: u64,
    text: Rc<str>,
    /// When this became known: what began before may be of another file.
    since: Nanos,
}

impl Process {
    fn remember(&mut self, fd: i32, inode: u64, text: Rc<str>, since: Nanos) {
        // Of a socket more is known when it is connected.
        if is_bare_socket(&text) {
            return;
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(fd, Known { inode, text, since });
    }
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
                let path = process::descriptor(proc_tid, u64::from(fd), inode);
                if let (Some(path), Ok(fd)) = (path, i32::try_from(fd)) {
                    process.remember(fd, inode, path.into(), Nanos::ZERO);
                }
            }
        }
    }

    /// Calls are missing: numbers may have been given to other files.
    pub(super) fn lost(&mut self) {
        for process in self.processes.values_mut() {
            process.known.clear();
        }
    }

    pub(super) fn exit(&mut self, exit: &Exit) {
        self.in_proc.remove(&exit.tid);
        if exit.tid.0 == exit.pid.0 {
            self.processes.remove(&exit.pid);
        }
    }

    /// What the arguments of a call stood for. Calls come in the order in which they end.
    pub(super) fn of_args(&mut self, call: &RawCall, args: &RawArgs) -> Args {
        let mut files = Vec::new();
        for (arg, block) in args.blocks() {
            if let Block::File { fd, file, name } = block {
                if arg == RESULT {
                    continue;
                }
                if let Some(text) = self.text(call, fd, file, name) {
                    files.push((arg, fd, text));
                }
            }
        }
        if let Number::Native(number) = call.number() {
            self.note_change(call, i64::from(number), args);
        }
        Args {
            raw: Some(Box::new(args.clone())),
            files,
        }
    }

    /// What a call did to the numbers of its process.
    fn note_change(&mut self, call: &RawCall, number: i64, args: &RawArgs) {
        let process = self.processes.entry(call.pid).or_default();
        match given_up(number, args, call.result()) {
            GivenUp::None => {}
            GivenUp::One(fd) => {
                process.known.remove(&fd);
            }
            GivenUp::Range(first, last) => process.known.retain(|&fd, _| {
                let fd = fd.cast_unsigned();
                fd < first || fd > last
            }),
            GivenUp::All => process.known.clear(),
        }
        let is = |numbers: &[i64]| numbers.contains(&number);
        if is(&[libc::SYS_connect, libc::SYS_bind, libc::SYS_listen]) {
            if let Some((file, _)) = args.file(0, low(args.values[0])) {
                self.endpoints
                    .forget(u32::try_from(file.inode).unwrap_or(0));
            }
            return;
        }
        let (Some(arg), Some(Ok(fd))) = (path_of_open(number), call.result().map(i32::try_from))
        else {
            return;
        };
        if let (Some((path, false)), Some((file, name))) = (args.text(arg), args.file(RESULT, fd)) {
            // Not of a symbolic link, whose name is another one.
            if ends_in(path, name) {
                let text = String::from_utf8_lossy(path).into();
                process.remember(fd, file.inode, text, call.end);
            }
        }
    }

    fn text(&mut self, call: &RawCall, fd: i32, file: FileId, name: &[u8]) -> Option<Rc<str>> {
        let known = |process: &Process| {
            let known = process.known.get(&fd)?;
            let is_it = known.inode == file.inode
                && call.start().is_none_or(|start| start >= known.since)
                && is_of(file, name, &known.text);
            is_it.then(|| Rc::clone(&known.text))
        };
        let process = self.processes.entry(call.pid).or_default();
        if let Some(text) = known(process) {
            return Some(text);
        }
        let parent = process.parent;
        let inherited = self.processes.get(&parent).and_then(known);
        let looked = || {
            let text = self.look(call.tid, fd, file)?;
            is_of(file, name, &text).then(|| Rc::from(text))
        };
        match inherited.or_else(looked) {
            Some(text) => {
                let process = self.processes.entry(call.pid).or_default();
                // Whoever began before this may mean the file before.
                let since = call.start().unwrap_or(call.end);
                process.remember(fd, file.inode, Rc::clone(&text), since);
                Some(text)
            }
            // Not remembered: /proc may say more the next time.
            None => without_path(file, name).map(Rc::from),
        }
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

/// Numbers that are another file's, or nobody's, after a call.
enum GivenUp {
    None,
    One(i32),
    /// The last one included.
    Range(u32, u32),
    All,
}

/// Of a call that failed, too: a close that fails has closed, and else nothing is lost but time.
fn given_up(number: i64, args: &RawArgs, result: Option<i64>) -> GivenUp {
    let returned = || result.and_then(|fd| i32::try_from(fd).ok());
    let returned = || returned().map_or(GivenUp::None, GivenUp::One);
    match number {
        libc::SYS_close | libc::SYS_connect | libc::SYS_bind | libc::SYS_listen => {
            GivenUp::One(low(args.values[0]))
        }
        libc::SYS_close_range => GivenUp::Range(
            low(args.values[0]).cast_unsigned(),
            low(args.values[1]).cast_unsigned(),
        ),
        libc::SYS_dup3 => GivenUp::One(low(args.values[1])),
        // What has O_CLOEXEC is closed.
        libc::SYS_execve | libc::SYS_execveat => GivenUp::All,
        libc::SYS_dup
        | libc::SYS_socket
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_epoll_create1
        | libc::SYS_eventfd2
        | libc::SYS_timerfd_create
        | libc::SYS_signalfd4
        | libc::SYS_inotify_init1
        | libc::SYS_memfd_create
        | libc::SYS_pidfd_open => returned(),
        libc::SYS_fcntl if is_dup(args.values[1]) => returned(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => GivenUp::One(low(args.values[1])),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat | libc::SYS_epoll_create | libc::SYS_eventfd => returned(),
        _ => GivenUp::None,
    }
}

fn is_dup(command: u64) -> bool {
    matches!(low(command), libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// What the kernel looks at of a number.
fn low(value: u64) -> i32 {
    // The cut is meant.
    #[allow(clippy::cast_possible_truncation)]
    let low = value as u32;
    low.cast_signed()
}

/// Where calls that open a file have its path.
fn path_of_open(number: i64) -> Option<usize> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => Some(0),
        libc::SYS_openat | libc::SYS_openat2 => Some(1),
        _ => None,
    }
}

fn is_bare_socket(text: &str) -> bool {
    process::socket_number(text).is_some()
}

/// Whether what was found out about a number can be told of this file, by the name that the kernel has for it.
fn is_of(file: FileId, name: &[u8], text: &str) -> bool {
    // As the text has what is not UTF-8.
    let lossy = String::from_utf8_lossy(name);
    let name = lossy.as_bytes();
    match file.mode & FILE_TYPE {
        // They have no names; their inodes are of one each.
        SOCKET => true,
        FIFO if name.is_empty() => true,
        // They all have one inode.
        _ if text.starts_with("anon_inode:") => {
            text.strip_prefix("anon_inode:").map(str::as_bytes) == Some(name)
        }
        _ => {
            let path = text.strip_suffix(" (deleted)").unwrap_or(text);
            ends_in(path.as_bytes(), name) || ends_in(text.as_bytes(), name)
        }
    }
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
    use crate::decode::syscalls::tests::{block, call, file_block};

    const REGULAR: u16 = 0o100_644;

    /// Calls one after the other, of which /proc knows nothing.
    #[derive(Default)]
    struct Calls {
        files: Files,
        now: u64,
    }

    impl Calls {
        /// What the number in the first argument is said to be.
        fn make(
            &mut self,
            nr: i64,
            ret: i64,
            values: [u64; 6],
            blocks: &[Vec<u8>],
        ) -> Option<String> {
            self.now += 10;
            let call = call(nr, (self.now, self.now + 5), ret, values, blocks);
            let args = call.args.clone().unwrap();
            let told = self.files.of_args(&call, &args);
            told.files.first().map(|(_, _, text)| text.to_string())
        }

        fn open(&mut self, fd: i64, path: &str, inode: u64, name: &str) {
            let text = block(2, 1, 0, format!("{path}\0").as_bytes());
            let opened = file_block(6, i32::try_from(fd).unwrap(), inode, REGULAR, name);
            self.make(libc::SYS_openat, fd, [0; 6], &[text, opened]);
        }

        fn read(&mut self, fd: i32, inode: u64, mode: u16, name: &str) -> Option<String> {
            let file = file_block(0, fd, inode, mode, name);
            let values = [u64::from(fd.unsigned_abs()), 0, 0, 0, 0, 0];
            self.make(libc::SYS_read, 0, values, &[file])
        }

        fn know(&mut self, fd: i32, inode: u64, text: &str) {
            let process = self.files.processes.entry(Pid(7)).or_default();
            process.remember(fd, inode, text.into(), Nanos::ZERO);
        }
    }

    #[test]
    fn an_inode_that_is_used_again_is_another_file() {
        let mut calls = Calls::default();
        for n in 0..3 {
            let name = format!("f{n}");
            let path = format!("/tmp/{name}");
            calls.open(3, &path, 77, &name);
            assert_eq!(calls.read(3, 77, REGULAR, &name), Some(path));
        }
        // Though it was never seen how.
        assert_eq!(calls.read(3, 77, REGULAR, "f9").as_deref(), Some(".../f9"));
    }

    #[test]
    fn a_number_that_was_given_to_another_file_is_not_the_first() {
        for (nr, values) in [
            (libc::SYS_dup3, [6, 3, 0, 0, 0, 0]),
            (libc::SYS_close, [3, 0, 0, 0, 0, 0]),
            (libc::SYS_close_range, [0, 5, 0, 0, 0, 0]),
            (libc::SYS_dup, [6, 0, 0, 0, 0, 0]),
            (libc::SYS_execve, [0; 6]),
        ] {
            let mut calls = Calls::default();
            calls.open(3, "/b/conf", 78, "conf");
            assert_eq!(
                calls.read(3, 78, REGULAR, "conf").as_deref(),
                Some("/b/conf")
            );
            calls.make(nr, 3, values, &[]);
            // Even with the inode of the one before.
            let read = calls.read(3, 78, REGULAR, "conf");
            assert_eq!(read.as_deref(), Some(".../conf"), "{nr}");
        }
        // And though that was not seen, when it has not.
        let mut calls = Calls::default();
        calls.open(3, "/b/conf", 78, "conf");
        let read = calls.read(3, 79, REGULAR, "conf");
        assert_eq!(read.as_deref(), Some(".../conf"));
    }

    #[test]
    fn a_call_that_began_before_the_open_is_of_the_file_before() {
        let mut calls = Calls::default();
        calls.open(3, "/b/conf", 78, "conf");
        let values = [3, 0, 0, 0, 0, 0];
        let blocks = [file_block(0, 3, 78, REGULAR, "conf")];
        let early = call(libc::SYS_read, (1, calls.now + 9), 0, values, &blocks);
        let args = early.args.clone().unwrap();
        let told = calls.files.of_args(&early, &args);
        assert_eq!(&*told.files[0].2, ".../conf");
    }

    #[test]
    fn what_has_the_inode_of_all_is_told_by_its_whole_name() {
        let mut calls = Calls::default();
        calls.know(3, 12, "anon_inode:[eventpoll]");
        for name in ["[eventfd]", "[eventpoll]"] {
            let told = calls.read(3, 12, 0o600, name);
            assert_eq!(told, Some(format!("anon_inode:{name}")));
        }
    }

    #[test]
    fn a_socket_is_looked_at_again_until_more_is_known() {
        let mut calls = Calls::default();
        calls.know(3, 12, "socket:[12]");
        assert!(calls.files.processes[&Pid(7)].known.is_empty());
        calls.know(3, 12, "TCP 1 -> 2");
        let told = calls.read(3, 12, SOCKET, "TCP");
        assert_eq!(told.as_deref(), Some("TCP 1 -> 2"));
        calls.make(libc::SYS_connect, 0, [3, 0, 0, 0, 0, 0], &[]);
        let told = calls.read(3, 12, SOCKET, "TCP");
        assert_eq!(told.as_deref(), Some("socket:[12]"));
    }

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
