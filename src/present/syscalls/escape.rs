//! Bytes from a program as a string in quotes, as C writes it.
#![forbid(unsafe_code)]

use crate::present::text;

/// Everything that could control a terminal, end the string, or is no UTF-8 is escaped.
pub(super) fn quoted(bytes: &[u8], cut: bool) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push(c, &mut out);
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    if cut {
        out.push_str("...");
    }
    out
}

fn push(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        c if c.is_ascii_graphic() || c == ' ' => out.push(c),
        c => {
            let mut buffer = [0; 4];
            out.push_str(&text::clean(c.encode_utf8(&mut buffer)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_plain_text_is_escaped() {
        assert_eq!(quoted(b"/etc/passwd", false), r#""/etc/passwd""#);
        assert_eq!(
            quoted(b"a\"b\\c\nd\x1b[2J", false),
            r#""a\"b\\c\nd\x1b[2J""#
        );
        assert_eq!(
            quoted(b"half \xe2\x82 end\xff", true),
            r#""half \xe2\x82 end\xff"..."#
        );
        assert_eq!(quoted("訓練".as_bytes(), false), "\"訓練\"");
    }

    proptest! {
        /// Check that no bytes leave their quotes or control a terminal.
        #[test]
        fn any_bytes_stay_in_their_quotes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = quoted(&bytes, false);
            prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            let inner = &text[1..text.len() - 1];
            let mut chars = inner.chars();
            while let Some(c) = chars.next() {
                prop_assert!(c != '"', "{text}");
                if c == '\\' {
                    prop_assert!(chars.next().is_some(), "{text}");
                }
            }
        }
    }
}
