//! What is written comes back, and nothing that happens to a file makes reading it go wrong.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tempfile::TempDir;
use zerocopy::IntoBytes;

use super::arbitrary::{event, events, kind, KINDS};
use super::decode::{Decoder, Malformed, Record};
use super::encode::Encoder;
use super::format::{
    self, record, ChunkHeader, FileHeader, CHUNK_HEADER_LEN, CHUNK_MAGIC, CODEC_ZSTD,
    FILE_HEADER_LEN, MAX_RAW_LEN, TRAILER_LEN,
};
use super::meta::{GpuSource, Meta, Summary, TargetMode};
use super::state::State;
use super::{Coverage, End, Reader, StoreError, Writer};
use crate::event::{
    Context, Cpu, Define, Event, NameId, StackId, Switch, SwitchFlags, Tid, Waking,
};
use crate::event::{Pid, Stall, StallKind};
use crate::units::{Bytes, Nanos};

/// Enough to have every kind, few enough to try every byte of the file.
const SAMPLES: usize = 160;

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

fn read(path: &Path) -> Result<(Vec<Event>, Coverage, Option<Summary>), StoreError> {
    let mut reader = Reader::open(path)?;
    let mut events = Vec::new();
    reader.for_each(|event| {
        events.push(event.clone());
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

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut state = State::default();
        let mut decoder = Decoder::new(&bytes, &mut state);
        while let Ok(Some(_)) = decoder.next() {}
    }

    #[test]
    fn no_bytes_make_the_reader_panic(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let recording = Recording::new(Vec::new(), 1);
        // Behind a good header the reader believes that it has a recording.
        let mut bytes = recording.bytes[..FILE_HEADER_LEN].to_vec();
        bytes.extend_from_slice(&tail);
        if let Ok((events, ..)) = recording.read_as(&bytes) {
            prop_assert_eq!(events, Vec::<Event>::new());
        }
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
fn a_file_cut_anywhere_keeps_every_whole_chunk() {
    let recording = Recording::varied();
    let mut readable = 0;
    for len in 0..recording.bytes.len() {
        match recording.read_as(&recording.bytes[..len]) {
            Ok((events, coverage, _)) => {
                let whole = recording
                    .chunks
                    .iter()
                    .take_while(|chunk| chunk.0 <= len)
                    .count();
                let count = if whole == 0 {
                    0
                } else {
                    recording.chunks[whole - 1].1
                };
                assert!(
                    events == recording.events[..count],
                    "cut at {len}: {} events",
                    events.len()
                );
                assert_eq!(coverage.end, End::Cut, "cut at {len}");
                readable += 1;
            }
            Err(StoreError::Empty { .. }) => assert_eq!(len, 0),
            Err(StoreError::Cut { .. }) => assert!(len < recording.chunks[0].0, "cut at {len}"),
            Err(e) => panic!("cut at {len}: {e}"),
        }
    }
    assert!(readable > recording.bytes.len() / 2);
}

#[test]
fn a_flipped_bit_costs_one_chunk_at_most_and_is_noticed() {
    let recording = Recording::varied();
    let skipped: Vec<_> = (0..recording.chunks.len())
        .map(|i| recording.without(i))
        .collect();
    let mut bytes = recording.bytes.clone();
    for at in 0..bytes.len() {
        let flip = 1 << (at % 8);
        bytes[at] ^= flip;
        match recording.read_as(&bytes) {
            Ok((events, coverage, _)) => {
                assert!(!coverage.is_whole(), "byte {at}: not noticed");
                // The chunk that the byte is in, when it is in one.
                let chunk = recording.chunks.iter().position(|chunk| at < chunk.0);
                let expected = match chunk {
                    Some(0) if events.len() == recording.events.len() => &recording.events,
                    Some(chunk) => &skipped[chunk],
                    None => &recording.events,
                };
                assert!(&events == expected, "byte {at}: {} events", events.len());
            }
            // Without its magic nobody knows what the file is.
            Err(StoreError::NotARecording { .. }) => assert!(at < 8, "byte {at}"),
            Err(e) => panic!("byte {at}: {e}"),
        }
        bytes[at] ^= flip;
    }
}

/// Check that a hole, as a crashed machine leaves it, is skipped and its time is told from the index.
#[test]
fn a_zeroed_stretch_is_skipped_and_its_time_is_known() {
    let events: Vec<_> = (0..100).map(|i| ping(i * 1000)).collect();
    let recording = Recording::new(events, 10);
    let mut bytes = recording.bytes.clone();
    // Chunks 3 and 4, headers and all.
    bytes[recording.chunks[2].0..recording.chunks[4].0].fill(0);
    let (events, coverage, summary) = recording.read_as(&bytes).unwrap();
    assert_eq!(
        events,
        [&recording.events[..30], &recording.events[50..]].concat()
    );
    assert_eq!(coverage.end, End::Complete);
    assert_eq!(coverage.damaged_chunks, 1);
    assert_eq!(
        coverage.damage[0].span,
        Some((Nanos(30_000), Nanos(49_000)))
    );
    assert_eq!(
        coverage.unread.0 as usize,
        recording.chunks[4].0 - recording.chunks[2].0
    );
    assert!(summary.is_some());
}

#[test]
fn a_damaged_chunk_tells_the_time_that_is_missing() {
    let events: Vec<_> = (0..100).map(|i| ping(i * 1000)).collect();
    let recording = Recording::new(events, 10);
    let mut bytes = recording.bytes.clone();
    bytes[recording.chunks[2].0 - 1] ^= 1;
    // Also without the index.
    bytes.truncate(recording.chunks[9].0);
    let (events, coverage, summary) = recording.read_as(&bytes).unwrap();
    assert_eq!(events.len(), 90);
    assert_eq!(
        coverage.damage[0].span,
        Some((Nanos(20_000), Nanos(29_000)))
    );
    assert_eq!(coverage.end, End::Cut);
    assert_eq!(summary, None);
}

#[test]
fn a_lost_meta_chunk_does_not_lose_the_events() {
    let recording = Recording::varied();
    let mut bytes = recording.bytes.clone();
    bytes[FILE_HEADER_LEN + CHUNK_HEADER_LEN + 3] ^= 0x10;
    let path = recording.dir.path().join("other.data");
    fs::write(&path, &bytes).unwrap();
    let reader = Reader::open(&path).unwrap();
    assert!(reader.coverage().meta_lost);
    assert_eq!(reader.meta(), &Meta::default());
    assert_eq!(read(&path).unwrap().0, recording.events);
}

#[test]
fn a_recorder_that_was_killed_loses_only_what_it_had_not_flushed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("gdiag.data");
    let mut writer = Writer::create(&path, &meta()).unwrap();
    let events = sample(50);
    for event in &events[..40] {
        writer.push(event).unwrap();
    }
    writer.flush().unwrap();
    for event in &events[40..] {
        writer.push(event).unwrap();
    }
    // The file as it is when the process dies now.
    let (read_events, coverage, summary) = read(&path).unwrap();
    assert_eq!(read_events, events[..40]);
    assert_eq!(coverage.end, End::Unfinished);
    assert_eq!(summary, None);

    drop(writer);
    let (read_events, coverage, _) = read(&path).unwrap();
    assert_eq!(
        read_events, events,
        "an early return of the recorder keeps the open chunk"
    );
    assert_eq!(coverage.end, End::Unfinished);
}

#[test]
fn a_full_disk_is_an_error_that_says_what_to_do() {
    let error = Writer::create(Path::new("/dev/full"), &meta()).unwrap_err();
    assert!(matches!(error, StoreError::Write { .. }));
    assert_eq!(error.to_string(), "cannot write recording '/dev/full'");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("No space left on device"), "{source}");
    assert!(error.hint().contains("-o"));
}

#[test]
fn other_files_are_refused_by_name() {
    let recording = Recording::varied();
    let refused = |bytes: &[u8]| recording.read_as(bytes).unwrap_err().to_string();
    assert!(refused(b"").contains("is empty"));
    assert!(refused(b"PERFILE2h\0\0\0\0\0\0\0").contains("perf.data"));
    assert!(refused(b"just a note").contains("a text file"));
    assert!(refused(&[0; 4096]).contains("zeros"));

    let error = read(recording.dir.path()).unwrap_err();
    assert!(error.to_string().contains("a directory"), "{error}");
    let error = read(Path::new("/dev/zero")).unwrap_err();
    assert!(error.to_string().contains("a pipe or a device"), "{error}");
    let error = read(&recording.dir.path().join("none")).unwrap_err();
    assert!(error.hint().contains("gdiag record"), "{error}");
}

#[test]
fn a_newer_major_version_is_refused_with_both_numbers() {
    let recording = Recording::varied();
    let mut header = FileHeader::new(0);
    header.major = 7.into();
    header.crc = header.checksum().into();
    let mut bytes = recording.bytes.clone();
    bytes[..FILE_HEADER_LEN].copy_from_slice(header.as_bytes());
    match recording.read_as(&bytes) {
        Err(StoreError::NewerVersion {
            found: 7,
            known: format::MAJOR,
            ..
        }) => {}
        other => panic!("{other:?}"),
    }
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
    let (before, record, after) = (
        &encoder.bytes()[..begin],
        &encoder.bytes()[begin..end],
        &encoder.bytes()[end..],
    );

    let new_kind = [0x3f, 3, 1, 2, 3];
    let bytes = [before, &new_kind, record, after].concat();
    assert_eq!(decode(&bytes), (vec![ping(10), stall.clone(), ping(20)], 1));

    let mut new_field = record.to_vec();
    new_field[1] += 1;
    new_field.push(99);
    let bytes = [before, &new_field, after].concat();
    assert_eq!(decode(&bytes), (vec![ping(10), stall, ping(20)], 0));

    // What comes after still gets its true time.
    let mut new_value = record.to_vec();
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

#[test]
fn an_unknown_chunk_kind_is_skipped_and_counted() {
    let recording = Recording::varied();
    let mut bytes = recording.bytes[..recording.chunks[0].0].to_vec();
    bytes.extend_from_slice(&chunk(77, 0, b"what is to come", 15));
    let (events, coverage, _) = recording.read_as(&bytes).unwrap();
    assert_eq!(events, recording.events[..recording.chunks[0].1]);
    assert_eq!((coverage.unknown_chunks, coverage.damaged_chunks), (1, 0));
}

/// A chunk with true checksums, whatever it claims.
fn chunk(kind: u16, codec: u8, stored: &[u8], raw_len: u32) -> Vec<u8> {
    let mut header = ChunkHeader {
        magic: CHUNK_MAGIC,
        kind: kind.into(),
        codec,
        pad: 0,
        stored_len: (stored.len() as u32).into(),
        raw_len: raw_len.into(),
        records: 1.into(),
        payload_crc: crc32fast::hash(stored).into(),
        first_ns: 5.into(),
        last_ns: 6.into(),
        crc: 0.into(),
    };
    header.crc = header.checksum().into();
    [header.as_bytes(), stored].concat()
}

#[test]
fn lengths_that_lie_are_not_believed() {
    let recording = Recording::varied();
    let good = &recording.bytes[..recording.chunks[0].0];
    let bomb = zstd::bulk::compress(&vec![0; 4 * MAX_RAW_LEN], 1).unwrap();
    for lie in [
        // More than any chunk holds, more than the file has, more than it says, less than it says.
        chunk(2, CODEC_ZSTD, &bomb, 4 * MAX_RAW_LEN as u32),
        chunk(2, CODEC_ZSTD, &bomb, MAX_RAW_LEN as u32),
        chunk(2, CODEC_ZSTD, &bomb, bomb.len() as u32),
        chunk(2, 0, b"abc", 5),
        chunk(2, CODEC_ZSTD, b"not zstd", 100),
        chunk(2, 99, b"abc", 3),
        // A framed record that is longer than its chunk, a stack with more frames than bytes.
        chunk(2, 0, &[record::NAME, 200], 2),
        chunk(2, 0, &[record::STACK, 4, 1, 0xff, 0xff, 0x03], 6),
    ] {
        let bytes = [good, &lie].concat();
        let (events, coverage, _) = recording.read_as(&bytes).unwrap();
        assert_eq!(events, recording.events[..recording.chunks[0].1]);
        assert_eq!(coverage.damaged_chunks, 1, "{lie:?}");
    }
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
}

#[test]
fn records_that_make_no_sense_are_refused() {
    for bytes in [
        // Ends inside a varint, inside a frame; a context that is none; a name that is not text.
        &[record::SWITCH, 0x80][..],
        &[record::EXIT, 5, 0],
        &[
            record::WAKING | record::SAME_CPU | record::CURRENT | 0x1c,
            0,
            0,
        ],
        &[record::NAME, 2, 1, 0xff],
    ] {
        let mut state = State::default();
        let decoded = Decoder::new(bytes, &mut state).next();
        assert!(matches!(decoded, Err(Malformed)), "{bytes:?}");
    }
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

#[test]
fn the_trailer_is_where_the_file_ends() {
    let recording = Recording::varied();
    let cut = &recording.bytes[..recording.bytes.len() - TRAILER_LEN];
    let (events, coverage, read) = recording.read_as(cut).unwrap();
    assert_eq!(events, recording.events);
    assert_eq!(coverage.end, End::Cut);
    assert_eq!(
        read.unwrap().warnings,
        summary().warnings,
        "the summary was still there"
    );
}
