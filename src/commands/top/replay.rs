//! A recording, played as if it happened now.
//!
//! Events come in the order in which they were recorded, late ones late: what is said of a moment is what was said of
//! it then.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::batch::Printer;
use super::shared::Shared;
use super::stage::Stage;
use super::targets::Targets;
use super::{in_windows, Leave};
use crate::analyse::live::{Feed, SliceOptions, SLICE};
use crate::cli::TopOptions;
use crate::error::status;
use crate::event::Event;
use crate::present::top::model::Source;
use crate::present::top::Ask;
use crate::store::meta::{Summary, TargetMode};
use crate::store::{Reader, StoreError};
use crate::units::Nanos;

/// How often events are handed on.
const STEP: Duration = Duration::from_millis(50);

const SLOWEST: f64 = 1.0 / 64.0;
const FASTEST: f64 = 1024.0;

/// The result is the exit status.
pub(super) fn run(options: &TopOptions, input: &Path, speed: f64) -> Result<u8> {
    let mut stage = Stage::set(options)?;
    let options = &in_windows(options);
    if let Some(stage) = &mut stage {
        stage.take_signals(true)?;
    }
    let reader = Reader::open(input)?;
    let meta = reader.meta().clone();
    let end = reader.summary().map(Summary::end);
    let source = Source::Recording {
        path: input.to_path_buf(),
        speed,
        start: meta.start(),
        end: end.unwrap_or_default(),
        over: false,
    };
    let shared = Arc::new(Shared::new(meta, source));
    let mut player = Player {
        feed: Feed::new(
            reader.meta(),
            reader.meta().start(),
            SliceOptions::default(),
        ),
        position: reader.meta().start(),
        until: options
            .duration
            .map(|duration| reader.meta().start().saturating_add(duration)),
        next: Nanos::ZERO,
        shared: Arc::clone(&shared),
        targets: Targets::of_recording(reader.meta().mode == TargetMode::All),
        simulated: false,
        lost: 0,
        pace: None,
        printer: None,
        failure: None,
    };
    let Some(stage) = stage else {
        player.printer = Some(Printer::new(options));
        return player.play(reader);
    };
    player.pace = Some(Pace::new(speed, player.position));
    let of_screen = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("gdiag-output".to_string());
    let screen = thread
        .spawn(move || {
            let _leave = Leave(&of_screen);
            stage.run(&of_screen)
        })
        .context("cannot start a thread")?;
    let played = player.play(reader);
    // What has been played can be looked at for as long as one likes.
    if played.is_err() {
        shared.update(|state| state.over = true);
    }
    let shown = match screen.join() {
        Ok(shown) => shown,
        Err(_) => Err(anyhow::anyhow!("the thread that draws has failed")),
    };
    let status = played?;
    shown?;
    Ok(status)
}

struct Player<'a> {
    feed: Feed,
    /// Until then it has been played.
    position: Nanos,
    /// Not further.
    until: Option<Nanos>,
    /// When slices are asked for next.
    next: Nanos,
    shared: Arc<Shared>,
    targets: Targets,
    simulated: bool,
    /// Events that the recording lacks.
    lost: u64,
    /// `None`: as fast as it goes.
    pace: Option<Pace>,
    /// `None`: for a screen.
    printer: Option<Printer<'a>>,
    failure: Option<anyhow::Error>,
}

