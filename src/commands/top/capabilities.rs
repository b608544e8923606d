//! What the terminal can show, from what the environment says of it.
#![forbid(unsafe_code)]

use std::ffi::OsString;

use crate::error::Error;
use crate::present::top::theme::{Background, Colors};
use crate::present::top::Theme;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) theme: Theme,
    /// The background is not known, matters, and can be asked for.
    pub(super) ask_background: bool,
}

impl Capabilities {
    /// `ascii`: as asked for. Fails when nothing can be drawn.
    pub(super) fn of(
        variable: impl Fn(&str) -> Option<OsString>,
        ascii: bool,
    ) -> Result<Capabilities, Error> {
        // Empty ones count as not set.
        let text = |name: &str| {
            let value = variable(name).filter(|value| !value.is_empty());
            value.map(|value| value.to_string_lossy().into_owned())
        };
        let term = text("TERM").unwrap_or_default();
        if matches!(term.as_str(), "" | "dumb" | "unknown") {
            return Err(Error::NoScreen { term });
        }
        // Linux's console takes UTF-8, but has no letters for bars, and may print a question that it does not know.
        let is_console = term == "linux";
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(text);
        let colors = if text("NO_COLOR").is_some() {
            Colors::None
        } else {
            colors(&term, text("COLORTERM").as_deref())
        };
        let background = match text("COLORFGBG") {
            Some(colors) => background(&colors),
            None => Background::Unknown,
        };
        let knows_questions = !is_console && !term.starts_with("vt");
        Ok(Capabilities {
            theme: Theme {
                colors,
                background,
                unicode: !ascii && !is_console && locale.as_deref().is_some_and(is_utf8),
            },
            ask_background: background == Background::Unknown
                && colors != Colors::None
                && knows_questions,
        })
    }
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

fn colors(term: &str, colorterm: Option<&str>) -> Colors {
    const MANY: [&str; 9] = [
        "256",
        "direct",
        "truecolor",
        "kitty",
        "alacritty",
        "foot",
        "wezterm",
        "ghostty",
        "contour",
    ];
    let is_mono = term.starts_with("vt1")
        || term.starts_with("vt2")
        || term.ends_with("-m")
        || term.ends_with("-mono");
    if colorterm.is_some_and(|c| matches!(c, "truecolor" | "24bit"))
        || MANY.iter().any(|name| term.contains(name))
    {
        Colors::Many
    } else if is_mono {
        Colors::None
    } else {
        Colors::Sixteen
    }
}

/// Of `COLORFGBG`, as rxvt, Konsole and others set it: `15;0`, with the background last.
fn background(colors: &str) -> Background {
    match colors.rsplit(';').next().map(str::parse::<u8>) {
        Some(Ok(7 | 9..=15)) => Background::Light,
        Some(Ok(0..=6 | 8)) => Background::Dark,
        Some(Ok(16..) | Err(_)) | None => Background::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Capabilities, Error> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Capabilities::of(variable, false)
    }

    #[test]
    fn a_terminal_without_a_screen_is_refused() {
        for variables in [&[][..], &[("TERM", "")], &[("TERM", "dumb")]] {
            assert!(
                matches!(of(variables), Err(Error::NoScreen { .. })),
                "{variables:?}"
            );
        }
    }

    #[test]
    fn colors_are_those_that_the_terminal_has() {
        for (variables, colors) in [
            (&[("TERM", "xterm")][..], Colors::Sixteen),
            (&[("TERM", "xterm-256color")], Colors::Many),
            (&[("TERM", "xterm-kitty")], Colors::Many),
            (&[("TERM", "linux")], Colors::Sixteen),
            (&[("TERM", "vt100")], Colors::None),
            (
                &[("TERM", "screen"), ("COLORTERM", "truecolor")],
                Colors::Many,
            ),
            (
                &[("TERM", "xterm-256color"), ("NO_COLOR", "1")],
                Colors::None,
            ),
            (
                &[("TERM", "xterm-256color"), ("NO_COLOR", "")],
                Colors::Many,
            ),
        ] {
            assert_eq!(of(variables).unwrap().theme.colors, colors, "{variables:?}");
        }
    }

    #[test]
    fn the_locale_says_whether_there_is_utf_8() {
        let xterm = ("TERM", "xterm");
        for (variables, unicode) in [
            (&[xterm][..], false),
            (&[xterm, ("LANG", "C")], false),
            (&[xterm, ("LANG", "C.UTF-8")], true),
            (&[xterm, ("LANG", "de_DE.utf8")], true),
            (&[xterm, ("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")], false),
            (&[xterm, ("LANG", "C"), ("LC_CTYPE", "en_US.UTF-8")], true),
            (&[xterm, ("LC_ALL", ""), ("LANG", "en_US.UTF-8")], true),
            (&[("TERM", "linux"), ("LANG", "en_US.UTF-8")], false),
        ] {
            assert_eq!(
                of(variables).unwrap().theme.unicode,
                unicode,
                "{variables:?}"
            );
        }
        let asked = Capabilities::of(|_| Some("en_US.UTF-8".into()), true).unwrap();
        assert!(!asked.theme.unicode);
    }

    #[test]
    fn a_background_that_is_told_is_not_asked_for() {
        for (variables, background, ask) in [
            (&[("TERM", "xterm")][..], Background::Unknown, true),
            (
                &[("TERM", "xterm"), ("COLORFGBG", "0;15")],
                Background::Light,
                false,
            ),
            (
                &[("TERM", "xterm"), ("COLORFGBG", "15;default;0")],
                Background::Dark,
                false,
            ),
            (
                &[("TERM", "xterm"), ("COLORFGBG", "0;default")],
                Background::Unknown,
                true,
            ),
            (
                &[("TERM", "xterm"), ("NO_COLOR", "1")],
                Background::Unknown,
                false,
            ),
            (&[("TERM", "linux")], Background::Unknown, false),
            (&[("TERM", "vt220")], Background::Unknown, false),
        ] {
            let found = of(variables).unwrap();
            assert_eq!(
                (found.theme.background, found.ask_background),
                (background, ask),
                "{variables:?}"
            );
        }
    }
}
