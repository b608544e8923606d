//! The executable mappings of all processes: from events and /proc, for whoever has an address.
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::io;

use super::events::{FileHint, MapEvent, Mmap, What};
use super::files::{Files, VDSO};
use super::open::{has_file, Opened};
use super::reader::{Answer, Reader, Request, Whose};
use super::space::{Code, Space, Span, MOST_LIVE};
use super::FileId;
use crate::collect::process;
use crate::event::Pid;
use crate::units::Nanos;

/// What is over is remembered this long, for samples that come late.
const GRACE: Nanos = Nanos::from_secs(10);

/// Without events, the maps of a process are read again after this when an address is not found.
const AGE: Nanos = Nanos::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Follow processes that nobody [added](AddressSpaces::add), from their events on.
    pub everything: bool,
    /// [`super::MmapEvents`] will be handed in. Else maps are read again when an address is in
    /// none of them, which is late, and does not notice when one takes the place of another.
    pub events: bool,
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    File(Mapped),
    /// In code made at run time.
    Anonymous,
    /// The maps or the file have not been read yet: asked later, the answer may be another.
    NotYet,
    /// In nothing that is known to be executable.
    Unmapped,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub file: FileId,
    /// As the file's own program headers and symbols count; the offset in the file for one that
    /// could not be opened or is not ELF.
    pub address: u64,
}

/// A mapping as the BPF programs need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Address in the file = pc - bias, wrapping. 0 without a file.
    pub bias: u64,
    /// `None` for code made at run time, and for a file whose addresses are not known (yet).
    pub file: Option<FileId>,
}

/// The executable mappings of all processes that are followed, over time.
///
/// Events and /proc speak of pids as gdiag's own PID namespace counts (`proc_pid`), samples of the
/// host's ([`Pid`]); [`add`](Self::add) says which is which.
///
/// Nothing is missed when the events are opened before the first process is added, and when each
/// round takes the samples first, then [`apply`](Self::apply)s all events up to now, then looks up.
#[derive(Debug)]
pub struct AddressSpaces {
    options: Options,
    /// By pid in /proc.
    spaces: HashMap<u32, Space>,
    proc_pids: HashMap<Pid, u32>,
    /// Host pids and pids in /proc are the same numbers.
    same_pids: bool,
    files: Files,
    reader: Reader,
    tickets: u64,
    /// Processes whose mappings are others than when they were last asked for, by pid in /proc.
    dirty: HashSet<u32>,
    swept: Nanos,
    unread: u64,
}

impl AddressSpaces {
    pub fn new(options: Options) -> io::Result<AddressSpaces> {
        Ok(AddressSpaces {
            options,
            spaces: HashMap::new(),
            proc_pids: HashMap::new(),
            same_pids: process::in_first_namespace(),
            files: Files::default(),
            reader: Reader::start()?,
            tickets: 0,
            dirty: HashSet::new(),
            swept: Nanos::ZERO,
            unread: 0,
        })
    }

    pub fn files(&mut self) -> &mut Files {
        &mut self.files
    }

    /// Follows a process from now on, whatever is known of it already.
    pub fn add(&mut self, pid: Pid, proc_pid: u32) {
        if proc_pid == 0 {
            return;
        }
        self.proc_pids.insert(pid, proc_pid);
        let space = self.spaces.entry(proc_pid).or_default();
        if space.pid != Some(pid) {
            space.pid = Some(pid);
            self.dirty.insert(proc_pid);
        }
        if !space.whole {
            self.read(proc_pid);
        }
    }

    /// What the kernel said. In order of time; see [`super::MmapEvents::read`].
    pub fn apply(&mut self, event: &MapEvent) {
        let (ts, proc_pid) = (event.ts, event.proc_pid);
        if let What::Fork { parent } = event.what {
            self.fork(ts, proc_pid, parent);
            return;
        }
        if self.options.everything && event.what != What::Exit {
            self.follow(proc_pid);
        }
        let Some(space) = self.spaces.get_mut(&proc_pid) else {
            return;
        };
        match &event.what {
            What::Fork { .. } => {}
            What::Exec => {
                space.end_all(ts);
                space.began = ts;
                space.checked = ts;
                space.ended = None;
                // From here on every mapping comes as an event.
                space.whole = true;
                space.reading = None;
                self.dirty.insert(proc_pid);
            }
            What::Exit => space.ended = Some(ts),
            What::Mmap(mmap) => {
                if let Some(kept) = &mut space.reading {
                    if kept.len() < MOST_LIVE {
                        kept.push(event.clone());
                    }
                }
                self.mmap(ts, proc_pid, mmap);
            }
        }
    }

