//! What holds of every trace, whatever was recorded.

use std::collections::HashMap;

use prost::Message;

use super::proto::*;
use super::*;
use crate::analyse::tracks::Left;

/// The packets of a file.
fn packets(mut bytes: &[u8]) -> Vec<TracePacket> {
    let mut packets = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[0], PACKET_KEY);
        bytes = &bytes[1..];
        packets.push(TracePacket::decode_length_delimited(&mut bytes).unwrap());
    }
    packets
}

#[derive(Default)]
struct TrackState {
    last: u64,
    open: usize,
}

/// Time does not go back on a track or a CPU, what begins ends, what is meant was defined, and arrows have two ends.
pub(crate) fn check(bytes: &[u8]) {
    let mut tracks: HashMap<u64, TrackState> = HashMap::new();
    let mut cpus: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut flows: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut interned: [Vec<u64>; 4] = Default::default();
    for packet in packets(bytes) {
        if packet.sequence_flags == Some(SEQ_INCREMENTAL_STATE_CLEARED) {
            interned = Default::default();
        }
        let new = packet.interned_data.unwrap_or_default();
        let lists = [
            new.event_categories,
            new.event_names,
            new.debug_annotation_names,
            new.debug_annotation_string_values,
        ];
        for (known, new) in interned.iter_mut().zip(lists) {
            known.extend(new.into_iter().map(|i| i.iid.unwrap()));
        }
        if let Some(track) = packet.track_descriptor {
            if let Some(parent) = track.parent_uuid {
                assert!(tracks.contains_key(&parent));
            }
            let there = tracks.insert(track.uuid.unwrap(), TrackState::default());
            assert!(there.is_none(), "a track twice");
        }
        if let Some(event) = packet.track_event {
            let at = packet.timestamp.unwrap();
            let track = tracks.get_mut(&event.track_uuid.unwrap()).unwrap();
            assert!(track.last <= at, "time goes back on a track");
            track.last = at;
            match event.r#type {
                Some(TYPE_SLICE_BEGIN) => track.open += 1,
                Some(TYPE_SLICE_END) => track.open = track.open.checked_sub(1).unwrap(),
                kind => assert_eq!(kind, Some(TYPE_INSTANT)),
            }
            if event.r#type != Some(TYPE_SLICE_END) {
                assert!(interned[0].contains(&event.category_iids[0]));
                assert!(interned[1].contains(&event.name_iid.unwrap()));
            }
            for annotation in &event.debug_annotations {
                assert!(interned[2].contains(&annotation.name_iid.unwrap()));
                let texts = std::iter::once(annotation).chain(&annotation.array_values);
                for iid in texts.filter_map(|a| a.string_value_iid) {
                    assert!(interned[3].contains(&iid));
                }
            }
            for flow in event.flow_ids {
                flows.entry(flow).or_default().push(at);
            }
        }
        if let Some(bundle) = packet.ftrace_events {
            let last = cpus.entry(bundle.cpu.unwrap()).or_default();
            let sched = bundle.compact_sched.unwrap_or_default();
            let mut at = 0_u64;
            for (i, since) in sched.switch_timestamp.iter().enumerate() {
                at = at.checked_add(*since).unwrap();
                assert!(last.0 <= at, "time goes back on a CPU");
                last.0 = at;
                let comm = sched.switch_next_comm_index[i] as usize;
                assert!(comm < sched.intern_table.len());
            }
            for event in bundle.event {
                let at = event.timestamp.unwrap();
                assert!(last.1 <= at, "time goes back on a CPU");
                last.1 = at;
            }
        }
    }
    assert!(tracks.values().all(|t| t.open == 0), "a slice never ends");
    for (flow, ends) in flows {
        let first = ends.iter().min().unwrap();
        let begins = ends.iter().filter(|at| *at == first).count();
        assert!(ends.len() > begins && begins == 1, "flow {flow}: {ends:?}");
    }
}

fn about() -> About {
    About {
        start: Nanos(1_000),
        ..About::default()
    }
}

