//! User stacks: gives the BPF programs what they walk by, and turns what they send into frames.
//!
//! ```text
//!   a target appears ──► its maps (/proc, then mmap events) ──► struct gdiag_maps
//!                             └─► its files ──► unwind tables, in a thread ──► rows
//!   a sample ──► addresses ──► files and addresses in them ──► frames, Python merged in
//!                                                    └─► names, in another thread
//! ```
#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::collect::bpf::Bpf;
use crate::collect::clock;
use crate::collect::maps::{self, AddressSpaces, FileId, MmapEvents, Place};
use crate::collect::stacks::{self, Costs, Stacks};
use crate::collect::tables::{Made, TableMaker};
use crate::decode::python;
use crate::decode::stacks::{RawSample, UserAddress};
use crate::event::{
    CallStackId, Cut, Define, Event, Frame, FrameId, Function, Pid, Task, TaskReason,
};
use crate::intern::{CallStacks, Frames, Names};
use crate::pipeline::pythons::Pythons;
use crate::symbolize::user::{Answer, UserSymbols};
use crate::units::Nanos;

/// Names may take this long after the end of a recording; then addresses stay.
const NAMES_PATIENCE: Duration = Duration::from_secs(10);

/// Of the time of one CPU, what the stacks of launches may take: beyond it fewer are taken.
const LAUNCH_BUDGET: f64 = 0.02;

/// Tables that are ready are handed to the kernel for so long at a time.
const TABLES_WITHIN: Nanos = Nanos::from_millis(20);

/// But at least one of so many.
const FEWEST_LAUNCHES: u32 = 1 << 16;

/// Stacks, when they are taken.
#[derive(Debug, Default)]
pub(super) struct UserStacks {
    on: Option<On>,
}

#[derive(Debug)]
struct On {
    stacks: Stacks,
    plan: stacks::Plan,
    /// The tables of all that a target has mapped are made before a stack needs them; else those of a
    /// process when its first stack is wanted: of all the processes of a machine, most never run.
    eager: bool,
    /// Processes whose tables are made.
    needed: HashSet<Pid>,
    /// Of these, those whose maps the BPF programs do not have as they are now.
    untold: HashSet<Pid>,
    events: Option<MmapEvents>,
    spaces: AddressSpaces,
    proc_pids: HashMap<Pid, u32>,
    tables: TableMaker,
    /// Files of which a table was asked for.
    asked: HashSet<FileId>,
    /// Until the end.
    symbols: Option<UserSymbols>,
    frames: Frames,
    call_stacks: CallStacks,
    pythons: Pythons,
    /// Functions with a probe, in the driver with most; `None` without a driver.
    probed: Option<usize>,
    /// Why a driver has no probe.
    not_probed: Option<String>,
    /// Processes of which the BPF programs could not be told.
    without_room: HashSet<Pid>,
    /// Tables that did not fit.
    left_out: u64,
    budget: Budget,
}

impl UserStacks {
    pub(super) fn start(plan: stacks::Plan, eager: bool, bpf: &Bpf) -> Result<UserStacks> {
        let mut stacks = Stacks::start(&plan, bpf)?;
        let events = match MmapEvents::open() {
            Ok(events) => Some(events),
            Err(e) => {
                stacks.missing.push(format!(
                    "events of new mappings ({e}): libraries loaded later are noticed late"
                ));
                None
            }
        };
        let spaces = AddressSpaces::new(maps::Options {
            everything: !eager,
            events: events.is_some(),
        })
        .context("cannot start a thread")?;
        Ok(UserStacks {
            on: Some(On {
                budget: Budget::new(plan.launch_one_in),
                stacks,
                plan,
                eager,
                needed: HashSet::new(),
                untold: HashSet::new(),
                events,
                spaces,
                proc_pids: HashMap::new(),
                tables: TableMaker::start().context("cannot start a thread")?,
                asked: HashSet::new(),
                symbols: Some(UserSymbols::start().context("cannot start a thread")?),
                frames: Frames::default(),
                call_stacks: CallStacks::default(),
                pythons: Pythons::default(),
                probed: None,
                not_probed: None,
                without_room: HashSet::new(),
                left_out: 0,
            }),
        })
    }

