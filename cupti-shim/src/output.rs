//! Records on their way into the ring, with a count of those that did not fit.

use std::sync::atomic::Ordering;

use gdiag_shim_layout::{kind, Control, DeviceRecord, LostRecord, RecordHeader, StateRecord};
use zerocopy::IntoBytes;

use crate::cupti::Device;
use crate::decode::{Sink, Span};
use crate::shared::Shared;

/// `aux` of a [`LostRecord`].
const RING_FULL: u32 = 0;
const DROPPED_BY_CUPTI: u32 = 1;

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
        let hdr = RecordHeader {
            size: size_of::<LostRecord>() as u16,
            kind: kind::LOST,
            aux,
        };
        let record = LostRecord {
            hdr,
            count: self.count,
            from: self.from,
            to: self.to,
        };
        if shared.push(record.as_bytes()) {
            *self = Loss::default();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Output {
    shared: Shared,
    ring: Loss,
    cupti: Loss,
    /// A state that gdiag was not told in the ring yet.
    state: Option<StateRecord>,
}

impl Output {
    pub(crate) fn new(shared: Shared) -> Output {
        Output {
            shared,
            ring: Loss::default(),
            cupti: Loss::default(),
            state: None,
        }
    }

    pub(crate) fn control(&self) -> &Control {
        self.shared.control()
    }

    /// A new collector counts from zero.
    pub(crate) fn begin_session(&mut self) {
        self.ring = Loss::default();
        self.cupti = Loss::default();
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
        let hdr = RecordHeader {
            size: size_of::<StateRecord>() as u16,
            kind: kind::STATE,
            aux: state,
        };
        self.state = Some(StateRecord { hdr, time });
        self.catch_up();
    }

    /// Sends what did not fit when it was due.
    pub(crate) fn catch_up(&mut self) {
        self.ring.send(&mut self.shared, RING_FULL);
        self.cupti.send(&mut self.shared, DROPPED_BY_CUPTI);
        if let Some(state) = self.state {
            if self.shared.push(state.as_bytes()) {
                self.state = None;
            }
        }
        self.shared.note_peak();
    }

    pub(crate) fn dropped_by_cupti(&mut self, count: u64, span: Span) {
        if count > 0 {
            self.control()
                .lost_cupti
                .fetch_add(count, Ordering::Relaxed);
            self.cupti.add(count, span);
        }
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
    use gdiag_shim_layout::state;

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
        assert!(out.state.is_some());
        out.control().tail.store(
            out.control().head.load(Ordering::Relaxed),
            Ordering::Release,
        );
        out.catch_up();
        assert!(out.state.is_none());
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
