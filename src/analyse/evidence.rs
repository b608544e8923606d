//! Sentences that let a person check a claim: who, how often, how long, when, beside whom.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::analyse::cause::Cause;
use crate::analyse::sampled;
use crate::analyse::sums::Share;
use crate::analyse::what::{describe, What};
use crate::event::{CallStackId, Frame, FrameId};
use crate::model::frame_text;
use crate::model::syscall::Table;
use crate::model::thread::{State, Who};
use crate::model::Timeline;
use crate::units::{Count, Nanos};

/// Shares that get a sentence.
pub(super) const SENTENCES: usize = 3;

/// A claim with its numbers apart, so that the same claim about another time can be added to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sentence {
    /// Who did what; empty when there is nothing to say but the numbers.
    pub(super) claim: String,
    pub(super) amount: Amount,
    /// What is known of the longest.
    pub(super) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) count: u64,
    pub(super) total: Nanos,
    pub(super) longest: Nanos,
    /// When the longest began.
    pub(super) at: Nanos,
}

/// How a moment is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// From the beginning of the recording on.
    Since(Nanos),
    /// Back from now.
    Ago(Nanos),
}

impl Sentence {
    pub(super) fn text(&self, when: When) -> String {
        let Sentence { claim, detail, .. } = self;
        let amount = self.amount.text(when);
        if claim.is_empty() {
            format!("{amount}{detail}")
        } else {
            format!("{claim}: {amount}{detail}")
        }
    }

    /// Takes in the same claim about another time.
    pub(super) fn join(&mut self, other: &Sentence) {
        let (sum, more) = (&mut self.amount, &other.amount);
        sum.count += more.count;
        sum.total += more.total;
        if more.longest > sum.longest {
            (sum.longest, sum.at) = (more.longest, more.at);
            self.detail.clone_from(&other.detail);
        }
    }
}

impl Amount {
    /// `12 times, 34.5 ms, longest 4.10 ms at +1.20 s`
    fn text(&self, when: When) -> String {
        let Amount {
            count,
            total,
            longest,
            at,
        } = *self;
        let at = match when {
            When::Since(start) => format!(" at +{}", at.saturating_sub(start)),
            When::Ago(now) => format!(", {} ago", now.saturating_sub(at)),
        };
        // What goes on since before it was looked at is one, too.
        if count <= 1 {
            return format!("once, {total}{at}");
        }
        let count = Count(count);
        format!("{count} times, {total} in all, longest {longest}{at}")
    }
}

pub(super) fn sentences(
    t: &Timeline,
    cause: Cause,
    shares: &[Share],
    most: usize,
) -> Vec<Sentence> {
    let said = shares.iter().take(most);
    said.map(|s| sentence(t, cause, s)).collect()
}

fn sentence(t: &Timeline, cause: Cause, s: &Share) -> Sentence {
    let amount = Amount {
        count: s.count,
        total: s.total,
        longest: s.longest.len(),
        at: s.longest.start,
    };
    let who = s.who.map(|w| describe(t, w));
    let what = s.text(t);
    let Some(who) = who else {
        return Sentence {
            claim: what,
            amount,
            detail: String::new(),
        };
    };
    let (claim, detail) = match s.what {
        What::Ran(_) | What::RanTid(_) => {
            let cpu = cpu_of(t, s).map_or_else(String::new, |c| format!(" on CPU {c}"));
            let mask = match cause {
                Cause::Affinity => mask(t, s),
                _ => String::new(),
            };
            let claim = format!("{who} was ready to run while {what} had its CPU{cpu}");
            (claim, mask)
        }
        What::In(_) => (format!("{who} was in {what}"), place(t, s)),
        What::Before(_) => (format!("{who} ran {what}"), place(t, s)),
        What::Irq(_) => {
            let cpu = cpu_of(t, s).map_or_else(String::new, |c| format!(" on CPU {c}"));
            let claim = format!("{who} was interrupted by {what}{cpu}");
            (claim, String::new())
        }
        What::Wait { .. } => {
            let state = state_text(t, s).map_or_else(String::new, |st| format!(" in state {st}"));
            let detail = frames(t, s) + &place(t, s);
            (format!("{who} waited in {what}{state}"), detail)
        }
        What::Lock { holder, .. } => {
            let meanwhile = holder.map_or_else(String::new, |h| meanwhile(t, s, h));
            let waited = match cause {
                Cause::Gil => "the interpreter lock, ",
                _ => "",
            };
            let detail = frames(t, s) + &place(t, s) + &meanwhile;
            (format!("{who} waited for {waited}{what}"), detail)
        }
        What::From { .. } => {
            let note = match cause {
                Cause::NoDemand => "",
                _ => ", whose own time is not recorded",
            };
            let detail = frames(t, s) + &place(t, s);
            (format!("{who} waited for {what}{note}"), detail)
        }
        What::Stopped { .. } => (format!("{who} was {what}"), String::new()),
        What::Overhead(_) => (format!("{who} was held up by {what}"), String::new()),
        What::Working => {
            let role = match cause {
                Cause::DataLoading => ", a loader,",
                _ => "",
            };
            (format!("{who}{role} was running"), place(t, s))
        }
        What::Say(_) => (format!("{who}: {what}"), place(t, s)),
        What::Nothing | What::AfterStream(_) | What::Missing(_) => {
            (format!("{who}: {what}"), String::new())
        }
    };
    // The cause is told on the time of somebody else than the dispatcher: this is the way there.
    let detail = match s.longest.waiter {
        Some(waiter) => format!("{detail}; {} waited for it", describe(t, waiter)),
        None => detail,
    };
    Sentence {
        claim,
        amount,
        detail,
    }
}

