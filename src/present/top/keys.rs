//! The keys, defined once: what they do, the help screen and the line at the bottom are read from one table.
//!
//! They are those of htop, less and vim, where these have one.
#![forbid(unsafe_code)]

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What a key does on a screen; while a filter is typed, keys are letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Move(Move),
    Open,
    Back,
    NextTab,
    PreviousTab,
    Tab(u8),
    NextGpu,
    PreviousGpu,
    Filter,
    SortNext,
    SortPrevious,
    Reverse,
    Pause,
    Earlier,
    Later,
    WindowEarlier,
    WindowLater,
    Longer,
    Shorter,
    Faster,
    Slower,
    CountCalls,
    Snapshot,
    Help,
    Redraw,
    Suspend,
    Quit,
}

/// Through rows or lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    HalfUp,
    HalfDown,
    First,
    Last,
}

impl Move {
    /// From `at`, where there is `room` for so many at a time.
    pub fn to(self, at: usize, last: usize, room: usize) -> usize {
        let half = (room / 2).max(1);
        let to = match self {
            Move::Up => at.saturating_sub(1),
            Move::Down => at.saturating_add(1),
            Move::PageUp => at.saturating_sub(room),
            Move::PageDown => at.saturating_add(room),
            Move::HalfUp => at.saturating_sub(half),
            Move::HalfDown => at.saturating_add(half),
            Move::First => 0,
            Move::Last => last,
        };
        to.min(last)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Char(char),
    Ctrl(char),
    Code(KeyCode),
}

/// Keys that do one thing.
#[derive(Debug)]
pub struct Binding {
    keys: &'static [Key],
    pub action: Action,
    /// For people, as in `j, Down`.
    pub names: &'static str,
    pub help: &'static str,
    /// For the bottom line: key and word.
    pub short: Option<(&'static str, &'static str)>,
}

#[derive(Debug)]
pub struct Group {
    pub title: &'static str,
    pub bindings: &'static [Binding],
}

const fn bind(
    keys: &'static [Key],
    action: Action,
    names: &'static str,
    help: &'static str,
) -> Binding {
    Binding {
        keys,
        action,
        names,
        help,
        short: None,
    }
}

impl Binding {
    const fn short(self, key: &'static str, word: &'static str) -> Binding {
        Binding {
            short: Some((key, word)),
            ..self
        }
    }
}

use Action as A;
use Key::{Char, Code, Ctrl};

pub const GROUPS: &[Group] = &[
    Group {
        title: "Move",
        bindings: &[
            bind(
                &[Char('k'), Code(KeyCode::Up)],
                A::Move(Move::Up),
                "Up, k",
                "one row up",
            ),
            bind(
                &[Char('j'), Code(KeyCode::Down)],
                A::Move(Move::Down),
                "Down, j",
                "one row down",
            ),
            bind(
                &[Code(KeyCode::PageUp), Ctrl('b')],
                A::Move(Move::PageUp),
                "PgUp, Ctrl-B",
                "a page up",
            ),
            bind(
                &[Code(KeyCode::PageDown), Ctrl('f')],
                A::Move(Move::PageDown),
                "PgDn, Ctrl-F",
                "a page down",
            ),
            bind(
                &[Ctrl('u')],
                A::Move(Move::HalfUp),
                "Ctrl-U",
                "half a page up",
            ),
            bind(
                &[Ctrl('d')],
                A::Move(Move::HalfDown),
                "Ctrl-D",
                "half a page down",
            ),
            bind(
                &[Char('g'), Code(KeyCode::Home)],
                A::Move(Move::First),
                "Home, g",
                "the first row",
            ),
            bind(
                &[Char('G'), Code(KeyCode::End)],
                A::Move(Move::Last),
                "End, G",
                "the last row",
            ),
        ],
    },
    Group {
        title: "Screens",
        bindings: &[
            bind(
                &[Char('l'), Code(KeyCode::Enter)],
                A::Open,
                "Enter, l",
                "open the row: a cause, a gap, a thread, a call, a kernel",
            )
            .short("Enter", "Open"),
            bind(
                &[Code(KeyCode::Esc), Code(KeyCode::Backspace), Char('h')],
                A::Back,
                "Esc, Backspace, h",
                "back; of a list, drop its filter",
            )
            .short("Esc", "Back"),
            bind(&[Code(KeyCode::Tab)], A::NextTab, "Tab", "the next screen"),
            bind(
                &[Code(KeyCode::BackTab)],
                A::PreviousTab,
                "Shift-Tab",
                "the screen before",
            ),
            bind(&[Char('1')], A::Tab(0), "1", "overview"),
            bind(&[Char('2')], A::Tab(1), "2", "causes of idle time"),
            bind(&[Char('3')], A::Tab(2), "3", "gaps, longest first"),
            bind(
                &[Char('4')],
                A::Tab(3),
                "4",
                "threads: running, runnable, blocked, in CUDA",
            ),
            bind(&[Char('5')], A::Tab(4), "5", "system calls"),
            bind(&[Char('6')], A::Tab(5), "6", "kernels by GPU time"),
            bind(&[Char('7')], A::Tab(6), "7", "CPUs"),
            bind(&[Char('8')], A::Tab(7), "8", "processes"),
            bind(&[Char('n')], A::NextGpu, "n", "the next GPU").short("n", "GPU"),
            bind(&[Char('N')], A::PreviousGpu, "N", "the GPU before"),
        ],
    },
    Group {
        title: "Lists",
        bindings: &[
            bind(
                &[Char('/'), Code(KeyCode::F(4)), Code(KeyCode::F(3))],
                A::Filter,
                "/, F4",
                "show rows with this text only",
            )
            .short("/", "Filter"),
            bind(
                &[Char('>'), Char('s'), Code(KeyCode::F(6))],
                A::SortNext,
                ">, s, F6",
                "sort by the next column",
            )
            .short("s", "Sort"),
            bind(
                &[Char('<')],
                A::SortPrevious,
                "<",
                "sort by the column before",
            ),
            bind(
                &[Char('r'), Char('I')],
                A::Reverse,
                "r, I",
                "reverse the order",
            ),
        ],
    },
    Group {
        title: "Time",
        bindings: &[
            bind(
                &[Char(' '), Char('p')],
                A::Pause,
                "Space, p",
                "hold the window, or let it move on",
            )
            .short("p", "Pause"),
            bind(
                &[Char('['), Code(KeyCode::Left)],
                A::Earlier,
                "Left, [",
                "hold, and look half a second further back",
            )
            .short("[ ]", "Scrub"),
            bind(
                &[Char(']'), Code(KeyCode::Right)],
                A::Later,
                "Right, ]",
                "half a second later, at last live again",
            ),
            bind(
                &[Char('{')],
                A::WindowEarlier,
                "{",
                "hold, and look a window further back",
            ),
            bind(&[Char('}')], A::WindowLater, "}", "a window later"),
            bind(
                &[Char('+'), Char('=')],
                A::Longer,
                "+",
                "a longer window, up to 300 s",
            )
            .short("+ -", "Window"),
            bind(
                &[Char('-')],
                A::Shorter,
                "-",
                "a shorter window, down to 1 s",
            ),
            bind(
                &[Char('.')],
                A::Faster,
                ".",
                "play a recording twice as fast",
            ),
            bind(
                &[Char(',')],
                A::Slower,
                ",",
                "play a recording half as fast",
            ),
        ],
    },
    Group {
        title: "Other",
        bindings: &[
            bind(
                &[Char('c')],
                A::CountCalls,
                "c",
                "count all system calls, or only those that wait; costs more",
            ),
            bind(
                &[Char('w'), Char('P')],
                A::Snapshot,
                "w, P",
                "write what is in memory to a recording, for gdiag report",
            )
            .short("w", "Snapshot"),
            bind(
                &[Char('?'), Code(KeyCode::F(1))],
                A::Help,
                "?, F1",
                "this help",
            )
            .short("?", "Help"),
            bind(&[Ctrl('l')], A::Redraw, "Ctrl-L", "draw the screen anew"),
            bind(&[Ctrl('z')], A::Suspend, "Ctrl-Z", "suspend; fg comes back"),
            bind(
                &[Char('q'), Ctrl('c'), Code(KeyCode::F(10))],
                A::Quit,
                "q, Ctrl-C, F10",
                "quit",
            )
            .short("q", "Quit"),
        ],
    },
];

/// `None`: the key does nothing.
pub fn action(event: KeyEvent) -> Option<Action> {
    let key = pressed(event)?;
    let bindings = GROUPS.iter().flat_map(|group| group.bindings);
    let mut found = bindings.filter(|binding| binding.keys.contains(&key));
    found.next().map(|binding| binding.action)
}

/// Ctrl-C, which quits wherever one is; q leaves the help first.
pub fn is_interrupt(event: KeyEvent) -> bool {
    pressed(event) == Some(Ctrl('c'))
}

fn pressed(event: KeyEvent) -> Option<Key> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let with = event.modifiers;
    match event.code {
        KeyCode::Char(_) if with.intersects(KeyModifiers::ALT | KeyModifiers::SUPER) => None,
        KeyCode::Char(c) if with.contains(KeyModifiers::CONTROL) => {
            // What terminals send for Ctrl-Backspace and Backspace.
            match c.to_ascii_lowercase() {
                'h' => Some(Code(KeyCode::Backspace)),
                'i' => Some(Code(KeyCode::Tab)),
                'j' | 'm' => Some(Code(KeyCode::Enter)),
                c => Some(Ctrl(c)),
            }
        }
        KeyCode::Char(c) => Some(Char(c)),
        KeyCode::Tab if with.contains(KeyModifiers::SHIFT) => Some(Code(KeyCode::BackTab)),
        code => Some(Code(code)),
    }
}