    /// What a CPU sample stands for.
    pub(super) fn period(&self) -> Nanos {
        let frequency = self.on.as_ref().map_or(0, |on| on.plan.frequency);
        Nanos(1_000_000_000 / u64::from(frequency.max(1)))
    }

    /// Maps or tables are being read that stacks need.
    pub(super) fn is_preparing(&self) -> bool {
        self.on
            .as_ref()
            .is_some_and(|on| on.tables.pending > 0 || on.spaces.waiting() > 0)
    }

    pub(super) fn missing(&self) -> &[String] {
        self.on.as_ref().map_or(&[], |on| &on.stacks.missing)
    }

    /// The first thread of a process appeared or changed, or any of its threads is followed from now on.
    pub(super) fn task(&mut self, task: &Task, proc_pid: u32) {
        let followed = task.reason == TaskReason::Followed;
        let Some(on) = &mut self.on else { return };
        if !task.target && !followed && !on.needed.contains(&task.pid) {
            return;
        }
        on.proc_pids.insert(task.pid, proc_pid);
        match task.reason {
            TaskReason::Seen | TaskReason::New { .. } => {
                if on.eager {
                    on.need(task.pid, proc_pid);
                }
            }
            TaskReason::Followed => {
                if !on.needed.contains(&task.pid) {
                    on.need(task.pid, proc_pid);
                }
            }
            TaskReason::Exec => on.spaces.note_exec(task.pid, task.ts),
            TaskReason::Rename => {}
        }
    }

    pub(super) fn exit(&mut self, pid: Pid, ts: Nanos) {
        if let Some(on) = &mut self.on {
            on.spaces.note_exit(pid, ts);
            on.proc_pids.remove(&pid);
            on.needed.remove(&pid);
            on.untold.remove(&pid);
            on.pythons.forget(pid);
            on.stacks.forget(pid);
        }
    }

    /// Takes note of everything that is mapped by now. Before samples are looked at.
    pub(super) fn update(&mut self) -> Result<()> {
        match &mut self.on {
            Some(on) => on.update(),
            None => Ok(()),
        }
    }

    /// Hands out the names that were found since.
    pub(super) fn names(&mut self, names: &mut Names, sink: &mut dyn FnMut(Event)) {
        if let Some(on) = &mut self.on {
            let found = on.symbols.as_mut().map(UserSymbols::answers);
            define(found.unwrap_or_default(), names, sink);
        }
    }

    /// Takes no more stacks, and waits for the names of those that were taken. What is worth telling
    /// goes to `warn`.
    pub(super) fn finish(
        &mut self,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
        warn: &mut dyn FnMut(String),
    ) {
        let Some(on) = &mut self.on else { return };
        let Some(symbols) = on.symbols.take() else {
            return;
        };
        let (found, without) = symbols.finish(NAMES_PATIENCE);
        define(found, names, sink);
        if without > 0 {
            warn(format!(
                "{without} places in stacks have no name: looking them up took too long"
            ));
        }
        if on.probed == Some(0) {
            warn("the driver has none of the known launch functions: no stacks of launches".into());
        }
        if let Some(why) = on.not_probed.take() {
            warn(format!("no stacks of launches through {why}"));
        }
        if !on.without_room.is_empty() {
            warn(format!(
                "the kernel had no room for the mappings of {} processes: their stacks are cut",
                on.without_room.len()
            ));
        }
        if on.left_out > 0 {
            warn(format!(
                "the unwind tables of {} files had no room: stacks through them are cut",
                on.left_out
            ));
        }
        let refused = on.spaces.refused();
        if refused > 0 {
            warn(format!(
                "{refused} mapped files could not be opened, so their functions have no names: that takes CAP_CHECKPOINT_RESTORE"
            ));
        }
        let lost = on.stacks.costs().map_or(0, |costs| costs.lost);
        if lost > 0 {
            warn(format!("{lost} stacks were lost"));
        }
    }

