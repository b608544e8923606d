//! Draws a page: text, bars and tables one below another.
#![forbid(unsafe_code)]

use super::screen::Block;

/// Lines that all of it takes at this width.
pub fn height(blocks: &[Block], _width: u16) -> usize {
    blocks.len()
}
