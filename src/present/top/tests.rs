//! Frames as text, compared with those in `testdata/top` that somebody looked at.

use proptest::prelude::*;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::canvas::columns;
use super::screens::sample;
use super::theme::{Background, Colors};
use super::view::{Open, Tab};
use super::*;
use crate::analyse::cause::Cause;
use crate::analyse::live::{GpuPoint, Launches, Point};
use crate::facts::GpuFacts;
use crate::histogram::Histogram;
use crate::present::sample::{assert_golden, host_only, unknowable};
use crate::present::top::model::{Source, Status};
use crate::units::{Bytes, Nanos};

const UTF8: Theme = Theme::MONO;

/// Where the reports of the samples begin.
const FROM: Nanos = Nanos::from_millis(5_000_300);

fn many_times(times: &[(u64, u64)]) -> Histogram {
    let mut all = Histogram::default();
    for &(count, ns) in times {
        (0..count).for_each(|_| all.add(Nanos(ns)));
    }
    all
}

/// Three GPUs: idle for many reasons, busy, not used.
fn three() -> Model {
    let mut model = sample::model();
    let window = &mut model.window;
    let length = window.to.saturating_sub(window.from);
    window.from = FROM;
    window.to = FROM + length;
    let slice = Nanos::from_millis(500);
    window.points = (0..20_u64)
        .map(|i| {
            let busy = slice.0 * [39, 60, 20, 5, 97][(i % 5) as usize] / 100;
            let point = |gpu, busy: u64| GpuPoint {
                gpu,
                busy: Some(Nanos(busy)),
                idle: Some(Nanos(slice.0 - busy)),
                cause: Some(Cause::Preempted),
                launches: 9_100,
            };
            Point {
                from: Nanos(FROM.0 + i * slice.0),
                to: Nanos(FROM.0 + (i + 1) * slice.0),
                gpus: vec![point(0, busy), point(1, slice.0), point(2, 0)],
                cpu: Some(0.4),
                events: 61_000,
                lost: 0,
            }
        })
        .collect();
    window.launches = vec![Launches {
        gpu: 0,
        call: many_times(&[(178_000, 4_100), (4_004, 31_000)]),
        start: many_times(&[(178_000, 6_900), (4_004, 88_000)]),
    }];
    // They have a test of their own.
    window.report.quality.warnings.clear();
    model.newest = window.to;
    model.oldest = Nanos::from_secs(4_800);
    let idle = GpuFacts {
        index: 0,
        uuid: window.report.gpus[0].uuid.clone(),
        name: "NVIDIA H200".to_string(),
        at: model.newest,
        utilization: Some(97),
        memory_utilization: Some(11),
        memory_used: Some(Bytes(61 << 30)),
        memory_total: Some(Bytes(141 << 30)),
        power_watts: Some(412.4),
        power_limit_watts: Some(700.0),
        temperature_celsius: Some(61),
        sm_clock_mhz: Some(1_755),
        sm_clock_max_mhz: Some(1_980),
        memory_clock_mhz: Some(3_201),
        throttle: Some(vec!["power cap".to_string()]),
        ..GpuFacts::default()
    };
    let busy = GpuFacts {
        index: 1,
        uuid: window.report.gpus[1].uuid.clone(),
        utilization: Some(100),
        throttle: Some(Vec::new()),
        ..idle.clone()
    };
    model.facts = vec![idle, busy];
    model.status = Status {
        wall_s: 1_772_287_341,
        utc_offset_s: 3_600,
        event_rate: 98_123.0,
        own_cpu: 0.021,
        own_memory: Bytes(38_200_000),
        ..Status::default()
    };
    model
}

/// What a person mostly has: one GPU that waits.
fn one() -> Model {
    let mut model = three();
    model.window.report.gpus.truncate(1);
    model
}

/// A machine with sixteen of them.
fn sixteen() -> Model {
    let mut model = three();
    let three = model.window.report.gpus.clone();
    model.window.report.gpus = (0..16)
        .map(|i| {
            let mut gpu = three[i % 3].clone();
            gpu.index = u32::try_from(i).unwrap();
            gpu
        })
        .collect();
    model
}

fn at(tab: Tab) -> View {
    let mut view = View::new(Nanos::from_secs(10));
    view.go(tab);
    view
}

fn opened(tab: Tab, what: Open) -> View {
    let mut view = at(tab);
    view.open(what);
    view
}

fn first_gap(model: &Model) -> Open {
    Open::Gap {
        gpu: 0,
        start: model.window.report.gpus[0].gaps[0].start,
    }
}

