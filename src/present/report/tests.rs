use super::*;
use crate::present::sample;
use crate::present::text;

fn style(width: usize) -> Style {
    Style {
        width,
        color: false,
        gaps_in_full: 1,
    }
}

fn printed(report: &Report, style: Style) -> String {
    let mut out = Vec::new();
    write_report(
        &mut out,
        report,
        &sample::meta(),
        Some(&sample::summary()),
        &style,
    )
    .unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_sample_report_is_the_golden_one() {
    sample::assert_golden("report-80.txt", &printed(&sample::report(), style(80)));
    sample::assert_golden("report-140.txt", &printed(&sample::report(), style(140)));
}

#[test]
fn a_host_without_its_gpu_is_told_as_such() {
    let mut out = Vec::new();
    let summary = Summary {
        gpu_source: GpuSource::Uprobe,
        ..sample::summary()
    };
    let (report, meta) = (sample::host_only(), sample::meta());
    write_report(&mut out, &report, &meta, Some(&summary), &style(80)).unwrap();
    let text = String::from_utf8(out).unwrap();
    sample::assert_golden("host-80.txt", &text);
    // Nothing of a GPU is known, so nothing is said to have been idle, nor why.
    assert!(!text.contains("idle 0") && !text.contains("fix:"), "{text}");
}

/// Check that a GPU at 0 % is not called busy, nor its idle time explained.
#[test]
fn of_a_gpu_that_ran_nothing_it_is_said() {
    let mut report = sample::report();
    report.gpus.retain(|gpu| gpu.operations == 0);
    report.quality.gpu_coverage = None;
    let text = printed(&report, style(140));
    let says = "ran nothing: no operation of what was recorded began or ended";
    assert!(text.contains(says), "{text}");
    let where_to_look = "what the threads of its processes did is in the table of threads";
    assert!(text.contains(where_to_look), "{text}");
    assert!(!text.contains("explained"), "{text}");

    // It launched, and nothing came back.
    report.quality.gpu_coverage = Some(0.0);
    let text = printed(&report, style(140));
    assert!(
        text.contains("idle time unknown") && !text.contains(says),
        "{text}"
    );
}

/// Check that hostile names neither break the layout nor reach the terminal raw.
#[test]
fn every_line_keeps_to_the_width_and_controls_nothing() {
    for width in [80, 81, 100, 140, 160] {
        for report in [
            sample::report(),
            sample::hostile(),
            sample::unknowable(),
            sample::host_only(),
        ] {
            let text = printed(
                &report,
                Style {
                    gaps_in_full: 100,
                    ..style(width)
                },
            );
            for line in text.lines() {
                assert!(text::width(line) <= width, "{width}: {line}");
                assert_eq!(text::clean(line), line);
                assert!(!line.ends_with(' '), "{line:?}");
            }
        }
    }
}

#[test]
fn colour_is_the_only_use_of_escapes() {
    let coloured = printed(
        &sample::hostile(),
        Style {
            color: true,
            ..style(80)
        },
    );
    let mut rest = coloured.clone();
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[1;33m"] {
        assert!(rest.contains(code), "{code:?}");
        rest = rest.replace(code, "");
    }
    assert_eq!(rest, printed(&sample::hostile(), style(80)));
}

#[test]
fn warnings_come_before_the_verdicts() {
    let text = printed(&sample::report(), style(80));
    let warning = text.find("warning: 12 scheduling events").unwrap();
    let verdict = text
        .find("GPU 0 NVIDIA H200 (simulated): idle 61.3 % of 10.0 s; 97.8 % of that explained")
        .unwrap();
    assert!(warning < verdict);
}

#[test]
fn a_gpu_is_called_simulated_once() {
    let mut report = sample::report();
    report.gpus[0].name = "Simulated H200 (gdiag)".to_string();
    let text = printed(&report, style(80));
    assert!(
        text.contains("GPU 0 Simulated H200 (gdiag): idle"),
        "{text}"
    );
}

#[test]
fn low_coverage_gives_no_idle_figures() {
    let mut report = sample::unknowable();
    report.quality.gpu_coverage = Some(0.972_39);
    let text = printed(&report, style(140));
    let verdict = "idle time unknown, as only 97.23 % of the launches";
    assert!(text.contains(verdict), "{text}");
    assert!(
        text.contains("182,101 operations, idle time unknown"),
        "{text}"
    );
    assert!(!text.contains("idle 0"), "{text}");
}

#[test]
fn an_absent_gpu_side_is_said_first() {
    let text = printed(&Report::default(), style(80));
    assert!(
        text.starts_with("No GPU activity in this recording"),
        "{text}"
    );
}

#[test]
fn a_recording_without_its_end_shows_dashes() {
    let mut out = Vec::new();
    write_report(
        &mut out,
        &sample::report(),
        &Meta::default(),
        None,
        &style(80),
    )
    .unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("Recorded - on -\n"), "{text}");
    assert!(text.contains("from -;"), "{text}");
}

#[test]
fn the_budget_of_a_gap_adds_up() {
    let text = printed(&sample::report(), style(80));
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with("gap 1:"))
        .skip(2);
    let budget: Vec<&str> = lines
        .by_ref()
        .take_while(|line| !line.ends_with("the gap"))
        .collect();
    // Lines that go on with the text of the one above hold no number.
    let number = |line: &str| {
        let first = line.split_whitespace().next()?;
        first
            .contains('.')
            .then(|| first.replace(',', "").parse::<f64>().ok())?
    };
    let parts: Vec<f64> = budget.iter().copied().filter_map(number).collect();
    assert_eq!(parts.len(), 5);
    assert!(
        (parts.iter().sum::<f64>() - 12.304).abs() < 0.0005,
        "{budget:?}"
    );
    assert!(text.contains("  12.304  100.0 %  the gap\n"));
}