fn slice(start: u64, end: u64, name: &'static str) -> Slice<'static> {
    Slice {
        start: Nanos(start),
        end: Nanos(end),
        name: name.into(),
        category: "test",
        args: Vec::new(),
        flow: None,
    }
}

/// Begins and ends on the one track of `write`, as `+name` and `-`, with their times.
fn story(write: impl FnOnce(&mut Perfetto<Vec<u8>>, TrackId)) -> String {
    let mut sink = Perfetto::new(Vec::new(), &about(), Nanos(1_000)).unwrap();
    sink.group(GroupId(0), "group").unwrap();
    let id = TrackId(0);
    sink.track(&Track {
        id,
        parent: Parent::Group(GroupId(0)),
        name: "row".into(),
        rank: 0,
        lane: 0,
    })
    .unwrap();
    write(&mut sink, id);
    sink.end_tracks().unwrap();
    let bytes = sink.finish(&about(), &Trust::default()).unwrap();
    check(&bytes);
    let mut names = HashMap::new();
    let mut text = Vec::new();
    for packet in packets(&bytes) {
        for name in packet.interned_data.unwrap_or_default().event_names {
            names.insert(name.iid, name.text.unwrap());
        }
        let Some(event) = packet.track_event else {
            continue;
        };
        let at = packet.timestamp.unwrap() - 1_000;
        match event.r#type {
            Some(TYPE_SLICE_BEGIN) => text.push(format!("+{}@{at}", names[&event.name_iid])),
            Some(TYPE_SLICE_END) => text.push(format!("-@{at}")),
            _ => text.push(format!("!{}@{at}", names[&event.name_iid])),
        }
    }
    text.pop();
    text.join(" ")
}

#[test]
fn what_is_inside_ends_before_what_it_is_in() {
    let text = story(|sink, track| {
        sink.slice(track, &slice(1_010, 1_050, "outer")).unwrap();
        sink.slice(track, &slice(1_010, 1_020, "first")).unwrap();
        sink.slice(track, &slice(1_020, 1_050, "second")).unwrap();
        sink.instant(track, &slice(1_030, 1_030, "moment")).unwrap();
        sink.slice(track, &slice(1_050, 1_050, "empty")).unwrap();
        sink.slice(track, &slice(1_060, 1_070, "later")).unwrap();
    });
    assert_eq!(
        text,
        "+outer@10 +first@10 -@20 +second@20 !moment@30 -@50 -@50 +empty@50 -@50 +later@60 -@70"
    );
}

#[test]
fn texts_without_end_are_forgotten_on_both_sides() {
    let long = "x".repeat(100_000);
    let text = story(|sink, track| {
        for n in 0..200_u64 {
            let name = format!("{n}{long}");
            let at = 1_010 + n;
            sink.slice(
                track,
                &Slice {
                    name: name.into(),
                    args: vec![("text", Value::Text(format!("{n}").into()))],
                    ..slice(at, at + 1, "")
                },
            )
            .unwrap();
            assert!(!sink.interner.is_full() || n > 100);
        }
    });
    assert_eq!(text.matches('+').count(), 200);
}

#[test]
fn a_thread_leaves_in_the_state_that_proc_shows() {
    for (left, expected) in [
        (Left::Preempted, 0x100),
        (Left::Yielded, 0),
        (Left::Throttled, 0),
        (Left::Blocked(1), 1),
        // TASK_INTERRUPTIBLE | TASK_FREEZABLE, TASK_KILLABLE, TASK_IDLE, TASK_STOPPED, a tracer, TASK_RTLOCK_WAIT.
        (Left::Blocked(0x2001), 1),
        (Left::Blocked(0x102), 2),
        (Left::Blocked(0x402), 0x80),
        (Left::Blocked(0x104), 4),
        (Left::Blocked(8), 8),
        (Left::Blocked(0x1000), 2),
        (Left::Exited, 0x10),
        (Left::Blocked(0x80), 0x10),
    ] {
        assert_eq!(bundle::prev_state(left), expected, "{left:?}");
    }
    // No bit that a reader knows.
    assert_eq!(bundle::prev_state(Left::Unknown) & 0x1ff, 0);
    assert!(bundle::prev_state(Left::Unknown) & 0xfe00 != 0);
}
