use super::*;
use proptest::prelude::*;

fn code(first_line: i32, lines: &[u8], cut: bool) -> Code {
    Code {
        function: String::new(),
        file: String::new(),
        first_line,
        lines: lines.to_vec(),
        cut,
    }
}

/// The line of each instruction, as CPython's own `co_lines` tells it (0: none).
fn check(format: LineFormat, lines: &[u8], expected: &[u32]) {
    let code = code(1, lines, false);
    let got: Vec<u32> = (0i32..)
        .step_by(2)
        .take(expected.len())
        .map(|instr| code.line(format, instr))
        .collect();
    assert_eq!(got, expected);
    assert_eq!(code.line(format, -1), 1);
}

// The tables of one function, made by CPython itself. It has calls over several lines, which go
// back to earlier ones, an empty line, and a `finally` that is compiled twice:
//
//  1 def f(a,
//  2       b):
//  3     x = [i
//  4          for i in a]
//  5     if x:
//  7         y = (a +
//  9              b(1,
// 10                2))
// 11     else:
// 12         return None
// 13     try:
// 14         z = 1
// 15     finally:
// 16         x.append(y)
// 17     return (x,
// 18             y)

#[test]
fn lines_of_3_9() {
    check(
        LineFormat::Steps,
        &[
            0, 2, 6, 1, 2, 255, 6, 2, 4, 2, 2, 2, 4, 1, 2, 255, 2, 254, 6, 5, 4, 1, 2, 1, 6, 2, 24,
            1, 2, 1, 2, 255,
        ],
        &[
            3, 3, 3, 4, 3, 3, 3, 5, 5, 7, 9, 9, 10, 9, 7, 7, 7, 12, 12, 13, 14, 14, 14, 16, 16, 16,
            16, 16, 16, 16, 16, 16, 16, 16, 16, 17, 18, 17, 17,
        ],
    );
}

#[test]
fn lines_of_3_10() {
    check(
        LineFormat::Ranges,
        &[
            6, 2, 2, 1, 6, 255, 4, 2, 2, 2, 4, 2, 2, 1, 2, 255, 6, 254, 4, 5, 2, 1, 6, 1, 10, 2, 2,
            1, 2, 1, 4, 255, 12, 255,
        ],
        &[
            3, 3, 3, 4, 3, 3, 3, 5, 5, 7, 9, 9, 10, 9, 7, 7, 7, 12, 12, 13, 14, 14, 14, 16, 16, 16,
            16, 16, 17, 18, 17, 17, 16, 16, 16, 16, 16, 16,
        ],
    );
}

#[test]
fn lines_of_3_13() {
    check(
        LineFormat::Locations,
        &[
            128, 0, 241, 6, 0, 19, 20, 243, 3, 1, 9, 21, 217, 18, 19, 136, 81, 243, 3, 0, 10, 11,
            217, 18, 19, 240, 3, 0, 5, 6, 240, 0, 1, 9, 21, 230, 7, 8, 224, 13, 14, 225, 13, 14,
            136, 113, 216, 15, 16, 243, 3, 1, 14, 18, 241, 5, 3, 14, 18, 137, 1, 240, 10, 0, 16,
            20, 240, 2, 3, 5, 20, 216, 12, 13, 136, 1, 224, 8, 9, 143, 8, 137, 8, 144, 17, 140, 11,
            216, 12, 13, 216, 12, 13, 240, 3, 1, 12, 15, 240, 0, 1, 5, 15, 249, 242, 29, 1, 9, 21,
            248, 240, 26, 0, 9, 10, 143, 8, 137, 8, 144, 17, 141, 11, 250,
        ],
        &[
            1, 4, 4, 3, 3, 3, 3, 4, 4, 4, 3, 3, 3, 3, 4, 4, 3, 3, 5, 5, 5, 5, 5, 5, 5, 7, 9, 9, 9,
            10, 9, 9, 9, 9, 7, 7, 7, 7, 12, 13, 14, 14, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16,
            16, 16, 16, 16, 16, 16, 17, 18, 17, 17, 0, 0, 3, 3, 3, 0, 16, 16, 16, 16, 16, 16, 16,
            16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0,
        ],
    );
}

#[test]
fn a_range_of_no_line_in_3_10_has_none() {
    let code = code(5, &[4, 1, 4, 0x80, 4, 1], false);
    let lines = [0, 4, 8, 12].map(|instr| code.line(LineFormat::Ranges, instr));
    assert_eq!(lines, [6, 0, 7, 0]);
}

#[test]
fn beyond_a_cut_table_the_line_is_unknown() {
    let steps = code(1, &[10, 1, 10, 1], true);
    assert_eq!(steps.line(LineFormat::Steps, 15), 2);
    assert_eq!(steps.line(LineFormat::Steps, 25), 0);
    let whole = code(1, &[10, 1, 10, 1], false);
    assert_eq!(whole.line(LineFormat::Steps, 25), 3);
}

