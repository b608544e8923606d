//! Known call chains in Rust: `chains-rs FILE [SECONDS [SEED]]`; see truth.h for what it writes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Of libc, which `std` links.
mod sys {
    #[repr(C)]
    pub struct Timespec {
        pub sec: i64,
        pub nsec: i64,
    }
    pub const MONOTONIC: i32 = 1;
    pub const THREAD_CPU: i32 = 3;
    extern "C" {
        pub fn clock_gettime(clock: i32, to: *mut Timespec) -> i32;
        pub fn gettid() -> i32;
    }
}

/// A time during which one thread has one known chain of calls.
#[derive(Default)]
struct Truth {
    phase: &'static str,
    off: bool,
    chain: Vec<String>,
    length: u64,
    tid: i32,
    start: u64,
    end: u64,
    cpu: u64,
    work: u64,
}

impl Truth {
    fn calls(&mut self, names: &[&str]) {
        self.chain.extend(names.iter().map(|name| name.to_string()));
    }

    fn repeats(&mut self, name: &str, n: u64) {
        for _ in 0..n {
            self.calls(&[name]);
        }
    }
}

const CLOCKS: [&str; 3] = ["chains::now_ns?", "chains::clock_ns?", "*plt|libc.so|[vdso]"];
const LEAF: [&str; 8] = [
    "chains::leaf",
    "chains::spin",
    "chains::start?",
    "chains::end?",
    "chains::work?",
    CLOCKS[0],
    CLOCKS[1],
    CLOCKS[2],
];
const WAIT: [&str; 5] = [
    "chains::start?",
    "chains::end?",
    CLOCKS[0],
    CLOCKS[1],
    "*std|plt|libc.so|[vdso]",
];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[inline(always)]
fn clock_ns(clock: i32) -> u64 {
    let mut t = sys::Timespec { sec: 0, nsec: 0 };
    unsafe { sys::clock_gettime(clock, &mut t) };
    t.sec as u64 * 1_000_000_000 + t.nsec as u64
}

#[inline(always)]
fn now_ns() -> u64 {
    clock_ns(sys::MONOTONIC)
}

#[inline(always)]
fn start(t: &mut Truth) {
    t.tid = unsafe { sys::gettid() };
    t.start = now_ns();
    t.cpu = clock_ns(sys::THREAD_CPU);
}

#[inline(always)]
fn end(t: &mut Truth) {
    t.cpu = clock_ns(sys::THREAD_CPU) - t.cpu;
    t.end = now_ns();
}

#[inline(always)]
fn work(t: &mut Truth) {
    let mut i = 0;
    while i < 4000 {
        // black_box would keep it in memory.
        unsafe {
            std::arch::asm!("/* {0:e} */", inout(reg) i, options(nomem, nostack, preserves_flags))
        };
        i += 1;
    }
    t.work += 1;
}

#[inline(always)]
fn spin(t: &mut Truth) {
    start(t);
    let until = t.start + t.length;
    while now_ns() < until {
        work(t);
    }
    end(t);
}

#[inline(never)]
fn leaf(t: &mut Truth) {
    spin(t);
    after();
}

/// Behind a call that must not become a jump.
#[inline(always)]
fn after() {
    unsafe { std::arch::asm!("") };
}

#[inline(never)]
fn recurse(t: &mut Truth, n: u64) {
    if black_box(n) > 1 {
        recurse(t, n - 1);
    } else {
        leaf(t);
    }
    after();
}

#[inline(never)]
fn recursion(t: &mut Truth, random: &mut Random) {
    let n = 1 + random.below(35);
    t.calls(&["chains::recursion"]);
    t.repeats("chains::recurse", n);
    t.calls(&LEAF);
    recurse(t, n);
    after();
}

trait Work {
    fn work(&self, t: &mut Truth, n: u64);
    fn by_default(&self, t: &mut Truth) {
        self.work(t, 1);
        after();
    }
}

struct First(u64);
struct Second;

impl Work for First {
    #[inline(never)]
    fn work(&self, t: &mut Truth, n: u64) {
        if n > self.0 {
            let other: &dyn Work = black_box(&Second);
            other.work(t, n - 1);
        } else {
            leaf(t);
        }
        after();
    }
}

impl Work for Second {
    #[inline(never)]
    fn work(&self, t: &mut Truth, n: u64) {
        let other: &dyn Work = black_box(&First(0));
        other.work(t, n);
        after();
    }

    #[inline(never)]
    fn by_default(&self, t: &mut Truth) {
        self.work(t, 0);
        after();
    }
}

