//! Trace events as JSON, the format of chrome://tracing that many tools read.
//!
//! Times are microseconds since the beginning of the recording, with all their nanoseconds: as decimals, for a
//! double has no room for those of a machine that is up for long. What belongs to no process gets a process of its
//! own, and what a thread has beside its states a thread of its own, under numbers that nobody else has.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::io::{self, Write};

use serde_json::json;

use crate::analyse::tracks::{
    Arg, Doing, Flow, GroupId, Life, Owner, Parent, ProcessInfo, Sink, Slice, Stay, ThreadInfo,
    Track, TrackId, Turn, Value, WakeUp,
};
use crate::event::{Cpu, Pid};
use crate::model::fxhash::{FxHashMap, FxHasher};
use crate::present::export::{About, Trust};
use crate::units::Nanos;

/// Above all that a kernel gives.
const FIRST_OWN_NUMBER: u32 = 1 << 30;

/// Order of processes: the CPUs, what belongs to no process, the processes.
const CPUS_PLACE: u32 = 0;
const GROUPS_PLACE: u32 = 1;
const PROCESSES_PLACE: u32 = 1 << 16;

/// Rows of one thread follow each other.
const ROWS_OF_THREAD: u32 = 256;

type FxHashSet<T> = HashSet<T, BuildHasherDefault<FxHasher>>;

/// One row of the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    pid: u32,
    tid: u32,
}

#[derive(Debug)]
struct Person {
    name: String,
    rank: u32,
    /// Its name is written.
    is_told: bool,
}

/// Who has the CPU that is told about.
#[derive(Debug)]
struct Current {
    since: Nanos,
    name: String,
    owner: Owner,
    prio: u32,
}

#[derive(Debug)]
pub struct Chrome<W> {
    out: W,
    start: Nanos,
    /// Where turns end that nothing ends.
    end: Nanos,
    is_first: bool,
    processes: FxHashMap<Pid, Person>,
    threads: FxHashMap<Owner, Person>,
    /// All numbers that mean a process or a thread.
    taken: FxHashSet<u32>,
    next_own: u32,
    cpus: Option<u32>,
    groups: FxHashMap<GroupId, u32>,
    tracks: FxHashMap<TrackId, Row>,
    current: Option<Current>,
    next_wake: u64,
    /// One event.
    buffer: Vec<u8>,
}

/// Nanoseconds as microseconds.
struct Micros(u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 1_000, self.0 % 1_000);
        match part {
            0 => write!(f, "{whole}"),
            part => write!(f, "{whole}.{part:03}"),
        }
    }
}

/// A text as JSON.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self.0).map_err(|_| fmt::Error)?)
    }
}

impl<W: Write> Chrome<W> {
    /// Begins a file in which time counts from the beginning of the recording, and ends at `end`.
    pub fn new(mut out: W, about: &About, end: Nanos) -> io::Result<Self> {
        out.write_all(b"{\"traceEvents\":[\n")?;
        Ok(Chrome {
            out,
            start: about.start,
            end,
            is_first: true,
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            taken: FxHashSet::default(),
            next_own: FIRST_OWN_NUMBER,
            cpus: None,
            groups: FxHashMap::default(),
            tracks: FxHashMap::default(),
            current: None,
            next_wake: 0,
            buffer: Vec::with_capacity(1024),
        })
    }

