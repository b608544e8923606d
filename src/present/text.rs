//! Text from outside, made harmless, measured and cut for a terminal.
#![forbid(unsafe_code)]

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Marks what was cut.
const DOTS: &str = "...";

/// `text` without anything that controls a terminal, reorders or hides what follows, or breaks
/// the line: such characters are spelled out as `\x1b` or `\u{202e}`. Does nothing twice.
pub fn clean(text: &str) -> Cow<'_, str> {
    // A mark at the start would join whatever is printed before it.
    let joins = |at: usize, c: char| at == 0 && c.width() == Some(0);
    if !text
        .char_indices()
        .any(|(at, c)| is_harmful(c) || joins(at, c))
    {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for (at, c) in text.char_indices() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if !is_harmful(c) && !joins(at, c) => out.push(c),
            c if u32::from(c) < 0x100 => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
        }
    }
    Cow::Owned(out)
}

pub(super) fn is_harmful(c: char) -> bool {
    c.is_control() // C0, DEL and C1, so ESC and CSI too
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
            // Line and paragraph separators, bidi embeddings and overrides.
            | '\u{2028}'..='\u{202e}'
            // Invisible operators, bidi isolates, deprecated format characters.
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Columns that `text` takes on a terminal.
pub fn width(text: &str) -> usize {
    text.width()
}

/// `text` in at most `columns`, cut at its end. A wide glyph is kept whole or left out.
pub fn cut_end(text: &str, columns: usize) -> Cow<'_, str> {
    if fits(text, columns) {
        return Cow::Borrowed(text);
    }
    if columns <= DOTS.len() {
        return Cow::Borrowed(prefix(text, columns));
    }
    Cow::Owned(format!("{}{DOTS}", prefix(text, columns - DOTS.len())))
}

/// `text` in at most `columns`, cut in its middle: the ends of long names tell the most.
pub fn cut_middle(text: &str, columns: usize) -> Cow<'_, str> {
    if fits(text, columns) {
        return Cow::Borrowed(text);
    }
    if columns <= DOTS.len() + 2 {
        return cut_end(text, columns);
    }
    let room = columns - DOTS.len();
    let head = prefix(text, room - room / 3);
    let tail = suffix(&text[head.len()..], room - width(head));
    Cow::Owned(format!("{head}{DOTS}{tail}"))
}

/// `text` in at most `columns`, cut before the last `mark`, so that what follows stays whole; at its end
/// when there is no room for that, or no mark.
pub fn cut_before(text: &str, mark: char, columns: usize) -> Cow<'_, str> {
    if fits(text, columns) {
        return Cow::Borrowed(text);
    }
    let at = text.rfind(mark).unwrap_or(text.len());
    let (head, tail) = text.split_at(at);
    let room = columns.checked_sub(width(tail) + DOTS.len());
    match room.filter(|&room| room > 0 && fits(tail, columns)) {
        Some(room) => Cow::Owned(format!("{}{DOTS}{tail}", prefix(head, room))),
        None => cut_end(text, columns),
    }
}

/// Marks without a width could fill the screen all the same.
fn fits(text: &str, columns: usize) -> bool {
    width(text) <= columns && text.chars().count() <= char_limit(columns)
}

fn char_limit(columns: usize) -> usize {
    4 * columns
}

/// The longest beginning of at most `columns`.
fn prefix(text: &str, columns: usize) -> &str {
    let mut end = 0;
    let mut taken = 0;
    for (at, c) in text.char_indices().take(char_limit(columns)) {
        taken += c.width().unwrap_or(0);
        if taken > columns {
            break;
        }
        end = at + c.len_utf8();
    }
    // The whole can be wider than its characters: a selector makes an emoji of a letter. And
    // what joins or marks the next character must not end up before our dots.
    while width(&text[..end]) > columns || text[..end].ends_with('\u{200d}') {
        end = text[..end]
            .char_indices()
            .next_back()
            .map_or(0, |(at, _)| at);
    }
    &text[..end]
}

/// The longest end of at most `columns` that does not start with a mark.
fn suffix(text: &str, columns: usize) -> &str {
    let mut start = text.len();
    let mut best = start;
    let mut taken = 0;
    for (at, c) in text.char_indices().rev().take(char_limit(columns)) {
        taken += c.width().unwrap_or(0);
        if taken > columns {
            break;
        }
        start = at;
        if c.width() != Some(0) && width(&text[start..]) <= columns {
            best = start;
        }
    }
    &text[best..]
}

/// Words of `text`; a number keeps its unit: `2.90 s`, `31.0 %`.
fn words(text: &str) -> impl Iterator<Item = &str> {
    const UNITS: [&str; 9] = ["%", "ns", "us", "ms", "s", "B", "KiB", "MiB", "GiB"];
    let mut rest = text.trim_start_matches(' ');
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut end = rest.find(' ').unwrap_or(rest.len());
        if rest[..end].ends_with(|c: char| c.is_ascii_digit()) {
            let after = rest[end..].strip_prefix(' ').unwrap_or_default();
            let next = after.split(' ').next().unwrap_or_default();
            if UNITS.contains(&next.trim_end_matches([',', '.', ';', ':', ')'])) {
                end += 1 + next.len();
            }
        }
        let word = &rest[..end];
        rest = rest[end..].trim_start_matches(' ');
        Some(word)
    })
}

