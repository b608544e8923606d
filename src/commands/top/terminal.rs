//! The terminal, while the live view has it: in raw mode, on its other screen, without a cursor. However gdiag
//! ends, it is given back as it was: at the end of a [`Screen`], before the message of a panic of any thread,
//! and while gdiag is stopped.
//!
//! gdiag has the terminal open a second time, so that it need not block when the terminal does, as over a
//! slow connection: what is not taken yet waits, no further frame is drawn, and keys and signals are still
//! heard. What else has the terminal open, such as the shell, keeps it as it was.
//!
//! A frame is what differs from the one before, in one write, marked so that terminals which know
//! synchronized updates show all of it at once.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{kill, SigSet, SigmaskHow, Signal};
use nix::sys::termios::{self, FlushArg, SetArg, Termios};
use nix::unistd::{getpgrp, tcgetpgrp, Pid};
use ratatui::backend::{Backend as _, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use terminal_size::{Height, Width};

use super::keys::{Input, Keys};

/// The other screen, cleared; no cursor; pasted text is marked.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[0m\x1b[H\x1b[2J";
/// Ends a sequence that was cut off.
const CANCEL: &[u8] = b"\x18";
/// A console without another screen is left empty.
const LEAVE: &[u8] = b"\x1b[?2026l\x1b[?2004l\x1b[0m\x1b[H\x1b[J\x1b[?25h\x1b[?1049l";
const CLEAR: &[u8] = b"\x1b[0m\x1b[2J";
const BEGIN_FRAME: &[u8] = b"\x1b[?2026h";
const END_FRAME: &[u8] = b"\x1b[?2026l";
/// What is the background, and what are you? Every terminal answers the second.
const ASK_BACKGROUND: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";

/// A terminal that takes nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// So long the end waits for an answer, which would otherwise be typed into the shell.
const ANSWER: Duration = Duration::from_millis(200);

/// Of a terminal that does not know its size.
const USUAL_SIZE: (u16, u16) = (80, 24);
/// Larger ones are not believed, nor filled: a frame takes memory.
const MAX_SIZE: (u16, u16) = (1000, 500);

/// What panics and [`Screen`] share.
#[derive(Debug)]
struct Tty {
    file: File,
    /// How it was; there while it is gdiag's.
    before: Option<Termios>,
    /// Nobody is there any more.
    lost: bool,
    /// It was asked something, and has not answered yet.
    asked: bool,
}

#[derive(Debug)]
pub(super) struct Screen {
    tty: Arc<Mutex<Tty>>,
    /// The same, to wait for.
    file: File,
    /// What the terminal shows once it has taken all.
    shown: Buffer,
    next: Buffer,
    /// What it shows is not known.
    stale: bool,
    /// It has not taken these yet, from `taken` on.
    waiting: Vec<u8>,
    taken: usize,
}

impl Screen {
    /// The terminal that stdout is. It is as it was until [`Screen::enter`]; from now on it is given back when a
    /// thread panics.
    pub(super) fn open() -> io::Result<Screen> {
        let screen = Screen::on(io::stdout().as_fd())?;
        let tty = Arc::clone(&screen.tty);
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Before the message, which would be lost with the other screen.
            lock(&tty).give_back(true);
            // Who draws looks up, and sees that it is over.
            let _ = kill(Pid::this(), Signal::SIGWINCH);
            print(info);
        }));
        Ok(screen)
    }

    pub(super) fn on(terminal: BorrowedFd<'_>) -> io::Result<Screen> {
        let file = open_again(terminal)?;
        let tty = Tty {
            file: file.try_clone()?,
            before: None,
            lost: false,
            asked: false,
        };
        Ok(Screen {
            tty: Arc::new(Mutex::new(tty)),
            file,
            shown: Buffer::default(),
            next: Buffer::default(),
            stale: true,
            waiting: Vec::new(),
            taken: 0,
        })
    }

    /// gdiag is the job that the shell has in the foreground, or there is no such thing here.
    pub(super) fn in_foreground(&self) -> bool {
        in_foreground(&self.file)
    }

    /// Takes the terminal, also again after something else had it.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        lock(&self.tty).take()?;
        self.waiting.clear();
        self.taken = 0;
        self.stale = true;
        self.send(ENTER)
    }

    /// The answer comes as [`Input`].
    pub(super) fn ask_background(&mut self) -> io::Result<()> {
        lock(&self.tty).asked = true;
        self.send(ASK_BACKGROUND)
    }

    pub(super) fn answered(&mut self) {
        lock(&self.tty).asked = false;
    }

    /// Gives the terminal back.
    pub(super) fn leave(&mut self) {
        lock(&self.tty).give_back(self.taken > 0);
        // The rest of a frame is of no use any more.
        self.waiting.clear();
        self.taken = 0;
    }

    /// Nobody is there any more: there is nothing to give back.
    pub(super) fn lost(&mut self) {
        lock(&self.tty).lost = true;
    }

    /// It was given back by a panic.
    pub(super) fn is_gone(&self) -> bool {
        lock(&self.tty).before.is_none()
    }

    /// What is on the terminal is not what was drawn last.
    pub(super) fn forget(&mut self) {
        self.stale = true;
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (u16, u16) {
        size_of(&self.file)
    }

    /// Draws a frame and sends what differs from the last one. While [`is_blocked`](Self::is_blocked) there
    /// is no point in it.
    pub(super) fn paint(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        let (columns, rows) = self.size();
        let area = Rect::new(0, 0, columns, rows);
        if self.next.area != area {
            self.next.resize(area);
            self.stale = true;
        }
        self.next.reset();
        draw(&mut self.next);
        let mut frame = BEGIN_FRAME.to_vec();
        if self.stale {
            self.shown = Buffer::empty(area);
            frame.extend_from_slice(CLEAR);
        }
        let mut changed = self.shown.diff_iter(&self.next).peekable();
        if changed.peek().is_some() {
            CrosstermBackend::new(&mut frame).draw(changed)?;
        }
        self.stale = false;
        std::mem::swap(&mut self.shown, &mut self.next);
        if frame.len() == BEGIN_FRAME.len() {
            return Ok(());
        }
        frame.extend_from_slice(END_FRAME);
        self.send(&frame)
    }

    /// The terminal has not taken all of the last frame yet.
    pub(super) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.waiting.extend_from_slice(bytes);
        self.flush()
    }

    /// Sends as much as the terminal takes now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.taken < self.waiting.len() {
            let mut tty = lock(&self.tty);
            // Given back by a panic a moment ago: not a byte more.
            if tty.before.is_none() {
                break;
            }
            match tty.file.write(&self.waiting[self.taken..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => self.taken += taken,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.waiting.clear();
        self.taken = 0;
        Ok(())
    }

    /// What was typed, once there is something. `None`: the terminal is gone.
    pub(super) fn read<'a>(&self, bytes: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match (&self.file).read(bytes) {
            Ok(0) => Ok(None),
            Ok(length) => Ok(Some(&bytes[..length])),
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(Some(&[])),
                _ if e.raw_os_error() == Some(libc::EIO) => Ok(None),
                _ => Err(e),
            },
        }
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Tty {
    fn take(&mut self) -> io::Result<()> {
        let before = match self.before.take() {
            Some(before) => before,
            None => termios::tcgetattr(&self.file)?,
        };
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        self.before = Some(before);
        // At once: what was written before may never be taken.
        Ok(termios::tcsetattr(&self.file, SetArg::TCSANOW, &raw)?)
    }

    /// Failures are nobody's business any more. `cut`: what was written last may end within a sequence.
    fn give_back(&mut self, cut: bool) {
        let Some(before) = self.before.take() else {
            return;
        };
        if self.lost {
            return;
        }
        if std::mem::take(&mut self.asked) && in_foreground(&self.file) {
            self.drop_answer();
        }
        // Who does this in the background is stopped for it, if the signal is not blocked.
        let mut ttou = SigSet::empty();
        ttou.add(Signal::SIGTTOU);
        let mask = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let _ = self.write_all(if cut { CANCEL } else { b"" });
        let _ = self.write_all(LEAVE);
        // Another job that has it by now has set it up as it likes.
        if in_foreground(&self.file) {
            let _ = termios::tcsetattr(&self.file, SetArg::TCSANOW, &before);
        }
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
    }

    /// Gives up when the terminal takes nothing.
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => bytes = &bytes[taken..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !wait_for(&self.file, PollFlags::POLLOUT, deadline) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Reads what the terminal still answers, so that the shell does not.
    fn drop_answer(&mut self) {
        let deadline = Instant::now() + ANSWER;
        let mut keys = Keys::default();
        let mut bytes = [0; 256];
        while wait_for(&self.file, PollFlags::POLLIN, deadline) {
            match self.file.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(length) => keys.push(&bytes[..length]),
            }
            let mut inputs = std::iter::from_fn(|| keys.next(Duration::ZERO));
            if inputs.any(|input| input == Input::Attributes) {
                return;
            }
        }
        let _ = termios::tcflush(&self.file, FlushArg::TCIFLUSH);
    }
}

