//! Watching, summed up in the kernel.

use std::io::{self, Write as _};

use anyhow::Context as _;

use super::stream::Output;
use crate::analyse::sched::live::{sleeps, Scope};
use crate::analyse::sched::{cpu_list, Summary};
use crate::cli::{SchedOptions, Target};
use crate::collect::sched_sum::Plan;
use crate::collect::{clock, process};
use crate::commands::subject::{End, Subject};
use crate::error::{status, Error};
use crate::event::Cpu;
use crate::model::syscall;
use crate::pipeline::sched_sums::SchedSums;
use crate::units::{Count, Nanos};

/// Between two looks at who came into a cgroup.
const CGROUP_STEP: Nanos = Nanos::from_millis(100);

/// What is asked for besides [`SchedOptions`].
pub(super) struct Watch<'a> {
    pub(super) target: &'a Target,
    pub(super) command: &'a [std::ffi::OsString],
    pub(super) duration: Option<Nanos>,
    pub(super) interval: Option<Nanos>,
}

/// The result is the exit status.
pub(super) fn run(options: &SchedOptions, watch: &Watch<'_>) -> anyhow::Result<u8> {
    let online = online_cpus(options)?;
    let mut subject = Subject::prepare(watch.target, watch.command, false, Vec::new)?;
    let result = summed_up(options, watch, online, &mut subject);
    subject.conclude(result)
}

fn summed_up(
    options: &SchedOptions,
    watch: &Watch<'_>,
    online: Vec<Cpu>,
    subject: &mut Subject,
) -> anyhow::Result<u8> {
    let uname = nix::sys::utsname::uname().context("uname failed")?;
    let machine = uname.machine().to_string_lossy();
    let table = sleeps(syscall::Table::of_machine(&machine));
    let plan = Plan {
        all: *watch.target == Target::All,
        targets: subject.targets(),
        cgroups: subject.cgroups(),
        strangers: subject.strangers(),
        cpus: options.cpus.as_deref(),
        sleeps: &table,
        libbpf_messages: options.verbose > 1,
    };
    if options.verbose > 0 {
        say(options, format_args!("watching {}", subject.text()));
    }
    let scope = Scope {
        host: uname.nodename().to_string_lossy().into_owned(),
        cpus: options.cpus.clone(),
        online,
        tids: options.tids.clone(),
        interrupts: process::interrupts().into_iter().collect(),
    };
    let sums = SchedSums::start(&plan, scope)?;
    for probe in sums.missing_probes() {
        say(
            options,
            format_args!("warning: this kernel has no {probe}: what it would show is left out"),
        );
    }
    let mut session = Session {
        sums,
        out: Output::open(options)?,
    };
    let start = session.sums.go()?;
    subject.go(watch.duration)?;
    let end = session.until_the_end(options, watch.interval, start, subject)?;
    let Session { sums, mut out } = session;
    // Whoever reads the result may take long: by then nothing is watched.
    let (summary, targets) = sums.finish()?;
    out.write(|out| super::render(out, options, &summary))?;
    conclude(options, watch, &summary, targets, end)
}

/// The sums, and where they go.
struct Session {
    sums: SchedSums,
    out: Output,
}

impl Session {
    fn until_the_end(
        &mut self,
        options: &SchedOptions,
        interval: Option<Nanos>,
        start: Nanos,
        subject: &mut Subject,
    ) -> anyhow::Result<End> {
        let mut next = interval.map(|interval| start + interval);
        loop {
            let now = clock::monotonic();
            // Nothing has to be done but for whom a cgroup gets.
            let step = if subject.cgroups().is_empty() {
                Nanos::from_secs(1)
            } else {
                CGROUP_STEP
            };
            let until = next.map_or(now + step, |next| next.min(now + step));
            let woken = subject.wait(Some(self.sums.epoll_fd()), until)?;
            if woken.report {
                let so_far = self.sums.total()?;
                // Results are for stdout; this is on the side.
                let _ = super::render(&mut io::stderr(), options, &so_far);
            }
            if let Some(end) = woken.end {
                return Ok(end);
            }
            self.sums.keep_up()?;
            let now = clock::monotonic();
            if let (Some(at), Some(interval)) = (next.filter(|&at| now >= at), interval) {
                let part = self.sums.interval()?;
                self.out.write(|out| super::render(out, options, &part))?;
                // Late ones are left out rather than made up for.
                let missed = now.saturating_sub(at).0 / interval.0.max(1);
                next = Some(at + Nanos(interval.0 * (missed + 1)));
            }
        }
    }
}

fn conclude(
    options: &SchedOptions,
    watch: &Watch<'_>,
    summary: &Summary,
    targets: usize,
    end: End,
) -> anyhow::Result<u8> {
    let switches: u64 = summary.cpus.iter().map(|cpu| cpu.switches).sum();
    let lost = summary.lost.unwrap_or(0);
    if !options.quiet {
        // With stderr gone there is nobody left to tell.
        let _ = writeln!(
            std::io::stderr(),
            "[ gdiag sched: {}, {} switches, lost {} ]",
            summary.end.saturating_sub(summary.start),
            Count(switches),
            Count(lost)
        );
    }
    if *watch.target == Target::Command && end != End::CommandEnded {
        say(
            options,
            format_args!("the watch has ended, the command runs on"),
        );
    }
    if targets == 0 || summary.threads.is_empty() {
        let what = match watch.target {
            Target::Cgroups { .. } => "no process was in the cgroup, and none came",
            _ if targets > 0 => "no thread did anything where it was asked for",
            Target::Command | Target::Pids(_) | Target::All | Target::Cuda => {
                "no thread of the target was seen"
            }
        };
        let what = what.to_string();
        return Err(Error::NothingCaptured { what }.into());
    }
    if lost > 0 && options.strict {
        return Err(Error::EventsLost { lost }.into());
    }
    Ok(status::DONE)
}

pub(super) fn say(options: &SchedOptions, text: std::fmt::Arguments<'_>) {
    if !options.quiet {
        let _ = writeln!(std::io::stderr(), "gdiag: {text}");
    }
}

fn number(cpu: u32) -> Cpu {
    Cpu(u16::try_from(cpu).unwrap_or(u16::MAX))
}

/// The CPUs that are online: all that are asked for must be.
pub(super) fn online_cpus(options: &SchedOptions) -> anyhow::Result<Vec<Cpu>> {
    let online: Vec<Cpu> = process::online_cpus().into_iter().map(number).collect();
    if let Some(cpus) = &options.cpus {
        check_cpus(cpus, &online)?;
    }
    Ok(online)
}

fn check_cpus(wanted: &[Cpu], online: &[Cpu]) -> anyhow::Result<()> {
    let offline: Vec<Cpu> = wanted
        .iter()
        .filter(|cpu| !online.contains(cpu))
        .copied()
        .collect();
    if offline.is_empty() || online.is_empty() {
        return Ok(());
    }
    Err(Error::CpusOffline {
        asked: cpu_list(&offline),
        online: cpu_list(online),
    }
    .into())
}
