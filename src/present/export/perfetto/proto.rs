//! The messages of a Perfetto trace that gdiag writes, and of these the fields that it uses.
//!
//! Numbers are those of the files named, below `protos/perfetto/` of <https://github.com/google/perfetto>; numbers in
//! use are never given another meaning there.
#![forbid(unsafe_code)]

use prost::Message;

/// Field `packet` of `Trace` (`trace/trace.proto`), length-delimited: number 1, wire type 2.
pub(super) const PACKET_KEY: u8 = 1 << 3 | 2;

/// `trace/trace_packet.proto`, but for its `oneof data`: a packet has one of those.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, boxed, tag = "1")]
    pub(super) ftrace_events: Option<Box<FtraceEventBundle>>,
    #[prost(message, optional, tag = "2")]
    pub(super) process_tree: Option<ProcessTree>,
    #[prost(message, optional, tag = "6")]
    pub(super) clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(super) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    /// [`SEQ_INCREMENTAL_STATE_CLEARED`], [`SEQ_NEEDS_INCREMENTAL_STATE`].
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "45")]
    pub(super) system_info: Option<SystemInfo>,
    #[prost(message, optional, tag = "59")]
    pub(super) trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub(super) track_descriptor: Option<TrackDescriptor>,
}

pub(super) const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;
pub(super) const SEQ_NEEDS_INCREMENTAL_STATE: u32 = 2;

/// `trace/trace_packet_defaults.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub(super) timestamp_clock_id: Option<u32>,
}

/// `trace/clock_snapshot.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    pub(super) primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(super) clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) timestamp: Option<u64>,
}

/// `common/builtin_clock.proto`
pub(super) const CLOCK_REALTIME: u32 = 1;
pub(super) const CLOCK_MONOTONIC: u32 = 3;
pub(super) const CLOCK_BOOTTIME: u32 = 6;

/// `common/system_info.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub(super) utsname: Option<Utsname>,
    #[prost(string, optional, tag = "4")]
    pub(super) tracing_service_version: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Utsname {
    #[prost(string, optional, tag = "1")]
    pub(super) sysname: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) release: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) machine: Option<String>,
}

/// `trace/ps/process_tree.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub(super) threads: Vec<Thread>,
}

/// `ProcessTree.Process`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) ppid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub(super) cmdline: Vec<String>,
    #[prost(bool, optional, tag = "8")]
    pub(super) is_kthread: Option<bool>,
    #[prost(bool, optional, tag = "9")]
    pub(super) cmdline_is_comm: Option<bool>,
}

/// `ProcessTree.Thread`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub(super) tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) tgid: Option<i32>,
}

/// `trace/ftrace/ftrace_event_bundle.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub(super) cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub(super) event: Vec<FtraceEvent>,
    #[prost(message, optional, tag = "4")]
    pub(super) compact_sched: Option<CompactSched>,
}

/// `FtraceEventBundle.CompactSched`: switches, field by field. Who left is who came before.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CompactSched {
    /// Each after the first is the time since the one before.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) switch_timestamp: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) switch_prev_state: Vec<i64>,
    #[prost(int32, repeated, tag = "3")]
    pub(super) switch_next_pid: Vec<i32>,
    #[prost(int32, repeated, tag = "4")]
    pub(super) switch_next_prio: Vec<i32>,
    #[prost(string, repeated, tag = "5")]
    pub(super) intern_table: Vec<String>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) switch_next_comm_index: Vec<u32>,
}

