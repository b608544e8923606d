//! `gdiag record`.
#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use super::flight;
use super::recorder::{gpu_source, say, Recorder, Sink, Turn};
use super::subject::End;
use super::temporary::is_open_file;
use crate::cli::RecordOptions;
use crate::collect::clock;
use crate::error::Error;
use crate::event::Event;
use crate::present::text::clean;
use crate::store::meta::{Meta, Summary};
use crate::store::{Stats, StoreError, Writer};
use crate::units::{Count, Nanos};

/// A killed gdiag loses at most this much of what it had read.
const FLUSH: Nanos = Nanos::from_secs(1);

/// The result is the exit status.
pub fn run(options: &RecordOptions) -> Result<u8> {
    if options.keep.is_none() {
        leads_to_a_file(&options.output)?;
    }
    let mut recorder = Recorder::start(options)?;
    let result = match &options.keep {
        None => to_file(&mut recorder),
        Some(keep) => flight::in_foreground(&mut recorder, keep),
    };
    recorder.subject.conclude(result)
}

fn to_file(recorder: &mut Recorder<'_>) -> Result<u8> {
    let mut recording = Recording::create(&recorder.options.output, &recorder.meta)?;
    let end = recorder.run(&mut recording)?;
    finish(recorder, recording, end)
}

/// Closes the file and says what is in it. The result is gdiag's own exit status.
fn finish(recorder: &mut Recorder<'_>, recording: Recording, end: End) -> Result<u8> {
    let options = recorder.options;
    let now = clock::monotonic();
    let seen = recorder.session.seen;
    let stacks = recorder.session.stack_costs();
    let warnings = recorder.warnings();
    let probed = recorder.probed_text(&warnings);
    let stats = recording.finish(&Summary {
        end_mono_ns: now.0,
        gpu_source: gpu_source(seen),
        stacks: stacks.samples,
        stacks_ns: stacks.time.0,
        stacks_lost: stacks.lost,
        warnings: warnings.clone(),
        ..Summary::default()
    })?;
    // The report says it by itself, from the events.
    for warning in warnings.iter().chain(&probed) {
        say(options, format_args!("{warning}"));
    }
    if !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "[ gdiag record: {}, {} events, {} {}, lost {} ]",
            now.saturating_sub(recorder.meta.start()),
            Count(stats.events),
            stats.written,
            options.output.display(),
            Count(seen.lost)
        );
        if options.verbose > 0 {
            let each = Nanos(stacks.time.0 / stacks.samples.max(1));
            let _ = writeln!(
                io::stderr(),
                "gdiag: {} user stacks, {each} each, {} lost; {} launch functions have a probe",
                Count(stacks.samples),
                Count(stacks.lost),
                stacks.probes
            );
        }
    }
    recorder.status(end)
}

/// The file, and the first error of writing it.
struct Recording {
    writer: Writer,
    failure: Option<StoreError>,
    next_flush: Nanos,
    interim: InterimReport,
}

impl Recording {
    /// An old recording becomes `FILE.old`.
    fn create(path: &Path, meta: &Meta) -> Result<Recording> {
        set_aside(path)?;
        Ok(Recording {
            writer: Writer::create(path, meta)?,
            failure: None,
            next_flush: Nanos::ZERO,
            interim: InterimReport::default(),
        })
    }

    fn flush(&mut self) {
        if self.failure.is_none() {
            self.failure = self.writer.flush().err();
        }
    }

    fn check(&mut self) -> Result<()> {
        match self.failure.take() {
            None => Ok(()),
            Some(e) => Err(e.into()),
        }
    }

    fn finish(mut self, summary: &Summary) -> Result<Stats> {
        self.check()?;
        Ok(self.writer.finish(summary)?)
    }
}

impl Sink for Recording {
    fn push(&mut self, event: &Event) {
        if self.failure.is_none() {
            self.failure = self.writer.push(event).err();
        }
    }

    fn turn(&mut self, recorder: &mut Recorder<'_>, turn: Turn) -> Result<Option<End>> {
        if turn.now >= self.next_flush {
            self.flush();
            self.next_flush = turn.now + FLUSH;
        }
        self.check()?;
        if turn.woken.report {
            self.flush();
            self.interim.start(&recorder.options.output);
        }
        Ok(None)
    }
}

/// A link would be renamed, or its target truncated: only one to a file of somebody's own is meant that way.
pub(super) fn leads_to_a_file(path: &Path) -> Result<(), Error> {
    if path.is_symlink() && path.exists() && (!path.is_file() || is_open_file(path)) {
        return Err(Error::NotReplaceable {
            path: clean(&path.display().to_string()).into_owned(),
            what: "a symbolic link to no regular file",
        });
    }
    Ok(())
}

/// An old recording becomes `FILE.old`.
pub(super) fn set_aside(path: &Path) -> Result<()> {
    if path.is_file() {
        leads_to_a_file(path)?;
        let mut old = path.as_os_str().to_os_string();
        old.push(".old");
        std::fs::rename(path, &old)
            .with_context(|| format!("cannot keep the old {}", path.display()))?;
    }
    Ok(())
}

/// What was recorded so far, on stderr: stdout may belong to the command. Another process makes it,
/// while the recording goes on.
#[derive(Default)]
struct InterimReport(Option<std::process::Child>);

impl InterimReport {
    /// Does nothing while the one before is still being made.
    fn start(&mut self, path: &Path) {
        if let Some(Ok(None)) = self.0.as_mut().map(std::process::Child::try_wait) {
            return;
        }
        let Ok(own) = std::env::current_exe() else {
            return;
        };
        let child = std::process::Command::new(own)
            .arg("report")
            .arg("-i")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .spawn();
        match child {
            Ok(child) => self.0 = Some(child),
            Err(e) => {
                let _ = writeln!(io::stderr(), "gdiag: cannot start the interim report: {e}");
            }
        }
    }
}

impl Drop for InterimReport {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_a_link_to_a_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name);
        let file = fs::File::create(name("file")).unwrap();
        symlink("file", name("link")).unwrap();
        symlink("/dev/null", name("device")).unwrap();
        symlink(dir.path(), name("dir")).unwrap();
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        symlink(open, name("stdout")).unwrap();
        for refused in ["device", "dir", "stdout"] {
            let error = leads_to_a_file(&name(refused)).unwrap_err();
            let text = format!("/{refused}' is a symbolic link to no regular file");
            assert!(error.to_string().ends_with(&text), "{error}");
        }
        assert!(set_aside(&name("stdout")).is_err());
        for taken in ["file", "link", "new"] {
            leads_to_a_file(&name(taken)).unwrap();
        }
        set_aside(&name("link")).unwrap();
        assert!(name("link.old").is_symlink() && name("stdout").is_symlink());
        assert!(!name("link").exists() && name("file").is_file());
    }
}
