"""Reads a Perfetto trace with the public definitions, checks what holds of every trace, and prints it as JSON.

    perfetto_reader.py DIR TRACE      DIR has perfetto_pb2.py, made by protoc of perfetto.proto

Anything wrong is an AssertionError.
"""

import json
import sys

sys.path.insert(0, sys.argv[1])
import perfetto_pb2 as pb  # noqa: E402

CLEARED, NEEDS_STATE = 1, 2
MONOTONIC, BOOTTIME = 3, 6
UNKNOWN_STATE = 0xFE00


def no_unknown_fields(message, where="trace"):
    if hasattr(message, "UnknownFields"):
        unknown = list(message.UnknownFields())
    else:
        from google.protobuf.unknown_fields import UnknownFieldSet

        unknown = list(UnknownFieldSet(message))
    assert not unknown, f"unknown field {unknown[0].field_number} in {where}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.label == field.LABEL_REPEATED:
            for item in value:
                no_unknown_fields(item, f"{where}.{field.name}")
        else:
            no_unknown_fields(value, f"{where}.{field.name}")


class Interned:
    """What one sequence has defined since its state was cleared."""

    def __init__(self):
        self.tables = [{}, {}, {}, {}]

    def define(self, data):
        lists = [
            data.event_categories,
            data.event_names,
            data.debug_annotation_names,
            data.debug_annotation_string_values,
        ]
        for table, entries in zip(self.tables, lists):
            for entry in entries:
                assert entry.iid != 0 and entry.iid not in table, entry.iid
                text = entry.str.decode() if hasattr(entry, "str") else entry.name
                table[entry.iid] = text

    def category(self, iid):
        return self.tables[0][iid]

    def name(self, iid):
        return self.tables[1][iid]

    def annotation(self, iid):
        return self.tables[2][iid]

    def text(self, iid):
        return self.tables[3][iid]


class Track:
    def __init__(self, descriptor, parent):
        self.descriptor = descriptor
        self.parent = parent
        self.open = []
        self.last = 0

    def path(self):
        d = self.descriptor
        if d.HasField("thread"):
            return [f"thread {d.thread.tid} of {d.thread.pid}"]
        if d.HasField("process"):
            return [f"process {d.process.pid}"]
        return (self.parent.path() if self.parent else []) + [d.name]