/// `trace/ftrace/ftrace_event.proto`, but for its `oneof event`: an event has one of those.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub(super) timestamp: Option<u64>,
    /// The thread that was current.
    #[prost(uint32, optional, tag = "2")]
    pub(super) pid: Option<u32>,
    /// [`FLAG_HARDIRQ`], [`FLAG_SOFTIRQ`].
    #[prost(uint32, optional, tag = "5")]
    pub(super) common_flags: Option<u32>,
    #[prost(message, optional, tag = "20")]
    pub(super) sched_waking: Option<SchedWaking>,
    #[prost(message, optional, tag = "235")]
    pub(super) task_newtask: Option<TaskNewtask>,
    #[prost(message, optional, tag = "236")]
    pub(super) task_rename: Option<TaskRename>,
    #[prost(message, optional, tag = "238")]
    pub(super) sched_process_exit: Option<SchedProcessExit>,
}

/// As `trace_flag_type` of the kernel (`include/linux/trace_events.h`).
pub(super) const FLAG_HARDIRQ: u32 = 0x08;
pub(super) const FLAG_SOFTIRQ: u32 = 0x10;

/// `trace/ftrace/sched.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedWaking {
    #[prost(string, optional, tag = "1")]
    pub(super) comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub(super) prio: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub(super) target_cpu: Option<i32>,
}

/// `trace/ftrace/sched.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedProcessExit {
    #[prost(string, optional, tag = "1")]
    pub(super) comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub(super) tgid: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub(super) prio: Option<i32>,
}

/// `trace/ftrace/task.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskNewtask {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) comm: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) clone_flags: Option<u64>,
}

/// Of the kernel: the new one is a thread of the same process.
pub(super) const CLONE_THREAD: u64 = 0x10000;

/// `trace/ftrace/task.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskRename {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) oldcomm: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) newcomm: Option<String>,
}

/// `trace/track_event/track_descriptor.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(super) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    /// [`ORDER_EXPLICIT`].
    #[prost(int32, optional, tag = "11")]
    pub(super) child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub(super) sibling_order_rank: Option<i32>,
}

/// `TrackDescriptor.ChildTracksOrdering`
pub(super) const ORDER_EXPLICIT: i32 = 3;

/// `trace/track_event/process_descriptor.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
}

/// `trace/track_event/thread_descriptor.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub(super) tid: Option<i64>,
}

/// `trace/track_event/track_event.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub(super) category_iids: Vec<u64>,
    #[prost(message, repeated, tag = "4")]
    pub(super) debug_annotations: Vec<DebugAnnotation>,
    /// [`TYPE_SLICE_BEGIN`], [`TYPE_SLICE_END`], [`TYPE_INSTANT`].
    #[prost(int32, optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(super) name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(super) flow_ids: Vec<u64>,
}

/// `TrackEvent.Type`
pub(super) const TYPE_SLICE_BEGIN: i32 = 1;
pub(super) const TYPE_SLICE_END: i32 = 2;
pub(super) const TYPE_INSTANT: i32 = 3;

/// `trace/track_event/debug_annotation.proto`, but for its `oneof value`: an annotation has one of those, or values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub(super) name_iid: Option<u64>,
    #[prost(bool, optional, tag = "2")]
    pub(super) bool_value: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) uint_value: Option<u64>,
    #[prost(int64, optional, tag = "4")]
    pub(super) int_value: Option<i64>,
    #[prost(message, repeated, tag = "12")]
    pub(super) array_values: Vec<DebugAnnotation>,
    #[prost(uint64, optional, tag = "17")]
    pub(super) string_value_iid: Option<u64>,
}

/// `trace/interned_data/interned_data.proto`
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "1")]
    pub(super) event_categories: Vec<Interned>,
    #[prost(message, repeated, tag = "2")]
    pub(super) event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub(super) debug_annotation_names: Vec<Interned>,
    #[prost(message, repeated, tag = "29")]
    pub(super) debug_annotation_string_values: Vec<Interned>,
}

/// `EventCategory` and `EventName` (`trace/track_event/track_event.proto`), `DebugAnnotationName`
/// (`trace/track_event/debug_annotation.proto`), `InternedString` (`trace/profiling/profile_common.proto`): all of the
/// same two fields.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Interned {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) text: Option<String>,
}