impl Player<'_> {
    fn play(&mut self, mut reader: Reader) -> Result<u8> {
        let read = reader.for_each(|event| self.event(event));
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let is_enough = self.printer.as_ref().is_some_and(Printer::is_enough);
        if !is_enough && !self.shared.is_left() {
            let end = reader.summary().map_or(self.position, Summary::end);
            let end = self.until.map_or(end, |until| end.min(until));
            self.shared.add(self.feed.finish(end));
        }
        self.told();
        let whole = read.is_ok() && reader.coverage().is_whole();
        let mut warnings = reader.coverage().warnings(reader.meta().start());
        warnings.extend(
            reader
                .summary()
                .into_iter()
                .flat_map(|s| s.warnings.clone()),
        );
        self.shared.update(|state| {
            state.status.warnings = warnings;
            if let Source::Recording { over, .. } = &mut state.source {
                *over = true;
            }
            // A screen stays until somebody leaves.
            state.over |= self.printer.is_some();
        });
        self.print()?;
        read.map_err(|e: StoreError| anyhow::Error::from(e))?;
        Ok(if whole { status::DONE } else { status::FAILED })
    }

    fn event(&mut self, event: &Event) -> ControlFlow<()> {
        let at = event.ts().unwrap_or(self.position).max(self.position);
        if self.until.is_some_and(|until| at > until) {
            return ControlFlow::Break(());
        }
        if at > self.position {
            self.position = at;
            if at >= self.next {
                self.next = at.saturating_add(Nanos(SLICE.0 / 5));
                self.step(at)?;
            }
        }
        self.tell(event);
        self.feed.push(event.clone());
        ControlFlow::Continue(())
    }

    /// What is complete, and a rest until it is time.
    fn step(&mut self, at: Nanos) -> ControlFlow<()> {
        self.shared.add(self.feed.take(at, None));
        self.told();
        if let Err(failure) = self.print() {
            self.failure = Some(failure);
            return ControlFlow::Break(());
        }
        if self.printer.as_ref().is_some_and(Printer::is_enough) {
            return ControlFlow::Break(());
        }
        loop {
            self.asked();
            if self.shared.is_left() {
                return ControlFlow::Break(());
            }
            match self.pace.as_ref().and_then(|pace| pace.rest(at)) {
                None => return ControlFlow::Continue(()),
                Some(rest) => std::thread::sleep(rest.min(STEP)),
            }
        }
    }

    fn print(&mut self) -> Result<()> {
        let Some(printer) = &mut self.printer else {
            return Ok(());
        };
        printer.print(&self.shared.look(), &self.shared.printed)?;
        Ok(())
    }

    fn asked(&mut self) {
        for ask in self.shared.asked() {
            let factor = match ask {
                Ask::Faster => 2.0,
                Ask::Slower => 0.5,
                Ask::Snapshot => {
                    self.shared.update(|state| {
                        let text = "it is a recording already: nothing to write";
                        state.status.message = Some(text.to_string());
                    });
                    continue;
                }
                Ask::Quit | Ask::CountCalls(_) | Ask::Redraw | Ask::Suspend => continue,
            };
            let Some(pace) = &mut self.pace else { continue };
            let speed = (pace.speed * factor).clamp(SLOWEST, FASTEST);
            *pace = Pace::new(speed, self.position);
            self.shared.update(|state| {
                if let Source::Recording { speed: told, .. } = &mut state.source {
                    *told = speed;
                }
            });
        }
    }

    /// What is said beside the slices.
    fn tell(&mut self, event: &Event) {
        self.targets.push(event);
        if let Event::Shim(shim) = event {
            self.simulated |= shim.simulated;
        }
        if let Event::Loss(loss) = event {
            self.lost = self.lost.saturating_add(loss.count);
        }
    }

    fn told(&mut self) {
        let newest = self.shared.look().slices.back().cloned();
        let targets = self.targets.told(self.position, newest.as_deref(), &[]);
        let (simulated, lost) = (self.simulated, self.lost);
        self.shared.update(|state| {
            state.targets = targets;
            state.simulated = simulated;
            state.status.lost = lost;
        });
    }
}

/// When what was recorded is due.
#[derive(Debug)]
struct Pace {
    speed: f64,
    began: Instant,
    /// What was due then.
    from: Nanos,
}

impl Pace {
    fn new(speed: f64, from: Nanos) -> Pace {
        Pace {
            speed,
            began: Instant::now(),
            from,
        }
    }

    /// How long what was recorded `at` is not due yet.
    fn rest(&self, at: Nanos) -> Option<Duration> {
        #[allow(clippy::cast_precision_loss)]
        let due = at.saturating_sub(self.from).0 as f64 / 1e9 / self.speed;
        let due = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX);
        due.checked_sub(self.began.elapsed())
            .filter(|rest| !rest.is_zero())
    }
}
