//! A recording as a whole, for commands that look at all of it.
#![forbid(unsafe_code)]

use std::ops::ControlFlow;
use std::path::Path;

use crate::model::Timeline;
use crate::store::Reader;

/// A recording, and how much of it could be read.
pub(super) struct Loaded {
    pub(super) timeline: Timeline,
    pub(super) warnings: Vec<String>,
    /// Nothing of the recording was missing or damaged.
    pub(super) whole: bool,
}

pub(super) fn load(path: &Path) -> anyhow::Result<Loaded> {
    let mut reader = Reader::open(path)?;
    let mut timeline = Timeline::new(reader.meta());
    reader.for_each(|event| {
        timeline.push(event);
        ControlFlow::Continue(())
    })?;
    timeline.finish(reader.summary());
    Ok(Loaded {
        warnings: reader.coverage().warnings(reader.meta().start()),
        whole: reader.coverage().is_whole(),
        timeline,
    })
}
