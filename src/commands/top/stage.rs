//! All that a screen needs, got ready in its order: first what may fail, and last the terminal.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use anyhow::{anyhow, Context as _, Result};

use super::capabilities::Capabilities;
use super::shared::Shared;
use super::signals::Signals;
use super::terminal::Screen;
use super::ui::{self, End, Start};
use super::wake;
use crate::cli::TopOptions;
use crate::present::top::View;

/// Between two updates, unless asked otherwise.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Stage {
    screen: Screen,
    signals: Option<Signals>,
    start: Start,
}

impl Stage {
    /// `None`: what comes out is text. The terminal is as it was until [`Stage::run`].
    pub(super) fn set(options: &TopOptions) -> Result<Option<Stage>> {
        if options.batch.is_some() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let capabilities = Capabilities::of(|name| std::env::var_os(name), options.ascii)?;
        let interval = options.interval;
        Ok(Some(Stage {
            screen: Screen::open().context("cannot use this terminal")?,
            signals: None,
            start: Start {
                view: View::new(options.window),
                theme: capabilities.theme,
                ask_background: capabilities.ask_background,
                interval: interval.map_or(INTERVAL, |interval| Duration::from_nanos(interval.0)),
                gpu: options.gpu,
            },
        }))
    }

    /// While there is one thread. `ends`: also those signals that end a run.
    pub(super) fn take_signals(&mut self, ends: bool) -> Result<()> {
        self.signals = Some(Signals::block(ends)?);
        Ok(())
    }

    /// Until nobody looks any more, or there is nothing to look at.
    pub(super) fn run(self, shared: &Shared) -> Result<()> {
        let signals = self.signals.context("signals were not taken")?;
        let (waker, wake) = wake::pair().context("cannot make a pair of sockets")?;
        shared.wakes(waker);
        match ui::run(shared, &wake, &signals, self.screen, self.start)? {
            End::Asked | End::Signal(_) | End::Over | End::Lost => Ok(()),
            End::Panicked => Err(anyhow!("a thread of gdiag has failed")),
        }
    }
}
