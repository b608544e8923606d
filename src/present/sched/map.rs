//! Who has which CPU, a line for each change: the idea of `perf sched map`, for machines of today.
//!
//! A task is a letter and a digit, told as it appears. A CPU has a column from its first switch on; when there
//! are more CPUs than columns, the one that did nothing for longest gives its column away.

use std::io::{self, Write};

use super::timehist::instant;
use crate::analyse::sched::steps::Step;
use crate::analyse::sched::Who;
use crate::event::{Cpu, Tid};
use crate::model::fxhash::FxHashMap;
use crate::present::sched::lost_events;
use crate::present::text;
use crate::units::Nanos;

/// `A0` to `Z9`.
const LABELS: usize = 260;
/// A mark, a label and a blank.
const COLUMN: usize = 4;
/// The time, and who is told of.
const BESIDE: usize = 42;

#[derive(Debug)]
pub struct Map {
    width: usize,
    /// Only these get a column.
    cpus: Option<Vec<Cpu>>,
    columns: Vec<Column>,
    labels: Vec<Option<Tid>>,
    of: FxHashMap<Tid, usize>,
    /// The label that is given next.
    next: usize,
}

#[derive(Debug)]
struct Column {
    cpu: Cpu,
    tid: Option<Tid>,
    changed: Nanos,
}

impl Map {
    pub fn new(width: usize, cpus: Option<Vec<Cpu>>) -> Self {
        Map {
            width,
            cpus,
            columns: Vec::new(),
            labels: vec![None; LABELS],
            of: FxHashMap::default(),
            next: 0,
        }
    }

    pub fn write(&mut self, step: &Step, out: &mut dyn Write) -> io::Result<()> {
        match step {
            Step::Runs { ts, cpu, who } => self.runs(*ts, *cpu, who, out),
            Step::Lost { to, count, .. } => {
                for column in &mut self.columns {
                    column.tid = None;
                }
                let lost = lost_events(*count);
                writeln!(
                    out,
                    "{:>15}  {lost}: who ran until here is not known",
                    instant(*to)
                )
            }
            Step::Left(_) | Step::Woken { .. } | Step::Moved { .. } => Ok(()),
        }
    }

    fn runs(&mut self, ts: Nanos, cpu: Cpu, who: &Who, out: &mut dyn Write) -> io::Result<()> {
        if self.cpus.as_ref().is_some_and(|cpus| !cpus.contains(&cpu)) {
            return Ok(());
        }
        let (at, changed) = self.column(cpu);
        if changed {
            self.head(out)?;
        }
        let told = self.label(who);
        let column = &mut self.columns[at];
        column.tid = Some(who.tid);
        column.changed = ts;
        let mut line = format!("{:>15} ", instant(ts));
        for (i, column) in self.columns.iter().enumerate() {
            let mark = if i == at { '*' } else { ' ' };
            line.push_str(&format!("{mark}{:<3}", self.shown(column.tid)));
        }
        if told {
            let name = text::clean(&who.comm).into_owned();
            line.push_str(&format!(
                " {} => {name}:{}",
                self.shown(Some(who.tid)),
                who.tid
            ));
        }
        writeln!(out, "{}", line.trim_end_matches(' '))
    }

    /// Where the CPU is, and whether the columns are others now.
    fn column(&mut self, cpu: Cpu) -> (usize, bool) {
        if let Some(at) = self.columns.iter().position(|column| column.cpu == cpu) {
            return (at, false);
        }
        let fresh = Column {
            cpu,
            tid: None,
            changed: Nanos::ZERO,
        };
        let room = self.width.saturating_sub(BESIDE) / COLUMN;
        if self.columns.len() < room.max(1) {
            let at = self.columns.partition_point(|column| column.cpu < cpu);
            self.columns.insert(at, fresh);
            return (at, true);
        }
        let quiet = (0..self.columns.len()).min_by_key(|&i| self.columns[i].changed);
        let at = quiet.unwrap_or(0);
        self.columns[at] = fresh;
        (at, true)
    }

    fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut line = format!("{:>15} ", "CPU");
        for column in &self.columns {
            line.push_str(&format!(" {:<3}", column.cpu));
        }
        writeln!(out, "{}", line.trim_end_matches(' '))
    }

    /// Gives the task a label if it has none; whether it is to be told.
    fn label(&mut self, who: &Who) -> bool {
        if who.tid.0 == 0 || self.of.contains_key(&who.tid) {
            return false;
        }
        // Those that run now keep theirs; there are fewer columns than labels.
        for _ in 0..LABELS {
            let at = self.next;
            self.next = (at + 1) % LABELS;
            let owner = self.labels[at];
            let runs = |tid| self.columns.iter().any(|column| column.tid == Some(tid));
            if owner.is_some_and(runs) {
                continue;
            }
            if let Some(owner) = owner {
                self.of.remove(&owner);
            }
            self.labels[at] = Some(who.tid);
            self.of.insert(who.tid, at);
            return true;
        }
        false
    }

    fn shown(&self, tid: Option<Tid>) -> String {
        match tid {
            None => "-".to_string(),
            Some(Tid(0)) => ".".to_string(),
            Some(tid) => self.of.get(&tid).map_or_else(
                || "?".to_string(),
                |&at| {
                    let letter = char::from(b'A' + u8::try_from(at % 26).unwrap_or(0));
                    format!("{letter}{}", at / 26)
                },
            ),
        }
    }
}
