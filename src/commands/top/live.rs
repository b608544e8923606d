//! Watching: the recorder's events go to memory, for snapshots, and to the analyst.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::Arc;

use anyhow::Result;
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike as _;

use super::analyst::Batch;
use super::left_out::LeftOut;
use super::lookout::Lookout;
use super::shared::{Shared, HISTORY};
use super::targets::{Targets, MOST_TARGETS};
use crate::analyse::live::SLICE;
use crate::cli::{KeepOptions, RecordOptions, Target, TopOptions};
use crate::collect::clock;
use crate::collect::nvml::{self, Nvml};
use crate::commands::flight::keep::Keeper;
use crate::commands::recorder::{Recorder, Sink, Turn};
use crate::commands::subject::End;
use crate::event::{Event, Pid};
use crate::present::top::model::Source;
use crate::present::top::Ask;
use crate::units::{Bytes, Count, Nanos};

/// For snapshots. What is older is not held.
const MEMORY: Bytes = Bytes(32 << 20);

/// How often it is told how it goes.
const TOLD: Nanos = Nanos::from_secs(1);

/// Emptied batches that are kept for their room.
pub(super) const MOST_SPARE: usize = 8;

/// How often it is looked whether anybody looks.
const LOOK: Nanos = Nanos::from_millis(100);

/// Waits at least this long keep their kernel stack.
const WAIT_THRESHOLD: Nanos = Nanos::from_micros(100);

/// As `record` has it.
pub(super) fn record_options(
    options: &TopOptions,
    target: &Target,
    command: &[std::ffi::OsString],
    quiet: bool,
) -> RecordOptions {
    RecordOptions {
        target: target.clone(),
        command: command.to_vec(),
        output: options.output.clone(),
        duration: options.duration,
        wait_threshold: WAIT_THRESHOLD,
        stacks: options.stacks,
        unified_memory: false,
        inject: options.inject,
        syscalls: false,
        keep: None,
        strict: options.strict,
        quiet,
        // It would go over the screen.
        verbose: if quiet && io::stderr().is_terminal() {
            0
        } else {
            options.verbose
        },
    }
}

/// Where events go.
pub(super) struct Collector {
    keeper: Keeper,
    to: Sender<Batch>,
    batch: Vec<Event>,
    /// Room for the next batch.
    emptied: Receiver<Vec<Event>>,
    shared: Arc<Shared>,
    /// Events that nobody had time for.
    left_out: LeftOut,
    left_out_count: u64,
    cpus: u16,
    told: Option<Told>,
    forgotten: u32,
    /// Where nobody was named.
    lookout: Option<Lookout>,
    counts_calls: bool,
    next_calls: Nanos,
    nvml: Nvml,
    /// Why calls are not counted though somebody asked for it.
    no_calls: Option<String>,
    has_screen: bool,
    is_quiet: bool,
    /// All events before were pushed.
    until: Nanos,
    targets: Targets,
}

/// What was so when it was last told how it goes.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: Nanos,
    events: u64,
    cpu: Nanos,
}

impl Collector {
    pub(super) fn new(
        recorder: &Recorder<'_>,
        to: Sender<Batch>,
        emptied: Receiver<Vec<Event>>,
        shared: &Arc<Shared>,
        options: &TopOptions,
        has_screen: bool,
    ) -> Result<Collector> {
        let keep = KeepOptions {
            window: HISTORY,
            memory: MEMORY,
            after: Nanos::ZERO,
            snapshots: 0,
            triggers: Vec::new(),
        };
        Ok(Collector {
            keeper: Keeper::alone(recorder, &keep)?,
            to,
            batch: Vec::new(),
            emptied,
            shared: Arc::clone(shared),
            left_out: LeftOut::new(),
            left_out_count: 0,
            cpus: u16::try_from(recorder.meta.cpus_online).unwrap_or(u16::MAX),
            told: None,
            forgotten: 0,
            lookout: match recorder.options.target {
                Target::Cuda => Some(Lookout::start(recorder.options.verbose > 1)?),
                Target::Command | Target::Pids(_) | Target::Cgroups { .. } | Target::All => None,
            },
            counts_calls: false,
            next_calls: Nanos::ZERO,
            nvml: Nvml::start(options.nvml.then_some(nvml::PERIOD)),
            no_calls: None,
            has_screen,
            is_quiet: options.quiet,
            until: recorder.meta.start(),
            targets: Targets::new(recorder.options.target == Target::All),
        })
    }

    /// When nothing comes any more: what is left is analysed.
    pub(super) fn end(&mut self, recorder: &mut Recorder<'_>) {
        let now = self.until;
        self.tell_left_out(recorder, now);
        self.hand_over_events();
        if let Some(slice) = self.lookout.as_mut().and_then(Lookout::end) {
            let _ = self.to.send(Batch::Slice(Box::new(slice)));
        }
        let _ = self.to.send(Batch::End(now));
    }

