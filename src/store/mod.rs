//! The recording on disk.
#![forbid(unsafe_code)]

pub mod intern;
pub mod meta;
