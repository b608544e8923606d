//! What ran on the GPUs, by GPU time.
#![forbid(unsafe_code)]

use super::cell::{self, grows, left, right};
use super::{analysed, Line, Section};
use crate::analyse::report::{Gpu, Kernel, Report};
use crate::present::names;
use crate::present::top::list::{List, Tone};
use crate::present::top::model::Model;
use crate::present::top::view::Open;
use crate::units::{Count, Nanos, Rate, Share};

/// A kernel, or copies or memsets, of which only the time is known.
struct Work<'a> {
    name: &'a str,
    total: Nanos,
    kernel: Option<&'a Kernel>,
}

/// Time on the GPUs, each kernel for itself: those that run beside each other count twice.
fn work(report: &Report) -> Vec<Work<'_>> {
    let kernels = report.kernels.iter().map(|kernel| Work {
        name: &kernel.name,
        total: kernel.total,
        kernel: Some(kernel),
    });
    let mut work: Vec<Work<'_>> = kernels.collect();
    let sum = |of: fn(&Gpu) -> Nanos| {
        let times = report.gpus.iter().map(of);
        times.fold(Nanos::ZERO, Nanos::saturating_add)
    };
    for (name, total) in [
        ("[memory copies]", sum(|gpu| gpu.busy_memcpy)),
        ("[memsets]", sum(|gpu| gpu.busy_memset)),
    ] {
        if total > Nanos::ZERO {
            let kernel = None;
            work.push(Work {
                name,
                total,
                kernel,
            });
        }
    }
    work.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| a.name.cmp(b.name)));
    work
}

fn all(work: &[Work<'_>]) -> Nanos {
    let times = work.iter().map(|work| work.total);
    times.fold(Nanos::ZERO, Nanos::saturating_add)
}

/// Of all GPUs.
pub fn list(model: &Model) -> List {
    let window = analysed(&model.window);
    let report = &model.window.report;
    let work = work(report);
    let all = all(&work);
    let average = |kernel: &Kernel| kernel.total.as_u64().checked_div(kernel.count).map(Nanos);
    let fields = vec![
        right("BUSY %", 1, move |work: &Work<'_>| {
            cell::share(work.total, all).with_bar()
        }),
        right("TIME", 3, |work: &Work<'_>| cell::time(Some(work.total))),
        right("COUNT/S", 2, move |work: &Work<'_>| {
            let count = work.kernel.map(|kernel| kernel.count);
            count.map_or_else(cell::unknown, |count| cell::rate(count, window))
        }),
        right("AVG", 4, move |work: &Work<'_>| {
            cell::time(work.kernel.and_then(average))
        }),
        right("MIN", 6, |work: &Work<'_>| {
            cell::time(work.kernel.map(|kernel| kernel.min))
        }),
        right("MAX", 5, |work: &Work<'_>| {
            cell::time(work.kernel.map(|kernel| kernel.max))
        }),
        grows("KERNEL", 0, |work: &Work<'_>| match work.kernel {
            Some(_) => cell::text(names::short(work.name)).tone(Tone::Name),
            None => cell::text(work.name),
        }),
    ];
    let title = match report.kernels.len() {
        0 => "Kernels".to_string(),
        n => format!(
            "Kernels: {}, {all} of GPU time with copies",
            Count(n as u64)
        ),
    };
    let mut list = cell::list(title, fields, &work, |work| {
        let opens = work.kernel.map(|_| Open::Kernel(work.name.to_string()));
        (work.name.to_string(), opens)
    });
    if report.gpus.iter().any(|gpu| gpu.busy.is_none()) {
        let text = "too few GPU records came back: there was more than is listed";
        list.notes.push(text.to_string());
    }
    list
}

/// One kernel, with its whole name.
pub fn opened(model: &Model, name: &str) -> Vec<Section> {
    let window = analysed(&model.window);
    let work = work(&model.window.report);
    let all = all(&work);
    let mut text = vec![Line::new(Tone::Name, names::full(name))];
    let mut list = List {
        title: "Kernel".to_string(),
        ..List::default()
    };
    let found = work.iter().find(|work| work.name == name);
    match found.and_then(|work| work.kernel) {
        Some(kernel) => {
            let average = kernel.total.as_u64().checked_div(kernel.count).map(Nanos);
            let time = |time: Option<Nanos>| time.map_or("-".to_string(), |time| time.to_string());
            let rate = Rate::of(kernel.count, window);
            let facts = [
                ("ran", format!("{} times", Count(kernel.count))),
                ("a second", rate.map_or("-".to_string(), |r| r.to_string())),
                ("GPU time", kernel.total.to_string()),
                (
                    "share of GPU time",
                    Share(kernel.total.share_of(all)).to_string(),
                ),
                ("average", time(average)),
                ("shortest", time(Some(kernel.min))),
                ("longest", time(Some(kernel.max))),
            ];
            list = cell::list(
                "Kernel",
                vec![
                    left("WHAT", 0, |fact: &(&str, String)| cell::text(fact.0)),
                    grows("VALUE", 0, |fact: &(&str, String)| {
                        cell::text(fact.1.as_str())
                    }),
                ],
                &facts,
                |fact| (fact.0.to_string(), None),
            );
        }
        None => text.push(Line::new(
            Tone::Dim,
            "it did not run in the window that is shown",
        )),
    }
    vec![Section {
        text,
        rows: list.rows.len(),
        list,
        rank: 0,
    }]
}
