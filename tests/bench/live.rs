//! What the live view costs: `cargo bench --bench live -- gdiag.data`.
//!
//! A recording is handed to the feed as if its events came now; each slice is analysed, and slices are added up as a
//! screen does each second.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gdiag::analyse::live::{Feed, Slice, SliceOptions, Window};
use gdiag::store::Reader;
use gdiag::units::Nanos;

fn main() -> anyhow::Result<()> {
    let path = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let path = path.context("usage: live FILE")?;
    let mut reader = Reader::open(Path::new(&path))?;
    let meta = reader.meta().clone();
    let mut events = Vec::new();
    reader.for_each(|event| {
        events.push(event.clone());
        ControlFlow::Continue(())
    })?;
    let count = events.len();
    let mut feed = Feed::new(&meta, meta.start(), SliceOptions::default());
    let mut slices: Vec<Arc<Slice>> = Vec::new();
    let mut longest = Duration::ZERO;
    let mut next = meta.start();
    let begin = Instant::now();
    for event in events {
        let now = event.ts().unwrap_or_default();
        feed.push(event);
        if now >= next {
            next = Nanos(now.0 + 100_000_000);
            let begin = Instant::now();
            slices.extend(feed.take(now, None).into_iter().map(Arc::new));
            longest = longest.max(begin.elapsed());
        }
    }
    let took = begin.elapsed();
    let (first, last) = (slices.first(), slices.last());
    let covered = first
        .zip(last)
        .map_or(Nanos::ZERO, |(first, last)| last.to - first.from);
    println!(
        "{count} events, {} slices of {covered}: {:.0} ns/event, {:.2} % of a CPU, longest {longest:?}",
        slices.len(),
        took.as_nanos() as f64 / count as f64,
        took.as_nanos() as f64 / covered.0 as f64 * 100.0,
    );
    for n in [20, 120, 600] {
        let last: Vec<Arc<Slice>> = slices.iter().rev().take(n).rev().cloned().collect();
        let begin = Instant::now();
        let window = Window::of(&last);
        let took = begin.elapsed();
        println!(
            "{} slices added up in {took:?}: {} threads, {} gaps",
            last.len(),
            window.sched.threads.len(),
            window
                .report
                .gpus
                .iter()
                .map(|gpu| gpu.gap_count)
                .sum::<u64>()
        );
    }
    Ok(())
}
