//! Walks over the stacks of this process itself, through libc and through a signal.

use std::arch::asm;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void, CString};
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use super::super::cfi::Frames;
use super::super::vdso;
use super::super::walk::{walk, Mapping, Registers, Walk};
use super::*;
use crate::event::Cut;

/// All code of this process that has a table, as a profiler would know it.
#[derive(Debug)]
struct Process {
    rules: Rules,
    files: BTreeMap<String, (Table, Vec<u64>)>,
    /// Sorted: start, end, bias, file.
    maps: Vec<(u64, u64, u64, String)>,
    memory: File,
}

impl Process {
    fn new() -> Self {
        let mut process = Process {
            rules: Rules::new(),
            files: BTreeMap::new(),
            maps: Vec::new(),
            memory: File::open("/proc/self/mem").unwrap(),
        };
        for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [range, mode, offset, _, _, name] = fields[..] else {
                continue;
            };
            if !mode.contains('x') {
                continue;
            }
            let elf = match name {
                "[vdso]" => vdso::image().unwrap().to_vec(),
                _ if name.starts_with('/') => fs::read(name).unwrap(),
                _ => continue,
            };
            let (start, end) = range.split_once('-').unwrap();
            let [start, end, offset] =
                [start, end, offset].map(|hex| u64::from_str_radix(hex, 16).unwrap());
            let bias = start - address_of(&elf, offset).unwrap();
            process.maps.push((start, end, bias, name.to_string()));
            if !process.files.contains_key(name) {
                let table = Table::of(&elf, &mut process.rules).unwrap();
                let source = Source::of(&elf).unwrap();
                let functions = Frames::new(&source).functions();
                let starts = functions.iter().map(|function| function.start).collect();
                process.files.insert(name.to_string(), (table, starts));
            }
        }
        process
    }

    fn walk(&self, from: Registers) -> Walk {
        let maps: Vec<_> = self
            .maps
            .iter()
            .map(|(start, end, bias, name)| Mapping {
                start: *start,
                end: *end,
                bias: *bias,
                table: Some(&self.files[name].0),
            })
            .collect();
        walk(&maps, &self.rules, from, |address| {
            let mut bytes = [0; 8];
            self.memory.read_exact_at(&mut bytes, address).ok()?;
            Some(u64::from_le_bytes(bytes))
        })
    }

    /// The file and the beginning of the function that an address is in.
    fn function(&self, address: u64) -> (&str, u64) {
        let in_map = |map: &&(u64, u64, u64, String)| map.0 <= address && address < map.1;
        let (_, _, bias, name) = self.maps.iter().find(in_map).expect("mapped");
        let starts = &self.files[name].1;
        let after = starts.partition_point(|start| *start <= address - bias);
        (name, starts[after - 1] + bias)
    }

    /// The functions of a walk. `exact` says which frames are no return addresses.
    fn functions(&self, walk: &Walk, exact: impl Fn(usize) -> bool) -> Vec<u64> {
        let frames = walk.frames.iter().enumerate();
        frames
            .map(|(i, pc)| self.function(pc - u64::from(!exact(i))).1)
            .collect()
    }
}

/// The registers at this place, for a walk by the function that it is in: it must not return
/// before the walk is done.
macro_rules! registers {
    () => {{
        let (pc, sp, fp): (u64, u64, u64);
        // SAFETY: it reads three registers and changes nothing.
        unsafe {
            asm!(
                "lea {pc}, [rip]",
                "mov {sp}, rsp",
                "mov {fp}, rbp",
                pc = out(reg) pc,
                sp = out(reg) sp,
                fp = out(reg) fp,
                options(nomem, nostack, preserves_flags),
            );
        }
        Registers { pc, sp, fp }
    }};
}

