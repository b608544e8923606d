//! Flame graphs: as folded text for other tools, and as a picture for a browser.
#![forbid(unsafe_code)]

pub mod label;
pub mod svg;
pub mod table;
#[cfg(test)]
mod tests;
