//! `gdiag.sched/1`. Keys and their order are public: adding a key is fine, renaming one or changing its meaning
//! is a new version. Times are integers in nanoseconds; what cannot be known is null, never 0.

use std::io::{self, Write};

use serde::Serialize;

use crate::analyse::sched::pinning::{self, Verdict};
use crate::analyse::sched::{
    CpuSum, OffSum, Preemptor, Summary, ThreadSum, Waker, WakerContext, Who,
};
use crate::cli::{SchedOptions, SchedSource};
use crate::event::Cpu;
use crate::histogram::Histogram;
use crate::present::sched::rows::{by_sort, preempted};
use crate::units::Nanos;

/// `gdiag.sched/1`.
pub const SCHED_SCHEMA: &str = "gdiag.sched/1";

/// Writes the document, as one line where `-I` asks for one each time, and a newline. All threads are in it,
/// whatever `--top` says, in the order of `--sort`.
pub fn write(out: &mut dyn Write, summary: &Summary, options: &SchedOptions) -> io::Result<()> {
    let mut threads: Vec<&ThreadSum> = summary.threads.iter().collect();
    threads.sort_by_cached_key(|thread| by_sort(thread, options.sort));
    let document = Document {
        schema: SCHED_SCHEMA,
        host: Some(&summary.host).filter(|host| !host.is_empty()),
        start_ns: summary.start.0,
        end_ns: summary.end.0,
        lost: summary.lost,
        notes: &summary.notes,
        verdicts: pinning::judge(summary)
            .into_iter()
            .map(VerdictDoc::new)
            .collect(),
        threads: threads.into_iter().map(ThreadDoc::new).collect(),
        cpus: summary.cpus.iter().map(CpuDoc::new).collect(),
        preemptors: summary.preemptors.iter().map(PreemptorDoc::new).collect(),
    };
    let lines = match &options.source {
        SchedSource::Live { interval, .. } => interval.is_some(),
        SchedSource::Recording { .. } => false,
    };
    if lines {
        serde_json::to_writer(&mut *out, &document)?;
    } else {
        serde_json::to_writer_pretty(&mut *out, &document)?;
    }
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    host: Option<&'a String>,
    start_ns: u64,
    end_ns: u64,
    lost: Option<u64>,
    notes: &'a [String],
    verdicts: Vec<VerdictDoc>,
    threads: Vec<ThreadDoc<'a>>,
    cpus: Vec<CpuDoc<'a>>,
    preemptors: Vec<PreemptorDoc<'a>>,
}

#[derive(Serialize)]
struct WhoDoc<'a> {
    pid: u32,
    tid: u32,
    comm: &'a str,
}

impl<'a> WhoDoc<'a> {
    fn new(who: &'a Who) -> Self {
        WhoDoc {
            pid: who.pid.0,
            tid: who.tid.0,
            comm: &who.comm,
        }
    }
}

#[derive(Serialize)]
struct VerdictDoc {
    pid: u32,
    tid: u32,
    comm: String,
    fine: bool,
    says: String,
    evidence: Vec<String>,
    fix: Option<String>,
}

impl VerdictDoc {
    fn new(verdict: Verdict) -> Self {
        VerdictDoc {
            pid: verdict.who.pid.0,
            tid: verdict.who.tid.0,
            comm: verdict.who.comm,
            fine: verdict.fine,
            says: verdict.says,
            evidence: verdict.evidence,
            fix: verdict.remedy,
        }
    }
}

