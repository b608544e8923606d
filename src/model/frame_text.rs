//! How a frame of a user stack reads: the same in reports, flame graphs and everywhere else.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use crate::demangle;
use crate::event::{CallStackId, Cut, Frame, FrameId};
use crate::model::frames::is_libc;
use crate::model::names::Names;

/// A file's name without its folders.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A native function, without return type and parameters.
pub fn function(mangled: &str) -> Cow<'_, str> {
    demangle::short(mangled)
}

/// A place in a file of which no function is known: `libfoo.so+0x1234`.
pub fn address(module: &str, address: u64) -> String {
    format!("{}+{address:#x}", or_unknown(file_name(module)))
}

/// A recording that lost a chunk can have lost names with it.
fn or_unknown(name: &str) -> &str {
    if name.is_empty() {
        UNKNOWN
    } else {
        name
    }
}

const UNKNOWN: &str = "?";

/// Code outside of every file.
pub const ANONYMOUS: &str = "[code made at run time]";

/// `load_batch (train.py:41)`
pub fn python(function: &str, file: &str, line: u32) -> String {
    let (function, file) = (or_unknown(function), file_name(file));
    match (file.is_empty(), line) {
        (true, _) => function.to_string(),
        (false, 0) => format!("{function} ({file})"),
        (false, line) => format!("{function} ({file}:{line})"),
    }
}

/// What stands where callers are missing.
pub fn cut(cut: Cut) -> &'static str {
    match cut {
        Cut::NotYet => "[cut: file not read yet]",
        Cut::Unmapped => "[cut: code in no file]",
        Cut::NoTable => "[cut: no unwind table]",
        Cut::Unsupported => "[cut: unwind table not understood]",
        Cut::Unreadable => "[cut: stack not in memory]",
        Cut::TooDeep => "[cut: too deep]",
    }
}

/// Calls `each` with the text of a frame: once, or for each function that was inlined there, innermost first.
pub fn frame<'n>(names: &'n Names, id: FrameId, mut each: impl FnMut(Cow<'n, str>)) {
    match names.frame(id) {
        None => each(Cow::Borrowed(UNKNOWN)),
        Some(Frame::Anonymous { .. }) => each(Cow::Borrowed(ANONYMOUS)),
        Some(Frame::Python {
            function,
            file,
            line,
        }) => each(Cow::Owned(python(
            names.get(function),
            names.get(file),
            line,
        ))),
        Some(Frame::Native {
            module,
            address: at,
            ..
        }) => {
            let mut named = false;
            for f in names.functions(id) {
                let name = names.get(f.name);
                if !name.is_empty() {
                    named = true;
                    each(function(name));
                }
            }
            if !named {
                each(Cow::Owned(address(names.get(module), at)));
            }
        }
    }
}

/// All frames of a user stack, leaf first; one that is cut ends with the reason.
pub fn stack(names: &Names, id: CallStackId) -> Vec<String> {
    let mut texts = Vec::new();
    if let Some(stack) = names.call_stack(id) {
        for &id in stack.frames {
            frame(names, id, |text| texts.push(text.into_owned()));
        }
        texts.extend(stack.cut.map(|c| cut(c).to_string()));
    }
    texts
}

/// Frames of a stack that are worth a line, at most.
const TELLING: usize = 4;

/// The frames of a user stack that say most, leaf first: what the program itself was doing. With Python on
/// it that is its Python, and the native function that this called, if any. The C library, the interpreter and
/// the CUDA runtime are left out, and what has no name. Can be empty.
pub fn telling(names: &Names, id: CallStackId) -> Vec<String> {
    let mut texts = Vec::new();
    let frames = telling_frames(names, id);
    let is_python = |&id: &FrameId| matches!(names.frame(id), Some(Frame::Python { .. }));
    let python = frames.iter().any(is_python);
    for id in frames {
        let before = texts.len();
        frame(names, id, |text| texts.push(text.into_owned()));
        // Of functions that were inlined the outermost, which is what Python called.
        if python && texts.len() > before {
            texts.drain(before..texts.len() - 1);
        }
    }
    texts.truncate(TELLING);
    texts
}

/// The frames of [`telling`].
pub fn telling_frames(names: &Names, id: CallStackId) -> Vec<FrameId> {
    let frames = names.call_stack(id).map_or(&[][..], |s| s.frames);
    let (mut native, mut python) = (Vec::new(), Vec::new());
    for &id in frames {
        match names.frame(id) {
            Some(Frame::Python { .. }) => python.push(id),
            Some(Frame::Native { module, .. }) => {
                let named = !names.functions(id).is_empty();
                if named && python.is_empty() && !is_plumbing(names.get(module)) {
                    native.push(id);
                }
            }
            Some(Frame::Anonymous { .. }) | None => {}
        }
        if python.len() >= TELLING {
            break;
        }
    }
    if !python.is_empty() {
        native.truncate(1);
    }
    native.append(&mut python);
    native.truncate(TELLING);
    native
}

