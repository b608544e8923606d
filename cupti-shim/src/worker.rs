//! The shim's thread: it alone reads CUPTI's buffers and writes the ring.
//!
//! A dormant shim sleeps on a futex in the shared memory and costs nothing. A collecting one
//! looks at everything ten times a second: what CUPTI has complete, what the collector wants,
//! whether the collector is alive, and whether another tool has taken CUPTI over.
//!
//! Whoever registers buffer callbacks last gets the records, and nobody is told. So the shim
//! makes a harmless CUDA call once a second and looks whether its record comes back. Where
//! buffers are shared between threads (before CUDA 13) one long kernel can hold it back, too;
//! therefore a few have to stay away, and nothing else may have come. A tool that takes over and
//! is done within that time is not noticed; its time is then a hole without a mark.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use gdiag_shim_layout::{state, BEAT_TIMEOUT_MS, FLUSH_MS};

use crate::cupti::{Driver, SUCCESS};
use crate::decode::{Decoder, Seen, Span};
use crate::launcher::Launcher;
use crate::output::Output;
use crate::session::{self, Cupti, Refusal, PROBE_CBID};
use crate::shared::Shared;
use crate::{pool, sys};

const MS: u64 = 1_000_000;

/// A launched command collects before gdiag has found its shim. Give that more time than a beat,
/// as long as gdiag lives.
const FIRST_BEAT_TIMEOUT_MS: u64 = 5_000;
/// A launched program that ends before gdiag has found its shim waits for it so long: what is in
/// the ring would be lost with the process. Less than an exit is given in all.
const FOUND_WITHIN_MS: u64 = 150;
/// A paused shim looks for the beat this often, for as long as it may be a short hiccup…
const PAUSED_MS: u64 = 100;
/// …and this often afterwards.
const LONG_PAUSED_MS: u64 = 1_000;
const LONG_PAUSE_AFTER_MS: u64 = 10_000;
/// A shim that cannot collect looks this often whether it is time to try again.
const REFUSED_MS: u64 = 1_000;
/// How often a tool that holds CUPTI is asked again.
const BUSY_RETRY_MS: u64 = 5_000;
/// How often the shim makes a call of its own to see whether its record comes back…
const PROBE_MS: u64 = 1_000;
/// …and how many in a row may stay away, when nothing else comes back either.
const PROBES_UNANSWERED: u32 = 3;

const NO_BEAT: &str = "gdiag gives no sign of life; collecting goes on when it does";
const TAKEN_OVER: &str = "records stopped coming back: another tool has taken over CUPTI's buffers, \
                          as torch.profiler does when it starts, or one kernel keeps them all from completing";
const SHUT_DOWN: &str = "another tool has shut CUPTI down in this process";

/// Set by the exit handler, and answered by [`EXIT_DONE`].
static EXITING: AtomicBool = AtomicBool::new(false);
/// Futex. 1: nothing will be written any more.
static EXIT_DONE: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
enum Phase {
    /// Sleeps until `wanted` changes.
    Dormant,
    Active(Active),
    /// Since when, in CLOCK_MONOTONIC ns.
    Paused {
        since: u64,
    },
    /// Nothing before the collector changes its mind; asks again at `retry`, if there is one.
    Refused {
        retry: Option<u64>,
    },
}

#[derive(Debug)]
struct Active {
    /// Times are CLOCK_MONOTONIC ns.
    next_flush: u64,
    next_probe: u64,
    /// Probes since a buffer came back.
    unanswered: u32,
    /// Too many of them: another tool seems to have the buffers now.
    taken: bool,
    /// CUPTI's clock when losses were last asked for.
    losses_asked: u64,
}

/// The last beat, and when it was seen to move (CLOCK_MONOTONIC ns).
#[derive(Debug)]
struct Beat {
    value: u64,
    at: u64,
    ever: bool,
}

