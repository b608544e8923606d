//! `gdiag start`, `stat`, `snapshot` and `stop`, and `record` when it keeps what it records in memory.
#![forbid(unsafe_code)]

mod control;
pub(super) mod keep;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{bail, Context as _, Result};

use self::control::{Answer, Ask, Client, Status, Written};
use self::keep::{Context, Keeper};
use super::record::{leads_to_a_file, set_aside};
use super::recorder::{say, Recorder};
use super::subject::{End, Subject};
use super::temporary::Temporary;
use super::to_stdout;
use crate::cli::{
    KeepOptions, RecordOptions, SnapshotOptions, StartOptions, StatOptions, StopOptions,
};
use crate::collect::background::{self, Side, Starter};
use crate::collect::clock;
use crate::error::{self, status, Error};
use crate::present::text::clean;
use crate::store::create_file;
use crate::units::{Bytes, Count, Nanos};

/// How long to wait between two looks at requests when nothing is recorded any more.
const REST: Nanos = Nanos::from_millis(50);

/// `record` with a window: what happens is kept in memory, and written at events.
pub(super) fn in_foreground(recorder: &mut Recorder<'_>, keep: &KeepOptions) -> Result<u8> {
    let options = recorder.options;
    let mut keeper = Keeper::new(recorder, keep, options.output.clone(), None)?;
    let end = recorder.run(&mut keeper)?;
    let now = clock::monotonic();
    keeper.all_is_there(now);
    keeper.conclude(&|| Context::of(recorder))?;
    let warnings = recorder.warnings();
    for warning in warnings.iter().chain(&recorder.probed_text(&warnings)) {
        say(options, format_args!("{warning}"));
    }
    if keeper.written == 0 && !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "gdiag: no snapshot was written: {}; USR2 asks for one while it runs",
            if keep.triggers.is_empty() {
                "none was asked for"
            } else {
                "none of the events of --snapshot-on happened"
            }
        );
    }
    if !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "[ gdiag record: {}, {} events, {} snapshots, lost {} ]",
            now.saturating_sub(recorder.meta.start()),
            Count(keeper.events()),
            keeper.written,
            Count(recorder.session.seen.lost)
        );
    }
    recorder.status(end)
}

/// `gdiag start`. The result is the exit status of the process that this is afterwards.
pub fn start(options: &StartOptions) -> Result<u8> {
    let mut record = options.record.clone();
    // The background is in another directory.
    record.output = std::path::absolute(&record.output)
        .with_context(|| format!("cannot find {}", record.output.display()))?;
    match background::split()? {
        Side::Foreground(outcome) => {
            let Some(status) = outcome.status else {
                bail!("the flight recorder ended while it started");
            };
            if !outcome.text.is_empty() {
                to_stdout(|out| out.write_all(outcome.text.as_bytes()))?;
            }
            Ok(status)
        }
        Side::Background(starter) => {
            let mut starter = Some(starter);
            let result = in_background(&options.name, &record, &mut starter);
            if let Some(starter) = starter {
                // It never ran: whoever waits in the foreground has this terminal, too.
                let status = match &result {
                    Ok(status) => *status,
                    Err(e) => error::exit_status(e, false),
                };
                if let Err(e) = &result {
                    let _ = io::stderr().write_all(error::render(e).as_bytes());
                }
                starter.failed(status);
                return Ok(status);
            }
            if let Err(e) = &result {
                note_death(&record.output, e);
            }
            result
        }
    }
}

/// What ended a recorder that has no terminal any more is told where its snapshots are.
fn note_death(output: &Path, failure: &anyhow::Error) {
    let mut log = output.as_os_str().to_os_string();
    log.push(".log");
    // There is nowhere else to tell it.
    let _ = std::fs::write(log, error::render(failure));
}

