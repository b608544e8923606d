//! The shim's thread: it alone reads CUPTI's buffers and writes the ring.
//!
//! A dormant shim sleeps on a futex in the shared memory and costs nothing. A collecting one
//! looks at everything a few times a second: what CUPTI has complete, what the collector wants,
//! whether the collector is alive, and whether another tool has taken CUPTI over.
//!
//! What did not come to us is said to be lost from the last moment of which all records came. It
//! is said when it is certain: what only seems to be lost may yet come, whole. A tool that holds a
//! subscription and gives it back has let CUPTI go, and collecting goes on. One that holds none
//! cannot be told from one that has finished, and is left alone.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gdiag_shim_layout::cupti::activity;
use gdiag_shim_layout::{state, FLUSH_MS};

use crate::beat::Beat;
use crate::cupti::{Driver, SUCCESS};
use crate::decode::{Decoder, Seen, Span};
use crate::launcher::Launcher;
use crate::output::Output;
use crate::session::{self, Cupti, Refusal, PROBE_CBID};
use crate::shared::Shared;
use crate::watch::{Verdict, Watch};
use crate::{exit, pool, sys};

const MS: u64 = 1_000_000;

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
/// When collecting has ended, gdiag reads what is left, and CUPTI gives buffers back: the shim looks so
/// often whether their memory can go…
const LEAVE_MS: u64 = 100;
/// …and no longer than this.
const LEAVE_WITHIN_MS: u64 = 10_000;
/// A buffer with an operation that runs when collecting ends is waited for so long.
const LAST_BUFFERS_MS: u64 = 250;
/// How often a shim whose records do not come looks whether they do again.
const SILENT_MS: u64 = 1_000;
/// A tool that has not held a subscription when it was looked for so many times holds none.
const LOOKS_FOR_HOLDER: u32 = 3;

const NO_BEAT: &str = "gdiag gives no sign of life; collecting goes on when it does";
const TAKEN_OVER: &str = "another tool has taken CUPTI over, as torch.profiler does when it starts";
const SEEMS_TAKEN: &str =
    "records stopped coming back: another tool has taken CUPTI over, or one kernel keeps \
                           them all from completing";
const SHUT_DOWN: &str = "another tool has shut CUPTI down in this process";

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
    watch: Watch,
    /// What was last said of it.
    said: Verdict,
    holder: Holder,
    /// CUPTI's clock when losses were last asked for.
    losses_asked: u64,
}

/// What is known of the tool that has taken CUPTI over.
#[derive(Clone, Copy, Debug)]
enum Holder {
    /// It was not seen to hold a subscription, and is looked for so many times more.
    Sought(u32),
    Seen,
}

#[derive(Debug)]
pub(crate) struct Worker {
    out: Output,
    decoder: Decoder,
    cupti: Option<Cupti>,
    driver: Option<Driver>,
    /// Where libcupti may be, if the program has none.
    toolkits: Vec<PathBuf>,
    phase: Phase,
    session: u32,
    beat: Beat,
    /// Who launched the program and has not found the shim yet.
    launcher: Option<Launcher>,
    devices_sent: bool,
    /// Until when memory may still be given back (CLOCK_MONOTONIC ns).
    leaving_until: Option<u64>,
    /// What happens to managed memory is wanted, too.
    unified_memory: bool,
    /// The record of a call of the shim's own came back at least once.
    calls_come_back: bool,
    /// The pool's counters when the session began and when they were last reported.
    empty_before: u64,
    discarded_before: u64,
}

impl Worker {
    pub(crate) fn new(shared: Shared, toolkits: Vec<PathBuf>) -> Worker {
        Worker {
            out: Output::new(shared),
            decoder: Decoder::default(),
            cupti: None,
            driver: None,
            toolkits,
            phase: Phase::Dormant,
            session: 0,
            beat: Beat::none(sys::monotonic()),
            launcher: None,
            devices_sent: false,
            leaving_until: None,
            unified_memory: false,
            calls_come_back: false,
            empty_before: 0,
            discarded_before: 0,
        }
    }

