//! `gdiag report`: reads a recording, has it analysed, and presents the answer.
#![forbid(unsafe_code)]

use std::io::Write;
use std::ops::ControlFlow;

use crate::analyse::assert::{self, Verdict};
use crate::analyse::{self, report::Report};
use crate::cli::{GapLimit, ReportOptions};
use crate::commands::{to_stdout, warn};
use crate::error::{status, Error};
use crate::event::{ApiCall, Event, ShimState};
use crate::model::Timeline;
use crate::present::style::Style;
use crate::present::{asserts, json, report};
use crate::store::meta::{GpuSource, Meta, Summary};
use crate::store::Reader;
use crate::units::Nanos;

/// Gaps that the text shows with all their parts unless `--gaps` says how many.
const GAPS_IN_FULL: usize = 5;

/// What a recording says, analysed.
struct Explained {
    report: Report,
    meta: Meta,
    /// Made from the events where the recording does not say how it ended.
    summary: Summary,
    /// Nothing of the recording was missing or damaged.
    whole: bool,
}

/// The result is the exit status.
pub fn run(options: &ReportOptions) -> anyhow::Result<u8> {
    let Explained {
        report,
        meta,
        summary,
        whole,
    } = &explain(options)?;
    let verdicts = assert::judge(&options.asserts, report, options.gpu);
    let written = if options.json {
        // The text begins with the warnings; here they would go unseen.
        if !whole {
            for warning in &report.quality.warnings {
                warn(warning);
            }
        }
        to_stdout(|out| json::write_judged(out, report, meta, Some(summary), &verdicts))
    } else {
        let style = Style::for_stdout(gaps_in_full(options.gaps));
        to_stdout(|out| {
            report::write_report(out, report, meta, Some(summary), &style)?;
            asserts::section(out, &verdicts, &style)
        })
    };
    match written {
        // A gate says what it found also when nobody reads the report to its end.
        Err(e) if !verdicts.is_empty() && is_closed(&e) => {}
        other => other?,
    }
    for line in verdicts.iter().filter_map(asserts::complaint) {
        let _ = writeln!(std::io::stderr(), "gdiag: {line}");
    }
    Ok(exit_status(*whole, &verdicts))
}

fn is_closed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::OutputClosed))
}