#[inline(never)]
fn trait_objects(t: &mut Truth, random: &mut Random) {
    let n = 1 + random.below(6);
    t.calls(&["chains::trait_objects"]);
    for _ in 0..n {
        t.calls(&["chains::First::work", "chains::Second::work"]);
    }
    t.calls(&["chains::First::work"]);
    t.calls(&LEAF);
    let first: Box<dyn Work> = black_box(Box::new(First(0)));
    first.work(t, n);
    after();
}

#[inline(never)]
fn default_method(t: &mut Truth, _: &mut Random) {
    t.calls(&[
        "chains::default_method",
        "chains::Second::by_default",
        "chains::Second::work",
        "chains::First::work",
    ]);
    t.calls(&LEAF);
    let second: Box<dyn Work> = black_box(Box::new(Second));
    second.by_default(t);
    after();
}

#[inline(never)]
fn call_boxed(t: &mut Truth, f: Box<dyn FnOnce(&mut Truth)>) {
    f(t);
    after();
}

#[inline(never)]
fn closures(t: &mut Truth, _: &mut Random) {
    t.calls(&[
        "chains::closures",
        "chains::call_boxed",
        "*std",
        "chains::closures::{{closure}}",
    ]);
    t.calls(&LEAF);
    let kept = black_box(7);
    call_boxed(
        t,
        Box::new(move |t| {
            leaf(t);
            black_box(kept);
            after();
        }),
    );
    after();
}

#[inline(never)]
fn apply<F: FnMut(&mut Truth)>(t: &mut Truth, mut f: F) {
    f(t);
    after();
}

/// The closure is inlined into `apply`.
#[inline(never)]
fn generics(t: &mut Truth, _: &mut Random) {
    t.calls(&[
        "chains::generics",
        "chains::apply",
        "chains::generics::{{closure}}",
    ]);
    t.calls(&LEAF);
    let mut times = 0;
    apply(t, |t| {
        leaf(t);
        times += 1;
        after();
    });
    black_box(times);
}

#[inline(never)]
fn iterators(t: &mut Truth, _: &mut Random) {
    t.calls(&[
        "chains::iterators",
        "*std",
        "chains::iterators::{{closure}}",
    ]);
    t.calls(&LEAF);
    let done: u64 = black_box([1u64, 2, 3])
        .iter()
        .filter(|n| **n != 2)
        .map(|n| {
            if *n == 3 {
                leaf(t);
                after();
            }
            n + 1
        })
        .sum();
    black_box(done);
    after();
}

#[inline(never)]
fn compare(t: &mut Option<&mut Truth>, a: u64, b: u64) -> std::cmp::Ordering {
    if let Some(t) = t.take() {
        leaf(t);
    }
    after();
    a.cmp(&b)
}

#[inline(never)]
fn sort(t: &mut Truth, random: &mut Random) {
    t.calls(&[
        "chains::sort",
        "+std",
        "chains::sort::{{closure}}?",
        "*std",
        "chains::compare",
    ]);
    t.calls(&LEAF);
    let mut numbers: Vec<u64> = (0..200).map(|_| random.below(1000)).collect();
    let mut once = Some(t);
    numbers.sort_by(|a, b| compare(&mut once, *a, *b));
    black_box(numbers);
    after();
}

struct Guard<'a>(&'a mut Truth);

impl Drop for Guard<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        leaf(self.0);
        after();
    }
}

#[inline(never)]
fn unwinds(n: u64) {
    if black_box(n) > 1 {
        unwinds(n - 1);
    } else {
        // Without the message of a panic.
        resume_unwind(Box::new("known"));
    }
    after();
}

#[inline(never)]
fn guarded(t: &mut Truth, n: u64) {
    let _guard = Guard(t);
    unwinds(n);
    after();
}

#[inline(never)]
fn in_drop(t: &mut Truth, _: &mut Random) {
    t.calls(&[
        "chains::in_drop",
        "*std",
        "chains::in_drop::{{closure}}?",
        "*std",
        "chains::guarded",
        "*std",
        "chains::Guard::drop",
    ]);
    t.calls(&LEAF);
    assert!(catch_unwind(AssertUnwindSafe(|| guarded(t, 4))).is_err());
    after();
}

#[inline(never)]
fn after_unwinding(t: &mut Truth, _: &mut Random) {
    t.calls(&["chains::after_unwinding"]);
    t.calls(&LEAF);
    if catch_unwind(|| unwinds(6)).is_err() {
        leaf(t);
    }
    after();
}

#[inline(never)]
fn map_entry(t: &mut Truth, _: &mut Random) {
    t.calls(&[
        "chains::map_entry",
        "*std",
        "chains::map_entry::{{closure}}",
    ]);
    t.calls(&LEAF);
    let mut map = black_box(BTreeMap::from([(1, 2)]));
    map.entry(2).or_insert_with(|| {
        leaf(t);
        after();
        3
    });
    black_box(map);
    after();
}

