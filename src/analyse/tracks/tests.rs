//! What is shown, on small recordings.

use super::*;
use crate::analyse::tests::story::*;
use crate::event::LossSource;
use crate::store::meta::TargetMode;

/// Writes down what it gets, in microseconds from the start of the recording.
#[derive(Debug, Default)]
struct Notes {
    turns: Vec<(u16, String)>,
    wakes: Vec<String>,
    lives: Vec<String>,
    stays: Vec<(u32, String)>,
    tracks: Vec<String>,
    slices: Vec<(TrackId, String, Option<Flow>)>,
    processes: Vec<u32>,
}

fn at(t: Nanos) -> String {
    let since = i128::from(t.0) - i128::from(us(0).0);
    if since % 1_000 == 0 {
        (since / 1_000).to_string()
    } else {
        format!("{since}ns")
    }
}

impl Sink for Notes {
    fn process(&mut self, process: &ProcessInfo<'_>) -> io::Result<()> {
        self.processes.push(process.pid.0);
        Ok(())
    }

    fn thread(&mut self, _: &ThreadInfo<'_>) -> io::Result<()> {
        Ok(())
    }

    fn turn(&mut self, cpu: Cpu, turn: &Turn<'_>) -> io::Result<()> {
        let who = turn.who.map_or("-", |who| who.comm);
        let left = match turn.left {
            Left::Unknown => "?".to_string(),
            Left::Blocked(state) => format!("{state:#x}"),
            left => format!("{left:?}"),
        };
        self.turns
            .push((cpu.0, format!("{left} {}:{who}", at(turn.start))));
        Ok(())
    }

    fn wake(&mut self, cpu: Cpu, wake: &WakeUp<'_>) -> io::Result<()> {
        let target = wake.target.map_or("-".to_string(), |cpu| cpu.to_string());
        self.wakes.push(format!(
            "{} on {cpu}: {} wakes {} to {target}",
            at(wake.at),
            wake.waker,
            wake.wakee.comm
        ));
        Ok(())
    }

    fn life(&mut self, cpu: Cpu, life: &Life<'_>) -> io::Result<()> {
        self.lives.push(match life {
            Life::New { at: t, who, parent } => {
                format!("{} on {cpu}: {} makes {}", at(*t), parent.tid, who.comm)
            }
            Life::Renamed { at: t, who, before } => {
                format!("{} on {cpu}: {before} is {}", at(*t), who.comm)
            }
            Life::Exited { at: t, who } => format!("{} on {cpu}: {} exits", at(*t), who.comm),
        });
        Ok(())
    }

    fn end_cpu(&mut self, _: Cpu) -> io::Result<()> {
        Ok(())
    }

    fn makes_states(&self) -> bool {
        false
    }

    fn stay(&mut self, owner: Owner, stay: &Stay<'_>) -> io::Result<()> {
        let by = stay
            .woken_by
            .map_or(String::new(), |by| format!(" by {}", by.tid));
        let text = format!("{}..{} {}{by}", at(stay.start), at(stay.end), stay.text);
        self.stays.push((owner.tid.0, text));
        Ok(())
    }

    fn group(&mut self, _: GroupId, name: &str) -> io::Result<()> {
        self.tracks.push(name.to_string());
        Ok(())
    }

    fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
        self.tracks.push(format!("  {} {}", track.name, track.lane));
        Ok(())
    }

    fn slice(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()> {
        let text = format!("{}..{} {}", at(slice.start), at(slice.end), slice.name);
        self.slices.push((track, text, slice.flow));
        Ok(())
    }

    fn instant(&mut self, track: TrackId, slice: &Slice<'_>) -> io::Result<()> {
        self.slice(track, slice)
    }

    fn end_tracks(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn notes_with(story: &Story, options: &Options) -> Notes {
    let mut notes = Notes::default();
    show(&story.built(), options, Nanos::ZERO, &mut notes).unwrap();
    notes
}

fn notes(story: &Story) -> Notes {
    notes_with(story, &Options::default())
}

/// The turns of a CPU: how the one before left, when, and who came.
fn turns(story: &Story, cpu: u16) -> Vec<String> {
    let of_this = notes(story).turns.into_iter().filter(|t| t.0 == cpu);
    of_this.map(|t| t.1).collect()
}

#[test]
fn a_cpu_is_handed_on_and_how_each_left_is_told() {
    let story = timeline()
        .sleeps(100, 1, MAIN, S, Some(FUTEX))
        .wakes(150, THREAD, MAIN)
        .runs(200, 1, MAIN)
        .switch(300, 1, MAIN, THREAD)
        .throttled(400, 1, THREAD, MAIN)
        .leaves(500, 1, MAIN, 0, Some(24), 0);
    assert_eq!(
        turns(&story, 1),
        [
            "? 0:-",
            "Runnable 0:python3",
            "0x1 100:-",
            "Runnable 200:python3",
            "Preempted 300:helper",
            "Throttled 400:python3",
            "Yielded 500:-",
        ]
    );
}

#[test]
fn a_hole_in_the_switches_of_a_cpu_is_nobodys() {
    // The hog came when MAIN slept, and somebody else was there when MAIN was woken: since then all is known.
    let story = timeline()
        .leaves(100, 1, MAIN, S, Some(FUTEX), 0)
        .wakes(500, THREAD, MAIN)
        .switch(600, 1, HOG, MAIN);
    assert_eq!(
        turns(&story, 1),
        [
            "? 0:-",
            "Runnable 0:python3",
            "0x1 100:-",
            "? 500:hog",
            "? 600:python3"
        ]
    );
    let story = timeline()
        .switch(100, 1, MAIN, HOG)
        .switch(600, 1, GDIAG, MAIN);
    assert_eq!(
        turns(&story, 1)[2..],
        [
            "Preempted 100:hog",
            "? 100:-",
            "? 100:gdiag",
            "? 600:python3"
        ]
    );
}

#[test]
fn a_stranger_that_came_last_is_not_there_for_ever() {
    let story = timeline().switch(100, 1, MAIN, HOG);
    assert_eq!(turns(&story, 1)[2..], ["Preempted 100:hog", "? 100:-"]);
    // Unless every switch of the machine is recorded.
    let mut story = timeline().switch(100, 1, MAIN, HOG);
    story.meta.mode = TargetMode::All;
    assert_eq!(turns(&story, 1)[2..], ["Preempted 100:hog"]);
    let story = timeline().switch(100, 1, MAIN, THREAD);
    assert_eq!(turns(&story, 1)[2..], ["Preempted 100:helper"]);
}

#[test]
fn what_was_lost_on_a_cpu_is_nobodys_even_if_both_ends_fit() {
    let story = timeline()
        .lost(LossSource::Bpf(Cpu(1)), 7, (200, 300))
        .sleeps(500, 1, MAIN, S, None);
    assert_eq!(
        turns(&story, 1)[1..],
        [
            "Runnable 0:python3",
            "? 200:-",
            "? 300:python3",
            "0x1 500:-"
        ]
    );
    let lost = notes(&story).slices;
    assert_eq!(
        lost.last().unwrap().1,
        "200..300 scheduling events of CPU 1 lost"
    );
}

#[test]
fn wakes_are_told_where_the_waker_ran_and_lead_from_it() {
    let story = timeline()
        .runs(10, 2, THREAD)
        .sleeps(100, 1, MAIN, S, Some(FUTEX))
        .wakes(150, THREAD, MAIN)
        .runs(200, 3, MAIN)
        .sleeps(300, 3, MAIN, S, Some(NANOSLEEP))
        .timer_wakes(400, MAIN)
        .runs(500, 3, MAIN);
    let notes = notes(&story);
    assert_eq!(
        notes.wakes,
        [
            "150 on 0: 101 wakes python3 to 3",
            "400 on 0: 0 wakes python3 to 3"
        ]
    );
    let main: Vec<&str> = (notes.stays.iter())
        .filter(|s| s.0 == MAIN)
        .map(|s| s.1.as_str())
        .collect();
    assert_eq!(
        main,
        [
            "0..100 running",
            "100..150 blocked (futex)",
            "150..200 runnable (woken) by 101",
            "200..300 running",
            "300..400 blocked (clock_nanosleep)",
            "400..500 runnable (woken)",
            "500..100000 running",
        ]
    );
}

#[test]
fn a_launch_leads_to_its_kernel_and_both_are_shown_or_no_arrow_is() {
    let story = timeline()
        .kernel((0, 5), (10, 100))
        .kernel((200, 205), (1_000, 1_100));
    let all = notes(&story);
    let flows: Vec<(&str, Flow)> = (all.slices.iter())
        .filter_map(|s| Some((s.1.as_str(), s.2?)))
        .collect();
    assert_eq!(
        flows,
        [
            ("10..100 kernel", Flow::To(1)),
            ("1000..1100 kernel", Flow::To(2)),
            ("0..5 cudaLaunchKernel", Flow::From(1)),
            ("200..205 cudaLaunchKernel", Flow::From(2)),
        ]
    );
    let part = notes_with(
        &story,
        &Options {
            from: Some(Nanos::from_micros(500)),
            ..Options::default()
        },
    );
    assert!(part.slices.iter().all(|s| s.2.is_none()));
    let gap = part.slices.iter().find(|s| s.1.ends_with(" idle"));
    assert_eq!(gap.unwrap().1, "500..1000 idle");
}

#[test]
fn gaps_and_their_parts_are_those_of_the_report() {
    let story = timeline()
        .kernel((0, 5), (10, 100))
        .main_sleeps((1_000, 9_000), S, Some(NANOSLEEP), None)
        .kernel((9_990, 9_995), (10_000, 10_100));
    let notes = notes(&story);
    let shown: Vec<&str> = notes.slices.iter().map(|s| s.1.as_str()).collect();
    assert!(shown.contains(&"100..10000 idle"), "{shown:?}");
    assert!(shown.contains(&"1000..9000 host.sleep"), "{shown:?}");
    assert_eq!(notes.tracks[0], "GPU 0");
}

#[test]
fn only_the_processes_asked_for_have_states_and_all_have_turns() {
    let story = timeline()
        .runs(10, 2, CHILD)
        .sleeps(100, 1, MAIN, S, Some(FUTEX));
    let notes = notes_with(
        &story,
        &Options {
            pids: vec![Pid(CHILD)],
            ..Options::default()
        },
    );
    assert!(notes.stays.iter().all(|s| s.0 == CHILD));
    assert!(notes.turns.iter().any(|t| t.1.ends_with(":python3")));
    assert!(notes.processes.contains(&MAIN));
}

#[test]
fn births_and_exits_are_told() {
    let story = timeline().born(50, 999, 100, MAIN, "new").runs(60, 2, 999);
    assert_eq!(notes(&story).lives, ["50 on 1: 100 makes new"]);
}

#[test]
fn slices_that_cross_are_on_tracks_of_their_own() {
    let mut notes = Notes::default();
    let mut tracks = lanes::Tracks::new(&mut notes);
    let parent = tracks.group("group").unwrap();
    let slice = |start, end| Slice {
        start: us(start),
        end: us(end),
        name: "x".into(),
        category: "test",
        args: Vec::new(),
        flow: None,
    };
    let mut nested = lanes::Row::nested(parent, "nested", 0);
    for (start, end) in [(0, 10), (2, 5), (4, 12), (10, 20)] {
        assert!(nested.slice(&mut tracks, &slice(start, end)).unwrap());
    }
    let mut flat = lanes::Row::flat(parent, "flat", 1);
    for (start, end) in [(0, 10), (2, 5), (5, 8)] {
        assert!(flat.slice(&mut tracks, &slice(start, end)).unwrap());
    }
    for _ in 0..=lanes::MOST {
        let _ = flat.slice(&mut tracks, &slice(30, 40)).unwrap();
    }
    assert_eq!(tracks.left_out(), 1);
    let track = |i: usize| notes.slices[i].0 .0;
    assert_eq!((0..7).map(track).collect::<Vec<_>>(), [0, 0, 1, 0, 2, 3, 3]);
}
