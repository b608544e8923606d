//! `gdiag diff`: reads two recordings, one after the other, and presents what changed.
#![forbid(unsafe_code)]

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context as _;

use crate::analyse::diff::{self, About, Side};
use crate::cli::DiffOptions;
use crate::commands::report::{check_gpu, Seen};
use crate::commands::{to_stdout, warn};
use crate::error::status;
use crate::model::Timeline;
use crate::present::diff::{json, write_diff, Recording};
use crate::present::style::Style;
use crate::store::meta::{Meta, Summary};
use crate::store::Reader;

/// A recording, and what is compared of it.
struct Loaded {
    file: String,
    meta: Meta,
    summary: Summary,
    side: Side,
    /// What is missing of it or damaged; empty when nothing is.
    damage: Vec<String>,
    whole: bool,
}

impl Loaded {
    fn about(&self) -> About<'_> {
        About {
            meta: &self.meta,
            summary: Some(&self.summary),
            side: &self.side,
        }
    }

    fn recording(&self) -> Recording<'_> {
        Recording {
            file: &self.file,
            meta: &self.meta,
            summary: Some(&self.summary),
            lost: self.side.quality.lost(),
            whole: self.whole,
        }
    }
}

/// The result is the exit status.
pub fn run(options: &DiffOptions) -> anyhow::Result<u8> {
    // What is compared of one is small: the other has the memory for itself.
    let a = load(&options.a, options)?;
    let b = load(&options.b, options)?;
    let diff = diff::compare(&a.side, &b.side);
    let mut remarks = Vec::new();
    for (name, side) in [("A", &a), ("B", &b)] {
        let said = side.damage.iter().map(|text| format!("{name}: {text}"));
        remarks.extend(said);
    }
    remarks.extend(diff::remarks(a.about(), b.about()));
    let (left, right) = (a.recording(), b.recording());
    let compared = a.whole && b.whole && !diff.gpus.is_empty();
    if options.json {
        // The text begins with them; here what the status is for would go unseen.
        if !compared {
            for remark in &remarks {
                warn(remark);
            }
        }
        to_stdout(|out| json::write_diff(out, &diff, left, right, &remarks))?;
    } else {
        let style = Style::for_stdout(0);
        to_stdout(|out| write_diff(out, &diff, left, right, &remarks, &style))?;
    }
    Ok(if compared {
        status::DONE
    } else {
        status::FAILED
    })
}

fn load(path: &Path, options: &DiffOptions) -> anyhow::Result<Loaded> {
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
    check_gpu(options.gpu, timeline.gpu().devices().len())
        .with_context(|| format!("cannot compare '{}'", path.display()))?;
    let summary = reader.summary().cloned();
    Ok(Loaded {
        file: path.display().to_string(),
        side: diff::side(&timeline, options.gpu, options.min_gap),
        damage: reader.coverage().warnings(meta.start()),
        whole: reader.coverage().is_whole(),
        summary: summary.unwrap_or_else(|| seen.into_summary()),
        meta,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::tests::arbitrary;
    use crate::store::Writer;
    use crate::units::Nanos;

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Check that a recording may hold anything, and that it has not changed from itself.
        #[test]
        fn any_recordings_can_be_compared(
            events in arbitrary::events(120),
            others in arbitrary::events(120),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let write = |name: &str, events: &[crate::event::Event]| {
                let path = dir.path().join(name);
                let mut writer = Writer::create(&path, &Meta::default()).unwrap();
                events.iter().for_each(|event| writer.push(event).unwrap());
                writer.finish(&Summary::default()).unwrap();
                path
            };
            let options = DiffOptions {
                a: write("a.data", &events),
                b: write("b.data", &others),
                json: false,
                gpu: None,
                min_gap: Nanos::ZERO,
            };
            let (a, b) = (load(&options.a, &options).unwrap(), load(&options.b, &options).unwrap());
            let diff = diff::compare(&a.side, &b.side);
            let remarks = diff::remarks(a.about(), b.about());
            let mut out = Vec::new();
            json::write_diff(&mut out, &diff, a.recording(), b.recording(), &remarks).unwrap();
            serde_json::from_slice::<serde_json::Value>(&out).unwrap();
            out.clear();
            let style = Style { width: 80, color: true, gaps_in_full: 0 };
            write_diff(&mut out, &diff, a.recording(), b.recording(), &remarks, &style).unwrap();
            prop_assert!(String::from_utf8(out).is_ok());
            let same = diff::compare(&a.side, &a.side);
            prop_assert_ne!(same.changed(), Some(true));
        }
    }
}