fn drawn(model: &Model, view: &View, theme: &Theme, (width, height): (u16, u16)) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buf = Buffer::filled(area, ratatui::buffer::Cell::new("\u{7}"));
    let mut view = view.clone();
    view.size = (width, height);
    draw(model, &view, theme, area, &mut buf);
    buf
}

/// A line for each of the screen; the second half of a wide character takes no place in it.
fn text_of(buf: &Buffer) -> String {
    let mut text = String::new();
    for y in buf.area.top()..buf.area.bottom() {
        let mut line = String::new();
        let mut x = buf.area.left();
        while x < buf.area.right() {
            let symbol = buf[(x, y)].symbol();
            line.push_str(symbol);
            x += columns(symbol).max(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Below each line a letter for the style of each cell, and at the end what the letters mean.
fn styles_of(buf: &Buffer) -> String {
    let mut known: Vec<(Color, Color, Modifier)> = Vec::new();
    let mut text = String::new();
    for (y, line) in text_of(buf).lines().enumerate() {
        let y = u16::try_from(y).unwrap();
        let letters: String = (0..buf.area.width)
            .map(|x| {
                let cell = &buf[(x, y)];
                let style = (cell.fg, cell.bg, cell.modifier);
                let plain = (Color::Reset, Color::Reset, Modifier::empty());
                if style == plain {
                    return ' ';
                }
                let at = known.iter().position(|k| *k == style).unwrap_or_else(|| {
                    known.push(style);
                    known.len() - 1
                });
                ('a'..='z').chain('A'..='Z').nth(at).unwrap()
            })
            .collect();
        text.push_str(&format!("{line}\n{}\n", letters.trim_end()));
    }
    for (letter, (fg, bg, modifier)) in ('a'..='z').chain('A'..='Z').zip(&known) {
        text.push_str(&format!("{letter}: {fg:?} on {bg:?}, {modifier:?}\n"));
    }
    text
}

fn golden(name: &str, model: &Model, view: &View, theme: &Theme, size: (u16, u16)) {
    let buf = drawn(model, view, theme, size);
    let name = format!("top/{name}-{}x{}.txt", size.0, size.1);
    assert_golden(&name, &text_of(&buf));
}

#[test]
fn the_overview_of_one_gpu_is_the_golden_one() {
    for size in [(20, 5), (40, 12), (80, 24), (120, 40), (300, 100)] {
        golden("overview", &one(), &at(Tab::Overview), &UTF8, size);
    }
}

#[test]
fn the_overview_of_many_gpus_is_the_golden_one() {
    for size in [(20, 5), (80, 24), (120, 40)] {
        golden("three", &three(), &at(Tab::Overview), &UTF8, size);
        golden("sixteen", &sixteen(), &at(Tab::Overview), &UTF8, size);
    }
}

#[test]
fn without_a_gpu_there_is_the_scheduler() {
    for size in [(20, 5), (80, 24), (120, 40)] {
        golden(
            "machine",
            &sample::machine(),
            &at(Tab::Overview),
            &UTF8,
            size,
        );
        golden("empty", &sample::empty(), &at(Tab::Overview), &UTF8, size);
    }
    let mut model = one();
    model.window.report = host_only();
    golden("host", &model, &at(Tab::Overview), &UTF8, (80, 24));
    model.window.report = unknowable();
    golden("unknowable", &model, &at(Tab::Overview), &UTF8, (80, 24));
}

#[test]
fn each_tab_is_the_golden_one() {
    for (name, tab) in [
        ("causes", Tab::Causes),
        ("gaps", Tab::Gaps),
        ("threads", Tab::Threads),
        ("calls", Tab::Calls),
        ("kernels", Tab::Kernels),
        ("cpus", Tab::Cpus),
        ("processes", Tab::Processes),
    ] {
        for size in [(80, 24), (120, 40)] {
            golden(name, &three(), &at(tab), &UTF8, size);
        }
    }
}

#[test]
fn what_is_opened_is_the_golden_one() {
    let model = three();
    let thread = Open::Thread {
        pid: crate::event::Pid(4711),
        tid: crate::event::Tid(4711),
    };
    for (name, tab, what) in [
        ("cause", Tab::Causes, Open::Cause(Cause::Preempted)),
        ("gap", Tab::Gaps, first_gap(&model)),
        ("thread", Tab::Threads, thread),
        ("call", Tab::Calls, Open::Call("read".to_string())),
        (
            "kernel",
            Tab::Kernels,
            Open::Kernel("ampere_sgemm_128x64_nn".to_string()),
        ),
    ] {
        for size in [(80, 24), (120, 40)] {
            golden(name, &model, &opened(tab, what.clone()), &UTF8, size);
        }
    }
}

#[test]
fn the_help_is_the_golden_one() {
    let mut view = at(Tab::Overview);
    view.help = true;
    golden("help", &three(), &view, &UTF8, (80, 24));
    golden("help", &three(), &view, &UTF8, (120, 60));
}

#[test]
fn a_held_window_losses_and_messages_are_loud() {
    let mut model = one();
    let mut view = at(Tab::Overview);
    view.held = Some(Nanos(model.newest.0 - 12_500_000_000));
    model.status.lost = 12_345;
    model.status.behind = Some(Nanos::from_millis(1_200));
    model.status.warnings = vec![
        "12 scheduling events were lost on CPU 3 between 2.1 s and 2.2 s: gaps in that time are unknown.measurement".to_string(),
        "the wall clock was stepped once".to_string(),
    ];
    model.window.report.quality.warnings = vec![
        "the wall clock was stepped once".to_string(),
        "too little came back of process 4711".to_string(),
        "one more".to_string(),
    ];
    golden("trouble", &model, &view, &UTF8, (80, 24));
    golden("trouble", &model, &view, &UTF8, (40, 7));
    golden("trouble", &model, &view, &UTF8, (120, 40));
    model.status.message = Some("wrote gdiag-top.1.data, the last 2 minutes".to_string());
    model.source = Source::Recording {
        path: "/var/tmp/gdiag.data".into(),
        speed: 0.5,
        start: Nanos::from_secs(5_000),
        end: Nanos::from_secs(5_083),
        over: false,
    };
    golden("replay", &model, &at(Tab::Gaps), &UTF8, (80, 24));
}

#[test]
fn a_list_shows_its_order_and_what_the_filter_found() {
    let model = three();
    let mut view = at(Tab::Causes);
    view.size = (80, 24);
    type_keys(&mut view, &model, "sss/DISK");
    golden("filter", &model, &view, &UTF8, (80, 24));
    let buf = drawn(&model, &view, &UTF8, (80, 24));
    let found = |x: u16, y: u16| buf[(x, y)].modifier.contains(Modifier::UNDERLINED);
    let marked: String = (4..24)
        .flat_map(|y| (0..80).map(move |x| (x, y)))
        .filter(|&(x, y)| found(x, y))
        .map(|at| buf[at].symbol().to_string())
        .collect();
    assert!(marked.contains("disk"), "{marked}");
}

#[test]
fn colors_suit_the_terminal() {
    let model = one();
    let view = at(Tab::Overview);
    for (name, colors, background) in [
        ("mono", Colors::None, Background::Dark),
        ("sixteen-light", Colors::Sixteen, Background::Light),
        ("many-dark", Colors::Many, Background::Dark),
        ("many-light", Colors::Many, Background::Light),
    ] {
        let theme = Theme {
            colors,
            background,
            unicode: true,
        };
        let buf = drawn(&model, &view, &theme, (80, 24));
        assert_golden(&format!("top/colors-{name}.txt"), &styles_of(&buf));
        // Whatever the colors, the same is said.
        assert_eq!(
            text_of(&buf),
            text_of(&drawn(&model, &view, &UTF8, (80, 24)))
        );
        if colors == Colors::None {
            let plain =
                |cell: &ratatui::buffer::Cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset);
            assert!(buf.content().iter().all(plain));
        }
    }
}

#[test]
fn without_utf_8_all_is_ascii() {
    let theme = Theme {
        unicode: false,
        ..UTF8
    };
    golden("ascii", &one(), &at(Tab::Overview), &theme, (80, 24));
    for model in odd_models() {
        for tab in Tab::ALL {
            let buf = drawn(&model, &at(tab), &theme, (120, 40));
            assert!(text_of(&buf).is_ascii());
        }
    }
}

#[test]
fn hostile_names_are_the_golden_ones() {
    let model = hostile();
    golden(
        "hostile-overview",
        &model,
        &at(Tab::Overview),
        &UTF8,
        (80, 24),
    );
    golden("hostile-causes", &model, &at(Tab::Causes), &UTF8, (120, 40));
    golden(
        "hostile-threads",
        &model,
        &at(Tab::Threads),
        &UTF8,
        (120, 40),
    );
    golden(
        "hostile-gap",
        &model,
        &opened(Tab::Gaps, first_gap(&model)),
        &UTF8,
        (80, 24),
    );
}

fn hostile() -> Model {
    let mut model = sample::hostile("訓\u{202e}e\u{301}\u{301}\u{301}\x1b[2J👩\u{200d}👧");
    let three = three();
    model.host = "\x1b]0;h\x07\u{5d0}\u{5d1}".to_string();
    model.newest = three.newest;
    model.window.from = three.window.from;
    model.window.to = three.window.to;
    model.status.warnings = vec!["a\nb\u{2066}\u{fe0f}".to_string()];
    model
}

/// Models with something unusual about them.
fn odd_models() -> Vec<Model> {
    let mut late = three();
    late.window.from = Nanos::MAX;
    late.newest = Nanos::ZERO;
    late.status.own_cpu = f64::NAN;
    late.status.event_rate = f64::INFINITY;
    late.status.wall_s = i64::MAX;
    let mut recording = sixteen();
    recording.source = Source::Recording {
        path: "\u{202e}".into(),
        speed: f64::NAN,
        start: Nanos::MAX,
        end: Nanos::ZERO,
        over: false,
    };
    let mut host = one();
    host.window.report = host_only();
    let mut unknown = one();
    unknown.window.report = unknowable();
    vec![
        one(),
        three(),
        hostile(),
        late,
        recording,
        host,
        unknown,
        sample::machine(),
        sample::empty(),
        sample::instant(),
    ]
}

fn press(c: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)
}

fn type_keys(view: &mut View, model: &Model, keys: &str) -> Vec<Option<Ask>> {
    let press = |c| match c {
        '\n' => KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE),
        '\x1b' => KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE),
        c => press(c),
    };
    keys.chars().map(|c| view.key(press(c), model)).collect()
}

