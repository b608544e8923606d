//! Histograms by powers of two, as runqlat and its like draw them.

use std::io::{self, Write};

use crate::histogram::Histogram;
use crate::present::page::{Page, Paint};
use crate::units::{Count, Nanos};

/// Columns of the longest bar.
const BAR: u64 = 40;

pub(super) fn write(
    page: &mut Page<'_, impl Write>,
    title: &str,
    histogram: &Histogram,
) -> io::Result<()> {
    page.blank()?;
    page.labelled(Paint::Heading, "", title)?;
    if histogram.count == 0 {
        return page.line(Paint::Plain, "  none");
    }
    page.labelled(Paint::Plain, "  ", &figures(histogram))?;
    let rows = histogram.octaves();
    let most = rows.iter().map(|row| row.2).max().unwrap_or(0).max(1);
    let head = format!(
        "  {:>9}    {:<9} : {:<10} distribution",
        "from", "to", "count"
    );
    page.line(Paint::Dim, &head)?;
    for (from, to, count) in rows {
        // Of many, a few are still something.
        let stars = (count * BAR).div_ceil(most);
        let bar: String = (0..BAR)
            .map(|i| if i < stars { '*' } else { ' ' })
            .collect();
        let line = format!(
            "  {:>9} -> {:<9} : {:<10} |{bar}|",
            edge(from),
            edge(to),
            count
        );
        page.line(Paint::Plain, &line)?;
    }
    Ok(())
}

/// `1,234 times, 1.20 s in all; average 972 us, p50 …`
pub(super) fn figures(histogram: &Histogram) -> String {
    let of = |share| maybe(histogram.percentile(share));
    format!(
        "{} times, {} in all; average {}, p50 {}, p90 {}, p99 {}, longest {}",
        Count(histogram.count),
        histogram.total,
        maybe(histogram.average()),
        of(0.5),
        of(0.9),
        of(0.99),
        histogram.longest_text(),
    )
}

fn maybe(time: Option<Nanos>) -> String {
    time.map_or_else(|| "-".to_string(), |time| time.to_string())
}

/// The first begins at 0, whatever its unit.
fn edge(time: Nanos) -> String {
    if time == Nanos::ZERO {
        "0".to_string()
    } else {
        time.to_string()
    }
}
