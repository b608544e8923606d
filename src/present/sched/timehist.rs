//! A line for each switch, as `perf sched timehist` has them, and what that lacks: why a thread waited and
//! who ended it, and why it leaves.

use std::io::{self, Write};

use super::waker_text;
use crate::analyse::sched::steps::{Left, Step};
use crate::analyse::sched::{OffReason, Waker, Who};
use crate::event::{Cpu, Tid};
use crate::present::sched::lost_events;
use crate::present::text;
use crate::units::Nanos;

/// Which lines are wanted.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub wakeups: bool,
    pub migrations: bool,
    /// Who runs next, in each line.
    pub next: bool,
    /// Only what waited for a CPU at least this long.
    pub threshold: Option<Nanos>,
    /// All when there are none.
    pub tids: Vec<Tid>,
    pub cpus: Option<Vec<Cpu>>,
    /// Not those that only ran beside the target.
    pub targets_only: bool,
}

/// Columns of a task; longer ones take more.
const TASK: usize = 26;

/// Who had the CPU before is told of waits from here on.
const LONG: Nanos = Nanos::from_micros(100);

impl Wanted {
    pub fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        let next = if self.next { "  next" } else { "" };
        writeln!(
            out,
            "{:>15}    cpu  {:<TASK$}  wait time  sch delay   run time  waited for -> left for{next}",
            "time", "task name"
        )?;
        writeln!(
            out,
            "{:>15}  {:>5}  {:<TASK$}  {:>9}  {:>9}  {:>9}",
            "", "", "[tid/pid]", "(msec)", "(msec)", "(msec)"
        )?;
        let dashes = |n| "-".repeat(n);
        let nine = dashes(9);
        writeln!(
            out,
            "{} {}  {}  {nine}  {nine}  {nine}  {}",
            dashes(15),
            dashes(6),
            dashes(TASK),
            dashes(22)
        )
    }

    fn wants(&self, who: &Who, cpu: Option<Cpu>, target: bool) -> bool {
        (self.tids.is_empty() || self.tids.contains(&who.tid))
            && (target || !self.targets_only)
            && match (&self.cpus, cpu) {
                (Some(cpus), Some(cpu)) => cpus.contains(&cpu),
                (Some(_), None) => false,
                (None, _) => true,
            }
    }

    pub fn write(&self, step: &Step, out: &mut dyn Write) -> io::Result<()> {
        match step {
            Step::Left(left) => {
                let waited = |least| left.delay.is_some_and(|delay| delay >= least);
                let long = self.threshold.is_none_or(waited);
                if long && self.wants(&left.who, Some(left.cpu), left.target) {
                    self.left(left, out)?;
                }
            }
            Step::Woken {
                ts,
                cpu,
                who,
                by,
                target,
            } => {
                if self.wakeups && self.wants(who, Some(*cpu), *target) {
                    let (waker, who) = (by_text(by), task(who));
                    line(out, *ts, Some(*cpu), &waker, &format!("awakened: {who}"))?;
                }
            }
            Step::Moved {
                ts,
                who,
                from,
                to,
                target,
            } => {
                if self.migrations && self.wants(who, Some(*to), *target) {
                    let text = format!("migrated: cpu {from} => {to}");
                    line(out, *ts, Some(*to), &task(who), &text)?;
                }
            }
            Step::Lost { to, count, .. } => {
                let text = format!("{}: what was until here is not known", lost_events(*count));
                line(out, *to, None, "", &text)?;
            }
            Step::Runs { .. } => {}
        }
        Ok(())
    }

    fn left(&self, left: &Left, out: &mut dyn Write) -> io::Result<()> {
        let mut text = waited(left);
        let leaves = leaves(left);
        if !leaves.is_empty() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&format!("-> {leaves}"));
        }
        if self.next {
            text.push_str(&format!("  next: {}", task(&left.next)));
        }
        let times = format!(
            "{:>9}  {:>9}  {:>9}  {text}",
            msec(left.off),
            msec(left.delay),
            msec(left.run)
        );
        line(out, left.ts, Some(left.cpu), &task(&left.who), &times)
    }
}

fn line(out: &mut dyn Write, ts: Nanos, cpu: Option<Cpu>, who: &str, text: &str) -> io::Result<()> {
    let cpu = cpu.map_or_else(|| " ".repeat(6), |cpu| format!("[{:04}]", cpu.0));
    let (who, text) = (text::clean(who), text::clean(text));
    // Padding is our own work: `format!` counts characters, not columns.
    let padding = " ".repeat(TASK.saturating_sub(text::width(&who)));
    let line = format!("{:>15} {cpu}  {who}{padding}  {text}", instant(ts));
    writeln!(out, "{}", line.trim_end_matches(' '))
}

/// `79371.874569`
pub(super) fn instant(ts: Nanos) -> String {
    let us = ts.0 / 1_000;
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn msec(time: Option<Nanos>) -> String {
    time.map_or_else(
        || "-".to_string(),
        |time| format!("{}.{:03}", time.0 / 1_000_000, time.0 / 1_000 % 1_000),
    )
}

/// `gcc[31949]`, or `gcc[31950/31949]` for another thread than the first.
fn task(who: &Who) -> String {
    if who.tid.0 == 0 {
        who.comm.clone()
    } else if who.tid.0 == who.pid.0 {
        format!("{}[{}]", who.comm, who.tid)
    } else {
        format!("{}[{}/{}]", who.comm, who.tid, who.pid)
    }
}

fn by_text(by: &Waker) -> String {
    match by {
        Waker::Thread(who) => task(who),
        Waker::Interrupt(..) => waker_text(by),
    }
}

/// Why it had not run before, and who ended that.
fn waited(left: &Left) -> String {
    let Some(reason) = left.waited else {
        return String::new();
    };
    let by = left.by.as_ref().map(by_text);
    let how = match reason {
        OffReason::Preempted => "by",
        OffReason::Yielded => "to",
        OffReason::New => "made by",
        _ => "woken by",
    };
    let mut text = match (&by, reason) {
        (Some(by), OffReason::Preempted | OffReason::Yielded) => {
            format!("{} {how} {by}", reason.name())
        }
        (_, OffReason::Throttled) | (None, _) => reason.name().to_string(),
        (Some(by), _) => format!("{}, {how} {by}", reason.name()),
    };
    let behind = left.behind.as_ref().filter(|_| left.delay >= Some(LONG));
    if let Some(behind) = behind.map(task).filter(|name| Some(name) != by.as_ref()) {
        text.push_str(&format!(", behind {behind}"));
    }
    text
}

fn leaves(left: &Left) -> String {
    match left.why {
        None if left.ended => "ends".to_string(),
        None => String::new(),
        Some(OffReason::Preempted) if left.next.tid.0 == 0 => "moved away".to_string(),
        Some(OffReason::Preempted) => format!("preempted by {}", task(&left.next)),
        Some(OffReason::Yielded) => format!("yielded to {}", task(&left.next)),
        Some(reason) => reason.name().to_string(),
    }
}
