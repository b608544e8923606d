//! What the flight recorder does with events: keeps them, watches for what is worth a snapshot, and writes those.
//!
//! A snapshot is written by another thread, of chunks that both have: the sources are read on all the time.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::resource::{getrusage, UsageWho};
use nix::sys::time::TimeValLike;

use super::control::{Answer, Armed, Ask, Caller, Server, Status, Written};
use crate::analyse::triggers::{Fired, Triggers};
use crate::cli::{KeepOptions, Trigger};
use crate::collect::stacks::Costs;
use crate::commands::record::set_aside;
use crate::commands::recorder::{gpu_source, Recorder, Sink, Turn};
use crate::commands::subject::End;
use crate::event::{Event, NameId};
use crate::fxhash::FxHashSet;
use crate::pipeline::Seen;
use crate::store::meta::{Meta, Summary};
use crate::store::{create_file, Held, Memory};
use crate::units::{Bytes, Count, Nanos};

/// Records of the device come so much later, at most, than what they tell of: the shim flushes every 250 ms, gdiag
/// reads every 100 ms, and CUPTI takes its time.
const SETTLE: Nanos = Nanos::from_secs(1);

/// How often it is noted how much there was so far.
const MOMENT: Nanos = Nanos::from_secs(1);

/// Over how many of these a rate is told.
const RATE: usize = 5;

/// Messages that are kept for `stat`.
const MESSAGES: usize = 10;

/// A snapshot may take so long to write when nothing else is to be done any more.
const WRITTEN: Duration = Duration::from_secs(60);

/// Requests that wait while a snapshot is written.
const MOST_ASKED: usize = 16;

/// What is known of the recording so far, beside its events.
#[derive(Clone, Debug, Default)]
pub(super) struct Context {
    pub(super) seen: Seen,
    pub(super) costs: Costs,
    pub(super) warnings: Vec<String>,
}

impl Context {
    pub(super) fn of(recorder: &Recorder<'_>) -> Context {
        Context {
            seen: recorder.session.seen,
            costs: recorder.session.stack_costs(),
            warnings: recorder.warnings(),
        }
    }
}

/// How much there was until then.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Nanos,
    switches: u64,
    costs: Costs,
}

/// A snapshot that is to be written.
#[derive(Debug)]
struct Asked {
    /// Until when.
    to: Nanos,
    /// What happened since then was there when it was asked for.
    needs: Nanos,
    /// Only so much of it.
    last: Option<Nanos>,
    goes: Goes,
}

#[derive(Debug)]
enum Goes {
    /// To the next file with a number, because of this.
    Numbered(String),
    Caller(Caller),
}

/// Where a snapshot is written to.
#[derive(Debug)]
enum Place {
    /// An old file is moved away.
    Path(PathBuf),
    Open(File),
}

/// A snapshot that another thread writes.
#[derive(Debug)]
struct Writing {
    result: Receiver<Result<Written, String>>,
    to: Goal,
}

#[derive(Debug)]
enum Goal {
    File { path: PathBuf, why: String },
    Caller(Caller),
}

/// An event after which recording goes on for a while.
#[derive(Debug)]
struct Due {
    at: Nanos,
    /// The beginning of the first event.
    start: Nanos,
    why: String,
    more: u64,
}

/// Keeps the newest events.
pub(in crate::commands) struct Keeper {
    options: KeepOptions,
    output: PathBuf,
    meta: Meta,
    memory: Memory,
    failure: Option<io::Error>,
    triggers: Triggers,
    /// How often each of the triggers fired.
    fired: Vec<(Trigger, u64)>,
    due: Option<Due>,
    asked: VecDeque<Asked>,
    writing: Option<Writing>,
    /// Of the last file.
    number: u32,
    /// Snapshots that nobody asked for.
    unasked: u32,
    /// That there will be no more of them.
    said_enough: bool,
    pub(super) written: u32,
    history: VecDeque<Moment>,
    server: Option<(Server, String)>,
    targets: String,
    /// Whoever asked for the end.
    pub(super) stopping: Option<Caller>,
    messages: VecDeque<String>,
    quiet: bool,
    /// Names that stayed in use when ids were forgotten last.
    pub(in crate::commands) names_in_use: FxHashSet<NameId>,
    /// Nobody controls it from outside: a snapshot is there because a person has just asked for it.
    is_alone: bool,
    /// How often all ids were forgotten.
    pub(in crate::commands) forgotten: u32,
    /// CPU time that was taken before there was anything to record.
    cpu_before: Nanos,
    /// All events until then were pushed.
    until: Nanos,
}

