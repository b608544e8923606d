extern crate std;

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::boxed::Box;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

/// Memory as the two processes share it, with a little room behind the ring that nobody may touch.
struct Shared {
    words: Vec<u64>,
    ring_bytes: u64,
}

const GUARD: u64 = 0x5A5A_5A5A_5A5A_5A5A;
const GUARD_WORDS: usize = 16;

impl Shared {
    /// A ring whose positions start at `at`.
    fn new(ring_bytes: u64, at: u64) -> Shared {
        let mut words = vec![0; (RING_OFFSET + ring_bytes) as usize / 8];
        words.extend([GUARD; GUARD_WORDS]);
        let mut shared = Shared { words, ring_bytes };
        // SAFETY: the vector is that long and lives as long as `shared`.
        unsafe { format(shared.base(), shared.len(), ring_bytes) }.unwrap();
        let control = shared.control();
        control.head.store(at, Ordering::Relaxed);
        control.tail.store(at, Ordering::Relaxed);
        shared
    }

    fn len(&self) -> usize {
        (RING_OFFSET + self.ring_bytes) as usize
    }

    fn base(&mut self) -> NonNull<u8> {
        // A Vec of u64 is aligned to 16 by the allocator at best; the control block needs 8.
        NonNull::new(self.words.as_mut_ptr()).unwrap().cast()
    }

    fn control(&mut self) -> &Control {
        // SAFETY: large enough and aligned to 8, as all fields need.
        unsafe { self.base().cast::<Control>().as_ref() }
    }

    fn ends(&mut self) -> (Producer, Consumer) {
        let (base, len) = (self.base(), self.len());
        // SAFETY: the memory outlives both ends in every test below, and there is one of each.
        unsafe {
            (
                Producer::new(base, len).unwrap(),
                Consumer::new(base, len).unwrap(),
            )
        }
    }

    fn assert_guard(&self) {
        assert!(self.words[self.words.len() - GUARD_WORDS..]
            .iter()
            .all(|w| *w == GUARD));
    }
}

/// A record whose every word tells its number, so that a torn one is seen.
fn record(number: u32, words: usize) -> Vec<u8> {
    let header = RecordHeader {
        size: (words * 8) as u16,
        kind: 1 + (number % 7) as u16,
        aux: number,
    };
    let mut bytes = header.as_bytes().to_vec();
    for i in 1..words {
        bytes.extend((u64::from(number) << 32 | i as u64).to_ne_bytes());
    }
    bytes
}

fn drain(consumer: &mut Consumer) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let n = consumer
        .drain(&mut Box::default(), |_, record| all.push(record.to_vec()))
        .unwrap();
    assert_eq!(n, all.len() as u64);
    all
}

#[test]
fn every_record_comes_out_whole_and_in_order_at_every_offset_of_the_wrap() {
    for start in (0..MIN_RING_BYTES).step_by(8) {
        let mut shared = Shared::new(MIN_RING_BYTES, start);
        let (mut producer, mut consumer) = shared.ends();
        for number in 0..40 {
            let sent = record(number, 1 + number as usize % 17);
            assert!(producer.push(&sent));
            assert_eq!(drain(&mut consumer), [sent], "offset {start}");
        }
        shared.assert_guard();
    }
}

#[test]
fn positions_may_pass_the_end_of_64_bits() {
    let mut shared = Shared::new(MIN_RING_BYTES, 0u64.wrapping_sub(64));
    let (mut producer, mut consumer) = shared.ends();
    let sent: Vec<_> = (0..30).map(|n| record(n, 5)).collect();
    assert!(sent.iter().all(|r| producer.push(r)));
    assert_eq!(drain(&mut consumer), sent);
}

