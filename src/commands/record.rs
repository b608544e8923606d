//! `gdiag record`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use nix::sys::resource::{getrlimit, setrlimit, Resource};

use super::subject::{End, Subject};
use crate::cli::{RecordOptions, Target};
use crate::collect::bpf::Plan;
use crate::collect::{clock, process, shim_file, shims, stacks};
use crate::error::{status, Error};
use crate::event::{Event, Pid, ShimState};
use crate::pipeline::Session;
use crate::store::meta::{GpuSource, Meta, Summary, TargetMode};
use crate::store::{Stats, StoreError, Writer};
use crate::units::{Count, Nanos};

/// A killed gdiag loses at most this much of what it had read.
const FLUSH: Nanos = Nanos::from_secs(1);

/// Least time between two looks, however urgent: each disturbs every CPU a little, and a target that
/// starts programs without end would have gdiag look without end.
const URGENT_STEP: Nanos = Nanos::from_millis(5);

/// The result is the exit status.
pub fn run(options: &RecordOptions) -> Result<u8> {
    let mut shim = None;
    let mut subject = Subject::prepare(&options.target, &options.command, || {
        shim = shim_to_carry(options);
        let shim = shim.as_ref();
        shim.map_or_else(Vec::new, |shim| shim.environment(options.unified_memory))
    })?;
    // Only now: the command keeps the limit that gdiag was started with.
    raise_open_files();
    let mut unseen = Unseen::default();
    if options.target != Target::All {
        unseen.look(&subject.members());
    }
    let plan = Plan {
        all: options.target == Target::All,
        targets: subject.targets(),
        cgroups: subject.cgroups().to_vec(),
        strangers: subject.strangers(),
        wait_threshold: options.wait_threshold,
        stacks: options.stacks.map(|stacks| stacks::Plan {
            frequency: stacks.frequency,
            launch_one_in: stacks.launch_one_in.unwrap_or(0),
        }),
        inject: options.inject,
        libbpf_messages: options.verbose > 1,
    };
    explain(options, &subject, shim.as_ref());

    let mut early = Vec::new();
    let mut session = Session::start(&plan, &mut |event| early.push(event))?;
    let meta = meta(options, &plan, &subject, &session)?;
    let mut recording = Recording::create(&options.output, &meta)?;
    for event in &early {
        recording.push(event);
    }
    for probe in &meta.missing_probes {
        say(
            options,
            format_args!("this kernel has no {probe}: what it would show is left out"),
        );
    }
    subject.go(options.duration)?;

    let result = watch(options, &mut subject, &mut session, &mut recording).and_then(|end| {
        session.finish(&mut |event| recording.push(&event))?;
        Ok(end)
    });
    if let Some(shim) = shim.filter(|_| session.targets_alive()) {
        shim.keep();
    }
    unseen.look(&subject.members());
    let status = result.and_then(|end| finish(options, &meta, session, recording, &unseen, end));
    subject.conclude(status)
}