    /// The targets have ended, and somebody looks at what there was: until that one leaves, or is told to.
    pub(super) fn linger(&mut self, recorder: &mut Recorder<'_>) -> Result<()> {
        self.shared.update(|state| {
            let text = "what was looked at has ended: q quits, w writes the end of it";
            state.status.message = Some(text.to_string());
        });
        while !self.shared.is_left() {
            let woken = recorder.subject.wait(None, clock::monotonic() + LOOK)?;
            if woken.end == Some(End::Asked) {
                break;
            }
            if self.asked(recorder) {
                let said = self.keeper.finish(recorder, self.until, true)?;
                self.shared
                    .update(|state| state.status.message = said.last().cloned());
            }
        }
        Ok(())
    }

    /// A snapshot that was asked for is written. The result is what there is to say of that, where a screen was in
    /// the way.
    pub(super) fn conclude(&mut self, recorder: &mut Recorder<'_>) -> Result<Vec<String>> {
        let snapshot = self.asked(recorder);
        let said = self.keeper.finish(recorder, self.until, snapshot)?;
        Ok(if self.has_screen && !self.is_quiet {
            said
        } else {
            Vec::new()
        })
    }

    /// Looks for targets where they are found, and at the machine where there are none.
    fn look_out(&mut self, recorder: &mut Recorder<'_>, now: Nanos) {
        let Some(lookout) = &mut self.lookout else {
            return;
        };
        if let Some(slice) = lookout.turn(&mut recorder.session, now) {
            let _ = self.to.send(Batch::Slice(Box::new(slice)));
        }
    }

    /// `last`: there is no other time.
    fn count(&mut self, recorder: &mut Recorder<'_>, now: Nanos, last: bool) {
        if !self.counts_calls || (now < self.next_calls && !last) {
            return;
        }
        self.next_calls = now + SLICE;
        if let Some(sums) = recorder.session.call_sums() {
            let _ = self.to.send(Batch::Calls(sums));
        }
    }

    /// What asking NVML has cost, or why there was nothing to ask.
    pub(super) fn nvml_text(&self) -> String {
        match self.nvml.why_none(clock::monotonic()) {
            Some(why) => format!("no NVML: {why}"),
            None => format!("NVML: {}", self.nvml.cost()),
        }
    }

    /// What was left out until `now` is a loss.
    fn tell_left_out(&mut self, recorder: &mut Recorder<'_>, now: Nanos) {
        for loss in self.left_out.told(now, self.cpus) {
            self.left_out_count += loss.count;
            recorder.session.seen.lost += loss.count;
            self.batch.push(Event::Loss(loss));
        }
    }

    /// Without an analyst there is nothing to hand over to, and the end is near.
    fn hand_over(&mut self, until: Nanos) {
        self.hand_over_events();
        // Of the machine slices come as they are.
        let of_machine = (self.lookout.as_ref()).is_some_and(Lookout::watches_machine);
        if !of_machine {
            let _ = self.to.send(Batch::Until(until));
        }
    }

    fn hand_over_events(&mut self) {
        if !self.batch.is_empty() {
            let empty = self.emptied.try_recv().unwrap_or_default();
            let events = std::mem::replace(&mut self.batch, empty);
            self.shared.queued.fetch_add(events.len(), Ordering::AcqRel);
            let _ = self.to.send(Batch::Events(events));
        }
    }

    fn tell(&mut self, recorder: &mut Recorder<'_>, now: Nanos) {
        if self.told.is_some_and(|told| now < told.at + TOLD) {
            return;
        }
        let cpu = cpu_time();
        let events = self.keeper.events();
        let before = self.told.replace(Told {
            at: now,
            events,
            cpu,
        });
        let took = before.map_or(Nanos::ZERO, |before| now.saturating_sub(before.at));
        let per_second = |count: u64| {
            #[allow(clippy::cast_precision_loss)]
            let rate = count as f64 * 1e9 / took.0.max(1) as f64;
            if took == Nanos::ZERO {
                0.0
            } else {
                rate
            }
        };
        let event_rate = per_second(before.map_or(0, |b| events.saturating_sub(b.events)));
        let own_cpu = per_second(before.map_or(0, |b| cpu.saturating_sub(b.cpu).0)) / 1e9;
        let is_machine = (self.lookout.as_ref()).is_some_and(Lookout::watches_machine);
        // Nothing of a GPU is missing where there is none.
        let mut warnings = Vec::new();
        if !is_machine {
            warnings = recorder.warnings();
            warnings.extend(recorder.probed_text(&warnings));
        }
        warnings.extend(self.no_calls.clone());
        warnings.extend(self.lookout.iter().flat_map(Lookout::failures).cloned());
        if self.left_out_count > 0 {
            let text = format!(
                "{} events were left out: gdiag could not keep up",
                Count(self.left_out_count)
            );
            warnings.insert(0, text);
        }
        let state = self.shared.look();
        if let Some(held) = state.shortened() {
            warnings.push(format!(
                "so much is in each second that only the last {held} are held"
            ));
        }
        let counts_calls = self.counts_calls;
        if let Some(lookout) = &self.lookout {
            self.targets.add_cuda(&lookout.pids(), now);
        }
        let notes = Collector::notes(recorder);
        let newest = state.slices.back().map(Arc::as_ref);
        let targets = self.targets.told(now, newest, &notes);
        if self.targets.is_full() {
            warnings.push(format!(
                "more than {MOST_TARGETS} processes are looked at: not all of them are listed"
            ));
        }
        if (self.lookout.as_ref()).is_some_and(Lookout::is_full) {
            let text = "more threads than are looked at have names like those of CUDA: not every process that uses CUDA may be found";
            warnings.push(text.to_string());
        }
        let lost = recorder.session.seen.lost;
        let simulated = recorder.session.seen.simulated;
        let message = self.keeper.last_message().map(str::to_string);
        let own_memory = own_memory();
        let facts = self.nvml.facts();
        self.shared.update(|state| {
            state.targets = targets;
            state.facts = facts;
            state.simulated = simulated;
            state.source = if is_machine {
                Source::Machine
            } else {
                Source::Targets
            };
            let status = &mut state.status;
            status.event_rate = event_rate;
            status.own_cpu = own_cpu;
            status.own_memory = own_memory;
            status.lost = lost;
            status.warnings = warnings;
            status.message = message;
            status.counts_calls = counts_calls;
        });
    }

