//! What a terminal sends: keys, pasted text, answers.
//!
//! crossterm reads a terminal too, but it waits for the rest of a key that was cut off, never gives up on a
//! terminal that is gone, and takes an answer of the terminal for keys. Here bytes go in and come out as
//! [`Input`]; who waits, and how long, is up to the caller.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// After so long an Esc is the key, and not the begin of another.
pub(super) const ESC_QUIET: Duration = Duration::from_millis(50);
/// After so long the end of an answer or of what is pasted will not come.
const STRING_QUIET: Duration = Duration::from_secs(1);
/// No key or answer is longer.
const MAX_SEQUENCE: usize = 4096;
/// Nobody pastes more into a filter.
const MAX_PASTE: usize = 1 << 20;

const PASTE_END: &[u8] = b"\x1b[201~";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Key(KeyEvent),
    Paste(String),
    /// The background of the terminal, which was asked for: red, green, blue.
    Background([u8; 3]),
    /// What the terminal is: any of them answers this, after what else was asked.
    Attributes,
}

/// Bytes that have not become an [`Input`] yet.
#[derive(Debug, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
}

/// What the first bytes are.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// The begin of something that goes on.
    Part(Kind),
    /// So many bytes, and what they mean; `None`: nothing to us.
    Whole(usize, Option<Input>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Key,
    Answer,
    Paste,
}

impl Keys {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Something has begun, and its end is awaited.
    pub(super) fn is_waiting(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The next one, when nothing has come for this long.
    pub(super) fn next(&mut self, quiet: Duration) -> Option<Input> {
        while !self.bytes.is_empty() {
            let (length, input) = match parse(&self.bytes) {
                Parsed::Whole(length, input) => (length, input),
                Parsed::Part(kind) => {
                    let (limit, most) = match kind {
                        Kind::Key => (ESC_QUIET, MAX_SEQUENCE),
                        Kind::Answer => (STRING_QUIET, MAX_SEQUENCE),
                        Kind::Paste => (STRING_QUIET, MAX_PASTE),
                    };
                    if quiet < limit && self.bytes.len() < most {
                        return None;
                    }
                    cut_off(&self.bytes)
                }
            };
            self.bytes.drain(..length);
            if input.is_some() {
                return input;
            }
        }
        None
    }
}

/// What was begun and did not go on. It means nothing, unless it was two keys.
fn cut_off(bytes: &[u8]) -> (usize, Option<Input>) {
    match bytes {
        [0x1b] | [0x1b, _] => (1, Some(ESC)),
        _ => (bytes.len(), None),
    }
}

/// `bytes` is not empty.
fn parse(bytes: &[u8]) -> Parsed {
    match bytes {
        [0x1b] => Parsed::Part(Kind::Key),
        [0x1b, b'[', ..] => control_sequence(bytes),
        [0x1b, b'O', ..] => keypad(bytes),
        [0x1b, b']' | b'P' | b'X' | b'^' | b'_', ..] => answer(bytes),
        // Alt with a key looks the same as Esc and a key in haste. Here Alt means nothing.
        [0x1b, ..] => Parsed::Whole(1, Some(ESC)),
        _ => plain(bytes),
    }
}

const ESC: Input = Input::Key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));

fn key(code: KeyCode, modifiers: KeyModifiers) -> Input {
    Input::Key(KeyEvent::new(code, modifiers))
}

fn character(c: char) -> Input {
    let shift = if c.is_uppercase() {
        KeyModifiers::SHIFT
    } else {
        KeyModifiers::NONE
    };
    key(KeyCode::Char(c), shift)
}

/// A character, or a key that is one byte.
fn plain(bytes: &[u8]) -> Parsed {
    let first = bytes[0];
    let control = |c: u8| key(KeyCode::Char(char::from(c)), KeyModifiers::CONTROL);
    let named = |code| key(code, KeyModifiers::NONE);
    let input = match first {
        b'\r' | b'\n' => named(KeyCode::Enter),
        b'\t' => named(KeyCode::Tab),
        0x08 | 0x7f => named(KeyCode::Backspace),
        0 => control(b' '),
        1..=0x1a => control(b'a' + first - 1),
        0x1b..=0x1f => control(b'[' + first - 0x1b),
        0x20..=0x7e => character(char::from(first)),
        0x80.. => {
            let known = &bytes[..bytes.len().min(4)];
            let whole = match std::str::from_utf8(known) {
                Ok(text) => text,
                Err(e) if e.valid_up_to() > 0 => {
                    std::str::from_utf8(&known[..e.valid_up_to()]).unwrap_or_default()
                }
                Err(e) if e.error_len().is_none() => return Parsed::Part(Kind::Key),
                Err(_) => "",
            };
            return match whole.chars().next() {
                Some(c) => Parsed::Whole(c.len_utf8(), Some(character(c))),
                None => Parsed::Whole(1, None),
            };
        }
    };
    Parsed::Whole(1, Some(input))
}