/// `text` as lines of at most `columns`, broken between words; longer words are broken anywhere.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(4);
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for mut word in words(text) {
        loop {
            let gap = usize::from(!line.is_empty());
            if fits(word, columns.saturating_sub(width(&line) + gap)) {
                if gap == 1 {
                    line.push(' ');
                }
                line.push_str(word);
                break;
            }
            if line.is_empty() {
                let head = prefix(word, columns);
                // Only marks: there is no sensible way to show them.
                if head.is_empty() {
                    break;
                }
                lines.push(head.to_string());
                word = &word[head.len()..];
            } else {
                lines.push(std::mem::take(&mut line));
            }
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// Like [`wrap`], with dots where it would take more than `most` lines. Text that fits one line is left alone.
pub fn wrap_within(text: &str, columns: usize, most: usize) -> Vec<String> {
    if fits(text, columns) {
        return vec![text.to_string()];
    }
    let mut lines = wrap(text, columns);
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            let room = columns.saturating_sub(DOTS.len());
            *last = format!("{}{DOTS}", prefix(last, room).trim_end());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_behind_a_name_is_never_cut() {
        assert_eq!(
            cut_before("pt_autograd_0:478*", ':', 16),
            "pt_autog...:478*"
        );
        assert_eq!(cut_before("a:b:12", ':', 80), "a:b:12");
        assert_eq!(cut_before("no mark in it", ':', 8), "no ma...");
        assert_eq!(cut_before("x:1234567890", ':', 8), "x:123...");
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in [
            "[ET_NET 0]",
            "a;b",
            "x (y)",
            "Hashed wheel timer #1",
            " lead",
            "",
            "訓練",
            "🚀",
            "e\u{301}",
            "\\x",
        ] {
            assert_eq!(clean(name), name);
        }
    }

    #[test]
    fn what_controls_a_terminal_is_spelled_out() {
        for (name, shown) in [
            ("\x1b[31mred", "\\x1b[31mred"),
            ("a\rb\nc\td", "a\\rb\\nc\\td"),
            ("\u{9b}2J", "\\x9b2J"),
            ("\0\x7f", "\\x00\\x7f"),
            ("abc\u{202e}cba", "abc\\u{202e}cba"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("a\u{2028}b", "a\\u{2028}b"),
            ("\u{301}x", "\\u{301}x"),
        ] {
            assert_eq!(clean(name), shown);
            assert_eq!(clean(shown), shown);
        }
    }

    #[test]
    fn wide_glyphs_are_never_cut() {
        assert_eq!(cut_end("訓練訓練", 8), "訓練訓練");
        assert_eq!(cut_end("訓練訓練", 7), "訓練...");
        assert_eq!(cut_end("訓練訓練", 6), "訓...");
        assert_eq!(cut_end("訓練", 3), "訓");
        assert_eq!(cut_end("訓練", 0), "");
        assert_eq!(cut_middle("訓練訓練訓練訓練", 11), "訓練訓...練");
    }

    #[test]
    fn the_middle_goes_first_in_long_names() {
        assert_eq!(
            cut_middle("void_kernel<aaaaaaaaaaaaaaaaaaaaaaaaaaa>::run", 20),
            "void_kernel<...::run"
        );
    }

    #[test]
    fn marks_without_width_do_not_pile_up() {
        let zalgo = format!("e{}", "\u{301}".repeat(20_000));
        assert!(cut_end(&zalgo, 10).chars().count() < 50);
        assert!(cut_middle(&zalgo, 10).chars().count() < 50);
    }

    #[test]
    fn text_wraps_between_words_and_long_words_anywhere() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("  a   b ", 10), ["a b"]);
        assert_eq!(
            wrap("took 2.90 s, 31.0 % of it", 9),
            ["took", "2.90 s,", "31.0 % of", "it"]
        );
        assert_eq!(wrap("訓練訓練", 5), ["訓練", "訓練"]);
    }

    proptest! {
        /// Check that no text, whatever it holds, leaves its columns or controls a terminal.
        #[test]
        fn any_text_keeps_to_its_columns(text in any::<String>(), columns in 4usize..40) {
            let clean = clean(&text);
            prop_assert!(!clean.chars().any(is_harmful));
            for cut in [cut_end(&clean, columns), cut_middle(&clean, columns)] {
                prop_assert!(width(&cut) <= columns, "{cut:?}");
            }
            for line in wrap(&clean, columns) {
                prop_assert!(width(&line) <= columns, "{line:?}");
            }
        }
    }
}