#[test]
fn a_full_ring_refuses_and_keeps_what_it_has() {
    let mut shared = Shared::new(MIN_RING_BYTES, 0);
    let (mut producer, mut consumer) = shared.ends();
    let mut sent = Vec::new();
    while producer.push(&record(sent.len() as u32, 7)) {
        sent.push(record(sent.len() as u32, 7));
    }
    assert_eq!(sent.len() as u64, MIN_RING_BYTES / 56);
    assert!(!producer.push(&record(0, 7)));
    assert_eq!(producer.unread(), sent.len() as u64 * 56);
    assert_eq!(drain(&mut consumer), sent);
    assert!(producer.push(&record(9, 7)));
    assert_eq!(drain(&mut consumer), [record(9, 7)]);
}

#[test]
fn a_ring_can_be_filled_to_the_last_byte() {
    let mut shared = Shared::new(MIN_RING_BYTES, 0);
    let (mut producer, mut consumer) = shared.ends();
    for n in 0..MIN_RING_BYTES / 64 {
        assert!(producer.push(&record(n as u32, 8)));
    }
    assert!(!producer.push(&record(0, 1)));
    assert_eq!(consumer.unread(), MIN_RING_BYTES);
    assert_eq!(drain(&mut consumer).len() as u64, MIN_RING_BYTES / 64);
}

#[test]
fn the_longest_record_passes_and_what_is_no_record_does_not() {
    let mut shared = Shared::new(128 << 10, 8);
    let (mut producer, mut consumer) = shared.ends();
    for n in 0..5 {
        let sent = record(n, MAX_RECORD / 8);
        assert!(producer.push(&sent));
        assert_eq!(drain(&mut consumer), [sent]);
    }
    assert!(!producer.push(&[]));
    assert!(!producer.push(&[8, 0, 1, 0]));
    assert!(
        !producer.push(&record(1, 2)[..8]),
        "header names another size"
    );
    assert!(!producer.push(&vec![0; 1 << 16]));
    assert_eq!(drain(&mut consumer), Vec::<Vec<u8>>::new());
}

#[test]
fn a_tail_that_cannot_be_stops_the_producer_without_harm() {
    let mut shared = Shared::new(MIN_RING_BYTES, 0);
    let (mut producer, _) = shared.ends();
    for garbage in [1 << 40, u64::MAX, 8] {
        while producer.push(&record(1, 100)) {}
        producer.control().tail.store(garbage, Ordering::Relaxed);
        assert!(!producer.push(&record(1, 100)), "{garbage}");
        shared.assert_guard();
    }
}

#[test]
fn a_second_consumer_goes_on_where_the_first_stopped() {
    let mut shared = Shared::new(MIN_RING_BYTES, 0);
    let (mut producer, mut first) = shared.ends();
    assert!(producer.push(&record(1, 3)));
    drain(&mut first);
    assert!(producer.push(&record(2, 3)));
    let (_, mut second) = shared.ends();
    assert_eq!(drain(&mut second), [record(2, 3)]);
}

proptest! {
    #[test]
    fn spare_pages_are_those_without_an_unread_byte(
        head in (0u64..1 << 14).prop_map(|n| n * 8),
        unread in prop_oneof![Just(0u64), (0u64..=1 << 11).prop_map(|n| n * 8), Just(1u64 << 14)],
    ) {
        const RING: u64 = 1 << 14;
        const PAGE: u64 = 4096;
        let tail = head.wrapping_sub(unread);
        let mut spare = [true; (RING / PAGE) as usize];
        for at in 0..unread {
            spare[(tail.wrapping_add(at) % RING / PAGE) as usize] = false;
        }
        let mut given = [false; (RING / PAGE) as usize];
        for (place, bytes) in spare_pages(head, tail, RING, PAGE) {
            prop_assert_eq!(bytes % PAGE as usize, 0);
            for page in (place..place + bytes).step_by(PAGE as usize) {
                prop_assert!(!core::mem::replace(&mut given[page / PAGE as usize], true));
            }
        }
        prop_assert_eq!(given, spare);
    }
}

