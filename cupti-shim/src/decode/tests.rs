use std::ffi::CString;

use gdiag_shim_layout::kind;

use super::*;

/// Takes everything, or nothing.
struct Collected {
    records: Vec<Vec<u8>>,
    spans: Vec<Span>,
    full: bool,
}

impl Collected {
    fn new() -> Collected {
        Collected {
            records: Vec::new(),
            spans: Vec::new(),
            full: false,
        }
    }

    fn last<T: FromBytes + KnownLayout + Immutable>(&self) -> T {
        T::read_from_bytes(self.records.last().unwrap()).unwrap()
    }
}

impl Sink for Collected {
    fn send(&mut self, record: &[u8], span: Span) -> bool {
        if !self.full {
            self.records.push(record.to_vec());
            self.spans.push(span);
        }
        !self.full
    }
}

/// A record as CUPTI writes it: `size` bytes, these fields, and garbage everywhere else.
fn image(size: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0xA5; size];
    for (offset, value) in fields {
        bytes[*offset..][..value.len()].copy_from_slice(value);
    }
    bytes
}

fn w(value: u32) -> [u8; 4] {
    value.to_ne_bytes()
}

fn q(value: u64) -> [u8; 8] {
    value.to_ne_bytes()
}

fn decode(bytes: &[u8]) -> (Seen, Collected) {
    let mut sink = Collected::new();
    // SAFETY: kernel records of these tests have a C string as name.
    let seen = unsafe { Decoder::default().record(bytes, &mut sink) };
    (seen, sink)
}

fn kernel_image(size: usize, name: &CString, correlation: u32) -> Vec<u8> {
    image(
        size,
        &[
            (0, &w(10)),
            (16, &q(1000)),
            (24, &q(1900)),
            (40, &w(3)),
            (44, &w(4)),
            (48, &w(5)),
            (92, &w(correlation)),
            (104, &q(name.as_ptr() as u64)),
            (144, &q(7 << 32 | 8)),
            (156, &w(7)),
        ],
    )
}

/// Check every version that CUDA 11.1 to 13.5 writes.
#[test]
fn kernels_of_every_version_read_the_same() {
    let name = CString::new("_Z4stepPf").unwrap();
    for size in [160, 168, 176, 200, 208, 216, 224, 232, 248] {
        let (seen, sink) = decode(&kernel_image(size, &name, 6));
        assert_eq!(seen, Seen::Sent);
        assert_eq!(sink.records.len(), 2, "the name comes first");
        let (named, text) = NameRecord::read_from_prefix(&sink.records[0]).unwrap();
        assert_eq!((named.hdr.kind, named.len), (kind::NAME, 9));
        assert_eq!(usize::from(named.hdr.size), sink.records[0].len());
        assert_eq!(&text[..9], name.as_bytes());
        let record: KernelRecord = sink.last();
        assert_eq!(record.hdr.kind, kind::KERNEL);
        assert_eq!(record.hdr.size, 56);
        assert_eq!(record.hdr.aux, named.hdr.aux);
        assert_ne!(record.hdr.aux, 0);
        assert_eq!((record.start, record.end), (1000, 1900));
        assert_eq!((record.device, record.context, record.stream), (3, 4, 5));
        assert_eq!(
            (record.correlation, record.node, record.graph),
            (6, 7 << 32 | 8, 7)
        );
        assert_eq!(
            sink.spans[1],
            Span {
                start: 1000,
                end: 1900
            }
        );
    }
}

#[test]
fn migrations_of_every_version_name_the_device() {
    for size in [64, 104] {
        for (counter, src, dst) in [(1, u32::MAX, 3), (2, 3, u32::MAX), (4, 3, 0)] {
            let (seen, sink) = decode(&image(
                size,
                &[
                    (0, &w(25)),
                    (4, &w(counter)),
                    (8, &q(4096)),
                    (16, &q(10)),
                    (24, &q(20)),
                    (40, &w(src)),
                    (44, &w(dst)),
                ],
            ));
            assert_eq!(seen, Seen::Sent);
            let record: MigrationRecord = sink.last();
            assert_eq!(
                (record.hdr.kind, record.hdr.aux),
                (kind::MIGRATION, counter)
            );
            assert_eq!((record.start, record.end, record.value), (10, 20, 4096));
            assert_eq!(record.device, 3, "counter {counter}");
        }
    }
}

#[test]
fn copies_of_every_version_read_the_same() {
    let fields: &[(usize, &[u8])] = &[
        (0, &w(1)),
        (4, &[1, 1, 3, 1]),
        (8, &q(4096)),
        (16, &q(10)),
        (24, &q(20)),
        (32, &w(0)),
        (36, &w(1)),
        (40, &w(14)),
        (44, &w(99)),
        (64, &q(0)),
        (72, &w(0)),
    ];
    for size in [88, 96, 112] {
        let (seen, sink) = decode(&image(size, fields));
        assert_eq!(seen, Seen::Sent);
        let record: MemcpyRecord = sink.last();
        assert_eq!((record.hdr.kind, record.hdr.size), (kind::MEMCPY, 64));
        assert_eq!(record.hdr.aux.to_le_bytes(), [1, 1, 3, 1]);
        assert_eq!((record.start, record.end, record.bytes), (10, 20, 4096));
        assert_eq!(
            (
                record.device,
                record.context,
                record.stream,
                record.correlation
            ),
            (0, 1, 14, 99)
        );
        assert_eq!((record.node, record.graph), (0, 0));
    }
}

