//! A recording in memory: the newest overwrites the oldest.
//!
//! ```text
//!            gone                    kept                      open
//!   ┌─ ─ ─ ─┬─ ─ ─ ─┐┌───────┬───────┬───────┬───────┐┌───────┐
//!     chunk   chunk   chunk   chunk   chunk   chunk   events ◄─── push
//!   └─ ─ ─ ─┴─ ─ ─ ─┘└───────┴───────┴───────┴───────┘└───────┘
//!       │            ▲
//!       ▼            └ the window begins: nothing after it is missing
//!    Past: who was what, definitions, what reaches into the window
//! ```
//!
//! Chunks are those of the file, made by the same code. When one goes, what readers of the rest need
//! from it stays: see [`Past`]. A snapshot is then the part of a recording ([`trim`](super::trim())) that
//! begins where the window does; it shares the chunks, so that it can be written by another thread
//! while this one goes on.
//!
//! Ids of names, frames and stacks are given once and used for as long as whoever gave them remembers
//! them. So definitions can only go in step with it: see [`Memory::is_littered`].
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::hash::Hash;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::carry::{Before, Used};
use super::chunks::Unpacker;
use super::decode::{Decoder, Record};
use super::encode::Encoder;
use super::format::{ChunkHeader, ChunkKind, TARGET_RAW_LEN};
use super::meta::{Meta, Summary};
use super::pack::Packer;
use super::state::State;
use super::trim::{self, Range, Source};
use super::writer::Stats;
use super::{StoreError, Writer};
use crate::event::{CallStackId, CorrelationId, Event, FrameId, NameId, Pid, StackId};
use crate::fxhash::{FxHashMap, FxHashSet};
use crate::units::{Bytes, Nanos};

/// Of all memory, chunks are so small a part that what goes at once is no great loss.
const CHUNKS_AT_LEAST: u64 = 32;

/// Launches of processes of which no operation is in memory are kept for so long: their records come late.
const LATE: Nanos = Nanos::from_secs(10);

/// Of all memory, what definitions may take before it is looked at which of them are still used, and what
/// may reach into the window.
const SHARE: u64 = 16;

/// What a thread of [`Before`] takes, about.
const THREAD: u64 = 256;

/// What gdiag notes when it looks, with the time of that. It can be later than all that is read afterwards, so
/// it does not tell how far the events reach; and it is carried over.
fn is_noted(event: &Event) -> bool {
    match event {
        Event::Clock(_)
        | Event::Loss(_)
        | Event::Shim(_)
        | Event::Probes(_)
        | Event::Process(_)
        | Event::Device(_)
        | Event::GpuInvalid(_) => true,
        Event::Define(_)
        | Event::Task(_)
        | Event::Exit(_)
        | Event::Switch(_)
        | Event::Waking(_)
        | Event::Interrupt(_)
        | Event::Wait(_)
        | Event::CpuWait(_)
        | Event::SysCall(_)
        | Event::Stall(_)
        | Event::Signal(_)
        | Event::Sample(_)
        | Event::GpuOp(_)
        | Event::Migration(_)
        | Event::ApiCall(_)
        | Event::Sync(_)
        | Event::Overhead(_) => false,
    }
}

/// Events as they are stored.
#[derive(Debug)]
struct Chunk {
    header: ChunkHeader,
    payload: Box<[u8]>,
    /// What its events mention, so that it need not be decoded to know.
    names: Box<[NameId]>,
    stacks: Box<[StackId]>,
    call_stacks: Box<[CallStackId]>,
    frames: Box<[FrameId]>,
    /// The lowest number of an operation, by process: the launches of earlier ones are not missed.
    operations: Box<[(Pid, CorrelationId)]>,
    defines: bool,
    /// The latest time of what would be missed.
    last: Nanos,
}

impl Chunk {
    fn bytes(&self) -> u64 {
        let ids = self.names.len() + self.stacks.len() + self.call_stacks.len() + self.frames.len();
        let len = self.payload.len() + 4 * ids + 8 * self.operations.len() + size_of::<Chunk>();
        len as u64
    }

