//! How wide and how colourful the output may be.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

/// Every table fits this; narrower terminals wrap.
pub const MIN_WIDTH: usize = 80;
/// Wider lines are hard to follow with the eye.
pub const MAX_WIDTH: usize = 160;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns of a line, [`MIN_WIDTH`] to [`MAX_WIDTH`].
    pub width: usize,
    pub color: bool,
    /// How many gaps of each GPU to show with all their parts; the other listed ones get one line.
    pub gaps_in_full: usize,
}

impl Style {
    /// For what stdout is: a terminal, a pipe or a file.
    pub fn for_stdout(gaps_in_full: usize) -> Style {
        let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let var = |name: &str| std::env::var_os(name);
        Style {
            // With the output in a pipe this is still the width of the pager's terminal.
            width: width(terminal, var("COLUMNS").as_deref()),
            color: color(
                std::io::stdout().is_terminal(),
                var("NO_COLOR"),
                var("TERM").as_deref(),
            ),
            gaps_in_full,
        }
    }
}

fn width(terminal: Option<usize>, columns: Option<&OsStr>) -> usize {
    terminal
        .filter(|&width| width > 0)
        .or_else(|| columns?.to_str()?.parse().ok())
        .unwrap_or(MIN_WIDTH)
        .clamp(MIN_WIDTH, MAX_WIDTH)
}

/// See <https://no-color.org>: set and not empty means no.
fn color(is_terminal: bool, no_color: Option<OsString>, term: Option<&OsStr>) -> bool {
    is_terminal
        && no_color.is_none_or(|value| value.is_empty())
        && term.is_some_and(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_needs_a_terminal_that_wants_it() {
        let xterm = Some(OsStr::new("xterm"));
        assert!(color(true, None, xterm));
        assert!(color(true, Some("".into()), xterm));
        assert!(!color(false, None, xterm));
        assert!(!color(true, Some("1".into()), xterm));
        assert!(!color(true, None, Some(OsStr::new("dumb"))));
        assert!(!color(true, None, None));
    }

    #[test]
    fn the_width_is_the_terminals_within_reason() {
        assert_eq!(width(Some(120), Some(OsStr::new("100"))), 120);
        assert_eq!(width(Some(0), Some(OsStr::new("100"))), 100);
        assert_eq!(width(None, Some(OsStr::new("wide"))), 80);
        assert_eq!(width(None, None), 80);
        assert_eq!(width(Some(20), None), 80);
        assert_eq!(width(Some(1000), None), 160);
    }
}
