//! `gdiag top`: a thread collects, another analyses, a third one draws or prints. They share the last slices.
#![forbid(unsafe_code)]

mod analyst;
mod batch;
mod capabilities;
mod keys;
mod left_out;
mod live;
mod lookout;
mod replay;
mod shared;
mod signals;
mod stage;
mod targets;
mod terminal;
mod ui;
mod wake;

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context as _, Result};

use crate::analyse::live::{Feed, SliceOptions};
use crate::cli::{Batch, Target, TopOptions, TopSource};
use crate::commands::recorder::Recorder;
use crate::present::top::model::Source;
use crate::units::Count;

use batch::Printer;
use live::Collector;
use shared::Shared;
use stage::Stage;

/// When so long nobody reads anything of the last output, nobody will.
const UNREAD: Duration = Duration::from_secs(2);

/// How often it is looked whether somebody does.
const LOOK: Duration = Duration::from_millis(10);

/// Whoever has it looks at what is collected.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Whoever has it makes what is looked at: without it there will be no more.
struct Fails<'a>(&'a Shared);

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.leave();
        }
    }
}

/// The result is the exit status.
pub fn run(options: &TopOptions) -> Result<u8> {
    match &options.source {
        TopSource::Live { target, command } => watch(options, target, command),
        TopSource::Recording { input, speed } => replay::run(options, input, *speed),
    }
}

fn watch(options: &TopOptions, target: &Target, command: &[std::ffi::OsString]) -> Result<u8> {
    let mut stage = Stage::set(options)?;
    let options = &in_windows(options);
    let record = live::record_options(options, target, command, options.quiet || stage.is_some());
    let mut recorder = Recorder::start_with(&record, stage.is_some(), || match &mut stage {
        Some(stage) => stage.take_signals(false),
        None => Ok(()),
    })?;
    if stage.is_some() {
        recorder.subject.wait_for_screen();
    }
    let collected = collect(options, stage, &mut recorder);
    let Recorder {
        subject, session, ..
    } = recorder;
    // From here on the kernel is as it was, however long somebody takes to read what is printed.
    drop(session);
    let result = collected.and_then(|(status, printing)| {
        if let Some(printing) = printing {
            printing.finish()?;
        }
        status
    });
    subject.conclude(result)
}

/// Without a screen there is one window, unless more are asked for.
fn in_windows(options: &TopOptions) -> TopOptions {
    TopOptions {
        batch: options.batch.or(Some(Batch { windows: Some(1) })),
        ..options.clone()
    }
}

/// The thread that prints, and what it printed so far.
struct Printing {
    thread: JoinHandle<Result<()>>,
    shared: Arc<Shared>,
}

impl Printing {
    /// Waits for the rest, as long as somebody reads it.
    fn finish(self) -> Result<()> {
        let mut printed = 0;
        let mut since = Instant::now();
        while !self.thread.is_finished() {
            let now = self.shared.printed.load(Ordering::Acquire);
            if now != printed || now.is_multiple_of(2) {
                (printed, since) = (now, Instant::now());
            }
            if since.elapsed() >= UNREAD {
                bail!("nobody reads what is printed: the rest of it is left out");
            }
            std::thread::sleep(LOOK);
        }
        joined(self.thread)
    }
}

fn joined(thread: JoinHandle<Result<()>>) -> Result<()> {
    let result = thread.join();
    result.unwrap_or_else(|_| Err(anyhow!("the thread that prints has failed")))
}

/// The exit status, and who prints still.
type Collected = (Result<u8>, Option<Printing>);

fn collect(
    options: &TopOptions,
    stage: Option<Stage>,
    recorder: &mut Recorder<'_>,
) -> Result<Collected> {
    let meta = recorder.meta.clone();
    let shared = Arc::new(Shared::new(meta.clone(), Source::Targets));
    let (sender, receiver) = channel();
    let (empties, emptied) = sync_channel(live::MOST_SPARE);
    let has_screen = stage.is_some();
    let mut collector = Collector::new(recorder, sender, emptied, &shared, options, has_screen)?;
    let feed = Feed::new(&meta, meta.start(), SliceOptions::default());
    let analyst = {
        let shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("gdiag-analyst".to_string());
        let run = move || {
            let _fails = Fails(&shared);
            analyst::run(feed, &receiver, &empties, &shared);
        };
        thread.spawn(run).context("cannot start a thread")?
    };
    let front = {
        let (shared, options) = (Arc::clone(&shared), options.clone());
        let thread = std::thread::Builder::new().name("gdiag-output".to_string());
        let run = move || {
            // Also by a panic.
            let _leave = Leave(&shared);
            match stage {
                Some(stage) => stage.run(&shared),
                None => Printer::new(&options).run(&shared),
            }
        };
        thread.spawn(run).context("cannot start a thread")?
    };
    let end = recorder.run(&mut collector);
    collector.end(recorder);
    let end = end.and_then(|end| {
        if has_screen && live::stays(recorder, end) {
            collector.linger(recorder)?;
        }
        Ok(end)
    });
    if has_screen {
        // The terminal is given back at once: there is nobody to show the rest to.
        shared.update(|state| state.over = true);
    }
    let concluded = collector.conclude(recorder);
    let nvml = collector.nvml_text();
    drop(collector);
    let analysed = analyst.join();
    shared.update(|state| state.over = true);
    let (printing, shown) = if has_screen {
        (None, joined(front))
    } else {
        let thread = front;
        (Some(Printing { thread, shared }), Ok(()))
    };
    let end = end?;
    for text in concluded? {
        let _ = writeln!(std::io::stderr(), "gdiag: {text}");
    }
    shown?;
    if analysed.is_err() {
        bail!("the thread that analyses has failed");
    }
    if options.verbose > 0 {
        let _ = writeln!(std::io::stderr(), "gdiag: {nvml}");
    }
    let lost = recorder.session.seen.lost;
    if !options.quiet && lost > 0 {
        let lost = Count(lost);
        let _ = writeln!(std::io::stderr(), "gdiag: {lost} events were lost");
    }
    Ok((recorder.status(end), printing))
}