    fn fork(&mut self, ts: Nanos, proc_pid: u32, parent: u32) {
        let copy = match self.spaces.get(&parent) {
            // What was read later than the fork may be more than what the child got.
            Some(parent) => Some((parent.live.clone(), parent.whole && parent.checked <= ts)),
            None => self.options.everything.then(|| (Vec::new(), false)),
        };
        let Some((mut live, whole)) = copy else {
            self.fork_of_stranger(ts, proc_pid);
            return;
        };
        let same_pids = self.same_pids;
        let space = self.spaces.entry(proc_pid).or_default();
        space.end_all(ts);
        for span in &mut live {
            span.from = ts;
            span.from_generation = space.generation;
        }
        space.live = live;
        space.began = ts;
        space.checked = ts;
        space.ended = None;
        space.reading = None;
        space.whole = whole;
        space.pid = same_pids.then_some(Pid(proc_pid));
        if same_pids {
            self.proc_pids.insert(Pid(proc_pid), proc_pid);
        }
        self.dirty.insert(proc_pid);
        if !whole {
            self.read(proc_pid);
        }
    }

    /// The child of a process that is not followed may be followed itself, already.
    fn fork_of_stranger(&mut self, ts: Nanos, proc_pid: u32) {
        let Some(space) = self.spaces.get_mut(&proc_pid) else {
            return;
        };
        if ts <= space.checked {
            // Its maps were read after it was born.
            return;
        }
        // The pid was another's before.
        space.end_all(ts);
        space.began = ts;
        space.ended = None;
        space.whole = false;
        self.dirty.insert(proc_pid);
        self.read(proc_pid);
    }

    /// Makes room for a process that an event speaks of.
    fn follow(&mut self, proc_pid: u32) {
        if self.spaces.contains_key(&proc_pid) {
            return;
        }
        let pid = Pid(proc_pid);
        if self.same_pids {
            self.add(pid, proc_pid);
        } else {
            self.spaces.insert(proc_pid, Space::default());
            self.read(proc_pid);
        }
    }

    fn mmap(&mut self, ts: Nanos, proc_pid: u32, mmap: &Mmap) {
        let code = self.code_of(proc_pid, mmap);
        if let Some(space) = self.spaces.get_mut(&proc_pid) {
            if space.insert(Span::of(mmap, code, ts)) {
                self.dirty.insert(proc_pid);
            }
        }
    }

    /// What a mapping is of, before anything was opened.
    fn code_of(&mut self, proc_pid: u32, mmap: &Mmap) -> Code {
        if mmap.path == VDSO {
            return self.vdso(mmap);
        }
        if !has_file(mmap) {
            return Code::Anonymous;
        }
        match &mmap.file {
            FileHint::BuildId(id) if id.tells_apart() => {
                let file = self.files.by_build_id(id, &mmap.path);
                if self.files.seen(file, proc_pid, mmap) {
                    self.open(proc_pid, mmap.clone(), file);
                }
                Code::File(file)
            }
            FileHint::BuildId(_) | FileHint::Inode { .. } => {
                self.tickets += 1;
                let ticket = self.tickets;
                let asked = self.reader.ask(Request::File {
                    proc_pid,
                    mmap: mmap.clone(),
                    whose: Whose::Ticket(ticket),
                });
                if asked {
                    Code::Ticket(ticket)
                } else {
                    let (file, _) = self.files.opened(&mmap.file, &mmap.path, &Opened::No);
                    Code::File(file)
                }
            }
        }
    }

    /// Has a file opened where it was seen.
    fn open(&mut self, proc_pid: u32, mmap: Mmap, file: FileId) {
        let whose = Whose::Known(file);
        let request = Request::File {
            proc_pid,
            mmap,
            whose,
        };
        if !self.reader.ask(request) {
            self.files.elsewhere(file);
        }
    }

    fn vdso(&mut self, mmap: &Mmap) -> Code {
        // That of a 32-bit process is another.
        if mmap.end <= 1 << 32 {
            return Code::Anonymous;
        }
        Code::File(self.files.vdso())
    }

    /// Has the maps of a process read, unless they are being read.
    fn read(&mut self, proc_pid: u32) {
        let Some(space) = self.spaces.get_mut(&proc_pid) else {
            return;
        };
        if space.reading.is_none() && self.reader.ask(Request::Maps { proc_pid }) {
            space.reading = Some(Vec::new());
        }
    }

