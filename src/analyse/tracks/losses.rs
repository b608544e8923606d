//! What was not recorded, on a track of its own: a hole in a timeline must not look like quiet.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io;

use crate::analyse::tracks::lanes::{Row, Tracks};
use crate::analyse::tracks::who::Cast;
use crate::analyse::tracks::{text, uint, Slice};
use crate::analyse::what::missing_text;
use crate::event::LossSource;
use crate::model::BlindBecause;

pub(super) fn show(cast: &Cast<'_>, tracks: &mut Tracks<'_>) -> io::Result<()> {
    let t = cast.t;
    let mut slices: Vec<Slice<'_>> = Vec::new();
    for loss in t.losses() {
        let Some((start, end)) = cast.window.clip(loss.from, loss.to) else {
            continue;
        };
        let mut args = Vec::new();
        // 0 is "cannot be counted".
        if loss.count > 0 {
            args.push(("records", uint(loss.count)));
        }
        let name = match loss.source {
            LossSource::Bpf(cpu) => {
                args.push(("cpu", uint(cpu.0.into())));
                format!("scheduling events of CPU {cpu} lost")
            }
            LossSource::ShimRing(pid) => {
                args.push(("pid", uint(pid.0.into())));
                format!("GPU records of pid {pid} lost: the shim's ring was full")
            }
            LossSource::Cupti(pid) => {
                args.push(("pid", uint(pid.0.into())));
                match loss.count {
                    0 => format!("GPU records of pid {pid} stopped coming back"),
                    _ => format!("GPU records of pid {pid} lost: CUPTI dropped them"),
                }
            }
            LossSource::ClockStep => "the wall clock was stepped".to_string(),
            LossSource::Damage => missing_text(BlindBecause::Damaged).to_string(),
        };
        slices.push(Slice {
            start,
            end,
            name: name.into(),
            category: "lost",
            args,
            flow: None,
        });
    }
    // Those of losses are here already.
    let lost: HashSet<(u64, u64)> = t.losses().iter().map(|l| (l.from.0, l.to.0)).collect();
    for blind in t.blind() {
        let is_other = !lost.contains(&(blind.from.0, blind.to.0));
        let clipped = cast.window.clip(blind.from, blind.to);
        let clipped = clipped.filter(|_| is_other);
        let Some((start, end)) = clipped else {
            continue;
        };
        slices.push(Slice {
            start,
            end,
            name: missing_text(blind.why).into(),
            category: "lost",
            args: blind
                .pid
                .map(|pid| ("pid", uint(pid.0.into())))
                .into_iter()
                .collect(),
            flow: None,
        });
    }
    if slices.is_empty() && t.gpu().invalid_records().is_empty() {
        return Ok(());
    }
    for invalid in t.gpu().invalid_records() {
        if cast.window.has(invalid.seen) {
            slices.push(Slice {
                start: invalid.seen,
                end: invalid.seen,
                name: "a GPU record with impossible times".into(),
                category: "lost",
                args: vec![
                    ("pid", uint(invalid.pid.0.into())),
                    ("seen", text("when it was read")),
                ],
                flow: None,
            });
        }
    }
    slices.sort_by_key(|s| (s.start, std::cmp::Reverse(s.end)));
    let parent = tracks.group("gdiag")?;
    let mut row = Row::flat(parent, "gdiag: lost", 0);
    for slice in &slices {
        if slice.start == slice.end {
            row.instant(tracks, slice)?;
        } else {
            row.slice(tracks, slice)?;
        }
    }
    tracks.end()
}
