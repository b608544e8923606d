//! The one way into the cells of a screen: whatever a text holds, each cell gets one character of a known width.
//!
//! Names come from the traced programs and may hold anything. Terminals disagree on how wide joined
//! emoji, flags and jamo are, and some reorder a line around letters that run from right to left: all of these
//! would move what stands beside them, so they are spelled out, like what controls a terminal.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthChar;

use super::list::Tone;
use super::theme::{Glyphs, Theme};
use crate::present::text::is_harmful;

/// Marks on one letter; more would pile up.
const MARKS: usize = 2;

/// An area to draw on. What does not fit is left out.
#[derive(Debug)]
pub struct Canvas<'a> {
    buf: &'a mut Buffer,
    theme: &'a Theme,
}

impl<'a> Canvas<'a> {
    pub fn new(buf: &'a mut Buffer, theme: &'a Theme) -> Canvas<'a> {
        Canvas { buf, theme }
    }

    pub fn theme(&self) -> &'a Theme {
        self.theme
    }

    pub fn style(&self, tone: Tone) -> Style {
        self.theme.style(tone)
    }

    pub fn glyphs(&self) -> &'static Glyphs {
        self.theme.glyphs()
    }

    /// What `text` looks like here.
    pub fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        shown(text, self.theme.unicode)
    }

    /// Writes as much of `text` as fits `room` columns; what is left out is marked. Returns the columns taken.
    pub fn text(&mut self, x: u16, y: u16, room: u16, text: &str, style: Style) -> u16 {
        let shown = self.shown(text);
        let cut = cut_end(&shown, usize::from(room), self.glyphs().dots);
        self.put(x, y, room, &cut, style)
    }

    /// As [`text`](Self::text), cut in the middle: the ends of long names tell the most.
    pub fn name(&mut self, x: u16, y: u16, room: u16, text: &str, style: Style) -> u16 {
        let shown = self.shown(text);
        let cut = cut_middle(&shown, usize::from(room), self.glyphs().dots);
        self.put(x, y, room, &cut, style)
    }

    /// Writes `text` that ends at the end of the room.
    pub fn right(&mut self, x: u16, y: u16, room: u16, text: &str, style: Style) -> u16 {
        let shown = self.shown(text);
        let cut = cut_end(&shown, usize::from(room), self.glyphs().dots);
        let blank = room.saturating_sub(columns(&cut));
        self.put(x.saturating_add(blank), y, room - blank, &cut, style)
    }

    pub fn glyph(&mut self, x: u16, y: u16, c: char, style: Style) {
        self.put(x, y, 1, c.encode_utf8(&mut [0; 4]), style);
    }

    /// What is in a cell.
    pub fn symbol(&self, x: u16, y: u16) -> &str {
        self.buf
            .cell((x, y))
            .map_or("", ratatui::buffer::Cell::symbol)
    }

    /// Of text that went through [`shown`].
    fn put(&mut self, x: u16, y: u16, room: u16, text: &str, style: Style) -> u16 {
        let area = *self.buf.area();
        if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() {
            return 0;
        }
        let end = x.saturating_add(room).min(area.right());
        let mut at = x;
        let mut symbol = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let width = columns_of(c);
            if width == 0 {
                continue;
            }
            if at.saturating_add(width) > end {
                break;
            }
            symbol.clear();
            symbol.push(c);
            while let Some(mark) = chars.next_if(|&c| columns_of(c) == 0) {
                symbol.push(mark);
            }
            self.split_wide(at, y);
            self.split_wide(at + width, y);
            for x in at..at + width {
                let Some(cell) = self.buf.cell_mut((x, y)) else {
                    continue;
                };
                cell.set_symbol(if x == at { &symbol } else { " " });
                cell.set_style(style);
            }
            at += width;
        }
        at - x
    }

    /// What is written at `x` takes the second half of a wide character away.
    fn split_wide(&mut self, x: u16, y: u16) {
        let Some(left) = x.checked_sub(1) else { return };
        if let Some(cell) = self.buf.cell_mut((left, y)) {
            if columns(cell.symbol()) > 1 {
                cell.set_symbol(" ");
            }
        }
    }

    /// Nothing but `style` in all of it.
    pub fn clear(&mut self, area: Rect, style: Style) {
        let area = area.intersection(*self.buf.area());
        for y in area.top()..area.bottom() {
            self.split_wide(area.left(), y);
            for x in area.left()..area.right() {
                if let Some(cell) = self.buf.cell_mut((x, y)) {
                    cell.reset();
                    cell.set_style(style);
                }
            }
        }
    }

    /// Adds `style` to what is there.
    pub fn tint(&mut self, area: Rect, style: Style) {
        let area = area.intersection(*self.buf.area());
        self.buf.set_style(area, style);
    }
}

/// `text` as it may stand in cells. Does nothing twice.
pub fn shown(text: &str, unicode: bool) -> Cow<'_, str> {
    let ascii = |b: u8| b.is_ascii_graphic() || b == b' ';
    if text.bytes().all(ascii) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut marks = MARKS;
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii() && !c.is_ascii_control() => out.push(c),
            c if unicode && is_mark(c) && marks < MARKS => {
                out.push(c);
                marks += 1;
                continue;
            }
            c if u32::from(c) < 0x100 && is_harmful(c) => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if is_harmful(c) || moves_others(c) || is_mark(c) => {
                // More marks on the same letter say nothing.
                if !is_mark(c) || out.is_empty() {
                    let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
                }
                continue;
            }
            c if unicode => out.push(c),
            // Of the same width, so that columns stay where they are.
            c => (0..columns_of(c)).for_each(|_| out.push('?')),
        }
        // A mark needs a letter that it can stand on.
        marks = if out.is_empty() { MARKS } else { 0 };
    }
    Cow::Owned(out)
}