    /// Ends the file with what it says about itself.
    pub fn finish(mut self, about: &About, trust: &Trust) -> io::Result<W> {
        let other = json!({
            "gdiag_version": about.gdiag_version,
            "host": about.host,
            "kernel": about.kernel,
            "machine": about.machine,
            "command": about.command,
            "gpu_source": about.gpu_source,
            "start_ns": about.start.as_u64(),
            "start_unix_ns": about.start_unix.map(Nanos::as_u64),
            "lost": trust.lost,
            "warnings": trust.warnings,
        });
        self.out
            .write_all(b"\n],\"displayTimeUnit\":\"ns\",\"otherData\":")?;
        serde_json::to_writer(&mut self.out, &other)?;
        self.out.write_all(b"}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Begins an event: `{"ph":"X","pid":1,"tid":2`.
    fn begin(&mut self, phase: char, row: Row) -> io::Result<()> {
        self.buffer.clear();
        if !std::mem::replace(&mut self.is_first, false) {
            self.buffer.extend_from_slice(b",\n");
        }
        let Row { pid, tid } = row;
        write!(self.buffer, r#"{{"ph":"{phase}","pid":{pid},"tid":{tid}"#)
    }

    fn time(&mut self, key: &str, ns: u64) -> io::Result<()> {
        write!(self.buffer, r#","{key}":{}"#, Micros(ns))
    }

    fn at(&mut self, at: Nanos) -> io::Result<()> {
        self.time("ts", at.saturating_sub(self.start).as_u64())
    }

    fn text(&mut self, key: &str, text: &str) -> io::Result<()> {
        write!(self.buffer, r#","{key}":{}"#, Quoted(text))
    }

    fn args(&mut self, args: &[Arg<'_>]) -> io::Result<()> {
        if args.is_empty() {
            return Ok(());
        }
        self.buffer.extend_from_slice(br#","args":"#);
        let mut before = '{';
        for (name, value) in args {
            write!(self.buffer, "{before}{}:", Quoted(name))?;
            before = ',';
            match value {
                Value::Uint(n) => write!(self.buffer, "{n}")?,
                Value::Int(n) => write!(self.buffer, "{n}")?,
                Value::Bool(b) => write!(self.buffer, "{b}")?,
                Value::Text(text) => write!(self.buffer, "{}", Quoted(text))?,
                Value::List(texts) => serde_json::to_writer(&mut self.buffer, texts)?,
            }
        }
        self.buffer.push(b'}');
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.buffer.push(b'}');
        self.out.write_all(&self.buffer)
    }

    fn metadata(
        &mut self,
        row: Row,
        name: &str,
        key: &'static str,
        value: Value<'_>,
    ) -> io::Result<()> {
        self.begin('M', row)?;
        self.text("name", name)?;
        self.args(&[(key, value)])?;
        self.end()
    }

    fn name_process(&mut self, pid: u32, name: &str, place: u32) -> io::Result<()> {
        let row = Row { pid, tid: 0 };
        self.metadata(row, "process_name", "name", Value::Text(name.into()))?;
        self.metadata(
            row,
            "process_sort_index",
            "sort_index",
            Value::Uint(place.into()),
        )
    }

    fn name_row(&mut self, row: Row, name: &str, place: u32) -> io::Result<()> {
        self.metadata(row, "thread_name", "name", Value::Text(name.into()))?;
        self.metadata(
            row,
            "thread_sort_index",
            "sort_index",
            Value::Uint(place.into()),
        )
    }

    /// A number that is nobody's.
    fn own_number(&mut self) -> u32 {
        while !self.taken.insert(self.next_own) {
            self.next_own = self.next_own.wrapping_add(1);
        }
        self.next_own
    }

    fn person(name: &str, rank: u32) -> Person {
        Person {
            name: name.to_string(),
            rank,
            is_told: false,
        }
    }

    /// Says who this is, the first time.
    fn introduce_process(&mut self, pid: Pid) -> io::Result<()> {
        let person = self
            .processes
            .entry(pid)
            .or_insert_with(|| Self::person("?", u32::MAX / 2));
        if std::mem::replace(&mut person.is_told, true) {
            return Ok(());
        }
        let (name, place) = (
            person.name.clone(),
            person.rank.saturating_add(PROCESSES_PLACE),
        );
        self.name_process(pid.0, &name, place)
    }

    /// The row of a thread's states, named the first time.
    fn states_of(&mut self, owner: Owner) -> io::Result<Row> {
        self.introduce_process(owner.pid)?;
        let row = Row {
            pid: owner.pid.0,
            tid: owner.tid.0,
        };
        let person = self
            .threads
            .entry(owner)
            .or_insert_with(|| Self::person("?", 0));
        if !std::mem::replace(&mut person.is_told, true) {
            let name = format!("{} {}", person.name, owner.tid);
            let place = person.rank.saturating_mul(ROWS_OF_THREAD);
            self.name_row(row, &name, place)?;
        }
        Ok(row)
    }

    fn cpu(&mut self, cpu: Cpu) -> io::Result<Row> {
        let pid = match self.cpus {
            Some(pid) => pid,
            None => {
                let pid = self.own_number();
                self.cpus = Some(pid);
                self.name_process(pid, "CPUs", CPUS_PLACE)?;
                pid
            }
        };
        Ok(Row {
            pid,
            tid: cpu.0.into(),
        })
    }

    fn end_turn(&mut self, cpu: Cpu, until: Nanos) -> io::Result<()> {
        let Some(turn) = self.current.take().filter(|turn| turn.since < until) else {
            return Ok(());
        };
        let row = self.cpu(cpu)?;
        let args = [
            ("pid", Value::Uint(turn.owner.pid.0.into())),
            ("prio", Value::Uint(turn.prio.into())),
        ];
        self.slice_on(
            row,
            &Slice {
                start: turn.since,
                end: until,
                name: turn.name.into(),
                category: "cpu",
                args: args.into(),
                flow: None,
            },
        )
    }

    fn slice_on(&mut self, row: Row, slice: &Slice<'_>) -> io::Result<()> {
        self.begin('X', row)?;
        self.at(slice.start)?;
        self.time("dur", slice.end.saturating_sub(slice.start).as_u64())?;
        self.text("name", &slice.name)?;
        self.text("cat", slice.category)?;
        self.args(&slice.args)?;
        self.end()?;
        match slice.flow {
            None => Ok(()),
            Some(Flow::From(id)) => self.flow('s', row, slice.start, "launch", id),
            Some(Flow::To(id)) => self.flow('f', row, slice.start, "launch", id),
        }
    }

    /// One end of an arrow: `s` where it begins, `f` where it ends.
    fn flow(&mut self, phase: char, row: Row, at: Nanos, what: &str, id: u64) -> io::Result<()> {
        self.begin(phase, row)?;
        self.at(at)?;
        self.text("name", what)?;
        self.text("cat", what)?;
        write!(self.buffer, r#","id":{id}"#)?;
        if phase == 'f' {
            // To the slice that it is in, not to the next one.
            self.text("bp", "e")?;
        }
        self.end()
    }

    fn instant_on(&mut self, row: Row, slice: &Slice<'_>) -> io::Result<()> {
        self.begin('i', row)?;
        self.at(slice.start)?;
        self.text("s", "t")?;
        self.text("name", &slice.name)?;
        self.text("cat", slice.category)?;
        self.args(&slice.args)?;
        self.end()
    }
}

impl<W: Write> Sink for Chrome<W> {
    fn process(&mut self, process: &ProcessInfo<'_>) -> io::Result<()> {
        self.taken.insert(process.pid.0);
        if process.shown {
            let name = match process.cmdline.split(' ').next() {
                Some(program) if !program.is_empty() => program,
                Some(_) | None => process.name,
            };
            self.processes
                .insert(process.pid, Self::person(name, process.rank));
        }
        Ok(())
    }

    fn thread(&mut self, thread: &ThreadInfo<'_>) -> io::Result<()> {
        self.taken.insert(thread.owner.tid.0);
        self.threads
            .insert(thread.owner, Self::person(thread.comm, thread.rank));
        Ok(())
    }

    fn turn(&mut self, cpu: Cpu, turn: &Turn<'_>) -> io::Result<()> {
        self.end_turn(cpu, turn.start)?;
        self.current = turn.who.map(|who| Current {
            since: turn.start,
            name: format!("{} #{}", who.comm, who.owner.tid),
            owner: who.owner,
            prio: who.prio,
        });
        Ok(())
    }

    /// Told with the state that it began.
    fn wake(&mut self, _: Cpu, _: &WakeUp<'_>) -> io::Result<()> {
        Ok(())
    }

    fn life(&mut self, _: Cpu, life: &Life<'_>) -> io::Result<()> {
        let (at, who, name, args) = match life {
            Life::New { at, who, parent } => {
                let name = match parent.pid == who.owner.pid {
                    true => "thread made",
                    false => "process forked",
                };
                (
                    at,
                    who,
                    name,
                    vec![("by_tid", Value::Uint(parent.tid.0.into()))],
                )
            }
            Life::Renamed { at, who, before } => {
                let args = vec![
                    ("from", Value::Text((*before).into())),
                    ("to", Value::Text(who.comm.into())),
                ];
                (at, who, "renamed", args)
            }
            Life::Exited { at, who } => (at, who, "exited", Vec::new()),
        };
        if !self.processes.contains_key(&who.owner.pid) {
            return Ok(());
        }
        let row = self.states_of(who.owner)?;
        let slice = Slice {
            start: *at,
            end: *at,
            name: name.into(),
            category: "life",
            args,
            flow: None,
        };
        self.instant_on(row, &slice)
    }

    fn end_cpu(&mut self, cpu: Cpu) -> io::Result<()> {
        self.end_turn(cpu, self.end)?;
        let row = self.cpu(cpu)?;
        self.name_row(row, &format!("CPU {cpu}"), cpu.0.into())
    }

    fn makes_states(&self) -> bool {
        false
    }

    fn stay(&mut self, owner: Owner, stay: &Stay<'_>) -> io::Result<()> {
        let row = self.states_of(owner)?;
        let slice = Slice {
            start: stay.start,
            end: stay.end,
            name: stay.text.as_ref().into(),
            category: match stay.doing {
                Doing::Running => "running",
                Doing::Runnable => "runnable",
                Doing::Blocked => "blocked",
            },
            args: stay.args.clone(),
            flow: None,
        };
        self.slice_on(row, &slice)?;
        if let Some(waker) = stay.woken_by {
            let from = self.states_of(waker)?;
            self.next_wake += 1;
            self.flow('s', from, stay.start, "wakeup", self.next_wake)?;
            self.flow('f', row, stay.start, "wakeup", self.next_wake)?;
        }
        Ok(())
    }

    fn group(&mut self, id: GroupId, name: &str) -> io::Result<()> {
        let pid = self.own_number();
        self.groups.insert(id, pid);
        self.name_process(pid, name, id.0.saturating_add(GROUPS_PLACE))
    }

    fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
        let tid = self.own_number();
        let name = match track.lane {
            0 => track.name.to_string(),
            lane => format!("{} ({})", track.name, u64::from(lane) + 1),
        };
        let (pid, name, place) = match track.parent {
            Parent::Group(group) => {
                let pid = self.groups.get(&group).copied().unwrap_or_default();
                let place = track.rank.saturating_mul(ROWS_OF_THREAD);
                (pid, name, place.saturating_add(track.lane))
            }
            Parent::Process(pid) => {
                self.introduce_process(pid)?;
                (pid.0, name, 0)
            }
            Parent::Calls(owner) | Parent::Thread(owner) => {
                self.introduce_process(owner.pid)?;
                let person = self
                    .threads
                    .entry(owner)
                    .or_insert_with(|| Self::person("?", 0));
                let row = track.rank.saturating_mul(64).saturating_add(track.lane);
                let place = person.rank.saturating_mul(ROWS_OF_THREAD);
                let place = place.saturating_add(row.saturating_add(1).min(ROWS_OF_THREAD - 1));
                (
                    owner.pid.0,
                    format!("{} {}: {name}", person.name, owner.tid),
                    place,
                )
            }
        };
        let row = Row { pid, tid };
        self.tracks.insert(track.id, row);
        self.name_row(row, &name, place)
    }

    fn slice(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()> {
        match self.tracks.get(&track).copied() {
            Some(row) => self.slice_on(row, slice),
            None => Ok(()),
        }
    }

    fn instant(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()> {
        match self.tracks.get(&track).copied() {
            Some(row) => self.instant_on(row, slice),
            None => Ok(()),
        }
    }

    fn end_tracks(&mut self) -> io::Result<()> {
        self.tracks.clear();
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::HashMap;

    use serde_json::Value as Json;

    use super::*;

    /// Whole nanoseconds of a time in microseconds that has no more than three decimals. Each event is a line, and no
    /// text has a bare quote; a double would have no room for all times.
    fn nanos(line: &str, key: &str) -> u64 {
        let (_, rest) = line.split_once(key).unwrap();
        let text = rest.split([',', '}']).next().unwrap();
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        assert!(part.len() <= 3, "{text}");
        whole.parse::<u64>().unwrap() * 1_000 + format!("{part:0<3}").parse::<u64>().unwrap()
    }

    /// It is JSON, slices of a row nest, rows have names, and arrows have two ends in slices.
    pub(crate) fn check(bytes: &[u8]) {
        let file: Json = serde_json::from_slice(bytes).unwrap();
        let mut rows: HashMap<(u64, u64), Vec<(u64, u64)>> = HashMap::new();
        let mut named = Vec::new();
        // By kind and number: whether it begins there, where, when.
        type End = (bool, (u64, u64), u64);
        let mut flows: HashMap<(String, u64), Vec<End>> = HashMap::new();
        let events = file["traceEvents"].as_array().unwrap();
        let lines: Vec<&str> = std::str::from_utf8(bytes).unwrap().lines().collect();
        for (event, line) in events.iter().zip(&lines[1..]) {
            let row = (
                event["pid"].as_u64().unwrap(),
                event["tid"].as_u64().unwrap(),
            );
            let phase = event["ph"].as_str().unwrap();
            match phase {
                "M" if event["name"] == "thread_name" => {
                    assert!(!named.contains(&row), "a row named twice");
                    named.push(row);
                }
                "M" => {}
                "X" => {
                    let at = nanos(line, r#","ts":"#);
                    let end = at.checked_add(nanos(line, r#","dur":"#)).unwrap();
                    rows.entry(row).or_default().push((at, end));
                }
                "i" => drop(rows.entry(row).or_default()),
                "s" | "f" => {
                    let key = (event["cat"].to_string(), event["id"].as_u64().unwrap());
                    let end = (phase == "s", row, nanos(line, r#","ts":"#));
                    flows.entry(key).or_default().push(end);
                }
                other => panic!("an event of kind {other}"),
            }
        }
        for (row, slices) in &mut rows {
            assert!(named.contains(row), "a row without a name");
            slices.sort_by_key(|&(start, end)| (start, std::cmp::Reverse(end)));
            let mut open: Vec<u64> = Vec::new();
            for &(start, end) in slices.iter() {
                while open.pop_if(|outer| *outer <= start).is_some() {}
                assert!(
                    open.last().is_none_or(|&outer| end <= outer),
                    "slices cross"
                );
                open.push(end);
            }
        }
        for ends in flows.values() {
            assert_eq!(ends.iter().filter(|end| end.0).count(), 1);
            assert!(ends.len() > 1);
            for (_, row, at) in ends {
                let slices = rows.get(row).map_or(&[][..], Vec::as_slice);
                assert!(slices.iter().any(|s| s.0 <= *at && *at <= s.1));
            }
        }
    }

    #[test]
    fn microseconds_keep_every_nanosecond() {
        for (ns, text) in [
            (0, "0"),
            (1, "0.001"),
            (999, "0.999"),
            (1_000, "1"),
            (12_034_050, "12034.050"),
            (u64::MAX, "18446744073709551.615"),
        ] {
            assert_eq!(Micros(ns).to_string(), text);
        }
    }

    #[test]
    fn own_numbers_are_nobodys() {
        let mut sink = Chrome::new(Vec::new(), &About::default(), Nanos(0)).unwrap();
        sink.taken.insert(FIRST_OWN_NUMBER);
        sink.taken.insert(FIRST_OWN_NUMBER + 2);
        let numbers = [sink.own_number(), sink.own_number()];
        assert_eq!(numbers, [FIRST_OWN_NUMBER + 1, FIRST_OWN_NUMBER + 3]);
    }
}
