//! The versioned JSON documents. Keys and their order are public: adding a key is fine,
//! renaming one or changing its meaning is a new version.
//!
//! Times are integers in nanoseconds. What cannot be known is null, never 0. Names are whole
//! and as they came, except that those of kernels are demangled ([`names::full`]) and that the frames of a
//! program read as everywhere ([`frame_text`](crate::model::frame_text)).
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::analyse::assert::{Amount, Verdict};
use crate::analyse::report::{
    Blame, Call, CauseRow, Gap, Gpu, Hop, Kernel, NextOp, OpenedBy, Part, Quality, Report, Thread,
    ThreadRef, Waker,
};
use crate::event::{CorrelationId, Pid, StreamId, Tid};
use crate::facts::GpuFacts;
use crate::present::facts::FactsDoc;
use crate::present::{names, report};
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::units::Nanos;

/// `gdiag.report/1`.
pub const REPORT_SCHEMA: &str = "gdiag.report/1";

/// Writes the document and a newline. `summary` is `None` when the recording does not say how it ended.
pub fn write_report(
    out: &mut impl Write,
    report: &Report,
    meta: &Meta,
    summary: Option<&Summary>,
) -> io::Result<()> {
    let names = Demangled::of(report);
    let document = document(report, meta, summary, &names);
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}

/// The same with what came out of assertions, where there were any.
pub fn write_judged(
    out: &mut impl Write,
    report: &Report,
    meta: &Meta,
    summary: Option<&Summary>,
    verdicts: &[Verdict<'_>],
) -> io::Result<()> {
    let names = Demangled::of(report);
    let document = ReportDoc {
        asserts: (!verdicts.is_empty()).then(|| verdicts.iter().map(AssertDoc::new).collect()),
        ..document(report, meta, summary, &names)
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}

/// The same in one line, with what the driver says of the GPUs now.
pub fn write_report_line(
    out: &mut impl Write,
    report: &Report,
    meta: &Meta,
    summary: Option<&Summary>,
    facts: &[GpuFacts],
) -> io::Result<()> {
    let names = Demangled::of(report);
    let document = ReportDoc {
        nvml: Some(facts.iter().map(FactsDoc::new).collect()),
        ..document(report, meta, summary, &names)
    };
    serde_json::to_writer(&mut *out, &document)?;
    out.write_all(b"\n")
}

fn document<'a>(
    report: &'a Report,
    meta: &'a Meta,
    summary: Option<&Summary>,
    names: &'a Demangled<'a>,
) -> ReportDoc<'a> {
    ReportDoc {
        schema: REPORT_SCHEMA,
        recording: RecordingDoc {
            start_ns: meta.start_mono_ns,
            end_ns: summary.map(|summary| summary.end_mono_ns),
            start_unix_ns: known(&meta.start_unix_ns),
            host: known(&meta.host),
            kernel: known(&meta.kernel),
            command: &meta.command,
            gdiag_version: &meta.gdiag_version,
            gpu_source: summary.map(|summary| summary.gpu_source),
        },
        quality: QualityDoc::new(&report.quality),
        gpus: report
            .gpus
            .iter()
            .map(|gpu| GpuDoc::new(gpu, names))
            .collect(),
        threads: report.threads.iter().map(ThreadDoc::new).collect(),
        kernels: report
            .kernels
            .iter()
            .map(|kernel| KernelDoc::new(kernel, names))
            .collect(),
        calls: report.calls.iter().map(CallDoc::new).collect(),
        nvml: None,
        asserts: None,
    }
}

/// What a default would stand for "could not be read".
fn known<T: Default + PartialEq>(value: &T) -> Option<&T> {
    (*value != T::default()).then_some(value)
}

/// The few distinct kernel names of a report, demangled once.
struct Demangled<'a>(HashMap<&'a str, Cow<'a, str>>);

impl<'a> Demangled<'a> {
    fn of(report: &'a Report) -> Self {
        let gaps = report.gpus.iter().flat_map(|gpu| &gpu.gaps);
        let next = gaps
            .filter_map(|gap| gap.next.as_ref())
            .map(|next| next.name.as_str());
        let mut map = HashMap::new();
        for name in report
            .kernels
            .iter()
            .map(|kernel| kernel.name.as_str())
            .chain(next)
        {
            map.entry(name).or_insert_with(|| names::full(name));
        }
        Demangled(map)
    }

    fn get(&self, name: &'a str) -> &str {
        self.0.get(name).map_or(name, Cow::as_ref)
    }
}

