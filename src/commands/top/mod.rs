//! `gdiag top`: a thread collects, another analyses, a third one draws or prints. They share the last slices.
#![forbid(unsafe_code)]

mod analyst;
mod batch;
mod capabilities;
mod keys;
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
use std::sync::mpsc::channel;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use crate::analyse::live::{Feed, SliceOptions};
use crate::cli::{Batch, Target, TopOptions, TopSource};
use crate::commands::recorder::Recorder;
use crate::present::top::model::Source;
use crate::units::Count;

use batch::Printer;
use live::Collector;
use shared::Shared;
use stage::Stage;

/// Whoever has it looks at what is collected.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
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
    let options = &TopOptions {
        batch: options.batch.or(Some(Batch { windows: Some(1) })),
        ..options.clone()
    };
    let record = live::record_options(options, target, command, options.quiet || stage.is_some());
    let mut recorder = Recorder::start_with(&record, stage.is_some(), || match &mut stage {
        Some(stage) => stage.take_signals(false),
        None => Ok(()),
    })?;
    if stage.is_some() {
        recorder.subject.wait_for_screen();
    }
    let result = collect(options, stage, &mut recorder);
    recorder.subject.conclude(result)
}

fn collect(options: &TopOptions, stage: Option<Stage>, recorder: &mut Recorder<'_>) -> Result<u8> {
    let meta = recorder.meta.clone();
    let shared = Arc::new(Shared::new(meta.clone(), Source::Targets));
    let (sender, receiver) = channel();
    let (empties, emptied) = channel();
    let mut collector = Collector::new(recorder, sender, emptied, &shared, options.nvml)?;
    let feed = Feed::new(&meta, meta.start(), SliceOptions::default());
    let analyst = {
        let shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("gdiag-analyst".to_string());
        let run = move || analyst::run(feed, &receiver, &empties, &shared);
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
    let nvml = collector.nvml_text();
    drop(collector);
    let _ = analyst.join();
    shared.update(|state| state.over = true);
    let printed = match front.join() {
        Ok(printed) => printed,
        Err(_) => Err(anyhow::anyhow!("the thread that prints has failed")),
    };
    let end = end?;
    printed?;
    if options.verbose > 0 {
        let _ = writeln!(std::io::stderr(), "gdiag: {nvml}");
    }
    let lost = recorder.session.seen.lost;
    if !options.quiet && lost > 0 {
        let lost = Count(lost);
        let _ = writeln!(std::io::stderr(), "gdiag: {lost} events were lost");
    }
    recorder.status(end)
}