impl Keeper {
    /// That nobody controls from outside.
    pub(in crate::commands) fn alone(
        recorder: &Recorder<'_>,
        options: &KeepOptions,
    ) -> Result<Keeper> {
        let output = recorder.options.output.clone();
        let mut keeper = Keeper::new(recorder, options, output, None)?;
        keeper.is_alone = true;
        // Whoever presses a key does not mean to lose what was written yesterday.
        while keeper.number < u32::MAX && keeper.path_of(keeper.number + 1).exists() {
            keeper.number += 1;
        }
        Ok(keeper)
    }

    pub(super) fn new(
        recorder: &Recorder<'_>,
        options: &KeepOptions,
        output: PathBuf,
        server: Option<(Server, String)>,
    ) -> Result<Keeper> {
        let targets = recorder.subject.text();
        let quiet = recorder.options.quiet;
        Keeper::of(
            recorder.meta.clone(),
            targets,
            quiet,
            options,
            output,
            server,
        )
    }

    fn of(
        meta: Meta,
        targets: String,
        quiet: bool,
        options: &KeepOptions,
        output: PathBuf,
        server: Option<(Server, String)>,
    ) -> Result<Keeper> {
        let start = meta.start();
        Ok(Keeper {
            memory: Memory::new(options.memory, options.window, start)
                .context("cannot compress")?,
            triggers: Triggers::new(&options.triggers),
            fired: options
                .triggers
                .iter()
                .map(|&trigger| (trigger, 0))
                .collect(),
            options: options.clone(),
            output,
            meta,
            failure: None,
            due: None,
            asked: VecDeque::new(),
            writing: None,
            number: 0,
            unasked: 0,
            said_enough: false,
            written: 0,
            history: VecDeque::new(),
            server,
            targets,
            stopping: None,
            messages: VecDeque::new(),
            quiet,
            names_in_use: FxHashSet::default(),
            is_alone: false,
            forgotten: 0,
            cpu_before: cpu_time(),
            until: start,
        })
    }

    /// The last thing that there was to say.
    pub(in crate::commands) fn last_message(&self) -> Option<&str> {
        self.messages.back().map(String::as_str)
    }

    /// Everything that was asked for is written, with all that there is, when nothing comes any more after `now`. The
    /// result is what there was to say of it.
    pub(in crate::commands) fn finish(
        &mut self,
        recorder: &Recorder<'_>,
        now: Nanos,
        snapshot: bool,
    ) -> Result<Vec<String>> {
        let context = || Context::of(recorder);
        self.messages.clear();
        self.all_is_there(now);
        self.tend(now, snapshot, true, &context)?;
        self.conclude(&context)?;
        Ok(self.messages.iter().cloned().collect())
    }

    pub(in crate::commands) fn events(&self) -> u64 {
        self.memory.stats().events
    }