    /// Takes what has been read meanwhile, and forgets what is long over. Never waits.
    /// True when something was new.
    pub fn poll(&mut self, now: Nanos) -> bool {
        let mut tickets = HashMap::new();
        let mut opened_now = HashSet::new();
        let mut any = false;
        while let Some(answer) = self.reader.answer() {
            any = true;
            match answer {
                Answer::Maps {
                    proc_pid,
                    asked,
                    maps,
                } => self.snapshot(proc_pid, asked, maps, &mut opened_now),
                Answer::File {
                    mmap,
                    whose,
                    opened,
                } => {
                    if let (Whose::Known(file), Opened::No) = (whose, &opened) {
                        if let Some((proc_pid, mmap)) = self.files.elsewhere(file) {
                            if self.files.seen(file, proc_pid, &mmap) {
                                self.open(proc_pid, mmap, file);
                            }
                        }
                        continue;
                    }
                    let (file, new) = match whose {
                        Whose::Known(file) => (file, self.files.settle(file, &opened)),
                        Whose::Ticket(_) => self.files.opened(&mmap.file, &mmap.path, &opened),
                    };
                    if new {
                        opened_now.insert(file);
                    }
                    if let Whose::Ticket(ticket) = whose {
                        tickets.insert(ticket, code_of_opened(&mmap, file, &opened));
                    }
                }
            }
        }
        self.settle(&tickets, &opened_now);
        if now.saturating_sub(self.swept) >= AGE {
            self.sweep(now);
        }
        any
    }

    /// Puts in what the tickets stood for, and tells of the files that became open.
    fn settle(&mut self, tickets: &HashMap<u64, Code>, opened: &HashSet<FileId>) {
        if tickets.is_empty() && opened.is_empty() {
            return;
        }
        for (&proc_pid, space) in &mut self.spaces {
            let mut changed = false;
            for span in space.live.iter_mut().chain(&mut space.past) {
                if let Code::Ticket(ticket) = span.code {
                    if let Some(&code) = tickets.get(&ticket) {
                        span.code = code;
                        changed = true;
                    }
                }
                if matches!(span.code, Code::File(file) if opened.contains(&file)) {
                    changed = true;
                }
            }
            if changed {
                space.generation += 1;
                self.dirty.insert(proc_pid);
            }
        }
    }

