//! The loop on a terminal that is at the test's end: what it sends, and what it does with what comes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::{channel, Receiver};
use std::thread::JoinHandle;

use nix::pty::{openpty, Winsize};
use nix::sys::termios::{self, LocalFlags, SetArg, Termios};

use super::*;
use crate::commands::top::wake;
use crate::present::top::model::Source;
use crate::present::top::theme::Colors;
use crate::store::meta::Meta;

/// Nothing here takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// A loop that runs, and the other side of its terminal.
struct Run {
    shared: Arc<Shared>,
    person: File,
    /// What has come and was not asked for yet.
    read: Vec<u8>,
    terminal: File,
    end: Receiver<Result<End>>,
    thread: JoinHandle<()>,
    before: Termios,
}

fn start(ask_background: bool) -> Run {
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let pty = openpty(Some(&size), None).unwrap();
    let mut mode = termios::tcgetattr(&pty.slave).unwrap();
    // Something that is not usual, to be kept.
    mode.control_chars[termios::SpecialCharacterIndices::VERASE as usize] = 0x08;
    termios::tcsetattr(&pty.slave, SetArg::TCSANOW, &mode).unwrap();
    let before = termios::tcgetattr(&pty.slave).unwrap();

    let shared = Arc::new(Shared::new(Meta::default(), Source::Targets));
    let (waker, wake) = wake::pair().unwrap();
    shared.wakes(waker);
    let screen = Screen::on(pty.slave.as_fd()).unwrap();
    let (sender, end) = channel();
    let thread = {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            // Blocked in this thread only: no test sends any.
            let signals = Signals::block(false).unwrap();
            let start = Start {
                view: View::new(Nanos::from_secs(10)),
                theme: Theme {
                    colors: Colors::Sixteen,
                    ..Theme::default()
                },
                ask_background,
                interval: Duration::from_millis(1),
                gpu: None,
            };
            let _ = sender.send(run(&shared, &wake, &signals, screen, start));
        })
    };
    Run {
        shared,
        person: pty.master.into(),
        read: Vec::new(),
        terminal: pty.slave.into(),
        end,
        thread,
        before,
    }
}

impl Run {
    /// Reads until this has come, and returns all up to there.
    fn read_until(&mut self, what: &str) -> String {
        let mut bytes = [0; 4096];
        let start = Instant::now();
        loop {
            let found = self
                .read
                .windows(what.len())
                .position(|w| w == what.as_bytes());
            if let Some(at) = found {
                let text: Vec<u8> = self.read.drain(..at + what.len()).collect();
                return String::from_utf8_lossy(&text).into_owned();
            }
            let all = String::from_utf8_lossy(&self.read);
            assert!(start.elapsed() < DEADLINE, "never {what:?}: {all:?}");
            let mut fds = [PollFd::new(self.person.as_fd(), PollFlags::POLLIN)];
            if poll(&mut fds, 100_u8).unwrap() > 0 {
                let length = self.person.read(&mut bytes).unwrap();
                self.read.extend_from_slice(&bytes[..length]);
            }
        }
    }

    fn type_bytes(&mut self, bytes: &[u8]) {
        self.person.write_all(bytes).unwrap();
    }

    fn news(&self) {
        self.shared.update(|state| state.status.lost += 1);
    }

    fn end(self) -> (Result<End>, bool) {
        let end = self.end.recv_timeout(DEADLINE).expect("the loop ends");
        self.thread.join().unwrap();
        let after = termios::tcgetattr(&self.terminal);
        (end, after.is_ok_and(|after| after == self.before))
    }
}

#[test]
fn a_key_ends_it_and_the_terminal_is_as_it_was() {
    let mut run = start(false);
    let taken = run.read_until("\x1b[?2026l");
    assert!(taken.starts_with("\x1b[?1049h\x1b[?25l"), "{taken:?}");
    let raw = termios::tcgetattr(&run.terminal).unwrap();
    assert!(!raw
        .local_flags
        .intersects(LocalFlags::ICANON | LocalFlags::ECHO));
    run.type_bytes(b"q");
    let left = run.read_until("\x1b[?1049l");
    assert!(left.contains("\x1b[?25h"), "{left:?}");
    let (end, as_before) = run.end();
    assert_eq!(end.unwrap(), End::Asked);
    assert!(as_before);
}

#[test]
fn each_frame_is_whole_and_only_the_first_clears_the_screen() {
    let mut run = start(false);
    let first = run.read_until("\x1b[?2026l");
    // The terminal clears its other screen, and the first frame does.
    assert_eq!(first.matches("\x1b[2J").count(), 2);
    // Help is another frame, and so is the one without it.
    run.type_bytes(b"?");
    let second = run.read_until("\x1b[?2026l");
    assert!(second.starts_with("\x1b[?2026h"), "{second:?}");
    assert_eq!(second.matches("\x1b[2J").count(), 0);
    // Except when asked to.
    run.type_bytes(b"\x0c");
    let again = run.read_until("\x1b[?2026l");
    assert_eq!(again.matches("\x1b[2J").count(), 1);
    run.type_bytes(b"\x03");
    run.read_until("\x1b[?1049l");
    assert_eq!(run.end().0.unwrap(), End::Asked);
}

