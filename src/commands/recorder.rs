//! What every recorder does, whatever becomes of its events: `record`, and the flight recorder.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

use super::subject::{End, Subject, Woken};
use crate::cli::{RecordOptions, Target, Trigger};
use crate::collect::bpf::Plan;
use crate::collect::{clock, process, shim_file, shims, stacks, syscalls};
use crate::error::{status, Error};
use crate::event::{Event, Pid, ShimState};
use crate::pipeline::{Seen, Session};
use crate::store::meta::{GpuSource, Meta, TargetMode};
use crate::units::{Count, Nanos};

/// Least time between two looks, however urgent: each disturbs every CPU a little, and a target that
/// starts programs without end would have gdiag look without end.
const URGENT_STEP: Nanos = Nanos::from_millis(5);

/// Where events go.
pub(super) trait Sink {
    /// Events come from callbacks that cannot fail: [`Sink::turn`] tells.
    fn push(&mut self, event: &Event);

    /// Between two looks at the sources. Ends the recording by saying so.
    fn turn(&mut self, recorder: &mut Recorder<'_>, turn: Turn) -> Result<Option<End>>;
}

/// What has happened since the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) now: Nanos,
    pub(super) woken: Woken,
    /// All events before `now` were pushed.
    pub(super) stepped: bool,
}

/// A recorder that runs.
pub(super) struct Recorder<'a> {
    pub(super) options: &'a RecordOptions,
    pub(super) subject: Subject,
    pub(super) session: Session,
    pub(super) meta: Meta,
    /// Events that came before there was a sink.
    early: Vec<Event>,
    unseen: Unseen,
    shim: Option<shim_file::ShimFile>,
}

impl<'a> Recorder<'a> {
    /// Checks all that was asked for, and starts the sources. The command, if any, waits.
    ///
    /// Must be called while gdiag has one thread.
    pub(super) fn start(options: &'a RecordOptions) -> Result<Recorder<'a>> {
        Recorder::start_with(options, false, || Ok(()))
    }

    /// As [`start`](Self::start). `screen`: the terminal is not for the command. `alone` is called when the command has been forked, and there is one thread still.
    pub(super) fn start_with(
        options: &'a RecordOptions,
        screen: bool,
        alone: impl FnOnce() -> Result<()>,
    ) -> Result<Recorder<'a>> {
        let mut shim = None;
        let subject = Subject::prepare(&options.target, &options.command, screen, || {
            shim = shim_to_carry(options);
            let shim = shim.as_ref();
            shim.map_or_else(Vec::new, |shim| shim.environment(options.unified_memory))
        })?;
        alone()?;
        let mut unseen = Unseen::default();
        if options.target != Target::All {
            unseen.look(&subject.members());
        }
        let plan = Plan {
            all: options.target == Target::All,
            targets: subject.targets(),
            cgroups: subject.cgroups().to_vec(),
            strangers: subject.strangers(),
            scheduling: true,
            wait_threshold: wait_threshold(options),
            syscalls: options.syscalls.then(|| syscalls::Plan {
                from_exec: options.target == Target::Command,
                ..syscalls::Plan::bare()
            }),
            stacks: options.stacks.map(|stacks| stacks::Plan {
                frequency: stacks.frequency,
                launch_one_in: stacks.launch_one_in.unwrap_or(0),
            }),
            inject: options.inject,
            libbpf_messages: options.verbose > 1,
        };
        explain(options, &subject, shim.as_ref());

        let mut early = Vec::new();
        let session = Session::start(&plan, &mut |event| early.push(event))?;
        let meta = meta(options, &plan, &subject, &session)?;
        Ok(Recorder {
            options,
            subject,
            session,
            meta,
            early,
            unseen,
            shim,
        })
    }

    /// Lets the command run, and reads until the end. Everything that was recorded has been pushed then.
    pub(super) fn run(&mut self, sink: &mut dyn Sink) -> Result<End> {
        for event in std::mem::take(&mut self.early) {
            sink.push(&event);
        }
        for probe in &self.meta.missing_probes {
            say(
                self.options,
                format_args!("this kernel has no {probe}: what it would show is left out"),
            );
        }
        self.subject.go(self.options.duration)?;
        let result = self.watch(sink).and_then(|end| {
            self.session.finish(&mut |event| sink.push(&event))?;
            Ok(end)
        });
        if let Some(shim) = self.shim.take().filter(|_| self.session.targets_alive()) {
            shim.keep();
        }
        self.unseen.look(&self.subject.members());
        result
    }

    fn watch(&mut self, sink: &mut dyn Sink) -> Result<End> {
        // At once: shims that are there already wait to be asked.
        let mut next_step = clock::monotonic();
        let mut last_step = Nanos::ZERO;
        loop {
            // Whatever is there so soon after the last look has to wait a little.
            let rested = clock::monotonic() >= last_step + URGENT_STEP;
            let woken = if rested {
                self.subject
                    .wait(Some(self.session.epoll_fd()), next_step)?
            } else {
                self.subject.wait(None, last_step + URGENT_STEP)?
            };
            let now = clock::monotonic();
            let stepped = now >= next_step || woken.ready;
            if stepped {
                self.session.step(&mut |event| sink.push(&event))?;
                tell_injected(self.options, &mut self.session);
                next_step = now + self.session.pause();
                last_step = clock::monotonic();
                self.unseen.look_again(last_step);
            }
            let turn = Turn {
                now,
                woken,
                stepped,
            };
            if let Some(end) = sink.turn(self, turn)?.or(woken.end) {
                return Ok(end);
            }
        }
    }