#[derive(Serialize)]
struct ReportDoc<'a> {
    schema: &'static str,
    recording: RecordingDoc<'a>,
    quality: QualityDoc<'a>,
    gpus: Vec<GpuDoc<'a>>,
    threads: Vec<ThreadDoc<'a>>,
    kernels: Vec<KernelDoc<'a>>,
    calls: Vec<CallDoc<'a>>,
    /// Of a moment: recordings have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    nvml: Option<Vec<FactsDoc<'a>>>,
    /// Only where something was asserted.
    #[serde(skip_serializing_if = "Option::is_none")]
    asserts: Option<Vec<AssertDoc<'a>>>,
}

#[derive(Serialize)]
struct RecordingDoc<'a> {
    start_ns: u64,
    end_ns: Option<u64>,
    start_unix_ns: Option<&'a u64>,
    host: Option<&'a String>,
    kernel: Option<&'a String>,
    /// Arguments one by one, so that nobody has to take a command line apart.
    command: &'a [String],
    gdiag_version: &'a str,
    gpu_source: Option<GpuSource>,
}

#[derive(Serialize)]
struct QualityDoc<'a> {
    bpf_lost: u64,
    shim_lost: u64,
    cupti_lost: u64,
    invalid_gpu_records: u64,
    unmatched_gpu_records: u64,
    gpu_coverage: Option<f64>,
    max_clock_error_ns: Option<u64>,
    warnings: &'a [String],
}

impl<'a> QualityDoc<'a> {
    fn new(quality: &'a Quality) -> Self {
        QualityDoc {
            bpf_lost: quality.bpf_lost,
            shim_lost: quality.shim_lost,
            cupti_lost: quality.cupti_lost,
            invalid_gpu_records: quality.invalid_gpu_records,
            unmatched_gpu_records: quality.unmatched_gpu_records,
            gpu_coverage: quality.gpu_coverage,
            max_clock_error_ns: quality.max_clock_error.map(Nanos::as_u64),
            warnings: &quality.warnings,
        }
    }
}

#[derive(Serialize)]
struct GpuDoc<'a> {
    index: u32,
    name: Option<&'a String>,
    uuid: Option<&'a String>,
    window_ns: Option<u64>,
    unknown_ns: Option<u64>,
    busy_ns: Option<u64>,
    idle_ns: Option<u64>,
    idle_explained: Option<f64>,
    busy: BusyDoc,
    causes: Vec<CauseDoc<'a>>,
    gaps: Gaps<'a>,
}

impl<'a> GpuDoc<'a> {
    fn new(gpu: &'a Gpu, names: &'a Demangled<'a>) -> Self {
        // Without operations there is no window.
        let looked_at = gpu.window_start < gpu.window_end || !report::ran_nothing(gpu);
        let window = |time: Nanos| looked_at.then_some(time.as_u64());
        // Where busy time cannot be told, neither can its parts.
        let part = |busy: Nanos| gpu.busy.and_then(|_| window(busy));
        GpuDoc {
            index: gpu.index,
            name: known(&gpu.name),
            uuid: known(&gpu.uuid),
            window_ns: window(report::window(gpu)),
            unknown_ns: window(report::unknown(gpu)),
            busy_ns: gpu.busy.and_then(window),
            idle_ns: gpu.idle.and_then(window),
            idle_explained: gpu.idle_explained.filter(|_| looked_at),
            busy: BusyDoc {
                kernel_ns: part(gpu.busy_kernel),
                memcpy_ns: part(gpu.busy_memcpy),
                memset_ns: part(gpu.busy_memset),
            },
            causes: gpu.causes.iter().map(CauseDoc::new).collect(),
            gaps: Gaps {
                gaps: &gpu.gaps,
                names,
            },
        }
    }
}

#[derive(Serialize)]
struct BusyDoc {
    kernel_ns: Option<u64>,
    memcpy_ns: Option<u64>,
    memset_ns: Option<u64>,
}

#[derive(Serialize)]
struct CauseDoc<'a> {
    id: &'static str,
    ns: u64,
    share: f64,
    gaps: u64,
    by: Vec<BlameDoc<'a>>,
    /// Empty when there is nothing to do.
    fix: &'static str,
}

impl<'a> CauseDoc<'a> {
    fn new(row: &'a CauseRow) -> Self {
        CauseDoc {
            id: row.cause.id(),
            ns: row.total.as_u64(),
            share: row.share,
            gaps: row.gaps,
            by: row.by.iter().map(BlameDoc::new).collect(),
            fix: row.cause.fix(),
        }
    }
}

/// A thread, or three nulls: flattened into the objects that blame one.
#[derive(Serialize)]
struct Who<'a> {
    pid: Option<Pid>,
    tid: Option<Tid>,
    comm: Option<&'a str>,
}