#[test]
fn copies_between_devices_have_their_correlation_elsewhere() {
    let (seen, sink) = decode(&image(
        96,
        &[
            (0, &w(22)),
            (4, &[10, 3, 3, 0]),
            (8, &q(1 << 20)),
            (16, &q(10)),
            (24, &q(20)),
            (32, &w(1)),
            (36, &w(2)),
            (40, &w(3)),
            (44, &w(44)),
            (60, &w(60)),
            (72, &q(72)),
            (80, &w(80)),
        ],
    ));
    assert_eq!(seen, Seen::Sent);
    let record: MemcpyRecord = sink.last();
    assert_eq!(record.hdr.aux.to_le_bytes(), [10, 3, 3, 0]);
    assert_eq!((record.device, record.context, record.stream), (1, 2, 3));
    assert_eq!(
        (record.correlation, record.node, record.graph),
        (60, 72, 80)
    );
}

#[test]
fn memsets_of_every_version_read_the_same() {
    for size in [88, 104] {
        let (seen, sink) = decode(&image(
            size,
            &[
                (0, &w(2)),
                (8, &q(512)),
                (16, &q(10)),
                (24, &q(20)),
                (32, &w(1)),
                (36, &w(2)),
                (40, &w(3)),
                (44, &w(4)),
                (50, &3u16.to_ne_bytes()),
                (64, &q(64)),
                (72, &w(72)),
            ],
        ));
        assert_eq!(seen, Seen::Sent);
        let record: MemsetRecord = sink.last();
        assert_eq!((record.hdr.kind, record.hdr.aux), (kind::MEMSET, 3));
        assert_eq!((record.bytes, record.start, record.end), (512, 10, 20));
        assert_eq!(
            (
                record.device,
                record.context,
                record.stream,
                record.correlation
            ),
            (1, 2, 3, 4)
        );
        assert_eq!((record.node, record.graph), (64, 72));
    }
}

#[test]
fn synchronizations_of_every_version_read_the_same() {
    for size in [40, 56] {
        let (seen, sink) = decode(&image(
            size,
            &[
                (0, &w(38)),
                (4, &w(2)),
                (8, &q(10)),
                (16, &q(20)),
                (24, &w(5)),
                (28, &w(1)),
                (32, &w(u32::MAX)),
                (36, &w(9)),
            ],
        ));
        assert_eq!(seen, Seen::Sent);
        let record: SyncRecord = sink.last();
        assert_eq!((record.hdr.kind, record.hdr.aux), (kind::SYNC, 2));
        assert_eq!((record.start, record.end, record.correlation), (10, 20, 5));
        assert_eq!(
            (record.context, record.stream, record.event),
            (1, u32::MAX, 9)
        );
    }
}

#[test]
fn overhead_of_every_version_names_its_thread_or_device() {
    for size in [40, 48, 56] {
        for (object_kind, object) in [(2, 333), (3, 1)] {
            let (seen, sink) = decode(&image(
                size,
                &[
                    (0, &w(17)),
                    (4, &w(7 << 16)),
                    (8, &w(object_kind)),
                    (12, &w(1)),
                    (16, &w(333)),
                    (24, &q(10)),
                    (32, &q(20)),
                ],
            ));
            assert_eq!(seen, Seen::Sent);
            let record: OverheadRecord = sink.last();
            assert_eq!((record.hdr.kind, record.hdr.aux), (kind::OVERHEAD, 7 << 16));
            assert_eq!((record.start, record.end), (10, 20));
            assert_eq!((record.object_kind, record.object), (object_kind, object));
        }
    }
}

#[test]
fn whole_graphs_of_every_version_read_the_same() {
    for size in [48, 56] {
        let (seen, sink) = decode(&image(
            size,
            &[
                (0, &w(51)),
                (4, &w(4)),
                (8, &q(10)),
                (16, &q(20)),
                (24, &w(1)),
                (28, &w(28)),
                (32, &w(2)),
                (36, &w(3)),
            ],
        ));
        assert_eq!(seen, Seen::Sent);
        let record: GraphRecord = sink.last();
        assert_eq!((record.hdr.kind, record.hdr.aux), (kind::GRAPH, 28));
        assert_eq!(
            (
                record.device,
                record.context,
                record.stream,
                record.correlation
            ),
            (1, 2, 3, 4)
        );
    }
}

fn api_image(domain: u32, cbid: u32) -> Vec<u8> {
    image(
        40,
        &[
            (0, &w(domain)),
            (4, &w(cbid)),
            (8, &q(10)),
            (16, &q(20)),
            (24, &w(1)),
            (28, &w(1234)),
            (32, &w(77)),
            (36, &w(700)),
        ],
    )
}