    fn mention(&self, used: &mut Used) {
        used.names.extend(&self.names);
        used.stacks.extend(&self.stacks);
        used.call_stacks.extend(&self.call_stacks);
        used.frames.extend(&self.frames);
    }
}

/// The chunk that events go to.
#[derive(Debug, Default)]
struct Open {
    events: Encoder,
    used: Used,
    operations: FxHashMap<Pid, CorrelationId>,
    defines: bool,
    last: Nanos,
}

impl Open {
    fn push(&mut self, event: &Event) {
        self.events.push(event);
        self.used.event(event);
        if !is_noted(event) {
            self.last = self.last.max(event.ts().unwrap_or_default());
        }
        if let Event::Define(define) = event {
            self.defines = true;
            self.used.made_of(define);
        }
        if let Event::GpuOp(op) = event {
            let lowest = self.operations.entry(op.pid).or_insert(op.correlation);
            *lowest = op.correlation.min(*lowest);
        }
    }

    fn close(&mut self, packer: &mut Packer) -> io::Result<Option<Arc<Chunk>>> {
        if self.events.records() == 0 {
            return Ok(None);
        }
        let (records, span) = (self.events.records(), self.events.span());
        let (header, bytes) = packer.pack(ChunkKind::Events, self.events.bytes(), records, span)?;
        let chunk = Chunk {
            payload: bytes[size_of::<ChunkHeader>()..].into(),
            header,
            names: sorted(&mut self.used.names),
            stacks: sorted(&mut self.used.stacks),
            call_stacks: sorted(&mut self.used.call_stacks),
            frames: sorted(&mut self.used.frames),
            operations: self.operations.drain().collect(),
            defines: std::mem::take(&mut self.defines),
            last: std::mem::take(&mut self.last),
        };
        self.events.clear();
        Ok(Some(Arc::new(chunk)))
    }
}

fn sorted<T: Copy + Ord + Hash>(ids: &mut FxHashSet<T>) -> Box<[T]> {
    let mut list: Vec<T> = ids.drain().collect();
    list.sort_unstable();
    list.into()
}

/// Reads chunks, one after another in the same memory.
#[derive(Debug)]
struct ChunkReader {
    unpacker: Unpacker,
    state: State,
}

impl ChunkReader {
    fn new() -> io::Result<Self> {
        Ok(ChunkReader {
            unpacker: Unpacker::new()?,
            state: State::default(),
        })
    }

    fn each(
        &mut self,
        chunk: &Chunk,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        // Neither fails for what was written a moment ago by this program.
        if !self.unpacker.unpack(&chunk.header, &chunk.payload) {
            return ControlFlow::Continue(());
        }
        let mut decoder = Decoder::new(&self.unpacker.raw, &mut self.state);
        while let Ok(Some(record)) = decoder.next() {
            if let Record::Event(event) = record {
                each(&event)?;
            }
        }
        ControlFlow::Continue(())
    }
}

/// What stays of chunks that are gone.
#[derive(Debug, Default)]
struct Past {
    before: Before,
    /// Where the window begins: every event that was gone is from before.
    until: Nanos,
    /// Events that last into the window, what was noted in it, and launches of operations that may be in it. In
    /// order of arrival.
    reaching: VecDeque<Event>,
    /// When the first of those that were noted is not in the window any more.
    noted: Option<Nanos>,
    /// How many there were after the last look.
    looked: usize,
    /// How many of them had to go for want of room, and when the last of them went.
    given_up: (u64, Nanos),
    /// Definitions, in their order.
    definitions: Vec<Arc<Chunk>>,
    open: Open,
    /// Bytes of the definitions that are closed, and after the last time that they were sorted out.
    bytes: u64,
    sorted_out: u64,
}

impl Past {
    /// The window begins later.
    fn advance(&mut self, until: Nanos) {
        self.until = self.until.max(until);
        if self.given_up.1 < self.until {
            self.given_up.0 = 0;
        }
        let Some(noted) = self.noted.filter(|noted| *noted < self.until) else {
            return;
        };
        debug_assert!(noted < self.until);
        let (before, until) = (&mut self.before, self.until);
        let mut next: Option<Nanos> = None;
        self.reaching.retain(|event| {
            let ts = event.ts().unwrap_or_default();
            if !is_noted(event) {
                return true;
            }
            if ts < until {
                before.event(event, Nanos::MAX);
                // A loss may last into it.
                return Range::new(until, Nanos::MAX).keeps(event);
            }
            next = Some(next.map_or(ts, |next| next.min(ts)));
            true
        });
        self.noted = next;
    }

