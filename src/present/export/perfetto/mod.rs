//! Perfetto's own trace format, for ui.perfetto.dev and trace_processor.
//!
//! Who had each CPU and what woke whom is written as the kernel's own events would be, so that the reader builds its
//! tables of CPUs and thread states from them; all else as track events. A stretch that is not recorded is idle time
//! to a CPU, and the state of a thread that is not followed is "unknown" from when it leaves.
//!
//! All times are CLOCK_MONOTONIC. The kernel's events are on CLOCK_BOOTTIME to any reader; a recording does not
//! know how far that is ahead, so the file declares both to be the same.
#![forbid(unsafe_code)]

mod bundle;
mod intern;
mod proto;
#[cfg(test)]
pub(crate) mod tests;

use std::io::{self, Write};

use prost::Message;

use crate::analyse::tracks::{
    Arg, Flow, GroupId, Life, Owner, Parent, ProcessInfo, Sink, Slice, Stay, ThreadInfo, Track,
    TrackId, Turn, Value, WakeUp,
};
use crate::event::{Cpu, Pid};
use crate::model::fxhash::FxHashMap;
use crate::present::export::{About, Trust};
use crate::units::Nanos;

use bundle::Bundle;
use intern::Interner;
use proto::{
    Clock, ClockSnapshot, DebugAnnotation, Process, ProcessDescriptor, ProcessTree, SystemInfo,
    Thread, ThreadDescriptor, TracePacket, TracePacketDefaults, TrackDescriptor, TrackEvent,
    Utsname,
};

/// The one sequence of packets; what it interns is known to its later packets.
const SEQUENCE: u32 = 1;

/// Packets go out in pieces of about this size.
const PIECE: usize = 64 << 10;

/// The kernel's ids are signed there. Those that no kernel gives still are not each other's.
pub(super) fn signed(id: u32) -> i32 {
    i32::from_ne_bytes(id.to_ne_bytes())
}

#[derive(Debug)]
pub struct Perfetto<W> {
    out: Packets<W>,
    from: Nanos,
    bundle: Bundle,
    interner: Interner,
    uuids: Uuids,
    /// Where the slices of each track go, and the ends of those that are open.
    tracks: FxHashMap<TrackId, Open>,
}

#[derive(Debug)]
struct Open {
    uuid: u64,
    ends: Vec<Nanos>,
}

