//! The one way to a terminal: every line is cleaned and cut here.
#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::present::style::Style;
use crate::present::table::Table;
use crate::present::text;

/// How a piece of text stands out, where there is colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    #[default]
    Plain,
    Heading,
    Dim,
    Warning,
    Remedy,
}

impl Paint {
    fn code(self) -> Option<&'static str> {
        match self {
            Paint::Plain => None,
            Paint::Heading => Some("1"),
            Paint::Dim => Some("2"),
            Paint::Warning => Some("1;33"),
            Paint::Remedy => Some("32"),
        }
    }
}

/// Writes lines that fit `style.width` and hold nothing that controls a terminal.
#[derive(Debug)]
pub struct Page<'a, W> {
    out: &'a mut W,
    style: Style,
}

impl<'a, W: Write> Page<'a, W> {
    pub fn new(out: &'a mut W, style: Style) -> Self {
        Page { out, style }
    }

    pub fn style(&self) -> &Style {
        &self.style
    }

    pub fn blank(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n")
    }

    pub fn line(&mut self, paint: Paint, line: &str) -> io::Result<()> {
        let line = text::clean(line);
        let line = text::cut_end(&line, self.style.width);
        let line = line.trim_end_matches(' ');
        match paint.code() {
            Some(code) if self.style.color => writeln!(self.out, "\x1b[{code}m{line}\x1b[0m"),
            _ => writeln!(self.out, "{line}"),
        }
    }

    /// `label` once, then `body` wrapped beside it.
    pub fn labelled(&mut self, paint: Paint, label: &str, body: &str) -> io::Result<()> {
        let indent = text::width(label);
        let body = text::clean(body);
        for (i, part) in text::wrap(&body, self.style.width.saturating_sub(indent))
            .iter()
            .enumerate()
        {
            if i == 0 {
                self.line(paint, &format!("{label}{part}"))?;
            } else {
                self.line(paint, &format!("{:indent$}{part}", ""))?;
            }
        }
        Ok(())
    }

    /// The header, then the rows, each line after `indent` blanks.
    pub fn table(&mut self, indent: usize, table: &Table) -> io::Result<()> {
        for (i, line) in table
            .lines(self.style.width.saturating_sub(indent))
            .iter()
            .enumerate()
        {
            let paint = if i == 0 { Paint::Dim } else { Paint::Plain };
            self.line(paint, &format!("{:indent$}{line}", ""))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(
        color: bool,
        write: impl FnOnce(&mut Page<'_, Vec<u8>>) -> io::Result<()>,
    ) -> String {
        let mut out = Vec::new();
        write(&mut Page::new(
            &mut out,
            Style {
                width: 80,
                color,
                gaps_in_full: 0,
            },
        ))
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        assert_eq!(
            printed(false, |page| page.line(Paint::Warning, "careful")),
            "careful\n"
        );
        assert_eq!(
            printed(true, |page| page.line(Paint::Warning, "careful")),
            "\x1b[1;33mcareful\x1b[0m\n"
        );
        assert_eq!(
            printed(true, |page| page.line(Paint::Plain, "calm")),
            "calm\n"
        );
    }

    #[test]
    fn a_label_stands_once() {
        let body = "word ".repeat(20);
        let text = printed(false, |page| page.labelled(Paint::Plain, "  fix: ", &body));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("  fix: word word"));
        assert!(lines[1].starts_with("       word"));
    }

    #[test]
    fn nothing_from_outside_controls_the_terminal() {
        let text = printed(false, |page| page.line(Paint::Plain, "x\x1b[2J\u{202e}y\n"));
        assert_eq!(text, "x\\x1b[2J\\u{202e}y\\n\n");
    }
}
