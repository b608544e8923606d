//! How `stat`, `snapshot` and `stop` talk to the flight recorder: one line of JSON each way.
//!
//! The socket has an abstract address: it goes with the process that made it, however that ends, and
//! leaves nothing in a file system. Such addresses belong to a network namespace, and anyone may take
//! one: so each side asks the kernel who the other is, and talks to its own user and to root only.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context as _, Result};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{getsockopt, UnixCredentials};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::collect::passing;
use crate::error::Error;

/// Of the protocol: both sides are of one build, or say so.
const VERSION: u32 = 1;

/// A request is much shorter.
const LONGEST: usize = 4096;

/// Whoever connects has so long for its request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connections at a time; of more, the oldest is dropped.
const CONNECTIONS: usize = 32;

/// Requests that wait for the recorder.
const WAITING: usize = 16;

/// So long may an answer take: a snapshot is written, or the last names are looked up.
const ANSWER: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(super) enum Ask {
    Stat,
    /// Comes with an open file.
    Snapshot {
        last_ns: Option<u64>,
    },
    /// With an open file, it is written first.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    gdiag: u32,
    #[serde(flatten)]
    ask: Ask,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub(super) enum Answer {
    Stat(Status),
    Snapshot(Written),
    /// What it held in the end, and what was written of it.
    Stop {
        held: Status,
        written: Option<Written>,
    },
    Failed {
        text: String,
    },
}

/// A recorder that runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) gdiag_version: String,
    pub(super) targets: String,
    /// They have ended; nothing is recorded any more, and what is held stays.
    pub(super) ended: bool,
    pub(super) start_ns: u64,
    pub(super) start_unix_ns: u64,
    pub(super) now_ns: u64,
    /// What is held.
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) window_ns: u64,
    pub(super) switches_per_s: Option<f64>,
    /// Since the start.
    pub(super) recorded_events: u64,
    pub(super) lost: u64,
    pub(super) snapshots: u32,
    /// CPU time of the recorder itself.
    pub(super) cpu_ns: u64,
    pub(super) triggers: Vec<Armed>,
    /// What was said of snapshots and warnings, the last of it.
    pub(super) messages: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Armed {
    pub(super) on: String,
    pub(super) fired: u64,
}

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) events: u64,
    pub(super) bytes: u64,
}

/// What all addresses begin with; then come the user's id and the name.
const PREFIX: &str = "gdiag/flight/";

fn address(name: &str, uid: u32) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{uid}/{name}"))
}

/// The addresses that are taken, by the kernel's list: nobody is asked.
pub(super) fn running() -> Vec<(u32, String)> {
    let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
    taken(&String::from_utf8_lossy(&sockets))
}

/// Connections have the address of the socket that they came to.
fn taken(sockets: &str) -> Vec<(u32, String)> {
    let names = sockets.lines().filter_map(|line| {
        let (_, address) = line.split_once(" @")?;
        let (uid, name) = address.strip_prefix(PREFIX)?.split_once('/')?;
        Some((uid.parse().ok()?, name.to_string()))
    });
    let names: std::collections::BTreeSet<_> = names.collect();
    names.into_iter().collect()
}

/// Who is at the other end. The kernel says so.
fn peer(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(&stream.as_fd(), PeerCredentials)?)
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Somebody who waits for an answer.
#[derive(Debug)]
pub(super) struct Caller {
    stream: UnixStream,
    pub(super) ask: Ask,
    pub(super) file: Option<File>,
}

impl Caller {
    /// Never waits for the other side: an answer is shorter than what the kernel holds for it. It then sees the end of
    /// the stream when the result is dropped.
    pub(super) fn answer(mut self, answer: &Answer) -> UnixStream {
        if let Ok(mut line) = serde_json::to_vec(answer) {
            line.push(b'\n');
            // Whoever has gone needs no answer.
            let _ = self.stream.write(&line);
        }
        self.stream
    }
}

