//! Records on their way into the ring, with a count of those that did not fit.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use gdiag_shim_layout::{
    kind, state, Control, DeviceRecord, LostRecord, RecordHeader, StateRecord,
};
use zerocopy::IntoBytes;

use crate::cupti::Device;
use crate::decode::{Sink, Span};
use crate::shared::Shared;

/// `aux` of a [`LostRecord`].
const RING_FULL: u32 = 0;
const DROPPED_BY_CUPTI: u32 = 1;

/// So many are kept as long as the ring is full: the last say where the shim stands.
const UNTOLD_STATES: usize = 16;

/// Lost records of one kind that gdiag was not told about yet.
#[derive(Debug, Default)]
struct Loss {
    count: u64,
    from: u64,
    to: u64,
}

impl Loss {
    fn add(&mut self, count: u64, span: Span) {
        // A record without times does not say when; those around it do.
        if span.start > 0 {
            if self.from == 0 {
                self.from = span.start;
            }
            self.from = self.from.min(span.start);
            self.to = self.to.max(span.end);
        }
        self.count += count;
    }

    fn send(&mut self, shared: &mut Shared, aux: u32) {
        if self.count == 0 {
            return;
        }
        if push_loss(shared, aux, self.count, self.from, self.to) {
            *self = Loss::default();
        }
    }
}

fn push_loss(shared: &mut Shared, aux: u32, count: u64, from: u64, to: u64) -> bool {
    let hdr = RecordHeader {
        size: size_of::<LostRecord>() as u16,
        kind: kind::LOST,
        aux,
    };
    let record = LostRecord {
        hdr,
        count,
        from,
        to,
    };
    shared.push(record.as_bytes())
}

#[derive(Debug)]
pub(crate) struct Output {
    shared: Shared,
    ring: Loss,
    cupti: Loss,
    /// A time whose records did not come to us; not told yet.
    silence: Option<Span>,
    /// States that gdiag was not told in the ring yet.
    states: VecDeque<StateRecord>,
}

impl Output {
    pub(crate) fn new(shared: Shared) -> Output {
        Output {
            shared,
            ring: Loss::default(),
            cupti: Loss::default(),
            silence: None,
            states: VecDeque::new(),
        }
    }

    pub(crate) fn control(&self) -> &Control {
        self.shared.control()
    }