/// `ESC O`, as keypads and some function keys send.
fn keypad(bytes: &[u8]) -> Parsed {
    let Some(&third) = bytes.get(2) else {
        return Parsed::Part(Kind::Key);
    };
    let code = match third {
        b'M' => KeyCode::Enter,
        // Digits and signs of the keypad.
        b'j'..=b'y' => KeyCode::Char(char::from(third - b'j' + b'*')),
        other => match named(other) {
            Some(code) => code,
            None => return Parsed::Whole(3, None),
        },
    };
    Parsed::Whole(3, Some(key(code, KeyModifiers::NONE)))
}

/// Keys by the letter in which their sequence ends.
fn named(last: u8) -> Option<KeyCode> {
    Some(match last {
        b'A' => KeyCode::Up,
        b'B' => KeyCode::Down,
        b'C' => KeyCode::Right,
        b'D' => KeyCode::Left,
        b'F' => KeyCode::End,
        b'H' => KeyCode::Home,
        b'P'..=b'S' => KeyCode::F(last - b'P' + 1),
        b'Z' => KeyCode::BackTab,
        _ => return None,
    })
}

/// Keys by the number before the `~`.
fn numbered(number: u32) -> Option<KeyCode> {
    Some(match number {
        1 | 7 => KeyCode::Home,
        2 => KeyCode::Insert,
        3 => KeyCode::Delete,
        4 | 8 => KeyCode::End,
        5 => KeyCode::PageUp,
        6 => KeyCode::PageDown,
        11 => KeyCode::F(1),
        12 => KeyCode::F(2),
        13 => KeyCode::F(3),
        14 => KeyCode::F(4),
        15 => KeyCode::F(5),
        17 => KeyCode::F(6),
        18 => KeyCode::F(7),
        19 => KeyCode::F(8),
        20 => KeyCode::F(9),
        21 => KeyCode::F(10),
        23 => KeyCode::F(11),
        24 => KeyCode::F(12),
        _ => return None,
    })
}

/// `ESC [`, parameters, and a letter.
fn control_sequence(bytes: &[u8]) -> Parsed {
    // The function keys of Linux's console are no sequences that ECMA-48 knows.
    if let Some(b'[') = bytes.get(2) {
        return match bytes.get(3) {
            None => Parsed::Part(Kind::Key),
            Some(&which @ b'A'..=b'E') => Parsed::Whole(
                4,
                Some(key(KeyCode::F(which - b'A' + 1), KeyModifiers::NONE)),
            ),
            Some(_) => Parsed::Whole(4, None),
        };
    }
    let Some(end) = (2..bytes.len()).find(|&at| !(0x20..0x40).contains(&bytes[at])) else {
        return Parsed::Part(Kind::Key);
    };
    let last = bytes[end];
    if !(0x40..=0x7e).contains(&last) {
        // Another begins here: this one was cut off.
        return Parsed::Whole(end, None);
    }
    let parameters = &bytes[2..end];
    if last == b'c' && parameters.first() == Some(&b'?') {
        return Parsed::Whole(end + 1, Some(Input::Attributes));
    }
    let mut numbers = parameters.split(|&b| b == b';').map(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        digits.parse::<u32>().ok()
    });
    let first = numbers.next().flatten();
    let modifiers = numbers
        .next()
        .flatten()
        .map_or(KeyModifiers::NONE, modifiers);
    if last == b'~' && first == Some(200) {
        return paste(bytes, end + 1);
    }
    let code = match last {
        b'~' => first.and_then(numbered),
        _ => named(last),
    };
    let modifiers = match code {
        Some(KeyCode::BackTab) => modifiers | KeyModifiers::SHIFT,
        _ => modifiers,
    };
    Parsed::Whole(end + 1, code.map(|code| key(code, modifiers)))
}

/// As xterm counts them, from 1.
fn modifiers(number: u32) -> KeyModifiers {
    let bits = number.saturating_sub(1);
    let mut modifiers = KeyModifiers::NONE;
    for (bit, modifier) in [
        (1, KeyModifiers::SHIFT),
        (2, KeyModifiers::ALT),
        (4, KeyModifiers::CONTROL),
    ] {
        if bits & bit != 0 {
            modifiers |= modifier;
        }
    }
    modifiers
}

fn paste(bytes: &[u8], start: usize) -> Parsed {
    let Some(length) = find(&bytes[start..], PASTE_END) else {
        return Parsed::Part(Kind::Paste);
    };
    let text = String::from_utf8_lossy(&bytes[start..start + length]).into_owned();
    Parsed::Whole(start + length + PASTE_END.len(), Some(Input::Paste(text)))
}

