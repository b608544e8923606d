//! Nothing that happens to a file makes reading it go wrong.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;
use zerocopy::IntoBytes;

use super::super::decode::{Decoder, Malformed};
use super::super::encode::Encoder;
use super::super::format::{
    self, record, ChunkHeader, FileHeader, CHUNK_HEADER_LEN, CHUNK_MAGIC, CODEC_ZSTD,
    FILE_HEADER_LEN, MAX_RAW_LEN, TRAILER_LEN,
};
use super::super::meta::Meta;
use super::super::state::State;
use super::super::{trim, End, Reader, StoreError, Writer};
use super::arbitrary::events;
use super::{is_damage, meta, ping, read, sample, summary, Recording};
use crate::event::Event;
use crate::units::{Bytes, Nanos};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut state = State::default();
        let mut decoder = Decoder::new(&bytes, &mut state);
        while let Ok(Some(_)) = decoder.next() {}
    }

    /// Check that a chunk whose checksum was made to fit, but whose records were not, is safe to decode.
    #[test]
    fn no_change_of_a_record_makes_the_decoder_panic(
        events in events(50), at in any::<prop::sample::Index>(), byte in any::<u8>()
    ) {
        let mut encoder = Encoder::default();
        for event in &events {
            encoder.push(event);
        }
        let mut bytes = encoder.bytes().to_vec();
        if !bytes.is_empty() {
            bytes[at.index(encoder.bytes().len())] = byte;
        }
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
fn a_file_cut_anywhere_keeps_every_whole_chunk() {
    let recording = Recording::varied();
    let file = File::options().write(true).open(recording.path()).unwrap();
    let mut readable = 0;
    for len in (0..recording.bytes.len()).rev() {
        file.set_len(len as u64).unwrap();
        match read(&recording.path()) {
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
    let file = File::options().write(true).open(recording.path()).unwrap();
    for (at, &byte) in recording.bytes.iter().enumerate() {
        file.write_all_at(&[byte ^ 1 << (at % 8)], at as u64)
            .unwrap();
        match read(&recording.path()) {
            Ok((events, coverage, _)) => {
                assert!(!coverage.is_whole(), "byte {at}: not noticed");
                // The chunk that the byte is in, when it is in one of events.
                let expected = match recording.chunks.iter().position(|chunk| at < chunk.0) {
                    Some(0) if coverage.meta_lost || coverage.header_damaged => &recording.events,
                    Some(chunk) => &skipped[chunk],
                    None => &recording.events,
                };
                assert!(&events == expected, "byte {at}: {} events", events.len());
            }
            // Without its magic nobody knows what the file is.
            Err(StoreError::NotARecording { .. }) => assert!(at < 8, "byte {at}"),
            Err(e) => panic!("byte {at}: {e}"),
        }
        file.write_all_at(&[byte], at as u64).unwrap();
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

/// What a reader says is lost: from when to when.
fn told(path: &Path) -> Vec<(u64, u64)> {
    let mut told = Vec::new();
    let mut reader = Reader::open(path).unwrap();
    reader
        .for_each(|event| {
            if let (true, Event::Loss(loss)) = (is_damage(event), event) {
                told.push((loss.from.0, loss.to.0));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    told
}

/// Check that the time of damage reaches whoever reads events, with the index or from the chunks around it, and
/// that an end that is missing is none.
#[test]
fn damage_is_handed_out_as_a_loss_of_its_time() {
    let events: Vec<_> = (0..100).map(|i| ping(i * 1000)).collect();
    let recording = Recording::new(events, 10);
    let path = recording.path();
    assert_eq!(told(&path), []);
    let mut bytes = recording.bytes.clone();
    // In the contents of chunk 1, and chunks 3 and 4, headers and all.
    bytes[recording.chunks[1].0 - 1] ^= 1;
    bytes[recording.chunks[2].0..recording.chunks[4].0].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(told(&path), [(10_000, 19_000), (30_000, 49_000)]);
    // Of a part of it, as much.
    let part = recording.dir.path().join("part.data");
    let mut reader = Reader::open(&path).unwrap();
    trim(&mut reader, &part, Nanos(25_000), Nanos(99_000)).unwrap();
    assert!(read(&part).unwrap().1.is_whole());
    assert_eq!(told(&part), [(30_000, 49_000)]);
    // Without the index, and cut in the last chunk.
    bytes.truncate(recording.chunks[9].0 - 1);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(told(&path), [(10_000, 19_000), (20_000, 59_000)]);
    bytes.truncate(recording.chunks[8].0);
    bytes[recording.chunks[5].0..].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(told(&path), [(10_000, 19_000), (20_000, 59_000)]);
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
fn an_unknown_chunk_kind_is_skipped_and_counted() {
    let recording = Recording::varied();
    let mut bytes = recording.bytes[..recording.chunks[0].0].to_vec();
    bytes.extend_from_slice(&chunk(77, 0, b"what is to come", 15));
    let (events, coverage, _) = recording.read_as(&bytes).unwrap();
    assert_eq!(events, recording.events[..recording.chunks[0].1]);
    assert_eq!((coverage.unknown_chunks, coverage.damaged_chunks), (1, 0));
}

/// Check that a chunk of a finished file that claims to reach beyond its end is noticed.
#[test]
fn a_chunk_that_runs_into_the_trailer_is_damage() {
    let recording = Recording::varied();
    let (chunks, trailer) = recording
        .bytes
        .split_at(recording.bytes.len() - TRAILER_LEN);
    let lie = &chunk(2, 0, b"a chunk that is longer than the file", 36)[..60];
    let (events, coverage, _) = recording.read_as(&[chunks, lie, trailer].concat()).unwrap();
    assert_eq!(events, recording.events);
    assert_eq!(coverage.end, End::Complete);
    assert_eq!((coverage.damaged_chunks, coverage.unread), (1, Bytes(60)));
}

/// A chunk with true checksums, whatever it claims.
pub(super) fn chunk(kind: u16, codec: u8, stored: &[u8], raw_len: u32) -> Vec<u8> {
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
        chunk(2, 0, &[record::CALL_STACK, 5, 1, 0, 0xff, 0xff, 0x03], 7),
        chunk(2, 0, &[record::FUNCTIONS, 4, 1, 0xff, 0xff, 0x03], 6),
    ] {
        let bytes = [good, &lie].concat();
        let (events, coverage, _) = recording.read_as(&bytes).unwrap();
        assert_eq!(events, recording.events[..recording.chunks[0].1]);
        assert_eq!(coverage.damaged_chunks, 1, "{lie:?}");
    }
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
        // A frame below zero.
        &[record::CALL_STACK, 4, 1, 0, 1, 1],
    ] {
        let mut state = State::default();
        let decoded = Decoder::new(bytes, &mut state).next();
        assert!(matches!(decoded, Err(Malformed)), "{bytes:?}");
    }
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
