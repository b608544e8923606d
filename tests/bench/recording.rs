//! Writes a large recording for measuring `gdiag report`:
//! `cargo run --release --example recording -- gpu 10000000 gdiag.data`.
//!
//! `host`: threads that wake each other on 16 CPUs, with waits that have stacks. `gpu`: a training job
//! as the H200 recorded it: two threads launch small kernels and hand over to each other, wait in
//! synchronising calls, are preempted by a foreign program, and wait for loader processes. The
//! GPU's records come in batches, later than the host's of the same time. `locks`: the same, but the two
//! threads hand over at each launch.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr)]

use std::path::Path;

use anyhow::{bail, Context as _};

use gdiag::event::{
    Api, ApiCall, ApiDomain, Context, ContextId, CorrelationId, Cpu, Define, Device, DeviceId,
    Event, GpuOp, Interrupt, NameId, OpKind, Pid, Process, Shim, ShimState, StackId, StreamId,
    Switch, SwitchFlags, Task, TaskReason, TaskState, Tid, Wait, Waking,
};
use gdiag::store::meta::{GpuSource, Meta, Summary};
use gdiag::store::Writer;
use gdiag::units::Nanos;

const BEGIN: u64 = 86_400_000_000_000;
const JOB: Pid = Pid(120_000);
const FUTEX: u16 = 202;
const POLL: u16 = 7;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, count, path] = arguments.as_slice() else {
        bail!("usage: recording host|gpu|locks EVENTS FILE");
    };
    let count: u64 = count.parse().context("EVENTS is a number")?;
    let meta = Meta {
        gdiag_version: env!("CARGO_PKG_VERSION").to_string(),
        host: "bench".to_string(),
        kernel: "6.18.0".to_string(),
        machine: "x86_64".to_string(),
        cpus_online: 16,
        command: vec!["recording".to_string(), mode.clone()],
        targets: vec![JOB],
        start_mono_ns: BEGIN,
        wait_threshold_ns: 100_000,
        ..Meta::default()
    };
    let mut out = Out {
        writer: Writer::create(Path::new(path), &meta)?,
        random: Random(0x9e37_79b9_7f4a_7c15),
    };
    let (end, gpu_source) = match mode.as_str() {
        "host" => (host(&mut out, count)?, GpuSource::None),
        "gpu" => (gpu(&mut out, count, 60)?, GpuSource::Simulated),
        "locks" => (gpu(&mut out, count, 1)?, GpuSource::Simulated),
        _ => bail!("the mode is host, gpu or locks"),
    };
    let stats = out.writer.finish(&Summary {
        end_mono_ns: end,
        gpu_source,
        ..Summary::default()
    })?;
    eprintln!(
        "{} events, {}, {}",
        stats.events,
        Nanos(end - BEGIN),
        stats.written
    );
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

struct Out {
    writer: Writer,
    random: Random,
}

impl Out {
    fn push(&mut self, event: &Event) -> anyhow::Result<()> {
        Ok(self.writer.push(event)?)
    }

    fn count(&self) -> u64 {
        self.writer.stats().events
    }

    fn names(&mut self, names: &[(u32, &str)]) -> anyhow::Result<()> {
        for &(id, text) in names {
            let text = text.to_string();
            self.push(&Event::Define(Define::Name {
                id: NameId(id),
                text,
            }))?;
        }
        Ok(())
    }

    fn task(&mut self, tid: Tid, pid: Pid, comm: u32, target: bool) -> anyhow::Result<()> {
        self.push(&Event::Task(Task {
            ts: Nanos(BEGIN),
            tid,
            pid,
            ppid: if pid == JOB { Pid(1) } else { JOB },
            comm: NameId(comm),
            start: Nanos(BEGIN - 1_000_000),
            ns_tid: tid,
            ns_pid: pid,
            cgroup: 1,
            prio: 120,
            reason: TaskReason::Seen,
            target,
            kthread: false,
            state: TaskState::Off(1),
            syscall: Some(FUTEX),
        }))
    }

    fn wait_stack(&mut self) -> anyhow::Result<()> {
        self.names(&[
            (1, "python3"),
            (2, "pt_autograd_0"),
            (3, "pt_data_worker"),
            (4, "hog"),
            (10, "futex_do_wait"),
            (11, "__futex_wait"),
            (12, "do_futex"),
            (20, "/usr/bin/python3"),
            (21, "python3 train.py"),
            (22, "/system.slice/job.scope"),
            (30, "Simulated GPU"),
            (31, "GPU-00000000-0000-0000-0000-000000000001"),
        ])?;
        self.push(&Event::Define(Define::Stack {
            id: StackId(1),
            frames: vec![NameId(10), NameId(11), NameId(12)],
        }))?;
        self.push(&Event::Process(Process {
            ts: Nanos(BEGIN),
            pid: JOB,
            cmdline: NameId(21),
            exe: NameId(20),
            cgroup: NameId(22),
        }))
    }