    /// What there is to say of some processes.
    fn notes(recorder: &Recorder<'_>) -> Vec<(Pid, String)> {
        let session = &recorder.session;
        let hindered = session.hindered();
        let hindered = hindered.map(|(pid, why)| (pid, format!("no GPU records: {why}")));
        let probed = session.probed().map(|(pid, _, why)| {
            let mut text = "host side only, by probes on the driver".to_string();
            if !why.is_empty() {
                text.push_str(": ");
                text.push_str(why);
            }
            (pid, text)
        });
        hindered.chain(probed).collect()
    }

    /// Whether a snapshot is asked for.
    fn asked(&mut self, recorder: &mut Recorder<'_>) -> bool {
        let mut snapshot = false;
        for ask in self.shared.asked() {
            match ask {
                Ask::Snapshot => snapshot = true,
                Ask::CountCalls(on) => {
                    let mut done = recorder.session.count_calls(on);
                    if let Some(lookout) = &mut self.lookout {
                        done = done.and(lookout.count_calls(on));
                    }
                    self.counts_calls = on && done.is_ok();
                    self.no_calls = done
                        .err()
                        .map(|e| format!("cannot count system calls: {e:#}"));
                }
                // Of recordings, and of the screen.
                Ask::Quit | Ask::Faster | Ask::Slower | Ask::Redraw | Ask::Suspend => {}
            }
        }
        snapshot
    }
}

impl Sink for Collector {
    fn push(&mut self, event: &Event) {
        self.keeper.push(event);
        self.targets.push(event);
        let waiting = self.shared.queued.load(Ordering::Acquire) + self.batch.len();
        if !self.left_out.takes(event, waiting) {
            self.batch.push(event.clone());
        }
    }

    fn turn(&mut self, recorder: &mut Recorder<'_>, mut turn: Turn) -> Result<Option<End>> {
        turn.woken.snapshot |= self.asked(recorder);
        let is_left = self.shared.is_left();
        let ends = is_left || turn.woken.end.is_some();
        let stays = turn.woken.end.is_some_and(|end| stays(recorder, end));
        if ends && self.has_screen && !stays {
            // It is closed while the rest is read.
            self.shared.update(|state| state.over = true);
        }
        if turn.stepped || ends {
            self.count(recorder, turn.now, ends);
        }
        if turn.stepped {
            self.until = turn.now;
            self.tell_left_out(recorder, turn.now);
            self.hand_over(turn.now);
            self.look_out(recorder, turn.now);
        } else if ends {
            // What comes yet happened before now.
            self.until = turn.now;
        }
        let end = self.keeper.turn(recorder, turn)?;
        if self.keeper.forgotten != self.forgotten {
            self.forgotten = self.keeper.forgotten;
            let names = self.keeper.names_in_use.clone();
            let _ = self.to.send(Batch::Forget(names));
        }
        self.tell(recorder, turn.now);
        Ok(end.or(is_left.then_some(End::Asked)))
    }
}

/// Of what has ended by itself the last minutes matter most: the screen stays.
pub(super) fn stays(recorder: &Recorder<'_>, end: End) -> bool {
    match end {
        End::TargetsEnded => true,
        End::CommandEnded => recorder.subject.is_command(),
        End::Asked | End::Duration => false,
    }
}

/// What this process has taken so far.
pub(super) fn cpu_time() -> Nanos {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Nanos::ZERO, |usage| {
        let time = usage.user_time() + usage.system_time();
        Nanos::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    })
}

pub(super) fn own_memory() -> Bytes {
    let statm = procfs::process::Process::myself().and_then(|own| own.statm());
    Bytes(statm.map_or(0, |statm| statm.resident * procfs::page_size()))
}
