//! `gdiag export`: reads a recording, and writes it in a format of other tools.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::temporary::Temporary;
use crate::analyse;
use crate::analyse::tracks::{self, Shown, Window};
use crate::cli::{ExportFormat, ExportOptions};
use crate::commands::report::{add_warnings, Seen};
use crate::commands::{to_stdout, warn};
use crate::error::{status, Error};
use crate::model::Timeline;
use crate::present::export::chrome::Chrome;
use crate::present::export::perfetto::Perfetto;
use crate::present::export::{About, Trust};
use crate::store::meta::GpuSource;
use crate::store::Reader;
use crate::units::{Bytes, Nanos};

/// A recording, ready to be written.
struct Loaded {
    timeline: Timeline,
    about: About,
    /// What the recording and its reading warn of.
    warnings: Vec<String>,
    /// Nothing of the recording was missing or damaged.
    whole: bool,
}

/// The result is the exit status.
pub fn run(options: &ExportOptions) -> anyhow::Result<u8> {
    let output = Output::of(options)?;
    let loaded = load(&options.input)?;
    if !loaded.whole {
        for warning in &loaded.warnings {
            warn(warning);
        }
    }
    match output {
        Output::Stdout => to_stdout(|out| write(&loaded, options, out))?,
        Output::File(path) => {
            let size = to_file(&path, |out| write(&loaded, options, out))?;
            let _ = writeln!(
                io::stderr(),
                "gdiag: wrote {} to {}; {}",
                Bytes(size),
                path.display(),
                where_to_open(options.format)
            );
        }
    }
    Ok(if loaded.whole {
        status::DONE
    } else {
        status::FAILED
    })
}

enum Output {
    Stdout,
    File(PathBuf),
}

impl Output {
    fn of(options: &ExportOptions) -> Result<Output, Error> {
        match &options.output {
            Some(path) if path.as_os_str() != "-" => Ok(Output::File(path.clone())),
            Some(_) | None => match options.format {
                ExportFormat::Perfetto if io::stdout().is_terminal() => {
                    Err(Error::BinaryToTerminal)
                }
                ExportFormat::Perfetto | ExportFormat::Chrome => Ok(Output::Stdout),
            },
        }
    }
}

fn where_to_open(format: ExportFormat) -> &'static str {
    match format {
        ExportFormat::Perfetto => "open it at https://ui.perfetto.dev",
        ExportFormat::Chrome => "open it in chrome://tracing, or at https://ui.perfetto.dev",
    }
}

fn load(path: &Path) -> anyhow::Result<Loaded> {
    let mut reader = Reader::open(path)?;
    let meta = reader.meta().clone();
    let mut seen = Seen::default();
    let mut timeline = Timeline::new(&meta);
    reader.for_each(|event| {
        seen.event(event);
        timeline.push(event);
        ControlFlow::Continue(())
    })?;
    timeline.finish(reader.summary());
    let summary = reader.summary().cloned();
    let summary = summary.unwrap_or_else(|| seen.into_summary());
    let mut warnings = reader.coverage().warnings(meta.start());
    warnings.extend(summary.warnings.iter().cloned());
    let about = About {
        gdiag_version: meta.gdiag_version.clone(),
        host: meta.host.clone(),
        kernel: meta.kernel.clone(),
        machine: meta.machine.clone(),
        command: meta.command.clone(),
        gpu_source: match summary.gpu_source {
            GpuSource::Cupti => "cupti",
            GpuSource::Simulated => "simulated",
            GpuSource::Uprobe => "uprobe",
            GpuSource::None => "none",
        },
        start: timeline.start(),
        start_unix: (meta.start_unix_ns != 0).then_some(Nanos(meta.start_unix_ns)),
    };
    Ok(Loaded {
        timeline,
        about,
        warnings,
        whole: reader.coverage().is_whole(),
    })
}

fn write(loaded: &Loaded, options: &ExportOptions, out: &mut dyn Write) -> io::Result<()> {
    let (t, about) = (&loaded.timeline, &loaded.about);
    let what = tracks::Options {
        from: options.from,
        to: options.to,
        pids: options.pids.clone(),
    };
    // Gaps get the causes that the report gives them.
    let min_gap = analyse::Options::default().min_gap;
    let Window { from, to } = tracks::window(t, &what);
    match options.format {
        ExportFormat::Perfetto => {
            let mut sink = Perfetto::new(out, about, from)?;
            let shown = tracks::show(t, &what, min_gap, &mut sink)?;
            sink.finish(about, &trust(loaded, shown)).map(drop)
        }
        ExportFormat::Chrome => {
            let mut sink = Chrome::new(out, about, to)?;
            let shown = tracks::show(t, &what, min_gap, &mut sink)?;
            sink.finish(about, &trust(loaded, shown)).map(drop)
        }
    }
}