/// What is known to be wrong counts more than what is not known.
fn exit_status(whole: bool, verdicts: &[Verdict<'_>]) -> u8 {
    let any = |held| verdicts.iter().any(|verdict| verdict.holds() == held);
    if any(Some(false)) {
        status::ASSERTION
    } else if !whole || any(None) {
        status::FAILED
    } else {
        status::DONE
    }
}

/// Reads the recording once, event by event.
fn explain(options: &ReportOptions) -> anyhow::Result<Explained> {
    let mut reader = Reader::open(&options.input)?;
    let meta = reader.meta().clone();
    let mut seen = Seen::default();
    let mut timeline = Timeline::new(&meta);
    reader.for_each(|event| {
        seen.event(event);
        timeline.push(event);
        ControlFlow::Continue(())
    })?;
    timeline.finish(reader.summary());
    check_gpu(options.gpu, timeline.gpu().devices().len())?;
    let mut report = analyse::report(
        &timeline,
        &analyse::Options {
            gpu: options.gpu,
            min_gap: options.min_gap,
            gaps: options.gap_limit(),
        },
    );
    let whole = reader.coverage().is_whole();
    let summary = reader
        .summary()
        .cloned()
        .unwrap_or_else(|| seen.into_summary());
    let mut warnings = reader.coverage().warnings(meta.start());
    warnings.extend(summary.warnings.iter().cloned());
    add_warnings(&mut report.quality.warnings, warnings);
    Ok(Explained {
        report,
        meta,
        summary,
        whole,
    })
}

fn gaps_in_full(asked: Option<GapLimit>) -> usize {
    match asked {
        None => GAPS_IN_FULL,
        Some(GapLimit::Count(n)) => n,
        Some(GapLimit::All) => usize::MAX,
    }
}

pub(super) fn check_gpu(asked: Option<u32>, devices: usize) -> Result<(), Error> {
    let known: Vec<u32> = (0..).take(devices).collect();
    match asked.filter(|index| !known.contains(index)) {
        Some(asked) => Err(Error::NoSuchGpu { asked, known }),
        None => Ok(()),
    }
}

/// Puts what the recording and its reading warn of before what the analysis does. Said once each.
pub(super) fn add_warnings(to: &mut Vec<String>, first: Vec<String>) {
    let mut warnings: Vec<String> = Vec::new();
    for warning in first.into_iter().chain(std::mem::take(to)) {
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    *to = warnings;
}

/// What the end of a recording would have said, as far as its events tell.
#[derive(Debug, Default)]
pub(super) struct Seen {
    end: Nanos,
    events: u64,
    gpu_source: GpuSource,
    /// Probes on a driver measured a call.
    probed: bool,
}

impl Seen {
    pub(super) fn event(&mut self, event: &Event) {
        self.events += 1;
        self.end = self.end.max(event.ts().unwrap_or_default());
        match event {
            Event::Shim(shim) if shim.simulated => self.gpu_source = GpuSource::Simulated,
            Event::Shim(shim) if shim.state == ShimState::Active => self.found(GpuSource::Cupti),
            Event::ApiCall(call) => self.probed |= call.correlation == ApiCall::PROBED,
            Event::GpuOp(op) => {
                self.end = self.end.max(op.end);
                self.found(GpuSource::Cupti);
            }
            Event::Define(_)
            | Event::Task(_)
            | Event::Exit(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Interrupt(_)
            | Event::Wait(_)
            | Event::CpuWait(_)
            | Event::Stall(_)
            | Event::SysCall(_)
            | Event::Signal(_)
            | Event::Sample(_)
            | Event::Migration(_)
            | Event::GpuInvalid(_)
            | Event::Probes(_)
            | Event::Sync(_)
            | Event::Overhead(_)
            | Event::Device(_)
            | Event::Shim(_)
            | Event::Process(_)
            | Event::Clock(_)
            | Event::Loss(_) => {}
        }
    }

    fn found(&mut self, source: GpuSource) {
        if self.gpu_source == GpuSource::None {
            self.gpu_source = source;
        }
    }

    pub(super) fn into_summary(self) -> Summary {
        Summary {
            end_mono_ns: self.end.as_u64(),
            gpu_source: match self.gpu_source {
                GpuSource::None if self.probed => GpuSource::Uprobe,
                source => source,
            },
            events: self.events,
            ..Summary::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{
        ContextId, CorrelationId, Cpu, DeviceId, GpuOp, NameId, OpKind, Pid, Shim, StreamId,
        Switch, SwitchFlags, Tid,
    };
    use crate::store::meta::TargetMode;
    use crate::store::tests::arbitrary;
    use crate::store::Writer;

    fn shim(state: ShimState, simulated: bool) -> Event {
        Event::Shim(Shim {
            ts: Nanos(5),
            pid: Pid(1),
            state,
            reason: NameId(0),
            cupti_path: NameId(0),
            cupti_version: 0,
            simulated,
        })
    }

    fn operation(start: u64, end: u64) -> Event {
        Event::GpuOp(GpuOp {
            pid: Pid(1),
            device: DeviceId(0),
            context: ContextId(1),
            stream: StreamId(7),
            kind: OpKind::Graph,
            start: Nanos(start),
            end: Nanos(end),
            correlation: CorrelationId(1),
            graph: 0,
            node: 0,
        })
    }

    fn switch(ts: u64) -> Event {
        Event::Switch(Switch {
            ts: Nanos(ts),
            cpu: Cpu(0),
            prev: Tid(1),
            next: Tid(2),
            state: 0,
            syscall: None,
            flags: SwitchFlags(0),
            minor_faults: 0,
            major_faults: 0,
        })
    }

    fn summary_of(events: &[Event]) -> Summary {
        let mut seen = Seen::default();
        events.iter().for_each(|event| seen.event(event));
        seen.into_summary()
    }

    #[test]
    fn a_cut_recording_ends_with_its_last_event() {
        assert_eq!(
            summary_of(&[switch(10), operation(20, 90), switch(30)]).end_mono_ns,
            90
        );
        assert_eq!(
            summary_of(&[operation(20, 90), switch(100)]).end_mono_ns,
            100
        );
        assert_eq!(summary_of(&[switch(1), switch(2)]).events, 2);
    }

    #[test]
    fn a_cut_recording_still_tells_a_simulated_gpu() {
        let source = |events: &[Event]| summary_of(events).gpu_source;
        assert_eq!(source(&[switch(1)]), GpuSource::None);
        assert_eq!(source(&[shim(ShimState::Dormant, false)]), GpuSource::None);
        assert_eq!(source(&[shim(ShimState::Active, false)]), GpuSource::Cupti);
        assert_eq!(source(&[operation(1, 2)]), GpuSource::Cupti);
        assert_eq!(
            source(&[
                operation(1, 2),
                shim(ShimState::Active, true),
                operation(2, 3)
            ]),
            GpuSource::Simulated
        );
    }

    #[test]
    fn warnings_of_the_reading_come_first_and_once() {
        let mut warnings = vec!["b".into(), "c".into()];
        add_warnings(&mut warnings, vec!["a".into(), "b".into()]);
        assert_eq!(warnings, ["a", "b", "c"]);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_names_those_that_are() {
        let text = |devices| check_gpu(Some(2), devices).map_err(|e| e.to_string());
        assert_eq!(
            text(0),
            Err("there is no GPU 2 in this recording; it has none".to_string())
        );
        assert_eq!(
            text(1),
            Err("there is no GPU 2 in this recording; it has GPU 0".to_string())
        );
        assert_eq!(
            text(2),
            Err("there is no GPU 2 in this recording; it has GPUs 0, 1".to_string())
        );
        assert_eq!(text(3), Ok(()));
        assert!(check_gpu(None, 0).is_ok());
    }

    #[test]
    fn gaps_asked_for_are_shown_in_full() {
        assert_eq!(gaps_in_full(None), 5);
        assert_eq!(gaps_in_full(Some(GapLimit::Count(7))), 7);
        assert_eq!(gaps_in_full(Some(GapLimit::All)), usize::MAX);
    }

    fn any_meta() -> impl Strategy<Value = Meta> {
        let mode = prop::sample::select(vec![
            TargetMode::Launch,
            TargetMode::Attach,
            TargetMode::All,
        ]);
        let start = prop_oneof![Just(0), 0..2_000u64, any::<u64>()];
        (mode, start, any::<u64>(), any::<String>()).prop_map(|(mode, start, unix, text)| Meta {
            mode,
            start_mono_ns: start,
            start_unix_ns: unix,
            machine: "x86_64".to_string(),
            host: text.clone(),
            command: vec![text],
            ..Meta::default()
        })
    }

    fn any_end() -> impl Strategy<Value = Option<Summary>> {
        let end = prop_oneof![Just(0), 0..2_000u64, any::<u64>()];
        let summary = end.prop_map(|end_mono_ns| Summary {
            end_mono_ns,
            ..Summary::default()
        });
        prop::option::of(summary)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Check that a recording may hold anything: whoever made it may have meant harm.
        #[test]
        fn any_recording_can_be_reported(
            meta in any_meta(),
            end in any_end(),
            events in arbitrary::events(120),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let input = dir.path().join("any.data");
            let mut writer = Writer::create(&input, &meta).unwrap();
            for event in &events {
                writer.push(event).unwrap();
            }
            match &end {
                Some(summary) => drop(writer.finish(summary).unwrap()),
                None => writer.flush().unwrap(),
            }
            let explained = explain(&ReportOptions {
                input,
                json: false,
                gpu: None,
                min_gap: Nanos::ZERO,
                gaps: Some(GapLimit::All),
                asserts: Vec::new(),
            })
            .unwrap();
            let Explained { report, meta, summary, .. } = &explained;
            let mut out = Vec::new();
            json::write_report(&mut out, report, meta, Some(summary)).unwrap();
            serde_json::from_slice::<serde_json::Value>(&out).unwrap();
            out.clear();
            let style = Style { width: 80, color: true, gaps_in_full: usize::MAX };
            report::write_report(&mut out, report, meta, Some(summary), &style).unwrap();
            prop_assert!(String::from_utf8(out).is_ok());
        }
    }
}
