//! What the thread `gdiag-output` does while there is a screen: keys and signals in, frames out.
//!
//! It waits for a key, a signal, news, or the terminal to take the rest of a frame; and draws when something
//! has changed, not more often than a person sees. What is drawn is what is there at that moment, so when
//! either side is slow there are fewer frames, not later ones.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::keys::{Input, Keys, ESC_QUIET};
use super::shared::{Shared, State};
use super::signals::Signals;
use super::terminal::Screen;
use super::wake::Wake;
use crate::analyse::live::{Slice, Window};
use crate::collect::local_time;
use crate::present::top::theme::Background;
use crate::present::top::{draw, Ask, Model, Theme, View};
use crate::store::meta::Meta;
use crate::units::Nanos;

/// Between two frames, however fast keys come or the size changes.
const FRAME: Duration = Duration::from_millis(50);
/// So long a message is shown.
const MESSAGE: Duration = Duration::from_secs(8);
/// How often gdiag in the background looks whether it still is; most shells tell it.
const LOOK: Duration = Duration::from_millis(500);

/// Why the screen was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By a key.
    Asked,
    Signal(Signal),
    /// Nothing comes any more.
    Over,
    /// The terminal is gone.
    Lost,
    /// Some thread did, and the terminal shows its message.
    Panicked,
}

/// With what a screen begins.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) view: View,
    pub(super) theme: Theme,
    /// The terminal is asked for its background.
    pub(super) ask_background: bool,
    /// Between two updates.
    pub(super) interval: Duration,
    /// The GPU to begin with.
    pub(super) gpu: Option<u32>,
}

/// Shows what there is until the end. The terminal is as it was when this returns. `wake` is what `shared` wakes.
pub(super) fn run(
    shared: &Shared,
    wake: &Wake,
    signals: &Signals,
    screen: Screen,
    start: Start,
) -> Result<End> {
    let Start { view, theme, .. } = start;
    let mut ui = Ui {
        model: model(shared.look(), Window::of(&[]), &view),
        shared,
        wake,
        signals,
        screen,
        view,
        theme,
        interval: start.interval,
        gpu: start.gpu,
        keys: Keys::default(),
        last_key: Instant::now(),
        slices: Vec::new(),
        news: true,
        changed: true,
        painted: None,
        told: None,
        message: None,
        message_is_read: false,
    };
    let end = ui.run(start.ask_background);
    ui.screen.leave();
    if let Ok(End::Signal(Signal::SIGQUIT)) = end {
        signals.end(Signal::SIGQUIT);
    }
    end
}

struct Ui<'a> {
    shared: &'a Shared,
    wake: &'a Wake,
    signals: &'a Signals,
    screen: Screen,
    view: View,
    theme: Theme,
    interval: Duration,
    /// Gone to as soon as it is there.
    gpu: Option<u32>,
    keys: Keys,
    last_key: Instant,
    /// What was drawn last, and the slices that it was made of.
    model: Model,
    slices: Vec<Arc<Slice>>,
    /// There may be something new.
    news: bool,
    /// What is looked at has changed, or where.
    changed: bool,
    /// When there was a frame, and when one with news.
    painted: Option<Instant>,
    told: Option<Instant>,
    /// The last message, and since when it is shown.
    message: Option<(String, Instant)>,
    /// A key was pressed since.
    message_is_read: bool,
}

/// What can be read, or written.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    signals: bool,
    news: bool,
    keys: bool,
    room: bool,
    lost: bool,
}