#[test]
fn calls_on_the_list_are_sent_and_others_are_not() {
    for (domain, cbid) in [(4, 307), (5, 211), (5, 131), (4, 126)] {
        let (seen, sink) = decode(&api_image(domain, cbid));
        assert_eq!(seen, Seen::Sent);
        let record: ApiRecord = sink.last();
        assert_eq!(
            (record.hdr.kind, record.hdr.aux, record.domain),
            (kind::API, cbid, domain)
        );
        assert_eq!((record.start, record.end), (10, 20));
        assert_eq!(
            (record.tid, record.correlation, record.result),
            (1234, 77, 700)
        );
    }
    // Each number is a wanted call of the other API, or of none.
    for (domain, cbid) in [(5, 138), (5, 307), (4, 9999)] {
        let (seen, sink) = decode(&api_image(domain, cbid));
        assert_eq!((seen, sink.records.len()), (Seen::Unwanted, 0));
    }
}

#[test]
fn the_shims_own_probe_is_recognised_by_thread_and_call() {
    let mut decoder = Decoder {
        probe: Some((1234, 4)),
        ..Decoder::default()
    };
    let mut sink = Collected::new();
    // SAFETY: no kernel records.
    unsafe {
        assert_eq!(decoder.record(&api_image(4, 4), &mut sink), Seen::Probe(10));
        decoder.probe = Some((1235, 4));
        assert_eq!(decoder.record(&api_image(4, 4), &mut sink), Seen::Unwanted);
    }
    assert!(sink.records.is_empty());
}

#[test]
fn unknown_kinds_and_cut_records_are_skipped() {
    let name = CString::new("k").unwrap();
    let kernel = kernel_image(248, &name, 1);
    for bytes in [
        &image(64, &[(0, &w(59))])[..],
        &kernel[..159],
        &kernel[..3],
        &[],
    ] {
        let (seen, sink) = decode(bytes);
        assert_eq!((seen, sink.records.len()), (Seen::Unknown, 0));
    }
}

#[test]
fn a_name_is_sent_once_and_again_when_another_stands_at_its_address() {
    let mut decoder = Decoder::default();
    let mut sink = Collected::new();
    let mut text = *b"first\0";
    let address = text.as_mut_ptr() as u64;
    let mut record = kernel_image(208, &CString::default(), 1);
    record[104..112].copy_from_slice(&q(address));
    let id = |decoder: &mut Decoder, sink: &mut Collected| {
        // SAFETY: the text above is a C string.
        unsafe { decoder.record(&record, sink) };
        sink.last::<KernelRecord>().hdr.aux
    };
    let first = id(&mut decoder, &mut sink);
    assert_eq!(id(&mut decoder, &mut sink), first);
    assert_eq!(sink.records.len(), 3);

    // SAFETY: nothing else looks at the text now.
    unsafe { (address as *mut u8).write_volatile(b'F') };
    let second = id(&mut decoder, &mut sink);
    assert_ne!(second, first);
    assert_eq!(sink.records.len(), 5);

    decoder.forget_names();
    assert_eq!(id(&mut decoder, &mut sink), 1, "a new session starts again");
    assert_eq!(sink.records.len(), 7);
    assert_eq!(text[0], b'F');
}

#[test]
fn a_name_that_did_not_fit_is_sent_with_the_next_kernel() {
    let mut decoder = Decoder::default();
    let mut sink = Collected::new();
    let name = CString::new("k").unwrap();
    let record = kernel_image(208, &name, 1);
    sink.full = true;
    // SAFETY: the name is a C string.
    unsafe { decoder.record(&record, &mut sink) };
    sink.full = false;
    // SAFETY: the name is a C string.
    unsafe { decoder.record(&record, &mut sink) };
    assert_eq!(sink.records.len(), 2);
    assert_eq!(sink.last::<KernelRecord>().hdr.aux, 1);
}

#[test]
fn names_are_cut_to_what_a_record_holds() {
    let name = CString::new(vec![b'x'; 50_000]).unwrap();
    let (_, sink) = decode(&kernel_image(208, &name, 1));
    let (named, text) = NameRecord::read_from_prefix(&sink.records[0]).unwrap();
    assert_eq!((named.len as usize, text.len()), (MAX_NAME, MAX_NAME));
    assert_eq!(usize::from(named.hdr.size), sink.records[0].len());
}

#[test]
fn a_kernel_without_a_name_has_id_0() {
    let mut record = kernel_image(208, &CString::default(), 1);
    record[104..112].copy_from_slice(&q(0));
    let (_, sink) = decode(&record);
    assert_eq!(sink.records.len(), 1);
    assert_eq!(sink.last::<KernelRecord>().hdr.aux, 0);
}

#[test]
fn hashes_differ_where_long_names_differ() {
    let base = vec![b'a'; 300];
    let mut seen = std::collections::HashSet::new();
    assert!(seen.insert(hash(&base)));
    for i in 0..base.len() {
        let mut other = base.clone();
        other[i] = b'b';
        assert!(seen.insert(hash(&other)), "byte {i}");
        assert!(seen.insert(hash(&base[..i])), "length {i}");
    }
}
