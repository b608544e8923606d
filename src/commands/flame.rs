//! `gdiag flame`: reads a recording, folds its stacks, and draws them.
#![forbid(unsafe_code)]

use std::io::{self, IsTerminal};

use super::loaded::load;
use crate::analyse::stacks::{self, Flame, Mode, Samples};
use crate::cli::FlameOptions;
use crate::commands::report::check_gpu;
use crate::commands::{to_output, warn};
use crate::error::{status, Error};
use crate::model::Timeline;
use crate::present::flame::label::{Ids, Labels};
use crate::present::flame::svg::{self, Picture};
use crate::present::flame::table::Table;
use crate::units::{Nanos, Share};

/// What is drawn, and how.
struct Graph {
    table: Table,
    picture: Picture,
    /// Nothing of what it was made from was missing or damaged.
    whole: bool,
}

/// The result is the exit status.
pub fn run(options: &FlameOptions) -> anyhow::Result<u8> {
    if options.output.is_none() && !options.folded && io::stdout().is_terminal() {
        return Err(Error::PictureToTerminal.into());
    }
    let mut warnings = Vec::new();
    let graph = graph(options, &mut warnings);
    for warning in warnings {
        warn(&warning);
    }
    let graph = graph?;
    to_output(options.output.as_deref(), |out| {
        if options.folded {
            graph.table.write(out)
        } else {
            svg::write(&graph.table, &graph.picture, out)
        }
    })?;
    Ok(if graph.whole {
        status::DONE
    } else {
        status::FAILED
    })
}

fn graph(options: &FlameOptions, warnings: &mut Vec<String>) -> anyhow::Result<Graph> {
    let this = load(&options.input)?;
    let other = options.diff.as_deref().map(load).transpose()?;
    for loaded in [Some(&this), other.as_ref()].into_iter().flatten() {
        warnings.extend(loaded.warnings.iter().cloned());
    }
    let flame = fold(&this.timeline, &options.what, warnings)?;
    let mut table = match &other {
        None => Table::of(&flame.folded, &Labels::new(&this.timeline, Ids::Shown)),
        Some(other) => {
            let before = fold(&other.timeline, &options.what, warnings)?;
            let labels = |of| Labels::new(of, Ids::Left);
            Table::of_both(
                (&before.folded, &labels(&other.timeline)),
                (&flame.folded, &labels(&this.timeline)),
            )
        }
    };
    check_totals(&table, options.what.mode)?;
    if options.normalize {
        table.normalize();
    }
    if options.reverse {
        table.reverse();
    }
    let title = options.title.clone();
    Ok(Graph {
        table,
        picture: Picture {
            title: title.unwrap_or_else(|| default_title(&this.timeline, &flame, options)),
            width: options.width,
            min_width: options.min_width,
            inverted: options.inverted,
        },
        whole: this.whole && other.is_none_or(|o| o.whole),
    })
}

const RECORD_SAMPLES: &str = "record it again: gdiag record takes them unless -F 0 is given";

