//! The help screen, made from the table of the keys.
#![forbid(unsafe_code)]

/// How far it can be scrolled on a terminal of this size.
pub fn last_scroll(_size: (u16, u16)) -> usize {
    0
}
