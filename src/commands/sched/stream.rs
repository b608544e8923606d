//! A line for each switch, or a map of the CPUs: of a recording, or as it happens.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::analyse::sched::steps::{Step, Steps};
use crate::cli::{SchedOptions, SchedSource, SchedView, Target};
use crate::collect::bpf::Plan;
use crate::collect::clock;
use crate::commands::sched::live::say;
use crate::commands::subject::{End, Subject};
use crate::commands::{to_output, warn};
use crate::error::{status, Error};
use crate::event::{Cpu, Event, LossSource, Switch};
use crate::pipeline::Session;
use crate::present::sched::map::Map;
use crate::present::sched::timehist::Wanted;
use crate::present::style::Style;
use crate::store::meta::TargetMode;
use crate::store::Reader;
use crate::units::{Count, Nanos};

/// The lines, from events.
struct Stream {
    steps: Steps,
    view: View,
    /// Earlier and later events are known, but not shown.
    from: Nanos,
    to: Nanos,
    lost: u64,
    switches: u64,
    /// `None`: all.
    cpus: Option<Vec<Cpu>>,
    /// Of the switches, those on them.
    there: u64,
}

enum View {
    Timehist(Wanted),
    Map(Map),
}

impl View {
    /// Does nothing after a failure.
    fn tell(
        &mut self,
        step: &Step,
        (from, to): (Nanos, Nanos),
        result: &mut io::Result<()>,
        out: &mut dyn Write,
    ) {
        if result.is_ok() && from <= step.ts() && step.ts() <= to {
            *result = match self {
                View::Timehist(wanted) => wanted.write(step, out),
                View::Map(map) => map.write(step, out),
            };
        }
    }
}

impl Stream {
    /// `machine` as uname(2) names it. With `all` the whole machine is seen.
    fn new(options: &SchedOptions, machine: &str, all: bool) -> Stream {
        let view = match options.view {
            SchedView::Timehist {
                wakeups,
                migrations,
                next,
                threshold,
            } => View::Timehist(Wanted {
                wakeups,
                migrations,
                next,
                threshold,
                tids: options.tids.clone(),
                cpus: options.cpus.clone(),
                targets_only: !all,
            }),
            SchedView::Map | SchedView::Summary { .. } => {
                View::Map(Map::new(Style::for_stdout(0).width, options.cpus.clone()))
            }
        };
        Stream {
            steps: Steps::new(machine, all),
            view,
            from: Nanos::ZERO,
            to: Nanos::MAX,
            lost: 0,
            switches: 0,
            cpus: options.cpus.clone(),
            there: 0,
        }
    }

    fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.view {
            View::Timehist(wanted) => wanted.head(out),
            View::Map(_) => Ok(()),
        }
    }

    fn event(&mut self, event: &Event, out: &mut dyn Write) -> io::Result<()> {
        match event {
            Event::Switch(switch) => {
                self.switches += 1;
                self.there += u64::from(self.is_there(switch));
            }
            Event::Loss(loss) => {
                if let LossSource::Bpf(_) = loss.source {
                    self.lost = self.lost.saturating_add(loss.count);
                }
            }
            _ => {}
        }
        let mut result = Ok(());
        let Stream { steps, view, .. } = self;
        let range = (self.from, self.to);
        steps.event(event, &mut |step| view.tell(&step, range, &mut result, out));
        result
    }

    fn is_there(&self, switch: &Switch) -> bool {
        let cpus = self.cpus.as_ref();
        cpus.is_none_or(|cpus| cpus.contains(&switch.cpu))
    }

    /// Nothing more comes for now.
    fn flush(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let mut result = Ok(());
        let Stream { steps, view, .. } = self;
        let range = (self.from, self.to);
        steps.flush(&mut |step| view.tell(&step, range, &mut result, out));
        result
    }

    /// The exit status.
    fn status(&self, options: &SchedOptions) -> Result<u8, Error> {
        match self.lost {
            lost if lost > 0 && options.strict => Err(Error::EventsLost { lost }),
            _ => Ok(status::DONE),
        }
    }
}

/// The result is the exit status.
pub(super) fn run(options: &SchedOptions) -> Result<u8> {
    match &options.source {
        SchedSource::Recording { input, from, to } => recording(options, input, (*from, *to)),
        SchedSource::Live {
            target,
            command,
            duration,
            ..
        } => {
            super::live::online_cpus(options)?;
            let mut subject = Subject::prepare(target, command, false, Vec::new)?;
            let status = live(options, target, *duration, &mut subject);
            subject.conclude(status)
        }
    }
}