#[test]
fn no_page_is_spare_that_the_control_block_may_share_or_with_a_tail_that_cannot_be() {
    let nothing = |ranges: [(usize, usize); 2]| ranges.iter().all(|(_, bytes)| *bytes == 0);
    assert!(nothing(spare_pages(0, 0, 1 << 20, 64 << 10)));
    assert!(nothing(spare_pages(0, 8, 1 << 20, 4096)));
    assert!(nothing(spare_pages(8, 1 << 40, 1 << 20, 4096)));
    assert!(!nothing(spare_pages(8, 0, 1 << 20, 4096)));
}

/// Check that each kind of damage is called by its name, and stays an error.
#[test]
fn damage_is_named_and_final() {
    let damaged = |damage: &dyn Fn(&mut Shared)| {
        let mut shared = Shared::new(MIN_RING_BYTES, 0);
        let (mut producer, mut consumer) = shared.ends();
        assert!(producer.push(&record(1, 4)));
        damage(&mut shared);
        let scratch = &mut Scratch::default();
        let first = consumer.drain(scratch, |_, _| {}).unwrap_err();
        assert_eq!(
            consumer.drain(scratch, |_, _| panic!("read on")),
            Err(first)
        );
        first
    };
    let header = |size: u16| {
        move |shared: &mut Shared| {
            shared.words[RING_OFFSET as usize / 8] = u64::from(size);
        }
    };
    let head =
        |head: u64| move |shared: &mut Shared| shared.control().head.store(head, Ordering::Relaxed);

    assert_eq!(damaged(&header(0)), Corrupt::Size { at: 0, size: 0 });
    assert_eq!(damaged(&header(12)), Corrupt::Size { at: 0, size: 12 });
    assert_eq!(
        damaged(&header(40)),
        Corrupt::Unwritten {
            at: 0,
            size: 40,
            available: 32
        }
    );
    let ring_bytes = MIN_RING_BYTES;
    for bad in [ring_bytes + 8, 12, u64::MAX - 7] {
        assert_eq!(
            damaged(&head(bad)),
            Corrupt::Head {
                head: bad,
                tail: 0,
                ring_bytes
            }
        );
    }

    let mut shared = Shared::new(MIN_RING_BYTES, 4080);
    let (_, mut consumer) = shared.ends();
    shared.words[(RING_OFFSET + 4080) as usize / 8] = 24;
    shared.control().head.store(4080 + 32, Ordering::Relaxed);
    let crosses = consumer
        .drain(&mut Scratch::default(), |_, _| {})
        .unwrap_err();
    assert_eq!(crosses, Corrupt::Crosses { at: 4080, size: 24 });
    assert_eq!(
        crosses.to_string(),
        "record at 4080 of 24 bytes crosses the end of the ring"
    );
}

#[test]
fn memory_that_is_no_shim_is_refused_with_the_reason() {
    let open = |change: &dyn Fn(&Control)| {
        let mut shared = Shared::new(MIN_RING_BYTES, 0);
        change(shared.control());
        let (base, len) = (shared.base(), shared.len());
        // SAFETY: the memory lives until the end of this closure.
        unsafe { Consumer::new(base, len) }.unwrap_err()
    };
    assert_eq!(
        open(&|c| c.magic.store(7, Ordering::Relaxed)),
        Invalid::Magic { found: 7 }
    );
    assert_eq!(
        open(&|c| c.version.store(99, Ordering::Relaxed)),
        Invalid::Version { found: 99 }
    );
    assert_eq!(
        open(&|c| c.size.store(16, Ordering::Relaxed)),
        Invalid::Size { found: 16 }
    );
    for (offset, bytes) in [
        (RING_OFFSET, 8192),
        (RING_OFFSET, 4097),
        (RING_OFFSET, 0),
        (0, 4096),
        (u64::MAX, 4096),
    ] {
        let found = open(&|c| {
            c.ring_offset.store(offset, Ordering::Relaxed);
            c.ring_bytes.store(bytes, Ordering::Relaxed);
        });
        assert_eq!(found, Invalid::Ring { offset, bytes });
    }
    let mut small = [0u64; 8];
    // SAFETY: eight words are there.
    let result = unsafe { Consumer::new(NonNull::from(&mut small).cast(), 64) };
    assert_eq!(result.unwrap_err(), Invalid::Mapping { len: 64 });
}