/// The recorder's end. It is gone with the process.
#[derive(Debug)]
pub(super) struct Server {
    callers: Receiver<Caller>,
}

/// The address is taken; nobody is answered yet.
#[derive(Debug)]
pub(super) struct Reserved(UnixListener);

/// Takes the address of the recorder called `name`.
pub(super) fn reserve(name: &str) -> Result<Reserved> {
    let uid = geteuid().as_raw();
    let address = address(name, uid).context("cannot name a socket")?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => {
            listener.set_nonblocking(true)?;
            Ok(Reserved(listener))
        }
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let pid = UnixStream::connect_addr(&address).and_then(|stream| {
                let peer = peer(&stream)?;
                Ok((peer.pid(), peer.uid()))
            });
            Err(match pid {
                Ok((pid, owner)) if is_trusted(owner) => Error::RecorderRuns {
                    name: name.to_string(),
                    pid: u32::try_from(pid).unwrap_or(0),
                },
                Ok((pid, owner)) => Error::AddressTaken {
                    name: name.to_string(),
                    pid: u32::try_from(pid).unwrap_or(0),
                    uid: owner,
                },
                Err(_) => Error::RecorderRuns {
                    name: name.to_string(),
                    pid: 0,
                },
            }
            .into())
        }
        Err(e) => Err(e).context("cannot open the socket of the flight recorder"),
    }
}

impl Reserved {
    /// Answers from now on, in a thread: nothing that is sent to it keeps the recorder from recording.
    pub(super) fn serve(self) -> io::Result<Server> {
        let (sender, callers) = sync_channel(WAITING);
        std::thread::Builder::new()
            .name("gdiag-control".to_string())
            .spawn(move || serve(&self.0, &sender))?;
        Ok(Server { callers })
    }
}

impl Server {
    pub(super) fn next(&self) -> Option<Caller> {
        self.callers.try_recv().ok()
    }
}

/// A connection whose request is not whole yet.
#[derive(Debug)]
struct Pending {
    stream: UnixStream,
    line: Vec<u8>,
    file: Option<File>,
    deadline: Instant,
}

/// What a look at a connection shows.
enum Look {
    More,
    Over,
    Whole(Ask),
}

fn serve(listener: &UnixListener, sender: &SyncSender<Caller>) {
    let mut pending: VecDeque<Pending> = VecDeque::new();
    // Of too many requests, the last are turned away.
    let pass_on = |ask, one: Pending| {
        let _ = sender.try_send(Caller {
            stream: one.stream,
            ask,
            file: one.file,
        });
    };
    loop {
        let mut ready = wait(listener, &pending).into_iter();
        let accepts = ready.next().unwrap_or(false);
        let now = Instant::now();
        for mut one in std::mem::take(&mut pending) {
            let look = if ready.next().unwrap_or(false) {
                one.look()
            } else {
                Look::More
            };
            match look {
                Look::More if now < one.deadline => pending.push_back(one),
                Look::More | Look::Over => {}
                Look::Whole(ask) => pass_on(ask, one),
            }
        }
        // Not all at once: there may be no end of them.
        for _ in 0..if accepts { CONNECTIONS } else { 0 } {
            match listener.accept() {
                Ok((stream, _)) => pending.extend(Pending::new(stream)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // No descriptors, perhaps: it would be ready again at once.
                    std::thread::sleep(Duration::from_millis(10));
                    break;
                }
            }
        }
        while pending.len() > CONNECTIONS {
            let Some(mut oldest) = pending.pop_front() else {
                break;
            };
            if let Look::Whole(ask) = oldest.look() {
                pass_on(ask, oldest);
            }
        }
    }
}