#[derive(Serialize)]
struct ThreadDoc<'a> {
    #[serde(flatten)]
    who: WhoDoc<'a>,
    target: bool,
    kthread: bool,
    dispatcher: bool,
    prio: Option<u32>,
    run_ns: u64,
    runq_ns: Option<u64>,
    runq_count: Option<u64>,
    runq_avg_ns: Option<u64>,
    runq_p50_ns: Option<u64>,
    runq_p90_ns: Option<u64>,
    runq_p99_ns: Option<u64>,
    runq_max_ns: Option<u64>,
    runq_max_at_ns: Option<u64>,
    runq_max_behind: Option<WhoDoc<'a>>,
    blocked_ns: Option<u64>,
    voluntary: Option<u64>,
    involuntary: Option<u64>,
    preempted: Option<u64>,
    migrations: Option<u64>,
    cpus: Vec<u16>,
    affinity: Option<Vec<u16>>,
    affinity_count: Option<usize>,
    cpu_ns: Vec<CpuTime>,
    off: Option<Vec<OffDoc>>,
    wakers: Option<Vec<WakerDoc<'a>>>,
    behind: Vec<Sharer<'a>>,
    runq_histogram: Option<Vec<Bucket>>,
    runs: HistogramDoc,
}

impl<'a> ThreadDoc<'a> {
    fn new(thread: &'a ThreadSum) -> Self {
        // Of those that were only seen beside others.
        let known = !thread.is_stranger();
        let count = |n: u64| known.then_some(n);
        let time = |share| thread.runq.percentile(share).map(Nanos::as_u64);
        ThreadDoc {
            who: WhoDoc::new(&thread.who),
            target: thread.target,
            kthread: thread.kthread,
            dispatcher: thread.dispatcher,
            prio: thread.prio,
            run_ns: thread.run.0,
            runq_ns: count(thread.waited().0),
            runq_count: count(thread.runq.count),
            runq_avg_ns: thread.runq.average().map(Nanos::as_u64),
            runq_p50_ns: time(0.5),
            runq_p90_ns: time(0.9),
            runq_p99_ns: time(0.99),
            runq_max_ns: thread.runq.longest().filter(|_| known).map(Nanos::as_u64),
            runq_max_at_ns: thread.runq_max_at.map(Nanos::as_u64),
            runq_max_behind: thread.runq_max_behind.as_ref().map(WhoDoc::new),
            blocked_ns: count(thread.blocked().0),
            voluntary: count(thread.voluntary),
            involuntary: count(thread.involuntary),
            preempted: count(preempted(thread)),
            migrations: count(thread.migrations),
            cpus: numbers(thread.cpus.iter().map(|(cpu, _)| cpu)),
            affinity: thread.affinity.as_ref().map(|cpus| numbers(cpus.iter())),
            affinity_count: thread.allowed_cpus(),
            cpu_ns: thread.cpus.iter().map(CpuTime::new).collect(),
            off: known.then(|| thread.off.iter().map(OffDoc::new).collect()),
            wakers: known.then(|| thread.wakers.iter().map(WakerDoc::new).collect()),
            behind: thread.behind.iter().map(Sharer::new).collect(),
            runq_histogram: known.then(|| buckets(&thread.runq)),
            runs: HistogramDoc::new(&thread.runs),
        }
    }
}

fn numbers<'a>(cpus: impl Iterator<Item = &'a Cpu>) -> Vec<u16> {
    cpus.map(|cpu| cpu.0).collect()
}

#[derive(Serialize)]
struct CpuTime {
    cpu: u16,
    ns: u64,
}

impl CpuTime {
    fn new(&(cpu, time): &(Cpu, Nanos)) -> Self {
        CpuTime {
            cpu: cpu.0,
            ns: time.0,
        }
    }
}

#[derive(Serialize)]
struct OffDoc {
    reason: &'static str,
    count: u64,
    ns: u64,
    max_ns: Option<u64>,
}

impl OffDoc {
    fn new(off: &OffSum) -> Self {
        OffDoc {
            reason: off.reason.name(),
            count: off.count,
            ns: off.total.0,
            max_ns: off.max.map(Nanos::as_u64),
        }
    }
}

#[derive(Serialize)]
struct WakerDoc<'a> {
    #[serde(flatten)]
    by: ByDoc<'a>,
    count: u64,
}