/// A library that every program of the kind goes through.
fn is_plumbing(module: &str) -> bool {
    let file = file_name(module);
    is_libc(module)
        || module.contains("/lib-dynload/")
        || file == "[vdso]"
        || [
            "python",
            "libpython",
            "libffi.",
            "libffi-",
            "libcuda.",
            "libcudart",
        ]
        .iter()
        .any(|start| file.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Define, Function, NameId};

    /// Stack 1 of these frames: `module+0x10`, `module:function`, `module:inlined:function`, or
    /// `function@file:line` of Python.
    fn names(frames: &[&str], why: Option<Cut>) -> Names {
        let mut names = Names::default();
        let mut last = 0;
        let mut name = |names: &mut Names, text: &str| {
            last += 1;
            let id = NameId(last);
            let text = text.to_string();
            names.define(&Define::Name { id, text });
            id
        };
        for (id, text) in (1..).map(FrameId).zip(frames) {
            let native = |module| Frame::Native {
                module,
                build_id: NameId(0),
                address: 0x10,
            };
            let mut functions = Vec::new();
            let frame = if let Some((function, place)) = text.split_once('@') {
                let (file, line) = place.split_once(':').unwrap();
                Frame::Python {
                    function: name(&mut names, function),
                    file: name(&mut names, file),
                    line: line.parse().unwrap(),
                }
            } else if *text == "anonymous" {
                Frame::Anonymous { address: 1 }
            } else {
                let mut parts = text.split([':', '+']);
                let frame = native(name(&mut names, parts.next().unwrap()));
                let named = parts.filter(|part| *part != "0x10");
                functions.extend(named.map(|part| Function {
                    name: name(&mut names, part),
                    file: NameId(0),
                    line: 0,
                }));
                frame
            };
            names.define(&Define::Frame { id, frame });
            if !functions.is_empty() {
                names.define(&Define::Functions {
                    frame: id,
                    functions,
                });
            }
        }
        names.define(&Define::CallStack {
            id: CallStackId(1),
            frames: (1..).map(FrameId).take(frames.len()).collect(),
            cut: why,
        });
        names.finish();
        names
    }

    #[test]
    fn every_kind_of_frame_has_a_text() {
        let names = names(
            &[
                "/usr/lib/libc.so.6+0x10",
                "/opt/a.so:_ZN1a5innerEv:_ZN1a5outerEi",
                "anonymous",
                "load_batch@/src/train.py:41",
                "main@train.py:0",
                "builtin@:0",
                "[vdso]+0x10",
            ],
            Some(Cut::NoTable),
        );
        assert_eq!(
            stack(&names, CallStackId(1)),
            [
                "libc.so.6+0x10",
                "a::inner",
                "a::outer",
                "[code made at run time]",
                "load_batch (train.py:41)",
                "main (train.py)",
                "builtin",
                "[vdso]+0x10",
                "[cut: no unwind table]",
            ]
        );
        assert!(stack(&names, CallStackId(0)).is_empty());
    }

    #[test]
    fn what_was_lost_is_not_made_up() {
        assert_eq!(address("", 16), "?+0x10");
        assert_eq!(python("", "", 3), "?");
        assert_eq!(python("", "/a.py", 3), "? (a.py:3)");
        let mut lost = Names::default();
        lost.define(&Define::CallStack {
            id: CallStackId(1),
            frames: vec![FrameId(7)],
            cut: None,
        });
        assert_eq!(stack(&lost, CallStackId(1)), ["?"]);
        assert!(telling(&lost, CallStackId(1)).is_empty());
    }

    #[test]
    fn few_frames_tell() {
        let inlined = names(&["app:a:b:c:d:e", "app:main"], None);
        assert_eq!(telling(&inlined, CallStackId(1)), ["a", "b", "c", "d"]);
    }

    #[test]
    fn what_the_program_did_is_its_python_and_what_that_called() {
        for (frames, expected) in [
            (
                &[
                    "/lib/libc.so.6:memcpy",
                    "a.so:copy",
                    "a.so:outer",
                    "/usr/bin/python3.12:call",
                    "load@a.py:1",
                    "b.so:other",
                    "main@a.py:9",
                ][..],
                &["copy", "load (a.py:1)", "main (a.py:9)"][..],
            ),
            (
                &[
                    "/lib/libc.so.6:wait",
                    "libpython3.12.so:take_gil",
                    "f@a.py:1",
                ],
                &["f (a.py:1)"],
            ),
            (
                &["/lib/libc.so.6:read", "app+0x10", "app:f:g", "app:main"],
                &["f", "g", "main"],
            ),
            (&["app+0x10", "libc.so.6:start"], &[]),
            // The driver looks at the clock while it waits, and ctypes calls through libffi.
            (
                &[
                    "[vdso]:clock_gettime",
                    "libcuda.so.1:wait",
                    "libffi.so.8:ffi_call",
                    "step@train.py:28",
                ],
                &["step (train.py:28)"],
            ),
            (
                &["a@x:1", "b@x:2", "c@x:3", "d@x:4", "e@x:5"],
                &["a (x:1)", "b (x:2)", "c (x:3)", "d (x:4)"],
            ),
        ] {
            assert_eq!(telling(&names(frames, None), CallStackId(1)), expected);
        }
    }
}
