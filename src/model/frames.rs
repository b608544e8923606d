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
pub struct CallTraits(u16);

impl CallTraits {
    /// It asks for Python's interpreter lock.
    pub const TAKES_GIL: u16 = 1 << 0;
    /// In Python's garbage collector.
    pub const COLLECTS: u16 = 1 << 1;
    /// Python code is on it.
    pub const PYTHON: u16 = 1 << 2;
    /// What is not seen in it is not there: from the leaf to the first line of Python every function
    /// outside of libc has a name, or the one that called libc has (the interpreter lock is waited for
    /// by functions of its own).
    pub const NAMED: u16 = 1 << 3;
    /// Asleep until another thread has something for it, or is done: a condition variable, a semaphore,
    /// a barrier, the end of a thread.
    pub const HANDED_TO: u16 = 1 << 4;
    /// Asleep until a lock is free.
    pub const LOCKS: u16 = 1 << 5;
    /// Makes a process, or replaces its program.
    pub const FORKS: u16 = 1 << 7;
    /// In a loop that waits without going to sleep.
    pub const SPINS: u16 = 1 << 6;

    pub fn has(self, traits: u16) -> bool {
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
    says: FxHashMap<FrameId, Says>,
    /// What came since the last [`Frames::finish`].
    new_frames: Vec<FrameId>,
    new_stacks: Vec<CallStackId>,
}

impl Frames {
    pub(super) fn define_frame(&mut self, id: FrameId, frame: Frame) {
        self.frames.insert(id, frame);
        self.new_frames.push(id);
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
        self.new_stacks.push(id);
    }

    pub(super) fn define_functions(&mut self, frame: FrameId, functions: &[Function]) {
        self.functions.insert(frame, functions.into());
        self.new_frames.push(frame);
    }

    /// Says what stacks tell, of what has come since the last time. `name` tells the text of a name.
    pub(super) fn finish<'a>(&mut self, name: impl Fn(NameId) -> &'a str) {
        // The functions of a frame may come after stacks that it is in.
        let mut changed = false;
        for id in self.new_frames.drain(..) {
            let Some(frame) = self.frames.get(&id) else {
                continue;
            };
            let functions = self.functions.get(&id).map_or(&[][..], AsRef::as_ref);
            let says = Says::of(frame, functions, &name);
            let before = self.says.insert(id, says);
            changed |= before.is_some_and(|before| before != says);
        }
        let new = std::mem::take(&mut self.new_stacks);
        let all = changed.then(|| self.stacks.keys().copied().collect());
        for id in all.unwrap_or(new) {
            let Some(entry) = self.stacks.get_mut(&id) else {
                continue;
            };
            let frames = &self.lists[entry.start..entry.start + entry.len];
            let says = frames.iter().map(|id| self.says.get(id));
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
        /// In Python's own code around a lock that stands for something else.
        handed_to: bool,
        spins: bool,
    },
    TakesGil,
    Collects,
    HandedTo,
    Locks,
    /// A lock of Python: what it is used for, the Python code tells that asks for it.
    PythonLock,
    Spins,
    Forks,
    /// In the C library, whatever it is called.
    Libc {
        named: bool,
    },
    /// Nothing in particular.
    Named,
    Unnamed,
}

impl Says {
    /// What it says is not of the program itself.
    fn is_plumbing(&self) -> bool {
        match self {
            Says::Libc { .. } | Says::HandedTo | Says::Locks | Says::Forks => true,
            Says::Python { .. }
            | Says::TakesGil
            | Says::Collects
            | Says::PythonLock
            | Says::Spins
            | Says::Named
            | Says::Unnamed => false,
        }
    }