    /// See [`Session::forget_ids`](super::Session::forget_ids).
    pub(super) fn forget_ids(&mut self) {
        if let Some(on) = &mut self.on {
            on.frames.forget();
            on.call_stacks.forget();
        }
    }

    pub(super) fn stop(&mut self) {
        if let Some(on) = &mut self.on {
            on.stacks.stop();
        }
    }

    pub(super) fn costs(&self) -> Option<Costs> {
        self.on.as_ref()?.stacks.costs().ok()
    }

    pub(super) fn stack(
        &mut self,
        raw: &RawSample,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> CallStackId {
        match &mut self.on {
            Some(on) => on.stack(raw, names, sink),
            None => CallStackId(0),
        }
    }

    pub(super) fn py_code(&mut self, record: &stacks::types::gdiag_pycode) {
        if let Some(on) = &mut self.on {
            on.pythons.code(record);
        }
    }
}

impl On {
    /// Stacks of this process are wanted from now on.
    fn need(&mut self, pid: Pid, proc_pid: u32) {
        self.needed.insert(pid);
        self.untold.insert(pid);
        self.spaces.add(pid, proc_pid);
    }

    fn update(&mut self) -> Result<()> {
        let now = clock::monotonic();
        if let Some(events) = &mut self.events {
            let spaces = &mut self.spaces;
            if !events.read(|event| spaces.apply(&event)) {
                self.spaces.distrust();
            }
        }
        for pid in self.stacks.wanted() {
            if let Some(&proc_pid) = self.proc_pids.get(&pid) {
                self.need(pid, proc_pid);
            }
        }
        self.spaces.poll(now);
        let changed = self.spaces.changed().into_iter();
        self.untold
            .extend(changed.filter(|pid| self.needed.contains(pid)));
        for pid in std::mem::take(&mut self.untold) {
            let Some(mappings) = self.spaces.mappings(pid) else {
                self.untold.insert(pid);
                continue;
            };
            for file in mappings.iter().filter_map(|m| m.file) {
                if self.asked.contains(&file) {
                    continue;
                }
                if let Some(elf) = self.spaces.files().elf(file) {
                    self.asked.insert(file);
                    if self.plan.launch_one_in > 0
                        && maps::is_driver(self.spaces.files().path(file).as_bytes())
                    {
                        match self.stacks.probe_launches(file, &elf) {
                            Ok(found) => self.probed = self.probed.max(Some(found)),
                            Err(e) => {
                                let path = self.spaces.files().path(file);
                                self.not_probed = Some(format!("{path}: {e:#}"));
                            }
                        }
                    }
                    self.tables.ask(file, elf, self.spaces.files().path(file));
                }
            }
            let generation = self.spaces.generation(pid);
            let told = self.stacks.set_maps(pid, generation, &mappings);
            let told = told.and_then(|()| self.pythons.mapped(pid, &mappings, &mut self.stacks));
            if told.is_err() {
                self.without_room.insert(pid);
            }
        }
        self.without_room.extend(self.stacks.commit());
        // The kernel may wait for long with each: shims and events must not wait for all of them.
        let until = clock::monotonic() + TABLES_WITHIN;
        while clock::monotonic() < until {
            let Some(made) = self.tables.take() else {
                break;
            };
            match made {
                Made::Table { file, table, rules } => {
                    self.stacks.add_rules(&rules);
                    if let Ok(table) = table {
                        if !matches!(self.stacks.add_table(file, &table), Ok(Ok(()))) {
                            self.left_out += 1;
                        }
                    }
                }
                Made::Interpreter { found: None, .. } => {}
                Made::Interpreter {
                    file,
                    found: Some(interpreter),
                } => {
                    self.pythons.add(file, *interpreter);
                    for &pid in &self.needed {
                        let Some(mappings) = self.spaces.mappings(pid) else {
                            continue;
                        };
                        let told = self.pythons.mapped(pid, &mappings, &mut self.stacks);
                        if told.is_err() {
                            self.without_room.insert(pid);
                        }
                    }
                }
            }
        }
        if let Some(one_in) = self.budget.next(now, self.stacks.costs()?) {
            self.stacks.set_launch_one_in(one_in);
        }
        Ok(())
    }

