//! What an event costs on its way into a recording and out of it: `cargo bench --bench store`.
//!
//! The stream is that of a busy training process: threads that wake each other, interrupts,
//! and launches with their kernels.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use gdiag::event::{
    Api, ApiCall, ApiDomain, Context, ContextId, CorrelationId, Cpu, DeviceId, Event, GpuOp,
    Interrupt, NameId, OpKind, Pid, StreamId, Switch, SwitchFlags, Tid, Waking,
};
use gdiag::store::meta::{Meta, Summary};
use gdiag::store::{Reader, Writer};
use gdiag::units::{Bytes, Nanos};

const EVENTS: u64 = 1_000_000;
const RUNS: u32 = 5;
const CPUS: u64 = 16;
const THREADS: u64 = 400;

fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    for (name, events) in [
        ("switches and wakings", scheduling()),
        ("the same with GPU work", training()),
    ] {
        let path = dir.path().join("gdiag.data");
        let mut write = Duration::MAX;
        let mut read = Duration::MAX;
        let mut stats = None;
        for _ in 0..RUNS {
            let begin = Instant::now();
            let mut writer = Writer::create(&path, &Meta::default())?;
            for event in &events {
                writer.push(event)?;
            }
            stats = Some(writer.finish(&Summary::default())?);
            write = write.min(begin.elapsed());

            let begin = Instant::now();
            let mut count = 0;
            Reader::open(&path)?.for_each(|event| {
                black_box(event);
                count += 1;
                ControlFlow::Continue(())
            })?;
            read = read.min(begin.elapsed());
            anyhow::ensure!(count == events.len(), "{count} events came back");
        }
        let stats = stats.expect("there was a run");
        let each = |took: Duration| took.as_nanos() as f64 / events.len() as f64;
        println!(
            "{name}: write {:.1} ns/event, read {:.1} ns/event; {:.1} B/event before compression, {:.1} B after ({})",
            each(write),
            each(read),
            stats.raw.0 as f64 / stats.events as f64,
            stats.written.0 as f64 / stats.events as f64,
            Bytes(stats.written.0),
        );
        if stats.switches > 0 {
            println!(
                "    {:.1} B a switch with its wakings",
                stats.switch_bytes.0 as f64 / stats.switches as f64
            );
        }
    }
    Ok(())
}

/// Pseudo-random numbers, the same at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Threads on some CPUs, as a kernel would tell of them.
struct Host {
    random: Random,
    now: u64,
    current: [u32; CPUS as usize],
}

impl Host {
    fn new() -> Self {
        Host {
            random: Random(0x9e37_79b9_7f4a_7c15),
            now: 86_400_000_000_000,
            current: [0; CPUS as usize],
        }
    }

    fn step(&mut self, out: &mut Vec<Event>) {
        let cpu = self.random.below(CPUS) as usize;
        self.now += 200 + self.random.below(3000);
        let next =
            Tid(1_200_000
                + (cpu as u64 * (THREADS / CPUS) + self.random.below(THREADS / CPUS)) as u32);
        let prev = Tid(self.current[cpu]);
        let context = match self.random.below(10) {
            0..7 => Context::Task,
            7..9 => Context::SoftIrq(3),
            _ => Context::HardIrq(120),
        };
        let here = Cpu(cpu as u16);
        out.push(Event::Waking(Waking {
            ts: Nanos(self.now),
            cpu: here,
            wakee: next,
            waker: prev,
            context,
        }));
        self.now += 300 + self.random.below(2000);
        let voluntary = self.random.below(4) > 0;
        out.push(Event::Switch(Switch {
            ts: Nanos(self.now),
            cpu: here,
            prev,
            next,
            state: u16::from(voluntary),
            syscall: voluntary.then(|| [202, 0, 1, 232][self.random.below(4) as usize]),
            flags: SwitchFlags(u8::from(self.random.below(20) == 0)),
            minor_faults: u8::from(self.random.below(20) == 0),
            major_faults: 0,
        }));
        self.current[cpu] = next.0;
    }
}

fn scheduling() -> Vec<Event> {
    let mut host = Host::new();
    let mut events = Vec::new();
    while events.len() < EVENTS as usize {
        host.step(&mut events);
    }
    events
}

fn training() -> Vec<Event> {
    let mut host = Host::new();
    let mut events = Vec::new();
    let mut device = host.now;
    let mut correlation = 0;
    let (pid, tid) = (Pid(1_200_000), Tid(1_200_007));
    while events.len() < EVENTS as usize {
        host.step(&mut events);
        events.push(Event::Interrupt(Interrupt {
            start: Nanos(host.now),
            dur: Nanos(900 + host.random.below(4000)),
            cpu: Cpu(3),
            tid: Tid(host.current[3]),
            context: Context::Timer,
        }));
        // CUPTI hands over its records in batches.
        if host.random.below(50) > 0 {
            continue;
        }
        for _ in 0..100 {
            correlation += 1;
            let start = device + host.random.below(2000);
            let end = start + 2000 + host.random.below(20_000);
            events.push(Event::ApiCall(ApiCall {
                pid,
                tid,
                api: Api {
                    domain: ApiDomain::Driver,
                    cbid: 307,
                },
                start: Nanos(start.saturating_sub(9000)),
                end: Nanos(start.saturating_sub(4000)),
                correlation: CorrelationId(correlation),
                result: 0,
            }));
            events.push(Event::GpuOp(GpuOp {
                pid,
                device: DeviceId(0),
                context: ContextId(1),
                stream: StreamId(7),
                kind: OpKind::Kernel {
                    name: NameId(100 + host.random.below(60) as u32),
                },
                start: Nanos(start),
                end: Nanos(end),
                correlation: CorrelationId(correlation),
                graph: 0,
                node: 0,
            }));
            device = end;
        }
    }
    events
}