#[inline(never)]
fn thread_body(t: &mut Truth) {
    recurse(t, 4);
    after();
}

#[inline(never)]
fn thread(t: &mut Truth, _: &mut Random) {
    t.chain.clear();
    t.calls(&[
        "chains::thread::{{closure}}?",
        "*std",
        "chains::thread::{{closure}}?",
        "*std",
        "chains::thread::{{closure}}::{{closure}}?",
        "chains::thread_body",
    ]);
    t.repeats("chains::recurse", 4);
    t.calls(&LEAF);
    std::thread::scope(|scope| {
        scope.spawn(|| thread_body(t));
    });
    after();
}

#[inline(never)]
fn sleep_leaf(t: &mut Truth) {
    let length = Duration::from_nanos(t.length);
    start(t);
    std::thread::sleep(length);
    end(t);
    after();
}

#[inline(never)]
fn sleeping(t: &mut Truth, _: &mut Random) {
    t.off = true;
    t.calls(&["chains::sleeping", "chains::sleep_leaf"]);
    t.calls(&WAIT);
    sleep_leaf(t);
    after();
}

#[inline(never)]
fn condition_leaf(t: &mut Truth) {
    let (mutex, condition) = (Mutex::new(()), Condvar::new());
    let guard = mutex.lock().unwrap();
    let length = Duration::from_nanos(t.length);
    start(t);
    let waited = condition.wait_timeout_while(guard, length, |()| true);
    end(t);
    drop(waited);
    after();
}

#[inline(never)]
fn condition(t: &mut Truth, _: &mut Random) {
    t.off = true;
    t.calls(&["chains::condition", "chains::condition_leaf"]);
    t.calls(&WAIT);
    condition_leaf(t);
    after();
}

type Run = fn(&mut Truth, &mut Random);

const PHASES: [(&str, Run); 14] = [
    ("recursion", recursion),
    ("trait objects", trait_objects),
    ("default method", default_method),
    ("closures", closures),
    ("generics", generics),
    ("iterators", iterators),
    ("sort_by", sort),
    ("in drop", in_drop),
    ("after unwinding", after_unwinding),
    ("map entry", map_entry),
    ("thread", thread),
    ("recursion", recursion),
    ("sleep", sleeping),
    ("condition", condition),
];

#[inline(never)]
fn descend(t: &mut Truth, random: &mut Random, run: Run, n: u64) {
    if black_box(n) > 1 {
        descend(t, random, run, n - 1);
    } else {
        run(t, random);
    }
    after();
}

#[inline(never)]
fn round_of_all(random: &mut Random) -> Vec<Truth> {
    let mut order: Vec<(&'static str, Run)> = Vec::new();
    for phase in PHASES {
        order.insert(random.below(order.len() as u64 + 1) as usize, phase);
    }
    let mut truths = Vec::new();
    for (phase, run) in order {
        let mut t = Truth {
            phase,
            length: 5_000_000 + random.below(20_000_000),
            ..Truth::default()
        };
        let n = 1 + random.below(20);
        t.calls(&["chains::main", "chains::round_of_all"]);
        t.repeats("chains::descend", n);
        descend(&mut t, random, run, n);
        truths.push(t);
    }
    truths
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(path) = arguments.get(1) else {
        eprintln!("usage: chains-rs FILE [SECONDS [SEED]]");
        std::process::exit(2);
    };
    let seconds: f64 = arguments
        .get(2)
        .map_or(2.0, |a| a.parse().expect("seconds"));
    let seed: u64 = arguments.get(3).map_or(1, |a| a.parse().expect("seed"));
    let mut random = Random(seed * 2 + 0x9e37_79b9_7f4a_7c15);
    let until = now_ns() + (seconds * 1e9) as u64;
    let mut truths = Vec::new();
    loop {
        truths.extend(round_of_all(&mut random));
        if now_ns() >= until {
            break;
        }
    }

    let mut text = String::new();
    let (mut done, mut cpu, mut ns) = (0, 0, 0);
    for t in &truths {
        let kind = if t.off { "off" } else { "cpu" };
        writeln!(
            text,
            "{{\"phase\":\"{}\",\"pid\":{},\"tid\":{},\"kind\":\"{kind}\",\"start_ns\":{},\"end_ns\":{},\"cpu_ns\":{},\"chain\":{:?}}}",
            t.phase, std::process::id(), t.tid, t.start, t.end, t.cpu, t.chain
        )
        .unwrap();
        if t.work > 0 {
            done += t.work;
            cpu += t.cpu;
            ns += t.end - t.start;
        }
    }
    std::fs::write(path, text).expect("the truth is written");
    println!("{{\"work\":{done},\"cpu_ns\":{cpu},\"ns\":{ns}}}");
}