    fn stack(
        &mut self,
        raw: &RawSample,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> CallStackId {
        let (places, cut) = believed(&mut self.spaces, raw);
        let merged = self.pythons.merge(raw, &places, cut.is_none());
        let frames = merged
            .iter()
            .map(|place| match *place {
                python::Place::Native(i) => {
                    let (place, address) = places[i];
                    self.native(place, address.inside(), names, sink)
                }
                python::Place::Python(i) => {
                    let frame = self.pythons.frame(raw.pid, raw.python[i], names, sink);
                    self.frames.frame(frame, sink).0
                }
            })
            .collect();
        self.call_stacks.stack(frames, cut, sink)
    }

    fn native(
        &mut self,
        place: Place,
        pc: u64,
        names: &mut Names,
        sink: &mut dyn FnMut(Event),
    ) -> FrameId {
        let Place::File(mapped) = place else {
            let frame = Frame::Anonymous { address: pc };
            return self.frames.frame(frame, sink).0;
        };
        let files = self.spaces.files();
        let frame = Frame::Native {
            module: names.name(files.path(mapped.file), sink),
            build_id: names.name(&files.build_id(mapped.file).to_string(), sink),
            address: mapped.address,
        };
        let (id, new) = self.frames.frame(frame, sink);
        if new {
            if let (Some(elf), Some(symbols)) = (files.elf(mapped.file), &mut self.symbols) {
                symbols.ask(id, mapped.file, elf, mapped.address);
            }
        }
        id
    }
}

/// As much of the native stack as the walk can have found, and why it ends there. The walk went by
/// the mappings that the BPF programs were told of last; by then there may have been others.
fn believed<'a>(
    spaces: &mut AddressSpaces,
    raw: &'a RawSample,
) -> (Vec<(Place, &'a UserAddress)>, Option<Cut>) {
    let mut places = Vec::with_capacity(raw.user.len());
    for address in &raw.user {
        let pc = address.inside();
        match spaces.find(raw.pid, pc, raw.ts) {
            Place::NotYet => return (places, Some(Cut::NotYet)),
            Place::Unmapped => return (places, Some(Cut::Unmapped)),
            place @ (Place::File(_) | Place::Anonymous) => {
                places.push((place, address));
                // Its caller was found by the table of another file.
                let walked = raw.generation > 0;
                if walked && spaces.find_in(raw.pid, pc, raw.generation) != place {
                    return (places, Some(Cut::NotYet));
                }
            }
        }
    }
    (places, raw.cut)
}

/// Keeps what launches cost within bounds.
#[derive(Debug)]
struct Budget {
    /// What was asked for; 0 when no launches are.
    asked: u32,
    now: u32,
    last: Option<(Nanos, Costs)>,
}

impl Budget {
    fn new(asked: u32) -> Budget {
        Budget {
            asked,
            now: asked,
            last: None,
        }
    }

    /// A new rate, when it is to change.
    fn next(&mut self, now: Nanos, costs: Costs) -> Option<u32> {
        let (then, before) = self.last.replace((now, costs))?;
        if self.asked == 0 {
            return None;
        }
        let spent = costs.launch_time.saturating_sub(before.launch_time);
        let share = spent.share_of(now.saturating_sub(then));
        let next = if share > LAUNCH_BUDGET {
            self.now
                .saturating_mul(2)
                .min(FEWEST_LAUNCHES.max(self.asked))
        } else if share < LAUNCH_BUDGET / 4.0 {
            (self.now / 2).max(self.asked)
        } else {
            self.now
        };
        let changed = next != self.now;
        self.now = next;
        changed.then_some(next)
    }
}

/// Hands out what was found.
fn define(found: Vec<Answer>, names: &mut Names, sink: &mut dyn FnMut(Event)) {
    for (frame, functions) in found {
        if functions.is_empty() {
            continue;
        }
        let functions = functions
            .into_iter()
            .map(|f| Function {
                name: names.name(&f.name, sink),
                file: names.name(&f.file, sink),
                line: f.line,
            })
            .collect();
        sink(Event::Define(Define::Functions { frame, functions }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::elf::BuildId;
    use crate::collect::maps::{FileHint, MapEvent, Mmap, What};
    use crate::event::{SampleKind, Tid};

    const PID: Pid = Pid(u32::MAX - 1);

    fn map(spaces: &mut AddressSpaces, ts: u64, start: u64, file: u8) {
        let mmap = Mmap {
            start,
            end: start + 0x1000,
            offset: 0,
            file: FileHint::BuildId(BuildId::new(&[file; 20])),
            path: format!("/there is no file {file}").into_bytes(),
        };
        event(spaces, ts, What::Mmap(mmap));
    }

    fn event(spaces: &mut AddressSpaces, ts: u64, what: What) {
        spaces.apply(&MapEvent {
            ts: Nanos(ts),
            proc_pid: PID.0,
            what,
        });
    }

    #[test]
    fn what_was_found_by_the_table_of_a_file_that_was_gone_is_left_out() {
        let mut spaces = AddressSpaces::new(maps::Options {
            everything: false,
            events: true,
        })
        .unwrap();
        spaces.add(PID, PID.0);
        event(&mut spaces, 1, What::Exec);
        map(&mut spaces, 2, 0x1000, 1);
        map(&mut spaces, 2, 0x5000, 2);
        let told = spaces.generation(PID);
        map(&mut spaces, 10, 0x5000, 3);
        while spaces.waiting() > 0 {
            spaces.poll(Nanos(11));
            std::thread::yield_now();
        }
        let at = |pc| UserAddress { pc, returns: false };
        let mut raw = RawSample {
            ts: Nanos(20),
            tid: Tid(PID.0),
            pid: PID,
            kind: SampleKind::Cpu {
                period: Nanos::ZERO,
            },
            generation: told,
            kernel: Vec::new(),
            user: vec![at(0x1800), at(0x5800), at(0x1900)],
            cut: None,
            python: Vec::new(),
            python_whole: false,
            gil_holder: None,
            collects: false,
        };
        let (places, cut) = believed(&mut spaces, &raw);
        assert_eq!((places.len(), cut), (2, Some(Cut::NotYet)));
        // Before the change, and once it was told.
        raw.ts = Nanos(9);
        let (places, cut) = believed(&mut spaces, &raw);
        assert_eq!((places.len(), cut), (3, None));
        raw.ts = Nanos(20);
        raw.generation = spaces.generation(PID);
        let (places, cut) = believed(&mut spaces, &raw);
        assert_eq!((places.len(), cut), (3, None));
    }

    /// The rates of a second of launches, of which each tenth of it took so many us.
    fn rates(asked: u32, spent_us: &[u64]) -> Vec<u32> {
        let mut budget = Budget::new(asked);
        let mut costs = Costs::default();
        let mut now = Nanos::from_secs(1);
        budget.next(now, costs);
        let mut rate = asked;
        let mut rates = Vec::new();
        for &us in spent_us {
            now += Nanos::from_millis(100);
            costs.launch_time += Nanos::from_micros(us);
            // What other stacks cost is no reason to take fewer of launches.
            costs.time += Nanos::from_millis(50);
            rate = budget.next(now, costs).unwrap_or(rate);
            rates.push(rate);
        }
        rates
    }

    #[test]
    fn launches_beyond_the_budget_are_taken_less_often_and_as_asked_again_later() {
        assert_eq!(
            rates(100, &[2_500, 2_500, 1_500, 100, 100, 100]),
            [200, 400, 400, 200, 100, 100]
        );
        assert_eq!(rates(0, &[9_000, 9_000]), [0, 0]);
        assert_eq!(rates(1 << 15, &[9_000; 4])[3], FEWEST_LAUNCHES);
    }
}
