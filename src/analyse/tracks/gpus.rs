//! What each device did, stream by stream, its gaps, and under them what the report says they waited for.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::io;

use crate::analyse::describe::direction;
use crate::analyse::gaps;
use crate::analyse::report::{self, Quality, ThreadRef, Waker};
use crate::analyse::tracks::lanes::{Row, Tracks};
use crate::analyse::tracks::who::{named, Cast};
use crate::analyse::tracks::{text, uint, Arg, Flow, Parent, Slice, Value};
use crate::analyse::what::overhead_text;
use crate::demangle;
use crate::event::{MemoryKind, MigrationKind, NameId, OpKind, Pid, Tid};
use crate::model::fxhash::FxHashMap;
use crate::model::gpu::Gpu;
use crate::model::ops::{CallIdx, Op, StreamIdx};
use crate::units::Nanos;

const GAPS_RANK: u32 = 0;
const CAUSES_RANK: u32 = 1;
const MIGRATIONS_RANK: u32 = 2;
const STREAMS_RANK: u32 = 3;

/// What the devices leave for the threads.
pub(super) struct Shown {
    pub(super) quality: Quality,
    pub(super) linked: Linked,
}

/// Calls to which an arrow leads from an operation that is shown. One bit for each call.
#[derive(Debug, Default)]
pub(super) struct Linked(Vec<u64>);

impl Linked {
    fn place(call: CallIdx) -> (usize, u64) {
        (call.0 as usize / 64, 1 << (call.0 % 64))
    }

    fn add(&mut self, call: CallIdx) {
        let (word, bit) = Linked::place(call);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    pub(super) fn has(&self, call: CallIdx) -> bool {
        let (word, bit) = Linked::place(call);
        self.0.get(word).is_some_and(|w| w & bit != 0)
    }
}

/// Flows of launches are numbered like their calls.
pub(super) fn flow_of(call: CallIdx) -> u64 {
    u64::from(call.0) + 1
}

pub(super) fn show(cast: &Cast<'_>, min_gap: Nanos, tracks: &mut Tracks<'_>) -> io::Result<Shown> {
    let t = cast.t;
    let mut linked = Linked::default();
    let mut groups = Vec::new();
    let mut names: FxHashMap<NameId, String> = FxHashMap::default();
    for (index, gpu) in t.gpu().devices().iter().enumerate() {
        if gpu.ops.is_empty() {
            groups.push(None);
            continue;
        }
        let name = t.name(gpu.name);
        let parent = tracks.group(format!("GPU {index} {name}").trim_end())?;
        groups.push(Some(parent));
        show_ops(cast, gpu, parent, &mut names, &mut linked, tracks)?;
        show_migrations(cast, gpu, parent, tracks)?;
        tracks.end()?;
    }
    let mut rows: Vec<Option<GapRows>> = groups.into_iter().map(|g| g.map(GapRows::new)).collect();
    let mut failed = Ok(());
    let quality = gaps(t, min_gap, |index, gap| {
        if let Some(Some(rows)) = rows.get_mut(index as usize).filter(|_| failed.is_ok()) {
            failed = rows.show(cast, &gap, tracks);
        }
    });
    failed?;
    tracks.end()?;
    Ok(Shown { quality, linked })
}

fn show_ops<'t>(
    cast: &Cast<'t>,
    gpu: &Gpu,
    parent: Parent,
    names: &mut FxHashMap<NameId, String>,
    linked: &mut Linked,
    tracks: &mut Tracks<'_>,
) -> io::Result<()> {
    let t = cast.t;
    let mut rows: FxHashMap<StreamIdx, Row<'t>> = FxHashMap::default();
    let mut rank = STREAMS_RANK;
    for op in &gpu.ops {
        let stream = t.gpu().stream_of(op);
        let Some((start, end)) = cast.window.clip(op.start, op.end) else {
            continue;
        };
        if !cast.wants(stream.pid) {
            continue;
        }
        let row = rows.entry(op.stream).or_insert_with(|| {
            rank += 1;
            let comm = named(t, Tid(stream.pid.0), op.start).comm;
            let name = format!(
                "{comm} (pid {}) context {} stream {}",
                stream.pid, stream.context, stream.stream
            );
            Row::flat(parent, name, rank)
        });
        let launch = launch_of(cast, op);
        let slice = Slice {
            start,
            end,
            name: op_name(t.name(kernel(op)), op, names),
            category: category(op),
            args: op_args(op),
            flow: launch.map(|call| Flow::To(flow_of(call))),
        };
        if row.slice(tracks, &slice)? {
            if let Some(call) = launch {
                linked.add(call);
            }
        }
    }
    Ok(())
}