thread_local! {
    /// For functions that are called back with nothing in their hands.
    static PROCESS: RefCell<Option<Process>> = const { RefCell::new(None) };
    static WALKS: RefCell<Vec<Walk>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`, in which this thread's stack is walked, and says what the walks found.
fn walks(f: impl FnOnce()) -> (Process, Vec<Walk>) {
    PROCESS.set(Some(Process::new()));
    f();
    let process = PROCESS.take().unwrap();
    (process, WALKS.take())
}

fn keep_walk(from: Registers) {
    PROCESS.with_borrow(|process| {
        let walk = process.as_ref().unwrap().walk(from);
        WALKS.with_borrow_mut(|walks| walks.push(walk));
    });
}

/// Asserts that `wanted` are in `found` in this order, whatever is between them.
fn assert_in_order(found: &[u64], wanted: &[u64]) {
    let mut rest = found.iter();
    for function in wanted {
        assert!(rest.any(|f| f == function), "{function:#x} in {found:#x?}");
    }
}

#[inline(never)]
fn leaf() {
    let registers = registers!();
    keep_walk(registers);
    black_box(());
}

#[inline(never)]
fn middle(depth: u32) {
    // A frame of a size that the compiler cannot leave out.
    let room = black_box([depth; 100]);
    if depth > 0 {
        middle(depth - 1);
    } else {
        let call: Box<dyn Fn()> = black_box(Box::new(leaf));
        call();
    }
    black_box(room);
}

#[inline(never)]
fn outer() {
    Some(3).into_iter().for_each(middle);
    black_box(());
}

#[test]
fn from_a_leaf_to_the_root_of_the_thread() {
    let (process, walks) = walks(outer);
    let walk = &walks[0];
    assert_eq!(walk.cut, None, "{walk:#x?}");
    let middle = middle as fn(u32) as usize as u64;
    let outer = outer as fn() as usize as u64;
    let leaf = leaf as fn() as usize as u64;
    let found = process.functions(walk, |i| i == 0);
    assert_eq!(found[0], leaf);
    assert_in_order(&found, &[leaf, middle, middle, middle, middle, outer]);
    assert_eq!(found.iter().filter(|f| **f == middle).count(), 4);
    let (file, _) = process.function(*walk.frames.last().unwrap());
    assert!(file.contains("libc"), "the thread began in {file}");
}

extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
    if WALKS.with_borrow(Vec::is_empty) {
        keep_walk(registers!());
    }
    // SAFETY: qsort calls this with two elements of the array of `sort`.
    let (a, b) = unsafe { (*a.cast::<u32>(), *b.cast::<u32>()) };
    a.cmp(&b) as c_int
}

#[inline(never)]
fn sort() {
    let mut numbers = black_box([3u32, 1, 2, 7, 5, 4, 9, 8]);
    // SAFETY: the array has this many elements of this size, and `compare` takes two of them.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 8, 4, Some(compare)) };
    assert!(numbers.is_sorted());
}

#[test]
fn through_a_function_of_libc_that_calls_back() {
    let (process, walks) = walks(sort);
    let walk = &walks[0];
    assert_eq!(walk.cut, None, "{walk:#x?}");
    let found = process.functions(walk, |i| i == 0);
    let sort = sort as fn() as usize as u64;
    let callback = compare as extern "C" fn(_, _) -> _ as usize as u64;
    assert_in_order(&found, &[callback, sort]);
    let between = &walk.frames[1..found.iter().position(|f| *f == sort).unwrap()];
    assert!(!between.is_empty());
    for pc in between {
        assert!(process.function(*pc).0.contains("libc"), "{walk:#x?}");
    }
}

extern "C" fn on_signal(_: c_int) {
    keep_walk(registers!());
}

#[inline(never)]
fn raise_signal() {
    // SAFETY: an action is plain data; the handler walks the stack of this thread, which is in
    // `raise` and holds no lock that the walk takes.
    unsafe {
        for flags in [0, libc::SA_ONSTACK] {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
            action.sa_flags = flags;
            let mut before = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, &mut before), 0);
            assert_eq!(libc::raise(libc::SIGUSR1), 0);
            libc::sigaction(libc::SIGUSR1, &before, std::ptr::null_mut());
        }
    }
}

/// The second time the handler runs on a stack of its own, which Rust gives to each thread.
#[test]
fn from_a_signal_handler_to_what_it_interrupted() {
    let (process, walks) = walks(raise_signal);
    assert_eq!(walks.len(), 2);
    let handler = on_signal as extern "C" fn(_) as usize as u64;
    let raised = raise_signal as fn() as usize as u64;
    for walk in walks {
        assert_eq!(walk.cut, None, "{walk:#x?}");
        // Handler, trampoline, and then the instruction that the signal interrupted.
        let found = process.functions(&walk, |i| i == 0 || i == 2);
        assert_in_order(&found, &[handler, raised]);
        assert_eq!(found[0], handler);
        assert!(process.function(walk.frames[1]).0.contains("libc"));
        assert!(process.function(walk.frames[2]).0.contains("libc"));
    }
}

/// gcc realigns the stack of a function with a variable that wants it, and then finds its frame
/// by what it stored there.
const REALIGNED: &str = "
    void use(void *, void *);
    void realigned(int n, void (*call)(void)) {
        char aligned[64] __attribute__((aligned(64)));
        char *room = __builtin_alloca(n);
        use(aligned, room);
        call();
        use(aligned, room);
    }
    void use(void *a, void *b) { __asm__ volatile(\"\" : : \"r\"(a), \"r\"(b) : \"memory\"); }
";

extern "C" fn called() {
    keep_walk(registers!());
}

#[test]
fn through_a_realigned_stack() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.c"), dir.path().join("a.so"));
    fs::write(&from, REALIGNED).unwrap();
    compile(&["-O2", "-fomit-frame-pointer"], &from, &to);
    let name = CString::new(to.to_str().unwrap()).unwrap();
    // SAFETY: the library was just made; loading it runs none of its code.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    // SAFETY: `library` is a loaded library.
    let symbol = unsafe { libc::dlsym(library, c"realigned".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: this is the type that the source above gives it.
    let realigned: extern "C" fn(c_int, extern "C" fn()) = unsafe { std::mem::transmute(symbol) };

    let (process, walks) = walks(|| realigned(black_box(100), called));
    let callers = (0..process.rules.end() as u16).map(|id| process.rules.caller(id));
    assert!(
        callers.into_iter().any(|caller| matches!(
            caller,
            Caller::By(Rule {
                cfa: Cfa::FpDeref(_),
                fp: Fp::AtFp(_)
            })
        )),
        "the compiler did it another way"
    );
    let walk = &walks[0];
    assert_eq!(walk.cut, None, "{walk:#x?}");
    let found = process.functions(walk, |i| i == 0);
    assert_in_order(
        &found,
        &[
            called as extern "C" fn() as usize as u64,
            symbol as usize as u64,
        ],
    );
    assert!(process
        .function(*walk.frames.last().unwrap())
        .0
        .contains("libc"));
}

/// A process of one file, of which the first page is one function with this rule, and one that
/// ends the walk at 0x2000.
fn one_file(instructions: &[u8]) -> Made {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 0x100, instructions);
    frame.function(common, 0x2000, 0x100, &[0x07, 16]);
    frame.made()
}

fn walk_of(made: &Made, from: Registers, memory: &[(u64, u64)]) -> Walk {
    let maps = [
        Mapping {
            start: 0x50_1000,
            end: 0x50_4000,
            bias: 0x50_0000,
            table: Some(&made.table),
        },
        Mapping {
            start: 0x60_0000,
            end: 0x60_1000,
            bias: 0x60_0000,
            table: None,
        },
    ];
    let memory: BTreeMap<u64, u64> = memory.iter().copied().collect();
    walk(&maps, &made.rules, from, |address| {
        memory.get(&address).copied()
    })
}

const FROM: Registers = Registers {
    pc: 0x50_1010,
    sp: 0x7000,
    fp: 0x7100,
};

#[test]
fn where_a_walk_ends_and_why() {
    let made = one_file(&[]);
    for (caller, cut) in [
        (0x50_2001, None),
        (0, None),
        (0x50_2000, Some(Cut::NoTable)),
        (0x50_3000, Some(Cut::NoTable)),
        (0x60_0001, Some(Cut::NoTable)),
        (0x60_0000, Some(Cut::Unmapped)),
        (0x70_0000, Some(Cut::Unmapped)),
        (0x10, Some(Cut::Unmapped)),
    ] {
        let walk = walk_of(&made, FROM, &[(0x7000, caller)]);
        assert_eq!(walk.cut, cut, "{caller:#x}");
        let frames = [FROM.pc, caller];
        assert_eq!(walk.frames, frames[..1 + usize::from(caller != 0)]);
    }
    let unreadable = walk_of(&made, FROM, &[]);
    assert_eq!(unreadable.cut, Some(Cut::Unreadable));
}

#[test]
fn the_unsupported_and_what_leads_back_end_a_walk() {
    let cut = |instructions: &[u8], memory: &[(u64, u64)]| {
        walk_of(&one_file(instructions), FROM, memory).cut
    };
    assert_eq!(cut(&[0x0d, 3], &[]), Some(Cut::Unsupported));
    // CFA = fp - 0x1000, below sp.
    assert_eq!(cut(&[0x12, 6, 0x80, 4], &[]), Some(Cut::Unreadable));
    // CFA = sp
    assert_eq!(
        cut(&[0x0e, 0], &[(0x6ff8, 0x50_1011)]),
        Some(Cut::Unreadable)
    );
}

#[test]
fn a_stack_deeper_than_the_limit_is_cut() {
    let made = one_file(&[]);
    let stack: Vec<_> = (0..1000).map(|i| (0x7000 + 8 * i, 0x50_1011)).collect();
    let walk = walk_of(&made, FROM, &stack);
    assert_eq!(walk.cut, Some(Cut::TooDeep));
    assert_eq!(walk.frames.len(), super::super::abi::USER_DEPTH);
    let mut fits = stack[..254].to_vec();
    fits.push((0x7000 + 8 * 254, 0x50_2001));
    let walk = walk_of(&made, FROM, &fits);
    assert_eq!((walk.cut, walk.frames.len()), (None, 256));
}

#[test]
fn a_lost_frame_pointer_is_fatal_only_to_who_needs_it() {
    let mut frame = EhFrame::default();
    let common = frame.common(&[0], 16, CALLED);
    frame.function(common, 0x1000, 0x100, &[0x07, 6]); // fp undefined
    frame.function(common, 0x1100, 0x100, &[]); // does not touch it
    frame.function(common, 0x1200, 0x100, &[0x0d, 6]); // CFA = fp + 8
    frame.function(common, 0x1300, 0x100, &[0x86, 1, 0x90, 1]); // saved at CFA - 8
    frame.function(common, 0x2000, 0x100, &[0x07, 16]);
    let made = frame.made();
    let stack = |callers: &[u64]| -> Vec<_> {
        (0x7000..).step_by(8).zip(callers.iter().copied()).collect()
    };
    let ends = |callers: &[u64]| walk_of(&made, FROM, &stack(callers)).cut;
    assert_eq!(ends(&[0x50_1110, 0x50_2010]), None);
    assert_eq!(ends(&[0x50_1110, 0x50_1210]), Some(Cut::Unsupported));
    // Once it was saved, a frame further up has it again: CFA = 0x50_1210 + 8 then.
    let mut memory = stack(&[0x50_1310, 0x50_1210]);
    memory.push((0x50_1210, 0x50_2010));
    assert_eq!(walk_of(&made, FROM, &memory).cut, None);
}