#[test]
fn two_threads_lose_tear_and_reorder_nothing() {
    const RECORDS: u32 = 200_000;
    let mut shared = Shared::new(64 << 10, 0);
    let (mut producer, mut consumer) = shared.ends();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..RECORDS {
                while !producer.push(&record(number, 1 + number as usize % 23)) {
                    std::thread::yield_now();
                }
            }
        });
        let scratch = &mut Scratch::default();
        let mut next = 0;
        while next < RECORDS {
            let read = consumer.drain(scratch, |_, bytes| {
                assert_eq!(bytes, record(next, 1 + next as usize % 23));
                next += 1;
            });
            if read.unwrap() == 0 {
                std::thread::yield_now();
            }
        }
    });
    shared.assert_guard();
}

proptest! {
    /// Check against a queue: any mixture of writes and reads gives back what was accepted.
    #[test]
    fn any_interleaving_behaves_like_a_queue(
        start in 0..512u64,
        steps in prop::collection::vec((1..200usize, any::<bool>()), 1..200),
    ) {
        let mut shared = Shared::new(MIN_RING_BYTES, start * 8);
        let (mut producer, mut consumer) = shared.ends();
        let mut expected = Vec::new();
        for (number, (words, read)) in steps.into_iter().enumerate() {
            let sent = record(number as u32, words);
            if producer.push(&sent) {
                expected.push(sent);
            } else {
                // Refused for want of room only, of which the padding may need a part.
                prop_assert!(producer.unread() + 2 * sent.len() as u64 > MIN_RING_BYTES);
            }
            if read {
                prop_assert_eq!(drain(&mut consumer), core::mem::take(&mut expected));
            }
        }
        prop_assert_eq!(drain(&mut consumer), expected);
        shared.assert_guard();
    }

    /// Check that hostile memory gives records inside their bounds or an error, never a panic.
    #[test]
    fn garbage_never_panics(
        ring in prop::collection::vec(prop_oneof![any::<u64>(), 0..256u64, Just(8u64)], 512),
        head in any::<u64>(),
        ahead in 0..4200u64,
        sane in any::<bool>(),
    ) {
        let tail = head & !7;
        let mut shared = Shared::new(MIN_RING_BYTES, tail);
        let (mut producer, mut consumer) = shared.ends();
        shared.words[RING_OFFSET as usize / 8..][..512].copy_from_slice(&ring);
        let head = if sane { tail.wrapping_add(ahead & !7) } else { head.wrapping_add(ahead) };
        shared.control().head.store(head, Ordering::Relaxed);
        let mut total = 0;
        let result = consumer.drain(&mut Scratch::default(), |kind, record| {
            assert!(kind != kind::PAD && record.len() >= 8 && record.len().is_multiple_of(8));
            total += record.len();
        });
        prop_assert!(total as u64 <= MIN_RING_BYTES);
        if !sane && head.wrapping_sub(tail) > MIN_RING_BYTES {
            prop_assert!(result.is_err());
        }
        producer.push(&record(1, 9));
        shared.assert_guard();
    }

    #[test]
    fn any_control_page_is_refused_or_usable(words in prop::collection::vec(any::<u64>(), 512)) {
        let mut shared = Shared::new(MIN_RING_BYTES, 0);
        shared.words[1..512].copy_from_slice(&words[1..]);
        let (base, len) = (shared.base(), shared.len());
        // SAFETY: the memory lives until the end of this test.
        if let Ok(mut consumer) = unsafe { Consumer::new(base, len) } {
            let _ = consumer.drain(&mut Scratch::default(), |_, _| {});
        }
        shared.assert_guard();
    }
}