/// Records until the end. Whoever waits hears of it when all runs.
fn in_background(name: &str, options: &RecordOptions, starter: &mut Option<Starter>) -> Result<u8> {
    let Some(keep) = &options.keep else {
        bail!("a flight recorder needs a window");
    };
    let reserved = control::reserve(name)?;
    let mut recorder = Recorder::start(options)?;
    let server = reserved.serve().context("cannot start a thread")?;
    let server = Some((server, name.to_string()));
    let mut keeper = Keeper::new(&recorder, keep, options.output.clone(), server)?;
    if let Some(starter) = starter.take() {
        let quiet = options.quiet;
        let line = format!(
            "gdiag: flight recorder '{name}' runs (pid {}): {}, the last {} in at most {}\n",
            std::process::id(),
            clean(&recorder.subject.text()),
            keep.window,
            keep.memory
        );
        starter
            .running(if quiet { "" } else { &line })
            .context("nobody waits for the flight recorder")?;
    }
    let end = recorder.run(&mut keeper)?;
    keeper.all_is_there(clock::monotonic());
    let context = Context::of(&recorder);
    let Recorder {
        mut subject,
        session,
        ..
    } = recorder;
    // From here on the kernel is as it was, and the targets are left alone.
    drop(session);
    let context = || context.clone();
    keeper.conclude(&context)?;
    let is_over = end == End::TargetsEnded;
    if is_over && keep.triggers.is_empty() {
        hold(&mut keeper, &mut subject, &context)?;
    } else if is_over {
        keeper.last_snapshot("the targets have ended", &context)?;
    }
    let stream = keeper.tell_stopped(clock::monotonic(), is_over, &context);
    // Whoever waits for the end sees it by this: the kernel closes it last.
    if let Some(stream) = stream {
        std::mem::forget(stream);
    }
    Ok(status::DONE)
}

/// Nothing comes any more: what there is waits to be asked for.
fn hold(keeper: &mut Keeper, subject: &mut Subject, context: &dyn Fn() -> Context) -> Result<()> {
    loop {
        let now = clock::monotonic();
        let woken = subject.wait(None, now + REST)?;
        let stop = keeper.tend(now, woken.snapshot, true, context)?;
        if stop || woken.end == Some(End::Asked) {
            return keeper.conclude(context);
        }
    }
}

/// Flight recorders that run in this network namespace: the user of each, and its name.
pub(super) fn running() -> Vec<(u32, String)> {
    control::running()
}

/// `gdiag stat`.
pub fn stat(options: &StatOptions) -> Result<u8> {
    let mut client = connect(&options.name, false)?;
    let Answer::Stat(status) = client.ask(&Ask::Stat, None)? else {
        bail!("the flight recorder is of another gdiag");
    };
    to_stdout(|out| {
        if options.json {
            let value = serde_json::to_value(&status).map_err(io::Error::from)?;
            let mut object = serde_json::Map::new();
            object.insert("schema".to_string(), "gdiag.stat/1".into());
            if let serde_json::Value::Object(fields) = value {
                object.extend(fields);
            }
            serde_json::to_writer_pretty(&mut *out, &object)?;
            writeln!(out)
        } else {
            out.write_all(text(&status).as_bytes())
        }
    })?;
    Ok(status::DONE)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss
)]
fn text(status: &Status) -> String {
    let runs = status.now_ns.saturating_sub(status.start_ns);
    let held = Nanos(status.to_ns.saturating_sub(status.from_ns));
    let since = |ns: u64| Nanos(ns.saturating_sub(status.start_ns));
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<11}{value}\n"));
    line(
        "recorder",
        format!("{}, pid {}", clean(&status.name), status.pid),
    );
    line("runs for", Nanos(runs).to_string());
    let over = if status.ended {
        " (ended: nothing is recorded any more, what is held stays until `gdiag stop`)"
    } else {
        ""
    };
    line("targets", format!("{}{over}", clean(&status.targets)));
    line(
        "holds",
        format!(
            "{held}, from +{} to +{}: {} events",
            since(status.from_ns),
            since(status.to_ns),
            Count(status.events)
        ),
    );
    line(
        "memory",
        format!(
            "{} of {}, window {}",
            Bytes(status.bytes),
            Bytes(status.memory_bytes),
            Nanos(status.window_ns)
        ),
    );
    let rate = status.switches_per_s;
    let rate = rate.map_or("-".to_string(), |rate| {
        Count(rate.round() as u64).to_string()
    });
    line("switches", format!("{rate} a second"));
    line("lost", Count(status.lost).to_string());
    let share = status.cpu_ns as f64 / runs.max(1) as f64 * 100.0;
    line(
        "CPU time",
        format!("{}, {share:.1} % of a CPU", Nanos(status.cpu_ns)),
    );
    for armed in &status.triggers {
        line(
            "trigger",
            format!("{}, fired {}", armed.on, Count(armed.fired)),
        );
    }
    line("snapshots", Count(status.snapshots.into()).to_string());
    for message in &status.messages {
        line("", clean(message).into_owned());
    }
    text
}