    /// Takes over what is needed of an event that goes; `reach` is what reaches into the window.
    fn take(&mut self, event: &Event, reach: &Range) {
        if let Event::Define(_) = event {
            return self.open.push(event);
        }
        // Most of all, and over at once.
        if let Event::Switch(_) | Event::Waking(_) = event {
            return self.before.event(event, Nanos::MAX);
        }
        let is_kept = matches!(event, Event::ApiCall(_)) || reach.keeps(event);
        let ts = event.ts().unwrap_or_default();
        if is_kept && is_noted(event) && ts >= self.until {
            self.noted = Some(self.noted.map_or(ts, |noted| noted.min(ts)));
        } else {
            self.before.event(event, Nanos::MAX);
        }
        if is_kept {
            self.reaching.push_back(event.clone());
        }
    }

    fn close(&mut self, packer: &mut Packer) -> io::Result<()> {
        if let Some(chunk) = self.open.close(packer)? {
            self.bytes += chunk.bytes();
            self.definitions.push(chunk);
        }
        Ok(())
    }

    /// Drops what does not reach into the window any more.
    fn look(&mut self, chunks: &VecDeque<Arc<Chunk>>, most: usize, now: Nanos) {
        let mut lowest: HashMap<Pid, CorrelationId> = HashMap::new();
        for &(pid, first) in chunks.iter().flat_map(|chunk| &chunk.operations) {
            let known = lowest.entry(pid).or_insert(first);
            *known = first.min(*known);
        }
        let until = self.until;
        let range = Range::new(until, Nanos::MAX);
        self.reaching.retain(|event| {
            let Event::ApiCall(call) = event else {
                return range.keeps(event);
            };
            let may_launch = match lowest.get(&call.pid) {
                Some(&lowest) => call.correlation >= lowest,
                None => call.end + LATE >= until,
            };
            may_launch || range.keeps(event)
        });
        let mut excess = self.reaching.len().saturating_sub(most);
        let before = self.reaching.len();
        // What is lost is never lost once more.
        self.reaching.retain(|event| {
            let stays = excess == 0 || matches!(event, Event::Loss(_));
            excess -= usize::from(!stays);
            stays
        });
        let gone = before - self.reaching.len();
        if gone > 0 {
            self.given_up = (self.given_up.0 + gone as u64, now);
        }
        self.looked = self.reaching.len();
    }

    fn total(&self) -> u64 {
        let events = self.reaching.len() * size_of::<Event>();
        self.bytes + events as u64 + self.before.thread_count() * THREAD
    }
}

/// What is in memory, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// What is held reaches back to here.
    pub from: Nanos,
    pub events: u64,
    pub bytes: Bytes,
}

/// The newest events of a recording, as many as there is room for.
#[derive(Debug)]
pub struct Memory {
    most: Bytes,
    window: Nanos,
    /// What happened since then stays, however old it gets.
    needed: Option<Nanos>,
    start: Nanos,
    chunks: VecDeque<Arc<Chunk>>,
    /// For each of them, what is to be older than the window before it goes.
    lasts: VecDeque<Nanos>,
    /// Of the last `lasts`: those since the last look, and those of the time before it.
    fresh: (usize, usize),
    /// Of `chunks`.
    bytes: u64,
    events: u64,
    open: Open,
    chunk_len: usize,
    past: Past,
    packer: Packer,
    reader: ChunkReader,
    stats: Stats,
}

impl Memory {
    /// Holds `window` of the past from `start` on, and no more than `most`.
    pub fn new(most: Bytes, window: Nanos, start: Nanos) -> io::Result<Memory> {
        let share = usize::try_from(most.0 / CHUNKS_AT_LEAST).unwrap_or(TARGET_RAW_LEN);
        Ok(Memory {
            most,
            window,
            needed: None,
            start,
            chunks: VecDeque::new(),
            lasts: VecDeque::new(),
            fresh: (0, 0),
            bytes: 0,
            events: 0,
            open: Open::default(),
            chunk_len: share.clamp(4 << 10, TARGET_RAW_LEN),
            past: Past {
                until: start,
                ..Past::default()
            },
            packer: Packer::new()?,
            reader: ChunkReader::new()?,
            stats: Stats::default(),
        })
    }