    /// A new collector counts from zero.
    pub(crate) fn begin_session(&mut self) {
        self.ring = Loss::default();
        self.cupti = Loss::default();
        self.silence = None;
        let control = self.control();
        for counter in [
            &control.lost_ring,
            &control.lost_cupti,
            &control.pool_empty,
            &control.ring_peak,
            &control.unknown_records,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Says the state and why, in the control block at once and in the ring in order.
    pub(crate) fn set_state(&mut self, state: u32, reason: &str, time: u64) {
        self.shared.set_state(state, reason);
        self.pass_through(state, time);
    }

    /// Says in the ring that the state was this for a moment, for the reason that is given now.
    fn pass_through(&mut self, state: u32, time: u64) {
        let hdr = RecordHeader {
            size: size_of::<StateRecord>() as u16,
            kind: kind::STATE,
            aux: state,
        };
        self.states.push_back(StateRecord { hdr, time });
        if self.states.len() > UNTOLD_STATES {
            self.states.pop_front();
        }
        self.catch_up();
    }

    /// Says a state that is the last for now, and that it came by way of being busy, for this
    /// reason. gdiag reads no further than the last state, and takes the reason from the control
    /// block; so that goes first, and the state last.
    pub(crate) fn set_last_state(&mut self, state: u32, busy: &str, time: u64) {
        let before = self.control().state.load(Ordering::Relaxed);
        self.shared.set_state(before, busy);
        if before != state::BUSY && state != state::BUSY {
            self.pass_through(state::BUSY, time);
        }
        if state != before {
            self.set_state(state, busy, time);
        }
    }

    /// Sends what did not fit when it was due.
    pub(crate) fn catch_up(&mut self) {
        self.ring.send(&mut self.shared, RING_FULL);
        self.cupti.send(&mut self.shared, DROPPED_BY_CUPTI);
        if let Some(span) = self.silence {
            if push_loss(&mut self.shared, DROPPED_BY_CUPTI, 0, span.start, span.end) {
                self.silence = None;
            }
        }
        while let Some(state) = self.states.front() {
            if !self.shared.push(state.as_bytes()) {
                break;
            }
            self.states.pop_front();
        }
        self.shared.note_peak();
    }

    /// Gives back what memory it can. Returns whether gdiag has read everything.
    pub(crate) fn give_back(&mut self) -> bool {
        self.shared.give_back()
    }

    pub(crate) fn dropped_by_cupti(&mut self, count: u64, span: Span) {
        if count > 0 {
            self.control()
                .lost_cupti
                .fetch_add(count, Ordering::Relaxed);
            self.cupti.add(count, span);
        }
    }

    /// Nobody knows how many records of this time there were: they did not come to us.
    pub(crate) fn silent(&mut self, span: Span) {
        let start = self.silence.map_or(span.start, |s| s.start.min(span.start));
        self.silence = Some(Span { start, ..span });
        self.catch_up();
    }

    pub(crate) fn unknown_record(&self) {
        self.control()
            .unknown_records
            .fetch_add(1, Ordering::Relaxed);
    }

    /// `false`: no room.
    pub(crate) fn device(&mut self, device: &Device) -> bool {
        let hdr = RecordHeader {
            size: size_of::<DeviceRecord>() as u16,
            kind: kind::DEVICE,
            aux: device.ordinal,
        };
        self.shared.push(
            DeviceRecord {
                hdr,
                uuid: device.uuid,
                name: device.name,
            }
            .as_bytes(),
        )
    }
}

impl Sink for Output {
    fn send(&mut self, record: &[u8], span: Span) -> bool {
        // What was lost comes before what follows, or the hole would seem to be later.
        self.ring.send(&mut self.shared, RING_FULL);
        if self.ring.count == 0 && self.shared.push(record) {
            return true;
        }
        self.control().lost_ring.fetch_add(1, Ordering::Relaxed);
        self.ring.add(1, span);
        false
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{self, NonNull};

    use gdiag_shim_layout::ring::{Consumer, Scratch};
    use zerocopy::FromBytes;

    use super::*;

    const RECORD: [u8; 1024] = {
        let mut record = [0; 1024];
        record[1] = 4;
        record[2] = kind::KERNEL as u8;
        record
    };

    fn at(time: u64) -> Span {
        Span {
            start: time,
            end: time + 5,
        }
    }

    #[test]
    fn a_full_ring_is_told_as_one_loss_with_its_span() {
        let mut out = Output::new(Shared::create(4096).unwrap());
        for time in 0..4 {
            assert!(out.send(&RECORD, at(time)));
        }
        assert!(!out.send(&RECORD, at(100)));
        assert!(!out.send(&RECORD, at(90)));
        assert_eq!(out.control().lost_ring.load(Ordering::Relaxed), 2);

        // The collector reads all.
        out.control().tail.store(
            out.control().head.load(Ordering::Relaxed),
            Ordering::Release,
        );
        let head = out.control().head.load(Ordering::Relaxed);
        assert!(out.send(&RECORD, at(200)));
        let written = out.control().head.load(Ordering::Relaxed) - head;
        assert_eq!(written, 1024 + size_of::<LostRecord>() as u64);
        assert_eq!(
            (
                out.ring.count,
                out.control().lost_ring.load(Ordering::Relaxed)
            ),
            (0, 2)
        );
    }

    #[test]
    fn the_span_of_a_loss_covers_all_its_records() {
        let mut loss = Loss::default();
        loss.add(1, at(100));
        loss.add(2, at(90));
        loss.add(1, at(95));
        assert_eq!((loss.count, loss.from, loss.to), (4, 90, 105));
    }

    #[test]
    fn a_state_that_does_not_fit_is_sent_later() {
        let mut out = Output::new(Shared::create(4096).unwrap());
        while out.send(&RECORD, at(0)) {}
        out.set_state(state::PAUSED, "no sign of life", 7);
        assert_eq!(out.control().state.load(Ordering::Relaxed), state::PAUSED);
        assert_eq!(out.states.len(), 1);
        out.control().tail.store(
            out.control().head.load(Ordering::Relaxed),
            Ordering::Release,
        );
        out.catch_up();
        assert!(out.states.is_empty());
    }

    /// What gdiag would read, in order.
    fn told(out: &mut Output) -> Vec<(u16, u32)> {
        let (base, len) = (ptr::from_ref(out.control()).cast_mut().cast(), 4096 + 4096);
        // SAFETY: the memory of `out`, which lives longer; nobody else reads it.
        let mut consumer = unsafe { Consumer::new(NonNull::new(base).unwrap(), len).unwrap() };
        let mut told = Vec::new();
        consumer
            .drain(&mut Scratch::default(), |kind, bytes| {
                told.push((kind, RecordHeader::read_from_prefix(bytes).unwrap().0.aux));
            })
            .unwrap();
        told
    }

    #[test]
    fn a_silence_is_told_before_the_state_that_explains_it() {
        let mut out = Output::new(Shared::create(4096).unwrap());
        out.set_state(state::ACTIVE, "", 1);
        out.silent(Span { start: 5, end: 9 });
        out.set_last_state(state::FINISHED, "taken", 9);
        let expected = [
            (kind::STATE, state::ACTIVE),
            (kind::LOST, DROPPED_BY_CUPTI),
            (kind::STATE, state::BUSY),
            (kind::STATE, state::FINISHED),
        ];
        assert_eq!(told(&mut out), expected);
        let control = out.control();
        assert_eq!(control.state.load(Ordering::Relaxed), state::FINISHED);
        assert_eq!(control.reason.get(&mut [0; 256]), b"taken");
        assert_eq!(control.lost_cupti.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_last_state_of_a_busy_shim_says_busy_once() {
        let mut out = Output::new(Shared::create(4096).unwrap());
        for last in [state::BUSY, state::BUSY, state::DORMANT] {
            out.set_last_state(last, "taken", 9);
        }
        let expected = [(kind::STATE, state::BUSY), (kind::STATE, state::DORMANT)];
        assert_eq!(told(&mut out), expected);
    }

    #[test]
    fn silences_that_do_not_fit_are_told_later_as_one() {
        let mut out = Output::new(Shared::create(4096).unwrap());
        while out.send(&RECORD, at(0)) {}
        out.ring = Loss::default();
        out.silent(Span { start: 5, end: 9 });
        out.silent(Span { start: 20, end: 30 });
        assert_eq!(out.silence, Some(Span { start: 5, end: 30 }));
        out.control().tail.store(
            out.control().head.load(Ordering::Relaxed),
            Ordering::Release,
        );
        out.catch_up();
        assert_eq!(out.silence, None);
    }

    #[test]
    fn a_new_session_counts_from_zero() {
        let mut out = Output::new(Shared::create(4096).unwrap());
        while out.send(&RECORD, at(0)) {}
        out.dropped_by_cupti(3, at(1));
        out.begin_session();
        let control = out.control();
        assert_eq!(
            control.lost_ring.load(Ordering::Relaxed) + control.lost_cupti.load(Ordering::Relaxed),
            0
        );
        assert_eq!(out.ring.count + out.cupti.count, 0);
    }
}