/// The call that an arrow comes from: it is shown, and before the operation.
fn launch_of(cast: &Cast<'_>, op: &Op) -> Option<CallIdx> {
    let index = op.call().filter(|_| op.is_first_of_call())?;
    let call = cast.t.gpu().call_at(index);
    let shown = cast.window.has(call.start)
        && call.start < op.start
        && cast.window.has(op.start)
        && !call.is_duplicate()
        && cast.wants(cast.owner(call.thread, call.start).pid);
    shown.then_some(index)
}

fn kernel(op: &Op) -> NameId {
    match op.kind() {
        OpKind::Kernel { name } => name,
        OpKind::Memcpy { .. } | OpKind::Memset { .. } | OpKind::Graph => NameId(0),
    }
}

/// Names are demangled once each, not once for each operation.
fn op_name<'n>(mangled: &str, op: &Op, names: &'n mut FxHashMap<NameId, String>) -> Cow<'n, str> {
    match op.kind() {
        OpKind::Kernel { name } => {
            let short = || match demangle::short(mangled) {
                name if name.is_empty() => "kernel".to_string(),
                name => name.into_owned(),
            };
            Cow::Borrowed(names.entry(name).or_insert_with(short))
        }
        OpKind::Memcpy { kind, .. } => match direction(kind) {
            "copy" => Cow::Borrowed("memcpy"),
            way => Cow::Owned(format!("memcpy {way}")),
        },
        OpKind::Memset { .. } => Cow::Borrowed("memset"),
        OpKind::Graph => Cow::Borrowed("graph"),
    }
}

fn category(op: &Op) -> &'static str {
    if op.outlasts_followers() {
        // It counts for nothing in the report.
        return "doubtful";
    }
    match op.kind() {
        OpKind::Kernel { .. } => "kernel",
        OpKind::Memcpy { .. } => "memcpy",
        OpKind::Memset { .. } => "memset",
        OpKind::Graph => "graph",
    }
}

fn op_args(op: &Op) -> Vec<Arg<'static>> {
    let mut args = vec![("correlation", uint(op.correlation.0.into()))];
    match op.kind() {
        OpKind::Kernel { .. } | OpKind::Graph => {}
        OpKind::Memcpy {
            src, dst, bytes, ..
        } => {
            args.push(("bytes", uint(bytes)));
            args.push(("from", text(memory(src))));
            args.push(("to", text(memory(dst))));
        }
        OpKind::Memset { bytes } => args.push(("bytes", uint(bytes))),
    }
    if op.is_from_graph() {
        args.push(("of_graph", Value::Bool(true)));
    }
    if op.starts_before_launch() {
        args.push(("starts_before_launch", Value::Bool(true)));
    }
    if op.outlasts_followers() {
        args.push(("outlasts_followers", Value::Bool(true)));
    }
    args
}

fn memory(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Unknown => "unknown",
        MemoryKind::Pageable => "pageable",
        MemoryKind::Pinned => "pinned",
        MemoryKind::Device => "device",
        MemoryKind::Array => "array",
        MemoryKind::Managed => "managed",
    }
}

fn show_migrations(
    cast: &Cast<'_>,
    gpu: &Gpu,
    parent: Parent,
    tracks: &mut Tracks<'_>,
) -> io::Result<()> {
    let mut row = Row::flat(parent, "managed memory", MIGRATIONS_RANK);
    for m in cast.t.gpu().migrations() {
        if !cast.wants(m.pid) || !gpu.users.contains(&(m.pid, m.device)) {
            continue;
        }
        let Some((start, end)) = cast.window.clip(m.start, m.end) else {
            continue;
        };
        let mut args = vec![("pid", uint(m.pid.0.into()))];
        let name = match m.kind {
            MigrationKind::ToDevice => "pages to the device",
            MigrationKind::ToHost => "pages to the host",
            MigrationKind::DeviceFaults => "page faults of the device",
        };
        match m.kind {
            MigrationKind::ToDevice | MigrationKind::ToHost => args.push(("bytes", uint(m.bytes))),
            MigrationKind::DeviceFaults => {}
        }
        row.slice(
            tracks,
            &Slice {
                start,
                end,
                name: name.into(),
                category: "migration",
                args,
                flow: None,
            },
        )?;
    }
    Ok(())
}

/// Time that CUPTI, the driver or its compiler took for itself, process by process.
pub(super) fn show_overheads(cast: &Cast<'_>, tracks: &mut Tracks<'_>) -> io::Result<()> {
    let mut rows: FxHashMap<Pid, Row<'_>> = FxHashMap::default();
    for overhead in cast.t.gpu().overheads() {
        let clipped = cast.window.clip(overhead.start, overhead.end);
        let Some((start, end)) = clipped.filter(|_| cast.wants(overhead.pid)) else {
            continue;
        };
        let parent = Parent::Process(overhead.pid);
        let row = rows.entry(overhead.pid);
        let row = row.or_insert_with(|| Row::flat(parent, "CUDA overhead", 0));
        let tid = overhead.tid.map(|tid| ("tid", uint(tid.0.into())));
        row.slice(
            tracks,
            &Slice {
                start,
                end,
                name: overhead_text(overhead.kind).into(),
                category: "overhead",
                args: tid.into_iter().collect(),
                flow: None,
            },
        )?;
    }
    tracks.end()
}