    /// Adds an event. Fails only when the compressor does.
    pub fn push(&mut self, event: &Event) -> io::Result<()> {
        self.open.push(event);
        self.stats.events += 1;
        self.stats.switches += u64::from(matches!(event, Event::Switch(_)));
        if self.open.events.bytes().len() >= self.chunk_len {
            self.close()?;
        }
        Ok(())
    }

    /// What happened since `from` is to be written soon: it does not go because it is old. Only for want of room.
    pub fn need(&mut self, from: Option<Nanos>) {
        self.needed = from;
    }

    /// Lets go of what is older than the window at `now`, and of the oldest if there is no room.
    pub fn age(&mut self, now: Nanos) -> io::Result<()> {
        let oldest = now.saturating_sub(self.window);
        let oldest = self.needed.map_or(oldest, |needed| needed.min(oldest));
        // What was there at the last look was read before now: whatever is later than that is a bad time, and
        // would hold up the others.
        let (fresh, before) = std::mem::take(&mut self.fresh);
        for last in self.lasts.iter_mut().rev().skip(fresh).take(before) {
            *last = now.min(*last);
        }
        self.fresh = (0, fresh);
        while self.chunks.len() > 1 && self.lasts.front().is_some_and(|last| *last < oldest) {
            self.drop_oldest(now)?;
        }
        while self.chunks.len() > 1 && self.held() > self.most.0 {
            self.drop_oldest(now)?;
        }
        let many = 2 * self.past.looked + 1024;
        let most = (self.most.0 / SHARE) as usize / size_of::<Event>();
        if self.past.reaching.len() > many.min(most) {
            self.past.look(&self.chunks, most, now);
        }
        Ok(())
    }

    /// Many definitions have come together since they were last sorted out. Whoever gives ids is to forget
    /// them now, so that what comes again is defined again, and then call [`Memory::tidy`].
    pub fn is_littered(&self) -> bool {
        self.past.bytes > (2 * self.past.sorted_out).max(self.most.0 / SHARE)
    }

    /// Drops the definitions that nothing in memory mentions, apart from those of `names`.
    pub fn tidy(&mut self, names: FxHashSet<NameId>) -> io::Result<()> {
        self.close()?;
        self.past.close(&mut self.packer)?;
        let mut used = Used {
            names,
            ..Used::default()
        };
        for chunk in &self.chunks {
            chunk.mention(&mut used);
        }
        for event in self.past.before.clone().events(self.past.until) {
            used.event(&event);
        }
        for event in &self.past.reaching {
            used.event(event);
        }
        let definitions = std::mem::take(&mut self.past.definitions);
        self.past.bytes = 0;
        let reader = &mut self.reader;
        let mut each = |each: &mut dyn FnMut(&Event)| {
            for chunk in &definitions {
                let _ = reader.each(chunk, &mut |event| {
                    each(event);
                    ControlFlow::Continue(())
                });
            }
        };
        each(&mut |event| used.frames(event));
        each(&mut |event| used.names(event));
        let (open, packer, mut kept, mut result) =
            (&mut self.past.open, &mut self.packer, Vec::new(), Ok(()));
        let mut close = |open: &mut Open| match open.close(packer) {
            Ok(chunk) => kept.extend(chunk),
            Err(e) => result = Err(e),
        };
        each(&mut |event| {
            if used.defines(event) {
                open.push(event);
                if open.events.bytes().len() >= TARGET_RAW_LEN {
                    close(open);
                }
            }
        });
        close(open);
        result?;
        self.past.bytes = kept.iter().map(|chunk| chunk.bytes()).sum();
        self.past.sorted_out = self.past.bytes;
        self.past.definitions = kept;
        Ok(())
    }

