//! Text and picture of stacks with the names that broke other tools.

use std::collections::BTreeMap;

use super::label::{Ids, Labels};
use super::svg::{self, Picture};
use super::table::Table;
use crate::analyse::stacks::folded::Folded;
use crate::analyse::stacks::frame::{Frame, Work};
use crate::event::{Define, Event, NameId};
use crate::model::Timeline;
use crate::store::meta::Meta;
use crate::units::Nanos;

const HOSTILE: [&str; 17] = [
    "a;b",
    "[x]",
    "[ET_NET 0]",
    "x (y)",
    "Hashed wheel timer #1",
    " lead",
    "",
    "half \u{fffd} utf-8",
    "<&>\"'",
    "]]>",
    "<svg id=\"frames\"",
    "thread 1234",
    "1 2 3",
    "# comment",
    "a\nb\r\u{1b}[31m\u{202e}",
    "\u{ffff}\u{0}",
    "日本 🦀",
];

/// A timeline that knows these names, by number from 1 on.
fn timeline(names: &[&str]) -> Timeline {
    let mut t = Timeline::new(&Meta::default());
    for (id, text) in (1..).map(NameId).zip(names) {
        let text = (*text).to_string();
        t.push(&Event::Define(Define::Name { id, text }));
    }
    t.finish(None);
    t
}

fn native(id: u32) -> Frame {
    Frame::Function {
        name: NameId(id),
        cuda: false,
        inlined: false,
    }
}

fn folded(stacks: &[(&[Frame], u64)]) -> Folded {
    let mut folded = Folded::default();
    for (frames, time) in stacks {
        let leaf = frames
            .iter()
            .fold(Folded::ROOT, |node, &f| folded.push(node, f));
        folded.add(leaf, Nanos(*time));
    }
    folded
}

fn lines(table: &Table) -> Vec<String> {
    table.lines().collect()
}

fn picture() -> Picture {
    Picture {
        title: "title".to_string(),
        width: None,
        min_width: 0.0,
        inverted: false,
    }
}