fn trust(loaded: &Loaded, mut shown: Shown) -> Trust {
    if shown.left_out > 0 {
        shown.quality.warnings.push(format!(
            "{} slices are left out: too many overlap on one track",
            shown.left_out
        ));
    }
    add_warnings(&mut shown.quality.warnings, loaded.warnings.clone());
    Trust {
        lost: shown.quality.lost(),
        warnings: shown.quality.warnings,
    }
}

/// Writes beside `path` and puts the whole into its place: what was there stays until then, and for good when this
/// fails. What is no plain file, such as a pipe, is written to. The result is the size.
fn to_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<u64> {
    let what = || format!("cannot write '{}'", path.display());
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => {
            let file = OpenOptions::new()
                .write(true)
                .open(path)
                .with_context(what)?;
            return match write_counted(file, write) {
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Error::OutputClosed.into()),
                result => result.with_context(what),
            };
        }
        Ok(_) | Err(_) => {}
    }
    // A link stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let temporary = Temporary::beside(&path, 0o666).with_context(what)?;
    if let Ok(there) = fs::metadata(&path) {
        let lent = temporary.file().set_permissions(there.permissions());
        lent.with_context(what)?;
    }
    let size = write_counted(temporary.file(), write).with_context(what)?;
    temporary.replace(&path).with_context(what)?;
    Ok(size)
}

fn write_counted<W: Write>(
    out: W,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(256 << 10, Counted { out, bytes: 0 });
    write(&mut out)?;
    out.flush()?;
    Ok(out.get_ref().bytes)
}

struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.out.write(data)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::present::export::{chrome, perfetto};
    use crate::store::meta::{Meta, Summary, TargetMode};
    use crate::store::tests::arbitrary;
    use crate::store::Writer;

    fn options(format: ExportFormat) -> ExportOptions {
        ExportOptions {
            input: PathBuf::new(),
            format,
            output: None,
            from: None,
            to: None,
            pids: Vec::new(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 96,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Check that a recording may hold anything: whoever made it may have meant harm.
        #[test]
        fn any_recording_can_be_exported(
            events in arbitrary::events(120),
            mode in prop::sample::select(vec![TargetMode::Launch, TargetMode::All]),
            start in prop_oneof![Just(0), 1..2_000u64, any::<u64>()],
            end in prop_oneof![Just(0), 1..2_000_000_000u64, any::<u64>()],
            from in prop::option::of(0..600u64),
            to in prop::option::of(0..2_000_000_000u64),
            pid in prop::option::of(0..6u32),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let input = dir.path().join("any.data");
            let meta = Meta { mode, start_mono_ns: start, ..Meta::default() };
            let mut writer = Writer::create(&input, &meta).unwrap();
            for event in &events {
                writer.push(event).unwrap();
            }
            writer.finish(&Summary { end_mono_ns: end, ..Summary::default() }).unwrap();
            let loaded = load(&input).unwrap();
            for format in [ExportFormat::Perfetto, ExportFormat::Chrome] {
                let options = ExportOptions {
                    from: from.map(Nanos),
                    to: to.map(Nanos),
                    pids: pid.map(crate::event::Pid).into_iter().collect(),
                    ..options(format)
                };
                let mut out = Vec::new();
                write(&loaded, &options, &mut out).unwrap();
                match format {
                    ExportFormat::Perfetto => perfetto::tests::check(&out),
                    ExportFormat::Chrome => chrome::tests::check(&out),
                }
            }
        }
    }

    #[test]
    fn a_file_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        fs::write(&path, "old").unwrap();
        let full = to_file(&path, |out| {
            out.write_all(&vec![0; 1 << 20])?;
            Err(io::Error::from_raw_os_error(libc::ENOSPC))
        });
        let error = full.unwrap_err();
        assert_eq!(crate::error::exit_status(&error, false), status::FAILED);
        let text = crate::error::render(&error);
        assert!(text.starts_with("gdiag: cannot write '") && text.contains("No space left"));
        assert_eq!(text.lines().count(), 1);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        assert_eq!(to_file(&path, |out| out.write_all(b"new!")).unwrap(), 4);
        assert_eq!(fs::read(&path).unwrap(), b"new!");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_plain_file_is_written_to() {
        assert_eq!(
            to_file(Path::new("/dev/null"), |out| out.write_all(b"x")).unwrap(),
            1
        );
        let full = to_file(Path::new("/dev/full"), |out| out.write_all(b"x"));
        assert!(full.unwrap_err().to_string().contains("/dev/full"));
    }
}
