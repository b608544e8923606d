//! What `gdiag check` shows: a line for each check, its remedy below, and one line that sums up; and the same as JSON.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use serde::Serialize;

use crate::checkup::{Can, Check, Checkup, Status};
use crate::present::page::{Page, Paint};
use crate::present::style::Style;

/// `gdiag.check/1`.
pub const CHECK_SCHEMA: &str = "gdiag.check/1";

/// The longest of the words in front.
const STATUS_WIDTH: usize = 9;

const fn word(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Warning => "warning",
        Status::Failure => "failure",
        Status::Unknown => "unknown",
    }
}

/// What the ids begin with, and what that is about.
const GROUPS: [(&str, &str); 10] = [
    ("kernel", "Kernel"),
    ("bpf", "BPF programs"),
    ("rights", "Rights"),
    ("limits", "Limits"),
    ("gpu", "GPU"),
    ("cupti", "CUPTI"),
    ("cuda", "CUDA"),
    ("place", "Place"),
    ("host", "Host"),
    ("gdiag", "gdiag"),
];

/// For people.
pub fn write_text(out: &mut impl Write, checkup: &Checkup, style: Style) -> io::Result<()> {
    let mut page = Page::new(out, style);
    let width = checkup
        .checks
        .iter()
        .map(|check| check.what.len())
        .max()
        .unwrap_or(0)
        + 2;
    let mut group = "";
    let mut said: Vec<&str> = Vec::new();
    for check in &checkup.checks {
        let of = check.id.split('.').next().unwrap_or_default();
        if of != group {
            if !group.is_empty() {
                page.blank()?;
            }
            group = of;
            page.line(Paint::Heading, &heading(of, checkup.pid))?;
        }
        let status = word(check.status);
        let paint = match check.status {
            Status::Ok => Paint::Plain,
            Status::Unknown => Paint::Dim,
            Status::Warning | Status::Failure => Paint::Warning,
        };
        let label = format!("{status:<STATUS_WIDTH$}{:<width$}", check.what);
        page.labelled(paint, &label, &check.found)?;
        if let Some(remedy) = shown_remedy(check) {
            let label = format!("{:STATUS_WIDTH$}remedy: ", "");
            let again = said.contains(&remedy);
            page.labelled(
                Paint::Remedy,
                &label,
                if again { "as above" } else { remedy },
            )?;
            said.push(remedy);
        }
    }
    page.blank()?;
    page.labelled(Paint::Heading, "", &checkup.verdict())
}

fn heading(group: &str, pid: Option<u32>) -> String {
    match (group, pid) {
        ("process", Some(pid)) => format!("Process {pid}"),
        _ => {
            let known = GROUPS.iter().find(|(id, _)| *id == group);
            known.map_or(group, |(_, heading)| heading).to_string()
        }
    }
}

fn shown_remedy(check: &Check) -> Option<&str> {
    check
        .remedy
        .as_deref()
        .filter(|_| check.status != Status::Ok)
}

/// For scripts.
pub fn write_json(out: &mut impl Write, checkup: &Checkup) -> io::Result<()> {
    let document = CheckDoc {
        schema: CHECK_SCHEMA,
        gdiag_version: env!("CARGO_PKG_VERSION"),
        pid: checkup.pid,
        verdict: checkup.verdict(),
        checks: checkup
            .checks
            .iter()
            .map(|check| OneDoc {
                id: check.id,
                status: word(check.status),
                what: check.what,
                found: &check.found,
                remedy: shown_remedy(check),
            })
            .collect(),
        can: CanDoc::new(checkup.can),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct CheckDoc<'a> {
    schema: &'static str,
    gdiag_version: &'static str,
    /// Null without -p.
    pid: Option<u32>,
    verdict: String,
    checks: Vec<OneDoc<'a>>,
    can: CanDoc,
}

#[derive(Serialize)]
struct OneDoc<'a> {
    id: &'static str,
    status: &'static str,
    what: &'static str,
    found: &'a str,
    remedy: Option<&'a str>,
}

#[derive(Serialize)]
struct CanDoc {
    host: Option<bool>,
    gpu: Option<bool>,
    user_stacks: Option<bool>,
    wait_stacks: Option<bool>,
    system_calls: Option<bool>,
    driver_calls: Option<bool>,
    process_gpu: Option<bool>,
}

impl CanDoc {
    fn new(can: Can) -> CanDoc {
        CanDoc {
            host: can.host,
            gpu: can.gpu,
            user_stacks: can.user_stacks,
            wait_stacks: can.wait_stacks,
            system_calls: can.system_calls,
            driver_calls: can.driver_calls,
            process_gpu: can.process_gpu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkup::tests::{good, good_process};
    use crate::collect::machine::{Driver, Facts, Load, Refused};
    use crate::present::sample::assert_golden;

    const STYLE: Style = Style {
        width: 80,
        color: false,
        gaps_in_full: 0,
    };

    fn text(facts: &Facts) -> String {
        let mut out = Vec::new();
        write_text(&mut out, &Checkup::of(facts), STYLE).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_good_machine_and_a_good_process() {
        let facts = Facts {
            process: Some(good_process()),
            ..good()
        };
        assert_golden("check-80.txt", &text(&facts));
        let mut json = Vec::new();
        write_json(&mut json, &Checkup::of(&facts)).unwrap();
        assert_golden("check.json", &String::from_utf8(json).unwrap());
    }

    #[test]
    fn a_machine_that_cannot() {
        let mut facts = good();
        facts.rights.uid = 1000;
        facts.rights.capabilities = Some(0);
        facts.driver = Driver::default();
        facts.users.list.clear();
        facts.loads.host = Load::Refused(Refused {
            text: "cannot load the BPF programs: Operation not permitted (os error 1)".to_string(),
            not_permitted: true,
            messages: String::new(),
        });
        facts.loads.stacks = Load::NotTried;
        assert_golden("check-cannot-80.txt", &text(&facts));
    }

    #[test]
    fn names_of_programs_do_no_harm_to_a_terminal() {
        let mut facts = good();
        facts.users.list[0].comm = "\x1b[2Jx".to_string();
        assert!(text(&facts).contains("\\x1b[2Jx"));
    }
}