/// On how few CPUs the thread may run.
fn mask(t: &Timeline, s: &Share) -> String {
    let wait = s.longest.who.and_then(|who| {
        let thread = t.thread(who.thread);
        thread.cpu_wait_in(s.longest.start, s.longest.end)
    });
    wait.map_or_else(String::new, |w| {
        format!(
            "; it may use {} of {} CPUs, and {} of the others were idle",
            w.allowed, w.online, w.idle
        )
    })
}

/// CPU of the thread around the longest piece.
fn cpu_of(t: &Timeline, s: &Share) -> Option<u16> {
    let thread = t.thread(s.longest.who?.thread);
    let state = thread.states(s.longest.start, s.longest.end).next()?.state;
    match state {
        State::Running { cpu } | State::Runnable { cpu, .. } => cpu.map(|c| c.0),
        State::Unknown | State::Blocked(_) | State::Exited => None,
    }
}

/// The state as ps prints it.
fn state_text(t: &Timeline, s: &Share) -> Option<&'static str> {
    let thread = t.thread(s.longest.who?.thread);
    let State::Blocked(sleep) = thread.states(s.longest.start, s.longest.end).next()?.state else {
        return None;
    };
    let state = sleep.state?;
    let io = sleep.flags.has(crate::event::SwitchFlags::IOWAIT);
    Some(match (state & 0x2 != 0, io) {
        (true, true) => "D (uninterruptible, waiting for I/O)",
        (true, false) => "D (uninterruptible)",
        (false, _) => "S (sleeping)",
    })
}

/// The innermost frames of the longest wait.
fn frames(t: &Timeline, s: &Share) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<&str> = t
        .names()
        .stack(s.longest.stack)
        .filter(|f| !f.is_empty() && !crate::model::names::is_scheduler(f))
        .take(SHOWN)
        .collect();
    if shown.is_empty() {
        String::new()
    } else {
        format!("; kernel stack {}", shown.join(" < "))
    }
}

/// Where in its program the thread was: what most samples say, or without any the stack of the longest piece.
fn place(t: &Timeline, s: &Share) -> String {
    if let Some(most) = most_samples(t, s) {
        return most;
    }
    let piece = s.longest;
    let thread = piece.who.map(|w| t.thread(w.thread));
    let sample = thread.and_then(|thread| sampled::sample_in(thread, piece.start, piece.end));
    match sample.map(|sample| innermost(t, sample.user)) {
        Some(place) if !place.is_empty() && s.count > 1 => format!("; the longest in {place}"),
        Some(place) if !place.is_empty() => format!("; in {place}"),
        Some(_) | None => String::new(),
    }
}

/// The innermost telling frame says where, its caller for whom.
fn innermost(t: &Timeline, stack: CallStackId) -> String {
    const SHOWN: usize = 2;
    let mut frames = frame_text::telling(t.names(), stack);
    frames.truncate(SHOWN);
    frames.join(" < ")
}