/// Check that each cell holds one character of a known width, and nothing that a terminal would act on.
fn assert_clean(buf: &Buffer) {
    for y in buf.area.top()..buf.area.bottom() {
        let mut x = buf.area.left();
        while x < buf.area.right() {
            let symbol = buf[(x, y)].symbol();
            let width = columns(symbol);
            assert!((1..=2).contains(&width), "{symbol:?} at {x},{y}");
            assert_eq!(super::canvas::shown(symbol, true), symbol);
            assert!(
                symbol
                    .chars()
                    .filter(|c| columns(&c.to_string()) > 0)
                    .count()
                    == 1
            );
            assert!(x + width <= buf.area.right(), "{symbol:?} at {x},{y}");
            for x in x + 1..x + width {
                assert_eq!(buf[(x, y)].symbol(), " ", "after {symbol:?} at {x},{y}");
            }
            x += width;
        }
    }
}

#[test]
fn nothing_outside_of_the_area_is_touched() {
    let mut buf = Buffer::filled(Rect::new(0, 0, 60, 20), ratatui::buffer::Cell::new("X"));
    let area = Rect::new(7, 3, 40, 12);
    draw(&hostile(), &at(Tab::Overview), &UTF8, area, &mut buf);
    for y in 0..20 {
        for x in 0..60 {
            let inside = area.contains((x, y).into());
            assert!(inside || buf[(x, y)].symbol() == "X", "{x},{y}");
        }
    }
}