fn draw(table: &Table) -> String {
    let mut out = Vec::new();
    svg::write(table, &picture(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Each hostile name as a root, as a leaf, and below another.
fn hostile() -> (Timeline, Folded) {
    let t = timeline(&HOSTILE);
    let mut out = Folded::default();
    for (id, time) in (1..=17).zip(100..) {
        for frames in [
            &[native(id)][..],
            &[native(1), native(id)],
            &[native(id), native(2), Frame::Kernel(NameId(id))],
        ] {
            let leaf = frames
                .iter()
                .fold(Folded::ROOT, |node, &f| out.push(node, f));
            out.add(leaf, Nanos(time));
        }
    }
    (t, out)
}

/// Check with the parser of another tool: same stacks, same times.
#[test]
fn folded_text_is_read_back_with_the_same_times() {
    let (t, folded) = hostile();
    let table = Table::of(&folded, &Labels::new(&t, Ids::Shown));
    let mut text = Vec::new();
    table.write(&mut text).unwrap();
    let mut read = Vec::new();
    inferno::differential::from_readers(
        inferno::differential::Options::default(),
        &text[..],
        &text[..],
        &mut read,
    )
    .unwrap();
    let parse = |text: &[u8], columns: usize| -> BTreeMap<String, u64> {
        let text = std::str::from_utf8(text).unwrap().lines();
        text.map(|line| {
            let mut parts = line.rsplitn(columns + 1, ' ');
            let time = parts.next().unwrap().parse().unwrap();
            (parts.last().unwrap().to_string(), time)
        })
        .collect()
    };
    let ours = parse(&text, 1);
    assert_eq!(ours, parse(&read, 2));
    assert_eq!(u128::from(ours.values().sum::<u64>()), folded.total());
    assert_eq!(ours.len(), table.lines().count(), "equal stacks are one");
}

#[test]
fn the_picture_has_all_of_the_time() {
    let (t, folded) = hostile();
    let table = Table::of(&folded, &Labels::new(&t, Ids::Shown));
    let svg = draw(&table);
    let total = format!("total_samples=\"{}\"", folded.total());
    assert!(svg.contains(&total), "{total}");
    assert_eq!(svg.matches("<g id=\"legend\">").count(), 1);
    assert_eq!(svg.matches("<svg id=\"frames\"").count(), 1);
    assert!(!svg.contains(['\u{1b}', '\u{202e}', '\u{ffff}', '\0']));
    assert!(svg.contains(">Frame:") || svg.contains("nametype = 'Frame:'"));
}

#[test]
fn a_name_of_20000_characters_is_whole_in_the_title() {
    let name = "k".repeat(20_000);
    let t = timeline(&[&name]);
    let table = Table::of(
        &folded(&[(&[Frame::Gpu(Work::Kernel(NameId(1)))], 7)]),
        &Labels::new(&t, Ids::Shown),
    );
    let svg = draw(&table);
    assert!(svg.contains(&format!("<title>{name}_[g] (7 ns, 100.00%)</title>")));
    assert!(lines(&table)[0].starts_with(&name));
}

/// Check that neighbours are merged where a blank sorts before the `;` after a shorter name.
#[test]
fn stacks_that_begin_alike_are_one_box() {
    let t = timeline(&["a", "b", "b c", "d"]);
    let folded = folded(&[
        (&[native(1), native(2), native(4)], 1),
        (&[native(1), native(3), native(4)], 2),
        (&[native(1), native(2)], 4),
    ]);
    let svg = draw(&Table::of(&folded, &Labels::new(&t, Ids::Shown)));
    assert_eq!(svg.matches("<title>b (5 ns, 71.43%)</title>").count(), 1);
    assert_eq!(svg.matches("<title>b").count(), 2);
}

#[test]
fn kernel_device_and_host_functions_of_one_name_are_three() {
    let t = timeline(&["f"]);
    let all = [
        native(1),
        Frame::Kernel(NameId(1)),
        Frame::Gpu(Work::Kernel(NameId(1))),
    ];
    let table = Table::of(&folded(&[(&all, 1)]), &Labels::new(&t, Ids::Shown));
    assert_eq!(lines(&table), ["f;f_[k];f_[g] 1"]);
    let svg = draw(&table);
    let fills: std::collections::BTreeSet<&str> = svg
        .match_indices("fill=\"rgb(")
        .map(|(at, _)| &svg[at..at + 24])
        .collect();
    assert!(
        fills.len() >= 6,
        "three in the legend, three drawn: {fills:?}"
    );
}

#[test]
fn two_recordings_have_two_columns() {
    let (before, after) = (timeline(&["a", "b"]), timeline(&["b", "a"]));
    // Ids of names differ between recordings.
    let mut table = Table::of_both(
        (
            &folded(&[(&[native(1)], 10), (&[native(2)], 20)]),
            &Labels::new(&before, Ids::Left),
        ),
        (
            &folded(&[(&[native(2)], 40), (&[native(2), native(1)], 5)]),
            &Labels::new(&after, Ids::Left),
        ),
    );
    assert_eq!(lines(&table), ["a 10 40", "a;b 0 5", "b 20 0"]);
    table.normalize();
    assert_eq!(lines(&table), ["a 15 40", "a;b 0 5", "b 30 0"]);
    assert_eq!(table.totals(), [45, 45]);
    let svg = draw(&table);
    assert!(svg.contains("more than before"));
    assert!(svg.contains("total_samples=\"45\""));
}

#[test]
fn scaling_loses_nothing() {
    let t = timeline(&["a", "b", "c"]);
    let labels = Labels::new(&t, Ids::Left);
    let thirds = folded(&[(&[native(1)], 1), (&[native(2)], 1), (&[native(3)], 1)]);
    let mut table = Table::of_both(
        (&thirds, &labels),
        (&folded(&[(&[native(1)], 100)]), &labels),
    );
    table.normalize();
    assert_eq!(table.totals(), [100, 100]);
}

#[test]
fn reversed_stacks_stand_on_their_leaves() {
    let t = timeline(&["main", "a", "b"]);
    let mut table = Table::of(
        &folded(&[
            (&[native(1), native(2)], 1),
            (&[native(3), native(2)], 2),
            (&[native(1)], 4),
        ]),
        &Labels::new(&t, Ids::Shown),
    );
    table.reverse();
    assert_eq!(lines(&table), ["a;b 2", "a;main 1", "main 4"]);
}