    /// What a person should know about what was recorded so far.
    pub(super) fn warnings(&self) -> Vec<String> {
        let session = &self.session;
        let seen = session.seen;
        let mut warnings = session.warnings();
        let not_injected: Vec<_> = session.not_injected().collect();
        let told = session.probed().map(|(_, proc_pid, _)| proc_pid);
        let told = told.chain(not_injected.iter().map(|(proc_pid, _)| *proc_pid));
        let unseen = self.unseen.warning(self.options.inject, told);
        let is_probed = session.probed().next().is_some();
        let why = match session.refused() {
            _ if seen.gpu_operations > 0 => None,
            Some((ShimState::Busy, reason)) => Some(format!(
                "no GPU records: {reason}; end that tool and record again"
            )),
            Some((_, reason)) => Some(format!("no GPU records: {reason}")),
            // Another sentence says so.
            None if seen.probed_calls > 0 || is_probed => None,
            // CUPTI 13.0 can do so when it is turned on in a busy program.
            None if seen.launches > 0 => Some(format!(
                "no GPU records: CUPTI gave none for {} launches; record again, or restart the program",
                Count(seen.launches)
            )),
            None if seen.shims > 0 => {
                Some("CUDA was seen in the target, but no GPU operation".to_string())
            }
            // There was CUDA, and another warning says what hindered.
            None if seen.shim_refused || unseen.is_some() => None,
            None => Some("no CUDA was seen in the target: host side only".to_string()),
        };
        let unified_memory = seen.unified_memory_refused.then(|| {
            "CUPTI does not report what happens to managed memory here: --unified-memory has no effect"
                .to_string()
        });
        let first = not_injected.into_iter().map(|(_, text)| text);
        let first = first.chain(unseen).chain(why).chain(unified_memory);
        warnings.splice(0..0, first);
        warnings
    }

    /// Whose calls were measured by probes on the driver, which a report says by itself.
    pub(super) fn probed_text(&self, said: &[String]) -> Option<String> {
        probed_text(&self.session, said)
    }

    /// The exit status of a recording that has ended, unless the command lends its own.
    pub(super) fn status(&self, end: End) -> Result<u8> {
        let (options, seen) = (self.options, self.session.seen);
        if options.target == Target::Command && end != End::CommandEnded && !options.quiet {
            let _ = writeln!(
                io::stderr(),
                "gdiag: the recording has ended, the command runs on"
            );
        }
        // Who looks for whoever comes may find nobody.
        if seen.target_threads == 0 && options.target != Target::Cuda {
            let what = match options.target {
                Target::Cgroups { .. } => "no process was in the cgroup, and none came",
                Target::Command | Target::Pids(_) | Target::All | Target::Cuda => {
                    "no thread of the target was seen"
                }
            };
            let what = what.to_string();
            return Err(Error::NothingCaptured { what }.into());
        }
        if seen.lost > 0 && options.strict {
            return Err(Error::EventsLost { lost: seen.lost }.into());
        }
        Ok(status::DONE)
    }
}

/// Where the records of the GPU came from.
pub(super) fn gpu_source(seen: Seen) -> GpuSource {
    match (seen.gpu_operations, seen.simulated, seen.probed_calls) {
        (0, _, 0) => GpuSource::None,
        (0, _, _) => GpuSource::Uprobe,
        (_, true, _) => GpuSource::Simulated,
        (_, false, _) => GpuSource::Cupti,
    }
}

/// Waits that a snapshot is taken of have to be recorded.
fn wait_threshold(options: &RecordOptions) -> Nanos {
    let triggers = options.keep.iter().flat_map(|keep| &keep.triggers);
    let waits = triggers.filter_map(|trigger| match trigger {
        Trigger::Wait(least) => Some(*least),
        Trigger::Gap(_) | Trigger::RunQueue(_) => None,
    });
    waits.fold(options.wait_threshold, Nanos::min)
}

/// With --verbose: what was put into which process.
fn tell_injected(options: &RecordOptions, session: &mut Session) {
    for (pid, injected) in session.injected() {
        if options.verbose > 0 {
            let _ = writeln!(
                io::stderr(),
                "gdiag: process {pid}: library loaded in {} through thread {}, which was held for {}",
                injected.took, injected.through, injected.held
            );
        }
    }
}

/// Between two looks at the maps of a process.
const SOONEST: Nanos = Nanos::from_secs(1);
const LATEST: Nanos = Nanos::from_secs(300);

/// Targets that use CUDA but were started without the shim.
#[derive(Clone, Debug, Default)]
struct Unseen {
    pids: BTreeSet<u32>,
    next_look: Nanos,
    pause: Nanos,
}

