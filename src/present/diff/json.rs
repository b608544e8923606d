//! `gdiag diff --json`. The rules of [`json`](crate::present::json) hold here, too; figures with noise are numbers with
//! fractions, for noise is often less than a nanosecond.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use serde::Serialize;

use crate::analyse::diff::{CauseDiff, Diff, Figure, GpuDiff, NamedDiff, Work};
use crate::analyse::report::Blame;
use crate::event::{Pid, Tid};
use crate::present::diff::Recording;
use crate::present::names;
use crate::store::meta::GpuSource;

/// `gdiag.diff/1`.
pub const DIFF_SCHEMA: &str = "gdiag.diff/1";

/// Writes the document and a newline.
pub fn write_diff(
    out: &mut impl Write,
    diff: &Diff,
    a: Recording<'_>,
    b: Recording<'_>,
    remarks: &[String],
) -> io::Result<()> {
    let document = DiffDoc {
        schema: DIFF_SCHEMA,
        changed: diff.changed(),
        a: RecordingDoc::new(a),
        b: RecordingDoc::new(b),
        warnings: remarks,
        gpus: diff.gpus.iter().map(GpuDoc::new).collect(),
        kernels: (diff.kernels.iter())
            .map(|row| NamedDoc::new(row, names::full(&row.name).into_owned()))
            .collect(),
        calls: (diff.calls.iter())
            .map(|row| NamedDoc::new(row, row.name.clone()))
            .collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct DiffDoc<'a> {
    schema: &'static str,
    changed: Option<bool>,
    a: RecordingDoc<'a>,
    b: RecordingDoc<'a>,
    warnings: &'a [String],
    gpus: Vec<GpuDoc<'a>>,
    kernels: Vec<NamedDoc>,
    calls: Vec<NamedDoc>,
}

#[derive(Serialize)]
struct RecordingDoc<'a> {
    file: &'a str,
    start_ns: u64,
    end_ns: Option<u64>,
    start_unix_ns: Option<u64>,
    host: Option<&'a str>,
    kernel: Option<&'a str>,
    command: &'a [String],
    gdiag_version: &'a str,
    gpu_source: Option<GpuSource>,
    lost: u64,
    whole: bool,
}

impl<'a> RecordingDoc<'a> {
    fn new(recording: Recording<'a>) -> Self {
        let (meta, summary) = (recording.meta, recording.summary);
        let known = |text: &'a str| (!text.is_empty()).then_some(text);
        RecordingDoc {
            file: recording.file,
            start_ns: meta.start_mono_ns,
            end_ns: summary.map(|summary| summary.end_mono_ns),
            start_unix_ns: (meta.start_unix_ns > 0).then_some(meta.start_unix_ns),
            host: known(&meta.host),
            kernel: known(&meta.kernel),
            command: &meta.command,
            gdiag_version: &meta.gdiag_version,
            gpu_source: summary.map(|summary| summary.gpu_source),
            lost: recording.lost,
            whole: recording.whole,
        }
    }
}

#[derive(Serialize)]
struct FigureDoc {
    a: Option<f64>,
    b: Option<f64>,
    change: Option<f64>,
    noise: Option<f64>,
    changed: Option<bool>,
}

impl FigureDoc {
    fn new(figure: &Figure) -> Self {
        FigureDoc {
            a: figure.a,
            b: figure.b,
            change: figure.change(),
            noise: figure.noise,
            changed: figure.changed(),
        }
    }
}

#[derive(Serialize)]
struct WorkDoc {
    time_ns: FigureDoc,
    idle_ns: FigureDoc,
    busy_ns: FigureDoc,
}

impl WorkDoc {
    fn new(work: &Work) -> Self {
        WorkDoc {
            time_ns: FigureDoc::new(&work.time),
            idle_ns: FigureDoc::new(&work.idle),
            busy_ns: FigureDoc::new(&work.busy),
        }
    }
}

/// What a side is on its own.
#[derive(Serialize)]
struct GpuSideDoc<'a> {
    name: Option<&'a str>,
    window_ns: u64,
    operations: u64,
    /// Operations in a step.
    step_operations: Option<u64>,
}

#[derive(Serialize)]
struct GpuDoc<'a> {
    index: u32,
    a: GpuSideDoc<'a>,
    b: GpuSideDoc<'a>,
    idle: FigureDoc,
    busy: FigureDoc,
    per_step: Option<WorkDoc>,
    per_1000_operations: WorkDoc,
    causes: Vec<CauseDoc<'a>>,
}

impl<'a> GpuDoc<'a> {
    fn new(gpu: &'a GpuDiff) -> Self {
        let known = |text: &'a str| (!text.is_empty()).then_some(text);
        GpuDoc {
            index: gpu.index,
            a: GpuSideDoc {
                name: known(&gpu.name_a),
                window_ns: gpu.window_a,
                operations: gpu.operations_a,
                step_operations: gpu.step.map(|step| step.operations_a),
            },
            b: GpuSideDoc {
                name: known(&gpu.name_b),
                window_ns: gpu.window_b,
                operations: gpu.operations_b,
                step_operations: gpu.step.map(|step| step.operations_b),
            },
            idle: FigureDoc::new(&gpu.idle),
            busy: FigureDoc::new(&gpu.busy),
            per_step: gpu.step.map(|step| WorkDoc::new(&step.work)),
            per_1000_operations: WorkDoc::new(&gpu.work),
            causes: gpu.causes.iter().map(CauseDoc::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct CauseDoc<'a> {
    id: &'static str,
    share: FigureDoc,
    by: Option<BlameDoc<'a>>,
    fix: &'static str,
}

impl<'a> CauseDoc<'a> {
    fn new(row: &'a CauseDiff) -> Self {
        CauseDoc {
            id: row.cause.id(),
            share: FigureDoc::new(&row.share),
            by: row.by.as_ref().map(BlameDoc::new),
            fix: row.cause.fix(),
        }
    }
}

#[derive(Serialize)]
struct BlameDoc<'a> {
    pid: Option<Pid>,
    tid: Option<Tid>,
    comm: Option<&'a str>,
    what: &'a str,
}

impl<'a> BlameDoc<'a> {
    fn new(blame: &'a Blame) -> Self {
        let who = blame.who.as_ref();
        BlameDoc {
            pid: who.map(|who| who.pid),
            tid: who.map(|who| who.tid),
            comm: who.map(|who| who.comm.as_str()),
            what: &blame.what,
        }
    }
}

#[derive(Serialize)]
struct NamedDoc {
    name: String,
    mean_ns: FigureDoc,
    a: CountDoc,
    b: CountDoc,
}

#[derive(Serialize)]
struct CountDoc {
    count: u64,
    total_ns: u64,
}

impl NamedDoc {
    fn new(row: &NamedDiff, name: String) -> Self {
        NamedDoc {
            name,
            mean_ns: FigureDoc::new(&row.mean),
            a: CountDoc {
                count: row.count_a,
                total_ns: row.total_a,
            },
            b: CountDoc {
                count: row.count_b,
                total_ns: row.total_b,
            },
        }
    }
}