#[test]
fn texts_of_all_widths() {
    assert_eq!(text(b"run", 1), "run");
    assert_eq!(text(b"caf\xe9", 1 + 16), "caf\u{e9}");
    let wide: Vec<u8> = "\u{11c}ar"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(text(&wide, 2 + 16), "\u{11c}ar");
    let widest: Vec<u8> = "\u{1f40d}x"
        .chars()
        .flat_map(|c| (c as u32).to_le_bytes())
        .collect();
    assert_eq!(text(&widest, 4 + 16), "\u{1f40d}x");
    // Half of a pair, which a str may hold.
    assert_eq!(text(&[0x3d, 0xd8], 2 + 16), "\u{fffd}");
    assert_eq!(text(b"", 0), "");
}

proptest! {
    #[test]
    fn no_table_makes_it_panic(
        lines in proptest::collection::vec(any::<u8>(), 0..200),
        first in any::<i32>(),
        instr in any::<i32>(),
        cut in any::<bool>(),
    ) {
        let code = code(first, &lines, cut);
        for format in [LineFormat::Steps, LineFormat::Ranges, LineFormat::Locations] {
            code.line(format, instr);
        }
    }

    #[test]
    fn no_record_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4200)) {
        Code::read(&bytes);
    }

    /// Check that merging never loses, repeats or reorders a Python frame.
    #[test]
    fn merging_keeps_every_python_frame(
        native in proptest::collection::vec(0u8..3, 0..30),
        python in proptest::collection::vec(any::<bool>(), 0..30),
        whole in any::<(bool, bool)>(),
    ) {
        let native: Vec<Part> = native
            .iter()
            .map(|n| [Part::Other, Part::Loop, Part::Entry][usize::from(*n)])
            .collect();
        let merged = merge(
            Side { frames: &native, whole: whole.0 },
            Side { frames: &python, whole: whole.1 },
        );
        let kept: Vec<usize> = (merged.frames.iter())
            .filter_map(|place| match place {
                Place::Python(i) => Some(*i),
                Place::Native(_) => None,
            })
            .collect();
        prop_assert_eq!(kept, (0..python.len()).collect::<Vec<_>>());
        let natives: Vec<usize> = (merged.frames.iter())
            .filter_map(|place| match place {
                Place::Native(i) => Some(*i),
                Place::Python(_) => None,
            })
            .collect();
        prop_assert!(natives.is_sorted());
    }
}

/// Native frames leaf first, a letter each: `L` a loop, `E` what only begins a call of it, others as they
/// are. Python frames: `e` is the outermost of its call. The result has `0`, `1`… for Python.
fn merged(native: &str, python: &str, whole: (bool, bool)) -> (String, bool) {
    let parts: Vec<Part> = native
        .chars()
        .map(|c| match c {
            'L' => Part::Loop,
            'E' => Part::Entry,
            _ => Part::Other,
        })
        .collect();
    let entries: Vec<bool> = python.chars().map(|c| c == 'e').collect();
    let merged = merge(
        Side {
            frames: &parts,
            whole: whole.0,
        },
        Side {
            frames: &entries,
            whole: whole.1,
        },
    );
    let text = merged
        .frames
        .iter()
        .map(|place| match place {
            Place::Native(i) => char::from(native.as_bytes()[*i]),
            Place::Python(i) => char::from_digit(*i as u32, 36).expect("few frames"),
        })
        .collect();
    (text, merged.exact)
}

#[test]
fn each_call_of_the_loop_is_replaced_by_its_frames() {
    let whole = (true, true);
    assert_eq!(
        merged("abLcdLm", "..e.e", whole),
        ("ab012cd34m".into(), true)
    );
    // Without anything in between, two frames of the loop are two calls.
    assert_eq!(merged("LLm", "e.e", whole), ("012m".into(), true));
    assert_eq!(merged("abm", "", whole), ("abm".into(), true));
}

#[test]
fn what_begins_a_call_of_the_loop_belongs_to_it() {
    let whole = (true, true);
    assert_eq!(merged("aLEcLEm", ".ee", whole), ("a01c2m".into(), true));
    assert_eq!(merged("LELEm", "ee", whole), ("01m".into(), true));
    // Where it was inlined, it has no frame.
    assert_eq!(merged("aLcLEm", ".ee", whole), ("a01c2m".into(), true));
    // What it called is the loop, or a part of it without a name.
    assert_eq!(merged("aoEcoEm", ".ee", whole), ("a01c2m".into(), true));
    assert_eq!(merged("oEoEm", "ee", whole), ("01m".into(), true));
    // The leaf: it has called nothing yet.
    assert_eq!(merged("Em", "e", whole), ("0m".into(), true));
    assert_eq!(merged("ELEm", "ee", whole), ("01m".into(), true));
}

#[test]
fn callers_beyond_a_cut_native_stack_come_last() {
    assert_eq!(
        merged("aLb", "ee.e", (false, true)),
        ("a0b123".into(), false)
    );
    assert_eq!(merged("a", "e", (false, true)), ("a0".into(), false));
}

#[test]
fn a_loop_that_has_no_frame_yet_stays_native() {
    assert_eq!(merged("LcLm", ".e", (true, true)), ("Lc01m".into(), false));
}

#[test]
fn loops_beyond_cut_python_frames_stay_native() {
    assert_eq!(
        merged("aLbLcLm", "e..", (true, false)),
        ("a0b12cLm".into(), false)
    );
}
