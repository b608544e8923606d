//! `stacks FILE [SHOWN]`: how whole the stacks of a recording are, as one line of JSON; before it,
//! SHOWN stacks in full, those that are cut first. Of those between the first and the last operation
//! of a GPU, when there is one: the start of a program is another matter.

#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;

use gdiag::event::{CallStackId, Define, Event, Frame, SampleKind};
use gdiag::model::frame_text;
use gdiag::model::Timeline;
use gdiag::store::Reader;

#[derive(Default)]
struct Count {
    samples: u64,
    /// To the root of the thread.
    whole: u64,
    python: u64,
    /// Whole, through the driver, and with a line of Python.
    launch_with_line: u64,
    through_driver: u64,
    frames: u64,
    /// Why the others are cut, and in which file.
    cuts: BTreeMap<String, u64>,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: stacks FILE [SHOWN]");
    let shown: usize = args.next().map_or(0, |n| n.parse().expect("a number"));
    let mut reader = Reader::open(Path::new(&path)).expect("cannot open the recording");
    let mut timeline = Timeline::new(&reader.meta().clone());
    let mut samples = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    let mut stacks = HashMap::new();
    reader
        .for_each(|event| {
            timeline.push(event);
            match event {
                Event::Sample(sample) => samples.push(*sample),
                Event::GpuOp(op) => {
                    first = first.min(op.start.0);
                    last = last.max(op.end.0);
                }
                Event::Define(Define::CallStack { id, frames, cut }) => {
                    stacks.insert(*id, (frames.clone(), *cut));
                }
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .expect("cannot read the recording");
    timeline.finish(reader.summary());
    let names = timeline.names();
    let window = if last == 0 { 0..u64::MAX } else { first..last };
    let mut kinds: BTreeMap<&str, Count> = BTreeMap::new();
    samples.retain(|s| s.user != CallStackId(0) && window.contains(&s.ts.0));
    for sample in &samples {
        let count = kinds.entry(kind(&sample.kind)).or_default();
        let Some((frames, cut)) = stacks.get(&sample.user) else {
            continue;
        };
        let has =
            |what: &dyn Fn(Frame) -> bool| frames.iter().filter_map(|&f| names.frame(f)).any(what);
        let python = has(&|f| matches!(f, Frame::Python { .. }));
        let driver = has(&|f| match f {
            Frame::Native { module, .. } => {
                let file = timeline.name(module).rsplit('/').next().unwrap_or("");
                file.starts_with("libcuda.so")
            }
            Frame::Anonymous { .. } | Frame::Python { .. } => false,
        });
        count.samples += 1;
        count.frames += frames.len() as u64;
        count.whole += u64::from(cut.is_none());
        count.python += u64::from(python);
        count.through_driver += u64::from(driver);
        count.launch_with_line += u64::from(driver && python && cut.is_none());
        if let Some(cut) = cut {
            let file = match frames.last().and_then(|&f| names.frame(f)) {
                Some(Frame::Native { module, .. }) => frame_text::file_name(timeline.name(module)),
                Some(Frame::Anonymous { .. } | Frame::Python { .. }) | None => "-",
            };
            let why = format!("{} {file}", frame_text::cut(*cut));
            *count.cuts.entry(why).or_default() += 1;
        }
    }
    samples.sort_by_key(|s| stacks.get(&s.user).is_none_or(|(_, cut)| cut.is_none()));
    for sample in samples.iter().take(shown) {
        println!("{} {:?}", sample.tid, sample.kind);
        let (frames, cut) = stacks.get(&sample.user).cloned().unwrap_or_default();
        for frame in frames {
            frame_text::frame(names, frame, |text| println!("    {text}"));
        }
        println!("    {}", cut.map_or("root", frame_text::cut));
    }
    let json: serde_json::Map<_, _> = kinds
        .iter()
        .map(|(kind, c)| {
            let value = serde_json::json!({
                "samples": c.samples, "whole": c.whole, "python": c.python, "frames": c.frames,
                "through_driver": c.through_driver, "launch_with_line": c.launch_with_line, "cuts": c.cuts,
            });
            (kind.to_string(), value)
        })
        .collect();
    println!("{}", serde_json::Value::Object(json));
}

fn kind(kind: &SampleKind) -> &'static str {
    match kind {
        SampleKind::Cpu { .. } => "cpu",
        SampleKind::OffCpu { .. } => "off",
        SampleKind::Waker { .. } => "waker",
        SampleKind::Launch { .. } => "launch",
    }
}