    fn of<'a>(frame: &Frame, functions: &[Function], name: &impl Fn(NameId) -> &'a str) -> Says {
        match *frame {
            Frame::Python { function, file, .. } => {
                let (function, file) = (name(function), name(file));
                Says::Python {
                    collects: function == "gc.collect",
                    handed_to: waits_in_python(function, file),
                    spins: is_spin(function),
                }
            }
            Frame::Anonymous { .. } => Says::Unnamed,
            Frame::Native { module, .. } => {
                let is = |known: &dyn Fn(&str) -> bool| {
                    functions.iter().any(|f| {
                        let name = name(f.name);
                        // Neither a compiler's clone nor a version makes another function.
                        known(name.split(['.', '@']).next().unwrap_or(name))
                    })
                };
                let module = name(module);
                if is(&|f| GIL_TAKERS.contains(&f)) {
                    Says::TakesGil
                } else if is(&|f| COLLECTOR.contains(&f))
                    || (is_python(module) && is(&|f| COLLECTING.contains(&f)))
                {
                    Says::Collects
                } else if is(&|f| PYTHON_LOCKS.contains(&f))
                    || module.contains("/_multiprocessing.")
                {
                    Says::PythonLock
                } else if is(&|f| LOCKS.contains(&f) || f.contains("lock_contended")) {
                    Says::Locks
                } else if is(&is_hand_over) || module.contains("/_queue.") {
                    Says::HandedTo
                } else if is(&|f| is_spin(f) || f.ends_with("sched_yield")) {
                    Says::Spins
                } else if is_libc(module) && is(&|f| FORKS.contains(&f)) {
                    Says::Forks
                } else if is_libc(module) {
                    let named = !functions.is_empty();
                    Says::Libc { named }
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

/// The same, by names that functions of other programs have as well.
const COLLECTING: &[&str] = &[
    "update_refs",
    "subtract_refs",
    "move_unreachable",
    "visit_decref",
    "visit_reachable",
    "untrack_tuples",
    "untrack_dicts",
];

/// Behind `threading.Lock` and its kin.
const PYTHON_LOCKS: &[&str] = &[
    "PyThread_acquire_lock",
    "PyThread_acquire_lock_timed",
    "PyThread_acquire_lock_timed_with_retries",
    "PyMutex_Lock",
    "_PyMutex_LockTimed",
];

const LOCKS: &[&str] = &[
    "pthread_mutex_lock",
    "__pthread_mutex_lock",
    "___pthread_mutex_lock",
    "__pthread_mutex_lock_full",
    "__pthread_mutex_cond_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_clocklock",
    "lll_mutex_lock_optimized",
    "__lll_lock_wait",
    "__lll_lock_wait_private",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
    "__pthread_rwlock_rdlock",
    "__pthread_rwlock_wrlock",
    "___pthread_rwlock_rdlock",
    "___pthread_rwlock_wrlock",
];

/// Of the C library; not those that make threads, too.
const FORKS: &[&str] = &[
    "_Fork",
    "fork",
    "__fork",
    "__libc_fork",
    "vfork",
    "__vfork",
    "execve",
    "posix_spawn",
];

/// Waits of the C, C++ and Rust libraries, and of OpenMP, that another thread ends when it has something
/// for this one.
fn is_hand_over(function: &str) -> bool {
    const STARTS: &[&str] = &[
        "pthread_cond_",
        "pthread_join",
        "pthread_timedjoin",
        "pthread_clockjoin",
        "pthread_barrier_wait",
        "sem_wait",
        "sem_timedwait",
        "sem_clockwait",
        "new_sem_wait",
        "cnd_wait",
        "cnd_timedwait",
        "gomp_barrier_wait",
        "gomp_team_barrier_wait",
        "kmp_suspend",
    ];
    let plain = function.trim_start_matches('_');
    STARTS.iter().any(|start| plain.starts_with(start))
        || (function.contains("condition_variable") && function.contains("wait"))
        || (function.contains("Condvar") && function.contains("wait"))
        || function.contains("__atomic_futex_unsigned_base")
        || function.contains("thread4park")
}

/// Code of Python's library that sleeps in a lock which another thread takes as a signal.
fn waits_in_python(function: &str, file: &str) -> bool {
    const PLACES: &[(&str, &[&str])] = &[
        (
            "threading.py",
            &["wait", "wait_for", "join", "_wait_for_tstate_lock"],
        ),
        ("multiprocessing/synchronize.py", &["wait"]),
        ("multiprocessing/queues.py", &["put"]),
        ("concurrent/futures/thread.py", &["_worker"]),
    ];
    let function = function.rsplit('.').next().unwrap_or(function);
    let of = |place: &&(&str, &[&str])| file.ends_with(place.0);
    PLACES
        .iter()
        .find(of)
        .is_some_and(|place| place.1.contains(&function))
}

/// It says itself that it spins. Physics has spins, too, and works on them.
fn is_spin(function: &str) -> bool {
    const BEFORE: &[&str] = &["", "do", "busy", "try"];
    const AFTER: &[&str] = &[
        "lock", "wait", "loop", "until", "while", "yield", "delay", "hint", "ning",
    ];
    function.match_indices("pin").any(|(i, _)| {
        let Some(before) = function[..i].strip_suffix(['s', 'S']) else {
            return false;
        };
        let rest = &function[i + "pin".len()..];
        if rest.is_empty() || rest.starts_with(['(', '<']) {
            let word = before.rsplit([':', '.']).next().unwrap_or(before);
            return BEFORE.contains(&word.trim_matches('_'));
        }
        let capital = function[before.len()..].starts_with('S');
        let begins = capital || !before.ends_with(char::is_alphabetic);
        let rest = rest.trim_start_matches('_').to_ascii_lowercase();
        begins && AFTER.iter().any(|after| rest.starts_with(after))
    })
}

/// The C library, with what used to be a library of its own.
pub fn is_libc(module: &str) -> bool {
    let file = module.rsplit('/').next().unwrap_or(module);
    ["libc.", "libc-", "libpthread", "ld-linux", "ld-musl"]
        .iter()
        .any(|start| file.starts_with(start))
}

fn is_python(module: &str) -> bool {
    module
        .rsplit('/')
        .next()
        .is_some_and(|file| file.contains("python"))
}

/// So many frames from the leaf on tell whether a thread spins or forks: callers of those do something else.
const NEAR: usize = 4;

fn traits<'a>(frames: impl Iterator<Item = Option<&'a Says>>, cut: bool) -> CallTraits {
    let mut bits = 0;
    let mut named = true;
    let mut caller = None;
    let mut waits = None;
    let mut python_lock = false;
    let mut nameless_libc = 0;
    for (depth, says) in frames.enumerate() {
        if !says.is_some_and(Says::is_plumbing) {
            // The C library shows the names of what locks and of what waits for a condition. Its semaphores
            // and joins go through two functions that have none.
            if caller.is_none() && nameless_libc == depth && depth >= 2 {
                waits = Some(CallTraits::HANDED_TO);
            }
            caller = caller.or(says);
        }
        nameless_libc += usize::from(matches!(says, Some(Says::Libc { named: false })));
        let python = bits & CallTraits::PYTHON != 0;
        match says {
            Some(Says::Python {
                collects,
                handed_to,
                spins,
            }) => {
                bits |= CallTraits::PYTHON;
                if *collects {
                    bits |= CallTraits::COLLECTS;
                }
                if *spins && !python {
                    bits |= CallTraits::SPINS;
                }
                if python_lock && !python {
                    waits = Some(if *handed_to {
                        CallTraits::HANDED_TO
                    } else {
                        CallTraits::LOCKS
                    });
                }
            }
            // Only of what the innermost Python code called: callers of it do something else.
            Some(Says::TakesGil) if !python => bits |= CallTraits::TAKES_GIL,
            Some(Says::HandedTo) if !python => waits = waits.or(Some(CallTraits::HANDED_TO)),
            Some(Says::Locks) if !python => waits = waits.or(Some(CallTraits::LOCKS)),
            Some(Says::PythonLock) if !python => {
                python_lock = true;
                waits = None;
            }
            Some(Says::Spins) if !python && depth < NEAR => bits |= CallTraits::SPINS,
            Some(Says::Forks) if !python && depth < NEAR => bits |= CallTraits::FORKS,
            Some(Says::Collects) => bits |= CallTraits::COLLECTS,
            Some(
                Says::TakesGil
                | Says::HandedTo
                | Says::Locks
                | Says::PythonLock
                | Says::Spins
                | Says::Forks
                | Says::Libc { .. }
                | Says::Named,
            ) => {}
            Some(Says::Unnamed) | None => named &= python,
        }
    }
    let python = bits & CallTraits::PYTHON != 0;
    let inlined = matches!(caller, Some(Says::Python { .. }));
    let whole = named && !inlined && (python || !cut);
    // An interpreter waits for its own lock at a condition variable, in a function that may have lost its name.
    let nameless = matches!(caller, Some(Says::Unnamed | Says::Python { .. }) | None);
    let interpreter = nameless && (python || cut) && !python_lock;
    if bits & CallTraits::TAKES_GIL == 0 && !interpreter {
        bits |= waits.unwrap_or(0);
    }
    let told = matches!(caller, Some(Says::Named | Says::PythonLock | Says::Spins));
    if whole || told {
        bits |= CallTraits::NAMED;
    }
    CallTraits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `libc` and `?` (no name), `libc:NAME`, `py` and `py:NAME@FILE` (Python), or the name of a native function.
    fn says(frames: &[&str], cut: bool) -> CallTraits {
        let mut names: Vec<String> = Vec::new();
        let mut name = |text: &str| {
            names.push(text.to_string());
            NameId(u32::try_from(names.len() - 1).unwrap())
        };
        let mut all = Frames::default();
        for (id, &text) in (1..).map(FrameId).zip(frames) {
            let in_libc = text == "libc" || text.starts_with("libc:");
            let function = text.strip_prefix("libc:").unwrap_or(text);
            let frame = if let Some(python) = text.strip_prefix("py") {
                let python = python.strip_prefix(':').unwrap_or("run");
                let (function, file) = python.split_once('@').unwrap_or((python, ""));
                Frame::Python {
                    function: name(function),
                    file: name(file),
                    line: 0,
                }
            } else {
                if !["libc", "?"].contains(&function) {
                    let function = Function {
                        name: name(function),
                        file: NameId(0),
                        line: 0,
                    };
                    all.define_functions(id, &[function]);
                }
                Frame::Native {
                    module: name(if in_libc {
                        "/usr/lib/libc.so.6"
                    } else {
                        "/usr/bin/python3"
                    }),
                    build_id: NameId(0),
                    address: 0,
                }
            };
            all.define_frame(id, frame);
        }
        let ids: Vec<FrameId> = (1..).take(frames.len()).map(FrameId).collect();
        let cut = cut.then_some(Cut::NoTable);
        all.define_stack(CallStackId(1), &ids, cut);
        all.finish(|id| &names[id.0 as usize]);
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
        for frames in [&["gc_alloc", "py"][..], &["libc:update_refs", "decode"]] {
            assert!(!says(frames, false).has(CallTraits::COLLECTS), "{frames:?}");
        }
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
    fn a_hand_over_is_told_from_a_lock_by_who_waits_how() {
        let (hand, lock) = (CallTraits::HANDED_TO, CallTraits::LOCKS);
        let sem = ["libc:sem_clockwait", "PyThread_acquire_lock_timed", "lock"];
        let with = |caller: &'static str| [sem[0], sem[1], sem[2], caller].to_vec();
        for (frames, expected) in [
            (with("py:Condition.wait@/lib/python3.12/threading.py"), hand),
            (
                with("py:Condition.__enter__@/lib/python3.12/threading.py"),
                lock,
            ),
            (with("py:Condition.wait@/home/me/mine.py"), lock),
            (vec!["libc:___pthread_cond_wait", "pop"], hand),
            (
                vec!["libc:__lll_lock_wait", "libc:pthread_cond_wait", "pop"],
                lock,
            ),
            (vec!["libc", "libc:pthread_mutex_lock", "pop", "py"], lock),
            (
                vec!["libc:futex_wait", "_ZNSt18condition_variable4waitE", "pop"],
                hand,
            ),
            (vec!["libc:pthread_cond_wait", "?"], hand),
            (vec!["libc", "libc", "peek"], hand),
            (vec!["libc", "peek"], 0),
            (
                vec![
                    "libc",
                    "libc",
                    "PyThread_acquire_lock_timed",
                    "py:work@w.py",
                ],
                lock,
            ),
            (vec!["libc", "libc", "?", "py"], 0),
            (vec!["libc", "libc"], 0),
            // It may be the interpreter that waits for its own lock.
            (vec!["libc:pthread_cond_timedwait", "?", "py"], 0),
            (vec!["libc:pthread_cond_timedwait", "take_gil", "py"], 0),
            (vec!["libc", "pop", "py", "pthread_mutex_lock"], 0),
        ] {
            let traits = says(&frames, false);
            let got = [hand, lock]
                .into_iter()
                .filter(|&t| traits.has(t))
                .sum::<u16>();
            assert_eq!(got, expected, "{frames:?}");
        }
    }

    #[test]
    fn a_loop_that_waits_says_so_near_the_leaf() {
        for (frames, spins) in [
            (&["pthread_spin_lock", "pop"][..], true),
            (&["libc:__sched_yield", "poll_once"], true),
            (&["ns::SpinWait::once"], true),
            (&["py:Queue.spin_until@q.py"], true),
            (&["absl::SpinLock::SpinLoop"], true),
            (&["do_spin"], true),
            (&["Backoff::spin"], true),
            (&["spin(int)"], true),
            (&["pthread_spinlock"], true),
            (&["py:Lattice.flip_spins@ising.py"], false),
            (&["py:flip_spin@ising.py"], false),
            (&["spin_density_matrix"], false),
            (&["ising::Spin::flip"], false),
            (&["disspin"], false),
            (&["draw_spinner"], false),
            (&["getDispinfo"], false),
            (&["hash", "py", "spin"], false),
        ] {
            assert_eq!(
                says(frames, false).has(CallTraits::SPINS),
                spins,
                "{frames:?}"
            );
        }
    }

    #[test]
    fn a_fork_is_the_call_and_not_what_came_of_it() {
        let forks = |frames: &[&str]| says(frames, false).has(CallTraits::FORKS);
        assert!(forks(&["libc:_Fork", "libc:fork", "os_fork_impl", "py"]));
        assert!(!forks(&["libc:clone3", "start_thread"]));
        assert!(!forks(&["work", "py", "libc:fork"]));
        assert!(!forks(&["fork", "py"]), "a function of the program");
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