impl Beat {
    fn look(&mut self, value: u64, now: u64) -> bool {
        if value != self.value {
            *self = Beat {
                value,
                at: now,
                ever: true,
            };
        }
        let timeout = if self.ever {
            BEAT_TIMEOUT_MS
        } else {
            FIRST_BEAT_TIMEOUT_MS
        };
        now.saturating_sub(self.at) < timeout * MS
    }
}

#[derive(Debug)]
pub(crate) struct Worker {
    out: Output,
    decoder: Decoder,
    cupti: Option<Cupti>,
    driver: Option<Driver>,
    phase: Phase,
    session: u32,
    beat: Beat,
    /// Who launched the program and has not found the shim yet.
    launcher: Option<Launcher>,
    devices_sent: bool,
    /// A probe came back at least once, so that its absence means something.
    probe_works: bool,
    /// The pool's counters when the session began and when they were last reported.
    empty_before: u64,
    discarded_before: u64,
}

impl Worker {
    pub(crate) fn new(shared: Shared) -> Worker {
        Worker {
            out: Output::new(shared),
            decoder: Decoder::default(),
            cupti: None,
            driver: None,
            phase: Phase::Dormant,
            session: 0,
            beat: Beat {
                value: 0,
                at: sys::monotonic(),
                ever: false,
            },
            launcher: None,
            devices_sent: false,
            probe_works: false,
            empty_before: 0,
            discarded_before: 0,
        }
    }

    /// Says that the shim is there and collects nothing.
    pub(crate) fn lie_down(&mut self) {
        self.phase = Phase::Dormant;
        self.out.set_state(state::DORMANT, "", self.now());
    }

    /// Collects from now on, as if a collector had asked. For a process that gdiag launched: on
    /// the thread that initializes CUDA, because its first launch may follow at once.
    pub(crate) fn start_unasked(&mut self, launcher: Launcher) {
        self.launcher = Some(launcher);
        self.out.control().wanted.store(1, Ordering::Relaxed);
        self.begin(true);
    }

    /// Works until the process exits.
    pub(crate) fn run(&mut self) {
        self.decoder.probe = Some((sys::thread_id(), PROBE_CBID));
        while !EXITING.load(Ordering::Acquire) {
            self.step();
        }
        self.finish();
    }

    /// After a panic: turns CUPTI off, without a word to the program.
    pub(crate) fn abandon(&mut self) {
        if let Some(cupti) = &self.cupti {
            cupti.stop();
        }
        self.phase = Phase::Refused { retry: None };
        self.out
            .set_state(state::FAILED, "internal error of the shim", self.now());
    }

    fn step(&mut self) {
        let control = self.out.control();
        let wanted = control.wanted.load(Ordering::Acquire);
        let session = control.session.load(Ordering::Acquire);
        let beat = control.beat.load(Ordering::Relaxed);
        let now = sys::monotonic();
        let mut alive = self.beat.look(beat, now);
        if self.beat.ever {
            self.launcher = None;
        } else if let Some(launcher) = &self.launcher {
            alive = alive && launcher.is_alive();
        }
        let new_session = session != self.session;
        if new_session {
            self.begin_session(session);
        }
        match &self.phase {
            Phase::Dormant if wanted == 0 => self.sleep(0, None),
            Phase::Dormant => self.resume(now),
            _ if wanted == 0 => {
                self.stop();
                self.lie_down();
            }
            Phase::Active(active) if active.taken && new_session => self.resume(now),
            // To begin again with the next beat would take CUPTI away from the other tool.
            Phase::Active(active) if active.taken && !alive => {
                self.stop();
                self.phase = Phase::Refused { retry: None };
            }
            Phase::Active(_) if !alive => {
                self.stop();
                self.phase = Phase::Paused { since: now };
                self.out.set_state(state::PAUSED, NO_BEAT, self.now());
            }
            Phase::Active(_) => self.collect(now),
            Phase::Paused { .. } if alive => self.resume(now),
            Phase::Paused { since } => {
                let long = now.saturating_sub(*since) > LONG_PAUSE_AFTER_MS * MS;
                let pause = if long { LONG_PAUSED_MS } else { PAUSED_MS };
                self.sleep(wanted, Some(Duration::from_millis(pause)));
            }
            Phase::Refused { retry } => {
                if new_session || retry.is_some_and(|at| now >= at) {
                    self.resume(now);
                } else {
                    self.sleep(wanted, Some(Duration::from_millis(REFUSED_MS)));
                }
            }
        }
    }