/// A panic is no reason to leave a terminal as it is.
fn lock(tty: &Mutex<Tty>) -> MutexGuard<'_, Tty> {
    tty.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is ready before the deadline.
fn wait_for(file: &File, what: PollFlags, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let mut fds = [PollFd::new(file.as_fd(), what)];
    match poll(&mut fds, left) {
        Ok(ready) => ready > 0,
        Err(e) => e == nix::errno::Errno::EINTR,
    }
}

/// The terminal as a file of our own: that it does not block concerns nobody else.
fn open_again(terminal: BorrowedFd<'_>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    // It may belong to the user before a `su`, or be that of another container.
    match options.open(format!("/proc/self/fd/{}", terminal.as_raw_fd())) {
        Ok(file) if file.is_terminal() => Ok(file),
        Ok(_) | Err(_) => Ok(terminal.try_clone_to_owned()?.into()),
    }
}

fn in_foreground(file: &File) -> bool {
    // It may be no terminal that controls jobs; then nobody else has it.
    tcgetpgrp(file).map_or(true, |group| group == getpgrp())
}

fn size_of(file: &File) -> (u16, u16) {
    let known = terminal_size::terminal_size_of(file);
    let (columns, rows) =
        known.map_or(USUAL_SIZE, |(Width(columns), Height(rows))| (columns, rows));
    (columns.min(MAX_SIZE.0), rows.min(MAX_SIZE.1))
}