impl<'a> Who<'a> {
    fn new(who: Option<&'a ThreadRef>) -> Self {
        Who {
            pid: who.map(|who| who.pid),
            tid: who.map(|who| who.tid),
            comm: who.map(|who| who.comm.as_str()),
        }
    }

    fn one(who: &'a ThreadRef) -> Self {
        Who::new(Some(who))
    }
}

#[derive(Serialize)]
struct BlameDoc<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    what: &'a str,
    ns: u64,
}

impl<'a> BlameDoc<'a> {
    fn new(blame: &'a Blame) -> Self {
        BlameDoc {
            who: Who::new(blame.who.as_ref()),
            what: &blame.what,
            ns: blame.total.as_u64(),
        }
    }
}

/// Written one by one: with `--gaps all` there can be millions.
struct Gaps<'a> {
    gaps: &'a [Gap],
    names: &'a Demangled<'a>,
}

impl Serialize for Gaps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.gaps.iter().map(|gap| GapDoc::new(gap, self.names)))
    }
}

#[derive(Serialize)]
struct GapDoc<'a> {
    start_ns: u64,
    end_ns: u64,
    /// Null for a gap still open at the end.
    next: Option<NextDoc<'a>>,
    dispatcher: Option<Who<'a>>,
    lead_ns: Option<i64>,
    opened_by: Option<OpenedByDoc<'a>>,
    parts: Vec<PartDoc<'a>>,
    chain: Vec<HopDoc<'a>>,
}

impl<'a> GapDoc<'a> {
    fn new(gap: &'a Gap, names: &'a Demangled<'a>) -> Self {
        GapDoc {
            start_ns: gap.start.as_u64(),
            end_ns: gap.end.as_u64(),
            next: gap.next.as_ref().map(|next| NextDoc::new(next, names)),
            dispatcher: gap.dispatcher.as_ref().map(Who::one),
            lead_ns: gap.lead_ns,
            opened_by: gap.opened_by.as_ref().map(OpenedByDoc::new),
            parts: gap.parts.iter().map(PartDoc::new).collect(),
            chain: gap.chain.iter().map(HopDoc::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct NextDoc<'a> {
    kind: &'static str,
    name: &'a str,
    stream: StreamId,
    correlation: CorrelationId,
    pid: Pid,
}

impl<'a> NextDoc<'a> {
    fn new(next: &'a NextOp, names: &'a Demangled<'a>) -> Self {
        NextDoc {
            kind: next.kind,
            name: names.get(&next.name),
            stream: next.stream,
            correlation: next.correlation,
            pid: next.pid,
        }
    }
}

#[derive(Serialize)]
struct OpenedByDoc<'a> {
    call: &'a str,
    #[serde(flatten)]
    who: Who<'a>,
    stack: &'a [String],
}

impl<'a> OpenedByDoc<'a> {
    fn new(opened_by: &'a OpenedBy) -> Self {
        OpenedByDoc {
            call: &opened_by.call,
            who: Who::one(&opened_by.who),
            stack: &opened_by.stack.frames,
        }
    }
}

#[derive(Serialize)]
struct PartDoc<'a> {
    start_ns: u64,
    end_ns: u64,
    cause: &'static str,
    #[serde(flatten)]
    who: Who<'a>,
    what: &'a str,
    stack: &'a [String],
}

impl<'a> PartDoc<'a> {
    fn new(part: &'a Part) -> Self {
        PartDoc {
            start_ns: part.start.as_u64(),
            end_ns: part.end.as_u64(),
            cause: part.cause.id(),
            who: Who::new(part.who.as_ref()),
            what: &part.what,
            stack: &part.stack.frames,
        }
    }
}

#[derive(Serialize)]
struct HopDoc<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    state: &'a str,
    start_ns: u64,
    end_ns: u64,
    woken_by: Option<WakerDoc<'a>>,
}

