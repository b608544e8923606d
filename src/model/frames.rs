//! User stacks as the recording defines them, and what their frames say.
#![forbid(unsafe_code)]

use crate::event::{CallStackId, Cut, Frame, FrameId, Function, NameId};
use crate::model::fxhash::FxHashMap;

/// A user stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallStack<'a> {
    /// Leaf first.
    pub frames: &'a [FrameId],
    /// Why callers are missing at its root; `None` when none are.
    pub cut: Option<Cut>,
}

/// What the frames of a user stack say about the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTraits(u8);

impl CallTraits {
    /// It asks for Python's interpreter lock.
    pub const TAKES_GIL: u8 = 1 << 0;
    /// In Python's garbage collector.
    pub const COLLECTS: u8 = 1 << 1;
    /// Python code is on it.
    pub const PYTHON: u8 = 1 << 2;
    /// What is not seen in it is not there: from the leaf to the first line of Python every function
    /// outside of libc has a name, or the one that called libc has (the interpreter lock is waited for
    /// by functions of its own).
    pub const NAMED: u8 = 1 << 3;

    pub fn has(self, traits: u8) -> bool {
        self.0 & traits != 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    len: usize,
    cut: Option<Cut>,
    traits: CallTraits,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Frames {
    stacks: FxHashMap<CallStackId, Entry>,
    /// The frames of all stacks.
    lists: Vec<FrameId>,
    frames: FxHashMap<FrameId, Frame>,
    functions: FxHashMap<FrameId, Box<[Function]>>,
}

impl Frames {
    pub(super) fn define_frame(&mut self, id: FrameId, frame: Frame) {
        self.frames.insert(id, frame);
    }

    pub(super) fn define_stack(&mut self, id: CallStackId, frames: &[FrameId], cut: Option<Cut>) {
        let entry = Entry {
            start: self.lists.len(),
            len: frames.len(),
            cut,
            traits: CallTraits::default(),
        };
        self.lists.extend(frames);
        self.stacks.insert(id, entry);
    }

    pub(super) fn define_functions(&mut self, frame: FrameId, functions: &[Function]) {
        self.functions.insert(frame, functions.into());
    }

    /// When all is defined: `name` tells the text of a name.
    pub(super) fn finish<'a>(&mut self, name: impl Fn(NameId) -> &'a str) {
        let of_frame: FxHashMap<FrameId, Says> = self
            .frames
            .iter()
            .map(|(&id, frame)| {
                let functions = self.functions.get(&id).map_or(&[][..], AsRef::as_ref);
                (id, Says::of(frame, functions, &name))
            })
            .collect();
        for entry in self.stacks.values_mut() {
            let frames = &self.lists[entry.start..entry.start + entry.len];
            let says = frames.iter().map(|id| of_frame.get(id));
            entry.traits = traits(says, entry.cut.is_some());
        }
    }

    pub(super) fn stack(&self, id: CallStackId) -> Option<CallStack<'_>> {
        let entry = self.stacks.get(&id)?;
        Some(CallStack {
            frames: &self.lists[entry.start..entry.start + entry.len],
            cut: entry.cut,
        })
    }

    pub(super) fn traits(&self, id: CallStackId) -> CallTraits {
        self.stacks.get(&id).map(|e| e.traits).unwrap_or_default()
    }

    pub(super) fn frame(&self, id: FrameId) -> Option<Frame> {
        self.frames.get(&id).copied()
    }

    pub(super) fn functions(&self, frame: FrameId) -> &[Function] {
        self.functions.get(&frame).map_or(&[], AsRef::as_ref)
    }
}

/// What one frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Python {
        collects: bool,
    },
    TakesGil,
    Collects,
    /// In the C library, whatever it is called.
    Libc,
    /// Nothing in particular.
    Named,
    Unnamed,
}

impl Says {
    fn of<'a>(frame: &Frame, functions: &[Function], name: &impl Fn(NameId) -> &'a str) -> Says {
        match *frame {
            Frame::Python { function, .. } => Says::Python {
                collects: name(function) == "gc.collect",
            },
            Frame::Anonymous { .. } => Says::Unnamed,
            Frame::Native { module, .. } => {
                let is = |list: &[&str]| {
                    functions.iter().any(|f| {
                        let name = name(f.name);
                        // A compiler's clone is the same function.
                        list.contains(&name.split('.').next().unwrap_or(name))
                    })
                };
                if is(GIL_TAKERS) {
                    Says::TakesGil
                } else if is(COLLECTOR) {
                    Says::Collects
                } else if is_libc(name(module)) {
                    Says::Libc
                } else if functions.is_empty() {
                    Says::Unnamed
                } else {
                    Says::Named
                }
            }
        }
    }
}

/// Functions of CPython that wait for its lock and for nothing else. `take_gil` does the waiting; stripped of
/// its local symbols, an interpreter shows only who calls it.
const GIL_TAKERS: &[&str] = &[
    "take_gil",
    "PyEval_RestoreThread",
    "PyEval_AcquireThread",
    "_PyEval_AcquireLock",
    "_PyThreadState_Attach",
];

/// Functions of CPython that are on the stack while it collects, some of them static and some not.
const COLLECTOR: &[&str] = &[
    "gc_collect_main",
    "gc_collect_generations",
    "gc_collect_region",
    "gc_collect_internal",
    "deduce_unreachable",
    "_Py_RunGC",
    "_PyGC_Collect",
    "PyGC_Collect",
];

