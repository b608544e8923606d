//! What is written comes back, and its bytes stay what they are.

pub(crate) mod arbitrary;
mod damage;

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;
use zerocopy::IntoBytes;

use self::arbitrary::{event, events, kind, KINDS};
use self::damage::chunk;
use super::decode::{Decoder, Record};
use super::encode::Encoder;
use super::format::{self, record, FileHeader};
use super::meta::{GpuSource, Meta, Summary, TargetMode};
use super::state::State;
use super::{Coverage, Reader, StoreError, Writer};
use crate::event::{
    CallStackId, Context, Cpu, Cut, Define, Event, Exit, Frame, FrameId, Function, LossSource,
    NameId, Pid, Sample, SampleKind, StackId, Stall, StallKind, Switch, SwitchFlags, SysCall, Tid,
    Waking,
};
use crate::units::{Bytes, Nanos};

/// Enough to have every kind, few enough to try every byte of the file.
const SAMPLES: usize = 240;

fn meta() -> Meta {
    Meta {
        gdiag_version: "0.1.0".into(),
        host: "gpu17".into(),
        command: vec!["gdiag".into(), "record".into(), "--".into(), "train".into()],
        mode: TargetMode::Launch,
        targets: vec![Pid(4711)],
        start_mono_ns: 1_000_000_000,
        ..Meta::default()
    }
}

fn summary() -> Summary {
    Summary {
        end_mono_ns: 2_000_000_000,
        gpu_source: GpuSource::Simulated,
        warnings: vec!["no memory stalls: the kernel lacks mm_vmscan".into()],
        ..Summary::default()
    }
}

/// A recording and what is in it.
struct Recording {
    dir: TempDir,
    events: Vec<Event>,
    /// Where each chunk of events ends, and how many events there are until then.
    chunks: Vec<(usize, usize)>,
    bytes: Vec<u8>,
}

impl Recording {
    /// Writes `events` in chunks of `per_chunk`.
    fn new(events: Vec<Event>, per_chunk: usize) -> Recording {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("gdiag.data");
        let mut writer = Writer::create(&path, &meta()).unwrap();
        let mut chunks = Vec::new();
        let mut count = 0;
        for part in events.chunks(per_chunk) {
            for event in part {
                writer.push(event).unwrap();
            }
            writer.flush().unwrap();
            count += part.len();
            chunks.push((writer.stats().written.0 as usize, count));
        }
        writer.finish(&summary()).unwrap();
        let bytes = fs::read(&path).unwrap();
        Recording {
            dir,
            events,
            chunks,
            bytes,
        }
    }

    /// Every kind of event, several times.
    fn varied() -> Recording {
        Recording::new(sample(SAMPLES), 20)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("gdiag.data")
    }

    /// Reads other bytes in place of the file.
    fn read_as(&self, bytes: &[u8]) -> Result<(Vec<Event>, Coverage, Option<Summary>), StoreError> {
        let path = self.dir.path().join("other.data");
        fs::write(&path, bytes).unwrap();
        read(&path)
    }

    /// The events without those of chunk `skipped`.
    fn without(&self, skipped: usize) -> Vec<Event> {
        let begin = if skipped == 0 {
            0
        } else {
            self.chunks[skipped - 1].1
        };
        let end = self.chunks[skipped].1;
        [&self.events[..begin], &self.events[end..]].concat()
    }
}

fn is_damage(event: &Event) -> bool {
    matches!(event, Event::Loss(loss) if loss.source == LossSource::Damage)
}

/// The events that are in the file: without what the reader says of damage.
fn read(path: &Path) -> Result<(Vec<Event>, Coverage, Option<Summary>), StoreError> {
    let mut reader = Reader::open(path)?;
    let mut events = Vec::new();
    reader.for_each(|event| {
        if !is_damage(event) {
            events.push(event.clone());
        }
        ControlFlow::Continue(())
    })?;
    Ok((events, reader.coverage().clone(), reader.summary().cloned()))
}

/// The same events at every run.
fn sample(count: usize) -> Vec<Event> {
    let mut runner = TestRunner::deterministic();
    let strategy = event();
    (0..count)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .collect()
}