fn recording(
    options: &SchedOptions,
    input: &Path,
    (from, to): (Option<Nanos>, Option<Nanos>),
) -> Result<u8> {
    let mut reader = Reader::open(input)?;
    let meta = reader.meta().clone();
    let mut stream = Stream::new(options, &meta.machine, meta.mode == TargetMode::All);
    let at = |time: Nanos| Nanos(meta.start().0.saturating_add(time.0));
    stream.from = from.map_or(Nanos::ZERO, at);
    stream.to = to.map_or(Nanos::MAX, at);
    let mut failure = None;
    to_output(options.output.as_deref(), |out| {
        let mut result = Ok(());
        let read = reader.for_each(|event| {
            // Not over nothing.
            let first = stream.there == 0;
            if first && matches!(&event, Event::Switch(switch) if stream.is_there(switch)) {
                result = stream.head(out);
            }
            if result.is_ok() {
                result = stream.event(event, out);
            }
            if result.is_ok() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        failure = read.err();
        result?;
        stream.flush(out)
    })?;
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    let coverage = reader.coverage();
    for warning in coverage.warnings(meta.start()) {
        warn(&warning);
    }
    if stream.switches == 0 {
        return Err(super::no_switches().into());
    }
    if stream.there == 0 {
        return Err(super::nothing_there().into());
    }
    if !coverage.is_whole() {
        return Ok(status::FAILED);
    }
    Ok(stream.status(options)?)
}

/// What needs no stack costs less.
const NEVER: Nanos = Nanos::from_secs(1 << 30);

fn live(
    options: &SchedOptions,
    target: &Target,
    duration: Option<Nanos>,
    subject: &mut Subject,
) -> Result<u8> {
    let all = *target == Target::All;
    let plan = Plan {
        all,
        targets: subject.targets(),
        cgroups: subject.cgroups().to_vec(),
        strangers: subject.strangers(),
        scheduling: true,
        wait_threshold: NEVER,
        syscalls: None,
        stacks: None,
        inject: false,
        libbpf_messages: options.verbose > 1,
    };
    let mut early = Vec::new();
    if options.verbose > 0 {
        say(options, format_args!("watching {}", subject.text()));
    }
    let mut session = Session::start(&plan, &mut |event| early.push(event))?.host_only();
    for probe in session.missing_probes() {
        say(
            options,
            format_args!("warning: this kernel has no {probe}: what it would show is left out"),
        );
    }
    let machine = nix::sys::utsname::uname().context("cannot ask for the machine's name")?;
    let mut stream = Stream::new(options, &machine.machine().to_string_lossy(), all);
    let mut out = Output::open(options)?;
    out.write(|out| {
        stream.head(out)?;
        early.iter().try_for_each(|event| stream.event(event, out))
    })?;
    subject.go(duration)?;
    let start = clock::monotonic();
    let end = loop {
        let next = clock::monotonic() + session.pause();
        let woken = subject.wait(Some(session.epoll_fd()), next)?;
        out.write(|out| {
            let mut result = Ok(());
            let read = session.step(&mut |event| {
                if result.is_ok() {
                    result = stream.event(&event, out);
                }
            });
            result?;
            stream.flush(out)?;
            Ok(read)
        })??;
        if let Some(end) = woken.end {
            break end;
        }
    };
    out.write(|out| {
        let mut result = Ok(());
        let read = session.finish(&mut |event| {
            if result.is_ok() {
                result = stream.event(&event, out);
            }
        });
        result?;
        stream.flush(out)?;
        Ok(read)
    })??;
    if !options.quiet {
        let _ = writeln!(
            io::stderr(),
            "[ gdiag sched: {}, {} switches, lost {} ]",
            clock::monotonic().saturating_sub(start),
            Count(stream.switches),
            Count(stream.lost)
        );
    }
    if *target == Target::Command && end != End::CommandEnded {
        say(
            options,
            format_args!("the watch has ended, the command runs on"),
        );
    }
    if session.seen.target_threads == 0 {
        return Err(Error::NothingCaptured {
            what: format!("no thread of {} was seen", subject.text()),
        }
        .into());
    }
    Ok(stream.status(options)?)
}

/// Where lines go as they come: each write is whole lines, and is there for the reader at once.
pub(super) struct Output {
    file: Option<File>,
    what: String,
}

impl Output {
    pub(super) fn open(options: &SchedOptions) -> Result<Output> {
        let what = match &options.output {
            None => "cannot write to stdout".to_string(),
            Some(path) => format!("cannot write '{}'", path.display()),
        };
        let file = options.output.as_ref().map(File::create).transpose();
        Ok(Output {
            file: file.with_context(|| what.clone())?,
            what,
        })
    }

    pub(super) fn write<T>(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> Result<T> {
        let mut lines = Vec::new();
        let result = write(&mut lines).and_then(|done| {
            match &mut self.file {
                Some(file) => file.write_all(&lines)?,
                None => {
                    let mut stdout = io::stdout().lock();
                    stdout.write_all(&lines)?;
                    stdout.flush()?;
                }
            }
            Ok(done)
        });
        match result {
            Ok(done) => Ok(done),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Error::OutputClosed.into()),
            Err(e) => Err(e).with_context(|| self.what.clone()),
        }
    }
}