/// The C library, with what used to be a library of its own.
pub fn is_libc(module: &str) -> bool {
    let file = module.rsplit('/').next().unwrap_or(module);
    ["libc.", "libc-", "libpthread", "ld-linux", "ld-musl"]
        .iter()
        .any(|start| file.starts_with(start))
}

fn traits<'a>(frames: impl Iterator<Item = Option<&'a Says>>, cut: bool) -> CallTraits {
    let mut bits = 0;
    let mut named = true;
    let mut caller = None;
    for says in frames {
        if !matches!(says, Some(Says::Libc)) {
            caller = caller.or(says);
        }
        let python = bits & CallTraits::PYTHON != 0;
        match says {
            Some(Says::Python { collects }) => {
                bits |= CallTraits::PYTHON;
                if *collects {
                    bits |= CallTraits::COLLECTS;
                }
            }
            // Only of what the innermost Python code called: callers of it do something else.
            Some(Says::TakesGil) if !python => bits |= CallTraits::TAKES_GIL,
            Some(Says::Collects) => bits |= CallTraits::COLLECTS,
            Some(Says::TakesGil | Says::Libc | Says::Named) => {}
            Some(Says::Unnamed) | None => named &= python,
        }
    }
    let inlined = matches!(caller, Some(Says::Python { .. }));
    let whole = named && !inlined && (bits & CallTraits::PYTHON != 0 || !cut);
    if whole || caller == Some(&Says::Named) {
        bits |= CallTraits::NAMED;
    }
    CallTraits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `libc`, `?` (no name), `py` and `py:NAME` (Python), or the name of a native function.
    fn says(frames: &[&str], cut: bool) -> CallTraits {
        let texts: Vec<String> = frames.iter().map(|f| (*f).to_string()).collect();
        let mut all = Frames::default();
        for (i, frame) in (0..).zip(frames) {
            let (module, python) = match *frame {
                "libc" => ("/usr/lib/libc.so.6", None),
                "py" => ("", Some("run")),
                other => ("/usr/bin/python3", other.strip_prefix("py:")),
            };
            let id = FrameId(i + 1);
            let named = |text: &str| NameId(100 + u32::from(text == "/usr/lib/libc.so.6"));
            let frame_of = match python {
                Some("run") => Frame::Python {
                    function: NameId(0),
                    file: NameId(0),
                    line: 0,
                },
                Some(_) => Frame::Python {
                    function: NameId(102),
                    file: NameId(0),
                    line: 0,
                },
                None => Frame::Native {
                    module: named(module),
                    build_id: NameId(0),
                    address: 0,
                },
            };
            all.define_frame(id, frame_of);
            if python.is_none() && !["libc", "?"].contains(frame) {
                let function = Function {
                    name: NameId(i),
                    file: NameId(0),
                    line: 0,
                };
                all.define_functions(id, &[function]);
            }
        }
        let ids: Vec<FrameId> = (1..).take(frames.len()).map(FrameId).collect();
        let cut = cut.then_some(Cut::NoTable);
        all.define_stack(CallStackId(1), &ids, cut);
        all.finish(|id| match id.0 {
            100 => "/usr/bin/python3",
            101 => "/usr/lib/libc.so.6",
            102 => "gc.collect",
            n => &texts[n as usize],
        });
        assert_eq!(
            all.stack(CallStackId(1)),
            Some(CallStack { frames: &ids, cut })
        );
        all.traits(CallStackId(1))
    }

    #[test]
    fn a_collector_is_known_by_its_functions() {
        for frames in [
            &["gc_collect_main.lto_priv.0", "_PyGC_Collect", "py"][..],
            &["visit_reachable", "deduce_unreachable"],
            &["?", "py:gc.collect", "py"],
        ] {
            assert!(says(frames, false).has(CallTraits::COLLECTS), "{frames:?}");
        }
        assert!(!says(&["gc_alloc", "py"], false).has(CallTraits::COLLECTS));
    }

    #[test]
    fn the_interpreter_lock_is_taken_at_the_leaf() {
        let leaf = says(&["libc", "take_gil", "PyEval_RestoreThread", "py"], false);
        assert!(leaf.has(CallTraits::TAKES_GIL));
        let stripped = says(&["libc", "?", "PyEval_RestoreThread", "py"], false);
        assert!(stripped.has(CallTraits::TAKES_GIL));
        let inner = says(&["libc", "lock", "py", "take_gil", "py"], false);
        assert!(!inner.has(CallTraits::TAKES_GIL));
    }

    #[test]
    fn only_a_stack_without_a_hole_says_what_is_not_there() {
        for (frames, cut, named) in [
            (&["libc", "lock", "py", "?"][..], false, true),
            (&["libc", "lock", "py"], true, true),
            (&["libc", "?", "py"], false, false),
            (&["libc", "pop", "?", "py"], false, true),
            // The interpreter's loop has it inlined.
            (&["libc", "py"], false, false),
            (&["libc", "lock"], false, true),
            (&["libc", "lock"], true, true),
            (&["libc"], true, false),
        ] {
            let traits = says(frames, cut);
            assert_eq!(traits.has(CallTraits::NAMED), named, "{frames:?} {cut}");
        }
    }
}