fn any_key() -> impl Strategy<Value = KeyEvent> {
    let codes = prop_oneof![
        8 => prop::sample::select("kjlhgGnN/<>srI p[]{}+-.,cwP?12345678qab".chars().collect::<Vec<_>>()).prop_map(KeyCode::Char),
        3 => prop::sample::select(vec![
            KeyCode::Up, KeyCode::Down, KeyCode::PageUp, KeyCode::PageDown, KeyCode::Home, KeyCode::End,
            KeyCode::Enter, KeyCode::Esc, KeyCode::Backspace, KeyCode::Tab, KeyCode::BackTab, KeyCode::Left,
            KeyCode::Right, KeyCode::F(1), KeyCode::F(4),
        ]),
        1 => any::<char>().prop_map(KeyCode::Char),
    ];
    let with = prop_oneof![4 => Just(KeyModifiers::NONE), 1 => Just(KeyModifiers::CONTROL)];
    (codes, with).prop_map(|(code, with)| KeyEvent::new(code, with))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Check that no keys on no model bring a frame of no size out of shape. Models change under the view.
    #[test]
    fn any_keys_at_any_size_draw_clean_cells(
        keys in prop::collection::vec((any_key(), 0usize..40), 0..24),
        size in (1u16..=300, 1u16..=100),
        unicode: bool,
        first in 0usize..10,
    ) {
        let models = odd_models();
        let theme = Theme { unicode, ..UTF8 };
        let mut at = first;
        let mut view = View::new(Nanos::from_secs(10));
        view.size = size;
        for (key, next) in keys {
            view.key(key, &models[at]);
            at = if next < models.len() { next } else { at };
        }
        let buf = drawn(&models[at], &view, &theme, size);
        assert_clean(&buf);
    }
}
