//! Cuts a part out of a recording: `cargo run --release --example trim -- IN FROM TO OUT [OLD=NEW]…`,
//! with FROM and TO in seconds from the start of IN. OLD becomes NEW in all names, for what should not
//! be published.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{bail, Context as _};

use gdiag::event::{Define, Event};
use gdiag::store::meta::Meta;
use gdiag::store::{trim, Reader, Writer};
use gdiag::units::Nanos;

/// Several chunks even of a short part, as a recorder writes them: damage then leaves something.
const EVENTS_IN_CHUNK: u64 = 300;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, from, to, output, replacements @ ..] = arguments.as_slice() else {
        bail!("usage: trim IN FROM TO OUT [OLD=NEW]...");
    };
    let replacements: Vec<(&str, &str)> = replacements
        .iter()
        .map(|pair| pair.split_once('=').context("a replacement is OLD=NEW"))
        .collect::<anyhow::Result<_>>()?;
    let replaced = |text: &str| {
        let text = text.to_string();
        replacements
            .iter()
            .fold(text, |text, (old, new)| text.replace(old, new))
    };

    let mut whole = Reader::open(Path::new(input))?;
    let start = whole.meta().start();
    let at = |seconds: &str| -> anyhow::Result<Nanos> {
        let seconds: f64 = seconds.parse().context("FROM and TO are seconds")?;
        Ok(Nanos(start.0 + (seconds * 1e9) as u64))
    };
    let part = tempfile::NamedTempFile::new()?;
    trim(&mut whole, part.path(), at(from)?, at(to)?)?;

    let mut part = Reader::open(part.path())?;
    let meta = part.meta().clone();
    let meta = Meta {
        host: replaced(&meta.host),
        kernel: replaced(&meta.kernel),
        boot_id: replaced(&meta.boot_id),
        command: meta.command.iter().map(|word| replaced(word)).collect(),
        ..meta
    };
    let mut writer = Writer::create(Path::new(output), &meta)?;
    let mut written = Ok(());
    part.for_each(|event| {
        written = match event {
            Event::Define(Define::Name { id, text }) => {
                let text = replaced(text);
                writer.push(&Event::Define(Define::Name { id: *id, text }))
            }
            other => writer.push(other),
        };
        if written.is_ok() && writer.stats().events.is_multiple_of(EVENTS_IN_CHUNK) {
            written = writer.flush();
        }
        if written.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    written?;
    let stats = writer.finish(&part.summary().cloned().unwrap_or_default())?;
    eprintln!("{output}: {} events, {}", stats.events, stats.written);
    Ok(())
}