class Reader:
    def __init__(self):
        self.state = None
        self.clock = None
        self.tracks = {}
        self.slices = []
        self.instants = []
        self.flows = {}
        self.cpus = {}
        self.last_event = {}
        self.wakings = []
        self.lives = []
        self.processes = {}
        self.threads = {}
        self.primary = None

    def packet(self, p):
        assert p.trusted_packet_sequence_id == 1
        if p.sequence_flags & CLEARED:
            self.state = Interned()
            self.clock = p.trace_packet_defaults.timestamp_clock_id
            assert self.clock == MONOTONIC
        if p.HasField("interned_data"):
            self.state.define(p.interned_data)
        if p.HasField("clock_snapshot"):
            clocks = {c.clock_id: c.timestamp for c in p.clock_snapshot.clocks}
            assert clocks[MONOTONIC] == clocks[BOOTTIME]
            self.primary = p.clock_snapshot.primary_trace_clock
        if p.HasField("track_descriptor"):
            self.descriptor(p.track_descriptor)
        if p.HasField("track_event"):
            assert p.sequence_flags & NEEDS_STATE
            self.event(p.timestamp, p.track_event)
        if p.HasField("ftrace_events"):
            self.bundle(p.ftrace_events)
        if p.HasField("process_tree"):
            for process in p.process_tree.processes:
                self.processes[process.pid] = list(process.cmdline)
            for thread in p.process_tree.threads:
                self.threads[thread.tid] = [thread.tgid, thread.name]

    def descriptor(self, d):
        assert d.uuid not in self.tracks, f"track {d.uuid} twice"
        parent = None
        if d.HasField("parent_uuid"):
            parent = self.tracks[d.parent_uuid]
        self.tracks[d.uuid] = Track(d, parent)

    def value(self, a):
        if a.array_values:
            return [self.value(v) for v in a.array_values]
        for field in ("bool_value", "uint_value", "int_value"):
            if a.HasField(field):
                return getattr(a, field)
        if a.HasField("string_value_iid"):
            return self.state.text(a.string_value_iid)
        return []

    def event(self, at, e):
        track = self.tracks[e.track_uuid]
        assert at >= track.last, f"time goes back on {track.path()}"
        track.last = at
        if e.type == pb.TrackEvent.TYPE_SLICE_END:
            track.open.pop()["end"] = at
            return
        args = {self.state.annotation(a.name_iid): self.value(a) for a in e.debug_annotations}
        assert len(args) == len(e.debug_annotations)
        (category,) = e.category_iids
        slice = {
            "track": track.path(),
            "name": self.state.name(e.name_iid),
            "cat": self.state.category(category),
            "start": at,
            "end": at,
            "args": args,
        }
        if e.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            slice["depth"] = len(track.open)
            slice["end"] = None
            track.open.append(slice)
            self.slices.append(slice)
        else:
            assert e.type == pb.TrackEvent.TYPE_INSTANT
            self.instants.append(slice)
        for flow in e.flow_ids:
            self.flows.setdefault(flow, []).append(slice)

    def bundle(self, b):
        cpu = self.cpus.setdefault(b.cpu, [])
        sched = b.compact_sched
        columns = [
            sched.switch_timestamp,
            sched.switch_prev_state,
            sched.switch_next_pid,
            sched.switch_next_prio,
            sched.switch_next_comm_index,
        ]
        assert len({len(column) for column in columns}) == 1
        at = 0
        for since, state, pid, _, comm in zip(*columns):
            at += since
            assert not cpu or cpu[-1]["at"] <= at, f"time goes back on CPU {b.cpu}"
            prev = cpu[-1]["next"] if cpu else None
            known = state & UNKNOWN_STATE == 0
            cpu.append(
                {
                    "at": at,
                    "prev": prev,
                    "state": state if known else None,
                    "next": pid,
                    "comm": sched.intern_table[comm],
                }
            )
        for e in b.event:
            assert e.timestamp >= self.last_event.get(b.cpu, 0), f"time goes back on CPU {b.cpu}"
            self.last_event[b.cpu] = e.timestamp
            if e.HasField("sched_waking"):
                w = e.sched_waking
                self.wakings.append([e.timestamp, b.cpu, w.pid, e.pid, e.common_flags])
            elif e.HasField("task_newtask"):
                self.lives.append(["new", e.timestamp, e.task_newtask.pid, e.pid])
            elif e.HasField("task_rename"):
                self.lives.append(["rename", e.timestamp, e.task_rename.pid, e.task_rename.newcomm])
            else:
                assert e.HasField("sched_process_exit")
                self.lives.append(["exit", e.timestamp, e.sched_process_exit.pid])

    def finish(self):
        assert self.primary == MONOTONIC
        for track in self.tracks.values():
            assert not track.open, f"{track.path()}: {track.open[-1]['name']} never ends"
        for slice in self.slices:
            assert slice["end"] >= slice["start"]
        for flow, ends in self.flows.items():
            assert len(ends) >= 2, f"flow {flow} has one end"
            first, *rest = sorted(ends, key=lambda s: s["start"])
            assert all(s["start"] > first["start"] for s in rest), f"flow {flow} begins twice"


def main():
    with open(sys.argv[2], "rb") as f:
        trace = pb.Trace.FromString(f.read())
    no_unknown_fields(trace)
    reader = Reader()
    for packet in trace.packet:
        reader.packet(packet)
    reader.finish()
    out = {
        "slices": reader.slices,
        "instants": reader.instants,
        "flows": [[s["cat"] for s in sorted(ends, key=lambda s: s["start"])] for ends in reader.flows.values()],
        "cpus": {str(cpu): turns for cpu, turns in reader.cpus.items()},
        "wakings": reader.wakings,
        "lives": reader.lives,
        "processes": reader.processes,
        "threads": reader.threads,
    }
    json.dump(out, sys.stdout)


main()