/// The function with most of the timer's samples, with the line and the caller of most of those.
fn most_samples(t: &Timeline, s: &Share) -> Option<String> {
    let mut functions: BTreeMap<(&str, &str), BTreeMap<String, u64>> = BTreeMap::new();
    let mut all = 0;
    for (&stack, &count) in &s.samples {
        all += count;
        let frame = frame_text::telling_frames(t.names(), stack)
            .into_iter()
            .next();
        if let Some(function) = frame.and_then(|f| function_of(t, f)) {
            let places = functions.entry(function).or_default();
            *places.entry(innermost(t, stack)).or_default() += count;
        }
    }
    let total = |places: &BTreeMap<String, u64>| places.values().sum::<u64>();
    let (_, places) = functions.iter().max_by_key(|(_, places)| total(places))?;
    let (place, _) = places.iter().max_by_key(|(_, &count)| count)?;
    Some(if all == 1 {
        format!("; seen in {place}")
    } else {
        let count = Count(total(places));
        format!("; {count} of {} samples in {place}", Count(all))
    })
}

/// A function, whatever the line: its name, and its file.
fn function_of(t: &Timeline, frame: FrameId) -> Option<(&str, &str)> {
    match t.names().frame(frame)? {
        Frame::Python { function, file, .. } => Some((t.name(function), t.name(file))),
        Frame::Native { module, .. } => {
            let function = t.names().functions(frame).first()?;
            Some((t.name(function.name), t.name(module)))
        }
        Frame::Anonymous { .. } => None,
    }
}

/// What another thread did during the longest piece: the evidence against the holder of a lock.
fn meanwhile(t: &Timeline, s: &Share, holder: Who) -> String {
    let thread = t.thread(holder.thread);
    let (mut running, mut runnable, mut unknown) = (0, 0, 0);
    let mut waits: Vec<(u64, String)> = Vec::new();
    for h in thread.states(s.longest.start, s.longest.end) {
        let len = h.len().0;
        match h.state {
            State::Running { .. } => running += len,
            State::Runnable { .. } => runnable += len,
            State::Unknown | State::Exited => unknown += len,
            State::Blocked(sleep) => {
                let name = wait_name(t.syscalls(), sleep.syscall);
                match waits.iter_mut().find(|w| w.1 == name) {
                    Some(w) => w.0 += len,
                    None => waits.push((len, name)),
                }
            }
        }
    }
    waits.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let mut did: Vec<(u64, String)> = vec![
        (running, "running".to_string()),
        (runnable, "waiting for a CPU".to_string()),
        (unknown, "not recorded".to_string()),
    ];
    did.extend(
        waits
            .into_iter()
            .map(|(len, name)| (len, format!("asleep in {name}"))),
    );
    did.retain(|d| d.0 > 0);
    did.sort_by_key(|d| std::cmp::Reverse(d.0));
    if did.is_empty() {
        return String::new();
    }
    let list: Vec<String> = did
        .iter()
        .take(3)
        .map(|(len, text)| format!("{text} {}", Nanos(*len)))
        .collect();
    let place = holders_place(t, s, holder).map_or_else(String::new, |p| format!(", seen in {p}"));
    format!(
        "; in the longest, {} was {}{place}",
        t.comm(holder),
        list.join(", ")
    )
}

/// Where the holder was in the longest piece: running in the middle of it, or when it ended the wait.
fn holders_place(t: &Timeline, s: &Share, holder: Who) -> Option<String> {
    let thread = t.thread(holder.thread);
    let meanwhile = sampled::sample_in(thread, s.longest.start, s.longest.end);
    let released = || {
        let waiter = t.thread(s.longest.who?.thread);
        let wait = waiter.states(s.longest.start, s.longest.end).next()?.span.0;
        let (waker, sample) = t.waker_stack(waiter.tid, wait)?;
        (waker == holder.thread).then_some(sample)
    };
    let sample = meanwhile.or_else(released)?;
    frame_text::telling(t.names(), sample.user)
        .into_iter()
        .next()
}

fn wait_name(table: Table, syscall: Option<u16>) -> String {
    match syscall {
        Some(nr) => table
            .name(nr)
            .map_or_else(|| format!("system call {nr}"), str::to_string),
        None => "the kernel".to_string(),
    }
}