    fn say(&mut self, text: String) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "gdiag: {text}");
        }
        if self.messages.len() >= MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(text);
    }

    /// All events before `now` were pushed.
    fn stepped(&mut self, now: Nanos, costs: impl Fn() -> Costs) -> Result<()> {
        self.until = now;
        // First: what is to be written now must not go with what is too old.
        let fired = self.triggers.take(now);
        self.alarm(&fired, now);
        self.memory.need(self.needed());
        self.memory.age(now).context("cannot compress")?;
        if self
            .history
            .back()
            .is_none_or(|last| now >= last.at + MOMENT)
        {
            let oldest = self.memory.fill().from;
            while self.history.get(1).is_some_and(|next| next.at <= oldest)
                && self.history.len() > RATE + 1
            {
                self.history.pop_front();
            }
            self.history.push_back(Moment {
                at: now,
                switches: self.memory.stats().switches,
                costs: costs(),
            });
        }
        Ok(())
    }

    /// Since when everything is to stay, for snapshots that are still to be written.
    fn needed(&self) -> Option<Nanos> {
        let window = self.options.window;
        let due = self.due.iter();
        let due = due.map(|due| due.at.saturating_sub(window).min(due.start));
        let asked = self.asked.iter().map(|asked| asked.needs);
        due.chain(asked).min()
    }

    fn alarm(&mut self, fired: &[Fired], now: Nanos) {
        for one in fired {
            let kind = std::mem::discriminant(&one.trigger);
            for (trigger, count) in &mut self.fired {
                let took = one.end.unwrap_or(now).saturating_sub(one.start);
                if std::mem::discriminant(trigger) == kind && took > trigger.least() {
                    *count += 1;
                }
            }
            if let Some(due) = &mut self.due {
                due.more += 1;
                due.start = due.start.min(one.start);
                continue;
            }
            if self.unasked >= self.options.snapshots {
                continue;
            }
            self.unasked += 1;
            self.due = Some(Due {
                at: now + self.options.after,
                start: one.start,
                why: one.text(self.meta.start(), now),
                more: 0,
            });
        }
    }

    /// A snapshot of what is there by now.
    fn ask(&mut self, now: Nanos, last: Option<Nanos>, goes: Goes) {
        let long = last.unwrap_or(self.options.window);
        let needs = now.saturating_sub(long).max(self.memory.fill().from);
        self.ask_since(needs, now, last, goes);
    }

    fn ask_since(&mut self, needs: Nanos, now: Nanos, last: Option<Nanos>, goes: Goes) {
        if self.asked.len() < MOST_ASKED {
            self.asked.push_back(Asked {
                to: now,
                needs,
                last,
                goes,
            });
            return;
        }
        if let Goes::Caller(caller) = goes {
            let text = "too many snapshots are asked for at once".to_string();
            drop(caller.answer(&Answer::Failed { text }));
        }
    }

    /// The event of a snapshot is so long ago that it can be written.
    fn event_is_over(&mut self, now: Nanos) {
        let Some(due) = self.due.take_if(|due| now >= due.at) else {
            return;
        };
        let more = match due.more {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let goes = Goes::Numbered(format!("{}{more}", due.why));
        self.ask_since(
            due.start.max(self.meta.start()),
            now.min(due.at),
            None,
            goes,
        );
    }

    /// Answers, and moves on with what is asked for. `true`: the end is asked for.
    pub(super) fn tend(
        &mut self,
        now: Nanos,
        snapshot: bool,
        ended: bool,
        context: &dyn Fn() -> Context,
    ) -> Result<bool> {
        if let Some(e) = self.failure.take() {
            return Err(e).context("cannot compress");
        }
        if snapshot {
            self.ask(
                self.until.min(now),
                None,
                Goes::Numbered("USR2".to_string()),
            );
        }
        for _ in 0..MOST_ASKED {
            let next = self.server.as_ref().and_then(|(server, _)| server.next());
            let Some(caller) = next else { break };
            match caller.ask {
                Ask::Stat => {
                    let status = self.status(now, ended, context);
                    drop(caller.answer(&Answer::Stat(status)));
                }
                Ask::Snapshot { last_ns } => {
                    if caller.file.is_none() {
                        let text = "a snapshot needs an open file".to_string();
                        drop(caller.answer(&Answer::Failed { text }));
                        continue;
                    }
                    let to = if ended { self.until } else { now };
                    self.ask(to, last_ns.map(Nanos), Goes::Caller(caller));
                }
                Ask::Stop => {
                    self.stopping = Some(caller);
                    return Ok(true);
                }
            }
        }
        self.event_is_over(now);
        self.is_written(false);
        let is_settled = |asked: &Asked| ended || self.until >= asked.to + SETTLE;
        if self.writing.is_none() && self.asked.front().is_some_and(is_settled) {
            if let Some(asked) = self.asked.pop_front() {
                self.write(asked, context)?;
            }
        }
        Ok(false)
    }

    /// Writes whatever is still to be written, with all that there is, and waits for it.
    pub(super) fn conclude(&mut self, context: &dyn Fn() -> Context) -> Result<()> {
        if let Some(due) = &mut self.due {
            due.at = due.at.min(self.until);
        }
        self.event_is_over(self.until);
        self.is_written(true);
        while let Some(mut asked) = self.asked.pop_front() {
            asked.to = asked.to.min(self.until);
            self.write(asked, context)?;
            self.is_written(true);
        }
        Ok(())
    }

    /// A last file with a number.
    pub(super) fn last_snapshot(&mut self, why: &str, context: &dyn Fn() -> Context) -> Result<()> {
        self.ask(self.until, None, Goes::Numbered(why.to_string()));
        self.conclude(context)
    }

    /// Nothing comes any more: that was all, until `now`.
    pub(super) fn all_is_there(&mut self, now: Nanos) {
        self.until = now;
    }

    /// Of what is held now, all or the `last`.
    fn write(&mut self, asked: Asked, context: &dyn Fn() -> Context) -> Result<()> {
        let held = self.memory.held_now().context("cannot compress")?;
        let to = asked.to;
        let from = asked
            .last
            .map_or(Nanos::ZERO, |last| to.saturating_sub(last));
        if held.from() > to {
            let text = "what was asked for had to go before it could be written: --memory is full";
            self.refuse(asked.goes, text.to_string());
            return Ok(());
        }
        let from = from.max(held.from());
        let mut summary = self.summary(from, to, context());
        summary.warnings.extend(too_late(asked.needs, from));
        summary.warnings.extend(no_room(held.given_up()));
        let meta = self.meta.clone();
        let (sender, result) = channel();
        let (goal, place) = match asked.goes {
            Goes::Numbered(why) => {
                let path = self.next_path();
                let goal = Goal::File {
                    path: path.clone(),
                    why,
                };
                (goal, Some(Place::Path(path)))
            }
            Goes::Caller(mut caller) => {
                let file = caller.file.take();
                (Goal::Caller(caller), file.map(Place::Open))
            }
        };
        let Some(place) = place else {
            self.tell(goal, Err("there is no file to write to".to_string()));
            return Ok(());
        };
        let work = move || {
            // Without anyone to hear of it, there is nothing to do.
            let _ = sender.send(write_to(place, held, &meta, &summary, from));
        };
        let thread = std::thread::Builder::new().name("gdiag-snapshot".to_string());
        match thread.spawn(work) {
            Ok(_) => self.writing = Some(Writing { result, to: goal }),
            Err(e) => self.tell(goal, Err(format!("cannot start a thread: {e}"))),
        }
        Ok(())
    }

    /// There is nothing to write.
    fn refuse(&mut self, goes: Goes, text: String) {
        match goes {
            Goes::Numbered(why) => {
                let why = self.cause(&why);
                self.say(format!("{why}no snapshot: {text}"));
            }
            Goes::Caller(caller) => drop(caller.answer(&Answer::Failed { text })),
        }
    }

    /// Why there should have been one, unless somebody has asked for it a moment ago.
    fn cause(&self, why: &str) -> String {
        if self.is_alone {
            String::new()
        } else {
            format!("{why}: ")
        }
    }

    fn next_path(&mut self) -> PathBuf {
        self.number += 1;
        self.path_of(self.number)
    }

    fn path_of(&self, number: u32) -> PathBuf {
        let mut path = self.output.as_os_str().to_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    /// Tells of a snapshot that is written; with `wait`, waits for that.
    fn is_written(&mut self, wait: bool) {
        let Some(writing) = &self.writing else { return };
        let gone = || Err("the thread that wrote it has failed".to_string());
        let result = if wait {
            match writing.result.recv_timeout(WRITTEN) {
                Ok(result) => result,
                Err(RecvTimeoutError::Timeout) => Err("it takes too long to write".to_string()),
                Err(RecvTimeoutError::Disconnected) => gone(),
            }
        } else {
            match writing.result.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => gone(),
            }
        };
        if let Some(writing) = self.writing.take() {
            self.tell(writing.to, result);
        }
    }

    /// What has come of a snapshot.
    fn tell(&mut self, goal: Goal, result: Result<Written, String>) {
        if result.is_ok() {
            self.written += 1;
        }
        match (goal, result) {
            (Goal::File { path, why }, Ok(written)) => {
                let took = Nanos(written.to_ns.saturating_sub(written.from_ns));
                let size = Bytes(written.bytes);
                let path = path.display();
                self.say(if self.is_alone {
                    format!("wrote {path}: the last {took}, {size}")
                } else {
                    format!("{why}: {took} in {path} ({size})")
                });
                let is_last = !self.options.triggers.is_empty()
                    && self.unasked >= self.options.snapshots
                    && self.due.is_none();
                if is_last && !std::mem::replace(&mut self.said_enough, true) {
                    let most = Count(self.options.snapshots.into());
                    self.say(format!(
                        "that was {most} of {most} snapshots: from now on only those that are asked for (--snapshots)"
                    ));
                }
            }
            (Goal::File { path, why }, Err(text)) => {
                let why = self.cause(&why);
                self.say(format!("{why}no snapshot in {}: {text}", path.display()));
            }
            (Goal::Caller(caller), Ok(written)) => {
                drop(caller.answer(&Answer::Snapshot(written)));
            }
            (Goal::Caller(caller), Err(text)) => drop(caller.answer(&Answer::Failed { text })),
        }
    }

    fn summary(&self, from: Nanos, to: Nanos, context: Context) -> Summary {
        // Of the last moment before, as what was taken in the window is a part of what was taken since.
        let before = self.history.iter().take_while(|moment| moment.at <= from);
        let before = before.last().map(|moment| moment.costs).unwrap_or_default();
        let costs = context.costs;
        Summary {
            end_mono_ns: to.0,
            gpu_source: gpu_source(context.seen),
            stacks: costs.samples.saturating_sub(before.samples),
            stacks_ns: costs.time.saturating_sub(before.time).0,
            stacks_lost: costs.lost.saturating_sub(before.lost),
            warnings: context.warnings,
            ..Summary::default()
        }
    }

    pub(super) fn status(&self, now: Nanos, ended: bool, context: &dyn Fn() -> Context) -> Status {
        let fill = self.memory.fill();
        let stats = self.memory.stats();
        let past = self.history.iter().rev().nth(RATE).or(self.history.front());
        #[allow(clippy::cast_precision_loss)]
        let rate = past.and_then(|past| {
            let took = self.until.saturating_sub(past.at).0;
            let switches = stats.switches.saturating_sub(past.switches);
            (took >= MOMENT.0 && !ended).then(|| switches as f64 / took as f64 * 1e9)
        });
        Status {
            name: self
                .server
                .as_ref()
                .map(|(_, name)| name.clone())
                .unwrap_or_default(),
            pid: std::process::id(),
            gdiag_version: env!("CARGO_PKG_VERSION").to_string(),
            targets: self.targets.clone(),
            ended,
            start_ns: self.meta.start_mono_ns,
            start_unix_ns: self.meta.start_unix_ns,
            now_ns: now.0,
            from_ns: fill.from.min(self.until).0,
            to_ns: self.until.0,
            events: fill.events,
            bytes: fill.bytes.0,
            memory_bytes: self.options.memory.0,
            window_ns: self.options.window.0,
            switches_per_s: rate,
            recorded_events: stats.events,
            lost: context().seen.lost,
            snapshots: self.written,
            cpu_ns: cpu_time().saturating_sub(self.cpu_before).0,
            triggers: self
                .fired
                .iter()
                .map(|(trigger, fired)| Armed {
                    on: trigger.to_string(),
                    fired: *fired,
                })
                .collect(),
            messages: self.messages.iter().cloned().collect(),
        }
    }

    /// Answers whoever asked for the end, and writes to the file that came with it. The stream is to be kept
    /// until the process ends: that is how the other side sees it.
    pub(super) fn tell_stopped(
        &mut self,
        now: Nanos,
        ended: bool,
        context: &dyn Fn() -> Context,
    ) -> Option<std::os::unix::net::UnixStream> {
        let mut caller = self.stopping.take()?;
        let held = self.status(now, ended, context);
        let file = caller.file.take();
        let written = file.map(|file| {
            let all = self.memory.held_now().map_err(|e| e.to_string())?;
            let from = all.from().min(self.until);
            let mut summary = self.summary(from, self.until, context());
            summary.warnings.extend(no_room(all.given_up()));
            write_to(Place::Open(file), all, &self.meta, &summary, from)
        });
        let answer = match written.transpose() {
            Ok(written) => Answer::Stop { held, written },
            Err(text) => Answer::Failed { text },
        };
        Some(caller.answer(&answer))
    }
}