impl<'a> HopDoc<'a> {
    fn new(hop: &'a Hop) -> Self {
        HopDoc {
            who: Who::one(&hop.who),
            state: &hop.state,
            start_ns: hop.start.as_u64(),
            end_ns: hop.end.as_u64(),
            woken_by: hop.woken_by.as_ref().map(|waker| match waker {
                Waker::Task(who) => WakerDoc::Task(Who::one(who)),
                Waker::Irq(irq) => WakerDoc::Irq { irq },
                Waker::SoftIrq(softirq) => WakerDoc::SoftIrq { softirq },
                Waker::Timer => WakerDoc::Timer { timer: true },
            }),
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum WakerDoc<'a> {
    Task(Who<'a>),
    Irq { irq: &'a str },
    SoftIrq { softirq: &'a str },
    Timer { timer: bool },
}

#[derive(Serialize)]
struct ThreadDoc<'a> {
    #[serde(flatten)]
    who: Who<'a>,
    dispatcher: bool,
    run_ns: u64,
    runq_ns: u64,
    blocked_ns: u64,
    launches: u64,
}

impl<'a> ThreadDoc<'a> {
    fn new(thread: &'a Thread) -> Self {
        ThreadDoc {
            who: Who::one(&thread.who),
            dispatcher: thread.dispatcher,
            run_ns: thread.run.as_u64(),
            runq_ns: thread.runq.as_u64(),
            blocked_ns: thread.blocked.as_u64(),
            launches: thread.launches,
        }
    }
}

#[derive(Serialize)]
struct KernelDoc<'a> {
    name: &'a str,
    count: u64,
    total_ns: u64,
    min_ns: u64,
    avg_ns: Option<u64>,
    max_ns: u64,
}

impl<'a> KernelDoc<'a> {
    fn new(kernel: &'a Kernel, names: &'a Demangled<'a>) -> Self {
        KernelDoc {
            name: names.get(&kernel.name),
            count: kernel.count,
            total_ns: kernel.total.as_u64(),
            min_ns: kernel.min.as_u64(),
            avg_ns: kernel.total.as_u64().checked_div(kernel.count),
            max_ns: kernel.max.as_u64(),
        }
    }
}

#[derive(Serialize)]
struct CallDoc<'a> {
    name: &'a str,
    count: u64,
    total_ns: u64,
    max_ns: u64,
    idle_overlap_ns: Option<u64>,
}

impl<'a> CallDoc<'a> {
    fn new(call: &'a Call) -> Self {
        CallDoc {
            name: &call.name,
            count: call.count,
            total_ns: call.total.as_u64(),
            max_ns: call.max.as_u64(),
            idle_overlap_ns: call.idle_overlap.map(Nanos::as_u64),
        }
    }
}

#[derive(Serialize)]
struct AssertDoc<'a> {
    text: &'a str,
    gpu: Option<u32>,
    value: Option<Figure>,
    limit: Figure,
    /// `share` (0 to 1), `ns` or `count`.
    unit: &'static str,
    holds: Option<bool>,
}

impl<'a> AssertDoc<'a> {
    fn new(verdict: &Verdict<'a>) -> Self {
        let assertion = verdict.assertion;
        AssertDoc {
            text: &assertion.text,
            gpu: verdict.gpu,
            value: verdict.value.ok().map(Figure::new),
            limit: Figure::new(assertion.limit),
            unit: match assertion.limit {
                Amount::Percent(_) => "share",
                Amount::Time(_) => "ns",
                Amount::Count(_) => "count",
            },
            holds: verdict.holds(),
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Figure {
    Share(f64),
    Whole(u64),
}

impl Figure {
    fn new(amount: Amount) -> Self {
        match amount {
            Amount::Percent(percent) => Figure::Share(percent / 100.0),
            Amount::Time(time) => Figure::Whole(time.as_u64()),
            Amount::Count(count) => Figure::Whole(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::analyse::assert;
    use crate::present::sample;

    fn document(report: &Report, meta: &Meta, summary: Option<&Summary>) -> (String, Value) {
        let mut out = Vec::new();
        write_report(&mut out, report, meta, summary).unwrap();
        let text = String::from_utf8(out).unwrap();
        let value = serde_json::from_str(&text).unwrap();
        (text, value)
    }

    fn sample_document() -> Value {
        document(&sample::report(), &sample::meta(), Some(&sample::summary())).1
    }

    /// The keys of the object at `pointer`, in order of the alphabet.
    fn keys(value: &Value, pointer: &str) -> Vec<String> {
        let object = value.pointer(pointer).and_then(Value::as_object);
        object
            .unwrap_or_else(|| panic!("no object at {pointer}"))
            .keys()
            .cloned()
            .collect()
    }

    #[test]
    fn the_document_has_exactly_the_keys_of_the_schema() {
        let value = sample_document();
        for (pointer, expected) in [
            ("", "schema recording quality gpus threads kernels calls"),
            ("/recording", "start_ns end_ns start_unix_ns host kernel command gdiag_version gpu_source"),
            (
                "/quality",
                "bpf_lost shim_lost cupti_lost invalid_gpu_records unmatched_gpu_records gpu_coverage \
                 max_clock_error_ns warnings",
            ),
            ("/gpus/0", "index name uuid window_ns unknown_ns busy_ns idle_ns idle_explained busy causes gaps"),
            ("/gpus/0/busy", "kernel_ns memcpy_ns memset_ns"),
            ("/gpus/0/causes/0", "id ns share gaps by fix"),
            ("/gpus/0/causes/0/by/0", "pid tid comm what ns"),
            ("/gpus/0/gaps/0", "start_ns end_ns next dispatcher lead_ns opened_by parts chain"),
            ("/gpus/0/gaps/0/next", "kind name stream correlation pid"),
            ("/gpus/0/gaps/0/dispatcher", "pid tid comm"),
            ("/gpus/0/gaps/0/opened_by", "call pid tid comm stack"),
            ("/gpus/0/gaps/0/parts/0", "start_ns end_ns cause pid tid comm what stack"),
            ("/gpus/0/gaps/0/chain/0", "pid tid comm state start_ns end_ns woken_by"),
            ("/gpus/0/gaps/0/chain/0/woken_by", "pid tid comm"),
            ("/gpus/0/gaps/0/chain/1/woken_by", "irq"),
            ("/gpus/0/gaps/1/chain/0/woken_by", "softirq"),
            ("/gpus/0/gaps/1/chain/1/woken_by", "timer"),
            ("/threads/0", "pid tid comm dispatcher run_ns runq_ns blocked_ns launches"),
            ("/kernels/0", "name count total_ns min_ns avg_ns max_ns"),
            ("/calls/0", "name count total_ns max_ns idle_overlap_ns"),
        ] {
            let mut expected: Vec<&str> = expected.split_whitespace().collect();
            expected.sort_unstable();
            assert_eq!(keys(&value, pointer), expected, "{pointer}");
        }
    }

    #[test]
    fn what_cannot_be_known_is_null() {
        let value = document(&sample::unknowable(), &Meta::default(), None).1;
        for pointer in [
            "/recording/end_ns",
            "/recording/start_unix_ns",
            "/recording/host",
            "/recording/gpu_source",
            "/quality/gpu_coverage",
            "/quality/max_clock_error_ns",
            "/gpus/0/busy_ns",
            "/gpus/0/idle_ns",
            "/gpus/0/idle_explained",
            "/gpus/0/busy/kernel_ns",
        ] {
            assert_eq!(value.pointer(pointer), Some(&Value::Null), "{pointer}");
        }
        let value = sample_document();
        for pointer in [
            "/gpus/0/gaps/1/next",
            "/gpus/0/gaps/1/lead_ns",
            "/gpus/0/gaps/1/opened_by",
            "/gpus/0/gaps/1/parts/0/pid",
            "/gpus/0/gaps/1/parts/0/comm",
            "/gpus/0/gaps/1/chain/2/woken_by",
        ] {
            assert_eq!(value.pointer(pointer), Some(&Value::Null), "{pointer}");
        }
    }

    #[test]
    fn the_sample_document_is_the_golden_one() {
        let text = document(&sample::report(), &sample::meta(), Some(&sample::summary())).0;
        sample::assert_golden("report.json", &text);
    }

    #[test]
    fn verdicts_stand_beside_the_figures() {
        let asserts = ["idle<20%", "longest-gap<50ms", "lost<1", "gpu-coverage>99%"];
        let asserts: Vec<_> = asserts.iter().map(|text| text.parse().unwrap()).collect();
        let report = Report {
            gpus: sample::unknowable().gpus,
            ..sample::report()
        };
        let mut verdicts = assert::judge(&asserts, &sample::report(), Some(0));
        verdicts.extend(assert::judge(&asserts[..1], &report, Some(0)));
        let mut out = Vec::new();
        let (meta, summary) = (sample::meta(), sample::summary());
        write_judged(
            &mut out,
            &sample::report(),
            &meta,
            Some(&summary),
            &verdicts,
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        sample::assert_golden("report-asserts.json", &text);
        let value: Value = serde_json::from_str(&text).unwrap();
        let last = value["asserts"].as_array().unwrap().last().unwrap();
        assert!(last["holds"].is_null() && last["value"].is_null(), "{last}");
    }

    #[test]
    fn hostile_names_survive_whole() {
        let report = sample::hostile();
        let value = document(&report, &sample::meta(), Some(&sample::summary())).1;
        for (i, thread) in report.threads.iter().enumerate() {
            assert_eq!(value["threads"][i]["comm"], thread.who.comm.as_str());
        }
        for (i, kernel) in report.kernels.iter().enumerate() {
            assert_eq!(value["kernels"][i]["name"], kernel.name.as_str());
        }
        assert_eq!(
            value["kernels"][0]["name"].as_str().map(str::len),
            Some(20_000)
        );
    }
}
