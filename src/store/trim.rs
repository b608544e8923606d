//! A part of a recording as a recording of its own.
//!
//! What a reader needs to know from before is carried over: who each thread was and what it did at that
//! moment, devices, processes, the state of shims, the launches of operations. Definitions that
//! nothing uses any more are left out.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;

use super::carry::{Before, Used};
use super::meta::{Meta, Summary};
use super::writer::Stats;
use super::{Reader, StoreError, Writer};
use crate::event::{CorrelationId, Event, Pid, SampleKind};
use crate::units::Nanos;

/// Events that can be read more than once, always in the same order.
pub(super) trait Source {
    fn for_each(
        &mut self,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError>;

    /// Those that are definitions; others may come between them.
    fn definitions(
        &mut self,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.for_each(each)
    }
}

impl Source for Reader {
    fn for_each(
        &mut self,
        each: &mut dyn FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        Reader::for_each(self, each)
    }
}

/// Copies what happened in `[from, to)` into a new recording at `path`.
pub fn trim(reader: &mut Reader, path: &Path, from: Nanos, to: Nanos) -> Result<Stats, StoreError> {
    let summary = Summary {
        end_mono_ns: to.0,
        ..reader.summary().cloned().unwrap_or_default()
    };
    let writer = Writer::create(path, &meta(reader.meta(), from))?;
    write_part(reader, Before::default(), writer, &summary, from, to)
}

/// Writes the part `[from, to)` of what `source` has, before which it was as `before` says.
pub(super) fn write_part(
    source: &mut dyn Source,
    mut before: Before,
    mut writer: Writer,
    summary: &Summary,
    from: Nanos,
    to: Nanos,
) -> Result<Stats, StoreError> {
    let mut range = Range::new(from, to);
    source.for_each(&mut |event| {
        before.event(event, from);
        range.operation(event);
        ControlFlow::Continue(())
    })?;
    let carried = before.events(from);
    let mut used = Used::default();
    carried.iter().for_each(|event| used.event(event));
    source.for_each(&mut |event| {
        if range.keeps(event) {
            used.event(event);
        }
        ControlFlow::Continue(())
    })?;
    // What is used is defined before, and the functions at a frame behind it: inwards, a step a time.
    source.definitions(&mut |event| {
        used.frames(event);
        ControlFlow::Continue(())
    })?;
    source.definitions(&mut |event| {
        used.names(event);
        ControlFlow::Continue(())
    })?;

    let mut written = Ok(());
    source.definitions(&mut |event| {
        if used.defines(event) {
            written = writer.push(event);
        }
        go_on(&written)
    })?;
    for event in &carried {
        written = written.and_then(|()| writer.push(event));
    }
    source.for_each(&mut |event| {
        if written.is_ok() && range.keeps(event) {
            written = writer.push(event);
        }
        go_on(&written)
    })?;
    written?;
    writer.finish(summary)
}

fn go_on(written: &Result<(), StoreError>) -> ControlFlow<()> {
    if written.is_ok() {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// Of the part of a recording that begins at `from`.
pub(super) fn meta(whole: &Meta, from: Nanos) -> Meta {
    let later = from.saturating_sub(whole.start());
    Meta {
        start_mono_ns: from.0,
        start_unix_ns: whole.start_unix_ns.saturating_add(later.0),
        ..whole.clone()
    }
}

/// What happened in the part.
#[derive(Debug)]
pub(super) struct Range {
    from: Nanos,
    to: Nanos,
    /// Operations inside: their launches are kept, too.
    inside: HashSet<(Pid, CorrelationId)>,
    /// Operations that start later: their launches would seem to have lost them.
    later: HashSet<(Pid, CorrelationId)>,
}

impl Range {
    pub(super) fn new(from: Nanos, to: Nanos) -> Self {
        Range {
            from,
            to,
            inside: HashSet::new(),
            later: HashSet::new(),
        }
    }

    fn operation(&mut self, event: &Event) {
        let Event::GpuOp(op) = event else {
            return;
        };
        let key = (op.pid, op.correlation);
        if self.overlaps(op.start, op.end) {
            self.inside.insert(key);
        } else if op.start >= self.to {
            self.later.insert(key);
        }
    }

    fn overlaps(&self, start: Nanos, end: Nanos) -> bool {
        start < self.to && (end > self.from || start >= self.from)
    }

    pub(super) fn keeps(&self, event: &Event) -> bool {
        let lasts =
            |start: Nanos, dur: Nanos| self.overlaps(start, Nanos(start.0.saturating_add(dur.0)));
        match event {
            Event::GpuOp(e) => self.overlaps(e.start, e.end),
            Event::ApiCall(e) => {
                let key = (e.pid, e.correlation);
                self.inside.contains(&key)
                    || (self.overlaps(e.start, e.end) && !self.later.contains(&key))
            }
            Event::Sync(e) => self.overlaps(e.start, e.end),
            Event::Overhead(e) => self.overlaps(e.start, e.end),
            Event::Wait(e) => self.overlaps(e.start, e.end),
            Event::CpuWait(e) => self.overlaps(e.start, e.end),
            Event::SysCall(e) => self.overlaps(e.start, e.end),
            Event::Migration(e) => self.overlaps(e.start, e.end),
            Event::Interrupt(e) => lasts(e.start, e.dur),
            Event::Stall(e) => lasts(e.start, e.dur),
            Event::Loss(e) => self.overlaps(e.from, e.to),
            Event::Sample(e) => match e.kind {
                SampleKind::OffCpu { since } | SampleKind::Waker { since, .. } => {
                    self.overlaps(since, e.ts)
                }
                SampleKind::Cpu { .. } | SampleKind::Launch { .. } => self.overlaps(e.ts, e.ts),
            },
            // Carried over, all of them.
            Event::Define(_) | Event::Process(_) | Event::Device(_) => false,
            Event::Task(_)
            | Event::Exit(_)
            | Event::Switch(_)
            | Event::Waking(_)
            | Event::Signal(_)
            | Event::GpuInvalid(_)
            | Event::Shim(_)
            | Event::Probes(_)
            | Event::Clock(_) => event.ts().is_some_and(|ts| self.from <= ts && ts < self.to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Api, ApiCall, ApiDomain, CallStackId, ContextId, Cpu, Define, Device, DeviceId, Exit,
        Frame, FrameId, Function, GpuOp, NameId, OpKind, Sample, StackId, StreamId, Switch,
        SwitchFlags, Task, TaskReason, TaskState, Tid,
    };

    const JOB: Pid = Pid(7);

    fn name(id: u32, text: &str) -> Event {
        Event::Define(Define::Name {
            id: NameId(id),
            text: text.to_string(),
        })
    }

    fn task(ts: u64, tid: u32, comm: u32, reason: TaskReason) -> Event {
        Event::Task(Task {
            ts: Nanos(ts),
            tid: Tid(tid),
            pid: JOB,
            ppid: Pid(1),
            comm: NameId(comm),
            start: Nanos(1),
            ns_tid: Tid(tid),
            ns_pid: JOB,
            cgroup: 1,
            prio: 120,
            reason,
            target: true,
            kthread: false,
            state: TaskState::Running,
            syscall: None,
        })
    }

    fn switch(ts: u64, prev: u32, next: u32, state: u16) -> Event {
        Event::Switch(Switch {
            ts: Nanos(ts),
            cpu: Cpu(1),
            prev: Tid(prev),
            next: Tid(next),
            state,
            syscall: (state != 0).then_some(202),
            flags: SwitchFlags::default(),
            minor_faults: 0,
            major_faults: 0,
        })
    }

    fn call(start: u64, end: u64, correlation: u32) -> Event {
        Event::ApiCall(ApiCall {
            pid: JOB,
            tid: Tid(7),
            api: Api {
                domain: ApiDomain::Runtime,
                cbid: 211,
            },
            start: Nanos(start),
            end: Nanos(end),
            correlation: CorrelationId(correlation),
            result: 0,
        })
    }

    fn kernel(start: u64, end: u64, correlation: u32) -> Event {
        Event::GpuOp(GpuOp {
            pid: JOB,
            device: DeviceId(0),
            context: ContextId(1),
            stream: StreamId(7),
            kind: OpKind::Kernel { name: NameId(3) },
            start: Nanos(start),
            end: Nanos(end),
            correlation: CorrelationId(correlation),
            graph: 0,
            node: 0,
        })
    }

    /// Events of the part of `events` from 100 to 200, and its meta.
    fn part(events: &[Event]) -> (Vec<Event>, Meta) {
        let dir = tempfile::tempdir().unwrap();
        let (whole, path) = (dir.path().join("whole"), dir.path().join("part"));
        let meta = Meta {
            start_mono_ns: 10,
            start_unix_ns: 1_000_010,
            ..Meta::default()
        };
        let mut writer = Writer::create(&whole, &meta).unwrap();
        events.iter().for_each(|e| writer.push(e).unwrap());
        writer.finish(&Summary::default()).unwrap();
        let mut reader = Reader::open(&whole).unwrap();
        trim(&mut reader, &path, Nanos(100), Nanos(200)).unwrap();
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.summary().unwrap().end_mono_ns, 200);
        let mut events = Vec::new();
        reader
            .for_each(|e| {
                events.push(e.clone());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(reader.coverage().is_whole());
        (events, reader.meta().clone())
    }

    #[test]
    fn a_thread_begins_as_who_it_last_was_and_in_what_it_did() {
        let (events, meta) = part(&[
            name(1, "old"),
            name(2, "new"),
            task(10, 7, 1, TaskReason::Seen),
            task(20, 7, 2, TaskReason::Rename),
            switch(50, 7, 0, 1),
            switch(150, 0, 7, 0),
            switch(250, 7, 0, 1),
        ]);
        let Event::Task(mut at_start) = task(100, 7, 2, TaskReason::Seen) else {
            unreachable!()
        };
        at_start.state = TaskState::Off(1);
        at_start.syscall = Some(202);
        assert_eq!(
            events,
            [name(2, "new"), Event::Task(at_start), switch(150, 0, 7, 0)]
        );
        assert_eq!((meta.start_mono_ns, meta.start_unix_ns), (100, 1_000_100));
    }

    #[test]
    fn what_was_known_of_a_process_goes_with_its_last_thread() {
        let exit = |ts, tid| {
            Event::Exit(Exit {
                ts: Nanos(ts),
                tid: Tid(tid),
                pid: JOB,
                code: 0,
            })
        };
        let device = Device {
            ts: Nanos(30),
            pid: JOB,
            id: DeviceId(0),
            name: NameId(1),
            uuid: NameId(1),
        };
        let all = |ends: u64| {
            vec![
                name(1, "job"),
                task(10, 7, 1, TaskReason::Seen),
                task(20, 8, 1, TaskReason::Seen),
                Event::Device(device.clone()),
                exit(40, 7),
                exit(ends, 8),
                // The last switch of a thread is after its end.
                switch(ends + 1, 8, 0, 0x80),
            ]
        };
        assert_eq!(part(&all(50)).0, []);
        let Event::Task(other) = task(100, 8, 1, TaskReason::Seen) else {
            unreachable!()
        };
        let at_start = Event::Device(Device {
            ts: Nanos(100),
            ..device.clone()
        });
        assert_eq!(
            part(&all(150)).0,
            [
                name(1, "job"),
                at_start,
                Event::Task(other),
                exit(150, 8),
                switch(151, 8, 0, 0x80)
            ]
        );
    }

    #[test]
    fn launches_and_operations_stay_together() {
        let (events, _) = part(&[
            name(3, "k"),
            name(4, "nobody uses this"),
            call(80, 85, 1),
            kernel(90, 95, 1),
            call(91, 95, 2),
            kernel(96, 120, 2),
            call(190, 195, 3),
            kernel(201, 210, 3),
            call(196, 197, 4),
        ]);
        assert_eq!(
            events,
            [
                name(3, "k"),
                call(91, 95, 2),
                kernel(96, 120, 2),
                call(196, 197, 4)
            ]
        );
    }

    fn call_stack(id: u32, frames: &[u32]) -> Event {
        Event::Define(Define::CallStack {
            id: CallStackId(id),
            frames: frames.iter().map(|&f| FrameId(f)).collect(),
            cut: None,
        })
    }

    fn python(id: u32, function: u32, file: u32) -> Event {
        Event::Define(Define::Frame {
            id: FrameId(id),
            frame: Frame::Python {
                function: NameId(function),
                file: NameId(file),
                line: 1,
            },
        })
    }

    fn native(id: u32, module: u32) -> Event {
        Event::Define(Define::Frame {
            id: FrameId(id),
            frame: Frame::Native {
                module: NameId(module),
                build_id: NameId(0),
                address: 16,
            },
        })
    }

    fn functions(frame: u32, name: u32) -> Event {
        Event::Define(Define::Functions {
            frame: FrameId(frame),
            functions: vec![Function {
                name: NameId(name),
                file: NameId(0),
                line: 0,
            }],
        })
    }

    fn sample(ts: u64, kind: SampleKind, kernel: u32, user: u32) -> Event {
        Event::Sample(Sample {
            ts: Nanos(ts),
            tid: Tid(7),
            kind,
            kernel: StackId(kernel),
            user: CallStackId(user),
            gil: None,
            collects: false,
        })
    }

    #[test]
    fn samples_keep_what_their_stacks_are_made_of_and_nothing_else() {
        let ran = SampleKind::Cpu { period: Nanos(10) };
        let slept = |since| SampleKind::OffCpu {
            since: Nanos(since),
        };
        let texts = ["f", "a.py", "lib.so", "do_wait", "leaf", "gone", "late"];
        let mut all: Vec<Event> = (1..).zip(texts).map(|(id, text)| name(id, text)).collect();
        let stack = Event::Define(Define::Stack {
            id: StackId(1),
            frames: vec![NameId(4)],
        });
        all.extend([
            python(1, 1, 2),
            native(2, 3),
            python(3, 6, 6),
            call_stack(1, &[2, 1]),
            call_stack(2, &[3, 1]),
            stack.clone(),
            sample(90, ran, 0, 2),
            sample(95, slept(80), 0, 2),
            sample(150, ran, 0, 1),
            sample(210, slept(190), 1, 1),
            sample(220, slept(205), 0, 2),
            functions(2, 5),
            functions(3, 7),
        ]);
        let (events, _) = part(&all);
        assert_eq!(
            events,
            [
                name(1, "f"),
                name(2, "a.py"),
                name(3, "lib.so"),
                name(4, "do_wait"),
                name(5, "leaf"),
                python(1, 1, 2),
                native(2, 3),
                call_stack(1, &[2, 1]),
                stack,
                functions(2, 5),
                sample(150, ran, 0, 1),
                sample(210, slept(190), 1, 1),
            ]
        );
    }
}