    /// Sleeps until the collector rings, `wanted` changes or the time is over.
    fn sleep(&self, wanted: u32, timeout: Option<Duration>) {
        sys::futex_wait(
            &self.out.control().wanted,
            wanted,
            timeout,
            sys::FutexScope::Shared,
        );
    }

    /// A collector asked, or its beat is back.
    fn resume(&mut self, now: u64) {
        // It has the usual time for its next beat.
        self.beat.at = now;
        self.beat.ever = true;
        self.begin(false);
    }

    fn begin_session(&mut self, session: u32) {
        self.session = session;
        self.out.begin_session();
        self.decoder.forget_names();
        self.devices_sent = false;
        (self.empty_before, self.discarded_before) = pool::losses();
        // Marks in the ring where the session begins.
        let (state, reason) = (
            self.out.control().state.load(Ordering::Relaxed),
            self.reason(),
        );
        self.out.set_state(state, &reason, self.now());
    }

    fn reason(&self) -> String {
        let mut buffer = [0; 256];
        String::from_utf8_lossy(self.out.control().reason.get(&mut buffer)).into_owned()
    }

    fn now(&self) -> u64 {
        self.cupti.as_ref().map_or_else(sys::realtime, Cupti::now)
    }

    /// Turns CUPTI on. `early`: before any CUDA call of the program.
    fn begin(&mut self, early: bool) {
        match self.try_begin(early) {
            Ok(()) => {
                let now = sys::monotonic();
                self.phase = Phase::Active(Active {
                    next_flush: now + FLUSH_MS * MS,
                    next_probe: now + PROBE_MS * MS,
                    unanswered: 0,
                    taken: false,
                    losses_asked: self.now(),
                });
                self.out.set_state(state::ACTIVE, "", self.now());
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let retry = (refusal.state == state::BUSY).then(|| sys::monotonic() + BUSY_RETRY_MS * MS);
        self.phase = Phase::Refused { retry };
        // A tool that is still busy is no news.
        if self.out.control().state.load(Ordering::Relaxed) != refusal.state
            || self.reason() != refusal.reason
        {
            self.out
                .set_state(refusal.state, &refusal.reason, self.now());
        }
    }

    fn try_begin(&mut self, early: bool) -> Result<(), Refusal> {
        if self.driver.is_none() {
            self.driver = session::driver();
            let version = self.driver.map_or(0, |driver| driver.version());
            self.out
                .control()
                .driver_version
                .store(version, Ordering::Relaxed);
        }
        if self.cupti.is_none() {
            let cupti = Cupti::load(self.out.control().driver_version.load(Ordering::Relaxed))?;
            cupti.describe(self.out.control());
            // Exit handlers run in reverse order: ours has to come before those of this library.
            crate::register_exit_handler();
            self.cupti = Some(cupti);
        }
        let Some(cupti) = &self.cupti else {
            return Ok(());
        };
        if !early && !cupti.can_start_late() {
            return Err(Refusal {
                state: state::FAILED,
                reason: "CUPTI of CUDA 11 can hang a running program; start it with gdiag record -- COMMAND".into(),
            });
        }
        let refused = cupti.start()?;
        let control = self.out.control();
        control.refused_kinds.store(refused, Ordering::Relaxed);
        control
            .clock_offset_ns
            .store(cupti.clock_offset().cast_unsigned(), Ordering::Relaxed);
        Ok(())
    }

    /// Turns CUPTI off and passes on what it still has.
    fn stop(&mut self) {
        let Some(cupti) = self.cupti.clone() else {
            return;
        };
        if !matches!(self.phase, Phase::Active(_)) {
            return;
        }
        self.probe();
        cupti.flush(false);
        self.drain();
        // Kinds are turned off for all tools, so not when another one has just taken over.
        if !(cupti.has_thread_buffers() && self.unanswered() > 0) {
            cupti.stop();
            cupti.flush(false);
            self.drain();
        }
        self.report_losses();
        self.out.catch_up();
    }

    /// Makes a call whose record should come back with the next flush.
    fn probe(&mut self) {
        if let (Phase::Active(active), Some(driver), true) =
            (&mut self.phase, self.driver, self.devices_sent)
        {
            active.unanswered += 1;
            driver.device_count();
        }
    }

    /// Probes since a buffer came back; 0 as long as none ever has.
    fn unanswered(&self) -> u32 {
        match &self.phase {
            Phase::Active(active) if self.probe_works => active.unanswered,
            _ => 0,
        }
    }

    fn collect(&mut self, now: u64) {
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let wait = active.next_flush.saturating_sub(now).min(FLUSH_MS * MS);
        pool::wait_for_bell(Duration::from_nanos(wait));
        pool::grow_if_low();
        let now = sys::monotonic();
        if now < active.next_flush {
            // The bell: buffers are short.
            self.drain();
            return;
        }
        // The buffers of another tool are its own business; look only for one of ours.
        let pause = if active.taken { PROBE_MS } else { FLUSH_MS };
        active.next_flush = now + pause * MS;
        if now >= active.next_probe && !active.taken {
            active.next_probe = now + PROBE_MS * MS;
            self.probe();
        }
        self.send_devices();
        let there = self.cupti.as_ref().is_none_or(|cupti| cupti.flush(false));
        self.drain();
        self.report_losses();
        self.out.catch_up();
        if there {
            self.judge_probes();
        } else {
            self.phase = Phase::Refused { retry: None };
            self.out.set_state(state::BUSY, SHUT_DOWN, self.now());
        }
    }

    /// Notices that another tool took the buffers over, and that it only seemed so. Nothing is
    /// turned off then: it is the other tool's by now.
    fn judge_probes(&mut self) {
        let taken = self.unanswered() >= PROBES_UNANSWERED;
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        if taken == active.taken {
            return;
        }
        active.taken = taken;
        let (state, reason) = if taken {
            (state::BUSY, TAKEN_OVER)
        } else {
            (state::ACTIVE, "")
        };
        self.out.set_state(state, reason, self.now());
    }

    /// Reads every buffer that is complete.
    fn drain(&mut self) {
        let Some(next) = self
            .cupti
            .as_ref()
            .and_then(|cupti| cupti.functions.get_next_record)
        else {
            return;
        };
        let Worker {
            out,
            decoder,
            probe_works,
            ..
        } = self;
        let buffers = pool::drain(|buffer, valid| {
            let end = buffer as usize + valid;
            let mut record = std::ptr::null_mut();
            // SAFETY: CUPTI completed the buffer with `valid` bytes; it gives addresses inside.
            while unsafe { next(buffer, valid, &mut record) } == SUCCESS {
                let Some(len) = end
                    .checked_sub(record as usize)
                    .filter(|_| record >= buffer)
                else {
                    break;
                };
                // SAFETY: from the record to the end of the valid bytes, inside the buffer.
                let bytes = unsafe { std::slice::from_raw_parts(record, len) };
                // SAFETY: names of kernel records live as long as CUPTI does.
                let seen = unsafe { decoder.record(bytes, out) };
                match seen {
                    Seen::Probe => *probe_works = true,
                    Seen::Unknown => out.unknown_record(),
                    Seen::Sent | Seen::Unwanted => {}
                }
            }
        });
        if buffers > 0 {
            if let Phase::Active(active) = &mut self.phase {
                active.unanswered = 0;
            }
        }
    }

    fn report_losses(&mut self) {
        let Some(cupti) = &self.cupti else { return };
        let (empty, discarded) = pool::losses();
        self.out
            .control()
            .pool_empty
            .store(empty - self.empty_before, Ordering::Relaxed);
        let dropped = cupti.dropped() + discarded - self.discarded_before;
        self.discarded_before = discarded;
        let now = cupti.now();
        if let Phase::Active(active) = &mut self.phase {
            self.out.dropped_by_cupti(
                dropped,
                Span {
                    start: active.losses_asked,
                    end: now,
                },
            );
            active.losses_asked = now;
        }
    }

    /// Sends the list of devices once a session, as soon as the driver can give it.
    fn send_devices(&mut self) {
        if self.devices_sent {
            return;
        }
        let Some(driver) = self.driver else { return };
        let Some(count) = driver.device_count() else {
            return;
        };
        self.devices_sent = (0..count)
            .filter_map(|i| driver.device(i))
            .all(|device| self.out.device(&device));
    }

    /// The process ends: everything out, also what is not complete.
    fn finish(&mut self) {
        if matches!(self.phase, Phase::Active(_)) {
            self.send_devices();
            if let Some(cupti) = self.cupti.clone() {
                cupti.flush(true);
            }
            self.drain();
            self.report_losses();
        }
        // gdiag reads the reason only when it comes to the record of the state before this one.
        let reason = self.reason();
        self.out.set_state(state::FINISHED, &reason, self.now());
        self.wait_to_be_found();
    }

    /// The memory stays when gdiag has mapped it, and goes with the process when it has not.
    fn wait_to_be_found(&mut self) {
        let Some(launcher) = self.launcher.take() else {
            return;
        };
        let control = self.out.control();
        let deadline = sys::monotonic() + FOUND_WITHIN_MS * MS;
        while control.beat.load(Ordering::Acquire) == 0
            && sys::monotonic() < deadline
            && launcher.is_alive()
        {
            // gdiag rings when it has come.
            self.sleep(1, Some(Duration::from_millis(5)));
        }
    }
}

/// Nothing will be written any more: lets an exit go on.
pub(crate) fn done() {
    EXIT_DONE.store(1, Ordering::Release);
    sys::futex_wake(&EXIT_DONE, sys::FutexScope::Process);
}

/// Has the shim's thread send what there is, and waits for it, but never longer than this. The
/// thread does it, not the caller, because CUPTI may hang now and an exit may not.
pub(crate) fn finish_within(limit: Duration, wake_dormant: impl Fn()) {
    EXITING.store(true, Ordering::Release);
    let start = sys::monotonic();
    while EXIT_DONE.load(Ordering::Acquire) == 0 {
        let spent = sys::monotonic().saturating_sub(start);
        let Some(left) = limit.checked_sub(Duration::from_nanos(spent)) else {
            return;
        };
        // Again and again: the thread may have been about to sleep the last time.
        pool::ring_bell();
        wake_dormant();
        sys::futex_wait(
            &EXIT_DONE,
            0,
            Some(left.min(Duration::from_millis(5))),
            sys::FutexScope::Process,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_counts_when_it_moves() {
        let mut beat = Beat {
            value: 0,
            at: 0,
            ever: false,
        };
        assert!(
            beat.look(0, (FIRST_BEAT_TIMEOUT_MS - 1) * MS),
            "launched: the first beat may take long"
        );
        assert!(!beat.look(0, FIRST_BEAT_TIMEOUT_MS * MS));
        assert!(beat.look(1, 6_000 * MS));
        assert!(beat.look(1, (6_000 + BEAT_TIMEOUT_MS - 1) * MS));
        assert!(!beat.look(1, (6_000 + BEAT_TIMEOUT_MS) * MS));
        assert!(beat.look(7, 9_000 * MS), "it came back");
    }
}
