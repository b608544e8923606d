//! The picture: inferno draws it, in our colours and with a legend.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, TextTruncateDirection};

use crate::analyse::stacks::frame::Kind;
use crate::present::flame::label::legend;
use crate::present::flame::table::Table;
use crate::present::text;

/// How to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    pub title: String,
    /// In pixels; `None` fills the window of the browser.
    pub width: Option<u32>,
    /// Narrower frames are left out, in percent of the whole.
    pub min_width: f64,
    /// The root at the top.
    pub inverted: bool,
}

/// The colours of Okabe and Ito, which everybody can tell apart, and greys.
fn color(kind: Kind) -> (u8, u8, u8) {
    match kind {
        Kind::Base => (196, 196, 196),
        Kind::Native => (240, 228, 66),
        Kind::Python => (86, 180, 233),
        Kind::Cuda => (204, 121, 167),
        Kind::Kernel => (230, 159, 0),
        Kind::Gpu => (0, 158, 115),
        Kind::Cause => (213, 94, 0),
        Kind::Blocked => (0, 114, 178),
        Kind::Runnable => (130, 130, 130),
        Kind::Unknown => (234, 234, 234),
    }
}

/// A shade of the colour of its kind, always the same for a name: neighbours can be told apart.
fn shade(name: &str, kind: Kind) -> Color {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    // Up to a quarter of the way to white.
    let lighter = (hash >> 32) % 64;
    let mix = |c: u8| {
        let c = u64::from(c);
        u8::try_from(c + (255 - c) * lighter / 256).unwrap_or(u8::MAX)
    };
    let (r, g, b) = color(kind);
    Color {
        r: mix(r),
        g: mix(g),
        b: mix(b),
    }
}

/// Columns of a title that leave room for the buttons beside it.
const TITLE_COLUMNS: usize = 90;

/// Draws. `table` must have times, and no more than 63 bits of them.
pub fn write(table: &Table, picture: &Picture, out: &mut dyn Write) -> io::Result<()> {
    let mut palette = PaletteMap::default();
    let mut kinds = Vec::new();
    for (name, kind) in table.names() {
        palette.insert(name, shade(name, kind));
        kinds.push(kind);
    }
    // The box under all others has no name.
    palette.insert("", shade("", Kind::Base));
    let mut options = flamegraph::Options::default();
    // What has not changed is nearly white.
    let paper = if table.is_differential() { 225 } else { 255 };
    options.bgcolors = Some(BackgroundColor::Flat(Color {
        r: paper,
        g: paper,
        b: paper,
    }));
    options.title = text::cut_end(&text::clean(&picture.title), TITLE_COLUMNS).into_owned();
    // Keeps the place of the legend free.
    options.subtitle = Some(String::new());
    options.palette_map = Some(&mut palette);
    options.count_name = "ns".to_string();
    options.name_type = "Frame:".to_string();
    options.image_width = picture.width.map(|w| w as usize);
    options.min_width = picture.min_width;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.direction = if picture.inverted {
        Direction::Inverted
    } else {
        Direction::Straight
    };
    // Our order, frame by frame, rather than that of the lines: in theirs a blank within a name comes
    // before the `;` after a shorter one, and parts what belongs together. A chart has its lines from right to left.
    options.flame_chart = true;
    let lines: Vec<String> = table.lines().rev().collect();
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    let legend = if table.is_differential() {
        differential_legend()
    } else {
        kind_legend(&kinds)
    };
    // Names cannot look like this: their `<` is escaped.
    let frames = b"<svg id=\"frames\"";
    let at = svg
        .windows(frames.len())
        .position(|w| w == frames)
        .unwrap_or(svg.len());
    out.write_all(&svg[..at])?;
    if at < svg.len() {
        out.write_all(legend.as_bytes())?;
    }
    out.write_all(&svg[at..])
}

fn kind_legend(kinds: &[Kind]) -> String {
    let present = Kind::ALL.into_iter().filter(|kind| kinds.contains(kind));
    let entries: Vec<_> = present.map(|kind| (color(kind), legend(kind))).collect();
    draw_legend(&entries)
}

fn differential_legend() -> String {
    draw_legend(&[
        ((255, 60, 60), "more than before"),
        ((60, 60, 255), "less than before"),
        ((250, 250, 250), "the same, or only callees differ"),
    ])
}

/// In the line of the subtitle, from the left.
fn draw_legend(entries: &[((u8, u8, u8), &str)]) -> String {
    const BASELINE: usize = 48;
    const BOX: usize = 11;
    /// Of the font, and the space after a text.
    const COLUMN: usize = 7;
    const SPACE: usize = 14;
    let mut svg = String::from("<g id=\"legend\">");
    let mut x = 10;
    for ((r, g, b), text) in entries {
        svg.push_str(&format!(
            "<rect x=\"{x}\" y=\"{}\" width=\"{BOX}\" height=\"{BOX}\" fill=\"rgb({r},{g},{b})\" \
             stroke=\"rgb(120,120,120)\" stroke-width=\"0.5\"/><text x=\"{}\" y=\"{BASELINE}\">{text}</text>",
            BASELINE - BOX + 1,
            x + BOX + 4,
        ));
        x += BOX + 4 + text.len() * COLUMN + SPACE;
    }
    svg.push_str("</g>");
    svg
}