    /// What was pushed so far, also what is gone.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    pub fn fill(&self) -> Fill {
        Fill {
            from: self.past.until,
            events: self.events + u64::from(self.open.events.records()),
            bytes: Bytes(self.held()),
        }
    }

    /// What is held now, to be written while this goes on.
    pub fn held_now(&mut self) -> io::Result<Held> {
        self.close()?;
        self.past.close(&mut self.packer)?;
        Ok(Held {
            before: self.past.before.clone(),
            from: self.past.until,
            given_up: self.past.given_up.0,
            definitions: self.past.definitions.clone(),
            reaching: self.past.reaching.iter().cloned().collect(),
            chunks: self.chunks.iter().cloned().collect(),
        })
    }

    fn held(&self) -> u64 {
        self.bytes + self.past.total() + self.open.events.bytes().len() as u64
    }

    fn close(&mut self) -> io::Result<()> {
        if let Some(chunk) = self.open.close(&mut self.packer)? {
            self.bytes += chunk.bytes();
            self.events += u64::from(chunk.header.records.get());
            self.lasts.push_back(chunk.last);
            self.fresh.0 += 1;
            self.chunks.push_back(chunk);
        }
        Ok(())
    }

    fn drop_oldest(&mut self, now: Nanos) -> io::Result<()> {
        let (Some(chunk), Some(last)) = (self.chunks.pop_front(), self.lasts.pop_front()) else {
            return Ok(());
        };
        self.bytes -= chunk.bytes();
        self.events -= u64::from(chunk.header.records.get());
        // Nothing has happened yet that is later than now, whatever a record says.
        let gone = Nanos(last.min(now).0.saturating_add(1));
        self.past.advance(gone.max(self.start));
        let past = &mut self.past;
        let reach = Range::new(past.until, Nanos::MAX);
        let _ = self.reader.each(&chunk, &mut |event| {
            past.take(event, &reach);
            ControlFlow::Continue(())
        });
        if self.past.open.events.bytes().len() >= TARGET_RAW_LEN {
            self.past.close(&mut self.packer)?;
        }
        Ok(())
    }
}

/// What a [`Memory`] held at some moment.
#[derive(Debug)]
pub struct Held {
    before: Before,
    from: Nanos,
    given_up: u64,
    definitions: Vec<Arc<Chunk>>,
    reaching: Vec<Event>,
    chunks: Vec<Arc<Chunk>>,
}

impl Held {
    /// It reaches back to here.
    pub fn from(&self) -> Nanos {
        self.from
    }

    /// Launches, and what lasts into it, for which there was no room.
    pub fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Writes what happened from `from` on, as far as it is held, to the open and empty `file`, which errors
    /// call `path`. `meta` is that of all that was ever recorded, and `summary` tells until when.
    pub fn write(
        self,
        file: File,
        path: &Path,
        meta: &Meta,
        summary: &Summary,
        from: Nanos,
    ) -> Result<Stats, StoreError> {
        let from = from.max(self.from);
        let failed = |source| StoreError::Write {
            path: path.to_owned(),
            source,
        };
        let writer = Writer::new(file, path, &trim::meta(meta, from))?;
        let mut source = HeldSource {
            definitions: &self.definitions,
            reaching: &self.reaching,
            chunks: &self.chunks,
            reader: ChunkReader::new().map_err(failed)?,
        };
        let to = summary.end();
        trim::write_part(&mut source, self.before, writer, summary, from, to)
    }
}

struct HeldSource<'a> {
    definitions: &'a [Arc<Chunk>],
    reaching: &'a [Event],
    chunks: &'a [Arc<Chunk>],
    reader: ChunkReader,
}

impl Source for HeldSource<'_> {
    fn for_each(
        &mut self,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let reader = &mut self.reader;
        let mut all = || -> ControlFlow<()> {
            for chunk in self.definitions {
                reader.each(chunk, each)?;
            }
            self.reaching.iter().try_for_each(&mut *each)?;
            for chunk in self.chunks {
                reader.each(chunk, each)?;
            }
            ControlFlow::Continue(())
        };
        let _ = all();
        Ok(())
    }

    fn definitions(
        &mut self,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut chunks = self.definitions.iter().chain(self.chunks);
        let _ = chunks
            .by_ref()
            .filter(|chunk| chunk.defines)
            .try_for_each(|chunk| self.reader.each(chunk, each));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