/// Reads until the end.
fn watch(
    options: &RecordOptions,
    subject: &mut Subject,
    session: &mut Session,
    recording: &mut Recording,
) -> Result<End> {
    // At once: shims that are there already wait to be asked.
    let mut next_step = clock::monotonic();
    let mut last_step = Nanos::ZERO;
    let mut next_flush = next_step + FLUSH;
    let mut interim = InterimReport::default();
    loop {
        // Whatever is there so soon after the last look has to wait a little.
        let rested = clock::monotonic() >= last_step + URGENT_STEP;
        let woken = if rested {
            subject.wait(Some(session.epoll_fd()), next_step)?
        } else {
            subject.wait(None, last_step + URGENT_STEP)?
        };
        let now = clock::monotonic();
        if now >= next_step || woken.ready {
            session.step(&mut |event| recording.push(&event))?;
            tell_injected(options, session);
            next_step = now + session.pause();
            last_step = clock::monotonic();
        }
        if now >= next_flush {
            recording.flush();
            next_flush = now + FLUSH;
        }
        recording.check()?;
        if woken.report {
            interim.start(recording, &options.output);
        }
        if let Some(end) = woken.end {
            return Ok(end);
        }
    }
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

/// Targets that use CUDA but were started without the shim.
#[derive(Debug, Default)]
struct Unseen(BTreeSet<u32>);

impl Unseen {
    /// Looks at these processes, and again at those found before. One that has ended stays found.
    fn look(&mut self, pids: &[u32]) {
        self.0
            .retain(|&pid| shims::is_missing(pid) || !process::is_process(pid));
        self.0
            .extend(pids.iter().filter(|&&pid| shims::is_missing(pid)));
    }

    /// Nothing of those whose calls were measured by other means. With `injected`: the library would
    /// have been put into them, but for the end of the recording.
    fn warning(&self, injected: bool, probed: impl Iterator<Item = u32>) -> Option<String> {
        let mut unseen = self.0.clone();
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
                 see 'gdiag shim install'"
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

/// Closes the file and says what is in it. The result is gdiag's own exit status.
fn finish(
    options: &RecordOptions,
    meta: &Meta,
    mut session: Session,
    recording: Recording,
    unseen: &Unseen,
    end: End,
) -> Result<u8> {
    let now = clock::monotonic();
    let seen = session.seen;
    let stacks = session.stack_costs();
    let mut warnings = session.warnings();
    let not_injected: Vec<_> = session.not_injected().collect();
    let told = session.probed().map(|(_, proc_pid, _)| proc_pid);
    let told = told.chain(not_injected.iter().map(|(proc_pid, _)| *proc_pid));
    let unseen = unseen.warning(options.inject, told);
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
    let probed = probed_text(&session, &warnings);
    let gpu_source = match (seen.gpu_operations, seen.simulated, seen.probed_calls) {
        (0, _, 0) => GpuSource::None,
        (0, _, _) => GpuSource::Uprobe,
        (_, true, _) => GpuSource::Simulated,
        (_, false, _) => GpuSource::Cupti,
    };
    drop(session);
    let stats = recording.finish(&Summary {
        end_mono_ns: now.0,
        gpu_source,
        stacks: stacks.samples,
        stacks_ns: stacks.time.0,
        stacks_lost: stacks.lost,
        warnings: warnings.clone(),
        ..Summary::default()
    })?;
    // The report says it by itself, from the events.
    for warning in warnings.iter().chain(&probed) {
        say(options, format_args!("{warning}"));
    }
    if !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "[ gdiag record: {}, {} events, {} {}, lost {} ]",
            now.saturating_sub(meta.start()),
            Count(stats.events),
            stats.written,
            options.output.display(),
            Count(seen.lost)
        );
        if options.verbose > 0 {
            let each = Nanos(stacks.time.0 / stacks.samples.max(1));
            let _ = writeln!(
                io::stderr(),
                "gdiag: {} user stacks, {each} each, {} lost; {} launch functions have a probe",
                Count(stacks.samples),
                Count(stacks.lost),
                stacks.probes
            );
        }
    }
    if options.target == Target::Command && end != End::CommandEnded && !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "gdiag: the recording has ended, the command runs on"
        );
    }
    if seen.target_threads == 0 {
        let what = match options.target {
            Target::Cgroups { .. } => "no process was in the cgroup, and none came",
            Target::Command | Target::Pids(_) | Target::All => "no thread of the target was seen",
        };
        let what = what.to_string();
        return Err(Error::NothingCaptured { what }.into());
    }
    if seen.lost > 0 && options.strict {
        return Err(Error::EventsLost { lost: seen.lost }.into());
    }
    Ok(status::DONE)
}

fn say(options: &RecordOptions, text: std::fmt::Arguments<'_>) {
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

/// A descriptor for each process with a shim, and some for BPF: more than the usual limit, perhaps.
fn raise_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
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
            Target::Pids(_) | Target::Cgroups { .. } => TargetMode::Attach,
            Target::All => TargetMode::All,
        },
        targets: plan.targets.iter().copied().map(Pid).collect(),
        cgroups: subject.directories(),
        start_mono_ns: now.mono.0,
        start_unix_ns: now.real.0,
        wait_threshold_ns: plan.wait_threshold.0,
        syscalls: options.syscalls,
        missing_probes: session.missing_probes().to_vec(),
    })
}

/// The file, and the first error of writing it: events come from callbacks that cannot fail.
struct Recording {
    writer: Writer,
    failure: Option<StoreError>,
}

impl Recording {
    /// An old recording becomes `FILE.old`.
    fn create(path: &Path, meta: &Meta) -> Result<Recording> {
        if path.is_file() {
            let mut old = path.as_os_str().to_os_string();
            old.push(".old");
            std::fs::rename(path, &old)
                .with_context(|| format!("cannot keep the old {}", path.display()))?;
        }
        Ok(Recording {
            writer: Writer::create(path, meta)?,
            failure: None,
        })
    }

    fn push(&mut self, event: &Event) {
        if self.failure.is_none() {
            self.failure = self.writer.push(event).err();
        }
    }

    fn flush(&mut self) {
        if self.failure.is_none() {
            self.failure = self.writer.flush().err();
        }
    }

    fn check(&mut self) -> Result<()> {
        match self.failure.take() {
            None => Ok(()),
            Some(e) => Err(e.into()),
        }
    }

    fn finish(mut self, summary: &Summary) -> Result<Stats> {
        self.check()?;
        Ok(self.writer.finish(summary)?)
    }
}

/// What was recorded so far, on stderr: stdout may belong to the command. Another process makes it,
/// while the recording goes on.
#[derive(Default)]
struct InterimReport(Option<std::process::Child>);

impl InterimReport {
    /// Does nothing while the one before is still being made.
    fn start(&mut self, recording: &mut Recording, path: &Path) {
        if let Some(Ok(None)) = self.0.as_mut().map(std::process::Child::try_wait) {
            return;
        }
        recording.flush();
        let Ok(own) = std::env::current_exe() else {
            return;
        };
        let child = std::process::Command::new(own)
            .arg("report")
            .arg("-i")
            .arg(path)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .spawn();
        match child {
            Ok(child) => self.0 = Some(child),
            Err(e) => {
                let _ = writeln!(io::stderr(), "gdiag: cannot start the interim report: {e}");
            }
        }
    }
}

impl Drop for InterimReport {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.wait();
        }
    }
}