/// The gaps of a device and their parts.
struct GapRows {
    gaps: Row<'static>,
    causes: Row<'static>,
}

impl GapRows {
    fn new(parent: Parent) -> Self {
        GapRows {
            gaps: Row::flat(parent, "idle", GAPS_RANK),
            causes: Row::flat(parent, "what it waited for", CAUSES_RANK),
        }
    }

    fn show(
        &mut self,
        cast: &Cast<'_>,
        gap: &report::Gap,
        tracks: &mut Tracks<'_>,
    ) -> io::Result<()> {
        let Some((start, end)) = cast.window.clip(gap.start, gap.end) else {
            return Ok(());
        };
        self.gaps.slice(
            tracks,
            &Slice {
                start,
                end,
                name: "idle".into(),
                category: "gap",
                args: gap_args(gap),
                flow: None,
            },
        )?;
        for part in &gap.parts {
            let Some((start, end)) = cast.window.clip(part.start, part.end) else {
                continue;
            };
            self.causes.slice(
                tracks,
                &Slice {
                    start,
                    end,
                    name: part.cause.id().into(),
                    category: "cause",
                    args: part_args(part),
                    flow: None,
                },
            )?;
        }
        Ok(())
    }
}

fn thread(who: &ThreadRef) -> Value<'static> {
    text(thread_text(who))
}

fn thread_text(who: &ThreadRef) -> String {
    if who.pid.0 == who.tid.0 {
        format!("{} (pid {})", who.comm, who.pid)
    } else {
        format!("{} (pid {}, tid {})", who.comm, who.pid, who.tid)
    }
}

fn gap_args(gap: &report::Gap) -> Vec<Arg<'_>> {
    let mut args = vec![("ns", uint(gap.end.saturating_sub(gap.start).0))];
    if let Some(next) = &gap.next {
        let name = demangle::short(&next.name);
        let ended_by = format!(
            "{} {name} on stream {} of pid {}",
            next.kind, next.stream, next.pid
        );
        args.push(("ended_by", text(ended_by)));
    }
    if let Some(dispatcher) = &gap.dispatcher {
        args.push(("dispatcher", thread(dispatcher)));
    }
    if let Some(lead) = gap.lead_ns {
        args.push(("lead_ns", Value::Int(lead)));
    }
    if let Some(opened) = &gap.opened_by {
        let who = thread_text(&opened.who);
        args.push(("opened_by", text(format!("{} of {who}", opened.call))));
        push_stack(&mut args, "opened_at", &opened.stack);
    }
    if !gap.chain.is_empty() {
        let hops = gap.chain.iter().map(|hop| hop_text(hop).into());
        args.push(("chain", Value::List(hops.collect())));
    }
    args
}

fn hop_text(hop: &report::Hop) -> String {
    let len = hop.end.saturating_sub(hop.start);
    let mut line = format!("{} {} for {len}", thread_text(&hop.who), hop.state);
    match &hop.woken_by {
        None => {}
        Some(Waker::Task(who)) => {
            line.push_str(", woken by ");
            line.push_str(&thread_text(who));
        }
        Some(Waker::Irq(name)) => line.push_str(&format!(", woken by irq {name}")),
        Some(Waker::SoftIrq(name)) => line.push_str(&format!(", woken by softirq {name}")),
        Some(Waker::Timer) => line.push_str(", woken by a timer"),
    }
    line
}

fn part_args(part: &report::Part) -> Vec<Arg<'_>> {
    let mut args = vec![
        ("ns", uint(part.end.saturating_sub(part.start).0)),
        ("waited_for", text(part.cause.waited_for())),
    ];
    if let Some(who) = &part.who {
        args.push(("who", thread(who)));
    }
    if !part.what.is_empty() {
        args.push(("what", text(part.what.as_str())));
    }
    push_stack(&mut args, "stack", &part.stack);
    if !part.cause.fix().is_empty() {
        args.push(("fix", text(part.cause.fix())));
    }
    args
}

fn push_stack<'a>(args: &mut Vec<Arg<'a>>, name: &'static str, stack: &'a report::Stack) {
    if !stack.is_empty() {
        let frames = stack.frames.iter().map(|f| f.as_str().into());
        args.push((name, Value::List(frames.collect())));
    }
}