    /// Says that the shim is there and collects nothing.
    pub(crate) fn lie_down(&mut self) {
        self.phase = Phase::Dormant;
        // One that never collected has nothing, and sleeps at once.
        let until = self
            .cupti
            .as_ref()
            .map(|_| sys::monotonic() + LEAVE_WITHIN_MS * MS);
        self.leaving_until = until;
        self.out.set_state(state::DORMANT, "", self.now());
    }

    /// Collects from now on, as if a collector had asked. For a process that gdiag launched: on
    /// the thread that initializes CUDA, because its first launch may follow at once.
    pub(crate) fn start_unasked(&mut self, launcher: Launcher, unified_memory: bool) {
        self.launcher = Some(launcher);
        self.unified_memory = unified_memory;
        self.out.control().wanted.store(1, Ordering::Relaxed);
        self.begin(true);
    }

    /// Works until the process exits.
    pub(crate) fn run(&mut self) {
        self.decoder.probe = Some((sys::thread_id(), PROBE_CBID));
        while !exit::is_near() {
            self.step();
        }
        self.finish();
    }

    /// After a panic: turns CUPTI off, without a word to the program.
    pub(crate) fn abandon(&mut self) {
        if let Some(cupti) = &self.cupti {
            cupti.stop();
        }
        self.tell_silence();
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
        if self.beat.was_seen() {
            self.launcher = None;
        } else if let Some(launcher) = &self.launcher {
            alive = alive && launcher.is_alive();
        }
        let new_session = session != self.session;
        if new_session {
            self.begin_session(session);
        }
        match &self.phase {
            Phase::Dormant if wanted == 0 => {
                pool::discard_late();
                let look = self.leave(now);
                self.sleep(0, look);
            }
            Phase::Dormant => {
                pool::discard_late();
                self.resume(now);
            }
            Phase::Active(_) if wanted == 0 => {
                let busy = self.stop();
                self.phase = Phase::Dormant;
                self.end(state::DORMANT, busy);
            }
            _ if wanted == 0 => self.lie_down(),
            Phase::Active(active) if active.said != Verdict::Good && new_session => {
                self.resume(now);
            }
            Phase::Active(_) if !alive => match self.stop() {
                None => {
                    self.phase = Phase::Paused { since: now };
                    self.out.set_state(state::PAUSED, NO_BEAT, self.now());
                }
                // To begin again with the next beat would take CUPTI away from the other tool.
                Some(reason) => {
                    self.phase = Phase::Refused { retry: None };
                    self.end(state::BUSY, Some(reason));
                }
            },
            Phase::Active(_) => self.collect(now),
            Phase::Paused { .. } if alive => self.resume(now),
            Phase::Paused { since } => {
                let long = now.saturating_sub(*since) > LONG_PAUSE_AFTER_MS * MS;
                let pause = if long { LONG_PAUSED_MS } else { PAUSED_MS };
                self.leave(now);
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

    /// Gives memory back, after collecting has ended. Returns when to look again, if at all.
    fn leave(&mut self, now: u64) -> Option<Duration> {
        let until = self.leaving_until?;
        pool::give_back();
        self.decoder.give_back();
        let all_read = self.out.give_back();
        if (all_read && !pool::is_out()) || now >= until {
            self.leaving_until = None;
            return None;
        }
        Some(Duration::from_millis(LEAVE_MS))
    }

    /// A collector asked, or its beat is back.
    fn resume(&mut self, now: u64) {
        self.beat.expect_the_next(now);
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
                let own_buffer = self.cupti.as_ref().is_some_and(Cupti::has_thread_buffers);
                let now = self.now();
                self.phase = Phase::Active(Active {
                    next_flush: sys::monotonic() + FLUSH_MS * MS,
                    watch: Watch::new(own_buffer, self.calls_come_back, now),
                    said: Verdict::Good,
                    holder: Holder::Sought(LOOKS_FOR_HOLDER),
                    losses_asked: now,
                });
                self.out.set_state(state::ACTIVE, "", now);
            }
            Err(refusal) => self.refuse(&refusal, early),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, early: bool) {
        // A program that has not begun with CUDA may yet load what was missing. Inside of `cuInit` the
        // driver cannot be asked.
        let begun = if early {
            self.cupti.is_some()
        } else {
            let devices = self.driver.and_then(|driver| driver.device_count());
            devices.is_some()
        };
        let pause = match refusal.state {
            state::BUSY => Some(BUSY_RETRY_MS),
            _ if !begun => Some(REFUSED_MS),
            _ => None,
        };
        let retry = pause.map(|pause| sys::monotonic() + pause * MS);
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
            // Without it nobody knows which libcupti is the right one, and the first is for good.
            let Some(driver) = self.driver else {
                return Err(Refusal::failed(
                    "the program has not loaded the CUDA driver",
                ));
            };
            let cupti = Cupti::load(driver.version(), &self.toolkits, self.unified_memory)?;
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

    /// Turns CUPTI off and passes on what it still has. Returns why another tool has it, if one has.
    fn stop(&mut self) -> Option<&'static str> {
        let cupti = self.cupti.clone()?;
        self.leaving_until = Some(sys::monotonic() + LEAVE_WITHIN_MS * MS);
        if !self.settle(false) {
            self.tell_silence();
            return Some(SHUT_DOWN);
        }
        // Kinds are turned off for all tools, so not when another one has them now.
        let taken = self.is_silent() && (cupti.has_thread_buffers() || cupti.is_held());
        if !taken {
            cupti.stop();
            self.last_buffers(&cupti);
        }
        self.report_losses();
        // What has not come by now does not come to this collector.
        let silent = self.is_silent();
        if silent {
            self.tell_silence();
        }
        self.out.catch_up();
        match self.said() {
            _ if !silent => None,
            _ if taken => Some(TAKEN_OVER),
            Verdict::Good => None,
            Verdict::Suspect => Some(SEEMS_TAKEN),
            Verdict::Gone => Some(TAKEN_OVER),
        }
    }

    /// Nothing is added to buffers any more; they come when their operations have ended.
    fn last_buffers(&mut self, cupti: &Cupti) {
        let deadline = sys::monotonic() + LAST_BUFFERS_MS * MS;
        loop {
            cupti.flush(false);
            self.drain();
            let late = sys::monotonic() >= deadline || exit::is_near();
            if late || !pool::is_out() {
                return;
            }
            pool::wait_for_bell(Duration::from_millis(10));
        }
    }

    /// Says the state in which collecting ends, and that another tool has CUPTI, if one has.
    fn end(&mut self, state: u32, busy: Option<&str>) {
        let now = self.now();
        match busy {
            Some(reason) => self.out.set_last_state(state, reason, now),
            None => self.out.set_state(state, "", now),
        }
    }

    /// Gets what CUPTI has, and makes sure whether that is all. `false`: it was shut down.
    fn settle(&mut self, forced: bool) -> bool {
        for _ in 0..2 {
            self.probe();
            let there = self.cupti.as_ref().is_none_or(|cupti| cupti.flush(forced));
            self.drain();
            if !there || !self.is_silent() {
                self.forgive();
                return there;
            }
        }
        true
    }

    /// Says that another tool only seemed to have taken CUPTI over, when records are back.
    fn forgive(&mut self) {
        let silent = self.is_silent();
        if let Phase::Active(active) = &mut self.phase {
            if !silent && active.said != Verdict::Good {
                active.said = Verdict::Good;
                active.holder = Holder::Sought(LOOKS_FOR_HOLDER);
                self.out.set_state(state::ACTIVE, "", self.now());
            }
        }
    }

    /// Makes a call whose record should come back with the next flush; not into another tool's
    /// buffers.
    fn probe(&mut self) {
        if let (Phase::Active(active), Some(driver), true) =
            (&mut self.phase, self.driver, self.devices_sent)
        {
            if active.said == Verdict::Good && driver.device_count().is_some() {
                active.watch.asked(sys::monotonic());
            }
        }
    }

    fn is_silent(&self) -> bool {
        matches!(&self.phase, Phase::Active(active) if active.watch.is_silent())
    }

    fn said(&self) -> Verdict {
        match &self.phase {
            Phase::Active(active) => active.said,
            Phase::Dormant | Phase::Paused { .. } | Phase::Refused { .. } => Verdict::Good,
        }
    }

    /// Says that what was recorded since all was good did not come to us, and will not; once.
    fn tell_silence(&mut self) {
        match &self.phase {
            Phase::Active(active) if active.said != Verdict::Gone => self.out.silent(Span {
                start: active.watch.good_until(),
                end: self.now(),
            }),
            _ => {}
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
        let pause = match active.said {
            Verdict::Good => FLUSH_MS,
            Verdict::Suspect | Verdict::Gone => SILENT_MS,
        };
        active.next_flush = now + pause * MS;
        self.send_devices();
        self.probe();
        let there = self.cupti.as_ref().is_none_or(|cupti| cupti.flush(false));
        self.drain();
        self.report_losses();
        self.out.catch_up();
        if there {
            self.judge(now);
        } else {
            self.tell_silence();
            self.phase = Phase::Refused { retry: None };
            self.out.set_state(state::BUSY, SHUT_DOWN, self.now());
        }
    }

    /// Notices that another tool took CUPTI over, that it only seemed so, and that it has let go.
    /// Nothing is turned off: it is the other tool's by now.
    fn judge(&mut self, now: u64) {
        let Phase::Active(active) = &mut self.phase else {
            return;
        };
        let verdict = active.watch.judge(now);
        if verdict == Verdict::Good {
            return self.forgive();
        }
        if active.said == Verdict::Good {
            self.say(verdict);
        }
        self.look_for_holder();
    }

    /// Says that another tool has taken CUPTI over, or seems to have.
    fn say(&mut self, verdict: Verdict) {
        let reason = match verdict {
            Verdict::Good => return,
            Verdict::Suspect => SEEMS_TAKEN,
            Verdict::Gone => TAKEN_OVER,
        };
        if verdict == Verdict::Gone {
            self.tell_silence();
        }
        if let Phase::Active(active) = &mut self.phase {
            active.said = verdict;
        }
        self.out.set_state(state::BUSY, reason, self.now());
    }

    fn look_for_holder(&mut self) {
        let (Phase::Active(active), Some(cupti)) = (&mut self.phase, &self.cupti) else {
            return;
        };
        active.holder = match active.holder {
            Holder::Sought(0) => return,
            _ if cupti.is_held() => Holder::Seen,
            Holder::Sought(left) => Holder::Sought(left - 1),
            // It has let CUPTI go.
            Holder::Seen => return self.begin(false),
        };
        if matches!(active.holder, Holder::Seen) && active.said == Verdict::Suspect {
            self.say(Verdict::Gone);
        }
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
            phase,
            calls_come_back,
            ..
        } = self;
        let mut answered = None;
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
                    Seen::Probe(time) => answered = answered.max(Some(time)),
                    Seen::Unknown => out.unknown_record(),
                    Seen::Sent | Seen::Unwanted => {}
                }
            }
        });
        let Phase::Active(Active { watch, .. }) = phase else {
            return;
        };
        if buffers > 0 {
            watch.heard();
        }
        if let Some(time) = answered {
            watch.answered(time);
            *calls_come_back = true;
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
        self.retry_unified_memory();
    }

    /// Inside of `cuInit` CUPTI may not have known the devices.
    fn retry_unified_memory(&self) {
        let refused = &self.out.control().refused_kinds;
        let bit = 1 << activity::UNIFIED_MEMORY_COUNTER;
        if let (Some(cupti), true) = (&self.cupti, refused.load(Ordering::Relaxed) & bit != 0) {
            if cupti.enable_unified_memory().is_ok() {
                refused.fetch_and(!bit, Ordering::Relaxed);
            }
        }
    }

    /// The process ends: everything out, also what is not complete.
    fn finish(&mut self) {
        let mut busy = None;
        if matches!(self.phase, Phase::Active(_)) {
            self.send_devices();
            let there = self.settle(true);
            self.report_losses();
            // Nothing can hold an answer back from a forced flush.
            if self.is_silent() || !there {
                self.tell_silence();
                busy = Some(if there { TAKEN_OVER } else { SHUT_DOWN });
            }
        }
        if busy.is_some() {
            self.end(state::FINISHED, busy);
        } else {
            // gdiag reads the reason only when it comes to the record of the state before this one.
            let reason = self.reason();
            self.out.set_state(state::FINISHED, &reason, self.now());
        }
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
