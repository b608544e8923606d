//! Threads that read maps and open files, since both can wait for a target: for the lock of its
//! memory, or for its network file system. The thread that records never does.
#![forbid(unsafe_code)]

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::events::Mmap;
use super::open::{Opened, Opener};
use super::proc;
use super::FileId;
use crate::collect::clock;
use crate::units::Nanos;

/// Targets that hang hold one each; the others are read as long as one is left.
const THREADS: usize = 4;

/// Requests that wait at most. More come only when all threads hang.
const MOST_WAITING: usize = 1 << 16;

#[derive(Debug)]
pub(super) enum Request {
    Maps {
        proc_pid: u32,
    },
    File {
        proc_pid: u32,
        mmap: Mmap,
        whose: Whose,
    },
}

/// What waits for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Known(FileId),
    /// A mapping whose file has no number yet.
    Ticket(u64),
}

#[derive(Debug)]
pub(super) enum Answer {
    Maps {
        proc_pid: u32,
        /// Before it was read.
        asked: Nanos,
        maps: io::Result<Vec<(Mmap, Opened)>>,
    },
    File {
        mmap: Mmap,
        whose: Whose,
        opened: Opened,
    },
}

#[derive(Debug)]
pub(super) struct Reader {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    waiting: usize,
    pub most_open: usize,
    opener: Arc<Opener>,
}

impl Reader {
    pub fn start() -> io::Result<Reader> {
        let opener = Arc::new(Opener::new());
        let (requests, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let (done, answers) = mpsc::channel();
        for _ in 0..THREADS {
            let (opener, queue, done) = (Arc::clone(&opener), Arc::clone(&queue), done.clone());
            // Never joined: one that hangs ends with gdiag.
            thread::Builder::new()
                .name("gdiag-maps".to_string())
                .spawn(move || work(&opener, &queue, &done))?;
        }
        Ok(Reader {
            requests,
            answers,
            waiting: 0,
            most_open: opener.most,
            opener,
        })
    }

    /// False when too much waits already.
    pub fn ask(&mut self, request: Request) -> bool {
        let taken = self.waiting < MOST_WAITING && self.requests.send(request).is_ok();
        self.waiting += usize::from(taken);
        taken
    }

    /// What has been read; never waits.
    pub fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.try_recv().ok()?;
        self.waiting -= 1;
        Some(answer)
    }

    /// Files that could not be opened for want of a capability.
    pub fn refused(&self) -> u64 {
        self.opener.refused()
    }

    /// Requests without an answer yet.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

fn work(opener: &Opener, queue: &Mutex<Receiver<Request>>, done: &Sender<Answer>) {
    loop {
        // One thread waits for the queue and the others for the lock: whoever has it goes first.
        let request = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(request) = request else {
            return;
        };
        let answer = match request {
            Request::Maps { proc_pid } => {
                let asked = clock::monotonic();
                let maps = proc::read(proc_pid).map(|maps| {
                    let opened = opener.open(proc_pid, &maps);
                    maps.into_iter().zip(opened).collect()
                });
                Answer::Maps {
                    proc_pid,
                    asked,
                    maps,
                }
            }
            Request::File {
                proc_pid,
                mmap,
                whose,
            } => {
                let opened = opener.open(proc_pid, std::slice::from_ref(&mmap)).pop();
                Answer::File {
                    mmap,
                    whose,
                    opened: opened.unwrap_or(Opened::No),
                }
            }
        };
        if done.send(answer).is_err() {
            return;
        }
    }
}