/// Folds, and says what the graph cannot show.
fn fold(
    t: &Timeline,
    options: &stacks::Options,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Flame> {
    let devices = t.gpu().devices();
    check_gpu(options.gpu, devices.len())?;
    let operations = devices.iter().any(|gpu| !gpu.ops.is_empty());
    let samples = Samples::of(t);
    match options.mode {
        Mode::Idle | Mode::Gpu if !operations => {
            return Err(Error::NotRecorded {
                what: "GPU operations",
                hint:
                    "--mode cpu and --mode offcpu need none; gdiag report tells why there are none",
            }
            .into());
        }
        Mode::Cpu if samples.cpu == 0 => {
            return Err(Error::NotRecorded {
                what: "CPU samples",
                hint: RECORD_SAMPLES,
            }
            .into());
        }
        Mode::Idle | Mode::Mixed if samples.cpu == 0 => {
            warnings.push("no CPU samples were recorded: running time has no stacks".to_string());
        }
        Mode::Idle | Mode::Mixed | Mode::Cpu | Mode::OffCpu | Mode::Gpu => {}
    }
    let flame = stacks::fold(t, options);
    for index in &flame.unsound {
        warnings.push(format!(
            "GPU {index} is left out: too many of its records are missing to tell when it was idle"
        ));
    }
    warnings.extend(estimates(&flame, options, samples));
    Ok(flame)
}

/// Says how much is not where it was seen to be.
fn estimates(flame: &Flame, options: &stacks::Options, samples: Samples) -> Vec<String> {
    let mut said = Vec::new();
    let launches = flame.launches;
    let parts = [launches.exact, launches.estimated, launches.unknown];
    let gpu = Nanos(parts.iter().fold(0, |sum, n| n.0.saturating_add(sum)));
    let all = Nanos(u64::try_from(flame.folded.total()).unwrap_or(u64::MAX));
    if launches.estimated > Nanos::ZERO {
        said.push(format!(
            "{} of GPU time is shared out to the stacks of other launches of the same kernel by the same thread",
            Share(launches.estimated.share_of(gpu))
        ));
    }
    if launches.unknown > Nanos::ZERO {
        said.push(format!(
            "{} of GPU time has no launch stack",
            Share(launches.unknown.share_of(gpu))
        ));
    }
    if options.mode == Mode::Idle && flame.estimated > Nanos::ZERO {
        said.push(format!(
            "{} of idle time is shared out to samples of the same cause and thread in other gaps",
            Share(flame.estimated.share_of(all))
        ));
    }
    let left = flame.unsampled.saturating_sub(flame.estimated);
    let could = options.exact && samples.cpu > 0;
    if options.mode == Mode::Idle && left > Nanos::ZERO && could {
        said.push(format!(
            "in {} of idle time its thread ran without a sample; without --exact that is shared out",
            Share(left.share_of(all))
        ));
    }
    said
}

/// There must be time to draw, and it must fit what draws it.
fn check_totals(table: &Table, mode: Mode) -> Result<(), Error> {
    let nothing = |why: &str| {
        Err(Error::NothingToDraw {
            why: why.to_string(),
        })
    };
    let [before, after] = table.totals();
    if after == 0 {
        return nothing(match mode {
            Mode::Idle => "no GPU idle time there",
            Mode::Mixed => "no time there",
            Mode::Cpu => "no thread of the target ran there",
            Mode::OffCpu => "no thread of the target waited there",
            Mode::Gpu => "no GPU operations there",
        });
    }
    // Their difference is a signed number.
    if before.max(after) > i64::MAX.unsigned_abs().into() {
        return nothing("the times of this recording cannot be true");
    }
    Ok(())
}

/// Mode, sum, what was recorded, and when.
fn default_title(t: &Timeline, flame: &Flame, options: &FlameOptions) -> String {
    let what = match options.what.mode {
        Mode::Idle => "GPU idle time by cause and host stack",
        Mode::Mixed => "CPU, off-CPU and GPU time",
        Mode::Cpu => "CPU time",
        Mode::OffCpu => "Off-CPU time",
        Mode::Gpu => "GPU time by launch stack",
    };
    let mut title = what.to_string();
    if let Some(other) = &options.diff {
        let name = other.file_name().unwrap_or(other.as_os_str());
        title.push_str(&format!(" compared with {}", name.display()));
    }
    let since = |at: Nanos| at.saturating_sub(t.start());
    title.push_str(&format!(" - {} to {}", since(flame.from), since(flame.to)));
    // What was recorded says more than how.
    let command = &t.meta().command;
    let target = command.iter().position(|word| word == "--");
    let target = &command[target.map_or(0, |at| at + 1)..];
    if !target.is_empty() {
        title.push_str(&format!(" - {}", target.join(" ")));
    }
    title
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::error::exit_status;
    use crate::store::meta::{Meta, Summary};
    use crate::store::tests::arbitrary;
    use crate::store::Writer;

    fn options(input: PathBuf, mode: Mode) -> FlameOptions {
        FlameOptions {
            input,
            what: stacks::Options {
                mode,
                wakers: true,
                addresses: true,
                ..stacks::Options::default()
            },
            folded: false,
            output: None,
            diff: None,
            normalize: false,
            title: None,
            width: None,
            min_width: 0.0,
            reverse: false,
            inverted: false,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 48,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// Check that a recording may hold anything: it is drawn, or there is a reason why not.
        #[test]
        fn any_recording_can_be_drawn(
            events in arbitrary::events(120),
            start in prop_oneof![Just(0), 1..2_000u64, any::<u64>()],
            end in prop_oneof![Just(0), 1..2_000_000_000u64, any::<u64>()],
        ) {
            let dir = tempfile::tempdir().unwrap();
            let input = dir.path().join("any.data");
            let meta = Meta { start_mono_ns: start, ..Meta::default() };
            let mut writer = Writer::create(&input, &meta).unwrap();
            for event in &events {
                writer.push(event).unwrap();
            }
            writer.finish(&Summary { end_mono_ns: end, ..Summary::default() }).unwrap();
            for mode in [Mode::Idle, Mode::Mixed, Mode::Cpu, Mode::OffCpu, Mode::Gpu] {
                let plain = options(input.clone(), mode);
                let compared = FlameOptions {
                    diff: Some(input.clone()),
                    normalize: true,
                    reverse: true,
                    inverted: true,
                    ..plain.clone()
                };
                for options in [plain, compared] {
                    let error = match graph(&options, &mut Vec::new()) {
                        Err(error) => error,
                        Ok(graph) => {
                            let mut svg = Vec::new();
                            svg::write(&graph.table, &graph.picture, &mut svg).unwrap();
                            prop_assert!(String::from_utf8(svg).unwrap().ends_with("</svg>"));
                            continue;
                        }
                    };
                    let known = error.downcast_ref::<Error>();
                    let told = matches!(known, Some(Error::NotRecorded { .. } | Error::NothingToDraw { .. }));
                    prop_assert!(told, "{error:#}");
                    prop_assert_eq!(exit_status(&error, false), status::FAILED);
                }
            }
        }
    }
}