    fn switch(
        &mut self,
        ts: u64,
        cpu: u16,
        (prev, next): (Tid, Tid),
        sleeps_in: Option<u16>,
    ) -> anyhow::Result<()> {
        self.push(&Event::Switch(Switch {
            ts: Nanos(ts),
            cpu: Cpu(cpu),
            prev,
            next,
            state: u16::from(sleeps_in.is_some()),
            syscall: sleeps_in,
            flags: SwitchFlags::default(),
            minor_faults: 0,
            major_faults: 0,
        }))
    }

    fn waking(
        &mut self,
        ts: u64,
        cpu: u16,
        waker: Tid,
        wakee: Tid,
        context: Context,
    ) -> anyhow::Result<()> {
        self.push(&Event::Waking(Waking {
            ts: Nanos(ts),
            cpu: Cpu(cpu),
            wakee,
            waker,
            context,
        }))
    }

    fn waited(&mut self, tid: Tid, start: u64, end: u64, syscall: u16) -> anyhow::Result<()> {
        self.push(&Event::Wait(Wait {
            tid,
            start: Nanos(start),
            end: Nanos(end),
            state: 1,
            syscall: Some(syscall),
            stack: StackId(1),
            object: NameId(0),
        }))
    }
}

/// On each CPU some threads pass the turn on: the one that runs wakes the next and sleeps.
fn host(out: &mut Out, count: u64) -> anyhow::Result<u64> {
    const CPUS: usize = 16;
    const TURNS: u32 = 8;
    out.wait_stack()?;
    for n in 0..CPUS as u32 * TURNS {
        out.task(Tid(JOB.0 + n), JOB, 1, true)?;
    }
    let tid = |cpu: usize, turn: u32| Tid(JOB.0 + cpu as u32 * TURNS + turn);
    let mut turn = [0; CPUS];
    let mut slept = [[BEGIN; TURNS as usize]; CPUS];
    let mut now = BEGIN;
    while out.count() < count {
        let cpu = out.random.below(CPUS as u64) as usize;
        now += 100 + out.random.below(400);
        let (this, next) = (turn[cpu], (turn[cpu] + 1) % TURNS);
        let here = cpu as u16;
        out.waking(now, here, tid(cpu, this), tid(cpu, next), Context::Task)?;
        let since = slept[cpu][next as usize];
        if now - since > 100_000 {
            out.waited(tid(cpu, next), since, now, FUTEX)?;
        }
        now += 50 + out.random.below(300);
        out.switch(now, here, (tid(cpu, this), tid(cpu, next)), Some(FUTEX))?;
        slept[cpu][this as usize] = now;
        turn[cpu] = next;
    }
    Ok(now)
}

const MAIN: (Tid, u16) = (Tid(JOB.0), 2);
const BACKWARD: (Tid, u16) = (Tid(JOB.0 + 7), 5);
const HOG: Tid = Tid(90_000);
const IDLE: Tid = Tid(0);

/// The job of `gpu`, and what its GPU has yet to tell.
struct Job<'a> {
    out: &'a mut Out,
    /// Of the thread that launches.
    now: u64,
    /// When the device is done with what it has.
    device: u64,
    correlation: u32,
    batch: Vec<Event>,
}