/// Stands on the letter before it.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{34e}' | '\u{350}'..='\u{36f}' | '\u{483}'..='\u{487}' | '\u{1ab0}'..='\u{1abd}'
        | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20dc}' | '\u{3099}' | '\u{309a}' | '\u{fe20}'..='\u{fe2f}')
}

/// Of no certain width, or of the letters around which terminals reorder a line.
fn moves_others(c: char) -> bool {
    columns_of(c) == 0
        || columns_of(c) > 2
        || matches!(c,
            '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}'
            | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}'
            // Skin tones, halves of flags, conjoining jamo.
            | '\u{1f3fb}'..='\u{1f3ff}' | '\u{1f1e6}'..='\u{1f1ff}'
            | '\u{1100}'..='\u{11ff}' | '\u{a960}'..='\u{a97f}' | '\u{d7b0}'..='\u{d7ff}')
}

fn columns_of(c: char) -> u16 {
    // No character takes more than a few.
    c.width().map_or(0, |w| u16::try_from(w).unwrap_or(0))
}

/// Columns of text that went through [`shown`].
pub fn columns(text: &str) -> u16 {
    if text.is_ascii() {
        return u16::try_from(text.len()).unwrap_or(u16::MAX);
    }
    let widths = text.chars().map(columns_of);
    widths.fold(0, u16::saturating_add)
}

/// Of text that went through [`shown`].
pub fn cut_end(text: &str, room: usize, dots: char) -> Cow<'_, str> {
    if usize::from(columns(text)) <= room {
        return Cow::Borrowed(text);
    }
    if room == 0 {
        return Cow::Borrowed("");
    }
    let mut head = beginning(text, room - 1).to_string();
    head.push(dots);
    Cow::Owned(head)
}

pub fn cut_middle(text: &str, room: usize, dots: char) -> Cow<'_, str> {
    if usize::from(columns(text)) <= room || room < 5 {
        return cut_end(text, room, dots);
    }
    let tail_room = (room - 1) / 3;
    let mut start = text.len();
    let mut best = start;
    let mut taken = 0;
    for (at, c) in text.char_indices().rev() {
        taken += usize::from(columns_of(c));
        if taken > tail_room {
            break;
        }
        start = at;
        if columns_of(c) > 0 {
            best = start;
        }
    }
    let tail = &text[best..];
    let head = beginning(&text[..best], room - 1 - usize::from(columns(tail)));
    Cow::Owned(format!("{head}{dots}{tail}"))
}

fn beginning(text: &str, room: usize) -> &str {
    let mut taken = 0;
    for (at, c) in text.char_indices() {
        taken += usize::from(columns_of(c));
        if taken > room {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_would_move_its_neighbours_is_spelled_out() {
        for (text, unicode, ascii) in [
            (
                "python3 [ET_NET 0]",
                "python3 [ET_NET 0]",
                "python3 [ET_NET 0]",
            ),
            (
                "\x1b[31mred\r\n",
                "\\x1b[31mred\\r\\n",
                "\\x1b[31mred\\r\\n",
            ),
            ("\u{9b}2J", "\\x9b2J", "\\x9b2J"),
            ("訓練", "訓練", "????"),
            ("👩\u{200d}👧", "👩\\u{200d}👧", "??\\u{200d}??"),
            ("e\u{301}\u{301}\u{301}\u{301}", "e\u{301}\u{301}", "e"),
            ("\u{301}x", "\\u{301}x", "\\u{301}x"),
            ("\u{5d0}1", "\\u{5d0}1", "\\u{5d0}1"),
            ("\u{202e}evil", "\\u{202e}evil", "\\u{202e}evil"),
            ("bad\u{fffd}", "bad\u{fffd}", "bad?"),
        ] {
            assert_eq!(shown(text, true), unicode);
            assert_eq!(shown(text, false), ascii);
        }
    }

    #[test]
    fn what_is_cut_is_marked() {
        assert_eq!(cut_end("abcdef", 6, '…'), "abcdef");
        assert_eq!(cut_end("abcdef", 5, '…'), "abcd…");
        assert_eq!(cut_end("訓練訓練", 6, '…'), "訓練…");
        assert_eq!(cut_end("abc", 0, '…'), "");
        assert_eq!(
            cut_middle("void_kernel<aaaa>::run", 12, '~'),
            "void_ker~run"
        );
    }

    proptest! {
        #[test]
        fn any_text_has_only_cells_of_known_width(text in any::<String>(), unicode: bool, room in 0usize..30) {
            let once = shown(&text, unicode);
            prop_assert_eq!(&shown(&once, unicode), &once);
            prop_assert!(unicode || once.is_ascii());
            for cut in [cut_end(&once, room, '~'), cut_middle(&once, room, '~')] {
                prop_assert!(usize::from(columns(&cut)) <= room, "{cut:?}");
            }
        }
    }
}