impl Unseen {
    /// Looks at these processes, and again at those found before. One that has ended stays found.
    fn look(&mut self, pids: &[u32]) {
        self.pids
            .retain(|&pid| shims::is_missing(pid) || !process::is_process(pid));
        self.pids
            .extend(pids.iter().filter(|&&pid| shims::is_missing(pid)));
    }

    /// Some may have the library by now. Their maps tell, and to read those takes a lock of theirs: less and less often.
    fn look_again(&mut self, now: Nanos) {
        if now >= self.next_look && !self.pids.is_empty() {
            self.look(&[]);
            self.pause = (self.pause + self.pause).clamp(SOONEST, LATEST);
            self.next_look = now + self.pause;
        }
    }

    /// Nothing of those whose calls were measured by other means. With `injected`: the library would
    /// have been put into them, but for the end of the recording.
    fn warning(&self, injected: bool, probed: impl Iterator<Item = u32>) -> Option<String> {
        let mut unseen = self.pids.clone();
        probed.for_each(|pid| {
            unseen.remove(&pid);
        });
        let first = unseen.first()?;
        let (who, they) = match unseen.len() {
            1 => (format!("process {first} uses"), "it was"),
            n => (
                format!("{n} processes, {first} among them, use"),
                "they were",
            ),
        };
        Some(if injected {
            format!("{who} CUDA, and the recording ended before gdiag's library was there: host side only")
        } else {
            format!(
                "{who} CUDA, but {they} started without gdiag's library: host side only; \
                 see `gdiag shim install`"
            )
        })
    }
}

/// Whose calls were measured by probes on the driver, and why, unless that has been said.
fn probed_text(session: &Session, said: &[String]) -> Option<String> {
    let (pid, _, why) = session.probed().next()?;
    let who = match session.probed().count() {
        1 => format!("process {pid}"),
        n => format!("{n} processes, {pid} among them"),
    };
    let why = if said.iter().any(|text| text.contains(why)) {
        String::new()
    } else {
        format!(": {why}")
    };
    Some(format!(
        "{who}: CUDA calls are measured by probes on the driver, host side only, where CUPTI records nothing{why}"
    ))
}

pub(super) fn say(options: &RecordOptions, text: std::fmt::Arguments<'_>) {
    if !options.quiet {
        let _ = writeln!(io::stderr(), "gdiag: warning: {text}");
    }
}

/// With --verbose: what is about to be done.
fn explain(options: &RecordOptions, subject: &Subject, shim: Option<&shim_file::ShimFile>) {
    if options.verbose == 0 {
        return;
    }
    let mut text = format!(
        "gdiag: recording {}; waits of {} keep their stack\n",
        subject.text(),
        options.wait_threshold
    );
    if let Some(shim) = shim {
        text.push_str(&format!(
            "gdiag: the command loads {} when it uses CUDA\n",
            shim.path().display()
        ));
    }
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The library for a launched command, unless its place is taken or it is switched off.
fn shim_to_carry(options: &RecordOptions) -> Option<shim_file::ShimFile> {
    if let Some(other) = std::env::var_os(shim_file::INJECTION).filter(|v| !v.is_empty()) {
        say(
            options,
            format_args!(
                "{} is set already ({}): left alone, so there will be no GPU records",
                shim_file::INJECTION,
                other.to_string_lossy()
            ),
        );
        return None;
    }
    match shim_file::ShimFile::write_temporary() {
        Ok(file) => Some(file),
        Err(e) => {
            say(
                options,
                format_args!(
                    "no place for the shim, so there will be no GPU records: {e:#} (set TMPDIR)"
                ),
            );
            None
        }
    }
}

fn meta(
    options: &RecordOptions,
    plan: &Plan,
    subject: &Subject,
    session: &Session,
) -> Result<Meta> {
    let uname = nix::sys::utsname::uname().context("uname failed")?;
    let text = |s: &OsStr| s.to_string_lossy().into_owned();
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let now = clock::pair();
    Ok(Meta {
        gdiag_version: env!("CARGO_PKG_VERSION").to_string(),
        host: text(uname.nodename()),
        kernel: text(uname.release()),
        machine: text(uname.machine()),
        boot_id: boot_id.trim().to_string(),
        cpus_online: u32::try_from(process::online_cpus().len()).unwrap_or(0),
        command: std::env::args_os().map(|arg| text(&arg)).collect(),
        mode: match options.target {
            Target::Command => TargetMode::Launch,
            Target::Pids(_) | Target::Cgroups { .. } | Target::Cuda => TargetMode::Attach,
            Target::All => TargetMode::All,
        },
        unrelated: options.target == Target::Cuda,
        targets: plan.targets.iter().copied().map(Pid).collect(),
        cgroups: subject.directories(),
        start_mono_ns: now.mono.0,
        start_unix_ns: now.real.0,
        wait_threshold_ns: plan.wait_threshold.0,
        syscalls: session.records_syscalls(),
        missing_probes: session.missing_probes().to_vec(),
    })
}