#[derive(Debug)]
struct Packets<W> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> Packets<W> {
    fn push(&mut self, packet: &TracePacket) -> io::Result<()> {
        self.buffer.push(proto::PACKET_KEY);
        packet
            .encode_length_delimited(&mut self.buffer)
            .map_err(io::Error::other)?;
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Uuids {
    last: u64,
    groups: FxHashMap<GroupId, u64>,
    threads: FxHashMap<Owner, u64>,
    processes: FxHashMap<Pid, u64>,
}

impl Uuids {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl<W: Write> Perfetto<W> {
    /// Begins a file of which all is at `from` or later.
    pub fn new(out: W, about: &About, from: Nanos) -> io::Result<Self> {
        let mut this = Perfetto {
            out: Packets {
                out,
                buffer: Vec::with_capacity(2 * PIECE),
            },
            from,
            bundle: Bundle::default(),
            interner: Interner::default(),
            uuids: Uuids::default(),
            tracks: FxHashMap::default(),
        };
        this.clear_state()?;
        this.out.push(&TracePacket {
            clock_snapshot: Some(clocks(about)),
            ..packet(from)
        })?;
        this.out.push(&TracePacket {
            system_info: Some(system_info(about)),
            ..packet(from)
        })?;
        // The order of tracks that have no parent.
        this.descriptor(TrackDescriptor {
            uuid: Some(0),
            child_ordering: Some(proto::ORDER_EXPLICIT),
            ..TrackDescriptor::default()
        })?;
        Ok(this)
    }

    /// Ends the file with what it says about itself.
    pub fn finish(mut self, about: &About, trust: &Trust) -> io::Result<W> {
        let track = TrackId(u32::MAX);
        self.open_track(
            track,
            TrackDescriptor {
                name: Some("gdiag: about this recording".to_string()),
                sibling_order_rank: Some(i32::MAX),
                ..TrackDescriptor::default()
            },
        )?;
        let list = |texts: &[String]| Value::List(texts.iter().map(|w| w.clone().into()).collect());
        let about = Slice {
            start: self.from,
            end: self.from,
            name: "gdiag".into(),
            category: "about",
            args: vec![
                (
                    "gdiag_version",
                    Value::Text(about.gdiag_version.as_str().into()),
                ),
                ("host", Value::Text(about.host.as_str().into())),
                ("kernel", Value::Text(about.kernel.as_str().into())),
                ("command", list(&about.command)),
                ("gpu_source", Value::Text(about.gpu_source.into())),
                ("lost", Value::Uint(trust.lost)),
                ("warnings", list(&trust.warnings)),
            ],
            flow: None,
        };
        self.instant(track, &about)?;
        self.out.flush()?;
        self.out.out.flush()?;
        Ok(self.out.out)
    }

    /// Forgets what is interned. The reader does, too.
    fn clear_state(&mut self) -> io::Result<()> {
        self.interner = Interner::default();
        self.out.push(&TracePacket {
            sequence_flags: Some(proto::SEQ_INCREMENTAL_STATE_CLEARED),
            trace_packet_defaults: Some(TracePacketDefaults {
                timestamp_clock_id: Some(proto::CLOCK_MONOTONIC),
            }),
            ..packet(self.from)
        })
    }

    fn descriptor(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.out.push(&TracePacket {
            track_descriptor: Some(descriptor),
            trusted_packet_sequence_id: Some(SEQUENCE),
            ..TracePacket::default()
        })
    }

    fn open_track(&mut self, id: TrackId, descriptor: TrackDescriptor) -> io::Result<()> {
        let uuid = self.uuids.next();
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            ..descriptor
        })?;
        self.tracks.insert(
            id,
            Open {
                uuid,
                ends: Vec::new(),
            },
        );
        Ok(())
    }

    fn process_uuid(&mut self, pid: Pid) -> io::Result<u64> {
        if let Some(&uuid) = self.uuids.processes.get(&pid) {
            return Ok(uuid);
        }
        let uuid = self.uuids.next();
        self.uuids.processes.insert(pid, uuid);
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            process: Some(ProcessDescriptor {
                pid: Some(signed(pid.0)),
            }),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    fn thread_uuid(&mut self, owner: Owner) -> io::Result<u64> {
        if let Some(&uuid) = self.uuids.threads.get(&owner) {
            return Ok(uuid);
        }
        let parent = self.process_uuid(owner.pid)?;
        let uuid = self.uuids.next();
        self.uuids.threads.insert(owner, uuid);
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            parent_uuid: Some(parent),
            thread: Some(ThreadDescriptor {
                pid: Some(signed(owner.pid.0)),
                tid: Some(signed(owner.tid.0).into()),
            }),
            child_ordering: Some(proto::ORDER_EXPLICIT),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    fn event(&mut self, at: Nanos, uuid: u64, kind: i32, slice: &Slice<'_>) -> io::Result<()> {
        if self.interner.is_full() {
            self.clear_state()?;
        }
        let category = self.interner.category(slice.category);
        let name = self.interner.name(&slice.name);
        let args = slice
            .args
            .iter()
            .map(|arg| annotation(&mut self.interner, arg));
        let debug_annotations = args.collect();
        self.out.push(&TracePacket {
            track_event: Some(TrackEvent {
                category_iids: vec![category],
                debug_annotations,
                r#type: Some(kind),
                name_iid: Some(name),
                track_uuid: Some(uuid),
                flow_ids: match slice.flow {
                    None => Vec::new(),
                    Some(Flow::From(id) | Flow::To(id)) => vec![id],
                },
            }),
            interned_data: self.interner.take_new(),
            sequence_flags: Some(proto::SEQ_NEEDS_INCREMENTAL_STATE),
            ..packet(at)
        })
    }

    /// Ends the slices of a track that are over by `at`, the innermost first.
    fn end_until(&mut self, track: TrackId, at: Nanos) -> io::Result<()> {
        let Some(open) = self.tracks.get_mut(&track) else {
            return Ok(());
        };
        while let Some(end) = open.ends.pop_if(|end| *end <= at) {
            self.out.push(&slice_end(open.uuid, end))?;
        }
        Ok(())
    }

    fn flush_bundle(&mut self) -> io::Result<()> {
        match self.bundle.take() {
            Some(bundle) => self.out.push(&TracePacket {
                ftrace_events: Some(Box::new(bundle)),
                trusted_packet_sequence_id: Some(SEQUENCE),
                ..TracePacket::default()
            }),
            None => Ok(()),
        }
    }

    fn tree(&mut self, at: Nanos, tree: ProcessTree) -> io::Result<()> {
        self.out.push(&TracePacket {
            process_tree: Some(tree),
            ..packet(at.max(self.from))
        })
    }
}

fn packet(at: Nanos) -> TracePacket {
    TracePacket {
        timestamp: Some(at.as_u64()),
        trusted_packet_sequence_id: Some(SEQUENCE),
        ..TracePacket::default()
    }
}

fn slice_end(uuid: u64, at: Nanos) -> TracePacket {
    TracePacket {
        track_event: Some(TrackEvent {
            r#type: Some(proto::TYPE_SLICE_END),
            track_uuid: Some(uuid),
            ..TrackEvent::default()
        }),
        sequence_flags: Some(proto::SEQ_NEEDS_INCREMENTAL_STATE),
        ..packet(at)
    }
}

fn annotation(interner: &mut Interner, (name, value): &Arg<'_>) -> DebugAnnotation {
    let text = |interner: &mut Interner, text: &str| DebugAnnotation {
        string_value_iid: Some(interner.text(text)),
        ..DebugAnnotation::default()
    };
    let value = match value {
        Value::Uint(n) => DebugAnnotation {
            uint_value: Some(*n),
            ..DebugAnnotation::default()
        },
        Value::Int(n) => DebugAnnotation {
            int_value: Some(*n),
            ..DebugAnnotation::default()
        },
        Value::Bool(b) => DebugAnnotation {
            bool_value: Some(*b),
            ..DebugAnnotation::default()
        },
        Value::Text(t) => text(interner, t),
        Value::List(texts) => DebugAnnotation {
            array_values: texts.iter().map(|t| text(interner, t)).collect(),
            ..DebugAnnotation::default()
        },
    };
    DebugAnnotation {
        name_iid: Some(interner.annotation(name)),
        ..value
    }
}

fn clocks(about: &About) -> ClockSnapshot {
    let clock = |id, at: Nanos| Clock {
        clock_id: Some(id),
        timestamp: Some(at.as_u64()),
    };
    let mut clocks = vec![
        clock(proto::CLOCK_MONOTONIC, about.start),
        clock(proto::CLOCK_BOOTTIME, about.start),
    ];
    clocks.extend(about.start_unix.map(|at| clock(proto::CLOCK_REALTIME, at)));
    ClockSnapshot {
        clocks,
        primary_trace_clock: Some(proto::CLOCK_MONOTONIC),
    }
}

fn system_info(about: &About) -> SystemInfo {
    SystemInfo {
        utsname: Some(Utsname {
            sysname: Some("Linux".to_string()),
            release: Some(about.kernel.clone()),
            machine: Some(about.machine.clone()),
        }),
        tracing_service_version: Some(format!("gdiag {}", about.gdiag_version)),
    }
}

impl<W: Write> Sink for Perfetto<W> {
    fn process(&mut self, process: &ProcessInfo<'_>) -> io::Result<()> {
        let is_comm = process.cmdline.is_empty();
        // Of one that is born in the recording its birth tells as much.
        if process.is_born && is_comm {
            return Ok(());
        }
        let cmdline = if is_comm {
            process.name
        } else {
            process.cmdline
        };
        let words = if is_comm { 1 } else { 2 };
        let process_entry = Process {
            pid: Some(signed(process.pid.0)),
            ppid: process.ppid.map(|pid| signed(pid.0)),
            cmdline: cmdline.splitn(words, ' ').map(str::to_string).collect(),
            is_kthread: Some(process.kthread),
            cmdline_is_comm: Some(is_comm),
        };
        let tree = ProcessTree {
            processes: vec![process_entry],
            threads: Vec::new(),
        };
        self.tree(process.since, tree)
    }

    fn thread(&mut self, thread: &ThreadInfo<'_>) -> io::Result<()> {
        if thread.is_born {
            return Ok(());
        }
        let tree = ProcessTree {
            processes: Vec::new(),
            threads: vec![Thread {
                tid: Some(signed(thread.owner.tid.0)),
                name: Some(thread.comm.to_string()),
                tgid: Some(signed(thread.owner.pid.0)),
            }],
        };
        self.tree(thread.since, tree)
    }

    fn turn(&mut self, cpu: Cpu, turn: &Turn<'_>) -> io::Result<()> {
        self.bundle.turn(cpu, turn);
        if self.bundle.is_full() {
            self.flush_bundle()?;
        }
        Ok(())
    }

    fn wake(&mut self, cpu: Cpu, wake: &WakeUp<'_>) -> io::Result<()> {
        self.bundle.wake(cpu, wake);
        Ok(())
    }

    fn life(&mut self, cpu: Cpu, life: &Life<'_>) -> io::Result<()> {
        self.bundle.life(cpu, life);
        Ok(())
    }

    fn end_cpu(&mut self, _: Cpu) -> io::Result<()> {
        self.flush_bundle()
    }

    /// The reader does.
    fn makes_states(&self) -> bool {
        true
    }

    fn stay(&mut self, _: Owner, _: &Stay<'_>) -> io::Result<()> {
        Ok(())
    }

    fn group(&mut self, id: GroupId, name: &str) -> io::Result<()> {
        let uuid = self.uuids.next();
        self.uuids.groups.insert(id, uuid);
        self.descriptor(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.to_string()),
            child_ordering: Some(proto::ORDER_EXPLICIT),
            sibling_order_rank: i32::try_from(id.0).ok(),
            ..TrackDescriptor::default()
        })
    }

    fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
        let parent = match track.parent {
            Parent::Group(group) => self.uuids.groups.get(&group).copied(),
            Parent::Process(pid) => Some(self.process_uuid(pid)?),
            Parent::Calls(owner) if track.lane == 0 => {
                // The thread's own track.
                let uuid = self.thread_uuid(owner)?;
                let ends = Vec::new();
                self.tracks.insert(track.id, Open { uuid, ends });
                return Ok(());
            }
            Parent::Calls(owner) | Parent::Thread(owner) => Some(self.thread_uuid(owner)?),
        };
        self.open_track(
            track.id,
            TrackDescriptor {
                name: Some(track.name.to_string()),
                parent_uuid: parent,
                sibling_order_rank: i32::try_from(track.rank).ok(),
                ..TrackDescriptor::default()
            },
        )
    }

    fn slice(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()> {
        self.end_until(track, slice.start)?;
        let Some(open) = self.tracks.get_mut(&track) else {
            return Ok(());
        };
        open.ends.push(slice.end);
        let uuid = open.uuid;
        self.event(slice.start, uuid, proto::TYPE_SLICE_BEGIN, slice)
    }

    fn instant(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()> {
        self.end_until(track, slice.start)?;
        match self.tracks.get(&track).map(|open| open.uuid) {
            Some(uuid) => self.event(slice.start, uuid, proto::TYPE_INSTANT, slice),
            None => Ok(()),
        }
    }

    fn end_tracks(&mut self) -> io::Result<()> {
        let mut ids: Vec<TrackId> = self.tracks.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.end_until(id, Nanos::MAX)?;
        }
        self.tracks.clear();
        Ok(())
    }
}
