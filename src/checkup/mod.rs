//! Can this machine do it? What `gdiag check` decides, from facts that were read.
//!
//! A [`Check`] is one thing that was looked at: what was found, whether that will do, and what to do where it will
//! not. A failure is what keeps every recording from starting; what only leaves a part out is a warning. Where it
//! counts, what happened beats what is said: programs that the kernel took need no capability that is missing.
//!
//! Ids are public: scripts ask for them, and the manual explains each.
#![forbid(unsafe_code)]

mod gpu;
mod kernel;
mod place;
mod private;
mod process;
mod rights;

use crate::collect::machine::{Facts, Load};

pub use private::scrubbed;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Ok,
    /// A part is left out, or may be.
    Warning,
    /// Nothing can be recorded.
    Failure,
    /// It could not be told.
    Unknown,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub id: &'static str,
    pub status: Status,
    /// What it is, in a word or two.
    pub what: &'static str,
    pub found: String,
    /// One command or one sentence.
    pub remedy: Option<String>,
}

impl Check {
    fn new(
        id: &'static str,
        what: &'static str,
        status: Status,
        found: impl Into<String>,
    ) -> Check {
        Check {
            id,
            status,
            what,
            found: found.into(),
            remedy: None,
        }
    }

    fn ok(id: &'static str, what: &'static str, found: impl Into<String>) -> Check {
        Check::new(id, what, Status::Ok, found)
    }

    fn warning(id: &'static str, what: &'static str, found: impl Into<String>) -> Check {
        Check::new(id, what, Status::Warning, found)
    }

    fn failure(id: &'static str, what: &'static str, found: impl Into<String>) -> Check {
        Check::new(id, what, Status::Failure, found)
    }

    fn unknown(id: &'static str, what: &'static str, found: impl Into<String>) -> Check {
        Check::new(id, what, Status::Unknown, found)
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Check {
        self.remedy = Some(remedy.into());
        self
    }
}

/// What can be recorded; `None`: it cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Can {
    /// Who runs, waits and wakes: without it there is no recording.
    pub host: Option<bool>,
    /// What the GPUs do.
    pub gpu: Option<bool>,
    /// Stacks of users.
    pub user_stacks: Option<bool>,
    /// Where a thread was when it went to sleep.
    pub wait_stacks: Option<bool>,
    pub system_calls: Option<bool>,
    /// Calls of the driver, where CUPTI gives nothing.
    pub driver_calls: Option<bool>,
    /// The GPU's side of the process that was asked about.
    pub process_gpu: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkup {
    pub checks: Vec<Check>,
    pub can: Can,
    /// The process that was asked about.
    pub pid: Option<u32>,
}

impl Checkup {
    pub fn of(facts: &Facts) -> Checkup {
        let mut checks = kernel::checks(facts);
        checks.extend(rights::checks(facts));
        checks.extend(gpu::checks(facts));
        checks.extend(place::checks(facts));
        if let Some(process) = &facts.process {
            checks.extend(process::checks(facts, process));
        }
        for check in &mut checks {
            if check.remedy.as_deref() == Some(rights::BE_ROOT) {
                check.remedy = Some(rights::remedy(&facts.rights, check.status).to_string());
            }
        }
        let host = !checks.iter().any(|check| check.status == Status::Failure);
        let done = |load: &Load| match load {
            Load::Done(_) => Some(true),
            Load::Refused(_) => Some(false),
            Load::NotTried if host => None,
            Load::NotTried => Some(false),
        };
        let stacks = done(&facts.loads.stacks);
        Checkup {
            can: Can {
                host: Some(host),
                gpu: if host { gpu::can(facts) } else { Some(false) },
                user_stacks: stacks,
                wait_stacks: match stacks {
                    Some(true) => facts.kernel.wait_stacks,
                    other => other,
                },
                system_calls: done(&facts.loads.system_calls),
                driver_calls: done(&facts.loads.driver),
                process_gpu: match &facts.process {
                    Some(process) if host => process::can(facts, process),
                    Some(_) => Some(false),
                    None => None,
                },
            },
            checks,
            pid: facts.process.as_ref().map(|process| process.pid),
        }
    }

    pub fn count(&self, status: Status) -> usize {
        self.checks
            .iter()
            .filter(|check| check.status == status)
            .count()
    }

    /// All of it in one line.
    pub fn verdict(&self) -> String {
        let number = |n: usize, one: &str| match n {
            1 => format!("1 {one}"),
            n => format!("{n} {one}s"),
        };
        let failures = self.count(Status::Failure);
        if failures > 0 {
            return format!("cannot record: {}", number(failures, "failure"));
        }
        let what = match (self.pid, self.can.gpu, self.can.process_gpu) {
            (Some(pid), _, Some(true)) => {
                format!("gdiag can record process {pid}: the host's side and its GPU")
            }
            (Some(pid), _, Some(false)) => {
                format!("gdiag can record the host's side of process {pid}, and not its GPU")
            }
            (Some(pid), _, None) => {
                format!("gdiag can record the host's side of process {pid}; whether its GPU too, a recording will show")
            }
            (None, Some(true), _) => {
                "gdiag can record this machine's host side and its GPUs".to_string()
            }
            (None, Some(false), _) => {
                "gdiag can record this machine's host side, and no GPU".to_string()
            }
            (None, None, _) => {
                "gdiag can record this machine's host side; whether its GPUs too, a recording will show".to_string()
            }
        };
        match self.count(Status::Warning) {
            0 => what,
            n => format!("{what} ({})", number(n, "warning")),
        }
    }
}

/// `a, b and 3 more`.
fn list<T: AsRef<str>>(items: &[T], most: usize) -> String {
    joined(items, ", ", most)
}

/// The same of items that are sentences.
fn sentences<T: AsRef<str>>(items: &[T], most: usize) -> String {
    joined(items, "; ", most)
}

fn joined<T: AsRef<str>>(items: &[T], separator: &str, most: usize) -> String {
    let shown: Vec<&str> = items.iter().take(most).map(AsRef::as_ref).collect();
    let shown = shown.join(separator);
    match items.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
