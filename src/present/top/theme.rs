//! How things look: colors for their meaning, and the characters that bars are made of.
//!
//! Nothing is told by color alone: every color stands beside a word, a number or a letter, so that without
//! colors all is still there. What the terminal can do is found out elsewhere; here it is a value.
#![forbid(unsafe_code)]

use ratatui::style::{Color, Modifier, Style};

use super::list::Tone;

/// How many colors there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colors {
    /// Bold, dim and reverse only.
    None,
    /// The sixteen that the person chose for this terminal.
    #[default]
    Sixteen,
    /// 256 or more.
    Many,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    Dark,
    Light,
    /// Colors that can be read on both.
    #[default]
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Theme {
    pub colors: Colors,
    pub background: Background,
    /// The terminal shows UTF-8; else ASCII.
    pub unicode: bool,
}

/// A color for each number of colors and each background.
struct Shade {
    sixteen: [Option<Color>; 3],
    many: [u8; 3],
}

const GREEN: Shade = Shade {
    sixteen: [Some(Color::Green); 3],
    many: [114, 28, 34],
};
/// The sixteen have no yellow that can be read on white.
const AMBER: Shade = Shade {
    sixteen: [
        Some(Color::Yellow),
        Some(Color::Magenta),
        Some(Color::Magenta),
    ],
    many: [221, 130, 172],
};
const RED: Shade = Shade {
    sixteen: [Some(Color::LightRed), Some(Color::Red), Some(Color::Red)],
    many: [210, 160, 203],
};
const BLUE: Shade = Shade {
    sixteen: [Some(Color::Cyan), Some(Color::Blue), None],
    many: [117, 25, 32],
};
const GRAY: Shade = Shade {
    sixteen: [None; 3],
    many: [246, 242, 244],
};

impl Theme {
    pub const MONO: Theme = Theme {
        colors: Colors::None,
        background: Background::Unknown,
        unicode: true,
    };

    pub fn style(&self, tone: Tone) -> Style {
        let plain = Style::new();
        match tone {
            Tone::Plain => plain,
            Tone::Dim => match self.color(&GRAY) {
                Some(color) => plain.fg(color),
                None => plain.add_modifier(Modifier::DIM),
            },
            Tone::Strong => plain.add_modifier(Modifier::BOLD),
            Tone::Good => self.colored(&GREEN, Modifier::empty()),
            Tone::Warn => self.colored(&AMBER, Modifier::empty()),
            Tone::Bad => self.colored(&RED, Modifier::BOLD),
            Tone::Name => self.colored(&BLUE, Modifier::empty()),
        }
    }

    /// The row that keys act on, all of it.
    pub fn cursor(&self) -> Style {
        match (self.colors, self.background) {
            (Colors::None, _) | (_, Background::Unknown) => {
                Style::new().add_modifier(Modifier::REVERSED)
            }
            (Colors::Sixteen, Background::Dark | Background::Light) => {
                Style::new().fg(Color::Black).bg(Color::Cyan)
            }
            (Colors::Many, Background::Dark) => {
                Style::new().fg(Color::Indexed(255)).bg(Color::Indexed(24))
            }
            (Colors::Many, Background::Light) => {
                Style::new().fg(Color::Indexed(16)).bg(Color::Indexed(153))
            }
        }
    }

    /// What a key does, beside its name.
    pub fn label(&self) -> Style {
        match (self.colors, self.background) {
            (Colors::None, _) | (_, Background::Unknown) => {
                Style::new().add_modifier(Modifier::REVERSED)
            }
            (Colors::Sixteen | Colors::Many, Background::Dark | Background::Light) => self.band(),
        }
    }

    /// The names of columns. Not to be taken for the row under the cursor, which may be right below.
    pub fn band(&self) -> Style {
        match (self.colors, self.background) {
            (Colors::None, _) | (_, Background::Unknown) => {
                Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
            }
            (Colors::Sixteen, Background::Dark | Background::Light) => {
                Style::new().fg(Color::Black).bg(Color::Green)
            }
            (Colors::Many, Background::Dark) => {
                Style::new().fg(Color::Indexed(252)).bg(Color::Indexed(237))
            }
            (Colors::Many, Background::Light) => {
                Style::new().fg(Color::Indexed(235)).bg(Color::Indexed(253))
            }
        }
    }

    /// Loud: losses, a window that is held.
    pub fn alarm(&self) -> Style {
        self.style(Tone::Bad)
            .add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// What the filter found.
    pub fn found(&self) -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED | Modifier::BOLD)
    }

    /// A piece of a divided bar: its letter stands on its color.
    pub fn block(&self, tone: Tone) -> Style {
        self.style(tone).add_modifier(Modifier::REVERSED)
    }

    /// Behind the text of a cell, for as far as its bar goes.
    pub fn bar_behind(&self) -> Style {
        match (self.colors, self.background) {
            (Colors::Many, Background::Dark) => Style::new().bg(Color::Indexed(238)),
            (Colors::Many, Background::Light) => Style::new().bg(Color::Indexed(252)),
            (Colors::None | Colors::Sixteen, _) | (Colors::Many, Background::Unknown) => {
                Style::new().add_modifier(Modifier::REVERSED)
            }
        }
    }

    pub fn glyphs(&self) -> &'static Glyphs {
        if self.unicode {
            &UNICODE
        } else {
            &ASCII
        }
    }

    fn colored(&self, shade: &Shade, without: Modifier) -> Style {
        match self.color(shade) {
            Some(color) => Style::new().fg(color).add_modifier(without),
            None => Style::new().add_modifier(without),
        }
    }

    fn color(&self, shade: &Shade) -> Option<Color> {
        let at = match self.background {
            Background::Dark => 0,
            Background::Light => 1,
            Background::Unknown => 2,
        };
        match self.colors {
            Colors::None => None,
            Colors::Sixteen => shade.sixteen[at],
            Colors::Many => Some(Color::Indexed(shade.many[at])),
        }
    }
}

/// What is drawn with. Each is one column wide.
#[derive(Debug)]
pub struct Glyphs {
    /// Parts of a full cell, from the left, in equal steps; the last one is full.
    pub bar: &'static [char],
    pub track: char,
    /// Heights of a column, in equal steps; the first is nothing, the last is full.
    pub spark: &'static [char],
    /// A point of which nothing is known.
    pub unknown: char,
    pub dots: char,
    pub up: char,
    pub down: char,
    pub cursor: char,
}

const UNICODE: Glyphs = Glyphs {
    bar: &['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'],
    track: '░',
    spark: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
    unknown: '·',
    dots: '…',
    up: '▲',
    down: '▼',
    cursor: '▸',
};

const ASCII: Glyphs = Glyphs {
    bar: &['|'],
    track: '.',
    spark: &['_', '.', ':', '-', '=', '+', '*', '#'],
    unknown: '?',
    dots: '~',
    up: '^',
    down: 'v',
    cursor: '>',
};
