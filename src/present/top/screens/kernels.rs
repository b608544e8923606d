//! What ran on the GPUs, by GPU time.
#![forbid(unsafe_code)]

use super::cell::{self, grows, right};

use crate::analyse::report::{Gpu, Kernel, Report};
use crate::present::names;
use crate::present::top::list::{Cell, List, Tone};
use crate::present::top::model::Model;
use crate::present::top::screen::{Block, Screen};
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
    let window = cell::analysed(&model.window);
    let report = &model.window.report;
    let work = work(report);
    let all = all(&work);
    let fields = vec![
        right("BUSY %", 1, move |work: &Work<'_>| {
            cell::share(work.total, all).with_bar()
        }),
        right("TIME", 3, |work: &Work<'_>| cell::time(Some(work.total))),
        right("COUNT/S", 2, move |work: &Work<'_>| {
            let count = work.kernel.map(|kernel| kernel.count);
            count.map_or_else(Cell::none, |count| cell::rate(count, window))
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
            Some(_) => Cell::text(names::short(work.name)).tone(Tone::Name),
            None => Cell::text(work.name),
        }),
    ];
    let title = if all == Nanos::ZERO {
        "Kernels".to_string()
    } else {
        format!("Kernels: {all} of GPU time, copies included")
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
pub fn opened(model: &Model, name: &str) -> Screen {
    let work = work(&model.window.report);
    let found = work.iter().find(|work| work.name == name);
    let mut blocks = vec![Block::text("", names::full(name), Tone::Name), Block::Blank];
    match found.and_then(|work| work.kernel) {
        Some(kernel) => blocks.extend(facts(model, kernel, all(&work))),
        None => {
            let text = "it did not run in this window";
            blocks.push(Block::text("", text, Tone::Dim));
        }
    }
    Screen::Page {
        title: "Kernel".to_string(),
        blocks,
    }
}

fn facts(model: &Model, kernel: &Kernel, all: Nanos) -> Vec<Block> {
    let rate = Rate::of(kernel.count, cell::analysed(&model.window));
    let rate = rate.map_or("-".to_string(), |rate| format!("{rate}/s"));
    let average = average(kernel).map_or("-".to_string(), |time| time.to_string());
    let share = Share(kernel.total.share_of(all));
    let facts = [
        (
            "ran       ",
            format!("{} times, {rate}", Count(kernel.count)),
        ),
        (
            "took      ",
            format!("{}, {share} of the GPU time", kernel.total),
        ),
        (
            "each      ",
            format!("{average} on average, {} to {}", kernel.min, kernel.max),
        ),
    ];
    let facts = facts.into_iter();
    facts
        .map(|(label, text)| Block::text(label, text, Tone::Plain))
        .collect()
}

fn average(kernel: &Kernel) -> Option<Nanos> {
    kernel.total.as_u64().checked_div(kernel.count).map(Nanos)
}