    /// The maps of a process as they were at some time after `asked`.
    fn snapshot(
        &mut self,
        proc_pid: u32,
        asked: Nanos,
        maps: io::Result<Vec<(Mmap, Opened)>>,
        opened_now: &mut HashSet<FileId>,
    ) {
        let wanted = self
            .spaces
            .get_mut(&proc_pid)
            .and_then(|space| space.reading.take());
        // Nobody waits for it any more: another program runs there by now.
        let Some(meanwhile) = wanted else {
            return;
        };
        let maps = match maps {
            Ok(maps) => maps,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                // Its end may have been missed.
                if let Some(space) = self.spaces.get_mut(&proc_pid) {
                    space.ended.get_or_insert(asked);
                }
                return;
            }
            Err(_) => {
                self.unread += 1;
                return;
            }
        };
        let mut new = Vec::with_capacity(maps.len());
        for (mmap, opened) in &maps {
            let code = if mmap.path == VDSO {
                self.vdso(mmap)
            } else if has_file(mmap) {
                let (file, open) = self.files.opened(&mmap.file, &mmap.path, opened);
                if open {
                    opened_now.insert(file);
                }
                code_of_opened(mmap, file, opened)
            } else {
                Code::Anonymous
            };
            new.push(Span::of(mmap, code, Nanos::ZERO));
        }
        let Some(space) = self.spaces.get_mut(&proc_pid) else {
            return;
        };
        if asked < space.began {
            // Asked for before the program was replaced.
            self.read(proc_pid);
            return;
        }
        space.replace(new, asked);
        self.dirty.insert(proc_pid);
        for event in meanwhile.iter().filter(|event| event.ts >= asked) {
            if let What::Mmap(mmap) = &event.what {
                self.mmap(event.ts, proc_pid, mmap);
            }
        }
    }

    /// Where `pc` was in a process at `ts`.
    pub fn find(&mut self, pid: Pid, pc: u64, ts: Nanos) -> Place {
        let Some(&proc_pid) = self.proc_pids.get(&pid) else {
            return Place::NotYet;
        };
        let Some(space) = self.spaces.get(&proc_pid) else {
            return Place::Unmapped;
        };
        if let Some(&span) = space.at(pc, ts) {
            return self.place(&span, pc);
        }
        if space.reading.is_some() {
            return Place::NotYet;
        }
        let old = !self.options.events && ts > space.checked && ts - space.checked > AGE;
        if old && space.ended.is_none() {
            self.read(proc_pid);
            return Place::NotYet;
        }
        Place::Unmapped
    }

    /// Where `pc` was in the mappings of that generation, as the BPF programs may have had them:
    /// other than [`find`](Self::find) when they changed before the BPF programs were told.
    pub fn find_in(&self, pid: Pid, pc: u64, generation: u32) -> Place {
        self.space(pid)
            .and_then(|space| space.at_generation(pc, generation))
            .map_or(Place::Unmapped, |span| self.place(span, pc))
    }

    fn place(&self, span: &Span, pc: u64) -> Place {
        match span.code {
            Code::Anonymous => Place::Anonymous,
            Code::Ticket(_) => Place::NotYet,
            Code::File(file) => {
                let len = span.end - span.start;
                let bias = self.files.bias(file, span.start, len, span.offset);
                let address = match bias {
                    Some(bias) => pc.wrapping_sub(bias),
                    None if self.files.is_awaited(file) => return Place::NotYet,
                    None => (pc - span.start).wrapping_add(span.offset),
                };
                Place::File(Mapped { file, address })
            }
        }
    }

    fn space(&self, pid: Pid) -> Option<&Space> {
        self.spaces.get(self.proc_pids.get(&pid)?)
    }

    /// Changes whenever [`mappings`](Self::mappings) do; 0 for a process that is not followed.
    pub fn generation(&self, pid: Pid) -> u32 {
        self.space(pid).map_or(0, |space| space.generation)
    }

    /// What is mapped now, by address. `None` while that is not known: the process is not
    /// followed, or its maps have not been read.
    pub fn mappings(&self, pid: Pid) -> Option<Vec<Mapping>> {
        let space = self.space(pid).filter(|space| space.whole)?;
        let mapping = |span: &Span| {
            let (file, bias) = match span.code {
                Code::File(file) => {
                    let len = span.end - span.start;
                    let bias = self.files.bias(file, span.start, len, span.offset);
                    (bias.map(|_| file), bias.unwrap_or(0))
                }
                Code::Ticket(_) | Code::Anonymous => (None, 0),
            };
            Mapping {
                start: span.start,
                end: span.end,
                bias,
                file,
            }
        };
        Some(space.live.iter().map(mapping).collect())
    }

    /// Processes whose mappings changed since the last call.
    pub fn changed(&mut self) -> Vec<Pid> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty
            .into_iter()
            .filter_map(|proc_pid| self.spaces.get(&proc_pid)?.pid)
            .collect()
    }

    /// Events were lost ([`super::Counts`]): what is mapped is read again, of all processes.
    pub fn distrust(&mut self) {
        let all: Vec<u32> = self.spaces.keys().copied().collect();
        for proc_pid in all {
            self.read(proc_pid);
        }
    }

    /// Another program runs in this process, when there are no events to say so.
    pub fn note_exec(&mut self, pid: Pid, ts: Nanos) {
        let proc_pid = self.proc_pids.get(&pid).copied();
        if let (false, Some(proc_pid)) = (self.options.events, proc_pid) {
            if let Some(space) = self.spaces.get_mut(&proc_pid) {
                space.end_all(ts);
                space.began = ts;
                space.whole = false;
                space.reading = None;
                self.dirty.insert(proc_pid);
                self.read(proc_pid);
            }
        }
    }

    /// This process is over, when there are no events to say so.
    pub fn note_exit(&mut self, pid: Pid, ts: Nanos) {
        let proc_pid = self.proc_pids.get(&pid);
        if let (false, Some(proc_pid)) = (self.options.events, proc_pid) {
            if let Some(space) = self.spaces.get_mut(proc_pid) {
                space.ended = Some(ts);
            }
        }
    }

    /// Requests to read maps or open files that have no answer yet.
    pub fn waiting(&self) -> usize {
        self.reader.waiting()
    }

    /// Files that could not be opened for want of a capability.
    pub fn refused(&self) -> u64 {
        self.reader.refused()
    }

    /// Times that the maps of a process could not be read although it was there.
    pub fn unread(&self) -> u64 {
        self.unread
    }

    fn sweep(&mut self, now: Nanos) {
        self.swept = now;
        let over = |at: Nanos| now.saturating_sub(at) > GRACE;
        self.spaces.retain(|&proc_pid, space| {
            space.past.retain(|span| !over(span.until));
            match space.ended {
                Some(at) if over(at) => {
                    // The first thread may end before the others.
                    let goes_on = other_threads(proc_pid);
                    space.ended = goes_on.then_some(now);
                    goes_on
                }
                Some(_) | None => true,
            }
        });
        let spaces = &self.spaces;
        self.proc_pids
            .retain(|_, proc_pid| spaces.contains_key(proc_pid));
        self.files.close_some(self.reader.most_open);
    }
}

/// Memory that has a file only in name is code made at run time, unless there is an ELF file in it.
fn code_of_opened(mmap: &Mmap, file: FileId, opened: &Opened) -> Code {
    const NAMES: [&[u8]; 4] = [b"/memfd:", b"/dev/zero", b"/SYSV", b"/anon_hugepage"];
    let in_name_only = NAMES.iter().any(|name| mmap.path.starts_with(name));
    match opened {
        Opened::Other(_) | Opened::No if in_name_only => Code::Anonymous,
        Opened::Elf(_) | Opened::Other(_) | Opened::No => Code::File(file),
    }
}

fn other_threads(proc_pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{proc_pid}/task")).is_ok_and(|threads| threads.count() > 1)
}