#[test]
fn the_background_is_asked_for_and_the_answer_is_no_key() {
    let mut run = start(true);
    run.read_until("\x1b]11;?\x1b\\\x1b[c");
    run.read_until("\x1b[?2026l");
    // White, and what every terminal answers. The q would end it.
    run.type_bytes(b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;q");
    run.type_bytes(b"22c?");
    run.read_until("\x1b[?2026l");
    run.type_bytes(b"\x03");
    run.read_until("\x1b[?1049l");
    assert_eq!(run.end().0.unwrap(), End::Asked);
}

#[test]
fn a_terminal_that_takes_nothing_does_not_stop_keys() {
    let mut run = start(false);
    run.read_until("\x1b[?2026l");
    // As Ctrl-S has it.
    termios::tcflow(&run.terminal, termios::FlowArg::TCOOFF).unwrap();
    for _ in 0..100 {
        run.news();
        run.type_bytes(b"?");
    }
    run.type_bytes(b"q");
    let (end, as_before) = run.end();
    assert_eq!(end.unwrap(), End::Asked);
    assert!(as_before);
}

#[test]
fn a_terminal_that_is_gone_ends_it() {
    let mut run = start(false);
    run.read_until("\x1b[?2026l");
    let Run {
        person,
        end,
        thread,
        ..
    } = run;
    drop(person);
    let end = end.recv_timeout(DEADLINE).expect("the loop ends");
    assert_eq!(end.unwrap(), End::Lost);
    thread.join().unwrap();
}

#[test]
fn it_ends_when_nothing_comes_any_more() {
    let mut run = start(false);
    run.read_until("\x1b[?2026l");
    run.shared.update(|state| state.over = true);
    run.read_until("\x1b[?1049l");
    let (end, as_before) = run.end();
    assert_eq!(end.unwrap(), End::Over);
    assert!(as_before);
}

#[test]
fn what_is_begun_and_not_finished_does_not_keep_it_busy() {
    let mut run = start(false);
    run.read_until("\x1b[?2026l");
    run.type_bytes(b"\x1b[");
    run.type_bytes(b"q");
    // The q ended a sequence that means nothing; this one is the key.
    run.type_bytes(b"q");
    run.read_until("\x1b[?1049l");
    assert_eq!(run.end().0.unwrap(), End::Asked);
}

mod windows {
    use super::*;
    use crate::analyse::live::{slice, SliceOptions};
    use crate::model::Timeline;

    fn slices(count: u64) -> VecDeque<Arc<Slice>> {
        let second = |at| Nanos::from_secs(at);
        let timeline = Timeline::default();
        let options = SliceOptions::default();
        let slice = |at| Arc::new(slice(&timeline, second(at), second(at + 1), &options));
        (100..100 + count).map(slice).collect()
    }

    fn times(slices: &VecDeque<Arc<Slice>>, seconds: u64, held: Option<u64>) -> Vec<u64> {
        let mut view = View::new(Nanos::from_secs(seconds));
        view.held = held.map(Nanos::from_secs);
        let seen = looked_at(slices, &view);
        seen.iter()
            .map(|slice| slice.from.0 / 1_000_000_000)
            .collect()
    }

    #[test]
    fn the_window_is_the_last_seconds() {
        assert_eq!(times(&slices(10), 3, None), [107, 108, 109]);
        assert_eq!(times(&slices(2), 3, None), [100, 101]);
        assert_eq!(times(&slices(0), 3, None), [0; 0]);
    }

    #[test]
    fn a_window_that_is_held_stays() {
        assert_eq!(times(&slices(10), 3, Some(105)), [102, 103, 104]);
        assert_eq!(times(&slices(10), 3, Some(1000)), [107, 108, 109]);
        // Too old by now.
        assert_eq!(times(&slices(10), 3, Some(50)), [100]);
        assert_eq!(times(&slices(0), 3, Some(50)), [0; 0]);
    }
}

#[test]
fn light_and_dark_are_told_apart() {
    for (color, is) in [
        ([0, 0, 0], Background::Dark),
        ([255, 255, 255], Background::Light),
        // Solarized.
        ([0x00, 0x2b, 0x36], Background::Dark),
        ([0xfd, 0xf6, 0xe3], Background::Light),
    ] {
        assert_eq!(background(color), is, "{color:?}");
    }
}