/// `gdiag snapshot`.
pub fn snapshot(options: &SnapshotOptions) -> Result<u8> {
    let mut client = connect(&options.name, false)?;
    // Here, with the rights and from the directory of whoever asks.
    let place = Place::at(&options.output)?;
    let ask = Ask::Snapshot {
        last_ns: options.last.map(|last| last.0),
    };
    let answer = client.ask(&ask, Some(place.file()));
    let answer = answer.with_context(|| no_snapshot(&options.output))?;
    let Answer::Snapshot(written) = answer else {
        bail!("the flight recorder is of another gdiag");
    };
    place.keep()?;
    tell("snapshot", &options.output, &written);
    Ok(status::DONE)
}

/// `gdiag stop`.
pub fn stop(options: &StopOptions) -> Result<u8> {
    let mut client = connect(&options.name, true)?;
    let place = options.output.as_deref().map(Place::at).transpose()?;
    let answer = client.ask(&Ask::Stop, place.as_ref().map(Place::file));
    // Also when it could not write: it ends all the same.
    client.wait_until_gone()?;
    let answer = match &options.output {
        Some(path) => answer.with_context(|| no_snapshot(path))?,
        None => answer?,
    };
    let Answer::Stop { held, written } = answer else {
        bail!("the flight recorder is of another gdiag");
    };
    match (&options.output, &written) {
        (Some(path), Some(written)) => {
            if let Some(place) = place {
                place.keep()?;
            }
            tell("stop", path, written);
        }
        (None, _) | (_, None) => {
            let _ = writeln!(
                io::stderr(),
                "[ gdiag stop: {}, {} events were held and are gone, lost {} ]",
                Nanos(held.to_ns.saturating_sub(held.from_ns)),
                Count(held.events),
                Count(held.lost)
            );
        }
    }
    Ok(status::DONE)
}

/// Where a snapshot goes. What is there stays until the snapshot is whole, and becomes `FILE.old` then.
enum Place<'a> {
    New(Temporary, &'a Path),
    /// A device or a pipe.
    Other(File),
}

impl<'a> Place<'a> {
    fn at(path: &'a Path) -> Result<Place<'a>> {
        if path.exists() && !path.is_file() {
            return Ok(Place::Other(create_file(path)?));
        }
        if path.is_file() {
            leads_to_a_file(path)?;
        }
        let temporary = Temporary::beside(path, 0o600);
        let temporary = temporary.with_context(|| no_snapshot(path))?;
        Ok(Place::New(temporary, path))
    }

    fn file(&self) -> &File {
        match self {
            Place::New(temporary, _) => temporary.file(),
            Place::Other(file) => file,
        }
    }

    fn keep(self) -> Result<()> {
        match self {
            Place::New(temporary, path) => {
                set_aside(path)?;
                temporary.replace(path).with_context(|| no_snapshot(path))
            }
            Place::Other(_) => Ok(()),
        }
    }
}

fn no_snapshot(path: &Path) -> String {
    format!("no snapshot in {}", path.display())
}

fn tell(command: &str, path: &Path, written: &Written) {
    let _ = writeln!(
        io::stderr(),
        "[ gdiag {command}: {}, {} events, {} {} ]",
        Nanos(written.to_ns.saturating_sub(written.from_ns)),
        Count(written.events),
        Bytes(written.bytes),
        path.display()
    );
}

fn connect(name: &str, to_stop: bool) -> Result<Client> {
    let client = Client::connect(name)?;
    Ok(client.ok_or_else(|| Error::NoRecorder {
        name: name.to_string(),
        to_stop,
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_a_recorder_is_beside_its_snapshots() {
        let dir = tempfile::tempdir().unwrap();
        let failure = anyhow::anyhow!("no room").context("cannot read the ring buffers");
        note_death(&dir.path().join("flight.data"), &failure);
        let log = std::fs::read_to_string(dir.path().join("flight.data.log")).unwrap();
        assert_eq!(log, "gdiag: cannot read the ring buffers: no room\n");
    }
}