/// As `woken_by` in `gdiag.report/1`.
#[derive(Serialize)]
#[serde(untagged)]
enum ByDoc<'a> {
    Thread(WhoDoc<'a>),
    Irq { irq: &'a str },
    SoftIrq { softirq: &'a str },
    Timer { timer: bool },
}

impl<'a> WakerDoc<'a> {
    fn new((waker, count): &'a (Waker, u64)) -> Self {
        let by = match waker {
            Waker::Thread(who) => ByDoc::Thread(WhoDoc::new(who)),
            Waker::Interrupt(WakerContext::HardIrq(_), irq) => ByDoc::Irq { irq },
            Waker::Interrupt(WakerContext::SoftIrq(_), softirq) => ByDoc::SoftIrq { softirq },
            Waker::Interrupt(WakerContext::Timer, _) => ByDoc::Timer { timer: true },
        };
        WakerDoc { by, count: *count }
    }
}

/// Somebody with a time.
#[derive(Serialize)]
struct Sharer<'a> {
    #[serde(flatten)]
    who: WhoDoc<'a>,
    ns: u64,
}

impl<'a> Sharer<'a> {
    fn new((who, time): &'a (Who, Nanos)) -> Self {
        Sharer {
            who: WhoDoc::new(who),
            ns: time.0,
        }
    }
}

#[derive(Serialize)]
struct Bucket {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

fn buckets(histogram: &Histogram) -> Vec<Bucket> {
    let rows = histogram.octaves().into_iter();
    rows.map(|(from, to, count)| Bucket {
        from_ns: from.0,
        to_ns: to.0,
        count,
    })
    .collect()
}

#[derive(Serialize)]
struct HistogramDoc {
    count: u64,
    avg_ns: Option<u64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    histogram: Vec<Bucket>,
}

impl HistogramDoc {
    fn new(histogram: &Histogram) -> Self {
        let time = |share| histogram.percentile(share).map(Nanos::as_u64);
        HistogramDoc {
            count: histogram.count,
            avg_ns: histogram.average().map(Nanos::as_u64),
            p50_ns: time(0.5),
            p99_ns: time(0.99),
            max_ns: histogram.longest().map(Nanos::as_u64),
            histogram: buckets(histogram),
        }
    }
}

#[derive(Serialize)]
struct CpuDoc<'a> {
    cpu: u16,
    busy_ns: u64,
    idle_ns: Option<u64>,
    irq_ns: u64,
    unknown_ns: u64,
    switches: u64,
    ran: Vec<Sharer<'a>>,
}

impl<'a> CpuDoc<'a> {
    fn new(cpu: &'a CpuSum) -> Self {
        CpuDoc {
            cpu: cpu.cpu.0,
            busy_ns: cpu.busy.0,
            idle_ns: cpu.known_idle().map(Nanos::as_u64),
            irq_ns: cpu.irq.0,
            unknown_ns: cpu.unknown.0,
            switches: cpu.switches,
            ran: cpu.ran.iter().map(Sharer::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct PreemptorDoc<'a> {
    #[serde(flatten)]
    who: WhoDoc<'a>,
    count: u64,
    ns: u64,
    had_ns: Option<u64>,
    victims: Vec<VictimDoc<'a>>,
}

#[derive(Serialize)]
struct VictimDoc<'a> {
    #[serde(flatten)]
    who: WhoDoc<'a>,
    count: u64,
    ns: u64,
}

impl<'a> PreemptorDoc<'a> {
    fn new(preemptor: &'a Preemptor) -> Self {
        let victims = preemptor.victims.iter();
        PreemptorDoc {
            who: WhoDoc::new(&preemptor.who),
            count: preemptor.count,
            ns: preemptor.waited.0,
            had_ns: preemptor.had.map(Nanos::as_u64),
            victims: victims
                .map(|(who, count, time)| VictimDoc {
                    who: WhoDoc::new(who),
                    count: *count,
                    ns: time.0,
                })
                .collect(),
        }
    }
}