impl Ui<'_> {
    fn run(&mut self, ask_background: bool) -> Result<End> {
        if let Some(end) = self.take_terminal()? {
            return Ok(end);
        }
        if ask_background {
            let asked = self.screen.ask_background();
            if self.is_lost(asked)? {
                return Ok(End::Lost);
            }
        }
        loop {
            if self.screen.is_gone() {
                return Ok(End::Panicked);
            }
            if self.shared.is_over() {
                return Ok(End::Over);
            }
            if let Some(end) = self.paint_if_due()? {
                return Ok(end);
            }
            let ready = self.wait(self.timeout())?;
            if ready.signals {
                if let Some(end) = self.take_signals()? {
                    return Ok(end);
                }
            }
            if ready.news {
                self.wake.clear();
                self.news = true;
            }
            if let Some(end) = self.read_keys(ready.keys)? {
                return Ok(end);
            }
            if ready.room {
                let flushed = self.screen.flush();
                if self.is_lost(flushed)? {
                    return Ok(End::Lost);
                }
            }
            if ready.lost {
                self.screen.lost();
                return Ok(End::Lost);
            }
        }
    }

    /// Takes the terminal once it is ours to take: in the background gdiag goes on without it. `Some`: something
    /// ends before that.
    fn take_terminal(&mut self) -> Result<Option<End>> {
        while !self.screen.in_foreground() {
            let fds = [self.signals.as_fd(), self.wake.as_fd()];
            let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let limit = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut fds, limit);
            while let Some(signal) = self.signals.next() {
                if ends(signal) {
                    return Ok(Some(End::Signal(signal)));
                }
            }
            self.wake.clear();
            if self.shared.is_over() {
                return Ok(Some(End::Over));
            }
        }
        let taken = self.screen.enter();
        self.news = true;
        self.changed = true;
        Ok(self.is_lost(taken)?.then_some(End::Lost))
    }

    /// Whether this failed because the terminal is gone.
    fn is_lost(&mut self, result: io::Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(false),
            Err(e) => match e.raw_os_error() {
                Some(libc::EIO | libc::ENXIO | libc::ENODEV | libc::EPIPE) => {
                    self.screen.lost();
                    Ok(true)
                }
                _ => Err(e).context("cannot draw on the terminal"),
            },
        }
    }

    /// In how long the next frame is due, if any.
    fn due(&self, now: Instant) -> Option<Duration> {
        let left = |last: Option<Instant>, pause: Duration| {
            last.map_or(Duration::ZERO, |last| {
                pause.saturating_sub(now.saturating_duration_since(last))
            })
        };
        let rested = left(self.painted, FRAME);
        let for_change = self.changed.then_some(rested);
        let for_news = self
            .news
            .then(|| left(self.told, self.interval).max(rested));
        let for_message = self.message_ends().map(|left| left.max(rested));
        [for_change, for_news, for_message]
            .into_iter()
            .flatten()
            .min()
    }

    fn timeout(&self) -> Option<Duration> {
        let frame = if self.screen.is_blocked() {
            None
        } else {
            self.due(Instant::now())
        };
        let key = self.keys.is_waiting().then_some(ESC_QUIET);
        [frame, key].into_iter().flatten().min()
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<Ready> {
        // A full millisecond, so as not to come back a moment too early again and again.
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            let millis = timeout.as_nanos().div_ceil(1_000_000);
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        });
        let mut of_screen = PollFlags::POLLIN;
        of_screen.set(PollFlags::POLLOUT, self.screen.is_blocked());
        let mut fds = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.screen.as_fd(), of_screen),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Ready::default()),
            Err(e) => return Err(e).context("cannot wait for keys"),
        }
        let [signals, wake, screen] = fds.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
        Ok(Ready {
            signals: !signals.is_empty(),
            news: !wake.is_empty(),
            keys: screen.contains(PollFlags::POLLIN),
            room: screen.contains(PollFlags::POLLOUT),
            lost: screen.intersects(gone),
        })
    }

    fn take_signals(&mut self) -> Result<Option<End>> {
        while let Some(signal) = self.signals.next() {
            let end = match signal {
                Signal::SIGWINCH => {
                    self.changed = true;
                    None
                }
                Signal::SIGTSTP => self.suspend(Signals::stop)?,
                // Something else has had the terminal.
                Signal::SIGCONT => self.take_terminal()?,
                signal => ends(signal).then_some(End::Signal(signal)),
            };
            if end.is_some() {
                return Ok(end);
            }
        }
        Ok(None)
    }

    fn suspend(&mut self, stop: impl FnOnce(&Signals)) -> Result<Option<End>> {
        self.screen.leave();
        stop(self.signals);
        self.take_terminal()
    }

    /// What was typed, and what begins like a key and goes no further.
    fn read_keys(&mut self, ready: bool) -> Result<Option<End>> {
        let now = Instant::now();
        let mut quiet = now.saturating_duration_since(self.last_key);
        if ready {
            let mut bytes = [0; 4096];
            match self.screen.read(&mut bytes).context("cannot read keys")? {
                None => {
                    self.screen.lost();
                    return Ok(Some(End::Lost));
                }
                Some([]) => {}
                Some(bytes) => {
                    self.keys.push(bytes);
                    self.last_key = now;
                    quiet = Duration::ZERO;
                }
            }
        }
        while let Some(input) = self.keys.next(quiet) {
            if let Some(end) = self.take_input(input)? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn take_input(&mut self, input: Input) -> Result<Option<End>> {
        let key = match input {
            Input::Key(key) => key,
            Input::Paste(text) => {
                self.view.paste(&text.replace('\r', "\n"));
                self.changed = true;
                return Ok(None);
            }
            Input::Background(color) => {
                self.theme.background = background(color);
                self.changed = true;
                return Ok(None);
            }
            Input::Attributes => {
                self.screen.answered();
                return Ok(None);
            }
        };
        if is_quit_signal(key) {
            return Ok(Some(End::Signal(Signal::SIGQUIT)));
        }
        self.changed = true;
        self.view.size = self.screen.size();
        let place = self.view.gpu_place(&self.model);
        let ask = always(key).or_else(|| self.view.key(key, &self.model));
        if self.view.gpu_place(&self.model) != place {
            // Whoever has turned to another wants that one.
            self.gpu = None;
        }
        self.message_is_read = true;
        match ask {
            None => Ok(None),
            Some(Ask::Quit) => Ok(Some(End::Asked)),
            Some(Ask::Suspend) => self.suspend(Signals::stop_job),
            Some(Ask::Redraw) => {
                self.screen.forget();
                Ok(None)
            }
            Some(ask @ (Ask::Snapshot | Ask::CountCalls(_) | Ask::Faster | Ask::Slower)) => {
                self.shared.ask(ask);
                // What comes of it may be the same words again.
                self.message = None;
                self.message_is_read = false;
                Ok(None)
            }
        }
    }

    fn paint_if_due(&mut self) -> Result<Option<End>> {
        let now = Instant::now();
        if self.screen.is_blocked() || self.due(now) != Some(Duration::ZERO) {
            return Ok(None);
        }
        self.look();
        self.view.size = self.screen.size();
        let (model, view, theme) = (&self.model, &self.view, &self.theme);
        let painted = self.screen.paint(|buffer| {
            let area = buffer.area;
            draw(model, view, theme, area, buffer);
        });
        #[cfg(debug_assertions)]
        if self.painted.is_none() {
            panic_if_asked();
        }
        if self.news {
            self.told = Some(now);
        }
        (self.news, self.changed, self.painted) = (false, false, Some(now));
        Ok(self.is_lost(painted)?.then_some(End::Lost))
    }

    /// A message goes with the next key, or after a while.
    fn forget_message(&mut self) {
        let Some(text) = self.model.status.message.take() else {
            return;
        };
        if self.message.as_ref().is_none_or(|(said, _)| *said != text) {
            self.message = Some((text.clone(), Instant::now()));
            self.message_is_read = false;
        }
        let is_new = |(_, since): &(String, Instant)| since.elapsed() < MESSAGE;
        if !self.message_is_read && self.message.as_ref().is_some_and(is_new) {
            self.model.status.message = Some(text);
        }
    }

    /// In how long a message that is shown goes.
    fn message_ends(&self) -> Option<Duration> {
        self.model.status.message.as_ref()?;
        let (_, since) = self.message.as_ref()?;
        Some(MESSAGE.saturating_sub(since.elapsed()))
    }

    /// Brings what is to be drawn up to date.
    fn look(&mut self) {
        let state = self.shared.look();
        let slices = looked_at(&state.slices, &self.view);
        let same = slices.len() == self.slices.len()
            && slices
                .iter()
                .zip(&self.slices)
                .all(|(a, b)| Arc::ptr_eq(a, b));
        // Adding up is the dear part.
        let window = if same {
            std::mem::replace(&mut self.model.window, Window::of(&[]))
        } else {
            Window::of(&slices)
        };
        self.model = model(state, window, &self.view);
        let place = self.gpu.and_then(|asked| gpu_of(&self.model, asked));
        if let Some(place) = place {
            self.view.choose_gpu(&self.model, place);
            self.gpu = None;
        }
        self.view.hold_gpu(&self.model);
        self.forget_message();
        self.slices = slices;
    }
}

/// Where the GPU is that the driver gives this number; without the driver, the one of the report.
fn gpu_of(model: &Model, number: u32) -> Option<usize> {
    let facts = model.facts.iter().find(|facts| facts.index == number);
    let mut gpus = model.window.report.gpus.iter();
    match facts {
        Some(facts) => gpus.position(|gpu| gpu.uuid == facts.uuid),
        None if model.facts.is_empty() => gpus.position(|gpu| gpu.index == number),
        None => None,
    }
}

fn model(state: State, window: Window, view: &View) -> Model {
    let mut status = state.status;
    if let Some(wall_s) = wall_s(&state.meta, window.to) {
        status.wall_s = wall_s;
        // Who looks at a recording knows the clocks where gdiag is, not those where it was made.
        status.utc_offset_s = local_time::utc_offset(wall_s);
    }
    Model {
        host: state.meta.host,
        source: state.source,
        window,
        window_asked: view.window,
        oldest: state.slices.front().map_or(Nanos::ZERO, |slice| slice.from),
        newest: state.slices.back().map_or(Nanos::ZERO, |slice| slice.to),
        facts: state.facts,
        targets: state.targets,
        status,
    }
}

/// Seconds since the epoch; `None` before there is anything, and where the clock was not recorded.
fn wall_s(meta: &Meta, at: Nanos) -> Option<i64> {
    if meta.start_unix_ns == 0 || at == Nanos::ZERO {
        return None;
    }
    let since = i128::from(at.0) - i128::from(meta.start_mono_ns);
    let unix = i128::from(meta.start_unix_ns) + since;
    i64::try_from(unix / 1_000_000_000).ok()
}

/// Tests see what becomes of the terminal then.
#[cfg(debug_assertions)]
fn panic_if_asked() {
    let Some(thread) = std::env::var_os("GDIAG_TEST_PANIC") else {
        return;
    };
    assert_ne!(thread, "screen", "as the test asked");
    std::thread::spawn(|| panic!("as the test asked"));
}

/// The slices of the window: as long as it is asked for, up to where it is held.
fn looked_at(slices: &VecDeque<Arc<Slice>>, view: &View) -> Vec<Arc<Slice>> {
    let until = match view.held {
        None => slices.len(),
        // What is held may have become too old: then the oldest is as near as it gets.
        Some(end) => slices
            .partition_point(|slice| slice.to <= end)
            .max(1)
            .min(slices.len()),
    };
    let Some(last) = until.checked_sub(1).and_then(|last| slices.get(last)) else {
        return Vec::new();
    };
    let from = last.to.saturating_sub(view.window);
    let first = slices.partition_point(|slice| slice.to <= from);
    slices.range(first..until).cloned().collect()
}

/// Whether it ends gdiag.
fn ends(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT
    )
}

/// The keys that a terminal looks after, where a program does not: they work wherever one is.
fn always(key: KeyEvent) -> Option<Ask> {
    match (key.modifiers, key.code) {
        (KeyModifiers::CONTROL, KeyCode::Char('c')) => Some(Ask::Quit),
        (KeyModifiers::CONTROL, KeyCode::Char('z')) => Some(Ask::Suspend),
        (KeyModifiers::CONTROL, KeyCode::Char('l')) => Some(Ask::Redraw),
        _ => None,
    }
}

fn is_quit_signal(key: KeyEvent) -> bool {
    (key.modifiers, key.code) == (KeyModifiers::CONTROL, KeyCode::Char('\\'))
}

/// As the eye sees it, which sees green best.
fn background([red, green, blue]: [u8; 3]) -> Background {
    let light = 2126 * u32::from(red) + 7152 * u32::from(green) + 722 * u32::from(blue);
    if light > 10_000 * 255 / 2 {
        Background::Light
    } else {
        Background::Dark
    }
}

#[cfg(test)]
mod tests;