impl Sink for Keeper {
    fn push(&mut self, event: &Event) {
        if self.failure.is_none() {
            self.failure = self.memory.push(event).err();
        }
        if !self.fired.is_empty() {
            self.triggers.event(event);
        }
    }

    fn turn(&mut self, recorder: &mut Recorder<'_>, turn: Turn) -> Result<Option<End>> {
        if turn.stepped {
            self.stepped(turn.now, || recorder.session.stack_costs())?;
            if self.memory.is_littered() {
                let names = recorder.session.forget_ids();
                self.names_in_use.clone_from(&names);
                self.memory.tidy(names).context("cannot compress")?;
                self.forgotten += 1;
            }
        }
        let context = || Context::of(recorder);
        let stop = self.tend(turn.now, turn.woken.snapshot, false, &context)?;
        Ok(stop.then_some(End::Asked))
    }
}

/// Some of what was to be in a snapshot is not, which begins at `from`.
fn too_late(needs: Nanos, from: Nanos) -> Option<String> {
    let missing = from.saturating_sub(needs);
    (missing > Nanos::ZERO).then(|| {
        format!(
            "{missing} before the beginning had to go before this could be written: give more --memory or a longer --window"
        )
    })
}

/// What lasts into a snapshot is not all there.
fn no_room(given_up: u64) -> Option<String> {
    (given_up > 0).then(|| {
        format!(
            "{} launches, waits and the like from before the beginning are missing: give more --memory",
            Count(given_up)
        )
    })
}

/// What this process has taken so far.
fn cpu_time() -> Nanos {
    getrusage(UsageWho::RUSAGE_SELF).map_or(Nanos::ZERO, |usage| {
        let time = usage.user_time() + usage.system_time();
        Nanos::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    })
}

fn write_to(
    place: Place,
    held: Held,
    meta: &Meta,
    summary: &Summary,
    from: Nanos,
) -> Result<Written, String> {
    let (file, path) = match place {
        Place::Path(path) => {
            set_aside(&path).map_err(|e| format!("{e:#}"))?;
            let file = create_file(&path).map_err(|e| format!("{:#}", anyhow::Error::from(e)))?;
            (file, path)
        }
        // Whoever opened it says its name.
        Place::Open(file) => (file, PathBuf::from("snapshot")),
    };
    let stats = held
        .write(file, Path::new(&path), meta, summary, from)
        .map_err(|e| format!("{:#}", anyhow::Error::from(e)))?;
    Ok(Written {
        from_ns: from.0,
        to_ns: summary.end_mono_ns,
        events: stats.events,
        bytes: stats.written.0,
    })
}

#[cfg(test)]
mod tests;