/// Whether there is something to do: at the listener, and at each connection.
fn wait(listener: &UnixListener, pending: &VecDeque<Pending>) -> Vec<bool> {
    let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    let streams = pending.iter().map(|one| one.stream.as_fd());
    fds.extend(streams.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
    let deadline = pending.iter().map(|one| one.deadline).min();
    let timeout = match deadline {
        Some(deadline) => {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .as_millis()
                + 1;
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        }
        None => PollTimeout::NONE,
    };
    if poll(&mut fds, timeout).is_err() {
        std::thread::sleep(Duration::from_millis(10));
        return Vec::new();
    }
    fds.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}

impl Pending {
    /// `None` for somebody who may not ask.
    fn new(stream: UnixStream) -> Option<Pending> {
        let peer = peer(&stream).ok()?;
        stream.set_nonblocking(true).ok()?;
        is_trusted(peer.uid()).then(|| Pending {
            stream,
            line: Vec::new(),
            file: None,
            deadline: Instant::now() + PATIENCE,
        })
    }

    fn look(&mut self) -> Look {
        let mut bytes = [0; LONGEST];
        match passing::receive(&self.stream, &mut bytes) {
            Ok((0, _)) => return Look::Over,
            Ok((len, file)) => {
                self.line.extend_from_slice(&bytes[..len]);
                if file.is_some() {
                    self.file = file;
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Look::More,
            Err(_) => return Look::Over,
        }
        let Some(end) = self.line.iter().position(|&b| b == b'\n') else {
            return if self.line.len() < LONGEST {
                Look::More
            } else {
                Look::Over
            };
        };
        match serde_json::from_slice::<Request>(&self.line[..end]) {
            Ok(request) if request.gdiag == VERSION => Look::Whole(request.ask),
            Ok(_) | Err(_) => {
                let text = "this flight recorder is of another gdiag".to_string();
                if let Ok(line) = serde_json::to_string(&Answer::Failed { text }) {
                    let _ = writeln!(self.stream, "{line}");
                }
                Look::Over
            }
        }
    }
}

/// The other end.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
}

impl Client {
    /// `None` when no recorder has that name.
    pub(super) fn connect(name: &str) -> Result<Option<Client>> {
        let uid = geteuid().as_raw();
        let address = address(name, uid).context("cannot name a socket")?;
        let stream = match UnixStream::connect_addr(&address) {
            Ok(stream) => stream,
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(e) => return Err(e).context("cannot reach the flight recorder"),
        };
        let peer = peer(&stream)?;
        if !is_trusted(peer.uid()) {
            return Err(Error::AddressTaken {
                name: name.to_string(),
                pid: u32::try_from(peer.pid()).unwrap_or(0),
                uid: peer.uid(),
            }
            .into());
        }
        stream.set_read_timeout(Some(ANSWER))?;
        Ok(Some(Client { stream }))
    }

    pub(super) fn ask(&mut self, ask: &Ask, file: Option<&File>) -> Result<Answer> {
        let request = Request {
            gdiag: VERSION,
            ask: ask.clone(),
        };
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        let answer = self.exchange(&line, file).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => {
                anyhow!("the flight recorder ended before it answered")
            }
            _ => anyhow::Error::new(e).context("the flight recorder does not answer"),
        })?;
        match serde_json::from_slice(&answer).context("the flight recorder is of another gdiag")? {
            Answer::Failed { text } => bail!("{text}"),
            answer @ (Answer::Stat(_) | Answer::Snapshot(_) | Answer::Stop { .. }) => Ok(answer),
        }
    }

    fn exchange(&mut self, line: &[u8], file: Option<&File>) -> io::Result<Vec<u8>> {
        passing::send(&self.stream, line, file)?;
        let mut answer = Vec::new();
        let mut bytes = [0; LONGEST];
        while !answer.ends_with(b"\n") {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => answer.extend_from_slice(&bytes[..len]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(answer)
    }

    /// Waits until the recorder has gone: the kernel closes its end then.
    pub(super) fn wait_until_gone(&mut self) -> Result<()> {
        let mut bytes = [0; LONGEST];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("the flight recorder does not end"),
            }
        }
    }
}