/// A string that a terminal sends when it is asked: up to BEL or `ESC \`.
fn answer(bytes: &[u8]) -> Parsed {
    if bytes.len() == 2 {
        // It may be Esc and a key as well.
        return Parsed::Part(Kind::Key);
    }
    let Some(end) = (2..bytes.len()).find(|&at| bytes[at] == 0x07 || bytes[at] == 0x1b) else {
        return Parsed::Part(Kind::Answer);
    };
    let length = match (bytes[end], bytes.get(end + 1)) {
        (0x07, _) => end + 1,
        (_, Some(b'\\')) => end + 2,
        (_, None) => return Parsed::Part(Kind::Answer),
        // Another begins here.
        (_, Some(_)) => return Parsed::Whole(end, None),
    };
    let input = match bytes[1] {
        b']' => background(&bytes[2..end]).map(Input::Background),
        _ => None,
    };
    Parsed::Whole(length, input)
}

/// `11;rgb:RRRR/GGGG/BBBB`, with 1 to 4 digits each.
fn background(text: &[u8]) -> Option<[u8; 3]> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix("11;")?;
    let colors = text
        .strip_prefix("rgb:")
        .or_else(|| text.strip_prefix("rgba:"))?;
    let mut rgb = [0; 3];
    let mut parts = colors.split('/');
    for channel in &mut rgb {
        let digits = parts.next()?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let value = u32::from_str_radix(digits, 16).ok()?;
        let most = match digits.len() {
            length @ 1..=4 => (1 << (4 * length)) - 1,
            _ => return None,
        };
        *channel = u8::try_from(value * 255 / most).ok()?;
    }
    Some(rgb)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const LATER: Duration = Duration::from_secs(2);

    fn all(keys: &mut Keys, quiet: Duration) -> Vec<Input> {
        std::iter::from_fn(|| keys.next(quiet)).collect()
    }

    fn read(bytes: &[u8]) -> Vec<Input> {
        let mut keys = Keys::default();
        keys.push(bytes);
        let inputs = all(&mut keys, NOW);
        assert!(!keys.is_waiting(), "{bytes:?}");
        inputs
    }

    fn plain_key(code: KeyCode) -> Input {
        key(code, KeyModifiers::NONE)
    }

    #[test]
    fn keys_are_told_as_xterm_vt_and_the_console_of_linux_send_them() {
        for (bytes, code) in [
            (&b"q"[..], KeyCode::Char('q')),
            (b"\r", KeyCode::Enter),
            (b"\t", KeyCode::Tab),
            (b"\x7f", KeyCode::Backspace),
            (b"\x1b[A", KeyCode::Up),
            (b"\x1bOB", KeyCode::Down),
            (b"\x1b[H", KeyCode::Home),
            (b"\x1b[1~", KeyCode::Home),
            (b"\x1b[4~", KeyCode::End),
            (b"\x1b[5~", KeyCode::PageUp),
            (b"\x1b[6~", KeyCode::PageDown),
            (b"\x1bOP", KeyCode::F(1)),
            (b"\x1b[[A", KeyCode::F(1)),
            (b"\x1b[11~", KeyCode::F(1)),
            (b"\x1b[24~", KeyCode::F(12)),
            (b"\x1bOk", KeyCode::Char('+')),
            ("é".as_bytes(), KeyCode::Char('é')),
            ("網".as_bytes(), KeyCode::Char('網')),
            ("🦀".as_bytes(), KeyCode::Char('🦀')),
        ] {
            assert_eq!(read(bytes), [plain_key(code)], "{bytes:?}");
        }
    }

    #[test]
    fn modifiers_are_kept() {
        for (bytes, code, modifiers) in [
            (&b"\x03"[..], KeyCode::Char('c'), KeyModifiers::CONTROL),
            (b"\x1a", KeyCode::Char('z'), KeyModifiers::CONTROL),
            (b"\x1c", KeyCode::Char('\\'), KeyModifiers::CONTROL),
            (b"G", KeyCode::Char('G'), KeyModifiers::SHIFT),
            (b"\x1b[1;5C", KeyCode::Right, KeyModifiers::CONTROL),
            (b"\x1b[5;2~", KeyCode::PageUp, KeyModifiers::SHIFT),
            (b"\x1b[Z", KeyCode::BackTab, KeyModifiers::SHIFT),
        ] {
            assert_eq!(read(bytes), [key(code, modifiers)], "{bytes:?}");
        }
    }

    #[test]
    fn a_key_that_comes_in_pieces_is_one_key() {
        for whole in [&b"\x1b[1;5C"[..], b"\x1b[24~", b"\x1bOP", "網".as_bytes()] {
            let mut keys = Keys::default();
            for byte in &whole[..whole.len() - 1] {
                keys.push(&[*byte]);
                assert_eq!(keys.next(NOW), None, "{whole:?}");
                assert!(keys.is_waiting());
            }
            keys.push(&whole[whole.len() - 1..]);
            assert_eq!(all(&mut keys, NOW), read(whole));
        }
    }

    #[test]
    fn an_esc_after_which_nothing_comes_is_the_key() {
        let mut keys = Keys::default();
        keys.push(b"\x1b");
        assert_eq!(keys.next(NOW), None);
        assert_eq!(keys.next(ESC_QUIET), Some(plain_key(KeyCode::Esc)));
        assert_eq!(
            read(b"\x1b\x1b[A"),
            [plain_key(KeyCode::Esc), plain_key(KeyCode::Up)]
        );
    }

    #[test]
    fn esc_and_a_key_in_haste_are_two_keys() {
        let esc = plain_key(KeyCode::Esc);
        assert_eq!(read(b"\x1b4"), [esc.clone(), plain_key(KeyCode::Char('4'))]);
        for key in ['[', ']', 'O'] {
            let mut keys = Keys::default();
            keys.push(&[0x1b, key as u8]);
            assert_eq!(keys.next(NOW), None);
            let then = character(key);
            assert_eq!(all(&mut keys, ESC_QUIET), [esc.clone(), then], "{key}");
        }
    }

    #[test]
    fn what_is_cut_off_is_dropped_and_does_not_swallow_the_next_key() {
        let mut keys = Keys::default();
        keys.push(b"\x1b[1;");
        assert_eq!(keys.next(NOW), None);
        assert_eq!(keys.next(LATER), None);
        assert!(!keys.is_waiting());
        assert_eq!(read(b"\x1b[1;\x1b[A"), [plain_key(KeyCode::Up)]);
        assert_eq!(
            read(b"\xff\xfeq\xe7\xb6q"),
            vec![plain_key(KeyCode::Char('q')); 2]
        );
    }

    #[test]
    fn what_means_nothing_here_is_no_key() {
        // Focus, mouse, an unknown function key, a device control string.
        for bytes in [
            &b"\x1b[I"[..],
            b"\x1b[<0;10;10M",
            b"\x1b[99~",
            b"\x1bP>|term\x1b\\",
        ] {
            assert_eq!(read(bytes), [], "{bytes:?}");
        }
    }

    #[test]
    fn pasted_text_is_no_keys() {
        assert_eq!(
            read(b"\x1b[200~q\x1b[A\n\x1b[201~x"),
            [
                Input::Paste("q\u{1b}[A\n".to_string()),
                plain_key(KeyCode::Char('x'))
            ]
        );
        let mut keys = Keys::default();
        keys.push(b"\x1b[200~never ends");
        assert_eq!(keys.next(ESC_QUIET), None);
        assert_eq!(keys.next(LATER), None);
        assert!(!keys.is_waiting());
    }

    #[test]
    fn answers_are_no_keys() {
        let white = || Input::Background([255; 3]);
        assert_eq!(read(b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\"), [white()]);
        assert_eq!(read(b"\x1b]11;rgb:ff/ff/ff\x07"), [white()]);
        assert_eq!(
            read(b"\x1b]11;rgb:0/8/f\x07"),
            [Input::Background([0, 136, 255])]
        );
        assert_eq!(
            read(b"j\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;22ck"),
            [
                plain_key(KeyCode::Char('j')),
                white(),
                Input::Attributes,
                plain_key(KeyCode::Char('k'))
            ]
        );
        for odd in [
            &b"\x1b]11;rgb:fffff/0/0\x07"[..],
            b"\x1b]11;rgb:+f/0/0\x07",
            b"\x1b]4;1\x07",
        ] {
            assert_eq!(read(odd), [], "{odd:?}");
        }
    }

    #[test]
    fn an_answer_may_pause_where_a_key_may_not() {
        let mut keys = Keys::default();
        keys.push(b"\x1b]11;rgb:00");
        assert_eq!(keys.next(ESC_QUIET), None);
        keys.push(b"00/0000/0000\x1b\\");
        assert_eq!(keys.next(NOW), Some(Input::Background([0; 3])));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_in_the_end(bytes: Vec<u8>, cut in 0_usize..64) {
            let mut keys = Keys::default();
            let cut = cut.min(bytes.len());
            keys.push(&bytes[..cut]);
            all(&mut keys, NOW);
            keys.push(&bytes[cut..]);
            all(&mut keys, LATER);
            proptest::prop_assert!(!keys.is_waiting());
        }
    }
}