impl Job<'_> {
    fn call(&mut self, tid: Tid, domain: ApiDomain, cbid: u32, start: u64, end: u64) {
        self.correlation += 1;
        self.batch.push(Event::ApiCall(ApiCall {
            pid: JOB,
            tid,
            api: Api { domain, cbid },
            start: Nanos(start),
            end: Nanos(end),
            correlation: CorrelationId(self.correlation),
            result: 0,
        }));
    }

    fn launch(&mut self, tid: Tid) {
        let start = self.now + 1_000 + self.out.random.below(6_000);
        let end = start + 2_500 + self.out.random.below(3_000);
        self.call(tid, ApiDomain::Runtime, 211, start, end);
        let begin = self.device.max(end + 1_200 + self.out.random.below(800));
        let long = if self.out.random.below(20) == 0 {
            40_000
        } else {
            4_000
        };
        let done = begin + 900 + self.out.random.below(long);
        self.batch.push(Event::GpuOp(GpuOp {
            pid: JOB,
            device: DeviceId(0),
            context: ContextId(1),
            stream: StreamId(7),
            kind: OpKind::Kernel {
                name: NameId(100 + self.out.random.below(60) as u32),
            },
            start: Nanos(begin),
            end: Nanos(done),
            correlation: CorrelationId(self.correlation),
            graph: 0,
            node: 0,
        }));
        self.device = done;
        self.now = end;
    }

    /// `to` takes over from `from`, which sleeps until it is its turn again.
    fn hand_over(&mut self, from: (Tid, u16), to: (Tid, u16)) -> anyhow::Result<()> {
        let waking = self.now + 2_000;
        self.out
            .waking(waking, from.1, from.0, to.0, Context::Task)?;
        self.out.switch(waking + 3_000, to.1, (IDLE, to.0), None)?;
        self.out
            .switch(waking + 4_000, from.1, (from.0, IDLE), Some(FUTEX))?;
        self.now = waking + 4_500;
        Ok(())
    }

    fn synchronise(&mut self) -> anyhow::Result<()> {
        let start = self.now + 1_000;
        let done = self.device.max(start + 5_000);
        self.out
            .switch(start + 2_000, MAIN.1, (MAIN.0, IDLE), Some(POLL))?;
        self.out
            .waking(done, MAIN.1, IDLE, MAIN.0, Context::HardIrq(120))?;
        self.out
            .switch(done + 4_000, MAIN.1, (IDLE, MAIN.0), None)?;
        self.call(MAIN.0, ApiDomain::Runtime, 131, start, done + 6_000);
        self.now = done + 6_000;
        Ok(())
    }

    fn preempt(&mut self) -> anyhow::Result<()> {
        let long = 20_000 + self.out.random.below(3_000_000);
        self.out.switch(self.now, MAIN.1, (MAIN.0, HOG), None)?;
        self.now += long;
        self.out.switch(self.now, MAIN.1, (HOG, MAIN.0), None)
    }

    /// The main thread sleeps until a worker has its data.
    fn load(&mut self, worker: (Tid, u16)) -> anyhow::Result<()> {
        let asleep = self.now + 500;
        self.out
            .switch(asleep, MAIN.1, (MAIN.0, IDLE), Some(POLL))?;
        self.out
            .waking(asleep + 100, worker.1, IDLE, worker.0, Context::Timer)?;
        self.out
            .switch(asleep + 4_000, worker.1, (IDLE, worker.0), None)?;
        let ready = asleep + 50_000 + self.out.random.below(400_000);
        self.out.push(&Event::Interrupt(Interrupt {
            start: Nanos(ready - 20_000),
            dur: Nanos(3_000),
            cpu: Cpu(worker.1),
            tid: worker.0,
            context: Context::Timer,
        }))?;
        self.out
            .waking(ready, worker.1, worker.0, MAIN.0, Context::Task)?;
        if ready - asleep > 100_000 {
            self.out.waited(MAIN.0, asleep, ready, POLL)?;
        }
        self.out
            .switch(ready + 3_000, MAIN.1, (IDLE, MAIN.0), None)?;
        self.out
            .switch(ready + 5_000, worker.1, (worker.0, IDLE), Some(FUTEX))?;
        self.now = ready + 5_000;
        Ok(())
    }

    /// CUPTI hands over what it has every 20 ms or so.
    fn flush(&mut self) -> anyhow::Result<()> {
        for event in std::mem::take(&mut self.batch) {
            self.out.push(&event)?;
        }
        Ok(())
    }
}

/// `in_a_row`: launches of a thread before it hands over.
fn gpu(out: &mut Out, count: u64, in_a_row: u64) -> anyhow::Result<u64> {
    out.wait_stack()?;
    let kernels: Vec<(u32, String)> = (100..160)
        .map(|id| {
            let kind = ["gemm", "elementwise", "reduce", "softmax"][id as usize % 4];
            (
                id,
                format!("void at::native::{kind}_kernel<float, {id}>(int)"),
            )
        })
        .collect();
    for (id, text) in &kernels {
        out.names(&[(*id, text)])?;
    }
    out.push(&Event::Device(Device {
        ts: Nanos(BEGIN),
        pid: JOB,
        id: DeviceId(0),
        name: NameId(30),
        uuid: NameId(31),
    }))?;
    out.push(&Event::Shim(Shim {
        ts: Nanos(BEGIN),
        pid: JOB,
        state: ShimState::Active,
        reason: NameId(0),
        cupti_path: NameId(0),
        cupti_version: 0,
        simulated: true,
    }))?;
    out.task(MAIN.0, JOB, 1, true)?;
    out.task(BACKWARD.0, JOB, 2, true)?;
    out.task(HOG, Pid(HOG.0), 4, false)?;
    let workers = [(Tid(130_000), 8), (Tid(130_001), 9)];
    for (tid, _) in workers {
        out.task(tid, Pid(tid.0), 3, true)?;
    }
    let mut job = Job {
        out,
        now: BEGIN + 1_000_000,
        device: BEGIN,
        correlation: 0,
        batch: Vec::new(),
    };
    job.out.switch(job.now, MAIN.1, (IDLE, MAIN.0), None)?;
    let mut step = 0;
    while job.out.count() < count {
        for _ in 0..in_a_row {
            job.launch(MAIN.0);
            if job.out.random.below(400) == 0 {
                job.preempt()?;
            }
        }
        job.hand_over(MAIN, BACKWARD)?;
        for _ in 0..in_a_row * 2 / 3 + 1 {
            job.launch(BACKWARD.0);
        }
        job.hand_over(BACKWARD, MAIN)?;
        step += 1;
        if step % 60 < in_a_row {
            job.synchronise()?;
        }
        if step % 240 < in_a_row {
            job.load(workers[(step / 240 % 2) as usize])?;
        }
        if step % 20 == 0 {
            job.flush()?;
        }
    }
    job.flush()?;
    Ok(job.now.max(job.device))
}