fn name(id: u32, text: &str) -> Event {
    Event::Define(Define::Name {
        id: NameId(id),
        text: text.into(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_come_back_as_they_were(events in events(300), per_chunk in 1usize..100) {
        let recording = Recording::new(events, per_chunk);
        let (read, coverage, _) = read(&recording.path()).unwrap();
        prop_assert_eq!(&read, &recording.events);
        prop_assert!(coverage.is_whole());
        prop_assert_eq!(coverage.events, read.len() as u64);
        prop_assert_eq!(coverage.unread, Bytes(0));
    }
}

#[test]
fn the_samples_have_every_kind_of_event() {
    let mut seen = [0; KINDS];
    for event in sample(SAMPLES) {
        seen[kind(&event)] += 1;
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn a_recording_tells_its_meta_and_summary() {
    let recording = Recording::varied();
    let reader = Reader::open(&recording.path()).unwrap();
    assert_eq!(reader.meta(), &meta());
    let read = reader.summary().unwrap();
    assert_eq!(read.warnings, summary().warnings);
    assert_eq!(read.events, SAMPLES as u64);
    let switches = recording
        .events
        .iter()
        .filter(|e| matches!(e, Event::Switch(_)))
        .count();
    assert_eq!(read.switches, switches as u64);
    assert!(read.switch_bytes > 0);
    assert_eq!(reader.file_size(), Bytes(recording.bytes.len() as u64));
    let mode = fs::metadata(recording.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may read it: {mode:o}");
}

#[test]
fn reading_can_stop_and_begin_anew() {
    let recording = Recording::varied();
    let mut reader = Reader::open(&recording.path()).unwrap();
    let mut count = 0;
    reader
        .for_each(|_| {
            count += 1;
            if count == 7 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
    assert_eq!(count, 7);
    count = 0;
    reader
        .for_each(|_| {
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(count, SAMPLES);
    assert!(reader.coverage().is_whole());
}

#[test]
fn a_newer_minor_version_is_read_with_what_is_known() {
    let stall = Event::Stall(Stall {
        tid: Tid(1),
        start: Nanos(15),
        dur: Nanos(1),
        kind: StallKind::Reclaim,
    });
    let mut encoder = Encoder::default();
    encoder.push(&ping(10));
    let begin = encoder.bytes().len();
    encoder.push(&stall);
    let end = encoder.bytes().len();
    encoder.push(&ping(20));
    let (before, known, after) = (
        &encoder.bytes()[..begin],
        &encoder.bytes()[begin..end],
        &encoder.bytes()[end..],
    );

    let new_kind = [0x3f, 3, 1, 2, 3];
    let bytes = [before, &new_kind, known, after].concat();
    assert_eq!(decode(&bytes), (vec![ping(10), stall.clone(), ping(20)], 1));

    let mut new_field = known.to_vec();
    new_field[1] += 1;
    new_field.push(99);
    let bytes = [before, &new_field, after].concat();
    assert_eq!(decode(&bytes), (vec![ping(10), stall.clone(), ping(20)], 0));

    // A kind of frame, a reason for a cut and a kind of sample that came later.
    let later = [
        &[record::FRAME, 3, 1, 63, 0][..],
        &[record::CALL_STACK, 4, 1, 63, 1, 2],
        &[record::SAMPLE, 6, 0, 121, 0, 0, 0, 63],
    ];
    let bytes = [before, &later.concat(), known, after].concat();
    assert_eq!(decode(&bytes), (vec![ping(10), stall, ping(20)], 3));

    // What comes after still gets its true time.
    let mut new_value = known.to_vec();
    *new_value.last_mut().unwrap() = 31;
    let bytes = [before, &new_value, after].concat();
    assert_eq!(decode(&bytes), (vec![ping(10), ping(20)], 1));
}

/// The events of a chunk, and how many records are unknown.
fn decode(bytes: &[u8]) -> (Vec<Event>, usize) {
    let mut state = State::default();
    let mut decoder = Decoder::new(bytes, &mut state);
    let mut events = Vec::new();
    let mut unknown = 0;
    while let Some(record) = decoder.next().unwrap() {
        match record {
            Record::Event(event) => events.push(event),
            Record::Unknown => unknown += 1,
        }
    }
    (events, unknown)
}

/// Check that what is on disk stays as it is: these bytes are in files that people keep.
#[test]
fn the_bytes_of_a_recording_do_not_change() {
    assert_eq!(
        FileHeader::new(format::FLAG_UNFINISHED).as_bytes()[..20],
        *b"\x8bgdiag\r\n\x01\0\x05\0\x18\0\0\0\x01\0\0\0"
    );
    assert_eq!(
        chunk(2, 1, b"abc", 300)[..40],
        *b"\x8bGDC\x02\0\x01\0\x03\0\0\0\x2c\x01\0\0\x01\0\0\0\xc2\x41\x24\x35\
           \x05\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0"
    );
    let switch = Event::Switch(Switch {
        ts: Nanos(100),
        cpu: Cpu(1),
        prev: Tid(4712),
        next: Tid(4711),
        state: 1,
        syscall: Some(202),
        flags: SwitchFlags(2),
        minor_faults: 3,
        major_faults: 0,
    });
    let exit = Event::Exit(Exit {
        ts: Nanos(150),
        tid: Tid(4711),
        pid: Pid(4711),
        code: 256,
    });
    let frame = |id, frame| {
        let id = FrameId(id);
        Event::Define(Define::Frame { id, frame })
    };
    let native = Frame::Native {
        module: NameId(7),
        build_id: NameId(8),
        address: 0x1234,
    };
    let python = Frame::Python {
        function: NameId(9),
        file: NameId(10),
        line: 41,
    };
    let stack = Event::Define(Define::CallStack {
        id: CallStackId(3),
        frames: vec![FrameId(2), FrameId(4), FrameId(1)],
        cut: Some(Cut::NoTable),
    });
    let functions = Event::Define(Define::Functions {
        frame: FrameId(1),
        functions: vec![Function {
            name: NameId(11),
            file: NameId(0),
            line: 0,
        }],
    });
    let sample = |ts, kind, gil, collects| {
        Event::Sample(Sample {
            ts: Nanos(ts),
            tid: Tid(4711),
            kind,
            kernel: StackId(2),
            user: CallStackId(3),
            gil,
            collects,
        })
    };
    let ran = SampleKind::Cpu { period: Nanos(99) };
    let slept = SampleKind::OffCpu { since: Nanos(150) };
    let woke = SampleKind::Waker {
        wakee: Tid(4),
        since: Nanos(201),
    };
    let launched = SampleKind::Launch { one_in: 6 };
    let failed = Event::SysCall(SysCall {
        tid: Tid(4711),
        start: Nanos(210),
        end: Nanos(214),
        number: 0,
        result: -11,
    });
    let mut encoder = Encoder::default();
    for event in [
        name(5, "rank0"),
        ping(90),
        switch,
        exit,
        frame(1, native),
        frame(2, Frame::Anonymous { address: 5 }),
        frame(4, python),
        stack,
        functions,
        sample(200, ran, None, false),
        sample(201, slept, Some(Tid(4712)), false),
        sample(202, woke, None, false),
        sample(203, launched, None, false),
        sample(204, ran, None, true),
        failed,
    ] {
        encoder.push(&event);
    }
    let expected: [&[u8]; 15] = [
        b"\x01\x06\x05rank0",
        // Waking on CPU 1, 90 ns on, waker 4712 and wakee 4711 in full.
        b"\x80\xb4\x01\x01\xff\xe8\x24\xff\xe7\x24",
        // Switch there, 10 ns on; both are in the table of tids now.
        b"\x7d\x14\x7a\x79\x01\xca\x01\x02\x03\x00",
        b"\x05\x05\x64\x79\x79\x80\x02",
        b"\x13\x06\x01\x01\x07\x08\xb4\x24",
        b"\x13\x03\x02\x02\x05",
        b"\x13\x05\x04\x03\x09\x0a\x29",
        // Cut without a table; frame 2, then 2 up and 3 down.
        b"\x14\x06\x03\x03\x03\x04\x04\x05",
        b"\x15\x05\x01\x01\x0b\x00\x00",
        b"\x16\x07\x64\x79\x00\x02\x03\x01\x63",
        // 4712 held the interpreter lock; 51 ns off the CPU.
        b"\x16\x08\x02\x79\x01\x7a\x02\x03\x02\x33",
        b"\x16\x08\x02\x79\x00\x02\x03\x03\x04\x01",
        b"\x16\x07\x02\x79\x00\x02\x03\x04\x06",
        // It collects: a field more than the first sample.
        b"\x16\x08\x02\x79\x00\x02\x03\x01\x63\x01",
        // It ended 10 ns on and took 4 ns; a read that returned -EAGAIN.
        b"\x1c\x05\x14\x79\x04\x00\x15",
    ];
    assert_eq!(encoder.bytes(), expected.concat());
}

#[test]
fn a_chunk_grows_no_larger_than_a_reader_takes() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("gdiag.data");
    let mut writer = Writer::create(&path, &meta()).unwrap();
    let long = "x".repeat(3 * format::MAX_TEXT_LEN);
    writer.push(&name(1, &long)).unwrap();
    let deep = vec![NameId(u32::MAX); 3 * format::MAX_FRAMES];
    writer
        .push(&Event::Define(Define::Stack {
            id: StackId(1),
            frames: deep,
        }))
        .unwrap();
    writer
        .push(&Event::Define(Define::CallStack {
            id: CallStackId(1),
            frames: vec![FrameId(u32::MAX); 3 * format::MAX_FRAMES],
            cut: None,
        }))
        .unwrap();
    let name = Function {
        name: NameId(u32::MAX),
        file: NameId(u32::MAX),
        line: u32::MAX,
    };
    writer
        .push(&Event::Define(Define::Functions {
            frame: FrameId(1),
            functions: vec![name; 3 * format::MAX_FRAMES],
        }))
        .unwrap();
    writer.finish(&summary()).unwrap();
    let (events, coverage, _) = read(&path).unwrap();
    assert!(coverage.is_whole());
    let Event::Define(Define::Name { text, .. }) = &events[0] else {
        panic!("{:?}", events[0])
    };
    assert_eq!(text.len(), format::MAX_TEXT_LEN);
    let Event::Define(Define::Stack { frames, .. }) = &events[1] else {
        panic!("{:?}", events[1])
    };
    assert_eq!(frames.len(), format::MAX_FRAMES);
    let Event::Define(Define::CallStack { frames, cut, .. }) = &events[2] else {
        panic!("{:?}", events[2])
    };
    assert_eq!(
        (frames.len(), *cut),
        (format::MAX_FRAMES, Some(Cut::TooDeep))
    );
    let Event::Define(Define::Functions { functions, .. }) = &events[3] else {
        panic!("{:?}", events[3])
    };
    assert_eq!(functions.len(), format::MAX_FRAMES);
}

fn ping(ts: u64) -> Event {
    Event::Waking(Waking {
        ts: Nanos(ts),
        cpu: Cpu(1),
        wakee: Tid(4711),
        waker: Tid(4712),
        context: Context::Task,
    })
}

/// Two threads on each of two CPUs that wake each other through a futex, 300 k switches a second.
fn ping_pong(switches: u64) -> Vec<Event> {
    let mut events = Vec::new();
    for i in 0..switches {
        let cpu = (i % 2) as u16;
        let (a, b) = (
            Tid(1_234_560 + u32::from(cpu)),
            Tid(1_234_570 + u32::from(cpu)),
        );
        let (prev, next) = if i / 2 % 2 == 0 { (a, b) } else { (b, a) };
        let ts = 86_400_000_000_000 + i * 3333 + (i * 7919) % 900;
        events.push(Event::Waking(Waking {
            ts: Nanos(ts),
            cpu: Cpu(cpu),
            wakee: next,
            waker: prev,
            context: Context::Task,
        }));
        events.push(Event::Switch(Switch {
            ts: Nanos(ts + 800),
            cpu: Cpu(cpu),
            prev,
            next,
            state: 1,
            syscall: Some(202),
            flags: SwitchFlags(0),
            minor_faults: 0,
            major_faults: 0,
        }));
    }
    events
}

#[test]
fn a_switch_and_its_waking_take_few_bytes() {
    let recording = Recording::new(ping_pong(50_000), usize::MAX);
    let summary = Reader::open(&recording.path())
        .unwrap()
        .summary()
        .cloned()
        .unwrap();
    assert_eq!(summary.switches, 50_000);
    let per_switch = summary.switch_bytes / summary.switches;
    // 40 is promised; this guards the encoding itself.
    assert!(per_switch <= 16, "{per_switch} bytes a switch");
    assert!(
        (recording.bytes.len() as u64) < summary.switch_bytes,
        "it does not compress"
    );
    assert_eq!(read(&recording.path()).unwrap().0, recording.events);
}