/// What a key does to a line that is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    Insert(char),
    DeleteLast,
    DeleteWord,
    DeleteAll,
    Accept,
    Cancel,
}

/// `Err`: a key that is no edit, but works all the same.
pub fn edit(event: KeyEvent) -> Result<Option<Edit>, Action> {
    Ok(match pressed(event) {
        Some(Char(c)) => Some(Edit::Insert(c)),
        Some(Code(KeyCode::Backspace)) => Some(Edit::DeleteLast),
        Some(Code(KeyCode::Enter)) => Some(Edit::Accept),
        Some(Code(KeyCode::Esc)) | Some(Ctrl('g')) => Some(Edit::Cancel),
        Some(Ctrl('w')) => Some(Edit::DeleteWord),
        Some(Ctrl('u')) => Some(Edit::DeleteAll),
        Some(Ctrl('c')) => return Err(Action::Quit),
        Some(Ctrl('l')) => return Err(Action::Redraw),
        Some(Ctrl('z')) => return Err(Action::Suspend),
        Some(Code(KeyCode::Up)) => return Err(Action::Move(Move::Up)),
        Some(Code(KeyCode::Down)) => return Err(Action::Move(Move::Down)),
        Some(Code(_)) | Some(Ctrl(_)) | None => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_does_two_things() {
        let all = GROUPS.iter().flat_map(|group| group.bindings);
        let keys: Vec<Key> = all.flat_map(|b| b.keys).copied().collect();
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{key:?}");
        }
    }

    #[test]
    fn shift_and_control_are_told_apart() {
        let key = |code, with| action(KeyEvent::new(code, with));
        let none = KeyModifiers::NONE;
        assert_eq!(key(KeyCode::Char('n'), none), Some(Action::NextGpu));
        assert_eq!(
            key(KeyCode::Char('N'), KeyModifiers::SHIFT),
            Some(Action::PreviousGpu)
        );
        assert_eq!(
            key(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(Action::Quit)
        );
        assert_eq!(key(KeyCode::Char('c'), none), Some(Action::CountCalls));
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::ALT), None);
        let mut released = KeyEvent::new(KeyCode::Char('q'), none);
        released.kind = KeyEventKind::Release;
        assert_eq!(action(released), None);
    }
}
